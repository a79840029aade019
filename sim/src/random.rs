//! Randomness from a seed: the only one the simulator has.

/// splitmix64 (Steele, Lea and Flood, OOPSLA 2014): one word of state, and any seed is a good one.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator; the same seed gives the same numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// A generator of its own for one purpose, so that drawing more for another does not change
    /// what it gives.
    #[must_use]
    pub fn split(&mut self) -> Random {
        Random(self.word())
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        let span = u128::from(high - low) + 1;
        low + ((u128::from(self.word()) * span) >> 64) as u64
    }

    /// Whether an event of this probability, in millionths, happens.
    pub fn happens_ppm(&mut self, ppm: u32) -> bool {
        self.range(0, 999_999) < u64::from(ppm)
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.range(0, items.len() as u64 - 1) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_ranges_hold_and_are_filled() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| random.range(3, 7)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        for n in 3..=7 {
            let seen = draw(1).iter().filter(|&&x| x == n).count();
            assert!((140..260).contains(&seen), "{n} drawn {seen} times of 1000");
        }
        assert!(draw(1).iter().all(|n| (3..=7).contains(n)));
    }
}
