//! `levada show`: asks a running daemon for its report, and prints it, or a part of it, for people
//! or as JSON.

mod agents;
mod bonds;
mod cluster;
mod openflow;
mod part;
mod services;
pub mod tunnels;

use crate::api::ConfigReply;
use crate::api::agents::AgentsReply;
use crate::api::bonds::BondsReply;
use crate::api::cluster::ClusterReply;
use crate::api::device::DeviceReport;
use crate::api::openflow::OpenFlowReply;
use crate::api::report::{
    EndpointReport, LaneReport, Report, SharedReport, ShortcutReport, SwitchReport, UplinkDirection,
};
use crate::api::services::{ConnectionsReply, ConnectionsRequest, ServicesReply};
use crate::api::tables::TablesReply;
use crate::api::tunnels::TunnelsReply;
use crate::api::vcc::{VccReply, VccRequest};
use crate::client::Client;
use crate::command::cli::{Show, What};
use crate::error::{Failure, print};
use crate::report::ON;
use crate::report::vcc;
use crate::report::whereabouts::find_processes;
use control::config::DEFAULT_QUEUE_BYTES;
use control::shortcut::Hindrance;
use control::units::{show_rate, show_time};
use datapath::units::Rate;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Names in a line; of more, how many.
const NAMES: usize = 8;

/// Shows it, once or again and again.
pub fn show(show: &Show) -> Result<(), Failure> {
    let client = Client::new(show.instance.name.as_deref())?;
    let Some(seconds) = show.watch else { return print(&one(&client, show)?) };
    loop {
        let text = one(&client, show)?;
        // JSON comes as a line each time; text replaces what was there (ECMA-48: cursor home, erase
        // below).
        print(&if show.json { text } else { format!("\x1b[H\x1b[J{text}") })?;
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

fn one(client: &Client, show: &Show) -> Result<String, Failure> {
    if show.what == What::Config {
        let config: ConfigReply = client.get("/v1/config")?;
        return if show.json { json(show, &config) } else { json(show, &config.config) };
    }
    if show.what == What::Tables {
        let tables: TablesReply = client.get("/v1/tables")?;
        return if show.json { json(show, &tables) } else { Ok(columns(&part::table_rows(&tables))) };
    }
    if show.what == What::Vcc {
        let vcc: VccReply = match &show.flow[..] {
            [] => client.get("/v1/vcc")?,
            ends => client.post("/v1/vcc/connections", &VccRequest { ends: ends.to_vec() })?,
        };
        if vcc.endpoints.is_empty() && !show.flow.is_empty() && !show.json {
            return Ok("nobody has such a connection\n".to_owned());
        }
        return if show.json { json(show, &vcc) } else { Ok(vcc::text(&vcc)) };
    }
    if show.what == What::Cluster {
        let reply: ClusterReply = client.get("/v1/cluster")?;
        return if show.json { json(show, &reply) } else { Ok(cluster::text(&reply)) };
    }
    if show.what == What::Agents {
        let reply: AgentsReply = client.get("/v1/agents")?;
        return if show.json { json(show, &reply) } else { Ok(agents::text(&reply)) };
    }
    if show.what == What::Openflow {
        let reply: OpenFlowReply = client.get("/v1/openflow")?;
        return if show.json { json(show, &reply) } else { Ok(openflow::text(&reply)) };
    }
    if show.what == What::Services {
        let reply: ServicesReply = client.get("/v1/services")?;
        return if show.json { json(show, &reply) } else { Ok(services::text(&reply)) };
    }
    if show.what == What::Connections {
        let service = show.service.clone().ok_or_else(|| Failure::Usage("connections of which SERVICE?".to_owned()))?;
        let request = ConnectionsRequest { service, client: show.client.clone() };
        let reply: ConnectionsReply = client.post("/v1/connections", &request)?;
        return if show.json { json(show, &reply) } else { Ok(services::connections(&reply)) };
    }
    if show.what == What::Tunnels {
        let reply: TunnelsReply = client.get("/v1/tunnels")?;
        return if show.json { json(show, &reply) } else { Ok(tunnels::text(&reply)) };
    }
    if show.what == What::Bonds {
        let reply: BondsReply = client.get("/v1/bonds")?;
        return if show.json { json(show, &reply) } else { Ok(bonds::text(&reply)) };
    }
    let mut report: Report = client.get("/v1/report")?;
    find_processes(devices(&mut report));
    if show.what == What::All {
        return if show.json { json(show, &report) } else { Ok(table(&report)) };
    }
    let rows = part::rows(&report, show.what);
    if show.json { json(show, &part::json(&report, show.what)) } else { Ok(columns(&rows)) }
}

/// All devices of a report.
fn devices(report: &mut Report) -> impl Iterator<Item = &mut DeviceReport> {
    report.switches.iter_mut().flat_map(|switch| {
        let endpoints = switch.tenants.iter_mut().flat_map(|tenant| &mut tenant.endpoints);
        let uplink = switch.uplink.as_mut().and_then(|uplink| uplink.device.as_mut());
        uplink.into_iter().chain(endpoints.filter_map(|endpoint| endpoint.device.as_mut()))
    })
}

/// The state of a port, and what is not as it was made.
fn state(state: &str, device: Option<&DeviceReport>) -> String {
    let Some(device) = device else { return state.to_owned() };
    let text = device.text();
    let unsettled = if device.unsettled.is_some() { "; not all is as configured" } else { "" };
    if text.is_empty() { format!("{state}{unsettled}") } else { format!("{state}: {text}{unsettled}") }
}

/// JSON on many lines for one answer, on one line where they follow each other.
fn json(show: &Show, value: &impl Serialize) -> Result<String, Failure> {
    let text = if show.watch.is_some() { serde_json::to_string(value) } else { serde_json::to_string_pretty(value) };
    text.map(|text| text + "\n").map_err(|error| Failure::Failed(error.to_string()))
}

/// The report as text. Columns are as wide as what is in them.
fn table(report: &Report) -> String {
    let worker = &report.worker;
    let mut out = format!("{}  process {}, up {}\n", report.name, report.pid, seconds(report.now_ns));
    let permille = part_of(worker.busy_ns, report.now_ns, 1000);
    let (lag, round) = (&worker.loop_lag_ns, &worker.round_ns);
    let _ = writeln!(
        out,
        "worker  busy {}.{} %; late by {} (half), {} (99 %), {} (most); rounds of {}, {}, {}",
        permille / 10,
        permille % 10,
        micros(lag.p50),
        micros(lag.p99),
        micros(lag.max),
        micros(round.p50),
        micros(round.p99),
        micros(round.max)
    );
    out += &memory(report);
    for link in &report.links {
        let ends = [("a", &link.a), ("b", &link.b)].map(|(end, s)| {
            format!("{end} sent {} with {} drops, {} wait", bytes(s.bytes), s.all_drops(), bytes(s.backlog_bytes))
        });
        let _ = writeln!(out, "link {}  {}", link.name, ends.join("; "));
    }
    for switch in &report.switches {
        let _ = write!(out, "\n{}", switch_table(switch));
    }
    out
}

/// Tenants that hold more of the frame memory than their share, by more than a queue usually has:
/// they are refused first where others need theirs. Nothing where there are none.
fn memory(report: &Report) -> String {
    let tenants = report.switches.iter().flat_map(|switch| switch.tenants.iter().map(move |tenant| (switch, tenant)));
    let beyond: Vec<String> = tenants
        .filter(|(_, tenant)| tenant.memory.held_bytes > tenant.memory.share_bytes + DEFAULT_QUEUE_BYTES)
        .map(|(switch, tenant)| {
            let (held, share) = (bytes(tenant.memory.held_bytes), bytes(tenant.memory.share_bytes));
            format!("memory  {}/{} holds {held}, its share is {share}\n", switch.name, tenant.name)
        })
        .take(NAMES)
        .collect();
    beyond.concat()
}

fn switch_table(switch: &SwitchReport) -> String {
    let mut out = format!("switch {}  order {}, ingress {}\n", switch.name, switch.order, switch.ingress);
    if let Some(uplink) = &switch.uplink {
        let sharing = match uplink.sharing.as_deref() {
            Some("shared") => ", shared: the host's own traffic is not scheduled".to_owned(),
            Some(word) => format!(", {word}"),
            None => String::new(),
        };
        // Of a bond it is that of all its members.
        let state = state(&uplink.state, uplink.device.as_ref().filter(|_| uplink.bond.is_none()));
        let _ = writeln!(out, "  uplink {} ({state}{sharing}){}", uplink.port, reasons(&uplink.drops));
        for (word, direction) in [("egress", &uplink.egress), ("ingress", &uplink.ingress)] {
            let _ = writeln!(out, "    {word:<8}{}", uplink_line(direction));
        }
        if let Some(bond) = &uplink.bond {
            let _ = writeln!(out, "    {}", bonds::summary(bond));
        }
    }
    let mut rows =
        vec![["", "", "at least", "at most", "weight", "sent", "waits", "marks", "trims", "drops"].map(str::to_owned)];
    for tenant in &switch.tenants {
        rows.push(row(&tenant.name, "egress", Some(&tenant.egress), &tenant.egress.traffic, String::new()));
        rows.push(row("", "ingress", Some(&tenant.ingress), &tenant.ingress.traffic, String::new()));
        for endpoint in &tenant.endpoints {
            rows.extend(endpoint_rows(endpoint));
        }
    }
    out + &columns(&rows) + &processor(switch) + &shortcuts(switch)
}

/// Who was short of the processor, if anybody was, and who has used it most.
fn processor(switch: &SwitchReport) -> String {
    let uplink = switch.uplink.iter().map(|uplink| ("frames from the uplink", &uplink.processor));
    let tenants = switch.tenants.iter().map(|tenant| (tenant.name.as_str(), &tenant.processor));
    let mut all: Vec<_> = uplink.chain(tenants).collect();
    let short = all.iter().filter(|(_, had)| had.short_ns > 0);
    let short: Vec<String> = short.map(|(name, had)| format!("{name} for {}", show_time(had.short_ns))).collect();
    if short.is_empty() {
        return String::new();
    }
    all.sort_by_key(|(_, had)| std::cmp::Reverse(had.used_ns));
    let used_ns = all.iter().map(|(_, had)| had.used_ns).sum::<u64>().max(1);
    let users = all.iter().take(3).map(|(name, had)| format!("{name} {} %", part_of(had.used_ns, used_ns, 100)));
    format!(
        "  short of processor time, not of the link: {}; used since the start: {}\n",
        short.join(", "),
        users.collect::<Vec<_>>().join(", ")
    )
}

/// Whose frames take shortcuts, and where they do in part or not at all, why. Those that have
/// nobody to take one to are left out.
fn shortcuts(switch: &SwitchReport) -> String {
    let alone = Hindrance::Alone.to_string();
    let mut groups: BTreeMap<&ShortcutReport, Vec<String>> = BTreeMap::new();
    for tenant in &switch.tenants {
        for endpoint in &tenant.endpoints {
            if let Some(shortcut) = &endpoint.shortcut
                && (shortcut.egress != alone || shortcut.ingress != alone)
            {
                groups.entry(shortcut).or_default().push(format!("{}/{}", tenant.name, endpoint.name));
            }
        }
    }
    let mut out = String::new();
    for (ShortcutReport { egress, ingress }, names) in groups {
        let all = names.len();
        let names = names.into_iter().take(NAMES).collect::<Vec<_>>().join(", ");
        let more = if all > NAMES { format!(" and {} more", all - NAMES) } else { String::new() };
        let what = match (egress.as_str(), ingress.as_str()) {
            (ON, ON) => "shortcut past the switch".to_owned(),
            (ON, why) => format!("shortcut past the switch for what they send ({why})"),
            (why, ON) => format!("shortcut past the switch for what they receive ({why})"),
            (why, other) if why == other => format!("no shortcut ({why})"),
            (why, other) => format!("no shortcut ({why}; {other})"),
        };
        let _ = writeln!(out, "  {what}: {names}{more}");
    }
    out
}

fn uplink_line(direction: &UplinkDirection) -> String {
    let kept = if direction.met { "" } else { ": cannot be met, guarantees are lowered in proportion" };
    format!(
        "{} carried at {}; {} of {} promised{kept}",
        bytes(direction.traffic.wire_bytes),
        show_rate(Rate(direction.rate_bps)),
        show_rate(Rate(direction.promised_bps)),
        show_rate(Rate(direction.capacity_bps)),
    )
}

fn endpoint_rows(endpoint: &EndpointReport) -> Vec<[String; 10]> {
    let device = endpoint.device.as_ref().map(DeviceReport::text).unwrap_or_default();
    let state = match (endpoint.sharing.as_deref(), endpoint.state.as_str()) {
        (Some("absent"), _) => " (not scheduled: the interface is shared)".to_owned(),
        (_, "up") if device.is_empty() => String::new(),
        (_, "up") => format!(" ({device})"),
        _ if device.is_empty() => " (port down)".to_owned(),
        _ => format!(" (port down: {device})"),
    };
    let name = format!("  {}{state}", endpoint.name);
    let mut rows = vec![
        row(&name, "egress", Some(&endpoint.egress), &endpoint.egress.traffic, reasons(&endpoint.drops)),
        row("", "ingress", Some(&endpoint.ingress), &endpoint.ingress.traffic, String::new()),
    ];
    if endpoint.local.frames > 0 {
        rows.push(row("", "local", None, &endpoint.local, String::new()));
    }
    rows
}

fn row(name: &str, what: &str, knobs: Option<&SharedReport>, lane: &LaneReport, drops: String) -> [String; 10] {
    let rate = |bps: Option<u64>| bps.filter(|&bps| bps > 0).map_or_else(|| "-".to_owned(), |bps| show_rate(Rate(bps)));
    [
        name.to_owned(),
        what.to_owned(),
        rate(knobs.map(|k| k.guarantee_bps)),
        rate(knobs.and_then(|k| k.limit_bps)),
        knobs.map_or_else(|| "-".to_owned(), |k| k.weight.to_string()),
        bytes(lane.wire_bytes),
        bytes(lane.backlog_bytes),
        lane.marks.to_string(),
        lane.trims.to_string(),
        drops.trim_start().to_owned(),
    ]
}

/// Drops by reason, most first.
fn reasons(drops: &BTreeMap<String, u64>) -> String {
    let mut drops: Vec<_> = drops.iter().collect();
    drops.sort_by_key(|&(name, n)| (std::cmp::Reverse(*n), name));
    drops.iter().map(|(name, n)| format!("  {name} {n}")).collect()
}

/// A table of cells. Columns of words stand left, those of numbers right: what a column is, its
/// first filled cell below the head says.
fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let is_number = |cell: &str| cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit());
    let filled =
        |column: usize| rows.iter().skip(1).map(move |row| row[column].as_str()).filter(|cell| !cell.is_empty());
    let right: [bool; N] =
        std::array::from_fn(|column| filled(column).next().is_some() && filled(column).all(is_number));
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(i, cell)| {
            let width = widths[i];
            if right[i] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(out, "  {}", line.trim_end());
    }
    out
}

/// Bytes to three digits: `1.23 GB`. Traffic is counted in powers of ten, as rates are.
fn bytes(n: u64) -> String {
    let (unit, one) = match n {
        0..1_000 => return format!("{n} B"),
        1_000..1_000_000 => ("kB", 1_000),
        1_000_000..1_000_000_000 => ("MB", 1_000_000),
        1_000_000_000..1_000_000_000_000 => ("GB", 1_000_000_000),
        _ => ("TB", 1_000_000_000_000),
    };
    let hundredths = u128::from(n) * 100 / one;
    match hundredths {
        0..1_000 => format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100),
        1_000..10_000 => format!("{}.{} {unit}", hundredths / 100, hundredths % 100 / 10),
        _ => format!("{} {unit}", hundredths / 100),
    }
}

/// How much of `all` this is, in so many parts. In nanoseconds of half a year the product has more
/// than 64 bits.
fn part_of(some: u64, all: u64, parts: u64) -> u64 {
    let part = (u128::from(some) * u128::from(parts)).checked_div(all.into()).unwrap_or(0);
    u64::try_from(part).unwrap_or(u64::MAX)
}

fn micros(ns: u64) -> String {
    show_time(if ns < 1_000_000 { ns / 1_000 * 1_000 } else { ns / 100_000 * 100_000 })
}

fn seconds(ns: u64) -> String {
    match ns / 1_000_000_000 {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min {} s", s / 60, s % 60),
        s @ 7_200..172_800 => format!("{} h {} min", s / 3_600, s % 3_600 / 60),
        s => format!("{} d {} h", s / 86_400, s % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_three_digits() {
        let shown = [0, 999, 1_000, 12_345, 123_456, 1_234_567_890, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "999 B", "1.00 kB", "12.3 kB", "123 kB", "1.23 GB", "18446744 TB"]);
        assert_eq!(seconds(3_700_000_000_000), "61 min 40 s");
        assert_eq!(micros(61_234), "61 us");
        assert_eq!(micros(2_345_678), "2.3 ms");
    }

    #[test]
    fn what_the_worker_did_is_right_after_years() {
        let day = 86_400_000_000_000_u64;
        let none = serde_json::json!({"p50": 0, "p99": 0, "max": 0});
        let report = serde_json::json!({"version": 1, "name": "t", "pid": 1, "now_ns": 600 * day,
            "worker": {"loop_lag_ns": none, "round_ns": none, "loop_lag_buckets": [], "round_buckets": [],
                "busy_ns": 300 * day, "cpu_ns": 0, "rounds": 0, "frame_cost_ns": [0, 0]},
            "memory": {"frames": 0, "small_free": 0, "large_free": 0}, "links": [], "switches": []});
        let text = table(&serde_json::from_value(report).unwrap());
        assert!(text.contains("busy 50.0 %"), "{text}");
        assert_eq!((part_of(4000 * day, 8000 * day, 100), part_of(7, 0, 100)), (50, 0));
    }

    #[test]
    fn shortage_of_the_processor_is_shown_with_its_users() {
        let lane = serde_json::json!({"frames": 0, "segments": 0, "bytes": 0, "wire_bytes": 0, "guaranteed_bytes": 0,
            "backlog_bytes": 0, "backlog_frames": 0, "marks": 0, "trims": 0, "sojourn_max_ns": 0,
            "rate_bps": 1, "promised_bps": 1, "capacity_bps": 1, "met": true,
            "guarantee_bps": 0, "limit_bps": null, "weight": 1});
        let had =
            |used_ns: u64, short_ns: u64| serde_json::json!({"used_ns": used_ns, "waited_ns": 0, "short_ns": short_ns});
        let shown = |[red, blue, uplink]: [(u64, u64); 3]| {
            let tenant = |name: &str, (used_ns, short_ns)| {
                serde_json::json!({"name": name, "egress": lane, "ingress": lane, "endpoints": [],
                    "processor": had(used_ns, short_ns)})
            };
            let uplink = serde_json::json!({"port": "packet://up", "state": "up", "egress": lane, "ingress": lane,
                "drops": {}, "processor": had(uplink.0, uplink.1)});
            let switch = serde_json::json!({"name": "s1", "order": "fair", "ingress": "queue", "learned": 0,
                "uplink": uplink, "tenants": [tenant("red", red), tenant("blue", blue)]});
            switch_table(&serde_json::from_value(switch).unwrap())
        };
        let text = shown([(20, 3_000_000_000), (30, 0), (50, 4_000_000_000)]);
        let said = "\n  short of processor time, not of the link: frames from the uplink for 4 s, red for 3 s; used \
            since the start: frames from the uplink 50 %, blue 30 %, red 20 %\n";
        assert!(text.contains(said), "{text}");
        assert!(!shown([(20, 0), (30, 0), (50, 0)]).contains("short of"), "nobody was");
    }
}
