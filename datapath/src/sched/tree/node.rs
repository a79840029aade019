//! What a tree keeps of its tenants and endpoints.

use crate::program::{OrderKind, Share};
use crate::sched::lane::Lane;
use crate::sched::level::Level;
use crate::sched::unmet::{Stretch, Unmet};
use crate::stats::Traffic;
use crate::units::Instant;

/// The owner of a vacant slot.
pub(super) const NOBODY: u32 = u32::MAX;

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
    /// Whether it has a limit of its own.
    pub limited: bool,
    /// At which length its stretch is looked at.
    pub span: u8,
    /// Whether some of its frames go before the others.
    pub has_ahead: bool,
    /// Whether its queue has another discipline than the lane's own.
    pub has_aqm: bool,
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
            limited: false,
            span: 0,
            has_ahead: false,
            has_aqm: false,
            lane: Lane::new(0),
            stretch: Stretch::NONE,
        }
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
