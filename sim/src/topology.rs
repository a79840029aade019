//! Topology: what a simulated network consists of, as plain data.

use core::net::Ipv4Addr;
use std::sync::Arc;

use agent::{Directory, Settings};
use datapath::bond::MemberId;
use datapath::frame::PoolLimits;
use datapath::link::{LinkConfig, Side};
use datapath::program::{Change, Program};
use datapath::units::Rate;
use datapath::wire::Mac;

pub use crate::fabric::Plug;

use crate::attack::Kind;
use crate::fabric::FabricConfig;
use crate::mail::MailConfig;
use crate::packet::{Address, Nic};
use crate::tcp::Cheat;
use crate::tcp::congestion::Algorithm;
use crate::tcp::receiver::AckPolicy;
use crate::worker::WorkerSpec;

/// A host: one endpoint's machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostSpec {
    /// Its tenant, which is part of its address and of every stamp it sends.
    pub tenant: u16,
    /// What its NIC can do.
    pub nic: Nic,
    /// When its TCP acknowledges.
    pub acks: AckPolicy,
    /// Its TCP knows nothing of ECN; otherwise it agrees where it is asked.
    pub without_ecn: bool,
    /// Its TCP's first sample of a round trip is the handshake's, as Linux's. Without it the first
    /// timeout is a second.
    pub times_syn: bool,
    /// Where its connections have ECN, all its packets are capable: SYN, acknowledgements and
    /// retransmissions too (draft-ietf-tcpm-generalized-ecn). Linux's DCTCP is so anyway.
    pub all_capable: bool,
    /// What its TCP does not keep to.
    pub cheat: Cheat,
}

/// What a flow sends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Traffic {
    /// TCP.
    Tcp {
        /// Congestion control.
        algorithm: Algorithm,
        /// Whether it asks for ECN.
        ecn: bool,
        /// Bytes of each connection; none is without end.
        bytes: Option<u64>,
        /// Where connections have an end: pause before the next one, in nanoseconds. None: there is
        /// no next one.
        again_after_ns: Option<u64>,
        /// Payload that the application writes a second; none is as much as the connection takes.
        pace: Option<Rate>,
    },
    /// UDP at a constant rate.
    Udp {
        /// Wire bits a second while it sends.
        rate: Rate,
        /// Bytes of each frame, Ethernet header included.
        frame: u32,
        /// Frames handed over as one offloaded train.
        train: u32,
        /// How long it sends and how long it pauses, in nanoseconds; no pause where the second is
        /// zero.
        on_off_ns: (u64, u64),
    },
    /// Requests of 98 bytes that the other side answers, as ping does.
    Ping {
        /// Between requests, in nanoseconds.
        every_ns: u64,
    },
    /// The same, with requests to everybody: who does not know yet where a neighbour is asks like
    /// this.
    Ask {
        /// Between requests, in nanoseconds.
        every_ns: u64,
    },
    /// Frames that no honest host sends.
    Attack {
        /// Frames a second.
        per_second: u32,
        /// What they are.
        kind: Kind,
    },
}

impl Traffic {
    /// An endless TCP connection without ECN.
    #[must_use]
    pub fn tcp(algorithm: Algorithm) -> Traffic {
        Traffic::Tcp { algorithm, ecn: false, bytes: None, again_after_ns: None, pace: None }
    }

    /// UDP without pauses.
    #[must_use]
    pub fn udp(rate: Rate, frame: u32) -> Traffic {
        Traffic::Udp { rate, frame, train: 1, on_off_ns: (0, 0) }
    }
}

/// One connection, or one stream of datagrams.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowSpec {
    /// The sending host.
    pub from: usize,
    /// The receiving host.
    pub to: usize,
    /// When it starts, in nanoseconds.
    pub start_ns: u64,
    /// When it stops, in nanoseconds. A TCP connection that is open finishes what it has in flight.
    pub stop_ns: u64,
    /// What it sends.
    pub traffic: Traffic,
}

impl FlowSpec {
    /// A flow over the whole run.
    #[must_use]
    pub fn new(from: usize, to: usize, traffic: Traffic) -> FlowSpec {
        FlowSpec { from, to, start_ns: 0, stop_ns: u64::MAX, traffic }
    }
}

/// Something that goes wrong. Damage on the wire is loss, since the FCS finds it; malformed frames
/// are what hosts send ([`Traffic::Attack`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A link loses segments at random, in millionths.
    Loss {
        /// Which link.
        link: usize,
        /// How many, in millionths; a million is a cable pulled out.
        ppm: u32,
    },
    /// Nothing of what a side of a link sends arrives from now on, what is under way included; or
    /// all does again. Nobody is told.
    Cut {
        /// Which link.
        link: usize,
        /// Who sends.
        from: Side,
        /// Whether it is so.
        is_silent: bool,
    },
    /// A link changes its rate.
    Rate {
        /// Which link.
        link: usize,
        /// To what.
        rate: Rate,
    },
    /// A host does nothing for a while: it neither reads nor sends.
    Stall {
        /// Which host.
        host: usize,
        /// For how long, in nanoseconds.
        for_ns: u64,
    },
    /// A switch's loop is not run for a while; frames for it wait at its ports.
    Lag {
        /// Which switch.
        switch: usize,
        /// For how long, in nanoseconds.
        for_ns: u64,
    },
    /// The link of a member of a switch's bond is up from now on, or has lost its carrier.
    Member {
        /// Which switch.
        switch: usize,
        /// Which member.
        member: MemberId,
        /// Whether it is up.
        is_up: bool,
    },
    /// The process of a switch is killed, and begins anew after a while, its members' links being
    /// as they are. It knows nothing of what was, and what comes meanwhile is lost.
    Kill {
        /// Which switch.
        switch: usize,
        /// For how long there is none, in nanoseconds.
        away_ns: u64,
    },
    /// The process of a switch gives way to another, which goes on where it was.
    Takeover {
        /// Which switch.
        switch: usize,
        /// How long nobody works, in nanoseconds.
        away_ns: u64,
    },
    /// Somebody changes a switch while it runs. A change that does not fit is refused, and nothing
    /// happens.
    Change {
        /// Which switch.
        switch: usize,
        /// What.
        change: Change,
    },
    /// The way between agents is another from now on.
    Mail {
        /// What it is like.
        config: MailConfig,
    },
    /// The agents of some switches and those of all others hear nothing of each other; of none, and
    /// it is over.
    Partition {
        /// The switches.
        apart: Vec<usize>,
    },
    /// A switch's agent is killed and starts anew. What the switch was told to limit stays.
    AgentRestart {
        /// Which switch.
        switch: usize,
    },
    /// The clock that a switch's agent reads jumps, as when its machine was suspended.
    ClockStep {
        /// Which switch.
        switch: usize,
        /// How far, in nanoseconds.
        ahead_ns: u64,
    },
}

/// The agent of a switch.
#[derive(Clone, Debug)]
pub struct AgentSpec {
    /// What it is told.
    pub settings: Settings,
    /// The name of every switch's host.
    pub names: Arc<[Arc<str>]>,
    /// Its own switch, among them.
    pub place: usize,
    /// What it knows of the others.
    pub directory: Directory,
    /// What its clock shows at the start, in nanoseconds.
    pub ahead_ns: u64,
}

/// A network and what happens in it.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Seed of all randomness.
    pub seed: u64,
    /// Hosts.
    pub hosts: Vec<HostSpec>,
    /// Switches.
    pub switches: Vec<Program>,
    /// Their agents, as many as switches; or none at all.
    pub agents: Vec<Option<AgentSpec>>,
    /// Their workers, as many as switches; or none at all, and none's time is bounded.
    pub workers: Vec<Option<WorkerSpec>>,
    /// The way between agents.
    pub mail: MailConfig,
    /// Links.
    pub links: Vec<LinkConfig>,
    /// Fabrics.
    pub fabrics: Vec<FabricConfig>,
    /// What is plugged into what. Each end once; a switch's port or a link's end may stay open, and
    /// what is sent there is lost.
    pub cables: Vec<(Plug, Plug)>,
    /// Flows.
    pub flows: Vec<FlowSpec>,
    /// Faults with their times in nanoseconds.
    pub faults: Vec<(u64, Fault)>,
    /// Bound of the frames' memory.
    pub pool: PoolLimits,
}

impl Default for Topology {
    fn default() -> Self {
        Topology {
            seed: 1,
            hosts: Vec::new(),
            switches: Vec::new(),
            agents: Vec::new(),
            workers: Vec::new(),
            mail: MailConfig::default(),
            links: Vec::new(),
            fabrics: Vec::new(),
            cables: Vec::new(),
            flows: Vec::new(),
            faults: Vec::new(),
            pool: PoolLimits { small: 1 << 17, medium: 1 << 14, large: 1 << 13 },
        }
    }
}

impl Topology {
    /// The address of a host: its tenant and number stand in the MAC address. IP addresses are the
    /// same in every tenant on purpose, as far as two tenants have hosts with the same place among
    /// their own.
    #[must_use]
    pub fn address(&self, host: usize) -> Address {
        let tenant = self.hosts[host].tenant;
        let place = self.hosts[..host].iter().filter(|spec| spec.tenant == tenant).count() as u16 + 1;
        let ([t0, t1], [h0, h1]) = (tenant.to_be_bytes(), (host as u16).to_be_bytes());
        let [p0, p1] = place.to_be_bytes();
        Address { mac: Mac([2, 0, t0, t1, h0, h1]), ip: Ipv4Addr::new(10, 0, p0, p1) }
    }

    /// The UDP or TCP port of a flow, at both ends.
    #[must_use]
    pub fn port(flow: usize) -> u16 {
        1024 + flow as u16
    }
}

/// The tenant in a MAC address made by [`Topology::address`].
#[must_use]
pub fn tenant_of(mac: Mac) -> u16 {
    u16::from_be_bytes([mac.0[2], mac.0[3]])
}
