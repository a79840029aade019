//! What an agent knows of the world: where in the cluster every endpoint is, and what its own switch promises.
//!
//! The cluster is one table for all agents of a process. Tenants are known by name, endpoints by tenant and address: numbers are each host's
//! own.

use datapath::program::{EndpointId, Program, Share, Slots, TenantId};
use datapath::units::Rate;
use datapath::wire::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most addresses of one receiving endpoint that limits are told for; nearly all have one.
const MOST_ADDRESSES: usize = 4;

/// The hosts of a cluster, and which endpoint is on which.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cluster {
    hosts: BTreeSet<Arc<str>>,
    places: BTreeMap<Arc<str>, BTreeMap<Mac, Arc<str>>>,
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

    /// Puts the endpoint with this address of a tenant on a host, which is added where it is new. The last place counts.
    pub fn place(&mut self, host: &str, tenant: &str, address: Mac) {
        let host = self.add_host(host);
        if let Some(places) = self.places.get_mut(tenant) {
            places.insert(address, host);
        } else {
            self.places.insert(tenant.into(), BTreeMap::from([(address, host)]));
        }
    }

    /// Where an endpoint is; `None` where no host of the cluster has it.
    #[must_use]
    pub fn host_of(&self, tenant: &str, address: Mac) -> Option<&Arc<str>> {
        self.places.get(tenant)?.get(&address)
    }

    /// A host of the cluster by its name, as the cluster keeps it.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<&Arc<str>> {
        self.hosts.get(name)
    }
}

/// The access link of the agent's own switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// What arrives at most.
    pub ingress: Rate,
    /// What is sent at most.
    pub egress: Rate,
    /// Part of `ingress` that is held back under contention, in millionths.
    pub headroom_ppm: u32,
}

impl Link {
    /// What is divided under contention.
    #[must_use]
    pub fn contended(&self) -> Rate {
        crate::admission::capacity(self.ingress, self.headroom_ppm, datapath::units::Direction::Ingress)
    }
}

/// A tenant of the agent's own switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tenant {
    pub name: Arc<str>,
    pub ingress: Share,
}

/// An endpoint of the agent's own switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Endpoint {
    pub tenant: TenantId,
    /// What it is called in messages: by the first few of its addresses. None where its addresses are learned.
    pub addresses: Vec<Mac>,
    pub ingress: Share,
}

/// What an agent knows.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    cluster: Arc<Cluster>,
    pub(super) link: Option<Link>,
    pub(super) tenants: Slots<Tenant>,
    pub(super) endpoints: Slots<Endpoint>,
    /// The addresses of the own endpoints.
    own: BTreeMap<(TenantId, Mac), EndpointId>,
    numbers: BTreeMap<Arc<str>, TenantId>,
}

impl Directory {
    /// The directory of the switch that runs `program`, whose tenants are called `names`, in `cluster`.
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, program: &Program, names: &Slots<String>) -> Directory {
        let mut directory = Directory { cluster, ..Directory::default() };
        directory.link = program.uplink.as_ref().map(|uplink| Link {
            ingress: uplink.rate.ingress,
            egress: uplink.rate.egress,
            headroom_ppm: uplink.headroom_ppm,
        });
        for (id, tenant) in program.tenants.iter() {
            let name: Arc<str> = names.get(id).map_or("", String::as_str).into();
            directory.numbers.insert(name.clone(), TenantId(id));
            directory.tenants.set(id, Some(Tenant { name, ingress: tenant.share.ingress }));
        }
        for (id, endpoint) in program.endpoints.iter() {
            let macs = endpoint.identity.macs.iter();
            directory.own.extend(macs.map(|&mac| ((endpoint.tenant, mac), EndpointId(id))));
            let addresses = endpoint.identity.macs.iter().take(MOST_ADDRESSES).copied().collect();
            let endpoint = Endpoint { tenant: endpoint.tenant, addresses, ingress: endpoint.share.ingress };
            directory.endpoints.set(id, Some(endpoint));
        }
        directory
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The endpoint of the own switch with this address of a tenant.
    #[must_use]
    pub fn own(&self, tenant: &str, address: Mac) -> Option<EndpointId> {
        self.own.get(&(*self.numbers.get(tenant)?, address)).copied()
    }

    /// The name of an own endpoint's tenant.
    #[must_use]
    pub fn tenant_of(&self, endpoint: EndpointId) -> Option<&Arc<str>> {
        let endpoint = self.endpoints.get(endpoint.0)?;
        Some(&self.tenants.get(endpoint.tenant.0)?.name)
    }
}
