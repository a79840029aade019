//! A backend that goes down and comes up again and again: each time it has to be well for longer
//! before it gets connections, as with each time those that it has may end.

use super::entry::SECOND;
use crate::units::Instant;

/// So many changes within this time double what is asked of a backend, in nanoseconds; that is
/// forgotten when it has not changed for as long.
const CHANGES: u8 = 3;
const WITHIN_NS: u64 = 60 * SECOND;
/// How often it is doubled at most.
const MOST_DOUBLED: u32 = 4;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flaps {
    /// When the first of the changes came that are counted, and the last of all.
    since: Instant,
    last: Instant,
    changes: u8,
    doubled: u32,
}

impl Flaps {
    /// It went down, or came up.
    pub(super) fn change(&mut self, now: Instant) {
        if self.are_over(now) {
            *self = Flaps::default();
        }
        if self.changes == 0 || now.since(self.since) >= WITHIN_NS {
            (self.since, self.changes) = (now, 0);
        }
        self.last = now;
        self.changes += 1;
        if self.changes == CHANGES {
            (self.changes, self.doubled) = (0, MOST_DOUBLED.min(self.doubled + 1));
        }
    }

    /// How many checks in a row must succeed for it to be up, where `rise` are asked for.
    pub(super) fn rise(&self, now: Instant, rise: u8) -> u32 {
        let doubled = if self.are_over(now) { 0 } else { self.doubled };
        u32::from(rise) << doubled
    }

    fn are_over(&self, now: Instant) -> bool {
        now.since(self.last) >= WITHIN_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Instant {
        Instant((1000 + second) * SECOND)
    }

    /// What is asked for right after changes at these seconds, where it is 2.
    fn after(seconds: &[u64]) -> Vec<u32> {
        let mut flaps = Flaps::default();
        let change = |&second: &u64| {
            flaps.change(at(second));
            flaps.rise(at(second), 2)
        };
        seconds.iter().map(change).collect()
    }

    #[test]
    fn three_changes_within_a_minute_double_what_is_asked_for_up_to_sixteen_times() {
        assert_eq!(after(&[0, 20, 40]), [2, 2, 4]);
        assert_eq!(after(&[0, 20, 60]), [2; 3], "a minute");
        assert_eq!(after(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]).iter().max(), Some(&32));
        assert_eq!(after(&[0, 1, 2, 62, 63, 64]), [2, 2, 4, 2, 2, 4], "it was calm");
        assert_eq!(after(&[0, 25, 50, 75, 100, 125]), [2, 2, 4, 4, 4, 8], "it was not");
    }

    #[test]
    fn a_calm_minute_ends_it() {
        let mut flaps = Flaps::default();
        (0..9).for_each(|second| flaps.change(at(second)));
        assert_eq!([8, 67, 68].map(|second| flaps.rise(at(second), 2)), [16, 16, 2]);
    }
}
