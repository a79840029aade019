//! Bonds: options that their mode uses, members that exist and fit each other, and what does not go
//! over a bond yet.

use super::Findings;
use super::interfaces::{Interface, host_of, taken_by};
use crate::bond::{Notices, Reselect};
use crate::config::{Bond, BondMember, Config, Switch};
use crate::place::Place;
use crate::units::show_rate;
use datapath::bond::lacp::key;
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
        check_admin(findings, bond, &place.key("bond"));
        check_lacp(findings, bond, &place.key("bond"));
        check_rate(findings, switch, bond, &switch_place);
        check_room(findings, switch, bond, &place.key("bond"));
        check_host(findings, switch, bond, &place);
    }
}

/// An option that the mode does not use is an error, as in Linux: who writes it expects something
/// of it.
fn check_options(findings: &mut Findings, bond: &Bond, place: &Place) {
    const HASHED: &[Mode] = &[Mode::BalanceXor, Mode::Lacp];
    const NUMBERED: &[Mode] = &[Mode::BalanceRr, Mode::Broadcast];
    const TURNS: &[Mode] = &[Mode::BalanceRr];
    const BACKUP: &[Mode] = &[Mode::ActiveBackup];
    const GROUPED: &[Mode] = &[Mode::BalanceRr, Mode::ActiveBackup];
    const LACP: &[Mode] = &[Mode::Lacp];
    let settings = &bond.settings;
    let (mode, lacp, usual) = (settings.mode, &settings.lacp, Bond::default().settings);
    let options = [
        ("xmit_hash_policy", settings.hash != HashPolicy::default(), HASHED),
        ("packets_per_slave", settings.packets_per_member != 1, TURNS),
        ("all_slaves_active", settings.all_members_active, BACKUP),
        ("primary", bond.primary.is_some(), BACKUP),
        ("primary_reselect", bond.reselect != Reselect::default(), BACKUP),
        ("resend_igmp", bond.notices.queries != Notices::default().queries, GROUPED),
        ("peer_notif_delay", bond.notices.gap_ns != 0, BACKUP),
        ("order", (settings.order, settings.encoding) != (usual.order, usual.encoding), NUMBERED),
        ("hold", settings.hold_ns != usual.hold_ns, NUMBERED),
        ("secret_file", bond.secret_file.is_some(), NUMBERED),
        ("lacp_rate", lacp.is_fast, LACP),
        ("lacp_active", !lacp.is_active, LACP),
        ("min_links", lacp.min_links != 0, LACP),
        ("ad_select", lacp.select != usual.lacp.select, LACP),
        ("coupled_control", !lacp.is_coupled, LACP),
        ("lacp_strict", lacp.is_strict, LACP),
        ("ad_actor_sys_prio", lacp.system_priority != usual.lacp.system_priority, LACP),
        ("ad_actor_system", bond.system.is_some(), LACP),
        ("ad_user_port_key", lacp.user_key != 0, LACP),
    ];
    for (key, _, of) in options.into_iter().filter(|(_, is_given, of)| *is_given && !of.contains(&mode)) {
        has_no_effect(findings, place.key(key), key, mode, of);
    }
    if mode != Mode::ActiveBackup && bond.notices.announcements != Notices::default().announcements {
        // Linux takes it in every mode.
        findings.warning(
            place.key("num_grat_arp"),
            format!(
                "in mode \"{}\" nothing is announced: `num_grat_arp` and `num_unsol_na` have no effect",
                mode.name()
            ),
            "remove it, or write mode = \"active-backup\"",
        );
    }
    if bond.secret_file.is_some() && !settings.order && NUMBERED.contains(&mode) {
        findings.error(
            place.key("secret_file"),
            "without numbers nobody says hello: there is nothing to keep secret",
            "write order = \"auto\", or remove it",
        );
    }
    let Some(primary) = bond.primary.as_ref().filter(|_| mode == Mode::ActiveBackup) else { return };
    let names: Vec<String> = bond.members.iter().map(BondMember::name).collect();
    if !names.contains(primary) {
        let remedy = match findings.nearest(primary, names.iter().map(String::as_str)) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("its members are {}", names.join(", ")),
        };
        findings.error(place.key("primary"), format!("the bond has no member \"{primary}\""), remedy);
    }
}

fn has_no_effect(findings: &mut Findings, place: Place, key: &str, mode: Mode, of: &[Mode]) {
    let modes: Vec<_> = of.iter().map(|mode| format!("\"{}\"", mode.name())).collect();
    findings.error(
        place,
        format!("`{key}` has no effect in mode \"{}\"", mode.name()),
        format!("remove it, or write mode = {}", modes.join(" or ")),
    );
}

/// Below a number, a tenant's tag is one more than interfaces take beside their MTU; and where
/// bridges are between, a number is more than they take whatever is below it.
fn check_room(findings: &mut Findings, switch: &Switch, bond: &Bond, place: &Place) {
    if !bond.settings.may_number() || bond.members.is_empty() {
        return;
    }
    let shim = bond.settings.shim_bytes();
    let wanted = switch.tenants.iter().flat_map(|tenant| {
        let is_outside = matches!(tenant.attachment, Attachment::Vlan(_) | Attachment::Untagged);
        let endpoints = tenant.endpoints.iter().filter(move |_| is_outside);
        endpoints.filter_map(move |endpoint| {
            let has_tag = matches!(tenant.attachment, Attachment::Vlan(_)) || endpoint.trunk;
            let more = shim + if has_tag { TAG as u32 } else { 0 };
            (more > 0).then_some(endpoint.device.mtu + more)
        })
    });
    let Some(wanted) = wanted.max() else { return };
    if wanted > bond.mtu() {
        findings.warning(
            place.key("member"),
            "there is no room for a number before a tenant's frame: between two Levada hosts frames are not kept in order",
            format!("set the members' interfaces and their `mtu` to {wanted}, or write order = \"off\""),
        );
    }
}

fn check_members(findings: &mut Findings, bond: &Bond, place: &Place) {
    let members = place.key("member");
    let mut names = BTreeMap::new();
    for (n, member) in bond.members.iter().enumerate().filter(|(_, member)| member.device.locator.is_some()) {
        let &mut first = names.entry(member.name()).or_insert(n);
        if first != n {
            findings.error(
                members.item(n).key("port"),
                format!("the bond has another member called \"{}\"", member.name()),
                "a member is called as its device is: give each its own name",
            );
            findings.first_is(members.item(first).key("port"));
        }
        if member.priority != 0 && bond.settings.mode != Mode::ActiveBackup {
            has_no_effect(findings, members.item(n).key("prio"), "prio", bond.settings.mode, &[Mode::ActiveBackup]);
        }
        if member.port_priority != BondMember::default().port_priority && bond.settings.mode != Mode::Lacp {
            has_no_effect(
                findings,
                members.item(n).key("ad_actor_port_prio"),
                "ad_actor_port_prio",
                bond.settings.mode,
                &[Mode::Lacp],
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

/// Members that the operator has taken down.
fn check_admin(findings: &mut Findings, bond: &Bond, place: &Place) {
    let up = bond.members.iter().filter(|member| !member.is_down).count();
    let place = place.key("member").item(0).key("admin");
    if up == 0 && !bond.members.is_empty() {
        findings.warning(place, "every member is down: no frame is carried", "write admin = \"up\" at one");
    } else if up < usize::from(bond.settings.lacp.min_links) && bond.members.len() > up {
        findings.warning(
            place,
            format!("members that are not down: {up}, fewer than min_links: no frame is carried"),
            "write admin = \"up\" at more, or lower min_links",
        );
    }
}

/// Members of which some can never carry frames with the others.
fn check_lacp(findings: &mut Findings, bond: &Bond, place: &Place) {
    if bond.settings.mode != Mode::Lacp {
        return;
    }
    let lacp = &bond.settings.lacp;
    if usize::from(lacp.min_links) > bond.members.len() && !bond.members.is_empty() {
        findings.error(
            place.key("min_links"),
            format!("the bond has {} members: no frame would ever be carried", bond.members.len()),
            "lower it, or add members",
        );
    }
    let Some(first) = bond.members.first() else { return };
    let of = |member: &BondMember| key(lacp.user_key, member.rate, true);
    for (n, member) in bond.members.iter().enumerate().filter(|(_, member)| member.rate.0 > 0) {
        if first.rate.0 > 0 && of(member) != of(first) {
            findings.warning(
                place.key("member").item(n).key("rate"),
                format!(
                    "members of {} and of {} do not carry frames together in mode \"802.3ad\": some are on standby",
                    show_rate(first.rate),
                    show_rate(member.rate)
                ),
                "give all members the same rate",
            );
        }
    }
}

/// A connection of a mode that balances by hash has one member: a guarantee above what that carries
/// is kept for the endpoint's connections together only.
fn check_rate(findings: &mut Findings, switch: &Switch, bond: &Bond, switch_place: &Place) {
    if !bond.settings.mode.hashes() {
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

fn check_host(findings: &mut Findings, switch: &Switch, bond: &Bond, place: &Place) {
    let endpoints = switch.tenants.iter().flat_map(|tenant| &tenant.endpoints);
    let hosts: Vec<Interface<'_>> = endpoints.filter_map(|endpoint| host_of(&endpoint.device)).collect();
    for (n, member) in bond.members.iter().enumerate() {
        if let Some(taken) = taken_by(&member.device).filter(|taken| hosts.contains(taken)) {
            findings.error(
                place.key("bond").key("member").item(n).key("port"),
                format!("a bond shares no member with the host: an endpoint is host://{}", taken.0),
                "write port = \"tap://host0\" there: the host then has its address on that device, behind the bond",
            );
        }
    }
}
