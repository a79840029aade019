//! Putting an 802.1Q tag on a frame and taking it off, inside the frame's headroom.
//!
//! Layout and offload metadata move along. `Meta::wire_bytes` does not: whoever counts the frame
//! afterwards works it out again.

use crate::frame::{Frame, Meta, Pool};
use crate::wire::vlan::{MOST, TAG};
use crate::wire::{be16, ethertype, parse};

/// Both addresses: what lies before the tag.
const ADDRESSES: usize = 12;

/// Puts a tag with `tci` (priority, drop eligibility and VLAN id, as on the wire) before the tags
/// that the frame may have. False, and nothing changed, where there is no headroom left.
#[must_use = "the frame may be as it was"]
pub fn push(pool: &mut Pool, frame: &Frame, tci: u16) -> bool {
    push_and_look(pool, frame, tci).is_some()
}

/// The same, and gives the tagged frame's bytes and its metadata.
#[inline(always)]
#[must_use = "the frame may be as it was"]
pub(crate) fn push_and_look<'a>(pool: &'a mut Pool, frame: &Frame, tci: u16) -> Option<(&'a mut [u8], &'a mut Meta)> {
    let (bytes, meta) = pool.grow_front(frame, TAG as u16)?;
    write(bytes, meta, tci);
    Some((bytes, meta))
}

/// Writes a tag into what a frame has grown by.
#[inline(always)]
pub(crate) fn write(bytes: &mut [u8], meta: &mut Meta, tci: u16) {
    if let Some(front) = bytes.first_chunk_mut::<{ ADDRESSES + TAG }>() {
        // As one number, of which the first byte is the lowest.
        let addresses = u128::from_le_bytes(*front) >> (TAG * 8);
        let tag = u32::from(ethertype::VLAN.swap_bytes()) | u32::from(tci.swap_bytes()) << 16;
        *front = (addresses | u128::from(tag) << (ADDRESSES * 8)).to_le_bytes();
    }
    shift(meta, TAG as i16);
    meta.layout.vlan = Some(tci & MOST);
}

/// Takes the outermost tag off; returns its `tci`. `None`, and nothing changed, where the frame has
/// none. What lies behind a second tag is then known, where it was not before; if it is malformed
/// it stays unknown.
pub fn pop(pool: &mut Pool, frame: &Frame) -> Option<u16> {
    pool.meta(frame).layout.vlan?;
    let (bytes, meta) = pool.parts_mut(frame);
    let tci = be16(bytes, ADDRESSES + 2);
    bytes.copy_within(..ADDRESSES, TAG);
    let bytes = &bytes[TAG..];
    shift(meta, -(TAG as i16));
    meta.layout.vlan = None;
    if be16(bytes, ADDRESSES) == ethertype::VLAN {
        meta.layout = parse(bytes).unwrap_or(meta.layout);
    }
    pool.pull_front(frame, TAG);
    Some(tci)
}

#[inline(always)]
fn shift(meta: &mut Meta, by: i16) {
    meta.layout.shift(by);
    if meta.offload.needs_csum {
        meta.offload.csum_start = meta.offload.csum_start.wrapping_add_signed(by);
    }
}
