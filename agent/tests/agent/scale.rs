//! Many endpoints and many hosts: how much agents talk, and that shares hold.

use crate::share::ideal;
use crate::world::{Load, MBIT, MS, Receiver, World};
use agent::message::MAX_DATAGRAM;
use agent::report::Ignores;
use datapath::units::Instant;
use sim::random::Random;

#[test]
fn a_hundred_endpoints_and_fifty_hosts_take_at_most_500_datagrams_a_second() {
    let tenants = ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9"];
    let receivers: Vec<Receiver> = (0..100).map(|n| Receiver::of(tenants[n / 10], (n % 10) as f64)).collect();
    let mut random = Random::new(3);
    let mut demands = vec![0.0; receivers.len()];
    let mut flows = Vec::new();
    for n in 0..250 {
        let (to, mbit) = (n % 100, random.range(1, 40) as f64);
        demands[to] += mbit;
        flows.push((1 + n % 50, to as u32, Load::Open(mbit * MBIT)));
    }
    let mut world = World::new(&receivers, &flows);
    world.run(2000 * MS);
    let before = world.datagrams[0];
    let shares = world.shares(2000 * MS);
    let a_second = (world.datagrams[0] - before) / 2;
    assert!(a_second <= 500, "{a_second} datagrams a second");
    assert!(world.longest <= MAX_DATAGRAM);
    let total: f64 = shares.iter().sum();
    assert!(total >= 0.97 * 1000.0 * MBIT, "{} Mbit/s", total / MBIT);
    let ideal = ideal(&receivers, &demands);
    let off = shares.iter().zip(&ideal).map(|(got, wanted)| (got - wanted).abs() / wanted).fold(0.0, f64::max);
    assert!(off <= 0.1, "{off}: {shares:?}\n{ideal:?}");
}

/// A hundred senders to twenty endpoints, each of which wants four times what it gets, and one
/// endpoint more, with a sender that is silent.
fn crowd() -> World {
    let mut receivers = vec![Receiver::of("b", 10.0); 20];
    receivers.insert(0, Receiver::of("a", 300.0));
    let mut flows = vec![(1, 0, Load::Open(0.0))];
    flows.extend((0..100).map(|n| (1 + n % 25, 1 + n as u32 % 20, Load::Open(40.0 * MBIT))));
    let mut world = World::new(&receivers, &flows);
    world.run(600 * MS);
    assert_eq!(world.limits.len(), 100);
    world
}

#[test]
fn one_among_a_hundred_that_ignores_its_limit_is_named() {
    let mut world = crowd();
    let named = |world: &World| -> Vec<_> {
        let report = world.agents[0].report(Instant(world.now));
        report.limited.iter().filter_map(|limited| Some((limited.from, limited.ignores?))).collect()
    };
    assert_eq!(named(&world), []);
    world.flows[7].heeds = false;
    world.run(150 * MS);
    assert_eq!(named(&world), [(world.flows[7].mac, Ignores::Limit)]);
    world.flows[7].heeds = true;
    world.run(300 * MS);
    assert_eq!(named(&world), []);
}

#[test]
fn what_is_told_in_parts_is_all() {
    let world = crowd();
    let (agent, now) = (&world.agents[0], Instant(world.now));
    let (mut all, mut parts, mut from) = (Vec::new(), 0, Some(0));
    while let Some(receiver) = from {
        let (report, next) = agent.report_part(now, receiver, (16, 2048));
        assert!(report.limited.len() < 16 + 5 && report.peers.is_empty() == (receiver > 0));
        all.extend(report.limited);
        (parts, from) = (parts + 1, next);
    }
    let whole = agent.report(now);
    assert_eq!((&all, all.len(), parts), (&whole.limited, 100, 5));
    // Of many receivers that nobody sends too much to, some are looked at at a time.
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(receiver) = from {
        let (report, next) = agent.report_part(now, receiver, (u32::MAX, 1));
        assert!(next.is_none_or(|next| next == receiver + 1));
        all.extend(report.limited);
        from = next;
    }
    assert_eq!(all, whole.limited);
}

#[test]
fn a_hundred_limited_senders_make_room_at_once_for_one_that_is_promised_more() {
    let mut world = crowd();
    world.flows[0].load = Load::Open(300.0 * MBIT);
    let took = world.time_until_restored(0, 300.0 * MBIT, 100 * MS);
    assert!(took.is_some_and(|ns| ns <= 10 * MS), "{took:?} ns");
}
