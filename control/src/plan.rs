//! The plan: what one daemon is to run, compiled.
//!
//! Each switch has a program for the datapath, whose ports are numbered, and beside it the names and the port behind each number.

use crate::names::Locator;
use datapath::frame::PoolLimits;
use datapath::link::{LinkConfig, Side};
use datapath::program::{EndpointId, Program, TenantId};
use datapath::wire::Mac;
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
    pub switches: Vec<SwitchPlan>,
    /// Its links, and what they are called.
    pub links: Vec<(String, LinkConfig)>,
}

/// One switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwitchPlan {
    /// Its name.
    pub name: String,
    /// What it runs. The features of its ports are what their kind has at best: the shell puts in what the opened ports really have.
    pub program: Program,
    /// Names of the tenants, by [`TenantId`].
    pub tenants: Vec<String>,
    /// Names of the endpoints, by [`EndpointId`].
    pub endpoints: Vec<String>,
    /// The ports, by [`datapath::program::PortId`].
    pub ports: Vec<PortPlan>,
}

impl SwitchPlan {
    /// `switch/tenant/endpoint`.
    #[must_use]
    pub fn endpoint_path(&self, endpoint: EndpointId) -> String {
        let TenantId(tenant) = self.program.endpoints[endpoint.0 as usize].tenant;
        format!("{}/{}/{}", self.name, self.tenants[tenant as usize], self.endpoints[endpoint.0 as usize])
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

/// What is behind a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// A tap device.
    Tap(TapPlan),
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
    /// Whether the host's own traffic passes the switch too: a port of the switch is its [`HostPlan`].
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
    /// Set where the kernel or the process's rights do not allow it: the interface is shared, and this port is never there.
    pub is_absent: bool,
}

/// A tap device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapPlan {
    /// Its name, at most 15 characters.
    pub name: String,
    /// The network namespace it is in: a name below /run/netns, or a path. `None` for the daemon's own.
    pub netns: Option<String>,
    /// Its own address; `None` leaves it to the kernel.
    pub mac: Option<Mac>,
    /// Longest packet in bytes.
    pub mtu: u32,
    /// Addresses given to it, with prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Frames that its ring holds; `None` leaves the kernel's default.
    pub ring: Option<u32>,
    /// Whether it may speak IPv6.
    pub ipv6: bool,
    /// Whether it outlives the daemon.
    pub persistent: bool,
}
