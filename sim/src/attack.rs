//! Attack: frames that no honest host sends. Each kind is something that a switch between strangers
//! must survive, and must not let through to another tenant, nor at another tenant's cost.

use core::net::{Ipv4Addr, Ipv6Addr};

use datapath::frame::{Frame, Pool};
use datapath::offload::{Gso, GsoEcn, Offload};
use datapath::wire::Mac;

use crate::packet::{self, Address, Ecn, Envelope, Nic, TCP_HEADERS, Tcp, flag};
use crate::random::Random;

/// What an attacker sends, where nothing else is said from its own address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Malformed, spoofed and reserved frames of every kind that is known here, at random.
    Any,
    /// TCP frames of almost 64 KiB in segments of so many bytes of payload: work for who has to cut
    /// them.
    Crumbs(u16),
    /// Datagrams of almost 64 KiB in all, in segments of 1400 bytes, to a group: work for who has
    /// to copy them.
    Group,
    /// The shortest frames, to the receiver.
    Shortest,
    /// One datagram, or several as one frame, with so many bytes in all to an address outside that
    /// nobody has: they wait for the uplink.
    Outward(u32),
    /// Frames from the receiver's MAC address to nobody, so that what is for it comes here.
    MacTheft,
    /// Neighbour advertisements that give the receiver's link-local address to the sender (RFC 4861
    /// section 4.4).
    LinkLocalTheft,
    /// The one honest kind: neighbour advertisements of the sender's own link-local address, as
    /// routers send them.
    Announcement,
    /// The shortest frames, to everybody.
    Broadcast,
    /// Control protocols of switches, by which others believe that a switch is here: CDP and its
    /// kin, PVST+, MVRP.
    Control,
}

/// Payload of a frame of almost 64 KiB, and of a segment of it.
const LONG: (usize, usize) = (64_000, 1400);
/// The shortest frame, without its FCS.
const SHORTEST: usize = 60;
/// Nobody's address.
const NOBODY: Mac = Mac([0x02, 0x0e, 0x0e, 0x0e, 0x0e, 0x0e]);
/// The EtherType for local experiments (IEEE 802).
const EXPERIMENT: u16 = 0x88b5;

/// The link-local address by which neighbours know a host. It is not made from its MAC address, so
/// it says nothing about whose it is.
#[must_use]
pub fn link_local(address: &Address) -> Ipv6Addr {
    let [a, b, c, d] = address.ip.octets().map(u16::from);
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0xa1b2, 0xc3d4, a << 8 | b, c << 8 | d)
}

/// Target and link-layer address of a neighbour advertisement.
#[must_use]
pub fn read_advertisement(bytes: &[u8]) -> Option<(Ipv6Addr, Mac)> {
    let is_one = bytes.get(12..14)? == [0x86, 0xdd] && bytes.get(20)? == &58 && bytes.get(54)? == &136;
    let target: [u8; 16] = bytes.get(62..78)?.try_into().ok()?;
    let option: [u8; 6] = bytes.get(80..86)?.try_into().ok()?;
    (is_one && bytes.get(78..80)? == [2, 1]).then_some((Ipv6Addr::from(target), Mac(option)))
}

/// Whether a frame is one by which switches speak with each other and which a bridge would pass on.
#[must_use]
pub fn is_control(to: Mac) -> bool {
    matches!(to.0, [0x01, 0x00, 0x0c, 0xcc, 0xcc, _] | [0x01, 0x80, 0xc2, 0, 0, 0x20..=0x2f])
}

/// The next frame of a kind. `None` where the pool has no buffer.
pub fn frame(pool: &mut Pool, envelope: &Envelope, kind: Kind, random: &mut Random) -> Option<Frame> {
    let (payload, segment) = LONG;
    match kind {
        Kind::Any => {
            let frame = packet::write_udp(pool, envelope, 158, 158, 0)?;
            random.pick(BAD)(pool, &frame, random);
            Some(frame)
        }
        Kind::Crumbs(segment) => {
            let mtu = u32::from(segment) + TCP_HEADERS as u32 - 14;
            let envelope = Envelope { nic: Nic { mtu, ..envelope.nic }, ..*envelope };
            let tcp = Tcp { flags: flag::ACK, window: u16::MAX, ..Tcp::default() };
            packet::write_tcp(pool, &envelope, Ecn::Not, &tcp, payload, 0)
        }
        Kind::Group => {
            let group = Address { mac: Mac([1, 0, 0x5e, 1, 1, 1]), ip: Ipv4Addr::new(239, 1, 1, 1) };
            packet::write_udp(pool, &Envelope { to: group, ..*envelope }, payload, segment, 0)
        }
        Kind::Outward(bytes) => {
            let to = Address { mac: NOBODY, ..envelope.to };
            packet::write_udp(pool, &Envelope { to, ..*envelope }, bytes as usize, segment.min(bytes as usize), 0)
        }
        Kind::Shortest => plain(pool, envelope.to.mac, envelope.from.mac, SHORTEST, EXPERIMENT),
        Kind::Broadcast => plain(pool, Mac::BROADCAST, envelope.from.mac, SHORTEST, EXPERIMENT),
        Kind::MacTheft => plain(pool, NOBODY, envelope.to.mac, SHORTEST, EXPERIMENT),
        Kind::LinkLocalTheft => advertisement(pool, link_local(&envelope.to), envelope.from.mac),
        Kind::Announcement => advertisement(pool, link_local(&envelope.from), envelope.from.mac),
        Kind::Control => {
            let cisco = |last| Mac([0x01, 0x00, 0x0c, 0xcc, 0xcc, last]);
            let to = *random.pick(&[cisco(0xcc), cisco(0xcd), Mac([0x01, 0x80, 0xc2, 0, 0, 0x21])]);
            let frame = plain(pool, to, envelope.from.mac, SHORTEST, 46)?;
            let protocol = *random.pick(&[0x2000, 0x2003, 0x2004, 0x0104, 0x0111, 0x010bu16]);
            let bytes = pool.bytes_mut(&frame);
            bytes[14..20].copy_from_slice(&[0xaa, 0xaa, 3, 0, 0, 0x0c]);
            bytes[20..22].copy_from_slice(&protocol.to_be_bytes());
            Some(frame)
        }
    }
}

/// A frame of a protocol that nobody reads.
fn plain(pool: &mut Pool, to: Mac, from: Mac, len: usize, ethertype: u16) -> Option<Frame> {
    let frame = pool.alloc(len)?;
    let bytes = pool.bytes_mut(&frame);
    bytes[14..].fill(0);
    bytes[..6].copy_from_slice(&to.0);
    bytes[6..12].copy_from_slice(&from.0);
    bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
    Some(frame)
}

/// An unsolicited neighbour advertisement, to all: `target` is at `from`.
fn advertisement(pool: &mut Pool, target: Ipv6Addr, from: Mac) -> Option<Frame> {
    let frame = plain(pool, Mac([0x33, 0x33, 0, 0, 0, 1]), from, 86, 0x86dd)?;
    let bytes = pool.bytes_mut(&frame);
    bytes[14..22].copy_from_slice(&[0x60, 0, 0, 0, 0, 32, 58, 255]);
    bytes[22..38].copy_from_slice(&target.octets());
    bytes[38..54].copy_from_slice(&Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets());
    // It is a router, unasked, and overrides what was known.
    bytes[54..62].copy_from_slice(&[136, 0, 0, 0, 0xa0, 0, 0, 0]);
    bytes[62..78].copy_from_slice(&target.octets());
    bytes[78..80].copy_from_slice(&[2, 1]);
    bytes[80..86].copy_from_slice(&from.0);
    let pseudo = packet::sum(&bytes[22..54]) + 32 + 58;
    let checksum = !packet::fold(pseudo + packet::sum(&bytes[54..86]));
    bytes[56..58].copy_from_slice(&checksum.to_be_bytes());
    Some(frame)
}

/// A way to write one bad frame, out of a good datagram of 200 bytes.
type Bad = fn(&mut Pool, &Frame, &mut Random);

/// Every way.
const BAD: &[Bad] = &[
    runt,
    cut_short,
    length_lies,
    noise,
    spoofed_mac,
    spoofed_ip,
    broadcast,
    reserved,
    pause,
    tagged,
    offload_lies,
    foreign_destination,
    fragment,
    ipv6_noise,
    arp_spoof,
    group_source,
];

fn runt(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    pool.set_len(frame, random.range(0, 13) as usize);
}

fn cut_short(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    pool.set_len(frame, random.range(14, 60) as usize);
}

fn length_lies(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    let length = (random.word() as u16).to_be_bytes();
    pool.bytes_mut(frame)[16..18].copy_from_slice(&length);
}

fn noise(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    for byte in &mut pool.bytes_mut(frame)[12..] {
        *byte = random.word() as u8;
    }
}

fn spoofed_mac(pool: &mut Pool, frame: &Frame, _: &mut Random) {
    // The tenant's part of the address: of another tenant.
    pool.bytes_mut(frame)[9] ^= 1;
}

fn spoofed_ip(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    let ip = (random.word() as u32).to_be_bytes();
    pool.bytes_mut(frame)[26..30].copy_from_slice(&ip);
}

fn broadcast(pool: &mut Pool, frame: &Frame, _: &mut Random) {
    pool.bytes_mut(frame)[..6].fill(0xff);
}

fn reserved(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    let last = random.range(0, 15) as u8;
    pool.bytes_mut(frame)[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, last]);
}

fn pause(pool: &mut Pool, frame: &Frame, _: &mut Random) {
    pool.bytes_mut(frame)[12..18].copy_from_slice(&[0x88, 0x08, 0x00, 0x01, 0xff, 0xff]);
}

fn tagged(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    let bytes = pool.bytes_mut(frame);
    let [high, low] = (random.range(0, 4095) as u16).to_be_bytes();
    bytes.copy_within(12..196, 16);
    bytes[12..16].copy_from_slice(&[0x81, 0x00, high, low]);
}

fn offload_lies(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    let gso = *random.pick(&[Gso::None, Gso::Tcp4, Gso::Tcp6, Gso::Udp]);
    pool.meta_mut(frame).offload = Offload {
        gso,
        gso_ecn: *random.pick(&[GsoEcn::None, GsoEcn::Cwr, GsoEcn::Ace]),
        gso_size: random.range(0, 300) as u16,
        needs_csum: true,
        csum_valid: false,
        csum_start: random.range(0, 400) as u16,
        csum_offset: *random.pick(&[0, 6, 16, 65_535]),
    };
}

fn foreign_destination(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    let bytes = pool.bytes_mut(frame);
    bytes[3] ^= 1;
    bytes[5] = random.range(0, 7) as u8;
}

fn fragment(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    let offset = (random.word() as u16).to_be_bytes();
    pool.bytes_mut(frame)[20..22].copy_from_slice(&offset);
}

fn ipv6_noise(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    let bytes = pool.bytes_mut(frame);
    bytes[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    // A chain of extension headers that may lead anywhere.
    for at in (54..190).step_by(8) {
        bytes[at] = *random.pick(&[0, 43, 44, 51, 60, 17, 58]);
        bytes[at + 1] = random.range(0, 3) as u8;
    }
    bytes[20] = *random.pick(&[0, 43, 44, 51, 60]);
}

fn arp_spoof(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    let sender = (random.word() as u32).to_be_bytes();
    pool.set_len(frame, 60);
    let bytes = pool.bytes_mut(frame);
    bytes[12..22].copy_from_slice(&[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2]);
    bytes[28..32].copy_from_slice(&sender);
}

fn group_source(pool: &mut Pool, frame: &Frame, random: &mut Random) {
    let bytes = pool.bytes_mut(frame);
    if random.range(0, 1) == 0 { bytes[6] |= 1 } else { bytes[6..12].fill(0) }
}
