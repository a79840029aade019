//! The IP addresses that a frame claims, for whom, and how.

use crate::wire::{Arp, Icmp, Ipv4, Ipv6, L3, L4, Layout, Mac, NdOption, icmpv6, source};
use core::net::IpAddr;

/// How an address is claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A packet comes from it.
    Source,
    /// Neighbours are told, or can see, who has it.
    Binding,
    /// The same, by who says to be a router.
    RouterBinding,
    /// It is asked whether anybody has it, by who is about to use it: an owner who has just come
    /// gives it up for that (RFC 4862, section 5.4; RFC 5227, section 2.1.1).
    Probe,
    /// Hosts are told by a router whose link-layer address a target's is (RFC 4861, section 8):
    /// it speaks for others, and may say what is true.
    Redirect,
}

/// One address that a frame claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The address.
    pub address: IpAddr,
    /// Who is to have it.
    pub mac: Mac,
    /// How.
    pub kind: Kind,
}

/// What a frame claims: at most two addresses.
#[must_use]
pub fn claims(bytes: &[u8], layout: &Layout) -> [Option<Claim>; 2] {
    let from = source(bytes);
    match layout.l3 {
        L3::Ipv4 => [Ipv4::of(bytes, layout).and_then(|ip| plain(ip.source().into(), from)), None],
        L3::Arp => [Arp::of(bytes, layout).and_then(of_arp), None],
        L3::Ipv6 => of_ipv6(bytes, layout, from),
        L3::Other => [None; 2],
    }
}

fn plain(address: IpAddr, mac: Mac) -> Option<Claim> {
    (!address.is_unspecified()).then_some(Claim { address, mac, kind: Kind::Source })
}

fn of_arp(arp: Arp) -> Option<Claim> {
    let (mac, sender, target) = (arp.sender_mac(), arp.sender_ip(), arp.target_ip());
    if !sender.is_unspecified() {
        return Some(Claim { address: sender.into(), mac, kind: Kind::Binding });
    }
    let is_probe = arp.operation() == Arp::REQUEST && !target.is_unspecified();
    is_probe.then_some(Claim { address: target.into(), mac, kind: Kind::Probe })
}

fn of_ipv6(bytes: &[u8], layout: &Layout, from: Mac) -> [Option<Claim>; 2] {
    use icmpv6::{
        NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, REDIRECT, ROUTER_ADVERTISEMENT, ROUTER_SOLICITATION,
    };
    /// In the second word of an advertisement: its sender is a router.
    const ROUTER_FLAG: u8 = 0x80;
    let Some(address) = Ipv6::of(bytes, layout).map(|ip| IpAddr::from(ip.source())) else { return [None; 2] };
    let message = if layout.l4 == L4::Icmpv6 { Icmp::of(bytes, layout) } else { None };
    let discovery = message.filter(|message| (ROUTER_SOLICITATION..=REDIRECT).contains(&message.kind()));
    let Some(message) = discovery else { return [plain(address, from), None] };
    // Receivers read one of the two options, and skip the other: what it says shows no right.
    let is_answer = matches!(message.kind(), NEIGHBOUR_ADVERTISEMENT | REDIRECT);
    let given = message.nd_options().find_map(|option| match option {
        Ok(NdOption::TargetLinkLayer(mac)) if is_answer => mac,
        Ok(NdOption::SourceLinkLayer(mac)) if !is_answer => mac,
        _ => None,
    });
    let mac = if message.kind() == REDIRECT { from } else { given.unwrap_or(from) };
    let is_router = match message.kind() {
        ROUTER_ADVERTISEMENT => true,
        NEIGHBOUR_ADVERTISEMENT => message.flags() & ROUTER_FLAG != 0,
        _ => false,
    };
    let kind = if is_router { Kind::RouterBinding } else { Kind::Binding };
    let target = message.nd_target().map(IpAddr::from);
    let of_source = (!address.is_unspecified()).then_some(Claim { address, mac, kind });
    let of_target = match message.kind() {
        NEIGHBOUR_ADVERTISEMENT => target.map(|address| Claim { address, mac, kind }),
        NEIGHBOUR_SOLICITATION if address.is_unspecified() => {
            target.map(|address| Claim { address, mac, kind: Kind::Probe })
        }
        REDIRECT => target.zip(given).map(|(address, mac)| {
            // To itself: then it says that it has the target.
            let kind = if mac == from { Kind::Binding } else { Kind::Redirect };
            Claim { address, mac, kind }
        }),
        _ => None,
    };
    [of_source, of_target]
}
