//! What the filter decides, in Rust: for people who ask what would become of a frame, and to
//! compare the program with.

use std::net::IpAddr;

use datapath::guard::{self, Identity};
use datapath::offload::{Gso, Offload};
use datapath::segment;
use datapath::wire::{self, Ipv4, Ipv6, L3, L4, Layout, Udp, ethertype};

use super::programs::any_ip;

/// Headers of Ethernet and IP that are neither tagged nor have options or extensions.
const IPV4_HEADERS: u16 = 14 + 20;
const IPV6_HEADERS: u16 = 14 + 40;

/// Whether a frame of an endpoint with this identity is taken, where a socket of IP has sent it:
/// then how many bytes the longest frame has that it is on the wire.
#[must_use]
pub fn takes(bytes: &[u8], offload: &Offload, identity: &Identity) -> Option<u32> {
    let layout = wire::parse(bytes).ok()?;
    segment::check_offload(bytes, &layout, offload).ok()?;
    guard::check(bytes, &layout, identity).ok()?;
    let untagged = matches!(layout.ethertype, ethertype::IPV4 | ethertype::IPV6) && layout.vlan.is_none();
    if !untagged
        || !is_unicast(bytes, &layout)
        || layout.fragment
        || !is_plain(bytes, &layout, offload)
        || !is_declared(bytes, &layout, identity)
    {
        return None;
    }
    let longest = match offload.gso {
        Gso::None => bytes.len() as u32,
        _ => u32::from(layout.payload_offset) + u32::from(offload.gso_size),
    };
    Some(longest)
}

/// What goes to a group may be a router's word.
fn is_unicast(bytes: &[u8], layout: &Layout) -> bool {
    let v4 = Ipv4::of(bytes, layout).is_some_and(|ip| ip.destination().octets()[0] < 224);
    v4 || Ipv6::of(bytes, layout).is_some_and(|ip| !ip.destination().is_multicast())
}

/// TCP, or UDP in one segment that is nothing of DHCP, behind the shortest headers.
fn is_plain(bytes: &[u8], layout: &Layout, offload: &Offload) -> bool {
    let (headers, server, client) = match layout.l3 {
        L3::Ipv4 => (IPV4_HEADERS, 67, 68),
        _ => (IPV6_HEADERS, 547, 546),
    };
    let plain = match layout.l4 {
        L4::Tcp => true,
        L4::Udp => Udp::of(bytes, layout)
            .is_some_and(|udp| offload.gso == Gso::None && udp.source() != server && udp.destination() != client),
        _ => false,
    };
    plain && layout.l4_offset == headers
}

/// From a declared prefix, or nothing is declared: a link-local address of the endpoint's own
/// making is for the switch to judge.
fn is_declared(bytes: &[u8], layout: &Layout, identity: &Identity) -> bool {
    let differs =
        |address: u128, prefix: u128, host_bits: u32| (address ^ prefix).checked_shr(host_bits).unwrap_or(0) != 0;
    let source = match layout.l3 {
        L3::Ipv4 => Ipv4::of(bytes, layout).map(|ip| IpAddr::V4(ip.source())),
        _ => Ipv6::of(bytes, layout).map(|ip| IpAddr::V6(ip.source())),
    };
    match source {
        // Who comes first has it: the switch keeps that.
        Some(IpAddr::V6(source)) if any_ip(identity) && source.is_unicast_link_local() => false,
        _ if any_ip(identity) => true,
        Some(IpAddr::V4(source)) => identity.ipv4.iter().any(|&(prefix, len)| {
            !differs(u32::from(source).into(), u32::from(prefix).into(), 32 - u32::from(len.min(32)))
        }),
        Some(IpAddr::V6(source)) => identity
            .ipv6
            .iter()
            .any(|&(prefix, len)| !differs(source.into(), prefix.into(), 128 - u32::from(len.min(128)))),
        None => false,
    }
}
