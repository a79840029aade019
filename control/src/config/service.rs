//! Services: addresses that several backends answer for.

use super::{Endpoint, Tenant};
use crate::names::ServiceAddress;
use datapath::service::choose::Policy;
use datapath::service::{Check, DEFAULT_PANIC_PPM, OnFailure, WhenDown};
use datapath::wire::Mac;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How often servers report their load where nothing is said, in nanoseconds: as often as Linux
/// works out the load average.
pub const DEFAULT_REPORT_PERIOD_NS: u64 = 5_000_000_000;
/// How long a client stays at its backend after its last connection, in nanoseconds.
pub const DEFAULT_AFFINITY_NS: u64 = 600_000_000_000;
/// How long a new connection waits for a backend that has a place, in nanoseconds: Linux sends a
/// SYN again after 1 s and 3 s.
pub const DEFAULT_HOLD_NS: u64 = 3_000_000_000;
/// Largest weight of a backend: eight bits of difference between backends.
pub const MAX_BACKEND_WEIGHT: u32 = 256;

/// A service of a tenant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// Unique in the tenant.
    pub name: String,
    /// Where it is reached.
    pub addresses: Vec<ServiceAddress>,
    /// Who gets new connections.
    pub policy: Policy,
    /// Its Ethernet address; `None` for one that follows from its first address and its tenant.
    pub mac: Option<Mac>,
    /// What a client gets when no backend is up.
    pub when_down: WhenDown,
    /// Whether echo requests are answered.
    pub ping: bool,
    /// How often servers report their load.
    pub report_period_ns: u64,
    /// For how long a backend that comes, or comes back, has a smaller weight; 0 for never.
    pub slow_start_ns: u64,
    /// How backends are asked whether they are well; `None` for not at all.
    pub check: Option<Check>,
    /// For how long a backend that is drained keeps its connections, where it says no other; 0 for
    /// as long as they last.
    pub drain_ns: u64,
    /// What becomes of the connections of a backend that checks find down.
    pub on_failure: OnFailure,
    /// Health is ignored while less of the weight than this is well, in parts per million; 0 for
    /// never.
    pub panic_ppm: u32,
    /// Whether a client stays at its backend, and for how long after its last connection.
    pub affinity: bool,
    /// See `affinity`.
    pub affinity_ns: u64,
    /// Connections that a backend may have where it says no other; `None` for any number.
    pub max_connections: Option<u32>,
    /// For how long a new connection waits while all backends have so many.
    pub hold_ns: u64,
    /// The endpoint of its tenant that pays where a client and its backend are both outside;
    /// `None`: a client outside gets no backend outside.
    pub director: Option<String>,
    /// Who answers for it.
    pub backends: Vec<Backend>,
}

impl Default for Service {
    fn default() -> Self {
        Service {
            name: String::new(),
            addresses: Vec::new(),
            policy: Policy::default(),
            mac: None,
            when_down: WhenDown::default(),
            ping: true,
            report_period_ns: DEFAULT_REPORT_PERIOD_NS,
            slow_start_ns: 0,
            check: None,
            drain_ns: 0,
            on_failure: OnFailure::default(),
            panic_ppm: DEFAULT_PANIC_PPM,
            affinity: false,
            affinity_ns: DEFAULT_AFFINITY_NS,
            max_connections: None,
            hold_ns: DEFAULT_HOLD_NS,
            director: None,
            backends: Vec::new(),
        }
    }
}

/// A backend of a service: an endpoint of its tenant, or a machine outside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backend {
    /// Unique in the service, and the endpoint's name where `endpoint` says no other.
    pub name: String,
    /// The endpoint that it is.
    pub endpoint: Option<String>,
    /// Its addresses, of each IP version one at most; where it is an endpoint, its own are the
    /// default.
    pub ips: Vec<IpAddr>,
    /// Its Ethernet address; the same.
    pub mac: Option<Mac>,
    /// The port it listens at; `None` for the service's.
    pub port: Option<u16>,
    /// Its part of new connections; 0 drains it.
    pub weight: u32,
    /// Whether it is drained whatever its weight is.
    pub drain: bool,
    /// For how long it keeps its connections then; `None` for what the service says.
    pub drain_ns: Option<u64>,
    /// Its processors, by which a reported load is judged.
    pub cores: u32,
    /// Connections that it may have; `None` for what the service says.
    pub max_connections: Option<u32>,
    /// File with the key under which its server reports its load; `None`: it may not.
    pub key: Option<String>,
}

impl Default for Backend {
    fn default() -> Self {
        let (name, endpoint, ips, mac, port) = (String::new(), None, Vec::new(), None, None);
        let (weight, cores, drain, drain_ns, max_connections, key) = (1, 1, false, None, None, None);
        Backend { name, endpoint, ips, mac, port, weight, drain, drain_ns, cores, max_connections, key }
    }
}

/// The places of a tenant's endpoints, by name: for all that its services say of them.
pub struct Names<'a>(BTreeMap<&'a str, usize>);

impl<'a> Names<'a> {
    /// Those of a tenant. Of a name that is there twice, by mistake, the first.
    #[must_use]
    pub fn of(tenant: &'a Tenant) -> Names<'a> {
        // From the last to the first, so that the first stays.
        let names = tenant.endpoints.iter().map(|endpoint| endpoint.name.as_str());
        Names(names.enumerate().map(|(place, name)| (name, place)).rev().collect())
    }

    /// The place of the endpoint with this name.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }
}

impl Backend {
    /// Its part of new connections as it is now.
    #[must_use]
    pub fn weight_now(&self) -> u32 {
        if self.drain { 0 } else { self.weight }
    }

    /// The place of the endpoint that it is, among its tenant's; `None` for a machine outside.
    #[must_use]
    pub fn endpoint_of(&self, names: &Names) -> Option<usize> {
        names.place(self.endpoint.as_ref().unwrap_or(&self.name))
    }

    /// Its IPv4 and IPv6 address: what it says, else the first that its endpoint may use or has.
    #[must_use]
    pub fn addresses(&self, endpoint: Option<&Endpoint>) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
        let own = endpoint.into_iter().flat_map(Endpoint::own_addresses);
        let all: Vec<IpAddr> = self.ips.iter().copied().chain(own).collect();
        let v4 = all.iter().find_map(|ip| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None });
        let v6 = all.iter().find_map(|ip| match ip {
            IpAddr::V6(ip) if !ip.is_unicast_link_local() => Some(*ip),
            _ => None,
        });
        (v4, v6)
    }

    /// Its Ethernet address, where it is known.
    #[must_use]
    pub fn mac(&self, endpoint: Option<&Endpoint>) -> Option<Mac> {
        self.mac.or_else(|| endpoint?.identity.macs.first().copied())
    }
}

impl Service {
    /// The place of its director among its tenant's endpoints; `None` where it has none.
    #[must_use]
    pub fn director_of(&self, tenant: &Tenant, names: &Names) -> Option<usize> {
        names.place(self.director.as_ref()?).filter(|&place| tenant.endpoints[place].is_director())
    }

    /// Its Ethernet address: the same on every host where nothing is said (locally administered, 40
    /// bits of FNV-1a).
    #[must_use]
    pub fn mac(&self, tenant: &str) -> Mac {
        self.mac.unwrap_or_else(|| service_mac(tenant, self.addresses.first().map(|address| &address.0.ip)))
    }
}

/// The Ethernet address that follows from a service's first address and its tenant.
pub(super) fn service_mac(tenant: &str, first: Option<&IpAddr>) -> Mac {
    let address = first.map_or_else(String::new, IpAddr::to_string);
    let text = [tenant, "\0", &address].concat();
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let [.., a, b, c, d, e] = hash.to_be_bytes();
    Mac([2, a, b, c, d, e])
}
