//! Backends that may have only so many connections: who comes beyond that waits, or is refused.

use super::*;
use crate::bond::{BondSettings, MemberState, Mode};

const SECOND: u64 = 1_000_000_000;

fn limited(most: u32, hold_ns: u64) -> Service {
    let mut two = service(Policy::RoundRobin, vec![backend(2, Some(1)), backend(3, Some(2))]);
    two.hold_ns = hold_ns;
    two.backends.iter_mut().for_each(|backend| backend.max_connections = Some(most));
    two
}

fn held(most: u32) -> Rig {
    let mut rig = rig(Policy::RoundRobin);
    rig.change_service(limited(most, 3 * SECOND));
    rig
}

/// Sends a frame, explained alike, and says what leaves at once.
fn now_only(rig: &mut Rig, port: u32, frame: &build::Build<'_>) -> Vec<(u32, Vec<u8>)> {
    let frame = frame.frame(&mut rig.pool).expect("a buffer");
    let explained = rig.switch.explain(&rig.pool, rig.now, PortId(port), &frame);
    assert_eq!(rig.switch.rx(&mut rig.pool, rig.now, PortId(port), frame), explained.verdict, "{explained}");
    out(rig)
}

fn out(rig: &mut Rig) -> Vec<(u32, Vec<u8>)> {
    let mut out = Vec::new();
    while let Some((port, frame)) = rig.switch.tx(&mut rig.pool, rig.now) {
        out.push((port.0, rig.pool.bytes(&frame).to_vec()));
        rig.pool.free(frame);
    }
    assert_eq!(rig.pool.in_use(), 0);
    out
}

fn stats(rig: &Rig) -> (u64, u32, u64) {
    let stats = rig.switch.service_stats(FIRST).unwrap();
    (stats.held, stats.holding, stats.refused)
}

/// The client resets a connection.
fn end(rig: &mut Rig, port: u16) -> Vec<(u32, Vec<u8>)> {
    now_only(rig, 1, &ask(port, RST, (100, 0)))
}

fn client(port: u16) -> build::Build<'static> {
    ask(port, SYN, (99, 0))
}

#[test]
fn who_waits_gets_the_first_place_that_is_free_in_turn() {
    let mut rig = held(1);
    assert_eq!([rig.open(1), rig.open(2)], [2, 3]);
    for port in 3..6 {
        assert_eq!(now_only(&mut rig, 1, &client(port)), []);
    }
    assert_eq!(stats(&rig), (3, 3, 0));
    // Sent again it is swallowed.
    rig.now = rig.now.plus_ns(SECOND);
    assert_eq!(now_only(&mut rig, 1, &client(3)), []);
    assert_eq!(stats(&rig), (3, 3, 0));
    // The first place that is free is the first one's, as its client had sent it.
    let freed = end(&mut rig, 2);
    assert_eq!(freed[1..], [(3, tcp((1, 3), (3, 8080), SYN, (99, 0)).bytes())]);
    let freed = end(&mut rig, 1);
    assert_eq!(freed[1..], [(2, tcp((1, 4), (2, 8080), SYN, (99, 0)).bytes())]);
    assert_eq!(stats(&rig), (3, 1, 0));
    // It goes on as any other.
    let (to, _) = rig.one(3, &answer(3, 3, SYN_ACK, (499, 100)));
    assert_eq!(to, 1);
    assert_eq!(rig.one(1, &ask(3, ACK, (100, 500))).0, 3);
}

#[test]
fn nobody_who_comes_later_is_served_before_who_waits() {
    let mut rig = held(1);
    rig.open(1);
    rig.open(2);
    now_only(&mut rig, 1, &client(3));
    // A place is free, and another comes before that is seen.
    let frame = ask(1, RST, (100, 0)).frame(&mut rig.pool).unwrap();
    rig.switch.rx(&mut rig.pool, rig.now, PortId(1), frame);
    let frame = client(4).frame(&mut rig.pool).unwrap();
    rig.switch.rx(&mut rig.pool, rig.now, PortId(1), frame);
    let left = out(&mut rig);
    assert!(left.contains(&(2, tcp((1, 3), (2, 8080), SYN, (99, 0)).bytes())), "{left:?}");
    assert_eq!(stats(&rig), (2, 1, 0));
}

#[test]
fn when_its_time_is_over_it_is_refused() {
    let mut rig = held(1);
    rig.open(1);
    rig.open(2);
    now_only(&mut rig, 1, &client(3));
    let until = rig.now.plus_ns(3 * SECOND);
    assert_eq!(rig.switch.poll_timeout(), Some(until));
    rig.now = until;
    let reset = eth(MAC, mac(1)).ipv4(ip(100), ip(1)).tcp(80, 3, 0).ack(100, 0).flags(RST | ACK);
    assert_eq!(out(&mut rig), [(1, reset.ttl(64).bytes())]);
    assert_eq!(stats(&rig), (1, 0, 1));
    // Without a time to wait it is refused at once; so is a datagram.
    rig.change_service(limited(1, 0));
    assert_eq!(now_only(&mut rig, 1, &client(4)).len(), 1);
    let query = eth(mac(1), MAC).ipv4(ip(1), ip(100)).udp(5000, 53);
    assert_eq!(
        Icmp::of(&now_only(&mut rig, 1, &query)[0].1, &parse(&now_only(&mut rig, 1, &query)[0].1).unwrap())
            .unwrap()
            .kind(),
        3
    );
}

#[test]
fn a_client_outside_waits_and_is_told_in_its_vlan() {
    let mut rig = held(1);
    rig.open(1);
    rig.open(2);
    let far = tcp((77, 5), (100, 80), SYN, (1, 0)).vlan(10);
    assert_eq!(now_only(&mut rig, 0, &far), []);
    assert_eq!(now_only(&mut rig, 0, &tcp((77, 6), (100, 80), SYN, (1, 0)).vlan(10)), []);
    assert_eq!(end(&mut rig, 1)[1..], [(2, tcp((77, 5), (2, 8080), SYN, (1, 0)).bytes())]);
    rig.now = rig.now.plus_ns(3 * SECOND);
    let out = out(&mut rig);
    assert_eq!((out.len(), out[0].0), (1, 0));
    let layout = parse(&out[0].1).unwrap();
    assert_eq!((layout.vlan, Tcp::of(&out[0].1, &layout).unwrap().flags()), (Some(10), RST | ACK));
}

#[test]
fn what_waits_is_bounded_and_a_flood_of_one_leaves_others_room() {
    let mut rig = held(1);
    rig.open(1);
    rig.open(2);
    let mut refused = 0;
    for port in 1000..5000 {
        refused += now_only(&mut rig, 1, &client(port)).len();
    }
    // Its part of its tenant's places and of the common ones.
    let (of_one, all): (u32, u64) = (256 + 1366, 4000);
    assert_eq!(stats(&rig), (of_one.into(), of_one, all - u64::from(of_one)));
    assert_eq!(refused as u32, 4000 - of_one, "each is told");
    for port in 1000..1256 {
        assert_eq!(now_only(&mut rig, 4, &tcp((4, port), (100, 80), SYN, (1, 0))), []);
    }
    assert_eq!(stats(&rig).1, of_one + 256);
    // Who is gone waits no more, and nobody else has its place.
    rig.switch.change(&mut rig.pool, rig.now, crate::program::Change::Endpoint(EndpointId(3), None)).unwrap();
    assert_eq!(stats(&rig).1, of_one);
    rig.switch.change(&mut rig.pool, rig.now, crate::program::Change::Service(FIRST, None)).unwrap();
    rig.now = rig.now.plus_ns(4 * SECOND);
    assert_eq!(out(&mut rig), []);
    rig.switch
        .change(&mut rig.pool, rig.now, crate::program::Change::Service(FIRST, Some(limited(1, SECOND))))
        .unwrap();
    rig.open(1);
    rig.open(2);
    assert_eq!(now_only(&mut rig, 1, &client(1000)), [], "there is room again");
}

#[test]
fn a_thousand_of_one_client_at_once_wait() {
    let mut rig = held(4);
    for port in 1..=8 {
        rig.open(port);
    }
    for port in 9..=1000 {
        assert_eq!(now_only(&mut rig, 1, &client(port)), [], "{port} is refused");
    }
    assert_eq!(stats(&rig), (992, 992, 0));
}

#[test]
fn a_backend_that_nobody_may_have_more_of_is_no_second_try() {
    let mut rig = held(1);
    rig.open(1);
    // Connection 2 is at backend 3; it refuses, and the other is full.
    assert_eq!(rig.one(1, &client(2)).0, 3);
    let out = now_only(&mut rig, 3, &answer(3, 2, RST | ACK, (0, 100)));
    assert_eq!((out.len(), out[0].0), (1, 1), "the client is told");
}

#[test]
fn who_waits_gets_a_backend_whose_ejection_ends() {
    let mut rig = rig(Policy::RoundRobin);
    rig.change_service(Service { hold_ns: 100 * SECOND, panic_ppm: 0, ..limited(5, 0) });
    // The first backend refuses until it is ejected; the other one takes them all, and is full.
    for port in 1..=5 {
        let out = now_only(&mut rig, 1, &client(port));
        if out[0].0 == 2 {
            let again = now_only(&mut rig, 2, &answer(2, port, RST | ACK, (0, 100)));
            assert_eq!(again[0].0, 3, "{again:?}");
        }
        rig.one(3, &answer(3, port, SYN_ACK, (499, 100)));
        rig.one(1, &ask(port, ACK, (100, 500)));
    }
    let ejected = |rig: &Rig| rig.switch.service_backends(FIRST).next().unwrap().2.ejected_until;
    let mut port = 100;
    while ejected(&rig).is_none() {
        let out = now_only(&mut rig, 1, &client(port));
        assert_eq!(out[0].0, 2, "the other is full");
        now_only(&mut rig, 2, &answer(2, port, RST | ACK, (0, 100)));
        port += 1;
    }
    assert_eq!(now_only(&mut rig, 1, &client(500)), [], "it waits");
    let until = ejected(&rig).unwrap();
    while let Some(due) = rig.switch.poll_timeout().filter(|&due| due < until) {
        rig.now = rig.now.max(due);
        assert_eq!(out(&mut rig), []);
    }
    assert_eq!(rig.switch.poll_timeout(), Some(until));
    rig.now = until;
    assert_eq!(out(&mut rig), [(2, tcp((1, 500), (2, 8080), SYN, (99, 0)).bytes())]);
}

#[test]
fn flows_that_are_over_make_room_where_all_is_full() {
    let mut rig = held(1);
    let query = |port| eth(mac(1), MAC).ipv4(ip(1), ip(100)).udp(port, 53).payload(vec![1; 9]);
    assert_eq!([5000, 5001].map(|port| rig.one(1, &query(port)).0), [2, 3]);
    assert_eq!(now_only(&mut rig, 1, &query(5002))[0].0, 1, "it is refused");
    rig.now = rig.now.plus_ns(121 * SECOND);
    now_only(&mut rig, 1, &query(5003));
    assert!([2, 3].contains(&rig.one(1, &query(5004)).0), "30 s one-way, 120 s both ways");
    // So do connections that nobody answers, where nobody waits.
    let mut rig = rig_without_hold();
    for port in 1..=2 {
        now_only(&mut rig, 1, &client(port));
    }
    assert_eq!(now_only(&mut rig, 1, &client(3))[0].0, 1, "it is refused");
    rig.now = rig.now.plus_ns(11 * SECOND);
    now_only(&mut rig, 1, &client(4));
    assert!([2, 3].contains(&now_only(&mut rig, 1, &client(5))[0].0));
}

fn rig_without_hold() -> Rig {
    let mut rig = rig(Policy::RoundRobin);
    rig.change_service(limited(1, 0));
    rig
}

#[test]
fn a_backend_that_calls_itself_keeps_nobody_waiting() {
    let mut rig = held(1);
    assert_eq!([rig.open(1), rig.open(2)], [2, 3]);
    end(&mut rig, 1);
    // The first one has a place, the other is full, and the first one asks.
    let out = now_only(&mut rig, 2, &tcp((2, 7), (100, 80), SYN, (1, 0)));
    assert_eq!(out[0].0, 2, "there is no other: {out:?}");
    assert_eq!(now_only(&mut rig, 1, &client(3)), [], "now both are full");
    // Of those who wait, the first for whom there is a place gets it.
    let mut rig = held(1);
    assert_eq!([rig.open(1), rig.open(2)], [2, 3]);
    let outside = tcp((77, 5), (100, 80), SYN, (1, 0)).vlan(10);
    assert_eq!(now_only(&mut rig, 0, &outside), []);
    assert_eq!(now_only(&mut rig, 1, &client(3)), []);
    let freed = end(&mut rig, 1);
    assert!(freed[1..].iter().any(|(to, _)| *to == 2), "{freed:?}");
}

#[test]
fn an_answer_to_outside_that_cannot_leave_is_counted() {
    let mut rig = Rig::new(&[Attachment::Vlan(10)], &[(0, 1), (0, 2), (0, 3), (0, 4)], |program| {
        let settings = BondSettings { mode: Mode::ActiveBackup, ..BondSettings::default() };
        program.uplink.as_mut().expect("it is there").bond = Some(settings);
        program.services.push(limited(1, 3 * SECOND));
    });
    let member = crate::program::MemberId(0);
    let set = |rig: &mut Rig, state| {
        rig.switch.set_member_state(&mut rig.pool, rig.now, member, state);
        rig.switch.set_active_member(&mut rig.pool, rig.now, Some(member));
    };
    set(&mut rig, MemberState::Distributing);
    rig.open(1);
    rig.open(2);
    assert_eq!(now_only(&mut rig, 0, &tcp((77, 5), (100, 80), SYN, (1, 0)).vlan(10)), []);
    set(&mut rig, MemberState::Down);
    rig.now = rig.now.plus_ns(3 * SECOND);
    assert_eq!(out(&mut rig), []);
    assert_eq!(stats(&rig), (1, 0, 1));
    assert_eq!(rig.switch.uplink_drops().nonzero().collect::<Vec<_>>(), [(Reason::PortDown, 1)]);
}

#[test]
fn what_goes_that_had_no_place_has_nobody_looked_for() {
    let mut rig = held(1);
    rig.switch.change(&mut rig.pool, rig.now, crate::program::Change::Connections(1024)).expect("it fits");
    rig.open(1);
    rig.open(2);
    assert_eq!(now_only(&mut rig, 1, &client(3)), []);
    let until = rig.now.plus_ns(3 * SECOND);
    // Connections that nobody knows: of these the oldest goes each time.
    for port in 10_000..11_000 {
        let frame = ask(port, ACK, (100, 500)).frame(&mut rig.pool).expect("a buffer");
        rig.switch.rx(&mut rig.pool, rig.now, PortId(1), frame);
        assert_eq!(rig.switch.services.held_due(), Some(until), "{port}");
        out(&mut rig);
    }
    let counted = rig.switch.service_stats(FIRST).expect("it is there");
    assert!(counted.evicted > 500, "{counted:?}");
}

#[test]
fn many_who_wait_are_let_go_bit_by_bit() {
    let mut rig = held(1);
    rig.open(1);
    rig.open(2);
    for port in 1000..1100 {
        assert_eq!(now_only(&mut rig, 1, &client(port)), []);
    }
    rig.change_service(limited(1000, 3 * SECOND));
    for left in [68, 36, 4, 0, 0] {
        let before = stats(&rig).1;
        let mut sent = 0;
        while let Some((_, frame)) = rig.switch.tx_due(&mut rig.pool, rig.now) {
            rig.pool.free(frame);
            sent += 1;
        }
        assert_eq!((stats(&rig).1, before - left), (left, sent));
        let is_due = rig.switch.poll_due().is_some_and(|due| due <= rig.now);
        assert_eq!(is_due, left > 0, "what is left is due");
    }
    // A shell without turns of its own gets them all.
    for port in 2000..2100 {
        rig.change_service(limited(1, 3 * SECOND));
        assert_eq!(now_only(&mut rig, 1, &client(port)), []);
    }
    rig.change_service(limited(1000, 3 * SECOND));
    assert_eq!((out(&mut rig).len(), stats(&rig).1), (100, 0));
}

#[test]
fn services_for_which_many_wait_are_served_by_turns() {
    let mut rig = held(1);
    let other = |most: u32| {
        let address = Address { ip: ip(101).into(), protocol: protocol::TCP, port: 80 };
        let mut backend = backend(4, Some(3));
        backend.max_connections = Some(most);
        Service { mac: mac(101), addresses: vec![address], backends: vec![backend], ..limited(most, 3 * SECOND) }
    };
    let change = |rig: &mut Rig, most| {
        let change = crate::program::Change::Service(ServiceId(1), Some(other(most)));
        rig.switch.change(&mut rig.pool, rig.now, change).expect("it fits");
    };
    change(&mut rig, 1);
    rig.open(1);
    rig.open(2);
    let to_other = |port| eth(mac(1), mac(101)).ipv4(ip(1), ip(101)).tcp(port, 80, 99).flags(SYN);
    assert_eq!(now_only(&mut rig, 1, &to_other(9)).len(), 1);
    for port in 1000..1040 {
        assert_eq!(now_only(&mut rig, 1, &client(port)), []);
        assert_eq!(now_only(&mut rig, 1, &to_other(port)), []);
    }
    rig.change_service(limited(1000, 3 * SECOND));
    change(&mut rig, 1000);
    while let Some((_, frame)) = rig.switch.tx_due(&mut rig.pool, rig.now) {
        rig.pool.free(frame);
    }
    let waiting = [0, 1].map(|id| rig.switch.service_stats(ServiceId(id)).unwrap().holding);
    assert_eq!(waiting, [24, 24], "of 32 each has let half go");
    assert_eq!(out(&mut rig).len(), 48, "and then all the others");
}

#[test]
fn backends_that_wait_for_others_cost_as_much_as_anybody() {
    let (others, backends) = (2..100u8, 101..200u8);
    // None has the service's address.
    let port = |n: u8| u32::from(if n < 100 { n } else { n - 1 });
    let time = |clients: std::ops::Range<u8>| {
        let endpoints: Vec<(u32, u8)> = (1..100).chain(backends.clone()).map(|n| (0, n)).collect();
        let all = backends.clone().map(|n| Backend { max_connections: Some(1), ..backend(n, Some(port(n) - 1)) });
        let service = Service { hold_ns: 3 * SECOND, ..service(Policy::RoundRobin, all.collect()) };
        let mut rig = Rig::new(&[Attachment::Vlan(10)], &endpoints, |program| {
            program.services.push(service.clone());
        });
        for from in 0..99 {
            assert_eq!(now_only(&mut rig, 1, &client(5000 + from)).len(), 1);
        }
        for n in clients {
            for from in 1..=10 {
                assert_eq!(now_only(&mut rig, port(n), &tcp((n, from), (100, 80), SYN, (1, 0))), []);
            }
        }
        let once = || {
            rig.change_service(service.clone());
            let began = std::time::Instant::now();
            assert!(rig.switch.services.next_held(rig.now).is_none());
            began.elapsed()
        };
        std::iter::repeat_with(once).take(9).min().expect("several")
    };
    let (few, many) = (time(others), time(backends.clone()));
    assert!(many < few * 8, "{few:?} of others, {many:?} of backends");
}
