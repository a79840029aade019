//! What the switch reads off a frame: its headers once, when it enters, and then what the stages ask.

use crate::frame::{Frame, Pool};
use crate::offload::Gso;
use crate::segment;
use crate::stats::Traffic;
use crate::verdict::Reason;
use crate::wire::{self, Mac, vlan};

/// Reads a frame's headers and checks its offload metadata; fills in its layout and wire bytes.
pub(super) fn look(pool: &mut Pool, frame: &Frame) -> Result<(), Reason> {
    let (bytes, meta) = pool.parts_mut(frame);
    meta.layout = wire::parse(bytes)?;
    meta.flow = None;
    segment::check_offload(bytes, &meta.layout, &meta.offload)?;
    meta.wire_bytes = segment::tunnelled_wire_bytes(bytes.len(), &meta.layout, &meta.offload, meta.outer);
    Ok(())
}

pub(super) fn count_wire_bytes(pool: &mut Pool, frame: &Frame) {
    let (bytes, meta) = pool.parts_mut(frame);
    meta.wire_bytes = segment::tunnelled_wire_bytes(bytes.len(), &meta.layout, &meta.offload, meta.outer);
}

pub(super) fn count_traffic(pool: &Pool, frame: &Frame, traffic: &mut Traffic) {
    traffic.add(segments(pool, frame), pool.len(frame), pool.meta(frame).wire_bytes);
}

pub(super) fn segments(pool: &Pool, frame: &Frame) -> u32 {
    let meta = pool.meta(frame);
    segment::segments(&meta.layout, &meta.offload)
}

/// Bytes of the longest frame that this one will be on the wire, without a VLAN tag.
pub(super) fn longest_segment(pool: &Pool, frame: &Frame) -> u32 {
    let meta = pool.meta(frame);
    let whole = match meta.offload.gso {
        Gso::None => pool.len(frame) as u32,
        _ => u32::from(meta.layout.payload_offset) + u32::from(meta.offload.gso_size),
    };
    whole - if meta.layout.vlan.is_some() { vlan::TAG as u32 } else { 0 }
}

pub(super) fn drop_for(pool: &mut Pool, frame: Frame, reason: Reason) -> Result<(), Reason> {
    pool.free(frame);
    Err(reason)
}

pub(super) fn destination(bytes: &[u8]) -> Mac {
    Mac(bytes[..6].try_into().unwrap_or_default())
}

pub(super) fn source(bytes: &[u8]) -> Mac {
    Mac(bytes[6..12].try_into().unwrap_or_default())
}
