//! A cheater among ten translated guests, policed: what it gains.

use datapath::aqm::{Discipline, Red};
use datapath::units::Rate;
use datapath::vcc::{Mode, Settings};

use super::measure::{Interval, SECOND};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::star::{Guest, Seen, Sender, Star};
use crate::tcp::Cheat;
use crate::tcp::congestion::Algorithm;
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "vcc-cheat",
    about: "one of ten guests cheats: what it has, of what it has where it does not",
    seconds: 3,
    warms_up: false,
    repeats: true,
    run,
};

const SENDERS: usize = 10;
const RATE: Rate = Rate(100_000_000);
const DELAY_NS: u64 = 250_000;
const WARM_UP_NS: u64 = 2 * SECOND;
const SEEDS: u64 = 5;
/// What a cheater gains at most.
const GAIN_MOST: f64 = 0.01;
/// Bytes of a connection, of who begins one after the other.
const EACH: u64 = 1_000_000;
/// Where it keeps to the rules.
const HONEST: Sender = Sender::honest(Guest::Virtual, Algorithm::Cubic);
/// What the first of ten does.
const CHEATS: [(&str, Sender); 4] = [
    ("ignores its window", Sender { cheat: Cheat::Window, ..HONEST }),
    ("native, ignores ECE", Sender { cheat: Cheat::Deaf, guest: Guest::Native, ..HONEST }),
    ("reopens each 1 MB", Sender { each: Some(EACH), ..HONEST }),
    ("the same, 100 segments at once", Sender { each: Some(EACH), cheat: Cheat::Burst, ..HONEST }),
];
/// What it does where it is policed.
const NATIVE: (&str, Sender) = (
    "the same, native, ignores ECE",
    Sender { each: Some(EACH), cheat: Cheat::DeafBurst, guest: Guest::Native, ..HONEST },
);
/// Modes and disciplines: of all, and of one cheat that is policed.
const ECHO: (Mode, Discipline) = (Mode::Echo, Discipline::Red(Red::VCC_RED1));
const DCTCP: (Mode, Discipline) = (Mode::Dctcp, Discipline::Auto);

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            ("links", format!("{RATE}, {} us each, red1, ten translated guests to one receiver", DELAY_NS / 1000)),
            ("modes", "echo; in the rows that say so dctcp, and auto in place of red1".into()),
            ("seeds", format!("{SEEDS}; means and 95 % intervals; {} s are left out", WARM_UP_NS / SECOND)),
        ],
        columns: vec![
            "the first of ten",
            "policed",
            "its Mbit/s",
            "gain %",
            "+-",
            "others' loss %",
            "+-",
            "segments cut",
        ],
        notes: vec!["Gain and loss are against the same seeds with ten honest senders.".into()],
        ..Table::default()
    };
    let all: Vec<_> = CHEATS.into_iter().chain([NATIVE]).collect();
    let ignores = [("ignores its window (dctcp, auto)", CHEATS[0].1)];
    let played = [
        (ECHO, false, "is honest", &CHEATS[..]),
        (ECHO, true, "is honest", &all[..]),
        (DCTCP, true, "is honest (dctcp, auto)", &ignores[..]),
    ];
    let cells = played.iter().map(|(.., cheats)| 1 + cheats.len()).sum();
    for (kind, polices, own, cheats) in played {
        let cell = |first| {
            let seeds = (0..SEEDS)
                .map(|seed| star(options.seed + seed, kind, polices, first).run(WARM_UP_NS, options.seconds * SECOND));
            seeds.collect::<Result<Vec<Seen>, Violation>>()
        };
        let honest = cell(HONEST)?;
        push(&mut table, own, polices, &honest, &honest);
        options.played(table.rows.len(), cells);
        for &(name, first) in cheats {
            let seen = cell(first)?;
            let gain = push(&mut table, name, polices, &seen, &honest);
            options.played(table.rows.len(), cells);
            if polices {
                let (id, target) = (format!("{name}: gain, high end"), Target::AtMost(GAIN_MOST));
                table.claims.push(Claim { id, value: Some(gain.high()), unit: "x", target });
            }
        }
    }
    Ok(table)
}

fn star(seed: u64, (mode, discipline): (Mode, Discipline), polices: bool, first: Sender) -> Star {
    let mut senders = vec![HONEST; SENDERS];
    senders[0] = first;
    Star {
        rate: RATE,
        delay_ns: DELAY_NS,
        queue: (discipline, 1_000_000),
        service: Settings { polices, ..mode.into() },
        of_natives: Settings { polices, ..mode.into() },
        senders,
        begin_ns: WARM_UP_NS / 4,
        seed,
    }
}

/// Adds a row; what the first sender gained.
fn push(table: &mut Table, name: &str, polices: bool, seen: &[Seen], honest: &[Seen]) -> Interval {
    let others = |one: &Seen| (1..SENDERS).map(|sender| one.bps(sender)).sum::<f64>();
    // What one of ten has where all are honest is a tenth of all: a single flow differs by chance.
    let fair = |one: &Seen| (one.bps(0) + others(one)) / SENDERS as f64;
    let gains: Vec<f64> = seen.iter().zip(honest).map(|(one, before)| one.bps(0) / fair(before) - 1.0).collect();
    let losses: Vec<f64> = seen
        .iter()
        .zip(honest)
        .map(|(one, before)| 1.0 - others(one) / (fair(before) * (SENDERS - 1) as f64))
        .collect();
    let (gain, loss) = (Interval::of(&gains), Interval::of(&losses));
    let rate = Interval::of(&seen.iter().map(|one| one.bps(0) / 1e6).collect::<Vec<f64>>());
    let cut: u64 = seen.iter().map(|one| one.counters.policed).sum();
    table.rows.push(vec![
        name.into(),
        if polices { "yes" } else { "no" }.into(),
        Cell::Number(rate.mean, 2),
        Cell::Number(gain.mean * 100.0, 1),
        Cell::Number(gain.half * 100.0, 1),
        Cell::Number(loss.mean * 100.0, 1),
        Cell::Number(loss.half * 100.0, 1),
        Cell::Number(cut as f64, 0),
    ]);
    gain
}
