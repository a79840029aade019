//! A histogram of durations with a bounded relative error, cheap enough to be fed at every turn of
//! the loop.
//!
//! Buckets are log-linear: each power of two of nanoseconds is cut into eight, so that a percentile
//! is at most an eighth too high (the idea of HdrHistogram). Counts never age; who wants a window
//! takes the difference of two.

/// Buckets in each power of two, as a power of two.
const FINE: u32 = 3;
/// Largest power of two that is told apart, in nanoseconds: 2^40 ns are 18 minutes.
const TOP: u32 = 40;
const BUCKETS: usize = ((TOP - FINE + 2) << FINE) as usize;

/// Counts of durations in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS], max: 0 }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.max = self.max.max(ns);
    }

    /// The longest duration.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The duration that `part` of a thousand durations do not exceed (rounded up to a bucket's
    /// end); 0 where there are none.
    #[must_use]
    pub fn permille(&self, part: u64) -> u64 {
        let total: u64 = self.counts.iter().sum();
        let mut left = (total * part).div_ceil(1000);
        for (index, &count) in self.counts.iter().enumerate() {
            if left <= count && total > 0 {
                return last_of(index).min(self.max);
            }
            left -= count;
        }
        0
    }

    /// The buckets that have counts, each with the longest duration that falls into it.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter().enumerate().filter(|&(_, &count)| count > 0).map(|(i, &count)| (last_of(i), count))
    }
}

/// Below 2^FINE each nanosecond has its bucket; above, the first FINE bits behind the leading one
/// choose it.
fn bucket(ns: u64) -> usize {
    let ns = ns.min((1 << (TOP + 1)) - 1);
    if ns < 1 << FINE {
        return ns as usize;
    }
    let power = ns.ilog2();
    let step = (ns >> (power - FINE)) as usize - (1 << FINE);
    (((power - FINE + 1) as usize) << FINE) + step
}

fn last_of(bucket: usize) -> u64 {
    if bucket < 1 << FINE {
        return bucket as u64;
    }
    let power = (bucket >> FINE) as u32 + FINE - 1;
    let step = (bucket & ((1 << FINE) - 1)) as u64;
    (((1 << FINE) + step + 1) << (power - FINE)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_a_bucket_that_ends_at_most_an_eighth_above_it() {
        for ns in (0..2000).chain((1..TOP).flat_map(|p| [(1u64 << p) - 1, 1 << p, (1 << p) + 1])) {
            let end = last_of(bucket(ns));
            assert!(end >= ns && end - ns <= ns / 8, "{ns} -> {end}");
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles_are_those_of_the_durations() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.permille(500), 0);
        for ns in 1..=1000u64 {
            histogram.record(ns * 100);
        }
        assert!((50_000..=56_250).contains(&histogram.permille(500)));
        assert!((99_000..=100_000).contains(&histogram.permille(990)));
        assert_eq!(histogram.permille(1000), 100_000);
        assert_eq!(histogram.max(), 100_000);
        assert_eq!(histogram.buckets().map(|(_, n)| n).sum::<u64>(), 1000);
    }
}
