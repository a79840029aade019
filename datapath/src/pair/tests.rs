//! The table of pairs: its bounds, and that it is as good as new when all of them are lifted.

use super::*;
use crate::frame::PoolLimits;
use crate::sched::tree::QUANTUM_MIN;

const SECOND: u64 = 1_000_000_000;

fn mac(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    Mac([2, 0, a, b, c, d])
}

#[test]
fn a_switch_has_so_many_and_each_place_is_used_again() {
    let mut pairs = Pairs::new(1);
    let mut limit = |from: u32, n: u32| {
        pairs.limit(Instant(1), EndpointId(from), Toward::Address(mac(n)), Rate(1_000_000), (1 << 20, Owner::NOBODY))
    };
    for from in 0..MOST / MOST_OF_ENDPOINT {
        assert_eq!(limit(from, MOST_OF_ENDPOINT), Ok(()));
        assert!((1..MOST_OF_ENDPOINT).all(|n| limit(from, n).is_ok()));
        assert_eq!(limit(from, MOST_OF_ENDPOINT + 1), Err(PairError::TooManyOfEndpoint(EndpointId(from))));
    }
    assert_eq!(limit(99, 1), Err(PairError::TooMany));
    assert_eq!(limit(99, 1).unwrap_err().to_string(), "the switch limits 16384 pairs already; lift one first");
    let (from, mut pool) = (EndpointId(3), Pool::new(PoolLimits { small: 0, medium: 0, large: 0 }));
    while let Some(to) = pairs.any(from) {
        assert!(pairs.lift(&mut pool, from, to).is_some());
    }
    assert!(pairs.lift(&mut pool, from, Toward::Everyone).is_none());
    assert_eq!((pairs.of(from).count(), pairs.pairs.len(), pairs.vacant.len()), (0, MOST as usize, 1024));
    assert_eq!(pairs.limit(Instant(2), EndpointId(99), Toward::Everyone, Rate(1000), (1 << 20, Owner::NOBODY)), Ok(()));
    assert_eq!(pairs.pairs.len(), MOST as usize, "no new place");
    assert_eq!(pairs.poll_timeout(), None);
}

#[test]
fn what_is_owed_is_owed_in_bytes() {
    let mut pair = Pair::new(Instant::ZERO, EndpointId(0), Toward::Everyone, Rate(8_000_000), 1 << 20);
    let now = Instant(1_000_000_000);
    pair.free_at = tag(now);
    pair.charge(now, 1000);
    assert_eq!(pair.wait_ns(now), 1_000_000);
    pair.set_rate(now, Rate(80_000_000));
    assert_eq!(pair.wait_ns(now), 100_000);
    pair.set_rate(now.plus_ns(50_000), Rate(8_000));
    assert_eq!(pair.wait_ns(now.plus_ns(50_000)), 500_000_000);
    pair.restore(now, u64::MAX);
    assert_eq!(pair.wait_ns(now), 80_000 * 1_000_000, "no more than the longest frame takes");
}

/// Limits that many hosts begin together, with the same rate, are not in step, though each finds
/// frames of its endpoint on their way that keep its first frame from coming for longer than some
/// would have waited.
#[test]
fn limits_that_begin_together_are_spread_over_a_frame() {
    let begun = |n: u64| Instant(1_000_000_000 + 7_001 * n);
    let mut offsets: Vec<u64> = (0..64)
        .map(|n| {
            let mut pair = Pair::new(begun(n), EndpointId(0), Toward::Everyone, Rate(16_000_000), 1 << 20);
            let late = begun(0).plus_ns(800_000);
            pair.begin(late);
            pair.wait_ns(late)
        })
        .collect();
    offsets.sort_unstable();
    let frame_ns = Rate(16_000_000).time_ns(QUANTUM_MIN);
    let quarter = |n: u64| offsets.iter().filter(|&&at| at * 4 / frame_ns == n).count();
    assert!((0..4).all(|n| (8..=24).contains(&quarter(n))), "{offsets:?} of {frame_ns}");
    let mut idle = Pair::new(begun(0), EndpointId(0), Toward::Everyone, Rate(16_000_000), 1 << 20);
    let later = Instant(9_000_000_000);
    idle.begin(later);
    assert_eq!(idle.wait_ns(later), 0, "who was silent does not wait");
}

/// Fifteen hosts are told of the same limit, each another phase, and find their first frames at
/// different times: they send one after the other, and again after the rate was changed and the
/// word of it took up to 100 us longer to some.
#[test]
fn who_is_told_its_turn_keeps_it() {
    let (start, cost) = (Instant(1_000_000_000), Rate(16_000_000).time_ns(QUANTUM_MIN));
    let heard = |n: u64, at: Instant| at.plus_ns(n * 37 % 15 * 7_000);
    let mut turns: Vec<u64> = Vec::new();
    for n in 0..15 {
        let phase = (n * 256 / 15) as u8;
        let mut pair = Pair::new(heard(n, start), EndpointId(0), Toward::Everyone, Rate(32_000_000), 1 << 20);
        pair.take_turn(heard(n, start), phase);
        pair.begin(start.plus_ns(300_000 + n * 31 % 15 * 20_000));
        // What it owes is a frame's time, of which the rest is as much at the new rate.
        let now = heard(n, start.plus_ns(900_000));
        while pair.wait_ns(now) == 0 {
            pair.charge(now, QUANTUM_MIN as u32);
        }
        pair.set_rate(now, Rate(16_000_000));
        let before = pair.wait_ns(now);
        pair.take_turn(now, phase);
        let after = pair.wait_ns(now);
        assert!(before.abs_diff(after) <= cost / 2 + 1, "{before} ns, then {after}");
        turns.push(now.plus_ns(after).since(start.plus_ns(900_000)) % cost);
    }
    turns.sort_unstable();
    let most = (0..15).map(|n| turns.iter().filter(|&&turn| (turn + cost - turns[n]) % cost < cost / 8).count()).max();
    assert!(
        most <= Some(5),
        "{turns:?} of {cost}: {most:?} within an eighth, where there would be two if no word took longer"
    );
    let mut idle = Pair::new(start, EndpointId(0), Toward::Everyone, Rate(16_000_000), 1 << 20);
    idle.begin(start.plus_ns(9_000_000));
    idle.take_turn(start.plus_ns(9_000_000), 200);
    assert_eq!(idle.wait_ns(start.plus_ns(9_000_000)), 0, "who owes nothing does not wait");
}

/// A host may ask for another rate and another turn with each word.
#[test]
fn no_turns_and_rates_make_a_pair_owe_more_than_two_frames() {
    let start = Instant(1_000_000_000);
    let mut pair = Pair::new(start, EndpointId(0), Toward::Everyone, Rate(128_000), 1 << 20);
    pair.begin(start);
    pair.charge(start, QUANTUM_MIN as u32);
    let most = 2 * Rate(128_000).time_ns(QUANTUM_MIN);
    for n in 0..1000_u64 {
        pair.set_rate(start, Rate(128_000 + n % 2 * 256));
        pair.take_turn(start, (n * 115) as u8);
        assert!(pair.wait_ns(start) <= most + 2, "{} ns after {n} words", pair.wait_ns(start));
    }
    for bps in [350_000_000_000_000_000, u64::MAX, 1, 128_000] {
        pair.set_rate(start, Rate(bps));
        pair.take_turn(start, 200);
    }
}

/// What a pair of 100 Mbit/s sends in a second, in kbit, where the loop comes by every `step` ns.
fn of_a_late_loop(step: u64) -> u64 {
    let mut pair = Pair::new(Instant::ZERO, EndpointId(0), Toward::Everyone, Rate(100_000_000), 1 << 20);
    let (mut now, mut sent) = (Instant(SECOND), 0);
    pair.begin(now);
    while now < Instant(2 * SECOND) {
        while pair.wait_ns(now) == 0 {
            pair.charge(now, 1538);
            sent += 1538 * 8;
        }
        now = now.plus_ns(step);
    }
    sent / 1000
}

#[test]
fn a_late_loop_takes_nothing_from_a_pair_up_to_a_millisecond() {
    assert!((99_800..100_200).contains(&of_a_late_loop(900_000)), "{}", of_a_late_loop(900_000));
    assert!((50_000..60_000).contains(&of_a_late_loop(2_000_000)), "{}", of_a_late_loop(2_000_000));
}
