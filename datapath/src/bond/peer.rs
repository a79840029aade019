//! Peer: the Levada bond at the other end, if there is one. Both agree by hellos that frames have
//! numbers. Then this module numbers what is sent, reports what was sent and received, and restores
//! the order of what arrives.
//!
//! Frames get numbers as soon as the other end has reported that it receives from a member, and use
//! such members only. If the other end answers on some members only, no frame is sent over the
//! others: it would be lost, or out of order. Until a member's other end is known, frames with a
//! number are dropped: in a tenant's network the number would be a tag.
//!
//! A bond whose first link comes up, or that meets another peer, uses one member only at first:
//! frames without numbers would get out of order over several. The first numbers go over it too,
//! behind those frames. After [`ALONE_NS`] it uses all members, with numbers or without.
//!
//! A member is silent if the other end's numbers have not arrived over it for [`SILENCE_NS`] while
//! they arrived over others. The next hello reports that. The other end then stops sending over it,
//! and sends again what it has kept of the frames sent there. If all members are silent, nothing is
//! concluded: the other host, or this one, is paused. A peer without frames to send is silent too.
//! So while a member is behind, the other end is asked for hellos. The member is silent only if
//! something arrives over another one meanwhile.
//!
//! At most [`SPAN`] numbers are unacknowledged: a window, as in any protocol that retransmits (RFC
//! 9293; AM_Window_Size in 3GPP TS 38.322). Further frames wait in their owners' queues. So at any
//! rate of frames, the other end still waits for what a silent member lost when it is sent again.
//!
//! A cable over which this bond receives its own hellos leads back. Both its ends are left out
//! until none has arrived for [`MISWIRED_NS`]. Over bridges, and if all members lead back, it is
//! only reported: a switch between may have forwarded the hellos.

use super::hello::{Challenge, Hello, HelloFrame, HelloKey, is_hello};
use super::loss::Loss;
use super::number::{Encoding, MODULUS, Number};
use super::order::Order;
use super::saved::LineState;
use super::secret::challenge;
use super::{MOST_MEMBERS, MemberId};
use crate::frame::{FlowIndex, Frame, Pool};
use crate::units::{Instant, earlier};
use crate::verdict::Reason;

/// How long a member may show no number while others do, in nanoseconds.
pub const SILENCE_NS: u64 = 10_000_000;
/// Time between checks for silence, in nanoseconds. A worker that was paused, and then reads one
/// member before another, counts one missed check, not four.
const LOOK_NS: u64 = SILENCE_NS / LOOKS as u64;
const LOOKS: u8 = 4;
/// After this long without a frame, in nanoseconds, a hello shows which numbers a member will not
/// send.
const MARK_NS: u64 = 500_000;
/// What was received is reported after this long, in nanoseconds: until then the other end keeps
/// it.
const REPORT_NS: u64 = 5_000_000;
/// And after this many numbers.
const REPORT_NUMBERS: u64 = 512;
/// Most numbers that may be on the way at a time. Half of [`MODULUS`] can be distinguished, and the
/// parts of one more frame, over the slowest link 45, may follow.
const SPAN: u64 = 1900;
/// Time between hellos on a member whose other end has answered, in nanoseconds.
const HELLO_NS: u64 = 1_000_000_000;
/// Time between hellos until then, in nanoseconds.
const HELLO_SOON_NS: u64 = 100_000_000;
/// How long hellos are sent at that interval, in nanoseconds; later an answer is not likely.
const SOON_NS: u64 = 3_000_000_000;
/// Least time between two hellos on a member, in nanoseconds: it limits answers to answers.
pub(super) const HELLO_LEAST_NS: u64 = 200_000;
/// No Levada bond is at a member's other end if no hello arrives for this long after it came up, in
/// nanoseconds: five hellos.
pub(super) const UNKNOWN_NS: u64 = 500_000_000;
/// A peer that sends nothing for this long is gone, in nanoseconds: three hellos and a half.
const GONE_NS: u64 = 3_500_000_000;
/// A peer that receives no hello may number for this long by its own clock, in nanoseconds: it
/// checks that when a hello is due. Until then its members count as not known.
pub(super) const NUMBERS_ON_NS: u64 = GONE_NS + HELLO_NS * 3 / 2;
/// If checks for a gone peer are this far apart, in nanoseconds, this end was paused: a hello and a
/// half.
const STILL_NS: u64 = HELLO_NS * 3 / 2;
/// A silent member is used again when hellos have arrived over it for this long, in nanoseconds.
const BACK_NS: u64 = 100_000_000;
/// Two bonds on the members of one, or a cable that leads back, are reported for this long after
/// the last such hello, in nanoseconds.
const MISWIRED_NS: u64 = 3_000_000_000;
/// Hellos of the previous peer may still arrive for this long after the first one of another, in
/// nanoseconds. Hellos of two live bonds are further apart.
const ON_THE_WAY_NS: u64 = 50_000_000;
const NEVER: Instant = Instant(u64::MAX);
/// No member's number.
const NOBODYS: u8 = u8::MAX;
/// How long one member carries all frames while the other end is not known, in nanoseconds: both
/// ends know each other after two hellos each way. With any other partner it lasts as long.
pub(super) const ALONE_NS: u64 = 5_000_000;
/// Most hellos of a member that are read in a second: as many as may be sent.
const HELLOS_MOST: u32 = 5100;
const SECOND_NS: u64 = 1_000_000_000;
/// A number is kept beside a frame in 30 bits; one more bit has whether it is shared
/// ([`crate::frame::FlowIndex`]).
pub(super) const KEPT_BITS: u64 = (1 << 30) - 1;

/// What is at the other end of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// Not known until then.
    Unknown(Instant),
    /// Nothing that sends hellos.
    Other,
    /// The peer.
    Peer,
}

/// What is known of a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerMember {
    is_up: bool,
    /// Its number in hellos. It stays while other members are added and removed: the other end
    /// would learn each member's new number from a different hello.
    pub(super) own: u8,
    pub(super) end: End,
    up_at: Instant,
    heard_at: Instant,
    /// The number that the other end gives the member.
    pub(super) theirs: u8,
    /// Longest frame that the other end receives; 0 if it does not report that.
    pub(super) max_frame: u16,
    /// A hello of the peer that came over it names this bond: numbers behind it are for this one,
    /// and not for a process that was here before.
    is_named: bool,
    /// The other end has reported that it receives from it.
    pub(super) is_received: bool,
    pub(super) is_silent: bool,
    /// It is up, and the other end is to send nothing there.
    is_withheld: bool,
    back_at: Option<Instant>,
    /// The furthest number at the last check, and how many checks have found this member behind it.
    target: u64,
    missed: u8,
    /// The time of its last hello plus twice its time on the wire. The next one is not sent before:
    /// hellos take at most half of a slow wire.
    hello_at: Instant,
    pub(super) hello_due: Instant,
    /// Numbers below this have been sent over it, or will not be; and when the last of them left
    /// its wire.
    shown: u64,
    shown_at: Instant,
    pub(super) sent: u32,
    loss: Loss,
    /// Hellos read in this second.
    second: u64,
    hellos: u32,
    /// With a secret: the challenge to the other end, this end's answer, and the challenge of a
    /// sender that answered wrongly (it gets one answer).
    pub(super) challenge: u64,
    pub(super) answer: u64,
    pub(super) greets: Option<u64>,
    has_greeted: bool,
    /// With a secret: the other end's count of hellos in the last one accepted.
    pub(super) last: Option<u32>,
    /// When this bond last received its own hello over it, or one that it had sent over it.
    looped_at: Option<Instant>,
}

impl PeerMember {
    const NEW: PeerMember = PeerMember {
        is_up: false,
        own: 0,
        end: End::Unknown(Instant::ZERO),
        up_at: Instant::ZERO,
        heard_at: Instant::ZERO,
        theirs: NOBODYS,
        max_frame: 0,
        is_named: false,
        is_received: false,
        is_silent: false,
        is_withheld: false,
        back_at: None,
        target: 0,
        missed: 0,
        hello_at: Instant::ZERO,
        hello_due: Instant::ZERO,
        shown: 0,
        shown_at: Instant::ZERO,
        sent: 0,
        loss: Loss::NONE,
        second: 0,
        hellos: 0,
        challenge: 0,
        answer: 0,
        greets: None,
        has_greeted: false,
        last: None,
        looped_at: None,
    };

    pub(super) fn is_live(&self) -> bool {
        self.is_up && self.end == End::Peer && !self.is_silent && !self.is_withheld
    }

    /// Makes a hello due as soon as one may be sent; returns when that is.
    pub(super) fn say(&mut self, now: Instant) -> Instant {
        self.hello_due = self.hello_due.min(now.max(self.hello_at.plus_ns(HELLO_LEAST_NS)));
        self.hello_due
    }
}

/// What another process knew of members, until they are up here.
#[derive(Debug)]
pub(super) struct Restored {
    pub until: Instant,
    pub lines: [Option<LineState>; MOST_MEMBERS],
}

/// Why frames have no numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plain {
    /// No bond at the other end has answered.
    NoPeer,
    /// Members lead to two bonds.
    Miswired,
    /// Only this bond's own hellos arrive.
    Looped,
    /// The other end has not reported yet that it receives from a member that may send.
    NotReceived,
    /// The hellos that arrive are under another secret, or only one end has a secret.
    Secret,
    /// A secret is configured, and it is not known yet.
    NoSecret,
    /// With a number, the longest frames are too long for a member.
    TooLong,
}

impl Plain {
    /// The text in `show`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Plain::NoPeer => "no Levada bond answers",
            Plain::Miswired => "members lead to different bonds",
            Plain::Looped => "a cable leads back to this bond",
            Plain::NotReceived => "the other end has not said yet from which members it receives",
            Plain::Secret => "the other end's hellos are refused: it has another secret, or only one end has one",
            Plain::NoSecret => "the secret is not known yet",
            Plain::TooLong => {
                "the members' MTU leaves no room for a number: it must be 4 bytes more (8 with order = \"switched\" and a VLAN)"
            }
        }
    }
}

/// The bond at the other end.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) epoch: u64,
    pub(super) other: Option<u64>,
    /// The previous peer, which is gone unless the cables are mixed up.
    pub(super) before: Option<u64>,
    met_at: Instant,
    miswired_until: Instant,
    pub(super) lines: [PeerMember; MOST_MEMBERS],
    pub order: Order,
    plain: Option<Plain>,
    /// Members that lead back, a bit each.
    looped: u16,
    /// The next frame's number.
    pub(super) next: u64,
    /// Numbers below this have left over some member.
    pub(super) left: u64,
    /// The peer waits for this number.
    pub(super) acked: u64,
    /// The peer has received pieces of what was one frame.
    pub(super) are_cut: bool,
    pub(super) heard_count: u32,
    pub(super) agreed_at: Option<Instant>,
    pub(super) count: u32,
    /// No hello is due before this. It is read for each frame, and computed again when no hello is
    /// due.
    pub(super) hellos_due: Instant,
    mark_due: Option<Instant>,
    /// What was received is also reported when the next number is this or later.
    report_at: u64,
    report_due: Option<Instant>,
    look_due: Option<Instant>,
    /// How hellos are sent, and how the peer sends its own.
    pub(super) encoding: Encoding,
    pub(super) their_encoding: Encoding,
    /// Whether a secret is required; and the secret.
    pub(super) is_keyed: bool,
    pub(super) key: Option<HelloKey>,
    /// How many challenges there were.
    pub(super) challenges: u64,
    /// Hellos refused for their form or hash, or as recorded ones; and when the last was for the
    /// former.
    pub(super) refused: u64,
    pub(super) refused_at: Option<Instant>,
    /// The last check for silence, and the furthest number then.
    looked: (Instant, u64),
    /// A member is behind: the next hellos ask for hellos.
    asks: bool,
    /// The member that carries all frames until then.
    alone: Option<(usize, Instant)>,
    /// What another process knew of members that are not up yet.
    pub(super) restored: Option<Box<Restored>>,
    /// Another process has taken over from this one.
    is_leaving: bool,
    /// Hellos report that nothing is received any more.
    is_parting: bool,
    /// The peer numbers its frames, according to its last hello.
    is_peer_numbering: bool,
    /// When the last check for a gone peer was.
    judged_at: Instant,
}

impl Peer {
    pub fn new(epoch: u64, hold_ns: u64) -> Peer {
        Peer {
            epoch: epoch.max(1),
            other: None,
            before: None,
            met_at: Instant::ZERO,
            miswired_until: Instant::ZERO,
            lines: std::array::from_fn(|n| PeerMember { own: n as u8, ..PeerMember::NEW }),
            order: Order::new(hold_ns),
            plain: Some(Plain::NoPeer),
            looped: 0,
            next: u64::from(MODULUS),
            left: u64::from(MODULUS),
            acked: u64::from(MODULUS),
            are_cut: false,
            heard_count: 0,
            agreed_at: None,
            count: 0,
            hellos_due: NEVER,
            mark_due: None,
            report_at: 0,
            report_due: None,
            look_due: None,
            encoding: Encoding::Tag,
            their_encoding: Encoding::Tag,
            is_keyed: false,
            key: None,
            challenges: 0,
            refused: 0,
            refused_at: None,
            looked: (Instant::ZERO, 0),
            asks: false,
            alone: None,
            restored: None,
            is_leaving: false,
            is_parting: false,
            is_peer_numbering: false,
            judged_at: Instant::ZERO,
        }
    }

    /// Why frames have no numbers; `None` if they have.
    pub fn plain(&self) -> Option<Plain> {
        self.plain
    }

    #[inline]
    pub fn is_numbering(&self) -> bool {
        self.plain.is_none()
    }

    /// Whether another frame may get a number.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.next.wrapping_sub(self.acked) < SPAN
    }

    /// Whether no number is free until the other end acknowledges some.
    fn is_full(&self) -> bool {
        self.is_numbering() && !self.has_room()
    }

    /// Whether frames that are numbered may go over a member.
    pub fn may_send(&self, member: usize) -> bool {
        self.lines.get(member).is_some_and(|line| line.end == End::Peer && line.is_received)
    }

    /// Whether no frame is sent over a member: it leads back, or no hello has arrived in time and
    /// the peer is at another. (Not if members lead to two bonds: neither is the peer for long.) Or
    /// frames are too long for numbers, and the peer has not reported that it receives from it.
    pub fn leaves_out(&self, member: usize) -> bool {
        let is_there = |line: &PeerMember| line.is_up && line.end == End::Peer;
        let is_other = self.lines.get(member).is_some_and(|line| line.end == End::Other);
        self.plain == Some(Plain::TooLong) && !self.may_send(member)
            || self.plain != Some(Plain::Miswired) && is_other && self.lines.iter().any(is_there)
            || self.encoding == Encoding::Tag
                && self.looped & 1 << member != 0
                // If all do, a switch between may have forwarded the hellos: frames are sent
                // without numbers.
                && self.lines.iter().zip(0..).any(|(line, n)| line.is_up && self.looped & 1 << n == 0)
    }

    /// Members that lead back, a bit each.
    pub fn looped(&self) -> u16 {
        self.looped
    }

    /// Whether the peer is at a member's other end, and whether this end receives from there.
    pub fn knows(&self, member: usize) -> (bool, bool) {
        self.lines.get(member).map_or((false, false), |line| (line.end == End::Peer, !line.is_silent))
    }

    /// Numbered frames of the other end that did not arrive over a member.
    pub fn lost(&self, member: usize) -> u64 {
        self.lines.get(member).map_or(0, |line| line.loss.lost())
    }

    /// Whether offloaded frames arrive at the other end in pieces.
    pub fn are_cut(&self) -> bool {
        self.are_cut
    }

    /// Sets whether a member is received from.
    pub fn set_up(&mut self, now: Instant, member: usize, is_up: bool) {
        let Some(line) = self.lines.get_mut(member) else { return };
        if line.is_up == is_up {
            return;
        }
        let PeerMember { own, second, hellos, sent, loss, .. } = *line;
        *line = PeerMember { is_up, own, up_at: now, second, hellos, sent, loss, ..PeerMember::NEW };
        line.end = End::Unknown(now.plus_ns(UNKNOWN_NS));
        line.hello_due = now;
        self.challenges += 1;
        line.challenge = challenge(self.epoch, self.challenges);
        let known = self.restored.as_mut().filter(|restored| is_up && now < restored.until);
        if let Some(known) = known.and_then(|restored| restored.lines[member].take()) {
            let LineState { theirs, max_frame, is_received, sent, .. } = known;
            let (end, heard_at, shown, is_named) = (End::Peer, now, self.next, true);
            *line = PeerMember { end, heard_at, theirs, max_frame, is_named, is_received, sent, shown, ..*line };
        }
        let is_live = line.is_live();
        self.order.set_live(now, MemberId(member as u8), is_live);
        if is_up && self.restored.is_none() && self.lines.iter().filter(|line| line.is_up).count() == 1 {
            self.alone = Some((member, now.plus_ns(ALONE_NS)));
        }
        self.say(now);
    }

    /// The member that is to carry all frames now.
    pub fn alone(&self, now: Instant) -> Option<usize> {
        self.alone.filter(|&(_, until)| now < until).map(|(member, _)| member)
    }

    /// The other end is to send nothing over a member that is up, or may send again. A hello is due
    /// at once. Frames that are already on the way are accepted.
    pub fn withhold(&mut self, now: Instant, member: usize, is_withheld: bool) {
        let Some(line) = self.lines.get_mut(member).filter(|line| line.is_withheld != is_withheld) else { return };
        (line.is_withheld, line.missed) = (is_withheld, 0);
        let (id, is_live) = (MemberId(member as u8), line.is_live());
        self.order.set_live(now, id, is_live);
        self.lines[member].target = self.order.passed(id);
        self.say(now);
    }

    /// How numbers and hellos are sent. A hello is due at once: the other end records which numbers
    /// it must drop once it no longer takes them off.
    pub fn set_encoding(&mut self, now: Instant, encoding: Encoding) {
        if std::mem::replace(&mut self.encoding, encoding) != encoding {
            self.say(now);
        }
    }

    /// Another process takes over from this one, or does so no more.
    pub fn set_leaving(&mut self, pool: &mut Pool, now: Instant, is_leaving: bool) {
        (self.is_leaving, self.alone) = (is_leaving, None);
        (self.mark_due, self.report_due, self.look_due) = (None, None, None);
        self.order.let_go(pool, now);
    }

    /// The next hellos report that nothing is received any more; they are due at once on members
    /// that lead to the peer. A peer that receives one stops numbering.
    pub fn set_parting(&mut self, now: Instant, is_parting: bool) {
        self.is_parting = is_parting;
        for line in self.lines.iter_mut().filter(|line| is_parting && line.end == End::Peer) {
            // This one answers the peer. Another sender is answered after its next hello.
            (line.hello_due, line.greets) = (now, None);
            self.hellos_due = now;
        }
    }

    /// Changes the members: `was` has, by place, which one each was before.
    pub fn set_members(&mut self, now: Instant, was: &[Option<MemberId>]) {
        let before = self.lines;
        let stayed = |was: &Option<MemberId>| was.and_then(|was| before.get(usize::from(was.0)).copied());
        let stayed: [Option<PeerMember>; MOST_MEMBERS] = std::array::from_fn(|n| was.get(n).and_then(stayed));
        self.lines = stayed.map(|line| line.unwrap_or(PeerMember::NEW));
        self.number_lines(&stayed.map(|line| Some(line?.own)), |own| before.iter().any(|l| l.is_up && l.own == own));
        self.order.set_members(now, was);
        self.alone = None;
        self.say(now);
    }

    /// Members that have a number in hellos keep it. Others get free ones, preferably those that no
    /// member had before (`was_used`).
    pub(super) fn number_lines(&mut self, known: &[Option<u8>; MOST_MEMBERS], was_used: impl Fn(u8) -> bool) {
        let mut free: Vec<u8> = (0..MOST_MEMBERS as u8).filter(|&own| !known.contains(&Some(own))).collect();
        free.sort_by_key(|&own| was_used(own));
        let mut free = free.into_iter();
        for (line, known) in self.lines.iter_mut().zip(known) {
            line.own = known.or_else(|| free.next()).unwrap_or(NOBODYS);
        }
    }

    /// Determines whether frames get numbers. `sending` has the members that may send, a bit each,
    /// and the one that is to carry all; `longest` is the longest frame, and `room` the longest
    /// that the members take.
    pub fn agree(&mut self, now: Instant, sending: (u16, Option<usize>), (longest, room): (u32, u32)) {
        self.looped = self.mask(|line| line.looped_at.is_some());
        let plain = self.reason(now, sending, longest, room);
        if plain.is_none() && self.plain.is_some() {
            // Frames that wait have no numbers yet, and leave first.
            self.left = self.next;
            self.acked = self.next;
            self.mark_due = None;
        }
        if plain.is_none() != self.plain.is_none() {
            // A hello precedes the first number, however recent the last one was.
            self.lines.iter_mut().for_each(|line| line.hello_due = line.hello_due.min(now));
            self.hellos_due = now;
        }
        self.plain = plain;
    }

    fn reason(&self, now: Instant, (sending, alone): (u16, Option<usize>), longest: u32, room: u32) -> Option<Plain> {
        if !self.may_speak() {
            return Some(Plain::NoSecret);
        }
        let is_refused = self.refused_at.is_some_and(|at| now.since(at) < GONE_NS);
        let nobody = |plain: Plain| {
            Some(match (is_refused, self.looped) {
                (true, _) => Plain::Secret,
                (false, 0) => plain,
                (false, _) => Plain::Looped,
            })
        };
        if self.is_leaving {
            return nobody(Plain::NoPeer);
        }
        // With two bonds, no agreement lasts long.
        if now < self.miswired_until {
            return Some(Plain::Miswired);
        }
        if self.agreed_at.is_none_or(|at| now.since(at) >= GONE_NS) {
            return nobody(Plain::NoPeer);
        }
        let lines = || (0..).zip(&self.lines).filter(|(member, _)| sending & 1 << member != 0).map(|(_, line)| line);
        let is_received = match alone {
            Some(member) => self.may_send(member),
            None => lines().any(|line| line.end == End::Peer && line.is_received),
        };
        if !is_received {
            return nobody(Plain::NotReceived);
        }
        let answers = lines().filter(|line| line.end == End::Peer && line.max_frame > 0);
        let theirs = answers.map(|line| u32::from(line.max_frame)).min();
        (longest > room.min(theirs.unwrap_or(u32::MAX))).then_some(Plain::TooLong)
    }

    /// The whole of a number that was kept beside a frame, and whether it is shared.
    #[inline]
    pub fn full(&self, kept: FlowIndex) -> (u64, bool) {
        let (number, is_shared) = (u64::from(kept.index() >> 1), kept.index() & 1 != 0);
        (self.next.saturating_sub(self.next.wrapping_sub(number) & KEPT_BITS), is_shared)
    }

    /// Whether the other end has acknowledged this number.
    #[inline]
    pub fn is_received(&self, kept: FlowIndex) -> bool {
        self.full(kept).0 < self.acked
    }

    /// A frame with a number has left over a member, whose wire is free again at `free_at`. Until
    /// then the frame itself shows the number. `is_last`: the member has nothing more to send now.
    /// If the number is shared, a hello is then due at once: the other end waits for more frames of
    /// that number.
    #[inline]
    pub fn has_left(
        &mut self,
        now: Instant,
        (member, free_at): (usize, Instant),
        full: u64,
        is_shared: bool,
        is_last: bool,
    ) {
        let Some(line) = self.lines.get_mut(member) else { return };
        line.shown = line.shown.max(full + u64::from(!is_shared));
        line.shown_at = free_at;
        line.sent = line.sent.wrapping_add(1);
        self.left = self.left.max(full + 1);
        if is_shared && is_last {
            self.hellos_due = self.hellos_due.min(line.say(now));
        }
        self.mark_due.get_or_insert(now.plus_ns(MARK_NS));
    }

    /// Whether what looks like a number on a frame from this member is one. It is if the peer is at
    /// its other end, and else a tag.
    ///
    /// # Errors
    /// [`Reason::BondControl`]: it is not known yet, or it is meant for the process before.
    #[inline]
    pub fn has_numbers(&self, member: MemberId) -> Result<bool, Reason> {
        match self.lines.get(usize::from(member.0)).map(|line| (line.end, line.is_named)) {
            Some((End::Peer, true)) => Ok(true),
            Some((End::Other, _)) => Ok(false),
            Some((End::Peer | End::Unknown(_), _)) | None => Err(Reason::BondControl),
        }
    }

    /// Receives a frame whose number was taken off.
    #[inline]
    pub fn receive(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        member: MemberId,
        number: Number,
        frame: Frame,
    ) -> Result<Option<Frame>, Reason> {
        self.report_due.get_or_insert(now.plus_ns(REPORT_NS));
        self.look_due.get_or_insert(now.plus_ns(LOOK_NS));
        let result = self.order.rx(pool, now, member, number, frame);
        if let Some(next) = self.order.expected().filter(|&next| next >= self.report_at) {
            (self.report_at, self.report_due) = (next + REPORT_NUMBERS, Some(now));
        }
        result
    }

    /// Receives a frame for a reserved address. `None` if it is no hello.
    ///
    /// # Errors
    /// [`Reason::BondControl`]: it is refused, as one of too many, without the secret, or this
    /// bond's own on a member of the peer, for example.
    pub fn hear(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        member: MemberId,
        frame: &Frame,
    ) -> Option<Result<(), Reason>> {
        is_hello(pool.bytes(frame)).then(|| self.hear_hello(pool, now, member, frame))
    }

    fn hear_hello(&mut self, pool: &mut Pool, now: Instant, member: MemberId, frame: &Frame) -> Result<(), Reason> {
        let at = usize::from(member.0);
        let Some(line) = self.lines.get_mut(at).filter(|line| line.is_up) else { return Err(Reason::BondControl) };
        let second = now.0 / SECOND_NS;
        line.hellos = if line.second == second { line.hellos + 1 } else { 1 };
        line.second = second;
        if line.hellos > HELLOS_MOST || self.is_keyed && self.key.is_none() {
            return Err(Reason::BondControl);
        }
        let Some((hello, challenge)) = Hello::read(pool.bytes(frame), self.key.as_ref()) else {
            self.refused += 1;
            self.refused_at = Some(now);
            return Err(Reason::BondControl);
        };
        let hello = &hello;
        // From the peer, both encodings are accepted: one end may change before the other. From
        // others only this end's: what bridges forward may come from anywhere.
        let is_strange = hello.encoding != self.encoding && self.other != Some(hello.epoch);
        if hello.epoch == 0 || is_strange {
            return Err(Reason::BondControl);
        }
        if self.key.is_some() && !self.is_answered(now, at, hello, challenge)? {
            return Ok(());
        }
        if hello.epoch == self.epoch {
            return self.hear_own(now, at, hello.member);
        }
        if self.before == Some(hello.epoch) && now.since(self.met_at) < ON_THE_WAY_NS {
            return Err(Reason::BondControl);
        }
        if self.other != Some(hello.epoch) {
            self.meet(pool, now, at, hello.epoch);
        }
        self.greet(now, at, hello);
        self.look_due.get_or_insert(now.plus_ns(LOOK_NS));
        self.is_peer_numbering = hello.is_numbered;
        if hello.is_numbered {
            self.order.begin(hello.below);
            self.order.mark(pool, now, member, hello.below);
        }
        Ok(())
    }

    /// Receives this bond's own hello, which it sent over the member with that number.
    fn hear_own(&mut self, now: Instant, at: usize, said_by: u8) -> Result<(), Reason> {
        if self.lines[at].end == End::Peer {
            // The peer is there too: members are in one network.
            self.miswired_until = now.plus_ns(MISWIRED_NS);
            return Err(Reason::BondControl);
        }
        let ends = self.lines.iter_mut().enumerate().filter(|(n, line)| *n == at || line.own == said_by);
        for (_, line) in ends.filter(|(_, line)| line.is_up && line.end != End::Peer) {
            line.looped_at = Some(now);
        }
        Ok(())
    }

    /// Another peer, or one that has restarted: nothing is known of what it sends.
    fn meet(&mut self, pool: &mut Pool, now: Instant, at: usize, epoch: u64) {
        if self.before == Some(epoch) {
            self.miswired_until = now.plus_ns(MISWIRED_NS);
        }
        self.before = self.other.replace(epoch);
        self.met_at = now;
        if now >= self.miswired_until {
            self.alone.get_or_insert((at, now.plus_ns(ALONE_NS)));
        }
        self.order.restart(pool, now);
        (self.agreed_at, self.are_cut, self.heard_count, self.report_at) = (None, false, 0, 0);
        for line in &mut self.lines {
            if line.end == End::Peer {
                line.end = End::Unknown(now.plus_ns(UNKNOWN_NS));
            }
            (line.is_received, line.is_silent, line.missed, line.target) = (false, false, 0, 0);
            line.is_named = false;
        }
        for member in 0..MOST_MEMBERS as u8 {
            self.order.set_live(now, MemberId(member), false);
        }
        self.order.expect_no_replay();
        // Answers of the previous peer are no longer valid.
        self.challenge_all();
    }

    /// Takes over what a hello reports of the peer, of the member that it arrived over, and of
    /// others.
    fn greet(&mut self, now: Instant, at: usize, hello: &Hello) {
        let is_same = self.lines[at].end == End::Peer && self.lines[at].theirs == hello.member;
        // No other member keeps this number.
        for line in self.lines.iter_mut().filter(|line| line.theirs == hello.member) {
            line.theirs = NOBODYS;
        }
        self.their_encoding = hello.encoding;
        let line = &mut self.lines[at];
        let is_new = line.end != End::Peer;
        (line.end, line.theirs, line.max_frame) = (End::Peer, hello.member, hello.max_frame);
        line.looped_at = None;
        line.is_named |= hello.heard == self.epoch;
        if !is_same {
            line.loss.begin();
        }
        line.loss.count(hello.sent, self.order.come(MemberId(at as u8)));
        let pause = now.since(line.heard_at);
        line.heard_at = now;
        let mut has_news = is_new;
        if line.is_silent {
            if pause > HELLO_NS {
                line.back_at = None;
            }
            if now.since(*line.back_at.get_or_insert(now)) >= BACK_NS {
                (line.is_silent, line.back_at, line.missed) = (false, None, 0);
                line.target = self.order.passed(MemberId(at as u8));
                has_news = true;
            }
        }
        let is_live = line.is_live();
        self.order.set_live(now, MemberId(at as u8), is_live);
        let is_newest = self.heard_count == 0 || hello.count.wrapping_sub(self.heard_count) < 1 << 31;
        if is_newest {
            self.heard_count = hello.count;
            // A peer that receives hellos of another bond, or none, takes off no number of this
            // end.
            self.agreed_at = (hello.heard == self.epoch).then_some(now);
        }
        if hello.heard == self.epoch && is_newest {
            self.are_cut = hello.has_pieces;
            for line in &mut self.lines {
                let is_received =
                    line.end == End::Peer && line.theirs < 16 && hello.receives & 1 << line.theirs.min(15) != 0;
                has_news |= is_received != line.is_received;
                line.is_received = is_received;
            }
            if let Some(next) = hello.next {
                self.acked = self.acked.max(below(self.left, next));
            }
        }
        // A peer that does not know yet that its hellos arrive gets one at once. So does one that
        // asks.
        if has_news || hello.heard != self.epoch || hello.asks {
            self.say(now);
        }
    }

    /// A hello is due on every member. Not over bridges while more than one bond is there: each
    /// answer would cause another bond's answer. Then hellos are sent at their intervals only.
    pub(super) fn say(&mut self, now: Instant) {
        if self.encoding == Encoding::Shim && now < self.miswired_until {
            return;
        }
        for line in &mut self.lines {
            self.hellos_due = self.hellos_due.min(line.say(now));
        }
    }

    /// Does what is due by now. True if members may have changed.
    pub fn advance(&mut self, pool: &mut Pool, now: Instant) -> bool {
        if self.is_leaving {
            return false;
        }
        let is_alone_no_more = self.alone.take_if(|&mut (_, until)| until <= now).is_some();
        let has_looked = self.look_due.is_some_and(|due| due <= now);
        if has_looked {
            self.look(pool, now);
        }
        if self.report_due.is_some_and(|due| due <= now) {
            self.report_due = None;
            self.say(now);
        }
        if self.mark_due.is_some_and(|due| due <= now) {
            self.mark(now);
        }
        let is_due = self.hellos_due <= now && self.lines.iter().any(|line| line.is_up && line.hello_due <= now);
        if is_due {
            self.look_for_the_gone(pool, now);
        }
        has_looked || is_due || is_alone_no_more
    }

    /// Makes hellos due on members that are to show which numbers they will not send. If no number
    /// is free, they are due on all members, and ask for an answer.
    fn mark(&mut self, now: Instant) {
        let left = self.left;
        let mut behind = false;
        for line in self.lines.iter_mut().filter(|line| line.is_up && line.end != End::Other && line.shown < left) {
            behind = true;
            if now.since(line.shown_at) >= MARK_NS {
                self.hellos_due = self.hellos_due.min(line.say(now));
            }
        }
        if self.is_full() {
            self.say(now);
        }
        self.mark_due = (behind || self.is_full()).then(|| now.plus_ns(MARK_NS));
    }

    /// Checks for silent members: those that are behind the furthest number of the last check,
    /// while others advanced or had hellos. While the peer does not number, a new member is not
    /// silent.
    fn look(&mut self, pool: &mut Pool, now: Instant) {
        let furthest = self.order.furthest();
        let (looked_at, was_furthest) = std::mem::replace(&mut self.looked, (now, furthest));
        let came_further = furthest > was_furthest;
        let said_hello: u16 = self.mask(|line| line.is_live() && line.heard_at >= looked_at);
        let (mut is_behind, mut has_changed) = (false, false);
        self.asks = false;
        for (member, line) in (0..).map(MemberId).zip(&mut self.lines) {
            if !line.is_live() {
                continue;
            }
            let passed = self.order.passed(member);
            if passed >= line.target || !self.is_peer_numbering {
                (line.missed, line.target) = (0, furthest);
            } else {
                self.asks = true;
                line.missed += u8::from(came_further || said_hello & !(1 << member.0) != 0);
            }
            if line.missed >= LOOKS {
                (line.is_silent, line.back_at, has_changed) = (true, None, true);
                self.order.set_live(now, member, false);
            } else {
                is_behind |= self.is_peer_numbering && passed < furthest;
            }
        }
        self.look_due = is_behind.then(|| now.plus_ns(LOOK_NS));
        if has_changed || self.asks {
            self.say(now);
        }
        self.order.look(pool, now);
    }

    /// The members for which `is_so` is true, a bit each.
    fn mask(&self, is_so: impl Fn(&PeerMember) -> bool) -> u16 {
        (0..).zip(&self.lines).map(|(n, line)| u16::from(is_so(line)) << n).fold(0, |all, one| all | one)
    }

    /// Finds members and a peer from which nothing has arrived for long. While this end was paused
    /// it read nothing: that time does not count, and what arrived meanwhile is read first. After a
    /// long pause the other end regards this one as gone: no frame gets a number before the next
    /// hello.
    fn look_for_the_gone(&mut self, pool: &mut Pool, now: Instant) {
        let pause = now.since(std::mem::replace(&mut self.judged_at, now));
        let is_anybody = |line: &PeerMember| line.end == End::Peer || line.looped_at.is_some();
        if pause >= STILL_NS && self.lines.iter().any(is_anybody) {
            let later = |at: Instant| at.plus_ns(pause).min(now);
            self.agreed_at = self.agreed_at.filter(|_| pause < GONE_NS).map(later);
            for line in &mut self.lines {
                (line.heard_at, line.looped_at) = (later(line.heard_at), line.looped_at.map(later));
            }
            return;
        }
        for line in &mut self.lines {
            line.looped_at = line.looped_at.filter(|&at| now.since(at) < MISWIRED_NS);
            if matches!(line.end, End::Unknown(until) if until <= now) && line.is_up {
                line.end = End::Other;
            }
        }
        if self.restored.as_ref().is_some_and(|restored| restored.until <= now) {
            self.restored = None;
        }
        if self.other.is_none() || self.restored.is_some() {
            return;
        }
        let last = self.lines.iter().filter(|line| line.end == End::Peer).map(|line| line.heard_at).max();
        if last.is_none_or(|last| now.since(last) >= GONE_NS) {
            (self.other, self.before, self.agreed_at) = (None, None, None);
            self.order.restart(pool, now);
            for line in self.lines.iter_mut().filter(|line| line.end == End::Peer) {
                line.end = End::Unknown(now.plus_ns(NUMBERS_ON_NS));
                (line.is_received, line.is_silent) = (false, false);
            }
            return;
        }
        let is_fresh = last.is_some_and(|last| now.since(last) < HELLO_NS * 3 / 2);
        for (member, line) in (0..).map(MemberId).zip(&mut self.lines) {
            if is_fresh && line.is_live() && now.since(line.heard_at) >= GONE_NS {
                (line.is_silent, line.back_at) = (true, None);
                self.order.set_live(now, member, false);
            }
        }
    }

    /// The next member that is to send a hello, and that hello. `waits` gives the number of the
    /// first frame that waits at a member.
    pub fn poll_hello(
        &mut self,
        now: Instant,
        waits: impl Fn(usize) -> Option<FlowIndex>,
        max_frame: impl Fn(usize) -> u32,
    ) -> Option<(MemberId, HelloFrame)> {
        if self.is_leaving || !self.may_speak() {
            return None;
        }
        if self.hellos_due > now {
            return None;
        }
        let Some(at) = self.lines.iter().position(|line| line.is_up && line.hello_due <= now) else {
            let dues = self.lines.iter().filter(|line| line.is_up).map(|line| line.hello_due);
            self.hellos_due = dues.min().unwrap_or(NEVER);
            return None;
        };
        let live = self.lines.iter().filter(|line| line.is_live() && line.own < 16);
        let receives = live.filter(|_| !self.is_parting).fold(0, |all, line| all | 1 << line.own);
        let below = waits(at).map_or(self.next, |kept| self.full(kept).0);
        self.count = self.count.wrapping_add(1);
        let asks = self.asks || self.is_full();
        let line = &mut self.lines[at];
        let is_settled = line.end == End::Peer && line.is_received;
        let is_soon = !is_settled && (line.end == End::Peer || now.since(line.up_at) < SOON_NS);
        line.hello_at = now;
        line.hello_due = now.plus_ns(if is_soon { HELLO_SOON_NS } else { HELLO_NS });
        if let End::Unknown(until) = line.end {
            line.hello_due = line.hello_due.min(until.max(now.plus_ns(HELLO_LEAST_NS)));
        }
        (line.shown, line.shown_at) = (line.shown.max(below), now);
        let hello = Hello {
            epoch: self.epoch,
            heard: self.other.unwrap_or_default(),
            count: self.count,
            member: line.own,
            receives,
            is_numbered: self.plain.is_none(),
            has_pieces: self.order.stats().pieces > 0,
            asks,
            below: (below % u64::from(MODULUS)) as u16,
            next: self.order.next(),
            sent: line.sent,
            max_frame: max_frame(at).min(u32::from(u16::MAX)) as u16,
            encoding: self.encoding,
        };
        // Every second hello answers the peer, even if others send hellos meanwhile.
        let greeted = if line.has_greeted { None } else { line.greets.take() };
        line.has_greeted = greeted.is_some();
        if line.greets.is_some() {
            line.hello_due = line.hello_due.min(now.plus_ns(HELLO_LEAST_NS));
        }
        let challenge = Challenge { own: line.challenge, answer: greeted.unwrap_or(line.answer) };
        Some((MemberId(at as u8), hello.frame(self.key.as_ref().map(|key| (key, challenge)))))
    }

    /// The hello from [`Peer::poll_hello`] takes a member's wire for `takes_ns`, until `free_at`:
    /// until then it is on its way, as a frame is.
    pub fn hello_left(&mut self, now: Instant, member: usize, takes_ns: u64, free_at: Instant) {
        let Some(line) = self.lines.get_mut(member) else { return };
        (line.hello_at, line.shown_at) = (now.plus_ns(2 * takes_ns), free_at);
        line.hello_due = line.hello_due.max(line.hello_at.plus_ns(HELLO_LEAST_NS));
    }

    /// When [`Peer::advance`] will have something to do, if nothing arrives before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let alone = self.alone.map(|(_, until)| until);
        if self.is_leaving || !self.may_speak() {
            return earlier(self.order.poll_timeout(), alone);
        }
        let dues = [alone, self.mark_due, self.report_due, self.look_due, self.order.poll_timeout()];
        let hellos = (self.hellos_due < NEVER).then_some(self.hellos_due);
        dues.into_iter().fold(hellos, earlier)
    }
}

/// The number that `next` is, of those up to `left`.
fn below(left: u64, next: u16) -> u64 {
    let modulus = u64::from(MODULUS);
    let behind = (left % modulus + modulus - u64::from(next)) % modulus;
    left - behind.min(left)
}
