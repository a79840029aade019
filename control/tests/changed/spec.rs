//! Configurations of few values, so that changes collide, and what is changed of them.

use control::config::Config;
use datapath::wire::Mac;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

const RATES: [&str; 4] = ["1 kbit/s", "1 Mbit/s", "100 Mbit/s", "1 Gbit/s"];
const TENANTS: [&str; 3] = ["red", "blue", "green"];
pub const PORTS: u8 = 6;

#[derive(Clone, Copy, Debug, Default)]
pub struct Tenant {
    pub attachment: u8,
    pub weight: u8,
    pub limited: bool,
    pub vcc: u8,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Knobs {
    pub limit: u8,
    pub guaranteed: bool,
    pub weight: u8,
    pub short_queue: bool,
    pub vcc: u8,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Endpoint {
    pub tenant: u8,
    pub port: u8,
    pub renamed: bool,
    pub mac: Option<u8>,
    pub has_ip: bool,
    pub knobs: Knobs,
}

/// A bit for each endpoint: whether it is a backend, and a heavy one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Service {
    pub tenant: u8,
    pub ip: u8,
    pub backends: u8,
    pub heavy: u8,
}

/// A configuration of one switch. What contradicts itself is resolved as it is written: the first
/// that wants a port or an address has it.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    pub uplink: Option<u8>,
    pub tenants: [Option<Tenant>; 3],
    pub endpoints: [Option<Endpoint>; 5],
    pub services: [Option<Service>; 2],
}

#[derive(Clone, Copy, Debug)]
pub enum Edit {
    Uplink(Option<u8>),
    Tenant(usize, Option<Tenant>),
    Attach(usize, u8),
    Endpoint(usize, Option<Endpoint>),
    Knobs(usize, Knobs),
    /// Two exchange their ports and addresses.
    Trade(usize, usize),
    Service(usize, Option<Service>),
}

impl Spec {
    pub fn edit(&mut self, edit: &Edit) {
        match *edit {
            Edit::Uplink(uplink) => self.uplink = uplink,
            Edit::Tenant(at, tenant) => self.tenants[at] = tenant,
            Edit::Attach(at, attachment) => {
                self.tenants[at].iter_mut().for_each(|tenant| tenant.attachment = attachment);
            }
            Edit::Endpoint(at, endpoint) => self.endpoints[at] = endpoint,
            Edit::Knobs(at, knobs) => self.endpoints[at].iter_mut().for_each(|endpoint| endpoint.knobs = knobs),
            Edit::Trade(one, other) => {
                if let (Some(a), Some(b)) = (self.endpoints[one], self.endpoints[other]) {
                    self.endpoints[one] = Some(Endpoint { port: b.port, mac: b.mac, ..a });
                    self.endpoints[other] = Some(Endpoint { port: a.port, mac: a.mac, ..b });
                }
            }
            Edit::Service(at, service) => self.services[at] = service,
        }
    }

    /// The value of `vlan` of each tenant.
    fn vlans(&self) -> [Option<&'static str>; 3] {
        let mut taken = BTreeSet::new();
        self.tenants.map(|tenant| {
            self.uplink?;
            let vlan = match tenant?.attachment {
                1 => "10",
                2 => "20",
                3 => return Some("\"untagged\""),
                _ => return None,
            };
            taken.insert(vlan).then_some(vlan)
        })
    }

    /// The port and the MAC address of each endpoint.
    fn places(&self) -> [Option<(u8, Option<u8>)>; 5] {
        let (mut ports, mut macs) = (BTreeSet::new(), BTreeSet::new());
        self.endpoints.map(|endpoint| {
            let endpoint = endpoint?;
            self.tenants[usize::from(endpoint.tenant)]?;
            let port = (0..PORTS).map(|n| (endpoint.port + n) % PORTS).find(|&port| ports.insert(port))?;
            Some((port, endpoint.mac.filter(|&mac| macs.insert(mac))))
        })
    }

    /// The backends of each service, by their numbers here.
    fn backends(&self) -> [Vec<usize>; 2] {
        let (places, mut ips) = (self.places(), BTreeSet::new());
        self.services.map(|service| {
            let Some(service) = service else { return Vec::new() };
            let serves = |at: &usize| {
                let has_address = matches!(places[*at], Some((_, Some(_))));
                let fits = |endpoint: Endpoint| endpoint.tenant == service.tenant && endpoint.has_ip;
                service.backends >> at & 1 == 1 && has_address && self.endpoints[*at].is_some_and(fits)
            };
            let backends: Vec<usize> = (0..self.endpoints.len()).filter(serves).collect();
            if backends.is_empty() || !ips.insert(service.ip) { Vec::new() } else { backends }
        })
    }

    fn text(&self) -> String {
        let (vlans, places, backends) = (self.vlans(), self.places(), self.backends());
        let mut text = String::from("[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n");
        if let Some(rate) = self.uplink {
            let rate = RATES[usize::from(rate)];
            let _ = write!(text, "[switch.uplink]\nport = \"tap://up\"\nrate = \"{rate}\"\n");
        }
        for (t, tenant) in self.tenants.iter().enumerate() {
            let Some(tenant) = tenant else { continue };
            let _ = write!(text, "[[switch.tenant]]\nname = \"{}\"\nweight = {}\n", TENANTS[t], tenant.weight);
            if let Some(vlan) = vlans[t] {
                let _ = writeln!(text, "vlan = {vlan}");
            }
            text += if tenant.limited { "limit = \"20 Mbit/s\"\n" } else { "" };
            text += ["", "vcc = \"count\"\n", "vcc = \"dctcp\"\n"][usize::from(tenant.vcc)];
            for (e, endpoint) in self.endpoints.iter().enumerate() {
                let (Some(endpoint), Some(place)) = (endpoint, places[e]) else { continue };
                if usize::from(endpoint.tenant) == t {
                    let may_promise = vlans[t].is_some() && self.uplink.is_some_and(|rate| rate >= 2);
                    endpoint.write(&mut text, e, place, may_promise);
                    if endpoint.knobs.vcc == 2 || endpoint.knobs.vcc == 0 && tenant.vcc == 2 {
                        // The one by default remembers how busy its queue was.
                        text += "aqm = { kind = \"droptail\" }\n";
                    }
                }
            }
            for (s, service) in self.services.iter().enumerate() {
                let Some(service) = service.filter(|service| usize::from(service.tenant) == t) else { continue };
                if !backends[s].is_empty() {
                    let (ip, key) = (100 + service.ip, "[[switch.tenant.service]]");
                    let _ = write!(text, "{key}\nname = \"w{s}\"\naddress = \"10.0.0.{ip}:80\"\npolicy = \"maglev\"\n");
                }
                for &at in &backends[s] {
                    let name = self.endpoints[at].map(|endpoint| endpoint.name(at)).unwrap_or_default();
                    let (weight, key) = (1 + 2 * (service.heavy >> at & 1), "[[switch.tenant.service.backend]]");
                    let _ = write!(text, "{key}\nname = \"{name}\"\nweight = {weight}\n");
                }
            }
        }
        text
    }

    pub fn config(&self) -> Result<Config, TestCaseError> {
        let text = self.text();
        let checked = control::load(&text);
        let shown = || control::problem::render(&checked.problems, "t.toml", &text);
        prop_assert!(checked.plan.is_some(), "{}", shown());
        Ok(checked.config)
    }
}

impl Endpoint {
    fn name(&self, at: usize) -> String {
        format!("{}{at}", if self.renamed { "f" } else { "e" })
    }

    fn write(&self, text: &mut String, at: usize, (port, mac): (u8, Option<u8>), may_promise: bool) {
        let Knobs { limit, guaranteed, weight, short_queue, vcc } = self.knobs;
        let (key, name) = ("[[switch.tenant.endpoint]]", self.name(at));
        let _ = write!(text, "{key}\nname = \"{name}\"\nport = \"tap://p{port}\"\nweight = {weight}\n");
        if let Some(mac) = mac {
            let _ = writeln!(text, "mac = \"{}\"", declared(mac));
            if self.has_ip {
                let _ = writeln!(text, "ip = \"{}\"", v4(0, mac + 1));
            }
        }
        *text += ["", "limit = \"1 Mbit/s\"\n", "limit = \"50 Mbit/s\"\n"][usize::from(limit)];
        *text += if guaranteed && may_promise && limit != 1 { "guarantee = \"2 Mbit/s\"\n" } else { "" };
        *text += if short_queue { "queue = \"128 KiB\"\n" } else { "" };
        *text += ["", "vcc = \"off\"\n", "vcc = \"dctcp\"\n"][usize::from(vcc)];
    }
}

/// What endpoints may declare.
pub fn declared(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n + 1])
}

/// What nobody declares.
pub fn undeclared(day: u8, n: u8) -> Mac {
    Mac([2, 0, 0, day, 1, n])
}

pub fn v4(day: u8, n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, day, n)
}

pub fn knobs() -> impl Strategy<Value = Knobs> {
    let all = (0u8..3, any::<bool>(), 1u8..4, any::<bool>(), 0u8..3);
    all.prop_map(|(limit, guaranteed, weight, short_queue, vcc)| Knobs { limit, guaranteed, weight, short_queue, vcc })
}

pub fn tenant() -> impl Strategy<Value = Tenant> {
    let all = (0u8..4, 1u8..4, any::<bool>(), 0u8..3);
    all.prop_map(|(attachment, weight, limited, vcc)| Tenant { attachment, weight, limited, vcc })
}

pub fn endpoint() -> impl Strategy<Value = Endpoint> {
    let mac = prop::option::weighted(0.6, 0u8..5);
    (0u8..3, 0..PORTS, any::<bool>(), mac, any::<bool>(), knobs())
        .prop_map(|(tenant, port, renamed, mac, has_ip, knobs)| Endpoint { tenant, port, renamed, mac, has_ip, knobs })
}

pub fn service() -> impl Strategy<Value = Service> {
    (0u8..3, 0u8..2, 0u8..32, 0u8..32).prop_map(|(tenant, ip, backends, heavy)| Service { tenant, ip, backends, heavy })
}

pub fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        1 => prop::option::weighted(0.8, 0u8..4).prop_map(Edit::Uplink),
        3 => (0usize..3, prop::option::weighted(0.8, tenant())).prop_map(|(at, one)| Edit::Tenant(at, one)),
        2 => (0usize..3, 0u8..4).prop_map(|(at, attachment)| Edit::Attach(at, attachment)),
        6 => (0usize..5, prop::option::weighted(0.8, endpoint())).prop_map(|(at, one)| Edit::Endpoint(at, one)),
        2 => (0usize..5, knobs()).prop_map(|(at, knobs)| Edit::Knobs(at, knobs)),
        1 => (0usize..5, 0usize..5).prop_map(|(one, other)| Edit::Trade(one, other)),
        2 => (0usize..2, prop::option::weighted(0.8, service())).prop_map(|(at, one)| Edit::Service(at, one)),
    ]
}
