//! What differs between rules of the two versions of IP.

use crate::wire::{Field, Kind};
use datapath::wire::{ethertype, icmpv6, protocol};
use std::net::IpAddr;

/// The numbers and fields of one version.
#[derive(Debug)]
pub(crate) struct Version {
    ether: u16,
    /// The number of its ICMP, and where that has its type.
    icmp: u8,
    icmp_type: Kind,
    /// An echo request, and the answer to one.
    pub echo: [u8; 2],
    /// Errors that quote a packet of a connection: unreachable, too big, time exceeded, parameter
    /// problem (RFC 792; RFC 4443).
    pub errors: &'static [u8],
}

const V4: Version = Version {
    ether: ethertype::IPV4,
    icmp: protocol::ICMP,
    icmp_type: Kind::ICMP_TYPE,
    echo: [8, 0],
    errors: &[3, 11, 12],
};
const V6: Version = Version {
    ether: ethertype::IPV6,
    icmp: protocol::ICMPV6,
    icmp_type: Kind::ICMPV6_TYPE,
    echo: [128, 129],
    errors: &[1, 2, 3, 4],
};

impl Version {
    /// That of an address.
    pub fn of(ip: IpAddr) -> &'static Version {
        if ip.is_ipv4() { &V4 } else { &V6 }
    }

    /// Its packets.
    pub fn packets(&self) -> Field {
        Field::new(Kind::ETH_TYPE, self.ether)
    }

    /// What its messages of ICMP match, or are made by.
    pub fn icmp(&self, kind: u8) -> [Field; 2] {
        [Field::new(Kind::IP_PROTO, self.icmp), Field::new(self.icmp_type, kind)]
    }
}

/// Neighbour discovery: a solicitation, and an advertisement (RFC 4861).
pub(crate) const ASKS: u8 = icmpv6::NEIGHBOUR_SOLICITATION;
pub(crate) const SAYS: u8 = icmpv6::NEIGHBOUR_ADVERTISEMENT;
