//! What the switch says itself in the name of a service: who has its address (ARP, RFC 826;
//! neighbour discovery, RFC 4861), that it is there (echo), and that nobody listens at a port (RST,
//! RFC 9293, section 3.5.2; port unreachable, RFC 792 and RFC 4443).
//!
//! An answer is written over the question, in its buffer: whoever asks pays, and nothing is
//! allocated.

use super::ServiceId;
use super::translate::{is_partial, set_hops};
use crate::checksum;
use crate::frame::{Frame, Pool};
use crate::offload::Offload;
use crate::units::{Instant, Rate};
use crate::wire::{Icmp, L3, L4, Layout, Mac, Tcp, be16, icmpv6, protocol, put16, put32, tcp_flags, transport};

/// Answers a second that a service gives to clients outside: they do not wait in a queue, so that
/// they may not be many.
const PER_SECOND: u64 = 1000;
/// The part of the uplink's rate that answers of all services take together at most.
const UPLINK_PART: u64 = 100;
/// How many of them at once, as time. One may overdraw it.
const SAVED_NS: u64 = 100_000_000;
/// The most that an answer takes, where nobody's part is more than a few bytes a second.
const OVERDRAWN_NS: u64 = 20_000_000_000;
/// What is kept of that for who asks for addresses, so that pings do not stop them.
const KEPT_NS: u64 = SAVED_NS / 4;
const ARP: usize = 28;
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
const ICMP: usize = 8;
/// An advertisement with its target and the target's link-layer address.
const ADVERTISEMENT: usize = 32;
/// Hop limit of neighbour discovery (RFC 4861, section 7.1), and that of answers.
const ND_HOPS: u8 = 255;
const TTL: u8 = 64;
/// An advertisement that was asked for, and one that replaces what is known.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// "Port unreachable" of ICMP and of ICMPv6, and the longest quote of each.
const UNREACHABLE_V4: (u8, u8, usize) = (3, 3, 576 - IPV4 - ICMP);
const UNREACHABLE_V6: (u8, u8, usize) = (1, 4, 1280 - IPV6 - ICMP);

/// An answer in the name of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To an ARP request: the service's address.
    Arp(Mac, ServiceId),
    /// To a neighbour solicitation.
    Neighbour(Mac, ServiceId),
    /// To an echo request.
    Echo(ServiceId),
    /// Nobody listens: RST.
    Reset(ServiceId),
    /// Nobody listens: port unreachable.
    PortUnreachable(ServiceId),
}

impl Answer {
    /// Whose it is.
    #[must_use]
    pub fn service(&self) -> ServiceId {
        match *self {
            Answer::Arp(_, service)
            | Answer::Neighbour(_, service)
            | Answer::Echo(service)
            | Answer::Reset(service)
            | Answer::PortUnreachable(service) => service,
        }
    }

    /// How it is shown.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Answer::Arp(..) => "ARP reply",
            Answer::Neighbour(..) => "neighbour advertisement",
            Answer::Echo(_) => "echo reply",
            Answer::Reset(_) => "RST",
            Answer::PortUnreachable(_) => "port unreachable",
        }
    }

    /// Whether the question is one to be answered.
    #[must_use]
    pub fn is_asked(&self, bytes: &[u8], layout: &Layout) -> bool {
        let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
        match self {
            Answer::Arp(..) | Answer::Echo(_) => true,
            Answer::Neighbour(..) => {
                let target = Icmp::of(bytes, layout).and_then(Icmp::nd_target);
                target.is_some() && l4 == l3 + IPV6 && bytes[l3 + 7] == ND_HOPS
            }
            Answer::Reset(_) => Tcp::of(bytes, layout).is_some_and(|tcp| tcp.flags() & tcp_flags::RST == 0),
            Answer::PortUnreachable(_) => layout.l4 == L4::Udp,
        }
    }

    /// Writes the answer over its question; `mac` is the service's. False where there is none to be
    /// given.
    #[must_use]
    pub fn write(&self, pool: &mut Pool, frame: &Frame, mac: Mac) -> bool {
        let layout = pool.meta(frame).layout;
        if !self.is_asked(pool.bytes(frame), &layout) {
            return false;
        }
        let done = match self {
            Answer::Arp(mac, _) => arp(pool.bytes_mut(frame), &layout, *mac),
            Answer::Neighbour(mac, _) => neighbour(pool, frame, &layout, *mac),
            Answer::Echo(_) => echo(pool, frame),
            Answer::Reset(_) => reset(pool, frame, &layout),
            Answer::PortUnreachable(_) => unreachable(pool, frame, &layout),
        };
        if done {
            let (bytes, meta) = pool.parts_mut(frame);
            bytes.copy_within(6..12, 0);
            bytes[6..12].copy_from_slice(&mac.0);
            if !matches!(self, Answer::Echo(_)) {
                meta.offload = Offload::default();
            }
        }
        done
    }
}

fn arp(bytes: &mut [u8], layout: &Layout, mac: Mac) -> bool {
    let at = usize::from(layout.l3_offset);
    let message = &mut bytes[at..at + ARP];
    put16(message, 6, crate::wire::Arp::REPLY);
    let target: [u8; 4] = message[24..28].try_into().unwrap_or_default();
    message.copy_within(8..18, 18);
    message[14..18].copy_from_slice(&target);
    message[8..14].copy_from_slice(&mac.0);
    true
}

fn neighbour(pool: &mut Pool, frame: &Frame, layout: &Layout, mac: Mac) -> bool {
    let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
    let Some(target) = Icmp::of(pool.bytes(frame), layout).and_then(Icmp::nd_target) else { return false };
    pool.set_len(frame, l4 + ADVERTISEMENT);
    let bytes = pool.bytes_mut(frame);
    // Who looks whether the address is taken has none to be answered at: all nodes are told.
    let is_probe = bytes[l3 + 8..l3 + 24] == [0; 16];
    if is_probe {
        bytes[l3 + 24..l3 + 40].copy_from_slice(&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        bytes[6..12].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    } else {
        bytes.copy_within(l3 + 8..l3 + 24, l3 + 24);
    }
    bytes[l3 + 8..l3 + 24].copy_from_slice(&target.octets());
    put16(bytes, l3 + 4, ADVERTISEMENT as u16);
    let message = &mut bytes[l4..];
    message[..8].fill(0);
    message[0] = icmpv6::NEIGHBOUR_ADVERTISEMENT;
    message[4] = if is_probe { OVERRIDE } else { SOLICITED | OVERRIDE };
    (message[24], message[25]) = (2, 1);
    message[26..32].copy_from_slice(&mac.0);
    finish_v6(bytes, l3, protocol::ICMPV6, 2);
    true
}

fn echo(pool: &mut Pool, frame: &Frame) -> bool {
    let (bytes, meta) = pool.parts_mut(frame);
    let (layout, offload) = (&meta.layout, &meta.offload);
    let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
    let old = be16(bytes, l4);
    turn(bytes, layout.l3, l3);
    // The way back may be longer than what is left of the way here.
    set_hops(bytes, layout, TTL);
    bytes[l4] = if layout.l3 == L3::Ipv4 { 0 } else { 129 };
    // A partial one does not know the message yet.
    if !is_partial(offload, l4 + transport::ICMP_CHECKSUM) {
        let checksum = checksum::update(be16(bytes, l4 + transport::ICMP_CHECKSUM), old, be16(bytes, l4));
        put16(bytes, l4 + transport::ICMP_CHECKSUM, checksum);
    }
    true
}

fn reset(pool: &mut Pool, frame: &Frame, layout: &Layout) -> bool {
    let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
    let Some(tcp) = Tcp::of(pool.bytes(frame), layout) else { return false };
    let (flags, sequence, ack) = (tcp.flags(), tcp.sequence(), tcp.acknowledgement());
    let len = layout.end - u32::from(layout.payload_offset);
    let len = len + u32::from(flags & tcp_flags::SYN != 0) + u32::from(flags & tcp_flags::FIN != 0);
    let ports: [u8; 4] = pool.bytes(frame)[l4..l4 + 4].try_into().unwrap_or_default();
    let header = if layout.l3 == L3::Ipv4 { IPV4 } else { IPV6 };
    pool.set_len(frame, l3 + header + TCP);
    let bytes = pool.bytes_mut(frame);
    let segment = &mut bytes[l3 + header..];
    segment.fill(0);
    segment[..2].copy_from_slice(&ports[2..]);
    segment[2..4].copy_from_slice(&ports[..2]);
    if flags & tcp_flags::ACK != 0 {
        put32(segment, 4, ack);
        segment[13] = tcp_flags::RST;
    } else {
        put32(segment, 8, sequence.wrapping_add(len));
        segment[13] = tcp_flags::RST | tcp_flags::ACK;
    }
    segment[12] = (TCP as u8 / 4) << 4;
    turn(bytes, layout.l3, l3);
    finish(bytes, layout.l3, l3, protocol::TCP, 16);
    true
}

/// Makes a segment a reset for who it is for, with the numbers that it has. How long it is then;
/// `None` where it is no segment.
pub(crate) fn cut(bytes: &mut [u8], layout: &Layout) -> Option<usize> {
    let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
    let tcp = Tcp::of(bytes, layout)?;
    let (sequence, ack) = (tcp.sequence(), tcp.acknowledgement());
    let ports: [u8; 4] = bytes.get(l4..l4 + 4)?.try_into().ok()?;
    let header = if layout.l3 == L3::Ipv4 { IPV4 } else { IPV6 };
    let len = l3 + header + TCP;
    let bytes = bytes.get_mut(..len)?;
    let segment = &mut bytes[l3 + header..];
    segment.fill(0);
    segment[..4].copy_from_slice(&ports);
    put32(segment, 4, sequence);
    put32(segment, 8, ack);
    (segment[12], segment[13]) = ((TCP as u8 / 4) << 4, tcp_flags::RST | tcp_flags::ACK);
    finish(bytes, layout.l3, l3, protocol::TCP, 16);
    Some(len)
}

fn unreachable(pool: &mut Pool, frame: &Frame, layout: &Layout) -> bool {
    let l3 = usize::from(layout.l3_offset);
    let is_v4 = layout.l3 == L3::Ipv4;
    let (header, (kind, code, most)) = if is_v4 { (IPV4, UNREACHABLE_V4) } else { (IPV6, UNREACHABLE_V6) };
    let quoted = (layout.end as usize - l3).min(most);
    pool.set_len(frame, l3 + header + ICMP + quoted);
    let bytes = pool.bytes_mut(frame);
    if bytes.len() < l3 + header + ICMP + quoted {
        return false;
    }
    bytes.copy_within(l3..l3 + quoted, l3 + header + ICMP);
    let message = &mut bytes[l3 + header..l3 + header + ICMP];
    message.fill(0);
    (message[0], message[1]) = (kind, code);
    turn(bytes, layout.l3, l3);
    finish(bytes, layout.l3, l3, if is_v4 { protocol::ICMP } else { protocol::ICMPV6 }, 2);
    true
}

/// Addresses of an IP packet change places.
fn turn(bytes: &mut [u8], version: L3, l3: usize) {
    match version {
        L3::Ipv4 => swap(bytes, l3 + 12, 4),
        _ => swap(bytes, l3 + 8, 16),
    }
}

/// The IP header of a packet whose addresses are in place, and the checksum at `at` behind it.
fn finish(bytes: &mut [u8], version: L3, l3: usize, number: u8, at: usize) {
    if version != L3::Ipv4 {
        let payload = bytes.len() - l3 - IPV6;
        bytes[l3..l3 + 4].copy_from_slice(&[0x60, 0, 0, 0]);
        put16(bytes, l3 + 4, payload as u16);
        (bytes[l3 + 6], bytes[l3 + 7]) = (number, TTL);
        return finish_v6(bytes, l3, number, at);
    }
    let len = bytes.len() - l3;
    bytes[l3..l3 + 12].fill(0);
    bytes[l3] = 0x45;
    put16(bytes, l3 + 2, len as u16);
    (bytes[l3 + 8], bytes[l3 + 9]) = (TTL, number);
    let sum = !checksum::sum(&bytes[l3..l3 + IPV4]);
    put16(bytes, l3 + 10, sum);
    let pseudo = match number {
        protocol::ICMP => 0,
        _ => checksum::pseudo(&bytes[l3 + 12..l3 + 20], number, len - IPV4),
    };
    let sum = !checksum::add(pseudo, checksum::sum(&bytes[l3 + IPV4..]));
    put16(bytes, l3 + IPV4 + at, sum);
}

fn finish_v6(bytes: &mut [u8], l3: usize, number: u8, at: usize) {
    let message = l3 + IPV6;
    put16(bytes, message + at, 0);
    let pseudo = checksum::pseudo(&bytes[l3 + 8..l3 + 40], number, bytes.len() - message);
    let sum = !checksum::add(pseudo, checksum::sum(&bytes[message..]));
    put16(bytes, message + at, sum);
}

/// Two fields of `len` bytes, one behind the other, change places.
fn swap(bytes: &mut [u8], at: usize, len: usize) {
    let (first, second) = bytes[at..at + 2 * len].split_at_mut(len);
    first.swap_with_slice(second);
}

/// What a service may take for its answers to clients outside: of the answers' part of the uplink
/// each tenant that has services has as much, and of that each of its services.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub uplink: Rate,
    pub tenants: u32,
    pub services: u32,
}

impl Part {
    /// What an answer takes of a service's time.
    fn time_ns(&self, wire_bytes: u64) -> u64 {
        let sharers = u64::from(self.tenants.max(1)) * u64::from(self.services.max(1));
        let of_rate = self.uplink.time_ns(wire_bytes).saturating_mul(UPLINK_PART).saturating_mul(sharers);
        of_rate.clamp(1_000_000_000 / PER_SECOND, OVERDRAWN_NS)
    }
}

/// A token bucket for answers to clients outside, kept as the moment at which it is full again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    full_at: Instant,
}

impl Budget {
    /// Takes an answer of so many bytes on the wire, where there is something left.
    pub(super) fn take(&mut self, now: Instant, part: &Part, wire_bytes: u64, answer: Answer) -> bool {
        let is_left = self.is_left(now, answer);
        if is_left {
            self.full_at = now.plus_ns(self.full_at.since(now).saturating_add(part.time_ns(wire_bytes)));
        }
        is_left
    }

    /// Whether something is left.
    pub(super) fn is_left(&self, now: Instant, answer: Answer) -> bool {
        let kept = if matches!(answer, Answer::Arp(..) | Answer::Neighbour(..)) { 0 } else { KEPT_NS };
        self.full_at.since(now) < SAVED_NS - kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::PoolLimits;
    use crate::offload::OffloadSupport;
    use crate::segment;
    use crate::wire::build::{Build, arp_reply, arp_request, eth, neighbour_solicitation};
    use crate::wire::{Arp, Ipv4, Ipv6, parse};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    const CLIENT: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const SERVICE: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const ID: ServiceId = ServiceId(0);

    fn ip(version: u8, last: u8) -> IpAddr {
        if version == 4 {
            IpAddr::from([10, 0, 0, last])
        } else {
            IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)])
        }
    }

    fn answer(answer: Answer, question: &Build<'_>) -> Option<Vec<u8>> {
        let mut pool = Pool::new(PoolLimits::default());
        let frame = question.frame(&mut pool).unwrap();
        let layout = parse(pool.bytes(&frame)).unwrap();
        pool.meta_mut(&frame).layout = layout;
        if !answer.write(&mut pool, &frame, SERVICE) {
            pool.free(frame);
            return None;
        }
        // As it leaves a port that can nothing.
        let mut bytes = None;
        let out = &mut |pool: &mut Pool, part: Frame| {
            bytes = Some(pool.bytes(&part).to_vec());
            pool.free(part);
        };
        segment::software(&mut pool, frame, OffloadSupport::NONE, 1514, out).unwrap();
        bytes
    }

    /// Its checksums are right: a packet with the same fields, built anew, is the same.
    fn sums_are_right(bytes: &[u8]) {
        let layout = parse(bytes).expect("sound");
        let (l3, l4) = (usize::from(layout.l3_offset), usize::from(layout.l4_offset));
        let (addresses, number) = match layout.l3 {
            L3::Ipv4 => {
                assert_eq!(checksum::sum(&bytes[l3..l3 + IPV4]), 0xffff);
                (&bytes[l3 + 12..l3 + 20], bytes[l3 + 9])
            }
            _ => (&bytes[l3 + 8..l3 + 40], bytes[l3 + 6]),
        };
        let pseudo = if number == protocol::ICMP { 0 } else { checksum::pseudo(addresses, number, bytes.len() - l4) };
        assert_eq!(checksum::add(pseudo, checksum::sum(&bytes[l4..])), 0xffff);
    }

    #[test]
    fn arp_is_answered_with_the_address_of_the_service() {
        let (a, v) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 100));
        for tag in [None, Some(10)] {
            let tagged = |build: Build<'static>| tag.map_or(build.clone(), |tag| build.clone().vlan(tag));
            let bytes = answer(Answer::Arp(SERVICE, ID), &tagged(arp_request(CLIENT, a, v))).unwrap();
            assert_eq!(bytes, tagged(arp_reply(SERVICE, v, CLIENT, a)).bytes());
            assert_eq!(Arp::of(&bytes, &parse(&bytes).unwrap()).unwrap().sender_mac(), SERVICE);
        }
    }

    #[test]
    fn neighbours_are_told_and_so_are_those_who_look_whether_it_is_taken() {
        let (a, v): (Ipv6Addr, Ipv6Addr) = ("fe80::1".parse().unwrap(), "fd00::100".parse().unwrap());
        let bytes = answer(Answer::Neighbour(SERVICE, ID), &neighbour_solicitation(CLIENT, a, v)).unwrap();
        sums_are_right(&bytes);
        let layout = parse(&bytes).unwrap();
        let (ip, icmp) = (Ipv6::of(&bytes, &layout).unwrap(), Icmp::of(&bytes, &layout).unwrap());
        assert_eq!((ip.source(), ip.destination(), &bytes[..6]), (v, a, &CLIENT.0[..]));
        assert_eq!((icmp.kind(), icmp.flags(), icmp.nd_target()), (136, 0x60, Some(v)));
        assert_eq!(&bytes[bytes.len() - 8..], [2, 1, 2, 0, 0, 0, 0, 9]);
        let probe =
            answer(Answer::Neighbour(SERVICE, ID), &neighbour_solicitation(CLIENT, Ipv6Addr::UNSPECIFIED, v)).unwrap();
        sums_are_right(&probe);
        assert_eq!(probe[..6], [0x33, 0x33, 0, 0, 0, 1]);
        let ip = Ipv6::of(&probe, &parse(&probe).unwrap()).unwrap().destination();
        assert_eq!(ip, "ff02::1".parse::<Ipv6Addr>().unwrap());
    }

    #[test]
    fn an_echo_comes_back_and_so_does_a_reset() {
        for version in [4, 6] {
            let ends = || eth(CLIENT, SERVICE).ip(ip(version, 1), ip(version, 100));
            let echo = if version == 4 { 8 } else { 128 };
            let asks = ends().ttl(3).icmp(echo, 0, 0x1234_0001).payload(vec![3; 56]);
            for asks in [asks.clone(), asks.partial()] {
                let bytes = answer(Answer::Echo(ID), &asks).unwrap();
                sums_are_right(&bytes);
                let left = if version == 4 { bytes[14 + 8] } else { bytes[14 + 7] };
                assert_eq!(left, TTL, "the way back is as long as it is");
            }
            for options in [0, 3] {
                let syn = ends().tcp(4000, 80, 1000).flags(tcp_flags::SYN).tcp_options(options);
                let bytes = answer(Answer::Reset(ID), &syn).unwrap();
                sums_are_right(&bytes);
                let layout = parse(&bytes).unwrap();
                let tcp = Tcp::of(&bytes, &layout).unwrap();
                assert_eq!((tcp.source(), tcp.destination()), (80, 4000));
                assert_eq!(
                    (tcp.flags(), tcp.sequence(), tcp.acknowledgement()),
                    (tcp_flags::RST | tcp_flags::ACK, 0, 1001)
                );
            }
            let ack = ends().tcp(4000, 80, 1000).ack(555, 100).payload(vec![1; 9]);
            let bytes = answer(Answer::Reset(ID), &ack).unwrap();
            let tcp_layout = parse(&bytes).unwrap();
            assert_eq!(Tcp::of(&bytes, &tcp_layout).unwrap().sequence(), 555);
            assert_eq!(answer(Answer::Reset(ID), &ends().tcp(4000, 80, 1).flags(tcp_flags::RST)), None);
        }
    }

    #[test]
    fn a_closed_port_is_said_to_be_unreachable() {
        for version in [4, 6] {
            for len in [0, 100, 1400] {
                let question =
                    eth(CLIENT, SERVICE).ip(ip(version, 1), ip(version, 100)).udp(4000, 54).payload(vec![7; len]);
                let bytes = answer(Answer::PortUnreachable(ID), &question).unwrap();
                sums_are_right(&bytes);
                let layout = parse(&bytes).unwrap();
                let quoted = super::super::inner::Quoted::of(&bytes, &layout).unwrap();
                assert_eq!((quoted.source, quoted.destination), ((ip(version, 1), 4000), (ip(version, 100), 54)));
                if version == 4 {
                    assert_eq!(IpAddr::V4(Ipv4::of(&bytes, &layout).unwrap().source()), ip(4, 100));
                }
            }
        }
    }

    #[test]
    fn answers_to_outside_are_few_and_pings_do_not_stop_arp() {
        let part = Part { uplink: Rate::UNLIMITED, tenants: 1, services: 1 };
        let given = |budget: &mut Budget, from: u64, answer: Answer| {
            (0..1000).filter(|n| budget.take(Instant(from + n), &part, 84, answer)).count()
        };
        let mut budget = Budget::default();
        assert!((75..=76).contains(&given(&mut budget, 0, Answer::Echo(ID))));
        assert!((24..=25).contains(&given(&mut budget, 0, Answer::Arp(SERVICE, ID))));
        assert_eq!(given(&mut budget, 10_000_000, Answer::Echo(ID)), 0);
        assert_eq!(given(&mut budget, 10_000_000, Answer::Arp(SERVICE, ID)), 10);
    }

    #[test]
    fn all_services_together_answer_with_a_hundredth_of_the_uplink() {
        const SECONDS: u64 = 20;
        let uplink = Rate(100_000_000);
        for (tenants, services) in [(1, 1), (1, 50), (10, 1), (40, 25)] {
            let part = Part { uplink, tenants, services };
            let mut budget = Budget::default();
            let asked = (0..SECONDS * 10_000).map(|n| Instant(n * 100_000));
            let given = asked.filter(|now| budget.take(*now, &part, 1538, Answer::Echo(ID))).count() as u64;
            let bits = given * 1538 * 8 * u64::from(tenants * services) / SECONDS;
            // What may be overdrawn once is 100 ms, and one answer.
            let most = uplink.0 / 100 + 1538 * 8 * u64::from(tenants * services) / SECONDS + uplink.0 / 100 / 100;
            assert!(bits <= most && bits > uplink.0 / 120, "{tenants} x {services}: {bits}");
        }
    }
}
