//! Reading a configuration from TOML. The format is the struct in `config`, field by field; the
//! keys are the names asked for here.

mod aqm;
mod bond;
mod cluster;
mod health;
pub(crate) mod openflow;
mod service;
mod table;
pub(crate) mod thing;
pub(crate) mod values;
pub(crate) mod vcc;

use crate::config::{Bond, Config, Daemon, Device, Endpoint, Knobs, Link, Switch, Tenant, Uplink};
use crate::place::{Locations, Place};
use crate::problem::Problem;
use datapath::aqm::Discipline;
use datapath::guard::{Allow, Identity};
use datapath::link::LinkConfig;
use datapath::program::Outside;
use datapath::units::Rate;
use std::net::IpAddr;
use table::{Reader, Table};
use toml::de::DeTable;

/// Longest text that is read, in bytes: a hundred thousand endpoints take about half of it.
pub const MAX_TEXT: usize = 64 << 20;

/// What was read: a configuration of a kind.
pub(crate) struct Reading<C> {
    pub config: C,
    pub problems: Vec<Problem>,
    pub locations: Locations,
    /// Whether the text was TOML at all, so that checking what it says makes sense.
    pub is_toml: bool,
}

/// Reads the configuration of a daemon.
pub(crate) fn read(text: &str) -> Reading<Config> {
    file(text, config)
}

/// Reads `text`, whose root `of_root` knows. What cannot be read is a problem, and has its default
/// in the result.
fn file<C: Default>(text: &str, of_root: impl FnOnce(&mut Reader, &mut Table<'_>) -> C) -> Reading<C> {
    let mut reader = Reader::default();
    if text.len() > MAX_TEXT {
        let problem =
            Problem::error(Place::root(), "the configuration is longer than 64 MiB", "split it over several daemons");
        return Reading {
            config: C::default(),
            problems: vec![problem],
            locations: Locations::default(),
            is_toml: false,
        };
    }
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let mut problem = Problem::error(Place::root(), format!("not TOML: {}", error.message()), "");
        problem.span = error.span();
        reader.problems.push(problem);
    }
    let mut root = Table::new(root.get_ref(), Place::root());
    reader.locations.record(&root.place, 0..0);
    let config = of_root(&mut reader, &mut root);
    if errors.is_empty() {
        reader.close(root);
    } else {
        // Around a fault in the syntax keys go missing or astray: what is said of them would be
        // guesswork.
        reader.problems.truncate(errors.len());
    }
    Reading { config, problems: reader.problems, locations: reader.locations, is_toml: errors.is_empty() }
}

fn config(r: &mut Reader, root: &mut Table<'_>) -> Config {
    let daemon = match r.table(root, "daemon") {
        Some(table) => daemon(r, table),
        None if root.has("daemon") => Daemon::default(),
        None => {
            let problem = Problem {
                span: Some(0..0),
                key: "daemon".to_owned(),
                ..Problem::error(
                    Place::root().key("daemon"),
                    "`[daemon]` is missing",
                    "add [daemon] with name = \"demo\"",
                )
            };
            r.problems.push(problem);
            Daemon::default()
        }
    };
    let switches = r.tables(root, "switch").into_iter().map(|t| switch(r, t)).collect();
    let links = r.tables(root, "link").into_iter().map(|t| link(r, t)).collect();
    let cluster = r.table(root, "cluster").map(|t| cluster::cluster(r, t));
    Config { daemon, switches, links, cluster }
}

fn daemon(r: &mut Reader, mut t: Table<'_>) -> Daemon {
    let default = Daemon::default();
    let daemon = Daemon {
        name: r.name(&mut t, "\"demo\""),
        spin: r.get(&mut t, "spin", values::flag).unwrap_or(default.spin),
        memory_bytes: r.get(&mut t, "memory", values::memory).unwrap_or(default.memory_bytes),
        socket_group: r.get(&mut t, "socket_group", values::group),
        reports: r.get(&mut t, "reports", values::reports),
    };
    r.close(t);
    daemon
}

fn switch(r: &mut Reader, mut t: Table<'_>) -> Switch {
    let default = Switch::default();
    let name = r.name(&mut t, "\"s1\"");
    let (flows, rescales) = r.table(&mut t, "vcc").map_or((default.flows, default.rescales), |u| vcc::of_switch(r, u));
    let switch = Switch {
        name,
        order: r.get(&mut t, "order", values::order).unwrap_or_default(),
        ingress: r.get(&mut t, "ingress", values::ingress).unwrap_or_default(),
        headroom_ppm: r.get(&mut t, "headroom", values::headroom),
        fdb_age_ns: r.get(&mut t, "fdb_age", values::age).unwrap_or(default.fdb_age_ns),
        connections: r.get(&mut t, "connections", values::connections),
        flows,
        rescales,
        shortcut: r.get(&mut t, "shortcut", values::flag).unwrap_or(default.shortcut),
        uplink: r.table(&mut t, "uplink").map(|u| uplink(r, u)),
        tenants: r.tables(&mut t, "tenant").into_iter().map(|u| tenant(r, u)).collect(),
    };
    r.close(t);
    switch
}

fn uplink(r: &mut Reader, mut t: Table<'_>) -> Uplink {
    let bond = r.table(&mut t, "bond").map(|u| bond::bond(r, u));
    let such_as = (!t.has("bond")).then_some("\"tap://uplink0\"");
    let device = device(r, &mut t, such_as);
    let mut device = Device { mac: r.get(&mut t, "mac", values::mac), ..device };
    if let Some(bond) = &bond {
        for key in OF_PORTS.iter().filter(|key| t.has(key)) {
            let problem = Problem::error(
                t.place.key(*key),
                format!("`{key}` is a port's, and this uplink is a bond"),
                "write it at the bond's members, or remove `bond`",
            );
            r.problems.extend(problem.located(&r.locations, &r.hidden));
        }
        device = Device { mtu: bond.mtu(), ..Device::default() };
    }
    if !t.has("rate") && !t.has("bond") {
        r.need(&mut t, "rate", "\"1 Gbit/s\"", values::rate);
    }
    let rate = r.both(&mut t, "rate", values::rate);
    for (key, value) in [("egress", rate.egress), ("ingress", rate.ingress)] {
        let other = if key == "egress" { rate.ingress } else { rate.egress };
        if let (None, Some(_)) = (value, other) {
            let problem = Problem::error(
                t.place.key("rate"),
                format!("the uplink's {key} rate is missing"),
                "write rate = { egress = \"..\", ingress = \"..\" }, or one rate for both",
            );
            r.problems.extend(problem.located(&r.locations, &r.hidden));
        }
    }
    let burst_ns = r.get(&mut t, "burst", values::burst);
    let vtep = r.get(&mut t, "vtep", values::vtep);
    let flood_per_second = r.get(&mut t, "flood_per_second", values::count);
    let flood_rate = r.get(&mut t, "flood_rate", values::rate);
    let whole = bond.as_ref().map(Bond::rate).unwrap_or_default();
    let rate = datapath::units::Both {
        egress: rate.egress.unwrap_or(whole.egress),
        ingress: rate.ingress.unwrap_or(whole.ingress),
    };
    let aqm = aqm::aqm(r, &mut t);
    r.close(t);
    Uplink { aqm, device, bond, rate, burst_ns, vtep, flood_per_second, flood_rate }
}

/// Keys of an uplink with one port that a bond's members have.
const OF_PORTS: [&str; 16] = [
    "port",
    "rate",
    "netns",
    "address",
    "mtu",
    "ring",
    "ipv6",
    "persistent",
    "hub",
    "mode",
    "group",
    "queues",
    "listen",
    "offload",
    "sealed",
    "mac",
];

/// `such_as`: the port that must be there might be this.
fn device(r: &mut Reader, t: &mut Table<'_>, such_as: Option<&str>) -> Device {
    let default = Device::default();
    Device {
        locator: match such_as {
            Some(such_as) => r.need(t, "port", such_as, values::locator),
            None => r.get(t, "port", values::locator),
        },
        netns: r.get(t, "netns", values::netns),
        mac: None,
        addresses: r.list(t, "address", values::address),
        mtu: r.get(t, "mtu", values::mtu).unwrap_or(default.mtu),
        ring: r.get(t, "ring", values::ring),
        ipv6: r.get(t, "ipv6", values::flag).unwrap_or(default.ipv6),
        persistent: r.get(t, "persistent", values::flag).unwrap_or(default.persistent),
        hub: r.get(t, "hub", values::flag).unwrap_or(default.hub),
        mode: r.get(t, "mode", values::mode),
        group: r.get(t, "group", values::group),
        queues: r.get(t, "queues", values::queues).unwrap_or(default.queues),
        listen: r.get(t, "listen", values::flag).unwrap_or(default.listen),
        offload: r.get(t, "offload", values::flag).unwrap_or(default.offload),
        sealed: r.get(t, "sealed", values::flag).unwrap_or(default.sealed),
    }
}

fn knobs(r: &mut Reader, t: &mut Table<'_>) -> Knobs {
    Knobs {
        guarantee: r.both(t, "guarantee", values::rate),
        limit: r.both(t, "limit", values::rate),
        weight: r.both(t, "weight", values::weight),
    }
}

fn tenant(r: &mut Reader, mut t: Table<'_>) -> Tenant {
    let name = r.name(&mut t, "\"red\"");
    let (vlan, vni) = (r.get(&mut t, "vlan", values::vlan), r.get(&mut t, "vni", values::vni));
    if vlan.is_some() && vni.is_some() {
        let problem = Problem::error(
            t.place.key("vni"),
            "the tenant has a `vlan` as well: it has one way to the uplink",
            "remove `vlan` to have tunnels, or `vni` to have a VLAN",
        );
        r.problems.extend(problem.located(&r.locations, &r.hidden));
    }
    let tenant = Tenant {
        name,
        attachment: vlan.or(vni).unwrap_or_default(),
        outside: outside(r, &mut t),
        knobs: knobs(r, &mut t),
        aqm: aqm::aqm(r, &mut t),
        flood_rate: r.get(&mut t, "flood_rate", values::rate),
        vcc: vcc::settings(r, &mut t),
        endpoints: r.tables(&mut t, "endpoint").into_iter().map(|u| endpoint(r, u)).collect(),
        services: r.tables(&mut t, "service").into_iter().map(|u| service::service(r, u)).collect(),
    };
    r.close(t);
    tenant
}

fn outside(r: &mut Reader, t: &mut Table<'_>) -> Outside {
    let mut outside = Outside::default();
    for address in r.list(t, "outside", values::mac_or_ip) {
        match address {
            Ok(mac) => outside.macs.push(mac),
            Err(ip) => outside.ips.push(ip),
        }
    }
    outside
}

fn endpoint(r: &mut Reader, mut t: Table<'_>) -> Endpoint {
    let default = Endpoint::default();
    let name = r.name(&mut t, "\"red1\"");
    let device = device(r, &mut t, Some("\"tap://red1\""));
    let identity = identity(r, &mut t);
    let endpoint = Endpoint {
        name,
        device: Device { mac: identity.macs.first().copied(), ..device },
        identity,
        trunk: r.get(&mut t, "trunk", values::flag).unwrap_or(default.trunk),
        knobs: knobs(r, &mut t),
        queue_bytes: r.get(&mut t, "queue", values::queue).unwrap_or(default.queue_bytes),
        aqm: aqm::aqm(r, &mut t),
        vcc: r.get(&mut t, "vcc", values::vcc),
        strips_multipath: r.get(&mut t, "mptcp", values::mptcp),
        ignores_loss: r.get(&mut t, "loss", values::vcc_loss),
        passes_classic: r.get(&mut t, "classic", values::classic),
        flood_per_second: r.get(&mut t, "flood_per_second", values::count),
        flood_rate: r.get(&mut t, "flood_rate", values::rate),
        max_learned: r.get(&mut t, "max_learned", values::count),
    };
    r.close(t);
    endpoint
}

fn identity(r: &mut Reader, t: &mut Table<'_>) -> Identity {
    let mut identity = Identity { macs: r.list(t, "mac", values::mac), ..Identity::default() };
    for (ip, length) in r.list(t, "ip", values::prefix) {
        match ip {
            IpAddr::V4(ip) => identity.ipv4.push((ip, length)),
            IpAddr::V6(ip) => identity.ipv6.push((ip, length)),
        }
    }
    for allow in r.list(t, "allow", values::allow) {
        let Allow { dhcp_server, router, control_protocols, learned_addresses } = allow;
        identity.allow.dhcp_server |= dhcp_server;
        identity.allow.router |= router;
        identity.allow.control_protocols |= control_protocols;
        identity.allow.learned_addresses |= learned_addresses;
    }
    identity
}

fn link(r: &mut Reader, mut t: Table<'_>) -> Link {
    let default = LinkConfig::default();
    let link = Link {
        name: r.name(&mut t, "\"fabric\""),
        rate: r.need(&mut t, "rate", "\"1 Gbit/s\"", values::rate).unwrap_or(Rate(0)),
        delay_ns: r.get(&mut t, "delay", values::delay).unwrap_or(default.delay_ns),
        queue_bytes: r.get(&mut t, "queue", values::link_queue).unwrap_or(default.queue_bytes),
        discipline: aqm::aqm(r, &mut t).unwrap_or(Discipline::DropTail),
        loss_ppm: r.get(&mut t, "loss", values::loss).unwrap_or(0),
    };
    r.close(t);
    link
}
