//! Agents on a flat network, without VLANs and tunnels, on a line that loses what is too much: a
//! flood from another host is held there.

use crate::fabric::{BLUE, Flood, Host, RED, THREE, has_its_guarantee, hosts, is_held, narrow, nobody_is_limited};
use crate::testbed::{soon, turn};

/// The flood's sender is of this tenant, which its receiver's host need not have.
fn floods(test: &str, tenant: &str) {
    let Some(_turn) = turn(test) else { return };
    let mut hosts: [Host; 3] = hosts(&THREE);
    narrow(&hosts, &[1]);
    for host in &mut hosts {
        for (_, vlan) in [RED, BLUE] {
            host.text = host.text.replace(&format!("vlan = {vlan}\n"), "vlan = \"untagged\"\n");
        }
        host.text = host.text.replace("\"blue3\", tenant = \"blue\"", &format!("\"blue3\", tenant = \"{tenant}\""));
    }
    hosts[2].text = hosts[2].text.replace("name = \"blue\"\n", &format!("name = \"{tenant}\"\n"));
    let daemons = hosts.each_ref().map(Host::start);
    let victim = Flood::new(&hosts[1], RED, 1);
    let flood = Flood::new(&hosts[2], BLUE, 5);
    soon("the flood is held", || is_held(&hosts[0], &hosts[2]));
    has_its_guarantee(&daemons);
    soon("drops are named", || daemons[2].endpoint("blue3")["drops"]["pair-limit"].as_u64().unwrap_or(0) > 0);
    drop((victim, flood));
    soon("nobody is limited any more", || hosts.iter().all(nobody_is_limited));
}

#[test]
fn a_flood_on_a_flat_network_is_held_where_it_is_sent() {
    floods("a_flood_on_a_flat_network_is_held_where_it_is_sent", "blue");
}

#[test]
fn on_a_flat_network_another_tenants_flood_is_held_too() {
    floods("on_a_flat_network_another_tenants_flood_is_held_too", "guests");
}
