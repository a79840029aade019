//! Counters that the switch keeps, as plain numbers to be read at any time.

use crate::count::count_on;
use crate::sojourn::Sojourn;
use crate::units::Both;
use crate::verdict::DropCounters;

/// Traffic of one endpoint, tenant or uplink in one direction, counted where it leaves its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Frames as the switch handled them (an offloaded frame is one).
    pub frames: u64,
    /// Segments: frames on the wire.
    pub segments: u64,
    /// Bytes of the frames, headers of later segments not included.
    pub bytes: u64,
    /// Bytes on the wire: headers of all segments, preamble, FCS, gap and padding included.
    pub wire_bytes: u64,
}

impl Traffic {
    /// Counts one frame.
    #[inline]
    pub fn add(&mut self, segments: u32, bytes: usize, wire_bytes: u32) {
        self.frames += 1;
        self.segments += u64::from(segments);
        self.bytes += bytes as u64;
        self.wire_bytes += u64::from(wire_bytes);
    }

    /// Lets this count continue from another.
    pub(crate) fn count_on(&mut self, from: &Traffic) {
        count_on(&mut self.frames, from.frames);
        count_on(&mut self.segments, from.segments);
        count_on(&mut self.bytes, from.bytes);
        count_on(&mut self.wire_bytes, from.wire_bytes);
    }

    /// Adds another count to this one.
    pub fn sum(&mut self, other: &Traffic) {
        self.frames = self.frames.saturating_add(other.frames);
        self.segments = self.segments.saturating_add(other.segments);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.wire_bytes = self.wire_bytes.saturating_add(other.wire_bytes);
    }
}

/// One direction of an endpoint's way to and from the uplink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneStats {
    /// What was served.
    pub traffic: Traffic,
    /// Of it, wire bytes served by guarantee (the rest was served by weight).
    pub guaranteed_bytes: u64,
    /// Segments marked (ECN CE) by the queue's management.
    pub marks: u64,
    /// Segments trimmed off by the queue's management.
    pub trims: u64,
    /// Wire bytes that wait now.
    pub backlog_bytes: u64,
    /// Frames that wait now.
    pub backlog_frames: u32,
    /// The longest wait since the start.
    pub sojourn_max_ns: u64,
    /// For how long it wanted more than it got, and got less than its guarantee (`sched/unmet.rs`);
    /// zero between neighbours.
    pub unmet_ns: u64,
}

impl LaneStats {
    /// Adds what the queue of an endpoint has counted to what its tenant has by itself
    /// ([`crate::switch::Switch::tenant_own_stats`]).
    pub fn add_queue(&mut self, lane: &LaneStats) {
        self.marks = self.marks.saturating_add(lane.marks);
        self.trims = self.trims.saturating_add(lane.trims);
        self.backlog_bytes += lane.backlog_bytes;
        self.backlog_frames += lane.backlog_frames;
        self.sojourn_max_ns = self.sojourn_max_ns.max(lane.sojourn_max_ns);
    }

    /// Lets these counters continue from another lane's. What waits there is not here.
    pub(crate) fn count_on(&mut self, from: &LaneStats) {
        self.traffic.count_on(&from.traffic);
        count_on(&mut self.guaranteed_bytes, from.guaranteed_bytes);
        count_on(&mut self.marks, from.marks);
        count_on(&mut self.trims, from.trims);
        count_on(&mut self.unmet_ns, from.unmet_ns);
        self.sojourn_max_ns = self.sojourn_max_ns.max(from.sojourn_max_ns);
    }

    /// Adds another lane's counters to this one's; of the waits, the longest stays.
    pub fn sum(&mut self, other: &LaneStats) {
        self.traffic.sum(&other.traffic);
        self.guaranteed_bytes = self.guaranteed_bytes.saturating_add(other.guaranteed_bytes);
        self.marks = self.marks.saturating_add(other.marks);
        self.trims = self.trims.saturating_add(other.trims);
        self.backlog_bytes += other.backlog_bytes;
        self.backlog_frames += other.backlog_frames;
        self.sojourn_max_ns = self.sojourn_max_ns.max(other.sojourn_max_ns);
        self.unmet_ns = self.unmet_ns.saturating_add(other.unmet_ns);
    }
}

/// Everything that is counted for one endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EndpointStats {
    /// To the uplink.
    pub egress: LaneStats,
    /// From the uplink.
    pub ingress: LaneStats,
    /// To endpoints of the same switch.
    pub local_egress: LaneStats,
    /// From endpoints of the same switch.
    pub local_ingress: LaneStats,
    /// How long its frames waited, those from and to neighbours included.
    pub sojourn: Both<Sojourn>,
    /// Frames that it sent, or that were for it, and were dropped.
    pub drops: DropCounters,
}
