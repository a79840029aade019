//! Counters that the switch keeps, as plain numbers to be read at any time.

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
    pub fn add(&mut self, segments: u32, bytes: usize, wire_bytes: u32) {
        self.frames += 1;
        self.segments += u64::from(segments);
        self.bytes += bytes as u64;
        self.wire_bytes += u64::from(wire_bytes);
    }

    /// Adds another count to this one.
    pub fn sum(&mut self, other: &Traffic) {
        self.frames += other.frames;
        self.segments += other.segments;
        self.bytes += other.bytes;
        self.wire_bytes += other.wire_bytes;
    }
}

/// One direction of an endpoint's way to and from the uplink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneStats {
    /// What was served.
    pub traffic: Traffic,
    /// Of it, wire bytes served by guarantee (the rest was served by weight).
    pub guaranteed_bytes: u64,
    /// Frames marked (ECN CE) by the queue's management.
    pub marks: u64,
    /// Segments trimmed off by the queue's management.
    pub trims: u64,
    /// Wire bytes that wait now.
    pub backlog_bytes: u64,
    /// Frames that wait now.
    pub backlog_frames: u32,
    /// How long the last frame served had waited.
    pub sojourn_ns: u64,
    /// The longest wait since the start.
    pub sojourn_max_ns: u64,
}

impl LaneStats {
    /// Adds another lane's counters to this one's; of the waits, the longest stays.
    pub fn sum(&mut self, other: &LaneStats) {
        self.traffic.sum(&other.traffic);
        self.guaranteed_bytes += other.guaranteed_bytes;
        self.marks += other.marks;
        self.trims += other.trims;
        self.backlog_bytes += other.backlog_bytes;
        self.backlog_frames += other.backlog_frames;
        self.sojourn_ns = self.sojourn_ns.max(other.sojourn_ns);
        self.sojourn_max_ns = self.sojourn_max_ns.max(other.sojourn_max_ns);
    }
}

/// Everything that is counted for one endpoint.
#[derive(Clone, Debug, Default)]
pub struct EndpointStats {
    /// To the uplink.
    pub egress: LaneStats,
    /// From the uplink.
    pub ingress: LaneStats,
    /// To endpoints of the same switch.
    pub local_egress: LaneStats,
    /// From endpoints of the same switch.
    pub local_ingress: LaneStats,
    /// Frames that it sent, or that were for it, and were dropped.
    pub drops: DropCounters,
}
