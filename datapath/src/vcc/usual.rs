//! What most frames are: a TCP segment without options but timestamps, of a connection that is
//! open, over IPv4 without options or IPv6 without extension headers.
//!
//! Of a translated connection most are data in order, or acknowledgements of what was sent, and
//! nothing new is said of marks. A few comparisons tell that they are so; then what is left of
//! [`open`] is done, with the same result. Numbers are read where they are needed, so that few have
//! to be kept at a time.

use super::connection::{Connection, Wire, before, bit};
use super::control::{self, Feedback};
use super::segment::{
    ACKNOWLEDGEMENT, Edit, Headers, SEQUENCE, Segment, Word, change_ecn, codes, ecn, ecn_of, set_ecn,
};
use super::{Effects, Mode, Policy, VccEndpoint, open, option, window};
use crate::frame::{Frame, Meta, Pool};
use crate::offload::{Gso, GsoEcn};
use crate::units::{Direction, Instant};
use crate::wire::{L3, L4, Layout, Tcp4, Tcp6, TcpFlow, be32, ipv4, ipv6, tcp_flags, transport};

/// As many bytes of a header as TCP's has: that of IPv4 has as many, that of IPv6 twice as many.
pub(super) type Part = [u8; ipv4::LEN];
const _: () = assert!(ipv4::LEN == transport::TCP_LEN && ipv6::LEN == 2 * ipv4::LEN);

/// The headers of a segment, of IP and of TCP.
pub(super) trait Both: Sized {
    /// Which IP it is.
    const L3: L3;
    /// Bytes of all.
    const LEN: usize;
    /// What tells its flow.
    type Flow: TcpFlow;

    /// Those that end where `head` does.
    fn behind(head: &mut [u8]) -> Option<&mut Self>;

    /// Those of a frame that begin at `at`, and its metadata.
    fn of<'a>(pool: &'a mut Pool, frame: &Frame, at: usize) -> Option<(&'a mut Self, &'a mut Meta)>;

    /// IP's first part, which has its ECN field, and TCP's header.
    fn parts(&self) -> [&Part; 2];

    /// The same, to change.
    fn parts_mut(&mut self) -> [&mut Part; 2];

    /// The flow that it is sent in.
    fn flow(&self) -> Option<Self::Flow>;
}

/// Those of IPv4.
pub(super) type Both4 = [Part; 2];

impl Both for Both4 {
    const L3: L3 = L3::Ipv4;
    const LEN: usize = size_of::<Self>();
    type Flow = Tcp4;

    #[inline(always)]
    fn behind(head: &mut [u8]) -> Option<&mut Self> {
        head.last_chunk_mut::<{ Self::LEN }>()?.as_chunks_mut().0.first_chunk_mut()
    }

    #[inline(always)]
    fn of<'a>(pool: &'a mut Pool, frame: &Frame, at: usize) -> Option<(&'a mut Self, &'a mut Meta)> {
        let (bytes, meta) = pool.headers_mut::<{ Self::LEN }>(frame, at)?;
        Some((bytes.as_chunks_mut().0.first_chunk_mut()?, meta))
    }

    #[inline(always)]
    fn parts(&self) -> [&Part; 2] {
        self.each_ref()
    }

    #[inline(always)]
    fn parts_mut(&mut self) -> [&mut Part; 2] {
        self.each_mut()
    }

    #[inline(always)]
    fn flow(&self) -> Option<Self::Flow> {
        let [ip, tcp] = self;
        Tcp4::of(ip, tcp)
    }
}

/// Those of IPv6.
pub(super) type Both6 = [Part; 3];

impl Both for Both6 {
    const L3: L3 = L3::Ipv6;
    const LEN: usize = size_of::<Self>();
    type Flow = Tcp6;

    #[inline(always)]
    fn behind(head: &mut [u8]) -> Option<&mut Self> {
        head.last_chunk_mut::<{ Self::LEN }>()?.as_chunks_mut().0.first_chunk_mut()
    }

    #[inline(always)]
    fn of<'a>(pool: &'a mut Pool, frame: &Frame, at: usize) -> Option<(&'a mut Self, &'a mut Meta)> {
        let (bytes, meta) = pool.headers_mut::<{ Self::LEN }>(frame, at)?;
        Some((bytes.as_chunks_mut().0.first_chunk_mut()?, meta))
    }

    #[inline(always)]
    fn parts(&self) -> [&Part; 2] {
        let [ip, _, tcp] = self;
        [ip, tcp]
    }

    #[inline(always)]
    fn parts_mut(&mut self) -> [&mut Part; 2] {
        let [ip, _, tcp] = self;
        [ip, tcp]
    }

    #[inline(always)]
    fn flow(&self) -> Option<Self::Flow> {
        let [ip @ .., tcp] = self;
        Tcp6::of(ip.as_flattened(), tcp)
    }
}

/// A frame that is so, and neither opens a connection nor ends one.
pub(super) struct Seen<'a, B> {
    pub both: &'a mut B,
    /// What is behind them: options of TCP, and payload.
    pub rest: &'a mut [u8],
    pub meta: &'a mut Meta,
}

/// Such a frame, and the flow that its endpoint sends in.
#[inline(always)]
pub(super) fn seen<'a, B: Both>(
    pool: &'a mut Pool,
    frame: &Frame,
    direction: Direction,
) -> Option<(Seen<'a, B>, B::Flow)> {
    let at = place_of::<B>(&pool.meta(frame).layout)?;
    let (bytes, meta) = pool.parts_mut(frame);
    let (head, rest) = bytes.split_at_mut_checked(at + B::LEN)?;
    let both = B::behind(head)?;
    let flow = flow_of(both, direction)?;
    Some((Seen { both, rest, meta }, flow))
}

/// The same without what is behind its headers.
#[inline(always)]
pub(super) fn seen_head<'a, B: Both>(
    pool: &'a mut Pool,
    frame: &Frame,
    direction: Direction,
) -> Option<(Seen<'a, B>, B::Flow)> {
    let at = place_of::<B>(&pool.meta(frame).layout)?;
    let (both, meta) = B::of(pool, frame, at)?;
    let flow = flow_of(both, direction)?;
    Some((Seen { both, rest: &mut [], meta }, flow))
}

/// Where its headers begin.
#[inline(always)]
fn place_of<B: Both>(layout: &Layout) -> Option<usize> {
    let at = usize::from(layout.l3_offset);
    let is_plain = usize::from(layout.l4_offset) == at + B::LEN - transport::TCP_LEN;
    (layout.is_whole(B::L3, L4::Tcp) && is_plain).then_some(at)
}

#[inline(always)]
fn flow_of<B: Both>(both: &B, direction: Direction) -> Option<B::Flow> {
    const NOT_PLAIN: u8 = tcp_flags::SYN | tcp_flags::FIN | tcp_flags::RST;
    let [_, tcp] = both.parts();
    if tcp[transport::TCP_FLAGS] & NOT_PLAIN != 0 {
        return None;
    }
    let flow = both.flow()?;
    Some(if direction == Direction::Egress { flow } else { flow.reversed() })
}

impl<B: Both> Seen<'_, B> {
    /// The segment, without what its options say.
    #[inline(always)]
    pub fn segment(&self) -> Segment {
        Segment::read(self.tcp(), self.ecn(), &self.meta.layout, &self.meta.offload)
    }

    #[inline(always)]
    fn tcp(&self) -> &Part {
        let [_, tcp] = self.both.parts();
        tcp
    }

    /// IP's ECN field.
    #[inline(always)]
    fn ecn(&self) -> u8 {
        let [ip, _] = self.both.parts();
        ecn_of(ip, B::L3)
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
        let [ip, tcp] = self.both.parts_mut();
        edit.write(&mut Headers { ip, tcp }, B::L3, &mut self.meta.offload);
    }

    #[inline(never)]
    fn hide(&mut self, counts: &option::Counts) {
        let (mut hidden, offload) = (*self.tcp(), self.meta.offload);
        option::hide(&mut hidden, self.options(), &offload, counts);
        let [_, tcp] = self.both.parts_mut();
        *tcp = hidden;
    }
}

/// Whether a policy asks for nothing but what is done here: for what guests send, and for what they
/// are to have.
pub(super) fn of(policy: &Policy) -> [bool; 2] {
    let is_ours = matches!(policy.mode, Mode::Echo | Mode::Dctcp);
    [is_ours, is_ours && !policy.holds]
}

/// A guest sends it, whose policy asks for nothing but what is done here. Whether it is done; else
/// nothing is changed, and [`send_slowly`] does what is within the window that the guest was told.
#[must_use]
#[inline(always)]
pub(super) fn send<B: Both>(
    connection: &mut Connection,
    now: Instant,
    policy: &Policy,
    seen: &mut Seen<'_, B>,
) -> bool {
    const NEWS: u16 = bit::BLEACHED | bit::CWR_DUE | bit::FIRST_OUT | bit::LATCHED;
    let is_counter = connection.wire == Wire::Accurate;
    let word = Word::of(seen.tcp());
    let is_usual = connection.is_translated()
        && be32(seen.tcp(), SEQUENCE) == connection.nxt
        && !connection.is(NEWS)
        && !(is_counter
            && (connection.ce_untold > 0
                || option::has_news(connection)
                || word.words() != option::usual_words(connection)));
    if !is_usual {
        return false;
    }
    let Seen { both, meta, .. } = seen;
    let [ip, tcp] = both.parts_mut();
    let payload = Segment::payload_of(&meta.layout);
    if payload > 0 {
        let end = connection.nxt.wrapping_add(payload);
        // What `open::beyond` lets pass of it, it lets pass the longer way.
        if policy.polices && before(connection.edge, end) {
            return false;
        }
        open::time(connection, now, end);
        connection.nxt = end;
    }
    match ecn_of(ip, B::L3) {
        ecn::ECT0 => {}
        // Most guests know nothing of it.
        ecn::NOT => change_ecn(ip, B::L3, ecn::NOT, ecn::ECT0),
        was => change_ecn(ip, B::L3, was, ecn::ECT0),
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
    true
}

/// Does the same for any such frame, and returns the option that is to be put in, if any.
#[inline(never)]
pub(super) fn send_slowly<B: Both>(
    connection: &mut Connection,
    now: Instant,
    policy: &Policy,
    seen: &mut Seen<'_, B>,
) -> Option<[u8; option::LEN]> {
    let segment = seen.segment_of(connection);
    let edit = open::send(connection, now, policy, &segment);
    seen.edit(&edit);
    edit.option
}

/// It is for a guest. It does not wait, and nothing does that it could take the place of. Whether
/// it is done; else nothing is changed, and [`receive_slowly`] does it.
#[must_use]
#[inline(always)]
pub(super) fn receive<B: Both>(
    connection: &mut Connection,
    now: Instant,
    place: &mut VccEndpoint,
    seen: &mut Seen<'_, B>,
) -> bool {
    if !is_usual(connection, seen) {
        return false;
    }
    let (both, meta) = (&mut *seen.both, &mut *seen.meta);
    if connection.wire == Wire::Accurate && Segment::payload_of(&meta.layout) > 0 {
        return receive_data(connection, now, place, both, meta);
    }
    match acknowledges(connection, place, both) {
        Some((ack, 0, _)) => receive_again(connection, place, both, meta, ack),
        Some(acknowledged) => advance(connection, now, place, (both, meta), acknowledged),
        None => return false,
    }
    true
}

/// What a segment acknowledges: the number, how many bytes, and how many were in flight. Not where
/// that is old or was not sent, nor where more is to be done.
#[inline(always)]
fn acknowledges<B: Both>(connection: &Connection, place: &VccEndpoint, both: &B) -> Option<(u32, u32, u32)> {
    let [_, tcp] = both.parts();
    let (ack, flight) = (be32(tcp, ACKNOWLEDGEMENT), connection.flight());
    let acked = ack.wrapping_sub(connection.una);
    let is_none = acked > flight || (flight as i32) < 0 || place.siblings.is_some() && is_noted(connection, ack);
    (!is_none).then_some((ack, acked, flight))
}

/// What was not acknowledged before is.
#[inline(always)]
fn advance<B: Both>(
    connection: &mut Connection,
    now: Instant,
    place: &mut VccEndpoint,
    (both, meta): (&mut B, &mut Meta),
    (ack, acked, flight): (u32, u32, u32),
) {
    connection.una = ack;
    open::sample(connection, now, ack);
    let policy = plain(place);
    control::acknowledged(connection, &policy, &Feedback { acked, marked: 0, signal: false, flight });
    show(connection, place, (both, meta), &policy, (ack, acked));
}

/// Whether what it says is nothing new.
#[inline(always)]
fn is_usual<B: Both>(connection: &Connection, seen: &Seen<'_, B>) -> bool {
    let (ecn, word) = (seen.ecn(), Word::of(seen.tcp()));
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

/// Of a guest that is policed: what it sends is not held to its window yet, or a round may end with
/// this acknowledgement of which [`super::siblings`] are told.
#[inline(always)]
fn is_noted(connection: &Connection, ack: u32) -> bool {
    let is_over = !before(ack, connection.round_end);
    connection.armed_at != open::ARMED || is_over && before(connection.round_end, connection.reduced_to)
}

/// The same of data that are counted. So that nothing has to be kept for this, it is by itself.
#[inline(never)]
fn receive_data<B: Both>(
    connection: &mut Connection,
    now: Instant,
    place: &mut VccEndpoint,
    both: &mut B,
    meta: &mut Meta,
) -> bool {
    let Some((ack, acked, flight)) = acknowledges(connection, place, both) else { return false };
    let [ip, _] = both.parts();
    let (segments, payload) = (Segment::count_of(&meta.layout, &meta.offload), Segment::payload_of(&meta.layout));
    option::count(connection, segments, payload, ecn_of(ip, B::L3));
    if acked > 0 {
        advance(connection, now, place, (both, meta), (ack, acked, flight));
    } else {
        let policy = plain(place);
        show(connection, place, (both, meta), &policy, (ack, 0));
    }
    true
}

/// Data that are not counted, or the last acknowledgement again.
#[inline(never)]
fn receive_again<B: Both>(
    connection: &mut Connection,
    place: &mut VccEndpoint,
    both: &mut B,
    meta: &mut Meta,
    ack: u32,
) {
    let policy = plain(place);
    show(connection, place, (both, meta), &policy, (ack, 0));
}

/// What a policy asks for here.
#[inline(always)]
fn plain(place: &VccEndpoint) -> Policy {
    let mode = if place.policy.mode == Mode::Dctcp { Mode::Dctcp } else { Mode::Echo };
    Policy { mode, holds: false, ..place.policy }
}

/// A guest is told of its window, and shown no ECN.
#[inline(always)]
fn show<B: Both>(
    connection: &mut Connection,
    place: &mut VccEndpoint,
    (both, meta): (&mut B, &mut Meta),
    policy: &Policy,
    (ack, acked): (u32, u32),
) {
    let [ip, tcp] = both.parts_mut();
    let word = Word::of(tcp);
    let shown = connection.shown(word.window());
    let told = window::told(connection, policy, ack, shown, acked);
    if let Some(counters) = &mut place.counters {
        counters.acked_bytes += u64::from(acked);
        counters.lowered += u64::from(told != shown);
    }
    if ecn_of(ip, B::L3) != ecn::NOT {
        set_ecn(ip, B::L3, ecn::NOT);
    }
    if word.codes() != codes::NONE {
        meta.offload.gso_ecn = GsoEcn::None;
    }
    word.write(tcp, word.with(codes::NONE, told), &meta.offload);
}

/// Does the same for any such frame, and returns its effects.
#[inline(never)]
pub(super) fn receive_slowly<B: Both>(
    connection: &mut Connection,
    now: Instant,
    place: &mut VccEndpoint,
    seen: &mut Seen<'_, B>,
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
    use super::super::connection::{Asked, Count, Scale, Treatment, Why};
    use super::super::segment::Options;
    use super::super::{Owner, siblings};
    use super::*;
    use crate::frame;
    use crate::ids::{EndpointId, TenantId};
    use crate::table::Id;
    use proptest::prelude::*;
    use std::fmt::Debug;

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

    fn place(dice: &mut Dice) -> VccEndpoint {
        let mode = dice.either(Mode::Echo, Mode::EchoPublished);
        let mode = if dice.below(2) == 0 { Mode::Dctcp } else { mode };
        let policy = Policy { mode, ..Policy::default() };
        VccEndpoint {
            owner: Owner { tenant: TenantId(0), endpoint: EndpointId(0) },
            policy,
            is_in: true,
            is_usual: of(&policy),
            ways: [super::super::none; 2],
            last: Id(0),
            memory: frame::Owner::NOBODY,
            siblings: None,
            counters: Some(Box::default()),
        }
    }

    /// Headers that can be made and compared.
    trait Made: Both + Copy + PartialEq + Debug {
        const SOME: Self;
        const GSO: Gso;
    }

    impl Made for Both4 {
        const SOME: Both4 = [[0x45; ipv4::LEN]; 2];
        const GSO: Gso = Gso::Tcp4;
    }

    impl Made for Both6 {
        const SOME: Both6 = [[0x6f; ipv4::LEN]; 3];
        const GSO: Gso = Gso::Tcp6;
    }

    /// A segment with these numbers, of a connection.
    fn headers<B: Made>(dice: &mut Dice, seq: u32, ack: u32, says: u8) -> (B, Meta) {
        let mut both = B::SOME;
        let [ip, tcp] = both.parts_mut();
        let ecn = [ecn::NOT, ecn::ECT0, ecn::NOT, ecn::ECT0, ecn::CE][dice.below(5) as usize];
        let shift = if B::L3 == L3::Ipv6 { 4 } else { 0 };
        ip[1] = ip[1] & !(3 << shift) | ecn << shift;
        tcp[SEQUENCE..SEQUENCE + 4].copy_from_slice(&seq.to_be_bytes());
        tcp[ACKNOWLEDGEMENT..ACKNOWLEDGEMENT + 4].copy_from_slice(&ack.to_be_bytes());
        let says = dice.either(says, says ^ 1);
        (tcp[12], tcp[13]) = (0x50 | says >> 2, says << 6 | dice.either(tcp_flags::ACK, tcp_flags::PSH));
        let mut meta = Meta::default();
        let (behind, payload) = (14 + B::LEN as u16, [0, 1448, 2896][dice.below(3) as usize]);
        meta.layout = Layout { l3: B::L3, l4: L4::Tcp, l3_offset: 14, payload_offset: behind, ..Layout::default() };
        meta.layout.l4_offset = behind - transport::TCP_LEN as u16;
        meta.layout.end = u32::from(behind) + payload;
        meta.offload.needs_csum = dice.below(2) == 0;
        if payload > 2000 {
            (meta.offload.gso, meta.offload.gso_size) = (B::GSO, 1448);
            meta.offload.gso_ecn = if says & codes::CWR != 0 { GsoEcn::Ace } else { GsoEcn::None };
        }
        (both, meta)
    }

    fn seen_of<'a, B>(both: &'a mut B, meta: &'a mut Meta) -> Seen<'a, B> {
        Seen { both, rest: &mut [], meta }
    }

    const NOW: Instant = Instant(3_000_000_000);

    fn sent<B: Made>(mut dice: Dice) -> Result<(), TestCaseError> {
        let (mut one, mut place) = (connection(&mut dice), place(&mut dice));
        place.policy.polices = place.policy.mode.is_ours() && dice.below(4) == 0;
        prop_assume!(of(&place.policy)[0]);
        one.bits &= !dice.either(bit::FIRST_OUT | bit::CWR_DUE, 0);
        let seq = dice.either(one.nxt, one.nxt.wrapping_sub(1448));
        let says = if one.wire == Wire::Accurate { dice.either(one.ace_told & 7, 0) } else { 0 };
        let (mut both, mut meta) = headers::<B>(&mut dice, seq, 1, says);
        let (mut other, mut other_both, mut other_meta) = (one, both, meta);
        if send(&mut one, NOW, &place.policy, &mut seen_of(&mut both, &mut meta)) {
            let mut seen = seen_of(&mut other_both, &mut other_meta);
            let (segment, size) = (seen.segment(), seen.meta.offload.gso_size);
            prop_assert_eq!(open::beyond(&other, NOW, &place.policy, &segment, size), 0);
            prop_assert_eq!(send_slowly(&mut other, NOW, &place.policy, &mut seen), None);
        }
        // Else nothing has changed.
        prop_assert_eq!(format!("{one:?}"), format!("{other:?}"));
        prop_assert_eq!((both, meta.offload), (other_both, other_meta.offload));
        Ok(())
    }

    fn received<B: Made>(mut dice: Dice) -> Result<(), TestCaseError> {
        let (mut one, mut place) = (connection(&mut dice), place(&mut dice));
        prop_assume!(place.is_usual[1]);
        place.policy.polices = dice.below(2) == 0;
        place.siblings = place.policy.polices.then(Box::default);
        one.armed_at = [open::ARMED, 2_990_000, 3_010_000][dice.below(3) as usize];
        let (some, any) = (dice.below(6_000).min(one.flight()), dice.below(80_000));
        let some = [0, some][dice.below(2) as usize];
        let ack = one.una.wrapping_add(dice.either(some, any));
        let says = if one.wire == Wire::Accurate { one.ace_seen } else { 0 };
        let (mut both, mut meta) = headers::<B>(&mut dice, 1, ack, says);
        let (mut other, mut other_both, mut other_meta, mut other_place) = (one, both, meta, place.clone());
        if receive(&mut one, NOW, &mut place, &mut seen_of(&mut both, &mut meta)) {
            let mut seen = seen_of(&mut other_both, &mut other_meta);
            let round_end = other.round_end;
            let effects = receive_slowly(&mut other, NOW, &mut other_place, &mut seen);
            prop_assert_eq!(effects, Effects::default());
            // Nothing is left to be noted of it.
            prop_assert!(!place.policy.polices || !siblings::is_slowed(&other, round_end));
        }
        // Else nothing has changed.
        prop_assert_eq!(format!("{one:?}"), format!("{other:?}"));
        prop_assert_eq!((both, meta.offload), (other_both, other_meta.offload));
        prop_assert_eq!(place.counters, other_place.counters);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn what_a_guest_sends_is_treated_as_without_a_short_way(numbers in prop::collection::vec(any::<u32>(), 80)) {
            sent::<Both4>(Dice(numbers.clone()))?;
            sent::<Both6>(Dice(numbers))?;
        }

        #[test]
        fn what_is_for_a_guest_is_treated_as_without_a_short_way(numbers in prop::collection::vec(any::<u32>(), 80)) {
            received::<Both4>(Dice(numbers.clone()))?;
            received::<Both6>(Dice(numbers))?;
        }
    }
}
