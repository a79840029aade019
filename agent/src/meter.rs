//! Rates that are measured, over two times.
//!
//! A meter is fed in samples in which something came; what it would have forgotten in those between
//! is made up for at once.

/// Time between two samples, in nanoseconds: some times the round trip of a data centre, and with
/// it half of what a victim waits.
pub const SAMPLE_NS: u64 = 1_000_000;
/// Over what a flood is recognised: two samples.
pub(super) const FAST_NS: u64 = 2_000_000;
/// Over what steady traffic is measured: at 10 Mbit/s 13 frames, enough for shares of a hundred
/// endpoints, and short enough to hand over what an endpoint leaves within some tens of
/// milliseconds.
pub(super) const SLOW_NS: u64 = 16_000_000;

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

    /// Nothing came for `silent_ns`: the same as that many samples of nothing.
    pub fn rest(&mut self, silent_ns: u64) {
        let (samples, rest_ns) = (silent_ns / SAMPLE_NS, silent_ns % SAMPLE_NS);
        let Some(&left) = LEFT.get(samples as usize) else {
            *self = Meter::default();
            return;
        };
        self.fast = self.fast.checked_shr(samples as u32).unwrap_or(0);
        self.slow = ((u128::from(self.slow) * u128::from(left)) >> LEFT_BITS) as u64;
        if rest_ns > 0 {
            self.feed(0, rest_ns);
        }
    }

    /// The rate that is to be reckoned with: the slow one, or the fast one where that is more by
    /// more than `noise`.
    pub fn estimate(&self, noise: u64) -> u64 {
        self.slow.max(self.fast.saturating_sub(noise))
    }
}

/// Fractional bits of [`LEFT`].
const LEFT_BITS: u32 = 31;

/// What is left of the slow rate after so many samples of nothing. After these it is under 0.03 %.
static LEFT: [u32; 128] = {
    assert!(FAST_NS == 2 * SAMPLE_NS, "each sample halves the fast rate");
    let (mut left, mut at) = ([1 << LEFT_BITS; 128], 1);
    while at < left.len() {
        left[at] = (left[at - 1] as u64 * (SLOW_NS - SAMPLE_NS) / SLOW_NS) as u32;
        at += 1;
    }
    left
};

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

    /// The same for a sample in which `counted` bytes were seen, of which no more than `possible`
    /// can have arrived: what a stall piled up is not the rate of the sample after it.
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
    fn a_rest_is_samples_of_nothing() {
        let meter = Meter { fast: 900_000_000, slow: 700_000_000 };
        for samples in [1, 2, 7, 30, 127, 1000] {
            let (mut fed, mut rested) = (meter, meter);
            (0..samples).for_each(|_| fed.feed(0, SAMPLE_NS));
            rested.rest(samples * SAMPLE_NS);
            let is_near = |a: u64, b: u64| a.abs_diff(b) <= 1 + meter.slow / 1000;
            assert!(is_near(fed.fast, rested.fast) && is_near(fed.slow, rested.slow), "{fed:?}, {rested:?}");
        }
        let (mut fed, mut rested) = (meter, meter);
        fed.feed(0, SAMPLE_NS);
        fed.feed(0, SAMPLE_NS / 4);
        rested.rest(SAMPLE_NS + SAMPLE_NS / 4);
        assert_eq!((fed.fast, rested.fast), (393_750_000, 393_750_000));
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
