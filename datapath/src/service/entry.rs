//! A connection: its key, what state it is in, and what each segment makes of that.
//!
//! Sixteen bytes, which follow what both sides say. A connection whose start was not seen, after a
//! restart or where its entry had to go, is *sought*: it is kept on trial until the side that was
//! not heard yet speaks as one that knows it.

use crate::wire::tcp_flags as flags;
use std::hash::{Hash, Hasher};
use std::net::Ipv4Addr;

/// A second, in nanoseconds.
pub(super) const SECOND: u64 = 1_000_000_000;
/// The furthest that a FIN or a reset may lie ahead of what the other side has acknowledged, in
/// bytes: the largest window (RFC 7323).
const WINDOW: u32 = 1 << 30;

/// A flow of a client to a service: 20 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// The client's address, IPv4 mapped into IPv6.
    pub client: [u8; 16],
    /// Its port.
    pub port: u16,
    /// The front that it speaks to: address, protocol and port of a service.
    pub front: u16,
}

impl Key {
    /// Of a client with an IPv4 address.
    #[inline]
    pub(super) fn of_v4(client: [u8; 4], port: u16, front: u16) -> Key {
        Key { client: Ipv4Addr::from(client).to_ipv6_mapped().octets(), port, front }
    }
}

/// The words that tell two keys apart: one for IPv4, three for IPv6.
impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let client = u128::from_be_bytes(self.client);
        let rest = u64::from(self.port) << 16 | u64::from(self.front);
        if client >> 32 == 0xffff {
            return state.write_u64((client as u64) << 32 | rest);
        }
        state.write_u64((client >> 64) as u64);
        state.write_u64(client as u64);
        state.write_u64(rest);
    }
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
    /// One side has sent its FIN, or a reset that the other may not take.
    Closing,
    /// Both FINs were acknowledged, or it was reset.
    Closed,
    /// UDP, the client only.
    OneWay,
    /// UDP, both.
    TwoWay,
    /// TCP, taken up in the middle: one side was heard, the other has not confirmed it.
    Sought,
    /// No connection of the service: client and backend speak without it. Kept only while it
    /// cannot be told from a connection that was lost with the table.
    Direct,
}

/// How long an open connection is kept of which nothing is seen, in nanoseconds: 2 h 4 min (RFC
/// 5382, section 5).
pub const OPEN_NS: u64 = 7440 * SECOND;

impl State {
    /// How long it is kept when nothing is seen of it, in nanoseconds.
    #[must_use]
    pub const fn age_ns(self) -> u64 {
        match self {
            State::Asked | State::Answered | State::Closed | State::Sought => 10 * SECOND,
            State::Open | State::Direct => OPEN_NS,
            State::Closing => 60 * SECOND,
            // RFC 4787, section 4.3, recommends more; a datagram's client asks again sooner.
            State::OneWay => 30 * SECOND,
            State::TwoWay => 120 * SECOND,
        }
    }

    /// Whether one side has not been heard, or not again: what strangers can make many of.
    #[must_use]
    pub const fn is_half_open(self) -> bool {
        matches!(self, State::Asked | State::Answered | State::OneWay | State::Sought)
    }

    /// Whether the connection counts as in flight.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        !matches!(self, State::Closed | State::Direct | State::Sought)
    }

    /// Whether its ends would miss its entry.
    #[must_use]
    pub const fn is_missed(self) -> bool {
        matches!(self, State::Open | State::Closing | State::TwoWay)
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
            State::Sought => "sought",
            State::Direct => "direct",
        }
    }

    /// All of them, as they are numbered when they are handed over.
    pub(super) const ALL: [State; 9] = [
        State::Asked,
        State::Answered,
        State::Open,
        State::Closing,
        State::Closed,
        State::OneWay,
        State::TwoWay,
        State::Sought,
        State::Direct,
    ];
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
    pub(super) bits: u8,
    /// The end of what the server has sent.
    pub(super) server_end: u32,
    /// What the client has acknowledged last, and the server.
    pub(super) client_ack: u32,
    pub(super) server_ack: u32,
}

/// What a connection counts as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The client waits, or the server is sending.
    Busy,
    /// It is open.
    Idle,
    /// Its backend was found down, and has said nothing of it since: it is not in flight.
    Unconfirmed,
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
/// Of one that is sought: the backend was heard, and not the client.
const HEARD: u8 = 32;
/// Of any other: its backend was found down, and has said nothing of it since.
const SILENT: u8 = 32;
/// Of one that is asked or sought: how many backends were asked before this one, in two bits.
const ASKED_SHIFT: u8 = 6;
const MOST_ASKED_BITS: u8 = 3;
const ASKED: u8 = MOST_ASKED_BITS << ASKED_SHIFT;
/// Of any other: its backend has accepted it within the last second, and sent nothing since.
const FRESH: u8 = 64;

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

    /// Whether it says that there is no such connection.
    #[must_use]
    pub const fn resets(&self) -> bool {
        self.has(flags::RST)
    }

    /// Whether it refuses a connection: a reset that answers a SYN acknowledges it (RFC 9293,
    /// section 3.10.7.1). One without that answers something else, behind a SYN that was thrown
    /// away.
    #[must_use]
    pub const fn refuses(&self) -> bool {
        self.has(flags::RST) && self.has(flags::ACK)
    }

    /// Whether it asks for a new connection.
    #[must_use]
    pub const fn opens(&self) -> bool {
        self.flags & (flags::SYN | flags::ACK | flags::RST | flags::FIN) == flags::SYN
    }

    /// Whether it answers such a one.
    #[must_use]
    pub const fn answers(&self) -> bool {
        self.flags & (flags::SYN | flags::ACK) == flags::SYN | flags::ACK
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

    /// The same while it was open, with these bits.
    pub(super) fn opened(self, bits: u8) -> Entry {
        Entry { state: State::Open, bits, ..self }
    }

    /// Whether it is in a state, and counts as these bits say.
    #[inline]
    pub(super) fn is_as(&self, state: State, bits: u8) -> bool {
        self.state == state && (self.bits ^ bits) & (BUSY | SILENT) == 0
    }

    /// Whether its backend has accepted it within the last second, and sent nothing since.
    #[inline]
    pub(super) const fn is_fresh(&self) -> bool {
        self.bits & FRESH != 0 && !matches!(self.state, State::Asked | State::Sought)
    }

    /// It was accepted longer ago.
    pub(super) const fn settle(&mut self) {
        if self.is_fresh() {
            self.bits &= !FRESH;
        }
    }

    /// Whether its backend ends by this what it has just accepted, with nothing sent and nothing
    /// received: all numbers are those of its answer to the SYN.
    pub(super) const fn is_broken_by(&self, segment: &Segment) -> bool {
        const END: u8 = flags::FIN | flags::RST;
        segment.has(END)
            && segment.flags & (flags::SYN | flags::ACK) == flags::ACK
            && segment.len == 0
            && self.is_fresh()
            && matches!(self.state, State::Answered | State::Open)
            && segment.sequence == self.server_end
            && segment.ack == self.server_ack
    }

    /// Whether its client has what the backend has answered, as of `after`, and had not before.
    #[inline]
    pub(super) const fn is_answered_in(&self, after: &Entry) -> bool {
        let ends = matches!(after.kind(), Some(Kind::Idle) | None) && after.bits & ANSWERED != 0;
        // By the client's next request. A new connection's numbers are others.
        let goes_on = self.bits & ANSWERED != 0
            && after.bits & ANSWERED == 0
            && after.client_ack == after.server_end
            && self.server_end == after.server_end;
        matches!(self.kind(), Some(Kind::Busy)) && (ends || goes_on)
    }

    /// Whether the client is the backend itself.
    #[must_use]
    pub const fn is_hairpin(&self) -> bool {
        self.bits & HAIRPIN != 0
    }

    /// What it counts as; `None` where it is not counted.
    #[inline]
    pub(super) const fn kind(&self) -> Option<Kind> {
        if !self.state.is_counted() {
            return None;
        }
        match self.bits & (SILENT | BUSY) {
            0 => Some(Kind::Idle),
            BUSY => Some(Kind::Busy),
            _ => Some(Kind::Unconfirmed),
        }
    }

    /// See [`Entry::fall_silent`].
    pub(super) const fn is_silent(&self) -> bool {
        !matches!(self.state, State::Sought) && self.bits & SILENT != 0
    }

    /// Its backend is down: whether it lives is known when that speaks again.
    pub(super) const fn fall_silent(&mut self) {
        if !matches!(self.state, State::Sought) {
            self.bits |= SILENT;
        }
    }

    /// The client sends a segment.
    #[inline(always)]
    pub fn client_sends(&mut self, segment: &Segment) {
        if segment.has(flags::RST) {
            return self.reset(segment.sequence == self.server_ack, segment.sequence.wrapping_sub(self.server_ack));
        }
        self.stay(segment);
        if segment.has(flags::SYN) && self.state == State::Asked {
            // What a SYN alone is answered with.
            self.server_ack = segment.sequence.wrapping_add(1);
        }
        if segment.has(flags::ACK) {
            if self.state == State::Answered {
                self.state = State::Open;
            }
            if self.is_heard() {
                self.confirm();
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
    #[inline(always)]
    pub fn server_sends(&mut self, segment: &Segment) {
        if segment.has(flags::RST) {
            let is_exact = segment.sequence == self.client_ack || segment.sequence == self.server_end;
            return self.reset(is_exact, segment.sequence.wrapping_sub(self.client_ack));
        }
        if self.state == State::Sought {
            if self.bits & HEARD == 0 {
                self.confirm();
            }
            // What has gone before was not seen.
            self.server_end = segment.sequence;
        } else {
            self.bits &= !SILENT;
        }
        if segment.has(flags::SYN) {
            self.answer(segment);
            return;
        }
        if self.state != State::Asked {
            self.bits &= !FRESH;
        }
        self.stay(segment);
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

    /// The backend answers a SYN. One of a connection that both ends had before, of which only the
    /// client, or only the backend, knows no more, has other numbers than that; then it is new.
    fn answer(&mut self, segment: &Segment) {
        let end = segment.sequence.wrapping_add(1);
        // With data in its SYN (TCP Fast Open) a client may provoke an end.
        let fresh = if self.state == State::Asked && segment.ack == self.server_ack { FRESH } else { 0 };
        match self.state {
            State::Asked => self.state = State::Answered,
            State::Answered | State::Open if end != self.server_end => {}
            State::Closing if self.is_doubted() => self.state = State::Open,
            _ => return,
        }
        self.bits = self.bits & !(CLIENT_FIN | SERVER_FIN | ANSWERED | ASKED | FRESH) | BUSY | fresh;
        (self.server_end, self.client_ack, self.server_ack) = (end, end, segment.ack);
    }

    /// A side says that there is no such connection. What is exactly what the other side expects
    /// closes it. What lies so far `ahead` of what that one has acknowledged may be behind data
    /// that is on its way, or be invented (RFC 5961, section 3): the other side answers it where
    /// the connection lives, so till then it is doubted.
    fn reset(&mut self, is_exact: bool, ahead: u32) {
        if is_exact || matches!(self.state, State::Asked | State::Sought) {
            self.close();
        } else if self.state == State::Open && ahead < WINDOW {
            self.state = State::Closing;
            self.bits &= !BUSY;
        }
    }

    /// Whether a reset has come that may have been invented, and no answer: nobody has finished.
    const fn is_doubted(&self) -> bool {
        matches!(self.state, State::Closing) && self.bits & (CLIENT_FIN | SERVER_FIN) == 0
    }

    /// One that was doubted lives.
    #[inline(always)]
    fn stay(&mut self, segment: &Segment) {
        if self.is_doubted() && segment.has(flags::ACK) {
            self.state = State::Open;
        }
    }

    /// A datagram of UDP passes.
    pub fn datagram(&mut self, from_server: bool) {
        if from_server {
            self.state = State::TwoWay;
            self.bits &= !(BUSY | SILENT);
        } else {
            self.bits |= BUSY;
        }
    }

    /// One whose start was not seen, and whose client speaks: the backend is the candidate that is
    /// asked after `asked` others.
    #[must_use]
    pub fn sought(backend: u8, generation: u8, is_hairpin: bool, asked: u8) -> Entry {
        let mut entry = Entry::new(backend, generation, true, is_hairpin);
        entry.state = State::Sought;
        entry.bits |= asked << ASKED_SHIFT;
        entry
    }

    /// One whose start was not seen, and whose backend speaks. `client_asks`: so does the client,
    /// whose segments went to another candidate.
    #[must_use]
    pub fn heard(backend: u8, generation: u8, is_hairpin: bool, client_asks: bool) -> Entry {
        let mut entry = Entry::sought(backend, generation, is_hairpin, 0);
        entry.bits |= HEARD;
        if client_asks {
            entry.confirm();
        }
        entry
    }

    /// One that is none of the service's.
    #[must_use]
    pub fn direct(backend: u8, generation: u8) -> Entry {
        let mut entry = Entry::new(backend, generation, true, false);
        (entry.state, entry.bits) = (State::Direct, 0);
        entry
    }

    /// The same after other backends did not take it.
    #[must_use]
    pub fn after_tries(mut self, tries: u8) -> Entry {
        self.bits |= tries.min(MOST_ASKED_BITS) << ASKED_SHIFT;
        self
    }

    /// How many backends were asked before this one.
    #[must_use]
    pub const fn asked(&self) -> u8 {
        self.bits >> ASKED_SHIFT
    }

    /// Whether a segment of the client acknowledges what it may have received by now, and not less
    /// than it has said.
    pub(super) fn is_acknowledged(&self, segment: &Segment) -> bool {
        let ahead = segment.ack.wrapping_sub(self.client_ack);
        segment.has(flags::ACK) && ahead <= self.server_end.wrapping_sub(self.client_ack)
    }

    /// Of one that is sought: whether its backend was heard, and the client was not.
    #[must_use]
    pub const fn is_heard(&self) -> bool {
        matches!(self.state, State::Sought) && self.bits & HEARD != 0
    }

    /// Whether a SYN of the same client and port is a new connection. Where it is doubted whether
    /// the old one lives, its backend says that.
    #[must_use]
    pub const fn is_replaced(&self) -> bool {
        matches!(self.state, State::Closing | State::Closed | State::Direct | State::Sought) && !self.is_doubted()
    }

    /// Both sides know it.
    fn confirm(&mut self) {
        self.state = State::Open;
        self.bits = self.bits & HAIRPIN | BUSY | ANSWERED;
    }

    pub(super) fn close(&mut self) {
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

#[cfg(test)]
pub(super) mod tests;
