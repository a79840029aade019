//! Parts of the report: what `levada show tenants` and the like print. As JSON, each is a list
//! under the part's name, its items with the names of what they are in.

use super::{bytes, reasons, state};
use crate::api::report::{
    EndpointReport, LaneReport, QueueReport, Report, SharedReport, SojournReport, SwitchReport, TenantReport,
};
use crate::api::tables::TablesReply;
use crate::command::cli::What;
use control::units::{show_rate, show_time};
use datapath::bond::MemberState;
use datapath::units::Rate;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Columns of every part.
const COLUMNS: usize = 10;
type Row = [String; COLUMNS];

fn row<const N: usize>(cells: [&str; N]) -> Row {
    std::array::from_fn(|i| cells.get(i).map_or_else(String::new, |cell| (*cell).to_owned()))
}

fn tenants(report: &Report) -> impl Iterator<Item = (&SwitchReport, &TenantReport)> {
    report.switches.iter().flat_map(|switch| switch.tenants.iter().map(move |tenant| (switch, tenant)))
}

fn endpoints(report: &Report) -> impl Iterator<Item = (String, &EndpointReport)> {
    tenants(report).flat_map(|(switch, tenant)| {
        let path = format!("{}/{}", switch.name, tenant.name);
        tenant.endpoints.iter().map(move |endpoint| (format!("{path}/{}", endpoint.name), endpoint))
    })
}

/// The rows of a part, the first one its head.
pub fn rows(report: &Report, what: What) -> Vec<Row> {
    match what {
        What::Switches => switch_rows(report),
        What::Tenants => {
            let shares = tenants(report).map(|(switch, tenant)| {
                (format!("{}/{}", switch.name, tenant.name), [(&tenant.egress, None), (&tenant.ingress, None)])
            });
            share_rows("tenant", shares)
        }
        What::Endpoints => {
            let shares = endpoints(report).map(|(path, e)| {
                let waited = [(&e.sojourn.egress, &e.local_egress), (&e.sojourn.ingress, &e.local_ingress)];
                (path, [(&e.egress, Some(waited[0])), (&e.ingress, Some(waited[1]))])
            });
            share_rows("endpoint", shares)
        }
        What::Ports => port_rows(report),
        What::Links => link_rows(report),
        What::Drops => drop_rows(report),
        What::Queues => queue_rows(report),
        What::All
        | What::Agents
        | What::Bonds
        | What::Cluster
        | What::Config
        | What::Connections
        | What::Openflow
        | What::Services
        | What::Tables
        | What::Tunnels
        | What::Vcc => Vec::new(),
    }
}

fn switch_rows(report: &Report) -> Vec<Row> {
    let mut rows =
        vec![row(["switch", "order", "ingress", "learned", "uplink", "state", "promised out", "promised in"])];
    for switch in &report.switches {
        let learned = switch.learned.to_string();
        let (port, state, promises) = match &switch.uplink {
            None => ("", "", [String::new(), String::new()]),
            Some(uplink) => {
                let promise = |d: &crate::api::report::UplinkDirection| {
                    let kept = if d.met { "" } else { " (cannot be met)" };
                    format!("{} of {}{kept}", show_rate(Rate(d.promised_bps)), show_rate(Rate(d.capacity_bps)))
                };
                (uplink.port.as_str(), uplink.state.as_str(), [promise(&uplink.egress), promise(&uplink.ingress)])
            }
        };
        rows.push(row([
            &switch.name,
            &switch.order,
            &switch.ingress,
            &learned,
            port,
            state,
            &promises[0],
            &promises[1],
        ]));
    }
    rows
}

/// One direction of something with a share: of an endpoint, how long its frames waited too, and
/// what it exchanged with neighbours.
type Direction<'a> = (&'a SharedReport, Option<(&'a SojournReport, &'a LaneReport)>);

fn share_rows<'a>(head: &str, shares: impl Iterator<Item = (String, [Direction<'a>; 2])>) -> Vec<Row> {
    let mut rows =
        vec![row([head, "", "at least", "at most", "weight", "sent", "waits", "99 % waited", "longest wait", "unmet"])];
    let rate = |bps: Option<u64>| bps.filter(|&bps| bps > 0).map_or_else(|| "-".to_owned(), |bps| show_rate(Rate(bps)));
    let time = |ns: u64| show_time(ns / 1_000 * 1_000);
    for (path, directions) in shares {
        for ((name, word), (share, waited)) in [(path.as_str(), "egress"), ("", "ingress")].into_iter().zip(directions)
        {
            let LaneReport { wire_bytes, backlog_bytes, sojourn_max_ns, .. } = share.traffic;
            rows.push(row([
                name,
                word,
                &rate(Some(share.guarantee_bps)),
                &rate(share.limit_bps),
                &share.weight.to_string(),
                &bytes(wire_bytes),
                &bytes(backlog_bytes),
                &waited.map_or_else(|| "-".to_owned(), |(sojourn, _)| time(sojourn.p99_ns)),
                &time(waited.map_or(0, |(_, local)| local.sojourn_max_ns).max(sojourn_max_ns)),
                &if share.unmet_ns == 0 { "-".to_owned() } else { show_time(share.unmet_ns / 1_000_000 * 1_000_000) },
            ]));
        }
    }
    rows
}

fn port_rows(report: &Report) -> Vec<Row> {
    let mut rows = vec![row(["port", "of", "state", "losses", "worker's time"])];
    for switch in &report.switches {
        let Some(uplink) = &switch.uplink else { continue };
        let path = format!("{}/uplink", switch.name);
        let Some(bond) = &uplink.bond else {
            let state = state(&uplink.state, uplink.device.as_ref());
            let unsettled = uplink.device.as_ref().and_then(|device| device.unsettled.as_deref());
            let used = (uplink.losses, uplink.worker_ns);
            rows.extend(port_row(&uplink.port, &path, state, used, (uplink.lost.as_deref(), unsettled)));
            continue;
        };
        for member in &bond.members {
            let is_up = member.device == "up" && member.state != MemberState::Down.name();
            let state = if is_up { format!("up: {}", member.state) } else { "down".to_owned() };
            let (path, used) = (format!("{path}/{}", member.name), (member.losses, member.worker_ns));
            rows.extend(port_row(&member.port, &path, state, used, (member.lost.as_deref(), None)));
        }
    }
    for (path, endpoint) in endpoints(report) {
        let state = state(&endpoint.state, endpoint.device.as_ref());
        let unsettled = endpoint.device.as_ref().and_then(|device| device.unsettled.as_deref());
        let used = (endpoint.losses, endpoint.worker_ns);
        rows.extend(port_row(&endpoint.port, &path, state, used, (endpoint.lost.as_deref(), unsettled)));
    }
    rows
}

/// A port, how often it was lost and the worker's time for it; and below, since it is a sentence,
/// why it is lost or what is not set up.
fn port_row(
    port: &str,
    path: &str,
    state: String,
    (losses, worker_ns): (u64, u64),
    (lost, unsettled): (Option<&str>, Option<&str>),
) -> Vec<Row> {
    let state = if lost.is_some() { "lost" } else { &state };
    let mut rows = vec![row([port, path, state, &losses.to_string(), &show_time(worker_ns / 1_000 * 1_000)])];
    rows.extend(lost.or(unsettled).map(|why| row(["", "", why])));
    rows
}

fn link_rows(report: &Report) -> Vec<Row> {
    let mut rows = vec![row(["link", "end", "sent", "drops", "losses", "marks", "waits", "most waited"])];
    for link in &report.links {
        for (name, end, sent) in [(link.name.as_str(), "a", &link.a), ("", "b", &link.b)] {
            let [drops, losses, marks] = [sent.all_drops(), sent.losses, sent.marks].map(|n| n.to_string());
            let [wire, waits, most] = [sent.bytes, sent.backlog_bytes, sent.backlog_max_bytes].map(bytes);
            rows.push(row([name, end, &wire, &drops, &losses, &marks, &waits, &most]));
        }
    }
    rows
}

fn queue_rows(report: &Report) -> Vec<Row> {
    let head = ["queue", "", "kind", "signals from", "marks", "dropped", "full: ECT", "full: not ECT", "SYNs lost"];
    let mut rows = vec![row(head)];
    for (path, way, queue) in queues(report) {
        let from = signals_from(queue);
        let (dropped, full) = (&queue.dropped, &queue.overflowed);
        let numbers = [
            queue.marks,
            dropped.syn + dropped.ect + dropped.ack + dropped.other,
            full.ect,
            full.syn + full.ack + full.other,
            dropped.syn + full.syn,
        ];
        let [marks, dropped, ect, not_ect, syns] = numbers.map(|n| n.to_string());
        rows.push(row([&path, way, &queue.kind, &from, &marks, &dropped, &ect, &not_ect, &syns]));
    }
    rows
}

/// The wait or the queue above which it signals.
fn signals_from(queue: &QueueReport) -> String {
    match *queue {
        QueueReport { target_ns: Some(ns), .. } => format!("{} waited", show_time(ns / 1_000 * 1_000)),
        QueueReport { min_bytes: Some(min), max_bytes: Some(max), average_bytes, .. } => {
            let now = average_bytes.map_or_else(String::new, |average| format!(", now {}", bytes(average)));
            format!("average {} to {}{now}", bytes(min), bytes(max))
        }
        QueueReport { min_bytes: Some(min), .. } => bytes(min),
        _ => "-".to_owned(),
    }
}

/// The queues with a discipline of their own: of what, and in which direction or at which end.
fn queues(report: &Report) -> impl Iterator<Item = (String, &'static str, &QueueReport)> {
    let links = report.links.iter().flat_map(|link| {
        [("a", &link.a), ("b", &link.b)].map(|(end, sent)| (format!("link {}", link.name), end, &sent.queue))
    });
    let endpoints = endpoints(report).flat_map(|(path, endpoint)| {
        let ways = [("egress", &endpoint.egress), ("ingress", &endpoint.ingress)];
        ways.map(move |(way, share)| share.queue.as_ref().map(|queue| (path.clone(), way, queue)))
    });
    links.chain(endpoints.flatten())
}

fn drop_rows(report: &Report) -> Vec<Row> {
    let mut rows = vec![row(["of", "dropped"])];
    for (path, drops) in all_drops(report) {
        rows.push(row([&path, reasons(drops).trim_start()]));
    }
    rows
}

/// Everything that has drops.
fn all_drops(report: &Report) -> impl Iterator<Item = (String, &BTreeMap<String, u64>)> {
    let uplinks = report
        .switches
        .iter()
        .filter_map(|switch| switch.uplink.as_ref().map(|uplink| (format!("{}/uplink", switch.name), &uplink.drops)));
    let endpoints = endpoints(report).map(|(path, endpoint)| (path, &endpoint.drops));
    uplinks.chain(endpoints).filter(|(_, drops)| !drops.is_empty())
}

/// The addresses, tenant by tenant.
pub fn table_rows(tables: &TablesReply) -> Vec<Row> {
    let mut rows = vec![row(["tenant", "address", "vlan", "endpoint", "", "last seen", "forgotten in"])];
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| show_time(ns / 1_000_000_000 * 1_000_000_000));
    for tenant in &tables.tenants {
        for (n, address) in tenant.addresses.iter().enumerate() {
            rows.push(row([
                if n == 0 { tenant.path.as_str() } else { "" },
                &address.mac,
                &address.vlan.map_or_else(|| "-".to_owned(), |vlan| vlan.to_string()),
                &address.endpoint,
                if address.declared { "declared" } else { "learned" },
                &time(address.seen_ns),
                &time(address.left_ns),
            ]));
        }
        if tenant.left_out() > 0 {
            rows.push(row([&tenant.path, &format!("and {} more", tenant.left_out())]));
        }
    }
    rows
}

/// A part as JSON.
pub fn json(report: &Report, what: What) -> Value {
    fn named<T: Serialize>(path: &str, value: &T) -> Value {
        let mut value = serde_json::to_value(value).unwrap_or_default();
        value["path"] = path.into();
        value
    }
    let list: Vec<Value> = match what {
        What::Switches => {
            let without_tenants = |switch: &SwitchReport| {
                let mut value = named(&switch.name, switch);
                value.as_object_mut().map(|map| map.remove("tenants"));
                value
            };
            report.switches.iter().map(without_tenants).collect()
        }
        What::Tenants => {
            let without_endpoints = |(switch, tenant): (&SwitchReport, &TenantReport)| {
                let mut value = named(&format!("{}/{}", switch.name, tenant.name), tenant);
                value.as_object_mut().map(|map| map.remove("endpoints"));
                value
            };
            tenants(report).map(without_endpoints).collect()
        }
        What::Endpoints => endpoints(report).map(|(path, endpoint)| named(&path, endpoint)).collect(),
        What::Ports => {
            let uplinks = report.switches.iter().filter_map(|switch| Some((switch, switch.uplink.as_ref()?)));
            let uplinks = uplinks.flat_map(|(switch, uplink)| {
                let path = format!("{}/uplink", switch.name);
                // A bond has a line for all its members, and one for each.
                let members = uplink.bond.iter().flat_map(|bond| &bond.members).map(|member| {
                    json!({
                        "path": format!("{path}/{}", member.name), "port": member.port, "state": member.device,
                        "used_as": member.state, "lost": member.lost, "losses": member.losses,
                        "worker_ns": member.worker_ns
                    })
                });
                let all = json!({
                    "path": path, "port": uplink.port, "state": uplink.state, "device": uplink.device,
                    "lost": uplink.lost, "losses": uplink.losses, "worker_ns": uplink.worker_ns
                });
                [all].into_iter().chain(members).collect::<Vec<_>>()
            });
            let port = |(path, e): (String, &EndpointReport)| {
                json!({
                    "path": path, "port": e.port, "state": e.state, "device": e.device, "lost": e.lost,
                    "losses": e.losses, "worker_ns": e.worker_ns
                })
            };
            uplinks.chain(endpoints(report).map(port)).collect()
        }
        What::Links => report.links.iter().map(|link| named(&link.name, link)).collect(),
        What::Queues => {
            let one = |(path, way, queue): (String, &str, &QueueReport)| {
                let mut value = named(&path, queue);
                value["way"] = way.into();
                value
            };
            queues(report).map(one).collect()
        }
        What::Drops => all_drops(report).map(|(path, drops)| json!({"path": path, "drops": drops})).collect(),
        What::All
        | What::Agents
        | What::Bonds
        | What::Cluster
        | What::Config
        | What::Connections
        | What::Openflow
        | What::Services
        | What::Tables
        | What::Tunnels
        | What::Vcc => Vec::new(),
    };
    let word = match what {
        What::Switches => "switches",
        What::Tenants => "tenants",
        What::Endpoints => "endpoints",
        What::Ports => "ports",
        What::Links => "links",
        What::Queues => "queues",
        What::Drops => "drops",
        What::All
        | What::Agents
        | What::Bonds
        | What::Cluster
        | What::Config
        | What::Connections
        | What::Openflow
        | What::Services
        | What::Tables
        | What::Tunnels
        | What::Vcc => "all",
    };
    json!({"version": report.version, "name": report.name, "now_ns": report.now_ns, word: list})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_shows_from_where_on_it_signals() {
        let (ns, min, max, average) = (Some(1_250_999), Some(30_000), Some(90_000), Some(1_234));
        for (queue, shown) in [
            (QueueReport { target_ns: ns, ..QueueReport::default() }, "1.25 ms waited"),
            (QueueReport { min_bytes: min, ..QueueReport::default() }, "30.0 kB"),
            (
                QueueReport { min_bytes: min, max_bytes: max, average_bytes: average, ..QueueReport::default() },
                "average 30.0 kB to 90.0 kB, now 1.23 kB",
            ),
            (QueueReport::default(), "-"),
        ] {
            assert_eq!(signals_from(&queue), shown);
        }
    }
}
