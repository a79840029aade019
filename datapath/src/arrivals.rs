//! Arrivals: what came from the uplink, by receiving endpoint and source address, and what of it
//! was lost before it was delivered.
//!
//! The receiver's congestion agent works out from them who sends how much to whom. They are counted
//! before the ingress queue, so they are the demand as far as the network lets it through; losses
//! are what the queue, its management or the policer took. Nothing is counted unless somebody
//! watches. Sources are chosen by strangers, so the table is bounded, for each endpoint and in all,
//! and hashed under a key from the seed. A tenant's endpoints have as many of them as it leaves
//! free (dynamic thresholds, Choudhury and Hahne 1998), so those who hear from few are never
//! without room. Where there is none, bytes still count for their endpoint, under no source. A
//! source from which nothing came for a while is given up, so that one that sends a frame now and
//! then is not put in and taken out each time; where an endpoint or a tenant has nearly all that it
//! may have, its own after one sample.
//!
//! A sample costs what has arrived in it, not what is in the table: sources with bytes are kept in
//! a list, and silent ones are looked for in a part of the table each time.

use crate::program::{EndpointId, TenantId};
use crate::random::Keyed;
use crate::table::{Id, Table};
use crate::units::Instant;
use crate::wire::Mac;

/// Sources of one endpoint that are told apart in a sample.
pub const MOST_OF_ENDPOINT: u32 = 1024;
/// Sources of all endpoints. A tenant alone has half: 100 endpoints that hear from 80 each.
pub const MOST: u32 = 16_384;
/// A source is given up when nothing has come from it for so many samples, and found out within as
/// many again.
const SILENT_SAMPLES: u64 = 64;
/// Who has so many parts of eight of what he may have gives up silent sources after one sample.
const CROWDED: u32 = 6;

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
    /// It is among those that the next sample looks at.
    active: bool,
    /// It has nearly as many sources as it may have.
    is_crowded: bool,
}

/// A tenant.
#[derive(Clone, Copy, Debug, Default)]
struct Tenant {
    /// Sources of its endpoints.
    sources: u32,
    /// They are nearly as many as they may be.
    is_crowded: bool,
}

/// The table.
#[derive(Debug)]
pub struct Arrivals {
    watched: bool,
    keyed: Keyed,
    /// What came from each source, in a list for each endpoint. Its time is counted in samples.
    sources: Table<Key, Bytes>,
    /// Those with bytes in this sample.
    touched: Vec<Id>,
    /// Samples that were taken.
    samples: u64,
    /// The endpoint at which the search for silent sources goes on.
    swept: usize,
    /// An endpoint or a tenant is.
    is_crowded: bool,
    /// The source that was looked up last: frames of one often come together.
    last: Id,
    /// By endpoint.
    receivers: Vec<Receiver>,
    active: Vec<EndpointId>,
    /// By endpoint, whose it is; kept while nobody watches.
    owners: Vec<TenantId>,
    tenants: Vec<Tenant>,
}

impl Arrivals {
    /// An empty table that nobody watches, hashed under `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Arrivals {
        let keyed = Keyed::new(seed);
        Arrivals {
            watched: false,
            keyed,
            sources: Table::new(keyed, MOST),
            touched: Vec::new(),
            samples: 0,
            swept: 0,
            is_crowded: false,
            last: Id(0),
            receivers: Vec::new(),
            active: Vec::new(),
            owners: Vec::new(),
            tenants: vec![Tenant::default()],
        }
    }

    /// Whose a new endpoint is. Of one of which nothing is said it is the first tenant.
    pub fn set_owner(&mut self, endpoint: EndpointId, tenant: TenantId) {
        let (at, of) = (endpoint.0 as usize, tenant.0 as usize);
        self.owners.resize(self.owners.len().max(at + 1), TenantId(0));
        self.owners[at] = tenant;
        self.tenants.resize(self.tenants.len().max(of + 1), Tenant::default());
    }

    /// Starts counting, from nothing, or stops and gives the memory back.
    pub fn watch(&mut self, on: bool) {
        if on != self.watched {
            self.sources = Table::new(self.keyed, MOST);
            (self.touched, self.receivers, self.active) = (Vec::new(), Vec::new(), Vec::new());
            (self.is_crowded, self.watched) = (false, on);
            self.tenants.fill(Tenant::default());
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

    /// What has arrived, and was lost, since the last call: only what is not zero. Both lists are
    /// emptied first. `backlog` says how many wire bytes wait for an endpoint.
    pub fn take(
        &mut self,
        arrivals: &mut Vec<Arrival>,
        queues: &mut Vec<QueueSample>,
        backlog: impl Fn(EndpointId) -> u64,
    ) {
        arrivals.clear();
        queues.clear();
        self.samples += 1;
        let (sources, now) = (&mut self.sources, Instant(self.samples));
        arrivals.extend(self.touched.drain(..).filter_map(|id| {
            let key = *sources.key(id)?;
            sources.touch(now, id, key.to().0);
            let bytes = std::mem::take(sources.get_mut(id)?);
            Some(bytes.arrival(key.to(), Some(key.from())))
        }));
        self.sweep();
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
        *receiver = Receiver::default();
        self.active.retain(|&other| other != endpoint);
        while let Some(id) = self.sources.oldest(endpoint.0) {
            self.give_up(id, endpoint);
        }
        let sources = &self.sources;
        self.touched.retain(|&id| sources.get(id).is_some());
    }

    /// Gives up sources that have been silent: of some endpoints at each sample, or of all that are
    /// crowded. None has bytes now.
    fn sweep(&mut self) {
        let all = self.receivers.len();
        let is_crowded = std::mem::take(&mut self.is_crowded);
        for _ in 0..if is_crowded { all } else { all.div_ceil(SILENT_SAMPLES as usize) } {
            self.swept = if self.swept + 1 < all { self.swept + 1 } else { 0 };
            let endpoint = EndpointId(self.swept as u32);
            let of_receiver = std::mem::take(&mut self.receivers[self.swept].is_crowded);
            let early = of_receiver || self.tenants[self.owner(endpoint)].is_crowded;
            let silent = if early { 1 } else { SILENT_SAMPLES };
            while let Some(id) = self.sources.aged(Instant(self.samples), endpoint.0, silent) {
                self.give_up(id, endpoint);
            }
        }
        if is_crowded {
            self.tenants.iter_mut().for_each(|tenant| tenant.is_crowded = false);
        }
    }

    /// Gives up a source of an endpoint.
    fn give_up(&mut self, id: Id, endpoint: EndpointId) {
        if self.sources.remove(id).is_some() {
            let owner = self.owner(endpoint);
            self.tenants[owner].sources -= 1;
        }
    }

    /// The tenant whose an endpoint is.
    fn owner(&self, endpoint: EndpointId) -> usize {
        self.owners.get(endpoint.0 as usize).map_or(0, |tenant| tenant.0 as usize)
    }

    fn count(&mut self, to: EndpointId, from: Mac, more: Bytes) {
        if more == Bytes::NONE {
            return;
        }
        self.expect(to);
        let source = self.source(to, from);
        let source = source.and_then(|id| Some((id, self.sources.get_mut(id)?)));
        let receiver = &mut self.receivers[to.0 as usize];
        let counted = match source {
            Some((id, bytes)) => {
                if *bytes == Bytes::NONE {
                    self.touched.push(id);
                }
                bytes
            }
            None => &mut receiver.others,
        };
        for bytes in [counted, &mut receiver.all] {
            bytes.arrived += more.arrived;
            bytes.dropped += more.dropped;
        }
    }

    /// Where a source is in the table; a new one is put there while there is room.
    fn source(&mut self, to: EndpointId, from: Mac) -> Option<Id> {
        let key = Key::new(to, from);
        if self.sources.key(self.last) == Some(&key) {
            return Some(self.last);
        }
        let hash = self.sources.hash(&key);
        if let Some(id) = self.sources.find_hashed(hash, &key) {
            self.last = id;
            return Some(id);
        }
        let (own, free) = (self.sources.count(to.0), MOST - self.sources.len());
        let owner = self.owner(to);
        let tenant = &mut self.tenants[owner];
        let is_near = |count: u32, most: u32| count >= most / 8 * CROWDED;
        let of_receiver = is_near(own, MOST_OF_ENDPOINT);
        self.receivers[to.0 as usize].is_crowded |= of_receiver;
        tenant.is_crowded |= is_near(tenant.sources, free);
        self.is_crowded |= of_receiver || tenant.is_crowded;
        if own >= MOST_OF_ENDPOINT || tenant.sources >= free {
            return None;
        }
        let added = self.sources.insert(Instant(self.samples), to.0, key, Bytes::NONE).ok()?;
        tenant.sources += 1;
        Some(added)
    }
}

#[cfg(test)]
mod tests;
