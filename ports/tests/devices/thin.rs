//! `packet://`: a part of what arrives for some destinations is dropped before it is read.

use crate::packet::Wires;
use crate::testbed::{soon, turn};
use datapath::frame::{Pool, PoolLimits};
use datapath::intake::thin::{Destination, Thinned};
use datapath::wire::Mac;
use ports::Port;
use ports::packet::{Packet, PacketOptions};
use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

/// Frames of each kind.
const SENT: usize = 2000;
const HALF: u32 = 1 << 31;
const TENTH: u32 = u32::MAX / 10;

/// A VLAN, or none, and the last byte of an address.
type Kind = (Option<u16>, u8);

const KINDS: [Kind; 7] = [(Some(10), 7), (Some(10), 8), (Some(11), 7), (None, 7), (None, 9), (Some(10), 9), (None, 6)];

fn mac(last: u8) -> Mac {
    // 6 differs from 7 in the first byte only.
    if last == 6 { Mac([6, 0, 0, 0, 9, 7]) } else { Mac([2, 0, 0, 0, 9, last]) }
}

fn thinned((vlan, last): Kind, keep: u32) -> Thinned {
    Thinned { to: Destination { vlan, mac: mac(last) }, keep }
}

fn frame((vlan, last): Kind) -> Vec<u8> {
    let tag = vlan.map_or(vec![], |vlan| [&[0x81, 0, 0xe0 | (vlan >> 8) as u8], &[vlan as u8][..]].concat());
    [&mac(last).0[..], &[2, 0, 0, 0, 9, 1], &tag, &[0x88, 0xb5], &[0; 60]].concat()
}

fn kind_of(bytes: &[u8]) -> Option<Kind> {
    KINDS.into_iter().find(|&kind| frame(kind)[..] == *bytes)
}

struct Bed {
    wires: Wires,
    far: Packet,
    near: Packet,
    pool: Pool,
}

impl Bed {
    fn new() -> Bed {
        let wires = Wires::new();
        let options = |name: &str, space: &crate::testbed::Space| PacketOptions {
            name: name.into(),
            netns: Some(space.0.clone()),
            room: None,
            is_exclusive: false,
        };
        let far = Packet::open(&options("eth0", &wires.one)).unwrap();
        let near = Packet::open(&options("w1", &wires.middle)).unwrap();
        Bed { wires, far, near, pool: Pool::new(PoolLimits::default()) }
    }

    fn send(&mut self, bytes: &[u8]) {
        let frame = self.pool.alloc_from(bytes).unwrap();
        self.far.tx(&mut self.pool, frame).unwrap();
    }

    /// Adds what waits, by kind.
    fn read(&mut self, read: &mut BTreeMap<Kind, usize>) -> usize {
        let mut frames = Vec::new();
        let count = self.near.rx(&mut self.pool, 1000, &mut frames).unwrap();
        for frame in frames {
            if let Some(kind) = kind_of(self.pool.bytes(&frame)) {
                *read.entry(kind).or_default() += 1;
            }
            self.pool.free(frame);
        }
        count
    }

    /// Sends [`SENT`] of each kind; how many of them were read.
    fn round(&mut self) -> BTreeMap<Kind, usize> {
        let mut read = KINDS.map(|kind| (kind, 0)).into();
        for _ in 0..SENT {
            KINDS.iter().for_each(|&kind| self.send(&frame(kind)));
            self.read(&mut read);
        }
        soon("all are read", || self.read(&mut read) == 0);
        assert_eq!(self.near.drops_before_us().unwrap(), 0);
        read
    }
}

fn all() -> BTreeMap<Kind, usize> {
    KINDS.map(|kind| (kind, SENT)).into()
}

#[test]
fn a_part_of_what_is_for_a_destination_is_read_and_all_of_the_rest() {
    let Some(_turn) = turn("a_part_of_what_is_for_a_destination_is_read_and_all_of_the_rest") else { return };
    let mut bed = Bed::new();
    assert_eq!(bed.round(), all());
    // Those of which nothing is sent stand around them.
    let far = |n: u8| thinned((Some(10), 100 + n), 1);
    let list = [far(1), thinned(KINDS[0], HALF), far(2), far(3), thinned(KINDS[4], TENTH), far(4), far(5), far(6)];
    assert!(bed.near.thin(&list));
    let read = bed.round();
    assert!((SENT * 3 / 10..SENT * 7 / 10).contains(&read[&KINDS[0]]), "half: {read:?}");
    assert!((SENT / 20..SENT / 5).contains(&read[&KINDS[4]]), "a tenth: {read:?}");
    let others = KINDS.into_iter().filter(|kind| ![KINDS[0], KINDS[4]].contains(kind));
    others.for_each(|kind| assert_eq!(read[&kind], SENT, "{kind:?}: {read:?}"));
    // Another list takes its place.
    assert!(bed.near.thin(&[thinned(KINDS[1], 1)]));
    let read = bed.round();
    assert!(read[&KINDS[1]] < SENT / 100, "{read:?}");
    assert_eq!(read.values().filter(|&&frames| frames == SENT).count(), KINDS.len() - 1, "{read:?}");
    assert!(bed.near.thin(&[]));
    assert_eq!(bed.round(), all());
}

#[test]
fn a_port_that_is_brought_in_line_reads_all_and_leaves_the_host_its_own() {
    let Some(_turn) = turn("a_port_that_is_brought_in_line_reads_all_and_leaves_the_host_its_own") else { return };
    let mut bed = Bed::new();
    let own = bed.near.line().mac.unwrap();
    let to_host = |bed: &mut Bed| {
        let bytes = [&own.0[..], &frame(KINDS[3])[6..]].concat();
        (0..10).for_each(|_| bed.send(&bytes));
        let mut frames = Vec::new();
        bed.near.rx(&mut bed.pool, 1000, &mut frames).unwrap();
        let read = frames.iter().filter(|frame| bed.pool.bytes(frame)[..6] == own.0).count();
        frames.into_iter().for_each(|frame| bed.pool.free(frame));
        read
    };
    assert_eq!(to_host(&mut bed), 0);
    assert!(bed.near.thin(&[thinned(KINDS[0], 1)]));
    assert_eq!(to_host(&mut bed), 0, "thinned or not, it is left to the host");
    // Another process may have left it so.
    let options =
        PacketOptions { name: "w1".into(), netns: Some(bed.wires.middle.0.clone()), room: None, is_exclusive: false };
    Packet::settle(&options, bed.near.fd().unwrap().as_fd()).unwrap();
    assert_eq!((bed.round(), to_host(&mut bed)), (all(), 0));
    assert!(bed.near.thin(&[thinned(KINDS[0], 1)]) && bed.near.thin(&[]));
    assert_eq!(to_host(&mut bed), 0);
    // All is the switch's now.
    Packet::settle(&PacketOptions { is_exclusive: true, ..options }, bed.near.fd().unwrap().as_fd()).unwrap();
    assert!(bed.near.thin(&[thinned(KINDS[0], 1)]));
    assert_eq!(to_host(&mut bed), 10);
}

/// Filters take each other's place while frames come.
#[test]
fn no_frame_is_lost_between_two_filters() {
    let Some(_turn) = turn("no_frame_is_lost_between_two_filters") else { return };
    const FRAMES: usize = 15_000;
    let Bed { wires: _wires, mut far, mut near, mut pool } = Bed::new();
    let sender = std::thread::spawn(move || {
        let mut pool = Pool::new(PoolLimits::default());
        for _ in 0..FRAMES {
            let frame = pool.alloc_from(&frame(KINDS[1])).unwrap();
            far.tx(&mut pool, frame).unwrap();
        }
    });
    let (mut read, mut changes) = (0, 0);
    soon("all are read", || {
        let is_over = sender.is_finished();
        for turn in 0..100 {
            let list = [thinned(KINDS[0], HALF), thinned(KINDS[3], HALF)];
            assert!(near.thin(&list[..turn % 3]));
            changes += 1;
            let mut frames = Vec::new();
            near.rx(&mut pool, 1000, &mut frames).unwrap();
            read += frames.iter().filter(|frame| kind_of(pool.bytes(frame)) == Some(KINDS[1])).count();
            frames.into_iter().for_each(|frame| pool.free(frame));
        }
        is_over
    });
    assert_eq!((read, near.drops_before_us().unwrap()), (FRAMES, 0), "{changes} changes");
    assert!(changes >= 100);
}
