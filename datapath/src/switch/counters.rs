//! What the switch has counted, to be read at any time.

use super::{Learned, Switch};
use crate::aqm::{Aqm, QueueState};
use crate::program::{EndpointId, TenantId};
use crate::sched::Scheduler;
use crate::sched::limits::Plane;
use crate::stats::{EndpointStats, LaneStats};
use crate::units::{Both, Direction, Instant};
use crate::vcc::Vcc;
use crate::verdict::{DropCounters, Reason};

impl Switch {
    /// Counters of one endpoint; zero where the slot is vacant.
    #[must_use]
    pub fn endpoint_stats(&self, endpoint: EndpointId) -> EndpointStats {
        if self.program.endpoints.get(endpoint.0).is_none() {
            return EndpointStats::default();
        }
        let tally = &self.tallies[endpoint.0 as usize];
        let mut drops = tally.drops.clone();
        let mut lane = |scheduler: &Scheduler, plane| {
            let tree = scheduler.tree(plane);
            drops.add(Reason::Aqm, tree.lane(endpoint).aqm_drops());
            tree.endpoint_stats(endpoint)
        };
        let mut stats = EndpointStats {
            egress: lane(&self.egress, Plane::Wire),
            ingress: lane(&self.ingress, Plane::Wire),
            local_egress: lane(&self.egress, Plane::Local),
            local_ingress: lane(&self.ingress, Plane::Local),
            sojourn: Both { egress: self.egress.sojourn(endpoint), ingress: self.ingress.sojourn(endpoint) },
            drops: DropCounters::default(),
        };
        let (signals, dropped) = self.pairs.signals(endpoint);
        stats.egress.sum(&signals);
        drops.add(Reason::Aqm, dropped);
        stats.drops = drops;
        stats.local_egress.traffic = tally.local.egress;
        stats.local_ingress.traffic = tally.local.ingress;
        if let Some(policer) = &self.policer {
            stats.ingress.traffic = policer.endpoint_passed(endpoint);
        }
        stats
    }

    /// Bytes on the wire that wait in each of an endpoint's queues: over the uplink, out and in,
    /// and among neighbours.
    ///
    /// # Panics
    /// Where there never was such an endpoint.
    #[must_use]
    pub fn backlogs_bytes(&self, endpoint: EndpointId) -> [u64; 4] {
        let bytes = |scheduler: &Scheduler, plane| scheduler.tree(plane).lane(endpoint).stats().backlog_bytes;
        let [wire, local] = [Plane::Wire, Plane::Local];
        [(&self.egress, wire), (&self.ingress, wire), (&self.egress, local), (&self.ingress, local)]
            .map(|(scheduler, plane)| bytes(scheduler, plane))
    }

    /// Virtual congestion control: its counters and connections.
    #[must_use]
    pub fn vcc(&self) -> &Vcc {
        &self.vcc
    }

    /// The disciplines of an endpoint's queues over the uplink, where they are others than the
    /// lanes' own.
    #[must_use]
    pub fn endpoint_queues(&self, endpoint: EndpointId) -> Both<Option<QueueState>> {
        Both {
            egress: self.egress.tree(Plane::Wire).aqm(endpoint).map(Aqm::queue_state),
            ingress: self.ingress.tree(Plane::Wire).aqm(endpoint).map(Aqm::queue_state),
        }
    }

    /// Counters of one tenant's traffic over the uplink, endpoints that are gone included.
    #[must_use]
    pub fn tenant_stats(&self, tenant: TenantId) -> Both<LaneStats> {
        let mut stats = self.tenant_stats_by(tenant, |scheduler| scheduler.tree(Plane::Wire).tenant_stats(tenant));
        for endpoint in self.egress.tree(Plane::Wire).endpoints_of(tenant) {
            stats.egress.sum(&self.pairs.signals(EndpointId(endpoint)).0);
        }
        stats
    }

    /// As [`Switch::tenant_stats`], without what the queues of its endpoints have counted: with
    /// [`LaneStats::add_queue`] of each of them it is the same. So who reads all endpoints need not
    /// have their queues read twice, and can do it a part at a time.
    #[must_use]
    pub fn tenant_own_stats(&self, tenant: TenantId) -> Both<LaneStats> {
        self.tenant_stats_by(tenant, |scheduler| scheduler.tree(Plane::Wire).tenant_own_stats(tenant))
    }

    fn tenant_stats_by(&self, tenant: TenantId, read: impl Fn(&Scheduler) -> LaneStats) -> Both<LaneStats> {
        let mut stats = Both { egress: read(&self.egress), ingress: read(&self.ingress) };
        if let Some(policer) = &self.policer {
            stats.ingress.traffic = policer.tenant_passed(tenant);
        }
        stats
    }

    /// Counters of the uplink: the sum of all tenants, those that are gone included.
    #[must_use]
    pub fn uplink_stats(&self) -> Both<LaneStats> {
        let mut sum = self.former;
        for (tenant, _) in self.program.tenants.iter() {
            let stats = self.tenant_stats(TenantId(tenant));
            sum.egress.sum(&stats.egress);
            sum.ingress.sum(&stats.ingress);
        }
        sum
    }

    /// What tenants that are gone had counted, and what of the uplink's counters is no tenant's.
    #[must_use]
    pub fn former_stats(&self) -> &Both<LaneStats> {
        &self.former
    }

    /// A tenant that has counted this is gone. Nothing of it waits.
    pub(super) fn count_former(&mut self, stats: &Both<LaneStats>) {
        for direction in Direction::ALL {
            self.former.get_mut(direction).count_on(stats.get(direction));
        }
    }

    /// Drops of frames that belong to no endpoint: from the uplink, for nobody.
    #[must_use]
    pub fn uplink_drops(&self) -> &DropCounters {
        &self.uplink_drops
    }

    /// Addresses learned and not yet forgotten.
    #[must_use]
    pub fn learned(&self) -> usize {
        self.fdb.learned()
    }

    /// Addresses learned behind an endpoint: how many, and those not forgotten among the `most`
    /// that were learned last.
    pub fn learned_by(
        &self,
        now: Instant,
        endpoint: EndpointId,
        most: usize,
    ) -> (u32, impl Iterator<Item = Learned> + '_) {
        let newest = self.fdb.newest_by(now, endpoint, most);
        (self.fdb.count_by(endpoint), newest.map(|(vlan, mac, left_ns)| Learned { mac, vlan, left_ns }))
    }

    /// Frames that the switch holds: it looks at every queue, so this is for tests and the
    /// simulator.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.pairs.frames()
            + self.egress.frames()
            + self.ingress.frames()
            + self.backlogs.frames()
            + self.vcc.frames()
            + self.out.len()
            + self.control.frames()
            + self.bond.as_ref().map_or(0, |bond| bond.frames())
    }
}
