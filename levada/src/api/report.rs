//! The report: what `levada show --json` prints, and what `GET /v1/report` answers. Version 1: keys
//! may be added, none changes its meaning.
//!
//! Bytes called `wire` count preamble, FCS, gap and padding (`payload + segments x (headers + 24)`,
//! short frames as 84). Counters run from the daemon's start; times are in nanoseconds.

use super::bonds::BondReport;
use super::device::DeviceReport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The whole report.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct Report {
    /// 1.
    pub version: u32,
    /// Name of the instance.
    pub name: String,
    /// The daemon's process.
    pub pid: u32,
    /// Time since the daemon's start.
    pub now_ns: u64,
    /// How long after that the last counter was read: those of many endpoints are read in parts,
    /// while frames go on.
    #[serde(default)]
    pub span_ns: u64,
    /// The thread that moves frames.
    pub worker: WorkerReport,
    /// Frame memory.
    pub memory: MemoryReport,
    /// Links between switches of this daemon.
    pub links: Vec<LinkReport>,
    /// The switches.
    pub switches: Vec<SwitchReport>,
}

/// The thread that moves frames.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct WorkerReport {
    /// How late what was due was done.
    pub loop_lag_ns: Percentiles,
    /// How long a round took: how long a frame may have waited to be noticed.
    pub round_ns: Percentiles,
    /// The counts behind `loop_lag_ns`: pairs of (longest duration in the bucket, count). The
    /// difference of two reports is a window.
    pub loop_lag_buckets: Vec<(u64, u64)>,
    /// The counts behind `round_ns`.
    pub round_buckets: Vec<(u64, u64)>,
    /// Time not spent waiting.
    pub busy_ns: u64,
    /// Processor time.
    pub cpu_ns: u64,
    /// Rounds of the loop.
    pub rounds: u64,
    /// What reading and writing a frame has lately cost: of 60 bytes, and of 64 KiB.
    pub frame_cost_ns: [u64; 2],
    /// What it spent on changes, and on reports.
    #[serde(default)]
    pub own_ns: u64,
}

/// What a user of the worker's time had of it.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessorReport {
    /// What was spent for it: reading, writing, cutting and copying, by what these have been
    /// measured to cost.
    pub used_ns: u64,
    /// What was spent for others while something of it waited to be read or copied.
    pub waited_ns: u64,
    /// How long it was short: the worker had no time left, and something of it waited nearly
    /// always, while others had the time or rings of its ports overflowed.
    pub short_ns: u64,
}

/// Of many durations, in nanoseconds.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, Copy)]
pub struct Percentiles {
    /// Half are at most this.
    pub p50: u64,
    /// 99 of 100 are at most this.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// Frame memory.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct MemoryReport {
    /// Frames in the switches and links.
    pub frames: usize,
    /// Small buffers that can still be had.
    pub small_free: u32,
    /// Medium buffers that can still be had.
    #[serde(default)]
    pub medium_free: u32,
    /// Large buffers that can still be had.
    pub large_free: u32,
}

/// A link.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct LinkReport {
    /// Its name.
    pub name: String,
    /// What end a sent.
    pub a: LinkEndReport,
    /// What end b sent.
    pub b: LinkEndReport,
}

/// What one end of a link sent.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct LinkEndReport {
    /// Frames.
    pub frames: u64,
    /// Wire bytes.
    pub bytes: u64,
    /// Segments that found the queue full.
    pub drops: u64,
    /// Segments lost on the wire.
    pub losses: u64,
    /// Segments marked.
    pub marks: u64,
    /// The queue.
    #[serde(default)]
    pub queue: QueueReport,
    /// Wire bytes that wait.
    pub backlog_bytes: u64,
    /// The most that ever waited.
    pub backlog_max_bytes: u64,
}

/// What a queue does before it is full, and what it did. All counts are segments.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Default)]
pub struct QueueReport {
    /// The discipline, as `aqm` names it.
    pub kind: String,
    /// The wait above which it signals, where it goes by that; `auto` finds it by itself.
    pub target_ns: Option<u64>,
    /// The queue above which it signals, in wire bytes, where it goes by that: the average, if it
    /// keeps one.
    pub min_bytes: Option<u64>,
    /// The average at which all is signalled, or the chance of it is the greatest.
    pub max_bytes: Option<u64>,
    /// The average queue, where it keeps one.
    pub average_bytes: Option<u64>,
    /// Marked.
    pub marks: u64,
    /// Lost as a signal to senders.
    pub dropped: LostReport,
    /// Lost since the queue was full.
    pub overflowed: LostReport,
}

/// Segments that a queue lost, each in the first of these that it is.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Default)]
pub struct LostReport {
    /// Beginnings of TCP connections.
    pub syn: u64,
    /// What could have been marked.
    pub ect: u64,
    /// TCP without data.
    pub ack: u64,
    /// The rest.
    pub other: u64,
}

/// A switch.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct SwitchReport {
    /// Its name.
    pub name: String,
    /// As configured.
    pub order: String,
    /// As configured.
    pub ingress: String,
    /// Addresses learned.
    pub learned: usize,
    /// The access link.
    pub uplink: Option<UplinkReport>,
    /// The tenants.
    pub tenants: Vec<TenantReport>,
}

/// The access link of a switch.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct UplinkReport {
    /// Its port.
    pub port: String,
    /// `up` or `down`; `down` is also an interface that is set down or has no carrier. Where it has
    /// several ports, `up` where one of them may send.
    pub state: String,
    /// As for an endpoint; where it has several ports, of the first.
    #[serde(default)]
    pub device: Option<DeviceReport>,
    /// As for an endpoint; where it has several ports, only where all of their devices are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// How often its port went away; where it has several, how often any of them did.
    #[serde(default)]
    pub losses: u64,
    /// What the worker spent on its ports, reading and writing.
    #[serde(default)]
    pub worker_ns: u64,
    /// Of an interface that exists: `exclusive`, or `shared` with a host whose own traffic is not
    /// scheduled.
    #[serde(default)]
    pub sharing: Option<String>,
    /// Where it has several ports: how they are used, and each of them. `port` is then the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bond: Option<BondReport>,
    /// To the wire.
    pub egress: UplinkDirection,
    /// From the wire.
    pub ingress: UplinkDirection,
    /// Frames that belong to no endpoint.
    pub drops: BTreeMap<String, u64>,
    /// What it had of the worker's time.
    #[serde(default)]
    pub processor: ProcessorReport,
}

/// One direction of an uplink.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct UplinkDirection {
    /// What it is used at.
    pub rate_bps: u64,
    /// What is guaranteed over it.
    pub promised_bps: u64,
    /// What can be guaranteed over it.
    pub capacity_bps: u64,
    /// Whether the guarantees can be met. If not, they have shrunk in proportion.
    pub met: bool,
    /// What passed.
    #[serde(flatten)]
    pub traffic: LaneReport,
}

/// A tenant.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct TenantReport {
    /// Its name.
    pub name: String,
    /// To the uplink.
    pub egress: SharedReport,
    /// From the uplink.
    pub ingress: SharedReport,
    /// Frame memory.
    #[serde(default)]
    pub memory: TenantMemoryReport,
    /// Its endpoints.
    pub endpoints: Vec<EndpointReport>,
    /// What it had of the worker's time.
    #[serde(default)]
    pub processor: ProcessorReport,
}

/// Frame memory of a tenant.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Default)]
pub struct TenantMemoryReport {
    /// What its frames take that wait, in bytes of buffers.
    pub held_bytes: u64,
    /// What it can always have; more where others leave it.
    pub share_bytes: u64,
}

/// An endpoint.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct EndpointReport {
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: String,
    /// `up` or `down`; `down` is also a TAP device, or a container's end of a veth pair, that
    /// somebody has set down, and an interface that is set down or has no carrier.
    pub state: String,
    /// Of a TAP device, or a container's end of a veth pair, that is open: where it is and what it
    /// is like, as it was seen within the last second or two.
    #[serde(default)]
    pub device: Option<DeviceReport>,
    /// Of a device that is gone: why, and what brings it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// As for an uplink; the host's own port is `absent` where its interface had to be shared.
    #[serde(default)]
    pub sharing: Option<String>,
    /// How often its port went away.
    pub losses: u64,
    /// What the worker spent on it, reading and writing.
    pub worker_ns: u64,
    /// To the uplink.
    pub egress: SharedReport,
    /// From the uplink.
    pub ingress: SharedReport,
    /// To and from neighbours on the switch together.
    pub local: LaneReport,
    /// To neighbours on the switch.
    pub local_egress: LaneReport,
    /// From neighbours on the switch.
    pub local_ingress: LaneReport,
    /// How long its frames waited.
    #[serde(default)]
    pub sojourn: BothSojourns,
    /// Of an interface that exists: whether frames from and to neighbours take shortcuts past the
    /// switch. They do not wait, so they are not in `sojourn`.
    #[serde(default)]
    pub shortcut: Option<ShortcutReport>,
    /// Frames dropped, by reason (of `policed`, segments); those without drops are left out.
    pub drops: BTreeMap<String, u64>,
}

/// What of an endpoint's frames takes shortcuts past the switch: `on`, or why not.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ShortcutReport {
    /// What it sends.
    pub egress: String,
    /// What is for it.
    pub ingress: String,
}

/// Knobs and traffic of one direction.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct SharedReport {
    /// At least, as configured.
    pub guarantee_bps: u64,
    /// At most; `null` for no limit.
    pub limit_bps: Option<u64>,
    /// Share of what is left.
    pub weight: u32,
    /// For how long it wanted more than it got, and got less than its guarantee.
    #[serde(default)]
    pub unmet_ns: u64,
    /// Of an endpoint whose queue has a discipline of its own (`aqm`): what that did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueReport>,
    /// What passed.
    #[serde(flatten)]
    pub traffic: LaneReport,
}

/// Traffic, and the queue before it.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Default)]
pub struct LaneReport {
    /// Frames as the switch handles them; an offloaded one is one.
    pub frames: u64,
    /// Frames on the wire.
    pub segments: u64,
    /// Bytes of the frames.
    pub bytes: u64,
    /// Bytes on the wire.
    pub wire_bytes: u64,
    /// Of these, served by guarantee.
    pub guaranteed_bytes: u64,
    /// Wire bytes that wait.
    pub backlog_bytes: u64,
    /// Frames that wait.
    pub backlog_frames: u64,
    /// Segments marked.
    pub marks: u64,
    /// Segments trimmed.
    pub trims: u64,
    /// The longest that one ever waited.
    pub sojourn_max_ns: u64,
}

/// How long the frames of an endpoint waited in one direction, those from and to neighbours
/// included. Frames that did not have to wait are not in it.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Default)]
pub struct SojournReport {
    /// The sum of all waits; no more once it is 584 years.
    pub total_ns: u64,
    /// Half of the frames waited at most so long.
    pub p50_ns: u64,
    /// 99 of 100 frames waited at most so long.
    pub p99_ns: u64,
    /// Pairs of a bucket's end and its frames: those that waited less, and are not in the bucket
    /// before. `null` for the last one, which has no end; empty ones are left out. The difference
    /// of two reports is a window.
    pub buckets: Vec<(Option<u64>, u64)>,
}

/// Both directions.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Default)]
pub struct BothSojourns {
    /// Of what it sent.
    pub egress: SojournReport,
    /// Of what was for it.
    pub ingress: SojournReport,
}
