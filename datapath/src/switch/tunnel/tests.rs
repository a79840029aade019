//! Two hosts with a tenant each has a part of: what leaves one through a tunnel arrives at the
//! other as it was.

use super::*;
use crate::encap::too_big;
use crate::encap::vxlan::OUTER_V4;
use crate::frame_trace::Step;
use crate::offload::{Gso, GsoEcn, Offload};
use crate::overlay::{Overlay, OverlayChange, Peer, Vtep};
use crate::program::{Attachment, Change, PortFeatures, Program, Share, Tenant};
use crate::switch::chaos::{MBIT, Rig, both, endpoint, host, ip, learning, mac, program, tenant, uplink};
use crate::switch::destination;
use crate::units::Rate;
use crate::verdict::Verdict;
use crate::wire::build::{Build, arp_request, eth};
use crate::wire::{Ipv4, Mac, Udp, be16, parse, tcp_flags};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const VNI: u32 = 5001;
const SECOND: u64 = 1_000_000_000;

fn nic(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0xff, n])
}

fn peer(n: u8, tenants: &[u32]) -> Peer {
    Peer { next_hop: Some(nic(n)), tenants: tenants.iter().map(|&t| TenantId(t)).collect() }
}

/// Host `n` of two: endpoint 0 on port 1 has address 10 `n`, endpoint 1 on port 2 has 10 `n` + 1,
/// both of tenant 0; the host of the other has the same of its own number. Tenant 1, with endpoint
/// 2 on port 3, is in a VLAN.
fn half(n: u8) -> Program {
    let other = 3 - n;
    let (here, there) = (u32::from(n) * 10, u32::from(other) * 10);
    let mut endpoints = [endpoint(0, 0), endpoint(1, 0), endpoint(2, 1)];
    endpoints[0].identity.macs = vec![mac(here)];
    endpoints[1].identity.macs = vec![mac(here + 1)];
    let mut half = program(&endpoints);
    half.tenants[0] = tenant(Attachment::Vxlan(VNI));
    half.overlay = Overlay {
        local: Some(Vtep { address: host(n), mac: nic(n) }),
        peers: [(host(other), peer(other, &[0]))].into(),
        remotes: [there, there + 1].map(|a| ((TenantId(0), mac(a)), host(other))).into(),
    };
    half
}

/// With a longer frame for the uplink, so that endpoints' longest fit.
fn roomy(n: u8) -> Program {
    let mut half = half(n);
    half.ports[0].max_frame = 1564;
    half
}

fn udp(from: u32, to: u32, bytes: usize) -> Build<'static> {
    eth(mac(from), mac(to)).ipv4(ip(), Ipv4Addr::new(10, 0, 0, 2)).udp(1000, 2000).payload(vec![7; bytes])
}

fn tcp(from: u32, to: u32, bytes: usize) -> Build<'static> {
    eth(mac(from), mac(to)).ipv4(ip(), Ipv4Addr::new(10, 0, 0, 2)).tcp(1000, 80, 7).payload(vec![7; bytes])
}

impl Rig {
    /// Receives bytes as they are, with offload metadata.
    fn rx_bytes(&mut self, port: u32, bytes: &[u8], offload: Offload) -> Verdict {
        let frame = self.pool.alloc_from(bytes).expect("a buffer");
        self.pool.meta_mut(&frame).offload = offload;
        let told = self.switch.explain(&self.pool, self.now, PortId(port), &frame);
        let verdict = self.switch.rx(&mut self.pool, self.now, PortId(port), frame);
        assert_eq!(told.verdict, verdict, "{told}");
        verdict
    }

    fn rx_told(&mut self, port: u32, build: &Build<'_>) -> Verdict {
        let mut bytes = Vec::new();
        let offload = build.write(&mut bytes);
        self.rx_bytes(port, &bytes, offload)
    }

    fn uplink_drops(&self, reason: Reason) -> u64 {
        self.switch.uplink_drops().get(reason)
    }
}

/// Sets IPv4's don't-fragment flag in a frame without tag.
fn dont_fragment(build: &Build<'_>) -> Vec<u8> {
    let mut bytes = build.bytes();
    bytes[20] |= 0x40;
    let sum = crate::checksum::update(be16(&bytes, 24), 0, 0x4000);
    crate::wire::put16(&mut bytes, 24, sum);
    bytes
}

#[test]
fn a_frame_goes_through_the_tunnel_to_the_other_host() {
    let (mut one, mut two) = (Rig::new(&roomy(1)), Rig::new(&roomy(2)));
    let frame = udp(10, 21, 100);
    assert_eq!(one.rx_told(1, &frame), Verdict::Forwarded);
    let out = one.run(SECOND);
    let [(0, bytes)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(bytes[OUTER_V4..], frame.bytes());
    assert_eq!((destination(bytes), bytes[30..34].to_vec()), (nic(2), vec![192, 0, 2, 2]));
    let stats = one.switch.endpoint_stats(EndpointId(0)).egress.traffic;
    assert_eq!(stats.wire_bytes, bytes.len() as u64 + 24, "the outer headers count");
    assert_eq!(two.rx_bytes(0, bytes, Offload::default()), Verdict::Forwarded);
    assert_eq!(two.run(SECOND), [(2, frame.bytes())]);
    let stats = two.switch.endpoint_stats(EndpointId(1)).ingress.traffic;
    assert_eq!(stats.wire_bytes, bytes.len() as u64 + 24);
    assert_eq!((one.pool.in_use(), two.pool.in_use()), (0, 0));
}

fn host6(n: u8) -> IpAddr {
    IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(n)])
}

/// The same over IPv6.
fn half6(n: u8) -> Program {
    let (mut half, other) = (roomy(n), 3 - n);
    half.ports[0].max_frame = 1584;
    // So fast that the scheduler cuts nothing.
    half.uplink = Some(uplink(100_000));
    let overlay = &mut half.overlay;
    overlay.local = Some(Vtep { address: host6(n), mac: nic(n) });
    overlay.peers = [(host6(other), peer(other, &[0]))].into();
    overlay.remotes.values_mut().for_each(|at| *at = host6(other));
    half
}

#[test]
fn tunnels_may_lead_over_ipv6() {
    let mut plain = half6(1);
    plain.ports[0].offload.uso = false;
    // One by one, and as a UDP GSO packet; the last segment is shorter.
    for (half, count) in [(plain, 10), (half6(1), 1)] {
        let (mut one, mut two) = (Rig::new(&half), Rig::new(&half6(2)));
        let small = udp(10, 21, 100).tos(2);
        let inner = tcp(10, 20, 13_500).gso(1400);
        one.rx_told(1, &small);
        one.rx_told(1, &inner);
        let mut out = Vec::new();
        while let Some((port, frame)) = one.switch.tx(&mut one.pool, one.now) {
            assert_eq!(port, PortId(0));
            let (bytes, offload) = (one.pool.bytes(&frame).to_vec(), one.pool.meta(&frame).offload);
            let layout = parse(&bytes).expect("sound");
            assert_eq!(segment::check_offload(&bytes, &layout, &offload), Ok(()));
            out.push((bytes, offload));
            one.pool.free(frame);
        }
        assert_eq!(out.len(), 1 + count);
        for (bytes, offload) in &out {
            assert_eq!(two.rx_bytes(0, bytes, *offload), Verdict::Forwarded);
        }
        let arrived = two.run(SECOND);
        assert!(arrived.contains(&(2, small.bytes())));
        assert_eq!(arrived.len(), 1 + count);
        if count == 1 {
            assert!(arrived.contains(&(1, inner.bytes())));
        }
        let wire = 9 * (1400 + 54 + 70 + 24) + (900 + 54 + 70 + 24);
        let ends = [&one, &two].map(|rig| rig.switch.endpoint_stats(EndpointId(0)));
        assert_eq!(ends[0].egress.traffic.wire_bytes, wire + 142 + 70 + 24, "the outer headers count");
        assert_eq!(ends[1].ingress.traffic.wire_bytes, wire);
        assert_eq!((one.pool.in_use(), two.pool.in_use()), (0, 0));
    }
    // 20 bytes less fit than over IPv4.
    let mut one = Rig::new(&Program { ports: half(1).ports, ..half6(1) });
    assert_eq!(one.rx_told(1, &udp(10, 20, 1402)), Verdict::Forwarded, "1444 bytes");
    assert_eq!(
        one.rx_bytes(1, &dont_fragment(&udp(10, 20, 1403)), Offload::default()),
        Verdict::Dropped(Reason::PathMtu)
    );
    let out = one.run(SECOND);
    let answer = out.iter().find(|(port, _)| *port == 1).expect("an answer");
    assert_eq!(be16(&answer.1, 40), 1430);
    // A host of the other family is out of reach.
    let mut mixed = half6(1);
    mixed.overlay.local = Some(Vtep { address: host(1), mac: nic(1) });
    let mut one = Rig::new(&mixed);
    assert_eq!(one.rx_told(1, &udp(10, 20, 100)), Verdict::Dropped(Reason::NoRoute));
}

#[test]
fn an_offloaded_frame_leaves_in_segments_each_with_its_headers() {
    let mut plain = roomy(1);
    plain.ports[0].offload.uso = false;
    let (mut one, mut two) = (Rig::new(&plain), Rig::new(&roomy(2)));
    one.rx_told(1, &tcp(10, 20, 14_000).gso(1400));
    let out = one.run(SECOND);
    assert_eq!(out.len(), 10);
    let wire: usize = out.iter().map(|(_, bytes)| bytes.len() + 24).sum();
    assert_eq!(one.switch.endpoint_stats(EndpointId(0)).egress.traffic.wire_bytes, wire as u64);
    let ports: Vec<u16> = out.iter().map(|(_, bytes)| be16(bytes, 34)).collect();
    assert!(ports.iter().all(|port| *port == ports[0]), "one flow, one way: {ports:?}");
    for (i, (_, bytes)) in out.iter().enumerate() {
        // Ports take partial checksums, which then start in the inner packet.
        let offload = Offload { needs_csum: true, csum_start: 84, csum_offset: 16, ..Offload::default() };
        assert_eq!(two.rx_bytes(0, bytes, offload), Verdict::Forwarded);
        let inner = parse(&bytes[OUTER_V4..]).expect("sound");
        assert_eq!(crate::wire::Tcp::of(&bytes[OUTER_V4..], &inner).expect("TCP").sequence(), 7 + 1400 * i as u32);
    }
    assert_eq!(two.run(SECOND).len(), 10);
    assert_eq!(two.switch.endpoint_stats(EndpointId(0)).ingress.traffic.wire_bytes, wire as u64);
}

/// Linux's vxlan device hands offloaded frames over whole, in their tunnel.
#[test]
fn an_offloaded_frame_in_its_tunnel_arrives_whole() {
    let mut fast = roomy(2);
    // So fast that the scheduler cuts nothing.
    fast.uplink = Some(uplink(100_000));
    let mut two = Rig::new(&fast);
    let inner = tcp(10, 20, 14_000).gso(1400);
    let mut pool = Pool::new(crate::frame::PoolLimits { small: 1, medium: 1, large: 1 });
    let frame = inner.frame(&mut pool).expect("a buffer");
    pool.meta_mut(&frame).layout = parse(pool.bytes(&frame)).expect("sound");
    let tunnel = vxlan::Tunnel { from: (host(1), nic(1)), to: (host(2), nic(2)), vni: VNI };
    assert!(vxlan::push(&mut pool, &frame, &tunnel, 50_000, true));
    let offload = pool.meta(&frame).offload;
    assert_eq!(offload.gso, Gso::Tcp4);
    assert_eq!(two.rx_bytes(0, pool.bytes(&frame), offload), Verdict::Forwarded);
    let [(1, bytes)] = &two.run(SECOND)[..] else { panic!("one frame") };
    assert_eq!(*bytes, inner.bytes());
    let wire = 10 * (1400 + 54 + OUTER_V4 as u64 + 24);
    assert_eq!(two.switch.endpoint_stats(EndpointId(0)).ingress.traffic.wire_bytes, wire);
}

/// No device sets CWR in every segment, as AccECN has it.
#[test]
fn a_trace_says_that_an_offloaded_frame_with_cwr_out_of_a_tunnel_is_cut() {
    let mut fast = roomy(2);
    fast.uplink = Some(uplink(100_000));
    let mut two = Rig::new(&fast);
    let inner = tcp(10, 20, 14_000).flags(tcp_flags::ACK | tcp_flags::CWR).gso(1400);
    let frame = inner.frame(&mut two.pool).expect("a buffer");
    let (bytes, meta) = two.pool.parts_mut(&frame);
    (meta.layout, meta.offload.gso_ecn) = (parse(bytes).expect("sound"), GsoEcn::None);
    let tunnel = vxlan::Tunnel { from: (host(1), nic(1)), to: (host(2), nic(2)), vni: VNI };
    assert!(vxlan::push(&mut two.pool, &frame, &tunnel, 50_000, true));
    let told = two.switch.explain(&two.pool, two.now, PortId(0), &frame);
    let cuts = told.steps.iter().filter_map(|step| if let Step::Emit(emit) = step { Some(emit.cut) } else { None });
    assert_eq!(cuts.collect::<Vec<_>>(), [10]);
    assert_eq!(two.switch.rx(&mut two.pool, two.now, PortId(0), frame), Verdict::Forwarded);
    assert_eq!(two.run(SECOND).len(), 10);
}

/// Into how many a trace says that the switch cuts a frame.
fn pieces(rig: &mut Rig, build: &Build<'_>) -> u32 {
    let frame = build.frame(&mut rig.pool).expect("a buffer");
    let told = rig.switch.explain(&rig.pool, rig.now, PortId(1), &frame);
    rig.pool.free(frame);
    let cut = told.steps.iter().find_map(|step| if let Step::Emit(emit) = step { Some(emit.cut) } else { None });
    cut.unwrap_or_else(|| panic!("{told}"))
}

/// Where the port cuts TCP in a tunnel, an offloaded frame has one set of outer headers, and what
/// counts is the wire.
#[test]
fn an_offloaded_frame_goes_whole_where_the_port_cuts_in_tunnels() {
    let (mut half, mut other) = (roomy(1), roomy(2));
    // So fast that the scheduler cuts nothing.
    (half.uplink, other.uplink) = (Some(uplink(100_000)), Some(uplink(100_000)));
    half.ports[0].offload.tunnel = true;
    let (a, b) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
    let inner6 = eth(mac(10), mac(20)).ipv6(a, b).tcp(1, 2, 3).payload(vec![7; 13_500]).gso(1400);
    for (inner, gso, headers) in [(tcp(10, 20, 13_500).tos(2).gso(1400), Gso::Tcp4, 54), (inner6, Gso::Tcp6, 74)] {
        let (mut one, mut two) = (Rig::new(&half), Rig::new(&other));
        assert_eq!(pieces(&mut one, &inner), 1);
        one.rx_told(1, &inner);
        let mut out = Vec::new();
        while let Some((port, frame)) = one.switch.tx(&mut one.pool, one.now) {
            let meta = *one.pool.meta(&frame);
            assert!(meta.in_tunnel() && port == PortId(0));
            out.push((one.pool.bytes(&frame).to_vec(), meta.offload));
            one.pool.free(frame);
        }
        let [(bytes, offload)] = &out[..] else { panic!("{} frames", out.len()) };
        assert_eq!((offload.gso, offload.gso_size, offload.needs_csum), (gso, 1400, true));
        assert_eq!(usize::from(offload.csum_start), OUTER_V4 + headers - 20);
        assert_eq!(bytes[OUTER_V4..], inner.bytes());
        assert_eq!((be16(bytes, 16) as usize, bytes[40..42].to_vec()), (bytes.len() - 14, vec![0, 0]), "no checksum");
        let wire = 10 * (headers + OUTER_V4 + 24) as u64 + 13_500;
        assert_eq!(one.switch.endpoint_stats(EndpointId(0)).egress.traffic.wire_bytes, wire);
        assert_eq!(two.rx_bytes(0, bytes, *offload), Verdict::Forwarded);
        assert_eq!(two.run(SECOND), [(1, inner.bytes())]);
        assert_eq!(two.switch.endpoint_stats(EndpointId(0)).ingress.traffic.wire_bytes, wire);
        assert_eq!((one.pool.in_use(), two.pool.in_use()), (0, 0));
    }
}

/// Datagrams, what no IP packet could hold in one piece, and what goes over IPv6 do not go whole;
/// plain frames are what they were.
#[test]
fn what_may_not_go_whole_goes_as_before() {
    let gso = |half: &Program, build: &Build<'_>| -> Vec<Gso> {
        let mut one = Rig::new(half);
        let told = pieces(&mut one, build);
        one.rx_told(1, build);
        let mut out = Vec::new();
        while let Some((_, frame)) = one.switch.tx(&mut one.pool, one.now) {
            assert_eq!(
                one.pool.meta(&frame).in_tunnel(),
                half.overlay.local.is_some_and(|vtep| vtep.address.is_ipv4())
            );
            out.push(one.pool.meta(&frame).offload.gso);
            one.pool.free(frame);
        }
        assert_eq!(told as usize, out.len(), "a trace says how many leave");
        out
    };
    let (mut whole, mut whole6) = (roomy(1), half6(1));
    whole.uplink = Some(uplink(100_000));
    (whole.ports[0].offload.tunnel, whole6.ports[0].offload.tunnel) = (true, true);
    assert_eq!(gso(&whole, &udp(10, 20, 14_000).gso(1400)), [Gso::Udp]);
    assert_eq!(gso(&whole, &tcp(10, 20, 100)), [Gso::None]);
    // 65535 bytes of IP packet with all headers, and one more.
    assert_eq!(gso(&whole, &tcp(10, 20, 65_535 - 36 - 54).gso(1400)), [Gso::Tcp4]);
    assert_eq!(gso(&whole, &tcp(10, 20, 65_536 - 36 - 54).gso(1400)), [Gso::Udp, Gso::Udp]);
    assert_eq!(gso(&whole6, &tcp(10, 20, 14_000).gso(1400)), [Gso::Udp]);
    whole.ports[0].offload.tso4 = false;
    assert_eq!(
        gso(&whole, &tcp(10, 20, 14_000).gso(1400)),
        [Gso::Tcp4],
        "what the device cuts outside is its own affair"
    );
    whole.ports[0].offload.csum = false;
    assert_eq!(gso(&whole, &tcp(10, 20, 2800).gso(1400)), [Gso::None, Gso::None], "nobody would sum it");
}

/// A path that has become narrower decides, whole or not.
#[test]
fn what_is_too_long_does_not_go_whole() {
    let mut half = roomy(1);
    (half.uplink, half.ports[0].offload.tunnel) = (Some(uplink(100_000)), true);
    let mut one = Rig::new(&half);
    one.rx_told(1, &tcp(10, 20, 14_000).gso(1460));
    let narrow = PortFeatures { offload: half.ports[0].offload, ..PortFeatures::default() };
    one.change(Change::Port(PortId(0), Some(narrow))).expect("there");
    assert_eq!((one.run(SECOND), one.drops(0, Reason::PathMtu)), (vec![], 1));
}

/// Where the port cuts UDP, an offloaded frame is one packet; where nobody cut it on its way, it
/// arrives as it was.
#[test]
fn an_offloaded_frame_goes_as_a_train_and_arrives_whole() {
    let (mut half, mut other) = (roomy(1), roomy(2));
    // So fast that the scheduler cuts nothing.
    (half.uplink, other.uplink) = (Some(uplink(100_000)), Some(uplink(100_000)));
    let (mut one, mut two) = (Rig::new(&half), Rig::new(&other));
    // The last segment is shorter.
    let inner = tcp(10, 20, 13_500).gso(1400);
    one.rx_told(1, &inner);
    let mut trains = Vec::new();
    while let Some((port, frame)) = one.switch.tx(&mut one.pool, one.now) {
        trains.push((port, one.pool.bytes(&frame).to_vec(), one.pool.meta(&frame).offload));
        one.pool.free(frame);
    }
    let [(PortId(0), train, offload)] = &trains[..] else { panic!("{} frames", trains.len()) };
    assert_eq!((offload.gso, offload.gso_size), (Gso::Udp, 1400 + 54 + 8));
    let layout = parse(train).expect("sound");
    assert_eq!(segment::check_offload(train, &layout, offload), Ok(()));
    let wire = u64::from(segment::wire_bytes(train.len(), &layout, offload));
    assert_eq!(one.switch.endpoint_stats(EndpointId(0)).egress.traffic.wire_bytes, wire, "nothing is counted twice");
    assert_eq!(two.rx_bytes(0, train, *offload), Verdict::Forwarded);
    assert_eq!(two.run(SECOND), [(1, inner.bytes())]);
    let stats = two.switch.endpoint_stats(EndpointId(0)).ingress.traffic;
    assert_eq!((stats.wire_bytes, stats.segments), (wire, 10));
    assert_eq!((one.pool.in_use(), two.pool.in_use()), (0, 0));
}

/// A guest that cannot take it gets segments, and a mark on the UDP GSO packet is on each of them.
#[test]
fn a_train_arrives_in_segments_where_the_guest_wants_them() {
    let (mut half, mut other) = (roomy(1), roomy(2));
    (half.uplink, other.uplink) = (Some(uplink(100_000)), Some(uplink(100_000)));
    other.ports[1].offload = crate::offload::OffloadSupport::NONE;
    let (mut one, mut two) = (Rig::new(&half), Rig::new(&other));
    one.rx_told(1, &tcp(10, 20, 14_000).tos(2).gso(1400));
    let (_, train) = one.switch.tx(&mut one.pool, one.now).expect("a train");
    let offload = one.pool.meta(&train).offload;
    let bytes = one.pool.bytes_mut(&train);
    let sum = crate::checksum::update(be16(bytes, 24), 0x4502, 0x4503);
    bytes[15] = 3;
    crate::wire::put16(bytes, 24, sum);
    two.rx_bytes(0, one.pool.bytes(&train), offload);
    let arrived = two.run(SECOND);
    assert_eq!(arrived.len(), 10);
    for (i, (_, bytes)) in arrived.iter().enumerate() {
        let segment = tcp(10, 20, 1400).tos(3).id(i as u16).payload(vec![7; 1400]);
        let layout = parse(bytes).expect("sound");
        assert_eq!(bytes[..34], segment.bytes()[..34], "segment {i}");
        assert_eq!(crate::wire::Tcp::of(bytes, &layout).expect("TCP").sequence(), 7 + 1400 * i as u32);
    }
}

/// Without memory for a UDP GSO packet, its segments are counted as lost.
#[test]
fn a_train_without_a_buffer_is_lost_by_name() {
    let mut half = roomy(1);
    half.uplink = Some(uplink(100_000));
    let mut one = Rig::new(&half);
    one.rx_told(1, &tcp(10, 20, 14_000).gso(1400));
    let others: Vec<Frame> = core::iter::from_fn(|| one.pool.alloc(10_000)).collect();
    assert_eq!((one.run(SECOND), one.drops(0, Reason::NoBuffer)), (vec![], 10));
    assert_eq!(one.pool.in_use(), others.len());
}

/// Many datagrams of one flow in one frame, as UDP_SEGMENT makes them.
#[test]
fn a_train_of_datagrams_is_cut_before_it_is_opened() {
    let (mut one, mut two) = (Rig::new(&roomy(1)), Rig::new(&roomy(2)));
    one.rx_told(1, &udp(10, 20, 300));
    let [(0, datagram)] = &one.run(SECOND)[..] else { panic!("one frame") };
    let payload = datagram[42..].repeat(3);

    let train =
        eth(nic(1), nic(2)).ip(host(1), host(2)).udp(50_000, 4789).payload(&payload).gso((datagram.len() - 42) as u16);
    assert_eq!(two.rx_told(0, &train), Verdict::Forwarded);
    assert_eq!(two.run(SECOND), vec![(1, udp(10, 20, 300).bytes()); 3]);
}

#[test]
fn everyone_and_unknown_addresses_are_asked_for_at_each_host_within_the_budget() {
    let mut half = roomy(1);
    half.overlay.peers.insert(host(3), peer(3, &[0]));
    half.overlay.peers.insert(host(4), peer(4, &[1]));
    half.endpoints[0].flood_per_second = 1;
    let mut one = Rig::new(&half);
    // The last byte of the host's address, or a hundred and the neighbour's port.
    let hosts = |out: Vec<(u32, Vec<u8>)>| {
        let mut hosts: Vec<u32> =
            out.iter().map(|(port, bytes)| if *port == 0 { bytes[33].into() } else { 100 + port }).collect();
        hosts.sort_unstable();
        hosts
    };
    one.rx_told(1, &arp_request(mac(10), ip(), ip()));
    assert_eq!(hosts(one.run(SECOND / 1000)), [2, 3, 102]);
    one.rx_told(1, &udp(10, 77, 100));
    assert_eq!(hosts(one.run(SECOND / 1000)), [2, 3], "not the neighbour, whose address is declared");
    // A bucket of 32, of which two are used and eight kept for ARP.
    let passed = (0..40).filter(|_| one.rx_told(1, &udp(10, 77, 100)) == Verdict::Forwarded).count();
    assert_eq!((passed, one.drops(0, Reason::FloodLimit)), (22, 18));
    let known = one.rx_told(1, &udp(10, 20, 100));
    assert_eq!(known, Verdict::Forwarded, "what is known needs no budget");
}

#[test]
fn a_frame_for_all_hosts_is_copied_one_at_a_time_while_hosts_come_and_go() {
    let mut half = roomy(1);
    half.overlay.peers.extend((3..=200).map(|n| (host(n), peer(n, &[0]))));
    half.endpoints[0].flood_rate = Rate::UNLIMITED;
    let mut one = Rig::new(&half);
    let long = eth(mac(10), Mac::BROADCAST).ipv4(ip(), ip()).udp(1, 2).payload(vec![7; 1400]);
    one.rx_told(1, &long);
    assert_eq!(one.pool.in_use(), 2, "the neighbour's copy, and the hosts'");
    let mut reached = Vec::new();
    for round in 0..1_000 {
        let before = one.pool.in_use();
        let made = one.switch.work(&mut one.pool, one.now, PortId(1));
        assert!(one.pool.in_use() <= before + 1, "one copy at a time");
        if round == 50 {
            // One that has its copy, and one that has not.
            for n in [3, 150] {
                let gone = OverlayChange::Peer(host(n), None);
                one.change(Change::Overlay(gone)).expect("there");
            }
        }
        while let Some((port, frame)) = one.switch.tx_due(&mut one.pool, one.now) {
            if port == PortId(0) {
                reached.push(one.pool.bytes(&frame)[33]);
            }
            one.pool.free(frame);
        }
        if made.is_none() {
            break;
        }
        one.now = one.now.plus_ns(SECOND / 10);
    }
    reached.extend(one.run(SECOND).iter().filter(|(port, _)| *port == 0).map(|(_, bytes)| bytes[33]));
    reached.sort_unstable();
    reached.dedup();
    let wanted: Vec<u8> = (2..=200).filter(|n| *n != 150).collect();
    assert_eq!((reached, one.pool.in_use()), (wanted, 0));
}

#[test]
fn what_is_too_long_for_the_path_is_named_and_its_sender_told() {
    let mut one = Rig::new(&half(1));
    // 1514 bytes, of which 1464 fit.
    let refused = Verdict::Dropped(Reason::PathMtu);
    assert_eq!(one.rx_bytes(1, &dont_fragment(&udp(10, 20, 1472)), Offload::default()), refused);
    let [(1, answer)] = &one.run(SECOND)[..] else { panic!("an answer") };
    let layout = parse(answer).expect("sound");
    assert_eq!((destination(answer), Ipv4::of(answer, &layout).expect("IPv4").destination()), (mac(10), ip()));
    assert_eq!((answer[34], answer[35], be16(answer, 40)), (3, 4, 1450));
    assert_eq!(one.rx_told(1, &udp(10, 20, 1472)), refused, "may be fragmented, which a switch does not");
    assert_eq!(one.run(SECOND), []);
    let (a, b) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
    let v6 = eth(mac(10), mac(20)).ipv6(a, b).tcp(1, 2, 3).payload(vec![7; 14_000]).gso(1440);
    assert_eq!(one.rx_told(1, &v6), refused);
    let [(1, answer)] = &one.run(SECOND)[..] else { panic!("an answer") };
    assert_eq!((answer[54], be16(answer, 60)), (2, 1450));
    assert_eq!(one.rx_told(1, &udp(10, 20, 1422)), Verdict::Forwarded, "1464 bytes");
    let [(0, bytes)] = &one.run(SECOND)[..] else { panic!("one frame") };
    assert_eq!(bytes.len(), 1514);
    assert_eq!(one.drops(0, Reason::PathMtu), 3);
    // For everyone: the neighbours take it.
    assert_eq!(
        one.rx_told(1, &eth(mac(10), Mac::BROADCAST).ipv4(ip(), ip()).udp(1, 2).payload(vec![1; 1472])),
        Verdict::Forwarded
    );
    assert_eq!((one.ports(), one.drops(0, Reason::PathMtu)), (vec![2], 4));
}

#[test]
fn a_path_that_shrinks_while_frames_wait_is_named_too() {
    let mut one = Rig::new(&roomy(1));
    one.rx_told(1, &udp(10, 20, 1472));
    one.change(Change::Port(PortId(0), Some(PortFeatures::default()))).expect("there");
    assert_eq!((one.run(SECOND), one.drops(0, Reason::PathMtu)), (vec![], 1));
}

#[test]
fn without_a_next_hop_nothing_goes_and_what_waits_goes_where_its_host_is() {
    let mut one = Rig::new(&roomy(1));
    let set = |rig: &mut Rig, next_hop| {
        let peer = Peer { next_hop, tenants: vec![TenantId(0)] };
        rig.change(Change::Overlay(OverlayChange::Peer(host(2), Some(peer)))).expect("there");
    };
    one.rx_told(1, &udp(10, 20, 100));
    set(&mut one, Some(nic(9)));
    let [(0, bytes)] = &one.run(SECOND)[..] else { panic!("one frame") };
    assert_eq!(destination(bytes), nic(9), "by the hop that is next when it goes");
    one.rx_told(1, &udp(10, 20, 100));
    set(&mut one, None);
    assert_eq!((one.run(SECOND), one.drops(0, Reason::NoRoute)), (vec![], 1));
    assert_eq!(one.rx_told(1, &udp(10, 20, 100)), Verdict::Dropped(Reason::NoRoute));
}

#[test]
fn a_tunnel_is_no_way_round_anything() {
    let mut two = Rig::new(&roomy(2));
    let outer = |from: u8, vni: u32, inner: &Build<'_>| {
        let payload = [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes(), &inner.bytes()].concat();
        eth(nic(from), nic(2)).ip(host(from), host(2)).udp(50_000, 4789).payload(payload)
    };
    let inner = udp(10, 20, 100);
    let refusals = [
        (outer(1, 5002, &inner), Reason::BadVni, "no tenant's"),
        (outer(3, VNI, &inner), Reason::UnknownVtep, "not a host of the table"),
        (outer(1, VNI, &udp(21, 20, 100)), Reason::Loop, "from an address that is here"),
        (outer(1, VNI, &udp(10, 99, 100)), Reason::Unreachable, "for an address that is not here"),
        (outer(1, VNI, &udp(10, 2, 100)), Reason::Unreachable, "for another tenant's"),
        (outer(1, VNI, &udp(10, 20, 100).vlan(11)), Reason::BadVlan, "with a tag"),
        (outer(1, VNI, &eth(Mac::BROADCAST, mac(20))), Reason::BadSource, "from a group"),
        (outer(1, VNI, &inner).tos(3), Reason::Congestion, "marked on the way, and not able to bear it"),
        (
            outer(1, VNI, &eth(mac(10), mac(20)).ipv4(ip(), ip()).protocol(6).payload(vec![0; 4])),
            Reason::Malformed,
            "cut off",
        ),
    ];
    for (frame, reason, why) in refusals {
        let before = two.uplink_drops(reason);
        assert_eq!((two.rx_told(0, &frame), two.run(SECOND)), (Verdict::Dropped(reason), vec![]), "{why}");
        assert_eq!(two.uplink_drops(reason), before + 1, "{why}");
    }
    assert_eq!(two.rx_told(0, &outer(1, VNI, &inner)), Verdict::Forwarded);
    assert_eq!(two.run(SECOND), [(1, inner.bytes())]);
    // Behind the tenant's VLAN, or from an endpoint, a datagram is a datagram.
    assert_eq!(two.rx_told(0, &outer(1, VNI, &inner).vlan(11)), Verdict::Dropped(Reason::Unreachable));
    assert_eq!(two.rx_told(1, &outer(1, VNI, &inner)), Verdict::Dropped(Reason::SpoofedMac));
}

#[test]
fn other_datagrams_stay_with_the_host() {
    let mut half = roomy(2);
    half.tenants.push(tenant(Attachment::Untagged));
    let mut own = endpoint(3, 2);
    own.identity.macs = vec![nic(2)];
    half.endpoints.push(own);
    let mut two = Rig::new(&half);
    let to = |port| eth(nic(1), nic(2)).ip(host(1), host(2)).udp(50_000, port).payload(vec![8; 60]);
    two.rx_told(0, &to(4790));
    assert_eq!(two.run(SECOND), [(4, to(4790).bytes())]);
    assert_eq!(two.rx_told(0, &to(4789)), Verdict::Dropped(Reason::BadVni), "0x080808");
    two.change(Change::Overlay(OverlayChange::Local(None))).expect("always");
    two.rx_told(0, &to(4789));
    assert_eq!(two.run(SECOND), [(4, to(4789).bytes())], "without an end of tunnels, the host's as well");
}

#[test]
fn congestion_goes_through_the_tunnel() {
    let (mut one, mut two) = (Rig::new(&roomy(1)), Rig::new(&roomy(2)));
    one.rx_told(1, &udp(10, 20, 100).tos(2));
    let [(0, bytes)] = &one.run(SECOND)[..] else { panic!("one frame") };
    let mut marked = bytes.clone();
    assert_eq!(marked[15], 2, "the outer field is the inner one's");
    marked[15] = 3;
    let sum = crate::checksum::update(be16(&marked, 24), 0x4502, 0x4503);
    crate::wire::put16(&mut marked, 24, sum);
    two.rx_bytes(0, &marked, Offload::default());
    assert_eq!(two.run(SECOND), [(1, udp(10, 20, 100).tos(3).bytes())]);
}

#[test]
fn limits_hold_what_goes_through_tunnels_with_its_headers() {
    let mut half = roomy(1);
    half.endpoints[0].share = both(Share { limit: Rate(8 * MBIT), ..Share::default() });
    let mut one = Rig::new(&half);
    for _ in 0..400 {
        one.rx_told(1, &udp(10, 20, 1000));
    }
    // What an idle limit has saved goes first.
    one.run(SECOND / 20);
    let wire: usize = one.run(SECOND / 5).iter().map(|(_, bytes)| bytes.len() + 24).sum();
    assert!((198_000..=202_000).contains(&wire), "8 Mbit/s for 0.2 s: {wire} bytes");
}

#[test]
fn a_tenant_comes_and_goes_with_its_network() {
    let mut one = Rig::new(&roomy(1));
    one.remove(0);
    one.remove(1);
    let isolated = Tenant { attachment: Attachment::Isolated, ..Tenant::default() };
    one.change(Change::Tenant(TenantId(0), Some(isolated))).expect("no endpoints");
    let taken = one.change(Change::Tenant(TenantId(5), Some(tenant(Attachment::Vxlan(VNI)))));
    assert_eq!(taken, Ok(()), "the number is free again");
    let mut stranger = learning(4, 5);
    stranger.port = PortId(5);
    one.add(4, stranger);
    one.rx(5, &udp(10, 20, 100));
    assert_eq!(one.ports(), [], "the addresses are another tenant's");
    assert_eq!(one.drops(4, Reason::Unreachable), 1);
}

/// A datagram is what it seems to others: UDP with a length that fits.
#[test]
fn the_outer_packet_is_sound() {
    let mut one = Rig::new(&roomy(1));
    one.rx_told(1, &arp_request(mac(10), ip(), ip()));
    for (_, bytes) in one.run(SECOND).iter().filter(|(port, _)| *port == 0) {
        let layout = parse(bytes).expect("sound");
        assert_eq!(layout.end as usize, bytes.len());
        assert_eq!(Udp::of(bytes, &layout).expect("UDP").destination(), vxlan::PORT);
    }
}

impl Rig {
    /// What a router says of a frame that left: the longest packet that passes is `mtu`.
    fn router_says(&mut self, left: &[u8], mtu: u16) -> Vec<u8> {
        let frame = self.pool.alloc_from(left).expect("a buffer");
        self.pool.meta_mut(&frame).layout = parse(left).expect("sound");
        let answer = too_big::answer(&mut self.pool, &frame, mtu).expect("an answer");
        let said = self.pool.bytes(&answer).to_vec();
        self.pool.free(frame);
        self.pool.free(answer);
        said
    }

    fn narrow(&self) -> Vec<(IpAddr, u16)> {
        self.switch.narrow_paths(self.now).collect()
    }
}

#[test]
fn a_router_that_says_that_the_way_is_narrow_is_believed_for_ten_minutes() {
    for (half, there, inner) in [(roomy(1), host(2), 1350), (half6(1), host6(2), 1330)] {
        let mut one = Rig::new(&half);
        assert_eq!(one.rx_told(1, &udp(10, 20, 1400)), Verdict::Forwarded);
        let [(0, left)] = &one.run(SECOND)[..] else { panic!("one frame") };
        let said = one.router_says(left, 1400);
        one.rx_bytes(0, &said, Offload::default());
        assert_eq!(one.narrow(), [(there, 1400)]);
        one.run(SECOND);

        let refused = Verdict::Dropped(Reason::PathMtu);
        assert_eq!(one.rx_bytes(1, &dont_fragment(&udp(10, 20, 1400)), Offload::default()), refused);
        let [(1, answer)] = &one.run(SECOND)[..] else { panic!("an answer") };
        assert_eq!((answer[34], answer[35], be16(answer, 40)), (3, 4, inner));
        assert_eq!(one.rx_told(1, &udp(10, 20, usize::from(inner) - 28)), Verdict::Forwarded);
        assert_eq!(one.rx_told(1, &udp(10, 20, usize::from(inner) - 27)), refused);
        one.run(SECOND);
        // A copy for everyone: the neighbour has it, the host cannot.
        let everyone = eth(mac(10), Mac::BROADCAST).ipv4(ip(), ip()).udp(1, 2).payload(vec![1; 1400]);
        assert_eq!(one.rx_told(1, &everyone), Verdict::Forwarded);
        assert_eq!(one.run(SECOND).iter().map(|(port, _)| *port).collect::<Vec<_>>(), [2]);
        assert_eq!(one.drops(0, Reason::PathMtu), 3);

        // Less is believed down to what IPv6 needs inside, more is not.
        let least = 1280 + if there.is_ipv4() { 36 } else { 56 };
        for mtu in [600, 1390] {
            let said = one.router_says(left, mtu);
            one.rx_bytes(0, &said, Offload::default());
            assert_eq!(one.narrow(), [(there, least)]);
        }
        one.run(SECOND);
        one.now = one.now.plus_ns(600 * SECOND);
        assert_eq!(one.narrow(), []);
        assert_eq!(one.rx_told(1, &udp(10, 20, 1400)), Verdict::Forwarded);
        assert_eq!(one.run(SECOND).len(), 1);
        assert_eq!(one.pool.in_use(), 0);
    }
}

/// The sum of an ICMP message that starts at `l4`, put right.
fn put_sum(frame: &mut [u8], l4: usize) {
    crate::wire::put16(frame, l4 + 2, 0);
    let message = crate::checksum::sum(&frame[l4..]);
    let pseudo = if l4 == 34 { 0 } else { crate::checksum::pseudo(&frame[22..54], 58, frame.len() - l4) };
    crate::wire::put16(frame, l4 + 2, !crate::checksum::add(message, pseudo));
}

#[test]
fn what_is_no_routers_word_about_a_tunnel_narrows_nothing() {
    for half in [roomy(1), half6(1)] {
        let is_v4 = half.overlay.local.is_some_and(|local| local.address.is_ipv4());
        let (l3, l4) = (14, if is_v4 { 34 } else { 54 });
        let quoted = l4 + 8;
        let mut one = Rig::new(&half);
        assert_eq!(one.rx_told(1, &udp(10, 20, 1400)), Verdict::Forwarded);
        let [(0, left)] = &one.run(SECOND)[..] else { panic!("one frame") };
        let said = one.router_says(left, 1400);
        let (to, from, there, ports) = if is_v4 { (16, 12, 16, 20) } else { (24, 8, 24, 40) };
        // Whom it is said to, by both addresses; the type; who had sent what is quoted, to whom,
        // from which port and to which.
        let others = [5, l3 + to + 3, l4, quoted + from + 3, quoted + there + 3, quoted + ports, quoted + ports + 3];
        for at in others {
            let mut other = said.clone();
            other[at] ^= 0x81;
            put_sum(&mut other, l4);
            one.rx_bytes(0, &other, Offload::default());
            assert_eq!(one.narrow(), [], "byte {at}");
        }
        // Damaged: the sum, and the length; and a length that would have passed.
        for at in [l4 + 2, l4 + 7] {
            let mut other = said.clone();
            other[at] ^= 1;
            one.rx_bytes(0, &other, Offload::default());
        }
        let longer = one.router_says(left, 1500);
        one.rx_bytes(0, &longer, Offload::default());
        assert_eq!(one.narrow(), []);
        // All is said with the ports that are quoted.
        let needed = quoted + ports + 4;
        for len in l4 + 8..=needed {
            let mut short = said[..len].to_vec();
            crate::wire::put16(&mut short, if is_v4 { 16 } else { 18 }, (len - if is_v4 { l3 } else { l4 }) as u16);
            put_sum(&mut short, l4);
            one.rx_bytes(0, &short, Offload::default());
            assert_eq!(one.narrow().len(), usize::from(len == needed), "{len}");
        }
    }
}

#[test]
fn what_was_said_of_a_way_is_not_said_of_another() {
    let mut one = Rig::new(&roomy(1));
    assert_eq!(one.rx_told(1, &udp(10, 20, 1400)), Verdict::Forwarded);
    let [(0, left)] = &one.run(SECOND)[..] else { panic!("one frame") };
    let said = one.router_says(left, 1400);
    let local = Some(Vtep { address: host(1), mac: nic(1) });
    let elsewhere = Peer { next_hop: Some(nic(9)), ..peer(2, &[0]) };
    for change in [OverlayChange::Local(local), OverlayChange::Peer(host(2), Some(elsewhere))] {
        one.rx_bytes(0, &said, Offload::default());
        assert_eq!(one.narrow().len(), 1);
        let same = OverlayChange::Peer(host(2), Some(peer(2, &[0])));
        one.change(Change::Overlay(same)).expect("fits");
        assert_eq!(one.narrow().len(), 1);
        one.change(Change::Overlay(change)).expect("fits");
        assert_eq!(one.narrow(), []);
    }
}
