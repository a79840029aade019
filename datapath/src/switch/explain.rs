//! What the switch would do with a frame, stage by stage, without doing it.
//!
//! Every decision is asked of the same function that decides for real frames, or of its twin that
//! changes nothing (`would_learn`, `would_take`). The fuzz targets `switch`, `bond` and `service`
//! explain each frame before it is received, and compare.

use super::parse::longest_of;
use super::route::{Away, Flood, Inside, Route, Seen};
use super::source::{Refused, learned_by, unlearned};
use super::tunnel::tenant_of;
use super::{OUT, Role, Switch, destination, source};
use crate::bond::Way;
use crate::bond::number::Number;
use crate::bond::order::OrderDecision;
use crate::encap::vxlan;
use crate::flood::Whose;
use crate::forward::Target;
use crate::frame::{Class, Frame, HEADROOM, Owner, Pool, PoolLimits};
use crate::frame_trace::{Emit, Found, FrameTrace, Headers, Queue, Step, Transport};
use crate::guard::{self, Finding};
use crate::network::Network;
use crate::offload::Offload;
use crate::overlay::Vtep;
use crate::program::{EndpointId, MemberId, PortId};
use crate::sched::Scheduler;
use crate::sched::lane::{Admission, Offer};
use crate::sched::limits::Plane;
use crate::segment;
use crate::service::translate;
use crate::units::{Direction, Instant};
use crate::verdict::{Reason, Verdict};
use crate::wire::{self, Arp, Icmp, Ipv4, Ipv6, L3, L4, Layout, Tcp, Udp, vlan};
use arrived::Arrived;

mod arrived;
mod service;
mod tunnel;
mod vcc;

/// A frame on its trace: what the stages look at.
struct Traveller<'a> {
    bytes: &'a [u8],
    layout: Layout,
    offload: Offload,
    wire_bytes: u32,
    /// Its buffer, and room before it.
    class: Class,
    headroom: usize,
    memory: Memory<'a>,
    /// The buffer of a copy.
    copy_class: Option<Class>,
}

/// The frame memory as a frame finds it.
#[derive(Clone, Copy)]
struct Memory<'a> {
    pool: &'a Pool,
    /// The buffer of a copy that was made before, and whether it waits.
    copy: Option<(Class, Option<Waits>)>,
}

/// A copy that waits: whose its queue is, and the buffers of frames that went for it.
#[derive(Clone, Copy)]
struct Waits {
    owner: Owner,
    displaced: PoolLimits,
}

/// What becomes of a frame toward the uplink.
struct Enqueued {
    /// Whether it can be told what comes behind the sender's lane.
    is_told: bool,
    /// The buffers of frames that go for it, where it waits first.
    displaced: PoolLimits,
}

impl<'a> Memory<'a> {
    fn new(pool: &'a Pool) -> Memory<'a> {
        Memory { pool, copy: None }
    }

    /// What it is when a copy was made.
    fn with_copy(self, class: Class) -> Memory<'a> {
        Memory { copy: Some((class, None)), ..self }
    }

    /// What it is when a copy waits.
    fn with_waiting(self, class: Class, waits: Waits) -> Memory<'a> {
        Memory { copy: Some((class, Some(waits))), ..self }
    }

    /// As [`Pool::may_wait`].
    fn may_wait(&self, owner: Owner, class: Class, held: u64) -> bool {
        let free = self.pool.available().of(class);
        let standing = |free| self.pool.standing(owner, class, free);
        let Some((copy, waits)) = self.copy else { return standing(free).takes(held) };
        let made = u32::from(copy == class);
        let displaced = waits.map_or(0, |waits| waits.displaced.of(class));
        match waits {
            Some(waits) if waits.owner == owner => {
                let fewer = standing(free).with_fewer(displaced);
                if made > 0 { fewer.with_one_more().takes(held) } else { fewer.takes(held) }
            }
            _ => standing((free + displaced).saturating_sub(made)).takes(held),
        }
    }
}

impl Traveller<'_> {
    fn segments(&self) -> u32 {
        segment::segments(&self.layout, &self.offload)
    }

    /// What a lane looks at.
    fn offer(&self) -> Offer<'_> {
        let Traveller { wire_bytes, class, .. } = *self;
        Offer { layout: &self.layout, offload: &self.offload, wire_bytes, class }
    }

    /// As [`Pool::may_wait`], for this frame.
    fn may_wait(&self) -> impl Fn(Owner, u64) -> bool {
        |owner, held| self.memory.may_wait(owner, self.class, held)
    }

    /// What says where it goes.
    fn seen(&self) -> Seen<'_> {
        Seen { bytes: self.bytes, layout: &self.layout, offload: &self.offload }
    }

    /// Bytes of the longest frame that this one will be on the wire, without a VLAN tag.
    fn longest_segment(&self) -> u32 {
        longest_of(self.bytes.len(), &self.layout, &self.offload)
    }

    /// Wire bytes with one more tag.
    fn tagged_wire_bytes(&self) -> u32 {
        let mut layout = self.layout;
        layout.shift(vlan::TAG as i16);
        segment::wire_bytes(self.bytes.len() + vlan::TAG, &layout, &self.offload)
    }
}

impl Switch {
    /// What `rx` would do with `frame` if it arrived at `port` now, and what would become of it
    /// then. Nothing is changed, and the frame stays.
    #[must_use]
    pub fn explain(&self, pool: &Pool, now: Instant, port: PortId, frame: &Frame) -> FrameTrace {
        let role = self.role(port);
        let mut steps = Vec::with_capacity(8);
        let from = match role {
            Role::Endpoint(endpoint) => Some(endpoint),
            Role::Uplink(_) => None,
            Role::Nothing => {
                let refused = Step::Refuse(Reason::Unknown);
                return FrameTrace { steps: vec![refused], verdict: Verdict::Dropped(Reason::Unknown) };
            }
        };
        steps.push(Step::Arrive(port, from));
        let (mut arrived, mut number, mut bytes) = (Arrived::of(pool, frame), None, Vec::new());
        if let Role::Uplink(member) = role
            && let Some(numbered) = self.explain_number(member, arrived.bytes)
        {
            steps.push(Step::Number(numbered));
            number = match numbered {
                Ok(number) => Some(number),
                Err(reason) => return FrameTrace { steps, verdict: Verdict::Dropped(reason) },
            };
            arrived = arrived.without_number(&mut bytes);
        }
        let before = steps.len();
        let is_for = |local: Vtep| vxlan::is_for(arrived.bytes, local.address, local.mac);
        let result = match role {
            Role::Uplink(member) if self.tunnels.local().is_some_and(is_for) => {
                self.explain_tunnelled(now, (member, number), &arrived, &mut steps)
            }
            _ => arrived.see().and_then(|seen| {
                steps.push(Step::Look(Ok(headers(&seen))));
                match role {
                    Role::Endpoint(from) => self.explain_endpoint(now, from, &seen, &mut steps),
                    Role::Uplink(member) => self.explain_uplink(now, (member, number), &seen, &mut steps),
                    Role::Nothing => Err(Reason::Unknown),
                }
            }),
        };
        if let Err(reason) = result
            && steps.len() == before
        {
            steps.push(Step::Look(Err(reason)));
        }
        // Where others wait, it goes on behind `rx`, which says no more of it.
        let goes_on = |step: &Step| {
            matches!(step, Step::Turn(Ok(OrderDecision::First | OrderDecision::Later | OrderDecision::Late)))
        };
        let verdict = match result {
            Err(reason) if !steps.iter().any(goes_on) => Verdict::Dropped(reason),
            _ => Verdict::Forwarded,
        };
        FrameTrace { steps, verdict }
    }

    /// When a frame goes on that had a number.
    fn explain_turn(&self, (member, number): (MemberId, Option<Number>), steps: &mut Vec<Step>) -> Result<(), Reason> {
        let (Some(bond), Some(number)) = (&self.bond, number) else { return Ok(()) };
        let turn = bond.turn_of(member, number);
        steps.push(Step::Turn(turn));
        turn.map(drop)
    }

    fn explain_endpoint(
        &self,
        now: Instant,
        from: EndpointId,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Reason> {
        self.explain_source(now, from, seen, steps)?;
        let (mut sent, mut bytes) = (Vec::new(), Vec::new());
        let seen = &self.explain_vcc(now, from, seen, &mut sent, steps)?;
        let network = self.forward.network(from);
        let served = self.explain_service(now, network, Some(from), seen, &mut bytes, steps)?;
        let seen = &served.seen(seen, &bytes);
        if served.is_answered {
            return Ok(());
        }
        if let Some(director) = served.director {
            if !self.is_director(network, director) {
                return refuse(steps, Reason::Unreachable);
            }
            return self.explain_out(now, director, seen, steps);
        }
        self.explain_sent(now, from, served.may_return, seen, steps)
    }

    /// From an endpoint, behind the services' stage.
    fn explain_sent(
        &self,
        now: Instant,
        from: EndpointId,
        may_return: bool,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Reason> {
        let network = self.forward.network(from);
        let (vlan, mac) = (seen.layout.vlan.unwrap_or(0), destination(seen.bytes));
        let mut target = self.target(now, from, seen.seen());
        let learns = self.program.endpoints.get(from.0).is_some_and(|e| e.identity.macs.is_empty());
        if learns && mac == source(seen.bytes) {
            // It has just been learned, here.
            target = Target::Endpoint(from);
        }
        steps.push(Step::Forward(mac, self.found(now, network, vlan, mac, target, Some(from))));
        let route = match target {
            Target::Endpoint(to) if to == from && may_return => Route::Neighbour(to),
            target => self.route(now, from, target, seen.seen()),
        };
        self.explain_route(now, from, route, seen, steps)
    }

    fn explain_route(
        &self,
        now: Instant,
        from: EndpointId,
        route: Route,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Reason> {
        match route {
            Route::Drop(reason) => refuse(steps, reason),
            Route::Spent(whose) => {
                steps.push(Step::Spent(whose));
                Err(Reason::FloodLimit)
            }
            Route::Narrow(_) => refuse(steps, Reason::PathMtu),
            Route::Neighbour(to) => {
                self.explain_local(now, from, seen, steps)?;
                self.explain_arrival(now, to, Plane::Local, seen, steps);
                Ok(())
            }
            Route::Wire { alone } => {
                steps.extend(alone.map(Step::OnlyOutside));
                self.explain_wire(now, from, seen, steps).map(|_| ())
            }
            Route::Host(peer) => self.explain_tunnel(now, from, peer, seen, steps),
            Route::Flood(flood) => {
                steps.push(Step::Flood(flood.left, Whose::Sender));
                match flood.away {
                    Away::Nothing | Away::Wire => self.explain_flood(now, from, &flood, seen, steps),
                    Away::Hosts(_) | Away::Narrow(..) => self.explain_flood_away(now, from, &flood, seen, steps),
                }
            }
        }
    }

    fn explain_flood(
        &self,
        now: Instant,
        from: EndpointId,
        flood: &Flood,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Reason> {
        let mut memory = seen.memory;
        if flood.away == Away::Wire {
            match seen.copy_class {
                None => steps.push(Step::Refuse(Reason::NoBuffer)),
                Some(class) => {
                    let with_copy = memory.with_copy(class);
                    let copy = Traveller { class, headroom: HEADROOM, memory: with_copy, ..*seen };
                    if let Ok(displaced) = self.explain_wire(now, from, &copy, steps) {
                        let owner = self.egress.tree(Plane::Wire).lane(from).owner();
                        memory = memory.with_waiting(class, Waits { owner, displaced });
                    }
                }
            }
        }
        if flood.others > 0 {
            self.explain_local(now, from, &Traveller { memory, ..*seen }, steps)?;
            steps.push(Step::Copies(flood.others));
        }
        Ok(())
    }

    fn explain_uplink(
        &self,
        now: Instant,
        (member, number): (MemberId, Option<Number>),
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Reason> {
        let transit = guard::check_transit(seen.bytes);
        let bond = self.bond.as_ref();
        if transit == Err(Reason::Reserved) && bond.is_some_and(|bond| bond.is_addressed(seen.bytes)) {
            steps.push(Step::Control(Ok(())));
            return Ok(());
        }
        if transit == Err(Reason::Reserved) && self.control.is_heard() {
            let taken = if self.control.has_room() { Ok(()) } else { Err(Reason::ControlFull) };
            steps.push(Step::Control(taken));
            return taken;
        }
        let received = transit.and_then(|()| bond.map_or(Ok(()), |bond| bond.may_receive(member)));
        if received.is_ok() {
            self.explain_turn((member, number), steps)?;
        }
        let network = received.and_then(|()| {
            let network = self.forward.network_of_vlan(seen.layout.vlan).ok_or(Reason::BadVlan)?;
            self.check_outside(now, network, seen.bytes, &seen.layout).map(|()| network)
        });
        steps.push(Step::Enter(network.map(|_| seen.layout.vlan.filter(|&vlan| vlan != 0))));
        self.explain_inside(now, network?, seen, steps)
    }

    /// From outside, for a network.
    fn explain_inside(
        &self,
        now: Instant,
        network: Network,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Reason> {
        let mut bytes = Vec::new();
        let served = self.explain_service(now, network, None, seen, &mut bytes, steps)?;
        let seen = &served.seen(seen, &bytes);
        if served.is_answered {
            return Ok(());
        }
        if let Some(sender) = served.sender {
            return self.explain_sent(now, sender, served.may_return, seen, steps);
        }
        match served.director {
            Some(director) if self.is_director(network, director) => {
                self.explain_arrival(now, director, Plane::Wire, seen, steps);
                return Ok(());
            }
            Some(_) => return refuse(steps, Reason::Unreachable),
            None => {}
        }
        let mac = destination(seen.bytes);
        let vlan = self.vlan_inside(network, seen.seen());
        let target = self.forward.target_inside(&self.fdb, now, network, vlan, mac);
        steps.push(Step::Forward(mac, self.found(now, network, vlan, mac, target, None)));
        match self.route_inside(now, network, target, seen.seen()) {
            Inside::Drop(Reason::FloodLimit) => {
                steps.push(Step::Spent(Whose::Network));
                return Err(Reason::FloodLimit);
            }
            Inside::Drop(reason) => return refuse(steps, reason),
            Inside::Endpoint(to) => self.explain_arrival(now, to, Plane::Wire, seen, steps),
            Inside::Copies { receivers, left, .. } => {
                steps.push(Step::Flood(left, Whose::Network));
                steps.push(Step::Copies(receivers));
            }
        }
        Ok(())
    }

    /// Guard and learning.
    fn explain_source(
        &self,
        now: Instant,
        from: EndpointId,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Reason> {
        let endpoint = self.program.endpoints.get(from.0).ok_or(Reason::Unknown)?;
        let judged = self.judge_source(now, from, endpoint, seen.bytes, &seen.layout);
        let guarded = match &judged {
            Err(Refused { reason, claim: None }) => Err(*reason),
            _ => Ok(()),
        };
        let finding = Finding::of(seen.bytes, &seen.layout, &endpoint.identity, endpoint.trunk, guarded);
        steps.push(Step::Guard(Box::new(finding)));
        let judged = judged.map_err(|Refused { reason, claim }| {
            steps.extend(claim.map(|(claim, owner)| Step::Claim(claim.address, reason, owner)));
            reason
        })?;
        if !judged.learns {
            return Ok(());
        }
        let network = self.forward.network(from);
        let (mac, vlan) = (source(seen.bytes), seen.layout.vlan.unwrap_or(0));
        let learning = self.fdb.would_learn(now, network, vlan, mac, from);
        let learned = unlearned(learning);
        steps.push(Step::Learn(mac, learned, learned_by(learning, self.fdb.declared(network, mac))));
        learned
    }

    fn found(
        &self,
        now: Instant,
        network: Network,
        vlan: u16,
        mac: wire::Mac,
        target: Target,
        from: Option<EndpointId>,
    ) -> Found {
        let receivers = |everyone| {
            let members = self.forward.members(network, everyone);
            members.iter().filter(|&&endpoint| Some(endpoint) != from).count() as u32
        };
        let uplink = from.is_some() && self.forward.outside(network).is_some();
        match target {
            Target::Endpoint(to) if self.fdb.declared(network, mac) == Some(to) => Found::Declared(to),
            Target::Endpoint(to) => Found::Learned(to, self.fdb.seen_ns(now, network, vlan, mac).unwrap_or(0)),
            Target::Uplink => Found::Uplink,
            Target::Tunnels => {
                let peer = self.tunnels.find(tenant_of(network), mac);
                match peer.and_then(|peer| self.tunnels.address(peer)) {
                    Some(host) => Found::Host(host),
                    None => Found::Unknown { receivers: receivers(false), uplink },
                }
            }
            Target::Group => Found::Group { receivers: receivers(true), uplink },
            Target::Unknown => Found::Unknown { receivers: receivers(false), uplink },
            Target::Nowhere => Found::Nowhere,
        }
    }

    /// To the uplink: the sender's lane, then the port. Says which buffers it frees where it waits.
    fn explain_wire(
        &self,
        now: Instant,
        from: EndpointId,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<PoolLimits, Reason> {
        let tag = self.tag_of(from);
        if tag.is_some() && seen.headroom < vlan::TAG {
            return refuse(steps, Reason::NoBuffer);
        }
        let wire_bytes = if tag.is_some() { seen.tagged_wire_bytes() } else { seen.wire_bytes };
        let Enqueued { is_told, displaced } =
            self.explain_enqueue(now, from, &Traveller { wire_bytes, ..*seen }, steps)?;
        if is_told && self.program.uplink.is_some() {
            let mut bytes = seen.bytes.to_vec();
            if let Some(tag) = tag {
                bytes.splice(vlan::TAG_AT..vlan::TAG_AT, [[0x81, 0], tag.to_be_bytes()].concat());
            }
            if let Some(port) = self.explain_member(now, &bytes, wire_bytes, steps) {
                self.explain_emit(port, seen, tag, None, steps);
            }
        }
        Ok(displaced)
    }

    /// Of a bond, the member that would send these bytes: the port of an uplink that a frame leaves
    /// by, if it does.
    fn explain_member(&self, now: Instant, bytes: &[u8], wire_bytes: u32, steps: &mut Vec<Step>) -> Option<PortId> {
        let uplink = self.program.uplink.as_ref()?;
        let Some(bond) = &self.bond else { return Some(uplink.port()) };
        let layout = wire::parse(bytes).ok()?;
        let way = bond.explain_send(now, bytes, &layout, wire_bytes);
        steps.push(Step::Member(way));
        match way.ok()? {
            Way::Over(member) | Way::Numbered(member, _) => Some(uplink.port_of(member)),
            Way::Copies(..) => None,
        }
    }

    /// The limits toward its destination, then the sender's lane.
    fn explain_enqueue(
        &self,
        now: Instant,
        from: EndpointId,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<Enqueued, Reason> {
        let before = self.explain_pairs(now, from, seen, steps)?;
        let queue = self.queue(&self.egress, Direction::Egress, Plane::Wire, from, now, seen);
        steps.push(Step::Queue(queue));
        match (queue.admission, before) {
            // It comes here later; then it may be otherwise.
            (Admission::Refused(_), Some(displaced)) => Ok(Enqueued { is_told: false, displaced }),
            (Admission::Refused(reason), None) => Err(reason),
            (_, before) => Ok(Enqueued { is_told: true, displaced: before.unwrap_or(queue.displaced) }),
        }
    }

    /// The limits toward its destination; says which buffers the first of them frees, if there is
    /// one.
    fn explain_pairs(
        &self,
        now: Instant,
        from: EndpointId,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<Option<PoolLimits>, Reason> {
        let frame = (seen.offer(), seen.bytes);
        let mut met = self.pairs.on_the_way(seen.memory.pool, now, from, seen.may_wait(), frame);
        let Some(first) = met.next() else { return Ok(None) };
        steps.push(Step::Pair(from, first));
        if let Admission::Refused(reason) = first.admission {
            return Err(reason);
        }
        steps.extend(met.map(|next| Step::Pair(from, next)));
        Ok(Some(first.displaced))
    }

    /// To neighbours: the sender's lane, where it has a limit.
    fn explain_local(
        &self,
        now: Instant,
        from: EndpointId,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Reason> {
        if !self.egress.is_limited(from) {
            return Ok(());
        }
        let queue = self.queue(&self.egress, Direction::Egress, Plane::Local, from, now, seen);
        steps.push(Step::Queue(queue));
        match queue.admission {
            Admission::Refused(reason) => Err(reason),
            _ => Ok(()),
        }
    }

    /// At the receiver: its lane or the policer, then its port. What is lost here is not `rx`'s
    /// verdict: the sender was right to send.
    fn explain_arrival(&self, now: Instant, to: EndpointId, plane: Plane, seen: &Traveller<'_>, steps: &mut Vec<Step>) {
        match &self.policer {
            Some(policer) if plane == Plane::Wire => {
                let segments = seen.segments();
                let passed = policer.would_take(now, to, segments);
                steps.push(Step::Police(to, passed, segments));
                if passed == 0 {
                    return;
                }
            }
            _ if plane == Plane::Local && !self.ingress.is_limited(to) => {}
            _ => {
                let queue = self.queue(&self.ingress, Direction::Ingress, plane, to, now, seen);
                steps.push(Step::Queue(queue));
                if matches!(queue.admission, Admission::Refused(_)) {
                    return;
                }
            }
        }
        let Some(endpoint) = self.program.endpoints.get(to.0) else { return };
        if endpoint.is_director {
            // What it comes to there it is told as it is now.
            let _ = self.explain_out(now, to, seen, steps);
            return;
        }
        let seen = &self.explain_vcc_in(now, to, seen, steps);
        let untag = seen.layout.vlan.filter(|_| plane == Plane::Wire && self.is_untagged(to, endpoint.trunk));
        self.explain_emit(endpoint.port, seen, None, untag, steps);
    }

    /// Out again, as a frame of a director.
    fn explain_out(
        &self,
        now: Instant,
        director: EndpointId,
        seen: &Traveller<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Reason> {
        let (mut bytes, mut offload) = (seen.bytes.to_vec(), seen.offload);
        if seen.layout.vlan.is_some() {
            bytes.drain(vlan::TAG_AT..vlan::TAG_AT + vlan::TAG);
            offload.csum_start = offload.csum_start.saturating_sub(vlan::TAG as u16);
        }
        let layout = wire::parse(&bytes)?;
        if !translate::hop(&mut bytes, &layout) {
            return refuse(steps, Reason::Loop);
        }
        self.services.set_own_mac(self.forward.network(director), &mut bytes, &layout);
        let wire_bytes = segment::wire_bytes(bytes.len(), &layout, &offload);
        let seen = &Traveller { bytes: &bytes, layout, offload, wire_bytes, ..*seen };
        steps.push(Step::Turned(director));
        let (network, mac) = (self.forward.network(director), destination(seen.bytes));
        let target = self.target(now, director, seen.seen());
        steps.push(Step::Forward(mac, self.found(now, network, 0, mac, target, Some(director))));
        match self.route_out(now, director, seen.seen()) {
            Route::Neighbour(to) => {
                self.explain_arrival(now, to, Plane::Wire, seen, steps);
                Ok(())
            }
            route => self.explain_route(now, director, route, seen, steps),
        }
    }

    fn explain_emit(
        &self,
        port: PortId,
        seen: &Traveller<'_>,
        tag: Option<u16>,
        untag: Option<u16>,
        steps: &mut Vec<Step>,
    ) {
        let Some(&features) = self.program.ports.get(port.0) else { return };
        // A tag put on does not count either: it is the switch's own. One that stays counts as
        // taken off here.
        let longest = match tag {
            Some(_) if seen.layout.vlan.is_some() => seen.longest_segment() + vlan::TAG as u32,
            _ => seen.longest_segment(),
        };
        let refused = if self.out.len() >= OUT {
            Some(Reason::NoBuffer)
        } else if longest > features.max_frame {
            Some(Reason::TooLong)
        } else {
            None
        };
        let whole = features.offload.takes(&seen.offload);
        let checksum = !whole && seen.offload.needs_csum && !features.offload.csum;
        let cut = if whole { 1 } else { seen.segments() };
        steps.push(Step::Emit(Emit { port, tag, untag, tunnel: None, cut, checksum, refused }));
    }

    fn queue(
        &self,
        scheduler: &Scheduler,
        direction: Direction,
        plane: Plane,
        endpoint: EndpointId,
        now: Instant,
        seen: &Traveller<'_>,
    ) -> Queue {
        let tree = scheduler.tree(plane);
        let lane = tree.lane(endpoint);
        let stats = lane.stats();
        let owner = self.program.endpoints.get(endpoint.0);
        let may_wait = seen.may_wait();
        let (admission, room) = tree.decide(seen.memory.pool, endpoint, &seen.offer(), seen.bytes, &may_wait);
        Queue {
            endpoint,
            direction,
            plane,
            frames: stats.backlog_frames,
            bytes: stats.backlog_bytes,
            bound: lane.bound(),
            share: owner.map(|e| *e.share.get(direction)).unwrap_or_default(),
            wait_ns: owner.map_or(0, |e| scheduler.wait_ns(endpoint, e.tenant, now)),
            admission,
            displaced: room.frees(),
        }
    }
}

fn refuse<T>(steps: &mut Vec<Step>, reason: Reason) -> Result<T, Reason> {
    steps.push(Step::Refuse(reason));
    Err(reason)
}

fn headers(seen: &Traveller<'_>) -> Headers {
    let Traveller { bytes, layout, offload, wire_bytes, .. } = seen;
    let v4 = || Ipv4::of(bytes, layout).map(|ip| (ip.source().into(), ip.destination().into()));
    let v6 = || Ipv6::of(bytes, layout).map(|ip| (ip.source().into(), ip.destination().into()));
    let arp = || Arp::of(bytes, layout).map(|arp| (arp.sender_ip().into(), arp.target_ip().into()));
    let transport = match layout.l4 {
        L4::Tcp => Tcp::of(bytes, layout).map(|tcp| Transport::Tcp(tcp.source(), tcp.destination())),
        L4::Udp => Udp::of(bytes, layout).map(|udp| Transport::Udp(udp.source(), udp.destination())),
        L4::Icmp | L4::Icmpv6 => Icmp::of(bytes, layout).map(|icmp| Transport::Icmp(icmp.kind(), icmp.code())),
        L4::Other => (layout.l3 == L3::Arp).then_some(Transport::Arp),
    };
    Headers {
        len: bytes.len(),
        source: source(bytes),
        destination: destination(bytes),
        vlan: layout.vlan,
        ethertype: layout.ethertype,
        addresses: match layout.l3 {
            L3::Ipv4 => v4(),
            L3::Ipv6 => v6(),
            L3::Arp => arp(),
            L3::Other => None,
        },
        transport: transport.unwrap_or(Transport::Other),
        fragment: layout.fragment,
        gso: offload.gso,
        segments: seen.segments(),
        wire_bytes: *wire_bytes,
        needs_csum: offload.needs_csum,
    }
}
