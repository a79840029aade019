//! ICMP (RFC 792), ICMPv6 (RFC 4443) and the options of neighbour discovery (RFC 4861, section
//! 4.6).

use super::{L4, Layout, Mac, header, ipv6};
use core::net::Ipv6Addr;

/// Types of ICMP messages (IANA).
pub mod icmpv4 {
    /// Redirect.
    pub const REDIRECT: u8 = 5;
    /// Router advertisement (RFC 1256).
    pub const ROUTER_ADVERTISEMENT: u8 = 9;
}

/// Types of ICMPv6 messages (IANA).
pub mod icmpv6 {
    /// Multicast listener query, MLD and MLDv2.
    pub const MLD_QUERY: u8 = 130;
    /// Multicast listener report (RFC 2710).
    pub const MLD_REPORT: u8 = 131;
    /// Multicast listener done (RFC 2710).
    pub const MLD_DONE: u8 = 132;
    /// Router solicitation.
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Router advertisement.
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Neighbour solicitation.
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement.
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Redirect.
    pub const REDIRECT: u8 = 137;
    /// Router renumbering (RFC 2894).
    pub const RENUMBERING: u8 = 138;
    /// Advertisement and termination of multicast routers (RFC 4286).
    pub const MULTICAST_ROUTER: u8 = 151;
    /// See [`MULTICAST_ROUTER`].
    pub const MULTICAST_ROUTER_GONE: u8 = 153;
    /// Multicast listener report of MLDv2 (RFC 3810).
    pub const MLDV2_REPORT: u8 = 143;
}

/// An ICMP or ICMPv6 message.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a>(&'a [u8]);

impl<'a> Icmp<'a> {
    /// The message of a frame that has one of ICMP or ICMPv6 (see `layout.l4`), to the packet's
    /// end. At least 8 bytes.
    #[must_use]
    #[inline]
    pub fn of(bytes: &'a [u8], layout: &Layout) -> Option<Self> {
        if !matches!(layout.l4, L4::Icmp | L4::Icmpv6) {
            return None;
        }
        let message = bytes.get(layout.l4_offset.into()..layout.end as usize)?;
        (message.len() >= 8).then_some(Icmp(message))
    }

    /// The message's type; see [`icmpv4`] and [`icmpv6`].
    #[must_use]
    pub fn kind(self) -> u8 {
        self.0[0]
    }

    /// The message's code.
    #[must_use]
    pub fn code(self) -> u8 {
        self.0[1]
    }

    /// The first byte of the message's second word: the flags of a neighbour advertisement.
    #[must_use]
    pub fn flags(self) -> u8 {
        self.0[4]
    }

    /// The target address of a neighbour solicitation, neighbour advertisement or redirect. `None`
    /// where it is cut off.
    #[must_use]
    pub fn nd_target(self) -> Option<Ipv6Addr> {
        header::<16>(self.0, 8).map(|octets| ipv6::address(octets, 0))
    }

    /// The options of a neighbour-discovery message; none of another.
    #[must_use]
    pub fn nd_options(self) -> NdOptions<'a> {
        let fixed = match self.kind() {
            icmpv6::ROUTER_SOLICITATION => 8,
            icmpv6::ROUTER_ADVERTISEMENT => 16,
            icmpv6::NEIGHBOUR_SOLICITATION | icmpv6::NEIGHBOUR_ADVERTISEMENT => 24,
            icmpv6::REDIRECT => 40,
            _ => self.0.len(),
        };
        NdOptions(self.0.get(fixed..))
    }
}

/// One option of a neighbour-discovery message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NdOption {
    /// The sender's link-layer address. `None` where it is not as long as an Ethernet address.
    SourceLinkLayer(Option<Mac>),
    /// The target's link-layer address. `None` where it is not as long as an Ethernet address.
    TargetLinkLayer(Option<Mac>),
    /// An option of this type.
    Other(u8),
}

/// The options of a neighbour-discovery message, in order. An item is an error, and the last, where
/// the options are cut off.
#[derive(Clone, Debug)]
pub struct NdOptions<'a>(Option<&'a [u8]>);

impl Iterator for NdOptions<'_> {
    type Item = Result<NdOption, Truncated>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(rest) = self.0 else {
            self.0 = Some(&[]);
            return Some(Err(Truncated));
        };
        if rest.is_empty() {
            return None;
        }
        // Lengths count units of 8 bytes; zero is forbidden.
        let len = usize::from(*rest.get(1).unwrap_or(&0)) * 8;
        if len == 0 || len > rest.len() {
            self.0 = Some(&[]);
            return Some(Err(Truncated));
        }
        self.0 = Some(&rest[len..]);
        let mac = || (len == 8).then(|| Mac([rest[2], rest[3], rest[4], rest[5], rest[6], rest[7]]));
        Some(Ok(match rest[0] {
            1 => NdOption::SourceLinkLayer(mac()),
            2 => NdOption::TargetLinkLayer(mac()),
            kind => NdOption::Other(kind),
        }))
    }
}

/// The options end in the middle of one, or the message before them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncated;
