//! Congestion control: how many segments may be in flight.
//!
//! NewReno (RFC 5681, RFC 6582) and CUBIC (RFC 9438, with fast convergence and the Reno-friendly
//! region; slow start without HyStart). Windows are real numbers of segments. Only the four
//! operations that IEEE 754 defines to the last bit are used, so that a run is the same everywhere:
//! the cube root is a Newton iteration.

use datapath::units::Instant;

/// Initial window, in segments (RFC 6928, and Linux).
const INITIAL_WINDOW: f64 = 10.0;
/// Slow-start threshold at the start: none.
const UNBOUNDED: f64 = 1e12;
/// The smallest threshold, in segments (RFC 5681 section 3.1).
const MIN_THRESHOLD: f64 = 2.0;
/// CUBIC's aggressiveness, segments per cubed second (RFC 9438 section 5).
const CUBIC_C: f64 = 0.4;
/// What CUBIC keeps of the window at a loss (RFC 9438 section 4.6).
const CUBIC_BETA: f64 = 0.7;
/// Growth of the Reno-friendly estimate, segments a round trip: 3 (1 - beta) / (1 + beta) (RFC 9438
/// section 4.3).
const CUBIC_ALPHA: f64 = 3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA);
/// DCTCP's estimation gain (RFC 8257 section 4.2).
const DCTCP_GAIN: f64 = 1.0 / 16.0;
/// What NewReno keeps of the window at a loss (RFC 5681).
const RENO_BETA: f64 = 0.5;

/// The algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Algorithm {
    /// RFC 5681 and 6582.
    NewReno,
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 8257, as Linux has it: NewReno but for marks, of which the fraction counts; all its
    /// packets are ECN-capable.
    Dctcp,
}

impl Algorithm {
    /// As tables call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::NewReno => "newreno",
            Algorithm::Cubic => "cubic",
            Algorithm::Dctcp => "dctcp",
        }
    }
}

/// The state of one connection's congestion control. Windows are in segments.
#[derive(Clone, Debug)]
pub struct Congestion {
    algorithm: Algorithm,
    window: f64,
    threshold: f64,
    epoch: Option<Epoch>,
    /// CUBIC's window before the last reduction, or less by fast convergence.
    w_max: f64,
    /// The same without fast convergence.
    prior: f64,
    /// DCTCP's estimate of the marked fraction: one until it is known (Linux's
    /// `dctcp_alpha_on_init`).
    alpha: f64,
}

/// Time since CUBIC began to grow after a loss.
#[derive(Clone, Debug)]
struct Epoch {
    start: Instant,
    /// Seconds until the cubic reaches `origin`.
    k: f64,
    origin: f64,
    w_est: f64,
}

impl Congestion {
    /// A new connection's.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        let (window, threshold) = (INITIAL_WINDOW, UNBOUNDED);
        Congestion { algorithm, window, threshold, epoch: None, w_max: 0.0, prior: 0.0, alpha: 1.0 }
    }

    /// Segments that may be in flight.
    #[must_use]
    pub fn window(&self) -> f64 {
        self.window
    }

    /// Segments to which recovery shrinks the window.
    #[must_use]
    pub fn threshold(&self) -> f64 {
        self.threshold
    }

    /// Whether the window still doubles every round trip.
    #[must_use]
    pub fn slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// Recovery sets the window as it goes (RFC 9937).
    pub fn set_window(&mut self, segments: f64) {
        self.window = segments.max(1.0);
    }

    /// New data was acknowledged outside recovery, while the window was in full use.
    pub fn on_ack(&mut self, now: Instant, acked: u32, rtt_ns: u64) {
        let mut acked = f64::from(acked);
        if self.slow_start() {
            let grown = (self.window + acked).min(self.threshold);
            acked -= grown - self.window;
            self.window = grown;
        }
        if acked <= 0.0 {
            return;
        }
        match self.algorithm {
            Algorithm::NewReno | Algorithm::Dctcp => self.window += acked / self.window,
            Algorithm::Cubic => self.grow_cubic(now, acked, rtt_ns),
        }
    }

    /// Of what was acknowledged in a round trip, this fraction was marked (RFC 8257 section 3.3,
    /// with g = 1/16).
    pub fn on_round(&mut self, marked: f64) {
        self.alpha += (marked - self.alpha) * DCTCP_GAIN;
    }

    /// An ECN echo, at most once a round trip: the new threshold.
    pub fn reduce_for_mark(&mut self) {
        match self.algorithm {
            Algorithm::Dctcp => {
                self.threshold = (self.window * (1.0 - self.alpha / 2.0)).max(MIN_THRESHOLD);
                self.epoch = None;
            }
            Algorithm::NewReno | Algorithm::Cubic => self.reduce(),
        }
    }

    /// A loss, at most once a round trip: the new threshold. The caller shrinks the window to it.
    pub fn reduce(&mut self) {
        let beta = match self.algorithm {
            Algorithm::NewReno | Algorithm::Dctcp => RENO_BETA,
            Algorithm::Cubic => CUBIC_BETA,
        };
        // Fast convergence (RFC 9438 section 4.7): a flow that lost before it was back leaves room
        // for new ones.
        self.w_max = if self.window < self.w_max { self.window * (1.0 + beta) / 2.0 } else { self.window };
        self.prior = self.window;
        self.threshold = (self.window * beta).max(MIN_THRESHOLD);
        self.epoch = None;
    }

    /// The retransmission timer expired: one segment, and slow start (RFC 5681 section 3.1).
    pub fn on_timeout(&mut self, first: bool) {
        if first {
            self.reduce();
        }
        self.window = 1.0;
        self.epoch = None;
    }

    fn grow_cubic(&mut self, now: Instant, acked: f64, rtt_ns: u64) {
        let (window, w_max) = (self.window, self.w_max);
        let epoch = self.epoch.get_or_insert_with(|| Epoch::new(now, window, w_max));
        let seconds = (now.since(epoch.start) + rtt_ns) as f64 / 1e9;
        let distance = seconds - epoch.k;
        // RFC 9438 section 4.2: never more than half as much again in a round trip.
        let target = (epoch.origin + CUBIC_C * distance * distance * distance).clamp(self.window, 1.5 * self.window);
        // RFC 9438 section 4.3: as Reno from where the window was at the reduction, which fast
        // convergence does not lower.
        let alpha = if epoch.w_est < self.prior { CUBIC_ALPHA } else { 1.0 };
        epoch.w_est += alpha * acked / self.window;
        self.window += (target - self.window) * acked / self.window;
        self.window = self.window.max(epoch.w_est);
    }
}

impl Epoch {
    fn new(start: Instant, window: f64, w_max: f64) -> Self {
        let origin = w_max.max(window);
        Epoch { start, k: cube_root((origin - window) / CUBIC_C), origin, w_est: window }
    }
}

/// The cube root of a number that is not negative, by Newton's method from above.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let mut root = if x > 1.0 { x } else { 1.0 };
    for _ in 0..200 {
        let next = (2.0 * root + x / (root * root)) / 3.0;
        if next >= root {
            break;
        }
        root = next;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long enough that CUBIC is faster than Reno.
    const RTT_NS: u64 = 100_000_000;

    /// Grows a window for `rounds` round trips.
    fn grow(congestion: &mut Congestion, from: Instant, rounds: u64) {
        for round in 0..rounds {
            let now = from.plus_ns(round * RTT_NS);
            for _ in 0..congestion.window() as u32 {
                congestion.on_ack(now, 1, RTT_NS);
            }
        }
    }

    #[test]
    fn slow_start_doubles_every_round_trip() {
        let mut congestion = Congestion::new(Algorithm::NewReno);
        grow(&mut congestion, Instant(0), 3);
        assert_eq!(congestion.window(), 80.0);
    }

    #[test]
    fn newreno_halves_and_then_grows_by_one_segment_a_round_trip() {
        let mut congestion = Congestion::new(Algorithm::NewReno);
        congestion.set_window(100.0);
        congestion.reduce();
        assert_eq!(congestion.threshold(), 50.0);
        congestion.set_window(50.0);
        grow(&mut congestion, Instant(0), 10);
        assert!((59.0..60.1).contains(&congestion.window()), "{}", congestion.window());
    }

    #[test]
    fn cubic_is_back_where_it_lost_after_k_seconds() {
        let mut congestion = Congestion::new(Algorithm::Cubic);
        congestion.set_window(1000.0);
        congestion.reduce();
        congestion.set_window(congestion.threshold());
        assert_eq!(congestion.window(), 700.0);
        // K = cbrt(300 / 0.4) = 9.086 s; just before it the window is nearly flat at 1000.
        grow(&mut congestion, Instant(0), 85);
        assert!((985.0..1005.0).contains(&congestion.window()), "{}", congestion.window());
        grow(&mut congestion, Instant(85 * RTT_NS), 60);
        assert!(congestion.window() > 1040.0, "convex beyond: {}", congestion.window());
    }

    #[test]
    fn cubic_is_no_slower_than_reno_on_short_paths() {
        let mut congestion = Congestion::new(Algorithm::Cubic);
        congestion.set_window(20.0);
        congestion.reduce();
        congestion.set_window(congestion.threshold());
        // 100 round trips of 1 ms: the cubic alone would stand still.
        for round in 0..100u64 {
            for _ in 0..congestion.window() as u32 {
                congestion.on_ack(Instant(round * 1_000_000), 1, 1_000_000);
            }
        }
        assert!(congestion.window() > 14.0 + 0.5 * 100.0, "{}", congestion.window());
    }

    /// Segments that a window grows by in `rounds` round trips of 1 ms, where cubic growth alone
    /// would be nothing, after two reductions, the second from 100.
    fn grown_after_two_reductions(first: f64, rounds: u64) -> f64 {
        let mut congestion = Congestion::new(Algorithm::Cubic);
        for window in [first, 100.0] {
            congestion.set_window(window);
            congestion.reduce();
        }
        congestion.set_window(congestion.threshold());
        for round in 0..rounds {
            for _ in 0..congestion.window() as u32 {
                congestion.on_ack(Instant(round * 1_000_000), 1, 1_000_000);
            }
        }
        congestion.window() - 70.0
    }

    #[test]
    fn cubic_is_as_fast_as_reno_only_from_where_the_last_reduction_was() {
        // Back at 100 after 57 round trips, whether or not it was on its way up to more.
        for first in [50.0, 200.0] {
            let slow = grown_after_two_reductions(first, 50);
            assert!((25.0..27.5).contains(&slow), "{first}: {slow}");
            let fast = grown_after_two_reductions(first, 150) - grown_after_two_reductions(first, 100);
            assert!((48.0..51.0).contains(&fast), "{first}: {fast}");
        }
    }

    #[test]
    fn cube_roots_are_right() {
        for x in [0.0, 1e-9, 0.3, 1.0, 8.0, 750.0, 1e9] {
            let root = cube_root(x);
            assert!((root * root * root - x).abs() <= 1e-9 * x, "{x}: {root}");
        }
    }
}
