//! Any frame with any offload metadata, through everything that `segment` does to it. What was
//! accepted may then be cut, trimmed and finished in any order: no panic, no frame lost, the same
//! payload, the same bytes counted, and checksums valid where they were.

use datapath::frame::{Frame, Pool, PoolLimits};
use datapath::offload::{Gso, GsoEcn, Offload, OffloadSupport};
use datapath::segment::{check_offload, mark_ce, segments, software, split, trim, wire_bytes};
use datapath::wire::{Ipv6, L3, L4, Layout, Tcp, parse};

/// Bytes before the frame: the metadata, and what to do.
pub const HEAD: usize = 14;

/// What the first [`HEAD`] bytes say.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The metadata that come with the frame.
    pub offload: Offload,
    /// What the leaving port can do.
    pub support: OffloadSupport,
    /// The bound of each part.
    pub max_bytes: u32,
    /// Segments to cut off the tail.
    pub trimmed: u8,
    /// Mark it before.
    pub mark: bool,
}

impl Case {
    /// Reads it; `None` where there are less than [`HEAD`] bytes. Gives the frame too.
    pub fn read(data: &[u8]) -> Option<(Case, &[u8])> {
        let (head, frame) = data.split_first_chunk::<HEAD>()?;
        let bit = |byte: usize, bit: u8| (head[byte] >> bit) & 1 == 1;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let offload = Offload {
            gso: [Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::Udp][usize::from(head[0] & 3)],
            gso_ecn: match (bit(0, 2), bit(0, 5)) {
                (false, _) => GsoEcn::None,
                (true, false) => GsoEcn::Cwr,
                (true, true) => GsoEcn::Ace,
            },
            needs_csum: bit(0, 3),
            csum_valid: bit(0, 4),
            gso_size: word(2),
            csum_start: word(4),
            csum_offset: word(6),
        };
        let support = OffloadSupport {
            csum: bit(1, 0),
            tso4: bit(1, 1),
            tso6: bit(1, 2),
            tso_ecn: bit(1, 3),
            uso: bit(1, 4),
            tunnel: false,
        };
        let max_bytes = (u32::from(word(8)) << 16) | u32::from(word(10));
        Some((Case { offload, support, max_bytes, trimmed: head[12], mark: bit(13, 0) }, frame))
    }

    /// Writes it before `frame`.
    pub fn write(&self, frame: &[u8]) -> Vec<u8> {
        let (offload, support) = (&self.offload, &self.support);
        let kind = match offload.gso {
            Gso::None => 0,
            Gso::Tcp4 => 1,
            Gso::Tcp6 => 2,
            Gso::Udp => 3,
        };
        let bits = |flags: &[bool]| flags.iter().rev().fold(0, |byte, &flag| (byte << 1) | u8::from(flag));
        let (says, is_counter) = (offload.gso_ecn != GsoEcn::None, offload.gso_ecn == GsoEcn::Ace);
        let mut out = vec![kind | (bits(&[says, offload.needs_csum, offload.csum_valid, is_counter]) << 2)];
        out.push(bits(&[support.csum, support.tso4, support.tso6, support.tso_ecn, support.uso]));
        for word in [offload.gso_size, offload.csum_start, offload.csum_offset] {
            out.extend(word.to_be_bytes());
        }
        out.extend(self.max_bytes.to_be_bytes());
        out.extend([self.trimmed, u8::from(self.mark)]);
        out.extend(frame);
        out
    }
}

/// `data` is a [`Case`] and a frame.
pub fn run(data: &[u8]) {
    let Some((case, bytes)) = Case::read(data) else { return };
    let Ok(layout) = parse(bytes) else { return };
    if check_offload(bytes, &layout, &case.offload).is_err() {
        return;
    }
    // For the most segments there may be, and for parts of several.
    let mut pool = Pool::new(PoolLimits { small: 2100, medium: 0, large: 100 });
    let Some(frame) = pool.alloc_from(bytes) else { return };
    let counted = wire_bytes(bytes.len(), &layout, &case.offload);
    let meta = pool.meta_mut(&frame);
    (meta.layout, meta.offload, meta.wire_bytes) = (layout, case.offload, counted);
    if case.mark {
        mark_ce(pool.bytes_mut(&frame), &layout);
        assert_eq!(ipv4_sum(pool.bytes(&frame), &layout), ipv4_sum(bytes, &layout));
    }
    let whole = Whole::of(bytes, &layout, &case.offload);
    let cut = trim(&mut pool, &frame, case.trimmed.into());
    assert!(cut < whole.segments || cut == 0);
    let parts = split_up(&mut pool, frame, case.max_bytes);
    let mut given = Vec::new();
    for part in parts {
        software(&mut pool, part, case.support, usize::MAX - 4, &mut |pool: &mut Pool, frame| {
            assert!(case.support.takes(&pool.meta(&frame).offload));
            given.push(frame);
        })
        .expect("there are buffers, and no frame is too long");
    }
    let mut after = After::default();
    for frame in given {
        software(&mut pool, frame, OffloadSupport::NONE, usize::MAX - 4, &mut |pool: &mut Pool, frame| {
            after.add(&whole, pool, frame);
        })
        .expect("there are buffers, and no frame is too long");
    }
    assert_eq!(pool.in_use(), 0);
    after.is_the(&whole, bytes, cut);
}

/// Cuts it into parts of `max_bytes`; what is counted stays the same.
fn split_up(pool: &mut Pool, frame: Frame, max_bytes: u32) -> Vec<Frame> {
    let counted = pool.meta(&frame).wire_bytes;
    let (mut parts, mut rest) = (Vec::new(), Some(frame));
    while let Some(frame) = rest {
        let (first, more) = split(pool, frame, max_bytes);
        let meta = pool.meta(&first);
        let count = segments(&meta.layout, &meta.offload);
        assert!(count == 1 || meta.wire_bytes <= max_bytes);
        assert_eq!(check_offload(pool.bytes(&first), &meta.layout, &meta.offload), Ok(()));
        parts.push(first);
        rest = more;
    }
    assert_eq!(parts.iter().map(|part| pool.meta(part).wire_bytes).sum::<u32>(), counted);
    parts
}

/// What must be found again after cutting.
struct Whole {
    headers: usize,
    segments: u32,
    size: usize,
    plain: bool,
    /// The IPv4 header's checksum is right.
    ipv4_valid: bool,
    /// The partial checksum holds the sum of the pseudo-header.
    partial_valid: bool,
    sequence: Option<u32>,
}

impl Whole {
    fn of(bytes: &[u8], layout: &Layout, offload: &Offload) -> Self {
        let field = usize::from(offload.csum_start) + usize::from(offload.csum_offset);
        let at_transport = offload.needs_csum && offload.csum_start == layout.l4_offset;
        Whole {
            headers: layout.headers(),
            segments: segments(layout, offload),
            size: offload.gso_size.into(),
            plain: offload.gso == Gso::None,
            ipv4_valid: ipv4_sum(bytes, layout) == 0xffff,
            partial_valid: at_transport
                && pseudo(bytes, layout)
                    .is_some_and(|sum| fold(sum) == u16::from_be_bytes([bytes[field], bytes[field + 1]])),
            sequence: Tcp::of(bytes, layout).map(Tcp::sequence),
        }
    }
}

/// What came out, in order.
#[derive(Default)]
struct After {
    frames: u32,
    payload: Vec<u8>,
}

impl After {
    fn add(&mut self, whole: &Whole, pool: &mut Pool, frame: Frame) {
        let (bytes, meta) = (pool.bytes(&frame), pool.meta(&frame));
        assert!(!meta.offload.needs_csum && meta.offload.gso == Gso::None && meta.offload.gso_ecn == GsoEcn::None);
        assert_eq!(parse(bytes), Ok(meta.layout));
        if whole.ipv4_valid {
            assert_eq!(ipv4_sum(bytes, &meta.layout), 0xffff);
        }
        if whole.partial_valid {
            let data = &bytes[usize::from(meta.layout.l4_offset)..meta.layout.end as usize];
            let sum = pseudo(bytes, &meta.layout).expect("as before") + naive_sum(data);
            assert_eq!(fold(sum), 0xffff);
        }
        if let (Some(first), Some(tcp), false) = (whole.sequence, Tcp::of(bytes, &meta.layout), whole.plain) {
            assert_eq!(tcp.sequence(), first.wrapping_add(self.payload.len() as u32));
        }
        self.payload.extend(&bytes[whole.headers..]);
        self.frames += 1;
        pool.free(frame);
    }

    fn is_the(&self, whole: &Whole, bytes: &[u8], cut: u32) {
        if whole.plain {
            assert_eq!(self.frames, 1);
            // Only the two bytes of a checksum, and the mark and what it changes in an IPv4 header,
            // may differ.
            let differ = self.payload.iter().zip(&bytes[whole.headers..]).filter(|(a, b)| a != b).count();
            assert!(self.payload.len() + whole.headers == bytes.len() && differ <= 5);
            return;
        }
        assert_eq!(self.frames, whole.segments - cut);
        let kept = if cut == 0 { bytes.len() } else { whole.headers + self.frames as usize * whole.size };
        assert!(self.payload == bytes[whole.headers..kept]);
    }
}

/// RFC 1071 by its letter. Not folded.
fn naive_sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| (u32::from(pair[0]) << 8) + u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The folded sum over an IPv4 header, 0xffff where it is valid; 0 without one.
fn ipv4_sum(bytes: &[u8], layout: &Layout) -> u16 {
    if layout.l3 != L3::Ipv4 {
        return 0;
    }
    fold(naive_sum(&bytes[usize::from(layout.l3_offset)..usize::from(layout.l4_offset)]))
}

/// The sum of the pseudo-header, for TCP and UDP; none behind a routing header, where the final
/// destination is another.
fn pseudo(bytes: &[u8], layout: &Layout) -> Option<u32> {
    let l3 = usize::from(layout.l3_offset);
    let addresses = match layout.l3 {
        L3::Ipv4 => &bytes[l3 + 12..l3 + 20],
        L3::Ipv6 if usize::from(layout.l4_offset) == l3 + 40 && Ipv6::of(bytes, layout).is_some() => {
            &bytes[l3 + 8..l3 + 40]
        }
        _ => return None,
    };
    let protocol = match layout.l4 {
        L4::Tcp => 6,
        L4::Udp => 17,
        _ => return None,
    };
    Some(naive_sum(addresses) + protocol + layout.end - u32::from(layout.l4_offset))
}
