//! Compiling the tunnels of a switch: where its tenants are besides. Other hosts are the members of
//! the cluster that have an end of tunnels, and the other switches of this daemon that have one;
//! tenants are called the same on all of them.

use crate::config::{Config, Remote, RemoteService, Switch};
use crate::names::Locator;
use crate::plan::{LeftOut, Underlay};
use datapath::overlay::{MOST_PEERS, MOST_REMOTES, Overlay, Peer, Vtep};
use datapath::program::{Attachment, Elsewhere, TenantId};
use datapath::wire::Mac;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Services of a tenant elsewhere whose addresses nobody here may claim; more would be those of a
/// store that somebody has filled.
const MOST_SERVICES_ELSEWHERE: usize = 4096;

/// The tunnels of `switch`, whose tenants are numbered `ids`.
pub(super) fn tunnels(config: &Config, switch: &Switch, ids: &[u32]) -> (Overlay, Option<Underlay>) {
    let Some((uplink, vtep)) = switch.uplink.as_ref().and_then(|uplink| Some((uplink, uplink.vtep?))) else {
        return Default::default();
    };
    let tenants = switch.tenants.iter().zip(ids).filter(|(tenant, _)| is_tunnelled(tenant.attachment));
    let tenants: BTreeMap<&str, TenantId> = tenants.map(|(tenant, &id)| (tenant.name.as_str(), TenantId(id))).collect();
    let is_linked = match &uplink.bond {
        Some(bond) => bond.is_linked(),
        None => matches!(uplink.device.locator, Some(Locator::Link(..))),
    };
    let mut overlay = Overlay::default();
    let (mut hosts, mut left_out) = (BTreeMap::new(), Vec::new());
    let mut others = others(config, switch);
    // A store may know more hosts than there is room for: those without a tenant of this switch are
    // missed least.
    others.sort_by_key(|(.., has)| !has.iter().any(|(tenant, _)| tenants.contains_key(tenant)));
    for (address, name, has) in others {
        if address.is_ipv4() != vtep.is_ipv4() {
            if has.iter().any(|(tenant, _)| tenants.contains_key(tenant)) {
                left_out.push(LeftOut::Family(name));
            }
            continue;
        }
        if overlay.peers.len() == MOST_PEERS && !overlay.peers.contains_key(&address) {
            left_out.push(LeftOut::Host(name));
            continue;
        }
        let peer = overlay.peers.entry(address).or_insert_with(Peer::default);
        peer.next_hop = is_linked.then(|| mac_of(address));
        let mut beyond = 0;
        for (tenant, macs) in has {
            let Some(&id) = tenants.get(tenant) else { continue };
            if !peer.tenants.contains(&id) {
                peer.tenants.push(id);
            }
            for &mac in &*macs {
                if overlay.remotes.len() < MOST_REMOTES || overlay.remotes.contains_key(&(id, mac)) {
                    // Several hosts may have one service: the first of them counts.
                    overlay.remotes.entry((id, mac)).or_insert(address);
                } else {
                    beyond += 1;
                }
            }
        }
        if beyond > 0 {
            left_out.push(LeftOut::Addresses(name.clone(), beyond));
        }
        hosts.insert(address, name);
    }
    // What is here is here, whatever others say.
    for (tenant, &id) in switch.tenants.iter().zip(ids) {
        let services = tenant.services.iter().map(|service| service.mac(&tenant.name));
        for mac in tenant.endpoints.iter().flat_map(|endpoint| endpoint.identity.macs.iter().copied()).chain(services) {
            overlay.remotes.remove(&(TenantId(id), mac));
        }
    }
    overlay.local = is_linked.then(|| Vtep { address: vtep, mac: mac_of(vtep) });
    let host = switch.host_at(vtep).map(|endpoint| &endpoint.device).filter(|_| !is_linked);
    let interface = host.unwrap_or(&uplink.device);
    let interface = match &interface.locator {
        Some(Locator::Packet(name) | Locator::Tap(name) | Locator::Veth(name)) => {
            Some((name.clone(), interface.netns.clone()))
        }
        _ => None,
    };
    let members = uplink.bond.iter().flat_map(|bond| &bond.members).map(|member| &member.device);
    let devices = members.chain([&uplink.device]).filter(|_| host.is_some() && vtep.is_ipv4());
    let taken = devices.filter_map(|device| match &device.locator {
        Some(Locator::Packet(name)) => Some((name.clone(), device.netns.clone())),
        _ => None,
    });
    let taken = taken.collect();
    (overlay, Some(Underlay { vtep, interface, is_endpoint: host.is_some(), taken, hosts, left_out }))
}

/// What endpoints elsewhere have declared of a switch's tenants: on other hosts, as far as the
/// cluster's directory says, and on other switches of this daemon. Of MAC addresses those that are
/// reached without tunnels, which come first where there are more than fit.
pub(super) fn elsewhere(config: &Config, switch: &Switch, ids: &[u32]) -> BTreeSet<(TenantId, Elsewhere)> {
    let mut all = macs_elsewhere(config, switch, ids);
    let attached = switch.tenants.iter().zip(ids).filter(|(tenant, _)| tenant.attachment != Attachment::Isolated);
    let tenants: BTreeMap<&str, (TenantId, Attachment)> =
        attached.map(|(tenant, &id)| (tenant.name.as_str(), (TenantId(id), tenant.attachment))).collect();
    let others = config.switches.iter().filter(|other| other.name != switch.name).flat_map(|other| &other.tenants);
    // Of two switches only tunnels say that they have one network.
    let beside = others.filter(|tenant| is_tunnelled(tenant.attachment)).flat_map(|tenant| {
        let id = tenants.get(tenant.name.as_str()).filter(|(_, attachment)| is_tunnelled(*attachment));
        let ips = tenant.endpoints.iter().flat_map(|endpoint| endpoint.identity.hosts());
        ips.filter_map(move |ip| Some((id?.0, Elsewhere::Ip(ip))))
    });
    let members = config.cluster.iter().flat_map(|cluster| {
        let others = cluster.members.iter().filter(|member| member.name != cluster.host);
        others.flat_map(|member| &member.endpoints)
    });
    let there = members.flat_map(|endpoint| {
        let id = tenants.get(endpoint.tenant.as_str());
        endpoint.ips.iter().filter_map(move |&ip| Some((id?.0, Elsewhere::Ip(ip))))
    });
    for ip in beside.chain(there) {
        if all.len() == MOST_REMOTES {
            break;
        }
        all.insert(ip);
    }
    all
}

fn macs_elsewhere(config: &Config, switch: &Switch, ids: &[u32]) -> BTreeSet<(TenantId, Elsewhere)> {
    let Some(cluster) = &config.cluster else { return BTreeSet::new() };
    let is_direct = |attachment| matches!(attachment, Attachment::Vlan(_) | Attachment::Untagged);
    let tenants = switch.tenants.iter().zip(ids).filter(|(tenant, _)| is_direct(tenant.attachment));
    let tenants: BTreeMap<&str, TenantId> = tenants.map(|(tenant, &id)| (tenant.name.as_str(), TenantId(id))).collect();
    let others = cluster.members.iter().filter(|member| member.name != cluster.host);
    let endpoints = others.clone().flat_map(|member| &member.endpoints);
    let services = others.flat_map(|member| &member.services);
    let of = |endpoint: &'_ Remote| {
        let id = tenants.get(endpoint.tenant.as_str()).copied();
        let macs = endpoint.macs.iter().filter_map(move |&mac| Some((id?, Elsewhere::Mac(mac))));
        macs.collect::<Vec<_>>()
    };
    let of_service = |service: &'_ RemoteService| {
        let id = tenants.get(service.tenant.as_str()).copied();
        id.map(|id| (id, Elsewhere::Mac(service.mac())))
    };
    let mut all: BTreeSet<_> =
        endpoints.flat_map(of).chain(services.filter_map(of_service)).take(MOST_REMOTES).collect();
    for (tenant, &id) in switch.tenants.iter().zip(ids).filter(|(tenant, _)| is_direct(tenant.attachment)) {
        for service in &tenant.services {
            all.remove(&(TenantId(id), Elsewhere::Mac(service.mac(&tenant.name))));
        }
    }
    all
}

/// Where services are that a switch does not have itself.
pub(super) type ServiceAt = (Mac, Vec<IpAddr>);

/// Services of a switch's tenants, by these, on other hosts and on other switches of this daemon:
/// their Ethernet addresses, and their IP addresses.
pub(super) fn services_elsewhere<'a>(config: &'a Config, switch: &Switch) -> BTreeMap<&'a str, Vec<ServiceAt>> {
    let mut all: BTreeMap<&str, Vec<ServiceAt>> = BTreeMap::new();
    let mut add = |tenant: &'a str, service: ServiceAt| {
        let services = all.entry(tenant).or_default();
        if services.len() < MOST_SERVICES_ELSEWHERE {
            services.push(service);
        }
    };
    for other in config.switches.iter().filter(|other| other.name != switch.name) {
        for tenant in other.tenants.iter().filter(|tenant| is_tunnelled(tenant.attachment)) {
            for service in &tenant.services {
                let ips = service.addresses.iter().map(|address| address.0.ip).collect();
                add(&tenant.name, (service.mac(&tenant.name), ips));
            }
        }
    }
    let Some(cluster) = &config.cluster else { return all };
    for member in cluster.members.iter().filter(|member| member.name != cluster.host) {
        for service in &member.services {
            add(&service.tenant, (service.mac(), service.ips.clone()));
        }
    }
    all
}

fn is_tunnelled(attachment: Attachment) -> bool {
    matches!(attachment, Attachment::Vxlan(_))
}

/// Tenants of another host by name, each with addresses.
type Has<'a> = Vec<(&'a str, Cow<'a, [Mac]>)>;

/// The other ends: their addresses, what their hosts are called, and what those have.
fn others<'a>(config: &'a Config, switch: &Switch) -> Vec<(IpAddr, String, Has<'a>)> {
    let mut all = Vec::new();
    for other in config.switches.iter().filter(|other| other.name != switch.name) {
        let Some(vtep) = other.uplink.as_ref().and_then(|uplink| uplink.vtep) else { continue };
        let mut has: Has<'a> = Vec::new();
        for tenant in other.tenants.iter().filter(|tenant| is_tunnelled(tenant.attachment)) {
            let services = tenant.services.iter().map(|service| service.mac(&tenant.name)).collect();
            has.push((&tenant.name, Cow::Owned(services)));
            let macs = tenant.endpoints.iter().map(|endpoint| Cow::from(&endpoint.identity.macs));
            has.extend(macs.map(|macs| (tenant.name.as_str(), macs)));
        }
        all.push((vtep, other.name.clone(), has));
    }
    let Some(cluster) = &config.cluster else { return all };
    for member in cluster.members.iter().filter(|member| member.name != cluster.host) {
        let Some(vtep) = member.vtep else { continue };
        let endpoints = member.endpoints.iter().map(|one| (one.tenant.as_str(), Cow::from(&one.macs)));
        let services = member.services.iter().map(|one| (one.tenant.as_str(), Cow::Owned(vec![one.mac()])));
        all.push((vtep, member.name.clone(), endpoints.chain(services).collect()));
    }
    all
}

/// The address of the end of tunnels on a link of this daemon, where there is no interface that has
/// one: of the locally administered ones. Of the longer IPv6 addresses it is a hash (FNV-1a), by
/// which two of a few thousand are the same one time in a hundred thousand.
fn mac_of(vtep: IpAddr) -> Mac {
    match vtep {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            Mac([0x02, 0x56, a, b, c, d])
        }
        IpAddr::V6(v6) => {
            let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            let [a, b, c, d, e, ..] = v6.octets().iter().fold(0xcbf2_9ce4_8422_2325, step).to_be_bytes();
            Mac([0x06, a, b, c, d, e])
        }
    }
}
