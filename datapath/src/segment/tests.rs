//! Cutting is checked byte for byte against `wire::build`, which makes each part from scratch,
//! checksum included.

use super::*;
use crate::frame::{Out, PoolLimits};
use crate::program::PortId;
use crate::wire::build::{self, Build, eth};
use crate::wire::{Mac, parse, protocol};
use core::net::{Ipv4Addr, Ipv6Addr};
use proptest::prelude::*;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const A4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

fn pool() -> Pool {
    Pool::new(PoolLimits { small: 4096, medium: 0, large: 4096 })
}

/// An offloaded frame, as the sender's stack would make it.
#[derive(Clone, Debug)]
struct Whole {
    v6: bool,
    tcp: bool,
    tag: Option<u16>,
    ip_options: usize,
    tcp_options: u8,
    flags: u8,
    accecn: bool,
    id: u16,
    sequence: u32,
    size: u16,
    payload: Vec<u8>,
}

impl Whole {
    fn segments(&self) -> u32 {
        self.payload.len().div_ceil(self.size.into()) as u32
    }

    /// `count` segments of it from number `first` on, as the sender's stack would have made these
    /// alone.
    fn part(&self, first: u32, count: u32) -> Build<'_> {
        let size = usize::from(self.size);
        let from = first as usize * size;
        let to = (from + count as usize * size).min(self.payload.len());
        let mut build = eth(A, B);
        if let Some(tci) = self.tag {
            build = build.vlan(tci);
        }
        build = if self.v6 {
            let header = [&[(self.ip_options) as u8][..], &vec![0; 8 * self.ip_options + 6]].concat();
            build.ipv6(A6, B6).tos(2).extension(protocol::DESTINATION_OPTIONS, &header)
        } else {
            let id = self.id.wrapping_add(first as u16);
            build.ipv4(A4, B4).tos(2).id(id).ip_options(&vec![1; 4 * self.ip_options])
        };
        build = if self.tcp {
            let mut flags = self.flags;
            if to < self.payload.len() {
                flags &= !(tcp_flags::FIN | tcp_flags::PSH);
            }
            if first > 0 && !self.accecn {
                flags &= !tcp_flags::CWR;
            }
            let sequence = self.sequence.wrapping_add(from as u32);
            build.tcp(1, 2, sequence).flags(flags).tcp_options(self.tcp_options)
        } else {
            build.udp(1, 2)
        };
        build.payload(&self.payload[from..to])
    }

    /// What CWR means, if it is set.
    fn say(&self, offload: &mut Offload) {
        if self.accecn && offload.gso_ecn == GsoEcn::Cwr {
            offload.gso_ecn = GsoEcn::Ace;
        }
    }

    /// Such a part with its work left undone: bytes and offload metadata.
    fn offloaded(&self, first: u32, count: u32) -> (Vec<u8>, Offload) {
        let mut bytes = Vec::new();
        let mut offload = self.part(first, count).gso(self.size).write(&mut bytes);
        self.say(&mut offload);
        (bytes, offload)
    }

    fn frame(&self, pool: &mut Pool) -> Frame {
        let frame = self.part(0, self.segments()).gso(self.size).frame(pool).unwrap();
        let (bytes, meta) = pool.parts_mut(&frame);
        self.say(&mut meta.offload);
        assert_eq!(check_offload(bytes, &meta.layout, &meta.offload), Ok(()));
        meta.wire_bytes = wire_bytes(bytes.len(), &meta.layout, &meta.offload);
        meta.set_out(Out::Payer(PortId(77)));
        frame
    }

    /// The frame is exactly these segments, in bytes and metadata.
    #[track_caller]
    fn assert_is(&self, pool: &Pool, frame: &Frame, first: u32, count: u32) {
        let (bytes, offload) = self.offloaded(first, count);
        assert!(pool.bytes(frame) == bytes, "{count} segments from {first}");
        let meta = pool.meta(frame);
        assert_eq!(meta.offload, offload);
        assert_eq!(Ok(meta.layout), parse(&bytes));
        assert_eq!(check_offload(&bytes, &meta.layout, &offload), Ok(()));
        assert_eq!(meta.wire_bytes, wire_bytes(bytes.len(), &meta.layout, &offload));
        assert_eq!(meta.payer(), Some(PortId(77)));
    }
}

fn whole() -> impl Strategy<Value = Whole> {
    let shape = (any::<bool>(), any::<bool>(), any::<Option<u16>>(), 0..10usize, 0..=10u8);
    let numbers = (any::<u8>(), any::<bool>(), any::<u16>(), any::<u32>());
    let sizes = (prop_oneof![1..100u16, 500..9000u16], 1..60_000usize);
    (shape, numbers, sizes, any::<u8>()).prop_map(|(shape, numbers, (size, len), seed)| {
        let (v6, tcp, tag, ip_options, tcp_options) = shape;
        let (flags, accecn, id, sequence) = numbers;
        // More than one segment, and not more than there may be.
        let len = len.clamp(usize::from(size) + 1, usize::from(size) * 40);
        let payload = (0..len).map(|i| (i as u8).wrapping_mul(seed | 1).wrapping_add((i >> 8) as u8)).collect();
        Whole { v6, tcp, tag, ip_options, tcp_options, flags, accecn, id, sequence, size, payload }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn split_makes_what_the_sender_would_have(whole in whole(), bounds in prop::collection::vec(0..70_000u32, 1..9)) {
        let mut pool = pool();
        let mut frame = whole.frame(&mut pool);
        let mut done = 0;
        for bound in bounds.iter().cycle() {
            let left = whole.segments() - done;
            let (first, rest) = split(&mut pool, frame, *bound);
            let meta = *pool.meta(&first);
            let count = segments(&meta.layout, &meta.offload);
            whole.assert_is(&pool, &first, done, count);
            prop_assert!(meta.wire_bytes <= *bound || count == 1, "{} is over {}", meta.wire_bytes, bound);
            prop_assert_eq!(rest.is_none(), count == left);
            if rest.is_some() {
                let (bytes, offload) = whole.offloaded(done, count + 1);
                prop_assert!(wire_bytes(bytes.len(), &parse(&bytes).unwrap(), &offload) > *bound, "one more would fit");
            }
            done += count;
            pool.free(first);
            match rest {
                Some(rest) => frame = rest,
                None => break,
            }
            whole.assert_is(&pool, &frame, done, whole.segments() - done);
        }
        prop_assert_eq!(done, whole.segments());
        prop_assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn trim_cuts_the_tail(whole in whole(), count in 0..50u32) {
        let mut pool = pool();
        let frame = whole.frame(&mut pool);
        let all = whole.segments();
        let cut = trim(&mut pool, &frame, count);
        prop_assert_eq!(cut, count.min(all - 1));
        whole.assert_is(&pool, &frame, 0, all - cut);
        pool.free(frame);
    }

    #[test]
    fn software_finishes_what_the_port_does_not(whole in whole(), can: [bool; 5], parts in 1..5u32) {
        let support = OffloadSupport { csum: can[0], tso4: can[1], tso6: can[2], tso_ecn: can[3], uso: can[4], tunnel: false };
        let mut pool = pool();
        let frame = whole.frame(&mut pool);
        // Cut before, so that parts of parts are seen too.
        let (first, rest) = split(&mut pool, frame, pool_share(&whole, parts));
        let mut given = Vec::new();
        for frame in [Some(first), rest].into_iter().flatten() {
            software(&mut pool, frame, support, 70_000, &mut |_, frame| given.push(frame)).unwrap();
        }
        let mut plain = Vec::new();
        for frame in given {
            let Meta { layout, offload, .. } = *pool.meta(&frame);
            prop_assert!(support.takes(&offload));
            prop_assert_eq!(Ok(layout), parse(pool.bytes(&frame)));
            software(&mut pool, frame, OffloadSupport::NONE, 70_000, &mut |pool: &mut Pool, frame| {
                plain.push(pool.bytes(&frame).to_vec());
                assert!(!pool.meta(&frame).offload.needs_csum);
                pool.free(frame);
            }).unwrap();
        }
        prop_assert_eq!(plain.len() as u32, whole.segments());
        for (i, segment) in plain.iter().enumerate() {
            prop_assert!(*segment == whole.part(i as u32, 1).bytes(), "segment {}", i);
        }
        prop_assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn wire_bytes_is_the_sum_over_the_segments(whole in whole()) {
        let (bytes, offload) = whole.offloaded(0, whole.segments());
        let sum: u32 = (0..whole.segments()).map(|i| whole.part(i, 1).bytes().len().max(60) as u32 + 24).sum();
        prop_assert_eq!(wire_bytes(bytes.len(), &parse(&bytes).unwrap(), &offload), sum);
        let outer = |i| (whole.part(i, 1).bytes().len() as u32 + 50).max(60) + 24;
        let sum: u32 = (0..whole.segments()).map(outer).sum();
        prop_assert_eq!(tunnelled_wire_bytes(bytes.len(), &parse(&bytes).unwrap(), &offload, 50), sum);
    }
}

fn pool_share(whole: &Whole, parts: u32) -> u32 {
    whole.payload.len() as u32 / parts
}

#[test]
fn wire_bytes_by_hand() {
    let of = |build: &Build| {
        let mut bytes = Vec::new();
        let offload = build.write(&mut bytes);
        wire_bytes(bytes.len(), &parse(&bytes).unwrap(), &offload)
    };
    let tcp = eth(A, B).ipv4(A4, B4).tcp(1, 2, 3);
    assert_eq!(of(&tcp), 84);
    assert_eq!(of(&tcp.clone().payload(vec![0; 6])), 84);
    assert_eq!(of(&tcp.clone().payload(vec![0; 7])), 85);
    assert_eq!(of(&tcp.clone().payload(vec![0; 1460])), 1538);
    assert_eq!(of(&tcp.clone().payload(vec![0; 2920]).gso(1460)), 2 * 1538);
    assert_eq!(of(&tcp.clone().payload(vec![0; 2921]).gso(1460)), 2 * 1538 + 84);
    assert_eq!(of(&tcp.vlan(1).payload(vec![0; 2920]).gso(1460)), 2 * 1542);
    assert_eq!(of(&eth(A, B).ipv6(A6, B6).udp(1, 2).payload(vec![0; 10]).gso(1)), 10 * 87);
}

/// A plain offloaded TCP frame with one thing about its metadata changed.
fn changed(change: impl Fn(&mut Offload)) -> Result<(), Reason> {
    checked(&eth(A, B).ipv4(A4, B4).tcp(1, 2, 3).payload(vec![0; 3000]).gso(1000), change)
}

fn checked(build: &Build, change: impl Fn(&mut Offload)) -> Result<(), Reason> {
    let mut bytes = Vec::new();
    let mut offload = build.write(&mut bytes);
    change(&mut offload);
    check_offload(&bytes, &parse(&bytes).unwrap(), &offload)
}

#[test]
fn lying_segmentation_is_refused() {
    const BAD: Result<(), Reason> = Err(Reason::BadOffload);
    assert_eq!(changed(|_| ()), Ok(()));
    assert_eq!(changed(|o| o.gso_size = 3000), Ok(()));
    assert_eq!(changed(|o| o.gso_size = 3001), BAD);
    assert_eq!(changed(|o| o.gso_size = 0), BAD);
    assert_eq!(changed(|o| o.gso_size = 2), Ok(()));
    assert_eq!(changed(|o| o.gso_size = 1), BAD, "3000 segments");
    assert_eq!(changed(|o| o.gso = Gso::Tcp6), BAD);
    assert_eq!(changed(|o| o.gso = Gso::Udp), BAD);
    assert_eq!(changed(|o| o.needs_csum = false), BAD);
    assert_eq!(changed(|o| o.csum_start += 1), BAD);
    assert_eq!(changed(|o| o.csum_offset = 6), BAD);
    assert_eq!(changed(|o| o.gso_ecn = GsoEcn::Cwr), Ok(()));
    assert_eq!(changed(|o| (o.gso, o.gso_ecn) = (Gso::None, GsoEcn::Cwr)), BAD);
    let data = vec![0; 3000];
    let v6 = eth(A, B).ipv6(A6, B6).tcp(1, 2, 3).payload(&data).gso(1000);
    assert_eq!(checked(&v6, |_| ()), Ok(()));
    assert_eq!(checked(&v6, |o| o.gso = Gso::Tcp4), BAD);
    let udp = eth(A, B).ipv4(A4, B4).udp(1, 2).payload(&data).gso(1000);
    assert_eq!(checked(&udp, |_| ()), Ok(()));
    assert_eq!(checked(&udp, |o| o.gso = Gso::Tcp4), BAD);
    assert_eq!(checked(&udp, |o| o.gso_ecn = GsoEcn::Cwr), BAD);
    assert_eq!(checked(&udp, |o| (o.csum_start, o.csum_offset) = (50, 10)), BAD, "a tunnel's checksum");
    let fragment = eth(A, B).ipv4(A4, B4).fragment(0, true).tcp(1, 2, 3).payload(&data).gso(1000);
    assert_eq!(checked(&fragment, |_| ()), BAD);
    let empty = eth(A, B).ipv4(A4, B4).tcp(1, 2, 3).partial();
    assert_eq!(checked(&empty, |o| (o.gso, o.gso_size) = (Gso::Tcp4, 1000)), BAD);
    // Bytes behind the packet, and a datagram that does not fill it.
    let mut bytes = Vec::new();
    let offload = udp.write(&mut bytes);
    let mut short = bytes.clone();
    short[38..40].copy_from_slice(&2000u16.to_be_bytes());
    assert_eq!(check_offload(&short, &parse(&short).unwrap(), &offload), BAD);
    bytes.push(0);
    assert_eq!(check_offload(&bytes, &parse(&bytes).unwrap(), &offload), BAD);
}

#[test]
fn checksums_stay_out_of_other_headers() {
    let data = vec![0; 100];
    let v4 = || eth(A, B).ipv4(A4, B4);
    let v6 = || eth(A, B).ipv6(A6, B6);
    // Frame, start and offset of the sum, and whether that is allowed.
    let table = [
        (v4().tcp(1, 2, 3).payload(&data), 34, 16, true),
        (v4().tcp(1, 2, 3).payload(&data), 34, 6, false),
        (v4().tcp(1, 2, 3).payload(&data), 54, 16, false),
        (v4().udp(1, 2).payload(&data), 34, 6, true),
        (v4().udp(1, 2).payload(&data), 34, 0, false),
        (v4().udp(1, 2).payload(&data), 22, 6, false),
        (v4().udp(1, 2).payload(&data), 92, 16, true),
        (v4().udp(1, 2).payload(&data), 140, 0, true),
        (v4().udp(1, 2).payload(&data), 140, 1, false),
        (v4().udp(1, 2).payload(&data), 0xffff, 0xffff, false),
        (v4().icmp(8, 0, 0).payload(&data), 34, 2, true),
        (v4().icmp(8, 0, 0).payload(&data), 34, 8, false),
        (v6().icmp(136, 0, 0).payload(&data), 54, 2, true),
        (v6().icmp(136, 0, 0).payload(&data), 54, 8, false),
        (v4().protocol(47).payload(&data), 58, 16, true),
        (v4().protocol(47).payload(&data), 24, 2, false),
        (v4().fragment(0, true).udp(1, 2).payload(&data), 34, 6, false),
        (v4().fragment(8, true).protocol(17).payload(&data), 34, 6, false),
        (build::arp_request(A, A4, B4), 28, 0, false),
        (eth(A, B).payload(&data), 14, 0, true),
        (eth(A, B).payload(&data), 6, 0, false),
        (eth(A, B).vlan(1).payload(&data), 14, 0, false),
    ];
    for (build, csum_start, csum_offset, allowed) in table {
        let claim = Offload { needs_csum: true, csum_start, csum_offset, ..Offload::default() };
        let result = checked(&build, |o| *o = claim);
        assert_eq!(result.is_ok(), allowed, "{csum_start} + {csum_offset} of {build:?}");
    }
}

fn finished(pool: &mut Pool, frame: Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    software(pool, frame, OffloadSupport::NONE, 1514, &mut |pool: &mut Pool, frame| {
        bytes = pool.bytes(&frame).to_vec();
        assert!(pool.meta(&frame).offload.csum_valid);
        pool.free(frame);
    })
    .unwrap();
    bytes
}

#[test]
fn every_kind_of_checksum_is_finished() {
    let mut pool = pool();
    let udp = || eth(A, B).ipv4(A4, B4).udp(1, 2);
    let builds = [
        udp().payload(&[1, 2, 3]),
        eth(A, B).ipv6(A6, B6).icmp(128, 0, 1).payload(&[1, 2, 3]),
        eth(A, B).ipv4(A4, B4).icmp(8, 0, 1).payload(&[1, 2, 3]),
        eth(A, B).vlan(3).ipv6(A6, B6).tcp(1, 2, 3),
    ];
    for build in builds {
        let frame = build.clone().partial().frame(&mut pool).unwrap();
        assert_eq!(finished(&mut pool, frame), build.bytes());
    }
    // A sum of zero is sent as all ones.
    let sum = udp().payload(&[0, 0]).bytes();
    let zero = udp().payload(sum[40..42].to_vec());
    let frame = zero.clone().partial().frame(&mut pool).unwrap();
    let bytes = finished(&mut pool, frame);
    assert_eq!(bytes[40..42], [0xff, 0xff]);
    assert_eq!(bytes, zero.bytes());
    // Padding is not summed.
    let frame = udp().payload(&[9; 3]).partial().frame(&mut pool).unwrap();
    pool.set_len(&frame, 60);
    pool.bytes_mut(&frame)[45..].fill(0xee);
    assert_eq!(finished(&mut pool, frame)[..45], udp().payload(&[9; 3]).bytes());
    // The checksum of what a tunnel carries; the outer one is not there.
    let mut inner = Vec::new();
    let offload = eth(B, A).ipv4(B4, A4).tcp(5, 6, 7).payload(&[3; 99]).partial().write(&mut inner);
    let outer = udp().payload([&[8, 0, 0, 0, 0, 0, 1, 0][..], &inner].concat());
    let frame = outer.frame(&mut pool).unwrap();
    let outer_len = 14 + 20 + 8 + 8;
    pool.meta_mut(&frame).offload = Offload { csum_start: outer_len as u16 + offload.csum_start, ..offload };
    let meta = pool.meta(&frame);
    assert_eq!(check_offload(pool.bytes(&frame), &meta.layout, &meta.offload), Ok(()));
    let plain = eth(B, A).ipv4(B4, A4).tcp(5, 6, 7).payload(&[3; 99]).bytes();
    assert_eq!(finished(&mut pool, frame)[outer_len..], plain);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn too_long_for_the_port() {
    let mut pool = pool();
    let mut run = |build: Build, support, max_frame| {
        let frame = build.frame(&mut pool).unwrap();
        let mut frames = 0;
        let result = software(&mut pool, frame, support, max_frame, &mut |pool: &mut Pool, frame| {
            frames += 1;
            pool.free(frame);
        });
        assert_eq!(pool.in_use(), 0);
        result.map(|()| frames)
    };
    let data = vec![1; 5000];
    let tcp = || eth(A, B).ipv4(A4, B4).tcp(1, 2, 3);
    for support in [OffloadSupport::NONE, OffloadSupport::ALL] {
        assert_eq!(run(tcp().payload(&data[..1460]), support, 1514), Ok(1));
        assert_eq!(run(tcp().payload(&data[..1461]), support, 1514), Err(Reason::TooLong));
        assert_eq!(run(tcp().payload(&data[..1460]).vlan(4), support, 1514), Ok(1));
        assert_eq!(run(tcp().payload(&data).gso(1461), support, 1514), Err(Reason::TooLong));
    }
    assert_eq!(run(tcp().payload(&data).gso(1460), OffloadSupport::NONE, 1514), Ok(4));
    assert_eq!(run(tcp().payload(&data).gso(1460), OffloadSupport::ALL, 1514), Ok(1));
}

#[test]
fn the_ecn_bit_costs_one_segment() {
    let mut pool = pool();
    let support = OffloadSupport { tso_ecn: false, ..OffloadSupport::ALL };
    let build =
        eth(A, B).ipv4(A4, B4).tcp(1, 2, 3).flags(tcp_flags::ACK | tcp_flags::CWR).payload(vec![1; 5000]).gso(1000);
    let frame = build.frame(&mut pool).unwrap();
    let mut seen = Vec::new();
    software(&mut pool, frame, support, 1514, &mut |pool: &mut Pool, frame| {
        let Meta { layout, offload, .. } = pool.meta(&frame);
        let flags = crate::wire::Tcp::of(pool.bytes(&frame), layout).unwrap().flags();
        seen.push((segments(layout, offload), flags & tcp_flags::CWR != 0));
        pool.free(frame);
    })
    .unwrap();
    assert_eq!(seen, [(1, true), (4, false)]);
}

#[test]
fn without_buffers_nothing_is_lost() {
    let mut pool = Pool::new(PoolLimits { small: 2, medium: 0, large: 1 });
    let build = eth(A, B).ipv4(A4, B4).tcp(1, 2, 3).payload(vec![1; 5000]).gso(1000);
    let frame = build.frame(&mut pool).unwrap();
    let held = [pool.alloc(60).unwrap(), pool.alloc(60).unwrap()];
    let (frame, rest) = split(&mut pool, frame, 1500);
    assert!(rest.is_none());
    assert_eq!(pool.bytes(&frame), build.bytes());
    let result = software(&mut pool, frame, OffloadSupport::NONE, 1514, &mut |_, _| unreachable!());
    assert_eq!(result, Err(Reason::NoBuffer));
    assert_eq!(pool.in_use(), 2);
    held.into_iter().for_each(|frame| pool.free(frame));
}

#[test]
fn marks_only_what_can_be_marked() {
    for tos in 0..=255u8 {
        for build in [eth(A, B).ipv4(A4, B4).udp(1, 2), eth(A, B).vlan(5).ipv6(A6, B6).udp(1, 2)] {
            let mut bytes = build.clone().tos(tos).bytes();
            let layout = parse(&bytes).unwrap();
            let capable = tos & 3 != 0;
            assert_eq!(mark_ce(&mut bytes, &layout), capable);
            assert_eq!(bytes, build.tos(if capable { tos | 3 } else { tos }).bytes());
        }
    }
    let mut arp = build::arp_request(A, A4, B4).bytes();
    let layout = parse(&arp).unwrap();
    assert!(!mark_ce(&mut arp, &layout));
    assert_eq!(arp, build::arp_request(A, A4, B4).bytes());
}

/// What is left of the longest frame begins ever later in its buffer, to where 16 bits end.
#[test]
fn the_longest_frame_is_cut_to_its_end() {
    let payload = (0..65_480u32).map(|byte| byte as u8).collect();
    let whole = Whole {
        v6: false,
        tcp: true,
        tag: None,
        ip_options: 0,
        tcp_options: 0,
        flags: tcp_flags::ACK,
        accecn: false,
        id: 0,
        sequence: 0,
        size: 32,
        payload,
    };
    let mut pool = Pool::new(PoolLimits { small: 2, medium: 0, large: 1 });
    let (mut rest, mut cut) = (Some(whole.frame(&mut pool)), 0);
    while let Some(frame) = rest.take() {
        let (one, left) = split_at_most(&mut pool, frame, u32::MAX, 1);
        whole.assert_is(&pool, &one, cut, 1);
        pool.free(one);
        (rest, cut) = (left, cut + 1);
    }
    assert_eq!((cut, pool.in_use()), (whole.segments(), 0));
}
