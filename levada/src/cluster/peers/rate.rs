//! How often something may happen: a token bucket.

use std::time::{Duration, Instant};

/// Datagrams a second to or from one host, in the long run. An agent sends a host some ten a second
/// in steady state, and some hundreds when a crowd of senders begins.
pub const RATE: u32 = 1000;
/// Datagrams to or from one host at once.
pub const BURST: u32 = 256;

/// So many at once, and so many a second.
#[derive(Debug)]
pub struct Bucket {
    per_second: u32,
    burst: Duration,
    /// When it was or will be full, were it asked for nothing more (the virtual scheduling form of
    /// the generic cell rate algorithm, ITU-T I.371).
    full_at: Instant,
}

impl Bucket {
    /// A full one.
    pub fn new(per_second: u32, burst: u32, now: Instant) -> Bucket {
        Bucket { per_second, burst: Duration::from_secs(1) * burst / per_second, full_at: now }
    }

    /// Whether it may happen now.
    pub fn take(&mut self, now: Instant) -> bool {
        let next = self.full_at.max(now) + Duration::from_secs(1) / self.per_second;
        let has_some = next <= now + self.burst;
        if has_some {
            self.full_at = next;
        }
        has_some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_burst_is_given_at_once_and_the_rest_at_the_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(100, 5, start);
        let given = |bucket: &mut Bucket, now| (0..1000).filter(|_| bucket.take(now)).count();
        assert_eq!(given(&mut bucket, start), 5);
        assert_eq!(given(&mut bucket, start + Duration::from_millis(30)), 3);
        assert_eq!(given(&mut bucket, start + Duration::from_secs(60)), 5);
    }
}
