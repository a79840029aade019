//! The members of an uplink that has several ports: frames out by the one that the bond chooses, in from those that may be
//! received from, and the rate of the link that they make.
//!
//! While a frame waits at its member, `Meta::out` says which endpoint sent it.

use super::Switch;
use crate::bond::{Bond, MemberCounts, MemberState};
use crate::frame::{Frame, Out, Pool};
use crate::program::{EndpointId, Member, MemberId, PortId, Uplink};
use crate::units::{Both, Instant, Rate};
use crate::verdict::Reason;

/// What is known of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberView {
    /// Its port.
    pub port: PortId,
    /// What it carries.
    pub rate: Rate,
    /// What it may be used for.
    pub state: MemberState,
    /// Whether it is the active one.
    pub is_active: bool,
    /// What it has carried.
    pub counts: MemberCounts,
}

impl Switch {
    /// The uplink's members, where it has several, in configured order.
    pub fn members(&self) -> impl Iterator<Item = MemberView> + '_ {
        let members = self.program.uplink.iter().flat_map(|uplink| (0..).map(MemberId).zip(&uplink.members));
        members.filter_map(|(id, &Member { port, rate })| {
            let bond = self.bond.as_ref()?;
            let (state, counts, is_active) = (bond.state(id), bond.counts(id), bond.active() == Some(id));
            Some(MemberView { port, rate: rate.egress, state, is_active, counts })
        })
    }

    /// What the uplink carries now: what its members do, where it has several, and no more than it is configured for. As configured
    /// while no member may send, so that frames are dropped by their reason, and do not wait for one.
    #[must_use]
    pub fn uplink_rate(&self) -> Option<Both<Rate>> {
        let whole = self.program.uplink.as_ref()?.rate();
        let now = self.bond.as_ref().map(|bond| bond.rate()).filter(|rate| rate.0 > 0).unwrap_or(Rate::UNLIMITED);
        Some(Both { egress: whole.egress.min(now), ingress: whole.ingress.min(now) })
    }

    /// A member may be used for something else now. What waits for it is sent by the others.
    pub fn set_member_state(&mut self, pool: &mut Pool, now: Instant, member: MemberId, state: MemberState) {
        let Some(bond) = &mut self.bond else { return };
        let freed = bond.set_state(pool, now, member, state);
        self.uplink_drops.add(Reason::PortDown, freed.into());
        self.follow_members();
    }

    /// Another member is the active one now.
    pub fn set_active_member(&mut self, pool: &mut Pool, now: Instant, member: Option<MemberId>) {
        let Some(bond) = &mut self.bond else { return };
        let freed = bond.set_active(pool, now, member);
        self.uplink_drops.add(Reason::PortDown, freed.into());
        self.follow_members();
    }

    /// The schedulers' rate follows the members'.
    pub(super) fn follow_members(&mut self) {
        let rate = self.uplink_rate().unwrap_or_default();
        let uplink = self.program.uplink.as_ref().map(|uplink| uplink.at_rate(rate));
        self.egress.set_uplink(uplink.as_ref());
        self.ingress.set_uplink(uplink.as_ref());
        if let Some(policer) = &mut self.policer {
            policer.set_link(rate.ingress);
        }
    }

    /// The uplink is another, and its members have their roles: who stays, by its port, keeps its state and what waits for it.
    pub(super) fn change_bond(&mut self, pool: &mut Pool, now: Instant, before: Option<&Uplink>) {
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
            None => self.bond = Some(Box::new(Bond::new(settings, &rates, self.seed))),
        }
    }

    /// Whether a frame from the uplink may be received over this member.
    #[inline]
    pub(super) fn receive_member(&mut self, pool: &Pool, member: MemberId, frame: &Frame) -> Result<(), Reason> {
        let Some(bond) = &mut self.bond else { return Ok(()) };
        bond.receive(pool, member, frame)
    }

    /// To the member that carries it; it leaves from there in its turn.
    pub(super) fn send_member(&mut self, pool: &mut Pool, now: Instant, endpoint: EndpointId, frame: Frame) {
        let Some(bond) = &mut self.bond else { return pool.free(frame) };
        pool.meta_mut(&frame).set_out(Out::From(endpoint));
        if let Err(reason) = bond.send(pool, now, frame) {
            self.count_drop(endpoint, reason);
        }
    }

    /// Lets go what has its turn at a member. False where there is nothing.
    pub(super) fn let_member_go(&mut self, pool: &mut Pool, now: Instant) -> bool {
        let Some(bond) = &mut self.bond else { return false };
        let Some((member, frame)) = bond.poll(pool, now) else { return false };
        let (Some(uplink), Out::From(endpoint)) = (&self.program.uplink, pool.meta(&frame).out()) else {
            pool.free(frame);
            return true;
        };
        let port = uplink.port_of(member);
        self.emit(pool, port, endpoint, self.port_of(endpoint, port), frame);
        true
    }
}
