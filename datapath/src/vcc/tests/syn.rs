//! Options of SYNs and SYN-ACKs that are changed: Multipath TCP, and coarse window scales.

use super::super::saved::BYTES;
use super::super::segment::options;
use super::super::syn::{FINE, strip, tell_scale};
use super::*;
use crate::offload::Offload;
use crate::wire::transport::TCP_LEN;

/// MP_CAPABLE with a key, as a guest's SYN-ACK has it, behind a segment size.
const CAPABLE: &[u8] = &[2, 4, 5, 0xb4, 30, 12, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8];
/// MP_JOIN, at an odd offset.
const JOIN: &[u8] = &[2, 4, 5, 0xb4, 1, 30, 12, 0x10, 2, 9, 9, 9, 9, 8, 8, 8, 8, 1, 1, 1];

fn stripping(modes: [Mode; 2]) -> Rig {
    let mut rig = Rig::new(modes);
    for (side, mode) in modes.into_iter().enumerate() {
        let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
        rig.sides[side].set(owner, Settings { strips_multipath: true, ..mode.into() });
    }
    rig
}

impl Rig {
    /// The options of what a guest sends, and of what it is shown, once the switch has seen it; and
    /// whether a trace says that something was taken out.
    fn options(&mut self, side: usize, says: &Says, is_sent: bool) -> (Vec<u8>, bool) {
        let frame = self.frame(if is_sent { side } else { 1 - side }, says);
        let (bytes, meta) = (self.pool.bytes(&frame), self.pool.meta(&frame));
        let shown = (bytes, &meta.layout, &meta.offload);
        let vcc = &mut self.sides[side];
        let told = if is_sent {
            vcc.explain_send(self.now, ENDPOINT, shown)
        } else {
            vcc.explain_receive(self.now, ENDPOINT, shown)
        };
        if is_sent {
            let sent = vcc.send(&mut self.pool, self.now, ENDPOINT, &frame);
            assert!(matches!(sent, Ok(()) | Err(Stop::Unknown)), "{sent:?}");
        } else {
            vcc.receive(&mut self.pool, self.now, ENDPOINT, &frame);
        }
        let (bytes, meta) = (self.pool.bytes(&frame), self.pool.meta(&frame));
        let options = options_in(bytes, &meta.layout)[..says.options.len()].to_vec();
        self.read(frame);
        // With the mode `off` there is nothing to say.
        let Some(told) = told else { return (options, false) };
        assert_eq!(told.edit.strips, told.to_string().contains("Multipath TCP taken out"), "{told}");
        (options, told.edit.strips)
    }
}

fn without(options: &[u8], range: core::ops::Range<usize>) -> Vec<u8> {
    let mut options = options.to_vec();
    options[range].fill(1);
    options
}

#[test]
fn multipath_tcp_is_taken_out_of_handshakes_in_both_directions_and_the_connection_is_translated() {
    for (said, range) in [(CAPABLE, 4..16), (JOIN, 5..17)] {
        // Each side in turn is the one whose switch strips.
        for side in [CLIENT, SERVER] {
            let mut rig = stripping([Mode::Dctcp; 2]);
            let syn = Says { seq: 100, flags: SYN, window: 9, options: said, ..Says::default() };
            // Also where it comes again.
            for _ in 0..4 {
                assert_eq!(rig.options(side, &syn, side == CLIENT), (without(said, range.clone()), true));
            }
            assert_eq!(rig.connection(side).treatment, Treatment::Opening);
            // A peer that answers so all the same is not heard.
            let codes = if side == CLIENT { codes::received(ecn::ECT0) } else { 0 };
            let flags = SYN | ACK;
            let answer = Says { seq: 200, ack: 101, flags, codes, options: said, window: 9, ..Says::default() };
            let asks = Says { codes: codes::ASK_ACCURATE, ..syn };
            if side == SERVER {
                rig.options(side, &asks, false);
            }
            for _ in 0..2 {
                assert_eq!(rig.options(side, &answer, side == SERVER), (without(said, range.clone()), true));
            }
            assert_eq!(rig.connection(side).treatment, Treatment::Translated);
            assert_eq!(rig.sides[side].counters(ENDPOINT).unwrap().untouched, [0; Why::ALL.len()]);
            // It is of the handshake alone.
            let data = Says { seq: 101, ack: 201, flags: ACK, window: 9, options: said, ..Says::default() };
            assert_eq!(rig.options(CLIENT, &data, true).0, said);
        }
    }
}

#[test]
fn where_nothing_is_changed_multipath_tcp_stays() {
    let syn = Says { seq: 100, flags: SYN, window: 9, options: CAPABLE, ..Says::default() };
    let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, ..syn };
    let mut rig = stripping([Mode::Count; 2]);
    assert_eq!(rig.options(CLIENT, &syn, true), (CAPABLE.to_vec(), false));
    assert_eq!(rig.options(SERVER, &syn, false), (CAPABLE.to_vec(), false));
    assert_eq!(rig.options(SERVER, &answer, true), (CAPABLE.to_vec(), false));
    for side in [CLIENT, SERVER] {
        assert_eq!(rig.connection(side).treatment, Treatment::Untouched(Why::Multipath));
    }
    // Who signs its header, and Multipath TCP with it.
    const SIGNED: &[u8] = &[30, 4, 0, 1, 19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    let mut rig = stripping([Mode::Echo; 2]);
    let signed = Says { options: SIGNED, ..syn };
    assert_eq!(rig.options(CLIENT, &signed, true), (SIGNED.to_vec(), false));
    assert_eq!(rig.options(SERVER, &signed, false), (SIGNED.to_vec(), false));
    assert_eq!(rig.connection(CLIENT).treatment, Treatment::Untouched(Why::Signed));
}

#[test]
fn a_handshake_that_began_as_one_of_multipath_tcp_goes_on_as_one() {
    let mut rig = Rig::new([Mode::Echo; 2]);
    let syn = Says { seq: 100, flags: SYN, window: 9, options: CAPABLE, ..Says::default() };
    rig.options(CLIENT, &syn, true);
    rig.options(SERVER, &syn, false);
    for side in [CLIENT, SERVER] {
        let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
        rig.sides[side].set(owner, Settings { strips_multipath: true, ..Mode::Echo.into() });
    }
    let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, ..syn };
    for (side, says, is_sent) in [(CLIENT, &syn, true), (SERVER, &syn, false)] {
        assert_eq!(rig.options(side, says, is_sent), (CAPABLE.to_vec(), false), "once more");
    }
    for (side, is_sent) in [(SERVER, true), (CLIENT, false)] {
        assert_eq!(rig.options(side, &answer, is_sent), (CAPABLE.to_vec(), false));
    }
}

#[test]
fn natives_lose_multipath_tcp_and_nothing_else() {
    for asks in [codes::ASK_CLASSIC, codes::ASK_ACCURATE] {
        let mut rig = stripping([Mode::Echo; 2]);
        let syn = Says { seq: 100, flags: SYN, codes: asks, window: 9, options: CAPABLE, ..Says::default() };
        assert_eq!(rig.options(CLIENT, &syn, true), (without(CAPABLE, 4..16), true));
        assert_eq!(rig.send(CLIENT, &syn).codes, asks);
        assert_eq!(rig.options(SERVER, &syn, false), (without(CAPABLE, 4..16), true));
        let said = if asks == codes::ASK_CLASSIC { codes::CLASSIC } else { codes::received(ecn::NOT) };
        let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, codes: said, ..syn };
        assert_eq!(rig.options(SERVER, &answer, true), (without(CAPABLE, 4..16), true));
        assert_eq!(rig.options(CLIENT, &answer, false), (without(CAPABLE, 4..16), true));
        assert_eq!([CLIENT, SERVER].map(|side| rig.connection(side).treatment), [Treatment::Native; 2]);
    }
}

/// What is left of options, with a whole checksum that is right before and after, and a partial one
/// that stays.
fn stripped(said: &[u8]) -> Vec<u8> {
    let mut tcp = [7; TCP_LEN];
    let seal = |tcp: &mut [u8; TCP_LEN], options: &[u8]| {
        put16(tcp, 16, 0);
        let sum = checksum::add(checksum::sum(tcp), checksum::sum(options));
        put16(tcp, 16, !sum);
    };
    let mut left = said.to_vec();
    seal(&mut tcp, &left);
    let partial = tcp;
    strip(&mut tcp, &mut left, &Offload::default());
    assert_eq!(checksum::add(checksum::sum(&tcp), checksum::sum(&left)), 0xffff, "{said:?}");
    let (mut again, mut other) = (said.to_vec(), partial);
    strip(&mut other, &mut again, &Offload { needs_csum: true, ..Offload::default() });
    assert_eq!((other, &again), (partial, &left));
    left
}

#[test]
fn hostile_layouts_are_stripped_as_far_as_a_receiver_reads_them() {
    let same = |options: &[u8]| assert_eq!(stripped(options), options);
    // Lengths of none, of less than an option has, beyond the header.
    same(&[30, 0, 1, 1]);
    same(&[30, 1, 1, 1]);
    same(&[1, 1, 1, 30]);
    same(&[30, 5, 0, 0]);
    same(&[1, 30, 255, 0]);
    // Behind the end, or what a receiver stops at, nothing is read.
    same(&[0, 30, 4, 0, 0, 0, 0, 0]);
    same(&[8, 1, 30, 4, 0, 0, 0, 0]);
    // In another one.
    same(&[8, 10, 30, 4, 0, 0, 30, 4, 0, 0, 1, 1]);
    assert_eq!(stripped(&[30, 2, 1, 1]), [1; 4], "the shortest");
    assert_eq!(stripped(&[30, 4, 0, 0]), [1; 4], "the longest for its header");
    assert_eq!(stripped(&[30, 3, 9, 30, 3, 9, 30, 2]), [1; 8], "several, at odd offsets");
    assert_eq!(stripped(&[2, 4, 5, 6, 1, 30, 3, 9, 30, 0, 30, 2]), [2, 4, 5, 6, 1, 1, 1, 1, 30, 0, 30, 2]);
    assert_eq!(stripped(&[30, 2].repeat(20)), [1; 40], "as many as a header holds");
}

proptest! {
    #[test]
    fn whatever_options_a_syn_has_none_of_multipath_tcp_is_left_and_nothing_else_is_lost(
        words in prop::collection::vec(prop_oneof![
            any::<[u8; 4]>(), Just([30, 4, 0, 1]), Just([1, 30, 3, 9]), Just([1, 1, 1, 30]), Just([2, 4, 5, 0xb4]),
        ], 0..=10),
    ) {
        let said = words.concat();
        let left = stripped(&said);
        let (before, after) = (options(&said), options(&left));
        prop_assert_eq!(after, segment::Options { is_multipath: false, ..before });
        let changed = said.iter().zip(&left).filter(|(before, after)| before != after);
        prop_assert!(changed.into_iter().all(|(_, &after)| after == 1));
    }
}

/// A segment of 1460 bytes and a scale.
const fn scaled(scale: u8) -> [u8; 8] {
    [2, 4, 5, 0xb4, 1, 3, 3, scale]
}
const COARSE: &[u8] = &scaled(10);
const COARSEST: &[u8] = &scaled(14);
const SMALL: &[u8] = &scaled(9);
const UNSCALED: &[u8] = &[2, 4, 5, 0xb4];

/// Of one endpoint each.
fn rescaling(modes: [Mode; 2]) -> Rig {
    let mut rig = Rig::new(modes);
    rig.sides.iter_mut().for_each(|side| side.set_rescales(true));
    rig
}

/// A connection that one side's guest opens with another scale than the other's, and the options of
/// SYN and SYN-ACK as the guests saw them.
fn open_with(rig: &mut Rig, options: [&'static [u8]; 2], asks: u8, says: u8) -> [Vec<u8>; 2] {
    let syn = Says { seq: 100, flags: SYN, codes: asks, window: 9000, options: options[0], ..Says::default() };
    let wire = rig.send(CLIENT, &syn);
    let met = Says { codes: wire.codes, ecn: wire.ecn, ..syn };
    let seen = rig.options(SERVER, &met, false).0;
    let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, codes: says, options: options[1], ..syn };
    let wire = rig.send(SERVER, &answer);
    let met = Says { codes: wire.codes, ecn: wire.ecn, ..answer };
    [seen, rig.options(CLIENT, &met, false).0]
}

/// What a guest sees of a window field that its peer sends.
fn seen(rig: &mut Rig, to: usize, field: u16) -> u16 {
    let (seq, ack) = if to == CLIENT { (201, 101) } else { (101, 201) };
    let says = Says { seq, ack, flags: ACK, window: field, ..Says::default() };
    rig.pass(1 - to, &says, false).1.window
}

#[test]
fn a_coarse_scale_is_told_as_a_finer_one_and_each_window_by_it() {
    for mode in [Mode::Echo, Mode::Dctcp] {
        let mut rig = rescaling([mode; 2]);
        let told = open_with(&mut rig, [COARSE, COARSEST], 0, 0);
        assert_eq!(told, [scaled(FINE); 2], "each guest is told of the other's");
        for (to, by) in [(SERVER, 3), (CLIENT, 7)] {
            assert_eq!(rig.connection(to).treatment, Treatment::Translated);
            assert_eq!([0, 1, 100].map(|field| seen(&mut rig, to, field)), [0, 1 << by, 100 << by]);
            assert_eq!(seen(&mut rig, to, u16::MAX), u16::MAX, "what does not fit is less");
        }
    }
}

#[test]
fn scales_that_can_tell_a_few_segments_stay_and_so_do_those_of_whom_nothing_is_lowered() {
    let cases: [(_, [&'static [u8]; 2], _, _); 5] = [
        ([Mode::Echo; 2], [SMALL, SMALL], 0, 0),
        ([Mode::Count; 2], [COARSE; 2], 0, 0),
        ([Mode::EchoPublished; 2], [COARSE; 2], 0, 0),
        // Nobody asks for anything, or the guest speaks for itself and is not policed: only in the
        // SYN for a guest it is not known yet.
        ([Mode::Count, Mode::Echo], [COARSE; 2], 0, 0),
        ([Mode::Echo, Mode::Count], [COARSE; 2], codes::ASK_CLASSIC, codes::CLASSIC),
    ];
    for (modes, options, asks, says) in cases {
        let mut rig = rescaling(modes);
        assert_eq!(open_with(&mut rig, options, asks, says), options, "{modes:?}");
        assert_eq!([SERVER, CLIENT].map(|to| seen(&mut rig, to, 100)), [100; 2], "{modes:?}");
    }
    // A segment of 8960 bytes is more than two units of 1024, and one of 28 is less than half of
    // 16.
    const JUMBO: &[u8] = &[2, 4, 0x23, 0, 1, 3, 3, 12];
    const TINY: &[u8] = &[2, 4, 0, 28, 1, 3, 3, 6];
    for options in [JUMBO, TINY] {
        assert_eq!(open_with(&mut rescaling([Mode::Echo; 2]), [options; 2], 0, 0), [options; 2]);
    }
}

#[test]
fn a_native_that_is_policed_may_turn_out_to_be_deaf_and_is_told_a_finer_scale() {
    let mut rig = rescaling([Mode::Off; 2]);
    let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
    rig.sides[CLIENT].set(owner, Settings { polices: true, ..Mode::Echo.into() });
    let told = open_with(&mut rig, [COARSE; 2], codes::ASK_CLASSIC, codes::CLASSIC);
    assert_eq!(told, [COARSE.to_vec(), scaled(FINE).to_vec()]);
    assert_eq!((rig.connection(CLIENT).treatment, seen(&mut rig, CLIENT, 100)), (Treatment::Native, 800));
}

#[test]
fn a_guest_without_a_scale_sees_windows_as_they_are() {
    let mut rig = rescaling([Mode::Echo; 2]);
    assert_eq!(open_with(&mut rig, [COARSE, UNSCALED], 0, 0), [scaled(FINE).to_vec(), UNSCALED.to_vec()]);
    assert_eq!([SERVER, CLIENT].map(|to| seen(&mut rig, to, 100)), [100; 2]);
    let mut rig = rescaling([Mode::Echo; 2]);
    assert_eq!(open_with(&mut rig, [UNSCALED, COARSE], 0, 0), [UNSCALED, COARSE]);
    assert_eq!([SERVER, CLIENT].map(|to| seen(&mut rig, to, 100)), [100; 2]);
}

#[test]
fn handshakes_that_come_again_tell_the_same() {
    let mut rig = rescaling([Mode::Echo; 2]);
    open_with(&mut rig, [COARSE; 2], 0, 0);
    let syn = Says { seq: 100, flags: SYN, window: 9000, options: COARSE, ..Says::default() };
    let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, ..syn };
    // Those of old connections are of no other scale: also when no more are told.
    rig.sides.iter_mut().for_each(|side| side.set_rescales(false));
    for codes in [codes::ASK_ACCURATE, 0] {
        assert_eq!(rig.options(SERVER, &Says { codes, ..syn }, false).0, scaled(FINE));
        assert_eq!(rig.options(CLIENT, &answer, false).0, scaled(FINE));
        assert_eq!([SERVER, CLIENT].map(|to| seen(&mut rig, to, 100)), [800; 2]);
    }
    // One without a scale leaves open what the guest had: too small is safe.
    let bare = [Says { options: UNSCALED, ..syn }, Says { options: UNSCALED, ..answer }];
    for (to, says) in [SERVER, CLIENT].into_iter().zip(bare) {
        rig.options(to, &says, false);
        assert_eq!(seen(&mut rig, to, 100), 100);
    }
}

#[test]
fn who_signs_after_all_is_shown_what_its_peer_signed() {
    const SIGNED: &[u8] = &[3, 3, 10, 1, 19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    let syn = Says { seq: 100, flags: SYN, codes: codes::ASK_CLASSIC, options: COARSE, ..Says::default() };
    let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, codes: 0, options: SIGNED, ..syn };
    for repeats in [false, true] {
        let mut rig = rescaling([Mode::Off, Mode::Echo]);
        assert_eq!(rig.options(SERVER, &syn, false).0, scaled(FINE));
        if repeats {
            assert_eq!(rig.options(SERVER, &Says { options: SIGNED, ..syn }, false).0, SIGNED);
        }
        assert_eq!(rig.options(SERVER, &answer, true).0, SIGNED);
        assert_eq!(rig.connection(SERVER).treatment, Treatment::Untouched(Why::Signed));
        assert_eq!(seen(&mut rig, SERVER, 100), 100);
    }
}

#[test]
fn windows_stay_right_whatever_becomes_of_the_connection() {
    let server = |asks: u8, says: u8, treatment: Treatment| {
        let mut rig = rescaling([Mode::Off, Mode::Echo]);
        assert_eq!(open_with(&mut rig, [COARSE; 2], asks, says), [scaled(FINE).to_vec(), COARSE.to_vec()]);
        assert_eq!(rig.connection(SERVER).treatment, treatment);
        rig
    };
    for (asks, says, treatment) in [
        (codes::ASK_CLASSIC, 0, Treatment::Translated),
        (codes::ASK_CLASSIC, codes::CLASSIC, Treatment::Native),
        (codes::ASK_ACCURATE, codes::received(ecn::NOT), Treatment::Native),
        (codes::ASK_ACCURATE, codes::ASK_ACCURATE, Treatment::Untouched(Why::Codes)),
    ] {
        let mut rig = server(asks, says, treatment);
        let is_right = |rig: &mut Rig| assert_eq!(seen(rig, SERVER, 100), 800, "{treatment:?}");
        is_right(&mut rig);
        // With RST and FIN, and behind them.
        for flags in [ACK | tcp_flags::RST, ACK | tcp_flags::FIN] {
            let says = Says { seq: 101, ack: 201, flags, window: 100, ..Says::default() };
            assert_eq!(rig.pass(CLIENT, &says, false).1.window, 800);
        }
        is_right(&mut rig);
        // Another process goes on with it, and another mode.
        let records = rig.sides[SERVER].export(rig.now);
        assert_eq!(records.len(), BYTES, "{treatment:?}");
        for mode in [Mode::Echo, Mode::Count] {
            let mut next = Rig::new([Mode::Off, mode]);
            assert_eq!(next.sides[SERVER].import(next.now, &records, &[]), (1, 0));
            assert_eq!(next.connection(SERVER).treatment, treatment);
            is_right(&mut next);
            assert_eq!(next.sides[SERVER].export(next.now).len(), BYTES, "and the next");
        }
        let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
        rig.sides[SERVER].set(owner, Mode::Count.into());
        is_right(&mut rig);
        // Without its entry they are too small, not too large.
        rig.sides[SERVER].set(owner, Mode::Off.into());
        rig.sides[SERVER].set(owner, Mode::Echo.into());
        assert_eq!(seen(&mut rig, SERVER, 100), 100);
    }
}

#[test]
fn windows_stay_right_where_a_connection_becomes_plain() {
    // Its peer gives no sign of ECN any more.
    let mut rig = rescaling([Mode::Off, Mode::Echo]);
    let syn = Says { seq: 100, flags: SYN, codes: codes::ASK_ACCURATE, ecn: 2, window: 9, ..Says::default() };
    let syn = Says { options: COARSE, ..syn };
    rig.options(SERVER, &syn, false);
    rig.send(SERVER, &Says { seq: 200, ack: 101, codes: 0, ecn: 0, flags: SYN | ACK, ..syn });
    // Until it is noticed that is taken for marks: two segments of 1460.
    let windows = [0; 5].map(|_| seen(&mut rig, SERVER, 100));
    assert_eq!((rig.connection(SERVER).treatment, windows), (Treatment::Plain, [23, 23, 800, 800, 800]));
    // It asks for less the third time.
    let mut rig = rescaling([Mode::Off, Mode::Echo]);
    rig.options(SERVER, &syn, false);
    let bare = Says { codes: 0, ecn: 0, ..syn };
    assert_eq!(rig.options(SERVER, &bare, false).0, scaled(FINE));
    rig.send(SERVER, &Says { seq: 200, ack: 101, flags: SYN | ACK, ..bare });
    assert_eq!((rig.connection(SERVER).treatment, seen(&mut rig, SERVER, 100)), (Treatment::Plain, 800));
}

#[test]
fn a_handshake_that_is_half_done_is_handed_over_where_its_scale_was_told() {
    for (payload, taken) in [(0, 0), (40, 0), (40, 40)] {
        let mut rig = rescaling([Mode::Off, Mode::Dctcp]);
        let syn = Says { seq: 100, flags: SYN, codes: codes::ASK_ACCURATE, options: COARSE, ..Says::default() };
        let syn = Says { payload, ..syn };
        assert_eq!(rig.options(SERVER, &syn, false).0, scaled(FINE));
        // The guest's answer is still to come: nothing is known of its scale.
        assert_eq!(seen(&mut rig, SERVER, 100), 100);
        let records = rig.sides[SERVER].export(rig.now);
        let mut next = Rig::new([Mode::Off, Mode::Dctcp]);
        assert_eq!(next.sides[SERVER].import(next.now, &records, &[]), (1, 0));
        assert_eq!(next.sides[SERVER].connections().count(ENDPOINT, Class::Offered), 1);
        assert_eq!(next.options(SERVER, &syn, false).0, scaled(FINE), "it comes again");
        next.send(SERVER, &Says { seq: 200, ack: 101 + taken, flags: SYN | ACK, payload: 0, codes: 0, ..syn });
        assert_eq!(next.connection(SERVER).treatment, Treatment::Translated);
        let (codes, ecn) = (codes::received(ecn::ECT0), ecn::ECT0);
        let ack = Says { seq: 101 + payload as u32, ack: 201, flags: ACK, codes, ecn, window: 100, ..Says::default() };
        assert_eq!(next.pass(CLIENT, &ack, false).1.window, 800);
    }
    // Where it was not, it is not handed over, as before.
    let mut rig = rescaling([Mode::Off, Mode::Dctcp]);
    let syn = Says { seq: 100, flags: SYN, codes: codes::ASK_ACCURATE, options: SMALL, ..Says::default() };
    rig.options(SERVER, &syn, false);
    assert!(rig.sides[SERVER].export(rig.now).is_empty());
}

#[test]
fn a_switch_that_knows_nothing_of_rescaling_reads_no_record_that_needs_it() {
    let mut rig = rescaling([Mode::Dctcp; 2]);
    open_with(&mut rig, [COARSE, SMALL], 0, 0);
    let records = [CLIENT, SERVER].map(|side| rig.sides[side].export(rig.now));
    // It takes scales of at most 14, and kinds of at most 5.
    let scale = BYTES - 19;
    assert_eq!([records[CLIENT][scale], records[SERVER][scale]], [9, FINE | 3 << 4]);
    assert!(records.iter().all(|record| record[1] <= 5));
}

#[test]
fn both_sides_may_open_at_once_with_a_scale_that_was_told() {
    let mut rig = rescaling([Mode::Off, Mode::Echo]);
    let syn = Says { seq: 100, flags: SYN, codes: codes::ASK_CLASSIC, options: COARSE, ..Says::default() };
    assert_eq!(rig.options(SERVER, &syn, false).0, scaled(FINE));
    let own = Says { seq: 200, codes: 0, ..syn };
    rig.send(SERVER, &own);
    assert_eq!(rig.connection(SERVER).treatment, Treatment::Untouched(Why::Simultaneous));
    // Whichever of these it goes by.
    for says in [syn, Says { ack: 201, flags: SYN | ACK, ..syn }] {
        assert_eq!(rig.options(SERVER, &says, false).0, scaled(FINE));
    }
    assert_eq!(seen(&mut rig, SERVER, 100), 800);
    // Its SYN has none.
    let mut rig = rescaling([Mode::Off, Mode::Echo]);
    rig.options(SERVER, &syn, false);
    rig.send(SERVER, &Says { options: UNSCALED, ..own });
    assert_eq!(seen(&mut rig, SERVER, 100), 100);
}

#[test]
fn where_there_is_no_room_or_an_old_connection_lives_no_scale_is_told() {
    let mut rig = rescaling([Mode::Off, Mode::Echo]);
    open_with(&mut rig, [COARSE; 2], codes::ASK_CLASSIC, 0);
    let other = Says { seq: 5000, flags: SYN, codes: codes::ASK_CLASSIC, options: COARSE, ..Says::default() };
    assert_eq!(rig.options(SERVER, &other, false).0, COARSE);
    // The guest has lost its connection, and takes the new one.
    rig.send(SERVER, &Says { seq: 900, ack: 5001, flags: SYN | ACK, codes: 0, ..other });
    assert!(rig.sides[SERVER].connections().is_empty());
    assert_eq!(seen(&mut rig, SERVER, 100), 100);

    let mut rig = rescaling([Mode::Off, Mode::Echo]);
    rig.sides[SERVER].set_flows(0);
    assert_eq!(rig.options(SERVER, &other, false).0, COARSE);
}

#[test]
fn a_lowered_window_is_told_in_the_finer_unit() {
    let mut rig = rescaling([Mode::Echo; 2]);
    open_with(&mut rig, [COARSE, COARSEST], 0, 0);
    let mut seq = 101u32;
    let mut lowest = u16::MAX;
    for round in 0..20 {
        for n in 0..10 {
            let data = Says { seq, ack: 201, flags: ACK, window: 100, payload: 1400, ..Says::default() };
            rig.pass(CLIENT, &data, round > 2 && n == 3);
            seq += 1400;
        }
        rig.now = rig.now.plus_ns(200_000);
        let ack = Says { seq: 201, ack: seq, flags: ACK, window: 10, ..Says::default() };
        lowest = lowest.min(rig.pass(SERVER, &ack, false).1.window);
    }
    // 10 units of 16 KiB are 1280 of 128 bytes. Two segments of 1460, rounded up.
    assert_eq!(lowest, 23);
    assert!(rig.sides[CLIENT].counters(ENDPOINT).unwrap().lowered > 0);
}

proptest! {
    #[test]
    fn whatever_options_it_has_a_handshake_tells_one_scale_and_nothing_else_is_changed(
        words in prop::collection::vec(prop_oneof![
            any::<[u8; 4]>(), Just([1, 3, 3, 10]), Just([3, 3, 14, 1]), Just([1, 1, 1, 3]), Just([3, 2, 3, 3]),
        ], 0..=10),
    ) {
        let (said, mut tcp) = (words.concat(), [7; TCP_LEN]);
        put16(&mut tcp, 16, 0);
        let sum = checksum::add(checksum::sum(&tcp), checksum::sum(&said));
        put16(&mut tcp, 16, !sum);
        let mut left = said.clone();
        tell_scale(&mut tcp, &mut left, &Offload::default(), FINE);
        prop_assert_eq!(checksum::add(checksum::sum(&tcp), checksum::sum(&left)), 0xffff);
        let (before, after) = (options(&said), options(&left));
        prop_assert_eq!(after, segment::Options { scale: before.scale.map(|_| FINE), ..before });
    }
}
