//! The agents of other hosts: what is said to each and how often, and which of their datagrams are
//! new.
//!
//! Datagrams may be lost, doubled, late and out of order, and a peer may start anew. Each carries
//! its speaker's life and a sequence number; a window of the last 64 (as IPsec has it, RFC 4303
//! section 3.4.3) lets each through once. A speaker of which nothing was heard for longer than any
//! lease is believed whatever its life and number: its clock was set back, or it has forgotten what
//! it said last. One that leaps ahead, into another life or beyond the window, is believed when a
//! second datagram says the same: where the transport lets damage through, one wrong byte must not
//! make all that is said afterwards look old.

use super::leases::MAX_LEASE_MS;
use super::message::{Pair, Writer};
use datapath::units::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Datagrams a second that are sent to all peers together, when it goes on for long: ten a second
/// to each of 50.
const SEND_PER_SECOND: u64 = 500;
/// Datagrams that may be sent at once: a few words to each of many senders when a flood begins.
const SEND_BURST: u64 = 1024;
/// Of these, how many only what is urgent may use.
const SEND_RESERVE: u64 = 256;
/// Datagrams a second that are heard of one peer: four times what an agent may send to all.
const HEAR_PER_SECOND: u64 = 2000;
/// Datagrams of one peer that may come at once.
const HEAR_BURST: u64 = 256;
/// Datagrams that wait for the shell to send them.
const MAX_OUTBOX: usize = 1024;
/// Numbers that are remembered one by one: the bits of a word.
const WINDOW: u64 = 64;
/// Nothing heard for so long, and an older life or number counts as a new one: twice the longest
/// lease, so that nothing of the other is in force.
const FORGET_NS: u64 = 2 * MAX_LEASE_MS as u64 * 1_000_000;

/// So many a second, and so many at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Nanoseconds that one costs.
    cost_ns: u64,
    /// The most that can be saved.
    most_ns: u64,
    saved_ns: u64,
    at: Instant,
}

impl Allowance {
    pub const fn new(per_second: u64, burst: u64) -> Allowance {
        let cost_ns = 1_000_000_000 / per_second;
        Allowance { cost_ns, most_ns: burst * cost_ns, saved_ns: burst * cost_ns, at: Instant::ZERO }
    }

    /// Takes one, unless that would leave less than `reserve`.
    pub fn take(&mut self, now: Instant, reserve: u64) -> bool {
        self.saved_ns = self.saved_ns.saturating_add(now.since(self.at)).min(self.most_ns);
        self.at = self.at.max(now);
        let enough = self.saved_ns >= (reserve + 1) * self.cost_ns;
        if enough {
            self.saved_ns -= self.cost_ns;
        }
        enough
    }
}

/// What was heard of a peer, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerCounts {
    /// Datagrams to it.
    pub sent: u64,
    /// Datagrams of it that were understood and new.
    pub heard: u64,
    /// Datagrams and pairs of it that were refused.
    pub refused: u64,
    /// When it was heard last.
    pub heard_at: Option<Instant>,
}

/// One other host.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub name: Arc<str>,
    pub counts: PeerCounts,
    /// When it was last told something.
    pub sent_at: Option<Instant>,
    /// When it was last greeted.
    greeted_at: Option<Instant>,
    sequence: u64,
    hearing: Allowance,
    life: u64,
    /// Highest number heard in this life, and which of the 64 before it were.
    highest: u64,
    window: u64,
    /// Life and number of a datagram that leapt ahead, until a second bears it out.
    leapt: Option<(u64, u64)>,
}

impl Peer {
    /// One to which datagrams are numbered from after `sequence` on.
    fn new(name: Arc<str>, sequence: u64) -> Peer {
        let hearing = Allowance::new(HEAR_PER_SECOND, HEAR_BURST);
        let counts = PeerCounts::default();
        Peer {
            name,
            counts,
            sent_at: None,
            greeted_at: None,
            sequence,
            hearing,
            life: 0,
            highest: 0,
            window: 0,
            leapt: None,
        }
    }

    /// Whether it may be heard now: it has not said too much.
    pub fn may_speak(&mut self, now: Instant) -> bool {
        self.hearing.take(now, 0)
    }

    /// Which start of its agent was heard last.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Whether a datagram of it is new; it is not from then on.
    pub fn is_new(&mut self, now: Instant, life: u64, sequence: u64) -> bool {
        let silent = self.counts.heard_at.is_none_or(|at| now.since(at) > FORGET_NS);
        let leaps = life > self.life || (life == self.life && sequence.saturating_sub(self.highest) >= WINDOW);
        if leaps || silent {
            let bears_out = |(of, other): (u64, u64)| of == life && (1..WINDOW).contains(&other.abs_diff(sequence));
            if !silent && !self.leapt.is_some_and(bears_out) {
                self.leapt = Some((life, sequence));
                return false;
            }
            (self.life, self.highest, self.window, self.leapt) = (life, sequence, 1, None);
            return true;
        }
        if life < self.life {
            return false;
        }
        if sequence > self.highest {
            self.window = self.window << (sequence - self.highest) | 1;
            self.highest = sequence;
            return true;
        }
        let behind = self.highest - sequence;
        let is_new = behind < WINDOW && self.window & 1 << behind == 0;
        if is_new {
            self.window |= 1 << behind;
        }
        is_new
    }
}

/// All peers that were spoken to or heard, and what is to be sent.
#[derive(Debug)]
pub(super) struct Post {
    /// Which start of this agent it is.
    life: u64,
    peers: Vec<Peer>,
    /// No number was higher to a peer that is forgotten: one that returns in the same life knows
    /// them.
    floor: u64,
    numbers: BTreeMap<Arc<str>, u32>,
    sending: Allowance,
    outbox: VecDeque<(Arc<str>, Vec<u8>)>,
}

impl Post {
    pub fn new(life: u64) -> Post {
        Post {
            life,
            peers: Vec::new(),
            floor: 0,
            numbers: BTreeMap::new(),
            sending: Allowance::new(SEND_PER_SECOND, SEND_BURST),
            outbox: VecDeque::new(),
        }
    }

    /// The number of a peer, which must be a host of the cluster.
    pub fn number(&mut self, name: &Arc<str>) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.peers.len() as u32;
        self.peers.push(Peer::new(name.clone(), self.floor));
        self.numbers.insert(name.clone(), number);
        number
    }

    pub fn peer(&mut self, number: u32) -> &mut Peer {
        &mut self.peers[number as usize]
    }

    pub fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// Forgets hosts that are no more. Numbers are other ones then.
    pub fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        let floor = &mut self.floor;
        self.peers.retain(|peer| {
            let stays = is_there(&peer.name);
            if !stays {
                *floor = peer.sequence.max(*floor);
            }
            stays
        });
        self.numbers = self.peers.iter().enumerate().map(|(at, peer)| (peer.name.clone(), at as u32)).collect();
        self.outbox.retain(|(host, _)| is_there(host));
    }

    /// Whether a datagram may be sent now, which is then as good as sent. Only what is urgent uses
    /// the reserve.
    pub fn may_send(&mut self, now: Instant, urgent: bool) -> bool {
        self.outbox.len() < MAX_OUTBOX && self.sending.take(now, if urgent { 0 } else { SEND_RESERVE })
    }

    /// Writes datagrams to one peer: as few as hold what `pairs` gives, and no more than may be
    /// sent. Returns how many pairs were said.
    pub fn write<'a>(
        &mut self,
        now: Instant,
        to: u32,
        lease_ms: u16,
        urgent: bool,
        pairs: impl Iterator<Item = Pair<'a>>,
    ) -> usize {
        let (mut said, mut open) = (0, None::<Writer>);
        for pair in pairs {
            if open.as_mut().is_some_and(|writer| writer.add(&pair)) {
                said += 1;
                continue;
            }
            if let Some(full) = open.take() {
                self.put(now, to, full);
            }
            if !self.may_send(now, urgent) {
                break;
            }
            let peer = &mut self.peers[to as usize];
            peer.sequence += 1;
            let mut writer = Writer::new(lease_ms, self.life, peer.sequence);
            if writer.add(&pair) {
                said += 1;
            }
            open = Some(writer);
        }
        if let Some(writer) = open.filter(|writer| !writer.is_empty()) {
            self.put(now, to, writer);
        }
        said
    }

    /// Lets a peer know that there is a new agent here, with a datagram that says nothing else,
    /// unless it was spoken to within `spacing_ns`. That is the first to be left out where much is
    /// said.
    pub fn greet(&mut self, now: Instant, to: u32, spacing_ns: u64) {
        let peer = &self.peers[to as usize];
        let spoken_at = peer.sent_at.max(peer.greeted_at);
        if spoken_at.is_some_and(|at| now.since(at) < spacing_ns) || !self.may_send(now, false) {
            return;
        }
        let peer = &mut self.peers[to as usize];
        peer.greeted_at = Some(now);
        peer.sequence += 1;
        peer.counts.sent += 1;
        let greeting = Writer::new(0, self.life, peer.sequence).finish();
        self.outbox.push_back((peer.name.clone(), greeting));
    }

    fn put(&mut self, now: Instant, to: u32, writer: Writer) {
        let peer = &mut self.peers[to as usize];
        peer.sent_at = Some(now);
        peer.counts.sent += 1;
        self.outbox.push_back((peer.name.clone(), writer.finish()));
    }

    /// The next datagram, and the host that it is for.
    pub fn poll(&mut self) -> Option<(Arc<str>, Vec<u8>)> {
        self.outbox.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_new_once_whatever_the_order() {
        let mut peer = Peer::new("h".into(), 0);
        let now = Instant(1);
        let heard = |peer: &mut Peer, now, life, sequence| {
            let is_new = peer.is_new(now, life, sequence);
            if is_new {
                peer.counts.heard_at = Some(now);
            }
            is_new
        };
        for sequence in [1, 3, 2, 66] {
            assert!(heard(&mut peer, now, 5, sequence), "{sequence}");
            assert!(!heard(&mut peer, now, 5, sequence), "{sequence} again");
        }
        assert!(heard(&mut peer, now, 5, 4), "late");
        assert!(heard(&mut peer, now, 5, 67));
        assert!(!heard(&mut peer, now, 5, 3), "too late");
        assert!(!heard(&mut peer, now, 6, 1), "a new life, if it is none by damage");
        assert!(heard(&mut peer, now, 6, 2), "a new life");
        assert!(heard(&mut peer, now, 6, 1), "it was not heeded before");
        assert!(!heard(&mut peer, now, 5, 71), "of the life before");
        assert!(heard(&mut peer, now.plus_ns(FORGET_NS + 1), 4, 1), "its clock was set back");
    }

    #[test]
    fn one_wrong_byte_shuts_nobody_out() {
        // Each byte of life and sequence, in each datagram of a row, with each bit of it.
        for bit in 0..128 {
            let mut peer = Peer::new("h".into(), 0);
            let mut missed = 0;
            for n in 1..=100u64 {
                let (mut life, mut sequence) = (1_800_000_000_000_000_000, n);
                if n == 30 {
                    if bit < 64 { life ^= 1 << bit } else { sequence ^= 1 << (bit - 64) }
                }
                let now = Instant(n * 1_000_000);
                let is_new = peer.is_new(now, life, sequence);
                if is_new {
                    peer.counts.heard_at = Some(now);
                }
                missed += u32::from(!is_new && n != 30);
            }
            assert!(missed <= 1, "{missed} of 99 were not heard, bit {bit}");
        }
    }

    #[test]
    fn who_was_cut_off_for_long_is_heard_at_its_second_word() {
        let mut peer = Peer::new("h".into(), 0);
        assert!(peer.is_new(Instant(1), 5, 1));
        peer.counts.heard_at = Some(Instant(1));
        assert!(!peer.is_new(Instant(2), 5, 1000));
        assert!(!peer.is_new(Instant(2), 5, 1000), "the same again bears nothing out");
        assert!(peer.is_new(Instant(2), 5, 1001));
        assert!(!peer.is_new(Instant(2), 5, 2), "of before");
    }

    #[test]
    fn who_was_silent_for_long_is_heard_whatever_its_number() {
        let mut peer = Peer::new("h".into(), 0);
        assert!(peer.is_new(Instant(1), 5, 1000));
        peer.counts.heard_at = Some(Instant(1));
        assert!(!peer.is_new(Instant(FORGET_NS), 5, 1), "what it said last may be in force");
        let later = Instant(1).plus_ns(FORGET_NS + 1);
        assert!(peer.is_new(later, 5, 1));
        peer.counts.heard_at = Some(later);
        assert!(peer.is_new(later, 5, 2) && !peer.is_new(later, 5, 2));
    }

    #[test]
    fn numbers_go_on_when_a_forgotten_peer_returns() {
        let (mut post, host): (Post, Arc<str>) = (Post::new(7), "h".into());
        let said = |post: &mut Post, from: u64| {
            let (number, mut last) = (post.number(&host), 0);
            for n in from..from + 1000 {
                post.greet(Instant(n * 10_000_000), number, 0);
                let (_, datagram) = post.poll().expect("it may be sent");
                last = crate::message::Message::read(&datagram).expect("it is one").sequence;
            }
            last
        };
        assert_eq!(said(&mut post, 0), 1000);
        post.keep(|_| false);
        assert_eq!(said(&mut post, 1000), 2000);
    }

    #[test]
    fn an_allowance_bounds_bursts_and_the_long_run() {
        let mut allowance = Allowance::new(500, 10);
        let now = Instant(7_000_000_000);
        assert_eq!((0..100).filter(|_| allowance.take(now, 0)).count(), 10);
        let later = now.plus_ns(10_000_000);
        assert_eq!((0..100).filter(|_| allowance.take(later, 0)).count(), 5);
        let long = later.plus_ns(60_000_000_000);
        assert_eq!((0..100).filter(|_| allowance.take(long, 4)).count(), 6, "the reserve is left");
    }
}
