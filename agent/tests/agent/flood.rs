//! A victim within its guarantee, and others that flood a neighbour's endpoint.

use crate::world::{FABRIC, LINK, Load, MBIT, MS, Receiver, World};

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

/// A bond loses a member, and gets it back.
#[test]
fn a_link_that_carries_half_leaves_a_victim_half_of_its_guarantee() {
    for senders in [1, 4, 15] {
        for (part, is_flooded) in [(0.5, true), (0.5, false), (0.1, true)] {
            let mut world = before(senders, Load::Open(GUARANTEE * MBIT));
            set_blast(&mut world, if is_flooded { 1000.0 } else { 0.0 });
            world.run(300 * MS);
            world.set_link(part * LINK);
            set_blast(&mut world, 1000.0);
            // Of what was promised together, 98 % of the link, there is so much.
            let kept = part * GUARANTEE * MBIT;
            let took = world.time_until_restored(0, kept, 100 * MS);
            assert!(took.is_some_and(|ns| ns <= 10 * MS), "{senders} senders at {part}: {took:?} ns");
            world.run(100 * MS);
            let shares = world.shares(200 * MS);
            assert!(shares[0] >= 0.99 * kept, "{senders} senders at {part}: {shares:?}");
            assert!(shares[1] >= 0.98 * part * 245.0 * MBIT, "{senders} senders at {part}: {shares:?}");
            // What the agent is told of the world does not make the link faster, and the switch
            // says so again.
            let directory = world.directory(0, &world.cluster());
            let _ = world.agents[0].set_directory(datapath::units::Instant(world.now), directory);
            world.set_link(part * LINK);
            let shares = world.shares(200 * MS);
            assert!(shares[0] >= 0.99 * kept, "{senders} senders at {part}, told anew: {shares:?}");
            world.set_link(LINK);
            world.run(100 * MS);
            let shares = world.shares(200 * MS);
            assert!(shares[0] >= 0.99 * GUARANTEE * MBIT, "{senders} senders, whole again: {shares:?}");
        }
    }
}
