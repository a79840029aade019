//! What an agent knows of the world: where in the cluster every endpoint is, and what its own
//! switch promises.
//!
//! The cluster is one table for all agents of a process. Tenants are known by name, endpoints by
//! tenant and address: numbers are each host's own.

use datapath::program::{Attachment, EndpointId, Program, Share, Slots, TenantId, Uplink};
use datapath::segment::WIRE_OVERHEAD;
use datapath::units::{Both, Rate};
use datapath::wire::Mac;
use datapath::wire::vlan::TAG;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most addresses of one receiving endpoint that limits are told for; nearly all have one.
pub const MOST_ADDRESSES: usize = 4;

/// Most services of one endpoint whose addresses limits are told for.
const MOST_SERVICES: usize = 16;

/// With so many tenants that have one address, on whatever networks, it is nobody's in the untagged
/// one: looking through them takes time.
const MOST_CLAIMS: usize = 16;

/// Bytes of the longest frame where the MTU is 1500: some are always taken to be as long.
const FRAME: u32 = 1514;

/// The hosts of a cluster, and which endpoint is on which.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cluster {
    hosts: BTreeSet<Arc<str>>,
    places: BTreeMap<Arc<str>, BTreeMap<Mac, Arc<str>>>,
    /// The first tenants that have an address, and where.
    claims: BTreeMap<Mac, Vec<Claim>>,
}

/// An endpoint's tenant and host.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Claim {
    tenant: Arc<str>,
    host: Arc<str>,
}

impl Cluster {
    /// Adds a host; its name, as the cluster keeps it.
    pub fn add_host(&mut self, host: &str) -> Arc<str> {
        if let Some(known) = self.hosts.get(host) {
            return known.clone();
        }
        let name: Arc<str> = host.into();
        self.hosts.insert(name.clone());
        name
    }

    /// Puts the endpoint with this address of a tenant on a host, which is added where it is new.
    /// The last place counts.
    pub fn place(&mut self, host: &str, tenant: &str, address: Mac) {
        let host = self.add_host(host);
        let tenant = self.places.get_key_value(tenant).map_or_else(|| tenant.into(), |(known, _)| known.clone());
        let claims = self.claims.entry(address).or_default();
        match claims.iter().position(|claim| claim.tenant == tenant) {
            Some(at) => claims[at].host = host.clone(),
            None if claims.len() < MOST_CLAIMS => claims.push(Claim { tenant: tenant.clone(), host: host.clone() }),
            None => {}
        }
        self.places.entry(tenant).or_default().insert(address, host);
    }

    /// Where an endpoint is; `None` where no host of the cluster has it.
    #[must_use]
    pub fn host_of(&self, tenant: &str, address: Mac) -> Option<&Arc<str>> {
        self.places.get(tenant)?.get(&address)
    }

    /// The only host that has an endpoint with this address of one of `tenants`; `None` where there
    /// are several, or too many to tell.
    fn only_host_of(&self, address: Mac, tenants: impl Fn(&str) -> bool) -> Option<&Arc<str>> {
        let claims = self.claims.get(&address).filter(|claims| claims.len() < MOST_CLAIMS)?;
        let mut hosts = claims.iter().filter(|claim| tenants(&claim.tenant)).map(|claim| &claim.host);
        let host = hosts.next()?;
        hosts.all(|other| other == host).then_some(host)
    }

    /// A host of the cluster by its name, as the cluster keeps it.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<&Arc<str>> {
        self.hosts.get(name)
    }
}

/// The access link of the agent's own switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessLink {
    /// What arrives at most.
    pub ingress: Rate,
    /// What is sent at most.
    pub egress: Rate,
    /// Part of `ingress` that is held back under contention, in millionths.
    pub headroom_ppm: u32,
    /// Wire bytes of the longest frame.
    pub longest: u32,
}

impl AccessLink {
    /// What is divided under contention.
    #[must_use]
    pub fn contended(&self) -> Rate {
        self.ingress.less_ppm(self.headroom_ppm)
    }
}

/// Wire bytes of the longest frame that an uplink brings, with a tag.
fn longest(program: &Program, uplink: &Uplink) -> u32 {
    let ports = uplink.members.iter().filter_map(|member| program.ports.get(member.port.0));
    let frame = ports.map(|port| port.max_frame).max().unwrap_or(0);
    frame.max(FRAME).saturating_add(TAG as u32 + WIRE_OVERHEAD)
}

/// A tenant of the agent's own switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tenant {
    pub name: Arc<str>,
    /// What it has, its guarantee as far as the link carries what was promised.
    pub ingress: Share,
    /// The guarantee that it was promised.
    promised: Rate,
    /// It is in the untagged network, with other tenants.
    shares_network: bool,
}

/// An endpoint of the agent's own switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Endpoint {
    pub tenant: TenantId,
    /// What it is called in messages: by the first few of its addresses. None where its addresses
    /// are learned.
    pub addresses: Vec<Mac>,
    /// Addresses of services whose backend it is: senders on other hosts reach it by these too.
    pub services: Vec<Mac>,
    /// As of a tenant.
    pub ingress: Share,
    promised: Rate,
}

impl Endpoint {
    /// What it is called first: of a director, which has none of its own, a service's.
    pub fn address(&self) -> Option<&Mac> {
        self.addresses.first().or_else(|| self.services.first())
    }
}

/// What an agent knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Directory {
    cluster: Arc<Cluster>,
    pub(super) link: Option<AccessLink>,
    /// What is guaranteed together of what the uplink brings.
    promised: Rate,
    pub(super) tenants: Slots<Tenant>,
    pub(super) endpoints: Slots<Endpoint>,
    /// The addresses of the own endpoints, and by services' the directors that send under them.
    own: BTreeMap<(TenantId, Mac), EndpointId>,
    /// Those of them that are in the untagged network.
    untagged: BTreeMap<Mac, EndpointId>,
    numbers: BTreeMap<Arc<str>, TenantId>,
    /// The own endpoints behind a service's address.
    backends: BTreeMap<(TenantId, Mac), Vec<EndpointId>>,
}

impl Directory {
    /// The directory of the switch that runs `program`, whose tenants are called `names`, in
    /// `cluster`.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, program: &Program, names: &Slots<String>) -> Directory {
        let mut directory = Directory { cluster, ..Directory::default() };
        directory.link = program.uplink.as_ref().map(|uplink| AccessLink {
            ingress: uplink.rate().ingress,
            egress: uplink.rate().egress,
            headroom_ppm: uplink.headroom_ppm,
            longest: longest(program, uplink),
        });
        for (id, tenant) in program.tenants.iter() {
            let name: Arc<str> = names.get(id).map_or("", String::as_str).into();
            directory.numbers.insert(name.clone(), TenantId(id));
            let shares_network = tenant.attachment == Attachment::Untagged;
            let (ingress, promised) = (tenant.share.ingress, tenant.share.ingress.guarantee);
            if tenant.attachment != Attachment::Isolated {
                directory.promised.0 = directory.promised.0.saturating_add(promised.0);
            }
            directory.tenants.set(id, Some(Tenant { name, ingress, promised, shares_network }));
        }
        for (id, endpoint) in program.endpoints.iter() {
            let macs = endpoint.identity.macs.iter();
            directory.own.extend(macs.clone().map(|&mac| ((endpoint.tenant, mac), EndpointId(id))));
            if directory.tenants.get(endpoint.tenant.0).is_some_and(|tenant| tenant.shares_network) {
                directory.untagged.extend(macs.map(|&mac| (mac, EndpointId(id))));
            }
            let addresses = endpoint.identity.macs.iter().take(MOST_ADDRESSES).copied().collect();
            let (tenant, ingress) = (endpoint.tenant, endpoint.share.ingress);
            let (services, promised) = (Vec::new(), ingress.guarantee);
            directory.endpoints.set(id, Some(Endpoint { tenant, addresses, services, ingress, promised }));
        }
        for service in program.services.values() {
            // What its director sends leaves under the service's address. One that is declared is
            // its owner's.
            if let Some(director) = service.director {
                directory.own.entry((service.tenant, service.mac)).or_insert(director);
                if directory.tenants.get(service.tenant.0).is_some_and(|tenant| tenant.shares_network) {
                    directory.untagged.entry(service.mac).or_insert(director);
                }
            }
            let behind = service.backends.iter().filter_map(|backend| backend.endpoint);
            // What goes out again by a director passes it as what a backend gets and sends.
            for id in behind.chain(service.director) {
                let Some(endpoint) = directory.endpoints.get_mut(id.0) else { continue };
                let backends = directory.backends.entry((service.tenant, service.mac)).or_default();
                if !backends.contains(&id) {
                    backends.push(id);
                    if endpoint.services.len() < MOST_SERVICES {
                        endpoint.services.push(service.mac);
                    }
                }
            }
        }
        directory.shrink();
        directory
    }

    /// The uplink carries so much now, no more than it did when the program was written. False
    /// where that is known, or it carries nothing: then nobody can be told anything.
    pub(super) fn set_link(&mut self, carries: Both<Rate>) -> bool {
        let Some(link) = self.link.as_mut().filter(|_| carries.ingress.0 > 0 && carries.egress.0 > 0) else {
            return false;
        };
        if (link.ingress, link.egress) == (carries.ingress, carries.egress) {
            return false;
        }
        (link.ingress, link.egress) = (carries.ingress, carries.egress);
        self.shrink();
        true
    }

    /// Guarantees that the link cannot carry together shrink alike, as in the fluid model.
    fn shrink(&mut self) {
        let carried = self.link.map_or(self.promised, |link| link.contended()).min(self.promised);
        let (part, whole) = (carried.0, self.promised.0);
        let kept = |promised: Rate| if part == whole { promised } else { promised.scaled(part, whole) };
        for tenant in self.tenants.values_mut() {
            tenant.ingress.guarantee = kept(tenant.promised);
        }
        for endpoint in self.endpoints.values_mut() {
            endpoint.ingress.guarantee = kept(endpoint.promised);
        }
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The host of who has this address in the network of an own tenant; `None` where no host of
    /// the cluster has it. If the tenant itself has none such, in the untagged network that may be
    /// another tenant's endpoint, if only one host can be meant.
    #[must_use]
    pub fn host_in_network_of(&self, tenant: TenantId, address: Mac) -> Option<&Arc<str>> {
        let tenant = self.tenants.get(tenant.0)?;
        let host = self.cluster.host_of(&tenant.name, address);
        if host.is_some() || !tenant.shares_network {
            return host;
        }
        self.cluster.only_host_of(address, |name| self.may_share_network(name))
    }

    /// A tenant is in the untagged network, or not on this host, so that nothing says it is not.
    fn may_share_network(&self, tenant: &str) -> bool {
        let known = self.numbers.get(tenant).and_then(|number| self.tenants.get(number.0));
        known.is_none_or(|tenant| tenant.shares_network)
    }

    /// The endpoint of the own switch with this address in the network of a tenant: of that tenant,
    /// or in the untagged network of any.
    #[must_use]
    pub fn own(&self, tenant: &str, address: Mac) -> Option<EndpointId> {
        let own = self.numbers.get(tenant).and_then(|&number| self.own.get(&(number, address)));
        let untagged = || self.untagged.get(&address).filter(|_| self.may_share_network(tenant));
        own.or_else(untagged).copied()
    }

    /// The own endpoints behind the address of a tenant's service.
    #[must_use]
    pub fn backends(&self, tenant: TenantId, service: Mac) -> &[EndpointId] {
        self.backends.get(&(tenant, service)).map_or(&[], Vec::as_slice)
    }

    /// The host of who has this address in the network of an own endpoint, as
    /// [`Directory::host_in_network_of`].
    #[must_use]
    pub fn host_seen_by(&self, endpoint: EndpointId, address: Mac) -> Option<&Arc<str>> {
        self.host_in_network_of(self.endpoints.get(endpoint.0)?.tenant, address)
    }
}
