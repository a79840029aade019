//! Flood budgets: how many frames an endpoint, or a network from the uplink, may have copied to a
//! whole network, and how many bytes of copies an endpoint, a tenant, or a network from the uplink
//! may cause.
//!
//! Broadcast, multicast and unknown destinations cost everyone in the network; a token bucket for
//! each source bounds that (storm control). A loop between two switches multiplies frames: the same
//! budget contains it. A frame of 64 KiB to a hundred members is 6 MB, so frames alone are no
//! bound.
//!
//! A quarter of each budget is kept for what asks for addresses (ARP, neighbour discovery), so that
//! one's own bulk multicast does not stop that.

use crate::units::{Instant, Rate};

const NS: u64 = 1_000_000_000;
/// What is saved of a budget for copies, in time at its rate. One frame may overdraw it: nobody's
/// whole budget is less than a frame.
const SAVED_NS: u64 = NS / 4;
/// The most that is remembered of what was overdrawn, and more than one frame overdraws: a week. A
/// frame of 64 KiB to a thousand members is 6.4 days at 1 kbit/s, 11 s at 50 Mbit/s.
const OVERDRAWN_NS: u64 = 7 * 86_400 * NS;

/// What may be flooded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FloodLimits {
    /// Frames a second.
    pub per_second: u32,
    /// Copies, in wire bits a second of all of them together.
    pub rate: Rate,
}

impl FloodLimits {
    /// Of a network from the uplink, where nothing is said: many hosts are behind it. The copies
    /// are those of a tenant of 1000 endpoints that receives 297 ARP requests a second (84 bytes
    /// each, copied a thousand times).
    pub const UPLINK: FloodLimits = FloodLimits { per_second: 20_000, rate: Rate(200_000_000) };
}

/// Whose budget it is that lets a frame pass, or does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The endpoint's that sends it.
    Sender,
    /// Its tenant's.
    Tenant,
    /// From outside: the network's.
    Network,
}

impl Default for FloodLimits {
    fn default() -> Self {
        FloodLimits::UPLINK
    }
}

/// What a frame takes of budgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flooded {
    /// Wire bytes of all copies.
    pub bytes: u64,
    /// It asks for an address, or tells one.
    pub asks: bool,
}

/// What is left of a budget, to go on with elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Saved {
    /// In billionths of a frame.
    pub frames: u64,
    /// What is used of the budget for copies, in nanoseconds at its rate.
    pub used_ns: u64,
}

/// Token buckets of one source: frames, and bytes of copies.
#[derive(Clone, Copy, Debug)]
pub struct FloodBudget {
    per_second: u64,
    /// Tokens in billionths.
    tokens: u64,
    refilled: Instant,
    copies: CopyBudget,
}

impl FloodBudget {
    /// So many frames, a quarter second of them at once (at least 32, so that a host may start),
    /// and so many copies.
    #[must_use]
    pub fn new(limits: FloodLimits) -> Self {
        let per_second = u64::from(limits.per_second);
        FloodBudget {
            per_second,
            tokens: Self::capacity(per_second),
            refilled: Instant::ZERO,
            copies: CopyBudget::new(limits.rate),
        }
    }

    /// Changes the budget; what was saved of it stays, up to what the new one holds.
    pub fn set_limits(&mut self, now: Instant, limits: FloodLimits) {
        self.refill(now);
        self.per_second = u64::from(limits.per_second);
        self.tokens = self.tokens.min(Self::capacity(self.per_second));
        self.copies.set_rate(now, limits.rate);
    }

    /// What is saved of the budget.
    #[must_use]
    pub fn saved(&self, now: Instant) -> Saved {
        let mut budget = *self;
        budget.refill(now);
        Saved { frames: budget.tokens, used_ns: self.copies.used_ns(now) }
    }

    /// Continues with what another budget had saved `away_ns` ago.
    pub fn restore(&mut self, now: Instant, away_ns: u64, saved: Saved) {
        let capacity = Self::capacity(self.per_second);
        self.tokens = (saved.frames.min(capacity) + away_ns.min(NS) * self.per_second).min(capacity);
        self.refilled = now;
        self.copies.restore(now, away_ns, saved.used_ns);
    }

    /// Frames that may be flooded at once at `now`; those that ask may use all of what is saved.
    #[must_use]
    pub fn left(&self, now: Instant, asks: bool) -> u64 {
        let mut budget = *self;
        budget.refill(now);
        let kept = if asks { 0 } else { Self::capacity(self.per_second) / 4 };
        let frames = budget.tokens.saturating_sub(kept) / NS;
        if self.copies.allows(now, asks) { frames } else { 0 }
    }

    /// A frame is flooded at `now`.
    pub fn charge(&mut self, now: Instant, flooded: Flooded) {
        self.refill(now);
        self.tokens = self.tokens.saturating_sub(NS);
        self.copies.charge(now, flooded.bytes);
    }

    /// Whether one more frame may be flooded at `now`; if so, it is charged.
    pub fn take(&mut self, now: Instant, flooded: Flooded) -> bool {
        let may = self.left(now, flooded.asks) > 0;
        if may {
            self.charge(now, flooded);
        }
        may
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.since(self.refilled).min(NS);
        self.refilled = now;
        self.tokens = (self.tokens + elapsed * self.per_second).min(Self::capacity(self.per_second));
    }

    fn capacity(per_second: u64) -> u64 {
        if per_second == 0 { 0 } else { (per_second / 4).max(32) * NS }
    }
}

/// A token bucket for bytes of copies, kept as the moment at which it is full again.
#[derive(Clone, Copy, Debug)]
pub struct CopyBudget {
    rate: Rate,
    full_at: Instant,
}

impl CopyBudget {
    /// A full one.
    #[must_use]
    pub fn new(rate: Rate) -> CopyBudget {
        CopyBudget { rate, full_at: Instant::ZERO }
    }

    /// Changes the rate; the same part of what it holds stays. What is overdrawn is paid at the new
    /// rate where that is higher: a lower one makes nobody wait longer for what he was allowed.
    pub fn set_rate(&mut self, now: Instant, rate: Rate) {
        let used = self.used_ns(now);
        if let Some(overdrawn) = used.checked_sub(SAVED_NS)
            && rate > self.rate
        {
            let overdrawn = u128::from(overdrawn) * u128::from(self.rate.0) / u128::from(rate.0);
            self.full_at = now.plus_ns(SAVED_NS + overdrawn as u64);
        }
        self.rate = rate;
    }

    /// Whether there is some left at `now`.
    #[must_use]
    pub fn allows(&self, now: Instant, asks: bool) -> bool {
        let most = if asks { SAVED_NS } else { SAVED_NS / 4 * 3 };
        self.rate.0 > 0 && self.used_ns(now) < most
    }

    /// So many bytes are copied at `now`.
    pub fn charge(&mut self, now: Instant, bytes: u64) {
        if self.rate.is_limited() {
            let used = self.used_ns(now).saturating_add(self.rate.time_ns(bytes)).min(OVERDRAWN_NS);
            self.full_at = now.plus_ns(used);
        }
    }

    /// What is used of it, in nanoseconds at its rate.
    #[must_use]
    pub fn used_ns(&self, now: Instant) -> u64 {
        self.full_at.since(now)
    }

    /// Continues where another had used so much `away_ns` ago.
    pub fn restore(&mut self, now: Instant, away_ns: u64, used_ns: u64) {
        self.full_at = now.plus_ns(used_ns.min(OVERDRAWN_NS).saturating_sub(away_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn limits(per_second: u32, rate: Rate) -> FloodLimits {
        FloodLimits { per_second, rate }
    }

    fn bulk(bytes: u64) -> Flooded {
        Flooded { bytes, asks: false }
    }

    fn arp(bytes: u64) -> Flooded {
        Flooded { bytes, asks: true }
    }

    #[test]
    fn a_storm_is_held_to_the_budget() {
        for storm in [bulk(84), arp(84)] {
            let mut budget = FloodBudget::new(limits(1000, Rate::UNLIMITED));
            let passed = (0..1_000_000u64).filter(|i| budget.take(Instant(i * 10_000), storm)).count();
            assert!((10_000..=10_250).contains(&passed), "{passed} in 10 s");
        }
    }

    #[test]
    fn long_frames_to_many_are_held_to_the_bytes_of_their_copies() {
        // 64 KiB to 101 members, a thousand times a second.
        let frame = 101 * 68_000;
        let mut budget = FloodBudget::new(limits(1000, Rate(50_000_000)));
        let passed = (0..10_000u64).filter(|i| budget.take(Instant(i * MS), bulk(frame))).count() as u64;
        let bits = passed * frame * 8;
        assert!((500_000_000..=600_000_000).contains(&bits), "{bits} in 10 s");
    }

    #[test]
    fn what_one_frame_overdraws_is_paid_however_long_that_takes() {
        // 64 KiB to 999 members, at each second.
        let (rate, frame) = (Rate(1_000_000), 999 * 69_600);
        let mut budget = FloodBudget::new(limits(1000, rate));
        let passed = (1..=4000).filter(|second| budget.take(Instant(second * NS), bulk(frame))).count() as u64;
        let bits = passed * frame * 8;
        assert!((3_500_000_000..=4000 * rate.0 + frame * 8).contains(&bits), "{bits} in 4000 s");
        // Elsewhere it goes on.
        let mut next = FloodBudget::new(limits(1000, rate));
        let used_ns = 556 * NS;
        next.restore(Instant(NS), 100 * NS, Saved { frames: 0, used_ns });
        assert_eq!(next.saved(Instant(NS)).used_ns, 456 * NS);
    }

    #[test]
    fn without_frames_a_second_nothing_is_flooded() {
        let mut budget = FloodBudget::new(limits(0, Rate::UNLIMITED));
        assert_eq!((budget.left(Instant(1), true), budget.left(Instant(NS), false)), (0, 0));
        budget.set_limits(Instant(NS), limits(100, Rate::UNLIMITED));
        assert_eq!(budget.left(Instant(2 * NS), true), 32);
        budget.set_limits(Instant(2 * NS), limits(0, Rate::UNLIMITED));
        assert_eq!(budget.left(Instant(2 * NS), true), 0);
    }

    #[test]
    fn ones_own_bulk_does_not_stop_arp() {
        for rate in [Rate::UNLIMITED, Rate(50_000_000)] {
            let mut budget = FloodBudget::new(limits(1000, rate));
            let mut answered = 0;
            for i in 0..20_000 {
                let now = Instant(i * MS / 10);
                budget.take(now, bulk(100 * 84));
                if i % 100 == 0 {
                    answered += u32::from(budget.take(now, arp(100 * 84)));
                }
            }
            assert_eq!(answered, 200, "{rate}");
        }
    }

    #[test]
    fn nothing_is_flooded_without_a_budget_and_a_change_keeps_what_was_used() {
        let mut none = CopyBudget::new(Rate(0));
        assert!(!none.allows(Instant(NS), true));
        none.set_rate(Instant(NS), Rate(8_000));
        assert!(none.allows(Instant(NS), false));
        none.charge(Instant(NS), 1000);
        assert_eq!(none.used_ns(Instant(NS)), NS);
        none.set_rate(Instant(NS), Rate(80_000));
        assert!(!none.allows(Instant(NS), true), "all is used");
        assert_eq!(none.used_ns(Instant(NS)), NS / 4 + NS * 3 / 40, "and what is over is 75 ms at the new rate");
        none.set_rate(Instant(NS), Rate(8_000));
        assert_eq!(none.used_ns(Instant(NS)), NS / 4 + NS * 3 / 40, "which no change makes longer");
        none.charge(Instant(NS), u64::MAX);
        assert_eq!(none.used_ns(Instant(NS)), OVERDRAWN_NS);
        none.set_rate(Instant(NS), Rate::UNLIMITED);
        assert_eq!(none.used_ns(Instant(NS)), NS / 4);
        let mut next = CopyBudget::new(Rate(8_000));
        next.restore(Instant(5), OVERDRAWN_NS - NS, u64::MAX);
        assert_eq!(next.used_ns(Instant(5)), NS);
    }
}
