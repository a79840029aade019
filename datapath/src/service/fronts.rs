//! Fronts: where services are reached, and what an IP address is in its network. A change of a
//! service costs by its own fronts and backends, however many other services there are.

use super::roles::{At, MacAt, Macs, Roles};
use super::running::Running;
use super::spec::{Address, MOST_FRONTS, MOST_FRONTS_OF_TARGET, ServiceId};
use crate::network::{Network, slot};
use crate::wire::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Targets of one address, protocol and port at most: IPv4 and IPv6 have their own.
pub(super) const MOST_TARGETS: usize = MOST_FRONTS_OF_TARGET * 2;

/// A front: where a service is reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    pub service: ServiceId,
    pub address: Address,
}

/// A front's number, and whose it is.
#[derive(Clone, Copy, Debug)]
enum Number {
    Free,
    Used(Front),
    /// Connections may still have it. Of the service that had it, where that is still there.
    Leaving(Option<ServiceId>),
}

/// What an IP address is in its network.
#[derive(Clone, Debug, Default)]
pub(super) struct Role {
    /// Of a service: protocol, port and front, in this order.
    fronts: Vec<(u8, u16, u16)>,
    /// Whose MAC address it has, where it is a service's.
    pub mac: Option<(Mac, ServiceId)>,
    /// Of a backend: protocol, port, front, and its number, in this order.
    targets: Vec<(u8, u16, u16, u8)>,
}

impl Role {
    /// The front that is reached at a port.
    pub fn front(&self, protocol: u8, port: u16) -> Option<u16> {
        let at = self.fronts.binary_search_by_key(&(protocol, port), |&(protocol, port, _)| (protocol, port)).ok()?;
        Some(self.fronts[at].2)
    }

    /// Fronts that lead to a port of this backend, with its number there.
    pub fn targets(&self, protocol: u8, port: u16) -> impl Iterator<Item = (u16, u8)> {
        let is_it = move |&(p, at, ..): &(u8, u16, u16, u8)| (p, at) == (protocol, port);
        let first = self.targets.partition_point(|&(p, at, ..)| (p, at) < (protocol, port));
        self.targets[first..]
            .iter()
            .take_while(move |target| is_it(target))
            .map(|&(_, _, front, number)| (front, number))
    }

    /// Whether it is a backend's.
    pub fn is_backend(&self) -> bool {
        !self.targets.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.fronts.is_empty() && self.targets.is_empty()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Fronts {
    all: Vec<Number>,
    /// Numbers that are free again.
    free: BTreeSet<u16>,
    /// Those that will be, when so many sweeps are over.
    leaving: BTreeSet<(u64, u16)>,
    roles: Roles<Role>,
    /// Fronts by MAC address of their service and its network.
    macs: Macs<u32>,
    /// Fronts by network's slot.
    networks: Vec<u32>,
    /// Fronts that lead where another one leads, counted once for each backend.
    shared: usize,
}

impl Fronts {
    pub fn new() -> Fronts {
        Fronts {
            all: Vec::new(),
            free: BTreeSet::new(),
            leaving: BTreeSet::new(),
            roles: Roles::default(),
            macs: Macs::default(),
            networks: Vec::new(),
            shared: 0,
        }
    }

    /// Whether any two fronts lead to one port of a backend.
    #[inline]
    pub fn share_targets(&self) -> bool {
        self.shared > 0
    }

    /// Whether a network has any: where none has, it is this comparison.
    #[inline]
    pub fn are_in(&self, network: Network) -> bool {
        self.networks.get(slot(network)).is_some_and(|&fronts| fronts > 0)
    }

    /// A front that is in use.
    #[inline]
    pub fn get(&self, number: u16) -> Option<Front> {
        match self.all.get(usize::from(number))? {
            Number::Used(front) => Some(*front),
            Number::Free | Number::Leaving(_) => None,
        }
    }

    /// The service whose connections have this front, in use or no longer.
    pub fn service(&self, number: u16) -> Option<ServiceId> {
        match self.all.get(usize::from(number))? {
            Number::Used(front) => Some(front.service),
            Number::Leaving(service) => *service,
            Number::Free => None,
        }
    }

    /// The number of a service's front.
    pub fn number(&self, network: Network, service: ServiceId, address: &Address) -> Option<u16> {
        let number = self.role(network, address.ip)?.front(address.protocol, address.port)?;
        self.get(number).filter(|front| front.service == service).map(|_| number)
    }

    /// How many are in use.
    pub fn in_use(&self) -> usize {
        self.all.len() - self.free.len() - self.leaving.len()
    }

    /// Whether each address of a service that has no front yet can get one.
    pub fn have_room(&self, running: &Running) -> bool {
        let free = MOST_FRONTS - self.all.len() + self.free.len();
        let known = || running.fronts.iter().filter(|&&number| self.get(number).is_some()).count();
        let wanted = running.service.addresses.len();
        wanted <= free || wanted <= free + known()
    }

    /// What an address is, where it is something to services.
    #[inline]
    pub fn role(&self, network: Network, ip: IpAddr) -> Option<&Role> {
        self.roles.get(&At::new(network, ip))
    }

    /// Whether a MAC address is that of a service.
    #[inline]
    pub fn has_mac(&self, network: Network, mac: Mac) -> bool {
        self.macs.contains_key(&MacAt::new(network, mac))
    }

    /// Whether an address is no other service's, and its IP address none's with another MAC
    /// address. A service that is there already may have another one: those beside it are to
    /// follow, one after the other.
    pub fn is_free(&self, network: Network, address: &Address, (service, mac): (ServiceId, Mac)) -> bool {
        let Some(role) = self.role(network, address.ip) else { return true };
        let is_own = |front: u16| self.get(front).is_some_and(|front| front.service == service);
        let has_same_mac = role.mac.is_none_or(|(other, _)| other == mac);
        role.front(address.protocol, address.port).is_none_or(is_own)
            && (has_same_mac || role.fronts.iter().any(|&(.., front)| is_own(front)))
    }

    /// Fronts of services other than `service` that lead to a port of a backend.
    pub fn targets_of_others(
        &self,
        service: ServiceId,
        network: Network,
        (ip, protocol, port): (IpAddr, u8, u16),
    ) -> usize {
        let is_others = |&(front, _): &(u16, u8)| self.get(front).is_some_and(|front| front.service != service);
        self.role(network, ip).map_or(0, |role| role.targets(protocol, port).filter(is_others).count())
    }

    /// What a service was is taken back, before it changes. Its fronts keep their numbers.
    pub fn withdraw(&mut self, running: &Running) {
        let network = running.network;
        for &number in &running.fronts {
            let Some(Front { address, .. }) = self.get(number) else { continue };
            self.networks[slot(network)] -= 1;
            let mac = MacAt::new(network, running.service.mac);
            if let Some(fronts) = self.macs.get_mut(&mac) {
                *fronts -= 1;
                if *fronts == 0 {
                    self.macs.remove(&mac);
                }
            }
            self.change_role(network, address.ip, |role| {
                remove(&mut role.fronts, &(address.protocol, address.port, number));
            });
            for (ip, target) in targets(running, address, number) {
                self.change_target(network, ip, target, |role| remove(&mut role.targets, &target));
            }
        }
    }

    /// Those of its fronts that a service has no longer.
    pub fn gone(&self, running: &Running) -> BTreeSet<u16> {
        let wanted: BTreeSet<Address> = running.service.addresses.iter().copied().collect();
        let is_gone = |number: &u16| self.get(*number).is_none_or(|front| !wanted.contains(&front.address));
        running.fronts.iter().copied().filter(is_gone).collect()
    }

    /// Fronts of a service are no longer in use. Others may get their numbers when so many sweeps
    /// are over.
    pub fn leave(&mut self, gone: &BTreeSet<u16>, sweeps: u64) {
        for &number in gone {
            self.all[usize::from(number)] = Number::Leaving(self.service(number));
            self.leaving.insert((sweeps, number));
        }
    }

    /// A service is gone: what counted its connections is, too.
    pub fn forget(&mut self, service: ServiceId) {
        for &(_, number) in &self.leaving {
            if self.service(number) == Some(service) {
                self.all[usize::from(number)] = Number::Leaving(None);
            }
        }
    }

    /// So many sweeps are over.
    pub fn release(&mut self, sweeps: u64) {
        while let Some(&first) = self.leaving.first().filter(|(wanted, _)| *wanted <= sweeps) {
            self.leaving.remove(&first);
            self.all[usize::from(first.1)] = Number::Free;
            self.free.insert(first.1);
        }
    }

    /// What a service is now: each of its addresses that has no front gets one, where one is free.
    pub fn publish(&mut self, service: ServiceId, running: &mut Running) {
        let numbers = running.fronts.iter().filter_map(|&number| Some((self.get(number)?.address, number)));
        let known: BTreeMap<Address, u16> = numbers.collect();
        let network = running.network;
        running.fronts.clear();
        for &address in &running.service.addresses {
            let front = Front { service, address };
            let number = known.get(&address).copied().or_else(|| self.take(front));
            running.fronts.extend(number);
        }
        for &number in &running.fronts {
            let Some(Front { address, .. }) = self.get(number) else { continue };
            if self.networks.len() <= slot(network) {
                self.networks.resize(slot(network) + 1, 0);
            }
            self.networks[slot(network)] += 1;
            *self.macs.entry(MacAt::new(network, running.service.mac)).or_default() += 1;
            self.change_role(network, address.ip, |role| {
                insert(&mut role.fronts, (address.protocol, address.port, number));
                role.mac = Some((running.service.mac, service));
            });
            for (ip, target) in targets(running, address, number) {
                self.change_target(network, ip, target, |role| {
                    if role.targets(target.0, target.1).count() < MOST_TARGETS {
                        insert(&mut role.targets, target);
                    }
                });
            }
        }
    }

    fn take(&mut self, front: Front) -> Option<u16> {
        if let Some(number) = self.free.pop_first() {
            self.all[usize::from(number)] = Number::Used(front);
            return Some(number);
        }
        let number = u16::try_from(self.all.len()).ok().filter(|&number| usize::from(number) < MOST_FRONTS)?;
        self.all.push(Number::Used(front));
        Some(number)
    }

    /// Changes which fronts lead to a port of a backend.
    fn change_target(
        &mut self,
        network: Network,
        ip: IpAddr,
        (protocol, port, ..): (u8, u16, u16, u8),
        change: impl FnOnce(&mut Role),
    ) {
        let shared = |role: &Role| role.targets(protocol, port).count().saturating_sub(1);
        let (mut before, mut after) = (0, 0);
        self.change_role(network, ip, |role| {
            before = shared(role);
            change(role);
            after = shared(role);
        });
        self.shared = self.shared + after - before;
    }

    /// Changes what an address is. Of several services there, all have one MAC address, and that of
    /// the last port answers for it.
    fn change_role(&mut self, network: Network, ip: IpAddr, change: impl FnOnce(&mut Role)) {
        let key = At::new(network, ip);
        let role = self.roles.entry(key).or_default();
        change(role);
        let last = role.fronts.last().map(|&(.., front)| usize::from(front));
        let last = last.and_then(|last| match self.all.get(last)? {
            Number::Used(front) => Some(front.service),
            Number::Free | Number::Leaving(_) => None,
        });
        role.mac = role.mac.zip(last).map(|((mac, _), service)| (mac, service));
        if role.is_empty() {
            self.roles.remove(&key);
        }
    }
}

/// What the backends of a service are to a front of it: their addresses, and what is reached there.
fn targets(running: &Running, address: Address, number: u16) -> impl Iterator<Item = (IpAddr, (u8, u16, u16, u8))> {
    running.servers.iter().zip(0u8..).filter_map(move |(server, backend)| {
        let found = server.backend.as_ref()?;
        Some((found.ip(address.ip)?, (address.protocol, found.port.unwrap_or(address.port), number, backend)))
    })
}

/// Into an ordered list, once.
fn insert<T: Ord>(list: &mut Vec<T>, item: T) {
    if let Err(at) = list.binary_search(&item) {
        list.insert(at, item);
    }
}

/// Out of an ordered list, where it is there.
fn remove<T: Ord>(list: &mut Vec<T>, item: &T) {
    if let Ok(at) = list.binary_search(item) {
        list.remove(at);
    }
}
