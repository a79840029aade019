//! The scheduler: who may send, in what order, and when.
//!
//! For each direction there are two trees over the same tenants and endpoints: one for the uplink, paced at its rate, and one for frames
//! between endpoints of this switch, which only limits hold back. Both charge the same limits, so no path goes round one.
//! The promise is the fluid model of guarantee, limit and weight at two levels; `SPECIFICATION.md` states how near to it each order is.

pub mod lane;
pub mod level;
pub mod limits;
pub mod order;
pub mod tag;
pub mod tree;
pub mod wheel;

#[cfg(test)]
mod tests;

use crate::frame::{Frame, Pool};
use crate::program::{EndpointId, Program, Share, TenantId};
use crate::units::{Direction, Instant, Rate};
use crate::verdict::Reason;
use limits::{Limit, Limits, Plane};
use tag::Pace;
use tree::{Capacity, Leaf, Tree};

/// Both trees of one direction.
#[derive(Debug)]
pub struct Scheduler {
    wire: Tree,
    local: Tree,
    limits: Limits,
    /// By endpoint: it or its tenant has a limit, so frames between neighbours queue too.
    limited: Vec<bool>,
    headroom_ppm: u32,
}

impl Scheduler {
    /// The scheduler of one direction of `program`.
    #[must_use]
    pub fn new(program: &Program, direction: Direction) -> Self {
        let headroom_ppm = match (&program.uplink, direction) {
            (Some(uplink), Direction::Ingress) => uplink.headroom_ppm,
            _ => 0,
        };
        let capacity =
            program.uplink.as_ref().map(|uplink| Capacity { rate: *uplink.rate.get(direction), headroom_ppm });
        let tenants: Vec<Share> = program.tenants.iter().map(|t| *t.share.get(direction)).collect();
        let leaves: Vec<Leaf> = program
            .endpoints
            .iter()
            .map(|e| Leaf { tenant: e.tenant.0, share: *e.share.get(direction), queue_bytes: e.queue_bytes })
            .collect();
        let local_tenants: Vec<Share> = tenants.iter().map(between_neighbours).collect();
        let local_leaves: Vec<Leaf> =
            leaves.iter().map(|l| Leaf { share: between_neighbours(&l.share), ..*l }).collect();
        let limit = |share: &Share| Limit::new(Pace::of(share.limit));
        let mut scheduler = Scheduler {
            wire: Tree::new(Plane::Wire, program.order, capacity, &tenants, &leaves),
            local: Tree::new(Plane::Local, program.order, None, &local_tenants, &local_leaves),
            limits: Limits {
                endpoints: leaves.iter().map(|l| limit(&l.share)).collect(),
                tenants: tenants.iter().map(limit).collect(),
            },
            limited: vec![false; leaves.len()],
            headroom_ppm,
        };
        for (index, endpoint) in program.endpoints.iter().enumerate() {
            scheduler.limited[index] = scheduler.limits.endpoints[index].is_limited()
                || scheduler.limits.tenants[endpoint.tenant.0 as usize].is_limited();
        }
        scheduler
    }

    /// Whether frames between this endpoint and its neighbours must queue. Where nothing limits them they need not.
    #[must_use]
    pub fn is_limited(&self, endpoint: EndpointId) -> bool {
        self.limited[endpoint.0 as usize]
    }

    /// Queues a frame; its metadata must hold its layout and wire bytes.
    ///
    /// # Errors
    /// The frame is freed and the reason given where its lane cannot take it.
    pub fn enqueue(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        plane: Plane,
        endpoint: EndpointId,
        frame: Frame,
    ) -> Result<(), Reason> {
        let tree = match plane {
            Plane::Wire => &mut self.wire,
            Plane::Local => &mut self.local,
        };
        tree.enqueue(pool, now, &mut self.limits, endpoint, frame)
    }

    /// The next frame of one plane that may go at `now`, and whose lane it was in.
    pub fn dequeue(&mut self, pool: &mut Pool, now: Instant, plane: Plane) -> Option<(EndpointId, Frame)> {
        let tree = match plane {
            Plane::Wire => &mut self.wire,
            Plane::Local => &mut self.local,
        };
        tree.dequeue(pool, now, &mut self.limits)
    }

    /// When `dequeue` may have something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        earlier(self.wire.poll_timeout(), self.local.poll_timeout())
    }

    /// One plane's tree, to read its counters.
    #[must_use]
    pub fn tree(&self, plane: Plane) -> &Tree {
        match plane {
            Plane::Wire => &self.wire,
            Plane::Local => &self.local,
        }
    }

    /// Frames that wait, in both trees.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.wire.frames() + self.local.frames()
    }

    /// Its lane has been full for so long that reading on would only move the drop from the port's ring to here.
    #[must_use]
    pub fn is_stuck(&self, endpoint: EndpointId, now: Instant) -> bool {
        self.wire.lane(endpoint).is_stuck(now) || self.local.lane(endpoint).is_stuck(now)
    }

    /// Changes the uplink's rate in this direction.
    pub fn set_rate(&mut self, rate: Rate) {
        self.wire.set_capacity(Some(Capacity { rate, headroom_ppm: self.headroom_ppm }));
    }

    /// Changes an endpoint's share; `tenant` is its owner.
    pub fn set_endpoint_share(&mut self, pool: &Pool, endpoint: EndpointId, tenant: TenantId, share: Share) {
        let limit = &mut self.limits.endpoints[endpoint.0 as usize];
        limit.set_pace(Pace::of(share.limit));
        self.limited[endpoint.0 as usize] = limit.is_limited() || self.limits.tenants[tenant.0 as usize].is_limited();
        self.wire.set_endpoint_share(pool, endpoint, share);
        self.local.set_endpoint_share(pool, endpoint, between_neighbours(&share));
    }

    /// Changes a tenant's share.
    pub fn set_tenant_share(&mut self, tenant: TenantId, share: Share) {
        let limit = &mut self.limits.tenants[tenant.0 as usize];
        limit.set_pace(Pace::of(share.limit));
        let limited = limit.is_limited();
        self.wire.set_tenant_share(tenant, share);
        self.local.set_tenant_share(tenant, between_neighbours(&share));
        for &endpoint in self.wire.endpoints_of(tenant) {
            self.limited[endpoint as usize] = limited || self.limits.endpoints[endpoint as usize].is_limited();
        }
    }

    /// Frees everything that waits.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.wire.clear(pool);
        self.local.clear(pool);
    }
}

/// The share that counts between endpoints of one switch: a guarantee concerns the uplink only.
fn between_neighbours(share: &Share) -> Share {
    Share { guarantee: Rate(0), ..*share }
}

/// The earlier of two deadlines, where there are any.
#[must_use]
pub fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
