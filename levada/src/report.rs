//! The report: what `levada show --json` prints, and what `GET /v1/report` answers. Version 1: keys
//! may be added, none changes its meaning.
//!
//! Bytes called `wire` count preamble, FCS, gap and padding (`payload + segments x (headers + 24)`,
//! short frames as 84). Counters run from the daemon's start; times are in nanoseconds.

pub mod bond;
#[cfg(test)]
mod tests;

use crate::next_hops::report::TunnelsReport;
use crate::shortcut::{Inside, Shortcuts};
use crate::whereabouts::{DeviceReport, Sights};
use crate::worker::{Histogram, Snapshot, SwitchNumbers};
use bond::{BondReport, MemberReport};
use control::admission::Promise;
use control::names::{self, name_of};
use control::plan::{Plan, PortKind, SwitchPlan};
use control::shortcut::{Hindrance, Shortcut, shortcuts};
use datapath::aqm::{Lost, QueueState};
use datapath::bond::MemberState;
use datapath::link::LinkStats;
use datapath::program::{Endpoint, PortId, Share, TenantId};
use datapath::sojourn::Sojourn;
use datapath::stats::{EndpointStats, LaneStats};
use datapath::turns::Spent;
use datapath::units::{Both, Direction, Rate};
use datapath::verdict::DropCounters;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What [`ShortcutReport`] says where frames take them.
pub const ON: &str = "on";

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
    /// What it spent on changes, and on numbers for who looks.
    #[serde(default)]
    pub own_ns: u64,
}

/// What somebody had of the worker's time.
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

impl LinkEndReport {
    /// Segments that its queue lost, full or as a signal to senders.
    #[must_use]
    pub fn all_drops(&self) -> u64 {
        self.drops.saturating_add(self.queue.dropped.sum())
    }
}

impl LostReport {
    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        [self.syn, self.ect, self.ack, self.other].into_iter().fold(0, u64::saturating_add)
    }
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

impl SojournReport {
    fn new(sojourn: &Sojourn, max_ns: u64) -> SojournReport {
        let counts = sojourn.counts().iter().enumerate().filter(|&(_, &count)| count > 0);
        let buckets: Vec<_> = counts.map(|(bucket, &count)| (Sojourn::end_ns(bucket), count)).collect();
        SojournReport {
            total_ns: sojourn.total_us().saturating_mul(1 << 10),
            p50_ns: permille(&buckets, 500, max_ns),
            p99_ns: permille(&buckets, 990, max_ns),
            buckets,
        }
    }

    /// What 99 of 100 frames waited at most that have left since `before`; `None` where none has.
    /// No frame waited for longer than `max_ns`.
    #[must_use]
    pub fn p99_since(&self, before: &SojournReport, max_ns: u64) -> Option<u64> {
        let old = |end| before.buckets.iter().find(|&&(of, _)| of == end).map_or(0, |&(_, count)| count);
        let new = self.buckets.iter().map(|&(end, count)| (end, count.saturating_sub(old(end))));
        let new: Vec<_> = new.filter(|&(_, count)| count > 0).collect();
        (!new.is_empty()).then(|| permille(&new, 990, max_ns))
    }
}

/// What `part` of a thousand frames waited at most; 0 where there are none.
fn permille(buckets: &[(Option<u64>, u64)], part: u64, max_ns: u64) -> u64 {
    let total: u64 = buckets.iter().map(|&(_, count)| count).sum();
    let mut left = (total * part).div_ceil(1000);
    for &(end, count) in buckets {
        if left <= count {
            return end.map_or(max_ns, |end| end.min(max_ns));
        }
        left -= count;
    }
    0
}

/// What the report is made from beside the snapshot: names, and what was decided when they became
/// so.
pub struct Facts {
    /// What the daemon runs.
    pub plan: Plan,
    /// By switch: what its uplink is used at, and what is promised over it.
    pub uplinks: BTreeMap<u32, (Both<Rate>, Both<Promise>)>,
    /// By switch and port: the worker's device, where there is one.
    pub devices: BTreeMap<(usize, PortId), usize>,
    /// The shortcuts past its switches.
    pub shortcuts: Shortcuts,
    /// Where its devices are.
    pub sights: Sights,
    /// The tunnels to other hosts.
    pub tunnels: Vec<TunnelsReport>,
}

impl Facts {
    /// The report on a snapshot.
    #[must_use]
    pub fn report(&self, shot: &Snapshot) -> Report {
        let effort = &shot.effort;
        let inside = self.shortcuts.inside();
        Report {
            version: 1,
            name: self.plan.name.clone(),
            pid: std::process::id(),
            now_ns: shot.now.0,
            span_ns: shot.span_ns,
            worker: WorkerReport {
                loop_lag_ns: percentiles(&effort.lag),
                round_ns: percentiles(&effort.round),
                loop_lag_buckets: effort.lag.buckets().collect(),
                round_buckets: effort.round.buckets().collect(),
                busy_ns: effort.busy_ns,
                cpu_ns: shot.cpu_ns,
                rounds: effort.rounds,
                frame_cost_ns: shot.cost_ns,
                own_ns: shot.own.used_ns,
            },
            memory: MemoryReport {
                frames: shot.frames_in_use,
                small_free: shot.available.map_or(0, |a| a.small),
                medium_free: shot.available.map_or(0, |a| a.medium),
                large_free: shot.available.map_or(0, |a| a.large),
            },
            links: self.plan.links.iter().map(|(id, (name, _))| link(name, of(&shot.links, id))).collect(),
            switches: self.plan.switches.iter().map(|(id, plan)| self.switch(id, plan, shot, &inside)).collect(),
        }
    }

    fn switch(&self, index: u32, plan: &SwitchPlan, shot: &Snapshot, inside: &Inside) -> SwitchReport {
        let none = SwitchNumbers::default();
        let numbers = shot.switches.get(index as usize).unwrap_or(&none);
        let mut endpoints = BTreeMap::<u32, Vec<_>>::new();
        for (id, endpoint) in plan.program.endpoints.iter() {
            endpoints.entry(endpoint.tenant.0).or_default().push((id, endpoint));
        }
        let shortcuts = shortcuts(plan);
        let part = Part { facts: self, index, plan, numbers, shot, endpoints, inside, shortcuts };
        SwitchReport {
            name: plan.name.clone(),
            order: name_of(&names::ORDERS, plan.program.order).to_owned(),
            ingress: name_of(&names::INGRESS_MODES, plan.program.ingress).to_owned(),
            learned: numbers.learned,
            uplink: part.uplink(),
            tenants: plan.tenants.iter().map(|(id, name)| part.tenant(TenantId(id), name)).collect(),
        }
    }
}

/// The numbers of `id`; zeros where a change that made it has only just begun.
fn of<T: Clone + Default>(list: &[T], id: u32) -> T {
    list.get(id as usize).cloned().unwrap_or_default()
}

/// What the report on one switch is made from.
struct Part<'a> {
    facts: &'a Facts,
    index: u32,
    plan: &'a SwitchPlan,
    numbers: &'a SwitchNumbers,
    shot: &'a Snapshot,
    /// By tenant.
    endpoints: BTreeMap<u32, Vec<(u32, &'a Endpoint)>>,
    inside: &'a Inside,
    shortcuts: BTreeMap<u32, Shortcut>,
}

/// What is behind a port: its state, its device, how often that was lost, and the worker's time for
/// it.
struct PortState {
    state: String,
    device: Option<DeviceReport>,
    lost: Option<String>,
    losses: u64,
    worker_ns: u64,
}

impl Part<'_> {
    fn uplink(&self) -> Option<UplinkReport> {
        let uplink = self.plan.program.uplink.as_ref()?;
        let (rate, promise) = self.facts.uplinks.get(&self.index)?;
        let one = |d: Direction| {
            // A bond carries less while a member is lost, or slower than it is said to be.
            let (whole, promise) = (*rate.get(d), promise.get(d));
            let now = self.numbers.uplink_rate.map_or(whole, |now| whole.min(*now.get(d)));
            let capacity = u128::from(promise.capacity.0) * u128::from(now.0) / u128::from(whole.0.max(1));
            UplinkDirection {
                rate_bps: now.0,
                promised_bps: promise.promised.0,
                capacity_bps: capacity as u64,
                met: promise.fits() && u128::from(promise.promised.0) <= capacity,
                traffic: lane(self.numbers.uplink.get(d)),
            }
        };
        let bond = bond::report(
            self.plan,
            self.numbers,
            self.shot.now,
            |port| self.port(port),
            |port| self.facts.sights.address(*self.facts.devices.get(&(self.index as usize, port))?),
        );
        let first = self.lone_port(uplink.port());
        let PortState { state, device, lost, losses, worker_ns } = match &bond {
            Some(bond) if !bond.members.is_empty() => of_members(first, &bond.members),
            _ => first,
        };
        Some(UplinkReport {
            bond,
            lost,
            losses,
            worker_ns,
            port: self.plan.ports[uplink.port().0 as usize].locator.to_string(),
            state,
            device,
            sharing: sharing(&self.plan.ports[uplink.port().0 as usize].kind),
            egress: one(Direction::Egress),
            ingress: one(Direction::Ingress),
            drops: drops(&self.numbers.uplink_drops),
            processor: processor(self.numbers.uplink_time),
        })
    }

    fn tenant(&self, id: TenantId, name: &str) -> TenantReport {
        let program = &self.plan.program;
        let share = &program.tenants[id.0 as usize].share;
        let stats = of(&self.numbers.tenants, id.0);
        let memory = of(&self.numbers.memory, id.0);
        let endpoints = self.endpoints.get(&id.0).into_iter().flatten();
        TenantReport {
            name: name.to_owned(),
            egress: shared(&share.egress, &stats.egress),
            ingress: shared(&share.ingress, &stats.ingress),
            memory: TenantMemoryReport { held_bytes: memory.held, share_bytes: memory.share },
            endpoints: endpoints.map(|&(id, endpoint)| self.endpoint(id, endpoint)).collect(),
            processor: processor(of(&self.numbers.time, id.0)),
        }
    }

    fn endpoint(&self, id: u32, endpoint: &Endpoint) -> EndpointReport {
        let stats: EndpointStats = of(&self.numbers.endpoints, id);
        let PortState { state, device, lost, losses, worker_ns } = self.lone_port(endpoint.port);
        let queues = self.numbers.queues.iter().find(|(of, _)| *of == id).map(|(_, queues)| queues);
        let one = |d| queues.and_then(|queues| queues.get(d).as_ref()).map(queue);
        let queues = Both { egress: one(Direction::Egress), ingress: one(Direction::Ingress) };
        let mut both = stats.local_egress;
        both.sum(&stats.local_ingress);
        EndpointReport {
            name: self.plan.endpoints[id as usize].clone(),
            port: self.plan.ports[endpoint.port.0 as usize].locator.to_string(),
            state,
            device,
            lost,
            sharing: sharing(&self.plan.ports[endpoint.port.0 as usize].kind),
            losses,
            worker_ns,
            egress: SharedReport { queue: queues.egress, ..shared(&endpoint.share.egress, &stats.egress) },
            ingress: SharedReport { queue: queues.ingress, ..shared(&endpoint.share.ingress, &stats.ingress) },
            local: lane(&both),
            local_egress: lane(&stats.local_egress),
            local_ingress: lane(&stats.local_ingress),
            sojourn: BothSojourns {
                egress: sojourn(&stats.sojourn.egress, &stats.egress, &stats.local_egress),
                ingress: sojourn(&stats.sojourn.ingress, &stats.ingress, &stats.local_ingress),
            },
            shortcut: self.shortcut(id, endpoint),
            drops: drops(&stats.drops),
        }
    }

    fn shortcut(&self, id: u32, endpoint: &Endpoint) -> Option<ShortcutReport> {
        let may = self.shortcuts.get(&id)?;
        let device = self.facts.devices.get(&(self.index as usize, endpoint.port));
        let is = device.and_then(|device| self.inside.ways.get(device)).copied().unwrap_or_default();
        let one = |may: Result<(), Hindrance>, is: bool| match (may, is, &self.inside.why) {
            (Err(hindrance), ..) => hindrance.to_string(),
            (Ok(()), true, _) => ON.to_owned(),
            (Ok(()), false, Some(why)) => why.clone(),
            (Ok(()), false, None) => "not yet, or refused: see the log".to_owned(),
        };
        Some(ShortcutReport { egress: one(may.egress, is.egress), ingress: one(may.ingress, is.ingress) })
    }

    /// What there is behind a port. The ends of links are always up.
    fn port(&self, port: PortId) -> PortState {
        let Some(&number) = self.facts.devices.get(&(self.index as usize, port)) else {
            return PortState { state: "up".to_owned(), device: None, lost: None, losses: 0, worker_ns: 0 };
        };
        let used = of(&self.shot.devices, number as u32);
        let device = self.facts.sights.of(number).filter(|_| used.is_up);
        let is_up = used.is_up && device.as_ref().is_none_or(|device| device.carrier);
        let state = if is_up { "up" } else { "down" }.to_owned();
        let lost = self.facts.sights.lost(number).filter(|_| !used.is_up);
        PortState { state, device, lost, losses: used.losses, worker_ns: used.read_ns + used.write_ns }
    }

    /// The same of one that is no bond's: it is down, too, while its interface has no carrier.
    /// Whether a member's device is there, and whether its link is up, are told apart.
    fn lone_port(&self, port: PortId) -> PortState {
        let mut is = self.port(port);
        let device = self.facts.devices.get(&(self.index as usize, port));
        // Where it is known where the device is, it is known whether that is up.
        if is.device.is_none() && device.is_some_and(|&device| self.facts.sights.carrier(device) == Some(false)) {
            is.state = "down".to_owned();
        }
        is
    }
}

/// What there is behind the ports of a bond, taken together.
fn of_members(first: PortState, members: &[MemberReport]) -> PortState {
    let may_send = members.iter().any(|member| member.state == MemberState::Distributing.name());
    let are_lost = members.iter().all(|member| member.lost.is_some());
    PortState {
        state: if may_send { "up" } else { "down" }.to_owned(),
        lost: first.lost.filter(|_| are_lost),
        losses: members.iter().map(|member| member.losses).sum(),
        worker_ns: members.iter().map(|member| member.worker_ns).sum(),
        device: first.device,
    }
}

fn processor((spent, short_ns): (Spent, u64)) -> ProcessorReport {
    ProcessorReport { used_ns: spent.used_ns, waited_ns: spent.waited_ns, short_ns }
}

fn sharing(kind: &PortKind) -> Option<String> {
    let word = match kind {
        PortKind::Packet(packet) if packet.is_exclusive => "exclusive",
        PortKind::Packet(_) => "shared",
        PortKind::Host(host) if host.is_absent => "absent",
        _ => return None,
    };
    Some(word.to_owned())
}

fn percentiles(histogram: &Histogram) -> Percentiles {
    Percentiles { p50: histogram.permille(500), p99: histogram.permille(990), max: histogram.max() }
}

fn link(name: &str, [a, b]: [LinkStats; 2]) -> LinkReport {
    let end = |s: &LinkStats| LinkEndReport {
        frames: s.frames,
        bytes: s.bytes,
        drops: s.drops,
        losses: s.losses,
        marks: s.queue.stats.marks,
        queue: queue(&s.queue),
        backlog_bytes: s.backlog_bytes,
        backlog_max_bytes: s.backlog_max_bytes,
    };
    LinkReport { name: name.to_owned(), a: end(&a), b: end(&b) }
}

fn shared(share: &Share, stats: &LaneStats) -> SharedReport {
    SharedReport {
        guarantee_bps: share.guarantee.0,
        limit_bps: share.limit.is_limited().then_some(share.limit.0),
        weight: share.weight,
        unmet_ns: stats.unmet_ns,
        queue: None,
        traffic: lane(stats),
    }
}

fn sojourn(sojourn: &Sojourn, wire: &LaneStats, local: &LaneStats) -> SojournReport {
    SojournReport::new(sojourn, wire.sojourn_max_ns.max(local.sojourn_max_ns))
}

fn lane(stats: &LaneStats) -> LaneReport {
    LaneReport {
        frames: stats.traffic.frames,
        segments: stats.traffic.segments,
        bytes: stats.traffic.bytes,
        wire_bytes: stats.traffic.wire_bytes,
        guaranteed_bytes: stats.guaranteed_bytes,
        backlog_bytes: stats.backlog_bytes,
        backlog_frames: u64::from(stats.backlog_frames),
        marks: stats.marks,
        trims: stats.trims,
        sojourn_max_ns: stats.sojourn_max_ns,
    }
}

fn queue(queue: &QueueState) -> QueueReport {
    let lost = |lost: &Lost| LostReport { syn: lost.syn, ect: lost.ect, ack: lost.ack, other: lost.other };
    QueueReport {
        kind: queue.discipline.name().to_owned(),
        target_ns: queue.target_ns,
        average_bytes: queue.average_bytes,
        marks: queue.stats.marks,
        dropped: lost(&queue.stats.dropped),
        overflowed: lost(&queue.stats.overflowed),
    }
}

fn drops(counters: &DropCounters) -> BTreeMap<String, u64> {
    counters.nonzero().map(|(reason, n)| (reason.name().to_owned(), n)).collect()
}
