//! How counters continue.

/// The most that a counter continues from: whatever is claimed, there is room to count on.
const MOST_COUNTED: u64 = 1 << 62;

/// Lets a counter continue from what another has counted.
pub(crate) fn count_on(count: &mut u64, from: u64) {
    *count = count.saturating_add(from).min(MOST_COUNTED);
}
