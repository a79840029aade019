//! Backends that accept connections and end them at once.

use super::checked::{after, at_once, checked, connect, open, run};
use super::*;
use crate::service::{Ask, BackendStats, Http};

const ENDS: [u8; 2] = [RST | ACK, FIN_ACK];

fn of_first(rig: &Rig) -> BackendStats {
    rig.switch.service_backends(FIRST).next().expect("it is there").2
}

fn is_ejected(rig: &Rig) -> bool {
    of_first(rig).ejected_until.is_some_and(|until| until > rig.now)
}

/// Opens a connection to the first backend, whatever others get before.
fn open_first(rig: &mut Rig, ports: &mut impl Iterator<Item = u16>) -> u16 {
    ports.find(|&port| rig.open(port) == 2).expect("it gets some")
}

/// The same, and the backend ends it by this.
fn breaks(rig: &mut Rig, ports: &mut impl Iterator<Item = u16>, end: u8) {
    let port = open_first(rig, ports);
    assert_eq!(rig.one(2, &answer(2, port, end, (500, 100))).0, 1, "its client is told");
}

/// A request that the first backend answers, whose client has that.
fn answers(rig: &mut Rig, ports: &mut impl Iterator<Item = u16>) {
    let port = open_first(rig, ports);
    rig.one(1, &ask(port, ACK, (100, 500)).payload(vec![1; 50]));
    rig.one(2, &answer(2, port, ACK, (500, 150)).payload(vec![2; 70]));
    rig.one(1, &ask(port, ACK, (150, 570)));
}

#[test]
fn a_backend_that_ends_at_once_what_it_accepts_does_not_draw_all_connections() {
    for (end, asks) in ENDS.into_iter().flat_map(|end| [(end, false), (end, true)]) {
        let mut rig = rig(Policy::LeastInflight);
        let three = vec![backend(2, Some(1)), backend(3, Some(2)), backend(4, Some(3))];
        rig.change_service(service(Policy::LeastInflight, three));
        let mut broken = 0;
        for port in 1..=100 {
            let to = rig.open(port);
            if asks {
                // What its backend never receives.
                rig.one(1, &ask(port, ACK, (100, 500)).payload(vec![1; 50]));
            }
            if to == 2 {
                broken += 1;
                assert_eq!(rig.one(2, &answer(2, port, end, (500, 100))).0, 1);
                rig.one(1, &ask(port, RST | ACK, (100, 500)));
            }
        }
        assert_eq!(broken, 5, "it has the least in flight, and was ejected");
        assert_eq!((of_first(&rig).ended, is_ejected(&rig)), (5, true));
    }
}

#[test]
fn to_accept_is_no_answer_for_who_ends_what_he_accepts() {
    let mut rig = rig(Policy::RoundRobin);
    let ports = &mut (1..1000);
    (0..4).for_each(|_| breaks(&mut rig, ports, RST | ACK));
    answers(&mut rig, ports);
    (0..4).for_each(|_| breaks(&mut rig, ports, FIN_ACK));
    assert!(!is_ejected(&rig), "it has answered one");
    // That was just now, so who was turned away says nothing of it.
    rig.now = rig.now.plus_ns(200_000_000);
    (0..4).for_each(|_| breaks(&mut rig, ports, FIN_ACK));
    open_first(&mut rig, ports);
    breaks(&mut rig, ports, RST | ACK);
    assert!(is_ejected(&rig), "and accepted another");
}

#[test]
fn who_provokes_an_end_ejects_nobody() {
    let mut rig = rig(Policy::RoundRobin);
    let ports = &mut (1..1000);
    for _ in 0..10 {
        for end in ENDS {
            // By a request: the backend has received it.
            let port = open_first(&mut rig, ports);
            rig.one(1, &ask(port, ACK, (100, 500)).payload(vec![1; 50]));
            rig.one(2, &answer(2, port, end, (500, 150)));
            let port = open_first(&mut rig, ports);
            rig.one(1, &ask(port, ACK, (100, 500)).payload(vec![1; 50]));
            rig.one(2, &answer(2, port, ACK, (500, 150)));
            rig.one(2, &answer(2, port, end, (500, 150)));
            // By a FIN.
            let port = open_first(&mut rig, ports);
            rig.one(1, &ask(port, FIN_ACK, (100, 500)));
            rig.one(2, &answer(2, port, end, (500, 101)));
            // By saying nothing for so long that the server ends it; and by an acknowledgement
            // just before, which says nothing either.
            for says in [false, true] {
                let port = open_first(&mut rig, ports);
                rig.now = rig.now.plus_ns(59_500_000_000);
                if says {
                    rig.one(1, &ask(port, ACK, (100, 500)));
                }
                rig.now = rig.now.plus_ns(500_000_000);
                rig.one(2, &answer(2, port, end, (500, 100)));
            }
        }
        // By what is of no connection: the reset acknowledges nothing.
        let port = open_first(&mut rig, ports);
        rig.one(2, &answer(2, port, RST, (500, 0)));
        // With numbers that are not its own.
        let port = open_first(&mut rig, ports);
        rig.one(2, &answer(2, port, RST | ACK, (501, 100)));
        // From outside, in the backend's name.
        let (to, _) = rig.one(0, &tcp((77, port), (100, 80), SYN, (99, 0)).vlan(10));
        rig.one(to, &tcp((to as u8, 8080), (77, port), SYN_ACK, (499, 100)));
        rig.one(0, &tcp((77, port), (100, 80), ACK, (100, 500)).vlan(10));
        let end = eth(mac(78), mac(77)).ipv4(ip(to as u8), ip(77)).tcp(8080, port, 500).ack(100, 0).flags(RST | ACK);
        rig.send(0, &end.vlan(10));
    }
    let mut backends = rig.switch.service_backends(FIRST);
    assert!(backends.all(|(.., stats)| (stats.ended, stats.ejections) == (0, 0)));
}

#[test]
fn who_answers_others_meanwhile_is_not_ejected_for_clients_that_it_turns_away() {
    let mut rig = rig(Policy::RoundRobin);
    let ports = &mut (1..1000);
    let turned_away: Vec<u16> = (0..10).map(|_| open_first(&mut rig, ports)).collect();
    rig.now = rig.now.plus_ns(1_000_000);
    answers(&mut rig, ports);
    for port in turned_away {
        rig.one(2, &answer(2, port, RST | ACK, (500, 100)));
    }
    assert_eq!((of_first(&rig).ended, of_first(&rig).ejections), (10, 0));
}

#[test]
fn an_open_port_does_not_end_the_ejection_of_who_ends_what_he_accepts() {
    let http = Ask::Http(Http { path: "/health".to_owned(), ..Http::default() });
    for (ask, lifts) in [(Ask::Port, false), (http, true)] {
        let mut rig = checked(ask);
        let wait = |rig: &mut Rig, seconds: u64| {
            let until = after(rig, seconds);
            run(rig, until, |_, bytes| open(bytes, "200"));
        };
        wait(&mut rig, 3);
        let ports = &mut (1..1000);
        for round in 1.. {
            // All that come before the first one fails: it gets no more until the next check.
            let most = if lifts { 12 } else { 2 };
            let opened: Vec<u16> = ports.by_ref().take(most).filter(|&port| connect(&mut rig, port) == 2).collect();
            for port in opened {
                at_once(&mut rig, 2, &answer(2, port, RST | ACK, (500, 100)));
            }
            if is_ejected(&rig) {
                break;
            }
            assert!(!lifts && round < 5);
            wait(&mut rig, 2);
        }
        assert!(is_ejected(&rig));
        wait(&mut rig, 10);
        assert_eq!(is_ejected(&rig), !lifts);
    }
}

#[test]
fn who_takes_over_takes_nothing_of_an_older_process_for_an_end_at_once() {
    let mut before = rig(Policy::RoundRobin);
    let port = open_first(&mut before, &mut (1..10));
    let state = before.switch.export(before.now);
    let mut next = rig(Policy::RoundRobin);
    next.now = before.now;
    next.switch.import(next.now, 0, &state).expect("the same version");
    assert_eq!(next.one(2, &answer(2, port, RST | ACK, (500, 100))).0, 1);
    assert_eq!(of_first(&next).ended, 0);
}
