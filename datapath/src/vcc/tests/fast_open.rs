//! Connections that begin with data (TCP Fast Open, RFC 7413), and SYNs that are not to be touched.

use super::*;

/// MSS 1460 and a cookie.
const COOKIE: &[u8] = &[2, 4, 5, 0xb4, 34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1];
/// TCP-MD5.
const SIGNED: &[u8] = &[19, 18, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1, 1];
const DATA: u32 = 400;

/// A SYN with data, and an answer to it that acknowledges `ack`; its code on the wire.
fn answered(rig: &mut Rig, ack: u32) -> u8 {
    let (window, options, payload) = (64_240, COOKIE, DATA as usize);
    rig.pass(CLIENT, &Says { seq: 100, flags: SYN, window, options, payload, ..Says::default() }, false);
    let answer = Says { seq: 500, ack, flags: SYN | ACK, window, options, ..Says::default() };
    rig.pass(SERVER, &answer, false).0.codes
}

#[test]
fn an_answer_to_a_syn_with_data_is_spoken_for_whatever_it_takes_of_them() {
    for taken in [0, 1, DATA] {
        let mut rig = Rig::new([Mode::Echo; 2]);
        assert_eq!(answered(&mut rig, 101 + taken), codes::received(ecn::ECT0), "{taken}");
        for side in [CLIENT, SERVER] {
            assert_eq!(rig.connection(side).treatment, Treatment::Translated, "{taken}");
        }
    }
}

#[test]
fn an_answer_to_another_syn_is_left_alone() {
    for ack in [100, 102 + DATA] {
        let mut rig = Rig::new([Mode::Echo; 2]);
        assert_eq!(answered(&mut rig, ack), codes::NONE, "{ack}");
    }
}

#[test]
fn the_code_of_the_first_acknowledgement_behind_data_on_a_syn_is_no_counter() {
    let mut rig = Rig::new([Mode::Echo; 2]);
    answered(&mut rig, 101 + DATA);
    let first = Says { seq: 101 + DATA, ack: 501, flags: ACK, window: 500, ..Says::default() };
    let (wire, _) = rig.pass(CLIENT, &first, false);
    assert_eq!(wire.codes, codes::received(ecn::ECT0));
    let server = rig.connection(SERVER);
    assert_eq!((server.ace_seen, server.is(bit::ENGAGED)), (handshake::FIRST_COUNT, false));
}

#[test]
fn a_marked_syn_that_is_signed_is_delivered_as_it_came() {
    for (options, seen) in [(SIGNED, ecn::CE), (COOKIE, ecn::ECT0)] {
        let mut rig = Rig::new([Mode::Echo; 2]);
        let syn = Segment { seq: 100, flags: SYN, window: 64_240, ecn: ecn::CE, ..Segment::default() };
        assert_eq!(rig.deliver(CLIENT, &syn, options).ecn, seen);
    }
}
