//! RED (Floyd and Jacobson 1993): signals with a probability that rises with the average queue.
//!
//! The average moves by `2^-weight_log` of the difference at each arriving segment; over an idle
//! time it falls as if so many segments of [`IDLE_SEGMENT`] had met an empty queue. Between the
//! thresholds the probability rises to the greatest; behind a signal the next ones are spread
//! evenly (the paper's method 2). Beyond the upper threshold everything is signalled, or in gentle
//! mode (Floyd 2000) the probability rises on, to one at twice that threshold. All numbers are
//! integers: the average has 16 fractional bits, probabilities 32.

use crate::units::{Instant, Rate};

/// Wire bytes of the segments whose number an idle time is counted in (`avpkt` of Linux's tc-red,
/// as its manual has it).
const IDLE_SEGMENT: u64 = 1000;
/// Wire bytes of the longest usual segment, to which byte mode scales: an MTU of 1500.
const FULL_SEGMENT: u64 = 1538;
/// Fractional bits of the average.
const AVERAGE_BITS: u32 = 16;
/// A probability of one.
const ONE: u64 = 1 << 32;
const MILLION: u64 = 1_000_000;

/// Parameters of RED.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Red {
    /// Average queue from which on signals are given, in wire bytes.
    pub min_bytes: u32,
    /// Average queue at which the probability is the greatest, in wire bytes; above the first.
    pub max_bytes: u32,
    /// That greatest probability, in millionths.
    pub probability_ppm: u32,
    /// Weight of one segment in the average, as the negative logarithm to the base of two.
    pub weight_log: u8,
    /// Whether the probability rises on from there, instead of to one at once.
    pub gentle: bool,
    /// Whether the probability is scaled by the segment's size. RFC 7141 advises against it.
    pub bytes: bool,
}

impl Red {
    /// The settings of vCC's experiments (Cronkite-Ratcliff et al. 2016), of which two are those of
    /// the study that found no gain: what their scripts tell `tc`, and the weight that it makes of
    /// their burst. The queues are of 1 000 000, 400 000 and 400 000 bytes.
    pub const VCC_RED1: Red = Red {
        min_bytes: 90_000,
        max_bytes: 90_001,
        probability_ppm: 1_000_000,
        weight_log: 1,
        gentle: false,
        bytes: false,
    };
    /// See [`Red::VCC_RED1`].
    pub const VCC_RED2: Red =
        Red { min_bytes: 30_000, max_bytes: 90_000, probability_ppm: 20_000, weight_log: 6, ..Red::VCC_RED1 };
    /// See [`Red::VCC_RED1`].
    pub const VCC_RED3: Red = Red { probability_ppm: 1_000_000, ..Red::VCC_RED2 };
    /// The largest `weight_log` that makes sense: a segment in a million.
    pub const MAX_WEIGHT_LOG: u8 = 20;

    /// The probability at this average and for a segment of so many wire bytes, before it is
    /// spread; [`ONE`] is certain.
    fn probability(&self, average: u64, wire: u32) -> u64 {
        let [min, max] = [self.min_bytes, self.max_bytes].map(|bytes| u64::from(bytes) << AVERAGE_BITS);
        let greatest = (u64::from(self.probability_ppm.min(MILLION as u32)) << 32) / MILLION;
        let p = if average < min {
            0
        } else if average < max {
            part(greatest, average - min, max - min)
        } else if self.gentle && average < 2 * max {
            greatest + part(ONE - greatest, average - max, max)
        } else {
            return ONE;
        };
        if self.bytes { (p * u64::from(wire) / FULL_SEGMENT).min(ONE) } else { p }
    }
}

/// `whole * some / all`, in twice the bits.
fn part(whole: u64, some: u64, all: u64) -> u64 {
    (u128::from(whole) * u128::from(some) / u128::from(all.max(1))) as u64
}

/// What RED keeps of one queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Average {
    /// In bytes, with [`AVERAGE_BITS`] fractional bits.
    pub(super) average: u64,
    /// Segments since the last signal, that one not counted.
    pub(super) since: u32,
}

impl Average {
    /// A segment arrives where `waiting` bytes wait; where that is none, since `empty_since`.
    /// Whether it is signalled; `dice` is random.
    pub fn arrives(
        &mut self,
        red: &Red,
        rate: Rate,
        (now, empty_since): (Instant, Option<Instant>),
        (waiting, wire): (u64, u32),
        dice: u32,
    ) -> bool {
        match empty_since {
            Some(since) => self.decay(red, rate.bytes_in(now.since(since)) / IDLE_SEGMENT),
            None => {
                let (queue, weight) = (waiting << AVERAGE_BITS, red.weight_log);
                if queue >= self.average {
                    self.average += (queue - self.average) >> weight;
                } else {
                    self.average -= (self.average - queue) >> weight;
                }
            }
        }
        let p = red.probability(self.average, wire);
        if p == 0 {
            self.since = 0;
            return false;
        }
        self.since = self.since.saturating_add(1);
        // p / (1 - since * p) of the paper, without the division.
        let left = ONE.saturating_sub(p.saturating_mul(u64::from(self.since - 1)));
        let is_signalled = p >= left || u128::from(dice) * u128::from(left) < u128::from(p) << 32;
        if is_signalled {
            self.since = 0;
        }
        is_signalled
    }

    /// So many segments met an empty queue: `(1 - weight)^segments`, by squaring.
    fn decay(&mut self, red: &Red, segments: u64) {
        const UNIT: u64 = 1 << 32;
        let (mut base, mut power, mut exponent) = (UNIT - (UNIT >> red.weight_log), UNIT, segments);
        while exponent > 0 && power > 0 {
            if exponent & 1 == 1 {
                power = part(power, base, UNIT);
            }
            base = part(base, base, UNIT);
            exponent >>= 1;
        }
        self.average = part(self.average, power, UNIT);
    }

    /// The average queue, in bytes.
    pub fn bytes(&self) -> u64 {
        self.average >> AVERAGE_BITS
    }
}
