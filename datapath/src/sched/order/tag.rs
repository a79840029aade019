//! Tags and clocks: how much service a child has had, on the scale on which the children of a level
//! are compared.
//!
//! A *tag* counts a child's service in time: one byte costs `1 / weight`. The clock V says how far
//! the level has come, and whoever becomes backlogged starts at the later of its own tag and V, so
//! that idle time is never banked. There are two clocks:
//!
//! - **virtual** (share orders). V follows the service given: it is kept at the mean of the
//!   backlogged children's tags, weighted by their weights, and never goes back. This is the zero
//!   sum of lags of EEVDF (Stoica and Abdel-Wahab 1995). While the set of backlogged children is
//!   stable V grows by `bytes / sum of weights`, as WF2Q+ wants it; when children come and go it
//!   stays tied to those who are there. (Adding `bytes / sum` without regard to who left lets V run
//!   away from a child that stays; dividing by the weights of idle children too makes heavy
//!   children wait for light ones.) It follows that some backlogged child always has its tag at or
//!   before V, so WF2Q+'s jump to the smallest start tag is implied. What a child that leaves was
//!   ahead counts again when it returns before V has come that far. Only many children that take
//!   turns can make use of it: together they may get more than the fluid would give them, yet one
//!   that stays keeps at least its part by the weights of all.
//! - **link time** (real orders). V comes from outside. It may stand still or jump; it slips back
//!   where the children cannot be served as fast as promised, so that a debt stays bounded and
//!   whoever is new does not wait for it to be paid.
//!
//! Tags are `u64`, compared by wrapping differences, and 16 bits more (the *era*) while a child is
//! idle: a share order that serves a single child of weight 1 at 400 Gbit/s wraps a tag every 1.6
//! hours, and an era would alias after six years of that.

use crate::units::{Instant, Rate};

/// Tag units that a byte costs a child of weight 1, as a power of two: the largest weight, 65535,
/// still pays one unit a byte.
pub(super) const SHARE_UNIT_BITS: u32 = 16;
/// Real tags are link time in 1/256 ns: a `u64` then spans 2.2 years, and 84 bytes at 400 Gbit/s
/// are 430 units.
const LINK_TIME_BITS: u32 = 8;
/// Bits of a cost, and of a tag, below one unit. With them a cost is exact to 0.0008 % for any
/// weight and to 0.0002 % for any rate.
const FRACTION_BITS: u32 = 16;
/// The largest weight; a record keeps it in 16 bits.
pub const MAX_WEIGHT: u32 = 65_535;
/// Longest length that one charge can carry, in bytes. It keeps every product of length and cost
/// within 64 bits of tag.
pub const MAX_CHARGE: u32 = (1 << 24) - 1;
/// A debt below this much link time is never forgiven: the loop may sleep or be held up that long
/// in normal operation.
const FORGIVEN_AFTER: u64 = 1_000_000 << LINK_TIME_BITS;
/// A V this much in the past is a clock that went back (about 5 hours); further "back" it is a long
/// silence, and V wrapped.
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
#[inline]
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
    /// Where the child is filed: two bytes for the order's own use, so that a child of `fair` fits
    /// in 32.
    pub place: [u8; 2],
}

impl Tag {
    /// Whether the child was ever given a weight.
    #[inline]
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
    #[inline]
    fn advance(&mut self, len: u32) -> u64 {
        let (units, fraction) = scaled(self.cost, len, self.fraction);
        self.start = self.start.wrapping_add(units);
        self.fraction = fraction;
        units
    }
}

/// The clock V of one level, of either kind.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// V, and bits 64..80 of it.
    v: u64,
    era: u16,
    /// Whether V follows a clock outside, and its last reading.
    real: bool,
    seen: Option<u64>,
    /// Share clocks: the sum of `weight x (start - V)` over the backlogged children, and of their
    /// weights. The lead of a level of a million children that all were charged [`MAX_CHARGE`]
    /// fits.
    lead: i64,
    weight: u64,
}

impl Clock {
    /// A clock of a share order: V follows service.
    pub fn of_service() -> Self {
        Clock { v: 0, era: 0, real: false, seen: None, lead: 0, weight: 0 }
    }

    /// A clock of a real order: V follows readings.
    pub fn of_link() -> Self {
        Clock { real: true, ..Self::of_service() }
    }

    /// Whether V follows a clock outside.
    #[inline]
    pub fn is_real(&self) -> bool {
        self.real
    }

    /// V, in tag units.
    pub fn v(&self) -> u64 {
        self.v
    }

    fn advance(&mut self, units: u64) {
        let (v, wrapped) = self.v.overflowing_add(units);
        self.v = v;
        self.era = self.era.wrapping_add(u16::from(wrapped));
    }

    /// What a tag of the present is ahead of V; negative where it is behind.
    fn ahead(&self, tag: &Tag) -> i64 {
        tag.start.wrapping_sub(self.v) as i64
    }

    /// Writes down the era of a tag of the present, whose child becomes idle.
    fn rest(&self, tag: &mut Tag) {
        tag.era = match self.ahead(tag) >= 0 {
            true => self.era.wrapping_add(u16::from(tag.start < self.v)),
            false => self.era.wrapping_sub(u16::from(tag.start > self.v)),
        };
    }

    /// Takes a reading of the outside clock. Share orders ignore it.
    pub fn observe(&mut self, v: u64) {
        if !self.real || self.seen == Some(v) {
            return;
        }
        let units = match self.seen {
            Some(last) if last.wrapping_sub(v) < MAX_STEP_BACK => return,
            Some(last) => v.wrapping_sub(last),
            None => v,
        };
        self.seen = Some(v);
        self.advance(units);
    }

    /// A child became backlogged: it starts at the later of its own tag and V.
    pub fn join(&mut self, tag: &mut Tag) {
        self.start(tag);
        if !self.real {
            self.weight += u64::from(tag.weight);
            self.lead = self.lead.wrapping_add(self.ahead(tag).wrapping_mul(i64::from(tag.weight)));
            self.settle();
        }
    }

    /// A backlogged child leaves, served or not; it keeps its tag.
    pub fn leave(&mut self, tag: &mut Tag) {
        self.rest(tag);
        if !self.real {
            self.weight -= u64::from(tag.weight);
            self.lead = self.lead.wrapping_sub(self.ahead(tag).wrapping_mul(i64::from(tag.weight)));
            self.settle();
        }
    }

    /// A backlogged child was served `len` bytes.
    pub fn serve(&mut self, tag: &mut Tag, len: u32) {
        let units = tag.advance(len);
        if !self.real {
            self.lead = self.lead.wrapping_add((units as i64).wrapping_mul(i64::from(tag.weight)));
            self.settle();
        }
    }

    /// Where nobody is backlogged in a share order: a child becomes so, is served `len` bytes, and
    /// leaves. What [`Clock::join`], [`Clock::serve`] and [`Clock::leave`] do one after the other,
    /// where V is the mean of one.
    #[inline(always)]
    pub fn pass(&mut self, tag: &mut Tag, len: u32) {
        debug_assert!(!self.real);
        self.start(tag);
        tag.advance(len);
        self.era = self.era.wrapping_add(u16::from(tag.start < self.v));
        self.v = tag.start;
        tag.era = self.era;
    }

    /// The same in a real order, where the child is due: once the slot of 2^`slot_bits` units has
    /// come in which it starts. Whether it was.
    pub fn pass_if_due(&mut self, tag: &mut Tag, len: u32, slot_bits: u32) -> bool {
        self.start(tag);
        let is_due = !later(tag.start >> slot_bits << slot_bits, self.v);
        if is_due {
            tag.advance(len);
        }
        self.rest(tag);
        is_due
    }

    /// Gives a child another weight. What it is ahead or (while backlogged) behind by stays the
    /// same in bytes.
    pub fn reweigh(&mut self, tag: &mut Tag, to: Weight, backlogged: bool) {
        if !backlogged {
            self.start(tag);
        }
        let from = tag.weight();
        let before = self.ahead(tag);
        let after = if tag.is_known() { i128::from(before) * i128::from(to.cost) / i128::from(from.cost) } else { 0 };
        let after = after.clamp(-MAX_LEAD, MAX_LEAD) as i64;
        *tag = Tag { start: self.v.wrapping_add_signed(after), cost: to.cost, fraction: 0, weight: to.weight, ..*tag };
        if !backlogged {
            self.rest(tag);
        } else if !self.real {
            self.weight = self.weight - u64::from(from.weight) + u64::from(to.weight);
            let change =
                after.wrapping_mul(i64::from(to.weight)).wrapping_sub(before.wrapping_mul(i64::from(from.weight)));
            self.lead = self.lead.wrapping_add(change);
            self.settle();
        }
    }

    /// Real orders: where a child about to be served lags by more than `slack` units, and by more
    /// than normal operation explains, the level has less capacity than it promised, or the clock
    /// jumped. V slips, for all alike: so guarantees shrink in proportion.
    pub fn forgive(&mut self, tag: &Tag, slack: u64) {
        let slack = slack.max(FORGIVEN_AFTER);
        let lag = self.ahead(tag).saturating_neg();
        if self.real && lag > slack as i64 {
            let (v, wrapped) = self.v.overflowing_sub(lag as u64 - slack);
            self.v = v;
            self.era = self.era.wrapping_sub(u16::from(wrapped));
        }
    }

    /// The later of the child's tag and V, by eras while it was idle.
    #[inline]
    fn start(&self, tag: &mut Tag) {
        let ahead = match tag.era.wrapping_sub(self.era) as i16 {
            0 => tag.start > self.v,
            eras => eras > 0,
        };
        if !ahead {
            (tag.start, tag.fraction) = (self.v, 0);
        }
    }

    /// Moves V up to the mean of the backlogged children's tags; what is less than one unit stays
    /// in `lead`.
    fn settle(&mut self) {
        if self.weight == 0 {
            self.lead = 0;
        } else if self.lead >= self.weight as i64 {
            let units = self.lead as u64 / self.weight;
            self.lead -= (units * self.weight) as i64;
            self.advance(units);
        }
    }

    /// Starts V elsewhere, to see tags wrap.
    #[cfg(test)]
    pub fn set(&mut self, now: u128) {
        (self.v, self.era) = (now as u64, (now >> 64) as u16);
    }

    /// The sums are those of the backlogged children, and one of them may be served.
    #[cfg(test)]
    pub fn check<'a>(&self, backlogged: impl Iterator<Item = &'a Tag> + Clone) {
        if self.real {
            return;
        }
        assert_eq!(self.weight, backlogged.clone().map(|tag| u64::from(tag.weight)).sum::<u64>());
        assert_eq!(self.lead, backlogged.clone().map(|tag| i64::from(tag.weight) * self.ahead(tag)).sum::<i64>());
        assert!(self.weight == 0 || backlogged.clone().any(|tag| !later(tag.start, self.v)));
    }
}
