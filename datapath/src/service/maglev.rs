//! The lookup tables that name a connection's candidates without knowing the connection (Maglev,
//! Eisenbud et al. 2016, section 3.4).
//!
//! Each backend has a permutation of the places under a secret key and takes places in turn, as
//! often as its weight says, until none is left. A backend that comes or goes moves little beyond
//! its own places. A second table names another backend at each place.

use std::hash::BuildHasher;

/// Sizes of tables: primes, the first that is at least [`PLACES_EACH`] times the backends.
const SIZES: [u32; 9] = [251, 509, 1021, 2039, 4093, 8191, 16_381, 32_749, 65_521];
/// Places for each backend at least: their shares then differ by 1 % (the paper's figure 11).
const PLACES_EACH: u32 = 100;
/// No backend.
const NOBODY: u8 = u8::MAX;

/// A backend, as the tables see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    /// Its number, below 255.
    pub number: u8,
    /// What it is to all hosts and after every restart: a hash of its address and port.
    pub identity: u64,
    /// Places in proportion to it; 0 for none.
    pub weight: u32,
}

/// Both tables.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lookup {
    places: Vec<[u8; 2]>,
}

impl Lookup {
    /// Tables for `seats`, which are hashed under `keyed`.
    #[must_use]
    pub fn build(seats: &[Seat], keyed: &impl BuildHasher) -> Lookup {
        let mut seats: Vec<Seat> = seats.iter().copied().filter(|seat| seat.weight > 0).collect();
        if seats.is_empty() {
            return Lookup::default();
        }
        // Turns are in the order of identities, which all hosts see alike.
        seats.sort_unstable_by_key(|seat| seat.identity);
        let wanted = seats.len() as u32 * PLACES_EACH;
        let size = SIZES.into_iter().find(|&size| size >= wanted).unwrap_or(SIZES[SIZES.len() - 1]);
        let [first, second] = [0u8, 1].map(|table| fill(&seats, size, |seat| keyed.hash_one((seat.identity, table))));
        let places = first.into_iter().zip(second).enumerate().map(|(place, (first, second))| {
            let second = if second == first { another(&seats, first, place, keyed) } else { second };
            [first, second]
        });
        Lookup { places: places.collect() }
    }

    /// The candidates of a connection with this hash; the same one twice where there is one only,
    /// `None` where there is none.
    #[must_use]
    #[inline]
    pub fn candidates(&self, hash: u64) -> Option<[u8; 2]> {
        if self.places.is_empty() {
            return None;
        }
        // The upper bits, so that what else uses the hash can have the lower ones.
        self.places.get((((hash >> 32) * self.places.len() as u64) >> 32) as usize).copied()
    }

    /// Places of the first table: how many backends share them, and how, is for tests and for what
    /// is shown.
    #[must_use]
    pub fn places(&self) -> &[[u8; 2]] {
        &self.places
    }
}

/// One table: seats take places in turn.
fn fill(seats: &[Seat], size: u32, hash: impl Fn(&Seat) -> u64) -> Vec<u8> {
    struct Filling {
        next: u32,
        step: u32,
        credit: u32,
    }
    let most = seats.iter().map(|seat| seat.weight).max().unwrap_or(1);
    let mut turns: Vec<Filling> = seats
        .iter()
        .map(|seat| {
            let hash = hash(seat);
            Filling { next: (hash as u32) % size, step: ((hash >> 32) as u32) % (size - 1) + 1, credit: 0 }
        })
        .collect();
    let mut places = vec![NOBODY; size as usize];
    let mut left = size;
    loop {
        for (seat, turn) in seats.iter().zip(&mut turns) {
            turn.credit += seat.weight;
            if turn.credit < most {
                continue;
            }
            turn.credit -= most;
            while places[turn.next as usize] != NOBODY {
                turn.next = (turn.next + turn.step) % size;
            }
            places[turn.next as usize] = seat.number;
            left -= 1;
            if left == 0 {
                return places;
            }
        }
    }
}

/// Who else could have a place: by the greatest hash, so that it stays where others come and go.
fn another(seats: &[Seat], first: u8, place: usize, keyed: &impl BuildHasher) -> u8 {
    let others = seats.iter().filter(|seat| seat.number != first);
    others.max_by_key(|seat| keyed.hash_one((seat.identity, place as u64))).map_or(first, |seat| seat.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Keyed;

    fn seats(weights: &[u32]) -> Vec<Seat> {
        let keyed = Keyed::new(99);
        weights
            .iter()
            .zip(0..)
            .map(|(&weight, number)| Seat { number, identity: keyed.hash_one(number), weight })
            .collect()
    }

    fn shares(lookup: &Lookup, table: usize, backends: usize) -> Vec<usize> {
        let mut counts = vec![0; backends];
        lookup.places().iter().for_each(|place| counts[usize::from(place[table])] += 1);
        counts
    }

    #[test]
    fn places_are_shared_by_weight() {
        let keyed = Keyed::new(1);
        for backends in [2, 3, 10, 100] {
            let lookup = Lookup::build(&seats(&vec![1; backends]), &keyed);
            let counts = shares(&lookup, 0, backends);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{backends}: {counts:?}");
            // Max/mean of 1.02, and the second table is near that.
            let counts = shares(&lookup, 1, backends);
            let worst_percent = counts.iter().max().unwrap() * backends * 100 / lookup.places().len();
            assert!(worst_percent < 125, "{backends}: {worst_percent} % of the mean");
        }
        let counts = shares(&Lookup::build(&seats(&[1, 2, 1]), &keyed), 0, 3);
        assert_eq!(counts.iter().sum::<usize>(), 509);
        assert!(counts[1].abs_diff(counts[0] + counts[2]) <= 2, "{counts:?}");
    }

    #[test]
    fn the_second_is_never_the_first_where_there_are_two() {
        let keyed = Keyed::new(2);
        assert!(Lookup::build(&seats(&[1]), &keyed).places().iter().all(|place| *place == [0, 0]));
        let several = Lookup::build(&seats(&[1, 1, 4, 1]), &keyed);
        assert!(several.places().iter().all(|[first, second]| first != second));
        assert_eq!(Lookup::build(&seats(&[0]), &keyed).candidates(7), None);
    }

    #[test]
    fn who_goes_takes_little_else_along() {
        let keyed = Keyed::new(3);
        let all = seats(&[1; 20]);
        // The same size of table, as 2000 places take 19 and 20 backends.
        let (before, after) = (Lookup::build(&all, &keyed), Lookup::build(&all[..19], &keyed));
        assert_eq!(before.places().len(), after.places().len());
        let pairs = || before.places().iter().zip(after.places());
        let moved = pairs().filter(|(a, b)| a[0] != 19 && a[0] != b[0]).count();
        let places = before.places().len();
        assert!(moved * 100 < places * 4, "{moved} of {places}");
    }
}
