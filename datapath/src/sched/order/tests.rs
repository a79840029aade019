//! What every order promises, against simple models of it.

use super::*;
use crate::units::Rate;

const KINDS: [OrderKind; 2] = [OrderKind::Fair, OrderKind::Wf2q];
const ALL: [OrderKind; 4] = [OrderKind::Fair, OrderKind::Wf2q, OrderKind::Vtrr, OrderKind::VtrrBytes];
const FRAME: u32 = 1538;

/// A seeded generator (SplitMix64), so that every run is the same.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

#[test]
fn a_child_of_fair_is_half_a_cache_line() {
    assert_eq!(fair::child_bytes(), 32);
}

/// The bytes that each child got of `total`, all being backlogged all the time with frames of its own length.
fn serve(order: &mut Order, lens: &[u32], total: u64) -> Vec<u64> {
    let mut got = vec![0; lens.len()];
    for (child, &len) in lens.iter().enumerate() {
        order.activate(child as u32, len, 0);
    }
    let mut sum = 0;
    while sum < total {
        let child = order.peek(0).expect("work-conserving");
        let len = lens[child as usize];
        got[child as usize] += u64::from(len);
        sum += u64::from(len);
        order.charge(child, len, Some(len));
    }
    got
}

#[test]
fn shares_follow_weights_whatever_the_frame_sizes() {
    for kind in KINDS {
        for start in [0_u128, (1 << 64) - (1 << 20), (1 << 80) - (1 << 20)] {
            let weights = [1_u32, 1, 3, 50, 1000, 999];
            let lens = [84, 1538, 84, 700, 1538, 84];
            let mut order = Order::share(kind, FRAME);
            order.clock().set(start);
            for (child, &w) in weights.iter().enumerate() {
                order.set_weight(child as u32, Weight::from_weight(w));
            }
            let got = serve(&mut order, &lens, 100_000_000);
            let total: u64 = got.iter().sum();
            let sum: u32 = weights.iter().sum();
            for (child, &w) in weights.iter().enumerate() {
                let ideal = (total * u64::from(w) / u64::from(sum)) as i64;
                let off = got[child] as i64 - ideal;
                let frames = if kind == OrderKind::Fair { 5 } else { 2 };
                assert!(off.abs() <= frames * i64::from(FRAME), "{kind:?} child {child}: {off} bytes off {ideal}");
            }
        }
    }
}

#[test]
fn rates_are_met_in_link_time() {
    for kind in KINDS {
        for rates in [[100_000, 300_000_000, 500_000_000], [1_000_000_000, 40_000_000_000, 50_000_000_000]] {
            let capacity: u64 = 100 * if rates[0] == 100_000 { 10_000_000 } else { 1_000_000_000 };
            let mut order = Order::real(kind, FRAME);
            for (child, &rate) in rates.iter().enumerate() {
                order.set_weight(child as u32, Weight::from_rate(Rate(rate)));
                order.activate(child as u32, 84, 7);
            }
            let mut got = [0_u64; 3];
            let (mut units, mut idle) = (7_u64, 0_u64);
            let per_frame = Weight::from_rate(Rate(capacity)).span(84);
            for _ in 0..5_000_000 {
                if let Some(child) = order.peek(units) {
                    got[child as usize] += 84;
                    order.charge(child, 84, Some(84));
                } else {
                    idle += 1;
                }
                units += per_frame;
            }
            assert!(idle > 0);
            for (child, &rate) in rates.iter().enumerate() {
                let ideal = i128::from(rate) * i128::from(units) / (256 * 8_000_000_000);
                let off = i128::from(got[child]) - ideal;
                let frames = if kind == OrderKind::Fair { 5 } else { 2 };
                assert!(
                    off.abs() <= frames * i128::from(FRAME) + ideal / 10_000,
                    "{kind:?} child {child} at {rate}: {off} bytes off {ideal}"
                );
            }
        }
    }
}

#[test]
fn idle_time_is_not_banked() {
    for kind in KINDS {
        let mut order = Order::share(kind, FRAME);
        order.set_weight(0, Weight::from_weight(1));
        order.set_weight(1, Weight::from_weight(1));
        serve(&mut order, &[FRAME], 1_000_000);
        let got = serve(&mut order, &[FRAME, FRAME], 100_000);
        assert!(got[0].abs_diff(got[1]) <= 10 * u64::from(FRAME), "{kind:?}: {got:?}");
    }
}

/// What a level should know of its children: which are backlogged.
fn random_walk(mut order: Order, real: bool, dice: &mut Dice, steps: u32) {
    let children = 1 + dice.below(40) as u32;
    let weight = |dice: &mut Dice| match (real, dice.below(4)) {
        (false, 0) => Weight::from_weight(1 + dice.below(65_535) as u32),
        (false, _) => Weight::from_weight(1 + dice.below(50) as u32),
        (true, 0) => Weight::from_rate(Rate(1000 + dice.below(400_000_000_000))),
        (true, _) => Weight::from_rate(Rate(1_000_000 + dice.below(900_000_000))),
    };
    for child in 0..children {
        order.set_weight(child, weight(dice));
    }
    let mut active = vec![false; children as usize];
    let mut v = 0_u64;
    let len =
        |dice: &mut Dice| if dice.below(50) == 0 { dice.below(1 << 20) as u32 } else { 84 + dice.below(1455) as u32 };
    for _ in 0..steps {
        let child = dice.below(u64::from(children)) as u32;
        match dice.below(20) {
            0..=5 => {
                order.activate(child, len(dice), v);
                active[child as usize] = true;
            }
            6 => {
                order.deactivate(child);
                active[child as usize] = false;
            }
            7 => order.set_weight(child, weight(dice)),
            8 => order.charge(child, 0, active[child as usize].then(|| len(dice))),
            9 if dice.below(100) == 0 => v = v.wrapping_add(dice.below(1 << 60)),
            _ => {
                let next = order.peek(v);
                assert!(real || next.is_some() == active.contains(&true), "a share order always has someone to serve");
                if let Some(child) = next {
                    assert!(active[child as usize], "child {child} is not backlogged");
                    active[child as usize] = dice.below(3) > 0;
                    order.charge(child, len(dice), active[child as usize].then(|| len(dice)));
                }
                v = v.wrapping_add(dice.below(4096 << 8));
            }
        }
        order.check();
        assert_eq!(order.is_empty(), !active.contains(&true));
        for child in 0..children {
            assert_eq!(order.is_active(child), active[child as usize]);
        }
    }
    // Whoever is left is served within bounded time.
    while active.contains(&true) {
        let child = order.peek(v);
        v = v.wrapping_add(1 << 45);
        if let Some(child) = child {
            assert!(std::mem::take(&mut active[child as usize]), "child {child} served twice");
            order.charge(child, 84, None);
        }
    }
    assert!(order.is_empty() && order.peek(v).is_none());
    order.check();
}

#[test]
fn no_child_is_lost_or_served_in_vain() {
    for seed in 0..300 {
        for kind in ALL {
            random_walk(Order::share(kind, FRAME), false, &mut Dice(seed), 2000);
            random_walk(Order::real(kind, FRAME), true, &mut Dice(seed), 2000);
        }
    }
}

#[test]
fn vtrr_gives_the_published_sequence() {
    let mut order = Order::share(OrderKind::Vtrr, FRAME);
    for (child, weight) in [(0, 5), (1, 3), (2, 1)] {
        order.set_weight(child, Weight::from_weight(weight));
        order.activate(child, 84, 0);
    }
    for cycle in 0..1000 {
        let turns: Vec<u32> = (0..9)
            .map(|turn| {
                let child = order.peek(0).expect("all are backlogged");
                order.charge(child, if turn % 2 == 0 { 84 } else { 1538 }, Some(84));
                child + 1
            })
            .collect();
        assert_eq!(turns, [1, 2, 3, 1, 2, 1, 2, 1, 1], "cycle {cycle}");
    }
}
