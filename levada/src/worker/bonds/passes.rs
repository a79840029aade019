//! Passes: what is said behind a bond goes over all endpoints, and that some times, but in parts,
//! so that no round of the worker takes long for it.

use datapath::units::Instant;
use std::ops::Range;

/// Endpoints, services or addresses in a round: some 20 us of the worker's time.
pub(super) const STEP: u32 = 8;

/// Passes over all endpoints that are yet to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Passes {
    left: u32,
    next: Instant,
    /// The endpoint that is next, and how many of its addresses have had their turn.
    at: u32,
    from: u32,
}

impl Passes {
    pub fn begin(count: u32, now: Instant) -> Option<Passes> {
        (count > 0).then_some(Passes { left: count, next: now, at: 0, from: 0 })
    }

    /// When there is something to do.
    pub fn due(&self) -> Instant {
        self.next
    }

    /// Those of `all` endpoints whose turn it is; none while nothing is due. `gap_ns` lies between
    /// two passes.
    pub fn step(passes: &mut Option<Passes>, all: u32, now: Instant, gap_ns: u64) -> Range<u32> {
        let Some((at, _)) = Passes::place(passes.as_ref(), now) else { return 0..0 };
        let end = all.min(at + STEP);
        Passes::reach(passes, (end, 0), all, now, gap_ns);
        at..end
    }

    /// The endpoint whose turn it is, and how many of its addresses have had theirs; `None` while
    /// nothing is due.
    pub fn place(passes: Option<&Passes>, now: Instant) -> Option<(u32, u32)> {
        passes.filter(|pass| pass.next <= now).map(|pass| (pass.at, pass.from))
    }

    /// Endpoints before one have had their turn in this pass, and some of its addresses.
    pub fn reach(passes: &mut Option<Passes>, (at, from): (u32, u32), all: u32, now: Instant, gap_ns: u64) {
        if let Some(pass) = passes {
            *pass = match at < all {
                true => Passes { at, from, ..*pass },
                false => Passes { left: pass.left - 1, next: now.plus_ns(gap_ns), at: 0, from: 0 },
            };
        }
        *passes = passes.filter(|pass| pass.left > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has its turn in rounds 10 ns apart, each with when that was.
    fn rounds(count: u32, all: u32, gap_ns: u64) -> Vec<(u64, Range<u32>)> {
        let (mut passes, mut turns) = (Passes::begin(count, Instant(1000)), Vec::new());
        for now in (900..4000).step_by(10) {
            let is_due = passes.is_some_and(|passes| passes.due() <= Instant(now));
            let turn = Passes::step(&mut passes, all, Instant(now), gap_ns);
            assert!(is_due || turn.is_empty(), "{now}: {turn:?}");
            if !turn.is_empty() {
                turns.push((now, turn));
            }
        }
        assert_eq!(passes, None, "it has an end");
        turns
    }

    #[test]
    fn each_pass_is_in_parts_and_a_gap_lies_between_two() {
        let one = |at: u64| [(at, 0..8), (at + 10, 8..16), (at + 20, 16..20)];
        assert_eq!(rounds(1, 20, 500), one(1000));
        assert_eq!(rounds(3, 20, 500), [one(1000), one(1520), one(2040)].concat());
        assert_eq!(rounds(2, 8, 0), [(1000, 0..8), (1010, 0..8)]);
        assert_eq!(rounds(255, 3, 0).len(), 255);
        assert!(rounds(0, 20, 500).is_empty());
        assert!(rounds(2, 0, 500).is_empty(), "nobody is there, and nothing is due for ever");
    }

    /// An endpoint with many addresses has its turn until all have had theirs.
    #[test]
    fn a_pass_goes_on_within_an_endpoint() {
        let now = Instant(7);
        let mut passes = Passes::begin(2, now);
        assert_eq!(Passes::place(passes.as_ref(), Instant(6)), None);
        for place in [(0, 8), (0, 16), (1, 3)] {
            Passes::reach(&mut passes, place, 2, now, 100);
            assert_eq!(Passes::place(passes.as_ref(), now), Some(place));
        }
        Passes::reach(&mut passes, (2, 0), 2, now, 100);
        assert_eq!(Passes::place(passes.as_ref(), now), None, "the next pass is later");
        assert_eq!(Passes::place(passes.as_ref(), Instant(107)), Some((0, 0)));
        Passes::reach(&mut passes, (2, 0), 2, Instant(107), 100);
        assert_eq!(passes, None);
    }
}
