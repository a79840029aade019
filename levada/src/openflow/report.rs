//! What a controller shows: its switches, and its services in the form of a daemon's.

use super::House;
use crate::api::openflow::{OpenFlowReply, SwitchReport};
use crate::api::services::{BackendReport, ServiceReport, ServicesReply};
use ::control::config::openflow::{MODES, OpenFlow};
use ::control::names::{POLICIES, name_of};

pub(super) fn switches(house: &House) -> OpenFlowReply {
    let (config, switches) = (house.config.borrow(), house.switches.borrow());
    let switches = switches.values().map(|status| SwitchReport {
        datapath: format!("{:016x}", status.datapath),
        software: format!("{} {}", status.description.manufacturer, status.description.software).trim().to_owned(),
        phase: status.phase.to_owned(),
        role: status.role.to_owned(),
        rules: status.rules,
        packet_ins: status.packet_ins,
        ignored: status.ignored,
        set_up: status.set_up,
        errors: status.errors,
        last_error: status.last_error.clone(),
    });
    OpenFlowReply {
        version: 1,
        mode: name_of(&MODES, config.mode).to_owned(),
        remarks: remarks(&config),
        switches: switches.collect(),
    }
}

/// What Open vSwitch's hash does not do (lib/flow.c, flow_hash_symmetric_l4).
fn remarks(config: &OpenFlow) -> Vec<String> {
    if config.mode == ::control::config::openflow::Mode::Reactive {
        return Vec::new();
    }
    vec![
        "the switch's hash has no secret: a client that chooses its port chooses its backend".to_owned(),
        "the hash leaves out UDP ports: all of a client's datagrams go to one backend".to_owned(),
        "random, round-robin and maglev are one: by weight, in 256 places".to_owned(),
    ]
}

pub(super) fn services(house: &House) -> ServicesReply {
    let (config, balancer) = (house.config.borrow(), house.balancer.borrow());
    let (table, table_most) = balancer.room();
    let services = config.services.iter().enumerate().map(|(s, service)| {
        let (total, counts) = balancer.counts(s);
        let new = counts.iter().map(|count| count.new).sum();
        let backends = service.backends.iter().zip(counts).map(|(backend, count)| BackendReport {
            name: backend.name.clone(),
            weight: backend.weight,
            new: count.new,
            state: match (backend.weight, count.is_down) {
                (0, _) => "drain",
                (_, true) => "down",
                (_, false) => "up",
            }
            .to_owned(),
            busy: count.live,
            cut: count.cut,
            load_milli: count.load_milli,
            ..BackendReport::default()
        });
        ServiceReport {
            path: service.name.clone(),
            addresses: service.addresses.iter().map(ToString::to_string).collect(),
            policy: name_of(&POLICIES, service.policy).to_owned(),
            new,
            refused: total.refused,
            full: total.full,
            evicted: total.evicted,
            stayed: total.stayed,
            table,
            table_most,
            backends: backends.collect(),
            ..ServiceReport::default()
        }
    });
    let reports = config.reports.map(|_| house.verdicts.counts());
    ServicesReply { version: 1, services: services.collect(), reports }
}

/// Takes a load average: `SERVICE/BACKEND`.
///
/// # Errors
/// There is no such backend.
pub(super) fn load(house: &House, path: &str, load_milli: u64) -> Result<(), String> {
    let config = house.config.borrow();
    let (service, backend) =
        path.split_once('/').ok_or_else(|| format!("\"{path}\" names no backend: write SERVICE/BACKEND"))?;
    let s = config.services.iter().position(|one| one.name == service);
    let s = s.ok_or_else(|| format!("there is no service \"{service}\"; levada show services lists them"))?;
    let b = config.services[s].backends.iter().position(|one| one.name == backend);
    let b = b.ok_or_else(|| format!("service \"{service}\" has no backend \"{backend}\""))?;
    house.balancer.borrow_mut().load(house.now(), s, b, load_milli);
    Ok(())
}
