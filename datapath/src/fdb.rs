//! The forwarding database: which endpoint has which address, network by network (IEEE 802.1Q clause 8.8).
//!
//! Declared addresses come with the program and always win. Learned ones exist only for endpoints whose addresses are not declared; each
//! endpoint may have a number of them, so that a flood of made-up addresses fills its own quota and nothing else. They are forgotten when
//! they were not seen for a while. An address that moves twice within [`HOLD_NS`] stays where it is: that is a loop or a spoof.
//! Keys are hashed with SipHash under a key from the seed, because strangers choose them.

use crate::program::{Attachment, EndpointId, Program};
use crate::units::Instant;
use crate::wire::Mac;
use siphasher::sip::SipHasher13;
use std::collections::HashMap;
use std::hash::BuildHasher;

/// An address that moved may not move again for so long.
const HOLD_NS: u64 = 1_000_000_000;
/// Learned entries looked at for their age with each new one.
const SWEEP: usize = 4;

/// One layer-2 domain: a tenant's own, or the untagged one that tenants share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Network(pub u32);

impl Network {
    /// The untagged network of the uplink.
    pub const UNTAGGED: Network = Network(u32::MAX);
}

/// Builds hashers under one secret key.
#[derive(Clone, Copy, Debug)]
struct Keyed(u64, u64);

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}

/// An address in its network and, behind trunks, its VLAN, in one word each: one hash of 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key(u64, u64);

impl Key {
    fn new(network: Network, vlan: u16, mac: Mac) -> Key {
        let [a, b, c, d, e, f] = mac.0;
        Key(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), u64::from(network.0) << 16 | u64::from(vlan))
    }
}

#[derive(Clone, Copy, Debug)]
struct Learned {
    key: Key,
    endpoint: EndpointId,
    seen: Instant,
    moved: Option<Instant>,
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
    /// The endpoint's quota is full.
    Full,
}

/// Addresses to endpoints.
#[derive(Debug)]
pub struct Fdb {
    declared: HashMap<Key, EndpointId, Keyed>,
    learned: HashMap<Key, u32, Keyed>,
    entries: Vec<Learned>,
    /// Learned addresses by endpoint, and how many it may have.
    count: Vec<(u32, u32)>,
    cursor: usize,
    age_ns: u64,
}

impl Fdb {
    /// The database of `program`, hashed under `seed`.
    #[must_use]
    pub fn new(program: &Program, seed: u64) -> Self {
        let keyed = Keyed(seed, seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15);
        let mut declared = HashMap::with_capacity_and_hasher(program.endpoints.len(), keyed);
        let mut quota = 0;
        for (index, endpoint) in program.endpoints.iter().enumerate() {
            let network = network_of(program, EndpointId(index as u32));
            for &mac in &endpoint.identity.macs {
                declared.insert(Key::new(network, 0, mac), EndpointId(index as u32));
            }
            if endpoint.identity.macs.is_empty() {
                quota += endpoint.max_learned as usize;
            }
        }
        Fdb {
            declared,
            // Twice the room, so that removed entries' traces never make the table grow.
            learned: HashMap::with_capacity_and_hasher(2 * quota, keyed),
            entries: Vec::with_capacity(quota),
            count: program.endpoints.iter().map(|e| (0, e.max_learned)).collect(),
            cursor: 0,
            age_ns: program.fdb_age_ns,
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
        (now.since(entry.seen) < self.age_ns).then_some(entry.endpoint)
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
        if let Some(&index) = self.learned.get(&key) {
            return self.refresh(now, index as usize, endpoint);
        }
        self.sweep(now);
        let (count, most) = &mut self.count[endpoint.0 as usize];
        if *count >= *most {
            return Learning::Full;
        }
        *count += 1;
        self.learned.insert(key, self.entries.len() as u32);
        self.entries.push(Learned { key, endpoint, seen: now, moved: None });
        Learning::Known
    }

    /// Addresses learned and not yet forgotten.
    #[must_use]
    pub fn learned(&self) -> usize {
        self.entries.len()
    }

    fn refresh(&mut self, now: Instant, index: usize, endpoint: EndpointId) -> Learning {
        let entry = &mut self.entries[index];
        if entry.endpoint == endpoint {
            entry.seen = now;
            return Learning::Known;
        }
        let aged = now.since(entry.seen) >= self.age_ns;
        if !aged && entry.moved.is_some_and(|moved| now.since(moved) < HOLD_NS) {
            return Learning::Flapping(entry.endpoint);
        }
        let (count, most) = &mut self.count[endpoint.0 as usize];
        if *count >= *most {
            return Learning::Full;
        }
        *count += 1;
        self.count[entry.endpoint.0 as usize].0 -= 1;
        entry.endpoint = endpoint;
        entry.seen = now;
        entry.moved = Some(now);
        Learning::Known
    }

    /// Forgets some of what is too old; a few entries at a time, so that no frame waits for the whole table.
    fn sweep(&mut self, now: Instant) {
        for _ in 0..SWEEP.min(self.entries.len()) {
            if self.cursor >= self.entries.len() {
                self.cursor = 0;
            }
            let entry = self.entries[self.cursor];
            if now.since(entry.seen) < self.age_ns {
                self.cursor += 1;
                continue;
            }
            self.learned.remove(&entry.key);
            self.count[entry.endpoint.0 as usize].0 -= 1;
            self.entries.swap_remove(self.cursor);
            if let Some(moved) = self.entries.get(self.cursor) {
                self.learned.insert(moved.key, self.cursor as u32);
            }
            if self.entries.is_empty() {
                return;
            }
        }
    }
}

/// The network that an endpoint is in.
#[must_use]
pub fn network_of(program: &Program, endpoint: EndpointId) -> Network {
    let tenant = program.endpoints[endpoint.0 as usize].tenant;
    match program.tenants[tenant.0 as usize].attachment {
        Attachment::Untagged => Network::UNTAGGED,
        Attachment::Isolated | Attachment::Vlan(_) => Network(tenant.0),
    }
}
