//! Every port is used once; every link joins two different switches; keys of a device stand on ports that are devices.

use super::Findings;
use crate::config::{Config, Device};
use crate::names::{self, Locator};
use crate::place::Place;
use crate::problem::nearest;
use datapath::link::Side;
use std::collections::BTreeMap;

/// A port as it is used in a configuration.
struct Use<'a> {
    device: &'a Device,
    /// The table it stands in.
    place: Place,
    /// Number of its switch.
    switch: usize,
}

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let uses = uses(config);
    for one in &uses {
        check_device(findings, config, one);
    }
    unique(findings, &uses);
    // A port or a link that could not be read may be the missing end: it has been reported, so say nothing of loose ends.
    if uses.iter().all(|u| u.device.locator.is_some()) && config.links.iter().all(|l| !l.name.is_empty()) {
        check_ends(findings, config, &uses);
    }
}

fn uses(config: &Config) -> Vec<Use<'_>> {
    let mut uses = Vec::new();
    for (switch, s) in config.switches.iter().enumerate() {
        let place = Place::root().key("switch").item(switch);
        if let Some(uplink) = &s.uplink {
            uses.push(Use { device: &uplink.device, place: place.key("uplink"), switch });
        }
        for (t, tenant) in s.tenants.iter().enumerate() {
            let place = place.key("tenant").item(t);
            for (e, endpoint) in tenant.endpoints.iter().enumerate() {
                uses.push(Use { device: &endpoint.device, place: place.key("endpoint").item(e), switch });
            }
        }
    }
    uses
}

fn check_device(findings: &mut Findings, config: &Config, one: &Use<'_>) {
    let Some(Locator::Link(name, _)) = &one.device.locator else { return };
    if !config.links.iter().any(|l| l.name == *name) && config.links.iter().all(|l| !l.name.is_empty()) {
        let remedy = match nearest(name, config.links.iter().map(|l| l.name.as_str())) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("add [[link]] with name = \"{name}\""),
        };
        findings.error(one.place.key("port"), format!("there is no link \"{name}\""), remedy);
    }
    let keys = [
        ("netns", one.device.netns.is_some()),
        ("address", !one.device.addresses.is_empty()),
        ("persistent", one.device.persistent),
        ("ring", one.device.ring.is_some()),
        ("ipv6", !one.device.ipv6),
    ];
    for (key, _) in keys.iter().filter(|(_, given)| *given) {
        findings.error(
            one.place.key(*key),
            format!("`{key}` is for devices, and a link end is none"),
            format!("remove `{key}`, or use a tap:// port"),
        );
    }
}

/// Two devices may have one name in different namespaces.
fn unique(findings: &mut Findings, uses: &[Use<'_>]) {
    let mut seen: BTreeMap<(&Locator, Option<&str>), usize> = BTreeMap::new();
    for one in uses {
        let Some(locator) = &one.device.locator else { continue };
        let key = (locator, one.device.netns.as_deref());
        if seen.insert(key, one.switch).is_some() {
            findings.error(
                one.place.key("port"),
                format!("{locator} is used twice"),
                "a port belongs to one uplink or endpoint: give each its own",
            );
        }
    }
}

fn check_ends(findings: &mut Findings, config: &Config, uses: &[Use<'_>]) {
    let at = |name: &str, end: Side| {
        let is = |u: &&Use<'_>| matches!(&u.device.locator, Some(Locator::Link(n, e)) if n == name && *e == end);
        uses.iter().find(is)
    };
    for (i, link) in config.links.iter().enumerate() {
        let place = Place::root().key("link").item(i);
        let name = &link.name;
        for end in Side::ALL.into_iter().filter(|&end| at(name, end).is_none()) {
            let end = names::side(end);
            findings.error(
                place.clone(),
                format!("end {end} of link \"{name}\" is loose"),
                format!("use port = \"link://{name}/{end}\" for an uplink or endpoint, or remove the link"),
            );
        }
        if let (Some(a), Some(b)) = (at(name, Side::A), at(name, Side::B))
            && a.switch == b.switch
        {
            findings.error(
                b.place.key("port"),
                format!("both ends of link \"{name}\" are on one switch: frames would go round for ever"),
                "a link joins two switches",
            );
        }
    }
}
