//! Affinity: a client stays at its backend.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn sticky(policy: Policy) -> Service {
    let four = vec![backend(2, Some(1)), backend(3, Some(2)), backend(4, Some(3))];
    Service { affinity_ns: 600 * SECOND, ..service(policy, four) }
}

/// The backend of a new connection of a client outside.
fn far(rig: &mut Rig, client: u8, port: u16) -> u32 {
    rig.one(0, &tcp((client, port), (100, 80), SYN, (1, 0)).vlan(10)).0
}

#[test]
fn a_client_stays_until_it_was_away_for_long() {
    for policy in [Policy::RoundRobin, Policy::Random, Policy::P2c, Policy::LeastInflight] {
        let mut rig = rig(policy);
        rig.change_service(sticky(policy));
        let first: Vec<u32> = (60..90).map(|client| far(&mut rig, client, 1)).collect();
        assert!((2..=4).all(|backend| first.contains(&backend)), "{policy:?} {first:?}");
        for port in 2..5 {
            rig.now = rig.now.plus_ns(500 * SECOND);
            let again: Vec<u32> = (60..90).map(|client| far(&mut rig, client, port)).collect();
            assert_eq!(first, again, "{policy:?}");
        }
        assert_eq!(rig.switch.service_stats(FIRST).unwrap().stayed, 90);
        // Away for longer than that, it is chosen for anew.
        rig.now = rig.now.plus_ns(601 * SECOND);
        for client in 60..90 {
            far(&mut rig, client, 9);
        }
        assert_eq!(rig.switch.service_stats(FIRST).unwrap().stayed, 90, "{policy:?}");
    }
}

#[test]
fn it_leaves_a_backend_that_takes_no_connections() {
    let mut rig = rig(Policy::RoundRobin);
    rig.change_service(sticky(Policy::RoundRobin));
    let first = far(&mut rig, 60, 1);
    let mut drained = sticky(Policy::RoundRobin);
    drained.backends[first as usize - 2].weight = 0;
    rig.change_service(drained);
    let second = far(&mut rig, 60, 2);
    assert_ne!(second, first);
    // It does not come back when that one does.
    rig.change_service(sticky(Policy::RoundRobin));
    assert_eq!(far(&mut rig, 60, 3), second);
    // Another that gets the number is not the old one.
    let mut others = sticky(Policy::RoundRobin);
    others.backends.remove(second as usize - 2);
    rig.change_service(others);
    assert_ne!(far(&mut rig, 60, 4), second);
}

#[test]
fn who_has_nothing_open_stays_over_a_takeover() {
    let mut before = rig(Policy::RoundRobin);
    before.change_service(sticky(Policy::RoundRobin));
    let first: Vec<u32> = (60..90).map(|client| far(&mut before, client, 1)).collect();
    // One comes back, and is away for less long than the others.
    before.now = before.now.plus_ns(500 * SECOND);
    assert_eq!(far(&mut before, 60, 2), first[0]);
    let state = before.switch.export(before.now);
    assert_eq!(state.services[0].1.clients.len(), 30);
    for (away_s, stay) in [(0, 30), (99, 30), (101, 1)] {
        let mut after = rig(Policy::RoundRobin);
        after.change_service(sticky(Policy::RoundRobin));
        after.now = before.now.plus_ns(away_s * SECOND);
        after.switch.import(after.now, away_s * SECOND, &state).expect("the same version");
        assert_eq!(after.switch.export(after.now).services[0].1.clients.len(), stay as usize);
        let again: Vec<u32> = (60..90).rev().map(|client| far(&mut after, client, 3)).rev().collect();
        assert_eq!(again == first, stay == 30, "{away_s}");
        assert_eq!(after.switch.service_stats(FIRST).unwrap().stayed, 1 + stay);
    }
}

#[test]
fn a_client_is_not_away_while_a_connection_of_it_is_used() {
    let mut rig = rig(Policy::RoundRobin);
    rig.change_service(sticky(Policy::RoundRobin));
    let segment = |port, numbers| tcp((60, port), (100, 80), ACK, numbers).vlan(10);
    let at = far(&mut rig, 60, 1);
    let back = tcp((at as u8, 8080), (60, 1), SYN_ACK, (499, 2));
    rig.one(at, &back);
    for round in 0..4 {
        assert_eq!(rig.one(0, &segment(1, (2, 500))).0, at);
        rig.now = rig.now.plus_ns(300 * SECOND);
        far(&mut rig, 61 + round, 1);
    }
    assert_eq!(far(&mut rig, 60, 2), at, "it has used its first connection 300 s ago");
    rig.now = rig.now.plus_ns(601 * SECOND);
    let others: Vec<u32> = (3..6).map(|port| far(&mut rig, 60, port)).collect();
    assert_eq!(rig.switch.service_stats(FIRST).unwrap().stayed, 3, "{others:?}");
}

#[test]
fn syns_of_many_addresses_make_no_client_forgotten_that_has_a_connection() {
    let mut rig = rig(Policy::RoundRobin);
    rig.change_service(sticky(Policy::RoundRobin));
    let at = rig.open(1);
    let mut syn = |n: u32| {
        let [_, _, b, c] = n.to_be_bytes();
        let frame = eth(mac(77), MAC).ipv4([10, 9, b, c].into(), ip(100)).tcp(1, 80, 9).flags(SYN).vlan(10);
        rig.send(0, &frame)
    };
    for n in 0..20_000 {
        assert_eq!(syn(n).0, FORWARDED);
    }
    assert_eq!([2, 3, 4].map(|port| rig.one(1, &ask(port, SYN, (99, 0))).0), [at.into(); 3]);
    assert_eq!(rig.switch.service_stats(FIRST).expect("it is there").stayed, 3);
}

#[test]
fn a_second_syn_or_a_made_up_acknowledgement_shows_no_client() {
    let mut rig = rig(Policy::RoundRobin);
    rig.change_service(sticky(Policy::RoundRobin));
    let at = far(&mut rig, 60, 1);
    rig.one(at, &tcp((at as u8, 8080), (60, 1), SYN_ACK, (499, 2)));
    rig.one(0, &tcp((60, 1), (100, 80), ACK, (2, 500)).vlan(10));
    let made_up = |n: u32, flags, numbers: (u32, u32)| {
        let [_, _, b, c] = n.to_be_bytes();
        let frame = eth(mac(77), MAC).ipv4([10, 9, b, c].into(), ip(100)).tcp(1, 80, numbers.0);
        frame.flags(flags).ack(numbers.1, 1000).vlan(10)
    };
    for n in 0..20_000 {
        let backend = rig.one(0, &made_up(n, SYN, (9, 0))).0;
        let [_, _, b, c] = n.to_be_bytes();
        let answer = eth(mac(backend as u8), mac(77)).ipv4(ip(backend as u8), [10, 9, b, c].into());
        rig.send(backend, &answer.tcp(8080, 1, 499).flags(SYN_ACK).ack(10, 1000));
        if n % 2 == 0 {
            rig.one(0, &made_up(n, ACK, (10, 12_345)));
        }
        if n % 4096 == 4095 {
            rig.now = rig.now.plus_ns(2 * SECOND);
            for again in n - 4095..=n {
                rig.send(0, &made_up(again, SYN, (9, 0)));
            }
        }
    }
    let before = rig.switch.service_stats(FIRST).unwrap().stayed;
    assert_eq!([2, 3, 4].map(|port| far(&mut rig, 60, port)), [at; 3]);
    assert_eq!(rig.switch.service_stats(FIRST).unwrap().stayed - before, 3);
}

#[test]
fn who_gets_the_number_of_a_service_that_is_no_more_knows_none_of_its_clients() {
    let mut rig = rig(Policy::RoundRobin);
    rig.change_service(sticky(Policy::RoundRobin));
    // Its tenant has another such service, whose clients stay.
    let addresses = vec![Address { ip: ip(101).into(), protocol: protocol::TCP, port: 80 }];
    let beside = Service { mac: mac(101), addresses, ..sticky(Policy::RoundRobin) };
    let change = |rig: &mut Rig, id, service| {
        let change = crate::program::Change::Service(id, service);
        rig.switch.change(&mut rig.pool, rig.now, change).expect("it fits");
    };
    let other = ServiceId(1);
    change(&mut rig, other, Some(beside));
    // From ports of its own: one that a backend knows already goes to another.
    let ask_other = |rig: &mut Rig, port| rig.one(0, &tcp((60, port), (101, 80), SYN, (1, 0)).vlan(10)).0;
    let at = ask_other(&mut rig, 1001);
    for client in 60..90 {
        far(&mut rig, client, 1);
    }
    change(&mut rig, FIRST, None);
    rig.change_service(sticky(Policy::RoundRobin));
    for client in 60..90 {
        far(&mut rig, client, 2);
    }
    assert_eq!(rig.switch.service_stats(FIRST).expect("it is there").stayed, 0);
    assert_eq!(ask_other(&mut rig, 1002), at);
    assert_eq!(rig.switch.service_stats(other).expect("it is there").stayed, 1);
}
