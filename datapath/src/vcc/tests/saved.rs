//! Connections that are handed over.

use super::super::saved::{self, BYTES};
use super::*;

/// The rig behind a restart, with what of the connections was written down.
fn restarted(rig: &Rig, records: [&[u8]; 2]) -> (Rig, [(usize, usize); 2]) {
    let modes = [0, 1].map(|side| rig.sides[side].mode(ENDPOINT));
    let mut next = Rig::new(modes);
    next.now = rig.now;
    let taken = [0, 1].map(|side| next.sides[side].import(next.now, records[side], &[]));
    (next, taken)
}

/// A connection with marks behind it, and what it is to go on with: the client's next number, what
/// the server has received, and what the client has of the server.
fn busy(mode: Mode) -> (Rig, u32) {
    let mut rig = Rig::new([mode; 2]);
    rig.open([99, 499], [false; 2]);
    rig.pass(CLIENT, &Says { seq: 100, ack: 500, flags: ACK, window: 1000, ..Says::default() }, false);
    let seq = go_on(&mut rig, 100, 40).0;
    (rig, seq)
}

/// Flights of ten segments and an acknowledgement for each; a tenth is marked. The next number, and
/// what was on the wire and seen by guests.
fn go_on(rig: &mut Rig, mut seq: u32, rounds: u32) -> (u32, Vec<(Segment, Segment)>) {
    let mut all = Vec::new();
    for _ in 0..rounds {
        for n in 0..10 {
            let data = Says { seq, ack: 500, flags: ACK, window: 1000, payload: 1400, ..Says::default() };
            all.push(rig.pass(CLIENT, &data, n == 3));
            seq = seq.wrapping_add(1400);
        }
        rig.now = rig.now.plus_ns(200_000);
        for n in (0..10).rev() {
            let ack = seq.wrapping_sub(n * 1400);
            all.push(rig.pass(SERVER, &Says { seq: 500, ack, flags: ACK, window: 65_000, ..Says::default() }, false));
        }
    }
    (seq, all)
}

#[test]
fn a_connection_that_is_handed_over_goes_on_as_it_was() {
    for mode in [Mode::Echo, Mode::Dctcp] {
        let (mut rig, seq) = busy(mode);
        assert!(rig.connection(CLIENT).is(bit::ENGAGED));
        let records = [0, 1].map(|side| rig.sides[side].export(rig.now));
        let (mut next, taken) = restarted(&rig, [&records[0], &records[1]]);
        assert_eq!((taken, records[0].len()), ([(1, 0); 2], BYTES));
        let (as_before, as_handed_over) = (go_on(&mut rig, seq, 30), go_on(&mut next, seq, 30));
        assert!(as_before == as_handed_over, "{mode:?}");
        assert!(next.sides[CLIENT].counters(ENDPOINT).unwrap().lowered > 0);
        let (_, taken) = restarted(&rig, [&[records[0].clone(), records[0].clone()].concat(), &[1; BYTES + 1]]);
        assert_eq!(taken, [(1, 1), (0, 2)], "twice, and none");
    }
}

#[test]
fn a_connection_that_is_not_goes_on_by_itself_and_is_counted() {
    let (rig, seq) = busy(Mode::Dctcp);
    let (mut next, _) = restarted(&rig, [&[], &[]]);
    let (_, seen) = go_on(&mut next, seq, 2);
    for (wire, seen) in &seen {
        assert_eq!((wire.ecn, wire.codes, wire.window), (0, 0, seen.window), "it is what the guest sent");
        assert_eq!((seen.ecn, seen.codes), (0, 0));
    }
    let unknown = [0, 1].map(|side| next.sides[side].counters(ENDPOINT).unwrap().untouched[Why::Unknown as usize]);
    assert_eq!(unknown, [20; 2], "by the frames that each guest sent");
}

#[test]
fn a_connection_goes_on_where_the_mode_became_count_meanwhile() {
    let (mut rig, seq) = busy(Mode::Dctcp);
    for side in &mut rig.sides {
        side.set(Owner { tenant: TenantId(0), endpoint: ENDPOINT }, Mode::Count.into());
    }
    let records = [0, 1].map(|side| rig.sides[side].export(rig.now));
    let (mut next, taken) = restarted(&rig, [&records[0], &records[1]]);
    assert_eq!(taken, [(1, 0); 2]);
    assert!(go_on(&mut rig, seq, 30) == go_on(&mut next, seq, 30));
}

#[test]
fn a_connection_that_has_ended_is_soon_forgotten_behind_a_restart_too() {
    let (mut rig, seq) = busy(Mode::Echo);
    let fin = Says { flags: ACK | tcp_flags::FIN, window: 9, ..Says::default() };
    rig.pass(CLIENT, &Says { seq, ack: 500, ..fin }, false);
    let of = |rig: &Rig, class| [0, 1].map(|side| rig.sides[side].connections().count(ENDPOINT, class));
    let half_closed = [0, 1].map(|side| rig.sides[side].export(rig.now));
    rig.pass(SERVER, &Says { seq: 500, ack: seq + 1, ..fin }, false);
    let ended = [0, 1].map(|side| rig.sides[side].export(rig.now));
    for (records, class) in [(half_closed, Class::Open), (ended, Class::Lingering)] {
        let (next, taken) = restarted(&rig, [&records[0], &records[1]]);
        assert_eq!((taken, of(&next, class)), ([(1, 0); 2], [1; 2]));
    }
}

#[test]
fn a_record_is_an_endpoints_by_its_new_number() {
    let (rig, _) = busy(Mode::Echo);
    let mut records = rig.sides[CLIENT].export(rig.now);
    saved::renumber(&mut records, |endpoint| (endpoint == ENDPOINT).then_some(EndpointId(3)));
    let mut next = Vcc::new(9);
    assert_eq!(next.import(rig.now, &records, &[]), (0, 1), "there is none of this number");
    next.set(Owner { tenant: TenantId(1), endpoint: EndpointId(3) }, Mode::Echo.into());
    assert_eq!(next.import(rig.now, &records, &[]), (1, 0));
    saved::renumber(&mut records, |_| None);
    assert_eq!(next.import(rig.now, &records, &[]), (0, 1));
}

proptest! {
    #[test]
    fn no_record_does_harm(
        changes in prop::collection::vec((0..BYTES, any::<u8>()), 0..30),
        sides in any::<[bool; 2]>(),
    ) {
        let (rig, seq) = busy(Mode::Dctcp);
        let records = [0, 1].map(|side| {
            let mut record = rig.sides[side].export(rig.now);
            changes.iter().filter(|_| sides[side]).for_each(|&(at, byte)| record[at] = byte);
            record
        });
        let (mut next, _) = restarted(&rig, [&records[0], &records[1]]);
        go_on(&mut next, seq, 20);
        let again = [0, 1].map(|side| next.sides[side].export(next.now));
        let (_, taken) = restarted(&next, [&again[0], &again[1]]);
        prop_assert!(taken.iter().all(|&(_, ignored)| ignored == 0), "what is exported is read");
    }
}
