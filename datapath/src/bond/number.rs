//! Numbers: the position of a frame in what a bond has sent. It is written as the outermost VLAN
//! tag, which segmentation by the kernel or a NIC copies to each segment.
//!
//! Over cables the tag is 802.1Q's, of priority 7, and its id is the number plus one. Drop
//! eligibility marks a number that other frames may have too. While a bond that may number sends
//! without numbers, no frame leaves with a tag that looks like one ([`yield_priority`]). So what
//! looks like a number is one, whatever tags tenants send.
//!
//! Bridges forward by VLAN tags. If they are between two bonds, the number is a shim: the same four
//! bytes under another EtherType ([`Encoding::Shim`]). No kernel or NIC segments frames with a
//! shim, so a frame is cut into segments before it gets its number.

use crate::encap;
use crate::frame::{Frame, Meta, Pool};
use crate::offload::{Gso, Offload};
use crate::segment::{one_wire_bytes, tunnelled_wire_bytes};
use crate::wire::vlan::{self, TAG};
use crate::wire::{be16, destination, ethertype, put16};

/// Numbers go from 0 to this less one: as many as there are usable VLAN ids (1 to 4094).
pub const MODULUS: u16 = 4094;
/// EtherType of the shim: the second one for local experiments (IEEE 802-2014, table 1).
const SHIM: u16 = 0x88b6;

/// How a frame shows its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Encoding {
    /// A VLAN tag: over cables.
    #[default]
    Tag,
    /// A shim: over bridges.
    Shim,
}

impl Encoding {
    /// The EtherType that its four bytes begin with.
    #[must_use]
    #[inline]
    pub fn ethertype(self) -> u16 {
        match self {
            Encoding::Tag => ethertype::VLAN,
            Encoding::Shim => SHIM,
        }
    }
}

/// Offset of the tag: behind both addresses.
const AT: usize = 12;
const PRIORITY: u16 = 7 << 13;
const SHARED: u16 = 1 << 12;

/// A number as a frame shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Number {
    /// Less than [`MODULUS`].
    pub value: u16,
    /// Whether other frames may have the same value.
    pub is_shared: bool,
}

impl Number {
    /// The one for the `full`th frame.
    #[must_use]
    #[inline]
    pub fn new(full: u64, is_shared: bool) -> Number {
        Number { value: (full % u64::from(MODULUS)) as u16, is_shared }
    }

    /// The tag's contents.
    #[must_use]
    #[inline]
    pub fn tci(self) -> u16 {
        PRIORITY | if self.is_shared { SHARED } else { 0 } | (self.value + 1)
    }

    /// The number in a tag's contents; `None` if they are no number.
    #[must_use]
    #[inline]
    pub fn of(tci: u16) -> Option<Number> {
        let id = tci & vlan::MOST;
        let is_number = tci & PRIORITY == PRIORITY && (1..=MODULUS).contains(&id);
        is_number.then(|| Number { value: id - 1, is_shared: tci & SHARED != 0 })
    }
}

/// The number that a frame shows. A frame for a reserved address has none, whatever its tag.
#[inline]
#[must_use]
pub fn read(bytes: &[u8]) -> Option<Number> {
    if bytes.len() < AT + TAG + 2 || !matches!(be16(bytes, AT), ethertype::VLAN | SHIM) {
        return None;
    }
    let to = destination(bytes);
    if to.is_group() && to.is_reserved() {
        return None;
    }
    Number::of(be16(bytes, AT + 2))
}

/// Whether the number that a frame shows ([`read`]) is a shim, and no tag.
#[must_use]
pub fn is_shim(bytes: &[u8]) -> bool {
    be16(bytes, AT) == SHIM
}

/// Writes a number onto a frame, whose layout is known. False, and nothing changed, if there is no
/// headroom.
#[must_use = "the frame may be as it was"]
#[inline]
pub fn put_on(pool: &mut Pool, frame: &Frame, number: Number, encoding: Encoding) -> bool {
    let Some((bytes, meta)) = encap::vlan::push_and_look(pool, frame, number.tci()) else { return false };
    set(bytes, meta, encoding);
    meta.wire_bytes = tunnelled_wire_bytes(bytes.len(), &meta.layout, &meta.offload, meta.outer);
    true
}

/// The same as a tag, for a frame that need not be segmented, if `may` returns true; returns its
/// length and its metadata.
#[inline(always)]
pub(super) fn put_on_one<'a>(
    pool: &'a mut Pool,
    frame: &Frame,
    number: Number,
    may: impl FnOnce(&Meta) -> bool,
) -> Option<(usize, &'a mut Meta)> {
    let may = |meta: &Meta| meta.offload.gso == Gso::None && may(meta);
    let (bytes, meta) = pool.grow_front_where(frame, TAG as u16, may)?;
    encap::vlan::write(bytes, meta, number.tci());
    meta.wire_bytes = one_wire_bytes(bytes.len(), meta.outer);
    Some((bytes.len(), meta))
}

/// Changes a tag that was just written to the encoding: a shim is no VLAN tag, and adds to what
/// interfaces count.
#[inline(always)]
fn set(bytes: &mut [u8], meta: &mut Meta, encoding: Encoding) {
    if encoding == Encoding::Shim {
        put16(bytes, AT, SHIM);
        meta.layout.vlan = None;
    }
}

/// What [`take_off`] leaves of a frame that shows a number.
#[must_use]
pub fn without(bytes: &[u8], offload: &Offload) -> (Vec<u8>, Offload) {
    let (mut bytes, mut offload) = (bytes.to_vec(), *offload);
    bytes.drain(AT..AT + TAG);
    if offload.needs_csum {
        offload.csum_start = offload.csum_start.wrapping_sub(TAG as u16);
    }
    (bytes, offload)
}

/// Takes the number off a frame that shows one. Its layout is not known yet.
#[inline]
pub fn take_off(pool: &mut Pool, frame: &Frame) {
    let Some((bytes, meta)) = pool.shrink_front(frame, TAG as u16) else { return };
    if let Some(front) = bytes.first_chunk_mut::<{ AT + TAG }>() {
        // Shifted as one little-endian integer.
        *front = (u128::from_le_bytes(*front) << (TAG * 8)).to_le_bytes();
    }
    if meta.offload.needs_csum {
        meta.offload.csum_start = meta.offload.csum_start.wrapping_sub(TAG as u16);
    }
}

/// A frame without a number must not look like one with a number: its sender's tag gets the next
/// lower priority. False if what looks like a number is a shim.
#[inline]
#[must_use]
pub fn yield_priority(bytes: &mut [u8]) -> bool {
    if read(bytes).is_some() {
        if is_shim(bytes) {
            return false;
        }
        let tci = be16(bytes, AT + 2);
        put16(bytes, AT + 2, tci & !(1 << 13));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::PoolLimits;
    use crate::wire::build::eth;
    use crate::wire::{Mac, parse};

    #[test]
    fn a_number_is_a_tag_of_its_own_priority() {
        for full in [0, 1, 4093, 4094, u64::MAX] {
            for is_shared in [false, true] {
                let number = Number::new(full, is_shared);
                assert_eq!(Number::of(number.tci()), Some(number));
                assert!((1..=4094).contains(&(number.tci() & vlan::MOST)));
            }
        }
        for tci in [0, 10, 0xe000, 0xefff, 0xc00a] {
            assert_eq!(Number::of(tci), None, "{tci:x}");
        }
    }

    #[test]
    fn it_goes_on_and_comes_off_in_front_of_a_tenants_tag() {
        let mut pool = Pool::new(PoolLimits { small: 4, medium: 0, large: 0 });
        let before = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])).vlan(10).payload(vec![7; 100]).bytes();
        let frame = pool.alloc_from(&before).expect("room");
        assert_eq!(read(&before), None);
        for encoding in [Encoding::Tag, Encoding::Shim] {
            pool.meta_mut(&frame).layout = parse(&before).expect("sound");
            assert!(put_on(&mut pool, &frame, Number::new(4093, true), encoding));
            assert_eq!(read(pool.bytes(&frame)), Some(Number { value: 4093, is_shared: true }));
            assert_eq!(be16(pool.bytes(&frame), AT), encoding.ethertype());
            let meta = pool.meta(&frame);
            assert_eq!(
                (meta.wire_bytes as usize, meta.layout.vlan.is_some()),
                (before.len() + 4 + 24, encoding == Encoding::Tag)
            );
            take_off(&mut pool, &frame);
            assert_eq!(pool.bytes(&frame), before);
        }
        pool.free(frame);
    }

    #[test]
    fn what_a_guest_tags_is_taken_for_no_number() {
        let mut bytes = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])).vlan(10).payload(vec![7; 100]).bytes();
        put16(&mut bytes, AT + 2, Number::new(9, false).tci());
        assert!(read(&bytes).is_some());
        assert!(yield_priority(&mut bytes));
        assert_eq!((read(&bytes), be16(&bytes, AT + 2)), (None, 0xc00a), "the id stays");
        put16(&mut bytes, AT, SHIM);
        assert!(yield_priority(&mut bytes), "it is no number");
        put16(&mut bytes, AT + 2, Number::new(9, false).tci());
        assert!(!yield_priority(&mut bytes));
    }
}
