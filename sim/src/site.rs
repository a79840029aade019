//! Site: the network in which most scenarios play.
//!
//! One switch under test with tenants and endpoints, its uplink on a link of the same rate, and at
//! the far end a switch that holds one peer for each endpoint and does not get in the way. Towards
//! the far end the egress scheduler is the bottleneck; the other way the link's queue is, as the
//! port of a network's switch would be, unless ingress keeps below it.
//!
//! ```text
//! near hosts - [ switch 0, under test ] ===== link 0 ===== [ switch 1, fast ] - far hosts
//! ```

use datapath::aqm::Discipline;
use datapath::guard::Identity;
use datapath::link::{LinkConfig, Side};
use datapath::program::EndpointId;
use datapath::program::{
    Attachment, Endpoint, IngressMode, OrderKind, PortFeatures, PortId, Program, Share, Tenant, TenantId, Uplink,
};
use datapath::stats::LaneStats;
use datapath::units::{Both, Direction, Rate};

use crate::topology::{FlowSpec, HostSpec, Plug, Topology, Traffic};
use crate::world::World;

/// How much faster the far switch is than the link.
const FAR_SPEED: u64 = 10;
/// Bound of its queues, which hold nothing for long.
const FAR_QUEUE_BYTES: u32 = 16 << 20;
/// As bridges do by default (IEEE 802.1Q table 8-6).
const FDB_AGE_NS: u64 = 300_000_000_000;

/// A tenant of the switch under test.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TenantSpec {
    /// Its guarantee, limit and weight. Its guarantee is raised to the sum of its endpoints'.
    pub share: Both<Share>,
    /// Its endpoints'.
    pub endpoints: Vec<Both<Share>>,
}

impl TenantSpec {
    /// A tenant with `endpoints` equal endpoints and a weight.
    #[must_use]
    pub fn weighted(weight: u32, endpoints: usize) -> TenantSpec {
        let share = Share { weight, ..Share::default() };
        TenantSpec { share: both(share), endpoints: vec![both(Share::default()); endpoints] }
    }
}

/// The same for both directions.
#[must_use]
pub fn both<T: Copy>(value: T) -> Both<T> {
    Both { egress: value, ingress: value }
}

/// The description of a site.
#[derive(Clone, PartialEq, Debug)]
pub struct Site {
    /// The order in which queues share the uplink.
    pub order: OrderKind,
    /// What is done with what arrives.
    pub ingress: IngressMode,
    /// The uplink's rate.
    pub rate: Rate,
    /// The link's, where it is not the same: then the network is not the bottleneck on ingress.
    pub link_rate: Option<Rate>,
    /// What ingress holds back, in millionths.
    pub headroom_ppm: u32,
    /// One way, in nanoseconds.
    pub delay_ns: u64,
    /// The link's queue, in bytes.
    pub link_queue_bytes: u32,
    /// What the link's queue does.
    pub discipline: Discipline,
    /// Bound of each endpoint's queue in each direction.
    pub queue_bytes: u32,
    /// What hosts are like; the tenant is filled in.
    pub host: HostSpec,
    /// Who is there.
    pub tenants: Vec<TenantSpec>,
}

impl Default for Site {
    /// 1 Gbit/s, 50 us away, with hosts that offload.
    fn default() -> Self {
        Site {
            order: OrderKind::Fair,
            ingress: IngressMode::Queue,
            rate: Rate(Rate::GBIT),
            link_rate: None,
            headroom_ppm: 20_000,
            delay_ns: 50_000,
            link_queue_bytes: 256 << 10,
            discipline: Discipline::DropTail,
            queue_bytes: 1 << 20,
            host: HostSpec::default(),
            tenants: Vec::new(),
        }
    }
}

impl Site {
    /// The host of an endpoint on the switch under test.
    #[must_use]
    pub fn near(&self, tenant: usize, endpoint: usize) -> usize {
        self.tenants[..tenant].iter().map(|spec| spec.endpoints.len()).sum::<usize>() + endpoint
    }

    /// The host at the far end that is this endpoint's peer.
    #[must_use]
    pub fn far(&self, tenant: usize, endpoint: usize) -> usize {
        self.endpoints() + self.near(tenant, endpoint)
    }

    /// Endpoints of the switch under test.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.tenants.iter().map(|spec| spec.endpoints.len()).sum()
    }

    /// The network, without flows.
    #[must_use]
    pub fn topology(&self) -> Topology {
        let mut topology = Topology::default();
        for _ in 0..2 {
            for (tenant, spec) in self.tenants.iter().enumerate() {
                let host = HostSpec { tenant: tenant as u16 + 1, ..self.host };
                topology.hosts.extend(spec.endpoints.iter().map(|_| host));
            }
        }
        topology.links.push(LinkConfig {
            rate: self.link_rate.unwrap_or(self.rate),
            delay_ns: self.delay_ns,
            queue_bytes: self.link_queue_bytes,
            discipline: self.discipline,
            ..LinkConfig::default()
        });
        let ports = self.endpoints() as u32;
        for (switch, side) in Side::ALL.into_iter().enumerate() {
            let program = self.program(switch, &topology);
            topology.switches.push(program);
            topology.cables.push((Plug::Switch(switch, PortId(ports)), Plug::Link(0, side)));
            for port in 0..ports {
                let host = switch * ports as usize + port as usize;
                topology.cables.push((Plug::Host(host), Plug::Switch(switch, PortId(port))));
            }
        }
        topology
    }

    /// The same hosts and the same link between switches that only forward: no tenant, no queue but
    /// the link's.
    #[must_use]
    pub fn plain_topology(&self) -> Topology {
        let mut topology = self.topology();
        topology.hosts.iter_mut().for_each(|host| host.tenant = 1);
        for switch in 0..2 {
            let hosts = switch * self.endpoints()..(switch + 1) * self.endpoints();
            let mut endpoints: Vec<Endpoint> = hosts.map(|host| open_endpoint(identity(&topology, host))).collect();
            // The far hosts' addresses are declared: nobody in here answers before it is asked.
            let others = (1 - switch) * self.endpoints()..(2 - switch) * self.endpoints();
            let macs = others.map(|host| topology.address(host).mac).collect();
            endpoints.push(Endpoint { trunk: true, ..open_endpoint(Identity { macs, ..Identity::default() }) });
            for (port, endpoint) in endpoints.iter_mut().enumerate() {
                endpoint.port = PortId(port as u32);
            }
            topology.switches[switch] = Program {
                tenants: vec![Tenant::default()].into(),
                ports: vec![PortFeatures::default(); endpoints.len()].into(),
                endpoints: endpoints.into(),
                fdb_age_ns: FDB_AGE_NS,
                ..Program::default()
            };
        }
        topology
    }

    /// A flow of an endpoint: to its peer on egress, from it on ingress.
    #[must_use]
    pub fn flow(&self, direction: Direction, tenant: usize, endpoint: usize, traffic: Traffic) -> FlowSpec {
        let (near, far) = (self.near(tenant, endpoint), self.far(tenant, endpoint));
        match direction {
            Direction::Egress => FlowSpec::new(near, far, traffic),
            Direction::Ingress => FlowSpec::new(far, near, traffic),
        }
    }

    /// Counters of one endpoint of the switch under test.
    #[must_use]
    pub fn lane(&self, world: &World, direction: Direction, tenant: usize, endpoint: usize) -> LaneStats {
        let stats = world.switch(0).endpoint_stats(EndpointId(self.near(tenant, endpoint) as u32));
        match direction {
            Direction::Egress => stats.egress,
            Direction::Ingress => stats.ingress,
        }
    }

    /// Wire bytes of every endpoint of the switch under test in one direction so far, tenant by
    /// tenant.
    #[must_use]
    pub fn wire_bytes(&self, world: &World, direction: Direction) -> Vec<Vec<u64>> {
        let tenants = self.tenants.iter().enumerate();
        tenants
            .map(|(tenant, spec)| {
                let endpoints = 0..spec.endpoints.len();
                endpoints.map(|e| self.lane(world, direction, tenant, e).traffic.wire_bytes).collect()
            })
            .collect()
    }

    /// The program of the switch under test, or of the far one: same networks, nothing promised.
    fn program(&self, switch: usize, topology: &Topology) -> Program {
        let far = switch == 1;
        let fast = self.rate.scaled(FAR_SPEED, 1);
        let mut endpoints = Vec::new();
        let mut tenants = Vec::new();
        for (t, spec) in self.tenants.iter().enumerate() {
            for &share in &spec.endpoints {
                let host = switch * self.endpoints() + endpoints.len();
                endpoints.push(Endpoint {
                    tenant: TenantId(t as u32),
                    port: PortId(endpoints.len() as u32),
                    share: if far { Both::default() } else { share },
                    queue_bytes: if far { FAR_QUEUE_BYTES } else { self.queue_bytes },
                    ..open_endpoint(identity(topology, host))
                });
            }
            let share = if far { Both::default() } else { spec.promised() };
            tenants.push(Tenant { attachment: Attachment::Vlan(10 + t as u16), share, ..Tenant::default() });
        }
        let ports = vec![PortFeatures::default(); endpoints.len() + 1];
        Program {
            order: self.order,
            ingress: if far { IngressMode::Queue } else { self.ingress },
            uplink: Some(Uplink {
                headroom_ppm: if far { 0 } else { self.headroom_ppm },
                ..Uplink::new(PortId(endpoints.len() as u32), both(if far { fast } else { self.rate }))
            }),
            tenants: tenants.into(),
            endpoints: endpoints.into(),
            ports: ports.into(),
            fdb_age_ns: FDB_AGE_NS,
            ..Program::default()
        }
    }
}

impl TenantSpec {
    /// Its share, with the guarantee at least the sum of its endpoints'.
    #[must_use]
    pub fn promised(&self) -> Both<Share> {
        let raised = |direction: Direction| {
            let share = *self.share.get(direction);
            let sum: u64 = self.endpoints.iter().map(|endpoint| endpoint.get(direction).guarantee.0).sum();
            Share { guarantee: share.guarantee.max(Rate(sum)), ..share }
        };
        Both { egress: raised(Direction::Egress), ingress: raised(Direction::Ingress) }
    }
}

/// An endpoint of the first tenant without any promise.
fn open_endpoint(identity: Identity) -> Endpoint {
    Endpoint { identity, queue_bytes: FAR_QUEUE_BYTES, max_learned: 1024, ..Endpoint::new(TenantId(0), PortId(0)) }
}

fn identity(topology: &Topology, host: usize) -> Identity {
    let address = topology.address(host);
    Identity { macs: vec![address.mac], ipv4: vec![(address.ip, 32)], ..Identity::default() }
}
