//! Meter: is what leaves by an uplink within its rate?

use datapath::program::Uplink;
use datapath::units::{Instant, Rate};

/// Wire time of the longest frame that an uplink is sent at once, after splitting, in nanoseconds.
const MAX_FRAME_NS: u64 = 100_000;
/// It is at least a full segment with its tag, in wire bytes.
const MAX_FRAME_LEAST: u64 = 1542;
/// It is no more than 64 KiB can take in segments, in wire bytes.
pub const MAX_FRAME_MOST: u64 = 80_000;

/// The longest frame that an uplink of this rate is sent at once, in wire bytes.
#[must_use]
pub fn maximum_frame(rate: Rate) -> u64 {
    rate.bytes_in(MAX_FRAME_NS).clamp(MAX_FRAME_LEAST, MAX_FRAME_MOST)
}

/// Measures one uplink.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    rate: Rate,
    /// What it may be sent at once besides, in wire bytes.
    burst: u64,
    /// When what was sent is through at the uplink's rate, in nanoseconds times bits a second.
    due: u128,
}

impl Meter {
    /// A meter that nothing has passed.
    #[must_use]
    pub fn new(uplink: &Uplink) -> Self {
        let rate = uplink.rate().egress;
        Meter { rate, burst: rate.bytes_in(uplink.burst_ns).max(4 * MAX_FRAME_LEAST), due: 0 }
    }

    /// Counts a frame that leaves now. No more may have left since any earlier moment than the rate
    /// allows, but for the maximum frame that is being sent, and the burst, which is at least four
    /// of the least (`datapath/src/sched/tree.rs`).
    ///
    /// # Errors
    /// More has left than that.
    pub fn count(&mut self, now: Instant, wire_bytes: u32) -> Result<(), String> {
        let now = u128::from(now.0) * u128::from(self.rate.0);
        self.due = self.due.max(now) + u128::from(wire_bytes) * 8_000_000_000;
        let ahead = (self.due - now) / 8_000_000_000;
        let maximum = maximum_frame(self.rate);
        // What 1/256 ns of each tag's rounding adds up to is less than a hundredth of a frame.
        if ahead > u128::from(maximum + self.burst + maximum / 100) {
            return Err(format!("the uplink was sent {ahead} bytes more than its rate of {} allows", self.rate));
        }
        Ok(())
    }
}
