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

/// Whether what the client sends passes, as a trace says beforehand.
fn passes(rig: &mut Rig, says: &Says) -> bool {
    let frame = rig.frame(CLIENT, says);
    let (bytes, meta) = (rig.pool.bytes(&frame), rig.pool.meta(&frame));
    let told = rig.sides[CLIENT].explain_send(rig.now, ENDPOINT, (bytes, &meta.layout, &meta.offload));
    let sent = rig.sides[CLIENT].send(&mut rig.pool, rig.now, ENDPOINT, &frame);
    rig.pool.free(frame);
    assert!(matches!(sent, Ok(()) | Err(Stop::Drop(Reason::VccWindow))), "{sent:?}");
    assert_eq!(told.map(|told| told.is_refused), Some(sent.is_err()));
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
    const MS: u64 = 1_000_000;
    // Microseconds in 32 bits come again after 4295 s.
    for ms in [1_000, 2_200_000, 4_200_000, 4_290_000, 4_294_000, 4_294_900, 4_300_000, 6_500_000] {
        let now = Instant(ms * MS);
        assert_eq!(passed_of(&mut opened(now), 100), 10, "{ms}");
        // Also where its connection is handed over to a switch whose clock has just begun.
        let records = opened(now).sides[CLIENT].export(now);
        let mut next = policing(Instant(0));
        assert_eq!(next.sides[CLIENT].import(next.now, &records, &[]), (1, 0));
        assert_eq!(passed_of(&mut next, 100), 10, "handed over at {ms}");
    }
}

/// It has a window for so long that the time reads as it did before.
#[test]
fn a_guest_is_held_to_its_window_however_long_it_is() {
    const SECOND: u64 = 1_000_000_000;
    let mut rig = opened(Instant(SECOND));
    for minute in 1..=71 {
        rig.now = Instant(60 * minute * SECOND);
        let ack = Says { seq: 201, ack: 101, flags: ACK, window: 509, ..Says::default() };
        rig.pass(SERVER, &ack, false);
    }
    // Half a second less than 2^32 microseconds after the beginning.
    rig.now = Instant(4_295_467 * SECOND / 1000);
    assert_eq!(passed_of(&mut rig, 100), 10);
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
}

/// A SYN of the client, on the ports of its connection.
fn syn(seq: u32) -> Says {
    Says { seq, flags: SYN, window: 64_240, options: LINUX, ..Says::default() }
}

/// The server's answer to it reaches the client, which sees no ECN in it.
fn is_answered(rig: &mut Rig, seq: u32) {
    let codes = codes::received(ecn::ECT0);
    let answer = Segment { seq: 9000, ack: seq + 1, flags: SYN | ACK, codes, window: 65_160, ..Segment::default() };
    let seen = rig.deliver(SERVER, &Segment { segments: 1, ecn: ecn::ECT0, ..answer }, LINUX);
    assert_eq!((seen.codes, seen.ecn), (0, 0));
}

#[test]
fn a_syn_or_a_syn_ack_of_its_own_frees_no_guest_of_its_window() {
    for flags in [SYN, SYN | ACK] {
        let mut rig = opened(Instant(1_000_000));
        assert!(passes(&mut rig, &Says { ack: 777, flags, ..syn(500_000) }), "its port may be used again");
        // Its peer knows better, and says so by an acknowledgement of the old numbers.
        rig.pass(SERVER, &Says { seq: 201, ack: 101, flags: ACK, window: 509, ..Says::default() }, false);
        let records = rig.sides[CLIENT].export(rig.now);
        assert_eq!(passed_of(&mut rig, 100), 10, "{flags}");
        let mut next = policing(rig.now);
        assert_eq!(next.sides[CLIENT].import(next.now, &records, &[]).1, 0);
        assert_eq!(passed_of(&mut next, 100), 10, "{flags}, handed over");
    }
}

#[test]
fn a_connection_takes_the_place_of_the_one_before_when_its_peer_answers() {
    for is_handed_over in [false, true] {
        let mut rig = opened(Instant(1_000_000));
        assert!(passes(&mut rig, &syn(500_000)));
        let counts =
            |rig: &Rig| [Class::Open, Class::Asked].map(|class| rig.sides[CLIENT].connections().count(ENDPOINT, class));
        assert_eq!((counts(&rig), rig.connection(CLIENT).first), ([1, 1], [100, 200]));
        if is_handed_over {
            let records = rig.sides[CLIENT].export(rig.now);
            rig = policing(rig.now);
            assert_eq!(rig.sides[CLIENT].import(rig.now, &records, &[]), (2, 0));
        }
        is_answered(&mut rig, 500_000);
        assert_eq!((counts(&rig), rig.connection(CLIENT).first), ([1, 0], [500_000, 9000]));
        let data = Says { seq: 500_001, ack: 9001, flags: ACK, window: 502, payload: 1448, ..Says::default() };
        assert_eq!(rig.send(CLIENT, &data).ecn, ecn::ECT0);
        assert!(!passes(&mut rig, &Says { seq: 500_001 + 14_480, ..data }), "it is held to a window of its own");
    }
}

#[test]
fn a_third_syn_of_the_same_ports_waits_for_the_second() {
    let mut rig = opened(Instant(1_000_000));
    assert!(passes(&mut rig, &syn(500_000)) && passes(&mut rig, &syn(500_000)), "also where it is sent again");
    assert!(!passes(&mut rig, &syn(600_000)));
    assert_eq!(rig.sides[CLIENT].counters(ENDPOINT).unwrap().policed, 1);
    rig.now = rig.now.plus_ns(3_000_000_000);
    assert!(passes(&mut rig, &syn(600_000)), "no answer comes to the second any more");
    is_answered(&mut rig, 600_000);
    assert_eq!(rig.connection(CLIENT).first, [600_000, 9000]);
}

#[test]
fn a_policed_guest_sends_nothing_before_its_peer_has_answered() {
    let mut rig = policing(Instant(1_000_000));
    // Of two SYNs the peer answers the first, of which the second has taken the place.
    assert!(passes(&mut rig, &syn(100)) && passes(&mut rig, &syn(500_000)));
    assert_eq!(passed_of(&mut rig, 100), 0);
    is_answered(&mut rig, 500_000);
    let data = Says { seq: 500_001, ack: 9001, flags: ACK, window: 502, payload: 1448, ..Says::default() };
    assert!(passes(&mut rig, &data));
}

#[test]
fn a_policed_guest_uses_a_port_again_behind_a_connection_that_has_ended() {
    let mut rig = opened(Instant(1_000_000));
    let fin = Says { seq: 101, ack: 201, flags: ACK | tcp_flags::FIN, window: 9, ..Says::default() };
    rig.pass(CLIENT, &fin, false);
    rig.pass(SERVER, &Says { seq: 201, ack: 102, ..fin }, false);
    rig.open([7000, 9000], [false; 2]);
    assert_eq!((rig.connection(CLIENT).first, rig.connection(CLIENT).una), ([7000, 9000], 7001));
    assert_eq!(rig.sides[CLIENT].counters(ENDPOINT).unwrap().opened, [2, 0, 0]);
}
