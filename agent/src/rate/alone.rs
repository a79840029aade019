//! One endpoint receives, and no other.
//!
//! Alone it has the whole link, and nothing is divided. But a flood, or a TCP that takes what it
//! finds, fills the network's queue before this host and keeps it full: each frame that another
//! endpoint's peer sends then is late, and likely lost. If it is the only segment of its
//! connection, as a retransmission is, that costs a time-out, twice as long each time it happens
//! again, and nothing of it arrives here that would show the contention. (With a flood to a link of
//! 30 Mbit/s and a queue of 64 KiB one connection in ten stood still for seconds.)
//!
//! So where the link stays full over some hundred milliseconds, the senders are held a little below
//! its rate (0.4 %), after an undershoot that drains the queue. The undershoot costs nothing while
//! there is a queue.
//!
//! Once it is empty, senders that are held at the link's rate do not fill it again. But nobody sees
//! that from here: a link is as full with a queue as without. So they are only *probed*: held at
//! the link's rate but for what clocks differ, and from time to time a little below, until less
//! arrives, which shows that nothing stands, or does not, which shows that something does. The
//! longer nothing does, the less often (4 s); after a queue, or with one more sender, it begins
//! anew. In the end it costs 0.03 % of the link.

use super::super::directory::{AccessLink, Directory};
use super::super::post::Post;
use super::{Controller, Counters, DRAIN_PART, Instant};

/// Over what the link must be full: long enough that a frame more or less, at 30 Mbit/s, is less
/// than what is held back.
pub(super) const STEADY_NS: u64 = 128_000_000;
/// It counts as full with this part of it missing (one in).
const FULL_PART: u64 = 512;
/// What is held back then (one in): more than is missing where it counts as full.
const BACK_PART: u64 = 256;
/// What is held back while the queue counts as empty: more than clocks differ.
const CLOCKS_PART: u64 = 4096;
/// It counts as empty for so long after it was found so, then for twice as long, and so on.
const EMPTY_MIN_NS: u64 = 250_000_000;
const EMPTY_MAX_NS: u64 = 4_000_000_000;
/// If so long after the next probe began the link is as full as before, something stands: words
/// have gone out again, and the average has followed.
const PROBED_NS: u64 = 4 * STEADY_NS;
/// An undershoot lasts no longer: in this time 2.4 MiB are drained at 1 Gbit/s, or 73 KiB at 30
/// Mbit/s.
const DRAIN_NS: u64 = 160_000_000;
/// The next begins no earlier.
const DRAIN_AGAIN_NS: u64 = 400_000_000;

/// Whether a queue stands in the network.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probe {
    /// Until when it counts as empty.
    until: Instant,
    /// For how long it did last, since something stood.
    empty_ns: u64,
    /// Before that a full link says nothing.
    judged_at: Instant,
    /// How many senders were limited.
    limited: usize,
}

impl Probe {
    /// What senders, of which so many are limited, may have together of a link that carries so much
    /// and `is_full`.
    fn capacity(&mut self, now: Instant, is_full: bool, limited: usize, carries: u64) -> u64 {
        // What one more sent before it was limited may stand.
        if limited > self.limited && now < self.until {
            (self.until, self.empty_ns, self.judged_at) = (now, 0, now.plus_ns(PROBED_NS));
        }
        self.limited = limited;
        if limited > 0 && !is_full && now >= self.until {
            self.empty_ns = (2 * self.empty_ns).clamp(EMPTY_MIN_NS, EMPTY_MAX_NS);
            self.until = now.plus_ns(self.empty_ns);
            self.judged_at = self.until.plus_ns(PROBED_NS);
        }
        carries - carries / if now < self.until { CLOCKS_PART } else { BACK_PART }
    }
}

impl Controller {
    /// Holds the senders of the only endpoint that receives, if the link stays full.
    pub(super) fn alone(
        &mut self,
        now: Instant,
        noise: u64,
        link: AccessLink,
        directory: &Directory,
        post: &mut Post,
        counters: &mut Counters,
    ) {
        let carries = link.ingress.0;
        let is_full = self.state.steady >= carries - carries / FULL_PART;
        let Some(&index) = self.active.first() else { return };
        if !is_full && self.limited == 0 {
            let receiver = &mut self.receivers[index as usize];
            (receiver.share, receiver.ahead, receiver.recent) = (carries, 0, 0);
            (self.state.draining, self.state.owes, self.state.probe) = (false, false, Probe::default());
            return;
        }
        self.receivers[index as usize].catch_up(now);
        let capacity = self.state.probe.capacity(now, is_full, self.limited, carries);
        let stands = is_full && now >= self.state.probe.judged_at;
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
            (state.draining, state.drain_since, state.probe.empty_ns) = (true, Some(now), 0);
        }
        if !state.draining {
            return 0;
        }
        let arrives: u64 = self.active.iter().map(|&index| self.receivers[index as usize].meter.slow).sum();
        let is_drained = arrives < carries - carries / DRAIN_PART / 2;
        if is_drained {
            state.steady = state.steady.min(capacity);
        }
        if is_drained || state.drain_since.is_none_or(|since| now.since(since) >= DRAIN_NS) {
            state.draining = false;
            return 0;
        }
        self.state.drained_at = Some(now);
        self.held_back(carries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LINK: u64 = 1_000_000_000;

    #[test]
    fn an_empty_queue_is_probed_ever_less_often() {
        let (mut probe, mut probed) = (Probe::default(), 0);
        let mut steady = LINK;
        // What arrives is what may be sent, but with a queue that drains in the first 300 ms.
        for ms in 0..20_000 {
            let is_full = steady >= LINK - LINK / FULL_PART;
            let capacity = probe.capacity(Instant(1 + ms * MS), is_full, 3, LINK);
            let arrives = if ms < 300 { LINK } else { capacity };
            steady = super::super::toward(steady, arrives, MS, STEADY_NS);
            assert!(ms < 300 || !is_full || Instant(1 + ms * MS) < probe.judged_at || probe.until == Instant::ZERO);
            probed += u64::from(capacity < LINK - LINK / CLOCKS_PART);
        }
        assert!((300 + 90..300 + 1000).contains(&probed), "{probed} ms below the link's rate");
        assert_eq!(probe.empty_ns, EMPTY_MAX_NS);
        // Another one may have filled it.
        let now = Instant(probe.until.0 - 1);
        assert_eq!(probe.capacity(now, true, 4, LINK), LINK - LINK / BACK_PART);
        assert_eq!((probe.empty_ns, probe.judged_at), (0, now.plus_ns(PROBED_NS)));
    }
}
