//! Guard: may this endpoint send this frame?

use crate::wire::Mac;
use core::net::{Ipv4Addr, Ipv6Addr};

/// What an endpoint may announce beyond its own addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allow {
    /// Messages of a DHCP or DHCPv6 server.
    pub dhcp_server: bool,
    /// Router advertisements and redirects.
    pub router: bool,
}

/// The addresses that belong to an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// Its MAC addresses; none means any.
    pub macs: Vec<Mac>,
    /// Its IPv4 prefixes.
    pub ipv4: Vec<(Ipv4Addr, u8)>,
    /// Its IPv6 prefixes. Where both lists are empty, it may use any IP address.
    pub ipv6: Vec<(Ipv6Addr, u8)>,
    /// What else it may do.
    pub allow: Allow,
}
