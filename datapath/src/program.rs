//! The program: the compiled configuration of one switch.
//!
//! It is immutable and swapped whole; what changes often (shares, the uplink's rate) goes through [`Tuning`] instead. Everything is
//! a dense index, so that the hot path never looks up a name: names, files and admission are the business of `control`.

use crate::guard::Identity;
use crate::offload::OffloadSupport;
use crate::units::{Both, Rate};

/// A port, by the number that the shell gave it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PortId(pub u32);

/// A tenant, by its place in [`Program::tenants`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TenantId(pub u32);

/// An endpoint, by its place in [`Program::endpoints`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EndpointId(pub u32);

/// The three knobs, for one direction: at least, at most, and the share of what is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// At least this much while there is demand; zero for none.
    pub guarantee: Rate,
    /// At most this much; [`Rate::UNLIMITED`] for no limit.
    pub limit: Rate,
    /// Share of what is left, 1 to 65535.
    pub weight: u32,
}

impl Default for Share {
    fn default() -> Self {
        Share { guarantee: Rate(0), limit: Rate::UNLIMITED, weight: 1 }
    }
}

/// In which order queues share one direction of the uplink.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OrderKind {
    /// Constant cost, within a proven constant of the ideal (QFQ).
    #[default]
    Fair,
    /// WF2Q+ with heaps: within about one maximum frame a level, at logarithmic cost.
    Wf2q,
    /// Virtual-time round robin by packets, as FS-VDE published it.
    Vtrr,
    /// Virtual-time round robin by bytes.
    VtrrBytes,
}

/// What happens to frames that arrive from the uplink.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum IngressMode {
    /// They are queued and scheduled, as on egress.
    #[default]
    Queue,
    /// FS-VDE's token buckets in packets, with idle time no longer banked.
    Police,
    /// FS-VDE's token buckets exactly as published, banked idle time included.
    PolicePublished,
}

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
}

/// The owner of endpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tenant {
    /// Its way to the uplink, which also says which network its endpoints see.
    pub attachment: Attachment,
    /// Guarantee (at least the sum of its endpoints'), limit and weight.
    pub share: Both<Share>,
}

/// The NIC of one virtual machine or container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Its owner.
    pub tenant: TenantId,
    /// The port it is on; no other endpoint is.
    pub port: PortId,
    /// The addresses it may use, and what it may announce.
    pub identity: Identity,
    /// A bridge port: VLAN tags pass through, no source is checked, addresses behind it are learned.
    pub trunk: bool,
    /// Guarantee, limit and weight.
    pub share: Both<Share>,
    /// Bound of its queue in each direction, in bytes of buffer memory.
    pub queue_bytes: u32,
    /// Flooded frames it may send a second (broadcast, multicast, unknown destinations).
    pub flood_per_second: u32,
    /// Source addresses that may be learned from it.
    pub max_learned: u32,
}

/// What the switch must know of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortFeatures {
    /// Offloads it can be handed.
    pub offload: OffloadSupport,
    /// Longest frame after segmentation, Ethernet header included (VLAN tag not).
    pub max_frame: u32,
}

impl Default for PortFeatures {
    fn default() -> Self {
        PortFeatures { offload: OffloadSupport::ALL, max_frame: 1514 }
    }
}

/// The host's access link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uplink {
    /// Its port.
    pub port: PortId,
    /// What it carries, in wire bits a second.
    pub rate: Both<Rate>,
    /// Part of the ingress rate that is held back while tenants contend, in millionths.
    pub headroom_ppm: u32,
}

/// The configuration of one switch, compiled.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// The scheduler's order.
    pub order: OrderKind,
    /// How ingress is controlled.
    pub ingress: IngressMode,
    /// The access link, where there is one.
    pub uplink: Option<Uplink>,
    /// All tenants.
    pub tenants: Vec<Tenant>,
    /// All endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Features of every port, by [`PortId`].
    pub ports: Vec<PortFeatures>,
    /// Nanoseconds after which a learned address that was not seen again is forgotten.
    pub fdb_age_ns: u64,
}

/// A small live change; the program stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tuning {
    /// The uplink's rate: negotiated down, or a bond's member lost. Guarantees shrink in proportion where they no longer fit.
    UplinkRate(Both<Rate>),
    /// A tenant's share.
    Tenant(TenantId, Both<Share>),
    /// An endpoint's share.
    Endpoint(EndpointId, Both<Share>),
}
