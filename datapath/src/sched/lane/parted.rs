//! A lane in which several flows wait: each has a queue of its own ([`crate::sched::flows`]).

use super::{Admission, FEW_NS, Lane, MAY_BE_MANY, NONE, Served, cut, sender};
use crate::frame::{Frame, Pool};
use crate::sched::flows::{Flows, Queue};
use crate::sched::losses::Losses;
use crate::segment;
use crate::units::Instant;

/// The same of one flow among several.
const FEW_OF_FLOW: u32 = 4 * 1538;
/// A full frame: less left behind is no standing queue of a flow (RFC 8289, section 4.4).
const FULL_FRAME: u32 = 1538;
/// Frames of a flow that has much, which may go for one of a flow that has little.
const MOST_EVICTED: u32 = 4;

impl Lane {
    /// The queue of a frame's flow, where it is not the only one that waits.
    #[inline]
    pub(super) fn queue_for(
        &mut self,
        pool: &mut Pool,
        frame: &Frame,
        flows: &mut Flows,
        quantum: u32,
        ahead: u32,
    ) -> u32 {
        let hash = flows.hash(pool.bytes(frame), &pool.meta(frame).layout);
        if self.spread == NONE {
            if self.flow == hash {
                return NONE;
            }
            self.part(pool, hash, flows, quantum, ahead);
            if self.spread == NONE {
                return NONE;
            }
        }
        flows.find_or_open(self.spread, hash, quantum)
    }

    /// A frame of a flow has come: where it is another than what waits is of, that gets a queue of
    /// its own.
    #[cold]
    fn part(&mut self, pool: &mut Pool, hash: u32, flows: &mut Flows, quantum: u32, ahead: u32) {
        if self.flow == NONE {
            let first = self.fifo.chain().behind(pool, ahead, |bytes, meta| flows.hash(bytes, &meta.layout));
            self.flow = first.unwrap_or(hash);
            if self.flow == hash {
                return;
            }
        }
        let before: u32 = self.fifo.chain().first_wire_bytes(pool, ahead);
        let rest = self.fifo.chain_mut().split_off(pool, ahead);
        let wire_bytes = self.fifo.wire_bytes() as u32 - before;
        match flows.spread(rest, wire_bytes, self.flow, self.codel.clone(), quantum) {
            Some(spread) => (self.spread, self.full_since) = (spread, 0),
            None => self.fifo.chain_mut().append(pool, rest),
        }
    }

    /// A frame does not fit. Where its flow has no more than its part of the lane, flows that have
    /// more lose some of theirs: the last segments of their first frames, or these. Whether there
    /// may be room now.
    #[cold]
    pub(super) fn make_room(
        &mut self,
        pool: &mut Pool,
        frame: &Frame,
        flows: &mut Flows,
        queue: u32,
        losses: &mut Losses,
    ) -> bool {
        let part = self.bound / (flows.count(self.spread) + 1);
        let wire = pool.meta(frame).wire_bytes;
        if flows.queue(queue).wire_bytes.saturating_add(wire) > part {
            return false;
        }
        for _ in 0..MOST_EVICTED {
            let over = (self.fifo.wire_bytes() + u64::from(wire)).saturating_sub(u64::from(self.bound));
            let fat = flows.fat(self.spread);
            let from = flows.queue(fat);
            if fat == queue || from.wire_bytes <= part {
                break;
            }
            let Some(first) = from.chain.pop(pool) else { break };
            self.fifo.count_out(pool, &first);
            from.wire_bytes -= pool.meta(&first).wire_bytes;
            let segments = over.div_ceil(u64::from(segment::segment_bytes(pool.meta(&first)))) as u32;
            if segments > 0 && segments < segment::segments(&pool.meta(&first).layout, &pool.meta(&first).offload) {
                self.trim(pool, &first, segments, losses);
                self.fifo.count_in(pool, &first);
                from.wire_bytes += pool.meta(&first).wire_bytes;
                from.chain.push_front(pool, first);
            } else {
                losses.note(sender(pool, &first), pool.meta(&first).wire_bytes);
                pool.free(first);
                self.aqm_drops += 1;
            }
            if self.admit_frame(pool, frame) == Admission::Whole {
                break;
            }
        }
        true
    }

    /// What waits is one queue from now on.
    #[cold]
    pub(super) fn unite(&mut self, pool: &mut Pool, flows: &mut Flows) {
        let spread = std::mem::replace(&mut self.spread, NONE);
        let rest = flows.gather(pool, spread);
        self.fifo.chain_mut().append(pool, rest);
        self.flow = NONE;
    }

    /// As [`Lane::dequeue`], where there are several flows.
    #[inline(never)]
    pub(super) fn dequeue_flow(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        max_frame: u32,
        flows: &mut Flows,
        losses: &mut Losses,
    ) -> Option<Served> {
        loop {
            let Some(at) = flows.pick(self.spread, max_frame) else {
                self.spread = NONE;
                return None;
            };
            if flows.count(self.spread) == 1 {
                let last = flows.queue(at);
                let (codel, hash) = (last.codel.clone(), last.hash);
                self.unite(pool, flows);
                (self.codel, self.flow) = (codel, hash);
                return self.dequeue(pool, now, max_frame, flows, losses);
            }
            let queue = flows.queue(at);
            let mut frame = queue.chain.pop(pool)?;
            self.count_out(pool, queue, &frame);
            if pool.meta(&frame).wire_bytes > max_frame.min(MAY_BE_MANY) {
                let (first, rest) = cut(pool, frame, max_frame);
                self.put_back(pool, queue, rest);
                frame = first;
            }
            let (wire_bytes, sojourn_ns) = (pool.meta(&frame).wire_bytes, now.since(pool.meta(&frame).queued));
            let left = queue.wire_bytes;
            let last = left < FULL_FRAME || (left < FEW_OF_FLOW && sojourn_ns < FEW_NS);
            let signals = queue.codel.signals(now, sojourn_ns, last);
            queue.deficit -= wire_bytes as i32;
            if signals > 0 {
                let (signalled, rest) = self.signal(pool, frame, signals, queue.codel.is_odd(), losses);
                self.put_back(pool, queue, rest);
                let Some(signalled) = signalled else { continue };
                frame = signalled;
            }
            if self.fifo.is_empty() {
                self.unite(pool, flows);
            }
            self.drains();
            return Some(self.count_served(pool, now, frame));
        }
    }

    fn count_out(&mut self, pool: &mut Pool, queue: &mut Queue, frame: &Frame) {
        self.fifo.count_out(pool, frame);
        queue.wire_bytes -= pool.meta(frame).wire_bytes;
    }

    /// What is left of a flow's first frame goes to the front of its queue again.
    fn put_back(&mut self, pool: &mut Pool, queue: &mut Queue, rest: Option<Frame>) {
        if let Some(rest) = rest {
            self.fifo.count_in(pool, &rest);
            queue.wire_bytes += pool.meta(&rest).wire_bytes;
            queue.chain.push_front(pool, rest);
        }
    }
}
