//! What a lane loses, with whose it was: full queues, trims, and what active management drops.
//!
//! A lane counts what it lost; who sent it matters only to those who watch arrivals, and they ask
//! for it here, right after each frame that went in or out. So the list stays as short as what one
//! frame can cost, and all of it was lost by the lane that this frame went through: no lane is
//! emptied by its management, so none is passed over that had lost anything.

use crate::wire::Mac;
use std::collections::VecDeque;

/// A frame, or some segments of one, that did not get through a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loss {
    /// The source address.
    pub from: Mac,
    /// What it would have taken on the wire.
    pub wire_bytes: u32,
}

/// What lanes lost and nobody has asked for yet.
#[derive(Debug, Default)]
pub struct Losses {
    watched: bool,
    list: VecDeque<Loss>,
}

impl Losses {
    /// Whether anybody wants to know; without, nothing is kept.
    pub fn watch(&mut self, on: bool) {
        self.watched = on;
        self.list.clear();
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The next one.
    pub fn take(&mut self) -> Option<Loss> {
        self.list.pop_front()
    }

    #[cold]
    pub(super) fn note(&mut self, from: Mac, wire_bytes: u32) {
        if self.watched {
            self.list.push_back(Loss { from, wire_bytes });
        }
    }
}
