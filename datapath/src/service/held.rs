//! Held, not refused: a new connection that finds all backends at `max_connections` waits, and goes
//! to the first that has a place; when its time is over it is refused.
//!
//! What waits is a copy of its SYN, not a frame. One queue a service, first in, first out; its
//! retransmissions are swallowed. How many may wait, and of whom, says [`super::room`].

use super::connections::Opener;
use super::entry::Key;
use super::fronts::Fronts;
use super::retry::Syn;
use super::room::{Quota, Room};
use super::running::{Running, Server};
use super::spec::Backend;
use super::{Decision, ServiceId, Services, octets};
use crate::ids::EndpointId;
use crate::network::Network;
use crate::offload::Offload;
use crate::random::Keyed;
use crate::units::Instant;
use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;

/// All that wait.
#[derive(Debug)]
pub(super) struct Holdings {
    keys: HashSet<Key, Keyed>,
    room: Room,
    /// Services for which somebody waits, and which of them is looked at first: only so many are
    /// let go at once, of each by turns.
    services: Vec<u32>,
    turn: usize,
    /// When they were let go last: what is due since before is due from then on.
    looked: Instant,
}

/// One that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    key: Key,
    from: Option<EndpointId>,
    since: Instant,
    opener: Opener,
    place: Quota,
    syn: Box<Syn>,
}

/// Takes out one of those that wait. Of a queue that was longer once, what is empty is given back:
/// a tenant may have many services, whose queues are long one after the other.
fn take<T>(queue: &mut VecDeque<T>, at: usize) -> Option<T> {
    let taken = queue.remove(at)?;
    if queue.len() < queue.capacity() / 4 {
        queue.shrink_to(queue.capacity() / 2);
    }
    Some(taken)
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
    pub syn: Box<Syn>,
    /// Whether a backend has a place for it; else it is refused.
    pub has_place: bool,
}

impl Holdings {
    pub(super) fn new(keyed: Keyed) -> Holdings {
        let (keys, room) = (HashSet::with_hasher(keyed), Room::default());
        Holdings { keys, room, services: Vec::new(), turn: 0, looked: Instant::ZERO }
    }

    fn leave(&mut self, held: &Waiting) {
        self.keys.remove(&held.key);
        self.room.leave(held.opener, held.place);
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
    /// The backends that take new connections, be they full or not.
    fn takers(&self, now: Instant, like: IpAddr, is_outside: bool) -> impl Iterator<Item = (&Server, &Backend)> {
        let ignores_health = self.is_in_panic(now);
        self.servers.iter().filter_map(move |server| {
            let backend = server.backend.as_ref()?;
            let takes = backend.weight > 0
                && self.fits(backend, like, is_outside)
                && self.may_have_more(server, now, ignores_health);
            takes.then_some((server, backend))
        })
    }

    /// Whether a new connection gets a backend. One of a backend gets itself where it can get no
    /// other, so it does not matter whose it is.
    fn has_place(&self, now: Instant, like: IpAddr, is_outside: bool) -> bool {
        self.takers(now, like, is_outside).any(|(server, _)| !server.is_full())
    }

    /// Whether it may get one later: another than its client.
    fn may_have_place(&self, now: Instant, like: IpAddr, (client, is_outside): ([u8; 16], bool)) -> bool {
        self.takers(now, like, is_outside).any(|(_, backend)| backend.ip(like).map(octets) != Some(client))
    }

    /// The first of those who wait for whom there is a place: the same for all of one IP version
    /// here, and outside.
    fn first_with_place(&self, now: Instant, fronts: &Fronts) -> Option<usize> {
        let mut known: [Option<bool>; 4] = [None; 4];
        self.queue.iter().position(|held| {
            let Some(front) = fronts.get(held.key.front) else { return false };
            let (like, is_outside) = (front.address.ip, held.from.is_none());
            let known = &mut known[usize::from(like.is_ipv4()) * 2 + usize::from(is_outside)];
            *known.get_or_insert_with(|| self.has_place(now, like, is_outside))
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
        let (like, is_outside) = (front.address.ip, from.is_none());
        let has_none =
            || !running.has_place(now, like, is_outside) && running.may_have_place(now, like, (key.client, is_outside));
        let waits = running.service.hold_ns > 0 && (!running.queue.is_empty() || has_none());
        let has_room = || self.opener(&key, from).is_some_and(|opener| self.holdings.room.place(opener).is_some());
        if waits && len <= Syn::MOST && has_room() { Decision::Hold(key) } else { choose }
    }

    /// A new connection waits.
    pub fn hold(&mut self, now: Instant, key: Key, from: Option<EndpointId>, bytes: &[u8], offload: &Offload) {
        let Some((opener, syn)) = self.opener(&key, from).zip(Syn::of(bytes, offload)) else { return };
        let Some(place) = self.holdings.room.place(opener) else { return };
        let Some((_, front)) = self.running(key.front) else { return };
        let Some(running) = self.all.get_mut(front.service.0) else { return };
        if running.queue.is_empty() {
            self.holdings.services.push(front.service.0);
        }
        // Others may wait for backends that this one need not have.
        running.has_freed |= running.has_place(now, front.address.ip, from.is_none());
        running.queue.push_back(Waiting { key, from, since: now, opener, place, syn: Box::new(syn) });
        running.stats.held += 1;
        self.holdings.keys.insert(key);
        self.holdings.room.enter(opener, place);
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
        let due = self.holdings.services.iter().filter_map(due).min();
        due.map(|due| due.max(self.holdings.looked))
    }

    /// The next that waits no longer.
    pub(crate) fn next_held(&mut self, now: Instant) -> Option<Released> {
        self.holdings.looked = now;
        let services = self.holdings.services.len();
        for at in (0..services).map(|at| (at + self.holdings.turn) % services) {
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
            let Some(held) = take(&mut running.queue, place.unwrap_or_default()) else { continue };
            let (key, from, opener) = (held.key, held.from, held.opener);
            running.stats.refused += u64::from(!has_place);
            // Another is in the place of one that is taken out.
            self.holdings.turn = at + 1;
            if running.queue.is_empty() {
                self.holdings.services.swap_remove(at);
                self.holdings.turn = at;
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
            let (stays, goes): (Vec<Waiting>, Vec<Waiting>) = queue.into_iter().partition(|held| {
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

#[cfg(test)]
mod tests {
    use super::*;

    // With its key beside, and what a queue and a heap leave empty, some 300 bytes each.
    const _: () = assert!(size_of::<Waiting>() <= 56 && size_of::<Syn>() <= 160);

    #[test]
    fn a_queue_that_was_long_gives_its_memory_back() {
        let mut queue: VecDeque<Waiting> = VecDeque::new();
        let (key, opener) = (Key { client: [0; 16], port: 0, front: 0 }, Opener { owner: 0, bucket: 0 });
        let syn = || Box::new(Syn::of(&[], &Offload::default()).expect("it fits"));
        for _ in 0..4000 {
            queue.push_back(Waiting { key, from: None, since: Instant::ZERO, opener, place: Quota::Own, syn: syn() });
        }
        for left in (0..4000).rev() {
            assert!(take(&mut queue, left / 2).is_some());
            assert!(queue.capacity() <= 8 + 4 * left, "{left}: {}", queue.capacity());
        }
        assert!(take(&mut queue, 0).is_none());
    }
}
