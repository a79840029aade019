//! How long frames waited in their queues: a histogram for each endpoint and direction.
//!
//! Buckets are powers of two of nanoseconds. Where a frame of each of a hundred thousand endpoints
//! comes in turn, none of their records is cached, and looking at one more took 40 % of the
//! scheduler's time. So each lane counts in bytes of its own ([`Waits`]), which lie where it is
//! looked at anyway, and only every 256th frame of a bucket goes to the record ([`Sojourn`]). What
//! was dropped while it waited, and what did not have to wait at all (frames between neighbours
//! whom nothing limits, policed ingress), is not counted. Counts never age; who wants a window
//! takes the difference of two.

use crate::count::count_on;

/// Number of buckets: all but the last one have an end.
const BUCKETS: usize = 16;
/// The end of the first bucket, as a power of two of nanoseconds: 33 us, about what a loop takes to
/// come round. The last end is 0.54 s.
const FIRST: u32 = 15;
/// Unit of the sum, as a power of two of nanoseconds. Where a thousand frames wait all the time,
/// nanoseconds would overflow within months.
const UNIT: u32 = 10;
/// What overflows from a byte.
const CARRY: u64 = 1 << u8::BITS;

/// What a lane has counted and not handed on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    /// The sum of all waits, in units of 2^[`UNIT`] ns.
    total: u64,
    max_ns: u64,
    counts: [u8; BUCKETS],
}

impl Waits {
    /// Counts a frame that waited for `ns`. The bucket whose byte overflows, if one does, is to be
    /// told to [`Sojourn::carry`].
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) -> Option<u8> {
        // The lowest bit keeps the logarithm from zero and changes no other.
        let bucket = ((ns >> (FIRST - 1) | 1).ilog2() as usize).min(BUCKETS - 1);
        self.total = self.total.wrapping_add(ns >> UNIT);
        self.max_ns = self.max_ns.max(ns);
        self.counts[bucket] = self.counts[bucket].wrapping_add(1);
        (self.counts[bucket] == 0).then_some(bucket as u8)
    }

    /// Counts frames that did not wait, fewer than 256.
    pub(crate) fn record_none(&mut self, frames: u32) -> Option<u8> {
        debug_assert!(u64::from(frames) < CARRY);
        let (count, is_full) = self.counts[0].overflowing_add(frames as u8);
        self.counts[0] = count;
        is_full.then_some(0)
    }

    /// The longest wait.
    pub(crate) fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Continues from another lane's longest wait.
    pub(crate) fn restore_max(&mut self, max_ns: u64) {
        self.max_ns = self.max_ns.max(max_ns);
    }

    /// Adds what was not handed on to `all`.
    pub(crate) fn add_to(&self, all: &mut Sojourn) {
        all.total = all.total.wrapping_add(self.total);
        all.counts.iter_mut().zip(self.counts).for_each(|(count, rest)| *count += u64::from(rest));
    }
}

/// Waits of the frames that left the queues of one endpoint in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sojourn {
    total: u64,
    counts: [u64; BUCKETS],
}

impl Sojourn {
    /// Where bucket `bucket` ends, in nanoseconds: what is in it waited less. `None` for the last
    /// one.
    #[must_use]
    pub fn end_ns(bucket: usize) -> Option<u64> {
        (bucket + 1 < BUCKETS).then(|| 1 << (FIRST as usize + bucket))
    }

    /// Frames by bucket, the shortest waits first.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The sum of all waits, each rounded down to whole microseconds of 1024 ns.
    #[must_use]
    pub fn total_us(&self) -> u64 {
        self.total
    }

    /// From plain numbers, as [`Sojourn::total_us`] and [`Sojourn::counts`] give them; what is
    /// missing is zero, and what is too many is left out.
    #[must_use]
    pub fn from_parts(total_us: u64, counts: &[u64]) -> Sojourn {
        let mut sojourn = Sojourn { total: total_us, ..Sojourn::default() };
        sojourn.counts.iter_mut().zip(counts).for_each(|(count, &from)| *count = from);
        sojourn
    }

    /// The byte of a bucket has overflowed.
    #[cold]
    pub(crate) fn carry(&mut self, bucket: u8) {
        self.counts[usize::from(bucket)] += CARRY;
    }

    /// Lets the counts continue from others.
    pub(crate) fn count_on(&mut self, from: &Sojourn) {
        count_on(&mut self.total, from.total);
        for (count, &from) in self.counts.iter_mut().zip(&from.counts) {
            count_on(count, from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket_of(ns: u64) -> usize {
        let (mut waits, mut all) = (Waits::default(), Sojourn::default());
        assert_eq!(waits.record(ns), None, "nothing overflows yet");
        waits.add_to(&mut all);
        assert_eq!((all.counts().iter().sum::<u64>(), all.total_us(), waits.max_ns()), (1, ns >> 10, ns));
        all.counts().iter().position(|&count| count == 1).unwrap()
    }

    #[test]
    fn every_wait_is_in_the_bucket_that_ends_above_it() {
        for power in 0..64 {
            for ns in [(1u64 << power) - 1, 1 << power, (1 << power) + 1, u64::MAX >> (63 - power)] {
                let bucket = bucket_of(ns);
                assert!(Sojourn::end_ns(bucket).is_none_or(|end| ns < end), "{ns}");
                assert!(bucket == 0 || Sojourn::end_ns(bucket - 1).is_some_and(|end| ns >= end), "{ns}");
            }
        }
        assert_eq!((Sojourn::end_ns(0), Sojourn::end_ns(BUCKETS - 2)), (Some(1 << 15), Some(1 << 29)));
    }

    #[test]
    fn bytes_overflow_into_the_record() {
        let (mut waits, mut all) = (Waits::default(), Sojourn::default());
        for n in 1..=1000u64 {
            for ns in [40_000, 1_000_000_000] {
                if let Some(full) = waits.record(ns) {
                    all.carry(full);
                }
            }
            let mut sum = all;
            waits.add_to(&mut sum);
            assert_eq!((sum.counts()[1], sum.counts()[BUCKETS - 1]), (n, n));
        }
    }

    #[test]
    fn counts_go_on_from_plain_numbers() {
        let known = Sojourn::from_parts(9, &[1, 2]);
        let mut sojourn = Sojourn::from_parts(known.total_us(), known.counts());
        assert_eq!(sojourn, known);
        sojourn.count_on(&known);
        assert_eq!((&sojourn.counts()[..3], sojourn.total_us()), (&[2, 4, 0][..], 18));
        sojourn.count_on(&Sojourn::from_parts(u64::MAX, &[u64::MAX; 40]));
        let most = sojourn.counts()[3];
        sojourn.carry(3);
        assert_eq!(sojourn.counts()[3], most + 256, "there is room to count on");
    }
}
