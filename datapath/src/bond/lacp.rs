//! Link aggregation control protocol (IEEE 802.1AX-2020, clause 6): both ends agree which members
//! of a bond may be received from and sent to.
//!
//! Inputs are LACPDUs and the state of links; outputs are LACPDUs, answers to markers and the
//! states of members. Each port has its machines ([`port`]). This module handles what concerns
//! several ports: which form one aggregator, which aggregator is used, and whether enough of it is
//! up. A port of another aggregator is on standby: its LACPDUs have it out of sync, so the partner
//! sends nothing there. A partner is not authenticated.
//!
//! Speed and duplex are what a link has negotiated, as in Linux's bonding driver. A port that is
//! known to be half duplex aggregates with no other, and its LACPDUs show that. If it is not known
//! what a link has negotiated, the configured rate and full duplex count.

pub mod pdu;
mod port;
mod select;

pub use port::{Churn, Counts, Mux, Receive, Record, Selected};

use super::{Duplex, MOST_MEMBERS, MemberId, MemberState, Negotiated};
use crate::units::{Instant, Rate};
use crate::verdict::Reason;
use crate::wire::Mac;
use pdu::{FRAME_BYTES, HEADER_BYTES, Information, Marker, Pdu, State};
use port::Port;
use select::Group;
pub use select::Select;

/// Most LACPDUs, and most markers, that are read of a port in a second: a partner sends at most 3.
const HEARD_MOST: u32 = 10;
const SECOND_NS: u64 = 1_000_000_000;
/// Most steps of the mux machines in one run: each has five states, and may pass them twice.
const STEPS_MOST: usize = MOST_MEMBERS * 10;
/// A member that comes up within this time after a takeover continues where it was, in nanoseconds.
const COMES_UP_NS: u64 = 2_000_000_000;
/// A member that the operator takes down is received from for at most this long, in nanoseconds,
/// while its partner still sends there.
const DRAIN_NS: u64 = 1_000_000_000;
/// Largest operator's part of the key.
pub const MOST_USER_KEY: u16 = 1023;

/// The settings of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LacpSettings {
    /// Priority of this system; the least decides.
    pub system_priority: u16,
    /// Its address.
    pub system: Mac,
    /// The operator's part of the key, to [`MOST_USER_KEY`].
    pub user_key: u16,
    /// `lacp_rate = "fast"`: the partner is asked for a LACPDU each second.
    pub is_fast: bool,
    /// `lacp_active`: LACPDUs are sent whether the partner sends any or not.
    pub is_active: bool,
    /// Least number of distributing members; with fewer, none carries frames.
    pub min_links: u8,
    /// How the used aggregator is chosen.
    pub select: Select,
    /// `coupled_control`: a member that is received from is also sent to. Otherwise it is sent to
    /// once the partner reports that it receives from there.
    pub is_coupled: bool,
    /// `lacp_strict`: without a partner no member carries frames; otherwise one does, alone.
    pub is_strict: bool,
    /// Members that the operator has taken down, a bit each: they are in no aggregator, and their
    /// LACPDUs show that. Frames are still received until the partner stops sending.
    pub down: u16,
    /// By member.
    pub members: [LacpMember; MOST_MEMBERS],
}

/// The settings of a member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LacpMember {
    /// The address from which its LACPDUs are sent.
    pub mac: Mac,
    /// Its priority.
    pub priority: u16,
}

impl Default for LacpMember {
    fn default() -> Self {
        LacpMember { mac: Mac([2, 0, 0, 0, 0, 0]), priority: 255 }
    }
}

impl Default for LacpSettings {
    fn default() -> Self {
        LacpSettings {
            system_priority: 65_535,
            system: Mac([2, 0, 0, 0, 0, 0]),
            user_key: 0,
            is_fast: false,
            is_active: true,
            min_links: 0,
            select: Select::default(),
            is_coupled: true,
            is_strict: false,
            down: 0,
            members: [LacpMember::default(); MOST_MEMBERS],
        }
    }
}

/// The protocol of one bond: events in by `set_...` and `hear`, then `advance`; frames to send out
/// by `poll`; call them again at `poll_timeout`.
#[derive(Debug, Default)]
pub struct Lacp {
    settings: LacpSettings,
    members: Vec<MemberPort>,
    used: Option<Group>,
    is_leaving: bool,
    /// Something has changed: machines may move.
    is_due: bool,
    /// When something is due. It is read for each frame, and computed after each change.
    due: Option<Instant>,
    /// Until when the records of another process hold, and the partners in them, by member.
    restored: Option<Box<(Instant, [Option<Information>; MOST_MEMBERS])>>,
}

#[derive(Debug)]
struct MemberPort {
    rate: Rate,
    negotiated: Negotiated,
    port: Port,
    /// Latest time until which it is received from after the operator took it down.
    drains_until: Option<Instant>,
    /// The marker that is to be answered; others are refused meanwhile.
    marker: Option<Marker>,
    second: u64,
    heard: [u32; 2],
}

/// What is known of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LacpView {
    /// This end.
    pub actor: Information,
    /// The other end, as it last described itself.
    pub partner: Information,
    /// The receive machine.
    pub receive: Receive,
    /// The mux machine.
    pub mux: Mux,
    /// Whether this end came into sync in time.
    pub actor_churn: Churn,
    /// Whether the other end did.
    pub partner_churn: Churn,
    /// Whether its aggregator is the used one.
    pub selected: Selected,
    /// Its aggregator: the port number of that one's first member.
    pub aggregator: u16,
    /// The partner is this system.
    pub is_loop: bool,
    /// What was counted.
    pub counts: Counts,
}

impl Lacp {
    /// Changes members and settings; `was` returns which one each was before. A member that stays
    /// keeps its agreement, if what it sends of itself is unchanged. `is_up` returns whether the
    /// link of a new member is up.
    pub fn set_members(
        &mut self,
        now: Instant,
        settings: &LacpSettings,
        rates: &[Rate],
        was: impl Fn(usize) -> Option<MemberId>,
        is_up: impl Fn(usize) -> bool,
    ) {
        (self.settings, self.is_due) = (*settings, true);
        let mut before: Vec<_> = std::mem::take(&mut self.members).into_iter().map(Some).collect();
        let mut lines: Vec<Option<MemberPort>> = Vec::with_capacity(rates.len());
        let mut taken = [false; MOST_MEMBERS];
        for n in 0..rates.len().min(MOST_MEMBERS) {
            let line = was(n).and_then(|was| before.get_mut(usize::from(was.0))?.take());
            if let Some(number) = line.as_ref().map(|line| usize::from(line.port.actor.port)) {
                taken[number - 1] = true;
            }
            lines.push(line);
        }
        for (n, (line, &rate)) in lines.into_iter().zip(rates).enumerate() {
            // Some switches refuse port 0. A port keeps its number when others are removed.
            let number = match &line {
                Some(line) => line.port.actor.port,
                None => free_number(&mut taken, n),
            };
            let negotiated = line.as_ref().map(|line| line.negotiated).unwrap_or_default();
            let actor = settings.actor(n, number, rate, negotiated);
            let mut line = line.unwrap_or_else(|| {
                let mut port = Port::new(actor);
                port.set_enabled(now, is_up(n));
                MemberPort { rate, negotiated, port, drains_until: None, marker: None, second: 0, heard: [0; 2] }
            });
            line.rate = rate;
            line.port.set_actor(actor);
            self.members.push(line);
        }
        // Both refer to places, which have changed.
        self.used = self.used.filter(|used| !matches!(used, Group::Alone(_)));
        if let Some(restored) = &mut self.restored {
            restored.1 = core::array::from_fn(|n| restored.1.get(usize::from(was(n)?.0)).copied()?);
        }
        self.find_due();
    }

    /// Sets whether a member's link may be used.
    pub fn set_link(&mut self, now: Instant, member: MemberId, is_up: bool) {
        let at = usize::from(member.0);
        let Some(line) = self.members.get_mut(at) else { return };
        self.is_due = true;
        let restored = self.restored.as_mut().filter(|restored| restored.0 >= now);
        match restored.and_then(|restored| restored.1.get_mut(at)?.take()) {
            Some(partner) if is_up && !line.port.is_enabled => line.port.go_on(now, partner),
            _ => line.port.set_enabled(now, is_up),
        }
        self.find_due();
    }

    /// Sets what a member's link has negotiated.
    pub fn set_negotiated(&mut self, member: MemberId, negotiated: Negotiated) {
        let at = usize::from(member.0);
        let Some(line) = self.members.get_mut(at).filter(|line| line.negotiated != negotiated) else { return };
        line.negotiated = negotiated;
        line.port.set_actor(self.settings.actor(at, line.port.actor.port, line.rate, negotiated));
        self.is_due = true;
        self.find_due();
    }

    /// Receives a frame for a reserved address. `None` if it is no frame of slow protocols.
    ///
    /// # Errors
    /// [`Reason::BondControl`]: it is malformed, of another slow protocol, or one of too many.
    pub fn hear(&mut self, now: Instant, member: MemberId, frame: &[u8]) -> Option<Result<(), Reason>> {
        if !pdu::is_slow(frame) {
            return None;
        }
        let at = usize::from(member.0);
        let line = self.members.get_mut(at)?;
        if line.second != now.0 / SECOND_NS {
            (line.second, line.heard) = (now.0 / SECOND_NS, [0; 2]);
        }
        match pdu::read(&frame[HEADER_BYTES..]) {
            Some(Pdu::Lacp(pdu)) if line.heard[0] < HEARD_MOST => {
                line.heard[0] += 1;
                line.port.counts.received += 1;
                self.is_due = true;
                if pdu.actor.system == self.settings.system {
                    line.port.hear_self(now);
                } else {
                    line.port.hear(now, &pdu);
                    self.leave_others(at, &pdu.actor);
                }
            }
            Some(Pdu::Marker(marker)) if line.heard[1] < HEARD_MOST && line.marker.is_none() => {
                line.heard[1] += 1;
                line.port.counts.markers += 1;
                line.marker = Some(marker);
            }
            Some(Pdu::MarkerResponse) => {}
            _ => {
                line.port.counts.bad += 1;
                return Some(Err(Reason::BondControl));
            }
        }
        self.find_due();
        Some(Ok(()))
    }

    /// The partner's port is connected here now: other ports, whose links are down, forget it.
    fn leave_others(&mut self, at: usize, partner: &Information) {
        for (n, line) in self.members.iter_mut().enumerate() {
            let was = &line.port.partner;
            if n != at && !line.port.is_enabled && (was.system, was.port) == (partner.system, partner.port) {
                line.port.initialize();
            }
        }
    }

    /// Runs the machines until none moves. False if nothing was due.
    pub fn advance(&mut self, now: Instant) -> bool {
        let is_due = self.machines_due().is_some_and(|due| due <= now);
        if is_due {
            self.is_due = false;
            self.run(now);
            self.find_due();
        }
        is_due
    }

    fn run(&mut self, now: Instant) {
        for (n, line) in self.members.iter_mut().enumerate() {
            line.drain(now, self.settings.is_down(n));
        }
        for line in &mut self.members {
            line.port.run_receive(now);
            line.port.run_wait(now);
        }
        for _ in 0..STEPS_MOST {
            self.select();
            self.let_attach();
            let mut has_moved = false;
            for line in &mut self.members {
                has_moved |= line.port.run_mux(now, self.settings.is_coupled);
            }
            if !has_moved {
                break;
            }
        }
        for (n, line) in self.members.iter_mut().enumerate() {
            line.port.run_periodic(now);
            line.port.run_churn(now, self.settings.is_down(n));
        }
    }

    /// A port may attach when all selected ports that wait are ready.
    fn let_attach(&mut self) {
        let waits = |line: &MemberPort| line.port.selected == Selected::Selected && line.port.mux == Mux::Waiting;
        let all_ready = self.members.iter().filter(|line| waits(line)).all(|line| line.port.is_ready);
        for line in &mut self.members {
            line.port.may_attach = all_ready;
        }
    }

    /// When `advance` or `poll` has something to do, if nothing arrives before.
    #[inline]
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn find_due(&mut self) {
        let answers = self.members.iter().any(|line| line.marker.is_some()).then_some(Instant::ZERO);
        let sends = self.members.iter().filter_map(|line| line.port.send_due()).min();
        let out = answers.into_iter().chain(sends).min().filter(|_| !self.is_leaving);
        self.due = out.into_iter().chain(self.machines_due()).min();
    }

    fn machines_due(&self) -> Option<Instant> {
        if self.is_due {
            return Some(Instant::ZERO);
        }
        let of = |line: &MemberPort| line.port.poll_timeout().into_iter().chain(line.drains_until).min();
        self.members.iter().filter_map(of).min()
    }

    /// The next frame to send, and its member.
    pub fn poll(&mut self, now: Instant) -> Option<(MemberId, [u8; FRAME_BYTES])> {
        if self.is_leaving || self.due.is_none_or(|due| due > now) {
            return None;
        }
        let next = self.next_frame(now);
        self.find_due();
        next
    }

    fn next_frame(&mut self, now: Instant) -> Option<(MemberId, [u8; FRAME_BYTES])> {
        for (n, line) in self.members.iter_mut().enumerate() {
            let source = self.settings.members[n].mac;
            let answer = line.marker.take().map(|marker| marker.response(source));
            let frame = answer.or_else(|| Some(line.port.poll_pdu(now)?.frame(source)));
            if let Some(frame) = frame {
                return Some((MemberId(n as u8), frame));
            }
        }
        None
    }

    /// What a member may be used for.
    #[must_use]
    pub fn state(&self, member: MemberId) -> MemberState {
        let distributing = || self.members.iter().filter(|line| line.port.mux == Mux::Distributing).count();
        let are_enough = || distributing() >= self.settings.min_links.into();
        let line = self.members.get(usize::from(member.0));
        match line.map(|line| &line.port) {
            Some(port) if port.mux == Mux::Distributing && are_enough() => MemberState::Distributing,
            Some(port) if port.mux == Mux::Collecting && are_enough() => MemberState::Collecting,
            Some(_) if line.is_some_and(|line| line.drains_until.is_some()) => MemberState::Collecting,
            Some(port) if port.is_enabled => MemberState::Standby,
            _ => MemberState::Down,
        }
    }

    /// What is known of each member.
    pub fn views(&self) -> impl Iterator<Item = LacpView> + '_ {
        self.members.iter().enumerate().map(|(at, line)| {
            let port = &line.port;
            let group = self.group(at);
            let first = (0..self.members.len()).find(|&n| self.group(n) == group).unwrap_or(at);
            LacpView {
                actor: port.actor,
                partner: port.partner,
                receive: port.receive,
                mux: port.mux,
                actor_churn: port.actor_churn,
                partner_churn: port.partner_churn,
                selected: port.selected,
                aggregator: self.members[first].port.actor.port,
                is_loop: port.loop_until.is_some(),
                counts: port.counts,
            }
        })
    }

    /// Members that lead back to this system, a bit each.
    #[must_use]
    pub fn looped(&self) -> u16 {
        let bit = |(n, line): (usize, &MemberPort)| u16::from(line.port.loop_until.is_some()) << n;
        self.members.iter().enumerate().map(bit).fold(0, |all, one| all | one)
    }

    /// Members whose actor, and members whose partner, has not come into sync in time (churn), a
    /// bit each.
    #[must_use]
    pub fn churned(&self) -> [u16; 2] {
        let mask = |of: fn(&Port) -> Churn| {
            let bit = |(n, line): (usize, &MemberPort)| u16::from(of(&line.port) == Churn::Churned) << n;
            self.members.iter().enumerate().map(bit).fold(0, |all, one| all | one)
        };
        [mask(|port| port.actor_churn), mask(|port| port.partner_churn)]
    }

    /// Another process takes over from this one, or does so no more. One that leaves sends nothing.
    pub fn set_leaving(&mut self, is_leaving: bool) {
        self.is_leaving = is_leaving;
        self.find_due();
    }

    /// What the next process should know: members that have agreed.
    #[must_use]
    pub fn export(&self) -> Vec<(MemberId, Record)> {
        let all = (0..).map(MemberId).zip(&self.members);
        all.filter_map(|(id, line)| Some((id, line.port.record(line.negotiated)?))).collect()
    }

    /// Continues where another process was, with each member whose link comes up soon. False if the
    /// records do not fit.
    pub fn restore(&mut self, now: Instant, records: &[(MemberId, Record)]) -> bool {
        let count = self.members.len();
        let (mut taken, mut partners) = ([false; MOST_MEMBERS], [None; MOST_MEMBERS]);
        for (id, record) in records {
            let number = usize::from(record.port).wrapping_sub(1);
            let is_free = taken.get(number) == Some(&false) && partners.get(usize::from(id.0)) == Some(&None);
            if usize::from(id.0) >= count || !is_free {
                return false;
            }
            taken[number] = true;
            partners[usize::from(id.0)] = Some(record.partner);
        }
        for (id, record) in records {
            let (at, line) = (usize::from(id.0), &mut self.members[usize::from(id.0)]);
            line.negotiated = record.negotiated;
            line.port.set_actor(self.settings.actor(at, record.port, line.rate, record.negotiated));
        }
        for (n, _) in partners.iter().enumerate().take(count).filter(|(_, partner)| partner.is_none()) {
            self.members[n].port.actor.port = free_number(&mut taken, n);
        }
        self.restored = Some(Box::new((now.plus_ns(COMES_UP_NS), partners)));
        true
    }
}

impl MemberPort {
    /// A member in use that the operator takes down is received from until its partner stops
    /// sending.
    fn drain(&mut self, now: Instant, is_down: bool) {
        if is_down && self.port.mux >= Mux::Collecting {
            self.drains_until = Some(now.plus_ns(DRAIN_NS));
        }
        let is_sent_to = self.port.is_enabled && self.port.partner.state.has(State::DISTRIBUTING);
        self.drains_until = self.drains_until.filter(|&until| is_down && is_sent_to && until > now);
    }
}

impl LacpSettings {
    /// Whether the operator has taken a member down.
    fn is_down(&self, member: usize) -> bool {
        self.down & 1 << member != 0
    }

    /// What a port sends of itself.
    fn actor(&self, member: usize, number: u16, rate: Rate, negotiated: Negotiated) -> Information {
        let may_aggregate = negotiated.duplex != Duplex::Half;
        let state = State::default()
            .with(State::AGGREGATION, may_aggregate)
            .with(State::ACTIVITY, self.is_active)
            .with(State::SHORT_TIMEOUT, self.is_fast)
            .with(State::DEFAULTED, true);
        Information {
            system_priority: self.system_priority,
            system: self.system,
            key: key(self.user_key, negotiated.carries(rate), may_aggregate),
            port_priority: self.members[member].priority,
            port: number,
            state,
        }
    }
}

/// A free port number, from 1: the member's place, if that is free.
fn free_number(taken: &mut [bool; MOST_MEMBERS], place: usize) -> u16 {
    let free = core::iter::once(place).chain(0..MOST_MEMBERS).find(|&n| !taken[n]).unwrap_or(place);
    taken[free] = true;
    free as u16 + 1
}

/// Key of a port: bit 0 full duplex, 1 to 5 the class of its speed as in Linux, 6 to 15 the
/// operator's.
#[must_use]
pub fn key(user: u16, rate: Rate, is_full_duplex: bool) -> u16 {
    const MBIT: u64 = 1_000_000;
    const CLASSES: [u64; 16] = [
        1, 10, 100, 1000, 2500, 5000, 10_000, 14_000, 20_000, 25_000, 40_000, 50_000, 56_000, 100_000, 200_000, 400_000,
    ];
    let class = CLASSES.iter().take_while(|&&class| class * MBIT <= rate.0).count() as u16;
    (user & MOST_USER_KEY) << 6 | class << 1 | u16::from(is_full_duplex)
}

#[cfg(test)]
mod tests;
