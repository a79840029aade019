//! What lanes lose, with whose it was: full queues, trims, and what active management drops.
//!
//! A lane counts what it lost; who sent it matters only to those who watch arrivals, and they ask for it here, right after each frame that
//! went in or out. So the list stays as short as what one frame can cost.

use super::limits::Plane;
use crate::program::EndpointId;
use crate::wire::Mac;
use std::collections::VecDeque;

/// A frame, or some segments of one, that did not get through a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loss {
    /// Whose lane it was.
    pub endpoint: EndpointId,
    /// The source address.
    pub from: Mac,
    /// What it would have taken on the wire.
    pub wire_bytes: u32,
}

/// What the uplink's lanes of one direction lost and nobody has asked for yet.
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

    /// The next one.
    #[inline]
    pub fn take(&mut self) -> Option<Loss> {
        self.list.pop_front()
    }

    #[cold]
    pub(super) fn note(&mut self, plane: Plane, endpoint: EndpointId, from: Mac, wire_bytes: u32) {
        if self.watched && plane == Plane::Wire {
            self.list.push_back(Loss { endpoint, from, wire_bytes });
        }
    }
}
