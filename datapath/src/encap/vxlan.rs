//! VXLAN (RFC 7348): a tenant's frame inside UDP over IPv4 or IPv6, from the tunnel endpoint (VTEP)
//! of one host to another's.
//!
//! [`push`] puts the outer headers into a frame's headroom, [`pop`] takes them off. Outside, a
//! frame has don't-fragment (a VTEP may not fragment, section 4.3), a time to live of [`TTL`], and
//! no priority but the default: a guest is not to choose how the network between hosts treats it.
//! The outer ECN field is the inner one's, and a mark that the frame met on its way is carried over
//! to the inner header (RFC 6040, section 4, normal mode). The source port is made of the inner
//! flow, so that the network spreads flows over its paths and keeps each in order; over IPv6 the
//! flow label is made of it, for routers that look at that (RFC 6438).
//!
//! Over IPv4 there is no UDP checksum (what is inside has its own; section 4.1 wants zero). Over
//! IPv6, whose header has none either, there is one: RFC 6935 lets tunnels do without, but
//! receivers must be told to take that, and Linux's vxlan device does only with `udp6zerocsumrx`.
//! It costs no pass over the data: a checksum inside that is left to the device makes what is
//! summed known ([`seal`]), and where there is none the device is left this one. Datagrams without
//! one are taken: their addresses are checked, as RFC 6936 (section 5) asks, since both must be
//! known ends.

use crate::checksum;
use crate::frame::{Frame, Pool};
use crate::offload::{Gso, Offload};
use crate::segment;
use crate::verdict::Reason;
use crate::wire::{
    ETHERNET_HEADER, FlowKey, L3, L4, Layout, Mac, be16, be32, ethertype, ipv4, ipv6, parse, protocol, put16, put32,
    transport,
};
use core::net::{IpAddr, Ipv6Addr};
use std::hash::BuildHasher;

/// The UDP port of VXLAN (IANA).
pub const PORT: u16 = 4789;
/// The largest network identifier.
pub const MOST: u32 = 0x00ff_ffff;
/// Bytes of an IPv4 header without options, and of an IPv6 header.
const IPV4: usize = 20;
const IPV6: usize = 40;
/// Bytes of a UDP header.
const UDP: usize = 8;
/// Bytes of a VXLAN header.
pub(crate) const VXLAN: usize = 8;
/// Bytes of all outer headers: Ethernet, IPv4 or IPv6, UDP, VXLAN.
pub const OUTER_V4: usize = ETHERNET_HEADER + IPV4 + UDP + VXLAN;
/// The same over IPv6.
pub const OUTER_V6: usize = ETHERNET_HEADER + IPV6 + UDP + VXLAN;
/// The outer time to live, or hop limit: IANA's recommended default.
pub const TTL: u8 = 64;
/// The flag that says that the identifier counts.
const HAS_VNI: u8 = 0x08;
/// The ephemeral ports, from which RFC 7348 has the source port come: the first, and how many there
/// are.
const EPHEMERAL: (u16, u16) = (49_152, 16_384);
/// IPv4's flags and fragment offset: don't fragment; more fragments or an offset.
const DONT_FRAGMENT: u16 = 0x4000;
const FRAGMENT: u16 = 0x3fff;

/// What differs between the outer headers of two tunnels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunnel {
    /// Addresses of the host that sends: its own on the underlay, and its interface's.
    pub from: (IpAddr, Mac),
    /// Addresses of the host that receives, of the same family, and of the next hop on the way
    /// there.
    pub to: (IpAddr, Mac),
    /// The tenant's network.
    pub vni: u32,
}

/// What the outer headers said of a frame that was taken out of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The host that sent it.
    pub from: IpAddr,
    /// The tenant's network.
    pub vni: u32,
    /// The two ECN bits, to be given to [`merge_ecn`].
    pub ecn: u8,
}

/// Bytes of all outer headers to or from a VTEP with this address.
#[must_use]
pub const fn outer(address: &IpAddr) -> usize {
    if address.is_ipv4() { OUTER_V4 } else { OUTER_V6 }
}

/// Where the payload of a datagram to or from a VTEP with this address begins.
pub(crate) const fn datagram(address: &IpAddr) -> usize {
    outer(address) - VXLAN
}

/// Whether a frame of `len` bytes that is still to be cut may have one set of outer headers, from
/// which those of each segment are made. Over IPv6 they would need a checksum each.
#[must_use]
pub(crate) const fn may_go_whole(len: usize, tunnel: &Tunnel) -> bool {
    tunnel.to.0.is_ipv4() && len + OUTER_V4 - ETHERNET_HEADER <= u16::MAX as usize
}

/// Puts the outer headers before a frame of one segment, or one that [`may_go_whole`], whose layout
/// must be known. The layout is then theirs. `csum`: the device can finish one checksum. False, and
/// nothing changed, where there is no headroom left or no IP packet could be so long.
#[must_use = "the frame may be as it was"]
pub fn push(pool: &mut Pool, frame: &Frame, tunnel: &Tunnel, source_port: u16, csum: bool) -> bool {
    let (inner, outer) = (pool.len(frame), outer(&tunnel.to.0));
    if inner + outer - ETHERNET_HEADER > usize::from(u16::MAX) || !pool.push_front(frame, outer) {
        return false;
    }
    let (bytes, meta) = pool.parts_mut(frame);
    let (head, inside) = bytes.split_at_mut(outer);
    write_packet(head, tunnel, outer + inner, ecn(inside, &meta.layout), source_port);
    write_network(&mut head[outer - VXLAN..], tunnel.vni);
    if meta.offload.needs_csum {
        meta.offload.csum_start += outer as u16;
    }
    if tunnel.to.0.is_ipv6() {
        seal(bytes, &mut meta.offload, csum);
    }
    meta.layout = packet_layout(&tunnel.to.0, outer + inner);
    true
}

/// Gives a datagram over IPv6 its checksum. A checksum inside that the device finishes makes all
/// behind its start add up to the complement of what its field holds now (Linux calls this local
/// checksum offload), so the outer one follows from the headers alone. Where it starts or lies at
/// an odd byte, which no protocol of ours does, it is finished here.
fn seal(bytes: &mut [u8], offload: &mut Offload, csum: bool) {
    const L4: usize = ETHERNET_HEADER + IPV6;
    const FIELD: usize = L4 + transport::UDP_CHECKSUM;
    let pseudo = checksum::pseudo(&bytes[L4 - 32..L4], protocol::UDP, bytes.len() - L4);
    put16(bytes, FIELD, pseudo);
    let start = usize::from(offload.csum_start);
    let field = start + usize::from(offload.csum_offset);
    let mut rest = None;
    if offload.needs_csum && start.is_multiple_of(2) && field.is_multiple_of(2) {
        rest = Some((start, !be16(bytes, field)));
    } else if offload.needs_csum {
        let sum = !checksum::sum(&bytes[start..]);
        put16(bytes, field, if sum == 0 { 0xffff } else { sum });
        (offload.needs_csum, offload.csum_valid) = (false, true);
    }
    if rest.is_none() && csum {
        offload.needs_csum = true;
        (offload.csum_start, offload.csum_offset) = (L4 as u16, transport::UDP_CHECKSUM as u16);
        return;
    }
    let (end, behind) = rest.unwrap_or((bytes.len(), 0));
    let sum = !checksum::add(checksum::sum(&bytes[L4..end]), behind);
    put16(bytes, FIELD, if sum == 0 { 0xffff } else { sum });
}

/// Writes the outer headers up to the datagram's payload, for a frame of `len` bytes in all. There
/// is no UDP checksum yet.
pub(crate) fn write_packet(outer: &mut [u8], tunnel: &Tunnel, len: usize, ecn: u8, source_port: u16) {
    let l4 = datagram(&tunnel.to.0) - UDP;
    outer[..l4 + UDP].fill(0);
    outer[..6].copy_from_slice(&tunnel.to.1.0);
    outer[6..12].copy_from_slice(&tunnel.from.1.0);
    let (udp, ip) = ((len - l4) as u16, &mut outer[ETHERNET_HEADER..l4]);
    let kind = match (tunnel.from.0, tunnel.to.0) {
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            // The label is the upper 20 bits of a mix, since it is to look random.
            let label = (mix(0, source_port.into()) >> 44) as u32;
            put32(ip, 0, 6 << 28 | u32::from(ecn) << 20 | label);
            put16(ip, ipv6::PAYLOAD_LEN, udp);
            ip[6] = protocol::UDP;
            ip[7] = TTL;
            ip[8..24].copy_from_slice(&from.octets());
            ip[24..].copy_from_slice(&to.octets());
            ethertype::IPV6
        }
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            ip[0] = 0x45;
            ip[ipv4::TOS] = ecn;
            put16(ip, ipv4::TOTAL_LEN, IPV4 as u16 + udp);
            put16(ip, 6, DONT_FRAGMENT);
            ip[8] = TTL;
            ip[9] = protocol::UDP;
            ip[12..16].copy_from_slice(&from.octets());
            ip[16..20].copy_from_slice(&to.octets());
            let sum = !checksum::sum(ip);
            put16(ip, ipv4::CHECKSUM, sum);
            ethertype::IPV4
        }
        // Nobody makes such a tunnel (`overlay.rs`); what is written is a packet to nobody.
        _ => 0,
    };
    put16(outer, 12, kind);
    put16(outer, l4, source_port);
    put16(outer, l4 + 2, PORT);
    put16(outer, l4 + transport::UDP_LENGTH, udp);
}

/// Writes the VXLAN header.
pub(crate) fn write_network(header: &mut [u8], vni: u32) {
    header[..VXLAN].fill(0);
    header[0] = HAS_VNI;
    put32(header, 4, vni << 8);
}

/// The layout of a frame of `len` bytes with outer headers, to a VTEP with this address.
pub(crate) fn packet_layout(address: &IpAddr, len: usize) -> Layout {
    let payload = datagram(address) as u16;
    let (ethertype, l3) = if address.is_ipv4() { (ethertype::IPV4, L3::Ipv4) } else { (ethertype::IPV6, L3::Ipv6) };
    Layout {
        ethertype,
        l3,
        l4: L4::Udp,
        l3_offset: ETHERNET_HEADER as u16,
        l4_offset: payload - UDP as u16,
        payload_offset: payload,
        end: len as u32,
        ..Layout::default()
    }
}

/// Whether a frame is a VXLAN datagram for the VTEP with these addresses; over IPv4 the first
/// fragment of one included, over IPv6 without those that have extension headers, which are the
/// host's. It may be anything else, and of any length.
#[must_use]
#[inline]
pub fn is_for(bytes: &[u8], address: IpAddr, mac: Mac) -> bool {
    let IpAddr::V4(address) = address else { return is_for_v6(bytes, address, mac) };
    let Some(head) = bytes.first_chunk::<{ ETHERNET_HEADER + IPV4 + 4 }>() else { return false };
    if head[..6] != mac.0 || be16(head, 12) != ethertype::IPV4 {
        return false;
    }
    let ip = &head[ETHERNET_HEADER..];
    let later = be16(ip, 6) & (FRAGMENT >> 1) != 0;
    if ip[16..20] != address.octets() || ip[9] != protocol::UDP || later {
        return false;
    }
    let ports = ETHERNET_HEADER + usize::from(ip[0] & 0x0f) * 4;
    bytes.len() >= ports + 4 && be16(bytes, ports + 2) == PORT
}

fn is_for_v6(bytes: &[u8], address: IpAddr, mac: Mac) -> bool {
    let Some(head) = bytes.first_chunk::<{ ETHERNET_HEADER + IPV6 + 4 }>() else { return false };
    let ip = &head[ETHERNET_HEADER..];
    head[..6] == mac.0
        && be16(head, 12) == ethertype::IPV6
        && ip[6] == protocol::UDP
        && be16(ip, IPV6 + 2) == PORT
        && v6(&ip[24..IPV6]) == address
}

/// Whether a frame that [`is_for`] the VTEP holds many datagrams (UDP_SEGMENT): see `UDP GSO
/// packet.rs`.
#[must_use]
pub fn is_train(bytes: &[u8], offload: &Offload) -> bool {
    let header = if be16(bytes, 12) == ethertype::IPV6 { IPV6 } else { usize::from(bytes[ETHERNET_HEADER] & 0x0f) * 4 };
    offload.gso == Gso::Udp && usize::from(offload.csum_start) == ETHERNET_HEADER + header
}

/// The outer headers of a frame that [`is_for`] the VTEP, and its wire bytes.
///
/// # Errors
/// What [`parse`] says of them; [`Reason::BadOffload`] where they hold many datagrams, and the
/// metadata do not agree.
pub fn look(bytes: &[u8], offload: &Offload) -> Result<(Layout, u32), Reason> {
    let layout = parse(bytes)?;
    if is_train(bytes, offload) {
        segment::check_offload(bytes, &layout, offload)?;
        return Ok((layout, segment::wire_bytes(bytes.len(), &layout, offload)));
    }
    let inner = |offload| -> Result<u32, Reason> {
        let (received, inner, offload) = open(bytes, offload)?;
        let (bytes, outer) = (&bytes[inner], outer(&received.from) as u8);
        let layout = parse(bytes)?;
        segment::check_offload(bytes, &layout, &offload)?;
        Ok(segment::tunnelled_wire_bytes(bytes.len(), &layout, &offload, outer))
    };
    let cut = (offload.gso != Gso::None).then(|| inner(offload).ok()).flatten();
    Ok((layout, cut.unwrap_or_else(|| segment::one_wire_bytes(bytes.len(), 0))))
}

/// Where the inner frame lies in a frame that [`is_for`] the VTEP, and its offload metadata; and
/// what the outer headers say.
///
/// The metadata that came with the whole are the inner frame's own where they speak of its
/// checksum: Linux hands over a segmentation-offloaded frame in its tunnel so. An outer checksum
/// that is yet to be finished is of no interest. A finished one is not looked at: section 4.1
/// leaves that to the receiver, and what is inside has its own.
///
/// # Errors
/// [`Reason::Malformed`] where the outer headers contradict themselves, are a fragment's or are not
/// VXLAN's; [`Reason::BadOffload`].
pub fn open(bytes: &[u8], offload: &Offload) -> Result<(Received, core::ops::Range<usize>, Offload), Reason> {
    let layout = parse(bytes)?;
    let (from, ecn) = open_packet(bytes, &layout)?;
    let l4 = usize::from(layout.l4_offset);
    let inner = l4 + UDP + VXLAN;
    let end = l4 + usize::from(be16(bytes, l4 + transport::UDP_LENGTH));
    let vni = bytes.get(l4 + UDP..end).and_then(network).ok_or(Reason::Malformed)?;
    let received = Received { from, vni, ecn };
    // What was checked may have been the outer checksum alone.
    let mut offload = Offload { csum_valid: false, ..*offload };
    let start = usize::from(offload.csum_start);
    if offload.needs_csum && start >= inner {
        offload.csum_start -= inner as u16;
    } else if offload.gso != Gso::None || (offload.needs_csum && start != l4) {
        return Err(Reason::BadOffload);
    } else {
        offload = Offload::default();
    }
    Ok((received, inner..end, offload))
}

/// The host that sent a packet of one or more datagrams, and its ECN bits.
///
/// # Errors
/// [`Reason::Malformed`] where the headers are a fragment's, or no longer as they were sent.
pub(crate) fn open_packet(bytes: &[u8], layout: &Layout) -> Result<(IpAddr, u8), Reason> {
    let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
    let is_ipv4 = layout.l3 == L3::Ipv4;
    if layout.fragment || layout.l4 != L4::Udp || is_ipv4 && checksum::sum(&bytes[l3..l4]) != 0xffff {
        return Err(Reason::Malformed);
    }
    let source = if is_ipv4 {
        IpAddr::from([bytes[l3 + 12], bytes[l3 + 13], bytes[l3 + 14], bytes[l3 + 15]])
    } else {
        v6(&bytes[l3 + 8..l3 + 24])
    };
    Ok((source, ecn(bytes, layout)))
}

/// An IPv6 address in a header.
fn v6(octets: &[u8]) -> IpAddr {
    IpAddr::V6(octets.try_into().map_or(Ipv6Addr::UNSPECIFIED, |octets: [u8; 16]| octets.into()))
}

/// The network of a datagram with this payload; `None` where that is too short for a frame, or not
/// VXLAN.
pub(crate) fn network(payload: &[u8]) -> Option<u32> {
    let sound = payload.len() >= VXLAN + ETHERNET_HEADER && payload[0] & HAS_VNI != 0;
    sound.then(|| be32(payload, 4) >> 8)
}

/// Takes the outer headers off a frame that [`is_for`] the VTEP: see [`open`]. Its layout is not
/// known then.
///
/// # Errors
/// Those of [`open`]; nothing was changed.
pub fn pop(pool: &mut Pool, frame: &Frame) -> Result<Received, Reason> {
    let (bytes, meta) = pool.parts_mut(frame);
    let (received, inner, offload) = open(bytes, &meta.offload)?;
    meta.offload = offload;
    pool.set_len(frame, inner.end);
    pool.pull_front(frame, inner.start);
    Ok(received)
}

/// What becomes of a packet that came out of a tunnel with `outer` ECN bits (RFC 6040, figure 4).
///
/// # Errors
/// [`Reason::Congestion`] where it met congestion and cannot be told: it must be dropped.
pub fn merge_ecn(bytes: &mut [u8], layout: &Layout, outer: u8) -> Result<(), Reason> {
    let merged = would_merge(bytes, layout, outer)?;
    let before = ecn(bytes, layout);
    let l3 = usize::from(layout.l3_offset);
    if merged == before {
        return Ok(());
    }
    match layout.l3 {
        L3::Ipv4 => {
            let (old, sum) = (be16(bytes, l3), be16(bytes, l3 + ipv4::CHECKSUM));
            let new = old & !3 | u16::from(merged);
            put16(bytes, l3, new);
            put16(bytes, l3 + ipv4::CHECKSUM, checksum::update(sum, old, new));
        }
        _ => bytes[l3 + 1] = bytes[l3 + 1] & !0x30 | merged << 4,
    }
    Ok(())
}

/// The inner ECN bits after [`merge_ecn`].
///
/// # Errors
/// As there.
pub fn would_merge(bytes: &[u8], layout: &Layout, outer: u8) -> Result<u8, Reason> {
    const NOT_CAPABLE: u8 = 0;
    const ECT_1: u8 = 1;
    const ECT_0: u8 = 2;
    const CE: u8 = 3;
    match (ecn(bytes, layout), outer & 3) {
        // What is not IP has no one to tell, and was sent as not capable.
        (NOT_CAPABLE, CE) if matches!(layout.l3, L3::Ipv4 | L3::Ipv6) => Err(Reason::Congestion),
        (NOT_CAPABLE, _) => Ok(NOT_CAPABLE),
        (_, CE) => Ok(CE),
        (ECT_0, ECT_1) => Ok(ECT_1),
        (inner, _) => Ok(inner),
    }
}

/// The ECN bits of a packet; zero where it is not IP.
#[inline]
pub(crate) fn ecn(bytes: &[u8], layout: &Layout) -> u8 {
    let at = usize::from(layout.l3_offset) + 1;
    match layout.l3 {
        L3::Ipv4 => bytes[at] & 3,
        L3::Ipv6 => bytes[at] >> 4 & 3,
        _ => 0,
    }
}

/// The outer source port: the same for all packets of a flow ([`FlowKey`]), hashed under a secret
/// key. What belongs to no flow, fragments of one packet among it, goes by its addresses.
#[must_use]
pub fn source_port(keyed: &impl BuildHasher, bytes: &[u8], layout: &Layout) -> u16 {
    let l3 = usize::from(layout.l3_offset);
    let addresses = match layout.l3 {
        L3::Ipv4 => l3 + 12..l3 + 20,
        L3::Ipv6 => l3 + 8..l3 + 40,
        _ => 0..12,
    };
    let hash = match FlowKey::of(bytes, layout) {
        Some(flow) => flow.hash_under(keyed),
        None => keyed.hash_one(&bytes[addresses]),
    };
    EPHEMERAL.0 + ((hash >> 48) as u16) % EPHEMERAL.1
}

/// Whether a datagram with these ports, the source's first, may have come from [`push`].
pub(super) fn are_ports(source: u16, destination: u16) -> bool {
    source >= EPHEMERAL.0 && destination == PORT
}

/// One step of a multiplicative hash (Knuth, TAOCP 6.4: the golden ratio). Who finds flows that
/// collide harms his own.
fn mix(hash: u64, word: u32) -> u64 {
    ((hash ^ hash >> 29) ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests;
