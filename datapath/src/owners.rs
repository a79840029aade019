//! Owners: who has which IP address, network by network, and whether a frame may claim one.
//!
//! [`crate::guard`] asks the sender's own list. What is not in it, or is there only as a part of a
//! prefix, may be somebody else's:
//!
//! 1. An address that an endpoint lists (one address, no prefix) is its own, and of those that list
//!    it too. Nobody else claims it, from inside or outside, nor asks whether it is free: the owner
//!    would give it up.
//! 2. What is listed as outside (of a router, say), or listed by an endpoint of another host, is
//!    claimed by no endpoint that does not list it itself.
//! 3. A link-local address made from a MAC address is of who has that.
//! 4. Any other link-local address is of who comes first, until it was silent for as long as
//!    addresses live (the idea of RFC 6620). What a router outside says to have is outside, whoever
//!    came first: to squat on it would cut off all others.
//! 5. In the untagged network, which tenants share, the same holds for all other addresses, but
//!    that a tenant's own endpoints may hand them on. In a network of its own, a tenant's
//!    undeclared addresses are its own business.
//!
//! A machine that comes in from outside, or goes there, brings its addresses along: who gives the
//! same MAC address for an address is the same. Of endpoints here that holds within a tenant.
//! Packets from outside, from trunks and from routers come from anybody; of them only what
//! neighbours are told is judged. The source of each packet of an endpoint that lists no addresses
//! is judged too, by a comparison with the last one that was found good, which counts for a quarter
//! of the life of addresses: a packet gives its endpoint no claim on an address, but keeps up the
//! one that it has.
//!
//! An endpoint holds [`MOST_HELD`] undeclared addresses. With one more it loses its claim on the
//! one that it used longest ago, and nobody else loses anything. Those outside are bounded by
//! [`crate::outside`].

use crate::fdb::Fdb;
use crate::guard::{Claim, Identity, Kind, Right, link_local_of};
use crate::ids::{EndpointId, TenantId};
use crate::network::{Network, slot};
use crate::outside::Outside;
use crate::random::Keyed;
use crate::table::{Id, Table};
use crate::units::Instant;
use crate::wire::Mac;
use core::net::IpAddr;
use std::collections::HashMap;

/// Undeclared addresses that one endpoint holds: a link-local one, one of IPv4 and a week's
/// temporary ones (RFC 8981) where there is no list.
pub const MOST_HELD: u32 = 8;
/// How often in the life of an address its user's packets are looked at anew, at least.
const REFRESHES: u64 = 4;

/// An address in its network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key(u32, u128);

impl Key {
    fn new(network: Network, address: IpAddr) -> Key {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Key(network.0, address.to_bits())
    }

    fn address(self) -> IpAddr {
        std::net::Ipv6Addr::from_bits(self.1).to_canonical()
    }
}

/// An address that was seen outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    mac: Mac,
    is_router: bool,
}

/// Who claims an address.
#[derive(Clone, Copy, Debug)]
pub enum By<'a> {
    /// Somebody outside.
    Outside,
    /// An endpoint, with its list.
    Endpoint(EndpointId, TenantId, &'a Identity, Role),
}

/// What an endpoint is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// One that has addresses.
    Host,
    /// One whose packets may be from others: a router, or a trunk.
    Forwarder,
}

/// Why an address may not be claimed: whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// This endpoint has declared it, or the MAC address that it is made from, or that is given for
    /// it.
    Declared(EndpointId),
    /// It is listed as outside or by an endpoint of another host, or nobody here has the MAC
    /// address that it is made from.
    Listed,
    /// This endpoint came first.
    Held(EndpointId),
    /// It was seen outside.
    Outside,
    /// More addresses are outside than are remembered.
    Unknown,
}

/// What becomes of a claim that is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Good {
    /// Nothing is to be remembered.
    Plain,
    /// It is held by its claimant from now on.
    Hold,
}

/// An endpoint that holds an address.
#[derive(Clone, Copy, Debug)]
struct OwnerEntry {
    tenant: TenantId,
    mac: Mac,
    /// When its claim ends at the latest, unless it is seen again: see [`Owners::left`].
    expires: Instant,
}

/// See the module.
#[derive(Debug)]
pub struct Owners {
    /// Who lists an address, in order: the first one is named.
    declared: HashMap<Key, Vec<EndpointId>, Keyed>,
    /// How often an address is listed as outside.
    listed: HashMap<Key, u32, Keyed>,
    /// For how many tenants an address is an endpoint's of another host.
    elsewhere: HashMap<Key, u32, Keyed>,
    /// By endpoint, what it holds.
    held: Table<Key, OwnerEntry>,
    outside: Outside<Key, Seen>,
    /// By endpoint, the source that was found good last with its MAC address, when in the order of
    /// changes, and when by the clock.
    last: Vec<(Key, Mac, u64, Instant)>,
    /// Goes up with each change that may make what was good bad.
    changes: u64,
    endpoints: u32,
    age_ns: u64,
}

impl Owners {
    /// Nobody has anything. Hashed under `seed`.
    #[must_use]
    pub fn new(age_ns: u64, seed: u64) -> Self {
        let keyed = Keyed::new(seed);
        Owners {
            declared: HashMap::with_hasher(keyed),
            listed: HashMap::with_hasher(keyed),
            elsewhere: HashMap::with_hasher(keyed),
            held: Table::new(keyed, 0),
            outside: Outside::new(keyed, age_ns),
            last: Vec::new(),
            changes: 1,
            endpoints: 0,
            age_ns,
        }
    }

    /// Changes how long undeclared addresses live.
    pub fn set_age(&mut self, age_ns: u64) {
        self.age_ns = age_ns;
        self.outside.set_age(age_ns);
        self.changes += 1;
    }

    /// Makes room for networks: the untagged one, and those of tenants 0..`tenants`.
    pub fn reserve(&mut self, tenants: usize) {
        self.outside.reserve(tenants + 1);
    }

    /// `endpoint` is in `network`, and lists these addresses instead of those before.
    pub fn set(
        &mut self,
        endpoint: EndpointId,
        network: Network,
        before: Option<&Identity>,
        identity: Option<&Identity>,
    ) {
        for address in before.into_iter().flat_map(Identity::hosts) {
            let key = Key::new(network, address);
            if let Some(owners) = self.declared.get_mut(&key) {
                owners.retain(|&owner| owner != endpoint);
                if owners.is_empty() {
                    self.declared.remove(&key);
                }
            }
        }
        for address in identity.into_iter().flat_map(Identity::hosts) {
            let key = Key::new(network, address);
            let owners = self.declared.entry(key).or_default();
            if let Err(at) = owners.binary_search(&endpoint) {
                owners.insert(at, endpoint);
            }
            self.forget(&key);
            self.outside.forget(&key);
        }
        let at = endpoint.0 as usize;
        match (before, identity) {
            (None, Some(_)) => {
                self.endpoints += 1;
                self.held.set_most(self.endpoints.saturating_mul(MOST_HELD));
                self.held.reserve(at + 1);
                if self.last.len() <= at {
                    self.last.resize(at + 1, (Key(0, 0), Mac::default(), 0, Instant::ZERO));
                }
            }
            (Some(_), None) => {
                while let Some(id) = self.held.oldest(endpoint.0) {
                    self.held.remove(id);
                }
                self.endpoints -= 1;
            }
            (Some(_), Some(identity)) => {
                let mine = self.held.newest_first(endpoint.0);
                let lost = mine.filter(|(_, key, _)| identity.right(key.address()).is_none()).map(|(id, ..)| id);
                for id in lost.collect::<Vec<_>>() {
                    self.held.remove(id);
                }
            }
            (None, None) => {}
        }
        self.changes += 1;
    }

    fn forget(&mut self, key: &Key) {
        if let Some(id) = self.held.find(key) {
            self.held.remove(id);
        }
    }

    /// These addresses of a network are listed as outside, instead of those before.
    pub fn list(&mut self, network: Network, before: &[IpAddr], now: &[IpAddr]) {
        for &address in now {
            let key = Key::new(network, address);
            *self.listed.entry(key).or_default() += 1;
            self.forget(&key);
        }
        for &address in before {
            let key = Key::new(network, address);
            let count = self.listed.get_mut(&key).map(|count| {
                *count -= 1;
                *count
            });
            if count == Some(0) {
                self.listed.remove(&key);
            }
        }
        self.changes += 1;
    }

    /// An endpoint of another host has listed an address of a network, or no longer does.
    pub fn set_elsewhere(&mut self, network: Network, address: IpAddr, is_there: bool) {
        let key = Key::new(network, address);
        if is_there {
            *self.elsewhere.entry(key).or_default() += 1;
            self.forget(&key);
        } else if let Some(count) = self.elsewhere.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.elsewhere.remove(&key);
            }
        }
        self.changes += 1;
    }

    /// Whether no endpoint may have an address that it does not list itself.
    fn is_kept(&self, key: &Key) -> bool {
        self.listed.contains_key(key) || self.elsewhere.contains_key(key)
    }

    /// A network is another's from now on, or attached otherwise: others are outside of it.
    pub fn clear(&mut self, network: Network) {
        self.outside.clear(slot(network));
    }

    /// No network has an outside any more.
    pub fn clear_all(&mut self, now: Instant) {
        self.outside.clear_all(now);
    }

    /// Whether a packet comes from where the last good one of its endpoint came from, both
    /// addresses, nothing has changed since, and that was not long ago: an address that is used is
    /// seen often enough to be held.
    #[must_use]
    #[inline]
    pub fn was_good(&self, now: Instant, network: Network, endpoint: EndpointId, source: &Claim) -> bool {
        let this = (Key::new(network, source.address), source.mac, self.changes);
        self.last.get(endpoint.0 as usize).is_some_and(|&(key, mac, changes, seen)| {
            (key, mac, changes) == this && now.since(seen) < self.age_ns / REFRESHES
        })
    }

    /// Whether a claim is good; nothing is remembered.
    ///
    /// # Errors
    /// Whose address it is.
    pub fn check(&self, now: Instant, network: Network, fdb: &Fdb, by: By<'_>, claim: &Claim) -> Result<(), Owner> {
        self.judge(now, network, fdb, by, claim).map(drop)
    }

    /// Remembers claims that were found good.
    pub fn remember(&mut self, now: Instant, network: Network, fdb: &Fdb, by: By<'_>, claims: &[Option<Claim>; 2]) {
        for claim in claims.iter().flatten() {
            if self.judge(now, network, fdb, by, claim) == Ok(Good::Hold) {
                self.hold(now, network, by, claim);
            }
        }
        // A link-local address is to be seen each time that it is used: it is held by that.
        if let (By::Endpoint(endpoint, ..), [Some(Claim { address, mac, kind: Kind::Source }), None]) = (by, claims)
            && !is_link_local(*address)
            && let Some(last) = self.last.get_mut(endpoint.0 as usize)
        {
            *last = (Key::new(network, *address), *mac, self.changes, now);
        }
    }

    fn judge(&self, now: Instant, network: Network, fdb: &Fdb, by: By<'_>, claim: &Claim) -> Result<Good, Owner> {
        let &Claim { address, mac, kind } = claim;
        let forwards = match by {
            By::Outside => true,
            By::Endpoint(.., role) => role == Role::Forwarder,
        };
        let local = is_link_local(address);
        if address.is_multicast() || address.is_unspecified() || (kind == Kind::Source && forwards && !local) {
            return Ok(Good::Plain);
        }
        let key = Key::new(network, address);
        let (own, listed) = match by {
            By::Outside => (None, self.listed.contains_key(&key)),
            By::Endpoint(id, _, identity, _) => (Some(id), identity.right(address) == Some(Right::Declared)),
        };
        if kind == Kind::Redirect {
            return self.judge_redirect(now, network, fdb, claim).map(|()| Good::Plain);
        }
        let owners = self.declared.get(&key).map_or(&[][..], Vec::as_slice);
        if let Some(&first) = owners.first() {
            let is_owner = own.is_some_and(|own| owners.contains(&own));
            // A host outside may answer for an owner with the owner's own address.
            let is_true =
                own.is_none() && (listed || owners.iter().any(|&owner| fdb.declared(network, mac) == Some(owner)));
            return if is_owner || is_true { Ok(Good::Plain) } else { Err(Owner::Declared(first)) };
        }
        // The MAC address that is given for it is another's.
        match fdb.declared(network, mac) {
            Some(owner) if kind != Kind::Source && own != Some(owner) => return Err(Owner::Declared(owner)),
            _ => {}
        }
        if own.is_some() && (self.is_kept(&key) || fdb.is_elsewhere(network, mac) && kind != Kind::Source) {
            return Err(Owner::Listed);
        }
        if let IpAddr::V6(v6) = address
            && let Some(maker) = link_local_of(v6)
        {
            return self.judge_made(now, network, fdb, by, mac, maker);
        }
        if !local && network != Network::UNTAGGED {
            return self.judge_loosely(now, &key, by, claim);
        }
        self.judge_first_come(now, network, &key, by, listed, claim)
    }

    /// What a router says of another's address: it is where its owner is.
    fn judge_redirect(&self, now: Instant, network: Network, fdb: &Fdb, claim: &Claim) -> Result<(), Owner> {
        let &Claim { address, mac, .. } = claim;
        let key = Key::new(network, address);
        let has_mac = fdb.find(now, network, 0, mac);
        if let Some(owners) = self.declared.get(&key)
            && let Some(&first) = owners.first()
        {
            return if has_mac.is_some_and(|id| owners.contains(&id)) { Ok(()) } else { Err(Owner::Declared(first)) };
        }
        if let IpAddr::V6(v6) = address
            && let Some(owner) = link_local_of(v6).and_then(|maker| fdb.find(now, network, 0, maker))
        {
            return if has_mac == Some(owner) { Ok(()) } else { Err(Owner::Declared(owner)) };
        }
        match (self.holder(now, &key), self.outside.find(now, &key)) {
            (Some((endpoint, held)), _) if held.mac != mac => Err(Owner::Held(endpoint)),
            (None, Some(seen)) if seen.is_router && seen.mac != mac => Err(Owner::Outside),
            _ => Ok(()),
        }
    }

    /// A link-local address that was made from a MAC address.
    fn judge_made(
        &self,
        now: Instant,
        network: Network,
        fdb: &Fdb,
        by: By<'_>,
        mac: Mac,
        maker: Mac,
    ) -> Result<Good, Owner> {
        let owner = fdb.find(now, network, 0, maker);
        match by {
            By::Outside => owner.map_or(Ok(Good::Plain), |owner| Err(Owner::Declared(owner))),
            By::Endpoint(_, _, identity, _) if identity.macs.contains(&maker) => Ok(Good::Plain),
            By::Endpoint(own, ..) if owner == Some(own) || owner.is_none() && maker == mac => Ok(Good::Plain),
            By::Endpoint(..) => Err(owner.map_or(Owner::Listed, Owner::Declared)),
        }
    }

    /// In a tenant's own network: routers outside keep what they say to have.
    fn judge_loosely(&self, now: Instant, key: &Key, by: By<'_>, claim: &Claim) -> Result<Good, Owner> {
        match by {
            By::Outside if claim.kind == Kind::RouterBinding => Ok(Good::Hold),
            By::Outside => Ok(Good::Plain),
            By::Endpoint(..) => match self.outside.find(now, key) {
                Some(seen) if seen.is_router && seen.mac != claim.mac => Err(Owner::Outside),
                _ => Ok(Good::Plain),
            },
        }
    }

    fn judge_first_come(
        &self,
        now: Instant,
        network: Network,
        key: &Key,
        by: By<'_>,
        listed: bool,
        claim: &Claim,
    ) -> Result<Good, Owner> {
        let &Claim { mac, kind, address } = claim;
        let holder = self.holder(now, key);
        match by {
            By::Outside => match holder {
                Some((endpoint, held)) if held.mac != mac && kind != Kind::RouterBinding && !listed => {
                    Err(Owner::Held(endpoint))
                }
                _ => Ok(if kind == Kind::Probe { Good::Plain } else { Good::Hold }),
            },
            By::Endpoint(own, tenant, identity, _) => {
                if let Some((endpoint, held)) = holder
                    && endpoint != own
                    && (held.tenant != tenant || is_link_local(address) && held.mac != mac)
                {
                    return Err(Owner::Held(endpoint));
                }
                match self.outside.find(now, key) {
                    Some(seen) if seen.mac != mac && (!listed || seen.is_router) => return Err(Owner::Outside),
                    None if !listed && self.is_new_where_crowded(now, network, key, own) => {
                        return Err(Owner::Unknown);
                    }
                    _ => {}
                }
                // Who asks for what it may not have holds nothing by that; and packets alone do not
                // show neighbours who has an address. But who uses what it has goes on having it.
                let is_its = holder.is_some_and(|(endpoint, held)| endpoint == own && held.mac == mac);
                let may_hold = kind != Kind::Source || is_link_local(address) || is_its;
                let holds = may_hold && identity.right(address).is_some();
                Ok(if holds { Good::Hold } else { Good::Plain })
            }
        }
    }

    fn is_new_where_crowded(&self, now: Instant, network: Network, key: &Key, own: EndpointId) -> bool {
        self.outside.is_crowded(now, slot(network)) && self.holder(now, key).is_none_or(|(holder, _)| holder != own)
    }

    fn holder(&self, now: Instant, key: &Key) -> Option<(EndpointId, OwnerEntry)> {
        let id = self.held.find(key)?;
        let endpoint = EndpointId(self.held.list(id)?);
        self.held.get(id).filter(|_| self.left(now, id) > 0).map(|held| (endpoint, *held))
    }

    /// For how many nanoseconds an address is held yet. One that another switch knew may have been
    /// seen before this one's time began.
    fn left(&self, now: Instant, id: Id) -> u64 {
        let held = self.held.get(id).zip(self.held.seen(id));
        held.map_or(0, |(held, seen)| held.expires.min(seen.plus_ns(self.age_ns)).since(now))
    }

    fn hold(&mut self, now: Instant, network: Network, by: By<'_>, claim: &Claim) {
        let &Claim { address, mac, kind } = claim;
        let key = Key::new(network, address);
        match by {
            By::Outside => {
                self.forget(&key);
                let known = self.outside.find(now, &key).copied();
                let is_router =
                    kind == Kind::RouterBinding || known.is_some_and(|seen| seen.is_router && seen.mac == mac);
                if self.outside.note(now, slot(network), key, Seen { mac, is_router })
                    || known.map(|seen| seen.mac) != Some(mac)
                {
                    self.changes += 1;
                }
            }
            By::Endpoint(endpoint, tenant, ..) => {
                self.outside.forget(&key);
                let expires = now.plus_ns(self.age_ns);
                self.hold_inside(now, key, endpoint, OwnerEntry { tenant, mac, expires });
            }
        }
    }

    fn hold_inside(&mut self, now: Instant, key: Key, endpoint: EndpointId, held: OwnerEntry) {
        if let Some(id) = self.held.find(&key) {
            // Others may have used meanwhile what had aged.
            let is_aged = self.left(now, id) == 0;
            self.changes += u64::from(is_aged || self.held.list(id) != Some(endpoint.0));
            self.held.touch(now, id, endpoint.0);
            if let Some(old) = self.held.get_mut(id) {
                *old = held;
            }
        } else {
            self.changes += 1;
            self.make_room(endpoint);
            // There is room for all that each may hold.
            let _ = self.held.insert(now, endpoint.0, key, held);
        }
        while self.held.count(endpoint.0) > MOST_HELD {
            self.forget_oldest(endpoint);
        }
    }

    fn make_room(&mut self, endpoint: EndpointId) {
        if self.held.count(endpoint.0) >= MOST_HELD {
            self.forget_oldest(endpoint);
        }
    }

    fn forget_oldest(&mut self, endpoint: EndpointId) {
        let oldest: Option<Id> = self.held.oldest(endpoint.0);
        if let Some(id) = oldest {
            self.held.remove(id);
        }
    }

    /// What an endpoint holds: addresses, the MAC addresses given for them, and for how many
    /// nanoseconds yet. The newest first.
    pub fn held_by(&self, now: Instant, endpoint: EndpointId) -> impl Iterator<Item = (IpAddr, Mac, u64)> + '_ {
        let all = self.held.newest_first(endpoint.0);
        all.map(move |(id, key, held)| (key.address(), held.mac, self.left(now, id)))
            .filter(|(.., left_ns)| *left_ns > 0)
    }

    /// Whether an endpoint may hold an address: nobody lists it, here or elsewhere, or has come to
    /// since.
    #[must_use]
    pub fn may_hold(&self, network: Network, identity: &Identity, address: IpAddr) -> bool {
        let key = Key::new(network, address);
        identity.right(address).is_some() && !self.declared.contains_key(&key) && !self.is_kept(&key)
    }

    /// What was seen outside: addresses, the MAC addresses given for them, whether by a router, and
    /// for how many nanoseconds yet. The newest first.
    pub fn outside(&self, now: Instant, network: Network) -> impl Iterator<Item = (IpAddr, Mac, bool, u64)> + '_ {
        self.outside
            .of(now, slot(network))
            .map(|(key, seen, left_ns)| (key.address(), seen.mac, seen.is_router, left_ns))
    }

    /// An endpoint holds an address again. False where it may not.
    pub fn restore(
        &mut self,
        now: Instant,
        network: Network,
        (endpoint, tenant, identity): (EndpointId, TenantId, &Identity),
        (address, mac): (IpAddr, Mac),
        left_ns: u64,
    ) -> bool {
        let (key, may) = (Key::new(network, address), self.may_hold(network, identity, address));
        let is_new = self.held.find(&key).is_none() && self.held.count(endpoint.0) < MOST_HELD;
        let held = OwnerEntry { tenant, mac, expires: now.plus_ns(left_ns.min(self.age_ns)) };
        left_ns > 0 && may && is_new && self.held.insert(now, endpoint.0, key, held).is_ok()
    }

    /// An address was seen outside before. False where it is known.
    pub fn restore_outside(
        &mut self,
        now: Instant,
        network: Network,
        (address, mac, is_router): (IpAddr, Mac, bool),
        left_ns: u64,
    ) -> bool {
        self.outside.restore(now, slot(network), Key::new(network, address), Seen { mac, is_router }, left_ns)
    }

    /// For how many nanoseconds more addresses of a network may be outside than are known.
    #[must_use]
    pub fn crowded_ns(&self, now: Instant, network: Network) -> u64 {
        self.outside.crowded_ns(now, slot(network))
    }

    /// For so long more addresses of a network may be outside than are known.
    pub fn crowd(&mut self, now: Instant, network: Network, for_ns: u64) {
        self.outside.crowd(now, slot(network), for_ns);
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
