//! A lane whose queue has another discipline than the lane's own: then all flows wait in one.

use super::{Admission, Lane, MAY_BE_MANY, NONE, Offer, Served, sender};
use crate::aqm::{Aqm, AqmStats};
use crate::frame::{Frame, Pool};
use crate::sched::flows::Flows;
use crate::sched::losses::Losses;
use crate::units::Instant;
use crate::verdict::Reason;

impl Lane {
    /// As [`Lane::enqueue`], where another discipline than the lane's own has the queue.
    ///
    /// # Errors
    /// The frame is freed and the reason given where nothing of it fits.
    pub(crate) fn enqueue_under(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        frame: Frame,
        (flows, losses): (&mut Flows, &mut Losses),
        aqm: &mut Aqm,
    ) -> Result<(), Reason> {
        if self.spread != NONE {
            self.unite(pool, flows);
        }
        // Whoever has the queue next finds out whose it is.
        self.flow = NONE;
        let before = *aqm.stats();
        let (layout, class, offer) = (pool.meta(&frame).layout, pool.class(&frame), Offer::of(pool, &frame));
        let segments = offer.segments();
        let may_wait = |owner, held| pool.may_wait(owner, class, held);
        match self.decide_managed(&offer, &may_wait) {
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
        let mut lost = Lost { frames: 0, whole: 0, losses };
        let waiting = self.fifo.wire_bytes();
        aqm.arrive(pool, now, waiting, frame, (&mut self.fifo, &mut |pool, frame, wire| lost.note(pool, frame, wire)));
        let Lost { frames, whole, .. } = lost;
        self.count_signals(&before, aqm.stats(), (frames, whole));
        Ok(())
    }

    /// As [`Lane::dequeue`], where another discipline than the lane's own has the queue.
    pub(crate) fn dequeue_under(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        max_frame: u32,
        (flows, losses): (&mut Flows, &mut Losses),
        aqm: &mut Aqm,
    ) -> Option<Served> {
        if self.spread != NONE {
            self.unite(pool, flows);
        }
        loop {
            let mut frame = self.fifo.pop(pool)?;
            if pool.meta(&frame).wire_bytes > max_frame.min(MAY_BE_MANY) {
                frame = self.cut(pool, frame, max_frame);
            }
            let before = *aqm.stats();
            let mut lost = Lost { frames: 0, whole: 0, losses };
            let lose = &mut |pool: &Pool, frame: &Frame, wire| lost.note(pool, frame, wire);
            let leaves = aqm.leave(pool, now, frame, (&mut self.fifo, lose));
            let Lost { frames, whole, .. } = lost;
            self.count_signals(&before, aqm.stats(), (frames, whole));
            self.drains();
            if let Some(frame) = leaves {
                return Some(self.count_served(pool, now, frame));
            }
        }
    }

    /// Counts what a discipline did meanwhile: from so many frames it took something, and of these
    /// some were lost whole.
    #[inline(always)]
    fn count_signals(&mut self, before: &AqmStats, after: &AqmStats, (frames, whole): (u64, u64)) {
        self.marks += after.marks - before.marks;
        if frames == 0 {
            return;
        }
        self.trims += (after.dropped.total() - before.dropped.total()).saturating_sub(whole);
        self.aqm_drops += whole;
    }
}

/// What a discipline takes from a lane.
struct Lost<'a> {
    /// Frames that it took something from, and those of which nothing is left.
    frames: u64,
    whole: u64,
    losses: &'a mut Losses,
}

impl Lost<'_> {
    fn note(&mut self, pool: &Pool, frame: &Frame, wire_bytes: u32) {
        self.frames += 1;
        self.whole += u64::from(pool.meta(frame).wire_bytes == wire_bytes);
        self.losses.note(sender(pool, frame), wire_bytes);
    }
}
