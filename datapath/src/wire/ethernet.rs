//! Ethernet (IEEE 802.3-2018, clause 3) with one 802.1Q tag (IEEE 802.1Q-2018, clause 9).
//!
//! A tag behind a tag (QinQ) and a service tag (0x88a8) are left alone: the frame's network layer
//! is then `Other`, and its EtherType is that of the tag that was not looked behind.

use super::{Layout, Mac, be16, header};
use crate::verdict::Reason;

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_HEADER: usize = 14;

/// EtherTypes (IEEE Registration Authority).
pub mod ethertype {
    /// The least EtherType; smaller numbers are the length of an LLC frame.
    pub const FIRST: u16 = 0x0600;
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Reverse ARP (RFC 903).
    pub const RARP: u16 = 0x8035;
    /// An 802.1Q customer tag.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// MAC control, which PAUSE frames are (IEEE 802.3-2018, annex 31A).
    pub const MAC_CONTROL: u16 = 0x8808;
    /// Discovery of PPPoE (RFC 2516).
    pub const PPPOE_DISCOVERY: u16 = 0x8863;
    /// LLC in frames that are too long for a length (draft-ietf-isis-ext-eth).
    pub const JUMBO_LLC: u16 = 0x8870;
    /// A backbone service tag, behind which lies another frame (IEEE 802.1ah).
    pub const BACKBONE_TAG: u16 = 0x88e7;
    /// An 802.1ad service tag.
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// A second tag as it was marked before 802.1ad.
    pub const OLD_QINQ: u16 = 0x9100;
    /// The same, of other makes.
    pub const OTHER_QINQ: u16 = 0x9200;

    /// Whether a VLAN tag follows.
    #[must_use]
    pub const fn is_tag(ethertype: u16) -> bool {
        matches!(ethertype, VLAN | SERVICE_VLAN | OLD_QINQ | OTHER_QINQ)
    }
}

/// The longest LLC frame behind a length field, in bytes.
const LLC_MAX: u16 = 1500;

/// The destination address. Panics on less than 14 bytes, which no frame that was parsed has.
#[must_use]
#[inline]
pub fn destination(bytes: &[u8]) -> Mac {
    let [a, b, c, d, e, f, ..] = bytes[..ETHERNET_HEADER] else { unreachable!("14 bytes") };
    Mac([a, b, c, d, e, f])
}

/// The source address. Panics on less than 14 bytes, which no frame that was parsed has.
#[must_use]
#[inline]
pub fn source(bytes: &[u8]) -> Mac {
    let [_, _, _, _, _, _, a, b, c, d, e, f, ..] = bytes[..ETHERNET_HEADER] else { unreachable!("14 bytes") };
    Mac([a, b, c, d, e, f])
}

#[inline]
pub(super) fn locate(bytes: &[u8], layout: &mut Layout) -> Result<(), Reason> {
    let untagged: &[u8; ETHERNET_HEADER] = header(bytes, 0).ok_or(Reason::Malformed)?;
    *layout = Layout {
        ethertype: be16(untagged, 12),
        l3_offset: ETHERNET_HEADER as u16,
        end: u32::try_from(bytes.len()).map_err(|_| Reason::Malformed)?,
        ..Layout::default()
    };
    if layout.ethertype == ethertype::VLAN {
        let tag: &[u8; 4] = header(bytes, ETHERNET_HEADER).ok_or(Reason::Malformed)?;
        layout.vlan = Some(be16(tag, 0) & 0x0fff);
        layout.ethertype = be16(tag, 2);
        layout.l3_offset += 4;
    }
    Ok(())
}

/// A frame with a length field where others have the EtherType.
pub(super) fn locate_llc(bytes: &[u8], layout: &mut Layout) -> Result<(), Reason> {
    let end = usize::from(layout.l3_offset) + usize::from(layout.ethertype);
    if layout.ethertype > LLC_MAX || end > bytes.len() {
        return Err(Reason::Malformed);
    }
    layout.end = end as u32;
    Ok(())
}
