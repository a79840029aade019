//! What only infrastructure says: control protocols of bridges and switches, and what routers say
//! to hosts and to each other. An endpoint says it where it is allowed to: a guest that speaks one
//! of these protocols takes part in the network it is connected to.
//!
//! Bridges and switches: everything for the group addresses that IEEE 802.1 and Cisco have reserved
//! for it (spanning trees, GARP and MRP, connectivity faults, CDP, VTP, DTP, UDLD, PAgP, PVST+),
//! and the same protocols under any other address, by their EtherType or LLC. Routers: by the
//! protocol's number, by the type of the message, and those over UDP by their port where they go to
//! a group.

use super::Allow;
use crate::verdict::Reason;
use crate::wire::{Icmp, Ipv4, Ipv6, L3, L4, Layout, Mac, Udp, destination, ethertype, icmpv4, icmpv6, ipv6, protocol};

/// Types of IGMP messages that hosts send (RFC 1112, RFC 2236, RFC 3376).
pub(super) mod igmp {
    pub const V1_REPORT: u8 = 0x12;
    pub const V2_REPORT: u8 = 0x16;
    pub const LEAVE: u8 = 0x17;
    pub const V3_REPORT: u8 = 0x22;
}

/// EtherTypes of control protocols (IEEE Registration Authority). MAC control is never forwarded at
/// all.
const ETHERTYPES: [u16; 9] = [
    0x22f4, // intermediate systems of TRILL (RFC 6325)
    0x8809, // slow protocols: LACP, OAM (IEEE 802.3, annex 57A)
    0x888e, // port access (IEEE 802.1X)
    0x88cc, // LLDP (IEEE 802.1AB)
    0x88f5, // MVRP (IEEE 802.1Q)
    0x88f6, // MMRP (IEEE 802.1Q)
    0x8902, // connectivity faults (IEEE 802.1Q, CFM)
    0x8940, // edge control (IEEE 802.1Q, ECP)
    0x9000, // configuration test, by which switches find loops
];
/// LLC addresses of spanning trees and GARP, and of OSI routing (IS-IS).
const LLC: [u8; 2] = [0x42, 0xfe];
const SNAP: u8 = 0xaa;
/// Organizations of SNAP: Ethernet itself (RFC 1042), the same over bridges that had to tell it
/// apart (IEEE 802.1H), and IEEE 802.1, under which whole frames are carried. What is checked could
/// hide there.
const ENCAPSULATIONS: [[u8; 3]; 3] = [[0, 0, 0], [0, 0, 0xf8], [0, 0x80, 0xc2]];
const CISCO: [u8; 3] = [0, 0, 0x0c];

/// UDP ports: RIP (RFC 2453), RIPng (RFC 2080), HSRP (RFC 2281), HSRP over IPv6, GLBP.
const ROUTERS_PORTS: [u16; 5] = [520, 521, 1985, 2029, 3222];
/// The first byte of IPv4 addresses that are no single host's.
pub(super) const NO_UNICAST: u8 = 224;

/// Whether an endpoint that is allowed so much may send the frame, as far as bridges and switches
/// are concerned.
#[inline]
pub(super) fn check(bytes: &[u8], layout: &Layout, allow: Allow) -> Result<(), Reason> {
    let to = destination(bytes);
    if (to.is_group() && is_groups(to) || layout.l3 == L3::Other && is_control(bytes, layout))
        && !allow.control_protocols
    {
        return Err(Reason::ControlProtocol);
    }
    if layout.ethertype == ethertype::PPPOE_DISCOVERY && !allow.router && is_concentrators(bytes, layout) {
        return Err(Reason::RouterAdvertisement);
    }
    Ok(())
}

/// Group addresses that IEEE 802.1 gives out, and those of Cisco.
fn is_groups(Mac(to): Mac) -> bool {
    matches!(to, [0x01, 0x80, 0xc2, ..] | [0x01, 0x00, 0x0c, ..])
}

fn is_control(bytes: &[u8], layout: &Layout) -> bool {
    if layout.ethertype >= ethertype::FIRST && layout.ethertype != ethertype::JUMBO_LLC {
        return ETHERTYPES.contains(&layout.ethertype);
    }
    match bytes.get(layout.l3_offset.into()..layout.end as usize) {
        Some([SNAP, _, _, a, b, c, ..]) => [*a, *b, *c] == CISCO,
        Some([dsap, ssap, ..]) => LLC.contains(dsap) || LLC.contains(ssap),
        _ => false,
    }
}

/// Whether another frame lies in this one of LLC.
pub(super) fn hides_a_frame(body: &[u8]) -> bool {
    matches!(body, [SNAP, _, _, a, b, c, ..] if ENCAPSULATIONS.contains(&[*a, *b, *c]))
        || matches!(body, [_, SNAP, _, a, b, c, ..] if ENCAPSULATIONS.contains(&[*a, *b, *c]))
}

/// What an access concentrator says to hosts that look for one (RFC 2516, section 5).
fn is_concentrators(bytes: &[u8], layout: &Layout) -> bool {
    const OFFER: u8 = 0x07;
    const SESSION: u8 = 0x65;
    matches!(bytes.get(layout.l3_offset.into()..), Some([_, OFFER | SESSION, ..]))
}

/// What only routers say over IPv4.
#[inline]
pub(super) fn check_ipv4(bytes: &[u8], layout: &Layout, ip: Ipv4) -> Result<(), Reason> {
    let is_routers = match layout.l4 {
        L4::Tcp | L4::Icmpv6 => false,
        L4::Udp => ip.destination().octets()[0] >= NO_UNICAST && is_routers_port(bytes, layout),
        L4::Icmp => {
            let kind = Icmp::of(bytes, layout).ok_or(Reason::Malformed)?.kind();
            matches!(kind, icmpv4::REDIRECT | icmpv4::ROUTER_ADVERTISEMENT)
        }
        L4::Other if ip.protocol() == protocol::IGMP => return check_igmp(bytes, layout),
        L4::Other => is_routing(ip.protocol()),
    };
    if is_routers { Err(Reason::RouterAdvertisement) } else { Ok(()) }
}

/// Hosts report and leave; all else is said by routers. No host needs to fragment it.
fn check_igmp(bytes: &[u8], layout: &Layout) -> Result<(), Reason> {
    use igmp::{LEAVE, V1_REPORT, V2_REPORT, V3_REPORT};
    match bytes.get(layout.l4_offset.into()..layout.end as usize) {
        Some([V1_REPORT | V2_REPORT | LEAVE | V3_REPORT, ..]) if !layout.fragment => Ok(()),
        _ => Err(Reason::RouterAdvertisement),
    }
}

/// What only routers say over IPv6, but for ICMPv6.
#[inline]
pub(super) fn check_ipv6(bytes: &[u8], layout: &Layout, ip: Ipv6) -> Result<(), Reason> {
    let is_routers = match layout.l4 {
        L4::Udp => ip.destination().is_multicast() && is_routers_port(bytes, layout),
        L4::Other => is_routing(ipv6::upper(bytes, layout)),
        _ => false,
    };
    if is_routers { Err(Reason::RouterAdvertisement) } else { Ok(()) }
}

fn is_routers_port(bytes: &[u8], layout: &Layout) -> bool {
    Udp::of(bytes, layout).is_some_and(|udp| ROUTERS_PORTS.contains(&udp.destination()))
}

/// Protocols of routers among each other, and of those that share an address.
fn is_routing(number: u8) -> bool {
    use protocol::{EIGRP, IGRP, OSPF, PIM, VRRP};
    matches!(number, IGRP | EIGRP | OSPF | PIM | VRRP)
}

/// Whether only routers send an ICMPv6 message of this type.
pub(super) fn is_of_routers(kind: u8) -> bool {
    use icmpv6::{MLD_QUERY, MULTICAST_ROUTER, MULTICAST_ROUTER_GONE, REDIRECT, RENUMBERING, ROUTER_ADVERTISEMENT};
    let all = [MLD_QUERY, ROUTER_ADVERTISEMENT, REDIRECT, RENUMBERING, MULTICAST_ROUTER, MULTICAST_ROUTER_GONE];
    all.contains(&kind)
}
