//! Link: a wire between two ports, with a rate, a delay and a queue at each end.
//!
//! A lab joins switches of one process with it, and the simulator everything. Each direction is a
//! queue bounded in wire bytes, a transmitter that sends one frame at a time, and the frames in
//! flight behind it. The transmitter's clock is exact: what a frame takes is kept as whole
//! nanoseconds and a remainder in units of 1/rate, so that a million frames take as long as their
//! bytes say. A frame starts when the transmitter was free and the frame was there, whenever `poll`
//! is called: a late caller loses no rate.
//!
//! Frames may be offloaded ones. What does not fit into the queue is cut off a frame's tail by
//! segments, since a queue in a real network would have met the segments one by one. (One
//! difference stays: an offloaded frame arrives as a whole, with its last bit.)

use crate::aqm::{Aqm, Discipline, QueueState};
use crate::frame::{Fifo, Frame, Meta, Pool};
use crate::random::dice;
use crate::segment;
use crate::units::{Instant, Rate};

/// Units of a remainder in one nanosecond at 1 bit/s: what a byte takes is `8 * NS_BITS / rate`
/// nanoseconds.
const BYTE_NS_BITS: u64 = 8_000_000_000;
/// A probability of one, for [`LinkConfig::loss_ppm`].
pub const CERTAIN_PPM: u32 = 1_000_000;

/// An end of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Side {
    /// The end that configurations call `a`.
    A,
    /// The end that configurations call `b`.
    B,
}

impl Side {
    /// Both ends.
    pub const ALL: [Side; 2] = [Side::A, Side::B];

    /// The other end.
    #[must_use]
    pub const fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// What a link is like; both directions are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// Wire bits a second. Zero stops the transmitters.
    pub rate: Rate,
    /// Propagation delay, in nanoseconds.
    pub delay_ns: u64,
    /// Wire bytes that may wait at each end, the frame being sent counted with what is left of it.
    pub queue_bytes: u32,
    /// What the queue does before it is full.
    pub discipline: Discipline,
    /// Segments lost on the wire, in millionths, at random.
    pub loss_ppm: u32,
    /// Seed of that randomness.
    pub seed: u64,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig {
            rate: Rate(Rate::GBIT),
            delay_ns: 50_000,
            queue_bytes: 256 << 10,
            discipline: Discipline::DropTail,
            loss_ppm: 0,
            seed: 0,
        }
    }
}

/// Counters of what one side sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkStats {
    /// Frames that were put on the wire, those lost there included.
    pub frames: u64,
    /// Their wire bytes.
    pub bytes: u64,
    /// Segments that found the queue full.
    pub drops: u64,
    /// Segments lost on the wire.
    pub losses: u64,
    /// What the queue's discipline did; [`crate::aqm::AqmStats::overflowed`] are the drops above,
    /// by kind.
    pub queue: QueueState,
    /// Wire bytes that wait now.
    pub backlog_bytes: u64,
    /// The most that ever waited.
    pub backlog_max_bytes: u64,
}

/// A bidirectional link. Call `send` (frames in), `set_rate` and `set_loss`, then `poll` until it
/// gives `None`, and come back at `poll_timeout`.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    lanes: [Lane; 2],
    random: u64,
}

/// One direction.
#[derive(Debug)]
struct Lane {
    aqm: Aqm,
    /// Frames that wait; `Meta::queued` says since when.
    queue: Fifo,
    /// Frames that are being sent or have been; `Meta::queued` says when they arrive.
    flight: Fifo,
    /// When the transmitter is free: whole nanoseconds, and more in units of 1/rate.
    free_at: Instant,
    remainder: u64,
    /// When `poll` will have something to do here.
    due: Option<Instant>,
    stats: LinkStats,
}

impl Link {
    /// A link with nothing on it.
    #[must_use]
    pub fn new(config: LinkConfig) -> Self {
        let lanes = Side::ALL.map(|side| Lane::new(&config, side));
        Link { config, lanes, random: config.seed ^ 0x9e37_79b9_7f4a_7c15 }
    }

    /// What the link is like now.
    #[must_use]
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Counters of what `side` sent.
    #[must_use]
    pub fn stats(&self, side: Side) -> LinkStats {
        let lane = &self.lanes[side as usize];
        LinkStats { backlog_bytes: lane.queue.wire_bytes(), queue: lane.aqm.queue_state(), ..lane.stats }
    }

    /// Frames on the link, waiting or in flight, in both directions.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.lanes.iter().map(|lane| lane.queue.frames() as usize + lane.flight.frames() as usize).sum()
    }

    /// `side` sends a frame. It is queued, or loses its tail to a full queue, or is freed.
    pub fn send(&mut self, pool: &mut Pool, now: Instant, side: Side, frame: Frame) {
        self.advance(pool, now, side);
        let lane = &mut self.lanes[side as usize];
        if lane.admit(pool, now, &frame, &self.config) {
            let waiting = lane.waiting_bytes(now, self.config.rate);
            lane.aqm.arrive(pool, now, waiting, frame, (&mut lane.queue, &mut |_, _, _| {}));
            lane.stats.backlog_max_bytes = lane.stats.backlog_max_bytes.max(lane.queue.wire_bytes());
            self.advance(pool, now, side);
        } else {
            pool.free(frame);
        }
    }

    /// Changes the rate. The frame being sent goes on at the old one; a rate of zero holds what
    /// waits.
    pub fn set_rate(&mut self, pool: &mut Pool, now: Instant, rate: Rate) {
        for side in Side::ALL {
            self.advance(pool, now, side);
            let lane = &mut self.lanes[side as usize];
            if self.config.rate.0 == 0 {
                lane.free_at = lane.free_at.max(now);
            }
            lane.remainder = 0;
            lane.aqm.set_rate(rate);
            lane.reckon(pool, rate);
        }
        self.config.rate = rate;
    }

    /// Changes what the link is like, the seed excepted. What waits or is under way stays, whatever
    /// the new bounds. Another discipline begins anew, its counters too.
    pub fn set_config(&mut self, pool: &mut Pool, now: Instant, config: LinkConfig) {
        self.set_rate(pool, now, config.rate);
        if config.discipline != self.config.discipline {
            let seeded = LinkConfig { seed: self.config.seed, ..config };
            for side in Side::ALL {
                self.lanes[side as usize].aqm = aqm(&seeded, side);
            }
        }
        self.config = LinkConfig { seed: self.config.seed, ..config };
    }

    /// Changes the loss on the wire; [`CERTAIN_PPM`] is a cable pulled out.
    pub fn set_loss(&mut self, pool: &mut Pool, now: Instant, loss_ppm: u32) {
        for side in Side::ALL {
            self.advance(pool, now, side);
        }
        self.config.loss_ppm = loss_ppm;
    }

    /// The next frame that has arrived, and the side it arrived at.
    pub fn poll(&mut self, pool: &mut Pool, now: Instant) -> Option<(Side, Frame)> {
        for side in Side::ALL {
            self.advance(pool, now, side);
        }
        let from = self.earliest().filter(|&(_, at)| at <= now)?.0;
        let lane = &mut self.lanes[from as usize];
        let frame = lane.flight.pop(pool)?;
        lane.reckon(pool, self.config.rate);
        Some((from.other(), frame))
    }

    /// When `poll` will have something to do, if nothing is sent before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.earliest().map(|(_, at)| at)
    }

    /// Frees every frame on the link; returns how many there were.
    pub fn clear(&mut self, pool: &mut Pool) -> u32 {
        let clear = |lane: &mut Lane| {
            lane.due = None;
            lane.queue.clear(pool) + lane.flight.clear(pool)
        };
        self.lanes.iter_mut().map(clear).sum()
    }

    /// The side whose frame arrives next, and when.
    fn earliest(&self) -> Option<(Side, Instant)> {
        let of = |side: Side| self.lanes[side as usize].due.map(|at| (side, at));
        match (of(Side::A), of(Side::B)) {
            (Some(a), Some(b)) => Some(if b.1 < a.1 { b } else { a }),
            (a, b) => a.or(b),
        }
    }

    /// Puts on the wire what had its turn by `now`.
    fn advance(&mut self, pool: &mut Pool, now: Instant, side: Side) {
        let Link { config, lanes, random } = self;
        let lane = &mut lanes[side as usize];
        while config.rate.0 > 0 && lane.queue.front(pool).is_some_and(|meta| lane.start(meta.queued).0 <= now) {
            let Some(frame) = lane.queue.pop(pool) else { break };
            let start = lane.start(pool.meta(&frame).queued).0;
            let left = lane.aqm.leave(pool, start, frame, (&mut lane.queue, &mut |_, _, _| {}));
            let Some(frame) = left else { continue };
            let arrival = lane.transmit(pool.meta(&frame), config);
            pool.meta_mut(&frame).queued = arrival;
            lane.fly(pool, frame, random, config.loss_ppm);
        }
        lane.reckon(pool, config.rate);
    }
}

impl Lane {
    fn new(config: &LinkConfig, side: Side) -> Lane {
        Lane {
            aqm: aqm(config, side),
            queue: Fifo::default(),
            flight: Fifo::default(),
            free_at: Instant::ZERO,
            remainder: 0,
            due: None,
            stats: LinkStats::default(),
        }
    }

    /// Makes a frame fit into the queue. False where nothing of it fits.
    fn admit(&mut self, pool: &mut Pool, now: Instant, frame: &Frame, config: &LinkConfig) -> bool {
        let waiting = self.waiting_bytes(now, config.rate);
        let (bytes, meta) = pool.parts_mut(frame);
        if meta.wire_bytes == 0 {
            meta.wire_bytes = segment::wire_bytes(bytes.len(), &meta.layout, &meta.offload);
        }
        let room = u64::from(config.queue_bytes).saturating_sub(waiting);
        // An idle transmitter takes a frame of any length: its segments would have come one after
        // the other.
        if waiting == 0 || u64::from(meta.wire_bytes) <= room {
            return true;
        }
        let segments = segment::segments(&meta.layout, &meta.offload);
        let fit = (room / u64::from(segment::segment_bytes(meta))) as u32;
        let surplus = segments - fit.min(segments);
        self.stats.drops += u64::from(surplus);
        self.aqm.overflows(bytes, &meta.layout, surplus);
        fit > 0 && segment::trim(pool, frame, surplus) == surplus
    }

    /// Puts a frame in flight, without the segments that are lost on the way.
    fn fly(&mut self, pool: &mut Pool, frame: Frame, random: &mut u64, loss_ppm: u32) {
        let mut rest = frame;
        let mut passed = 0;
        let segments =
            if loss_ppm == 0 { 0 } else { segment::segments(&pool.meta(&rest).layout, &pool.meta(&rest).offload) };
        for left in (0..segments).rev() {
            if !lost(random, loss_ppm) {
                passed += 1;
                continue;
            }
            if passed > 0 {
                let most = passed * segment::segment_bytes(pool.meta(&rest));
                let (first, second) = segment::split(pool, rest, most);
                self.flight.push(pool, first);
                // Where there was no buffer for the cut, the loss does not happen.
                let Some(second) = second else { return };
                rest = second;
            }
            self.stats.losses += 1;
            passed = 0;
            let one = segment::segment_bytes(pool.meta(&rest));
            let (loss, second) = segment::split(pool, rest, one);
            pool.free(loss);
            match second {
                Some(second) if left > 0 => rest = second,
                _ => return,
            }
        }
        self.flight.push(pool, rest);
    }

    /// Occupies the transmitter with a frame; says when it arrives.
    fn transmit(&mut self, meta: &Meta, config: &LinkConfig) -> Instant {
        let (start, remainder) = self.start(meta.queued);
        let work = u64::from(meta.wire_bytes) * BYTE_NS_BITS + remainder;
        self.free_at = start.plus_ns(work / config.rate.0);
        self.remainder = work % config.rate.0;
        self.stats.frames += 1;
        self.stats.bytes += u64::from(meta.wire_bytes);
        self.free_at.plus_ns(u64::from(self.remainder > 0) + config.delay_ns)
    }

    /// Works out `due`. Where nothing is in flight, what waits is looked at when its turn comes.
    fn reckon(&mut self, pool: &Pool, rate: Rate) {
        self.due = match (self.flight.front(pool), self.queue.front(pool)) {
            (Some(flying), _) => Some(flying.queued),
            (None, Some(waiting)) if rate.0 > 0 => Some(self.start(waiting.queued).0),
            _ => None,
        };
    }

    /// When a frame queued at `queued` starts, with the remainder that the transmitter carries
    /// over.
    fn start(&self, queued: Instant) -> (Instant, u64) {
        if queued > self.free_at { (queued, 0) } else { (self.free_at, self.remainder) }
    }

    /// Wire bytes that wait, what is left of the frame being sent included.
    fn waiting_bytes(&self, now: Instant, rate: Rate) -> u64 {
        self.queue.wire_bytes() + rate.bytes_in(self.free_at.since(now))
    }
}

/// The discipline of a new queue at `side`.
fn aqm(config: &LinkConfig, side: Side) -> Aqm {
    Aqm::new(config.discipline, config.rate, config.seed ^ (side as u64) << 32)
}

/// Whether a segment is lost on the wire.
fn lost(random: &mut u64, loss_ppm: u32) -> bool {
    loss_ppm != 0 && (u64::from(dice(random)) * u64::from(CERTAIN_PPM)) >> 32 < u64::from(loss_ppm)
}

#[cfg(test)]
mod tests;
