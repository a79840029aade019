//! Any bytes as a datagram of a tunnel, or a train of them: no panic, an inner frame that lies in the outer one, marks that come out as they
//! should; what is joined can be cut again; and what is put into a tunnel comes out as it was.

use datapath::frame::{MAX_FRAME, Pool, PoolLimits};
use datapath::offload::{Gso, Offload, OffloadSupport};
use datapath::segment;
use datapath::train;
use datapath::wire::vxlan::{self, OUTER, Tunnel};
use datapath::wire::{Mac, parse};
use std::net::Ipv4Addr;

/// Whom datagrams are for.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
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
        // UDP's.
        csum_offset: if flags & 3 == 3 { 6 } else { 0 },
        gso_size,
        ..Offload::default()
    };
    if vxlan::is_for(frame, ADDRESS, NIC) {
        comes_out(frame, offload);
    }
    goes_through(frame);
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
        assert!(inner.start >= OUTER && inner.len() >= 14);
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
        let (count, opened) = train::uncouple(&mut pool, &train, first as u32);
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

fn goes_through(data: &[u8]) {
    let mut pool = Pool::new(PoolLimits { small: 1, medium: 1, large: 1 });
    let (Ok(layout), Some(frame)) = (parse(data), pool.alloc_from(data)) else { return };
    pool.meta_mut(&frame).layout = layout;
    let tunnel = Tunnel { from: (Ipv4Addr::LOCALHOST, NIC), to: (ADDRESS, NIC), vni: 77 };
    let port = vxlan::source_port(data, &layout);
    if vxlan::push(&mut pool, &frame, &tunnel, port) {
        assert_eq!(parse(pool.bytes(&frame)), Ok(pool.meta(&frame).layout));
        assert!(vxlan::is_for(pool.bytes(&frame), ADDRESS, NIC));
        let received = vxlan::pop(&mut pool, &frame).expect("it was put in here");
        assert_eq!((received.from, received.vni), (Ipv4Addr::LOCALHOST, 77));
    }
    assert_eq!(*pool.bytes(&frame), *data);
    pool.free(frame);
}
