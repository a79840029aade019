//! The plan: what one daemon is to run, compiled.
//!
//! Each switch has a program for the datapath, whose ports are numbered, and beside it the names
//! and the port behind each number. Numbers are kept from one plan to the next by who stays, and
//! those of who goes are not given away in the same step: so the plans of before and after tell
//! what is to be done.

use crate::config::Cluster;
use crate::names::Locator;
use crate::scale::scale;
use datapath::frame::PoolLimits;
use datapath::link::{LinkConfig, Side};
use datapath::overlay::{MOST_PEERS, MOST_REMOTES};
use datapath::program::{Change, EndpointId, PortId, Program, Slots};
use datapath::units::{Both, Rate};
use datapath::wire::Mac;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// What one daemon runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Name of the instance.
    pub name: String,
    /// Whether the worker never sleeps.
    pub spin: bool,
    /// Bounds of the frame memory.
    pub pool: PoolLimits,
    /// Its switches.
    pub switches: Slots<SwitchPlan>,
    /// Its links, and what they are called.
    pub links: Slots<(String, LinkConfig)>,
    /// The cluster that its switches are hosts of.
    pub cluster: Option<Cluster>,
}

impl Plan {
    /// A daemon of this plan's name and memory that runs nothing yet.
    #[must_use]
    pub fn empty(&self) -> Plan {
        let (switches, links) = (Slots::default(), Slots::default());
        Plan { name: self.name.clone(), spin: self.spin, pool: self.pool, switches, links, cluster: None }
    }

    /// What the uplink of a switch can carry: no more than the link of this daemon that it goes
    /// over, or than its line does now. `None` without uplink.
    #[must_use]
    pub fn uplink_rate(&self, switch: &SwitchPlan) -> Option<Both<Rate>> {
        let uplink = switch.program.uplink.as_ref()?;
        if uplink.bond.is_some() {
            return Some(uplink.rate());
        }
        let rate = match switch.ports[uplink.port().0 as usize].kind {
            PortKind::Link { link, .. } => self.links[link].1.rate,
            _ => switch.line.unwrap_or(Rate(u64::MAX)),
        };
        Some(Both { egress: uplink.rate().egress.min(rate), ingress: uplink.rate().ingress.min(rate) })
    }

    /// What a switch is to run: where its uplink is slower than configured, with what is left of
    /// the guarantees.
    #[must_use]
    pub fn scaled_program(&self, switch: &SwitchPlan) -> Program {
        let mut program = switch.program.clone();
        let scaled = self.uplink_rate(switch).and_then(|rate| scale(&switch.program, rate));
        for change in scaled.into_iter().flat_map(|scaled| scaled.changes) {
            match change {
                Change::Uplink(uplink) => program.uplink = uplink,
                Change::Tenant(id, tenant) => program.tenants.set(id.0, tenant),
                Change::Endpoint(id, endpoint) => program.endpoints.set(id.0, endpoint),
                Change::Port(..)
                | Change::FdbAge(_)
                | Change::UplinkFlood(_)
                | Change::Overlay(_)
                | Change::Elsewhere(..)
                | Change::Service(..)
                | Change::Connections(_)
                | Change::Flows(_)
                | Change::Rescale(_) => {}
            }
        }
        program
    }
}

/// What a service is called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServicePlan {
    /// Its name, unique in its tenant.
    pub name: String,
    /// Names of its backends, in the order of the program.
    pub backends: Vec<String>,
}

/// One switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwitchPlan {
    /// Its name.
    pub name: String,
    /// What it runs. The features of its ports are what their kind has at best: the shell puts in
    /// what the opened ports really have.
    pub program: Program,
    /// Names of the tenants, by [`TenantId`].
    pub tenants: Slots<String>,
    /// Names of the endpoints, by [`EndpointId`].
    pub endpoints: Slots<String>,
    /// Names of the services, by [`datapath::service::ServiceId`].
    pub services: Slots<ServicePlan>,
    /// The ports, by [`datapath::program::PortId`].
    pub ports: Slots<PortPlan>,
    /// What concerns the uplink's members, where it has several, and not each frame.
    pub bond: Option<BondPlan>,
    /// What tunnels to other hosts go over, where there are any.
    pub underlay: Option<Underlay>,
    /// What the uplink's interface carries now, where it once carried more. The shell puts it in.
    pub line: Option<Rate>,
    /// Whether there may be shortcuts; for whom, [`crate::shortcut`] says.
    pub shortcut: bool,
}

impl SwitchPlan {
    /// `switch/tenant/endpoint`; of an endpoint that is gone, its number.
    #[must_use]
    pub fn endpoint_path(&self, endpoint: EndpointId) -> String {
        let Some(compiled) = self.program.endpoints.get(endpoint.0) else {
            return format!("{}/(endpoint {}, gone)", self.name, endpoint.0);
        };
        let tenant = compiled.tenant.0 as usize;
        format!("{}/{}/{}", self.name, self.tenants[tenant], self.endpoints[endpoint.0 as usize])
    }

    /// The uplink's port; of a bond all of them, and how they are used. `None` without an uplink.
    #[must_use]
    pub fn uplink_ports(&self) -> Option<String> {
        let uplink = self.program.uplink.as_ref()?;
        let ports = uplink.members.iter().filter_map(|member| self.ports.get(member.port.0));
        let all: Vec<String> = ports.map(|port| port.locator.to_string()).collect();
        Some(match &uplink.bond {
            Some(bond) => format!("{} ({})", all.join(", "), bond.mode.name()),
            None => all.join(", "),
        })
    }

    /// Whose port it is: `s1/red/red1`, or `s1/uplink`.
    #[must_use]
    pub fn owner(&self, port: PortId) -> String {
        match self.program.endpoints.iter().find(|(_, endpoint)| endpoint.port == port) {
            Some((endpoint, _)) => self.endpoint_path(EndpointId(endpoint)),
            None => match self.member(port) {
                Some(member) => format!("{}/uplink/{member}", self.name),
                None => format!("{}/uplink", self.name),
            },
        }
    }

    /// The name of the uplink's member at a port.
    #[must_use]
    pub fn member(&self, port: PortId) -> Option<&str> {
        let member = self.program.uplink.as_ref()?.member_at(port)?;
        self.bond.as_ref()?.names.get(usize::from(member.0)).map(String::as_str)
    }
}

/// An uplink of several ports, beside what the program has of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BondPlan {
    /// Which of them carry frames.
    pub policy: crate::bond::Settings,
    /// How often their links are asked, in nanoseconds; 0 for never.
    pub miimon_ns: u64,
    /// What is said after a failover.
    pub notices: crate::bond::Notices,
    /// File with the secret of its hellos.
    pub secret_file: Option<String>,
    /// What they are called, in the order of [`datapath::program::Uplink::members`].
    pub names: Vec<String>,
}

/// What the tunnels of a switch go over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Underlay {
    /// This host's end.
    pub vtep: IpAddr,
    /// The interface whose host knows the next hops, with its namespace: the shell puts them into
    /// the program. `None`: the uplink is a link of this daemon, and the program has them.
    pub interface: Option<(String, Option<String>)>,
    /// Whether that is an endpoint of the switch, and not its uplink.
    pub is_endpoint: bool,
    /// Where that is so: the interfaces that the uplink takes, over which the host is not to answer
    /// for the address.
    pub taken: Vec<(String, Option<String>)>,
    /// What the hosts at the other ends are called.
    pub hosts: BTreeMap<IpAddr, String>,
    /// What is known of others, and that no tunnel leads to.
    pub left_out: Vec<LeftOut>,
}

/// What a switch's tunnels leave out.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LeftOut {
    /// A host, by its name, for which there is no room.
    Host(String),
    /// A host whose end of tunnels has an address of another family.
    Family(String),
    /// So many addresses of tenants at a host.
    Addresses(String, usize),
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeftOut::Host(host) => {
                write!(
                    f,
                    "host \"{host}\" is one more than {MOST_PEERS}: no tunnel leads there, and none from there is taken"
                )
            }
            LeftOut::Family(host) => {
                write!(
                    f,
                    "host \"{host}\" has its end of tunnels at an address of the other IP version: no tunnel leads there"
                )
            }
            LeftOut::Addresses(host, count) => write!(
                f,
                "{count} addresses of host \"{host}\" are more than {MOST_REMOTES}: frames for them go to each host that has their tenant"
            ),
        }
    }
}

/// One port of a switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortPlan {
    /// As the configuration writes it.
    pub locator: Locator,
    /// What is to be opened.
    pub kind: PortKind,
}

impl PortPlan {
    /// Whether a port of this name and in this namespace is the same one: who is behind it is who
    /// was.
    #[must_use]
    pub fn is(&self, locator: &Locator, netns: Option<&str>) -> bool {
        let place = match &self.kind {
            PortKind::Tap(end) | PortKind::Veth(end) => &end.netns,
            PortKind::Packet(packet) => &packet.netns,
            PortKind::Host(host) => &host.netns,
            PortKind::Link { .. } | PortKind::Vde(_) | PortKind::VhostUser(_) | PortKind::Director => {
                return self.locator == *locator;
            }
        };
        self.locator == *locator && place.as_deref() == netns
    }
}

/// What is behind a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// A tap device.
    Tap(TapPlan),
    /// A veth pair, whose one end is set up like a tap device. Its `ring` is that of a
    /// [`PacketPlan`].
    Veth(TapPlan),
    /// An interface that exists.
    Packet(PacketPlan),
    /// The host's traffic over such an interface.
    Host(HostPlan),
    /// An end of [`Plan::links`]`[link]`.
    Link {
        /// Number of the link.
        link: usize,
        /// Which end.
        side: Side,
    },
    /// A plug of a VDE directory.
    Vde(VdePlan),
    /// The network card of a virtual machine.
    VhostUser(VhostPlan),
    /// Nothing.
    Director,
}

/// The network card of a virtual machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VhostPlan {
    /// The socket, absolute.
    pub socket: String,
    /// Whether the socket is made here; else the machine's process makes it.
    pub listen: bool,
    /// Group of a socket that is made here; `None` for its owner only.
    pub group: Option<String>,
    /// Pairs of rings that are offered.
    pub queues: u32,
    /// Whether segmentation and checksums are offered.
    pub offload: bool,
    /// Whether memory that could be cut short is refused.
    pub sealed: bool,
    /// Longest packet in bytes.
    pub mtu: u32,
}

/// A plug of a VDE directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VdePlan {
    /// The directory, absolute.
    pub directory: String,
    /// Its number there.
    pub plug: u32,
    /// Whether it takes several clients, who share it.
    pub hub: bool,
    /// Who may plug in: the permission bits of the control socket; `None` for its owner only.
    pub mode: Option<u32>,
    /// The directory's group; `None` for the daemon's.
    pub group: Option<String>,
    /// Longest packet in bytes.
    pub mtu: u32,
}

/// An interface that exists, and is used as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketPlan {
    /// Its name, at most 15 characters.
    pub name: String,
    /// The network namespace it is in; `None` for the daemon's own.
    pub netns: Option<String>,
    /// Longest packet in bytes that is expected of it.
    pub mtu: u32,
    /// Frames of 64 KiB that may wait to be read; `None` for the driver's default.
    pub ring: Option<u32>,
    /// Whether the host's own traffic passes the switch too: a port of the switch is its
    /// [`HostPlan`].
    pub is_exclusive: bool,
}

/// The host's traffic over an interface that the switch takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostPlan {
    /// Name of the interface.
    pub interface: String,
    /// The network namespace it is in; `None` for the daemon's own.
    pub netns: Option<String>,
    /// Frames that wait to be read; `None` leaves the kernel's default.
    pub ring: Option<u32>,
    /// Set where the kernel or the process's rights do not allow it: the interface is shared, and
    /// this port is never there.
    pub is_absent: bool,
}

/// A tap device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapPlan {
    /// Its name, at most 15 characters.
    pub name: String,
    /// The network namespace it is in: a name below /run/netns, or a path. `None` for the daemon's
    /// own.
    pub netns: Option<String>,
    /// Its own address; `None` leaves it to the kernel.
    pub mac: Option<Mac>,
    /// Longest packet in bytes.
    pub mtu: u32,
    /// Longest packet in bytes that its kernel is to offload; `None` leaves it.
    pub longest_offload: Option<u32>,
    /// Addresses given to it, with prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Frames that its ring holds; `None` leaves the kernel's default.
    pub ring: Option<u32>,
    /// Whether it may speak IPv6.
    pub ipv6: bool,
    /// Whether it outlives the daemon.
    pub persistent: bool,
}
