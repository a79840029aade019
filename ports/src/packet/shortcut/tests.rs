//! The filter against what it should decide, frame by frame, without an interface: the kernel runs
//! it on what it is given.

use super::programs::{self, SLOT_BYTES};
use super::{Maps, Scope, Sender, takes};
use crate::packet::bpf::{self, Kind};
use crate::skipped::skipped;
use datapath::guard::{Allow, Identity};
use datapath::offload::Offload;
use datapath::segment;
use datapath::wire::build::{arp_request, eth};
use datapath::wire::{self, Mac};
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};

const BPF_PROG_TEST_RUN: i32 = 10;
/// Bytes of `struct __sk_buff`, and where it has `gso_size`.
const CONTEXT: usize = 192;
const GSO_SIZE: usize = 176;

const FROM: Mac = Mac([2, 0, 0, 0, 9, 1]);
const ALSO_FROM: Mac = Mac([2, 0, 0xf0, 0xff, 9, 0xa1]);
const TO: Mac = Mac([2, 0, 0, 0, 9, 2]);
const STRANGER: Mac = Mac([2, 0, 0, 0, 9, 3]);
const SCOPE: Scope = Scope { switch: 1, tenant: 2, netns: 0xf000_0003 };
/// The receiver's interface; the kernel runs a test on interface 1.
const INTERFACE: u32 = 77;
const LONGEST: u32 = 1514;

#[repr(C)]
#[derive(Default)]
struct Run {
    program: u32,
    answer: u32,
    in_bytes: u32,
    out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_in_bytes: u32,
    context_out_bytes: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    processor: u32,
    batch: u32,
    padding: u32,
}

/// What a program says of a frame. It is loaded as one of a hook, because the kernel gives tests of
/// socket filters no Ethernet header; it lets frames of IP be sent by a socket of IP.
fn run(program: &OwnedFd, bytes: &[u8], gso_size: u16) -> u32 {
    let mut context = [0u8; CONTEXT];
    context[GSO_SIZE..GSO_SIZE + 4].copy_from_slice(&u32::from(gso_size).to_ne_bytes());
    let mut run = Run {
        program: program.as_raw_fd() as u32,
        in_bytes: bytes.len() as u32,
        data_in: bytes.as_ptr() as u64,
        repeat: 1,
        context_in_bytes: CONTEXT as u32,
        context_in: context.as_ptr() as u64,
        ..Run::default()
    };
    // SAFETY: `Run` is BPF_PROG_TEST_RUN's layout; frame and context are as long as it says,
    // outlive the call, and nothing is written to them.
    unsafe { bpf::bpf(BPF_PROG_TEST_RUN, &mut run) }.unwrap();
    run.answer
}

/// Numbers that look like chance, the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A frame that often is such as can be taken.
    fn frame(&mut self) -> (Vec<u8>, Offload) {
        let (from, to) = (self.one_of(&[FROM, FROM, ALSO_FROM, STRANGER]), self.one_of(&[TO, TO, TO, STRANGER, FROM]));
        let v4 = ["10.9.0.1", "10.9.0.1", "10.9.0.200", "192.168.7.7", "0.0.0.0", "240.1.2.3"];
        let v6 = ["fd09::1", "fd09::1", "fd09:0:0:80::1", "fd0a::1", "::", "fe80::ff:fe00:901", "fe80::1"];
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let is_v4 = self.below(2) == 0;
        let (source, destination) = match is_v4 {
            true => (address(self.one_of(&v4)), address("10.9.0.2")),
            false => (address(self.one_of(&v6)), address("fd09::2")),
        };
        let ports = [5, 67, 68, 546, 547, 80, 0x4400];
        let (source_port, destination_port) = (self.one_of(&ports), self.one_of(&ports));
        let frame = eth(from, to).ip(source, destination);
        let length = self.one_of(&[0, 1, 20, 700, 1440, 1446, 1460, 1480, 2000]);
        let frame = match self.below(8) {
            0..4 => frame.tcp(source_port, destination_port, 7),
            4..6 => frame.udp(source_port, destination_port),
            6 => frame.icmp(if is_v4 { 8 } else { 128 }, 0, 1),
            _ => {
                return (
                    arp_request(from, "10.9.0.1".parse().unwrap(), "10.9.0.2".parse().unwrap()).bytes(),
                    Offload::default(),
                );
            }
        };
        let mut frame = frame.payload((0..length).map(|i| i as u8).collect::<Vec<u8>>());
        if self.below(12) == 0 {
            frame = frame.vlan(7);
        }
        if self.below(3) == 0 {
            frame = frame.gso(self.one_of(&[1, 100, 536, 1400, 1460, 2000]));
        }
        let mut bytes = Vec::new();
        let offload = frame.write(&mut bytes);
        // A lie somewhere in the headers, or an end that is too early.
        match self.below(4) {
            0 => {
                let at = self.below(bytes.len().min(80));
                bytes[at] ^= 1 << self.below(8);
            }
            // The kernel runs no test on less than a header of IP.
            1 if bytes.len() > 54 => bytes.truncate(54 + self.below(bytes.len() - 53)),
            _ => {}
        }
        (bytes, offload)
    }
}

fn identities() -> Vec<Identity> {
    let macs = vec![FROM, ALSO_FROM];
    let any = Identity { macs: macs.clone(), ..Identity::default() };
    let ipv4 = vec![("10.9.0.1".parse().unwrap(), 32), ("240.0.0.0".parse().unwrap(), 5)];
    let ipv6 = vec![("fd09::1".parse().unwrap(), 128), ("fd09:0:0:80::".parse().unwrap(), 57)];
    let both = Identity { ipv4: ipv4.clone(), ipv6, ..any.clone() };
    let only_ipv4 =
        Identity { ipv4, allow: Allow { dhcp_server: true, router: true, ..Allow::default() }, ..any.clone() };
    let all =
        Identity { ipv4: vec![("0.0.0.0".parse().unwrap(), 0)], ipv6: vec![("::".parse().unwrap(), 0)], ..any.clone() };
    vec![any, both, only_ipv4, all]
}

fn taken_in(maps: &Maps) -> Option<Vec<u8>> {
    let slots = maps.slot.get(&0u32.to_ne_bytes()).unwrap().unwrap();
    slots.chunks(SLOT_BYTES).find(|slot| slot[4..8] != [0; 4]).map(<[u8]>::to_vec)
}

fn empty(maps: &Maps) {
    maps.slot.set(&0u32.to_ne_bytes(), &[0; SLOT_BYTES]).unwrap();
}

/// Maps with one receiver; `None` where programs cannot be loaded: says that `test` is skipped.
fn maps(test: &str) -> Option<Maps> {
    crate::packet::probe().map_err(|why| skipped(test, why)).ok()?;
    let maps = Maps::new().unwrap();
    maps.is_on.set(&[0; 4], &1u32.to_ne_bytes()).unwrap();
    let value: Vec<u8> = [INTERFACE, LONGEST, 9, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    maps.receivers.set(&Maps::receiver(SCOPE, TO), &value).unwrap();
    Some(maps)
}

#[test]
fn the_filter_takes_what_the_guard_lets_pass_and_nothing_else() {
    let Some(maps) = maps("the_filter_takes_what_the_guard_lets_pass_and_nothing_else") else { return };
    let mut dice = Dice(7);
    let (mut taken, mut read) = (0, 0);
    for identity in identities() {
        let sender = Sender { scope: SCOPE, identity: &identity, number: 8 };
        let program = bpf::load(&programs::filter(&maps, &sender, None), Kind::SchedCls).unwrap();
        for _ in 0..4000 {
            let (bytes, offload) = dice.frame();
            empty(&maps);
            let answer = run(&program, &bytes, offload.gso_size);
            let slot = taken_in(&maps);
            let right =
                takes(&bytes, &offload, &identity).is_some_and(|longest| longest <= LONGEST) && bytes[..6] == TO.0;
            assert_eq!(slot.is_some(), right, "{offload:?} {:02x?} of {identity:?}", &bytes[..bytes.len().min(80)]);
            assert_eq!(answer, if right { 0 } else { u32::MAX });
            read += u32::from(!right);
            let Some(slot) = slot else { continue };
            taken += 1;
            let layout = wire::parse(&bytes).unwrap();
            let word = |at: usize| u32::from_ne_bytes(slot[at..at + 4].try_into().unwrap());
            let long = |at: usize| u64::from_ne_bytes(slot[at..at + 8].try_into().unwrap());
            assert_eq!([word(0), word(4), word(8), word(12)], [1, INTERFACE, 8, 9]);
            assert_eq!(long(16), u64::from(segment::segments(&layout, &offload)));
            assert_eq!(long(24), bytes.len() as u64);
            assert_eq!(long(32), u64::from(segment::wire_bytes(bytes.len(), &layout, &offload)), "{offload:?}");
        }
    }
    assert!(taken > 1000 && read > 1000, "{taken} {read}");
}

#[test]
fn the_filter_takes_nothing_from_strangers_to_itself_or_while_it_is_off() {
    let Some(maps) = maps("the_filter_takes_nothing_from_strangers_to_itself_or_while_it_is_off") else { return };
    let identity = &identities()[0];
    let bytes =
        |to: Mac| eth(FROM, to).ipv4([10, 9, 0, 1].into(), [10, 9, 0, 2].into()).udp(5, 6).payload(vec![7; 9]).bytes();
    let answer = |scope: Scope, leave: Option<[u8; 6]>, to: Mac| {
        let sender = Sender { scope, identity, number: 8 };
        let program = bpf::load(&programs::filter(&maps, &sender, leave), Kind::SchedCls).unwrap();
        empty(&maps);
        (run(&program, &bytes(to), 0), taken_in(&maps).is_some())
    };
    assert_eq!(answer(SCOPE, None, TO), (0, true));
    let (is_read, is_ignored) = ((u32::MAX, false), (0, false));
    assert_eq!(answer(SCOPE, None, STRANGER), is_read);
    assert_eq!(answer(SCOPE, Some(TO.0), TO), is_ignored, "it is left to the host");
    assert_eq!(answer(SCOPE, Some(FROM.0), TO), (0, true));
    for other in [Scope { switch: 0, ..SCOPE }, Scope { tenant: 0, ..SCOPE }, Scope { netns: 0, ..SCOPE }] {
        assert_eq!(answer(other, None, TO), is_read, "{other:?}");
    }
    let itself: Vec<u8> = [1u32, LONGEST, 9, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    maps.receivers.set(&Maps::receiver(SCOPE, STRANGER), &itself).unwrap();
    assert_eq!(answer(SCOPE, None, STRANGER), is_read, "back to where it came from");
    maps.receivers.remove(&Maps::receiver(SCOPE, STRANGER)).unwrap();
    maps.is_on.set(&[0; 4], &[0; 4]).unwrap();
    assert_eq!(answer(SCOPE, None, TO), is_read);
}

#[test]
fn the_taker_takes_a_frame_once_and_counts_it_for_both() {
    let Some(maps) = maps("the_taker_takes_a_frame_once_and_counts_it_for_both") else { return };
    let take = bpf::load(&programs::take(&maps), Kind::SchedCls).unwrap();
    let bytes = eth(FROM, TO).ipv4([10, 9, 0, 1].into(), [10, 9, 0, 2].into()).udp(5, 6).payload(vec![7; 9]).bytes();
    let slot = |from: u32| {
        let words: Vec<u8> = [from, INTERFACE, 8, 9].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let longs: Vec<u8> = [3u64, 4000, 4300].iter().flat_map(|long| long.to_ne_bytes()).collect();
        maps.slot.set(&[0; 4], &[words, longs].concat()).unwrap();
    };
    for number in [8u32, 9] {
        maps.counts.set(&number.to_ne_bytes(), &[0; programs::COUNT_BYTES]).unwrap();
    }
    const NEXT: u32 = u32::MAX;
    assert_eq!(run(&take, &bytes, 0), NEXT, "the slot is empty");
    slot(5);
    assert_eq!(run(&take, &bytes, 0), NEXT, "it was said of another interface's frame");
    slot(1);
    assert_ne!(run(&take, &bytes, 0), NEXT);
    // On this processor it is empty now; those of others were never said to be so.
    let counted = |number: u32| -> Vec<u64> {
        let values = maps.counts.get(&number.to_ne_bytes()).unwrap().unwrap();
        let longs: Vec<u64> = values.chunks(8).map(|long| u64::from_ne_bytes(long.try_into().unwrap())).collect();
        (0..4).map(|i| longs.iter().skip(i).step_by(4).sum()).collect()
    };
    assert_eq!(counted(8), [1, 3, 4000, 4300]);
    assert_eq!(counted(9), [1, 3, 4000, 4300]);
    let slots = maps.slot.get(&[0; 4]).unwrap().unwrap();
    let emptied = slots.chunks(SLOT_BYTES).filter(|slot| slot[4..8] == [0; 4]).count();
    assert_eq!(emptied, 1, "of {}", slots.len() / SLOT_BYTES);
}
