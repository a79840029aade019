//! Transmit hashes, equal to those of Linux's bonding driver on a little-endian machine, bit by
//! bit.
//!
//! Sources: Linux `Documentation/networking/bonding.rst` (`xmit_hash_policy`), and the addresses
//! and ports of the driver's flow dissection. A word is four bytes of the packet as a little-endian
//! machine loads them. The member is the hash modulo the count of members that may send. The inside
//! of VXLAN is not read: its UDP source port has the entropy of the inner packet.

use crate::wire::{Layout, be16, destination, ethertype, protocol, source};

/// What the hash covers in modes that balance by hash (`xmit_hash_policy`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HashPolicy {
    /// `layer2`: the last bytes of both MAC addresses, and the EtherType.
    #[default]
    Layer2,
    /// `layer2+3`: these and the IP addresses.
    Layer23,
    /// `layer3+4`: the IP addresses and the ports.
    Layer34,
    /// `encap2+3`: as `layer2+3`, with the addresses of the innermost packet.
    Encap23,
    /// `encap3+4`: as `layer3+4`, of the innermost packet.
    Encap34,
    /// `vlan+srcmac`: VLAN tag and source MAC address.
    VlanSrcmac,
}

impl HashPolicy {
    /// Each with the name that Linux gives it.
    pub const ALL: [(&'static str, HashPolicy); 6] = [
        ("layer2", HashPolicy::Layer2),
        ("layer2+3", HashPolicy::Layer23),
        ("layer3+4", HashPolicy::Layer34),
        ("encap2+3", HashPolicy::Encap23),
        ("encap3+4", HashPolicy::Encap34),
        ("vlan+srcmac", HashPolicy::VlanSrcmac),
    ];

    /// The name that Linux gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        HashPolicy::ALL[self as usize].0
    }

    /// The hash of a frame with a known layout. The outermost VLAN tag is handled as Linux handles
    /// a tag that is kept beside the frame: the EtherType is the one behind it.
    #[must_use]
    pub fn hash(self, bytes: &[u8], layout: &Layout) -> u32 {
        let flow = match self {
            HashPolicy::Layer2 => None,
            HashPolicy::VlanSrcmac => return vlan_srcmac(bytes, layout),
            HashPolicy::Layer23 => Flow::plain(bytes, layout, false),
            HashPolicy::Layer34 => Flow::plain(bytes, layout, true),
            HashPolicy::Encap23 | HashPolicy::Encap34 => Flow::innermost(bytes, layout),
        };
        let Some(flow) = flow else { return layer2(bytes, layout) };
        match self {
            HashPolicy::Layer34 | HashPolicy::Encap34 => fold(flow.ports ^ flow.addresses) >> 1,
            _ => fold(layer2(bytes, layout) ^ flow.addresses),
        }
    }
}

fn layer2(bytes: &[u8], layout: &Layout) -> u32 {
    u32::from(destination(bytes).0[5] ^ source(bytes).0[5]) ^ u32::from(layout.ethertype)
}

fn fold(hash: u32) -> u32 {
    let hash = hash ^ (hash >> 16);
    hash ^ (hash >> 8)
}

/// The tag with its priority, the upper three bytes of the source address, and its lower three.
fn vlan_srcmac(bytes: &[u8], layout: &Layout) -> u32 {
    let [a, b, c, d, e, f] = source(bytes).0;
    let tag = layout.vlan.and_then(|_| word16(bytes, TCI)).unwrap_or(0);
    u32::from(tag) ^ u32::from_be_bytes([0, a, b, c]) ^ u32::from_be_bytes([0, d, e, f])
}

/// Offset of the outermost tag's TCI.
const TCI: usize = 14;
/// EtherType of a whole Ethernet frame in GRE (RFC 1701's "transparent Ethernet bridging").
const BRIDGED: u16 = 0x6558;
/// Most headers that are passed, as in Linux.
const MOST_HEADERS: u32 = 15;
/// IP protocols beside those in [`protocol`] (IANA).
const IPIP: u8 = 4;
const IPV6_IN_IP: u8 = 41;
const DCCP: u8 = 33;
const ESP: u8 = 50;
const GRE: u8 = 47;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;
/// ICMP and ICMPv6 types with an identifier: echo and timestamp, each with its reply.
const WITH_IDENTIFIER: [u8; 6] = [0, 8, 13, 14, 128, 129];
/// Errors of ICMP (RFC 792) and ICMPv6 (RFC 4443): behind their header is the packet that caused
/// them.
const ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
const ERRORS_V6: [u8; 4] = [1, 2, 3, 4];
const ICMP_HEADER: usize = 8;

/// What a hash covers.
#[derive(Clone, Copy, Default)]
struct Flow {
    /// XOR of all words of both addresses.
    addresses: u32,
    /// Both ports as one word, or type, code and identifier of an ICMP message; 0 if there are
    /// none.
    ports: u32,
}

/// An IP header: its addresses, and offset and protocol of the next header.
struct Packet {
    addresses: u32,
    at: usize,
    /// `None` in a fragment.
    protocol: Option<u8>,
    is_ipv6: bool,
}

impl Flow {
    /// Of the outermost packet, or of the one in an ICMP error. `None` if the frame is not IP.
    fn plain(bytes: &[u8], layout: &Layout, with_ports: bool) -> Option<Flow> {
        let packet = Packet::read(bytes, layout.l3_offset.into(), layout.ethertype)?;
        let flow = Flow { addresses: packet.addresses, ports: 0 };
        let (Some(number @ (protocol::ICMP | protocol::ICMPV6)), at) = (packet.protocol, packet.at) else {
            let number = packet.protocol.filter(|_| with_ports);
            return Some(Flow { ports: number.map_or(0, |number| ports(bytes, packet.at, number)), ..flow });
        };
        let errors: &[u8] = if number == protocol::ICMP { &ERRORS } else { &ERRORS_V6 };
        match bytes.get(at) {
            Some(kind) if errors.contains(kind) => {
                let inner = Packet::read(bytes, at + ICMP_HEADER, layout.ethertype)?;
                let number = inner.protocol.filter(|_| with_ports);
                let ports = number.map_or(0, |number| ports(bytes, inner.at, number));
                Some(Flow { addresses: inner.addresses, ports })
            }
            _ => Some(Flow { ports: identifier(bytes, at), ..flow }),
        }
    }

    /// Of the packet behind all tags and tunnels of IP in IP and GRE. `None` if Linux does not know
    /// an EtherType on the way, or a header is cut off.
    fn innermost(bytes: &[u8], layout: &Layout) -> Option<Flow> {
        let (mut at, mut kind) = (usize::from(layout.l3_offset), layout.ethertype);
        let mut flow = Flow::default();
        for _ in 0..MOST_HEADERS {
            let packet = match kind {
                ethertype::VLAN | ethertype::SERVICE_VLAN => {
                    (at, kind) = (at + 4, word16(bytes, at + 2)?);
                    continue;
                }
                ethertype::ARP => return Some(flow),
                _ => Packet::read(bytes, at, kind)?,
            };
            flow = Flow { addresses: packet.addresses, ports: 0 };
            let Some((number, next)) = packet.behind_extensions(bytes)? else { return Some(flow) };
            match number {
                IPIP => (at, kind) = (next, ethertype::IPV4),
                IPV6_IN_IP => (at, kind) = (next, ethertype::IPV6),
                GRE => match gre(bytes, next)? {
                    Some(inside) => (at, kind) = inside,
                    None => return Some(flow),
                },
                protocol::ICMP | protocol::ICMPV6 => {
                    return Some(Flow { ports: identifier(bytes, next), ..flow });
                }
                _ => return Some(Flow { ports: ports(bytes, next, number), ..flow }),
            }
        }
        Some(flow)
    }
}

impl Packet {
    fn read(bytes: &[u8], at: usize, kind: u16) -> Option<Packet> {
        let v4 = |h: &[u8; 20]| {
            let len = usize::from(h[0] & 0x0f) * 4;
            let is_fragment = be16(h, 6) & 0x3fff != 0;
            let protocol = (!is_fragment).then_some(h[9]);
            (len >= h.len()).then(|| Packet { addresses: xor_words(&h[12..]), at: at + len, protocol, is_ipv6: false })
        };
        match kind {
            ethertype::IPV4 => bytes.get(at..)?.first_chunk::<20>().and_then(v4),
            ethertype::IPV6 => {
                let h = bytes.get(at..)?.first_chunk::<40>()?;
                let addresses = xor_words(&h[8..]);
                Some(Packet { addresses, at: at + h.len(), protocol: Some(h[6]), is_ipv6: true })
            }
            _ => None,
        }
    }

    /// Protocol and offset of the header behind the extension headers that Linux's dissector
    /// passes. `Some(None)` for a fragment, `None` if they are cut off.
    fn behind_extensions(&self, bytes: &[u8]) -> Option<Option<(u8, usize)>> {
        let Some(mut number) = self.protocol else { return Some(None) };
        let mut at = self.at;
        for _ in 0..MOST_HEADERS {
            match number {
                protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS if self.is_ipv6 => {
                    let next = *bytes.get(at)?;
                    at += (usize::from(*bytes.get(at + 1)?) + 1) * 8;
                    number = next;
                }
                protocol::FRAGMENT if self.is_ipv6 => return Some(None),
                _ => break,
            }
        }
        Some(Some((number, at)))
    }
}

/// Offset and EtherType of what is in GRE (RFC 2890). `Some(None)` if Linux does not read it;
/// `None` if it is cut off.
fn gre(bytes: &[u8], at: usize) -> Option<Option<(usize, u16)>> {
    const CHECKSUM: u16 = 0x8000;
    const ROUTING: u16 = 0x4000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    const VERSION: u16 = 0x0007;
    let (flags, kind) = (word16(bytes, at)?, word16(bytes, at + 2)?);
    if flags & (ROUTING | VERSION) != 0 {
        return Some(None);
    }
    let words = [CHECKSUM, KEY, SEQUENCE].iter().filter(|&bit| flags & bit != 0).count();
    let at = at + 4 + 4 * words;
    if kind != BRIDGED {
        return Some(Some((at, kind)));
    }
    Some(Some((at + 14, word16(bytes, at + 12)?)))
}

/// Both ports as one word, or the SPI of IPsec; 0 if the protocol has none, or they are cut off.
fn ports(bytes: &[u8], at: usize, number: u8) -> u32 {
    let at = match number {
        protocol::TCP | protocol::UDP | DCCP | SCTP | UDP_LITE | ESP => at,
        protocol::AUTHENTICATION => at + 4,
        _ => return 0,
    };
    word32(bytes, at)
}

/// Type, code and identifier of an ICMP message as Linux keeps them; 0 if it has no identifier. An
/// identifier of 0 counts as 1.
fn identifier(bytes: &[u8], at: usize) -> u32 {
    let Some([kind, code, _, _, high, low, ..]) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) else {
        return 0;
    };
    let id = u16::from_be_bytes([*high, *low]).max(1);
    if WITH_IDENTIFIER.contains(kind) { u32::from(id) << 16 | u32::from(*code) << 8 | u32::from(*kind) } else { 0 }
}

fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

/// 0 if it is cut off.
fn word32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk().copied()).map_or(0, u32::from_le_bytes)
}

fn xor_words(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(4).fold(0, |hash, word| hash ^ u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

#[cfg(test)]
mod tests;
