//! Shares: by weight whatever the frames, without credit for idleness, through wraps and changes.

use super::*;

/// The bytes that each child got of `total`, all being backlogged all the time with frames of its
/// own length.
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
    for kind in EXACT {
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
                let frames = if kind == OrderKind::Fair { 4 } else { 2 };
                assert!(off.abs() <= frames * i64::from(FRAME), "{kind:?} child {child}: {off} bytes off {ideal}");
            }
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

/// Many children that take turns being backlogged cannot push one that stays below its part by all
/// the weights.
#[test]
fn who_stays_backlogged_keeps_its_part_by_all_weights() {
    const OTHERS: u32 = 200;
    for kind in EXACT {
        let mut order = Order::share(kind, FRAME);
        (0..=OTHERS).for_each(|child| order.set_weight(child, Weight::from_weight(1)));
        order.activate(0, FRAME, 0);
        let mut next = 0;
        let mut wake = |order: &mut Order| {
            next = next % OTHERS + 1;
            order.activate(next, FRAME, 0);
        };
        (0..20).for_each(|_| wake(&mut order));
        let mut got = 0;
        for _ in 0..100_000 {
            let child = order.peek(0).expect("one stays");
            order.charge(child, FRAME, (child == 0).then_some(FRAME));
            if child == 0 {
                got += 1;
            } else {
                wake(&mut order);
            }
        }
        assert!(got >= 100_000 / (OTHERS + 1) - 5, "{kind:?}: {got} frames");
    }
}

/// A queue that slept while V went on starts level with one that is new.
#[test]
fn idle_time_is_not_banked_however_long() {
    for kind in [OrderKind::Fair, OrderKind::Wf2q, OrderKind::VtrrBytes] {
        for slept in
            [0, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - (1 << 33), 1 << 64, (1 << 64) + (1 << 63), 1 << 70]
        {
            for start in [0_u128, (1 << 64) - (1 << 30), (1 << 80) - (1 << 30)] {
                let mut order = Order::share(kind, FRAME);
                order.clock().set(start);
                order.set_weight(0, Weight::from_weight(1));
                serve(&mut order, &[FRAME], 1_000_000);
                order.deactivate(0);
                order.clock().set(start + (1_000_000 << 16) + slept);
                order.set_weight(1, Weight::from_weight(1));
                let got = serve(&mut order, &[FRAME, FRAME], 100_000);
                assert!(got[0].abs_diff(got[1]) <= 4 * u64::from(FRAME), "{kind:?}, {slept}: {got:?}");
            }
        }
    }
}

#[test]
fn one_that_sent_alone_owes_nothing_and_is_owed_nothing() {
    for kind in [OrderKind::Fair, OrderKind::Wf2q, OrderKind::VtrrBytes] {
        let mut order = Order::share(kind, FRAME);
        order.set_weight(0, Weight::from_weight(1));
        order.set_weight(1, Weight::from_weight(1));
        serve(&mut order, &[FRAME], 1_000_000);
        let got = serve(&mut order, &[FRAME, FRAME], 100_000);
        assert!(got[0].abs_diff(got[1]) <= 4 * u64::from(FRAME), "{kind:?}: {got:?}");
    }
}

/// Weights change under way, often: what a child is ahead or behind by is neither lost nor doubled.
#[test]
fn changing_weights_does_not_bias_shares() {
    for kind in EXACT {
        let mut order = Order::share(kind, FRAME);
        let weights = [[3, 5, 8, 1], [600, 1000, 1600, 200]];
        let set = |order: &mut Order, which: usize| {
            for (child, &weight) in weights[which].iter().enumerate() {
                order.set_weight(child as u32, Weight::from_weight(weight));
            }
        };
        set(&mut order, 0);
        let mut got = [0_u64; 4];
        (0..4).for_each(|child| order.activate(child, FRAME, 0));
        for step in 0..170_000 {
            if step % 7 == 0 {
                set(&mut order, step / 7 % 2);
            }
            let child = order.peek(0).expect("all are backlogged");
            got[child as usize] += 1;
            order.charge(child, FRAME, Some(FRAME));
            order.check();
        }
        for (child, ideal) in [30_000_u64, 50_000, 80_000, 10_000].into_iter().enumerate() {
            assert!(got[child].abs_diff(ideal) <= 20, "{kind:?}: {got:?}");
        }
    }
}

#[test]
fn frames_longer_than_announced_are_charged_in_full() {
    for kind in [OrderKind::Fair, OrderKind::Wf2q, OrderKind::VtrrBytes] {
        let mut order = Order::share(kind, FRAME);
        (0..3).for_each(|child| order.set_weight(child, Weight::from_weight(1)));
        let got = serve(&mut order, &[60 * FRAME, FRAME, 84], 200_000_000);
        let ideal = got.iter().sum::<u64>() / 3;
        for part in &got {
            assert!(part.abs_diff(ideal) <= 200 * u64::from(FRAME), "{kind:?}: {got:?}");
        }
    }
}
