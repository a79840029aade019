//! A lane: the queue of one endpoint in one direction, with a bound and active management.
//!
//! Frames wait in order. Where the queue's delay stands (CoDel), the sender is told: ECT frames are
//! marked, others lose one segment off the tail of an offloaded frame, or themselves if they are a
//! single segment. A frame that does not fit is trimmed to what fits, since a queue of single
//! frames would have lost only those. An endpoint that keeps its lane full for long does not react
//! to any of this: [`Lane::is_stuck`] lets the shell stop reading from it.

use super::losses::Losses;
use crate::aqm::codel::{Codel, TARGET_NS};
use crate::aqm::{self, Aqm, AqmStats};
use crate::frame::{Class, Fifo, Frame, Meta, Owner, Pool};
use crate::segment;
use crate::sojourn::Waits;
use crate::stats::{LaneStats, Traffic, count_on};
use crate::units::Instant;
use crate::verdict::Reason;
use crate::wire::Mac;

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

    /// Charges what will wait to an owner; nothing waits yet.
    pub fn own(&mut self, owner: Owner) {
        self.fifo.own(owner);
    }

    /// Charges what waits, and what will, to another. Takes time in proportion to what waits.
    pub fn set_owner(&mut self, pool: &mut Pool, owner: Owner) {
        self.fifo.set_owner(pool, owner);
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fifo.is_empty()
    }

    /// Wire bytes of the first frame, as far as `max_frame` lets it go at once; zero where nothing
    /// waits.
    #[must_use]
    pub fn head(&self, pool: &Pool, max_frame: u32) -> u32 {
        self.fifo.front(pool).map_or(0, |meta| meta.wire_bytes.min(max_frame))
    }

    /// Appends a frame, or as many of its segments as fit. What does not fit is told to `losses`.
    ///
    /// # Errors
    /// The frame is freed and the reason given where nothing of it fits.
    pub fn enqueue(&mut self, pool: &mut Pool, now: Instant, frame: Frame, losses: &mut Losses) -> Result<(), Reason> {
        let meta = pool.meta(&frame);
        let segments = || segment::segments(&meta.layout, &meta.offload);
        let class = pool.class(&frame);
        let may_wait = |owner, held| pool.may_wait(owner, class, held);
        match self.admit(may_wait, meta.wire_bytes, class, segments) {
            Admission::Whole => {}
            Admission::Trimmed(surplus) => {
                self.fills(now);
                self.trim(pool, &frame, surplus, losses);
            }
            Admission::Refused(reason) => return self.refuse(pool, now, frame, reason, losses),
        }
        pool.meta_mut(&frame).queued = now;
        self.fifo.push(pool, frame);
        Ok(())
    }

    /// The same where another discipline than the lane's own has the queue.
    ///
    /// # Errors
    /// The frame is freed and the reason given where nothing of it fits.
    pub fn enqueue_under(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        frame: Frame,
        losses: &mut Losses,
        aqm: &mut Aqm,
    ) -> Result<(), Reason> {
        let before = *aqm.stats();
        let Meta { layout, offload, .. } = *pool.meta(&frame);
        let (segments, class) = (segment::segments(&layout, &offload), pool.class(&frame));
        let may_wait = |owner, held| pool.may_wait(owner, class, held);
        match self.admit(may_wait, pool.meta(&frame).wire_bytes, class, || segments) {
            Admission::Whole => {}
            Admission::Trimmed(surplus) => {
                aqm.overflows(pool.bytes(&frame), &layout, surplus);
                self.fills(now);
                self.trim(pool, &frame, surplus, losses);
            }
            Admission::Refused(reason) => {
                if reason == Reason::QueueFull {
                    aqm.overflows(pool.bytes(&frame), &layout, segments);
                }
                return self.refuse(pool, now, frame, reason, losses);
            }
        }
        let mut lost = Lost { whole: 0, losses };
        let waiting = self.fifo.wire_bytes();
        aqm.arrive(pool, now, waiting, frame, (&mut self.fifo, &mut |pool, frame, wire| lost.note(pool, frame, wire)));
        let whole = lost.whole;
        self.count_signals(&before, aqm.stats(), whole);
        Ok(())
    }

    /// As [`Lane::dequeue`], where another discipline than the lane's own has the queue.
    pub fn dequeue_under(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        max_frame: u32,
        losses: &mut Losses,
        aqm: &mut Aqm,
    ) -> Option<Served> {
        loop {
            let mut frame = self.fifo.pop(pool)?;
            if pool.meta(&frame).wire_bytes > max_frame.min(MAY_BE_MANY) {
                frame = self.cut(pool, frame, max_frame);
            }
            let before = *aqm.stats();
            let mut lost = Lost { whole: 0, losses };
            let lose = &mut |pool: &Pool, frame: &Frame, wire| lost.note(pool, frame, wire);
            let leaves = aqm.leave(pool, now, frame, (&mut self.fifo, lose));
            let whole = lost.whole;
            self.count_signals(&before, aqm.stats(), whole);
            self.drains();
            if let Some(frame) = leaves {
                return Some(self.count_served(pool, now, frame));
            }
        }
    }

    /// Counts what a discipline did meanwhile; of the frames that it took from, so many were lost
    /// whole.
    fn count_signals(&mut self, before: &AqmStats, after: &AqmStats, whole: u64) {
        self.marks += after.marks - before.marks;
        self.trims += (after.dropped.total() - before.dropped.total()).saturating_sub(whole);
        self.aqm_drops += whole;
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

    /// How much of a frame fits that takes `wire` bytes on the wire and a buffer of this class.
    /// `may_wait` says whether there is one for one more frame of an owner's in a queue that holds
    /// so many bytes of memory ([`Pool::may_wait`]).
    #[inline]
    #[must_use]
    pub fn admit(
        &self,
        may_wait: impl FnOnce(Owner, u64) -> bool,
        wire: u32,
        class: Class,
        segments: impl FnOnce() -> u32,
    ) -> Admission {
        let times = if class == Class::Small { MEMORY_SMALL } else { MEMORY_LONG };
        let (wire, memory) = (u64::from(wire), u64::from(class.bytes()));
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
        let segments = segments();
        let fits = (bound - used) * u64::from(segments) / wire.max(1);
        if fits == 0 { Admission::Refused(Reason::QueueFull) } else { Admission::Trimmed(segments - fits as u32) }
    }

    /// The bound in wire bytes.
    #[must_use]
    pub fn bound(&self) -> u32 {
        self.bound
    }

    /// Takes the first frame, cut to at most `max_frame` wire bytes (but at least one segment).
    /// Counts it as served, and how long it waited. `None` where nothing is left, which the queue's
    /// management may have caused just now. What that takes away is told to `losses`.
    pub fn dequeue(&mut self, pool: &mut Pool, now: Instant, max_frame: u32, losses: &mut Losses) -> Option<Served> {
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
                let Some(signalled) = self.signal(pool, frame, signals, losses) else { continue };
                frame = signalled;
            }
            self.drains();
            return Some(self.count_served(pool, now, frame));
        }
    }

    #[inline]
    fn count_served(&mut self, pool: &Pool, now: Instant, frame: Frame) -> Served {
        let meta = pool.meta(&frame);
        let (segments, waited_ns) = (segment::segments(&meta.layout, &meta.offload), now.since(meta.queued));
        self.served.add(segments, pool.len(&frame), meta.wire_bytes);
        Served { frame, segments, full: self.waits.record(waited_ns) }
    }

    /// Takes the first frame as it is, to let it wait elsewhere.
    pub fn give_up(&mut self, pool: &mut Pool) -> Option<Frame> {
        self.fifo.pop(pool)
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

    /// Frees everything that waits; returns how many frames.
    pub fn clear(&mut self, pool: &mut Pool) -> u32 {
        self.fifo.clear(pool)
    }

    /// It could not take everything at `now`.
    fn fills(&mut self, now: Instant) {
        if self.full_since == 0 {
            self.full_since = ticks(now).max(1);
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
        let queued = pool.meta(&frame).queued;
        let (first, rest) = segment::split_at_most(pool, frame, max_frame, MOST_SEGMENTS);
        if let Some(rest) = rest {
            pool.meta_mut(&rest).queued = queued;
            pool.meta_mut(&first).queued = queued;
            self.fifo.push_front(pool, rest);
        }
        first
    }

    /// Tells the sender. What goes on of the frame; `None` where the only way was to drop it. Of
    /// what can be marked that is what is marked, one segment for each signal, and the rest goes
    /// back to the front.
    #[cold]
    fn signal(&mut self, pool: &mut Pool, frame: Frame, signals: u32, losses: &mut Losses) -> Option<Frame> {
        if segment::is_capable(pool.bytes(&frame), &pool.meta(&frame).layout) {
            let (part, rest) = aqm::cut(pool, frame, signals);
            if let Some(rest) = rest {
                self.fifo.push_front(pool, rest);
            }
            self.marks += u64::from(aqm::mark(pool, &part));
            return Some(part);
        }
        if self.trim(pool, &frame, signals, losses) > 0 || aqm::is_alone(pool, &frame, self.codel.is_odd()) {
            return Some(frame);
        }
        losses.note(sender(pool, &frame), pool.meta(&frame).wire_bytes);
        pool.free(frame);
        self.aqm_drops += 1;
        None
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

/// What a discipline takes from a lane.
struct Lost<'a> {
    /// Frames of which nothing is left.
    whole: u64,
    losses: &'a mut Losses,
}

impl Lost<'_> {
    fn note(&mut self, pool: &Pool, frame: &Frame, wire_bytes: u32) {
        self.whole += u64::from(pool.meta(frame).wire_bytes == wire_bytes);
        self.losses.note(sender(pool, frame), wire_bytes);
    }
}

/// A moment in units of 2^20 ns, about a millisecond, in half the bits; they come again after 50
/// days.
fn ticks(now: Instant) -> u32 {
    (now.0 >> 20) as u32
}

/// The source address of a frame.
fn sender(pool: &Pool, frame: &Frame) -> Mac {
    pool.bytes(frame).get(6..12).map_or(Mac::default(), |mac| Mac(mac.try_into().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::PoolLimits;
    use crate::wire::transport::TCP_FLAGS;
    use crate::wire::{L4, tcp_flags};

    const MS: u64 = 1_000_000;

    /// How many of the frames that went into a lane at once its management took, where one leaves
    /// each `every_ns` and another comes. They have `len` bytes, take `wire` on the wire, and are
    /// TCP segments with these flags, or UDP.
    fn taken(waiting: u32, every_ns: u64, (len, wire): (usize, u32), flags: Option<u8>) -> u64 {
        let mut pool = Pool::new(PoolLimits { small: 1000, medium: 1000, large: 20 });
        let (mut lane, mut losses) = (Lane::new(1 << 24), Losses::default());
        let frame = |pool: &mut Pool| {
            let frame = pool.alloc(len).expect("a buffer");
            let (bytes, meta) = pool.parts_mut(&frame);
            (meta.wire_bytes, meta.layout.l4_offset) = (wire, 34);
            meta.layout.l4 = if flags.is_some() { L4::Tcp } else { L4::Udp };
            bytes[34 + TCP_FLAGS] = flags.unwrap_or(0);
            frame
        };
        let mut now = Instant(MS);
        for n in 0..waiting + 1000 {
            let one = frame(&mut pool);
            lane.enqueue(&mut pool, now, one, &mut losses).expect("room");
            if n >= waiting {
                now = now.plus_ns(every_ns);
                let served = lane.dequeue(&mut pool, now, 1538, &mut losses).expect("a frame");
                pool.free(served.frame);
            }
        }
        lane.aqm_drops()
    }

    #[test]
    fn a_segment_that_is_alone_is_not_lost_to_the_queues_management() {
        let (full, short, ack) = ((1514, 1538), (200, 224), tcp_flags::ACK);
        assert!(taken(40, MS / 2, full, Some(ack)) > 10);
        assert!(taken(200, MS / 2, short, None) > 10, "UDP");
        let all = taken(200, MS / 2, short, None);
        let half = all / 4..=all * 3 / 4;
        assert!(half.contains(&taken(200, MS / 2, short, Some(ack))), "short ones alone, every second");
        assert_eq!(taken(200, MS / 2, short, Some(tcp_flags::SYN)), 0, "beginnings");
    }

    #[test]
    fn a_few_segments_on_a_slow_link_are_no_standing_queue() {
        let full = (1514, 1538);
        assert_eq!(taken(14, MS / 2, full, None), 0, "7 ms at 25 Mbit/s");
        assert!(taken(30, MS / 2, full, None) > 10, "15 ms");
        assert!(taken(14, 2 * MS, full, None) > 0, "28 ms at 6 Mbit/s");
    }
}
