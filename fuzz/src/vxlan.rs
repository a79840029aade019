//! Any bytes as a datagram of a tunnel: no panic, an inner frame that lies in the outer one, marks that come out as they should; and what is
//! put into a tunnel comes out as it was.

use datapath::frame::{Pool, PoolLimits};
use datapath::offload::{Gso, Offload};
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
    let _ = vxlan::is_train(data, &offload);
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
