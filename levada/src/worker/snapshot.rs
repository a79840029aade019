//! What the worker shows of itself: plain numbers, copied between two rounds.

use super::device::Use;
use super::{Cable, Effort, Worker};
use datapath::frame::PoolLimits;
use datapath::link::{LinkStats, Side};
use datapath::program::{EndpointId, TenantId};
use datapath::stats::{EndpointStats, LaneStats};
use datapath::units::{Both, Instant};
use datapath::verdict::DropCounters;
use rustix::time::{ClockId, clock_gettime};

/// All counters of a daemon at one moment.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// When.
    pub now: Instant,
    /// What the worker has spent its time on.
    pub effort: Effort,
    /// Processor time of the worker's thread.
    pub cpu_ns: u64,
    /// What the worker has measured a frame to cost in nanoseconds, read and written: 64 bytes, and 64 KiB.
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
    /// The uplink.
    pub uplink: Both<LaneStats>,
    /// Drops that belong to no endpoint.
    pub uplink_drops: DropCounters,
    /// Addresses learned.
    pub learned: usize,
}

impl Worker {
    /// Fills in the numbers of this moment. What `into` has room for is not allocated again.
    pub(super) fn fill(&self, into: &mut Snapshot) {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        into.now = self.outside.now;
        into.effort.clone_from(&self.effort);
        into.cpu_ns = cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64;
        let costs = &self.outside.costs;
        into.cost_ns = [60, 65_536].map(|bytes| costs.read.of(1, bytes) + costs.write.of(1, bytes));
        into.frames_in_use = self.pool.in_use();
        into.available = Some(self.pool.available());
        into.switches.resize_with(self.units.len(), SwitchNumbers::default);
        for (numbers, unit) in into.switches.iter_mut().zip(&self.units) {
            let switch = &unit.switch;
            let program = switch.program();
            numbers.endpoints.clear();
            numbers.endpoints.extend((0..program.endpoints.len() as u32).map(|e| switch.endpoint_stats(EndpointId(e))));
            numbers.tenants.clear();
            numbers.tenants.extend((0..program.tenants.len() as u32).map(|t| switch.tenant_stats(TenantId(t))));
            numbers.uplink = switch.uplink_stats();
            numbers.uplink_drops.clone_from(switch.uplink_drops());
            numbers.learned = switch.learned();
        }
        let stats = |cable: &Option<Box<Cable>>| {
            Side::ALL.map(|side| cable.as_ref().map_or_else(LinkStats::default, |cable| cable.link.stats(side)))
        };
        into.links.clear();
        into.links.extend(self.outside.cables.iter().map(stats));
        into.devices.clear();
        into.devices.extend(self.outside.devices.iter().map(|device| device.use_));
    }
}
