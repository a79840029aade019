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
        let mut lost = Lost { whole: 0, losses };
        let waiting = self.fifo.wire_bytes();
        aqm.arrive(pool, now, waiting, frame, (&mut self.fifo, &mut |pool, frame, wire| lost.note(pool, frame, wire)));
        let whole = lost.whole;
        self.count_signals(&before, aqm.stats(), whole);
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
