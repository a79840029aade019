//! Stretch: what some senders of an endpoint leave is the others'.
//!
//! Max-min, a level for all who want more than that, is right for senders that send what they are
//! told. TCP connections do not: each now and then loses something and is slow for some round
//! trips, or has nothing to send, for too short a time to be taken for one that wants less. With
//! five of them, half of an endpoint's share was left to nobody (a shuffle on links of 30 Mbit/s:
//! 11 of 22 Mbit/s), although each wanted more.
//!
//! So where less than an endpoint's share arrives while its senders are limited, and there is room
//! on the link, the level they are told is stretched, ever more while it is so, and as soon as more
//! arrives, by as much less. RCP's rate (Dukkipati 2008), too, follows what arrives. Senders that
//! send what they are told have no stretch. If all send what a stretched level allows, that counts
//! as a flood that begins, for as long as a word takes to them. On a host that hears more than
//! [`super::FEW_PAIRS`] senders there is none: their hosts hear of a change after up to 100 ms, and
//! follow each other around the share instead of finding it (`scale` was 2.8 % off).

/// What is no stretch, how far it goes (in 45 ms), and in how long it grows by a factor of e.
const ONE: u64 = 1 << 16;
const MOST: u64 = 4 * ONE;
pub(super) const GROWS_NS: u64 = 32_000_000;
/// An endpoint uses its share while no more than this part of it (one in) is missing.
const USED_PART: u64 = 16;

/// What the level of an endpoint's limited senders is multiplied with, in 2^-16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stretch(u64);

impl Default for Stretch {
    fn default() -> Stretch {
        Stretch(ONE)
    }
}

impl Stretch {
    /// Of `share` arrives `slow`, and at this moment `arrives`. Grows as in `growing_ns`.
    pub fn follow(&mut self, arrives: u64, slow: u64, share: u64, growing_ns: u64) {
        if arrives > share {
            self.0 = (u128::from(self.0) * u128::from(share) / u128::from(arrives)) as u64;
        } else if !is_used(share, slow) {
            self.0 += self.0 * growing_ns.min(GROWS_NS) / GROWS_NS;
        }
        self.0 = self.0.clamp(ONE, MOST);
    }

    /// Whether there is any.
    pub fn is_some(self) -> bool {
        self.0 > ONE
    }

    /// What senders are told whose level is `level`; none needs more than the `share`.
    pub fn of(self, level: u64, share: u64) -> u64 {
        let stretched = (u128::from(level) * u128::from(self.0)) >> ONE.trailing_zeros();
        (stretched as u64).min(share).max(level)
    }
}

/// Whether as much arrives as the share, or nearly.
pub(super) fn is_used(share: u64, slow: u64) -> bool {
    slow >= share - share / USED_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;
    const MS: u64 = 1_000_000;

    /// After so many ms of an endpoint for which this arrives, of 400 Mbit/s: what each of four
    /// senders is told.
    fn told(arrives: u64, ms: u64, mut stretch: Stretch) -> (u64, Stretch) {
        (0..ms).for_each(|_| stretch.follow(arrives * MBIT, arrives * MBIT, 400 * MBIT, MS));
        (stretch.of(100 * MBIT, 400 * MBIT) / MBIT, stretch)
    }

    #[test]
    fn what_is_left_is_the_others_and_no_longer_than_it_is_left() {
        let (level, none) = told(390, 1000, Stretch::default());
        assert_eq!(level, 100, "all is used");
        let (level, some) = told(200, 16, none);
        assert!((150..180).contains(&level), "{level}");
        let (level, much) = told(200, 1000, some);
        assert_eq!(level, 400, "no more than its share");
        let (level, less) = told(800, 1, much);
        assert_eq!(level, 200, "twice as much as there is");
        assert_eq!(told(400, 1000, less).0, 200, "now it is right");
        assert_eq!(told(1000, 3, less).0, 100);
    }

    #[test]
    fn nothing_grows_where_it_must_not_and_nothing_overflows() {
        let mut stretch = Stretch::default();
        stretch.follow(0, 0, 400, 0);
        assert_eq!(stretch, Stretch::default());
        stretch.follow(u64::MAX, 0, 0, u64::MAX);
        stretch.follow(0, 0, u64::MAX, u64::MAX);
        assert_eq!(stretch.of(u64::MAX, u64::MAX), u64::MAX);
    }
}
