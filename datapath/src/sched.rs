//! The scheduler: who may send, in what order, and when.
//!
//! For each direction there are two trees over the same tenants and endpoints: one for the uplink,
//! paced at its rate, and one for frames between endpoints of this switch, which only limits hold
//! back. Both charge the same limits, so no path goes round one. The promise is the fluid model of
//! guarantee, limit and weight at two levels; `SPECIFICATION.md` states how near to it each order
//! is.

pub(crate) mod flows;
pub mod lane;
pub mod level;
pub mod limits;
pub mod losses;
pub mod order;
pub mod priority;
pub mod run;
pub mod tag;
pub mod tree;
mod unmet;

#[cfg(test)]
mod tests;

use crate::frame::{Frame, Owner, Pool};
use crate::program::{Endpoint, EndpointId, Program, Share, Tenant, TenantId, Uplink};
use crate::sojourn::Sojourn;
use crate::units::{Direction, Instant, Rate, earlier};
use crate::verdict::Reason;
use limits::{Limit, Limits, Plane};
use run::Run;
use tree::{Capacity, Leaf, Tree};

/// Both trees of one direction.
#[derive(Debug)]
pub struct Scheduler {
    wire: Tree,
    local: Tree,
    limits: Limits,
    /// By endpoint: it or its tenant has a limit, so frames between neighbours queue too.
    limited: Vec<bool>,
    /// By endpoint: how long its frames waited in either tree, but for what the lanes keep.
    sojourns: Vec<Sojourn>,
    direction: Direction,
}

impl Scheduler {
    /// The scheduler of one direction of `program`. `seed` is of disciplines' dice.
    #[must_use]
    pub fn new(program: &Program, direction: Direction, seed: u64) -> Self {
        let seed = seed ^ (direction as u64) << 32;
        let mut scheduler = Scheduler {
            wire: Tree::new(Plane::Wire, program.order, capacity(program.uplink.as_ref(), direction), seed),
            local: Tree::new(Plane::Local, program.order, None, seed),
            limits: Limits::default(),
            limited: Vec::new(),
            sojourns: Vec::new(),
            direction,
        };
        for (id, tenant) in program.tenants.iter() {
            scheduler.set_tenant(Instant::ZERO, TenantId(id), tenant);
        }
        for (id, endpoint) in program.endpoints.iter() {
            scheduler.add_endpoint(EndpointId(id), endpoint);
        }
        scheduler
    }

    /// Makes room for endpoints 0..`endpoints`.
    pub fn reserve(&mut self, endpoints: usize) {
        self.wire.reserve(endpoints);
        self.local.reserve(endpoints);
        self.limits.endpoints.reserve(endpoints.saturating_sub(self.limits.endpoints.len()));
        self.limited.reserve(endpoints.saturating_sub(self.limited.len()));
        self.sojourns.reserve(endpoints.saturating_sub(self.sojourns.len()));
    }

    /// Changes the uplink, or takes it away. Takes time in proportion to the endpoints.
    pub fn set_uplink(&mut self, now: Instant, uplink: Option<&Uplink>) {
        self.wire.set_capacity(now, capacity(uplink, self.direction));
    }

    /// So many wire bytes leave by the uplink that waited in no lane.
    pub fn occupy(&mut self, now: Instant, wire_bytes: u32) {
        self.wire.occupy(now, wire_bytes);
    }

    /// Adds a tenant, or changes its share.
    pub fn set_tenant(&mut self, now: Instant, id: TenantId, tenant: &Tenant) {
        let share = *tenant.share.get(self.direction);
        let at = id.0 as usize;
        if self.limits.tenants.len() <= at {
            self.limits.tenants.resize(at + 1, Limit::default());
        }
        self.limits.tenants[at].set_share(now, &share);
        self.wire.set_tenant(id, share);
        self.local.set_tenant(id, between_neighbours(&share));
        for endpoint in self.wire.endpoints_of(id) {
            self.limited[endpoint as usize] = self.must_queue(EndpointId(endpoint), id);
        }
    }

    /// Makes a tenant's slot vacant; it must have no endpoints.
    pub fn remove_tenant(&mut self, id: TenantId) {
        self.limits.tenants[id.0 as usize] = Limit::default();
        self.wire.remove_tenant(id);
        self.local.remove_tenant(id);
    }

    /// Adds an endpoint; its slot must be vacant and its tenant there.
    pub fn add_endpoint(&mut self, id: EndpointId, endpoint: &Endpoint) {
        let at = id.0 as usize;
        if self.limited.len() <= at {
            self.limits.endpoints.resize(at + 1, Limit::default());
            self.limited.resize(at + 1, false);
            self.sojourns.resize(at + 1, Sojourn::default());
        }
        self.sojourns[at] = Sojourn::default();
        let leaf = self.leaf(endpoint);
        self.limits.endpoints[at] = Limit::new(&leaf.share);
        self.wire.add_endpoint(id, &leaf);
        self.local.add_endpoint(id, &leaf.between_neighbours());
        self.wire.set_ahead(id, endpoint.agent_traffic, self.direction);
        self.limited[at] = self.must_queue(id, endpoint.tenant);
    }

    /// Changes an endpoint's share and the bound of its queues.
    pub fn set_endpoint(&mut self, pool: &Pool, now: Instant, id: EndpointId, endpoint: &Endpoint) {
        let leaf = self.leaf(endpoint);
        self.limits.endpoints[id.0 as usize].set_share(now, &leaf.share);
        self.wire.set_endpoint(pool, id, &leaf);
        self.local.set_endpoint(pool, id, &leaf.between_neighbours());
        self.wire.set_ahead(id, endpoint.agent_traffic, self.direction);
        self.limited[id.0 as usize] = self.must_queue(id, endpoint.tenant);
    }

    /// Makes an endpoint's slot vacant; returns how many of its frames were freed.
    pub fn remove_endpoint(&mut self, pool: &mut Pool, id: EndpointId) -> u32 {
        let freed = self.wire.remove_endpoint(pool, &mut self.limits, id)
            + self.local.remove_endpoint(pool, &mut self.limits, id);
        self.limits.endpoints[id.0 as usize] = Limit::default();
        self.limited[id.0 as usize] = false;
        freed
    }

    /// Charges what waits for an endpoint, and what will, to another account.
    pub fn set_owner(&mut self, pool: &mut Pool, id: EndpointId, owner: Owner) {
        self.wire.set_owner(pool, id, owner);
        self.local.set_owner(pool, id, owner);
    }

    /// The limits of both planes.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The limits, to continue where others were.
    pub fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }

    /// One plane's tree, to count on from another's counters.
    pub fn tree_mut(&mut self, plane: Plane) -> &mut Tree {
        match plane {
            Plane::Wire => &mut self.wire,
            Plane::Local => &mut self.local,
        }
    }

    /// Frees what waits for an endpoint in the uplink's tree; returns how many frames.
    pub fn clear_wire(&mut self, pool: &mut Pool, id: EndpointId) -> u32 {
        self.wire.clear_endpoint(pool, &mut self.limits, id)
    }

    /// Whether frames between this endpoint and its neighbours must queue. Where nothing limits
    /// them they need not.
    #[must_use]
    #[inline]
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

    /// Whether a frame may go at once, since nothing else waits and nothing holds it back: then all
    /// is counted and charged as if it had been queued and had come out, and its caller keeps it.
    /// If not, it is to be queued.
    #[inline(always)]
    pub fn pass(&mut self, pool: &mut Pool, now: Instant, plane: Plane, endpoint: EndpointId, frame: &Frame) -> bool {
        let tree = match plane {
            Plane::Wire => &mut self.wire,
            Plane::Local => &mut self.local,
        };
        tree.pass(pool, now, plane, (&mut self.limits, &mut self.sojourns), endpoint, frame)
    }

    /// The same of a frame of several segments.
    pub fn pass_segments(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        plane: Plane,
        endpoint: EndpointId,
        frame: &Frame,
    ) -> bool {
        let tree = match plane {
            Plane::Wire => &mut self.wire,
            Plane::Local => &mut self.local,
        };
        tree.pass_special(pool, now, plane, (&mut self.limits, &mut self.sojourns), endpoint, frame)
    }

    /// The same of a run between neighbours: of all its frames, or of none.
    pub fn pass_run(&mut self, pool: &Pool, now: Instant, endpoint: EndpointId, run: &Run) -> bool {
        self.local.pass_run(pool, now, (&mut self.limits, &mut self.sojourns), endpoint, run)
    }

    /// The next frame of one plane that may go at `now`, and whose lane it was in.
    #[inline]
    pub fn dequeue(&mut self, pool: &mut Pool, now: Instant, plane: Plane) -> Option<(EndpointId, Frame)> {
        let tree = match plane {
            Plane::Wire => &mut self.wire,
            Plane::Local => &mut self.local,
        };
        let out = tree.dequeue(pool, now, &mut self.limits, &mut self.sojourns);
        if plane == Plane::Local
            && let Some((endpoint, _)) = &out
        {
            self.note_left(*endpoint);
        }
        out
    }

    /// A frame has left an endpoint's lane between neighbours. Where it was the last one that a
    /// limit had held back which is no more, those that come need not queue.
    fn note_left(&mut self, endpoint: EndpointId) {
        let at = endpoint.0 as usize;
        if self.limited[at]
            && self.local.lane(endpoint).is_empty()
            && let Some(tenant) = self.local.tenant(endpoint)
        {
            self.limited[at] = self.must_queue(endpoint, tenant);
        }
    }

    /// How long frames of an endpoint waited.
    #[must_use]
    pub fn sojourn(&self, endpoint: EndpointId) -> Sojourn {
        let mut sojourn = self.sojourns[endpoint.0 as usize];
        self.wire.lane(endpoint).waits().add_to(&mut sojourn);
        self.local.lane(endpoint).waits().add_to(&mut sojourn);
        sojourn
    }

    /// Counts on from an endpoint's waits in another scheduler.
    pub fn restore_sojourn(&mut self, endpoint: EndpointId, counted: &Sojourn) {
        self.sojourns[endpoint.0 as usize].count_on(counted);
    }

    /// When `dequeue` may have something to do.
    #[must_use]
    #[inline]
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

    /// For how long after `now` the limits of an endpoint and of its tenant let nothing go, in
    /// nanoseconds.
    #[must_use]
    pub fn wait_ns(&self, endpoint: EndpointId, tenant: TenantId, now: Instant) -> u64 {
        let (endpoints, tenants) = (&self.limits.endpoints, &self.limits.tenants);
        endpoints[endpoint.0 as usize].wait_ns(now).max(tenants[tenant.0 as usize].wait_ns(now))
    }

    /// Frames that wait, in both trees.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.wire.frames() + self.local.frames()
    }

    /// Its lane has been full for so long that reading on would only move the drop from the port's
    /// ring to here. Never where something goes before the rest, which would wait in that ring with
    /// it.
    #[must_use]
    pub fn is_stuck(&self, endpoint: EndpointId, now: Instant) -> bool {
        let is_stuck = self.wire.lane(endpoint).is_stuck(now) || self.local.lane(endpoint).is_stuck(now);
        is_stuck && self.wire.ahead(endpoint).is_none()
    }

    /// Frees everything that waits.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.wire.clear(pool, &mut self.limits);
        self.local.clear(pool, &mut self.limits);
    }

    fn leaf(&self, endpoint: &Endpoint) -> Leaf {
        Leaf {
            tenant: endpoint.tenant.0,
            share: *endpoint.share.get(self.direction),
            queue_bytes: endpoint.queue_bytes,
            aqm: endpoint.aqm,
        }
    }

    /// Whether what an endpoint exchanges with neighbours is queued: something limits it, or
    /// something is queued already that it must not overtake.
    fn must_queue(&self, endpoint: EndpointId, tenant: TenantId) -> bool {
        self.limits.endpoints[endpoint.0 as usize].is_limited()
            || self.limits.tenants[tenant.0 as usize].is_limited()
            || !self.local.lane(endpoint).is_empty()
    }
}

/// What ingress may pass on at once, where nothing queues behind the switch: on a busy machine one
/// round of a loop in thirty is later than 100 us, and what that costs comes off guarantees that
/// leave no room (of 735 Mbit/s 3 %).
const INGRESS_BURST_NS: u64 = 1_000_000;

fn capacity(uplink: Option<&Uplink>, direction: Direction) -> Option<Capacity> {
    let uplink = uplink?;
    let (headroom_ppm, burst_ns) = match direction {
        Direction::Egress => (0, uplink.burst_ns),
        Direction::Ingress => (uplink.headroom_ppm, INGRESS_BURST_NS),
    };
    Some(Capacity { rate: *uplink.rate().get(direction), headroom_ppm, burst_ns })
}

impl Leaf {
    fn between_neighbours(self) -> Leaf {
        Leaf { share: between_neighbours(&self.share), ..self }
    }
}

/// The share that counts between endpoints of one switch: a guarantee concerns the uplink only.
fn between_neighbours(share: &Share) -> Share {
    Share { guarantee: Rate(0), ..*share }
}
