//! Header edge cases as tables, and properties of `parse`.

use super::build::{self, Build, eth};
use super::*;
use crate::encap;
use crate::frame::{Pool, PoolLimits};
use crate::offload::{Gso, GsoEcn};
use core::net::{Ipv4Addr, Ipv6Addr};
use proptest::prelude::*;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const A4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
/// An extension header of 8 bytes without its first.
const EIGHT: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

fn v4() -> Build<'static> {
    eth(A, B).ipv4(A4, B4)
}

fn v6() -> Build<'static> {
    eth(A, B).ipv6(A6, B6)
}

fn located(build: &Build) -> Layout {
    parse(&build.bytes()).unwrap_or_else(|e| panic!("{e:?}: {build:?}"))
}

#[test]
fn finds_the_headers_of_whole_packets() {
    let data = [7; 100];
    // What, network layer, transport layer, and where: network, transport, payload, end.
    let table = [
        (v4().tcp(1, 2, 3).payload(&data), L3::Ipv4, L4::Tcp, [14, 34, 54, 154]),
        (v4().vlan(5).tcp(1, 2, 3).payload(&data), L3::Ipv4, L4::Tcp, [18, 38, 58, 158]),
        (v4().ip_options(&[1; 40]).tcp(1, 2, 3).tcp_options(10), L3::Ipv4, L4::Tcp, [14, 74, 134, 134]),
        (v4().udp(1, 2).payload(&data), L3::Ipv4, L4::Udp, [14, 34, 42, 142]),
        (v4().icmp(8, 0, 1).payload(&data), L3::Ipv4, L4::Icmp, [14, 34, 0, 142]),
        (v4().protocol(47).payload(&data), L3::Ipv4, L4::Other, [14, 34, 0, 134]),
        (v4().protocol(protocol::ICMPV6).payload(&data), L3::Ipv4, L4::Other, [14, 34, 0, 134]),
        (v6().tcp(1, 2, 3).payload(&data), L3::Ipv6, L4::Tcp, [14, 54, 74, 174]),
        (v6().vlan(0xffff).udp(1, 2).payload(&data), L3::Ipv6, L4::Udp, [18, 58, 66, 166]),
        (v6().icmp(128, 0, 1), L3::Ipv6, L4::Icmpv6, [14, 54, 0, 62]),
        (v6().protocol(protocol::ICMP).payload(&data), L3::Ipv6, L4::Other, [14, 54, 0, 154]),
        (v6().protocol(protocol::NO_NEXT_HEADER).payload(&data), L3::Ipv6, L4::Other, [14, 54, 0, 154]),
        (v6().protocol(protocol::NO_NEXT_HEADER), L3::Ipv6, L4::Other, [14, 54, 0, 54]),
        (build::arp_request(A, A4, B4), L3::Arp, L4::Other, [14, 0, 0, 42]),
        (build::arp_request(A, A4, B4).vlan(9), L3::Arp, L4::Other, [18, 0, 0, 46]),
        (eth(A, B).payload(&data), L3::Other, L4::Other, [14, 0, 0, 114]),
        (eth(A, B), L3::Other, L4::Other, [14, 0, 0, 14]),
        (eth(A, B).ethertype(100).payload(&data), L3::Other, L4::Other, [14, 0, 0, 114]),
        (eth(A, B).ethertype(90).payload(&data), L3::Other, L4::Other, [14, 0, 0, 104]),
        (eth(A, B).vlan(1).ethertype(ethertype::VLAN).payload(&data), L3::Other, L4::Other, [18, 0, 0, 118]),
        (eth(A, B).ethertype(ethertype::SERVICE_VLAN).payload(&data), L3::Other, L4::Other, [14, 0, 0, 114]),
    ];
    for (build, l3, l4, offsets) in table {
        let layout = located(&build);
        let found = [layout.l3_offset, layout.l4_offset, layout.payload_offset, layout.end as u16];
        assert_eq!((layout.l3, layout.l4, found), (l3, l4, offsets), "{build:?}");
        assert!(!layout.fragment && !layout.later_fragment);
    }
    assert_eq!(located(&v4().vlan(0xf00a)).vlan, Some(10));
    assert_eq!(located(&v4()).vlan, None);
}

#[test]
fn follows_extension_headers() {
    use protocol::{AUTHENTICATION, DESTINATION_OPTIONS, HOP_BY_HOP, ROUTING};
    let long = [&[31][..], &[0; 254]].concat();
    let authentication = [&[4][..], &[0; 22]].concat();
    let table = [
        (v6().extension(HOP_BY_HOP, &EIGHT), 54 + 8),
        (v6().extension(HOP_BY_HOP, &EIGHT).extension(ROUTING, &EIGHT), 54 + 16),
        (v6().extension(DESTINATION_OPTIONS, &long), 54 + 256),
        (v6().extension(AUTHENTICATION, &authentication), 54 + 24),
        ((0..8).fold(v6(), |b, _| b.extension(DESTINATION_OPTIONS, &EIGHT)), 54 + 64),
    ];
    for (build, l4_offset) in table {
        let tcp = located(&build.clone().tcp(1, 2, 3));
        assert_eq!((tcp.l4, tcp.l4_offset), (L4::Tcp, l4_offset), "{build:?}");
        let none = located(&build.protocol(protocol::NO_NEXT_HEADER));
        assert_eq!((none.l4, none.l4_offset, none.payload_offset), (L4::Other, l4_offset, 0));
    }
}

#[test]
fn refuses_broken_chains() {
    use protocol::{DESTINATION_OPTIONS, HOP_BY_HOP, ROUTING};
    let table = [
        ("hop-by-hop not first", v6().extension(ROUTING, &EIGHT).extension(HOP_BY_HOP, &EIGHT).tcp(1, 2, 3)),
        ("nine headers", (0..9).fold(v6(), |b, _| b.extension(DESTINATION_OPTIONS, &EIGHT)).tcp(1, 2, 3)),
        ("longer than the packet", v6().extension(ROUTING, &[3, 0, 0, 0, 0, 0, 0]).tcp(1, 2, 3)),
        ("header announced, absent", v6().protocol(ROUTING)),
        ("header cut off", v6().protocol(ROUTING).payload(&[6, 0, 0, 0])),
        ("behind the last header nothing", v6().extension(ROUTING, &EIGHT).protocol(protocol::TCP)),
        ("two fragment headers", v6().fragment(0, false).fragment(0, false).tcp(1, 2, 3)),
        ("jumbogram", v6().protocol(HOP_BY_HOP)),
    ];
    for (what, build) in table {
        assert_eq!(parse(&build.bytes()), Err(Reason::Malformed), "{what}");
    }
}

#[test]
fn knows_fragments() {
    let data = [7; 64];
    // What, transport layer, later fragment.
    let table = [
        (v4().fragment(0, true).udp(1, 2).payload(&data), L4::Udp, false),
        (v4().fragment(0, true).tcp(1, 2, 3).payload(&data), L4::Tcp, false),
        (v4().fragment(0, true).protocol(protocol::TCP).payload(&data[..8]), L4::Other, false),
        (v4().fragment(8, true).protocol(protocol::UDP).payload(&data), L4::Other, true),
        (v4().fragment(64, false).protocol(protocol::UDP).payload(&data[..1]), L4::Other, true),
        (v6().fragment(0, true).udp(1, 2).payload(&data), L4::Udp, false),
        (v6().fragment(0, false).icmp(135, 0, 0).payload(&data), L4::Icmpv6, false),
        (v6().fragment(64, false).protocol(protocol::TCP).payload(&data[..3]), L4::Other, true),
        // What looks like a chain in the middle of a packet is none.
        (v6().fragment(64, false).protocol(protocol::ROUTING).payload(&data[..3]), L4::Other, true),
    ];
    for (build, l4, later) in table {
        let layout = located(&build);
        assert_eq!((layout.l4, layout.fragment, layout.later_fragment), (l4, true, later), "{build:?}");
        let data_offset = if layout.l3 == L3::Ipv4 { 34 } else { 62 };
        assert_eq!(layout.l4_offset, data_offset);
    }
    // A first fragment of UDP announces the length of the whole datagram.
    let mut first = v4().fragment(0, true).udp(1, 2).payload(&data).bytes();
    first[38..40].copy_from_slice(&1000u16.to_be_bytes());
    assert_eq!(parse(&first).map(|l| l.l4), Ok(L4::Udp));
    let bad = [
        ("reassembles to more than a packet", v4().fragment(0xfff8, false).protocol(17).payload(&data)),
        ("the same in IPv6", v6().fragment(0xfff8, false).protocol(17).payload(&data)),
        (
            "the same, by what lies before",
            v6().extension(protocol::ROUTING, &EIGHT).fragment(0xfff8, false).protocol(17).payload(&data[..7]),
        ),
        ("not the last, and odd", v6().fragment(8, true).protocol(17).payload(&data[..63])),
        ("first without its transport header", v6().fragment(0, true).protocol(6).payload(&data[..16])),
        ("first without its chain", v6().fragment(0, true).protocol(60).payload(&[6, 9, 0, 0, 0, 0, 0, 0])),
    ];
    for (what, build) in bad {
        assert_eq!(parse(&build.bytes()), Err(Reason::Malformed), "{what}");
    }
}

#[test]
fn refuses_lying_lengths() {
    let data = [7; 30];
    let tcp4 = v4().tcp(1, 2, 3).payload(&data).bytes();
    let udp4 = v4().udp(1, 2).payload(&data).bytes();
    let tcp6 = v6().tcp(1, 2, 3).payload(&data).bytes();
    let arp = build::arp_request(A, A4, B4).bytes();
    // What, the frame, and the byte to change.
    let table: &[(&str, &[u8], usize, u8)] = &[
        ("version 5", &tcp4, 14, 0x55),
        ("IPv4 header of 16 bytes", &tcp4, 14, 0x44),
        ("IPv4 header past the packet", &v4().protocol(99).bytes(), 14, 0x46),
        ("total length below the header", &tcp4, 17, 19),
        ("total length of one byte too much", &tcp4, 17, tcp4.len() as u8 - 14 + 1),
        ("total length cuts the TCP header", &tcp4, 17, 39),
        ("TCP header of 16 bytes", &tcp4, 46, 0x40),
        ("TCP header past the packet", &tcp4, 46, 0xd0),
        ("UDP length below its header", &udp4, 39, 7),
        ("UDP length of one byte too much", &udp4, 39, 39),
        ("IPv6 version", &tcp6, 14, 0x40),
        ("IPv6 payload length of one byte too much", &tcp6, 19, 51),
        ("IPv6 payload length cuts the TCP header", &tcp6, 19, 19),
        ("ARP of another network", &arp, 15, 9),
        ("ARP for IPv6", &arp, 16, 0x86),
        ("ARP with long addresses", &arp, 18, 8),
        ("LLC longer than the frame", &eth(A, B).ethertype(5).payload(&[0; 5]).bytes(), 13, 6),
        ("neither length nor EtherType", &eth(A, B).ethertype(5).bytes(), 12, 5),
    ];
    for &(what, frame, at, value) in table {
        let mut frame = frame.to_vec();
        frame[at] = value;
        assert_eq!(parse(&frame), Err(Reason::Malformed), "{what}");
    }
}

#[test]
fn whatever_is_cut_off_is_refused() {
    let frames = [
        v4().vlan(3).tcp(1, 2, 3).payload(&[1; 9]),
        v6().extension(protocol::HOP_BY_HOP, &EIGHT).udp(1, 2).payload(&[1; 9]),
        build::arp_request(A, A4, B4),
    ];
    for build in frames {
        let bytes = build.bytes();
        assert!(parse(&bytes).is_ok());
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]), Err(Reason::Malformed), "{len} bytes of {build:?}");
        }
    }
}

#[test]
fn padding_is_not_part_of_the_packet() {
    for build in [v4().tcp(1, 2, 3), v6().udp(1, 2), build::arp_request(A, A4, B4)] {
        let mut bytes = build.bytes();
        let end = bytes.len() as u32;
        bytes.resize(120, 0xee);
        assert_eq!(parse(&bytes).map(|l| l.end), Ok(end));
    }
}

#[test]
fn views_read_the_fields() {
    let bytes = v4().tos(3).id(77).ttl(9).tcp(1000, 80, 0xdead_beef).ack(5, 6).flags(tcp_flags::SYN).bytes();
    let layout = parse(&bytes).unwrap();
    assert_eq!((source(&bytes), destination(&bytes)), (A, B));
    let ip = Ipv4::of(&bytes, &layout).unwrap();
    assert_eq!((ip.source(), ip.destination(), ip.protocol()), (A4, B4, protocol::TCP));
    assert_eq!((ip.ttl(), ip.id(), ip.total_len(), ip.ecn()), (9, 77, 40, 3));
    let tcp = Tcp::of(&bytes, &layout).unwrap();
    assert_eq!((tcp.source(), tcp.destination(), tcp.sequence()), (1000, 80, 0xdead_beef));
    assert_eq!((tcp.acknowledgement(), tcp.window(), tcp.flags()), (5, 6, tcp_flags::SYN));
    assert!(Udp::of(&bytes, &layout).is_none() && Ipv6::of(&bytes, &layout).is_none());
    assert!(Icmp::of(&bytes, &layout).is_none() && Arp::of(&bytes, &layout).is_none());

    let bytes = v6().tos(1).ttl(3).udp(53, 54).payload(&[1, 2, 3]).bytes();
    let layout = parse(&bytes).unwrap();
    let ip = Ipv6::of(&bytes, &layout).unwrap();
    assert_eq!((ip.source(), ip.destination(), ip.hop_limit()), (A6, B6, 3));
    assert_eq!((ip.payload_len(), ip.ecn()), (11, 1));
    let udp = Udp::of(&bytes, &layout).unwrap();
    assert_eq!((udp.source(), udp.destination(), udp.length()), (53, 54, 11));

    let bytes = build::arp_reply(A, A4, B, B4).bytes();
    let arp = Arp::of(&bytes, &parse(&bytes).unwrap()).unwrap();
    assert_eq!((arp.operation(), arp.sender_mac(), arp.sender_ip()), (Arp::REPLY, A, A4));
    assert_eq!((arp.target_mac(), arp.target_ip()), (B, B4));

    let bytes = build::neighbour_advertisement(A, A6, A6).bytes();
    let icmp = Icmp::of(&bytes, &parse(&bytes).unwrap()).unwrap();
    assert_eq!((icmp.kind(), icmp.code()), (icmpv6::NEIGHBOUR_ADVERTISEMENT, 0));
    assert_eq!(icmp.nd_target(), Some(A6));
    assert_eq!(icmp.nd_options().collect::<Vec<_>>(), [Ok(NdOption::TargetLinkLayer(Some(A)))]);
}

#[test]
fn discovery_options_end_where_they_are_cut_off() {
    let options = |body: &[u8]| {
        let bytes = build::nd(icmpv6::ROUTER_SOLICITATION, A, (A6, B6), 0, body.to_vec()).bytes();
        let layout = parse(&bytes).unwrap();
        Icmp::of(&bytes, &layout).unwrap().nd_options().collect::<Vec<_>>()
    };
    let mac = build::link_layer_option(1, B);
    assert_eq!(options(&[]), []);
    assert_eq!(
        options(&[&[14, 2][..], &[0; 14], &mac].concat()),
        [Ok(NdOption::Other(14)), Ok(NdOption::SourceLinkLayer(Some(B)))]
    );
    assert_eq!(options(&[&[1, 2][..], &[0; 14]].concat()), [Ok(NdOption::SourceLinkLayer(None))]);
    assert_eq!(options(&[&mac[..], &[1]].concat()), [Ok(NdOption::SourceLinkLayer(Some(B))), Err(Truncated)]);
    assert_eq!(options(&mac[..7]), [Err(Truncated)]);
    assert_eq!(options(&[1, 0, 0, 0, 0, 0, 0, 0]), [Err(Truncated)]);
    // A solicitation that ends before its target.
    let bytes = build::nd(icmpv6::NEIGHBOUR_SOLICITATION, A, (A6, B6), 0, vec![0; 15]).bytes();
    let layout = parse(&bytes).unwrap();
    let icmp = Icmp::of(&bytes, &layout).unwrap();
    assert_eq!(icmp.nd_target(), None);
    assert_eq!(icmp.nd_options().collect::<Vec<_>>(), [Err(Truncated)]);
}

#[test]
fn tags_are_pushed_and_popped() {
    let mut pool = Pool::new(PoolLimits { small: 4, medium: 0, large: 1 });
    for build in [v4().tcp(1, 2, 3).payload(&[5; 3000]).gso(1448), v6().udp(1, 2).payload(&[5; 99]).partial()] {
        let frame = build.frame(&mut pool).unwrap();
        let (plain, before) = (pool.bytes(&frame).to_vec(), *pool.meta(&frame));
        assert!(encap::vlan::push(&mut pool, &frame, 0x6005));
        let mut tagged = Vec::new();
        let offload = build.clone().vlan(0x6005).write(&mut tagged);
        assert_eq!(pool.bytes(&frame), tagged);
        assert_eq!(pool.meta(&frame).offload, offload);
        assert_eq!(pool.meta(&frame).layout, parse(&tagged).unwrap());
        // A second tag: what is known of the inside stays known.
        assert!(encap::vlan::push(&mut pool, &frame, 7));
        assert_eq!(pool.meta(&frame).layout.vlan, Some(7));
        assert_eq!(usize::from(pool.meta(&frame).layout.l3_offset), 22);
        assert_eq!(pool.meta(&frame).offload.csum_start, offload.csum_start + 4);
        assert_eq!(encap::vlan::pop(&mut pool, &frame), Some(7));
        assert_eq!(pool.bytes(&frame), tagged);
        assert_eq!(pool.meta(&frame).layout, parse(&tagged).unwrap());
        assert_eq!(encap::vlan::pop(&mut pool, &frame), Some(0x6005));
        assert_eq!(pool.bytes(&frame), plain);
        assert_eq!((pool.meta(&frame).layout, pool.meta(&frame).offload), (before.layout, before.offload));
        assert_eq!(encap::vlan::pop(&mut pool, &frame), None);
        pool.free(frame);
    }
    // Two tags from outside: the first hides what the second has.
    let inner = v4().tcp(1, 2, 3).vlan(8).bytes();
    let outer = eth(A, B).vlan(9).ethertype(ethertype::VLAN).payload(&inner[14..]);
    let frame = outer.frame(&mut pool).unwrap();
    assert_eq!(pool.meta(&frame).layout.l3, L3::Other);
    assert_eq!(encap::vlan::pop(&mut pool, &frame), Some(9));
    assert_eq!(pool.bytes(&frame), inner);
    assert_eq!(pool.meta(&frame).layout, parse(&inner).unwrap());
    pool.free(frame);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_built_offload_describes_the_frame() {
    let mut out = Vec::new();
    let offload = v6().vlan(2).tcp(1, 2, 3).flags(tcp_flags::CWR).payload(vec![0; 5000]).gso(1400).write(&mut out);
    assert_eq!((offload.gso, offload.gso_size, offload.gso_ecn), (Gso::Tcp6, 1400, GsoEcn::Cwr));
    assert_eq!((offload.needs_csum, offload.csum_start, offload.csum_offset), (true, 58, 16));
}

#[test]
fn what_most_frames_are_is_found_in_few_steps() {
    for build in [v4().udp(1, 2).payload(&[7; 18]), v4().tcp(1, 2, 3).payload(&[7; 18])] {
        let mut layout = Layout::default();
        assert!(ipv4::locate_plain(&build.bytes(), &mut layout), "{build:?}");
        assert_eq!(layout, located(&build));
    }
}

proptest! {
    /// What is found in few steps is what is found in all, whatever is changed in a frame.
    #[test]
    fn few_steps_find_what_all_find(
        is_tcp in any::<bool>(),
        changes in prop::collection::vec((12..60usize, any::<u8>()), 0..3),
        cut in 0..40usize,
    ) {
        let build = if is_tcp { v4().tcp(1, 2, 3) } else { v4().udp(1, 2) };
        let mut bytes = build.payload(&[7; 18]).bytes();
        for (at, to) in changes {
            bytes[at % 60] = to;
        }
        bytes.truncate(bytes.len() - cut / 2);
        let (mut few, mut all) = (Layout::default(), Layout::default());
        let found = locate_any(&bytes, &mut all);
        if ipv4::locate_plain(&bytes, &mut few) {
            prop_assert_eq!((found, few), (Ok(()), all));
        } else {
            prop_assert_eq!(few, Layout::default());
        }
    }

    /// Whatever the bytes: no panic, and offsets that lie in the frame and in order.
    #[test]
    fn offsets_are_in_order(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..4usize, next in any::<u8>()) {
        // Random bytes rarely get past the EtherType; help them.
        if bytes.len() > 54 {
            let ethertype = [ethertype::IPV4, ethertype::IPV6, ethertype::ARP, ethertype::VLAN][kind];
            put16(&mut bytes, 12, ethertype);
            bytes[14] = [0x45, 0x60, 0, bytes[14]][kind];
            if kind < 2 {
                bytes[16..20].fill(0);
                bytes[17 + 2 * kind] = 40;
                bytes[[23, 20][kind]] = next % 64;
            }
        }
        if let Ok(layout) = parse(&bytes) {
            prop_assert!(layout.end as usize <= bytes.len());
            prop_assert!(u32::from(layout.l3_offset) <= layout.end);
            if matches!(layout.l3, L3::Ipv4 | L3::Ipv6) {
                prop_assert!(layout.l3_offset < layout.l4_offset && u32::from(layout.l4_offset) <= layout.end);
            }
            if matches!(layout.l4, L4::Tcp | L4::Udp) {
                prop_assert!(layout.l4_offset < layout.payload_offset && u32::from(layout.payload_offset) <= layout.end);
            } else {
                prop_assert_eq!(layout.payload_offset, 0);
            }
        }
    }
}
