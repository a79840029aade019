//! Why a program does not change as was asked.

use crate::ids::{EndpointId, MemberId, PortId, TenantId};
use crate::slots::Slots;
use crate::wire::Mac;
use std::error::Error;
use std::fmt;
use std::net::IpAddr;

/// Why a change was refused. Nothing of it was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeError {
    /// The number is not below [`Slots::MOST`].
    NoSuchSlot(u32),
    /// What is to be removed is not there.
    Vacant(u32),
    /// The endpoint's tenant is vacant.
    UnknownTenant(TenantId),
    /// The endpoint or the uplink is to be on a port that is vacant.
    UnknownPort(PortId),
    /// Another endpoint, or the uplink, is on the port.
    PortInUse(PortId),
    /// The uplink has this many members: not one to [`MemberId::MOST`].
    BadMembers(usize),
    /// The tenant has endpoints or services; remove them before it is removed or attached
    /// otherwise.
    TenantInUse(TenantId),
    /// An endpoint cannot move to another tenant; remove it, then add it there.
    OtherTenant(EndpointId),
    /// Not a VLAN that a tenant may have: 1 to 4094.
    BadVlan(u16),
    /// The VLAN is this other tenant's.
    VlanInUse(u16, TenantId),
    /// Not a VXLAN network identifier that a tenant may have: 1 to 16777215.
    BadVni(u32),
    /// The VXLAN network identifier is this other tenant's.
    VniInUse(u32, TenantId),
    /// There is no host with this address.
    UnknownPeer(IpAddr),
    /// Addresses are at the host: remove them first.
    PeerInUse(IpAddr),
    /// There are [`crate::overlay::MOST_PEERS`] hosts or [`crate::overlay::MOST_REMOTES`] addresses
    /// on them already.
    OverlayFull,
    /// Services have more addresses, backends, or fronts with the same target, than there may be.
    ServicesFull,
    /// Another service of the same network has this address.
    ServiceInUse(IpAddr, u16),
    /// This other endpoint of the same network has declared the address.
    AddressInUse(Mac, EndpointId),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ChangeError::{
            AddressInUse, BadMembers, BadVlan, BadVni, NoSuchSlot, OtherTenant, OverlayFull, PeerInUse, PortInUse,
            ServiceInUse, ServicesFull, TenantInUse, UnknownPeer, UnknownPort, UnknownTenant, Vacant, VlanInUse,
            VniInUse,
        };
        match self {
            NoSuchSlot(id) => write!(f, "number {id} is too large: {} is the most", Slots::<()>::MOST - 1),
            Vacant(id) => write!(f, "number {id} is not in use"),
            UnknownTenant(id) => write!(f, "tenant {} is not in use: add it first", id.0),
            UnknownPort(id) => write!(f, "port {} is not in use: add it first", id.0),
            PortInUse(id) => write!(f, "port {} is in use: remove what is on it first", id.0),
            BadMembers(count) => write!(f, "an uplink has 1 to {} members, not {count}", MemberId::MOST),
            TenantInUse(id) => write!(f, "tenant {} has endpoints or services: remove them first", id.0),
            OtherTenant(id) => write!(f, "endpoint {} belongs to another tenant: remove it first", id.0),
            BadVlan(vlan) => write!(f, "VLAN {vlan} is not in 1 to 4094"),
            VlanInUse(vlan, id) => write!(f, "VLAN {vlan} is tenant {}'s", id.0),
            BadVni(vni) => write!(f, "VXLAN network {vni} is not in 1 to 16777215"),
            VniInUse(vni, id) => write!(f, "VXLAN network {vni} is tenant {}'s", id.0),
            UnknownPeer(address) => write!(f, "host {address} is not known: add it first"),
            PeerInUse(address) => write!(f, "addresses are at host {address}: remove them first"),
            OverlayFull => write!(f, "too many hosts, or too many addresses on them"),
            ServicesFull => write!(f, "too many services, or too many backends of one"),
            ServiceInUse(ip, port) => write!(f, "another service has {ip}, port {port}"),
            AddressInUse(mac, id) => write!(f, "address {mac} is endpoint {}'s", id.0),
        }
    }
}

impl Error for ChangeError {}
