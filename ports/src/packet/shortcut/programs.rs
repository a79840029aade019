//! The two programs of a shortcut, assembled. What they do, and why in this order, is at the top of
//! `shortcut.rs`.
//!
//! Bytes of the frame are copied to the stack, from where they can be read at any offset that is
//! aligned. `FRAME` is chosen so that addresses, lengths and ports are.

use super::code::{
    ADD, ADD_TO, AND, Code, DIVIDE_TO, IF_EQUAL, IF_EQUAL_TO, IF_LESS, IF_MORE, IF_MORE_TO, IF_NOT, IF_NOT_TO,
    IF_NOT_WORD, IF_WORD, Label, MOVE_TO, MULTIPLY_TO, SHIFT_LEFT, SHIFT_RIGHT, STACK, SUBTRACT_TO, Size,
};
use super::{Maps, Scope, Sender};
use crate::packet::bpf::{Instruction, NEXT, REDIRECT, SKB_MARK};
use crate::packet::socket::{MARK, WHOLE};
use datapath::guard::Identity;
use datapath::segment::{MAX_SEGMENTS, MIN_FRAME, WIRE_OVERHEAD};
use datapath::wire::{Mac, ethertype, protocol};

/// Helpers: `bpf_map_lookup_elem(map, key)`, `bpf_skb_load_bytes(frame, offset, to, bytes)`.
const LOOK_UP: i32 = 1;
const LOAD_BYTES: i32 = 26;
/// Where `struct __sk_buff` has what it is named for; [`SKB_MARK`] beside them.
const SKB_LEN: i16 = 0;
const SKB_VLAN_PRESENT: i16 = 20;
const SKB_INTERFACE: i16 = 40;
const SKB_SOCKET: i16 = 168;
const SKB_GSO_SIZE: i16 = 176;
/// Where `struct bpf_sock` has the address family.
const SOCK_FAMILY: i16 = 4;

/// Where the frame's first byte lies on the stack, and the most of it that is read: headers of
/// Ethernet, IPv6 and TCP.
const FRAME: i16 = -78;
const _: () = assert!(-FRAME > 14 + 40 + 20 && FRAME.rem_euclid(4) == 2);
/// The key of a map that counts from 0.
const KEY: i16 = -4;
/// The key of a receiver: [`Maps::receiver`].
const RECEIVER: i16 = -104;
/// What is computed of the frame: segments, bytes of the longest, and on the wire.
const SEGMENTS: i16 = -112;
const LONGEST: i16 = -120;
const WIRE_BYTES: i16 = -128;

/// The slot: interface and number of the sender, those of the receiver, then what is counted. An
/// interface of 0 is none.
pub const SLOT_BYTES: usize = 40;
const FROM_INTERFACE: i16 = 0;
const TO_INTERFACE: i16 = 4;
const FROM: i16 = 8;
const TO: i16 = 12;
const COUNTED: i16 = 16;
/// What is counted under a number: frames, then as in the slot segments, bytes and wire bytes.
pub const COUNT_BYTES: usize = 32;

/// Offsets in a frame.
const ETHERTYPE: i16 = 12;
const IP: i16 = 14;
const IPV4_LEN: i16 = 20;
const IPV6_LEN: i16 = 40;
/// The last first byte of IPv4 addresses that are one host's, and the first byte of groups of IPv6.
const LAST_UNICAST: i32 = 223;
const IPV6_GROUP: i32 = 0xff;
const UDP_LEN: i16 = 8;
const TCP_LEN: i16 = 20;

/// The program of the packet socket: whether it reads a frame, or the program at the hook takes it.
/// `leave` is the address whose frames are left to the host.
pub fn filter(maps: &Maps, sender: &Sender<'_>, leave: Option<[u8; 6]>) -> Vec<Instruction> {
    let mut code = Code::default();
    let (read, ignore) = (code.place(), code.place());
    let code = &mut code;
    // Whatever else: what was said of the frame before does not hold for this one.
    look_up_slot(code, maps, read);
    code.store_word(7, TO_INTERFACE, 0);
    code.load(Size::Word, 1, 6, SKB_MARK);
    code.when(IF_WORD, 1, MARK as i32, ignore);
    fetch(code, 0, IP, read);
    if let Some(mac) = leave {
        let other = code.place();
        unless_mac(code, 0, Mac(mac), other);
        code.jump(ignore);
        code.here(other);
    }
    code.value(1, maps.is_on.number());
    code.load(Size::Word, 1, 1, 0);
    code.when(IF_EQUAL, 1, 0, read);
    code.load(Size::Word, 1, 6, SKB_VLAN_PRESENT);
    code.when(IF_NOT, 1, 0, read);
    of_a_socket(code, read);
    source(code, &sender.identity.macs, read);
    code.load(Size::Word, 8, 6, SKB_LEN);
    headers(code, sender.identity, read);
    find_receiver(code, maps, sender, read);
    code.here(ignore);
    code.end(0);
    code.here(read);
    code.end(WHOLE as i32);
    std::mem::take(code).finish()
}

/// The program at the interface's hook: takes a frame where the filter said so a moment ago, on
/// this processor.
pub fn take(maps: &Maps) -> Vec<Instruction> {
    let mut code = Code::default();
    let next = code.place();
    look_up_slot(&mut code, maps, next);
    code.load(Size::Word, 8, 7, TO_INTERFACE);
    code.when(IF_EQUAL, 8, 0, next);
    code.store_word(7, TO_INTERFACE, 0);
    code.load(Size::Word, 1, 7, FROM_INTERFACE);
    code.load(Size::Word, 2, 6, SKB_INTERFACE);
    code.when_to(IF_NOT_TO, 1, 2, next);
    count(&mut code, maps, FROM);
    count(&mut code, maps, TO);
    code.both(MOVE_TO, 1, 8);
    code.set(2, 0);
    code.call(REDIRECT);
    code.exit();
    code.here(next);
    code.end(NEXT);
    code.finish()
}

/// The frame's context stays in register 6, the slot in register 7.
fn look_up_slot(code: &mut Code, maps: &Maps, missing: Label) {
    code.both(MOVE_TO, 6, 1);
    code.store_word(STACK, KEY, 0);
    look_up(code, maps.slot.number(), KEY, missing);
    code.both(MOVE_TO, 7, 0);
}

/// Register 0 points to the value under the key at `key`.
fn look_up(code: &mut Code, map: i32, key: i16, missing: Label) {
    code.map(1, map);
    code.both(MOVE_TO, 2, STACK);
    code.with(ADD, 2, key.into());
    code.call(LOOK_UP);
    code.when(IF_EQUAL, 0, 0, missing);
}

/// Adds what the slot has to the count of the number at `whose` in it.
fn count(code: &mut Code, maps: &Maps, whose: i16) {
    let done = code.place();
    code.load(Size::Word, 1, 7, whose);
    code.store(Size::Word, STACK, KEY, 1);
    look_up(code, maps.counts.number(), KEY, done);
    code.load(Size::Long, 1, 0, 0);
    code.with(ADD, 1, 1);
    code.store(Size::Long, 0, 0, 1);
    for at in [0, 8, 16] {
        code.load(Size::Long, 1, 0, 8 + at);
        code.load(Size::Long, 2, 7, COUNTED + at);
        code.both(ADD_TO, 1, 2);
        code.store(Size::Long, 0, 8 + at, 1);
    }
    code.here(done);
}

/// Copies the frame's bytes from `from` to `to` onto the stack.
fn fetch(code: &mut Code, from: i16, to: i16, short: Label) {
    code.both(MOVE_TO, 1, 6);
    code.set(2, from.into());
    code.both(MOVE_TO, 3, STACK);
    code.with(ADD, 3, (FRAME + from).into());
    code.set(4, (to - from).into());
    code.call(LOAD_BYTES);
    code.when(IF_NOT, 0, 0, short);
}

/// Goes to `other` unless the address at `at` is this one.
fn unless_mac(code: &mut Code, at: i16, Mac(mac): Mac, other: Label) {
    for (i, half) in mac.chunks_exact(2).enumerate() {
        code.load(Size::Half, 1, STACK, FRAME + at + 2 * i as i16);
        code.when(IF_NOT_WORD, 1, u16::from_ne_bytes([half[0], half[1]]).into(), other);
    }
}

/// A socket of IP of the sender's own kernel has sent it: not a packet socket, which can ask for a
/// checksum to be finished where there is none.
fn of_a_socket(code: &mut Code, read: Label) {
    let is = code.place();
    code.load(Size::Long, 1, 6, SKB_SOCKET);
    code.when(IF_EQUAL, 1, 0, read);
    code.load(Size::Word, 1, 1, SOCK_FAMILY);
    code.when(IF_WORD, 1, libc::AF_INET, is);
    code.when(IF_NOT_WORD, 1, libc::AF_INET6, read);
    code.here(is);
}

/// The Ethernet source is one of these.
fn source(code: &mut Code, macs: &[Mac], read: Label) {
    let own = code.place();
    for &mac in macs {
        let other = code.place();
        unless_mac(code, 6, mac, other);
        code.jump(own);
        code.here(other);
    }
    code.jump(read);
    code.here(own);
}

/// Network and transport layer: TCP, or UDP in one segment, whole and from one of the sender's
/// addresses. Fills in what is computed. The kernel takes no program with instructions that cannot
/// be reached: none are made for a family of which the sender has no address.
fn headers(code: &mut Code, identity: &Identity, read: Label) {
    let (ipv4, ipv6, segmented, plain, sized) = (code.place(), code.place(), code.place(), code.place(), code.place());
    let has = |none_declared: bool| any_ip(identity) || !none_declared;
    let families = [
        (ethertype::IPV4, ipv4, has(identity.ipv4.is_empty())),
        (ethertype::IPV6, ipv6, has(identity.ipv6.is_empty())),
    ];
    code.load(Size::Half, 1, STACK, FRAME + ETHERTYPE);
    for (number, place, _) in families.iter().filter(|(.., has)| *has) {
        code.when(IF_EQUAL, 1, network_half(*number), *place);
    }
    code.jump(read);
    if families[0].2 {
        code.here(ipv4);
        header_of_ipv4(code, identity, read);
        transport(code, IP + IPV4_LEN, [67, 68], segmented, plain, read);
    }
    if families[1].2 {
        code.here(ipv6);
        header_of_ipv6(code, identity, read);
        transport(code, IP + IPV6_LEN, [547, 546], segmented, plain, read);
    }
    code.here(segmented);
    sizes_of_segments(code, plain, read);
    code.jump(sized);
    code.here(plain);
    code.set(1, 1);
    code.store(Size::Long, STACK, SEGMENTS, 1);
    code.store(Size::Long, STACK, LONGEST, 8);
    code.both(MOVE_TO, 1, 8);
    to_wire(code, 1);
    code.store(Size::Long, STACK, WIRE_BYTES, 1);
    code.here(sized);
}

/// Version 4 without options, no fragment. The protocol comes into register 1, the packet's end
/// into register 3.
fn header_of_ipv4(code: &mut Code, identity: &Identity, read: Label) {
    fetch(code, IP, IP + IPV4_LEN + UDP_LEN, read);
    code.load(Size::Byte, 1, STACK, FRAME + IP);
    code.when(IF_NOT, 1, 0x45, read);
    code.load(Size::Half, 1, STACK, FRAME + IP + 6);
    code.with(AND, 1, network_half(0x3fff));
    code.when(IF_NOT, 1, 0, read);
    // What goes to a group may be a router's word.
    code.load(Size::Byte, 1, STACK, FRAME + IP + 16);
    code.when(IF_MORE, 1, LAST_UNICAST, read);
    from_ipv4(code, identity, read);
    code.load(Size::Half, 3, STACK, FRAME + IP + 2);
    code.number(3);
    code.with(ADD, 3, IP.into());
    code.load(Size::Byte, 1, STACK, FRAME + IP + 9);
}

/// The same of version 6. What has extension headers has another protocol than TCP and UDP.
fn header_of_ipv6(code: &mut Code, identity: &Identity, read: Label) {
    fetch(code, IP, IP + IPV6_LEN + UDP_LEN, read);
    code.load(Size::Byte, 1, STACK, FRAME + IP);
    code.with(SHIFT_RIGHT, 1, 4);
    code.when(IF_NOT, 1, 6, read);
    code.load(Size::Byte, 1, STACK, FRAME + IP + 24);
    code.when(IF_EQUAL, 1, IPV6_GROUP, read);
    from_ipv6(code, identity, read);
    code.load(Size::Half, 3, STACK, FRAME + IP + 4);
    code.number(3);
    code.with(ADD, 3, (IP + IPV6_LEN).into());
    code.load(Size::Byte, 1, STACK, FRAME + IP + 6);
}

/// The transport header at `at`: the protocol is in register 1, the packet's end in register 3. TCP
/// goes to `segmented`, with the end of all headers in register 9, UDP to `plain`, unless it is
/// from the `dhcp` server's port, or to the client's.
fn transport(code: &mut Code, at: i16, dhcp: [u16; 2], segmented: Label, plain: Label, read: Label) {
    let tcp = code.place();
    // Bytes behind the packet are padding, missing ones are a lie.
    code.when_to(IF_MORE_TO, 3, 8, read);
    code.when(IF_EQUAL, 1, protocol::TCP.into(), tcp);
    code.when(IF_NOT, 1, protocol::UDP.into(), read);
    code.load(Size::Half, 1, STACK, FRAME + at);
    code.when(IF_EQUAL, 1, network_half(dhcp[0]), read);
    code.load(Size::Half, 1, STACK, FRAME + at + 2);
    code.when(IF_EQUAL, 1, network_half(dhcp[1]), read);
    code.load(Size::Half, 1, STACK, FRAME + at + 4);
    code.number(1);
    code.when(IF_LESS, 1, UDP_LEN.into(), read);
    code.with(ADD, 1, at.into());
    code.when_to(IF_MORE_TO, 1, 3, read);
    code.load(Size::Word, 1, 6, SKB_GSO_SIZE);
    code.when(IF_NOT, 1, 0, read);
    code.jump(plain);
    code.here(tcp);
    code.both(MOVE_TO, 9, 3);
    fetch(code, at + UDP_LEN, at + TCP_LEN, read);
    code.both(MOVE_TO, 3, 9);
    code.load(Size::Byte, 9, STACK, FRAME + at + 12);
    code.with(SHIFT_RIGHT, 9, 4);
    code.with(SHIFT_LEFT, 9, 2);
    code.when(IF_LESS, 9, TCP_LEN.into(), read);
    code.with(ADD, 9, at.into());
    code.when_to(IF_MORE_TO, 9, 3, read);
    code.jump(segmented);
}

/// Of TCP with its length in register 8, its headers' in register 9 and its end in register 3: as
/// `datapath::segment` computes them.
fn sizes_of_segments(code: &mut Code, plain: Label, read: Label) {
    code.load(Size::Word, 1, 6, SKB_GSO_SIZE);
    code.when(IF_EQUAL, 1, 0, plain);
    code.when_to(IF_NOT_TO, 3, 8, read);
    // Payload bytes.
    code.both(MOVE_TO, 2, 8);
    code.both(SUBTRACT_TO, 2, 9);
    code.when_to(IF_MORE_TO, 1, 2, read);
    // Rounded up.
    code.both(MOVE_TO, 4, 2);
    code.both(ADD_TO, 4, 1);
    code.with(ADD, 4, -1);
    code.both(DIVIDE_TO, 4, 1);
    code.when(IF_MORE, 4, MAX_SEGMENTS as i32, read);
    code.store(Size::Long, STACK, SEGMENTS, 4);
    code.with(ADD, 4, -1);
    // What all but the last are long.
    code.both(MOVE_TO, 5, 9);
    code.both(ADD_TO, 5, 1);
    code.store(Size::Long, STACK, LONGEST, 5);
    to_wire(code, 5);
    code.both(MULTIPLY_TO, 5, 4);
    // What the last is long.
    code.both(MULTIPLY_TO, 4, 1);
    code.both(MOVE_TO, 1, 8);
    code.both(SUBTRACT_TO, 1, 4);
    to_wire(code, 1);
    code.both(ADD_TO, 1, 5);
    code.store(Size::Long, STACK, WIRE_BYTES, 1);
}

/// What a frame of so many bytes takes on the wire.
fn to_wire(code: &mut Code, register: u8) {
    let long = code.place();
    code.when(IF_MORE, register, MIN_FRAME as i32, long);
    code.set(register, MIN_FRAME as i32);
    code.here(long);
    code.with(ADD, register, WIRE_OVERHEAD as i32);
}

fn from_ipv4(code: &mut Code, identity: &Identity, read: Label) {
    if any_ip(identity) {
        return;
    }
    let own = code.place();
    for &(prefix, len) in &identity.ipv4 {
        let mask = u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0);
        code.load(Size::Word, 1, STACK, FRAME + IP + 12);
        code.with(AND, 1, mask.to_be() as i32);
        code.when(IF_WORD, 1, (u32::from(prefix) & mask).to_be() as i32, own);
    }
    code.jump(read);
    code.here(own);
}

fn from_ipv6(code: &mut Code, identity: &Identity, read: Label) {
    if any_ip(identity) {
        // Whose a link-local address is the switch keeps (fe80::/10).
        code.load(Size::Half, 1, STACK, FRAME + IP + 8);
        code.with(AND, 1, network_half(0xffc0));
        code.when(IF_EQUAL, 1, network_half(0xfe80), read);
        return;
    }
    if identity.ipv6.iter().any(|&(_, len)| len == 0) {
        return;
    }
    let own = code.place();
    for &(prefix, len) in &identity.ipv6 {
        let other = code.place();
        let mask = u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0);
        let words = |number: u128| [96, 64, 32, 0].map(|shift| ((number >> shift) as u32).to_be() as i32);
        for (i, (mask, prefix)) in words(mask).into_iter().zip(words(u128::from(prefix) & mask)).enumerate() {
            if mask != 0 {
                code.load(Size::Word, 1, STACK, FRAME + IP + 8 + 4 * i as i16);
                code.with(AND, 1, mask);
                code.when(IF_NOT_WORD, 1, prefix, other);
            }
        }
        code.jump(own);
        code.here(other);
    }
    code.jump(read);
    code.here(own);
}

/// Whose the destination is, and whether it takes the frame; if so, the slot says it.
fn find_receiver(code: &mut Code, maps: &Maps, sender: &Sender<'_>, read: Label) {
    let Scope { switch, tenant, netns } = sender.scope;
    for (at, word) in [(0, switch), (4, tenant), (8, netns), (16, 0)] {
        code.store_word(STACK, RECEIVER + at, word as i32);
    }
    for at in [0, 2, 4] {
        code.load(Size::Half, 1, STACK, FRAME + at);
        code.store(Size::Half, STACK, RECEIVER + 12 + at, 1);
    }
    look_up(code, maps.receivers.number(), RECEIVER, read);
    // Its interface, the longest frame it takes, and its number.
    code.load(Size::Word, 1, 0, 0);
    code.load(Size::Word, 2, 6, SKB_INTERFACE);
    code.when_to(IF_EQUAL_TO, 1, 2, read);
    code.load(Size::Word, 3, 0, 4);
    code.load(Size::Long, 4, STACK, LONGEST);
    code.when_to(IF_MORE_TO, 4, 3, read);
    code.load(Size::Word, 3, 0, 8);
    code.store(Size::Word, 7, FROM_INTERFACE, 2);
    code.store_word(7, FROM, sender.number as i32);
    code.store(Size::Word, 7, TO, 3);
    code.load(Size::Long, 3, STACK, SEGMENTS);
    code.store(Size::Long, 7, COUNTED, 3);
    code.store(Size::Long, 7, COUNTED + 8, 8);
    code.load(Size::Long, 3, STACK, WIRE_BYTES);
    code.store(Size::Long, 7, COUNTED + 16, 3);
    code.store(Size::Word, 7, TO_INTERFACE, 1);
}

pub(super) fn any_ip(identity: &Identity) -> bool {
    identity.ipv4.is_empty() && identity.ipv6.is_empty()
}

/// A number as it lies in a frame, when it is read in the machine's order.
fn network_half(number: u16) -> i32 {
    number.to_be().into()
}
