//! Own traffic: what an endpoint's ping and its short requests wait for, and lose, beside the same
//! endpoint's own connections.
//!
//! With one queue they wait behind all that the connections have under way there, and are dropped
//! as these are. With flow queues (RFC 8290) they go first.

use datapath::aqm::Discipline;
use datapath::program::Share;
use datapath::units::{Direction, Rate};

use super::fairness::name;
use super::measure::{self, SECOND, WARM_UP_NS};
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
/// So long before the end the last one is sent: what is not answered then is lost.
const UNDER_WAY_NS: u64 = 100_000_000;
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
    /// Round trips of the pings that were answered, in nanoseconds, from the shortest on; and how
    /// many were sent.
    pings: Vec<u64>,
    pings_sent: u64,
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
            "lost",
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
            let mut claim = |what: &str, value: Option<f64>, unit, target| {
                table.claims.push(Claim { id: format!("{name}{what}"), value, unit, target });
            };
            claim("ping, mean", each.mean_ms(), "ms", Target::AtMost(MEAN_MS));
            claim("ping, 99 of 100 sent", each.quantile_ms(99), "ms", Target::AtMost(P99_MS));
            claim("pings lost", Some(each.lost() as f64), "", Target::AtMost(0.0));
            claim("requests' time-outs", Some(each.timeouts as f64), "", Target::AtMost(0.0));
            claim("payload, against one queue", Some(each.mbps / one.mbps), "x", Target::AtLeast(THROUGHPUT));
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
        ms(outcome.mean_ms()),
        ms(outcome.quantile_ms(99)),
        ms(outcome.quantile_ms(100)),
        Cell::Number(outcome.lost() as f64, 0),
        Cell::Number(outcome.requests as f64, 0),
        Cell::Number(outcome.timeouts as f64, 0),
    ]);
}

fn ms(value: Option<f64>) -> Cell {
    value.map_or(Cell::Empty, |ms| Cell::Number(ms, 3))
}

impl Outcome {
    /// Of those that were answered; none where none was.
    fn mean_ms(&self) -> Option<f64> {
        let mean = self.pings.iter().sum::<u64>() as f64 / self.pings.len() as f64 / 1e6;
        (!self.pings.is_empty()).then_some(mean)
    }

    /// What so many in a hundred of those that were sent took at most; none where more are lost.
    fn quantile_ms(&self, percent: u64) -> Option<f64> {
        let rank = (self.pings_sent * percent).div_ceil(100) as usize;
        self.pings.get(rank.saturating_sub(1)).map(|&ns| ns as f64 / 1e6)
    }

    fn lost(&self) -> u64 {
        self.pings_sent - self.pings.len() as u64
    }
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
    // Beside the connections' slow start there is none.
    let start_ns = WARM_UP_NS;
    let stop_ns = start_ns + options.seconds * SECOND - UNDER_WAY_NS;
    let ping = FlowSpec { start_ns, stop_ns, ..flow(Traffic::Ping { every_ns: PING_NS }) };
    let mut flows: Vec<FlowSpec> = vec![ping, flow(request)];
    flows.extend((0..connections).map(|_| flow(Traffic::tcp(Algorithm::Cubic))));
    let seed = options.seed;
    let measured = measure::run(&site, Topology { seed, flows, ..topology }, direction, options.seconds)?;
    let world = &measured.world;
    let pings = world.sent(0);
    let mut round_trips = pings.round_trips_ns;
    round_trips.sort_unstable();
    Ok(Outcome {
        mbps: (2..2 + connections).map(|flow| measured.flow_mbps(flow)).sum(),
        pings: round_trips,
        pings_sent: pings.frames_sent,
        requests: world.received(1).completed,
        timeouts: world.sent(1).sender.timeouts,
    })
}
