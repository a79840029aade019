//! Turn-around: connections between a client and a backend that are both outside.
//!
//! The backend is to answer by way of this switch. So it is asked from the service's own address,
//! at a port that stands for the connection (twice NAT, RFC 2663, section 4.3), and what it answers
//! there is the client's. Everything else is as for any other connection: its entry in the table is
//! whose it was, and goes with it.
//!
//! To one backend's port from one address of a service there are [`PORTS`] connections. Half of the
//! ports are for whoever comes first, and each bucket of those who open connections
//! ([`super::connections`]) has its part of the other half: no client can use up what is there for
//! others. Where those that are tried are taken, a connection goes that would have to go where the
//! table has no room. Which port is tried first follows from the connection alone, so after a start
//! without handover it is found again.

use super::connections::BUCKETS;
use super::decide::{Decision, Known, ends};
use super::entry::Key;
use super::recover::candidate_hash;
use super::translate::{End, set_mac};
use super::{Role, Services, octets};
use crate::ids::EndpointId;
use crate::network::Network;
use crate::random::Keyed;
use crate::table::{Id, Table};
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::{Layout, Mac};
use std::hash::BuildHasher;
use std::net::IpAddr;

/// The ports that backends are asked from: below those of checks.
const FIRST_PORT: u16 = 1024;
const PORTS: u16 = 31_744;
const COMMON: u16 = PORTS / 2;
const OF_BUCKET: u16 = (PORTS - COMMON) / BUCKETS as u16;
/// How many are tried of the common ones, and of the bucket's own.
const TRIES: u16 = 16;
/// No place.
const NONE: u32 = u32::MAX;

/// What a backend answers to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Asked {
    network: u32,
    service: [u8; 16],
    backend: [u8; 16],
    backend_port: u16,
    port: u16,
    protocol: u8,
}

/// A connection that is turned around.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Its entry.
    id: Id,
    /// Where its client's frames came from last.
    client: Mac,
}

/// Connections that are turned around, by what their backends answer to, and by their entries.
#[derive(Debug)]
pub(super) struct Turns {
    table: Table<Asked, Turn>,
    /// By place of an entry; empty where nobody may turn around.
    of: Vec<u32>,
}

impl Turns {
    pub(super) fn new(keyed: Keyed, most: u32) -> Turns {
        Turns { table: Table::new(keyed, most), of: Vec::new() }
    }

    /// Makes room for all of so many connections.
    pub(super) fn reserve(&mut self, most: u32) {
        self.table.set_most(most);
        self.table.reserve(1);
        self.of.resize(self.of.len().max(most as usize), NONE);
    }

    /// Whether any connection may be turned around.
    pub(super) fn have_room(&self) -> bool {
        !self.of.is_empty()
    }

    /// Whether any connection is turned around.
    #[inline]
    pub(super) fn are_any(&self) -> bool {
        !self.table.is_empty()
    }

    /// The connection that is answered at this.
    fn find(&self, asked: &Asked) -> Option<Id> {
        Some(self.table.get(self.table.find(asked)?)?.id)
    }

    /// The port that a connection's backend is asked from, and its client's Ethernet address.
    #[inline]
    pub(super) fn get(&self, id: Id) -> Option<(u16, Mac)> {
        let place = Id(*self.of.get(id.0 as usize)?);
        let (asked, turn) = self.table.key(place).zip(self.table.get(place))?;
        Some((asked.port, turn.client))
    }

    fn see(&mut self, id: Id, client: Mac) -> bool {
        let place = self.of.get(id.0 as usize).copied().unwrap_or(NONE);
        match self.table.get_mut(Id(place)) {
            Some(turn) => turn.client = client,
            None => return false,
        }
        true
    }

    /// False where there is no room.
    fn insert(&mut self, now: Instant, asked: Asked, turn: Turn) -> bool {
        let Some(place) = self.of.get_mut(turn.id.0 as usize) else { return false };
        let Ok(added) = self.table.insert(now, 0, asked, turn) else { return false };
        *place = added.0;
        true
    }

    /// An entry is another connection's by now, or nobody's.
    #[inline]
    pub(super) fn forget(&mut self, id: Id) {
        let Some(place) = self.of.get_mut(id.0 as usize).filter(|place| **place != NONE) else { return };
        self.table.remove(Id(std::mem::replace(place, NONE)));
    }
}

/// The ports that are tried for a connection, in this order.
fn ports(keyed: &Keyed, hash: u64, bucket: u32) -> impl Iterator<Item = u16> {
    let common = (0..TRIES).map(move |n| (keyed.hash_one((hash, n)) % u64::from(COMMON)) as u16);
    let own = COMMON + bucket as u16 * OF_BUCKET;
    let first = (hash >> 32) as u16 % OF_BUCKET;
    let own = (0..TRIES).map(move |n| own + (first + n) % OF_BUCKET);
    common.chain(own).map(|port| FIRST_PORT + port)
}

impl Services {
    /// A client outside sends to its backend: who pays for it where that is outside too. Then it is
    /// turned around from now on; `client` is where the frame came from.
    ///
    /// # Errors
    /// [`Reason::ServiceFull`] where there is no port for it.
    pub fn turn_around(&mut self, now: Instant, known: &Known, client: Mac) -> Result<Option<EndpointId>, Reason> {
        let director = if self.turns.have_room() { self.would_turn(known) } else { None };
        let Some(director) = director else { return Ok(None) };
        if self.turns.see(known.id, client) {
            return Ok(Some(director));
        }
        match self.take_port(now, known) {
            Some(asked) if self.turns.insert(now, asked, Turn { id: known.id, client }) => Ok(Some(director)),
            _ => {
                self.give_up(known);
                Err(Reason::ServiceFull)
            }
        }
    }

    /// Who would pay for what a client outside sends to this backend, where that is outside too.
    #[must_use]
    pub fn would_turn(&self, known: &Known) -> Option<EndpointId> {
        let (running, _) = self.running(known.key.front)?;
        let director = running.service.director?;
        let backend = running.servers.get(usize::from(known.backend))?.backend.as_ref()?;
        backend.endpoint.is_none().then_some(director)
    }

    /// Who pays for what belongs to a connection that is turned around.
    #[must_use]
    #[inline]
    pub fn director(&self, known: &Known) -> Option<EndpointId> {
        self.turns.get(known.id)?;
        self.running(known.key.front)?.0.service.director
    }

    /// Who pays for what is done with a frame that is no client's, where it goes out again.
    #[must_use]
    pub fn director_of(&self, decision: &Decision) -> Option<EndpointId> {
        match decision {
            Decision::Back(known) | Decision::Error(known, _) | Decision::Cut(known, _) => self.director(known),
            Decision::Fragment(id) => self.fragments.get(*id)?.director,
            _ => None,
        }
    }

    /// What leaves a service for outside again has its Ethernet address.
    pub(crate) fn set_own_mac(&self, network: Network, bytes: &mut [u8], layout: &Layout) {
        let role = ends(bytes, layout).and_then(|(source, _)| self.fronts.role(network, source));
        if let Some((mac, _)) = role.and_then(|role| role.mac) {
            set_mac(bytes, End::Source, mac);
        }
    }

    /// The connection that a backend outside answers, at the service's own address.
    pub(super) fn turned(
        &self,
        network: Network,
        number: u8,
        (backend, backend_port): (IpAddr, u16),
        (service, port): (IpAddr, u16),
    ) -> Option<Known> {
        if !self.turns.are_any() {
            return None;
        }
        let (service, backend) = (octets(service), octets(backend));
        let asked = Asked { network: network.0, service, backend, backend_port, port, protocol: number };
        let id = self.turns.find(&asked)?;
        let (_, key, entry) = self.connections.at(id)?;
        self.server(key, entry)?;
        Some(Known { id, key: *key, backend: entry.backend, is_plain: false })
    }

    /// Whether what a backend outside sends may be of a connection that was lost with the table:
    /// its client finds it again.
    pub(super) fn is_lost(&self, now: Instant, by: Option<&Role>, (number, from): (u8, u16), port: u16) -> bool {
        self.turns.have_room()
            && self.is_recovering(now)
            && (FIRST_PORT..FIRST_PORT + PORTS).contains(&port)
            && by.is_some_and(|role| role.targets(number, from).next().is_some())
    }

    /// What the backend of a connection is to answer to: the first port that is free, or that of a
    /// connection which may go for it.
    fn take_port(&mut self, now: Instant, known: &Known) -> Option<Asked> {
        let (running, front) = self.running(known.key.front)?;
        let (service, number) = (front.address.ip, front.address.protocol);
        let (network, (backend, backend_port)) = (running.network, self.reached(&known.key, known.backend)?);
        let asked = |port| Asked {
            network: network.0,
            service: octets(service),
            backend: octets(backend),
            backend_port,
            port,
            protocol: number,
        };
        let role = self.fronts.role(network, service)?;
        let is_front = |port: &u16| role.front(number, *port).is_some();
        let hash = turn_hash(&self.service_key, (service, number, front.address.port), &known.key);
        let mut least = None;
        for port in ports(&self.service_key, hash, self.connections.bucket(known.id)) {
            if is_front(&port) {
                continue;
            }
            let Some(other) = self.turns.find(&asked(port)) else { return Some(asked(port)) };
            let worth = self.connections.worth(now, other).map(|worth| (worth, other, port));
            least = [least, worth].into_iter().flatten().min();
        }
        let (_, other, port) = least?;
        self.evict(other);
        Some(asked(port))
    }

    /// A connection goes for another.
    fn evict(&mut self, id: Id) {
        let Some(owner) = self.connections.at(id).map(|(owner, ..)| owner) else { return };
        if let Some(gone) = self.connections.remove(owner, id) {
            super::leave((&mut self.all, &mut self.turns), &self.fronts, &gone, true);
        }
    }

    /// A connection gets no port: it is none.
    fn give_up(&mut self, known: &Known) {
        if let Some(running) = self.running_mut(&known.key) {
            running.stats.full += 1;
        }
        let Some(owner) = self.running(known.key.front).map(|(running, _)| running.service.tenant.0) else { return };
        if let Some(gone) = self.connections.remove(owner, known.id) {
            self.leave(gone);
        }
    }

    /// One that was handed over, at the port that it had. Without that it gets one when its client
    /// sends.
    pub(super) fn import_turn(&mut self, now: Instant, key: &Key, (port, client): (u16, Mac)) {
        let Some((id, entry)) = self.find(key) else { return };
        let known = Known { id, key: *key, backend: entry.backend, is_plain: false };
        let is_a_port = (FIRST_PORT..FIRST_PORT + PORTS).contains(&port);
        let Some((running, front)) = self.running(key.front).filter(|_| is_a_port) else { return };
        let Some((backend, backend_port)) = self.reached(key, known.backend) else { return };
        if self.would_turn(&known).is_none() || self.turns.get(id).is_some() {
            return;
        }
        let asked = Asked {
            network: running.network.0,
            service: octets(front.address.ip),
            backend: octets(backend),
            backend_port,
            port,
            protocol: front.address.protocol,
        };
        if self.turns.find(&asked).is_none() {
            self.turns.insert(now, asked, Turn { id, client });
        }
    }
}

/// What a connection's ports are drawn by.
fn turn_hash(keyed: &Keyed, (ip, number, port): (IpAddr, u8, u16), key: &Key) -> u64 {
    candidate_hash(keyed, (octets(ip), number, port), (&key.client, key.port))
}
