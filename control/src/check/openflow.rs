//! Checking the configuration of a controller of OpenFlow switches.

use super::services::{Keys, check_set, check_versions};
use super::{Findings, unique};
use crate::config::Service;
use crate::config::openflow::{Listen, MOST_SERVICES, Mode, OpenFlow};
use crate::place::Place;
use crate::problem::Problem;
use datapath::service::OnFailure;
use datapath::service::choose::Policy;
use datapath::wire::protocol;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Everything that is wrong with `config`, except what whoever read it has reported.
pub(crate) fn check(config: &OpenFlow) -> Vec<Problem> {
    let mut findings = Findings::default();
    let root = Place::root().key("openflow");
    if let (Listen::Tcp(address), None) = (&config.listen, &config.tls)
        && !address.ip().is_loopback()
    {
        let message = format!("anybody who reaches {address} could play a switch");
        findings.error(root.key("listen"), message, "add [openflow.tls], or listen on 127.0.0.1 or a Unix socket");
    }
    if let (Listen::Unix(_), Some(_)) = (&config.listen, &config.tls) {
        let message = "a Unix socket has no TLS: its file's permissions say who may connect";
        findings.error(root.key("tls"), message, "remove [openflow.tls], or listen on an address");
    }
    let services = root.key("service");
    unique(&mut findings, config.services.iter().map(|s| s.name.as_str()), &services, "service", "the controller");
    if config.services.len() > MOST_SERVICES {
        let message = format!("the controller has {} services", config.services.len());
        findings.error(services.clone(), message, format!("at most {MOST_SERVICES}"));
    }
    let mut fronts = BTreeMap::new();
    let mut macs = BTreeMap::new();
    let mut keys = Keys { files: BTreeMap::new(), arrive: config.reports.is_some(), at: "[openflow]" };
    for (s, service) in config.services.iter().enumerate() {
        let place = services.item(s);
        for (a, address) in service.addresses.iter().enumerate() {
            let at = place.key("address").item(a);
            if let Some(other) = fronts.insert(address.0, &service.name) {
                let message = format!("{address} is service \"{other}\"'s");
                findings.error(at, message, "give each service its own address or port");
            } else {
                let mac = service.mac(&config.name);
                if macs.insert(address.0.ip, mac).is_some_and(|before| before != mac) {
                    let message = format!("{} has another MAC address at another service", address.0.ip);
                    findings.error(at, message, "write the same `mac` in both");
                }
            }
        }
        check_policy(&mut findings, config, service, &place);
        check_failures(&mut findings, config, service, &place);
        check_backends(&mut findings, config, service, &place);
        keys.check(&mut findings, service, &service.name, &place);
    }
    findings.0
}

/// With `hash` the switch chooses, by weights alone.
fn check_policy(findings: &mut Findings, config: &OpenFlow, service: &Service, place: &Place) {
    let by_weight = [Policy::Random, Policy::RoundRobin, Policy::Maglev];
    if config.mode == Mode::Hash && !by_weight.contains(&service.policy) {
        let message = "with mode = \"hash\" the switch spreads connections by weight; this policy has no effect yet";
        let remedy = "write policy = \"maglev\", or mode = \"reactive\" at the top";
        findings.error(place.key("policy"), message, remedy);
    }
    if config.mode == Mode::Hash && service.affinity {
        let message = "with mode = \"hash\" the switch spreads connections by addresses and ports together; \
                       OpenFlow 1.3 has no group that goes by the client alone";
        let remedy = "write affinity = \"connection\", or mode = \"reactive\" at the top";
        findings.error(place.key("affinity"), message, remedy);
    }
}

/// Who is found down is said by `probe` alone, of backends of TCP.
fn check_failures(findings: &mut Findings, config: &OpenFlow, service: &Service, place: &Place) {
    let is_asked = service.addresses.iter().any(|address| address.0.protocol == protocol::TCP);
    let (message, remedy) = match (config.probe_ns > 0, is_asked) {
        (true, true) => return,
        (true, false) => ("backends of UDP are not asked, so `on_failure` has no effect", "leave `on_failure` out"),
        (false, _) => (
            "without `probe` no backend is found down, so `on_failure` has no effect",
            "write `probe = \"1 s\"` in [openflow] too",
        ),
    };
    if service.on_failure == OnFailure::Reset {
        findings.warning(place.key("on_failure"), message, remedy);
    }
}

fn check_backends(findings: &mut Findings, config: &OpenFlow, service: &Service, place: &Place) {
    let backends = place.key("backend");
    check_set(findings, service, place, "[[openflow.service.backend]]");
    let addresses: Vec<IpAddr> = config.services.iter().flat_map(|s| &s.addresses).map(|a| a.0.ip).collect();
    for (b, backend) in service.backends.iter().enumerate() {
        let at = backends.item(b).key("ip");
        for ip in backend.ips.iter().filter(|ip| addresses.contains(ip)) {
            findings.error(at.clone(), format!("{ip} is a service's address"), "write the machine's own address");
        }
        // Where there is none, that has been said.
        if !backend.ips.is_empty() {
            let knows = [true, false].map(|v4| backend.ips.iter().any(|ip| ip.is_ipv4() == v4));
            let remedy = "write both: ip = [\"10.0.0.1\", \"2001:db8::1\"]";
            check_versions(findings, service, backend, knows, remedy, &at);
        }
    }
}
