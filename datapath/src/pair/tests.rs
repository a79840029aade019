//! The table of pairs: its bounds, and that it is as good as new when all of them are lifted.

use super::*;
use crate::sched::tree::QUANTUM_MIN;

const SECOND: u64 = 1_000_000_000;

fn mac(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    Mac([2, 0, a, b, c, d])
}

#[test]
fn a_switch_has_so_many_and_each_place_is_used_again() {
    let mut pairs = Pairs::new();
    let mut limit = |from: u32, n: u32| {
        pairs.limit(Instant(1), EndpointId(from), Toward::Address(mac(n)), Rate(1_000_000), 1 << 20)
    };
    for from in 0..MOST / MOST_OF_ENDPOINT {
        assert_eq!(limit(from, MOST_OF_ENDPOINT), Ok(()));
        assert!((1..MOST_OF_ENDPOINT).all(|n| limit(from, n).is_ok()));
        assert_eq!(limit(from, MOST_OF_ENDPOINT + 1), Err(PairError::TooManyOfEndpoint(EndpointId(from))));
    }
    assert_eq!(limit(99, 1), Err(PairError::TooMany));
    assert_eq!(limit(99, 1).unwrap_err().to_string(), "the switch limits 16384 pairs already; lift one first");
    let from = EndpointId(3);
    while let Some(to) = pairs.any(from) {
        assert!(pairs.lift(from, to).is_some());
    }
    assert!(pairs.lift(from, Toward::Everyone).is_none());
    assert_eq!((pairs.of(from).count(), pairs.pairs.len(), pairs.vacant.len()), (0, MOST as usize, 1024));
    assert_eq!(pairs.limit(Instant(2), EndpointId(99), Toward::Everyone, Rate(1000), 1 << 20), Ok(()));
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

/// Limits that many hosts begin together, with the same rate, are not in step, though each finds frames of its endpoint on their way that keep
/// its first frame from coming for longer than some would have waited.
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
