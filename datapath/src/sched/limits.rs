//! Limits: when a tenant or an endpoint may send again.
//!
//! A limit counts everything that its owner sends in one direction, to the uplink and to neighbours
//! on the same switch alike. These are two trees (planes), so the limits lie beside them and both
//! trees charge the same ones. A limit is one tag: the time at which what was sent so far has been
//! paid for. Lateness is made good by [`catch_up`].

use super::tag::{Pace, TAG_BITS, Tag, instant, tag};
use super::tree::QUANTUM_MAX;
use crate::program::Share;
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

/// A limit in parts. While both planes wait, the uplink's has as many of them as its guarantee is,
/// at least half and all but one at most: what neighbours send does not take what is promised.
const PARTS: u64 = 128;

/// The parts of a limit that the uplink's plane has while both wait.
fn wire_parts(share: &Share) -> u64 {
    if !share.limit.is_limited() {
        return PARTS / 2;
    }
    let parts = u128::from(share.guarantee.0) * u128::from(PARTS) / u128::from(share.limit.0.max(1));
    u64::try_from(parts).unwrap_or(PARTS).clamp(PARTS / 2, PARTS - 1)
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
    wire_parts: u64,
    /// What the uplink's plane has had beyond its parts since both wait; below zero what it lacks.
    lead: i64,
    waits: [bool; 2],
}

impl Limit {
    /// The limit of a node with `share`.
    #[must_use]
    pub fn new(share: &Share) -> Self {
        let mut limit = Limit::default();
        limit.set_share(Instant::ZERO, share);
        limit
    }

    /// Changes the share at `now`. What is owed stays, in bytes: at another rate it takes another
    /// time, or one frame that was sent at 1 kbit/s would hold its owner back for a minute. Where
    /// there is no limit any more nothing is owed.
    pub fn set_share(&mut self, now: Instant, share: &Share) {
        let pace = Pace::of(share.limit);
        if pace != self.pace {
            let owed = self.pace.at(pace, self.free_at.saturating_sub(tag(now)));
            self.free_at = self.free_at.min(tag(now)).saturating_add(owed);
            // Who waits asks again in its turn.
            (self.lead, self.waits) = (0, [false; 2]);
        }
        self.pace = pace;
        self.catch_up = catch_up(self.pace);
        self.wire_parts = wire_parts(share);
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

    /// If it must wait at `now`: until when. Where both planes wait, the one that has had more than
    /// its parts lets the other go first by waiting `turn` longer, so that neither starves; the tag
    /// sees to it that no rate is lost.
    pub fn wait(&mut self, plane: Plane, now: Tag, turn: Tag) -> Option<Tag> {
        let p = plane as usize;
        if self.free_at <= now {
            self.waits[p] = false;
            return None;
        }
        self.waits[p] = true;
        let yields = self.waits[1 - p] && (self.lead > 0) == (plane == Plane::Wire);
        Some(if yields { self.free_at + turn } else { self.free_at })
    }

    /// Whether a frame may be sent in `plane` at `now` of which nobody knows yet: not where the
    /// other plane waits, which would never have its turn.
    #[must_use]
    #[inline]
    pub fn is_free(&self, plane: Plane, now: Tag) -> bool {
        self.free_at <= now && !self.waits[1 - plane as usize]
    }

    /// The same once `bytes` more were sent in `plane`, if they may be.
    #[must_use]
    pub fn is_free_behind(&self, plane: Plane, now: Tag, bytes: u32) -> bool {
        let free_at = self.free_at.max(now.saturating_sub(self.catch_up)) + self.pace.cost(bytes);
        self.is_free(plane, now) && (free_at <= now || !self.pace.is_limited())
    }

    /// A frame of `bytes` was sent in `plane` for which [`Limit::is_free`] holds, and no other
    /// waits there: [`Limit::charge`] and [`Limit::leave`] in one.
    #[inline(always)]
    pub fn pass(&mut self, plane: Plane, now: Tag, bytes: u32) {
        debug_assert!(self.is_free(plane, now));
        self.waits[plane as usize] = false;
        if self.pace.is_limited() {
            self.free_at = self.free_at.max(now.saturating_sub(self.catch_up)) + self.pace.cost(bytes);
            self.lead = 0;
        }
    }

    /// It has nothing to send in `plane` any more.
    pub fn leave(&mut self, plane: Plane) {
        self.waits[plane as usize] = false;
    }

    /// `bytes` were sent in `plane`.
    pub fn charge(&mut self, plane: Plane, now: Tag, bytes: u32) {
        if !self.pace.is_limited() {
            return;
        }
        let cost = self.pace.cost(bytes);
        self.free_at = self.free_at.max(now.saturating_sub(self.catch_up)) + cost;
        self.lead = if self.waits[1 - plane as usize] { self.led(plane, cost) } else { 0 };
    }

    /// The lead once `plane` has had `cost`: at most what one frame of the longest kind makes it.
    fn led(&self, plane: Plane, cost: Tag) -> i64 {
        let part = |parts: u64| (u128::from(cost) * u128::from(parts) / u128::from(PARTS)) as i64;
        let most = self.pace.cost(QUANTUM_MAX) as i64;
        let lead = match plane {
            Plane::Wire => self.lead.saturating_add(part(PARTS - self.wire_parts)),
            Plane::Local => self.lead.saturating_sub(part(self.wire_parts)),
        };
        lead.clamp(-most, most)
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
