//! The answer to a packet that is too long for what lies ahead: ICMP's "fragmentation needed" (RFC
//! 792, RFC 1191) and ICMPv6's "packet too big" (RFC 4443, section 3.2). [`answer`] gives it,
//! [`told`] reads what a router says of a tunnel's datagrams.
//!
//! A switch has no address to speak with, so the answer comes from whom the packet was for, as
//! Linux's bridges and tunnels have it: hosts look at the packet that is quoted, not at who quotes
//! it. Nobody is answered who said that he does not want to know: by leaving IPv4's don't-fragment
//! flag away, by a group as source or destination, or with a packet that is an ICMP error itself
//! (RFC 1122, section 3.2.2).

use super::vxlan;
use crate::checksum;
use crate::frame::{Frame, Pool};
use crate::wire::{ETHERNET_HEADER, Icmp, L3, L4, Layout, Mac, be16, be32, ethertype, protocol, put16, put32};
use core::net::IpAddr;

/// Bytes of the headers before the quoted packet: IPv4 or IPv6, then ICMP.
const IPV4: usize = 20;
const IPV6: usize = 40;
const ICMP: usize = 8;
/// The longest answers: what every IPv4 host takes (RFC 1812, section 4.3.2.3), and IPv6's least
/// MTU.
const MOST_V4: usize = 576;
const MOST_V6: usize = 1280;
/// "Destination unreachable" and its code "fragmentation needed".
const UNREACHABLE: (u8, u8) = (3, 4);
/// ICMPv6's "packet too big".
const TOO_BIG: u8 = 2;
/// Time to live of answers.
const TTL: u8 = 64;
/// IPv4's flag.
const DONT_FRAGMENT: u8 = 0x40;
/// ICMP messages that are questions or answers to them, not errors: echo, timestamp, information
/// and address mask (RFC 792, RFC 950).
const NO_ERRORS: [u8; 8] = [0, 8, 13, 14, 15, 16, 17, 18];
/// The first type of ICMPv6 that is no error.
const FIRST_NO_ERROR: u8 = 128;

/// The answer to `frame`, whose packets may have at most `mtu` bytes. `None` where there is none to
/// be given, or no buffer for it.
pub fn answer(pool: &mut Pool, frame: &Frame, mtu: u16) -> Option<Frame> {
    let (bytes, layout) = (pool.bytes(frame), pool.meta(frame).layout);
    let (l3, end) = (usize::from(layout.l3_offset), layout.end as usize);
    if !wants_to_know(bytes, &layout) {
        return None;
    }
    let (header, most) = if layout.l3 == L3::Ipv4 { (IPV4, MOST_V4) } else { (IPV6, MOST_V6) };
    let quoted = (end - l3).min(most - header - ICMP);
    let answer = pool.alloc(ETHERNET_HEADER + header + ICMP + quoted)?;
    pool.copy(frame, l3, &answer, ETHERNET_HEADER + header + ICMP, quoted);
    let mut addresses = [0; 44];
    let bytes = pool.bytes(frame);
    addresses[..12].copy_from_slice(&bytes[..12]);
    let ends = if layout.l3 == L3::Ipv4 { &bytes[l3 + 12..l3 + 20] } else { &bytes[l3 + 8..l3 + 40] };
    addresses[12..12 + ends.len()].copy_from_slice(ends);
    let out = pool.bytes_mut(&answer);
    out[..ETHERNET_HEADER + header + ICMP].fill(0);
    out[..6].copy_from_slice(&addresses[6..12]);
    out[6..12].copy_from_slice(&addresses[..6]);
    if layout.l3 == L3::Ipv4 {
        write_v4(&mut out[12..], &addresses[12..20], mtu);
    } else {
        write_v6(&mut out[12..], &addresses[12..44], mtu);
    }
    Some(answer)
}

/// From the EtherType on.
fn write_v4(out: &mut [u8], ends: &[u8], mtu: u16) {
    put16(out, 0, ethertype::IPV4);
    let ip = &mut out[2..];
    let len = ip.len() as u16;
    ip[0] = 0x45;
    put16(ip, 2, len);
    ip[8] = TTL;
    ip[9] = protocol::ICMP;
    ip[12..16].copy_from_slice(&ends[4..]);
    ip[16..20].copy_from_slice(&ends[..4]);
    let sum = !checksum::sum(&ip[..IPV4]);
    put16(ip, 10, sum);
    let icmp = &mut ip[IPV4..];
    (icmp[0], icmp[1]) = UNREACHABLE;
    put16(icmp, 6, mtu);
    let sum = !checksum::sum(icmp);
    put16(icmp, 2, sum);
}

/// From the EtherType on.
fn write_v6(out: &mut [u8], ends: &[u8], mtu: u16) {
    put16(out, 0, ethertype::IPV6);
    let ip = &mut out[2..];
    let len = (ip.len() - IPV6) as u16;
    ip[0] = 0x60;
    put16(ip, 4, len);
    (ip[6], ip[7]) = (protocol::ICMPV6, TTL);
    ip[8..24].copy_from_slice(&ends[16..]);
    ip[24..40].copy_from_slice(&ends[..16]);
    let pseudo = checksum::add(checksum::add(checksum::sum(&ip[8..40]), len), u16::from(protocol::ICMPV6));
    let icmp = &mut ip[IPV6..];
    icmp[0] = TOO_BIG;
    put32(icmp, 4, mtu.into());
    let sum = !checksum::add(pseudo, checksum::sum(icmp));
    put16(icmp, 2, sum);
}

/// What a router says to the end of tunnels at `local`, an address and its interface's, of a
/// datagram that had left there and was too long for the way: where it was to go, and the longest
/// packet that passes. `None`: the frame, whose layout was parsed, is something else, is damaged,
/// or cannot be true (RFC 5927, section 7): what is quoted is not longer than that.
#[must_use]
pub fn told(bytes: &[u8], layout: &Layout, local: (IpAddr, Mac)) -> Option<(IpAddr, u16)> {
    let (l3, icmp) = (usize::from(layout.l3_offset), bytes.get(layout.l4_offset.into()..layout.end as usize)?);
    let quoted = icmp.get(ICMP..)?;
    let (mtu, sum) = match (layout.l3, layout.l4) {
        (L3::Ipv4, L4::Icmp) if (icmp[0], icmp[1]) == UNREACHABLE => (u32::from(be16(icmp, 6)), 0),
        (L3::Ipv6, L4::Icmpv6) if (icmp[0], icmp[1]) == (TOO_BIG, 0) => {
            let addresses = &bytes[l3 + 8..l3 + 40];
            (be32(icmp, 4), checksum::pseudo(addresses, protocol::ICMPV6, icmp.len()))
        }
        _ => return None,
    };
    let (is_ours, to, (len, udp)) = match local.0 {
        IpAddr::V4(local) if layout.l3 == L3::Ipv4 && quoted.len() >= IPV4 => {
            // Without options, as it left.
            let is_ours = bytes[l3 + 16..l3 + 20] == local.octets()
                && (quoted[0], quoted[9]) == (0x45, protocol::UDP)
                && quoted[12..16] == local.octets();
            let to = IpAddr::from([quoted[16], quoted[17], quoted[18], quoted[19]]);
            (is_ours, to, (be16(quoted, 2).into(), IPV4))
        }
        IpAddr::V6(local) if layout.l3 == L3::Ipv6 && quoted.len() >= IPV6 => {
            let is_ours = bytes[l3 + 24..l3 + 40] == local.octets()
                && (quoted[0] >> 4, quoted[6]) == (6, protocol::UDP)
                && quoted[8..24] == local.octets();
            let to: [u8; 16] = quoted[24..40].try_into().ok()?;
            (is_ours, IpAddr::from(to), (u32::from(be16(quoted, 4)) + IPV6 as u32, IPV6))
        }
        _ => return None,
    };
    let is_tunnel = quoted.get(udp..udp + 4).is_some_and(|ports| vxlan::are_ports(be16(ports, 0), be16(ports, 2)));
    let is_sound = checksum::add(sum, checksum::sum(icmp)) == 0xffff;
    let is_true = bytes[..6] == local.1.0 && is_ours && is_tunnel && is_sound && 0 < mtu && mtu < len;
    u16::try_from(mtu).ok().filter(|_| is_true).map(|mtu| (to, mtu))
}

fn wants_to_know(bytes: &[u8], layout: &Layout) -> bool {
    let l3 = usize::from(layout.l3_offset);
    if bytes[0] & 1 == 1 || layout.later_fragment {
        return false;
    }
    let error = match layout.l4 {
        L4::Icmp => Icmp::of(bytes, layout).is_none_or(|icmp| !NO_ERRORS.contains(&icmp.kind())),
        L4::Icmpv6 => Icmp::of(bytes, layout).is_none_or(|icmp| icmp.kind() < FIRST_NO_ERROR),
        _ => false,
    };
    let one_host = match layout.l3 {
        // Group addresses, and those of no host: the first byte 0, 127, or from 224 on.
        L3::Ipv4 => {
            bytes[l3 + 6] & DONT_FRAGMENT != 0
                && [l3 + 12, l3 + 16].iter().all(|&at| matches!(bytes[at], 1..=126 | 128..=223))
        }
        L3::Ipv6 => {
            [l3 + 8, l3 + 24].iter().all(|&at| bytes[at] != 0xff && (be16(bytes, at) != 0 || be16(bytes, at + 2) != 0))
        }
        _ => false,
    };
    one_host && !error
}

#[cfg(test)]
mod tests;
