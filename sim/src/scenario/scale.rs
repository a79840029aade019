//! Scale: a thousand hosts with twenty endpoints each. Does what an agent keeps and says depend on
//! how many hosts there are?
//!
//! Traffic is a fluid here ([`crate::crowd`]); the agents and their mail are the real ones. One
//! host in ten is wanted three times of what its link has, by hundreds of senders on as many hosts.

use agent::Settings;
use datapath::units::Rate;

use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::crowd::{Crowd, CrowdSpec, TICK_NS};

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "scale",
    about: "hosts with 20 endpoints each, traffic as flows: what agents keep and say, shares against the fluid model",
    seconds: 1,
    warms_up: false,
    repeats: true,
    run: |options| Ok(run(options, &HOSTS)),
};

/// How many hosts there are.
const HOSTS: [usize; 2] = [100, 1000];
const ENDPOINTS: usize = 20;
const RATE: Rate = Rate(10 * Rate::GBIT);
/// Control traffic, in percent of the link; how far a share may be from the fluid model's; how much
/// more an agent of many hosts may keep than one of few, in percent.
const CONTROL_MOST: f64 = 0.1;
const SHARE_MOST: f64 = 1.0;
const STATE_MOST: f64 = 110.0;
/// Ticks in a second.
const SECOND: u64 = 1_000_000_000 / TICK_NS;

/// What a crowd did.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Pairs that send.
    pub pairs: usize,
    /// The furthest that an endpoint of a hot host is from its ideal, in percent, and the mean.
    pub worst: f64,
    /// See `worst`.
    pub mean: f64,
    /// Peers that the agent with most of them has.
    pub peers: usize,
    /// Limits that the agents with most of them gave and keep.
    pub limits: (usize, usize),
    /// Datagrams a second and percent of the link of the host that sends most.
    pub datagrams: f64,
    /// See `datagrams`.
    pub control: f64,
}

fn run(options: &Options, sizes: &[usize]) -> Table {
    let mut table = Table {
        config: vec![
            (
                "hosts",
                format!(
                    "{ENDPOINTS} endpoints each, of as many tenants, links of {RATE}; one in ten is wanted too much"
                ),
            ),
            ("model", "traffic in ticks of 1 ms as a fluid, the agents and their messages as they are; the first 500 ms left out".into()),
        ],
        columns: vec![
            "hosts",
            "pairs",
            "worst share off %",
            "mean",
            "most peers",
            "limits given",
            "limits kept",
            "datagrams/s",
            "% of link",
        ],
        ..Table::default()
    };
    let mut first = None;
    for &hosts in sizes {
        let outcome = measure(options, hosts);
        table.rows.push(vec![
            Cell::Number(hosts as f64, 0),
            Cell::Number(outcome.pairs as f64, 0),
            Cell::Number(outcome.worst, 3),
            Cell::Number(outcome.mean, 3),
            Cell::Number(outcome.peers as f64, 0),
            Cell::Number(outcome.limits.0 as f64, 0),
            Cell::Number(outcome.limits.1 as f64, 0),
            Cell::Number(outcome.datagrams, 0),
            Cell::Number(outcome.control, 4),
        ]);
        let first = first.get_or_insert(outcome);
        if Some(&hosts) == sizes.last() {
            let grown =
                outcome.limits.0.max(outcome.limits.1) as f64 / first.limits.0.max(first.limits.1) as f64 * 100.0;
            for (what, value, unit, most) in [
                ("furthest share from the fluid model", outcome.worst, "%", SHARE_MOST),
                ("control traffic of the busiest host", outcome.control, "% of its link", CONTROL_MOST),
                ("limits in the fullest agent, of those in the smallest crowd", grown, "%", STATE_MOST),
            ] {
                let id = format!("{hosts} hosts: {what}");
                table.claims.push(Claim { id, value: Some(value), unit, target: Target::AtMost(most) });
            }
        }
    }
    table
}

/// One crowd.
#[must_use]
pub fn measure(options: &Options, hosts: usize) -> Outcome {
    let mut crowd = Crowd::new(CrowdSpec {
        seed: options.seed,
        hosts,
        endpoints: ENDPOINTS,
        rate: RATE,
        fabric_queue_bytes: 1 << 20,
        headroom_ppm: 20_000,
        settings: Settings::default(),
    });
    crowd.run(SECOND / 2);
    let all = 0..hosts;
    let delivered: Vec<Vec<f64>> = all.clone().map(|host| crowd.delivered(host).to_vec()).collect();
    let mailed: Vec<_> = all.clone().map(|host| crowd.mailed(host)).collect();
    crowd.run(options.seconds * SECOND);
    let mut outcome = Outcome { pairs: crowd.pairs(), ..Outcome::default() };
    let seconds = options.seconds as f64;
    let mut off = Vec::new();
    for host in all {
        let mail = crowd.mailed(host);
        let datagrams = (mail.datagrams - mailed[host].datagrams) as f64 / seconds;
        let control = (mail.wire_bytes - mailed[host].wire_bytes) as f64 * 8.0 / seconds / RATE.0 as f64 * 100.0;
        outcome.datagrams = outcome.datagrams.max(datagrams);
        outcome.control = outcome.control.max(control);
        let report = crowd.agent(host).report(crowd.now());
        outcome.peers = outcome.peers.max(report.peers.len());
        outcome.limits.0 = outcome.limits.0.max(report.limited.len());
        outcome.limits.1 = outcome.limits.1.max(report.obeyed.len());
        if crowd.is_wanted_too_much(host) {
            let got = crowd
                .delivered(host)
                .iter()
                .zip(&delivered[host])
                .map(|(after, before)| (after - before) * 8.0 / seconds);
            let pairs = got.zip(crowd.ideal(host)).filter(|&(_, ideal)| ideal > 0.0);
            off.extend(pairs.map(|(got, ideal)| (got / ideal - 1.0).abs() * 100.0));
        }
    }
    outcome.worst = off.iter().copied().fold(0.0, f64::max);
    outcome.mean = off.iter().sum::<f64>() / off.len().max(1) as f64;
    outcome
}
