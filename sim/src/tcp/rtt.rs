//! Round-trip time and the retransmission timeout (RFC 6298, with Linux's floor).

/// Timeout before the first sample (RFC 6298 section 2.1).
const INITIAL_NS: u64 = 1_000_000_000;
/// The least that is added to the smoothed round trip (Linux's TCP_RTO_MIN).
const MIN_VARIATION_NS: u64 = 200_000_000;
/// The longest timeout (Linux's TCP_RTO_MAX).
const MAX_NS: u64 = 120_000_000_000;

/// What a connection knows of its path's delay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    min_ns: u64,
    latest_ns: u64,
    backoff: u32,
}

impl Rtt {
    /// The smoothed round trip; zero before the first sample.
    #[must_use]
    pub fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// The shortest round trip seen.
    #[must_use]
    pub fn min_ns(&self) -> u64 {
        self.min_ns
    }

    /// The last round trip.
    #[must_use]
    pub fn latest_ns(&self) -> u64 {
        self.latest_ns
    }

    /// The retransmission timeout.
    #[must_use]
    pub fn timeout_ns(&self) -> u64 {
        let base = match self.smoothed_ns {
            0 => INITIAL_NS,
            smoothed => smoothed + (4 * self.variation_ns).max(MIN_VARIATION_NS),
        };
        (base << self.backoff.min(16)).min(MAX_NS)
    }

    /// A round trip was measured.
    pub fn sample(&mut self, ns: u64) {
        let ns = ns.max(1);
        self.latest_ns = ns;
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns, self.min_ns) = (ns, ns / 2, ns);
            return;
        }
        self.min_ns = self.min_ns.min(ns);
        let error = self.smoothed_ns.abs_diff(ns);
        self.variation_ns = (3 * self.variation_ns + error) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + ns) / 8;
    }

    /// The timer expired: it waits twice as long.
    pub fn back_off(&mut self) {
        self.backoff += 1;
    }

    /// New data was acknowledged.
    pub fn reset_backoff(&mut self) {
        self.backoff = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_round_trip_and_backs_off() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout_ns(), INITIAL_NS);
        for _ in 0..100 {
            rtt.sample(10_000_000);
        }
        assert_eq!((rtt.smoothed_ns(), rtt.timeout_ns()), (10_000_000, 210_000_000));
        rtt.back_off();
        assert_eq!(rtt.timeout_ns(), 420_000_000);
        rtt.reset_backoff();
        rtt.sample(500_000_000);
        assert!(rtt.timeout_ns() > 210_000_000 && rtt.min_ns() == 10_000_000);
    }
}
