//! Watching: what reached an endpoint, in steps short enough to see when a guarantee is back.
//!
//! A *window* is 5 ms, one begins with every step. It is *kept* where it brings what is guaranteed,
//! but for the larger of 1 % and two full frames: what is not divisible cannot be exact. A
//! guarantee is *back* with the first window from which on all are kept for [`STAYS_NS`].

use datapath::units::{Instant, Rate};

use crate::rack::Rack;
use crate::world::{Violation, World};

/// Between two looks.
pub const STEP_NS: u64 = 250_000;
/// The window in which a guarantee is judged.
pub const WINDOW_NS: u64 = 5_000_000;
/// Part of the guarantee that may be missing in a window, in percent, and in wire bytes: two full
/// frames with a VLAN tag.
const MISSING: f64 = 1.0;
const MISSING_BYTES: f64 = 2.0 * 1542.0;
/// For so long it must stay.
pub const STAYS_NS: u64 = 50_000_000;

const WINDOW: usize = (WINDOW_NS / STEP_NS) as usize;
const STAYS: usize = (STAYS_NS / STEP_NS) as usize;

/// Wire bytes that one endpoint had been served, at each step.
#[derive(Clone, PartialEq, Debug)]
pub struct Watch {
    bytes: Vec<u64>,
    guarantee: Rate,
}

impl Watch {
    /// Runs a world on for `ns` and watches endpoints, given as machine, endpoint and guarantee.
    ///
    /// # Errors
    /// The first violation of safety.
    pub fn run(
        world: &mut World,
        rack: &Rack,
        ns: u64,
        endpoints: &[(usize, usize, Rate)],
    ) -> Result<Vec<Watch>, Violation> {
        let begin = world.now();
        let mut watches: Vec<Watch> =
            endpoints.iter().map(|&(_, _, guarantee)| Watch { bytes: Vec::new(), guarantee }).collect();
        for step in 0..=ns / STEP_NS {
            world.run_until(Instant(begin.0 + step * STEP_NS))?;
            for (watch, &(machine, endpoint, _)) in watches.iter_mut().zip(endpoints) {
                watch.bytes.push(rack.arrived(world, machine, endpoint).traffic.wire_bytes);
            }
        }
        Ok(watches)
    }

    /// Of each window, by the step with which it begins, whether it is kept.
    fn windows(&self) -> Vec<bool> {
        let due = self.guarantee.0 as f64 * WINDOW_NS as f64 / 8e9;
        let enough = due - (due * MISSING / 100.0).max(MISSING_BYTES.min(due / 2.0));
        self.bytes.iter().zip(self.bytes.iter().skip(WINDOW)).map(|(a, b)| (b - a) as f64 >= enough).collect()
    }

    /// When the guarantee was back, in milliseconds since the watch began. None: it never was, as
    /// far as was watched.
    #[must_use]
    pub fn back_ms(&self) -> Option<f64> {
        let windows = self.windows();
        let good = |from: usize| windows[from..].iter().take(STAYS).all(|&kept| kept);
        let last = windows.len().checked_sub(STAYS)?;
        (0..=last).find(|&from| good(from)).map(|from| from as f64 * STEP_NS as f64 / 1e6)
    }

    /// Percent of the windows from a moment on that are kept.
    #[must_use]
    pub fn kept(&self, from_ms: f64) -> f64 {
        let windows = self.windows();
        let from = ((from_ms * 1e6) as usize / STEP_NS as usize).min(windows.len());
        let good = windows[from..].iter().filter(|&&kept| kept).count();
        good as f64 / (windows.len() - from).max(1) as f64 * 100.0
    }

    /// What came on the whole, in percent of the guarantee, from `from_ms` on.
    #[must_use]
    pub fn percent(&self, from_ms: f64) -> f64 {
        self.mbps(from_ms) * 1e6 / self.guarantee.0 as f64 * 100.0
    }

    /// What came on the whole in Mbit/s, from `from_ms` on.
    #[must_use]
    pub fn mbps(&self, from_ms: f64) -> f64 {
        let last = self.bytes.len() - 1;
        let from = ((from_ms * 1e6) as usize / STEP_NS as usize).min(last);
        let ns = ((last - from) as u64 * STEP_NS).max(1);
        super::measure::mbps(self.bytes[last] - self.bytes[from], ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch of an endpoint promised 800 Mbit/s (25 000 bytes a step) that got these percentages
    /// of it, step by step.
    fn watch(percents: &[u64]) -> Watch {
        let mut bytes = vec![0];
        percents.iter().for_each(|percent| bytes.push(bytes[bytes.len() - 1] + 25_000 * percent / 100));
        Watch { bytes, guarantee: Rate(800_000_000) }
    }

    #[test]
    fn a_guarantee_is_back_when_it_stays() {
        let always = watch(&[100; 400]);
        assert_eq!(always.back_ms(), Some(0.0));
        assert_eq!((always.percent(0.0), always.kept(0.0)), (100.0, 100.0));
        assert!((always.mbps(3.0) - 800.0).abs() < 1e-9);
        let late = watch(&[&[0; 40][..], &[100; 400]].concat());
        assert_eq!(late.back_ms(), Some(10.0));
        let twice = watch(&[&[0; 40][..], &[100; 100], &[0; 4], &[100; 400]].concat());
        assert_eq!(twice.back_ms(), Some(36.0), "a gap after 25 ms is not staying");
        assert_eq!(watch(&[98; 400]).back_ms(), None);
        assert_eq!(watch(&[98; 400]).kept(0.0), 0.0);
    }
}
