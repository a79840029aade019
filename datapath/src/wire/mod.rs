//! Wire formats: where the headers of a frame lie.

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether this is a group (multicast or broadcast) address.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }
}

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
    /// EtherType behind the tags.
    pub ethertype: u16,
    /// Network layer.
    pub l3: L3,
    /// Transport layer of a first or only fragment.
    pub l4: L4,
    /// It is a fragment (first or later).
    pub fragment: bool,
    /// It is a later fragment: there is no transport header.
    pub later_fragment: bool,
    /// First byte of the network header.
    pub l3_offset: u16,
    /// First byte of the transport header (behind options and extension headers); 0 where there is none.
    pub l4_offset: u16,
    /// First byte behind the transport header for TCP and UDP; 0 otherwise.
    pub payload_offset: u16,
    /// First byte behind the network packet (padding of short frames excluded); the frame's length where unknown.
    pub end: u32,
}
