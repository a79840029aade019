//! The receiving half of a connection: reassembly, and when to acknowledge (RFC 9293, RFC 2018, RFC
//! 3168).

use datapath::units::Instant;

use super::seq::Blocks;
use crate::random::Random;

/// Acknowledgements before delays begin, so that slow start is not held up (as Linux's quick
/// acknowledgements).
const QUICK_ACKS: u32 = 16;
/// The same after a mark: the sender's window may be so low that it has nothing more to send (as
/// Linux's `tcp_enter_quickack_mode(sk, 2)`).
const QUICK_ACKS_MARKED: u32 = 2;
/// Recent places of arrival that are remembered, to report the ranges around them first.
const RECENT: usize = 6;

/// When a receiver acknowledges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckPolicy {
    /// Segments after which it acknowledges.
    pub every: u32,
    /// The longest it waits for more, in nanoseconds.
    pub delay_ns: u64,
    /// How long it gathers segments into one acknowledgement, as receive offload does, in
    /// nanoseconds: half of it to one and a half times, at random, since without jitter flows fall
    /// into step with each other (Floyd and Jacobson, 1991).
    pub gather_ns: u64,
    /// Whether it acknowledges at once the first mark that it tells of, as Linux does; the receiver
    /// of a guest without ECN does not. DCTCP's always does.
    pub hurries: bool,
}

impl Default for AckPolicy {
    /// As Linux: every second segment or 40 ms, and what arrives within 20 us handled together.
    fn default() -> Self {
        AckPolicy { every: 2, delay_ns: 40_000_000, gather_ns: 20_000, hurries: true }
    }
}

/// What a receiver says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// All before it has arrived.
    pub position: u64,
    /// What has arrived beyond.
    pub blocks: Blocks<u64>,
    /// ECN echo.
    pub echo: bool,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub struct Receiver {
    policy: AckPolicy,
    random: Random,
    next: u64,
    /// What arrived beyond `next`: sorted, apart from each other.
    ranges: Vec<(u64, u64)>,
    recent: Vec<u64>,
    echo: bool,
    unacknowledged: u32,
    quick: u32,
    at_once: bool,
    deadline: Option<Instant>,
    duplicates: u64,
    /// DCTCP's echo (RFC 8257 section 3.2): whether the segments that an acknowledgement is for
    /// were marked. Otherwise RFC 3168's.
    exact: bool,
    /// What was to be said before the marking changed.
    earlier: Option<Reply>,
}

impl Receiver {
    /// The same for a DCTCP sender.
    #[must_use]
    pub fn exact(policy: AckPolicy, random: Random) -> Self {
        Receiver { exact: true, ..Receiver::new(policy, random) }
    }

    /// A new connection's.
    #[must_use]
    pub fn new(policy: AckPolicy, random: Random) -> Self {
        Receiver {
            exact: false,
            earlier: None,
            policy,
            random,
            next: 0,
            ranges: Vec::new(),
            recent: Vec::new(),
            echo: false,
            unacknowledged: 0,
            quick: QUICK_ACKS,
            at_once: false,
            deadline: None,
            duplicates: 0,
        }
    }

    /// Bytes that arrived in order.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.next
    }

    /// Bytes that arrived twice.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// When `poll_ack` has something to say, if nothing arrives before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        if self.earlier.is_some() { Some(Instant::ZERO) } else { self.deadline }
    }

    /// Data arrived.
    pub fn on_data(&mut self, now: Instant, position: u64, bytes: u64, segments: u32, marked: bool, cwr: bool) {
        if self.exact {
            if marked != self.echo && self.unacknowledged > 0 {
                self.earlier = Some(Reply { position: self.next, blocks: self.blocks(), echo: self.echo });
                self.unacknowledged = 0;
            }
            self.echo = marked;
        } else {
            if cwr {
                self.echo = false;
            }
            if marked {
                if !self.echo && self.policy.hurries {
                    (self.at_once, self.quick) = (true, self.quick.max(QUICK_ACKS_MARKED));
                }
                self.echo = true;
            }
        }
        let end = position + bytes;
        let in_order = position <= self.next && end > self.next && self.ranges.is_empty();
        if in_order {
            self.duplicates += self.next - position;
            self.next = end;
        } else {
            self.at_once = true;
            self.insert(position, end);
        }
        self.unacknowledged += segments;
        self.schedule(now);
    }

    /// What is to be said by now.
    pub fn poll_ack(&mut self, now: Instant) -> Option<Reply> {
        if let Some(reply) = self.earlier.take() {
            return Some(reply);
        }
        if !self.at_once && self.deadline.is_none_or(|at| at > now) {
            return None;
        }
        self.quick = self.quick.saturating_sub(1);
        (self.at_once, self.unacknowledged, self.deadline) = (false, 0, None);
        Some(Reply { position: self.next, blocks: self.blocks(), echo: self.echo })
    }

    fn schedule(&mut self, now: Instant) {
        let full = self.unacknowledged >= self.policy.every || self.quick > 0;
        let AckPolicy { gather_ns, delay_ns, .. } = self.policy;
        let wait_ns = if full { gather_ns / 2 + self.random.range(0, gather_ns) } else { delay_ns };
        if wait_ns == 0 {
            self.at_once = true;
        } else {
            let at = now.plus_ns(wait_ns);
            self.deadline = Some(self.deadline.map_or(at, |earlier| earlier.min(at)));
        }
    }

    fn insert(&mut self, position: u64, end: u64) {
        if end <= self.next {
            self.duplicates += end - position;
            return;
        }
        let (mut left, mut right) = (position.max(self.next), end);
        let first = self.ranges.partition_point(|range| range.1 < left);
        let last = self.ranges.partition_point(|range| range.0 <= right);
        for range in &self.ranges[first..last] {
            self.duplicates += range.1.min(end).saturating_sub(range.0.max(position));
            (left, right) = (left.min(range.0), right.max(range.1));
        }
        self.ranges.splice(first..last, [(left, right)]);
        if left <= self.next {
            self.next = right;
            self.ranges.remove(0);
        }
        self.recent.retain(|&place| place > self.next && !(left..right).contains(&place));
        self.recent.insert(0, position);
        self.recent.truncate(RECENT);
    }

    /// The ranges around the latest arrivals, latest first.
    fn blocks(&self) -> Blocks<u64> {
        let mut blocks = Blocks::default();
        for &place in &self.recent {
            let after = self.ranges.partition_point(|range| range.1 <= place);
            if let Some(&range) = self.ranges.get(after).filter(|range| range.0 <= place)
                && !blocks.as_slice().contains(&range)
            {
                blocks.push(range);
            }
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: AckPolicy = AckPolicy { every: 1, delay_ns: 0, gather_ns: 0, hurries: true };

    fn receive(receiver: &mut Receiver, position: u64) -> Reply {
        receiver.on_data(Instant(0), position, 100, 1, false, false);
        receiver.poll_ack(Instant(0)).expect("at once")
    }

    #[test]
    fn gaps_are_reported_latest_first_and_fill() {
        let mut receiver = Receiver::new(AT_ONCE, Random::new(1));
        assert_eq!(receive(&mut receiver, 0).position, 100);
        assert_eq!(receive(&mut receiver, 200).blocks.as_slice(), [(200, 300)]);
        assert_eq!(receive(&mut receiver, 400).blocks.as_slice(), [(400, 500), (200, 300)]);
        assert_eq!(receive(&mut receiver, 600).blocks.as_slice(), [(600, 700), (400, 500), (200, 300)]);
        assert_eq!(receive(&mut receiver, 300).blocks.as_slice(), [(200, 500), (600, 700)]);
        let filled = receive(&mut receiver, 100);
        assert_eq!((filled.position, filled.blocks.as_slice()), (500, &[(600, 700)][..]));
        let filled = receive(&mut receiver, 500);
        assert_eq!((filled.position, filled.blocks.as_slice().len()), (700, 0));
        receive(&mut receiver, 300);
        assert_eq!(receiver.duplicates(), 100);
    }

    #[test]
    fn an_overlap_is_counted_once() {
        let mut receiver = Receiver::new(AT_ONCE, Random::new(1));
        receive(&mut receiver, 200);
        receiver.on_data(Instant(0), 0, 250, 3, false, false);
        assert_eq!((receiver.received(), receiver.duplicates()), (300, 50));
    }

    #[test]
    fn an_acknowledgement_waits_for_a_second_segment_or_the_delay() {
        let policy = AckPolicy { every: 2, delay_ns: 40, gather_ns: 0, hurries: true };
        let mut receiver = Receiver { quick: 0, ..Receiver::new(policy, Random::new(1)) };
        receiver.on_data(Instant(0), 0, 100, 1, false, false);
        assert_eq!((receiver.poll_ack(Instant(39)), receiver.deadline()), (None, Some(Instant(40))));
        assert!(receiver.poll_ack(Instant(40)).is_some());
        receiver.on_data(Instant(50), 100, 100, 1, false, false);
        receiver.on_data(Instant(51), 200, 100, 1, false, false);
        assert!(receiver.poll_ack(Instant(51)).is_some());
    }

    #[test]
    fn congestion_is_echoed_until_the_sender_has_reduced() {
        let mut receiver = Receiver::new(AT_ONCE, Random::new(1));
        receiver.on_data(Instant(0), 0, 100, 1, true, false);
        assert!(receiver.poll_ack(Instant(0)).is_some_and(|reply| reply.echo));
        assert!(receive(&mut receiver, 100).echo);
        receiver.on_data(Instant(0), 200, 100, 1, false, true);
        assert!(receiver.poll_ack(Instant(0)).is_some_and(|reply| !reply.echo));
    }
}
