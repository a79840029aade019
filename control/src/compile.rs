//! Compiling a configuration without errors into a plan: names become numbers, defaults that depend on other values are filled in.

use crate::admission::tenant_guarantee;
use crate::config::{
    Config, DEFAULT_FLOOD, DEFAULT_HEADROOM_PPM, DEFAULT_LEARNED, DEFAULT_TRUNK_FLOOD, DEFAULT_TRUNK_LEARNED,
    DEFAULT_WEIGHT, Device, Endpoint, Knobs, Switch, Tenant,
};
use crate::names::Locator;
use crate::plan::{HostPlan, PacketPlan, Plan, PortKind, PortPlan, SwitchPlan, TapPlan, VdePlan};
use datapath::frame::{LARGE, PoolLimits, SMALL};
use datapath::link::LinkConfig;
use datapath::offload::OffloadSupport;
use datapath::program::{self, PortFeatures, PortId, Program, Share, TenantId, Uplink};
use datapath::units::{Both, Direction, Rate};
use std::collections::BTreeMap;

/// Bytes of an Ethernet header without tag.
const ETHERNET_HEADER: u32 = 14;

impl Switch {
    /// The headroom, in millionths.
    #[must_use]
    pub fn headroom(&self) -> u32 {
        self.headroom_ppm.unwrap_or(DEFAULT_HEADROOM_PPM)
    }
}

/// Compiles `config`, in which `check` found no error.
pub(crate) fn compile(config: &Config) -> Plan {
    Plan {
        name: config.daemon.name.clone(),
        spin: config.daemon.spin,
        pool: pool(config.daemon.memory_bytes),
        switches: config.switches.iter().map(|s| switch(config, s)).collect(),
        links: config.links.iter().enumerate().map(|(i, l)| (l.name.clone(), link(l, i))).collect(),
    }
}

/// A third of the memory for small frames, the rest for large ones, each bounded by what a token can number.
fn pool(memory_bytes: u64) -> PoolLimits {
    let buffers = |bytes: u64, size: usize| u32::try_from(bytes / size as u64).unwrap_or(u32::MAX / 4);
    PoolLimits { small: buffers(memory_bytes / 3, SMALL), large: buffers(memory_bytes / 3 * 2, LARGE) }
}

fn link(link: &crate::config::Link, number: usize) -> LinkConfig {
    LinkConfig {
        rate: link.rate,
        delay_ns: link.delay_ns,
        queue_bytes: link.queue_bytes,
        discipline: link.discipline,
        loss_ppm: link.loss_ppm,
        seed: number as u64,
    }
}

fn switch(config: &Config, switch: &Switch) -> SwitchPlan {
    let mut ports = Ports::new(config, switch);
    let uplink = switch.uplink.as_ref().map(|uplink| Uplink {
        port: ports.add(&uplink.device),
        rate: uplink.rate,
        headroom_ppm: switch.headroom(),
    });
    let mut endpoints = Vec::new();
    let mut names = Vec::new();
    for (t, tenant) in switch.tenants.iter().enumerate() {
        for e in &tenant.endpoints {
            endpoints.push(endpoint(e, TenantId(t as u32), ports.add(&e.device)));
            names.push(e.name.clone());
        }
    }
    SwitchPlan {
        name: switch.name.clone(),
        program: Program {
            order: switch.order,
            ingress: switch.ingress,
            uplink,
            tenants: switch.tenants.iter().map(tenant).collect(),
            endpoints: endpoints.into(),
            ports: ports.features.into(),
            fdb_age_ns: switch.fdb_age_ns,
        },
        tenants: switch.tenants.iter().map(|t| t.name.clone()).collect(),
        endpoints: names,
        ports: ports.plans,
    }
}

fn tenant(tenant: &Tenant) -> program::Tenant {
    let share = |d| Share { guarantee: tenant_guarantee(tenant, d), ..share(&tenant.knobs, d) };
    program::Tenant {
        attachment: tenant.attachment,
        share: Both { egress: share(Direction::Egress), ingress: share(Direction::Ingress) },
    }
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
        share: Both { egress: share(knobs, Direction::Egress), ingress: share(knobs, Direction::Ingress) },
        queue_bytes: endpoint.queue_bytes as u32,
        flood_per_second: endpoint.flood_per_second.unwrap_or(flood),
        max_learned: endpoint.max_learned.unwrap_or(learned),
    }
}

fn share(knobs: &Knobs, direction: Direction) -> Share {
    Share {
        guarantee: knobs.guarantee.get(direction).unwrap_or(Rate(0)),
        limit: knobs.limit.get(direction).unwrap_or(Rate::UNLIMITED),
        weight: knobs.weight.get(direction).unwrap_or(DEFAULT_WEIGHT),
    }
}

/// Numbers ports as they come.
struct Ports<'a> {
    config: &'a Config,
    /// Of VDE directories, whichever of their plugs says it.
    modes: BTreeMap<&'a str, u32>,
    groups: BTreeMap<&'a str, &'a String>,
    plans: Vec<PortPlan>,
    features: Vec<PortFeatures>,
}

impl<'a> Ports<'a> {
    fn new(config: &'a Config, switch: &'a Switch) -> Self {
        let endpoints = switch.tenants.iter().flat_map(|t| &t.endpoints).map(|e| &e.device);
        let (mut modes, mut groups) = (BTreeMap::new(), BTreeMap::new());
        for device in endpoints.chain(switch.uplink.iter().map(|u| &u.device)) {
            let Some(Locator::Vde(directory, _)) = &device.locator else { continue };
            modes.extend(device.mode.map(|mode| (directory.as_str(), mode)));
            groups.extend(device.group.as_ref().map(|group| (directory.as_str(), group)));
        }
        Ports { config, modes, groups, plans: Vec::new(), features: Vec::new() }
    }

    fn add(&mut self, device: &Device) -> PortId {
        // Only a wrong configuration has no locator, and that is not compiled.
        let locator = device.locator.clone().unwrap_or(Locator::Tap(String::new()));
        let kind = match &locator {
            Locator::Tap(name) => PortKind::Tap(TapPlan {
                name: name.clone(),
                netns: device.netns.clone(),
                mac: device.mac,
                mtu: device.mtu,
                addresses: device.addresses.clone(),
                ring: device.ring,
                ipv6: device.ipv6,
                persistent: device.persistent,
            }),
            Locator::Packet(name) => PortKind::Packet(PacketPlan {
                name: name.clone(),
                netns: device.netns.clone(),
                mtu: device.mtu,
                ring: device.ring,
                is_exclusive: self.config.has_host(name, device.netns.as_deref()),
            }),
            Locator::Host(name) => PortKind::Host(HostPlan {
                interface: name.clone(),
                netns: device.netns.clone(),
                ring: device.ring,
                is_absent: false,
            }),
            Locator::Link(name, side) => PortKind::Link {
                link: self.config.links.iter().position(|l| l.name == *name).unwrap_or(0),
                side: *side,
            },
            Locator::Vde(directory, plug) => PortKind::Vde(VdePlan {
                directory: directory.clone(),
                plug: *plug,
                hub: device.hub,
                mode: self.modes.get(directory.as_str()).copied(),
                group: self.groups.get(directory.as_str()).map(|&group| group.clone()),
                mtu: device.mtu,
            }),
        };
        // A datagram to a VDE client is one whole frame.
        let offload = if matches!(kind, PortKind::Vde(_)) { OffloadSupport::NONE } else { OffloadSupport::ALL };
        self.plans.push(PortPlan { locator, kind });
        self.features.push(PortFeatures { offload, max_frame: device.mtu + ETHERNET_HEADER });
        PortId(self.plans.len() as u32 - 1)
    }
}
