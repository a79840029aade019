//! Flaps: links between two switches that fail and come back at times from a seed, of which there
//! is always one that has been in use for a while.
//!
//! A link fails with all that is under way on it. Where its carrier goes, each end is told of that
//! a while later, and likewise when it is back.

use datapath::bond::MemberId;
use datapath::link::Side;

use crate::random::Random;
use crate::topology::Fault;

const MS: u64 = 1_000_000;
/// An end is told of a carrier after so long at most, in nanoseconds.
const TOLD_NS: u64 = MS;
/// A link that had lost its carrier is in use again after so long, in nanoseconds: both ends have
/// been told, and have answered.
const CARRIER_SETTLES_NS: u64 = 5 * MS;
/// A link that was silent: hellos are heard again, and have been for a while.
const SILENCE_SETTLES_NS: u64 = 350 * MS;

/// How a link fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Both ends lose the carrier.
    Carrier,
    /// Nothing arrives at either end, and carriers stay.
    Silent,
    /// The same of one direction.
    OneWay,
    /// Nothing arrives at either end, and one of them loses the carrier.
    OneEnd,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 4] = [Kind::Carrier, Kind::Silent, Kind::OneWay, Kind::OneEnd];

    fn settles_ns(self) -> u64 {
        if self == Kind::Carrier { CARRIER_SETTLES_NS } else { SILENCE_SETTLES_NS }
    }
}

/// A link that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flap {
    /// Which one.
    pub link: usize,
    /// How.
    pub kind: Kind,
    /// When, in nanoseconds.
    pub at: u64,
    /// When it is back.
    pub end: u64,
}

/// What failures are drawn from; times in milliseconds, at least and at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// How links fail: one of these each time.
    pub kinds: &'static [Kind],
    /// For how long.
    pub lasts_ms: (u64, u64),
    /// How long after the failure before.
    pub apart_ms: (u64, u64),
}

impl Pattern {
    /// Failures of so many links from one time to another, in nanoseconds.
    #[must_use]
    pub fn draw(&self, random: &mut Random, links: usize, (from, until): (u64, u64)) -> Vec<Flap> {
        let mut flaps: Vec<Flap> = Vec::new();
        let draw = |random: &mut Random, (least, most): (u64, u64)| random.range(least * MS, most * MS);
        let mut at = from;
        loop {
            at += draw(random, self.apart_ms);
            let end = at + draw(random, self.lasts_ms);
            let (kind, link) = (*random.pick(self.kinds), random.range(0, links as u64 - 1) as usize);
            if end > until {
                return flaps;
            }
            let is_back = |link: usize, settles: bool| {
                let before = flaps.iter().rev().find(|flap| flap.link == link);
                before.is_none_or(|flap| flap.end + if settles { flap.kind.settles_ns() } else { 2 * TOLD_NS } <= at)
            };
            if is_back(link, false) && (0..links).any(|other| other != link && is_back(other, true)) {
                flaps.push(Flap { link, kind, at, end });
            }
        }
    }
}

/// What happens by them to two switches, whose members are the links.
#[must_use]
pub fn faults(random: &mut Random, flaps: &[Flap]) -> Vec<(u64, Fault)> {
    let mut faults = Vec::new();
    for &Flap { link, kind, at, end } in flaps {
        let one = *random.pick(&Side::ALL);
        for side in Side::ALL {
            if kind != Kind::OneWay || side == one {
                for (at, is_silent) in [(at, true), (end, false)] {
                    faults.push((at, Fault::Cut { link, from: side, is_silent }));
                }
            }
            if kind == Kind::Carrier || kind == Kind::OneEnd && side == one {
                for (at, is_up) in [(at, false), (end, true)] {
                    let at = at + random.range(0, TOLD_NS);
                    faults.push((at, Fault::Member { switch: side as usize, member: MemberId(link as u8), is_up }));
                }
            }
        }
    }
    faults
}

/// How much of the time from one moment to another links are up, all together.
#[must_use]
pub fn up_ns(flaps: &[Flap], links: usize, (from, until): (u64, u64)) -> u64 {
    let down = flaps.iter().map(|flap| flap.end.min(until).saturating_sub(flap.at.max(from)));
    (until - from) * links as u64 - down.sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_always_up_and_all_of_them_fail() {
        for seed in 0..50 {
            let pattern = Pattern { kinds: &Kind::ALL, lasts_ms: (20, 80), apart_ms: (0, 60) };
            let flaps = pattern.draw(&mut Random::new(seed), 3, (0, 3_000 * MS));
            assert!(flaps.len() > 10);
            for at in (0..3_000 * MS).step_by(MS as usize / 2) {
                let down =
                    |link: usize| flaps.iter().any(|flap| flap.link == link && (flap.at..flap.end).contains(&at));
                assert!((0..3).any(|link| !down(link)), "seed {seed}: none is up at {at}");
            }
            assert!((0..3).all(|link| flaps.iter().any(|flap| flap.link == link)), "seed {seed}");
        }
    }

    #[test]
    fn what_links_are_up_is_summed() {
        let flap = |link, at, end| Flap { link, kind: Kind::Carrier, at, end };
        assert_eq!(up_ns(&[flap(0, 5, 20), flap(1, 50, 60)], 2, (10, 100)), 180 - 10 - 10);
    }
}
