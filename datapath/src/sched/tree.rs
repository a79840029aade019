//! The scheduler of one direction: tenant, endpoint, lane.
//!
//! Each node with children is a [`Level`], which serves guarantees first and divides the rest by
//! weight. The root is paced at the link's rate. A node over its limit leaves its level for the
//! timing wheel. All tags are in *link time*: the clock of a link that is busy advances with what
//! it sends, not with the wall, so that guarantees shrink in proportion when the link (or the
//! worker's CPU) is slower than configured, and a stall is nobody's credit.
//!
//! Literature: H-FSC (Stoica, Zhang, Ng 1997) for the two criteria, WF2Q+ and QFQ for the orders,
//! hClock (2013) for guarantee, limit and share in a hierarchy.

mod node;

use super::flows::Flows;
use super::lane::{Admission, Among, Lane, Offer, Room, Served};
use super::level::{Level, Pick};
use super::limits::{Limits, Plane};
use super::losses::Losses;
use super::priority::{Priorities, Priority};
use super::run::Run;
use super::tag::{Pace, TAG_BITS, Tag, instant, tag};
use super::unmet::Unmet;
use crate::aqm::{Aqm, Discipline};
use crate::count::count_on;
use crate::frame::{Frame, Owner, Pool};
use crate::offload::Gso;
use crate::program::{AgentTraffic, EndpointId, OrderKind, Share, TenantId};
use crate::segment;
use crate::sojourn::Sojourn;
use crate::stats::{LaneStats, Traffic};
use crate::units::{Direction, Instant, Rate, earlier};
use crate::verdict::Reason;
use crate::wheel::Wheel;
use node::{AHEAD, AQM, LIMITED, NOBODY, Node, Tenant};

/// Wire time that one frame may take before it is split: what a neighbour's frame has to wait at
/// most. With a quarter of it, 1 Gbit/s between two hosts took half a processor more, and a
/// neighbour's ping was little sooner: that is a matter of the orders' slots.
const QUANTUM_NS: u64 = 100_000;
/// The least that is not split: a frame of a 1500-byte MTU with a VLAN tag, preamble, FCS and gap.
pub(crate) const QUANTUM_MIN: u64 = 1542;
/// The most that a frame can take: 64 KiB in segments of the smallest usual size (536 bytes),
/// headers included.
pub(crate) const QUANTUM_MAX: u32 = 80_000;
/// The least burst of a link, in frames of the shortest kind that is not split.
const BURST_FRAMES: u64 = 4;
/// How long headroom is held back after two tenants were served in turn. A tenant within its
/// guarantee never queues here, and is in need of the headroom all the same: what it misses is
/// dropped in the network before.
const CONTENDED_NS: u64 = 100_000_000;
/// How much longer a plane waits to let the other go first: two slots of the wheel.
const TURN: Tag = (2 * 8192) << TAG_BITS;

/// A link's capacity.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Wire bits a second.
    pub rate: Rate,
    /// Millionths held back while more than one tenant sends.
    pub headroom_ppm: u32,
    /// What may be sent at once, and so the lateness that is made good, in nanoseconds.
    pub burst_ns: u64,
}

/// What an endpoint brings to a tree.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// Its tenant's index.
    pub tenant: u32,
    /// Guarantee, limit and weight.
    pub share: Share,
    /// Bound of its lane in bytes.
    pub queue_bytes: u32,
    /// The discipline of its queue, where that is another than the lane's own.
    pub aqm: Option<Discipline>,
}

/// Who waits on the wheel. Endpoints and tenants have every second number each, so that both may
/// become more.
#[derive(Clone, Copy)]
enum WheelNode {
    Endpoint(u32),
    Tenant(u32),
}

impl WheelNode {
    fn number(self) -> u32 {
        match self {
            WheelNode::Endpoint(e) => 2 * e,
            WheelNode::Tenant(t) => 2 * t + 1,
        }
    }

    fn of(number: u32) -> Self {
        if number & 1 == 0 { WheelNode::Endpoint(number / 2) } else { WheelNode::Tenant(number / 2) }
    }
}

/// The scheduler of one direction in one plane.
#[derive(Debug)]
pub struct Tree {
    plane: Plane,
    kind: OrderKind,
    root: Level,
    tenants: Vec<Tenant>,
    nodes: Vec<Node>,
    /// By endpoint, apart from the nodes because it is seldom read.
    shares: Vec<Share>,
    /// By endpoint, likewise.
    unmet: Vec<Unmet>,
    /// By endpoint up to the last that has one, likewise: the discipline of its queue, where
    /// [`Node::has_aqm`].
    aqms: Vec<Option<Box<Aqm>>>,
    /// What disciplines throw their dice with.
    seed: u64,
    /// Queues of flows, where several wait in a lane.
    flows: Flows,
    /// What goes before the rest, where [`Node::has_ahead`].
    aheads: Priorities,
    /// Who waits for its limit, by [`WheelNode`].
    wheel: Wheel,
    capacity: Option<Capacity>,
    pace: Pace,
    pace_contended: Pace,
    max_frame: u32,
    /// What the link may be sent at once: lateness up to that is made good.
    burst: Tag,
    /// The link is paid for up to here.
    busy_until: Tag,
    /// Link time that was lost by being late, and what other rates took of `busy_until`; the clock
    /// of guarantees is `busy_until - lost`. It wraps.
    lost: Tag,
    /// Until when tenants count as contending, and who was served last.
    contended_until: Instant,
    last_tenant: u32,
    /// When `dequeue` was called last.
    seen: Instant,
    losses: Losses,
}

/// A link is paid for what leaves by it now; being late by more than a burst is lost.
#[inline]
fn pay((busy_until, lost): (&mut Tag, &mut Tag), now: Tag, burst: Tag, pace: Pace, bytes: u32) {
    if !pace.is_limited() {
        *busy_until = now;
        return;
    }
    let floor = now.saturating_sub(burst);
    if *busy_until < floor {
        *lost = lost.wrapping_add(floor - *busy_until);
        *busy_until = floor;
    }
    *busy_until += pace.cost(bytes);
}

/// The longest frame that is sent at once at `rate`, in wire bytes.
fn quantum(rate: Rate) -> u32 {
    rate.bytes_in(QUANTUM_NS).clamp(QUANTUM_MIN, u64::from(QUANTUM_MAX)) as u32
}

impl Tree {
    /// A tree without tenants; without `capacity` only limits hold it back. `seed` is of
    /// disciplines' dice.
    #[must_use]
    pub fn new(plane: Plane, kind: OrderKind, capacity: Option<Capacity>, seed: u64) -> Self {
        let max_frame = capacity.map_or(QUANTUM_MAX, |c| quantum(c.rate));
        let mut tree = Tree {
            plane,
            kind,
            root: Level::new(kind, max_frame),
            tenants: Vec::new(),
            nodes: Vec::new(),
            shares: Vec::new(),
            unmet: Vec::new(),
            aqms: Vec::new(),
            seed,
            flows: Flows::new(seed),
            aheads: Priorities::default(),
            wheel: Wheel::new(0),
            capacity: None,
            pace: Pace::UNLIMITED,
            pace_contended: Pace::UNLIMITED,
            max_frame,
            burst: 0,
            busy_until: 0,
            lost: 0,
            contended_until: Instant::ZERO,
            last_tenant: 0,
            seen: Instant::ZERO,
            losses: Losses::default(),
        };
        tree.set_capacity(Instant::ZERO, capacity);
        tree
    }

    /// Makes room for endpoints 0..`endpoints`.
    pub fn reserve(&mut self, endpoints: usize) {
        self.nodes.reserve(endpoints.saturating_sub(self.nodes.len()));
        self.shares.reserve(endpoints.saturating_sub(self.shares.len()));
        self.unmet.reserve(endpoints.saturating_sub(self.unmet.len()));
        self.wheel.reserve(2 * endpoints);
    }

    /// Changes the link's rate at `now`, or takes the link away. Takes time in proportion to the
    /// endpoints: bounds are in units of the longest frame, which is a matter of the rate.
    pub fn set_capacity(&mut self, now: Instant, capacity: Option<Capacity>) {
        self.capacity = capacity;
        let contended = |c: Capacity| c.rate.less_ppm(c.headroom_ppm);
        self.set_pace(now, capacity.map_or(Pace::UNLIMITED, |c| Pace::of(c.rate)));
        self.pace_contended = capacity.map_or(Pace::UNLIMITED, |c| Pace::of(contended(c)));
        self.max_frame = capacity.map_or(QUANTUM_MAX, |c| quantum(c.rate));
        let least = BURST_FRAMES * self.pace_contended.cost(QUANTUM_MIN as u32);
        self.burst = capacity.map_or(0, |c| c.burst_ns << TAG_BITS).max(least);
        self.root.set_max_frame(self.max_frame);
        for tenant in &mut self.tenants {
            tenant.level.set_max_frame(self.max_frame);
            tenant.measure(self.seen, self.max_frame);
        }
        for index in 0..self.nodes.len() {
            self.fit_frames(index);
        }
    }

    /// What the link owes stays, in bytes: at another rate it takes another time, and without one
    /// nothing is owed. The clock of guarantees stays where it is: who came to wait meanwhile began
    /// at it.
    fn set_pace(&mut self, now: Instant, pace: Pace) {
        let owed = self.busy_until.saturating_sub(tag(now));
        if pace != self.pace && owed > 0 {
            let busy_until = tag(now).saturating_add(self.pace.at(pace, owed));
            self.lost = self.lost.wrapping_add(busy_until.wrapping_sub(self.busy_until));
            self.busy_until = busy_until;
        }
        self.pace = pace;
    }

    /// Adds an endpoint; its slot must be vacant and its tenant there.
    pub fn add_endpoint(&mut self, endpoint: EndpointId, leaf: &Leaf) {
        let (index, clock) = (endpoint.0 as usize, self.clock());
        if self.nodes.len() <= index {
            self.nodes.resize_with(index + 1, Node::vacant);
            self.shares.resize(index + 1, Share::default());
            self.unmet.resize(index + 1, Unmet::default());
            self.wheel.grow(WheelNode::Endpoint(endpoint.0).number() as usize + 1);
        }
        let tenant = &mut self.tenants[leaf.tenant as usize];
        let child = tenant.vacant.pop().unwrap_or_else(|| {
            tenant.children.push(NOBODY);
            tenant.children.len() as u32 - 1
        });
        tenant.children[child as usize] = endpoint.0;
        tenant.level.set_share(child, &leaf.share, 0, clock);
        self.nodes[index] = Node {
            tenant: leaf.tenant,
            child,
            max_frame: self.max_frame,
            lane: Lane::new(leaf.queue_bytes),
            ..Node::vacant()
        };
        self.shares[index] = leaf.share;
        self.unmet[index] = Unmet::default();
        self.set_aqm(index, leaf.aqm);
        self.fit_frames(index);
    }

    /// Gives an endpoint's queue a discipline, or the lane's own. What waits stays.
    fn set_aqm(&mut self, index: usize, discipline: Option<Discipline>) {
        self.nodes[index].set(AQM, discipline.is_some());
        if self.aqms.get(index).and_then(Option::as_ref).map(|aqm| aqm.discipline()) == discipline {
            return;
        }
        if self.aqms.len() <= index {
            self.aqms.resize_with(index + 1, || None);
        }
        self.nodes[index].lane.change_discipline();
        let seed = self.seed ^ (index as u64) << 1 ^ self.plane as u64;
        self.aqms[index] = discipline.map(|one| Box::new(Aqm::new(one, Rate::UNLIMITED, seed)));
    }

    /// The discipline of an endpoint's queue, where that is another than the lane's own.
    #[must_use]
    pub fn aqm(&self, endpoint: EndpointId) -> Option<&Aqm> {
        self.aqms.get(endpoint.0 as usize)?.as_deref()
    }

    /// Changes an endpoint's share and its lane's bound.
    pub fn set_endpoint(&mut self, pool: &Pool, endpoint: EndpointId, leaf: &Leaf) {
        let clock = self.clock();
        let Some(node) = self.nodes.get_mut(endpoint.0 as usize).filter(|node| node.tenant != NOBODY) else { return };
        node.lane.set_bound(leaf.queue_bytes);
        self.shares[endpoint.0 as usize] = leaf.share;
        let head = node.lane.head(pool, &self.flows, node.max_frame);
        self.tenants[node.tenant as usize].level.set_share(node.child, &leaf.share, head, clock);
        self.set_aqm(endpoint.0 as usize, leaf.aqm);
        self.fit_frames(endpoint.0 as usize);
    }

    /// Says what of an endpoint's frames goes before its others.
    pub fn set_ahead(&mut self, endpoint: EndpointId, agent_traffic: Option<AgentTraffic>, direction: Direction) {
        self.aheads.set(endpoint.0, agent_traffic, direction);
        self.nodes[endpoint.0 as usize].set(AHEAD, agent_traffic.is_some());
    }

    /// What of an endpoint's frames goes before its others, where something does.
    #[must_use]
    pub fn ahead(&self, endpoint: EndpointId) -> Option<&Priority> {
        self.aheads.get(endpoint.0)
    }

    /// Makes an endpoint's slot vacant; returns how many of its frames were freed. What its tenant
    /// has counted stays.
    pub fn remove_endpoint(&mut self, pool: &mut Pool, limits: &mut Limits, endpoint: EndpointId) -> u32 {
        let freed = self.clear_endpoint(pool, limits, endpoint);
        let Some(node) = self.nodes.get_mut(endpoint.0 as usize).filter(|node| node.tenant != NOBODY) else { return 0 };
        let node = std::mem::replace(node, Node::vacant());
        let (counted, tenant) = (node.lane.stats(), &mut self.tenants[node.tenant as usize]);
        count_on(&mut tenant.marks, counted.marks);
        count_on(&mut tenant.trims, counted.trims);
        tenant.sojourn_max_ns = tenant.sojourn_max_ns.max(counted.sojourn_max_ns);
        self.aheads.set(endpoint.0, None, Direction::Egress);
        if let Some(aqm) = self.aqms.get_mut(endpoint.0 as usize) {
            *aqm = None;
        }
        tenant.level.forget(node.child);
        tenant.children[node.child as usize] = NOBODY;
        tenant.vacant.push(node.child);
        freed
    }

    /// Frees what waits for an endpoint; returns how many frames.
    pub fn clear_endpoint(&mut self, pool: &mut Pool, limits: &mut Limits, endpoint: EndpointId) -> u32 {
        let Some(node) = self.nodes.get_mut(endpoint.0 as usize).filter(|node| node.tenant != NOBODY) else { return 0 };
        let at = endpoint.0 as usize;
        node.measure(&mut self.unmet[at], &self.shares[at], self.seen);
        self.tenants[node.tenant as usize].measure(self.seen, self.max_frame);
        let freed = node.lane.clear(pool, &mut self.flows);
        if let Some(ahead) = self.aheads.get_mut(endpoint.0) {
            ahead.clear();
        }
        self.wheel.remove(WheelNode::Endpoint(endpoint.0).number());
        limits.endpoints[endpoint.0 as usize].leave(self.plane);
        let (t, child) = (node.tenant, node.child);
        let level = &mut self.tenants[t as usize].level;
        level.deactivate(child);
        if level.active() == 0 {
            self.root.deactivate(t);
            self.wheel.remove(WheelNode::Tenant(t).number());
            limits.tenants[t as usize].leave(self.plane);
        }
        freed
    }

    /// Counts on from an endpoint's counters in another tree.
    pub fn restore_endpoint(&mut self, endpoint: EndpointId, counted: &LaneStats) {
        self.nodes[endpoint.0 as usize].lane.restore(counted);
        self.unmet[endpoint.0 as usize].restore(counted.unmet_ns);
    }

    /// Counts on from a tenant's counters in another tree; those of its endpoints that are there
    /// were restored before.
    pub fn restore_tenant(&mut self, tenant: TenantId, counted: &LaneStats) {
        let of_lanes = self.tenant_stats(tenant);
        let Some(node) = self.tenants.get_mut(tenant.0 as usize) else { return };
        node.traffic.count_on(&counted.traffic);
        count_on(&mut node.guaranteed_bytes, counted.guaranteed_bytes);
        count_on(&mut node.marks, counted.marks.saturating_sub(of_lanes.marks));
        count_on(&mut node.trims, counted.trims.saturating_sub(of_lanes.trims));
        node.sojourn_max_ns = node.sojourn_max_ns.max(counted.sojourn_max_ns);
        node.unmet.restore(counted.unmet_ns);
    }

    /// Adds a tenant, or changes its share.
    pub fn set_tenant(&mut self, tenant: TenantId, share: Share) {
        let (tenant, clock) = (tenant.0 as usize, self.clock());
        while self.tenants.len() <= tenant {
            self.tenants.push(Tenant::new(self.kind, self.max_frame));
            self.wheel.grow(WheelNode::Tenant(self.tenants.len() as u32 - 1).number() as usize + 1);
        }
        self.flows.reserve(self.tenants.len());
        self.tenants[tenant].share = share;
        self.tenants[tenant].measure(self.seen, self.max_frame);
        self.root.set_share(tenant as u32, &share, self.max_frame, clock);
        for child in 0..self.tenants[tenant].children.len() {
            let endpoint = self.tenants[tenant].children[child];
            if endpoint != NOBODY {
                self.fit_frames(endpoint as usize);
            }
        }
    }

    /// Makes a tenant's slot vacant; it must have no endpoints.
    pub fn remove_tenant(&mut self, tenant: TenantId) {
        self.root.forget(tenant.0);
        self.wheel.remove(WheelNode::Tenant(tenant.0).number());
        self.tenants[tenant.0 as usize] = Tenant::new(self.kind, self.max_frame);
    }

    /// A frame for `endpoint`'s lane; its metadata must hold its layout and wire bytes.
    ///
    /// # Errors
    /// The frame is freed and the reason given where the lane cannot take it.
    pub fn enqueue(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        limits: &mut Limits,
        endpoint: EndpointId,
        frame: Frame,
    ) -> Result<(), Reason> {
        let node = &mut self.nodes[endpoint.0 as usize];
        let was_empty = node.lane.is_empty();
        if node.has_ahead() || node.has_aqm() {
            self.enqueue_special(pool, now, endpoint.0 as usize, frame)?;
        } else {
            let among = Among { quantum: node.max_frame, ahead: 0, tenant: node.tenant };
            node.lane.enqueue(pool, now, frame, (&mut self.flows, among), &mut self.losses)?;
        }
        if was_empty {
            let node = &mut self.nodes[endpoint.0 as usize];
            // A discipline may have lost it.
            if !node.lane.is_empty() {
                node.stretch.begin(now, node.lane.served_bytes(), node.span);
                self.activate(pool, now, limits, endpoint.0);
            }
        }
        Ok(())
    }

    /// Whether a frame may go at once: nothing waits that could go, and neither the link nor a
    /// limit holds it back. If so, all is as after [`Tree::enqueue`] and [`Tree::dequeue`], and the
    /// frame is its caller's; if not, nothing has changed.
    #[inline(always)]
    pub fn pass(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        plane: Plane,
        (limits, sojourns): (&mut Limits, &mut [Sojourn]),
        endpoint: EndpointId,
        frame: &Frame,
    ) -> bool {
        self.pass_by::<false>(pool, now, plane, (limits, sojourns), endpoint, frame)
    }

    /// The same of any frame, of several segments too, where no discipline cuts or signals it.
    #[inline(never)]
    pub fn pass_special(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        plane: Plane,
        (limits, sojourns): (&mut Limits, &mut [Sojourn]),
        endpoint: EndpointId,
        frame: &Frame,
    ) -> bool {
        self.pass_by::<true>(pool, now, plane, (limits, sojourns), endpoint, frame)
    }

    #[inline(always)]
    fn pass_by<const SPECIAL: bool>(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        plane: Plane,
        (limits, sojourns): (&mut Limits, &mut [Sojourn]),
        endpoint: EndpointId,
        frame: &Frame,
    ) -> bool {
        debug_assert!(plane == self.plane && (plane == Plane::Wire || self.capacity.is_none()));
        let (now_tag, e) = (tag(now), endpoint.0 as usize);
        if self.root.active() > 0 || !self.wheel.is_empty() && self.wheel.is_due(now) {
            return false;
        }
        let node = &mut self.nodes[e];
        if SPECIAL && !node.is_passed_by_special(pool, frame) {
            return false;
        }
        if !SPECIAL && !node.is_passed_by(pool, frame) {
            let is_one = pool.meta(frame).offload.gso == Gso::None;
            return is_one
                && node.has_aqm()
                && self.pass_special(pool, now, plane, (limits, sojourns), endpoint, frame);
        }
        let (t, child) = (node.tenant, node.child);
        let tenant = &mut self.tenants[t as usize];
        let is_wire = plane == Plane::Wire;
        // There a few bytes are counted as sent by guarantee that would not be from a queue, or the
        // other way round: why is not known.
        if is_wire && self.kind == OrderKind::Wf2q {
            return false;
        }
        if tenant.level.active() > 0 || is_wire && self.busy_until > now_tag && self.pace.is_limited() {
            return false;
        }
        let (own, whole) = (&mut limits.endpoints[e], &mut limits.tenants[t as usize]);
        if node.is_limited() && !own.is_free(plane, now_tag) || !whole.is_free(plane, now_tag) {
            return false;
        }
        if SPECIAL && node.has_aqm() && !self.aqms[e].as_deref_mut().is_some_and(|aqm| aqm.pass(pool, now, frame)) {
            return false;
        }
        self.seen = now;
        let meta = pool.meta(frame);
        let (bytes, len) = (meta.wire_bytes, pool.len(frame));
        let segments = if SPECIAL { segment::segments(&meta.layout, &meta.offload) } else { 1 };
        if let Some(full) = node.lane.pass(pool, now, frame, is_wire.then_some(segments)) {
            sojourns[e].carry(full);
        }
        if node.is_limited() {
            own.pass(plane, now_tag, bytes);
        }
        whole.pass(plane, now_tag, bytes);
        if !is_wire {
            // Between neighbours nobody has a guarantee, no link is paid, and the switch counts.
            tenant.level.pass_by_weight(child, bytes);
            self.root.pass_by_weight(t, bytes);
            return true;
        }
        tenant.traffic.add(segments, len, bytes);
        // The link was idle, as in `activate`.
        let busy_until = self.busy_until.max(now_tag.saturating_sub(self.burst));
        let clock = busy_until.wrapping_sub(self.lost);
        if tenant.level.pass(child, bytes, clock) {
            node.lane.served_by_guarantee(bytes);
        }
        if self.root.pass(t, bytes, clock) {
            tenant.guaranteed_bytes += u64::from(bytes);
        }
        self.see_contention(now, t);
        if self.pace.is_limited() {
            self.busy_until = busy_until;
            let pace = self.pace_at(now);
            pay((&mut self.busy_until, &mut self.lost), now_tag, self.burst, pace, bytes);
        } else {
            self.busy_until = now_tag;
        }
        true
    }

    /// The same of a run, in the plane of neighbours: whether each of its frames may go at once
    /// behind those before it. False also where that would have to be tried.
    pub fn pass_run(
        &mut self,
        pool: &Pool,
        now: Instant,
        (limits, sojourns): (&mut Limits, &mut [Sojourn]),
        endpoint: EndpointId,
        run: &Run,
    ) -> bool {
        debug_assert!(self.plane == Plane::Local && self.capacity.is_none());
        let (now_tag, e) = (tag(now), endpoint.0 as usize);
        // Only there time by weight is a matter of the sum.
        let is_by_sum = self.kind == OrderKind::Fair;
        if !is_by_sum || self.root.active() > 0 || !self.wheel.is_empty() && self.wheel.is_due(now) {
            return false;
        }
        let node = &mut self.nodes[e];
        let (t, child) = (node.tenant, node.child);
        let tenant = &mut self.tenants[t as usize];
        if !node.is_passed_by_run(pool, run) || tenant.level.active() > 0 {
            return false;
        }
        let (own, whole) = (&mut limits.endpoints[e], &mut limits.tenants[t as usize]);
        let before = run.before_last();
        if node.is_limited() && !own.is_free_behind(self.plane, now_tag, before)
            || !whole.is_free_behind(self.plane, now_tag, before)
        {
            return false;
        }
        self.seen = now;
        if let Some(full) = node.lane.pass_run(now, run.frames) {
            sojourns[e].carry(full);
        }
        if node.is_limited() {
            own.pass(self.plane, now_tag, run.wire_bytes);
        }
        whole.pass(self.plane, now_tag, run.wire_bytes);
        tenant.level.pass_by_weight(child, run.wire_bytes);
        self.root.pass_by_weight(t, run.wire_bytes);
        true
    }

    /// The same of one of which something goes ahead, or whose queue has a discipline.
    #[inline(never)]
    fn enqueue_special(&mut self, pool: &mut Pool, now: Instant, at: usize, frame: Frame) -> Result<(), Reason> {
        let node = &mut self.nodes[at];
        let mut stand_ahead = 0;
        if node.has_ahead()
            && let Some(ahead) = self.aheads.get_mut(at as u32)
        {
            if let Some(before) = ahead.takes(pool, now, &frame) {
                node.lane.enqueue_ahead(pool, now, before, frame);
                return Ok(());
            }
            stand_ahead = ahead.frames();
        }
        if node.has_aqm()
            && let Some(aqm) = self.aqms[at].as_deref_mut()
        {
            return node.lane.enqueue_under(pool, now, frame, (&mut self.flows, &mut self.losses), aqm);
        }
        let among = Among { quantum: node.max_frame, ahead: stand_ahead, tenant: node.tenant };
        node.lane.enqueue(pool, now, frame, (&mut self.flows, among), &mut self.losses)
    }

    /// How much of a frame the lane of `endpoint` would take, which is no agent's, and what another
    /// flow would lose for it. Changes nothing; `bytes` are the frame's, `may_wait` as in
    /// [`Pool::may_wait`].
    pub(crate) fn decide<'a>(
        &self,
        pool: &'a Pool,
        endpoint: EndpointId,
        offer: &Offer<'_>,
        bytes: &'a [u8],
        may_wait: &impl Fn(Owner, u64) -> bool,
    ) -> (Admission, Room) {
        let node = &self.nodes[endpoint.0 as usize];
        if node.has_aqm() {
            return (node.lane.decide_managed(offer, may_wait), Room::NONE);
        }
        let ahead = if node.has_ahead() { self.aheads.get(endpoint.0).map_or(0, Priority::frames) } else { 0 };
        node.lane.decide(pool, offer, || bytes, may_wait, (&self.flows, ahead))
    }

    /// The next frame that the link, the limits and the shares let go at `now`, and whose it is.
    /// How long it waited is counted in `sojourns`.
    #[inline]
    pub fn dequeue(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        limits: &mut Limits,
        sojourns: &mut [Sojourn],
    ) -> Option<(EndpointId, Frame)> {
        self.seen = now;
        // Most calls find nothing: of two schedulers with two trees each, few have something.
        if self.root.active() == 0 && self.wheel.is_empty() {
            return None;
        }
        self.dequeue_next(pool, now, limits, sojourns)
    }

    fn dequeue_next(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        limits: &mut Limits,
        sojourns: &mut [Sojourn],
    ) -> Option<(EndpointId, Frame)> {
        while let Some(node) = self.wheel.expire(now) {
            self.wake(pool, now, limits, WheelNode::of(node));
        }
        if self.root.active() == 0 || self.busy_until > tag(now) && self.pace.is_limited() {
            return None;
        }
        loop {
            let clock = self.clock();
            let tenant_pick = self.root.peek(clock)?;
            let t = tenant_pick.child;
            if let Some(until) = limits.tenants[t as usize].wait(self.plane, tag(now), TURN) {
                self.root.deactivate(t);
                self.wheel.insert(WheelNode::Tenant(t).number(), now, instant(until));
                continue;
            }
            let tenant = &mut self.tenants[t as usize];
            if tenant.stretch.is_due(now) {
                tenant.look(now);
            }
            let Some(pick) = tenant.level.peek(clock) else {
                self.root.deactivate(t);
                continue;
            };
            let e = tenant.children[pick.child as usize];
            let node = &mut self.nodes[e as usize];
            if node.stretch.is_due(now) {
                node.look(&mut self.unmet[e as usize], now);
            }
            if node.is_limited()
                && let Some(until) = limits.endpoints[e as usize].wait(self.plane, tag(now), TURN)
            {
                tenant.level.deactivate(pick.child);
                self.wheel.insert(WheelNode::Endpoint(e).number(), now, instant(until));
                continue;
            }
            let is_ahead = node.has_ahead() && self.aheads.get_mut(e).is_some_and(Priority::lets_go);
            let served = if is_ahead {
                node.lane.dequeue_ahead(pool, now)
            } else if node.has_aqm()
                && let Some(aqm) = &mut self.aqms[e as usize]
            {
                node.lane.dequeue_under(pool, now, node.max_frame, (&mut self.flows, &mut self.losses), aqm)
            } else {
                node.lane.dequeue(pool, now, node.max_frame, &mut self.flows, &mut self.losses)
            };
            match served {
                Some(Served { frame, segments, full }) => {
                    if let Some(full) = full {
                        sojourns[e as usize].carry(full);
                    }
                    if self.plane == Plane::Wire {
                        tenant.traffic.add(segments, pool.len(&frame), pool.meta(&frame).wire_bytes);
                    }
                    if !is_ahead {
                        self.see_contention(now, tenant_pick.child);
                    }
                    self.serve(pool, now, limits, (tenant_pick, pick, e as usize), &frame);
                    return Some((EndpointId(e), frame));
                }
                None => {
                    tenant.level.deactivate(pick.child);
                    if node.is_limited() {
                        limits.endpoints[e as usize].leave(self.plane);
                    }
                }
            }
        }
    }

    /// When `dequeue` may have something to do.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        earlier(self.wheel.next_due(), (self.root.active() > 0).then(|| instant(self.busy_until)))
    }

    /// What its lanes lost, where that is watched.
    pub fn losses(&mut self) -> &mut Losses {
        &mut self.losses
    }

    /// Counters of one endpoint, as they were when `dequeue` was last called. What neighbours send
    /// each other the switch counts: much of it is in no queue.
    #[must_use]
    pub fn endpoint_stats(&self, endpoint: EndpointId) -> LaneStats {
        let (node, unmet) = (&self.nodes[endpoint.0 as usize], &self.unmet[endpoint.0 as usize]);
        let mut stats = LaneStats { unmet_ns: node.unmet_ns(unmet, self.seen), ..node.lane.stats() };
        if self.plane == Plane::Local {
            stats.traffic = Traffic::default();
        }
        stats
    }

    /// Whose an endpoint is.
    #[must_use]
    pub fn tenant(&self, endpoint: EndpointId) -> Option<TenantId> {
        let tenant = self.nodes.get(endpoint.0 as usize)?.tenant;
        (tenant != NOBODY).then_some(TenantId(tenant))
    }

    /// One endpoint's lane.
    #[must_use]
    pub fn lane(&self, endpoint: EndpointId) -> &Lane {
        &self.nodes[endpoint.0 as usize].lane
    }

    /// Charges the frames of an endpoint to another account. Takes time in proportion to what
    /// waits.
    pub fn set_owner(&mut self, pool: &mut Pool, endpoint: EndpointId, owner: Owner) {
        self.nodes[endpoint.0 as usize].lane.set_owner(pool, &self.flows, owner);
    }

    /// The longest frame that an endpoint sends at once, in wire bytes.
    #[must_use]
    pub fn longest(&self, endpoint: EndpointId) -> u32 {
        self.nodes[endpoint.0 as usize].max_frame
    }

    /// Frames that wait.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.nodes.iter().map(|node| node.lane.frames() as usize).sum()
    }

    /// The endpoints of a tenant, by index.
    pub fn endpoints_of(&self, tenant: TenantId) -> impl Iterator<Item = u32> + '_ {
        let children = self.tenants.get(tenant.0 as usize).map_or(&[][..], |tenant| &tenant.children);
        children.iter().copied().filter(|&endpoint| endpoint != NOBODY)
    }

    /// What one tenant's endpoints sent in all, and what waits.
    #[must_use]
    pub fn tenant_stats(&self, tenant: TenantId) -> LaneStats {
        let mut sum = self.tenant_own_stats(tenant);
        for endpoint in self.endpoints_of(tenant) {
            sum.add_queue(&self.nodes[endpoint as usize].lane.stats());
        }
        sum
    }

    /// As [`Tree::tenant_stats`], without what the queues of its endpoints have counted
    /// ([`LaneStats::add_queue`]).
    #[must_use]
    pub fn tenant_own_stats(&self, tenant: TenantId) -> LaneStats {
        let Some(node) = self.tenants.get(tenant.0 as usize) else { return LaneStats::default() };
        LaneStats {
            traffic: node.traffic,
            guaranteed_bytes: node.guaranteed_bytes,
            marks: node.marks,
            trims: node.trims,
            sojourn_max_ns: node.sojourn_max_ns,
            unmet_ns: node.unmet_ns(self.seen),
            ..LaneStats::default()
        }
    }

    /// Frees everything that waits.
    pub fn clear(&mut self, pool: &mut Pool, limits: &mut Limits) {
        for index in 0..self.nodes.len() as u32 {
            self.clear_endpoint(pool, limits, EndpointId(index));
        }
    }

    /// Link time now: what guarantees are measured in.
    fn clock(&self) -> Tag {
        self.busy_until.wrapping_sub(self.lost)
    }

    /// A tenant is served: contention, if the last one was another.
    #[inline]
    fn see_contention(&mut self, now: Instant, tenant: u32) {
        if self.last_tenant != tenant {
            self.last_tenant = tenant;
            self.contended_until = now.plus_ns(CONTENDED_NS);
        }
    }

    /// Charges a frame to everyone it concerns, and puts them where they belong next.
    fn serve(
        &mut self,
        pool: &Pool,
        now: Instant,
        limits: &mut Limits,
        (tenant_pick, pick, e): (Pick, Pick, usize),
        frame: &Frame,
    ) {
        let bytes = pool.meta(frame).wire_bytes;
        let (now_tag, t) = (tag(now), tenant_pick.child as usize);
        let tenant = &mut self.tenants[t];
        let node = &mut self.nodes[e];
        let lengths = tenant.level.wants_lengths();
        let next = (!node.lane.is_empty()).then(|| node.head(pool, &self.flows, lengths));
        if node.is_limited() {
            limits.endpoints[e].charge(self.plane, now_tag, bytes);
            if next.is_none() {
                limits.endpoints[e].leave(self.plane);
            }
        }
        limits.tenants[t].charge(self.plane, now_tag, bytes);
        if pick.by_guarantee {
            node.lane.served_by_guarantee(bytes);
        }
        tenant.level.charge(pick, bytes, next);
        if tenant_pick.by_guarantee {
            tenant.guaranteed_bytes += u64::from(bytes);
        }

        let pace = self.pace_at(now);
        pay((&mut self.busy_until, &mut self.lost), now_tag, self.burst, pace, bytes);
        let clock = self.clock();
        let tenant = &mut self.tenants[t];
        let head = if !lengths {
            (tenant.level.active() > 0).then_some(self.max_frame)
        } else {
            let first = |pick: Pick| &self.nodes[tenant.children[pick.child as usize] as usize];
            tenant.level.peek(clock).map(|pick| first(pick).head(pool, &self.flows, true))
        };
        if head.is_none() {
            limits.tenants[t].leave(self.plane);
        }
        self.root.charge(tenant_pick, bytes, head);
    }

    /// What the link carries, headroom held back while tenants contend.
    #[inline]
    fn pace_at(&self, now: Instant) -> Pace {
        if now < self.contended_until { self.pace_contended } else { self.pace }
    }

    /// The link is taken by so many wire bytes that waited in no lane. Guarantees do not shrink by
    /// it: what is left beyond them does.
    pub fn occupy(&mut self, now: Instant, bytes: u32) {
        pay((&mut self.busy_until, &mut self.lost), tag(now), self.burst, self.pace, bytes);
    }

    /// An endpoint's lane is no longer empty, or its limit lets it go on.
    fn activate(&mut self, pool: &Pool, now: Instant, limits: &mut Limits, endpoint: u32) {
        if self.nodes[endpoint as usize].is_limited()
            && let Some(until) = limits.endpoints[endpoint as usize].wait(self.plane, tag(now), 0)
        {
            self.wheel.insert(WheelNode::Endpoint(endpoint).number(), now, instant(until));
            return;
        }
        if self.root.active() == 0 {
            // The link was idle: its clock goes on with the wall's, and nothing is owed.
            self.busy_until = self.busy_until.max(tag(now).saturating_sub(self.burst));
        }
        let clock = self.clock();
        let node = &self.nodes[endpoint as usize];
        let t = node.tenant;
        let tenant = &mut self.tenants[t as usize];
        let head = node.head(pool, &self.flows, tenant.level.wants_lengths());
        if tenant.level.active() == 0 {
            tenant.stretch.begin(now, tenant.traffic.wire_bytes, tenant.span);
        }
        tenant.level.activate(node.child, head, clock);
        if self.root.is_active(t) || self.wheel.contains(WheelNode::Tenant(t).number()) {
            return;
        }
        match limits.tenants[t as usize].wait(self.plane, tag(now), 0) {
            Some(until) => self.wheel.insert(WheelNode::Tenant(t).number(), now, instant(until)),
            None => self.root.activate(t, head, clock),
        }
    }

    /// A node's turn on the wheel has come.
    fn wake(&mut self, pool: &Pool, now: Instant, limits: &mut Limits, node: WheelNode) {
        let t = match node {
            WheelNode::Endpoint(e) if self.nodes[e as usize].lane.is_empty() => return,
            WheelNode::Endpoint(e) => return self.activate(pool, now, limits, e),
            WheelNode::Tenant(t) => t,
        };
        let clock = self.clock();
        let tenant = &mut self.tenants[t as usize];
        let Some(pick) = tenant.level.peek(clock) else { return };
        let node = &self.nodes[tenant.children[pick.child as usize] as usize];
        let head = node.head(pool, &self.flows, tenant.level.wants_lengths());
        match limits.tenants[t as usize].wait(self.plane, tag(now), TURN) {
            Some(until) => self.wheel.insert(WheelNode::Tenant(t).number(), now, instant(until)),
            None => {
                if self.root.active() == 0 {
                    self.busy_until = self.busy_until.max(tag(now).saturating_sub(self.burst));
                }
                let clock = self.clock();
                self.root.activate(t, head, clock);
            }
        }
    }

    /// Sets how long a frame of an endpoint may be, for the slowest rate on its way.
    fn fit_frames(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if node.tenant == NOBODY {
            return;
        }
        let link = self.capacity.map_or(Rate::UNLIMITED, |c| c.rate);
        let limit = self.tenants[node.tenant as usize].share.limit;
        let rate = link.min(limit).min(self.shares[index].limit);
        node.max_frame = quantum(rate);
        node.set(LIMITED, self.shares[index].limit.is_limited());
        if let Some(aqm) = self.aqms.get_mut(index).and_then(Option::as_mut) {
            aqm.set_rate(rate);
        }
        node.measure(&mut self.unmet[index], &self.shares[index], self.seen);
    }
}
