//! Queue size: the Gatekeeper paper's study of its ingress queue, 256 TCP connections that start
//! together from 1 to 16 senders.
//!
//! The published queue is a plain one of so many packets, drained at 95 % of the link: here a link
//! of that rate and queue behind the network's. Levada's is managed by CoDel, bounded in bytes, and
//! drained at 98 % while another tenant is active, which here sends a trickle. The paper chose the
//! smallest queue that keeps drops below 20 Mbit/s, half of its headroom.

use agent::Settings;
use datapath::link::{LinkConfig, Side};
use datapath::program::EndpointId;
use datapath::units::{Instant, Rate};
use datapath::verdict::Reason;

use super::convergence::controllers;
use super::measure::{SECOND, mbps};
use super::{Cell, Claim, Options, Scenario, Table, Target};
use crate::fabric::FabricConfig;
use crate::packet::Nic;
use crate::rack::{Member, Rack};
use crate::tcp::congestion::Algorithm;
use crate::topology::{FlowSpec, HostSpec, Plug, Topology, Traffic};
use crate::world::{Violation, World};

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "queue-size",
    about: "256 TCP connections start together from 1 to 16 senders: what the ingress queue drops, by its size",
    seconds: 1,
    warms_up: false,
    repeats: true,
    run,
};

const CONNECTIONS: usize = 256;
const SENDERS: [usize; 3] = [1, 4, 16];
/// Sizes of the published queue, in packets of a full frame; the paper chose 160.
const PACKETS: [u32; 5] = [40, 80, 160, 320, 640];
/// A full frame on the wire, in bytes.
const PACKET: u32 = 1538;
/// What the published scheduler lets in, in percent of the link.
const LIM_IN: u64 = 95;
/// Sizes of Levada's queue, in KiB; the last is the default's.
const KIB: [u32; 3] = [64, 256, 1024];
/// From this size on it is claimed what the queue drops.
const CLAIMED_KIB: u32 = 256;
/// What keeps the other tenant active.
const TRICKLE: Rate = Rate(10_000_000);
/// Half of the headroom, in Mbit/s: the published bound, and the same of ours.
const PUBLISHED_MOST: f64 = 20.0;
const OURS_MOST: f64 = 10.0;

/// What one run dropped and delivered.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Outcome {
    /// By the ingress queue, in Mbit/s.
    dropped: f64,
    /// By the network's queue before it.
    before: f64,
    /// Payload delivered.
    goodput: f64,
    timeouts: u64,
}

fn run(options: &Options) -> Result<Table, Violation> {
    let mut table = Table {
        config: vec![
            (
                "links",
                format!("{}, network's queue {} KiB", Rate(Rate::GBIT), Rack::default().fabric_queue_bytes >> 10),
            ),
            (
                "published",
                format!(
                    "{CONNECTIONS} connections (cubic), drained at {LIM_IN} % of the link, frames of {PACKET} bytes"
                ),
            ),
            ("Levada", format!("the same beside {TRICKLE} of another tenant's, drained at 98 %")),
        ],
        columns: vec!["queue", "senders", "dropped Mbit/s", "dropped before it", "goodput Mbit/s", "timeouts"],
        ..Table::default()
    };
    for packets in PACKETS {
        for senders in SENDERS {
            let outcome = published(options, senders, packets)?;
            push(&mut table, format!("published, {packets} packets"), senders, &outcome);
        }
    }
    for (name, settings) in controllers().into_iter().filter(|(name, _)| *name != "gatekeeper") {
        for kib in KIB {
            for senders in SENDERS {
                let outcome = ours(options, senders, kib, settings)?;
                push(&mut table, format!("Levada, {kib} KiB, agents: {name}"), senders, &outcome);
                if name == "rate" && kib >= CLAIMED_KIB {
                    let id = format!("{senders} senders: Levada's queue of {kib} KiB drops");
                    let target = Target::AtMost(OURS_MOST);
                    table.claims.push(Claim { id, value: Some(outcome.dropped), unit: "Mbit/s", target });
                }
            }
        }
    }
    table.notes.push(format!(
        "Published: 160 packets are the smallest queue that drops less than {PUBLISHED_MOST} Mbit/s, over 60 s."
    ));
    Ok(table)
}

fn push(table: &mut Table, queue: String, senders: usize, outcome: &Outcome) {
    table.rows.push(vec![
        queue.into(),
        Cell::Number(senders as f64, 0),
        Cell::Number(outcome.dropped, 2),
        Cell::Number(outcome.before, 2),
        Cell::Number(outcome.goodput, 1),
        Cell::Number(outcome.timeouts as f64, 0),
    ]);
}

/// The published queue: sending hosts, a fabric, its queue, and behind it the scheduler's.
fn published(options: &Options, senders: usize, packets: u32) -> Result<Outcome, Violation> {
    let host = HostSpec { tenant: 1, nic: Nic::default(), ..HostSpec::default() };
    let rack = Rack::default();
    let link = LinkConfig {
        rate: rack.rate,
        delay_ns: rack.delay_ns,
        queue_bytes: rack.fabric_queue_bytes,
        ..LinkConfig::default()
    };
    let scheduler = LinkConfig {
        rate: rack.rate.scaled(LIM_IN, 100),
        delay_ns: 0,
        queue_bytes: packets * PACKET,
        ..LinkConfig::default()
    };
    // Host and link 0 receive. A sender's own queue is its stack's, which does not drop what it
    // sends.
    let own = LinkConfig { queue_bytes: 1 << 30, ..link };
    let mut topology = Topology { seed: options.seed, hosts: vec![host; 1 + senders], ..Topology::default() };
    topology.links = vec![link];
    topology.links.extend((0..senders).map(|_| own));
    topology.links.push(scheduler);
    let ports = (0..=senders).map(|host| vec![topology.address(host).mac]).collect();
    topology.fabrics.push(FabricConfig { ports, latency_ns: rack.rate.time_ns(u64::from(PACKET)) });
    for port in 0..=senders {
        topology.cables.push((Plug::Link(port, Side::B), Plug::Fabric(0, port)));
    }
    topology.cables.push((Plug::Link(0, Side::A), Plug::Link(1 + senders, Side::B)));
    topology.cables.push((Plug::Host(0), Plug::Link(1 + senders, Side::A)));
    for sender in 1..=senders {
        topology.cables.push((Plug::Host(sender), Plug::Link(sender, Side::A)));
    }
    topology.flows = connections(senders, |sender| 1 + sender, 0);
    let ns = options.seconds * SECOND;
    let mut world = World::new(topology);
    world.run_until(Instant(ns))?;
    let lost = |link| mbps(world.link(link, Side::B).drops * u64::from(PACKET), ns);
    let (goodput, timeouts) = delivered(&world, ns);
    Ok(Outcome { dropped: lost(1 + senders), before: lost(0), goodput, timeouts })
}

/// Levada's queue, with a second tenant's trickle from a machine of its own.
fn ours(options: &Options, senders: usize, kib: u32, agents: Option<Settings>) -> Result<Outcome, Violation> {
    let half = Rate(490_000_000);
    let mut machines = vec![vec![Member::receiver(0, half), Member::receiver(1, half)], vec![Member::sender(1)]];
    machines.extend((0..senders).map(|_| vec![Member::sender(0)]));
    let rack = Rack { machines, queue_bytes: kib << 10, agents, ..Rack::default() };
    let mut flows = connections(senders, |sender| rack.host(2 + sender, 0), rack.host(0, 0));
    flows.push(FlowSpec::new(rack.host(1, 0), rack.host(0, 1), Traffic::udp(TRICKLE, 1514)));
    let ns = options.seconds * SECOND;
    let mut world = World::new(Topology { seed: options.seed, flows, ..rack.topology() });
    world.run_until(Instant(ns))?;
    let stats = world.switch(0).endpoint_stats(EndpointId(0));
    let frames = stats.ingress.trims + stats.drops.get(Reason::Aqm) + stats.drops.get(Reason::QueueFull);
    let (goodput, timeouts) = delivered(&world, ns);
    Ok(Outcome {
        dropped: mbps(frames * u64::from(PACKET), ns),
        before: mbps(world.link(0, Side::B).drops * u64::from(PACKET), ns),
        goodput,
        timeouts,
    })
}

/// All connections, in turn from the senders.
fn connections(senders: usize, from: impl Fn(usize) -> usize, to: usize) -> Vec<FlowSpec> {
    let connection = |n| FlowSpec::new(from(n % senders), to, Traffic::tcp(Algorithm::Cubic));
    (0..CONNECTIONS).map(connection).collect()
}

fn delivered(world: &World, ns: u64) -> (f64, u64) {
    let payload = (0..CONNECTIONS).map(|flow| world.received(flow).bytes).sum();
    (mbps(payload, ns), (0..CONNECTIONS).map(|flow| world.sent(flow).sender.timeouts).sum())
}
