//! Affinity: a client stays at its backend for a while after its last connection.
//!
//! What is remembered is shared out evenly among the services that have affinity, and who was away
//! longest goes first. Of a service's part one client has at most half, where a machine may have
//! many addresses (an IPv6 network of 64 bits).

use super::{AT_ONCE, less, network};
use datapath::random::Keyed;
use datapath::service::MOST_CLIENTS;
use datapath::table::{Id, Table};
use datapath::units::Instant;
use std::collections::HashMap;
use std::net::IpAddr;

/// A client of a service, and a service's clients of one network.
type Client = (usize, IpAddr);

/// See the module.
#[derive(Debug)]
pub(super) struct Stays {
    /// Which backend each is at; a list for each service.
    clients: Table<Client, usize>,
    of_network: HashMap<Client, u32, Keyed>,
    /// For how long, by service; 0 for not at all.
    times_ns: Vec<u64>,
    /// Clients of one service at most.
    part: u32,
}

impl Stays {
    /// Nobody is remembered yet. `times_ns` is for how long clients of each service stay.
    pub fn new(times_ns: Vec<u64>, seed: u64) -> Stays {
        let sharers = times_ns.iter().filter(|&&time_ns| time_ns > 0).count();
        Stays {
            clients: Table::new(Keyed::new(seed), MOST_CLIENTS),
            of_network: HashMap::with_hasher(Keyed::new(seed.rotate_left(17))),
            times_ns,
            part: MOST_CLIENTS / sharers.max(1) as u32,
        }
    }

    /// Whether clients of a service stay.
    pub fn is_for(&self, service: usize) -> bool {
        self.time_ns(service) > 0
    }

    fn time_ns(&self, service: usize) -> u64 {
        self.times_ns.get(service).copied().unwrap_or(0)
    }

    /// The backend that a client is at.
    pub fn find(&self, now: Instant, service: usize, client: IpAddr) -> Option<usize> {
        let id = self.clients.find(&(service, client))?;
        let is_fresh = now.since(self.clients.seen(id)?) < self.time_ns(service);
        self.clients.get(id).copied().filter(|_| is_fresh)
    }

    /// A client has got a backend.
    pub fn remember(&mut self, now: Instant, service: usize, client: IpAddr, backend: usize) {
        if let Some(id) = self.clients.find(&(service, client)) {
            self.clients.touch(now, id, service as u32);
            if let Some(old) = self.clients.get_mut(id) {
                *old = backend;
            }
            return;
        }
        self.age(now, service);
        if self.clients.count(service as u32) >= self.part
            && !self.has_part(service, client)
            && let Some(oldest) = self.clients.oldest(service as u32)
        {
            self.forget(oldest);
        }
        self.add(now, service, client, backend);
    }

    /// A client that nobody remembers has a backend, as a switch says: for it nobody goes.
    pub fn learn(&mut self, now: Instant, service: usize, client: IpAddr, backend: usize) {
        if self.clients.find(&(service, client)).is_none() {
            self.add(now, service, client, backend);
        }
    }

    /// Whether a client has as many addresses here as it may have.
    fn has_part(&self, service: usize, client: IpAddr) -> bool {
        self.of_network.get(&(service, network(client))).is_some_and(|&count| count >= self.part / 2)
    }

    fn add(&mut self, now: Instant, service: usize, client: IpAddr, backend: usize) {
        let is_full = self.clients.count(service as u32) >= self.part;
        if !self.is_for(service) || is_full || self.has_part(service, client) {
            return;
        }
        // All parts together are no more than there may be.
        if self.clients.insert(now, service as u32, (service, client), backend).is_ok() {
            *self.of_network.entry((service, network(client))).or_default() += 1;
        }
    }

    /// Forgets who was away long enough.
    fn age(&mut self, now: Instant, service: usize) {
        for _ in 0..AT_ONCE {
            let aged = self.clients.aged(now, service as u32, self.time_ns(service));
            let Some(id) = aged else { return };
            self.forget(id);
        }
    }

    fn forget(&mut self, id: Id) {
        if let Some(((service, client), _)) = self.clients.remove(id) {
            less(&mut self.of_network, (service, network(client)));
        }
    }

    /// Goes on from another configuration's; `place` says where a service and backend of that one
    /// are in this.
    pub fn inherit(&mut self, before: &Stays, place: impl Fn(usize, usize) -> Option<(usize, usize)>) {
        for list in 0..before.times_ns.len() {
            for (id, &(service, client), &backend) in before.clients.oldest_first(list as u32) {
                if let (Some(seen), Some((service, backend))) = (before.clients.seen(id), place(service, backend)) {
                    self.add(seen, service, client, backend);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn four(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(n).into()
    }

    fn six(network: u64, host: u64) -> IpAddr {
        std::net::Ipv6Addr::from_bits(u128::from(network) << 64 | u128::from(host)).into()
    }

    #[test]
    fn a_client_stays_so_long_after_its_last_connection() {
        let mut stays = Stays::new(vec![0, 10 * SECOND], 1);
        let at = |seconds| Instant(seconds * SECOND);
        stays.remember(at(1), 1, four(1), 3);
        stays.remember(at(1), 0, four(1), 3);
        assert_eq!((stays.find(at(10), 1, four(1)), stays.find(at(11), 1, four(1))), (Some(3), None));
        assert_eq!((stays.find(at(1), 0, four(1)), stays.find(at(1), 1, four(2))), (None, None));
        stays.remember(at(10), 1, four(1), 2);
        assert_eq!(stays.find(at(19), 1, four(1)), Some(2));
        // What a switch tells changes nothing that is known, and is believed where nothing is.
        stays.learn(at(19), 1, four(1), 0);
        stays.learn(at(19), 1, four(2), 0);
        assert_eq!((stays.find(at(19), 1, four(1)), stays.find(at(19), 1, four(2))), (Some(2), Some(0)));
        // Who was away long enough goes when another comes.
        stays.remember(at(40), 1, four(9), 0);
        assert_eq!((stays.clients.len(), stays.of_network.len()), (1, 1));
    }

    #[test]
    fn neither_a_service_nor_a_client_takes_the_part_of_others() {
        let mut stays = Stays::new(vec![SECOND, 0, SECOND], 1);
        stays.remember(Instant(1), 2, four(7), 1);
        for n in 0..2 * MOST_CLIENTS {
            stays.remember(Instant(2), 0, six(1, n.into()), 0);
        }
        // Half of its service's half, and no more: nobody else went for it.
        assert_eq!(stays.clients.count(0), MOST_CLIENTS / 4);
        assert_eq!(stays.find(Instant(2), 0, six(1, 0)), Some(0));
        for n in 0..2 * MOST_CLIENTS {
            stays.learn(Instant(3), 0, four(n), 0);
        }
        assert_eq!((stays.clients.count(0), stays.find(Instant(3), 0, six(1, 0))), (MOST_CLIENTS / 2, Some(0)));
        for n in 0..2 * MOST_CLIENTS {
            stays.remember(Instant(3), 0, six(n.into(), 1), 0);
        }
        assert_eq!((stays.clients.count(0), stays.find(Instant(3), 0, six(1, 0))), (MOST_CLIENTS / 2, None));
        assert_eq!(stays.find(Instant(3), 2, four(7)), Some(1), "of another service");
        assert_eq!(stays.of_network.values().sum::<u32>(), stays.clients.len());
    }

    #[test]
    fn another_configuration_goes_on_with_those_whose_backend_it_has() {
        let mut before = Stays::new(vec![SECOND, SECOND], 1);
        for n in 0..4 {
            before.remember(Instant(u64::from(n) + 1), n as usize / 2, four(n), n as usize % 2);
        }
        let mut after = Stays::new(vec![SECOND], 2);
        after.inherit(&before, |service, backend| (service == 1).then_some((0, backend + 5)));
        let found: Vec<_> = (0..4).map(|n| after.find(Instant(5), 0, four(n))).collect();
        assert_eq!(found, [None, None, Some(5), Some(6)]);
        assert_eq!(after.find(Instant(SECOND + 3), 0, four(2)), None, "its time goes on");
    }
}
