//! Below the link's capacity: is a connection refused, or left without an answer?
//!
//! The published workloads, one client and two servers behind the real switch
//! ([`super::published`]), but with connections at random times (Poisson) instead of evenly spaced:
//! so several come at once where httperf's do not. A server has as many places as Apache has
//! workers and resets who comes beyond; that is the servers' affair and counted all the same.

use datapath::service::choose::Policy;

use super::mixed::exponential;
use super::published::{Seen, Setup, WORKERS, play};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::random::Random;
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "lb-refused",
    about: "the published workloads below the link's capacity: connections that are refused or not answered",
    seconds: 4,
    warms_up: false,
    repeats: true,
    run,
};

/// Connections of a cell for each second asked for.
const CONNECTIONS: u64 = 7000;
/// Name, and transfers that the link carries a second.
const WORKLOADS: [(&str, f64); 3] = [("205 kB", 574.0), ("1 MB", 118.0), ("100 MB", 1.18)];
const LOADS: [f64; 3] = [0.5, 0.8, 0.94];
const POLICIES: [(&str, Policy); 4] = [
    ("p2c", Policy::P2c),
    ("least-inflight", Policy::LeastInflight),
    ("round-robin", Policy::RoundRobin),
    ("random", Policy::Random),
];

fn run(options: &Options) -> Result<Table, Violation> {
    let connections = options.seconds * CONNECTIONS;
    let mut table = Table {
        config: vec![
            ("connections", format!("{connections} a cell, at random times, of one client")),
            ("servers", format!("2 on one link, {WORKERS} places each")),
        ],
        columns: vec!["transfer", "load %", "policy", "refused", "unanswered", "mean / own time", "most at a server"],
        ..Table::default()
    };
    let mut all = Seen::default();
    let mut seeds = Random::new(options.seed);
    for (name, link) in WORKLOADS {
        for load in LOADS {
            // Policies have the same arrivals, and nothing else has.
            let arrivals = seeds.split();
            for (called, policy) in POLICIES {
                let mut gaps = arrivals.clone();
                let times = (0..connections).scan(0.0, |now, _| {
                    *now += exponential(&mut gaps) / (load * link);
                    Some(*now)
                });
                let seen = play(Setup { workers: WORKERS, ..Setup::new(options.seed, policy, link) }, times);
                all.asked += seen.asked;
                all.refused += seen.refused;
                all.unanswered += seen.unanswered;
                table.rows.push(vec![
                    name.into(),
                    Cell::Number(100.0 * load, 0),
                    called.into(),
                    Cell::Number(f64::from(seen.refused), 0),
                    Cell::Number(f64::from(seen.unanswered), 0),
                    Cell::Number(seen.total_s / f64::from(seen.done) * link, 2),
                    Cell::Number(seen.most_open as f64, 0),
                ]);
            }
        }
    }
    for (what, failed) in [("refused", all.refused), ("unanswered", all.unanswered)] {
        let id = format!("{what}, of {}", all.asked);
        let target = Target::AtMost(0.0);
        table.claims.push(Claim { id, value: Some(f64::from(failed)), unit: "connections", target });
    }
    Ok(table)
}
