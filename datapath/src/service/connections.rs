//! Connections: which backend has a client's flow, and what state it is in.
//!
//! One entry for both directions, 64 bytes in [`Table`] and 16 in its index, IPv4 and IPv6 alike.
//! An entry belongs to a tenant: half of the table is shared out evenly among tenants that have
//! services, the other half is taken by whoever comes first. Within a tenant, connections that no
//! backend has answered may take a quarter, and where there is no room, those go that are worth
//! least, the oldest first; a connection that was open within the last minute is not evicted by
//! others of its tenant, and by those of another tenant nothing is.

use crate::fdb::Keyed;
use crate::table::{Id, Table};
use crate::units::Instant;
use crate::wire::tcp_flags as flags;

/// Connections of a switch where nothing is said.
pub const DEFAULT_CONNECTIONS: u32 = 65_536;
/// Connections of a switch at least: each of its tenants is to have some.
pub const LEAST_CONNECTIONS: u32 = 1024;
/// Connections of a switch at most.
pub const MOST_CONNECTIONS: u32 = 1 << 22;
/// A second, in nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// Part of a tenant's entries that connections without an answer may take.
const HALF_OPEN_PART: u32 = 4;
/// An open connection that was idle for so long may be evicted, in nanoseconds.
const EVICTABLE_NS: u64 = 60 * SECOND;
/// How exact it is known when an entry was seen last: so a frame of a busy connection moves it in
/// no list.
const SEEN_NS: u64 = SECOND;
/// Entries forgotten for their age when one is added, of each class: as many as come, and one more.
const FORGET: usize = 2;
/// The furthest that a FIN may lie ahead of what the other side has acknowledged, in bytes: the
/// largest window (RFC 7323).
const WINDOW: u32 = 1 << 30;

/// A flow of a client to a service: 20 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    /// The client's address, IPv4 mapped into IPv6.
    pub client: [u8; 16],
    /// Its port.
    pub port: u16,
    /// The front that it speaks to: address, protocol and port of a service.
    pub front: u16,
}

/// What a connection is doing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// The client has sent its SYN; no answer yet.
    Asked,
    /// The backend has answered; the client has not acknowledged that.
    Answered,
    /// TCP, both have spoken.
    Open,
    /// One side has sent its FIN.
    Closing,
    /// Both FINs were acknowledged, or it was reset.
    Closed,
    /// UDP, the client only.
    OneWay,
    /// UDP, both.
    TwoWay,
}

impl State {
    /// All of them, the least worth first.
    const BY_WORTH: [State; 7] =
        [State::Closed, State::OneWay, State::Asked, State::Answered, State::Closing, State::TwoWay, State::Open];
    const COUNT: u32 = Self::BY_WORTH.len() as u32;

    /// How long it is kept when nothing is seen of it, in nanoseconds.
    #[must_use]
    pub const fn age_ns(self) -> u64 {
        match self {
            State::Asked | State::Answered | State::Closed => 10 * SECOND,
            // RFC 5382, section 5: 2 h 4 min.
            State::Open => 7440 * SECOND,
            State::Closing => 60 * SECOND,
            // RFC 4787, section 4.3, recommends more; a datagram's client asks again sooner.
            State::OneWay => 30 * SECOND,
            State::TwoWay => 120 * SECOND,
        }
    }

    /// Whether nobody but the client has spoken yet, or the client has not been heard again.
    #[must_use]
    pub const fn is_half_open(self) -> bool {
        matches!(self, State::Asked | State::Answered)
    }

    /// Whether the connection counts as in flight.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        !matches!(self, State::Closed)
    }

    /// How it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            State::Asked => "asked",
            State::Answered => "answered",
            State::Open => "open",
            State::Closing => "closing",
            State::Closed => "closed",
            State::OneWay => "one-way",
            State::TwoWay => "two-way",
        }
    }
}

/// What is known of a connection: 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The backend's number in its service, and whose number it was then: a number that was given
    /// to another is not the old one.
    pub backend: u8,
    /// See `backend`.
    pub generation: u8,
    /// See [`State`].
    pub state: State,
    bits: u8,
    /// The end of what the server has sent.
    server_end: u32,
    /// What the client has acknowledged last, and the server.
    client_ack: u32,
    server_ack: u32,
}

/// The client waits, or the server is sending.
const BUSY: u8 = 1;
/// The client has sent a FIN.
const CLIENT_FIN: u8 = 2;
/// The server has.
const SERVER_FIN: u8 = 4;
/// The client is the backend itself.
const HAIRPIN: u8 = 8;
/// The server has answered since the client sent last.
const ANSWERED: u8 = 16;

/// What a segment of TCP says: flags, sequence number, acknowledgement, bytes of payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// See [`crate::wire::tcp_flags`].
    pub flags: u8,
    /// Number of its first byte.
    pub sequence: u32,
    /// What it acknowledges.
    pub ack: u32,
    /// Bytes of payload.
    pub len: u32,
}

impl Segment {
    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether it asks for a new connection.
    #[must_use]
    pub const fn opens(&self) -> bool {
        self.flags & (flags::SYN | flags::ACK | flags::RST | flags::FIN) == flags::SYN
    }
}

impl Entry {
    /// A connection that was just given to a backend.
    #[must_use]
    pub fn new(backend: u8, generation: u8, is_tcp: bool, is_hairpin: bool) -> Entry {
        let state = if is_tcp { State::Asked } else { State::OneWay };
        let bits = BUSY | if is_hairpin { HAIRPIN } else { 0 };
        Entry { backend, generation, state, bits, server_end: 0, client_ack: 0, server_ack: 0 }
    }

    /// Whether the client waits or the server is sending.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.bits & BUSY != 0
    }

    /// Whether the client is the backend itself.
    #[must_use]
    pub const fn is_hairpin(&self) -> bool {
        self.bits & HAIRPIN != 0
    }

    /// The client sends a segment.
    pub fn client_sends(&mut self, segment: &Segment) {
        if segment.has(flags::RST) {
            // What is not exactly what the other side expects changes nothing here (RFC 5961,
            // section 3).
            if segment.sequence == self.server_ack || self.state == State::Asked {
                self.close();
            }
            return;
        }
        if segment.has(flags::ACK) {
            if self.state == State::Answered {
                self.state = State::Open;
            }
            self.client_ack = segment.ack;
        }
        if segment.len > 0 {
            self.bits = self.bits & !ANSWERED | BUSY;
            self.reopen(CLIENT_FIN);
        } else if self.bits & ANSWERED != 0 && self.client_ack == self.server_end {
            self.bits &= !BUSY;
        }
        if segment.has(flags::FIN) && segment.sequence.wrapping_add(segment.len).wrapping_sub(self.server_ack) < WINDOW
        {
            self.finish(CLIENT_FIN);
        }
        self.close_when_done();
    }

    /// The backend sends a segment.
    pub fn server_sends(&mut self, segment: &Segment) {
        if segment.has(flags::RST) {
            if segment.sequence == self.client_ack || self.state == State::Asked {
                self.close();
            }
            return;
        }
        if segment.has(flags::SYN) {
            if self.state == State::Asked {
                self.state = State::Answered;
                self.server_end = segment.sequence.wrapping_add(1);
                self.client_ack = self.server_end;
                self.server_ack = segment.ack;
            }
            return;
        }
        if segment.has(flags::ACK) {
            self.server_ack = segment.ack;
        }
        let is_fin = segment.has(flags::FIN);
        let end = segment.sequence.wrapping_add(segment.len).wrapping_add(u32::from(is_fin));
        if (end.wrapping_sub(self.server_end) as i32) > 0 {
            self.server_end = end;
        }
        if segment.len > 0 {
            self.bits |= ANSWERED | BUSY;
            self.reopen(SERVER_FIN);
        }
        if is_fin && end.wrapping_sub(self.client_ack) < WINDOW {
            self.finish(SERVER_FIN);
        }
        self.close_when_done();
    }

    /// A datagram of UDP passes.
    pub fn datagram(&mut self, from_server: bool) {
        if from_server {
            self.state = State::TwoWay;
            self.bits &= !BUSY;
        } else {
            self.bits |= BUSY;
        }
    }

    /// Takes it up without having seen its start: after a restart, or where there was no room for
    /// it.
    pub fn adopt(&mut self) {
        self.state = State::Open;
        self.bits = self.bits & HAIRPIN | BUSY | ANSWERED;
    }

    fn close(&mut self) {
        self.state = State::Closed;
        self.bits &= !BUSY;
    }

    fn finish(&mut self, fin: u8) {
        self.bits |= fin;
        if matches!(self.state, State::Open | State::Answered | State::Asked) {
            self.state = State::Closing;
        }
    }

    /// Payload after a FIN of the other side is none after its own: one who has not finished is
    /// still sending.
    fn reopen(&mut self, fin: u8) {
        if self.state == State::Closing && self.bits & fin == 0 {
            self.state = State::Open;
        }
    }

    fn close_when_done(&mut self) {
        const BOTH: u8 = CLIENT_FIN | SERVER_FIN;
        if self.bits & BOTH == BOTH && self.client_ack == self.server_end {
            self.close();
        }
    }
}

const _: () = assert!(size_of::<Key>() == 20 && size_of::<Entry>() == 16 && size_of::<Option<(Key, Entry)>>() == 36);

/// What a tenant holds of the table.
#[derive(Clone, Copy, Debug, Default)]
struct Holding {
    /// Whether it has services.
    is_in: bool,
    entries: u32,
    half_open: u32,
}

/// Why there is no entry for a new connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// An entry that is gone: the connection, what was known of it, and how it was seen last.
pub type Removed = (Key, Entry);

/// The table. Owners are tenants' slots.
#[derive(Debug)]
pub struct Connections {
    table: Table<Key, Entry>,
    holdings: Vec<Holding>,
    /// Owners with services.
    owners: u32,
    /// Entries of owners beyond their own part.
    common: u32,
}

impl Connections {
    /// An empty table of at most `most` entries, under a key.
    pub(crate) fn new(keyed: Keyed, most: u32) -> Connections {
        Connections { table: Table::new(keyed, most), holdings: Vec::new(), owners: 0, common: 0 }
    }

    /// Makes all the room that it will need, and changes how much that is.
    pub fn reserve(&mut self, most: u32) {
        self.table.set_most(most);
        self.table.reserve(self.holdings.len() * State::COUNT as usize);
        self.recount();
    }

    /// Says whether an owner has services. What it has in the table stays until it is removed.
    pub fn set_owner(&mut self, owner: u32, is_in: bool) {
        if self.holdings.len() <= owner as usize {
            self.holdings.resize(owner as usize + 1, Holding::default());
        }
        let holding = &mut self.holdings[owner as usize];
        if holding.is_in != is_in {
            holding.is_in = is_in;
            self.owners = if is_in { self.owners + 1 } else { self.owners - 1 };
        }
        self.table.reserve(self.holdings.len() * State::COUNT as usize);
        self.recount();
    }

    /// Entries that an owner may have whatever others do.
    #[must_use]
    pub fn own_part(&self) -> u32 {
        self.table.most() / 2 / self.owners.max(1)
    }

    /// Entries that one owner may have if no other has any.
    #[must_use]
    pub fn most_of_one(&self) -> u32 {
        self.own_part() + self.common_part()
    }

    fn common_part(&self) -> u32 {
        self.table.most() - self.own_part() * self.owners.max(1)
    }

    fn recount(&mut self) {
        let own = self.own_part();
        self.common = self.holdings.iter().map(|holding| holding.entries.saturating_sub(own)).sum();
    }

    /// How many there are, and how many fit.
    #[must_use]
    pub fn len(&self) -> (u32, u32) {
        (self.table.len(), self.table.most())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Owners' numbers are below this.
    #[must_use]
    pub fn owners(&self) -> u32 {
        self.holdings.len() as u32
    }

    /// How many an owner has.
    #[must_use]
    pub fn count(&self, owner: u32) -> u32 {
        self.holdings.get(owner as usize).map_or(0, |holding| holding.entries)
    }

    /// Where a connection is.
    #[must_use]
    #[inline]
    pub fn find(&self, key: &Key) -> Option<Id> {
        self.table.find(key)
    }

    /// What is known of it.
    #[must_use]
    #[inline]
    pub fn get(&self, id: Id) -> Option<&Entry> {
        self.table.get(id)
    }

    /// When it was seen last, to within a second.
    #[must_use]
    pub fn seen(&self, id: Id) -> Option<Instant> {
        self.table.seen(id)
    }

    /// Changes an entry, which was seen `now`. What it was before.
    #[inline]
    pub fn update(
        &mut self,
        now: Instant,
        owner: u32,
        id: Id,
        change: impl FnOnce(&mut Entry),
    ) -> Option<(Entry, Entry)> {
        let entry = self.table.get_mut(id)?;
        let before = *entry;
        change(entry);
        let after = *entry;
        if before.state != after.state {
            let holding = &mut self.holdings[owner as usize];
            holding.half_open += u32::from(after.state.is_half_open());
            holding.half_open -= u32::from(before.state.is_half_open());
            self.table.touch(now, id, list(owner, after.state));
        } else if self.table.seen(id).is_some_and(|seen| now.since(seen) >= SEEN_NS) {
            self.table.touch(now, id, list(owner, after.state));
        }
        Some((before, after))
    }

    /// Adds a connection of an owner; what had to go for it, or for its age, is handed to `gone`.
    ///
    /// # Errors
    /// All of the owner's entries are worth more.
    pub fn insert(
        &mut self,
        now: Instant,
        owner: u32,
        key: Key,
        entry: Entry,
        mut gone: impl FnMut(Removed),
    ) -> Result<Id, NoRoom> {
        self.forget(now, owner, &mut gone);
        if entry.state.is_half_open() && self.holdings[owner as usize].half_open >= self.most_of_one() / HALF_OPEN_PART
        {
            let oldest =
                [State::Asked, State::Answered].into_iter().find_map(|state| self.table.oldest(list(owner, state)));
            self.remove(owner, oldest.ok_or(NoRoom)?).map(&mut gone);
        }
        if !self.has_room(owner) {
            let id = self.least_worth(now, owner).ok_or(NoRoom)?;
            self.remove(owner, id).map(&mut gone);
        }
        let id = self.table.insert(now, list(owner, entry.state), key, entry).map_err(|_| NoRoom)?;
        let own = self.own_part();
        let holding = &mut self.holdings[owner as usize];
        holding.entries += 1;
        holding.half_open += u32::from(entry.state.is_half_open());
        self.common += u32::from(holding.entries > own);
        Ok(id)
    }

    /// Removes an entry of an owner.
    pub fn remove(&mut self, owner: u32, id: Id) -> Option<Removed> {
        let (key, entry) = self.table.remove(id)?;
        let own = self.own_part();
        let holding = &mut self.holdings[owner as usize];
        self.common -= u32::from(holding.entries > own);
        holding.entries -= 1;
        holding.half_open -= u32::from(entry.state.is_half_open());
        Some((key, entry))
    }

    /// Removes what is too old of an owner: at most a few of each class.
    pub fn forget(&mut self, now: Instant, owner: u32, gone: &mut impl FnMut(Removed)) {
        for state in State::BY_WORTH {
            for _ in 0..FORGET {
                let Some(id) = self.table.aged(now, list(owner, state), state.age_ns()) else { break };
                self.remove(owner, id).map(&mut *gone);
            }
        }
    }

    /// Connections of an owner, those of a state that matters most and were seen last first.
    pub fn of(&self, owner: u32) -> impl Iterator<Item = (Id, &Key, &Entry)> {
        State::BY_WORTH.into_iter().rev().flat_map(move |state| self.table.newest_first(list(owner, state)))
    }

    fn has_room(&self, owner: u32) -> bool {
        self.holdings[owner as usize].entries < self.own_part() || self.common < self.common_part()
    }

    /// Which of an owner's entries goes next.
    fn least_worth(&self, now: Instant, owner: u32) -> Option<Id> {
        State::BY_WORTH.into_iter().find_map(|state| match state {
            State::Open | State::TwoWay => self.table.aged(now, list(owner, state), EVICTABLE_NS),
            _ => self.table.oldest(list(owner, state)),
        })
    }
}

/// The list of an owner's entries in a state.
fn list(owner: u32, state: State) -> u32 {
    owner * State::COUNT + state as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> Key {
        let mut client = [0; 16];
        client[..4].copy_from_slice(&n.to_be_bytes());
        Key { client, port: 1, front: 0 }
    }

    fn syn() -> Entry {
        Entry::new(0, 0, true, false)
    }

    fn at(s: u64) -> Instant {
        Instant(s * SECOND)
    }

    fn segment(flags: u8, sequence: u32, ack: u32, len: u32) -> Segment {
        Segment { flags, sequence, ack, len }
    }

    /// A connection whose client's numbers begin at 100, and the server's at 500.
    fn open() -> Entry {
        let mut entry = syn();
        entry.client_sends(&segment(flags::SYN, 99, 0, 0));
        assert_eq!((entry.state, entry.is_busy()), (State::Asked, true));
        entry.server_sends(&segment(flags::SYN | flags::ACK, 499, 100, 0));
        assert_eq!(entry.state, State::Answered);
        entry.client_sends(&segment(flags::ACK, 100, 500, 0));
        assert_eq!(entry.state, State::Open);
        entry
    }

    #[test]
    fn a_connection_is_busy_from_its_request_to_the_acknowledged_end_of_the_answer() {
        let mut entry = open();
        entry.client_sends(&segment(flags::ACK, 100, 500, 50));
        assert!(entry.is_busy());
        entry.server_sends(&segment(flags::ACK, 500, 150, 0));
        entry.client_sends(&segment(flags::ACK, 150, 500, 0));
        assert!(entry.is_busy(), "no answer yet");
        entry.server_sends(&segment(flags::ACK, 500, 150, 64_000));
        entry.client_sends(&segment(flags::ACK, 150, 30_000, 0));
        assert!(entry.is_busy());
        entry.client_sends(&segment(flags::ACK, 150, 64_500, 0));
        assert!(!entry.is_busy());
        entry.client_sends(&segment(flags::ACK, 150, 64_500, 50));
        assert!(entry.is_busy(), "the next request");
    }

    #[test]
    fn both_fins_close_it_and_payload_behind_the_others_fin_does_not_count_as_closing() {
        let mut entry = open();
        entry.client_sends(&segment(flags::ACK | flags::FIN, 100, 500, 10));
        assert_eq!(entry.state, State::Closing);
        entry.server_sends(&segment(flags::ACK, 500, 111, 1000));
        assert_eq!(entry.state, State::Open, "the server is still sending");
        entry.server_sends(&segment(flags::ACK | flags::FIN, 1500, 111, 0));
        assert_eq!(entry.state, State::Closing);
        entry.client_sends(&segment(flags::ACK, 111, 1501, 0));
        assert_eq!((entry.state, entry.is_busy()), (State::Closed, false));
    }

    #[test]
    fn only_an_exact_reset_closes_it() {
        let mut entry = open();
        for sequence in [0, 99, 101, 500] {
            entry.client_sends(&segment(flags::RST, sequence, 0, 0));
        }
        for sequence in [0, 100, 499, 501] {
            entry.server_sends(&segment(flags::RST | flags::ACK, sequence, 100, 0));
        }
        assert_eq!(entry.state, State::Open);
        entry.server_sends(&segment(flags::RST, 500, 0, 0));
        assert_eq!(entry.state, State::Closed);
        let mut entry = open();
        entry.client_sends(&segment(flags::RST, 100, 0, 0));
        assert_eq!(entry.state, State::Closed);
    }

    #[test]
    fn an_open_connection_is_not_evicted_by_a_flood_of_its_tenant_nor_by_another() {
        let mut all = Connections::new(Keyed::new(1), 64);
        all.set_owner(0, true);
        all.set_owner(1, true);
        all.reserve(64);
        let mut lost = Vec::new();
        let opened: Vec<u32> = (0..8).collect();
        for &n in &opened {
            let id = all.insert(at(0), 0, key(n), syn(), |_| ()).unwrap();
            all.update(at(0), 0, id, |entry| *entry = open());
        }
        for n in 100..1000 {
            all.insert(at(1), 0, key(n), syn(), |gone| lost.push(gone)).unwrap();
        }
        assert!(lost.iter().all(|(_, entry)| entry.state == State::Asked));
        assert_eq!(all.count(0), 8 + all.most_of_one() / 4, "half-open ones have a quarter");
        // The other tenant opens as many as it can: what is the first one's stays.
        for n in 2000..3000 {
            let Ok(id) = all.insert(at(1), 1, key(n), syn(), |_| ()) else { continue };
            all.update(at(1), 1, id, |entry| *entry = open());
        }
        assert!(opened.iter().all(|&n| all.find(&key(n)).is_some()));
        assert!(all.count(1) <= all.most_of_one() && all.count(0) + all.count(1) <= 64);
        // And the first one still gets what is its own.
        for n in 5000..5100 {
            let Ok(id) = all.insert(at(1), 0, key(n), syn(), |_| ()) else { continue };
            all.update(at(1), 0, id, |entry| *entry = open());
        }
        assert!(all.count(0) >= all.own_part());
        assert_eq!(all.insert(at(1), 0, key(9000), syn(), |_| ()), Err(NoRoom));
        assert!(all.insert(at(62), 0, key(9001), syn(), |_| ()).is_ok(), "after a minute one that is idle goes");
    }

    #[test]
    fn what_is_old_is_forgotten_by_its_class() {
        let mut all = Connections::new(Keyed::new(1), 64);
        all.set_owner(0, true);
        let id = all.insert(at(0), 0, key(1), syn(), |_| ()).unwrap();
        all.insert(at(0), 0, key(2), syn(), |_| ()).unwrap();
        all.update(at(0), 0, id, |entry| *entry = open());
        let mut gone = Vec::new();
        all.forget(at(11), 0, &mut |(key, _)| gone.push(key));
        assert_eq!(gone, [key(2)]);
        all.forget(at(7441), 0, &mut |(key, _)| gone.push(key));
        assert_eq!(gone, [key(2), key(1)]);
        assert!(all.is_empty());
    }

    #[test]
    fn a_connection_takes_80_bytes() {
        assert_eq!(Table::<Key, Entry>::bytes_of(1 << 20) / (1 << 20), 80);
        assert!(Table::<Key, Entry>::bytes_of(DEFAULT_CONNECTIONS) / u64::from(DEFAULT_CONNECTIONS) <= 80);
    }
}
