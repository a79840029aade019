//! Rack: the network in which the agents' scenarios play.
//!
//! Machines, each with a switch of Levada's and some endpoints on it, around a fabric. Every
//! machine's link has the same rate; towards the fabric the machine's own egress scheduler is the
//! bottleneck, towards the machine the drop-tail queue of the fabric's port is, which no scheduler
//! sees into. That is where an agent is needed.
//!
//! ```text
//! hosts - [ switch 0 ] ===== link 0 ===== +--------+ ===== link 2 ===== [ switch 2 ] - hosts
//! hosts - [ switch 1 ] ===== link 1 ===== | fabric | ===== link 3 ===== [ switch 3 ] - hosts
//! ```

use std::sync::Arc;

use agent::{Cluster, Directory, Settings};
use datapath::aqm::Discipline;
use datapath::guard::Identity;
use datapath::link::{LinkConfig, Side};
use datapath::program::{
    Attachment, Endpoint, EndpointId, IngressMode, OrderKind, PortFeatures, PortId, Program, Share, Slots, Tenant,
    TenantId, Uplink,
};
use datapath::stats::LaneStats;
use datapath::units::{Both, Rate};

use crate::fabric::FabricConfig;
use crate::mail::MailConfig;
use crate::packet::Nic;
use crate::topology::{AgentSpec, HostSpec, Plug, Topology};
use crate::world::World;

/// A full frame on the wire, in bytes.
const FULL_FRAME: u64 = 1538;
/// As bridges do by default (IEEE 802.1Q table 8-6).
const FDB_AGE_NS: u64 = 300_000_000_000;

/// No two agents read the same time: they started so long one after the other.
const CLOCKS_APART_NS: u64 = 3_600_000_123_457;

fn tenant_name(tenant: usize) -> String {
    format!("t{tenant}")
}

/// An endpoint of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its tenant.
    pub tenant: usize,
    /// What it is promised there, in both directions.
    pub share: Both<Share>,
}

impl Member {
    /// An endpoint that is promised `guarantee` of what arrives, and nothing of what it sends.
    #[must_use]
    pub fn receiver(tenant: usize, guarantee: Rate) -> Member {
        let ingress = Share { guarantee, ..Share::default() };
        Member { tenant, share: Both { ingress, egress: Share::default() } }
    }

    /// An endpoint that is promised nothing.
    #[must_use]
    pub fn sender(tenant: usize) -> Member {
        Member { tenant, share: Both::default() }
    }
}

/// The description of a rack.
#[derive(Clone, PartialEq, Debug)]
pub struct Rack {
    /// Of every machine's link.
    pub rate: Rate,
    /// Of every machine's link, one way, in nanoseconds.
    pub delay_ns: u64,
    /// Wire bytes that may wait at each of the fabric's ports; it drops what finds it full.
    pub fabric_queue_bytes: u32,
    /// What ingress holds back while tenants contend, in millionths.
    pub headroom_ppm: u32,
    /// Of every uplink, in nanoseconds.
    pub burst_ns: u64,
    /// Bound of each endpoint's queue in each direction.
    pub queue_bytes: u32,
    /// What every host can do.
    pub nic: Nic,
    /// Tenants; their guarantee on a machine is the sum of their endpoints' there.
    pub tenants: usize,
    /// The endpoints of every machine.
    pub machines: Vec<Vec<Member>>,
    /// What the agents are told; without it there are none.
    pub agents: Option<Settings>,
    /// The way between agents.
    pub mail: MailConfig,
}

impl Default for Rack {
    /// 1 Gbit/s, 256 KiB at each port of the fabric, 40 us there and back.
    fn default() -> Self {
        Rack {
            rate: Rate(Rate::GBIT),
            delay_ns: 10_000,
            fabric_queue_bytes: 256 << 10,
            headroom_ppm: 20_000,
            burst_ns: Uplink::BURST_NS,
            queue_bytes: 1 << 20,
            nic: Nic::default(),
            tenants: 2,
            machines: Vec::new(),
            agents: None,
            mail: MailConfig::default(),
        }
    }
}

impl Rack {
    /// The host that is an endpoint of a machine.
    #[must_use]
    pub fn host(&self, machine: usize, endpoint: usize) -> usize {
        self.machines[..machine].iter().map(Vec::len).sum::<usize>() + endpoint
    }

    /// The network, without flows.
    #[must_use]
    pub fn topology(&self) -> Topology {
        let mut topology = Topology { mail: self.mail, ..Topology::default() };
        for member in self.machines.iter().flatten() {
            let host = HostSpec { tenant: member.tenant as u16 + 1, nic: self.nic, ..HostSpec::default() };
            topology.hosts.push(host);
        }
        let mut behind = Vec::new();
        for (machine, members) in self.machines.iter().enumerate() {
            let uplink = PortId(members.len() as u32);
            let hosts = self.host(machine, 0)..self.host(machine, members.len());
            behind.push(hosts.clone().map(|host| topology.address(host).mac).collect());
            topology.switches.push(self.program(machine, &topology));
            topology.links.push(LinkConfig {
                rate: self.rate,
                delay_ns: self.delay_ns,
                queue_bytes: self.fabric_queue_bytes,
                discipline: Discipline::DropTail,
                ..LinkConfig::default()
            });
            topology.cables.push((Plug::Switch(machine, uplink), Plug::Link(machine, Side::A)));
            topology.cables.push((Plug::Link(machine, Side::B), Plug::Fabric(0, machine)));
            for (port, host) in hosts.enumerate() {
                topology.cables.push((Plug::Host(host), Plug::Switch(machine, PortId(port as u32))));
            }
        }
        topology.fabrics.push(FabricConfig { ports: behind, latency_ns: self.rate.time_ns(FULL_FRAME) });
        if let Some(settings) = &self.agents {
            topology.agents = self.agents(settings, &topology).into_iter().map(Some).collect();
        }
        topology
    }

    /// An agent for each machine; all know where every endpoint is.
    fn agents(&self, settings: &Settings, topology: &Topology) -> Vec<AgentSpec> {
        let mut cluster = Cluster::default();
        let names: Arc<[Arc<str>]> = (0..self.machines.len()).map(|m| cluster.add_host(&format!("m{m}"))).collect();
        for (machine, members) in self.machines.iter().enumerate() {
            for (place, member) in members.iter().enumerate() {
                let address = topology.address(self.host(machine, place));
                cluster.place(&names[machine], &tenant_name(member.tenant), address.mac);
            }
        }
        let cluster = Arc::new(cluster);
        let tenants: Slots<String> = (0..self.tenants).map(tenant_name).collect();
        let programs = topology.switches.iter().enumerate();
        let agent = |(place, program): (usize, &Program)| AgentSpec {
            settings: *settings,
            names: names.clone(),
            place,
            directory: Directory::new(cluster.clone(), program, &tenants),
            ahead_ns: place as u64 * CLOCKS_APART_NS,
        };
        programs.map(agent).collect()
    }

    /// What an endpoint was served of what arrived for it.
    #[must_use]
    pub fn arrived(&self, world: &World, machine: usize, endpoint: usize) -> LaneStats {
        world.switch(machine).endpoint_stats(EndpointId(endpoint as u32)).ingress
    }

    fn program(&self, machine: usize, topology: &Topology) -> Program {
        let members = &self.machines[machine];
        let endpoints = members.iter().enumerate().map(|(place, member)| {
            let address = topology.address(self.host(machine, place));
            Endpoint {
                identity: Identity { macs: vec![address.mac], ipv4: vec![(address.ip, 32)], ..Identity::default() },
                share: member.share,
                queue_bytes: self.queue_bytes,
                max_learned: 1024,
                ..Endpoint::new(TenantId(member.tenant as u32), PortId(place as u32))
            }
        });
        let tenants = (0..self.tenants).map(|tenant| {
            let share = |direction| {
                let its = members.iter().filter(|member| member.tenant == tenant);
                let sum = its.map(|member| member.share.get(direction).guarantee.0).sum();
                Share { guarantee: Rate(sum), ..Share::default() }
            };
            let [egress, ingress] = datapath::units::Direction::ALL.map(share);
            Tenant {
                attachment: Attachment::Vlan(10 + tenant as u16),
                share: Both { egress, ingress },
                ..Tenant::default()
            }
        });
        Program {
            order: OrderKind::Fair,
            ingress: IngressMode::Queue,
            uplink: Some(Uplink {
                headroom_ppm: self.headroom_ppm,
                burst_ns: self.burst_ns,
                ..Uplink::new(PortId(members.len() as u32), Both { egress: self.rate, ingress: self.rate })
            }),
            tenants: tenants.collect(),
            endpoints: endpoints.collect(),
            ports: vec![PortFeatures::default(); members.len() + 1].into(),
            fdb_age_ns: FDB_AGE_NS,
            ..Program::default()
        }
    }
}
