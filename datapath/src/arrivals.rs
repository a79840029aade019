//! Arrivals: what came from the uplink, by receiving endpoint and source address, and what of it was lost before it was delivered.
//!
//! The receiver's congestion agent works out from them who sends how much to whom. They are counted before the ingress queue, so they are the
//! demand as far as the network lets it through; losses are what the queue, its management or the policer took. Nothing is counted
//! unless somebody watches. Sources are chosen by strangers, so the table is bounded, for each endpoint and in all, and hashed under a key from
//! the seed. Where it is full, bytes still count for their endpoint, under no source. A source from which nothing came over a whole sample
//! is given up.

use crate::fdb::Keyed;
use crate::program::EndpointId;
use crate::wire::Mac;
use std::collections::HashMap;

/// Sources of one endpoint that are told apart in a sample.
pub const MOST_OF_ENDPOINT: u32 = 1024;
/// Sources of all endpoints: 100 endpoints that hear from 80 each.
pub const MOST: usize = 8192;

/// What arrived from one source for one endpoint since the last sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// For whom.
    pub to: EndpointId,
    /// The source address; `None` for all those for which there was no room.
    pub from: Option<Mac>,
    /// Bytes on the wire.
    pub wire_bytes: u64,
    /// Of what has arrived, wire bytes that were dropped or trimmed since the last sample.
    pub dropped_bytes: u64,
}

/// What arrived for one endpoint since the last sample, and what waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueSample {
    /// For whom.
    pub endpoint: EndpointId,
    /// Bytes on the wire.
    pub arrived_bytes: u64,
    /// Of what has arrived, wire bytes that were dropped or trimmed since the last sample.
    pub dropped_bytes: u64,
    /// Who sent what was dropped last.
    pub last_dropped: Option<Mac>,
    /// Wire bytes that wait in the ingress queue now.
    pub backlog_bytes: u64,
}

/// Receiver and source, in one word each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key(u64, u64);

impl Key {
    fn new(to: EndpointId, from: Mac) -> Key {
        let [a, b, c, d, e, f] = from.0;
        Key(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), u64::from(to.0))
    }

    fn to(self) -> EndpointId {
        EndpointId(self.1 as u32)
    }

    fn from(self) -> Mac {
        let [_, _, a, b, c, d, e, f] = self.0.to_be_bytes();
        Mac([a, b, c, d, e, f])
    }
}

/// Wire bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Bytes {
    arrived: u64,
    dropped: u64,
}

impl Bytes {
    const NONE: Bytes = Bytes { arrived: 0, dropped: 0 };

    fn arrival(self, to: EndpointId, from: Option<Mac>) -> Arrival {
        Arrival { to, from, wire_bytes: self.arrived, dropped_bytes: self.dropped }
    }
}

/// An endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Receiver {
    all: Bytes,
    /// Of it, from sources for which there was no room.
    others: Bytes,
    last_dropped: Option<Mac>,
    /// Its sources in the table.
    sources: u32,
    /// It is among those that the next sample looks at.
    active: bool,
}

/// The table.
#[derive(Debug)]
pub struct Arrivals {
    watched: bool,
    index: HashMap<Key, u32, Keyed>,
    sources: Vec<(Key, Bytes)>,
    /// The source that was looked up last: frames of one often come together.
    last: u32,
    /// By endpoint.
    receivers: Vec<Receiver>,
    active: Vec<EndpointId>,
}

impl Arrivals {
    /// An empty table that nobody watches, hashed under `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Arrivals {
        Arrivals {
            watched: false,
            index: HashMap::with_hasher(Keyed::new(seed)),
            sources: Vec::new(),
            last: 0,
            receivers: Vec::new(),
            active: Vec::new(),
        }
    }

    /// Starts counting, from nothing, or stops and gives the memory back.
    pub fn watch(&mut self, on: bool) {
        if on != self.watched {
            self.index = HashMap::with_hasher(*self.index.hasher());
            (self.sources, self.receivers, self.active) = (Vec::new(), Vec::new(), Vec::new());
            self.watched = on;
        }
    }

    /// Whether anybody watches.
    #[inline]
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// `wire_bytes` from `from` have arrived for `to`.
    pub fn arrive(&mut self, to: EndpointId, from: Mac, wire_bytes: u32) {
        self.count(to, from, Bytes { arrived: u64::from(wire_bytes), dropped: 0 });
    }

    /// `wire_bytes` of what `from` had sent were lost before `to` could have them.
    pub fn lose(&mut self, to: EndpointId, from: Mac, wire_bytes: u32) {
        self.count(to, from, Bytes { arrived: 0, dropped: u64::from(wire_bytes) });
        if let Some(receiver) = self.receivers.get_mut(to.0 as usize) {
            receiver.last_dropped = Some(from);
        }
    }

    /// The next sample looks at an endpoint, though nothing may arrive for it: something waits.
    pub fn expect(&mut self, endpoint: EndpointId) {
        let at = endpoint.0 as usize;
        if self.receivers.len() <= at {
            self.receivers.resize(at + 1, Receiver::default());
        }
        let receiver = &mut self.receivers[at];
        if !receiver.active {
            receiver.active = true;
            self.active.push(endpoint);
        }
    }

    /// What has arrived, and was lost, since the last call: only what is not zero. Both lists are emptied first. `backlog` says how many wire
    /// bytes wait for an endpoint.
    pub fn take(
        &mut self,
        arrivals: &mut Vec<Arrival>,
        queues: &mut Vec<QueueSample>,
        backlog: impl Fn(EndpointId) -> u64,
    ) {
        arrivals.clear();
        queues.clear();
        let mut at = 0;
        while let Some((key, bytes)) = self.sources.get_mut(at) {
            if *bytes == Bytes::NONE {
                self.give_up(at);
            } else {
                arrivals.push(std::mem::take(bytes).arrival(key.to(), Some(key.from())));
                at += 1;
            }
        }
        let receivers = &mut self.receivers;
        self.active.retain(|&endpoint| {
            let receiver = &mut receivers[endpoint.0 as usize];
            let backlog_bytes = backlog(endpoint);
            let Bytes { arrived, dropped } = std::mem::take(&mut receiver.all);
            let others = std::mem::take(&mut receiver.others);
            if others != Bytes::NONE {
                arrivals.push(others.arrival(endpoint, None));
            }
            let last_dropped = receiver.last_dropped.take();
            receiver.active = arrived + dropped + backlog_bytes > 0;
            if receiver.active {
                queues.push(QueueSample {
                    endpoint,
                    arrived_bytes: arrived,
                    dropped_bytes: dropped,
                    last_dropped,
                    backlog_bytes,
                });
            }
            receiver.active
        });
    }

    /// An endpoint's slot is vacant, or has another owner.
    pub fn forget(&mut self, endpoint: EndpointId) {
        let Some(receiver) = self.receivers.get_mut(endpoint.0 as usize) else { return };
        *receiver = Receiver { sources: receiver.sources, ..Receiver::default() };
        self.active.retain(|&other| other != endpoint);
        let mut at = 0;
        while let Some((key, _)) = self.sources.get(at) {
            if key.to() == endpoint { self.give_up(at) } else { at += 1 }
        }
    }

    fn count(&mut self, to: EndpointId, from: Mac, more: Bytes) {
        self.expect(to);
        let source = self.source(to, from);
        let receiver = &mut self.receivers[to.0 as usize];
        let counted = match source {
            Some(at) => &mut self.sources[at].1,
            None => &mut receiver.others,
        };
        for bytes in [counted, &mut receiver.all] {
            bytes.arrived += more.arrived;
            bytes.dropped += more.dropped;
        }
    }

    /// Where a source is in the table; a new one is put there while there is room.
    fn source(&mut self, to: EndpointId, from: Mac) -> Option<usize> {
        let key = Key::new(to, from);
        if self.sources.get(self.last as usize).is_some_and(|source| source.0 == key) {
            return Some(self.last as usize);
        }
        if let Some(&at) = self.index.get(&key) {
            self.last = at;
            return Some(at as usize);
        }
        let receiver = &mut self.receivers[to.0 as usize];
        if receiver.sources >= MOST_OF_ENDPOINT || self.sources.len() >= MOST {
            return None;
        }
        receiver.sources += 1;
        let at = self.sources.len();
        self.index.insert(key, at as u32);
        self.sources.push((key, Bytes::NONE));
        Some(at)
    }

    /// Takes a source out of the table; the last one takes its place.
    fn give_up(&mut self, at: usize) {
        let (key, _) = self.sources.swap_remove(at);
        self.index.remove(&key);
        self.receivers[key.to().0 as usize].sources -= 1;
        if let Some((moved, _)) = self.sources.get(at) {
            self.index.insert(*moved, at as u32);
        }
    }
}

#[cfg(test)]
mod tests;
