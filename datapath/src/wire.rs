//! Wire formats: where the headers of a frame lie, and what is in them.
//!
//! [`parse`] walks the headers once when a frame enters and keeps only offsets, in [`Layout`];
//! whatever needs a field later takes a borrowed view of that header ([`Ipv4::of`], [`Tcp::of`],
//! ...), which costs one bounds check. A header whose lengths contradict each other or the frame is
//! [`Reason::Malformed`]; a protocol that the switch does not know is simply `Other`.
//!
//! Each file opens with the documents it follows. [`build`] makes frames, for tests and for the
//! simulator.

mod arp;
pub mod build;
mod ethernet;
mod flow;
mod icmp;
pub(crate) mod ipv4;
pub(crate) mod ipv6;
mod mac;
pub(crate) mod transport;
pub mod vlan;

pub use arp::Arp;
pub use ethernet::{ETHERNET_HEADER, destination, ethertype, source};
pub use flow::{FlowHash, FlowKey};
pub(crate) use flow::{Tcp4, Tcp6, TcpFlow};
pub use icmp::{Icmp, NdOption, NdOptions, Truncated, icmpv4, icmpv6};
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use mac::{Mac, MacError};
pub use transport::{Tcp, Udp, protocol, tcp_flags};

use crate::verdict::Reason;

/// The network-layer protocol of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum L3 {
    /// None that the switch knows.
    #[default]
    Other,
    /// ARP for IPv4 over Ethernet (RFC 826).
    Arp,
    /// IPv4 (RFC 791).
    Ipv4,
    /// IPv6 (RFC 8200).
    Ipv6,
}

/// The transport protocol of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum L4 {
    /// None, or none that the switch knows, or hidden in a later fragment.
    #[default]
    Other,
    /// TCP (RFC 9293).
    Tcp,
    /// UDP (RFC 768).
    Udp,
    /// ICMP (RFC 792).
    Icmp,
    /// ICMPv6 (RFC 4443).
    Icmpv6,
}

/// Where the headers of a frame lie. Offsets count from the frame's first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// The outermost 802.1Q tag's VLAN id.
    pub vlan: Option<u16>,
    /// EtherType behind the outermost tag (of a second tag, where there is one); below 0x600 the
    /// length of an LLC frame.
    pub ethertype: u16,
    /// Network layer.
    pub l3: L3,
    /// Transport layer of a first or only fragment.
    pub l4: L4,
    /// It is a fragment (first or later), or has an IPv6 fragment header although it is whole.
    pub fragment: bool,
    /// It is a later fragment: there is no transport header.
    pub later_fragment: bool,
    /// First byte behind the Ethernet header and its tag.
    pub l3_offset: u16,
    /// First byte behind the IP header, its options and extension headers, whatever follows there;
    /// 0 where the frame is not IP.
    pub l4_offset: u16,
    /// First byte behind the transport header for TCP and UDP; 0 otherwise.
    pub payload_offset: u16,
    /// First byte behind the network packet (padding of short frames excluded); the frame's length
    /// where unknown.
    pub end: u32,
}

impl Layout {
    /// Whether it is a whole packet of these layers.
    #[must_use]
    #[inline(always)]
    pub(crate) fn is_whole(&self, l3: L3, l4: L4) -> bool {
        // Of bytes that lie side by side the compiler compares all at once.
        let bytes = |fragment, l3: L3, l4: L4| u32::from_le_bytes([fragment, 0, l3 as u8, l4 as u8]);
        let &Layout { fragment, later_fragment, .. } = self;
        let later = u32::from(later_fragment) << 8;
        bytes(fragment.into(), self.l3, self.l4) | later == bytes(0, l3, l4)
    }

    /// Length of all headers, for TCP and UDP: what every segment repeats.
    #[must_use]
    pub fn headers(&self) -> usize {
        usize::from(self.payload_offset)
    }

    /// Moves every offset by `by` bytes, which were put before the network header or taken away
    /// there.
    #[inline(always)]
    pub(crate) fn shift(&mut self, by: i16) {
        for offset in [&mut self.l3_offset, &mut self.l4_offset, &mut self.payload_offset] {
            if *offset != 0 {
                *offset = offset.wrapping_add_signed(by);
            }
        }
        self.end = self.end.wrapping_add_signed(i32::from(by));
    }
}

/// Finds the headers of a frame.
///
/// # Errors
/// [`Reason::Malformed`] where a header that the switch knows is cut off, or its lengths contradict
/// each other or the frame's.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Layout, Reason> {
    let mut layout = Layout::default();
    locate(bytes, &mut layout).map(|()| layout)
}

/// The same into a layout that is there, of which nothing counts after an error.
#[inline(always)]
pub(crate) fn locate(bytes: &[u8], layout: &mut Layout) -> Result<(), Reason> {
    if ipv4::locate_plain(bytes, layout) { Ok(()) } else { locate_any(bytes, layout) }
}

#[inline(never)]
fn locate_any(bytes: &[u8], layout: &mut Layout) -> Result<(), Reason> {
    ethernet::locate(bytes, layout)?;
    match layout.ethertype {
        ethertype::IPV4 => ipv4::locate(bytes, layout),
        ethertype::IPV6 => ipv6::locate(bytes, layout),
        ethertype::ARP => arp::locate(bytes, layout),
        length if length < ethertype::FIRST => ethernet::locate_llc(bytes, layout),
        _ => Ok(()),
    }
}

/// The first `N` bytes at `at`, which is how every header is read: one bounds check, then an array.
#[inline]
pub(crate) fn header<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..at + N)?.first_chunk()
}

/// The big-endian number at `at`.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The big-endian number at `at`.
#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Stores a big-endian number at `at`.
#[inline]
pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    let field = &mut bytes[at..at + 2];
    [field[0], field[1]] = value.to_be_bytes();
}

/// Stores a big-endian number at `at`.
#[inline]
pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    let field = &mut bytes[at..at + 4];
    [field[0], field[1], field[2], field[3]] = value.to_be_bytes();
}

#[cfg(test)]
mod tests;
