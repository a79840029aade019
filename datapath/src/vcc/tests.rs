//! Two switches, each with a guest, and a network between them that marks.

use super::connection::{Wire, before};
use super::segment::{codes, ecn};
use super::*;
use crate::checksum;
use crate::frame::PoolLimits;
use crate::wire::build::{Build, eth};
use crate::wire::{Mac, be16, parse, put16};
use core::net::Ipv4Addr;
use proptest::prelude::*;

mod authenticated;
mod between;
mod codepoints;
mod early;
mod extensions;
mod fast_open;
mod floods;
mod kinds;
mod many;
mod natives;
mod networks;
mod options;
mod policed;
mod resets;
mod saved;
mod siblings;
mod syn;

const POOL: PoolLimits = PoolLimits { small: 64, medium: 4, large: 4 };
const ENDPOINT: EndpointId = EndpointId(0);
const CLIENT: usize = 0;
const SERVER: usize = 1;
const ACK: u8 = tcp_flags::ACK;
const SYN: u8 = tcp_flags::SYN;
/// MSS 1460, SACK permitted, timestamps, scale 7: as Linux asks.
const LINUX: &[u8] = &[2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];

/// What a test says of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct Says {
    seq: u32,
    ack: u32,
    flags: u8,
    codes: u8,
    ecn: u8,
    window: u16,
    payload: usize,
    options: &'static [u8],
}

impl Says {
    /// The frame that says so, behind the headers that were begun, and where its headers lie.
    fn behind(&self, build: Build<'_>, ports: [u16; 2]) -> (Vec<u8>, Layout) {
        let mut bytes = build
            .tcp(ports[0], ports[1], self.seq)
            .flags(self.flags | (self.codes & 3) << 6)
            .ack(self.ack, self.window)
            .tcp_options((self.options.len() / 4) as u8)
            .payload(vec![0; self.payload])
            .bytes();
        let layout = parse(&bytes).unwrap();
        let l4 = usize::from(layout.l4_offset);
        bytes[l4 + 12] |= self.codes >> 2;
        bytes[l4 + 20..][..self.options.len()].copy_from_slice(self.options);
        (bytes, layout)
    }
}

struct Rig {
    pool: Pool,
    sides: [Vcc; 2],
    now: Instant,
}

impl Rig {
    fn new(modes: [Mode; 2]) -> Rig {
        let sides = modes.map(|mode| {
            let mut vcc = Vcc::new(7);
            vcc.set(Owner { tenant: TenantId(0), endpoint: ENDPOINT }, mode.into());
            vcc
        });
        Rig { pool: Pool::new(POOL), sides, now: Instant(1_000_000) }
    }

    fn frame(&mut self, from: usize, says: &Says) -> Frame {
        let (mac, ip) = (|n| Mac([2, 0, 0, 0, 0, n]), |n| Ipv4Addr::new(10, 0, 0, n));
        let [me, other] = if from == CLIENT { [1, 2] } else { [2, 1] };
        let ports = if from == CLIENT { [40_000, 80] } else { [80, 40_000] };
        let build = eth(mac(me), mac(other)).ipv4(ip(me), ip(other)).tos(says.ecn);
        let (mut bytes, layout) = says.behind(build, ports);
        let l4 = usize::from(layout.l4_offset);
        put16(&mut bytes, l4 + 16, 0);
        let sum = tcp_sum(&bytes);
        put16(&mut bytes, l4 + 16, !sum);
        let frame = self.pool.alloc_from(&bytes).unwrap();
        self.pool.meta_mut(&frame).layout = layout;
        frame
    }

    fn read(&mut self, frame: Frame) -> Segment {
        let (bytes, meta) = self.pool.parts_mut(&frame);
        assert_eq!(tcp_sum(bytes), 0xffff, "the checksum is whole");
        assert_eq!(parse(bytes).unwrap(), meta.layout, "the layout is that of the frame");
        let segment =
            Segment::of(bytes, &meta.layout, &meta.offload).unwrap().with_options(options_in(bytes, &meta.layout));
        self.pool.free(frame);
        segment
    }

    /// A guest sends: what is on the wire.
    fn send(&mut self, from: usize, says: &Says) -> Segment {
        let frame = self.frame(from, says);
        let (bytes, meta) = (self.pool.bytes(&frame), self.pool.meta(&frame));
        let told = self.sides[from].explain_send(self.now, ENDPOINT, (bytes, &meta.layout, &meta.offload));
        match self.sides[from].send(&mut self.pool, self.now, ENDPOINT, &frame) {
            Err(Stop::Unknown) => self.sides[from].leave_unknown(ENDPOINT),
            sent => assert_eq!(sent, Ok(())),
        }
        let done = self.read(frame);
        assert_told(told, &done);
        done
    }

    /// It arrives as `wire` has it: what the other guest sees.
    fn deliver(&mut self, from: usize, wire: &Segment, options: &'static [u8]) -> Segment {
        let Segment { seq, ack, flags, codes, ecn, window, payload, .. } = *wire;
        let says = Says { seq, ack, flags, codes, ecn, window, payload: payload as usize, options };
        let frame = self.frame(from, &says);
        if let Some(counts) = wire.option {
            let [_, a, b, c] = counts.ce_bytes.unwrap_or_default().to_be_bytes();
            option::insert(&mut self.pool, &frame, Some([172, 8, 0, 0, 1, a, b, c]));
        }
        let (bytes, meta) = (self.pool.bytes(&frame), self.pool.meta(&frame));
        let told = self.sides[1 - from].explain_receive(self.now, ENDPOINT, (bytes, &meta.layout, &meta.offload));
        let side = &mut self.sides[1 - from];
        if !side.receive_usual(&mut self.pool, self.now, ENDPOINT, &frame) {
            side.receive(&mut self.pool, self.now, ENDPOINT, &frame);
        }
        let done = self.read(frame);
        assert_told(told, &done);
        done
    }

    /// Both in one, with the codepoint that the network makes of what is capable.
    fn pass(&mut self, from: usize, says: &Says, marked: bool) -> (Segment, Segment) {
        let wire = self.send(from, says);
        let is_marked = marked && wire.ecn != ecn::NOT;
        let met = Segment { ecn: if is_marked { ecn::CE } else { wire.ecn }, ..wire };
        (wire, self.deliver(from, &met, says.options))
    }

    /// A handshake of guests that know nothing of ECN; what was on the wire.
    fn open(&mut self, numbers: [u32; 2], marked: [bool; 2]) -> [Segment; 2] {
        let syn = Says { seq: numbers[0], flags: SYN, window: 64_240, options: LINUX, ..Says::default() };
        let (syn, _) = self.pass(CLIENT, &syn, marked[0]);
        let ack = numbers[0].wrapping_add(1);
        let answer = Says { seq: numbers[1], ack, flags: SYN | ACK, window: 65_160, options: LINUX, ..Says::default() };
        let (answer, seen) = self.pass(SERVER, &answer, marked[1]);
        assert_eq!((seen.codes, seen.ecn), (0, 0), "a legacy client sees nothing of it");
        [syn, answer]
    }

    fn connection(&self, side: usize) -> Connection {
        let connections = self.sides[side].connections();
        let classes = [Class::Open, Class::Asked, Class::Offered, Class::Lingering];
        let mut all = classes.into_iter().flat_map(|class| connections.of(ENDPOINT, class));
        *all.next().expect("a connection").1
    }
}

/// What a trace says beforehand is what is done.
fn assert_told(told: Option<Told>, done: &Segment) {
    // With the mode `off` nothing is.
    let Some(told) = told else { return };
    let Told { edit, segment, .. } = &told;
    let said = (edit.ecn.unwrap_or(segment.ecn), edit.codes.unwrap_or(segment.codes));
    assert_eq!(said, (done.ecn, done.codes), "{told}");
    assert_eq!(edit.window.unwrap_or(segment.window), done.window, "{told}");
    let shows = edit.option.is_some() || segment.option.is_some() && edit.hides.is_none();
    assert_eq!(shows, done.option.is_some(), "{told}");
    assert!(!told.is_refused && told.cut == 0, "{told}");
}

fn tcp_sum(bytes: &[u8]) -> u16 {
    let layout = parse(bytes).unwrap();
    let (l3, l4, end) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset), layout.end as usize);
    let pseudo = checksum::pseudo(&bytes[l3 + 12..l3 + 20], 6, end - l4);
    assert!(be16(bytes, l3) != 0);
    checksum::add(pseudo, checksum::sum(&bytes[l4..end]))
}

#[test]
fn two_legacy_guests_speak_accecn_on_the_wire_and_know_nothing_of_it() {
    let mut rig = Rig::new([Mode::Dctcp; 2]);
    let [syn, answer] = rig.open([100, 200], [false; 2]);
    assert_eq!((syn.codes, syn.ecn), (codes::ASK_ACCURATE, ecn::ECT0));
    assert_eq!((answer.codes, answer.ecn), (codes::received(ecn::ECT0), ecn::ECT0));
    let first = Says { seq: 101, ack: 201, flags: ACK, window: 502, payload: 1000, ..Says::default() };
    let (wire, seen) = rig.pass(CLIENT, &first, false);
    assert_eq!((wire.codes, wire.ecn), (codes::received(ecn::ECT0), ecn::ECT0));
    assert_eq!((seen.codes, seen.ecn, seen.window), (0, 0, 502));
    let (wire, _) = rig.pass(CLIENT, &Says { seq: 1101, ..first }, true);
    assert_eq!(wire.codes, 5, "the counter of marks begins with five");
    let answer = Says { seq: 201, ack: 2101, flags: ACK, window: 509, ..Says::default() };
    let (wire, seen) = rig.pass(SERVER, &answer, false);
    assert_eq!((wire.codes, wire.ecn), (6, ecn::ECT0), "one mark is told, and the acknowledgement is capable");
    assert_eq!((seen.codes, seen.ecn), (0, 0));
    assert!(rig.connection(CLIENT).is(bit::ENGAGED));
    // 2000 bytes were in flight; two segments are the least, in units of 128 bytes.
    assert_eq!(seen.window, 23);
    for side in [CLIENT, SERVER] {
        assert_eq!(rig.sides[side].counters(ENDPOINT).unwrap().opened, [1, 0, 0]);
    }
}

#[test]
fn marks_on_the_handshake_are_counted_and_told() {
    let mut rig = Rig::new([Mode::Dctcp; 2]);
    let [_, answer] = rig.open([100, 200], [true; 2]);
    assert_eq!(answer.codes, codes::received(ecn::CE));
    let first = Says { seq: 101, ack: 201, flags: ACK, window: 502, ..Says::default() };
    let (wire, _) = rig.pass(CLIENT, &first, false);
    assert_eq!(wire.codes, codes::received(ecn::CE));
    assert_eq!(rig.connection(SERVER).ace_seen, 6);
    let (wire, _) = rig.pass(CLIENT, &Says { payload: 100, ..first }, false);
    assert_eq!(wire.codes, 6);
}

#[test]
fn a_mark_of_the_handshake_lowers_the_window_of_who_sent_it() {
    for marked in [[false; 2], [true, false], [false, true], [true; 2]] {
        let mut rig = Rig::new([Mode::Dctcp; 2]);
        rig.open([100, 200], marked);
        assert_eq!(rig.connection(CLIENT).is(bit::PENDING), marked[0], "{marked:?}: what the SYN met");
        let first = Says { seq: 101, ack: 201, flags: ACK, window: 502, ..Says::default() };
        rig.pass(CLIENT, &first, false);
        rig.pass(CLIENT, &Says { payload: 100, ..first }, false);
        rig.pass(SERVER, &Says { seq: 201, ack: 201, ..first }, false);
        let engaged = [CLIENT, SERVER].map(|side| rig.connection(side).is(bit::ENGAGED));
        assert_eq!(engaged, marked, "each by what its own met");
    }
}

#[test]
fn the_published_mode_asks_for_classic_ecn_and_marks_data_only() {
    let mut rig = Rig::new([Mode::EchoPublished; 2]);
    let [syn, answer] = rig.open([100, 200], [false; 2]);
    assert_eq!((syn.codes, syn.ecn), (codes::ASK_CLASSIC, ecn::NOT));
    assert_eq!((answer.codes, answer.ecn), (codes::CLASSIC, ecn::NOT));
    let data = Says { seq: 101, ack: 201, flags: ACK, window: 502, payload: 1000, ..Says::default() };
    assert_eq!(rig.pass(CLIENT, &data, true).0.ecn, ecn::ECT0);
    assert_eq!(rig.send(CLIENT, &data).ecn, ecn::NOT, "not a retransmission");
    let answer = Says { seq: 201, ack: 1101, flags: ACK, window: 509, ..Says::default() };
    let (wire, seen) = rig.pass(SERVER, &answer, false);
    assert_eq!((wire.codes, wire.ecn, seen.codes), (codes::ECE, ecn::NOT, 0));
    let (wire, _) = rig.pass(CLIENT, &Says { seq: 1101, ..data }, false);
    assert_eq!(wire.codes, codes::CWR);
    let (wire, _) = rig.pass(SERVER, &Says { ack: 2101, ..answer }, false);
    assert_eq!(wire.codes, 0, "until the sender has reduced its window");
}

#[test]
fn a_server_that_knows_only_classic_ecn_gets_it_and_one_without_leaves_it_plain() {
    for (codes, wire) in
        [(codes::CLASSIC, Wire::Classic), (codes::CLASSIC_NONCE, Wire::Classic), (0, Wire::Plain), (0b111, Wire::Plain)]
    {
        let mut rig = Rig::new([Mode::Echo, Mode::Off]);
        let syn = Says { seq: 100, flags: SYN, window: 64_240, options: LINUX, ..Says::default() };
        rig.pass(CLIENT, &syn, false);
        let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, codes, window: 9, options: LINUX, ..Says::default() };
        let (_, seen) = rig.pass(SERVER, &answer, false);
        assert_eq!((seen.codes, rig.connection(CLIENT).wire), (0, wire));
        let data = Says { seq: 101, ack: 201, flags: ACK, window: 502, payload: 9, ..Says::default() };
        assert_eq!(rig.send(CLIENT, &data).ecn == ecn::NOT, wire == Wire::Plain);
    }
}

#[test]
fn a_guest_that_knows_classic_ecn_alone_is_spoken_for_or_speaks_for_itself() {
    let syn = Says { seq: 100, flags: SYN, codes: codes::ASK_ACCURATE, ecn: ecn::ECT0, window: 9, ..Says::default() };
    let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, codes: codes::CLASSIC, ecn: ecn::NOT, ..syn };
    for (passes_classic, mode, said, treatment) in [
        (false, Mode::Echo, codes::received(ecn::ECT0), Treatment::Translated),
        (false, Mode::EchoPublished, codes::received(ecn::ECT0), Treatment::Translated),
        (true, Mode::Dctcp, codes::CLASSIC, Treatment::Native),
        (true, Mode::EchoPublished, codes::CLASSIC, Treatment::Native),
    ] {
        let mut rig = Rig::new([Mode::Off, mode]);
        let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
        rig.sides[SERVER].set(owner, Settings { passes_classic, ..mode.into() });
        rig.pass(CLIENT, &syn, false);
        assert_eq!(rig.send(SERVER, &answer).codes, said, "{mode:?}");
        assert_eq!(rig.connection(SERVER).treatment, treatment);
        // What it says of marks is its own, and reaches the peer, or not.
        let echo = Says { seq: 201, ack: 101, flags: ACK, codes: codes::ECE, window: 9, ..Says::default() };
        let passes = rig.send(SERVER, &echo).codes == codes::ECE;
        assert_eq!(passes, passes_classic, "{mode:?}");
        // And it is shown the marks.
        let data = Says { seq: 101, ack: 201, flags: ACK, codes: 5, ecn: ecn::CE, window: 9, payload: 9, ..echo };
        let seen = rig.pass(CLIENT, &data, false).1;
        assert_eq!((seen.ecn, seen.codes), if passes_classic { (ecn::CE, 5) } else { (0, 0) });
        // Its third answer is its own, and the peer may have had that one alone.
        if !passes_classic {
            let mut rig = Rig::new([Mode::Off, mode]);
            rig.pass(CLIENT, &syn, false);
            assert_eq!([0; 3].map(|_| rig.send(SERVER, &answer).codes), [said, said, codes::CLASSIC]);
            rig.pass(CLIENT, &Says { codes: 0, ecn: ecn::NOT, payload: 0, ..data }, false);
            assert_eq!(rig.connection(SERVER).treatment, Treatment::Plain, "{mode:?}");
            assert_eq!(rig.send(SERVER, &echo).codes, codes::ECE);
        }
        // A peer that asks for no more than it knows is answered by itself in any case.
        let mut rig = Rig::new([Mode::Off, mode]);
        rig.sides[SERVER].set(owner, Settings { passes_classic, ..mode.into() });
        rig.pass(CLIENT, &Says { codes: codes::ASK_CLASSIC, ecn: ecn::NOT, ..syn }, false);
        assert_eq!(rig.send(SERVER, &answer).codes, codes::CLASSIC);
        assert_eq!(rig.connection(SERVER).treatment, Treatment::Native);
    }
}

#[test]
fn natives_pass_bit_for_bit() {
    for asks in [codes::ASK_CLASSIC, codes::ASK_ACCURATE] {
        let mut rig = Rig::new([Mode::Dctcp; 2]);
        let syn = Says { seq: 100, flags: SYN, codes: asks, window: 9, options: LINUX, ..Says::default() };
        let (wire, seen) = rig.pass(CLIENT, &syn, false);
        assert_eq!((wire.codes, wire.ecn, seen.codes), (asks, ecn::NOT, asks));
        let said = if asks == codes::ASK_CLASSIC { codes::CLASSIC } else { codes::received(ecn::NOT) };
        let answer = Says { seq: 200, ack: 101, codes: said, flags: SYN | ACK, options: LINUX, ..Says::default() };
        let (wire, seen) = rig.pass(SERVER, &answer, false);
        assert_eq!((wire.codes, seen.codes), (said, said));
        let data = Says { seq: 101, ack: 201, flags: ACK, window: 7, payload: 9, ecn: 2, codes: 3, ..Says::default() };
        let (wire, seen) = rig.pass(CLIENT, &data, true);
        assert_eq!((wire.ecn, wire.codes, seen.ecn, seen.codes, seen.window), (2, 3, 3, 3, 7));
        let opened = rig.sides[SERVER].counters(ENDPOINT).unwrap().opened;
        assert_eq!(opened, [0, 1, 0]);
    }
}

#[test]
fn count_observes_and_changes_nothing() {
    let mut rig = Rig::new([Mode::Count; 2]);
    let [syn, answer] = rig.open([100, 200], [false; 2]);
    assert_eq!((syn.codes, syn.ecn, answer.codes, answer.ecn), (0, 0, 0, 0));
    let data = Says { seq: 101, ack: 201, flags: ACK, window: 502, payload: 9, ..Says::default() };
    let (wire, _) = rig.pass(CLIENT, &data, true);
    assert_eq!((wire.ecn, wire.codes), (0, 0));
    let opened = rig.sides[CLIENT].counters(ENDPOINT).unwrap().opened;
    assert_eq!(opened, [0, 0, 1], "a plain connection");
}

#[test]
fn a_third_syn_asks_for_nothing() {
    let mut rig = Rig::new([Mode::Echo; 2]);
    let syn = Says { seq: 100, flags: SYN, window: 9, options: LINUX, ..Says::default() };
    let asked: Vec<u8> = (0..4).map(|_| rig.send(CLIENT, &syn).codes).collect();
    assert_eq!(asked, [codes::ASK_ACCURATE, codes::ASK_ACCURATE, 0, 0]);
}

#[test]
fn a_connection_opens_through_a_box_that_drops_what_asks_for_ecn_and_that_is_counted() {
    // How many tries are lost, and what the server's SYN-ACK says.
    for (lost, answers, treatment, counted) in [
        (2, codes::NONE, Treatment::Plain, 1),
        (0, codes::NONE, Treatment::Plain, 0),
        // The answer to an early try was late.
        (2, codes::received(ecn::ECT0), Treatment::Translated, 0),
    ] {
        let mut rig = Rig::new([Mode::Echo, Mode::Off]);
        let syn = Says { seq: 100, flags: SYN, window: 9, options: LINUX, ..Says::default() };
        for _ in 0..lost {
            assert_eq!(rig.send(CLIENT, &syn).codes, codes::ASK_ACCURATE);
        }
        let (wire, _) = rig.pass(CLIENT, &syn, false);
        assert_eq!(wire.codes == codes::NONE, lost == 2);
        let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, codes: answers, ..syn };
        for _ in 0..2 {
            rig.pass(SERVER, &answer, false);
        }
        assert_eq!(rig.connection(CLIENT).treatment, treatment);
        assert_eq!(rig.sides[CLIENT].counters(ENDPOINT).unwrap().unanswered_asks, counted, "{lost}, {answers}");
        let data = Says { seq: 101, ack: 201, flags: ACK, window: 502, payload: 9, ..Says::default() };
        assert_eq!(rig.pass(CLIENT, &data, false).1.payload, 9);
    }
}

#[test]
fn a_third_syn_ack_agrees_to_nothing_but_the_client_may_have_had_the_first() {
    for (has_first, treatment) in [(true, Treatment::Translated), (false, Treatment::Plain)] {
        let mut rig = Rig::new([Mode::Dctcp; 2]);
        let syn = Says { seq: 99, flags: SYN, window: 64_240, options: LINUX, ..Says::default() };
        rig.pass(CLIENT, &syn, false);
        let answer = Says { seq: 499, ack: 100, flags: SYN | ACK, window: 65_160, options: LINUX, ..Says::default() };
        let wires = [0; 3].map(|_| rig.send(SERVER, &answer));
        assert_eq!(wires.map(|wire| wire.codes), [codes::received(ecn::ECT0), codes::received(ecn::ECT0), 0]);
        let arrives = if has_first { wires[0] } else { wires[2] };
        rig.deliver(SERVER, &Segment { option: None, ..arrives }, LINUX);
        let ack = Says { seq: 100, ack: 500, flags: ACK, window: 502, ..Says::default() };
        let (wire, _) = rig.pass(CLIENT, &ack, false);
        assert_eq!(wire.codes, if has_first { codes::received(ecn::ECT0) } else { 0 });
        assert_eq!(rig.connection(SERVER).treatment, treatment);
        let data = Says { seq: 500, ack: 100, flags: ACK, window: 502, payload: 1000, ..Says::default() };
        assert_eq!(rig.send(SERVER, &data).ecn, if has_first { ecn::ECT0 } else { ecn::NOT });
    }
}

#[test]
fn what_must_not_be_touched_is_not() {
    const SIGNED: &[u8] = &[19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    const MULTIPATH: &[u8] = &[30, 12, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4, 5, 0xb4];
    for (options, why) in [(SIGNED, Why::Signed), (MULTIPATH, Why::Multipath)] {
        let mut rig = Rig::new([Mode::Echo; 2]);
        let syn = Says { seq: 100, flags: SYN, options, ..Says::default() };
        let (wire, seen) = rig.pass(CLIENT, &syn, false);
        assert_eq!((wire.codes, wire.ecn, seen.codes), (0, 0, 0));
        for side in [CLIENT, SERVER] {
            assert_eq!(rig.sides[side].counters(ENDPOINT).unwrap().untouched[why as usize], 1);
        }
    }
    // Older than the switch.
    let mut rig = Rig::new([Mode::Echo; 2]);
    let data = Says { seq: 101, ack: 201, flags: ACK, window: 502, payload: 9, ..Says::default() };
    assert_eq!(rig.send(CLIENT, &data).ecn, ecn::NOT);
    assert_eq!(rig.sides[CLIENT].counters(ENDPOINT).unwrap().untouched[Why::Unknown as usize], 1);
}

/// An open connection that the server's switch has forgotten; its client's data, and the answer.
fn forgotten() -> (Rig, Says, Says) {
    let mut rig = Rig::new([Mode::Dctcp; 2]);
    rig.open([100, 200], [false; 2]);
    let data = Says { seq: 101, ack: 201, flags: ACK, window: 502, payload: 100, ..Says::default() };
    rig.pass(CLIENT, &data, false);
    let answer = Says { seq: 201, ack: 201, flags: ACK, window: 502, ..Says::default() };
    rig.pass(SERVER, &answer, false);
    rig.sides[SERVER] = Rig::new([Mode::Dctcp; 2]).sides.into_iter().next().unwrap();
    (rig, data, answer)
}

#[test]
fn a_peer_whose_switch_forgot_the_connection_is_sent_nothing_that_is_capable() {
    let (mut rig, data, answer) = forgotten();
    for _ in 0..3 {
        assert_eq!(rig.send(CLIENT, &data).ecn, ecn::ECT0);
        rig.pass(SERVER, &answer, false);
    }
    assert_eq!(rig.send(CLIENT, &data).ecn, ecn::NOT);
}

#[test]
fn a_port_that_is_used_again_begins_anew() {
    let mut rig = Rig::new([Mode::Echo; 2]);
    rig.open([100, 200], [false; 2]);
    let fin = Says { seq: 101, ack: 201, flags: ACK | tcp_flags::FIN, window: 9, ..Says::default() };
    rig.pass(CLIENT, &fin, false);
    rig.pass(SERVER, &Says { seq: 201, ack: 102, ..fin }, false);
    rig.open([7000, 9000], [false; 2]);
    assert_eq!(rig.connection(CLIENT).una, 7001);
    assert_eq!(rig.connection(SERVER).first, [9000, 7000]);
}

#[test]
fn a_port_that_is_used_again_after_a_reset_begins_anew_also_at_the_server() {
    let reset = Says { flags: tcp_flags::RST | ACK, ..Says::default() };
    for (from, seq, ack) in [(CLIENT, 101, 201), (SERVER, 201, 101)] {
        let mut rig = Rig::new([Mode::Echo; 2]);
        rig.open([100, 200], [false; 2]);
        rig.pass(CLIENT, &Says { seq: 101, ack: 201, flags: ACK, window: 9, ..Says::default() }, false);
        rig.pass(from, &Says { seq, ack, ..reset }, false);
        rig.open([7000, 9000], [false; 2]);
        rig.pass(CLIENT, &Says { seq: 7001, ack: 9001, flags: ACK, window: 9, ..Says::default() }, false);
        assert_eq!(rig.connection(SERVER).first, [9000, 7000]);
        assert_eq!(rig.sides.each_ref().map(|side| side.counters(ENDPOINT).unwrap().opened[0]), [2; 2]);
        assert_eq!(rig.sides[SERVER].counters(ENDPOINT).unwrap().untouched[Why::Unknown as usize], 0);
    }
    // A stranger's reset, FIN and SYN do not end what lives.
    let mut rig = Rig::new([Mode::Echo; 2]);
    rig.open([100, 200], [false; 2]);
    rig.pass(CLIENT, &Says { seq: 101, ack: 201, flags: ACK, window: 9, ..Says::default() }, false);
    for (flags, ack) in [
        (reset.flags, 500_000),
        (tcp_flags::RST, 0),
        (tcp_flags::FIN | ACK, 500_000),
        (tcp_flags::FIN | ACK, 0),
        (tcp_flags::FIN, 201),
    ] {
        let wire = Segment { seq: 5, ack, flags, segments: 1, ..Segment::default() };
        rig.deliver(CLIENT, &wire, &[]);
        rig.deliver(CLIENT, &Segment { seq: 7000, flags: SYN, segments: 1, ..Segment::default() }, LINUX);
        assert_eq!(rig.connection(SERVER).first, [200, 100], "{flags}, {ack}");
    }
    // Nor one that comes before the guest has answered.
    let mut rig = Rig::new([Mode::Echo; 2]);
    let syn = Says { seq: 100, flags: SYN, window: 9, options: LINUX, ..Says::default() };
    rig.pass(CLIENT, &syn, false);
    let fin = tcp_flags::FIN | ACK;
    rig.deliver(CLIENT, &Segment { seq: 5, ack: 7, flags: fin, segments: 1, ..Segment::default() }, &[]);
    rig.pass(SERVER, &Says { seq: 200, ack: 101, flags: SYN | ACK, ..syn }, false);
    rig.deliver(CLIENT, &Segment { seq: 7000, flags: SYN, segments: 1, ..Segment::default() }, LINUX);
    assert_eq!(rig.connection(SERVER).first, [200, 100]);
}

/// A step of a generated connection.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A side sends so many segments of new data; one bit each says whether the network marks it,
    /// one whether it loses it.
    Data { from: usize, segments: u8, marks: u8, losses: u8 },
    /// A side sends its oldest data again.
    Again { from: usize, marked: bool },
    /// A side acknowledges all that came in order, with a window field.
    Ack { from: usize, window: u16, marked: bool, lost: bool },
    /// A stranger says anything to a side.
    Forged { to: usize, seq: u32, ack: u32, flags: u8, codes: u8, ecn: u8, window: u16 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let data = (0usize..2, 1u8..8, any::<u8>(), any::<u8>()).prop_map(|(from, segments, marks, losses)| Step::Data {
        from,
        segments,
        marks,
        losses: losses & marks,
    });
    let again = (0usize..2, any::<bool>()).prop_map(|(from, marked)| Step::Again { from, marked });
    let ack = (0usize..2, prop_oneof![Just(0u16), Just(502), any::<u16>()], any::<bool>(), any::<bool>())
        .prop_map(|(from, window, marked, lost)| Step::Ack { from, window, marked, lost });
    let forged = (0usize..2, any::<u32>(), any::<u32>(), any::<u8>(), 0u8..8, 0u8..4, any::<u16>())
        .prop_map(|(to, seq, ack, flags, codes, ecn, window)| Step::Forged { to, seq, ack, flags, codes, ecn, window });
    prop::collection::vec(prop_oneof![6 => data, 1 => again, 6 => ack, 1 => forged], 1..80)
}

/// What a guest knows, kept without bound and without tricks.
#[derive(Clone, Copy, Default)]
struct Guest {
    una: u32,
    nxt: u32,
    received: u32,
    /// The furthest that it was told it may send.
    told: u32,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_guests_see_no_ecn_no_larger_window_and_every_mark_is_told(
        numbers: [u32; 2], mode in 0usize..2, steps in steps(),
    ) {
        let mode = [Mode::Echo, Mode::Dctcp][mode];
        let mut rig = Rig::new([mode; 2]);
        rig.open(numbers, [false; 2]);
        let mut guests = [0, 1].map(|side: usize| {
            let (una, received) = (numbers[side].wrapping_add(1), numbers[1 - side].wrapping_add(1));
            Guest { una, nxt: una, received, told: una }
        });
        let mut marks = [0u32; 2];
        for step in steps {
            rig.now = rig.now.plus_ns(50_000);
            match step {
                Step::Data { from, segments, marks: marked, losses } => {
                    for bit in 0..segments {
                        let guest = &mut guests[from];
                        let says = Says { seq: guest.nxt, ack: guest.received, flags: ACK, window: 502, payload: 1000, ..Says::default() };
                        guest.nxt = guest.nxt.wrapping_add(1000);
                        let wire = rig.send(from, &says);
                        prop_assert!(wire.ecn == ecn::ECT0 || !is_capable(&rig.connection(from)));
                        if losses >> bit & 1 == 1 { continue; }
                        pass_on(&mut rig, &mut guests, &mut marks, from, wire, marked >> bit & 1 == 1)?;
                    }
                }
                Step::Again { from, marked } => {
                    let guest = guests[from];
                    if guest.una == guest.nxt { continue; }
                    let says = Says { seq: guest.una, ack: guest.received, flags: ACK, window: 502, payload: 1000, ..Says::default() };
                    let wire = rig.send(from, &says);
                    prop_assert!(wire.ecn == ecn::ECT0 || !is_capable(&rig.connection(from)));
                    pass_on(&mut rig, &mut guests, &mut marks, from, wire, marked)?;
                }
                Step::Ack { from, window, marked, lost } => {
                    let says = Says { seq: guests[from].nxt, ack: guests[from].received, flags: ACK, window, ..Says::default() };
                    let wire = rig.send(from, &says);
                    if !lost { pass_on(&mut rig, &mut guests, &mut marks, from, wire, marked)?; }
                }
                Step::Forged { to, seq, ack, flags, codes, ecn, window } => {
                    let flags = flags & !SYN;
                    let wire = Segment { seq, ack, flags, codes, ecn, window, ..Segment::default() };
                    let seen = rig.deliver(1 - to, &wire, &[]);
                    prop_assert!(seen.window <= window);
                    let connection = rig.connection(to);
                    if connection.is_translated() {
                        prop_assert_eq!((seen.ecn, seen.codes), (0, 0));
                    }
                    if ecn == ecn::CE && connection.is_translated() { marks[to] += 1; }
                    // What it acknowledged within the window is acknowledged, for the switch as for
                    // the guest.
                    let guest = &mut guests[to];
                    if flags & ACK != 0 && flags & tcp_flags::RST == 0 && !before(ack, guest.una) && !before(guest.nxt, ack) {
                        guest.una = ack;
                    }
                }
            }
        }
        // In the end every mark has been told: enough acknowledgements, and the counters agree.
        for from in [CLIENT, SERVER] {
            if !rig.connection(from).is_translated() || !rig.connection(1 - from).is_translated() { continue; }
            for _ in 0..200 {
                let says = Says { seq: guests[from].nxt, ack: guests[from].received, flags: ACK, window: 502, ..Says::default() };
                let wire = rig.send(from, &says);
                pass_on(&mut rig, &mut guests, &mut marks, from, wire, false)?;
            }
            let connection = rig.connection(from);
            prop_assert_eq!((connection.ce_untold, connection.ace_told), (0, (5 + marks[from]) as u8));
        }
    }
}

/// Whether what a guest sends goes as ECN-capable. It does not where the peer's first feedback said
/// that the SYN-ACK came as not capable (RFC 9768, section 3.2.2). A counter of five marks reads
/// the same: here the acknowledgement that ends the handshake may be lost, and marks come before
/// the next.
fn is_capable(connection: &Connection) -> bool {
    connection.is_translated() && !connection.is(bit::BLEACHED)
}

/// The network hands a frame on, marked or not, and the other guest reads it.
fn pass_on(
    rig: &mut Rig,
    guests: &mut [Guest; 2],
    marks: &mut [u32; 2],
    from: usize,
    mut wire: Segment,
    marked: bool,
) -> Result<(), TestCaseError> {
    let to = 1 - from;
    if marked && wire.ecn != ecn::NOT {
        wire.ecn = ecn::CE;
        marks[to] += 1;
    }
    let was = rig.connection(to);
    let seen = rig.deliver(from, &wire, &[]);
    prop_assert!(!was.is_translated() || (seen.ecn, seen.codes) == (0, 0));
    prop_assert!(seen.window <= wire.window);
    prop_assert_eq!((seen.window == 0, seen.ack, seen.seq), (wire.window == 0, wire.ack, wire.seq));
    let guest = &mut guests[to];
    let advances = before(guest.una, seen.ack);
    let fits = !before(seen.ack, guest.una) && !before(guest.nxt, seen.ack);
    if fits {
        guest.una = seen.ack;
        let told = seen.ack.wrapping_add(u32::from(seen.window) << 7);
        let receiver = seen.ack.wrapping_add(u32::from(wire.window) << 7);
        // What the switch takes away is only what the guest has not sent, nor been told to be its
        // own.
        if seen.window != wire.window && was.is(bit::ENGAGED) {
            prop_assert!(!advances || !before(told, guest.nxt), "before what was sent");
            prop_assert!(!before(told, connection::earlier(guest.told, receiver)), "the edge moved left");
        }
        if rig.connection(to).is(bit::ENGAGED) {
            guest.told = if was.is(bit::ENGAGED) { connection::later(guest.told, told) } else { told };
        } else {
            guest.told = guest.una;
        }
    }
    if seen.seq == guest.received {
        guest.received = guest.received.wrapping_add(seen.payload);
    }
    Ok(())
}

#[test]
fn a_million_connections_take_at_most_200_bytes_each() {
    let most = 1_000_000;
    let bytes = Connections::bytes_of(most);
    assert!(bytes <= 200 * u64::from(most), "{bytes}");
}
