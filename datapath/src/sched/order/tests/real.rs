//! Rates in link time: met, not exceeded by more than the constant, and sensible where more was
//! promised than there is.

use super::*;

/// Link time that `len` bytes take at `bps`.
fn time(bps: u64, len: u32) -> u64 {
    Weight::from_rate(Rate(bps)).span(len)
}

/// A level of these rates, all backlogged from link time `v` with frames of these lengths.
struct Link {
    order: Order,
    lens: Vec<u32>,
    capacity: u64,
    start: u64,
    v: u64,
    got: Vec<u64>,
}

impl Link {
    fn new(kind: OrderKind, capacity: u64, v: u64, rates: &[u64], lens: &[u32]) -> Self {
        let mut order = Order::real(kind, FRAME);
        for (child, (&rate, &len)) in rates.iter().zip(lens).enumerate() {
            order.set_weight(child as u32, Weight::from_rate(Rate(rate)));
            order.activate(child as u32, len, v);
        }
        Link { order, lens: lens.to_vec(), capacity, start: v, v, got: vec![0; rates.len()] }
    }

    /// Serves whoever is next, or lets others have the link for one small frame.
    fn step(&mut self) -> Option<usize> {
        let Some(child) = self.order.peek(self.v).map(|child| child as usize) else {
            self.v = self.v.wrapping_add(time(self.capacity, 84));
            return None;
        };
        self.order.charge(child as u32, self.lens[child], Some(self.lens[child]));
        self.v = self.v.wrapping_add(time(self.capacity, self.lens[child]));
        self.got[child] += u64::from(self.lens[child]);
        Some(child)
    }

    /// Runs for `ns`.
    fn run(&mut self, ns: u64) {
        let end = self.v.wrapping_add(ns << 8);
        while (self.v.wrapping_sub(end) as i64) < 0 {
            self.step();
        }
    }

    /// The bytes that `bps` is worth so far.
    fn ideal(&self, bps: u64) -> i64 {
        (u128::from(bps) * u128::from(self.v.wrapping_sub(self.start)) / (8_000_000_000 << 8)) as i64
    }
}

/// In longest frames, at any moment: what a child may be ahead and behind.
fn bounds(kind: OrderKind) -> (i64, i64) {
    if kind == OrderKind::Wf2q { (1, 2) } else { (3, 5) }
}

#[test]
fn rates_are_met_and_nobody_is_early_by_more_than_the_constant() {
    let sets = [
        (1_000_000_000, [100_000, 300_000_000, 500_000_000, 199_000_000], [84, 84, 1538, 700]),
        (100_000_000_000, [1_000_000_000, 40_000_000_000, 50_000_000_000, 8_000_000], [84, 84, 84, 1538]),
        (400_000_000_000, [399_000_000_000, 1_000, 64_000, 500_000_000], [84, 84, 1538, 1538]),
    ];
    for kind in EXACT {
        for (capacity, rates, lens) in sets {
            // Readings near the end of a u64 wrap; tags do, too.
            for start in [7, u64::MAX - (1 << 30)] {
                let mut link = Link::new(kind, capacity, start, &rates, &lens);
                let (ahead, behind) = bounds(kind);
                for _ in 0..1_000_000 {
                    let Some(child) = link.step() else { continue };
                    let off = link.got[child] as i64 - link.ideal(rates[child]);
                    assert!(off <= ahead * i64::from(FRAME), "{kind:?} {}: early by {off} bytes", rates[child]);
                }
                for (child, &rate) in rates.iter().enumerate() {
                    let off = link.ideal(rate) - link.got[child] as i64;
                    assert!(off <= behind * i64::from(FRAME), "{kind:?} {rate}: late by {off} bytes");
                }
            }
        }
    }
}

#[test]
fn tags_are_exact_to_a_part_in_ten_thousand() {
    for bps in [100_000, 999_999, 9_999_999_999, 100_000_000_000, 399_999_999_999] {
        let mut clock = tag::Clock::of_link();
        let mut tag = tag::Tag::default();
        clock.reweigh(&mut tag, Weight::from_rate(Rate(bps)), false);
        (0..100_000).for_each(|_| clock.serve(&mut tag, 84));
        let exact = (100_000 * 84 * 8 * 1_000_000_000_u128) << 8;
        assert!((u128::from(tag.start) * u128::from(bps)).abs_diff(exact) < exact / 100_000, "{bps}");
    }
}

/// A clock and a tag of 128 bits, which never wrap, beside those of 64 bits and an era.
#[test]
fn tags_and_eras_are_those_of_a_clock_that_never_wraps() {
    let mut dice = Dice(3);
    let (mut clock, mut tag) = (tag::Clock::of_link(), tag::Tag::default());
    let (mut v, mut start) = (1_u128 << 20, 1_u128 << 20);
    clock.observe(1 << 20);
    clock.reweigh(&mut tag, Weight::from_rate(Rate::MIN), false);
    let (mut ahead, mut wraps) = (0, 0);
    let mut jump = |dice: &mut Dice, clock: &mut tag::Clock| {
        let bits = dice.below(62);
        let to = v + u128::from(dice.below(1 << bits));
        wraps += (to >> 64) - (v >> 64);
        v = to;
        clock.observe(v as u64);
        v
    };
    for _ in 0..200_000 {
        let v = jump(&mut dice, &mut clock);
        clock.join(&mut tag);
        ahead += u32::from(start > v);
        start = start.max(v);
        assert_eq!((tag.start, clock.v()), (start as u64, v as u64));
        for _ in 0..dice.below(8) {
            if start > v + (1 << 61) {
                break;
            }
            let before = tag.start;
            clock.serve(&mut tag, dice.below(u64::from(MAX_CHARGE)) as u32);
            start += u128::from(tag.start.wrapping_sub(before));
        }
        jump(&mut dice, &mut clock);
        clock.leave(&mut tag);
    }
    assert!(ahead > 1000 && wraps > 100, "{ahead} returns before V, {wraps} wraps");
}

#[test]
fn promises_beyond_the_link_shrink_in_proportion() {
    for kind in EXACT {
        let rates = [600_000_000, 300_000_000, 100_000_000, 600_000_000];
        let mut link = Link::new(kind, 800_000_000, 0, &rates, &[1538, 84, 700, 1538]);
        link.order.deactivate(3);
        link.run(2_000_000_000);
        for (child, rate) in rates.into_iter().enumerate().take(3) {
            let ideal = link.ideal(rate * 8 / 10);
            let off = ideal.abs_diff(link.got[child] as i64);
            assert!(off <= ideal as u64 / 100, "{kind:?}: {:?}, ideal {ideal}", link.got);
        }
        // Whoever is new does not wait for the others' debts.
        link.order.activate(3, 1538, link.v);
        let since = link.v;
        while link.step() != Some(3) {
            assert!(link.v - since < 2_000_000 << 8, "{kind:?}: waits for 2 ms");
        }
        // And when there is enough again, rates are met from then on.
        (1..4).for_each(|child| link.order.deactivate(child));
        (link.start, link.got[0]) = (link.v, 0);
        link.run(1_000_000_000);
        let off = link.ideal(rates[0]).abs_diff(link.got[0] as i64);
        assert!(off <= 100_000, "{kind:?}: {off} bytes off");
    }
}

#[test]
fn a_jump_of_the_clock_gives_little_credit() {
    for kind in EXACT {
        for jump_ns in [1_000_000_000_u64, 3600 * 1_000_000_000, 1 << 55] {
            let mut link = Link::new(kind, 1_000_000_000, 0, &[300_000_000, 1_000_000], &[1538, 1538]);
            link.run(100_000_000);
            link.v = link.v.wrapping_add(jump_ns << 8);
            // The clock stands still now: what is served is credit.
            let mut credit = [0_u64; 2];
            while let Some(child) = link.order.peek(link.v) {
                link.order.charge(child, 1538, Some(1538));
                credit[child as usize] += 1538;
                assert!(credit[0] <= 300_000_000 / 8 / 1000 + 10 * 1538, "{kind:?}: 1 ms and a few frames: {credit:?}");
                assert!(credit[1] <= 12 * 1538, "{kind:?}: a few frames: {credit:?}");
            }
        }
    }
}

#[test]
fn a_clock_that_goes_back_is_ignored() {
    for kind in EXACT {
        let mut link = Link::new(kind, 1_000_000_000, 0, &[300_000_000, 1_000_000], &[1538, 1538]);
        // One sends a frame and leaves: it has to wait 12 ms for its next.
        while link.order.peek(link.v) != Some(1) {
            link.step();
        }
        link.order.charge(1, 1538, None);
        link.run(1_000_000);
        let v = link.order.clock().v();
        link.order.peek(link.v - (500_000 << 8));
        assert_eq!(link.order.clock().v(), v);
        link.order.deactivate(0);
        link.order.activate(1, 1538, link.v);
        assert_eq!(link.order.peek(link.v), None, "{kind:?}: the debt is not forgotten");
    }
}
