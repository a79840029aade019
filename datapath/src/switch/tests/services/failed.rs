//! Backends that refuse connections, or do not answer them.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn stats(rig: &Rig) -> crate::service::ServiceStats {
    rig.switch.service_stats(FIRST).expect("it is there")
}

fn of_backend(rig: &Rig, number: usize) -> crate::service::BackendStats {
    rig.switch.service_backends(FIRST).find(|(at, ..)| *at == number).expect("it is there").2
}

/// Opens a connection where backend 2 has closed its port: what it refuses goes to another one at
/// once, and the client sees nothing of that. Whether it was refused.
fn open_beside_a_closed_port(rig: &mut Rig, port: u16) -> bool {
    let (first, bytes) = rig.one(1, &ask(port, SYN, (99, 0)));
    assert_eq!(bytes, tcp((1, port), (first as u8, 8080), SYN, (99, 0)).bytes());
    let mut backend = first;
    if first == 2 {
        let reset = answer(2, port, RST | ACK, (0, 100));
        let (second, bytes) = rig.one(2, &reset);
        assert_ne!(second, 2);
        assert_eq!(bytes, tcp((1, port), (second as u8, 8080), SYN, (99, 0)).bytes(), "the SYN as it was sent");
        backend = second;
    }
    let (client, bytes) = rig.one(backend, &answer(backend as u8, port, SYN_ACK, (499, 100)));
    assert_eq!((client, bytes), (1, seen(port, SYN_ACK, (499, 100))));
    assert_eq!(rig.one(1, &ask(port, ACK, (100, 500))).0, backend);
    first == 2
}

#[test]
fn a_refused_connection_goes_to_another_backend_and_five_eject_the_first() {
    let mut rig = rig(Policy::RoundRobin);
    let refused = (1..=100).filter(|&port| open_beside_a_closed_port(&mut rig, port)).count();
    assert_eq!(refused, 5, "then it gets none for a while");
    assert_eq!((stats(&rig).new, stats(&rig).redirected), (100, 5));
    assert_eq!((of_backend(&rig, 0).refused, of_backend(&rig, 0).busy), (5, 0));
    assert!(of_backend(&rig, 0).ejected_until.is_some_and(|until| until > rig.now));
    rig.now = rig.now.plus_ns(31 * SECOND);
    assert_eq!((101..=120).filter(|&port| open_beside_a_closed_port(&mut rig, port)).count(), 1, "on trial");
}

#[test]
fn resets_of_what_is_no_syn_eject_nobody() {
    let mut rig = rig(Policy::RoundRobin);
    for port in 1..=80 {
        // The SYN has a wrong checksum; the acknowledgement behind it has a right one. A reset
        // that acknowledges nothing has a zero there, which may be the SYN's next number.
        let first = if port % 2 == 0 { 99 } else { u32::MAX };
        let to = rig.one(1, &ask(port, SYN, (first, 0))).0;
        assert_eq!(rig.one(1, &ask(port, ACK, (first.wrapping_add(1), 7))).0, to);
        let (client, bytes) = rig.one(to, &answer(to as u8, port, RST, (7, 0)));
        assert_eq!((client, bytes), (1, seen(port, RST, (7, 0))), "its client is told");
    }
    let mut backends = rig.switch.service_backends(FIRST).map(|(_, _, stats)| stats);
    assert!(backends.all(|stats| stats.ejected_until.is_none() && stats.refused == 0));
}

#[test]
fn a_client_outside_is_not_told_of_a_refusal_either() {
    let mut rig = rig(Policy::RoundRobin);
    let (port, _) = rig.one(0, &tcp((77, 5), (100, 80), SYN, (1, 0)).vlan(10));
    assert_eq!(port, 2);
    let (port, bytes) = rig.one(2, &tcp((2, 8080), (77, 5), RST | ACK, (0, 2)));
    assert_eq!((port, bytes), (3, tcp((77, 5), (3, 8080), SYN, (1, 0)).bytes()));
    assert_eq!(rig.one(3, &tcp((3, 8080), (77, 5), SYN_ACK, (9, 2))).0, 0);
}

#[test]
fn many_that_are_refused_at_once_all_go_elsewhere() {
    let mut rig = rig(Policy::RoundRobin);
    // As many as a client sends before the first reset comes.
    let asked: Vec<(u16, u32)> = (1..=60).map(|port| (port, rig.one(1, &ask(port, SYN, (99, 0))).0)).collect();
    let refused = asked.iter().filter(|(_, to)| *to == 2);
    for &(port, _) in refused.clone() {
        let (second, bytes) = rig.one(2, &answer(2, port, RST | ACK, (0, 100)));
        assert_ne!(second, 1, "the client is not told");
        assert_eq!(bytes, tcp((1, port), (second as u8, 8080), SYN, (99, 0)).bytes());
    }
    assert_eq!(stats(&rig).redirected, refused.count() as u64);
    assert_eq!(stats(&rig).new, 60);
}

#[test]
fn a_flood_leaves_others_of_its_tenant_their_copies() {
    let mut rig = rig(Policy::RoundRobin);
    let (to, _) = rig.one(4, &tcp((4, 7), (100, 80), SYN, (99, 0)));
    for port in 1..=2000 {
        rig.send(1, &ask(port, SYN, (99, 0)));
    }
    // Of another, whose SYN came before.
    let (second, bytes) = rig.one(to, &tcp((to as u8, 8080), (4, 7), RST | ACK, (0, 100)));
    assert_ne!(second, to);
    assert_eq!(bytes, tcp((4, 7), (second as u8, 8080), SYN, (99, 0)).bytes());
}

#[test]
fn what_is_too_long_to_be_kept_is_not_taken_for_what_its_client_sent_before() {
    let mut rig = rig(Policy::RoundRobin);
    let first = rig.one(1, &ask(5, SYN, (99, 0))).0;
    assert_eq!(rig.one(first, &answer(first as u8, 5, SYN_ACK, (499, 100))).0, 1);
    rig.one(1, &ask(5, RST | ACK, (100, 500)));
    rig.now = rig.now.plus_ns(20 * SECOND);
    // The same ports again, and data in the SYN (TCP Fast Open).
    let again = ask(5, SYN, (5000, 0)).payload(vec![7; 400]);
    let to = rig.one(1, &again).0;
    let (client, bytes) = rig.one(to, &answer(to as u8, 5, RST | ACK, (0, 5401)));
    assert_eq!((client, bytes), (1, seen(5, RST | ACK, (0, 5401))), "the client is told");
}

#[test]
fn a_reset_that_answers_another_syn_than_was_kept_reaches_the_client() {
    let mut rig = rig(Policy::RoundRobin);
    let to = rig.one(1, &ask(5, SYN, (99, 0))).0;
    // The client has given that one up.
    assert_eq!(rig.one(1, &ask(5, SYN, (5000, 0))).0, to);
    let (client, bytes) = rig.one(to, &answer(to as u8, 5, RST | ACK, (0, 5001)));
    assert_eq!((client, bytes), (1, seen(5, RST | ACK, (0, 5001))));
}

#[test]
fn a_refusal_of_all_reaches_the_client() {
    let mut rig = rig(Policy::RoundRobin);
    let to = rig.one(1, &ask(5, SYN, (99, 0))).0;
    let other = rig.one(to, &answer(to as u8, 5, RST | ACK, (0, 100))).0;
    assert_eq!(rig.one(other, &answer(other as u8, 5, RST | ACK, (0, 100))).0, to, "once more");
    let (client, bytes) = rig.one(to, &answer(to as u8, 5, RST | ACK, (0, 100)));
    assert_eq!((client, bytes), (1, seen(5, RST | ACK, (0, 100))));
    // And of one backend alone at once.
    rig.change_service(service(Policy::P2c, vec![backend(3, Some(2))]));
    rig.one(1, &ask(6, SYN, (99, 0)));
    assert_eq!(rig.one(3, &answer(3, 6, RST | ACK, (0, 100))).0, 1);
}

#[test]
fn a_syn_that_is_not_answered_goes_to_another_backend_when_it_comes_again() {
    let mut rig = rig(Policy::RoundRobin);
    let mut silent = 0;
    for port in 1..=40 {
        let first = rig.one(1, &ask(port, SYN, (99, 0))).0;
        rig.now = rig.now.plus_ns(SECOND / 2);
        assert_eq!(rig.one(1, &ask(port, SYN, (99, 0))).0, first, "too early to tell");
        rig.now = rig.now.plus_ns(SECOND / 2);
        if first == 2 {
            silent += 1;
            assert_eq!(rig.one(1, &ask(port, SYN, (99, 0))).0, 3);
        }
        rig.one(3, &answer(3, port, SYN_ACK, (499, 100)));
        rig.one(1, &ask(port, ACK, (100, 500)));
    }
    assert!((5..=7).contains(&silent), "{silent}: ejected for 30 s of the 40");
    assert_eq!(of_backend(&rig, 0).silent, silent);
}

#[test]
fn where_most_are_ejected_health_says_nothing() {
    let mut rig = rig(Policy::RoundRobin);
    for port in 1..=40 {
        let mut to = rig.one(1, &ask(port, SYN, (99, 0))).0;
        // Until the client is told.
        while to != 1 {
            to = rig.one(to, &answer(to as u8, port, RST | ACK, (0, 100))).0;
        }
    }
    assert!([0, 1].iter().all(|&n| of_backend(&rig, n).ejected_until.is_some()));
    assert!([2, 3].contains(&rig.open(99)), "who comes up again is found");
}

#[test]
fn syns_that_nobody_could_answer_eject_nobody_who_answers_others() {
    let mut rig = rig(Policy::RoundRobin);
    // As with a wrong checksum.
    for port in 1..=20 {
        rig.one(1, &ask(port, SYN, (99, 0)));
    }
    rig.now = rig.now.plus_ns(500_000_000);
    for port in 101..=104 {
        let to = rig.one(1, &ask(port, SYN, (1, 0))).0;
        rig.one(to, &answer(to as u8, port, SYN_ACK, (9, 2)));
    }
    rig.now = rig.now.plus_ns(500_000_000);
    for port in 1..=20 {
        rig.send(1, &ask(port, SYN, (99, 0)));
    }
    let backends = || rig.switch.service_backends(FIRST).map(|(_, _, stats)| stats);
    assert!(backends().all(|stats| stats.ejected_until.is_none()), "both answer");
    assert!(backends().map(|stats| stats.silent).sum::<u64>() >= 10, "all the same they are counted");
}
