//! Reading `[switch.uplink.bond]` and its members. Keys and words are those of Linux's bonding
//! driver.

use super::table::{Reader, Table};
use super::values;
use crate::bond::Notices;
use crate::config::{Bond, BondMember, Device};
use crate::problem::Problem;
use datapath::bond::lacp::LacpSettings;
use datapath::bond::{BondSettings, MOST_MEMBERS};

/// Keys of Linux and of ours that there is no code for yet: to be silent about them would be to
/// promise what they say.
const NOT_YET: [&str; 16] = [
    "arp_all_targets",
    "arp_interval",
    "arp_ip_target",
    "arp_missed_max",
    "arp_source",
    "arp_validate",
    "broadcast_neighbor",
    "damping",
    "ethertype",
    "lp_interval",
    "ns_ip6_target",
    "rebalance",
    "replay",
    "rtag",
    "silence",
    "tlb_dynamic_lb",
];

pub(super) fn bond(r: &mut Reader, mut t: Table<'_>) -> Bond {
    let bond = options(r, &mut t);
    let bond = Bond { members: r.tables(&mut t, "member").into_iter().map(|u| member(r, u)).collect(), ..bond };
    if bond.members.is_empty() {
        let problem = Problem::error(
            t.place.key("member"),
            "the bond has no members",
            "add [[switch.uplink.bond.member]] with port = \"packet://eth0\" and its rate",
        );
        r.problems.extend(problem.located(&r.locations, &r.hidden));
    }
    if bond.members.len() > MOST_MEMBERS {
        let problem = Problem::error(
            t.place.key("member").item(MOST_MEMBERS),
            format!("a bond has at most {MOST_MEMBERS} members"),
            "remove some",
        );
        r.problems.extend(problem.located(&r.locations, &r.hidden));
    }
    r.close(t);
    bond
}

/// A bond without its members.
pub(super) fn without_members(r: &mut Reader, mut t: Table<'_>) -> Bond {
    let bond = options(r, &mut t);
    r.close(t);
    bond
}

fn options(r: &mut Reader, t: &mut Table<'_>) -> Bond {
    let default = Bond::default();
    r.refuse(t, &NOT_YET, |_| Err(values::not_yet("bonding.md")));
    let secret_file = r.get(t, "secret_file", values::file);
    let mode = r.need(t, "mode", "\"balance-rr\"", values::bond_mode).unwrap_or_default();
    let (order, encoding) =
        r.get(t, "order", values::bond_order).unwrap_or((default.settings.order, default.settings.encoding));
    let settings = BondSettings {
        mode,
        hash: r.get(t, "xmit_hash_policy", values::hash_policy).unwrap_or_default(),
        packets_per_member: r.get(t, "packets_per_slave", values::packets).unwrap_or(1),
        all_members_active: r.get(t, "all_slaves_active", values::zero_or_one).unwrap_or(false),
        order,
        encoding,
        hold_ns: r.get(t, "hold", values::hold).unwrap_or(default.settings.hold_ns),
        is_keyed: secret_file.is_some(),
        lacp: lacp(r, t),
    };
    // Two names of one thing in Linux.
    let notices = r.get(t, "num_grat_arp", values::notices);
    let notices = r.get(t, "num_unsol_na", values::notices).or(notices);
    let notices = Notices {
        announcements: notices.unwrap_or(default.notices.announcements),
        gap_ns: r.get(t, "peer_notif_delay", values::bond_time).unwrap_or(default.notices.gap_ns),
        queries: r.get(t, "resend_igmp", values::notices).unwrap_or(default.notices.queries),
    };
    // Read for its mistakes only: there is one value.
    r.get(t, "fail_over_mac", values::fail_over_mac);
    Bond {
        settings,
        secret_file,
        system: r.get(t, "ad_actor_system", values::mac),
        miimon_ns: r.get(t, "miimon", values::bond_time).unwrap_or(default.miimon_ns),
        updelay_ns: r.get(t, "updelay", values::bond_time).unwrap_or(0),
        downdelay_ns: r.get(t, "downdelay", values::bond_time).unwrap_or(0),
        primary: r.get(t, "primary", values::member_name),
        reselect: r.get(t, "primary_reselect", values::reselect).unwrap_or_default(),
        notices,
        members: Vec::new(),
    }
}

fn lacp(r: &mut Reader, t: &mut Table<'_>) -> LacpSettings {
    let default = LacpSettings::default();
    LacpSettings {
        is_fast: r.get(t, "lacp_rate", values::lacp_rate).unwrap_or(default.is_fast),
        is_active: r.get(t, "lacp_active", values::on_or_off).unwrap_or(default.is_active),
        min_links: r.get(t, "min_links", values::min_links).unwrap_or(default.min_links),
        select: r.get(t, "ad_select", values::ad_select).unwrap_or(default.select),
        system_priority: r.get(t, "ad_actor_sys_prio", values::lacp_priority).unwrap_or(default.system_priority),
        is_coupled: r.get(t, "coupled_control", values::on_or_off).unwrap_or(default.is_coupled),
        is_strict: r.get(t, "lacp_strict", values::on_or_off).unwrap_or(default.is_strict),
        user_key: r.get(t, "ad_user_port_key", values::user_key).unwrap_or(default.user_key),
        ..default
    }
}

pub(super) fn member(r: &mut Reader, mut t: Table<'_>) -> BondMember {
    let default = BondMember::default();
    let device = super::device(r, &mut t, Some("\"packet://eth0\""));
    let member = BondMember {
        device: Device { mac: r.get(&mut t, "mac", values::mac), ..device },
        rate: r.need(&mut t, "rate", "\"1 Gbit/s\"", values::rate).unwrap_or_default(),
        priority: r.get(&mut t, "prio", values::priority).unwrap_or_default(),
        port_priority: r.get(&mut t, "ad_actor_port_prio", values::lacp_priority).unwrap_or(default.port_priority),
        is_down: r.get(&mut t, "admin", values::admin).unwrap_or(false),
    };
    if member.device.locator.is_some() {
        r.locations.record_name(&t.place, &member.name());
    }
    r.close(t);
    member
}
