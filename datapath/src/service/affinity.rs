//! Affinity: a client stays at its backend for a while after its last connection.
//!
//! What is remembered is shared out evenly among the tenants that have such services, and what has
//! to go is the tenant's own: of the bucket that has most ([`super::shared`]), who was longest
//! away. So no tenant makes another's clients move, and no client those of other buckets. A client
//! that has yet to show that it is one, by a handshake or a second datagram behind an answer, goes
//! before others: SYNs from made-up addresses, which are in all buckets, take a quarter. Where
//! others came to have such services, who was there before has more than its part until they need
//! theirs: a service that comes costs the same beside however many. Who was away for longer than it
//! is remembered goes before anybody else, some buckets at each client that comes.

use super::connections::{BUCKETS, Opener};
use super::shared::Shared;
use super::{Known, ServiceId, Services};
use crate::random::Keyed;
use crate::table::Id;
use crate::units::Instant;

/// Clients that are remembered, of all services of a switch.
pub const MOST_CLIENTS: u32 = 16_384;
/// Classes: a client that was given a backend, and one that is known to speak to it.
pub(super) const NEW: u32 = 0;
pub(super) const MET: u32 = 1;
/// Part of a tenant's clients that may be new where there is no room for all.
const NEW_PART: u32 = 4;

/// A client that has been given a backend, as it is handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientState {
    /// Its address, IPv4 mapped into IPv6.
    pub client: [u8; 16],
    /// Place of the backend in [`super::ServiceState::backends`].
    pub backend: u8,
    /// Since when it has not been given one.
    pub idle_ms: u32,
}

/// Buckets that are looked at for clients that were away for long when one comes.
const AGED_AT_ONCE: u32 = 8;

/// A client of a service, and where it is: the backend's number and generation.
type Clients = Shared<(ServiceId, [u8; 16]), (u8, u8), 2>;

/// See the module.
#[derive(Debug)]
pub(super) struct Affinity {
    clients: Clients,
    /// Tenants with such services, in order.
    owners: Vec<u32>,
    /// The bucket that is looked at next for who was away for long.
    next: u32,
}

impl Affinity {
    pub(super) fn new(keyed: Keyed) -> Affinity {
        Affinity { clients: Shared::new(keyed, MOST_CLIENTS), owners: Vec::new(), next: 0 }
    }

    /// Says whether a tenant has services with affinity: who has none keeps nothing.
    pub(super) fn set_owner(&mut self, owner: u32, is_in: bool) {
        match (self.owners.binary_search(&owner), is_in) {
            (Err(at), true) => {
                self.owners.insert(at, owner);
                self.clients.reserve(owner);
            }
            (Ok(at), false) => {
                self.owners.remove(at);
                self.clients.clear(owner);
            }
            _ => {}
        }
    }

    /// A tenant's service is no more, or has no affinity any more.
    pub(super) fn forget(&mut self, owner: u32, service: ServiceId) {
        let all = self.clients.of(owner).filter(|(_, (of, _), _)| *of == service);
        let all: Vec<Id> = all.map(|(id, ..)| id).collect();
        for id in all {
            self.clients.remove(id);
        }
    }

    fn part(&self) -> u32 {
        MOST_CLIENTS / self.owners.len().max(1) as u32
    }

    /// Where a client was within `affinity_ns`.
    pub(super) fn find(
        &self,
        now: Instant,
        affinity_ns: u64,
        service: ServiceId,
        client: [u8; 16],
    ) -> Option<(u8, u8)> {
        let id = self.clients.find(&(service, client))?;
        let is_fresh = now.since(self.clients.seen(id)?) < affinity_ns;
        self.clients.get(id).filter(|_| is_fresh).copied()
    }

    /// The clients of a tenant's services: those that are new first, and the longest away.
    pub(super) fn of(&self, owner: u32) -> impl Iterator<Item = (ServiceId, [u8; 16], (u8, u8), Instant)> {
        let all = self.clients.of(owner);
        let mut all: Vec<_> = all
            .filter_map(|(id, &(service, client), &backend)| {
                let rank = (self.clients.class(id)?, self.clients.seen(id)?);
                Some((rank, (service, client, backend, rank.1)))
            })
            .collect();
        all.sort_by_key(|&(rank, _)| rank);
        all.into_iter().map(|(_, client)| client)
    }

    /// A client has got a backend. One that is remembered is as well known as before. `life` says
    /// for how long clients of a service are remembered, as it is now.
    pub(super) fn remember(
        &mut self,
        now: Instant,
        opener: Opener,
        (client, class): ((ServiceId, [u8; 16]), u32),
        backend: (u8, u8),
        life: impl Fn(ServiceId) -> u64,
    ) {
        let owner = opener.owner;
        if let Some(id) = self.clients.find(&client) {
            let before = self.clients.class(id).unwrap_or(NEW);
            self.clients.touch(now, id, before.max(class));
            if let Some(old) = self.clients.get_mut(id) {
                *old = backend;
            }
            return;
        }
        if self.owners.binary_search(&owner).is_err() {
            return;
        }
        self.forget_aged(now, opener, life);
        let gives = if self.clients.count(owner) >= self.part() {
            Some(owner)
        } else if self.clients.is_full() {
            self.clients.fullest()
        } else {
            None
        };
        if let Some(id) = gives.and_then(|owner| self.first_to_go(owner)) {
            self.clients.remove(id);
        }
        self.clients.insert(now, opener, class, (client, backend));
    }

    /// Forgets who was away for longer than it is remembered: one of the bucket at most, and of
    /// each of some others of the same tenant.
    fn forget_aged(&mut self, now: Instant, Opener { owner, bucket }: Opener, life: impl Fn(ServiceId) -> u64) {
        let others = (0..AGED_AT_ONCE).map(|n| (self.next + n) % BUCKETS);
        for bucket in others.chain([bucket]) {
            for class in [NEW, MET] {
                let oldest = self.clients.oldest(Opener { owner, bucket }, class);
                let is_aged = |&id: &Id| {
                    let client = self.clients.key(id).zip(self.clients.seen(id));
                    client.is_some_and(|(&(service, _), seen)| now.since(seen) >= life(service))
                };
                if let Some(id) = oldest.filter(is_aged) {
                    self.clients.remove(id);
                }
            }
        }
        self.next = (self.next + AGED_AT_ONCE) % BUCKETS;
    }

    /// Who of a tenant's clients goes first.
    fn first_to_go(&self, owner: u32) -> Option<Id> {
        let has_many_new = self.clients.count_of(owner, NEW) >= (self.part() / NEW_PART).max(1);
        let classes = if has_many_new { [NEW, MET] } else { [MET, NEW] };
        classes.into_iter().find_map(|class| self.clients.first_to_go(owner, class))
    }
}

impl Affinity {
    /// Whether any service has it.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        !self.owners.is_empty()
    }

    /// A connection of a client lives: it is not away from that backend. False: it is not known.
    fn stay(&mut self, now: Instant, (client, class): (&(ServiceId, [u8; 16]), u32), backend: (u8, u8)) -> bool {
        let Some(id) = self.clients.find(client) else { return false };
        if self.clients.get(id) == Some(&backend) {
            let before = self.clients.class(id).unwrap_or(NEW);
            self.clients.touch(now, id, before.max(class));
        }
        true
    }
}

impl Services {
    /// A connection is used, as is said of one when it opens and once a second at most. What it is
    /// then says whether its client is known to speak to the backend.
    pub(super) fn stay(&mut self, now: Instant, known: &Known) {
        let Some(entry) = self.connections.get(known.id) else { return };
        let backend = (entry.backend, entry.generation);
        let class = if entry.state.is_half_open() { NEW } else { MET };
        let Some((running, front)) = self.running(known.key.front) else { return };
        if running.service.affinity_ns == 0 {
            return;
        }
        let owner = running.service.tenant.0;
        let client = (front.service, known.key.client);
        // A flood may have had it forgotten between its first segment and its second.
        if !self.affinity.stay(now, (&client, class), backend) && class == MET {
            let opener = Opener { owner, bucket: self.connections.bucket(known.id) };
            self.remember_client(now, opener, (client, MET), backend);
        }
    }

    /// A client has got a backend.
    pub(super) fn remember_client(
        &mut self,
        now: Instant,
        opener: Opener,
        client: ((ServiceId, [u8; 16]), u32),
        backend: (u8, u8),
    ) {
        let all = &self.all;
        // Of one that is gone nobody is remembered.
        let life = |service: ServiceId| all.get(service.0).map_or(0, |running| running.service.affinity_ns);
        self.affinity.remember(now, opener, client, backend, life);
    }

    /// The backend that a client was at, where it stays and that still is who it was.
    pub(super) fn stays_at(&self, now: Instant, service: ServiceId, client: [u8; 16]) -> Option<u8> {
        let running = self.all.get(service.0)?;
        let affinity_ns = running.service.affinity_ns;
        if affinity_ns == 0 {
            return None;
        }
        let (backend, generation) = self.affinity.find(now, affinity_ns, service, client)?;
        let server = running.servers.get(usize::from(backend))?;
        (server.generation == generation).then_some(backend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(owner: u32, bucket: u32) -> Opener {
        Opener { owner, bucket }
    }

    fn client(n: u32) -> (ServiceId, [u8; 16]) {
        let mut octets = [0; 16];
        octets[..4].copy_from_slice(&n.to_be_bytes());
        (ServiceId(0), octets)
    }

    #[test]
    fn a_tenant_that_has_many_clients_forgets_its_own_only() {
        let mut affinity = Affinity::new(Keyed::new(1));
        [3, 5, 5].into_iter().for_each(|owner| affinity.set_owner(owner, true));
        let now = Instant(0);
        affinity.remember(now, from(5, 0), (client(0), NEW), (1, 0), |_| 9);
        for n in 1..100_000 {
            affinity.remember(now, from(3, 0), (client(n), NEW), (2, 0), |_| 9);
        }
        assert_eq!(affinity.find(now, 9, ServiceId(0), client(0).1), Some((1, 0)));
        assert_eq!((affinity.clients.count(3), affinity.clients.len()), (MOST_CLIENTS / 2, MOST_CLIENTS / 2 + 1));
        assert_eq!(affinity.find(now, 9, ServiceId(0), client(1).1), None, "the first one is gone");
        // Who comes gets a part of it as soon as it needs that.
        for owner in [6, 7] {
            affinity.set_owner(owner, true);
        }
        for n in 0..MOST_CLIENTS {
            affinity.remember(now, from(6 + n % 2, 1), ((ServiceId(1), client(n).1), NEW), (2, 0), |_| 9);
        }
        assert_eq!([3, 5, 6, 7].map(|owner| affinity.clients.count(owner)), [8191, 1, 4096, 4096]);
        // And who has no such service any more keeps nothing.
        for owner in [3, 6, 7] {
            affinity.set_owner(owner, false);
        }
        assert_eq!((affinity.clients.count(3), affinity.clients.len()), (0, 1));
        affinity.remember(now, from(3, 0), (client(7), NEW), (0, 0), |_| 9);
        assert_eq!(affinity.clients.len(), 1, "nor is given anything");
    }

    #[test]
    fn a_client_that_opens_many_connections_makes_only_its_own_bucket_forgotten() {
        let mut affinity = Affinity::new(Keyed::new(1));
        affinity.set_owner(3, true);
        affinity.remember(Instant(0), from(3, 2), (client(0), NEW), (1, 0), |_| 9);
        for n in 1..100_000 {
            affinity.remember(Instant(1), from(3, 1), (client(n), NEW), (2, 0), |_| 9);
        }
        assert_eq!(affinity.find(Instant(2), 9, ServiceId(0), client(0).1), Some((1, 0)));
        assert_eq!(affinity.clients.count(3), MOST_CLIENTS);
    }

    #[test]
    fn who_never_answered_makes_nobody_forgotten_who_did() {
        let mut affinity = Affinity::new(Keyed::new(1));
        affinity.set_owner(3, true);
        for n in 0..1000 {
            affinity.remember(Instant(0), from(3, n % BUCKETS), (client(n), NEW), (1, 0), |_| 9);
            affinity.stay(Instant(0), (&client(n), MET), (1, 0));
        }
        for n in 1000..100_000 {
            affinity.remember(Instant(1), from(3, n % BUCKETS), (client(n), NEW), (2, 0), |_| 9);
        }
        let known = |affinity: &Affinity, n: u32| affinity.find(Instant(2), 9, ServiceId(0), client(n).1).is_some();
        assert!((0..1000).all(|n| known(&affinity, n)));
        // Those who did fill the rest, and no more than that.
        for n in 200_000..300_000 {
            affinity.remember(Instant(2), from(3, n % BUCKETS), (client(n), NEW), (1, 0), |_| 9);
            affinity.stay(Instant(2), (&client(n), MET), (1, 0));
        }
        let counts = [NEW, MET].map(|class| affinity.clients.count_of(3, class));
        assert_eq!(counts, [MOST_CLIENTS / 4 - 1, MOST_CLIENTS / 4 * 3 + 1]);
    }
    #[test]
    fn who_was_away_for_long_goes_before_who_is_not() {
        let mut affinity = Affinity::new(Keyed::new(1));
        affinity.set_owner(3, true);
        // Visitors from everywhere, who are gone; and many behind one router, who are not.
        for n in 0..MOST_CLIENTS {
            affinity.remember(Instant(0), from(3, n % BUCKETS), ((ServiceId(0), client(n).1), MET), (1, 0), |_| 9);
        }
        let live = |n: u32| client(n + 500_000);
        for n in 0..1000 {
            affinity.remember(Instant(20), from(3, 7), (live(n), MET), (2, 0), |_| 9);
        }
        for n in 0..10_000 {
            affinity.remember(Instant(21), from(3, n % BUCKETS), (client(n + 100_000), NEW), (1, 0), |_| 9);
        }
        assert!((0..1000).all(|n| affinity.find(Instant(22), 9, ServiceId(0), live(n).1).is_some()));
    }
    #[test]
    fn who_is_away_is_remembered_for_as_long_as_the_service_says_now() {
        let mut affinity = Affinity::new(Keyed::new(1));
        affinity.set_owner(3, true);
        affinity.remember(Instant(0), from(3, 1), (client(0), MET), (1, 0), |_| 9);
        // The service's time was raised meanwhile.
        affinity.remember(Instant(50), from(3, 1), (client(1), NEW), (2, 0), |_| 100);
        assert_eq!(affinity.find(Instant(51), 100, ServiceId(0), client(0).1), Some((1, 0)));
        affinity.remember(Instant(52), from(3, 1), (client(2), NEW), (2, 0), |_| 9);
        assert_eq!(affinity.clients.count(3), 2, "and lowered");
    }
}
