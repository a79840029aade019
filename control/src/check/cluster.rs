//! The cluster: hosts and addresses that clash, an own entry that is not true, and what would have
//! no effect.

use super::{Findings, unique};
use crate::config::{Cluster, Config, Endpoint, Etcd, EtcdUrl, Member, RemoteService, Tenant};
use crate::names::{Locator, show_mac};
use crate::place::Place;
use agent::directory::MOST_ADDRESSES;
use agent::settings::{ControllerKind, Gatekeeper};
use datapath::program::Attachment;
use datapath::wire::Mac;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

pub(super) fn check(findings: &mut Findings, config: &Config) {
    let Some(cluster) = &config.cluster else { return };
    let place = Place::root().key("cluster");
    let members = place.key("member");
    unique(findings, cluster.members.iter().map(|m| m.name.as_str()), &members, "member", "the cluster");
    unique_addresses(findings, cluster, &members);
    unique_macs(findings, config, cluster, &members);
    check_parameters(findings, cluster, &place);
    if config.switches.iter().all(|switch| switch.uplink.is_none()) {
        findings.warning(
            place.clone(),
            "no switch has an uplink over which other hosts would be",
            "add [switch.uplink]",
        );
    }
    check_listen(findings, config, cluster, &place);
    if let Some(etcd) = &cluster.etcd {
        check_etcd(findings, cluster, etcd, &place.key("etcd"));
    }
    let own = cluster.members.iter().enumerate().find(|(_, member)| member.name == cluster.host);
    if let Some((i, own)) = own {
        check_own(findings, config, own, &members.item(i));
    }
    check_addresses(findings, config);
    for (s, t, e, endpoint) in nameless(config) {
        findings.warning(
            Place::root().key("switch").item(s).key("tenant").item(t).key("endpoint").item(e),
            format!("endpoint \"{}\" has no `mac`: senders on other hosts cannot be asked to spare it", endpoint.name),
            "give it its `mac`",
        );
    }
}

/// Senders are told what they may send to each address of an endpoint; of very many not.
fn check_addresses(findings: &mut Findings, config: &Config) {
    for (s, switch) in config.switches.iter().enumerate().filter(|(_, switch)| switch.uplink.is_some()) {
        for (t, tenant) in switch.tenants.iter().enumerate() {
            for (e, endpoint) in tenant.endpoints.iter().enumerate() {
                let addresses = endpoint.identity.macs.len();
                if addresses > MOST_ADDRESSES {
                    let place = Place::root().key("switch").item(s).key("tenant").item(t).key("endpoint").item(e);
                    findings.warning(
                        place.key("mac"),
                        format!(
                            "endpoint \"{}\" has {addresses} addresses: what other hosts send to more than the first \
                             {MOST_ADDRESSES} cannot be held back there",
                            endpoint.name
                        ),
                        "make it several endpoints, or list first the addresses that receive much",
                    );
                }
            }
        }
    }
}

/// Other daemons know one switch of this one, and need to know where it is.
fn check_listen(findings: &mut Findings, config: &Config, cluster: &Cluster, place: &Place) {
    let others = cluster.members.iter().any(|member| member.name != cluster.host && is_spoken_with(member));
    if cluster.listen.is_none() && others {
        findings.error(
            place.key("listen"),
            "the cluster has other members, which need this host's address: `listen` is missing",
            "add `listen = \"192.0.2.1:7370\"`, this host's address and a UDP port",
        );
    }
    if cluster.listen.is_some() && config.switches.iter().filter(|switch| switch.uplink.is_some()).count() > 1 {
        findings.error(
            place.key("listen"),
            "several switches have an uplink, but other daemons can exchange messages with only one",
            "run the others in daemons of their own; or, where all hosts are switches of this daemon, remove `listen`",
        );
    }
}

/// Whether there is a daemon at the other end, and not only an end of tunnels. An address that
/// could not be read was meant to be one.
fn is_spoken_with(member: &Member) -> bool {
    member.address.is_some() || member.vtep.is_none()
}

/// How the etcd is spoken with must be whole: what is missing would be found out when it is too
/// late.
fn check_etcd(findings: &mut Findings, cluster: &Cluster, etcd: &Etcd, place: &Place) {
    if cluster.listen.is_none_or(|listen| listen.ip().is_unspecified()) {
        findings.error(
            Place::root().key("cluster").key("listen"),
            "the etcd gives other hosts this one's address, but `listen` does not have it",
            "write listen = \"192.0.2.1:7370\" with this host's own address",
        );
    }
    let tls = etcd.endpoints.iter().any(|url| url.tls);
    if tls && etcd.authority.is_none() {
        findings.error(
            place.clone(),
            "https:// needs the certificate of the etcd's authority: `authority` is missing",
            "add authority = \"/etc/levada/etcd-authority.pem\", the certificate of the authority that has signed the etcd's",
        );
    }
    for (one, other, has, lacks) in [
        ("certificate", "key", &etcd.certificate, &etcd.key),
        ("key", "certificate", &etcd.key, &etcd.certificate),
        ("user", "password_file", &etcd.user, &etcd.password_file),
        ("password_file", "user", &etcd.password_file, &etcd.user),
    ] {
        if has.is_some() && lacks.is_none() {
            findings.error(place.key(one), format!("`{one}` is of no use without `{other}`"), format!("add `{other}`"));
        }
    }
    if !tls {
        for (key, value) in [("authority", &etcd.authority), ("certificate", &etcd.certificate)] {
            if value.is_some() {
                findings.warning(
                    place.key(key),
                    format!("`{key}` has no effect without TLS"),
                    "write https:// in `endpoints`",
                );
            }
        }
    }
    let away = |url: &&EtcdUrl| {
        !url.tls && url.host != "localhost" && !url.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    };
    if let Some(url) = etcd.endpoints.iter().find(away) {
        findings.warning(
            place.key("endpoints"),
            format!(
                "traffic to {url} is not encrypted: anyone on the path can read and change it, and so move endpoints"
            ),
            "write https://, and `authority`",
        );
    }
}

/// Two hosts with one address: one of them would never be reached.
fn unique_addresses(findings: &mut Findings, cluster: &Cluster, members: &Place) {
    let mut seen: BTreeMap<SocketAddr, &str> = BTreeMap::new();
    for (i, member) in cluster.members.iter().enumerate() {
        let Some(address) = member.address else { continue };
        if let Some(other) = seen.insert(address, &member.name) {
            findings.error(
                members.item(i).key("address"),
                format!("{address} is host \"{other}\"'s address"),
                "give each host its own address or port",
            );
        }
        if cluster.listen == Some(address) && member.name != cluster.host {
            findings.error(
                members.item(i).key("address"),
                format!("{address} is where this host listens, which is \"{}\"", cluster.host),
                "write the other host's address, or correct `listen`",
            );
        }
    }
}

/// A MAC address is one endpoint's in its tenant, on whatever host.
fn unique_macs<'a>(findings: &mut Findings, config: &'a Config, cluster: &'a Cluster, members: &Place) {
    let mut seen: BTreeMap<(&str, Mac), String> = BTreeMap::new();
    for (tenant, endpoint) in local(config) {
        for &mac in &endpoint.identity.macs {
            seen.insert((&tenant.name, mac), format!("this host's \"{}\"", endpoint.name));
        }
    }
    for (i, member) in cluster.members.iter().enumerate().filter(|(_, member)| member.name != cluster.host) {
        for (e, endpoint) in member.endpoints.iter().enumerate() {
            for &mac in &endpoint.macs {
                let who = format!("\"{}\" of host \"{}\"", endpoint.name, member.name);
                let Some(other) = seen.insert((&endpoint.tenant, mac), who) else { continue };
                findings.error(
                    members.item(i).key("endpoint").item(e).key("mac"),
                    format!("{} is {other} in the same tenant", show_mac(mac)),
                    "an address is in one place: remove it from where it is not",
                );
            }
        }
    }
    check_services(findings, config, cluster, members, &seen);
}

/// The addresses of a service on another host are no endpoint's, wherever. Several hosts may have
/// one service, in tunnels.
fn check_services(
    findings: &mut Findings,
    config: &Config,
    cluster: &Cluster,
    members: &Place,
    macs: &BTreeMap<(&str, Mac), String>,
) {
    let mut ips: BTreeMap<(&str, IpAddr), &str> = BTreeMap::new();
    for (tenant, endpoint) in local(config) {
        for ip in endpoint.own_addresses() {
            ips.insert((&tenant.name, ip), &endpoint.name);
        }
    }
    for (i, member) in cluster.members.iter().enumerate().filter(|(_, member)| member.name != cluster.host) {
        for (s, service) in member.services.iter().enumerate() {
            let place = members.item(i).key("service").item(s);
            for (a, &ip) in service.ips.iter().enumerate() {
                if let Some(other) = ips.get(&(service.tenant.as_str(), ip)) {
                    findings.error(
                        place.key("address").item(a),
                        format!("{ip} is this host's \"{other}\" in the same tenant"),
                        "give the service an address that nobody has, or correct it",
                    );
                }
            }
            let is_here = |tenant: &Tenant| !matches!(tenant.attachment, Attachment::Vxlan(_)) && has(tenant, service);
            if config.switches.iter().flat_map(|switch| &switch.tenants).any(is_here) {
                findings.warning(
                    place.clone(),
                    format!("service \"{}\" is on this host too: both answer requests for its address", service.name),
                    "let one host have it; with `vni` several may",
                );
            }
            if let Some(other) = macs.get(&(service.tenant.as_str(), service.mac())) {
                findings.error(
                    if service.mac.is_some() { place.key("mac") } else { place },
                    format!("the service's Ethernet address {} is {other}", show_mac(service.mac())),
                    "give one of the two another `mac`",
                );
            }
        }
    }
}

fn check_parameters(findings: &mut Findings, cluster: &Cluster, place: &Place) {
    if cluster.settings.controller == ControllerKind::Gatekeeper {
        return;
    }
    let (g, usual) = (&cluster.settings.gatekeeper, Gatekeeper::default());
    let given = [
        ("sample", g.sample_ns != usual.sample_ns),
        ("samples", g.samples != usual.samples),
        ("drop", g.drop_ppm != usual.drop_ppm),
        ("notify", g.notify_ns != usual.notify_ns),
        ("recovery", g.recovery_ns != usual.recovery_ns),
    ];
    for (key, _) in given.iter().filter(|(_, given)| *given) {
        findings.warning(
            place.key(*key),
            format!("`{key}` has no effect: it is a parameter of the other controller"),
            "add controller = \"gatekeeper\", or remove it",
        );
    }
}

/// What is said of this host must be so: the others may have the same list.
fn check_own(findings: &mut Findings, config: &Config, own: &Member, place: &Place) {
    let listen = config.cluster.as_ref().and_then(|cluster| cluster.listen);
    if let (Some(listen), Some(address)) = (listen, own.address)
        && (listen.port() != address.port() || !listen.ip().is_unspecified() && listen.ip() != address.ip())
    {
        findings.warning(
            place.key("address"),
            format!("other hosts with this list connect to this one at {address}, but it listens on {listen}"),
            "write the same address and port in both, unless a NAT in between translates them",
        );
    }
    let mut here: BTreeMap<(&str, Option<Mac>), Vec<&Endpoint>> = BTreeMap::new();
    for (tenant, endpoint) in local(config) {
        let macs = endpoint.identity.macs.iter().copied().map(Some);
        macs.chain([None]).for_each(|mac| here.entry((&tenant.name, mac)).or_default().push(endpoint));
    }
    for (i, remote) in own.endpoints.iter().enumerate() {
        let with_first = here.get(&(&remote.tenant, remote.macs.first().copied()));
        let is_it = |one: &&Endpoint| remote.macs.iter().all(|mac| one.identity.macs.contains(mac));
        if !with_first.is_some_and(|endpoints| endpoints.iter().any(is_it)) {
            findings.warning(
                place.key("endpoint").item(i),
                format!("this host has no endpoint of tenant \"{}\" with this address", remote.tenant),
                "add it, or remove it from the list, which other hosts may have as well",
            );
        }
    }
    let tenants = || config.switches.iter().flat_map(|switch| &switch.tenants);
    for (i, remote) in own.services.iter().enumerate() {
        if !tenants().any(|tenant| has(tenant, remote)) {
            findings.warning(
                place.key("service").item(i),
                format!("this host has no service of tenant \"{}\" with this address", remote.tenant),
                "write the service's first address first, and its `mac` if it has one; or remove it",
            );
        }
    }
}

/// Whether a tenant here has the service that is said of a host.
fn has(tenant: &Tenant, service: &RemoteService) -> bool {
    let mut own = tenant.services.iter().map(|own| own.mac(&tenant.name));
    tenant.name == service.tenant && own.any(|mac| mac == service.mac())
}

fn local(config: &Config) -> impl Iterator<Item = (&Tenant, &Endpoint)> {
    let tenants = config.switches.iter().flat_map(|switch| &switch.tenants);
    tenants.flat_map(|tenant| tenant.endpoints.iter().map(move |endpoint| (tenant, endpoint)))
}

/// Endpoints behind an uplink whose addresses are not declared, by their numbers. A trunk has many,
/// the host's are its own affair, and a director has none.
fn nameless(config: &Config) -> impl Iterator<Item = (usize, usize, usize, &Endpoint)> {
    let switches = config.switches.iter().enumerate().filter(|(_, switch)| switch.uplink.is_some());
    let tenants =
        switches.flat_map(|(s, switch)| switch.tenants.iter().enumerate().map(move |(t, tenant)| (s, t, tenant)));
    let attached = tenants.filter(|(.., tenant)| tenant.attachment != Attachment::Isolated);
    let endpoints =
        attached.flat_map(|(s, t, tenant)| tenant.endpoints.iter().enumerate().map(move |(e, one)| (s, t, e, one)));
    let is_special = |one: &Endpoint| matches!(one.device.locator, Some(Locator::Host(_) | Locator::Director));
    endpoints.filter(move |(.., one)| !one.trunk && one.identity.macs.is_empty() && !is_special(one))
}
