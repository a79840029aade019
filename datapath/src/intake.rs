//! Intake: the uplink's part of the worker's time, shared among those for whom frames arrive.
//!
//! All that arrives by the uplink waits in one ring. While more arrives than the worker passes on,
//! the ring is full, and the kernel drops whatever comes next, whoever it is for. For whom a frame
//! is, is known once it is read, and to read it and drop it is the smaller part of its cost. So
//! while the ring [fills](Intake::set_prices), what is for a tenant beyond its share of that time
//! is dropped as soon as it is read. The ring is emptied sooner, nothing is lost at its end, and
//! once it has room again all is passed on.
//!
//! Shares are kept on virtual clocks, as in start-time fair queueing (Goyal, Vin and Cheng 1996). A
//! clock advances by what is spent, divided by the weights of all that are active; the tag of each
//! advances by what is spent for it, divided by its own. Whose tag is ahead of the clock has had
//! more than its share. There is a clock of all tenants. Each tenant has one, of its endpoints and
//! of what is for none of them. A tenant is charged for what is passed on. An endpoint is also
//! charged for reading what is dropped then: so a flood for one leaves the tenant's others theirs.
//!
//! Where only one tenant is active, or several have as much, nobody is beyond its share, and the
//! ring may become full all the same. Who receives a frame now and then would never be active: its
//! frames would be lost there. So from a quarter of the ring on, more and more is dropped, as by
//! RED (Floyd and Jacobson 1993), of all but those who have had little in this window.
//!
//! There is one tag for each endpoint and two for each tenant. Of what most is dropped, ports read
//! a part only ([`thin`]).

pub mod thin;

use crate::ids::{PortId, TenantId};
use crate::turns::Cost;
use crate::units::Instant;
use thin::{Destination, Thinning};

/// Nothing is passed on for a tenant that is further ahead of the clock than this, in nanoseconds
/// of the time of all. A burst is shorter.
const AHEAD_NS: u64 = 4_000_000;
/// For a tenant that is further ahead than this, only some of its frames are passed on: those for
/// an endpoint that is not the only active one there, and is ahead by [`PART_NS`] at most.
const NEARLY_NS: u64 = AHEAD_NS / 2;
const PART_NS: u64 = AHEAD_NS / 4;
/// Nobody gets further ahead, however long the ring fills. So the wait afterwards is bounded.
const MOST_NS: u64 = AHEAD_NS + PART_NS;
/// Active is who has had something in this window or the last.
const WINDOW_NS: u64 = 10_000_000;
/// A tenant's broadcasts and all else that is for none of its endpoints have this weight among
/// them: an eighth of the largest.
const REST_WEIGHT: u32 = 8_192;
/// How full a ring is, in parts of this.
pub const FULL: u32 = 1 << 16;
/// Little is what takes less than one of so many of one's share of a window.
const LITTLE_PART: u64 = 4;
/// Fixed point of clocks: a nanosecond by a weight of 1.
const SHIFT: u32 = 16;

/// What a frame from the uplink costs, as the worker has measured it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prices {
    /// To read it.
    pub read: Cost,
    /// To pass it on to its receiver's port.
    pub pass: Cost,
}

/// A virtual clock of some that share time.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    at: u128,
    window: u64,
    /// The weights of all that were active in this window or the last, and in this one.
    active: u64,
    now_active: u64,
}

/// What one of these has had, on their clock.
#[derive(Clone, Copy, Debug)]
struct Tag {
    at: u128,
    window: u64,
    weight: u32,
    /// What was spent for it in this window, in nanoseconds.
    spent_ns: u64,
}

impl Default for Tag {
    fn default() -> Self {
        Tag { at: 0, window: 0, weight: 1, spent_ns: 0 }
    }
}

impl Clock {
    /// One of those that share has something to spend. Who was not there lately has nothing to make
    /// up for, and nothing saved.
    fn enter(&mut self, tag: &mut Tag, window: u64) {
        if self.window != window {
            self.active = if self.window + 1 == window { self.now_active } else { 0 };
            (self.window, self.now_active) = (window, 0);
        }
        if tag.window != window {
            let weight = u64::from(tag.weight);
            if tag.window + 1 != window {
                self.active += weight;
                tag.at = self.at;
            }
            self.now_active += weight;
            (tag.window, tag.spent_ns) = (window, 0);
        }
        // One that is alone takes nobody's.
        tag.at = if self.is_alone(tag) { self.at } else { tag.at.max(self.at) };
    }

    /// Whether only one that has entered is active.
    fn is_alone(&self, tag: &Tag) -> bool {
        self.active == u64::from(tag.weight)
    }

    /// The share of one that has entered of `ns`.
    fn share_of(&self, ns: u64, tag: &Tag) -> u64 {
        ns * u64::from(tag.weight) / self.active.max(1)
    }

    /// By how much one that has entered is ahead, in nanoseconds of the time of all.
    fn ahead_ns(&self, tag: &Tag) -> u64 {
        let ahead = (tag.at.saturating_sub(self.at) * u128::from(self.active)) >> SHIFT;
        u64::try_from(ahead).unwrap_or(u64::MAX)
    }

    /// So much was spent for one that has entered. However long that goes on, none is further ahead
    /// than [`MOST_NS`].
    fn charge(&mut self, tag: &mut Tag, ns: u64) {
        let by = |ns: u64, weight: u64| (u128::from(ns) << SHIFT) / u128::from(weight.max(1));
        tag.spent_ns = tag.spent_ns.saturating_add(ns);
        self.at += by(ns, self.active);
        tag.at = (tag.at + by(ns, u64::from(tag.weight))).min(self.at + by(MOST_NS, self.active));
    }
}

/// What is kept of a tenant.
#[derive(Clone, Copy, Debug)]
struct OfTenant {
    tag: Tag,
    /// Of its endpoints, and of what is for none of them.
    clock: Clock,
    rest: Tag,
}

impl Default for OfTenant {
    fn default() -> Self {
        let rest = Tag { weight: REST_WEIGHT, ..Tag::default() };
        OfTenant { tag: Tag::default(), clock: Clock::default(), rest }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Intake {
    prices: Option<Prices>,
    /// How full the ring is, of [`FULL`].
    full: u32,
    /// The part of a frame that is to be dropped yet, of [`FULL`].
    owed: u32,
    tenants: Clock,
    /// By tenant.
    of_tenant: Vec<OfTenant>,
    /// By the endpoint's port.
    of_port: Vec<Tag>,
    /// What it costs to read a frame, as of the last time that the ring filled.
    read: Option<Cost>,
    thinning: Thinning,
}

impl Intake {
    /// Gives who is at a port its weight in its tenant, and that its weight among all (1 to 65535;
    /// a missing one counts as 1).
    pub fn set_weights(&mut self, (tenant, tenant_weight): (TenantId, u32), (port, weight): (PortId, u32)) {
        self.tenant(tenant).tag.weight = tenant_weight.max(1);
        self.port(port).weight = weight.max(1);
    }

    /// The uplink's ring fills, and a frame costs so much; or, with `None`, it does not. It is so
    /// full, of [`FULL`]: 0 where that cannot be told.
    pub fn set_prices(&mut self, prices: Option<Prices>, full: u32) {
        self.thinning.note_read(prices.is_some());
        (self.prices, self.full) = (prices, full.min(FULL));
        self.read = prices.map(|prices| prices.read).or(self.read);
    }

    /// Whether what arrives is shared out now, or thinned.
    #[inline(always)]
    pub fn is_awake(&self) -> bool {
        self.prices.is_some() || self.thinning.is_any()
    }

    /// Whether a frame of so many bytes that was read is to be passed on: to the port of a tenant's
    /// endpoint, or to what the tenant has in common. It is charged what it costs.
    pub fn passes(&mut self, now: Instant, tenant: TenantId, to: Option<PortId>, bytes: u64) -> bool {
        let Some(Prices { read, pass }) = self.prices else { return true };
        // The first one is none that follows what is not set.
        let window = now.0 / WINDOW_NS + 2;
        let OfTenant { mut tag, mut clock, rest } = *self.tenant(tenant);
        let mut part = to.map_or(rest, |to| *self.port(to));
        self.tenants.enter(&mut tag, window);
        clock.enter(&mut part, window);
        let ahead_ns = self.tenants.ahead_ns(&tag);
        let is_within_part = !clock.is_alone(&part) && clock.ahead_ns(&part) <= PART_NS;
        let is_within = match self.tenants.is_alone(&tag) {
            true => clock.is_alone(&part) || clock.ahead_ns(&part) <= NEARLY_NS,
            false => ahead_ns <= NEARLY_NS || ahead_ns < AHEAD_NS && is_within_part,
        };
        let of_window_ns = clock.share_of(self.tenants.share_of(WINDOW_NS, &tag), &part);
        let has_little = part.spent_ns < of_window_ns / LITTLE_PART;
        let passes = is_within && (has_little || !self.is_dropped_early());
        let mut cost_ns = read.of(1, bytes);
        if passes {
            cost_ns += pass.of(1, bytes);
            self.tenants.charge(&mut tag, cost_ns);
        }
        clock.charge(&mut part, cost_ns);
        match to {
            Some(to) => *self.port(to) = part,
            None => self.tenant(tenant).rest = part,
        }
        let of_tenant = self.tenant(tenant);
        (of_tenant.tag, of_tenant.clock) = (tag, clock);
        passes
    }

    /// Whether the next frame of those who have more than little is dropped as the ring is rather
    /// full: a part from a quarter of it on, and all from three quarters on. It begins with few,
    /// which is enough for TCP.
    fn is_dropped_early(&mut self) -> bool {
        let beyond = u64::from((2 * self.full.saturating_sub(FULL / 4)).min(FULL));
        self.owed += (beyond * beyond / u64::from(FULL)) as u32;
        let is_dropped = self.owed >= FULL;
        self.owed -= if is_dropped { FULL } else { 0 };
        is_dropped
    }

    /// What [`Intake::passes`] has said of a frame to a destination that ports can tell. About how
    /// many others to it they have dropped since the last one.
    pub fn note(&mut self, now: Instant, to: Destination, bytes: u64, passes: bool) -> u64 {
        let read_ns = self.read.map_or(0, |read| read.of(1, bytes));
        self.thinning.note(now, to, passes, read_ns)
    }

    /// Of what ports are to read a part.
    pub fn thinning(&mut self) -> &mut Thinning {
        &mut self.thinning
    }

    /// When to look at that, if no frame comes before.
    pub fn due(&self) -> Option<Instant> {
        self.thinning.due()
    }

    fn tenant(&mut self, tenant: TenantId) -> &mut OfTenant {
        place(&mut self.of_tenant, tenant.0)
    }

    fn port(&mut self, port: PortId) -> &mut Tag {
        place(&mut self.of_port, port.0)
    }
}

fn place<T: Clone + Default>(all: &mut Vec<T>, number: u32) -> &mut T {
    let at = number as usize;
    if all.len() <= at {
        all.resize(at + 1, T::default());
    }
    &mut all[at]
}

#[cfg(test)]
mod tests;
