//! Forgetting connections whose backend, address or service is gone, and counting those no more
//! whose backend is down.
//!
//! Such a connection is over at once, since whoever looks one up asks for the backend that its
//! number and generation name now. What it takes of the table is given back by a sweep through all
//! places, of which each call visits [`PLACES`] at most: with a million connections one walk would
//! stop the switch for some 100 ms. Changes that come during a sweep share the next one.
//!
//! Until a sweep that began after it was removed is over, an address's number is nobody else's. A
//! backend's is another's only where no other is free, and under a generation that no entry has.

use super::Services;
use super::entry::{Entry, Key};
use crate::table::Id;

/// Places of the table that one call visits at most: with each entry removed, some 50 us.
pub const PLACES: u32 = 256;

/// How far sweeps have come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sweep {
    /// The place that is next; `None` where none is under way.
    at: Option<u32>,
    /// Another is to follow: something was removed meanwhile.
    again: bool,
    /// How many are over.
    done: u64,
}

/// When what is removed is known to have no entries: as soon as so many sweeps are over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweeps {
    /// How many are over.
    pub done: u64,
    /// How many are to be, for what is removed now.
    pub wanted: u64,
}

impl Sweep {
    pub(super) fn sweeps(&self) -> Sweeps {
        Sweeps { done: self.done, wanted: self.done + 1 + u64::from(self.at.is_some()) }
    }

    /// Something was removed.
    pub(super) fn begin(&mut self) {
        self.again = self.at.is_some();
        self.at = self.at.or(Some(0));
    }
}

impl Services {
    /// Whether connections are yet to be forgotten: then [`Services::sweep`] is to be called.
    #[must_use]
    pub fn is_sweeping(&self) -> bool {
        self.sweep.at.is_some()
    }

    /// Visits some places of the table, and forgets the connections there that are over. How many
    /// places.
    pub fn sweep(&mut self) -> u32 {
        let Some(start) = self.sweep.at else { return 0 };
        let places = self.connections.places();
        let end = places.min(start + PLACES);
        for id in (start..end).map(Id) {
            let found = self.connections.at(id).map(|(owner, key, entry)| (owner, *key, *entry));
            let Some((owner, key, entry)) = found else { continue };
            if self.server(&key, &entry).is_none() {
                self.connections.remove(owner, id);
                self.leave((id, key, entry));
            } else {
                self.silence(id, &key, entry);
            }
        }
        self.sweep.at = Some(end);
        if end >= places {
            self.sweep.done += 1;
            self.sweep.at = self.sweep.again.then_some(0);
            self.sweep.again = false;
            self.fronts.release(self.sweep.done);
        }
        end - start
    }

    /// A connection does not count until its backend speaks of it, where that was found down.
    fn silence(&mut self, id: Id, key: &Key, before: Entry) {
        let done = self.sweep.done;
        let is_due = self.server_mut(key, before.backend).is_some_and(|server| server.silent_until > done);
        if !is_due || before.kind().is_none() {
            return;
        }
        let Some((_, entry, _)) = self.connections.get_mut(id) else { return };
        entry.fall_silent();
        let after = *entry;
        self.recount(key, Some((before, after)));
    }

    /// Where a connection is that is not over.
    #[inline]
    pub(super) fn find(&self, key: &Key) -> Option<(Id, &Entry)> {
        let id = self.connections.find(key)?;
        let entry = self.connections.get(id)?;
        self.server(key, entry).is_some().then_some((id, entry))
    }
}
