//! Tags and clocks: how much service a child has had, on the scale on which the children of a level are compared.
//!
//! A *tag* counts a child's service in time: one byte costs `1 / weight`. The clock V says how far the level has come, and whoever
//! becomes backlogged starts at the later of its own tag and V, so that idle time is never banked. There are two clocks:
//!
//! - **virtual** (share orders). V follows the service given: it is kept at the mean of the backlogged children's tags, weighted by their
//!   weights, and never goes back. This is the zero sum of lags of EEVDF (Stoica and Abdel-Wahab 1995). While the set of backlogged
//!   children is stable V grows by `bytes / sum of weights`, as WF2Q+ wants it; when children come and go it stays tied to those who are
//!   there. (Adding `bytes / sum` without regard to who left lets V run away from a child that stays; dividing by the weights of idle
//!   children too makes heavy children wait for light ones.) It follows that some backlogged child always has its tag at or before V,
//!   so WF2Q+'s jump to the smallest start tag is implied.
//! - **link time** (real orders). V comes from outside. It may stand still or jump; it slips back where the children cannot be
//!   served as fast as promised, so that a debt stays bounded and whoever is new does not wait for it to be paid.
//!
//! Tags are `u64`, compared by wrapping differences, and 16 bits more (the *era*) while a child is idle: a share order that serves a
//! single child of weight 1 at 400 Gbit/s wraps a tag every 1.6 hours, and an era would alias after six years of that.

use crate::units::{Instant, Rate};

/// Tag units that a byte costs a child of weight 1, as a power of two: the largest weight, 65535, still pays one unit a byte.
pub(super) const SHARE_UNIT_BITS: u32 = 16;
/// Real tags are link time in 1/256 ns: a `u64` then spans 2.2 years, and 84 bytes at 400 Gbit/s are 430 units.
const LINK_TIME_BITS: u32 = 8;
/// Bits of a cost, and of a tag, below one unit. With them a cost is exact to 0.0008 % for any weight and to 0.0002 % for any rate.
const FRACTION_BITS: u32 = 16;
/// The largest weight; a record keeps it in 16 bits.
pub const MAX_WEIGHT: u32 = 65_535;
/// Longest length that one charge can carry, in bytes. It keeps every product of length and cost within 64 bits of tag.
pub const MAX_CHARGE: u32 = (1 << 24) - 1;
/// A debt below this much link time is never forgiven: the loop may sleep or be held up that long in normal operation.
const FORGIVEN_AFTER: u64 = 1_000_000 << LINK_TIME_BITS;
/// A V this much in the past is a clock that went back (about 5 hours); further "back" it is a long silence, and V wrapped.
const MAX_STEP_BACK: u64 = 1 << 52;
/// No tag leads or lags V by more than this: half of what wrapping differences can tell apart.
const MAX_LEAD: i128 = 1 << 62;

/// The link time of `now`, as the V of a real order.
#[must_use]
pub const fn link_time(now: Instant) -> u64 {
    now.0 << LINK_TIME_BITS
}

/// What a byte costs a child, in tag units: the inverse of its weight or rate, in fixed point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weight {
    cost: u64,
    weight: u16,
}

impl Weight {
    /// For share orders: an integer weight, held within 1..=65535.
    #[must_use]
    pub fn from_weight(weight: u32) -> Self {
        let weight = weight.clamp(1, MAX_WEIGHT);
        let one = 1_u64 << (SHARE_UNIT_BITS + FRACTION_BITS);
        Weight { cost: (one + u64::from(weight) / 2) / u64::from(weight), weight: weight as u16 }
    }

    /// For real orders: a rate, held within [`Rate::MIN`] and [`Rate::MAX`].
    #[must_use]
    pub fn from_rate(rate: Rate) -> Self {
        const BIT_NS: u64 = 8_000_000_000;
        let bps = rate.0.clamp(Rate::MIN.0, Rate::MAX.0);
        Weight { cost: ((BIT_NS << (LINK_TIME_BITS + FRACTION_BITS)) + bps / 2) / bps, weight: 1 }
    }

    /// Tag units that `len` bytes cost, rounded down.
    pub(super) fn span(self, len: u32) -> u64 {
        scaled(self.cost, len, 0).0
    }
}

/// `len` times `cost` and a fraction: whole units, and the fraction left.
fn scaled(cost: u64, len: u32, fraction: u16) -> (u64, u16) {
    let product = u128::from(cost) * u128::from(len.min(MAX_CHARGE)) + u128::from(fraction);
    ((product >> FRACTION_BITS) as u64, product as u16)
}

/// Whether tag `a` is later than tag `b`, both being of the present.
pub(super) const fn later(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) > 0
}

/// How far a child has come: its finish tag so far, which is the start tag of its head frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tag {
    /// Start tag in whole units.
    pub start: u64,
    /// Units a byte, in 48.16 fixed point; 0 where the child was never given a weight.
    cost: u64,
    /// The rest of `start`, in 1/65536 of a unit.
    fraction: u16,
    /// The weight; 1 in real orders.
    weight: u16,
    /// Bits 64..80 of `start`, valid while the child is idle.
    era: u16,
    /// Where the child is filed: two bytes for the order's own use, so that a child of `fair` fits in 32.
    pub place: [u8; 2],
}

impl Tag {
    /// Whether the child was ever given a weight.
    pub fn is_known(&self) -> bool {
        self.cost != 0
    }

    /// The weight in tag units.
    pub fn weight(&self) -> Weight {
        Weight { cost: self.cost, weight: self.weight }
    }

    /// The weight as the integer that was given.
    pub fn share(&self) -> u32 {
        u32::from(self.weight)
    }

    /// Moves the tag on by `len` bytes of service; the whole units it moved.
    fn advance(&mut self, len: u32) -> u64 {
        let (units, fraction) = scaled(self.cost, len, self.fraction);
        self.start = self.start.wrapping_add(units);
        self.fraction = fraction;
        units
    }
}

/// Which clock a level runs on.
#[derive(Clone, Debug)]
enum Source {
    /// V follows service. `lead` is the sum of `weight x (start - V)` over the backlogged children, `weight` the sum of their weights.
    Service { lead: i64, weight: u64 },
    /// V follows a clock outside, last seen at this reading.
    Outside { seen: Option<u64> },
}

/// The clock V of one level, of either kind.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    now: u128,
    source: Source,
}

impl Clock {
    /// A clock of a share order.
    pub fn of_service() -> Self {
        Clock { now: 0, source: Source::Service { lead: 0, weight: 0 } }
    }

    /// A clock of a real order.
    pub fn of_link() -> Self {
        Clock { now: 0, source: Source::Outside { seen: None } }
    }

    /// Whether V follows a clock outside.
    pub fn is_real(&self) -> bool {
        matches!(self.source, Source::Outside { .. })
    }

    /// V, in tag units.
    pub fn v(&self) -> u64 {
        self.now as u64
    }

    fn era(&self) -> u16 {
        (self.now >> 64) as u16
    }

    /// The era of a tag of the present.
    fn era_of(&self, tag: &Tag) -> u16 {
        let ahead = tag.start.wrapping_sub(self.v()) as i64;
        (self.now.wrapping_add_signed(i128::from(ahead)) >> 64) as u16
    }

    /// Takes a reading of the outside clock. Share orders ignore it.
    pub fn observe(&mut self, v: u64) {
        let Source::Outside { seen } = &mut self.source else { return };
        match seen {
            Some(last) if last.wrapping_sub(v) < MAX_STEP_BACK => {}
            Some(last) => {
                self.now += u128::from(v.wrapping_sub(*last));
                *last = v;
            }
            None => {
                self.now += u128::from(v);
                *seen = Some(v);
            }
        }
    }

    /// A child became backlogged: it starts at the later of its own tag and V.
    pub fn join(&mut self, tag: &mut Tag) {
        self.start(tag);
        let ahead = tag.start.wrapping_sub(self.v()) as i64;
        if let Source::Service { lead, weight } = &mut self.source {
            *weight += u64::from(tag.weight);
            *lead = lead.saturating_add(ahead.saturating_mul(i64::from(tag.weight)));
        }
        self.settle();
    }

    /// A backlogged child leaves, served or not; it keeps its tag.
    pub fn leave(&mut self, tag: &mut Tag) {
        let ahead = tag.start.wrapping_sub(self.v()) as i64;
        tag.era = self.era_of(tag);
        if let Source::Service { lead, weight } = &mut self.source {
            *weight = weight.saturating_sub(u64::from(tag.weight));
            *lead = lead.saturating_sub(ahead.saturating_mul(i64::from(tag.weight)));
        }
        self.settle();
    }

    /// A backlogged child was served `len` bytes.
    pub fn serve(&mut self, tag: &mut Tag, len: u32) {
        let units = tag.advance(len);
        if let Source::Service { lead, .. } = &mut self.source {
            *lead = lead.saturating_add((units as i64).saturating_mul(i64::from(tag.weight)));
        }
        self.settle();
    }

    /// Gives a child another weight. What it is ahead or (while backlogged) behind by stays the same in bytes.
    pub fn reweigh(&mut self, tag: &mut Tag, to: Weight, backlogged: bool) {
        if !backlogged {
            self.start(tag);
        }
        let from = tag.weight();
        let ahead = tag.start.wrapping_sub(self.v()) as i64;
        let moved = if tag.is_known() { i128::from(ahead) * i128::from(to.cost) / i128::from(from.cost) } else { 0 };
        let moved = moved.clamp(-MAX_LEAD, MAX_LEAD) as i64;
        *tag =
            Tag { start: self.v().wrapping_add_signed(moved), cost: to.cost, fraction: 0, weight: to.weight, ..*tag };
        if !backlogged {
            tag.era = self.era_of(tag);
        } else if let Source::Service { lead, weight } = &mut self.source {
            *weight = *weight - u64::from(from.weight) + u64::from(to.weight);
            *lead = lead
                .saturating_sub(ahead.saturating_mul(i64::from(from.weight)))
                .saturating_add(moved.saturating_mul(i64::from(to.weight)));
        }
        self.settle();
    }

    /// Real orders: where a child about to be served lags by more than `slack` units, and by more than normal operation explains, the
    /// level has less capacity than it promised, or the clock jumped. V slips, for all alike: so guarantees shrink in proportion.
    pub fn forgive(&mut self, tag: &Tag, slack: u64) {
        let lag = self.v().wrapping_sub(tag.start) as i64;
        let slack = slack.max(FORGIVEN_AFTER);
        if self.is_real() && lag > 0 && lag as u64 > slack {
            self.now = self.now.saturating_sub(u128::from(lag as u64 - slack));
        }
    }

    /// The later of the child's tag and V, by eras while it was idle.
    fn start(&self, tag: &mut Tag) {
        let ahead = match tag.era.wrapping_sub(self.era()) as i16 {
            0 => tag.start > self.v(),
            eras => eras > 0,
        };
        if !ahead {
            (tag.start, tag.fraction) = (self.v(), 0);
        }
    }

    /// Moves V up to the mean of the backlogged children's tags; what is less than one unit stays in `lead`.
    fn settle(&mut self) {
        let Source::Service { lead, weight } = &mut self.source else { return };
        if *weight == 0 {
            *lead = 0;
        } else if *lead > 0 && *lead as u64 >= *weight {
            let units = *lead as u64 / *weight;
            *lead -= (units * *weight) as i64;
            self.now += u128::from(units);
        }
    }

    /// Starts V elsewhere, to see tags wrap.
    #[cfg(test)]
    pub fn set(&mut self, now: u128) {
        self.now = now;
    }

    /// The sums are those of the backlogged children, and one of them may be served.
    #[cfg(test)]
    pub fn check<'a>(&self, backlogged: impl Iterator<Item = &'a Tag> + Clone) {
        let Source::Service { lead, weight } = self.source else { return };
        let ahead = |tag: &Tag| i64::from(tag.weight) * (tag.start.wrapping_sub(self.v()) as i64);
        assert_eq!(weight, backlogged.clone().map(|tag| u64::from(tag.weight)).sum::<u64>());
        assert_eq!(lead, backlogged.clone().map(ahead).sum::<i64>());
        assert!(weight == 0 || backlogged.clone().any(|tag| !later(tag.start, self.v())));
    }
}
