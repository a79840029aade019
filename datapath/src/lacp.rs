//! Link aggregation control protocol (IEEE 802.1AX-2020, clause 6): which members of a bond may be
//! received from and sent to, as both ends have agreed.
//!
//! A [`Lacp`] is a [`Protocol`] beside its switch. LACPDUs and carriers come in; LACPDUs, answers
//! to markers and the states of members go out. Each port has its machines ([`port`]); here is what
//! concerns several: which form one aggregator, which of these is used, and whether enough of it is
//! up. A port of another aggregator is on standby: it says that it is not in sync, so that the
//! partner sends nothing there.
//!
//! Half duplex is not known here: a port is taken for full duplex.

pub mod pdu;
pub mod port;

use crate::bond::{MemberId, MemberState};
use crate::frame::{Frame, Pool};
use crate::program::PortId;
use crate::protocol::{Command, Protocol};
use crate::switch::Switch;
use crate::units::{Instant, Rate};
use crate::wire::Mac;
use pdu::{FRAME_BYTES, HEADER_BYTES, Information, Pdu, State};
use port::{Mux, Port, Receive, Selected};
use std::collections::VecDeque;

/// LACPDUs and markers that are read of a port in a second, each: a partner sends at most 3.
const HEARD_MOST: u32 = 10;
const SECOND_NS: u64 = 1_000_000_000;
/// Answers that wait to be sent: sixteen ports.
const ANSWERS_MOST: usize = 16;
/// Steps of machines in a row: each port's mux has five states.
const STEPS_MOST: usize = 16 * 8;

/// How the used aggregator is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Choice {
    /// `stable`: by bandwidth, and then as long as it has a port that is up.
    #[default]
    Stable,
    /// `bandwidth`: the one that carries most.
    Bandwidth,
    /// `count`: the one of most ports.
    Count,
}

/// What the protocol is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LacpSettings {
    /// Priority of this system; the least decides.
    pub system_priority: u16,
    /// Its address.
    pub system: Mac,
    /// The operator's part of the key, to 1023.
    pub user_key: u16,
    /// `lacp_rate = "fast"`: the partner is to say so each second.
    pub is_fast: bool,
    /// `lacp_active`: LACPDUs are sent whether the partner sends any or not.
    pub is_active: bool,
    /// `coupled_control`: a member is sent to as soon as it is received from.
    pub is_coupled: bool,
    /// Members that must distribute before any does.
    pub min_links: u8,
    /// How the used aggregator is chosen.
    pub choice: Choice,
}

impl Default for LacpSettings {
    fn default() -> Self {
        LacpSettings {
            system_priority: 65_535,
            system: Mac([2, 0, 0, 0, 0, 0]),
            user_key: 0,
            is_fast: false,
            is_active: true,
            is_coupled: true,
            min_links: 0,
            choice: Choice::default(),
        }
    }
}

/// A member, as the protocol is told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LacpMember {
    /// Its port.
    pub port: PortId,
    /// Its own address, from which LACPDUs are sent.
    pub mac: Mac,
    /// What it carries.
    pub rate: Rate,
    /// Its priority.
    pub priority: u16,
}

/// Whose ports form one aggregator: own key, and the partner's system and key; or one port alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Group {
    Of { key: u16, system: (u16, Mac), partner_key: u16 },
    Alone(usize),
}

/// The protocol of one bond.
#[derive(Debug)]
pub struct Lacp {
    settings: LacpSettings,
    members: Vec<Line>,
    used: Option<Group>,
    answers: VecDeque<(PortId, [u8; FRAME_BYTES])>,
    is_due: bool,
    now: Instant,
}

#[derive(Debug)]
struct Line {
    member: LacpMember,
    port: Port,
    /// The state that the switch was told.
    told: Option<MemberState>,
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
    /// Whether its aggregator is the used one.
    pub selected: Selected,
    /// Which aggregator it is in: the place of the first member of it.
    pub aggregator: usize,
    /// The partner is this very system.
    pub is_loop: bool,
    /// What was counted.
    pub counts: port::Counts,
}

impl Lacp {
    /// For a bond with these members, of whose links none is known to be up.
    #[must_use]
    pub fn new(settings: LacpSettings, members: &[LacpMember]) -> Lacp {
        let line = |(n, &member): (usize, &LacpMember)| {
            let state = State::AGGREGATION
                .with(State::ACTIVITY, settings.is_active)
                .with(State::SHORT_TIMEOUT, settings.is_fast)
                .with(State::DEFAULTED, true);
            let actor = Information {
                system_priority: settings.system_priority,
                system: settings.system,
                key: key(settings.user_key, member.rate),
                port_priority: member.priority,
                // Some switches refuse port 0.
                port: n as u16 + 1,
                state,
            };
            let port = Port::new(actor, settings.is_coupled);
            Line { member, port, told: None, second: 0, heard: [0; 2] }
        };
        let members = members.iter().enumerate().map(line).collect();
        Lacp {
            settings,
            members,
            used: None,
            answers: VecDeque::with_capacity(ANSWERS_MOST),
            is_due: true,
            now: Instant::ZERO,
        }
    }

    /// What is known of each member.
    pub fn members(&self) -> impl Iterator<Item = LacpView> + '_ {
        self.members.iter().enumerate().map(|(at, line)| {
            let Port { actor, partner, receive, mux, selected, is_loop, counts, .. } = line.port;
            let group = self.group(at);
            let aggregator = (0..self.members.len()).find(|&n| self.group(n) == group).unwrap_or(at);
            LacpView { actor, partner, receive, mux, selected, aggregator, is_loop, counts }
        })
    }

    fn place(&self, port: PortId) -> Option<usize> {
        self.members.iter().position(|line| line.member.port == port)
    }

    fn hear(&mut self, now: Instant, at: usize, payload: &[u8]) {
        let line = &mut self.members[at];
        if line.second != now.0 / SECOND_NS {
            (line.second, line.heard) = (now.0 / SECOND_NS, [0; 2]);
        }
        match pdu::read(payload) {
            Some(Pdu::Lacp(pdu)) if line.heard[0] < HEARD_MOST => {
                line.heard[0] += 1;
                line.port.counts.received += 1;
                line.port.is_loop = pdu.actor.system == self.settings.system;
                if line.port.is_loop {
                    return;
                }
                line.port.hear(now, &pdu);
                self.leave_others(at, &pdu.actor);
            }
            Some(Pdu::Marker(marker)) if line.heard[1] < HEARD_MOST && self.answers.len() < ANSWERS_MOST => {
                line.heard[1] += 1;
                line.port.counts.markers += 1;
                self.answers.push_back((line.member.port, marker.response(line.member.mac)));
            }
            Some(Pdu::MarkerResponse) => {}
            _ => line.port.counts.bad += 1,
        }
    }

    /// The partner's port is seen here: a port whose link is down knows it no more.
    fn leave_others(&mut self, at: usize, partner: &Information) {
        for (n, line) in self.members.iter_mut().enumerate() {
            let was = &line.port.partner;
            if n != at && !line.port.is_enabled && (was.system, was.port) == (partner.system, partner.port) {
                line.port.default_partner();
                line.port.receive = Receive::PortDisabled;
            }
        }
    }

    /// Lets all machines move as far as they do.
    fn run(&mut self, now: Instant) {
        for line in &mut self.members {
            line.port.run_receive(now);
        }
        for _ in 0..STEPS_MOST {
            self.select();
            self.let_attach();
            let mut has_moved = false;
            for line in &mut self.members {
                has_moved |= line.port.run_mux(now);
            }
            if !has_moved {
                break;
            }
        }
        for line in &mut self.members {
            line.port.run_periodic(now);
            line.port.run_churn(now);
        }
    }

    fn group(&self, at: usize) -> Group {
        let port = &self.members[at].port;
        if port.is_individual() {
            return Group::Alone(at);
        }
        let system = (port.partner.system_priority, port.partner.system);
        Group::Of { key: port.actor.key, system, partner_key: port.partner.key }
    }

    /// Whether a port may be in an aggregator at all: it is up, and it has a partner, or waits for
    /// none any more.
    fn may_select(&self, at: usize) -> bool {
        let port = &self.members[at].port;
        port.is_enabled && !port.is_loop && port.receive != Receive::PortDisabled
            // Until the three seconds are over a partner may still speak up.
            && (port.receive != Receive::Expired || port.has_partner())
    }

    /// Which aggregator is used, and so which ports are selected and which on standby.
    fn select(&mut self) {
        let mut best: Option<(usize, Group)> = None;
        for at in (0..self.members.len()).filter(|&at| self.may_select(at)) {
            let group = self.group(at);
            if best.is_none_or(|(other, _)| self.rank(at) > self.rank(other)) {
                best = Some((at, group));
            }
        }
        let is_kept = |group: &Group| {
            let first = (0..self.members.len()).find(|&at| self.may_select(at) && self.group(at) == *group);
            let is_stable = self.settings.choice == Choice::Stable;
            first.is_some_and(|first| {
                is_stable && (self.has_partner(first) || !best.is_some_and(|(at, _)| self.has_partner(at)))
            })
        };
        self.used = self.used.filter(is_kept).or(best.map(|(_, group)| group));
        for at in 0..self.members.len() {
            let selected = match self.used {
                _ if !self.may_select(at) => Selected::Unselected,
                Some(used) if used == self.group(at) => Selected::Selected,
                _ => Selected::Standby,
            };
            let port = &mut self.members[at].port;
            if port.selected == Selected::Unselected && port.mux >= Mux::Waiting && selected != Selected::Unselected {
                // What it was in is another one now: it goes out first.
                continue;
            }
            port.selected = selected;
        }
    }

    fn has_partner(&self, at: usize) -> bool {
        self.members[at].port.has_partner()
    }

    /// Which aggregator is better: the one of this port has a partner, is not of one port that may
    /// not aggregate, carries more, has more ports; of equals the first.
    fn rank(&self, at: usize) -> (bool, bool, u64, u64) {
        let group = self.group(at);
        let ports = || (0..self.members.len()).filter(|&n| self.may_select(n) && self.group(n) == group);
        let rate = ports().map(|n| self.members[n].member.rate.0).sum();
        let count = ports().count() as u64;
        let (first, second) = if self.settings.choice == Choice::Count { (count, rate) } else { (rate, count) };
        (self.has_partner(at), !matches!(group, Group::Alone(_)), first, second)
    }

    /// A port attaches when all that are selected and wait are ready.
    fn let_attach(&mut self) {
        let waits = |line: &Line| line.port.selected == Selected::Selected && line.port.mux == Mux::Waiting;
        let all_ready = self.members.iter().filter(|line| waits(line)).all(|line| line.port.is_ready);
        for line in &mut self.members {
            line.port.may_attach = all_ready;
        }
    }

    /// What a member may be used for.
    fn state(&self, at: usize) -> MemberState {
        let port = &self.members[at].port;
        let distributing = self.members.iter().filter(|line| line.port.mux == Mux::Distributing).count();
        match port.mux {
            _ if !port.is_enabled => MemberState::Down,
            Mux::Distributing if distributing >= usize::from(self.settings.min_links) => MemberState::Distributing,
            Mux::Collecting | Mux::Distributing if distributing >= usize::from(self.settings.min_links) => {
                MemberState::Collecting
            }
            _ => MemberState::Standby,
        }
    }
}

impl Protocol for Lacp {
    fn rx(&mut self, now: Instant, port: PortId, frame: &[u8]) -> bool {
        let Some(at) = self.place(port).filter(|_| pdu::is_slow(frame)) else { return false };
        self.hear(now, at, &frame[HEADER_BYTES..]);
        self.is_due = true;
        true
    }

    fn carrier(&mut self, now: Instant, port: PortId, is_up: bool) {
        if let Some(at) = self.place(port) {
            self.members[at].port.set_enabled(now, is_up);
            self.is_due = true;
        }
    }

    fn advance(&mut self, now: Instant, _: &mut Switch) {
        self.now = now;
        if std::mem::take(&mut self.is_due) || self.poll_timeout().is_some_and(|due| due <= now) {
            self.run(now);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.is_due {
            return Some(Instant::ZERO);
        }
        self.members.iter().filter_map(|line| line.port.poll_timeout()).min()
    }

    fn poll_tx(&mut self, pool: &mut Pool) -> Option<(PortId, Frame)> {
        if let Some((port, answer)) = self.answers.pop_front() {
            return Some((port, pool.alloc_from(&answer)?));
        }
        let now = self.now;
        for line in &mut self.members {
            if let Some(pdu) = line.port.poll_pdu(now) {
                return Some((line.member.port, pool.alloc_from(&pdu.frame(line.member.mac))?));
            }
        }
        None
    }

    fn poll_command(&mut self) -> Option<Command> {
        for at in 0..self.members.len() {
            let state = self.state(at);
            if self.members[at].told.replace(state) != Some(state) {
                return Some(Command::Member(MemberId(at as u8), state));
            }
        }
        None
    }
}

/// Key of a port: bit 0 full duplex, 1 to 5 its speed's class, 6 to 15 the operator's.
fn key(user: u16, rate: Rate) -> u16 {
    const MBIT: u64 = 1_000_000;
    const CLASSES: [u64; 14] =
        [1, 10, 100, 1000, 2500, 5000, 10_000, 14_000, 20_000, 25_000, 40_000, 50_000, 56_000, 100_000];
    let class = CLASSES.iter().take_while(|&&class| class * MBIT <= rate.0).count() as u16;
    (user & 0x3ff) << 6 | class << 1 | 1
}

#[cfg(test)]
mod tests;
