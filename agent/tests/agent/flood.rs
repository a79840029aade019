//! A victim within its guarantee, and others that flood a neighbour's endpoint.

use crate::world::{FABRIC, Load, MBIT, MS, Receiver, World};

const GUARANTEE: f64 = 735.0;

/// `senders` that are silent yet, and a victim of this load.
fn before(senders: usize, victim: Load) -> World {
    let receivers = [Receiver::of("a", GUARANTEE), Receiver::of("b", 245.0)];
    let mut flows = vec![(1, 0, victim)];
    flows.extend((0..senders).map(|n| (2 + n, 1, Load::Open(0.0))));
    let mut world = World::new(&receivers, &flows);
    world.run(200 * MS);
    world
}

fn set_blast(world: &mut World, load: f64) {
    for flow in &mut world.flows[1..] {
        flow.load = Load::Open(load * MBIT);
    }
}

#[test]
fn an_open_loop_victim_is_restored_within_five_milliseconds() {
    for senders in [1, 4, 15] {
        let mut world = before(senders, Load::Open(GUARANTEE * MBIT));
        // The flood begins at any point between two samples.
        for phase_ns in [0, 250_000, 500_000, 950_000] {
            world.run(phase_ns);
            set_blast(&mut world, 1000.0);
            let took = world.time_until_restored(0, GUARANTEE * MBIT, 100 * MS);
            assert!(
                took.is_some_and(|ns| ns <= 5 * MS),
                "{senders} senders, {phase_ns} ns after a sample: {took:?} ns"
            );
            world.run(25 * MS);
            assert!(world.standing < 0.2 * FABRIC, "{senders} senders: {} bytes stand in the network", world.standing);
            let lost = world.flows[0].lost;
            let shares = world.shares(200 * MS);
            assert!(shares[0] >= 0.995 * GUARANTEE * MBIT, "{senders} senders: {shares:?}");
            assert!(shares[1] >= 0.99 * 245.0 * MBIT, "{senders} senders: {shares:?}");
            assert!(world.flows[0].lost <= lost, "nothing is lost any more");
            set_blast(&mut world, 0.0);
            world.run(600 * MS);
            assert!(world.limits.is_empty(), "{:?}", world.limits);
        }
    }
}

#[test]
fn a_victim_that_grows_reaches_its_guarantee_beside_a_flood() {
    for senders in [1, 4, 15] {
        let mut world = before(senders, Load::Open(0.0));
        set_blast(&mut world, 1000.0);
        world.run(500 * MS);
        assert!(world.limits.is_empty(), "one endpoint alone has no limits");
        world.flows[0].load = Load::Tcp;
        world.run(300 * MS);
        let shares = world.shares(500 * MS);
        assert!(shares[0] >= 0.99 * GUARANTEE * MBIT, "{senders} senders: {shares:?}");
        assert!(shares[0] + shares[1] >= 0.97 * 1000.0 * MBIT, "{senders} senders: {shares:?}");
        // And where the flood comes upon it.
        set_blast(&mut world, 0.0);
        world.run(1000 * MS);
        assert!(world.shares(100 * MS)[0] >= 0.95 * 1000.0 * MBIT);
        set_blast(&mut world, 1000.0);
        world.run(200 * MS);
        let shares = world.shares(500 * MS);
        assert!(shares[0] >= 0.99 * GUARANTEE * MBIT, "{senders} senders, later: {shares:?}");
    }
}

/// What stands in the network's queue is what others lose: a retransmission that meets a full one
/// has nothing behind it that would show here.
#[test]
fn a_flood_alone_leaves_no_queue_in_the_network_and_has_the_link() {
    for senders in [1, 4, 15] {
        let mut world = before(senders, Load::Open(0.0));
        set_blast(&mut world, 1000.0);
        world.run(300 * MS);
        assert!(senders == 1 || world.standing >= 0.9 * FABRIC, "{senders} senders: at first it is full");
        world.run(2000 * MS);
        let lost: f64 = world.flows[1..].iter().map(|flow| flow.lost).sum();
        for _ in 0..10 {
            world.run(100 * MS);
            assert!(world.standing <= 0.1 * FABRIC, "{senders} senders: {} bytes stand", world.standing);
        }
        let shares = world.shares(1000 * MS);
        assert!(shares[1] >= 0.999 * 1000.0 * MBIT, "{senders} senders: {shares:?}");
        assert!(world.flows[1..].iter().map(|flow| flow.lost).sum::<f64>() <= lost, "the network loses nothing");
        // Something fills it again, of which nothing is seen; at the link's rate it would stay.
        world.fill_network(1);
        world.run(5000 * MS);
        assert!(world.standing <= 0.1 * FABRIC, "{senders} senders: {} bytes stand again", world.standing);
        set_blast(&mut world, 0.0);
        world.run(600 * MS);
        assert!(world.limits.is_empty(), "{:?}", world.limits);
    }
}
