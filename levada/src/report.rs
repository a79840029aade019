//! The report: what `levada show --json` prints, and what `GET /v1/report` answers. Version 1: keys
//! may be added, none changes its meaning.
//!
//! Bytes called `wire` count preamble, FCS, gap and padding (`payload + segments x (headers + 24)`,
//! short frames as 84). Counters run from the daemon's start; times are in nanoseconds.

pub mod bond;
pub mod tables;
#[cfg(test)]
mod tests;
pub mod vcc;
pub mod whereabouts;

use crate::api::bonds::MemberReport;
use crate::api::device::DeviceReport;
use crate::api::report::{
    BothSojourns, EndpointReport, LaneReport, LinkEndReport, LinkReport, LostReport, MemoryReport, Percentiles,
    ProcessorReport, QueueReport, Report, SharedReport, ShortcutReport, SojournReport, SwitchReport,
    TenantMemoryReport, TenantReport, UplinkDirection, UplinkReport, WorkerReport,
};
use crate::api::tunnels::TunnelsReport;
use crate::report::whereabouts::Sights;
use crate::shortcut::{Inside, Shortcuts};
use crate::worker::{Histogram, Snapshot, SwitchNumbers};
use control::admission::Promise;
use control::names::{self, name_of};
use control::plan::{Plan, PortKind, SwitchPlan};
use control::shortcut::{Hindrance, Shortcut, shortcuts};
use datapath::aqm::{Discipline, Lost, QueueState};
use datapath::bond::MemberState;
use datapath::link::LinkStats;
use datapath::program::{Endpoint, PortId, Share, TenantId};
use datapath::sojourn::Sojourn;
use datapath::stats::{EndpointStats, LaneStats};
use datapath::turns::Spent;
use datapath::units::{Both, Direction, Rate};
use datapath::verdict::DropCounters;
use std::collections::BTreeMap;

/// What [`ShortcutReport`] says where frames take them.
pub const ON: &str = "on";

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
    let (min, max) = match queue.discipline {
        Discipline::Step(step) => (Some(step.mark_bytes), None),
        Discipline::Red(red) => (Some(red.min_bytes), Some(red.max_bytes)),
        _ => (None, None),
    };
    QueueReport {
        kind: queue.discipline.name().to_owned(),
        target_ns: queue.target_ns,
        min_bytes: min.map(u64::from),
        max_bytes: max.map(u64::from),
        average_bytes: queue.average_bytes,
        marks: queue.stats.marks,
        dropped: lost(&queue.stats.dropped),
        overflowed: lost(&queue.stats.overflowed),
    }
}

fn drops(counters: &DropCounters) -> BTreeMap<String, u64> {
    counters.nonzero().map(|(reason, n)| (reason.name().to_owned(), n)).collect()
}
