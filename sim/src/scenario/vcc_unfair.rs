//! Legacy guests beside natives of ECN at one port: whether each of ten flows has a tenth.
//!
//! The set-up of vCC's scripts (Cronkite-Ratcliff et al., 2016): ten senders to one receiver, links
//! of 100 Mbit/s and 250 us, some of the senders without ECN.

use datapath::aqm::{Discipline, Red};
use datapath::units::Rate;
use datapath::vcc::{Mode, Settings};

use super::measure::{Interval, SECOND};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::star::{Guest, Seen, Sender, Star, jain};
use crate::tcp::congestion::Algorithm;
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "vcc-unfair",
    about: "1, 5 and 9 of 10 flows at one port are of guests without ECN: who has how much",
    seconds: 3,
    warms_up: false,
    repeats: true,
    run,
};

const SENDERS: usize = 10;
const RATE: Rate = Rate(100_000_000);
const DELAY_NS: u64 = 250_000;
/// What is left out at the start of each run.
const WARM_UP_NS: u64 = 2 * SECOND;
/// How many of the senders have no ECN.
const LEGACY: [usize; 3] = [1, 5, 9];
const SEEDS: u64 = 5;
/// The translated guests have their share in the mean, and each of the ten has its own, but for so
/// much.
const SHARE_WITHIN: f64 = 0.05;
/// Jain's index of all ten.
const JAIN_LEAST: f64 = 0.99;
/// What natives have, of what they have among natives.
const OTHERS_LEAST: f64 = 0.99;

/// Queues, and what the natives run.
const CELLS: [(&str, Discipline, u32, Algorithm); 4] = [
    ("red1", Discipline::Red(Red::VCC_RED1), 1_000_000, Algorithm::Cubic),
    ("red2", Discipline::Red(Red::VCC_RED2), 400_000, Algorithm::Cubic),
    ("auto", Discipline::Auto, 1_000_000, Algorithm::Cubic),
    ("red1", Discipline::Red(Red::VCC_RED1), 1_000_000, Algorithm::NewReno),
];

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            ("links", format!("{RATE}, {} us each, ten senders to one receiver", DELAY_NS / 1000)),
            ("seeds", format!("{SEEDS}; means and 95 % intervals; {} s are left out", WARM_UP_NS / SECOND)),
        ],
        columns: vec![
            "queue",
            "natives",
            "without ECN",
            "they are",
            "their share",
            "+-",
            "natives' share",
            "least",
            "most",
            "Jain",
            "natives' rate",
            "+-",
        ],
        notes: vec![
            "Shares are of a tenth; least and most are those of any of the ten flows. The natives' rate is that of what they have where all ten are natives.".into(),
        ],
        ..Table::default()
    };
    for (queue, discipline, bytes, algorithm) in CELLS {
        let cell = |legacy: usize, guest: Guest| {
            let seeds = (0..SEEDS).map(|seed| {
                let star = star(options.seed + seed, (discipline, bytes), algorithm, (legacy, guest));
                star.run(WARM_UP_NS, options.seconds * SECOND).map(|seen| Shares::of(&seen, legacy))
            });
            seeds.collect::<Result<Vec<Shares>, Violation>>()
        };
        let alone = cell(0, Guest::Native)?;
        push(&mut table, (queue, algorithm), (0, "natives"), &alone, &alone);
        options.played(table.rows.len(), CELLS.len() * (1 + 2 * LEGACY.len()));
        for legacy in LEGACY {
            for (name, guest) in [("legacy", Guest::Legacy), ("echo", Guest::Virtual)] {
                let shares = cell(legacy, guest)?;
                push(&mut table, (queue, algorithm), (legacy, name), &shares, &alone);
                options.played(table.rows.len(), CELLS.len() * (1 + 2 * LEGACY.len()));
                if guest == Guest::Virtual {
                    let id = format!("{queue}, {}, {legacy} of 10", algorithm.name());
                    claim(&mut table, &id, &shares, &alone);
                }
            }
        }
    }
    Ok(table)
}

fn star(seed: u64, queue: (Discipline, u32), algorithm: Algorithm, (legacy, guest): (usize, Guest)) -> Star {
    let guests = (0..SENDERS).map(|number| if number < legacy { guest } else { Guest::Native });
    Star {
        rate: RATE,
        delay_ns: DELAY_NS,
        queue,
        service: Settings { mode: Mode::Echo, ..Settings::default() },
        of_natives: Settings::default(),
        senders: guests.map(|guest| Sender::honest(guest, algorithm)).collect(),
        begin_ns: WARM_UP_NS / 4,
        seed,
    }
}

/// Of one run, in tenths of what all have together; nothing where there are none.
struct Shares {
    legacy: Option<f64>,
    natives: Option<f64>,
    /// Of the flow that has least, and of the one that has most.
    least: f64,
    most: f64,
    jain: f64,
    /// Bits a second of a native.
    native_bps: f64,
}

impl Shares {
    fn of(seen: &Seen, legacy: usize) -> Shares {
        let rates: Vec<f64> = (0..SENDERS).map(|sender| seen.bps(sender)).collect();
        let mean = |rates: &[f64]| (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64);
        let fair = mean(&rates).unwrap_or(1.0);
        let (theirs, natives) = rates.split_at(legacy);
        Shares {
            legacy: mean(theirs).map(|rate| rate / fair),
            natives: mean(natives).map(|rate| rate / fair),
            least: rates.iter().copied().fold(f64::INFINITY, f64::min) / fair,
            most: rates.iter().copied().fold(0.0, f64::max) / fair,
            jain: jain(&rates),
            native_bps: mean(natives).unwrap_or(0.0),
        }
    }
}

fn over(shares: &[Shares], value: impl Fn(&Shares) -> Option<f64>) -> Option<Interval> {
    let values: Option<Vec<f64>> = shares.iter().map(value).collect();
    values.map(|values| Interval::of(&values))
}

/// What natives have, of what the same natives have among themselves, seed by seed.
fn others(shares: &[Shares], alone: &[Shares]) -> Interval {
    let ratios: Vec<f64> = shares.iter().zip(alone).map(|(one, other)| one.native_bps / other.native_bps).collect();
    Interval::of(&ratios)
}

fn push(
    table: &mut Table,
    (queue, algorithm): (&str, Algorithm),
    (legacy, name): (usize, &str),
    shares: &[Shares],
    alone: &[Shares],
) {
    let number = |value: Option<f64>, digits| value.map_or(Cell::Empty, |value| Cell::Number(value, digits));
    let theirs = over(shares, |one| one.legacy);
    let rate = others(shares, alone);
    table.rows.push(vec![
        queue.into(),
        algorithm.name().into(),
        Cell::Number(legacy as f64, 0),
        name.into(),
        number(theirs.map(|share| share.mean), 3),
        number(theirs.map(|share| share.half), 3),
        number(over(shares, |one| one.natives).map(|share| share.mean), 3),
        number(over(shares, |one| Some(one.least)).map(|share| share.mean), 3),
        number(over(shares, |one| Some(one.most)).map(|share| share.mean), 3),
        number(over(shares, |one| Some(one.jain)).map(|jain| jain.mean), 4),
        Cell::Number(rate.mean, 3),
        Cell::Number(rate.half, 3),
    ]);
}

fn claim(table: &mut Table, id: &str, shares: &[Shares], alone: &[Shares]) {
    let mut add = |what: &str, value: Option<f64>, target| {
        table.claims.push(Claim { id: format!("{id}: {what}"), value, unit: "x", target });
    };
    let theirs = over(shares, |one| one.legacy);
    let all = over(shares, |one| Some(one.jain));
    let (least, most) = (over(shares, |one| Some(one.least)), over(shares, |one| Some(one.most)));
    add("share, low end", theirs.map(|share| share.low()), Target::AtLeast(1.0 - SHARE_WITHIN));
    add("share, high end", theirs.map(|share| share.high()), Target::AtMost(1.0 + SHARE_WITHIN));
    add("least of the ten, low end", least.map(|share| share.low()), Target::AtLeast(1.0 - SHARE_WITHIN));
    add("most of the ten, high end", most.map(|share| share.high()), Target::AtMost(1.0 + SHARE_WITHIN));
    add("Jain, low end", all.map(|jain| jain.low()), Target::AtLeast(JAIN_LEAST));
    add("natives against natives alone, low end", Some(others(shares, alone).low()), Target::AtLeast(OTHERS_LEAST));
}
