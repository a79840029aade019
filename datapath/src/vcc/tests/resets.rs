//! Resets, which a stranger may forge.

use super::*;

/// Another connection opens at the client's switch, which makes room for it.
fn another(rig: &mut Rig, port: u16) {
    let (mac, ip) = (|n| Mac([2, 0, 0, 0, 0, n]), |n| Ipv4Addr::new(10, 0, 0, n));
    let bytes = eth(mac(1), mac(2)).ipv4(ip(1), ip(2)).tcp(port, 80, 7).flags(SYN).bytes();
    let frame = rig.pool.alloc_from(&bytes).unwrap();
    rig.pool.meta_mut(&frame).layout = parse(&bytes).unwrap();
    assert_eq!(rig.sides[CLIENT].send(&mut rig.pool, rig.now, ENDPOINT, &frame), Ok(()));
    rig.pool.free(frame);
}

/// Whether the client's connection is known after a reset of its peer's, and three seconds without
/// a frame.
fn lives_after(reset: &Says) -> bool {
    let mut rig = Rig::new([Mode::Dctcp; 2]);
    rig.open([100, 200], [false; 2]);
    let data = Says { seq: 101, ack: 201, flags: ACK, window: 502, payload: 1000, ..Says::default() };
    rig.pass(CLIENT, &data, false);
    rig.deliver(SERVER, &Segment { seq: reset.seq, ack: reset.ack, flags: reset.flags, ..Segment::default() }, &[]);
    rig.now = rig.now.plus_ns(3_000_000_000);
    another(&mut rig, 40_001);
    another(&mut rig, 40_002);
    // It goes on as one that is known.
    rig.send(CLIENT, &Says { seq: 1101, ..data }).ecn == ecn::ECT0
}

#[test]
fn a_reset_of_a_stranger_ends_no_connection() {
    const RST: u8 = tcp_flags::RST;
    let reset = |flags, ack| Says { seq: 201, ack, flags, ..Says::default() };
    // Of one who knows the four addresses and ports, but not what the guest has sent.
    for forged in [reset(RST, 0), reset(RST | ACK, 100), reset(RST | ACK, 1102), reset(RST | ACK, 0x8000_0000)] {
        assert!(lives_after(&forged), "{forged:?}");
    }
    for own in [reset(RST | ACK, 101), reset(RST | ACK, 1101)] {
        assert!(!lives_after(&own), "{own:?}");
    }
}

/// A scanner asks, and does not want the answer.
#[test]
fn who_asks_and_refuses_the_answer_leaves_nothing_behind() {
    for (seq, is_left) in [(101, false), (102, true), (9, true)] {
        let mut rig = Rig::new([Mode::Off, Mode::Dctcp]);
        let syn = Says { seq: 100, flags: SYN, window: 64_240, options: LINUX, ..Says::default() };
        rig.pass(CLIENT, &syn, false);
        rig.pass(SERVER, &Says { seq: 200, ack: 101, flags: SYN | ACK, ..syn }, false);
        rig.pass(CLIENT, &Says { seq, flags: tcp_flags::RST, ..Says::default() }, false);
        let lingers = rig.sides[SERVER].connections().count(ENDPOINT, Class::Lingering);
        assert_eq!(lingers == 0, is_left, "{seq}");
    }
}
