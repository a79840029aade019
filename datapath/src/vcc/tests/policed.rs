//! Guests that are held to the window that they are told.

use super::*;

/// Two switches, of which the client's polices its guest.
fn policing(now: Instant) -> Rig {
    let mut rig = Rig::new([Mode::Dctcp; 2]);
    rig.now = now;
    let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
    rig.sides[CLIENT].set(owner, Settings { polices: true, ..Mode::Dctcp.into() });
    rig
}

/// The same with a connection.
fn opened(now: Instant) -> Rig {
    let mut rig = policing(now);
    rig.open([100, 200], [false; 2]);
    rig
}

/// Whether what the client sends passes.
fn passes(rig: &mut Rig, says: &Says) -> bool {
    let frame = rig.frame(CLIENT, says);
    let sent = rig.sides[CLIENT].send(&mut rig.pool, rig.now, ENDPOINT, &frame);
    rig.pool.free(frame);
    assert!(matches!(sent, Ok(()) | Err(Stop::Drop(Reason::VccWindow))), "{sent:?}");
    sent.is_ok()
}

/// How many pass of the first segments of a connection, which come at once.
fn passed_of(rig: &mut Rig, segments: u32) -> usize {
    let says = |n| Says { seq: 101 + 1448 * n, ack: 201, flags: ACK, window: 502, payload: 1448, ..Says::default() };
    (0..segments).filter(|&n| passes(rig, &says(n))).count()
}

#[test]
fn a_policed_guest_that_ignores_its_window_is_cut_to_it_and_one_that_heeds_it_is_not() {
    let mut rig = opened(Instant(1_000_000));
    // Ten segments, of 1460 bytes less timestamps, are the first window; a hundred come, of which
    // what fits passes.
    assert_eq!(passed_of(&mut rig, 100), 10);
    // What it may send after an acknowledgement, and sends again, passes.
    let mut next = 101 + 14_480;
    for _ in 0..20 {
        rig.now = rig.now.plus_ns(300_000);
        let answer = Says { seq: 201, ack: next, flags: ACK, window: 509, ..Says::default() };
        let (_, seen) = rig.pass(SERVER, &answer, false);
        let told = next.wrapping_add(u32::from(seen.window) << 7);
        let says = Says { seq: next, ack: 201, flags: ACK, window: 502, payload: 1448, ..Says::default() };
        while told.wrapping_sub(next) >= 1448 {
            rig.send(CLIENT, &Says { seq: next, ..says });
            next += 1448;
        }
    }
    assert!(next > 101 + 14_480 * 20, "slow start doubles the window: {next}");
    let again = Says { seq: next - 1448, ack: 201, flags: ACK, window: 502, payload: 1448, ..Says::default() };
    rig.send(CLIENT, &again);
    assert_eq!(rig.sides[CLIENT].counters(ENDPOINT).unwrap().policed, 90);
}

#[test]
fn a_policed_super_frame_loses_the_segments_beyond_the_window() {
    let mut rig = opened(Instant(1_000_000));
    let build = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))
        .ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2))
        .tcp(40_000, 80, 101)
        .payload(vec![0; 30_000])
        .gso(1000);
    let frame = build.frame(&mut rig.pool).unwrap();
    assert_eq!(rig.sides[CLIENT].send(&mut rig.pool, rig.now, ENDPOINT, &frame), Ok(()));
    let meta = rig.pool.meta(&frame);
    assert_eq!(crate::segment::segments(&meta.layout, &meta.offload), 14);
    rig.pool.free(frame);
    // And a fragment of TCP is dropped.
    let build = build.payload(vec![0; 64]).gso(0).fragment(0, true);
    let frame = build.frame(&mut rig.pool).unwrap();
    assert_eq!(rig.sides[CLIENT].send(&mut rig.pool, rig.now, ENDPOINT, &frame), Err(Stop::Drop(Reason::VccWindow)));
    rig.pool.free(frame);
}

#[test]
fn a_guest_is_held_to_its_window_whatever_the_time_is() {
    const SECOND: u64 = 1_000_000_000;
    // Microseconds in 32 bits come again after 4295 s.
    for second in [1, 2_200, 4_200, 4_290, 4_300, 6_500] {
        let now = Instant(second * SECOND);
        assert_eq!(passed_of(&mut opened(now), 100), 10, "{second}");
        // Also where its connection is handed over to a switch whose clock has just begun.
        let records = opened(now).sides[CLIENT].export(now);
        let mut next = policing(Instant(0));
        assert_eq!(next.sides[CLIENT].import(next.now, &records, &[]), (1, 0));
        assert_eq!(passed_of(&mut next, 100), 10, "handed over at {second}");
    }
}

#[test]
fn numbers_far_ahead_widen_no_window() {
    let far = 101 + (1 << 30);
    let mut rig = opened(Instant(1_000_000));
    let ack = Says { seq: far, ack: 201, flags: ACK, window: 502, ..Says::default() };
    assert!(passes(&mut rig, &ack), "what takes no number is no data");
    assert!(!passes(&mut rig, &Says { flags: ACK | tcp_flags::FIN, ..ack }), "a lone FIN");
    assert_eq!(rig.connection(CLIENT).nxt, 101);
    assert_eq!(passed_of(&mut rig, 100), 10);
    let answer = Says { seq: 201, ack: 1549, flags: ACK, window: 509, ..Says::default() };
    rig.pass(SERVER, &answer, false);
    assert!(!passes(&mut rig, &Says { payload: 1000, ..ack }));
    // The FIN of a guest that has filled its window is not in it for all of them.
    let edge = rig.connection(CLIENT).edge;
    let nxt = rig.connection(CLIENT).nxt;
    let last = Says { seq: nxt, payload: edge.wrapping_sub(nxt) as usize, ..ack };
    assert!(passes(&mut rig, &last));
    assert!(passes(&mut rig, &Says { seq: edge, flags: ACK | tcp_flags::FIN, ..ack }));
    // A port that is used again is no matter of the window before.
    assert!(passes(&mut rig, &Says { seq: far, flags: SYN, ..ack }));
}
