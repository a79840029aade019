//! The program: the compiled configuration of one switch, and the changes that turn one into
//! another while it runs.
//!
//! Tenants, endpoints and ports are numbered, so that the hot path never looks up a name: names,
//! files and admission are the business of `control`. A number is a *slot* that its owner keeps for
//! as long as it lives; a slot whose owner is gone is vacant until it is given to another
//! ([`Slots`]). A [`Change`] concerns one slot, or the uplink. [`Program::changes_from`] finds
//! those between two programs.

use crate::aqm::Discipline;
use crate::bond::{self, BondSettings, Mode};
use crate::flood::FloodLimits;
use crate::guard::Identity;
use crate::network::{Network, network_of};
use crate::overlay::{Overlay, OverlayChange};
use crate::service::connections::DEFAULT_CONNECTIONS;
use crate::service::{Address, Service, ServiceId};
use crate::units::{Both, Direction, Rate};
use crate::vcc;
use crate::wire::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

pub use crate::change_error::ChangeError;
pub use crate::ids::{EndpointId, MemberId, PortId, TenantId};
pub use crate::network::Attachment;
pub use crate::offload::PortFeatures;
pub use crate::slots::Slots;

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

/// Where the congestion agents of this host speak with those of others, on an endpoint that is the
/// host's own. Their datagrams go before the endpoint's other frames; see
/// [`crate::sched::priority`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgentTraffic {
    /// The address where this host's agents listen and from which they speak; unspecified for any.
    pub address: IpAddr,
    /// The UDP port.
    pub port: u16,
    /// What may go before the rest at most.
    pub rate: Both<Rate>,
}

/// The owner of endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// Its way to the uplink, which also says which network its endpoints see.
    pub attachment: Attachment,
    /// Guarantee (at least the sum of its endpoints'), limit and weight.
    pub share: Both<Share>,
    /// Copies of what all its endpoints flood together, in wire bits a second.
    pub flood_rate: Rate,
    /// Addresses in its network that are outside, such as a router's: no endpoint claims them that
    /// does not list them itself.
    pub outside: Outside,
    /// What the switch does for the TCP of its endpoints.
    pub vcc: vcc::Settings,
}

impl Default for Tenant {
    fn default() -> Self {
        let (attachment, share, outside) = (Attachment::default(), Both::default(), Outside::default());
        Tenant { attachment, share, flood_rate: Rate::UNLIMITED, outside, vcc: vcc::Settings::default() }
    }
}

/// An address that an endpoint of another host has declared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Elsewhere {
    /// A MAC address.
    Mac(Mac),
    /// A single IP address.
    Ip(IpAddr),
}

/// Addresses that are outside.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outside {
    /// MAC addresses.
    pub macs: Vec<Mac>,
    /// IP addresses.
    pub ips: Vec<IpAddr>,
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
    /// A bridge port: VLAN tags pass through, no source is checked, addresses behind it are
    /// learned.
    pub trunk: bool,
    /// Nothing is at its port: it stands for what services send from outside back out, which passes
    /// its queues in both directions.
    pub is_director: bool,
    /// Guarantee, limit and weight.
    pub share: Both<Share>,
    /// Bound of its queue in each direction, in bytes of buffer memory.
    pub queue_bytes: u32,
    /// What its queues do before they are full; `None` for flow queues with CoDel each
    /// ([`crate::sched::lane`]).
    pub aqm: Option<Discipline>,
    /// Flooded frames it may send a second (broadcast, multicast, unknown destinations).
    pub flood_per_second: u32,
    /// Copies of what it floods, in wire bits a second of all of them together.
    pub flood_rate: Rate,
    /// Source addresses that may be learned from it.
    pub max_learned: u32,
    /// What of its traffic over the uplink is the agents'.
    pub agent_traffic: Option<AgentTraffic>,
    /// What the switch does for its TCP; `None` for its tenant's.
    pub vcc: Option<vcc::Settings>,
}

impl Endpoint {
    /// One that promises nothing, may use no address and learns none, with a queue of 1 MiB and
    /// 1000 flooded frames a second. `Endpoint { identity, ..Endpoint::new(tenant, port) }` says
    /// the rest.
    #[must_use]
    pub fn new(tenant: TenantId, port: PortId) -> Endpoint {
        Endpoint {
            tenant,
            port,
            identity: Identity::default(),
            trunk: false,
            is_director: false,
            share: Both::default(),
            queue_bytes: 1 << 20,
            aqm: None,
            flood_per_second: 1000,
            flood_rate: Rate::UNLIMITED,
            max_learned: 0,
            agent_traffic: None,
            vcc: None,
        }
    }

    /// Whether one guest is at it. Behind a trunk are many, in networks of their own.
    #[must_use]
    pub fn is_guest(&self) -> bool {
        !self.trunk && !self.is_director
    }

    /// What the switch does for the TCP of its guest, where its tenant's have `of_tenant`.
    #[must_use]
    pub fn vcc(&self, of_tenant: vcc::Settings) -> vcc::Settings {
        if self.is_guest() { self.vcc.unwrap_or(of_tenant) } else { vcc::Settings::default() }
    }
}

/// A port of the uplink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The port; nobody else is on it.
    pub port: PortId,
    /// What it carries, in wire bits a second.
    pub rate: Both<Rate>,
}

/// The host's access link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uplink {
    /// The ports that carry it, one to [`Uplink::MOST_MEMBERS`].
    pub members: Vec<Member>,
    /// How several are used. Without it frames leave by the first.
    pub bond: Option<BondSettings>,
    /// Part of the ingress rate that is held back while tenants contend, in millionths.
    pub headroom_ppm: u32,
    /// What it may be sent at once on egress where the loop was late or nothing waited, in
    /// nanoseconds at its rate. Lateness up to that costs no rate; but in a device that is no
    /// faster than the rate, what came at once stands from then on, until the link idles.
    pub burst_ns: u64,
}

impl Uplink {
    /// Most ports, which is what a frame's metadata can number and what Linux's bonds may have.
    pub const MOST_MEMBERS: usize = MemberId::MOST;
    /// The usual burst: on a machine of its own the loop is late by 10 us in the median, by 40 in
    /// one case of a hundred.
    pub const BURST_NS: u64 = bond::BURST_NS;

    /// An uplink of one port, without headroom and with the usual burst.
    #[must_use]
    pub fn new(port: PortId, rate: Both<Rate>) -> Uplink {
        Uplink { members: vec![Member { port, rate }], bond: None, headroom_ppm: 0, burst_ns: Uplink::BURST_NS }
    }

    /// What it carries, in wire bits a second, with all members up: what they carry together; the
    /// most of one where one is active, and the least where all carry the same.
    #[must_use]
    pub fn rate(&self) -> Both<Rate> {
        let of = |d: Direction| {
            let rates = self.members.iter().map(|member| member.rate.get(d).0);
            Rate(match self.bond.map(|bond| bond.mode) {
                None | Some(Mode::BalanceRr | Mode::BalanceXor | Mode::Lacp) => rates.fold(0, u64::saturating_add),
                Some(Mode::ActiveBackup) => rates.max().unwrap_or(0),
                Some(Mode::Broadcast) => rates.min().unwrap_or(0),
            })
        };
        Both { egress: of(Direction::Egress), ingress: of(Direction::Ingress) }
    }

    /// The same uplink where it carries `rate` in all, of which each member has the part that it
    /// had.
    #[must_use]
    pub fn at_rate(&self, rate: Both<Rate>) -> Uplink {
        let whole = self.rate();
        let part = |member: &Member| {
            let of = |d: Direction| match whole.get(d).0 {
                0 => Rate(rate.get(d).0 / self.members.len() as u64),
                all => member.rate.get(d).scaled(rate.get(d).0, all),
            };
            Member { rate: Both { egress: of(Direction::Egress), ingress: of(Direction::Ingress) }, ..*member }
        };
        Uplink { members: self.members.iter().map(part).collect(), ..self.clone() }
    }

    /// The port by which frames leave: that of the first member.
    #[must_use]
    #[inline]
    pub fn port(&self) -> PortId {
        self.members.first().map_or(PortId(u32::MAX), |member| member.port)
    }

    /// The member at a port.
    #[must_use]
    pub fn member_at(&self, port: PortId) -> Option<MemberId> {
        self.members.iter().position(|member| member.port == port).map(|at| MemberId(at as u8))
    }

    /// The ports of its members.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        self.members.iter().map(|member| member.port)
    }

    /// The port of a member; where it is gone meanwhile, that of the first.
    #[must_use]
    #[inline]
    pub fn port_of(&self, member: MemberId) -> PortId {
        self.members.get(usize::from(member.0)).map_or_else(|| self.port(), |member| member.port)
    }
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
    pub tenants: Slots<Tenant>,
    /// All endpoints.
    pub endpoints: Slots<Endpoint>,
    /// Features of every port, by [`PortId`].
    pub ports: Slots<PortFeatures>,
    /// Nanoseconds after which a learned address that was not seen again is forgotten.
    pub fdb_age_ns: u64,
    /// What may be flooded from the uplink, in each network.
    pub uplink_flood: FloodLimits,
    /// Where tenants are on other hosts.
    pub overlay: Overlay,
    /// Addresses of tenants that endpoints of other hosts have declared: no endpoint here claims
    /// them that does not list them itself. Of MAC addresses those where no tunnel leads there; the
    /// others are in `overlay`.
    pub elsewhere: BTreeSet<(TenantId, Elsewhere)>,
    /// Addresses that several backends answer for.
    pub services: Slots<Service>,
    /// Connections to services that are kept at most; `None` for [`DEFAULT_CONNECTIONS`].
    pub connections: Option<u32>,
    /// Connections of virtual congestion control that are kept at most; `None` for
    /// [`vcc::DEFAULT_FLOWS`].
    pub flows: Option<u32>,
    /// Whether guests with virtual congestion control are told a finer window scale than a coarse
    /// one: see [`vcc::Policy::rescales`].
    pub rescales: bool,
}

impl Program {
    /// What the switch does for the TCP of an endpoint.
    #[must_use]
    pub fn vcc(&self, endpoint: &Endpoint) -> vcc::Settings {
        endpoint.vcc(self.tenants.get(endpoint.tenant.0).map(|tenant| tenant.vcc).unwrap_or_default())
    }

    /// Whether the switch does anything for any endpoint's TCP.
    #[must_use]
    pub fn has_vcc(&self) -> bool {
        let has_any = |endpoint: &Endpoint| self.vcc(endpoint).mode != vcc::Mode::Off;
        self.endpoints.values().any(has_any)
    }

    /// What all ports of the uplink take of what is in a tunnel. With a bond's number before the
    /// tunnel's headers, nothing goes whole.
    #[must_use]
    pub fn uplink_features(&self) -> Option<PortFeatures> {
        let uplink = self.uplink.as_ref()?;
        let mut features = *self.ports.get(uplink.port().0)?;
        let Some(bond) = &uplink.bond else { return Some(features) };
        for member in &uplink.members {
            let other = self.ports.get(member.port.0)?;
            features.max_frame = features.max_frame.min(other.max_frame);
            features.offload = features.offload.and(other.offload);
        }
        features.max_frame = features.max_frame.saturating_sub(bond.shim_bytes());
        features.offload.tunnel &= !bond.may_number();
        Some(features)
    }

    /// What builds this program from an empty one of the same order and mode, in an order in which
    /// every step fits.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        let empty = Program { order: self.order, ingress: self.ingress, ..Program::default() };
        self.changes_from(&empty).unwrap_or_default()
    }

    /// What turns `from` into this, in an order in which every step fits; nothing of what is the
    /// same in both. `None` where only a new switch can do it: the order or the ingress mode is
    /// another.
    ///
    /// An endpoint is removed and added anew, its queue and counters with it, where it stays but
    /// its tenant is another or attached otherwise, or where somebody else is to have its port or
    /// one of its addresses. A service that stays only yields the addresses that go. Slots say who
    /// is the same: a slot's owner that became another should have another slot.
    #[must_use]
    pub fn changes_from(&self, from: &Program) -> Option<Vec<Change>> {
        if (self.order, self.ingress) != (from.order, from.ingress) {
            return None;
        }
        let reattached = |id: TenantId| {
            let attachment = |program: &Program| program.tenants.get(id.0).map(|tenant| tenant.attachment);
            attachment(self) != attachment(from)
        };
        let ports: BTreeMap<PortId, u32> = self.endpoints.iter().map(|(id, e)| (e.port, id)).collect();
        let network = |e: &Endpoint| self.tenants.get(e.tenant.0).map(|t| network_of(e.tenant, t.attachment));
        let addresses = self.endpoints.iter().flat_map(|(id, e)| {
            let network = network(e);
            e.identity.macs.iter().map(move |&mac| (network, mac, id))
        });
        let addresses: BTreeSet<(Option<Network>, Mac, u32)> = addresses.collect();
        let is_uplink = |port| self.uplink.as_ref().is_some_and(|uplink| uplink.member_at(port).is_some());
        let has_another = |endpoint: &Endpoint, mac: Mac, id: u32| {
            let network = network(endpoint);
            addresses.range((network, mac, 0)..=(network, mac, u32::MAX)).any(|&(_, _, owner)| owner != id)
        };
        let stays = |id: u32, old: &Endpoint| {
            self.endpoints.get(id).is_some_and(|new| {
                new.tenant == old.tenant
                    && !reattached(old.tenant)
                    && ports.get(&old.port).is_none_or(|&owner| owner == id)
                    && !is_uplink(old.port)
                    && (new.identity.macs == old.identity.macs
                        || !old.identity.macs.iter().any(|&mac| has_another(old, mac, id)))
            })
        };
        let mut changes = Vec::new();
        // First, so that the table is made once.
        if self.flows != from.flows {
            changes.push(Change::Flows(self.flows.unwrap_or(vcc::DEFAULT_FLOWS)));
        }
        if self.rescales != from.rescales {
            changes.push(Change::Rescale(self.rescales));
        }
        let serves = |id: u32, old: &Service| {
            self.services.get(id).is_some_and(|new| new.tenant == old.tenant && !reattached(old.tenant))
        };
        let gone = from.services.iter().filter(|&(id, old)| !serves(id, old));
        changes.extend(gone.map(|(id, _)| Change::Service(ServiceId(id), None)));
        let gone = from.endpoints.iter().filter(|&(id, old)| !stays(id, old));
        changes.extend(gone.map(|(id, _)| Change::Endpoint(EndpointId(id), None)));
        for (id, old) in from.tenants.iter() {
            match self.tenants.get(id) {
                None => changes.push(Change::Tenant(TenantId(id), None)),
                // So that two may change places.
                Some(new) if new.attachment != old.attachment => {
                    let isolated = Tenant { attachment: Attachment::Isolated, ..old.clone() };
                    changes.push(Change::Tenant(TenantId(id), Some(isolated)));
                }
                Some(_) => {}
            }
        }
        let ports = self.ports.iter().filter(|&(id, port)| from.ports.get(id) != Some(port));
        changes.extend(ports.map(|(id, &port)| Change::Port(PortId(id), Some(port))));
        if self.uplink != from.uplink {
            changes.push(Change::Uplink(self.uplink.clone()));
        }
        let tenants = self.tenants.iter().filter(|&(id, tenant)| from.tenants.get(id) != Some(tenant));
        changes.extend(tenants.map(|(id, tenant)| Change::Tenant(TenantId(id), Some(tenant.clone()))));
        let kept = |id: u32| from.endpoints.get(id).filter(|old| stays(id, old));
        let endpoints = self.endpoints.iter().filter(|&(id, endpoint)| kept(id) != Some(endpoint));
        changes.extend(endpoints.map(|(id, endpoint)| Change::Endpoint(EndpointId(id), Some(endpoint.clone()))));
        let ports = from.ports.iter().filter(|&(id, _)| self.ports.get(id).is_none());
        changes.extend(ports.map(|(id, _)| Change::Port(PortId(id), None)));
        let yielding = self.yielding(from, serves);
        changes.extend(yielding.iter().map(|(&id, service)| Change::Service(ServiceId(id), Some(service.clone()))));
        let kept = |id: u32| yielding.get(&id).or_else(|| from.services.get(id).filter(|old| serves(id, old)));
        let services = self.services.iter().filter(|&(id, service)| kept(id) != Some(service));
        changes.extend(services.map(|(id, service)| Change::Service(ServiceId(id), Some(service.clone()))));
        if self.connections != from.connections {
            changes.push(Change::Connections(self.connections.unwrap_or(DEFAULT_CONNECTIONS)));
        }
        if self.fdb_age_ns != from.fdb_age_ns {
            changes.push(Change::FdbAge(self.fdb_age_ns));
        }
        if self.uplink_flood != from.uplink_flood {
            changes.push(Change::UplinkFlood(self.uplink_flood));
        }
        changes.extend(self.overlay.changes_from(&from.overlay).into_iter().map(Change::Overlay));
        let gone = from.elsewhere.difference(&self.elsewhere).map(|&(tenant, it)| (tenant, it, false));
        let come = self.elsewhere.difference(&from.elsewhere).map(|&(tenant, it)| (tenant, it, true));
        changes.extend(gone.chain(come).map(|(tenant, it, is_there)| Change::Elsewhere(tenant, it, is_there)));
        Some(changes)
    }

    /// Services that stay and have what one of a lower number, whose step comes before theirs, is
    /// to have: an address, or an IP address under another MAC address. They yield it first: so
    /// they are then. The addresses that they keep, and the connections there, are served
    /// throughout.
    fn yielding(&self, from: &Program, stays: impl Fn(u32, &Service) -> bool) -> BTreeMap<u32, Service> {
        let changed = from.services.iter().filter_map(|(id, old)| {
            let new = self.services.get(id).filter(|new| stays(id, old) && *new != old)?;
            let is_lost = |address: &Address| !new.addresses.contains(address);
            (old.mac != new.mac || old.addresses.iter().any(is_lost)).then_some((id, old, new))
        });
        let changed: Vec<(u32, &Service, &Service)> = changed.collect();
        if changed.is_empty() {
            return BTreeMap::new();
        }
        let network = |service: &Service| {
            self.tenants.get(service.tenant.0).map(|tenant| network_of(service.tenant, tenant.attachment))
        };
        // Of several at one IP address, the first one, and the MAC address that all have.
        let (mut owners, mut firsts) = (BTreeMap::new(), BTreeMap::new());
        for (id, service) in self.services.iter() {
            for address in &service.addresses {
                owners.insert((network(service), *address), id);
                firsts.entry((network(service), address.ip)).or_insert((id, service.mac));
            }
        }
        let yields = |&(id, old, new): &(u32, &Service, &Service)| {
            let is_wanted = old.addresses.iter().any(|address| {
                owners.get(&(network(old), *address)).is_some_and(|&owner| owner < id)
                    || firsts.get(&(network(old), address.ip)).is_some_and(|&(first, mac)| first < id && mac != old.mac)
            });
            let keeps = |address: &&Address| new.addresses.contains(address);
            let addresses = old.addresses.iter().filter(keeps).copied().collect();
            is_wanted.then(|| (id, Service { mac: new.mac, addresses, ..old.clone() }))
        };
        changed.iter().filter_map(yields).collect()
    }
}

/// One step from a program to another; see [`crate::switch::Switch::change`]. `Some` adds or
/// replaces, `None` removes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A port, or other features of it. One that an endpoint or the uplink is on cannot be removed.
    Port(PortId, Option<PortFeatures>),
    /// The uplink, its members or their rates. Without it every tenant's network ends at this
    /// switch.
    Uplink(Option<Uplink>),
    /// A tenant, or its shares. One with endpoints can neither be removed nor attached otherwise.
    Tenant(TenantId, Option<Tenant>),
    /// An endpoint, or anything of it but its tenant: what it has queued stays, and so do its
    /// counters.
    Endpoint(EndpointId, Option<Endpoint>),
    /// How long learned addresses live from when they are next seen, in nanoseconds.
    FdbAge(u64),
    /// What may be flooded from the uplink, in each network.
    UplinkFlood(FloodLimits),
    /// Where tenants are on other hosts.
    Overlay(OverlayChange),
    /// Whether an endpoint of another host has declared this address of a tenant.
    Elsewhere(TenantId, Elsewhere, bool),
    /// A service, or anything of it but its tenant: backends that stay keep their connections.
    Service(ServiceId, Option<Service>),
    /// How many connections to services are kept.
    Connections(u32),
    /// How many connections of virtual congestion control are kept.
    Flows(u32),
    /// Whether it tells guests a finer window scale than a coarse one.
    Rescale(bool),
}
