//! What was seen outside: the addresses that frames from the uplink came from, network by network,
//! for as long as addresses live.
//!
//! What is outside is not to be claimed by an endpoint that has not declared it ([`crate::fdb`],
//! [`crate::owners`]). Strangers choose these addresses, so each network has a part of the table to
//! itself: a flood in one makes nobody else's forgotten. Nor does it make those of its own network
//! forgotten, which would let a neighbour take them: where there are more than fit, the network is
//! *crowded* until its table could have aged, and an address in it that nobody has may be outside.

use crate::random::Keyed;
use crate::table::{Id, Table};
use crate::units::Instant;
use std::hash::Hash;

/// Most addresses of all networks together: some 10 MB.
const MOST: u32 = 1 << 17;
/// Most of one network: what the largest broadcast domains have.
const PER_NETWORK: u32 = 4096;
/// Aged entries that a new one makes forgotten: more than one, so that their number falls.
const SWEEP: usize = 2;

/// Addresses with a value each. Networks are numbered from 0.
#[derive(Debug)]
pub(crate) struct Outside<K, V> {
    /// With when each is forgotten at the latest: what another table saw may have been seen before
    /// this one's time began.
    table: Table<K, (V, Instant)>,
    /// Most of one network.
    quota: u32,
    /// By network: until when more may be outside than are remembered.
    crowded: Vec<Instant>,
    /// What was seen before is forgotten.
    since: Instant,
    age_ns: u64,
}

impl<K: Eq + Hash + Copy, V> Outside<K, V> {
    pub(crate) fn new(keyed: Keyed, age_ns: u64) -> Self {
        Outside { table: Table::new(keyed, 0), quota: 0, crowded: Vec::new(), since: Instant::ZERO, age_ns }
    }

    pub(crate) fn set_age(&mut self, age_ns: u64) {
        self.age_ns = age_ns;
    }

    /// Makes room for networks 0..`networks`.
    pub(crate) fn reserve(&mut self, networks: usize) {
        if networks <= self.crowded.len() {
            return;
        }
        self.crowded.resize(networks, Instant::ZERO);
        let networks = u32::try_from(networks).unwrap_or(MOST).max(1);
        self.quota = (MOST / networks).clamp(1, PER_NETWORK);
        self.table.set_most(self.quota.saturating_mul(networks).min(MOST));
        self.table.reserve(networks as usize);
    }

    /// An address was seen; says whether that is news.
    pub(crate) fn note(&mut self, now: Instant, network: usize, key: K, value: V) -> bool {
        let entry = (value, now.plus_ns(self.age_ns));
        if let Some(id) = self.table.find(&key) {
            let is_news = self.left(now, id) == 0;
            self.table.touch(now, id, network as u32);
            if let Some(old) = self.table.get_mut(id) {
                *old = entry;
            }
            return is_news;
        }
        for _ in 0..SWEEP {
            let Some(id) = self.table.oldest(network as u32).filter(|&id| self.left(now, id) == 0) else { break };
            self.table.remove(id);
        }
        let is_full = self.table.count(network as u32) >= self.quota;
        let is_lost = is_full || self.table.insert(now, network as u32, key, entry).is_err();
        if let Some(until) = self.crowded.get_mut(network).filter(|_| is_lost) {
            *until = now.plus_ns(self.age_ns);
        }
        true
    }

    /// What was noted of an address that has not aged.
    pub(crate) fn find(&self, now: Instant, key: &K) -> Option<&V> {
        let id = self.table.find(key)?;
        self.table.get(id).filter(|_| self.left(now, id) > 0).map(|(value, _)| value)
    }

    /// An address is no longer outside.
    pub(crate) fn forget(&mut self, key: &K) {
        if let Some(id) = self.table.find(key) {
            self.table.remove(id);
        }
    }

    /// Forgets all of a network.
    pub(crate) fn clear(&mut self, network: usize) {
        while let Some(id) = self.table.oldest(network as u32) {
            self.table.remove(id);
        }
        if let Some(until) = self.crowded.get_mut(network) {
            *until = Instant::ZERO;
        }
    }

    /// Forgets all of all networks that was seen before `now`. Takes no time for what there is: it
    /// is as if it had aged.
    pub(crate) fn clear_all(&mut self, now: Instant) {
        self.since = now;
        self.crowded.fill(Instant::ZERO);
    }

    /// Whether more addresses may be outside than are remembered.
    pub(crate) fn is_crowded(&self, now: Instant, network: usize) -> bool {
        self.crowded.get(network).is_some_and(|&until| now < until)
    }

    /// For how many nanoseconds more addresses may be outside than are remembered.
    pub(crate) fn crowded_ns(&self, now: Instant, network: usize) -> u64 {
        self.crowded.get(network).map_or(0, |until| until.since(now))
    }

    /// For so long more addresses may be outside than are remembered.
    pub(crate) fn crowd(&mut self, now: Instant, network: usize, for_ns: u64) {
        let until = now.plus_ns(for_ns.min(self.age_ns));
        if let Some(crowded) = self.crowded.get_mut(network) {
            *crowded = until.max(*crowded);
        }
    }

    /// Of a network, what was seen last first, and for how many nanoseconds it is remembered yet.
    pub(crate) fn of(&self, now: Instant, network: usize) -> impl Iterator<Item = (&K, &V, u64)> {
        let all = self.table.newest_first(network as u32);
        all.map(move |(id, key, (value, _))| (key, value, self.left(now, id))).filter(|(.., left_ns)| *left_ns > 0)
    }

    /// Goes on with what another table knew, `left_ns` before it would have been forgotten. To be
    /// told in the order oldest first. Where there is no room, the network is crowded.
    pub(crate) fn restore(&mut self, now: Instant, network: usize, key: K, value: V, left_ns: u64) -> bool {
        if left_ns == 0 || self.table.find(&key).is_some() {
            return false;
        }
        let expires = now.plus_ns(left_ns.min(self.age_ns));
        let is_full = self.table.count(network as u32) >= self.quota;
        let is_lost = is_full || self.table.insert(now, network as u32, key, (value, expires)).is_err();
        if is_lost {
            self.crowd(now, network, left_ns);
        }
        !is_lost
    }

    /// For how many nanoseconds an entry is remembered yet.
    fn left(&self, now: Instant, id: Id) -> u64 {
        let left = self.table.get(id).zip(self.table.seen(id).filter(|&seen| seen >= self.since));
        left.map_or(0, |((_, expires), seen)| (*expires).min(seen.plus_ns(self.age_ns)).since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn outside(networks: usize) -> Outside<(usize, u32), ()> {
        let mut outside = Outside::new(Keyed::new(7), 300 * SECOND);
        outside.reserve(networks);
        outside
    }

    #[test]
    fn a_flood_in_one_network_makes_no_address_forgotten_and_crowds_only_that_one() {
        let mut outside = outside(3);
        let at = |seconds: u64| Instant(seconds * SECOND);
        assert!(outside.note(at(1), 0, (0, 1), ()), "news");
        assert!(outside.note(at(1), 1, (1, 1), ()));
        for n in 0..100_000 {
            outside.note(at(2), 0, (0, 100 + n), ());
        }
        assert!(!outside.note(at(3), 0, (0, 1), ()), "it was known before the flood and is still");
        assert!(outside.find(at(3), &(1, 1)).is_some());
        assert_eq!([0, 1, 2].map(|network| outside.is_crowded(at(3), network)), [true, false, false]);
        assert!(outside.note(at(4), 1, (1, 2), ()), "there is room in the other");
        assert!(outside.find(at(4), &(1, 2)).is_some());
        // It passes: the flood ages, and what is seen since finds room.
        assert!(!outside.is_crowded(at(302), 0));
        for n in 0..3000 {
            outside.note(at(303), 0, (0, 200_000 + n), ());
        }
        assert!(!outside.is_crowded(at(303), 0));
        assert!(outside.find(at(303), &(0, 100)).is_none(), "aged");
        assert_eq!(outside.of(at(303), 0).count(), 3000);
    }

    #[test]
    fn what_is_cleared_leaves_room_for_as_many() {
        let mut outside = outside(2);
        let at = |seconds: u64| Instant(seconds * SECOND);
        for network in 0..2 {
            for n in 0..=PER_NETWORK {
                outside.note(at(1), network, (network, n), ());
            }
        }
        outside.clear_all(at(2));
        assert_eq!([0, 1].map(|network| outside.is_crowded(at(2), network)), [false; 2]);
        for network in 0..2 {
            assert_eq!(outside.of(at(2), network).count(), 0);
            // One that was known, and others.
            assert!((100..PER_NETWORK + 100).all(|n| outside.note(at(2), network, (network, n), ())), "all are news");
            assert_eq!(outside.of(at(3), network).count(), PER_NETWORK as usize);
            assert!(!outside.is_crowded(at(3), network) && outside.find(at(3), &(network, 7)).is_none());
        }
    }

    #[test]
    fn what_finds_no_room_again_leaves_its_network_crowded_for_as_long_as_it_would_have_lived() {
        let mut outside = outside(2);
        let at = |seconds: u64| Instant(seconds * SECOND);
        for n in 0..PER_NETWORK {
            assert!(outside.restore(at(1), 0, (0, n), (), 300 * SECOND));
        }
        assert!(!outside.restore(at(1), 0, (0, 0), (), 300 * SECOND), "it is known");
        assert!(!outside.is_crowded(at(1), 0));
        assert!(!outside.restore(at(1), 0, (0, PER_NETWORK), (), 9 * SECOND));
        assert_eq!([0, 1].map(|network| outside.crowded_ns(at(1), network)), [9 * SECOND, 0]);
        outside.crowd(at(1), 0, 5 * SECOND);
        outside.crowd(at(1), 1, u64::MAX);
        outside.crowd(at(1), 2, SECOND);
        let crowded_ns = [0, 1, 2].map(|network| outside.crowded_ns(at(2), network));
        assert_eq!(crowded_ns, [8 * SECOND, 299 * SECOND, 0], "no longer than addresses live");
    }
}
