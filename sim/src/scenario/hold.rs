//! Overload, held: the published workloads on the link that two servers share, with and without
//! `max_connections`.
//!
//! Equal transfers of one client come evenly spaced, as httperf makes them, faster than the link
//! carries them. Side by side all of them end late; one after the other half of them end early, and
//! the last at the same time. Times are from the first SYN, so who waits has its waiting counted,
//! and who is refused counts as httperf's time-out. Who waits and who is refused is the switch's
//! affair ([`super::published`]). Clients wait as long as it takes; how many of httperf's would not
//! is said too.

use datapath::service::choose::Policy;

use super::published::{Seen, Setup, TIMEOUT_S, play};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "lb-hold",
    about: "the published workloads in overload: all transfers side by side, and held beyond max_connections",
    seconds: 1,
    warms_up: false,
    repeats: true,
    run,
};

/// Connections that each of the two backends may have.
pub(super) const MOST: u32 = 4;
/// What is won at least, in percent.
const WON: f64 = 40.0;

/// A published workload.
pub(super) struct Workload {
    pub name: &'static str,
    /// Transfers that 1 Gbit/s carries a second, 941 Mbit/s of them payload.
    pub link: f64,
    /// Transfers that are asked for a second.
    pub rate: f64,
    pub transfers: u32,
}

pub(super) const fn workload(name: &'static str, link: f64, rate: f64, transfers: u32) -> Workload {
    Workload { name, link, rate, transfers }
}

impl Workload {
    /// When transfers are asked for, in seconds: evenly spaced, as httperf does.
    pub fn times(&self) -> impl Iterator<Item = f64> {
        (0..self.transfers).map(move |number| f64::from(number) / self.rate)
    }
}

const WORKLOADS: [Workload; 6] = [
    workload("205 kB", 574.0, 750.0, 1000),
    workload("1 MB", 118.0, 200.0, 1000),
    workload("1 MB", 118.0, 500.0, 1000),
    workload("1 MB", 118.0, 1000.0, 1000),
    workload("100 MB", 1.18, 10.0, 100),
    workload("100 MB", 1.18, 100.0, 100),
];
/// Not published: more than one client may have waiting.
const BEYOND: Workload = workload("1 MB", 118.0, 1000.0, 3000);

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![("backends", format!("2 on one link of 1 Gbit/s, {MOST} connections each where they are held"))],
        columns: vec![
            "transfer",
            "asked/s",
            "link/s",
            "transfers",
            "together",
            "held",
            "less %",
            "longest wait",
            "most waiting",
            "refused",
            "waits > 10 s",
        ],
        ..Table::default()
    };
    for workload in &WORKLOADS {
        let (held, less) = row(options, &mut table, workload);
        let id = format!("{}, {:.0}/s", workload.name, workload.rate);
        let mut claim = |what: &str, value: f64, unit, target| {
            table.claims.push(Claim { id: format!("{id}: {what}"), value: Some(value), unit, target });
        };
        claim("mean, less than together", less, "%", Target::AtLeast(WON));
        claim("refused or not answered", f64::from(held.failed()), "connections", Target::AtMost(0.0));
        let late = f64::from(held.waited_long);
        claim("waits longer than httperf's time-out", late, "connections", Target::AtMost(0.0));
    }
    row(options, &mut table, &BEYOND);
    table.notes.push(format!(
        "Times are means in seconds, from the first SYN to the end of the transfer, with {TIMEOUT_S} s for each that \
         is refused. The last row is not published, and nothing is claimed of it: its one client has more waiting \
         than the switch keeps of one."
    ));
    Ok(table)
}

/// What was seen where connections were held, and by how much the mean is less, in percent.
fn row(options: &Options, table: &mut Table, workload: &Workload) -> (Seen, f64) {
    let played = |most| {
        let setup = Setup { most, ..Setup::new(options.seed, Policy::P2c, workload.link) };
        play(setup, workload.times())
    };
    let (together, held) = (played(None), played(Some(MOST)));
    let less = 100.0 * (1.0 - held.mean_s() / together.mean_s());
    table.rows.push(vec![
        workload.name.into(),
        Cell::Number(workload.rate, 0),
        Cell::Number(workload.link, 2),
        Cell::Number(f64::from(workload.transfers), 0),
        Cell::Number(together.mean_s(), 2),
        Cell::Number(held.mean_s(), 2),
        Cell::Number(less, 0),
        Cell::Number(held.longest_wait_s, 2),
        Cell::Number(f64::from(held.most_waiting), 0),
        Cell::Number(f64::from(held.failed()), 0),
        Cell::Number(f64::from(held.waited_long), 0),
    ]);
    (held, less)
}
