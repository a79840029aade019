//! One pair that is limited: its queue, and when it may send again; and what the pairs of one
//! endpoint share.

use super::{NONE, PairStats, Toward};
use crate::program::EndpointId;
use crate::sched::lane::Lane;
use crate::sched::tag::{Pace, TAG_BITS, Tag, instant, tag};
use crate::sched::tree::{QUANTUM_MAX, QUANTUM_MIN};
use crate::units::{Instant, Rate};

/// What may wait for a limit: ten times CoDel's target, so that the bursts of some connections fit.
/// More would only be older when it leaves.
const QUEUE_NS: u64 = 50_000_000;
/// The least bound of such a queue in wire bytes: an offloaded frame, and one more.
const QUEUE_LEAST: u64 = 2 * QUANTUM_MAX as u64;
/// Memory that all pairs of an endpoint may take together, as a multiple of its queue's bound: one
/// pair is bounded by its lane (four times that), many share.
const MEMORY: u64 = 8;
/// Wire time, at its rate, of the longest frame that a pair sends at once. Others wait behind it at
/// the receiver: where a quarter of the link is sent in frames of 250 us, 5 ms of another's
/// arrivals are at times short by more than a hundredth. What each frame costs speaks for long
/// ones: with 100 us, two segments at a quarter of 1 Gbit/s, the lab's two processors had no time
/// left (`lab/run gatekeeper-fig5`, RX).
const FRAME_NS: u64 = 200_000;
/// Lateness of the loop that is made good: of a busy machine's one round in thirty is later than
/// 100 us, and a pair that lost that would get some per cent less than its rate. What is sent at
/// once at most is a thousandth of a second's worth, while the link to the receiver was idle.
const CATCH_UP: Tag = 1_000_000 << TAG_BITS;

/// Where a pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Nothing waits.
    Idle,
    /// Its first frame may go.
    Ready,
    /// On the wheel.
    Waits,
}

#[derive(Debug)]
pub(super) struct Pair {
    pub from: EndpointId,
    pub to: Toward,
    pub rate: Rate,
    pub pace: Pace,
    /// When what was sent is paid for.
    pub free_at: Tag,
    /// The longest frame that is sent at once, in wire bytes.
    pub longest: u32,
    /// Whether a frame has come since the limit was set.
    pub begun: bool,
    pub state: State,
    pub lane: Lane,
}

impl Pair {
    /// A limit that begins somewhere within the time of its first frame: those of many hosts begin
    /// together, with the same rate, and would send in step for ever.
    pub fn new(now: Instant, from: EndpointId, to: Toward, rate: Rate, queue_bytes: u32) -> Pair {
        let (pace, longest) = (Pace::of(rate), longest(rate));
        let mut pair = Pair {
            from,
            to,
            rate,
            pace,
            free_at: tag(now) + share_of(now, pace.cost(longest)),
            longest,
            begun: false,
            state: State::Idle,
            lane: Lane::new(0),
        };
        pair.set_queue(queue_bytes);
        pair
    }

    /// Lets the first frame go when this part of its time, of 256, is over; and where some have
    /// gone before, the next one as if the first had: a little sooner or later than it would, by
    /// half a frame at most. Who owes nothing does not wait.
    pub fn take_turn(&mut self, now: Instant, phase: u8) {
        let (now, cost) = (tag(now), self.pace.cost(self.longest));
        // At a rate at which a frame takes no time there are no turns.
        if cost == 0 {
            return;
        }
        let turn = cost / 256 * Tag::from(phase);
        if !self.begun {
            self.free_at = now + turn;
        } else if self.free_at > now {
            let waits = self.free_at - now;
            let later = (turn + cost - waits % cost) % cost;
            // However often it is asked, it waits no longer than for two frames.
            if later <= cost / 2 && waits + later <= 2 * cost {
                self.free_at += later;
            } else if later > cost / 2 && cost - later <= waits {
                self.free_at -= cost - later;
            }
        }
    }

    /// Changes the rate. What is owed is owed in bytes, so it takes as long as it does at the new
    /// one.
    pub fn set_rate(&mut self, now: Instant, rate: Rate) {
        let (before, pace) = (self.pace, Pace::of(rate));
        let owed = self.free_at.saturating_sub(tag(now));
        if owed > 0 {
            self.free_at = tag(now) + before.at(pace, owed);
        }
        (self.rate, self.pace, self.longest) = (rate, pace, longest(rate));
    }

    /// Something wants to be sent. What the endpoint's own queue held when the limit was set may
    /// have taken the first frame's turn; the next is a frame later, or all that were late would
    /// begin together after all.
    pub fn begin(&mut self, now: Instant) {
        let (late, cost) = (tag(now).saturating_sub(self.free_at), self.pace.cost(self.longest));
        if !std::mem::replace(&mut self.begun, true) && (1..cost).contains(&late) {
            self.free_at += cost;
        }
        // Time in which nobody wanted to send is nobody's credit.
        self.free_at = self.free_at.max(tag(now));
    }

    pub fn set_queue(&mut self, queue_bytes: u32) {
        let wanted = self.rate.bytes_in(QUEUE_NS).max(QUEUE_LEAST);
        self.lane.set_bound(u32::try_from(wanted).unwrap_or(u32::MAX).min(queue_bytes));
    }

    pub fn charge(&mut self, now: Instant, bytes: u32) {
        let catch_up = CATCH_UP.max(self.pace.cost(self.longest));
        self.free_at = self.free_at.max(tag(now).saturating_sub(catch_up)) + self.pace.cost(bytes);
    }

    pub fn wait_ns(&self, now: Instant) -> u64 {
        instant(self.free_at).since(now)
    }

    /// Continues where another had to wait for `wait_ns`. Nobody can owe more than one frame of the
    /// longest kind.
    pub fn restore(&mut self, now: Instant, wait_ns: u64) {
        let most = self.pace.cost(QUANTUM_MAX) >> TAG_BITS;
        self.begun = true;
        self.free_at = tag(now.plus_ns(wait_ns.min(most)));
    }

    pub fn stats(&self) -> PairStats {
        PairStats { to: self.to, rate: self.rate, stats: self.lane.stats() }
    }
}

/// A part of `whole` that another moment makes another: the moment's nanoseconds, multiplied as in
/// Fibonacci hashing (Knuth, vol. 3, 6.4).
fn share_of(now: Instant, whole: Tag) -> Tag {
    let part = now.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    whole / (1 << 16) * part
}

fn longest(rate: Rate) -> u32 {
    rate.bytes_in(FRAME_NS).clamp(QUANTUM_MIN, u64::from(QUANTUM_MAX)) as u32
}

/// An endpoint that is limited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub pairs: u32,
    /// The one that concerns everyone.
    pub everyone: u32,
    pub queue_bytes: u32,
    /// Memory of what waits in all its pairs.
    pub memory: u64,
}

impl Sender {
    pub const FREE: Sender = Sender { pairs: 0, everyone: NONE, queue_bytes: 0, memory: 0 };

    /// Whether a queue that holds `has` may not take `more` bytes of memory: it may have as much as
    /// is left free (dynamic thresholds, Choudhury and Hahne 1998), so that one destination that is
    /// overwhelmed leaves room for the others.
    pub fn is_crowded(&self, has: u64, more: u32) -> bool {
        let left = (MEMORY * u64::from(self.queue_bytes)).saturating_sub(self.memory);
        self.memory > 0 && has + u64::from(more) > left
    }
}
