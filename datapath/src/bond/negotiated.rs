//! What a member's link has negotiated: its speed, and whether both ends may send at once.

use crate::units::Rate;

/// Whether both ends of a link may send at once; of two, the better is more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Duplex {
    /// Nobody says.
    #[default]
    Unknown,
    /// One at a time.
    Half,
    /// Both.
    Full,
}

impl Duplex {
    /// As `show` has it; `None` where nobody says.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Duplex::Unknown => None,
            Duplex::Half => Some("half"),
            Duplex::Full => Some("full"),
        }
    }
}

/// What a link has negotiated, as far as its driver says so.
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

    /// What it carries of a rate.
    #[must_use]
    pub fn carries(self, rate: Rate) -> Rate {
        self.speed().map_or(rate, |speed| rate.min(speed))
    }
}
