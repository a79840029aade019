//! Fabric: the network's switch between several machines.
//!
//! It forwards by destination address. The queue on each of its output ports is that of the link
//! behind the port, whose size, discipline and rate are the link's. What it has no port for is
//! lost; it floods nothing.
//!
//! Every frame takes a random time to get through, up to [`FabricConfig::latency_ns`], without
//! overtaking another from its port. Without that, senders of the same rate stay in step for ever,
//! and a full queue always finds room for the same of them and never for the others (Floyd and
//! Jacobson, "On traffic phase effects in packet-switched gateways", 1991, whose remedy this is).

use std::collections::BTreeMap;

use datapath::frame::{Frame, Pool};
use datapath::link::Side;
use datapath::program::PortId;
use datapath::units::Instant;
use datapath::wire::Mac;

use crate::random::Random;

/// An end of a cable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Plug {
    /// A host's NIC.
    Host(usize),
    /// A switch's port.
    Switch(usize, PortId),
    /// A link's end.
    Link(usize, Side),
    /// A fabric's port.
    Fabric(usize, usize),
}

/// What a fabric is like.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FabricConfig {
    /// For each port, the addresses behind it.
    pub ports: Vec<Vec<Mac>>,
    /// The most that a frame takes to get through, in nanoseconds: the time of a full frame on the
    /// wire is enough.
    pub latency_ns: u64,
}

/// A switch of the network.
#[derive(Debug)]
pub struct Fabric {
    latency_ns: u64,
    random: Random,
    ports: Vec<Port>,
    by_address: BTreeMap<Mac, usize>,
    /// What is under way, by when it is through and a number that keeps the order, with the port
    /// that it leaves by.
    under_way: BTreeMap<(Instant, u64), (usize, Frame)>,
    number: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Port {
    peer: Option<Plug>,
    /// When the last frame that came by this port is through.
    last: Instant,
}

impl Fabric {
    /// A fabric with nothing plugged in.
    #[must_use]
    pub fn new(config: &FabricConfig, random: Random) -> Self {
        let behind = config.ports.iter().enumerate().flat_map(|(port, macs)| macs.iter().map(move |&mac| (mac, port)));
        Fabric {
            latency_ns: config.latency_ns,
            random,
            ports: vec![Port::default(); config.ports.len()],
            by_address: behind.collect(),
            under_way: BTreeMap::new(),
            number: 0,
        }
    }

    /// What is plugged into a port.
    pub fn peer_mut(&mut self, port: usize) -> &mut Option<Plug> {
        &mut self.ports[port].peer
    }

    /// Frames that are under way.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.under_way.len()
    }

    /// A frame comes in by a port.
    pub fn rx(&mut self, pool: &mut Pool, now: Instant, port: usize, frame: Frame) {
        let to = pool.bytes(&frame).first_chunk::<6>().map(|&mac| Mac(mac));
        let Some(&out) = to.and_then(|to| self.by_address.get(&to)) else {
            pool.free(frame);
            return;
        };
        let through = now.plus_ns(self.random.range(0, self.latency_ns));
        let through = through.max(self.ports[port].last);
        self.ports[port].last = through;
        self.number += 1;
        self.under_way.insert((through, self.number), (out, frame));
    }

    /// The next frame that is through, and what it reaches.
    pub fn poll(&mut self, now: Instant) -> Option<(Option<Plug>, Frame)> {
        let at = self.deadline().filter(|&at| at <= now);
        let (_, (out, frame)) = at.and_then(|_| self.under_way.pop_first())?;
        Some((self.ports[out].peer, frame))
    }

    /// When `poll` will have something.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.under_way.first_key_value().map(|(&(at, _), _)| at)
    }
}
