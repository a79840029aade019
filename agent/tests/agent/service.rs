//! Senders that reach their receivers by a service: what they are held to is told for its address.

use crate::world::{FABRIC, Load, MBIT, MS, Receiver, SERVICE, World};
use agent::events::Toward;

const GUARANTEE: f64 = 735.0;

/// A victim within its guarantee, and a service of another tenant with two backends that have the
/// rest, which `senders` flood.
fn world(senders: usize) -> World {
    let receivers = [Receiver::of("a", GUARANTEE), Receiver::of("b", 122.0), Receiver::of("b", 122.0)];
    let mut flows = vec![(1, 0, Load::Open(GUARANTEE * MBIT))];
    flows.extend((0..2 * senders).map(|n| (2 + n / 2, 1 + n as u32 % 2, Load::Open(0.0))));
    World::new(&receivers, &flows).serving(&[1, 2])
}

#[test]
fn a_flood_toward_a_service_is_held_at_its_senders() {
    for senders in [1, 4, 15] {
        let mut world = world(senders);
        world.run(200 * MS);
        for flow in &mut world.flows[1..] {
            flow.load = Load::Open(500.0 * MBIT);
        }
        let took = world.time_until_restored(0, GUARANTEE * MBIT, 100 * MS);
        assert!(took.is_some_and(|ns| ns <= 6 * MS), "{senders} senders: {took:?} ns");
        world.run(100 * MS);
        assert!(world.limits.keys().any(|(.., to)| *to == Toward::Address(SERVICE)), "{:?}", world.limits);
        let lost = world.flows[0].lost;
        let shares = world.shares(500 * MS);
        assert!(world.standing < 0.2 * FABRIC, "{senders} senders: {} bytes stand in the network", world.standing);
        assert!(shares[0] >= 0.995 * GUARANTEE * MBIT, "{senders} senders: {shares:?}");
        assert!(shares[1] + shares[2] >= 0.98 * 244.0 * MBIT, "{senders} senders: {shares:?}");
        assert!(world.flows[0].lost <= lost, "nothing is lost any more");
        // One backend has all, then both are silent.
        for flow in world.flows[1..].iter_mut().skip(1).step_by(2) {
            flow.load = Load::Open(0.0);
        }
        world.run(300 * MS);
        let shares = world.shares(500 * MS);
        assert!(shares[0] >= 0.995 * GUARANTEE * MBIT, "{senders} senders, one backend: {shares:?}");
        assert!(shares[1] >= 0.97 * 244.0 * MBIT, "{senders} senders, one backend: {shares:?}");
        for flow in &mut world.flows[1..] {
            flow.load = Load::Open(0.0);
        }
        world.run(800 * MS);
        assert!(world.limits.is_empty(), "{:?}", world.limits);
    }
}

/// Each address of a receiver is held by itself at the sender's switch; together they may have no
/// more than what the receiver may.
#[test]
fn a_receiver_with_several_addresses_gets_no_more_than_with_one() {
    for senders in [1, 4, 15] {
        for addresses in [2, 4] {
            let receivers = [Receiver::of("a", GUARANTEE), Receiver::of("b", 245.0)];
            let mut flows = vec![(1, 0, Load::Open(GUARANTEE * MBIT))];
            let flow = |n| (2 + n / usize::from(addresses), 1, Load::Open(0.0));
            flows.extend((0..senders * usize::from(addresses)).map(flow));
            let mut world = World::new(&receivers, &flows).with_addresses(1, addresses);
            world.run(200 * MS);
            for flow in &mut world.flows[1..] {
                flow.load = Load::Open(250.0 * MBIT);
            }
            world.run(200 * MS);
            let lost = world.flows[0].lost;
            for _ in 0..5 {
                let shares = world.shares(200 * MS);
                let of = format!("{senders} senders to {addresses} addresses: {shares:?}");
                assert!(shares[0] >= 0.995 * GUARANTEE * MBIT, "{of}");
                assert!(shares[1] >= 0.93 * 245.0 * MBIT, "{of}");
            }
            assert!(world.flows[0].lost <= lost, "nothing is lost any more");
            let now = datapath::units::Instant(world.now);
            let limited = world.agents[0].report(now).limited;
            assert!(limited.iter().all(|one| one.ignores.is_none()), "{limited:?}");
            // One address has it all.
            for flow in world.flows[1..].iter_mut().filter(|flow| flow.wire_to != world_address()) {
                flow.load = Load::Open(0.0);
            }
            world.run(300 * MS);
            let shares = world.shares(200 * MS);
            assert!(shares[0] >= 0.995 * GUARANTEE * MBIT, "{senders} senders, one address: {shares:?}");
            assert!(shares[1] >= 0.93 * 245.0 * MBIT, "{senders} senders, one address: {shares:?}");
        }
    }
}

/// The first address of the receiver that has several.
fn world_address() -> datapath::wire::Mac {
    crate::world::receiver_mac(1)
}

/// A sender that sends a little to each of sixteen backends has no more for the one that it floods,
/// and what it sent to one before is nothing that it may send to another now.
#[test]
fn what_a_service_may_have_elsewhere_is_not_added_up_for_one_backend() {
    const BACKENDS: u32 = 16;
    let mut receivers = vec![Receiver::of("a", GUARANTEE)];
    receivers.extend((0..BACKENDS).map(|_| Receiver::of("b", 15.0)));
    let mut flows = vec![(1, 0, Load::Open(GUARANTEE * MBIT))];
    flows.extend((0..BACKENDS).map(|n| (2, 1 + n, Load::Open(0.0))));
    let mut world = World::new(&receivers, &flows).serving(&(1..=BACKENDS).collect::<Vec<_>>());
    world.run(200 * MS);
    let flood = |world: &mut World, backend: usize| {
        for (n, flow) in world.flows[1..].iter_mut().enumerate() {
            flow.load = Load::Open(if n == backend { 1000.0 } else { 0.5 } * MBIT);
        }
    };
    for backend in [0, 7, 15] {
        flood(&mut world, backend);
        world.run(150 * MS);
        let lost = world.flows[0].lost;
        let shares = world.shares(500 * MS);
        assert!(shares[0] >= 0.995 * GUARANTEE * MBIT, "{backend}: {:?}", &shares[..3]);
        assert!(world.flows[0].lost <= lost, "{backend}: nothing is lost any more");
        let others: f64 = shares[1..].iter().sum();
        assert!(others <= 0.285 * 1000.0 * MBIT, "{backend}: {}", others / MBIT);
    }
}
