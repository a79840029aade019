//! Networks that clear codepoints, and such as mark all.

use super::*;

const MSS: u32 = 1448;
/// What the guests say of their windows: 65 152 bytes.
const FIELD: u16 = 509;

/// The same behind a restart of both switches.
fn handed_over(rig: &Rig) -> Rig {
    let mut next = Rig::new([0, 1].map(|side| rig.sides[side].mode(ENDPOINT)));
    next.now = rig.now;
    for side in [CLIENT, SERVER] {
        let records = rig.sides[side].export(rig.now);
        assert_eq!(next.sides[side].import(next.now, &records, &[]), (1, 0));
    }
    next
}

/// A guest sends, and the network clears the codepoint, or not: on the wire, and as it is seen.
fn carry(rig: &mut Rig, from: usize, says: &Says, clears: bool) -> (Segment, Segment) {
    let wire = rig.send(from, says);
    let met = Segment { ecn: if clears { ecn::NOT } else { wire.ecn }, ..wire };
    (wire, rig.deliver(from, &met, says.options))
}

/// A handshake and its third segment; the network clears what each of the three says.
fn open(rig: &mut Rig, clears: [bool; 3]) {
    let syn = Says { seq: 100, flags: SYN, window: 64_240, options: LINUX, ..Says::default() };
    carry(rig, CLIENT, &syn, clears[0]);
    let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, window: 65_160, ..syn };
    carry(rig, SERVER, &answer, clears[1]);
    carry(rig, CLIENT, &Says { seq: 101, ack: 201, flags: ACK, window: FIELD, ..Says::default() }, clears[2]);
}

/// The codepoints of data and of an acknowledgement from a side.
fn codepoints(rig: &mut Rig, from: usize) -> [u8; 2] {
    let seq = rig.connection(from).nxt;
    let ack = rig.connection(1 - from).nxt;
    let says = Says { seq, ack, flags: ACK, window: FIELD, ..Says::default() };
    let data = carry(rig, from, &Says { payload: 1000, ..says }, true).0.ecn;
    [data, carry(rig, from, &Says { seq: seq + 1000, ..says }, true).0.ecn]
}

#[test]
fn who_is_told_that_the_network_clears_its_codepoint_sends_nothing_more_that_is_capable() {
    let [not, all] = [[ecn::NOT; 2], [ecn::ECT0; 2]];
    for (clears, client, server) in [
        ([false, false, false], all, all),
        ([true, false, false], not, all),
        ([false, true, false], all, not),
        ([true; 3], not, not),
    ] {
        for mode in [Mode::Echo, Mode::Dctcp] {
            for is_handed_over in [false, true] {
                let mut rig = Rig::new([mode; 2]);
                open(&mut rig, clears);
                if is_handed_over {
                    rig = handed_over(&rig);
                }
                let both = [CLIENT, SERVER].map(|from| codepoints(&mut rig, from));
                assert_eq!(both, [client, server], "{clears:?}, {mode:?}, {is_handed_over}");
                let translated = [CLIENT, SERVER].map(|side| rig.connection(side).is_translated());
                assert_eq!(translated, [true; 2], "marks of the other direction may still come");
            }
        }
    }
}

#[test]
fn a_network_that_clears_codepoints_from_some_time_on_stops_nobody() {
    for mode in [Mode::Echo, Mode::Dctcp] {
        let mut rig = Rig::new([mode; 2]);
        open(&mut rig, [false; 3]);
        let mut next = 101;
        let mut round = |rig: &mut Rig, marked: bool, clears: bool| {
            let says = Says { seq: next, ack: 201, flags: ACK, window: FIELD, payload: 1000, ..Says::default() };
            let wire = rig.send(CLIENT, &says);
            let met = if marked { ecn::CE } else { wire.ecn };
            let seen = rig.deliver(CLIENT, &Segment { ecn: if clears { ecn::NOT } else { met }, ..wire }, &[]);
            assert_eq!((seen.ecn, seen.codes, seen.payload), (0, 0, 1000));
            next += 1000;
            rig.now = rig.now.plus_ns(1_000_000);
            let says = Says { seq: 201, ack: next, flags: ACK, window: FIELD, ..Says::default() };
            let (_, seen) = carry(rig, SERVER, &says, clears);
            assert_eq!((seen.ecn, seen.codes), (0, 0));
            assert!(u32::from(seen.window) << 7 >= 2 * MSS, "{}", seen.window);
            wire.ecn
        };
        // Three marks: the counter of marks is at zero then, and gives no sign of ECN any more.
        (0..3).for_each(|_| assert_eq!(round(&mut rig, true, false), ecn::ECT0));
        (0..3).for_each(|_| assert_eq!(round(&mut rig, false, true), ecn::ECT0));
        (0..100).for_each(|_| assert_eq!(round(&mut rig, false, true), ecn::NOT, "{mode:?}"));
        assert_eq!(rig.sides[CLIENT].counters(ENDPOINT).unwrap().lapsed, 1);
    }
}

#[test]
fn where_all_is_marked_a_guest_has_two_segments_a_round_and_goes_on() {
    for mode in [Mode::Echo, Mode::Dctcp] {
        let mut rig = Rig::new([mode; 2]);
        rig.open([100, 200], [true; 2]);
        let (mut next, mut told) = (101u32, 101 + (u32::from(FIELD) << 7));
        rig.pass(CLIENT, &Says { seq: 101, ack: 201, flags: ACK, window: FIELD, ..Says::default() }, true);
        for round in 0..100 {
            if round % 40 == 20 {
                rig = handed_over(&rig);
            }
            let first = next;
            while told.wrapping_sub(next) as i32 >= MSS as i32 {
                let data =
                    Says { seq: next, ack: 201, flags: ACK, window: FIELD, payload: MSS as usize, ..Says::default() };
                rig.pass(CLIENT, &data, true);
                next += MSS;
            }
            let sent = (next - first) / MSS;
            assert!(sent > 0 && (sent == 2 || round < 60), "{mode:?}, {round}: {sent}");
            rig.now = rig.now.plus_ns(1_000_000);
            let mut ack = first;
            while ack != next {
                ack = connection::earlier(ack + 2 * MSS, next);
                let says = Says { seq: 201, ack, flags: ACK, window: FIELD, ..Says::default() };
                let (_, seen) = rig.pass(SERVER, &says, true);
                told = connection::later(told, ack + (u32::from(seen.window) << 7));
            }
        }
        assert_eq!(rig.connection(CLIENT).window, 2 * MSS, "{mode:?}: its floor");
    }
}
