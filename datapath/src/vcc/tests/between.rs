//! Guests that know RFC 3168 only, behind a switch that made AccECN of it and does so no more.

use super::super::early::Part;
use super::*;

const OWNER: Owner = Owner { tenant: TenantId(0), endpoint: ENDPOINT };

/// What the server's guest sends: as RFC 3168 has it, with a report of a mark.
const DATA: Says =
    Says { seq: 201, ack: 201, flags: ACK, codes: codes::ECE, ecn: ecn::ECT0, window: 502, payload: 100, options: &[] };

/// A connection of a client without ECN with such a server, and what the client sends next.
fn opened() -> (Rig, Says) {
    let mut rig = Rig::new([Mode::Dctcp; 2]);
    let syn = Says { seq: 100, flags: SYN, window: 64_240, options: LINUX, ..Says::default() };
    rig.pass(CLIENT, &syn, false);
    let answer = Says { seq: 200, ack: 101, flags: SYN | ACK, codes: codes::CLASSIC, ..syn };
    let (wire, _) = rig.pass(SERVER, &answer, false);
    assert_eq!(wire.codes, codes::received(ecn::ECT0));
    let data = Says { seq: 101, ack: 201, flags: ACK, window: 502, payload: 100, ..Says::default() };
    rig.pass(CLIENT, &data, false);
    assert_eq!(rig.send(SERVER, &DATA).ecn, ecn::ECT0);
    (rig, Says { seq: 201, ..data })
}

/// Neither side sees any ECN of the other.
fn is_silent(rig: &mut Rig, data: &Says) {
    let wire = rig.send(CLIENT, data);
    let arrives = Segment { codes: 5, ecn: ecn::CE, ..wire };
    let seen = rig.deliver(CLIENT, &arrives, &[]);
    assert_eq!((seen.codes, seen.ecn), (0, 0), "a counter is no report");
    let wire = rig.send(SERVER, &DATA);
    assert_eq!((wire.codes, wire.ecn), (0, 0), "nobody would report marks");
}

#[test]
fn off_leaves_no_guest_with_a_peer_that_it_does_not_understand() {
    let (mut rig, data) = opened();
    rig.sides[SERVER].set(OWNER, Mode::Off.into());
    is_silent(&mut rig, &data);
    // What begins meanwhile has nothing to do with it.
    let frame = eth(Mac([2; 6]), Mac([4; 6])).ipv4([10, 0, 0, 2].into(), [10, 0, 0, 3].into()).tcp(9, 9, 1).flags(SYN);
    let (bytes, counted) = (frame.bytes(), rig.sides[SERVER].counters(ENDPOINT).cloned());
    let frame = rig.pool.alloc_from(&bytes).unwrap();
    rig.pool.meta_mut(&frame).layout = parse(&bytes).unwrap();
    assert_eq!(rig.sides[SERVER].send(&mut rig.pool, rig.now, ENDPOINT, &frame), Ok(()));
    assert_eq!(rig.pool.bytes(&frame), bytes);
    rig.pool.free(frame);
    assert_eq!((rig.sides[SERVER].connections().len(), rig.sides[SERVER].counters(ENDPOINT)), (1, counted.as_ref()));
    // Another process goes on with it, whatever its mode is.
    let records = rig.sides[SERVER].export(rig.now);
    let mut next = Rig::new([Mode::Dctcp, Mode::Off]);
    next.now = rig.now;
    assert!(!next.sides[SERVER].concerns(ENDPOINT));
    assert_eq!(next.sides[SERVER].import(next.now, &records, &[]), (1, 0));
    is_silent(&mut next, &data);
    // The same where it crossed early, as one that was translated.
    let (mut busy, data) = opened();
    let mut part = Part::new(0);
    busy.sides[SERVER].write_part(busy.now, &mut part);
    let mut next = Rig::new([Mode::Dctcp, Mode::Off]);
    next.now = busy.now;
    next.sides[SERVER].import_early(next.now, 0, part.records());
    busy.pass(CLIENT, &data, false);
    let (records, unchanged) = busy.sides[SERVER].export_since(busy.now, &[part]);
    assert!(!records.is_empty());
    assert_eq!(next.sides[SERVER].import(next.now, &records, &unchanged), (1, 0));
    is_silent(&mut next, &Says { seq: 301, ..data });
    // Nothing more is done when it has ended.
    let fin = tcp_flags::FIN | ACK;
    rig.pass(SERVER, &Says { seq: 301, ack: 201, flags: fin, ..DATA }, false);
    rig.pass(CLIENT, &Says { ack: 302, flags: fin, payload: 0, ..data }, false);
    assert!(rig.sides[SERVER].concerns(ENDPOINT));
    // Its port is used again.
    assert_eq!(rig.send(SERVER, &Says { seq: 90_000, flags: SYN, window: 9, ..Says::default() }).codes, 0);
    assert!(!rig.sides[SERVER].concerns(ENDPOINT));
    assert!(rig.sides[SERVER].connections().is_empty());
}

#[test]
fn a_guest_whose_peer_gives_no_sign_of_ecn_any_more_sends_nothing_that_is_capable() {
    let (mut rig, data) = opened();
    // The client's switch has lost its connections.
    rig.sides[CLIENT] = Rig::new([Mode::Off; 2]).sides.into_iter().next().unwrap();
    for _ in 0..3 {
        rig.pass(CLIENT, &data, false);
    }
    assert_eq!(rig.connection(SERVER).treatment, Treatment::Plain);
    is_silent(&mut rig, &data);
}
