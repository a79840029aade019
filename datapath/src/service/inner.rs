//! ICMP errors (RFC 792, RFC 4443): the packet that they quote says whose connection they are
//! about, and is translated with them, so that path MTU discovery and "port unreachable" work
//! through a service (RFC 5508; RFC 7690).

use super::translate::{End, replace};
use crate::checksum;
use crate::offload::Offload;
use crate::wire::{L3, L4, Layout, be16, be32, ipv4, ipv6, protocol, put16, transport};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Errors of ICMP: destination unreachable, time exceeded, parameter problem.
const ERRORS_V4: [u8; 3] = [3, 11, 12];
/// The first type of ICMPv6 that is no error, and the last that is one which is known.
const ERRORS_V6: std::ops::RangeInclusive<u8> = 1..=4;
/// "Destination unreachable", and those of its codes that speak of the destination: no way to the
/// network or host, no such protocol or port, or a firewall that refuses. Of a SYN that is under
/// way hard and soft errors (RFC 1122, section 4.2.3.9; RFC 5927, section 4) say alike that this
/// destination does not take it. The others speak of what the sender has put into the packet: its
/// length, its route, its type of service, its own address; and so do types 11 and 12, of its time
/// to live and its options. Nobody is to say by these that a destination fails.
const REFUSALS_V4: (u8, &[u8]) = (3, &[0, 1, 2, 3, 6, 7, 9, 10, 13]);
const REFUSALS_V6: (u8, &[u8]) = (1, &[0, 1, 3, 4, 6]);
/// Bytes of an ICMP header.
const ICMP: usize = 8;
const IPV4: usize = 20;
const IPV6: usize = 40;
/// Bytes of a transport header that an error quotes at least (RFC 792), in which the ports are, and
/// the sequence number of TCP.
const PORTS: usize = 8;

/// The packet in an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quoted {
    /// Where it starts in the frame, its transport header, and where the quote ends.
    at: usize,
    l4: usize,
    end: usize,
    /// TCP or UDP.
    pub protocol: u8,
    /// Whoever had sent it, and the port.
    pub source: (IpAddr, u16),
    /// Whom it was for.
    pub destination: (IpAddr, u16),
    /// Of TCP: its sequence number.
    pub sequence: u32,
    /// Whether its destination does not take it: see [`REFUSALS_V4`].
    pub is_refused: bool,
}

impl Quoted {
    /// The packet that a frame quotes, where the frame is an error about a packet of TCP or UDP
    /// that shows its ports.
    #[must_use]
    pub fn of(bytes: &[u8], layout: &Layout) -> Option<Quoted> {
        let message = usize::from(layout.l4_offset);
        let end = layout.end as usize;
        let packet = bytes.get(message + ICMP..end)?;
        let (kind, code) = (*bytes.get(message)?, *bytes.get(message + 1)?);
        let refusals = if layout.l4 == L4::Icmp { REFUSALS_V4 } else { REFUSALS_V6 };
        let (protocol, header, source, destination) = match layout.l4 {
            L4::Icmp if ERRORS_V4.contains(&kind) && !layout.fragment => quoted_v4(packet)?,
            L4::Icmpv6 if ERRORS_V6.contains(&kind) && !layout.fragment => quoted_v6(packet)?,
            _ => return None,
        };
        let ports = packet.get(header..header + PORTS)?;
        matches!(protocol, protocol::TCP | protocol::UDP).then(|| Quoted {
            at: message + ICMP,
            l4: message + ICMP + header,
            end,
            protocol,
            source: (source, be16(ports, 0)),
            destination: (destination, be16(ports, 2)),
            sequence: be32(ports, transport::TCP_SEQUENCE),
            is_refused: kind == refusals.0 && refusals.1.contains(&code),
        })
    }

    /// Sets one end of the quoted packet, and corrects its checksums as far as they are quoted, and
    /// the error's own.
    pub fn set_end(
        &self,
        bytes: &mut [u8],
        layout: &Layout,
        offload: &Offload,
        end: End,
        (address, port): (IpAddr, u16),
    ) {
        let before = checksum::sum(&bytes[self.at..self.end]);
        let (v4, v6) = end.offsets();
        let changed = match address {
            IpAddr::V4(address) if layout.l3 == L3::Ipv4 => {
                let changed = replace(bytes, self.at + v4, &address.octets());
                let sum = be16(bytes, self.at + ipv4::CHECKSUM);
                put16(bytes, self.at + ipv4::CHECKSUM, !checksum::add(!sum, changed));
                changed
            }
            IpAddr::V6(address) if layout.l3 == L3::Ipv6 => replace(bytes, self.at + v6, &address.octets()),
            _ => return,
        };
        let changed = checksum::add(changed, replace(bytes, self.l4 + end.port_offset(), &port.to_be_bytes()));
        let is_udp = self.protocol == protocol::UDP;
        let at = self.l4 + if is_udp { transport::UDP_CHECKSUM } else { transport::TCP_CHECKSUM };
        if at + 2 <= self.end && !(is_udp && be16(bytes, at) == 0) {
            let new = !checksum::add(!be16(bytes, at), changed);
            put16(bytes, at, if is_udp && new == 0 { 0xffff } else { new });
        }
        if offload.needs_csum {
            return;
        }
        let added = checksum::add(!before, checksum::sum(&bytes[self.at..self.end]));
        let at = usize::from(layout.l4_offset) + transport::ICMP_CHECKSUM;
        put16(bytes, at, !checksum::add(!be16(bytes, at), added));
    }
}

/// Protocol, length of the header, and addresses; not of a later fragment.
fn quoted_v4(packet: &[u8]) -> Option<(u8, usize, IpAddr, IpAddr)> {
    let h: &[u8; IPV4] = packet.first_chunk()?;
    let header = usize::from(h[0] & 0x0f) * 4;
    let is_first = be16(h, 6) & 0x1fff == 0;
    let address = |at: usize| IpAddr::V4(Ipv4Addr::new(h[at], h[at + 1], h[at + 2], h[at + 3]));
    (h[0] >> 4 == 4 && header >= IPV4 && is_first).then(|| (h[9], header, address(12), address(16)))
}

/// The same; behind extension headers too, as long as these are quoted.
fn quoted_v6(packet: &[u8]) -> Option<(u8, usize, IpAddr, IpAddr)> {
    let h: &[u8; IPV6] = packet.first_chunk()?;
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&h[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let is_transport = |&(number, _): &(u8, usize)| matches!(number, protocol::TCP | protocol::UDP);
    let (number, at) = ipv6::headers(packet).find(is_transport)?;
    (h[0] >> 4 == 6).then(|| (number, at, address(8), address(24)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::build::{Build, eth};
    use crate::wire::ipv6::MAX_EXTENSIONS;
    use crate::wire::{Mac, parse};
    use proptest::prelude::*;

    const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];

    fn ip(version: u8, last: u8) -> IpAddr {
        if version == 4 {
            IpAddr::from([10, 0, 0, last])
        } else {
            IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)])
        }
    }

    /// A header of options that say nothing, without its first byte.
    const PADDING: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

    /// An error from a router about a packet from `a` to `b`, of which `keep` bytes of transport
    /// header and payload are quoted. Before these the packet has headers of these numbers.
    fn error((version, tcp): (u8, bool), extensions: &[u8], a: (u8, u16), b: (u8, u16), keep: usize) -> Build<'static> {
        let packet = eth(MACS[0], MACS[1]).ip(ip(version, a.0), ip(version, b.0));
        let packet = extensions.iter().fold(packet, |packet, &number| match number {
            protocol::FRAGMENT => packet.fragment(0, true),
            _ => packet.extension(number, &PADDING),
        });
        let packet = if tcp {
            packet.tcp(a.1, b.1, 77).payload(vec![5; 100])
        } else {
            packet.udp(a.1, b.1).payload(vec![6; 100])
        };
        let header = if version == 4 { IPV4 } else { IPV6 + 8 * extensions.len() };
        let quote = packet.bytes()[14..14 + header + keep].to_vec();
        let (kind, code) = if version == 4 { (3, 4) } else { (2, 0) };
        eth(MACS[1], MACS[0]).ip(ip(version, 9), ip(version, a.0)).icmp(kind, code, 1400).payload(quote)
    }

    fn extension() -> impl Strategy<Value = u8> {
        use protocol::{AUTHENTICATION, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};
        prop::sample::select(vec![HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION_OPTIONS, AUTHENTICATION])
    }

    proptest! {
        /// Translated, the error is one about the translated packet.
        #[test]
        fn is_as_if_about_the_translated(
            version in prop_oneof![Just(4u8), Just(6)], tcp: bool, source: bool, a: (u8, u16), b: (u8, u16), c: (u8, u16),
            keep in 8usize..100, extensions in prop::collection::vec(extension(), 0..=MAX_EXTENSIONS),
        ) {
            let extensions = match version { 4 => vec![], _ => extensions };
            // Half a checksum can be corrected by nobody.
            let keep = if keep == 17 { 18 } else { keep };
            let mut bytes = error((version, tcp), &extensions, a, b, keep).bytes();
            let layout = parse(&bytes).unwrap();
            let quoted = Quoted::of(&bytes, &layout).expect("ports are quoted");
            prop_assert_eq!((quoted.source, quoted.destination), ((ip(version, a.0), a.1), (ip(version, b.0), b.1)));
            let end = if source { End::Source } else { End::Destination };
            quoted.set_end(&mut bytes, &layout, &Offload::default(), end, (ip(version, c.0), c.1));
            let (a, b) = if source { (c, b) } else { (a, c) };
            let mut wanted = error((version, tcp), &extensions, a, b, keep).bytes();
            // The error's own destination is the outer translation's business.
            let ends = if version == 4 { 24..34 } else { 38..54 };
            wanted[ends.clone()].copy_from_slice(&bytes[ends]);
            let checksum = usize::from(layout.l4_offset) + 2;
            if version == 6 {
                wanted[checksum..checksum + 2].copy_from_slice(&bytes[checksum..checksum + 2]);
            }
            prop_assert_eq!(bytes, wanted);
        }

        /// Whatever is quoted, nothing panics.
        #[test]
        fn any_quote_is_borne(version in prop_oneof![Just(4u8), Just(6)], quote in prop::collection::vec(any::<u8>(), 0..80), kind: u8) {
            let mut bytes = eth(MACS[1], MACS[0]).ip(ip(version, 9), ip(version, 1)).icmp(kind, 0, 0).payload(quote).bytes();
            let layout = parse(&bytes).unwrap();
            if let Some(quoted) = Quoted::of(&bytes, &layout) {
                quoted.set_end(&mut bytes, &layout, &Offload::default(), End::Source, (ip(version, 3), 3));
            }
        }
    }

    #[test]
    fn errors_about_the_destination_refuse_and_those_about_the_packet_do_not() {
        for (version, kind, code, is_refused) in [
            (4, 3, 0, true),
            (4, 3, 1, true),
            (4, 3, 3, true),
            (4, 3, 13, true),
            // Too long, by a route of its own, for this type of service, lived too long, malformed.
            (4, 3, 4, false),
            (4, 3, 5, false),
            (4, 3, 11, false),
            (4, 11, 0, false),
            (4, 12, 0, false),
            (6, 1, 0, true),
            (6, 1, 1, true),
            (6, 1, 4, true),
            // From beyond the scope, or a source that may not, too long, lived too long, malformed.
            (6, 1, 2, false),
            (6, 1, 5, false),
            (6, 2, 0, false),
            (6, 3, 0, false),
            (6, 4, 1, false),
        ] {
            let mut bytes = error((version, true), &[], (1, 1), (2, 2), 8).bytes();
            let layout = parse(&bytes).unwrap();
            let message = usize::from(layout.l4_offset);
            (bytes[message], bytes[message + 1]) = (kind, code);
            let quoted = Quoted::of(&bytes, &layout).expect("ports are quoted");
            assert_eq!((quoted.is_refused, quoted.sequence), (is_refused, 77), "{version}: {kind}, {code}");
        }
    }

    #[test]
    fn what_shows_no_ports_is_nothing() {
        use protocol::{DESTINATION_OPTIONS, FRAGMENT};
        for extensions in [&[][..], &[FRAGMENT], &[DESTINATION_OPTIONS; 2]] {
            let version = if extensions.is_empty() { 4 } else { 6 };
            let bytes = error((version, false), extensions, (1, 1), (2, 2), 7).bytes();
            assert_eq!(Quoted::of(&bytes, &parse(&bytes).unwrap()), None);
        }
        let too_many = error((6, false), &[DESTINATION_OPTIONS; MAX_EXTENSIONS + 1], (1, 1), (2, 2), 8).bytes();
        assert_eq!(Quoted::of(&too_many, &parse(&too_many).unwrap()), None);
        let later = eth(MACS[0], MACS[1]).ip(ip(6, 1), ip(6, 2)).fragment(8, false).udp(1, 2).bytes()[14..].to_vec();
        let later = eth(MACS[1], MACS[0]).ip(ip(6, 9), ip(6, 1)).icmp(2, 0, 1400).payload(later).bytes();
        assert_eq!(Quoted::of(&later, &parse(&later).unwrap()), None);
        let echo = eth(MACS[1], MACS[0]).ip(ip(4, 9), ip(4, 1)).icmp(8, 0, 0).payload(vec![0x45; 60]).bytes();
        assert_eq!(Quoted::of(&echo, &parse(&echo).unwrap()), None);
    }
}
