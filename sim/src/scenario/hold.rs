//! Overload, held: the published workloads on the link that two servers share, with and without
//! `max_connections`.
//!
//! Equal transfers come evenly spaced, as httperf makes them, faster than the link carries them.
//! Side by side all of them end late; one after the other half of them end early, and the last at
//! the same time. Times are from the first SYN, so who waits has its waiting counted. The backends
//! are chosen by the datapath's own policy, and who finds both full waits in one queue, as in
//! `datapath/src/service/held.rs`; nobody is refused, as `hold` is long enough.

use datapath::service::choose::{Chooser, Load, Policy};
use std::collections::VecDeque;

use super::mixed::choose;
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::random::Random;
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
const MOST: u32 = 4;
/// What is won at least, in percent.
const WON: f64 = 40.0;

/// A published workload.
struct Workload {
    name: &'static str,
    /// Transfers that 1 Gbit/s carries a second, 941 Mbit/s of them payload.
    link: f64,
    /// Transfers that are asked for a second.
    rate: f64,
    transfers: u32,
}

const fn workload(name: &'static str, link: f64, rate: f64, transfers: u32) -> Workload {
    Workload { name, link, rate, transfers }
}

const WORKLOADS: [Workload; 6] = [
    workload("205 kB", 574.0, 750.0, 1000),
    workload("1 MB", 118.0, 200.0, 1000),
    workload("1 MB", 118.0, 500.0, 1000),
    workload("1 MB", 118.0, 1000.0, 1000),
    workload("100 MB", 1.18, 10.0, 100),
    workload("100 MB", 1.18, 100.0, 100),
];

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![("backends", format!("2 on one link of 1 Gbit/s, {MOST} connections each where they are held"))],
        columns: vec!["transfer", "asked/s", "link/s", "transfers", "together", "held", "less %", "longest wait"],
        ..Table::default()
    };
    for workload in &WORKLOADS {
        let (together, _) = play(options.seed, workload, u32::MAX);
        let (held, wait) = play(options.seed, workload, MOST);
        let less = 100.0 * (1.0 - held / together);
        table.rows.push(vec![
            workload.name.into(),
            Cell::Number(workload.rate, 0),
            Cell::Number(workload.link, 2),
            Cell::Number(f64::from(workload.transfers), 0),
            Cell::Number(together, 2),
            Cell::Number(held, 2),
            Cell::Number(less, 0),
            Cell::Number(wait, 2),
        ]);
        let id = format!("{}, {:.0}/s: mean, less than together", workload.name, workload.rate);
        table.claims.push(Claim { id, value: Some(less), unit: "%", target: Target::AtLeast(WON) });
    }
    table.notes.push("Times are means in seconds, from the first SYN to the end of the transfer.".to_owned());
    Ok(table)
}

/// A transfer that is under way: the work at which it ends, when it was asked for, its backend.
type Transfer = (f64, f64, usize);

/// The mean time of a transfer, and the longest that one waited for a backend.
fn play(seed: u64, workload: &Workload, most: u32) -> (f64, f64) {
    let mut random = Random::new(seed);
    let mut chooser = Chooser::new(random.word());
    let mut loads = [Load { takes: true, weight: 1, cores: 1, ..Load::default() }; 2];
    // Equal transfers on a link that they share end in the order in which they began.
    let (mut under_way, mut waiting): (VecDeque<Transfer>, VecDeque<f64>) = (VecDeque::new(), VecDeque::new());
    let (mut now, mut done_by_each, mut asked, mut total, mut longest) = (0.0, 0.0, 0u32, 0.0f64, 0.0f64);
    while asked < workload.transfers || !under_way.is_empty() {
        let each = workload.link / under_way.len().max(1) as f64;
        let ends = under_way.front().map(|(end, ..)| now + (end - done_by_each) / each);
        let comes = (asked < workload.transfers).then(|| f64::from(asked) / workload.rate);
        let at = match (ends, comes) {
            (Some(ends), Some(comes)) => ends.min(comes),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => break,
        };
        if !under_way.is_empty() {
            done_by_each += (at - now) * each;
        }
        now = at;
        if comes == Some(at) {
            waiting.push_back(at);
            asked += 1;
        } else if let Some((end, came, backend)) = under_way.pop_front() {
            done_by_each = end;
            total += now - came;
            loads[backend].busy -= 1;
        }
        for load in &mut loads {
            load.takes = load.busy < most;
        }
        while let Some(came) = waiting.front().copied().filter(|_| loads.iter().any(|load| load.takes)) {
            waiting.pop_front();
            longest = longest.max(now - came);
            let backend = choose(&mut chooser, Policy::P2c, &loads, &mut random);
            loads[backend].busy += 1;
            loads[backend].takes = loads[backend].busy < most;
            under_way.push_back((done_by_each + 1.0, came, backend));
        }
    }
    (total / f64::from(workload.transfers), longest)
}
