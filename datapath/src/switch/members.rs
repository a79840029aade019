//! The members of an uplink that has several ports: frames out by the one that the bond chooses, in from those that may be
//! received from, and the rate of the link that they make.
//!
//! While a frame waits at its member, `Meta::out` is the endpoint that sent it.

use super::{Role, Switch};
use crate::bond::{Bond, BondSettings, MOST_MEMBERS, MemberCounts, MemberId, MemberState};
use crate::frame::{Frame, Pool};
use crate::program::{ChangeError, EndpointId, Members, PortId, Uplink};
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
        let ports = self.program.members.iter().flat_map(|members| members.ports.iter().enumerate());
        ports.filter_map(|(n, &(port, rate))| {
            let (bond, member) = (self.bond.as_ref()?, MemberId(n as u8));
            let (state, counts) = (bond.state(member), bond.counts(member));
            Some(MemberView { port, rate, state, is_active: bond.active() == Some(member), counts })
        })
    }

    /// What the uplink carries now: what its members do, where it has several, and no more than it is configured for. As configured
    /// while no member may send, so that frames are dropped by their reason, and do not wait for one.
    #[must_use]
    pub fn uplink_rate(&self) -> Option<Both<Rate>> {
        let uplink = self.program.uplink.as_ref()?;
        let now = self.bond.as_ref().map(|bond| bond.rate()).filter(|rate| rate.0 > 0).unwrap_or(Rate::UNLIMITED);
        Some(Both { egress: uplink.rate.egress.min(now), ingress: uplink.rate.ingress.min(now) })
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
        let uplink = self.program.uplink.as_ref().map(|uplink| Uplink { rate, ..uplink.clone() });
        self.egress.set_uplink(uplink.as_ref());
        self.ingress.set_uplink(uplink.as_ref());
        if let Some(policer) = &mut self.policer {
            policer.set_link(rate.ingress);
        }
    }

    /// Takes the members as they are to be. Who stays, by its port, keeps its state and what waits for it.
    pub(super) fn change_members(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        members: Option<Members>,
    ) -> Result<(), ChangeError> {
        if let Some(members) = &members {
            self.check_members(members)?;
        }
        let before = self.program.members.take().map(|members| members.ports).unwrap_or_default();
        let first = self.program.uplink.as_ref().map(|uplink| uplink.port);
        let gone = before.iter().map(|&(port, _)| port).filter(|&port| Some(port) != first);
        gone.for_each(|port| self.move_role(pool, Some(port), None, Role::Nothing));
        let Some(members) = members else {
            let freed = self.bond.take().map_or(0, |mut bond| bond.clear(pool));
            self.uplink_drops.add(Reason::Removed, freed.into());
            self.follow_members();
            return Ok(());
        };
        for (n, &(port, _)) in members.ports.iter().enumerate() {
            self.move_role(pool, None, Some(port), Role::Uplink(MemberId(n as u8)));
        }
        let rates: Vec<Rate> = members.ports.iter().map(|&(_, rate)| rate).collect();
        let was: Vec<Option<MemberId>> = members.ports.iter().map(|&(port, _)| place_of(&before, port)).collect();
        match &mut self.bond {
            Some(bond) => {
                let freed = bond.set_members(pool, now, members.settings, &rates, &was);
                self.uplink_drops.add(Reason::PortDown, freed.into());
            }
            None => self.bond = Some(Box::new(Bond::new(members.settings, &rates, self.seed))),
        }
        self.program.members = Some(members);
        self.follow_members();
        Ok(())
    }

    fn check_members(&self, members: &Members) -> Result<(), ChangeError> {
        let first = members.ports.first().map(|&(port, _)| port);
        let uplink = self.program.uplink.as_ref().map(|uplink| uplink.port);
        if first.is_none() || first != uplink || members.ports.len() > MOST_MEMBERS {
            return Err(ChangeError::BadMembers);
        }
        for (n, &(port, _)) in members.ports.iter().enumerate() {
            self.program.ports.get(port.0).ok_or(ChangeError::UnknownPort(port))?;
            let is_twice = members.ports[..n].iter().any(|&(other, _)| other == port);
            if is_twice || !matches!(self.role(port), Role::Nothing | Role::Uplink(_)) {
                return Err(ChangeError::PortInUse(port));
            }
        }
        Ok(())
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
        pool.meta_mut(&frame).out = endpoint.0;
        if let Err(reason) = bond.send(pool, now, frame) {
            self.count_drop(endpoint, reason);
        }
    }

    /// Lets go what has its turn at a member. False where there is nothing.
    pub(super) fn let_member_go(&mut self, pool: &mut Pool, now: Instant) -> bool {
        let Some(bond) = &mut self.bond else { return false };
        let Some((member, frame)) = bond.poll(pool, now) else { return false };
        let members = self.program.members.as_ref();
        let Some(port) = members.and_then(|members| Some(members.ports.get(usize::from(member.0))?.0)) else {
            pool.free(frame);
            return true;
        };
        let endpoint = EndpointId(pool.meta(&frame).out);
        self.emit(pool, port, endpoint, self.port_of(endpoint, port), frame);
        true
    }

    /// The settings of the uplink's bond.
    #[must_use]
    pub fn bond_settings(&self) -> Option<&BondSettings> {
        self.bond.as_ref().map(|bond| bond.settings())
    }
}

/// Which member a port was.
fn place_of(before: &[(PortId, Rate)], port: PortId) -> Option<MemberId> {
    before.iter().position(|&(old, _)| old == port).map(|n| MemberId(n as u8))
}
