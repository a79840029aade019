//! The switch: the stages, called in the order of a frame's trace.
//!
//! From an endpoint: look (headers, offloads) -> guard -> learn -> virtual congestion control ->
//! services -> forward (VLAN tag on) -> pair limit, where there is one -> egress queue; or straight
//! to the neighbour. From the uplink: look -> network -> intake, while its ring fills -> services
//! -> forward -> arrivals, where they are watched -> ingress queue, or the policer. What is for an
//! endpoint passes virtual congestion control behind its queue. What leaves a queue is fitted to
//! its port: segmentation, checksums.

use crate::arrivals::Arrivals;
use crate::bond::Bond;
use crate::encap;
use crate::encap::vxlan;
use crate::fdb::Fdb;
use crate::flood::{CopyBudget, FloodBudget};
use crate::forward::{Forward, Target};
use crate::frame::{Frame, Out, Pool, PoolLimits};
use crate::guard;
use crate::intake::Intake;
use crate::network::Network;
use crate::offload::Gso;
use crate::overlay::Tunnels;
use crate::owners::Owners;
use crate::pair::Pairs;
use crate::police::Policer;
use crate::program::{ChangeError, EndpointId, IngressMode, MemberId, PortId, Program, Slots, TenantId, Uplink};
use crate::sched::Scheduler;
use crate::sched::limits::Plane;
use crate::segment;
use crate::service::Services;
use crate::stats::{LaneStats, Traffic};
use crate::units::{Both, Direction, Instant, earlier};
use crate::vcc::{Stop, Vcc};
use crate::verdict::{DropCounters, Reason, Verdict};
use crate::wire::{L4, Mac};
use backlog::Backlogs;
use change::Gone;
use control::Control;
use memory::Memory;
use outbox::Outbox;
use parse::{count_traffic, count_wire_bytes, destination, drop_for, longest_segment, parse, segments, source};
use past_numbers::PastNumbers;
use recent::Recent;
use route::{Route, Seen};
use serve::Served;
use source::Look;
use std::collections::VecDeque;

mod backlog;
mod burst;
mod change;
#[cfg(test)]
mod chaos;
mod control;
mod counters;
mod explain;
mod feedback;
mod floods;
mod handover;
mod intake;
mod members;
mod memory;
mod outbox;
mod parse;
mod past_numbers;
mod recent;
mod route;
mod serve;
mod source;
mod tunnel;

pub use members::MemberView;
pub use memory::MemoryStats;
pub use past_numbers::NumbersState;

pub use handover::{
    Crowded, EndpointState, HeldAddress, Imported, Learned, OtherVersion, PairState, SeenOutside, State, TenantState,
};

/// Frames that wait to be fetched by `tx`: at most one of each that was read, and what the
/// schedulers let go last. More are dropped.
const OUT: usize = 8192;

/// Endpoints that may be added to a new switch, or as many again as it has if that is more, before
/// what is kept for each has to be moved to where there is room for more: for 10 000 endpoints that
/// takes milliseconds. The memory is not touched before it is needed.
const SPARE: usize = 4096;

/// Something that the shell should know. At most [`Switch::MAX_EVENTS`] wait, one for each endpoint
/// and [`Switch::MAX_TENANT_EVENTS`] of a tenant; more are counted, not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A source address moves between endpoints: a loop behind them, or a spoof. It stays where it
    /// was.
    Flapping {
        /// The endpoint that had it.
        from: EndpointId,
        /// The endpoint that claims it.
        to: EndpointId,
        /// The address.
        mac: Mac,
    },
}

/// What a port is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Nothing,
    Endpoint(EndpointId),
    Uplink(MemberId),
}

/// What is counted for an endpoint outside its queues.
#[derive(Clone, Debug, Default)]
struct Tally {
    local: Both<Traffic>,
    drops: DropCounters,
    /// An event waits that says what it claims.
    is_told: bool,
}

/// The switch: a state machine for frames. Call, in this order: `rx` and `port_drops` (what
/// happened outside), `change` (what the operator wants), then `tx` until it gives `None`,
/// `poll_event` likewise, and come back at `poll_timeout`. A shell that shares its time out calls
/// `tx_due` instead, which leaves what frames are yet to be made into to the turns of their owners:
/// `poll_work`, `work`, `poll_due`.
#[derive(Debug)]
pub struct Switch {
    program: Program,
    roles: Vec<Role>,
    forward: Forward,
    fdb: Fdb,
    owners: Owners,
    tunnels: Tunnels,
    services: Services,
    /// New connections that waited and were let go, and when.
    released: (Instant, u32),
    /// What congestion agents hold back on the way to the egress queues.
    pairs: Pairs,
    egress: Scheduler,
    arrivals: Arrivals,
    /// ECN for guests that have none.
    vcc: Vcc,
    /// A table of connections becomes longer.
    is_growing: bool,
    ingress: Scheduler,
    memory: Memory,
    floods: Vec<FloodBudget>,
    tenant_floods: Vec<CopyBudget>,
    /// By network, the untagged one first: what comes from the uplink.
    uplink_floods: Vec<FloodBudget>,
    /// Where ingress is policed instead of queued.
    policer: Option<Policer>,
    /// Who gets what of the time for frames from the uplink while its ring fills.
    intake: Intake,
    /// What frames for neighbours, or for a network from outside, are yet to be made into.
    backlogs: Backlogs,
    /// Where the uplink has several ports: which of them carries what.
    bond: Option<Box<Bond>>,
    /// Where numbers may come that nobody takes off.
    past_numbers: Option<Box<PastNumbers>>,
    /// Frames in their tunnels for which the bond is yet to choose members; empty between calls.
    for_bond: VecDeque<Frame>,
    out: Outbox,
    /// Where frames went last.
    recent: Recent,
    /// What was taken aside for protocols beside the switch.
    control: Control,
    tallies: Vec<Tally>,
    /// By endpoint, who had the slot before.
    gone: Vec<Gone>,
    /// Endpoints by tenant, tenants by VLAN, tenants in the untagged network: what a change is
    /// checked against.
    counts: Vec<u32>,
    vlans: Slots<TenantId>,
    untagged: u32,
    uplink_drops: DropCounters,
    /// What tenants had counted at the uplink that are gone.
    former: Both<LaneStats>,
    /// Keys the hash tables.
    seed: u64,
    events: VecDeque<Event>,
    /// By tenant, how many of these are of its endpoints.
    waiting: Vec<u8>,
    /// Whose event was the last to be told.
    told: u32,
}

impl Switch {
    /// Events kept for the shell.
    pub const MAX_EVENTS: usize = 256;
    /// Those of one tenant.
    pub const MAX_TENANT_EVENTS: usize = 16;

    /// A switch that runs `program`. `seed` keys the hash tables; the same seed and inputs give the
    /// same outputs.
    ///
    /// # Errors
    /// The program contradicts itself.
    pub fn new(program: &Program, seed: u64) -> Result<Self, ChangeError> {
        let empty = Program {
            order: program.order,
            ingress: program.ingress,
            fdb_age_ns: program.fdb_age_ns,
            uplink_flood: program.uplink_flood,
            ..Program::default()
        };
        let policed = program.ingress != IngressMode::Queue;
        let published = program.ingress == IngressMode::PolicePublished;
        let mut switch = Switch {
            roles: Vec::new(),
            forward: Forward::new(),
            fdb: Fdb::new(program.fdb_age_ns, seed),
            owners: Owners::new(program.fdb_age_ns, seed),
            tunnels: Tunnels::new(seed),
            services: Services::new(seed),
            released: (Instant::ZERO, 0),
            pairs: Pairs::new(seed),
            egress: Scheduler::new(&empty, Direction::Egress, seed),
            arrivals: Arrivals::new(seed),
            vcc: Vcc::new(seed),
            is_growing: false,
            ingress: Scheduler::new(&empty, Direction::Ingress, seed),
            memory: Memory::default(),
            floods: Vec::new(),
            tenant_floods: Vec::new(),
            uplink_floods: vec![FloodBudget::new(program.uplink_flood)],
            policer: policed.then(|| Policer::new(published)),
            intake: Intake::default(),
            backlogs: Backlogs::default(),
            bond: None,
            past_numbers: None,
            for_bond: VecDeque::new(),
            out: Outbox::with_capacity(OUT),
            recent: Recent::default(),
            control: Control::default(),
            tallies: Vec::new(),
            gone: Vec::new(),
            counts: Vec::new(),
            vlans: Slots::default(),
            untagged: 0,
            uplink_drops: DropCounters::default(),
            former: Both::default(),
            seed,
            events: VecDeque::with_capacity(Self::MAX_EVENTS),
            waiting: Vec::new(),
            told: u32::MAX,
            program: empty,
        };
        switch.reserve(program.endpoints.len() + program.endpoints.len().max(SPARE));
        // Nothing is queued yet, so nothing needs a buffer.
        let mut pool = Pool::new(PoolLimits { small: 0, medium: 0, large: 0 });
        for change in program.changes() {
            switch.change(&mut pool, Instant::ZERO, change)?;
        }
        // Nobody waits for it yet.
        while switch.grow_tables() > 0 {}
        while switch.take_left().is_some() {}
        Ok(switch)
    }

    /// The program that runs.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Whether the shell should stop reading `port` for now: its endpoint does not react to
    /// anything, and what is read would only be dropped. What the port's own ring drops meanwhile
    /// is reported with `port_drops`.
    #[must_use]
    pub fn is_paused(&self, port: PortId, now: Instant) -> bool {
        match self.roles.get(port.0 as usize) {
            Some(&Role::Endpoint(endpoint)) => self.egress.is_stuck(endpoint, now),
            _ => false,
        }
    }

    /// A frame arrived at `port`. Takes it over; says what became of it.
    pub fn rx(&mut self, pool: &mut Pool, now: Instant, port: PortId, frame: Frame) -> Verdict {
        let role = self.role(port);
        let result = match role {
            Role::Endpoint(endpoint) => self.rx_endpoint(pool, now, (endpoint, port), frame),
            Role::Uplink(member) => self.rx_uplink(pool, now, member, frame),
            Role::Nothing => {
                pool.free(frame);
                Err(Reason::Unknown)
            }
        };
        match result {
            Ok(()) => Verdict::Forwarded,
            Err(reason) => {
                self.count_drop_of(role, reason);
                Verdict::Dropped(reason)
            }
        }
    }

    #[cold]
    fn count_drop_of(&mut self, role: Role, reason: Reason) {
        match role {
            Role::Endpoint(endpoint) => self.count_drop(endpoint, reason),
            _ => self.uplink_drops.add(reason, 1),
        }
    }

    /// A port reports that it lost frames before the switch could read them, or could not deliver
    /// them.
    pub fn port_drops(&mut self, port: PortId, reason: Reason, frames: u64) {
        match self.roles.get(port.0 as usize) {
            Some(Role::Endpoint(endpoint)) => self.tallies[endpoint.0 as usize].drops.add(reason, frames),
            _ => self.uplink_drops.add(reason, frames),
        }
    }

    /// Frames went past the switch, from the endpoint at `port` to neighbours (egress) and for it
    /// from them.
    pub fn count_past(&mut self, port: PortId, traffic: &Both<Traffic>) {
        if let Role::Endpoint(endpoint) = self.role(port) {
            let local = &mut self.tallies[endpoint.0 as usize].local;
            local.egress.sum(&traffic.egress);
            local.ingress.sum(&traffic.ingress);
        }
    }

    /// The next frame that is due or yet to be made of another, and the port it leaves by. Its
    /// metadata say whose it is: see `Meta::payer`.
    #[inline]
    pub fn tx(&mut self, pool: &mut Pool, now: Instant) -> Option<(PortId, Frame)> {
        loop {
            if let Some(out) = self.tx_due(pool, now) {
                return Some(out);
            }
            if !self.work_for_any(pool, now) && !self.sweep_at_once() && !self.has_held_due(now) {
                return None;
            }
        }
    }

    /// A part of what is swept, for shells without turns. False where there is nothing.
    fn sweep_at_once(&mut self) -> bool {
        let visited = self.sweep();
        drop(self.take_left());
        visited > 0
    }

    /// The same, without what is yet to be made of other frames.
    #[inline]
    pub fn tx_due(&mut self, pool: &mut Pool, now: Instant) -> Option<(PortId, Frame)> {
        self.settle_memory(pool);
        if self.services.has_dues() {
            self.serve_due(pool, now);
        }
        match self.out.pop_front() {
            None => self.tx_queued(pool, now),
            out => out,
        }
    }

    /// What services do by themselves, where something is due.
    #[inline(never)]
    fn serve_due(&mut self, pool: &mut Pool, now: Instant) {
        if self.services.checks_due().is_some_and(|due| due <= now) {
            self.check_backends(pool, now);
        }
        if self.has_held_due(now) {
            self.release_held(pool, now);
        }
    }

    #[inline]
    fn has_held_due(&self, now: Instant) -> bool {
        self.services.has_dues() && self.services.held_due().is_some_and(|due| due <= now)
    }

    /// Lets go what is due in the queues, until something leaves.
    #[inline(never)]
    fn tx_queued(&mut self, pool: &mut Pool, now: Instant) -> Option<(PortId, Frame)> {
        loop {
            if let Some(out) = self.out.pop_front() {
                return Some(out);
            }
            if !self.pairs.is_empty() {
                self.let_pairs_go(pool, now);
            }
            if let Some((endpoint, frame)) = self.egress.dequeue(pool, now, Plane::Local) {
                let meta = pool.meta(&frame);
                if matches!(meta.out(), Out::Endpoint(to) if self.is_gone(to, meta.queued)) {
                    pool.free(frame);
                    self.count_drop(endpoint, Reason::Removed);
                } else {
                    self.reach_neighbours(pool, now, endpoint, frame);
                }
            } else if self.let_member_go(pool, now) {
                // It is in `out`.
            } else if self.may_send_member(now)
                && let Some((endpoint, frame)) = self.egress.dequeue(pool, now, Plane::Wire)
            {
                if self.bond.is_some() && pool.meta(&frame).outer == 0 {
                    self.send_member(pool, now, endpoint, frame);
                    continue;
                }
                let Some(port) = self.program.uplink.as_ref().map(Uplink::port) else { continue };
                if pool.meta(&frame).outer == 0 {
                    self.emit(pool, port, endpoint, self.port_of(endpoint, port), frame);
                } else {
                    self.emit_tunnel(pool, now, port, endpoint, frame);
                }
            } else if let Some((endpoint, frame)) = self.ingress.dequeue(pool, now, Plane::Wire) {
                self.note_losses(endpoint);
                self.deliver(pool, now, endpoint, frame);
            } else if let Some((endpoint, frame)) = self.ingress.dequeue(pool, now, Plane::Local) {
                match pool.meta(&frame).out() {
                    Out::From(from) => {
                        if let Some(frame) = self.show(pool, now, (from, endpoint), frame) {
                            self.deliver_local(pool, from, endpoint, frame);
                        }
                    }
                    _ => pool.free(frame),
                }
            } else if let Some((to, frame)) = self.vcc.dequeue(pool, now) {
                match (pool.meta(&frame).out(), self.program.endpoints.get(to.0)) {
                    (Out::From(from), Some(_)) => self.deliver_local(pool, from, to, frame),
                    (_, Some(endpoint)) => self.hand_to(pool, to, endpoint.port, frame),
                    (_, None) => pool.free(frame),
                }
            } else {
                self.released.1 = 0;
                return self.out.pop_front();
            }
        }
    }

    /// The next event: each tenant's first by turns, so that none waits for all of another.
    pub fn poll_event(&mut self) -> Option<Event> {
        let turn = |event: &Event| self.concerned(event).0.wrapping_sub(self.told).wrapping_sub(1);
        let (at, _) = self.events.iter().enumerate().min_by_key(|&(at, event)| (turn(event), at))?;
        let event = self.events.remove(at)?;
        self.told = self.concerned(&event).0;
        self.forget_event(&event);
        Some(event)
    }

    /// Whose event it is.
    fn concerned(&self, &Event::Flapping { to, .. }: &Event) -> TenantId {
        self.program.endpoints.get(to.0).map_or(TenantId(u32::MAX), |endpoint| endpoint.tenant)
    }

    /// Keeps an event for the shell, where there is room: one that does nothing else leaves room
    /// for what others do, and so do all endpoints of a tenant, and tenants that have several.
    fn note_event(&mut self, event: Event) {
        let Event::Flapping { to, .. } = event;
        let tenant = self.concerned(&event).0 as usize;
        if self.events.len() >= Self::MAX_EVENTS && self.waiting.get(tenant) == Some(&0) {
            self.drop_event();
        }
        let Some(waiting) = self.waiting.get_mut(tenant) else { return };
        let tally = &mut self.tallies[to.0 as usize];
        let has_room = usize::from(*waiting) < Self::MAX_TENANT_EVENTS && self.events.len() < Self::MAX_EVENTS;
        if !tally.is_told && has_room {
            tally.is_told = true;
            *waiting += 1;
            self.events.push_back(event);
        }
    }

    /// Takes out the last event of a tenant that has most, where that is not its only one.
    #[cold]
    fn drop_event(&mut self) {
        let waiting = |event: &Event| self.waiting.get(self.concerned(event).0 as usize).copied().unwrap_or(0);
        let most = self.events.iter().enumerate().max_by_key(|(_, event)| waiting(event));
        let Some((at, _)) = most.filter(|(_, event)| waiting(event) > 1) else { return };
        if let Some(event) = self.events.remove(at) {
            self.forget_event(&event);
        }
    }

    /// An event is taken out.
    fn forget_event(&mut self, event: &Event) {
        let Event::Flapping { to, .. } = *event;
        let tenant = self.concerned(event).0 as usize;
        self.tallies[to.0 as usize].is_told = false;
        if let Some(waiting) = self.waiting.get_mut(tenant) {
            *waiting -= 1;
        }
    }

    /// When `tx` will have something to do, if nothing arrives before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.backlogs.is_quiet() && !self.is_sweeping() { self.poll_due() } else { Some(Instant::ZERO) }
    }

    /// When `tx_due` will.
    #[must_use]
    pub fn poll_due(&self) -> Option<Instant> {
        if !self.out.is_empty() {
            return Some(Instant::ZERO);
        }
        // While the bond takes no more, what waits for it is due when it does.
        let room = self.bond.as_ref().map_or(Some(Instant::ZERO), |bond| bond.room_at());
        let due = |plane: Plane| self.egress.tree(plane).poll_timeout();
        let wire = room.and_then(|room| Some(due(Plane::Wire)?.max(room)));
        let queues = earlier(earlier(wire, due(Plane::Local)), self.ingress.poll_timeout());
        let members = self.bond.as_ref().and_then(|bond| bond.poll_timeout());
        let stages = earlier(earlier(self.pairs.poll_timeout(), self.vcc.poll_timeout()), self.services.poll_timeout());
        earlier(stages, earlier(queues, members))
    }

    /// Frees every frame that the switch holds.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.pairs.clear(pool);
        self.egress.clear(pool);
        self.ingress.clear(pool);
        self.backlogs.clear(pool);
        self.vcc.clear(pool);
        if let Some(bond) = &mut self.bond {
            bond.clear(pool);
        }
        while let Some((_, frame)) = self.out.pop_front() {
            pool.free(frame);
        }
        self.control.clear(pool, None);
        self.leave_memory(pool);
    }

    #[inline(always)]
    fn rx_endpoint(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (from, port): (EndpointId, PortId),
        frame: Frame,
    ) -> Result<(), Reason> {
        let look = self.look(pool, from, &frame);
        self.go_by(pool, now, (from, port), look, frame)
    }

    /// The same of one that was looked at.
    #[inline(always)]
    fn go_by(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (from, port): (EndpointId, PortId),
        look: Result<Look, Reason>,
        mut frame: Frame,
    ) -> Result<(), Reason> {
        let look = match look {
            Ok(look) => look,
            Err(reason) => return drop_for(pool, frame, reason),
        };
        if !look.is_known
            && let Err(reason) = self.check_claims(pool, now, from, &frame, look.right)
        {
            return drop_for(pool, frame, reason);
        }
        if self.vcc.concerns(from)
            && let Err(stop) = self.vcc.send(pool, now, from, &frame)
        {
            match stop {
                Stop::Drop(reason) => return drop_for(pool, frame, reason),
                Stop::Unknown => self.leave_unknown(pool, from, &frame),
            }
        }
        let network = self.forward.network(from);
        let mut is_hairpin = false;
        if self.services.are_in(network) {
            // The address that was looked up is not the one of a frame that is passed to a backend.
            if let Err(words) = self.pass_recent(pool, now, network, false, &frame) {
                match self.serve(pool, now, (network, Some(from)), frame, words)? {
                    Served::On(translated, may_return) => (frame, is_hairpin) = (translated, may_return),
                    Served::Turned(turned, director) => return self.turn_now(pool, now, (network, director), turned),
                    Served::Answer(answer) => return self.send_local(pool, now, from, Out::Endpoint(from), answer),
                    Served::Taken => return Ok(()),
                }
            }
        } else if let Some(Target::Endpoint(to)) = look.target
            && to != from
        {
            debug_assert_eq!(self.target(now, from, Seen::of(pool, &frame)), Target::Endpoint(to));
            return self.send_now(pool, now, (from, Some(port)), to, frame);
        }
        self.go_on(pool, now, from, frame, is_hairpin)
    }

    /// Behind the services' stage, from an endpoint.
    fn go_on(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        from: EndpointId,
        frame: Frame,
        is_hairpin: bool,
    ) -> Result<(), Reason> {
        let seen = Seen::of(pool, &frame);
        let (vlan, mac) = (seen.layout.vlan.unwrap_or(0), destination(seen.bytes));
        let route = match self.recent_target(now, from, vlan, mac) {
            Target::Endpoint(to) if to == from && is_hairpin => Route::Neighbour(to),
            target => self.route(now, from, target, seen),
        };
        self.follow(pool, now, from, route, frame)
    }

    #[inline(never)]
    fn rx_uplink(&mut self, pool: &mut Pool, now: Instant, member: MemberId, frame: Frame) -> Result<(), Reason> {
        pool.meta_mut(&frame).set_member(member);
        let number = match self.take_number(pool, member, &frame) {
            Ok(number) => number,
            Err(reason) => return drop_for(pool, frame, reason),
        };
        if let Some(local) = self.tunnels.local()
            && vxlan::is_for(pool.bytes(&frame), local.address, local.mac)
        {
            return self.receive_tunnel(pool, now, (member, number), frame);
        }
        let looked = parse(pool, &frame).and_then(|()| guard::check_transit(pool.bytes(&frame)));
        if let Err(reason) = looked.and_then(|()| self.receive_member(pool, (member, number), &frame)) {
            return self.refuse_transit(pool, now, member, frame, reason);
        }
        match number {
            Some(number) => self.put_in_order(pool, now, member, number, frame),
            None => {
                if self.forward.network_of_vlan(pool.meta(&frame).layout.vlan).is_some() {
                    self.end_order(pool, now);
                }
                self.enter_uplink(pool, now, frame)
            }
        }
    }

    /// From the uplink, in its order.
    fn enter_uplink(&mut self, pool: &mut Pool, now: Instant, frame: Frame) -> Result<(), Reason> {
        if matches!(pool.meta(&frame).layout.l4, L4::Icmp | L4::Icmpv6) {
            self.hear_path(pool, now, &frame);
        }
        let Some(network) = self.forward.network_of_vlan(pool.meta(&frame).layout.vlan) else {
            return drop_for(pool, frame, Reason::BadVlan);
        };
        self.enter(pool, now, network, frame)
    }

    /// What may not pass from the uplink may be for a protocol of the switch.
    #[cold]
    fn refuse_transit(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        member: MemberId,
        mut frame: Frame,
        reason: Reason,
    ) -> Result<(), Reason> {
        if reason == Reason::Reserved {
            match self.hear_hello(pool, now, member, frame) {
                Ok(heard) => return heard,
                Err(other) => frame = other,
            }
        }
        match &self.program.uplink {
            Some(uplink) if reason == Reason::Reserved && self.control.is_heard() => {
                let port = uplink.port_of(member);
                self.take_aside(pool, port, frame)
            }
            _ => drop_for(pool, frame, reason),
        }
    }

    /// From outside, into a network.
    fn enter(&mut self, pool: &mut Pool, now: Instant, network: Network, mut frame: Frame) -> Result<(), Reason> {
        if self.intake.is_awake() {
            match self.take_in(pool, now, network, frame)? {
                Some(taken) => frame = taken,
                None => return Ok(()),
            }
        }
        if let Err(reason) = self.see_outside(pool, now, network, &frame) {
            return drop_for(pool, frame, reason);
        }
        if self.services.are_in(network)
            && let Err(words) = self.pass_recent(pool, now, network, true, &frame)
        {
            let asked = self.asked(pool, network, &frame);
            let served = self.serve(pool, now, (network, None), frame, words);
            if !matches!(served, Ok(Served::On(..) | Served::Turned(..)))
                && let Some((backend, from, wire_bytes)) = asked
            {
                self.arrivals.arrive(backend, from, wire_bytes);
            }
            match served? {
                Served::On(translated, _) => frame = translated,
                Served::Turned(turned, director) if self.is_director(network, director) => {
                    self.arrive(pool, now, director, turned);
                    return Ok(());
                }
                Served::Turned(turned, _) => return drop_for(pool, turned, Reason::Unreachable),
                Served::Answer(answer) => return self.answer_outside(pool, now, network, answer),
                Served::Taken => return Ok(()),
            }
        }
        self.go_inside(pool, now, network, frame)
    }

    /// Who is meant by a frame for a service that goes no further, if somebody counts what arrives:
    /// it took the link all the same.
    fn asked(&self, pool: &Pool, network: Network, frame: &Frame) -> Option<(EndpointId, Mac, u32)> {
        if !self.arrivals.is_watched() {
            return None;
        }
        let (bytes, meta) = (pool.bytes(frame), pool.meta(frame));
        let backend = self.services.asked(network, bytes, &meta.layout)?;
        Some((backend, source(bytes), meta.wire_bytes))
    }

    /// Behind the services' stage, from outside.
    fn go_inside(&mut self, pool: &mut Pool, now: Instant, network: Network, frame: Frame) -> Result<(), Reason> {
        let seen = Seen::of(pool, &frame);
        let (vlan, mac) = (self.vlan_inside(network, seen), destination(seen.bytes));
        let target = self.forward.target_inside(&self.fdb, now, network, vlan, mac);
        let inside = self.route_inside(now, network, target, seen);
        self.follow_inside(pool, now, network, inside, frame)
    }

    /// To one neighbour: as [`Switch::send_local`], and past the sender's lane where a limit holds
    /// nothing back.
    fn send_neighbour(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        from: EndpointId,
        to: EndpointId,
        frame: Frame,
    ) -> Result<(), Reason> {
        self.send_now(pool, now, (from, None), to, frame)
    }

    /// The same, for where it is most often called, which may know the sender's port.
    #[inline(always)]
    fn send_now(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (from, port): (EndpointId, Option<PortId>),
        to: EndpointId,
        frame: Frame,
    ) -> Result<(), Reason> {
        if self.egress.is_limited(from) && !self.egress.pass(pool, now, Plane::Local, from, &frame) {
            return self.send_local(pool, now, from, Out::Endpoint(to), frame);
        }
        count_traffic(pool, &frame, &mut self.tallies[from.0 as usize].local.egress);
        if self.backlogs.is_empty(from) {
            self.arrive_now(pool, now, (from, port), to, frame);
        } else {
            pool.meta_mut(&frame).set_out(Out::Endpoint(to));
            self.put_off(pool, now, from, frame);
        }
        Ok(())
    }

    /// To neighbours on this switch: straight, or through the sender's lane where it has a limit.
    fn send_local(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        from: EndpointId,
        to: Out,
        frame: Frame,
    ) -> Result<(), Reason> {
        pool.meta_mut(&frame).set_out(to);
        if self.egress.is_limited(from) {
            let is_long = segments(pool, &frame) > 1;
            if !is_long || !self.egress.pass_segments(pool, now, Plane::Local, from, &frame) {
                return self.egress.enqueue(pool, now, Plane::Local, from, frame);
            }
        }
        self.reach_neighbours(pool, now, from, frame);
        Ok(())
    }

    /// The sender's limit let it go: to whom `Meta::out` says.
    fn reach_neighbours(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, frame: Frame) {
        count_traffic(pool, &frame, &mut self.tallies[from.0 as usize].local.egress);
        match pool.meta(&frame).out() {
            Out::Endpoint(to) if self.backlogs.is_empty(from) => self.arrive_local(pool, now, from, to, frame),
            _ => self.put_off(pool, now, from, frame),
        }
    }

    /// From a neighbour, for `to`.
    fn arrive_local(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, to: EndpointId, frame: Frame) {
        self.arrive_now(pool, now, (from, None), to, frame);
    }

    /// The same, for where it is most often called.
    #[inline(always)]
    fn arrive_now(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (from, port): (EndpointId, Option<PortId>),
        to: EndpointId,
        frame: Frame,
    ) {
        if self.ingress.is_limited(to) && self.ingress.pass(pool, now, Plane::Local, to, &frame) {
            if let Some(frame) = self.show(pool, now, (from, to), frame) {
                self.deliver_now(pool, (from, port), to, frame);
            }
            return;
        }
        self.arrive_queued(pool, now, from, to, frame);
    }

    /// The same of one that may have to wait.
    #[inline(never)]
    fn arrive_queued(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, to: EndpointId, frame: Frame) {
        if self.ingress.is_limited(to) {
            return self.arrive_limited(pool, now, from, to, frame);
        }
        let Some(frame) = self.show(pool, now, (from, to), frame) else { return };
        match self.program.endpoints.get(to.0) {
            Some(endpoint) if self.is_in_pieces(pool, endpoint.port, &frame) => {
                count_traffic(pool, &frame, &mut self.tallies[to.0 as usize].local.ingress);
                self.cut_in_turn(pool, now, from, to, frame);
            }
            _ => self.deliver_local(pool, from, to, frame),
        }
    }

    /// The same where the receiver has a limit: a frame of several segments may pass, too. What the
    /// port cannot take whole is cut when the limit lets it go.
    fn arrive_limited(&mut self, pool: &mut Pool, now: Instant, from: EndpointId, to: EndpointId, frame: Frame) {
        let port = self.program.endpoints.get(to.0).map(|endpoint| endpoint.port);
        let is_whole = segments(pool, &frame) > 1 && port.is_some_and(|port| !self.is_in_pieces(pool, port, &frame));
        if is_whole && self.ingress.pass_segments(pool, now, Plane::Local, to, &frame) {
            if let Some(frame) = self.show(pool, now, (from, to), frame) {
                self.deliver_local(pool, from, to, frame);
            }
            return;
        }
        pool.meta_mut(&frame).set_out(Out::From(from));
        if let Err(reason) = self.ingress.enqueue(pool, now, Plane::Local, to, frame) {
            self.count_drop(to, reason);
        }
    }

    /// From the uplink, for `to`: queued, or policed.
    fn arrive(&mut self, pool: &mut Pool, now: Instant, to: EndpointId, frame: Frame) {
        if self.arrivals.is_watched() && !self.is_talk(pool, now, to, &frame) {
            self.arrivals.arrive(to, source(pool.bytes(&frame)), pool.meta(&frame).wire_bytes);
        }
        let Some(policer) = &mut self.policer else {
            if let Err(reason) = self.ingress.enqueue(pool, now, Plane::Wire, to, frame) {
                self.count_drop(to, reason);
            }
            return self.note_losses(to);
        };
        let segments = segments(pool, &frame);
        let passed = policer.take(now, to, segments);
        if passed < segments {
            let (cut, before) = (segments - passed, pool.meta(&frame).wire_bytes);
            self.tallies[to.0 as usize].drops.add(Reason::Policed, u64::from(cut));
            let trimmed = passed > 0 && segment::trim(pool, &frame, cut) == cut;
            if self.arrivals.is_watched() {
                let left = if trimmed { pool.meta(&frame).wire_bytes } else { 0 };
                self.arrivals.lose(to, source(pool.bytes(&frame)), before - left);
            }
            if !trimmed {
                return pool.free(frame);
            }
        }
        let (of_endpoint, of_tenant) = policer.passed_mut(to);
        count_traffic(pool, &frame, of_endpoint);
        count_traffic(pool, &frame, of_tenant);
        self.deliver(pool, now, to, frame);
    }

    /// Whether a frame from the uplink is what this host's agents hear, as far as that goes before
    /// others.
    fn is_talk(&self, pool: &Pool, now: Instant, to: EndpointId, frame: &Frame) -> bool {
        let ahead = self.ingress.tree(Plane::Wire).ahead(to);
        ahead.is_some_and(|ahead| ahead.would_take(pool, now, frame))
    }

    /// A neighbour's frame has passed the queues: it is as its receiver's guest is to see it, or
    /// waits.
    #[inline]
    fn show(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        (from, to): (EndpointId, EndpointId),
        frame: Frame,
    ) -> Option<Frame> {
        if !self.vcc.concerns(to) {
            return Some(frame);
        }
        if self.vcc.receive_usual(pool, now, to, &frame) {
            return Some(frame);
        }
        if self.vcc.may_hold() {
            pool.meta_mut(&frame).set_out(Out::From(from));
            return self.vcc.receive_or_hold(pool, now, to, frame);
        }
        self.vcc.receive(pool, now, to, &frame);
        Some(frame)
    }

    fn deliver_local(&mut self, pool: &mut Pool, from: EndpointId, to: EndpointId, frame: Frame) {
        self.deliver_now(pool, (from, None), to, frame);
    }

    /// The same, for where it is most often called.
    #[inline(always)]
    fn deliver_now(
        &mut self,
        pool: &mut Pool,
        (from, port): (EndpointId, Option<PortId>),
        to: EndpointId,
        frame: Frame,
    ) {
        count_traffic(pool, &frame, &mut self.tallies[to.0 as usize].local.ingress);
        match self.program.endpoints.get(to.0) {
            Some(endpoint) => {
                let payer = port.unwrap_or_else(|| self.port_of(from, endpoint.port));
                self.emit_now(pool, endpoint.port, to, payer, frame);
            }
            None => pool.free(frame),
        }
    }

    /// To an endpoint's port; the uplink's tag comes off, and a tunnel's headers, which are gone
    /// already, count no more. A trunk's own tags stay.
    fn deliver(&mut self, pool: &mut Pool, now: Instant, to: EndpointId, frame: Frame) {
        let Some(endpoint) = self.program.endpoints.get(to.0) else { return pool.free(frame) };
        let (port, is_director) = (endpoint.port, endpoint.is_director);
        if pool.meta(&frame).layout.vlan.is_some() && self.is_untagged(to, endpoint.trunk) {
            encap::vlan::pop(pool, &frame);
        }
        if pool.meta(&frame).outer != 0 {
            pool.meta_mut(&frame).outer = 0;
            count_wire_bytes(pool, &frame);
        }
        if is_director {
            if let Err(reason) = self.go_out(pool, now, to, frame) {
                self.count_drop(to, reason);
            }
            return;
        }
        if !self.vcc.concerns(to) || self.vcc.receive_usual(pool, now, to, &frame) {
            return self.hand_to(pool, to, port, frame);
        }
        if let Some(frame) = self.vcc.receive_or_hold(pool, now, to, frame) {
            self.hand_to(pool, to, port, frame);
        }
    }

    /// To an endpoint's port, as the endpoint is to see it.
    fn hand_to(&mut self, pool: &mut Pool, to: EndpointId, port: PortId, frame: Frame) {
        // The receiver's tenant did not ask for it: charged to that, a flood from outside would
        // take the time of all tenants' turns.
        let member = pool.meta(&frame).member();
        let payer = self.program.uplink.as_ref().map_or(port, |uplink| uplink.port_of(member));
        self.emit(pool, port, to, payer, frame);
    }

    /// The port of the endpoint that a frame is charged to; where that is gone meanwhile, `other`.
    #[inline]
    fn port_of(&self, payer: EndpointId, other: PortId) -> PortId {
        self.program.endpoints.get(payer.0).map_or(other, |endpoint| endpoint.port)
    }

    /// To a port, in the form that the port takes. Drops are counted for `endpoint`, and what it
    /// costs is charged to who is at `payer`.
    fn emit(&mut self, pool: &mut Pool, port: PortId, endpoint: EndpointId, payer: PortId, frame: Frame) {
        self.emit_now(pool, port, endpoint, payer, frame);
    }

    /// The same, for where it is most often called.
    #[inline(always)]
    fn emit_now(&mut self, pool: &mut Pool, port: PortId, endpoint: EndpointId, payer: PortId, frame: Frame) {
        let len = pool.len(&frame);
        let meta = pool.meta_mut(&frame);
        meta.set_out(Out::Payer(payer));
        let is_whole = meta.offload.is_done();
        match self.program.ports.get(port.0) {
            Some(features) if is_whole && len <= features.max_frame as usize && self.out.len() < OUT => {
                self.out.push_back((port, frame));
            }
            _ => self.fit(pool, port, endpoint, frame),
        }
    }

    /// To a port, in the form that the port takes.
    #[inline(never)]
    fn fit(&mut self, pool: &mut Pool, port: PortId, endpoint: EndpointId, frame: Frame) {
        let Some(&features) = self.program.ports.get(port.0) else { return pool.free(frame) };
        if self.out.len() >= OUT {
            pool.free(frame);
            self.count_drop(endpoint, Reason::NoBuffer);
            return;
        }
        if longest_segment(pool, &frame) > features.max_frame {
            pool.free(frame);
            self.count_drop(endpoint, Reason::TooLong);
            return;
        }
        let meta = pool.meta(&frame);
        if meta.in_tunnel() && matches!(meta.offload.gso, Gso::Tcp4 | Gso::Tcp6) {
            // Whole in its tunnel: what the device cuts outside of one is its own affair. It can be
            // that it no longer does, since the frame was made.
            if features.offload.tunnel {
                self.out.push_back((port, frame));
            } else {
                pool.free(frame);
                self.count_drop(endpoint, Reason::BadOffload);
            }
            return;
        }
        if features.offload.takes(&meta.offload) {
            self.out.push_back((port, frame));
            return;
        }
        let out = &mut self.out;
        let max = features.max_frame as usize;
        let done = segment::software(pool, frame, features.offload, max, &mut |_, part| out.push_back((port, part)));
        if let Err(reason) = done {
            self.count_drop(endpoint, reason);
        }
    }

    fn scheduler(&mut self, direction: Direction) -> &mut Scheduler {
        match direction {
            Direction::Egress => &mut self.egress,
            Direction::Ingress => &mut self.ingress,
        }
    }

    #[inline]
    fn role(&self, port: PortId) -> Role {
        self.roles.get(port.0 as usize).copied().unwrap_or(Role::Nothing)
    }

    fn count_drop(&mut self, endpoint: EndpointId, reason: Reason) {
        self.tallies[endpoint.0 as usize].drops.add(reason, 1);
    }
}

#[cfg(test)]
mod tests;
