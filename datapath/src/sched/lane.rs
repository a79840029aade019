//! A lane: the queue of one endpoint in one direction, with a bound and active management.
//!
//! Frames of a flow wait in order; where several flows wait, each has a queue ([`super::flows`]).
//! Where a queue's delay stands (CoDel), the sender is told: ECT frames are marked, others lose one
//! segment off the tail of an offloaded frame, or themselves if they are a single segment. A frame
//! that does not fit is trimmed to what fits, since a queue of single frames would have lost only
//! those. An endpoint that keeps its lane full for long does not react to any of this:
//! [`Lane::is_stuck`] lets the shell stop reading from it.

mod managed;
mod parted;

pub(crate) use parted::Room;

use super::flows::Flows;
use super::losses::Losses;
use crate::aqm;
use crate::aqm::codel::{Codel, TARGET_NS};
use crate::count::count_on;
use crate::frame::{Class, Fifo, Frame, Owner, Pool};
use crate::offload::Offload;
use crate::segment;
use crate::sojourn::Waits;
use crate::stats::{LaneStats, Traffic};
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::{Layout, Mac};

/// Most segments that leave at once: a port that cannot cut gets them one by one, at some 2 us
/// each, and who is next waits for all. With an MTU of 1500, 64 KiB are 45.
const MOST_SEGMENTS: u32 = 64;
/// Wire bytes of a frame that may have more.
const MAY_BE_MANY: u32 = MOST_SEGMENTS * (segment::MIN_FRAME + segment::WIRE_OVERHEAD);
/// How long a lane must have been full before its sender is paused, in [`ticks`]: 50 ms, far longer
/// than any congestion control needs to react.
const STUCK_TICKS: u32 = 48;
/// No more than so much left behind, for no longer than so, is no standing queue: four connections
/// need it so that each has the four segments under way by which one that is lost shows without a
/// time-out (RFC 5681). Above 40 Mbit/s it is less than CoDel's target.
const FEW_BYTES: u64 = 16 * 1538;
const FEW_NS: u64 = 4 * TARGET_NS;
/// [`Lane::spread`] where there is none, and [`Lane::flow`] where it is not known.
const NONE: u32 = u32::MAX;
/// How many times a queue's bound its buffers may take where they are small: a minimal frame uses
/// little of one.
const MEMORY_SMALL: u64 = 2;
/// The same for longer ones, which the shortest frame that needs a medium buffer, or a large one,
/// fills to an eighth or a quarter. With twice the bound a queue at 2 Gbit/s held a millisecond,
/// and one connection lost its share (`lab/run fs-vde`).
const MEMORY_LONG: u64 = 4;

/// How much of a frame a lane takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// All of it.
    Whole,
    /// All but so many segments at its end.
    Trimmed(u32),
    /// Nothing.
    Refused(Reason),
}

/// A frame that wants to wait, as a lane looks at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer<'a> {
    pub layout: &'a Layout,
    pub offload: &'a Offload,
    /// What it takes on the wire.
    pub wire_bytes: u32,
    /// Its buffer.
    pub class: Class,
}

impl<'a> Offer<'a> {
    #[inline]
    fn of(pool: &'a Pool, frame: &Frame) -> Offer<'a> {
        let meta = pool.meta(frame);
        let (wire_bytes, class) = (meta.wire_bytes, pool.class(frame));
        Offer { layout: &meta.layout, offload: &meta.offload, wire_bytes, class }
    }

    fn segments(&self) -> u32 {
        segment::segments(self.layout, self.offload)
    }
}

/// What a lane is told for its flows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Among {
    /// What a flow may send before others have their turn, in wire bytes.
    pub quantum: u32,
    /// Frames that stand before all flows.
    pub ahead: u32,
    /// Whose lane it is, as [`Flows`] counts.
    pub tenant: u32,
}

/// A frame that leaves a lane.
#[derive(Debug)]
pub struct Served {
    /// The frame.
    pub frame: Frame,
    /// Its segments.
    pub segments: u32,
    /// For [`crate::sojourn::Sojourn::carry`].
    pub full: Option<u8>,
}

/// The queue of one endpoint in one direction. What every frame touches comes first, in two cache
/// lines.
#[derive(Debug)]
#[repr(C)]
pub struct Lane {
    fifo: Fifo,
    /// Bound in wire bytes; in buffer memory it is [`MEMORY_SMALL`] or [`MEMORY_LONG`] times that.
    bound: u32,
    /// Since when it has not been less than half full, in [`ticks`]; zero while it is.
    full_since: u32,
    codel: Codel,
    /// The flow of what waits, where that is one; not known before a second frame comes.
    flow: u32,
    /// The flows' queues, where there are several: then `fifo` counts what is in them, and has
    /// itself only what goes ahead.
    spread: u32,
    served: Traffic,
    waits: Waits,
    guaranteed_bytes: u64,
    marks: u64,
    trims: u64,
    /// Frames dropped by the queue's management.
    aqm_drops: u64,
}

/// The largest bound of a lane: its memory, four times that, still counts in 32 bits.
const MAX_BOUND: u32 = 1 << 29;

impl Lane {
    /// An empty lane of at most `bound` bytes.
    #[must_use]
    pub fn new(bound: u32) -> Self {
        Lane {
            fifo: Fifo::default(),
            bound: bound.min(MAX_BOUND),
            full_since: 0,
            codel: Codel::default(),
            flow: NONE,
            spread: NONE,
            served: Traffic::default(),
            waits: Waits::default(),
            guaranteed_bytes: 0,
            marks: 0,
            trims: 0,
            aqm_drops: 0,
        }
    }

    /// Changes its bound. What waits beyond it is not dropped.
    pub fn set_bound(&mut self, bound: u32) {
        self.bound = bound.min(MAX_BOUND);
    }

    /// Who its frames are charged to.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.fifo.owner()
    }

    /// The queue gets another discipline, or its own again: what its own has seen is forgotten.
    pub(crate) fn change_discipline(&mut self) {
        self.codel = Codel::default();
    }

    /// Charges what will wait to an owner; nothing waits yet.
    pub fn own(&mut self, owner: Owner) {
        self.fifo.own(owner);
    }

    /// Charges what waits, and what will, to another. Takes time in proportion to what waits.
    pub(crate) fn set_owner(&mut self, pool: &mut Pool, flows: &Flows, owner: Owner) {
        match self.spread {
            NONE => self.fifo.set_owner(pool, owner),
            spread => self.fifo.set_owner_of(pool, owner, flows.chains(spread)),
        }
    }

    /// Whether nothing waits.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.fifo.is_empty()
    }

    /// Wire bytes of the first frame, as far as `max_frame` lets it go at once; zero where nothing
    /// waits.
    #[must_use]
    pub(crate) fn head(&self, pool: &Pool, flows: &Flows, max_frame: u32) -> u32 {
        let first = match self.fifo.front(pool) {
            Some(meta) => meta.wire_bytes,
            None if self.spread == NONE => 0,
            None => flows.head(self.spread, pool),
        };
        first.min(max_frame)
    }

    /// How much of a frame it would take, and what another flow would lose for it. Changes nothing.
    /// `bytes` are the frame's, `may_wait` as in [`Lane::admit`]; `ahead` frames stand before all.
    #[inline]
    #[must_use]
    pub(crate) fn decide<'a>(
        &self,
        pool: &'a Pool,
        offer: &Offer<'_>,
        bytes: impl FnOnce() -> &'a [u8],
        may_wait: &impl Fn(Owner, u64) -> bool,
        (flows, ahead): (&Flows, u32),
    ) -> (Admission, Room) {
        let admission = self.admit(may_wait, offer, self.spread != NONE);
        if admission == Admission::Whole || self.fifo.frames() == ahead {
            return (admission, Room::NONE);
        }
        let hash = flows.hash(bytes(), offer.layout);
        self.decide_among(pool, offer, hash, admission, may_wait, (flows, ahead))
    }

    /// Appends a frame, or as many of its segments as fit. What does not fit is told to `losses`.
    ///
    /// # Errors
    /// The frame is freed and the reason given where nothing of it fits.
    #[inline]
    pub(crate) fn enqueue(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        frame: Frame,
        (flows, among): (&mut Flows, Among),
        losses: &mut Losses,
    ) -> Result<(), Reason> {
        if !self.fits(pool, &frame) {
            return self.enqueue_crowded(pool, now, frame, (flows, among), losses);
        }
        pool.meta_mut(&frame).queued = now;
        self.put(pool, frame, flows, among);
        Ok(())
    }

    /// Whether it takes all of a frame, and nothing needs to go for that: mostly.
    #[inline]
    fn fits(&self, pool: &Pool, frame: &Frame) -> bool {
        let (class, wire_bytes) = (pool.class(frame), pool.meta(frame).wire_bytes);
        let shift = if class == Class::Small && self.spread == NONE { 1 } else { 2 };
        const { assert!(MEMORY_SMALL == 1 << 1 && MEMORY_LONG == 1 << 2) };
        self.fifo.truesize() + u64::from(class.bytes()) <= u64::from(self.bound) << shift
            && self.fifo.wire_bytes() + u64::from(wire_bytes) <= u64::from(self.bound)
            && pool.may_wait(self.fifo.owner(), class, self.fifo.truesize())
    }

    /// As [`Lane::enqueue`], where a frame may not fit as it is.
    #[cold]
    #[inline(never)]
    fn enqueue_crowded(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        frame: Frame,
        (flows, among): (&mut Flows, Among),
        losses: &mut Losses,
    ) -> Result<(), Reason> {
        let (class, offer) = (pool.class(&frame), Offer::of(pool, &frame));
        let may_wait = |owner, held| pool.may_wait(owner, class, held);
        let (admission, room) = self.decide(pool, &offer, || pool.bytes(&frame), &may_wait, (flows, among.ahead));
        match admission {
            Admission::Whole => {}
            Admission::Trimmed(surplus) => {
                self.fills(now);
                self.trim(pool, &frame, surplus, losses);
            }
            Admission::Refused(reason) => return self.refuse(pool, now, frame, reason, losses),
        }
        if room != Room::NONE {
            self.make_room(pool, room, (flows, among.ahead), losses);
        }
        pool.meta_mut(&frame).queued = now;
        self.put(pool, frame, flows, among);
        Ok(())
    }

    /// Wire bytes of the longest frame in a small buffer that it takes whole when it is empty.
    pub(crate) fn longest_alone(&self) -> u32 {
        let memory = MEMORY_SMALL * u64::from(self.bound);
        if u64::from(Class::Small.bytes()) <= memory { self.bound } else { 0 }
    }

    /// Whether a frame would be the only one here, and go as it is.
    pub(crate) fn is_passed_by(&self, pool: &Pool, frame: &Frame, max_frame: u32) -> bool {
        let meta = pool.meta(frame);
        let segments = segment::segments(&meta.layout, &meta.offload);
        self.fifo.is_empty() && segments <= MOST_SEGMENTS && meta.wire_bytes <= max_frame && self.fits(pool, frame)
    }

    /// A frame that [`Lane::is_passed_by`] holds for comes and goes: counts its segments as served,
    /// if they are to be counted here. Gives what is for [`crate::sojourn::Sojourn::carry`].
    #[inline(always)]
    pub(crate) fn pass(&mut self, pool: &mut Pool, now: Instant, frame: &Frame, counted: Option<u32>) -> Option<u8> {
        let len = pool.len(frame);
        let meta = pool.meta_mut(frame);
        meta.queued = now;
        if let Some(segments) = counted {
            self.served.add(segments, len, meta.wire_bytes);
        }
        self.flow = NONE;
        // It leaves an empty lane behind.
        self.full_since = 0;
        self.codel.signals(now, 0, true);
        self.waits.record(0)
    }

    /// The same of the frames of a run, which are not counted here.
    pub(crate) fn pass_run(&mut self, now: Instant, frames: u32) -> Option<u8> {
        self.flow = NONE;
        self.full_since = 0;
        self.codel.signals(now, 0, true);
        self.waits.record_none(frames)
    }

    /// Puts a frame where its flow waits.
    #[inline]
    fn put(&mut self, pool: &mut Pool, frame: Frame, flows: &mut Flows, among: Among) {
        if self.spread == NONE && self.fifo.frames() == among.ahead {
            self.flow = NONE;
            return self.fifo.push(pool, frame);
        }
        match self.queue_for(pool, &frame, flows, among) {
            NONE => self.fifo.push(pool, frame),
            queue => {
                self.fifo.count_in(pool, &frame);
                flows.push(pool, queue, frame);
            }
        }
    }

    /// Frees a frame that the lane does not take.
    fn refuse(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        frame: Frame,
        reason: Reason,
        losses: &mut Losses,
    ) -> Result<(), Reason> {
        if reason == Reason::QueueFull {
            self.fills(now);
        }
        losses.note(sender(pool, &frame), pool.meta(&frame).wire_bytes);
        pool.free(frame);
        Err(reason)
    }

    /// Puts a frame behind the first `before`, whatever else waits.
    pub fn enqueue_ahead(&mut self, pool: &mut Pool, now: Instant, before: u32, frame: Frame) {
        pool.meta_mut(&frame).queued = now;
        self.fifo.insert(pool, before, frame);
    }

    /// Takes the first frame, which has nothing to do with the queue behind it: its management is
    /// not asked.
    pub fn dequeue_ahead(&mut self, pool: &mut Pool, now: Instant) -> Option<Served> {
        let frame = self.fifo.pop(pool)?;
        Some(self.count_served(pool, now, frame))
    }

    /// How much of a frame fits. `may_wait` says whether there is a buffer for one more frame of an
    /// owner's in a queue that holds so many bytes of memory ([`Pool::may_wait`]). Where it is
    /// `parted`, what a flow of short frames may have is not used up by one of long ones.
    #[inline]
    fn admit(&self, may_wait: &impl Fn(Owner, u64) -> bool, offer: &Offer<'_>, parted: bool) -> Admission {
        let times = if offer.class == Class::Small && !parted { MEMORY_SMALL } else { MEMORY_LONG };
        let (wire, memory) = (u64::from(offer.wire_bytes), u64::from(offer.class.bytes()));
        let (used, bound) = (self.fifo.wire_bytes(), u64::from(self.bound));
        if self.fifo.truesize() + memory > times * bound.max(memory) || used >= bound {
            return Admission::Refused(Reason::QueueFull);
        }
        if !may_wait(self.fifo.owner(), self.fifo.truesize()) {
            return Admission::Refused(Reason::NoBuffer);
        }
        if used + wire <= bound || used == 0 {
            return Admission::Whole;
        }
        let segments = offer.segments();
        let fits = (bound - used) * u64::from(segments) / wire.max(1);
        if fits == 0 { Admission::Refused(Reason::QueueFull) } else { Admission::Trimmed(segments - fits as u32) }
    }

    /// As [`Lane::decide`], where a discipline has the queue: then all flows wait in one.
    #[must_use]
    pub(crate) fn decide_managed(&self, offer: &Offer<'_>, may_wait: &impl Fn(Owner, u64) -> bool) -> Admission {
        self.admit(may_wait, offer, false)
    }

    /// The bound in wire bytes.
    #[must_use]
    pub fn bound(&self) -> u32 {
        self.bound
    }

    /// Takes the first frame, cut to at most `max_frame` wire bytes (but at least one segment).
    /// Counts it as served, and how long it waited. `None` where nothing is left, which the queue's
    /// management may have caused just now. What that takes away is told to `losses`.
    pub(crate) fn dequeue(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        max_frame: u32,
        flows: &mut Flows,
        losses: &mut Losses,
    ) -> Option<Served> {
        if self.spread != NONE && self.fifo.front(pool).is_none() {
            return self.dequeue_flow(pool, now, max_frame, flows, losses);
        }
        loop {
            let mut frame = self.fifo.pop(pool)?;
            if pool.meta(&frame).wire_bytes > max_frame.min(MAY_BE_MANY) {
                frame = self.cut(pool, frame, max_frame);
            }
            let sojourn_ns = now.since(pool.meta(&frame).queued);
            let left = self.fifo.wire_bytes();
            let last = left < u64::from(max_frame) || (left < FEW_BYTES && sojourn_ns < FEW_NS);
            let signals = self.codel.signals(now, sojourn_ns, last);
            if signals > 0 {
                let (signalled, rest) = self.signal(pool, frame, signals, self.codel.is_odd(), losses);
                if let Some(rest) = rest {
                    self.fifo.push_front(pool, rest);
                }
                let Some(signalled) = signalled else { continue };
                frame = signalled;
            }
            self.drains();
            return Some(self.count_served(pool, now, frame));
        }
    }

    #[inline]
    fn count_served(&mut self, pool: &Pool, now: Instant, frame: Frame) -> Served {
        let (segments, full) = self.count(pool, now, &frame);
        Served { frame, segments, full }
    }

    #[inline]
    fn count(&mut self, pool: &Pool, now: Instant, frame: &Frame) -> (u32, Option<u8>) {
        let meta = pool.meta(frame);
        let (segments, waited_ns) = (segment::segments(&meta.layout, &meta.offload), now.since(meta.queued));
        self.served.add(segments, pool.len(frame), meta.wire_bytes);
        (segments, self.waits.record(waited_ns))
    }

    /// Takes the first frame as it is, to let it wait elsewhere.
    pub fn give_up(&mut self, pool: &mut Pool) -> Option<Frame> {
        debug_assert!(self.spread == NONE, "its flows' queues are given up first");
        self.fifo.pop(pool)
    }

    /// Its flows' queues are one, before it goes to where there are none.
    pub(crate) fn give_up_flows(&mut self, pool: &mut Pool, flows: &mut Flows) {
        if self.spread != NONE {
            self.unite(pool, flows);
        }
    }

    /// What it keeps of how long frames waited.
    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Of what was dequeued last, `bytes` went by guarantee.
    pub fn served_by_guarantee(&mut self, bytes: u32) {
        self.guaranteed_bytes += u64::from(bytes);
    }

    /// Its sender has kept it full for so long that it cannot be reacting.
    #[must_use]
    pub fn is_stuck(&self, now: Instant) -> bool {
        self.full_since != 0 && ticks(now).wrapping_sub(self.full_since) >= STUCK_TICKS
    }

    /// Wire bytes served.
    #[must_use]
    pub fn served_bytes(&self) -> u64 {
        self.served.wire_bytes
    }

    /// Memory of the buffers that wait, in bytes.
    #[must_use]
    pub fn truesize(&self) -> u64 {
        self.fifo.truesize()
    }

    /// Wire bytes that wait.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.fifo.wire_bytes()
    }

    /// Frames that wait.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.fifo.frames()
    }

    /// Counters, and what waits now.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        LaneStats {
            traffic: self.served,
            guaranteed_bytes: self.guaranteed_bytes,
            marks: self.marks,
            trims: self.trims,
            backlog_bytes: self.fifo.wire_bytes(),
            backlog_frames: self.fifo.frames(),
            sojourn_max_ns: self.waits.max_ns(),
            unmet_ns: 0,
        }
    }

    /// Counts on from another lane's counters.
    pub fn restore(&mut self, counted: &LaneStats) {
        self.served.count_on(&counted.traffic);
        count_on(&mut self.guaranteed_bytes, counted.guaranteed_bytes);
        count_on(&mut self.marks, counted.marks);
        count_on(&mut self.trims, counted.trims);
        self.waits.restore_max(counted.sojourn_max_ns);
    }

    /// Frames dropped by the queue's management.
    #[must_use]
    pub fn aqm_drops(&self) -> u64 {
        self.aqm_drops
    }

    /// Frees everything that waits; returns how many frames. Nothing of it is left that could show
    /// that the lane drains, so what it has seen goes with it.
    pub(crate) fn clear(&mut self, pool: &mut Pool, flows: &mut Flows) -> u32 {
        self.give_up_flows(pool, flows);
        (self.full_since, self.codel) = (0, Codel::default());
        self.fifo.clear(pool)
    }

    /// It could not take everything at `now`.
    fn fills(&mut self, now: Instant) {
        // Where several flows wait, one that does not react is no reason to read nothing of the
        // others.
        if self.full_since == 0 && self.spread == NONE {
            self.full_since = ticks(now);
        }
    }

    /// Something has left it.
    #[inline]
    fn drains(&mut self) {
        if self.full_since != 0 && self.fifo.wire_bytes() < u64::from(self.bound) / 2 {
            self.full_since = 0;
        }
    }

    /// The first part of `frame`; the rest goes back to the front. Where there is no buffer for the
    /// part, the frame goes whole.
    fn cut(&mut self, pool: &mut Pool, frame: Frame, max_frame: u32) -> Frame {
        let (first, rest) = cut(pool, frame, max_frame);
        if let Some(rest) = rest {
            self.fifo.push_front(pool, rest);
        }
        first
    }

    /// Tells the sender. What goes on of the frame, `None` where the only way was to drop it, and
    /// what goes back to the front: of what can be marked one segment for each signal is marked,
    /// and goes.
    #[cold]
    fn signal(
        &mut self,
        pool: &mut Pool,
        frame: Frame,
        signals: u32,
        odd: bool,
        losses: &mut Losses,
    ) -> (Option<Frame>, Option<Frame>) {
        if segment::is_capable(pool.bytes(&frame), &pool.meta(&frame).layout) {
            let (part, rest) = aqm::cut(pool, frame, signals);
            self.marks += u64::from(aqm::mark(pool, &part));
            return (Some(part), rest);
        }
        if self.trim(pool, &frame, signals, losses) > 0 || aqm::is_alone(pool, &frame, odd) {
            return (Some(frame), None);
        }
        losses.note(sender(pool, &frame), pool.meta(&frame).wire_bytes);
        pool.free(frame);
        self.aqm_drops += 1;
        (None, None)
    }

    /// Takes segments off a frame's tail; returns how many.
    fn trim(&mut self, pool: &mut Pool, frame: &Frame, segments: u32, losses: &mut Losses) -> u32 {
        let before = pool.meta(frame).wire_bytes;
        let trimmed = segment::trim(pool, frame, segments);
        if trimmed > 0 {
            losses.note(sender(pool, frame), before - pool.meta(frame).wire_bytes);
        }
        self.trims += u64::from(trimmed);
        trimmed
    }
}

/// The first part of a frame, which may go at once, and the rest if there is one. Where there is no
/// buffer for the part, the frame goes whole.
fn cut(pool: &mut Pool, frame: Frame, max_frame: u32) -> (Frame, Option<Frame>) {
    let queued = pool.meta(&frame).queued;
    let (first, rest) = segment::split_at_most(pool, frame, max_frame, MOST_SEGMENTS);
    if let Some(rest) = &rest {
        pool.meta_mut(rest).queued = queued;
        pool.meta_mut(&first).queued = queued;
    }
    (first, rest)
}

/// A moment in units of 2^20 ns, about a millisecond, in half the bits; they come again after 50
/// days. Never 0, which stands for no moment.
fn ticks(now: Instant) -> u32 {
    ((now.0 >> 20) as u32).max(1)
}

/// The source address of a frame.
fn sender(pool: &Pool, frame: &Frame) -> Mac {
    pool.bytes(frame).get(6..12).map_or(Mac::default(), |mac| Mac(mac.try_into().unwrap_or_default()))
}

#[cfg(test)]
mod tests;
