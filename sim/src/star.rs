//! Star: many senders to one machine, whose link is where they meet.
//!
//! Each sender is a guest behind Levada on a machine of its own; the receiving machine has a guest
//! for each kind of sender, behind another Levada. Uplinks of Levada are ten times as fast as the
//! links, so what queues, queues at the fabric's port toward the receiver, under its discipline.
//!
//! ```text
//! guest - [ Levada 1 ] ==== link 1 ==== +--------+
//! guest - [ Levada 2 ] ==== link 2 ==== | fabric | ==== link 0 ==== [ Levada 0 ] - receivers
//!                                ...    +--------+
//! ```

use datapath::aqm::Discipline;
use datapath::guard::Identity;
use datapath::link::{LinkConfig, LinkStats, Side};
use datapath::program::{
    Attachment, Endpoint, EndpointId, IngressMode, OrderKind, PortFeatures, PortId, Program, Tenant, TenantId, Uplink,
};
use datapath::units::{Both, Instant, Rate};
use datapath::vcc::{Counters, Settings};

use crate::fabric::FabricConfig;
use crate::flow::FlowStats;
use crate::packet::Nic;
use crate::tcp::Cheat;
use crate::tcp::congestion::Algorithm;
use crate::topology::{FlowSpec, HostSpec, Plug, Topology, Traffic};
use crate::world::{Violation, World};

/// A full frame on the wire, in bytes.
const FULL_FRAME: u64 = 1538;
/// Queues that are no bottleneck, in bytes.
const WIDE: u32 = 1 << 30;

/// What a sender's host is, and its receiver's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guest {
    /// It speaks ECN.
    Native,
    /// It has no ECN.
    Legacy,
    /// It has none, and the switch speaks for it.
    Virtual,
}

impl Guest {
    /// All kinds, in the order of tenants and receivers.
    pub const ALL: [Guest; 3] = [Guest::Native, Guest::Legacy, Guest::Virtual];
}

/// One sender.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sender {
    /// What it is.
    pub guest: Guest,
    /// Its congestion control.
    pub algorithm: Algorithm,
    /// What it does not keep to.
    pub cheat: Cheat,
}

impl Sender {
    /// One connection without end, of a sender that keeps to the rules.
    #[must_use]
    pub fn honest(guest: Guest, algorithm: Algorithm) -> Sender {
        Sender { guest, algorithm, cheat: Cheat::None }
    }
}

/// A star.
#[derive(Clone, PartialEq, Debug)]
pub struct Star {
    /// Of every link, wire bits a second.
    pub rate: Rate,
    /// Of every link, one way.
    pub delay_ns: u64,
    /// Of the fabric's port toward the receiver: discipline, and length in bytes.
    pub queue: (Discipline, u32),
    /// What is done for guests that are [`Guest::Virtual`].
    pub service: Settings,
    /// The same for natives.
    pub of_natives: Settings,
    /// One flow each.
    pub senders: Vec<Sender>,
    /// They begin one after the other within this time.
    pub begin_ns: u64,
    /// Of all randomness.
    pub seed: u64,
}

/// What happened in a part of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    /// How long it was, in nanoseconds.
    pub ns: u64,
    /// By sender: payload that was received, in bytes.
    pub payload: Vec<u64>,
    /// Of all senders: segments sent again.
    pub retransmits: u64,
    /// Of all senders: timeouts.
    pub timeouts: u64,
    /// Wire bytes that the link toward the receiver carried.
    pub wire_bytes: u64,
    /// Segments that its queue lost.
    pub lost: u64,
    /// The most that ever waited there, in bytes.
    pub backlog_max_bytes: u64,
    /// What Levada counted for the senders that are its affair.
    pub counters: Counters,
}

impl Seen {
    /// Payload bits a second of a sender.
    #[must_use]
    pub fn bps(&self, sender: usize) -> f64 {
        self.payload[sender] as f64 * 8e9 / self.ns as f64
    }

    /// Of the link's capacity, the part that was used.
    #[must_use]
    pub fn used(&self, rate: Rate) -> f64 {
        self.wire_bytes as f64 * 8e9 / self.ns as f64 / rate.0 as f64
    }
}

/// Jain's index: one where all have the same, 1/n where one has all.
#[must_use]
pub fn jain(values: &[f64]) -> f64 {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(sum, squares), value| (sum + value, squares + value * value));
    if squares == 0.0 { 1.0 } else { sum * sum / squares / values.len() as f64 }
}

impl Star {
    /// Runs it, and tells what happened in the `measured_ns` behind the first `warm_up_ns`.
    ///
    /// # Errors
    /// The first violation of safety.
    pub fn run(&self, warm_up_ns: u64, measured_ns: u64) -> Result<Seen, Violation> {
        let mut world = World::new(self.topology());
        world.run_until(Instant(warm_up_ns))?;
        let before = Total::of(&world, self.senders.len());
        world.run_for(measured_ns)?;
        let after = Total::of(&world, self.senders.len());
        let pairs = after.received.iter().zip(&before.received);
        let mut counters = Counters::default();
        for machine in 1..=self.senders.len() {
            if let Some(of_one) = world.switch(machine).vcc().counters(EndpointId(0)) {
                counters.reductions += of_one.reductions;
                counters.lowered += of_one.lowered;
                counters.held += of_one.held;
                counters.policed += of_one.policed;
            }
        }
        Ok(Seen {
            ns: measured_ns,
            payload: pairs.map(|(after, before)| after.bytes - before.bytes).collect(),
            retransmits: after.retransmits - before.retransmits,
            timeouts: after.timeouts - before.timeouts,
            wire_bytes: after.link.bytes - before.link.bytes,
            lost: lost(&after.link) - lost(&before.link),
            backlog_max_bytes: after.link.backlog_max_bytes,
            counters,
        })
    }

    fn host(guest: Guest) -> HostSpec {
        HostSpec {
            tenant: guest as u16 + 1,
            nic: Nic::PLAIN,
            times_syn: true,
            without_ecn: guest != Guest::Native,
            ..HostSpec::default()
        }
    }

    /// Hosts 0, 1 and 2 receive, by kind; host 3 + n is sender n's.
    fn topology(&self) -> Topology {
        let mut topology = Topology { seed: self.seed, ..Topology::default() };
        topology.hosts.extend(Guest::ALL.map(Self::host));
        topology
            .hosts
            .extend(self.senders.iter().map(|sender| HostSpec { cheat: sender.cheat, ..Self::host(sender.guest) }));
        let link = LinkConfig { rate: self.rate, delay_ns: self.delay_ns, queue_bytes: WIDE, ..LinkConfig::default() };
        let (discipline, queue_bytes) = self.queue;
        topology.links.push(LinkConfig { discipline, queue_bytes, ..link });
        topology.links.extend(self.senders.iter().map(|_| link));
        let mut ports = Vec::new();
        for machine in 0..=self.senders.len() {
            let guests: Vec<(Guest, usize)> = match machine.checked_sub(1) {
                None => Guest::ALL.into_iter().enumerate().map(|(host, guest)| (guest, host)).collect(),
                Some(sender) => vec![(self.senders[sender].guest, 3 + sender)],
            };
            topology.switches.push(self.program(&topology, &guests));
            for (port, &(_, host)) in guests.iter().enumerate() {
                topology.cables.push((Plug::Host(host), Plug::Switch(machine, PortId(port as u32))));
            }
            let uplink = PortId(guests.len() as u32);
            topology.cables.push((Plug::Switch(machine, uplink), Plug::Link(machine, Side::A)));
            topology.cables.push((Plug::Link(machine, Side::B), Plug::Fabric(0, machine)));
            ports.push(guests.iter().map(|&(_, host)| topology.address(host).mac).collect());
        }
        topology.fabrics.push(FabricConfig { ports, latency_ns: self.rate.time_ns(FULL_FRAME) });
        for (number, sender) in self.senders.iter().enumerate() {
            let traffic = Traffic::Tcp {
                algorithm: sender.algorithm,
                ecn: sender.guest == Guest::Native,
                bytes: None,
                again_after_ns: None,
                pace: None,
            };
            let start_ns = self.begin_ns * number as u64 / self.senders.len() as u64;
            topology.flows.push(FlowSpec { start_ns, ..FlowSpec::new(3 + number, sender.guest as usize, traffic) });
        }
        topology
    }

    fn program(&self, topology: &Topology, guests: &[(Guest, usize)]) -> Program {
        let tenant = |guest: Guest| {
            let vcc = match guest {
                Guest::Native => self.of_natives,
                Guest::Legacy => Settings::default(),
                Guest::Virtual => self.service,
            };
            Tenant { attachment: Attachment::Vlan(10 * (guest as u16 + 1)), vcc, ..Tenant::default() }
        };
        let endpoint = |(port, &(guest, host)): (usize, &(Guest, usize))| {
            let address = topology.address(host);
            let identity = Identity { macs: vec![address.mac], ipv4: vec![(address.ip, 32)], ..Identity::default() };
            Endpoint { identity, ..Endpoint::new(TenantId(guest as u32), PortId(port as u32)) }
        };
        let rate = self.rate.scaled(10, 1);
        Program {
            order: OrderKind::Fair,
            ingress: IngressMode::Queue,
            uplink: Some(Uplink::new(PortId(guests.len() as u32), Both { egress: rate, ingress: rate })),
            tenants: Guest::ALL.map(tenant).to_vec().into(),
            endpoints: guests.iter().enumerate().map(endpoint).collect(),
            ports: vec![PortFeatures::default(); guests.len() + 1].into(),
            fdb_age_ns: 300_000_000_000,
            ..Program::default()
        }
    }
}

struct Total {
    received: Vec<FlowStats>,
    retransmits: u64,
    timeouts: u64,
    link: LinkStats,
}

impl Total {
    fn of(world: &World, senders: usize) -> Total {
        let sent: Vec<_> = (0..senders).map(|flow| world.sent(flow).sender).collect();
        Total {
            received: (0..senders).map(|flow| world.received(flow)).collect(),
            retransmits: sent.iter().map(|sender| sender.retransmits).sum(),
            timeouts: sent.iter().map(|sender| sender.timeouts).sum(),
            link: world.link(0, Side::B),
        }
    }
}

fn lost(link: &LinkStats) -> u64 {
    link.queue.stats.dropped.total() + link.queue.stats.overflowed.total()
}
