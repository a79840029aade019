//! RED as its papers have it, in floating point.

use crate::aqm;

pub struct Red {
    red: aqm::Red,
    bits_a_second: f64,
    pub average: f64,
    pub since: u32,
}

impl Red {
    pub fn new(red: aqm::Red, bits_a_second: f64) -> Red {
        Red { red, bits_a_second, average: 0.0, since: 0 }
    }

    pub fn arrives(&mut self, queue: u64, wire: u32, empty_ns: Option<u64>, dice: u32) -> bool {
        let weight = 0.5f64.powi(i32::from(self.red.weight_log));
        match empty_ns {
            Some(ns) => {
                let segments = (ns as f64 / 1e9 * self.bits_a_second / 8.0 / 1000.0).floor();
                self.average *= (1.0 - weight).powf(segments);
            }
            None => self.average += weight * (queue as f64 - self.average),
        }
        let (min, max) = (f64::from(self.red.min_bytes), f64::from(self.red.max_bytes));
        let greatest = f64::from(self.red.probability_ppm) / 1e6;
        let mut p = match self.average {
            average if average < min => 0.0,
            average if average < max => greatest * (average - min) / (max - min),
            average if self.red.gentle && average < 2.0 * max => greatest + (1.0 - greatest) * (average - max) / max,
            _ => 1.0,
        };
        // Beyond everything there is no scaling.
        if self.red.bytes && p < 1.0 {
            p *= f64::from(wire) / 1538.0;
        }
        if p == 0.0 {
            self.since = 0;
            return false;
        }
        let spread = 1.0 - f64::from(self.since) * p;
        self.since += 1;
        let is_signalled = spread <= p || f64::from(dice) / 4_294_967_296.0 < p / spread;
        if is_signalled {
            self.since = 0;
        }
        is_signalled
    }
}
