//! `levada show tunnels`: the ends of tunnels, what goes through them, and the way to other hosts.

use super::columns;
use crate::api::tunnels::{Carried, TunnelsReply, TunnelsReport};
use std::fmt::Write as _;

/// As text.
pub fn text(reply: &TunnelsReply) -> String {
    if reply.switches.is_empty() {
        return "no tunnels; `vtep` at an uplink and `vni` at its tenants give a switch some\n".to_owned();
    }
    reply.switches.iter().map(one).collect()
}

fn one(tunnels: &TunnelsReport) -> String {
    let state = tunnels.mac.as_deref().map_or("down".to_owned(), |mac| format!("up, {mac}"));
    let mut out = format!(
        "switch {}: {} over {} ({state}), packets of up to {} bytes, TCP {}\n",
        tunnels.switch,
        tunnels.vtep,
        tunnels.over,
        tunnels.mtu,
        carried(tunnels.tcp)
    );
    if let Some(error) = &tunnels.error {
        let _ = writeln!(out, "  {error}");
    }
    let mut rows = vec![["tenant", "vni", "addresses elsewhere"].map(str::to_owned)];
    let networks = tunnels.networks.iter();
    rows.extend(networks.map(|one| [one.tenant.clone(), one.vni.to_string(), one.addresses.to_string()]));
    out += &columns(&rows);
    let mut rows = vec![["host", "vtep", "next hop", "up to bytes", "tenants", ""].map(str::to_owned)];
    rows.extend(tunnels.hosts.iter().map(|host| {
        let next = host.next_hop.clone().unwrap_or_else(|| "-".to_owned());
        let error = host.error.clone().unwrap_or_default();
        let most = host.path_mtu.unwrap_or(tunnels.mtu).to_string();
        [host.host.clone(), host.vtep.clone(), next, most, host.tenants.join(","), error]
    }));
    if rows.len() > 1 {
        out += &columns(&rows);
    }
    for what in &tunnels.left_out {
        let _ = writeln!(out, "  left out: {what}");
    }
    let more = tunnels.left_outs.saturating_sub(tunnels.left_out.len() as u64);
    if more > 0 {
        let _ = writeln!(out, "  left out: {more} more");
    }
    for path in &tunnels.too_long {
        let _ = writeln!(out, "  {path} may send packets that are too long for a tunnel");
    }
    out
}

fn carried(tcp: Carried) -> &'static str {
    match tcp {
        Carried::Whole => "whole",
        Carried::Trains => "in trains",
        Carried::Segments => "in segments",
    }
}
