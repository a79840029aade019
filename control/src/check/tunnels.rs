//! Tunnels: who has a `vni` has an end of tunnels here, others are where it says they are, and no
//! end or network is there twice.

use super::Findings;
use crate::config::{Config, Endpoint, RemoteService, Switch, Tenant};
use crate::names::{Locator, show_mac};
use crate::place::Place;
use datapath::overlay::{MOST_PEERS, MOST_REMOTES};
use datapath::program::Attachment;
use datapath::wire::Mac;
use std::collections::BTreeMap;
use std::net::IpAddr;

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let switches = Place::root().key("switch");
    for (s, switch) in config.switches.iter().enumerate() {
        check_switch(findings, switch, &switches.item(s));
    }
    same_identifiers(findings, config, &switches);
    unique_macs(findings, config, &switches);
    unique_vteps(findings, config);
    check_members(findings, config);
}

/// The tenants of a switch that reach others through tunnels, with their numbers and identifiers.
fn tunnelled(switch: &Switch) -> impl Iterator<Item = (usize, u32, &Tenant)> {
    switch.tenants.iter().enumerate().filter_map(|(t, tenant)| match tenant.attachment {
        Attachment::Vxlan(vni) => Some((t, vni, tenant)),
        _ => None,
    })
}

fn check_switch(findings: &mut Findings, switch: &Switch, place: &Place) {
    // Without an uplink, the tenants are told so already.
    let Some(uplink) = &switch.uplink else { return };
    let Some(vtep) = uplink.vtep else {
        for (t, ..) in tunnelled(switch) {
            findings.error(
                place.key("tenant").item(t).key("vni"),
                "the switch has no end of tunnels",
                "add `vtep` to [switch.uplink]: this host's address on the network between hosts",
            );
        }
        return;
    };
    let key = place.key("uplink").key("vtep");
    if tunnelled(switch).next().is_none() {
        findings.warning(
            key.clone(),
            "`vtep` has no effect: no tenant has a `vni`",
            "give the tenants that other hosts have their `vni`, or remove it",
        );
    }
    if switch.host_at(vtep).is_some() {
        // The next hops are asked of the host over that device, whatever the uplink is.
        return;
    }
    if uplink.bond.as_ref().is_some_and(|bond| !bond.is_linked()) {
        findings.error(
            key,
            format!("no endpoint has {vtep}: over a bond, the host has its address on a device that the switch makes"),
            format!(
                "add an endpoint with port = \"tap://host0\" and address = \"{vtep}/LENGTH\" to a tenant with vlan = \"untagged\""
            ),
        );
        return;
    }
    match &uplink.device.locator {
        Some(Locator::Packet(name)) if !has_host(switch, name, uplink.device.netns.as_deref()) => findings.error(
            key,
            format!(
                "no endpoint has {vtep}: the host must have this address on {name}, and be an endpoint of the switch"
            ),
            format!("add an endpoint with port = \"host://{name}\" to a tenant with vlan = \"untagged\""),
        ),
        Some(locator @ (Locator::Tap(_) | Locator::Veth(_) | Locator::Vde(..) | Locator::VhostUser(_))) => findings
            .error(
                key,
                format!("tunnels do not go over {locator}: the next hop is asked of the host, which is not there"),
                "use an interface that exists, as port = \"packet://eth0\", or remove `vtep`",
            ),
        _ => {}
    }
}

/// Whether the host is on the switch, in the network that the tunnels leave by.
fn has_host(switch: &Switch, interface: &str, netns: Option<&str>) -> bool {
    let untagged = switch.tenants.iter().filter(|tenant| tenant.attachment == Attachment::Untagged);
    untagged.flat_map(|tenant| &tenant.endpoints).any(|endpoint| {
        let is_it = matches!(&endpoint.device.locator, Some(Locator::Host(name)) if name == interface);
        is_it && endpoint.device.netns.as_deref() == netns
    })
}

/// A tenant is known to other switches by its name, and on the wire by its identifier.
fn same_identifiers(findings: &mut Findings, config: &Config, switches: &Place) {
    let mut seen: BTreeMap<&str, (u32, &str)> = BTreeMap::new();
    for (s, switch) in config.switches.iter().enumerate() {
        for (t, vni, tenant) in tunnelled(switch) {
            let &mut (first, other) = seen.entry(&tenant.name).or_insert((vni, &switch.name));
            if first != vni {
                findings.error(
                    switches.item(s).key("tenant").item(t).key("vni"),
                    format!("tenant \"{}\" has vni = {first} on switch \"{other}\"", tenant.name),
                    "a tenant has the same everywhere; different tenants have different names",
                );
            }
        }
    }
}

/// An address of a tenant is on one switch.
fn unique_macs(findings: &mut Findings, config: &Config, switches: &Place) {
    let mut seen: BTreeMap<(&str, Mac), (usize, &Endpoint)> = BTreeMap::new();
    for (s, switch) in config.switches.iter().enumerate() {
        for (t, _, tenant) in tunnelled(switch) {
            for (e, endpoint) in tenant.endpoints.iter().enumerate() {
                for &mac in &endpoint.identity.macs {
                    let &mut (first, other) = seen.entry((&tenant.name, mac)).or_insert((s, endpoint));
                    if first != s {
                        findings.error(
                            switches.item(s).key("tenant").item(t).key("endpoint").item(e).key("mac"),
                            format!(
                                "{} is endpoint \"{}\"'s of switch \"{}\" in the same tenant",
                                show_mac(mac),
                                other.name,
                                config.switches[first].name
                            ),
                            "give each endpoint its own address",
                        );
                    }
                }
            }
        }
    }
}

/// Two ends of tunnels with one address: one would get the other's frames. And two of which one is
/// over IPv4 and the other over IPv6 do not reach each other.
fn unique_vteps(findings: &mut Findings, config: &Config) {
    let mut seen: BTreeMap<IpAddr, String> = BTreeMap::new();
    let mut first: Option<(IpAddr, String)> = None;
    let mut see = |findings: &mut Findings, place: Place, vtep: IpAddr, whose: String| {
        let version = |vtep: &IpAddr| if vtep.is_ipv4() { "IPv4" } else { "IPv6" };
        if let Some((first, whose)) = first.as_ref().filter(|(first, _)| first.is_ipv4() != vtep.is_ipv4()) {
            findings.error(
                place,
                format!("{vtep} is an {} address, and {whose}'s end of tunnels has {first}", version(&vtep)),
                "give all ends of tunnels addresses of one version",
            );
            return;
        }
        first.get_or_insert((vtep, whose.clone()));
        if let Some(other) = seen.get(&vtep) {
            let remedy = "give each end of tunnels its own address: that of its host";
            findings.error(place, format!("{vtep} is {other}'s end of tunnels"), remedy);
        } else {
            seen.insert(vtep, whose);
        }
    };
    let root = Place::root();
    for (s, switch) in config.switches.iter().enumerate() {
        if let Some(vtep) = switch.uplink.as_ref().and_then(|uplink| uplink.vtep) {
            let place = root.key("switch").item(s).key("uplink").key("vtep");
            see(findings, place, vtep, format!("switch \"{}\"", switch.name));
        }
    }
    let Some(cluster) = &config.cluster else { return };
    for (i, member) in cluster.members.iter().enumerate().filter(|(_, member)| member.name != cluster.host) {
        if let Some(vtep) = member.vtep {
            let place = root.key("cluster").key("member").item(i).key("vtep");
            see(findings, place, vtep, format!("host \"{}\"", member.name));
        }
    }
}

/// Members are where tunnels can reach them, and no more than there is room for.
fn check_members(findings: &mut Findings, config: &Config) {
    let Some(cluster) = &config.cluster else { return };
    let members = Place::root().key("cluster").key("member");
    let own: Vec<IpAddr> = config.switches.iter().filter_map(|switch| switch.uplink.as_ref()?.vtep).collect();
    let tenants: BTreeMap<&str, u32> =
        config.switches.iter().flat_map(tunnelled).map(|(_, vni, tenant)| (tenant.name.as_str(), vni)).collect();
    let (mut ends, mut addresses) = (0, 0);
    for (i, member) in cluster.members.iter().enumerate() {
        let place = members.item(i);
        if member.name == cluster.host {
            if let Some(vtep) = member.vtep.filter(|vtep| !own.contains(vtep)) {
                findings.warning(
                    place.key("vtep"),
                    format!("this host has no end of tunnels with the address {vtep}"),
                    "correct it, or `vtep` in [switch.uplink]: other hosts may have the same list",
                );
            }
            continue;
        }
        let there = || member.endpoints.iter().enumerate().filter(|(_, one)| tenants.contains_key(one.tenant.as_str()));
        if member.vtep.is_some() {
            ends += 1;
            addresses += there().map(|(_, one)| one.macs.len()).sum::<usize>();
        } else if let Some((e, one)) = there().next() {
            findings.warning(
                place.key("endpoint").item(e),
                format!("endpoint \"{}\" cannot be reached: its host has no end of tunnels", one.name),
                format!("give host \"{}\" its `vtep`", member.name),
            );
        }
        let served = |one: &(usize, &RemoteService)| tenants.contains_key(one.1.tenant.as_str());
        if member.vtep.is_some() {
            addresses += member.services.iter().enumerate().filter(served).count();
        } else if let Some((s, one)) = member.services.iter().enumerate().find(served) {
            findings.warning(
                place.key("service").item(s),
                format!("service \"{}\" cannot be reached: its host has no end of tunnels", one.name),
                format!("give host \"{}\" its `vtep`", member.name),
            );
        }
    }
    if ends > MOST_PEERS || addresses > MOST_REMOTES {
        findings.error(
            members,
            format!("{ends} hosts with {addresses} addresses at the other ends of tunnels are too many"),
            format!(
                "at most {MOST_PEERS} hosts and {MOST_REMOTES} addresses: leave out those of tenants that are not here"
            ),
        );
    }
}
