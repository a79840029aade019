//! Cycle: the limited senders of an endpoint take turns.
//!
//! They have the same rate, so each lets one frame go in the same time, a *cycle*, and whoever
//! begins near another stays near it: with random beginnings, in one of ten cases six of fifteen
//! meet in the network's queue in each cycle, and what comes between them, of a victim within its
//! guarantee, is late by some per cent of 5 ms. So each new limit is told with a *phase*: how much
//! of a cycle its sender is to wait before the first frame. It is reckoned from where the cycle
//! stands here when the word goes out, so senders that are told at different times are spread too,
//! and from when the word arrives there, since clocks of hosts do not agree. What the way to one
//! takes longer than to another shifts its turn, by little where cycles are long; where they are
//! short, a frame is nothing. Who is raised or lowered keeps its part of the cycle
//! ([`datapath::pair`]).
//!
//! The places are multiples of the golden ratio (Knuth, vol. 3, 6.4: each falls into one of the
//! largest gaps), so it need not be known how many there will be.

use super::pair::FRAME_BITS;
use datapath::units::Instant;

/// The golden ratio's fractional part, of 2^16.
const GOLDEN: u16 = 40_503;
/// Bits that are left out of a rate, and fractional bits of a cycle, so that a product has 60 bits.
const RATE_BITS: u32 = 10;
const PART_BITS: u32 = 16;
/// Nanoseconds x bits a second, less what is left out, of a part of a cycle.
const PART: u64 = (1_000_000_000 * FRAME_BITS) >> (RATE_BITS + PART_BITS);
/// After that long nobody is where he began.
const LONGEST_NS: u64 = 1 << 30;

/// Where the limited senders of an endpoint are in their cycle.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cycle {
    /// How far it was, of 2^16, and when.
    part: u16,
    at: Instant,
    /// What each of them sends.
    rate: u64,
    /// The place of the last one.
    place: u16,
}

impl Cycle {
    /// From now on each sends `rate`, in bits a second.
    pub fn turn(&mut self, now: Instant, rate: u64) {
        if rate != self.rate {
            (self.part, self.at, self.rate) = (self.part(now), now, rate);
        }
    }

    /// The place of one more.
    pub fn join(&mut self) -> u16 {
        self.place = self.place.wrapping_add(GOLDEN);
        self.place
    }

    /// How much of a cycle, of 256, whoever has this place is to wait if it begins now.
    pub fn phase(&self, now: Instant, place: u16) -> u8 {
        (place.wrapping_sub(self.part(now)) >> 8) as u8
    }

    fn part(&self, now: Instant) -> u16 {
        let gone = now.since(self.at).min(LONGEST_NS) * (self.rate >> RATE_BITS) / PART;
        self.part.wrapping_add(gone as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;

    #[test]
    fn who_is_told_later_still_has_a_turn_of_its_own() {
        let (mut cycle, start) = (Cycle::default(), Instant(5_000_000_000));
        // Whose first frame goes when, as parts of a cycle of 256 since the start.
        let mut firsts = Vec::new();
        for n in 0..15u64 {
            // Some at once, others 1 and 2 ms later, while all get slower.
            let (rate, ms) = ([60, 30, 20][n as usize / 5] * MBIT, n / 5);
            let now = start.plus_ns(ms * 1_000_000);
            cycle.turn(now, rate);
            let gone_bits = [0, 60_000, 90_000][ms as usize];
            let place = cycle.join();
            firsts.push((u64::from(cycle.phase(now, place)) + gone_bits * 256 / FRAME_BITS) % 256);
        }
        firsts.sort_unstable();
        let gaps: Vec<u64> = (0..15).map(|n| (firsts[(n + 1) % 15] + 256 - firsts[n]) % 256).collect();
        assert!(gaps.iter().all(|gap| (7..=25).contains(gap)), "{gaps:?}: an even one is 17");
    }

    #[test]
    fn a_cycle_is_a_frame_and_forty_years_are_no_harm() {
        let mut cycle = Cycle::default();
        cycle.turn(Instant(1), 12_304 * 1000);
        let place = cycle.join();
        let wait = |ns| cycle.phase(Instant(1 + ns), place);
        assert_eq!(wait(1_000_000).abs_diff(wait(0)), 0);
        assert_eq!(wait(0).wrapping_sub(wait(250_000)), 64);
        let (a, b) = (wait(1 << 60), wait(u64::MAX - 1));
        assert_eq!(a, b);
        cycle.turn(Instant(u64::MAX), 1 << 40);
    }
}
