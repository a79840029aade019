//! Fairness over flow count and weights: a tenant with n connections against a tenant with one.

use datapath::units::{Direction, Rate};

use super::measure;
use super::{Cell, Options, Scenario, Table};
use crate::site::{Site, TenantSpec};
use crate::tcp::congestion::Algorithm;
use crate::topology::{FlowSpec, Topology, Traffic};
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "fairness",
    about: "a tenant with n TCP connections against a tenant with one, without isolation and with",
    seconds: 5,
    warms_up: true,
    repeats: true,
    run,
};

const RATE: Rate = Rate(300_000_000);
const FLOWS: [usize; 4] = [1, 4, 16, 64];
/// Of the tenant with one connection, and of the other.
const WEIGHTS: [(u32, u32); 3] = [(1, 1), (1, 2), (10, 1)];

fn run(options: &Options) -> Result<Table, Violation> {
    let site = Site { rate: RATE, ..Site::default() };
    let mut table = Table {
        config: vec![
            ("link", format!("{RATE}, round trip {} us, cubic, offloaded frames", 2 * site.delay_ns / 1000)),
            ("one", "the tenant with one connection: Mbit/s on the wire".into()),
            ("off by", "the endpoint furthest from its ideal share of the measured total".into()),
        ],
        columns: vec![
            "direction",
            "weights",
            "n",
            "plain: one",
            "others",
            "one",
            "others",
            "total",
            "off by %",
            "max frames",
        ],
        ..Table::default()
    };
    for direction in Direction::ALL {
        for flows in FLOWS {
            let plain = plain(options, direction, flows)?;
            for weights in WEIGHTS {
                table.rows.push(row(options, direction, flows, weights, plain)?);
            }
        }
    }
    Ok(table)
}

fn row(
    options: &Options,
    direction: Direction,
    flows: usize,
    weights: (u32, u32),
    plain: (f64, f64),
) -> Result<Vec<Cell>, Violation> {
    let site = Site {
        rate: RATE,
        tenants: vec![TenantSpec::weighted(weights.0, 1), TenantSpec::weighted(weights.1, 1)],
        ..Site::default()
    };
    let topology = Topology { seed: options.seed, flows: connections(&site, direction, flows), ..site.topology() };
    let measured = measure::run(&site, topology, direction, options.seconds)?;
    let worst = measured.worst(&site, direction);
    Ok(vec![
        name(direction).into(),
        format!("{}:{}", weights.0, weights.1).into(),
        Cell::Number(flows as f64, 0),
        Cell::Number(plain.0, 1),
        Cell::Number(plain.1, 1),
        Cell::Number(measured.tenant_mbps(0), 2),
        Cell::Number(measured.tenant_mbps(1), 2),
        Cell::Number(measured.total_mbps(), 2),
        Cell::Number(worst.percent, 3),
        Cell::Number(worst.frames, 2),
    ])
}

/// Goodput of the one and of all others together over switches that only forward.
fn plain(options: &Options, direction: Direction, flows: usize) -> Result<(f64, f64), Violation> {
    let site = Site { rate: RATE, tenants: vec![TenantSpec::weighted(1, 1); 2], ..Site::default() };
    let flows = connections(&site, direction, flows);
    let topology = Topology { seed: options.seed, flows, ..site.plain_topology() };
    let measured = measure::run(&site, topology, direction, options.seconds)?;
    let one = measured.flow_mbps(0);
    Ok((one, (1..measured.payload.len()).map(|flow| measured.flow_mbps(flow)).sum()))
}

/// One connection of the first tenant, then `n` of the second.
fn connections(site: &Site, direction: Direction, n: usize) -> Vec<FlowSpec> {
    let tenants = [0].into_iter().chain(std::iter::repeat_n(1, n));
    tenants.map(|tenant| site.flow(direction, tenant, 0, Traffic::tcp(Algorithm::Cubic))).collect()
}

/// As tables call a direction.
#[must_use]
pub fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Egress => "egress",
        Direction::Ingress => "ingress",
    }
}
