//! `levada show`: asks a running daemon for its report, and prints it for people or as JSON.

use crate::Failure;
use crate::control_socket::{self, Reply, Request};
use crate::report::{EndpointReport, LaneReport, Report, SharedReport, SwitchReport, UplinkDirection};
use crate::rundir::{self, SOCKET};
use control::units::{show_rate, show_time};
use datapath::units::Rate;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::ErrorKind;

/// The report of the instance `name`; without a name, of the only one there is.
pub fn show(name: Option<String>, json: bool) -> Result<String, Failure> {
    let name = match name {
        Some(name) => name,
        None => only_instance()?,
    };
    let report = fetch(&name)?;
    if json {
        let text = serde_json::to_string_pretty(&report).map_err(|e| Failure::Failed(e.to_string()))?;
        return Ok(text + "\n");
    }
    Ok(table(&report))
}

fn only_instance() -> Result<String, Failure> {
    let base = rundir::base();
    let mut names = rundir::instances(&base)
        .map_err(|error| Failure::Failed(format!("cannot read {}: {error}", base.display())))?;
    match names.len() {
        0 => Err(Failure::Failed(format!("no instance runs (there is none in {})", base.display()))),
        1 => Ok(names.remove(0)),
        _ => Err(Failure::Failed(format!("there are several instances; say which: --name {}", names.join(" | ")))),
    }
}

fn fetch(name: &str) -> Result<Report, Failure> {
    let path = rundir::base().join(name).join(SOCKET);
    match control_socket::ask(&path, &Request::Show {}) {
        Ok(Reply::Show(report)) => Ok(*report),
        Ok(Reply::Error(why)) => Err(Failure::Failed(format!("instance \"{name}\" answered: {why}"))),
        Err(error) => Err(Failure::Failed(match error.kind() {
            ErrorKind::NotFound => format!("no instance \"{name}\" runs (there is no {})", path.display()),
            ErrorKind::ConnectionRefused => {
                format!("instance \"{name}\" does not run, but left {}: levada clean --name {name}", path.display())
            }
            ErrorKind::PermissionDenied => {
                format!("{}: {error}; run as the user that runs the daemon", path.display())
            }
            _ => format!("{}: {error}", path.display()),
        })),
    }
}

/// The report as text. Columns are as wide as what is in them.
fn table(report: &Report) -> String {
    let worker = &report.worker;
    let mut out = format!("{}  process {}, up {}\n", report.name, report.pid, seconds(report.now_ns));
    let permille = (worker.busy_ns * 1000).checked_div(report.now_ns).unwrap_or(0);
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
    for link in &report.links {
        let ends = [("a", &link.a), ("b", &link.b)].map(|(end, s)| {
            format!("{end} sent {} with {} drops, {} wait", bytes(s.bytes), s.drops, bytes(s.backlog_bytes))
        });
        let _ = writeln!(out, "link {}  {}", link.name, ends.join("; "));
    }
    for switch in &report.switches {
        let _ = write!(out, "\n{}", switch_table(switch));
    }
    out
}

fn switch_table(switch: &SwitchReport) -> String {
    let mut out = format!("switch {}  order {}, ingress {}\n", switch.name, switch.order, switch.ingress);
    if let Some(uplink) = &switch.uplink {
        let _ = writeln!(out, "  uplink {} ({}){}", uplink.port, uplink.state, reasons(&uplink.drops));
        for (word, direction) in [("egress", &uplink.egress), ("ingress", &uplink.ingress)] {
            let _ = writeln!(out, "    {word:<8}{}", uplink_line(direction));
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
    out + &columns(&rows)
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
    let name = format!("  {}{}", endpoint.name, if endpoint.state == "up" { "" } else { " (port down)" });
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

fn columns(rows: &[[String; 10]]) -> String {
    let mut widths = [0; 10];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(i, cell)| {
            let width = widths[i];
            // Words stand left, numbers right.
            if i < 2 || i == 9 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
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
}
