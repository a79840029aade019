//! Shares over windows against the fluid model: random tenants with weights, guarantees and limits,
//! each endpoint sending datagrams at its own constant rate, some less than their share and some
//! far more.

use datapath::program::{OrderKind, Share};
use datapath::units::{Both, Direction, Instant, Rate};
use sim::fluid::{self, Claim, Tenant};
use sim::meter::maximum_frame;
use sim::packet::Nic;
use sim::random::Random;
use sim::site::{Site, TenantSpec, both};
use sim::topology::{HostSpec, Topology, Traffic};
use sim::world::World;

/// Seeds tried of each.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=20;
/// What a window may be off: the order's own constant at two levels, and that sources come in
/// trains of two maximum frames.
const MOST_FRAMES: f64 = 8.0;
const WINDOW_NS: u64 = 100_000_000;
const WINDOWS: u64 = 8;

struct Problem {
    site: Site,
    /// Wire bits a second that each endpoint offers.
    demands: Vec<Vec<u64>>,
}

fn problem(random: &mut Random, rate: Rate, order: OrderKind, direction: Direction) -> Problem {
    let mut left = rate.0 / 10 * 9;
    let mut demands = Vec::new();
    let tenants = (0..random.range(1, 4)).map(|_| {
        let mut wanted = Vec::new();
        let endpoints = (0..random.range(1, 4)).map(|_| {
            let guarantee = if random.happens_ppm(400_000) { random.range(0, left / 3) } else { 0 };
            left -= guarantee;
            let limit =
                if random.happens_ppm(300_000) { random.range(guarantee.max(5_000_000), rate.0) } else { u64::MAX };
            let weight = *random.pick(&[1, 1, 2, 5, 20]);
            wanted.push(if random.happens_ppm(400_000) { random.range(rate.0 / 100, rate.0 / 3) } else { 2 * rate.0 });
            both(Share { guarantee: Rate(guarantee), limit: Rate(limit), weight })
        });
        let endpoints: Vec<Both<Share>> = endpoints.collect();
        demands.push(wanted);
        let sum: u64 = endpoints.iter().map(|share| share.egress.guarantee.0).sum();
        let limited = random.happens_ppm(400_000);
        let limit = if limited { random.range(sum.max(5_000_000), rate.0) } else { u64::MAX };
        let share = Share { limit: Rate(limit), weight: *random.pick(&[1, 2, 7]), ..Share::default() };
        TenantSpec { share: both(share), endpoints }
    });
    let tenants: Vec<TenantSpec> = tenants.collect();
    let wide = (direction == Direction::Ingress).then(|| rate.scaled(100, 1));
    let host = HostSpec { nic: Nic::PLAIN, ..HostSpec::default() };
    let site = Site { order, rate, link_rate: wide, headroom_ppm: 0, tenants, host, ..Site::default() };
    Problem { site, demands }
}

fn ideal(problem: &Problem) -> Vec<f64> {
    let limit = |rate: Rate| if rate == Rate::UNLIMITED { f64::INFINITY } else { rate.0 as f64 };
    let claim = |share: &Share, demand: f64| Claim {
        guarantee: share.guarantee.0 as f64,
        limit: limit(share.limit),
        weight: f64::from(share.weight),
        demand,
    };
    let tenants = problem.site.tenants.iter().zip(&problem.demands).map(|(spec, demands)| Tenant {
        claim: claim(&spec.promised().egress, f64::INFINITY),
        endpoints: spec.endpoints.iter().zip(demands).map(|(share, &bps)| claim(&share.egress, bps as f64)).collect(),
    });
    let shares = fluid::solve(problem.site.rate.0 as f64, &tenants.collect::<Vec<_>>());
    shares.into_iter().flat_map(|share| share.endpoints).collect()
}

/// The most that any endpoint is off its ideal in any window, in maximum frames.
fn worst(problem: &Problem, direction: Direction, seed: u64) -> (f64, String) {
    let site = &problem.site;
    let mut topology = Topology { seed, ..site.topology() };
    for (tenant, demands) in problem.demands.iter().enumerate() {
        for (endpoint, &bps) in demands.iter().enumerate() {
            topology.flows.push(site.flow(
                direction,
                tenant,
                endpoint,
                Traffic::Udp {
                    rate: Rate(bps),
                    frame: 1514,
                    train: if site.rate.0 > 500_000_000 { 4 } else { 1 },
                    on_off_ns: (0, 0),
                },
            ));
        }
    }
    let mut world = World::new(topology);
    world.run_until(Instant(300_000_000)).unwrap();
    let ideal = ideal(problem);
    let bytes = |world: &World| site.wire_bytes(world, direction).concat();
    let mut before = bytes(&world);
    let mut worst = (0.0, String::new());
    for window in 0..WINDOWS {
        world.run_for(WINDOW_NS).unwrap();
        let after = bytes(&world);
        for (endpoint, &bps) in ideal.iter().enumerate() {
            let sent = (after[endpoint] - before[endpoint]) as f64;
            let off = (sent - bps * WINDOW_NS as f64 / 8e9) / maximum_frame(site.rate) as f64;
            if f64::abs(off) > f64::abs(worst.0) {
                worst = (
                    off,
                    format!(
                        "window {window}, endpoint {endpoint}: {} Mbit/s, ideal {}",
                        sent * 8e3 / WINDOW_NS as f64,
                        bps / 1e6
                    ),
                );
            }
        }
        before = after;
    }
    worst
}

/// Tries the seeds in both directions, with single frames on a slow link and offloaded ones on a
/// fast link.
fn check(order: OrderKind, most_frames: f64) {
    for rate in [Rate(200_000_000), Rate(1_000_000_000)] {
        for direction in Direction::ALL {
            for seed in SEEDS {
                let problem = problem(&mut Random::new(seed), rate, order, direction);
                let (frames, what) = worst(&problem, direction, seed);
                assert!(
                    frames.abs() <= most_frames,
                    "seed {seed}, {rate}, {direction:?}: {frames:.1} maximum frames off; {what}"
                );
            }
        }
    }
}

#[test]
fn wf2q_is_within_a_few_frames_of_the_ideal() {
    check(OrderKind::Wf2q, MOST_FRAMES);
}

#[test]
fn fair_is_within_its_constant_of_the_ideal() {
    check(OrderKind::Fair, MOST_FRAMES);
}
