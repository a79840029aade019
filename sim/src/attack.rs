//! Attack: frames that no honest host sends. Each kind is something that a switch between strangers must survive, and must not let
//! through to another tenant.

use datapath::frame::{Frame, Pool};
use datapath::offload::{Gso, Offload};

use crate::packet::{self, Envelope};
use crate::random::Random;

/// A way to write one bad frame, out of a good datagram of 200 bytes.
type Kind = fn(&mut Pool, &Frame, &mut Random);

/// Every kind.
const KINDS: &[Kind] = &[
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

/// One bad frame. `None` where the pool has no buffer.
pub fn frame(pool: &mut Pool, envelope: &Envelope, random: &mut Random) -> Option<Frame> {
    let frame = packet::write_udp(pool, envelope, 158, 158, 0)?;
    random.pick(KINDS)(pool, &frame, random);
    Some(frame)
}

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
        gso_ecn: random.range(0, 1) == 1,
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
