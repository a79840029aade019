//! Whole messages of the protocols by which hosts find each other: ARP, neighbour discovery, DHCP.

use super::{Build, eth};
use crate::wire::{Arp, Mac, ethertype, icmpv6};
use core::net::{Ipv4Addr, Ipv6Addr};

/// Flags of a neighbour advertisement: solicited, override.
const SOLICITED_OVERRIDE: u32 = 0x6000_0000;
const OVERRIDE: u32 = 0x2000_0000;
/// Of a membership query: other queriers are not concerned, and a message may be lost once; 125 s
/// from one to the next, as is usual.
const QUERIED: [u8; 2] = [0x0a, 125];

/// An ARP message; the Ethernet header says the same as the message.
#[must_use]
pub fn arp(
    operation: u16,
    (sender, sender_ip): (Mac, Ipv4Addr),
    (target, target_ip): (Mac, Ipv4Addr),
) -> Build<'static> {
    let mut body = vec![0, 1, 8, 0, 6, 4];
    body.extend(operation.to_be_bytes());
    body.extend(sender.0);
    body.extend(sender_ip.octets());
    body.extend(target.0);
    body.extend(target_ip.octets());
    let to = if operation == Arp::REQUEST { Mac::BROADCAST } else { target };
    eth(sender, to).ethertype(ethertype::ARP).payload(body)
}

/// Who has `target`? With a sender address of 0.0.0.0 a probe, with the target's own an
/// announcement (RFC 5227).
#[must_use]
pub fn arp_request(sender: Mac, sender_ip: Ipv4Addr, target: Ipv4Addr) -> Build<'static> {
    arp(Arp::REQUEST, (sender, sender_ip), (Mac::default(), target))
}

/// `sender` has `sender_ip`.
#[must_use]
pub fn arp_reply(sender: Mac, sender_ip: Ipv4Addr, target: Mac, target_ip: Ipv4Addr) -> Build<'static> {
    arp(Arp::REPLY, (sender, sender_ip), (target, target_ip))
}

/// The Ethernet address of an IPv6 multicast group (RFC 2464, section 7).
#[must_use]
pub fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

/// The link-local address that a host makes from its Ethernet address (RFC 4291, appendix A).
#[must_use]
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// All nodes, ff02::1.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All routers, ff02::2.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// A message of neighbour discovery (RFC 4861): `body` lies behind the 8 bytes that all have.
#[must_use]
pub fn nd(kind: u8, mac: Mac, (source, destination): (Ipv6Addr, Ipv6Addr), rest: u32, body: Vec<u8>) -> Build<'static> {
    eth(mac, group_mac(destination)).ipv6(source, destination).ttl(255).icmp(kind, 0, rest).payload(body)
}

/// An option with a link-layer address: 1 for the source's, 2 for the target's.
#[must_use]
pub fn link_layer_option(kind: u8, mac: Mac) -> Vec<u8> {
    let mut option = vec![kind, 1];
    option.extend(mac.0);
    option
}

/// Who has `target`? From `::` it is duplicate address detection (RFC 4862), and then without the
/// option.
#[must_use]
pub fn neighbour_solicitation(mac: Mac, source: Ipv6Addr, target: Ipv6Addr) -> Build<'static> {
    let [.., a, b, c] = target.octets();
    let solicited_node = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    let mut body = target.octets().to_vec();
    if !source.is_unspecified() {
        body.extend(link_layer_option(1, mac));
    }
    nd(icmpv6::NEIGHBOUR_SOLICITATION, mac, (source, solicited_node), 0, body)
}

/// `mac` has `target`, to all nodes.
#[must_use]
pub fn neighbour_advertisement(mac: Mac, source: Ipv6Addr, target: Ipv6Addr) -> Build<'static> {
    let mut body = target.octets().to_vec();
    body.extend(link_layer_option(2, mac));
    nd(icmpv6::NEIGHBOUR_ADVERTISEMENT, mac, (source, ALL_NODES), SOLICITED_OVERRIDE, body)
}

/// The same without being asked (RFC 4861, section 7.2.6): where `target` is has changed.
#[must_use]
pub fn unsolicited_advertisement(mac: Mac, target: Ipv6Addr) -> Build<'static> {
    let mut body = target.octets().to_vec();
    body.extend(link_layer_option(2, mac));
    nd(icmpv6::NEIGHBOUR_ADVERTISEMENT, mac, (target, ALL_NODES), OVERRIDE, body)
}

/// Is there a router?
#[must_use]
pub fn router_solicitation(mac: Mac, source: Ipv6Addr) -> Build<'static> {
    let body = if source.is_unspecified() { Vec::new() } else { link_layer_option(1, mac) };
    nd(icmpv6::ROUTER_SOLICITATION, mac, (source, ALL_ROUTERS), 0, body)
}

/// Here is a router, without prefixes.
#[must_use]
pub fn router_advertisement(mac: Mac, source: Ipv6Addr) -> Build<'static> {
    let mut body = vec![0; 8];
    body.extend(link_layer_option(1, mac));
    nd(icmpv6::ROUTER_ADVERTISEMENT, mac, (source, ALL_NODES), 64 << 24, body)
}

/// Go to `destination` by way of `target`.
#[must_use]
pub fn redirect(mac: Mac, source: Ipv6Addr, target: Ipv6Addr, destination: Ipv6Addr) -> Build<'static> {
    let body = [target.octets(), destination.octets()].concat();
    nd(icmpv6::REDIRECT, mac, (source, ALL_NODES), 0, body)
}

/// A report of MLDv2 without groups (RFC 3810).
#[must_use]
pub fn mld_report(mac: Mac, source: Ipv6Addr) -> Build<'static> {
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    nd(icmpv6::MLDV2_REPORT, mac, (source, routers), 0, Vec::new())
        .ttl(1)
        .extension(super::protocol::HOP_BY_HOP, &[0, 5, 2, 0, 0, 1, 0])
}

/// Which groups does this host receive? A general query of IGMPv3 (RFC 3376, section 4.1), which
/// older hosts take for one of theirs, to be answered within 200 ms. It is from 0.0.0.0, as a
/// switch asks that is no router: nobody elects it (RFC 4541, section 2.1.1).
#[must_use]
pub fn igmp_query(mac: Mac) -> Build<'static> {
    let mut body = [0x11, 2, 0, 0, 0, 0, 0, 0, QUERIED[0], QUERIED[1], 0, 0];
    let sum = !super::fold(super::sum(&body));
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    // Router alert (RFC 2113).
    let build = eth(mac, Mac([1, 0, 0x5e, 0, 0, 1])).ipv4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(224, 0, 0, 1));
    build.ttl(1).ip_options(&[0x94, 4, 0, 0]).protocol(super::protocol::IGMP).payload(body.to_vec())
}

/// The same for IPv6 (MLDv2, RFC 3810, section 5.1), which hosts take from a link-local address
/// only. The least such address is elected, so this is the highest.
#[must_use]
pub fn mld_query(mac: Mac) -> Build<'static> {
    let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xffff, 0xffff, 0xffff, 0xffff);
    let mut body = vec![0; 16];
    body.extend([QUERIED[0], QUERIED[1], 0, 0]);
    nd(icmpv6::MLD_QUERY, mac, (source, ALL_NODES), 200 << 16, body)
        .ttl(1)
        .extension(super::protocol::HOP_BY_HOP, &[0, 5, 2, 0, 0, 1, 0])
}

/// A client of DHCP looks for a server (RFC 2131): from 0.0.0.0 to everyone.
#[must_use]
pub fn dhcp_discover(mac: Mac) -> Build<'static> {
    eth(mac, Mac::BROADCAST).ipv4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST).udp(68, 67).payload(bootp(
        1,
        mac,
        Ipv4Addr::UNSPECIFIED,
        1,
    ))
}

/// A server of DHCP offers `address` to `client`.
#[must_use]
pub fn dhcp_offer(server: (Mac, Ipv4Addr), client: Mac, address: Ipv4Addr) -> Build<'static> {
    eth(server.0, client).ipv4(server.1, address).udp(67, 68).payload(bootp(2, client, address, 2))
}

/// The fixed part of a message (RFC 951) and the option that says its kind (RFC 2132).
fn bootp(operation: u8, client: Mac, address: Ipv4Addr, kind: u8) -> Vec<u8> {
    let mut body = vec![0; 236];
    body[..4].copy_from_slice(&[operation, 1, 6, 0]);
    body[16..20].copy_from_slice(&address.octets());
    body[28..34].copy_from_slice(&client.0);
    body.extend([99, 130, 83, 99, 53, 1, kind, 255]);
    body
}

/// A client of DHCPv6 looks for a server (RFC 8415).
#[must_use]
pub fn dhcpv6_solicit(mac: Mac, source: Ipv6Addr) -> Build<'static> {
    let servers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
    eth(mac, group_mac(servers)).ipv6(source, servers).udp(546, 547).payload(vec![1, 0, 0, 1])
}

/// A server of DHCPv6 answers.
#[must_use]
pub fn dhcpv6_advertise(server: (Mac, Ipv6Addr), client: (Mac, Ipv6Addr)) -> Build<'static> {
    eth(server.0, client.0).ipv6(server.1, client.1).udp(547, 546).payload(vec![2, 0, 0, 1])
}
