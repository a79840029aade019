//! Builds frames from their fields, for tests and for the simulator's hosts.
//!
//! A [`Build`] starts with [`eth`] (or with a whole message such as [`arp_request`]), is given its
//! layers one after the other, and ends with [`Build::bytes`], [`Build::write`] or
//! [`Build::frame`]. Lengths and checksums come out right; a test that wants them wrong changes the
//! bytes. Checksums are worked out here by the letter of RFC 1071, apart from `checksum`, which is
//! tested against this.

mod messages;

pub use messages::*;

use super::{Mac, ethertype, protocol, tcp_flags};
use crate::offload::{Gso, GsoEcn, Offload};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::borrow::Cow;

/// A frame to be built.
#[derive(Clone, Debug)]
pub struct Build<'a> {
    source: Mac,
    destination: Mac,
    tag: Option<u16>,
    network: Network,
    transport: Transport,
    payload: Cow<'a, [u8]>,
    partial: bool,
    gso_size: u16,
}

#[derive(Clone, Debug)]
enum Network {
    Raw(u16),
    V4 { source: Ipv4Addr, destination: Ipv4Addr, tos: u8, ttl: u8, id: u16, fragment: u16, options: Vec<u8> },
    V6 { source: Ipv6Addr, destination: Ipv6Addr, class: u8, hop_limit: u8, extensions: Vec<(u8, Vec<u8>)> },
}

#[derive(Clone, Copy, Debug)]
enum Transport {
    Raw(u8),
    Tcp { ports: [u16; 2], sequence: u32, ack: u32, flags: u8, window: u16, options: u8 },
    Udp { ports: [u16; 2] },
    Icmp { kind: u8, code: u8, rest: u32 },
}

/// A frame from `source` to `destination`, with nothing in it yet.
#[must_use]
pub fn eth<'a>(source: Mac, destination: Mac) -> Build<'a> {
    Build {
        source,
        destination,
        tag: None,
        network: Network::Raw(0x88b5), // the EtherType for local experiments
        transport: Transport::Raw(protocol::NO_NEXT_HEADER),
        payload: Cow::Borrowed(&[]),
        partial: false,
        gso_size: 0,
    }
}

impl<'a> Build<'a> {
    /// Puts an 802.1Q tag on it.
    #[must_use]
    pub fn vlan(mut self, tci: u16) -> Self {
        self.tag = Some(tci);
        self
    }

    /// The payload follows right behind this EtherType.
    #[must_use]
    pub fn ethertype(mut self, ethertype: u16) -> Self {
        self.network = Network::Raw(ethertype);
        self
    }

    /// An IPv4 packet.
    #[must_use]
    pub fn ipv4(mut self, source: Ipv4Addr, destination: Ipv4Addr) -> Self {
        self.network = Network::V4 { source, destination, tos: 0, ttl: 64, id: 0, fragment: 0, options: Vec::new() };
        self
    }

    /// An IPv6 packet.
    #[must_use]
    pub fn ipv6(mut self, source: Ipv6Addr, destination: Ipv6Addr) -> Self {
        self.network = Network::V6 { source, destination, class: 0, hop_limit: 64, extensions: Vec::new() };
        self
    }

    /// An IPv4 or IPv6 packet; both addresses must be of one family.
    #[must_use]
    pub fn ip(self, source: IpAddr, destination: IpAddr) -> Self {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => self.ipv4(source, destination),
            (IpAddr::V6(source), IpAddr::V6(destination)) => self.ipv6(source, destination),
            _ => panic!("{source} and {destination} are of two families"),
        }
    }

    /// Type of service, or traffic class: DSCP and ECN.
    #[must_use]
    pub fn tos(mut self, value: u8) -> Self {
        match &mut self.network {
            Network::V4 { tos, .. } => *tos = value,
            Network::V6 { class, .. } => *class = value,
            Network::Raw(_) => panic!("no IP header yet"),
        }
        self
    }

    /// Time to live, or hop limit.
    #[must_use]
    pub fn ttl(mut self, value: u8) -> Self {
        match &mut self.network {
            Network::V4 { ttl, .. } => *ttl = value,
            Network::V6 { hop_limit, .. } => *hop_limit = value,
            Network::Raw(_) => panic!("no IP header yet"),
        }
        self
    }

    /// IPv4's identification.
    #[must_use]
    pub fn id(mut self, value: u16) -> Self {
        match &mut self.network {
            Network::V4 { id, .. } => *id = value,
            _ => panic!("no IPv4 header yet"),
        }
        self
    }

    /// IPv4 options; a multiple of four bytes.
    #[must_use]
    pub fn ip_options(mut self, value: &[u8]) -> Self {
        match &mut self.network {
            Network::V4 { options, .. } => *options = value.to_vec(),
            _ => panic!("no IPv4 header yet"),
        }
        self
    }

    /// An IPv6 extension header of this number behind those there are; `body` is the header without
    /// its first byte (next header): its length in units of 8 bytes less one, then the rest.
    #[must_use]
    pub fn extension(mut self, number: u8, body: &[u8]) -> Self {
        match &mut self.network {
            Network::V6 { extensions, .. } => extensions.push((number, body.to_vec())),
            _ => panic!("no IPv6 header yet"),
        }
        self
    }

    /// Makes the packet a fragment whose data lie at `offset` (in bytes, a multiple of 8) of the
    /// whole.
    #[must_use]
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        match &mut self.network {
            Network::V4 { fragment, .. } => {
                *fragment = (offset / 8) | if more { 0x2000 } else { 0 };
                self
            }
            _ => {
                let [high, low] = (offset | u16::from(more)).to_be_bytes();
                self.extension(protocol::FRAGMENT, &[0, high, low, 0, 0, 0, 1])
            }
        }
    }

    /// Data of this protocol, without a header.
    #[must_use]
    pub fn protocol(mut self, number: u8) -> Self {
        self.transport = Transport::Raw(number);
        self
    }

    /// A TCP segment with ACK set.
    #[must_use]
    pub fn tcp(mut self, source: u16, destination: u16, sequence: u32) -> Self {
        let ports = [source, destination];
        let flags = tcp_flags::ACK;
        self.transport = Transport::Tcp { ports, sequence, ack: 1, flags, window: 0xffff, options: 0 };
        self
    }

    /// TCP's flags; see [`tcp_flags`].
    #[must_use]
    pub fn flags(mut self, value: u8) -> Self {
        match &mut self.transport {
            Transport::Tcp { flags, .. } => *flags = value,
            _ => panic!("no TCP header yet"),
        }
        self
    }

    /// TCP's acknowledgement number and window.
    #[must_use]
    pub fn ack(mut self, number: u32, size: u16) -> Self {
        match &mut self.transport {
            Transport::Tcp { ack, window, .. } => (*ack, *window) = (number, size),
            _ => panic!("no TCP header yet"),
        }
        self
    }

    /// So many 32-bit words of TCP options (all of them no-operation); at most ten.
    #[must_use]
    pub fn tcp_options(mut self, words: u8) -> Self {
        match &mut self.transport {
            Transport::Tcp { options, .. } => *options = words,
            _ => panic!("no TCP header yet"),
        }
        self
    }

    /// A UDP datagram.
    #[must_use]
    pub fn udp(mut self, source: u16, destination: u16) -> Self {
        self.transport = Transport::Udp { ports: [source, destination] };
        self
    }

    /// An ICMP or ICMPv6 message (by the packet's family); `rest` is the second word of its header.
    #[must_use]
    pub fn icmp(mut self, kind: u8, code: u8, rest: u32) -> Self {
        self.transport = Transport::Icmp { kind, code, rest };
        self
    }

    /// What lies behind the headers.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Cow<'a, [u8]>>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Leaves the transport checksum partial, as hosts do for devices that finish it.
    #[must_use]
    pub fn partial(mut self) -> Self {
        self.partial = true;
        self
    }

    /// Leaves the cutting into segments of `size` payload bytes to others, and the checksum too. A
    /// payload of at most one segment is left as it is.
    #[must_use]
    pub fn gso(mut self, size: u16) -> Self {
        self.gso_size = size;
        self.partial()
    }

    /// The frame's bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    /// Writes the frame over what `out` had; returns the work that is left.
    pub fn write(&self, out: &mut Vec<u8>) -> Offload {
        out.clear();
        out.extend(self.destination.0);
        out.extend(self.source.0);
        if let Some(tci) = self.tag {
            out.extend(ethertype::VLAN.to_be_bytes());
            out.extend(tci.to_be_bytes());
        }
        out.extend(self.ethertype_number().to_be_bytes());
        let network = out.len();
        self.write_network(out);
        let transport = out.len();
        self.write_transport(out);
        out.extend(self.payload.iter());
        self.finish(out, network, transport)
    }

    fn ethertype_number(&self) -> u16 {
        match self.network {
            Network::Raw(number) => number,
            Network::V4 { .. } => ethertype::IPV4,
            Network::V6 { .. } => ethertype::IPV6,
        }
    }

    /// Protocol number of what follows the network layer.
    fn number(&self) -> u8 {
        match (self.transport, &self.network) {
            (Transport::Raw(number), _) => number,
            (Transport::Tcp { .. }, _) => protocol::TCP,
            (Transport::Udp { .. }, _) => protocol::UDP,
            (Transport::Icmp { .. }, Network::V6 { .. }) => protocol::ICMPV6,
            (Transport::Icmp { .. }, _) => protocol::ICMP,
        }
    }

    /// Everything but lengths and checksums.
    fn write_network(&self, out: &mut Vec<u8>) {
        match &self.network {
            Network::Raw(_) => {}
            Network::V4 { source, destination, tos, ttl, id, fragment, options } => {
                out.extend([0x45 + (options.len() / 4) as u8, *tos, 0, 0]);
                out.extend(id.to_be_bytes());
                out.extend(fragment.to_be_bytes());
                out.extend([*ttl, self.number(), 0, 0]);
                out.extend(source.octets());
                out.extend(destination.octets());
                out.extend(options);
            }
            Network::V6 { source, destination, class, hop_limit, extensions } => {
                let mut numbers = extensions.iter().map(|e| e.0).chain([self.number()]);
                out.extend([0x60 | (class >> 4), class << 4, 0, 0, 0, 0]);
                out.extend([numbers.next().unwrap_or(protocol::NO_NEXT_HEADER), *hop_limit]);
                out.extend(source.octets());
                out.extend(destination.octets());
                for ((_, body), next) in extensions.iter().zip(numbers) {
                    out.push(next);
                    out.extend(body);
                }
            }
        }
    }

    fn write_transport(&self, out: &mut Vec<u8>) {
        match self.transport {
            Transport::Raw(_) => {}
            Transport::Tcp { ports, sequence, ack, flags, window, options } => {
                out.extend(ports.iter().flat_map(|p| p.to_be_bytes()));
                out.extend(sequence.to_be_bytes());
                out.extend(ack.to_be_bytes());
                out.extend([(5 + options) << 4, flags]);
                out.extend(window.to_be_bytes());
                out.extend([0; 4]);
                out.extend(core::iter::repeat_n(1, usize::from(options) * 4));
            }
            Transport::Udp { ports } => {
                out.extend(ports.iter().flat_map(|p| p.to_be_bytes()));
                out.extend((8 + self.payload.len() as u16).to_be_bytes());
                out.extend([0; 2]);
            }
            Transport::Icmp { kind, code, rest } => {
                out.extend([kind, code, 0, 0]);
                out.extend(rest.to_be_bytes());
            }
        }
    }

    /// Lengths, checksums, and the offload metadata.
    fn finish(&self, out: &mut [u8], network: usize, transport: usize) -> Offload {
        let len = out.len() - transport;
        let mut pseudo = self.number() as u32 + len as u32;
        match &self.network {
            Network::Raw(_) => return Offload::default(),
            Network::V4 { .. } => {
                let total = (out.len() - network) as u16;
                out[network + 2..][..2].copy_from_slice(&total.to_be_bytes());
                let checksum = !fold(sum(&out[network..transport]));
                out[network + 10..][..2].copy_from_slice(&checksum.to_be_bytes());
                pseudo += sum(&out[network + 12..][..8]);
            }
            Network::V6 { .. } => {
                let payload = (out.len() - network - 40) as u16;
                out[network + 4..][..2].copy_from_slice(&payload.to_be_bytes());
                pseudo += sum(&out[network + 8..][..32]);
            }
        }
        self.checksum(out, transport, pseudo)
    }

    fn checksum(&self, out: &mut [u8], transport: usize, pseudo: u32) -> Offload {
        let payload_len = self.payload.len();
        let (offset, gso, pseudo) = match (self.transport, &self.network) {
            (Transport::Raw(_), _) => return Offload::default(),
            (Transport::Tcp { .. }, Network::V6 { .. }) => (16, Gso::Tcp6, pseudo),
            (Transport::Tcp { .. }, _) => (16, Gso::Tcp4, pseudo),
            (Transport::Udp { .. }, _) => (6, Gso::Udp, pseudo),
            (Transport::Icmp { .. }, Network::V6 { .. }) => (2, Gso::None, pseudo),
            (Transport::Icmp { .. }, _) => (2, Gso::None, 0),
        };
        let field = transport + offset;
        let cut = gso != Gso::None && self.gso_size != 0 && payload_len > usize::from(self.gso_size);
        if self.partial {
            out[field..field + 2].copy_from_slice(&fold(pseudo).to_be_bytes());
            return Offload {
                gso: if cut { gso } else { Gso::None },
                gso_ecn: match self.transport {
                    Transport::Tcp { flags, .. } if cut && flags & tcp_flags::CWR != 0 => GsoEcn::Cwr,
                    _ => GsoEcn::None,
                },
                gso_size: if cut { self.gso_size } else { 0 },
                needs_csum: true,
                csum_valid: false,
                csum_start: transport as u16,
                csum_offset: offset as u16,
            };
        }
        let mut value = !fold(pseudo + sum(&out[transport..]));
        if value == 0 && gso == Gso::Udp {
            value = 0xffff;
        }
        out[field..field + 2].copy_from_slice(&value.to_be_bytes());
        Offload::default()
    }
}

/// RFC 1071: the sum of 16-bit words, an odd byte padded with zero. Not folded.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
