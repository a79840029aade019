//! Numbers that are at their ends.

use super::*;

#[test]
fn waits_of_more_than_any_number_of_nanoseconds_are_that_number_and_not_none() {
    let total_ns = |total_us| SojournReport::new(&Sojourn::from_parts(total_us, &[1]), 0).total_ns;
    assert_eq!([1, (1 << 54) - 1, 1 << 54].map(total_ns), [1 << 10, u64::MAX - 1023, u64::MAX]);
}
