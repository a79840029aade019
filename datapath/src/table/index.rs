//! The index of a table: from a hash to the places of entries.
//!
//! A bucket is a cache line with twelve places, each with one byte of the hash and the number of an
//! entry. An entry that finds its bucket full goes to another, in steps that its hash determines,
//! and each bucket that it went past counts it: a search ends at a bucket that nobody went past.

/// Places of a bucket.
const PLACES: usize = 12;
/// Entries that buckets are made for on average: then one bucket in a hundred is full.
const USUAL: u32 = 6;
/// Count of those that went past a bucket which is not taken back any more.
const STUCK: u8 = u8::MAX;

/// One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket {
    entries: [u32; PLACES],
    /// A byte of each entry's hash; 0 where the place is free.
    tags: [u8; PLACES],
    /// How many entries went past it; [`STUCK`] where it lost count.
    passed: u8,
}

const _: () = assert!(size_of::<Bucket>() == 64);

impl Bucket {
    const EMPTY: Bucket = Bucket { entries: [0; PLACES], tags: [0; PLACES], passed: 0 };

    /// The places whose byte is `tag`, those of a half at once: the high bit of each place's eight.
    /// After one that is, another may be named that is not (Mycroft 1987).
    #[inline]
    fn alike(&self, tag: u8) -> [u64; 2] {
        const ONES: u64 = u64::from_le_bytes([1; 8]);
        const HIGH: u64 = ONES << 7;
        let tags = ONES * u64::from(tag);
        let [a, b, c, d, e, f, g, h, i, j, k, l] = self.tags;
        let half = |bytes: [u8; 8]| {
            let differ = u64::from_le_bytes(bytes) ^ tags;
            differ.wrapping_sub(ONES) & !differ & HIGH
        };
        [half([a, b, c, d, e, f, g, h]), half([i, j, k, l, 0, 0, 0, 0]) & (HIGH >> 32)]
    }
}

fn buckets_for(entries: u32) -> usize {
    entries.div_ceil(USUAL).next_power_of_two() as usize
}

/// See the module.
#[derive(Debug)]
pub(super) struct Index {
    /// A power of two of them.
    buckets: Vec<Bucket>,
}

impl Index {
    /// Most entries of an index: their numbers, and twice as many places, count in 32 bits.
    pub(super) const MOST: u32 = 1 << 28;

    /// An empty index for up to `entries`.
    pub(super) fn new(entries: u32) -> Index {
        Index { buckets: vec![Bucket::EMPTY; buckets_for(entries)] }
    }

    /// Memory for an index of so many, without buckets yet: they are made by [`Index::make`].
    pub(super) fn unmade(entries: u32) -> Index {
        Index { buckets: Vec::with_capacity(buckets_for(entries)) }
    }

    /// Makes some more of the buckets of an index for so many entries. How many were missing.
    pub(super) fn make(&mut self, entries: u32, most: usize) -> usize {
        let missing = buckets_for(entries).saturating_sub(self.buckets.len());
        self.buckets.extend(std::iter::repeat_n(Bucket::EMPTY, missing.min(most)));
        missing
    }

    /// Memory of one for so many, in bytes.
    pub(super) fn bytes_of(entries: u32) -> u64 {
        buckets_for(entries) as u64 * size_of::<Bucket>() as u64
    }

    /// Entries that it is made for.
    pub(super) fn room(&self) -> u32 {
        self.buckets.len() as u32 * USUAL
    }

    #[inline]
    pub(super) fn warm(&self, hash: u64) -> u32 {
        u32::from(self.buckets[Walk::new(hash, self.buckets.len()).at].passed)
    }

    /// An entry of the first bucket that may have this hash.
    #[inline]
    pub(super) fn likely(&self, hash: u64) -> Option<u32> {
        let bucket = &self.buckets[Walk::new(hash, self.buckets.len()).at];
        let [low, high] = bucket.alike(tag(hash));
        let at = if low != 0 { low.trailing_zeros() / 8 } else { 8 + high.trailing_zeros() / 8 };
        bucket.entries.get(at as usize).copied()
    }

    /// The entry with this hash that is the `same`.
    #[inline]
    pub(super) fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        let tag = tag(hash);
        let mut walk = Walk::new(hash, self.buckets.len());
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[walk.at];
            for (mut alike, first) in bucket.alike(tag).into_iter().zip([0, 8]) {
                while alike != 0 {
                    // A byte may be wrongly called alike where the one below it is: `same` tells.
                    let entry = bucket.entries[(first + alike.trailing_zeros() as usize / 8) % PLACES];
                    if same(entry) {
                        return Some(entry);
                    }
                    alike &= alike - 1;
                }
            }
            if bucket.passed == 0 {
                return None;
            }
            walk.step();
        }
        None
    }

    /// Adds an entry. The index must be made for as many as it then has.
    pub(super) fn insert(&mut self, hash: u64, entry: u32) {
        let mut walk = Walk::new(hash, self.buckets.len());
        for _ in 0..self.buckets.len() {
            let bucket = &mut self.buckets[walk.at];
            if let Some(place) = bucket.tags.iter().position(|&tag| tag == 0) {
                (bucket.tags[place], bucket.entries[place]) = (tag(hash), entry);
                return;
            }
            bucket.passed = bucket.passed.saturating_add(1);
            walk.step();
        }
        debug_assert!(false, "half of the places are free");
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, hash: u64, entry: u32) {
        let tag = tag(hash);
        let mut walk = Walk::new(hash, self.buckets.len());
        for _ in 0..self.buckets.len() {
            let bucket = &mut self.buckets[walk.at];
            let places = bucket.tags.iter().zip(&bucket.entries);
            if let Some(place) = places.clone().position(|found| found == (&tag, &entry)) {
                bucket.tags[place] = 0;
                return;
            }
            // It went past here.
            if bucket.passed != STUCK {
                bucket.passed -= 1;
            }
            walk.step();
        }
        debug_assert!(false, "the entry was inserted");
    }
}

/// The buckets in which an entry may be, in order.
struct Walk {
    at: usize,
    step: usize,
    mask: usize,
}

impl Walk {
    #[inline]
    fn new(hash: u64, buckets: usize) -> Walk {
        let mask = buckets - 1;
        // An odd step meets every bucket of a power of two.
        Walk { at: hash as usize & mask, step: (hash >> 32) as usize | 1, mask }
    }

    #[inline]
    fn step(&mut self) {
        self.at = self.at.wrapping_add(self.step) & self.mask;
    }
}

/// The byte that is compared first; never 0, which marks a free place.
#[inline]
fn tag(hash: u64) -> u8 {
    ((hash >> 56) as u8).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_entries_one_in_a_hundred_is_not_in_its_first_bucket() {
        let mut index = Index::new(60_000);
        let mut hash = 1u64;
        let mut past = 0;
        for entry in 0..index.room() {
            hash = hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mixed = (hash ^ hash >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let home = Walk::new(mixed ^ mixed >> 31, index.buckets.len()).at;
            past += u32::from(index.buckets[home].tags.iter().all(|&tag| tag != 0));
            index.insert(mixed ^ mixed >> 31, entry);
        }
        assert!(past * 100 <= index.room(), "{past} of {}", index.room());
    }

    #[test]
    fn entries_with_one_hash_are_found_and_removed() {
        // As if somebody knew the key: slow, and still right.
        let mut index = Index::new(1000);
        for entry in 0..1000 {
            index.insert(7 << 56 | 5, entry);
        }
        for entry in (0..1000).rev() {
            assert_eq!(index.find(7 << 56 | 5, |found| found == entry), Some(entry));
            index.remove(7 << 56 | 5, entry);
            assert_eq!(index.find(7 << 56 | 5, |found| found == entry), None);
        }
        assert!(index.buckets.iter().all(|bucket| bucket.tags == [0; PLACES]));
    }
}
