//! The overlay: which host has which address of which tenant, and how to get there.
//!
//! A tenant whose attachment is VXLAN reaches its endpoints on other hosts through tunnels
//! (`wire/vxlan.rs`). Where they are is told, not learned ([`Overlay`], a part of the program): for
//! each host its tunnel endpoint's address (VTEP), the next hop on the way there and the tenants it
//! has, and for each address of a tenant its host. What is for everyone, or for an address that is
//! not in the table, goes to each host that has the tenant (head-end replication). [`Tunnels`] is
//! the same as tables to look up while frames pass: a bounded number of hosts and addresses, no
//! allocation but by changes. Addresses and identifiers in frames are chosen by strangers, so the
//! tables are hashed under a key from the seed.
//!
//! The table is believed: what comes out of a tunnel must come from a host that has the tenant.

use crate::change_error::ChangeError;
use crate::encap::vxlan;
use crate::encap::vxlan::Tunnel;
use crate::ids::{PeerId, TenantId};
use crate::network::Attachment;
use crate::random::Keyed;
use crate::slots::Slots;
use crate::table::Table;
use crate::units::Instant;
use crate::wire::{ETHERNET_HEADER, Layout, Mac};
use core::net::IpAddr;
use std::collections::{BTreeMap, HashMap};

/// Most hosts: four times the 1000 that a cluster is designed for, and what fits in a [`PeerId`].
pub const MOST_PEERS: usize = 1 << SLOT_BITS;
/// Most addresses on other hosts: 1000 hosts with 20 endpoints of six addresses each.
pub const MOST_REMOTES: usize = 1 << 17;
/// The least that a tunnel is believed to carry: IPv6's least MTU, which guests do not go below
/// (RFC 8201, section 4). Who forges less would cut them off.
const LEAST_INNER_MTU: u16 = 1280;
/// For how long it is believed that a path is narrow: the way may have become another (RFC 1191,
/// section 6.3; RFC 8201, section 4).
const PATH_NS: u64 = 600_000_000_000;
/// Bits of a [`PeerId`] that are the slot; the others count its owners.
const SLOT_BITS: u32 = 12;

/// This host's end of all tunnels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vtep {
    /// Its address on the underlay.
    pub address: IpAddr,
    /// The uplink's own address.
    pub mac: Mac,
}

/// Another host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Peer {
    /// Address of the next hop on the way there; `None` while it is not known.
    pub next_hop: Option<Mac>,
    /// The tenants it has.
    pub tenants: Vec<TenantId>,
}

/// Where the tenants of this switch are besides.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overlay {
    /// Without it, nothing goes into a tunnel or comes out of one.
    pub local: Option<Vtep>,
    /// Other hosts, by the addresses of their VTEPs.
    pub peers: BTreeMap<IpAddr, Peer>,
    /// Where the addresses are that are not here: VTEPs that are in `peers`.
    pub remotes: BTreeMap<(TenantId, Mac), IpAddr>,
}

/// One step from an overlay to another. `Some` adds or replaces, `None` removes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OverlayChange {
    /// This host's end.
    Local(Option<Vtep>),
    /// Another host. One that addresses are at cannot be removed.
    Peer(IpAddr, Option<Peer>),
    /// The host where an address of a tenant is.
    Remote(TenantId, Mac, Option<IpAddr>),
}

impl Overlay {
    /// What turns `from` into this, in an order in which every step fits; nothing of what is the
    /// same in both.
    #[must_use]
    pub fn changes_from(&self, from: &Overlay) -> Vec<OverlayChange> {
        let mut changes = Vec::new();
        if self.local != from.local {
            changes.push(OverlayChange::Local(self.local));
        }
        // Who goes does so last, so that an address that moves has a host all the time; first, with
        // its addresses, where there is no room for both.
        let goes = |address: &IpAddr| !self.peers.contains_key(address);
        let is_tight =
            from.peers.len() + self.peers.keys().filter(|to| !from.peers.contains_key(to)).count() > MOST_PEERS;
        let parted = from.remotes.iter().filter(|(key, at)| !self.remotes.contains_key(key) || is_tight && goes(at));
        changes.extend(parted.map(|(&(tenant, mac), _)| OverlayChange::Remote(tenant, mac, None)));
        let gone = from.peers.keys().filter(|address| goes(address));
        let gone: Vec<_> = gone.map(|&address| OverlayChange::Peer(address, None)).collect();
        if is_tight {
            changes.extend_from_slice(&gone);
        }
        let peers = self.peers.iter().filter(|&(address, peer)| from.peers.get(address) != Some(peer));
        changes.extend(peers.map(|(&address, peer)| OverlayChange::Peer(address, Some(peer.clone()))));
        let remotes = self.remotes.iter().filter(|&(key, at)| from.remotes.get(key) != Some(at));
        changes.extend(remotes.map(|(&(tenant, mac), &at)| OverlayChange::Remote(tenant, mac, Some(at))));
        if !is_tight {
            changes.extend(gone);
        }
        changes
    }
}

/// A tenant's address, in one word each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key(u64, u64);

impl Key {
    fn new(tenant: TenantId, mac: Mac) -> Key {
        let [a, b, c, d, e, f] = mac.0;
        Key(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), u64::from(tenant.0))
    }
}

/// A place in the table of hosts.
#[derive(Clone, Debug)]
struct HostEntry {
    address: IpAddr,
    next_hop: Option<Mac>,
    /// Of whom it was and is, so that what waits for one host does not go to the next.
    id: PeerId,
    tenants: Vec<TenantId>,
    /// The longest packet that the way there carries, by what a router has said, and until when
    /// that is believed.
    path: Option<(u16, Instant)>,
    vacant: bool,
}

/// A tenant's slot.
#[derive(Clone, Debug, Default)]
struct Network {
    vni: Option<u32>,
    /// Hosts that have it.
    peers: Vec<PeerId>,
}

/// The overlay as tables.
#[derive(Debug)]
pub struct Tunnels {
    local: Option<Vtep>,
    places: Vec<HostEntry>,
    vacant: Vec<u32>,
    by_address: HashMap<IpAddr, u32, Keyed>,
    /// Addresses on other hosts; the list of each is the host's place.
    remotes: Table<Key, ()>,
    by_vni: HashMap<u32, TenantId, Keyed>,
    /// By tenant.
    networks: Vec<Network>,
    /// Until when some way may be known to be narrow.
    narrow_until: Instant,
}

impl Tunnels {
    /// No tunnels. `seed` keys the hash tables.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let keyed = Keyed::new(seed);
        Tunnels {
            local: None,
            places: Vec::new(),
            vacant: Vec::new(),
            by_address: HashMap::with_hasher(keyed),
            remotes: Table::new(keyed, MOST_REMOTES as u32),
            by_vni: HashMap::with_hasher(keyed),
            networks: Vec::new(),
            narrow_until: Instant::default(),
        }
    }

    /// This host's end.
    #[must_use]
    #[inline]
    pub fn local(&self) -> Option<Vtep> {
        self.local
    }

    /// Bytes of the headers around each frame, which are as long for all hosts.
    #[must_use]
    pub fn outer(&self) -> usize {
        self.local.map_or(vxlan::OUTER_V4, |local| vxlan::outer(&local.address))
    }

    /// The outer source port of a frame that goes into a tunnel.
    #[must_use]
    pub fn source_port(&self, bytes: &[u8], layout: &Layout) -> u16 {
        vxlan::source_port(self.by_vni.hasher(), bytes, layout)
    }

    /// The host that has an address of a tenant.
    #[must_use]
    pub fn find(&self, tenant: TenantId, mac: Mac) -> Option<PeerId> {
        let slot = self.remotes.list(self.remotes.find(&Key::new(tenant, mac))?)?;
        Some(self.places[slot as usize].id)
    }

    /// The hosts that have a tenant.
    #[must_use]
    pub fn peers_of(&self, tenant: TenantId) -> &[PeerId] {
        self.networks.get(tenant.0 as usize).map_or(&[], |network| &network.peers)
    }

    /// The address of a host that is still in the table.
    #[must_use]
    pub fn address(&self, peer: PeerId) -> Option<IpAddr> {
        self.place(peer).map(|place| place.address)
    }

    /// The tunnel for a tenant's frames to a host; `None` where the host is gone, the next hop
    /// unknown, or there is no end of the same family here.
    #[must_use]
    pub fn to(&self, tenant: TenantId, peer: PeerId) -> Option<Tunnel> {
        let place = self.place(peer)?;
        let local = self.local?;
        let vni = self.networks.get(tenant.0 as usize)?.vni?;
        let tunnel = Tunnel { from: (local.address, local.mac), to: (place.address, place.next_hop?), vni };
        (place.address.is_ipv4() == local.address.is_ipv4()).then_some(tunnel)
    }

    /// A router says that packets to a host may have at most `mtu` bytes. Nothing is done where
    /// that is longer than what is known, or nobody of the table.
    pub fn narrow(&mut self, to: IpAddr, mtu: u16, now: Instant) {
        let Some(&slot) = self.by_address.get(&to) else { return };
        let mtu = mtu.max(LEAST_INNER_MTU + (vxlan::outer(&to) - ETHERNET_HEADER) as u16);
        let (place, until) = (&mut self.places[slot as usize], now.plus_ns(PATH_NS));
        if place.path.is_none_or(|(known, until)| mtu <= known || until <= now) {
            place.path = Some((mtu, until));
            self.narrow_until = until;
        }
    }

    /// The first of a tenant's hosts with number `from` or more, and whether there are others
    /// behind it: whoever comes or goes meanwhile, one who stays is met once.
    #[must_use]
    pub fn next_peer(&self, tenant: TenantId, from: u32) -> Option<(PeerId, bool)> {
        let peers = self.peers_of(tenant);
        let first = peers.partition_point(|peer| peer.0 < from);
        Some((*peers.get(first)?, first + 1 < peers.len()))
    }

    /// Whether a way may be narrower than the uplink.
    #[must_use]
    pub fn is_any_narrow(&self, now: Instant) -> bool {
        now < self.narrow_until
    }

    /// The longest packet that the way to a host carries, where a router has said so.
    #[must_use]
    pub fn path_mtu(&self, peer: PeerId, now: Instant) -> Option<u16> {
        self.place(peer)?.path.and_then(|(mtu, until)| (now < until).then_some(mtu))
    }

    /// All hosts to which the way is narrower than the uplink, as far as is known.
    pub fn narrow_paths(&self, now: Instant) -> impl Iterator<Item = (IpAddr, u16)> + '_ {
        let places = if now < self.narrow_until { &self.places[..] } else { &[] };
        places.iter().filter(|place| !place.vacant).filter_map(move |place| {
            let (mtu, until) = place.path?;
            (now < until).then_some((place.address, mtu))
        })
    }

    /// The tenant with a network identifier.
    #[must_use]
    pub fn tenant_of(&self, vni: u32) -> Option<TenantId> {
        self.by_vni.get(&vni).copied()
    }

    /// The host with this address, where it has the tenant.
    #[must_use]
    pub fn host_with(&self, address: IpAddr, tenant: TenantId) -> Option<PeerId> {
        let place = &self.places[*self.by_address.get(&address)? as usize];
        place.tenants.contains(&tenant).then_some(place.id)
    }

    /// Whether a tenant may have this attachment.
    ///
    /// # Errors
    /// No such identifier can be, or another tenant has it.
    pub fn check(&self, tenant: TenantId, attachment: Attachment) -> Result<(), ChangeError> {
        let Attachment::Vxlan(vni) = attachment else { return Ok(()) };
        if vni == 0 || vni > vxlan::MOST {
            return Err(ChangeError::BadVni(vni));
        }
        match self.tenant_of(vni) {
            Some(owner) if owner != tenant => Err(ChangeError::VniInUse(vni, owner)),
            _ => Ok(()),
        }
    }

    /// A tenant's slot has another owner or attachment, which passed [`Tunnels::check`]; `None`
    /// where it is vacant.
    pub fn attach(&mut self, tenant: TenantId, attachment: Option<Attachment>) {
        let vni = match attachment {
            Some(Attachment::Vxlan(vni)) => Some(vni),
            _ => None,
        };
        let before = self.networks.get(tenant.0 as usize).and_then(|network| network.vni);
        if before == vni {
            return;
        }
        if let Some(before) = before {
            self.by_vni.remove(&before);
        }
        if let Some(vni) = vni {
            self.by_vni.insert(vni, tenant);
        }
        self.network(tenant).vni = vni;
    }

    /// Takes one step.
    ///
    /// # Errors
    /// It does not fit what there is; nothing was done.
    pub fn change(&mut self, change: &OverlayChange) -> Result<(), ChangeError> {
        match *change {
            OverlayChange::Local(local) => {
                self.local = local;
                self.places.iter_mut().for_each(|place| place.path = None);
            }
            OverlayChange::Peer(address, Some(ref peer)) => return self.set_peer(address, peer),
            OverlayChange::Peer(address, None) => return self.remove_peer(address),
            OverlayChange::Remote(tenant, mac, at) => return self.set_remote(tenant, mac, at),
        }
        Ok(())
    }

    fn set_peer(&mut self, address: IpAddr, peer: &Peer) -> Result<(), ChangeError> {
        if let Some(tenant) = peer.tenants.iter().find(|tenant| tenant.0 >= Slots::<()>::MOST) {
            return Err(ChangeError::NoSuchSlot(tenant.0));
        }
        let slot = match self.by_address.get(&address) {
            Some(&slot) => slot,
            None => self.settle(address)?,
        };
        self.leave(slot);
        for &tenant in &peer.tenants {
            let id = self.places[slot as usize].id;
            let peers = &mut self.network(tenant).peers;
            if let Err(place) = peers.binary_search(&id) {
                peers.insert(place, id);
            }
        }
        let place = &mut self.places[slot as usize];
        // Another way may be as wide as any.
        place.path = place.path.filter(|_| place.next_hop == peer.next_hop);
        place.next_hop = peer.next_hop;
        place.tenants.clone_from(&peer.tenants);
        Ok(())
    }

    fn remove_peer(&mut self, address: IpAddr) -> Result<(), ChangeError> {
        let &slot = self.by_address.get(&address).ok_or(ChangeError::UnknownPeer(address))?;
        if self.remotes.count(slot) > 0 {
            return Err(ChangeError::PeerInUse(address));
        }
        self.leave(slot);
        let place = &mut self.places[slot as usize];
        (place.vacant, place.next_hop) = (true, None);
        place.tenants.clear();
        place.id = PeerId(place.id.0.wrapping_add(MOST_PEERS as u32));
        self.by_address.remove(&address);
        self.vacant.push(slot);
        Ok(())
    }

    fn set_remote(&mut self, tenant: TenantId, mac: Mac, at: Option<IpAddr>) -> Result<(), ChangeError> {
        let key = Key::new(tenant, mac);
        let before = self.remotes.find(&key);
        let after = match at {
            Some(address) => Some(*self.by_address.get(&address).ok_or(ChangeError::UnknownPeer(address))?),
            None if before.is_none() => return Err(ChangeError::Vacant(tenant.0)),
            None => None,
        };
        match (before, after) {
            (Some(id), Some(slot)) => self.remotes.touch(Instant::ZERO, id, slot),
            (Some(id), None) => drop(self.remotes.remove(id)),
            (None, Some(slot)) => {
                self.remotes.insert(Instant::ZERO, slot, key, ()).map_err(|_| ChangeError::OverlayFull)?;
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Finds a place for a new host.
    fn settle(&mut self, address: IpAddr) -> Result<u32, ChangeError> {
        let slot = match self.vacant.pop() {
            Some(slot) => slot,
            None if self.places.len() < MOST_PEERS => {
                let id = PeerId(self.places.len() as u32);
                let (tenants, path) = (Vec::new(), None);
                self.places.push(HostEntry { address, next_hop: None, id, tenants, path, vacant: true });
                id.0
            }
            None => return Err(ChangeError::OverlayFull),
        };
        let place = &mut self.places[slot as usize];
        (place.address, place.path, place.vacant) = (address, None, false);
        self.by_address.insert(address, slot);
        Ok(slot)
    }

    /// Takes a host out of the lists of its tenants.
    fn leave(&mut self, slot: u32) {
        let Tunnels { places, networks, .. } = self;
        let place = &places[slot as usize];
        for tenant in &place.tenants {
            networks[tenant.0 as usize].peers.retain(|peer| *peer != place.id);
        }
    }

    fn place(&self, peer: PeerId) -> Option<&HostEntry> {
        let place = self.places.get(peer.0 as usize % MOST_PEERS)?;
        (place.id == peer && !place.vacant).then_some(place)
    }

    fn network(&mut self, tenant: TenantId) -> &mut Network {
        let at = tenant.0 as usize;
        if self.networks.len() <= at {
            self.networks.resize_with(at + 1, Network::default);
        }
        &mut self.networks[at]
    }
}

#[cfg(test)]
mod tests;
