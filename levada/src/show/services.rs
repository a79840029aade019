//! `levada show services` and `levada show connections`.

use super::columns;
use crate::services::{ConnectionsReply, ServicesReply};
use std::fmt::Write as _;

/// Services, and below each its backends.
pub fn text(reply: &ServicesReply) -> String {
    let mut out = String::new();
    for service in &reply.services {
        let _ = writeln!(
            out,
            "service {}  {}, policy {}; {} new ({} off their candidates), {} refused, {} without room, {} evicted, \
             {} of {} found again; table {} of {}",
            service.path,
            service.addresses.join(", "),
            service.policy,
            service.new,
            service.off_candidates,
            service.refused,
            service.full,
            service.evicted,
            service.recovered,
            service.sought,
            service.table,
            service.table_most
        );
        let head = ["backend", "weight", "busy", "idle", "new", "refused", "load"].map(str::to_owned);
        let rows = service.backends.iter().map(|backend| {
            let load = backend
                .load_milli
                .map_or_else(|| "-".to_owned(), |load| format!("{}.{:02}", load / 1000, load % 1000 / 10));
            let numbers =
                [u64::from(backend.weight), backend.busy.into(), backend.idle.into(), backend.new, backend.refused];
            let [weight, busy, idle, new, refused] = numbers.map(|number| number.to_string());
            [backend.name.clone(), weight, busy, idle, new, refused, load]
        });
        out += &columns(&[head].into_iter().chain(rows).collect::<Vec<_>>());
    }
    if out.is_empty() { "there are no services\n".to_owned() } else { out }
}

/// Connections.
pub fn connections(reply: &ConnectionsReply) -> String {
    let head = ["client", "address", "backend", "state", "", "idle"].map(str::to_owned);
    let rows = reply.connections.iter().map(|one| {
        let busy = if one.busy { "busy" } else { "" };
        let idle = format!("{} s", one.idle_ns / 1_000_000_000);
        [one.client.clone(), one.address.clone(), one.backend.clone(), one.state.clone(), busy.to_owned(), idle]
    });
    columns(&[head].into_iter().chain(rows).collect::<Vec<_>>())
}
