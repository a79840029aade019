//! The published result at its own numbers: reproduced, explained, and reversed.
//!
//! Connections, rates and sizes are the published ones, evenly spaced, of one client and two
//! servers of 150 workers behind the real switch ([`super::published`]). Load averages are reported
//! as published: each 5 s, of a minute, so that within one run the report is old.
//!
//! What became of a connection without a worker is not published. Assumed are no backlog (a server
//! resets, which gives refusals as the published ones) and Apache's of 511. The published
//! controller asks nobody else and knows nothing of health; so does the switch here where the reset
//! comes behind the handshake and health is ignored. Servers share the link, or each carries half
//! of it by itself. At last connections are held ([`super::hold`]).
//!
//! A mean is httperf's: of those that were answered. So who refuses many is quick by it.

use datapath::service::choose::Policy;

use super::hold::{MOST, Workload, workload};
use super::published::{Seen, Setup, TIMEOUT_S, WORKERS, WhenFull, play};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::random::Random;
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "lb-published",
    about: "the published experiments at their own numbers, by policy: who is refused, and mean times",
    seconds: 4,
    warms_up: false,
    repeats: true,
    run,
};

/// Apache's `ListenBacklog`.
const BACKLOG: WhenFull = WhenFull::Waits(511);

const HTML: &str = "205 kB";
const JPG: &str = "1 MB";
const VIDEO: &str = "100 MB";
const WORKLOADS: [Workload; 10] = [
    workload(HTML, 574.0, 500.0, 1000),
    workload(HTML, 574.0, 750.0, 1000),
    workload(HTML, 574.0, 1000.0, 1000),
    workload(JPG, 118.0, 90.0, 1000),
    workload(JPG, 118.0, 200.0, 1000),
    workload(JPG, 118.0, 500.0, 1000),
    workload(JPG, 118.0, 1000.0, 1000),
    workload(VIDEO, 1.18, 1.0, 100),
    workload(VIDEO, 1.18, 10.0, 100),
    workload(VIDEO, 1.18, 100.0, 100),
];

/// How servers and switch stand.
#[derive(PartialEq)]
struct Way {
    name: &'static str,
    when_full: WhenFull,
    heeds_health: bool,
    is_split: bool,
    most: Option<u32>,
}

const fn way(name: &'static str, when_full: WhenFull) -> Way {
    Way { name, when_full, heeds_health: true, is_split: false, most: None }
}

const RESET: Way = Way { heeds_health: false, ..way("no backlog", WhenFull::Resets) };
const SECOND_TRY: Way = way("no backlog, second try", WhenFull::Refuses);
const WAITING: Way = way("backlog", BACKLOG);
const SPLIT: Way = Way { is_split: true, ..way("backlog, half a link each", BACKLOG) };
const HELD: Way = Way { most: Some(MOST), ..way("held", WhenFull::Refuses) };
const WAYS: [Way; 5] = [RESET, SECOND_TRY, WAITING, SPLIT, HELD];

const POLICIES: [Policy; 5] = [Policy::Random, Policy::RoundRobin, Policy::Loadavg, Policy::P2c, Policy::LeastInflight];

/// Published of `loadavg`: refused at the highest rates, at least so many times round-robin's; mean
/// of 1 MB at 500/s, at most so many times that of random; of 100 MB at least so many times
/// round-robin's, where it is worse.
const REFUSED_MORE: f64 = 1.15;
const QUICKER: f64 = 0.95;
const SLOWER: f64 = 1.05;
/// Of ours: refused beyond round-robin at most, in percent of connections, and times its mean; and
/// what its mean is at most, held, of the best that the published one has.
const BEYOND: f64 = 1.0;
const TIED: f64 = 1.02;
const REVERSED: f64 = 0.9;

/// What was seen of a workload one way, by policy, over all runs.
struct Row {
    workload: &'static Workload,
    way: &'static Way,
    seen: Vec<Vec<Seen>>,
}

impl Row {
    fn of(&self, policy: Policy) -> &[Seen] {
        let at = POLICIES.iter().position(|&one| one == policy);
        at.map_or(&[], |at| &self.seen[at])
    }

    /// Refused or not answered, in percent.
    fn failed(&self, policy: Policy) -> f64 {
        let (asked, failed) = self.of(policy).iter().fold((0, 0), |(a, f), seen| (a + seen.asked, f + seen.failed()));
        100.0 * f64::from(failed) / f64::from(asked)
    }

    /// httperf's mean, in seconds.
    fn mean_s(&self, policy: Policy) -> f64 {
        let (done, total_s) = self.of(policy).iter().fold((0, 0.0), |(d, t), seen| (d + seen.done, t + seen.total_s));
        total_s / f64::from(done)
    }

    /// The mean, where each that failed counts as one that took httperf's time-out.
    fn honest_s(&self, policy: Policy) -> f64 {
        let failed = self.failed(policy) / 100.0;
        self.mean_s(policy) * (1.0 - failed) + failed * TIMEOUT_S
    }

    /// Waits for a worker that were longer than httperf's time-out, of all policies.
    fn waited_long(&self) -> u32 {
        self.seen.iter().flatten().map(|seen| seen.waited_long).sum()
    }
}

fn run(options: &Options) -> Result<Table, Violation> {
    let mut random = Random::new(options.seed);
    let seeds: Vec<u64> = (0..options.seconds).map(|_| random.word()).collect();
    let rows: Vec<Row> = WORKLOADS
        .iter()
        .flat_map(|workload| WAYS.iter().map(move |way| (workload, way)))
        // Fewer than the workers of one server: none of them waits, or is refused.
        .filter(|(workload, way)| workload.transfers as usize > WORKERS || way.when_full == BACKLOG)
        .map(|(workload, way)| Row { workload, way, seen: played(workload, way, &seeds) })
        .collect();
    Ok(Table {
        config: vec![
            ("runs", format!("{} a cell, of one client, evenly spaced: 1000 connections, of 100 MB 100", seeds.len())),
            ("servers", format!("2 of {WORKERS} workers, on one link of 1 Gbit/s or half of it each")),
            ("held", format!("{MOST} connections a server, the others wait")),
        ],
        columns: vec![
            "transfer",
            "asked/s",
            "servers",
            "random",
            "round-robin",
            "loadavg",
            "p2c",
            "least-inflight",
            "random s",
            "round-robin s",
            "loadavg s",
            "p2c s",
            "least-inflight s",
        ],
        rows: rows.iter().map(cells).collect(),
        notes: vec![
            "By policy: connections that were refused or not answered, in percent; then the mean in seconds, as \
             httperf reports it: of those that were answered, from the first SYN to the end."
                .into(),
        ],
        claims: claims(&rows),
    })
}

/// By policy and run.
fn played(workload: &Workload, way: &Way, seeds: &[u64]) -> Vec<Vec<Seen>> {
    let run = |policy, seed| {
        let &Way { when_full, heeds_health, is_split, most, .. } = way;
        let setup = Setup::new(seed, policy, workload.link);
        play(Setup { workers: WORKERS, when_full, heeds_health, is_split, most, ..setup }, workload.times())
    };
    POLICIES.iter().map(|&policy| seeds.iter().map(|&seed| run(policy, seed)).collect()).collect()
}

fn cells(row: &Row) -> Vec<Cell> {
    let mut cells: Vec<Cell> = vec![row.workload.name.into(), Cell::Number(row.workload.rate, 0), row.way.name.into()];
    cells.extend(POLICIES.iter().map(|&policy| Cell::Number(row.failed(policy), 1)));
    cells.extend(POLICIES.iter().map(|&policy| Cell::Number(row.mean_s(policy), 2)));
    cells
}

fn claims(rows: &[Row]) -> Vec<Claim> {
    let mut claims = Vec::new();
    let mut claim = |id: String, value: Option<f64>, unit, target| claims.push(Claim { id, value, unit, target });
    let found = |name: &str, rate: f64, way: &Way| {
        rows.iter().find(|row| (row.workload.name, row.workload.rate) == (name, rate) && row.way == way)
    };
    let id = |what: &str, name: &str, rate: f64, way: &Way| format!("{what}, {name}, {rate:.0}/s, {}", way.name);

    // Reproduced.
    for name in [HTML, JPG] {
        let value = found(name, 1000.0, &RESET).map(|row| row.failed(Policy::Loadavg) / row.failed(Policy::RoundRobin));
        let id = id("loadavg: refused", name, 1000.0, &RESET);
        claim(id, value, "x round-robin", Target::AtLeast(REFUSED_MORE));
    }
    for way in [&RESET, &WAITING] {
        let value = found(JPG, 500.0, way).map(|row| row.mean_s(Policy::Loadavg) / row.mean_s(Policy::Random));
        claim(id("loadavg: mean", JPG, 500.0, way), value, "x random", Target::AtMost(QUICKER));
    }
    for rate in [1.0, 10.0, 100.0] {
        for (way, target) in [(&WAITING, Target::AtMost(TIED)), (&SPLIT, Target::AtLeast(SLOWER))] {
            let value = found(VIDEO, rate, way).map(|row| row.mean_s(Policy::Loadavg) / row.mean_s(Policy::RoundRobin));
            claim(id("loadavg: mean", VIDEO, rate, way), value, "x round-robin", target);
        }
    }

    // Explained: what a backlog keeps is not refused.
    let none = Target::AtMost(0.0);
    let failed = |way: &Way| {
        let rows = rows.iter().filter(|row| row.way == way);
        let counts = rows.map(|row| row.seen.iter().flatten().map(Seen::failed).sum::<u32>());
        Some(f64::from(counts.sum::<u32>()))
    };
    claim("all policies, backlog: refused or not answered".into(), failed(&WAITING), "connections", none);
    let late = rows.iter().filter(|row| *row.way == WAITING).map(Row::waited_long).sum::<u32>();
    let what = format!("all policies, backlog: waits of more than {TIMEOUT_S} s");
    claim(what, Some(f64::from(late)), "connections", none);

    // Reversed.
    for (name, ours) in [("p2c", Policy::P2c), ("least-inflight", Policy::LeastInflight)] {
        let worst = |of: &dyn Fn(&Row) -> f64| rows.iter().map(of).reduce(f64::max);
        let beyond = worst(&|row| row.failed(ours) - row.failed(Policy::RoundRobin));
        let what = format!("{name}: refused beyond round-robin, worst row");
        claim(what, beyond, "% of connections", Target::AtMost(BEYOND));
        let times = worst(&|row| row.honest_s(ours) / row.honest_s(Policy::RoundRobin));
        let what = format!("{name}: mean with {TIMEOUT_S} s for each refused, worst row");
        claim(what, times, "x round-robin", Target::AtMost(TIED));
    }
    claim("all policies, held: refused or not answered".into(), failed(&HELD), "connections", none);
    let best = found(JPG, 500.0, &WAITING).map(|row| row.mean_s(Policy::Loadavg));
    let held = found(JPG, 500.0, &HELD).map(|row| row.mean_s(Policy::P2c));
    let value = held.zip(best).map(|(held, best)| held / best);
    claim(id("p2c: mean", JPG, 500.0, &HELD), value, "x loadavg with a backlog", Target::AtMost(REVERSED));
    claims
}
