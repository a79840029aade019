//! Networks, the layer-2 domains of a switch, and how tenants reach the uplink from theirs.

use crate::ids::TenantId;

/// How a tenant reaches the uplink.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Attachment {
    /// Not at all: its network ends at this switch.
    #[default]
    Isolated,
    /// As VLAN 1 to 4094 of its own.
    Vlan(u16),
    /// In the untagged network, which all such tenants share, here and outside.
    Untagged,
    /// Through tunnels to the hosts that [`crate::program::Program::overlay`] says have it, with
    /// VXLAN network identifier 1 to 16777215.
    Vxlan(u32),
}

/// One layer-2 domain: a tenant's own, or the untagged one that tenants share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Network(pub u32);

impl Network {
    /// The untagged network of the uplink.
    pub const UNTAGGED: Network = Network(u32::MAX);
}

/// The network that endpoints of a tenant are in.
#[must_use]
pub fn network_of(tenant: TenantId, attachment: Attachment) -> Network {
    match attachment {
        Attachment::Untagged => Network::UNTAGGED,
        Attachment::Isolated | Attachment::Vlan(_) | Attachment::Vxlan(_) => Network(tenant.0),
    }
}

/// A network's place among all: the untagged one is the first.
#[inline]
pub(crate) fn slot(network: Network) -> usize {
    network.0.wrapping_add(1) as usize
}
