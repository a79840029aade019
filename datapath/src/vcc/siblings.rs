//! What a guest's connections have shown by where they go, for the next one that goes there: the
//! windows that they have, and whether natives heed marks.
//!
//! A connection of a guest that is held to its window begins with ten segments, and doubles them
//! each round until the first mark. Who ends each connection after a megabyte and begins another
//! would be above its share for as long as that takes, again and again. So where others of its
//! guest to the same address are slowed, a connection begins with the smallest of their windows,
//! and as one that was just reduced to it (sharing in time and among connections, RFC 9040).
//!
//! A native that is watched is judged after several marked rounds ([`super::watch`]), which it may
//! not live to see. So these rounds count here too, and a native that begins where too many went
//! unheeded is held to a window from the start.
//!
//! An endpoint that is policed has [`PLACES`] places, by a hash under the table's key. One address
//! may take another's place: then a connection to that one begins as the first.

use super::connection::Connection;
use super::watch::{Heed, UNHEEDED_MOST};
use crate::units::Instant;

/// Addresses of an endpoint that are known at a time.
const PLACES: usize = 64;
/// For how long something counts that was seen: what reopens at once is to be slowed, and not a
/// guest that is back after a pause.
const FRESH_NS: u64 = 2_000_000_000;

/// What is known of the connections to an address.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// A hash of the address.
    to: u64,
    /// The smallest window, and when it was.
    slowed: Option<(u32, Instant)>,
    /// Signs that natives did not heed marks, and when the last was seen.
    unheeded: (u8, Instant),
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Siblings([Option<Known>; PLACES]);

impl Default for Siblings {
    fn default() -> Siblings {
        Siblings([None; PLACES])
    }
}

/// Whether a round is over that was to end at `end`, and the window was reduced in it. One that was
/// reduced long ago, or began with its siblings' window, says nothing of the network now.
pub(super) fn is_slowed(connection: &Connection, end: u32) -> bool {
    let since = connection.reduced_to.wrapping_sub(end);
    connection.round_end != end && since.wrapping_sub(1) < connection.nxt.wrapping_sub(end)
}

impl Siblings {
    /// A connection to this address has such a window. A larger one than is known counts when that
    /// is old. As long as windows are reduced, natives that did not heed marks are not trusted.
    pub fn note(&mut self, now: Instant, to: u64, window: u32) {
        let is_known = self.window(now, to).is_some_and(|known| known < window);
        let unheeded = self.unheeded(now, to);
        let place = self.place(now, to);
        if !is_known {
            place.slowed = Some((window, now));
        }
        if unheeded > UNHEEDED_MOST {
            place.unheeded = (unheeded, now);
        }
    }

    /// What a native's connection to this address did with the marks of a round.
    pub fn judge(&mut self, now: Instant, to: u64, heed: Heed) {
        let before = self.unheeded(now, to);
        if before == 0 && heed == Heed::Heeded {
            return;
        }
        let after = match heed {
            Heed::Heeded => before.saturating_sub(1),
            Heed::Unheeded(more) => before.saturating_add(more),
        };
        self.place(now, to).unheeded = (after, now);
    }

    /// The smallest window of those to this address, where any are slowed.
    pub fn window(&self, now: Instant, to: u64) -> Option<u32> {
        let (window, at) = self.known(to)?.slowed?;
        is_fresh(now, at).then_some(window)
    }

    /// How many signs there are that natives' connections to this address do not heed marks.
    pub fn unheeded(&self, now: Instant, to: u64) -> u8 {
        let (unheeded, at) = self.known(to).map_or((0, now), |known| known.unheeded);
        if is_fresh(now, at) { unheeded } else { 0 }
    }

    /// What a connection to this address begins with: nothing, or more than may go unheeded.
    pub fn distrust(&self, now: Instant, to: u64) -> u8 {
        let unheeded = self.unheeded(now, to);
        if unheeded > UNHEEDED_MOST { unheeded } else { 0 }
    }

    fn known(&self, to: u64) -> Option<&Known> {
        self.0[to as usize % PLACES].as_ref().filter(|known| known.to == to)
    }

    fn place(&mut self, now: Instant, to: u64) -> &mut Known {
        let place = &mut self.0[to as usize % PLACES];
        let known = place.take().filter(|known| known.to == to);
        place.insert(known.unwrap_or(Known { to, slowed: None, unheeded: (0, now) }))
    }
}

fn is_fresh(now: Instant, at: Instant) -> bool {
    now.since(at) < FRESH_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_window_counts_until_it_is_old() {
        let mut all = Siblings::default();
        let at = |ms: u64| Instant(ms * 1_000_000);
        assert_eq!(all.window(at(1), 7), None);
        all.note(at(1), 7, 5000);
        all.note(at(2), 7, 9000);
        assert_eq!([7, 8].map(|to| all.window(at(3), to)), [Some(5000), None]);
        all.note(at(4), 7, 3000);
        assert_eq!((all.window(at(2003), 7), all.window(at(2004), 7)), (Some(3000), None));
        all.note(at(2005), 7, 9000);
        assert_eq!(all.window(at(2006), 7), Some(9000));
        // Another address takes the place.
        all.note(at(2007), 7 + PLACES as u64, 4000);
        assert_eq!([7, 7 + PLACES as u64].map(|to| all.window(at(2008), to)), [None, Some(4000)]);
    }

    #[test]
    fn rounds_that_went_unheeded_count_against_those_that_did_not_until_they_are_old() {
        let mut all = Siblings::default();
        let at = |ms: u64| Instant(ms * 1_000_000);
        for ms in 0..5 {
            all.judge(at(ms), 7, Heed::Unheeded(2));
        }
        assert_eq!([7, 8].map(|to| all.unheeded(at(5), to)), [10, 0]);
        all.judge(at(6), 7, Heed::Heeded);
        assert_eq!(all.unheeded(at(2005), 7), 9);
        // As long as windows are reduced, it is remembered.
        all.note(at(2005), 7, 9000);
        assert_eq!((all.unheeded(at(4004), 7), all.unheeded(at(4005), 7)), (9, 0));
        // Fewer are not.
        all.judge(at(5000), 7, Heed::Unheeded(2));
        all.note(at(6000), 7, 9000);
        assert_eq!(all.unheeded(at(7000), 7), 0);
    }
}
