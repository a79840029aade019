//! `auto`: marks what waited longer than a threshold that it finds by itself.
//!
//! The threshold T is a time, so that it means the same at every rate. It begins at a usual round
//! trip and lies between two frames' time at the queue's rate and CoDel's target. Each *period*, 16
//! round trips or [`PERIOD_LEAST_NS`]: where the queue ran dry soon after a mark for more than 0.5
//! % of the time, T grows by a quarter, since the marks cost rate; else, where no frame waited less
//! than T / 4, the queue stands and T shrinks by a sixteenth (the standing queue of ECN#, CoNEXT
//! 2019).
//!
//! What cannot be marked is dropped with the square of half the marking rate (RFC 9332, section
//! 2.1: loss-based control reacts to the square root of the loss, ECN control to the rate of
//! marks), so that neither starves the other. The rate is one of what could have left: it falls
//! while the queue is empty, too. What begins a TCP connection is never dropped: its
//! sender would wait a second.

use super::codel::TARGET_NS;
use crate::units::{Instant, Rate};

/// The round trip of a data centre, where nothing better is known (design goal: hosts of one site).
pub const ROUND_TRIP_NS: u64 = 200_000;
/// The shortest period: some hundred frames at 100 Mbit/s.
const PERIOD_LEAST_NS: u64 = 10_000_000;
/// Round trips of a period.
const PERIOD_ROUNDS: u64 = 16;
/// A full frame on the wire, in bytes.
const FULL_FRAME: u64 = 1538;
/// A marking rate of one.
const ONE: u32 = 1 << 16;
/// The marking rate moves by so much of the difference at each segment, as a shift: at the least
/// and at the most.
const SHIFT: (u32, u32) = (4, 12);

/// The state of one queue.
#[derive(Clone, Debug)]
pub struct Auto {
    target_ns: u64,
    least_ns: u64,
    shift: u32,
    /// How long as many frames take as the shift is for.
    fades_ns: u64,
    /// Of 2^16: which part of the segments waited too long.
    rate: u32,
    period_end: Instant,
    last_mark: Option<Instant>,
    /// Of this period: for how long it was dry soon after a mark, and the shortest wait.
    dry_ns: u64,
    shortest_ns: u64,
}

impl Auto {
    /// For a queue that is drained at `rate`.
    #[must_use]
    pub fn new(rate: Rate) -> Auto {
        let mut auto = Auto {
            target_ns: ROUND_TRIP_NS,
            least_ns: 0,
            shift: SHIFT.0,
            fades_ns: 1,
            rate: 0,
            period_end: Instant::ZERO,
            last_mark: None,
            dry_ns: 0,
            shortest_ns: u64::MAX,
        };
        auto.set_rate(rate);
        auto
    }

    /// The queue is drained at another rate.
    pub fn set_rate(&mut self, rate: Rate) {
        self.least_ns = rate.time_ns(2 * FULL_FRAME).min(TARGET_NS);
        self.target_ns = self.target_ns.clamp(self.least_ns, TARGET_NS);
        let frames = rate.bytes_in(PERIOD_ROUNDS * ROUND_TRIP_NS) / FULL_FRAME;
        self.shift = frames.max(1).ilog2().clamp(SHIFT.0, SHIFT.1);
        self.fades_ns = rate.time_ns(FULL_FRAME << self.shift).max(1);
    }

    /// The threshold now, in nanoseconds.
    #[must_use]
    pub fn target_ns(&self) -> u64 {
        self.target_ns
    }

    /// Whether a segment that leaves now is the first of a period, which may begin with another
    /// threshold.
    #[must_use]
    pub fn begins_at(&self, now: Instant) -> bool {
        now >= self.period_end
    }

    /// A segment arrives where nothing waits, since `since`. What of a pause is longer than a round
    /// trip is the senders' own, and so is all of one that is longer than any threshold.
    pub fn arrives_dry(&mut self, now: Instant, since: Instant) {
        let dry_ns = now.since(since);
        if dry_ns <= PERIOD_LEAST_NS
            && self.last_mark.is_some_and(|at| since.since(at) <= ROUND_TRIP_NS.max(self.target_ns))
        {
            self.dry_ns += dry_ns.min(ROUND_TRIP_NS);
        }
        if self.rate > 0 {
            self.rate = self.faded(dry_ns);
        }
    }

    /// The marking rate behind a pause in which nothing waited: it falls as if frames had left
    /// meanwhile that did not wait, or what comes after a pause would pay for what was before.
    fn faded(&self, dry_ns: u64) -> u32 {
        let halved = self.rate.checked_shr((dry_ns / self.fades_ns).min(32) as u32).unwrap_or(0);
        let (all_ns, rest_ns) = (u128::from(self.fades_ns), u128::from(dry_ns % self.fades_ns));
        (u128::from(halved) * all_ns / (all_ns + rest_ns)) as u32
    }

    /// A segment leaves that waited for `wait_ns`. Whether that is too long.
    pub fn leaves(&mut self, now: Instant, wait_ns: u64) -> bool {
        if self.begins_at(now) {
            self.turn(now);
        }
        self.shortest_ns = self.shortest_ns.min(wait_ns);
        let is_long = wait_ns > self.target_ns;
        if is_long {
            self.last_mark = Some(now);
        }
        self.count(is_long);
        is_long
    }

    /// So many more leave with one that waited too long, or did not.
    pub fn leave_with(&mut self, is_long: bool, more: u32) {
        for _ in 0..more {
            let before = self.rate;
            self.count(is_long);
            // What does not move it now does not later.
            if self.rate == before {
                return;
            }
        }
    }

    #[inline]
    fn count(&mut self, is_long: bool) {
        if is_long {
            self.rate += (ONE - self.rate) >> self.shift;
        } else {
            // By one at least, or what is left of it would stay for ever.
            self.rate -= (self.rate >> self.shift).max(1).min(self.rate);
        }
    }

    /// Whether a segment that cannot be marked may be dropped now, where nothing has waited for so
    /// long.
    #[must_use]
    pub fn may_drop(&self, dry_ns: u64) -> bool {
        self.rate > 1 && self.faded(dry_ns) > 1
    }

    /// Whether a segment that cannot be marked is dropped; `dice` is random.
    #[must_use]
    pub fn drops(&self, dice: u32) -> bool {
        let half = u64::from(self.rate) / 2;
        u64::from(dice) < half * half
    }

    /// A period is over.
    fn turn(&mut self, now: Instant) {
        let length_ns = PERIOD_LEAST_NS.max(PERIOD_ROUNDS * ROUND_TRIP_NS);
        if self.period_end != Instant::ZERO {
            // The last segment of a period may come long behind its end.
            if self.dry_ns > (length_ns + now.since(self.period_end)) / 200 {
                self.target_ns += self.target_ns / 4;
            } else if self.shortest_ns != u64::MAX && self.shortest_ns >= self.target_ns / 4 {
                self.target_ns -= self.target_ns / 16;
            }
            self.target_ns = self.target_ns.clamp(self.least_ns, TARGET_NS);
        }
        (self.period_end, self.dry_ns, self.shortest_ns) = (now.plus_ns(length_ns), 0, u64::MAX);
    }
}
