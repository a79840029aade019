//! Bonding: what one TCP connection has over several links between two switches whose bonds number
//! their frames, at full rates.
//!
//! Links differ in delay, each set by the seed. A rate is compared with the sum of what a
//! connection has over each link alone; under loss, with one link as fast as all that loses as
//! many. A connection that is paced below the links' sum is sent nothing again: whatever is, comes
//! of disorder.

use datapath::bond::order::OrderStats;
use datapath::bond::{BondSettings, MemberId, Mode};
use datapath::guard::Identity;
use datapath::link::{LinkConfig, Side};
use datapath::program::{Attachment, Endpoint, Member, PortFeatures, PortId, Program, Tenant, TenantId, Uplink};
use datapath::units::{Instant, Rate};

use super::measure::{SECOND, WARM_UP_NS, mbps};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::packet::Nic;
use crate::random::Random;
use crate::site::both;
use crate::tcp::congestion::Algorithm;
use crate::topology::{Fault, FlowSpec, HostSpec, Plug, Topology, Traffic};
use crate::world::{Violation, World};

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "bonding",
    about: "one TCP connection over several links in round robin with numbers, next to each link alone",
    seconds: 1,
    warms_up: true,
    repeats: true,
    run,
};

const GBIT: u64 = Rate::GBIT;
/// The host's port of a switch; members' ports are behind it.
const GUEST: PortId = PortId(0);
/// Least delay of a link, and by how much others are longer at most, in nanoseconds.
const DELAY_NS: u64 = 100_000;
const SKEW_NS: u64 = 300_000;
const LINK_QUEUE_BYTES: u32 = 4 << 20;
/// Under loss: each link's delay, so that loss, and not the links, bounds the rate.
const FAR_NS: u64 = 500_000;
const LOSS_PPM: u32 = 1_000;
/// A paced connection's payload, of the links' rate.
const PACED_PERCENT: u64 = 85;
/// Runs under loss: each loses other frames, and rates differ from run to run by 6 %. What is
/// claimed of their means is claimed of the lower end of the interval in which the ratio of two is
/// with 95 % confidence; with so many runs it reaches 2 % to each side.
const LOSS_RUNS: u64 = 64;
/// Half that interval, in standard errors.
const CONFIDENCE: f64 = 1.96;

/// What is between the switches.
#[derive(Clone, Debug)]
pub(super) struct Links {
    rates: Vec<u64>,
    loss_ppm: u32,
    /// By how much delays differ at most, in nanoseconds.
    skew_ns: u64,
    delay_ns: u64,
}

impl Links {
    pub(super) fn of(rates: &[u64]) -> Links {
        Links { rates: rates.to_vec(), loss_ppm: 0, skew_ns: SKEW_NS, delay_ns: DELAY_NS }
    }

    fn lossy(rates: &[u64]) -> Links {
        Links { loss_ppm: LOSS_PPM, skew_ns: 0, delay_ns: FAR_NS, ..Links::of(rates) }
    }

    fn sum(&self) -> u64 {
        self.rates.iter().sum()
    }

    fn name(&self) -> String {
        let mbit: Vec<String> = self.rates.iter().map(|rate| (rate / 1_000_000).to_string()).collect();
        match self.rates.as_slice() {
            [first, .., last] if first == last => format!("{} x {}", mbit.len(), mbit[0]),
            _ => mbit.join(" + "),
        }
    }
}

/// What a connection had.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    mbps: f64,
    /// Of the mean, in Mbit/s, where it is one.
    error: f64,
    segments: u64,
    again: u64,
    order: Option<OrderStats>,
}

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            ("links", format!("Mbit/s; delays {} us, others up to {} us more", DELAY_NS / 1000, SKEW_NS / 1000)),
            ("under loss", format!("delays {} us; {LOSS_RUNS} runs of other seeds", FAR_NS / 1000)),
        ],
        columns: vec!["links", "loss %", "cubic", "payload Mbit/s", "of %", "sent again", "held", "late", "given up"],
        ..Table::default()
    };
    let (whole, tenth) = (Links::of(&[GBIT]), Links::of(&[GBIT / 10]));
    let alone =
        [play(options.seed, options.seconds, &whole, false)?, play(options.seed, options.seconds, &tenth, false)?];
    table.rows.push(row(&whole, "all it gets", &alone[0], None));
    table.rows.push(row(&tenth, "all it gets", &alone[1], None));
    let [whole, tenth] = alone.map(|outcome| outcome.mbps);
    for (rates, of, least) in [
        (&[GBIT; 2][..], 2.0 * whole, 98.0),
        (&[GBIT; 4], 4.0 * whole, 98.0),
        (&[GBIT; 8], 8.0 * whole, 98.0),
        (&[GBIT, GBIT / 10], whole + tenth, 97.0),
    ] {
        let links = Links::of(rates);
        let outcome = play(options.seed, options.seconds, &links, false)?;
        let percent = outcome.mbps / of * 100.0;
        table.rows.push(row(&links, "all it gets", &outcome, Some(percent)));
        claim(&mut table, &format!("{}: of the links' sum", links.name()), percent, "%", Target::AtLeast(least));
        let paced = play(options.seed, options.seconds, &links, true)?;
        table.rows.push(row(&links, "paced", &paced, None));
        let disorder = paced.again + paced.order.map_or(0, |order| order.late + order.lost);
        let what = format!("{}, paced: sent again, late or given up", links.name());
        claim(&mut table, &what, disorder as f64, "", Target::AtMost(0.0));
    }
    let one = under_loss(options, &Links::lossy(&[2 * GBIT]))?;
    table.rows.push(row(&Links::lossy(&[2 * GBIT]), "all it gets", &one, None));
    for rates in [&[GBIT; 2][..], &[GBIT / 2; 4]] {
        let links = Links::lossy(rates);
        let outcome = under_loss(options, &links)?;
        let ratio = outcome.mbps / one.mbps;
        table.rows.push(row(&links, "all it gets", &outcome, Some(ratio * 100.0)));
        let error = ratio * (outcome.error / outcome.mbps).hypot(one.error / one.mbps);
        let what = format!("{}, 0.1 % lost: of one link as fast that loses as many, at least", links.name());
        claim(&mut table, &what, (ratio - CONFIDENCE * error) * 100.0, "%", Target::AtLeast(95.0));
    }
    Ok(table)
}

fn claim(table: &mut Table, what: &str, value: f64, unit: &'static str, target: Target) {
    table.claims.push(Claim { id: what.to_owned(), value: Some(value), unit, target });
}

fn row(links: &Links, how: &str, outcome: &Outcome, percent: Option<f64>) -> Vec<Cell> {
    let order = |count: fn(&OrderStats) -> u64| match &outcome.order {
        Some(order) => Cell::Number(count(order) as f64, 0),
        None => Cell::Empty,
    };
    vec![
        links.name().into(),
        Cell::Number(f64::from(links.loss_ppm) / 10_000.0, 1),
        how.into(),
        Cell::Number(outcome.mbps, 1),
        percent.map_or(Cell::Empty, |percent| Cell::Number(percent, 2)),
        Cell::Number(outcome.again as f64, 0),
        order(|order| order.held),
        order(|order| order.late),
        order(|order| order.lost),
    ]
}

fn under_loss(options: &Options, links: &Links) -> Result<Outcome, Violation> {
    let mut all = Outcome::default();
    let mut rates = Vec::new();
    for run in 0..LOSS_RUNS {
        let one = play(options.seed + run, 2 * options.seconds, links, false)?;
        rates.push(one.mbps);
        (all.segments, all.again) = (all.segments + one.segments, all.again + one.again);
        if let Some(order) = one.order {
            let sum = all.order.get_or_insert_default();
            (sum.held, sum.late, sum.lost) = (sum.held + order.held, sum.late + order.late, sum.lost + order.lost);
        }
    }
    let runs = LOSS_RUNS as f64;
    all.mbps = rates.iter().sum::<f64>() / runs;
    let squares: f64 = rates.iter().map(|rate| (rate - all.mbps).powi(2)).sum();
    all.error = (squares / (runs - 1.0) / runs).sqrt();
    Ok(all)
}

fn play(seed: u64, seconds: u64, links: &Links, is_paced: bool) -> Result<Outcome, Violation> {
    let mut world = World::new(topology(seed, links, is_paced));
    world.run_until(Instant(WARM_UP_NS))?;
    let before = counted(&world);
    world.run_for(seconds * SECOND)?;
    let after = counted(&world);
    let order = world.switch(1).bond_peer().map(|peer| peer.order);
    Ok(Outcome {
        error: 0.0,
        mbps: mbps(after[0] - before[0], seconds * SECOND),
        segments: after[1] - before[1],
        // From the first segment on: it is to lose none in slow start either where it is paced.
        again: if is_paced { after[2] } else { after[2] - before[2] },
        order,
    })
}

fn counted(world: &World) -> [u64; 3] {
    let sender = world.sent(0).sender;
    [world.received(0).bytes, sender.segments, sender.retransmits]
}

fn topology(seed: u64, links: &Links, is_paced: bool) -> Topology {
    let pace = is_paced.then(|| Rate(links.sum() / 100 * PACED_PERCENT));
    let cubic = Algorithm::Cubic;
    let traffic = Traffic::Tcp { algorithm: cubic, ecn: false, bytes: None, again_after_ns: None, pace };
    // Not before the bonds have agreed.
    let flows = vec![FlowSpec { start_ns: SECOND / 10, ..FlowSpec::new(0, 1, traffic) }];
    Topology { flows, ..network(seed, links) }
}

/// A host behind each of two switches, and links between these, which are up from the start.
pub(super) fn network(seed: u64, links: &Links) -> Topology {
    let host = HostSpec { tenant: 1, nic: Nic::default(), times_syn: true, ..HostSpec::default() };
    let mut topology = Topology { seed, hosts: vec![host; 2], ..Topology::default() };
    topology.switches = (0..2).map(|side| program(&topology, side, links)).collect();
    topology.cables = (0..2).map(|side| (Plug::Host(side), Plug::Switch(side, GUEST))).collect();
    let mut random = Random::new(seed);
    for (n, &rate) in links.rates.iter().enumerate() {
        let delay_ns = links.delay_ns + if n == 0 { 0 } else { random.range(0, links.skew_ns + 1) };
        let (rate, queue_bytes, loss_ppm) = (Rate(rate), LINK_QUEUE_BYTES, links.loss_ppm);
        topology.links.push(LinkConfig { rate, delay_ns, loss_ppm, queue_bytes, ..LinkConfig::default() });
        for (side, end) in Side::ALL.into_iter().enumerate() {
            topology.cables.push((Plug::Link(n, end), Plug::Switch(side, port(n))));
            if links.rates.len() > 1 {
                topology.faults.push((0, Fault::Member { switch: side, member: MemberId(n as u8), is_up: true }));
            }
        }
    }
    topology
}

fn port(member: usize) -> PortId {
    PortId(member as u32 + 1)
}

fn program(topology: &Topology, side: usize, links: &Links) -> Program {
    let member = |(n, &rate): (usize, &u64)| Member { port: port(n), rate: both(Rate(rate)) };
    let whole = both(Rate(links.sum()));
    let uplink = match links.rates.as_slice() {
        [_] => Uplink::new(port(0), whole),
        rates => {
            let members = rates.iter().enumerate().map(member).collect();
            let bond = Some(BondSettings { mode: Mode::BalanceRr, order: true, ..BondSettings::default() });
            Uplink { members, bond, ..Uplink::new(port(0), whole) }
        }
    };
    let mut ports = vec![PortFeatures { max_frame: 1522, ..PortFeatures::default() }; links.rates.len() + 1];
    ports[0] = PortFeatures::default();
    let identity = Identity { macs: vec![topology.address(side).mac], ..Identity::default() };
    Program {
        uplink: Some(uplink),
        tenants: vec![Tenant { attachment: Attachment::Vlan(10), ..Tenant::default() }].into(),
        endpoints: vec![Endpoint { identity, queue_bytes: 4 << 20, ..Endpoint::new(TenantId(0), GUEST) }].into(),
        ports: ports.into(),
        fdb_age_ns: 300_000_000_000,
        ..Program::default()
    }
}
