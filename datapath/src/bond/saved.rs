//! What a bond knows of the other end, for the process that takes over from this one. Numbers
//! continue, and those that are on the way are recognized; what LACP has agreed on stays.

use super::lacp::Record;
use super::number::MODULUS;
use super::peer::{Peer, PeerMember, Restored};
use super::{Bond, MOST_MEMBERS, MemberId, Mode};
use crate::frame::Pool;
use crate::units::Instant;

/// A member that comes up within this time after a takeover continues where it was, in nanoseconds.
const COMES_UP_NS: u64 = 2_000_000_000;
/// Numbers are counted from [`MODULUS`] to less than this.
const MOST_COUNTED: u64 = 1 << 62;

/// The state of a bond and its peer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeerState {
    /// The epoch of this bond.
    pub epoch: u64,
    /// The epoch of the peer.
    pub other: u64,
    /// Hellos sent.
    pub said: u32,
    /// The count in the newest hello received.
    pub heard: u32,
    /// The next frame's number, without modulus.
    pub next: u64,
    /// The next number to receive; `None` before the first.
    pub expected: Option<u64>,
    /// Numbers before that which may still come; `None` of an older process.
    pub missing: Option<Vec<u64>>,
    /// Whether the peer receives offloaded frames in pieces.
    pub are_cut: bool,
    /// The members at whose other end the peer is.
    pub members: Vec<(MemberId, LineState)>,
}

/// The state of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LineState {
    /// Its number in hellos; `None`: its place.
    pub own: Option<u8>,
    /// The number that the other end gives it.
    pub theirs: u8,
    /// Longest frame that the other end receives; 0 if it does not report that.
    pub max_frame: u16,
    /// Whether the other end receives from it.
    pub is_received: bool,
    /// Numbered frames sent.
    pub sent: u32,
}

/// How a bond's members are used. The shell, which decides that, saves and restores it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MembersState {
    /// The members that are used as far as it depends on their links.
    pub used: Vec<MemberId>,
    /// The active one.
    pub active: Option<MemberId>,
    /// The operator chose that.
    pub is_chosen: bool,
}

impl Bond {
    /// Another process takes over from this one, or does so no more. A bond that leaves gives no
    /// numbers and sends no hellos: the other process does. Frames that wait for order are
    /// released.
    pub fn set_leaving(&mut self, pool: &mut Pool, now: Instant, is_leaving: bool) -> u32 {
        if let Some(lacp) = &mut self.lacp {
            lacp.set_leaving(is_leaving);
        }
        let Some(peer) = &mut self.peer else { return 0 };
        peer.set_leaving(pool, now, is_leaving);
        self.let_kept_go(pool);
        self.find_senders(pool, now)
    }

    /// What the next process should know of the other end; `None` if no peer is known.
    #[must_use]
    pub fn export(&self) -> Option<PeerState> {
        self.peer.as_ref()?.export()
    }

    /// What the next process should know of members that LACP has agreed on.
    #[must_use]
    pub fn export_lacp(&self) -> Vec<(MemberId, Record)> {
        self.lacp.as_ref().map(|lacp| lacp.export()).unwrap_or_default()
    }

    /// Continues with members that another process has agreed on. False if the records do not fit.
    pub fn restore_lacp(&mut self, now: Instant, records: &[(MemberId, Record)]) -> bool {
        self.lacp.as_mut().is_some_and(|lacp| lacp.restore(now, records))
    }

    /// Continues where another process was. False if the state does not fit.
    pub fn restore(&mut self, now: Instant, state: &PeerState) -> bool {
        let (members, has_copies) = (self.members.len(), self.settings.mode == Mode::Broadcast);
        self.peer.as_mut().is_some_and(|peer| peer.restore(now, members, has_copies, state))
    }
}

impl Peer {
    fn export(&self) -> Option<PeerState> {
        let members = (0..).map(MemberId).zip(&self.lines).filter(|(_, line)| line.is_live() && line.theirs < 16);
        let line = |line: &PeerMember| LineState {
            own: Some(line.own),
            theirs: line.theirs,
            max_frame: line.max_frame,
            is_received: line.is_received,
            sent: line.sent,
        };
        Some(PeerState {
            epoch: self.epoch,
            other: self.other?,
            said: self.count,
            heard: self.heard_count,
            next: self.next,
            expected: self.order.expected(),
            missing: Some(self.order.missing()),
            are_cut: self.are_cut,
            members: members.map(|(id, of)| (id, line(of))).collect(),
        })
    }

    fn restore(&mut self, now: Instant, members: usize, has_copies: bool, state: &PeerState) -> bool {
        let counted = u64::from(MODULUS)..MOST_COUNTED;
        let fits = |&(id, line): &(MemberId, LineState)| {
            usize::from(id.0) < members && line.theirs < 16 && line.own.is_none_or(|own| own < 16)
        };
        let is_sound = state.epoch != 0
            && state.other != 0
            && state.epoch != state.other
            && counted.contains(&state.next)
            && state.expected.is_none_or(|expected| counted.contains(&expected))
            && state.members.iter().all(fits);
        if !is_sound {
            return false;
        }
        (self.epoch, self.other, self.before) = (state.epoch, Some(state.other), None);
        (self.count, self.heard_count, self.are_cut) = (state.said, state.heard, state.are_cut);
        (self.next, self.left, self.acked) = (state.next, state.next, state.next);
        self.agreed_at = Some(now);
        // Of what comes more than once nothing is missing.
        let missing = if has_copies { Some(&[][..]) } else { state.missing.as_deref() };
        self.order.go_on(state.expected, missing);
        let mut lines = [None; MOST_MEMBERS];
        let mut known = [None; MOST_MEMBERS];
        for &(id, line) in &state.members {
            let own = line.own.unwrap_or(id.0);
            known[usize::from(id.0)] = Some(own).filter(|own| !known.contains(&Some(*own)));
            lines[usize::from(id.0)] = Some(line);
        }
        self.number_lines(&known, |_| false);
        self.restored = Some(Box::new(Restored { until: now.plus_ns(COMES_UP_NS), lines }));
        true
    }
}
