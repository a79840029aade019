//! Kept: frames that have left over a member with a number, until the other end acknowledges them.
//! If the member fails, the others send them again.
//!
//! Nothing is copied: the shell gives frames back when their port has written them
//! ([`super::Bond::give_back`]). Each is charged to its sender's part of the bond's memory. So an
//! endpoint that floods is refused first, and others' frames are still kept.

use super::REPLAY_KEPT_NS;
use crate::frame::{Chain, Class, FlowIndex, Frame, Holding, Meta, Out, Owner, Pool};
use crate::ids::EndpointId;
use crate::units::Instant;

/// What is kept of each endpoint's frames, by its number.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    holdings: Vec<Holding>,
}

impl Keepers {
    /// Sets whose memory is charged for an endpoint's frames.
    pub fn set_owner(&mut self, pool: &mut Pool, endpoint: EndpointId, owner: Owner) {
        let at = endpoint.0 as usize;
        if at >= self.holdings.len() {
            if owner == Owner::NOBODY {
                return;
            }
            self.holdings.resize(at + 1, Holding::NONE);
        }
        self.holdings[at].set_owner(pool, owner);
    }

    /// Whose memory that is.
    #[cfg(test)]
    pub fn owner(&self, endpoint: EndpointId) -> Owner {
        self.holdings.get(endpoint.0 as usize).map_or(Owner::NOBODY, Holding::owner)
    }

    /// Bytes of buffers of an endpoint's frames that are kept.
    pub fn bytes(&self, endpoint: EndpointId) -> u64 {
        self.holdings.get(endpoint.0 as usize).map_or(0, Holding::bytes)
    }

    #[inline]
    fn of(&mut self, meta: &Meta) -> Option<&mut Holding> {
        self.holdings.get_mut(keeper(meta)?.0 as usize)
    }

    /// Frames of one keeper and class are no longer kept.
    fn leave(&mut self, pool: &mut Pool, (keeper, class): (Option<EndpointId>, Class), frames: u32) {
        if let Some(holding) = keeper.and_then(|endpoint| self.holdings.get_mut(endpoint.0 as usize)) {
            holding.leave_all(pool, class, frames);
        }
    }
}

/// The endpoint that a frame is charged to while it is kept.
#[inline]
fn keeper(meta: &Meta) -> Option<EndpointId> {
    match meta.out() {
        Out::From(endpoint) => Some(endpoint),
        _ => None,
    }
}

/// Frames of one member that are kept, in the order in which they left. `Meta::queued` has when
/// that was, `Meta::flow` the number.
#[derive(Debug, Default)]
pub(super) struct Kept {
    frames: Chain,
    count: u32,
}

impl Kept {
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Keeps a frame if its sender's part of the memory has room for it; else frees it.
    #[inline]
    pub fn push(&mut self, pool: &mut Pool, now: Instant, keepers: &mut Keepers, frame: Frame) {
        match keepers.of(pool.meta(&frame)) {
            Some(holding) if holding.may_take(pool, &frame) => holding.enter(pool, &frame),
            _ => return pool.free(frame),
        }
        pool.meta_mut(&frame).queued = now;
        self.frames.push(pool, frame);
        self.count += 1;
    }

    /// Takes the frame that left first.
    pub fn pop(&mut self, pool: &mut Pool, keepers: &mut Keepers) -> Option<Frame> {
        let frame = self.frames.pop(pool)?;
        if let Some(holding) = keepers.of(pool.meta(&frame)) {
            holding.leave(pool, &frame);
        }
        self.count -= 1;
        Some(frame)
    }

    /// Frees the first frames, as far as they are old or were received. Successive frames of one
    /// keeper and class are taken off its account together.
    pub fn let_go(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        keepers: &mut Keepers,
        is_received: impl Fn(FlowIndex) -> bool,
    ) {
        let (mut run, mut next, mut frames) = ((None, Class::Small), (None, Class::Small), 0);
        while let Some(old) = self.frames.pop_where(pool, |meta, class| {
            next = (keeper(meta), class);
            now.since(meta.queued) > REPLAY_KEPT_NS || meta.flow.is_none_or(&is_received)
        }) {
            if run != next {
                keepers.leave(pool, run, frames);
                (run, frames) = (next, 0);
            }
            frames += 1;
            self.count -= 1;
            pool.free(old);
        }
        keepers.leave(pool, run, frames);
    }

    /// Frees all.
    pub fn clear(&mut self, pool: &mut Pool, keepers: &mut Keepers) {
        while let Some(frame) = self.pop(pool, keepers) {
            pool.free(frame);
        }
    }
}
