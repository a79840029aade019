//! A small world as fluids: senders on hosts of their own, the network's queue before one receiving
//! host, and the real agents of all, which talk over a network that may lose, double and delay what
//! they say. It moves in steps of [`STEP_NS`]; the packets are `sim`'s business.

use agent::Agent;
use agent::directory::{Cluster, Directory};
use agent::events::{Arrival, QueueSample, Toward, Tuning};
use agent::settings::{ControllerKind, Settings};
use datapath::guard::Identity;
use datapath::program::{Attachment, Endpoint, EndpointId, PortId, Program, Share, Slots, Tenant, TenantId, Uplink};
use datapath::service::{Backend, Service};
use datapath::units::{Both, Instant, Rate};
use datapath::wire::Mac;
use sim::random::Random;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Bits a second in one Mbit/s.
pub const MBIT: f64 = 1e6;
/// The receiving host's link.
pub const LINK: f64 = 1000.0 * MBIT;
/// Part of it that is held back under contention, in millionths.
pub const HEADROOM_PPM: u32 = 20_000;
/// The network's queue before it, in bytes.
pub const FABRIC: f64 = 262_144.0;
/// One step.
pub const STEP_NS: u64 = 50_000;
/// The least that arrives at once: a full frame with preamble, FCS and gap.
const FRAME: f64 = 1538.0;
/// Round trip of TCP without queues.
const RTT_NS: u64 = 500_000;
/// One millisecond.
pub const MS: u64 = 1_000_000;

/// What a sender would send.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// So much, whatever becomes of it.
    Open(f64),
    /// As much as gets through: doubles each round trip until something is lost, then grows by a
    /// segment, and halves where something is lost.
    Tcp,
    /// So many bytes at line rate, then a pause, so that the mean is this rate.
    Bursts { rate: f64, bytes: f64 },
}

/// A sender to one of the receiving host's endpoints.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Number of its host, from 1 on.
    pub host: usize,
    /// Number of the endpoint that it sends to.
    pub to: u32,
    pub load: Load,
    /// Whether its host's switch does what its agent says.
    pub heeds: bool,
    pub mac: Mac,
    /// The number of its endpoint at its host.
    pub id: EndpointId,
    /// Where its frames go by their address: to its receiver, or to a service.
    pub wire_to: Mac,
    /// What its host's switch was told to hold it to, of what it sends to this receiver and to
    /// everyone, in bits a second.
    pair: f64,
    all: f64,
    /// Bytes that it sent, that arrived, and that were lost in the network.
    pub sent: f64,
    pub arrived: f64,
    pub lost: f64,
    carry: f64,
    counted: f64,
    tcp: Tcp,
}

#[derive(Clone, Debug)]
struct Tcp {
    rate: f64,
    slow_start: bool,
    turn: u64,
    lost: bool,
}

/// What agents' messages suffer.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss_ppm: u32,
    pub double_ppm: u32,
    pub delay_ns: u64,
    pub jitter_ns: u64,
    /// Nothing passes.
    pub parted: bool,
}

/// One endpoint of the receiving host: its tenant's name, and guarantee, limit, weight in Mbit/s.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    pub tenant: &'static str,
    pub guarantee: f64,
    pub limit: f64,
    pub weight: u32,
}

impl Receiver {
    pub fn of(tenant: &'static str, guarantee: f64) -> Receiver {
        Receiver { tenant, guarantee, limit: f64::INFINITY, weight: 1 }
    }
}

/// The world.
pub struct World {
    pub now: u64,
    pub flows: Vec<Flow>,
    pub agents: Vec<Agent>,
    pub faults: Faults,
    pub settings: Settings,
    pub receivers: Vec<Receiver>,
    /// Limits in force, by host, sending endpoint.
    pub limits: BTreeMap<(usize, EndpointId, Toward), f64>,
    /// Datagrams by the host that sent them, and the longest.
    pub datagrams: Vec<u64>,
    pub longest: usize,
    /// What the receiving host's link carries now.
    pub link: f64,
    /// Bytes that wait in the network.
    pub standing: f64,
    fabric: VecDeque<(f64, Vec<f64>)>,
    /// Bytes that have arrived and are no whole frame yet.
    uncounted: f64,
    mail: Vec<(u64, usize, usize, Vec<u8>)>,
    /// Bytes in each ingress queue, dropped since the last sample, and whose were dropped last.
    queues: Vec<(f64, f64, Option<Mac>)>,
    sampled: u64,
    random: Random,
    pub lives: u64,
    /// Endpoints that are backends of the receiving host's service, which is of their tenant.
    backends: Vec<u32>,
    /// How many addresses a receiver has, where it has several.
    addresses: BTreeMap<u32, u8>,
    /// Whose the senders are, where all share the untagged network; else each is of its receiver's
    /// tenant.
    guests: Option<&'static str>,
}

/// The address of the service, where there is one.
pub const SERVICE: Mac = Mac([2, 0, 0, 3, 0, 0]);

/// The address of a receiving endpoint.
pub fn receiver_mac(endpoint: u32) -> Mac {
    Mac([2, 0, 0, 1, (endpoint >> 8) as u8, endpoint as u8])
}

fn sender_mac(flow: usize) -> Mac {
    Mac([2, 0, 0, 2, (flow >> 8) as u8, flow as u8])
}

/// The name of a host; the receiving one is number 0.
pub fn host_name(host: usize) -> String {
    format!("h{host}")
}

fn both<T: Copy>(value: T) -> Both<T> {
    Both { egress: value, ingress: value }
}

fn rate(mbit: f64) -> Rate {
    if mbit.is_finite() { Rate((mbit * MBIT) as u64) } else { Rate::UNLIMITED }
}

impl World {
    /// A world in which `flows` (host, receiving endpoint, load) send to `receivers`.
    pub fn new(receivers: &[Receiver], flows: &[(usize, u32, Load)]) -> World {
        World::with(Settings::default(), receivers, flows)
    }

    /// The same under a controller.
    pub fn under(controller: ControllerKind, receivers: &[Receiver], flows: &[(usize, u32, Load)]) -> World {
        World::with(Settings { controller, ..Settings::default() }, receivers, flows)
    }

    fn with(settings: Settings, receivers: &[Receiver], flows: &[(usize, u32, Load)]) -> World {
        let hosts = flows.iter().map(|flow| flow.0).max().unwrap_or(0) + 1;
        let tcp = Tcp { rate: 10.0 * FRAME * 8e9 / RTT_NS as f64, slow_start: true, turn: 0, lost: false };
        let flow = |(index, &(host, to, load)): (usize, &(usize, u32, Load))| Flow {
            host,
            to,
            load,
            heeds: true,
            mac: sender_mac(index),
            id: EndpointId(flows[..index].iter().filter(|other| other.0 == host).count() as u32),
            wire_to: receiver_mac(to),
            pair: f64::INFINITY,
            all: f64::INFINITY,
            sent: 0.0,
            arrived: 0.0,
            lost: 0.0,
            carry: 0.0,
            counted: 0.0,
            tcp: tcp.clone(),
        };
        let mut world = World {
            now: 1_000_000_000,
            flows: flows.iter().enumerate().map(flow).collect(),
            agents: Vec::new(),
            faults: Faults { loss_ppm: 0, double_ppm: 0, delay_ns: 200_000, jitter_ns: 100_000, parted: false },
            settings,
            receivers: receivers.to_vec(),
            limits: BTreeMap::new(),
            datagrams: vec![0; hosts],
            longest: 0,
            link: LINK,
            standing: 0.0,
            fabric: VecDeque::new(),
            uncounted: 0.0,
            mail: Vec::new(),
            queues: vec![(0.0, 0.0, None); receivers.len()],
            sampled: 1_000_000_000,
            random: Random::new(7),
            lives: 1,
            backends: Vec::new(),
            addresses: BTreeMap::new(),
            guests: None,
        };
        world.agents = (0..hosts).map(|host| world.agent(host)).collect();
        world
    }

    /// The same where all share the untagged network, and the senders are a tenant's that the
    /// receiving host does not have.
    pub fn flat(mut self, guests: &'static str) -> World {
        self.guests = Some(guests);
        self.agents = (0..self.agents.len()).map(|host| self.agent(host)).collect();
        self
    }

    /// The same with a service of which these endpoints are the backends. Who sends to them sends
    /// to the service; a sender of several flows is one endpoint.
    pub fn serving(mut self, backends: &[u32]) -> World {
        self.backends = backends.to_vec();
        for at in 0..self.flows.len() {
            if !backends.contains(&self.flows[at].to) {
                continue;
            }
            self.flows[at].wire_to = SERVICE;
            let first = self.flows.iter().position(|one| one.host == self.flows[at].host && one.wire_to == SERVICE);
            let (mac, id) = first
                .map_or((self.flows[at].mac, self.flows[at].id), |first| (self.flows[first].mac, self.flows[first].id));
            (self.flows[at].mac, self.flows[at].id) = (mac, id);
        }
        self.agents = (0..self.agents.len()).map(|host| self.agent(host)).collect();
        self
    }

    /// The same where a receiver has so many addresses. A sender's flows to it are one endpoint's,
    /// each to the next address.
    pub fn with_addresses(mut self, receiver: u32, addresses: u8) -> World {
        self.addresses.insert(receiver, addresses);
        for at in 0..self.flows.len() {
            let is_beside = |one: &Flow| one.host == self.flows[at].host && one.to == receiver;
            if self.flows[at].to != receiver {
                continue;
            }
            let nth = self.flows[..at].iter().filter(|one| is_beside(one)).count();
            let first = self.flows.iter().find(|one| is_beside(one)).expect("itself");
            let (mac, id) = (first.mac, first.id);
            self.flows[at].wire_to = self.receiver_macs(receiver)[nth % usize::from(addresses)];
            (self.flows[at].mac, self.flows[at].id) = (mac, id);
        }
        self.agents = (0..self.agents.len()).map(|host| self.agent(host)).collect();
        self
    }

    /// The addresses of a receiving endpoint.
    fn receiver_macs(&self, endpoint: u32) -> Vec<Mac> {
        let Mac([a, b, c, d, high, low]) = receiver_mac(endpoint);
        let addresses = self.addresses.get(&endpoint).copied().unwrap_or(1);
        (0..addresses).map(|n| Mac([a, b, c, d + 16 * n, high, low])).collect()
    }

    fn agent(&self, host: usize) -> Agent {
        Agent::new(self.settings, &host_name(host), self.lives, self.directory(host, &self.cluster()))
    }

    /// Where everyone is.
    pub fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::default();
        for (index, receiver) in self.receivers.iter().enumerate() {
            for mac in self.receiver_macs(index as u32) {
                cluster.place(&host_name(0), receiver.tenant, mac);
            }
        }
        if let Some(&first) = self.backends.first() {
            cluster.place(&host_name(0), self.receivers[first as usize].tenant, SERVICE);
        }
        for flow in &self.flows {
            let tenant = self.guests.unwrap_or(self.receivers[flow.to as usize].tenant);
            cluster.place(&host_name(flow.host), tenant, flow.mac);
        }
        cluster
    }

    /// What a host's agent knows.
    pub fn directory(&self, host: usize, cluster: &Cluster) -> Directory {
        let mut program = Program::default();
        let mut names: Slots<String> = Slots::default();
        program.uplink = Some(Uplink { headroom_ppm: HEADROOM_PPM, ..Uplink::new(PortId(0), both(rate(LINK / MBIT))) });
        let mut tenants: Vec<&str> = self.receivers.iter().map(|receiver| receiver.tenant).collect();
        tenants.dedup();
        if let Some(guests) = self.guests.filter(|_| host != 0) {
            tenants = vec![guests];
        }
        for (name, vlan) in tenants.iter().zip(1..) {
            let guarantee = self.receivers.iter().filter(|r| r.tenant == *name).map(|r| r.guarantee).sum();
            let share =
                if host == 0 { Share { guarantee: rate(guarantee), ..Share::default() } } else { Share::default() };
            let attachment = self.guests.map_or(Attachment::Vlan(vlan), |_| Attachment::Untagged);
            program.tenants.push(Tenant { attachment, share: both(share), ..Tenant::default() });
            names.push((*name).to_string());
        }
        let endpoint = |macs, receiver: &Receiver, share| Endpoint {
            identity: Identity { macs, ..Identity::default() },
            share: both(share),
            max_learned: 64,
            ..Endpoint::new(
                TenantId(tenants.iter().position(|name| *name == receiver.tenant).unwrap_or(0) as u32),
                PortId(1),
            )
        };
        if host == 0 {
            for (index, receiver) in self.receivers.iter().enumerate() {
                let share =
                    Share { guarantee: rate(receiver.guarantee), limit: rate(receiver.limit), weight: receiver.weight };
                program.endpoints.push(endpoint(self.receiver_macs(index as u32), receiver, share));
            }
        }
        for (flow, id) in self.flows.iter().filter(|flow| flow.host == host).zip(0..) {
            let receiver = &self.receivers[flow.to as usize];
            if flow.id == EndpointId(id) {
                program.endpoints.push(endpoint(vec![flow.mac], receiver, Share::default()));
            }
        }
        if let (0, Some(&first)) = (host, self.backends.first()) {
            let backend = |&id: &u32| Backend {
                ipv4: None,
                ipv6: None,
                mac: receiver_mac(id),
                port: None,
                weight: 1,
                drain_ns: 0,
                cores: 1,
                max_connections: None,
                endpoint: Some(EndpointId(id)),
            };
            let tenant = program.endpoints[first as usize].tenant;
            let backends = self.backends.iter().map(backend).collect();
            program.services.push(Service { tenant, mac: SERVICE, backends, ..Service::default() });
        }
        Directory::new(Arc::new(cluster.clone()), &program, &names)
    }

    /// The receiving host's agent dies and a new one starts.
    pub fn restart_receiver(&mut self) {
        self.lives += 1;
        self.agents[0] = self.agent(0);
    }

    /// The receiving host's link becomes slower or faster, and its switch knows.
    pub fn set_link(&mut self, link: f64) {
        self.link = link;
        self.agents[0].set_link(both(Rate(link as u64)));
    }

    /// What holds a flow back, in bits a second.
    pub fn limit(&self, flow: usize) -> Option<f64> {
        let flow = &self.flows[flow];
        Some(flow.pair.min(flow.all)).filter(|rate| rate.is_finite())
    }

    /// Lets `ns` pass.
    pub fn run(&mut self, ns: u64) {
        let until = self.now + ns;
        while self.now < until {
            self.step();
        }
    }

    /// Lets `ns` pass; what arrived of each flow meanwhile, in bits a second.
    pub fn measure(&mut self, ns: u64) -> Vec<f64> {
        let before: Vec<f64> = self.flows.iter().map(|flow| flow.arrived).collect();
        self.run(ns);
        let arrived = |(flow, before): (&Flow, f64)| (flow.arrived - before) * 8e9 / ns as f64;
        self.flows.iter().zip(before).map(arrived).collect()
    }

    /// The same by receiving endpoint.
    pub fn shares(&mut self, ns: u64) -> Vec<f64> {
        let rates = self.measure(ns);
        let mut shares = vec![0.0; self.receivers.len()];
        for (flow, rate) in self.flows.iter().zip(rates) {
            shares[flow.to as usize] += rate;
        }
        shares
    }

    fn step(&mut self) {
        self.now += STEP_NS;
        let offered: Vec<f64> = (0..self.flows.len()).map(|flow| self.offer(flow)).collect();
        self.forward(&offered);
        if self.settings.controller == ControllerKind::Gatekeeper {
            self.drain();
        }
        if self.now - self.sampled >= MS {
            self.sample();
        }
        self.deliver();
        for host in 1..self.agents.len() {
            if self.agents[host].poll_timeout().is_some_and(|at| at.0 <= self.now) {
                self.agents[host].advance(Instant(self.now));
            }
        }
        for host in 0..self.agents.len() {
            self.collect(host);
        }
    }

    /// The part of what is let through toward a service that a flow has, of all that its sender has
    /// there.
    fn part(&self, index: usize) -> f64 {
        let wanted = |flow: &Flow| if let Load::Open(rate) = flow.load { rate } else { 0.0 };
        let flow = &self.flows[index];
        let beside = self.flows.iter().filter(|other| other.wire_to == SERVICE && other.mac == flow.mac);
        let all: f64 = beside.map(wanted).sum();
        if flow.wire_to == SERVICE && all > 0.0 { wanted(flow) / all } else { 1.0 }
    }

    /// Bytes that a flow sends in this step.
    fn offer(&mut self, index: usize) -> f64 {
        let limit = self.limit(index).map_or(f64::INFINITY, |limit| limit * self.part(index)).min(LINK);
        let now = self.now;
        let flow = &mut self.flows[index];
        let limit = if flow.heeds { limit } else { LINK };
        let wanted = match flow.load {
            Load::Open(rate) => rate,
            Load::Bursts { rate, bytes } => {
                let period = bytes * 8e9 / rate;
                let burst = bytes * 8e9 / LINK;
                if (now as f64) % period < burst { LINK } else { 0.0 }
            }
            Load::Tcp => {
                if now >= flow.tcp.turn {
                    flow.tcp.turn = now + RTT_NS;
                    if std::mem::take(&mut flow.tcp.lost) {
                        flow.tcp.rate = (flow.tcp.rate / 2.0).max(FRAME * 8e9 / RTT_NS as f64);
                        flow.tcp.slow_start = false;
                    } else if flow.tcp.slow_start {
                        flow.tcp.rate *= 2.0;
                    } else {
                        flow.tcp.rate += FRAME * 8e9 / RTT_NS as f64 / 10.0;
                    }
                }
                if flow.tcp.rate > limit {
                    (flow.tcp.rate, flow.tcp.slow_start) = (limit, false);
                }
                flow.tcp.rate
            }
        };
        let bytes = wanted.min(limit) * STEP_NS as f64 / 8e9;
        flow.sent += bytes;
        bytes
    }

    /// The network's queue is full of what a flow sent.
    pub fn fill_network(&mut self, flow: usize) {
        let bytes = FABRIC - self.standing;
        let parcel = (0..self.flows.len()).map(|other| if other == flow { bytes } else { 0.0 }).collect();
        self.fabric.push_back((bytes, parcel));
        self.standing = FABRIC;
    }

    /// The network: one queue, first come first served, which drops what does not fit, of everyone
    /// alike.
    fn forward(&mut self, offered: &[f64]) {
        let drains = self.link * STEP_NS as f64 / 8e9;
        let total: f64 = offered.iter().sum();
        let room = (FABRIC + drains - self.standing).max(0.0);
        let passes = if total > room { room / total } else { 1.0 };
        for (flow, bytes) in self.flows.iter_mut().zip(offered) {
            flow.lost += bytes * (1.0 - passes);
            flow.tcp.lost |= passes < 1.0 && *bytes > 0.0;
        }
        let parcel: Vec<f64> = offered.iter().map(|bytes| bytes * passes).collect();
        self.standing += total * passes;
        self.fabric.push_back((total * passes, parcel));
        let mut left = drains;
        while left > 0.0 {
            let Some((bytes, parcel)) = self.fabric.front_mut() else { break };
            let part = if *bytes > left { left / *bytes } else { 1.0 };
            let gone = *bytes * part;
            for (flow, bytes) in self.flows.iter_mut().zip(parcel.iter_mut()) {
                flow.carry += *bytes * part;
                flow.arrived += *bytes * part;
                let queue = &mut self.queues[flow.to as usize];
                queue.0 += *bytes * part;
                *bytes *= 1.0 - part;
            }
            *bytes -= gone;
            self.standing -= gone;
            left -= gone;
            if part < 1.0 {
                break;
            }
            self.fabric.pop_front();
        }
        // Frames come one after the other, and are counted when they are whole.
        self.uncounted += drains - left;
        while self.uncounted >= FRAME {
            self.uncounted -= FRAME;
            let fullest = self.flows.iter_mut().max_by(|a, b| a.carry.total_cmp(&b.carry)).expect("something arrived");
            fullest.carry -= FRAME;
            fullest.counted += FRAME;
        }
    }

    /// The ingress queues: drained by the ideal, bounded as Gatekeeper's.
    fn drain(&mut self) {
        const BOUND: f64 = 160.0 * FRAME;
        let as_rate = 8e9 / STEP_NS as f64;
        let tenants: Vec<sim::fluid::Tenant> = self
            .receivers
            .iter()
            .zip(&self.queues)
            .map(|(receiver, queue)| {
                let claim = sim::fluid::Claim {
                    guarantee: receiver.guarantee * MBIT,
                    demand: queue.0 * as_rate,
                    ..Default::default()
                };
                sim::fluid::Tenant { claim, endpoints: vec![claim] }
            })
            .collect();
        let capacity = self.link * (1.0 - f64::from(HEADROOM_PPM) / 1e6);
        for (at, shares) in sim::fluid::solve(capacity, &tenants).iter().enumerate() {
            let queue = &mut self.queues[at];
            queue.0 = (queue.0 - shares.rate / as_rate).max(0.0);
            if queue.0 > BOUND {
                queue.1 += queue.0 - BOUND;
                queue.0 = BOUND;
                let senders: Vec<Mac> =
                    self.flows.iter().filter(|f| f.to as usize == at && f.sent > 0.0).map(|f| f.mac).collect();
                queue.2 = Some(*self.random.pick(&senders));
            }
        }
    }

    fn sample(&mut self) {
        let span = self.now - self.sampled;
        self.sampled = self.now;
        let mut arrivals: Vec<Arrival> = Vec::new();
        for flow in &mut self.flows {
            let bytes = std::mem::take(&mut flow.counted) as u64;
            if bytes > 0 {
                let to = EndpointId(flow.to);
                let known = arrivals.iter_mut().find(|one| one.to == to && one.from == Some(flow.mac));
                if let Some(known) = known {
                    known.wire_bytes += bytes;
                    continue;
                }
                arrivals.push(Arrival { to, from: Some(flow.mac), wire_bytes: bytes, dropped_bytes: 0 });
            }
        }
        let queues = self.queues.iter_mut().enumerate().map(|(at, queue)| QueueSample {
            endpoint: EndpointId(at as u32),
            arrived_bytes: 1,
            dropped_bytes: std::mem::take(&mut queue.1) as u64,
            last_dropped: queue.2,
            backlog_bytes: queue.0 as u64,
        });
        let queues: Vec<QueueSample> = queues.collect();
        self.agents[0].sample(Instant(self.now), span, &arrivals, &queues);
    }

    /// Takes what an agent wants done.
    fn collect(&mut self, host: usize) {
        while let Some(Tuning { from, to, rate, .. }) = self.agents[host].poll_tuning() {
            let held = rate.map_or(f64::INFINITY, |rate| rate.0 as f64);
            for flow in self.flows.iter_mut().filter(|flow| flow.host == host && flow.id == from) {
                match to {
                    Toward::Address(to) if to == flow.wire_to => flow.pair = held,
                    Toward::Address(_) => {}
                    Toward::Everyone => flow.all = held,
                }
            }
            match rate {
                Some(rate) => self.limits.insert((host, from, to), rate.0 as f64),
                None => self.limits.remove(&(host, from, to)),
            };
        }
        while let Some((to, bytes)) = self.agents[host].poll_message() {
            self.datagrams[host] += 1;
            self.longest = self.longest.max(bytes.len());
            let to: usize = to[1..].parse().unwrap();
            let Faults { loss_ppm, double_ppm, delay_ns, jitter_ns, parted } = self.faults;
            if parted || self.random.happens_ppm(loss_ppm) {
                continue;
            }
            for _ in 0..=u32::from(self.random.happens_ppm(double_ppm)) {
                let at = self.now + delay_ns + self.random.range(0, jitter_ns);
                self.mail.push((at, host, to, bytes.clone()));
            }
        }
    }

    /// Delivers what has travelled long enough.
    fn deliver(&mut self) {
        let now = self.now;
        let (mut due, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.mail).into_iter().partition(|m| m.0 <= now);
        self.mail = rest;
        due.sort_by_key(|mail| mail.0);
        for (_, from, to, bytes) in due {
            // What is doubled or late is an error, and that is all.
            let _counted = self.agents[to].hear(Instant(now), &host_name(from), &bytes);
        }
    }

    /// Until when in windows of 5 ms, on from now, `wanted` arrives of a flow at 99 %: how long it
    /// took, in nanoseconds.
    pub fn time_until_restored(&mut self, flow: usize, wanted: f64, at_most_ns: u64) -> Option<u64> {
        let begin = self.now;
        let mut arrived = vec![self.flows[flow].arrived];
        let window = (5 * MS / STEP_NS) as usize;
        while self.now < begin + at_most_ns {
            self.step();
            arrived.push(self.flows[flow].arrived);
            if let Some(first) = arrived.len().checked_sub(window + 1) {
                let rate = (arrived[arrived.len() - 1] - arrived[first]) * 8e9 / (5 * MS) as f64;
                if rate >= 0.99 * wanted {
                    return Some(first as u64 * STEP_NS);
                }
            }
        }
        None
    }
}
