//! Crowd: a model of traffic as flows, for more hosts than frames can be simulated of.
//!
//! The agents are the real ones, their mail is too. Everything else is a fluid in ticks of a
//! millisecond: a pair sends what it wants, or what its limit lets it; the fabric's port to each
//! host is a bounded queue that loses what does not fit and serves all in it in proportion (as a
//! FIFO does on the average); the host's ingress scheduler gives each endpoint what the fluid model
//! says. There are no frames, no congestion control and no contention at senders: who wants more
//! than there is, wants it for ever.

use std::collections::HashMap;
use std::sync::Arc;

use agent::events::{Arrival, QueueSample, Toward};
use agent::{Agent, Cluster, Directory, Settings};
use datapath::guard::Identity;
use datapath::program::{
    Attachment, Endpoint, EndpointId, PortFeatures, PortId, Program, Share, Slots, Tenant, TenantId, Uplink,
};
use datapath::units::{Both, Instant, Rate};
use datapath::wire::Mac;

use crate::fluid::{self, Claim};
use crate::mail::{Letter, Mail, MailConfig, MailStats};
use crate::random::Random;

/// A tick of the model.
pub const TICK_NS: u64 = 1_000_000;

/// Who there is, and what they want.
#[derive(Clone, PartialEq, Debug)]
pub struct CrowdSpec {
    /// Seed of all randomness.
    pub seed: u64,
    /// Hosts, of which each has an endpoint of as many tenants as there are `endpoints`.
    pub hosts: usize,
    /// Endpoints of a host, and of a tenant.
    pub endpoints: usize,
    /// Of every host's link.
    pub rate: Rate,
    /// Bytes that may wait at the fabric's port to a host.
    pub fabric_queue_bytes: u32,
    /// Of ingress, in millionths.
    pub headroom_ppm: u32,
    /// What the agents are told.
    pub settings: Settings,
}

/// One endpoint's traffic to one other.
#[derive(Clone, Debug)]
struct Pair {
    /// Host and endpoint there.
    from: (usize, usize),
    to: (usize, usize),
    /// Bits a second.
    wants: f64,
    limit: Option<Rate>,
    /// Bytes at the fabric's port.
    queued: f64,
    /// Bytes that came to the receiving host.
    arrived: f64,
    /// Of these, what its agent has been told.
    told: u64,
}

/// One host.
#[derive(Debug)]
struct Host {
    agent: Agent,
    /// The pairs that send to it.
    pairs: Vec<usize>,
    shares: Vec<Share>,
    /// By endpoint: bytes that wait at the ingress queue, that were delivered, and Gatekeeper's
    /// limit of all that it sends.
    backlog: Vec<f64>,
    delivered: Vec<f64>,
    brakes: Vec<Option<Rate>>,
}

/// All hosts.
#[derive(Debug)]
pub struct Crowd {
    spec: CrowdSpec,
    now: Instant,
    hosts: Vec<Host>,
    pairs: Vec<Pair>,
    by_address: HashMap<(usize, usize, Mac), usize>,
    names: Vec<Arc<str>>,
    mail: Mail,
    tunings: u64,
}

/// The address of an endpoint.
fn address((host, endpoint): (usize, usize)) -> Mac {
    let [a, b] = (host as u16).to_be_bytes();
    Mac([2, 0, 0, a, b, endpoint as u8])
}

impl Crowd {
    /// The crowd at time zero. Endpoint `e` of host `h` belongs to tenant `h - offset(e)`, so that
    /// each tenant is on as many hosts as it has endpoints, strewn over all.
    #[must_use]
    pub fn new(spec: CrowdSpec) -> Crowd {
        let mut random = Random::new(spec.seed);
        let offsets = offsets(&spec, &mut random);
        let tenant = |host: usize, endpoint: usize| (host + spec.hosts - offsets[endpoint]) % spec.hosts;
        let mut cluster = Cluster::default();
        let names: Vec<Arc<str>> = (0..spec.hosts).map(|host| cluster.add_host(&format!("h{host}"))).collect();
        for (host, called) in names.iter().enumerate() {
            for endpoint in 0..spec.endpoints {
                let name = format!("t{}", tenant(host, endpoint));
                cluster.place(called, &name, address((host, endpoint)));
            }
        }
        let cluster = Arc::new(cluster);
        let host = |host: usize| {
            let shares = shares(&spec, &mut random.split());
            let program = program(&spec, host, &shares);
            let tenants: Slots<String> = (0..spec.endpoints).map(|e| format!("t{}", tenant(host, e))).collect();
            let directory = Directory::new(cluster.clone(), &program, &tenants);
            Host {
                agent: Agent::new(spec.settings, &names[host], 1, directory),
                pairs: Vec::new(),
                backlog: vec![0.0; shares.len()],
                delivered: vec![0.0; shares.len()],
                brakes: vec![None; shares.len()],
                shares,
            }
        };
        let hosts: Vec<Host> = (0..spec.hosts).map(host).collect();
        let mail = Mail::new(MailConfig::default(), spec.hosts, Random::new(spec.seed));
        let mut crowd = Crowd {
            now: Instant::ZERO,
            hosts,
            pairs: Vec::new(),
            by_address: HashMap::new(),
            names,
            mail,
            tunings: 0,
            spec,
        };
        crowd.meet(&offsets, &mut Random::new(crowd.spec.seed ^ 1));
        crowd
    }

    /// Who sends to whom. Of what is on one host in [`HOT`] some of its tenant's others want much,
    /// and so there is too much for those hosts; to one of the rest each sends little. A sender's
    /// own link is never the bottleneck.
    fn meet(&mut self, offsets: &[usize], random: &mut Random) {
        let (hosts, endpoints) = (self.spec.hosts, self.spec.endpoints);
        let most = self.spec.rate.0 as f64 / (endpoints * PEERS) as f64;
        for tenant in 0..hosts {
            let places: Vec<(usize, usize)> = (0..endpoints).map(|e| ((tenant + offsets[e]) % hosts, e)).collect();
            for &from in &places {
                let (hot, cold): (Vec<_>, Vec<_>) =
                    places.iter().filter(|&&to| to != from).partition(|to| to.0 % HOT == 0);
                let hot = hot.into_iter().filter(|_| random.happens_ppm(WANTED_PPM)).take(PEERS - 1);
                let mut chosen: Vec<(usize, usize)> = hot.copied().collect();
                let much = chosen.len();
                chosen.extend(cold.first().map(|_| **random.pick(&cold)));
                for (place, to) in chosen.into_iter().enumerate() {
                    let part = if place < much { random.range(2000, 6000) } else { random.range(1, 200) };
                    self.by_address.insert((from.0, from.1, address(to)), self.pairs.len());
                    self.hosts[to.0].pairs.push(self.pairs.len());
                    let wants = most * part as f64 / 1000.0;
                    self.pairs.push(Pair { from, to, wants, limit: None, queued: 0.0, arrived: 0.0, told: 0 });
                }
            }
        }
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Pairs that send.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// A host's agent.
    #[must_use]
    pub fn agent(&self, host: usize) -> &Agent {
        &self.hosts[host].agent
    }

    /// What a host's agent sent.
    #[must_use]
    pub fn mailed(&self, host: usize) -> MailStats {
        self.mail.sent(host)
    }

    /// Times that a switch was told of a limit.
    #[must_use]
    pub fn tunings(&self) -> u64 {
        self.tunings
    }

    /// Bytes delivered so far to a host's endpoints.
    #[must_use]
    pub fn delivered(&self, host: usize) -> &[f64] {
        &self.hosts[host].delivered
    }

    /// Whether more is wanted of a host than its link has.
    #[must_use]
    pub fn is_wanted_too_much(&self, host: usize) -> bool {
        self.wanted(host).iter().sum::<f64>() > self.spec.rate.0 as f64
    }

    /// Bits a second that are wanted of a host's endpoints.
    #[must_use]
    pub fn wanted(&self, host: usize) -> Vec<f64> {
        let mut wanted = vec![0.0; self.spec.endpoints];
        for &pair in &self.hosts[host].pairs {
            wanted[self.pairs[pair].to.1] += self.pairs[pair].wants;
        }
        wanted
    }

    /// What the fluid model gives a host's endpoints, in bits a second.
    #[must_use]
    pub fn ideal(&self, host: usize) -> Vec<f64> {
        let capacity = self.spec.rate.scaled(1_000_000 - u64::from(self.spec.headroom_ppm), 1_000_000);
        self.solve(host, capacity.0 as f64, &self.wanted(host))
    }

    /// Runs on for so many ticks.
    pub fn run(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.now = self.now.plus_ns(TICK_NS);
            self.flow();
            self.steer();
        }
    }

    /// Every endpoint is its tenant's only one on a host.
    fn solve(&self, host: usize, capacity: f64, wants: &[f64]) -> Vec<f64> {
        let tenants = self.hosts[host].shares.iter().zip(wants).map(|(share, &demand)| {
            let claim = Claim {
                guarantee: share.guarantee.0 as f64,
                weight: f64::from(share.weight),
                demand,
                ..Claim::default()
            };
            fluid::Tenant { claim, endpoints: vec![claim] }
        });
        fluid::solve(capacity, &tenants.collect::<Vec<_>>()).into_iter().map(|shares| shares.rate).collect()
    }

    /// A tick's traffic.
    fn flow(&mut self) {
        let seconds = TICK_NS as f64 / 1e9;
        let link = self.spec.rate.0 as f64 / 8.0 * seconds;
        let mut sending: Vec<f64> = self.pairs.iter().map(Pair::sends).collect();
        self.brake(&mut sending);
        for host in 0..self.hosts.len() {
            let mut arrived = vec![0.0; self.spec.endpoints];
            let (mut total, mut waiting) = (0.0, 0.0);
            for &pair in &self.hosts[host].pairs {
                total += sending[pair] / 8.0 * seconds;
                waiting += self.pairs[pair].queued;
            }
            let room = f64::from(self.spec.fabric_queue_bytes) + link;
            let enters = if total > 0.0 { ((room - waiting) / total).clamp(0.0, 1.0) } else { 0.0 };
            let there = waiting + total * enters;
            let served = if there > link { link / there } else { 1.0 };
            for &pair in &self.hosts[host].pairs {
                let flow = &mut self.pairs[pair];
                let had = flow.queued + sending[pair] / 8.0 * seconds * enters;
                flow.queued = had * (1.0 - served);
                flow.arrived += had * served;
                arrived[flow.to.1] += had * served;
            }
            self.deliver(host, &arrived, seconds);
        }
    }

    /// What arrived waits for the ingress scheduler, which gives each endpoint its share of what is
    /// drained.
    fn deliver(&mut self, host: usize, arrived: &[f64], seconds: f64) {
        let there: Vec<f64> = self.hosts[host].backlog.iter().zip(arrived).map(|(a, b)| a + b).collect();
        let rate = self.spec.rate.0 as f64;
        let drain = rate * (1.0 - f64::from(self.spec.headroom_ppm) / 1e6);
        let wants: Vec<f64> = there.iter().map(|bytes| bytes * 8.0 / seconds).collect();
        let fits = wants.iter().sum::<f64>() <= drain;
        let served = if fits { wants } else { self.solve(host, drain, &wants) };
        let host = &mut self.hosts[host];
        for (endpoint, bps) in served.into_iter().enumerate() {
            let bytes = bps * seconds / 8.0;
            host.delivered[endpoint] += bytes;
            host.backlog[endpoint] = (there[endpoint] - bytes).clamp(0.0, QUEUE_BYTES);
        }
    }

    /// Gatekeeper's limits: all that an endpoint sends shrinks in proportion.
    fn brake(&self, sending: &mut [f64]) {
        if self.hosts.iter().all(|host| host.brakes.iter().all(Option::is_none)) {
            return;
        }
        let mut sums = vec![0.0; self.hosts.len() * self.spec.endpoints];
        let at = |pair: &Pair| pair.from.0 * self.spec.endpoints + pair.from.1;
        for (pair, &bps) in self.pairs.iter().zip(sending.iter()) {
            sums[at(pair)] += bps;
        }
        for (pair, bps) in self.pairs.iter().zip(sending.iter_mut()) {
            if let Some(limit) = self.hosts[pair.from.0].brakes[pair.from.1] {
                *bps *= (limit.0 as f64 / sums[at(pair)]).min(1.0);
            }
        }
    }

    /// What the agents do in a tick.
    fn steer(&mut self) {
        while let Some(letter) = self.mail.deliver(self.now) {
            // Nothing here is lost or forged.
            let _ = self.hosts[letter.to].agent.hear(self.now, &self.names[letter.from], &letter.bytes);
        }
        let (mut arrivals, mut queues) = (Vec::new(), Vec::new());
        for index in 0..self.hosts.len() {
            self.look(index, &mut arrivals, &mut queues);
            self.hosts[index].agent.sample(self.now, TICK_NS, &arrivals, &queues);
            while let Some(tuning) = self.hosts[index].agent.poll_tuning() {
                self.tunings += 1;
                let from = tuning.from.0 as usize;
                match tuning.to {
                    Toward::Everyone => self.hosts[index].brakes[from] = tuning.rate,
                    Toward::Address(to) => {
                        let pair = self.by_address.get(&(index, from, to)).copied();
                        pair.into_iter().for_each(|pair| self.pairs[pair].limit = tuning.rate);
                    }
                }
            }
            while let Some((to, bytes)) = self.hosts[index].agent.poll_message() {
                let to = to.strip_prefix('h').and_then(|number| number.parse().ok());
                to.into_iter()
                    .for_each(|to| self.mail.send(self.now, Letter { from: index, to, bytes: bytes.clone() }));
            }
        }
    }

    /// What a switch would say of what arrived since it was asked last.
    fn look(&mut self, host: usize, arrivals: &mut Vec<Arrival>, queues: &mut Vec<QueueSample>) {
        arrivals.clear();
        queues.clear();
        let mut sums = vec![0; self.spec.endpoints];
        for &pair in &self.hosts[host].pairs {
            let pair = &mut self.pairs[pair];
            let wire_bytes = pair.arrived as u64 - pair.told;
            pair.told += wire_bytes;
            if wire_bytes > 0 {
                let to = EndpointId(pair.to.1 as u32);
                arrivals.push(Arrival { to, from: Some(address(pair.from)), wire_bytes, dropped_bytes: 0 });
                sums[pair.to.1] += wire_bytes;
            }
        }
        for (endpoint, &arrived_bytes) in sums.iter().enumerate().filter(|&(_, &bytes)| bytes > 0) {
            queues.push(QueueSample {
                endpoint: EndpointId(endpoint as u32),
                arrived_bytes,
                dropped_bytes: 0,
                last_dropped: None,
                backlog_bytes: self.hosts[host].backlog[endpoint] as u64,
            });
        }
    }
}

/// Others of its tenant that an endpoint sends to at most.
const PEERS: usize = 4;
/// One host in so many is hot, and how often another endpoint of the tenant wants something of one
/// there, in millionths.
const HOT: usize = 10;
const WANTED_PPM: u32 = 200_000;
/// Bound of an ingress queue.
const QUEUE_BYTES: f64 = 1_048_576.0;

impl Pair {
    fn sends(&self) -> f64 {
        self.limit.map_or(self.wants, |limit| self.wants.min(limit.0 as f64))
    }
}

/// How far from its tenant's first host each endpoint is: all different.
fn offsets(spec: &CrowdSpec, random: &mut Random) -> Vec<usize> {
    let mut offsets: Vec<usize> = Vec::new();
    while offsets.len() < spec.endpoints {
        let offset = random.range(0, spec.hosts as u64 - 1) as usize;
        if !offsets.contains(&offset) {
            offsets.push(offset);
        }
    }
    offsets
}

/// Guarantees and weights: up to nine tenths of the link are promised.
fn shares(spec: &CrowdSpec, random: &mut Random) -> Vec<Share> {
    let most = spec.rate.0 / 10 * 9 / spec.endpoints as u64;
    let mut share = || {
        let guarantee = if random.happens_ppm(500_000) { Rate(random.range(0, most)) } else { Rate(0) };
        Share { guarantee, limit: Rate::UNLIMITED, weight: *random.pick(&[1, 1, 2, 5]) }
    };
    (0..spec.endpoints).map(|_| share()).collect()
}

fn program(spec: &CrowdSpec, host: usize, shares: &[Share]) -> Program {
    let both = |share: &Share| Both { egress: Share::default(), ingress: *share };
    let endpoint = |(place, share): (usize, &Share)| Endpoint {
        identity: Identity { macs: vec![address((host, place))], ..Identity::default() },
        share: both(share),
        queue_bytes: QUEUE_BYTES as u32,
        max_learned: 1024,
        ..Endpoint::new(TenantId(place as u32), PortId(place as u32))
    };
    let tenant = |(place, share): (usize, &Share)| Tenant {
        attachment: Attachment::Vlan(10 + place as u16),
        share: both(share),
        ..Tenant::default()
    };
    Program {
        uplink: Some(Uplink {
            headroom_ppm: spec.headroom_ppm,
            ..Uplink::new(PortId(shares.len() as u32), Both { egress: spec.rate, ingress: spec.rate })
        }),
        tenants: shares.iter().enumerate().map(tenant).collect(),
        endpoints: shares.iter().enumerate().map(endpoint).collect(),
        ports: vec![PortFeatures::default(); shares.len() + 1].into(),
        ..Program::default()
    }
}
