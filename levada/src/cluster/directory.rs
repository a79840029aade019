//! The directory: which hosts are in the cluster, where they are, and which endpoints they have.
//! Whoever needs it asks here, wherever it comes from.
//!
//! The configuration file may name hosts, and an etcd (`etcd`) may know more, or more of the same:
//! there a host writes itself what it has, so what the store says of a host counts more than what
//! the file says.

mod entry;
mod etcd;
mod forget;
mod gateway;
pub mod store_state;

pub use etcd::{Etcd, look};
pub use forget::forget;
pub use store_state::{Contest, Known};

use crate::rundir;
use control::config::{Cluster, Config, Endpoint, Member, Tenant};
use control::names::Locator;
use datapath::program::Attachment;
use datapath::wire::Mac;
use entry::{MOST_IPS, Told};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use store_state::Own;

/// How well a store does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Health {
    /// Whether it is there.
    pub is_connected: bool,
    /// Since when it has been there, or not.
    pub since: Instant,
    /// Who of it is spoken with.
    pub at: Option<String>,
    /// Up to where it is known.
    pub revision: i64,
    /// What last went wrong with it.
    pub error: Option<String>,
    /// What another daemon that says it is this host is called, and what to do.
    pub rival: Option<String>,
    /// Entries that are not used, and why; the first of them.
    pub refused: Vec<String>,
    /// How many they are.
    pub refusals: usize,
}

impl Health {
    /// Of a store that has not been reached yet.
    pub fn new() -> Health {
        Health {
            is_connected: false,
            since: Instant::now(),
            at: None,
            revision: 0,
            error: None,
            rival: None,
            refused: Vec::new(),
            refusals: 0,
        }
    }
}

/// A place that knows the cluster.
pub trait Store: Send + Sync {
    /// The other hosts, as far as is known. It goes on to say so while the store is away.
    fn members(&self) -> Arc<[Known]>;
    /// Whether an endpoint of this host's configuration is this host's by the store.
    fn holds(&self, tenant: &str, mac: Mac) -> bool;
    /// What of this host's configuration is another host's by the store. It goes on to say so, too.
    fn contests(&self) -> Arc<[Contest]>;
    /// How well it does.
    fn health(&self) -> Health;
    /// What this host has from now on.
    fn tell(&self, own: Own);
}

/// What this host has to say of itself.
pub fn own(config: &Config, cluster: &Cluster) -> Own {
    let mut own = Own {
        host: cluster.host.clone(),
        from: daemon(&config.daemon.name),
        address: cluster.listen,
        vtep: config.switches.iter().find_map(|switch| switch.uplink.as_ref()?.vtep),
        ..Own::default()
    };
    for (tenant, endpoint) in reachable(config) {
        for &mac in &endpoint.identity.macs {
            let told = Told { name: endpoint.name.clone(), ip: prefixes(endpoint), ..Told::default() };
            own.endpoints.insert((tenant.name.clone(), mac), told);
        }
    }
    for tenant in attached(config) {
        for service in &tenant.services {
            let is_shared = matches!(tenant.attachment, Attachment::Vxlan(_));
            let new = || Told { name: service.name.clone(), ip: Vec::new(), is_service: true, is_shared };
            // Services at one IP address have one Ethernet address.
            let told = own.endpoints.entry((tenant.name.clone(), service.mac(&tenant.name))).or_insert_with(new);
            for ip in service.addresses.iter().map(|address| address.0.ip.to_string()).filter(|_| told.is_service) {
                if told.ip.len() < MOST_IPS && !told.ip.contains(&ip) {
                    told.ip.push(ip);
                }
            }
        }
    }
    own
}

/// Takes the addresses of endpoints away that are another host's by a store: frames for these go
/// there, and what the endpoint sends here is refused, until this host has it. Endpoints keep those
/// of their addresses that are their own; a host's own interface is where it is.
pub fn set_aside(config: &mut Config, contests: &[Contest]) {
    let taken: BTreeSet<(&str, Mac)> = contests.iter().map(|one| (one.tenant.as_str(), one.mac)).collect();
    if taken.is_empty() {
        return;
    }
    for tenant in config.switches.iter_mut().flat_map(|switch| &mut switch.tenants) {
        let is_taken = |mac: &Mac| taken.contains(&(tenant.name.as_str(), *mac));
        for endpoint in tenant.endpoints.iter_mut().filter(|endpoint| !endpoint.trunk) {
            let is_interface = matches!(endpoint.device.locator, Some(Locator::Host(_)));
            if is_interface || !endpoint.identity.macs.iter().any(is_taken) {
                continue;
            }
            // Backends keep the addresses that they have by it.
            for service in &mut tenant.services {
                for backend in &mut service.backends {
                    if *backend.endpoint.as_ref().unwrap_or(&backend.name) == endpoint.name {
                        backend.mac = backend.mac(Some(endpoint));
                        backend.ips.extend(endpoint.own_addresses());
                    }
                }
            }
            endpoint.identity.macs.retain(|mac| !is_taken(mac));
            if endpoint.identity.macs.is_empty() {
                endpoint.identity.ipv4.clear();
                endpoint.identity.ipv6.clear();
                // Who has no address would learn some.
                endpoint.max_learned = Some(0);
            }
        }
    }
}

/// Which daemon it is, over restarts, and unlike any other: copies of one machine may have its name
/// and all of its files, but not its boot (random(4)), and of two daemons of one name in one
/// machine each has a run directory of its own. The machine's name is that of the daemon's start.
fn daemon(name: &str) -> String {
    static MACHINE: OnceLock<String> = OnceLock::new();
    let machine = MACHINE.get_or_init(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = boot.split('-').next().unwrap_or_default();
    format!("{name}@{machine} (boot {boot}, {})", rundir::base().join(name).display())
}

/// The tenants that are on other hosts too.
fn attached(config: &Config) -> impl Iterator<Item = &Tenant> {
    let switches = config.switches.iter().filter(|switch| switch.uplink.is_some());
    let tenants = switches.flat_map(|switch| &switch.tenants);
    tenants.filter(|tenant| tenant.attachment != Attachment::Isolated)
}

/// The endpoints that other hosts can reach.
fn reachable(config: &Config) -> impl Iterator<Item = (&Tenant, &Endpoint)> {
    let endpoints = attached(config).flat_map(|tenant| tenant.endpoints.iter().map(move |endpoint| (tenant, endpoint)));
    endpoints.filter(|(_, endpoint)| !endpoint.trunk)
}

fn prefixes(endpoint: &Endpoint) -> Vec<String> {
    let ipv4 = endpoint.identity.ipv4.iter().map(|(ip, length)| format!("{ip}/{length}"));
    let ipv6 = endpoint.identity.ipv6.iter().map(|(ip, length)| format!("{ip}/{length}"));
    ipv4.chain(ipv6).take(MOST_IPS).collect()
}

/// The hosts of the file and of a store together.
pub fn merged(file: &[Member], store: &[Known]) -> Vec<Member> {
    let known = |member: &&Member| {
        store.iter().any(|known| known.member.name == member.name || known.member.address == member.address)
    };
    let endpoints = store.iter().flat_map(|known| &known.member.endpoints);
    let endpoints = endpoints.flat_map(|one| one.macs.iter().map(|&mac| (one.tenant.as_str(), mac)));
    let services = store.iter().flat_map(|known| &known.member.services);
    let services = services.map(|service| (service.tenant.as_str(), service.mac()));
    let claimed: BTreeSet<(&str, Mac)> = endpoints.chain(services).collect();
    let mut all: Vec<Member> = file.iter().filter(|member| !known(member)).cloned().collect();
    for member in &mut all {
        member.services.retain(|service| !claimed.contains(&(service.tenant.as_str(), service.mac())));
    }
    for endpoint in all.iter_mut().flat_map(|member| &mut member.endpoints) {
        let tenant = endpoint.tenant.clone();
        endpoint.macs.retain(|&mac| !claimed.contains(&(tenant.as_str(), mac)));
    }
    all.extend(store.iter().map(|known| known.member.clone()));
    all
}

/// Where the hosts are that `host` may speak with.
pub fn others(members: &[Member], host: &str) -> impl Iterator<Item = (String, SocketAddr)> {
    let others = members.iter().filter(move |member| member.name != host);
    others.filter_map(|member| Some((member.name.clone(), member.address?)))
}
