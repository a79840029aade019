//! Flapping: what fails and comes back again and again is named once, and not at each change.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Something flaps that has failed so often within [`WINDOW`], until it has not for as long.
const FLAPS: usize = 3;
pub const WINDOW: Duration = Duration::from_secs(60);
/// Times that are remembered of one.
const MOST_TIMES: usize = 64;

/// When something failed lately, and whether that is too often.
#[derive(Default)]
pub struct Flaps {
    failed: VecDeque<Instant>,
    is_on: bool,
}

/// What has become of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlapChange {
    /// It flaps from now on: it failed so often lately.
    Begins(usize),
    /// It does not any more.
    Ends,
}

impl Flaps {
    /// It fails.
    pub fn fail(&mut self, now: Instant) {
        self.failed.push_back(now);
        self.forget(now);
    }

    /// Whether its changes are too many to be said.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether nothing is to be remembered of it.
    pub fn is_calm(&self) -> bool {
        !self.is_on && self.failed.is_empty()
    }

    /// How many times are remembered.
    #[cfg(test)]
    pub fn times(&self) -> usize {
        self.failed.len()
    }

    /// Whether it begins to flap, or ends, by what is known and by the time.
    pub fn turn(&mut self, now: Instant) -> Option<FlapChange> {
        self.forget(now);
        let count = self.failed.len();
        match self.is_on {
            false if count >= FLAPS => {
                self.is_on = true;
                Some(FlapChange::Begins(count))
            }
            true if count == 0 => {
                self.is_on = false;
                Some(FlapChange::Ends)
            }
            _ => None,
        }
    }

    fn forget(&mut self, now: Instant) {
        while self.failed.front().is_some_and(|&at| now - at >= WINDOW) || self.failed.len() > MOST_TIMES {
            self.failed.pop_front();
        }
    }
}
