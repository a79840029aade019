//! One endpoint receives, and no other.
//!
//! Alone it has the whole link, and nothing is divided. But a flood, or a TCP that takes what it finds, fills the network's queue before this host and
//! keeps it full: each frame that another endpoint's peer sends then is late, and likely lost. If it is the only segment of its connection, as
//! a retransmission is, that costs a time-out, twice as long each time it happens again, and nothing of it arrives here that would show the
//! contention. (With a flood to a link of 30 Mbit/s and a queue of 64 KiB one connection in ten stood still for seconds.)
//!
//! So where the link stays full over some hundred milliseconds, the senders are held a little below its rate, just so much that the queue
//! does not come back, after an undershoot that drains it. The undershoot costs nothing while there is a queue.

use super::super::directory::{Directory, Link};
use super::super::post::Post;
use super::{Controller, Counters, DRAIN_PART, Instant};

/// Over what the link must be full: long enough that a frame more or less, at 30 Mbit/s, is less than what is held back.
pub(super) const STEADY_NS: u64 = 128_000_000;
/// It counts as full with this part of it missing (one in).
const FULL_PART: u64 = 512;
/// What is held back then (one in): more than is missing where it counts as full, and than clocks and timers differ.
const BACK_PART: u64 = 256;
/// An undershoot lasts no longer: in this time 2.4 MiB are drained at 1 Gbit/s, or 73 KiB at 30 Mbit/s.
const DRAIN_NS: u64 = 160_000_000;
/// The next begins no earlier.
const DRAIN_AGAIN_NS: u64 = 400_000_000;

impl Controller {
    /// Holds the senders of the only endpoint that receives, if the link stays full.
    pub(super) fn alone(
        &mut self,
        now: Instant,
        noise: u64,
        link: Link,
        directory: &Directory,
        post: &mut Post,
        counters: &mut Counters,
    ) {
        let carries = link.ingress.0;
        let stands = self.state.steady >= carries - carries / FULL_PART;
        let Some(&index) = self.active.first() else { return };
        if !stands && self.limited == 0 {
            let receiver = &mut self.receivers[index as usize];
            (receiver.share, receiver.ahead, receiver.recent) = (carries, 0, 0);
            (self.state.draining, self.state.owes) = (false, false);
            return;
        }
        self.receivers[index as usize].catch_up(now);
        let capacity = carries - carries / BACK_PART;
        self.demands(now, noise, false, capacity, counters);
        let bounded = self.divider.divide(capacity, false, &self.active, &mut self.receivers, directory);
        let held_back = if bounded { self.drain(now, stands, carries, capacity) } else { 0 };
        if bounded {
            self.limit(now, 0, noise, held_back, directory, post);
        }
        // Limits that were for others' sake are for nothing where there is room.
        if bounded && (held_back > 0 || !self.state.has_room) {
            self.state.calm_since = None;
        } else {
            self.calm(now, directory, post, counters);
        }
        self.state.owes = false;
        if self.limited > 0 {
            self.tell(now, noise, directory, post);
        }
    }

    /// As [`Controller::undershoot`] for a queue that has had time to grow.
    fn drain(&mut self, now: Instant, stands: bool, carries: u64, capacity: u64) -> u64 {
        let state = &mut self.state;
        let since_last = state.drain_since.map_or(u64::MAX, |since| now.since(since));
        if stands && !state.draining && self.limited > 0 && since_last >= DRAIN_AGAIN_NS {
            (state.draining, state.drain_since) = (true, Some(now));
        }
        if !state.draining {
            return 0;
        }
        let arrives: u64 = self.active.iter().map(|&index| self.receivers[index as usize].meter.slow).sum();
        let is_drained = arrives < carries - carries / DRAIN_PART / 2;
        if is_drained || state.drain_since.is_none_or(|since| now.since(since) >= DRAIN_NS) {
            state.draining = false;
            state.steady = state.steady.min(capacity);
            return 0;
        }
        self.state.drained_at = Some(now);
        self.held_back(carries)
    }
}
