//! Translation: another address and port at one end of a packet, and its checksums corrected (RFC
//! 1624), in place.
//!
//! No length changes, so an offloaded frame of 64 KiB takes one rewriting like any other; options
//! and extension headers stay as they are.

use crate::checksum;
use crate::offload::Offload;
use crate::wire::{ETHERNET_HEADER, L3, L4, Layout, Mac, be16, be32, ipv4, ipv6, protocol, put16, put32, transport};
use std::net::IpAddr;

/// One end of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Whoever sent it.
    Source,
    /// Whom it is for.
    Destination,
}

impl End {
    /// Where its address lies behind the start of an IPv4 header, and behind that of an IPv6
    /// header.
    pub(super) const fn offsets(self) -> (usize, usize) {
        match self {
            End::Source => (12, 8),
            End::Destination => (16, 24),
        }
    }

    /// Where its port lies behind the start of a TCP or UDP header.
    pub(super) const fn port_offset(self) -> usize {
        match self {
            End::Source => 0,
            End::Destination => 2,
        }
    }
}

/// Sets an end's Ethernet address.
pub fn set_mac(bytes: &mut [u8], end: End, mac: Mac) {
    debug_assert!(bytes.len() >= ETHERNET_HEADER);
    let at = match end {
        End::Source => 6,
        End::Destination => 0,
    };
    bytes[at..at + 6].copy_from_slice(&mac.0);
}

/// Sets an end's IP address and, where the frame shows ports, its port. `address` must be of the
/// packet's IP version, or nothing happens.
pub fn set_end(bytes: &mut [u8], layout: &Layout, offload: &Offload, end: End, (address, port): (IpAddr, u16)) {
    let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
    let (v4, v6) = end.offsets();
    let changed = match (layout.l3, address) {
        (L3::Ipv4, IpAddr::V4(address)) => {
            let changed = replace(bytes, l3 + v4, &address.octets());
            let sum = be16(bytes, l3 + ipv4::CHECKSUM);
            put16(bytes, l3 + ipv4::CHECKSUM, !checksum::add(!sum, changed));
            changed
        }
        (L3::Ipv6, IpAddr::V6(address)) => replace(bytes, l3 + v6, &address.octets()),
        _ => return,
    };
    let (at, ports) = match layout.l4 {
        L4::Tcp => (l4 + transport::TCP_CHECKSUM, true),
        L4::Udp => (l4 + transport::UDP_CHECKSUM, true),
        L4::Icmpv6 => (l4 + transport::ICMP_CHECKSUM, false),
        // ICMP's checksum knows no addresses, and what is not known here keeps its own.
        L4::Icmp | L4::Other => return,
    };
    let of_port = if ports { replace(bytes, l4 + end.port_offset(), &port.to_be_bytes()) } else { 0 };
    correct(bytes, layout, offload, at, changed, of_port);
}

/// Where the time to live lies in an IPv4 header, and the hop limit in an IPv6 header.
const TTL: usize = 8;
const HOP_LIMIT: usize = 7;

/// Where the number of a fragment's packet lies. In a first fragment more of the chain of headers
/// may follow the fragment header.
fn packet_at(bytes: &[u8], layout: &Layout) -> Option<usize> {
    let l3 = usize::from(layout.l3_offset);
    if layout.l3 == L3::Ipv4 {
        return Some(l3 + ipv4::ID);
    }
    let packet = bytes.get(l3..layout.end as usize)?;
    let (_, at) = ipv6::headers(packet).find(|&(number, _)| number == protocol::FRAGMENT)?;
    Some(l3 + at + 4)
}

/// The number of a fragment's packet: its identification. Zero where it is none.
pub(super) fn identification(bytes: &[u8], layout: &Layout) -> u32 {
    match (packet_at(bytes, layout), layout.l3) {
        (None, _) => 0,
        (Some(at), L3::Ipv4) => be16(bytes, at).into(),
        (Some(at), _) => be32(bytes, at),
    }
}

/// Sets it; of IPv4 its low half.
pub(super) fn set_packet(bytes: &mut [u8], layout: &Layout, number: u32) {
    let Some(at) = packet_at(bytes, layout) else { return };
    match layout.l3 {
        L3::Ipv4 => {
            let changed = replace(bytes, at, &(number as u16).to_be_bytes());
            let sum = usize::from(layout.l3_offset) + ipv4::CHECKSUM;
            put16(bytes, sum, !checksum::add(!be16(bytes, sum), changed));
        }
        _ => put32(bytes, at, number),
    }
}

/// One hop more: takes one off the time to live, or the hop limit. False where none is left.
pub(crate) fn hop(bytes: &mut [u8], layout: &Layout) -> bool {
    let at = usize::from(layout.l3_offset) + if layout.l3 == L3::Ipv4 { TTL } else { HOP_LIMIT };
    let Some(left) = bytes.get(at).and_then(|left| left.checked_sub(1)).filter(|&left| left > 0) else { return false };
    set_hops(bytes, layout, left);
    true
}

/// Sets the time to live, or the hop limit.
pub(super) fn set_hops(bytes: &mut [u8], layout: &Layout, hops: u8) {
    let l3 = usize::from(layout.l3_offset);
    if layout.l3 == L3::Ipv4 {
        let changed = replace(bytes, l3 + TTL, &[hops, bytes[l3 + TTL + 1]]);
        put16(bytes, l3 + ipv4::CHECKSUM, !checksum::add(!be16(bytes, l3 + ipv4::CHECKSUM), changed));
    } else {
        bytes[l3 + HOP_LIMIT] = hops;
    }
}

/// Whether the checksum at `at` is partial.
#[inline]
pub(super) fn is_partial(offload: &Offload, at: usize) -> bool {
    offload.needs_csum && usize::from(offload.csum_start) + usize::from(offload.csum_offset) == at
}

/// Corrects the transport checksum at `at` by what was added to the sums of addresses and ports.
fn correct(bytes: &mut [u8], layout: &Layout, offload: &Offload, at: usize, of_addresses: u16, of_port: u16) {
    let sum = be16(bytes, at);
    if is_partial(offload, at) {
        // It holds the sum of the pseudo-header, which knows no ports, and is not complemented.
        return put16(bytes, at, checksum::add(sum, of_addresses));
    }
    let is_udp = layout.l4 == L4::Udp;
    // Without a checksum (RFC 768; RFC 6935): it stays without.
    if is_udp && sum == 0 {
        return;
    }
    let new = !checksum::add(!sum, checksum::add(of_addresses, of_port));
    put16(bytes, at, if is_udp && new == 0 { 0xffff } else { new });
}

/// Writes `new` at `at`, which is an even place of what is summed; what that adds to the sum.
#[inline]
pub(super) fn replace<const N: usize>(bytes: &mut [u8], at: usize, new: &[u8; N]) -> u16 {
    let place = &mut bytes[at..at + N];
    let mut added = 0u32;
    for (old, new) in place.chunks_exact(2).zip(new.chunks_exact(2)) {
        added += u32::from(!be16(old, 0)) + u32::from(be16(new, 0));
    }
    place.copy_from_slice(new);
    added = (added & 0xffff) + (added >> 16);
    checksum::add(added as u16, (added >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Pool, PoolLimits};
    use crate::offload::OffloadSupport;
    use crate::segment;
    use crate::wire::build::{Build, eth};
    use crate::wire::parse;
    use proptest::prelude::*;

    const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];

    fn ip(version: u8, last: u8) -> IpAddr {
        if version == 4 {
            IpAddr::from([10, 0, 0, last])
        } else {
            IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)])
        }
    }

    /// All that can be translated: protocols, partial checksums, offloads, options, fragments.
    fn kinds(version: u8, (a, b): (u8, u8), ports: (u16, u16)) -> Vec<Build<'static>> {
        let ends = || eth(MACS[0], MACS[1]).ip(ip(version, a), ip(version, b));
        let udp = |len| ends().udp(ports.0, ports.1).payload(vec![7; len]);
        let tcp = |len| ends().tcp(ports.0, ports.1, 1000).payload(vec![9; len]);
        vec![
            udp(31),
            tcp(0),
            tcp(701),
            tcp(99).tcp_options(3),
            tcp(64).vlan(10),
            udp(64).partial(),
            tcp(64).partial(),
            tcp(5000).gso(1000),
            udp(5000).gso(1000),
        ]
    }

    /// What leaves a port that can nothing.
    fn on_the_wire(pool: &mut Pool, build: &Build<'_>, change: impl Fn(&mut [u8], &Layout, &Offload)) -> Vec<Vec<u8>> {
        let frame = build.frame(pool).expect("room");
        let (bytes, meta) = pool.parts_mut(&frame);
        meta.layout = parse(bytes).expect("sound");
        segment::check_offload(bytes, &meta.layout, &meta.offload).expect("sound");
        change(bytes, &meta.layout, &meta.offload);
        let mut parts = Vec::new();
        segment::software(pool, frame, OffloadSupport::NONE, 1514, &mut |pool, part| {
            parts.push(pool.bytes(&part).to_vec());
            pool.free(part);
        })
        .expect("can be cut");
        parts
    }

    proptest! {
        /// A packet that is translated is what it would be if it had been sent so.
        #[test]
        fn is_as_if_sent_so(version in prop_oneof![Just(4u8), Just(6)], ends: (u8, u8, u8), ports: (u16, u16, u16), source: bool) {
            let mut pool = Pool::new(PoolLimits::default());
            let end = if source { End::Source } else { End::Destination };
            let after = if source { ((ends.2, ends.1), (ports.2, ports.1)) } else { ((ends.0, ends.2), (ports.0, ports.2)) };
            let (all, wanted) = (kinds(version, (ends.0, ends.1), (ports.0, ports.1)), kinds(version, after.0, after.1));
            for (build, wanted) in all.iter().zip(&wanted) {
                let to = (ip(version, ends.2), ports.2);
                let translated = on_the_wire(&mut pool, build, |bytes, layout, offload| set_end(bytes, layout, offload, end, to));
                prop_assert_eq!(translated, on_the_wire(&mut pool, wanted, |_, _, _| {}));
            }
        }
    }

    #[test]
    fn a_datagram_without_checksum_stays_without() {
        let mut bytes = eth(MACS[0], MACS[1]).ip(ip(4, 1), ip(4, 2)).udp(5, 53).payload(vec![1, 2, 3]).bytes();
        let layout = parse(&bytes).unwrap();
        let at = usize::from(layout.l4_offset) + transport::UDP_CHECKSUM;
        put16(&mut bytes, at, 0);
        set_end(&mut bytes, &layout, &Offload::default(), End::Destination, (ip(4, 77), 1053));
        assert_eq!(be16(&bytes, at), 0);
    }

    #[test]
    fn an_address_of_the_other_version_changes_nothing() {
        let before = eth(MACS[0], MACS[1]).ip(ip(4, 1), ip(4, 2)).udp(5, 53).bytes();
        let mut bytes = before.clone();
        let layout = parse(&bytes).unwrap();
        set_end(&mut bytes, &layout, &Offload::default(), End::Source, (ip(6, 1), 7));
        assert_eq!(bytes, before);
    }
}
