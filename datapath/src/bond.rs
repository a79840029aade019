//! Bond: an uplink of several ports, its members, that carry its frames together.
//!
//! Here is what concerns each frame: which member sends it ([`Mode`], [`HashPolicy`]), when (each
//! member is paced at its own rate), and what is received from which. Who is up, and who is active,
//! is decided elsewhere and arrives as [`Bond::set_state`] and [`Bond::set_active`]. Names and
//! meanings are those of Linux `Documentation/networking/bonding.rst`.
//!
//! A frame passes `send`, waits at its member where that is busy, and leaves by `poll`. A member
//! that fails gives what waits to the others, in order. Frames wait at most [`MOST_WAIT_NS`]; more
//! are dropped, so that a member's queue is bounded in time and bytes.

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
/// Longest time that a frame may wait for its member, in nanoseconds: what two members may differ
/// by in modes that balance by hash, without a queue that delays others by more than the egress
/// queues' own target.
pub const MOST_WAIT_NS: u64 = 5_000_000;
/// A frame that will wait for longer at a member is marked, if its sender heeds that (ECN): a hash
/// may give one member more than it carries, which no queue before the bond shows.
pub const MARKED_WAIT_NS: u64 = 1_000_000;
/// How long numbered frames are kept to be sent again, in nanoseconds: the peer notices a
/// silent member within 12.5 ms, and says what it has received each 5 ms.
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

    /// Whether a hash of the frame says which member sends it.
    #[must_use]
    pub fn hashes(self) -> bool {
        matches!(self, Mode::BalanceXor | Mode::Lacp)
    }
}

/// What a bond is like.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BondSettings {
    /// How it uses its members.
    pub mode: Mode,
    /// What the hash is made of, in modes that balance by one.
    pub hash: HashPolicy,
    /// `balance-rr`: frames that a member sends before it is the next one's turn; 0: a random
    /// member for each frame.
    pub packets_per_member: u16,
    /// `active-backup`: whether frames that arrive over other members are received too.
    pub all_members_active: bool,
    /// `balance-rr`, `broadcast`: whether frames have numbers where the other end is such a bond
    /// too, and are put in order there.
    pub order: bool,
    /// How frames show their numbers: by a shim where bridges are between the two bonds.
    pub encoding: Encoding,
    /// How long a frame may wait for an earlier one, in nanoseconds.
    pub hold_ns: u64,
    /// Whether hellos are under a secret ([`Bond::set_key`]); without it none are said or heard.
    pub is_keyed: bool,
    /// `802.3ad`: what the protocol is told.
    pub lacp: LacpSettings,
}

impl BondSettings {
    /// Whether frames may have numbers: the mode has a use for them, and they are asked for.
    #[must_use]
    pub fn may_number(&self) -> bool {
        self.order && matches!(self.mode, Mode::BalanceRr | Mode::Broadcast)
    }

    /// Bytes by which a number makes a frame longer than what an interface takes: it takes one VLAN
    /// tag beside its MTU, and no shim.
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

/// A bond: frames in by `send`, changes by `set_...`, frames out by `poll` until it gives `None`;
/// come back at `poll_timeout`.
#[derive(Debug)]
pub struct Bond {
    settings: BondSettings,
    members: Vec<Member>,
    /// The distributing members in configured order.
    senders: Senders,
    active: Option<MemberId>,
    turn: Turn,
    /// With numbers: where among the senders the next frame's turn is, of members that have it out
    /// equally soon.
    next_equal: u8,
    /// The other end, in modes that number.
    peer: Option<Box<Peer>>,
    /// What is agreed with the other end in `802.3ad`.
    lacp: Option<Box<Lacp>>,
    /// No frame that waits leaves before.
    due: Instant,
    /// Whose what is kept is.
    keepers: Keepers,
    /// The longest frame that is to be sent with a number, in bytes; the tag that `max_frame`s do
    /// not count is the number's.
    longest: u32,
    /// See [`Bond::left_out`].
    left_out: u16,
    /// Who may send, or how fast, is another than before.
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
    /// And each numbered frame goes to the next in turn.
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

/// Round robin: whose turn it is.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// Counts turns; the sender is this modulo the count of senders.
    at: u32,
    /// Frames that this turn has left.
    left: u16,
    /// Splitmix64's state, for turns at random.
    random: u64,
}

impl Turn {
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
    /// A bond of members with these rates, all of them down. `seed` is that of turns at random.
    #[must_use]
    pub fn new(settings: BondSettings, rates: &[Rate], seed: u64) -> Bond {
        let members = rates.iter().take(MOST_MEMBERS).map(|&rate| Member::new(rate)).collect();
        let turn = Turn { at: u32::MAX, left: 0, random: seed };
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

    /// What it is like.
    #[must_use]
    pub fn settings(&self) -> &BondSettings {
        &self.settings
    }

    /// Its members, in configured order.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The state of a member; `Down` for one that is not there.
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

    /// What a member carries, in wire bits a second: what it is configured for, or its link's speed
    /// where that is less.
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

    /// What the bond carries now, in wire bits a second: the sum of the distributing members'
    /// rates; of the active one alone in `active-backup`, of the slowest in `broadcast`. Zero
    /// without any.
    #[must_use]
    pub fn rate(&self) -> Rate {
        let rates = self.senders.all().iter().map(|&member| self.members[usize::from(member)].rate().0);
        Rate(match self.settings.mode {
            Mode::BalanceRr | Mode::BalanceXor | Mode::Lacp => rates.fold(0, u64::saturating_add),
            Mode::ActiveBackup => self.active_sender().map_or(0, |member| self.members[member].rate().0),
            Mode::Broadcast => rates.min().unwrap_or(0),
        })
    }

    /// Changes what it is like. What waits stays where it is.
    fn set_settings(&mut self, settings: BondSettings) {
        self.settings = settings;
        self.turn.left = self.turn.left.min(settings.packets_per_member);
    }

    /// Takes other members, each with its rate and with which one it was before; one that is new is
    /// down. What waits at those that go is sent by the others. Returns how many frames were freed.
    pub fn set_members(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        settings: BondSettings,
        rates: &[Rate],
        was: &[Option<MemberId>],
    ) -> u32 {
        // The peer is told of members as they are without an agreement, where that ends.
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

    /// Changes a member's state; in `802.3ad`, what is known of its link: it is down where `state`
    /// is that, and else as the protocol has agreed. What waits at a member that distributes no
    /// more is sent by the others, in order; frames that nobody can send are freed, and their
    /// number returned. With numbers the other end sends nothing to a member on standby.
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

    /// Says what a member's link has negotiated; `None` where it has no carrier, which is taken for
    /// what it was. The member carries no more than its link's speed, and what waits at it leaves
    /// at that. In `802.3ad` it decides which members aggregate. Returns how many frames were freed
    /// since members may send no more.
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

    /// Changes the active member. In `active-backup` what waits at the one before is sent by this
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

    /// Takes what waits at a member and lets the bond choose again. Copies have gone by the other
    /// members already.
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

    /// Finds who may send. What waits at others is sent by these, in order; frames that nobody can
    /// send are freed, and their number returned.
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

    /// A frame is to leave. Its layout and wire bytes must be known. Gives it back, with the member
    /// that sends it, where it does so at once.
    ///
    /// # Errors
    /// [`Reason::PortDown`] where no member may send, [`Reason::MemberFull`] where the frame's has
    /// too much to send already; the frame is then freed.
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
        // Where there is something, it is a number.
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

    /// A frame may have come to wait at a member.
    #[inline]
    fn waits_from(&mut self, index: usize) {
        let due = self.members.get(index).and_then(Member::due);
        self.due = self.due.min(due.unwrap_or(Instant(u64::MAX)));
    }

    /// Every member gets a copy. One that is full, or for which there is no buffer, goes without,
    /// which is counted there.
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

    /// The active member, where it distributes; in modes that know none, the first that does.
    fn active_sender(&self) -> Option<usize> {
        let active = self.active.map(|member| usize::from(member.0));
        match self.settings.mode {
            Mode::ActiveBackup => active
                .filter(|&at| self.members.get(at).is_some_and(|member| member.state() == MemberState::Distributing)),
            _ => self.senders.by_hash(0),
        }
    }

    /// Whether what arrives over a member is received; a number may have been taken off it.
    ///
    /// # Errors
    /// [`Reason::MemberInactive`] where it is not.
    #[inline]
    pub fn receive(&mut self, pool: &Pool, member: MemberId, frame: &Frame, had_number: bool) -> Result<(), Reason> {
        self.may_receive(member)?;
        if let Some(found) = self.members.get_mut(usize::from(member.0)) {
            found.count_received(pool, frame, had_number);
        }
        Ok(())
    }

    /// The same, without a frame.
    ///
    /// # Errors
    /// [`Reason::MemberInactive`] where it is not.
    #[inline]
    pub fn may_receive(&self, member: MemberId) -> Result<(), Reason> {
        let may = match self.settings.mode {
            // Whoever sends knows that the link is up, which this end may not know yet, or waits to
            // be sure of.
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

    /// When the first frame that waits leaves.
    fn frames_due(&self) -> Option<Instant> {
        self.senders.all().iter().filter_map(|&index| self.members[usize::from(index)].due()).min()
    }

    /// When `poll` and the other calls will have something to do, if nothing is sent before.
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

    /// Frames that it has: those that wait, here and for order, and those that are kept.
    #[must_use]
    pub fn frames(&self) -> usize {
        let kept: u32 = self.members.iter().map(|member| member.kept.count()).sum();
        let held = self.peer.as_ref().map_or(0, |peer| peer.order.stats().waiting);
        (self.waiting() + kept + held) as usize
    }

    /// Frees every frame; returns how many there were that were still to go.
    pub fn clear(&mut self, pool: &mut Pool) -> u32 {
        self.let_kept_go(pool);
        let held = self.peer.as_mut().map_or(0, |peer| peer.order.clear(pool));
        held + self.members.iter_mut().map(|member| member.take_waiting().clear(pool)).sum::<u32>()
    }
}

/// Whether a frame is a message of IGMP or MLD: in `balance-rr` they leave by one member, so that a
/// switch outside sees the groups in one place (the bonding document's `resend_igmp`).
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
