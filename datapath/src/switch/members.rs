//! The members of an uplink with several ports: frames leave by the one that the bond chooses, and
//! arrive from those that are received from. Also their common rate.
//!
//! While a frame waits at its member, `Meta::out` has the endpoint that sent it; in frames of the
//! switch itself it is `Out::Payer`.

use super::parse::{drop_for, parse};
use super::{Role, Switch};
use crate::bond::hello::{HelloFrame, HelloKey};
use crate::bond::lacp::LacpView;
use crate::bond::number::Number;
use crate::bond::{Bond, MemberCounts, MemberState, Negotiated, PeerView, Plain};
use crate::frame::{Frame, Out, Pool};
use crate::program::{Attachment, Endpoint, EndpointId, Member, MemberId, PortFeatures, PortId, Uplink};
use crate::units::{Both, Instant, Rate};
use crate::verdict::Reason;
use crate::wire::vlan::TAG;

/// What is known of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberView {
    /// Its port.
    pub port: PortId,
    /// Its configured rate.
    pub configured: Rate,
    /// What it carries: that, or its link's speed if that is less.
    pub rate: Rate,
    /// What it may be used for.
    pub state: MemberState,
    /// Since when it has that state.
    pub since: Instant,
    /// What its link has negotiated.
    pub negotiated: Negotiated,
    /// Whether it is the active one.
    pub is_active: bool,
    /// What it has carried.
    pub counts: MemberCounts,
}

impl Switch {
    /// The uplink's members, if it is a bond, in configured order.
    pub fn members(&self) -> impl Iterator<Item = MemberView> + '_ {
        let members = self.program.uplink.iter().flat_map(|uplink| (0..).map(MemberId).zip(&uplink.members));
        members.filter_map(|(id, &Member { port, rate })| {
            let bond = self.bond.as_ref()?;
            let (state, counts, is_active) = (bond.state(id), bond.counts(id), bond.active() == Some(id));
            let (rate, configured, negotiated) = (bond.carries(id), rate.egress, bond.negotiated(id));
            let since = bond.since(id);
            Some(MemberView { port, configured, rate, state, since, negotiated, is_active, counts })
        })
    }

    /// What is known of the bond at the other end; `None` without hellos.
    #[must_use]
    pub fn bond_peer(&self) -> Option<PeerView> {
        self.bond.as_ref()?.peer()
    }

    /// Why frames have no numbers, as [`Bond::plain`].
    #[must_use]
    pub fn bond_plain(&self) -> Option<Option<Plain>> {
        self.bond.as_ref()?.plain()
    }

    /// Members over which no frames are sent, as [`Bond::left_out`].
    #[must_use]
    pub fn left_out_members(&self) -> u16 {
        self.bond.as_ref().map_or(0, |bond| bond.left_out())
    }

    /// Members that lead back to this system, a bit each.
    #[must_use]
    pub fn looped_members(&self) -> u16 {
        self.bond.as_ref().map_or(0, |bond| bond.looped())
    }

    /// Members whose actor, and members whose partner, churns, as [`Bond::churned`].
    #[must_use]
    pub fn churned_members(&self) -> [u16; 2] {
        self.bond.as_ref().map_or([0; 2], |bond| bond.churned())
    }

    /// What LACP knows of each member; none in other modes.
    pub fn lacp(&self) -> impl Iterator<Item = LacpView> + '_ {
        self.bond.iter().flat_map(|bond| bond.lacp())
    }

    /// What the uplink carries now: of a bond, what its members carry, and at most its configured
    /// rate. Zero while no member may send.
    #[must_use]
    pub fn carried_rate(&self) -> Option<Both<Rate>> {
        let whole = self.program.uplink.as_ref()?.rate();
        let now = self.bond.as_ref().map_or(Rate::UNLIMITED, |bond| bond.rate());
        Some(Both { egress: whole.egress.min(now), ingress: whole.ingress.min(now) })
    }

    /// The same for the queues, but as configured while no member may send. So frames leave the
    /// queues and are dropped with their reason.
    #[must_use]
    pub fn uplink_rate(&self) -> Option<Both<Rate>> {
        self.carried_rate().filter(|rate| rate.egress.0 > 0).or_else(|| Some(self.program.uplink.as_ref()?.rate()))
    }

    /// For a port of a bond, the first member's port that frames are received from, if there is
    /// one. For other ports, `port`.
    #[must_use]
    pub fn receiving_port(&self, port: PortId) -> PortId {
        let (Role::Uplink(_), Some(bond), Some(uplink)) = (self.role(port), &self.bond, &self.program.uplink) else {
            return port;
        };
        let mut members = (0..).map(MemberId).zip(&uplink.members);
        members.find(|&(id, _)| bond.may_receive(id).is_ok()).map_or(port, |(_, member)| member.port)
    }

    /// Sets a member's state. What waits for it is sent by the others if it may not send any more.
    pub fn set_member_state(&mut self, pool: &mut Pool, now: Instant, member: MemberId, state: MemberState) {
        let Some(bond) = &mut self.bond else { return };
        let freed = bond.set_state(pool, now, member, state);
        self.uplink_drops.add(Reason::PortDown, freed.into());
        if state == MemberState::Down {
            self.forget_numbers(member);
        }
        self.follow_members(now);
    }

    /// Sets what a member's link has negotiated; `None` if it has no carrier. The member carries no
    /// more than that, and the uplink's rate follows.
    pub fn set_member_negotiated(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        member: MemberId,
        negotiated: Option<Negotiated>,
    ) {
        let Some(bond) = &mut self.bond else { return };
        let freed = bond.set_negotiated(pool, now, member, negotiated);
        self.uplink_drops.add(Reason::PortDown, freed.into());
        self.follow_changed(now);
    }

    /// Sets the secret of the bond's hellos, if it is to have one.
    pub fn set_bond_key(&mut self, pool: &mut Pool, now: Instant, key: Option<HelloKey>) {
        if self.bond.as_ref().is_some_and(|bond| bond.parts_with_key(key.as_ref())) {
            let ports: Vec<PortId> = self.program.uplink.iter().flat_map(Uplink::ports).collect();
            self.say_farewell(pool, now, &ports);
        }
        let Some(bond) = &mut self.bond else { return };
        let freed = bond.set_key(pool, now, key);
        self.uplink_drops.add(Reason::PortDown, freed.into());
        self.follow_members(now);
    }

    /// Sets the active member.
    pub fn set_active_member(&mut self, pool: &mut Pool, now: Instant, member: Option<MemberId>) {
        let Some(bond) = &mut self.bond else { return };
        let freed = bond.set_active(pool, now, member);
        self.uplink_drops.add(Reason::PortDown, freed.into());
        self.follow_members(now);
    }

    /// Sets the schedulers' rate to the members'.
    pub(super) fn follow_members(&mut self, now: Instant) {
        let rate = self.uplink_rate().unwrap_or_default();
        let uplink = self.program.uplink.as_ref().map(|uplink| uplink.at_rate(rate));
        self.egress.set_uplink(now, uplink.as_ref());
        self.ingress.set_uplink(now, uplink.as_ref());
        if let Some(policer) = &mut self.policer {
            policer.set_link(rate.ingress);
        }
    }

    /// The uplink has changed, and its ports have their roles. A member with the same port as
    /// before keeps its state, and what waits for it.
    pub(super) fn change_bond(&mut self, pool: &mut Pool, now: Instant, before: Option<&Uplink>) {
        let settings = self.program.uplink.as_ref().and_then(|uplink| uplink.bond);
        if self.bond.as_ref().is_some_and(|bond| bond.parts_with(settings.as_ref())) {
            let ports: Vec<PortId> = before.into_iter().flat_map(Uplink::ports).collect();
            self.say_farewell(pool, now, &ports);
        }
        self.follow_past_numbers();
        let uplink = self.program.uplink.as_ref();
        let Some((settings, uplink)) = uplink.and_then(|uplink| Some((uplink.bond?, uplink))) else {
            let freed = self.bond.take().map_or(0, |mut bond| bond.clear(pool));
            return self.uplink_drops.add(Reason::Removed, freed.into());
        };
        let rates: Vec<Rate> = uplink.members.iter().map(|member| member.rate.egress).collect();
        match &mut self.bond {
            Some(bond) => {
                let was = |member: &Member| before.and_then(|before| before.member_at(member.port));
                let was: Vec<Option<MemberId>> = uplink.members.iter().map(was).collect();
                let freed = bond.set_members(pool, now, settings, &rates, &was);
                self.uplink_drops.add(Reason::PortDown, freed.into());
            }
            None => {
                let mut bond = Box::new(Bond::new(settings, &rates, self.seed));
                let freed = bond.set_members(pool, now, settings, &rates, &vec![None; rates.len()]);
                self.uplink_drops.add(Reason::PortDown, freed.into());
                self.bond = Some(bond);
            }
        }
        self.fit_members(pool, now);
    }

    /// Sends hellos which report that nothing is received any more, over members whose ports still
    /// belong to the uplink.
    fn say_farewell(&mut self, pool: &mut Pool, now: Instant, ports: &[PortId]) {
        let hellos = self.bond.as_mut().map(|bond| bond.part(pool, now)).unwrap_or_default();
        for (member, hello) in hellos {
            if let Some(&port) = ports.get(usize::from(member.0))
                && matches!(self.role(port), Role::Uplink(_))
            {
                self.say_hello(pool, port, &hello);
            }
        }
    }

    fn say_hello(&mut self, pool: &mut Pool, port: PortId, hello: &HelloFrame) {
        if let Some(frame) = pool.alloc_from(hello.bytes()) {
            self.send_control(pool, port, frame);
        }
    }

    /// Sets the features of the members' ports, and the longest frame that is to leave.
    fn fit_members(&mut self, pool: &mut Pool, now: Instant) {
        let (Some(bond), Some(uplink)) = (&mut self.bond, &self.program.uplink) else { return };
        for (id, member) in (0..).map(MemberId).zip(&uplink.members) {
            if let Some(&features) = self.program.ports.get(member.port.0) {
                bond.set_features(id, features);
            }
        }
        let longest = self.program.endpoints.values().map(|endpoint| longest_out(&self.program, endpoint)).max();
        let freed = bond.set_longest(pool, now, longest.unwrap_or(0));
        self.uplink_drops.add(Reason::PortDown, freed.into());
    }

    /// A port's features have changed, which may concern the bond.
    pub(super) fn fit_port(&mut self, pool: &mut Pool, now: Instant, port: PortId, before: Option<PortFeatures>) {
        let max_frame = |features: Option<&PortFeatures>| features.map(|features| features.max_frame);
        let after = self.program.ports.get(port.0);
        let is_member = matches!(self.role(port), super::Role::Uplink(_));
        if self.bond.is_some() && (is_member || max_frame(after) != max_frame(before.as_ref())) {
            self.fit_members(pool, now);
        }
    }

    /// The longest frame of an endpoint; 0 if there is no such endpoint, or no bond.
    pub(super) fn longest_of(&self, endpoint: EndpointId) -> u32 {
        let endpoint = self.program.endpoints.get(endpoint.0).filter(|_| self.bond.is_some());
        endpoint.map_or(0, |endpoint| longest_out(&self.program, endpoint))
    }

    /// An endpoint was added, changed or removed. Its longest frame was `before`.
    pub(super) fn fit_endpoint(&mut self, pool: &mut Pool, now: Instant, endpoint: EndpointId, before: u32) {
        let after = self.longest_of(endpoint);
        let Some(bond) = &mut self.bond else { return };
        let longest = bond.longest();
        if after > longest {
            let freed = bond.set_longest(pool, now, after);
            self.uplink_drops.add(Reason::PortDown, freed.into());
        } else if before == longest && after < before {
            // In most cases other endpoints have frames as long, and one is soon found.
            let is_as_long = |other: &Endpoint| longest_out(&self.program, other) == longest;
            if !self.program.endpoints.values().any(is_as_long) {
                self.fit_members(pool, now);
            }
        }
    }

    /// Takes the number off a frame that arrived over a member.
    #[inline]
    pub(super) fn take_number(
        &self,
        pool: &mut Pool,
        member: MemberId,
        frame: &Frame,
    ) -> Result<Option<Number>, Reason> {
        let number = match &self.bond {
            Some(bond) if bond.may_have_numbers() => bond.take_number(pool, member, frame)?,
            _ => None,
        };
        if number.is_none() && self.is_past_number(pool.bytes(frame)) {
            return Err(Reason::BondControl);
        }
        Ok(number)
    }

    /// What [`Switch::take_number`] would do with a frame of these bytes; `None` if nothing.
    pub(super) fn explain_number(&self, member: MemberId, bytes: &[u8]) -> Option<Result<Number, Reason>> {
        let number = self.bond.as_ref().and_then(|bond| bond.explain_number(bytes, member));
        number.or_else(|| self.is_past_number(bytes).then_some(Err(Reason::BondControl)))
    }

    /// Receives a frame with a number in its turn, and then the frames that waited for it.
    pub(super) fn put_in_order(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        member: MemberId,
        number: Number,
        frame: Frame,
    ) -> Result<(), Reason> {
        let Some(bond) = &mut self.bond else { return self.enter_ordered(pool, now, frame) };
        let first = bond.put_in_order(pool, now, member, number, frame);
        let result = first.and_then(|frame| frame.map_or(Ok(()), |frame| self.enter_ordered(pool, now, frame)));
        self.let_ordered_go(pool, now);
        result
    }

    /// A frame without a number has arrived for a network: the other end does not number any more.
    /// Frames that wait were sent before it, and go first.
    #[inline]
    pub(super) fn end_order(&mut self, pool: &mut Pool, now: Instant) {
        if self.bond.as_mut().is_some_and(|bond| bond.end_order(pool, now)) {
            self.let_ordered_go(pool, now);
        }
    }

    /// Receives the frames that no longer wait for their turn.
    fn let_ordered_go(&mut self, pool: &mut Pool, now: Instant) {
        while let Some(frame) = self.bond.as_mut().and_then(|bond| bond.poll_received(pool, now)) {
            if let Err(reason) = self.enter_ordered(pool, now, frame) {
                self.uplink_drops.add(reason, 1);
            }
        }
    }

    /// Receives a frame for a reserved address, if it is a hello of the bond at the other end, or a
    /// LACPDU. Otherwise returns it.
    pub(super) fn hear_hello(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        member: MemberId,
        frame: Frame,
    ) -> Result<Result<(), Reason>, Frame> {
        let Some(bond) = &mut self.bond else { return Err(frame) };
        let Some(heard) = bond.hear(pool, now, member, &frame) else { return Err(frame) };
        pool.free(frame);
        let freed = heard.as_ref().copied().unwrap_or_default();
        self.uplink_drops.add(Reason::PortDown, freed.into());
        self.expect_numbers(member);
        self.follow_changed(now);
        self.let_ordered_go(pool, now);
        Ok(heard.map(drop))
    }

    /// Updates the rate if the members that may send, or their rates, have changed.
    fn follow_changed(&mut self, now: Instant) {
        if self.bond.as_mut().is_some_and(|bond| bond.take_changed()) {
            self.follow_members(now);
        }
    }

    /// Sends hellos and LACPDUs that are due, and receives frames that have waited long enough for
    /// an earlier one.
    fn tend_peer(&mut self, pool: &mut Pool, now: Instant) {
        let Some(bond) = &mut self.bond else { return };
        if !bond.is_peer_due(now) {
            return;
        }
        let freed = bond.advance(pool, now);
        self.uplink_drops.add(Reason::PortDown, freed.into());
        self.follow_changed(now);
        while let Some((member, hello)) = self.bond.as_mut().and_then(|bond| bond.poll_hello(pool, now)) {
            let port = self.program.uplink.as_ref().map(|uplink| uplink.port_of(member));
            if let Some(port) = port {
                self.say_hello(pool, port, &hello);
            }
        }
        while let Some((member, pdu)) = self.bond.as_mut().and_then(|bond| bond.poll_lacp(now)) {
            let port = self.program.uplink.as_ref().map(|uplink| uplink.port_of(member));
            if let (Some(port), Some(frame)) = (port, pool.alloc_from(&pdu)) {
                self.send_control(pool, port, frame);
            }
        }
        self.let_ordered_go(pool, now);
    }

    /// Whether the bond takes another frame from the egress queues.
    #[inline]
    pub(super) fn may_send_member(&self, now: Instant) -> bool {
        self.bond.as_ref().is_none_or(|bond| bond.room_at().is_some_and(|at| at <= now))
    }

    /// Counts a frame that arrived over this member, or refuses it.
    #[inline]
    pub(super) fn receive_member(
        &mut self,
        pool: &Pool,
        (member, number): (MemberId, Option<Number>),
        frame: &Frame,
    ) -> Result<(), Reason> {
        let Some(bond) = &mut self.bond else { return Ok(()) };
        bond.receive(pool, member, frame, number.is_some())
    }

    /// Sends a frame of an endpoint by the member that the bond chooses, in its turn there.
    pub(super) fn send_member(&mut self, pool: &mut Pool, now: Instant, endpoint: EndpointId, frame: Frame) {
        let Some(bond) = &mut self.bond else { return pool.free(frame) };
        pool.meta_mut(&frame).set_out(Out::From(endpoint));
        match bond.send(pool, now, frame) {
            Ok(None) => {}
            Ok(Some((member, frame))) => self.emit_member(pool, member, frame),
            Err(reason) => self.count_drop(endpoint, reason),
        }
    }

    /// Delivers a frame of the shell itself to an endpoint, which is charged for it. It bypasses
    /// the endpoint's queue, so such frames must be few.
    pub fn deliver_own(&mut self, pool: &mut Pool, to: EndpointId, frame: Frame) {
        if self.program.endpoints.get(to.0).is_none() || parse(pool, &frame).is_err() {
            return pool.free(frame);
        }
        self.deliver_local(pool, to, to, frame);
    }

    /// Sends a frame of no endpoint into an external network, in order with all others.
    pub(super) fn send_own(&mut self, pool: &mut Pool, now: Instant, frame: Frame) -> Result<(), Reason> {
        let Some(bond) = &mut self.bond else { return drop_for(pool, frame, Reason::Unreachable) };
        if let Some((member, frame)) = bond.send(pool, now, frame)? {
            self.emit_member(pool, member, frame);
        }
        Ok(())
    }

    /// Sends a frame that has its turn at a member. False if there is none.
    pub(super) fn let_member_go(&mut self, pool: &mut Pool, now: Instant) -> bool {
        if self.bond.is_none() {
            return false;
        }
        self.tend_peer(pool, now);
        let Some(bond) = &mut self.bond else { return false };
        let Some((member, frame)) = bond.poll(pool, now) else { return false };
        self.emit_member(pool, member, frame);
        true
    }

    fn emit_member(&mut self, pool: &mut Pool, member: MemberId, frame: Frame) {
        let Some(uplink) = &self.program.uplink else { return pool.free(frame) };
        let port = uplink.port_of(member);
        match pool.meta(&frame).out() {
            Out::From(endpoint) => self.emit(pool, port, endpoint, self.port_of(endpoint, port), frame),
            _ => self.send_control(pool, port, frame),
        }
    }

    /// Whether a frame that [`Switch::tx`] returned for a port is to be given back unchanged
    /// ([`Switch::give_back`]). A bond keeps it, to send it again if the member fails.
    #[inline]
    #[must_use]
    pub fn wants_back(&self, pool: &Pool, port: PortId, frame: &Frame) -> bool {
        self.bond.as_ref().is_some_and(|bond| bond.wants_back(pool, frame))
            && matches!(self.role(port), Role::Uplink(_))
    }

    /// Takes back a frame that [`Switch::tx`] returned, after the port has written or refused it:
    /// it is freed, or kept. A shell that passes on frames themselves gives back a copy of those
    /// that are wanted.
    #[inline]
    pub fn give_back(&mut self, pool: &mut Pool, now: Instant, port: PortId, frame: Frame) {
        if !self.wants_back(pool, port, &frame) {
            return pool.free(frame);
        }
        let (role, sender) = (self.role(port), pool.meta(&frame).payer().map(|payer| self.role(payer)));
        match (&mut self.bond, role, sender) {
            (Some(bond), Role::Uplink(member), Some(Role::Endpoint(sender))) => {
                pool.meta_mut(&frame).set_out(Out::From(sender));
                bond.give_back(pool, now, member, frame);
            }
            _ => pool.free(frame),
        }
    }
}

/// Longest frame in bytes that an endpoint sends to the uplink, with its tag if it gets one.
fn longest_out(program: &crate::program::Program, endpoint: &Endpoint) -> u32 {
    // A director sends back what arrived over the members, up to their longest frame. If that
    // counted, a number would never fit. What is too long with a number is dropped.
    if endpoint.is_director {
        return 0;
    }
    let attachment = program.tenants.get(endpoint.tenant.0).map(|tenant| tenant.attachment);
    let has_tag = match attachment {
        // Frames in a tunnel are never longer than the members take.
        None | Some(Attachment::Isolated | Attachment::Vxlan(_)) => return 0,
        Some(Attachment::Vlan(_)) => true,
        Some(Attachment::Untagged) => endpoint.trunk,
    };
    let longest = program.ports.get(endpoint.port.0).map_or(0, |features| features.max_frame);
    longest + if has_tag { TAG as u32 } else { 0 }
}
