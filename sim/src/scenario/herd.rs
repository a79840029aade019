//! Balancing by reports that get old: all follow the same report, as a herd, until the next one.
//!
//! The world is that of [`super::mixed`]: connections of exponential sizes at random times, servers
//! that share their time, the datapath's own policies. Each server reports what it has in flight
//! every so many mean sizes. The published policy takes the least reported; the corrected one adds
//! what was sent since (Dahlin 2000).

use datapath::service::choose::Policy;

use super::mixed::{CONNECTIONS, JUDGED, LEFT_OUT, Setup, Sizes, play};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "lb-herd",
    about: "balancing by reports that get old: the least reported, and corrected by what was sent since",
    seconds: 4,
    warms_up: false,
    repeats: true,
    run,
};

const SERVERS: [usize; 2] = [2, 3];
/// From one report to the next, in mean sizes.
const PERIODS: [f64; 3] = [1.0, 10.0, 60.0];
/// Where the published policy is worst, and by how much at least: servers, mean sizes, times
/// round-robin.
const HERD: (usize, f64, f64) = (3, 60.0, 5.0);

fn run(options: &Options) -> Result<Table, Violation> {
    let connections = options.seconds * CONNECTIONS;
    let mut table = Table {
        config: vec![
            ("connections", format!("{connections} a cell, after {LEFT_OUT} that are left out")),
            ("load", format!("{:.0} %", 100.0 * JUDGED)),
        ],
        columns: vec!["servers", "reports each", "round-robin", "least reported", "x", "corrected", "x"],
        ..Table::default()
    };
    for servers in SERVERS {
        let mean = |policy, period| {
            let setup = Setup { sizes: Sizes::Exponential, servers, last_speed: 1.0, load: JUDGED, policy, period };
            play(options.seed, &setup, connections)
        };
        let turns = mean(Policy::RoundRobin, None);
        for period in PERIODS {
            let [least, corrected] =
                [Policy::Loadavg, Policy::LoadavgCorrected].map(|policy| mean(policy, Some(period)));
            table.rows.push(vec![
                Cell::Number(servers as f64, 0),
                Cell::Number(period, 0),
                Cell::Number(turns, 2),
                Cell::Number(least, 2),
                Cell::Number(least / turns, 2),
                Cell::Number(corrected, 2),
                Cell::Number(corrected / turns, 2),
            ]);
            let mut claim = |what: &str, value: f64, target| {
                let id = format!("{what}, {servers} servers, reports each {period:.0} mean sizes");
                table.claims.push(Claim { id, value: Some(value / turns), unit: "x round-robin", target });
            };
            if (servers, period) == (HERD.0, HERD.1) {
                claim("least reported", least, Target::AtLeast(HERD.2));
            }
            claim("loadavg-corrected", corrected, Target::AtMost(1.0));
        }
    }
    Ok(table)
}
