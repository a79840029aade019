//! `levada show services` and `levada show connections`.

use super::columns;
use crate::api::services::{ConnectionsReply, ServicesReply};
use std::fmt::Write as _;

/// Services, and below each its backends.
pub fn text(reply: &ServicesReply) -> String {
    let mut out = String::new();
    for service in &reply.services {
        let _ = writeln!(
            out,
            "service {}  {} ({}), policy {}; {} new ({} off their candidates, {} with health ignored, {} held), {} redirected, {} refused, {} without room, \
             {} evicted, {} of {} found again; table {} of {}",
            service.path,
            service.addresses.join(", "),
            service.mac,
            service.policy,
            service.new,
            service.off_candidates,
            service.unhealthy,
            service.held,
            service.redirected,
            service.refused,
            service.full,
            service.evicted,
            service.recovered,
            service.sought,
            service.table,
            service.table_most
        );
        let head =
            ["backend", "state", "weight", "busy", "idle", "new", "refused", "silent", "ended", "checks", "load"]
                .map(str::to_owned);
        let rows = service.backends.iter().map(|backend| {
            let load = backend
                .load_milli
                .map_or_else(|| "-".to_owned(), |load| format!("{}.{:02}", load / 1000, load % 1000 / 10));
            let connections = [backend.new, backend.refused, backend.silent, backend.ended];
            let [new, refused, silent, ended] = connections.map(|number| number.to_string());
            let [weight, busy, idle] = [backend.weight, backend.busy, backend.idle].map(|number| number.to_string());
            let checks = match backend.checks {
                0 => "-".to_owned(),
                checks => format!("{} of {checks} failed", backend.failed_checks),
            };
            let state = match backend.drain_left_ns {
                Some(left_ns) if backend.state == "drain" => {
                    format!("drain, {} s left", left_ns.div_ceil(1_000_000_000))
                }
                _ => backend.state.clone(),
            };
            let state = match backend.unconfirmed {
                0 => state,
                unconfirmed => format!("{state}, {unconfirmed} unconfirmed"),
            };
            [backend.name.clone(), state, weight, busy, idle, new, refused, silent, ended, checks, load]
        });
        if service.holding > 0 {
            let _ = writeln!(out, "{} new connections wait for a backend that may have more", service.holding);
        }
        out += &columns(&[head].into_iter().chain(rows).collect::<Vec<_>>());
    }
    if out.is_empty() {
        "there are no services\n".clone_into(&mut out);
    }
    if let Some(reports) = &reply.reports {
        let counts = reports.named().map(|(name, count)| format!("{count} {name}"));
        let _ = writeln!(out, "load reports: {}", counts.join(", "));
    }
    out
}

/// Connections.
pub fn connections(reply: &ConnectionsReply) -> String {
    let head = ["client", "address", "backend", "state", "", "idle"].map(str::to_owned);
    let rows = reply.connections.iter().map(|one| {
        let busy = if one.busy { "busy" } else { "" };
        let idle = format!("{} s", one.idle_ns / 1_000_000_000);
        let from = one.asked_from.map_or_else(String::new, |port| format!(" (from port {port})"));
        [one.client.clone(), one.address.clone(), one.backend.clone() + &from, one.state.clone(), busy.to_owned(), idle]
    });
    columns(&[head].into_iter().chain(rows).collect::<Vec<_>>())
}
