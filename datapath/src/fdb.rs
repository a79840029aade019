//! The forwarding database: which endpoint has which address, network by network (IEEE 802.1Q
//! clause 8.8).
//!
//! Declared addresses come with the program and always win. Learned ones exist only for endpoints
//! whose addresses are not declared; each endpoint may have a number of them, so that a flood of
//! made-up addresses fills its own quota and nothing else. They are forgotten when they were not
//! seen for a while, and with their endpoint: each endpoint's entries are a list. An address that
//! moves twice within [`HOLD_NS`] stays where it is: that is a loop or a spoof. It moves within a
//! tenant only, and an address that was seen outside ([`crate::outside`]), or that another host's
//! endpoint has declared, is not learned here: where one side has it, the other has to wait until
//! it has aged there. That holds both ways. Keys are hashed with SipHash under a key from the seed,
//! because strangers choose them.

use crate::ids::{EndpointId, TenantId};
use crate::network::{Network, slot};
use crate::outside::Outside;
use crate::random::Keyed;
use crate::units::Instant;
use crate::wire::Mac;
use std::collections::HashMap;

/// An address that moved may not move again for so long.
const HOLD_NS: u64 = 1_000_000_000;
/// Learned entries looked at for their age with each new one.
const SWEEP: usize = 4;
/// The shortest life of a learned address, in nanoseconds: the frame it is learned from may find
/// it.
const LEAST_AGE: u64 = 1;
/// No entry.
const NONE: u32 = u32::MAX;

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

#[derive(Clone, Copy, Debug)]
struct Learned {
    key: Key,
    endpoint: EndpointId,
    /// When it is forgotten, unless it is seen again.
    expires: Instant,
    moved: Option<Instant>,
    /// The endpoint's next and previous entry.
    next: u32,
    prev: u32,
}

/// What one endpoint may have learned.
#[derive(Clone, Copy, Debug)]
struct Quota {
    tenant: TenantId,
    count: u32,
    most: u32,
    /// Its first entry.
    head: u32,
}

impl Quota {
    const NONE: Quota = Quota { tenant: TenantId(0), count: 0, most: 0, head: NONE };
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
    learned: HashMap<Key, u32, Keyed>,
    /// How often an address is said to be outside.
    elsewhere: HashMap<Key, u32, Keyed>,
    /// What was seen outside of networks whose addresses are learned.
    outside: Outside<Key, ()>,
    entries: Vec<Learned>,
    /// By endpoint.
    quotas: Vec<Quota>,
    /// The sum of what all endpoints may have: there is room for so many without allocation.
    room: usize,
    cursor: usize,
    age_ns: u64,
}

impl Fdb {
    /// An empty database that forgets after `age_ns`, hashed under `seed`.
    #[must_use]
    pub fn new(age_ns: u64, seed: u64) -> Self {
        let keyed = Keyed::new(seed);
        Fdb {
            declared: HashMap::with_hasher(keyed),
            learned: HashMap::with_hasher(keyed),
            elsewhere: HashMap::with_hasher(keyed),
            outside: Outside::new(keyed, age_ns.max(LEAST_AGE)),
            entries: Vec::new(),
            quotas: Vec::new(),
            room: 0,
            cursor: 0,
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

    /// A tenant's network is another's from now on.
    pub fn clear_outside(&mut self, network: Network) {
        self.outside.clear(slot(network));
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

    /// An address of a network is said to be outside (or no longer): where it is not declared here,
    /// nobody here may have it.
    pub fn set_elsewhere(&mut self, network: Network, mac: Mac, is_there: bool) {
        let key = Key::new(network, 0, mac);
        if is_there {
            *self.elsewhere.entry(key).or_default() += 1;
            if let Some(&index) = self.learned.get(&key) {
                self.forget(index);
            }
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
            if let Some(&index) = self.learned.get(&key) {
                self.forget(index);
            }
        }
        if self.quotas.len() <= endpoint.0 as usize {
            self.quotas.resize(endpoint.0 as usize + 1, Quota::NONE);
        }
        let quota = &mut self.quotas[endpoint.0 as usize];
        let most = if macs.is_empty() { max_learned } else { 0 };
        self.room = self.room - quota.most as usize + most as usize;
        (quota.tenant, quota.most) = (tenant, most);
        while self.quotas[endpoint.0 as usize].count > most {
            self.forget(self.quotas[endpoint.0 as usize].head);
        }
        // Twice the room, so that removed entries' traces never make the table grow.
        self.learned.reserve(2 * self.room - self.learned.len());
        self.entries.reserve(self.room - self.entries.len());
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
        if let Some(&endpoint) = self.declared.get(&Key::new(network, 0, mac)) {
            return Some(endpoint);
        }
        if self.entries.is_empty() {
            return None;
        }
        let &index = self.learned.get(&Key::new(network, vlan, mac))?;
        let entry = &self.entries[index as usize];
        (now < entry.expires).then_some(entry.endpoint)
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
        let known = self.learned.get(&key).copied();
        match self.judge(now, network, (vlan, mac), known, endpoint) {
            Learning::Known => {}
            refused => return refused,
        }
        if let Some(index) = known {
            return self.refresh(now, index as usize, endpoint);
        }
        self.sweep(now);
        let quota = self.quotas[endpoint.0 as usize];
        if quota.count >= quota.most {
            return Learning::Full;
        }
        // What was there and has aged is here now, however long addresses are to live from now on.
        self.outside.forget(&key);
        let index = self.entries.len() as u32;
        self.learned.insert(key, index);
        let expires = now.plus_ns(self.age_ns);
        self.entries.push(Learned { key, endpoint, expires, moved: None, next: NONE, prev: NONE });
        self.link(index, endpoint);
        Learning::Known
    }

    /// Whether an address may be an endpoint's that has not declared it; `known` is its entry.
    fn judge(
        &self,
        now: Instant,
        network: Network,
        (vlan, mac): (u16, Mac),
        known: Option<u32>,
        endpoint: EndpointId,
    ) -> Learning {
        let live = known.map(|index| self.entries[index as usize]).filter(|entry| now < entry.expires);
        let quota = &self.quotas[endpoint.0 as usize];
        match live {
            Some(entry) if entry.endpoint == endpoint => return Learning::Known,
            Some(entry) if self.quotas[entry.endpoint.0 as usize].tenant != quota.tenant => {
                return Learning::Taken(entry.endpoint);
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
        let known = self.learned.get(&Key::new(network, vlan, mac)).copied();
        match self.judge(now, network, (vlan, mac), known, endpoint) {
            Learning::Known => {}
            refused => return refused,
        }
        let quota = self.quotas[endpoint.0 as usize];
        let Some(index) = known else {
            let full = quota.count - self.would_sweep(now, endpoint) >= quota.most;
            return if full { Learning::Full } else { Learning::Known };
        };
        let entry = &self.entries[index as usize];
        if entry.endpoint == endpoint {
            return Learning::Known;
        }
        let aged = now >= entry.expires;
        if !aged && entry.moved.is_some_and(|moved| now.since(moved) < HOLD_NS) {
            return Learning::Flapping(entry.endpoint);
        }
        if quota.count >= quota.most { Learning::Full } else { Learning::Known }
    }

    /// How many of an endpoint's addresses the next [`Fdb::sweep`] would forget. What is forgotten
    /// leaves its place to the last entry.
    fn would_sweep(&self, now: Instant, endpoint: EndpointId) -> u32 {
        let (mut len, mut cursor, mut freed) = (self.entries.len(), self.cursor, 0);
        let mut moved = [(usize::MAX, 0); SWEEP];
        for round in 0..SWEEP.min(len) {
            if cursor >= len {
                cursor = 0;
            }
            let at = |place| moved.iter().rev().find(|&&(to, _)| to == place).map_or(place, |&(_, from)| from);
            let entry = &self.entries[at(cursor)];
            if now < entry.expires {
                cursor += 1;
                continue;
            }
            freed += u32::from(entry.endpoint == endpoint);
            moved[round] = (cursor, at(len - 1));
            len -= 1;
            if len == 0 {
                break;
            }
        }
        freed
    }

    /// How long ago a learned address was last seen, in nanoseconds.
    #[must_use]
    pub fn seen_ns(&self, now: Instant, network: Network, vlan: u16, mac: Mac) -> Option<u64> {
        let &index = self.learned.get(&Key::new(network, vlan, mac))?;
        let left_ns = self.entries[index as usize].expires.since(now);
        Some(self.age_ns.saturating_sub(left_ns))
    }

    /// How many addresses `endpoint` has learned, those included that are yet to be forgotten.
    #[must_use]
    pub fn count_by(&self, endpoint: EndpointId) -> u32 {
        self.quotas.get(endpoint.0 as usize).map_or(0, |quota| quota.count)
    }

    /// What `endpoint` has learned and not forgotten, what it learned last first: VLAN, address,
    /// and for how many nanoseconds yet.
    pub fn learned_by(&self, now: Instant, endpoint: EndpointId) -> impl Iterator<Item = (u16, Mac, u64)> + '_ {
        self.newest_by(now, endpoint, usize::MAX)
    }

    /// The same among the `most` addresses that it learned last.
    pub fn newest_by(
        &self,
        now: Instant,
        endpoint: EndpointId,
        most: usize,
    ) -> impl Iterator<Item = (u16, Mac, u64)> + '_ {
        let entry = |index: u32| self.entries.get(index as usize);
        let head = self.quotas.get(endpoint.0 as usize).and_then(move |quota| entry(quota.head));
        let all = std::iter::successors(head, move |found| entry(found.next));
        all.take(most)
            .filter(move |found| now < found.expires)
            .map(move |found| (found.key.1 as u16, found.key.mac(), found.expires.since(now)))
    }

    /// Learns what another database knew, for `left_ns` or as long as addresses live here. False
    /// where it is known or may not be.
    pub fn restore(
        &mut self,
        now: Instant,
        network: Network,
        vlan: u16,
        mac: Mac,
        endpoint: EndpointId,
        left_ns: u64,
    ) -> bool {
        let known = self.learned.contains_key(&Key::new(network, vlan, mac));
        if known || left_ns == 0 || self.learn(now, network, vlan, mac, endpoint) != Learning::Known {
            return false;
        }
        if let Some(entry) = self.entries.last_mut() {
            entry.expires = now.plus_ns(left_ns.min(self.age_ns));
        }
        true
    }

    /// Addresses learned and not yet forgotten.
    #[must_use]
    pub fn learned(&self) -> usize {
        self.entries.len()
    }

    fn refresh(&mut self, now: Instant, index: usize, endpoint: EndpointId) -> Learning {
        let entry = &mut self.entries[index];
        if entry.endpoint == endpoint {
            entry.expires = now.plus_ns(self.age_ns);
            return Learning::Known;
        }
        let aged = now >= entry.expires;
        if !aged && entry.moved.is_some_and(|moved| now.since(moved) < HOLD_NS) {
            return Learning::Flapping(entry.endpoint);
        }
        let quota = self.quotas[endpoint.0 as usize];
        if quota.count >= quota.most {
            return Learning::Full;
        }
        self.unlink(index as u32);
        self.link(index as u32, endpoint);
        let entry = &mut self.entries[index];
        entry.expires = now.plus_ns(self.age_ns);
        entry.moved = Some(now);
        Learning::Known
    }

    /// Forgets some of what is too old; a few entries at a time, so that no frame waits for the
    /// whole table.
    fn sweep(&mut self, now: Instant) {
        for _ in 0..SWEEP.min(self.entries.len()) {
            if self.cursor >= self.entries.len() {
                self.cursor = 0;
            }
            if now < self.entries[self.cursor].expires {
                self.cursor += 1;
                continue;
            }
            self.forget(self.cursor as u32);
            if self.entries.is_empty() {
                return;
            }
        }
    }

    /// Removes an entry; the last one takes its place.
    fn forget(&mut self, index: u32) {
        self.unlink(index);
        let entry = self.entries.swap_remove(index as usize);
        self.learned.remove(&entry.key);
        let Some(&moved) = self.entries.get(index as usize) else { return };
        self.learned.insert(moved.key, index);
        match moved.prev {
            NONE => self.quotas[moved.endpoint.0 as usize].head = index,
            prev => self.entries[prev as usize].next = index,
        }
        if moved.next != NONE {
            self.entries[moved.next as usize].prev = index;
        }
    }

    /// Puts an entry first in `endpoint`'s list.
    fn link(&mut self, index: u32, endpoint: EndpointId) {
        let quota = &mut self.quotas[endpoint.0 as usize];
        let next = std::mem::replace(&mut quota.head, index);
        quota.count += 1;
        if next != NONE {
            self.entries[next as usize].prev = index;
        }
        let entry = &mut self.entries[index as usize];
        (entry.endpoint, entry.next, entry.prev) = (endpoint, next, NONE);
    }

    /// Takes an entry out of its endpoint's list.
    fn unlink(&mut self, index: u32) {
        let Learned { endpoint, next, prev, .. } = self.entries[index as usize];
        let quota = &mut self.quotas[endpoint.0 as usize];
        quota.count -= 1;
        match prev {
            NONE => quota.head = next,
            prev => self.entries[prev as usize].next = next,
        }
        if next != NONE {
            self.entries[next as usize].prev = prev;
        }
    }
}
