//! Bonds with bridges between them: a bridge forwards no reserved address, and takes a VLAN tag for
//! one; it learns where addresses are, and counts all that is in a frame.

use super::*;
use crate::bond::number;
use crate::offload::Gso;
use crate::wire::{be16, ethertype};

const RATES: [u64; 2] = [GBIT; 2];

/// One of two hosts, whose endpoint has this MTU and network.
fn switched(side: usize, mode: Mode, attachment: Attachment, max_frame: u32) -> Program {
    let mut program = program(mode, true, &RATES, max_frame, side as u8 + 1);
    program.tenants[0].attachment = attachment;
    let bond = program.uplink.as_mut().and_then(|uplink| uplink.bond.as_mut()).expect("it is one");
    bond.encoding = Encoding::Shim;
    program
}

pub(super) fn pair(mode: Mode, attachment: Attachment, max_frame: u32) -> Pair {
    let mut pair = Pair::with([0, 1].map(|side| switched(side, mode, attachment, max_frame)), &RATES, 3);
    pair.has_bridges = true;
    pair
}

#[test]
fn over_bridges_frames_are_numbered_and_a_silent_way_loses_none() {
    for (attachment, max_frame) in [(Attachment::Untagged, 1518), (Attachment::Vlan(10), 1522)] {
        for mode in [Mode::BalanceRr, Mode::Broadcast] {
            let mut pair = pair(mode, attachment, max_frame);
            pair.wires[0][1].delay_ns = 300_000;
            let mut pair = pair.agreed();
            pair.send(1000, 12_000, 20 * MS);
            // A bridge does not take the link down where its other side fails.
            pair.wires[0][0].is_dead = true;
            pair.send(1000, 40_000, 60 * MS);
            assert!(pair.finish().is_sorted(), "{mode:?}");
            assert_eq!((pair.lost(), pair.order().late), (0, 0), "{mode:?}");
            pair.clear();
        }
    }
}

/// The members' MTU has to have room for all that a bridge counts.
#[test]
fn without_room_for_a_shim_frames_stay_plain() {
    for (attachment, max_frame) in [(Attachment::Untagged, 1514), (Attachment::Vlan(10), 1518)] {
        let mut pair = pair(Mode::BalanceRr, attachment, max_frame);
        pair.run(20 * MS);
        assert_eq!(pair.plain(0), Some(Plain::TooLong));
        pair.send(1472, 30_000, 5 * MS);
        pair.finish();
        assert_eq!(pair.lost(), 0);
        pair.clear();
    }
}

/// Nobody cuts a frame behind a shim, so an offloaded one leaves in frames of their own, each with
/// its number and its checksum left to the device or done.
#[test]
fn an_offloaded_frame_leaves_in_segments() {
    let mut pair = pair(Mode::BalanceRr, Attachment::Untagged, 1518).agreed();
    let build = eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).tcp(1000, 80, 7).payload(vec![7; 14_000]).gso(1400);
    let frame = build.frame(&mut pair.pool).expect("a buffer");
    pair.switches[0].rx(&mut pair.pool, pair.now, GUEST, frame);
    let mut numbers = Vec::new();
    for _ in 0..1000 {
        pair.now = pair.now.plus_ns(1000);
        while let Some((port, frame)) = pair.switches[0].tx(&mut pair.pool, pair.now) {
            let (bytes, meta) = (pair.pool.bytes(&frame), *pair.pool.meta(&frame));
            if !is_hello(bytes) {
                assert_eq!((meta.offload.gso, bytes.len()), (Gso::None, 1400 + 54 + 4));
                assert_eq!(be16(bytes, 12), Encoding::Shim.ethertype());
                assert_eq!((be16(bytes, 16), meta.layout.vlan), (ethertype::IPV4, None));
                numbers.push(number::read(bytes).expect("it has one").value);
            }
            pair.switches[1].rx(&mut pair.pool, pair.now, port, frame);
        }
    }
    // Over two links by turns.
    numbers.sort_unstable();
    assert!(numbers.len() == 10 && numbers.is_sorted_by(|a, b| a + 1 == *b), "{numbers:?}");
    let mut received = 0;
    while let Some((port, frame)) = pair.switches[1].tx(&mut pair.pool, pair.now) {
        if port == GUEST {
            let sums = crate::segment::check_offload(
                pair.pool.bytes(&frame),
                &pair.pool.meta(&frame).layout,
                &pair.pool.meta(&frame).offload,
            );
            assert_eq!(sums, Ok(()));
            received += pair.pool.len(&frame) - 54;
        }
        pair.pool.free(frame);
    }
    assert_eq!(received, 14_000);
    pair.clear();
}

/// What a guest sends under the shim's EtherType is not taken for a number at the other end, and
/// hellos are no guest's to send.
#[test]
fn a_guest_sends_neither_numbers_nor_hellos() {
    let mut pair = pair(Mode::BalanceRr, Attachment::Untagged, 1518);
    let forged = |value: u16| {
        let tci = number::Number { value, is_shared: false }.tci();
        let payload = [&tci.to_be_bytes()[..], &[8, 0], &[0; 100]].concat();
        eth(mac(1), mac(2)).ethertype(Encoding::Shim.ethertype()).payload(payload)
    };
    let send = |pair: &mut Pair, bytes: &[u8]| {
        let frame = pair.pool.alloc_from(bytes).expect("a buffer");
        pair.switches[0].rx(&mut pair.pool, pair.now, GUEST, frame)
    };
    // Frames are plain yet.
    send(&mut pair, &forged(9).bytes());
    assert!(pair.switches[0].tx(&mut pair.pool, pair.now).is_none_or(|(_, frame)| {
        let is_ours = is_hello(pair.pool.bytes(&frame));
        pair.pool.free(frame);
        is_ours
    }));
    let drops = pair.switches[0].endpoint_stats(EndpointId(0)).drops.get(Reason::Reserved);
    assert_eq!(drops, 1);
    let mut pair = pair.agreed();
    // With numbers it is what any other frame is: inside.
    send(&mut pair, &forged(9).bytes());
    pair.run(5 * MS);
    assert_eq!((pair.received.len(), pair.order().received, pair.order().late), (1, 1, 0));
    for encoding in [Encoding::Tag, Encoding::Shim] {
        let hello = Hello { epoch: 7, encoding, ..Hello::default() }.bytes();
        let mut hello = hello.to_vec();
        hello[6..12].copy_from_slice(&mac(1).0);
        // The one is for an address that is reserved, the other has a tag besides.
        let verdict = send(&mut pair, &hello);
        assert!(matches!(verdict, Verdict::Dropped(Reason::Reserved | Reason::BadVlan)), "{verdict:?}");
    }
    pair.clear();
}

/// A third bond on the same bridges: nobody numbers, and hellos do not answer each other for ever.
#[test]
fn a_third_host_on_the_bridges_makes_frames_plain_and_no_storm() {
    let mut pair = pair(Mode::BalanceRr, Attachment::Untagged, 1518).agreed();
    let (begin, mut count) = (pair.now, 0);
    while pair.now < begin.plus_ns(1000 * MS) {
        // It answers each 200 us, as it may. For some 50 ms it is taken for the peer's next run.
        if pair.now < begin.plus_ns(100 * MS) {
            pair.seen.clear();
        }
        count += 1;
        let hello = Hello { epoch: 0x77, heard: 0, count, member: 1, encoding: Encoding::Shim, ..Hello::default() };
        for side in 0..2 {
            let frame = pair.pool.alloc_from(&hello.bytes()).expect("a buffer");
            pair.switches[side].rx(&mut pair.pool, pair.now, PortId(2), frame);
        }
        pair.run(MS / 5);
    }
    assert!(pair.plain(0).is_some());
    let said = pair.seen.iter().filter(|(side, ..)| *side == 0).count();
    assert!(said < 100, "{said} hellos in a second over two members");
    pair.clear();
}

/// Hosts with cables between them hear nothing of a bond that is behind bridges, and neither is the
/// other way round; but their own peer is heard while one end has changed already.
#[test]
fn a_stranger_of_the_other_kind_is_not_heard_and_a_change_loses_nothing() {
    let mut pair = Pair::new(Mode::BalanceRr, &RATES, 3).agreed();
    for count in 1..200 {
        let hello = Hello { epoch: 0x77, heard: 0, count, member: 1, encoding: Encoding::Shim, ..Hello::default() };
        let frame = pair.pool.alloc_from(&hello.bytes()).expect("a buffer");
        let verdict = pair.switches[1].rx(&mut pair.pool, pair.now, PortId(2), frame);
        assert_eq!(verdict, Verdict::Dropped(Reason::BondControl));
        pair.send(1000, 20_000, MS / 5);
    }
    pair.finish();
    assert_eq!((pair.plain(1), pair.lost(), pair.order().late, pair.was_plain), (None, 0, 0, false));
    pair.clear();

    let attachment = Attachment::Vlan(10);
    let mut pair = Pair::with([0, 1].map(|side| switched(side, Mode::BalanceRr, attachment, 1522)), &RATES, 3).agreed();
    for (side, encoding) in [(0, Encoding::Tag), (1, Encoding::Tag), (1, Encoding::Shim), (0, Encoding::Shim)] {
        let mut uplink = switched(side, Mode::BalanceRr, attachment, 1522).uplink;
        uplink.as_mut().and_then(|uplink| uplink.bond.as_mut()).expect("it is one").encoding = encoding;
        pair.switches[side].change(&mut pair.pool, pair.now, Change::Uplink(uplink)).expect("it fits");
        pair.send(1000, 20_000, 1200 * MS);
    }
    assert!(pair.finish().is_sorted());
    assert_eq!((pair.plain(0), pair.plain(1), pair.lost(), pair.was_plain), (None, None, 0, false));
    pair.clear();
}
