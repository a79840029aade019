//! What most frames are: a TCP segment over IPv4, without options but timestamps, of a connection
//! that is open.
//!
//! Of a translated connection most are data in order, or acknowledgements of what was sent, and
//! nothing new is said of marks. A few comparisons tell that they are so; then what is left of
//! [`open`] is done, with the same result. Numbers are read where they are needed, so that few have
//! to be kept at a time.

use super::connection::{Connection, Wire, bit};
use super::control::{self, Feedback};
use super::segment::{ACKNOWLEDGEMENT, Edit, Headers, SEQUENCE, Segment, Word, codes, ecn, set_ecn4};
use super::{Effects, Mode, Place, Policy, open, option, window};
use crate::frame::{Frame, Meta, Pool};
use crate::offload::{Gso, GsoEcn};
use crate::units::{Direction, Instant};
use crate::wire::{L3, L4, Tcp4, be32, ipv4, tcp_flags, transport};

/// The headers of a segment, of IP and of TCP.
pub(super) type Both = [[u8; ipv4::LEN]; 2];
const _: () = assert!(ipv4::LEN == transport::TCP_LEN);

/// A frame that is so, and neither opens a connection nor ends one.
pub(super) struct Seen<'a> {
    pub both: &'a mut Both,
    /// What is behind them: options of TCP, and payload.
    pub rest: &'a mut [u8],
    pub meta: &'a mut Meta,
}

/// Such a frame, and the flow that its endpoint sends in.
#[inline(always)]
pub(super) fn seen<'a>(pool: &'a mut Pool, frame: &Frame, direction: Direction) -> Option<(Seen<'a>, Tcp4)> {
    const NOT_PLAIN: u8 = tcp_flags::SYN | tcp_flags::FIN | tcp_flags::RST;
    let (bytes, meta) = pool.parts_mut(frame);
    let layout = &meta.layout;
    if layout.l4 != L4::Tcp || layout.l3 != L3::Ipv4 || layout.fragment {
        return None;
    }
    let at = usize::from(layout.l3_offset);
    if usize::from(layout.l4_offset) != at + ipv4::LEN {
        return None;
    }
    let (head, rest) = bytes.split_at_mut_checked(at + size_of::<Both>())?;
    let both = head.last_chunk_mut::<{ size_of::<Both>() }>()?;
    let both: &mut Both = both.as_chunks_mut().0.first_chunk_mut()?;
    if both[1][transport::TCP_FLAGS] & NOT_PLAIN != 0 {
        return None;
    }
    let flow = Tcp4::of(&both[0], &both[1]);
    let flow = if direction == Direction::Egress { flow } else { flow.reversed() };
    Some((Seen { both, rest, meta }, flow))
}

impl Seen<'_> {
    /// The segment, without what its options say.
    #[inline(always)]
    pub fn segment(&self) -> Segment {
        let [ip, tcp] = &*self.both;
        Segment::read(tcp, ip[1] & 3, &self.meta.layout, &self.meta.offload)
    }

    /// The same with it, where there are more than each segment of the connection has.
    #[inline(always)]
    fn segment_of(&mut self, connection: &Connection) -> Segment {
        let segment = self.segment();
        segment.of_connection(Some(connection), || self.options())
    }

    fn options(&mut self) -> &mut [u8] {
        let headers = usize::from(self.meta.layout.l4_offset) + transport::TCP_LEN;
        let len = usize::from(self.meta.layout.payload_offset).saturating_sub(headers);
        self.rest.get_mut(..len).unwrap_or_default()
    }

    #[inline(always)]
    fn edit(&mut self, edit: &Edit) {
        if let Some(counts) = &edit.hides {
            self.hide(counts);
        }
        let [ip, tcp] = &mut *self.both;
        edit.write(&mut Headers { ip, tcp }, L3::Ipv4, &mut self.meta.offload);
    }

    #[inline(never)]
    fn hide(&mut self, counts: &option::Counts) {
        let (mut tcp, offload) = (self.both[1], self.meta.offload);
        option::hide(&mut tcp, self.options(), &offload, counts);
        self.both[1] = tcp;
    }
}

/// Whether a policy asks for nothing but what is done here: for what guests send, and for what they
/// are to have.
pub(super) fn of(policy: &Policy) -> [bool; 2] {
    let is_ours = matches!(policy.mode, Mode::Echo | Mode::Dctcp);
    let is_free = is_ours && !policy.polices;
    [is_free, is_free && !policy.holds]
}

/// A guest sends it, and it is within the window that the guest was told; `is_asked`: its policy
/// asks for nothing but what is done here. The option that is to be put in, if any.
#[inline(always)]
pub(super) fn send(
    connection: &mut Connection,
    now: Instant,
    (place, is_asked): (&Place, bool),
    seen: Seen<'_>,
) -> Option<[u8; option::LEN]> {
    const NEWS: u16 = bit::BLEACHED | bit::CWR_DUE | bit::FIRST_OUT | bit::LATCHED;
    let is_counter = connection.wire == Wire::Accurate;
    let word = Word::of(&seen.both[1]);
    let is_usual = connection.is_translated()
        && is_asked
        && be32(&seen.both[1], SEQUENCE) == connection.nxt
        && !connection.is(NEWS)
        && !(is_counter
            && (connection.ce_untold > 0
                || option::has_news(connection)
                || word.words() != option::usual_words(connection)));
    if !is_usual {
        return send_slowly(connection, now, place, seen);
    }
    let Seen { both: [ip, tcp], meta, .. } = seen;
    let payload = Segment::payload_of(&meta.layout);
    if payload > 0 {
        let end = connection.nxt.wrapping_add(payload);
        open::time(connection, now, end);
        connection.nxt = end;
    }
    let ecn = ip[1] & 3;
    if ecn != ecn::ECT0 {
        set_ecn4(ip, ecn, ecn::ECT0);
    }
    // As `Edit::write`.
    let offload = &mut meta.offload;
    if is_counter {
        connection.arrived = 0;
        let says = connection.ace_told & 7;
        let is = word.with_codes(says);
        if offload.gso != Gso::None && (is != word || offload.gso_ecn == GsoEcn::Cwr) {
            offload.gso_ecn = if says & codes::CWR != 0 { GsoEcn::Ace } else { GsoEcn::None };
        }
        word.write(tcp, is, offload);
    } else if word.codes() != codes::NONE {
        offload.gso_ecn = GsoEcn::None;
        word.write(tcp, word.with_codes(codes::NONE), offload);
    }
    None
}

#[inline(never)]
fn send_slowly(
    connection: &mut Connection,
    now: Instant,
    place: &Place,
    mut seen: Seen<'_>,
) -> Option<[u8; option::LEN]> {
    let segment = seen.segment_of(connection);
    let edit = open::send(connection, now, &place.policy, &segment);
    seen.edit(&edit);
    edit.option
}

/// It is for a guest. It does not wait, and nothing does that it could take the place of.
#[inline(always)]
pub(super) fn receive(connection: &mut Connection, now: Instant, place: &mut Place, seen: Seen<'_>) {
    if !is_usual(connection, &seen) {
        receive_slowly(connection, now, place, seen);
        return;
    }
    let (ack, flight) = (be32(&seen.both[1], ACKNOWLEDGEMENT), connection.flight());
    let acked = ack.wrapping_sub(connection.una);
    // Neither old nor of unsent data.
    if acked > flight || (flight as i32) < 0 {
        receive_slowly(connection, now, place, seen);
        return;
    }
    if connection.wire == Wire::Accurate && Segment::payload_of(&seen.meta.layout) > 0 {
        count(connection, &seen);
    }
    if acked == 0 {
        receive_again(connection, place, seen);
        return;
    }
    connection.una = ack;
    open::sample(connection, now, ack);
    let policy = plain(place);
    control::acknowledged(connection, &policy, &Feedback { acked, marked: 0, signal: false, flight });
    show(connection, place, seen, &policy, (ack, acked));
}

/// Whether what it says is nothing new.
#[inline(always)]
fn is_usual(connection: &Connection, seen: &Seen<'_>) -> bool {
    let (ecn, word) = (seen.both[0][1] & 3, Word::of(&seen.both[1]));
    // Data end the report of a mark, with CWR or without it.
    if !connection.is_translated() || ecn == ecn::CE || connection.is(bit::PENDING | bit::LATCHED) {
        return false;
    }
    if connection.wire != Wire::Accurate {
        return word.is_ack_with(codes::NONE);
    }
    let says = connection.ace_seen;
    word.is_ack_with(says)
        // The option may be there.
        && word.words() == option::usual_words(connection)
        // A peer that knows AccECN and gives no sign of it may have lost its state.
        && ecn | says != 0
        && connection.zero_codes == 0
        && !connection.is(bit::FIRST_IN)
}

/// Data alone, or the last acknowledgement again.
#[inline(never)]
fn receive_again(connection: &mut Connection, place: &mut Place, seen: Seen<'_>) {
    let policy = plain(place);
    show(connection, place, seen, &policy, (connection.una, 0));
}

/// What a policy asks for here.
#[inline(always)]
fn plain(place: &Place) -> Policy {
    let mode = if place.policy.mode == Mode::Dctcp { Mode::Dctcp } else { Mode::Echo };
    Policy { mode, holds: false, polices: false, ..place.policy }
}

#[inline(never)]
fn count(connection: &mut Connection, seen: &Seen<'_>) {
    let (layout, offload) = (&seen.meta.layout, &seen.meta.offload);
    let ecn = seen.both[0][1] & 3;
    option::count(connection, Segment::count_of(layout, offload), Segment::payload_of(layout), ecn);
}

/// A guest is told of its window, and shown no ECN.
#[inline(always)]
fn show(connection: &mut Connection, place: &mut Place, seen: Seen<'_>, policy: &Policy, (ack, acked): (u32, u32)) {
    let Seen { both: [ip, tcp], meta, .. } = seen;
    let (ecn, word) = (ip[1] & 3, Word::of(tcp));
    let shown = connection.shown(word.window());
    let told = window::tell(connection, policy, ack, shown, acked);
    if let Some(counters) = &mut place.counters {
        counters.acked_bytes += u64::from(acked);
        counters.lowered += u64::from(told.is_some());
    }
    if ecn != ecn::NOT {
        set_ecn4(ip, ecn, ecn::NOT);
    }
    if word.codes() != codes::NONE {
        meta.offload.gso_ecn = GsoEcn::None;
    }
    word.write(tcp, word.with(codes::NONE, told.unwrap_or(shown)), &meta.offload);
}

#[inline(never)]
pub(super) fn receive_slowly(
    connection: &mut Connection,
    now: Instant,
    place: &mut Place,
    mut seen: Seen<'_>,
) -> Effects {
    let mut effects = Effects::default();
    let Some(counters) = place.counters.as_deref_mut() else { return effects };
    let segment = seen.segment_of(connection);
    let edit = open::receive_open(connection, now, &place.policy, &segment, (counters, &mut effects));
    seen.edit(&edit);
    effects
}

#[cfg(test)]
mod tests {
    use super::super::Owner;
    use super::super::connection::{Asked, Count, Scale, Treatment, Why};
    use super::super::segment::Options;
    use super::*;
    use crate::frame;
    use crate::ids::{EndpointId, TenantId};
    use crate::table::Id;
    use proptest::prelude::*;

    /// Numbers in turn.
    struct Dice(Vec<u32>);

    impl Dice {
        fn below(&mut self, most: u32) -> u32 {
            self.0.pop().expect("there are enough") % most
        }

        /// Mostly the first.
        fn either<T>(&mut self, mostly: T, other: T) -> T {
            if self.below(8) > 0 { mostly } else { other }
        }
    }

    fn connection(dice: &mut Dice) -> Connection {
        let mut c = Connection::new(&Options { mss: Some(1448), ..Options::default() });
        c.una = dice.below(u32::MAX);
        c.nxt = c.una.wrapping_add(dice.below(60_000));
        c.edge = c.nxt.wrapping_add(dice.below(40_000));
        (c.window, c.ssthresh, c.prior) = (1 + dice.below(60_000), dice.below(80_000), dice.below(80_000));
        c.round_end = c.una.wrapping_add(dice.below(60_000));
        c.reduced_to = c.una.wrapping_add(dice.below(6_000)).wrapping_sub(3_000);
        (c.acked, c.marked, c.grown) = (dice.below(60_000), dice.either(0, 3_000), dice.below(60_000));
        c.timed = (c.una.wrapping_add(dice.below(10_000)), dice.below(1_000_000));
        (c.srtt, c.alpha, c.pace) = (dice.below(2_000), dice.below(65_537), dice.below(257) as u16);
        c.bits = bit::ENGAGED | bit::TIMED;
        for _ in 0..2 {
            let other = 1 << dice.below(16);
            c.bits ^= dice.either(0, other);
        }
        let scale = dice.below(15) as u8;
        c.bits |= [0, 0, 0, bit::LATCHED, bit::LATCHED | bit::ECHOES_LAST][dice.below(5) as usize];
        c.scale = dice.either(Scale::of(scale), Scale::lowered(7, 1 + scale / 2));
        (c.zero_codes, c.idle_rounds) = (dice.either(0, 1), dice.below(16) as u8);
        (c.ace_told, c.ce_untold) = (dice.below(256) as u8, dice.either(0, 3) as u16);
        c.wire = if dice.below(2) == 0 { Wire::Classic } else { Wire::Accurate };
        c.arrived = if c.wire == Wire::Accurate { dice.either(2, 8 + 3) } else { 0 };
        c.ect_bytes = Count::of(dice.either(1, (1 << 21) - 1000));
        c.ace_seen = if c.wire == Wire::Accurate { dice.below(8) as u8 } else { 5 };
        c.asked = Asked::new(codes::ASK_ACCURATE, dice.either(ecn::ECT0, ecn::NOT));
        c.option = dice.either(option::flag::ECT * ecn::ECT0, 0xff);
        c.treatment = dice.either(Treatment::Translated, Treatment::Untouched(Why::Codes));
        c
    }

    fn place(dice: &mut Dice) -> Place {
        let mode = dice.either(Mode::Echo, Mode::EchoPublished);
        let policy = Policy { mode: if dice.below(2) == 0 { Mode::Dctcp } else { mode }, ..Policy::default() };
        Place {
            owner: Owner { tenant: TenantId(0), endpoint: EndpointId(0) },
            policy,
            is_in: true,
            is_usual: of(&policy),
            is_again: [false; 2],
            last: Id(0),
            memory: frame::Owner::NOBODY,
            siblings: None,
            counters: Some(Box::default()),
        }
    }

    /// A segment with these numbers, of a connection.
    fn headers(dice: &mut Dice, seq: u32, ack: u32, says: u8) -> (Both, Meta) {
        let (mut ip, mut tcp) = ([0x45; ipv4::LEN], [7; transport::TCP_LEN]);
        ip[1] = [ecn::NOT, ecn::ECT0, ecn::NOT, ecn::ECT0, ecn::CE][dice.below(5) as usize];
        tcp[SEQUENCE..SEQUENCE + 4].copy_from_slice(&seq.to_be_bytes());
        tcp[ACKNOWLEDGEMENT..ACKNOWLEDGEMENT + 4].copy_from_slice(&ack.to_be_bytes());
        let says = dice.either(says, says ^ 1);
        (tcp[12], tcp[13]) = (0x50 | says >> 2, says << 6 | dice.either(tcp_flags::ACK, tcp_flags::PSH));
        let mut meta = Meta::default();
        (meta.layout.payload_offset, meta.layout.end) = (54, 54 + [0, 1448, 2896][dice.below(3) as usize]);
        meta.offload.needs_csum = dice.below(2) == 0;
        if meta.layout.end > 2000 {
            (meta.offload.gso, meta.offload.gso_size) = (Gso::Tcp4, 1448);
            meta.offload.gso_ecn = if says & codes::CWR != 0 { GsoEcn::Ace } else { GsoEcn::None };
        }
        ([ip, tcp], meta)
    }

    fn seen_of<'a>(both: &'a mut Both, meta: &'a mut Meta) -> Seen<'a> {
        Seen { both, rest: &mut [], meta }
    }

    const NOW: Instant = Instant(3_000_000_000);

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn what_a_guest_sends_is_treated_as_without_a_short_way(numbers in prop::collection::vec(any::<u32>(), 64)) {
            let mut dice = Dice(numbers);
            let (mut one, place) = (connection(&mut dice), place(&mut dice));
            one.bits &= !dice.either(bit::FIRST_OUT | bit::CWR_DUE, 0);
            let seq = dice.either(one.nxt, one.nxt.wrapping_sub(1448));
            let says = if one.wire == Wire::Accurate { dice.either(one.ace_told & 7, 0) } else { 0 };
            let (mut both, mut meta) = headers(&mut dice, seq, 1, says);
            let (mut other, mut other_both, mut other_meta) = (one, both, meta);
            let option = send(&mut one, NOW, (&place, place.is_usual[0]), seen_of(&mut both, &mut meta));
            let other_option = send_slowly(&mut other, NOW, &place, seen_of(&mut other_both, &mut other_meta));
            prop_assert_eq!(option, other_option);
            prop_assert_eq!(format!("{one:?}"), format!("{other:?}"));
            prop_assert_eq!((both, meta.offload), (other_both, other_meta.offload));
        }

        #[test]
        fn what_is_for_a_guest_is_treated_as_without_a_short_way(numbers in prop::collection::vec(any::<u32>(), 64)) {
            let mut dice = Dice(numbers);
            let (mut one, mut place) = (connection(&mut dice), place(&mut dice));
            prop_assume!(place.is_usual[1]);
            let (some, any) = (dice.below(6_000).min(one.flight()), dice.below(80_000));
            let some = [0, some][dice.below(2) as usize];
            let ack = one.una.wrapping_add(dice.either(some, any));
            let says = if one.wire == Wire::Accurate { one.ace_seen } else { 0 };
            let (mut both, mut meta) = headers(&mut dice, 1, ack, says);
            let (mut other, mut other_both, mut other_meta, mut other_place) = (one, both, meta, place.clone());
            receive(&mut one, NOW, &mut place, seen_of(&mut both, &mut meta));
            receive_slowly(&mut other, NOW, &mut other_place, seen_of(&mut other_both, &mut other_meta));
            prop_assert_eq!(format!("{one:?}"), format!("{other:?}"));
            prop_assert_eq!((both, meta.offload), (other_both, other_meta.offload));
            prop_assert_eq!(place.counters, other_place.counters);
        }
    }
}
