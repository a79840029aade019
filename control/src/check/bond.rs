//! Bonds: options that their mode uses, members that exist and fit each other, and what does not go
//! over a bond yet.

use super::Findings;
use crate::bond::Reselect;
use crate::config::{Bond, BondMember, Config, Switch, Uplink};
use crate::names::Locator;
use crate::place::Place;
use crate::problem::nearest;
use crate::units::show_rate;
use datapath::bond::{HashPolicy, Mode};
use datapath::program::Attachment;
use datapath::units::Direction;
use datapath::wire::vlan::TAG;
use std::collections::BTreeMap;

pub(super) fn check(findings: &mut Findings, config: &Config) {
    for (s, switch) in config.switches.iter().enumerate() {
        let Some(uplink) = &switch.uplink else { continue };
        let Some(bond) = &uplink.bond else { continue };
        let switch_place = Place::root().key("switch").item(s);
        let place = switch_place.key("uplink");
        check_options(findings, bond, &place.key("bond"));
        check_members(findings, bond, &place.key("bond"));
        check_rate(findings, switch, bond, &switch_place);
        check_room(findings, switch, bond, &place.key("bond"));
        check_what_is_not_yet(findings, switch, uplink, bond, &place);
    }
}

/// An option that the mode does not use is an error, as in Linux: who writes it expects something
/// of it.
fn check_options(findings: &mut Findings, bond: &Bond, place: &Place) {
    let settings = &bond.settings;
    let mode = settings.mode;
    let options = [
        ("xmit_hash_policy", settings.hash != HashPolicy::default(), Mode::BalanceXor),
        ("packets_per_slave", settings.packets_per_member != 1, Mode::BalanceRr),
        ("all_slaves_active", settings.all_members_active, Mode::ActiveBackup),
        ("primary", bond.primary.is_some(), Mode::ActiveBackup),
        ("primary_reselect", bond.reselect != Reselect::default(), Mode::ActiveBackup),
    ];
    for (key, _, of) in options.into_iter().filter(|&(_, is_given, of)| is_given && of != mode) {
        findings.error(
            place.key(key),
            format!("`{key}` has no effect in mode \"{}\"", mode.name()),
            format!("remove it, or write mode = \"{}\"", of.name()),
        );
    }
    let usual = Bond::default().settings;
    for (key, is_given) in [("order", settings.order != usual.order), ("hold", settings.hold_ns != usual.hold_ns)] {
        if is_given && !numbers(bond) {
            findings.error(
                place.key(key),
                format!("`{key}` has no effect in mode \"{}\"", mode.name()),
                "remove it, or write mode = \"balance-rr\" or \"broadcast\"",
            );
        }
    }
    let Some(primary) = bond.primary.as_ref().filter(|_| mode == Mode::ActiveBackup) else { return };
    let names: Vec<String> = bond.members.iter().map(BondMember::name).collect();
    if !names.contains(primary) {
        let remedy = match nearest(primary, names.iter().map(String::as_str)) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("its members are {}", names.join(", ")),
        };
        findings.error(place.key("primary"), format!("the bond has no member \"{primary}\""), remedy);
    }
}

/// Whether frames may have numbers in a bond's mode.
fn numbers(bond: &Bond) -> bool {
    matches!(bond.settings.mode, Mode::BalanceRr | Mode::Broadcast)
}

/// Below a number, a tenant's tag is one more than interfaces take beside their MTU.
fn check_room(findings: &mut Findings, switch: &Switch, bond: &Bond, place: &Place) {
    if !bond.settings.order || !numbers(bond) || bond.members.is_empty() {
        return;
    }
    let tagged = switch.tenants.iter().flat_map(|tenant| {
        let has_tag = matches!(tenant.attachment, Attachment::Vlan(_));
        tenant.endpoints.iter().filter(move |endpoint| has_tag || endpoint.trunk)
    });
    let Some(longest) = tagged.map(|endpoint| endpoint.device.mtu).max() else { return };
    let wanted = longest + TAG as u32;
    if wanted > bond.mtu() {
        findings.warning(
            place.key("member"),
            "there is no room for a number before a tenant's tag: between two Levada hosts frames are not kept in order",
            format!("set the members' interfaces and their `mtu` to {wanted}, or write order = \"off\""),
        );
    }
}

fn check_members(findings: &mut Findings, bond: &Bond, place: &Place) {
    let members = place.key("member");
    let mut names = BTreeMap::new();
    for (n, member) in bond.members.iter().enumerate().filter(|(_, member)| member.device.locator.is_some()) {
        if let Some(first) = names.insert(member.name(), n) {
            findings.error(
                members.item(n).key("port"),
                format!("member number {} of the bond is called \"{}\" as well", first + 1, member.name()),
                "a member is called as its device is: give each its own name",
            );
        }
        if member.priority != 0 && bond.settings.mode != Mode::ActiveBackup {
            findings.error(
                members.item(n).key("prio"),
                format!("`prio` has no effect in mode \"{}\"", bond.settings.mode.name()),
                "remove it, or write mode = \"active-backup\"",
            );
        }
        if member.device.mtu > bond.mtu() {
            findings.warning(
                members.item(n).key("mtu"),
                format!("the bond's longest packet is that of its least member: {}", bond.mtu()),
                "give all members the same mtu",
            );
        }
    }
}

/// A connection of a mode that balances by hash has one member: a guarantee above what that carries
/// is kept for the endpoint's connections together only.
fn check_rate(findings: &mut Findings, switch: &Switch, bond: &Bond, switch_place: &Place) {
    if bond.settings.mode != Mode::BalanceXor {
        return;
    }
    let Some(least) = bond.members.iter().map(|member| member.rate).filter(|rate| rate.0 > 0).min() else { return };
    for (t, tenant) in switch.tenants.iter().enumerate() {
        for (e, endpoint) in tenant.endpoints.iter().enumerate() {
            let guarantees = Direction::ALL.iter().filter_map(|&d| *endpoint.knobs.guarantee.get(d));
            if guarantees.max().is_some_and(|guarantee| guarantee > least) {
                findings.warning(
                    switch_place.key("tenant").item(t).key("endpoint").item(e).key("guarantee"),
                    format!("a member carries {}: one connection has no more than that", show_rate(least)),
                    "it is kept for several connections together; lower it where the endpoint has one",
                );
            }
        }
    }
}

fn check_what_is_not_yet(findings: &mut Findings, switch: &Switch, uplink: &Uplink, bond: &Bond, place: &Place) {
    if uplink.vtep.is_some() {
        findings.error(
            place.key("vtep"),
            "tunnels do not go over a bond yet",
            "remove `vtep`, and give tenants a `vlan`; or an uplink with one port",
        );
    }
    let endpoints = switch.tenants.iter().flat_map(|tenant| &tenant.endpoints);
    let hosts: Vec<&str> = endpoints
        .filter_map(|endpoint| match &endpoint.device.locator {
            Some(Locator::Host(name)) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    for (n, member) in bond.members.iter().enumerate() {
        if let Some(Locator::Packet(name)) = &member.device.locator
            && hosts.contains(&name.as_str())
        {
            findings.error(
                place.key("bond").key("member").item(n).key("port"),
                format!("the host is not behind a bond yet: an endpoint is host://{name}"),
                "remove that endpoint, and give the host another interface",
            );
        }
    }
}
