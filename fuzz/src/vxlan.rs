//! Any bytes as a datagram of a tunnel, a train of them, or what a router says of one: no panic, an
//! inner frame that lies in the outer one, marks that come out as they should; what is joined can
//! be cut again; and what is put into a tunnel comes out as it was.

use datapath::checksum;
use datapath::encap::vxlan::Tunnel;
use datapath::encap::{too_big, udp_gso, vxlan};
use datapath::frame::{MAX_FRAME, Pool, PoolLimits};
use datapath::offload::{Gso, Offload, OffloadSupport};
use datapath::segment;
use datapath::wire::{Mac, parse};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whom datagrams are for, and from whom those are that are made here.
const ENDS: [(IpAddr, IpAddr); 2] = [
    (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::LOCALHOST)),
    (IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), IpAddr::V6(Ipv6Addr::LOCALHOST)),
];
const NIC: Mac = Mac([2, 0, 0, 0, 0xff, 1]);
/// Bytes of a case before its frame.
const HEAD: usize = 5;

/// A frame, and the offload metadata that come with it.
pub struct Case<'a> {
    /// Whether its checksum is unfinished, and it is to be cut.
    pub flags: u8,
    /// Where the sum starts.
    pub csum_start: u16,
    /// Size of its segments.
    pub gso_size: u16,
    /// The frame.
    pub frame: &'a [u8],
}

impl Case<'_> {
    /// The bytes that [`run`] reads it from.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        [&[self.flags][..], &self.csum_start.to_be_bytes(), &self.gso_size.to_be_bytes(), self.frame].concat()
    }

    fn read(data: &[u8]) -> Option<Case<'_>> {
        let (&[flags, a, b, c, d], frame) = data.split_first_chunk::<HEAD>()?;
        let (csum_start, gso_size) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Some(Case { flags, csum_start, gso_size, frame })
    }
}

/// `data` is a [`Case`].
pub fn run(data: &[u8]) {
    let Some(Case { flags, csum_start, gso_size, frame }) = Case::read(data) else { return };
    let offload = Offload {
        gso: [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::Udp][usize::from(flags & 3)],
        needs_csum: flags & 4 != 0,
        csum_start,
        csum_offset: [0, 16, 16, 6][usize::from(flags & 3)],
        gso_size,
        ..Offload::default()
    };
    for (here, there) in ENDS {
        let told = parse(frame).ok().and_then(|layout| too_big::told(frame, &layout, (here, NIC)));
        assert!(told.is_none_or(|(to, mtu)| mtu > 0 && to.is_ipv4() == here.is_ipv4()));
        if vxlan::is_for(frame, here, NIC) {
            comes_out(frame, offload);
        }
        for csum in [false, true] {
            goes_through(frame, offload, here, there, csum);
        }
    }
}

fn comes_out(data: &[u8], offload: Offload) {
    let mut pool = Pool::new(PoolLimits { small: 1, medium: 1, large: 1 });
    let Some(frame) = pool.alloc_from(data) else { return };
    pool.meta_mut(&frame).offload = offload;
    if vxlan::is_train(data, &offload) {
        comes_apart(data, offload);
    }
    let opened = vxlan::open(data, &offload);
    assert_eq!(vxlan::pop(&mut pool, &frame).ok(), opened.as_ref().ok().map(|(received, ..)| *received));
    if let Ok((received, inner, offload)) = opened {
        assert!(inner.start >= vxlan::outer(&received.from) && inner.len() >= 14);
        assert_eq!(*pool.bytes(&frame), data[inner]);
        assert_eq!(pool.meta(&frame).offload, offload);
        if let Ok(layout) = parse(pool.bytes(&frame)) {
            let wanted = vxlan::would_merge(pool.bytes(&frame), &layout, received.ecn);
            let bytes = pool.bytes_mut(&frame);
            let merged = vxlan::merge_ecn(bytes, &layout, received.ecn);
            assert_eq!(merged, wanted.map(drop));
            assert_eq!(parse(bytes), Ok(layout), "marks change nothing else");
            // What is marked already stays so.
            assert_eq!(vxlan::would_merge(bytes, &layout, 0).ok(), wanted.ok().or(Some(0)));
        }
    } else {
        assert_eq!(*pool.bytes(&frame), *data, "what is refused is left alone");
    }
    pool.free(frame);
}

/// Each datagram of a train once, and all bytes of those that come out.
fn comes_apart(data: &[u8], offload: Offload) {
    let mut pool = Pool::new(PoolLimits { small: 4, medium: 2, large: 3 });
    let (Ok(layout), Some(train)) = (parse(data), pool.alloc_from(data)) else { return };
    if segment::check_offload(data, &layout, &offload).is_err() {
        return;
    }
    let meta = pool.meta_mut(&train);
    (meta.layout, meta.offload) = (layout, offload);
    let cars: Vec<&[u8]> = data[layout.headers()..].chunks(offload.gso_size.into()).collect();
    let mut first = 0;
    while first < cars.len() {
        let (count, opened) = udp_gso::uncouple(&mut pool, &train, first as u32);
        let next = first + count as usize;
        assert!(count > 0 && next <= cars.len());
        if let Ok((_, frame)) = opened {
            let (bytes, meta) = pool.parts_mut(&frame);
            if count == 1 {
                assert_eq!(*bytes, cars[first][8..]);
                pool.free(frame);
            } else {
                meta.layout = parse(bytes).expect("its segments were sound");
                assert_eq!(segment::check_offload(bytes, &meta.layout, &meta.offload), Ok(()));
                let mut parts = cars[first..next].iter();
                let cut = segment::software(&mut pool, frame, OffloadSupport::NONE, MAX_FRAME, &mut |pool, part| {
                    assert_eq!(*pool.bytes(&part), parts.next().expect("no more than came")[8..]);
                    pool.free(part);
                });
                assert_eq!((cut, parts.len()), (Ok(()), 0));
            }
        }
        first = next;
    }
    pool.free(train);
    assert_eq!(pool.in_use(), 0);
}

/// What is put into a tunnel comes out as it was. Over IPv6 its datagram has a checksum that is
/// right once a device has finished what is left to it.
fn goes_through(data: &[u8], offload: Offload, here: IpAddr, there: IpAddr, csum: bool) {
    let mut pool = Pool::new(PoolLimits { small: 1, medium: 1, large: 1 });
    let (Ok(layout), Some(frame)) = (parse(data), pool.alloc_from(data)) else { return };
    // Over IPv4, frames of TCP that are still to be cut go in as well.
    let whole = here.is_ipv4() && matches!(offload.gso, Gso::Tcp4 | Gso::Tcp6);
    let mut offload = if whole { offload } else { Offload { gso: Gso::None, gso_size: 0, ..offload } };
    if !csum || segment::check_offload(data, &layout, &offload).is_err() {
        offload = Offload::default();
    }
    let meta = pool.meta_mut(&frame);
    (meta.layout, meta.offload) = (layout, offload);
    let tunnel = Tunnel { from: (there, NIC), to: (here, NIC), vni: 77 };
    let keyed = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default();
    let port = vxlan::source_port(&keyed, data, &layout);
    if vxlan::push(&mut pool, &frame, &tunnel, port, csum) {
        assert_eq!(parse(pool.bytes(&frame)), Ok(pool.meta(&frame).layout));
        assert!(vxlan::is_for(pool.bytes(&frame), here, NIC));
        if here.is_ipv6() {
            is_summed(pool.bytes(&frame), &pool.meta(&frame).offload);
        }
        let received = vxlan::pop(&mut pool, &frame).expect("it was put in here");
        assert_eq!((received.from, received.vni), (there, 77));
    }
    let inner = pool.bytes(&frame);
    if offload.needs_csum && !pool.meta(&frame).offload.needs_csum {
        // It was finished, since no device could.
        let start = usize::from(offload.csum_start);
        let field = start + usize::from(offload.csum_offset);
        assert_eq!(inner[..field], data[..field]);
        assert_eq!(inner[field + 2..], data[field + 2..]);
    } else {
        assert_eq!(*inner, *data);
    }
    pool.free(frame);
}

/// A datagram over IPv6, after what a device does.
fn is_summed(bytes: &[u8], offload: &Offload) {
    const L4: usize = 54;
    let mut bytes = bytes.to_vec();
    if offload.needs_csum {
        let start = usize::from(offload.csum_start);
        let field = start + usize::from(offload.csum_offset);
        let sum = !checksum::sum(&bytes[start..]);
        bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let pseudo = checksum::pseudo(&bytes[L4 - 32..L4], 17, bytes.len() - L4);
    assert_eq!(checksum::add(pseudo, checksum::sum(&bytes[L4..])), 0xffff, "the outer checksum is right");
}
