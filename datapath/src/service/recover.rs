//! Connections that the table does not know: after a start without handover, or where their entry
//! had to go for others.
//!
//! A connection's hash names the backends that can have it (its *candidates*), so the table is not
//! needed to find it again. A client's segment goes to the first candidate; one that does not know
//! the connection answers with a reset, which is kept back, and the next one is asked: the client
//! sends again after its retransmission timeout. What a backend sends is taken for an answer to a
//! client of the service while connections may have been lost ([`Services::recover`]); a client
//! that knows no such connection says so with a reset, which is kept back too, and the two then
//! speak without the service. Who opens a connection with a backend itself is seen to do so; an
//! answer to a SYN that nobody has seen goes nowhere.

use super::connections::{NoRoom, Opener};
use super::decide::segment;
use super::entry::{Entry, Key, OPEN_NS, Segment, State};
use super::{Again, Decision, Front, Known, Role, Services, octets};
use crate::ids::EndpointId;
use crate::random::Keyed;
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::{Layout, protocol, tcp_flags as flags};
use std::hash::BuildHasher;
use std::net::IpAddr;

/// Backends that are asked about one connection at most: an entry counts them in two bits.
pub(super) const MOST_ASKED: usize = 4;

/// Backends that can have a connection, in the order in which they are asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Order {
    numbers: [u8; MOST_ASKED],
    len: usize,
}

impl Order {
    /// Adds one, unless it is there or the list is full.
    pub(super) fn push(&mut self, number: usize) {
        if self.len < MOST_ASKED && !self.contains(number as u8) {
            self.numbers[self.len] = number as u8;
            self.len += 1;
        }
    }

    pub(super) fn contains(&self, number: u8) -> bool {
        self.numbers[..self.len].contains(&number)
    }

    pub(super) fn get(&self, at: u8) -> Option<u8> {
        self.numbers[..self.len].get(usize::from(at)).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Who is asked after so many others: of a connection that is turned around again the first,
    /// from another port.
    fn after(&self, asked: u8, is_turned: bool) -> Option<u8> {
        let may_repeat = is_turned && usize::from(asked) < MOST_ASKED && self.len > 0;
        self.get(asked).or_else(|| self.get(asked % self.len.max(1) as u8).filter(|_| may_repeat))
    }
}

/// See [`Services::candidate_hash`]: the hash of `(ip, protocol, port, client, client_port)`, as
/// `#[derive(Hash)]` would have it, written at once. Hosts must agree on it, also those of other
/// versions.
pub(super) fn candidate_hash(
    keyed: &Keyed,
    (ip, protocol, port): ([u8; 16], u8, u16),
    (client, client_port): (&[u8; 16], u16),
) -> u64 {
    const LENGTH: [u8; 8] = 16u64.to_le_bytes();
    let mut bytes = [0; 53];
    bytes[..8].copy_from_slice(&LENGTH);
    bytes[8..24].copy_from_slice(&ip);
    bytes[24] = protocol;
    bytes[25..27].copy_from_slice(&port.to_le_bytes());
    bytes[27..35].copy_from_slice(&LENGTH);
    bytes[35..51].copy_from_slice(client);
    bytes[51..].copy_from_slice(&client_port.to_le_bytes());
    keyed.build_hasher().hash(&bytes)
}

impl Services {
    /// Connections may be open that the table does not know: for as long as one may be idle, what
    /// backends send is taken for theirs.
    pub fn recover(&mut self, now: Instant) {
        self.recover_for(now, OPEN_NS);
    }

    /// The same for so long, unless that is more.
    pub fn recover_for(&mut self, now: Instant, ns: u64) {
        let until = now.plus_ns(ns.min(OPEN_NS));
        self.recovers_until = self.recovers_until.max(Some(until));
    }

    /// For how long that still is so, in nanoseconds.
    #[must_use]
    pub fn recovers_ns(&self, now: Instant) -> u64 {
        self.recovers_until.map_or(0, |until| until.since(now))
    }

    pub(super) fn is_recovering(&self, now: Instant) -> bool {
        self.recovers_until.is_some_and(|until| now < until)
    }

    /// What a connection's candidates are drawn by: the same after a restart and on other hosts.
    pub(super) fn candidate_hash(&self, front: &Front, key: &Key) -> u64 {
        let super::Address { ip, protocol, port } = front.address;
        let is_by_client = self.all.get(front.service.0).is_some_and(|running| running.service.affinity_ns > 0);
        let client_port = if is_by_client { 0 } else { key.port };
        candidate_hash(&self.service_key, (octets(ip), protocol, port), (&key.client, client_port))
    }

    pub(super) fn order(&self, key: &Key) -> Option<Order> {
        let (running, front) = self.running(key.front)?;
        Some(running.order(self.candidate_hash(&front, key)))
    }

    /// The first backend that a segment of an unknown connection goes to.
    #[must_use]
    pub fn would_seek(&self, key: &Key) -> Option<u8> {
        self.order(key)?.get(0)
    }

    /// A client's segment in the middle of a connection that is not known.
    pub(super) fn decide_seek(&self, key: Key, segment: &Segment) -> Decision {
        let is_middle = segment.flags & (flags::ACK | flags::RST | flags::SYN) == flags::ACK;
        match is_middle && self.would_seek(&key).is_some() {
            true => Decision::Seek(key),
            false => Decision::Drop(Reason::ServiceUnknown),
        }
    }

    /// A backend's reset in answer to a segment of a connection that it may not have: another is
    /// asked, if there is one.
    pub(super) fn decide_denied(&self, known: &Known, entry: &Entry) -> bool {
        entry.state == State::Sought
            && !entry.is_heard()
            && self
                .order(&known.key)
                .is_some_and(|order| order.after(entry.asked() + 1, self.is_turned(known)).is_some())
    }

    /// A frame of TCP from a backend, of a connection that the table does not have as its own.
    #[cold]
    pub(super) fn decide_heard(
        &self,
        now: Instant,
        (by, number, port): (&Role, u8, u16),
        (client, client_port): (IpAddr, u16),
        (bytes, layout): (&[u8], &Layout),
    ) -> Option<Decision> {
        let segment = segment(bytes, layout);
        let is_recovering = self.is_recovering(now);
        for (front, backend) in by.targets(number, port) {
            let key = Key { client: octets(client), port: client_port, front };
            let entry = self.find(&key).map(|(_, entry)| entry);
            let heard = |client_asks| Decision::Hear(Known::new(key, backend), client_asks);
            let is_middle = segment.flags & (flags::SYN | flags::RST | flags::ACK) == flags::ACK;
            match entry {
                Some(entry) if entry.state == State::Direct => return None,
                Some(entry) if is_middle && entry.state == State::Sought && !entry.is_heard() => {
                    return Some(heard(true));
                }
                None if is_recovering && segment.opens() => return Some(Decision::Direct(Known::new(key, backend))),
                None if is_recovering && is_middle && self.order(&key)?.contains(backend) => {
                    return Some(heard(false));
                }
                _ => {}
            }
        }
        // The answer to a SYN that a killed switch has passed. Its client would refuse it, and with
        // it the connection that it may have by now: it comes from another address.
        let agrees = segment.flags & flags::SYN != 0 && by.targets(number, port).next().is_some();
        (is_recovering && agrees).then_some(Decision::Drop(Reason::ServiceUnknown))
    }

    /// A client that opens a connection with a backend itself: while connections may have been
    /// lost, that is noted, or the answer would be taken for one to the service's client.
    pub(super) fn decide_direct(
        &self,
        now: Instant,
        (to, port): (&Role, u16),
        (client, client_port): (IpAddr, u16),
        (bytes, layout): (&[u8], &Layout),
    ) -> Option<Decision> {
        if !self.is_recovering(now) || !segment(bytes, layout).opens() {
            return None;
        }
        let all = to.targets(protocol::TCP, port).map(|(front, backend)| {
            let key = Key { client: octets(client), port: client_port, front };
            Known::new(key, backend)
        });
        let is_free = |known: &Known| self.find(&known.key).is_none_or(|(_, entry)| entry.state == State::Direct);
        all.filter(is_free).map(Decision::Direct).next()
    }

    /// Takes up a connection whose client speaks, at its first candidate.
    ///
    /// # Errors
    /// [`Reason::ServiceFull`] where there is no room for its entry.
    pub fn seek(&mut self, now: Instant, key: Key, from: Option<EndpointId>) -> Result<Known, Reason> {
        let backend = self.would_seek(&key).ok_or(Reason::ServiceUnknown)?;
        let entry =
            self.trial(&key, backend, |generation, is_hairpin| Entry::sought(backend, generation, is_hairpin, 0));
        let opener = self.opener(&key, from);
        let known = entry.zip(opener).and_then(|(entry, opener)| self.replace(now, opener, key, entry).ok());
        if let Some(running) = self.running_mut(&key) {
            running.stats.sought += 1;
        }
        known.ok_or(Reason::ServiceFull)
    }

    /// Takes up a connection whose backend speaks.
    pub fn hear(&mut self, now: Instant, known: &Known, client_asks: bool) -> Option<Known> {
        let Known { key, backend, .. } = *known;
        let entry = self.trial(&key, backend, |generation, is_hairpin| {
            Entry::heard(backend, generation, is_hairpin, client_asks)
        })?;
        let opener = self.opener(&key, None)?;
        if client_asks && let Some(running) = self.running_mut(&key) {
            running.stats.recovered += 1;
        }
        self.replace(now, opener, key, entry).ok()
    }

    /// Two speak without the service.
    pub fn speak_directly(&mut self, now: Instant, known: &Known) {
        let Known { key, backend, .. } = *known;
        let entry = self.trial(&key, backend, |generation, _| Entry::direct(backend, generation));
        if let Some((entry, opener)) = entry.zip(self.opener(&key, None)) {
            // Without room for it, the next frame is asked about again.
            let _ = self.replace(now, opener, key, entry);
        }
    }

    /// The backend does not know the connection: the next candidate is asked.
    pub fn deny(&mut self, now: Instant, known: &Known) {
        let Some(before) = self.connections.get(known.id).copied() else { return };
        let (asked, turn) = (before.asked() + 1, self.turns.get(known.id));
        let next = self.order(&known.key).and_then(|order| order.after(asked, turn.is_some()));
        let Some(backend) = next else { return };
        let entry = self
            .trial(&known.key, backend, |generation, is_hairpin| Entry::sought(backend, generation, is_hairpin, asked));
        if let Some(entry) = entry {
            self.turns.forget(known.id);
            self.connections.update(now, known.id, |old| *old = entry);
            if let Some((_, client)) = turn {
                // Where there is no port for it, it is forgotten.
                let _ = self.turn_around(now, &Known { backend, ..*known }, client);
            }
        }
    }

    /// An entry for a backend as it is now.
    fn trial(&self, key: &Key, backend: u8, entry: impl FnOnce(u8, bool) -> Entry) -> Option<Entry> {
        let (running, front) = self.running(key.front)?;
        let server = running.servers.get(usize::from(backend))?;
        let ip = server.backend.as_ref()?.ip(front.address.ip)?;
        Some(entry(server.generation, octets(ip) == key.client))
    }

    /// Whether the table has a place for a new connection; `from` is the endpoint that asks.
    #[must_use]
    pub fn would_fit(&self, now: Instant, key: &Key, from: Option<EndpointId>, again: Option<Again>) -> bool {
        let replaced = self.connections.find(key);
        let opener = self.opener_again(key, from, again);
        opener.is_some_and(|opener| self.connections.has_place(now, opener, replaced))
    }

    /// Makes an entry, instead of one that may be there.
    pub(super) fn replace(&mut self, now: Instant, opener: Opener, key: Key, entry: Entry) -> Result<Known, NoRoom> {
        let hash = self.connections.hash(&key);
        if let Some(old) = self.connections.find_hashed(hash, &key)
            && let Some(gone) = self.connections.remove(opener.owner, old)
        {
            self.leave(gone);
        }
        let (all, turns, fronts) = (&mut self.all, &mut self.turns, &self.fronts);
        let gone = |gone| super::leave((all, turns), fronts, &gone, true);
        let id = self.connections.insert((now, now), opener, (hash, key), entry, gone)?;
        Ok(Known { id, key, backend: entry.backend, is_plain: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_drawn_as_they_always_were() {
        let keyed = Keyed::new(7);
        for n in 0..100u8 {
            let (ip, client) = ([n; 16], [n.wrapping_mul(7); 16]);
            let (protocol, port, client_port) = (n ^ 6, u16::from(n) * 601, 65_535 - u16::from(n) * 99);
            let derived = keyed.hash_one((ip, protocol, port, client, client_port));
            assert_eq!(candidate_hash(&keyed, (ip, protocol, port), (&client, client_port)), derived);
        }
        // A host of another version has this one.
        assert_eq!(candidate_hash(&keyed, ([1; 16], 6, 80), (&[2; 16], 4000)), 12_560_098_830_991_246_080);
    }
}
