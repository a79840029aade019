//! Guard: may this endpoint send this frame?

use crate::verdict::Reason;
use crate::wire::{Layout, Mac};
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
/// Checks a frame from an endpoint.
///
/// # Errors
/// The reason to drop it.
pub fn check(bytes: &[u8], _layout: &Layout, identity: &Identity) -> Result<(), Reason> {
    check_transit(bytes)?;
    if identity.macs.is_empty() || identity.macs.iter().any(|mac| mac.0[..] == bytes[6..12]) {
        Ok(())
    } else {
        Err(Reason::SpoofedMac)
    }
}

/// Checks a frame from the uplink or a trunk: only what no switch may pass on.
///
/// # Errors
/// The reason to drop it.
pub fn check_transit(bytes: &[u8]) -> Result<(), Reason> {
    if bytes[..5] == [1, 0x80, 0xc2, 0, 0] && bytes[5] < 16 {
        return Err(Reason::Reserved);
    }
    if bytes[6] & 1 == 1 || bytes[6..12] == [0; 6] {
        return Err(Reason::BadSource);
    }
    Ok(())
}
