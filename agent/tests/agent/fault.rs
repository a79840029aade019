//! What goes wrong between agents, and who does not do as it is told.

use crate::world::{Faults, Load, MBIT, MS, Receiver, World, host_name, receiver_mac};
use agent::events::Toward;
use agent::leases::{SLOWEST, free_within_ns};
use agent::message::{Pair, Say, Writer};
use agent::report::Ignores;
use agent::{Cluster, HearError};
use datapath::units::{Instant, Rate};
use datapath::wire::Mac;

/// Two tenants, and a flood by four senders of one from 200 ms on.
pub fn flooded() -> World {
    let receivers = [Receiver::of("a", 735.0), Receiver::of("b", 245.0)];
    let mut flows = vec![(1, 0, Load::Open(735.0 * MBIT))];
    flows.extend((0..4).map(|n| (2 + n, 1, Load::Open(1000.0 * MBIT))));
    World::new(&receivers, &flows)
}

/// When the longest lease of a few hosts, and the steps after it, are over.
fn free_ns() -> u64 {
    free_within_ns(240, Rate(Rate::GBIT)) + 50 * MS
}

#[test]
fn messages_may_be_lost_doubled_late_and_out_of_order() {
    let mut world = flooded();
    world.faults =
        Faults { loss_ppm: 300_000, double_ppm: 300_000, delay_ns: 200_000, jitter_ns: 5_000_000, parted: false };
    world.run(300 * MS);
    let shares = world.shares(3000 * MS);
    assert!(shares[0] >= 0.99 * 735.0 * MBIT, "{shares:?}");
    assert!(shares[0] + shares[1] >= 0.96 * 1000.0 * MBIT, "{shares:?}");
    for flow in &mut world.flows[1..] {
        flow.load = Load::Open(0.0);
    }
    world.run(100 * MS + free_ns());
    assert!(world.limits.is_empty(), "{:?}", world.limits);
}

#[test]
fn a_partition_frees_the_senders_and_its_end_limits_them_again() {
    let mut world = flooded();
    world.run(300 * MS);
    assert_eq!(world.limits.len(), 4);
    world.faults.parted = true;
    world.run(free_ns());
    assert!(world.limits.is_empty(), "{:?}", world.limits);
    // Nothing that it said meanwhile was heeded, and it goes on saying it: not only when a lease
    // would run out.
    world.faults.parted = false;
    world.run(30 * MS);
    assert_eq!(world.limits.len(), 4);
    // And not what each took meanwhile.
    assert!(world.limits.values().all(|&rate| rate <= 1.1 * 265.0 / 4.0 * MBIT), "{:?}", world.limits);
    world.run(60 * MS);
    let shares = world.shares(100 * MS);
    assert!(shares[0] >= 0.99 * 735.0 * MBIT, "{shares:?}");
}

#[test]
fn a_receivers_new_agent_goes_on_and_a_dead_ones_limits_end() {
    let mut world = flooded();
    world.run(300 * MS);
    world.restart_receiver();
    world.run(50 * MS);
    let shares = world.shares(300 * MS);
    assert!(shares[0] >= 0.99 * 735.0 * MBIT, "{shares:?}");
    // Dead, and nobody floods any more: nothing is said about it.
    for flow in &mut world.flows[1..] {
        flow.load = Load::Open(0.0);
    }
    world.restart_receiver();
    world.run(free_ns());
    assert!(world.limits.is_empty(), "{:?}", world.limits);
}

#[test]
fn a_receiver_that_moves_leaves_nobody_limited() {
    let mut world = flooded();
    world.run(300 * MS);
    assert!(world.limit(1).is_some());
    let mut cluster = world.cluster();
    cluster.place(&host_name(1), "b", receiver_mac(1));
    for host in 1..world.agents.len() {
        let directory = world.directory(host, &cluster);
        drop(world.agents[host].set_directory(Instant(world.now), directory));
    }
    // The old place does not know yet, and goes on speaking: nobody believes it.
    world.run(free_ns());
    assert!(world.limits.is_empty(), "{:?}", world.limits);
    assert!(world.agents[2].report(Instant(world.now)).counters.lies > 0);
}

#[test]
fn one_that_ignores_its_limit_is_named_and_the_others_keep_what_is_left() {
    let receivers = [Receiver::of("a", 500.0), Receiver::of("b", 200.0), Receiver::of("c", 0.0)];
    let mut world = World::new(
        &receivers,
        &[
            (1, 0, Load::Open(500.0 * MBIT)),
            (2, 1, Load::Open(300.0 * MBIT)),
            (3, 2, Load::Open(1000.0 * MBIT)),
            (4, 1, Load::Open(1000.0 * MBIT)),
        ],
    );
    world.flows[1].heeds = false;
    world.run(400 * MS);
    let report = world.agents[0].report(Instant(world.now));
    let named: Vec<_> = report.limited.iter().filter_map(|l| Some((l.from, l.host.as_deref()?, l.ignores?))).collect();
    assert_eq!(named, [(world.flows[1].mac, "h2", Ignores::Limit)]);
    let lost: Vec<f64> = world.flows.iter().map(|flow| flow.lost).collect();
    let rates = world.measure(500 * MS);
    assert!(rates[0] >= 0.99 * 500.0 * MBIT, "{rates:?}");
    assert!(rates.iter().sum::<f64>() >= 0.96 * 1000.0 * MBIT, "{rates:?}");
    let more: Vec<f64> = world.flows.iter().zip(lost).map(|(flow, lost)| flow.lost - lost).collect();
    assert!(more.iter().all(|&bytes| bytes < 1.0), "what is left is shared without loss: {more:?}");
    // It comes to its senses, and is not named any more.
    world.flows[1].heeds = true;
    world.run(200 * MS);
    let report = world.agents[0].report(Instant(world.now));
    assert!(report.limited.iter().all(|limited| limited.ignores.is_none()), "{:?}", report.limited);
}

#[test]
fn a_sender_on_no_host_of_the_cluster_is_named_too() {
    let mut world = flooded();
    let mut cluster = Cluster::default();
    cluster.place(&host_name(1), "a", world.flows[0].mac);
    let directory = world.directory(0, &cluster);
    drop(world.agents[0].set_directory(Instant(world.now), directory));
    world.run(300 * MS);
    let report = world.agents[0].report(Instant(world.now));
    let strangers = report.limited.iter().filter(|l| l.ignores == Some(Ignores::Unreachable) && l.host.is_none());
    assert_eq!(strangers.count(), 4, "{:?}", report.limited);
    assert!(world.limits.is_empty());
}

#[test]
fn who_lies_replays_or_talks_nonsense_limits_nobody() {
    let mut world = flooded();
    world.run(10 * MS);
    let (now, victim) = (Instant(world.now), world.flows[0].mac);
    let say = |tenant: &str, to, from, life, sequence| {
        let mut writer = Writer::new(2000, life, sequence);
        assert!(writer.add(&Pair { tenant, to, from, say: Say::Rate(Rate(1_000_000), 0) }));
        writer.finish()
    };
    let (to, other) = (receiver_mac(0), receiver_mac(1));
    let agent = &mut world.agents[1];
    // It is another life than before, and alone.
    assert_eq!(agent.hear(now, "h0", &say("a", to, victim, 9, 0)), Err(HearError::Replay));
    let told = say("a", to, victim, 9, 1);
    assert_eq!(agent.hear(now, "nobody", &told), Err(HearError::Stranger));
    assert_eq!(agent.hear(now, "h1", &told), Err(HearError::Stranger), "its own name");
    assert_eq!(agent.hear(now, "h3", &told), Err(HearError::Pairs(1)), "the receiver is not there");
    assert_eq!(agent.hear(now, "h0", &say("b", other, victim, 9, 2)), Err(HearError::Pairs(1)), "another tenant's");
    assert_eq!(agent.hear(now, "h0", &say("a", to, other, 9, 3)), Err(HearError::Pairs(1)), "the sender is not here");
    assert!(matches!(agent.hear(now, "h0", &told[1..]), Err(HearError::Message(_))));
    assert!(agent.poll_tuning().is_none());
    assert_eq!(agent.hear(now, "h0", &told), Ok(1));
    assert_eq!(agent.poll_tuning().map(|tuning| tuning.to), Some(Toward::Address(to)));
    assert_eq!(agent.hear(now, "h0", &told), Err(HearError::Replay));
    let far = (0..5000).filter(|n| agent.hear(now, "h0", &say("a", to, victim, 9, 10 + n)).is_ok()).count();
    assert!(far < 300, "{far} datagrams at once were heard of one host");
    let counters = agent.report(now).counters;
    assert_eq!((counters.strangers, counters.lies, counters.foreign, counters.garbage), (2, 1, 2, 1));
    assert!(counters.replays == 2 && counters.floods > 4000, "{counters:?}");
}

/// What host `from` says to host 1 about its first flow, toward `to`.
fn say(world: &mut World, from: usize, life: u64, sequence: u64, to: Mac, say: Say) -> Result<u32, HearError> {
    let mut writer = Writer::new(2000, life, sequence);
    assert!(writer.add(&Pair { tenant: "a", to, from: world.flows[0].mac, say }));
    world.agents[1].hear(Instant(world.now), &host_name(from), &writer.finish())
}

#[test]
fn a_receivers_new_agent_is_not_bound_by_what_it_cannot_know() {
    let mut world = flooded();
    world.run(10 * MS);
    // For some reason that is over, the victim's own sender was told less than it is promised.
    assert_eq!(say(&mut world, 0, 1, 50, receiver_mac(0), Say::Rate(Rate(300_000_000), 0)), Ok(1));
    world.run(100 * MS);
    assert_eq!(world.limit(0), Some(300.0 * MBIT), "whoever said it knows what it is for");
    world.restart_receiver();
    world.run(60 * MS);
    assert_eq!(world.limit(0), None);
    let shares = world.shares(200 * MS);
    assert!(shares[0] >= 0.99 * 735.0 * MBIT, "{shares:?}");
}

#[test]
fn a_member_that_asks_for_next_to_nothing_holds_back_only_what_is_sent_to_it() {
    // The one at host 2 receives too, from the victim's sender among others.
    let receivers = [Receiver::of("a", 735.0), Receiver::of("b", 245.0)];
    let flows = [(1, 0, Load::Open(735.0 * MBIT)), (2, 0, Load::Open(0.0)), (3, 1, Load::Open(1000.0 * MBIT))];
    let mut world = World::new(&receivers, &flows);
    world.run(200 * MS);
    let own = world.flows[1].mac;
    assert_eq!(say(&mut world, 2, 9, 1, own, Say::Rate(Rate(1), 0)), Ok(1));
    assert_eq!(say(&mut world, 2, 9, 2, receiver_mac(0), Say::Rate(Rate(1), 0)), Err(HearError::Pairs(1)));
    assert_eq!(say(&mut world, 2, 9, 3, receiver_mac(0), Say::Lift), Err(HearError::Pairs(1)));
    assert_eq!(say(&mut world, 2, 9, 4, own, Say::Halve), Err(HearError::Pairs(1)), "it would concern others");
    assert_eq!(world.agents[1].report(Instant(world.now)).counters.lies, 3);
    world.run(100 * MS);
    let limited: Vec<_> = world.limits.iter().filter(|((host, ..), _)| *host == 1).collect();
    assert_eq!(limited, [(&(1, world.flows[0].id, Toward::Address(own)), &(SLOWEST.0 as f64))]);
    let shares = world.shares(200 * MS);
    assert!(shares[0] >= 0.99 * 735.0 * MBIT, "{shares:?}");
    world.run(free_within_ns(2000, Rate(Rate::GBIT)));
    assert!(world.limits.keys().all(|&(host, ..)| host != 1), "{:?}", world.limits);
}

#[test]
fn a_receiver_whose_clock_was_set_back_is_heard_again() {
    let mut world = flooded();
    world.restart_receiver();
    world.run(300 * MS);
    world.lives = 0;
    world.restart_receiver();
    // Until it is believed, its limits are not heeded; those of before have ended, and nobody is
    // limited for ever.
    world.run(free_ns());
    assert!(world.limits.is_empty(), "{:?}", world.limits);
    world.run(4500 * MS - free_ns());
    assert!((1..5).all(|flow| world.limit(flow).is_some()), "{:?}", world.limits);
    let shares = world.shares(200 * MS);
    assert!(shares[0] >= 0.99 * 735.0 * MBIT, "{shares:?}");
}
