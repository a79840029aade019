//! Windows that a guest's connections have by where they go, for the next one that goes there.
//!
//! A connection of a guest that is held to its window begins with ten segments, and doubles them
//! each round until the first mark. Who ends each connection after a megabyte and begins another
//! would be above its share for as long as that takes, again and again. So where others of its
//! guest to the same address are slowed, a connection begins with the smallest of their windows,
//! and as one that was just reduced to it (sharing in time and among connections, RFC 9040).
//!
//! An endpoint that is policed has [`PLACES`] places, by a hash under the table's key. One address
//! may take another's place: then a connection to that one begins as the first.

use super::connection::Connection;
use crate::units::Instant;

/// Addresses of an endpoint that are known at a time.
const PLACES: usize = 64;
/// For how long a window counts: what reopens at once is to be slowed, and not a guest that is back
/// after a pause.
const FRESH_NS: u64 = 2_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Slowed {
    /// A hash of the address.
    to: u64,
    window: u32,
    at: Instant,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Siblings([Option<Slowed>; PLACES]);

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
    /// is old.
    pub fn note(&mut self, now: Instant, to: u64, window: u32) {
        let is_known = self.window(now, to).is_some_and(|known| known < window);
        if !is_known {
            self.0[to as usize % PLACES] = Some(Slowed { to, window, at: now });
        }
    }

    /// The smallest of those to this address, where any are slowed.
    pub fn window(&self, now: Instant, to: u64) -> Option<u32> {
        let slowed = self.0[to as usize % PLACES].filter(|slowed| slowed.to == to)?;
        (now.since(slowed.at) < FRESH_NS).then_some(slowed.window)
    }
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
}
