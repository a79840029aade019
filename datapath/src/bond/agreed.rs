//! `802.3ad`: members have the states that both ends have agreed on ([`super::lacp`]).

use super::lacp::pdu::FRAME_BYTES;
use super::lacp::{Lacp, LacpView};
use super::{Bond, MemberId, MemberState, Mode};
use crate::frame::{Frame, Pool};
use crate::segment::WIRE_OVERHEAD;
use crate::units::{Instant, Rate};
use crate::verdict::Reason;

/// Bytes of a LACPDU or the answer to a marker on the wire.
const WIRE_BYTES: u32 = FRAME_BYTES as u32 + WIRE_OVERHEAD;

impl Bond {
    /// What LACP knows of each member; none in other modes.
    pub fn lacp(&self) -> impl Iterator<Item = LacpView> + '_ {
        self.lacp.iter().flat_map(|lacp| lacp.views())
    }

    /// Members that lead back to this system, a bit each; none in modes without hellos or LACPDUs.
    #[must_use]
    pub fn looped(&self) -> u16 {
        let by_hellos = self.peer.as_ref().map_or(0, |peer| peer.looped());
        by_hellos | self.lacp.as_ref().map_or(0, |lacp| lacp.looped())
    }

    /// Members whose actor, and members whose partner, has not come into sync in time, a bit each;
    /// none in other modes.
    #[must_use]
    pub fn churned(&self) -> [u16; 2] {
        self.lacp.as_ref().map_or([0; 2], |lacp| lacp.churned())
    }

    /// Members or the protocol's settings change. Called before members change.
    pub(super) fn change_lacp(&mut self, now: Instant, rates: &[Rate], was: &[Option<MemberId>]) {
        if self.settings.mode != Mode::Lacp {
            if self.lacp.take().is_some() {
                // Members that are not down waited for an agreement, which is no longer needed.
                for member in self.members.iter_mut().filter(|member| member.state() != MemberState::Down) {
                    member.set_state(now, MemberState::Distributing);
                }
            }
            return;
        }
        let (is_new, members) = (self.lacp.is_none(), &self.members);
        let before = |n: usize| was.get(n).copied().flatten();
        let is_up = |n: usize| {
            let member = before(n).and_then(|was| members.get(usize::from(was.0)));
            member.is_some_and(|member| member.state() != MemberState::Down)
        };
        let lacp = self.lacp.get_or_insert_with(Box::<Lacp>::default);
        lacp.set_members(now, &self.settings.lacp, rates, |n| before(n).filter(|_| !is_new), is_up);
        for (n, was) in (0..).zip(was).filter(|_| is_new) {
            if let Some(member) = was.and_then(|was| members.get(usize::from(was.0))) {
                lacp.set_negotiated(MemberId(n), member.negotiated);
            }
        }
    }

    /// Sets members to the states that the protocol gives them.
    pub(super) fn follow_lacp(&mut self, now: Instant) {
        let Some(lacp) = &mut self.lacp else { return };
        lacp.advance(now);
        for (n, member) in (0..).map(MemberId).zip(&mut self.members) {
            let state = lacp.state(n);
            if member.state() != state {
                member.set_state(now, state);
            }
        }
    }

    pub(super) fn hear_lacp(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        member: MemberId,
        frame: &Frame,
    ) -> Option<Result<u32, Reason>> {
        if let Err(reason) = self.lacp.as_mut()?.hear(now, member, pool.bytes(frame))? {
            return Some(Err(reason));
        }
        self.follow_lacp(now);
        Some(Ok(self.find_senders(pool, now)))
    }

    pub(super) fn advance_lacp(&mut self, pool: &mut Pool, now: Instant) -> u32 {
        self.follow_lacp(now);
        self.find_senders(pool, now)
    }

    /// The next LACPDU or answer to a marker that is due, and the member that sends it.
    pub fn poll_lacp(&mut self, now: Instant) -> Option<(MemberId, [u8; FRAME_BYTES])> {
        let (member, frame) = self.lacp.as_mut()?.poll(now)?;
        if let Some(sender) = self.members.get_mut(usize::from(member.0)) {
            // It is sent before the frames that wait, and takes its time on the wire.
            sender.spend(now, WIRE_BYTES);
        }
        Some((member, frame))
    }
}
