//! A bounded table under a secret key: what strangers choose, such as addresses and flows, is
//! looked up here.
//!
//! An index of buckets, a cache line each, says where the entries lie; an entry keeps its place
//! (its [`Id`]) until it is removed. A lookup reads the bucket that the hash names, compares one
//! byte a place, and reads the one entry whose byte is equal: two cache misses, however many
//! entries there are. Only where a bucket overflowed, which at the densest happens to one entry in
//! a hundred, is another bucket read (the scheme of F14, Bronson and Shi 2019: each bucket counts
//! the entries that had to go past it).
//!
//! Every entry is in one *list*, whose number the owner of the table chooses (an endpoint, a class
//! of connections, or both), in the order in which its entries were last seen. Where all entries of
//! a list live equally long, the oldest is the next to be forgotten: ageing, eviction of a class
//! and quotas all take the same time whatever the table holds. Nothing is allocated after
//! [`Table::reserve`].
//!
//! A table that is in use becomes longer a part at a time (`grow.rs`): with millions of entries, or
//! room for them, whoever has the table would stand still for up to 80 ms otherwise.

use crate::random::Keyed;
use crate::units::Instant;
use grow::Growth;
pub use grow::{Left, PLACES as GROWN_PLACES};
use index::Index;
use std::hash::{BuildHasher, Hash};
use std::ops::Range;

mod grow;
mod index;

/// No entry.
const NONE: u32 = u32::MAX;
/// Bit of [`Entry::list`]: whether the entry was put there in an odd period; see [`Table::see`].
const ODD: u32 = 1 << 31;

/// An entry's place: valid until the entry is removed, and then perhaps another's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Id(pub u32);

/// What is kept of an entry beside its value.
#[derive(Clone, Copy, Debug)]
struct Entry<K, V> {
    hash: u64,
    seen: Instant,
    /// Its list, and [`ODD`].
    list: u32,
    next: u32,
    prev: u32,
    /// `None` where the place is free; `next` is then the next free place.
    content: Option<(K, V)>,
}

impl<K, V> Entry<K, V> {
    #[inline]
    fn is_fresh(&self, now: Instant, list: u32, age_ns: u64) -> bool {
        // One that was seen later than now, by another clock, is not.
        self.list == list && now.0.wrapping_sub(self.seen.0) < age_ns
    }
}

/// Entries in the order in which they were last seen, the oldest first.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: List = List { head: NONE, tail: NONE };
}

/// The table is full: remove an entry first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// See the module. `K` is hashed under the key given to [`Table::new`].
#[derive(Debug)]
pub struct Table<K, V> {
    keyed: Keyed,
    index: Index,
    /// Those that have moved, where the table becomes longer.
    entries: Vec<Entry<K, V>>,
    /// The first free place among `entries`.
    free: u32,
    lists: Vec<List>,
    /// Entries of each list, side by side: whoever looks for the longest reads few cache lines.
    counts: Vec<u32>,
    len: u32,
    most: u32,
    growth: Option<Box<Growth<K, V>>>,
    /// What it does not need any more since it grew.
    left: Option<(Index, Vec<Entry<K, V>>)>,
}

impl<K: Eq + Hash, V> Table<K, V> {
    /// An empty table of no more than `most` entries, hashed under `keyed`. It takes memory as it
    /// grows, or at once: see [`Table::reserve`].
    #[must_use]
    pub fn new(keyed: Keyed, most: u32) -> Table<K, V> {
        Table {
            keyed,
            index: Index::new(0),
            entries: Vec::new(),
            free: NONE,
            lists: Vec::new(),
            counts: Vec::new(),
            len: 0,
            most: most.min(Index::MOST),
            growth: None,
            left: None,
        }
    }

    /// Makes room for all entries that it may have, and for lists 0..`lists`.
    pub fn reserve(&mut self, lists: usize) {
        self.entries.reserve((self.most as usize).saturating_sub(self.entries.len()));
        self.grow(self.most);
        self.reserve_lists(lists);
    }

    /// Makes room for lists 0..`lists`.
    pub fn reserve_lists(&mut self, lists: usize) {
        self.lists.reserve(lists.saturating_sub(self.lists.len()));
        self.counts.reserve(lists.saturating_sub(self.counts.len()));
    }

    /// Memory of a table that has room for so many entries, in bytes.
    #[must_use]
    pub fn bytes_of(entries: u32) -> u64 {
        Index::bytes_of(entries) + u64::from(entries) * size_of::<Entry<K, V>>() as u64
    }

    /// Changes how many entries it may have. Those beyond stay until they are removed. While it
    /// becomes longer, it may not have more than before.
    pub fn set_most(&mut self, most: u32) {
        let most = most.min(Index::MOST);
        self.most = match &mut self.growth {
            Some(growth) => {
                growth.wanted = most;
                self.most.min(most)
            }
            None => most,
        };
    }

    /// How many entries it may have.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.most
    }

    /// How many it has.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The hash of a key, for [`Table::find_hashed`] and [`Table::warm`].
    #[must_use]
    #[inline]
    pub fn hash(&self, key: &K) -> u64 {
        self.keyed.hash_one(key)
    }

    /// Reads the bucket that a later lookup will read. Of several keys, one after the other, the
    /// processor waits for all buckets at once; what is returned has no meaning and only keeps the
    /// reading from being left out.
    #[must_use]
    #[inline]
    pub fn warm(&self, hash: u64) -> u32 {
        self.index.warm(hash)
    }

    /// The same of the entry that is most likely the one which the lookup will find.
    #[must_use]
    #[inline]
    pub fn warm_entry(&self, hash: u64) -> u32 {
        let entry = self.index.likely(hash).and_then(|at| self.entries.get(at as usize));
        // Its first bytes and its last ones may lie in two cache lines.
        entry.map_or(0, |entry| entry.hash as u32 ^ entry.prev ^ u32::from(entry.content.is_some()))
    }

    /// Where the entry of `key` is.
    #[must_use]
    #[inline]
    pub fn find(&self, key: &K) -> Option<Id> {
        self.find_hashed(self.hash(key), key)
    }

    /// The same, where the key's hash is known.
    #[must_use]
    #[inline]
    pub fn find_hashed(&self, hash: u64, key: &K) -> Option<Id> {
        let same = |at: u32| {
            let same = |entry: &Entry<K, V>| {
                entry.hash == hash && entry.content.as_ref().is_some_and(|(found, _)| found == key)
            };
            self.entry(at).is_some_and(same)
        };
        self.index.find(hash, same).map(Id)
    }

    /// Adds an entry as the newest of `list`. `key` must not be in the table.
    ///
    /// # Errors
    /// There is no room; nothing was changed.
    pub fn insert(&mut self, now: Instant, list: u32, key: K, value: V) -> Result<Id, Full> {
        self.insert_hashed(now, list, (self.hash(&key), key), value)
    }

    /// The same, where the key's hash is known.
    ///
    /// # Errors
    /// There is no room; nothing was changed.
    #[inline]
    pub fn insert_hashed(&mut self, now: Instant, list: u32, (hash, key): (u64, K), value: V) -> Result<Id, Full> {
        if self.len >= self.most {
            return Err(Full);
        }
        self.grow(self.len + 1);
        let entry = Entry { hash, seen: now, list, next: NONE, prev: NONE, content: Some((key, value)) };
        let at = self.free;
        let at = if at == NONE {
            self.push(entry)
        } else if let Some(free) = self.entry_at(at) {
            let next = std::mem::replace(free, entry).next;
            self.free = next;
            at
        } else {
            return Err(Full);
        };
        self.index.insert(hash, at);
        if let Some(index) = self.next_index(at) {
            index.insert(hash, at);
        }
        self.link(at, list);
        self.len += 1;
        Ok(Id(at))
    }

    /// Removes an entry. `None` where there is none.
    pub fn remove(&mut self, id: Id) -> Option<(K, V)> {
        let entry = self.entry_at(id.0)?;
        let content = entry.content.take()?;
        let hash = entry.hash;
        self.unlink(id.0);
        let free = std::mem::replace(&mut self.free, id.0);
        if let Some(entry) = self.entry_at(id.0) {
            entry.next = free;
        }
        self.index.remove(hash, id.0);
        if let Some(index) = self.next_index(id.0) {
            index.remove(hash, id.0);
        }
        self.len -= 1;
        Some(content)
    }

    /// Places of entries are below this.
    #[must_use]
    pub fn places(&self) -> u32 {
        self.unmoved().len().max(self.entries.len()) as u32
    }

    /// The key of an entry.
    #[must_use]
    pub fn key(&self, id: Id) -> Option<&K> {
        self.content(id).map(|(key, _)| key)
    }

    /// What an entry says.
    #[must_use]
    #[inline]
    pub fn get(&self, id: Id) -> Option<&V> {
        self.content(id).map(|(_, value)| value)
    }

    /// The same, to change it.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, id: Id) -> Option<&mut V> {
        self.entry_at(id.0)?.content.as_mut().map(|(_, value)| value)
    }

    /// The same, with its key and when it was last seen.
    #[must_use]
    #[inline(always)]
    pub fn entry_mut(&mut self, id: Id) -> Option<(&K, &mut V, Instant)> {
        let entry = self.entry_at(id.0)?;
        entry.content.as_mut().map(|(key, value)| (&*key, value, entry.seen))
    }

    /// The hash of an entry's key.
    #[must_use]
    #[inline]
    pub fn hash_of(&self, id: Id) -> Option<u64> {
        self.entry(id.0).filter(|entry| entry.content.is_some()).map(|entry| entry.hash)
    }

    /// Whether an entry is that of `key`.
    #[must_use]
    #[inline]
    pub fn is_of(&self, id: Id, key: &K) -> bool {
        self.content(id).is_some_and(|(found, _)| found == key)
    }

    /// Whether an entry is in `list`, and was seen less than `age_ns` ago.
    #[must_use]
    #[inline]
    pub fn is_fresh(&self, now: Instant, id: Id, list: u32, age_ns: u64) -> bool {
        self.entry(id.0).is_some_and(|entry| entry.is_fresh(now, list, age_ns))
    }

    /// Whether an entry is fresh ([`Table::is_fresh`]) and its key is one that is asked for. Never
    /// of one that is still to move, where the table becomes longer: who guesses an entry has
    /// another way to it.
    #[must_use]
    #[inline(always)]
    pub fn is_fresh_and(&self, now: Instant, id: Id, (list, age_ns): (u32, u64), asked: impl Fn(&K) -> bool) -> bool {
        self.entries.get(id.0 as usize).is_some_and(|entry| {
            entry.content.as_ref().is_some_and(|(key, _)| asked(key)) && entry.is_fresh(now, list, age_ns)
        })
    }

    /// What an entry says of which [`Table::is_fresh_and`] holds.
    #[must_use]
    #[inline(always)]
    pub fn fresh_mut(&mut self, id: Id) -> Option<&mut V> {
        self.entries.get_mut(id.0 as usize)?.content.as_mut().map(|(_, value)| value)
    }

    /// When an entry was last seen.
    #[must_use]
    pub fn seen(&self, id: Id) -> Option<Instant> {
        self.entry(id.0).filter(|entry| entry.content.is_some()).map(|entry| entry.seen)
    }

    /// An entry was seen: it is the newest of `list` from now on, which may be another than it was
    /// in.
    pub fn touch(&mut self, now: Instant, id: Id, list: u32) {
        let Some(entry) = self.entry_at(id.0).filter(|entry| entry.content.is_some()) else { return };
        entry.seen = now;
        if entry.list == list && entry.next == NONE {
            return;
        }
        self.unlink(id.0);
        self.link(id.0, list);
    }

    /// The same, for a list whose order need not be more exact than a period of `1 << period`
    /// nanoseconds, or two for an entry that was never seen: one that was put there in this period
    /// stays where it is. To move it, its neighbours are read, which in a large table are in no
    /// cache. [`Table::is_fresh`] does not know such entries.
    pub fn see(&mut self, now: Instant, id: Id, list: u32, period: u32) {
        let Some(entry) = self.entry_at(id.0).filter(|entry| entry.content.is_some()) else { return };
        // One that was seen within a period was put there in this one or the one before.
        let is_near = now.since(std::mem::replace(&mut entry.seen, now)) >> period == 0;
        let odd = (now.0 >> period) as u32 & 1;
        let list = list | if odd == 0 { 0 } else { ODD };
        if entry.list == list && is_near {
            return;
        }
        self.unlink(id.0);
        self.link(id.0, list);
    }

    /// The list that an entry is in.
    #[must_use]
    pub fn list(&self, id: Id) -> Option<u32> {
        self.entry(id.0).filter(|entry| entry.content.is_some()).map(|entry| entry.list & !ODD)
    }

    /// How many entries are in a list.
    #[must_use]
    pub fn count(&self, list: u32) -> u32 {
        self.counts.get(list as usize).copied().unwrap_or(0)
    }

    /// How many entries are in each of `lists`; those at the end that never had any are left out.
    #[must_use]
    #[inline]
    pub fn counts(&self, lists: Range<u32>) -> &[u32] {
        let end = self.counts.len().min(lists.end as usize);
        self.counts.get(lists.start as usize..end).unwrap_or_default()
    }

    /// The entry of a list that was seen longest ago.
    #[must_use]
    pub fn oldest(&self, list: u32) -> Option<Id> {
        let head = self.lists.get(list as usize)?.head;
        (head != NONE).then_some(Id(head))
    }

    /// The entry of a list that was seen last.
    #[must_use]
    pub fn newest(&self, list: u32) -> Option<Id> {
        let tail = self.lists.get(list as usize)?.tail;
        (tail != NONE).then_some(Id(tail))
    }

    /// The oldest entry of a list, where it was not seen for `age_ns`: to be removed, and the next
    /// one asked for.
    #[must_use]
    pub fn aged(&self, now: Instant, list: u32, age_ns: u64) -> Option<Id> {
        self.oldest(list).filter(|&id| self.seen(id).is_some_and(|seen| now.since(seen) >= age_ns))
    }

    /// The entries of a list, the newest first.
    pub fn newest_first(&self, list: u32) -> impl Iterator<Item = (Id, &K, &V)> {
        let ids = std::iter::successors(self.newest(list), |id| {
            let prev = self.entry(id.0)?.prev;
            (prev != NONE).then_some(Id(prev))
        });
        ids.filter_map(|id| self.content(id).map(|(key, value)| (id, key, value)))
    }

    /// The entries of a list, the oldest first.
    pub fn oldest_first(&self, list: u32) -> impl Iterator<Item = (Id, &K, &V)> {
        let ids = std::iter::successors(self.oldest(list), |id| {
            let next = self.entry(id.0)?.next;
            (next != NONE).then_some(Id(next))
        });
        ids.filter_map(|id| self.content(id).map(|(key, value)| (id, key, value)))
    }

    /// All entries, by their places.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &K, &V)> {
        self.iter_in(0..self.places())
    }

    /// The entries at these places.
    pub fn iter_in(&self, places: Range<u32>) -> impl Iterator<Item = (Id, &K, &V)> {
        let moved = self.entries.len() as u32;
        let unmoved = places.start.max(moved)..places.end;
        let entries = part(&self.entries, places).chain(part(self.unmoved(), unmoved));
        entries.filter_map(|(entry, at)| entry.content.as_ref().map(|(key, value)| (Id(at), key, value)))
    }

    /// The entry at a place.
    #[inline(always)]
    fn entry(&self, at: u32) -> Option<&Entry<K, V>> {
        match self.entries.get(at as usize) {
            None => self.unmoved_entry(at),
            entry => entry,
        }
    }

    /// The same, to change it.
    #[inline(always)]
    fn entry_at(&mut self, at: u32) -> Option<&mut Entry<K, V>> {
        if (at as usize) < self.entries.len() { self.entries.get_mut(at as usize) } else { self.unmoved_entry_at(at) }
    }

    #[inline]
    fn content(&self, id: Id) -> Option<&(K, V)> {
        self.entry(id.0)?.content.as_ref()
    }

    /// Makes the index large enough for `entries`.
    fn grow(&mut self, entries: u32) {
        if entries <= self.index.room() {
            return;
        }
        self.index = Index::new(entries.max(self.index.room().saturating_mul(2)).min(self.most.max(entries)));
        let unmoved = self.growth.as_ref().map_or(&[][..], |growth| &growth.old[..]).iter().skip(self.entries.len());
        for (entry, at) in self.entries.iter().chain(unmoved).zip(0..) {
            if entry.content.is_some() {
                self.index.insert(entry.hash, at);
            }
        }
    }

    /// Puts an entry last in a list, perhaps with [`ODD`].
    fn link(&mut self, at: u32, marked: u32) {
        let list = marked & !ODD;
        if self.lists.len() <= list as usize {
            self.lists.resize(list as usize + 1, List::EMPTY);
            self.counts.resize(list as usize + 1, 0);
        }
        let List { tail, head } = &mut self.lists[list as usize];
        let prev = std::mem::replace(tail, at);
        self.counts[list as usize] += 1;
        if prev == NONE {
            *head = at;
        } else if let Some(prev) = self.entry_at(prev) {
            prev.next = at;
        }
        if let Some(entry) = self.entry_at(at) {
            (entry.list, entry.next, entry.prev) = (marked, NONE, prev);
        }
    }

    /// Takes an entry out of its list.
    fn unlink(&mut self, at: u32) {
        let Some(&Entry { list, next, prev, .. }) = self.entry(at) else { return };
        let list = list & !ODD;
        match prev {
            NONE => self.lists[list as usize].head = next,
            prev => {
                if let Some(prev) = self.entry_at(prev) {
                    prev.next = next;
                }
            }
        }
        match next {
            NONE => self.lists[list as usize].tail = prev,
            next => {
                if let Some(next) = self.entry_at(next) {
                    next.prev = prev;
                }
            }
        }
        self.counts[list as usize] -= 1;
    }
}

/// Those of some entries that are at these places, with their places.
fn part<T>(entries: &[T], places: Range<u32>) -> impl Iterator<Item = (&T, u32)> {
    let end = places.end.min(entries.len() as u32);
    let start = places.start.min(end);
    entries[start as usize..end as usize].iter().zip(start..)
}

#[cfg(test)]
mod tests;
