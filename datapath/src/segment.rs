//! Segmentation: cutting offloaded frames, counting what they take on the wire, and doing in
//! software what a port cannot.
//!
//! An offloaded frame is one set of headers before the payload of many segments. Cutting it in two
//! means giving each part the headers and correcting them as the sender's own segmentation would
//! have: lengths, IPv4's identification, TCP's sequence number and flags (RFC 9293; CWR: RFC 3168,
//! section 6.1.2), and the length in the pseudo-header sum that a partial checksum holds. What the
//! switch is handed may come from a hostile guest: [`check_offload`] must have accepted a frame
//! before anything else here sees it, and it keeps the promise that a partial checksum, once
//! finished, changes no header that the guard has looked at.

use crate::checksum;
use crate::frame::{Frame, Meta, Pool};
use crate::offload::{Gso, GsoEcn, Offload, OffloadSupport};
use crate::verdict::Reason;
use crate::wire::{L3, L4, Layout, Udp, be16, be32, ipv4, ipv6, put16, put32, tcp_flags, transport, vlan};

/// What a frame takes on an Ethernet wire beside its bytes: preamble and start delimiter 8, FCS 4,
/// gap 12 (IEEE 802.3-2018).
pub const WIRE_OVERHEAD: u32 = 24;
/// The shortest frame without its FCS, in bytes: shorter ones are padded.
pub const MIN_FRAME: u32 = 60;
/// The most segments one frame may have. TCP's smallest segment size, 48, less 12 bytes of
/// timestamps makes 1821 of 64 KiB, and Linux cuts UDP into at most 128; without a bound, a guest
/// could have one frame made into 65 000.
pub const MAX_SEGMENTS: u32 = 2048;

/// Whether offload metadata agree with the frame that they came with.
///
/// # Errors
/// [`Reason::BadOffload`] where they do not.
#[inline]
pub fn check_offload(bytes: &[u8], layout: &Layout, offload: &Offload) -> Result<(), Reason> {
    let checksum = !offload.needs_csum || checksum_fits(layout, offload);
    let gso = match offload.gso {
        Gso::None => offload.gso_ecn == GsoEcn::None,
        _ => gso_fits(bytes, layout, offload),
    };
    if checksum && gso { Ok(()) } else { Err(Reason::BadOffload) }
}

/// The sum must start behind all headers that the guard looks at, and be stored where the protocol
/// has its checksum. Behind a UDP header it may be anywhere: the checksum of what a tunnel carries.
fn checksum_fits(layout: &Layout, offload: &Offload) -> bool {
    let start = usize::from(offload.csum_start);
    let offset = usize::from(offload.csum_offset);
    if layout.fragment || start + offset + 2 > layout.end as usize {
        return false;
    }
    let l4 = usize::from(layout.l4_offset);
    match (layout.l3, layout.l4) {
        (L3::Arp, _) => false,
        (L3::Other, _) => start >= usize::from(layout.l3_offset),
        (_, L4::Tcp) => start == l4 && offset == transport::TCP_CHECKSUM,
        (_, L4::Udp) => (start == l4 && offset == transport::UDP_CHECKSUM) || start >= layout.headers(),
        (_, L4::Icmp | L4::Icmpv6) => start == l4 && offset == transport::ICMP_CHECKSUM,
        (_, L4::Other) => start >= l4,
    }
}

/// What CWR means in a frame whose offload metadata fit it: whoever gives the frame can only say
/// that it is RFC 3168's, so where that is not said it is AccECN's.
#[must_use]
#[inline]
pub fn meaning_of_cwr(bytes: &[u8], layout: &Layout, offload: &Offload) -> GsoEcn {
    let is_tcp = matches!(offload.gso, Gso::Tcp4 | Gso::Tcp6);
    let flags = || bytes.get(usize::from(layout.l4_offset) + transport::TCP_FLAGS).copied().unwrap_or(0);
    match offload.gso_ecn {
        GsoEcn::None if is_tcp && flags() & tcp_flags::CWR != 0 => GsoEcn::Ace,
        said => said,
    }
}

fn gso_fits(bytes: &[u8], layout: &Layout, offload: &Offload) -> bool {
    let kind = match offload.gso {
        Gso::Tcp4 => layout.l3 == L3::Ipv4 && layout.l4 == L4::Tcp,
        Gso::Tcp6 => layout.l3 == L3::Ipv6 && layout.l4 == L4::Tcp,
        // The datagram must fill the packet; its length is rewritten in each part.
        Gso::Udp => Udp::of(bytes, layout).is_some_and(|udp| {
            let fills = u32::from(udp.length()) + u32::from(layout.l4_offset) == layout.end;
            fills && offload.gso_ecn == GsoEcn::None
        }),
        Gso::None => false,
    };
    let size = usize::from(offload.gso_size);
    // A segmented frame needs its checksum finished: so `checksum_fits` has refused fragments.
    kind && offload.needs_csum
        && offload.csum_start == layout.l4_offset
        && layout.end as usize == bytes.len()
        && size > 0
        && size <= bytes.len() - layout.headers()
        && segments(layout, offload) <= MAX_SEGMENTS
}

/// Frames that this one becomes on the wire.
#[must_use]
#[inline]
pub fn segments(layout: &Layout, offload: &Offload) -> u32 {
    if offload.gso == Gso::None || offload.gso_size == 0 {
        return 1;
    }
    layout.end.saturating_sub(u32::from(layout.payload_offset)).div_ceil(u32::from(offload.gso_size)).max(1)
}

/// Bytes that a frame of `len` bytes takes on the wire: payload + segments x (headers +
/// [`WIRE_OVERHEAD`]), short frames padded.
#[must_use]
#[inline]
pub fn wire_bytes(len: usize, layout: &Layout, offload: &Offload) -> u32 {
    tunnelled_wire_bytes(len, layout, offload, 0)
}

/// The same where each segment has `outer` bytes of a tunnel's headers around it.
#[must_use]
#[inline]
pub fn tunnelled_wire_bytes(len: usize, layout: &Layout, offload: &Offload, outer: u8) -> u32 {
    if offload.gso == Gso::None {
        return one_wire_bytes(len, outer);
    }
    let (len, outer) = (len as u32, u32::from(outer));
    let headers = u32::from(layout.payload_offset) + outer;
    let full = segments(layout, offload) - 1;
    let last = len + outer - full * u32::from(offload.gso_size);
    full * full_segment(headers, offload) + last.max(MIN_FRAME) + WIRE_OVERHEAD
}

/// The same of a frame that is not to be cut.
#[must_use]
#[inline]
pub fn one_wire_bytes(len: usize, outer: u8) -> u32 {
    (len as u32 + u32::from(outer)).max(MIN_FRAME) + WIRE_OVERHEAD
}

/// Wire bytes of a segment that is not the last.
fn full_segment(headers: u32, offload: &Offload) -> u32 {
    (headers + u32::from(offload.gso_size)).max(MIN_FRAME) + WIRE_OVERHEAD
}

/// Wire bytes of a frame's segment that is not the last; of the frame itself where it is only one.
#[must_use]
pub fn segment_bytes(meta: &Meta) -> u32 {
    if segments(&meta.layout, &meta.offload) == 1 {
        return meta.wire_bytes.max(1);
    }
    full_segment(u32::from(meta.layout.payload_offset) + u32::from(meta.outer), &meta.offload)
}

/// Cuts off as many segments as take at most `max_bytes` on the wire, at least one. Gives that part
/// and the rest, if there is one. Where the pool has no buffer for the cut, the frame stays whole.
pub fn split(pool: &mut Pool, frame: Frame, max_bytes: u32) -> (Frame, Option<Frame>) {
    split_at_most(pool, frame, max_bytes, u32::MAX)
}

/// The same, and at most `most` segments.
pub fn split_at_most(pool: &mut Pool, frame: Frame, max_bytes: u32, most: u32) -> (Frame, Option<Frame>) {
    let Meta { layout, offload, outer, .. } = *pool.meta(&frame);
    if offload.gso == Gso::None
        || (tunnelled_wire_bytes(pool.len(&frame), &layout, &offload, outer) <= max_bytes
            && segments(&layout, &offload) <= most)
    {
        return (frame, None);
    }
    let fit = max_bytes / full_segment(u32::from(layout.payload_offset) + u32::from(outer), &offload);
    match cut(pool, frame, fit.clamp(1, most)) {
        Ok((first, rest)) => (first, Some(rest)),
        Err(frame) => (frame, None),
    }
}

/// What is one segment of an offloaded frame, and no more, is a frame that is not to be cut. False
/// where there are more.
pub fn set_single(meta: &mut Meta) -> bool {
    if segments(&meta.layout, &meta.offload) > 1 {
        return false;
    }
    let offload = &mut meta.offload;
    (offload.gso, offload.gso_size, offload.gso_ecn) = (Gso::None, 0, GsoEcn::None);
    true
}

/// Cuts a frame behind its first `count` segments. Gives the frame back where it has no more than
/// these, or there is no buffer.
///
/// The shorter part is copied to a new buffer; the longer stays where it is, and if that is the
/// rest, a copy of the headers is written over the payload just before it. So cutting a frame up,
/// however small the parts, copies each byte once at most: 64 KiB into 45 segments took 65 ns a
/// cut, where copying the rest each time took 1000.
pub(crate) fn cut(pool: &mut Pool, frame: Frame, count: u32) -> Result<(Frame, Frame), Frame> {
    let before = *pool.meta(&frame);
    let (len, headers) = (pool.len(&frame), before.layout.headers());
    let moved = count as usize * usize::from(before.offload.gso_size);
    let Some(rest_len) = len.checked_sub(moved).filter(|&rest| rest > headers) else {
        return Err(frame);
    };
    let first_len = headers + moved;
    let stays = first_len <= rest_len && pool.may_begin_later(&frame, moved);
    let Some(copy) = pool.alloc(if stays { first_len } else { rest_len }) else {
        return Err(frame);
    };
    let (first, rest) = if stays {
        pool.copy(&frame, 0, &copy, 0, first_len);
        pool.bytes_mut(&frame).copy_within(..headers, moved);
        pool.pull_front(&frame, moved);
        (copy, frame)
    } else {
        pool.copy(&frame, 0, &copy, 0, headers);
        pool.copy(&frame, first_len, &copy, headers, rest_len - headers);
        pool.set_len(&frame, first_len);
        (frame, copy)
    };
    *pool.meta_mut(&first) = before;
    *pool.meta_mut(&rest) = before;
    correct(pool, &first, 0, false);
    correct(pool, &rest, count, true);
    Ok((first, rest))
}

/// Cuts `count` segments off the tail, but not the first one. Says how many it cut.
pub fn trim(pool: &mut Pool, frame: &Frame, count: u32) -> u32 {
    let Meta { layout, offload, .. } = *pool.meta(frame);
    let all = segments(&layout, &offload);
    let kept = all.saturating_sub(count).max(1);
    if kept < all {
        pool.set_len(frame, layout.headers() + kept as usize * usize::from(offload.gso_size));
        correct(pool, frame, 0, false);
    }
    all - kept
}

/// Corrects the headers and the metadata of a part of an offloaded frame. The part has its final
/// length; its headers and metadata are still those of the whole, of which `skipped` segments lie
/// before it, and `last` says whether it has the whole's end.
fn correct(pool: &mut Pool, part: &Frame, skipped: u32, last: bool) {
    let (bytes, meta) = pool.parts_mut(part);
    let Meta { layout, offload, .. } = meta;
    correct_headers(bytes, layout, offload, skipped, last);
    layout.end = bytes.len() as u32;
    if skipped > 0 && offload.gso_ecn == GsoEcn::Cwr {
        offload.gso_ecn = GsoEcn::None;
    }
    if segments(layout, offload) == 1 {
        (offload.gso, offload.gso_size, offload.gso_ecn) = (Gso::None, 0, GsoEcn::None);
    }
    meta.wire_bytes = tunnelled_wire_bytes(bytes.len(), &meta.layout, &meta.offload, meta.outer);
}

/// The headers alone; `layout` and `offload` are the whole's.
fn correct_headers(bytes: &mut [u8], layout: &Layout, offload: &Offload, skipped: u32, last: bool) {
    let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
    let old_len = (layout.end as usize - l4) as u16;
    let new_len = (bytes.len() - l4) as u16;
    match layout.l3 {
        L3::Ipv4 => {
            let id = be16(bytes, l3 + ipv4::ID);
            replace_ipv4(bytes, l3, ipv4::TOTAL_LEN, (bytes.len() - l3) as u16);
            replace_ipv4(bytes, l3, ipv4::ID, id.wrapping_add(skipped as u16));
        }
        L3::Ipv6 => {
            let others = be16(bytes, l3 + ipv6::PAYLOAD_LEN) - old_len;
            put16(bytes, l3 + ipv6::PAYLOAD_LEN, others + new_len);
        }
        _ => {}
    }
    if layout.l4 == L4::Tcp {
        let sequence = be32(bytes, l4 + transport::TCP_SEQUENCE);
        put32(bytes, l4 + transport::TCP_SEQUENCE, sequence.wrapping_add(skipped * u32::from(offload.gso_size)));
        bytes[l4 + transport::TCP_FLAGS] &= !flags_elsewhere(offload, skipped, last);
    } else {
        put16(bytes, l4 + transport::UDP_LENGTH, new_len);
    }
    let field = usize::from(offload.csum_start) + usize::from(offload.csum_offset);
    let pseudo = checksum::add(be16(bytes, field), !old_len);
    put16(bytes, field, checksum::add(pseudo, new_len));
}

/// Writes one segment of an offloaded frame to the front of `out`, with its own headers and a whole
/// checksum. Says how long it is.
pub fn write_segment(bytes: &[u8], layout: &Layout, offload: &Offload, index: u32, out: &mut [u8]) -> usize {
    let (headers, size) = (layout.headers(), usize::from(offload.gso_size));
    let from = headers + index as usize * size;
    let to = bytes.len().min(from + size);
    let out = &mut out[..headers + to - from];
    out[..headers].copy_from_slice(&bytes[..headers]);
    out[headers..].copy_from_slice(&bytes[from..to]);
    correct_headers(out, layout, offload, index, to == bytes.len());
    complete(out, layout.l4, offload);
    out.len()
}

/// TCP flags that belong to other segments than these: the end of the data to the last, and CWR to
/// the first where it is RFC 3168's.
fn flags_elsewhere(offload: &Offload, skipped: u32, last: bool) -> u8 {
    let end = if last { 0 } else { tcp_flags::FIN | tcp_flags::PSH };
    let start = if offload.gso_ecn == GsoEcn::Cwr && skipped > 0 { tcp_flags::CWR } else { 0 };
    end | start
}

/// Changes a 16-bit field of the IPv4 header at `l3`, and its checksum accordingly.
#[inline]
pub(crate) fn replace_ipv4(bytes: &mut [u8], l3: usize, field: usize, value: u16) {
    let header = &mut bytes[l3..l3 + ipv4::LEN];
    let header_checksum = checksum::update(be16(header, ipv4::CHECKSUM), be16(header, field), value);
    put16(header, field, value);
    put16(header, ipv4::CHECKSUM, header_checksum);
}

/// Does what the leaving port cannot: cuts the frame into pieces that it takes, finishes checksums
/// that it does not, and gives each piece to `out`, in order. `max_frame` is the longest frame that
/// the port sends, Ethernet header included, VLAN tag not.
///
/// # Errors
/// [`Reason::TooLong`] where a segment is longer than `max_frame` (nothing is given out then: IP
/// packets are not fragmented), and [`Reason::NoBuffer`] where the pool has none (for what was not
/// given out yet). The frame is freed.
pub fn software(
    pool: &mut Pool,
    frame: Frame,
    support: OffloadSupport,
    max_frame: usize,
    out: &mut impl FnMut(&mut Pool, Frame),
) -> Result<(), Reason> {
    let Meta { layout, offload, .. } = *pool.meta(&frame);
    let longest = match offload.gso {
        Gso::None => pool.len(&frame),
        _ => layout.headers() + usize::from(offload.gso_size),
    };
    let tag = if layout.vlan.is_some() { vlan::TAG } else { 0 };
    if longest > max_frame + tag {
        pool.free(frame);
        return Err(Reason::TooLong);
    }
    let mut rest = frame;
    loop {
        let (first, more) = piece(pool, rest, support)?;
        out(pool, first);
        match more {
            Some(more) => rest = more,
            None => return Ok(()),
        }
    }
}

/// One step of [`software`], for a frame whose segments are not too long: the first piece that the
/// port takes, and the rest, if there is one.
///
/// # Errors
/// [`Reason::NoBuffer`] where the pool has none. The frame is freed.
pub fn piece(pool: &mut Pool, frame: Frame, support: OffloadSupport) -> Result<(Frame, Option<Frame>), Reason> {
    let Meta { layout, offload, .. } = *pool.meta(&frame);
    if support.takes(&offload) {
        return Ok((frame, None));
    }
    if segments(&layout, &offload) == 1 {
        finish(pool, &frame, support);
        return Ok((frame, None));
    }
    match cut(pool, frame, 1) {
        Ok((first, rest)) => {
            finish(pool, &first, support);
            Ok((first, Some(rest)))
        }
        Err(frame) => {
            pool.free(frame);
            Err(Reason::NoBuffer)
        }
    }
}

/// Makes a frame of one segment a plain one, and completes its partial checksum unless the port
/// does.
fn finish(pool: &mut Pool, frame: &Frame, support: OffloadSupport) {
    let (bytes, Meta { layout, offload, .. }) = pool.parts_mut(frame);
    (offload.gso, offload.gso_size, offload.gso_ecn) = (Gso::None, 0, GsoEcn::None);
    if !offload.needs_csum || support.csum {
        return;
    }
    complete(&mut bytes[..layout.end as usize], layout.l4, offload);
    offload.needs_csum = false;
    offload.csum_valid = true;
}

/// Completes a partial checksum that goes to the end of `bytes`.
fn complete(bytes: &mut [u8], l4: L4, offload: &Offload) {
    let start = usize::from(offload.csum_start);
    let field = start + usize::from(offload.csum_offset);
    let value = !checksum::sum(&bytes[start..]);
    // In UDP zero means that there is none (RFC 768); other protocols take all ones for zero as
    // well, but do not need it.
    put16(bytes, field, if value == 0 && l4 != L4::Tcp { 0xffff } else { value });
}

/// Congestion experienced (RFC 3168): both bits of the ECN field.
const CE: u8 = 3;

/// Whether a packet's transport can bear a mark (RFC 3168).
#[must_use]
pub fn is_capable(bytes: &[u8], layout: &Layout) -> bool {
    let l3 = usize::from(layout.l3_offset);
    match layout.l3 {
        L3::Ipv4 => bytes[l3 + 1] & CE != 0,
        L3::Ipv6 => bytes[l3 + 1] & (CE << 4) != 0,
        _ => false,
    }
}

/// Marks a packet whose transport can bear it as having met congestion (RFC 3168). False, and
/// nothing changed, where it cannot.
pub fn mark_ce(bytes: &mut [u8], layout: &Layout) -> bool {
    let l3 = usize::from(layout.l3_offset);
    match layout.l3 {
        L3::Ipv4 => {
            let word = be16(bytes, l3);
            let capable = word & u16::from(CE) != 0;
            if capable {
                replace_ipv4(bytes, l3, 0, word | u16::from(CE));
            }
            capable
        }
        L3::Ipv6 => {
            // The traffic class lies across the first two bytes.
            let capable = bytes[l3 + 1] & (CE << 4) != 0;
            if capable {
                bytes[l3 + 1] |= CE << 4;
            }
            capable
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
