//! What the switch reads off a frame: its headers once, when it enters, and then what the stages
//! ask.

use crate::frame::{Frame, Meta, Pool};
use crate::offload::{Gso, Offload};
use crate::segment;
use crate::stats::Traffic;
use crate::verdict::Reason;
use crate::wire::{self, Layout, Mac, vlan};

/// Reads a frame's headers and checks its offload metadata; fills in its layout and wire bytes.
pub(super) fn parse(pool: &mut Pool, frame: &Frame) -> Result<(), Reason> {
    let (bytes, meta) = pool.parts_mut(frame);
    parse_parts(bytes, meta)
}

/// The same, for where it is most often called.
#[inline(always)]
pub(super) fn parse_parts(bytes: &[u8], meta: &mut Meta) -> Result<(), Reason> {
    wire::locate(bytes, &mut meta.layout)?;
    meta.flow = None;
    if !meta.offload.is_done() {
        return parse_offload(bytes, meta);
    }
    meta.wire_bytes = segment::tunnelled_wire_bytes(bytes.len(), &meta.layout, &Offload::default(), meta.outer);
    Ok(())
}

#[inline(never)]
fn parse_offload(bytes: &[u8], meta: &mut Meta) -> Result<(), Reason> {
    segment::check_offload(bytes, &meta.layout, &meta.offload)?;
    meta.offload.gso_ecn = segment::meaning_of_cwr(bytes, &meta.layout, &meta.offload);
    meta.wire_bytes = segment::tunnelled_wire_bytes(bytes.len(), &meta.layout, &meta.offload, meta.outer);
    Ok(())
}

pub(super) fn count_wire_bytes(pool: &mut Pool, frame: &Frame) {
    let (bytes, meta) = pool.parts_mut(frame);
    meta.wire_bytes = segment::tunnelled_wire_bytes(bytes.len(), &meta.layout, &meta.offload, meta.outer);
}

#[inline(always)]
pub(super) fn count_traffic(pool: &Pool, frame: &Frame, traffic: &mut Traffic) {
    traffic.add(segments(pool, frame), pool.len(frame), pool.meta(frame).wire_bytes);
}

#[inline]
pub(super) fn segments(pool: &Pool, frame: &Frame) -> u32 {
    let meta = pool.meta(frame);
    segment::segments(&meta.layout, &meta.offload)
}

/// Bytes of the longest frame that this one will be on the wire, without a VLAN tag.
#[inline]
pub(super) fn longest_segment(pool: &Pool, frame: &Frame) -> u32 {
    let meta = pool.meta(frame);
    longest_of(pool.len(frame), &meta.layout, &meta.offload)
}

/// The same of a frame of `len` bytes.
#[inline]
pub(super) fn longest_of(len: usize, layout: &Layout, offload: &Offload) -> u32 {
    let whole = match offload.gso {
        Gso::None => len as u32,
        _ => u32::from(layout.payload_offset) + u32::from(offload.gso_size),
    };
    whole - if layout.vlan.is_some() { vlan::TAG as u32 } else { 0 }
}

pub(super) fn drop_for(pool: &mut Pool, frame: Frame, reason: Reason) -> Result<(), Reason> {
    pool.free(frame);
    Err(reason)
}

#[inline]
pub(super) fn destination(bytes: &[u8]) -> Mac {
    Mac(bytes[..6].try_into().unwrap_or_default())
}

#[inline]
pub(super) fn source(bytes: &[u8]) -> Mac {
    Mac(bytes[6..12].try_into().unwrap_or_default())
}
