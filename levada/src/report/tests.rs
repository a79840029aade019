//! Numbers that are at their ends.

use super::*;

#[test]
fn waits_of_more_than_any_number_of_nanoseconds_are_that_number_and_not_none() {
    let total_ns = |total_us| SojournReport::new(&Sojourn::from_parts(total_us, &[1]), 0).total_ns;
    assert_eq!([1, (1 << 54) - 1, 1 << 54].map(total_ns), [1 << 10, u64::MAX - 1023, u64::MAX]);
}

#[test]
fn thresholds_of_queues_are_those_of_their_disciplines() {
    use datapath::aqm::{At, Red, Step};

    let step = Discipline::Step(Step { mark_bytes: 30_000, at: At::Arrival });
    for (discipline, expected) in [
        (step, (Some(30_000), None)),
        (Discipline::Red(Red::VCC_RED2), (Some(30_000), Some(90_000))),
        (Discipline::Sojourn { target_ns: 1 }, (None, None)),
    ] {
        let state = QueueState { discipline, ..QueueState::default() };
        let report = queue(&state);
        assert_eq!((report.min_bytes, report.max_bytes), expected, "{}", report.kind);
    }
}
