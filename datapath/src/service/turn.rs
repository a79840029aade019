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
//! others. A port that a connection had rests for a minute, as its backend may remember it
//! (TIME-WAIT, RFC 9293, section 3.6.1). Where all that are tried are taken, the one that has
//! rested longest is used again, or a connection goes that would have to go where the table has no
//! room. Which ports are tried follows from the connection alone, so after a start without handover
//! it is found again.
//!
//! Only a connection whose start was seen from outside is turned around, or one that is sought;
//! what an endpoint sends for it ends that. So nobody outside can turn around an endpoint's own.

use super::connections::BUCKETS;
use super::decide::{Decision, Known, ends, segment};
use super::entry::{Entry, Key, SECOND, State};
use super::recover::candidate_hash;
use super::translate::{End, set_end, set_mac};
use super::{Address, Role, Services, octets};
use crate::ids::EndpointId;
use crate::network::Network;
use crate::offload::Offload;
use crate::random::Keyed;
use crate::table::{Id, Left, Table};
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::{L4, Layout, Mac, source};
use std::hash::BuildHasher;
use std::net::IpAddr;

/// The ports that backends are asked from: below those of checks.
const FIRST_PORT: u16 = 1024;
const PORTS: u16 = 31_744;
const _: () = assert!(FIRST_PORT + PORTS <= super::check::FIRST_PORT);
const COMMON: u16 = PORTS / 2;
const OF_BUCKET: u16 = (PORTS - COMMON) / BUCKETS as u16;
/// How many are tried of the common ones, and of the bucket's own.
const TRIES: u16 = 16;
/// For how long a port rests, in nanoseconds: Linux keeps TIME-WAIT for so long.
const REST_NS: u64 = 60 * SECOND;
/// Places that are made at once, of those of entries.
const AT_ONCE: usize = 4096;
/// No place.
const NONE: u32 = u32::MAX;
/// The list of ports that are in use; those that rest are in one of their owner's behind it.
const IN_USE: u32 = 0;

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

/// A connection that is turned around, or was.
#[derive(Clone, Copy, Debug)]
struct Turned {
    /// Its entry.
    id: Id,
    /// Its tenant's slot.
    owner: u32,
    /// Where its client's frames came from last.
    client: Mac,
}

/// What is at a port.
enum Found {
    /// A connection.
    Used(Id),
    /// There was one until then.
    Rests(Instant),
}

/// Connections that are turned around, by what their backends answer to, and by their entries.
#[derive(Debug)]
pub(super) struct Turns {
    table: Table<Asked, Turned>,
    /// By place of an entry; empty where nobody may turn around.
    of: Vec<u32>,
    /// The same of the first entries where it becomes longer, and how long that is to be.
    next: Vec<u32>,
    wanted: usize,
    left: Option<Vec<u32>>,
    /// When a connection was turned around last.
    now: Instant,
    /// The number that the next packet in fragments gets.
    packet: u32,
}

impl Turns {
    pub(super) fn new(keyed: Keyed, most: u32) -> Turns {
        Turns {
            table: Table::new(keyed, most),
            of: Vec::new(),
            next: Vec::new(),
            wanted: 0,
            left: None,
            now: Instant::ZERO,
            packet: 0,
        }
    }

    /// Makes room for all of so many connections, whose entries' places are below that: for the
    /// first of them at once, for the others a part at a time.
    pub(super) fn grow_to(&mut self, most: u32, places: u32, owners: u32) {
        self.table.grow_to(most);
        self.table.reserve_lists(1 + owners as usize);
        let wanted = most.max(places) as usize;
        if self.of.is_empty() {
            self.of.resize(wanted.min(AT_ONCE), NONE);
        }
        if wanted > self.of.len().max(self.wanted) {
            self.wanted = wanted;
            self.next = Vec::with_capacity(wanted);
        }
    }

    /// Whether there is to be room for more.
    pub(super) fn are_growing(&self) -> bool {
        self.wanted > 0 || self.table.is_growing()
    }

    /// Makes some of it; see [`Table::go_on`].
    pub(super) fn go_on(&mut self) -> u32 {
        if self.wanted == 0 {
            return self.table.go_on();
        }
        let (start, end) = (self.next.len(), self.wanted.min(self.next.len() + AT_ONCE));
        let known = self.of.get(start..).unwrap_or_default();
        self.next.extend(known.iter().copied().chain(std::iter::repeat(NONE)).take(end - start));
        if end == self.wanted {
            self.left = Some(std::mem::replace(&mut self.of, std::mem::take(&mut self.next)));
            self.wanted = 0;
        }
        // Of these, sixteen are copied in the time of an entry.
        ((end - start) as u32 / 16).max(1)
    }

    /// What they do not need any more since they grew.
    pub(super) fn take_left(&mut self) -> Option<Left> {
        self.left.take().map(|left| Left(Box::new(left))).or_else(|| self.table.take_left())
    }

    fn set_place(&mut self, id: Id, place: u32) {
        for of in [&mut self.of, &mut self.next] {
            if let Some(of) = of.get_mut(id.0 as usize) {
                *of = place;
            }
        }
    }

    /// Whether any connection may be turned around.
    #[inline]
    pub(super) fn have_room(&self) -> bool {
        !self.of.is_empty()
    }

    /// Whether any connection is turned around.
    #[inline]
    pub(super) fn are_any(&self) -> bool {
        self.table.count(IN_USE) > 0
    }

    fn look(&self, asked: &Asked) -> Option<Found> {
        let place = self.table.find(asked)?;
        let turn = self.table.get(place)?;
        Some(match self.table.list(place)? {
            IN_USE => Found::Used(turn.id),
            _ => Found::Rests(self.table.seen(place)?),
        })
    }

    /// The port that a connection's backend is asked from, and its client's Ethernet address.
    #[inline]
    pub(super) fn get(&self, id: Id) -> Option<(u16, Mac)> {
        let place = Id(*self.of.get(id.0 as usize)?);
        if place.0 == NONE {
            return None;
        }
        let (asked, turn) = self.table.key(place).zip(self.table.get(place))?;
        Some((asked.port, turn.client))
    }

    fn see(&mut self, id: Id, client: Mac) {
        let place = self.of.get(id.0 as usize).copied().unwrap_or(NONE);
        if let Some(turn) = self.table.get_mut(Id(place)) {
            turn.client = client;
        }
    }

    /// False where there is no room. What rests makes room, the owner's own first.
    fn insert(&mut self, now: Instant, asked: Asked, turn: Turned) -> bool {
        self.now = now;
        if self.of.len() <= turn.id.0 as usize {
            return false;
        }
        if let Some(old) = self.table.find(&asked) {
            self.table.remove(old);
        }
        let own = IN_USE + 1 + turn.owner;
        for _ in 0..2 {
            let Some(old) = self.table.aged(now, own, REST_NS) else { break };
            self.table.remove(old);
        }
        if self.table.len() >= self.table.most() {
            let counts = self.table.counts(IN_USE + 1..u32::MAX);
            let longest = (IN_USE + 1..).zip(counts).max_by_key(|&(_, count)| count).map(|(list, _)| list);
            let old = self.table.oldest(own).or_else(|| self.table.oldest(longest?));
            old.map(|old| self.table.remove(old));
        }
        let Ok(added) = self.table.insert(now, IN_USE, asked, turn) else { return false };
        self.set_place(turn.id, added.0);
        true
    }

    /// An entry is another connection's by now, or nobody's: its port rests.
    #[inline]
    pub(super) fn forget(&mut self, id: Id) {
        let Some(place) = self.of.get(id.0 as usize).copied().filter(|&place| place != NONE).map(Id) else { return };
        self.set_place(id, NONE);
        if let Some(owner) = self.table.get(place).map(|turn| turn.owner) {
            self.table.touch(self.now, place, IN_USE + 1 + owner);
        }
    }

    /// The number of a packet in fragments, of all that are asked from one address.
    pub(super) fn next_packet(&mut self) -> u32 {
        self.packet = self.packet.wrapping_add(1);
        self.packet
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
    /// A client outside sends to its backend: who pays for it, where the connection is turned
    /// around.
    ///
    /// # Errors
    /// [`Reason::ServiceFull`] where there is no port for it, [`Reason::Unreachable`] where nobody
    /// pays any more.
    pub fn turn_on(
        &mut self,
        now: Instant,
        known: &Known,
        bytes: &[u8],
        layout: &Layout,
    ) -> Result<Option<EndpointId>, Reason> {
        let Some((_, client)) = self.turns.get(known.id) else {
            // Its candidates are asked by turns, those outside and those here.
            let is_sought = self.connections.get(known.id).is_some_and(|entry| entry.state == State::Sought);
            return if is_sought { self.turn_around(now, known, source(bytes)) } else { Ok(None) };
        };
        if client != source(bytes) && self.may_move(known, bytes, layout) {
            self.turns.see(known.id, source(bytes));
        }
        self.director(known).map(Some).ok_or(Reason::Unreachable)
    }

    /// Whether a frame that comes from elsewhere than those before is its client's: of TCP one that
    /// acknowledges what the client may have by now.
    fn may_move(&self, known: &Known, bytes: &[u8], layout: &Layout) -> bool {
        let Some(entry) = self.connections.get(known.id) else { return false };
        layout.l4 != L4::Tcp || entry.is_acknowledged(&segment(bytes, layout))
    }

    /// A connection of a client outside has a backend, new or sought: who pays for it where that is
    /// outside too. `client` is where its frame came from.
    ///
    /// # Errors
    /// [`Reason::ServiceFull`] where there is no port for it; then there is no connection either.
    pub fn turn_around(&mut self, now: Instant, known: &Known, client: Mac) -> Result<Option<EndpointId>, Reason> {
        let director = if self.turns.have_room() { self.would_turn(known) } else { None };
        let Some(director) = director else { return Ok(None) };
        self.turns.forget(known.id);
        let owner = self.running(known.key.front).map_or(0, |(running, _)| running.service.tenant.0);
        let round = self.connections.get(known.id).and_then(|entry| self.round(known, entry));
        if let Some((asked, other)) = self.find_port(now, known, self.connections.bucket(known.id), round) {
            if let Some(other) = other {
                self.evict(other);
            }
            if self.turns.insert(now, asked, Turned { id: known.id, owner, client }) {
                return Ok(Some(director));
            }
        }
        self.give_up(known);
        Err(Reason::ServiceFull)
    }

    /// An endpoint sends for a connection: it is its own.
    #[inline]
    pub fn turn_off(&mut self, known: &Known) {
        if self.turns.are_any() {
            self.turns.forget(known.id);
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

    /// The same of a new connection, with what [`Services::turn_around`] would say, and the port
    /// that its backend would be asked from.
    ///
    /// # Errors
    /// As there.
    pub fn would_turn_around(
        &self,
        now: Instant,
        known: &Known,
        is_sought: bool,
    ) -> Result<Option<(EndpointId, u16)>, Reason> {
        let Some(director) = self.would_turn(known) else { return Ok(None) };
        let (bucket, round) = match self.connections.get_of(known.id, &known.key) {
            Some(entry) => (Some(self.connections.bucket(known.id)), self.round(known, entry)),
            None => (self.opener(&known.key, None).map(|opener| opener.bucket), is_sought.then_some(0)),
        };
        let port = bucket.and_then(|bucket| self.find_port(now, known, bucket, round));
        port.map(|(asked, _)| Some((director, asked.port))).ok_or(Reason::ServiceFull)
    }

    /// The same of one that is known, with what [`Services::turn_on`] would say.
    ///
    /// # Errors
    /// As there.
    pub fn would_turn_on(&self, now: Instant, known: &Known) -> Result<Option<(EndpointId, u16)>, Reason> {
        let is_sought = self.connections.get(known.id).is_some_and(|entry| entry.state == State::Sought);
        match self.turns.get(known.id) {
            Some((port, _)) => self.director(known).map(|of| Some((of, port))).ok_or(Reason::Unreachable),
            None if is_sought => self.would_turn_around(now, known, true),
            None => Ok(None),
        }
    }

    /// Gives a client's frame the end that its backend would be asked from.
    pub(crate) fn ask_from(&self, known: &Known, port: u16, bytes: &mut [u8], layout: &Layout, offload: &Offload) {
        if let Some((_, front)) = self.running(known.key.front) {
            set_end(bytes, layout, offload, End::Source, (front.address.ip, port));
        }
    }

    /// Whether a connection is turned around.
    #[must_use]
    #[inline]
    pub fn is_turned(&self, known: &Known) -> bool {
        self.turns.get(known.id).is_some()
    }

    /// Who pays for what belongs to a connection that is turned around.
    #[must_use]
    #[inline]
    pub fn director(&self, known: &Known) -> Option<EndpointId> {
        self.turns.get(known.id)?;
        self.running(known.key.front)?.0.service.director
    }

    /// Who pays for what is done with a frame that is no client's, where it goes out again.
    ///
    /// # Errors
    /// [`Reason::Unreachable`] where nobody does any more.
    pub fn director_of(&self, decision: &Decision) -> Result<Option<EndpointId>, Reason> {
        match decision {
            Decision::Back(known) | Decision::Error(known, _) | Decision::Cut(known, _) if self.is_turned(known) => {
                self.director(known).map(Some).ok_or(Reason::Unreachable)
            }
            Decision::Fragment(id) => Ok(self.fragments.get(*id).and_then(|change| change.director)),
            _ => Ok(None),
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
        let Some(Found::Used(id)) = self.turns.look(&asked) else { return None };
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

    /// What the backend of a connection is asked from and answers to.
    fn asked_from(&self, known: &Known, port: u16) -> Option<Asked> {
        let (running, front) = self.running(known.key.front)?;
        let (backend, backend_port) = self.reached(&known.key, known.backend)?;
        Some(Asked {
            network: running.network.0,
            service: octets(front.address.ip),
            backend: octets(backend),
            backend_port,
            port,
            protocol: front.address.protocol,
        })
    }

    /// A port for a connection whose opener is in a bucket: the first that is free; else one that
    /// rests, or that of a connection which goes for it. Of one that is sought, the one of this
    /// round.
    fn find_port(&self, now: Instant, known: &Known, bucket: u32, round: Option<usize>) -> Option<(Asked, Option<Id>)> {
        let (running, front) = self.running(known.key.front)?;
        let Address { ip, protocol, port } = front.address;
        let role = self.fronts.role(running.network, ip)?;
        let is_free = |asked: &Asked| role.front(protocol, asked.port).is_none();
        let hash = candidate_hash(&self.service_key, (octets(ip), protocol, port), (&known.key.client, known.key.port));
        let mut all = ports(&self.service_key, hash, bucket).filter_map(|port| self.asked_from(known, port));
        if let Some(round) = round {
            let asked = all.nth(round).filter(is_free)?;
            return match self.turns.look(&asked) {
                Some(Found::Used(other)) if other != known.id => None,
                _ => Some((asked, None)),
            };
        }
        let mut least: Option<((u32, Instant), Asked, Option<Id>)> = None;
        for asked in all.filter(is_free) {
            let (worth, other) = match self.turns.look(&asked) {
                None => return Some((asked, None)),
                Some(Found::Rests(since)) if now.since(since) >= REST_NS => return Some((asked, None)),
                Some(Found::Rests(since)) => ((0, since), None),
                Some(Found::Used(other)) => match self.connections.worth(now, other) {
                    Some((worth, seen)) => ((1 + worth, seen), Some(other)),
                    None => continue,
                },
            };
            if least.is_none_or(|(least, ..)| worth < least) {
                least = Some((worth, asked, other));
            }
        }
        least.map(|(_, asked, other)| (asked, other))
    }

    /// Of a connection that is sought, how often each candidate was asked before.
    fn round(&self, known: &Known, entry: &Entry) -> Option<usize> {
        let candidates = self.order(&known.key).map_or(1, |order| order.len()).max(1);
        (entry.state == State::Sought).then(|| usize::from(entry.asked()) / candidates)
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

    /// One that was handed over, at the port that it had.
    pub(super) fn import_turn(&mut self, now: Instant, key: &Key, (port, client): (u16, Mac)) {
        let Some((id, entry)) = self.find(key) else { return };
        let known = Known { id, key: *key, backend: entry.backend, is_plain: false };
        let is_a_port = (FIRST_PORT..FIRST_PORT + PORTS).contains(&port);
        let Some(asked) = self.asked_from(&known, port).filter(|_| is_a_port) else { return };
        let owner = self.running(key.front).map_or(0, |(running, _)| running.service.tenant.0);
        let is_new = self.would_turn(&known).is_some() && !self.is_turned(&known);
        if is_new && self.turns.look(&asked).is_none() {
            self.turns.insert(now, asked, Turned { id, owner, client });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::connections::DEFAULT_CONNECTIONS;
    use super::*;

    #[test]
    fn one_that_is_turned_around_takes_116_bytes_more() {
        let place = size_of::<u32>() as u64;
        assert_eq!(Table::<Asked, Turned>::bytes_of(1 << 20) / (1 << 20) + place, 116);
        assert!(Table::<Asked, Turned>::bytes_of(DEFAULT_CONNECTIONS) / u64::from(DEFAULT_CONNECTIONS) + place <= 116);
    }

    #[test]
    fn each_bucket_has_ports_of_its_own() {
        let keyed = Keyed::new(7);
        for bucket in 0..BUCKETS {
            let tried: Vec<u16> = ports(&keyed, u64::from(bucket) << 40 | 99, bucket).collect();
            let (common, own) = tried.split_at(usize::from(TRIES));
            assert!(common.iter().all(|port| (FIRST_PORT..FIRST_PORT + COMMON).contains(port)));
            let first = FIRST_PORT + COMMON + bucket as u16 * OF_BUCKET;
            assert!(own.iter().all(|port| (first..first + OF_BUCKET).contains(port)));
        }
    }
}
