//! Guard: may this endpoint send this frame?
//!
//! Everything by which a frame claims to be from somebody must be the endpoint's own: the Ethernet
//! source, the sender in ARP (RFC 826, RFC 5227), the IP source, and in neighbour discovery (RFC
//! 4861, RFC 4862) the target that a message speaks for and the link-layer address that it gives
//! for it. An endpoint that has no address yet may ask for one (DHCP, duplicate address detection)
//! and join multicast groups (RFC 3376, RFC 3590), and every endpoint may use link-local addresses
//! of its own making. Who speaks as infrastructure must be allowed to: routers and DHCP servers
//! (RFC 6105, RFC 7610), whatever they say it in, and what bridges and switches say to each other
//! (`guard/control.rs`). However they wrap it: in extension headers and fragments (RFC 7113, RFC
//! 6980), behind a second or priority tag, or in LLC/SNAP (CVE-2021-27853, -27854, -27861, -27862).
//!
//! The common frame costs one comparison of the MAC and one of the IP address. Addresses that move
//! between endpoints (VRRP) work by listing them with each. An address that is not in the sender's
//! list may be another's: [`Right::Ask`] says that [`crate::owners`] is to be asked for what the
//! frame claims (`guard/claims.rs`).

use crate::verdict::Reason;
use crate::wire::{
    Arp, Icmp, Ipv4, Ipv6, L3, L4, Layout, Mac, NdOption, Udp, be16, be32, destination, ethertype, icmpv6, protocol,
    source, vlan,
};
pub use claims::{Claim, Kind, claims};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
pub use explanation::{Finding, Match};

mod claims;
mod control;
mod explanation;

/// What an endpoint may announce beyond its own addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allow {
    /// Messages of a DHCP or DHCPv6 server.
    pub dhcp_server: bool,
    /// What only routers say (`guard/control.rs`).
    pub router: bool,
    /// Control protocols of bridges and switches.
    pub control_protocols: bool,
    /// Addresses that are not declared, in a network that tenants share.
    pub learned_addresses: bool,
}

/// By what right a frame may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// All that it claims is declared.
    Declared,
    /// It claims addresses that the sender's list does not have: they may be another's.
    Ask,
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
    /// Whether it lists no IP address: it may use any that is nobody else's.
    #[must_use]
    pub fn any_ip(&self) -> bool {
        self.ipv4.is_empty() && self.ipv6.is_empty()
    }

    fn owns_mac(&self, mac: Mac) -> bool {
        self.macs.is_empty() || self.macs.contains(&mac)
    }

    /// Whether a link-layer address inside a message is the sender's: where none is declared, the
    /// one that the frame is from.
    fn owns_inner_mac(&self, mac: Mac, source: Mac) -> bool {
        mac == source || self.macs.contains(&mac)
    }

    /// By what right it may use an address; `None` where it may not.
    #[inline]
    pub(crate) fn right_v4(&self, address: Ipv4Addr) -> Option<Right> {
        let matches = |&(prefix, len): &(Ipv4Addr, u8)| {
            let differing = u32::from(address) ^ u32::from(prefix);
            differing.checked_shr(32_u32.saturating_sub(len.into())).unwrap_or(0) == 0
        };
        if self.ipv4.iter().any(matches) {
            return Some(Right::Declared);
        }
        self.any_ip().then_some(Right::Ask)
    }

    /// The same for IPv6.
    #[inline]
    pub(crate) fn right_v6(&self, address: Ipv6Addr) -> Option<Right> {
        let matches = |&(prefix, len): &(Ipv6Addr, u8)| {
            let differing = u128::from(address) ^ u128::from(prefix);
            differing.checked_shr(128_u32.saturating_sub(len.into())).unwrap_or(0) == 0
        };
        if self.ipv6.iter().any(matches) {
            return Some(Right::Declared);
        }
        (self.any_ip() || self.own_link_local(address)).then_some(Right::Ask)
    }

    /// By what right it may use an address; `None` where it may not.
    pub(crate) fn right(&self, address: IpAddr) -> Option<Right> {
        match address {
            IpAddr::V4(address) => self.right_v4(address),
            IpAddr::V6(address) => self.right_v6(address),
        }
    }

    /// By what right it may tell its neighbours that an address is here. Of a prefix, it may have
    /// what nobody else has.
    fn right_to_bind(&self, address: IpAddr) -> Option<Right> {
        let right = self.right(address)?;
        Some(if self.hosts().any(|own| own == address) { right } else { Right::Ask })
    }

    /// The addresses that it lists one by one, which are its own.
    pub fn hosts(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let v4 = self.ipv4.iter().filter(|(_, len)| *len >= 32).map(|&(address, _)| IpAddr::V4(address));
        let v6 = self.ipv6.iter().filter(|(_, len)| *len >= 128).map(|&(address, _)| IpAddr::V6(address));
        v4.chain(v6)
    }

    /// Whether a link-local address is one that a host gives itself: made from its own MAC address
    /// (RFC 4291) or at random (RFC 7217). What is made from another's MAC, or by hand like
    /// fe80::1, may be a router's; an endpoint has it only where its list says so.
    fn own_link_local(&self, address: Ipv6Addr) -> bool {
        let octets = address.octets();
        if octets[..8] != [0xfe, 0x80, 0, 0, 0, 0, 0, 0] {
            return false;
        }
        match link_local_of(address) {
            Some(mac) => self.owns_mac(mac),
            None => octets[8..14] != [0; 6],
        }
    }
}

/// The MAC address that a link-local address is made from, where it is (modified EUI-64, RFC 4291,
/// appendix A).
pub(crate) fn link_local_of(address: Ipv6Addr) -> Option<Mac> {
    match address.octets() {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => Some(Mac([a ^ 2, b, c, d, e, f])),
        _ => None,
    }
}

/// Checks what no frame may be, wherever it comes from (the uplink and trunks included): from a
/// group or nobody, or for the next switch only.
///
/// # Errors
/// [`Reason::BadSource`] and [`Reason::Reserved`].
#[inline]
pub fn check_transit(bytes: &[u8]) -> Result<(), Reason> {
    let (from, to) = (source(bytes), destination(bytes));
    if from.is_group() || from.is_zero() {
        return Err(Reason::BadSource);
    }
    if to.is_group() && to.is_reserved() || is_mac_control(bytes) {
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

/// Whether the endpoint with this identity may send the frame, as far as its own list says.
/// Includes [`check_transit`].
///
/// # Errors
/// What it pretends to be.
#[inline(always)]
pub fn check(bytes: &[u8], layout: &Layout, identity: &Identity) -> Result<Right, Reason> {
    if is_plain(bytes, layout, identity) { Ok(Right::Declared) } else { check_all(bytes, layout, identity) }
}

/// Whether a frame is what most are: untagged TCP or UDP over IPv4 for one host, from the first
/// addresses that the sender lists, and of no protocol that needs to be allowed. Of such a frame
/// [`check_all`] says that it may be sent; of others this says nothing. It reads nothing behind the
/// ports.
#[inline(always)]
pub(crate) fn is_plain(bytes: &[u8], layout: &Layout, identity: &Identity) -> bool {
    const L4_OFFSET: u16 = 34;
    let (Some(mac), Some(&(prefix, len))) = (identity.macs.first(), identity.ipv4.first()) else { return false };
    let Some(h) = bytes.first_chunk::<38>() else { return false };
    let (to, from) = (Mac([h[0], h[1], h[2], h[3], h[4], h[5]]), Mac([h[6], h[7], h[8], h[9], h[10], h[11]]));
    let differing = be32(h, 26) ^ u32::from(prefix);
    if from != *mac
        || from.is_group()
        || from.is_zero()
        || to.is_group()
        || layout.l3 != L3::Ipv4
        || layout.l4_offset != L4_OFFSET
        || differing.checked_shr(32_u32.saturating_sub(len.into())).unwrap_or(0) != 0
    {
        return false;
    }
    match layout.l4 {
        L4::Tcp => true,
        L4::Udp => be16(h, 34) != dhcp::SERVER && be16(h, 36) != dhcp::CLIENT && h[30] < control::NO_UNICAST,
        _ => false,
    }
}

#[inline(never)]
fn check_all(bytes: &[u8], layout: &Layout, identity: &Identity) -> Result<Right, Reason> {
    check_transit(bytes)?;
    if !identity.owns_mac(source(bytes)) {
        return Err(Reason::SpoofedMac);
    }
    control::check(bytes, layout, identity.allow)?;
    match layout.l3 {
        L3::Ipv4 => check_ipv4(bytes, layout, identity),
        L3::Ipv6 => check_ipv6(bytes, layout, identity),
        L3::Arp => check_arp(bytes, layout, identity),
        L3::Other => check_other(bytes, layout, identity),
    }
}

/// The same for a trunk, of which no list says what is behind it, but what it may do beside others
/// ([`Allow`]). VLAN tags pass, but for those that would take a frame into another tenant's VLAN
/// outside, which `is_taken` knows: a trunk in the untagged network leaves it with the tags that it
/// has.
///
/// # Errors
/// What it pretends to be.
pub fn check_trunk(
    bytes: &[u8],
    layout: &Layout,
    allow: Allow,
    is_taken: Option<impl Fn(u16) -> bool>,
) -> Result<Right, Reason> {
    check_transit(bytes)?;
    control::check(bytes, layout, allow)?;
    match vlan_of(bytes)? {
        Some(vlan) if is_taken.is_some_and(|is_taken| is_taken(vlan)) => Err(Reason::BadVlan),
        Some(_) => Ok(Right::Ask),
        None => check_service(bytes, layout, allow).map(|()| Right::Ask),
    }
}

/// Priority tags of a frame that are looked behind: nobody needs more than one.
const MOST_TAGS: usize = 8;

/// The VLAN that a frame's tags name, if any does. Behind priority tags, which others may take off,
/// lies what counts.
fn vlan_of(bytes: &[u8]) -> Result<Option<u16>, Reason> {
    for at in (12..).step_by(vlan::TAG).take(MOST_TAGS) {
        if bytes.len() < at + 4 || !ethertype::is_tag(be16(bytes, at)) {
            return Ok(None);
        }
        let vlan = be16(bytes, at + 2) & vlan::MOST;
        if vlan != 0 {
            return Ok(Some(vlan));
        }
    }
    Err(Reason::BadVlan)
}

/// Whether a trunk may serve the network that it is in, as a router or by DHCP, where it does.
fn check_service(bytes: &[u8], layout: &Layout, allow: Allow) -> Result<(), Reason> {
    if allow.router && allow.dhcp_server {
        return Ok(());
    }
    match layout.l3 {
        L3::Ipv4 => serves_ipv4(bytes, layout, Ipv4::of(bytes, layout).ok_or(Reason::Malformed)?, allow),
        L3::Ipv6 => {
            let is_of_routers = |icmp: Icmp| control::is_of_routers(icmp.kind());
            if layout.l4 == L4::Icmpv6 && !allow.router && Icmp::of(bytes, layout).is_none_or(is_of_routers) {
                return Err(Reason::RouterAdvertisement);
            }
            serves_ipv6(bytes, layout, Ipv6::of(bytes, layout).ok_or(Reason::Malformed)?, allow)
        }
        L3::Arp => Ok(()),
        L3::Other => check_hidden(bytes, layout),
    }
}

/// Receivers look behind priority tags, however many, and some behind LLC/SNAP (RFC 1042): nothing
/// that is checked may hide there.
fn check_hidden(bytes: &[u8], layout: &Layout) -> Result<(), Reason> {
    if ethertype::is_tag(layout.ethertype) || layout.ethertype == ethertype::BACKBONE_TAG {
        return Err(Reason::BadVlan);
    }
    let is_llc = layout.ethertype < ethertype::FIRST || layout.ethertype == ethertype::JUMBO_LLC;
    if is_llc && control::hides_a_frame(body(bytes, layout)) { Err(Reason::Malformed) } else { Ok(()) }
}

fn check_other(bytes: &[u8], layout: &Layout, identity: &Identity) -> Result<Right, Reason> {
    check_hidden(bytes, layout)?;
    if layout.ethertype == ethertype::RARP {
        return check_rarp(body(bytes, layout), source(bytes), identity);
    }
    Ok(Right::Declared)
}

/// What is behind the Ethernet header and a tag.
fn body<'a>(bytes: &'a [u8], layout: &Layout) -> &'a [u8] {
    bytes.get(layout.l3_offset.into()..layout.end as usize).unwrap_or_default()
}

/// Reverse ARP (RFC 903) is used to announce a machine that has moved: it may name its own address,
/// and answers nobody.
fn check_rarp(body: &[u8], source: Mac, identity: &Identity) -> Result<Right, Reason> {
    const REQUEST: u16 = 3;
    let message: &[u8; 28] = body.first_chunk().ok_or(Reason::Malformed)?;
    let own = |at: usize| {
        let mac = message[at..at + 6].try_into().map(Mac);
        mac.is_ok_and(|mac| identity.owns_inner_mac(mac, source))
    };
    if be16(message, 6) == REQUEST && own(8) && own(18) { Ok(Right::Declared) } else { Err(Reason::SpoofedArp) }
}

fn check_arp(bytes: &[u8], layout: &Layout, identity: &Identity) -> Result<Right, Reason> {
    let arp = Arp::of(bytes, layout).ok_or(Reason::Malformed)?;
    let sender = arp.sender_ip();
    if !identity.owns_inner_mac(arp.sender_mac(), source(bytes)) {
        return Err(Reason::SpoofedArp);
    }
    if sender.is_unspecified() && arp.operation() == Arp::REQUEST {
        // A probe is a question, but one that takes the address from an owner who has just come
        // (RFC 5227, section 2.1.1).
        return Ok(identity.right_to_bind(arp.target_ip().into()).unwrap_or(Right::Ask));
    }
    identity.right_to_bind(sender.into()).ok_or(Reason::SpoofedArp)
}

#[inline]
fn check_ipv4(bytes: &[u8], layout: &Layout, identity: &Identity) -> Result<Right, Reason> {
    let ip = Ipv4::of(bytes, layout).ok_or(Reason::Malformed)?;
    let source = ip.source();
    let without_address = || asks_for_an_address(bytes, layout) || joins_a_group(bytes, layout);
    let right = match identity.right_v4(source) {
        Some(right) => right,
        None if source.is_unspecified() && without_address() => Right::Declared,
        None => return Err(Reason::SpoofedIpv4),
    };
    serves_ipv4(bytes, layout, ip, identity.allow)?;
    Ok(right)
}

/// What only DHCP's servers and routers send over IPv4.
#[inline]
fn serves_ipv4(bytes: &[u8], layout: &Layout, ip: Ipv4, allow: Allow) -> Result<(), Reason> {
    if layout.l4 == L4::Udp && !allow.dhcp_server {
        check_dhcp(bytes, layout, dhcp::SERVER, dhcp::CLIENT)?;
    }
    if layout.l4 != L4::Tcp && !allow.router {
        control::check_ipv4(bytes, layout, ip)?;
    }
    Ok(())
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

/// A membership report of one that has no address yet (RFC 3376, section 4.2.13: routers must
/// accept it). Reports go to groups only.
fn joins_a_group(bytes: &[u8], layout: &Layout) -> bool {
    use control::igmp::{V1_REPORT, V2_REPORT, V3_REPORT};
    let Some(ip) = Ipv4::of(bytes, layout) else { return false };
    let message = bytes.get(layout.l4_offset.into()..layout.end as usize);
    let report = matches!(message, Some(&[V1_REPORT | V2_REPORT | V3_REPORT, _, _, _, _, _, _, _, ..]));
    ip.protocol() == protocol::IGMP && ip.destination().is_multicast() && !layout.fragment && report
}

/// Clients take answers from any port, and relays ask from the server's: what leaves the one or is
/// for the other speaks as a server.
#[inline]
fn check_dhcp(bytes: &[u8], layout: &Layout, server: u16, client: u16) -> Result<(), Reason> {
    let udp = Udp::of(bytes, layout).ok_or(Reason::Malformed)?;
    if udp.source() == server || udp.destination() == client { Err(Reason::DhcpServer) } else { Ok(()) }
}

#[inline]
fn check_ipv6(bytes: &[u8], layout: &Layout, identity: &Identity) -> Result<Right, Reason> {
    let ip = Ipv6::of(bytes, layout).ok_or(Reason::Malformed)?;
    let source = ip.source();
    let right = match identity.right_v6(source) {
        Some(right) => right,
        None if source.is_unspecified() && asks_without_address(bytes, layout) => Right::Ask,
        None => return Err(Reason::SpoofedIpv6),
    };
    if layout.l4 == L4::Icmpv6 {
        return check_icmpv6(bytes, layout, identity, source, right);
    }
    serves_ipv6(bytes, layout, ip, identity.allow)?;
    Ok(right)
}

/// The same over IPv6, but for ICMPv6.
#[inline]
fn serves_ipv6(bytes: &[u8], layout: &Layout, ip: Ipv6, allow: Allow) -> Result<(), Reason> {
    if layout.l4 == L4::Udp && !allow.dhcp_server {
        check_dhcp(bytes, layout, dhcp::V6_SERVER, dhcp::V6_CLIENT)?;
    }
    if layout.l4 != L4::Tcp && !allow.router {
        control::check_ipv6(bytes, layout, ip)?;
    }
    Ok(())
}

/// What a host sends before it has an address: duplicate address detection, a search for routers,
/// and its multicast groups (RFC 3590).
fn asks_without_address(bytes: &[u8], layout: &Layout) -> bool {
    use icmpv6::{MLD_DONE, MLD_REPORT, MLDV2_REPORT, NEIGHBOUR_SOLICITATION, ROUTER_SOLICITATION};
    let asks =
        |kind| matches!(kind, NEIGHBOUR_SOLICITATION | ROUTER_SOLICITATION | MLD_REPORT | MLD_DONE | MLDV2_REPORT);
    layout.l4 == L4::Icmpv6 && !layout.fragment && Icmp::of(bytes, layout).is_some_and(|icmp| asks(icmp.kind()))
}

fn check_icmpv6(
    bytes: &[u8],
    layout: &Layout,
    identity: &Identity,
    address: Ipv6Addr,
    right: Right,
) -> Result<Right, Reason> {
    use icmpv6::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, REDIRECT, ROUTER_SOLICITATION};
    let message = Icmp::of(bytes, layout).ok_or(Reason::Malformed)?;
    let kind = message.kind();
    if control::is_of_routers(kind) && !identity.allow.router {
        return Err(Reason::RouterAdvertisement);
    }
    if !(ROUTER_SOLICITATION..=REDIRECT).contains(&kind) {
        return Ok(right);
    }
    // No host needs to fragment these, and none may take them (RFC 6980).
    if layout.fragment {
        return Err(Reason::SpoofedNd);
    }
    // A redirect to itself says that it has the target.
    let is_own = |option| matches!(option, Ok(NdOption::TargetLinkLayer(Some(mac))) if mac == source(bytes));
    let speaks_for_target = match kind {
        NEIGHBOUR_ADVERTISEMENT => true,
        NEIGHBOUR_SOLICITATION => address.is_unspecified(),
        REDIRECT => message.nd_options().any(is_own),
        _ => false,
    };
    let mut rights = [identity.right_to_bind(address.into()).unwrap_or(right), Right::Declared];
    if speaks_for_target {
        let target = message.nd_target().ok_or(Reason::Malformed)?;
        rights[1] = identity.right_to_bind(target.into()).ok_or(Reason::SpoofedNd)?;
    }
    // A redirect gives another's link-layer address, as all know it; all others give their own.
    if kind == REDIRECT {
        rights[1] = Right::Ask;
    } else {
        check_link_layer_options(message, identity, source(bytes), address)?;
    }
    Ok(if rights.contains(&Right::Ask) { Right::Ask } else { Right::Declared })
}

/// The most options of one message: router advertisements with many prefixes have a dozen.
const MAX_ND_OPTIONS: usize = 64;

fn check_link_layer_options(message: Icmp, identity: &Identity, source: Mac, address: Ipv6Addr) -> Result<(), Reason> {
    let owns = |mac: Option<Mac>| mac.is_some_and(|mac| identity.owns_inner_mac(mac, source));
    for (i, option) in message.nd_options().enumerate() {
        if i == MAX_ND_OPTIONS {
            return Err(Reason::Malformed);
        }
        let own = match option {
            // A sender without an address has none to give a link-layer address for (RFC 4861,
            // section 4.1 and 4.3).
            Ok(NdOption::SourceLinkLayer(mac)) => owns(mac) && !address.is_unspecified(),
            Ok(NdOption::TargetLinkLayer(mac)) => owns(mac),
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
