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
use crate::packet::Nic;
use crate::tcp::Cheat;
use crate::tcp::congestion::Algorithm;
use crate::topology::{FlowSpec, HostSpec, Plug, Topology, Traffic};
use crate::world::{Violation, World};

/// A full frame on the wire, in bytes.
const FULL_FRAME: u64 = 1538;
/// Queues that are no bottleneck, in bytes.
const WIDE: u32 = 1 << 30;
/// How often a sender that begins connections anew looks whether the last has ended, in
/// nanoseconds.
const LOOK_NS: u64 = 200_000;

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
    /// Bytes of a connection, behind which it begins another on other ports; none is one connection
    /// without end.
    pub each: Option<u64>,
}

impl Sender {
    /// One connection without end, of a sender that keeps to the rules.
    #[must_use]
    pub const fn honest(guest: Guest, algorithm: Algorithm) -> Sender {
        Sender { guest, algorithm, cheat: Cheat::None, each: None }
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
    /// One flow each, at a time.
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
        let flows = self.flows(warm_up_ns + measured_ns);
        let mut world = World::new(self.topology(&flows));
        let mut open = vec![0; flows.len()];
        self.run_until(&mut world, Instant(warm_up_ns), &flows, &mut open)?;
        let before = Total::of(&world, &flows);
        self.run_until(&mut world, Instant(warm_up_ns + measured_ns), &flows, &mut open)?;
        let after = Total::of(&world, &flows);
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
            payload: pairs.map(|(after, before)| after - before).collect(),
            retransmits: after.retransmits - before.retransmits,
            timeouts: after.timeouts - before.timeouts,
            wire_bytes: after.link.bytes - before.link.bytes,
            lost: lost(&after.link) - lost(&before.link),
            backlog_max_bytes: after.link.backlog_max_bytes,
            counters,
        })
    }

    /// By sender, its flows in a run of so many nanoseconds, in their order: as many as the link
    /// carries in that time. The first ones of all come before all others.
    fn flows(&self, ns: u64) -> Vec<Vec<usize>> {
        let carried = self.rate.bytes_in(ns);
        let mut next = self.senders.len();
        let of_one = |(first, sender): (usize, &Sender)| -> Vec<usize> {
            let more = sender.each.map_or(0, |bytes| carried / bytes.max(1) + 1) as usize;
            next += more;
            std::iter::once(first).chain(next - more..next).collect()
        };
        self.senders.iter().enumerate().map(of_one).collect()
    }

    /// Runs on; `open` is which of its flows each sender has come to.
    fn run_until(
        &self,
        world: &mut World,
        until: Instant,
        flows: &[Vec<usize>],
        open: &mut [usize],
    ) -> Result<(), Violation> {
        let is_steady = self.senders.iter().all(|sender| sender.each.is_none());
        while world.now() < until {
            let look = if is_steady { until } else { until.min(world.now().plus_ns(LOOK_NS)) };
            world.run_until(look)?;
            for ((sender, flows), open) in self.senders.iter().zip(flows).zip(open.iter_mut()) {
                let has_ended = sender.each.is_some_and(|bytes| world.received(flows[*open]).bytes >= bytes);
                if has_ended && let Some(&next) = flows.get(*open + 1) {
                    world.start(next);
                    *open += 1;
                }
            }
        }
        Ok(())
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
    fn topology(&self, flows: &[Vec<usize>]) -> Topology {
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
        let flow = |number: usize, start_ns: u64| {
            let sender = &self.senders[number];
            let traffic = Traffic::Tcp {
                algorithm: sender.algorithm,
                ecn: sender.guest == Guest::Native,
                bytes: sender.each,
                again_after_ns: None,
                pace: None,
            };
            FlowSpec { start_ns, ..FlowSpec::new(3 + number, sender.guest as usize, traffic) }
        };
        let starts = |number: usize| self.begin_ns * number as u64 / self.senders.len() as u64;
        topology.flows.extend((0..self.senders.len()).map(|number| flow(number, starts(number))));
        for (number, flows) in flows.iter().enumerate() {
            // Begun when the one before has ended.
            topology.flows.extend(flows[1..].iter().map(|_| flow(number, u64::MAX)));
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
    /// By sender, in bytes.
    received: Vec<u64>,
    retransmits: u64,
    timeouts: u64,
    link: LinkStats,
}

impl Total {
    fn of(world: &World, flows: &[Vec<usize>]) -> Total {
        let sent: Vec<_> = flows.iter().flatten().map(|&flow| world.sent(flow).sender).collect();
        let received = |flows: &Vec<usize>| flows.iter().map(|&flow| world.received(flow).bytes).sum();
        Total {
            received: flows.iter().map(received).collect(),
            retransmits: sent.iter().map(|sender| sender.retransmits).sum(),
            timeouts: sent.iter().map(|sender| sender.timeouts).sum(),
            link: world.link(0, Side::B),
        }
    }
}

fn lost(link: &LinkStats) -> u64 {
    link.queue.stats.dropped.total() + link.queue.stats.overflowed.total()
}
