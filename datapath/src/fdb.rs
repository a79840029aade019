//! The forwarding database: which endpoint has which address, network by network (IEEE 802.1Q
//! clause 8.8).
//!
//! Declared addresses come with the program and always win. Learned ones exist only for endpoints
//! whose addresses are not declared; each endpoint may have a number of them, so that a flood of
//! made-up addresses fills its own quota and nothing else. They are forgotten when they were not
//! seen for a while, and with their endpoint: each endpoint's entries are a list of the table
//! ([`crate::table`]), the one that was seen longest ago first. An address that moves twice within
//! [`HOLD_NS`] stays where it is: that is a loop or a spoof. It moves within a tenant only, and an
//! address that was seen outside ([`crate::outside`]), or that another host's endpoint has
//! declared, is not learned here: where one side has it, the other has to wait until it has aged
//! there. That holds both ways. Keys are hashed with SipHash under a key from the seed, because
//! strangers choose them.

use crate::ids::{EndpointId, TenantId};
use crate::network::{Network, slot};
use crate::outside::Outside;
use crate::random::Keyed;
use crate::table::{Id, Table};
use crate::units::Instant;
use crate::wire::Mac;
use std::collections::HashMap;

/// An address that moved may not move again for so long.
const HOLD_NS: u64 = 1_000_000_000;
/// Aged entries of an endpoint that a new one of it makes forgotten: more than one, so that their
/// number falls.
const SWEEP: u32 = 4;
/// The shortest life of a learned address, in nanoseconds: the frame it is learned from may find
/// it.
const LEAST_AGE: u64 = 1;

/// An address in its network and, behind trunks, its VLAN, in one word each: one hash of 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key(u64, u64);

impl Key {
    fn new(network: Network, vlan: u16, mac: Mac) -> Key {
        let [a, b, c, d, e, f] = mac.0;
        Key(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), u64::from(network.0) << 16 | u64::from(vlan))
    }

    fn mac(self) -> Mac {
        let [_, _, mac @ ..] = self.0.to_be_bytes();
        Mac(mac)
    }
}

/// A learned address; its list is its endpoint's.
#[derive(Clone, Copy, Debug)]
struct Learned {
    /// When it is forgotten, unless it is seen again.
    expires: Instant,
    moved: Option<Instant>,
}

/// What one endpoint may have learned.
#[derive(Clone, Copy, Debug)]
struct Quota {
    tenant: TenantId,
    most: u32,
}

impl Quota {
    const NONE: Quota = Quota { tenant: TenantId(0), most: 0 };
}

/// What became of a source address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learning {
    /// Known, new, or moved: the frame may go on.
    Known,
    /// Another endpoint has declared it.
    Declared,
    /// It was learned from another endpoint, and moved only just now.
    Flapping(EndpointId),
    /// Another tenant's endpoint has it.
    Taken(EndpointId),
    /// It is listed as outside, or another host's endpoint has declared it.
    Elsewhere,
    /// It was seen outside.
    Outside,
    /// More addresses are outside than are remembered: it may be one of them.
    Crowded,
    /// The endpoint's quota is full.
    Full,
    /// The endpoint may learn none.
    Forbidden,
}

/// Addresses to endpoints.
#[derive(Debug)]
pub struct Fdb {
    declared: HashMap<Key, EndpointId, Keyed>,
    /// There is room for all that endpoints may have, without allocation.
    learned: Table<Key, Learned>,
    /// How often an address is said to be outside.
    elsewhere: HashMap<Key, u32, Keyed>,
    /// What was seen outside of networks whose addresses are learned.
    outside: Outside<Key, ()>,
    /// By endpoint.
    quotas: Vec<Quota>,
    /// The sum of what all endpoints may have.
    room: u64,
    age_ns: u64,
}

impl Fdb {
    /// An empty database that forgets after `age_ns`, hashed under `seed`.
    #[must_use]
    pub fn new(age_ns: u64, seed: u64) -> Self {
        let keyed = Keyed::new(seed);
        Fdb {
            declared: HashMap::with_hasher(keyed),
            learned: Table::new(keyed, 0),
            elsewhere: HashMap::with_hasher(keyed),
            outside: Outside::new(keyed, age_ns.max(LEAST_AGE)),
            quotas: Vec::new(),
            room: 0,
            age_ns: age_ns.max(LEAST_AGE),
        }
    }

    /// Makes room for endpoints 0..`endpoints` with a declared address each.
    pub fn reserve(&mut self, endpoints: usize) {
        self.declared.reserve(endpoints.saturating_sub(self.declared.len()));
        self.quotas.reserve(endpoints.saturating_sub(self.quotas.len()));
    }

    /// Changes how long learned addresses live from when they are next seen.
    pub fn set_age(&mut self, age_ns: u64) {
        self.age_ns = age_ns.max(LEAST_AGE);
        self.outside.set_age(self.age_ns);
    }

    /// Makes room for what is outside: of the untagged network, and those of tenants 0..`tenants`.
    pub fn reserve_outside(&mut self, tenants: usize) {
        self.outside.reserve(tenants + 1);
    }

    /// A frame from outside came from `mac`, which nobody here has.
    pub fn see_outside(&mut self, now: Instant, network: Network, mac: Mac) {
        self.outside.note(now, slot(network), Key::new(network, 0, mac), ());
    }

    /// Whether an address was seen outside, and not long ago.
    #[must_use]
    pub fn is_outside(&self, now: Instant, network: Network, mac: Mac) -> bool {
        self.outside.find(now, &Key::new(network, 0, mac)).is_some()
    }

    /// A network is another's from now on, or attached otherwise: others are outside of it.
    pub fn clear_outside(&mut self, network: Network) {
        self.outside.clear(slot(network));
    }

    /// No network has an outside any more.
    pub fn clear_all_outside(&mut self, now: Instant) {
        self.outside.clear_all(now);
    }

    /// What was seen outside, and for how many nanoseconds it is remembered yet; the newest first.
    pub fn outside(&self, now: Instant, network: Network) -> impl Iterator<Item = (Mac, u64)> + '_ {
        self.outside.of(now, slot(network)).map(|(key, (), left_ns)| (key.mac(), left_ns))
    }

    /// An address was seen outside before. False where it is known, or somebody here has it.
    pub fn restore_outside(&mut self, now: Instant, network: Network, mac: Mac, left_ns: u64) -> bool {
        let key = Key::new(network, 0, mac);
        self.find(now, network, 0, mac).is_none() && self.outside.restore(now, slot(network), key, (), left_ns)
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

    /// An address of a network is said to be outside (or no longer): where it is not declared here,
    /// nobody here may have it.
    pub fn set_elsewhere(&mut self, network: Network, mac: Mac, is_there: bool) {
        let key = Key::new(network, 0, mac);
        if is_there {
            *self.elsewhere.entry(key).or_default() += 1;
            self.forget(&key);
            return;
        }
        if let Some(count) = self.elsewhere.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.elsewhere.remove(&key);
            }
        }
    }

    /// Whether an address is said to be outside, and not declared here.
    #[must_use]
    pub fn is_elsewhere(&self, network: Network, mac: Mac) -> bool {
        !self.elsewhere.is_empty()
            && self.elsewhere.contains_key(&Key::new(network, 0, mac))
            && self.declared(network, mac).is_none()
    }

    /// `endpoint` has `macs`, which nobody else in its network has; with none, it may have up to
    /// `max_learned` that are learned.
    pub fn set(&mut self, endpoint: EndpointId, tenant: TenantId, network: Network, macs: &[Mac], max_learned: u32) {
        for &mac in macs {
            let key = Key::new(network, 0, mac);
            self.declared.insert(key, endpoint);
            self.outside.forget(&key);
            self.forget(&key);
        }
        if self.quotas.len() <= endpoint.0 as usize {
            self.quotas.resize(endpoint.0 as usize + 1, Quota::NONE);
        }
        let quota = &mut self.quotas[endpoint.0 as usize];
        let most = if macs.is_empty() { max_learned } else { 0 };
        self.room = self.room - u64::from(quota.most) + u64::from(most);
        (quota.tenant, quota.most) = (tenant, most);
        while self.learned.count(endpoint.0) > most
            && let Some(oldest) = self.learned.oldest(endpoint.0)
        {
            self.learned.remove(oldest);
        }
        self.learned.set_most(u32::try_from(self.room).unwrap_or(u32::MAX));
        self.learned.reserve(self.quotas.len());
    }

    /// An endpoint is no trunk any more: what it has learned behind tags nobody finds, and it would
    /// fill its quota.
    pub fn forget_tagged(&mut self, endpoint: EndpointId) {
        let all = self.learned.oldest_first(endpoint.0);
        let tagged: Vec<Id> = all.filter(|(_, key, _)| key.1 as u16 != 0).map(|(id, ..)| id).collect();
        for id in tagged {
            self.learned.remove(id);
        }
    }

    /// Nobody has `macs` any more. What was learned stays: see [`Fdb::set`].
    pub fn undeclare(&mut self, network: Network, macs: &[Mac]) {
        for &mac in macs {
            self.declared.remove(&Key::new(network, 0, mac));
        }
    }

    /// Who has `mac`; `vlan` is 0 but behind trunks.
    #[must_use]
    pub fn find(&self, now: Instant, network: Network, vlan: u16, mac: Mac) -> Option<EndpointId> {
        if let Some(endpoint) = self.declared(network, mac) {
            return Some(endpoint);
        }
        if self.learned.is_empty() {
            return None;
        }
        let id = self.learned.find(&Key::new(network, vlan, mac))?;
        self.holder(now, id)
    }

    /// The endpoint of an entry that has not aged.
    fn holder(&self, now: Instant, id: Id) -> Option<EndpointId> {
        self.learned.get(id).filter(|entry| now < entry.expires)?;
        self.learned.list(id).map(EndpointId)
    }

    /// Who has declared `mac`.
    #[must_use]
    pub fn declared(&self, network: Network, mac: Mac) -> Option<EndpointId> {
        self.declared.get(&Key::new(network, 0, mac)).copied()
    }

    /// A frame with source `mac` came from `endpoint`, whose addresses are not declared.
    pub fn learn(&mut self, now: Instant, network: Network, vlan: u16, mac: Mac, endpoint: EndpointId) -> Learning {
        match self.declared(network, mac) {
            Some(owner) if owner != endpoint => return Learning::Declared,
            _ => {}
        }
        let key = Key::new(network, vlan, mac);
        let known = self.learned.find(&key);
        match self.judge(now, network, (vlan, mac), known, endpoint) {
            Learning::Known => {}
            refused => return refused,
        }
        let expires = now.plus_ns(self.age_ns);
        if let Some(id) = known {
            let moves = self.learned.list(id) != Some(endpoint.0);
            if moves {
                if let Some(refused) = self.refuse_move(now, id, endpoint) {
                    return refused;
                }
                self.sweep(now, endpoint);
            }
            self.learned.touch(now, id, endpoint.0);
            if let Some(entry) = self.learned.get_mut(id) {
                // What had aged is learned anew, and has not moved.
                let is_aged = entry.expires <= now;
                entry.expires = expires;
                entry.moved = entry.moved.filter(|_| !is_aged);
                if moves && !is_aged {
                    entry.moved = Some(now);
                }
            }
            return Learning::Known;
        }
        if self.is_full(now, endpoint) {
            return Learning::Full;
        }
        self.sweep(now, endpoint);
        // There is room for all that each may have.
        if self.learned.insert(now, endpoint.0, key, Learned { expires, moved: None }).is_err() {
            return Learning::Full;
        }
        // What was there and has aged is here now, however long addresses are to live from now on.
        self.outside.forget(&key);
        Learning::Known
    }

    /// Whether an address may be an endpoint's that has not declared it; `known` is its entry.
    fn judge(
        &self,
        now: Instant,
        network: Network,
        (vlan, mac): (u16, Mac),
        known: Option<Id>,
        endpoint: EndpointId,
    ) -> Learning {
        let quota = &self.quotas[endpoint.0 as usize];
        match known.and_then(|id| self.holder(now, id)) {
            Some(holder) if holder == endpoint => return Learning::Known,
            Some(holder) if self.quotas[holder.0 as usize].tenant != quota.tenant => {
                return Learning::Taken(holder);
            }
            _ if quota.most == 0 => return Learning::Forbidden,
            Some(_) => return Learning::Known,
            None => {}
        }
        let key = Key::new(network, 0, mac);
        if vlan != 0 {
            // What is behind a tag of a trunk's own is nowhere else.
            Learning::Known
        } else if !self.elsewhere.is_empty() && self.elsewhere.contains_key(&key) {
            Learning::Elsewhere
        } else if self.outside.find(now, &key).is_some() {
            Learning::Outside
        } else if self.outside.is_crowded(now, slot(network)) {
            Learning::Crowded
        } else {
            Learning::Known
        }
    }

    /// What [`Fdb::learn`] would say; nothing is learned.
    #[must_use]
    pub fn would_learn(&self, now: Instant, network: Network, vlan: u16, mac: Mac, endpoint: EndpointId) -> Learning {
        match self.declared(network, mac) {
            Some(owner) if owner != endpoint => return Learning::Declared,
            _ => {}
        }
        let known = self.learned.find(&Key::new(network, vlan, mac));
        match self.judge(now, network, (vlan, mac), known, endpoint) {
            Learning::Known => {}
            refused => return refused,
        }
        if let Some(id) = known {
            let moves = self.learned.list(id) != Some(endpoint.0);
            return moves.then(|| self.refuse_move(now, id, endpoint)).flatten().unwrap_or(Learning::Known);
        }
        if self.is_full(now, endpoint) { Learning::Full } else { Learning::Known }
    }

    /// Why an address that another endpoint has, or had, does not move to this one.
    fn refuse_move(&self, now: Instant, id: Id, endpoint: EndpointId) -> Option<Learning> {
        let moved = self.learned.get(id).and_then(|entry| entry.moved);
        match self.holder(now, id) {
            Some(holder) if moved.is_some_and(|moved| now.since(moved) < HOLD_NS) => Some(Learning::Flapping(holder)),
            _ => self.is_full(now, endpoint).then_some(Learning::Full),
        }
    }

    /// Whether an endpoint has no room for one more address, nor any that makes some.
    fn is_full(&self, now: Instant, endpoint: EndpointId) -> bool {
        let left = self.learned.count(endpoint.0) - self.aged(now, endpoint);
        left >= self.quotas[endpoint.0 as usize].most
    }

    /// Forgets those of an endpoint's addresses that a new one makes forgotten.
    fn sweep(&mut self, now: Instant, endpoint: EndpointId) {
        for _ in 0..self.aged(now, endpoint) {
            if let Some(oldest) = self.learned.oldest(endpoint.0) {
                self.learned.remove(oldest);
            }
        }
    }

    /// How many of an endpoint's addresses, those seen longest ago, a new one makes forgotten.
    fn aged(&self, now: Instant, endpoint: EndpointId) -> u32 {
        let oldest = self.learned.oldest_first(endpoint.0).take(SWEEP as usize);
        oldest.take_while(|(.., entry)| now >= entry.expires).count() as u32
    }

    /// How long ago a learned address was last seen, in nanoseconds.
    #[must_use]
    pub fn seen_ns(&self, now: Instant, network: Network, vlan: u16, mac: Mac) -> Option<u64> {
        let entry = self.learned.get(self.learned.find(&Key::new(network, vlan, mac))?)?;
        Some(self.age_ns.saturating_sub(entry.expires.since(now)))
    }

    /// How many addresses `endpoint` has learned, those included that are yet to be forgotten.
    #[must_use]
    pub fn count_by(&self, endpoint: EndpointId) -> u32 {
        self.learned.count(endpoint.0)
    }

    /// What `endpoint` has learned and not forgotten, what was seen last first: VLAN, address,
    /// and for how many nanoseconds yet.
    pub fn learned_by(&self, now: Instant, endpoint: EndpointId) -> impl Iterator<Item = (u16, Mac, u64)> + '_ {
        self.newest_by(now, endpoint, usize::MAX)
    }

    /// The same among the `most` addresses of it that were seen last.
    pub fn newest_by(
        &self,
        now: Instant,
        endpoint: EndpointId,
        most: usize,
    ) -> impl Iterator<Item = (u16, Mac, u64)> + '_ {
        self.learned
            .newest_first(endpoint.0)
            .take(most)
            .filter(move |(.., found)| now < found.expires)
            .map(move |(_, key, found)| (key.1 as u16, key.mac(), found.expires.since(now)))
    }

    /// Learns what another database knew, for `left_ns` or as long as addresses live here; to be
    /// told in the order oldest first. False where it is known or may not be.
    pub fn restore(
        &mut self,
        now: Instant,
        network: Network,
        vlan: u16,
        mac: Mac,
        endpoint: EndpointId,
        left_ns: u64,
    ) -> bool {
        let key = Key::new(network, vlan, mac);
        let known = self.learned.find(&key).is_some();
        if known || left_ns == 0 || self.learn(now, network, vlan, mac, endpoint) != Learning::Known {
            return false;
        }
        let id = self.learned.find(&key);
        if let Some(entry) = id.and_then(|id| self.learned.get_mut(id)) {
            entry.expires = now.plus_ns(left_ns.min(self.age_ns));
        }
        true
    }

    /// Addresses learned and not yet forgotten.
    #[must_use]
    pub fn learned(&self) -> usize {
        self.learned.len() as usize
    }

    fn forget(&mut self, key: &Key) {
        if let Some(id) = self.learned.find(key) {
            self.learned.remove(id);
        }
    }
}
