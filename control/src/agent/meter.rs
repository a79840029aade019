//! Rates that are measured, over two times.

use super::rate::{FAST_NS, SLOW_NS};

/// A measured rate, in bits a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Meter {
    /// Over about [`FAST_NS`].
    pub fast: u64,
    /// Over about [`SLOW_NS`].
    pub slow: u64,
}

impl Meter {
    /// During the last `span_ns` the rate was `bps`.
    pub fn feed(&mut self, bps: u64, span_ns: u64) {
        self.fast = toward(self.fast, bps, span_ns, FAST_NS);
        self.slow = toward(self.slow, bps, span_ns, SLOW_NS);
    }

    /// The rate that is to be reckoned with: the slow one, or the fast one where that is more by more than `noise`.
    pub fn estimate(&self, noise: u64) -> u64 {
        self.slow.max(self.fast.saturating_sub(noise))
    }
}

/// An exponential average, moved toward `value`, which held for `span_ns`.
pub(super) fn toward(average: u64, value: u64, span_ns: u64, over_ns: u64) -> u64 {
    if span_ns >= over_ns {
        return value;
    }
    // Rates have 39 bits, times 24.
    let part = |difference: u64| difference.saturating_mul(span_ns) / over_ns;
    if value >= average { average + part(value - average) } else { average - part(average - value) }
}

/// Turns bytes of a sample into a rate, with a multiplication.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale(u64);

/// Fractional bits of [`Scale`].
const FRACTION: u32 = 20;

impl Scale {
    /// For a sample of `span_ns`.
    pub fn new(span_ns: u64) -> Scale {
        Scale((8_000_000_000 << FRACTION) / span_ns.max(1))
    }

    /// The same for a sample in which `counted` bytes were seen, of which no more than `possible` can have arrived: what a stall piled up
    /// is not the rate of the sample after it.
    pub fn bounded(self, counted: u64, possible: u64) -> Scale {
        if counted <= possible {
            return self;
        }
        Scale((u128::from(self.0) * u128::from(possible) / u128::from(counted)) as u64)
    }

    /// Bits a second.
    pub fn rate(self, bytes: u64) -> u64 {
        u64::try_from((u128::from(bytes) * u128::from(self.0)) >> FRACTION).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_rates_and_no_more_than_the_link_has() {
        let scale = Scale::new(1_000_000);
        assert_eq!(scale.rate(125_000), 1_000_000_000);
        assert_eq!(scale.bounded(250_000, 125_000).rate(125_000), 500_000_000);
        assert_eq!(scale.bounded(125_000, 125_000).rate(1), 8_000);
    }

    #[test]
    fn averages_follow_and_forget() {
        let mut meter = Meter::default();
        meter.feed(1_000, 1_000_000);
        assert_eq!(meter, Meter { fast: 500, slow: 62 });
        assert_eq!(meter.estimate(100), 400);
        assert_eq!(meter.estimate(1000), 62);
        meter.feed(0, SLOW_NS);
        assert_eq!(meter, Meter::default());
    }
}
