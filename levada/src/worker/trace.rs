//! Traces: while one is armed, the worker explains each frame before the switch gets it, and hands
//! over those that its filter means. It ends by itself: after a number of frames, after a time, or
//! when nobody listens any more. Nothing is explained while none is armed.

use control::filter::Filter;
use datapath::frame::{Frame, Pool};
use datapath::frame_trace::FrameTrace;
use datapath::program::PortId;
use datapath::switch::Switch;
use datapath::units::Instant;
use std::sync::mpsc::SyncSender;

/// What a trace looks for.
pub struct Trace {
    /// Which frames.
    pub filter: Filter,
    /// How many of them at most.
    pub count: usize,
    /// For how long at most, in nanoseconds.
    pub time_ns: u64,
    /// How many bytes of each are kept.
    pub snap: usize,
    /// Where they go. Has room for all of them.
    pub out: SyncSender<Sighting>,
}

/// A frame that was traced.
pub struct Sighting {
    /// When it was read, on the worker's clock.
    pub at: Instant,
    /// Its switch.
    pub switch: usize,
    /// What was explained beforehand, and then done.
    pub frame_trace: FrameTrace,
    /// Its length, and the bytes that were kept.
    pub length: usize,
    /// See [`Trace::snap`].
    pub bytes: Vec<u8>,
}

/// A trace that runs.
pub(super) struct Armed {
    trace: Trace,
    until: Instant,
}

impl Armed {
    pub(super) fn new(trace: Trace, now: Instant) -> Armed {
        Armed { until: now.plus_ns(trace.time_ns), trace }
    }

    /// Whether its time is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.trace.count == 0 || now >= self.until
    }

    /// Gives a frame to its switch, and hands over what became of it where it is meant.
    pub(super) fn rx(
        &mut self,
        (index, switch): (usize, &mut Switch),
        pool: &mut Pool,
        at: Instant,
        port: PortId,
        frame: Frame,
    ) {
        if self.is_over(at) {
            switch.rx(pool, at, port, frame);
            return;
        }
        let frame_trace = switch.explain(pool, at, port, &frame);
        let meant = self.trace.filter.matches(index, &frame_trace);
        let length = pool.len(&frame);
        let bytes = if meant { pool.bytes(&frame)[..length.min(self.trace.snap)].to_vec() } else { Vec::new() };
        let verdict = switch.rx(pool, at, port, frame);
        debug_assert_eq!(verdict, frame_trace.verdict);
        if !meant {
            return;
        }
        self.trace.count -= 1;
        if self.trace.out.try_send(Sighting { at, switch: index, frame_trace, length, bytes }).is_err() {
            // Who asked is gone.
            self.trace.count = 0;
        }
    }
}
