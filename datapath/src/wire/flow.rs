//! The flow key: which flow a frame belongs to.
//!
//! A flow is one conversation of two hosts: protocol, both addresses and both ports of TCP or UDP
//! over IPv4 or IPv6, or the identifier of an ICMP echo (RFC 792, RFC 4443). A fragment has none,
//! since only the first of its packet shows the ports (RFC 6438, section 3), and neither has
//! anything else. The key is made from the [`Layout`] that was found when the frame entered;
//! nothing is parsed again.

use super::{Icmp, L3, L4, Layout, be16, be32, header, ipv4, ipv6, protocol, transport};
use crate::random::dice;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::hash::{BuildHasher, Hash, Hasher};

/// ICMP echo, and the answer to it.
const ECHO: [u8; 2] = [8, 0];
/// ICMPv6 echo, and the answer to it.
const ECHO_V6: [u8; 2] = [128, 129];
/// Where an echo's identifier lies.
const ECHO_IDENTIFIER: usize = 4;

/// Protocol, addresses and ports of a flow, in the direction of the frame that it was taken from:
/// 40 bytes, which are compared and hashed several at a time.
#[derive(Clone, Copy, Debug)]
pub struct FlowKey {
    /// Both addresses as they lie in the frame: the source's, then the destination's. Behind those
    /// of IPv4 are zeros.
    addresses: [Eight; 4],
    /// The kind: protocol, and behind it whether it is IPv6; then both ports, the source's high.
    ends: [u32; 2],
}

/// Bytes of addresses: both of IPv4, or half of one of IPv6.
type Eight = [u8; 8];

/// What the words before an IPv4 address are where it is mapped into IPv6 (RFC 4291, section
/// 2.5.5.2).
const MAPPED: [u32; 3] = [0, 0, 0xffff];

impl FlowKey {
    /// The flow of a frame; `None` where it belongs to none: a fragment, no IP, or a protocol
    /// without ports.
    #[must_use]
    #[inline(always)]
    pub fn of(bytes: &[u8], layout: &Layout) -> Option<FlowKey> {
        if layout.fragment {
            return None;
        }
        let (protocol, ports) = ports(bytes, layout)?;
        let at = usize::from(layout.l3_offset);
        match layout.l3 {
            L3::Ipv4 => {
                let ip: &[u8; ipv4::LEN] = header(bytes, at)?;
                let addresses = addresses_of::<IPV4>(ip)?;
                Some(FlowKey { addresses: widened(addresses), ends: [kind(protocol, false), ports] })
            }
            L3::Ipv6 => {
                let ip: &[u8; ipv6::LEN] = header(bytes, at)?;
                Some(FlowKey { addresses: addresses_of::<IPV6>(ip)?, ends: [kind(protocol, true), ports] })
            }
            L3::Arp | L3::Other => None,
        }
    }

    /// Whether it is IPv6.
    #[inline]
    fn is_ipv6(&self) -> bool {
        self.ends[0] & 1 != 0
    }

    /// Both ports, the source's high.
    #[inline]
    fn ports(&self) -> u32 {
        self.ends[1]
    }

    /// Where it comes from and where it goes: address and port.
    #[must_use]
    pub fn ends(&self) -> [(IpAddr, u16); 2] {
        let address = |words: [u32; 4]| {
            let ip = Ipv6Addr::from(octets(words));
            if self.is_ipv6() { IpAddr::V6(ip) } else { ip.to_canonical() }
        };
        let [source, destination] = self.addresses();
        [(address(source), (self.ports() >> 16) as u16), (address(destination), self.ports() as u16)]
    }

    /// The source's address, and the destination's, in words. IPv4 ones are mapped into IPv6.
    #[inline]
    fn addresses(&self) -> [[u32; 4]; 2] {
        let [a, b, c, d] = self.addresses.map(|eight| [be32(&eight, 0), be32(&eight, 4)]);
        if self.is_ipv6() {
            return [[a[0], a[1], b[0], b[1]], [c[0], c[1], d[0], d[1]]];
        }
        a.map(|word| [MAPPED[0], MAPPED[1], MAPPED[2], word])
    }

    /// That of addresses in words.
    fn of_words(words: [[u32; 4]; 2], ends: [u32; 2], is_ipv6: bool) -> FlowKey {
        let [[a, b, c, d], [e, f, g, h]] = words;
        let eight = |high: u32, low: u32| (u64::from(high) << 32 | u64::from(low)).to_be_bytes();
        let addresses =
            if is_ipv6 { [eight(a, b), eight(c, d), eight(e, f), eight(g, h)] } else { widened([eight(d, h)]) };
        FlowKey { addresses, ends }
    }

    /// The key of the frames that answer.
    #[must_use]
    #[inline]
    pub fn reversed(self) -> FlowKey {
        let FlowKey { addresses, ends: [kind, ports] } = self;
        let addresses = if self.is_ipv6() {
            let [a, b, c, d] = addresses;
            [c, d, a, b]
        } else {
            widened([numbered(addresses[0]).rotate_left(32).to_le_bytes()])
        };
        FlowKey { addresses, ends: [kind, ports.rotate_left(16)] }
    }

    /// The key of a second entry of the same flow: of no frame.
    #[must_use]
    pub(crate) fn second(self) -> FlowKey {
        FlowKey { ends: [self.ends[0] | SECOND, self.ends[1]], ..self }
    }

    /// Whether it is one.
    #[must_use]
    pub(crate) fn is_second(&self) -> bool {
        self.ends[0] & SECOND != 0
    }

    /// Bytes of what [`FlowKey::to_bytes`] gives.
    pub const BYTES: usize = 38;

    /// Written down: both addresses, both ports, the protocol, and whether it is IPv6. That it is a
    /// [second](FlowKey::second) one is left out.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let [source, destination] = self.addresses();
        bytes[..16].copy_from_slice(&octets(source));
        bytes[16..32].copy_from_slice(&octets(destination));
        bytes[32..36].copy_from_slice(&self.ports().to_be_bytes());
        (bytes[36], bytes[37]) = ((self.ends[0] >> 1) as u8, u8::from(self.is_ipv6()));
        bytes
    }

    /// What was written down; `None` where an IPv4 flow has addresses that are none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<FlowKey> {
        let words = [0, 16].map(|at| [0, 4, 8, 12].map(|word| be32(bytes, at + word)));
        let is_ipv6 = bytes[37] == 1;
        if bytes[37] > 1 || !(is_ipv6 || words.iter().all(|address| address.starts_with(&MAPPED))) {
            return None;
        }
        Some(FlowKey::of_words(words, [kind(bytes[36], is_ipv6), be32(bytes, 32)], is_ipv6))
    }

    /// That of a TCP connection, in the direction from the first end to the second; `None` where
    /// these are of two kinds.
    #[must_use]
    pub fn of_tcp(ends: [SocketAddr; 2]) -> Option<FlowKey> {
        let is_ipv6 = ends[0].is_ipv6();
        let words = ends.map(|end| match end.ip() {
            IpAddr::V4(ip) => [MAPPED[0], MAPPED[1], MAPPED[2], ip.to_bits()],
            IpAddr::V6(ip) => [96, 64, 32, 0].map(|shift| (ip.to_bits() >> shift) as u32),
        });
        let ports = u32::from(ends[0].port()) << 16 | u32::from(ends[1].port());
        let key = FlowKey::of_words(words, [kind(protocol::TCP, is_ipv6), ports], is_ipv6);
        (is_ipv6 == ends[1].is_ipv6()).then_some(key)
    }

    /// Its hash under a secret key, since strangers choose addresses and ports.
    #[must_use]
    #[inline]
    pub fn hash_under(&self, keyed: &impl BuildHasher) -> u64 {
        keyed.hash_one(self)
    }
}

/// Of IPv4 addresses only the first eight bytes can differ.
impl PartialEq for FlowKey {
    #[inline]
    fn eq(&self, other: &FlowKey) -> bool {
        self.addresses[0] == other.addresses[0]
            && number(self.ends) == number(other.ends)
            && (!self.is_ipv6() || self.addresses == other.addresses)
    }
}

impl Eq for FlowKey {}

impl FlowKey {
    /// Hashes it together with the number of an owner, in two words for IPv4; among flows of one
    /// protocol.
    #[inline]
    pub(crate) fn hash_with<H: Hasher>(&self, owner: u32, state: &mut H) {
        let [[a, b, c, from], [d, e, f, to]] = self.addresses();
        if self.is_ipv6() {
            [[b, a], [e, d], [f, c]].into_iter().for_each(|two| state.write_u64(number(two)));
        }
        state.write_u64(number([to, from]));
        state.write_u64(number([owner, self.ports()]));
    }

    /// A hash of where it goes, whatever the ports are.
    #[must_use]
    pub(crate) fn destination(&self, key: [u64; 2]) -> u64 {
        let [_, [a, b, c, d]] = self.addresses();
        folded(number([a, b]).wrapping_add(key[0]), number([c, d]).wrapping_add(key[1]))
    }

    /// The same for a guess where it was last: cheap, and of IPv6 addresses the last words only.
    #[must_use]
    #[inline]
    pub(crate) fn guess(&self, key: [u64; 2], owner: u32) -> u64 {
        let (addresses, ends) = (self.addresses.map(numbered), number(self.ends));
        if self.is_ipv6() {
            Short { addresses, ends }.guess(key, owner)
        } else {
            Short { addresses: [addresses[0]], ends }.guess(key, owner)
        }
    }
}

/// What tells the flow of a TCP segment, by which IP it ever goes.
pub(crate) trait TcpFlow: Copy {
    /// That of the frames that answer.
    fn reversed(self) -> Self;

    /// Whether it is this one.
    fn is(&self, flow: &FlowKey) -> bool;

    /// See [`FlowKey::guess`].
    fn guess(&self, key: [u64; 2], owner: u32) -> u64;
}

/// The flow of a TCP segment: a [`FlowKey`] in few numbers. Those of addresses are one over IPv4,
/// and four over IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Short<const N: usize> {
    addresses: [u64; N],
    ends: u64,
}

/// Numbers that IPv4 addresses take.
const IPV4: usize = 1;
/// The same of IPv6.
const IPV6: usize = 4;

/// The flow of a TCP segment over IPv4.
pub(crate) type Tcp4 = Short<IPV4>;
/// The same over IPv6.
pub(crate) type Tcp6 = Short<IPV6>;

impl<const N: usize> Short<N> {
    /// That of a segment that has these headers.
    #[must_use]
    #[inline(always)]
    pub fn of(ip: &[u8], tcp: &[u8; transport::TCP_LEN]) -> Option<Short<N>> {
        let ends = number([kind(protocol::TCP, N == IPV6), be32(tcp, 0)]);
        Some(Short { addresses: addresses_of::<N>(ip)?.map(numbered), ends })
    }
}

impl<const N: usize> TcpFlow for Short<N> {
    #[inline(always)]
    fn reversed(self) -> Short<N> {
        let Short { mut addresses, ends } = self;
        if let [both] = addresses.as_mut_slice() {
            *both = both.rotate_left(32);
        } else {
            addresses.rotate_left(N / 2);
        }
        let [kind, ports] = words(ends);
        Short { addresses, ends: number([kind, ports.rotate_left(16)]) }
    }

    #[inline(always)]
    fn is(&self, flow: &FlowKey) -> bool {
        self.addresses.iter().zip(flow.addresses).all(|(&one, other)| one == numbered(other))
            && number(flow.ends) == self.ends
    }

    #[inline(always)]
    fn guess(&self, [a, b]: [u64; 2], owner: u32) -> u64 {
        let last = match *self.addresses.as_slice() {
            [_, from, _, to] => from >> 32 | to >> 32 << 32,
            [both, ..] => both,
            [] => 0,
        };
        let ends = self.ends.wrapping_add(u64::from(owner) << KIND_BITS);
        let product = folded(last.wrapping_add(a), ends.wrapping_add(b));
        // Ports that follow each other are multiples of one step, of which some lie in clusters.
        (product ^ product >> 32).wrapping_mul(GOLDEN) >> 32
    }
}

/// Both addresses in an IP header, which end it.
#[inline(always)]
fn addresses_of<const N: usize>(ip: &[u8]) -> Option<[Eight; N]> {
    ip.as_rchunks().1.last_chunk().copied()
}

/// Both of IPv4, as a key has them.
#[inline(always)]
fn widened([both]: [Eight; IPV4]) -> [Eight; IPV6] {
    [both, [0; 8], [0; 8], [0; 8]]
}

/// Eight bytes as one number.
#[inline(always)]
fn numbered(eight: Eight) -> u64 {
    u64::from_le_bytes(eight)
}

/// The five words that tell two keys apart.
impl Hash for FlowKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        for [a, b, c, d] in self.addresses() {
            state.write_u64(number([b, a]));
            state.write_u64(number([d, c]));
        }
        state.write_u64(u64::from(self.ports()) << 16 | u64::from(self.ends[0]));
    }
}

/// Two words, the lower one first, as one number: as they lie in the memory of most processors.
#[inline]
fn number([low, high]: [u32; 2]) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// The reverse.
#[inline]
fn words(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

/// 2^64 by the golden ratio: its multiples are far from each other (Knuth, volume 3, section 6.4).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// What the kind takes at most.
const KIND_BITS: u32 = 9;
/// Beside a kind: see [`FlowKey::second`].
const SECOND: u32 = 1 << KIND_BITS;

/// Protocol and version as one number.
#[inline]
fn kind(protocol: u8, is_ipv6: bool) -> u32 {
    u32::from(protocol) << 1 | u32::from(is_ipv6)
}

/// The bytes of an address.
fn octets(words: [u32; 4]) -> [u8; 16] {
    let [a, b, c, d] = words.map(u128::from);
    (a << 96 | b << 64 | c << 32 | d).to_be_bytes()
}

/// Protocol number and ports. An echo has its identifier as both ports, so that the answer's key is
/// the reverse of the question's.
#[inline(always)]
fn ports(bytes: &[u8], layout: &Layout) -> Option<(u8, u32)> {
    let at = usize::from(layout.l4_offset);
    let (number, kinds) = match layout.l4 {
        L4::Tcp => return Some((protocol::TCP, u32::from_be_bytes(*header(bytes, at)?))),
        L4::Udp => return Some((protocol::UDP, u32::from_be_bytes(*header(bytes, at)?))),
        L4::Icmp => (protocol::ICMP, ECHO),
        L4::Icmpv6 => (protocol::ICMPV6, ECHO_V6),
        L4::Other => return None,
    };
    let echo = Icmp::of(bytes, layout).is_some_and(|icmp| kinds.contains(&icmp.kind()));
    echo.then(|| (number, u32::from(be16(bytes, at + ECHO_IDENTIFIER)) * 0x1_0001))
}

/// A short hash of a frame's flow under a secret key, for queues: two flows that it takes for one
/// only share a queue. It reads the header where it lies and multiplies once or twice, which is a
/// tenth of what a [`FlowKey`] and SipHash cost; to find two flows that collide one would have to
/// know the key (multilinear hashing, Carter and Wegman 1979).
#[derive(Clone, Copy, Debug)]
pub struct FlowHash([u64; 6]);

impl FlowHash {
    /// Under the key of a seed.
    #[must_use]
    pub fn new(seed: u64) -> FlowHash {
        let mut state = seed;
        FlowHash(std::array::from_fn(|_| u64::from(dice(&mut state)) << 32 | u64::from(dice(&mut state))))
    }

    /// The hash of a frame's flow. What has no ports, a fragment or another protocol, has that of
    /// its addresses; what is no IP, zero. It has 31 bits.
    #[must_use]
    #[inline]
    pub fn of(&self, bytes: &[u8], layout: &Layout) -> u32 {
        let FlowHash(key) = self;
        let at = usize::from(layout.l4_offset);
        let ports = match layout.l4 {
            _ if layout.fragment => 0,
            L4::Tcp | L4::Udp => u64::from(be32(bytes, at)) << 2 | layout.l4 as u64 & 3,
            L4::Icmp | L4::Icmpv6 if bytes.len() >= at + ECHO_IDENTIFIER + 2 => {
                u64::from(be16(bytes, at + ECHO_IDENTIFIER)) << 34 | u64::from(bytes[at])
            }
            _ => 0,
        };
        let l3 = usize::from(layout.l3_offset);
        let word = |at: usize| u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4));
        let sum = match layout.l3 {
            L3::Ipv4 => folded(word(l3 + 12).wrapping_add(key[0]), ports.wrapping_add(key[1])),
            L3::Ipv6 => {
                let [a, b, c, d] = [8, 16, 24, 32].map(|offset| word(l3 + offset));
                folded(a.wrapping_add(key[2]), b.wrapping_add(key[3]))
                    ^ folded(c.wrapping_add(key[4]), d.wrapping_add(key[5]))
                    ^ folded(ports.wrapping_add(key[0]), key[1])
            }
            L3::Arp | L3::Other => 0,
        };
        (sum >> 33) as u32
    }
}

/// Both halves of a product, one over the other.
#[inline]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Keyed;
    use crate::wire::build::{Build, eth};
    use crate::wire::{Mac, parse};
    use core::net::Ipv4Addr;

    fn key(bytes: &[u8]) -> Option<FlowKey> {
        FlowKey::of(bytes, &parse(bytes).expect("sound"))
    }

    const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];

    fn host(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, number)
    }

    /// A UDP datagram over IPv4.
    fn udp(from: (u8, u16), to: (u8, u16)) -> Build<'static> {
        eth(MACS[0], MACS[1]).ipv4(host(from.0), host(to.0)).udp(from.1, to.1)
    }

    fn icmp(from: u8, to: u8, kind: u8) -> Build<'static> {
        eth(MACS[0], MACS[1]).ipv4(host(from), host(to)).icmp(kind, 0, 0xabcd_0001)
    }

    #[test]
    fn the_answer_has_the_reverse_key() {
        let (there, back) = (key(&udp((1, 1000), (2, 53)).bytes()), key(&udp((2, 53), (1, 1000)).bytes()));
        assert_ne!(there, back);
        assert_eq!(there.unwrap().ends(), [(IpAddr::V4(host(1)), 1000), (IpAddr::V4(host(2)), 53)]);
        assert_eq!(there.unwrap().reversed(), back.unwrap());
        let (question, answer) = (key(&icmp(1, 2, 8).bytes()), key(&icmp(2, 1, 0).bytes()));
        assert_eq!(question.unwrap().reversed(), answer.unwrap());
    }

    #[test]
    fn each_part_tells_flows_apart() {
        let keyed = Keyed::new(7);
        let flows = [(1, 2, 1000, 53), (3, 2, 1000, 53), (1, 3, 1000, 53), (1, 2, 1001, 53), (1, 2, 1000, 54)];
        let mut frames: Vec<_> = flows.map(|(a, b, c, d)| udp((a, c), (b, d)).bytes()).into();
        frames.push(eth(MACS[0], MACS[1]).ipv4(host(1), host(2)).tcp(1000, 53, 1).bytes());
        let [a, b] = [host(1), host(2)].map(|address| address.to_ipv6_mapped());
        frames.push(eth(MACS[0], MACS[1]).ipv6(a, b).udp(1000, 53).bytes());
        let keys: Vec<_> = frames.iter().map(|frame| key(frame).unwrap()).collect();
        for (i, a) in keys.iter().enumerate() {
            for b in &keys[i + 1..] {
                assert_ne!(a, b);
                assert_ne!(a.hash_under(&keyed), b.hash_under(&keyed));
            }
            assert_ne!(a.hash_under(&keyed), a.hash_under(&Keyed::new(8)), "the hash is under the key");
        }
    }

    /// The flow of a TCP segment, in few numbers and whole.
    fn both<const N: usize>(bytes: &[u8]) -> (Short<N>, FlowKey) {
        let layout = parse(bytes).expect("sound");
        let (ip, tcp) = bytes[..].split_at(layout.l4_offset.into());
        let short = Short::of(&ip[layout.l3_offset.into()..], tcp.first_chunk().expect("it is long enough"));
        (short.expect("there are addresses"), key(bytes).expect("TCP"))
    }

    /// Of a segment, the same the other way, and what is none of its flow.
    fn has_the_same_flow_in_few_numbers<const N: usize>(segment: &[u8], answer: &[u8], others: &[Vec<u8>]) {
        let ((flow, whole), (back, back_whole)) = (both::<N>(segment), both::<N>(answer));
        assert!(flow.is(&whole) && back.is(&back_whole) && !flow.is(&back_whole) && !flow.is(&whole.second()));
        assert_eq!((flow.reversed(), whole.reversed()), (back, back_whole));
        assert_eq!(flow.guess([3, 5], 7), whole.guess([3, 5], 7));
        for other in others {
            assert!(!flow.is(&key(other).expect("TCP or UDP")));
        }
        // Each byte of addresses and ports.
        for at in if N == IPV4 { 26..38 } else { 22..58 } {
            let mut changed = segment.to_vec();
            changed[at] ^= 0x10;
            let (other, other_whole) = both::<N>(&changed);
            assert!(!flow.is(&other_whole) && !other.is(&whole) && whole != other_whole, "byte {at}");
        }
    }

    #[test]
    fn a_segment_has_the_same_flow_in_few_numbers() {
        let mapped = |number| host(number).to_ipv6_mapped();
        let over_ipv4 = |from, to| eth(MACS[0], MACS[1]).ipv4(host(from), host(to));
        let over_ipv6 = |from, to| eth(MACS[0], MACS[1]).ipv6(mapped(from), mapped(to));
        let ipv4 = [over_ipv4(1, 2).tcp(1000, 80, 1).bytes(), over_ipv4(2, 1).tcp(80, 1000, 1).bytes()];
        let ipv6 = [over_ipv6(1, 2).tcp(1000, 80, 1).bytes(), over_ipv6(2, 1).tcp(80, 1000, 1).bytes()];
        let udp = [over_ipv4(1, 2).udp(1000, 80).bytes(), over_ipv6(1, 2).udp(1000, 80).bytes()];
        let turned = [over_ipv4(2, 1).tcp(1000, 80, 1).bytes(), over_ipv6(2, 1).tcp(1000, 80, 1).bytes()];
        let of_none = [udp, turned].concat();
        has_the_same_flow_in_few_numbers::<IPV4>(&ipv4[0], &ipv4[1], &[&of_none[..], &ipv6].concat());
        has_the_same_flow_in_few_numbers::<IPV6>(&ipv6[0], &ipv6[1], &[&of_none[..], &ipv4].concat());
    }

    #[test]
    fn flows_whose_ports_follow_each_other_are_guessed_apart() {
        const PLACES: usize = 1 << 15;
        for seed in 0..50u64 {
            let mut state = seed;
            let secret = std::array::from_fn(|_| u64::from(dice(&mut state)) << 32 | u64::from(dice(&mut state)));
            let mut taken = vec![0u32; PLACES];
            let crowded = (1024..11_024u16).filter(|&port| {
                let flow = key(&eth(MACS[0], MACS[1]).ipv4(host(1), host(2)).tcp(port, 80, 1).bytes()).unwrap();
                let place = &mut taken[flow.guess(secret, 7) as usize % PLACES];
                *place += 1;
                *place > 2
            });
            // By chance 1.3 % are the third of a place, or a later one.
            let crowded = crowded.count();
            assert!(crowded < 250, "{crowded} with seed {seed}");
        }
    }

    #[test]
    fn a_tag_and_an_offload_change_nothing() {
        let plain = key(&udp((1, 1000), (2, 53)).bytes());
        assert_eq!(plain, key(&udp((1, 1000), (2, 53)).vlan(10).bytes()));
        assert_eq!(plain, key(&udp((1, 1000), (2, 53)).payload(vec![0; 4000]).gso(1000).bytes()));
    }

    #[test]
    fn fragments_and_what_has_no_ports_have_none() {
        for (offset, more) in [(0, true), (8, true), (8, false)] {
            let fragment = udp((1, 1000), (2, 53)).payload(vec![0; 64]).fragment(offset, more);
            assert_eq!(key(&fragment.bytes()), None, "offset {offset}, more {more}");
        }
        assert_eq!(key(&icmp(1, 2, 3).bytes()), None, "an ICMP error");
        assert_eq!(key(&eth(MACS[0], MACS[1]).bytes()), None, "no IP");
    }
}
