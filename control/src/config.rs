//! The configuration as plain data: what an operator asks for, with every default filled in but
//! those that depend on other values.
//!
//! The same types whichever way it came (a file now). Rates are wire bits a second; see `units` for
//! how they are written.

mod bond;
mod cluster;
pub mod openflow;
mod service;

pub use crate::names::EtcdUrl;
use crate::names::{Locator, name};
use datapath::aqm::Discipline;
use datapath::encap::vxlan;
use datapath::guard::Identity;
use datapath::program::{Attachment, IngressMode, OrderKind, Outside};
use datapath::units::{Both, Rate};
use datapath::vcc;
use datapath::wire::Mac;
use std::net::IpAddr;

pub use bond::{Bond, BondMember, MAX_BOND_TIME_NS, MAX_HOLD_NS, MIN_HOLD_NS};
pub use cluster::{Cluster, DEFAULT_DIRECTORY, DEFAULT_PREFIX, Etcd, Member, Remote, RemoteService};
pub use service::{Backend, DEFAULT_REPORT_PERIOD_NS, MAX_BACKEND_WEIGHT, Names, Service};

/// Ethernet's usual MTU, in bytes (RFC 894).
pub const DEFAULT_MTU: u32 = 1500;
/// Smallest MTU, in bytes: every IPv4 host's (RFC 791).
pub const MIN_MTU: u32 = 68;
/// Largest MTU of a tap device, in bytes: 65535 less an Ethernet header (`MAX_MTU` in
/// drivers/net/tun.c).
pub const MAX_MTU: u32 = 65_521;
/// Weight where none is given.
pub const DEFAULT_WEIGHT: u32 = 1;
/// Largest weight: what the scheduler's virtual time is exact for.
pub const MAX_WEIGHT: u32 = 65_535;
/// Part of the ingress rate held back where none is given, in millionths: enough to drain the
/// network's queue, less than half of what Gatekeeper gives up.
pub const DEFAULT_HEADROOM_PPM: u32 = 20_000;
/// Most headroom, in per cent.
pub const MAX_HEADROOM_PERCENT: u64 = 50;
/// Bound of an endpoint's queue where none is given, in bytes of buffer memory: eight ms at 1
/// Gbit/s, far above the sojourn target.
pub const DEFAULT_QUEUE_BYTES: u64 = 1 << 20;
/// Least bound of an endpoint's queue, in bytes: one offloaded frame that waits and one that is
/// served.
pub const MIN_QUEUE_BYTES: u64 = 128 << 10;
/// Largest bound of an endpoint's queue, in bytes: what a lane of the scheduler has at most
/// (`datapath/src/sched/lane.rs`).
pub const MAX_QUEUE_BYTES: u64 = 1 << 29;
/// After how many seconds a learned address is forgotten (IEEE 802.1Q-2018 table 8-6), in
/// nanoseconds.
pub const DEFAULT_FDB_AGE_NS: u64 = 300 * 1_000_000_000;
/// Flooded frames a second that an endpoint may send where nothing is given: some hundred times
/// what ARP and neighbour discovery need.
pub const DEFAULT_FLOOD: u32 = 1000;
/// The same for a trunk, behind which there are many.
pub const DEFAULT_TRUNK_FLOOD: u32 = 100_000;
/// Copies of what an endpoint floods, in wire bits a second, where nothing is given: in a tenant of
/// 1000 endpoints 74 ARP requests a second (84 bytes each, copied a thousand times), where one in
/// ten seconds is usual.
pub const DEFAULT_FLOOD_RATE: Rate = Rate(50_000_000);
/// The same for a trunk.
pub const DEFAULT_TRUNK_FLOOD_RATE: Rate = Rate(1_000_000_000);
/// How many times the largest of its endpoints' a tenant's is where nothing is given: with 1000
/// endpoints 297 ARP requests a second, three times what is usual.
pub const DEFAULT_TENANT_FLOOD: u64 = 4;
/// Source addresses learned from an endpoint that declares none.
pub const DEFAULT_LEARNED: u32 = 64;
/// The same for a trunk.
pub const DEFAULT_TRUNK_LEARNED: u32 = 8192;
/// Memory for frames where none is given, in bytes: what keeps a daemon with 100 endpoints under 64
/// MiB.
pub const DEFAULT_MEMORY_BYTES: u64 = 48 << 20;
/// Least memory for frames, in bytes: a handful of offloaded frames.
pub const MIN_MEMORY_BYTES: u64 = 4 << 20;
/// Most memory for frames, in bytes.
pub const MAX_MEMORY_BYTES: u64 = 64 << 30;

/// The configuration of one daemon.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Config {
    /// What concerns the process.
    pub daemon: Daemon,
    /// Its switches.
    pub switches: Vec<Switch>,
    /// Links that join switches of this daemon.
    pub links: Vec<Link>,
    /// The other hosts; `None`: this one is alone.
    pub cluster: Option<Cluster>,
}

/// What concerns the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Daemon {
    /// Name of the instance, and of its run directory.
    pub name: String,
    /// Whether the worker polls its ports without ever sleeping: lower latency for a whole core.
    pub spin: bool,
    /// Bound of the memory for frames.
    pub memory_bytes: u64,
    /// The group whose members may look at everything through the control socket; `None`: only the
    /// daemon's user.
    pub socket_group: Option<String>,
    /// UDP address where servers' load reports arrive; `None`: nowhere.
    pub reports: Option<std::net::SocketAddr>,
}

impl Default for Daemon {
    fn default() -> Self {
        let (name, memory_bytes) = (String::new(), DEFAULT_MEMORY_BYTES);
        Daemon { name, spin: false, memory_bytes, socket_group: None, reports: None }
    }
}

/// One switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switch {
    /// Unique in the daemon.
    pub name: String,
    /// In which order queues share the uplink.
    pub order: OrderKind,
    /// What happens to frames from the uplink.
    pub ingress: IngressMode,
    /// Part of the uplink's rate held back on ingress, in millionths; `None` for the default.
    pub headroom_ppm: Option<u32>,
    /// When learned addresses are forgotten.
    pub fdb_age_ns: u64,
    /// Connections to services that are kept at most; `None` for the default.
    pub connections: Option<u32>,
    /// Connections of virtual congestion control that are kept at most; `None` for the default.
    pub flows: Option<u32>,
    /// Whether virtual congestion control tells guests a finer window scale than a coarse one.
    pub rescales: bool,
    /// Whether the kernel may take frames straight to a neighbour, past the switch, where nothing
    /// could hold them back.
    pub shortcut: bool,
    /// The access link.
    pub uplink: Option<Uplink>,
    /// Its tenants.
    pub tenants: Vec<Tenant>,
}

impl Default for Switch {
    fn default() -> Self {
        Switch {
            name: String::new(),
            order: OrderKind::default(),
            ingress: IngressMode::default(),
            headroom_ppm: None,
            fdb_age_ns: DEFAULT_FDB_AGE_NS,
            connections: None,
            flows: None,
            rescales: false,
            shortcut: true,
            uplink: None,
            tenants: Vec::new(),
        }
    }
}

/// The access link of a switch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Uplink {
    /// Its port; of a bond, only the MTU.
    pub device: Device,
    /// Its ports, where it has several.
    pub bond: Option<Bond>,
    /// What it carries.
    pub rate: Both<Rate>,
    /// What it may be sent at once, in nanoseconds at its egress rate; `None` for the default.
    pub burst_ns: Option<u64>,
    /// This host's end of the tunnels to other hosts: an address of the underlay.
    pub vtep: Option<IpAddr>,
    /// Frames a second that are flooded from it in each network; `None` for the default.
    pub flood_per_second: Option<u32>,
    /// Copies of these, in each network; `None` for the default.
    pub flood_rate: Option<Rate>,
    /// The discipline of queues for it, where neither tenant nor endpoint says otherwise.
    pub aqm: Option<Discipline>,
}

/// A port, and how its device is set up where it has one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Where it is; `None` only where the configuration is wrong.
    pub locator: Option<Locator>,
    /// Network namespace that the device is in: a name below /run/netns, or a path. `None` for the
    /// daemon's own.
    pub netns: Option<String>,
    /// Address of the device itself.
    pub mac: Option<Mac>,
    /// Addresses given to the device, with prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Longest packet in bytes.
    pub mtu: u32,
    /// Frames that the device's ring holds; `None` for the kernel's default.
    pub ring: Option<u32>,
    /// Whether the device may speak IPv6, link-local addresses included.
    pub ipv6: bool,
    /// Whether the device outlives the daemon.
    pub persistent: bool,
    /// Of a VDE plug: whether several clients share it.
    pub hub: bool,
    /// Of a VDE directory: the permission bits of its control socket.
    pub mode: Option<u32>,
    /// Of a VDE directory, or of the socket that is made for a virtual machine: its group.
    pub group: Option<String>,
    /// Of a virtual machine: the pairs of rings that it is offered.
    pub queues: u32,
    /// Of a virtual machine: whether the switch makes the socket, and the machine connects to it.
    pub listen: bool,
    /// Of a virtual machine: whether it is offered segmentation and checksums.
    pub offload: bool,
    /// Of a virtual machine: whether its memory must be a file that cannot be cut short.
    pub sealed: bool,
}

impl Default for Device {
    fn default() -> Self {
        Device {
            locator: None,
            netns: None,
            mac: None,
            addresses: Vec::new(),
            mtu: DEFAULT_MTU,
            ring: None,
            ipv6: true,
            persistent: false,
            hub: false,
            mode: None,
            group: None,
            queues: 1,
            listen: false,
            offload: true,
            sealed: true,
        }
    }
}

/// The three knobs in both directions; `None` where nothing is said.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Knobs {
    /// At least.
    pub guarantee: Both<Option<Rate>>,
    /// At most.
    pub limit: Both<Option<Rate>>,
    /// Share of what is left.
    pub weight: Both<Option<u32>>,
}

/// The owner of endpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tenant {
    /// Unique in the switch.
    pub name: String,
    /// Its way to the uplink.
    pub attachment: Attachment,
    /// Addresses in its network that are outside.
    pub outside: Outside,
    /// Its knobs. Without guarantee it has its endpoints' sum.
    pub knobs: Knobs,
    /// The discipline of its endpoints' queues, where they do not say otherwise.
    pub aqm: Option<Discipline>,
    /// Copies of what its endpoints flood together; `None` for the default.
    pub flood_rate: Option<Rate>,
    /// What the switch does for the TCP of its endpoints.
    pub vcc: vcc::Settings,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Addresses that several of them, or machines outside, answer for.
    pub services: Vec<Service>,
}

impl Switch {
    /// Whether several tenants share the network that this one is in.
    #[must_use]
    pub fn shares(&self, tenant: &Tenant) -> bool {
        let untagged = |tenant: &&Tenant| tenant.attachment == Attachment::Untagged;
        untagged(&tenant) && self.tenants.iter().filter(untagged).count() > 1
    }

    /// The endpoint by which this host is in the network that the uplink is in, with the address
    /// `ip`: a device that the switch makes. (The host's own interface is another port,
    /// `host://`.)
    #[must_use]
    pub fn host_at(&self, ip: IpAddr) -> Option<&Endpoint> {
        let untagged = self.tenants.iter().filter(|tenant| tenant.attachment == Attachment::Untagged);
        untagged.flat_map(|tenant| &tenant.endpoints).find(|endpoint| {
            matches!(endpoint.device.locator, Some(Locator::Tap(_) | Locator::Veth(_))) && endpoint.has_address(ip)
        })
    }
}

impl Endpoint {
    /// The IP addresses that are its own: declared by themselves, or given to its device.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.identity.ipv4.iter().filter(|(_, length)| *length == 32).map(|&(ip, _)| IpAddr::V4(ip));
        let v6 = self.identity.ipv6.iter().filter(|(_, length)| *length == 128).map(|&(ip, _)| IpAddr::V6(ip));
        v4.chain(v6).chain(self.device.addresses.iter().map(|&(ip, _)| ip))
    }

    /// Whether an IP address is its own: its device is given it, or it is declared by itself.
    #[must_use]
    pub fn has_address(&self, ip: IpAddr) -> bool {
        let is_declared = match ip {
            IpAddr::V4(v4) => self.identity.ipv4.contains(&(v4, 32)),
            IpAddr::V6(v6) => self.identity.ipv6.contains(&(v6, 128)),
        };
        is_declared || self.device.addresses.iter().any(|&(given, _)| given == ip)
    }

    /// Whether it may use any IP address that is nobody else's. A router's packets are others'.
    pub(crate) fn has_free_ip(&self) -> bool {
        self.identity.any_ip() && !self.identity.allow.router
    }

    /// Whether its addresses would have to be learned, and may not because tenants share its
    /// network.
    #[must_use]
    pub fn is_undeclared(&self) -> bool {
        let is_host = matches!(self.device.locator, Some(Locator::Host(_)));
        self.identity.macs.is_empty() && !is_host && !self.is_director() && !self.identity.allow.learned_addresses
    }
}

impl Uplink {
    /// Bytes that are put around a packet that leaves in a tunnel.
    #[must_use]
    pub fn around(&self) -> u32 {
        let shim = self.bond.as_ref().map_or(0, |bond| bond.settings.shim_bytes());
        self.vtep.map_or(vxlan::OUTER_V4, |vtep| vxlan::outer(&vtep)) as u32 + shim
    }
}

impl Tenant {
    /// The longest packet in bytes that fits through the uplink as it leaves this tenant.
    #[must_use]
    pub fn room(&self, uplink: &Uplink) -> u32 {
        match self.attachment {
            Attachment::Vxlan(_) => uplink.device.mtu.saturating_sub(uplink.around()).max(MIN_MTU),
            _ => uplink.device.mtu,
        }
    }
}

/// The NIC of one virtual machine or container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Unique in the tenant.
    pub name: String,
    /// Its port.
    pub device: Device,
    /// The addresses it may use, and what it may announce.
    pub identity: Identity,
    /// A bridge port.
    pub trunk: bool,
    /// Its knobs.
    pub knobs: Knobs,
    /// Bound of its queue in each direction.
    pub queue_bytes: u64,
    /// What its queues do before they are full; `None` for its tenant's.
    pub aqm: Option<Discipline>,
    /// What the switch does for its TCP; `None` for its tenant's.
    pub vcc: Option<vcc::Mode>,
    /// Whether its connections of Multipath TCP become plain ones; `None` for its tenant's.
    pub strips_multipath: Option<bool>,
    /// Whether losses are its guest's matter; `None` for its tenant's.
    pub ignores_loss: Option<bool>,
    /// Whether its guest, which knows RFC 3168 only, speaks for itself; `None` for its tenant's.
    pub passes_classic: Option<bool>,
    /// Flooded frames a second; `None` for the default.
    pub flood_per_second: Option<u32>,
    /// Copies of what it floods; `None` for the default.
    pub flood_rate: Option<Rate>,
    /// Addresses learned from it; `None` for the default.
    pub max_learned: Option<u32>,
}

impl Default for Endpoint {
    fn default() -> Self {
        Endpoint {
            name: String::new(),
            device: Device::default(),
            identity: Identity::default(),
            trunk: false,
            knobs: Knobs::default(),
            queue_bytes: DEFAULT_QUEUE_BYTES,
            aqm: None,
            vcc: None,
            strips_multipath: None,
            ignores_loss: None,
            passes_classic: None,
            flood_per_second: None,
            flood_rate: None,
            max_learned: None,
        }
    }
}

impl Endpoint {
    /// What is done for its TCP, where it says otherwise than its tenant: as far as its mode knows
    /// it, its tenant's but for what it says itself.
    #[must_use]
    pub fn vcc(&self, tenant: &Tenant) -> Option<vcc::Settings> {
        let &Endpoint { vcc, strips_multipath, ignores_loss, passes_classic, .. } = self;
        let says = vcc.is_some() || [strips_multipath, ignores_loss, passes_classic].iter().any(Option::is_some);
        let of_tenant = tenant.vcc.with_mode(vcc.unwrap_or(tenant.vcc.mode));
        says.then(|| vcc::Settings {
            strips_multipath: strips_multipath.unwrap_or(of_tenant.strips_multipath),
            ignores_loss: ignores_loss.unwrap_or(of_tenant.ignores_loss),
            passes_classic: passes_classic.unwrap_or(of_tenant.passes_classic),
            ..of_tenant
        })
    }

    /// Whether nothing is at its port, and what services send from outside back out passes it.
    #[must_use]
    pub fn is_director(&self) -> bool {
        self.device.locator == Some(Locator::Director)
    }
}

/// A wire between two switches of the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Link {
    /// Unique in the daemon.
    pub name: String,
    /// What it carries in each direction.
    pub rate: Rate,
    /// Propagation delay.
    pub delay_ns: u64,
    /// Bound of the queue at each end.
    pub queue_bytes: u32,
    /// What the queue does before it is full.
    pub discipline: Discipline,
    /// Segments lost, in millionths.
    pub loss_ppm: u32,
}

/// Whether `text` may name an instance: such names become directories.
#[must_use]
pub fn is_instance_name(text: &str) -> bool {
    name(text).is_ok()
}
