//! TCP (RFC 9293) and UDP (RFC 768).

use super::{L3, L4, Layout, be16, be32, header};
use crate::verdict::Reason;

/// Protocol numbers (IANA), which IPv6 calls next header.
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IGRP.
    pub const IGRP: u8 = 9;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// IPsec authentication header.
    pub const AUTHENTICATION: u8 = 51;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// Nothing follows.
    pub const NO_NEXT_HEADER: u8 = 59;
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// EIGRP (RFC 7868).
    pub const EIGRP: u8 = 88;
    /// OSPF (RFC 2328, RFC 5340).
    pub const OSPF: u8 = 89;
    /// PIM (RFC 7761).
    pub const PIM: u8 = 103;
    /// VRRP (RFC 9568).
    pub const VRRP: u8 = 112;
    /// IPv6 mobility header (RFC 6275).
    pub const MOBILITY: u8 = 135;
    /// Host identity protocol (RFC 7401), an extension header.
    pub const HOST_IDENTITY: u8 = 139;
    /// Shim6 (RFC 5533), an extension header.
    pub const SHIM6: u8 = 140;
}

/// TCP's flags.
pub mod tcp_flags {
    /// No more data.
    pub const FIN: u8 = 0x01;
    /// Start of a connection.
    pub const SYN: u8 = 0x02;
    /// Abort.
    pub const RST: u8 = 0x04;
    /// Deliver now.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer counts.
    pub const URG: u8 = 0x20;
    /// Congestion was seen (RFC 3168).
    pub const ECE: u8 = 0x40;
    /// The window was reduced (RFC 3168).
    pub const CWR: u8 = 0x80;
}

pub(crate) const TCP_LEN: usize = 20;
pub(super) const UDP_LEN: usize = 8;
const ICMP_LEN: usize = 8;

/// Offset of TCP's sequence number.
pub(crate) const TCP_SEQUENCE: usize = 4;
/// Offset of what TCP acknowledges.
pub(crate) const TCP_ACK: usize = 8;
/// Offset of the byte that has the length of TCP's header.
pub(super) const TCP_DATA_OFFSET: usize = 12;
/// Offset of TCP's flags.
pub(crate) const TCP_FLAGS: usize = 13;
/// Offset of TCP's checksum.
pub(crate) const TCP_CHECKSUM: usize = 16;
/// Offset of UDP's length.
pub(crate) const UDP_LENGTH: usize = 4;
/// Offset of UDP's checksum.
pub(crate) const UDP_CHECKSUM: usize = 6;
/// Offset of the checksum of ICMP and ICMPv6.
pub(crate) const ICMP_CHECKSUM: usize = 2;

/// A TCP header without its options.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a>(&'a [u8; TCP_LEN]);

impl<'a> Tcp<'a> {
    /// The header of a frame that has one.
    #[must_use]
    #[inline]
    pub fn of(bytes: &'a [u8], layout: &Layout) -> Option<Self> {
        (layout.l4 == L4::Tcp).then(|| header(bytes, layout.l4_offset.into()).map(Tcp))?
    }

    /// Source port.
    #[must_use]
    pub fn source(self) -> u16 {
        be16(self.0, 0)
    }

    /// Destination port.
    #[must_use]
    pub fn destination(self) -> u16 {
        be16(self.0, 2)
    }

    /// Number of the first byte.
    #[must_use]
    pub fn sequence(self) -> u32 {
        be32(self.0, TCP_SEQUENCE)
    }

    /// Number of the byte that is expected next.
    #[must_use]
    pub fn acknowledgement(self) -> u32 {
        be32(self.0, TCP_ACK)
    }

    /// See [`tcp_flags`].
    #[must_use]
    pub fn flags(self) -> u8 {
        self.0[TCP_FLAGS]
    }

    /// The window, not scaled.
    #[must_use]
    pub fn window(self) -> u16 {
        be16(self.0, 14)
    }
}

/// A UDP header.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a>(&'a [u8; UDP_LEN]);

impl<'a> Udp<'a> {
    /// The header of a frame that has one.
    #[must_use]
    #[inline]
    pub fn of(bytes: &'a [u8], layout: &Layout) -> Option<Self> {
        (layout.l4 == L4::Udp).then(|| header(bytes, layout.l4_offset.into()).map(Udp))?
    }

    /// Source port.
    #[must_use]
    pub fn source(self) -> u16 {
        be16(self.0, 0)
    }

    /// Destination port.
    #[must_use]
    pub fn destination(self) -> u16 {
        be16(self.0, 2)
    }

    /// Length of header and payload.
    #[must_use]
    pub fn length(self) -> u16 {
        be16(self.0, UDP_LENGTH)
    }
}

/// Finds the transport header at `layout.l4_offset`; the packet's end and fragmentation are known.
#[inline]
pub(super) fn locate(bytes: &[u8], layout: &mut Layout, number: u8) -> Result<(), Reason> {
    if layout.later_fragment {
        return Ok(());
    }
    let at = usize::from(layout.l4_offset);
    let segment = &bytes[at..layout.end as usize];
    let found = match (number, layout.l3) {
        (protocol::TCP, _) => tcp(segment).map(|len| (L4::Tcp, at + len)),
        (protocol::UDP, _) => udp(segment, layout.fragment).map(|len| (L4::Udp, at + len)),
        (protocol::ICMP, L3::Ipv4) => (segment.len() >= ICMP_LEN).then_some((L4::Icmp, 0)),
        (protocol::ICMPV6, L3::Ipv6) => (segment.len() >= ICMP_LEN).then_some((L4::Icmpv6, 0)),
        _ => return Ok(()),
    };
    match found {
        Some((l4, payload)) => {
            layout.l4 = l4;
            layout.payload_offset = payload as u16;
            Ok(())
        }
        // RFC 791 lets IPv4 cut a TCP header in two; for IPv6, RFC 7112 forbids it. All others fit
        // into the shortest fragment: what is wrong with them is meant to hide what they are.
        None if layout.fragment && layout.l3 == L3::Ipv4 && number == protocol::TCP => Ok(()),
        None => Err(Reason::Malformed),
    }
}

/// Length of the TCP header at the front of `segment`.
#[inline]
fn tcp(segment: &[u8]) -> Option<usize> {
    let h: &[u8; TCP_LEN] = segment.first_chunk()?;
    let len = usize::from(h[TCP_DATA_OFFSET] >> 4) * 4;
    (len >= TCP_LEN && len <= segment.len()).then_some(len)
}

/// Length of the UDP header at the front of `segment`. Bytes behind the datagram are no error (RFC
/// 9868), missing ones are, unless they come in later fragments.
#[inline]
fn udp(segment: &[u8], fragment: bool) -> Option<usize> {
    let h: &[u8; UDP_LEN] = segment.first_chunk()?;
    let len = usize::from(be16(h, UDP_LENGTH));
    (len >= UDP_LEN && (fragment || len <= segment.len())).then_some(UDP_LEN)
}
