//! Guests that are held to their window, and say of ECN what they like.

use super::*;

const SIGNED: &[u8] = &[19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
const MULTIPATH: &[u8] = &[30, 12, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4, 5, 0xb4];

/// One side's guest is policed, or at least spoken for; the other's switch does nothing.
fn rig(side: usize, polices: bool) -> Rig {
    let mut modes = [Mode::Off; 2];
    modes[side] = Mode::Dctcp;
    let mut rig = Rig::new(modes);
    let owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };
    rig.sides[side].set(owner, Settings { polices, ..Mode::Dctcp.into() });
    rig
}

/// Of a guest that says that all is ECN-capable.
fn syn(codes: u8, options: &'static [u8]) -> Says {
    Says { seq: 100, flags: SYN, codes, ecn: ecn::ECT0, window: 64_240, options, ..Says::default() }
}

fn data(from: usize) -> Says {
    let [seq, ack] = if from == CLIENT { [101, 201] } else { [201, 101] };
    Says { seq, ack, flags: ACK, codes: codes::ECE, ecn: ecn::ECT0, window: 502, payload: 1000, ..Says::default() }
}

#[test]
fn a_policed_client_is_spoken_for_whatever_flags_its_syn_has_that_no_standard_knows() {
    for asks in 0..8 {
        for answers in [codes::NONE, codes::CLASSIC, codes::received(ecn::ECT0)] {
            let mut rig = rig(CLIENT, true);
            let is_native = matches!(asks, codes::ASK_CLASSIC | codes::ASK_ACCURATE);
            for try_number in 1..=3 {
                let wire = rig.send(CLIENT, &syn(asks, LINUX));
                let expected = match try_number {
                    _ if is_native => (asks, ecn::ECT0),
                    3 => (codes::NONE, ecn::NOT),
                    _ => (codes::ASK_ACCURATE, ecn::ECT0),
                };
                assert_eq!((wire.codes, wire.ecn), expected, "{asks}, {try_number}");
            }
            let flags = SYN | ACK;
            rig.pass(SERVER, &Says { seq: 200, ack: 101, flags, ecn: ecn::NOT, ..syn(answers, LINUX) }, false);
            let is_accurate = answers == codes::received(ecn::ECT0) && asks != codes::ASK_CLASSIC;
            let has_ecn = is_accurate || answers == codes::CLASSIC;
            let treatment = match (is_native, has_ecn) {
                (true, _) => Treatment::Native,
                (false, true) => Treatment::Translated,
                (false, false) => Treatment::Plain,
            };
            assert_eq!(rig.connection(CLIENT).treatment, treatment, "{asks}, {answers}");
            let wire = rig.send(CLIENT, &data(CLIENT));
            assert_eq!(wire.ecn, if has_ecn { ecn::ECT0 } else { ecn::NOT }, "{asks}, {answers}");
            if treatment != Treatment::Translated {
                assert_eq!(wire.codes, codes::ECE, "its flags are its own");
            }
        }
    }
}

#[test]
fn a_policed_server_is_spoken_for_whatever_flags_its_syn_ack_has_that_answer_nothing() {
    use codes::{ASK_ACCURATE, ASK_CLASSIC, CLASSIC, CLASSIC_NONCE, NONE};
    for asks in 0..8 {
        for answers in 0..8 {
            let mut rig = rig(SERVER, true);
            rig.pass(CLIENT, &Says { ecn: ecn::NOT, ..syn(asks, LINUX) }, false);
            let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, ..syn(answers, LINUX) };
            let wire = rig.send(SERVER, &answer);
            let says_accurate = codes::said_of(answers).is_some();
            let (treatment, says) = match (asks, answers) {
                (ASK_ACCURATE, _) if says_accurate => (Treatment::Native, answers),
                (ASK_CLASSIC, CLASSIC | CLASSIC_NONCE) => (Treatment::Native, answers),
                (ASK_ACCURATE, _) => (Treatment::Translated, codes::received(ecn::NOT)),
                (ASK_CLASSIC, _) => (Treatment::Translated, CLASSIC),
                _ => (Treatment::Plain, NONE),
            };
            let is_capable = treatment == Treatment::Native || asks == ASK_ACCURATE;
            let ecn = if is_capable { ecn::ECT0 } else { ecn::NOT };
            assert_eq!(rig.connection(SERVER).treatment, treatment, "{asks}, {answers}");
            assert_eq!((wire.codes, wire.ecn), (says, ecn), "{asks}, {answers}");
            let codes = codes::received(ecn::ECT0);
            rig.pass(CLIENT, &Says { codes, ecn: ecn::NOT, payload: 0, ..data(CLIENT) }, false);
            let ecn = if treatment == Treatment::Plain { ecn::NOT } else { ecn::ECT0 };
            assert_eq!(rig.send(SERVER, &data(SERVER)).ecn, ecn, "{asks}, {answers}");
        }
    }
}

#[test]
fn nothing_is_capable_of_a_policed_guests_connections_that_are_left_alone_or_unknown() {
    for polices in [false, true] {
        let ecn = if polices { ecn::NOT } else { ecn::ECT0 };
        for options in [SIGNED, MULTIPATH] {
            let mut rig = rig(CLIENT, polices);
            for _ in 0..2 {
                let wire = rig.send(CLIENT, &syn(codes::ASK_CLASSIC, options));
                assert_eq!((wire.codes, wire.ecn), (codes::ASK_CLASSIC, ecn), "{polices}, {options:?}");
            }
            let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, ..syn(codes::CLASSIC, options) };
            rig.pass(SERVER, &answer, false);
            let wire = rig.send(CLIENT, &data(CLIENT));
            assert_eq!((wire.codes, wire.ecn), (codes::ECE, ecn), "{polices}, {options:?}");
        }
        // Its handshake was not seen.
        let mut rig = rig(CLIENT, polices);
        let wire = rig.send(CLIENT, &data(CLIENT));
        assert_eq!((wire.codes, wire.ecn), (codes::ECE, ecn), "{polices}");
        // Both sides open at once.
        rig.pass(SERVER, &Says { seq: 200, ..syn(codes::NONE, LINUX) }, false);
        assert_eq!(rig.send(CLIENT, &syn(codes::NONE, LINUX)).ecn, ecn, "{polices}");
        assert_eq!(rig.send(CLIENT, &data(CLIENT)).ecn, ecn, "{polices}");
    }
}

#[test]
fn nothing_is_capable_of_a_policed_guests_connection_for_which_there_is_no_room() {
    let mut rig = rig(CLIENT, true);
    let capable = (0..1100u16).filter(|&port| {
        let bytes = eth(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))
            .ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2))
            .tos(ecn::ECT0)
            .tcp(port, 80, 1)
            .flags(SYN)
            .bytes();
        let frame = rig.pool.alloc_from(&bytes).unwrap();
        rig.pool.meta_mut(&frame).layout = parse(&bytes).unwrap();
        assert_eq!(rig.sides[CLIENT].send(&mut rig.pool, rig.now, ENDPOINT, &frame), Ok(()));
        let (bytes, layout) = (rig.pool.bytes(&frame), rig.pool.meta(&frame).layout);
        let wire = Segment::of(bytes, &layout, &Default::default()).unwrap();
        rig.pool.free(frame);
        wire.ecn == ecn::ECT0
    });
    assert_eq!(capable.count(), 1024);
}
