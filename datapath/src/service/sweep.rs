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
use super::entry::{Entry, Key, Kind};
use crate::table::Id;
use crate::units::Instant;

/// Places of the table that one call visits at most: with each entry removed, some 50 us.
pub const PLACES: u32 = 256;

/// Backends that go down call for sweeps, and may do so all the time: between these there is so
/// much time at least, and for each place of the table so much, in nanoseconds. To visit a place
/// took 4 ns where the table was in the cache; if it takes 50, this is a hundredth of the worker's
/// time.
const REST_NS: u64 = 100_000_000;
const REST_OF_PLACE_NS: u64 = 5_000;

/// How far sweeps have come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sweep {
    /// The place that is next; `None` where none is under way.
    at: Option<u32>,
    /// Another is to follow: something was removed meanwhile.
    again: bool,
    /// How many are over.
    done: u64,
    /// Whether a backend calls for one, and when it may begin.
    is_called: bool,
    rested: Instant,
    places: u32,
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

    /// A backend went down. The sweep that [`Sweep::sweeps`] wants begins as soon as it may.
    pub(super) fn call(&mut self, now: Instant) {
        self.is_called = true;
        self.begin_if_called(now);
    }

    /// To be said when checks end, and before a backend is chosen.
    #[inline]
    pub(super) fn begin_if_called(&mut self, now: Instant) {
        if self.is_called && self.at.is_none() && now >= self.rested {
            self.is_called = false;
            self.rested = now.plus_ns(REST_NS.max(u64::from(self.places) * REST_OF_PLACE_NS));
            self.begin();
        }
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
        self.sweep.places = places;
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
        if !is_due || matches!(before.kind(), None | Some(Kind::Unconfirmed)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_that_go_down_all_the_time_take_a_hundredth_of_the_time() {
        for places in [0, 65_536, 1 << 22] {
            let mut sweep = Sweep { places, ..Sweep::default() };
            let (mut now, mut begun) = (Instant(1), 0u64);
            for _ in 0..100_000 {
                now = now.plus_ns(1_000_000);
                sweep.call(now);
                if sweep.at.is_some() {
                    begun += 1;
                    // It takes some rounds, in which others go down.
                    sweep.call(now);
                    (sweep.at, sweep.again, sweep.done) = (None, false, sweep.done + 1);
                }
            }
            let visited_ns = begun * u64::from(places) * 50;
            assert!(begun > 2 && visited_ns <= now.0 / 100 + u64::from(places) * 50, "{begun} of {places} places");
        }
    }

    #[test]
    fn what_is_wanted_during_a_sweep_is_the_next_one() {
        let mut sweep = Sweep::default();
        sweep.call(Instant(1));
        assert!(sweep.at.is_some());
        let wanted = sweep.sweeps().wanted;
        sweep.call(Instant(2));
        (sweep.at, sweep.done) = (None, 1);
        sweep.begin_if_called(Instant(3));
        assert!(sweep.at.is_none(), "it rests");
        sweep.begin_if_called(Instant(REST_NS + 1));
        assert!(sweep.at.is_some() && wanted == sweep.done + 1);
    }
}
