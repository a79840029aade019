//! `levada top`: who is promised what, who gets it, and who does not; the worst off first, and at
//! whose cost.
//!
//! It compares two reports. What an endpoint or tenant *wants* in the time between them is what it
//! got and what its queue grew by; where frames waited at both ends, it wanted more than it got. It
//! is *short* where its unmet time grew, which the switch itself measures
//! (`datapath/src/sched/unmet.rs`). Frames that the queue or its management dropped meanwhile are
//! shown beside it by their reasons. Who takes most beyond its own guarantee on the same switch in
//! the same direction is named as the one at whose cost.

mod services;
mod terminal;

use crate::api::report::{LaneReport, ProcessorReport, Report, SharedReport, SojournReport};
use crate::api::services::ServicesReply;
use crate::api::vcc::{EndpointReport, VccReply};
use crate::client::Client;
use crate::client::Instance;
use crate::error::{Failure, print};
use crate::system::os::Signals;
use clap::Args;
use control::units::{show_rate, show_time};
use datapath::units::Rate;
use serde::Serialize;
use services::ServiceRow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use terminal::{COLUMNS, Terminal, size};

/// `levada top`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub instance: Instance,
    /// Print one comparison and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON (version 1), a line each time
    #[arg(long)]
    pub json: bool,
    /// Seconds between two reports
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub interval: u32,
}

/// What happened between two reports.
#[derive(Serialize, Debug)]
pub struct Comparison {
    /// 1.
    pub version: u32,
    /// Name of the instance.
    pub name: String,
    /// Time between the reports.
    pub interval_ns: u64,
    /// Part of it that the worker was busy, in thousandths.
    pub busy_permille: u64,
    /// Tenants, and uplinks (`SWITCH uplink`), that wanted more of the processor than there was,
    /// and for how long.
    pub short_of_processor: Vec<(String, u64)>,
    /// Who used the processor most in this time, in thousandths of what all used.
    pub processor_users: Vec<(String, u64)>,
    /// Whose windows were lowered in this time, since a queue marked: no guarantee is short for it.
    pub marked: Vec<Marked>,
    /// Services, those in trouble first.
    pub services: Vec<ServiceRow>,
    /// Everybody, the worst off first.
    pub rows: Vec<Row>,
}

/// An endpoint that virtual congestion control held back, since a queue marked.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Marked {
    /// `SWITCH/TENANT/ENDPOINT`.
    pub path: String,
    /// Bytes acknowledged to it in this time.
    pub acked_bytes: u64,
    /// Of these, how many were marked, in thousandths.
    pub marked_permille: u64,
    /// Acknowledgements whose window was lowered.
    pub lowered: u64,
    /// Segments that its own queues marked in this time, on the way to the uplink and to
    /// neighbours. Where there are none, a queue farther on did: a receiver's, or the network's.
    pub own_marks: u64,
}

/// What the queues of endpoints marked between two reports of what these sent, by path.
fn own_marks(before: &Report, now: &Report) -> HashMap<String, u64> {
    let mut all = HashMap::new();
    for switch in &now.switches {
        let Some(old) = before.switches.iter().find(|s| s.name == switch.name) else { continue };
        let tenants = by_name(&old.tenants, |tenant| &tenant.name);
        for tenant in &switch.tenants {
            let Some(old) = tenants.get(&*tenant.name) else { continue };
            let endpoints = by_name(&old.endpoints, |endpoint| &endpoint.name);
            for endpoint in &tenant.endpoints {
                let Some(old) = endpoints.get(&*endpoint.name) else { continue };
                let to_uplink = endpoint.egress.traffic.marks.saturating_sub(old.egress.traffic.marks);
                let to_neighbours = endpoint.local_egress.marks.saturating_sub(old.local_egress.marks);
                if to_uplink + to_neighbours > 0 {
                    let path = format!("{}/{}/{}", switch.name, tenant.name, endpoint.name);
                    all.insert(path, to_uplink + to_neighbours);
                }
            }
        }
    }
    all
}

/// Whom marks held back between two answers, the most acknowledged first; `own` is what their own
/// queues marked meanwhile.
fn marked(before: &VccReply, now: &VccReply, own: &HashMap<String, u64>) -> Vec<Marked> {
    let old = by_name(&before.endpoints, |endpoint| &endpoint.path);
    let one = |endpoint: &EndpointReport| {
        let old = old.get(&*endpoint.path)?;
        let lowered = endpoint.lowered.saturating_sub(old.lowered);
        let acked_bytes = endpoint.acked_bytes.saturating_sub(old.acked_bytes);
        let marked_bytes = endpoint.marked_bytes.saturating_sub(old.marked_bytes);
        let marked_permille = marked_bytes.saturating_mul(1000) / acked_bytes.max(1);
        let path = endpoint.path.clone();
        let own_marks = own.get(&path).copied().unwrap_or(0);
        (lowered > 0).then_some(Marked { path, acked_bytes, marked_permille, lowered, own_marks })
    };
    let mut all: Vec<Marked> = now.endpoints.iter().filter_map(one).collect();
    all.sort_by_cached_key(|marked| (Reverse(marked.acked_bytes), marked.path.clone()));
    all
}

/// One direction of a tenant or an endpoint.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// `SWITCH/TENANT` or `SWITCH/TENANT/ENDPOINT`.
    pub path: String,
    /// `egress` or `ingress`.
    pub direction: &'static str,
    /// At least, in wire bits a second.
    pub promised_bps: u64,
    /// What it got and what its queue grew by.
    pub wants_bps: u64,
    /// Whether it wanted more than that: frames waited throughout.
    pub wants_more: bool,
    /// What it got.
    pub got_bps: u64,
    /// Whether its unmet time grew.
    pub is_short: bool,
    /// By how much it grew.
    pub short_ns: u64,
    /// What it was short of its guarantee over all of this time, where it was; where it made up for
    /// that, nothing.
    pub short_bps: u64,
    /// Its unmet time since `levada top` was started.
    pub unmet_ns: u64,
    /// What 99 of 100 of its frames waited at most that left in this time; `null` for tenants, and
    /// where none waited.
    pub sojourn_p99_ns: Option<u64>,
    /// Frames of it dropped in this time, by reason (for endpoints, with their egress).
    pub drops: BTreeMap<String, u64>,
    /// Where it is short: who takes most beyond its own guarantee, and how much beyond.
    pub at_cost_of: Option<(String, u64)>,
}

impl Row {
    fn is_endpoint(&self) -> bool {
        self.path.matches('/').count() == 2
    }

    fn beyond_bps(&self) -> u64 {
        self.got_bps.saturating_sub(self.promised_bps)
    }
}

/// Whether the second of two reports goes on where the first was made: it is of the same process,
/// and later. After a takeover or a restart nothing can be said of the time between them.
fn goes_on(before: &Report, now: &Report) -> bool {
    before.pid == now.pid && before.now_ns < now.now_ns
}

/// Unmet time when it was first seen, by path and direction.
type Unmet = HashMap<(String, &'static str), u64>;

/// Compares two reports of one process. Unmet time counts from what is in `unmet`, or from the
/// first of these reports.
pub fn compare(before: &Report, now: &Report, unmet: &mut Unmet) -> Comparison {
    let interval_ns = now.now_ns.saturating_sub(before.now_ns).max(1);
    let mut rows: Vec<(Row, u64)> = Vec::new();
    for switch in &now.switches {
        let Some(old) = before.switches.iter().find(|s| s.name == switch.name) else { continue };
        let tenants = by_name(&old.tenants, |tenant| &tenant.name);
        for tenant in &switch.tenants {
            let path = format!("{}/{}", switch.name, tenant.name);
            let Some(old) = tenants.get(&*tenant.name) else { continue };
            let endpoints = by_name(&old.endpoints, |endpoint| &endpoint.name);
            rows.push(row(&path, "egress", &old.egress, &tenant.egress, interval_ns));
            rows.push(row(&path, "ingress", &old.ingress, &tenant.ingress, interval_ns));
            for endpoint in &tenant.endpoints {
                let Some(old) = endpoints.get(&*endpoint.name) else { continue };
                let path = format!("{path}/{}", endpoint.name);
                let mut out = row(&path, "egress", &old.egress, &endpoint.egress, interval_ns);
                let (was, is) = (&old.sojourn, &endpoint.sojourn);
                let lanes = [&endpoint.egress.traffic, &endpoint.local_egress];
                out.0.sojourn_p99_ns = waited(&was.egress, &is.egress, lanes);
                let new = |(reason, n): (&String, &u64)| {
                    let new = n.saturating_sub(old.drops.get(reason).copied().unwrap_or(0));
                    (new > 0).then(|| (reason.clone(), new))
                };
                out.0.drops = endpoint.drops.iter().filter_map(new).collect();
                rows.push(out);
                let mut back = row(&path, "ingress", &old.ingress, &endpoint.ingress, interval_ns);
                let lanes = [&endpoint.ingress.traffic, &endpoint.local_ingress];
                back.0.sojourn_p99_ns = waited(&was.ingress, &is.ingress, lanes);
                rows.push(back);
            }
        }
    }
    for (row, grown_ns) in &mut rows {
        let begun_ns = row.unmet_ns.saturating_sub(*grown_ns);
        let first = unmet.entry((row.path.clone(), row.direction)).or_insert(begun_ns);
        // After a restart it begins anew.
        if row.unmet_ns < *first {
            *first = begun_ns;
        }
        row.unmet_ns -= *first;
    }
    let mut rows: Vec<Row> = rows.into_iter().map(|(row, _)| row).collect();
    blame(&mut rows);
    let (short_of_processor, processor_users) = processor(before, now);
    // Then it is not what a neighbour takes of the link.
    for row in &mut rows {
        let is_of = |(tenant, _): &(String, u64)| is_in(&row.path, tenant);
        if short_of_processor.iter().any(is_of) {
            row.at_cost_of = None;
        }
    }
    rows.sort_by_cached_key(|row| {
        let dropped: u64 = row.drops.values().sum();
        (
            Reverse(row.is_short),
            Reverse(row.short_bps),
            Reverse(row.unmet_ns),
            Reverse(dropped),
            Reverse(row.got_bps),
            row.path.clone(),
        )
    });
    let busy_ns = now.worker.busy_ns.saturating_sub(before.worker.busy_ns);
    let busy_permille = busy_ns * 1000 / interval_ns;
    let name = now.name.clone();
    Comparison {
        version: 1,
        name,
        interval_ns,
        busy_permille,
        short_of_processor,
        processor_users,
        marked: Vec::new(),
        services: Vec::new(),
        rows,
    }
}

/// Tenants or endpoints by their paths, with a number each.
type Figures = Vec<(String, u64)>;

/// Who was short of the processor between two reports, in nanoseconds, and who used most of it, in
/// thousandths.
fn processor(before: &Report, now: &Report) -> (Figures, Figures) {
    let (mut short, mut users) = (Vec::new(), Vec::new());
    for switch in &now.switches {
        let Some(old) = before.switches.iter().find(|s| s.name == switch.name) else { continue };
        if let (Some(uplink), Some(old)) = (&switch.uplink, &old.uplink) {
            let path = format!("{} uplink", switch.name);
            let short_ns = uplink.processor.short_ns.saturating_sub(old.processor.short_ns);
            short.extend((short_ns > 0).then(|| (path.clone(), short_ns)));
            users.push((path, uplink.processor.used_ns.saturating_sub(old.processor.used_ns)));
        }
        let tenants = by_name(&old.tenants, |tenant| &tenant.name);
        for tenant in &switch.tenants {
            let was = tenants.get(&*tenant.name).map_or(ProcessorReport::default(), |old| old.processor);
            let path = format!("{}/{}", switch.name, tenant.name);
            let short_ns = tenant.processor.short_ns.saturating_sub(was.short_ns);
            short.extend((short_ns > 0).then(|| (path.clone(), short_ns)));
            users.push((path, tenant.processor.used_ns.saturating_sub(was.used_ns)));
        }
    }
    let all = users.iter().map(|(_, used_ns)| used_ns).sum::<u64>().max(1);
    users.sort_by_cached_key(|(path, used_ns)| (Reverse(*used_ns), path.clone()));
    users.truncate(3);
    users.retain(|(_, used_ns)| *used_ns > 0);
    users.iter_mut().for_each(|(_, used_ns)| *used_ns = *used_ns * 1000 / all);
    (short, users)
}

/// There may be a hundred thousand.
fn by_name<T>(all: &[T], name: impl Fn(&T) -> &str) -> HashMap<&str, &T> {
    all.iter().map(|one| (name(one), one)).collect()
}

/// The row, and by how much its unmet time grew.
fn row(path: &str, direction: &'static str, before: &SharedReport, now: &SharedReport, interval_ns: u64) -> (Row, u64) {
    let per_second = |bytes: u64| {
        let bits = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(interval_ns);
        u64::try_from(bits).unwrap_or(u64::MAX)
    };
    let (old, new) = (&before.traffic, &now.traffic);
    let got = new.wire_bytes.saturating_sub(old.wire_bytes);
    let grown = new.backlog_bytes.saturating_sub(old.backlog_bytes);
    let (got_bps, promised_bps) = (per_second(got), now.guarantee_bps.min(now.limit_bps.unwrap_or(u64::MAX)));
    let unmet_ns = now.unmet_ns.saturating_sub(before.unmet_ns);
    let row = Row {
        path: path.to_owned(),
        direction,
        promised_bps,
        wants_bps: per_second(got + grown),
        wants_more: old.backlog_bytes > 0 && new.backlog_bytes > 0,
        got_bps,
        is_short: unmet_ns > 0,
        short_ns: unmet_ns,
        short_bps: if unmet_ns > 0 { promised_bps.saturating_sub(got_bps) } else { 0 },
        unmet_ns: now.unmet_ns,
        sojourn_p99_ns: None,
        drops: BTreeMap::new(),
        at_cost_of: None,
    };
    (row, unmet_ns)
}

/// What 99 of 100 frames waited at most that left in between, on the way to the uplink and to
/// neighbours.
fn waited(before: &SojournReport, now: &SojournReport, lanes: [&LaneReport; 2]) -> Option<u64> {
    now.p99_since(before, lanes[0].sojourn_max_ns.max(lanes[1].sojourn_max_ns))
}

/// Whether a path is this one, or one below it.
fn is_in(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Names, for each that is short, the other endpoint of its switch that takes most beyond its own
/// guarantee in the same direction; of a tenant, one of another tenant.
fn blame(rows: &mut [Row]) {
    let place = |row: &Row| (row.path.split('/').next().unwrap_or_default().to_owned(), row.direction);
    let mut takers: HashMap<(String, &'static str), Figures> = HashMap::new();
    for row in rows.iter().filter(|row| row.is_endpoint() && row.beyond_bps() > 0) {
        takers.entry(place(row)).or_default().push((row.path.clone(), row.beyond_bps()));
    }
    takers.values_mut().for_each(|takers| takers.sort_by_key(|(_, bps)| Reverse(*bps)));
    for row in rows.iter_mut().filter(|row| row.is_short) {
        let is_own = |path: &str| is_in(path, &row.path);
        // Of many, only a tenant's own are passed over.
        let other = takers.get(&place(row)).and_then(|takers| takers.iter().find(|(path, _)| !is_own(path)));
        row.at_cost_of = other.cloned();
    }
}

/// The comparison for a terminal, which keeps its last line for the cursor.
fn paint(seen: &Comparison, (lines, columns): (u16, u16)) -> Result<(), Failure> {
    print(&format!("\x1b[H\x1b[J{}", screen(seen, usize::from(lines).saturating_sub(1), columns.into())))
}

/// The comparison on so many lines of so many columns.
fn screen(seen: &Comparison, lines: usize, columns: usize) -> String {
    let rate = |bps: u64| if bps == 0 { "-".to_owned() } else { show_rate(Rate(round(bps))) };
    let short: Vec<&Row> = seen.rows.iter().filter(|row| row.is_short).collect();
    let mut out = vec![format!("{}  worker busy {}.{} %", seen.name, seen.busy_permille / 10, seen.busy_permille % 10)];
    if !seen.short_of_processor.is_empty() {
        let users = seen.processor_users.iter().map(|(path, permille)| format!("{path} {} %", permille / 10));
        let tenants = seen.short_of_processor.iter().take(3).map(|(path, ns)| format!("{path} for {}", tenths(*ns)));
        out.push(format!("SHORT OF PROCESSOR TIME {}", tenants.collect::<Vec<_>>().join(", ")));
        out.push(format!("      used by {}", users.collect::<Vec<_>>().join(", ")));
    } else if short.is_empty() {
        out.push("nobody is short of a guarantee".to_owned());
    }
    for row in short.iter().take(3) {
        // Who was short for a part of the time may have got its guarantee in all of it.
        let part = format!("for {} of {}", tenths(row.short_ns), tenths(seen.interval_ns));
        let got = rate(row.got_bps);
        out.push(format!("SHORT {} {} {part}: {got} of {}", row.path, row.direction, rate(row.promised_bps)));
        let cost = row.at_cost_of.iter();
        out.extend(cost.map(|(path, bps)| format!("      most beyond its own: {path}, by {}", rate(*bps))));
    }
    for marked in seen.marked.iter().take(3) {
        let Marked { path, marked_permille, lowered, own_marks, .. } = marked;
        let part = format!("{}.{} % of its bytes marked", marked_permille / 10, marked_permille % 10);
        let whose = if *own_marks > 0 { "its own queue here" } else { "a receiver's queue or the network" };
        out.push(format!("held back by marks of {whose}: {path}: {part}, {lowered} windows lowered"));
    }
    // What is wider than the smallest terminal goes to the names, as far as they need it, and the
    // rest to the drops.
    let names = seen.rows.iter().map(|row| &row.path).chain(seen.services.iter().map(|row| &row.path));
    let longest = names.map(|path| path.chars().count()).max().unwrap_or(0);
    let path = longest.min(20 + columns.saturating_sub(COLUMNS.into())).max(20);
    let width = path + 4;
    out.extend(services::lines(&seen.services, seen.interval_ns, path));
    // Without the unit: every column of rates is in bits a second.
    let brief = |bps: u64| rate(bps).replace("bit/s", "").replace(' ', "");
    let way = |row: &Row| if row.direction == "egress" { "out" } else { "in" };
    out.push(format!(
        "{:<width$} {:>8} {:>8} {:>8} {:>6} {:>7} drops",
        "bit/s", "promised", "wants", "got", "unmet", "waited"
    ));
    for row in &seen.rows {
        let more = if row.wants_more { ">" } else { "" };
        let drops: Vec<String> = row.drops.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
        let waited = row.sojourn_p99_ns.map_or(String::new(), |ns| show_time(round(ns / 1000 * 1000)));
        out.push(format!(
            "{:<path$} {:<3} {:>8} {:>8} {:>8} {:>6} {:>7} {}",
            tail(&row.path, path),
            way(row),
            brief(row.promised_bps),
            format!("{more}{}", brief(row.wants_bps)),
            brief(row.got_bps),
            if row.unmet_ns == 0 { "-".to_owned() } else { tenths(row.unmet_ns) },
            waited,
            drops.join(", ")
        ));
    }
    let mut text = String::new();
    for line in out.iter().take(lines) {
        let line: String = line.chars().take(columns).collect();
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// The last `most` characters.
fn tail(text: &str, most: usize) -> String {
    text.chars().skip(text.chars().count().saturating_sub(most)).collect()
}

/// Seconds with one digit behind the point, as long as there is room for it.
fn tenths(ns: u64) -> String {
    match ns / 100_000_000 {
        n @ 0..1000 => format!("{}.{} s", n / 10, n % 10),
        n => format!("{} s", n / 10),
    }
}

/// Three digits.
fn round(n: u64) -> u64 {
    let unit = 10_u64.pow(n.checked_ilog10().unwrap_or(0).saturating_sub(2));
    n / unit * unit
}

/// Shows it until a signal comes, or `q`; with `--once`, once.
pub fn top(arguments: &Arguments) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Failed(format!("cannot wait for signals: {error}"));
    let signals = Signals::block().map_err(failed)?;
    let client = Client::new(arguments.instance.name.as_deref())?;
    let mut before: Report = client.get("/v1/report")?;
    let mut marks: VccReply = client.get("/v1/vcc")?;
    let mut served: ServicesReply = client.get("/v1/services")?;
    let mut unmet = Unmet::new();
    let plain = arguments.once || arguments.json;
    let terminal = if plain { None } else { Some(Terminal::enter()?) };
    let (mut drawn, mut shown): (Option<Comparison>, _) = (None, size());
    loop {
        let start = Instant::now();
        let interval = Duration::from_secs(arguments.interval.into());
        while let Some(left) = interval.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            if terminal::is_to_end(&signals, terminal.as_ref(), left) {
                return Ok(());
            }
            if let Some(seen) = drawn.as_ref().filter(|_| size() != shown) {
                shown = size();
                paint(seen, shown)?;
            }
        }
        let now: Report = client.get("/v1/report")?;
        let marks_now: VccReply = client.get("/v1/vcc")?;
        let served_now: ServicesReply = client.get("/v1/services")?;
        if !goes_on(&before, &now) {
            (before, marks, served) = (now, marks_now, served_now);
            continue;
        }
        let seen = Comparison {
            marked: marked(&marks, &marks_now, &own_marks(&before, &now)),
            services: services::compare(&served, &served_now),
            ..compare(&before, &now, &mut unmet)
        };
        match (arguments.json, arguments.once) {
            (true, _) => {
                print(&(serde_json::to_string(&seen).map_err(|error| Failure::Failed(error.to_string()))? + "\n"))?;
            }
            (false, true) => print(&screen(&seen, usize::MAX, 200))?,
            (false, false) => {
                shown = size();
                paint(&seen, shown)?;
                drawn = Some(seen);
            }
        }
        if arguments.once {
            return Ok(());
        }
        (before, marks, served) = (now, marks_now, served_now);
    }
}

#[cfg(test)]
mod tests {
    use super::terminal::LINES;
    use super::*;

    #[test]
    fn shortage_of_the_processor_is_nobodys_doing_on_the_link() {
        let mut before = report(10, &[("a", 60, 0, 0, 0), ("b", 0, 0, 0, 0)]);
        let mut now = report(11, &[("a", 60, 1_000_000, 9_000_000, 900), ("b", 0, 90_000_000, 0, 0)]);
        let blamed = compare(&before, &now, &mut Unmet::new());
        assert!(blamed.rows.iter().any(|row| row.at_cost_of.is_some()));
        before.switches[0].tenants[0].processor = ProcessorReport { used_ns: 5, waited_ns: 5, short_ns: 7 };
        let had = ProcessorReport { used_ns: 100_000_005, waited_ns: 800_000_000, short_ns: 1_000_000_007 };
        now.switches[0].tenants[0].processor = had;
        let seen = compare(&before, &now, &mut Unmet::new());
        let tenant = format!("{}/{}", now.switches[0].name, now.switches[0].tenants[0].name);
        assert_eq!(seen.short_of_processor, [(tenant.clone(), 1_000_000_000)]);
        assert_eq!(seen.processor_users, [(tenant.clone(), 1000)]);
        assert!(seen.rows.iter().all(|row| row.at_cost_of.is_none()));
        let text = screen(&seen, 40, 100);
        assert!(text.contains(&format!("SHORT OF PROCESSOR TIME {tenant} for 1.0 s")), "{text}");
        assert!(text.contains(&format!("used by {tenant} 100 %")), "{text}");
    }

    #[test]
    fn shortage_of_what_comes_from_the_uplink_is_named_as_that() {
        let lane = serde_json::json!({"frames": 0, "segments": 0, "bytes": 0, "wire_bytes": 0, "guaranteed_bytes": 0,
            "backlog_bytes": 0, "backlog_frames": 0, "marks": 0, "trims": 0, "sojourn_max_ns": 0,
            "rate_bps": 1, "promised_bps": 1, "capacity_bps": 1, "met": true});
        let of = |seconds, used_ns, short_ns| {
            let mut report = report(seconds, &[]);
            let had = ProcessorReport { used_ns, waited_ns: 0, short_ns };
            let uplink = serde_json::json!({"port": "packet://up", "state": "up", "egress": lane, "ingress": lane,
                "drops": {}, "processor": had});
            report.switches[0].uplink = Some(serde_json::from_value(uplink).unwrap());
            report
        };
        let seen = compare(&of(10, 5, 5), &of(11, 800_000_005, 1_000_000_005), &mut Unmet::new());
        assert_eq!(seen.short_of_processor, [("s1 uplink".to_owned(), 1_000_000_000)]);
        let text = screen(&seen, 40, 100);
        assert!(
            text.contains("SHORT OF PROCESSOR TIME s1 uplink for 1.0 s\n      used by s1 uplink 100 %\n"),
            "{text}"
        );
    }

    #[test]
    fn whom_marks_hold_back_is_told_apart_from_shortage() {
        let reply = |acked_bytes, marked_bytes, lowered| {
            let one = serde_json::json!({"path": "s1/old/a", "mode": "echo", "open": 1, "half_open": 0,
                "translated": 1, "native": 0, "plain": 0, "untouched": {}, "acked_bytes": acked_bytes,
                "marked_bytes": marked_bytes, "hidden_marks": 0, "lowered": lowered, "reductions": 0,
                "connections": []});
            VccReply { version: 1, endpoints: vec![serde_json::from_value(one).unwrap()] }
        };
        let before = reply(1000, 100, 5);
        let none = HashMap::new();
        assert!(marked(&before, &reply(9000, 100, 5), &none).is_empty(), "nothing was lowered in this time");
        // By its own queue toward the uplink, toward neighbours, and by neither.
        let calm = || {
            let mut calm = report(10, &[("a", 0, 0, 0, 0), ("b", 0, 0, 0, 0)]);
            calm.switches[0].tenants[0].name = "old".to_owned();
            calm
        };
        let (mut out, mut local, mut other) = (calm(), calm(), calm());
        out.switches[0].tenants[0].endpoints[0].egress.traffic.marks = 9;
        local.switches[0].tenants[0].endpoints[0].local_egress.marks = 9;
        other.switches[0].tenants[0].endpoints[0].ingress.traffic.marks = 9;
        other.switches[0].tenants[0].endpoints[1].egress.traffic.marks = 9;
        let (own, farther) = ("its own queue here", "a receiver's queue or the network");
        for (now, marks, whose) in [(out, 9, own), (local, 9, own), (other, 0, farther)] {
            let seen = marked(&before, &reply(9000, 1100, 12), &own_marks(&calm(), &now));
            let (path, acked_bytes, marked_permille) = ("s1/old/a".into(), 8000, 125);
            assert_eq!(seen, [Marked { path, acked_bytes, marked_permille, lowered: 7, own_marks: marks }]);
            let none = compare(&report(10, &[]), &report(11, &[]), &mut Unmet::new());
            let text = screen(&Comparison { marked: seen, ..none }, 40, 100);
            let said = format!("nobody is short of a guarantee\nheld back by marks of {whose}: s1/old/a: 12.5 %");
            assert!(text.contains(&said), "{text}");
        }
    }

    /// An endpoint, its guarantee in Mbit/s, and wire bytes, backlog and unmet milliseconds of its
    /// egress.
    type Sent<'a> = (&'a str, u64, u64, u64, u64);

    /// A report of one switch.
    fn report(seconds: u64, endpoints: &[Sent<'_>]) -> Report {
        let lane = |bytes: u64, waits: u64| {
            serde_json::json!({"frames": 0, "segments": 0, "bytes": 0, "wire_bytes": bytes, "guaranteed_bytes": 0,
                "backlog_bytes": waits, "backlog_frames": 0, "marks": 0, "trims": 0, "sojourn_max_ns": 9_000_000})
        };
        let shared = |mbit: u64, bytes, waits| {
            let mut shared = lane(bytes, waits);
            shared["guarantee_bps"] = (mbit * 1_000_000).into();
            shared["limit_bps"] = serde_json::Value::Null;
            shared["weight"] = 1.into();
            shared
        };
        let all: Vec<_> = endpoints
            .iter()
            .map(|&(name, mbit, bytes, waits, unmet_ms)| {
                let mut egress = shared(mbit, bytes, waits);
                egress["unmet_ns"] = (unmet_ms * 1_000_000).into();
                // A frame of 8 ms in the tenth second, and then many of up to 4 ms.
                let buckets = serde_json::json!([[1 << 22, (seconds - 10) * 100], [1 << 23, 1]]);
                let sojourn = serde_json::json!({"total_ns": 0, "p50_ns": 0, "p99_ns": 0, "buckets": buckets});
                let none = serde_json::json!({"total_ns": 0, "p50_ns": 0, "p99_ns": 0, "buckets": []});
                serde_json::json!({"name": name, "port": "tap://x", "state": "up", "losses": 0, "worker_ns": 0,
                    "egress": egress, "ingress": shared(0, 0, 0), "local": lane(0, 0),
                    "sojourn": {"egress": sojourn, "ingress": none},
                    "local_egress": lane(0, 0), "local_ingress": lane(0, 0), "drops": {"queue-full": waits / 1000}})
            })
            .collect();
        let none = serde_json::json!({"p50": 0, "p99": 0, "max": 0});
        let report = serde_json::json!({"version": 1, "name": "t", "pid": 1, "now_ns": seconds * 1_000_000_000,
            "worker": {"loop_lag_ns": none, "round_ns": none, "loop_lag_buckets": [], "round_buckets": [],
                "busy_ns": seconds * 250_000_000, "cpu_ns": 0, "rounds": 0, "frame_cost_ns": [0, 0]},
            "memory": {"frames": 0, "small_free": 0, "large_free": 0}, "links": [],
            "switches": [{"name": "s1", "order": "fair", "ingress": "queue", "learned": 0, "uplink": null,
                "tenants": [{"name": "red", "egress": shared(0, 0, 0), "ingress": shared(0, 0, 0), "endpoints": all}]}]});
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn reports_of_two_processes_are_not_compared() {
        let (before, now) = (report(10, &[]), report(11, &[]));
        assert!(goes_on(&before, &now));
        assert!(!goes_on(&now, &before) && !goes_on(&now, &now), "a clock that began anew");
        let next = Report { pid: before.pid + 1, ..report(12, &[]) };
        assert!(!goes_on(&before, &next), "another process");
    }

    #[test]
    fn who_is_short_is_never_blamed_and_a_name_that_begins_alike_is_another() {
        let tenants = |seconds, all: [&[Sent<'_>]; 2]| {
            let mut whole = report(seconds, all[0]);
            let mut other = report(seconds, all[1]).switches.remove(0).tenants.remove(0);
            other.name = "blue".to_owned();
            whole.switches[0].tenants.push(other);
            whole
        };
        let cost = |now: [&[Sent<'_>]; 2], short_tenant: bool| {
            let quiet: Vec<Vec<_>> = now.map(|all| all.iter().map(|one| (one.0, one.1, 0, 9000, 0)).collect()).into();
            let (before, mut now) = (tenants(10, [&quiet[0], &quiet[1]]), tenants(11, now));
            now.switches[0].tenants[0].egress.unmet_ns = u64::from(short_tenant);
            let rows = compare(&before, &now, &mut Unmet::new()).rows;
            let of = |path: &str| {
                let row = rows.iter().find(|row| row.path == path && row.direction == "egress").unwrap();
                assert!(row.is_short, "{path}");
                row.at_cost_of.as_ref().map(|(path, _)| path.clone())
            };
            if short_tenant { of("s1/red") } else { of("s1/red/web1") }
        };
        // In a second: 8 Mbit/s for each million bytes.
        let web10 = ("web10", 1, 3_000_000, 9000, 0);
        let web1 = ("web1", 10, 500_000, 9000, 900);
        let two = |path: &str| Some(path.to_owned());
        assert_eq!(cost([&[web1, web10], &[]], false), two("s1/red/web10"));
        // Who was short for a moment and then took most: the next one is named.
        let greedy = ("web1", 1, 9_000_000, 9000, 900);
        assert_eq!(cost([&[greedy, web10], &[("x", 1, 2_000_000, 9000, 0)]], false), two("s1/red/web10"));
        // Of a tenant that is short, none of its own, whatever they take.
        let others = &[("x", 1, 1_000_000, 9000, 0), ("y", 1, 2_000_000, 9000, 0)];
        assert_eq!(cost([&[greedy, web10], others], true), two("s1/blue/y"));
        assert_eq!(cost([&[greedy, web10], &[]], true), None);
    }

    #[test]
    fn who_is_short_comes_first_with_who_takes_it() {
        let before = report(
            10,
            &[
                ("idle", 10, 0, 0, 0),
                ("greedy", 1, 0, 9000, 0),
                ("poor", 10, 0, 9000, 5000),
                ("met", 10, 0, 9000, 70_000),
            ],
        );
        // In a second: 8 Mbit/s, 4 Mbit/s and 9.9 Mbit/s.
        let now = report(
            11,
            &[
                ("idle", 10, 0, 0, 0),
                ("greedy", 1, 1_000_000, 9000, 0),
                ("poor", 10, 500_000, 11_000, 5900),
                ("met", 10, 1_237_500, 9000, 70_000),
            ],
        );
        let mut unmet = Unmet::new();
        let seen = compare(&before, &now, &mut unmet);
        let first = &seen.rows[0];
        assert_eq!((first.path.as_str(), first.direction), ("s1/red/poor", "egress"));
        assert_eq!((first.short_bps, first.unmet_ns), (6_000_000, 900_000_000));
        assert_eq!((first.wants_bps, first.sojourn_p99_ns), (4_016_000, Some(1 << 22)));
        assert_eq!(first.at_cost_of, Some(("s1/red/greedy".to_owned(), 7_000_000)));
        assert_eq!(first.drops, BTreeMap::from([("queue-full".to_owned(), 2)]));
        assert_eq!(seen.rows.iter().filter(|row| row.short_bps > 0).count(), 1, "neither who is idle nor who is met");
        assert_eq!(seen.busy_permille, 250);
        let text = screen(&seen, LINES.into(), COLUMNS.into());
        assert!(text.contains("SHORT s1/red/poor egress for 0.9 s of 1.0 s: 4 Mbit/s of 10 Mbit/s\n"), "{text}");
        assert!(text.contains("most beyond its own: s1/red/greedy, by 7 Mbit/s\n"), "{text}");
        assert!(text.contains(" 10M   >4.01M       4M  0.9 s 4.19 ms queue-full 2\n"), "{text}");
        assert!(
            text.lines().count() <= LINES.into() && text.lines().all(|line| line.chars().count() <= COLUMNS.into()),
            "{text}"
        );
        // A smaller terminal gets less, a wider one whole names.
        let small = screen(&seen, 5, 40);
        assert!(small.lines().count() == 5 && small.lines().all(|line| line.chars().count() <= 40), "{small}");
        let mut long = compare(&before, &now, &mut Unmet::new());
        long.rows[0].path = format!("s1/red/{}", "x".repeat(50));
        assert!(!screen(&long, LINES.into(), COLUMNS.into()).contains("s1/red/xxxxx egress"));
        assert!(screen(&long, 60, 150).contains(&format!("\n{} out", long.rows[0].path)));
        // It adds up, and stays when the shortage ends; after a restart it does not run backwards.
        let later = report(
            13,
            &[
                ("idle", 10, 0, 0, 0),
                ("greedy", 1, 2_000_000, 0, 0),
                ("poor", 10, 500_001, 11_000, 8000),
                ("met", 10, 1_237_500, 0, 70_000),
            ],
        );
        assert_eq!(compare(&now, &later, &mut unmet).rows[0].unmet_ns, 3_000_000_000);
        let calm = compare(&later, &report(14, &[("poor", 10, 500_001, 0, 8000)]), &mut unmet);
        assert_eq!((calm.rows[0].short_bps, calm.rows[0].unmet_ns), (0, 3_000_000_000));
        assert!(screen(&calm, LINES.into(), COLUMNS.into()).contains("nobody is short"));
        let begun = report(15, &[("poor", 10, 0, 0, 0)]);
        assert_eq!(compare(&later, &begun, &mut unmet).rows[0].unmet_ns, 0);
        let again = compare(&begun, &report(16, &[("poor", 10, 500_000, 11_000, 900)]), &mut unmet);
        assert_eq!(again.rows[0].unmet_ns, 900_000_000, "and counts anew");
    }
}
