//! `levada show bonds`: the members of uplinks.

use super::{bytes, columns};
use crate::api::bonds::{BondReport, BondsReply, MemberReport, OrderReport, SwitchBond};
use crate::api::lacp::{EndReport, LacpReport, PortReport};
use control::units::show_rate;
use datapath::units::Rate;
use std::fmt::Write as _;

/// A line for the switch that has it.
pub fn summary(bond: &BondReport) -> String {
    let sending = bond.members.iter().filter(|member| member.state == "distributing").count();
    let active = bond.active.as_ref().map_or_else(String::new, |active| format!(", {active} active"));
    format!("bond    {}, {sending} of {} members may send{active}", bond.mode, bond.members.len())
}

/// All bonds, as text.
pub fn text(reply: &BondsReply) -> String {
    let mut out = String::new();
    for SwitchBond { switch, bond } in &reply.bonds {
        let _ = writeln!(out, "{switch}/uplink  {}", bond.mode);
        let rates = [bond.rate_bps, bond.configured_bps].map(|bps| show_rate(Rate(bps)));
        let _ = writeln!(out, "  carries {} of {}", rates[0], rates[1]);
        if let Some(policy) = &bond.xmit_hash_policy {
            let _ = writeln!(out, "  xmit_hash_policy {policy}");
        }
        if bond.mode == "active-backup" {
            let _ = writeln!(out, "  active {}", bond.active.as_deref().unwrap_or("none"));
            let reselect = bond.primary_reselect.as_deref().unwrap_or("always");
            let primary = bond.primary.as_deref().unwrap_or("none");
            let gap = bond.peer_notif_delay_ms.unwrap_or_default();
            let _ = writeln!(out, "  primary {primary}, primary_reselect {reselect}, peer_notif_delay {gap} ms");
        }
        let BondReport { miimon_ms, updelay_ms, downdelay_ms, .. } = bond;
        let _ = writeln!(out, "  miimon {miimon_ms} ms, updelay {updelay_ms} ms, downdelay {downdelay_ms} ms");
        if let Some(order) = &bond.order {
            out += &order_text(order);
        }
        if let Some(lacp) = &bond.lacp {
            out += &lacp_text(lacp);
        }
        let head = [
            "  member", "port", "address", "state", "for", "rate", "link", "failures", "sent", "received", "waits",
            "marked", "full",
        ];
        let mut rows = vec![head.map(str::to_owned)];
        for member in &bond.members {
            rows.push([
                format!("  {}", member.name),
                member.port.clone(),
                member.mac.clone().unwrap_or_else(|| "-".to_owned()),
                state(member),
                duration(member.state_ms),
                paced(member),
                link(member),
                member.failures.to_string(),
                bytes(member.sent.wire_bytes),
                bytes(member.received.wire_bytes),
                bytes(member.waiting_bytes),
                member.marks.to_string(),
                member.full.to_string(),
            ]);
        }
        out += &columns(&rows);
        for member in &bond.members {
            if let Some(peer) = &member.peer {
                let _ = writeln!(out, "  {}: {peer}", member.name);
            }
            if member.lost_frames > 0 {
                let _ = writeln!(out, "  {}: {} frames of the other end were lost", member.name, member.lost_frames);
            }
            if let Some(port) = &member.lacp {
                out += &port_text(&member.name, port);
            }
        }
    }
    if out.is_empty() { "no uplink has several ports\n".to_owned() } else { out }
}

/// What a member is used for, why it is not where that is known, and when that changes.
fn state(member: &MemberReport) -> String {
    let has_lost = member.carrier == "down";
    let why = match (member.admin.as_str(), member.device.as_str(), member.turns_ms) {
        ("down", ..) => Some("by hand"),
        (_, device, _) if device != "up" => Some("no device"),
        (.., None) => has_lost.then_some("no carrier"),
        (.., Some(_)) => has_lost.then_some("carrier lost"),
    };
    let wait = member.turns_ms.map(|ms| {
        let what = if has_lost { "given up" } else { "used" };
        format!("{what} in {}", duration(ms.next_multiple_of(1000)))
    });
    let all: Vec<&str> = why.into_iter().chain(wait.as_deref()).collect();
    if all.is_empty() { member.state.clone() } else { format!("{} ({})", member.state, all.join(", ")) }
}

/// A duration in its two largest units.
fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    let [days, hours, minutes] = [seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60];
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{} s", seconds),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// What a member is paced at: where that is its link's speed, with its rate.
fn paced(member: &MemberReport) -> String {
    let [rate, configured] = [member.rate_bps, member.configured_bps].map(|bps| show_rate(Rate(bps)));
    if member.paced_by == "link" { format!("{rate} by link, of {configured}") } else { rate }
}

/// What the link of a member has negotiated.
fn link(member: &MemberReport) -> String {
    let speed = member.speed_bps.map(|bps| show_rate(Rate(bps)));
    let known: Vec<&str> = speed.as_deref().into_iter().chain(member.duplex.as_deref()).collect();
    if known.is_empty() { "unknown".to_owned() } else { known.join(" ") }
}

fn lacp_text(lacp: &LacpReport) -> String {
    let LacpReport { rate, ad_select, min_links, system, system_priority, .. } = lacp;
    let on = |is_on: bool| if is_on { "on" } else { "off" };
    let [active, coupled, strict] = [lacp.active, lacp.coupled_control, lacp.strict].map(on);
    let mut out = format!("  lacp_rate {rate}, lacp_active {active}, ad_select {ad_select}, min_links {min_links}\n");
    let _ = writeln!(out, "  coupled_control {coupled}, lacp_strict {strict}");
    let _ = writeln!(out, "  system {system}, priority {system_priority}");
    let _ = match &lacp.aggregator {
        Some(used) => writeln!(
            out,
            "  aggregator {} of {} ports, key {}; partner {}, key {}",
            used.id, used.ports, used.actor_key, used.partner_system, used.partner_key
        ),
        None => writeln!(out, "  no aggregator is used"),
    };
    out
}

fn port_text(name: &str, port: &PortReport) -> String {
    let mut out =
        format!("  {name}: aggregator {}, {}, {}, {}", port.aggregator, port.selected, port.receive, port.mux);
    if let Some(why) = &port.why_not {
        let _ = write!(out, ": {why}");
    }
    out.push('\n');
    for (who, end, churn, churned) in [
        ("actor", &port.actor, &port.actor_churn, port.actor_churned),
        ("partner", &port.partner, &port.partner_churn, port.partner_churned),
    ] {
        let EndReport { system, system_priority, port, port_priority, key, state } = end;
        let _ = writeln!(
            out,
            "    {who:<8} system {system_priority} {system}, port {port_priority} {port}, key {key}, churn {churn} ({churned})"
        );
        let _ = writeln!(out, "             {}", state.join(" "));
    }
    let PortReport { received, sent, bad, markers, .. } = port;
    let _ = writeln!(out, "    LACPDUs  {received} received, {sent} sent, {bad} bad; {markers} markers");
    out
}

fn order_text(order: &OrderReport) -> String {
    let mut out = String::new();
    let OrderReport { hold_us, received, held, waiting, hold_max_us, late, lost, duplicate, .. } = order;
    match &order.why_not {
        None => out += "  frames are numbered and kept in order",
        Some(why) => {
            let _ = write!(out, "  frames are not numbered: {why}");
        }
    }
    let _ = writeln!(out, " (hold {hold_us} us)");
    if order.keyed {
        let _ = writeln!(out, "  hellos are under a secret; {} were refused", order.refused);
    } else if order.refused > 0 {
        let _ = writeln!(out, "  {} hellos were under a secret, and refused", order.refused);
    }
    if *received > 0 {
        let _ = writeln!(
            out,
            "  of {received} received {held} waited, at most {hold_max_us} us; {waiting} wait now; {late} late, {lost} lost, {duplicate} duplicate"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_its_reason_and_its_end() {
        let carried = serde_json::json!({"segments": 0, "wire_bytes": 0});
        let member = serde_json::json!({"name": "eth0", "port": "packet://eth0", "state": "down", "device": "up",
            "rate_bps": 0, "failures": 0, "sent": carried, "received": carried, "full": 0, "replayed": 0,
            "waiting_bytes": 0});
        let member: MemberReport = serde_json::from_value(member).unwrap();
        assert_eq!(state(&member), "down", "of a daemon that says no more");
        for (is, admin, device, carrier, turns_ms, wanted) in [
            ("distributing", "up", "up", "up", None, "distributing"),
            ("distributing", "up", "up", "down", Some(28_001), "distributing (carrier lost, given up in 29 s)"),
            ("down", "up", "up", "down", None, "down (no carrier)"),
            ("down", "up", "up", "up", Some(58_000), "down (used in 58 s)"),
            ("down", "up", "up", "unknown", Some(60_000), "down (used in 1 min 0 s)"),
            ("down", "up", "down", "down", None, "down (no device)"),
            ("distributing", "up", "down", "down", Some(1), "distributing (no device, given up in 1 s)"),
            ("standby", "down", "up", "up", None, "standby (by hand)"),
        ] {
            let [is, admin, device, carrier] = [is, admin, device, carrier].map(str::to_owned);
            let member = MemberReport { state: is, admin, device, carrier, turns_ms, ..member.clone() };
            assert_eq!(state(&member), wanted);
        }
    }
}
