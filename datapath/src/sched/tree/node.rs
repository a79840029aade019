//! What a tree keeps of its tenants and endpoints.

use crate::frame::{Class, Frame, Pool};
use crate::offload::Gso;
use crate::program::{OrderKind, Share};
use crate::sched::flows::Flows;
use crate::sched::lane::Lane;
use crate::sched::level::Level;
use crate::sched::run::Run;
use crate::sched::unmet::{Stretch, Unmet};
use crate::stats::Traffic;
use crate::units::Instant;

/// The owner of a vacant slot.
pub(super) const NOBODY: u32 = u32::MAX;

/// Flags of [`Node`]: it has a limit of its own.
pub(super) const LIMITED: u8 = 1;
/// Some of its frames go before the others.
pub(super) const AHEAD: u8 = 1 << 1;
/// Its queue has another discipline than the lane's own.
pub(super) const AQM: u8 = 1 << 2;

/// A tenant.
#[derive(Debug)]
pub(super) struct Tenant {
    pub level: Level,
    pub share: Share,
    /// Endpoint by child index, or [`NOBODY`]; and which children are nobody.
    pub children: Vec<u32>,
    pub vacant: Vec<u32>,
    pub traffic: Traffic,
    pub guaranteed_bytes: u64,
    /// What lanes had counted whose endpoints are gone.
    pub marks: u64,
    pub trims: u64,
    pub sojourn_max_ns: u64,
    /// What is looked at next for unmet time, and at which length.
    pub stretch: Stretch,
    pub span: u8,
    pub unmet: Unmet,
}

impl Tenant {
    pub fn new(kind: OrderKind, max_frame: u32) -> Self {
        let mut unmet = Unmet::default();
        let span = unmet.set(&Share::default(), max_frame);
        Tenant {
            level: Level::new(kind, max_frame),
            share: Share::default(),
            children: Vec::new(),
            vacant: Vec::new(),
            traffic: Traffic::default(),
            guaranteed_bytes: 0,
            marks: 0,
            trims: 0,
            sojourn_max_ns: 0,
            stretch: Stretch::NONE,
            span,
            unmet,
        }
    }

    /// Looks for unmet time by its share and the longest frame from `now` on.
    pub fn measure(&mut self, now: Instant, max_frame: u32) {
        let served = self.traffic.wire_bytes;
        if self.level.active() > 0 {
            self.unmet.close(&self.stretch, now, served, self.span);
        }
        self.span = self.unmet.set(&self.share, max_frame);
        self.stretch.begin(now, served, self.span);
    }

    /// Looks at its stretch, which is due, before more is served.
    #[cold]
    pub fn look(&mut self, now: Instant) {
        self.span = self.unmet.look(&mut self.stretch, now, self.traffic.wire_bytes, self.span);
    }

    pub fn unmet_ns(&self, now: Instant) -> u64 {
        match self.level.active() {
            0 => self.unmet.total_ns(),
            _ => self.unmet.at(&self.stretch, now, self.traffic.wire_bytes, self.span),
        }
    }
}

/// An endpoint: three cache lines, since a frame of each of a hundred thousand in turn finds none
/// of them cached.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Node {
    pub tenant: u32,
    pub child: u32,
    /// The longest frame it sends at once, in wire bytes.
    pub max_frame: u32,
    /// Wire bytes of the longest frame in a small buffer that its lane takes whole when it is
    /// empty; zero where more is to be looked at.
    pub plain: u16,
    /// At which length its stretch is looked at.
    pub span: u8,
    /// [`LIMITED`], [`AHEAD`] and [`AQM`].
    pub flags: u8,
    pub lane: Lane,
    /// What is looked at next for unmet time.
    pub stretch: Stretch,
}

impl Node {
    pub fn vacant() -> Self {
        Node {
            tenant: NOBODY,
            child: NOBODY,
            max_frame: 0,
            plain: 0,
            span: 0,
            flags: 0,
            lane: Lane::new(0),
            stretch: Stretch::NONE,
        }
    }

    /// Whether it has a limit of its own.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.flags & LIMITED != 0
    }

    /// Whether some of its frames go before the others.
    #[inline]
    pub fn has_ahead(&self) -> bool {
        self.flags & AHEAD != 0
    }

    /// Whether its queue has another discipline than the lane's own.
    #[inline]
    pub fn has_aqm(&self) -> bool {
        self.flags & AQM != 0
    }

    /// Sets one of the flags. The longest frame and the lane's bound may have changed as well.
    pub fn set(&mut self, flag: u8, is_so: bool) {
        self.flags = self.flags & !flag | if is_so { flag } else { 0 };
        let longest = self.lane.longest_alone().min(self.max_frame);
        let is_plain = !self.has_ahead() && !self.has_aqm();
        self.plain = if is_plain { u16::try_from(longest).unwrap_or(u16::MAX) } else { 0 };
    }

    /// Wire bytes of its first frame, as far as it goes at once; where orders do not ask for
    /// lengths, any will do.
    #[inline]
    pub fn head(&self, pool: &Pool, flows: &Flows, lengths: bool) -> u32 {
        if lengths { self.lane.head(pool, flows, self.max_frame) } else { self.max_frame }
    }

    /// Whether a frame of one segment would be the only one in its lane, and go as it is.
    #[inline(always)]
    pub fn is_passed_by(&self, pool: &Pool, frame: &Frame) -> bool {
        let (class, meta) = (pool.class(frame), pool.meta(frame));
        if !self.lane.is_empty() || meta.offload.gso != Gso::None {
            return false;
        }
        let is_plain = class == Class::Small && meta.wire_bytes <= u32::from(self.plain) && pool.is_plenty(class);
        is_plain || self.is_passed_by_at_all(pool, frame)
    }

    /// The same of each frame of a run.
    pub fn is_passed_by_run(&self, pool: &Pool, run: &Run) -> bool {
        self.lane.is_empty() && run.longest <= u32::from(self.plain) && pool.is_plenty(Class::Small)
    }

    #[inline(never)]
    fn is_passed_by_at_all(&self, pool: &Pool, frame: &Frame) -> bool {
        !self.has_ahead() && !self.has_aqm() && self.lane.is_passed_by(pool, frame, self.max_frame)
    }

    /// The same of any frame, but for its queue's discipline, which is to be asked.
    pub fn is_passed_by_special(&self, pool: &Pool, frame: &Frame) -> bool {
        !self.has_ahead() && self.lane.is_passed_by(pool, frame, self.max_frame)
    }

    /// Looks for unmet time by this share and its longest frame from `now` on.
    pub fn measure(&mut self, unmet: &mut Unmet, share: &Share, now: Instant) {
        let served = self.lane.served_bytes();
        if !self.lane.is_empty() {
            unmet.close(&self.stretch, now, served, self.span);
        }
        self.span = unmet.set(share, self.max_frame);
        self.stretch.begin(now, served, self.span);
    }

    /// Looks at its stretch, which is due, before more is served.
    #[cold]
    pub fn look(&mut self, unmet: &mut Unmet, now: Instant) {
        self.span = unmet.look(&mut self.stretch, now, self.lane.served_bytes(), self.span);
    }

    pub fn unmet_ns(&self, unmet: &Unmet, now: Instant) -> u64 {
        if self.lane.is_empty() {
            return unmet.total_ns();
        }
        unmet.at(&self.stretch, now, self.lane.served_bytes(), self.span)
    }
}

const _: () = assert!(size_of::<Node>() <= 192);
