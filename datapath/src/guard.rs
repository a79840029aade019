//! Guard: may this endpoint send this frame?
//!
//! Everything by which a frame claims to be from somebody must be the endpoint's own: the Ethernet source, the sender in ARP (RFC 826,
//! RFC 5227), the IP source, and in neighbour discovery (RFC 4861, RFC 4862) the target that a message speaks for and the link-layer
//! address that it gives for it. An endpoint that has no address yet may ask for one (DHCP, duplicate address detection) and join
//! multicast groups (RFC 3376, RFC 3590), and every endpoint may use link-local addresses of its own making. Routers and DHCP servers must be allowed to speak as such (RFC 6105,
//! RFC 7610), however they wrap it: in extension headers and fragments (RFC 7113, RFC 6980), behind a second or priority tag, or in
//! LLC/SNAP (CVE-2021-27853, -27854, -27861, -27862).
//!
//! The common frame costs one comparison of the MAC and one of the IP address. Addresses that move between endpoints (VRRP) work by
//! listing them with each.

use crate::verdict::Reason;
use crate::wire::{
    Arp, Icmp, Ipv4, Ipv6, L3, L4, Layout, Mac, NdOption, Udp, be16, destination, ethertype, icmpv4, icmpv6, protocol,
    source,
};
use core::net::{Ipv4Addr, Ipv6Addr};
pub use ground::{Finding, Match};

mod ground;

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

impl Identity {
    fn any_ip(&self) -> bool {
        self.ipv4.is_empty() && self.ipv6.is_empty()
    }

    fn owns_mac(&self, mac: Mac) -> bool {
        self.macs.is_empty() || self.macs.contains(&mac)
    }

    fn owns_ipv4(&self, address: Ipv4Addr) -> bool {
        let matches = |&(prefix, len): &(Ipv4Addr, u8)| {
            let differing = u32::from(address) ^ u32::from(prefix);
            differing.checked_shr(32_u32.saturating_sub(len.into())).unwrap_or(0) == 0
        };
        self.ipv4.iter().any(matches) || self.any_ip()
    }

    fn owns_ipv6(&self, address: Ipv6Addr) -> bool {
        let matches = |&(prefix, len): &(Ipv6Addr, u8)| {
            let differing = u128::from(address) ^ u128::from(prefix);
            differing.checked_shr(128_u32.saturating_sub(len.into())).unwrap_or(0) == 0
        };
        self.ipv6.iter().any(matches) || self.any_ip() || self.own_link_local(address)
    }

    /// Whether a link-local address is one that a host gives itself: made from its own MAC address (RFC 4291) or at random (RFC 7217).
    /// What is made from another's MAC, or by hand like fe80::1, may be a router's; an endpoint has it only where its list says so.
    fn own_link_local(&self, address: Ipv6Addr) -> bool {
        let octets = address.octets();
        let [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, mid, dle, d, e, f] = octets else { return false };
        if (mid, dle) == (0xff, 0xfe) {
            return self.owns_mac(Mac([a ^ 2, b, c, d, e, f]));
        }
        octets[8..14] != [0; 6]
    }
}

/// Checks what no frame may be, wherever it comes from (the uplink and trunks included): from a group or nobody, or for the next
/// switch only.
///
/// # Errors
/// [`Reason::BadSource`] and [`Reason::Reserved`].
#[inline]
pub fn check_transit(bytes: &[u8]) -> Result<(), Reason> {
    let from = source(bytes);
    if from.is_group() || from.is_zero() {
        return Err(Reason::BadSource);
    }
    if destination(bytes).is_reserved() || is_mac_control(bytes) {
        return Err(Reason::Reserved);
    }
    Ok(())
}

/// Also behind a tag, which may be taken off before the frame is delivered.
fn is_mac_control(bytes: &[u8]) -> bool {
    let ethertype = match be16(bytes, 12) {
        ethertype::VLAN => be16(bytes, 16),
        untagged => untagged,
    };
    ethertype == ethertype::MAC_CONTROL
}

/// Whether the endpoint with this identity may send the frame. Includes [`check_transit`].
///
/// # Errors
/// What it pretends to be.
#[inline]
pub fn check(bytes: &[u8], layout: &Layout, identity: &Identity) -> Result<(), Reason> {
    check_transit(bytes)?;
    if !identity.owns_mac(source(bytes)) {
        return Err(Reason::SpoofedMac);
    }
    match layout.l3 {
        L3::Ipv4 => check_ipv4(bytes, layout, identity),
        L3::Ipv6 => check_ipv6(bytes, layout, identity),
        L3::Arp => check_arp(bytes, layout, identity),
        L3::Other => check_other(bytes, layout),
    }
}

/// Receivers look behind priority tags, however many, and some behind LLC/SNAP (RFC 1042): nothing that is checked may hide there.
fn check_other(bytes: &[u8], layout: &Layout) -> Result<(), Reason> {
    if ethertype::is_tag(layout.ethertype) {
        return Err(Reason::BadVlan);
    }
    let snap = layout.ethertype < ethertype::FIRST
        && matches!(bytes.get(layout.l3_offset.into()..), Some([0xaa, 0xaa, _, 0, 0, 0 | 0xf8, ..]));
    if snap { Err(Reason::Malformed) } else { Ok(()) }
}

fn check_arp(bytes: &[u8], layout: &Layout, identity: &Identity) -> Result<(), Reason> {
    let arp = Arp::of(bytes, layout).ok_or(Reason::Malformed)?;
    let sender = arp.sender_ip();
    let probe = sender.is_unspecified() && arp.operation() == Arp::REQUEST;
    if identity.owns_mac(arp.sender_mac()) && (probe || identity.owns_ipv4(sender)) {
        Ok(())
    } else {
        Err(Reason::SpoofedArp)
    }
}

#[inline]
fn check_ipv4(bytes: &[u8], layout: &Layout, identity: &Identity) -> Result<(), Reason> {
    let source = Ipv4::of(bytes, layout).ok_or(Reason::Malformed)?.source();
    let without_address = || asks_for_an_address(bytes, layout) || joins_a_group(bytes, layout);
    let own = identity.owns_ipv4(source) || (source.is_unspecified() && without_address());
    if !own {
        return Err(Reason::SpoofedIpv4);
    }
    match layout.l4 {
        L4::Udp if !identity.allow.dhcp_server => check_dhcp(bytes, layout, dhcp::SERVER, dhcp::CLIENT),
        L4::Icmp if !identity.allow.router => {
            let kind = Icmp::of(bytes, layout).ok_or(Reason::Malformed)?.kind();
            let routers = matches!(kind, icmpv4::REDIRECT | icmpv4::ROUTER_ADVERTISEMENT);
            if routers { Err(Reason::RouterAdvertisement) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// UDP ports (RFC 2131, RFC 8415).
mod dhcp {
    pub const SERVER: u16 = 67;
    pub const CLIENT: u16 = 68;
    pub const V6_SERVER: u16 = 547;
    pub const V6_CLIENT: u16 = 546;
}

/// A client of DHCP that has no address yet (RFC 2131, section 4.1).
fn asks_for_an_address(bytes: &[u8], layout: &Layout) -> bool {
    let ports = Udp::of(bytes, layout).map(|udp| (udp.source(), udp.destination()));
    ports == Some((dhcp::CLIENT, dhcp::SERVER)) && !layout.fragment
}

/// A membership report of one that has no address yet (RFC 3376, section 4.2.13: routers must accept it). Reports go to groups only.
fn joins_a_group(bytes: &[u8], layout: &Layout) -> bool {
    use igmp::{V1_REPORT, V2_REPORT, V3_REPORT};
    let Some(ip) = Ipv4::of(bytes, layout) else { return false };
    let message = bytes.get(layout.l4_offset.into()..layout.end as usize);
    let report = matches!(message, Some(&[V1_REPORT | V2_REPORT | V3_REPORT, _, _, _, _, _, _, _, ..]));
    ip.protocol() == protocol::IGMP && ip.destination().is_multicast() && !layout.fragment && report
}

/// Types of IGMP messages (RFC 1112, RFC 2236, RFC 3376).
mod igmp {
    pub const V1_REPORT: u8 = 0x12;
    pub const V2_REPORT: u8 = 0x16;
    pub const V3_REPORT: u8 = 0x22;
}

/// Clients take answers from any port, and relays ask from the server's: what leaves the one or is for the other speaks as a server.
#[inline]
fn check_dhcp(bytes: &[u8], layout: &Layout, server: u16, client: u16) -> Result<(), Reason> {
    let udp = Udp::of(bytes, layout).ok_or(Reason::Malformed)?;
    if udp.source() == server || udp.destination() == client { Err(Reason::DhcpServer) } else { Ok(()) }
}

#[inline]
fn check_ipv6(bytes: &[u8], layout: &Layout, identity: &Identity) -> Result<(), Reason> {
    let source = Ipv6::of(bytes, layout).ok_or(Reason::Malformed)?.source();
    let own = identity.owns_ipv6(source) || (source.is_unspecified() && asks_without_address(bytes, layout));
    if !own {
        return Err(Reason::SpoofedIpv6);
    }
    match layout.l4 {
        L4::Udp if !identity.allow.dhcp_server => check_dhcp(bytes, layout, dhcp::V6_SERVER, dhcp::V6_CLIENT),
        L4::Icmpv6 => check_icmpv6(bytes, layout, identity, source),
        _ => Ok(()),
    }
}

/// What a host sends before it has an address: duplicate address detection, a search for routers, and its multicast groups (RFC 3590).
fn asks_without_address(bytes: &[u8], layout: &Layout) -> bool {
    use icmpv6::{MLD_DONE, MLD_REPORT, MLDV2_REPORT, NEIGHBOUR_SOLICITATION, ROUTER_SOLICITATION};
    let asks =
        |kind| matches!(kind, NEIGHBOUR_SOLICITATION | ROUTER_SOLICITATION | MLD_REPORT | MLD_DONE | MLDV2_REPORT);
    layout.l4 == L4::Icmpv6 && !layout.fragment && Icmp::of(bytes, layout).is_some_and(|icmp| asks(icmp.kind()))
}

fn check_icmpv6(bytes: &[u8], layout: &Layout, identity: &Identity, source: Ipv6Addr) -> Result<(), Reason> {
    use icmpv6::{
        NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, REDIRECT, ROUTER_ADVERTISEMENT, ROUTER_SOLICITATION,
    };
    let message = Icmp::of(bytes, layout).ok_or(Reason::Malformed)?;
    let kind = message.kind();
    if !(ROUTER_SOLICITATION..=REDIRECT).contains(&kind) {
        return Ok(());
    }
    if matches!(kind, ROUTER_ADVERTISEMENT | REDIRECT) && !identity.allow.router {
        return Err(Reason::RouterAdvertisement);
    }
    // No host needs to fragment these, and none may take them (RFC 6980).
    if layout.fragment {
        return Err(Reason::SpoofedNd);
    }
    let speaks_for_target =
        kind == NEIGHBOUR_ADVERTISEMENT || (kind == NEIGHBOUR_SOLICITATION && source.is_unspecified());
    if speaks_for_target && !identity.owns_ipv6(message.nd_target().ok_or(Reason::Malformed)?) {
        return Err(Reason::SpoofedNd);
    }
    // A redirect names another router's address; all others give their own.
    if kind == REDIRECT { Ok(()) } else { check_link_layer_options(message, identity, source) }
}

/// The most options of one message: router advertisements with many prefixes have a dozen.
const MAX_ND_OPTIONS: usize = 64;

fn check_link_layer_options(message: Icmp, identity: &Identity, source: Ipv6Addr) -> Result<(), Reason> {
    for (i, option) in message.nd_options().enumerate() {
        if i == MAX_ND_OPTIONS {
            return Err(Reason::Malformed);
        }
        let own = match option {
            // A sender without an address has none to give a link-layer address for (RFC 4861, section 4.1 and 4.3).
            Ok(NdOption::SourceLinkLayer(mac)) => {
                mac.is_some_and(|mac| identity.owns_mac(mac)) && !source.is_unspecified()
            }
            Ok(NdOption::TargetLinkLayer(mac)) => mac.is_some_and(|mac| identity.owns_mac(mac)),
            Ok(NdOption::Other(_)) => true,
            Err(_) => return Err(Reason::Malformed),
        };
        if !own {
            return Err(Reason::SpoofedNd);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
