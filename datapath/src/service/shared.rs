//! A table that tenants share. Within a tenant, who makes entries is in one of [`BUCKETS`]
//! ([`super::connections`]), and what has to go is taken from the bucket that has most, the oldest
//! first: so a flood of one client takes the place of nobody but those in its bucket. Entries may
//! be of several classes; whoever has the table says which of them goes first.

use super::connections::{BUCKETS, Opener};
use crate::random::Keyed;
use crate::table::{Id, Table};
use crate::units::Instant;
use std::hash::Hash;

/// See the module. Classes are numbered from 0.
#[derive(Debug)]
pub(super) struct Shared<K, V, const CLASSES: u32> {
    table: Table<K, V>,
    /// Entries, by owner.
    counts: Vec<u32>,
}

impl<K: Eq + Hash, V, const CLASSES: u32> Shared<K, V, CLASSES> {
    /// Lists of the table for each owner.
    const LISTS: u32 = CLASSES * BUCKETS;

    pub(super) fn new(keyed: Keyed, most: u32) -> Self {
        Shared { table: Table::new(keyed, most), counts: Vec::new() }
    }

    /// Makes room for an owner, whatever its number.
    pub(super) fn reserve(&mut self, owner: u32) {
        self.counts.resize(self.counts.len().max(owner as usize + 1), 0);
        self.table.reserve(self.counts.len() * Self::LISTS as usize);
    }

    fn list(opener: Opener, class: u32) -> u32 {
        opener.owner * Self::LISTS + class * BUCKETS + opener.bucket
    }

    pub(super) fn find(&self, key: &K) -> Option<Id> {
        self.table.find(key)
    }

    pub(super) fn get(&self, id: Id) -> Option<&V> {
        self.table.get(id)
    }

    pub(super) fn key(&self, id: Id) -> Option<&K> {
        self.table.key(id)
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut V> {
        self.table.get_mut(id)
    }

    pub(super) fn seen(&self, id: Id) -> Option<Instant> {
        self.table.seen(id)
    }

    pub(super) fn is_full(&self) -> bool {
        self.table.len() >= self.table.most()
    }

    /// Entries of an owner.
    pub(super) fn count(&self, owner: u32) -> u32 {
        self.counts.get(owner as usize).copied().unwrap_or(0)
    }

    /// The owner that has most.
    pub(super) fn fullest(&self) -> Option<u32> {
        (0u32..).zip(&self.counts).max_by_key(|&(_, count)| count).map(|(owner, _)| owner)
    }

    /// Those of one class, by bucket; of the last buckets that never had any nothing is said.
    fn counts_of(&self, owner: u32, class: u32) -> (u32, &[u32]) {
        let first = Self::list(Opener { owner, bucket: 0 }, class);
        (first, self.table.counts(first..first + BUCKETS))
    }

    /// Entries of an owner of one class.
    pub(super) fn count_of(&self, owner: u32, class: u32) -> u32 {
        self.counts_of(owner, class).1.iter().sum()
    }

    /// Of an owner's entries of one class, the one that goes first.
    pub(super) fn first_to_go(&self, owner: u32, class: u32) -> Option<Id> {
        let (first, counts) = self.counts_of(owner, class);
        let (list, _) = (first..).zip(counts).max_by_key(|&(_, count)| count)?;
        self.table.oldest(list)
    }

    /// The oldest of a bucket.
    pub(super) fn oldest(&self, Opener { owner, bucket }: Opener, class: u32) -> Option<Id> {
        self.table.oldest(Self::list(Opener { owner, bucket }, class))
    }

    /// The oldest of a bucket, where it was not seen for `age_ns`.
    pub(super) fn aged(&self, now: Instant, opener: Opener, class: u32, age_ns: u64) -> Option<Id> {
        self.table.aged(now, Self::list(opener, class), age_ns)
    }

    /// All of an owner, in no order.
    pub(super) fn of(&self, owner: u32) -> impl Iterator<Item = (Id, &K, &V)> {
        let first = owner * Self::LISTS;
        (first..first + Self::LISTS).flat_map(|list| self.table.oldest_first(list))
    }

    /// Adds an entry, where there is room. `key` must not be in the table.
    pub(super) fn insert(&mut self, now: Instant, opener: Opener, class: u32, (key, value): (K, V)) {
        if let Some(count) = self.counts.get_mut(opener.owner as usize)
            && self.table.insert(now, Self::list(opener, class), key, value).is_ok()
        {
            *count += 1;
        }
    }

    /// The class of an entry.
    pub(super) fn class(&self, id: Id) -> Option<u32> {
        self.table.list(id).map(|list| list % Self::LISTS / BUCKETS)
    }

    /// An entry was seen, and is of this class now.
    pub(super) fn touch(&mut self, now: Instant, id: Id, class: u32) {
        if let Some(list) = self.table.list(id) {
            let opener = Opener { owner: list / Self::LISTS, bucket: list % BUCKETS };
            self.table.touch(now, id, Self::list(opener, class));
        }
    }

    pub(super) fn remove(&mut self, id: Id) {
        if let Some(list) = self.table.list(id) {
            self.table.remove(id);
            self.counts[(list / Self::LISTS) as usize] -= 1;
        }
    }

    /// Removes all of an owner.
    pub(super) fn clear(&mut self, owner: u32) {
        let first = owner * Self::LISTS;
        for list in first..first + Self::LISTS {
            while let Some(id) = self.table.oldest(list) {
                self.remove(id);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> u32 {
        self.table.len()
    }
}
