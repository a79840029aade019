//! What strangers cannot foresee: hashes under a secret key, and dice.

use siphasher::sip::SipHasher13;
use std::hash::BuildHasher;

/// Builds hashers under one secret key.
#[derive(Clone, Copy, Debug)]
pub struct Keyed(u64, u64);

impl Keyed {
    /// One that follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Keyed {
        Keyed(seed, seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15)
    }
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}

/// Throws the dice: splitmix64 (Steele, Lea and Flood, OOPSLA 2014), which is enough for
/// independent losses and marks.
pub(crate) fn dice(state: &mut u64) -> u32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (z >> 32) as u32
}
