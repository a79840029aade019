//! What the worker shows of itself: plain numbers, copied between two rounds. Of many endpoints a
//! part is copied in each round, so that no frame waits for all of them; up to a hundred or so are
//! copied in one round, and so at one moment.
//!
//! A list of changes begins a snapshot anew. So that there is one at all however fast changes come,
//! the next list waits until it is done where some have gone before it.

use super::device::Use;
use super::{Backing, Effort, LinkSlot, Reply, SwitchSlot, Task, Worker};
use control::bond::LinkView;
use control::plan::Plan;
use datapath::aqm::QueueState;
use datapath::bond::PeerView;
use datapath::bond::lacp::LacpView;
use datapath::frame::PoolLimits;
use datapath::link::{LinkStats, Side};
use datapath::program::{EndpointId, TenantId};
use datapath::stats::{EndpointStats, LaneStats};
use datapath::switch::{MemberView, MemoryStats};
use datapath::turns::Spent;
use datapath::units::{Both, Instant, Rate};
use datapath::verdict::DropCounters;
use rustix::time::{ClockId, clock_gettime};
use std::net::IpAddr;
use std::ops::Range;

/// How long copying may take in a round, in nanoseconds: as edits.
const ROUND_NS: u64 = 50_000;
/// How many numbers of a kind are copied between two looks at the clock: of endpoints that nobody
/// has looked at lately, some 10 us.
const STEP: usize = 8;
/// How many lists of changes go before a snapshot at most.
const LISTS: u32 = 2;

/// All counters of a daemon at one moment.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// When.
    pub now: Instant,
    /// How long after that the last number was copied, in nanoseconds.
    pub span_ns: u64,
    /// What the worker has spent its time on.
    pub effort: Effort,
    /// What the worker spent on changes and on numbers.
    pub own: Spent,
    /// Processor time of the worker's thread.
    pub cpu_ns: u64,
    /// What the worker has measured a frame to cost in nanoseconds, read and written: 64 bytes, and
    /// 64 KiB.
    pub cost_ns: [u64; 2],
    /// Frames in memory.
    pub frames_in_use: usize,
    /// Buffers that are free or not yet made.
    pub available: Option<PoolLimits>,
    /// By switch.
    pub switches: Vec<SwitchNumbers>,
    /// By link, what each side sent.
    pub links: Vec<[LinkStats; 2]>,
    /// By device.
    pub devices: Vec<Use>,
}

/// Counters of one switch.
#[derive(Clone, Default)]
pub struct SwitchNumbers {
    /// By endpoint.
    pub endpoints: Vec<EndpointStats>,
    /// By tenant.
    pub tenants: Vec<Both<LaneStats>>,
    /// By tenant, what it had of the worker, and how long it was short of it in nanoseconds.
    pub time: Vec<(Spent, u64)>,
    /// The same of the uplink.
    pub uplink_time: (Spent, u64),
    /// Frame memory, by tenant.
    pub memory: Vec<MemoryStats>,
    /// The uplink.
    pub uplink: Both<LaneStats>,
    /// What the uplink carries now.
    pub uplink_rate: Option<Both<Rate>>,
    /// Its members, where it has several.
    pub members: Vec<MemberView>,
    /// What their links are like.
    pub member_links: Vec<LinkView>,
    /// What is known of the bond at their other ends.
    pub bond_peer: Option<PeerView>,
    /// What LACP knows of each.
    pub lacp: Vec<LacpView>,
    /// Drops that belong to no endpoint.
    pub uplink_drops: DropCounters,
    /// Addresses learned.
    pub learned: usize,
    /// Endpoints whose queues have a discipline of their own.
    pub queues: Vec<(u32, Both<Option<QueueState>>)>,
    /// Hosts to which the way is narrower than the uplink, and the longest packets to them in
    /// bytes, as routers have said.
    pub narrow_paths: Vec<(IpAddr, u16)>,
}

/// A snapshot being made.
pub(super) struct Count {
    into: Box<Snapshot>,
    reply: Reply<Box<Snapshot>>,
    stage: Stage,
    /// What of the stage comes next.
    next: usize,
    /// Lists of changes that went before it, since it was asked for or another was made.
    lists: u32,
}

/// What is read, in this order.
#[derive(Clone, Copy)]
enum Stage {
    /// All that is few.
    Begin,
    /// The tenants of a switch.
    Tenants(usize),
    /// Its endpoints, whose queues are added to their tenants'.
    Endpoints(usize),
    /// The links.
    Links,
    /// The devices.
    Devices,
    /// Nothing is left.
    End,
}

impl Snapshot {
    /// Empties it, and makes room for the numbers of what `plan` has.
    pub fn make_room(&mut self, plan: &Plan) {
        let numbers = plan.switches.iter().map(|(id, _)| id as usize + 1).max().unwrap_or(0);
        self.switches.resize_with(numbers, SwitchNumbers::default);
        for (id, switch) in plan.switches.iter() {
            let numbers = &mut self.switches[id as usize];
            numbers.clear();
            numbers.tenants.reserve(switch.program.tenants.len());
            numbers.time.reserve(switch.program.tenants.len());
            numbers.memory.reserve(switch.program.tenants.len());
            numbers.endpoints.reserve(switch.program.endpoints.len());
            let members = switch.program.uplink.as_ref().map_or(0, |uplink| uplink.members.len());
            numbers.members.reserve(members);
            numbers.member_links.reserve(members);
            numbers.lacp.reserve(members);
            numbers.queues.reserve(switch.program.endpoints.values().filter(|e| e.aqm.is_some()).count());
        }
        self.devices.clear();
        self.devices.reserve(plan.switches.values().map(|switch| switch.ports.len()).sum());
        self.links.clear();
        self.links.reserve(plan.links.len());
    }
}

impl SwitchNumbers {
    /// Forgets all numbers and keeps their memory.
    fn clear(&mut self) {
        self.endpoints.clear();
        self.tenants.clear();
        self.time.clear();
        self.memory.clear();
        self.narrow_paths.clear();
        self.members.clear();
        self.member_links.clear();
        self.bond_peer = None;
        self.lacp.clear();
        self.queues.clear();
        self.uplink = Both::default();
    }

    /// Adds what the queues of an endpoint have counted to its tenant's numbers and the uplink's.
    fn add_queues(&mut self, tenant: TenantId, stats: &EndpointStats) {
        let sums = [self.tenants.get_mut(tenant.0 as usize), Some(&mut self.uplink)];
        for sum in sums.into_iter().flatten() {
            sum.egress.add_queue(&stats.egress);
            sum.ingress.add_queue(&stats.ingress);
        }
    }
}

impl Count {
    /// Nothing has been read yet.
    pub(super) fn new(into: Box<Snapshot>, reply: Reply<Box<Snapshot>>) -> Count {
        Count { into, reply, stage: Stage::Begin, next: 0, lists: 0 }
    }

    /// A list of changes begins: what was read is not so any more, a slot may be another's.
    pub(super) fn begin_again(&mut self) {
        (self.stage, self.next) = (Stage::Begin, 0);
        self.lists += 1;
    }

    /// The next [`STEP`] of `all`, or the `then` stage after them.
    fn step(&mut self, all: usize, then: Stage) -> Range<usize> {
        let step = self.next..all.min(self.next + STEP);
        self.next = step.end;
        if step.end == all {
            (self.stage, self.next) = (then, 0);
        }
        step
    }
}

impl Worker {
    /// Whether a snapshot is to be made.
    pub(super) fn has_counts(&self) -> bool {
        !self.counts.is_empty()
    }

    /// Whether the next list of changes waits for a snapshot. One that has begun does not: between
    /// two of its changes nothing is as it will be.
    pub(super) fn must_count(&self) -> bool {
        let is_between = self.edits.front().is_none_or(|edits| !edits.is_begun);
        is_between && self.counts.front().is_some_and(|count| count.lists >= LISTS)
    }

    /// A snapshot is to be made. Those that nobody waits for any more are not.
    pub(super) fn ask_for_count(&mut self, count: Count) {
        for _ in 0..self.counts.len() {
            match self.counts.pop_front() {
                Some(count) if count.reply.is_wanted() => self.counts.push_back(count),
                count => count.into_iter().for_each(|count| self.put_away(count)),
            }
        }
        self.counts.push_back(count);
    }

    /// Has somebody else free the memory: it may be much.
    fn put_away(&self, count: Count) {
        let _ = self.tasks.try_send(Task::Unwanted(count.into));
    }

    /// Goes on with a snapshot for a while.
    pub(super) fn count(&mut self) {
        let Some(mut count) = self.counts.pop_front() else { return };
        if !count.reply.is_wanted() {
            return self.put_away(count);
        }
        let start = self.outside.look();
        while !matches!(count.stage, Stage::End) {
            self.count_some(&mut count);
            if self.outside.look().since(start) > ROUND_NS {
                return self.counts.push_front(count);
            }
        }
        count.into.span_ns = self.outside.now.since(count.into.now);
        count.reply.give(count.into);
        // Changes go on before the next.
        self.counts.iter_mut().for_each(|count| count.lists = 0);
    }

    /// Makes all snapshots that were asked for.
    pub(super) fn count_all(&mut self) {
        while self.has_counts() {
            self.count();
        }
    }

    fn count_some(&self, count: &mut Count) {
        match count.stage {
            Stage::Begin => {
                self.count_few(&mut count.into);
                count.stage = Stage::Tenants(0);
            }
            Stage::Tenants(index) => {
                let Some(SwitchSlot { switch, .. }) = self.switch_slots.get(index) else {
                    count.stage = Stage::Links;
                    return;
                };
                let tenants = &switch.program().tenants;
                let step = count.step(tenants.len(), Stage::Endpoints(index));
                let numbers = &mut count.into.switches[index];
                if step.start == 0 {
                    let former = switch.former_stats();
                    numbers.uplink.egress.sum(&former.egress);
                    numbers.uplink.ingress.sum(&former.ingress);
                }
                for id in step.map(|id| id as u32) {
                    let stats = switch.tenant_own_stats(TenantId(id));
                    if tenants.get(id).is_some() {
                        numbers.uplink.egress.sum(&stats.egress);
                        numbers.uplink.ingress.sum(&stats.ingress);
                    }
                    numbers.tenants.push(stats);
                    let short_ns = self.look.short_ns(index, Some(TenantId(id)));
                    numbers.time.push((self.seats.tenant_spent(index, id), short_ns));
                    numbers.memory.push(switch.tenant_own_memory(&self.pool, TenantId(id)));
                }
            }
            Stage::Endpoints(index) => {
                let switch = &self.switch_slots[index].switch;
                let endpoints = &switch.program().endpoints;
                let step = count.step(endpoints.len(), Stage::Tenants(index + 1));
                let numbers = &mut count.into.switches[index];
                for id in step.map(|id| id as u32) {
                    let stats = switch.endpoint_stats(EndpointId(id));
                    if let Some(endpoint) = endpoints.get(id) {
                        numbers.add_queues(endpoint.tenant, &stats);
                        if endpoint.aqm.is_some() {
                            numbers.queues.push((id, switch.endpoint_queues(EndpointId(id))));
                        }
                        if let Some(memory) = numbers.memory.get_mut(endpoint.tenant.0 as usize) {
                            memory.add(switch.endpoint_memory(&self.pool, EndpointId(id)));
                        }
                    }
                    numbers.endpoints.push(stats);
                }
            }
            Stage::Links => {
                let stats = |link_slot: &Option<Box<LinkSlot>>| {
                    Side::ALL.map(|side| {
                        link_slot.as_ref().map_or_else(LinkStats::default, |link_slot| link_slot.link.stats(side))
                    })
                };
                let step = count.step(self.outside.link_slots.len(), Stage::Devices);
                count.into.links.extend(self.outside.link_slots[step].iter().map(stats));
            }
            Stage::Devices => {
                let step = count.step(self.outside.devices.len(), Stage::End);
                let spent = |index| self.seats.spent(Backing::Device(index));
                let uses = step.map(|index| Use { spent: spent(index), ..self.outside.devices[index].use_ });
                count.into.devices.extend(uses);
            }
            Stage::End => {}
        }
    }

    /// What is read at once, and so at one moment.
    fn count_few(&self, into: &mut Snapshot) {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        into.now = self.outside.now;
        into.effort.clone_from(&self.effort);
        into.own = self.seats.own_spent();
        into.cpu_ns = cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64;
        let costs = &self.outside.costs;
        into.cost_ns = [60, 65_536].map(|bytes| costs.read.of(1, bytes) + costs.write.of(1, bytes));
        into.frames_in_use = self.pool.in_use();
        into.available = Some(self.pool.available());
        into.switches.resize_with(self.switch_slots.len(), SwitchNumbers::default);
        for (index, (numbers, SwitchSlot { switch, bond, .. })) in
            into.switches.iter_mut().zip(&self.switch_slots).enumerate()
        {
            numbers.clear();
            numbers.uplink_time = (self.seats.uplink_spent(index), self.look.short_ns(index, None));
            numbers.uplink_drops.clone_from(switch.uplink_drops());
            numbers.uplink_rate = switch.carried_rate();
            numbers.members.extend(switch.members());
            numbers.member_links.extend(bond.iter().flat_map(|bond| bond.links()));
            numbers.bond_peer = switch.bond_peer();
            numbers.lacp.extend(switch.lacp());
            numbers.learned = switch.learned();
            numbers.narrow_paths.extend(switch.narrow_paths(into.now));
        }
        into.links.clear();
        into.devices.clear();
    }
}

#[cfg(test)]
mod tests;
