//! Queue disciplines: how a queue tells senders that it fills, before it is full.
//!
//! An [`Aqm`] belongs to one queue: of an end of a [`crate::link`], in the simulator too, or a lane
//! of [`crate::sched`]. It is asked where a frame arrives and where one leaves, and signals
//! *segments*: an offloaded frame is to it the packets that it stands for. Those that can be marked
//! (RFC 3168) are marked, and the frame is cut there, so that each mark is one packet's: 64 KiB
//! marked as a whole would tell a sender of 45. Of others each discipline does what its authors
//! say: RED and CoDel lose a segment instead, `step` and `sojourn` spare it, `auto` loses it with
//! the square of the probability. What is lost is cut off the frame's tail.

pub mod auto;
pub mod codel;
pub mod red;

use crate::frame::{Fifo, Frame, Meta, Pool};
use crate::random::dice;
use crate::segment;
use crate::units::{Instant, Rate};
use crate::wire::transport::TCP_FLAGS;
use crate::wire::{L4, Layout, tcp_flags};
use auto::Auto;
use codel::Codel;
use red::Average;
pub use red::Red;

/// Less than so many wire bytes behind a frame are no standing queue: a full frame (RFC 8289,
/// section 4.4).
const FULL_FRAME: u64 = 1538;
/// A frame of up to so many bytes is no full segment (RFC 9293: a path carries at least 536 bytes
/// of data in one).
const SHORT: usize = 512;

/// What a queue does to tell senders that it fills.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Discipline {
    /// Nothing, until it is full.
    #[default]
    DropTail,
    /// CoDel (RFC 8289), with the target and interval of [`codel`].
    Codel,
    /// RED.
    Red(Red),
    /// Marks while more than a threshold waits.
    Step(Step),
    /// Marks what waited longer than this, in nanoseconds (TCN, CoNEXT 2016; `ce_threshold` of
    /// Linux's fq_codel).
    Sojourn {
        /// The threshold.
        target_ns: u64,
    },
    /// Marks what waited longer than a threshold that it finds by itself: see [`auto`].
    Auto,
}

/// DCTCP's marking (RFC 8257, section 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// The threshold, in wire bytes.
    pub mark_bytes: u32,
    /// Where the queue is compared with it.
    pub at: At,
}

/// Where a queue is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum At {
    /// When a segment arrives.
    #[default]
    Arrival,
    /// When it leaves, so that the mark is a round trip younger (*Tuning ECN*, CoNEXT 2012).
    Departure,
}

impl Discipline {
    /// As configuration and tables call it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Discipline::DropTail => "droptail",
            Discipline::Codel => "codel",
            Discipline::Red(_) => "red",
            Discipline::Step(_) => "step",
            Discipline::Sojourn { .. } => "sojourn",
            Discipline::Auto => "auto",
        }
    }
}

/// Segments that a queue lost, by kind: each is counted once, in the first that it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// The beginnings of TCP connections, and what answers them.
    pub syn: u64,
    /// What could have been marked.
    pub ect: u64,
    /// TCP without data: acknowledgements.
    pub ack: u64,
    /// The rest: data that cannot be marked.
    pub other: u64,
}

impl Lost {
    /// Counts `segments` of a frame.
    pub fn add(&mut self, bytes: &[u8], layout: &Layout, segments: u32) {
        let kind = if begins(bytes, layout) {
            &mut self.syn
        } else if segment::is_capable(bytes, layout) {
            &mut self.ect
        } else if layout.l4 == L4::Tcp && u32::from(layout.payload_offset) == layout.end {
            &mut self.ack
        } else {
            &mut self.other
        };
        *kind = kind.saturating_add(u64::from(segments));
    }

    /// All kinds together.
    #[must_use]
    pub fn total(&self) -> u64 {
        [self.syn, self.ect, self.ack, self.other].iter().fold(0, |sum, &n| sum.saturating_add(n))
    }
}

/// What a queue's discipline counted, in segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AqmStats {
    /// Marked.
    pub marks: u64,
    /// Lost as a signal to their senders.
    pub dropped: Lost,
    /// Lost since the queue was full.
    pub overflowed: Lost,
}

/// What is to be seen of a queue's discipline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueState {
    /// Which one it is.
    pub discipline: Discipline,
    /// The wait above which it signals, in nanoseconds, where it goes by that.
    pub target_ns: Option<u64>,
    /// The average queue in bytes, where it keeps one.
    pub average_bytes: Option<u64>,
    /// What it counted.
    pub stats: AqmStats,
}

/// The discipline of one queue, with its state.
#[derive(Debug)]
pub struct Aqm {
    discipline: Discipline,
    state: State,
    rate: Rate,
    random: u64,
    /// Since when nothing waits or is being sent.
    empty_since: Option<Instant>,
    stats: AqmStats,
}

#[derive(Debug)]
enum State {
    /// Needs none.
    None,
    Codel(Codel),
    Red(Average),
    Auto(Auto),
}

impl Aqm {
    /// The discipline of a new queue that is drained at `rate`. The same seed throws the same dice.
    #[must_use]
    pub fn new(discipline: Discipline, rate: Rate, seed: u64) -> Aqm {
        let state = match discipline {
            Discipline::DropTail | Discipline::Step(_) | Discipline::Sojourn { .. } => State::None,
            Discipline::Codel => State::Codel(Codel::default()),
            Discipline::Red(_) => State::Red(Average::default()),
            Discipline::Auto => State::Auto(Auto::new(rate)),
        };
        Aqm { discipline, state, rate, random: seed, empty_since: None, stats: AqmStats::default() }
    }

    /// Which one it is.
    #[must_use]
    pub fn discipline(&self) -> Discipline {
        self.discipline
    }

    /// What it counted.
    #[must_use]
    pub fn stats(&self) -> &AqmStats {
        &self.stats
    }

    /// What is to be seen of it.
    #[must_use]
    pub fn queue_state(&self) -> QueueState {
        let (target_ns, average_bytes) = match (&self.discipline, &self.state) {
            (Discipline::Sojourn { target_ns }, _) => (Some(*target_ns), None),
            (_, State::Auto(auto)) => (Some(auto.target_ns()), None),
            (_, State::Codel(_)) => (Some(codel::TARGET_NS), None),
            (_, State::Red(average)) => (None, Some(average.bytes())),
            _ => (None, None),
        };
        QueueState { discipline: self.discipline, target_ns, average_bytes, stats: self.stats }
    }

    /// The queue is drained at another rate.
    pub fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
        if let State::Auto(auto) = &mut self.state {
            auto.set_rate(rate);
        }
    }

    /// So many segments of a frame found the queue full.
    pub fn overflows(&mut self, bytes: &[u8], layout: &Layout, segments: u32) {
        self.stats.overflowed.add(bytes, layout, segments);
    }

    /// A frame, whose wire bytes are known and for which there is room, arrives where `waiting`
    /// wire bytes wait or are being sent. What is left of it is put into `queue`. Where segments
    /// are lost, `lost` is given the frame and what they take on the wire.
    pub fn arrive(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        waiting: u64,
        frame: Frame,
        (queue, lost): (&mut Fifo, &mut impl FnMut(&Pool, &Frame, u32)),
    ) {
        pool.meta_mut(&frame).queued = now;
        let empty_since = self.empty_since.take().filter(|_| waiting == 0);
        if let (State::Auto(auto), Some(since)) = (&mut self.state, empty_since) {
            auto.arrives_dry(now, since);
        }
        let is_asked = matches!(self.discipline, Discipline::Red(_) | Discipline::Step(Step { at: At::Arrival, .. }));
        if !is_asked {
            return queue.push(pool, frame);
        }
        let meta = *pool.meta(&frame);
        let (segments, each) = (segment::segments(&meta.layout, &meta.offload), segment::segment_bytes(&meta));
        let capable = segment::is_capable(pool.bytes(&frame), &meta.layout);
        let (mut behind, mut empty) = (waiting, empty_since.or((waiting == 0).then_some(now)));
        let mut decide = |index: u32| {
            let wire = if index + 1 < segments { each } else { meta.wire_bytes - (segments - 1) * each };
            let signalled = match (&mut self.state, &self.discipline) {
                (State::Red(average), Discipline::Red(red)) => {
                    average.arrives(red, self.rate, (now, empty.take()), (behind, wire), dice(&mut self.random))
                }
                (_, Discipline::Step(step)) => behind > u64::from(step.mark_bytes),
                _ => false,
            };
            if capable || !signalled {
                behind += u64::from(wire);
            }
            signalled
        };
        if capable {
            self.stats.marks += mark_some(pool, frame, segments, decide, queue);
        } else {
            let drops = (0..segments).filter(|&index| decide(index)).count() as u32;
            // Only RED loses what it cannot mark.
            let drops = if matches!(self.discipline, Discipline::Red(_)) { drops } else { 0 };
            if let Some(frame) = self.lose(pool, frame, drops, lost) {
                queue.push(pool, frame);
            } else if waiting == 0 {
                // Nothing leaves that would say so; the average falls from here on.
                self.empty_since = Some(now);
            }
        }
    }

    /// A frame that was taken from `queue` leaves now. What leaves of it, the rest being back in
    /// the queue, to be asked about when its turn comes; `None` where all of it is lost. `lost` as
    /// in [`Aqm::arrive`].
    pub fn leave(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        frame: Frame,
        (queue, lost): (&mut Fifo, &mut impl FnMut(&Pool, &Frame, u32)),
    ) -> Option<Frame> {
        let meta = *pool.meta(&frame);
        let behind = queue.wire_bytes();
        let capable = segment::is_capable(pool.bytes(&frame), &meta.layout);
        let (signalled, run) = self.run(now, &meta, behind, capable);
        let leaves = if capable {
            let (part, rest) = cut(pool, frame, run);
            if let Some(rest) = rest {
                queue.push_front(pool, rest);
            }
            if signalled {
                self.stats.marks += u64::from(mark(pool, &part));
            }
            Some(part)
        } else if signalled && !self.spares(pool, &frame) {
            self.lose(pool, frame, run, lost)
        } else {
            Some(frame)
        };
        if queue.is_empty() {
            self.empties(now, leaves.as_ref().map_or(0, |frame| pool.meta(frame).wire_bytes));
        }
        leaves
    }

    /// A frame finds the queue empty and leaves at once: its segments are counted as by
    /// [`Aqm::arrive`] and [`Aqm::leave`]. False, and nothing has changed, where these must be
    /// asked.
    pub(crate) fn pass(&mut self, pool: &Pool, now: Instant, frame: &Frame) -> bool {
        let State::Auto(auto) = &mut self.state else { return false };
        let meta = pool.meta(frame);
        let capable = segment::is_capable(pool.bytes(frame), &meta.layout);
        let segments = segment::segments(&meta.layout, &meta.offload);
        let is_asked = if capable {
            // The last segment waits for those before it.
            let last_ns = |each| before_last_ns(self.rate, each, segments);
            segments > 1 && (auto.begins_at(now) || last_ns(segment::segment_bytes(meta)) > auto.target_ns())
        } else {
            auto.may_drop(self.empty_since.map_or(0, |since| now.since(since)))
        };
        if is_asked {
            return false;
        }
        if let Some(since) = self.empty_since.take() {
            auto.arrives_dry(now, since);
        }
        auto.leaves(now, 0);
        auto.leave_with(false, segments - 1);
        if !capable {
            // As if they had been thrown for: later throws are the same.
            for _ in 0..segments {
                dice(&mut self.random);
            }
        }
        self.empties(now, meta.wire_bytes);
        true
    }

    /// The last frame of the queue leaves, of so many wire bytes, or is lost.
    fn empties(&mut self, now: Instant, wire_bytes: u32) {
        self.empty_since = match self.state {
            State::Red(_) | State::Auto(_) => Some(now.plus_ns(self.time_ns(wire_bytes))),
            State::None | State::Codel(_) => None,
        };
    }

    /// Whether a frame that leaves now is signalled, and how many of its segments alike: of what
    /// can be marked the first ones, of what cannot those that are to be lost.
    fn run(&mut self, now: Instant, meta: &Meta, behind: u64, capable: bool) -> (bool, u32) {
        let (segments, each) = (segment::segments(&meta.layout, &meta.offload), segment::segment_bytes(meta));
        let (wait_ns, rate) = (now.since(meta.queued), self.rate);
        // Of segments that leave one after the other, those before the first that waits longer.
        let within = |target_ns: u64| {
            let left_ns = target_ns - wait_ns;
            if segments == 1 || before_last_ns(rate, each, segments) <= left_ns {
                return segments;
            }
            (left_ns / time_ns(rate, each) + 1) as u32
        };
        match (&self.discipline, &mut self.state) {
            (_, State::Codel(codel)) => match codel.signals(now, wait_ns, behind < FULL_FRAME) {
                0 => (false, segments),
                signals => (true, signals.min(segments)),
            },
            (Discipline::Sojourn { target_ns }, _) if capable => {
                if wait_ns > *target_ns {
                    (true, segments)
                } else {
                    (false, within(*target_ns))
                }
            }
            (Discipline::Step(Step { mark_bytes, at: At::Departure }), _) if capable => {
                let over = (behind + u64::from(meta.wire_bytes - each)).saturating_sub(u64::from(*mark_bytes));
                match over.div_ceil(u64::from(each)) {
                    0 => (false, segments),
                    over => (true, over.min(u64::from(segments)) as u32),
                }
            }
            (_, State::Auto(auto)) if capable => {
                let (is_long, target_ns) = (auto.leaves(now, wait_ns), auto.target_ns());
                let run = if is_long { segments } else { within(target_ns) };
                auto.leave_with(is_long, run - 1);
                (is_long, run)
            }
            (_, State::Auto(auto)) => {
                let lost = (0..segments).filter(|_| {
                    auto.leaves(now, wait_ns);
                    auto.drops(dice(&mut self.random))
                });
                let lost = lost.count() as u32;
                (lost > 0, lost)
            }
            _ => (false, segments),
        }
    }

    /// Whether what cannot be marked is let go although it was signalled: what begins a connection,
    /// but by RED, which knows no mercy; and by CoDel every second short segment, which is likely
    /// alone under way (see [`is_alone`]).
    fn spares(&self, pool: &Pool, frame: &Frame) -> bool {
        match &self.state {
            State::Codel(codel) => is_alone(pool, frame, codel.is_odd()),
            State::Auto(_) => begins(pool.bytes(frame), &pool.meta(frame).layout),
            _ => false,
        }
    }

    /// Loses segments off a frame's tail; `None` where that is all of it.
    fn lose(
        &mut self,
        pool: &mut Pool,
        frame: Frame,
        segments: u32,
        lost: &mut impl FnMut(&Pool, &Frame, u32),
    ) -> Option<Frame> {
        if segments == 0 {
            return Some(frame);
        }
        let meta = *pool.meta(&frame);
        self.stats.dropped.add(pool.bytes(&frame), &meta.layout, segments);
        if segments >= segment::segments(&meta.layout, &meta.offload) {
            lost(pool, &frame, meta.wire_bytes);
            pool.free(frame);
            return None;
        }
        segment::trim(pool, &frame, segments);
        lost(pool, &frame, meta.wire_bytes - pool.meta(&frame).wire_bytes);
        Some(frame)
    }

    fn time_ns(&self, wire_bytes: u32) -> u64 {
        time_ns(self.rate, wire_bytes)
    }
}

/// How long so many wire bytes take at a queue's rate; none where it is not known.
fn time_ns(rate: Rate, wire_bytes: u32) -> u64 {
    if rate.0 == 0 { 0 } else { rate.time_ns(u64::from(wire_bytes)) }
}

/// How long the segments of a frame before its last one take, of `each` wire bytes.
fn before_last_ns(rate: Rate, each: u32, segments: u32) -> u64 {
    time_ns(rate, each).saturating_mul(u64::from(segments - 1))
}

/// Marks those segments of a frame that `decide` says, and puts all into `queue`, cut where they
/// differ. Says how many were marked.
fn mark_some(
    pool: &mut Pool,
    frame: Frame,
    segments: u32,
    mut decide: impl FnMut(u32) -> bool,
    queue: &mut Fifo,
) -> u64 {
    let (mut rest, mut run, mut marked, mut marks) = (frame, 0, decide(0), 0);
    for index in 1..segments {
        run += 1;
        let next = decide(index);
        if next == marked {
            continue;
        }
        rest = match cut(pool, rest, run) {
            (part, Some(more)) => {
                marks += if marked { u64::from(mark(pool, &part)) } else { 0 };
                queue.push(pool, part);
                (run, marked) = (0, next);
                more
            }
            // There is no buffer for the cut: the mark is on all of it.
            (whole, None) => {
                marked = true;
                whole
            }
        };
    }
    marks += if marked { u64::from(mark(pool, &rest)) } else { 0 };
    queue.push(pool, rest);
    marks
}

/// The first `segments` of a frame, and the rest if there is one and a buffer for it.
pub(crate) fn cut(pool: &mut Pool, frame: Frame, segments: u32) -> (Frame, Option<Frame>) {
    let Meta { layout, offload, .. } = pool.meta(&frame);
    if segments >= segment::segments(layout, offload) {
        return (frame, None);
    }
    match segment::cut(pool, frame, segments) {
        Ok((part, rest)) => (part, Some(rest)),
        Err(frame) => (frame, None),
    }
}

/// Marks a frame; says how many segments that are.
pub(crate) fn mark(pool: &mut Pool, frame: &Frame) -> u32 {
    let (bytes, meta) = pool.parts_mut(frame);
    if segment::mark_ce(bytes, &meta.layout) { segment::segments(&meta.layout, &meta.offload) } else { 0 }
}

/// Whether a frame is likely the only segment of its TCP connection in the network: one that begins
/// it, or a short one, as requests and the ends of answers are. To lose such a one says nothing to
/// a sender that has nothing else under way, and costs it a time-out (RFC 6298: a second, or 200 ms
/// on Linux), where another segment costs some round trips. Of short ones no more than every second
/// (`odd`): a flood of them must not wait for ever and leave all signals to the others.
pub(crate) fn is_alone(pool: &Pool, frame: &Frame, odd: bool) -> bool {
    let layout = &pool.meta(frame).layout;
    if layout.l4 != L4::Tcp || layout.fragment {
        return false;
    }
    (pool.len(frame) <= SHORT && odd) || begins(pool.bytes(frame), layout)
}

/// Whether a frame begins a TCP connection, or answers one that does.
fn begins(bytes: &[u8], layout: &Layout) -> bool {
    let flags = || bytes.get(usize::from(layout.l4_offset) + TCP_FLAGS);
    layout.l4 == L4::Tcp && !layout.fragment && flags().is_some_and(|flags| flags & tcp_flags::SYN != 0)
}

#[cfg(test)]
mod tests;
