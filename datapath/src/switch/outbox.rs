//! What leaves next: first in, first out, in few steps for each frame. What comes is put on one
//! pile; when the other is used up, the first is turned round and takes its place.

use crate::frame::Frame;
use crate::ids::PortId;

/// See the module.
#[derive(Debug)]
pub(super) struct Outbox {
    coming: Vec<(PortId, Frame)>,
    /// The first one last.
    leaving: Vec<(PortId, Frame)>,
}

impl Outbox {
    /// An empty one with room for so many frames.
    pub fn with_capacity(frames: usize) -> Outbox {
        Outbox { coming: Vec::with_capacity(frames), leaving: Vec::with_capacity(frames) }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.coming.len() + self.leaving.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn push_back(&mut self, out: (PortId, Frame)) {
        self.coming.push(out);
    }

    #[inline]
    pub fn pop_front(&mut self) -> Option<(PortId, Frame)> {
        match self.leaving.pop() {
            None if self.coming.len() > 1 => self.turn(),
            None => self.coming.pop(),
            first => first,
        }
    }

    #[inline(never)]
    fn turn(&mut self) -> Option<(PortId, Frame)> {
        std::mem::swap(&mut self.coming, &mut self.leaving);
        self.leaving.reverse();
        self.leaving.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Pool, PoolLimits};

    #[test]
    fn what_comes_first_leaves_first() {
        let mut pool = Pool::new(PoolLimits { small: 100, medium: 0, large: 0 });
        let (mut outbox, mut came, mut left) = (Outbox::with_capacity(8), 0, 0);
        for (push, pop) in [(3, 1), (2, 0), (0, 2), (4, 5), (20, 7), (1, 40)] {
            for _ in 0..push {
                outbox.push_back((PortId(came), pool.alloc(60).expect("room")));
                came += 1;
            }
            for _ in 0..pop {
                let Some((port, frame)) = outbox.pop_front() else { break };
                assert_eq!(port, PortId(left));
                left += 1;
                pool.free(frame);
            }
            assert_eq!(outbox.len(), (came - left) as usize);
        }
        assert!(outbox.is_empty() && outbox.pop_front().is_none());
        assert_eq!((came, left, pool.in_use()), (30, 30, 0));
    }
}
