//! Affinity: a client stays at its backend for a while after its last connection.
//!
//! What is remembered is shared out evenly among the tenants that have such services, and what has
//! to go is the tenant's own: who was longest away. So no tenant makes another's clients move. Where
//! others came to have such services, who was there before has more than its part until they need
//! theirs: a service that comes costs the same beside however many.

use super::{Known, ServiceId, Services};
use crate::random::Keyed;
use crate::table::Table;
use crate::units::Instant;

/// Clients that are remembered, of all services of a switch.
pub const MOST_CLIENTS: u32 = 16_384;

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

/// A client of a service, and which of its backends it is at: number and generation.
type Clients = Table<(ServiceId, [u8; 16]), (u8, u8)>;

/// See the module.
#[derive(Debug)]
pub(super) struct Affinity {
    clients: Clients,
    /// Tenants with such services, in order.
    owners: Vec<u32>,
}

impl Affinity {
    pub(super) fn new(keyed: Keyed) -> Affinity {
        Affinity { clients: Table::new(keyed, MOST_CLIENTS), owners: Vec::new() }
    }

    /// Says whether a tenant has services with affinity: who has none keeps nothing.
    pub(super) fn set_owner(&mut self, owner: u32, is_in: bool) {
        match (self.owners.binary_search(&owner), is_in) {
            (Err(at), true) => {
                self.owners.insert(at, owner);
                self.clients.reserve(owner as usize + 1);
            }
            (Ok(at), false) => {
                self.owners.remove(at);
                while let Some(oldest) = self.clients.oldest(owner) {
                    self.clients.remove(oldest);
                }
            }
            _ => {}
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
        self.clients.get(id).copied().filter(|_| is_fresh)
    }

    /// The clients of a tenant's services, the longest away first.
    pub(super) fn of(&self, owner: u32) -> impl Iterator<Item = (ServiceId, [u8; 16], (u8, u8), Instant)> {
        self.clients
            .oldest_first(owner)
            .filter_map(|(id, &(service, client), &backend)| Some((service, client, backend, self.clients.seen(id)?)))
    }

    /// A client has got a backend.
    pub(super) fn remember(&mut self, now: Instant, owner: u32, client: (ServiceId, [u8; 16]), backend: (u8, u8)) {
        if let Some(id) = self.clients.find(&client) {
            self.clients.touch(now, id, owner);
            if let Some(old) = self.clients.get_mut(id) {
                *old = backend;
            }
            return;
        }
        if self.owners.binary_search(&owner).is_err() {
            return;
        }
        let goes = if self.clients.count(owner) >= self.part() {
            self.clients.oldest(owner)
        } else if self.clients.len() >= MOST_CLIENTS {
            let fullest = self.owners.iter().max_by_key(|&&owner| self.clients.count(owner));
            fullest.and_then(|&owner| self.clients.oldest(owner))
        } else {
            None
        };
        if let Some(id) = goes {
            self.clients.remove(id);
        }
        let _ = self.clients.insert(now, owner, client, backend);
    }
}

impl Affinity {
    /// Whether any service has it.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        !self.owners.is_empty()
    }

    /// A connection of a client lives: it is not away from that backend.
    fn stay(&mut self, now: Instant, owner: u32, client: &(ServiceId, [u8; 16]), backend: (u8, u8)) {
        let found = self.clients.find(client).filter(|&id| self.clients.get(id) == Some(&backend));
        if let Some(id) = found {
            self.clients.touch(now, id, owner);
        }
    }
}

impl Services {
    /// A connection is used, as is said of one once a second at most.
    pub(super) fn stay(&mut self, now: Instant, known: &Known) {
        let Some(entry) = self.connections.get(known.id) else { return };
        let backend = (entry.backend, entry.generation);
        let Some((running, front)) = self.running(known.key.front) else { return };
        if running.service.affinity_ns > 0 {
            let owner = running.service.tenant.0;
            self.affinity.stay(now, owner, &(front.service, known.key.client), backend);
        }
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
        affinity.remember(now, 5, client(0), (1, 0));
        for n in 1..100_000 {
            affinity.remember(now, 3, client(n), (2, 0));
        }
        assert_eq!(affinity.find(now, 9, ServiceId(0), client(0).1), Some((1, 0)));
        assert_eq!((affinity.clients.count(3), affinity.clients.len()), (MOST_CLIENTS / 2, MOST_CLIENTS / 2 + 1));
        assert_eq!(affinity.find(now, 9, ServiceId(0), client(1).1), None, "the first one is gone");
        // Who comes gets a part of it as soon as it needs that.
        for owner in [6, 7] {
            affinity.set_owner(owner, true);
        }
        for n in 0..MOST_CLIENTS {
            affinity.remember(now, 6 + n % 2, (ServiceId(1), client(n).1), (2, 0));
        }
        assert_eq!([3, 5, 6, 7].map(|owner| affinity.clients.count(owner)), [8191, 1, 4096, 4096]);
        // And who has no such service any more keeps nothing.
        for owner in [3, 6, 7] {
            affinity.set_owner(owner, false);
        }
        assert_eq!((affinity.clients.count(3), affinity.clients.len()), (0, 1));
        affinity.remember(now, 3, client(7), (0, 0));
        assert_eq!(affinity.clients.len(), 1, "nor is given anything");
    }
}
