//! Many that begin connections, and end none.

use super::*;

#[test]
fn half_open_connections_of_one_endpoint_do_not_fill_the_table() {
    let mut rig = Rig::new([Mode::Echo; 2]);
    let mut left_alone = 0;
    for port in 0..5000u16 {
        let mut bytes = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))
            .ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2))
            .tcp(port, 80, 1)
            .flags(SYN)
            .bytes();
        let layout = parse(&bytes).unwrap();
        let frame = rig.pool.alloc_from(&bytes).unwrap();
        rig.pool.meta_mut(&frame).layout = layout;
        assert_eq!(rig.sides[CLIENT].send(&mut rig.pool, rig.now, ENDPOINT, &frame), Ok(()));
        bytes.copy_from_slice(rig.pool.bytes(&frame));
        left_alone += u32::from(Segment::of(&bytes, &layout, &Default::default()).unwrap().codes == 0);
        rig.pool.free(frame);
    }
    assert_eq!(rig.sides[CLIENT].connections().len(), 1024);
    assert_eq!(left_alone, 5000 - 1024, "what found no room passes as it came");
    // They are forgotten in time.
    rig.now = rig.now.plus_ns(4_000_000_000);
    rig.open([100, 200], [false; 2]);
    assert_eq!(rig.connection(CLIENT).wire, Wire::Accurate);
}

#[test]
fn a_flood_of_strangers_leaves_the_guest_room_for_what_it_begins() {
    let mut rig = Rig::new([Mode::Echo; 2]);
    for port in 0..5000u16 {
        let bytes = eth(Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1]))
            .ipv4(Ipv4Addr::new(10, 9, 0, 2), Ipv4Addr::new(10, 0, 0, 1))
            .tcp(port, 80, 1)
            .flags(SYN)
            .bytes();
        let frame = rig.pool.alloc_from(&bytes).unwrap();
        rig.pool.meta_mut(&frame).layout = parse(&bytes).unwrap();
        rig.sides[CLIENT].receive(&mut rig.pool, rig.now, ENDPOINT, &frame);
        rig.pool.free(frame);
    }
    assert_eq!(rig.sides[CLIENT].connections().count(ENDPOINT, Class::Offered), 1024);
    rig.open([100, 200], [false; 2]);
    assert_eq!(rig.connection(CLIENT).wire, Wire::Accurate);
}

/// A stranger of this port at the server's guest: its SYN, and the answer.
fn handshake(rig: &mut Rig, port: u16) {
    let macs = [1, 2].map(|n| Mac([2, 0, 0, 0, 0, n]));
    let ips = [Ipv4Addr::new(10, 9, 0, 2), Ipv4Addr::new(10, 0, 0, 2)];
    let flags = SYN | tcp_flags::ECE | tcp_flags::CWR;
    let syn = eth(macs[0], macs[1]).ipv4(ips[0], ips[1]).tcp(port, 80, 1).flags(flags).bytes();
    let answer = eth(macs[1], macs[0]).ipv4(ips[1], ips[0]).tcp(80, port, 900).flags(SYN | ACK).ack(2, 9).bytes();
    for (bytes, is_sent) in [(syn, false), (answer, true)] {
        let frame = rig.pool.alloc_from(&bytes).unwrap();
        rig.pool.meta_mut(&frame).layout = parse(&bytes).unwrap();
        if is_sent {
            let sent = rig.sides[SERVER].send(&mut rig.pool, rig.now, ENDPOINT, &frame);
            assert!(matches!(sent, Ok(()) | Err(Stop::Unknown)), "{sent:?}");
        } else {
            rig.sides[SERVER].receive(&mut rig.pool, rig.now, ENDPOINT, &frame);
        }
        rig.pool.free(frame);
    }
}

#[test]
fn a_connection_is_open_when_its_peer_acknowledges_the_guests_answer() {
    let mut rig = Rig::new([Mode::Echo; 2]);
    let flood = |rig: &mut Rig, ports: core::ops::Range<u16>| ports.for_each(|port| handshake(rig, port));
    let counts = |rig: &Rig| {
        let (side, counts) = (&rig.sides[SERVER], [Class::Offered, Class::Open]);
        (counts.map(|class| side.connections().count(ENDPOINT, class)), side.counters(ENDPOINT).unwrap().opened)
    };
    flood(&mut rig, 0..5000);
    assert_eq!(counts(&rig), ([1024, 0], [0; 3]), "a flood that is answered");
    rig.now = rig.now.plus_ns(4_000_000_000);
    rig.open([100, 200], [false; 2]);
    assert_eq!(counts(&rig).0[1], 0);
    rig.pass(CLIENT, &Says { seq: 101, ack: 201, flags: ACK, window: 9, ..Says::default() }, false);
    assert_eq!((rig.connection(SERVER).treatment, counts(&rig).0[1]), (Treatment::Translated, 1));
    assert_eq!(counts(&rig).1, [1, 0, 0]);
    // No more of the same takes its place.
    rig.now = rig.now.plus_ns(80_000_000_000);
    flood(&mut rig, 5000..10_000);
    assert_eq!(counts(&rig), ([1024, 1], [1, 0, 0]));
}
