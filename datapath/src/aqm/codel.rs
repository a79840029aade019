//! CoDel (RFC 8289): when a queue's delay has stood above a target for an interval, signal its
//! senders, ever faster until it falls.
//!
//! What a signal is, the queue decides: a mark, or a lost segment. Here is only the control law:
//! the next signal comes `interval / sqrt(count)` after the last.

use crate::units::Instant;

/// How long the delay must stand above the target before the first signal: some round trips of a
/// data centre's worst path. RFC 8289 takes 100 ms for the Internet; 20 ms lets slow start
/// overshoot for a fifth of that.
pub const INTERVAL_NS: u64 = 20_000_000;
/// The delay to stay under, as RFC 8289 has it. Less would do for TCP, but hosts stall for
/// milliseconds now and then, and a queue that runs dry then gives its endpoint's share away (with
/// 2 ms one connection got 99.74 % of its share, see `lab/run fs-vde`).
pub const TARGET_NS: u64 = 5_000_000;
/// Most signals for one frame: a burst after a stall must not empty the window.
const MAX_SIGNALS: u32 = 4;

/// [`Codel::above_until`] in the signalling state.
const SIGNALLING: Instant = Instant(u64::MAX);

/// The state of one queue: 24 bytes, since there is one for each lane of a hundred thousand.
#[derive(Clone, Debug, Default)]
pub struct Codel {
    /// When the delay will have stood above the target for an interval; zero while it does not
    /// stand there, and [`SIGNALLING`] once it has.
    above_until: Instant,
    /// In the signalling state, when the next signal is due; outside, when that state ended.
    next_or_left: Instant,
    count: u32,
    last_count: u32,
}

impl Codel {
    /// A frame that waited `sojourn_ns` is leaving. `last` says that it leaves less than another
    /// frame behind, which is no standing queue however slow the endpoint is. Returns how many
    /// signals its senders shall get.
    ///
    /// The interval stands for a round trip, and a round trip includes the wait: for slow endpoints
    /// it is the sojourn.
    #[inline]
    pub fn signals(&mut self, now: Instant, sojourn_ns: u64, last: bool) -> u32 {
        if sojourn_ns < TARGET_NS || last {
            if std::mem::take(&mut self.above_until) == SIGNALLING {
                self.next_or_left = now;
            }
            return 0;
        }
        self.stands(now, INTERVAL_NS.max(sojourn_ns))
    }

    /// Whether every second signal is this one.
    #[must_use]
    pub fn is_odd(&self) -> bool {
        self.count % 2 == 1
    }

    /// The delay is above the target.
    fn stands(&mut self, now: Instant, interval_ns: u64) -> u32 {
        if self.above_until == Instant::ZERO {
            self.above_until = now.plus_ns(interval_ns);
        }
        if self.above_until != SIGNALLING {
            if now < self.above_until {
                return 0;
            }
            // Back soon after the last time: go on at nearly that speed.
            let gained = self.count.saturating_sub(self.last_count);
            let recent = now.since(self.next_or_left) < 16 * interval_ns;
            self.count = if recent && gained > 1 { gained } else { 1 };
            self.last_count = self.count;
            (self.above_until, self.next_or_left) = (SIGNALLING, self.law(now, interval_ns));
            return 1;
        }
        let mut signals = 0;
        while self.next_or_left <= now && signals < MAX_SIGNALS {
            signals += 1;
            self.count = self.count.saturating_add(1);
            self.next_or_left = self.law(self.next_or_left, interval_ns);
        }
        if self.next_or_left <= now {
            self.next_or_left = self.law(now, interval_ns);
        }
        signals
    }

    /// `interval / sqrt(count)` after `from`, the root with 8 fractional bits.
    fn law(&self, from: Instant, interval_ns: u64) -> Instant {
        let root = (u64::from(self.count) << 16).isqrt().max(1);
        from.plus_ns((interval_ns << 8) / root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn short_delays_get_no_signal() {
        let mut codel = Codel::default();
        for ms in 0..1000 {
            assert_eq!(codel.signals(Instant(ms * MS), TARGET_NS - 1, false), 0);
        }
    }

    #[test]
    fn a_burst_shorter_than_the_interval_gets_no_signal() {
        let mut codel = Codel::default();
        for round in 0..10 {
            for ms in 0..19 {
                assert_eq!(codel.signals(Instant((round * 100 + ms) * MS), 10 * MS, false), 0);
            }
            assert_eq!(codel.signals(Instant((round * 100 + 20) * MS), 0, true), 0);
        }
    }

    #[test]
    fn a_standing_queue_gets_signals_at_the_control_laws_rate() {
        let mut codel = Codel::default();
        let times: Vec<u64> = (0..100_000u64)
            .filter(|i| codel.signals(Instant(i * MS / 100), 10 * MS, false) > 0)
            .map(|i| i / 100)
            .collect();
        // 20, then 20 + 20/sqrt(1), + 20/sqrt(2), + 20/sqrt(3) ...
        assert_eq!(&times[..5], &[20, 40, 54, 65, 75]);
    }

    #[test]
    fn a_stall_is_not_paid_back_at_once() {
        let mut codel = Codel::default();
        for ms in 0..30 {
            codel.signals(Instant(ms * MS), 10 * MS, false);
        }
        assert!(codel.signals(Instant(10_000 * MS), 10 * MS, false) <= MAX_SIGNALS);
        assert_eq!(codel.signals(Instant(10_000 * MS + 1), 10 * MS, false), 0);
    }
}
