//! A member of a bond: its state, and the frames that wait for its wire.
//!
//! The wire is a clock: at `free_at`, all that was given to the member has left at its rate. A
//! frame leaves up to [`BURST_NS`] before its turn on the wire, so that a late worker loses no
//! rate.

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

/// How far a member may be sent ahead of its wire, in nanoseconds. On a dedicated machine the loop
/// is late by 10 us in the median, and by 40 us in one case of a hundred.
pub const BURST_NS: u64 = 100_000;
/// A frame is cut to what a member carries in this time, in nanoseconds: others wait no longer for
/// it.
pub(super) const CUT_NS: u64 = 100_000;
/// Fraction bits of a byte's time in nanoseconds: at [`Rate::MIN`] and 64 KiB the product has 56
/// bits.
const FRACTION: u32 = 16;

/// What a member may be used for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MemberState {
    /// Nothing: its link is down.
    #[default]
    Down,
    /// Nothing now: its link is up.
    Standby,
    /// It is received from.
    Collecting,
    /// It is received from, and sent to.
    Distributing,
}

impl MemberState {
    /// Whether it is received from.
    #[must_use]
    pub fn receives(self) -> bool {
        matches!(self, MemberState::Collecting | MemberState::Distributing)
    }

    /// The name in `show`.
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
    /// Frames that it had no room for.
    pub full: u64,
    /// Segments marked (CE), as they would wait for long.
    pub marks: u64,
    /// How often it stopped distributing.
    pub failures: u32,
    /// Numbered frames that were sent over a failed member, or waited there, and that this one
    /// sent.
    pub replayed: u64,
    /// Numbered frames that the other end has sent over it, and that did not arrive.
    pub lost: u64,
    /// Wire bytes that wait for it.
    pub waiting_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Member {
    /// Its configured rate.
    rate: Rate,
    /// Its link's speed, if that is known.
    speed: Option<Rate>,
    state: MemberState,
    /// Since when it has that state.
    since: Instant,
    /// A byte's time, in nanoseconds with [`FRACTION`] bits of fraction.
    byte_time: u64,
    /// Wire bytes that it carries in [`CUT_NS`], or a shortest frame.
    cut_bytes: u32,
    free_at: Instant,
    /// `Meta::queued` of a frame here is its turn on the wire.
    waiting: Fifo,
    /// When the first waiting frame leaves.
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

    /// Sets whose memory is charged for frames that wait.
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

    /// What it carries: its configured rate, or its link's speed if that is less.
    pub fn rate(&self) -> Rate {
        self.speed.map_or(self.rate, |speed| self.rate.min(speed))
    }

    pub fn counts(&self) -> MemberCounts {
        MemberCounts { waiting_bytes: self.waiting.wire_bytes(), ..self.counts }
    }

    pub fn waiting(&self) -> u32 {
        self.waiting.frames()
    }

    /// Sets its configured rate. False if what it carries stays the same.
    pub fn set_rate(&mut self, pool: &mut Pool, rate: Rate) -> bool {
        let before = self.rate();
        self.rate = rate;
        self.pace(pool, before)
    }

    /// Sets its link's speed. False if what it carries stays the same.
    pub fn set_speed(&mut self, pool: &mut Pool, speed: Option<Rate>) -> bool {
        let before = self.rate();
        self.speed = speed;
        self.pace(pool, before)
    }

    /// Frames that wait get new turns, in the same order.
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

    /// A member that distributes again begins with an idle wire.
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

    /// Takes the frames that wait.
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

    /// When a frame of this many wire bytes would have left.
    #[inline]
    pub fn done_at(&self, now: Instant, wire_bytes: u32) -> Instant {
        self.after(self.free_at.max(now), wire_bytes)
    }

    /// The time this many wire bytes after `at`.
    #[inline]
    pub fn after(&self, at: Instant, wire_bytes: u32) -> Instant {
        at.plus_ns((u64::from(wire_bytes) * self.byte_time) >> FRACTION)
    }

    /// Something else takes its wire for this many bytes. Returns for how many nanoseconds. By
    /// itself it does not make frames wait longer than [`MOST_WAIT_NS`].
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

    /// Counts a frame as it arrived: with its number, if one was taken off.
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

    /// A frame of one segment leaves at once; returns when the wire is free again.
    #[inline]
    pub fn pass_one(&mut self, now: Instant, len: usize, wire_bytes: u32) -> Instant {
        self.free_at = self.done_at(now, wire_bytes);
        self.counts.traffic.egress.add(1, len, wire_bytes);
        self.free_at
    }

    /// Marks a frame that will wait for longer than [`MARKED_WAIT_NS`], unless there is no room for
    /// it.
    #[inline]
    pub fn mark(&mut self, pool: &mut Pool, now: Instant, frame: &Frame) {
        if self.free_at.since(now) > MARKED_WAIT_NS && !self.is_full(now) {
            self.counts.marks += u64::from(aqm::mark(pool, frame));
        }
    }

    /// Lets a frame wait for its turn; returns it if that would be too long.
    pub fn push(&mut self, pool: &mut Pool, now: Instant, frame: Frame) -> Result<(), Frame> {
        if self.is_full(now) {
            self.counts.full += 1;
            return Err(frame);
        }
        self.wait(pool, now, frame);
        Ok(())
    }

    /// Lets a frame of a failed member wait. The only limit is what was kept there, or waited.
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

    /// The first frame, if its turn has come.
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

/// A frame leaves before its turn on the wire: a worker may be late by as much.
fn leaves_at(turn: Instant) -> Instant {
    Instant(turn.0.saturating_sub(BURST_NS))
}

#[inline]
fn count(pool: &Pool, frame: &Frame, traffic: &mut Traffic) {
    let meta = pool.meta(frame);
    traffic.add(segments(&meta.layout, &meta.offload), pool.len(frame), meta.wire_bytes);
}

/// At least a shortest frame, for members that carry less.
fn cut_bytes(rate: Rate) -> u32 {
    u32::try_from(rate.bytes_in(CUT_NS)).unwrap_or(u32::MAX).max(MIN_FRAME + WIRE_OVERHEAD)
}

/// A byte's time on the wire: 8 s over the rate.
fn byte_time(rate: Rate) -> u64 {
    (8_000_000_000u64 << FRACTION) / rate.0.max(Rate::MIN.0)
}
