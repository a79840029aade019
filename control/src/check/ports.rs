//! Every port is used once; every link joins two different switches; keys stand on ports of the
//! kind that they are for; a VDE directory is one tenant's.

use super::Findings;
use crate::config::{Config, Device};
use crate::names::{self, Locator};
use crate::place::Place;
use datapath::bond::Mode;
use datapath::link::Side;
use std::collections::{BTreeMap, BTreeSet};

/// A port as it is used in a configuration.
struct Use<'a> {
    device: &'a Device,
    /// The table it stands in.
    place: Place,
    /// Number of its switch.
    switch: usize,
    /// Number of its tenant; `None` for an uplink.
    tenant: Option<usize>,
    /// Its bond speaks LACP, of which its `mac` is an address.
    speaks_lacp: bool,
}

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let uses = uses(config);
    let links: BTreeSet<&str> = config.links.iter().map(|link| link.name.as_str()).collect();
    for one in &uses {
        check_device(findings, &links, one);
    }
    unique(findings, &uses);
    check_directories(findings, &uses);
    // A port or a link that could not be read may be the missing end: it has been reported, so say
    // nothing of loose ends.
    if uses.iter().all(|u| u.device.locator.is_some()) && config.links.iter().all(|l| !l.name.is_empty()) {
        check_ends(findings, config, &uses);
    }
}

fn uses(config: &Config) -> Vec<Use<'_>> {
    let mut uses = Vec::new();
    for (switch, s) in config.switches.iter().enumerate() {
        let place = Place::root().key("switch").item(switch);
        if let Some(uplink) = &s.uplink {
            let devices = uplink.devices(&place.key("uplink"));
            let speaks_lacp = uplink.bond.as_ref().is_some_and(|bond| bond.settings.mode == Mode::Lacp);
            let of_uplink = |(place, device)| Use { device, place, switch, tenant: None, speaks_lacp };
            uses.extend(devices.into_iter().map(of_uplink));
        }
        for (t, tenant) in s.tenants.iter().enumerate() {
            let place = place.key("tenant").item(t);
            for (e, endpoint) in tenant.endpoints.iter().enumerate() {
                let place = place.key("endpoint").item(e);
                uses.push(Use { device: &endpoint.device, place, switch, tenant: Some(t), speaks_lacp: false });
            }
        }
    }
    uses
}

fn check_device(findings: &mut Findings, links: &BTreeSet<&str>, one: &Use<'_>) {
    match &one.device.locator {
        Some(Locator::Veth(name)) => {
            check_keys(findings, one, None);
            check_veth(findings, one, name);
        }
        Some(Locator::Tap(_) | Locator::Packet(_) | Locator::Host(_)) => check_keys(findings, one, None),
        Some(Locator::Vde(..)) => check_keys(findings, one, Some("a VDE plug")),
        Some(Locator::VhostUser(_)) => {
            check_keys(findings, one, Some("a virtual machine"));
            if one.device.group.is_some() && !one.device.listen {
                findings.error(
                    one.place.key("group"),
                    "`group` has no effect: QEMU makes this socket",
                    "add `listen = true`, or remove `group` and give the directory to the group",
                );
            }
        }
        Some(Locator::Link(name, _)) => {
            check_link(findings, links, one, name);
            check_keys(findings, one, Some("a link end"));
        }
        Some(Locator::Director) => {
            check_keys(findings, one, Some("a director's port"));
            if one.tenant.is_none() {
                let message = "a director is an endpoint, not an uplink";
                findings.error(one.place.key("port"), message, "write port = \"packet://eth0\"");
            }
        }
        None => {}
    }
}

/// A pair is an endpoint's, and ends with the daemon.
fn check_veth(findings: &mut Findings, one: &Use<'_>, name: &str) {
    if one.tenant.is_none() {
        findings.error(
            one.place.key("port"),
            "a veth pair is for an endpoint, not for an uplink",
            format!("write port = \"packet://{name}\" with an interface that exists"),
        );
    }
    if one.device.persistent {
        findings.error(
            one.place.key("persistent"),
            "`persistent` is for tap devices: a veth pair is made again by the next daemon",
            format!("remove `persistent`, or use port = \"tap://{name}\""),
        );
    }
}

fn check_link(findings: &mut Findings, links: &BTreeSet<&str>, one: &Use<'_>, name: &str) {
    if !links.contains(name) && !links.contains("") {
        let remedy = match findings.nearest(name, links.iter().copied()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("add [[link]] with name = \"{name}\""),
        };
        findings.error(one.place.key("port"), format!("there is no link \"{name}\""), remedy);
    }
}

/// Keys that do nothing on a port of this kind. `no_device` says what the port is where it is no
/// device.
fn check_keys(findings: &mut Findings, one: &Use<'_>, no_device: Option<&str>) {
    let device = one.device;
    let of_devices = [
        ("netns", device.netns.is_some()),
        ("address", !device.addresses.is_empty()),
        ("persistent", device.persistent),
        ("ring", device.ring.is_some()),
        ("ipv6", !device.ipv6),
    ];
    for (key, _) in of_devices.iter().filter(|(_, given)| *given && no_device.is_some()) {
        findings.error(
            one.place.key(*key),
            format!("`{key}` is for devices, and {} is none", no_device.unwrap_or_default()),
            format!("remove `{key}`, or use a tap:// port"),
        );
    }
    // An endpoint's is what it may send from.
    if let (None, false, Some(_), Some(what)) = (one.tenant, one.speaks_lacp, device.mac, no_device) {
        let message = format!("`mac` has no effect: it is for devices, and {what} is none");
        findings.warning(one.place.key("mac"), message, "remove `mac`");
    }
    let is_vde = matches!(device.locator, Some(Locator::Vde(..)));
    let is_machine = matches!(device.locator, Some(Locator::VhostUser(_)));
    let default = Device::default();
    let of_machines = [
        ("queues", device.queues != default.queues),
        ("listen", device.listen),
        ("offload", device.offload != default.offload),
        ("sealed", device.sealed != default.sealed),
    ];
    for (key, _) in of_machines.iter().filter(|(_, given)| *given && !is_machine) {
        findings.error(
            one.place.key(*key),
            format!("`{key}` is for virtual machines, and this port is none"),
            format!("remove `{key}`, or use a vhost-user:// port"),
        );
    }
    let group = device.group.is_some() && !is_machine;
    let of_plugs = [("hub", device.hub), ("mode", device.mode.is_some()), ("group", group)];
    for (key, _) in of_plugs.iter().filter(|(_, given)| *given && !is_vde) {
        findings.error(
            one.place.key(*key),
            format!("`{key}` is for VDE plugs, and this port is none"),
            format!("remove `{key}`, or use a vde:// port"),
        );
    }
}

/// Who may use a VDE directory may take any plug of it that is free: so all of them are one
/// tenant's, or the one plug an uplink. The directory has one mode and one group.
fn check_directories(findings: &mut Findings, uses: &[Use<'_>]) {
    let mut seen: BTreeMap<&str, &Use<'_>> = BTreeMap::new();
    let (mut modes, mut groups) = (BTreeMap::new(), BTreeMap::new());
    for one in uses {
        let Some(Locator::Vde(directory, _)) = &one.device.locator else { continue };
        let first = *seen.entry(directory).or_insert(one);
        if (first.switch, first.tenant) != (one.switch, one.tenant) {
            findings.error(
                one.place.key("port"),
                format!("{directory} is another tenant's, or an uplink's"),
                "a client may take any free plug of a VDE directory: give each tenant, and an uplink, its own directory",
            );
        }
        let device = one.device;
        if device.mode.is_some_and(|mode| *modes.entry(directory).or_insert(mode) != mode) {
            findings.error(
                one.place.key("mode"),
                format!("{directory} has another `mode` already"),
                "it is the directory's: write it at one of its endpoints",
            );
        }
        if device.group.as_ref().is_some_and(|group| *groups.entry(directory).or_insert(group) != group) {
            findings.error(
                one.place.key("group"),
                format!("{directory} has another `group` already"),
                "it is the directory's: write it at one of its endpoints",
            );
        }
    }
}

/// Two devices may have one name in different namespaces.
fn unique(findings: &mut Findings, uses: &[Use<'_>]) {
    let mut seen: BTreeMap<(&Locator, Option<&str>), usize> = BTreeMap::new();
    for one in uses {
        let Some(locator) = one.device.locator.as_ref().filter(|locator| **locator != Locator::Director) else {
            continue;
        };
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
    let mut ends: BTreeMap<(&str, Side), &Use<'_>> = BTreeMap::new();
    for one in uses {
        if let Some(Locator::Link(name, end)) = &one.device.locator {
            ends.entry((name, *end)).or_insert(one);
        }
    }
    let at = |name: &str, end: Side| ends.get(&(name, end)).copied();
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
