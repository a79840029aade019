//! Services: addresses that are their own, and backends that can be reached at the service's IP
//! versions.

use super::{Findings, unique, way};
use crate::config::{Backend, Config, Endpoint, Names, Service, Switch, Tenant};
use crate::names::show_mac;
use crate::place::Place;
use datapath::program::Attachment;
use datapath::service::choose::MOST_BACKENDS;
use datapath::service::{MOST_ADDRESSES, MOST_FRONTS_OF_TARGET, OnFailure};
use datapath::wire::protocol;
use std::collections::BTreeMap;
use std::net::IpAddr;

pub(super) fn check(findings: &mut Findings, config: &Config) {
    for (i, switch) in config.switches.iter().enumerate() {
        let place = Place::root().key("switch").item(i).key("tenant");
        check_addresses(findings, switch, &place);
        for (t, tenant) in switch.tenants.iter().enumerate() {
            let services = place.item(t).key("service");
            unique(findings, tenant.services.iter().map(|s| s.name.as_str()), &services, "service", "the tenant");
            if tenant.services.is_empty() {
                continue;
            }
            let whose = Whose { switch, tenant, names: Names::of(tenant) };
            for (s, service) in tenant.services.iter().enumerate() {
                check_service(findings, &whose, service, &services.item(s));
            }
            check_targets(findings, &whose, &services);
        }
    }
    let mut keys = Keys { files: BTreeMap::new(), arrive: config.daemon.reports.is_some(), at: "[daemon]" };
    let root = Place::root().key("switch");
    for (i, switch) in config.switches.iter().enumerate() {
        for (t, tenant) in switch.tenants.iter().enumerate() {
            let services = root.item(i).key("tenant").item(t).key("service");
            for (s, service) in tenant.services.iter().enumerate() {
                let path = format!("{}/{}/{}", switch.name, tenant.name, service.name);
                keys.check(findings, service, &path, &services.item(s));
            }
        }
    }
}

/// Whose services are looked at.
struct Whose<'a> {
    switch: &'a Switch,
    tenant: &'a Tenant,
    names: Names<'a>,
}

/// The keys of load reports: each speaks for one backend only, and there is somewhere to speak to.
pub(super) struct Keys<'a> {
    /// Files, and whose each is.
    pub files: BTreeMap<&'a str, String>,
    /// Whether reports arrive.
    pub arrive: bool,
    /// The table that says where.
    pub at: &'static str,
}

impl<'a> Keys<'a> {
    /// Those of one service's backends.
    pub(super) fn check(&mut self, findings: &mut Findings, service: &'a Service, path: &str, place: &Place) {
        for (b, backend) in service.backends.iter().enumerate() {
            let Some(file) = &backend.key else { continue };
            let place = || place.key("backend").item(b).key("key");
            let path = format!("{path}/{}", backend.name);
            let make = format!("levada key {path} FILE");
            if let Some(other) = self.files.get(file.as_str()) {
                let message = format!("{file} is the key of backend \"{other}\" too");
                findings.error(place(), message, format!("make another one: {make}"));
            } else {
                self.files.insert(file, path);
            }
            if !self.arrive {
                let message = format!("backend \"{}\" has a key, but reports arrive nowhere", backend.name);
                findings.warning(place(), message, format!("add `reports = \"ADDRESS:PORT\"` to {}", self.at));
            }
        }
    }
}

/// An address is one service's, has one MAC address, and is no endpoint's.
fn check_addresses(findings: &mut Findings, switch: &Switch, place: &Place) {
    const UNTAGGED: usize = usize::MAX;
    let network = |t: usize| if switch.tenants[t].attachment == Attachment::Untagged { UNTAGGED } else { t };
    let mut fronts = BTreeMap::new();
    let mut owners: BTreeMap<(usize, IpAddr), &Endpoint> = BTreeMap::new();
    for (t, tenant) in switch.tenants.iter().enumerate() {
        for endpoint in &tenant.endpoints {
            for ip in endpoint.own_addresses() {
                owners.insert((network(t), ip), endpoint);
            }
        }
    }
    let mut macs: BTreeMap<(usize, IpAddr), (datapath::wire::Mac, &str)> = BTreeMap::new();
    let mut count = 0;
    for (t, tenant) in switch.tenants.iter().enumerate() {
        for (s, service) in tenant.services.iter().enumerate() {
            let place = place.item(t).key("service").item(s);
            let mac = service.mac(&tenant.name);
            for (a, address) in service.addresses.iter().enumerate() {
                count += 1;
                let (at, ip) = (place.key("address").item(a), address.0.ip);
                if let Some(other) = owners.get(&(network(t), ip)) {
                    let is_given = other.device.addresses.iter().any(|&(given, _)| given == ip);
                    let key = if is_given { "address" } else { "ip" };
                    let message = format!("{ip} is endpoint \"{}\"'s in the same network", other.name);
                    let remedy = "give the service an address that nobody has, or take it out of that endpoint's";
                    findings.error(at, message, format!("{remedy} `{key}`"));
                } else if let Some(other) = fronts.insert((network(t), address.0), &service.name) {
                    let message = format!("{address} is service \"{other}\"'s in the same network");
                    findings.error(at, message, "give each service its own address or port");
                } else if let Some((before, other)) = macs.insert((network(t), ip), (mac, &service.name))
                    && before != mac
                {
                    let message = format!("{ip} has the MAC address {} at service \"{other}\"", show_mac(before));
                    findings.error(at, message, "write the same `mac` in both, or list the address first in both");
                }
            }
        }
    }
    for (t, tenant) in switch.tenants.iter().enumerate() {
        for (s, service) in tenant.services.iter().enumerate() {
            for (b, backend) in service.backends.iter().enumerate() {
                let Some((ip, other)) = backend.ips.iter().find_map(|&ip| Some((ip, macs.get(&(network(t), ip))?.1)))
                else {
                    continue;
                };
                let at = place.item(t).key("service").item(s).key("backend").item(b).key("ip");
                let message = format!("{ip} is service \"{other}\"'s in the same network, and no machine's");
                findings.error(at, message, format!("list the backends of service \"{other}\" here too"));
            }
        }
    }
    if count > MOST_ADDRESSES {
        let message = format!("the services of the switch have {count} addresses");
        let remedy = format!("at most {MOST_ADDRESSES}: while a change replaces all, there are twice as many");
        findings.error(place.clone(), message, remedy);
    }
}

/// The backends of a service among themselves; `table` is what each is in a file.
pub(super) fn check_set(findings: &mut Findings, service: &Service, place: &Place, table: &str) {
    let names = service.backends.iter().map(|backend| backend.name.as_str());
    unique(findings, names, &place.key("backend"), "backend", "the service");
    if service.backends.len() > MOST_BACKENDS {
        let message = format!("the service has {} backends", service.backends.len());
        findings.error(place.clone(), message, format!("at most {MOST_BACKENDS}"));
    }
    if service.backends.iter().all(|backend| backend.weight_now() == 0) {
        let message = format!("service \"{}\" has no backend that takes connections", service.name);
        findings.warning(place.clone(), message, format!("add {table} with a weight"));
    }
}

fn check_service(findings: &mut Findings, whose: &Whose, service: &Service, place: &Place) {
    let backends = place.key("backend");
    check_set(findings, service, place, "[[switch.tenant.service.backend]]");
    if service.check.is_some() && service.addresses.iter().all(|address| address.0.protocol != protocol::TCP) {
        let message = "none of the service's addresses is of TCP: its backends cannot be checked";
        findings.error(
            place.key("check"),
            message,
            "give it a TCP address too, at which they are asked, or leave `check` out: then health is not known",
        );
    }
    if service.on_failure == OnFailure::Reset && service.check.is_none() {
        let message = "without `check` no backend is found down, so `on_failure` has no effect";
        findings.warning(place.key("on_failure"), message, "write `check = \"tcp\"` too");
    }
    check_director(findings, whose, service, place);
    for (b, backend) in service.backends.iter().enumerate() {
        check_backend(findings, whose, (service, backend), &backends.item(b));
    }
}

/// The endpoint that pays where client and backend are both outside is one at whose port nothing
/// is.
fn check_director(findings: &mut Findings, whose: &Whose, service: &Service, place: &Place) {
    let Whose { switch, tenant, names } = whose;
    let Some(name) = &service.director else { return };
    let place = place.key("director");
    let all_are_here = || service.backends.iter().all(|backend| backend.endpoint_of(names).is_some());
    let directors = || tenant.endpoints.iter().filter(|endpoint| endpoint.is_director());
    match names.place(name).map(|at| &tenant.endpoints[at]) {
        Some(endpoint) if !endpoint.is_director() => {
            let message = format!("endpoint \"{name}\" is no director: something is at its port");
            findings.error(place, message, "add another endpoint, with port = \"director://\"");
        }
        None => {
            let near = findings.nearest(name, directors().map(|endpoint| endpoint.name.as_str()));
            let remedy = near.map_or_else(
                || format!("add [[switch.tenant.endpoint]] with name = \"{name}\" and port = \"director://\""),
                |near| format!("did you mean \"{near}\"?"),
            );
            findings.error(place, format!("tenant \"{}\" has no endpoint \"{name}\"", tenant.name), remedy);
        }
        Some(_) if switch.uplink.is_none() || tenant.attachment == Attachment::Isolated => {
            let message = "nobody outside can be reached: the tenant has no way to the uplink";
            findings.error(place.clone(), message, "add [switch.uplink] and `vlan`, or remove `director`");
            findings.assumes(way(&place));
        }
        Some(_) if !service.backends.is_empty() && all_are_here() => {
            let message = "all backends are endpoints here, so `director` has no effect";
            findings.warning(place, message, "add a backend with `ip` and `mac`, or remove `director`");
        }
        Some(_) => {}
    }
}

fn check_backend(findings: &mut Findings, whose: &Whose, (service, backend): (&Service, &Backend), place: &Place) {
    let Whose { switch, tenant, names } = whose;
    let own = backend.endpoint_of(names).map(|at| &tenant.endpoints[at]);
    let is_named = backend.endpoint.is_some() || (backend.ips.is_empty() && backend.mac.is_none());
    if own.is_none() && is_named {
        let name = backend.endpoint.as_ref().unwrap_or(&backend.name);
        let near = findings.nearest(name, tenant.endpoints.iter().map(|endpoint| endpoint.name.as_str()));
        let remedy = near.map_or_else(
            || "add the endpoint, or write `ip` and `mac` of a machine outside".to_owned(),
            |near| format!("did you mean \"{near}\"?"),
        );
        let key = if backend.endpoint.is_some() { place.key("endpoint") } else { place.clone() };
        return findings.error(key, format!("tenant \"{}\" has no endpoint \"{name}\"", tenant.name), remedy);
    }
    if own.is_none() && (switch.uplink.is_none() || tenant.attachment == Attachment::Isolated) {
        let message = "a machine outside cannot be reached: the tenant has no way to the uplink";
        findings.error(place.clone(), message, "add [switch.uplink] and `vlan`, or name an endpoint");
        return findings.assumes(way(place));
    }
    if backend.mac(own).is_none() {
        let remedy = "add `mac` to the endpoint, or to the backend";
        findings.error(place.clone(), format!("the MAC address of backend \"{}\" is not known", backend.name), remedy);
    }
    let (v4, v6) = backend.addresses(own);
    let remedy = "add it as `ip` to the endpoint or to the backend";
    check_versions(findings, service, backend, [v4.is_some(), v6.is_some()], remedy, place);
}

/// A backend has an address of each version that its service has; `knows` says of 4 and of 6
/// whether it does.
pub(super) fn check_versions(
    findings: &mut Findings,
    service: &Service,
    backend: &Backend,
    knows: [bool; 2],
    remedy: &str,
    place: &Place,
) {
    for (version, is_known) in [4, 6].into_iter().zip(knows) {
        let is_wanted = service.addresses.iter().any(|address| address.0.ip.is_ipv4() == (version == 4));
        if is_wanted && !is_known {
            let message = format!("the IPv{version} address of backend \"{}\" is not known", backend.name);
            findings.error(place.clone(), message, remedy);
        }
    }
}

/// What a backend's frame is an answer to is found by the fronts that have its address, protocol
/// and port.
fn check_targets(findings: &mut Findings, Whose { tenant, names, .. }: &Whose, place: &Place) {
    let mut counts: BTreeMap<(IpAddr, u8, u16), usize> = BTreeMap::new();
    for (s, service) in tenant.services.iter().enumerate() {
        for (b, backend) in service.backends.iter().enumerate() {
            let own = backend.endpoint_of(names).map(|at| &tenant.endpoints[at]);
            let (v4, v6) = backend.addresses(own);
            for address in service.addresses.iter().map(|address| address.0) {
                let ip = if address.ip.is_ipv4() { v4.map(IpAddr::V4) } else { v6.map(IpAddr::V6) };
                let Some(ip) = ip else { continue };
                let port = backend.port.unwrap_or(address.port);
                let count = counts.entry((ip, address.protocol, port)).or_default();
                *count += 1;
                if *count == MOST_FRONTS_OF_TARGET + 1 {
                    let message =
                        format!("more than {MOST_FRONTS_OF_TARGET} addresses of services lead to {ip}, port {port}");
                    findings.error(place.item(s).key("backend").item(b), message, "give it another `port` for some");
                }
            }
        }
    }
}
