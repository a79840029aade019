//! Control frames: what the switch takes aside for the protocols beside it ([`crate::protocol`]),
//! and what those send. Neither waits in a queue with other frames: what is said about a link must
//! not wait behind what is on it. Both are bounded.
//!
//! Taken aside is what comes from the uplink for a reserved group address (IEEE 802.1Q, table 8-1),
//! which no bridge forwards. A bond takes what is for it before: LACPDUs, markers and hellos.

use super::{OUT, Role, Switch};
use crate::frame::{Frame, Out, Pool};
use crate::program::PortId;
use crate::switch::parse::{longest_segment, parse};
use crate::verdict::Reason;
use std::collections::VecDeque;

/// Frames that wait for the protocols: sixteen members may each get four in a round.
const MOST: usize = 64;

/// What was taken aside.
#[derive(Debug, Default)]
pub(super) struct Control {
    is_heard: bool,
    waiting: VecDeque<(PortId, Frame)>,
}

impl Control {
    /// Whether there is somebody whom reserved frames are for.
    pub fn is_heard(&self) -> bool {
        self.is_heard
    }

    /// Whether there is room for another.
    pub fn has_room(&self) -> bool {
        self.waiting.len() < MOST
    }

    /// Frames that wait.
    pub fn frames(&self) -> usize {
        self.waiting.len()
    }

    /// Frees what came by a port, or by any; returns how many frames.
    pub fn clear(&mut self, pool: &mut Pool, of: Option<PortId>) -> u64 {
        let mut freed = 0;
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some((port, frame)) if of.is_some_and(|of| of != port) => self.waiting.push_back((port, frame)),
                Some((_, frame)) => {
                    pool.free(frame);
                    freed += 1;
                }
                None => {}
            }
        }
        freed
    }
}

impl Switch {
    /// Says whether frames from the uplink for reserved addresses are for protocols beside the
    /// switch. Where they are not, they are dropped as `reserved`.
    pub fn listen(&mut self, pool: &mut Pool, is_heard: bool) {
        self.control.is_heard = is_heard;
        if is_heard {
            self.control.waiting.reserve(MOST);
        } else {
            let freed = self.control.clear(pool, None);
            self.uplink_drops.add(Reason::Removed, freed);
        }
    }

    /// Whether frames that were taken aside wait.
    #[must_use]
    pub fn has_control(&self) -> bool {
        !self.control.waiting.is_empty()
    }

    /// The next frame that was taken aside, and the port by which it came. Whoever takes it frees
    /// it, or gives it back to [`Switch::refuse_control`].
    pub fn poll_control(&mut self) -> Option<(PortId, Frame)> {
        self.control.waiting.pop_front()
    }

    /// No protocol wants a frame that was taken aside.
    pub fn refuse_control(&mut self, pool: &mut Pool, frame: Frame) {
        pool.free(frame);
        self.uplink_drops.add(Reason::Reserved, 1);
    }

    /// A protocol's frame leaves by a port, past all queues, charged to who is at that port. What
    /// is dropped is counted for the uplink.
    pub fn send_control(&mut self, pool: &mut Pool, port: PortId, frame: Frame) {
        let features = self.program.ports.get(port.0).filter(|_| self.role(port) != Role::Nothing).copied();
        let checked = match features {
            None => Err(Reason::Unknown),
            Some(_) if self.out.len() >= OUT => Err(Reason::NoBuffer),
            Some(features) => parse(pool, &frame).and_then(|()| match features {
                _ if !features.offload.takes(&pool.meta(&frame).offload) => Err(Reason::BadOffload),
                _ if longest_segment(pool, &frame) > features.max_frame => Err(Reason::TooLong),
                _ => Ok(()),
            }),
        };
        match checked {
            Ok(()) => {
                pool.meta_mut(&frame).set_out(Out::Payer(port));
                self.out.push_back((port, frame));
            }
            Err(reason) => {
                pool.free(frame);
                self.uplink_drops.add(reason, 1);
            }
        }
    }

    /// Takes a frame aside for the protocols.
    pub(super) fn take_aside(&mut self, pool: &mut Pool, port: PortId, frame: Frame) -> Result<(), Reason> {
        if !self.control.has_room() {
            pool.free(frame);
            return Err(Reason::ControlFull);
        }
        self.control.waiting.push_back((port, frame));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
