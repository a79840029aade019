//! Bond: an uplink of several ports, its members, that carry its frames together.
//!
//! This module decides for each frame which member sends it ([`Mode`], [`HashPolicy`]) and when:
//! each member is paced at its own rate. It also decides which members are received from. Which
//! member is up or active is decided elsewhere, and set by [`Bond::set_state`] and
//! [`Bond::set_active`]. Names and meanings are those of Linux
//! `Documentation/networking/bonding.rst`.
//!
//! A frame enters by `send`, waits at its member if that is busy, and leaves by `poll`. If a member
//! fails, the others send the frames that wait there, in order. A frame that would wait longer than
//! [`MOST_WAIT_NS`] is dropped: this bounds a member's queue in time and bytes.

mod agreed;
mod hash;
pub mod hello;
mod kept;
pub mod lacp;
mod loss;
mod member;
mod negotiated;
pub mod number;
mod numbered;
pub mod order;
mod peer;
mod saved;
mod secret;
mod way;

pub use crate::ids::MemberId;
pub use hash::HashPolicy;
pub use member::{BURST_NS, MemberCounts, MemberState};
pub use negotiated::{Duplex, Negotiated};
pub use numbered::PeerView;
pub use peer::{Plain, SILENCE_NS};
pub use saved::{LineState, MembersState, PeerState};

use crate::frame::{Fifo, Frame, Pool};
use crate::units::{Instant, Rate, earlier};
use crate::verdict::Reason;
use crate::wire::vlan::TAG;
use crate::wire::{Icmp, Ipv4, L3, L4, Layout, destination, icmpv6, protocol};
use kept::Keepers;
use lacp::{Lacp, LacpSettings};
use member::Member;
use number::Encoding;
use peer::Peer;
pub use way::Way;

/// Most members of a bond.
pub const MOST_MEMBERS: usize = MemberId::MOST;
/// Longest time that a frame may wait for its member, in nanoseconds. In modes that balance by
/// hash, members may differ by this much; the delay does not exceed the egress queues' own target.
pub const MOST_WAIT_NS: u64 = 5_000_000;
/// A frame that will wait longer than this at a member is marked, if its sender supports ECN. A
/// hash may give one member more than it carries, and no queue before the bond shows that.
pub const MARKED_WAIT_NS: u64 = 1_000_000;
/// How long numbered frames are kept to be sent again, in nanoseconds. The peer notices a silent
/// member within 12.5 ms, and reports each 5 ms what it has received.
pub const REPLAY_KEPT_NS: u64 = 20_000_000;

/// How a bond uses its members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// `balance-rr`: in turn.
    #[default]
    BalanceRr,
    /// `active-backup`: the active member.
    ActiveBackup,
    /// `balance-xor`: by a hash of the frame.
    BalanceXor,
    /// `broadcast`: all members.
    Broadcast,
    /// `802.3ad`: by a hash of the frame, among members that both ends have agreed on.
    Lacp,
}

impl Mode {
    /// Each with the name that Linux gives it.
    pub const ALL: [(&'static str, Mode); 5] = [
        ("balance-rr", Mode::BalanceRr),
        ("active-backup", Mode::ActiveBackup),
        ("balance-xor", Mode::BalanceXor),
        ("broadcast", Mode::Broadcast),
        ("802.3ad", Mode::Lacp),
    ];

    /// The name that Linux gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        Mode::ALL[self as usize].0
    }

    /// Whether a hash of the frame selects the member that sends it.
    #[must_use]
    pub fn hashes(self) -> bool {
        matches!(self, Mode::BalanceXor | Mode::Lacp)
    }
}

/// The settings of a bond.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BondSettings {
    /// How it uses its members.
    pub mode: Mode,
    /// What the hash covers, in modes that balance by hash.
    pub hash: HashPolicy,
    /// `balance-rr`: frames that a member sends before the next one's turn; 0: a random member for
    /// each frame.
    pub packets_per_member: u16,
    /// `active-backup`: whether frames that arrive over inactive members are received too.
    pub all_members_active: bool,
    /// `balance-rr`, `broadcast`: whether frames get numbers if the other end is such a bond too,
    /// and are put in order there.
    pub order: bool,
    /// How frames show their numbers: by a shim if bridges are between the two bonds.
    pub encoding: Encoding,
    /// How long a frame may wait for an earlier one, in nanoseconds.
    pub hold_ns: u64,
    /// Whether hellos are under a secret ([`Bond::set_key`]); without it none are sent or accepted.
    pub is_keyed: bool,
    /// `802.3ad`: the settings of the protocol.
    pub lacp: LacpSettings,
}

impl BondSettings {
    /// Whether frames may have numbers: they are configured, and the mode uses them.
    #[must_use]
    pub fn may_number(&self) -> bool {
        self.order && matches!(self.mode, Mode::BalanceRr | Mode::Broadcast)
    }

    /// Bytes that a number adds to what an interface counts: one VLAN tag is not counted in the
    /// MTU, a shim is.
    #[must_use]
    pub fn shim_bytes(&self) -> u32 {
        if self.may_number() && self.encoding == Encoding::Shim { TAG as u32 } else { 0 }
    }
}

impl Default for BondSettings {
    fn default() -> Self {
        BondSettings {
            mode: Mode::default(),
            hash: HashPolicy::default(),
            packets_per_member: 1,
            all_members_active: false,
            order: false,
            encoding: Encoding::Tag,
            hold_ns: order::DEFAULT_HOLD_NS,
            is_keyed: false,
            lacp: LacpSettings::default(),
        }
    }
}

/// A bond: frames in by `send`, changes by `set_...`, frames out by `poll` until it returns `None`;
/// call it again at `poll_timeout`.
#[derive(Debug)]
pub struct Bond {
    settings: BondSettings,
    members: Vec<Member>,
    /// The distributing members in configured order.
    senders: Senders,
    active: Option<MemberId>,
    turn: RoundRobin,
    /// With numbers: the place among the senders at which the next frame's turn begins, of members
    /// that would finish sending it equally soon.
    next_equal: u8,
    /// The other end, if frames may have numbers.
    peer: Option<Box<Peer>>,
    /// What is agreed with the other end in `802.3ad`.
    lacp: Option<Box<Lacp>>,
    /// No waiting frame leaves before this.
    due: Instant,
    /// Which endpoints sent the frames that are kept.
    keepers: Keepers,
    /// The longest frame that is to be sent, in bytes, without a number. Ports take one tag more
    /// than `max_frame`: the number.
    longest: u32,
    /// See [`Bond::left_out`].
    left_out: u16,
    /// The members that may send, or their rates, have changed.
    has_changed: bool,
    seed: u64,
}

/// Members that may send, in configured order.
#[derive(Clone, Copy, Debug, Default)]
struct Senders {
    members: [u8; MOST_MEMBERS],
    count: u8,
    /// They have the same rate.
    are_alike: bool,
    /// And each numbered frame is sent by the next in turn.
    take_turns: bool,
}

impl Senders {
    /// The one for this hash.
    #[inline]
    fn by_hash(&self, hash: u32) -> Option<usize> {
        (self.count > 0).then(|| usize::from(self.members[(hash % u32::from(self.count)) as usize]))
    }

    fn all(&self) -> &[u8] {
        &self.members[..usize::from(self.count)]
    }
}

/// Round robin: which member's turn it is.
#[derive(Clone, Copy, Debug, Default)]
struct RoundRobin {
    /// Counts turns; the sender is this modulo the count of senders.
    at: u32,
    /// Frames left in this turn.
    left: u16,
    /// Splitmix64's state, for turns at random.
    random: u64,
}

impl RoundRobin {
    #[inline]
    fn next(&mut self, packets: u16) -> u32 {
        if packets == 0 {
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            return ((z ^ (z >> 27)) >> 32) as u32;
        }
        if self.left == 0 {
            self.at = self.at.wrapping_add(1);
            self.left = packets;
        }
        self.left -= 1;
        self.at
    }
}

impl Bond {
    /// A bond of members with these rates, all of them down. `seed` is for random choices.
    #[must_use]
    pub fn new(settings: BondSettings, rates: &[Rate], seed: u64) -> Bond {
        let members = rates.iter().take(MOST_MEMBERS).map(|&rate| Member::new(rate)).collect();
        let turn = RoundRobin { at: u32::MAX, left: 0, random: seed };
        let mut bond = Bond {
            settings,
            members,
            senders: Senders::default(),
            active: None,
            turn,
            next_equal: 0,
            peer: None,
            lacp: None,
            due: Instant::ZERO,
            keepers: Keepers::default(),
            longest: 0,
            left_out: 0,
            has_changed: false,
            seed,
        };
        bond.set_settings(settings);
        bond
    }

    /// Its settings.
    #[must_use]
    pub fn settings(&self) -> &BondSettings {
        &self.settings
    }

    /// Its members, in configured order.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The state of a member; `Down` for one that does not exist.
    #[must_use]
    pub fn state(&self, member: MemberId) -> MemberState {
        self.members.get(usize::from(member.0)).map_or(MemberState::Down, Member::state)
    }

    /// Since when a member has its state.
    #[must_use]
    pub fn since(&self, member: MemberId) -> Instant {
        self.members.get(usize::from(member.0)).map(Member::since).unwrap_or_default()
    }

    /// What a member's link has negotiated.
    #[must_use]
    pub fn negotiated(&self, member: MemberId) -> Negotiated {
        self.members.get(usize::from(member.0)).map(|member| member.negotiated).unwrap_or_default()
    }

    /// What a member carries, in wire bits a second: its configured rate, or its link's speed if
    /// that is less.
    #[must_use]
    pub fn carries(&self, member: MemberId) -> Rate {
        self.members.get(usize::from(member.0)).map(Member::rate).unwrap_or_default()
    }

    /// What a member has carried.
    #[must_use]
    pub fn counts(&self, member: MemberId) -> MemberCounts {
        let at = usize::from(member.0);
        let lost = self.peer.as_ref().map_or(0, |peer| peer.lost(at));
        self.members.get(at).map(|member| MemberCounts { lost, ..member.counts() }).unwrap_or_default()
    }

    /// The active member.
    #[must_use]
    pub fn active(&self) -> Option<MemberId> {
        self.active
    }

    /// What the bond carries now, in wire bits a second: the sum over the members that may send; in
    /// `active-backup` the active one's rate, in `broadcast` the slowest one's. Zero if none may
    /// send.
    #[must_use]
    pub fn rate(&self) -> Rate {
        let rates = self.senders.all().iter().map(|&member| self.members[usize::from(member)].rate().0);
        Rate(match self.settings.mode {
            Mode::BalanceRr | Mode::BalanceXor | Mode::Lacp => rates.fold(0, u64::saturating_add),
            Mode::ActiveBackup => self.active_sender().map_or(0, |member| self.members[member].rate().0),
            Mode::Broadcast => rates.min().unwrap_or(0),
        })
    }

    /// Changes the settings. Frames that wait stay where they are.
    fn set_settings(&mut self, settings: BondSettings) {
        self.settings = settings;
        self.turn.left = self.turn.left.min(settings.packets_per_member);
    }

    /// Changes the members: `rates` has their rates, `was` which one each was before; a new one is
    /// down. What waits at removed members is sent by the others. Returns how many frames were
    /// freed.
    pub fn set_members(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        settings: BondSettings,
        rates: &[Rate],
        was: &[Option<MemberId>],
    ) -> u32 {
        // If an agreement ends, the peer gets the members' states without it.
        self.set_settings(settings);
        self.change_lacp(now, rates, was);
        let mut freed = self.change_settings(pool, now, settings);
        let mut before: Vec<_> = std::mem::take(&mut self.members).into_iter().map(Some).collect();
        for (&rate, was) in rates.iter().zip(was).take(MOST_MEMBERS) {
            let old = was.and_then(|was| before.get_mut(usize::from(was.0))?.take());
            let mut member = old.unwrap_or_else(|| Member::new(rate));
            member.set_rate(pool, rate);
            self.members.push(member);
        }
        let place = |old: MemberId| was.iter().position(|&was| was == Some(old)).map(|n| MemberId(n as u8));
        self.active = self.active.and_then(place);
        if let Some(peer) = &mut self.peer {
            peer.set_members(now, was);
        }
        self.follow_lacp(now);
        freed += self.find_senders(pool, now);
        for mut member in before.into_iter().flatten() {
            member.kept.clear(pool, &mut self.keepers);
            freed += self.send_again(pool, now, member.take_waiting(), self.settings.mode == Mode::Broadcast);
        }
        freed
    }

    /// Changes a member's state. In `802.3ad`, `state` only has whether the link is down; the
    /// protocol decides the rest. What waits at a member that stops distributing is sent by the
    /// others, in order. Returns how many frames no member could send: they are freed. With
    /// numbers, the other end sends nothing to a member on standby.
    pub fn set_state(&mut self, pool: &mut Pool, now: Instant, member: MemberId, state: MemberState) -> u32 {
        let index = usize::from(member.0);
        let Some(found) = self.members.get_mut(index) else { return 0 };
        match &mut self.lacp {
            Some(lacp) => lacp.set_link(now, member, state != MemberState::Down),
            None => found.set_state(now, state),
        }
        self.follow_lacp(now);
        if let Some(peer) = &mut self.peer {
            peer.set_up(now, index, state != MemberState::Down);
            peer.withhold(now, index, state == MemberState::Standby);
        }
        self.find_senders(pool, now)
    }

    /// Sets what a member's link has negotiated; `None` if it has no carrier: its rate stays as it
    /// was. The member carries no more than its link's speed, and what waits there leaves at that
    /// speed. In `802.3ad` it decides which members aggregate. Returns how many frames were freed
    /// for want of a member.
    pub fn set_negotiated(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        member: MemberId,
        negotiated: Option<Negotiated>,
    ) -> u32 {
        let Some(found) = self.members.get_mut(usize::from(member.0)) else { return 0 };
        found.negotiated = negotiated.unwrap_or_default();
        let Some(negotiated) = negotiated else { return 0 };
        self.has_changed |= found.set_speed(pool, negotiated.speed());
        if let Some(lacp) = &mut self.lacp {
            lacp.set_negotiated(member, negotiated);
        }
        self.follow_lacp(now);
        self.find_senders(pool, now)
    }

    /// Changes the active member. In `active-backup` what waits at the former one is sent by this
    /// one.
    pub fn set_active(&mut self, pool: &mut Pool, now: Instant, active: Option<MemberId>) -> u32 {
        let before = std::mem::replace(&mut self.active, active);
        match before {
            Some(before) if before != active.unwrap_or(before) && self.settings.mode == Mode::ActiveBackup => {
                self.move_waiting(pool, now, usize::from(before.0), false)
            }
            _ => 0,
        }
    }

    /// Takes what waits at a member, and chooses a member again for each frame. Copies are freed:
    /// the other members send the same frames.
    fn move_waiting(&mut self, pool: &mut Pool, now: Instant, index: usize, is_copy: bool) -> u32 {
        let Some(member) = self.members.get_mut(index) else { return 0 };
        let (kept, waiting) = (std::mem::take(&mut member.kept), member.take_waiting());
        self.replay(pool, now, kept);
        self.send_again(pool, now, waiting, is_copy)
    }

    fn send_again(&mut self, pool: &mut Pool, now: Instant, mut waiting: Fifo, is_copy: bool) -> u32 {
        if is_copy {
            waiting.clear(pool);
        }
        let (mut freed, mut last) = (0, None);
        while let Some(frame) = waiting.pop(pool) {
            let sent = if self.is_numbering() {
                self.send_numbered_again(pool, now, &mut last, frame)
            } else {
                match self.choose(pool, &frame) {
                    Some(index) => {
                        let pushed = self.members[index].push(pool, now, frame);
                        self.waits_from(index);
                        pushed
                    }
                    None => Err(frame),
                }
            };
            if let Err(frame) = sent {
                pool.free(frame);
                freed += 1;
            }
        }
        freed
    }

    /// Finds the members that may send. What waits at others is sent by these, in order. Returns
    /// how many frames were freed, as no member could send them.
    fn find_senders(&mut self, pool: &mut Pool, now: Instant) -> u32 {
        self.agree(now);
        let mut senders = Senders::default();
        let mut left_out = 0;
        let may_send =
            |index: usize, member: &Member| member.state() == MemberState::Distributing && self.is_known(index);
        let spares_slow = (0..).zip(&self.members).any(|(index, one)| may_send(index, one) && !self.is_slow(one));
        for (index, member) in self.members.iter().enumerate() {
            if member.state() != MemberState::Distributing {
                continue;
            }
            if self.is_known(index) {
                if spares_slow && self.is_slow(member) {
                    continue;
                }
                senders.members[usize::from(senders.count)] = index as u8;
                senders.count += 1;
            } else if self.leaves_out(index) {
                left_out |= 1 << index;
            }
        }
        self.left_out = left_out;
        if let Some(at) = self.alone(now).filter(|&at| senders.all().contains(&(at as u8))) {
            (senders.members[0], senders.count) = (at as u8, 1);
        }
        let mut rates = senders.all().iter().map(|&index| self.members[usize::from(index)].rate());
        let first = rates.next();
        senders.are_alike = rates.all(|rate| Some(rate) == first);
        let by_turns = self.settings.mode == Mode::BalanceRr && self.settings.encoding == Encoding::Tag;
        senders.take_turns = senders.are_alike && self.is_numbering() && by_turns;
        self.has_changed |= senders.all() != self.senders.all();
        self.senders = senders;
        self.due = Instant::ZERO;
        let is_copy = self.settings.mode == Mode::Broadcast;
        let mut freed = 0;
        for index in 0..self.members.len() {
            let has_frames = self.members[index].waiting() + self.members[index].kept.count() > 0;
            if has_frames && !self.senders.all().contains(&(index as u8)) {
                freed += self.move_waiting(pool, now, index, is_copy);
            }
        }
        freed
    }

    /// Sends a frame, whose layout and wire bytes must be known. If it leaves at once, returns it
    /// with the member that sends it.
    ///
    /// # Errors
    /// [`Reason::PortDown`] if no member may send, [`Reason::MemberFull`] if the frame's member has
    /// too much to send already, for example. The frame is then freed.
    #[inline]
    pub fn send(&mut self, pool: &mut Pool, now: Instant, frame: Frame) -> Result<Option<(MemberId, Frame)>, Reason> {
        if self.senders.take_turns
            && let Some(member) = self.send_in_turn(pool, now, &frame)
        {
            return Ok(Some((member, frame)));
        }
        self.send_otherwise(pool, now, frame)
    }

    fn send_otherwise(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        frame: Frame,
    ) -> Result<Option<(MemberId, Frame)>, Reason> {
        if self.senders.count == 0 {
            pool.free(frame);
            return Err(Reason::PortDown);
        }
        if self.is_numbering() {
            return self.send_numbered(pool, now, frame);
        }
        if self.peer.is_some() && !number::yield_priority(pool.bytes_mut(&frame)) {
            pool.free(frame);
            return Err(Reason::Reserved);
        }
        // A value here would be taken for a number.
        pool.meta_mut(&frame).flow = None;
        if self.settings.mode == Mode::Broadcast {
            return self.send_copies(pool, now, frame).map(|()| None);
        }
        let chosen = self.choose(pool, &frame);
        let Some((index, member)) = chosen.and_then(|index| Some((index, self.members.get_mut(index)?))) else {
            pool.free(frame);
            return Err(Reason::MemberFull);
        };
        if member.passes(now) {
            member.pass(pool, now, &frame);
            return Ok(Some((MemberId(index as u8), frame)));
        }
        member.mark(pool, now, &frame);
        let pushed = member.push(pool, now, frame);
        self.waits_from(index);
        pushed.map(|()| None).map_err(|frame| {
            pool.free(frame);
            Reason::MemberFull
        })
    }

    /// A frame may now wait at a member.
    #[inline]
    fn waits_from(&mut self, index: usize) {
        let due = self.members.get(index).and_then(Member::due);
        self.due = self.due.min(due.unwrap_or(Instant(u64::MAX)));
    }

    /// Every member gets a copy. A member that is full, or for which there is no buffer, gets none,
    /// and counts a drop.
    fn send_copies(&mut self, pool: &mut Pool, now: Instant, frame: Frame) -> Result<(), Reason> {
        let senders = self.senders;
        let Some((&last, others)) = senders.all().split_last() else {
            pool.free(frame);
            return Err(Reason::PortDown);
        };
        let mut sent = 0;
        for &index in others {
            let member = &mut self.members[usize::from(index)];
            let Some(copy) = pool.duplicate(&frame) else {
                member.count_drop();
                continue;
            };
            match member.push(pool, now, copy) {
                Ok(()) => sent += 1,
                Err(copy) => pool.free(copy),
            }
        }
        self.due = Instant::ZERO;
        match self.members[usize::from(last)].push(pool, now, frame) {
            Ok(()) => Ok(()),
            Err(frame) => {
                pool.free(frame);
                if sent > 0 { Ok(()) } else { Err(Reason::MemberFull) }
            }
        }
    }

    /// The member that sends a frame; of `broadcast`, one of them.
    #[inline]
    fn choose(&mut self, pool: &Pool, frame: &Frame) -> Option<usize> {
        match self.settings.mode {
            Mode::BalanceRr
                if may_be_membership(&pool.meta(frame).layout)
                    && is_membership(pool.bytes(frame), &pool.meta(frame).layout) =>
            {
                self.active_sender()
            }
            Mode::BalanceRr => self.senders.by_hash(self.turn.next(self.settings.packets_per_member)),
            Mode::BalanceXor | Mode::Lacp => {
                let hash = self.settings.hash.hash(pool.bytes(frame), &pool.meta(frame).layout);
                self.senders.by_hash(hash)
            }
            Mode::ActiveBackup => self.active_sender(),
            Mode::Broadcast => self.senders.by_hash(0),
        }
    }

    /// The active member, if it distributes; in modes without one, the first that may send.
    fn active_sender(&self) -> Option<usize> {
        let active = self.active.map(|member| usize::from(member.0));
        match self.settings.mode {
            Mode::ActiveBackup => active
                .filter(|&at| self.members.get(at).is_some_and(|member| member.state() == MemberState::Distributing)),
            _ => self.senders.by_hash(0),
        }
    }

    /// Receives a frame that arrived over a member, if the mode and the member's state allow that.
    /// `had_number`: a number was taken off it.
    ///
    /// # Errors
    /// [`Reason::MemberInactive`] if it is not received.
    #[inline]
    pub fn receive(&mut self, pool: &Pool, member: MemberId, frame: &Frame, had_number: bool) -> Result<(), Reason> {
        self.may_receive(member)?;
        if let Some(found) = self.members.get_mut(usize::from(member.0)) {
            found.count_received(pool, frame, had_number);
        }
        Ok(())
    }

    /// Whether frames that arrive over a member are received.
    ///
    /// # Errors
    /// [`Reason::MemberInactive`] if it is not received.
    #[inline]
    pub fn may_receive(&self, member: MemberId) -> Result<(), Reason> {
        let may = match self.settings.mode {
            // The sender knows that the link is up. This end may not know that yet, or waits for
            // `updelay`.
            Mode::BalanceRr | Mode::BalanceXor | Mode::Broadcast => true,
            Mode::ActiveBackup if self.settings.all_members_active => self.state(member).receives(),
            Mode::ActiveBackup => self.state(member).receives() && self.active == Some(member),
            Mode::Lacp => self.state(member).receives(),
        };
        if may { Ok(()) } else { Err(Reason::MemberInactive) }
    }

    /// Whether a frame for a reserved address is for the bond itself.
    #[must_use]
    pub fn is_addressed(&self, bytes: &[u8]) -> bool {
        match &self.lacp {
            Some(_) => lacp::pdu::is_slow(bytes),
            None => self.peer.is_some() && hello::is_hello(bytes),
        }
    }

    /// The next frame whose time has come, and the member that sends it.
    #[inline]
    pub fn poll(&mut self, pool: &mut Pool, now: Instant) -> Option<(MemberId, Frame)> {
        if now < self.due { None } else { self.poll_due(pool, now) }
    }

    fn poll_due(&mut self, pool: &mut Pool, now: Instant) -> Option<(MemberId, Frame)> {
        for index in 0..self.senders.count {
            let index = self.senders.members[usize::from(index)];
            if let Some(frame) = self.members[usize::from(index)].pop(pool, now) {
                self.has_left(pool, now, usize::from(index), &frame);
                return Some((MemberId(index), frame));
            }
        }
        self.due = self.frames_due().unwrap_or(Instant(u64::MAX));
        None
    }

    /// When the first waiting frame leaves.
    fn frames_due(&self) -> Option<Instant> {
        self.senders.all().iter().filter_map(|&index| self.members[usize::from(index)].due()).min()
    }

    /// When `poll` and the other calls have something to do, if nothing is sent before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let frames = self.frames_due();
        let peer = self.peer.as_ref().and_then(|peer| peer.poll_timeout());
        earlier(frames, earlier(peer, self.lacp.as_ref().and_then(|lacp| lacp.poll_timeout())))
    }

    /// Frames that wait.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.members.iter().map(Member::waiting).sum()
    }

    /// Frames that it holds: those that wait for a member or for order, and those that are kept.
    #[must_use]
    pub fn frames(&self) -> usize {
        let kept: u32 = self.members.iter().map(|member| member.kept.count()).sum();
        let held = self.peer.as_ref().map_or(0, |peer| peer.order.stats().waiting);
        (self.waiting() + kept + held) as usize
    }

    /// Frees every frame; returns how many of them were still to be sent or received.
    pub fn clear(&mut self, pool: &mut Pool) -> u32 {
        self.let_kept_go(pool);
        let held = self.peer.as_mut().map_or(0, |peer| peer.order.clear(pool));
        held + self.members.iter_mut().map(|member| member.take_waiting().clear(pool)).sum::<u32>()
    }
}

/// Whether a frame may be a message of IGMP or MLD. In `balance-rr` these leave by one member, so
/// that an external switch sees the groups at one port (the bonding document's `resend_igmp`).
#[inline]
fn may_be_membership(layout: &Layout) -> bool {
    matches!((layout.l3, layout.l4), (L3::Ipv4, L4::Other) | (L3::Ipv6, L4::Icmpv6))
}

fn is_membership(bytes: &[u8], layout: &Layout) -> bool {
    if !may_be_membership(layout) || !destination(bytes).is_group() {
        return false;
    }
    match layout.l4 {
        L4::Other => Ipv4::of(bytes, layout).is_some_and(|ip| ip.protocol() == protocol::IGMP),
        L4::Icmpv6 => Icmp::of(bytes, layout).is_some_and(|icmp| {
            matches!(icmp.kind(), icmpv6::MLD_QUERY | icmpv6::MLD_REPORT | icmpv6::MLD_DONE | icmpv6::MLDV2_REPORT)
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
