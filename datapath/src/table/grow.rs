//! A longer table, made a part at a time while the table is used.
//!
//! First the buckets of a longer index are made, then entries move, in the order of their places,
//! to memory with room for all and are put into that index: [`PLACES`] at a call of
//! [`Table::go_on`]. Lookups go by the index that was there, which knows all entries, until the new
//! one does; so they cost nothing more, and until then the table may have no more entries than
//! before. What is added or removed meanwhile is added to the new index or removed from it, too,
//! where its place has moved already. Memory that is no longer needed is handed out
//! ([`Table::take_left`]): to give back much of it takes long, too.

use super::index::Index;
use super::{Entry, Table};
use std::any::Any;
use std::fmt;
use std::hash::Hash;

/// Places whose entries one call moves at most, or buckets that it makes: some ten microseconds.
pub const PLACES: u32 = 256;
/// Entries that an empty table has room for at once.
const AT_ONCE: u32 = 4096;

/// What a table does not need any more: to be dropped where it may take long.
pub struct Left(#[expect(dead_code, reason = "only to be dropped")] pub(crate) Box<dyn Any + Send>);

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Left")
    }
}

/// What is being made.
#[derive(Debug)]
pub(super) struct Growth<K, V> {
    /// How many entries there is to be room for.
    most: u32,
    /// How many the table may have then.
    pub(super) wanted: u32,
    /// Has no entries before all its buckets are made.
    index: Index,
    /// Memory for entries, until the first moves.
    room: Vec<Entry<K, V>>,
    /// Those that were there; the first of them have moved.
    pub(super) old: Vec<Entry<K, V>>,
}

impl<K: Eq + Hash, V> Table<K, V> {
    /// Entries that have not moved, behind others that have.
    #[inline]
    pub(super) fn unmoved(&self) -> &[Entry<K, V>] {
        self.growth.as_ref().map_or(&[][..], |growth| &growth.old[..])
    }

    /// An entry that has not moved.
    #[cold]
    #[inline(never)]
    pub(super) fn unmoved_entry(&self, at: u32) -> Option<&Entry<K, V>> {
        self.unmoved().get(at as usize)
    }

    /// The same, to change it.
    #[cold]
    #[inline(never)]
    pub(super) fn unmoved_entry_at(&mut self, at: u32) -> Option<&mut Entry<K, V>> {
        self.growth.as_mut()?.old.get_mut(at as usize)
    }

    /// Adds an entry behind all others. Its place.
    #[inline]
    pub(super) fn push(&mut self, entry: Entry<K, V>) -> u32 {
        let entries = match &mut self.growth {
            Some(growth) if !growth.old.is_empty() => &mut growth.old,
            _ => &mut self.entries,
        };
        entries.push(entry);
        entries.len() as u32 - 1
    }

    /// The index that is being made, where it has the entry of this place.
    #[inline]
    pub(super) fn next_index(&mut self, at: u32) -> Option<&mut Index> {
        let growth = self.growth.as_mut()?;
        (!growth.old.is_empty() && (at as usize) < self.entries.len()).then_some(&mut growth.index)
    }

    /// Whether it becomes longer: then [`Table::go_on`] is to be called.
    #[must_use]
    pub fn is_growing(&self) -> bool {
        self.growth.is_some()
    }

    /// Entries that there is room for.
    fn room(&self) -> u32 {
        self.index.room().min(u32::try_from(self.entries.capacity()).unwrap_or(u32::MAX))
    }

    /// Changes how many entries it may have: at once where there is room for them, or few are
    /// wanted; else as soon as it has become longer.
    pub fn grow_to(&mut self, most: u32) {
        let most = most.min(Index::MOST);
        if self.growth.is_some() || most <= self.room() {
            return self.set_most(most);
        }
        if self.entries.is_empty() && self.room() < AT_ONCE {
            self.set_most(most.min(AT_ONCE));
            self.reserve(0);
            if most <= AT_ONCE {
                return;
            }
        }
        self.most = self.most.min(self.room());
        let (index, room) = (Index::unmade(most), Vec::with_capacity(most as usize));
        self.growth = Some(Box::new(Growth { most, wanted: most, index, room, old: Vec::new() }));
    }
}

impl<K: Eq + Hash + Copy + Send + 'static, V: Copy + Send + 'static> Table<K, V> {
    /// Makes a part of what it becomes longer by. How many places and buckets that were; 0: it is
    /// as long as it is to be.
    pub fn go_on(&mut self) -> u32 {
        let Some(growth) = self.growth.as_deref_mut() else { return 0 };
        let missing = growth.index.make(growth.most, PLACES as usize);
        if missing > 0 {
            return missing.min(PLACES as usize) as u32;
        }
        if growth.old.is_empty() {
            growth.old = std::mem::replace(&mut self.entries, std::mem::take(&mut growth.room));
        }
        let start = self.entries.len();
        let end = growth.old.len().min(start + PLACES as usize);
        for (entry, at) in growth.old[start..end].iter().zip(start as u32..) {
            if entry.content.is_some() {
                growth.index.insert(entry.hash, at);
            }
            self.entries.push(*entry);
        }
        if end == growth.old.len()
            && let Some(growth) = self.growth.take()
        {
            let Growth { most, wanted, index, old, .. } = *growth;
            self.left = Some((std::mem::replace(&mut self.index, index), old));
            self.most = most.min(wanted);
            if wanted > most {
                self.grow_to(wanted);
            }
        }
        ((end - start) as u32).max(1)
    }

    /// What it does not need any more since it grew.
    pub fn take_left(&mut self) -> Option<Left> {
        self.left.take().map(|left| Left(Box::new(left)))
    }
}
