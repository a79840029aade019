//! Backends that refuse connections by ICMP: a firewall that rejects, or a host that is away.

use super::*;
use crate::service::BackendStats;

/// "Destination unreachable": port, and host.
const PORT: (u8, u8) = (3, 3);
const HOST: (u8, u8) = (3, 1);

/// An error about the client's SYN with this number to a backend; of `by`, to `to`.
fn error(
    (by, to): (u8, u8),
    (kind, code): (u8, u8),
    backend: u8,
    (port, sequence): (u16, u32),
) -> build::Build<'static> {
    // Of TCP eight bytes: ports and number.
    let quote = tcp((1, port), (backend, 8080), SYN, (sequence, 0)).bytes()[14..42].to_vec();
    eth(mac(by), mac(to)).ipv4(ip(by), ip(to)).icmp(kind, code, 0).payload(quote)
}

/// The same of the backend itself, to its client.
fn rejects(backend: u8, port: u16) -> build::Build<'static> {
    error((backend, 1), PORT, backend, (port, 99))
}

fn backends(rig: &Rig) -> Vec<BackendStats> {
    rig.switch.service_backends(FIRST).map(|(.., stats)| stats).collect()
}

fn is_answered(rig: &mut Rig, backend: u8, port: u16) -> bool {
    let answer = rig.one(backend.into(), &answer(backend, port, SYN_ACK, (499, 100)));
    answer == (1, seen(port, SYN_ACK, (499, 100)))
}

#[test]
fn a_rejected_connection_goes_to_another_backend_and_five_eject_the_first() {
    let mut rig = rig(Policy::RoundRobin);
    let mut rejected = 0;
    for port in 1..=100 {
        let (mut to, _) = rig.one(1, &ask(port, SYN, (99, 0)));
        if to == 2 {
            rejected += 1;
            let (second, bytes) = rig.one(2, &rejects(2, port));
            assert_eq!(bytes, tcp((1, port), (3, 8080), SYN, (99, 0)).bytes(), "the SYN as it was sent");
            to = second;
        }
        assert!(is_answered(&mut rig, to as u8, port));
        assert_eq!(rig.one(1, &ask(port, ACK, (100, 500))).0, to);
    }
    assert_eq!(rejected, 5, "then it gets none for a while");
    let first = backends(&rig)[0];
    assert_eq!((first.refused, first.busy), (5, 0));
    assert!(first.ejected_until.is_some_and(|until| until > rig.now));
    assert_eq!(rig.switch.service_stats(FIRST).map(|stats| stats.redirected), Some(5));
}

#[test]
fn a_connection_over_ipv6_goes_elsewhere_too() {
    let mut rig = rig(Policy::RoundRobin);
    let syn = |to: u8, port: u16| eth(mac(1), mac(to)).ipv6(v6(1), v6(to)).tcp(7, port, 99).flags(SYN);
    let asks = eth(mac(1), MAC).ipv6(v6(1), v6(100)).tcp(7, 80, 99).flags(SYN);
    assert_eq!(rig.one(1, &asks), (2, syn(2, 8080).bytes()));
    let quote = syn(2, 8080).bytes()[14..62].to_vec();
    let rejects = eth(mac(2), mac(1)).ipv6(v6(2), v6(1)).icmp(1, 4, 0).payload(quote);
    assert_eq!(rig.one(2, &rejects), (3, syn(3, 8080).bytes()));
    assert_eq!(backends(&rig)[0].refused, 1);
}

#[test]
fn a_router_before_a_backend_outside_says_that_it_is_away() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2), (0, 3)], |program| {
        let two = vec![backend(50, None), backend(3, Some(2))];
        program.services.push(service(Policy::RoundRobin, two));
    });
    assert_eq!(rig.one(1, &ask(5, SYN, (99, 0))).0, 0);
    let away = error((70, 1), HOST, 50, (5, 99)).vlan(10);
    assert_eq!(rig.one(0, &away), (3, tcp((1, 5), (3, 8080), SYN, (99, 0)).bytes()));
    assert_eq!(backends(&rig)[0].refused, 1);
    assert!(is_answered(&mut rig, 3, 5));
}

#[test]
fn without_another_backend_the_client_is_told_and_it_counts() {
    let mut rig = rig(Policy::RoundRobin);
    rig.change_service(service(Policy::RoundRobin, vec![backend(2, Some(1))]));
    for port in 1..=5 {
        assert_eq!(rig.one(1, &ask(port, SYN, (99, 0))).0, 2);
        let told = tcp((1, port), (100, 80), SYN, (99, 0)).bytes()[14..42].to_vec();
        let told = eth(MAC, mac(1)).ipv4(ip(100), ip(1)).icmp(3, 3, 0).payload(told);
        assert_eq!(rig.one(2, &rejects(2, port)), (1, told.bytes()));
        // It is over: the same once more says nothing new.
        rig.one(2, &rejects(2, port));
    }
    let alone = backends(&rig)[0];
    assert_eq!((alone.refused, alone.busy, alone.ejections), (5, 0, 1));
}

#[test]
fn errors_that_do_not_answer_the_syn_or_may_be_made_up_move_and_eject_nobody() {
    let mut rig = rig(Policy::RoundRobin);
    for port in 1..=20 {
        let to = rig.one(1, &ask(port, SYN, (99, 0))).0;
        let backend = to as u8;
        // Of the backend, with another number, or about what the client had put into its SYN.
        assert_eq!(rig.one(to, &error((backend, 1), PORT, backend, (port, 98))).0, 1);
        for what in [(3, 4), (3, 5), (3, 11), (11, 0), (12, 0)] {
            assert_eq!(rig.one(to, &error((backend, 1), what, backend, (port, 99))).0, 1);
        }
        // With the right number, which its client knows: of itself, of a neighbour, of somebody
        // outside.
        assert_eq!(rig.one(1, &error((1, 4), PORT, backend, (port, 99))).0, 4);
        assert_eq!(rig.one(4, &error((4, 1), PORT, backend, (port, 99))).0, 1);
        assert_eq!(rig.one(0, &error((70, 1), HOST, backend, (port, 99)).vlan(10)).0, 1);
        assert!(is_answered(&mut rig, backend, port));
        // Answered by now.
        assert_eq!(rig.one(to, &rejects(backend, port)).0, 1);
        assert_eq!(rig.one(1, &ask(port, ACK, (100, 500))).0, to, "it goes on");
    }
    assert!(backends(&rig).iter().all(|stats| stats.refused == 0 && stats.ejections == 0));
    assert_eq!(rig.in_flight().iter().map(|(_, busy, _)| busy).sum::<u32>(), 20);
}

#[test]
fn resets_from_outside_in_the_name_of_a_backend_here_eject_nobody() {
    let mut rig = rig(Policy::RoundRobin);
    for port in 1..=40 {
        // Who asks knows the number.
        let to = rig.one(0, &tcp((77, port), (100, 80), SYN, (1, 0)).vlan(10)).0 as u8;
        let reset = eth(mac(78), mac(77)).ipv4(ip(to), ip(77)).tcp(8080, port, 0).ack(2, 0).flags(RST | ACK);
        rig.send(0, &reset.vlan(10));
    }
    assert!(backends(&rig).iter().all(|stats| stats.refused == 0 && stats.ejections == 0));
}

#[test]
fn a_refusal_that_nobody_else_can_have_counts_once() {
    let mut rig = rig(Policy::RoundRobin);
    // A client outside gets no backend outside.
    rig.change_service(service(Policy::RoundRobin, vec![backend(2, Some(1)), backend(50, None)]));
    assert_eq!(rig.one(0, &tcp((77, 5), (100, 80), SYN, (1, 0)).vlan(10)).0, 2);
    assert_eq!(rig.one(2, &tcp((2, 8080), (77, 5), RST | ACK, (0, 2))).0, 0, "the client is told");
    assert_eq!((backends(&rig)[0].refused, backends(&rig)[0].busy), (1, 0));
}
