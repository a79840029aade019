//! FS-VDE's ingress policing: one token bucket an endpoint, a token is one packet.
//!
//! As published (Cha, Yoo, Hong, 2012): on arrival at t, deliver if c >= 1 and take one token, else
//! drop; then refill by c' = min((t - t_r) * r, m - c), c += c', t_r += c' / r. While the bucket is
//! full t_r stays behind, so idle time is banked beyond the capacity m: with m = 10 and r = 100/s,
//! ten idle seconds let 1029 of 2000 packets in 0.2 s pass. The cure refills first and sets t_r = t
//! whenever the bucket is full; then 29 pass.

use crate::program::{Attachment, Endpoint, EndpointId, Tenant, TenantId};
use crate::stats::Traffic;
use crate::units::{Instant, Rate};

/// Fractional bits of a token.
const TOKEN_BITS: u32 = 20;
const TOKEN: u64 = 1 << TOKEN_BITS;
/// Wire bytes of the packet that rates are converted with: a full frame of a 1500-byte MTU.
pub const PACKET: u64 = 1538;

/// One endpoint's bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    tokens: u64,
    capacity: u64,
    /// Nanoseconds a token.
    token_ns: u64,
    refilled: Instant,
    /// Whether idle time is banked as published.
    published: bool,
}

impl Bucket {
    /// A full bucket of `capacity` packets, refilled with one each `token_ns` nanoseconds.
    #[must_use]
    pub fn new(capacity: u32, token_ns: u64, published: bool) -> Self {
        let capacity = u64::from(capacity.max(1)) * TOKEN;
        Bucket { tokens: capacity, capacity, token_ns: token_ns.max(1), refilled: Instant::ZERO, published }
    }

    /// A bucket for `rate` in full frames of a 1500-byte MTU that holds 20 ms of them, and at least
    /// one offloaded frame (45 segments). Neither the paper's rate formula nor its capacity is
    /// published; 20 ms lets TCP's bursts pass at data-centre round trips.
    #[must_use]
    pub fn for_rate(rate: Rate, published: bool) -> Self {
        let capacity = (rate.bytes_in(20_000_000) / PACKET).clamp(45, 1_000_000) as u32;
        Bucket::new(capacity, rate.time_ns(PACKET), published)
    }

    /// Changes the rate; tokens and what was banked stay, up to the capacity.
    fn set_rate(&mut self, rate: Rate) {
        let anew = Bucket::for_rate(rate, self.published);
        (self.capacity, self.token_ns) = (anew.capacity, anew.token_ns);
        self.tokens = self.tokens.min(self.capacity);
    }

    /// `packets` arrive together at `now`; returns how many of them may pass.
    pub fn take(&mut self, now: Instant, packets: u32) -> u32 {
        let mut passed = 0;
        for _ in 0..packets {
            if !self.published {
                self.refill(now);
            }
            if self.tokens >= TOKEN {
                self.tokens -= TOKEN;
                passed += 1;
            }
            if self.published {
                self.refill(now);
            }
        }
        passed
    }

    fn refill(&mut self, now: Instant) {
        let due = u128::from(now.since(self.refilled)) << TOKEN_BITS;
        let due = u64::try_from(due / u128::from(self.token_ns)).unwrap_or(u64::MAX);
        let room = self.capacity - self.tokens;
        let added = due.min(room);
        self.tokens += added;
        // Round the time up, never down: what was not credited must not be credited later.
        let paid = (u128::from(added) * u128::from(self.token_ns)) >> TOKEN_BITS;
        self.refilled = self.refilled.plus_ns(paid as u64);
        if !self.published && self.tokens == self.capacity {
            self.refilled = now;
        }
    }
}

/// What a bucket holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tokens {
    /// Whole tokens.
    pub packets: u64,
    /// Nanoseconds that it was not refilled for: idle time that the published bucket banks.
    pub since_ns: u64,
}

/// All buckets of one switch: each endpoint has its part of the link by weights, its tenant's
/// first.
///
/// Whatever changes a weight changes the rates of many; so each bucket's rate is made anew when it
/// is next used.
#[derive(Debug)]
pub struct Policer {
    published: bool,
    /// What the uplink brings; zero without one.
    link: Rate,
    /// Sum of all tenants' weights.
    weights: u64,
    tenants: Vec<Group>,
    endpoints: Vec<Member>,
    /// Goes up with each change of a weight or the rate.
    version: u64,
}

/// A tenant.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    weight: u32,
    /// Sum of its endpoints' weights.
    weights: u64,
    passed: Traffic,
}

/// An endpoint.
#[derive(Clone, Copy, Debug)]
struct Member {
    tenant: u32,
    weight: u32,
    bucket: Bucket,
    /// For which version of the policer the bucket's rate was made; 0 where it is yet to be filled.
    version: u64,
    passed: Traffic,
}

impl Policer {
    /// A policer without uplink; `published` as in [`Bucket::new`].
    #[must_use]
    pub fn new(published: bool) -> Self {
        Policer { published, link: Rate(0), weights: 0, tenants: Vec::new(), endpoints: Vec::new(), version: 1 }
    }

    /// Changes what the uplink brings; zero without uplink.
    pub fn set_link(&mut self, rate: Rate) {
        self.link = rate;
        self.version += 1;
    }

    /// A tenant's slot has an owner, another weight or way to the uplink, or no owner any more. It
    /// must have no endpoints then. Who has no way to the uplink has no part of it.
    pub fn set_tenant(&mut self, id: TenantId, tenant: Option<&Tenant>) {
        let at = id.0 as usize;
        if self.tenants.len() <= at {
            self.tenants.resize(at + 1, Group::default());
        }
        let attached = tenant.filter(|tenant| tenant.attachment != Attachment::Isolated);
        let weight = attached.map_or(0, |tenant| tenant.share.ingress.weight);
        let group = &mut self.tenants[at];
        self.weights = self.weights - u64::from(group.weight) + u64::from(weight);
        *group = if tenant.is_some() { Group { weight, ..*group } } else { Group::default() };
        self.version += 1;
    }

    /// An endpoint's slot has an owner, another weight, or no owner any more.
    pub fn set_endpoint(&mut self, id: EndpointId, endpoint: Option<&Endpoint>) {
        let at = id.0 as usize;
        let vacant = Member {
            tenant: 0,
            weight: 0,
            bucket: Bucket::new(1, 1, self.published),
            version: 0,
            passed: Traffic::default(),
        };
        if self.endpoints.len() <= at {
            self.endpoints.resize(at + 1, vacant);
        }
        let member = &mut self.endpoints[at];
        self.tenants[member.tenant as usize].weights -= u64::from(member.weight);
        *member = match endpoint {
            Some(e) => Member { tenant: e.tenant.0, weight: e.share.ingress.weight, ..*member },
            None => vacant,
        };
        self.tenants[member.tenant as usize].weights += u64::from(member.weight);
        self.version += 1;
    }

    /// `packets` arrive together for an endpoint at `now`; returns how many of them may pass.
    pub fn take(&mut self, now: Instant, id: EndpointId, packets: u32) -> u32 {
        self.bucket(id).take(now, packets)
    }

    /// What an endpoint's bucket holds.
    #[must_use]
    pub fn tokens(&self, now: Instant, id: EndpointId) -> Option<Tokens> {
        let member = self.endpoints.get(id.0 as usize).filter(|member| member.version > 0)?;
        Some(Tokens { packets: member.bucket.tokens >> TOKEN_BITS, since_ns: now.since(member.bucket.refilled) })
    }

    /// Continues with what another bucket of the endpoint held `away_ns` ago.
    pub fn restore(&mut self, now: Instant, away_ns: u64, id: EndpointId, held: Tokens) {
        let bucket = self.bucket(id);
        bucket.tokens = held.packets.min(bucket.capacity >> TOKEN_BITS) << TOKEN_BITS;
        // The clock may have started anew: what the time since is worth is worked out on a clock of
        // its own.
        let since = Instant(held.since_ns.saturating_add(away_ns));
        bucket.refilled = Instant::ZERO;
        bucket.refill(since);
        bucket.refilled = Instant(now.0.saturating_sub(since.since(bucket.refilled)));
    }

    /// An endpoint's bucket, with the rate that it has now.
    fn bucket(&mut self, id: EndpointId) -> &mut Bucket {
        if self.endpoints[id.0 as usize].version != self.version {
            self.endpoints[id.0 as usize] = self.current(id);
        }
        &mut self.endpoints[id.0 as usize].bucket
    }

    /// An endpoint whose bucket has the rate of this version.
    fn current(&self, id: EndpointId) -> Member {
        let mut member = self.endpoints[id.0 as usize];
        if member.version != self.version {
            let group = &self.tenants[member.tenant as usize];
            let of_tenant = self.link.scaled(u64::from(group.weight), self.weights);
            let rate = of_tenant.scaled(u64::from(member.weight), group.weights);
            if member.version == 0 {
                member.bucket = Bucket::for_rate(rate, self.published);
            } else {
                member.bucket.set_rate(rate);
            }
            member.version = self.version;
        }
        member
    }

    /// What [`Policer::take`] would return.
    #[must_use]
    pub fn would_take(&self, now: Instant, id: EndpointId, packets: u32) -> u32 {
        self.current(id).bucket.take(now, packets)
    }

    /// What passed for an endpoint, to be counted as it leaves.
    pub fn passed_mut(&mut self, id: EndpointId) -> (&mut Traffic, &mut Traffic) {
        let member = &mut self.endpoints[id.0 as usize];
        (&mut member.passed, &mut self.tenants[member.tenant as usize].passed)
    }

    /// What passed for an endpoint.
    #[must_use]
    pub fn endpoint_passed(&self, id: EndpointId) -> Traffic {
        self.endpoints.get(id.0 as usize).map_or(Traffic::default(), |member| member.passed)
    }

    /// What passed for a tenant's endpoints, to count on from another's.
    pub fn tenant_passed_mut(&mut self, id: TenantId) -> &mut Traffic {
        &mut self.tenants[id.0 as usize].passed
    }

    /// What passed for a tenant's endpoints, those that are gone included.
    #[must_use]
    pub fn tenant_passed(&self, id: TenantId) -> Traffic {
        self.tenants.get(id.0 as usize).map_or(Traffic::default(), |group| group.passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::PortId;

    /// m = 10, r = 100/s, 10 s idle, then 2000 packets in 0.2 s.
    fn passed_after_idle(published: bool) -> u32 {
        let mut bucket = Bucket::new(10, 10_000_000, published);
        (0..2000u64).map(|i| bucket.take(Instant(10_000_000_000 + i * 100_000), 1)).sum()
    }

    #[test]
    fn the_published_bucket_banks_idle_time() {
        assert_eq!(passed_after_idle(true), 1029);
    }

    #[test]
    fn the_cured_bucket_does_not() {
        assert_eq!(passed_after_idle(false), 29);
    }

    /// What each of three tenants' endpoints may get in 10 s, in full frames, where the second has
    /// this attachment.
    fn passed(attachment: Attachment) -> [u64; 3] {
        let mut policer = Policer::new(false);
        policer.set_link(Rate(90_000_000));
        for id in 0..3 {
            let tenant = Tenant { attachment: Attachment::Vlan(10 + id as u16), ..Tenant::default() };
            policer.set_tenant(TenantId(id), Some(&tenant));
            policer.set_endpoint(EndpointId(id), Some(&Endpoint::new(TenantId(id), PortId(id))));
        }
        policer.set_tenant(TenantId(1), Some(&Tenant { attachment: Attachment::Isolated, ..Tenant::default() }));
        policer.set_tenant(TenantId(1), Some(&Tenant { attachment, ..Tenant::default() }));
        [0, 1, 2]
            .map(|id| (0..100_000u64).map(|i| u64::from(policer.take(Instant(i * 100_000), EndpointId(id), 1))).sum())
    }

    #[test]
    fn who_has_no_way_to_the_uplink_takes_no_part_of_it() {
        let of = |mbit: u64| Rate(mbit * 1_000_000).bytes_in(10_000_000_000) / PACKET;
        let near = |passed: u64, mbit: u64| passed.abs_diff(of(mbit)) < of(mbit) / 100 + 200;
        let [first, _, last] = passed(Attachment::Isolated);
        assert!(near(first, 45) && near(last, 45), "{first} and {last}, of 45 Mbit/s {}", of(45));
        let all = passed(Attachment::Vlan(20));
        assert!(all.iter().all(|&one| near(one, 30)), "{all:?}, of 30 Mbit/s {}", of(30));
    }

    #[test]
    fn long_run_rate_is_the_refill_rate() {
        let mut bucket = Bucket::for_rate(Rate(100_000_000), false);
        let passed: u64 = (0..1_000_000u64).map(|i| u64::from(bucket.take(Instant(i * 10_000), 1))).sum();
        let ideal = Rate(100_000_000).bytes_in(10_000_000_000) / PACKET;
        assert!(passed.abs_diff(ideal) < ideal / 1000 + 200, "{passed} against {ideal}");
    }
}
