//! IPv4 (RFC 791): header with options, fragments.

use super::{ETHERNET_HEADER, L3, Layout, be16, be32, ethertype, header, transport};
use crate::verdict::Reason;
use core::net::Ipv4Addr;

/// Length without options.
pub(crate) const LEN: usize = 20;

/// Offset of the type-of-service byte: DSCP and ECN (RFC 2474, RFC 3168).
pub(crate) const TOS: usize = 1;
/// Offset of the total length.
pub(crate) const TOTAL_LEN: usize = 2;
/// Offset of the identification.
pub(crate) const ID: usize = 4;
/// Offset of the header checksum.
pub(crate) const CHECKSUM: usize = 10;

const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// An IPv4 header without its options.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a>(&'a [u8; LEN]);

impl<'a> Ipv4<'a> {
    /// The header of a frame that has one.
    #[must_use]
    #[inline]
    pub fn of(bytes: &'a [u8], layout: &Layout) -> Option<Self> {
        (layout.l3 == L3::Ipv4).then(|| header(bytes, layout.l3_offset.into()).map(Ipv4))?
    }

    /// Source address.
    #[must_use]
    #[inline]
    pub fn source(self) -> Ipv4Addr {
        let h = self.0;
        Ipv4Addr::new(h[12], h[13], h[14], h[15])
    }

    /// Destination address.
    #[must_use]
    #[inline]
    pub fn destination(self) -> Ipv4Addr {
        let h = self.0;
        Ipv4Addr::new(h[16], h[17], h[18], h[19])
    }

    /// What the packet carries: see [`super::protocol`].
    #[must_use]
    pub fn protocol(self) -> u8 {
        self.0[9]
    }

    /// Time to live.
    #[must_use]
    pub fn ttl(self) -> u8 {
        self.0[8]
    }

    /// Identification.
    #[must_use]
    pub fn id(self) -> u16 {
        be16(self.0, ID)
    }

    /// Length of the packet, header included.
    #[must_use]
    pub fn total_len(self) -> u16 {
        be16(self.0, TOTAL_LEN)
    }

    /// The two ECN bits (RFC 3168).
    #[must_use]
    pub fn ecn(self) -> u8 {
        self.0[TOS] & 3
    }
}

/// What most frames are, in few steps: TCP or UDP without VLAN tag, options or fragments. False,
/// and nothing changed, for all others and for what is malformed.
#[inline(always)]
pub(super) fn locate_plain(bytes: &[u8], layout: &mut Layout) -> bool {
    const L3: usize = ETHERNET_HEADER;
    const L4: usize = L3 + LEN;
    const PLAIN: u32 = (ethertype::IPV4 as u32) << 8 | 0x45;
    let Some(h) = bytes.first_chunk::<{ L4 + transport::UDP_LEN }>() else { return false };
    let end = L3 + usize::from(be16(h, L3 + TOTAL_LEN));
    if be32(h, L3 - 2) >> 8 != PLAIN || be16(h, L3 + 6) & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 || end > bytes.len() {
        return false;
    }
    let (l4, len) = match h[L3 + 9] {
        transport::protocol::UDP => match usize::from(be16(h, L4 + transport::UDP_LENGTH)) {
            len if len >= transport::UDP_LEN && L4 + len <= end => (super::L4::Udp, transport::UDP_LEN),
            _ => return false,
        },
        transport::protocol::TCP => match bytes.get(L4 + transport::TCP_DATA_OFFSET) {
            Some(&offset) => (super::L4::Tcp, usize::from(offset >> 4) * 4),
            None => return false,
        },
        _ => return false,
    };
    if l4 == super::L4::Tcp && len < transport::TCP_LEN || L4 + len > end {
        return false;
    }
    *layout = Layout {
        vlan: None,
        ethertype: ethertype::IPV4,
        l3: super::L3::Ipv4,
        l4,
        fragment: false,
        later_fragment: false,
        l3_offset: L3 as u16,
        l4_offset: L4 as u16,
        payload_offset: (L4 + len) as u16,
        end: end as u32,
    };
    true
}

#[inline]
pub(super) fn locate(bytes: &[u8], layout: &mut Layout) -> Result<(), Reason> {
    let at = usize::from(layout.l3_offset);
    let h: &[u8; LEN] = header(bytes, at).ok_or(Reason::Malformed)?;
    let header_len = usize::from(h[0] & 0x0f) * 4;
    let total_len = usize::from(be16(h, TOTAL_LEN));
    let end = at + total_len;
    if h[0] >> 4 != 4 || header_len < LEN || total_len < header_len || end > bytes.len() {
        return Err(Reason::Malformed);
    }
    layout.l3 = L3::Ipv4;
    layout.l4_offset = (at + header_len) as u16;
    layout.end = end as u32;
    let fragment = be16(h, 6);
    if fragment & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 {
        let offset = usize::from(fragment & FRAGMENT_OFFSET) * 8;
        // Reassembled it would be longer than any packet: the "ping of death".
        if offset + total_len > usize::from(u16::MAX) {
            return Err(Reason::Malformed);
        }
        layout.fragment = true;
        layout.later_fragment = offset != 0;
    }
    transport::locate(bytes, layout, h[9])
}
