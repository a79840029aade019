//! Many to one: translated guests whose windows must be below two segments.
//!
//! N senders of endless flows meet at a port of 1 Gbit/s with 90 000 bytes of queue that marks
//! above 30 000. Two segments of each are more than queue and path hold from about 40 senders on:
//! who cannot send less (DCTCP, and any TCP by its rules) loses from there on. The switch holds
//! acknowledgements back, so that two segments go in several round trips.

use datapath::aqm::{At, Discipline, Step};
use datapath::units::Rate;
use datapath::vcc::{Mode, Settings};

use super::measure::{Interval, SECOND};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::star::{Guest, Seen, Sender, Star, jain};
use crate::tcp::congestion::Algorithm;
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "vcc-incast",
    about: "16 to 256 senders to one: retransmissions and use of the link, with windows below two segments",
    seconds: 5,
    warms_up: false,
    repeats: true,
    run,
};

const SENDERS: [usize; 3] = [16, 64, 256];
const RATE: Rate = Rate(Rate::GBIT);
const DELAY_NS: u64 = 50_000;
const QUEUE_BYTES: u32 = 90_000;
const STEP: Step = Step { mark_bytes: 30_000, at: At::Arrival };
/// The senders begin within so much, and the steady state is there then.
const BEGIN_NS: u64 = SECOND;
const WARM_UP_NS: u64 = 3 * SECOND / 2;
/// This part of a second is measured of each seed. What is claimed has as many seeds as
/// [`Options::seconds`]; the rest, which is there to be compared with, has one.
const MEASURED_NS: u64 = SECOND / 4;
const USED_LEAST: f64 = 0.99;

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            (
                "links",
                format!(
                    "{RATE}, {} us each; {QUEUE_BYTES} bytes of queue, marks above {}",
                    DELAY_NS / 1000,
                    STEP.mark_bytes
                ),
            ),
            (
                "runs",
                format!(
                    "{} seeds of dctcp, held, one of others; {} ms each behind {} ms",
                    options.seconds,
                    MEASURED_NS / 1_000_000,
                    WARM_UP_NS / 1_000_000
                ),
            ),
        ],
        columns: vec![
            "senders",
            "they are",
            "link used %",
            "retransmissions",
            "timeouts",
            "lost",
            "most waiting, kB",
            "Jain",
            "held",
        ],
        ..Table::default()
    };
    let service = |mode, holds| Settings { mode, holds, ..Settings::default() };
    let kinds = [
        ("native dctcp", Guest::Native, Algorithm::Dctcp, Settings::default()),
        ("dctcp, two segments", Guest::Virtual, Algorithm::Cubic, service(Mode::Dctcp, false)),
        ("dctcp, held", Guest::Virtual, Algorithm::Cubic, service(Mode::Dctcp, true)),
    ];
    for senders in SENDERS {
        for (name, guest, algorithm, service) in kinds {
            let is_claimed = service.mode == Mode::Dctcp && service.holds;
            let seeds = (0..if is_claimed { options.seconds } else { 1 }).map(|seed| {
                let star = Star {
                    rate: RATE,
                    delay_ns: DELAY_NS,
                    queue: (Discipline::Step(STEP), QUEUE_BYTES),
                    service,
                    of_natives: Settings::default(),
                    senders: vec![Sender::honest(guest, algorithm); senders],
                    begin_ns: BEGIN_NS,
                    seed: options.seed + seed,
                };
                star.run(WARM_UP_NS, MEASURED_NS)
            });
            let seen = seeds.collect::<Result<Vec<Seen>, Violation>>()?;
            push(&mut table, (senders, name), &seen, is_claimed);
            options.played(table.rows.len(), SENDERS.len() * kinds.len());
        }
    }
    Ok(table)
}

fn push(table: &mut Table, (senders, name): (usize, &str), seen: &[Seen], is_claimed: bool) {
    let sum = |value: fn(&Seen) -> u64| seen.iter().map(value).sum::<u64>() as f64;
    let used = Interval::of(&seen.iter().map(|one| one.used(RATE)).collect::<Vec<f64>>());
    let fairness: Vec<f64> =
        seen.iter().map(|one| jain(&(0..senders).map(|n| one.bps(n)).collect::<Vec<f64>>())).collect();
    let most = seen.iter().map(|one| one.backlog_max_bytes).max().unwrap_or(0);
    table.rows.push(vec![
        Cell::Number(senders as f64, 0),
        name.into(),
        Cell::Number(used.mean * 100.0, 2),
        Cell::Number(sum(|one| one.retransmits), 0),
        Cell::Number(sum(|one| one.timeouts), 0),
        Cell::Number(sum(|one| one.lost), 0),
        Cell::Number(most as f64 / 1000.0, 1),
        Cell::Number(Interval::of(&fairness).mean, 3),
        Cell::Number(sum(|one| one.counters.held), 0),
    ]);
    if is_claimed {
        let id = format!("{senders} senders, {name}");
        let mut claim = |what: &str, value: f64, unit, target| {
            table.claims.push(Claim { id: format!("{id}: {what}"), value: Some(value), unit, target });
        };
        claim("retransmissions", sum(|one| one.retransmits), "segments", Target::AtMost(0.0));
        claim("link used, low end", used.low(), "x", Target::AtLeast(USED_LEAST));
    }
}
