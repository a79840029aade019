//! The report as OpenMetrics text (OpenMetrics 1.0): `GET /v1/metrics`, for Prometheus and its
//! like.
//!
//! All names begin with `levada_`; units are seconds and bytes; labels are names that the operator
//! has declared, directions, and reasons, so that their number is bounded by the configuration.
//! What strangers choose (addresses) is never a label. Written by hand: it is two dozen lines of
//! format, and the report is there already; the tests parse it strictly.

use crate::api::cluster::{ClusterReply, ClusterReport};
use crate::api::device::DeviceReport;
use crate::api::report::{LaneReport, LinkEndReport, ProcessorReport, Report, SharedReport, SojournReport};
use crate::api::services::ServicesReply;
use crate::api::vcc::VccReply;
use datapath::sojourn::Sojourn;
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

mod bonds;
pub mod services;
mod vcc;

/// The media type.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper ends of histogram buckets, as powers of two of nanoseconds: 1 us to 17 s. The counts
/// behind them are exact at these.
const BUCKETS: [u32; 13] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34];

/// What shortage of the processor is, and waiting for it.
const SHORT: &str = "Time in which it wanted more of the processor than there was.";
const WAITED: &str = "What the worker spent on others while something of it waited.";
/// What unmet time is.
const UNMET: &str = "For how long it wanted more than it got, and got less than its guarantee.";

/// The families, in the order in which they were begun.
#[derive(Default)]
pub struct Families(Vec<Family>);

struct Family {
    name: &'static str,
    head: String,
    samples: String,
}

/// What kind a family is: its type, and the suffix of its samples.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Families {
    fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> &mut String {
        if let Some(at) = self.0.iter().position(|family| family.name == name) {
            return &mut self.0[at].samples;
        }
        let word = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let mut head = format!("# TYPE {name} {word}\n");
        if let Some(unit) = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(&format!("_{unit}"))) {
            let _ = writeln!(head, "# UNIT {name} {unit}");
        }
        let _ = writeln!(head, "# HELP {name} {help}");
        self.0.push(Family { name, head, samples: String::new() });
        let last = self.0.len() - 1;
        &mut self.0[last].samples
    }

    /// A sample of a counter, whose family it begins if there is none.
    pub fn counter(&mut self, name: &'static str, help: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.family(name, Kind::Counter, help), "{name}_total{labels} {value}");
    }

    /// The same of a gauge.
    pub fn gauge(&mut self, name: &'static str, help: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.family(name, Kind::Gauge, help), "{name}{labels} {value}");
    }

    /// From pairs of the longest duration in a bucket, and its count. Neither sum nor count: the
    /// sum is not known.
    fn histogram(&mut self, name: &'static str, help: &str, counts: &[(u64, u64)]) {
        let samples = self.family(name, Kind::Histogram, help);
        for power in BUCKETS {
            let below: u64 = counts.iter().filter(|&&(end, _)| end < 1 << power).map(|&(_, count)| count).sum();
            let _ = writeln!(samples, "{name}_bucket{{le=\"{}\"}} {below}", Seconds(1 << power));
        }
        let all: u64 = counts.iter().map(|&(_, count)| count).sum();
        let _ = writeln!(samples, "{name}_bucket{{le=\"+Inf\"}} {all}");
    }

    /// All of them.
    pub fn text(self) -> String {
        let mut out = String::new();
        for family in self.0 {
            out += &family.head;
            out += &family.samples;
        }
        out + "# EOF\n"
    }
}

impl Families {
    /// Of an endpoint; nothing where no frame has waited yet, since it takes eighteen lines.
    fn sojourn(&mut self, name: &'static str, help: &str, of: &[(&str, &str)], sojourn: &SojournReport) {
        if sojourn.buckets.is_empty() {
            return;
        }
        let samples = self.family(name, Kind::Histogram, help);
        let mut below = 0;
        for bucket in 0.. {
            let end = Sojourn::end_ns(bucket);
            below += sojourn.buckets.iter().find(|&&(of, _)| of == end).map_or(0, |&(_, count)| count);
            let le = end.map_or_else(|| "+Inf".to_owned(), |ns| Seconds(ns).to_string());
            let to = labels(&[of, &[("le", &le)]].concat());
            let _ = writeln!(samples, "{name}_bucket{to} {below}");
            if end.is_none() {
                break;
            }
        }
        let to = labels(of);
        let _ = writeln!(samples, "{name}_sum{to} {}\n{name}_count{to} {below}", Seconds(sojourn.total_ns));
    }
}

/// Nanoseconds, shown as seconds.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Labels in braces; values escaped.
pub fn labels(pairs: &[(&str, &str)]) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let all: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", all.join(","))
}

/// The report as text.
#[must_use]
pub fn text(report: &Report, cluster: &ClusterReply, vcc: &VccReply, services: &ServicesReply) -> String {
    let mut all = Families::default();
    worker(&mut all, report);
    for link in &report.links {
        for (end, sent) in [("a", &link.a), ("b", &link.b)] {
            link_end(&mut all, &labels(&[("link", &link.name), ("end", end)]), sent);
        }
    }
    for switch in &report.switches {
        let of_switch = [("switch", switch.name.as_str())];
        all.gauge("levada_switch_learned_addresses", "Addresses learned.", &labels(&of_switch), switch.learned);
        if let Some(uplink) = &switch.uplink {
            all.gauge(
                "levada_uplink_up",
                "Whether the port is open, and its device up; of a bond, whether a member may send.",
                &labels(&of_switch),
                u8::from(uplink.state == "up"),
            );
            let to = labels(&of_switch);
            all.counter("levada_uplink_port_losses", "How often a port of it went away.", &to, uplink.losses);
            let help = "The worker's time for its ports, reading and writing.";
            all.counter("levada_uplink_worker_seconds", help, &to, Seconds(uplink.worker_ns));
            device(&mut all, "levada_uplink_device", &of_switch, uplink.device.as_ref());
            for (word, way) in [("egress", &uplink.egress), ("ingress", &uplink.ingress)] {
                let to = labels(&[of_switch[0], ("direction", word)]);
                all.gauge("levada_uplink_rate_bytes_per_second", "What it carries.", &to, way.rate_bps / 8);
                all.gauge(
                    "levada_uplink_promised_bytes_per_second",
                    "What is guaranteed over it.",
                    &to,
                    way.promised_bps / 8,
                );
                all.gauge("levada_uplink_guarantees_met", "Whether the guarantees fit.", &to, u8::from(way.met));
            }
            uplink_processor(&mut all, &labels(&of_switch), &uplink.processor);
            if let Some(bond) = &uplink.bond {
                bonds::bond(&mut all, of_switch[0], bond);
            }
            drops(
                &mut all,
                "levada_uplink_drops",
                "Frames dropped that belong to no endpoint.",
                &of_switch,
                &uplink.drops,
            );
        }
        for tenant in &switch.tenants {
            let of_tenant = [of_switch[0], ("tenant", tenant.name.as_str())];
            processor(&mut all, &labels(&of_tenant), &tenant.processor);
            for (word, shared) in [("egress", &tenant.egress), ("ingress", &tenant.ingress)] {
                let to = labels(&[of_tenant[0], of_tenant[1], ("direction", word)]);
                let help = "Wire bytes to or from the uplink, endpoints that are gone included.";
                all.counter("levada_tenant_wire_bytes", help, &to, shared.traffic.wire_bytes);
                all.counter("levada_tenant_unmet_seconds", UNMET, &to, Seconds(shared.unmet_ns));
                let help = "At least so much is promised.";
                all.gauge("levada_tenant_guarantee_bytes_per_second", help, &to, shared.guarantee_bps / 8);
            }
            let (to, memory) = (labels(&of_tenant), &tenant.memory);
            let help = "Frame memory of what waits.";
            all.gauge("levada_tenant_memory_held_bytes", help, &to, memory.held_bytes);
            let help = "Frame memory that it can always have.";
            all.gauge("levada_tenant_memory_share_bytes", help, &to, memory.share_bytes);
            for endpoint in &tenant.endpoints {
                let of = [of_tenant[0], of_tenant[1], ("endpoint", endpoint.name.as_str())];
                let to = labels(&of);
                let help = "Whether the port is open, and its device up.";
                all.gauge("levada_endpoint_up", help, &to, u8::from(endpoint.state == "up"));
                device(&mut all, "levada_endpoint_device", &of, endpoint.device.as_ref());
                all.counter("levada_endpoint_port_losses", "How often the port went away.", &to, endpoint.losses);
                let help = "The worker's time for it, reading and writing.";
                all.counter("levada_endpoint_worker_seconds", help, &to, Seconds(endpoint.worker_ns));
                for (word, shared, sojourn) in [
                    ("egress", &endpoint.egress, &endpoint.sojourn.egress),
                    ("ingress", &endpoint.ingress, &endpoint.sojourn.ingress),
                ] {
                    let direction = [of[0], of[1], of[2], ("direction", word)];
                    knobs(&mut all, &labels(&direction), shared);
                    all.sojourn("levada_endpoint_sojourn_seconds", "How long frames waited.", &direction, sojourn);
                }
                for (path, word, lane) in [
                    ("uplink", "egress", &endpoint.egress.traffic),
                    ("uplink", "ingress", &endpoint.ingress.traffic),
                    ("local", "egress", &endpoint.local_egress),
                    ("local", "ingress", &endpoint.local_ingress),
                ] {
                    traffic(&mut all, &labels(&[of[0], of[1], of[2], ("direction", word), ("path", path)]), lane);
                }
                drops(
                    &mut all,
                    "levada_endpoint_drops",
                    "Frames dropped that it sent or that were for it; by policing, segments.",
                    &of,
                    &endpoint.drops,
                );
            }
        }
    }
    services::families(&mut all, services);
    vcc.endpoints.iter().for_each(|endpoint| vcc::families(&mut all, endpoint));
    if let Some(report) = &cluster.cluster {
        self::cluster(&mut all, report);
    }
    all.text()
}

fn cluster(all: &mut Families, report: &ClusterReport) {
    all.gauge("levada_cluster_up", "Whether other hosts can reach this one.", "", u8::from(report.up));
    let ends = [("host", report.certificate_expires_s), ("authority", report.authority_expires_s)];
    for (what, end) in ends.into_iter().filter_map(|(what, end)| Some((what, end?))) {
        let help = "When a certificate expires, in Unix time.";
        all.gauge("levada_cluster_certificate_expiry_timestamp_seconds", help, &labels(&[("of", what)]), end);
    }
    if let Some(store) = &report.etcd {
        all.gauge(
            "levada_cluster_store_up",
            "Whether the store of the cluster is there.",
            "",
            u8::from(store.connected),
        );
        all.gauge("levada_cluster_store_revision", "Up to which revision the store is known.", "", store.revision);
        let help = "Endpoints of this host that are another's by the store.";
        all.gauge("levada_cluster_contested_endpoints", help, "", store.contests.len());
        all.gauge("levada_cluster_refused_entries", "Entries of the store that are not used.", "", store.refusals);
    }
    for (why, count) in &report.refused {
        all.counter("levada_cluster_refused_attempts", "Attempts to connect.", &labels(&[("reason", why)]), count);
    }
    for member in &report.members {
        let of = ("member", member.name.as_str());
        for (direction, open) in [("to", member.outgoing_ns), ("from", member.incoming_ns)] {
            let help = "Whether there is a connection; at rest there is none.";
            let to = labels(&[of, ("direction", direction)]);
            all.gauge("levada_cluster_connected", help, &to, u8::from(open.is_some()));
        }
        let datagrams = [
            ("egress", "passed", member.sent),
            ("egress", "dropped", member.unsent),
            ("ingress", "passed", member.received),
            ("ingress", "dropped", member.untaken),
        ];
        for (direction, outcome, count) in datagrams {
            let to = labels(&[of, ("direction", direction), ("outcome", outcome)]);
            all.counter("levada_cluster_datagrams", "Datagrams to and from other hosts.", &to, count);
        }
    }
}

fn worker(all: &mut Families, report: &Report) {
    let worker = &report.worker;
    all.gauge("levada_build_info", "The version that runs.", &labels(&[("version", env!("CARGO_PKG_VERSION"))]), 1);
    all.gauge("levada_uptime_seconds", "Time since the daemon's start.", "", Seconds(report.now_ns));
    all.counter("levada_worker_busy_seconds", "Time not spent waiting.", "", Seconds(worker.busy_ns));
    all.counter("levada_worker_cpu_seconds", "Processor time.", "", Seconds(worker.cpu_ns));
    all.counter("levada_worker_own_seconds", "Time for changes and for numbers.", "", Seconds(worker.own_ns));
    all.counter("levada_worker_rounds", "Rounds of the loop.", "", worker.rounds);
    all.histogram("levada_worker_loop_lag_seconds", "How late what was due was done.", &worker.loop_lag_buckets);
    all.histogram("levada_worker_round_seconds", "How long rounds of the loop took.", &worker.round_buckets);
    all.gauge("levada_memory_frames", "Frames in switches and links.", "", report.memory.frames);
    let memory = &report.memory;
    let free = [("small", memory.small_free), ("medium", memory.medium_free), ("large", memory.large_free)];
    for (size, free) in free {
        all.gauge("levada_memory_free_buffers", "Buffers that can still be had.", &labels(&[("size", size)]), free);
    }
}

fn uplink_processor(all: &mut Families, to: &str, had: &ProcessorReport) {
    let used = "What the worker spent on frames from the uplink.";
    all.counter("levada_uplink_processor_seconds", used, to, Seconds(had.used_ns));
    all.counter("levada_uplink_processor_waited_seconds", WAITED, to, Seconds(had.waited_ns));
    all.counter("levada_uplink_processor_short_seconds", SHORT, to, Seconds(had.short_ns));
}

fn processor(all: &mut Families, to: &str, had: &ProcessorReport) {
    all.counter("levada_tenant_processor_seconds", "What the worker spent on it.", to, Seconds(had.used_ns));
    all.counter("levada_tenant_processor_waited_seconds", WAITED, to, Seconds(had.waited_ns));
    all.counter("levada_tenant_processor_short_seconds", SHORT, to, Seconds(had.short_ns));
}

fn link_end(all: &mut Families, to: &str, sent: &LinkEndReport) {
    all.counter("levada_link_frames", "Frames that this end sent.", to, sent.frames);
    all.counter("levada_link_wire_bytes", "Wire bytes that this end sent.", to, sent.bytes);
    all.counter("levada_link_drops", "Segments that found the queue full.", to, sent.drops);
    let help = "Segments that the queue's management lost, as a signal to senders.";
    all.counter("levada_link_aqm_drops", help, to, sent.queue.dropped.sum());
    all.counter("levada_link_marks", "Segments marked as having met congestion.", to, sent.marks);
    all.counter("levada_link_losses", "Segments lost on the wire.", to, sent.losses);
    all.gauge("levada_link_backlog_bytes", "Wire bytes that wait.", to, sent.backlog_bytes);
}

fn knobs(all: &mut Families, to: &str, shared: &SharedReport) {
    let help = "At least so much is promised.";
    all.gauge("levada_endpoint_guarantee_bytes_per_second", help, to, shared.guarantee_bps / 8);
    if let Some(limit) = shared.limit_bps {
        all.gauge("levada_endpoint_limit_bytes_per_second", "At most so much passes.", to, limit / 8);
    }
    all.gauge("levada_endpoint_weight", "Share of what is left.", to, shared.weight);
    all.counter("levada_endpoint_unmet_seconds", UNMET, to, Seconds(shared.unmet_ns));
}

fn traffic(all: &mut Families, to: &str, lane: &LaneReport) {
    all.counter("levada_endpoint_frames", "Frames as the switch handles them.", to, lane.frames);
    all.counter("levada_endpoint_segments", "Frames on the wire.", to, lane.segments);
    all.counter("levada_endpoint_bytes", "Bytes of frames.", to, lane.bytes);
    all.counter("levada_endpoint_wire_bytes", "Bytes on the wire.", to, lane.wire_bytes);
    all.counter("levada_endpoint_guaranteed_wire_bytes", "Of these, served by guarantee.", to, lane.guaranteed_bytes);
    all.counter("levada_endpoint_marks", "Frames marked as having met congestion.", to, lane.marks);
    all.counter("levada_endpoint_trims", "Segments trimmed off by the queue's management.", to, lane.trims);
    all.gauge("levada_endpoint_backlog_bytes", "Wire bytes that wait.", to, lane.backlog_bytes);
}

/// What another program or an operator has done with a device of the daemon.
fn device(all: &mut Families, name: &'static str, of: &[(&str, &str)], device: Option<&DeviceReport>) {
    let Some(device) = device else { return };
    let help = "Whether another program or an operator has done this with its device.";
    for (state, is_so) in [
        ("moved", device.moved.is_some()),
        ("renamed", device.renamed.is_some()),
        ("set_down", !device.set_up),
        ("unsettled", device.unsettled.is_some()),
    ] {
        all.gauge(name, help, &labels(&[of, &[("state", state)]].concat()), u8::from(is_so));
    }
}

fn drops(all: &mut Families, name: &'static str, help: &str, of: &[(&str, &str)], drops: &BTreeMap<String, u64>) {
    for (reason, count) in drops {
        let pairs: Vec<(&str, &str)> = of.iter().copied().chain([("reason", reason.as_str())]).collect();
        all.counter(name, help, &labels(&pairs), count);
    }
}

#[cfg(test)]
pub mod tests;
