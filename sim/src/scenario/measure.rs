//! Measuring: what a world did between two moments, and how far that is from the ideal.

use datapath::units::{Direction, Instant, Rate};

use crate::fluid::{self, Claim, Tenant};
use crate::meter::maximum_frame;
use crate::site::Site;
use crate::topology::Topology;
use crate::world::{Violation, World};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
/// What is left out at the start of every run.
pub const WARM_UP_NS: u64 = SECOND;

/// What a run did after the warm-up.
#[derive(Debug)]
pub struct Measured {
    /// The world at the end.
    pub world: World,
    /// Measured nanoseconds.
    pub ns: u64,
    /// Wire bytes of each endpoint of the switch under test, in the direction asked for.
    pub wire_bytes: Vec<Vec<u64>>,
    /// Payload bytes delivered by each flow.
    pub payload: Vec<u64>,
}

/// Runs a network for the warm-up and then for `seconds`. Endpoints are counted in one direction.
///
/// # Errors
/// The first violation of safety.
pub fn run(site: &Site, topology: Topology, direction: Direction, seconds: u64) -> Result<Measured, Violation> {
    let mut world = World::new(topology);
    let flows = world.topology().flows.len();
    let payload = |world: &World| (0..flows).map(|flow| world.received(flow).bytes).collect::<Vec<u64>>();
    world.run_until(Instant(WARM_UP_NS))?;
    let (wire_before, payload_before) = (site.wire_bytes(&world, direction), payload(&world));
    world.run_for(seconds * SECOND)?;
    let minus = |after: Vec<u64>, before: &[u64]| after.iter().zip(before).map(|(a, b)| a - b).collect::<Vec<u64>>();
    let wire_after = site.wire_bytes(&world, direction).into_iter();
    let wire_bytes = wire_after.zip(&wire_before).map(|(after, before)| minus(after, before)).collect();
    let payload = minus(payload(&world), &payload_before);
    Ok(Measured { world, ns: seconds * SECOND, wire_bytes, payload })
}

impl Measured {
    /// Mbit/s on the wire of one tenant.
    #[must_use]
    pub fn tenant_mbps(&self, tenant: usize) -> f64 {
        mbps(self.wire_bytes[tenant].iter().sum(), self.ns)
    }

    /// Mbit/s on the wire of all.
    #[must_use]
    pub fn total_mbps(&self) -> f64 {
        mbps(self.wire_bytes.iter().flatten().sum(), self.ns)
    }

    /// Mbit/s of payload of one flow.
    #[must_use]
    pub fn flow_mbps(&self, flow: usize) -> f64 {
        mbps(self.payload[flow], self.ns)
    }

    /// How far the endpoint furthest from the ideal is from it, where all endpoints that sent
    /// anything wanted everything.
    #[must_use]
    pub fn worst(&self, site: &Site, direction: Direction) -> Deviation {
        let total: u64 = self.wire_bytes.iter().flatten().sum();
        let capacity = total as f64 * 8e9 / self.ns as f64;
        let tenants = site.tenants.iter().zip(&self.wire_bytes).map(|(spec, sent)| {
            let claim = |share: &datapath::program::Share, sent: u64| Claim {
                guarantee: share.guarantee.0 as f64,
                limit: if share.limit == Rate::UNLIMITED { f64::INFINITY } else { share.limit.0 as f64 },
                weight: f64::from(share.weight),
                demand: if sent > 0 { f64::INFINITY } else { 0.0 },
            };
            let endpoints = spec.endpoints.iter().zip(sent).map(|(share, &sent)| claim(share.get(direction), sent));
            Tenant { claim: claim(spec.promised().get(direction), sent.iter().sum()), endpoints: endpoints.collect() }
        });
        let shares = fluid::solve(capacity, &tenants.collect::<Vec<_>>());
        let ideal = shares.iter().flat_map(|share| &share.endpoints).map(|bps| bps * self.ns as f64 / 8e9);
        let pairs = self.wire_bytes.iter().flatten().zip(ideal).filter(|&(_, ideal)| ideal > 0.0);
        let deviations = pairs.map(|(&sent, ideal)| Deviation {
            percent: (sent as f64 / ideal - 1.0) * 100.0,
            frames: (sent as f64 - ideal) / maximum_frame(site.rate) as f64,
        });
        deviations.max_by(|a, b| a.percent.abs().total_cmp(&b.percent.abs())).unwrap_or_default()
    }
}

/// How far one endpoint is from its ideal.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Deviation {
    /// Of its ideal.
    pub percent: f64,
    /// In maximum frames.
    pub frames: f64,
}

impl Deviation {
    /// Whether it is within what is promised: the larger of 0.1 % and two maximum frames.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.percent.abs() <= 0.1 || self.frames.abs() <= 2.0
    }
}

/// Mbit/s of so many bytes in so many nanoseconds.
#[must_use]
pub fn mbps(bytes: u64, ns: u64) -> f64 {
    bytes as f64 * 8e3 / ns as f64
}

/// The value below which `part` of the values lie, in milliseconds.
#[must_use]
pub fn quantile_ms(values_ns: &[u64], part: f64) -> f64 {
    let mut sorted = values_ns.to_vec();
    sorted.sort_unstable();
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).map_or(f64::NAN, |&ns| ns as f64 / 1e6)
}

/// A mean, and how far from it the true one lies with 95 %.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Half of the interval; infinite where there is one value only, which tells no interval.
    pub half: f64,
}

impl Interval {
    /// Student's t of 97.5 %, by degrees of freedom from one on (Abramowitz and Stegun, table
    /// 26.10).
    const T: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

    /// Of independent runs.
    #[must_use]
    pub fn of(values: &[f64]) -> Interval {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let Some(freedom) = values.len().checked_sub(2) else { return Interval { mean, half: f64::INFINITY } };
        let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / (n - 1.0);
        let t = Self::T[freedom.min(Self::T.len() - 1)];
        Interval { mean, half: t * (variance / n).sqrt() }
    }

    /// Its lower end.
    #[must_use]
    pub fn low(&self) -> f64 {
        self.mean - self.half
    }

    /// Its upper end.
    #[must_use]
    pub fn high(&self) -> f64 {
        self.mean + self.half
    }
}
