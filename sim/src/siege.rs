//! Siege: a switch whose worker has to earn its time, a tenant with a promise, and all attackers
//! around it.
//!
//! ```text
//! victim, thief, claimer (untagged) \
//! a crowd (VLAN 10)                  > [ switch 0, with a worker ] ===== [ switch 1, fast ] - the victim's peer, a stranger in VLAN 10
//! hoarders (VLAN 11, limited)       /
//! ```

use datapath::frame::PoolLimits;
use datapath::guard::Identity;
use datapath::link::{LinkConfig, Side};
use datapath::offload::OffloadSupport;
use datapath::program::{Attachment, Endpoint, PortFeatures, PortId, Program, Share, Slots, Tenant, TenantId, Uplink};
use datapath::units::Rate;

use crate::attack::Kind;
use crate::packet::Nic;
use crate::site::both;
use crate::tcp::congestion::Algorithm;
use crate::topology::{FlowSpec, HostSpec, Plug, Topology, Traffic};
use crate::worker::WorkerSpec;

/// The link.
pub const RATE: Rate = Rate(Rate::GBIT);
/// What the victim is promised of it.
pub const GUARANTEE: Rate = Rate(Rate::GBIT / 2);
/// What it sends by TCP.
pub const PACE: Rate = Rate(400_000_000);
/// Between two of its pings, and between two that ask for it from outside, in nanoseconds.
pub const PING_NS: u64 = 10_000_000;
/// The hoarders' limit, together.
const HOARD_LIMIT: Rate = Rate(1_000_000);
/// Members of the crowd beside its leader, and how many of them send to each other.
const CROWD: usize = 101;
const BUSY: usize = 40;
/// Hoarders.
const HOARDERS: usize = 300;
/// One way, in nanoseconds.
const DELAY_NS: u64 = 50_000;
/// Bound of an endpoint's queue in each direction, in bytes: the configuration's default.
const QUEUE_BYTES: u32 = 1 << 20;
/// Copies of what an endpoint floods, and of what all of a tenant's flood, in wire bits a second:
/// the configuration's defaults.
const FLOOD_RATE: Rate = Rate(50_000_000);
const TENANT_FLOOD_RATE: Rate = Rate(4 * FLOOD_RATE.0);
/// Bound of queues at the far switch, where nothing waits for long.
const FAR_QUEUE_BYTES: u32 = 16 << 20;
/// As bridges do by default (IEEE 802.1Q table 8-6).
const FDB_AGE_NS: u64 = 300_000_000_000;

/// Hosts, by their place in the topology: the victim, two who share its network, the crowd, the
/// hoarders; and outside.
pub const VICTIM: usize = 0;
const THIEF: usize = 1;
const CLAIMER: usize = 2;
const LEADER: usize = 3;
/// Its port has no offloads.
const PLAIN: usize = 4;
const HOARD: usize = LEADER + 1 + CROWD;
const NEAR: usize = HOARD + HOARDERS;
/// The victim's peer, and a stranger in the crowd's network.
pub const PEER: usize = NEAR;
const STRANGER: usize = NEAR + 1;

/// An attack.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// What it is called.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    flows: fn() -> Vec<FlowSpec>,
}

/// A flood from outside that is more than can be read. The uplink is an interface then.
pub const DELUGE: Attack = Attack {
    name: "deluge",
    about: "the same, 900 000/s, where the uplink is an interface",
    flows: || vec![attack(STRANGER, LEADER, Kind::Shortest, 900_000)],
};

/// Every other attack.
pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "crumbs",
        about: "64 KiB in segments of 32 bytes, 5000/s, toward a port without offloads",
        flows: || vec![attack(LEADER, PLAIN, Kind::Crumbs(32), 5_000)],
    },
    Attack {
        name: "slices",
        about: "64 KiB in segments of 1400 bytes, 20 000/s, toward a port without offloads",
        flows: || vec![attack(LEADER, PLAIN, Kind::Crumbs(1400), 20_000)],
    },
    Attack {
        name: "copies",
        about: "64 KiB to a group of 101 members, 1000/s",
        flows: || vec![attack(LEADER, PLAIN, Kind::Group, 1_000)],
    },
    Attack {
        name: "hoard-long",
        about: "300 endpoints that share 1 Mbit/s queue 17 KB frames for the uplink, 20/s each",
        flows: || hoard(Kind::Outward(17_000), 20),
    },
    Attack {
        name: "hoard-short",
        about: "the same with 60-byte frames, 100/s each",
        flows: || hoard(Kind::Outward(18), 100),
    },
    Attack {
        name: "crowd",
        about: "40 ports send each other 60-byte frames, 600 000/s in all",
        flows: || {
            let port = |member: usize| LEADER + 1 + member;
            (0..BUSY).map(|m| attack(port(m), port(m ^ 1), Kind::Shortest, 600_000 / BUSY as u32)).collect()
        },
    },
    Attack {
        name: "mac-theft",
        about: "frames from the MAC address of the victim's peer, 100/s, by an endpoint that declares none",
        flows: || vec![attack(THIEF, PEER, Kind::MacTheft, 100)],
    },
    Attack {
        name: "ll-theft",
        about: "neighbour advertisements that claim the peer's link-local address, 100/s",
        flows: || vec![attack(CLAIMER, PEER, Kind::LinkLocalTheft, 100)],
    },
    Attack {
        name: "storm",
        about: "60-byte broadcasts from outside in the crowd's VLAN, 50 000/s",
        flows: || vec![attack(STRANGER, LEADER, Kind::Broadcast, 50_000)],
    },
    Attack {
        name: "from-outside",
        about: "60-byte frames from outside for one of the crowd, 350 000/s",
        flows: || vec![attack(STRANGER, LEADER, Kind::Shortest, 350_000)],
    },
    Attack {
        name: "forged",
        about: "control protocols, spoofed and malformed frames, 2000/s each",
        flows: || vec![attack(CLAIMER, PEER, Kind::Control, 2_000), attack(CLAIMER, VICTIM, Kind::Any, 2_000)],
    },
];

/// Flows of the victim, by their place in the topology.
pub const TCP: usize = 0;
/// Its pings.
pub const PING: usize = 1;
/// Pings from outside for it, to everybody: as who asks by ARP where it is.
pub const ASK: usize = 2;

/// The network under some attacks at once, with a victim that has such a NIC.
#[must_use]
pub fn topology(seed: u64, nic: Nic, attacks: &[Attack]) -> Topology {
    // What waits in the rings of all ports is the kernel's memory, and not bounded by the daemon's.
    let pool = PoolLimits { small: 1 << 18, medium: 1 << 15, large: 1 << 15 };
    let mut topology = Topology { seed, pool, ..Topology::default() };
    for host in 0..=STRANGER {
        topology.hosts.push(HostSpec { tenant: network(host), ..HostSpec::default() });
    }
    topology.hosts[VICTIM].nic = nic;
    topology.links.push(LinkConfig { rate: RATE, delay_ns: DELAY_NS, ..LinkConfig::default() });
    topology.switches = vec![near(&topology), far(&topology)];
    let by_interface = attacks.iter().any(|attack| attack.name == DELUGE.name);
    topology.workers = vec![Some(WorkerSpec { by_interface, ..WorkerSpec::default() }), None];
    for host in 0..=STRANGER {
        let (switch, port) = if host < NEAR { (0, host) } else { (1, host - NEAR) };
        topology.cables.push((Plug::Host(host), Plug::Switch(switch, PortId(port as u32))));
    }
    for (switch, side) in Side::ALL.into_iter().enumerate() {
        let uplink = topology.switches[switch].uplink.as_ref().map(|uplink| uplink.port());
        topology.cables.extend(uplink.map(|port| (Plug::Switch(switch, port), Plug::Link(0, side))));
    }
    let tcp =
        Traffic::Tcp { algorithm: Algorithm::Cubic, ecn: false, bytes: None, again_after_ns: None, pace: Some(PACE) };
    topology.flows = vec![
        FlowSpec::new(VICTIM, PEER, tcp),
        FlowSpec::new(VICTIM, PEER, Traffic::Ping { every_ns: PING_NS }),
        FlowSpec::new(PEER, VICTIM, Traffic::Ask { every_ns: PING_NS }),
        attack(PEER, VICTIM, Kind::Announcement, 10),
    ];
    topology.flows.extend(attacks.iter().flat_map(|attack| (attack.flows)()));
    topology
}

/// Attacks begin when the victim is at work.
const BEGIN_NS: u64 = 50_000_000;

fn attack(from: usize, to: usize, kind: Kind, per_second: u32) -> FlowSpec {
    let start_ns = if kind == Kind::Announcement { 0 } else { BEGIN_NS };
    FlowSpec { start_ns, ..FlowSpec::new(from, to, Traffic::Attack { per_second, kind }) }
}

fn hoard(kind: Kind, per_second: u32) -> Vec<FlowSpec> {
    (HOARD..HOARD + HOARDERS).map(|host| attack(host, STRANGER, kind, per_second)).collect()
}

/// The number of the network that a host is in.
fn network(host: usize) -> u16 {
    match host {
        VICTIM..LEADER | PEER => 1,
        LEADER..HOARD | STRANGER => 2,
        _ => 3,
    }
}

/// The switch under attack.
fn near(topology: &Topology) -> Program {
    let share = |guarantee, limit| both(Share { guarantee, limit, weight: 1 });
    let open = share(Rate(0), Rate::UNLIMITED);
    let tenant = |attachment, share| Tenant { attachment, share, flood_rate: TENANT_FLOOD_RATE, ..Tenant::default() };
    let of = |host| match host {
        VICTIM => 0,
        THIEF | CLAIMER => 1,
        LEADER..HOARD => 2,
        _ => 3,
    };
    let mut program = program(topology, 0..NEAR, of, QUEUE_BYTES, RATE);
    program.tenants = vec![
        tenant(Attachment::Untagged, share(GUARANTEE, Rate::UNLIMITED)),
        tenant(Attachment::Untagged, open),
        tenant(Attachment::Vlan(10), open),
        tenant(Attachment::Vlan(11), share(Rate(0), HOARD_LIMIT)),
    ]
    .into();
    let port = |host: usize| PortId(host as u32).0;
    if let Some(thief) = program.endpoints.get_mut(port(THIEF)) {
        thief.identity = Identity::default();
    }
    program.ports.set(port(PLAIN), Some(PortFeatures { offload: OffloadSupport::NONE, ..PortFeatures::default() }));
    program
}

/// The switch outside, fast and without promises.
fn far(topology: &Topology) -> Program {
    let mut program =
        program(topology, NEAR..NEAR + 2, |host| (host - NEAR) as u32, FAR_QUEUE_BYTES, RATE.scaled(10, 1));
    let open = |attachment| Tenant { attachment, ..Tenant::default() };
    program.tenants = vec![open(Attachment::Untagged), open(Attachment::Vlan(10))].into();
    program
}

/// Endpoints for `hosts` with their addresses, behind them the uplink.
fn program(
    topology: &Topology,
    hosts: core::ops::Range<usize>,
    tenant: impl Fn(usize) -> u32,
    queue_bytes: u32,
    rate: Rate,
) -> Program {
    let is_far = queue_bytes == FAR_QUEUE_BYTES;
    let endpoint = |host: usize| {
        let address = topology.address(host);
        Endpoint {
            identity: Identity { macs: vec![address.mac], ipv4: vec![(address.ip, 32)], ..Identity::default() },
            queue_bytes,
            flood_per_second: if is_far { u32::MAX } else { 1000 },
            flood_rate: if is_far { Rate::UNLIMITED } else { FLOOD_RATE },
            max_learned: 1024,
            ..Endpoint::new(TenantId(tenant(host)), PortId((host - hosts.start) as u32))
        }
    };
    let endpoints: Slots<Endpoint> = hosts.clone().map(endpoint).collect();
    let ports = vec![PortFeatures::default(); hosts.len() + 1];
    Program {
        uplink: Some(Uplink { headroom_ppm: 20_000, ..Uplink::new(PortId(hosts.len() as u32), both(rate)) }),
        endpoints,
        ports: ports.into(),
        fdb_age_ns: FDB_AGE_NS,
        ..Program::default()
    }
}
