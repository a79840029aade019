//! Shortcuts between two interfaces that are taken: real sockets send, and a loop stands for the
//! switch.

use crate::packet::{ONE, TWO, Wires};
use crate::testbed::{Forwarder, bpf_turn};
use crate::traffic::{BULK_BYTES, bulk, udp};
use datapath::frame::{Pool, PoolLimits};
use datapath::guard::Identity;
use datapath::units::Both;
use datapath::wire::Mac;
use ports::Port;
use ports::packet::{Hooks, Packet, PacketOptions, Shortcut, Shortcuts};
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Shortcuts both ways between the two wires, and the loop that has the rest.
struct Joined {
    shortcuts: Shortcuts,
    forwarder: Forwarder,
    wires: Wires,
}

fn way(number: u8, max_frame: u32) -> Shortcut {
    let identity = Identity {
        macs: vec![Mac([2, 0, 0, 0, 9, number])],
        ipv4: vec![(format!("10.9.0.{number}").parse().unwrap(), 32)],
        ipv6: vec![(format!("fd09::{number}").parse().unwrap(), 128)],
        ..Identity::default()
    };
    Shortcut { place: (0, 0), identity, may: Both { egress: true, ingress: true }, max_frame }
}

impl Joined {
    fn new() -> Joined {
        let wires = Wires::new();
        let mut shortcuts = Shortcuts::new().unwrap();
        let (one, two) = (wires.open("w1"), wires.open("w2"));
        for (number, port) in [(1, &one), (2, &two)] {
            shortcuts.put_in(number, way(number as u8, 1514), descriptor(port)).unwrap();
        }
        let forwarder = Forwarder::start(one, two, Pool::new(PoolLimits::default()));
        Joined { shortcuts, forwarder, wires }
    }

    /// Frames that were taken from and for interface `number`.
    fn taken(&mut self, number: u32) -> (u64, u64) {
        let mut taken = (0, 0);
        self.shortcuts.tell(|news| {
            let of = news.iter().find(|(of, _)| *of == number).map(|(_, traffic)| *traffic).unwrap_or_default();
            taken = (of.egress.frames, of.ingress.frames);
            false
        });
        taken
    }
}

fn descriptor(port: &Packet) -> std::os::fd::OwnedFd {
    port.fd().unwrap().try_clone_to_owned().unwrap()
}

fn arrives(from: &UdpSocket, to: &UdpSocket, bytes: &[u8]) -> bool {
    from.send_to(bytes, to.local_addr().unwrap()).unwrap();
    let mut buffer = vec![0; 1 << 16];
    to.recv(&mut buffer).is_ok_and(|length| &buffer[..length] == bytes)
}

#[test]
fn tcp_and_udp_take_it_in_both_ip_versions_and_are_counted() {
    let Some(_turn) = bpf_turn("tcp_and_udp_take_it_in_both_ip_versions_and_are_counted") else { return };
    let mut joined = Joined::new();
    for (one, two) in [(ONE, TWO), ("fd09::1", "fd09::2")] {
        bulk(&joined.wires.one, &joined.wires.two, two, BULK_BYTES);
        bulk(&joined.wires.two, &joined.wires.one, one, BULK_BYTES);
        let (from, to) = (udp(&joined.wires.one, one), udp(&joined.wires.two, two));
        assert!(arrives(&from, &to, b"datagram"));
    }
    let mut told = Vec::new();
    joined.shortcuts.tell(|news| {
        told = news;
        true
    });
    let [(1, one), (2, two)] = told[..] else { panic!("{told:?}") };
    assert_eq!((one.egress, one.ingress), (two.ingress, two.egress), "what the one sends is for the other");
    // Both bulks in each of two versions; what they cost in headers is less than a tenth, and
    // acknowledgements go both ways.
    let bytes = 2 * BULK_BYTES as u64;
    for traffic in [one.egress, one.ingress] {
        assert!((bytes..bytes + bytes / 10).contains(&traffic.bytes), "{traffic:?}");
        assert!(traffic.segments >= bytes / 1460 && traffic.frames < traffic.segments / 4, "{traffic:?}");
        assert!((bytes..bytes + bytes / 5).contains(&traffic.wire_bytes), "{traffic:?}");
    }
    joined.shortcuts.tell(|news| panic!("told twice: {news:?}"));
    let report = joined.forwarder.finish();
    assert!(report.ended.is_none() && report.frames < 100, "the loop had {} frames", report.frames);
}

#[test]
fn what_is_not_the_senders_own_is_read_instead() {
    let Some(_turn) = bpf_turn("what_is_not_the_senders_own_is_read_instead") else { return };
    let mut joined = Joined::new();
    let (one, two) = (&joined.wires.one, &joined.wires.two);
    let to = udp(two, TWO);
    assert!(arrives(&udp(one, ONE), &to, b"mine"));
    let before = joined.taken(1);
    assert!(before.0 > 0);
    let (one, two) = (&joined.wires.one, &joined.wires.two);
    one.command(&format!("ping -c 2 -i 0.05 -W 10 {TWO}")).unwrap();
    // Another address.
    one.ip("addr add 10.9.0.77/24 dev eth0");
    two.ip("route add 10.8.0.0/24 dev eth0");
    assert!(arrives(&udp(one, "10.9.0.77"), &to, b"not mine"));
    // As a DHCP server, and for a client.
    let at = |address: &str, port| one.0.run(|| UdpSocket::bind(crate::traffic::at(address, port))).unwrap().unwrap();
    assert!(arrives(&at(ONE, 67), &to, b"a lease"));
    // Fragments.
    assert!(arrives(&udp(one, ONE), &to, &[7; 3000]));
    // A frame that no socket of IP sends, and is like one that is taken otherwise.
    let far = PacketOptions { name: "eth0".into(), netns: Some(one.0.clone()), room: None, is_exclusive: true };
    let mut far = Packet::open(&far).unwrap();
    let mut pool = Pool::new(PoolLimits::default());
    let frame = datapath::wire::build::eth(Mac([2, 0, 0, 0, 9, 1]), Mac([2, 0, 0, 0, 9, 2]));
    let frame = frame.ipv4(ONE.parse().unwrap(), TWO.parse().unwrap());
    let frame =
        pool.alloc_from(&frame.udp(9, to.local_addr().unwrap().port()).payload(b"by hand".to_vec()).bytes()).unwrap();
    far.tx(&mut pool, frame).unwrap();
    let mut buffer = [0; 64];
    assert_eq!(to.recv(&mut buffer).unwrap(), 7);
    // Another Ethernet address.
    one.ip("link set dev eth0 address 02:00:00:00:09:55");
    assert!(arrives(&udp(one, ONE), &to, b"not mine either"));
    assert_eq!(joined.taken(1), before, "none of these was taken");
    // They all came by the loop: two pings, a datagram of each, one of them in three fragments.
    assert!(joined.forwarder.finish().frames > 8);
}

#[test]
fn it_comes_and_goes_while_a_stream_runs_and_nothing_is_lost_or_doubled() {
    let Some(_turn) = bpf_turn("it_comes_and_goes_while_a_stream_runs_and_nothing_is_lost_or_doubled") else { return };
    const COUNT: u32 = 20_000;
    let mut joined = Joined::new();
    let (from, to) = (udp(&joined.wires.one, ONE), udp(&joined.wires.two, TWO));
    let destination = to.local_addr().unwrap();
    assert!(arrives(&from, &to, b"so that all know their neighbours"));
    let came = Arc::new(AtomicU32::new(0));
    let arrived = came.clone();
    let sender = std::thread::spawn(move || {
        for number in 0..COUNT {
            from.send_to(&number.to_ne_bytes(), destination).unwrap();
            if number % 20 > 0 {
                continue;
            }
            std::thread::sleep(Duration::from_millis(1));
            // The receiver's socket holds some hundred, and on a busy machine the receiver does not
            // run for longer than that takes.
            let until = Instant::now() + Duration::from_millis(100);
            while number.saturating_sub(arrived.load(Relaxed)) > 100 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let receiver = std::thread::spawn(move || {
        let mut seen = vec![0u8; COUNT as usize];
        let mut bytes = [0; 4];
        to.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        while seen.contains(&0) && to.recv(&mut bytes).is_ok() {
            seen[u32::from_ne_bytes(bytes) as usize] += 1;
            came.fetch_add(1, Relaxed);
        }
        // What comes twice comes soon.
        to.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        while to.recv(&mut bytes).is_ok() {
            seen[u32::from_ne_bytes(bytes) as usize] += 1;
        }
        seen
    });
    let sockets = [1, 2].map(|number| joined.shortcuts.descriptor(number).unwrap());
    let mut turns = 0;
    while !sender.is_finished() {
        match turns % 3 {
            0 => joined.shortcuts.set_on(false).unwrap(),
            1 => joined.shortcuts.take_out(1).unwrap(),
            _ => joined.shortcuts.take_out(2).unwrap(),
        }
        std::thread::sleep(Duration::from_millis(3));
        joined.shortcuts.set_on(true).unwrap();
        for (number, socket) in (1..).zip(&sockets) {
            if joined.shortcuts.way(number).is_none() {
                joined.shortcuts.put_in(number, way(number as u8, 1514), socket.try_clone().unwrap()).unwrap();
            }
        }
        turns += 1;
        std::thread::sleep(Duration::from_millis(3));
    }
    sender.join().unwrap();
    let seen = receiver.join().unwrap();
    let (lost, doubled) = (seen.iter().filter(|n| **n == 0).count(), seen.iter().filter(|n| **n > 1).count());
    let (taken, _) = joined.taken(1);
    assert_eq!((lost, doubled), (0, 0), "of {COUNT}, {taken} taken, in {turns} turns");
    let frames = joined.forwarder.finish().frames;
    assert!(turns > 20 && taken > 1000 && frames > 1000, "{turns} turns, {taken} taken, {frames} by the loop");
}

#[test]
fn longer_frames_than_the_receiver_takes_are_read() {
    let Some(_turn) = bpf_turn("longer_frames_than_the_receiver_takes_are_read") else { return };
    let mut joined = Joined::new();
    let socket = joined.shortcuts.descriptor(2).unwrap();
    joined.shortcuts.take_out(2).unwrap();
    joined.shortcuts.put_in(2, way(2, 1000), socket).unwrap();
    let (from, to) = (udp(&joined.wires.one, ONE), udp(&joined.wires.two, TWO));
    assert!(arrives(&from, &to, &[7; 1000 - 42]));
    let before = joined.taken(1).0;
    assert!(before > 0);
    assert!(arrives(&from, &to, &[7; 1000 - 41]));
    assert_eq!(joined.taken(1).0, before);
}

#[test]
fn nothing_is_left_when_it_is_over() {
    let Some(_turn) = bpf_turn("nothing_is_left_when_it_is_over") else { return };
    let joined = Joined::new();
    assert_eq!(joined.wires.hooks("w1"), Hooks { ingress: 1, egress: 0 });
    let Joined { shortcuts, forwarder, wires } = joined;
    drop(forwarder.finish());
    drop(shortcuts);
    assert_eq!(wires.hooks("w1"), Hooks { ingress: 0, egress: 0 });
    let forwarder = wires.forward();
    wires.one.command(&format!("ping -c 2 -i 0.05 -W 10 {TWO}")).unwrap();
    assert!(forwarder.finish().frames >= 4);
}
