//! Guests that are held to their window, and end connections only to begin others.

use super::*;

const MSS: u32 = 1448;

/// A policed client's connection that the network has slowed to two segments, and what it sends
/// next.
fn slowed(polices: bool) -> (Rig, u32) {
    let mut rig = Rig::new([Mode::Dctcp; 2]);
    let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
    rig.sides[CLIENT].set(owner, Settings { polices, ..Mode::Dctcp.into() });
    rig.open([100, 200], [false; 2]);
    let mut next = 101;
    for _ in 0..10 {
        let data = Says { ack: 201, flags: ACK, window: 502, payload: MSS as usize, ..Says::default() };
        // Without police nothing is lowered before the first mark.
        let edge = if polices { rig.connection(CLIENT).edge } else { next + 2 * MSS };
        while edge.wrapping_sub(next) >= MSS {
            rig.pass(CLIENT, &Says { seq: next, ..data }, true);
            next += MSS;
        }
        rig.now = rig.now.plus_ns(1_000_000);
        rig.pass(SERVER, &Says { seq: 201, ack: next, flags: ACK, window: 509, ..Says::default() }, false);
    }
    assert_eq!(rig.connection(CLIENT).window, 2 * MSS, "{polices}");
    (rig, next)
}

/// The connection ends, `pause_ns` later another begins, with this first number. The window field
/// of the SYN-ACK that the client sees, and how many of a hundred segments pass.
fn reopened((mut rig, next): (Rig, u32), pause_ns: u64, first: u32) -> (u16, usize) {
    let fin = Says { flags: ACK | tcp_flags::FIN, window: 9, ..Says::default() };
    rig.pass(CLIENT, &Says { seq: next, ack: 201, ..fin }, false);
    rig.pass(SERVER, &Says { seq: 201, ack: next + 1, ..fin }, false);
    rig.now = rig.now.plus_ns(pause_ns);
    let syn = Says { seq: first, flags: SYN, window: 64_240, options: LINUX, ..Says::default() };
    rig.pass(CLIENT, &syn, false);
    let answer = Says { seq: 9000, ack: first + 1, flags: SYN | ACK, window: 65_160, ..syn };
    let mut told = 0;
    // It may come twice.
    for _ in 0..2 {
        told = rig.pass(SERVER, &answer, false).1.window;
    }
    let data = Says { ack: 9001, flags: ACK, window: 502, payload: MSS as usize, ..Says::default() };
    let passed = (0..100).filter(|n| {
        let frame = rig.frame(CLIENT, &Says { seq: first + 1 + n * MSS, ..data });
        let sent = rig.sides[CLIENT].send(&mut rig.pool, rig.now, ENDPOINT, &frame);
        rig.pool.free(frame);
        sent.is_ok()
    });
    (told, passed.count())
}

#[test]
fn a_new_connection_of_a_policed_guest_begins_with_the_window_of_those_to_the_same_peer() {
    assert_eq!(reopened(slowed(true), 1_000_000, 500_000), (2896, 2));
    assert_eq!(reopened(slowed(true), 2_100_000_000, 500_000), (65_160, 10), "the network may be free again");
    assert_eq!(reopened(slowed(false), 1_000_000, 500_000), (65_160, 100), "who is not held to it");
}

#[test]
fn who_is_not_policed_any_more_begins_as_others() {
    let (mut rig, next) = slowed(true);
    let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
    for polices in [false, true] {
        rig.sides[CLIENT].set(owner, Settings { polices, ..Mode::Dctcp.into() });
    }
    assert_eq!(reopened((rig, next), 1_000_000, 500_000), (65_160, 10));
}

/// A connection that was slowed once goes on with little to send, and is not marked any more.
#[test]
fn what_was_slowed_long_ago_slows_no_sibling() {
    let (mut rig, mut next) = slowed(true);
    for _ in 0..30 {
        rig.now = rig.now.plus_ns(500_000_000);
        let data = Says { seq: next, ack: 201, flags: ACK, window: 502, payload: 100, ..Says::default() };
        rig.pass(CLIENT, &data, false);
        next += 100;
        rig.pass(SERVER, &Says { seq: 201, ack: next, flags: ACK, window: 509, ..Says::default() }, false);
    }
    assert_eq!(reopened((rig, next), 1_000_000, 700_000), (65_160, 10));
}
