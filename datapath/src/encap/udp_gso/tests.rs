//! What goes into UDP GSO packets comes out as it was, and only what belongs together comes out
//! together.

use super::*;
use crate::frame::PoolLimits;
use crate::offload::OffloadSupport;
use crate::wire::Mac;
use crate::wire::build::{Build, eth};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use proptest::prelude::*;

const TUNNEL: Tunnel = Tunnel {
    from: (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), Mac([2, 0, 0, 0, 1, 1])),
    to: (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), Mac([2, 0, 0, 0, 1, 2])),
    vni: 5001,
};
const TUNNEL_V6: Tunnel = Tunnel {
    from: (IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), Mac([2, 0, 0, 0, 1, 1])),
    to: (IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)), Mac([2, 0, 0, 0, 1, 2])),
    vni: 5001,
};
const RECEIVED: Received = Received { from: TUNNEL.from.0, vni: 5001, ecn: 0 };
/// Where the datagrams begin in a UDP GSO packet over IPv4.
const DATAGRAM: usize = vxlan::OUTER_V4 - VXLAN;
/// Payload of the segments that are not the last.
const SIZE: usize = 100;

fn most(meta: &Meta, tunnel: &Tunnel) -> u32 {
    super::most(&meta.layout, &meta.offload, tunnel)
}

fn ether() -> Build<'static> {
    eth(Mac([2, 0, 0, 0, 0, 0xa]), Mac([2, 0, 0, 0, 0, 0xb]))
}

fn v4() -> Build<'static> {
    ether().ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2))
}

fn v6() -> Build<'static> {
    ether().ipv6(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED)
}

/// Segment `index` of a TCP stream over IPv4.
fn tcp(index: usize) -> Build<'static> {
    stream(v4().id(7 + index as u16), index)
}

fn stream(network: Build<'static>, index: usize) -> Build<'static> {
    network.tcp(1000, 80, 5 + (index * SIZE) as u32).ack(99, 500).payload(vec![index as u8; SIZE])
}

fn pool() -> Pool {
    Pool::new(PoolLimits { small: 70, medium: 4, large: 4 })
}

/// A packet whose datagrams hold these frames.
fn train(pool: &mut Pool, frames: &[Vec<u8>]) -> Frame {
    let mut payload = Vec::new();
    for frame in frames {
        let mut header = [0; VXLAN];
        vxlan::write_network(&mut header, TUNNEL.vni);
        payload.extend_from_slice(&header);
        payload.extend_from_slice(frame);
    }
    let len = DATAGRAM + payload.len();
    let train = pool.alloc(len).expect("a buffer");
    let (bytes, meta) = pool.parts_mut(&train);
    vxlan::write_packet(bytes, &TUNNEL, len, 0, 50_000);
    bytes[DATAGRAM..].copy_from_slice(&payload);
    meta.layout = vxlan::packet_layout(&TUNNEL.to.0, len);
    let (gso_size, csum_start) = ((VXLAN + frames[0].len()) as u16, (DATAGRAM - UDP) as u16);
    meta.offload =
        Offload { gso: Gso::Udp, gso_size, needs_csum: true, csum_start, csum_offset: 6, ..Offload::default() };
    assert_eq!(segment::check_offload(bytes, &meta.layout, &meta.offload), Ok(()));
    train
}

/// What comes out of a UDP GSO packet: each with how many datagrams it was made of.
fn out(pool: &mut Pool, train: Frame) -> Vec<(u32, Result<Frame, Reason>)> {
    let Meta { layout, offload, .. } = *pool.meta(&train);
    let (all, mut first) = (segment::segments(&layout, &offload), 0);
    let mut out = Vec::new();
    while first < all {
        let (count, opened) = uncouple(pool, &train, first);
        assert!(count >= 1);
        first += count;
        out.push((
            count,
            opened.map(|(received, frame)| {
                assert_eq!(received, RECEIVED);
                frame
            }),
        ));
    }
    assert_eq!(first, all, "each datagram once");
    pool.free(train);
    out
}

/// The frames that one becomes on a port that can do nothing.
fn cut(pool: &mut Pool, frame: Frame) -> Vec<Vec<u8>> {
    let (bytes, meta) = pool.parts_mut(&frame);
    meta.layout = parse(bytes).expect("sound");
    assert_eq!(segment::check_offload(bytes, &meta.layout, &meta.offload), Ok(()));
    let mut parts = Vec::new();
    let done = segment::software(pool, frame, OffloadSupport::NONE, 1600, &mut |pool, part| {
        parts.push(pool.bytes(&part).to_vec());
        pool.free(part);
    });
    assert_eq!(done, Ok(()));
    parts
}

/// How many datagrams were joined each time; all that comes out, cut again, is what went in.
fn joined(frames: &[Vec<u8>]) -> Vec<u32> {
    let mut pool = pool();
    let train = train(&mut pool, frames);
    let (mut counts, mut parts) = (Vec::new(), Vec::new());
    for (count, frame) in out(&mut pool, train) {
        counts.push(count);
        let frame = frame.expect("sound");
        if count == 1 {
            parts.push(pool.bytes(&frame).to_vec());
            pool.free(frame);
        } else {
            parts.extend(cut(&mut pool, frame));
        }
    }
    assert_eq!(parts, frames);
    assert_eq!(pool.in_use(), 0);
    counts
}

fn segments(count: usize, build: impl Fn(usize) -> Build<'static>) -> Vec<Vec<u8>> {
    (0..count).map(|index| build(index).bytes()).collect()
}

#[test]
fn an_offloaded_frame_comes_out_as_it_went_in() {
    let body = |len: usize| (0..len).map(|i| i as u8).collect::<Vec<u8>>();
    for inner in [
        v4().tos(2).id(65_530).tcp(1, 2, u32::MAX - 3000).flags(0x19).payload(body(13_500)).gso(1400),
        v4().tcp(1, 2, 3).tcp_options(3).payload(body(2800)).gso(1400),
        v6().tos(2).tcp(1, 2, 3).payload(body(20_001)).gso(1300),
        v4().udp(1, 2).payload(body(9000)).gso(1200),
        v6().udp(1, 2).payload(body(9001)).gso(1200),
    ] {
        let mut pool = pool();
        let frame = inner.frame(&mut pool).expect("a buffer");
        let (bytes, meta) = pool.parts_mut(&frame);
        meta.layout = parse(bytes).expect("sound");
        let (before, meta) = (bytes.to_vec(), *meta);
        let count = segment::segments(&meta.layout, &meta.offload);
        assert!(count <= most(&meta, &TUNNEL));
        for tunnel in [TUNNEL, TUNNEL_V6] {
            let train = couple(&mut pool, &frame, 0..count, &tunnel, 50_000).expect("a buffer");
            let (bytes, outside) = pool.parts_mut(&train);
            assert_eq!(parse(bytes), Ok(outside.layout));
            assert_eq!(segment::check_offload(bytes, &outside.layout, &outside.offload), Ok(()));
            assert_eq!(segment::segments(&outside.layout, &outside.offload), count);
            assert!(vxlan::is_train(bytes, &outside.offload));
            let ecn = vxlan::ecn(&before, &meta.layout);
            let (taken, opened) = uncouple(&mut pool, &train, 0);
            let (received, out) = opened.expect("sound");
            assert_eq!((taken, received), (count, Received { from: tunnel.from.0, ecn, ..RECEIVED }));
            assert_eq!((pool.bytes(&out), pool.meta(&out).offload), (&before[..], meta.offload));
            pool.free(train);
            pool.free(out);
        }
    }
}

#[test]
fn what_is_cut_from_a_train_is_what_would_have_been_sent_without() {
    let mut pool = pool();
    let frame =
        v4().id(9).tcp(1, 2, 3).flags(0x18).payload(vec![1; 3000]).gso(1400).frame(&mut pool).expect("a buffer");
    let (bytes, meta) = pool.parts_mut(&frame);
    meta.layout = parse(bytes).expect("sound");
    // In two UDP GSO packets, the second of one segment.
    let both = [TUNNEL, TUNNEL_V6].map(|tunnel| {
        let trains = [0..2, 2..3].map(|cars| couple(&mut pool, &frame, cars, &tunnel, 50_000).expect("a buffer"));
        assert_eq!(pool.meta(&trains[1]).offload.gso, Gso::None);
        let sent: Vec<Vec<u8>> = trains.into_iter().flat_map(|train| cut(&mut pool, train)).collect();
        (tunnel, sent)
    });
    let alone = cut(&mut pool, frame);
    for (tunnel, sent) in both {
        assert_eq!(sent.len(), 3);
        for (sent, inner) in sent.iter().zip(&alone) {
            assert_eq!(sent[vxlan::outer(&tunnel.to.0)..], inner[..]);
            let layout = parse(sent).expect("sound");
            let l4 = usize::from(layout.l4_offset);
            let udp = pseudo(&sent[addresses(&layout)], protocol::UDP, sent.len() - l4);
            assert_eq!(checksum::add(udp, checksum::sum(&sent[l4..])), 0xffff, "the outer checksum is right");
            let header = checksum::sum(&sent[ETHERNET_HEADER..l4]);
            assert!(tunnel == TUNNEL_V6 || header == 0xffff);
        }
    }
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn trains_are_no_longer_than_linux_takes() {
    let meta = |payload: usize, size: u16| {
        let mut pool = pool();
        let frame = v4().tcp(1, 2, 3).payload(vec![0; payload]).gso(size).frame(&mut pool).expect("a buffer");
        let (bytes, meta) = pool.parts_mut(&frame);
        meta.layout = parse(bytes).expect("sound");
        *meta
    };
    assert_eq!(most(&meta(60_000, 1400), &TUNNEL), 44);
    assert_eq!(most(&meta(60_000, 100), &TUNNEL_V6), 64);
    assert_eq!(most(&meta(65_000, 40_000), &TUNNEL), 1);
    assert_eq!(most(&Meta::default(), &TUNNEL), 0);
}

/// TCP with timestamps over either IP version, from the least that Linux keeps for headers to the
/// most.
#[test]
fn what_a_guest_offloads_fits_one_train() {
    for (tunnel, mtu) in [(TUNNEL, 1450), (TUNNEL_V6, 1430), (TUNNEL, 8950), (TUNNEL, 65_000)] {
        let longest = longest_offload(mtu, &tunnel.to.0) as usize;
        for (inner, headers) in [(v4(), 52), (v6(), 72)] {
            let size = mtu as usize - headers;
            let segments = [256, 320].map(|kept| ((longest - 1 - kept) / size).max(1));
            let payload = vec![0; segments[0] * size];
            let frame = inner.tcp(1, 2, 3).tcp_options(3).payload(payload).gso(size as u16);
            let (mut pool, longer) = (pool(), segments[0] > 1);
            let frame = frame.frame(&mut pool).expect("a buffer");
            let (bytes, meta) = pool.parts_mut(&frame);
            meta.layout = parse(bytes).expect("sound");
            assert_eq!(segments[0], segments[1]);
            assert!(!longer || most(meta, &tunnel) as usize >= segments[0], "{mtu}");
            // And one more would not fit.
            assert!(!longer || headers == 72 || most(meta, &tunnel) as usize == segments[0], "{mtu}");
        }
    }
}

#[test]
fn consecutive_segments_are_joined() {
    assert_eq!(joined(&segments(5, tcp)), [5]);
    assert_eq!(joined(&segments(3, |i| stream(v6(), i))), [3]);
    let udp = |i: usize| v4().id(i as u16).udp(5, 6).payload(vec![i as u8; SIZE]);
    assert_eq!(joined(&segments(4, udp)), [4]);
    // The last one may be shorter, and has the end of the data.
    let mut short = segments(3, tcp);
    short.push(tcp(3).payload(vec![1; 10]).flags(0x18).bytes());
    assert_eq!(joined(&short), [4]);
    let pushed = |i: usize| tcp(i).flags(if i % 2 == 1 { 0x18 } else { 0x10 });
    assert_eq!(joined(&segments(5, pushed)), [2, 2, 1]);
    // In AccECN (RFC 9768) every segment shows all flags.
    assert_eq!(joined(&segments(3, |i| tcp(i).flags(0xd0))), [3]);
}

#[test]
fn what_no_cut_would_give_is_left_apart() {
    let others: [(&str, Build<'static>); 16] = [
        ("a gap", tcp(2).id(8)),
        ("another identification", tcp(1).id(9)),
        ("another acknowledgement", tcp(1).ack(100, 500)),
        ("another window", tcp(1).ack(99, 501)),
        ("a flag", tcp(1).flags(0x50)),
        ("an end", tcp(1).flags(0x14)),
        ("another port", v4().id(8).tcp(1001, 80, 105).ack(99, 500).payload(vec![1; SIZE])),
        ("another protocol", v4().id(8).udp(1000, 80).payload(vec![1; SIZE + 12])),
        ("another IP", stream(v6(), 1).payload(vec![1; SIZE - 20])),
        ("a mark", tcp(1).tos(3)),
        ("another way", tcp(1).ttl(9)),
        ("another host", stream(ether().ipv4(Ipv4Addr::new(10, 0, 0, 3), Ipv4Addr::new(10, 0, 0, 2)).id(8), 1)),
        ("options of IP", tcp(1).ip_options(&[1, 1, 1, 0]).payload(vec![1; SIZE - 4])),
        ("options of TCP", tcp(1).tcp_options(1).payload(vec![1; SIZE - 4])),
        ("a fragment", tcp(1).fragment(0, true)),
        ("no data", tcp(1).payload(vec![])),
    ];
    for (what, other) in others {
        assert_eq!(joined(&[tcp(0).bytes(), other.bytes()]), [1, 1], "{what}");
    }
    let opened = |i: usize| tcp(i).flags(0x12);
    assert_eq!(joined(&segments(2, opened)), [1, 1]);
    let unsummed = |i: usize| {
        let mut bytes = v4().id(i as u16).udp(5, 6).payload(vec![1; SIZE]).bytes();
        put16(&mut bytes, 40, 0);
        bytes
    };
    assert_eq!(joined(&[unsummed(0), unsummed(1)]), [1, 1]);
}

/// The IP header's, TCP's, and what it is the checksum of.
#[test]
fn what_was_corrupted_stays_so() {
    for at in [24, 50, 60] {
        for broken in [0, 1] {
            let mut frames = segments(2, tcp);
            frames[broken][at] ^= 0x10;
            assert_eq!(joined(&frames), [1, 1], "byte {at} of {broken}");
        }
    }
}

#[test]
fn what_is_no_frame_is_refused_alone() {
    let mut pool = pool();
    let frames = segments(3, tcp);
    let train = train(&mut pool, &frames);
    let at = DATAGRAM + VXLAN + frames[0].len();
    pool.bytes_mut(&train)[at] = 0;
    let told: Vec<_> = out(&mut pool, train).into_iter().map(|(count, frame)| (count, frame.map(drop))).collect();
    assert_eq!(told, [(1, Ok(())), (1, Err(Reason::Malformed)), (1, Ok(()))]);
}

#[test]
fn another_network_is_another_train() {
    let mut pool = pool();
    let frames = segments(2, tcp);
    let train = train(&mut pool, &frames);
    vxlan::write_network(&mut pool.bytes_mut(&train)[DATAGRAM + VXLAN + frames[0].len()..], 5002);
    let told = [0, 1].map(|first| uncouple(&mut pool, &train, first));
    let told = told.map(|(count, opened)| (count, opened.expect("sound").0.vni));
    assert_eq!(told, [(1, 5001), (1, 5002)]);
}

#[test]
fn without_a_buffer_it_is_said_how_many_are_lost() {
    let mut pool = Pool::new(PoolLimits { small: 0, medium: 0, large: 1 });
    let train = train(&mut pool, &segments(3, tcp));
    assert_eq!(uncouple(&mut pool, &train, 0), (3, Err(Reason::NoBuffer)));
    assert_eq!(uncouple(&mut pool, &train, 2), (1, Err(Reason::NoBuffer)));
}

proptest! {
    /// Whatever the order, the flags, the identifications: cut again, it is as it came.
    #[test]
    fn nothing_is_changed(cars in prop::collection::vec((0..3usize, 0..3u16, 0..4u8, any::<bool>()), 1..20)) {
        let (mut index, mut id) = (0, 0);
        let frames: Vec<Vec<u8>> = cars.iter().map(|&(skip, other, flags, broken)| {
            // Most are as a cut would have them.
            index += if skip == 2 { 2 } else { 1 };
            id += if other == 2 { 2 } else { 1 };
            let mut bytes = tcp(index).id(id).flags([0x10, 0x10, 0x10, 0x18][usize::from(flags)]).bytes();
            bytes[70] ^= u8::from(broken && flags == 1);
            bytes
        }).collect();
        let counts = joined(&frames);
        prop_assert_eq!(counts.iter().sum::<u32>() as usize, frames.len());
    }
}
