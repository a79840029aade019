//! What a member's link has negotiated: its speed, and whether both ends may send at once.

use crate::units::Rate;

/// Whether both ends of a link may send at once. Better values compare greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Duplex {
    /// The driver does not report it.
    #[default]
    Unknown,
    /// One end at a time.
    Half,
    /// Both at once.
    Full,
}

impl Duplex {
    /// The text in `show`; `None` if it is not known.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Duplex::Unknown => None,
            Duplex::Half => Some("half"),
            Duplex::Full => Some("full"),
        }
    }
}

/// What a link has negotiated, as far as its driver reports it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Negotiated {
    /// Its speed in Mbit/s.
    pub mbit: Option<u32>,
    /// Whether both ends may send at once.
    pub duplex: Duplex,
}

impl Negotiated {
    /// Its speed.
    #[must_use]
    pub fn speed(self) -> Option<Rate> {
        self.mbit.map(|mbit| Rate(u64::from(mbit) * 1_000_000))
    }

    /// The rate, or the speed if that is less.
    #[must_use]
    pub fn carries(self, rate: Rate) -> Rate {
        self.speed().map_or(rate, |speed| rate.min(speed))
    }
}
