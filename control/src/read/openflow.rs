//! Reading the configuration of a controller of OpenFlow switches.

use super::table::{Reader, Table};
use super::{MAX_TEXT, Reading, file, service, values};
use crate::config::openflow::{Listen, MODES, Mode, OpenFlow, ROLES, Role, Tls};
use crate::config::{Backend, Service};
use crate::names;
use crate::units::{self, Wrong};
use std::net::SocketAddr;
use toml::de::{DeTable, DeValue};

/// Whether `[openflow]` is there, however much else is wrong.
pub(crate) fn is_one(text: &str) -> bool {
    text.len() <= MAX_TEXT && DeTable::parse_recoverable(text).0.get_ref().contains_key("openflow")
}

/// Reads the configuration of a controller.
pub(crate) fn read(text: &str) -> Reading<OpenFlow> {
    file(text, |reader, root| reader.table(root, "openflow").map(|table| openflow(reader, table)).unwrap_or_default())
}

fn openflow(r: &mut Reader, mut t: Table<'_>) -> OpenFlow {
    let default = OpenFlow::default();
    let config = OpenFlow {
        name: r.name(&mut t, "\"edge\""),
        listen: r.get(&mut t, "listen", listen).unwrap_or(default.listen),
        tls: r.table(&mut t, "tls").map(|u| tls(r, u)),
        mode: r.get(&mut t, "mode", mode).unwrap_or(default.mode),
        role: r.get(&mut t, "role", role).unwrap_or(default.role),
        idle_timeout_s: r.get(&mut t, "idle_timeout", idle_timeout).unwrap_or(default.idle_timeout_s),
        connections: r.get(&mut t, "connections", values::connections).unwrap_or(default.connections),
        reports: r.get(&mut t, "reports", values::reports),
        probe_ns: r.get(&mut t, "probe", probe).unwrap_or(default.probe_ns),
        normal: r.get(&mut t, "normal", values::flag).unwrap_or(default.normal),
        services: r.tables(&mut t, "service").into_iter().map(|u| balanced(r, u)).collect(),
    };
    r.close(t);
    config
}

fn tls(r: &mut Reader, mut t: Table<'_>) -> Tls {
    let mut file = |key| r.need(&mut t, key, "\"/etc/levada/openflow.pem\"", values::file).unwrap_or_default();
    let tls = Tls { certificate: file("certificate"), key: file("key"), authority: file("authority") };
    r.close(t);
    tls
}

fn balanced(r: &mut Reader, mut t: Table<'_>) -> Service {
    let default = Service::default();
    let service = Service {
        name: r.name(&mut t, "\"web\""),
        addresses: service::addresses(r, &mut t),
        policy: r.get(&mut t, "policy", values::policy).unwrap_or(default.policy),
        mac: r.get(&mut t, "mac", values::mac),
        ping: r.get(&mut t, "ping", values::flag).unwrap_or(default.ping),
        report_period_ns: r.get(&mut t, "report_period", values::period).unwrap_or(default.report_period_ns),
        affinity: r.get(&mut t, "affinity", values::affinity).unwrap_or(default.affinity),
        affinity_ns: r.get(&mut t, "affinity_time", values::period).unwrap_or(default.affinity_ns),
        when_down: r.get(&mut t, "when_down", values::when_down).unwrap_or(default.when_down),
        on_failure: r.get(&mut t, "on_failure", values::on_failure).unwrap_or(default.on_failure),
        panic_ppm: r.get(&mut t, "panic", values::panic_part).unwrap_or(default.panic_ppm),
        backends: r.tables(&mut t, "backend").into_iter().map(|u| backend(r, u)).collect(),
        ..default
    };
    r.close(t);
    service
}

fn backend(r: &mut Reader, mut t: Table<'_>) -> Backend {
    let default = Backend::default();
    let backend = Backend {
        name: r.name(&mut t, "\"web1\""),
        ips: service::ips(r, &mut t, Some("\"10.0.0.2\"")),
        mac: r.need(&mut t, "mac", "\"02:00:00:00:00:02\"", values::mac),
        port: r.get(&mut t, "port", values::port),
        weight: r.get(&mut t, "weight", values::backend_weight).unwrap_or(default.weight),
        cores: r.get(&mut t, "cores", values::cores).unwrap_or(default.cores),
        key: r.get(&mut t, "key", values::report_key),
        ..default
    };
    r.close(t);
    backend
}

/// Where switches connect to a controller.
fn listen(value: &DeValue<'_>) -> Result<Listen, Wrong> {
    const SUCH_AS: &str = "write such as \"127.0.0.1:6653\" or \"unix:/run/openvswitch/edge.sock\"";
    let word = values::text(value, "\"127.0.0.1:6653\"")?;
    if let Some(path) = word.strip_prefix("unix:") {
        let is_path = path.starts_with('/') && path.len() <= names::MAX_SOCKET && !path.contains(char::is_control);
        return if is_path {
            Ok(Listen::Unix(path.to_owned()))
        } else {
            Err(Wrong::new(format!("\"{path}\" is no path of a Unix socket"), SUCH_AS))
        };
    }
    let address: SocketAddr =
        word.parse().map_err(|_| Wrong::new(format!("\"{word}\" is not an address with a port"), SUCH_AS))?;
    if address.port() == 0 { Err(Wrong::new("port 0 cannot be reached", SUCH_AS)) } else { Ok(Listen::Tcp(address)) }
}

/// How a controller spreads connections.
fn mode(value: &DeValue<'_>) -> Result<Mode, Wrong> {
    values::choice(value, &MODES, "mode")
}

/// A controller's rights at a switch.
fn role(value: &DeValue<'_>) -> Result<Role, Wrong> {
    values::choice(value, &ROLES, "role")
}

/// How often backends are asked.
fn probe(value: &DeValue<'_>) -> Result<u64, Wrong> {
    const SECOND: u64 = 1_000_000_000;
    units::time_ns(values::text(value, "\"1 s\"")?, SECOND, 60 * SECOND)
}

/// Idle timeout of flows, in seconds.
fn idle_timeout(value: &DeValue<'_>) -> Result<u16, Wrong> {
    const SECOND: u64 = 1_000_000_000;
    let word = values::text(value, "\"10 s\"")?;
    let ns = units::time_ns(word, SECOND, u64::from(u16::MAX) * SECOND)?;
    if ns % SECOND != 0 {
        return Err(Wrong::new(format!("\"{word}\" is not a whole number of seconds"), "OpenFlow counts seconds"));
    }
    Ok((ns / SECOND) as u16)
}
