//! Reading services and their backends.

use super::table::{Reader, Table};
use super::values;
use crate::config::{Backend, Service};
use crate::problem::Problem;
use std::net::IpAddr;

/// Keys of policies that there is no code for yet.
const NOT_YET: [&str; 3] = ["pack_at", "sleep_after", "wake"];

pub(super) fn service(r: &mut Reader, mut t: Table<'_>) -> Service {
    let default = Service::default();
    r.refuse(&mut t, &NOT_YET, |_| Err(values::not_yet("services.md")));
    let service = Service {
        name: r.name(&mut t, "\"web\""),
        addresses: addresses(r, &mut t),
        policy: r.get(&mut t, "policy", values::policy).unwrap_or(default.policy),
        mac: r.get(&mut t, "mac", values::mac),
        when_down: r.get(&mut t, "when_down", values::when_down).unwrap_or(default.when_down),
        ping: r.get(&mut t, "ping", values::flag).unwrap_or(default.ping),
        report_period_ns: r.get(&mut t, "report_period", values::period).unwrap_or(default.report_period_ns),
        slow_start_ns: r.get(&mut t, "slow_start", values::span).unwrap_or(default.slow_start_ns),
        check: super::health::check(r, &mut t),
        drain_ns: r.get(&mut t, "drain_time", values::span).unwrap_or(default.drain_ns),
        on_failure: r.get(&mut t, "on_failure", values::on_failure).unwrap_or(default.on_failure),
        panic_ppm: r.get(&mut t, "panic", values::panic_part).unwrap_or(default.panic_ppm),
        affinity: r.get(&mut t, "affinity", values::affinity).unwrap_or(default.affinity),
        affinity_ns: r.get(&mut t, "affinity_time", values::period).unwrap_or(default.affinity_ns),
        max_connections: r.get(&mut t, "max_connections", values::max_connections),
        hold_ns: r.get(&mut t, "hold", values::held).unwrap_or(default.hold_ns),
        director: r.get(&mut t, "director", values::name),
        backends: r.tables(&mut t, "backend").into_iter().map(|u| backend(r, u)).collect(),
    };
    r.close(t);
    service
}

/// Where it is reached, which must be said.
pub(super) fn addresses(r: &mut Reader, t: &mut Table<'_>) -> Vec<crate::names::ServiceAddress> {
    r.need_list(t, "address", "\"10.0.0.100:80\"", values::service_address)
}

pub(super) fn backend(r: &mut Reader, mut t: Table<'_>) -> Backend {
    let default = Backend::default();
    let backend = Backend {
        name: r.name(&mut t, "\"red2\""),
        endpoint: r.get(&mut t, "endpoint", values::name),
        ips: ips(r, &mut t, None),
        mac: r.get(&mut t, "mac", values::mac),
        port: r.get(&mut t, "port", values::port),
        weight: r.get(&mut t, "weight", values::backend_weight).unwrap_or(default.weight),
        drain: r.get(&mut t, "drain", values::flag).unwrap_or(default.drain),
        drain_ns: r.get(&mut t, "drain_time", values::span),
        cores: r.get(&mut t, "cores", values::cores).unwrap_or(default.cores),
        max_connections: r.get(&mut t, "max_connections", values::max_connections),
        key: r.get(&mut t, "key", values::report_key),
    };
    r.close(t);
    backend
}

/// Its addresses, of each IP version one at most. `such_as`: one must be there, such as this.
pub(super) fn ips(r: &mut Reader, t: &mut Table<'_>, such_as: Option<&str>) -> Vec<IpAddr> {
    let place = t.place.key("ip");
    let ips = match such_as {
        Some(such_as) => r.need_list(t, "ip", such_as, values::backend_ip),
        None => r.list(t, "ip", values::backend_ip),
    };
    let of_version = |v4: bool| ips.iter().filter(|ip| ip.is_ipv4() == v4).count();
    if of_version(true) > 1 || of_version(false) > 1 {
        let problem = Problem::error(
            place,
            "a backend has one address of each IP version",
            "keep one, and add another backend for another machine",
        );
        r.problems.extend(problem.located(&r.locations, &r.hidden));
    }
    ips
}
