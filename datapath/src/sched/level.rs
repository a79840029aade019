//! One level of the tree: children that share what their parent gets, guarantees first, then by
//! weight.
//!
//! Two orders over the same children. `real` serves guarantees: a child is in it with start and
//! finish tags in link time, and is eligible once its start tag has come. `share` divides the rest
//! by weight in virtual time. Bytes served by guarantee are not charged to the share order, nor the
//! other way round, so a child gets `f + w * lambda` as in the fluid model.

use super::order::{Order, Weight};
use super::tag::Tag;
use crate::program::{OrderKind, Share};

/// A child chosen by a level, and for which of the two reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The child's index in its level.
    pub child: u32,
    /// Its guarantee was due; else it was its turn by weight.
    pub by_guarantee: bool,
}

/// The children of one node.
#[derive(Debug)]
pub struct Level {
    real: Order,
    share: Order,
    active: u32,
    /// By child: has a guarantee, so it takes part in `real`.
    guaranteed: Vec<bool>,
}

impl Level {
    /// A level without children, for frames of up to `max_frame` wire bytes.
    #[must_use]
    pub fn new(kind: OrderKind, max_frame: u32) -> Self {
        Level {
            real: Order::real(kind, max_frame),
            share: Order::share(kind, max_frame),
            active: 0,
            guaranteed: Vec::new(),
        }
    }

    /// Adds a child, or changes its share. Allocates when it is new.
    pub fn set_share(&mut self, child: u32, share: &Share, head: u32, clock: Tag) {
        let index = child as usize;
        if self.guaranteed.len() <= index {
            self.guaranteed.resize(index + 1, false);
        }
        self.share.set_weight(child, Weight::from_weight(share.weight));
        let guaranteed = share.guarantee.0 > 0;
        if guaranteed {
            self.real.set_weight(child, Weight::from_rate(share.guarantee));
        }
        let active = self.share.is_active(child);
        if active && guaranteed && !self.guaranteed[index] {
            self.real.activate(child, head, clock);
        } else if active && !guaranteed && self.guaranteed[index] {
            self.real.deactivate(child);
        }
        self.guaranteed[index] = guaranteed;
    }

    /// Forgets a child: what has its index next starts anew.
    pub fn forget(&mut self, child: u32) {
        self.deactivate(child);
        self.share.forget(child);
        self.real.forget(child);
        if let Some(guaranteed) = self.guaranteed.get_mut(child as usize) {
            *guaranteed = false;
        }
    }

    /// Changes the longest frame. Takes time in proportion to the children.
    pub fn set_max_frame(&mut self, max_frame: u32) {
        self.real.set_max_frame(max_frame);
        self.share.set_max_frame(max_frame);
    }

    /// Whether lengths of head frames matter here; finding them out costs a look at each.
    #[must_use]
    pub fn wants_lengths(&self) -> bool {
        self.share.wants_lengths()
    }

    /// Children that have something to send and may.
    #[must_use]
    #[inline]
    pub fn active(&self) -> u32 {
        self.active
    }

    /// Whether `child` is among them.
    #[must_use]
    pub fn is_active(&self, child: u32) -> bool {
        self.share.is_active(child)
    }

    /// `child` has something to send: its first frame has `len` wire bytes.
    pub fn activate(&mut self, child: u32, len: u32, clock: Tag) {
        if self.share.is_active(child) {
            return;
        }
        self.active += 1;
        self.share.activate(child, len, clock);
        if self.guaranteed[child as usize] {
            self.real.activate(child, len, clock);
        }
    }

    /// `child` has nothing to send any more, or may not.
    pub fn deactivate(&mut self, child: u32) {
        if !self.share.is_active(child) {
            return;
        }
        self.active -= 1;
        self.share.deactivate(child);
        if self.guaranteed[child as usize] {
            self.real.deactivate(child);
        }
    }

    /// Who is next at link time `clock`.
    pub fn peek(&mut self, clock: Tag) -> Option<Pick> {
        if let Some(child) = self.real.peek(clock) {
            return Some(Pick { child, by_guarantee: true });
        }
        self.share.peek(clock).map(|child| Pick { child, by_guarantee: false })
    }

    /// Nobody here has something to send: `child` has one frame of `len` wire bytes, which goes at
    /// link time `clock`. As [`Level::activate`], [`Level::peek`] and [`Level::charge`] one after
    /// the other. Whether it went by guarantee.
    #[inline(always)]
    pub fn pass(&mut self, child: u32, len: u32, clock: Tag) -> bool {
        if self.guaranteed[child as usize] {
            return self.pass_guaranteed(child, len, clock);
        }
        self.share.pass(child, len, clock);
        false
    }

    /// The same where no child has a guarantee.
    #[inline(always)]
    pub fn pass_by_weight(&mut self, child: u32, len: u32) {
        debug_assert!(!self.guaranteed[child as usize]);
        self.share.pass(child, len, 0);
    }

    #[inline(never)]
    fn pass_guaranteed(&mut self, child: u32, len: u32, clock: Tag) -> bool {
        let by_guarantee = self.real.pass(child, len, clock);
        self.share.pass(child, if by_guarantee { 0 } else { len }, clock);
        by_guarantee
    }

    /// What was picked has sent `len` wire bytes; its next frame has `next` of them, if it has one.
    pub fn charge(&mut self, pick: Pick, len: u32, next: Option<u32>) {
        let child = pick.child;
        let (served, other) =
            if pick.by_guarantee { (&mut self.real, &mut self.share) } else { (&mut self.share, &mut self.real) };
        served.charge(child, len, next);
        // The other order gave nothing, but has a child less, or a new head, if it asks for that.
        // Children without a guarantee are not in `real`.
        if next.is_none() || other.wants_lengths() {
            other.charge(child, 0, next);
        }
        if next.is_none() {
            self.active -= 1;
        }
    }
}
