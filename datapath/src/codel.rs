//! CoDel (RFC 8289): when a queue's delay has stood above a target for an interval, signal its senders, ever faster until it falls.
//!
//! What a signal is, the queue decides: a mark, or a lost segment. Here is only the control law: the next signal comes `interval /
//! sqrt(count)` after the last.

use crate::units::Instant;

/// How long the delay must stand above the target before the first signal: some round trips of a data centre's worst path.
/// RFC 8289 takes 100 ms for the Internet; 20 ms lets slow start overshoot for a fifth of that.
pub const INTERVAL_NS: u64 = 20_000_000;
/// The least target: below it the loop's own timing shows.
pub const TARGET_MIN_NS: u64 = 2_000_000;
/// Most signals for one frame: a burst after a stall must not empty the window.
const MAX_SIGNALS: u32 = 4;

/// The state of one queue.
#[derive(Clone, Debug)]
pub struct Codel {
    target_ns: u64,
    interval_ns: u64,
    /// When the delay will have stood above the target for an interval.
    above_until: Option<Instant>,
    /// When the next signal is due; `None` outside the signalling state.
    next: Option<Instant>,
    count: u32,
    last_count: u32,
    left_at: Instant,
}

impl Codel {
    /// With a target in nanoseconds, at least [`TARGET_MIN_NS`]; the interval follows it where it is large (slow endpoints).
    #[must_use]
    pub fn new(target_ns: u64) -> Self {
        let target_ns = target_ns.max(TARGET_MIN_NS);
        Codel {
            target_ns,
            interval_ns: INTERVAL_NS.max(target_ns.saturating_mul(4)),
            above_until: None,
            next: None,
            count: 0,
            last_count: 0,
            left_at: Instant::ZERO,
        }
    }

    /// Changes the target.
    pub fn set_target(&mut self, target_ns: u64) {
        self.target_ns = target_ns.max(TARGET_MIN_NS);
        self.interval_ns = INTERVAL_NS.max(self.target_ns.saturating_mul(4));
    }

    /// A frame that waited `sojourn_ns` is leaving. `last` says that it leaves the queue (nearly) empty, which ends every standing queue.
    /// Returns how many signals its senders shall get.
    pub fn signals(&mut self, now: Instant, sojourn_ns: u64, last: bool) -> u32 {
        if sojourn_ns < self.target_ns || last {
            self.above_until = None;
            if self.next.take().is_some() {
                self.left_at = now;
            }
            return 0;
        }
        let Some(above_until) = self.above_until else {
            self.above_until = Some(now.plus_ns(self.interval_ns));
            return 0;
        };
        if now < above_until {
            return 0;
        }
        match self.next {
            None => {
                // Back soon after the last time: go on at nearly that speed.
                let gained = self.count.saturating_sub(self.last_count);
                let recent = now.since(self.left_at) < 16 * self.interval_ns;
                self.count = if recent && gained > 1 { gained } else { 1 };
                self.last_count = self.count;
                self.next = Some(self.law(now));
                1
            }
            Some(mut next) => {
                let mut signals = 0;
                while next <= now && signals < MAX_SIGNALS {
                    signals += 1;
                    self.count = self.count.saturating_add(1);
                    next = self.law(next);
                }
                if next <= now {
                    next = self.law(now);
                }
                self.next = Some(next);
                signals
            }
        }
    }

    /// `interval / sqrt(count)` after `from`, the root with 8 fractional bits.
    fn law(&self, from: Instant) -> Instant {
        let root = (u64::from(self.count) << 16).isqrt().max(1);
        from.plus_ns((self.interval_ns << 8) / root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn short_delays_get_no_signal() {
        let mut codel = Codel::new(0);
        for ms in 0..1000 {
            assert_eq!(codel.signals(Instant(ms * MS), TARGET_MIN_NS - 1, false), 0);
        }
    }

    #[test]
    fn a_burst_shorter_than_the_interval_gets_no_signal() {
        let mut codel = Codel::new(0);
        for round in 0..10 {
            for ms in 0..19 {
                assert_eq!(codel.signals(Instant((round * 100 + ms) * MS), 10 * MS, false), 0);
            }
            assert_eq!(codel.signals(Instant((round * 100 + 20) * MS), 0, true), 0);
        }
    }

    #[test]
    fn a_standing_queue_gets_signals_at_the_control_laws_rate() {
        let mut codel = Codel::new(0);
        let times: Vec<u64> = (0..100_000u64)
            .filter(|i| codel.signals(Instant(i * MS / 100), 10 * MS, false) > 0)
            .map(|i| i / 100)
            .collect();
        // 20, then 20 + 20/sqrt(1), + 20/sqrt(2), + 20/sqrt(3) ...
        assert_eq!(&times[..5], &[20, 40, 54, 65, 75]);
    }

    #[test]
    fn a_stall_is_not_paid_back_at_once() {
        let mut codel = Codel::new(0);
        for ms in 0..30 {
            codel.signals(Instant(ms * MS), 10 * MS, false);
        }
        assert!(codel.signals(Instant(10_000 * MS), 10 * MS, false) <= MAX_SIGNALS);
        assert_eq!(codel.signals(Instant(10_000 * MS + 1), 10 * MS, false), 0);
    }
}
