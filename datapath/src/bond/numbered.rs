//! What a bond does with numbers: which members may send, the number on each frame, frames that are
//! sent again, and order restored ([`super::peer`], [`super::order`]).

use super::hello::{HELLO_BYTES, HelloFrame, HelloKey};
use super::kept::Kept;
use super::member::Member;
use super::order::{OrderDecision, OrderStats};
use super::peer::{KEPT_BITS, Peer, Plain};
use super::{
    Bond, BondSettings, MOST_MEMBERS, MOST_WAIT_NS, MemberId, MemberState, Mode, is_membership, may_be_membership,
    number,
};
use crate::frame::{FlowIndex, Frame, Meta, Owner, Pool};
use crate::ids::EndpointId;
use crate::offload::{Gso, Offload, PortFeatures};
use crate::segment::{self, segments};
use crate::units::Instant;
use crate::verdict::Reason;
use number::{Encoding, Number};

/// No frame is taken while even the soonest free member is busy for longer than this, in
/// nanoseconds. Frames wait in their owners' queues.
const FULL_NS: u64 = 1_000_000;

/// Bytes of a hello on the wire.
const HELLO_WIRE_BYTES: u32 = HELLO_BYTES as u32 + segment::WIRE_OVERHEAD;

/// What is known of the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerView {
    /// Why frames have no numbers; `None` if they have.
    pub plain: Option<Plain>,
    /// By member: whether the peer is there, this end receives from it, and the peer receives.
    pub members: [(bool, bool, bool); MOST_MEMBERS],
    /// As [`Bond::left_out`].
    pub left_out: u16,
    /// As [`Bond::looped`].
    pub looped: u16,
    /// What was counted when frames were put in order.
    pub order: OrderStats,
    /// Hellos that were not under the secret, or that were received before.
    pub refused: u64,
}

impl Bond {
    /// What is known of the other end; `None` without hellos.
    #[must_use]
    pub fn peer(&self) -> Option<PeerView> {
        let peer = self.peer.as_ref()?;
        let member = |n| {
            let (is_there, is_heard) = peer.knows(n);
            (is_there, is_heard, peer.may_send(n))
        };
        let (plain, order, refused) = (peer.plain(), peer.order.stats(), peer.refused);
        let (members, left_out, looped) = (std::array::from_fn(member), self.left_out, peer.looped());
        Some(PeerView { plain, members, left_out, looped, order, refused })
    }

    /// Why frames have no numbers, `Some(None)` if they have; `None` without hellos.
    #[must_use]
    pub fn plain(&self) -> Option<Option<Plain>> {
        self.peer.as_ref().map(|peer| peer.plain())
    }

    /// Sets the secret for [`BondSettings::is_keyed`]. Returns how many frames were freed for want
    /// of a member.
    pub fn set_key(&mut self, pool: &mut Pool, now: Instant, key: Option<HelloKey>) -> u32 {
        let Some(peer) = &mut self.peer else { return 0 };
        peer.set_key(pool, now, key);
        self.find_senders(pool, now)
    }

    /// Whether these settings end the exchange of hellos: no numbers any more, a secret where there
    /// was none, or the other way round.
    #[must_use]
    pub fn parts_with(&self, settings: Option<&BondSettings>) -> bool {
        let ends = |to: &BondSettings| !to.may_number() || to.is_keyed != self.settings.is_keyed;
        self.peer.is_some() && settings.is_none_or(ends)
    }

    /// Whether this secret does.
    #[must_use]
    pub fn parts_with_key(&self, key: Option<&HelloKey>) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.is_other_key(key))
    }

    /// Hellos after which the other end stops numbering: this end is about to forget it, and to
    /// take no numbers off. Frames that are on their way are then lost.
    pub fn part(&mut self, pool: &Pool, now: Instant) -> Vec<(MemberId, HelloFrame)> {
        let Some(peer) = &mut self.peer else { return Vec::new() };
        peer.set_parting(now, true);
        let hellos = std::iter::from_fn(|| self.poll_hello(pool, now)).collect();
        if let Some(peer) = &mut self.peer {
            peer.set_parting(now, false);
        }
        hellos
    }

    /// Whether frames may arrive with numbers.
    #[inline]
    #[must_use]
    pub fn may_have_numbers(&self) -> bool {
        self.peer.is_some()
    }

    /// How the bond at a member's other end numbers, if there is one.
    #[must_use]
    pub fn encoding_of_peer(&self, member: MemberId) -> Option<Encoding> {
        let peer = self.peer.as_deref().filter(|peer| peer.knows(usize::from(member.0)).0)?;
        Some(peer.their_encoding)
    }

    /// Whether frames leave with numbers.
    #[inline]
    pub(super) fn is_numbering(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.is_numbering())
    }

    /// The longest frame that is to leave, in bytes, its tag included.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.longest
    }

    /// Sets it. Returns how many frames were freed for want of a member.
    pub fn set_longest(&mut self, pool: &mut Pool, now: Instant, longest: u32) -> u32 {
        self.longest = longest;
        self.find_senders(pool, now)
    }

    /// Whether [`Bond::advance`], [`Bond::poll_hello`] or [`Bond::poll_lacp`] has something to do.
    #[inline]
    #[must_use]
    pub fn is_peer_due(&self, now: Instant) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.poll_timeout().is_some_and(|due| due <= now))
            || self.lacp.as_ref().is_some_and(|lacp| lacp.poll_timeout().is_some_and(|due| due <= now))
    }

    /// Sets the features of a member's port.
    pub fn set_features(&mut self, member: MemberId, features: PortFeatures) {
        if let Some(member) = self.members.get_mut(usize::from(member.0)) {
            member.features = features;
        }
    }

    /// Sets whose memory is charged for an endpoint's frames that are kept.
    pub fn set_keeper(&mut self, pool: &mut Pool, endpoint: EndpointId, owner: Owner) {
        self.keepers.set_owner(pool, endpoint, owner);
    }

    /// Whose memory that is.
    #[cfg(test)]
    pub fn keeper(&self, endpoint: EndpointId) -> Owner {
        self.keepers.owner(endpoint)
    }

    /// Bytes of buffers of an endpoint's frames that are kept.
    #[must_use]
    pub fn kept_bytes(&self, endpoint: EndpointId) -> u64 {
        self.keepers.bytes(endpoint)
    }

    /// Sets whose memory is charged for frames that wait.
    pub fn set_owner(&mut self, pool: &mut Pool, owner: Owner) {
        self.members.iter_mut().for_each(|member| member.set_owner(pool, owner));
        if let Some(peer) = &mut self.peer {
            peer.order.set_owner(pool, owner);
        }
    }

    /// True once after the members that may send, or their rates, have changed.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Changes the settings. Hellos are sent if frames may have numbers; what is known of the other
    /// end is kept.
    pub(super) fn change_settings(&mut self, pool: &mut Pool, now: Instant, settings: BondSettings) -> u32 {
        let is_asked = settings.may_number();
        self.set_settings(settings);
        let mut freed = 0;
        match &mut self.peer {
            Some(peer) if is_asked => {
                peer.order.set_hold(settings.hold_ns);
                peer.set_encoding(now, settings.encoding);
                peer.set_keyed(pool, now, settings.is_keyed);
            }
            Some(peer) => {
                freed = peer.order.clear(pool);
                self.let_kept_go(pool);
                self.peer = None;
            }
            None if is_asked => {
                let mut peer = Peer::new(epoch(self.seed, now), settings.hold_ns);
                peer.encoding = settings.encoding;
                peer.set_keyed(pool, now, settings.is_keyed);
                for (index, member) in self.members.iter().enumerate() {
                    peer.set_up(now, index, member.state() != MemberState::Down);
                    peer.withhold(now, index, member.state() == MemberState::Standby);
                }
                self.peer = Some(Box::new(peer));
            }
            None => {}
        }
        freed
    }

    /// The member that is to carry all frames now.
    pub(super) fn alone(&self, now: Instant) -> Option<usize> {
        let at = self.peer.as_ref().filter(|_| self.settings.mode == Mode::BalanceRr)?.alone(now)?;
        self.members.get(at).is_some_and(|member| member.state() == MemberState::Distributing).then_some(at)
    }

    pub(super) fn agree(&mut self, now: Instant) {
        let alone = self.alone(now);
        let Some(peer) = &mut self.peer else { return };
        let sending = |member: &Member| member.state() == MemberState::Distributing;
        let all = || (0..).zip(&self.members).filter(|(_, member)| sending(member));
        let mask = all().fold(0, |mask, (n, _)| mask | 1 << n);
        let answered = all().filter(|&(n, _)| peer.knows(n).0);
        let room = answered.map(|(_, member)| member.features.max_frame).min().unwrap_or(u32::MAX);
        peer.agree(now, (mask, alone), (self.longest + self.settings.shim_bytes(), room));
    }

    /// Whether a member may send, as far as the other end is concerned.
    pub(super) fn is_known(&self, index: usize) -> bool {
        self.peer.as_ref().is_none_or(|peer| match peer.is_numbering() {
            true => peer.may_send(index),
            false => !peer.leaves_out(index),
        })
    }

    pub(super) fn leaves_out(&self, index: usize) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.leaves_out(index))
    }

    /// Members over which no frames are sent, a bit each: no bond at their other ends has answered,
    /// while one has on others; or they lead back.
    #[must_use]
    pub fn left_out(&self) -> u16 {
        self.left_out
    }

    /// Whether a longest frame takes longer on a member than [`MOST_WAIT_NS`]: frames with later
    /// numbers would wait for it. Such a member sends only if no other can.
    pub(super) fn is_slow(&self, member: &Member) -> bool {
        if self.settings.mode != Mode::BalanceRr || !self.is_numbering() {
            return false;
        }
        // Frames in a tunnel may be as long as the member takes.
        let longest = if self.longest > 0 { self.longest } else { member.features.max_frame };
        let wire_bytes = longest.saturating_add(self.settings.shim_bytes() + segment::WIRE_OVERHEAD);
        member.after(Instant::ZERO, wire_bytes) > Instant(MOST_WAIT_NS)
    }

    /// When another frame is taken; `None`: after the other end reports what it has received. Until
    /// then, frames that are to be numbered wait in their owners' queues.
    #[inline]
    #[must_use]
    pub fn room_at(&self) -> Option<Instant> {
        match &self.peer {
            Some(peer) if peer.is_numbering() => {
                peer.has_room().then(|| Instant(self.free_at().0.saturating_sub(FULL_NS)))
            }
            _ => Some(Instant::ZERO),
        }
    }

    /// When the next frame would have its turn.
    fn free_at(&self) -> Instant {
        let free = self.senders.all().iter().map(|&index| self.members[usize::from(index)].free_at());
        let free = if self.settings.mode == Mode::Broadcast { free.max() } else { free.min() };
        free.unwrap_or(Instant::ZERO)
    }

    /// The fast path: a frame of one segment gets a number, and leaves at once by the next member
    /// in turn, which is returned. If that is not possible, the frame is unchanged.
    #[inline]
    pub(super) fn send_in_turn(&mut self, pool: &mut Pool, now: Instant, frame: &Frame) -> Option<MemberId> {
        let (place, index) = self.next_of_alike(now)?;
        let (peer, member) = (self.peer.as_mut()?, self.members.get_mut(index)?);
        if !member.passes(now) {
            return None;
        }
        let full = peer.next;
        let (len, meta) =
            number::put_on_one(pool, frame, Number::new(full, false), |meta| !may_be_membership(&meta.layout))?;
        meta.flow = kept_number(full, false);
        let free_at = member.pass_one(now, len, meta.wire_bytes);
        (peer.next, self.next_equal) = (full + 1, place + 1);
        peer.has_left(now, (index, free_at), full, false, true);
        Some(MemberId(index as u8))
    }

    /// Numbers a frame; an offloaded one is cut first, and each part gets a number. Returns a frame
    /// of one segment if it leaves at once. Others wait at their members, in `broadcast` at all.
    pub(super) fn send_numbered(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        frame: Frame,
    ) -> Result<Option<(MemberId, Frame)>, Reason> {
        if self.settings.mode == Mode::Broadcast && self.free_at().since(now) > MOST_WAIT_NS {
            pool.free(frame);
            return Err(Reason::MemberFull);
        }
        if pool.meta(&frame).offload.gso != Gso::None {
            return self.send_parts(pool, now, frame).map(|()| None);
        }
        match self.soonest(now, pool, &frame) {
            Some(index) => self.number::<true>(pool, now, index, frame),
            None => {
                pool.free(frame);
                Err(Reason::MemberFull)
            }
        }
    }

    fn send_parts(&mut self, pool: &mut Pool, now: Instant, frame: Frame) -> Result<(), Reason> {
        let is_single = self.settings.encoding == Encoding::Shim;
        let one = if self.settings.mode == Mode::Broadcast || is_single { 1 } else { u32::MAX };
        let mut rest = Some(frame);
        while let Some(frame) = rest.take() {
            let Some(index) = self.soonest(now, pool, &frame) else {
                pool.free(frame);
                return Err(Reason::MemberFull);
            };
            let (part, more) = segment::split_at_most(pool, frame, self.members[index].cut_bytes(), one);
            rest = more;
            if is_single && !segment::set_single(pool.meta_mut(&part)) {
                // There was no buffer for the cut, so `rest` is `None`.
                pool.free(part);
                return Err(Reason::NoBuffer);
            }
            if let Err(reason) = self.number::<false>(pool, now, index, part) {
                if let Some(rest) = rest {
                    pool.free(rest);
                }
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Gives one frame a number. `MAY_PASS`: it is returned if it leaves at once.
    #[inline]
    fn number<const MAY_PASS: bool>(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        index: usize,
        frame: Frame,
    ) -> Result<Option<(MemberId, Frame)>, Reason> {
        let is_broadcast = self.settings.mode == Mode::Broadcast;
        let (Some(peer), Some(member)) = (&mut self.peer, self.members.get_mut(index)) else {
            pool.free(frame);
            return Err(Reason::PortDown);
        };
        if !is_broadcast && member.is_full(now) {
            member.count_drop();
            pool.free(frame);
            return Err(Reason::MemberFull);
        }
        if !is_broadcast {
            member.mark(pool, now, &frame);
        }
        let Meta { layout, offload, .. } = pool.meta(&frame);
        let is_cut =
            offload.gso != Gso::None && segments(layout, offload) > 1 && (peer.are_cut() || !member.takes(offload));
        let full = peer.next;
        if !number::put_on(pool, &frame, Number::new(full, is_cut), self.settings.encoding) {
            pool.free(frame);
            return Err(Reason::NoBuffer);
        }
        pool.meta_mut(&frame).flow = kept_number(full, is_cut);
        peer.next += 1;
        if is_broadcast {
            return self.send_copies(pool, now, frame).map(|()| None);
        }
        if MAY_PASS && member.passes(now) {
            member.pass(pool, now, &frame);
            peer.has_left(now, (index, member.free_at()), full, is_cut, true);
            return Ok(Some((MemberId(index as u8), frame)));
        }
        member.wait(pool, now, frame);
        self.waits_from(index);
        Ok(None)
    }

    /// The member that would finish sending a frame soonest: so links of unequal rate carry in
    /// proportion to their rates. Of those that would finish about as soon, the next in turn: so
    /// idle links carry equal shares. A difference of a hello's time does not count.
    #[inline]
    pub(super) fn soonest(&mut self, now: Instant, pool: &Pool, frame: &Frame) -> Option<usize> {
        let meta = pool.meta(frame);
        if may_be_membership(&meta.layout) && is_membership(pool.bytes(frame), &meta.layout) {
            return self.active_sender();
        }
        let (next, index) = self.find_soonest(now, meta.wire_bytes)?;
        self.next_equal = next;
        Some(index)
    }

    /// The same for a frame that is not of IGMP or MLD; and the place of the next turn.
    #[inline]
    pub(super) fn find_soonest(&self, now: Instant, wire_bytes: u32) -> Option<(u8, usize)> {
        if self.senders.are_alike
            && let Some((place, index)) = self.next_of_alike(now)
        {
            return Some((place + 1, index));
        }
        let (mut best, mut about) = (Instant(u64::MAX), Instant::ZERO);
        for &index in self.senders.all() {
            let member = self.members.get(usize::from(index))?;
            let done = member.done_at(now, wire_bytes.min(member.cut_bytes()));
            if done < best {
                (best, about) = (done, member.after(done, HELLO_WIRE_BYTES));
            }
        }
        let count = self.senders.count;
        let mut place = self.next_equal;
        for _ in 0..count {
            place = if place < count { place } else { 0 };
            let index = usize::from(self.senders.members[usize::from(place)]);
            let member = self.members.get(index)?;
            place += 1;
            if member.done_at(now, wire_bytes.min(member.cut_bytes())) <= about {
                return Some((place, index));
            }
        }
        None
    }

    /// Of members of equal rate, the next in turn, unless another is free sooner: its place among
    /// the senders, and its index.
    #[inline]
    fn next_of_alike(&self, now: Instant) -> Option<(u8, usize)> {
        let count = self.senders.count;
        let place = if self.next_equal < count { self.next_equal } else { 0 };
        let index = usize::from(*self.senders.members.get(usize::from(place))?);
        let free_at = self.members.get(index)?.free_at();
        let is_sooner = |&other: &u8| self.members[usize::from(other)].free_at() < free_at;
        if free_at > now && self.senders.all().iter().any(is_sooner) {
            return None;
        }
        Some((place, index))
    }

    /// A frame that waited at a member leaves.
    #[inline]
    pub(super) fn has_left(&mut self, pool: &Pool, now: Instant, index: usize, frame: &Frame) {
        let (Some(peer), Some(kept)) = (&mut self.peer, pool.meta(frame).flow) else { return };
        let (full, is_shared) = peer.full(kept);
        let member = &self.members[index];
        peer.has_left(now, (index, member.free_at()), full, is_shared, member.waiting() == 0);
    }

    /// Whether a frame that left over a member is to be given back when its port has written it
    /// ([`Bond::give_back`]). It has a number then, and other members can send it again.
    #[inline]
    #[must_use]
    pub fn wants_back(&self, pool: &Pool, frame: &Frame) -> bool {
        pool.meta(frame).flow.is_some()
            && self.peer.is_some()
            && self.senders.count > 1
            && self.settings.mode == Mode::BalanceRr
    }

    /// Keeps a frame that has left over a member, or was to, until the other end has it.
    /// `Out::From` has its sender. If it need not be kept, or cannot, it is freed.
    #[inline]
    pub fn give_back(&mut self, pool: &mut Pool, now: Instant, member: MemberId, frame: Frame) {
        match self.members.get_mut(usize::from(member.0)) {
            Some(member) if pool.meta(&frame).flow.is_some() => member.kept.push(pool, now, &mut self.keepers, frame),
            _ => pool.free(frame),
        }
    }

    /// Frees all that is kept: no frame will be sent again.
    pub(super) fn let_kept_go(&mut self, pool: &mut Pool) {
        for member in &mut self.members {
            member.kept.clear(pool, &mut self.keepers);
        }
    }

    /// Frees what need not be kept any more.
    fn let_received_go(&mut self, pool: &mut Pool, now: Instant) {
        let Some(peer) = &self.peer else { return };
        for member in &mut self.members {
            member.kept.let_go(pool, now, &mut self.keepers, |kept| peer.is_received(kept));
        }
    }

    /// The frames that a failed member has sent are sent again by the others, except those that the
    /// other end has.
    pub(super) fn replay(&mut self, pool: &mut Pool, now: Instant, mut kept: Kept) {
        let mut last = None;
        while let Some(frame) = kept.pop(pool, &mut self.keepers) {
            let is_lost = match (&self.peer, pool.meta(&frame).flow) {
                (Some(peer), Some(kept)) => peer.is_numbering() && !peer.is_received(kept),
                _ => false,
            };
            if !is_lost {
                pool.free(frame);
            } else if let Err(frame) = self.send_numbered_again(pool, now, &mut last, frame) {
                pool.free(frame);
            }
        }
    }

    /// Sends a frame that has its number already. Frames that share a number (`last` is the
    /// previous frame's) use one member: over two, the other end would take them for copies.
    pub(super) fn send_numbered_again(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        last: &mut Option<(FlowIndex, usize)>,
        frame: Frame,
    ) -> Result<(), Frame> {
        let number = pool.meta(&frame).flow;
        let index = match *last {
            Some((before, index)) if Some(before) == number => Some(index),
            _ => self.soonest(now, pool, &frame),
        };
        let Some(index) = index else { return Err(frame) };
        *last = number.map(|number| (number, index));
        self.members[index].push_again(pool, now, frame);
        self.waits_from(index);
        Ok(())
    }

    /// Takes the number, if there is one, off a frame that arrived over a member. Called before
    /// anything else of the frame is read.
    ///
    /// # Errors
    /// [`Reason::BondControl`]: it is not known yet whether it is a number.
    #[inline]
    pub fn take_number(&self, pool: &mut Pool, member: MemberId, frame: &Frame) -> Result<Option<Number>, Reason> {
        let Some(peer) = &self.peer else { return Ok(None) };
        let Some(number) = number::read(pool.bytes(frame)) else { return Ok(None) };
        if !peer.has_numbers(member)? {
            return Ok(None);
        }
        number::take_off(pool, frame);
        Ok(Some(number))
    }

    /// The number that [`Bond::take_number`] would take off a frame of these bytes; `None` if it
    /// would take off none.
    #[must_use]
    pub fn explain_number(&self, bytes: &[u8], member: MemberId) -> Option<Result<Number, Reason>> {
        let (peer, number) = (self.peer.as_ref()?, number::read(bytes)?);
        match peer.has_numbers(member) {
            Ok(true) => Some(Ok(number)),
            Ok(false) => None,
            Err(reason) => Some(Err(reason)),
        }
    }

    /// Puts a frame in order. Returns it if it is next: before all that [`Bond::poll_received`]
    /// returns.
    ///
    /// # Errors
    /// [`Reason::Duplicate`]: its number has arrived already; it is freed.
    #[inline]
    pub fn put_in_order(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        member: MemberId,
        number: Number,
        frame: Frame,
    ) -> Result<Option<Frame>, Reason> {
        match &mut self.peer {
            Some(peer) => peer.receive(pool, now, member, number, frame),
            None => Ok(Some(frame)),
        }
    }

    /// What [`Bond::put_in_order`] would do with a frame that arrived over a member with this
    /// number.
    ///
    /// # Errors
    /// As [`Bond::put_in_order`].
    pub fn turn_of(&self, member: MemberId, number: Number) -> Result<OrderDecision, Reason> {
        self.peer.as_ref().map_or(Ok(OrderDecision::Next), |peer| peer.order.turn_of(member, number))
    }

    /// Members that may bring the number that frames wait for, the furthest behind first. A process
    /// that leaves reads these, a frame at a time: where none waits any more, the next process goes
    /// on in order.
    #[must_use]
    pub fn awaited(&self) -> Vec<MemberId> {
        self.peer.as_ref().map(|peer| peer.order.awaited()).unwrap_or_default()
    }

    /// Frames stop waiting for earlier ones. False if none waited.
    #[inline]
    pub fn end_order(&mut self, pool: &mut Pool, now: Instant) -> bool {
        let Some(peer) = self.peer.as_mut().filter(|peer| peer.order.is_waiting()) else { return false };
        peer.order.let_go(pool, now);
        true
    }

    /// The next frame that has waited for an earlier one.
    pub fn poll_received(&mut self, pool: &mut Pool, now: Instant) -> Option<Frame> {
        self.peer.as_mut()?.order.poll(pool, now)
    }

    /// Receives a frame for a reserved address. `None` if it is no hello, or in `802.3ad` no frame
    /// of slow protocols. Else how many frames were freed, as members changed.
    ///
    /// # Errors
    /// [`Reason::BondControl`]: it is refused. For example, too many have arrived, or it is
    /// malformed.
    pub fn hear(
        &mut self,
        pool: &mut Pool,
        now: Instant,
        member: MemberId,
        frame: &Frame,
    ) -> Option<Result<u32, Reason>> {
        if self.lacp.is_some() {
            return self.hear_lacp(pool, now, member, frame);
        }
        let peer = self.peer.as_mut()?;
        if let Err(reason) = peer.hear(pool, now, member, frame)? {
            return Some(Err(reason));
        }
        self.let_received_go(pool, now);
        Some(Ok(self.find_senders(pool, now)))
    }

    /// Does what is due by now. Returns how many frames were freed, as members changed.
    pub fn advance(&mut self, pool: &mut Pool, now: Instant) -> u32 {
        if self.lacp.is_some() {
            return self.advance_lacp(pool, now);
        }
        let Some(peer) = &mut self.peer else { return 0 };
        if peer.poll_timeout().is_none_or(|due| due > now) {
            return 0;
        }
        // While frames leave, marks are due so often that nothing is kept much too long.
        let may_have_changed = peer.advance(pool, now);
        self.let_received_go(pool, now);
        if !may_have_changed {
            return 0;
        }
        self.find_senders(pool, now)
    }

    /// The next hello that is due, and the member that sends it.
    pub fn poll_hello(&mut self, pool: &Pool, now: Instant) -> Option<(MemberId, HelloFrame)> {
        let members = &self.members;
        let waits = |at: usize| members.get(at).and_then(|member| member.first_number(pool));
        let max_frame = |at: usize| members.get(at).map_or(0, |member| member.features.max_frame);
        let peer = self.peer.as_mut()?;
        let (member, hello) = peer.poll_hello(now, waits, max_frame)?;
        let index = usize::from(member.0);
        if let Some(sender) = self.members.get_mut(index) {
            // It is sent before the frames that wait, and takes its time on the wire.
            let takes_ns = sender.spend(now, hello.bytes().len() as u32 + segment::WIRE_OVERHEAD);
            peer.hello_left(now, index, takes_ns, sender.free_at());
        }
        Some((member, hello))
    }
}

impl Member {
    fn takes(&self, offload: &Offload) -> bool {
        self.features.offload.takes(offload)
    }
}

/// What is kept of a number beside its frame: [`KEPT_BITS`] of it, and whether it is shared.
#[inline]
fn kept_number(full: u64, is_shared: bool) -> Option<FlowIndex> {
    FlowIndex::new(((full & KEPT_BITS) << 1) as u32 | u32::from(is_shared))
}

/// Splitmix64 of the seed and the time: different for each run of each bond.
fn epoch(seed: u64, now: Instant) -> u64 {
    let mut z = seed ^ now.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
