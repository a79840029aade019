//! Handover of connections to the switch that goes on after this one: plain data, by the addresses
//! of services and backends, because the next program may number both differently. Importing trusts
//! nothing: what does not fit is left out and counted, and no more is kept than the table's bounds
//! let a tenant have.

use super::affinity::{ClientState, MET};
use super::connections::{Opener, Removed};
use super::entry::{Entry, Key, State};
use super::running::{Running, count};
use super::{Address, BackendStats, ServiceId, ServiceStats, Services};
use crate::units::Instant;
use crate::wire::{Mac, be16};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Connections that a switch hands over at most, of all its services; the others are found again by
/// their candidates, and the next switch is told that there are some. Written down, they are 14 MB.
pub const MOST_HANDED: usize = 1 << 18;

/// What a service knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServiceState {
    /// Its counters.
    pub stats: ServiceStats,
    /// What its connections call its addresses.
    pub addresses: Vec<Address>,
    /// What they call its backends, and what was counted of each; connections are counted anew.
    pub backends: Vec<(BackendName, BackendStats)>,
    /// Those that matter most, the oldest of a kind first.
    pub connections: Vec<ConnectionState>,
    /// Connections that there was no room for.
    pub left_out: u64,
    /// Clients that stay at their backend, the longest away first.
    pub clients: Vec<ClientState>,
    /// Of the connections, those that are turned around.
    pub turns: Vec<TurnState>,
}

/// A backend: who it is, whatever it is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackendName {
    /// Its IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Its port, where it has one of its own.
    pub port: Option<u16>,
}

/// A connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionState {
    client: [u8; 16],
    port: u16,
    /// Place in [`ServiceState::addresses`].
    address: u16,
    /// Place in [`ServiceState::backends`].
    backend: u8,
    state: State,
    bits: u8,
    server_end: u32,
    client_ack: u32,
    server_ack: u32,
    idle_ms: u32,
}

impl ConnectionState {
    /// Bytes of one that is written down.
    pub const BYTES: usize = 39;
    /// Goes up when what the bytes say changes.
    pub const VERSION: u32 = 1;

    /// As it is written down, numbers with the highest byte first: client, port, address, backend,
    /// state, bits, end of what the server sent, what the client acknowledged, what the server
    /// did, milliseconds since it was seen.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.client);
        bytes[16..18].copy_from_slice(&self.port.to_be_bytes());
        bytes[18..20].copy_from_slice(&self.address.to_be_bytes());
        let state = State::ALL.iter().position(|state| *state == self.state).unwrap_or_default();
        bytes[20..23].copy_from_slice(&[self.backend, state as u8, self.bits]);
        let numbers = [self.server_end, self.client_ack, self.server_ack, self.idle_ms];
        for (place, number) in bytes[23..].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    /// One that was written down; `None` where it has no state that is known.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<ConnectionState> {
        let (client, rest) = bytes.split_first_chunk()?;
        let word = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
        let number = |n: usize| {
            let at = 7 + 4 * n;
            u32::from_be_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]])
        };
        Some(ConnectionState {
            client: *client,
            port: word(0),
            address: word(2),
            backend: rest[4],
            state: *State::ALL.get(usize::from(rest[5]))?,
            bits: rest[6],
            server_end: number(0),
            client_ack: number(1),
            server_ack: number(2),
            idle_ms: number(3),
        })
    }
}

/// A connection that is turned around: what more there is to know of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnState {
    client: [u8; 16],
    port: u16,
    /// Place in [`ServiceState::addresses`].
    address: u16,
    /// The port that its backend is asked from.
    asked_from: u16,
    /// Its client's Ethernet address.
    mac: Mac,
}

impl TurnState {
    /// Bytes of one that is written down.
    pub const BYTES: usize = 28;

    /// As it is written down, numbers with the highest byte first: client, port, address, the port
    /// that the backend is asked from, the client's Ethernet address.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.client);
        for (place, number) in bytes[16..22].chunks_exact_mut(2).zip([self.port, self.address, self.asked_from]) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes[22..].copy_from_slice(&self.mac.0);
        bytes
    }

    /// One that was written down.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> TurnState {
        let (client, rest) = bytes.split_first_chunk().unwrap_or((&[0; 16], &[]));
        let word = |at: usize| rest.get(at..at + 2).map_or(0, |word| be16(word, 0));
        let mac = rest.last_chunk().copied().unwrap_or_default();
        TurnState { client: *client, port: word(0), address: word(2), asked_from: word(4), mac: Mac(mac) }
    }
}

impl Running {
    fn names(&self) -> Vec<(BackendName, BackendStats)> {
        // Numbers that nobody has keep their places.
        let name = |server: &super::Server| {
            let name = server.backend.as_ref().map(|b| BackendName { ipv4: b.ipv4, ipv6: b.ipv6, port: b.port });
            (name.unwrap_or_default(), BackendStats { is_down: server.is_down(), ..server.stats })
        };
        self.servers.iter().map(name).collect()
    }

    fn number(&self, name: &BackendName) -> Option<usize> {
        self.servers.iter().position(|server| {
            server.backend.as_ref().is_some_and(|b| (b.ipv4, b.ipv6, b.port) == (name.ipv4, name.ipv6, name.port))
        })
    }
}

impl Services {
    /// What the services know, and their connections: of each tenant as many as [`level`] says.
    #[must_use]
    pub fn export(&self, now: Instant) -> Vec<(ServiceId, ServiceState)> {
        let mut states: Vec<(ServiceId, ServiceState)> = self
            .all
            .iter()
            .map(|(id, running)| {
                let (stats, addresses, backends) = (running.stats, running.service.addresses.clone(), running.names());
                (ServiceId(id), ServiceState { stats, addresses, backends, ..ServiceState::default() })
            })
            .collect();
        let mut tenants: Vec<u32> = self.all.values().map(|running| running.service.tenant.0).collect();
        tenants.sort_unstable();
        tenants.dedup();
        let counts = tenants.iter().map(|&tenant| self.connections.count(tenant) as usize).collect();
        let most = level(counts, MOST_HANDED);
        // In the order of their numbers.
        let place = |all: &[(ServiceId, ServiceState)], id: ServiceId| all.binary_search_by_key(&id.0, |(id, _)| id.0);
        for &tenant in &tenants {
            for (id, client, (backend, generation), seen) in self.affinity.of(tenant) {
                let Some(running) = self.all.get(id.0) else { continue };
                let idle_ns = now.since(seen);
                let is_its = running.servers.get(usize::from(backend)).is_some_and(|s| s.generation == generation);
                if idle_ns < running.service.affinity_ns
                    && is_its
                    && let Ok(at) = place(&states, id)
                {
                    let idle_ms = u32::try_from(idle_ns / 1_000_000).unwrap_or(u32::MAX);
                    states[at].1.clients.push(ClientState { client, backend, idle_ms });
                }
            }
            for (at, (id, key, entry)) in self.connections.of(tenant).enumerate() {
                let Some((_, front, _)) = self.server(key, entry) else { continue };
                let Ok(at_state) = place(&states, front.service) else { continue };
                let state = &mut states[at_state].1;
                let address = state.addresses.iter().position(|address| *address == front.address);
                let (true, Some(address)) = (at < most, address) else {
                    state.left_out += u64::from(entry.state.is_missed());
                    continue;
                };
                let idle_ns = self.connections.seen(id).map_or(0, |seen| now.since(seen));
                if let Some((asked_from, mac)) = self.turns.get(id) {
                    let (client, port, address) = (key.client, key.port, address as u16);
                    state.turns.push(TurnState { client, port, address, asked_from, mac });
                }
                let mut entry = *entry;
                entry.settle();
                state.connections.push(ConnectionState {
                    client: key.client,
                    port: key.port,
                    address: address as u16,
                    backend: entry.backend,
                    state: entry.state,
                    bits: entry.bits,
                    server_end: entry.server_end,
                    client_ack: entry.client_ack,
                    server_ack: entry.server_ack,
                    idle_ms: u32::try_from(idle_ns / 1_000_000).unwrap_or(u32::MAX),
                });
            }
        }
        states.iter_mut().for_each(|(_, state)| state.connections.reverse());
        states
    }

    /// Goes on with what another switch exported `away_ns` ago. How many connections go on, and how
    /// many do not fit. Where some were left out, they may be open: see [`Services::recover`].
    pub fn import(&mut self, now: Instant, away_ns: u64, id: ServiceId, state: &ServiceState) -> (usize, usize) {
        let Some(running) = self.all.get_mut(id.0) else { return (0, state.connections.len()) };
        running.stats.count_on(&state.stats);
        let numbers: Vec<Option<usize>> = state.backends.iter().map(|(name, _)| running.number(name)).collect();
        for (number, (_, stats)) in numbers.iter().zip(&state.backends) {
            if let Some(number) = number {
                let server = &mut running.servers[*number];
                server.stats.count_on(stats);
                if let Some(prober) = server.prober.filter(|_| stats.checks > 0) {
                    server.prober = Some(prober.known(stats.is_down));
                }
            }
        }
        let tenant = running.service.tenant.0;
        let fronts: Vec<Option<u16>> =
            state.addresses.iter().map(|address| self.fronts.number(running.network, id, address)).collect();
        for client in &state.clients {
            let backend = numbers.get(usize::from(client.backend)).copied().flatten();
            if let Some(backend) = backend {
                let idle_ns = (u64::from(client.idle_ms) * 1_000_000).saturating_add(away_ns);
                self.import_client(now, id, backend, (client.client, idle_ns));
            }
        }
        // A process that knew nothing of clients says where they are by what is open.
        let tells_clients = !state.clients.is_empty();
        let done = state.connections.iter().filter(|connection| {
            let front = fronts.get(usize::from(connection.address)).copied().flatten();
            let backend = numbers.get(usize::from(connection.backend)).copied().flatten();
            front.zip(backend).is_some_and(|(front, backend)| {
                let done = self.import_connection((now, away_ns), tenant, front, backend, connection);
                if done && !tells_clients {
                    self.import_client(now, id, backend, (connection.client, 0));
                }
                done
            })
        });
        let done = done.count();
        for turn in &state.turns {
            let front = fronts.get(usize::from(turn.address)).copied().flatten();
            if let Some(front) = front {
                let key = Key { client: turn.client, port: turn.port, front };
                self.import_turn(now, &key, (turn.asked_from, turn.mac));
            }
        }
        if state.left_out > 0 {
            self.recover(now);
        }
        (done, state.connections.len() - done)
    }

    /// A client that was given its backend so long ago.
    fn import_client(&mut self, now: Instant, id: ServiceId, backend: usize, (client, idle_ns): ([u8; 16], u64)) {
        let Some(running) = self.all.get(id.0) else { return };
        if idle_ns < running.service.affinity_ns {
            let (owner, generation) = (running.service.tenant.0, running.servers[backend].generation);
            let seen = Instant(now.0.saturating_sub(idle_ns));
            let opener = Opener { owner, bucket: self.bucket(&client, None) };
            self.remember_client(seen, opener, ((id, client), MET), (backend as u8, generation));
        }
    }

    fn import_connection(
        &mut self,
        (now, away_ns): (Instant, u64),
        tenant: u32,
        front: u16,
        backend: usize,
        state: &ConnectionState,
    ) -> bool {
        let key = Key { client: state.client, port: state.port, front };
        let Some(Opener { owner, bucket }) = self.opener(&key, None) else { return false };
        let idle_ns = (u64::from(state.idle_ms) * 1_000_000).saturating_add(away_ns);
        let hash = self.connections.hash(&key);
        if owner != tenant || self.connections.find_hashed(hash, &key).is_some() || idle_ns >= state.state.age_ns() {
            return false;
        }
        let Some((running, _)) = self.running(front) else { return false };
        let generation = running.servers[backend].generation;
        let mut entry = Entry {
            backend: backend as u8,
            generation,
            state: state.state,
            bits: state.bits,
            server_end: state.server_end,
            client_ack: state.client_ack,
            server_ack: state.server_ack,
        };
        // By that bit an older process means something else.
        entry.settle();
        let seen = Instant(now.0.saturating_sub(idle_ns));
        let (all, turns, fronts) = (&mut self.all, &mut self.turns, &self.fronts);
        let mut is_missed = false;
        let gone = |gone: Removed| {
            is_missed |= gone.2.state.is_missed();
            super::leave((all, turns), fronts, &gone, true);
        };
        let done = self.connections.insert((now, seen), Opener { owner, bucket }, (hash, key), entry, gone).is_ok();
        if !done || is_missed {
            // The table is smaller than the one before.
            self.recover(now);
        }
        if !done {
            return false;
        }
        if let Some(server) = self.server_mut(&key, backend as u8) {
            count(&mut server.stats, entry.kind(), true);
        }
        true
    }
}

/// How many of its own each may hand over, so that all together hand over no more than `most`: as
/// many as it has, or as many as all others that have more. What some do not use is the others'.
fn level(mut counts: Vec<usize>, most: usize) -> usize {
    counts.sort_unstable();
    let mut left = most;
    for (at, &count) in counts.iter().enumerate() {
        let part = left / (counts.len() - at);
        if count > part {
            return part;
        }
        left -= count;
    }
    most
}

impl ServiceStats {
    fn count_on(&mut self, more: &ServiceStats) {
        let ServiceStats { new, refused, full, evicted, off_candidates, redirected, sought, recovered, .. } = more;
        let ServiceStats { unhealthy, held, stayed, holding: _, .. } = more;
        for (to, from) in [
            (&mut self.new, new),
            (&mut self.refused, refused),
            (&mut self.full, full),
            (&mut self.evicted, evicted),
            (&mut self.off_candidates, off_candidates),
            (&mut self.redirected, redirected),
            (&mut self.sought, sought),
            (&mut self.recovered, recovered),
            (&mut self.unhealthy, unhealthy),
            (&mut self.held, held),
            (&mut self.stayed, stayed),
        ] {
            *to = to.saturating_add(*from);
        }
    }
}

impl BackendStats {
    fn count_on(&mut self, more: &BackendStats) {
        self.new = self.new.saturating_add(more.new);
        self.refused = self.refused.saturating_add(more.refused);
        self.silent = self.silent.saturating_add(more.silent);
        self.ended = self.ended.saturating_add(more.ended);
        self.ejections = self.ejections.saturating_add(more.ejections);
        self.checks = self.checks.saturating_add(more.checks);
        self.failed_checks = self.failed_checks.saturating_add(more.failed_checks);
        self.falls = self.falls.saturating_add(more.falls);
        self.cut = self.cut.saturating_add(more.cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_small_ones_do_not_use_is_the_others() {
        assert_eq!(level(vec![], 10), 10);
        assert!(level(vec![0, 3, 7], 10) >= 7, "all fit");
        let mut fifty = vec![10; 49];
        fifty.push(30_000);
        assert!(level(fifty, MOST_HANDED) >= 30_000);
        assert_eq!(level(vec![100, 2, 100], 50), 24);
        assert_eq!(level(vec![100; 4], 50), 12);
        for most in 0..40 {
            let counts = vec![1, 9, 0, 4, 17, 4];
            let level = level(counts.clone(), most);
            assert!(counts.iter().map(|&count| count.min(level)).sum::<usize>() <= most);
        }
    }
}
