//! Shortcuts: which endpoints' frames the kernel may take straight to a neighbour, past the switch
//! (`ports::packet::Shortcuts`).
//!
//! Between neighbours nothing is promised but limits. Where no limit of the sender, of the receiver
//! or of their tenant can hold a frame back, the switch hands it over as soon as it has judged it,
//! and nothing is lost by judging it in the kernel. So an endpoint may send that way where it and
//! its tenant have no egress limit, and receive where they have no ingress limit. In both cases it
//! is on an interface that exists and is not shared out with the host by the switch, its addresses
//! are declared, it is no trunk, and it has no virtual congestion control. The uplink has
//! no part in it, so neither have guarantees, weights, headroom, and the ingress mode.

use crate::plan::{PortKind, SwitchPlan};
use datapath::network::{Network, network_of};
use datapath::program::{Elsewhere, Endpoint, TenantId};
use datapath::units::{Both, Direction};
use datapath::vcc::Mode;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Most Ethernet addresses of an endpoint with shortcuts, and most prefixes of either IP version:
/// they are compared one after the other.
pub const MOST_ADDRESSES: usize = 16;

/// Why frames do not take shortcuts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Hindrance {
    /// The configuration says so.
    Unwanted,
    /// The interface's host is an endpoint of the switch, too.
    Exclusive,
    /// It is a bridge port.
    Trunk,
    /// Its addresses are learned.
    Learned,
    /// It has more addresses than are compared.
    Addresses,
    /// It may use any IP address that is nobody else's, and others have some.
    Undeclared,
    /// Its network has services, whose frames the switch translates.
    Service,
    /// It has virtual congestion control, which the switch does.
    Vcc,
    /// It has a limit.
    Limit,
    /// Its tenant has one.
    TenantLimit,
    /// No neighbour of its tenant in the same namespace is at the other end.
    Alone,
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hindrance::Unwanted => "`shortcut` is false",
            Hindrance::Exclusive => "the host uses the interface through the switch",
            Hindrance::Trunk => "it is a trunk",
            Hindrance::Learned => "its addresses are learned: declare `mac`",
            Hindrance::Addresses => "it has more than 16 addresses",
            Hindrance::Undeclared => "it may use any IP address but those of others: declare `ip`",
            Hindrance::Service => "its network has services",
            Hindrance::Vcc => "it has `vcc`",
            Hindrance::Limit => "it has a limit",
            Hindrance::TenantLimit => "its tenant has a limit",
            Hindrance::Alone => "no neighbour has one",
        })
    }
}

/// Whether what an endpoint sends may take shortcuts (egress), and what is for it (ingress).
pub type Shortcut = Both<Result<(), Hindrance>>;

/// Where an endpoint's interface is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Lies {
    /// In a namespace; `None` for the daemon's.
    In(Option<String>),
    /// With the switch's ends of veth pairs.
    WithPairs,
}

/// Of all endpoints of a switch that are on interfaces, by number.
#[must_use]
pub fn shortcuts(plan: &SwitchPlan) -> BTreeMap<u32, Shortcut> {
    let mut all = BTreeMap::new();
    let owned = Owned::new(plan);
    for (id, endpoint) in plan.program.endpoints.iter() {
        let (netns, is_exclusive) = match plan.ports.get(endpoint.port.0).map(|port| &port.kind) {
            Some(PortKind::Packet(packet)) => (Lies::In(packet.netns.clone()), packet.is_exclusive),
            // The switch's ends are together.
            Some(PortKind::Veth(_)) => (Lies::WithPairs, false),
            _ => continue,
        };
        let may = alike(plan, endpoint, is_exclusive).and_then(|()| owned.serves(plan, endpoint));
        let one = |direction| may.and_then(|()| unlimited(plan, endpoint, direction));
        let egress = one(Direction::Egress).and_then(|()| owned.others(plan, endpoint));
        let shortcut = Both { egress, ingress: one(Direction::Ingress) };
        all.insert(id, (endpoint.tenant, netns, shortcut));
    }
    // By tenant and namespace: how many send and how many receive so, and one of each.
    let mut ends: BTreeMap<(TenantId, Lies), Both<Vec<u32>>> = BTreeMap::new();
    for (id, (tenant, netns, shortcut)) in &all {
        let group = ends.entry((*tenant, netns.clone())).or_default();
        for (list, may) in [(&mut group.egress, shortcut.egress), (&mut group.ingress, shortcut.ingress)] {
            // Two say whether there is another.
            if may.is_ok() && list.len() < 2 {
                list.push(*id);
            }
        }
    }
    let with_another = |(id, (tenant, netns, shortcut)): (u32, (TenantId, Lies, Shortcut))| {
        let group = &ends[&(tenant, netns)];
        let met = |may: Result<(), Hindrance>, others: &[u32]| {
            may.and_then(|()| if others.iter().any(|&other| other != id) { Ok(()) } else { Err(Hindrance::Alone) })
        };
        let egress = met(shortcut.egress, &group.ingress);
        (id, Both { egress, ingress: met(shortcut.ingress, &group.egress) })
    };
    all.into_iter().map(with_another).collect()
}

/// Where IP addresses have owners: the kernel's filter knows the sender's own list, and no other.
struct Owned {
    /// How many endpoints of a network list addresses, or how many are listed as outside or by
    /// endpoints of other hosts.
    by_network: BTreeMap<Network, usize>,
    /// Networks with services.
    services: BTreeSet<Network>,
}

impl Owned {
    fn new(plan: &SwitchPlan) -> Owned {
        let mut by_network = BTreeMap::new();
        for (id, tenant) in plan.program.tenants.iter() {
            *by_network.entry(network_of(TenantId(id), tenant.attachment)).or_default() += tenant.outside.ips.len();
        }
        for (tenant, address) in &plan.program.elsewhere {
            if let (Elsewhere::Ip(_), Some(owner)) = (address, plan.program.tenants.get(tenant.0)) {
                *by_network.entry(network_of(*tenant, owner.attachment)).or_default() += 1;
            }
        }
        for endpoint in plan.program.endpoints.values().filter(|endpoint| !any_ip(endpoint)) {
            if let Some(tenant) = plan.program.tenants.get(endpoint.tenant.0) {
                *by_network.entry(network_of(endpoint.tenant, tenant.attachment)).or_default() += 1;
            }
        }
        let of_service = |tenant: TenantId| Some(network_of(tenant, plan.program.tenants.get(tenant.0)?.attachment));
        let services = plan.program.services.values().filter_map(|service| of_service(service.tenant)).collect();
        Owned { by_network, services }
    }

    /// What a client sends to a service, and what a backend answers, is the switch's to translate.
    fn serves(&self, plan: &SwitchPlan, endpoint: &Endpoint) -> Result<(), Hindrance> {
        let Some(tenant) = plan.program.tenants.get(endpoint.tenant.0) else { return Ok(()) };
        let network = network_of(endpoint.tenant, tenant.attachment);
        if self.services.contains(&network) { Err(Hindrance::Service) } else { Ok(()) }
    }

    /// Whether an endpoint without a list could use an address of somebody else. Routers may be
    /// asked to forward others' packets.
    fn others(&self, plan: &SwitchPlan, endpoint: &Endpoint) -> Result<(), Hindrance> {
        let Some(tenant) = plan.program.tenants.get(endpoint.tenant.0) else { return Ok(()) };
        let network = network_of(endpoint.tenant, tenant.attachment);
        let has_owners = network == Network::UNTAGGED || self.by_network.get(&network).is_some_and(|&n| n > 0);
        let asks = any_ip(endpoint) && !endpoint.identity.allow.router;
        if asks && has_owners { Err(Hindrance::Undeclared) } else { Ok(()) }
    }
}

fn any_ip(endpoint: &Endpoint) -> bool {
    endpoint.identity.ipv4.is_empty() && endpoint.identity.ipv6.is_empty()
}

/// What holds for both directions.
fn alike(plan: &SwitchPlan, endpoint: &Endpoint, is_exclusive: bool) -> Result<(), Hindrance> {
    let identity = &endpoint.identity;
    let most = identity.macs.len().max(identity.ipv4.len()).max(identity.ipv6.len());
    let hindrances = [
        (!plan.shortcut, Hindrance::Unwanted),
        (is_exclusive, Hindrance::Exclusive),
        (endpoint.trunk, Hindrance::Trunk),
        (identity.macs.is_empty(), Hindrance::Learned),
        (most > MOST_ADDRESSES, Hindrance::Addresses),
        (plan.program.vcc(endpoint).mode != Mode::Off, Hindrance::Vcc),
    ];
    hindrances.into_iter().find(|(holds, _)| *holds).map_or(Ok(()), |(_, hindrance)| Err(hindrance))
}

fn unlimited(plan: &SwitchPlan, endpoint: &Endpoint, direction: Direction) -> Result<(), Hindrance> {
    let tenant = plan.program.tenants.get(endpoint.tenant.0);
    if endpoint.share.get(direction).limit.is_limited() {
        Err(Hindrance::Limit)
    } else if tenant.is_none_or(|tenant| tenant.share.get(direction).limit.is_limited()) {
        Err(Hindrance::TenantLimit)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(switch: &str, tenant: &str, endpoints: &[&str]) -> Vec<Shortcut> {
        let endpoint = |(i, keys): (usize, &&str)| {
            format!("[[switch.tenant.endpoint]]\nname = \"e{i}\"\nport = \"packet://v{i}\"\n{keys}\n")
        };
        let endpoints: String = endpoints.iter().enumerate().map(endpoint).collect();
        let text = format!(
            "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n{switch}\n[[switch.tenant]]\nname = \"t\"\n{tenant}\n{endpoints}"
        );
        let checked = crate::load(&text);
        assert!(checked.plan.is_some(), "{:?}", checked.problems);
        shortcuts(&checked.plan.unwrap().switches[0]).into_values().collect()
    }

    const A: &str = "mac = \"02:00:00:00:00:0a\"";
    const B: &str = "mac = \"02:00:00:00:00:0b\"";
    const FREE: Shortcut = Both { egress: Ok(()), ingress: Ok(()) };

    fn both(hindrance: Hindrance) -> Shortcut {
        Both { egress: Err(hindrance), ingress: Err(hindrance) }
    }

    #[test]
    fn neighbours_without_limits_have_them_whatever_else_they_have() {
        assert_eq!(of("", "", &[A, B]), [FREE, FREE]);
        let knobs = "weight = 7\nvlan = 10\n";
        let uplink = "ingress = \"police\"\n[switch.uplink]\nport = \"tap://up\"\nrate = \"1 Gbit/s\"";
        let with = format!("{A}\nip = [\"10.0.0.1\", \"fd00::/64\"]\nguarantee = \"10 Mbit/s\"\nallow = \"router\"");
        let listed = format!("{B}\nip = \"10.0.0.2\"");
        assert_eq!(of(uplink, knobs, &[&with, &listed]), [FREE, FREE]);
        assert_eq!(of(uplink, "vlan = \"untagged\"", &[&with, &listed]), [FREE, FREE]);
    }

    #[test]
    fn who_lists_no_ip_address_sends_through_the_switch_where_others_have_some() {
        let listed = format!("{A}\nip = \"10.0.0.1\"");
        let undeclared = Err(Hindrance::Undeclared);
        let [a, b] = of("", "", &[&listed, B])[..] else { panic!() };
        assert_eq!((a, b), (Both { ingress: Err(Hindrance::Alone), ..FREE }, Both { egress: undeclared, ..FREE }));
        let router = format!("{B}\nallow = \"router\"");
        assert_eq!(of("", "", &[&listed, &router]), [FREE, FREE], "it forwards packets of others");
        let gone = Both { egress: undeclared, ingress: Err(Hindrance::Alone) };
        assert_eq!(of("", "outside = \"10.0.0.254\"", &[A, B]), [gone, gone]);
        let uplink = "[switch.uplink]\nport = \"tap://up\"\nrate = \"1 Gbit/s\"";
        assert_eq!(of(uplink, "vlan = \"untagged\"", &[A, B]), [gone, gone]);
        let far = "host = \"h\"\nlisten = \"192.0.2.9:7370\"\n[[cluster.member]]\nname = \"far\"\naddress = \"192.0.2.3:7370\"\n";
        let with = |ip: &str| {
            let endpoint = format!("{{ name = \"x\", tenant = \"t\", mac = \"02:00:00:00:00:0f\"{ip} }}");
            of(uplink, "vlan = 10", &[A, &format!("{B}\n[cluster]\n{far}endpoint = [{endpoint}]")])
        };
        assert_eq!([with(""), with(", ip = \"10.0.0.9\"")], [[FREE, FREE], [gone, gone]], "one of another host has it");
    }

    #[test]
    fn a_limit_hinders_its_direction_only() {
        let egress = format!("{A}\nlimit = {{ egress = \"1 Gbit/s\" }}");
        let limit = Err(Hindrance::Limit);
        // Nobody sends to b, and a sends nothing so: what remains is from b to a.
        let [a, b] = of("", "", &[&egress, B])[..] else { panic!() };
        assert_eq!(a, Both { egress: limit, ingress: Ok(()) });
        assert_eq!(b, Both { egress: Ok(()), ingress: Err(Hindrance::Alone) });
        let c = "mac = \"02:00:00:00:00:0c\"";
        let [a, b, c] = of("", "", &[&egress, B, c])[..] else { panic!() };
        assert_eq!((a, b, c), (Both { egress: limit, ingress: Ok(()) }, FREE, FREE));
        let tenant = of("", "limit = { ingress = \"1 Gbit/s\" }", &[A, B]);
        let none = Both { egress: Err(Hindrance::Alone), ingress: Err(Hindrance::TenantLimit) };
        assert_eq!(tenant, [none, none]);
    }

    #[test]
    fn who_may_not_is_told_why() {
        assert_eq!(of("shortcut = false", "", &[A, B]), [both(Hindrance::Unwanted); 2]);
        assert_eq!(of("", "", &[A]), [both(Hindrance::Alone)]);
        let elsewhere = format!("{B}\nnetns = \"other\"");
        assert_eq!(of("", "", &[A, &elsewhere]), [both(Hindrance::Alone); 2], "redirecting stays in a namespace");
        assert_eq!(of("", "", &[A, ""])[1], both(Hindrance::Learned));
        assert_eq!(of("", "", &[A, "trunk = true"])[1], both(Hindrance::Trunk));
        assert_eq!(of("", "vcc = \"count\"", &[A, B]), [both(Hindrance::Vcc); 2]);
        let itself = format!("{B}\nvcc = \"echo\"");
        assert_eq!(of("", "", &[A, &itself])[1], both(Hindrance::Vcc));
        let many: Vec<String> = (0..17).map(|i| format!("\"10.0.0.{i}\"")).collect();
        let many = format!("{B}\nip = [{}]", many.join(", "));
        assert_eq!(of("", "", &[A, &many])[1], both(Hindrance::Addresses));
        let host = "[[switch.tenant.endpoint]]\nname = \"host\"\nport = \"host://v1\"";
        assert_eq!(of("", "", &[A, &format!("{B}\n{host}")])[1], both(Hindrance::Exclusive));
    }
}
