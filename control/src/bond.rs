//! The policy of a bond: which of its members carry frames, and which is the active one.
//!
//! What links do comes in as events, what the switch is to do goes out as commands; there is no
//! clock and no I/O here. Names, defaults and meanings are those of Linux
//! `Documentation/networking/bonding.rst`. A link that comes up is used after `updelay`, one that
//! goes down is given up after `downdelay`; both count anew at each change, and `updelay` is waited
//! for only while another member is up. In `802.3ad` a member that is used is one whose link is up:
//! what it carries is LACP's to say (`datapath::bond::lacp`), and so it is where the operator has
//! taken it down. In other modes such a member is on standby: what it has to send is sent by the
//! others.

use datapath::bond::number::Encoding;
use datapath::bond::{MOST_MEMBERS, MemberId, MemberState, MembersState, Mode, Negotiated};
use datapath::units::Instant;
use std::collections::VecDeque;

/// How often the links of members are asked where nothing is said, in nanoseconds. Linux has 0, no
/// monitoring, and warns of it; its document recommends 100 ms.
pub const DEFAULT_MIIMON_NS: u64 = 100_000_000;
/// Most notices after a failover, and most membership queries.
pub const MOST_NOTICES: u32 = 255;

/// What is said after a failover.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Notices {
    /// `num_grat_arp`: how often it is announced where addresses are now.
    pub announcements: u32,
    /// `peer_notif_delay`: nanoseconds between one and the next; 0 for `miimon`.
    pub gap_ns: u64,
    /// `resend_igmp`: how often guests are asked which groups they receive.
    pub queries: u32,
}

impl Default for Notices {
    /// Linux's.
    fn default() -> Self {
        Notices { announcements: 1, gap_ns: 0, queries: 1 }
    }
}

/// When another member becomes the active one although that is up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reselect {
    /// `always`: when a better one comes up.
    #[default]
    Always,
    /// `better`: when one comes up that is better and faster, or as fast and full duplex where the
    /// active one is not.
    Better,
    /// `failure`: never.
    Failure,
}

/// How `primary_reselect` is written.
pub const RESELECTS: [(&str, Reselect); 3] =
    [("always", Reselect::Always), ("better", Reselect::Better), ("failure", Reselect::Failure)];

/// How `order` is written: whether frames have numbers, and how they show them.
pub const ORDERS: [(&str, (bool, Encoding)); 3] =
    [("auto", (true, Encoding::Tag)), ("switched", (true, Encoding::Shim)), ("off", (false, Encoding::Tag))];

/// What a policy is like.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// How the bond uses its members.
    pub mode: Mode,
    /// How long a link must be up before its member is used, in nanoseconds.
    pub updelay_ns: u64,
    /// How long a link must be down before its member is given up, in nanoseconds.
    pub downdelay_ns: u64,
    /// The member that is the active one whenever it may be.
    pub primary: Option<MemberId>,
    /// When another becomes the active one although that is up.
    pub reselect: Reselect,
    /// By member: of those that are up, the one with the most is the active one; the first in the
    /// configuration where several have it.
    pub priorities: Vec<i32>,
    /// By member: whether the operator has taken it down.
    pub down: Vec<bool>,
}

impl Settings {
    fn is_down(&self, member: usize) -> bool {
        self.mode != Mode::Lacp && self.down.get(member).copied().unwrap_or(false)
    }

    fn priority(&self, member: MemberId) -> i32 {
        self.priorities.get(usize::from(member.0)).copied().unwrap_or_default()
    }
}

/// What is known of a member's link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkState {
    /// Whether it has a carrier.
    pub is_up: bool,
    /// What it has negotiated.
    pub negotiated: Negotiated,
}

/// What a policy shows of a member's link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkView {
    /// Whether it has a carrier; `None` where nobody has said so.
    pub has_carrier: Option<bool>,
    /// When a delay ends: the member is given up then where the carrier is lost, else used.
    pub turns: Option<Instant>,
}

/// What the switch is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// A member has this state now.
    State(MemberId, MemberState),
    /// This is the active member now.
    Active(Option<MemberId>),
    /// Addresses behind the bond are at this member now: those outside are to be told.
    Notify(MemberId),
}

/// The policy of one bond: events in by `set_link` and `set_settings`, commands out by `poll` until
/// it gives `None`; come back at `poll_timeout`.
#[derive(Debug)]
pub struct Policy {
    settings: Settings,
    members: Vec<Member>,
    active: Option<MemberId>,
    /// The operator chose the active member, and it stays so until one that goes before it comes
    /// up.
    is_chosen: bool,
    /// The primary becomes the active member when it is up, whatever `primary_reselect` says: it is
    /// new.
    awaits_primary: bool,
    /// At most one for each member and what follows from it: it is emptied after each call.
    commands: VecDeque<Command>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    link: LinkState,
    /// The link is only supposed to be up: nobody has said so.
    is_supposed: bool,
    is_used: bool,
    /// What the switch was told of it.
    told: MemberState,
    /// When it will be used, or given up.
    turns: Option<Instant>,
    /// Since when it is as it is.
    since: Instant,
}

impl Member {
    /// What it may be used for: on standby where its link is up and the operator has taken it down,
    /// or did so until now.
    fn state(&self, is_down: bool) -> MemberState {
        let was_down = self.told == MemberState::Standby;
        match self.is_used {
            true => MemberState::Distributing,
            false if self.link.is_up && (is_down || was_down) => MemberState::Standby,
            false => MemberState::Down,
        }
    }
}

impl Policy {
    /// The policy of a bond whose members have these states in the switch, of whose links nothing
    /// is known.
    #[must_use]
    pub fn new(settings: Settings, states: &[MemberState], active: Option<MemberId>) -> Policy {
        let is_lacp = settings.mode == Mode::Lacp;
        let member = |&state: &MemberState| match state {
            // LACP has made of it what it is.
            MemberState::Standby | MemberState::Collecting | MemberState::Distributing if is_lacp => {
                Member { is_used: true, told: MemberState::Distributing, ..Member::default() }
            }
            told => Member { is_used: told == MemberState::Distributing, told, ..Member::default() },
        };
        let members = states.iter().take(MOST_MEMBERS).map(member).collect();
        Policy { settings, members, active, is_chosen: false, awaits_primary: false, commands: VecDeque::new() }
    }

    /// Goes on where another policy of the bond was: what it knows of links, and what has begun to
    /// be waited for. By member: which one of `before` it was.
    pub fn go_on(&mut self, before: &Policy, was: &[Option<MemberId>]) {
        let is_alike = (before.settings.mode == Mode::Lacp) == (self.settings.mode == Mode::Lacp);
        for (one, was) in self.members.iter_mut().zip(was) {
            let Some(old) = was.and_then(|was| before.members.get(usize::from(was.0))) else { continue };
            (one.link, one.is_supposed, one.since) = (old.link, old.is_supposed, old.since);
            if is_alike {
                one.is_used = old.is_used;
            }
            // By hand, or in another mode, it may be what it waited to become.
            one.turns = old.turns.filter(|_| one.is_used == old.is_used);
        }
        self.awaits_primary = before.awaits_primary;
        let place = |of: Option<MemberId>| was.iter().position(|&was| was.is_some() && was == of);
        let active = place(before.active).map(|at| MemberId(at as u8));
        if self.settings.mode != Mode::ActiveBackup || before.settings.mode != Mode::ActiveBackup || active.is_none() {
            return;
        }
        self.become_active(active);
        // Another order of preference is the operator's newer word.
        let is_as_before = |(at, was): (usize, &Option<MemberId>)| {
            was.is_none_or(|was| self.settings.priority(MemberId(at as u8)) == before.settings.priority(was))
        };
        self.is_chosen = before.is_chosen && was.iter().enumerate().all(is_as_before);
    }

    /// The bond is new: its primary becomes the active member once, as soon as it is up.
    pub fn await_primary(&mut self) {
        self.awaits_primary = true;
    }

    /// How members are used, for the process that goes on after this one.
    #[must_use]
    pub fn export(&self) -> MembersState {
        let all = (0..self.members.len() as u8).map(MemberId);
        let used = all.filter(|&member| self.is_used(member)).collect();
        MembersState { used, active: self.active, is_chosen: self.is_chosen }
    }

    /// Goes on where another process was, before anything is sent. Members that it used do not wait
    /// for `updelay`.
    pub fn import(&mut self, now: Instant, state: &MembersState) {
        state.used.iter().for_each(|&member| self.skip_updelay(member));
        self.advance(now);
        let active = state.active.filter(|&active| self.is_used(active));
        if active.is_some() && self.settings.mode == Mode::ActiveBackup {
            // Who was to be it here was not told to anybody yet.
            self.commands.retain(|command| matches!(command, Command::State(..)));
            self.active = None;
            self.become_active(active);
            (self.is_chosen, self.awaits_primary) = (state.is_chosen, false);
        }
    }

    /// A member was used until now, by another process: it does not wait for `updelay`.
    pub fn skip_updelay(&mut self, member: MemberId) {
        if let Some(one) = self.members.get_mut(usize::from(member.0)).filter(|one| !one.is_used) {
            one.turns = one.turns.map(|_| Instant::ZERO);
        }
    }

    /// What it is like.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The active member.
    #[must_use]
    pub fn active(&self) -> Option<MemberId> {
        self.active
    }

    /// Since when a member has the state that the switch was told.
    #[must_use]
    pub fn since(&self, member: MemberId) -> Option<Instant> {
        self.members.get(usize::from(member.0)).map(|member| member.since)
    }

    /// By member: what is known of its link, and what is waited for.
    pub fn links(&self) -> impl Iterator<Item = LinkView> + '_ {
        self.members.iter().map(|member| LinkView {
            has_carrier: (!member.is_supposed).then_some(member.link.is_up),
            turns: member.turns,
        })
    }

    /// The operator changed it. A member that he has taken down is given up at once, and one that
    /// he has not any more is used as if its link came up now. A primary that is new, and up,
    /// becomes the active member at once; one that is new, and not up, when it comes up.
    pub fn set_settings(&mut self, now: Instant, settings: Settings) {
        if settings.primary != self.settings.primary {
            self.awaits_primary = settings.primary.is_some();
        }
        self.settings = settings;
        for member in 0..self.members.len() {
            self.follow(now, member, false);
        }
        self.advance(now);
        self.reselect(0);
    }

    /// The operator chose the active member; it stays so until it fails, or until one that goes
    /// before it comes up. Nothing where it is not up.
    pub fn set_active(&mut self, member: MemberId) {
        if self.is_used(member) && self.settings.mode == Mode::ActiveBackup {
            self.become_active(Some(member));
            (self.is_chosen, self.awaits_primary) = (true, false);
        }
    }

    /// Nobody has said yet what a member's link is like, and it is taken for this. Where it turns
    /// out to be down after all it never was up, and `downdelay` is not waited for.
    pub fn suppose_link(&mut self, now: Instant, member: MemberId, link: LinkState) {
        self.change_link(now, member, link, link.is_up);
    }

    /// What a member's link is like now.
    pub fn set_link(&mut self, now: Instant, member: MemberId, link: LinkState) {
        self.change_link(now, member, link, false);
    }

    fn change_link(&mut self, now: Instant, member: MemberId, link: LinkState, is_supposed: bool) {
        let at = usize::from(member.0);
        let Some(one) = self.members.get_mut(at) else { return };
        let had = std::mem::replace(&mut one.link, link);
        let was_supposed = std::mem::replace(&mut one.is_supposed, is_supposed);
        if !self.follow(now, at, was_supposed) && (was_supposed || had.negotiated != link.negotiated) {
            self.reselect(0);
        }
        self.advance(now);
    }

    /// A member's link, or what the operator wants of it, may be another. False where it stays
    /// used, or not used.
    fn follow(&mut self, now: Instant, at: usize, was_supposed: bool) -> bool {
        let (settings, is_down) = (&self.settings, self.settings.is_down(at));
        let one = &mut self.members[at];
        let may_be_used = one.link.is_up && !is_down;
        if may_be_used == one.is_used {
            // It was down for less than `downdelay`, or up for less than `updelay`.
            one.turns = None;
            return false;
        }
        let delay_ns = match may_be_used {
            true => settings.updelay_ns,
            false if is_down || was_supposed => 0,
            false => settings.downdelay_ns,
        };
        // What has begun goes on: only a change begins anew, and what the operator wants is at
        // once.
        let turns = now.plus_ns(delay_ns);
        one.turns = Some(one.turns.map_or(turns, |begun| begun.min(turns)));
        true
    }

    /// The next command. Members whose time has come change first.
    pub fn poll(&mut self, now: Instant) -> Option<Command> {
        self.advance(now);
        self.commands.pop_front()
    }

    /// When `poll` will have something to do, if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.commands.is_empty() {
            return Some(Instant::ZERO);
        }
        self.members.iter().filter_map(|member| member.turns).min()
    }

    fn is_used(&self, member: MemberId) -> bool {
        self.members.get(usize::from(member.0)).is_some_and(|member| member.is_used)
    }

    fn advance(&mut self, now: Instant) {
        // Members that are used now and were not, a bit each.
        let (mut has_changed, mut risen) = (false, 0);
        // Once more: the last that is given up ends the others' `updelay`.
        for _ in 0..2 {
            let none_is_used = !self.members.iter().any(|member| member.is_used);
            for (index, member) in self.members.iter_mut().enumerate() {
                if member.turns.is_none_or(|turns| turns > now && !none_is_used) {
                    continue;
                }
                (member.turns, member.is_used) = (None, !member.is_used);
                (has_changed, risen) = (true, risen | u16::from(member.is_used) << index);
            }
        }
        // What waits at an active member that goes is sent by the next one: that is known before.
        self.tell_states(now, false);
        if has_changed {
            self.reselect(risen);
        }
        self.tell_states(now, true);
    }

    /// States of members that are to be used no more, or of the others.
    fn tell_states(&mut self, now: Instant, are_going: bool) {
        for (index, member) in self.members.iter_mut().enumerate() {
            let state = member.state(self.settings.is_down(index));
            let is_going = member.told == MemberState::Distributing;
            if member.told != state && is_going == are_going {
                (member.told, member.since) = (state, now);
                self.commands.push_back(Command::State(MemberId(index as u8), state));
            }
        }
    }

    /// Chooses the active member. Those of `risen`, a bit each, have come up just now.
    fn reselect(&mut self, risen: u16) {
        if self.settings.mode != Mode::ActiveBackup {
            return;
        }
        if let Some(primary) = self.settings.primary.filter(|&primary| self.awaits_primary && self.is_used(primary)) {
            // Where it is only supposed to be up it may be so later.
            self.awaits_primary = self.members[usize::from(primary.0)].is_supposed;
            self.become_active(Some(primary));
            return;
        }
        let best = self.best();
        let next = match self.active.filter(|&active| self.is_used(active)) {
            None => best,
            Some(active) if self.may_be_replaced(active, risen) && self.is_preferred(active, best) => best,
            Some(active) => Some(active),
        };
        self.become_active(next);
    }

    fn become_active(&mut self, next: Option<MemberId>) {
        if next == self.active {
            return;
        }
        (self.active, self.is_chosen) = (next, false);
        self.commands.push_back(Command::Active(next));
        self.commands.extend(next.map(Command::Notify));
    }

    /// The primary where it is up, else the one with the most priority, the first of several.
    fn best(&self) -> Option<MemberId> {
        let used = (0..self.members.len() as u8).map(MemberId).filter(|&member| self.is_used(member));
        let rank = |member: &MemberId| {
            (self.settings.primary == Some(*member), self.settings.priority(*member), std::cmp::Reverse(*member))
        };
        used.max_by_key(rank)
    }

    /// Whether a better one may take over from an active member that is up: from one that the
    /// operator chose only when it comes up.
    fn may_be_replaced(&self, active: MemberId, risen: u16) -> bool {
        let mut all = (0..MOST_MEMBERS as u8).filter(|n| risen & 1 << n != 0).map(MemberId);
        !self.is_chosen || all.any(|member| self.is_preferred(active, Some(member)))
    }

    /// Whether `best` takes over from an active member that is up.
    fn is_preferred(&self, active: MemberId, best: Option<MemberId>) -> bool {
        let Some(best) = best.filter(|&best| best != active) else { return false };
        // Order in the file is no reason to change: only a primary or a higher priority is better.
        let is_better =
            self.settings.primary == Some(best) || self.settings.priority(best) > self.settings.priority(active);
        let link = |member: MemberId| self.members[usize::from(member.0)].link.negotiated;
        let (new, old) = (link(best), link(active));
        is_better
            && match self.settings.reselect {
                Reselect::Always => true,
                Reselect::Better => new.mbit > old.mbit || new.mbit == old.mbit && new.duplex > old.duplex,
                Reselect::Failure => false,
            }
    }
}

#[cfg(test)]
mod tests;
