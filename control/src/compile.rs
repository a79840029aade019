//! Compiling a configuration without errors into a plan: names become numbers, defaults that depend
//! on other values are filled in.

mod services;
mod talk;
mod tunnels;

use crate::admission::tenant_guarantee;
use crate::bond::{DEFAULT_MIIMON_NS, Notices};
use crate::config::{
    self, Config, DEFAULT_FLOOD, DEFAULT_FLOOD_RATE, DEFAULT_HEADROOM_PPM, DEFAULT_LEARNED, DEFAULT_TENANT_FLOOD,
    DEFAULT_TRUNK_FLOOD, DEFAULT_TRUNK_FLOOD_RATE, DEFAULT_TRUNK_LEARNED, DEFAULT_WEIGHT, Device, Endpoint, Knobs,
    Switch, Tenant,
};
use crate::names::Locator;
use crate::place::Place;
use crate::plan::{BondPlan, HostPlan, PacketPlan, Plan, PortKind, PortPlan, SwitchPlan, TapPlan, VdePlan, VhostPlan};
use datapath::aqm::Discipline;
use datapath::bond::BondSettings;
use datapath::bond::lacp::LacpMember;
use datapath::encap::udp_gso;
use datapath::flood::FloodLimits;
use datapath::frame::PoolLimits;
use datapath::link::LinkConfig;
use datapath::offload::OffloadSupport;
use datapath::program::{
    self, Attachment, Member, MemberId, PortFeatures, PortId, Program, Share, Slots, TenantId, Uplink,
};
use datapath::units::{Both, Direction, Rate};
use datapath::wire::Mac;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of an Ethernet header without tag.
const ETHERNET_HEADER: u32 = 14;
/// How long Linux lets offloaded packets be where nothing is said (GSO_LEGACY_MAX_SIZE).
const LONGEST_OFFLOAD: u32 = 65_536;

impl Switch {
    /// The headroom, in millionths.
    #[must_use]
    pub fn headroom(&self) -> u32 {
        self.headroom_ppm.unwrap_or(DEFAULT_HEADROOM_PPM)
    }
}

/// Compiles `config`, in which `check` found no error. Who is in `previous` already keeps its
/// number.
#[must_use]
pub fn compile(config: &Config, previous: Option<&Plan>) -> Plan {
    let had = previous.map(|plan| plan.links.iter().map(|(id, (name, _))| (name.as_str(), id)).collect());
    let names = config.links.iter().map(|l| l.name.as_str());
    let mut links = Slots::default();
    for (id, one) in number(names, &had.unwrap_or_default()).into_iter().zip(&config.links) {
        links.set(id, Some((one.name.clone(), link(one, id))));
    }
    // With another order or ingress mode it is made anew, and so is another.
    let kinds: BTreeMap<_, _> = config.switches.iter().map(|s| (s.name.as_str(), (s.order, s.ingress))).collect();
    let same = |old: &&SwitchPlan| kinds.get(old.name.as_str()) == Some(&(old.program.order, old.program.ingress));
    let slots: BTreeMap<u32, &SwitchPlan> = previous.iter().flat_map(|plan| plan.switches.iter()).collect();
    let had: BTreeMap<_, _> =
        slots.iter().map(|(&id, old)| (same(old).then_some(old.name.as_str()).ok_or(id), id)).collect();
    let names = config.switches.iter().map(|s| Ok(s.name.as_str()));
    let mut switches = Slots::default();
    let outside = Outside::new(config, &links);
    for (id, one) in number(names, &had).into_iter().zip(&config.switches) {
        let before = slots.get(&id).copied().filter(|old| same(old));
        switches.set(id, Some(switch(config, &outside, one, before)));
    }
    Plan {
        name: config.daemon.name.clone(),
        spin: config.daemon.spin,
        pool: PoolLimits::within(config.daemon.memory_bytes),
        switches,
        links,
        cluster: config.cluster.clone(),
    }
}

/// Numbers for `wanted`: those that they `had`, and for new ones the least that nobody had.
fn number<K: Ord>(wanted: impl Iterator<Item = K>, had: &BTreeMap<K, u32>) -> Vec<u32> {
    let taken: BTreeSet<u32> = had.values().copied().collect();
    let mut free = (0..u32::MAX).filter(|id| !taken.contains(id));
    wanted.map(|one| had.get(&one).copied().or_else(|| free.next()).unwrap_or(u32::MAX)).collect()
}

fn link(link: &crate::config::Link, number: u32) -> LinkConfig {
    LinkConfig {
        rate: link.rate,
        delay_ns: link.delay_ns,
        queue_bytes: link.queue_bytes,
        discipline: link.discipline,
        loss_ppm: link.loss_ppm,
        seed: u64::from(number),
    }
}

fn switch(config: &Config, outside: &Outside<'_>, switch: &Switch, before: Option<&SwitchPlan>) -> SwitchPlan {
    let numbers = Numbers::new(switch, before);
    let mut ports = Ports::new(outside, switch);
    let place = Place::root();
    for ((_, device), &port) in switch.uplink.iter().flat_map(|u| u.devices(&place)).zip(&numbers.uplink) {
        ports.set(port, device, None);
    }
    let bond = switch.uplink.as_ref().and_then(|uplink| uplink.bond.as_ref());
    let uplink = switch.uplink.as_ref().zip(numbers.uplink.first()).map(|(uplink, &port)| {
        let one = Uplink::new(port, uplink.rate);
        let members = bond.map(|bond| members(bond, &numbers.uplink));
        Uplink {
            members: members.unwrap_or(one.members),
            bond: bond.map(|bond| bond_settings(bond, &config.daemon.name, &switch.name)),
            headroom_ppm: switch.headroom(),
            burst_ns: uplink.burst_ns.unwrap_or(Uplink::BURST_NS),
        }
    });
    let (overlay, underlay) = tunnels::tunnels(config, switch, &numbers.tenants);
    let elsewhere = tunnels::elsewhere(config, switch, &numbers.tenants);
    let services_elsewhere = tunnels::services_elsewhere(config, switch);
    let (mut tenants, mut tenant_names) = (Slots::<program::Tenant>::default(), Slots::default());
    let (mut endpoints, mut names) = (Slots::<program::Endpoint>::default(), Slots::default());
    let (services, service_names) = services::services(switch, &numbers, before);
    let mut places = numbers.endpoints.into_iter();
    for (one, id) in switch.tenants.iter().zip(numbers.tenants) {
        let beside = services_elsewhere.get(one.name.as_str()).map_or(&[][..], Vec::as_slice);
        tenants.set(id, Some(tenant(one, beside)));
        tenant_names.set(id, Some(one.name.clone()));
        for (e, (place, port)) in one.endpoints.iter().zip(places.by_ref()) {
            let tunnels = switch.uplink.as_ref().filter(|_| matches!(one.attachment, Attachment::Vxlan(_)));
            ports.set(port, &fitted(switch, one, e), tunnels);
            endpoints.set(place, Some(endpoint(e, TenantId(id), port)));
            if switch.shares(one) && e.is_undeclared() {
                endpoints[place as usize].max_learned = 0;
            }
            if e.trunk && !switch.shares(one) {
                // Nobody else is there whom it could mislead.
                let allow = &mut endpoints[place as usize].identity.allow;
                (allow.router, allow.dhcp_server) = (true, true);
            }
            names.set(place, Some(e.name.clone()));
            let agent_traffic = talk::talk(config, switch, e);
            for direction in Direction::ALL {
                let Some(agent_traffic) = &agent_traffic else { break };
                let more = talk::guarantee(switch, one, e, agent_traffic, direction);
                raise(&mut endpoints[place as usize].share, direction, more);
                if one.knobs.guarantee.get(direction).is_none() {
                    raise(&mut tenants[id as usize].share, direction, more);
                }
            }
            endpoints[place as usize].agent_traffic = agent_traffic;
            endpoints[place as usize].aqm = discipline(switch, one, e);
            endpoints[place as usize].vcc = e.vcc(one);
        }
    }
    SwitchPlan {
        name: switch.name.clone(),
        program: Program {
            order: switch.order,
            ingress: switch.ingress,
            uplink,
            tenants,
            endpoints,
            ports: ports.features,
            fdb_age_ns: switch.fdb_age_ns,
            uplink_flood: switch.uplink.as_ref().map_or(FloodLimits::UPLINK, uplink_flood),
            overlay,
            elsewhere,
            services,
            connections: switch.connections,
            flows: switch.flows,
            rescales: switch.rescales,
        },
        tenants: tenant_names,
        endpoints: names,
        services: service_names,
        ports: ports.plans,
        bond: bond.map(bond_plan),
        underlay,
        line: None,
        shortcut: switch.shortcut,
    }
}

/// The members of a bond, whose ports are numbered `ports`.
fn members(bond: &config::Bond, ports: &[PortId]) -> Vec<Member> {
    let both = |rate| Both { egress: rate, ingress: rate };
    ports.iter().zip(&bond.members).map(|(&port, member)| Member { port, rate: both(member.rate) }).collect()
}

/// With the addresses of `802.3ad`: a member's own where it has one, else the bond's with the
/// member's place.
fn bond_settings(bond: &config::Bond, daemon: &str, switch: &str) -> BondSettings {
    let own = bond_address(daemon, switch);
    let mut lacp = bond.settings.lacp;
    lacp.system = bond.system.unwrap_or(own);
    for (n, (one, member)) in (0..).zip(lacp.members.iter_mut().zip(&bond.members)) {
        let [a, b, c, d, e, f] = own.0;
        let mac = member.device.mac.unwrap_or(Mac([a, b, c, d, e, f | n]));
        *one = LacpMember { mac, priority: member.port_priority };
        lacp.down |= u16::from(member.is_down) << n;
    }
    BondSettings { lacp, ..bond.settings }
}

/// An address that stays the bond's, whoever runs it: locally administered, made of its names
/// (FNV-1a, whose upper bits are its lower ones' mixture). The last four bits are the members'.
fn bond_address(daemon: &str, switch: &str) -> Mac {
    let bytes = daemon.bytes().chain(*b"/").chain(switch.bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let [a, b, c, d, e, ..] = (hash ^ hash >> 32).to_be_bytes();
    Mac([0x02, a, b, c, d, e & 0xf0])
}

fn bond_plan(bond: &config::Bond) -> BondPlan {
    let names: Vec<String> = bond.members.iter().map(config::BondMember::name).collect();
    let primary = bond.primary.as_ref().and_then(|primary| names.iter().position(|name| name == primary));
    let mut gaps = [bond.notices.gap_ns, bond.miimon_ns].into_iter();
    BondPlan {
        policy: crate::bond::Settings {
            mode: bond.settings.mode,
            updelay_ns: bond.updelay_ns,
            downdelay_ns: bond.downdelay_ns,
            primary: primary.map(|n| MemberId(n as u8)),
            reselect: bond.reselect,
            priorities: bond.members.iter().map(|member| member.priority).collect(),
            down: bond.members.iter().map(|member| member.is_down).collect(),
        },
        miimon_ns: bond.miimon_ns,
        notices: Notices { gap_ns: gaps.find(|&gap| gap > 0).unwrap_or(DEFAULT_MIIMON_NS), ..bond.notices },
        secret_file: bond.secret_file.clone(),
        names,
    }
}

/// The device of an endpoint. Where frames leave in tunnels, a device that is made takes no longer
/// packets than fit in. What passes a director has come over the uplink.
fn fitted<'a>(switch: &Switch, tenant: &Tenant, endpoint: &'a Endpoint) -> Cow<'a, Device> {
    let device = &endpoint.device;
    match (&switch.uplink, &device.locator) {
        (Some(uplink), Some(Locator::Director)) => Cow::Owned(Device { mtu: uplink.device.mtu, ..device.clone() }),
        (Some(uplink), Some(Locator::Tap(_) | Locator::Veth(_)))
            if matches!(tenant.attachment, Attachment::Vxlan(_)) =>
        {
            Cow::Owned(Device { mtu: device.mtu.min(tenant.room(uplink)), ..device.clone() })
        }
        _ => Cow::Borrowed(device),
    }
}

/// The numbers of what is in a switch, in the order of the configuration.
struct Numbers {
    /// Of its members, where the uplink has several.
    uplink: Vec<PortId>,
    tenants: Vec<u32>,
    /// Each with its port.
    endpoints: Vec<(u32, PortId)>,
}

impl Numbers {
    fn new(switch: &Switch, before: Option<&SwitchPlan>) -> Numbers {
        let of_tenant = |plan: &'_ SwitchPlan, id: TenantId| plan.tenants[id.0 as usize].clone();
        let wanted = |t: &Tenant, e: &Endpoint| (t.name.clone(), e.name.clone());
        let all = || switch.tenants.iter().flat_map(|t| t.endpoints.iter().map(move |e| (t, e)));
        let mut tenants = BTreeMap::new();
        let mut endpoints = BTreeMap::new();
        let mut ports = BTreeMap::new();
        if let Some(plan) = before {
            tenants = plan.tenants.iter().map(|(id, name)| (name.clone(), id)).collect();
            let devices: BTreeMap<_, _> = all().map(|(t, e)| (wanted(t, e), &e.device)).collect();
            for (id, endpoint) in plan.program.endpoints.iter() {
                let name = (of_tenant(plan, endpoint.tenant), plan.endpoints[id as usize].clone());
                // Behind another port is somebody else: he gets nothing of who was there.
                let is_same = |device: &Device| {
                    let port = &plan.ports[endpoint.port.0 as usize];
                    device.locator.as_ref().is_some_and(|locator| port.is(locator, device.netns.as_deref()))
                };
                let owner = devices.get(&name).is_none_or(|device| is_same(device)).then_some(name).ok_or(id);
                endpoints.insert(owner.clone(), id);
                ports.insert(owner.map_or_else(Owner::Former, Owner::Endpoint), endpoint.port.0);
            }
            // A port that becomes one of several, or is the one of them that is left, keeps its
            // number.
            for port in uplink_ports(plan) {
                let name = plan.ports[port.0 as usize].locator.device_name();
                ports.insert(Owner::Member(name), port.0);
            }
            ports.extend(plan.program.uplink.iter().map(|uplink| (Owner::Uplink, uplink.port().0)));
        }
        let names: Vec<_> = all().map(|(t, e)| wanted(t, e)).collect();
        let endpoints = number(names.iter().cloned().map(Ok), &endpoints);
        let uplink = uplink_owners(switch, before, &ports);
        let count = uplink.len();
        let owners = uplink.into_iter().chain(names.into_iter().map(Owner::Endpoint));
        let mut ports = number(owners, &ports).into_iter().map(PortId);
        Numbers {
            uplink: ports.by_ref().take(count).collect(),
            tenants: number(switch.tenants.iter().map(|t| t.name.clone()), &tenants),
            endpoints: endpoints.into_iter().zip(ports).collect(),
        }
    }
}

/// Whose port it is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// The uplink's only one.
    Uplink,
    /// A member's of the uplink, by its name.
    Member(String),
    /// An endpoint's, by its tenant's name and its own.
    Endpoint((String, String)),
    /// That of an endpoint before it was at another port, by its number.
    Former(u32),
}

/// The ports of a plan's uplink.
fn uplink_ports(plan: &SwitchPlan) -> Vec<PortId> {
    plan.program.uplink.iter().flat_map(|uplink| &uplink.members).map(|member| member.port).collect()
}

/// The owners of an uplink's ports, in order.
fn uplink_owners(switch: &Switch, before: Option<&SwitchPlan>, had: &BTreeMap<Owner, u32>) -> Vec<Owner> {
    let Some(uplink) = &switch.uplink else { return Vec::new() };
    if let Some(bond) = &uplink.bond {
        return bond.members.iter().map(|member| Owner::Member(member.name())).collect();
    }
    let was_bond = before.is_some_and(|plan| plan.bond.is_some());
    let member = uplink.device.locator.as_ref().map(|locator| Owner::Member(locator.device_name()));
    vec![member.filter(|member| was_bond && had.contains_key(member)).unwrap_or(Owner::Uplink)]
}

fn uplink_flood(uplink: &config::Uplink) -> FloodLimits {
    let FloodLimits { per_second, rate } = FloodLimits::UPLINK;
    FloodLimits { per_second: uplink.flood_per_second.unwrap_or(per_second), rate: uplink.flood_rate.unwrap_or(rate) }
}

fn tenant(tenant: &Tenant, services_elsewhere: &[tunnels::ServiceAt]) -> program::Tenant {
    let share = |d| Share { guarantee: tenant_guarantee(tenant, d), ..share(&tenant.knobs, d) };
    program::Tenant {
        attachment: tenant.attachment,
        outside: services::outside(tenant, services_elsewhere),
        share: Both { egress: share(Direction::Egress), ingress: share(Direction::Ingress) },
        flood_rate: tenant.flood_rate.unwrap_or_else(|| default_flood_rate(tenant)),
        vcc: tenant.vcc,
    }
}

fn default_flood_rate(tenant: &Tenant) -> Rate {
    let most = tenant.endpoints.iter().map(flood_rate).max().unwrap_or(DEFAULT_FLOOD_RATE);
    Rate(most.0.saturating_mul(DEFAULT_TENANT_FLOOD))
}

fn flood_rate(endpoint: &Endpoint) -> Rate {
    endpoint.flood_rate.unwrap_or(if endpoint.trunk { DEFAULT_TRUNK_FLOOD_RATE } else { DEFAULT_FLOOD_RATE })
}

fn endpoint(endpoint: &Endpoint, tenant: TenantId, port: PortId) -> program::Endpoint {
    let (flood, learned) =
        if endpoint.trunk { (DEFAULT_TRUNK_FLOOD, DEFAULT_TRUNK_LEARNED) } else { (DEFAULT_FLOOD, DEFAULT_LEARNED) };
    let knobs = &endpoint.knobs;
    program::Endpoint {
        tenant,
        port,
        identity: endpoint.identity.clone(),
        trunk: endpoint.trunk,
        is_director: endpoint.is_director(),
        share: Both { egress: share(knobs, Direction::Egress), ingress: share(knobs, Direction::Ingress) },
        queue_bytes: endpoint.queue_bytes as u32,
        flood_per_second: endpoint.flood_per_second.unwrap_or(flood),
        flood_rate: flood_rate(endpoint),
        max_learned: if endpoint.is_director() { 0 } else { endpoint.max_learned.unwrap_or(learned) },
        agent_traffic: None,
        aqm: None,
        vcc: None,
    }
}

/// The discipline of an endpoint's queues: its own, its tenant's, or that of the uplink where its
/// frames go there.
fn discipline(switch: &Switch, tenant: &Tenant, endpoint: &Endpoint) -> Option<Discipline> {
    let uplink = switch.uplink.as_ref().filter(|_| tenant.attachment != Attachment::Isolated);
    // Where the switch speaks ECN for guests, a queue that marks tells them most.
    let default = endpoint.vcc.unwrap_or(tenant.vcc.mode).translates().then_some(Discipline::Auto);
    let aqm = endpoint.aqm.or(tenant.aqm).or(uplink.and_then(|uplink| uplink.aqm)).or(default);
    // CoDel is what a lane does by itself.
    aqm.filter(|&aqm| aqm != Discipline::Codel)
}

fn raise(share: &mut Both<Share>, direction: Direction, more: Rate) {
    let guarantee = &mut share.get_mut(direction).guarantee;
    *guarantee = Rate(guarantee.0.saturating_add(more.0));
}

fn share(knobs: &Knobs, direction: Direction) -> Share {
    Share {
        guarantee: knobs.guarantee.get(direction).unwrap_or(Rate(0)),
        limit: knobs.limit.get(direction).unwrap_or(Rate::UNLIMITED),
        weight: knobs.weight.get(direction).unwrap_or(DEFAULT_WEIGHT),
    }
}

/// What ports need to know of what is not their switch's.
struct Outside<'a> {
    /// The interfaces over which an endpoint is the host's traffic, with their namespaces.
    hosts: BTreeSet<(&'a str, Option<&'a str>)>,
    /// The links' numbers.
    links: BTreeMap<&'a str, usize>,
}

impl<'a> Outside<'a> {
    fn new(config: &'a Config, links: &'a Slots<(String, LinkConfig)>) -> Self {
        let endpoints = config.switches.iter().flat_map(|s| &s.tenants).flat_map(|t| &t.endpoints);
        let hosts = endpoints.filter_map(|e| match &e.device.locator {
            Some(Locator::Host(name)) => Some((name.as_str(), e.device.netns.as_deref())),
            _ => None,
        });
        Outside {
            hosts: hosts.collect(),
            links: links.iter().map(|(id, (name, _))| (name.as_str(), id as usize)).collect(),
        }
    }
}

/// The ports of a switch.
struct Ports<'a> {
    outside: &'a Outside<'a>,
    /// Of VDE directories, whichever of their plugs says it.
    modes: BTreeMap<&'a str, u32>,
    groups: BTreeMap<&'a str, &'a String>,
    plans: Slots<PortPlan>,
    features: Slots<PortFeatures>,
}

impl<'a> Ports<'a> {
    fn new(outside: &'a Outside<'a>, switch: &'a Switch) -> Self {
        let endpoints = switch.tenants.iter().flat_map(|t| &t.endpoints).map(|e| &e.device);
        let (mut modes, mut groups) = (BTreeMap::new(), BTreeMap::new());
        let place = Place::root();
        let uplinks: Vec<_> = switch.uplink.iter().flat_map(|u| u.devices(&place)).map(|(_, device)| device).collect();
        for device in endpoints.chain(uplinks) {
            let Some(Locator::Vde(directory, _)) = &device.locator else { continue };
            modes.extend(device.mode.map(|mode| (directory.as_str(), mode)));
            groups.extend(device.group.as_ref().map(|group| (directory.as_str(), group)));
        }
        Ports { outside, modes, groups, plans: Slots::default(), features: Slots::default() }
    }

    /// `tunnels`: its frames leave in tunnels by this uplink.
    fn set(&mut self, id: PortId, device: &Device, tunnels: Option<&config::Uplink>) {
        // Only a wrong configuration has no locator, and that is not compiled.
        let locator = device.locator.clone().unwrap_or(Locator::Tap(String::new()));
        let made = |name: &str| TapPlan {
            name: name.to_owned(),
            netns: device.netns.clone(),
            mac: device.mac,
            mtu: device.mtu,
            longest_offload: tunnels.and_then(|uplink| longest_offload(device.mtu, uplink)),
            addresses: device.addresses.clone(),
            ring: device.ring,
            ipv6: device.ipv6,
            persistent: device.persistent,
        };
        let kind = match &locator {
            Locator::Tap(name) => PortKind::Tap(made(name)),
            Locator::Veth(name) => PortKind::Veth(made(name)),
            Locator::Packet(name) => PortKind::Packet(PacketPlan {
                name: name.clone(),
                netns: device.netns.clone(),
                mtu: device.mtu,
                ring: device.ring,
                is_exclusive: self.outside.hosts.contains(&(name.as_str(), device.netns.as_deref())),
            }),
            Locator::Host(name) => PortKind::Host(HostPlan {
                interface: name.clone(),
                netns: device.netns.clone(),
                ring: device.ring,
                is_absent: false,
            }),
            Locator::Link(name, side) => {
                PortKind::Link { link: self.outside.links.get(name.as_str()).copied().unwrap_or_default(), side: *side }
            }
            Locator::Vde(directory, plug) => PortKind::Vde(VdePlan {
                directory: directory.clone(),
                plug: *plug,
                hub: device.hub,
                mode: self.modes.get(directory.as_str()).copied(),
                group: self.groups.get(directory.as_str()).map(|&group| group.clone()),
                mtu: device.mtu,
            }),
            Locator::VhostUser(socket) => PortKind::VhostUser(VhostPlan {
                socket: socket.clone(),
                listen: device.listen,
                group: device.group.clone(),
                queues: device.queues,
                offload: device.offload,
                sealed: device.sealed,
                mtu: device.mtu,
            }),
            Locator::Director => PortKind::Director,
        };
        // A datagram to a VDE client is one whole frame; what a guest takes is known when its
        // driver has said it.
        let is_plain = matches!(kind, PortKind::Vde(_) | PortKind::VhostUser(_));
        let offload = if is_plain { OffloadSupport::NONE } else { OffloadSupport::ALL };
        self.plans.set(id.0, Some(PortPlan { locator, kind }));
        self.features.set(id.0, Some(PortFeatures { offload, max_frame: device.mtu + ETHERNET_HEADER }));
    }
}

/// How long a guest's offloaded packets may be that leave in tunnels. An interface takes those of
/// TCP whole over IPv4; others are cut for trains.
fn longest_offload(mtu: u32, uplink: &config::Uplink) -> Option<u32> {
    let vtep = uplink.vtep?;
    let is_packet = |device: &Device| matches!(device.locator, Some(Locator::Packet(_)));
    let is_whole = match &uplink.bond {
        Some(bond) => !bond.settings.may_number() && bond.members.iter().all(|member| is_packet(&member.device)),
        None => is_packet(&uplink.device),
    };
    let whole = vtep.is_ipv4() && is_whole;
    Some(if whole { LONGEST_OFFLOAD } else { udp_gso::longest_offload(mtu, &vtep) })
}

#[cfg(test)]
mod tests {
    use crate::compile;
    use crate::plan::{Plan, PortKind};
    use datapath::aqm::Discipline;
    use datapath::program::{Change, Elsewhere};
    use datapath::vcc::{Mode, Settings};

    fn host(endpoints: &[&str]) -> String {
        let endpoint =
            |name: &&str| format!("[[switch.tenant.endpoint]]\nname = \"{name}\"\nport = \"tap://{name}\"\n");
        let list: String = endpoints.iter().map(endpoint).collect();
        format!("[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"t\"\n{list}")
    }

    fn plan(text: &str, previous: Option<&Plan>) -> Plan {
        let checked = crate::load(text);
        assert!(checked.plan.is_some(), "{:?}", checked.problems);
        compile(&checked.config, previous)
    }

    fn numbers(plan: &Plan) -> Vec<(String, u32)> {
        plan.switches[0].endpoints.iter().map(|(id, name)| (name.clone(), id)).collect()
    }

    #[test]
    fn a_trunk_serves_its_network_where_no_other_tenant_is() {
        let trunk = "[[switch.tenant.endpoint]]\nname = \"up\"\nport = \"tap://up\"\ntrunk = true\n\
            allow = [\"learned-addresses\"]\n";
        let uplink = "name = \"s\"\n[switch.uplink]\nport = \"packet://eth0\"\nrate = \"1 Gbit/s\"\n";
        let alone = format!("{}{trunk}", host(&["a"])).replacen("name = \"s\"\n", uplink, 1);
        let beside = format!("{alone}[[switch.tenant]]\nname = \"other\"\nvlan = \"untagged\"\n");
        let beside = beside.replacen(
            "name = \"t\"\n[[switch.tenant.end",
            "name = \"t\"\nvlan = \"untagged\"\n[[switch.tenant.end",
            1,
        );
        let allowed = |text: &str| {
            let checked = crate::load(text);
            let plan = checked.plan.unwrap_or_else(|| panic!("{:?}", checked.problems));
            let program = &plan.switches[0].program;
            let (_, trunk) = program.endpoints.iter().find(|(_, endpoint)| endpoint.trunk).unwrap();
            [trunk.identity.allow.router, trunk.identity.allow.dhcp_server]
        };
        assert_eq!((allowed(&alone), allowed(&beside)), ([true; 2], [false; 2]));
        let permitted = beside.replace("[\"learned-addresses\"]", "[\"learned-addresses\", \"router\"]");
        assert_eq!(allowed(&permitted), [true, false]);
    }

    #[test]
    fn an_endpoint_has_a_vcc_of_its_own_or_its_tenants() {
        let text =
            host(&["a", "b"]).replacen("[[switch.tenant.end", "vcc = \"dctcp\"\npolice = true\n[[switch.tenant.end", 1);
        let text = text.replacen("tap://a\"\n", "tap://a\"\nvcc = \"count\"\n", 1);
        let plan = plan(&text, None);
        let program = &plan.switches[0].program;
        let of = |id: usize| (program.vcc(&program.endpoints[id]), program.endpoints[id].aqm);
        let dctcp = Settings { polices: true, ..Mode::Dctcp.into() };
        // What marks is the default where the switch translates.
        assert_eq!([of(0), of(1)], [(Mode::Count.into(), None), (dctcp, Some(Discipline::Auto))]);
        let none = text.replacen("vcc = \"count\"", "vcc = \"off\"", 1).replacen("dctcp", "echo", 1);
        assert!(super::tests::plan(&none, None).switches[0].program.has_vcc());
        assert!(!super::tests::plan(&host(&["a"]), None).switches[0].program.has_vcc());
    }

    #[test]
    fn an_endpoint_has_what_its_tenant_asks_for_but_for_what_it_says_itself() {
        let keys = "vcc = \"dctcp\"\npolice = true\nmptcp = \"strip\"\n[[switch.tenant.end";
        let text = host(&["a", "b", "c"]).replacen("[[switch.tenant.end", keys, 1);
        let text = text.replacen("tap://a\"\n", "tap://a\"\nmptcp = \"untouched\"\n", 1);
        let text = text.replacen("tap://b\"\n", "tap://b\"\nvcc = \"echo-published\"\n", 1);
        let text = text.replacen("tap://c\"\n", "tap://c\"\nloss = \"ignore\"\nclassic = \"pass\"\n", 1);
        let program = &plan(&text, None).switches[0].program;
        let of = |id: usize| program.vcc(&program.endpoints[id]);
        let all = Settings { polices: true, strips_multipath: true, ..Mode::Dctcp.into() };
        let published = Settings { strips_multipath: true, ..Mode::EchoPublished.into() };
        let own = Settings { ignores_loss: true, passes_classic: true, ..all };
        assert_eq!([of(0), of(1), of(2)], [Settings { strips_multipath: false, ..all }, published, own]);
    }

    #[test]
    fn who_stays_keeps_its_number_and_who_goes_does_not_leave_it_to_who_comes() {
        let first = plan(&host(&["a", "b", "c"]), None);
        assert_eq!(numbers(&first), [("a".into(), 0), ("b".into(), 1), ("c".into(), 2)]);
        let second = plan(&host(&["d", "c", "a"]), Some(&first));
        assert_eq!(numbers(&second), [("a".into(), 0), ("c".into(), 2), ("d".into(), 3)]);
        let third = plan(&host(&["d", "e", "c", "a"]), Some(&second));
        assert_eq!(numbers(&third), [("a".into(), 0), ("e".into(), 1), ("c".into(), 2), ("d".into(), 3)]);
        let changes = second.switches[0].program.changes_from(&first.switches[0].program).unwrap();
        let touched: Vec<u32> = changes
            .iter()
            .filter_map(|change| match change {
                Change::Endpoint(id, _) => Some(id.0),
                _ => None,
            })
            .collect();
        assert_eq!(touched, [1, 3], "only b, which goes, and d, which comes");
        for (id, port) in third.switches[0].ports.iter() {
            let PortKind::Tap(tap) = &port.kind else { panic!("{port:?}") };
            let owner = third.switches[0].program.endpoints.iter().find(|(_, e)| e.port.0 == id).unwrap().0;
            assert_eq!(tap.name, third.switches[0].endpoints[owner as usize]);
        }
    }

    /// Two switches of one daemon over a fabric, and a member.
    const TUNNELS: &str = r#"
        [daemon]
        name = "t"
        [[switch]]
        name = "a"
        uplink = { port = "link://wa/a", rate = "1 Gbit/s", vtep = "192.0.2.1" }
        [[switch.tenant]]
        name = "red"
        vni = 7
        endpoint = [
            { name = "red1", port = "tap://red1", mac = "02:00:00:00:00:01" },
            { name = "red9", port = "tap://red9", mac = "02:00:00:00:00:09", mtu = 1400 },
        ]
        [[switch]]
        name = "b"
        uplink = { port = "link://wb/a", rate = "1 Gbit/s", vtep = "192.0.2.2" }
        [[switch.tenant]]
        name = "red"
        vni = 7
        endpoint = [{ name = "red2", port = "tap://red2", mac = "02:00:00:00:00:02" }]
        [[switch]]
        name = "fabric"
        [[switch.tenant]]
        name = "fabric"
        endpoint = [
            { name = "pa", port = "link://wa/b", trunk = true },
            { name = "pb", port = "link://wb/b", trunk = true },
        ]
        [[link]]
        name = "wa"
        rate = "1 Gbit/s"
        [[link]]
        name = "wb"
        rate = "1 Gbit/s"
        [cluster]
        host = "lab"
        [[cluster.member]]
        name = "far"
        vtep = "192.0.2.3"
        endpoint = [{ name = "red3", tenant = "red", mac = "02:00:00:00:00:03" }, { name = "x", tenant = "else", mac = "02:00:00:00:00:03" }]
    "#;

    #[test]
    fn tunnels_lead_to_other_switches_and_to_members() {
        let plan = plan(TUNNELS, None);
        let (a, b) = (&plan.switches[0], &plan.switches[1]);
        let overlay = &a.program.overlay;
        let mac = |last| datapath::wire::Mac([2, 0, 0, 0, 0, last]);
        let address = |last| std::net::IpAddr::from([192, 0, 2, last]);
        let red = datapath::program::TenantId(0);
        let remotes: Vec<_> = overlay.remotes.iter().map(|(&(tenant, mac), &at)| (tenant, mac, at)).collect();
        assert_eq!(remotes, [(red, mac(2), address(2)), (red, mac(3), address(3))]);
        // Over links, both sides know each other's address without asking anybody.
        assert_eq!(overlay.peers[&address(2)].next_hop, b.program.overlay.local.map(|local| local.mac));
        assert_eq!(overlay.peers[&address(3)].tenants, [red]);
        let underlay = a.underlay.as_ref().unwrap();
        assert_eq!(underlay.hosts.values().map(String::as_str).collect::<Vec<_>>(), ["b", "far"]);
        assert!(plan.switches[2].underlay.is_none());
        let frames: Vec<u32> =
            a.program.endpoints.values().map(|e| a.program.ports[e.port.0 as usize].max_frame).collect();
        assert_eq!(frames, [1450 + 14, 1400 + 14], "there is room for a tunnel's headers");
    }

    /// A service of a tenant is at its host, and nobody elsewhere may claim its addresses; who has
    /// it too asks nobody.
    #[test]
    fn services_of_other_hosts_are_known() {
        const AT: &str = "service = [{ name = \"web\", tenant = \"red\", address = [\"10.0.0.100\", \"fd00::1\"] }]";
        const OWN: &str = "[[switch.tenant.service]]\nname = \"web\"\naddress = \"10.0.0.100:80\"\n\
                           [[switch.tenant.service.backend]]\nname = \"red1\"\nip = \"10.0.0.1\"\n[[switch]]\n";
        let far = TUNNELS.to_owned() + AT;
        let mac = crate::config::RemoteService {
            tenant: "red".to_owned(),
            ips: vec![[10, 0, 0, 100].into()],
            ..crate::config::RemoteService::default()
        }
        .mac();
        let red = datapath::program::TenantId(0);
        let far_address = std::net::IpAddr::from([192, 0, 2, 3]);
        let switches = plan(&far, None).switches;
        for switch in [&switches[0], &switches[1]] {
            assert_eq!(switch.program.overlay.remotes.get(&(red, mac)), Some(&far_address));
            let outside = &switch.program.tenants[0].outside;
            assert!(outside.macs.contains(&mac) && outside.ips.len() == 2, "{outside:?}");
        }
        // Switch a has it too.
        let both = far.replacen("[[switch]]\n        name = \"b\"", &(OWN.to_owned() + "name = \"b\""), 1);
        let switches = plan(&both, None).switches;
        assert_eq!(switches[0].program.services[0].mac, mac);
        assert_eq!(switches[0].program.overlay.remotes.get(&(red, mac)), None, "it is here");
        let beside = switches[1].program.overlay.remotes.get(&(red, mac));
        assert_eq!(beside, Some(&std::net::IpAddr::from([192, 0, 2, 1])), "the first that has it");
        // Without tunnels the addresses are kept all the same.
        let plain = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\nuplink = { port = \"packet://eth0\", rate = \"1 Gbit/s\" }\n\
                     [[switch.tenant]]\nname = \"red\"\nvlan = 5\n[cluster]\nhost = \"h\"\nlisten = \"192.0.2.9:7370\"\n\
                     [[cluster.member]]\nname = \"far\"\naddress = \"192.0.2.3:7370\"\n";
        let plan = plan(&(plain.to_owned() + AT), None);
        let elsewhere: Vec<_> = plan.switches[0].program.elsewhere.iter().copied().collect();
        assert_eq!(elsewhere, [(red, Elsewhere::Mac(mac))]);
        assert!(plan.switches[0].program.tenants[0].outside.macs.contains(&mac));
    }

    /// The addresses that endpoints of other hosts declare are theirs here too, tenant by tenant.
    #[test]
    fn ip_addresses_of_other_hosts_endpoints_are_known() {
        let text = "[daemon]\nname = \"t\"\n[[switch]]\nname = \"s\"\nuplink = { port = \"packet://eth0\", rate = \"1 Gbit/s\" }\n\
                    [[switch.tenant]]\nname = \"red\"\nvlan = \"untagged\"\n[[switch.tenant]]\nname = \"blue\"\nvlan = 5\n\
                    [[switch.tenant]]\nname = \"own\"\n[cluster]\nhost = \"h\"\nlisten = \"192.0.2.9:7370\"\n\
                    [[cluster.member]]\nname = \"h\"\naddress = \"192.0.2.9:7370\"\nendpoint = [\
                    { name = \"here\", tenant = \"red\", mac = \"02:00:00:00:00:01\", ip = \"10.0.0.1\" }]\n\
                    [[cluster.member]]\nname = \"far\"\naddress = \"192.0.2.3:7370\"\nendpoint = [\
                    { name = \"a\", tenant = \"red\", mac = \"02:00:00:00:00:02\", ip = [\"10.0.0.2\", \"fd00::2\"] },\
                    { name = \"b\", tenant = \"blue\", mac = \"02:00:00:00:00:02\", ip = \"10.0.0.3\" },\
                    { name = \"c\", tenant = \"own\", mac = \"02:00:00:00:00:02\", ip = \"10.0.0.4\" },\
                    { name = \"d\", tenant = \"else\", mac = \"02:00:00:00:00:02\", ip = \"10.0.0.5\" }]\n";
        let mac = Elsewhere::Mac(datapath::wire::Mac([2, 0, 0, 0, 0, 2]));
        let ip = |text: &str| Elsewhere::Ip(text.parse().unwrap());
        let (red, blue) = (datapath::program::TenantId(0), datapath::program::TenantId(1));
        let all = [(red, mac), (red, ip("10.0.0.2")), (red, ip("fd00::2")), (blue, mac), (blue, ip("10.0.0.3"))];
        let first = &plan(text, None).switches[0];
        assert_eq!(first.program.elsewhere.iter().copied().collect::<Vec<_>>(), all);
        // In tunnels too, where the MAC address has its place, and from a switch beside.
        let tunnels = TUNNELS
            .replace("mac = \"02:00:00:00:00:02\"", "mac = \"02:00:00:00:00:02\", ip = [\"10.0.0.2\", \"10.9.0.0/16\"]")
            .replace("mac = \"02:00:00:00:00:03\"", "mac = \"02:00:00:00:00:03\", ip = \"10.0.0.3\"");
        let first = &plan(&tunnels, None).switches[0];
        let all = [(red, ip("10.0.0.2")), (red, ip("10.0.0.3"))];
        assert_eq!(first.program.elsewhere.iter().copied().collect::<Vec<_>>(), all);
    }

    /// Over a bond the host has its address on a device behind the switch: next hops are asked
    /// there, and what its agents send goes ahead. Guests' packets are as long as one train, or as
    /// any where frames may go whole.
    #[test]
    fn tunnels_over_a_bond_end_at_a_device_of_the_host() {
        let text = include_str!("../../examples/tunnels-over-a-bond.toml");
        let whole = text.replace("balance-rr", "802.3ad");
        for (text, longest) in
            [(text, super::udp_gso::longest_offload(1450, &[192, 0, 2, 1].into())), (&whole, super::LONGEST_OFFLOAD)]
        {
            let plan = plan(text, None);
            let switch = &plan.switches[0];
            let underlay = switch.underlay.as_ref().unwrap();
            assert_eq!((&underlay.interface, underlay.is_endpoint), (&Some(("host0".to_owned(), None)), true));
            let agents = switch.program.endpoints[0].agent_traffic.expect("they are the host's");
            assert_eq!((agents.address.to_string().as_str(), agents.port), ("192.0.2.1", 7370));
            assert!(switch.program.endpoints[1].agent_traffic.is_none());
            let red = switch.program.endpoints[1].port;
            let PortKind::Tap(tap) = &switch.ports[red.0 as usize].kind else { panic!("it is a TAP") };
            assert_eq!((tap.mtu, tap.longest_offload), (1450, Some(longest)));
            assert!(switch.uplink_ports().unwrap().starts_with("packet://eth0, packet://eth1 ("));
        }
    }

    /// Members that are links of this daemon have no host to ask: both ends' addresses are known.
    #[test]
    fn tunnels_over_a_bond_of_links_ask_nobody() {
        let member = |link: &str| format!("{{ port = \"link://{link}/a\", rate = \"1 Gbit/s\" }}");
        let uplink = |ends: [&str; 2], vtep| {
            let members = ends.map(member).join(", ");
            format!("uplink = {{ vtep = \"{vtep}\", bond = {{ mode = \"balance-xor\", member = [{members}] }} }}")
        };
        let text = TUNNELS.replace(
            "uplink = { port = \"link://wa/a\", rate = \"1 Gbit/s\", vtep = \"192.0.2.1\" }",
            &uplink(["wa", "wc"], "192.0.2.1"),
        ) + "[[link]]\nname = \"wc\"\nrate = \"1 Gbit/s\"\n";
        let text = text.replace("trunk = true },\n            { name = \"pb\"", "trunk = true },\n            { name = \"pc\", port = \"link://wc/b\", trunk = true },\n            { name = \"pb\"");
        let plan = plan(&text, None);
        let (a, b) = (&plan.switches[0], &plan.switches[1]);
        assert_eq!(a.underlay.as_ref().unwrap().interface, None);
        let there = std::net::IpAddr::from([192, 0, 2, 2]);
        assert_eq!(a.program.overlay.peers[&there].next_hop, b.program.overlay.local.map(|local| local.mac));
        assert!(a.program.overlay.local.is_some());
    }

    /// Over IPv6 there are 20 bytes less, and what a store knows of the other IP version is left
    /// out by name.
    #[test]
    fn ends_of_tunnels_are_of_one_family() {
        use crate::config::{Member, Remote};
        use crate::plan::LeftOut;
        let text = TUNNELS.replace("192.0.2.", "2001:db8::");
        let loaded = crate::load(&text);
        assert!(loaded.plan.is_some(), "{:?}", loaded.problems);
        let mut config = loaded.config;
        let member = |name: &str, tenant: &str, vtep: &str| {
            let macs = vec![datapath::wire::Mac([2, 0, 0, 0, 0, 9])];
            let endpoints = vec![Remote { tenant: tenant.to_owned(), macs, ..Remote::default() }];
            Member { name: name.to_owned(), vtep: vtep.parse().ok(), endpoints, ..Member::default() }
        };
        let old = [member("old", "red", "192.0.2.9"), member("stranger", "else", "192.0.2.10")];
        config.cluster.as_mut().unwrap().members.extend(old);
        let plan = compile(&config, None);
        let (a, b) = (&plan.switches[0], &plan.switches[1]);
        let address = |last: u16| std::net::IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        let overlay = &a.program.overlay;
        assert_eq!(overlay.peers.keys().copied().collect::<Vec<_>>(), [address(2), address(3)]);
        assert_eq!(overlay.peers[&address(2)].next_hop, b.program.overlay.local.map(|local| local.mac));
        assert_ne!(overlay.local.map(|local| local.mac), b.program.overlay.local.map(|local| local.mac));
        assert_eq!(a.underlay.as_ref().unwrap().left_out, [LeftOut::Family("old".to_owned())]);
        let frames: Vec<u32> =
            a.program.endpoints.values().map(|e| a.program.ports[e.port.0 as usize].max_frame).collect();
        assert_eq!(frames, [1430 + 14, 1400 + 14]);
    }

    /// A store knows more than fits: what fits is used, and the rest is named.
    #[test]
    fn more_hosts_and_addresses_than_fit_are_left_out_by_name() {
        use crate::config::{Member, Remote};
        use crate::plan::LeftOut;
        use datapath::overlay::{MOST_PEERS, MOST_REMOTES};
        let mut config = crate::load(TUNNELS).config;
        let address = |n: u32| std::net::IpAddr::from((0x0a00_0000 + n).to_be_bytes());
        let mac = |n: u32| datapath::wire::Mac([[2, 9].as_slice(), &n.to_be_bytes()].concat().try_into().unwrap());
        let remote = |tenant: &str, macs| Remote { tenant: tenant.to_owned(), macs, ..Remote::default() };
        let member = |n: u32, endpoints| {
            let vtep = Some(address(n));
            Member { name: format!("h{n}"), vtep, endpoints, ..Member::default() }
        };
        let most = MOST_PEERS as u32;
        let members = &mut config.cluster.as_mut().unwrap().members;
        // Switch b and host far are there as well.
        members.extend((0..most).map(|n| member(n, vec![])));
        members.push(member(most, vec![remote("red", vec![mac(most)])]));
        let plan = |config: &crate::config::Config| compile(config, None).switches[0].clone();
        let a = plan(&config);
        let underlay = a.underlay.as_ref().unwrap();
        let named: Vec<_> = [most - 3, most - 2, most - 1].iter().map(|n| LeftOut::Host(format!("h{n}"))).collect();
        assert_eq!(underlay.left_out, named, "those without tenants of this switch");
        assert_eq!((a.program.overlay.peers.len(), underlay.hosts.len()), (MOST_PEERS, MOST_PEERS));
        assert_eq!(a.program.overlay.remotes.len(), 3);
        // Two more than fit, of the host that is asked last.
        let members = &mut config.cluster.as_mut().unwrap().members;
        members.truncate(members.len() - MOST_PEERS - 1);
        members.push(member(0, vec![remote("red", (0..MOST_REMOTES as u32).map(mac).collect())]));
        let a = plan(&config);
        assert_eq!(a.program.overlay.remotes.len(), MOST_REMOTES);
        assert_eq!(a.underlay.unwrap().left_out, [LeftOut::Addresses("h0".to_owned(), 2)]);
    }

    #[test]
    fn over_an_interface_the_host_is_asked_for_next_hops() {
        let text = TUNNELS.replace("link://wa/a", "packet://eth0").replace("link://wa/b", "tap://pa").replace(
            "[[switch]]\n        name = \"b\"",
            "[[switch.tenant]]\nname = \"ops\"\nvlan = \"untagged\"\nendpoint = [{ name = \"host\", port = \"host://eth0\" }]\n\
             [[switch]]\n        name = \"b\"",
        ).replace("[[link]]\n        name = \"wa\"\n        rate = \"1 Gbit/s\"\n", "");
        let a = plan(&text, None).switches[0].clone();
        assert_eq!(a.program.overlay.local, None);
        assert!(a.program.overlay.peers.values().all(|peer| peer.next_hop.is_none()));
        assert_eq!(a.underlay.unwrap().interface, Some(("eth0".to_owned(), None)));
    }

    #[test]
    fn an_endpoint_at_another_port_is_another() {
        let text = host(&["a", "b"]).replacen("tap://a\"\n", "tap://a\"\nnetns = \"n\"\n", 1);
        let first = plan(&text, None);
        let others = [("tap://a", "tap://c"), ("tap://a", "veth://a"), ("= \"n\"", "= \"m\""), ("netns = \"n\"", "")];
        for (port, other) in others {
            let text = text.replacen(port, other, 1);
            let second = plan(&text, Some(&first));
            assert_eq!(numbers(&second), [("b".into(), 1), ("a".into(), 2)], "{other}");
            let (before, program) = (&first.switches[0].program, &second.switches[0].program);
            let port = program.endpoints[2].port;
            assert!(before.ports.get(port.0).is_none(), "{other}: nobody had its port");
            let changes = program.changes_from(before).unwrap();
            assert!(changes.contains(&Change::Endpoint(datapath::program::EndpointId(0), None)), "{changes:?}");
            assert_eq!(plan(&text, Some(&second)), second, "{other}: once");
        }
        // What is set on the device that is there makes nobody another.
        let same = text.replacen("netns", "mtu = 1400\nring = 7\npersistent = true\nnetns", 1);
        assert_eq!(numbers(&plan(&same, Some(&first))), numbers(&first));
    }

    #[test]
    fn a_switch_with_another_order_is_another() {
        let first = plan(&host(&["a"]), None);
        let wf2q = host(&["a"]).replace("name = \"s\"", "name = \"s\"\norder = \"wf2q\"");
        let second = plan(&wf2q, Some(&first));
        assert_eq!(second.switches.iter().map(|(id, _)| id).collect::<Vec<_>>(), [1]);
        let third = plan(&wf2q, Some(&second));
        assert_eq!(third, second);
    }
}
