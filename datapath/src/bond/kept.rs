//! Kept: frames that have left over a member with a number, until the other end has said that it
//! has them. Where the member turns out to be dead, the others send them again.
//!
//! They are the very frames, which the shell gives back when their port has written them
//! ([`super::Bond::give_back`]); nothing is copied. Each is charged to a part of the bond's memory
//! that is its sender's, so whoever floods is refused first, and others' frames are kept as before.

use super::REPLAY_KEPT_NS;
use crate::frame::{Chain, FlowIndex, Frame, Holding, Out, Owner, Pool};
use crate::ids::EndpointId;
use crate::units::Instant;

/// What each endpoint has among what is kept, by its number.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    holdings: Vec<Holding>,
}

impl Keepers {
    /// Whose memory takes what is kept of an endpoint's.
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

    /// Bytes of buffers that are kept of an endpoint's.
    pub fn bytes(&self, endpoint: EndpointId) -> u64 {
        self.holdings.get(endpoint.0 as usize).map_or(0, Holding::bytes)
    }

    #[inline]
    fn of(&mut self, pool: &Pool, frame: &Frame) -> Option<&mut Holding> {
        let Out::From(endpoint) = pool.meta(frame).out() else { return None };
        self.holdings.get_mut(endpoint.0 as usize)
    }
}

/// What is kept of what one member has sent, in the order in which it left. `Meta::queued` says
/// when that was, `Meta::flow` the number.
#[derive(Debug, Default)]
pub(super) struct Kept {
    frames: Chain,
    count: u32,
}

impl Kept {
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Keeps a frame, as far as its sender's part of the memory has room for it; else frees it.
    #[inline]
    pub fn push(&mut self, pool: &mut Pool, now: Instant, keepers: &mut Keepers, frame: Frame) {
        match keepers.of(pool, &frame) {
            Some(holding) if holding.may_take(pool, &frame) => holding.enter(pool, &frame),
            _ => return pool.free(frame),
        }
        pool.meta_mut(&frame).queued = now;
        self.frames.push(pool, frame);
        self.count += 1;
    }

    /// The one that left first.
    pub fn pop(&mut self, pool: &mut Pool, keepers: &mut Keepers) -> Option<Frame> {
        let frame = self.frames.pop(pool)?;
        if let Some(holding) = keepers.of(pool, &frame) {
            holding.leave(pool, &frame);
        }
        self.count -= 1;
        Some(frame)
    }

    /// Frees what is old, or was received: `is_received` says so of a number.
    pub fn let_go(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        keepers: &mut Keepers,
        is_received: impl Fn(FlowIndex) -> bool,
    ) {
        while let Some(meta) = self.frames.front(pool)
            && (now.since(meta.queued) > REPLAY_KEPT_NS || meta.flow.is_none_or(&is_received))
            && let Some(old) = self.pop(pool, keepers)
        {
            pool.free(old);
        }
    }

    /// Frees all.
    pub fn clear(&mut self, pool: &mut Pool, keepers: &mut Keepers) {
        while let Some(frame) = self.pop(pool, keepers) {
            pool.free(frame);
        }
    }
}
