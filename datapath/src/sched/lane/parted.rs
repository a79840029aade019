//! A lane in which several flows wait: each has a queue of its own ([`crate::sched::flows`]).

use super::{Admission, Among, FEW_NS, Lane, MAY_BE_MANY, MEMORY_LONG, NONE, Offer, Served, cut, sender};
use crate::frame::{Chain, Class, Frame, Owner, Pool, PoolLimits};
use crate::sched::flows::{First, Flows, Queue};
use crate::sched::losses::Losses;
use crate::segment;
use crate::units::Instant;
use crate::verdict::Reason;

/// The same of one flow among several.
const FEW_OF_FLOW: u32 = 4 * 1538;
/// A full frame: less left behind is no standing queue of a flow (RFC 8289, section 4.4).
const FULL_FRAME: u32 = 1538;
/// Frames that a flow which has much may lose for one of a flow that has little: as many single
/// segments as an offloaded frame has, and more.
const MOST_EVICTED: usize = 64;

/// What a flow loses for a frame of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// Its queue; [`NONE`] where all that waits is in one.
    queue: u32,
    /// The buffers of so many frames from its front, and so many segments of the next one.
    frees: PoolLimits,
    segments: u32,
}

impl Room {
    pub const NONE: Room = Room { queue: NONE, frees: PoolLimits::NONE, segments: 0 };

    /// The buffers of what goes whole.
    pub fn frees(&self) -> PoolLimits {
        self.frees
    }
}

/// What must go before a frame fits.
#[derive(Clone, Copy, Debug)]
struct Need {
    wire: u64,
    memory: u64,
    /// A buffer of this class.
    class: Option<Class>,
}

impl Need {
    fn is_met(&self) -> bool {
        self.wire == 0 && self.memory == 0 && self.class.is_none()
    }

    /// What of a chain, behind its first `skip` frames, must go. `None` where the first few frames
    /// are not enough.
    fn met_by(mut self, pool: &Pool, chain: Chain, skip: u32) -> Option<Room> {
        let mut room = Room::NONE;
        let mut metas = chain.metas(pool).skip(skip as usize).take(MOST_EVICTED);
        while !self.is_met() {
            let (meta, class) = metas.next()?;
            if self.memory == 0 && self.class.is_none() {
                let segments = self.wire.div_ceil(u64::from(segment::segment_bytes(meta)));
                if segments < u64::from(segment::segments(&meta.layout, &meta.offload)) {
                    room.segments = segments as u32;
                    break;
                }
            }
            room.frees.add(class);
            self.wire = self.wire.saturating_sub(u64::from(meta.wire_bytes));
            self.memory = self.memory.saturating_sub(u64::from(class.bytes()));
            self.class = self.class.filter(|&wanted| wanted != class);
        }
        Some(room)
    }
}

impl Lane {
    /// A frame does not fit. Where its flow has less than another, that one makes room for as much
    /// of it as leaves both alike: the last segments of its first frame go, or its first frames.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_among(
        &self,
        pool: &Pool,
        offer: &Offer<'_>,
        hash: u32,
        mut admission: Admission,
        may_wait: &impl Fn(Owner, u64) -> bool,
        (flows, ahead): (&Flows, u32),
    ) -> (Admission, Room) {
        let (queue, own, (chain, most), skip) = if self.spread == NONE {
            if self.only_flow(pool, flows, ahead) == Some(hash) {
                return (admission, Room::NONE);
            }
            admission = self.admit(may_wait, offer, true);
            if admission == Admission::Whole {
                return (admission, Room::NONE);
            }
            let before = self.fifo.chain().first_wire_bytes(pool, ahead);
            (NONE, 0, (*self.fifo.chain(), self.fifo.wire_bytes() as u32 - before), ahead)
        } else {
            let (own, fat) = (flows.find(self.spread, hash), flows.fat(self.spread));
            if own == Some(fat) {
                return (admission, Room::NONE);
            }
            (fat, own.map_or(0, |own| flows.held(own).1), flows.held(fat), 0)
        };
        let (used, bound) = (self.fifo.wire_bytes(), u64::from(self.bound));
        let may_have = bound.saturating_sub(used) + u64::from(most.saturating_sub(own) / 2);
        let (wire, segments) = (u64::from(offer.wire_bytes), u64::from(offer.segments()));
        let fits = (segments * may_have / wire.max(1)).min(segments);
        if fits == 0 {
            return (admission, Room::NONE);
        }
        let memory = u64::from(offer.class.bytes());
        let need = Need {
            wire: (used + (wire * fits).div_ceil(segments)).saturating_sub(bound),
            memory: (self.fifo.truesize() + memory).saturating_sub(MEMORY_LONG * bound.max(memory)),
            class: (admission == Admission::Refused(Reason::NoBuffer)).then_some(offer.class),
        };
        match need.met_by(pool, chain, skip) {
            None => (admission, Room::NONE),
            Some(room) if fits == segments => (Admission::Whole, Room { queue, ..room }),
            Some(room) => (Admission::Trimmed((segments - fits) as u32), Room { queue, ..room }),
        }
    }

    /// A flow loses what [`Lane::decide_among`] said.
    #[cold]
    #[inline(never)]
    pub(super) fn make_room(
        &mut self,
        pool: &mut Pool,
        room: Room,
        (flows, ahead): (&mut Flows, u32),
        losses: &mut Losses,
    ) {
        let mut chain = match room.queue {
            NONE => self.fifo.chain_mut().split_off(pool, ahead),
            queue => std::mem::take(&mut flows.queue(queue).chain),
        };
        let before = self.fifo.wire_bytes();
        for _ in 0..room.frees.buffers() {
            let Some(frame) = chain.pop(pool) else { break };
            self.fifo.count_out(pool, &frame);
            losses.note(sender(pool, &frame), pool.meta(&frame).wire_bytes);
            pool.free(frame);
            self.aqm_drops += 1;
        }
        if room.segments > 0
            && let Some(first) = chain.pop(pool)
        {
            self.fifo.count_out(pool, &first);
            self.trim(pool, &first, room.segments, losses);
            self.fifo.count_in(pool, &first);
            chain.push_front(pool, first);
        }
        match room.queue {
            NONE => self.fifo.chain_mut().append(pool, chain),
            at => {
                let queue = flows.queue(at);
                queue.chain = chain;
                queue.wire_bytes -= (before - self.fifo.wire_bytes()) as u32;
            }
        }
    }

    /// The queue of a frame's flow, where it is not the only one that waits.
    #[inline]
    pub(super) fn queue_for(&mut self, pool: &mut Pool, frame: &Frame, flows: &mut Flows, among: Among) -> u32 {
        let hash = flows.hash(pool.bytes(frame), &pool.meta(frame).layout);
        if self.spread == NONE {
            if self.flow == hash {
                return NONE;
            }
            self.part(pool, hash, flows, among);
            if self.spread == NONE {
                return NONE;
            }
        }
        flows.find_or_open(self.spread, hash, among.quantum)
    }

    /// The flow of what waits behind the first `ahead` frames, where that is one.
    fn only_flow(&self, pool: &Pool, flows: &Flows, ahead: u32) -> Option<u32> {
        if self.flow != NONE {
            return Some(self.flow);
        }
        self.fifo.chain().behind(pool, ahead, |bytes, meta| flows.hash(bytes, &meta.layout))
    }

    /// A frame of a flow has come: where it is another than what waits is of, that gets a queue of
    /// its own.
    #[cold]
    fn part(&mut self, pool: &mut Pool, hash: u32, flows: &mut Flows, among: Among) {
        let Among { quantum, ahead, tenant } = among;
        self.flow = self.only_flow(pool, flows, ahead).unwrap_or(hash);
        if self.flow == hash {
            return;
        }
        let before = self.fifo.chain().first_wire_bytes(pool, ahead);
        let chain = self.fifo.chain_mut().split_off(pool, ahead);
        let wire_bytes = self.fifo.wire_bytes() as u32 - before;
        let first = First { chain, wire_bytes, hash: self.flow, codel: self.codel.clone() };
        match flows.spread(tenant, first, quantum) {
            Some(spread) => (self.spread, self.full_since) = (spread, 0),
            None => self.fifo.chain_mut().append(pool, chain),
        }
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
            let sojourn_ns = now.since(pool.meta(&frame).queued);
            let left = queue.wire_bytes;
            let last = left < FULL_FRAME || (left < FEW_OF_FLOW && sojourn_ns < FEW_NS);
            let signals = queue.codel.signals(now, sojourn_ns, last);
            if signals > 0 {
                let (signalled, rest) = self.signal(pool, frame, signals, queue.codel.is_odd(), losses);
                self.put_back(pool, queue, rest);
                let Some(signalled) = signalled else { continue };
                frame = signalled;
            }
            flows.serve(at, pool.meta(&frame).wire_bytes);
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
