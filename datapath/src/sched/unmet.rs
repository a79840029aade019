//! Unmet time: for how long a node of the tree wanted more than it got, and got less than its
//! guarantee.
//!
//! The promise (`SPECIFICATION.md`) gives a node that wants more than its floor at least its floor,
//! `min(guarantee, limit)`. It *wants* while frames of it wait. So a stretch of time is looked at
//! that begins when frames begin to wait, or where the last one ended, and in which they wait
//! throughout; if none waits any more, it is forgotten. It is *short* where it brought less than 98
//! % of the floor, by more than [`SLACK_FRAMES`], which the orders may be off by rightly; then all
//! of it is unmet time. Where it is neither short nor met, it is looked at again when it is twice
//! as long. Time is the wall's and not the link's, in which guarantees always hold: here it shows
//! that the link, the worker or the machine is slower than promised.
//!
//! The datapath does it because only it knows whether frames waited throughout; a frame costs a
//! comparison, and a division comes every 0.1 s.

use crate::count::count_on;
use crate::program::Share;
use crate::units::{Instant, Rate};

/// The shortest stretch that is looked at, as a power of two of nanoseconds: 0.13 s, many round
/// trips and many times the stalls of a machine.
const SHORTEST: u8 = 27;
/// A stretch is at least as long as so many maximum frames take at the floor.
const FRAMES: u64 = 16;
/// How often a stretch doubles before it counts as met.
const DOUBLINGS: u8 = 4;
/// What the orders may be off by, in maximum frames: `fair` by 2.5 ahead at the beginning of a
/// stretch and 3.5 behind at its end (`order/fair.rs`).
const SLACK_FRAMES: u64 = 6;
/// The part of the floor that may be missing: 1/50.
const TOLERANCE: u64 = 50;
/// The length of a stretch that is never looked at.
const NEVER: u8 = 63;

/// The stretch that is looked at next. A frame costs a look at `due`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// When.
    due: Instant,
    /// Wire bytes served before it.
    served: u64,
}

impl Stretch {
    /// None yet.
    pub(super) const NONE: Stretch = Stretch { due: Instant(u64::MAX), served: 0 };

    /// Frames begin to wait, or a new stretch follows. It will be looked at when it is 2^`span` ns
    /// long.
    #[inline]
    pub(super) fn begin(&mut self, now: Instant, served: u64, span: u8) {
        *self = Stretch { due: Instant(now.0.wrapping_add(1 << (span & NEVER))), served };
    }

    /// Whether it is to be looked at.
    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// How long it is, where it is looked at when it is 2^`span` ns long.
    fn length_ns(&self, now: Instant, span: u8) -> u64 {
        now.0.saturating_add(1 << (span & NEVER)).saturating_sub(self.due.0)
    }
}

/// What a stretch was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finding {
    Met,
    Unclear,
    Short,
}

/// A node's floor, and its unmet time so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unmet {
    floor: Rate,
    total_ns: u64,
    /// Wire bytes of the longest frame.
    max_frame: u32,
}

impl Unmet {
    /// Changes the floor and the longest frame; the stretch was closed before. Returns the span of
    /// the first look.
    pub(super) fn set(&mut self, share: &Share, max_frame: u32) -> u8 {
        (self.floor, self.max_frame) = (share.guarantee.min(share.limit), max_frame);
        self.first_span()
    }

    /// Ends a stretch, however short: what it is measured by changes, and another is to begin.
    pub(super) fn close(&mut self, stretch: &Stretch, now: Instant, served: u64, span: u8) {
        if self.find(stretch, now, served, span) == Finding::Short {
            count_on(&mut self.total_ns, stretch.length_ns(now, span));
        }
    }

    /// Looks at a stretch that is due, before the frame is counted that is served now: so it finds
    /// what [`Unmet::at`] said just before, and unmet time never falls. Returns the span of the
    /// next look, at this stretch or at the one that begins.
    pub(super) fn look(&mut self, stretch: &mut Stretch, now: Instant, served: u64, span: u8) -> u8 {
        let first = self.first_span();
        match self.find(stretch, now, served, span) {
            Finding::Unclear if span < first.saturating_add(DOUBLINGS) => {
                stretch.due = stretch.due.plus_ns(1 << (span & NEVER));
                return span + 1;
            }
            Finding::Short => count_on(&mut self.total_ns, stretch.length_ns(now, span)),
            Finding::Met | Finding::Unclear => {}
        }
        stretch.begin(now, served, first);
        first
    }

    /// Unmet time at `now`, with the stretch that has not ended: frames still wait.
    pub(super) fn at(&self, stretch: &Stretch, now: Instant, served: u64, span: u8) -> u64 {
        let short = stretch.is_due(now) && self.find(stretch, now, served, span) == Finding::Short;
        self.total_ns + if short { stretch.length_ns(now, span) } else { 0 }
    }

    /// Unmet time in stretches that have ended.
    pub(super) fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Counts on from another node's.
    pub(super) fn restore(&mut self, total_ns: u64) {
        count_on(&mut self.total_ns, total_ns);
    }

    fn find(&self, stretch: &Stretch, now: Instant, served: u64, span: u8) -> Finding {
        let floor = self.floor.bytes_in(stretch.length_ns(now, span));
        let (enough, got) = (floor - floor / TOLERANCE, served.saturating_sub(stretch.served));
        match () {
            () if got >= enough => Finding::Met,
            () if got + SLACK_FRAMES * u64::from(self.max_frame) >= enough => Finding::Unclear,
            () => Finding::Short,
        }
    }

    fn first_span(&self) -> u8 {
        if self.floor.0 == 0 {
            return NEVER;
        }
        let least_ns = self.floor.time_ns(FRAMES * u64::from(self.max_frame));
        SHORTEST.max(least_ns.checked_ilog2().map_or(0, |power| power as u8 + 1)).min(NEVER)
    }
}
