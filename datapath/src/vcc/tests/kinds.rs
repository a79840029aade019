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

#[test]
fn a_native_dctcp_peer_is_told_of_the_mark_of_the_last_data_alone() {
    for (old, mode, met, is_told_until_cwr) in [
        (SERVER, Mode::Dctcp, ecn::ECT0, false),
        (SERVER, Mode::Dctcp, ecn::CE, false),
        (SERVER, Mode::Dctcp, ecn::NOT, true),
        (SERVER, Mode::Echo, ecn::ECT0, true),
        (CLIENT, Mode::Dctcp, ecn::ECT0, false),
        (CLIENT, Mode::Dctcp, ecn::NOT, true),
        (CLIENT, Mode::Echo, ecn::ECT0, true),
    ] {
        let case = format!("side {old}, {mode:?}, the peer's first packet with {met}");
        let (mut rig, native) = (Rig::new([Mode::Off; 2]), 1 - old);
        rig.sides[old].set(Owner { tenant: TenantId(0), endpoint: ENDPOINT }, mode.into());
        let none = (codes::NONE, ecn::NOT);
        let native_says = if old == SERVER { (codes::ASK_CLASSIC, met) } else { (codes::CLASSIC, met) };
        shake(&mut rig, if old == SERVER { [native_says, none] } else { [none, native_says] });
        assert_eq!(rig.connection(old).wire, Wire::Classic, "{case}");
        let [mine, theirs] = if old == SERVER { [201, 101] } else { [101, 201] };
        let data = Says { seq: theirs, ack: mine, flags: ACK, window: 502, ecn: ecn::ECT0, ..Says::default() };
        let data = Says { payload: 100, ..data };
        let answer = Says { seq: mine, ack: theirs + 100, flags: ACK, window: 502, payload: 50, ..Says::default() };
        let mut tells = |says: &Says, marked| {
            rig.pass(native, says, marked);
            rig.send(old, &answer).codes & codes::ECE != 0
        };
        assert!(!tells(&data, false), "{case}");
        assert!(tells(&Says { seq: theirs + 100, ..data }, true), "{case}");
        // An acknowledgement says nothing of the direction of data.
        assert!(tells(&Says { seq: theirs + 200, payload: 0, ecn: ecn::NOT, ..data }, false), "{case}");
        // The next data acknowledge what the guest has sent, and are as most frames are.
        let next = Says { seq: theirs + 200, ack: mine + 50, ..data };
        assert_eq!(tells(&next, false), is_told_until_cwr, "{case}");
        assert!(tells(&Says { seq: theirs + 300, ..next }, true), "{case}: one more mark");
        let reduced = Says { seq: theirs + 400, codes: codes::CWR, ..next };
        assert!(!tells(&reduced, false), "{case}");
    }
}
