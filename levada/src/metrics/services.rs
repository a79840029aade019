//! Services and their backends. No label is of a client: strangers choose its values.

use super::{Families, labels};
use crate::api::services::{BackendReport, ServiceReport, ServicesReply};

/// What is known of all services.
pub fn families(all: &mut Families, reply: &ServicesReply) {
    for (verdict, count) in reply.reports.iter().flat_map(|reports| reports.named()) {
        let help = "Load reports of servers, by result.";
        all.counter("levada_service_reports", help, &labels(&[("verdict", verdict)]), count);
    }
    let mut last = "";
    for report in &reply.services {
        let of = names(&report.path);
        // The table is the whole switch's; services of a switch come together.
        if let Some(&("switch", switch)) = of.first()
            && switch != last
        {
            last = switch;
            let to = labels(&of[..1]);
            let held = "Connections to services in the table.";
            all.gauge("levada_switch_service_connections", held, &to, report.table);
            let most = "Connections to services that fit into the table.";
            all.gauge("levada_switch_service_connections_limit", most, &to, report.table_most);
        }
        service(all, &labels(&of), report);
        for report in &report.backends {
            backend(all, &[&of[..], &[("backend", report.name.as_str())]].concat(), report);
        }
    }
}

/// The labels of a service, by its path; that of a controller has no switch and no tenant.
fn names(path: &str) -> Vec<(&'static str, &str)> {
    let names: Vec<&str> = path.splitn(3, '/').collect();
    ["switch", "tenant", "service"].into_iter().skip(3 - names.len()).zip(names).collect()
}

fn service(all: &mut Families, to: &str, report: &ServiceReport) {
    for (name, help, count) in [
        ("levada_service_new", "Connections that got a backend.", report.new),
        ("levada_service_refused", "New connections for which no backend was up.", report.refused),
        ("levada_service_full", "New connections for which there was no room in the table.", report.full),
        (
            "levada_service_evicted",
            "Connections whose entry was removed early for others of the tenant.",
            report.evicted,
        ),
        (
            "levada_service_redirected",
            "New connections that got another backend, as one refused or did not answer.",
            report.redirected,
        ),
        ("levada_service_off_candidates", "Connections that would be lost with the table.", report.off_candidates),
        ("levada_service_sought", "Unknown connections that a backend was asked about.", report.sought),
        (
            "levada_service_unhealthy",
            "Connections that got an unhealthy backend, as too few were healthy.",
            report.unhealthy,
        ),
        ("levada_service_held", "New connections that waited, as all backends were at their limit.", report.held),
        ("levada_service_stayed", "New connections that got their client's previous backend.", report.stayed),
        ("levada_service_recovered", "Unknown connections that were found again.", report.recovered),
    ] {
        all.counter(name, help, to, count);
    }
    let waiting = "New connections that wait for a backend below its limit.";
    all.gauge("levada_service_holding", waiting, to, report.holding);
}

fn backend(all: &mut Families, of: &[(&str, &str)], report: &BackendReport) {
    let to = labels(of);
    let up = "Whether it takes new connections: neither drained, nor ejected, nor down.";
    all.gauge("levada_service_backend_up", up, &to, u8::from(matches!(&*report.state, "up" | "slow")));
    all.gauge("levada_service_backend_weight", "Its weight; 0: it is drained.", &to, report.weight);
    for (state, count) in [("busy", report.busy), ("idle", report.idle), ("unconfirmed", report.unconfirmed)] {
        let to = labels(&[of, &[("state", state)]].concat());
        let help = "Open connections. Busy: the client waits or the server is sending. Unconfirmed: the \
                    backend has sent nothing of it since it was down or ejected. Idle: all others.";
        all.gauge("levada_service_backend_connections", help, &to, count);
    }
    for (name, help, count) in [
        ("levada_service_backend_new", "Connections that it got.", report.new),
        ("levada_service_backend_refused", "Connections that it refused.", report.refused),
        ("levada_service_backend_silent", "Connections that it did not answer in time.", report.silent),
        ("levada_service_backend_ended", "Connections that it accepted and ended at once.", report.ended),
        ("levada_service_backend_ejections", "How often it was ejected.", report.ejections),
        ("levada_service_backend_checks", "Health checks that have ended.", report.checks),
        ("levada_service_backend_failed_checks", "Health checks that failed.", report.failed_checks),
        (
            "levada_service_backend_cut",
            "Connections that were ended as its time to drain was over, or it was down.",
            report.cut,
        ),
        ("levada_service_backend_falls", "How often health checks found it down.", report.falls),
    ] {
        all.counter(name, help, &to, count);
    }
}
