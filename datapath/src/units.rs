//! Time and rate as integers.
//!
//! The switch never reads a clock: `Instant` comes in as an argument. Durations are plain `u64`
//! with the suffix `_ns`.

use core::fmt;

/// A point in time: nanoseconds since an epoch that the shell chose (its own start, so that 2^56 ns
/// are 2.2 years).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// The epoch itself.
    pub const ZERO: Instant = Instant(0);

    /// This instant and `ns` nanoseconds more; stops at the end of time.
    #[must_use]
    pub const fn plus_ns(self, ns: u64) -> Instant {
        Instant(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`; zero where `earlier` is later.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The earlier of two deadlines, where there are any.
#[must_use]
#[inline]
pub fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A rate in bits a second of wire bytes (headers, preamble, FCS and gap included).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rate(pub u64);

impl Rate {
    /// Bits in a second at one Gbit/s.
    pub const GBIT: u64 = 1_000_000_000;
    /// Stands for "no limit".
    pub const UNLIMITED: Rate = Rate(u64::MAX);
    /// The slowest rate that may be configured: below it a single frame takes more than ten
    /// minutes.
    pub const MIN: Rate = Rate(1_000);
    /// The fastest rate that may be configured; the fixed point of the tags is exact to 0.01 % up
    /// to here.
    pub const MAX: Rate = Rate(400 * Rate::GBIT);

    /// Nanoseconds that `bytes` take at this rate, rounded up.
    #[must_use]
    #[inline]
    pub fn time_ns(self, bytes: u64) -> u64 {
        const UNIT: u64 = 8 * 1_000_000_000;
        if self.0 == 0 {
            return u64::MAX;
        }
        match bytes.checked_mul(UNIT) {
            // A frame, or what waits in a queue.
            Some(units) => units.div_ceil(self.0),
            None => {
                let ns = (u128::from(bytes) * u128::from(UNIT)).div_ceil(u128::from(self.0));
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        }
    }

    /// Whole bytes that pass in `ns` nanoseconds.
    #[must_use]
    pub fn bytes_in(self, ns: u64) -> u64 {
        let bytes = u128::from(self.0) * u128::from(ns) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// This rate times `part`/`whole`, rounded down.
    #[must_use]
    pub fn scaled(self, part: u64, whole: u64) -> Rate {
        let bps = u128::from(self.0) * u128::from(part) / u128::from(whole.max(1));
        Rate(u64::try_from(bps).unwrap_or(u64::MAX))
    }

    /// What is left of this rate where so many millionths of it are held back.
    #[must_use]
    pub fn less_ppm(self, held_back_ppm: u32) -> Rate {
        const PPM: u64 = 1_000_000;
        self.scaled(PPM - u64::from(held_back_ppm).min(PPM), PPM)
    }

    /// Whether this is a bound at all.
    #[must_use]
    pub const fn is_limited(self) -> bool {
        self.0 != u64::MAX
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => write!(f, "unlimited"),
            b if b >= Rate::GBIT && b % 1_000_000 == 0 => {
                write!(f, "{}.{:03} Gbit/s", b / Rate::GBIT, b % Rate::GBIT / 1_000_000)
            }
            b if b >= 1_000_000 => write!(f, "{}.{:03} Mbit/s", b / 1_000_000, b % 1_000_000 / 1000),
            b if b >= 1_000 => write!(f, "{}.{:03} kbit/s", b / 1000, b % 1000),
            b => write!(f, "{b} bit/s"),
        }
    }
}

/// Both directions of something: `egress` from the endpoints to the wire, `ingress` from the wire
/// to the endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Both<T> {
    /// From the endpoints to the wire.
    pub egress: T,
    /// From the wire to the endpoints.
    pub ingress: T,
}

impl<T> Both<T> {
    /// The value of one direction.
    pub fn get(&self, direction: Direction) -> &T {
        match direction {
            Direction::Egress => &self.egress,
            Direction::Ingress => &self.ingress,
        }
    }

    /// The value of one direction, to change it.
    pub fn get_mut(&mut self, direction: Direction) -> &mut T {
        match direction {
            Direction::Egress => &mut self.egress,
            Direction::Ingress => &mut self.ingress,
        }
    }
}

/// A direction, seen from the endpoint's owner: out to the wire, or in from it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From an endpoint towards the wire.
    Egress,
    /// Towards an endpoint.
    Ingress,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Direction; 2] = [Direction::Egress, Direction::Ingress];
}
