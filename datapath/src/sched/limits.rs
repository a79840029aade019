//! Limits: when a tenant or an endpoint may send again.
//!
//! A limit counts everything that its owner sends in one direction, to the uplink and to neighbours
//! on the same switch alike. These are two trees (planes), so the limits lie beside them and both
//! trees charge the same ones. A limit is one tag: the time at which what was sent so far has been
//! paid for. Lateness is made good by [`catch_up`].

use super::tag::{Pace, TAG_BITS, Tag, instant, tag};
use super::tree::QUANTUM_MAX;
use crate::units::Instant;

/// Lateness that a limit makes good: what a loop that sleeps, or reads a burst of four offloaded
/// frames, is late.
const CATCH_UP: Tag = 100_000 << TAG_BITS;
/// The same in wire bytes, where that is more (below 1 Gbit/s): some frames, so that each of them
/// does not need a wake-up of its own.
const CATCH_UP_BYTES: u32 = 12_500;

/// The lateness that is made good at `pace`, in time: also what may be sent at once after idling.
fn catch_up(pace: Pace) -> Tag {
    pace.cost(CATCH_UP_BYTES).max(CATCH_UP)
}

/// One of the two trees that share limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Plane {
    /// To or from the uplink.
    Wire = 0,
    /// Between endpoints of this switch.
    Local = 1,
}

/// The limit of one node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limit {
    pace: Pace,
    free_at: Tag,
    /// What lateness may be made good.
    catch_up: Tag,
    last: usize,
    waits: [bool; 2],
}

impl Limit {
    /// A node that may send at `pace`.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        Limit { pace, catch_up: catch_up(pace), ..Limit::default() }
    }

    /// Changes the pace; what is owed stays.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
        self.catch_up = catch_up(pace);
    }

    /// For how long after `now`, in nanoseconds, nothing may be sent.
    #[must_use]
    pub fn wait_ns(&self, now: Instant) -> u64 {
        if self.is_limited() { instant(self.free_at).since(now) } else { 0 }
    }

    /// Continues where another limit had to wait for `wait_ns`. Nobody can owe more than one frame
    /// of the longest kind.
    pub fn restore(&mut self, now: Instant, wait_ns: u64) {
        let most = self.pace.cost(QUANTUM_MAX) >> TAG_BITS;
        if self.pace.is_limited() {
            self.free_at = tag(now.plus_ns(wait_ns.min(most)));
        }
    }

    /// Whether there is a limit at all.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.pace.is_limited()
    }

    /// If it must wait at `now`: until when. Where both planes wait, the one that was served last
    /// lets the other go first by waiting `turn` longer, so that neither starves; the tag sees to
    /// it that no rate is lost.
    pub fn wait(&mut self, plane: Plane, now: Tag, turn: Tag) -> Option<Tag> {
        let p = plane as usize;
        if self.free_at <= now {
            self.waits[p] = false;
            return None;
        }
        self.waits[p] = true;
        let yields = self.waits[1 - p] && self.last == p;
        Some(if yields { self.free_at + turn } else { self.free_at })
    }

    /// It has nothing to send in `plane` any more.
    pub fn leave(&mut self, plane: Plane) {
        self.waits[plane as usize] = false;
    }

    /// `bytes` were sent in `plane`.
    pub fn charge(&mut self, plane: Plane, now: Tag, bytes: u32) {
        if self.pace.is_limited() {
            self.free_at = self.free_at.max(now.saturating_sub(self.catch_up)) + self.pace.cost(bytes);
            self.last = plane as usize;
        }
    }
}

/// The limits of all nodes in one direction. Slots that are not in use have none.
#[derive(Debug, Default)]
pub struct Limits {
    /// By endpoint.
    pub endpoints: Vec<Limit>,
    /// By tenant.
    pub tenants: Vec<Limit>,
}
