//! Tests of VXLAN's headers.

use super::*;
use crate::frame::{MAX_FRAME, PoolLimits};
use crate::random::Keyed;
use crate::segment;
use crate::wire::build::{Build, arp_request, eth};
use crate::wire::{Ipv4, Ipv6, Udp};
use core::net::Ipv4Addr;
use proptest::prelude::*;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const TUNNEL: Tunnel = Tunnel {
    from: (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), Mac([2, 0, 0, 0, 1, 1])),
    to: (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), Mac([2, 0, 0, 0, 1, 2])),
    vni: 0x00ab_cdef,
};
const TUNNEL_V6: Tunnel = Tunnel {
    from: (IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), Mac([2, 0, 0, 0, 1, 1])),
    to: (IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)), Mac([2, 0, 0, 0, 1, 2])),
    vni: 0x00ab_cdef,
};

fn v4() -> Build<'static> {
    eth(A, B).ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2))
}

fn v6() -> Build<'static> {
    eth(A, B).ipv6(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED)
}

fn pool() -> Pool {
    Pool::new(PoolLimits { small: 8, medium: 2, large: 2 })
}

/// A frame as the switch has it when it puts it into a tunnel.
fn looked_at(pool: &mut Pool, build: &Build<'_>) -> Frame {
    let frame = build.frame(pool).expect("a buffer");
    let (bytes, meta) = pool.parts_mut(&frame);
    meta.layout = parse(bytes).expect("a sound frame");
    frame
}

fn tunnelled(build: &Build<'_>) -> (Pool, Frame) {
    within(&TUNNEL, build, true)
}

fn within(tunnel: &Tunnel, build: &Build<'_>, csum: bool) -> (Pool, Frame) {
    let mut pool = pool();
    let frame = looked_at(&mut pool, build);
    assert!(push(&mut pool, &frame, tunnel, 50_000, csum));
    (pool, frame)
}

#[test]
fn the_outer_headers_are_those_of_the_standard() {
    let inner = v4().tos(2).udp(1, 2).payload(b"levada".to_vec());
    let (pool, frame) = tunnelled(&inner);
    let bytes = pool.bytes(&frame);
    assert_eq!(bytes[OUTER_V4..], inner.bytes());
    let layout = parse(bytes).expect("sound");
    assert_eq!(layout, pool.meta(&frame).layout, "the layout is the outer headers'");
    assert_eq!((crate::wire::destination(bytes), crate::wire::source(bytes)), (TUNNEL.to.1, TUNNEL.from.1));
    let ip = Ipv4::of(bytes, &layout).expect("IPv4");
    assert_eq!((IpAddr::V4(ip.source()), IpAddr::V4(ip.destination())), (TUNNEL.from.0, TUNNEL.to.0));
    assert_eq!((ip.ttl(), ip.ecn(), ip.protocol()), (64, 2, protocol::UDP));
    assert_eq!(bytes[20..22], [0x40, 0], "don't fragment");
    assert_eq!(checksum::sum(&bytes[14..34]), 0xffff);
    let udp = Udp::of(bytes, &layout).expect("UDP");
    assert_eq!((udp.source(), udp.destination()), (50_000, 4789));
    assert_eq!(usize::from(udp.length()), 16 + inner.bytes().len());
    assert_eq!(bytes[40..42], [0, 0], "no checksum");
    assert_eq!(bytes[42..50], [8, 0, 0, 0, 0xab, 0xcd, 0xef, 0]);
}

#[test]
fn the_outer_headers_over_ipv6_are_those_of_the_standards() {
    let inner = v4().tos(2).udp(1, 2).payload(b"levada".to_vec());
    let (pool, frame) = within(&TUNNEL_V6, &inner, false);
    let bytes = pool.bytes(&frame);
    assert_eq!(bytes[OUTER_V6..], inner.bytes());
    let layout = parse(bytes).expect("sound");
    assert_eq!(layout, pool.meta(&frame).layout, "the layout is the outer headers'");
    let ip = Ipv6::of(bytes, &layout).expect("IPv6");
    assert_eq!((IpAddr::V6(ip.source()), IpAddr::V6(ip.destination())), (TUNNEL_V6.from.0, TUNNEL_V6.to.0));
    assert_eq!((bytes[14] >> 4, bytes[20], bytes[21], ecn(bytes, &layout)), (6, protocol::UDP, TTL, 2));
    assert_eq!(be32(bytes, 14) >> 20 & 0xff, 2, "no priority");
    let udp = Udp::of(bytes, &layout).expect("UDP");
    assert_eq!((udp.source(), udp.destination()), (50_000, 4789));
    assert_eq!(usize::from(udp.length()), 16 + inner.bytes().len());
    assert_eq!(usize::from(be16(bytes, 18)), 16 + inner.bytes().len());
    assert_eq!(bytes[62..70], [8, 0, 0, 0, 0xab, 0xcd, 0xef, 0]);
    let label = |port: u16| {
        let mut pool = super::tests::pool();
        let frame = looked_at(&mut pool, &inner);
        assert!(push(&mut pool, &frame, &TUNNEL_V6, port, false));
        be32(pool.bytes(&frame), 14) & 0xf_ffff
    };
    let labels: std::collections::BTreeSet<u32> = (50_000..51_000).map(label).collect();
    // Of 2^20, 1000 at random hit all but one or so.
    assert!(labels.len() > 990, "{} labels for 1000 flows", labels.len());
}

/// What is left to the device of a checksum, it does; then the outer one is right, whoever made it.
#[test]
fn over_ipv6_the_outer_checksum_is_right() {
    let datagram = |len: usize| v4().udp(1, 2).payload(vec![7; len]);
    let inners = [
        (datagram(61), false),
        (datagram(60), true),
        (datagram(61), true),
        (v6().tcp(1, 2, 3).payload(vec![7; 1001]), true),
        (arp_request(A, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST), false),
    ];
    for (inner, is_partial) in inners {
        let whole = inner.bytes();
        let inner = if is_partial { inner.partial() } else { inner };
        for csum in [true, false] {
            if is_partial && !csum {
                continue;
            }
            let mut pool = pool();
            let frame = looked_at(&mut pool, &inner);
            assert!(push(&mut pool, &frame, &TUNNEL_V6, 50_000, csum));
            let offload = pool.meta(&frame).offload;
            assert_eq!(offload.needs_csum, csum);
            let start = usize::from(offload.csum_start);
            if csum {
                assert_eq!(start == 54, !is_partial, "the inner one, or the outer");
                let field = start + usize::from(offload.csum_offset);
                let bytes = pool.bytes_mut(&frame);
                let sum = !checksum::sum(&bytes[start..]);
                put16(bytes, field, sum);
            }
            let bytes = pool.bytes(&frame);
            let pseudo = checksum::pseudo(&bytes[22..54], protocol::UDP, bytes.len() - 54);
            assert_eq!(checksum::add(pseudo, checksum::sum(&bytes[54..])), 0xffff);
            assert_ne!(be16(bytes, 60), 0);
            assert_eq!(bytes[OUTER_V6..], whole);
        }
    }
}

#[test]
fn what_goes_in_comes_out() {
    let inners = [
        v4().udp(1, 2),
        v6().tcp(1, 2, 3).payload(vec![7; 1000]),
        arp_request(A, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST),
    ];
    for (inner, tunnel) in inners.iter().flat_map(|inner| [(inner, TUNNEL), (inner, TUNNEL_V6)]) {
        let (mut pool, frame) = within(&tunnel, inner, true);
        assert!(is_for(pool.bytes(&frame), tunnel.to.0, tunnel.to.1));
        let received = pop(&mut pool, &frame).expect("sound");
        assert_eq!(received, Received { from: tunnel.from.0, vni: tunnel.vni, ecn: 0 });
        assert_eq!(pool.bytes(&frame), inner.bytes());
    }
}

#[test]
fn only_vxlan_for_this_very_vtep_is_for_it() {
    let (pool, frame) = tunnelled(&v4().udp(1, 2));
    let sound = pool.bytes(&frame);
    let is_for = |bytes: &[u8]| is_for(bytes, TUNNEL.to.0, TUNNEL.to.1);
    assert!(is_for(sound));
    // Where, and what else is there: the destination's address and MAC, EtherType, protocol, port,
    // offset of a later fragment.
    for (at, value) in [(33, 9), (5, 9), (13, 6), (23, 6), (37, 0), (21, 1)] {
        let mut other = sound.to_vec();
        other[at] = value;
        assert!(!is_for(&other), "with {value} at {at}");
    }
    for len in 0..38 {
        assert!(!is_for(&sound[..len]), "{len} bytes");
    }
}

#[test]
fn only_vxlan_over_ipv6_for_this_very_vtep_is_for_it() {
    let (pool, frame) = within(&TUNNEL_V6, &v4().udp(1, 2), false);
    let sound = pool.bytes(&frame);
    let is_for = |bytes: &[u8]| is_for(bytes, TUNNEL_V6.to.0, TUNNEL_V6.to.1);
    assert!(is_for(sound) && !super::is_for(sound, TUNNEL.to.0, TUNNEL.to.1));
    // Its address, MAC, EtherType, next header, port.
    for (at, value) in [(53, 9), (5, 9), (13, 6), (20, 6), (57, 0)] {
        let mut other = sound.to_vec();
        other[at] = value;
        assert!(!is_for(&other), "with {value} at {at}");
    }
    for len in 0..58 {
        assert!(!is_for(&sound[..len]), "{len} bytes");
    }
    for len in 58..sound.len() {
        assert_eq!(open(&sound[..len], &Offload::default()).err(), Some(Reason::Malformed), "{len} bytes");
    }
    let mut without = sound.to_vec();
    without[60..62].fill(0);
    assert!(open(&without, &Offload::default()).is_ok(), "without a checksum");
}

#[test]
fn contradictions_are_refused() {
    let (pool, frame) = tunnelled(&v4().udp(1, 2).payload(vec![1; 60]));
    let sound = pool.bytes(&frame);
    // A flag without which there is no identifier, a wrong checksum, the first of many fragments, a
    // length of a header alone.
    for (at, value) in [(42, 0), (24, 1), (20, 0x60), (39, 29)] {
        let mut other = sound.to_vec();
        other[at] = value;
        if at == 20 {
            // Whoever fragments writes the checksum anew.
            let update = checksum::update(be16(sound, 24), be16(sound, 20), be16(&other, 20));
            put16(&mut other, 24, update);
        }
        assert_eq!(open(&other, &Offload::default()).err(), Some(Reason::Malformed), "with {value} at {at}");
    }
    for len in 38..sound.len() {
        assert_eq!(open(&sound[..len], &Offload::default()).err(), Some(Reason::Malformed), "{len} bytes");
    }
}

/// Linux hands a segmentation-offloaded frame over in its tunnel: what is to be cut is the inner
/// packet.
#[test]
fn an_offloaded_frame_may_come_in_its_tunnel() {
    let inner = v4().tcp(1, 2, 3).payload(vec![7; 20_000]).gso(1400);
    let mut pool = pool();
    let frame = looked_at(&mut pool, &inner);
    let offload = pool.meta(&frame).offload;
    assert!(push(&mut pool, &frame, &TUNNEL, 50_000, true));
    assert_eq!(pool.meta(&frame).offload.csum_start, offload.csum_start + OUTER_V4 as u16);
    assert!(!is_train(pool.bytes(&frame), &pool.meta(&frame).offload));
    pop(&mut pool, &frame).expect("sound");
    assert_eq!(pool.meta(&frame).offload, offload);
    let layout = parse(pool.bytes(&frame)).expect("sound");
    assert_eq!(segment::check_offload(pool.bytes(&frame), &layout, &offload), Ok(()));
}

#[test]
fn an_outer_checksum_that_is_not_finished_is_of_no_interest() {
    let (mut pool, frame) = tunnelled(&v4().tcp(1, 2, 3));
    let outer = Offload { needs_csum: true, csum_start: 34, csum_offset: 6, ..Offload::default() };
    pool.meta_mut(&frame).offload = outer;
    pop(&mut pool, &frame).expect("sound");
    assert_eq!(pool.meta(&frame).offload, Offload::default());
    let (pool, frame) = tunnelled(&v4().tcp(1, 2, 3));
    let elsewhere = Offload { csum_start: 42, ..outer };
    assert_eq!(open(pool.bytes(&frame), &elsewhere).err(), Some(Reason::BadOffload));
    let train = Offload { gso: Gso::Udp, gso_size: 100, ..outer };
    assert!(is_train(pool.bytes(&frame), &train));
}

/// RFC 6040, figure 4: by the inner field, then the outer.
#[test]
fn marks_come_out_of_the_tunnel() {
    let (not, ect1, ect0, ce) = (0, 1, 2, 3);
    let drop = Err(Reason::Congestion);
    let figure = [
        (not, [Ok(not), Ok(not), Ok(not), drop]),
        (ect1, [Ok(ect1), Ok(ect1), Ok(ect1), Ok(ce)]),
        (ect0, [Ok(ect0), Ok(ect1), Ok(ect0), Ok(ce)]),
        (ce, [Ok(ce); 4]),
    ];
    for (inner, row) in figure {
        for (outer, expected) in (0..).zip(row) {
            for build in [v4().tos(0xb8 | inner).udp(1, 2), v6().tos(0xb8 | inner).udp(1, 2)] {
                let mut bytes = build.bytes();
                let layout = parse(&bytes).expect("sound");
                let merged = merge_ecn(&mut bytes, &layout, outer).map(|()| ecn(&bytes, &layout));
                assert_eq!(merged, expected, "inner {inner}, outer {outer}");
                let wanted = build.tos(0xb8 | expected.unwrap_or(inner)).bytes();
                assert_eq!(bytes, wanted, "the rest of it, and the checksum");
            }
        }
    }
    let mut arp = arp_request(A, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST).bytes();
    let layout = parse(&arp).expect("sound");
    assert_eq!(merge_ecn(&mut arp, &layout, ce), Ok(()), "ARP cannot be told, and was sent as not capable");
}

#[test]
fn a_flow_has_one_port_and_flows_have_many() {
    let port = |build: &Build<'_>| {
        let bytes = build.bytes();
        source_port(&Keyed::new(7), &bytes, &parse(&bytes).expect("sound"))
    };
    let one = port(&v4().tcp(1000, 80, 1).payload(vec![1; 10]));
    assert_eq!(port(&v4().tcp(1000, 80, 99_999).payload(vec![2; 700])), one, "a later segment");
    let echo = |sequence: u32| port(&v4().icmp(8, 0, 0xabcd_0000 | sequence));
    assert_eq!(echo(1), echo(2), "one ping");
    let ports: std::collections::BTreeSet<u16> = (0..1000).map(|n| port(&v4().tcp(1000 + n, 80, 1))).collect();
    // Of 16384, 1000 at random hit 970 different ones on average.
    assert!(ports.len() > 900, "{} ports for 1000 flows", ports.len());
    assert!(ports.iter().all(|&port| port >= 49_152));
    let fragment = |offset, more| port(&v4().udp(1, 2).payload(vec![0; 64]).fragment(offset, more));
    assert_eq!(fragment(0, true), fragment(8, false), "all fragments of a packet go one way");
}

#[test]
fn what_is_too_long_for_a_packet_is_left_alone() {
    let mut pool = pool();
    let frame = looked_at(&mut pool, &eth(A, B).ethertype(0x88b5).payload(vec![0; MAX_FRAME - 14]));
    assert!(!push(&mut pool, &frame, &TUNNEL, 50_000, true));
    assert_eq!(pool.len(&frame), MAX_FRAME);
}

proptest! {
    /// Whatever comes: an answer, and an inner frame that lies in the outer one.
    #[test]
    fn anything_may_come(bytes in prop::collection::vec(any::<u8>(), 38..200), csum: bool, start in 0..300u16) {
        let offload = Offload { needs_csum: csum, csum_start: start, ..Offload::default() };
        let mut bytes = bytes;
        let (pool, frame) = tunnelled(&v4().udp(1, 2));
        let sound = pool.bytes(&frame);
        bytes[..38].copy_from_slice(&sound[..38]);
        if let Ok((_, inner, offload)) = open(&bytes, &offload) {
            prop_assert!(inner.start >= OUTER_V4 && inner.end <= bytes.len() && inner.len() >= 14);
            prop_assert!(!offload.csum_valid);
        }
    }
}
