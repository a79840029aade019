//! What handling frames costs, learned from measurements.

/// Fixed point of [`Cost`]: 1/1024 ns.
const SHIFT: u32 = 10;
/// The estimate moves by one part in `1 << STEP` with each measurement.
const STEP: u32 = 6;
/// The least estimate, in its fixed point: it must be able to rise again.
const LEAST: u64 = 8;
/// Frames of at least this many bytes on average tell what a byte costs, shorter ones what a frame
/// costs.
const LONG: u64 = 8192;
/// What took more than so many times the estimate is far from it.
const FAR: u64 = 16;
/// The least estimate that this is compared with, in nanoseconds: less than a system call is noise.
const FAR_LEAST_NS: u64 = 1_000;

/// What handling frames costs: so much a frame and so much a byte, learned from measurements as
/// they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    frame: u64,
    byte: u64,
}

impl Cost {
    /// An estimate to begin with.
    #[must_use]
    pub const fn new(frame_ns: u64, kibibyte_ns: u64) -> Cost {
        Cost { frame: frame_ns << SHIFT, byte: kibibyte_ns }
    }

    /// What `frames` with `bytes` in all cost, in nanoseconds.
    #[must_use]
    pub fn of(&self, frames: u64, bytes: u64) -> u64 {
        (frames * self.frame + bytes * self.byte) >> SHIFT
    }

    /// `frames` with `bytes` in all took `ns`. The estimate follows the median: it moves by the
    /// same small step whichever way a measurement lies, so that the few during which the worker
    /// was interrupted, however long, count no more than others.
    pub fn learn(&mut self, frames: u64, bytes: u64, ns: u64) {
        if frames == 0 {
            return;
        }
        let rises = ns > self.of(frames, bytes);
        let estimate = if bytes >= frames * LONG { &mut self.byte } else { &mut self.frame };
        let step = (*estimate >> STEP).max(1);
        *estimate = if rises { estimate.saturating_add(step) } else { (*estimate - step).max(LEAST) };
    }
    /// The same, but the estimate follows the mean of what is not [far](Cost::is_far). The median
    /// says nothing of a few that are dear, and who chooses the frames had these for nothing.
    pub fn follow(&mut self, frames: u64, bytes: u64, ns: u64) {
        if frames == 0 || self.is_far(frames, bytes, ns) {
            return;
        }
        let expected = self.of(frames, bytes);
        if ns == expected {
            return;
        }
        let is_long = bytes >= frames * LONG;
        let units = if is_long { bytes } else { frames };
        let estimate = if is_long { &mut self.byte } else { &mut self.frame };
        // A small difference moves it too: a byte has few digits.
        let step = (((ns.abs_diff(expected) << SHIFT) / units) >> STEP).max(1);
        *estimate = if ns > expected { *estimate + step } else { estimate.saturating_sub(step).max(LEAST) };
    }

    /// Whether `frames` with `bytes` in all took so much longer than others that the estimate says
    /// nothing of them.
    #[must_use]
    pub fn is_far(&self, frames: u64, bytes: u64, ns: u64) -> bool {
        ns > self.of(frames, bytes).max(FAR_LEAST_NS).saturating_mul(FAR)
    }
}
