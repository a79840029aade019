//! Tenants that share the untagged network: who sends to an endpoint may be another tenant's.

use crate::fault::flooded;
use crate::world::{MBIT, MS, host_name, receiver_mac};
use agent::directory::Directory;
use agent::events::Toward;
use agent::message::{Pair, Say, Writer};
use agent::settings::Settings;
use agent::{Agent, Cluster, HearError};
use datapath::units::{Instant, Rate};
use datapath::wire::Mac;
use std::sync::Arc;

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
        drop(world.agents[host].set_directory(Instant(world.now), directory));
    }
    let obeyed = world.agents[2..].iter().flat_map(|agent| agent.report(Instant(world.now)).obeyed);
    assert_eq!(obeyed.filter(|obeyed| !obeyed.relaxing).count(), 4);
    // Longer than any lease here.
    world.run(400 * MS);
    assert_eq!(world.limits.len(), 4, "{:?}", world.limits);
}

fn asks(agent: &mut Agent, host: usize, tenant: &str, from: Mac, to: Mac) -> Result<u32, HearError> {
    let mut writer = Writer::new(2000, 9, 1);
    assert!(writer.add(&Pair { tenant, to, from, say: Say::Rate(Rate(1_000_000), 0) }));
    agent.hear(Instant(2_000_000_000), &host_name(host), &writer.finish())
}

/// What host 1's agent answers to a host that asks it to let `from` send to `to`, of a tenant's, at
/// 1 Mbit/s. Its world changes before.
fn answer(flat: bool, change: &dyn Fn(&mut Cluster), host: usize, tenant: &str) -> Result<u32, HearError> {
    let (to, from) = (receiver_mac(0), flooded().flows[0].mac);
    let mut world = if flat { flooded().flat("guests") } else { flooded() };
    let mut cluster = world.cluster();
    change(&mut cluster);
    let directory = world.directory(1, &cluster);
    let agent = &mut world.agents[1];
    drop(agent.set_directory(Instant(1_000_000_000), directory));
    let heard = asks(agent, host, tenant, from, to);
    assert_eq!(heard.is_ok(), agent.poll_tuning().is_some_and(|tuning| tuning.to == Toward::Address(to)));
    heard
}

#[test]
fn only_the_host_that_can_be_meant_is_heeded() {
    let (to, refused) = (receiver_mac(0), Err(HearError::Pairs(1)));
    assert_eq!(answer(true, &|_| (), 0, "a"), Ok(1));
    let elsewhere = |tenant| move |cluster: &mut Cluster| cluster.place("h2", tenant, to);
    assert_eq!(answer(true, &elsewhere("c"), 0, "a"), refused, "another host has that address, too");
    assert_eq!(answer(true, &elsewhere("c"), 2, "c"), refused, "and is no better");
    assert_eq!(answer(true, &elsewhere("guests"), 0, "a"), refused, "its own tenant has it elsewhere");
    assert_eq!(answer(true, &elsewhere("guests"), 2, "guests"), Ok(1), "there");
    let crowd = |cluster: &mut Cluster| (0..20).for_each(|n| cluster.place("h0", &format!("t{n}"), to));
    assert_eq!(answer(true, &crowd, 0, "a"), refused, "too many to look at have it");
    assert_eq!(answer(false, &|_| (), 0, "b"), refused, "a network of its own has no other tenants");
}

#[test]
fn tenants_in_networks_of_their_own_have_no_part_in_the_untagged_one() {
    let (to, from) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let plan = control::load(MIXED).plan.expect("a good configuration");
    let heeds = |tenant: &str, to: Mac, from: Mac| {
        let mut cluster = Cluster::default();
        cluster.add_host("h1");
        cluster.place("h0", tenant, to);
        let switch = &plan.switches[0];
        let directory = Directory::new(Arc::new(cluster), &switch.program, &switch.tenants);
        asks(&mut Agent::new(Settings::default(), "h1", 1, directory), 0, tenant, from, to)
    };
    assert_eq!(heeds("elsewhere", to, from), Ok(1), "of a tenant that this host does not have");
    assert_eq!(heeds("ops", to, from), Ok(1), "of its own");
    assert_eq!(heeds("red", to, from), Err(HearError::Pairs(1)), "red has a VLAN");
    assert_eq!(heeds("elsewhere", to, Mac([2, 0, 0, 0, 0, 3])), Err(HearError::Pairs(1)), "so has the sender");
}

/// A tenant in the untagged network, and one with a VLAN.
const MIXED: &str = r#"
[daemon]
name = "t"
[[switch]]
name = "s1"
[switch.uplink]
port = "tap://up"
rate = "1 Gbit/s"
[[switch.tenant]]
name = "ops"
vlan = "untagged"
endpoint = [{ name = "ops1", port = "tap://ops1", mac = "02:00:00:00:00:02" }]
[[switch.tenant]]
name = "red"
vlan = 10
endpoint = [{ name = "red1", port = "tap://red1", mac = "02:00:00:00:00:03" }]
"#;
