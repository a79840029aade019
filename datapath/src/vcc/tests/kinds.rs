//! Who speaks for himself, and as what; and connections that became plain.

use super::*;

/// A handshake: what the client and the server say, flags and ECN field; it may be sent twice.
fn shake(rig: &mut Rig, [client, server]: [(u8, u8); 2]) {
    let syn = Says { seq: 100, flags: SYN, window: 64_240, options: LINUX, ..Says::default() };
    let syn = Says { codes: client.0, ecn: client.1, ..syn };
    let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, window: 65_160, options: LINUX, ..Says::default() };
    let answer = Says { codes: server.0, ecn: server.1, ..answer };
    for _ in 0..2 {
        rig.pass(CLIENT, &syn, false);
        rig.pass(SERVER, &answer, false);
    }
}

#[test]
fn guests_and_peers_are_counted_once_by_what_they_say_in_the_handshake() {
    const NONE: (u8, u8) = (codes::NONE, ecn::NOT);
    const CLASSIC: (u8, u8) = (codes::ASK_CLASSIC, ecn::NOT);
    const DCTCP: (u8, u8) = (codes::ASK_CLASSIC, ecn::ECT0);
    const ACCURATE: (u8, u8) = (codes::ASK_ACCURATE, ecn::ECT0);
    let [agrees, as_dctcp] = [(codes::CLASSIC, ecn::NOT), (codes::CLASSIC, ecn::ECT0)];
    let accurate = (codes::received(ecn::ECT0), ecn::ECT0);
    let cases = [
        // What they say, of whom one switch knows: client, server; classic, dctcp, accecn.
        ([CLASSIC, agrees], [1, 0, 0], [1, 0, 0]),
        ([CLASSIC, NONE], [1, 0, 0], [0, 0, 0]),
        ([DCTCP, as_dctcp], [0, 1, 0], [0, 1, 0]),
        ([DCTCP, agrees], [0, 1, 0], [1, 0, 0]),
        ([ACCURATE, accurate], [0, 0, 1], [0, 0, 1]),
        ([NONE, NONE], [0, 0, 0], [0, 0, 0]),
    ];
    for (says, client, server) in cases {
        for mode in [Mode::Count, Mode::Echo] {
            // The other side's host does nothing.
            let mut rig = Rig::new([mode, Mode::Off]);
            shake(&mut rig, says);
            let Counters { guests, peers, .. } = rig.sides[CLIENT].counters(ENDPOINT).unwrap();
            assert_eq!((guests, peers), (&client, &server), "{says:?} of the client, {mode:?}");
            let mut rig = Rig::new([Mode::Off, mode]);
            shake(&mut rig, says);
            let Counters { guests, peers, .. } = rig.sides[SERVER].counters(ENDPOINT).unwrap();
            assert_eq!((guests, peers), (&server, &client), "{says:?} of the server, {mode:?}");
        }
    }
    // A switch that asks for its guest learns what the server is.
    let mut rig = Rig::new([Mode::Echo, Mode::Off]);
    shake(&mut rig, [NONE, as_dctcp]);
    let Counters { guests, peers, .. } = rig.sides[CLIENT].counters(ENDPOINT).unwrap();
    assert_eq!((guests, peers), (&[0; 3], &[0, 1, 0]));
}

#[test]
fn what_becomes_plain_after_it_was_translated_is_counted_and_nothing_else_is() {
    let lapsed = |rig: &Rig, side: usize| rig.sides[side].counters(ENDPOINT).unwrap().lapsed;
    let (mut rig, _, answer) = forgotten();
    for count in [0, 0, 1, 1] {
        rig.pass(SERVER, &answer, false);
        assert_eq!(lapsed(&rig, CLIENT), count);
    }
    // A peer without ECN is no such case.
    let mut rig = Rig::new([Mode::Dctcp, Mode::Off]);
    rig.open([100, 200], [false; 2]);
    assert_eq!((lapsed(&rig, CLIENT), rig.connection(CLIENT).treatment), (0, Treatment::Plain));
    assert_eq!(rig.sides[CLIENT].counters(ENDPOINT).unwrap().opened, [0, 0, 1]);
    // A client of RFC 3168 to whom the server's third SYN-ACK agrees to nothing.
    let mut rig = Rig::new([Mode::EchoPublished, Mode::Dctcp]);
    let syn = Says { seq: 99, flags: SYN, window: 64_240, options: LINUX, ..Says::default() };
    rig.pass(CLIENT, &syn, false);
    let answer = Says { seq: 499, ack: 100, flags: SYN | ACK, window: 65_160, options: LINUX, ..Says::default() };
    for count in [0, 0, 1] {
        rig.send(SERVER, &answer);
        assert_eq!(lapsed(&rig, SERVER), count);
    }
}
