//! Interfaces that exist: nothing of theirs is configured here, and whoever takes one leaves the
//! host a way to the network.

use super::{Findings, way};
use crate::config::{Config, Device, Switch};
use crate::names::Locator;
use crate::place::Place;
use datapath::program::Attachment;
use std::collections::BTreeSet;

pub(super) fn check(findings: &mut Findings, config: &Config) {
    for (s, switch) in config.switches.iter().enumerate() {
        let place = Place::root().key("switch").item(s);
        if let Some(uplink) = &switch.uplink {
            for (place, device) in uplink.devices(&place.key("uplink")) {
                check_uplink(findings, device, &place);
            }
        }
        let endpoints = switch.tenants.iter().flat_map(|tenant| &tenant.endpoints);
        let taken: BTreeSet<_> = endpoints.filter_map(|endpoint| taken_by(&endpoint.device)).collect();
        for (t, tenant) in switch.tenants.iter().enumerate() {
            let place = place.key("tenant").item(t);
            for (e, endpoint) in tenant.endpoints.iter().enumerate() {
                let place = place.key("endpoint").item(e);
                check_keys(findings, &endpoint.device, &place);
                if let Some(host) = host_of(&endpoint.device) {
                    check_host(findings, switch, &taken, tenant.attachment, host, &place);
                }
            }
        }
    }
}

fn check_uplink(findings: &mut Findings, device: &Device, place: &Place) {
    check_keys(findings, device, place);
    if let (Some(Locator::Packet(_) | Locator::Host(_)), Some(_)) = (&device.locator, device.mac) {
        findings.error(place.key("mac"), "an interface that exists has its own address", "remove `mac`");
    }
    if let Some(Locator::Host(name)) = &device.locator {
        findings.error(
            place.key("port"),
            "the host is an endpoint, not an uplink",
            format!("write port = \"packet://{name}\" here, and host://{name} for an endpoint"),
        );
    }
}

/// Keys with which tap devices are set up.
fn check_keys(findings: &mut Findings, device: &Device, place: &Place) {
    if !matches!(device.locator, Some(Locator::Packet(_) | Locator::Host(_))) {
        return;
    }
    let keys = [("address", !device.addresses.is_empty()), ("persistent", device.persistent), ("ipv6", !device.ipv6)];
    for (key, _) in keys.iter().filter(|(_, given)| *given) {
        findings.error(
            place.key(*key),
            format!("`{key}` is for tap devices: an interface that exists stays as its owner configured it"),
            format!("remove `{key}`, and use `ip` where the interface is to be changed"),
        );
    }
}

/// An interface that exists: its name and namespace.
pub(super) type Interface<'a> = (&'a str, Option<&'a str>);

/// The interface whose host a port is.
pub(super) fn host_of(device: &Device) -> Option<Interface<'_>> {
    let Some(Locator::Host(name)) = &device.locator else { return None };
    Some((name, device.netns.as_deref()))
}

/// The interface that a port takes.
pub(super) fn taken_by(device: &Device) -> Option<Interface<'_>> {
    let Some(Locator::Packet(name)) = &device.locator else { return None };
    Some((name, device.netns.as_deref()))
}

fn check_host(
    findings: &mut Findings,
    switch: &Switch,
    taken: &BTreeSet<Interface<'_>>,
    attachment: Attachment,
    host: Interface<'_>,
    place: &Place,
) {
    let name = host.0;
    let is_uplink = switch.uplink.as_ref().is_some_and(|u| taken_by(&u.device) == Some(host));
    let members = switch.uplink.iter().flat_map(|uplink| &uplink.bond).flat_map(|bond| &bond.members);
    if members.into_iter().any(|member| taken_by(&member.device) == Some(host)) {
        // That a bond shares none is said of the bond.
        return;
    }
    if !is_uplink && !taken.contains(&host) {
        findings.error(
            place.key("port"),
            format!("no port of this switch takes the interface {name}, over which the host's traffic would go"),
            format!("write port = \"packet://{name}\" for the uplink (with the same `netns`)"),
        );
        return;
    }
    match attachment {
        Attachment::Isolated if is_uplink => {
            findings.error(
                place.key("port"),
                "the host would be cut off: its tenant has no way to the uplink",
                "give the tenant vlan = \"untagged\"",
            );
            findings.assumes(way(place));
        }
        Attachment::Vxlan(_) if is_uplink => findings.error(
            place.key("port"),
            "the host would be cut off: tunnels go over the network that the host itself is to be in",
            "give the tenant vlan = \"untagged\" instead of `vni`",
        ),
        Attachment::Vlan(vlan) if is_uplink => findings.warning(
            place.key("port"),
            format!("what the host sends untagged over {name} will leave it with VLAN {vlan}"),
            "give the tenant vlan = \"untagged\" if the host is not to change its network",
        ),
        _ => {}
    }
}
