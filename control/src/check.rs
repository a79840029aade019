//! Checking a configuration for what no single value shows: names and addresses that clash, ports
//! used twice, links with a loose end, keys that contradict each other, promises that do not fit.

mod bond;
mod cluster;
mod interfaces;
mod memory;
mod mtu;
pub(crate) mod openflow;
mod ports;
mod queues;
mod services;
mod shares;
mod tunnels;
mod vcc;

use crate::config::{Config, Endpoint, Switch, Tenant};
use crate::names::show_mac;
use crate::place::Place;
use crate::problem::{MOST_SHOWN, Problem, nearest};
use crate::read::values::mask;
use datapath::program::{Attachment, IngressMode};
use datapath::wire::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// What was found so far.
#[derive(Default)]
pub(crate) struct Findings(Vec<Problem>);

impl Findings {
    fn error(&mut self, place: Place, message: impl Into<String>, remedy: impl Into<String>) {
        self.0.push(Problem::error(place, message, remedy));
    }

    /// The candidate that `wrong` may have been meant to be. `None` where people are not shown what
    /// is found next: so many mistakes are not compared with so many names.
    fn nearest<'a>(&self, wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        if self.0.len() < MOST_SHOWN { nearest(wrong, candidates) } else { None }
    }

    /// Of what was found last: what it clashes with.
    fn first_is(&mut self, place: Place) {
        self.0.iter_mut().last().into_iter().for_each(|problem| problem.first = Some((place.clone(), None)));
    }

    /// Of what was found last: the values that it follows from, of which one may be a default as it
    /// could not be read.
    fn assumes(&mut self, places: impl IntoIterator<Item = Place>) {
        if let Some(problem) = self.0.last_mut() {
            problem.assumed.extend(places);
        }
    }

    fn warning(&mut self, place: Place, message: impl Into<String>, remedy: impl Into<String>) {
        self.0.push(Problem::warning(place, message, remedy));
    }
}

/// Everything that is wrong with `config`. An empty name or a missing locator has been reported by
/// whoever read it.
pub(crate) fn check(config: &Config) -> Vec<Problem> {
    let mut findings = Findings::default();
    if config.switches.is_empty() {
        findings.error(Place::root(), "there is no switch", "add [[switch]] with name = \"s1\"");
    }
    let root = Place::root();
    unique(&mut findings, config.switches.iter().map(|s| s.name.as_str()), &root.key("switch"), "switch", "the daemon");
    unique(&mut findings, config.links.iter().map(|l| l.name.as_str()), &root.key("link"), "link", "the daemon");
    for (i, switch) in config.switches.iter().enumerate() {
        check_switch(&mut findings, switch, &root.key("switch").item(i));
    }
    bond::check(&mut findings, config);
    ports::check(&mut findings, config);
    interfaces::check(&mut findings, config);
    shares::check(&mut findings, config);
    memory::check(&mut findings, config);
    mtu::check(&mut findings, config);
    queues::check(&mut findings, config);
    services::check(&mut findings, config);
    cluster::check(&mut findings, config);
    tunnels::check(&mut findings, config);
    findings.0
}

fn check_switch(findings: &mut Findings, switch: &Switch, place: &Place) {
    let tenants = place.key("tenant");
    unique(findings, switch.tenants.iter().map(|t| t.name.as_str()), &tenants, "tenant", "the switch");
    unique_networks(findings, switch, &tenants);
    unique_macs(findings, switch, &tenants);
    unique_ips(findings, switch, &tenants);
    if switch.uplink.is_none() {
        let remedy = "add [switch.uplink], or remove it";
        if switch.ingress != IngressMode::Queue {
            findings.warning(place.key("ingress"), "`ingress` has no effect on a switch without uplink", remedy);
            findings.assumes([place.key("uplink")]);
        }
        if switch.headroom_ppm.is_some() {
            findings.warning(place.key("headroom"), "`headroom` has no effect on a switch without uplink", remedy);
            findings.assumes([place.key("uplink")]);
        }
    }
    let untagged = switch.tenants.iter().filter(|tenant| tenant.attachment == Attachment::Untagged);
    let knows_router = knows_router(untagged);
    for (i, tenant) in switch.tenants.iter().enumerate() {
        check_tenant(findings, switch, tenant, knows_router, &tenants.item(i));
    }
}

/// Whether it is said where the router of some tenants' network is: outside, or at an endpoint.
fn knows_router<'a>(tenants: impl IntoIterator<Item = &'a Tenant>) -> bool {
    let is_router = |endpoint: &Endpoint| endpoint.identity.allow.router && !endpoint.identity.any_ip();
    tenants.into_iter().any(|tenant| !tenant.outside.ips.is_empty() || tenant.endpoints.iter().any(is_router))
}

fn check_tenant(findings: &mut Findings, switch: &Switch, tenant: &Tenant, knows_router: bool, place: &Place) {
    let endpoints = place.key("endpoint");
    unique(findings, tenant.endpoints.iter().map(|e| e.name.as_str()), &endpoints, "endpoint", "the tenant");
    if switch.uplink.is_none() && tenant.attachment != Attachment::Isolated {
        let (key, message) = match tenant.attachment {
            Attachment::Vxlan(_) => ("vni", "the switch has no uplink for tunnels to other hosts"),
            _ => ("vlan", "the switch has no uplink on which a VLAN could be"),
        };
        findings.error(place.key(key), message, format!("remove `{key}`, or add [switch.uplink]"));
        findings.assumes(way(place));
    }
    for (i, endpoint) in tenant.endpoints.iter().enumerate() {
        check_endpoint(findings, (switch, knows_router), tenant, endpoint, &endpoints.item(i));
    }
}

fn check_endpoint(
    findings: &mut Findings,
    (switch, knows_router): (&Switch, bool),
    tenant: &Tenant,
    endpoint: &Endpoint,
    place: &Place,
) {
    let identity = &endpoint.identity;
    if endpoint.trunk {
        let pointless = [
            ("mac", !identity.macs.is_empty()),
            ("ip", !identity.ipv4.is_empty() || !identity.ipv6.is_empty()),
            // Beside other tenants it may serve them only where it is allowed to.
            ("allow", !switch.shares(tenant) && (identity.allow.dhcp_server || identity.allow.router)),
        ];
        for (key, _) in pointless.iter().filter(|(_, given)| *given) {
            findings.error(
                place.key(*key),
                format!("a trunk is not guarded: `{key}` contradicts trunk = true"),
                format!("remove `{key}`, or trunk"),
            );
            if *key == "allow" {
                findings.assumes(way(place));
            }
        }
    }
    vcc::check(findings, tenant, endpoint, place);
    if endpoint.is_director() {
        check_director(findings, tenant, endpoint, place);
    } else if switch.shares(tenant) {
        check_declared(findings, endpoint, knows_router, place);
    }
    let guarded = !identity.ipv4.is_empty() || !identity.ipv6.is_empty();
    for (i, &(ip, length)) in endpoint.device.addresses.iter().enumerate().filter(|_| guarded) {
        if !may_use(endpoint, ip) {
            findings.error(
                place.key("address").item(i),
                format!("the device gets {ip}/{length}, but the endpoint may not use {ip}"),
                format!("add \"{ip}\" to `ip`"),
            );
        }
    }
}

/// Nobody is at a director's port who could have an address or send by himself.
fn check_director(findings: &mut Findings, tenant: &Tenant, endpoint: &Endpoint, place: &Place) {
    let identity = &endpoint.identity;
    let pointless = [
        ("mac", !identity.macs.is_empty()),
        ("ip", !identity.any_ip()),
        ("allow", identity.allow != datapath::guard::Allow::default()),
        ("trunk", endpoint.trunk),
        ("flood_per_second", endpoint.flood_per_second.is_some()),
        ("flood_rate", endpoint.flood_rate.is_some()),
        ("max_learned", endpoint.max_learned.is_some()),
    ];
    for (key, _) in pointless.iter().chain(&vcc::given(endpoint)).filter(|(_, given)| *given) {
        let message = format!("nobody is at a director's port: `{key}` has no effect");
        findings.error(place.key(*key), message, format!("remove `{key}`, or use a tap:// port"));
    }
    if tenant.services.iter().all(|service| service.director.as_ref() != Some(&endpoint.name)) {
        let message = format!("no service of the tenant has endpoint \"{}\" as its director", endpoint.name);
        let remedy = format!("add director = \"{}\" to [[switch.tenant.service]]", endpoint.name);
        findings.warning(place.clone(), message, remedy);
    }
}

/// In a network that tenants share, only declared addresses count unless the operator says
/// otherwise.
fn check_declared(findings: &mut Findings, endpoint: &Endpoint, knows_router: bool, place: &Place) {
    let name = &endpoint.name;
    // Who comes first has what nobody declares, and a router may be late.
    let (also, list) =
        if knows_router { ("", "") } else { (", also the router's", ", and list the router's addresses in `outside`") };
    // A trunk has no addresses of its own that it could declare.
    let declare = if endpoint.trunk { "give the tenant a `vlan` of its own" } else { "give it its `mac`" };
    if endpoint.is_undeclared() {
        findings.warning(
            place.clone(),
            format!("endpoint \"{name}\" has no `mac` in a network that tenants share: all that it sends is dropped"),
            format!("{declare}, or write allow = [\"learned-addresses\"] where other tenants trust it"),
        );
    } else if endpoint.identity.allow.learned_addresses {
        findings.warning(
            place.key("allow"),
            format!("endpoint \"{name}\" may use any address that no other endpoint declares or uses{also}, and receives frames to unknown addresses; tenants share its network"),
            format!("{declare}{list}"),
        );
    } else if !endpoint.trunk && endpoint.has_free_ip() {
        findings.warning(
            place.clone(),
            format!(
                "endpoint \"{name}\" has no `ip` in a network that tenants share: it may use any IP address \
                 that nobody else there declares or uses{also}"
            ),
            format!("give it its `ip`{list}"),
        );
    }
}

fn may_use(endpoint: &Endpoint, ip: IpAddr) -> bool {
    let identity = &endpoint.identity;
    match ip {
        IpAddr::V4(_) => identity.ipv4.iter().any(|&(p, n)| mask(ip, n) == IpAddr::V4(p)),
        IpAddr::V6(v6) => {
            v6.is_unicast_link_local() || identity.ipv6.iter().any(|&(p, n)| mask(ip, n) == IpAddr::V6(p))
        }
    }
}

/// What says whether the tenant that `place` is in reaches the uplink, and how.
fn way(place: &Place) -> [Place; 3] {
    // The root has switches, and a switch has tenants.
    let (switch, tenant) = (place.within(2), place.within(4));
    [tenant.key("vlan"), tenant.key("vni"), switch.key("uplink")]
}

/// Reports every name that an earlier item of the same list has.
fn unique<'a>(findings: &mut Findings, names: impl Iterator<Item = &'a str>, list: &Place, what: &str, whole: &str) {
    let mut seen = BTreeMap::new();
    for (i, name) in names.enumerate().filter(|(_, name)| !name.is_empty()) {
        if let Some(first) = seen.insert(name, i) {
            seen.insert(name, first);
            findings.error(
                list.item(i).key("name"),
                format!("{whole} has another {what} called \"{name}\""),
                format!("give each {what} of {whole} its own name"),
            );
            findings.first_is(list.item(first).key("name"));
        }
    }
}

/// Two tenants with one VLAN id or one VXLAN network identifier would share a network.
fn unique_networks(findings: &mut Findings, switch: &Switch, tenants: &Place) {
    let mut seen: BTreeMap<(&str, u32), (&str, usize)> = BTreeMap::new();
    for (i, tenant) in switch.tenants.iter().enumerate() {
        let (key, id, what, remedy) = match tenant.attachment {
            Attachment::Vlan(vlan) => (
                "vlan",
                vlan.into(),
                "VLAN",
                "give each tenant its own VLAN id; tenants that are to share a network may both be \"untagged\"",
            ),
            Attachment::Vxlan(vni) => ("vni", vni, "VXLAN network", "give each tenant its own identifier"),
            _ => continue,
        };
        match seen.get(&(key, id)) {
            Some((other, first)) => {
                let message = format!("{what} {id} is tenant \"{other}\"'s on this uplink");
                findings.error(tenants.item(i).key(key), message, remedy);
                findings.first_is(tenants.item(*first).key(key));
            }
            None => drop(seen.insert((key, id), (&tenant.name, i))),
        }
    }
}

/// A MAC address may be on one endpoint of a network: a tenant's own, or the untagged one that
/// several share.
fn unique_macs(findings: &mut Findings, switch: &Switch, tenants: &Place) {
    const UNTAGGED: usize = usize::MAX;
    let mut seen: BTreeMap<(usize, Mac), (usize, usize, usize)> = BTreeMap::new();
    let place = |(t, e, m): (usize, usize, usize)| tenants.item(t).key("endpoint").item(e).key("mac").item(m);
    for (t, tenant) in switch.tenants.iter().enumerate() {
        let network = if tenant.attachment == Attachment::Untagged { UNTAGGED } else { t };
        for (e, endpoint) in tenant.endpoints.iter().enumerate() {
            for (m, &mac) in endpoint.identity.macs.iter().enumerate() {
                let &mut first = seen.entry((network, mac)).or_insert((t, e, m));
                if first == (t, e, m) {
                    continue;
                }
                let other = &switch.tenants[first.0].endpoints[first.1].name;
                findings.error(
                    place((t, e, m)),
                    format!("{} is endpoint \"{other}\"'s in the same network", show_mac(mac)),
                    "give each endpoint its own address",
                );
                findings.first_is(place(first));
            }
        }
    }
}

/// An IP address of an endpoint.
#[derive(Clone, Copy)]
struct Owned {
    tenant: usize,
    endpoint: usize,
    /// Whether it is that endpoint's own, and not one that it may take over.
    is_own: bool,
    /// Its number in `address`; `None` where it is listed in `ip`.
    given: Option<usize>,
}

impl Owned {
    fn place(self, tenants: &Place) -> Place {
        let endpoint = tenants.item(self.tenant).key("endpoint").item(self.endpoint);
        self.given.map_or_else(|| endpoint.key("ip"), |number| endpoint.key("address").item(number))
    }
}

/// An IP address is one endpoint's of a network. Several may list it on purpose, to take it over
/// from each other, and the switch lets each of them use it: what is listed behind an endpoint's
/// own address is such a one, unless the others are another tenant's.
fn unique_ips(findings: &mut Findings, switch: &Switch, tenants: &Place) {
    const UNTAGGED: usize = usize::MAX;
    let mut seen: BTreeMap<(usize, IpAddr), Owned> = BTreeMap::new();
    for (t, tenant) in switch.tenants.iter().enumerate() {
        let network = if tenant.attachment == Attachment::Untagged { UNTAGGED } else { t };
        for (e, endpoint) in tenant.endpoints.iter().enumerate() {
            let mut told = BTreeSet::new();
            for (ip, is_own, given) in addresses(endpoint) {
                let this = Owned { tenant: t, endpoint: e, is_own, given };
                let first = seen.entry((network, ip)).or_insert(this);
                if (first.tenant, first.endpoint) == (t, e) {
                    first.is_own |= is_own;
                    continue;
                }
                let is_foreign = first.tenant != t;
                let is_meant = !is_foreign && (!is_own || !first.is_own);
                if is_meant || !told.insert(ip) {
                    continue;
                }
                let of = &switch.tenants[first.tenant];
                let mut message = format!("{ip} is endpoint \"{}\"'s", of.endpoints[first.endpoint].name);
                let remedy = if is_foreign {
                    message +=
                        &format!(" of tenant \"{}\" in the same network: each may take the other's traffic", of.name);
                    "give each tenant its own addresses"
                } else {
                    message += " in the same network";
                    "give each endpoint its own address; one that several take over from each other stands behind it in `ip`"
                };
                findings.warning(this.place(tenants), message, remedy);
                findings.first_is(first.place(tenants));
            }
        }
    }
}

/// The single addresses that an endpoint lists, and those that its device gets; whether each is its
/// own, as the first of its version that is listed is; and its number among those of the device.
fn addresses(endpoint: &Endpoint) -> impl Iterator<Item = (IpAddr, bool, Option<usize>)> {
    let v4 = endpoint.identity.ipv4.iter().map(|&(ip, length)| (IpAddr::V4(ip), length == 32));
    let v6 = endpoint.identity.ipv6.iter().map(|&(ip, length)| (IpAddr::V6(ip), length == 128));
    let listed = v4.enumerate().chain(v6.enumerate()).filter(|(_, (_, is_single))| *is_single);
    let given = endpoint.device.addresses.iter().enumerate();
    listed.map(|(n, (ip, _))| (ip, n == 0, None)).chain(given.map(|(n, &(ip, _))| (ip, true, Some(n))))
}
