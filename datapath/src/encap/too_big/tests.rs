//! Tests of the answers to packets that are too long.

use super::*;
use crate::frame::PoolLimits;
use crate::wire::build::{Build, eth};
use crate::wire::{Ipv4, Ipv6, Mac, parse};
use core::net::{Ipv4Addr, Ipv6Addr};

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const A4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

fn v4() -> Build<'static> {
    eth(A, B).ipv4(A4, B4)
}

/// The bytes of the answer to a frame, after `change` of its bytes.
fn answer_to(build: &Build<'_>, change: impl Fn(&mut [u8])) -> Option<Vec<u8>> {
    let mut pool = Pool::new(PoolLimits { small: 4, medium: 2, large: 2 });
    let frame = build.frame(&mut pool).expect("a buffer");
    let (bytes, meta) = pool.parts_mut(&frame);
    change(bytes);
    meta.layout = parse(bytes).expect("sound");
    answer(&mut pool, &frame, 1450).map(|answer| pool.bytes(&answer).to_vec())
}

fn dont_fragment(bytes: &mut [u8]) {
    bytes[20] |= DONT_FRAGMENT;
}

#[test]
fn fragmentation_is_needed() {
    let long = v4().tcp(1, 2, 77).payload(vec![7; 20_000]).gso(1448);
    let bytes = answer_to(&long, dont_fragment).expect("an answer");
    let layout = parse(&bytes).expect("sound");
    let ip = Ipv4::of(&bytes, &layout).expect("IPv4");
    assert_eq!((ip.source(), ip.destination(), bytes.len()), (B4, A4, 14 + 576));
    assert_eq!((crate::wire::source(&bytes), crate::wire::destination(&bytes)), (B, A));
    assert_eq!(checksum::sum(&bytes[14..34]), 0xffff);
    assert_eq!(checksum::sum(&bytes[34..]), 0xffff);
    assert_eq!((bytes[34], bytes[35], be16(&bytes, 40)), (3, 4, 1450));
    let mut quoted = long.bytes()[14..14 + 548].to_vec();
    quoted[6] |= DONT_FRAGMENT;
    assert_eq!(bytes[42..], quoted);
}

#[test]
fn a_packet_is_too_big() {
    let long = eth(A, B).ipv6(A6, B6).udp(1, 2).payload(vec![7; 1460]);
    let bytes = answer_to(&long, |_| {}).expect("an answer");
    let layout = parse(&bytes).expect("sound");
    let ip = Ipv6::of(&bytes, &layout).expect("IPv6");
    assert_eq!((ip.source(), ip.destination(), bytes.len()), (B6, A6, 14 + 1280));
    assert_eq!((layout.l4, bytes[54], bytes[55]), (L4::Icmpv6, 2, 0));
    assert_eq!(crate::wire::be32(&bytes, 58), 1450);
    // The builder's own checksum of the same message.
    let same = eth(B, A).ipv6(B6, A6).icmp(2, 0, 1450).payload(bytes[62..].to_vec());
    assert_eq!(bytes, same.bytes());
}

#[test]
fn nobody_is_told_who_does_not_want_to_know() {
    let data = vec![7; 1460];
    let none = |build: &Build<'_>| assert_eq!(answer_to(build, dont_fragment), None, "{build:?}");
    assert_eq!(answer_to(&v4().udp(1, 2).payload(&data), |_| {}), None, "may be fragmented");
    none(&eth(A, Mac::BROADCAST).ipv4(A4, Ipv4Addr::BROADCAST).udp(1, 2).payload(&data));
    none(&eth(A, B).ipv4(A4, Ipv4Addr::new(239, 1, 2, 3)).udp(1, 2).payload(&data));
    none(&eth(A, B).ipv4(Ipv4Addr::UNSPECIFIED, B4).udp(1, 2).payload(&data));
    none(&v4().icmp(3, 4, 0).payload(&data));
    none(&eth(A, B).ethertype(0x88b5).payload(&data));
    let v6 = |from, to| eth(A, B).ipv6(from, to);
    assert_eq!(answer_to(&v6(A6, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)).udp(1, 2), |_| {}), None);
    assert_eq!(answer_to(&v6(Ipv6Addr::UNSPECIFIED, B6).udp(1, 2), |_| {}), None);
    assert_eq!(answer_to(&v6(A6, B6).icmp(2, 0, 0), |_| {}), None);
    assert!(answer_to(&v6(A6, B6).icmp(128, 0, 0), |_| {}).is_some(), "a ping");
    assert!(answer_to(&v4().icmp(8, 0, 0).payload(&data), dont_fragment).is_some(), "a ping");
}
