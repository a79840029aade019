//! IPv6 (RFC 8200): header, chain of extension headers, fragments.
//!
//! The chain is walked as a receiver would, so that nothing can hide behind it: at most
//! [`MAX_EXTENSIONS`] headers, hop-by-hop options only in the first place, one fragment header, and
//! a first fragment must hold the chain up to and with the transport header (RFC 7112).

use super::{L3, Layout, be16, header, protocol, transport};
use crate::verdict::Reason;
use core::net::Ipv6Addr;

/// Length without extension headers.
pub(crate) const LEN: usize = 40;

/// Offset of the payload length.
pub(crate) const PAYLOAD_LEN: usize = 4;

/// Offset of the number of what follows.
const NEXT_HEADER: usize = 6;

/// RFC 8200 (4.1) wants each extension header at most once and destination options twice, which
/// makes seven.
pub const MAX_EXTENSIONS: usize = 8;

/// An IPv6 header without its extension headers.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a>(&'a [u8; LEN]);

impl<'a> Ipv6<'a> {
    /// The header of a frame that has one.
    #[must_use]
    #[inline]
    pub fn of(bytes: &'a [u8], layout: &Layout) -> Option<Self> {
        (layout.l3 == L3::Ipv6).then(|| header(bytes, layout.l3_offset.into()).map(Ipv6))?
    }

    /// Source address.
    #[must_use]
    #[inline]
    pub fn source(self) -> Ipv6Addr {
        address(self.0, 8)
    }

    /// Destination address.
    #[must_use]
    #[inline]
    pub fn destination(self) -> Ipv6Addr {
        address(self.0, 24)
    }

    /// Hop limit.
    #[must_use]
    pub fn hop_limit(self) -> u8 {
        self.0[7]
    }

    /// Length of what follows this header.
    #[must_use]
    pub fn payload_len(self) -> u16 {
        be16(self.0, PAYLOAD_LEN)
    }

    /// The two ECN bits (RFC 3168).
    #[must_use]
    pub fn ecn(self) -> u8 {
        self.0[1] >> 4 & 3
    }
}

/// The address at `at`, which the caller knows to be within `bytes`.
#[inline]
pub(super) fn address(bytes: &[u8], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[at..at + 16]);
    Ipv6Addr::from(octets)
}

#[inline]
pub(super) fn locate(bytes: &[u8], layout: &mut Layout) -> Result<(), Reason> {
    let at = usize::from(layout.l3_offset);
    let h: &[u8; LEN] = header(bytes, at).ok_or(Reason::Malformed)?;
    let end = at + LEN + usize::from(be16(h, PAYLOAD_LEN));
    if h[0] >> 4 != 6 || end > bytes.len() {
        return Err(Reason::Malformed);
    }
    layout.l3 = L3::Ipv6;
    layout.end = end as u32;
    layout.l4_offset = (at + LEN) as u16;
    let mut next = h[6];
    if is_extension(next) {
        next = walk(&bytes[..end], layout, next)?;
    }
    transport::locate(bytes, layout, next)
}

/// The extension headers that IANA lists but ESP, behind which nothing can be read. Some receivers
/// skip those that they do not know.
const fn is_extension(next: u8) -> bool {
    use protocol::{
        AUTHENTICATION, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, HOST_IDENTITY, MOBILITY, ROUTING, SHIM6,
    };
    matches!(
        next,
        HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS | AUTHENTICATION | MOBILITY | HOST_IDENTITY | SHIM6
    )
}

/// The number of what follows the extension headers of a packet that was parsed, or in a later
/// fragment of what its first has there.
pub(crate) fn upper(bytes: &[u8], layout: &Layout) -> u8 {
    let at = usize::from(layout.l3_offset);
    let Some(h) = header::<LEN>(bytes, at) else { return protocol::NO_NEXT_HEADER };
    let mut again = Layout { l4_offset: (at + LEN) as u16, fragment: false, later_fragment: false, ..*layout };
    match bytes.get(..layout.end as usize) {
        Some(packet) if is_extension(h[6]) => walk(packet, &mut again, h[6]).unwrap_or(protocol::NO_NEXT_HEADER),
        _ => h[6],
    }
}

/// The headers of a packet that may be cut off behind its beginning, behind the first one: the
/// number of each and where it lies, and last that of what follows them. Behind the header of a
/// later fragment lies the middle of something.
pub(crate) fn headers(packet: &[u8]) -> impl Iterator<Item = (u8, usize)> {
    let first = packet.get(NEXT_HEADER).map(|&number| (number, LEN));
    let all = std::iter::successors(first, |&(number, at)| {
        let extension: &[u8; 8] = header(packet, at)?;
        let is_later = number == protocol::FRAGMENT && be16(extension, 2) & !7 != 0;
        (is_extension(number) && !is_later).then(|| (extension[0], at + length(number, extension)))
    });
    all.take(MAX_EXTENSIONS + 1)
}

/// How long an extension header is.
fn length(number: u8, extension: &[u8; 8]) -> usize {
    let units = usize::from(extension[1]);
    match number {
        protocol::FRAGMENT => 8,
        // Its length counts four bytes less two (RFC 4302, section 2.2).
        protocol::AUTHENTICATION => (units + 2) * 4,
        _ => (units + 1) * 8,
    }
}

/// Follows the extension headers from `layout.l4_offset`, which it moves behind them; returns the
/// number of what follows.
fn walk(packet: &[u8], layout: &mut Layout, mut next: u8) -> Result<u8, Reason> {
    let first = usize::from(layout.l4_offset);
    let mut at = first;
    for _ in 0..MAX_EXTENSIONS {
        // The shortest extension header has 8 bytes (RFC 6564).
        let extension: &[u8; 8] = header(packet, at).ok_or(Reason::Malformed)?;
        match next {
            protocol::FRAGMENT => fragment(packet, at, extension, layout)?,
            protocol::HOP_BY_HOP if at != first => return Err(Reason::Malformed),
            _ => {}
        }
        at += length(next, extension);
        if at > packet.len() {
            return Err(Reason::Malformed);
        }
        layout.l4_offset = at as u16;
        next = extension[0];
        // Behind the header of a later fragment lies the middle of something.
        if layout.later_fragment || !is_extension(next) {
            return Ok(next);
        }
    }
    Err(Reason::Malformed)
}

/// The rules of RFC 8200, section 4.5.
fn fragment(packet: &[u8], at: usize, extension: &[u8; 8], layout: &mut Layout) -> Result<(), Reason> {
    let offset_and_more = be16(extension, 2);
    let offset = usize::from(offset_and_more & !7);
    let more = offset_and_more & 1 != 0;
    let len = packet.len() - at - extension.len();
    let before = at - usize::from(layout.l3_offset) - LEN;
    if layout.fragment || (more && !len.is_multiple_of(8)) || before + offset + len > usize::from(u16::MAX) {
        return Err(Reason::Malformed);
    }
    layout.fragment = true;
    layout.later_fragment = offset != 0;
    Ok(())
}
