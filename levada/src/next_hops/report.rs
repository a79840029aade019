//! The tunnels, told to people: `levada show tunnels`, `GET /v1/tunnels`.

use super::{NextHops, is_exclusive};
use crate::api::tunnels::{Carried, HostReport, NetworkReport, TunnelsReport};
use crate::cluster::directory::store_state::MOST_SAID;
use control::names::show_mac;
use control::plan::{LeftOut, Plan, SwitchPlan, Underlay};
use datapath::encap::vxlan;
use datapath::program::{Attachment, EndpointId, Program};
use datapath::wire::ETHERNET_HEADER;
use ports::neighbours::Hop;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What runs, in the words of `plan`.
#[must_use]
pub fn tunnels(plan: &Plan, programs: &BTreeMap<u32, Program>, hops: &BTreeMap<u32, NextHops>) -> Vec<TunnelsReport> {
    let one = |(id, switch): (u32, &SwitchPlan)| {
        Some(report(switch, switch.underlay.as_ref()?, programs.get(&id)?, hops.get(&id)))
    };
    plan.switches.iter().filter_map(one).collect()
}

fn report(switch: &SwitchPlan, underlay: &Underlay, program: &Program, hops: Option<&NextHops>) -> TunnelsReport {
    let overlay = &program.overlay;
    let features = program.uplink_features();
    let longest = features.map_or(0, |features| features.max_frame);
    let room = longest.saturating_sub(vxlan::outer(&underlay.vtep) as u32);
    let networks = program.tenants.iter().filter_map(|(id, tenant)| match tenant.attachment {
        Attachment::Vxlan(vni) => Some((id, vni)),
        _ => None,
    });
    let networks: BTreeMap<u32, u32> = networks.collect();
    let name = |id: u32| switch.tenants.get(id).cloned().unwrap_or_default();
    let too_long = program.endpoints.iter().filter(|(_, endpoint)| {
        let features = program.ports.get(endpoint.port.0);
        networks.contains_key(&endpoint.tenant.0) && features.is_some_and(|features| features.max_frame > room)
    });
    let shared =
        "the interface is shared with the host, which receives the tunnels' packets; see the log for the cause";
    let error = match (&underlay.interface, hops) {
        (None, _) => None,
        (Some(_), None) => Some("the route is not known yet; it is asked for each second".to_owned()),
        (Some(_), Some(hops)) => {
            hops.error().map(str::to_owned).or_else(|| (!is_exclusive(switch, underlay)).then(|| shared.to_owned()))
        }
    };
    let hosts = overlay.peers.iter().map(|(&address, peer)| HostReport {
        host: underlay.hosts.get(&address).cloned().unwrap_or_default(),
        vtep: address.to_string(),
        next_hop: peer.next_hop.map(show_mac),
        error: if peer.next_hop.is_some() { None } else { Some(why(underlay, hops, address)) },
        path_mtu: None,
        tenants: peer.tenants.iter().map(|tenant| name(tenant.0)).collect(),
    });
    TunnelsReport {
        switch: switch.name.clone(),
        vtep: underlay.vtep.to_string(),
        over: switch.uplink_ports().unwrap_or_default(),
        mac: overlay.local.map(|local| show_mac(local.mac)),
        error,
        mtu: u64::from(room.saturating_sub(ETHERNET_HEADER as u32)),
        tcp: match features.map(|features| features.offload) {
            Some(offload) if offload.tunnel && underlay.vtep.is_ipv4() => Carried::Whole,
            Some(offload) if offload.uso && offload.csum => Carried::Trains,
            _ => Carried::Segments,
        },
        too_long: too_long.map(|(id, _)| switch.endpoint_path(EndpointId(id))).collect(),
        hosts: hosts.collect(),
        left_out: underlay.left_out.iter().take(MOST_SAID).map(LeftOut::to_string).collect(),
        left_outs: underlay.left_out.len() as u64,
        networks: networks
            .iter()
            .map(|(&id, &vni)| NetworkReport {
                tenant: name(id),
                vni,
                addresses: overlay.remotes.keys().filter(|(tenant, _)| tenant.0 == id).count() as u64,
            })
            .collect(),
    }
}

/// Adds what routers have said of the ways to other hosts, by switch.
pub fn narrow(tunnels: &mut [TunnelsReport], paths: &BTreeMap<&str, &[(IpAddr, u16)]>) {
    for report in tunnels {
        let Some(paths) = paths.get(report.switch.as_str()) else { continue };
        for &(vtep, mtu) in *paths {
            let room = usize::from(mtu).saturating_sub(vxlan::outer(&vtep)) as u64;
            let host = report.hosts.iter_mut().find(|host| host.vtep.parse() == Ok(vtep));
            host.into_iter().filter(|_| room < report.mtu).for_each(|host| host.path_mtu = Some(room));
        }
    }
}

/// Why the next hop to an address is not known.
fn why(underlay: &Underlay, hops: Option<&NextHops>, address: IpAddr) -> String {
    let Some((interface, _)) = &underlay.interface else {
        return "no switch on this daemon's link has this address; correct the member's `vtep`".to_owned();
    };
    match hops.and_then(|hops| hops.next.get(&address)) {
        None | Some(Hop::At(_)) => "the route is not known yet; it is asked for each second".to_owned(),
        Some(Hop::Asked(next @ IpAddr::V4(_))) => {
            format!("{next} does not answer ARP on {interface}; check the host and the network between")
        }
        Some(Hop::Asked(next @ IpAddr::V6(_))) => {
            format!("{next} does not answer neighbour discovery on {interface}; check the host and the network between")
        }
        Some(Hop::Elsewhere(other)) => {
            let key = if underlay.is_endpoint { "give another endpoint the address" } else { "the uplink's `port`" };
            format!("the route to it uses {other}, not {interface}; correct the route, or {key}")
        }
        Some(Hop::Own) => "this host has this address itself; correct the member's `vtep`".to_owned(),
        Some(Hop::NoRoute) => "there is no route to it; add one (ip route add)".to_owned(),
    }
}
