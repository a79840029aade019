//! What a backend's answers say of its health: passive, from the connections that it gets. Five
//! failures one after the other eject it for a while; a longer while each time.
//!
//! To accept a connection disproves that it refuses them. Where it has ended what it accepted, it
//! says nothing more: only an answer does.

use crate::units::Instant;

/// Failures one after the other that eject a backend.
const FAILURES: u32 = 5;
/// For how long the first time, and at most, in nanoseconds (Envoy's defaults for outliers).
const EJECTED_NS: u64 = 30_000_000_000;
const MOST_EJECTED_NS: u64 = 300_000_000_000;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Health {
    failures: u32,
    /// Whether one of them was a connection that it had accepted.
    has_broken: bool,
    /// When the last of these was.
    broke: Instant,
    /// Whether no check has succeeded since the last one.
    is_unchecked: bool,
    /// Ejections not long after each other.
    ejections: u32,
    until: Option<Instant>,
}

impl Health {
    /// It ended a connection that it had accepted: that is to be counted as failed, too.
    pub fn breaks(&mut self, now: Instant) {
        (self.has_broken, self.broke) = (true, now);
    }

    /// A connection has failed. Whether it is ejected for that.
    pub fn failed(&mut self, now: Instant) -> bool {
        if self.is_ejected(now) {
            return false;
        }
        self.is_unchecked = true;
        self.failures += 1;
        if self.failures < FAILURES {
            return false;
        }
        let is_again = self.until.is_some_and(|until| now.since(until) < MOST_EJECTED_NS);
        self.ejections = if is_again { self.ejections + 1 } else { 1 };
        self.until = Some(now.plus_ns((EJECTED_NS * u64::from(self.ejections)).min(MOST_EJECTED_NS)));
        // Back, it is on trial: one more failure is enough.
        self.failures = FAILURES - 1;
        true
    }

    /// It is well again before that time is over. Still it is on trial.
    pub fn lift(&mut self, now: Instant) {
        self.until = Some(now);
    }

    /// It accepted a connection. That it ended some is forgotten after as long as an ejection lasts
    /// at most: there are servers that never send anything.
    pub fn accepted(&mut self, now: Instant) {
        let since = self.until.map_or(self.broke, |until| until.max(self.broke));
        if !self.has_broken || now.since(since) >= MOST_EJECTED_NS {
            self.answered();
        }
    }

    /// It answered in a connection.
    pub fn answered(&mut self) {
        (self.failures, self.has_broken, self.is_unchecked) = (0, false, false);
    }

    /// A check has succeeded.
    pub fn checked(&mut self) {
        self.is_unchecked = false;
    }

    /// Whether it has ended what it had accepted, and not answered since.
    #[must_use]
    pub fn has_broken(&self) -> bool {
        self.has_broken
    }

    /// Whether it has failed, and no check has succeeded since.
    #[must_use]
    pub fn is_unchecked(&self) -> bool {
        self.is_unchecked
    }

    /// Whether it gets no new connections for now.
    #[must_use]
    pub fn is_ejected(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Whether its last answers were none.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.failures > 0
    }

    /// Until when it is or was ejected.
    #[must_use]
    pub fn ejected_until(&self) -> Option<Instant> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_breaks_what_it_accepted_has_to_answer() {
        let mut health = Health::default();
        for _ in 0..4 {
            health.accepted(Instant(0));
            health.breaks(Instant(0));
            assert!(!health.failed(Instant(0)));
        }
        health.checked();
        health.accepted(Instant(0));
        assert!(health.is_doubtful() && !health.is_unchecked());
        health.breaks(Instant(0));
        assert!(health.failed(Instant(0)), "the fifth");
        health.answered();
        assert!(!health.is_doubtful() && !health.has_broken());
        assert!(!health.failed(Instant(EJECTED_NS)));
        health.accepted(Instant(0));
        assert!(!health.is_doubtful(), "it does not refuse any more");
    }

    #[test]
    fn that_it_broke_something_is_forgotten_where_it_never_sends_an_answer() {
        let mut health = Health::default();
        health.breaks(Instant(0));
        assert!(!health.failed(Instant(0)));
        health.accepted(Instant(MOST_EJECTED_NS - 1));
        assert!(health.is_doubtful());
        health.accepted(Instant(MOST_EJECTED_NS));
        assert!(!health.is_doubtful() && !health.has_broken());
    }

    #[test]
    fn five_failures_in_a_row_eject_it_and_longer_each_time() {
        let mut health = Health::default();
        let mut now = Instant(0);
        for _ in 0..4 {
            assert!(!health.failed(now));
        }
        health.answered();
        assert!((0..4).all(|_| !health.failed(now)) && health.failed(now));
        for n in 1..=12u64 {
            let lasts = (EJECTED_NS * n).min(MOST_EJECTED_NS);
            assert!(health.is_ejected(now.plus_ns(lasts - 1)) && !health.failed(now));
            now = now.plus_ns(lasts);
            assert!(!health.is_ejected(now) && health.is_doubtful());
            assert!(health.failed(now), "on trial");
        }
        now = now.plus_ns(2 * MOST_EJECTED_NS);
        health.answered();
        assert!(!health.is_doubtful());
        assert!((0..5).any(|_| health.failed(now)));
        assert_eq!(health.ejected_until(), Some(now.plus_ns(EJECTED_NS)), "long ago counts no more");
    }
}
