//! Receivers with several addresses: each is told its part.
//!
//! A switch holds each pair of addresses by itself, so what is told for each address of a receiver
//! a sender may send as often as it has addresses there. Most use one. So at first each is told all
//! of it; where more arrives than may, each is told as much less, down to an even part for each;
//! and where it is not used up, that grows back.

use super::super::leases::SLOWEST;
use super::super::meter::Meter;
use super::pair::{FRAME_SLOW, GRACE_NS};
use super::stretch::GROWS_NS;
use datapath::units::Instant;

/// All of it.
const ONE: u32 = 1 << 16;
/// More than may by this part (one in), and a frame, is too much; less by the other is not used up.
const TOO_MUCH_PART: u64 = 32;
const LEFT_PART: u64 = 16;
/// A change by this part of what was told (one in) is told.
const TOLD_PART: u32 = 16;

/// What each address of the receiver is told of what a sender may send to it, in 2^-16.
#[derive(Clone, Copy, Debug)]
pub(super) struct Each {
    part: u32,
    told: u32,
    /// When what is told for each changed last, and up to when it has grown.
    told_at: Instant,
    grown_at: Instant,
}

impl Each {
    pub fn new(now: Instant) -> Each {
        Each { part: ONE, told: ONE, told_at: now, grown_at: now }
    }

    /// What each address is told of `rate`.
    pub fn of(&self, rate: u64) -> u64 {
        if self.part == ONE {
            return rate;
        }
        (((u128::from(rate) * u128::from(self.part)) >> ONE.trailing_zeros()) as u64).max(SLOWEST.0)
    }

    /// It is told now.
    pub fn tell(&mut self, now: Instant) {
        if self.told != self.part {
            (self.told, self.told_at) = (self.part, now);
        }
    }

    /// Whether it is so much less than was told that this does not wait.
    pub fn is_cut(&self) -> bool {
        self.part < self.told - self.told / TOLD_PART
    }

    /// Whether it is so much more that it is to be told.
    pub fn is_raised(&self) -> bool {
        self.part > self.told + self.told / TOLD_PART
    }

    /// Follows what arrives of what is `allowed` to all addresses together. True where each is to
    /// be told something else.
    pub fn follow(&mut self, now: Instant, meter: &Meter, allowed: u64, addresses: u32) -> bool {
        let elapsed_ns = now.since(std::mem::replace(&mut self.grown_at, now)).min(GROWS_NS);
        // What was told last does not show yet.
        if now.since(self.told_at) <= GRACE_NS || self.is_cut() {
            return self.is_cut();
        }
        // After a flood the slow rate is late, and the fast one jumps with each frame.
        let (arrives, most) = (meter.slow.min(meter.fast), meter.slow.max(meter.fast));
        if arrives > allowed.saturating_add(allowed / TOO_MUCH_PART).saturating_add(FRAME_SLOW) {
            let part = u128::from(self.part) * u128::from(allowed) / u128::from(arrives);
            self.part = (part as u32).max(ONE / addresses.max(1));
        } else if self.part < ONE && most < allowed - allowed / LEFT_PART {
            let grows = u64::from(self.part) * elapsed_ns / GROWS_NS;
            self.part = self.part.saturating_add(grows as u32).min(ONE);
        }
        self.is_cut() || self.is_raised()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;

    /// What each of four addresses is told of 100 Mbit/s after so many milliseconds, and the most
    /// that arrived in the last of them, where so many are sent to, as much as may be.
    fn told(used: u64, ms: u64, each: &mut Each, from: Instant) -> (u64, u64) {
        let mut arrives = 0;
        for n in 1..=ms {
            let now = Instant(from.0 + n * 1_000_000);
            arrives = used * each.of(100 * MBIT);
            each.follow(now, &Meter { fast: arrives, slow: arrives }, 100 * MBIT, 4);
            if each.is_cut() || each.is_raised() {
                each.tell(now);
            }
        }
        (each.of(100 * MBIT) / MBIT, arrives / MBIT)
    }

    #[test]
    fn each_is_told_as_much_less_as_more_than_one_is_used_and_no_longer() {
        let mut each = Each::new(Instant(0));
        assert_eq!(told(1, 100, &mut each, Instant(0)), (100, 100), "one is used");
        assert_eq!(told(4, 20, &mut each, Instant(100_000_000)).0, 25);
        assert_eq!(told(4, 1000, &mut each, Instant(120_000_000)), (25, 100));
        let (_, arrives) = told(2, 1000, &mut each, Instant(1_120_000_000));
        assert!((93..=110).contains(&arrives), "{arrives}");
        let (_, arrives) = told(1, 1000, &mut each, Instant(2_120_000_000));
        assert!((93..=100).contains(&arrives), "{arrives}");
    }

    #[test]
    fn one_that_takes_no_notice_is_told_no_less_than_an_even_part() {
        let mut each = Each::new(Instant(0));
        for ms in 1..1000 {
            let now = Instant(ms * 1_000_000);
            each.follow(now, &Meter { fast: u64::MAX, slow: u64::MAX }, 100 * MBIT, 4);
            each.tell(now);
        }
        assert_eq!(each.of(100 * MBIT), 25 * MBIT);
    }
}
