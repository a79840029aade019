//! Fields of packets, and what flows match (OpenFlow 1.3.5, section 7.2.3; Open vSwitch,
//! ovs-fields(7)).

use super::bytes::{Bad, Bytes, pad, put16, set_length};
use datapath::wire::Mac;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Fields of one match that are kept at most; a switch has some 100 kinds.
pub const MOST_FIELDS: usize = 64;
/// Type of a match in OXM form, and the length of its own header.
const OXM: u16 = 1;
const MATCH_HEADER: usize = 4;

/// Which field: class and number, as in the first 23 bits of its header, and its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Kind {
    class: u16,
    number: u8,
    bytes: u8,
}

macro_rules! kinds {
    ($($(#[$about:meta])* $name:ident = ($class:expr, $number:expr, $bytes:expr);)*) => {
        impl Kind {
            $($(#[$about])* pub const $name: Kind = Kind { class: $class, number: $number, bytes: $bytes };)*
            /// All that are known here.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),*];
        }
    };
}

/// OpenFlow's own fields, and Open vSwitch's of two times.
const BASIC: u16 = 0x8000;
const NICIRA: u16 = 0x0001;
const ERICSSON: u16 = 0x1000;

kinds! {
    /// Port that the frame came by.
    IN_PORT = (BASIC, 0, 4);
    /// Ethernet destination.
    ETH_DST = (BASIC, 3, 6);
    /// Ethernet source.
    ETH_SRC = (BASIC, 4, 6);
    /// EtherType.
    ETH_TYPE = (BASIC, 5, 2);
    /// Protocol of IP.
    IP_PROTO = (BASIC, 10, 1);
    /// IPv4 source.
    IPV4_SRC = (BASIC, 11, 4);
    /// IPv4 destination.
    IPV4_DST = (BASIC, 12, 4);
    /// TCP source port.
    TCP_SRC = (BASIC, 13, 2);
    /// TCP destination port.
    TCP_DST = (BASIC, 14, 2);
    /// UDP source port.
    UDP_SRC = (BASIC, 15, 2);
    /// UDP destination port.
    UDP_DST = (BASIC, 16, 2);
    /// ICMP type.
    ICMP_TYPE = (BASIC, 19, 1);
    /// ARP operation.
    ARP_OP = (BASIC, 21, 2);
    /// ARP sender's IPv4 address.
    ARP_SPA = (BASIC, 22, 4);
    /// ARP target's IPv4 address.
    ARP_TPA = (BASIC, 23, 4);
    /// ARP sender's Ethernet address.
    ARP_SHA = (BASIC, 24, 6);
    /// ARP target's Ethernet address.
    ARP_THA = (BASIC, 25, 6);
    /// IPv6 source.
    IPV6_SRC = (BASIC, 26, 16);
    /// IPv6 destination.
    IPV6_DST = (BASIC, 27, 16);
    /// ICMPv6 type.
    ICMPV6_TYPE = (BASIC, 29, 1);
    /// Address that neighbour discovery is about.
    ND_TARGET = (BASIC, 31, 16);
    /// Ethernet address of who solicits a neighbour, in an option.
    ND_SLL = (BASIC, 32, 6);
    /// Ethernet address of who advertises itself, in an option.
    ND_TLL = (BASIC, 33, 6);
    /// Flags of neighbour discovery and what is reserved beside (Open vSwitch 2.11).
    ND_FLAGS = (ERICSSON, 1, 4);
    /// Which option there is first (Open vSwitch 2.11).
    ND_OPTION = (ERICSSON, 2, 1);
    /// TCP's flags (Open vSwitch).
    TCP_FLAGS = (NICIRA, 34, 2);
    /// What connection tracking knows of the packet (Open vSwitch).
    CT_STATE = (NICIRA, 105, 4);
    /// IPv4 destination of the first packet of its connection (Open vSwitch).
    CT_NW_DST = (NICIRA, 121, 4);
    /// The same of IPv6.
    CT_IPV6_DST = (NICIRA, 123, 16);
    /// The same, the port.
    CT_TP_DST = (NICIRA, 125, 2);
}

impl Kind {
    /// How many bits it has.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.bytes as u16 * 8
    }

    /// Its header, as actions name a field.
    pub(super) fn header(self) -> u32 {
        u32::from(self.class) << 16 | u32::from(self.number) << 9 | u32::from(self.bytes)
    }

    pub(super) fn of_header(header: u32) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.header() == header)
    }
}

/// A field with its value, and where only some bits of it count, with a mask.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Field {
    /// Which.
    pub kind: Kind,
    /// In the lower bits.
    pub value: u128,
    /// The bits that count; `None` for all.
    pub mask: Option<u128>,
}

impl Field {
    /// A field with a number.
    #[must_use]
    pub fn new(kind: Kind, value: impl Into<u128>) -> Field {
        Field { kind, value: value.into(), mask: None }
    }

    /// The source of a packet of IP.
    #[must_use]
    pub fn source(ip: IpAddr) -> Field {
        Field::ip([Kind::IPV4_SRC, Kind::IPV6_SRC], ip)
    }

    /// The destination of the first packet of a connection.
    #[must_use]
    pub fn first_target(ip: IpAddr) -> Field {
        Field::ip([Kind::CT_NW_DST, Kind::CT_IPV6_DST], ip)
    }

    /// The destination of a packet of IP.
    #[must_use]
    pub fn target(ip: IpAddr) -> Field {
        Field::ip([Kind::IPV4_DST, Kind::IPV6_DST], ip)
    }

    fn ip([four, six]: [Kind; 2], ip: IpAddr) -> Field {
        match ip {
            IpAddr::V4(ip) => Field::new(four, ip.to_bits()),
            IpAddr::V6(ip) => Field::new(six, ip.to_bits()),
        }
    }

    /// A field with an Ethernet address.
    #[must_use]
    pub fn mac(kind: Kind, mac: Mac) -> Field {
        let [a, b, c, d, e, f] = mac.0;
        Field::new(kind, u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }

    /// Bits that must be set, and bits that must not be.
    #[must_use]
    pub fn bits(kind: Kind, set: u32, unset: u32) -> Field {
        Field { kind, value: set.into(), mask: Some((set | unset).into()) }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let Kind { class, number, bytes } = self.kind;
        put16(out, class);
        let (has_mask, bytes) = (self.mask.is_some(), usize::from(bytes));
        out.extend([number << 1 | u8::from(has_mask), if has_mask { 2 * bytes as u8 } else { bytes as u8 }]);
        for value in [Some(self.value), self.mask].into_iter().flatten() {
            out.extend_from_slice(&value.to_be_bytes()[16 - bytes..]);
        }
    }

    /// The next field; `None` where it is of a kind that is not known here.
    pub(super) fn read(from: &mut Bytes<'_>) -> Result<Option<Field>, Bad> {
        let (class, number, length) = (from.u16()?, from.u8()?, from.u8()?);
        let (number, has_mask) = (number >> 1, number & 1 == 1);
        let body = from.take(length.into())?;
        let Some(&kind) = Kind::ALL.iter().find(|kind| (kind.class, kind.number) == (class, number)) else {
            return Ok(None);
        };
        let bytes = usize::from(kind.bytes);
        if body.len() != if has_mask { 2 * bytes } else { bytes } {
            return Err(Bad::new("a field", "has not the length of its kind"));
        }
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, &byte| sum << 8 | u128::from(byte));
        let (value, mask) = body.split_at(bytes);
        Ok(Some(Field { kind, value: number(value), mask: has_mask.then(|| number(mask)) }))
    }
}

/// What frames a flow is for.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Match {
    /// Fields; what a field presupposes comes before it.
    pub fields: Vec<Field>,
    /// Fields that are not known here and were left out when it was read.
    pub unknown: u8,
}

impl Match {
    /// Of these fields.
    #[must_use]
    pub fn of(fields: impl Into<Vec<Field>>) -> Match {
        Match { fields: fields.into(), unknown: 0 }
    }

    /// The whole value of a field.
    #[must_use]
    pub fn get(&self, kind: Kind) -> Option<u128> {
        self.fields.iter().find(|field| field.kind == kind && field.mask.is_none()).map(|field| field.value)
    }

    /// The source of its packets.
    #[must_use]
    pub fn source(&self) -> Option<IpAddr> {
        let four = || self.get(Kind::IPV4_SRC).map(|value| Ipv4Addr::from_bits(value as u32).into());
        four().or_else(|| self.get(Kind::IPV6_SRC).map(|value| Ipv6Addr::from_bits(value).into()))
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        put16(out, OXM);
        put16(out, 0);
        self.fields.iter().for_each(|field| field.write(out));
        // The length leaves out the zeros behind.
        set_length(out, start, start + 2);
        pad(out, start);
    }

    pub(super) fn read(from: &mut Bytes<'_>) -> Result<Match, Bad> {
        let mut part = from.part(2, MATCH_HEADER, "a match")?;
        let length = part.rest().len();
        if part.u16()? != OXM {
            return Err(Bad::new("a match", "is not of type OXM"));
        }
        part.skip(2)?;
        from.skip(length.next_multiple_of(8) - length)?;
        let mut all = Match::default();
        while !part.is_empty() {
            match Field::read(&mut part)? {
                Some(field) if all.fields.len() < MOST_FIELDS => all.fields.push(field),
                _ => all.unknown = all.unknown.saturating_add(1),
            }
        }
        Ok(all)
    }
}
