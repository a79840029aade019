//! Orders: which of the backlogged children of one level of the tree is next.
//!
//! A level knows its children by dense indices `0..n` and tells its order when one becomes
//! backlogged, leaves, or was served. The same orders serve both trees of the scheduler: a *share*
//! order divides what there is by integer weights, in virtual time, and always has someone to serve
//! while anyone is backlogged; a *real* order honours rates, in link time, and has someone only
//! when a start tag has come. The module `tag` explains the clocks; `fair`, `wf2q` and `vtrr` say
//! what each order promises.
//!
//! Nothing here allocates but [`Order::set_weight`] and [`Order::set_max_frame`], and nothing
//! panics on a child that is unknown, idle or backlogged already: such a call does nothing.

mod fair;
mod tag;
#[cfg(test)]
mod tests;
mod vtrr;
mod wf2q;

use crate::program::OrderKind;
use fair::Fair;
use tag::Clock;
pub use tag::{MAX_CHARGE, MAX_WEIGHT, Weight, link_time};
use vtrr::Vtrr;
use wf2q::Wf2q;

/// Longest frame that an order is built for, in bytes: slots of the slowest rate still fit a tag
/// 2^12 times.
const MAX_FRAME_BYTES: u32 = 1 << 20;

/// One level's order, of the kind that was configured.
#[derive(Clone, Debug)]
pub struct Order(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Fair(Fair),
    Wf2q(Wf2q),
    Vtrr(Vtrr),
}

/// Calls the same method of whichever kind this is.
macro_rules! each {
    ($order:expr, $it:ident => $call:expr) => {
        match &mut $order.0 {
            Kind::Fair($it) => $call,
            Kind::Wf2q($it) => $call,
            Kind::Vtrr($it) => $call,
        }
    };
}

impl Order {
    /// An order in virtual time, by weights. `max_frame_bytes` is the longest frame on the wire,
    /// after splitting: the unit of every bound. Longer ones are charged in full, but the bounds
    /// then do not hold.
    #[must_use]
    pub fn share(kind: OrderKind, max_frame_bytes: u32) -> Self {
        let (clock, max_frame) = (Clock::of_service(), max_frame_bytes.clamp(1, MAX_FRAME_BYTES));
        Order(match kind {
            OrderKind::Fair => Kind::Fair(Fair::new(clock, max_frame)),
            OrderKind::Wf2q => Kind::Wf2q(Wf2q::new(clock, max_frame)),
            OrderKind::Vtrr => Kind::Vtrr(Vtrr::new(clock, max_frame, false)),
            OrderKind::VtrrBytes => Kind::Vtrr(Vtrr::new(clock, max_frame, true)),
        })
    }

    /// An order in link time, by rates. The round robins have no notion of time: `fair` stands in
    /// for them.
    #[must_use]
    pub fn real(kind: OrderKind, max_frame_bytes: u32) -> Self {
        let (clock, max_frame) = (Clock::of_link(), max_frame_bytes.clamp(1, MAX_FRAME_BYTES));
        Order(match kind {
            OrderKind::Wf2q => Kind::Wf2q(Wf2q::new(clock, max_frame)),
            OrderKind::Fair | OrderKind::Vtrr | OrderKind::VtrrBytes => Kind::Fair(Fair::new(clock, max_frame)),
        })
    }

    /// Gives a child its weight or rate, or another one; legal while it is backlogged. Whatever the
    /// child is ahead or behind by stays the same in bytes. Allocates.
    pub fn set_weight(&mut self, child: u32, weight: Weight) {
        each!(self, it => it.set_weight(child, weight));
    }

    /// A child became backlogged; its head frame has `len` wire bytes. It starts at the later of
    /// its own finish tag and V, so it returns from idleness without credit and without forgetting
    /// a debt. `v` is the link time now; share orders ignore it.
    #[inline]
    pub fn activate(&mut self, child: u32, len: u32, v: u64) {
        match &mut self.0 {
            Kind::Fair(it) => it.activate(child, v),
            Kind::Wf2q(it) => it.activate(child, len, v),
            Kind::Vtrr(it) => it.activate(child),
        }
    }

    /// A child leaves: its limit is reached, or another tree emptied its queue. It keeps its finish
    /// tag.
    #[inline]
    pub fn deactivate(&mut self, child: u32) {
        each!(self, it => it.deactivate(child));
    }

    /// Whether this order looks at the lengths of head frames; to the others any length will do.
    #[must_use]
    pub fn wants_lengths(&self) -> bool {
        matches!(self.0, Kind::Wf2q(_))
    }

    /// Whether the child is backlogged here.
    #[inline]
    #[must_use]
    pub fn is_active(&self, child: u32) -> bool {
        match &self.0 {
            Kind::Fair(it) => it.is_active(child),
            Kind::Wf2q(it) => it.is_active(child),
            Kind::Vtrr(it) => it.is_active(child),
        }
    }

    /// Whether no child is backlogged.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            Kind::Fair(it) => it.is_empty(),
            Kind::Wf2q(it) => it.is_empty(),
            Kind::Vtrr(it) => it.is_empty(),
        }
    }

    /// The child to serve next. A share order ignores `v` and has one unless it is empty; a real
    /// order has one when a start tag has come by `v`, the link time now.
    #[inline]
    pub fn peek(&mut self, v: u64) -> Option<u32> {
        match &mut self.0 {
            Kind::Fair(it) => it.peek(v),
            Kind::Wf2q(it) => it.peek(v),
            Kind::Vtrr(it) => it.peek(),
        }
    }

    /// A child was served `len` wire bytes, whatever had been announced; `next` is the length of
    /// its new head frame, `None` if its queue is empty. With `len` 0 it only has a new head
    /// (another tree served the old one). `len` counts up to [`MAX_CHARGE`].
    #[inline]
    pub fn charge(&mut self, child: u32, len: u32, next: Option<u32>) {
        match &mut self.0 {
            Kind::Fair(it) => it.charge(child, len, next.is_some()),
            Kind::Wf2q(it) => it.charge(child, len, next),
            Kind::Vtrr(it) => it.charge(child, len, next.is_some()),
        }
    }

    /// Nobody is backlogged here: a child becomes so, is served its only frame of `len` wire bytes
    /// if it is next, and leaves; whether it was next. `activate`, `peek` and `charge` in one; with
    /// `len` 0 another order serves it.
    #[inline(always)]
    pub fn pass(&mut self, child: u32, len: u32, v: u64) -> bool {
        debug_assert!(self.is_empty());
        match &mut self.0 {
            Kind::Fair(it) => it.pass(child, len, v),
            _ => self.pass_in_steps(child, len, v),
        }
    }

    #[inline(never)]
    fn pass_in_steps(&mut self, child: u32, len: u32, v: u64) -> bool {
        self.activate(child, len, v);
        let is_next = len > 0 && self.peek(v) == Some(child);
        self.charge(child, if is_next { len } else { 0 }, None);
        is_next
    }

    /// Forgets a child, backlogged or not: what has its index next starts without its debts. Keeps
    /// the memory.
    pub fn forget(&mut self, child: u32) {
        each!(self, it => it.forget(child));
    }

    /// Changes the longest frame, which every bound is in units of. Takes time in proportion to the
    /// children.
    pub fn set_max_frame(&mut self, max_frame_bytes: u32) {
        let max_frame = max_frame_bytes.clamp(1, MAX_FRAME_BYTES);
        each!(self, it => it.set_max_frame(max_frame));
    }

    /// The clock, to start it elsewhere or look at its balance.
    #[cfg(test)]
    fn clock(&mut self) -> &mut Clock {
        each!(self, it => it.clock())
    }

    /// Checks what must hold between any two calls.
    #[cfg(test)]
    fn check(&self) {
        match &self.0 {
            Kind::Fair(it) => it.check(),
            Kind::Wf2q(it) => it.check(),
            Kind::Vtrr(it) => it.check(),
        }
    }
}
