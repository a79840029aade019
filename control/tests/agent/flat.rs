//! Tenants that share the untagged network: who sends to an endpoint may be another tenant's.

use crate::fault::flooded;
use crate::world::{MBIT, MS, host_name, receiver_mac};
use control::agent::events::Toward;
use control::agent::message::{Pair, Say, Writer};
use control::agent::{Agent, Cluster, HearError};
use datapath::units::{Instant, Rate};
use datapath::wire::Mac;

#[test]
fn a_flood_of_another_tenant_is_held_where_it_is_sent() {
    let mut world = flooded().flat("guests");
    world.run(300 * MS);
    let shares = world.shares(300 * MS);
    assert!(shares[0] >= 0.99 * 735.0 * MBIT, "{shares:?}");
    assert_eq!(world.limits.len(), 4, "each sender of the flood, and nobody else: {:?}", world.limits);
    let report = world.agents[0].report(Instant(world.now));
    let hosts: Vec<_> = report.limited.iter().map(|limited| limited.host.as_deref()).collect();
    assert_eq!(hosts, [Some("h2"), Some("h3"), Some("h4"), Some("h5")]);
    // What changes elsewhere does not take it for somebody who is gone.
    for host in 0..world.agents.len() {
        let directory = world.directory(host, &world.cluster());
        world.agents[host].set_directory(Instant(world.now), directory);
    }
    world.run(50 * MS);
    assert_eq!(world.limits.len(), 4, "{:?}", world.limits);
}

/// What h0 is answered that asks host 1's agent to let `from` send to `to`, of a tenant's, at 1 Mbit/s.
fn asks(agent: &mut Agent, tenant: &str, from: Mac, to: Mac) -> Result<u32, HearError> {
    let mut writer = Writer::new(2000, 9, 1);
    assert!(writer.add(&Pair { tenant, to, from, say: Say::Rate(Rate(1_000_000), 0) }));
    agent.hear(Instant(2_000_000_000), &host_name(0), &writer.finish())
}

#[test]
fn only_the_host_that_can_be_meant_is_heeded() {
    let (to, from) = (receiver_mac(0), flooded().flows[0].mac);
    let heeds = |change: &dyn Fn(&mut Cluster), flat: bool| {
        let mut world = if flat { flooded().flat("guests") } else { flooded() };
        let mut cluster = world.cluster();
        change(&mut cluster);
        let directory = world.directory(1, &cluster);
        let agent = &mut world.agents[1];
        agent.set_directory(Instant(1_000_000_000), directory);
        let tenant = if flat { "a" } else { "b" };
        let heard = asks(agent, tenant, from, to);
        assert_eq!(heard.is_ok(), agent.poll_tuning().is_some_and(|tuning| tuning.to == Toward::Address(to)));
        heard
    };
    assert_eq!(heeds(&|_| (), true), Ok(1));
    let elsewhere = |tenant| move |cluster: &mut Cluster| cluster.place("h2", tenant, to);
    assert_eq!(heeds(&elsewhere("c"), true), Err(HearError::Pairs(1)), "another host has that address, too");
    assert_eq!(heeds(&elsewhere("guests"), true), Err(HearError::Pairs(1)), "its own tenant has it elsewhere");
    let crowd = |cluster: &mut Cluster| (0..20).for_each(|n| cluster.place("h0", &format!("t{n}"), to));
    assert_eq!(heeds(&crowd, true), Err(HearError::Pairs(1)), "too many to look at have it");
    assert_eq!(heeds(&|_| (), false), Err(HearError::Pairs(1)), "a network of its own has no other tenants");
}
