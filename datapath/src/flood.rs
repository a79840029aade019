//! The flood budget: how many frames an endpoint, or the uplink, may have copied to a whole network.
//!
//! Broadcast, multicast and unknown destinations cost everyone in the network; a token bucket for each source bounds that
//! (storm control). A loop between two switches multiplies frames: the same budget contains it.

use crate::units::Instant;

const NS: u64 = 1_000_000_000;

/// A token bucket of one source.
#[derive(Clone, Copy, Debug)]
pub struct FloodBudget {
    per_second: u64,
    /// Tokens in billionths.
    tokens: u64,
    refilled: Instant,
}

impl FloodBudget {
    /// `per_second` frames, a quarter second of them at once (at least 32, so that a host may start).
    #[must_use]
    pub fn new(per_second: u32) -> Self {
        let per_second = u64::from(per_second);
        FloodBudget { per_second, tokens: Self::capacity(per_second), refilled: Instant::ZERO }
    }

    /// Changes the budget; what was saved of it stays, up to what the new one holds.
    pub fn set_rate(&mut self, now: Instant, per_second: u32) {
        self.refill(now);
        self.per_second = u64::from(per_second);
        self.tokens = self.tokens.min(Self::capacity(self.per_second));
    }

    /// What is saved of the budget, in billionths of a frame.
    #[must_use]
    pub fn saved(&self, now: Instant) -> u64 {
        let mut budget = *self;
        budget.refill(now);
        budget.tokens
    }

    /// Continues with what another budget had saved `away_ns` ago.
    pub fn restore(&mut self, now: Instant, away_ns: u64, saved: u64) {
        let capacity = Self::capacity(self.per_second);
        self.tokens = (saved.min(capacity) + away_ns.min(NS) * self.per_second).min(capacity);
        self.refilled = now;
    }

    /// Whether one more frame may be flooded at `now`.
    pub fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        if self.tokens < NS {
            return false;
        }
        self.tokens -= NS;
        true
    }

    /// Frames that may be flooded at once at `now`.
    #[must_use]
    pub fn left(mut self, now: Instant) -> u64 {
        self.refill(now);
        self.tokens / NS
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.since(self.refilled).min(NS);
        self.refilled = now;
        self.tokens = (self.tokens + elapsed * self.per_second).min(Self::capacity(self.per_second));
    }

    fn capacity(per_second: u64) -> u64 {
        (per_second / 4).max(32) * NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_held_to_the_budget() {
        let mut budget = FloodBudget::new(1000);
        let passed = (0..1_000_000u64).filter(|i| budget.take(Instant(i * 10_000))).count();
        assert!((10_000..=10_250).contains(&passed), "{passed} in 10 s");
    }
}
