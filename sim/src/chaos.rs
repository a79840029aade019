//! Chaos: a random network from a seed, with random traffic and faults.
//!
//! Faults and attacks end at a stated time, traffic a while later, and then there is silence: so
//! that a test can ask for safety all along, for progress once the faults are over, and for empty
//! queues in the end.

use datapath::aqm::{At, Discipline, Step};
use datapath::guard::Identity;
use datapath::program::{Change, Endpoint, EndpointId, IngressMode, OrderKind, PortFeatures, PortId, Share};
use datapath::units::{Both, Instant, Rate};

use crate::attack::Kind;
use crate::packet::Nic;
use crate::random::Random;
use crate::site::{Site, TenantSpec};
use crate::tcp::congestion::Algorithm;
use crate::topology::{Fault, FlowSpec, Topology, Traffic};
use crate::world::World;

/// When faults and attacks end, in nanoseconds.
const FAULTS_END_NS: u64 = 600_000_000;
/// When traffic ends.
const TRAFFIC_END_NS: u64 = 3_500_000_000;
/// When the last frame must have left.
const SILENCE_NS: u64 = 10_000_000_000;
/// Part of the uplink that is promised at most, in millionths: the rest is headroom.
const PROMISED_PPM: u64 = 950_000;

/// How long after the faults a connection may need to come back: timers have backed off by then.
const RECOVERY_NS: u64 = 1_500_000_000;

/// Lives through the network of a seed: a report, or what broke and in which network.
///
/// # Errors
/// A violation of safety, a connection that stands still after the faults, or frames that are left
/// in the end.
pub fn survive(seed: u64) -> Result<String, String> {
    let (site, topology) = topology(seed);
    let network = format!("{site:#?}\n{:#?}\n{:#?}", topology.flows, topology.faults);
    let world = run(&site, World::new(topology)).map_err(|what| format!("seed {seed}: {what}\n{network}"))?;
    let (hosts, flows) = (world.topology().hosts.len(), world.topology().flows.len());
    Ok(format!(
        "seed {seed}: {hosts} hosts, {flows} flows, {} faults: {} frames handed over, trace {:016x}",
        world.topology().faults.len(),
        world.steps(),
        world.trace()
    ))
}

fn run(site: &Site, mut world: World) -> Result<World, String> {
    let step = |world: &mut World, until: u64| world.run_until(Instant(until)).map_err(|v| v.to_string());
    step(&mut world, FAULTS_END_NS + RECOVERY_NS)?;
    let flows = world.topology().flows.len();
    let before: Vec<u64> = (0..flows).map(|flow| world.received(flow).bytes).collect();
    step(&mut world, TRAFFIC_END_NS)?;
    for (flow, spec) in world.topology().flows.iter().enumerate() {
        if must_move(site, world.topology(), spec) && world.received(flow).bytes == before[flow] {
            return Err(format!("flow {flow} stands still: {spec:?}, {:?}", world.sent(flow).sender));
        }
    }
    step(&mut world, SILENCE_NS)?;
    if world.frames() > 0 {
        return Err(format!("{} frames are left in the end", world.frames()));
    }
    Ok(world)
}

/// Whether a connection must make progress: not where ingress is policed, which is known to wreck
/// TCP, nor where an end of it, or of its tenant's share, is taken up by one who reacts to nothing.
fn must_move(site: &Site, topology: &Topology, spec: &FlowSpec) -> bool {
    let tenant = |host: usize| topology.hosts[host].tenant;
    let stubborn = |other: &FlowSpec| {
        matches!(other.traffic, Traffic::Udp { .. } | Traffic::Attack { .. }) && tenant(other.from) == tenant(spec.from)
    };
    matches!(spec.traffic, Traffic::Tcp { bytes: None, .. })
        && site.ingress == IngressMode::Queue
        && !topology.flows.iter().any(stubborn)
}

/// The network of a seed.
#[must_use]
pub fn topology(seed: u64) -> (Site, Topology) {
    let mut random = Random::new(seed);
    let site = site(&mut random);
    let mut topology = Topology { seed, ..site.topology() };
    for host in &mut topology.hosts {
        let plain = Nic { csum: random.happens_ppm(500_000), ..Nic::PLAIN };
        host.nic = *random.pick(&[Nic::default(), Nic::default(), plain]);
    }
    for _ in 0..random.range(2, 12) {
        let flow = flow(&site, &mut random);
        topology.flows.push(flow);
    }
    for _ in 0..random.range(0, 6) {
        let at = random.range(0, FAULTS_END_NS);
        let fault = fault(&site, &mut random, FAULTS_END_NS - at);
        topology.faults.push((at, fault));
    }
    for _ in 0..random.range(0, 8) {
        changes(&mut topology, &mut random);
    }
    topology.faults.push((FAULTS_END_NS, Fault::Loss { link: 0, ppm: 0 }));
    topology.faults.push((FAULTS_END_NS, Fault::Rate { link: 0, rate: site.rate }));
    (site, topology)
}

fn site(random: &mut Random) -> Site {
    let rate = Rate(*random.pick(&[20_000_000, 100_000_000, 300_000_000, 1_000_000_000]));
    let mut left = rate.scaled(PROMISED_PPM, 1_000_000).0;
    let tenants = random.range(1, 4);
    let tenants = (0..tenants).map(|_| {
        let endpoints = random.range(1, 4);
        let endpoints = (0..endpoints).map(|_| both_shares(random, rate, &mut left)).collect();
        let own = Share { weight: weight(random), limit: limit(random, rate, Rate(0)), ..Share::default() };
        let mut spec = TenantSpec { share: Both { egress: own, ingress: own }, endpoints };
        let promised = spec.promised();
        spec.share.egress.limit = own.limit.max(promised.egress.guarantee);
        spec.share.ingress.limit = own.limit.max(promised.ingress.guarantee);
        spec
    });
    let tenants = tenants.collect();
    Site {
        order: *random.pick(&[
            OrderKind::Fair,
            OrderKind::Fair,
            OrderKind::Wf2q,
            OrderKind::Vtrr,
            OrderKind::VtrrBytes,
        ]),
        ingress: *random.pick(&[
            IngressMode::Queue,
            IngressMode::Queue,
            IngressMode::Police,
            IngressMode::PolicePublished,
        ]),
        rate,
        headroom_ppm: random.range(0, 50_000) as u32,
        delay_ns: random.range(0, 5_000_000),
        link_queue_bytes: random.range(20_000, 1 << 20) as u32,
        discipline: *random
            .pick(&[Discipline::DropTail, Discipline::Step(Step { mark_bytes: 60_000, at: At::Arrival })]),
        queue_bytes: random.range(100_000, 2 << 20) as u32,
        tenants,
        ..Site::default()
    }
}

/// Up to 1:10 at each level: so that even the least is worth some frames a second, and a test may
/// ask everyone for progress.
fn weight(random: &mut Random) -> u32 {
    *random.pick(&[1, 1, 2, 3, 10])
}

fn limit(random: &mut Random, rate: Rate, least: Rate) -> Rate {
    if random.happens_ppm(250_000) { Rate(random.range(1_000_000, rate.0)).max(least) } else { Rate::UNLIMITED }
}

fn both_shares(random: &mut Random, rate: Rate, left: &mut u64) -> Both<Share> {
    let part = random.range(0, rate.0 / 4).min(*left);
    let guarantee = if random.happens_ppm(500_000) { Rate(part) } else { Rate(0) };
    *left -= guarantee.0;
    let mut share = || Share { guarantee, limit: limit(random, rate, guarantee), weight: weight(random) };
    Both { egress: share(), ingress: share() }
}

fn flow(site: &Site, random: &mut Random) -> FlowSpec {
    let tenant = random.range(0, site.tenants.len() as u64 - 1) as usize;
    let endpoints = site.tenants[tenant].endpoints.len() as u64;
    let mut endpoint = || random.range(0, endpoints - 1) as usize;
    let (a, b) = (endpoint(), endpoint());
    let (near, far) = (site.near(tenant, a), site.far(tenant, b));
    let neighbours = (near, site.near(tenant, b));
    let (from, to) = *random.pick(&[(near, far), (far, near), if a == b { (near, far) } else { neighbours }]);
    let algorithm = *random.pick(&[Algorithm::NewReno, Algorithm::Cubic]);
    let ecn = random.happens_ppm(300_000);
    let kind = random.range(0, 9);
    let (bytes, again_after_ns) = match kind {
        4 => (Some(random.range(1, 300_000)), Some(random.range(0, 10_000_000))),
        _ => (None, None),
    };
    let traffic = match kind {
        0..=4 => Traffic::Tcp { algorithm, ecn, bytes, again_after_ns, pace: None },
        5 | 6 => udp(site.rate, random),
        7 => Traffic::Ping { every_ns: random.range(1_000_000, 50_000_000) },
        _ => Traffic::Attack { per_second: random.range(100, 20_000) as u32, kind: Kind::Any },
    };
    // Attackers sit on the switch under test, which is the one that guards.
    let from = if matches!(traffic, Traffic::Attack { .. }) { near } else { from };
    let stop_ns = if matches!(traffic, Traffic::Attack { .. }) { FAULTS_END_NS } else { TRAFFIC_END_NS };
    FlowSpec { from, to, start_ns: random.range(0, 300_000_000), stop_ns, traffic }
}

fn udp(rate: Rate, random: &mut Random) -> Traffic {
    let frame = *random.pick(&[60, 64, 100, 576, 1000, 1514]);
    let train = if random.happens_ppm(300_000) { random.range(2, 40) as u32 } else { 1 };
    let on_off_ns = if random.happens_ppm(500_000) { (20_000_000, random.range(1, 50_000_000)) } else { (0, 0) };
    // Small frames at link speed are a test of patience, not of the switch.
    let fastest = rate.0.min(u64::from(frame) * 8 * 40_000);
    Traffic::Udp { rate: Rate(random.range(fastest / 20, fastest)), frame, train, on_off_ns }
}

/// An endpoint of the switch under test is taken away and comes back, or gets another share for a
/// while; or a stranger comes and goes.
fn changes(topology: &mut Topology, random: &mut Random) {
    let program = &topology.switches[0];
    let at = random.range(0, FAULTS_END_NS);
    let end = random.range(at, (at + 150_000_000).min(FAULTS_END_NS));
    let count = program.endpoints.len() as u64;
    let id = random.range(0, count - 1) as u32;
    let endpoint = program.endpoints[id as usize].clone();
    let share = both_shares(random, Rate(10_000_000), &mut 10_000_000);
    let (port, stranger) = (program.ports.len() as u32, count as u32 + random.range(0, 2) as u32);
    let change = |change| Fault::Change { switch: 0, change };
    let set = |id, endpoint| change(Change::Endpoint(EndpointId(id), endpoint));
    let pair = match random.range(0, 2) {
        0 => [set(id, None), set(id, Some(endpoint))],
        1 => [set(id, Some(Endpoint { share, ..endpoint.clone() })), set(id, Some(endpoint))],
        _ => {
            topology.faults.push((at, change(Change::Port(PortId(port), Some(PortFeatures::default())))));
            // Its addresses are learned, so that it is flooded and its floods are.
            let newcomer = Endpoint { port: PortId(port), share, identity: Identity::default(), ..endpoint };
            [set(stranger, Some(newcomer)), set(stranger, None)]
        }
    };
    topology.faults.extend([at, end].into_iter().zip(pair));
}

fn fault(site: &Site, random: &mut Random, left_ns: u64) -> Fault {
    let hosts = 2 * site.endpoints() as u64;
    let for_ns = random.range(0, left_ns.min(150_000_000));
    match random.range(0, 5) {
        0 => Fault::Loss { link: 0, ppm: random.range(1, 100_000) as u32 },
        1 => Fault::Loss { link: 0, ppm: 1_000_000 },
        2 => Fault::Rate { link: 0, rate: Rate(random.range(0, site.rate.0)) },
        3 => Fault::Stall { host: random.range(0, hosts - 1) as usize, for_ns },
        _ => Fault::Lag { switch: random.range(0, 1) as usize, for_ns },
    }
}
