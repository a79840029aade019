//! A member of a bond: its state, and the frames that wait until its wire is free.
//!
//! The wire is a clock: `free_at` says when what was given to the member will have left at its
//! rate. A frame leaves when its turn on that wire has come, up to [`BURST_NS`] early, so that a
//! worker that is late loses no rate.

use super::kept::Kept;
use super::negotiated::Negotiated;
use super::{MARKED_WAIT_NS, MOST_WAIT_NS};
use crate::aqm;
use crate::frame::{Fifo, FlowIndex, Frame, Owner, Pool};
use crate::offload::{Gso, PortFeatures};
use crate::segment::{MIN_FRAME, WIRE_OVERHEAD, one_wire_bytes, segments};
use crate::stats::Traffic;
use crate::units::{Both, Instant, Rate};
use crate::wire::vlan::TAG;

/// What a member may be sent ahead of its wire, in nanoseconds: on a machine of its own the loop is
/// late by 10 us in the median, by 40 in one case of a hundred.
pub const BURST_NS: u64 = 100_000;
/// A frame is cut to what a member carries in so long, in nanoseconds: others wait no longer for
/// it.
pub(super) const CUT_NS: u64 = 100_000;
/// Bits of the fraction of a nanosecond in which a byte's time is kept: at [`Rate::MIN`] and 64 KiB
/// the product has 56 bits.
const FRACTION: u32 = 16;

/// What a member may be used for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MemberState {
    /// Nothing: its link is down.
    #[default]
    Down,
    /// Nothing now: its link is up.
    Standby,
    /// To be received from.
    Collecting,
    /// To be received from, and sent to.
    Distributing,
}

impl MemberState {
    /// Whether it is received from.
    #[must_use]
    pub fn receives(self) -> bool {
        matches!(self, MemberState::Collecting | MemberState::Distributing)
    }

    /// As `show` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MemberState::Down => "down",
            MemberState::Standby => "standby",
            MemberState::Collecting => "collecting",
            MemberState::Distributing => "distributing",
        }
    }
}

/// What a member has carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemberCounts {
    /// Frames and wire bytes, sent and received.
    pub traffic: Both<Traffic>,
    /// Frames that it was to send and had no room for.
    pub full: u64,
    /// Segments marked (CE), as they were to wait for long.
    pub marks: u64,
    /// How often it ceased to distribute.
    pub failures: u32,
    /// Frames that went over a member that failed, and that this one sent again.
    pub replayed: u64,
    /// Numbered frames that the other end has sent over it, and that did not come.
    pub lost: u64,
    /// Wire bytes that wait for it.
    pub waiting_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Member {
    /// What it is configured for.
    rate: Rate,
    /// What its link carries, as far as that is known.
    speed: Option<Rate>,
    state: MemberState,
    /// Since when it has that state.
    since: Instant,
    /// What a byte takes, in nanoseconds with [`FRACTION`] bits of fraction.
    byte_time: u64,
    /// Wire bytes that it carries in [`CUT_NS`], or a shortest frame.
    cut_bytes: u32,
    free_at: Instant,
    /// `Meta::queued` of what waits says when its turn on the wire comes.
    waiting: Fifo,
    /// When the first that waits leaves.
    due: Option<Instant>,
    pub kept: Kept,
    pub features: PortFeatures,
    pub negotiated: Negotiated,
    counts: MemberCounts,
}

impl Member {
    pub fn new(rate: Rate) -> Member {
        Member {
            rate,
            speed: None,
            state: MemberState::Down,
            since: Instant::ZERO,
            byte_time: byte_time(rate),
            cut_bytes: cut_bytes(rate),
            free_at: Instant::ZERO,
            waiting: Fifo::default(),
            due: None,
            kept: Kept::default(),
            features: PortFeatures::default(),
            negotiated: Negotiated::default(),
            counts: MemberCounts::default(),
        }
    }

    /// Whose memory takes what waits.
    pub fn set_owner(&mut self, pool: &mut Pool, owner: Owner) {
        self.waiting.set_owner(pool, owner);
    }

    pub fn state(&self) -> MemberState {
        self.state
    }

    /// Since when it has its state.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// What it carries: what it is configured for, or its link's speed where that is less.
    pub fn rate(&self) -> Rate {
        self.speed.map_or(self.rate, |speed| self.rate.min(speed))
    }

    pub fn counts(&self) -> MemberCounts {
        MemberCounts { waiting_bytes: self.waiting.wire_bytes(), ..self.counts }
    }

    pub fn waiting(&self) -> u32 {
        self.waiting.frames()
    }

    /// It is configured for another rate. False where it carries what it did.
    pub fn set_rate(&mut self, pool: &mut Pool, rate: Rate) -> bool {
        let before = self.rate();
        self.rate = rate;
        self.pace(pool, before)
    }

    /// Its link has another speed, or none is known. False where it carries what it did.
    pub fn set_speed(&mut self, pool: &mut Pool, speed: Option<Rate>) -> bool {
        let before = self.rate();
        self.speed = speed;
        self.pace(pool, before)
    }

    /// What waits gets its turns anew, in the order that it has.
    fn pace(&mut self, pool: &mut Pool, before: Rate) -> bool {
        let rate = self.rate();
        if rate == before {
            return false;
        }
        (self.byte_time, self.cut_bytes) = (byte_time(rate), cut_bytes(rate));
        if let Some(first) = self.waiting.front(pool).map(|meta| meta.queued) {
            let mut waiting = self.take_waiting();
            self.free_at = first;
            while let Some(frame) = waiting.pop(pool) {
                self.wait(pool, first, frame);
            }
        }
        true
    }

    /// One that comes back begins with an idle wire.
    pub fn set_state(&mut self, now: Instant, state: MemberState) {
        let (was, is) = (self.state == MemberState::Distributing, state == MemberState::Distributing);
        self.counts.failures += u32::from(was && !is);
        if state != self.state {
            self.since = now;
        }
        if is && !was {
            self.free_at = now;
        }
        self.state = state;
    }

    /// What waits; the member has nothing more to send.
    pub fn take_waiting(&mut self) -> Fifo {
        self.due = None;
        let mut empty = Fifo::default();
        empty.own(self.waiting.owner());
        std::mem::replace(&mut self.waiting, empty)
    }

    /// The number of the first frame that waits.
    pub fn first_number(&self, pool: &Pool) -> Option<FlowIndex> {
        self.waiting.front(pool).and_then(|meta| meta.flow)
    }

    /// When a frame of so many wire bytes would have left.
    #[inline]
    pub fn done_at(&self, now: Instant, wire_bytes: u32) -> Instant {
        self.after(self.free_at.max(now), wire_bytes)
    }

    /// So many wire bytes later.
    #[inline]
    pub fn after(&self, at: Instant, wire_bytes: u32) -> Instant {
        at.plus_ns((u64::from(wire_bytes) * self.byte_time) >> FRACTION)
    }

    /// Something else takes its wire for so many bytes: for how many nanoseconds. However much that
    /// is, by itself it makes frames wait no longer than they may.
    pub fn spend(&mut self, now: Instant, wire_bytes: u32) -> u64 {
        let done = self.done_at(now, wire_bytes);
        let takes_ns = done.since(self.free_at.max(now));
        self.free_at = self.free_at.max(done.min(now.plus_ns(MOST_WAIT_NS)));
        takes_ns
    }

    /// When its wire is free.
    pub fn free_at(&self) -> Instant {
        self.free_at
    }

    /// Wire bytes that it carries in [`CUT_NS`], or a shortest frame.
    #[inline]
    pub fn cut_bytes(&self) -> u32 {
        self.cut_bytes
    }

    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    pub fn count_drop(&mut self) {
        self.counts.full += 1;
    }

    /// Counts a frame as it came, where a number was taken off it with that.
    pub fn count_received(&mut self, pool: &Pool, frame: &Frame, had_number: bool) {
        let traffic = &mut self.counts.traffic.ingress;
        if !had_number {
            return count(pool, frame, traffic);
        }
        let (len, meta) = (pool.len(frame) + TAG, pool.meta(frame));
        let segments = segments(&meta.layout, &meta.offload);
        let wire_bytes = match meta.offload.gso {
            Gso::None => one_wire_bytes(len, meta.outer),
            _ => meta.wire_bytes + segments * TAG as u32,
        };
        traffic.add(segments, len, wire_bytes);
    }

    /// Whether a frame would wait too long.
    #[inline]
    pub fn is_full(&self, now: Instant) -> bool {
        self.free_at.since(now) > MOST_WAIT_NS
    }

    /// Whether a frame leaves at once.
    #[inline]
    pub fn passes(&self, now: Instant) -> bool {
        self.due.is_none() && (self.free_at <= now || leaves_at(self.free_at) <= now)
    }

    /// A frame leaves at once.
    #[inline]
    pub fn pass(&mut self, pool: &Pool, now: Instant, frame: &Frame) {
        self.free_at = self.done_at(now, pool.meta(frame).wire_bytes);
        count(pool, frame, &mut self.counts.traffic.egress);
    }

    /// A frame of one segment leaves at once: when its wire is free again.
    #[inline]
    pub fn pass_one(&mut self, now: Instant, len: usize, wire_bytes: u32) -> Instant {
        self.free_at = self.done_at(now, wire_bytes);
        self.counts.traffic.egress.add(1, len, wire_bytes);
        self.free_at
    }

    /// Marks a frame that will wait for long, unless there is no room for it.
    #[inline]
    pub fn mark(&mut self, pool: &mut Pool, now: Instant, frame: &Frame) {
        if self.free_at.since(now) > MARKED_WAIT_NS && !self.is_full(now) {
            self.counts.marks += u64::from(aqm::mark(pool, frame));
        }
    }

    /// Lets a frame wait for its turn; gives it back where that would be too long.
    pub fn push(&mut self, pool: &mut Pool, now: Instant, frame: Frame) -> Result<(), Frame> {
        if self.is_full(now) {
            self.counts.full += 1;
            return Err(frame);
        }
        self.wait(pool, now, frame);
        Ok(())
    }

    /// Lets a frame wait that another member has sent in vain: what may wait of these is what was
    /// kept.
    pub fn push_again(&mut self, pool: &mut Pool, now: Instant, frame: Frame) {
        self.counts.replayed += 1;
        self.wait(pool, now, frame);
    }

    /// Lets a frame wait for its turn, however long.
    pub fn wait(&mut self, pool: &mut Pool, now: Instant, frame: Frame) {
        let start = self.free_at.max(now);
        let meta = pool.meta_mut(&frame);
        meta.queued = start;
        self.free_at = self.after(start, meta.wire_bytes);
        self.waiting.push(pool, frame);
        self.due = self.due.or(Some(leaves_at(start)));
    }

    /// The first frame, where its turn has come.
    pub fn pop(&mut self, pool: &mut Pool, now: Instant) -> Option<Frame> {
        if self.due? > now {
            return None;
        }
        let frame = self.waiting.pop(pool)?;
        self.due = self.waiting.front(pool).map(|meta| leaves_at(meta.queued));
        count(pool, &frame, &mut self.counts.traffic.egress);
        Some(frame)
    }
}

/// A frame leaves before its turn on the wire, by as much as a worker may be late.
fn leaves_at(turn: Instant) -> Instant {
    Instant(turn.0.saturating_sub(BURST_NS))
}

#[inline]
fn count(pool: &Pool, frame: &Frame, traffic: &mut Traffic) {
    let meta = pool.meta(frame);
    traffic.add(segments(&meta.layout, &meta.offload), pool.len(frame), meta.wire_bytes);
}

/// At least a shortest frame: one that carries less has nothing out at once.
fn cut_bytes(rate: Rate) -> u32 {
    u32::try_from(rate.bytes_in(CUT_NS)).unwrap_or(u32::MAX).max(MIN_FRAME + WIRE_OVERHEAD)
}

/// A byte's time on the wire: 8 s over the rate.
fn byte_time(rate: Rate) -> u64 {
    (8_000_000_000u64 << FRACTION) / rate.0.max(Rate::MIN.0)
}
