//! Isolation: a victim with one connection beside an aggressor (figure 5 of the Gatekeeper paper,
//! in both directions).

use datapath::program::Share;
use datapath::units::{Direction, Rate};

use super::fairness::name;
use super::measure::{self, quantile_ms};
use super::{Cell, Options, Scenario, Table};
use crate::site::{Site, TenantSpec, both};
use crate::tcp::congestion::Algorithm;
use crate::topology::{FlowSpec, Topology, Traffic};
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "isolation",
    about: "a victim with one TCP connection and a ping beside an aggressor, without isolation and with",
    seconds: 5,
    warms_up: true,
    repeats: true,
    run,
};

const RATE: Rate = Rate(Rate::GBIT);
/// Promised to the victim and to the aggressor, in parts of a thousand of the link: 75 % and 25 %
/// of what headroom leaves.
const PROMISED: [u64; 2] = [735, 245];
/// Between two pings of the victim's.
const PING_NS: u64 = 5_000_000;
/// What a flood sends, in parts of the link.
const FLOOD: u64 = 2;
/// Datagrams of a flood are handed over as the kernel's segmentation offload does: this many at
/// once.
const TRAIN: u32 = 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Aggressor {
    None,
    Tcp(usize),
    Flood,
}

const AGGRESSORS: [Aggressor; 4] = [Aggressor::None, Aggressor::Tcp(1), Aggressor::Tcp(10), Aggressor::Flood];

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            ("link", format!("{RATE}, round trip 100 us, cubic, offloaded frames")),
            ("promised", "victim 735 Mbit/s, aggressor 245 Mbit/s, in both directions".into()),
            ("flood", format!("UDP at {FLOOD} times the link")),
            ("ping", "from another endpoint of the victim's, each 5 ms".into()),
        ],
        columns: vec![
            "direction",
            "aggressor",
            "plain: victim",
            "aggressor",
            "ping p50 ms",
            "p99",
            "Levada: victim",
            "aggressor",
            "ping p50 ms",
            "p99",
        ],
        notes: vec![
            "Mbit/s of payload. Ingress beside a flood: the network's queue drops the victim's frames before Levada sees them; \
             that is the congestion agent's to solve."
                .into(),
        ],
        ..Table::default()
    };
    for direction in Direction::ALL {
        for aggressor in AGGRESSORS {
            let mut row = vec![name(direction).into(), title(aggressor).into()];
            for isolated in [false, true] {
                row.extend(cells(options, direction, aggressor, isolated)?);
            }
            table.rows.push(row);
        }
    }
    Ok(table)
}

fn title(aggressor: Aggressor) -> String {
    match aggressor {
        Aggressor::None => "none".into(),
        Aggressor::Tcp(n) => format!("{n} TCP"),
        Aggressor::Flood => "UDP flood".into(),
    }
}

fn cells(
    options: &Options,
    direction: Direction,
    aggressor: Aggressor,
    isolated: bool,
) -> Result<Vec<Cell>, Violation> {
    let site = site();
    let flows = flows(&site, direction, aggressor);
    let network = if isolated { site.topology() } else { site.plain_topology() };
    let topology = Topology { seed: options.seed, flows, ..network };
    let measured = measure::run(&site, topology, direction, options.seconds)?;
    let round_trips = measured.world.sent(1).round_trips_ns;
    let aggressor = (2..measured.payload.len()).fold(0.0, |sum, flow| sum + measured.flow_mbps(flow));
    Ok(vec![
        Cell::Number(measured.flow_mbps(0), 1),
        Cell::Number(aggressor, 1),
        Cell::Number(quantile_ms(&round_trips, 0.5), 3),
        Cell::Number(quantile_ms(&round_trips, 0.99), 3),
    ])
}

/// Two tenants; the victim has a second endpoint for its ping.
fn site() -> Site {
    let tenant = |parts: u64, endpoints: usize| {
        let share = both(Share { guarantee: RATE.scaled(parts, 1000), ..Share::default() });
        TenantSpec { share, endpoints: vec![both(Share::default()); endpoints] }
    };
    Site { rate: RATE, tenants: vec![tenant(PROMISED[0], 2), tenant(PROMISED[1], 1)], ..Site::default() }
}

fn flows(site: &Site, direction: Direction, aggressor: Aggressor) -> Vec<FlowSpec> {
    let tcp = Traffic::tcp(Algorithm::Cubic);
    let ping = Traffic::Ping { every_ns: PING_NS };
    let mut flows = vec![site.flow(direction, 0, 0, tcp), site.flow(direction, 0, 1, ping)];
    let flood = Traffic::Udp { rate: RATE.scaled(FLOOD, 1), frame: 1514, train: TRAIN, on_off_ns: (0, 0) };
    match aggressor {
        Aggressor::None => {}
        Aggressor::Tcp(n) => flows.extend((0..n).map(|_| site.flow(direction, 1, 0, tcp))),
        Aggressor::Flood => flows.push(site.flow(direction, 1, 0, flood)),
    }
    flows
}
