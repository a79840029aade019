//! Bonding: one TCP connection between two hosts over several links, with numbers and without.
//!
//! Each link is measured alone first. Links have delays of their own, so that frames overtake each
//! other; then segments are lost, a link falls silent in one direction, and one loses its carrier
//! at both ends.

use datapath::bond::order::OrderStats;
use datapath::bond::{BondSettings, MOST_MEMBERS, Mode};
use datapath::guard::Identity;
use datapath::link::{CERTAIN_PPM, LinkConfig, Side};
use datapath::program::{Attachment, Endpoint, Member, PortFeatures, PortId, Program, Tenant, TenantId, Uplink};
use datapath::units::{Instant, Rate};

use super::measure::{SECOND, mbps};
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
    about: "one TCP connection over 2, 4, 8 and unequal links, with numbers and without; loss, a silent link, a pulled one",
    seconds: 1,
    warms_up: true,
    repeats: true,
    run,
};

const GBIT: u64 = Rate::GBIT;
/// The host's port of a switch; members' ports are behind it.
const GUEST: PortId = PortId(0);
/// Most that one link's delay is, in nanoseconds.
const DELAY_MOST_NS: u64 = 100_000;
/// Wire bytes that may wait at a link's end.
const LINK_QUEUE_BYTES: u32 = 1 << 20;
const QUEUE_BYTES: u32 = 4 << 20;
/// Of the links' sum, in percent.
const EQUAL_PERCENT: f64 = 98.0;
const UNEQUAL_PERCENT: f64 = 97.0;
/// One segment of a thousand is lost, in millionths; then of one link's rate under that loss.
const LOSS_PPM: u32 = 1000;
const LOSS_PERCENT: f64 = 95.0;

/// What one run carried.
struct Outcome {
    goodput: f64,
    retransmits: u64,
    order: OrderStats,
}

/// Links in gigabits, and what is wrong with them.
#[derive(Clone, Copy)]
struct Cables<'a> {
    rates: &'a [u64],
    is_numbered: bool,
    loss_ppm: u32,
    fault: Broken,
}

#[derive(Clone, Copy, PartialEq)]
enum Broken {
    Nothing,
    /// The last link loses everything in one direction.
    Silent,
    /// And both ends lose its carrier a millisecond later.
    Pulled,
}

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![(
            "links",
            format!("delays up to {} us each; frames of 1500 bytes, offloaded; cubic", DELAY_MOST_NS / 1000),
        )],
        columns: vec![
            "links",
            "frames",
            "Mbit/s",
            "% of the links",
            "sent again",
            "held",
            "late",
            "lost",
            "held most us",
        ],
        ..Table::default()
    };
    let equal = [GBIT; 8];
    let unequal = [GBIT, GBIT / 10];
    for (rates, percent) in [
        (&equal[..2], EQUAL_PERCENT),
        (&equal[..4], EQUAL_PERCENT),
        (&equal[..8], EQUAL_PERCENT),
        (&unequal[..], UNEQUAL_PERCENT),
    ] {
        let name = names(rates);
        let mut sum = 0.0;
        for (n, &rate) in rates.iter().enumerate() {
            let is_same = n > 0 && rates[n - 1] == rate;
            let alone = if is_same { sum / n as f64 } else { one(options, &[rate])?.goodput };
            sum += alone;
        }
        for is_numbered in [false, true] {
            let outcome = carry(options, Cables { is_numbered, ..sound(rates) })?;
            row(&mut table, &name, if is_numbered { "numbered" } else { "plain" }, &outcome, Some(sum));
            if is_numbered {
                let part = Some(100.0 * outcome.goodput / sum);
                claim(&mut table, format!("{name}: of each link alone, together"), part, "%", Target::AtLeast(percent));
                let (again, late) = (outcome.retransmits as f64, outcome.order.late as f64);
                claim(&mut table, format!("{name}: segments sent again"), Some(again), "", Target::AtMost(0.0));
                claim(&mut table, format!("{name}: frames late"), Some(late), "", Target::AtMost(0.0));
            }
        }
    }
    let two = &equal[..2];
    let lossy = one_of(options, Cables { loss_ppm: LOSS_PPM, ..sound(&equal[..1]) })?;
    row(&mut table, "1 link, 0.1 % loss", "plain", &lossy, None);
    let outcome = carry(options, Cables { loss_ppm: LOSS_PPM, ..sound(two) })?;
    row(&mut table, "2 links, 0.1 % loss", "numbered", &outcome, None);
    let part = Some(100.0 * outcome.goodput / lossy.goodput);
    claim(&mut table, "0.1 % loss: two links, of one with that loss".into(), part, "%", Target::AtLeast(LOSS_PERCENT));
    for (name, fault) in [("2 links, one silent", Broken::Silent), ("2 links, one pulled", Broken::Pulled)] {
        let outcome = carry(options, Cables { fault, ..sound(two) })?;
        row(&mut table, name, "numbered", &outcome, None);
        let lost = Some(outcome.order.lost as f64);
        claim(&mut table, format!("{name}: frames lost"), lost, "", Target::AtMost(0.0));
    }
    Ok(table)
}

fn claim(table: &mut Table, id: String, value: Option<f64>, unit: &'static str, target: Target) {
    table.claims.push(Claim { id, value, unit, target });
}

fn row(table: &mut Table, links: &str, frames: &str, outcome: &Outcome, sum: Option<f64>) {
    let count = |count: u64| Cell::Number(count as f64, 0);
    let OrderStats { held, late, lost, hold_max_ns, .. } = outcome.order;
    table.rows.push(vec![
        links.to_owned().into(),
        frames.to_owned().into(),
        Cell::Number(outcome.goodput, 1),
        sum.map_or("-".to_owned().into(), |sum| Cell::Number(100.0 * outcome.goodput / sum, 1)),
        count(outcome.retransmits),
        count(held),
        count(late),
        count(lost),
        count(hold_max_ns / 1000),
    ]);
}

fn names(rates: &[u64]) -> String {
    if rates.iter().all(|&rate| rate == rates[0]) {
        return format!("{} x {} Mbit/s", rates.len(), rates[0] / 1_000_000);
    }
    rates.iter().map(|rate| format!("{}", rate / 1_000_000)).collect::<Vec<_>>().join(" + ") + " Mbit/s"
}

fn sound(rates: &[u64]) -> Cables<'_> {
    Cables { rates, is_numbered: true, loss_ppm: 0, fault: Broken::Nothing }
}

/// One link, without a bond's numbers.
fn one(options: &Options, rates: &[u64]) -> Result<Outcome, Violation> {
    one_of(options, sound(rates))
}

fn one_of(options: &Options, cables: Cables<'_>) -> Result<Outcome, Violation> {
    carry(options, Cables { is_numbered: false, ..cables })
}

/// Runs it; what the connection carried behind the first second.
fn carry(options: &Options, cables: Cables<'_>) -> Result<Outcome, Violation> {
    let mut world = World::new(topology(options.seed, cables));
    world.run_until(Instant(SECOND))?;
    let before = world.received(0).bytes;
    let sent_again = world.sent(0).sender.retransmits;
    world.run_for(options.seconds * SECOND)?;
    Ok(Outcome {
        goodput: mbps(world.received(0).bytes - before, options.seconds * SECOND),
        retransmits: world.sent(0).sender.retransmits - sent_again,
        order: world.switch(1).bond_peer().map(|peer| peer.order).unwrap_or_default(),
    })
}

fn topology(seed: u64, cables: Cables<'_>) -> Topology {
    let host = HostSpec { tenant: 1, nic: Nic::default(), ..HostSpec::default() };
    let mut topology = Topology { seed, hosts: vec![host; 2], ..Topology::default() };
    topology.switches = (0..2).map(|side| program(&topology, side, cables)).collect();
    topology.cables = (0..2).map(|side| (Plug::Host(side), Plug::Switch(side, GUEST))).collect();
    let mut random = Random::new(seed);
    for (link, &rate) in cables.rates.iter().enumerate() {
        let delay_ns = random.range(5_000, DELAY_MOST_NS);
        let loss_ppm = cables.loss_ppm;
        let queue_bytes = LINK_QUEUE_BYTES;
        topology.links.push(LinkConfig { rate: Rate(rate), delay_ns, loss_ppm, queue_bytes, ..LinkConfig::default() });
        for (side, end) in Side::ALL.into_iter().enumerate() {
            topology.cables.push((Plug::Link(link, end), Plug::Switch(side, port(link))));
            topology.faults.push((0, Fault::Member { switch: side, member: link as u8, is_up: true }));
        }
    }
    let last = cables.rates.len() - 1;
    let breaks_ns = SECOND + 100_000_000;
    if cables.fault != Broken::Nothing {
        topology.faults.push((breaks_ns, Fault::Loss { link: last, ppm: CERTAIN_PPM }));
    }
    if cables.fault == Broken::Pulled {
        for switch in 0..2 {
            let fault = Fault::Member { switch, member: last as u8, is_up: false };
            topology.faults.push((breaks_ns + 1_000_000, fault));
        }
    }
    topology.flows = vec![FlowSpec::new(0, 1, Traffic::tcp(Algorithm::Cubic))];
    topology
}

fn port(member: usize) -> PortId {
    PortId(member as u32 + 1)
}

fn program(topology: &Topology, side: usize, cables: Cables<'_>) -> Program {
    debug_assert!(cables.rates.len() <= MOST_MEMBERS);
    let member = |(n, &rate): (usize, &u64)| Member { port: port(n), rate: both(Rate(rate)) };
    let members: Vec<Member> = cables.rates.iter().enumerate().map(member).collect();
    let bond = Some(BondSettings { mode: Mode::BalanceRr, order: cables.is_numbered, ..BondSettings::default() });
    let tagged = PortFeatures { max_frame: 1518, ..PortFeatures::default() };
    let mut ports = vec![tagged; cables.rates.len() + 1];
    ports[0] = PortFeatures::default();
    let identity = Identity { macs: vec![topology.address(side).mac], ..Identity::default() };
    Program {
        uplink: Some(Uplink { members, bond, ..Uplink::new(port(0), both(Rate(0))) }),
        tenants: vec![Tenant { attachment: Attachment::Vlan(10), ..Tenant::default() }].into(),
        endpoints: vec![Endpoint { identity, queue_bytes: QUEUE_BYTES, ..Endpoint::new(TenantId(0), GUEST) }].into(),
        ports: ports.into(),
        fdb_age_ns: 300_000_000_000,
        ..Program::default()
    }
}
