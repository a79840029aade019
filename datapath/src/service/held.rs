//! Held, not refused: a new connection that finds all backends at `max_connections` waits, and goes
//! to the first that has a place; when its time is over it is refused.
//!
//! What waits is a copy of its SYN, not a frame. One queue a service, first in, first out; its
//! retransmissions are swallowed. A tenant has room for [`MOST_HELD`], and one of its buckets (see
//! [`super::connections`]) for a quarter of that: so a flood of one client leaves others theirs.

use super::connections::{BUCKETS, Opener};
use super::entry::Key;
use super::fronts::Fronts;
use super::retry::Syn;
use super::running::{Running, Server};
use super::spec::Backend;
use super::{Decision, ServiceId, Services, octets};
use crate::ids::EndpointId;
use crate::network::Network;
use crate::offload::Offload;
use crate::random::Keyed;
use crate::units::Instant;
use std::collections::HashSet;
use std::net::IpAddr;

/// Connections of a tenant that wait at most: 240 KiB.
pub const MOST_HELD: u16 = 1024;
/// Those of one bucket.
const MOST_OF_BUCKET: u16 = MOST_HELD / 4;
/// Likes of those who wait that are told apart at once: of the others each is looked at by itself.
const MOST_LIKES: usize = 8;

/// What a tenant has waiting.
#[derive(Clone, Debug)]
struct Holding {
    all: u16,
    buckets: [u16; BUCKETS as usize],
}

/// All that wait.
#[derive(Debug)]
pub(super) struct Holdings {
    keys: HashSet<Key, Keyed>,
    /// By tenant.
    tenants: Vec<Holding>,
    /// Services for which somebody waits.
    services: Vec<u32>,
}

/// One that waits.
#[derive(Clone, Debug)]
pub(super) struct Held {
    key: Key,
    from: Option<EndpointId>,
    since: Instant,
    opener: Opener,
    /// Whether its client is a backend of the service.
    is_own: bool,
    syn: Syn,
}

/// What of those who wait says whether there is a place for them.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Like {
    is_v4: bool,
    is_outside: bool,
    /// The client, where it is a backend itself.
    own: Option<[u8; 16]>,
}

/// One that waits no longer.
#[derive(Debug)]
pub(crate) struct Released {
    /// Its connection.
    pub key: Key,
    /// The endpoint that it is from; `None` for outside.
    pub from: Option<EndpointId>,
    /// The network that it is in.
    pub network: Network,
    /// Its SYN.
    pub syn: Syn,
    /// Whether a backend has a place for it; else it is refused.
    pub has_place: bool,
}

impl Holdings {
    pub(super) fn new(keyed: Keyed) -> Holdings {
        Holdings { keys: HashSet::with_hasher(keyed), tenants: Vec::new(), services: Vec::new() }
    }

    fn has_room(&self, opener: Opener) -> bool {
        self.tenants
            .get(opener.owner as usize)
            .is_none_or(|holding| holding.all < MOST_HELD && holding.buckets[opener.bucket as usize] < MOST_OF_BUCKET)
    }

    fn enter(&mut self, key: Key, opener: Opener) {
        let at = opener.owner as usize;
        if self.tenants.len() <= at {
            self.tenants.resize(at + 1, Holding { all: 0, buckets: [0; BUCKETS as usize] });
        }
        self.keys.insert(key);
        self.tenants[at].all += 1;
        self.tenants[at].buckets[opener.bucket as usize] += 1;
    }

    fn leave(&mut self, held: &Held) {
        self.keys.remove(&held.key);
        let holding = &mut self.tenants[held.opener.owner as usize];
        holding.all -= 1;
        holding.buckets[held.opener.bucket as usize] -= 1;
    }
}

impl Server {
    /// Whether it has as many connections as it may have.
    pub(super) fn is_full(&self) -> bool {
        let most = self.backend.as_ref().and_then(|backend| backend.max_connections);
        most.is_some_and(|most| self.stats.busy.saturating_add(self.stats.idle) >= most)
    }
}

impl Running {
    /// Whether a new connection would get a backend if none were full; and whether it would.
    fn places(&self, now: Instant, like: IpAddr, client: [u8; 16], outside: bool) -> (bool, bool) {
        let (mut full, mut free) = (false, false);
        let ignores_health = self.is_in_panic(now);
        let takes = |server: &&Server| {
            server.backend.as_ref().is_some_and(|backend| {
                let is_other = backend.ip(like).is_some_and(|ip| octets(ip) != client);
                backend.weight > 0 && is_other && self.fits(backend, like, outside)
            }) && self.may_have_more(server, now, ignores_health)
        };
        for server in self.servers.iter().filter(takes) {
            full |= server.is_full();
            free |= !server.is_full();
        }
        (full, free || self.may_have_itself(now, like, (client, outside)))
    }

    /// Whether a client is a backend that may have its own connection, where no other one can have
    /// it.
    fn may_have_itself(&self, now: Instant, like: IpAddr, (client, outside): ([u8; 16], bool)) -> bool {
        let ignores_health = self.is_in_panic(now);
        self.servers.iter().any(|server| {
            let is_own = |backend: &Backend| {
                backend.weight > 0 && backend.ip(like).map(octets) == Some(client) && self.fits(backend, like, outside)
            };
            server.backend.as_ref().is_some_and(is_own)
                && !server.is_full()
                && self.may_have_more(server, now, ignores_health)
        })
    }

    fn is_backend(&self, like: IpAddr, client: [u8; 16]) -> bool {
        self.servers.iter().filter_map(|server| server.backend.as_ref()?.ip(like)).any(|ip| octets(ip) == client)
    }

    /// The first of those who wait for whom there is a place.
    fn first_with_place(&self, now: Instant, fronts: &Fronts) -> Option<usize> {
        let mut found: [Option<(Like, bool)>; MOST_LIKES] = [None; MOST_LIKES];
        self.queue.iter().position(|held| {
            let Some(front) = fronts.get(held.key.front) else { return false };
            let (like, client) = (front.address.ip, held.key.client);
            let is_outside = held.from.is_none();
            let own = held.is_own.then_some(client);
            let kind = Like { is_v4: like.is_ipv4(), is_outside, own };
            let known = found.iter().flatten().find(|(other, _)| *other == kind);
            if let Some(&(_, has_place)) = known {
                return has_place;
            }
            let has_place = self.places(now, like, client, is_outside).1;
            if let Some(place) = found.iter_mut().find(|place| place.is_none()) {
                *place = Some((kind, has_place));
            }
            has_place
        })
    }
}

impl Services {
    /// A SYN of a connection that is not known.
    pub(super) fn decide_open(&self, now: Instant, key: Key, from: Option<EndpointId>, len: usize) -> Decision {
        let choose = Decision::Choose(key, None);
        let Some((running, front)) = self.running(key.front).filter(|(running, _)| running.is_limited) else {
            return choose;
        };
        if self.holdings.keys.contains(&key) {
            return Decision::Held(key);
        }
        let (full, free) = running.places(now, front.address.ip, key.client, from.is_none());
        let waits = running.service.hold_ns > 0 && (!running.queue.is_empty() || (full && !free));
        let has_room = || self.opener(&key, from).is_some_and(|opener| self.holdings.has_room(opener));
        if waits && len <= Syn::MOST && has_room() { Decision::Hold(key) } else { choose }
    }

    /// A new connection waits.
    pub fn hold(&mut self, now: Instant, key: Key, from: Option<EndpointId>, bytes: &[u8], offload: &Offload) {
        let Some((opener, syn)) = self.opener(&key, from).zip(Syn::of(bytes, offload)) else { return };
        let Some((_, front)) = self.running(key.front) else { return };
        let Some(running) = self.all.get_mut(front.service.0) else { return };
        if running.queue.is_empty() {
            self.holdings.services.push(front.service.0);
        }
        let is_own = running.is_backend(front.address.ip, key.client);
        // Others may wait for backends that this one need not have.
        running.has_freed |= running.places(now, front.address.ip, key.client, from.is_none()).1;
        running.queue.push_back(Held { key, from, since: now, opener, is_own, syn });
        running.stats.held += 1;
        self.holdings.enter(key, opener);
        // What was never answered has a place for as long as it is in the table.
        self.forget(now, opener);
    }

    pub(super) fn forget(&mut self, now: Instant, opener: Opener) {
        let (all, turns, fronts) = (&mut self.all, &mut self.turns, &self.fronts);
        self.connections.forget(now, opener, &mut |gone| super::leave((all, turns), fronts, &gone, false));
    }

    /// Whether anything may be due: a check, or one that waits.
    #[inline]
    #[must_use]
    pub fn has_dues(&self) -> bool {
        !self.checks.is_empty() || !self.holdings.services.is_empty()
    }

    /// When the first of those that wait is due: at once where a place may be free.
    #[must_use]
    pub fn held_due(&self) -> Option<Instant> {
        let due = |&id: &u32| {
            let running = self.all.get(id)?;
            let held = running.queue.front()?;
            let until = held.since.plus_ns(running.service.hold_ns);
            let back_at = running.back_at.unwrap_or(until);
            Some(if running.has_freed { Instant::ZERO } else { until.min(back_at) })
        };
        self.holdings.services.iter().filter_map(due).min()
    }

    /// The next that waits no longer.
    pub(crate) fn next_held(&mut self, now: Instant) -> Option<Released> {
        for at in 0..self.holdings.services.len() {
            let id = self.holdings.services[at];
            let Some(running) = self.all.get(id) else { continue };
            let Some(first) = running.queue.front() else { continue };
            let is_over = now.since(first.since) >= running.service.hold_ns;
            let may_have = running.has_freed || running.back_at.is_some_and(|at| at <= now);
            let place = may_have.then(|| running.first_with_place(now, &self.fronts)).flatten();
            let has_place = place.is_some();
            let Some(running) = self.all.get_mut(id) else { continue };
            if may_have && !has_place {
                running.has_freed = false;
                let ends = running.servers.iter().filter_map(|server| server.health.ejected_until());
                running.back_at = ends.filter(|&at| at > now).min();
            }
            if !is_over && !has_place {
                continue;
            }
            let network = running.network;
            let Some(held) = running.queue.remove(place.unwrap_or_default()) else { continue };
            let (key, from, opener) = (held.key, held.from, held.opener);
            running.stats.refused += u64::from(!has_place);
            if running.queue.is_empty() {
                self.holdings.services.swap_remove(at);
            }
            self.holdings.leave(&held);
            if !has_place {
                self.forget(now, opener);
            }
            return Some(Released { key, from, network, syn: held.syn, has_place });
        }
        None
    }

    /// A service goes.
    pub(super) fn release_all(&mut self, id: ServiceId) {
        let queue = self.all.get_mut(id.0).map(|running| std::mem::take(&mut running.queue)).unwrap_or_default();
        queue.iter().for_each(|held| self.holdings.leave(held));
        self.holdings.services.retain(|&other| other != id.0);
    }

    /// Those that wait are let go of whose service, front or endpoint (`gone`) is no longer there.
    pub fn release_lost(&mut self, gone: Option<EndpointId>) {
        for id in self.holdings.services.clone() {
            let queue = self.all.get_mut(id).map(|running| std::mem::take(&mut running.queue)).unwrap_or_default();
            let (stays, goes): (Vec<Held>, Vec<Held>) = queue.into_iter().partition(|held| {
                let service = self.running(held.key.front).map(|(_, front)| front.service);
                service == Some(ServiceId(id)) && (gone.is_none() || held.from != gone)
            });
            goes.iter().for_each(|held| self.holdings.leave(held));
            let is_empty = stays.is_empty();
            if let Some(running) = self.all.get_mut(id) {
                running.queue = stays.into();
                running.has_freed = true;
            }
            if is_empty {
                self.holdings.services.retain(|&other| other != id);
            }
        }
    }
}
