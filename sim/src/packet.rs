//! Packets: what the simulator's hosts write into frames, and how they read them.
//!
//! Ethernet, IPv4 (RFC 791), TCP (RFC 9293) with timestamps and window scale (RFC 7323) and
//! selective acknowledgements (RFC 2018), and UDP (RFC 768). Written apart from the switch's own
//! parsers, so that one judges the other: a receiver checks lengths and checksums of all that
//! reaches it.
//!
//! Payload is not written out, but every segment begins with a stamp: tenant, flow and position in
//! the stream. It proves that what arrives is from the tenant it should be from, and that cutting
//! and trimming kept every byte in its place.

use core::net::Ipv4Addr;
use core::ops::Range;

use datapath::frame::{Frame, Pool};
use datapath::offload::{Gso, GsoEcn, Offload};
use datapath::wire::{L3, L4, Layout, Mac};

pub use crate::tcp::flag;
use crate::tcp::seq::Blocks;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;
const TCP: usize = 20;
/// TCP's timestamps, padded, are on every segment; as Linux does.
const TIMESTAMPS: usize = 12;
/// AccECN's option with two counters, and its kind where the first is of ECT(0).
const COUNTED: usize = 8;
const COUNTED_KIND: u8 = 172;
/// Bytes of headers before the payload of a TCP data segment.
pub const TCP_HEADERS: usize = ETHERNET + IPV4 + TCP + TIMESTAMPS;
/// Bytes of headers before the payload of a datagram.
pub const UDP_HEADERS: usize = ETHERNET + IPV4 + UDP;
/// Ethernet's preamble, FCS and gap (IEEE 802.3), counted on every segment.
const WIRE_OVERHEAD: usize = 24;
/// The shortest frame on the wire with its overhead.
const WIRE_MIN: usize = 84;
/// Bytes of a stamp.
pub const STAMP: usize = 8;

/// The ECN field of IP (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ecn {
    /// Not capable.
    #[default]
    Not,
    /// Capable.
    Capable,
    /// Congestion experienced.
    Marked,
}

/// Where a host is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// Its MAC address.
    pub mac: Mac,
    /// Its IP address.
    pub ip: Ipv4Addr,
}

/// What a host's NIC does for its stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nic {
    /// Longest IP packet on the wire, in bytes.
    pub mtu: u32,
    /// Longest TCP payload or train of datagrams handed over at once, in bytes; below two segments
    /// there is no segmentation offload.
    pub offload_bytes: u32,
    /// Whether transport checksums are left to it.
    pub csum: bool,
}

impl Default for Nic {
    /// As a TAP device: all offloads, 64 KiB.
    fn default() -> Self {
        Nic { mtu: 1500, offload_bytes: 65_160, csum: true }
    }
}

impl Nic {
    /// No offload but checksums: frames of one MTU.
    pub const PLAIN: Nic = Nic { mtu: 1500, offload_bytes: 0, csum: true };

    /// TCP payload of a full segment, in bytes.
    #[must_use]
    pub fn mss(&self) -> u32 {
        self.mtu - (TCP_HEADERS - ETHERNET) as u32
    }
}

/// What all segments of a stream have in common.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// Sender.
    pub from: Address,
    /// Receiver.
    pub to: Address,
    /// The sender's tenant, for the stamp.
    pub tenant: u16,
    /// Source and destination port, and the flow in the stamp.
    pub port: u16,
    /// The sender's NIC.
    pub nic: Nic,
}

/// A TCP header's fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp {
    /// First sequence number.
    pub seq: u32,
    /// Next sequence number expected.
    pub ack: u32,
    /// See [`flag`].
    pub flags: u8,
    /// Receive window, as it stands in the header.
    pub window: u16,
    /// Timestamps: value and echo.
    pub timestamps: (u32, u32),
    /// Blocks received out of order.
    pub sack: Blocks<u32>,
    /// On SYN: maximum segment size and window scale.
    pub syn: Option<(u16, u8)>,
    /// AE, the third flag of ECN (RFC 9768).
    pub ae: bool,
    /// AccECN's option (RFC 9768): bytes that arrived as ECT(0) and as CE, modulo 2^24.
    pub counted: Option<(u32, u32)>,
    /// Its data were sent before. Not TCP's: it lowers the time to live by one, so that receivers
    /// can count by kind what is lost.
    pub again: bool,
}

/// Kinds of TCP segments, of which losses mean different things.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// SYN and SYN-ACK: a second until they are sent again.
    Syn,
    /// An acknowledgement without data.
    Ack,
    /// Data sent again.
    Again,
    /// New data.
    Data,
}

impl Tcp {
    /// What kind of segment it is, with so many bytes of payload.
    #[must_use]
    pub fn kind(&self, payload: usize) -> Kind {
        match payload {
            _ if self.flags & flag::SYN != 0 => Kind::Syn,
            0 => Kind::Ack,
            _ if self.again => Kind::Again,
            _ => Kind::Data,
        }
    }
}

/// Time to live of packets.
const TTL: u8 = 64;

/// A frame, read.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Sender's MAC address.
    pub from_mac: Mac,
    /// Receiver's MAC address.
    pub to_mac: Mac,
    /// Sender's IP address.
    pub from_ip: Ipv4Addr,
    /// Receiver's IP address.
    pub to_ip: Ipv4Addr,
    /// ECN.
    pub ecn: Ecn,
    /// Destination port.
    pub port: u16,
    /// TCP's header; none for UDP.
    pub tcp: Option<Tcp>,
    /// Where the payload lies.
    pub payload: Range<usize>,
    /// Payload bytes of each segment but the last.
    pub segment: usize,
}

impl Packet {
    /// Segments it stands for.
    #[must_use]
    pub fn segments(&self) -> u32 {
        self.payload.len().div_ceil(self.segment.max(1)).max(1) as u32
    }

    /// The first stamp that is not of this tenant, flow and position; `position` is that of the
    /// first payload byte.
    #[must_use]
    pub fn wrong_stamp(&self, bytes: &[u8], tenant: u16, port: u16, position: u32) -> Option<[u8; STAMP]> {
        let payload = &bytes[self.payload.clone()];
        payload.chunks(self.segment.max(1)).enumerate().find_map(|(i, segment)| {
            let found: [u8; STAMP] = segment.get(..STAMP)?.try_into().ok()?;
            let right = stamp(tenant, port, position.wrapping_add((i * self.segment) as u32));
            (found != right).then_some(found)
        })
    }
}

/// What stands at the start of every segment's payload.
fn stamp(tenant: u16, port: u16, position: u32) -> [u8; STAMP] {
    let mut bytes = [0; STAMP];
    bytes[..2].copy_from_slice(&tenant.to_be_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..].copy_from_slice(&position.to_be_bytes());
    bytes
}

/// Writes a TCP segment, offloaded where it is longer than `mss`. `position` is the stamp of its
/// first byte. `None` where the pool has no buffer.
pub fn write_tcp(
    pool: &mut Pool,
    envelope: &Envelope,
    ecn: Ecn,
    tcp: &Tcp,
    payload: usize,
    position: u32,
) -> Option<Frame> {
    let counted = if tcp.counted.is_some() { COUNTED } else { 0 };
    let options = if tcp.syn.is_some() { 20 } else { TIMESTAMPS + tcp.sack.option_bytes() + counted };
    let headers = ETHERNET + IPV4 + TCP + options;
    let mss = envelope.nic.mss() as usize;
    let frame = pool.alloc(headers + payload)?;
    let bytes = pool.bytes_mut(&frame);
    write_ip(bytes, envelope, ecn, 6, TTL - u8::from(tcp.again));
    write_tcp_header(&mut bytes[ETHERNET + IPV4..headers], envelope.port, tcp);
    write_stamps(&mut bytes[headers..], mss, envelope, position);
    let gso = if payload > mss { Gso::Tcp4 } else { Gso::None };
    let offload = Offload {
        gso,
        gso_ecn: if gso != Gso::None && tcp.flags & flag::CWR != 0 { GsoEcn::Cwr } else { GsoEcn::None },
        gso_size: if gso == Gso::None { 0 } else { mss as u16 },
        ..Offload::default()
    };
    finish(pool, &frame, envelope, headers, mss, offload, L4::Tcp);
    Some(frame)
}

/// Writes a datagram, or a train of them: `payload` bytes in datagrams of `segment`.
pub fn write_udp(pool: &mut Pool, envelope: &Envelope, payload: usize, segment: usize, position: u32) -> Option<Frame> {
    let frame = pool.alloc(UDP_HEADERS + payload)?;
    let bytes = pool.bytes_mut(&frame);
    write_ip(bytes, envelope, Ecn::Not, 17, TTL);
    let udp = &mut bytes[ETHERNET + IPV4..];
    udp[..2].copy_from_slice(&envelope.port.to_be_bytes());
    udp[2..4].copy_from_slice(&envelope.port.to_be_bytes());
    udp[4..6].copy_from_slice(&((UDP + payload) as u16).to_be_bytes());
    udp[6..8].fill(0);
    write_stamps(&mut udp[UDP..], segment, envelope, position);
    let gso = if payload > segment { Gso::Udp } else { Gso::None };
    let gso_size = if gso == Gso::None { 0 } else { segment as u16 };
    finish(pool, &frame, envelope, UDP_HEADERS, segment, Offload { gso, gso_size, ..Offload::default() }, L4::Udp);
    Some(frame)
}

fn write_stamps(payload: &mut [u8], segment: usize, envelope: &Envelope, position: u32) {
    for (i, segment_bytes) in payload.chunks_mut(segment).enumerate() {
        if let Some(place) = segment_bytes.get_mut(..STAMP) {
            place.copy_from_slice(&stamp(envelope.tenant, envelope.port, position.wrapping_add((i * segment) as u32)));
        }
    }
}

fn write_ip(bytes: &mut [u8], envelope: &Envelope, ecn: Ecn, protocol: u8, ttl: u8) {
    let total = bytes.len() - ETHERNET;
    bytes[..6].copy_from_slice(&envelope.to.mac.0);
    bytes[6..12].copy_from_slice(&envelope.from.mac.0);
    bytes[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
    let ip = &mut bytes[ETHERNET..ETHERNET + IPV4];
    ip[0] = 0x45;
    ip[1] = match ecn {
        Ecn::Not => 0,
        Ecn::Capable => 2,
        Ecn::Marked => 3,
    };
    ip[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    ip[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
    ip[8] = ttl;
    ip[9] = protocol;
    ip[10..12].fill(0);
    ip[12..16].copy_from_slice(&envelope.from.ip.octets());
    ip[16..20].copy_from_slice(&envelope.to.ip.octets());
    let csum = !fold(sum(ip));
    ip[10..12].copy_from_slice(&csum.to_be_bytes());
}

fn write_tcp_header(bytes: &mut [u8], port: u16, tcp: &Tcp) {
    bytes[..2].copy_from_slice(&port.to_be_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&tcp.seq.to_be_bytes());
    bytes[8..12].copy_from_slice(&tcp.ack.to_be_bytes());
    bytes[12] = ((bytes.len() / 4) << 4) as u8 | u8::from(tcp.ae);
    bytes[13] = tcp.flags;
    bytes[14..16].copy_from_slice(&tcp.window.to_be_bytes());
    bytes[16..20].fill(0);
    let options = &mut bytes[TCP..];
    if let Some((mss, scale)) = tcp.syn {
        options[..4].copy_from_slice(&[2, 4, (mss >> 8) as u8, mss as u8]);
        options[4..8].copy_from_slice(&[4, 2, 8, 10]);
        options[8..12].copy_from_slice(&tcp.timestamps.0.to_be_bytes());
        options[12..16].copy_from_slice(&tcp.timestamps.1.to_be_bytes());
        options[16..20].copy_from_slice(&[1, 3, 3, scale]);
        return;
    }
    options[..4].copy_from_slice(&[1, 1, 8, 10]);
    options[4..8].copy_from_slice(&tcp.timestamps.0.to_be_bytes());
    options[8..12].copy_from_slice(&tcp.timestamps.1.to_be_bytes());
    let mut options = &mut options[12..];
    if let Some((capable, marked)) = tcp.counted {
        let (place, rest) = options.split_at_mut(COUNTED);
        place[..2].copy_from_slice(&[COUNTED_KIND, COUNTED as u8]);
        place[2..5].copy_from_slice(&capable.to_be_bytes()[1..]);
        place[5..].copy_from_slice(&marked.to_be_bytes()[1..]);
        options = rest;
    }
    let blocks = tcp.sack.as_slice();
    if !blocks.is_empty() {
        options[..4].copy_from_slice(&[1, 1, 5, 2 + 8 * blocks.len() as u8]);
        for (place, &(left, right)) in options[4..].chunks_exact_mut(8).zip(blocks) {
            place[..4].copy_from_slice(&left.to_be_bytes());
            place[4..].copy_from_slice(&right.to_be_bytes());
        }
    }
}

/// Checksum, offload metadata, layout and wire size.
fn finish(
    pool: &mut Pool,
    frame: &Frame,
    envelope: &Envelope,
    headers: usize,
    segment: usize,
    offload: Offload,
    l4: L4,
) {
    let (bytes, meta) = pool.parts_mut(frame);
    let place = ETHERNET + IPV4 + checksum_offset(l4);
    let partial = fold(pseudo_sum(bytes));
    bytes[place..place + 2].copy_from_slice(&partial.to_be_bytes());
    meta.offload = offload;
    if envelope.nic.csum || offload.gso != Gso::None {
        meta.offload.needs_csum = true;
        meta.offload.csum_start = (ETHERNET + IPV4) as u16;
        meta.offload.csum_offset = checksum_offset(l4) as u16;
    } else {
        let csum = match !fold(sum(&bytes[ETHERNET + IPV4..])) {
            0 if l4 == L4::Udp => 0xffff,
            csum => csum,
        };
        bytes[place..place + 2].copy_from_slice(&csum.to_be_bytes());
    }
    meta.layout = Layout {
        ethertype: 0x0800,
        l3: L3::Ipv4,
        l4,
        l3_offset: ETHERNET as u16,
        l4_offset: (ETHERNET + IPV4) as u16,
        payload_offset: headers as u16,
        end: bytes.len() as u32,
        ..Layout::default()
    };
    meta.wire_bytes = wire_bytes(headers, bytes.len() - headers, segment);
}

fn checksum_offset(l4: L4) -> usize {
    if l4 == L4::Tcp { 16 } else { 6 }
}

/// Bytes on the wire of `payload` in segments behind `headers`, preamble, FCS, gap and padding
/// included.
#[must_use]
pub fn wire_bytes(headers: usize, payload: usize, segment: usize) -> u32 {
    let one = |payload: usize| (headers + payload + WIRE_OVERHEAD).max(WIRE_MIN);
    let (full, rest) = (payload / segment.max(1), payload % segment.max(1));
    let rest = if rest > 0 || full == 0 { one(rest) } else { 0 };
    (full * one(segment) + rest) as u32
}

/// Reads a frame as a host's stack would; the error says what is wrong with it.
pub fn read(pool: &Pool, frame: &Frame) -> Result<Packet, &'static str> {
    let bytes = pool.bytes(frame);
    let offload = pool.meta(frame).offload;
    if bytes.len() < ETHERNET + IPV4 {
        return Err("short");
    }
    if bytes[12..14] != [0x08, 0x00] || bytes[14] != 0x45 {
        return Err("not plain IPv4");
    }
    let end = ETHERNET + usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
    if end > bytes.len() {
        return Err("IPv4 length beyond the frame");
    }
    if fold(sum(&bytes[ETHERNET..ETHERNET + IPV4])) != 0xffff {
        return Err("IPv4 checksum");
    }
    let l4 = &bytes[ETHERNET + IPV4..end];
    let (mut tcp, header) = match bytes[23] {
        6 => read_tcp(l4)?,
        17 if l4.len() >= UDP => (None, UDP),
        _ => return Err("not TCP or UDP"),
    };
    if !offload.needs_csum && !offload.csum_valid && fold(pseudo_sum(&bytes[..end]) + sum(l4)) != 0xffff {
        return Err("transport checksum");
    }
    if let Some(tcp) = &mut tcp {
        tcp.again = bytes[22] < TTL;
    }
    let payload = ETHERNET + IPV4 + header..end;
    let segment = if offload.gso == Gso::None { payload.len() } else { usize::from(offload.gso_size) };
    Ok(Packet {
        from_mac: Mac(bytes[6..12].try_into().map_err(|_| "short")?),
        to_mac: Mac(bytes[..6].try_into().map_err(|_| "short")?),
        from_ip: Ipv4Addr::new(bytes[26], bytes[27], bytes[28], bytes[29]),
        to_ip: Ipv4Addr::new(bytes[30], bytes[31], bytes[32], bytes[33]),
        ecn: [Ecn::Not, Ecn::Capable, Ecn::Capable, Ecn::Marked][usize::from(bytes[15] & 3)],
        port: u16::from_be_bytes([l4[2], l4[3]]),
        tcp,
        payload,
        segment,
    })
}

fn read_tcp(bytes: &[u8]) -> Result<(Option<Tcp>, usize), &'static str> {
    if bytes.len() < TCP {
        return Err("TCP header cut short");
    }
    let header = usize::from(bytes[12] >> 4) * 4;
    if header < TCP || header > bytes.len() {
        return Err("TCP data offset");
    }
    let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let mut tcp = Tcp {
        seq: word(4),
        ack: word(8),
        flags: bytes[13],
        window: u16::from_be_bytes([bytes[14], bytes[15]]),
        ae: bytes[12] & 1 != 0,
        ..Tcp::default()
    };
    let mut at = TCP;
    while at + 1 < header {
        let (kind, len) = (bytes[at], usize::from(bytes[at + 1]));
        if kind == 1 {
            at += 1;
            continue;
        }
        if len < 2 || at + len > header {
            return Err("TCP option length");
        }
        match (kind, len) {
            (2, 4) => tcp.syn = Some((u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]), 0)),
            (3, 3) => tcp.syn = tcp.syn.map(|(mss, _)| (mss, bytes[at + 2])),
            (8, 10) => tcp.timestamps = (word(at + 2), word(at + 6)),
            (COUNTED_KIND, 8) => tcp.counted = Some((word(at + 1) & 0xff_ffff, word(at + 4) & 0xff_ffff)),
            (5, _) => (at + 2..at + len - 7).step_by(8).for_each(|b| tcp.sack.push((word(b), word(b + 4)))),
            _ => {}
        }
        at += len;
    }
    Ok((Some(tcp), header))
}

/// The sum of the pseudo header (RFC 9293 section 3.1).
fn pseudo_sum(bytes: &[u8]) -> u32 {
    sum(&bytes[26..34]) + u32::from(bytes[23]) + (bytes.len() - ETHERNET - IPV4) as u32
}

/// The sum of 16-bit words (RFC 1071), not folded; for up to 64 KiB.
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2);
    let last = words.remainder().first().map_or(0, |&b| u32::from(b) << 8);
    words.map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u32>() + last
}

pub(crate) fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests;
