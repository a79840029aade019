//! Own traffic: what an endpoint's ping and its short requests wait for, and lose, beside the same
//! endpoint's own connections.
//!
//! With one queue they wait behind all that the connections have under way there, and are dropped
//! as these are. With flow queues (RFC 8290) they go first.

use datapath::aqm::Discipline;
use datapath::program::Share;
use datapath::units::{Direction, Rate};

use super::fairness::name;
use super::measure::{self, quantile_ms};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::site::{Site, TenantSpec, both};
use crate::tcp::congestion::Algorithm;
use crate::topology::{FlowSpec, Topology, Traffic};
use crate::world::Violation;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "own-traffic",
    about: "an endpoint's ping and requests of one segment beside 1, 10 and 100 connections of its own",
    seconds: 3,
    warms_up: true,
    repeats: true,
    run,
};

const RATE: Rate = Rate(Rate::GBIT);
/// What the endpoint may send and receive.
const LIMIT: Rate = Rate(660_000_000);
const CONNECTIONS: [usize; 3] = [1, 10, 100];
/// Of the network, so that its queue is not the one that fills.
const NETWORK: Rate = Rate(10 * Rate::GBIT);
/// Between two pings.
const PING_NS: u64 = 2_000_000;
/// A request, and the pause behind its answer.
const REQUEST_BYTES: u64 = 400;
const PAUSE_NS: u64 = 5_000_000;
/// What is promised of a ping: its mean and 99 of 100, in milliseconds.
const MEAN_MS: f64 = 1.0;
const P99_MS: f64 = 3.0;
/// Of what the connections carry with one queue.
const THROUGHPUT: f64 = 0.995;

/// What one run showed.
struct Outcome {
    /// Payload of the connections, in Mbit/s.
    mbps: f64,
    /// Round trips of the ping, in nanoseconds.
    pings: Vec<u64>,
    requests: u64,
    timeouts: u64,
}

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            ("link", format!("{RATE} in a network of {NETWORK}, round trip 100 us, cubic, offloaded frames")),
            ("endpoint", format!("at most {LIMIT}, in each direction")),
            ("requests", format!("a connection of {REQUEST_BYTES} bytes, the next one 5 ms after it")),
        ],
        columns: vec![
            "direction",
            "connections",
            "queues",
            "payload Mbit/s",
            "ping mean ms",
            "p99",
            "most",
            "requests",
            "time-outs",
        ],
        ..Table::default()
    };
    for direction in Direction::ALL {
        for connections in CONNECTIONS {
            let one = cell(options, direction, connections, Some(Discipline::Codel))?;
            let each = cell(options, direction, connections, None)?;
            push(&mut table, direction, connections, "one", &one);
            push(&mut table, direction, connections, "each flow's", &each);
            let name = format!("{}, {connections}: ", name(direction));
            let mut claim = |what: &str, value: f64, unit, target| {
                table.claims.push(Claim { id: format!("{name}{what}"), value: Some(value), unit, target });
            };
            claim("ping, mean", mean_ms(&each.pings), "ms", Target::AtMost(MEAN_MS));
            claim("ping, 99 of 100", quantile_ms(&each.pings, 0.99), "ms", Target::AtMost(P99_MS));
            claim("requests' time-outs", each.timeouts as f64, "", Target::AtMost(0.0));
            claim("payload, against one queue", each.mbps / one.mbps, "x", Target::AtLeast(THROUGHPUT));
        }
    }
    Ok(table)
}

fn push(table: &mut Table, direction: Direction, connections: usize, queues: &str, outcome: &Outcome) {
    table.rows.push(vec![
        name(direction).into(),
        Cell::Number(connections as f64, 0),
        queues.into(),
        Cell::Number(outcome.mbps, 1),
        Cell::Number(mean_ms(&outcome.pings), 3),
        Cell::Number(quantile_ms(&outcome.pings, 0.99), 3),
        Cell::Number(quantile_ms(&outcome.pings, 1.0), 3),
        Cell::Number(outcome.requests as f64, 0),
        Cell::Number(outcome.timeouts as f64, 0),
    ]);
}

fn mean_ms(values_ns: &[u64]) -> f64 {
    values_ns.iter().sum::<u64>() as f64 / values_ns.len() as f64 / 1e6
}

fn cell(
    options: &Options,
    direction: Direction,
    connections: usize,
    aqm: Option<Discipline>,
) -> Result<Outcome, Violation> {
    let share = both(Share { limit: LIMIT, ..Share::default() });
    let tenant = TenantSpec { share: both(Share::default()), endpoints: vec![share] };
    let site = Site { rate: RATE, link_rate: Some(NETWORK), tenants: vec![tenant], ..Site::default() };
    let mut topology = site.topology();
    for endpoint in topology.switches.iter_mut().flat_map(|program| program.endpoints.values_mut()) {
        endpoint.aqm = aqm;
    }
    let flow = |traffic| site.flow(direction, 0, 0, traffic);
    let request = Traffic::Tcp {
        algorithm: Algorithm::Cubic,
        ecn: false,
        bytes: Some(REQUEST_BYTES),
        again_after_ns: Some(PAUSE_NS),
        pace: None,
    };
    let mut flows: Vec<FlowSpec> = vec![flow(Traffic::Ping { every_ns: PING_NS }), flow(request)];
    flows.extend((0..connections).map(|_| flow(Traffic::tcp(Algorithm::Cubic))));
    let seed = options.seed;
    let measured = measure::run(&site, Topology { seed, flows, ..topology }, direction, options.seconds)?;
    let world = &measured.world;
    let pings = world.sent(0).round_trips_ns;
    // Those of the first second are the connections' slow start.
    let warm = pings.len() / (options.seconds as usize + 1);
    Ok(Outcome {
        mbps: (2..2 + connections).map(|flow| measured.flow_mbps(flow)).sum(),
        pings: pings[warm..].to_vec(),
        requests: world.received(1).completed,
        timeouts: world.sent(1).sender.timeouts,
    })
}
