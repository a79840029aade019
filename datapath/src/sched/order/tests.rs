//! What every order promises, against simple models of it.

mod errors;
mod real;
mod shares;

use super::*;
use crate::units::Rate;

/// The orders that promise something.
const EXACT: [OrderKind; 2] = [OrderKind::Fair, OrderKind::Wf2q];
const ALL: [OrderKind; 4] = [OrderKind::Fair, OrderKind::Wf2q, OrderKind::Vtrr, OrderKind::VtrrBytes];
/// The longest frame on the wire here, bytes.
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

/// Random calls against what a level should know of its children: which are backlogged.
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
            7 if dice.below(10) == 0 => {
                order.forget(child);
                active[child as usize] = false;
                order.activate(child, 84, v);
                assert!(!order.is_active(child), "what is forgotten has no weight");
                order.check();
                order.set_weight(child, weight(dice));
            }
            7 if dice.below(10) == 0 => order.set_max_frame(84 + dice.below(80_000) as u32),
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
    for seed in 0..100 {
        for kind in ALL {
            random_walk(Order::share(kind, FRAME), false, &mut Dice(seed), 2000);
            random_walk(Order::real(kind, FRAME), true, &mut Dice(seed), 2000);
        }
    }
}
