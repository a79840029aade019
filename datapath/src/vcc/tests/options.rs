//! AccECN's option: what it tells, where it is put in, and that guests see none.

use super::super::connection::Count;
use super::super::option::{LEN, flag};
use super::*;
use crate::offload::{Gso, Offload};
use crate::wire::{L3, ethertype};

/// Payload of a segment.
const MSS: u32 = 1448;
/// What is on the wire of each segment of a connection with timestamps.
const STAMPS: &[u8] = &[1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];

/// A rig whose connection is open; the client has acknowledged.
fn opened() -> Rig {
    let mut rig = Rig::new([Mode::Dctcp; 2]);
    let [_, answer] = rig.open([99, 499], [false; 2]);
    let told = answer.option.expect("the path is tried by the SYN-ACK");
    assert_eq!((told.ce_bytes, told.is_zeroed), (Some(0), false));
    let first = says(100, 500, 0);
    let (wire, seen) = rig.pass(CLIENT, &first, false);
    assert!(wire.option.is_some(), "and by the first acknowledgement");
    assert_eq!(seen.option, None, "which the guest does not see");
    rig
}

fn says(seq: u32, ack: u32, payload: usize) -> Says {
    Says { seq, ack, flags: ACK, window: 65_000, payload, options: STAMPS, ..Says::default() }
}

fn hide(bytes: &mut [u8], layout: &Layout, offload: &Offload, counts: &option::Counts) {
    let tcp = &mut bytes[layout.l4_offset.into()..layout.payload_offset.into()];
    let (tcp, options) = tcp.split_first_chunk_mut().unwrap();
    option::hide(tcp, options, offload, counts);
}

/// A super-frame of so many segments that has been marked reaches the server, which acknowledges it
/// as one: what is on the wire of that.
fn train(rig: &mut Rig, seq: u32, segments: u32, is_marked: bool) -> Segment {
    let data = Says { payload: (segments * MSS) as usize, ..says(seq, 500, 0) };
    let wire = rig.send_train(CLIENT, &data);
    assert_eq!((wire.segments, wire.ecn, wire.option), (segments, ecn::ECT0, None));
    let ecn = if is_marked { ecn::CE } else { wire.ecn };
    rig.deliver_train(CLIENT, &Says { ecn, codes: wire.codes, ..data });
    rig.send(SERVER, &says(500, seq + segments * MSS, 0))
}

impl Rig {
    fn offloaded(&mut self, from: usize, says: &Says) -> Frame {
        let frame = self.frame(from, says);
        self.pool.meta_mut(&frame).offload =
            Offload { gso: Gso::Tcp4, gso_size: MSS as u16, needs_csum: false, ..Offload::default() };
        frame
    }

    fn send_train(&mut self, from: usize, says: &Says) -> Segment {
        let frame = self.offloaded(from, says);
        self.sides[from].send(&mut self.pool, self.now, ENDPOINT, &frame).unwrap();
        self.read(frame)
    }

    fn deliver_train(&mut self, from: usize, says: &Says) {
        let frame = self.offloaded(from, says);
        let side = &mut self.sides[1 - from];
        if !side.receive_usual(&mut self.pool, self.now, ENDPOINT, &frame) {
            side.receive(&mut self.pool, self.now, ENDPOINT, &frame);
        }
        self.read(frame);
    }
}

#[test]
fn what_one_acknowledgement_tells_of_many_segments_is_exact() {
    for marked in [true, false] {
        let mut rig = opened();
        let mut seq = 100;
        for round in 1..=50 {
            let wire = train(&mut rig, seq, 45, marked);
            seq += 45 * MSS;
            let told = wire.option.expect("the counter alone would not tell").ce_bytes;
            assert_eq!(told, Some(if marked { round * 45 * MSS } else { 0 }));
            assert_eq!(u32::from(wire.codes), (5 + if marked { 45 * round } else { 0 }) & 7, "all at once");
            let before = rig.sides[CLIENT].counters(ENDPOINT).unwrap().marked_bytes;
            let seen = rig.deliver(SERVER, &wire, STAMPS);
            assert_eq!((seen.option, seen.codes), (None, 0));
            let news = rig.sides[CLIENT].counters(ENDPOINT).unwrap().marked_bytes - before;
            assert_eq!(news, if marked { u64::from(45 * MSS) } else { 0 });
        }
    }
}

#[test]
fn marks_are_no_longer_told_when_there_are_none() {
    let mut rig = opened();
    let mut seq = 100;
    for round in 0..20 {
        let wire = train(&mut rig, seq, 45, round < 10);
        seq += 45 * MSS;
        rig.deliver(SERVER, &wire, STAMPS);
        rig.now = rig.now.plus_ns(200_000);
        let c = rig.connection(CLIENT);
        if round == 10 {
            // Seven rounds of more than six segments each would be told much later.
            assert_eq!(rig.connection(SERVER).ce_untold, 0);
            assert!(c.marked == 0, "{c:?}");
        }
    }
    assert_eq!(rig.sides[CLIENT].counters(ENDPOINT).unwrap().marked_bytes, u64::from(10 * 45 * MSS));
}

#[test]
fn few_segments_are_told_of_by_the_counter_alone() {
    let mut rig = opened();
    let mut seq = 100;
    let mut options = 0;
    for _ in 0..2000 {
        for _ in 0..2 {
            rig.pass(CLIENT, &says(seq, 500, MSS as usize), false);
            seq += MSS;
        }
        let (wire, _) = rig.pass(SERVER, &says(500, seq, 0), false);
        options += u32::from(wire.option.is_some());
    }
    // Each 2 MiB, which is more often than each 2^22 bytes.
    assert_eq!(options, (4000 * MSS) >> 21);
    rig.pass(CLIENT, &says(seq, 500, MSS as usize), true);
    let (wire, _) = rig.pass(SERVER, &says(500, seq + MSS, 0), false);
    assert_eq!(wire.option.unwrap().ce_bytes, Some(MSS), "a mark is told at once");
    let again = [0; 4].map(|_| rig.pass(SERVER, &says(500, seq + MSS, 0), false).0.option.is_some());
    assert_eq!(again, [true, true, true, false], "and three times more");
}

#[test]
fn what_an_option_tells_again_is_no_news() {
    let mut rig = opened();
    rig.send(CLIENT, &says(100, 500, 9 * MSS as usize));
    // The counter tells of one mark in a segment with data, where no option has room; an option
    // then tells of all three; one of before comes late.
    let wire = Segment { seq: 500, flags: ACK, window: 65_000, codes: 6, ecn: ecn::ECT0, ..Segment::default() };
    let told = |bytes| Some(option::Counts { ce_bytes: Some(bytes), ..Default::default() });
    let marked = |rig: &mut Rig, wire: Segment| {
        let before = rig.sides[CLIENT].counters(ENDPOINT).unwrap().marked_bytes;
        rig.deliver(SERVER, &wire, STAMPS);
        (rig.sides[CLIENT].counters(ENDPOINT).unwrap().marked_bytes - before) as u32
    };
    assert_eq!(marked(&mut rig, Segment { ack: 100 + MSS, ..wire }), MSS);
    assert_eq!(marked(&mut rig, Segment { ack: 100 + 4 * MSS, codes: 0, option: told(3 * MSS), ..wire }), 2 * MSS);
    assert_eq!(marked(&mut rig, Segment { ack: 100 + 5 * MSS, codes: 0, option: told(2 * MSS), ..wire }), 0);
    assert_eq!(marked(&mut rig, Segment { ack: 100 + 6 * MSS, codes: 0, option: told(3 * MSS), ..wire }), 0);
    assert_eq!(rig.connection(CLIENT).ce_bytes_seen, Count::of(3 * MSS));
    // More than what is acknowledged is told with what is later.
    assert_eq!(marked(&mut rig, Segment { ack: 100 + 6 * MSS, codes: 2, option: told(5 * MSS), ..wire }), 0);
    assert!(rig.connection(CLIENT).is(bit::PENDING), "but at once that there is some");
    assert_eq!(marked(&mut rig, Segment { ack: 101 + 6 * MSS, codes: 2, option: told(5 * MSS), ..wire }), 1);
    assert_eq!(marked(&mut rig, Segment { ack: 100 + 8 * MSS, codes: 2, option: told(5 * MSS), ..wire }), 2 * MSS - 1);
    // A mark on an acknowledgement of the guest's is none of its bytes.
    assert_eq!(marked(&mut rig, Segment { ack: 100 + 9 * MSS, codes: 3, option: told(5 * MSS), ..wire }), MSS);
}

#[test]
fn counters_wrap() {
    let mut rig = opened();
    let mut seq = 100u32;
    for _ in 0..400 {
        let wire = train(&mut rig, seq, 45, true);
        seq = seq.wrapping_add(45 * MSS);
        rig.deliver(SERVER, &wire, STAMPS);
    }
    assert_eq!(rig.sides[CLIENT].counters(ENDPOINT).unwrap().marked_bytes, 400 * u64::from(45 * MSS));
    const { assert!(400 * 45 * MSS > 1 << 24) }
}

#[test]
fn where_there_is_no_room_there_is_none() {
    // Three blocks of SACK and timestamps fill the header.
    const FULL: &[u8] = &{
        let mut all = [1; 40];
        (all[2], all[3], all[12], all[13]) = (8, 10, 5, 26);
        all
    };
    let mut rig = opened();
    train(&mut rig, 100, 20, false);
    rig.deliver_train(
        CLIENT,
        &Says { ecn: ecn::CE, codes: 5, payload: 20 * MSS as usize, ..says(100 + 20 * MSS, 500, 0) },
    );
    let full = Says { options: FULL, ..says(500, 100, 0) };
    let wire = rig.send(SERVER, &full);
    assert_eq!((wire.option, wire.codes), (None, (5 + 6) & 7), "six at a time");
    // What may be as long as the path's MTU is made no longer.
    let wire = rig.send(SERVER, &says(500, 100, 257));
    assert_eq!((wire.option, wire.codes), (None, (5 + 12) & 7));
    let wire = rig.send(SERVER, &says(757, 100, 256));
    assert_eq!((wire.option.unwrap().ce_bytes, wire.codes), (Some(20 * MSS), (5 + 20) & 7));
}

#[test]
fn a_peer_whose_data_have_both_codepoints_gets_none() {
    for (codepoints, kind) in [([ecn::ECT1; 2], Some(174)), ([ecn::ECT0; 2], Some(172)), ([ecn::ECT0, ecn::ECT1], None)]
    {
        let mut rig = opened();
        for (n, ecn) in codepoints.into_iter().enumerate() {
            let at = 100 + n as u32 * 20 * MSS;
            rig.deliver_train(CLIENT, &Says { ecn, codes: 5, payload: 20 * MSS as usize, ..says(at, 500, 0) });
        }
        let frame = rig.frame(SERVER, &says(500, 100 + 40 * MSS, 0));
        rig.sides[SERVER].send(&mut rig.pool, rig.now, ENDPOINT, &frame).unwrap();
        let bytes = rig.pool.bytes(&frame);
        let at = bytes.len() - LEN;
        let [_, a, b, c] = (1 + 40 * MSS).to_be_bytes();
        let expected = [kind.unwrap_or_default(), LEN as u8, a, b, c, 0, 0, 0];
        assert_eq!(bytes[at..] == expected, kind.is_some(), "{codepoints:?}: {:?}", &bytes[at..]);
        rig.read(frame);
    }
}

#[test]
fn a_syn_ack_that_is_sent_again_has_none_and_nothing_after_it() {
    let mut rig = Rig::new([Mode::Dctcp; 2]);
    let syn = Says { seq: 99, flags: SYN, window: 64_240, options: LINUX, ..Says::default() };
    rig.pass(CLIENT, &syn, false);
    let answer = Says { seq: 499, ack: 100, flags: SYN | ACK, window: 65_160, options: LINUX, ..Says::default() };
    assert!(rig.send(SERVER, &answer).option.is_some());
    let (wire, _) = rig.pass(SERVER, &answer, false);
    assert_eq!((wire.option, wire.codes), (None, codes::received(ecn::ECT0)));
    assert_eq!(train(&mut rig, 100, 45, true).option, None);
}

#[test]
fn where_what_has_one_is_lost_each_time_no_more_are_sent() {
    let mut rig = opened();
    let mut seq = 100;
    let mut sent = Vec::new();
    for _ in 0..6 {
        // Acknowledged with an option, which is lost; so it comes once more, and the guest says so.
        let wire = train(&mut rig, seq, 45, false);
        rig.deliver_train(CLIENT, &Says { ecn: ecn::ECT0, codes: 5, payload: 45 * MSS as usize, ..says(seq, 500, 0) });
        let ([a, b, c, d], end) = (seq.to_be_bytes(), (seq + MSS).to_be_bytes());
        let twice = [STAMPS, &[1, 1, 5, 10, a, b, c, d], &end].concat();
        seq += 45 * MSS;
        let again = rig.send(SERVER, &Says { options: twice.leak(), ..says(500, seq, 0) });
        assert!(again.came_twice && again.option.is_none(), "it arrives in any case");
        sent.push(wire.option.is_some());
    }
    assert_eq!(sent, [true, true, true, false, false, false]);
    assert!(rig.connection(SERVER).option & flag::OFF != 0);
}

#[test]
fn a_peer_whose_counters_were_cleared_is_not_believed() {
    let mut rig = Rig::new([Mode::Dctcp; 2]);
    let syn = Says { seq: 99, flags: SYN, window: 64_240, options: LINUX, ..Says::default() };
    rig.send(CLIENT, &syn);
    const CLEARED: &[u8] = &[2, 4, 5, 0xb4, 1, 3, 3, 7, 172, 8, 0, 0, 0, 0, 0, 0];
    let code = codes::received(ecn::ECT0);
    let answer = Segment { seq: 499, ack: 100, flags: SYN | ACK, codes: code, window: 9, ..Segment::default() };
    let seen = rig.deliver(SERVER, &answer, CLEARED);
    assert_eq!(seen.option, None);
    assert!(rig.connection(CLIENT).option & flag::IGNORED != 0);
}

#[test]
fn it_is_put_in_and_hidden_in_any_frame() {
    for (is_ipv6, needs_csum, padding) in (0..8).map(|n| (n & 1 > 0, n & 2 > 0, if n & 4 > 0 { 6 } else { 0 })) {
        let build = eth(Mac([2; 6]), Mac([4; 6])).vlan(7);
        let (one, two) = (core::net::Ipv6Addr::LOCALHOST, core::net::Ipv6Addr::UNSPECIFIED);
        let build = if is_ipv6 { build.ipv6(one, two) } else { build.ipv4(Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED) };
        let mut bytes = build.tcp(7, 80, 9).ack(5, 6).bytes();
        bytes.resize(bytes.len() + padding, 0xee);
        let (mut layout, before) = (parse(&bytes).unwrap(), bytes.clone());
        assert_eq!(layout.l3, if is_ipv6 { L3::Ipv6 } else { L3::Ipv4 });
        assert_eq!(be16(&bytes, 12), ethertype::VLAN);
        let offload = Offload { needs_csum, ..Offload::default() };
        let (l4, addresses) = (usize::from(layout.l4_offset), if is_ipv6 { 26..58 } else { 30..38 });
        let sum = |bytes: &[u8], layout: &Layout| {
            let end = layout.end as usize;
            let pseudo = checksum::pseudo(&bytes[addresses.clone()], 6, end - l4);
            if needs_csum { pseudo } else { checksum::add(pseudo, checksum::sum(&bytes[l4..end])) }
        };
        let seal = |bytes: &mut Vec<u8>, layout: &Layout| {
            put16(bytes, l4 + 16, 0);
            let sum = sum(bytes, layout);
            put16(bytes, l4 + 16, if needs_csum { sum } else { !sum });
        };
        seal(&mut bytes, &layout);
        bytes.splice(..0, [0; LEN]);
        option::write(&mut bytes, &mut layout, &offload, [172, 8, 0, 0, 1, 0, 0, 9]);
        assert_eq!(parse(&bytes).unwrap(), layout);
        assert_eq!(bytes.len(), before.len() + LEN);
        assert_eq!(bytes[bytes.len() - padding..], before[before.len() - padding..]);
        let mut whole = bytes.clone();
        seal(&mut whole, &layout);
        assert_eq!(bytes, whole, "checksums, IPv4's too, as parse has them");
        let counts = option::of(options_in(&bytes, &layout)).unwrap();
        assert_eq!((counts.ce_bytes, counts.len), (Some(9), 8));
        hide(&mut bytes, &layout, &offload, &counts);
        let mut whole = bytes.clone();
        seal(&mut whole, &layout);
        assert_eq!(bytes, whole);
        assert_eq!(option::of(options_in(&bytes, &layout)), None);
    }
}

proptest! {
    #[test]
    fn any_options_are_read_and_hidden_without_harm(
        mut options in prop::collection::vec(any::<u8>(), 0..=40), at in 0usize..40, len in 0u8..16, order: bool,
    ) {
        options.resize(options.len() / 4 * 4, 0);
        // Before one of AccECN's is nothing, behind it anything.
        if let Some(rest) = options.get_mut(at..).filter(|rest| rest.len() > 1) {
            (rest[0], rest[1]) = (if order { 172 } else { 174 }, len);
            options[..at].fill(1);
        }
        let mut rig = Rig::new([Mode::Dctcp; 2]);
        let frame = rig.frame(CLIENT, &Says { options: options.clone().leak(), ..says(1, 1, 0) });
        let (bytes, meta) = rig.pool.parts_mut(&frame);
        if let Some(counts) = option::of(options_in(bytes, &meta.layout)) {
            hide(bytes, &meta.layout, &meta.offload, &counts);
            options[counts.at.into()..][..counts.len.into()].fill(1);
        }
        prop_assert_eq!(options_in(bytes, &meta.layout), &options[..], "nothing else");
        rig.read(frame);
    }
}
