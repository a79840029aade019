//! Arrivals: what became of the datagrams of a flow, as the host sees that receives them, whatever
//! the switches say.

use datapath::units::Instant;

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArrivalStats {
    /// Datagrams that came, each once.
    pub datagrams: u64,
    /// Those that came again.
    pub twice: u64,
    /// Those that came behind a later one.
    pub late: u64,
    /// The longest time between two arrivals, in nanoseconds.
    pub gap_ns: u64,
    /// The last arrival.
    pub last_at: Option<Instant>,
}

/// Watches a flow whose datagrams are of one length. Positions are not to come round.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    /// By number, a bit each: it has come.
    seen: Vec<u64>,
    /// Numbers below this have come or were passed.
    passed: u64,
    stats: ArrivalStats,
}

impl Arrivals {
    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> ArrivalStats {
        self.stats
    }

    /// The numbers of those that did not come, of so many.
    pub fn missing(&self, of: u64) -> impl Iterator<Item = u64> + '_ {
        (0..of).filter(|&number| !self.has_come(number))
    }

    /// Datagrams of `each` bytes came, of which the first is at this position.
    pub fn count(&mut self, now: Instant, position: u32, each: usize, datagrams: u32) {
        let first = u64::from(position) / each.max(1) as u64;
        (first..first + u64::from(datagrams)).for_each(|number| self.count_one(now, number));
    }

    fn has_come(&self, number: u64) -> bool {
        self.seen.get((number / 64) as usize).is_some_and(|word| word & 1 << (number % 64) != 0)
    }

    fn count_one(&mut self, now: Instant, number: u64) {
        if self.has_come(number) {
            self.stats.twice += 1;
            return;
        }
        let word = (number / 64) as usize;
        if word >= self.seen.len() {
            self.seen.resize(word + 1, 0);
        }
        self.seen[word] |= 1 << (number % 64);
        self.stats.datagrams += 1;
        self.stats.late += u64::from(number < self.passed);
        self.passed = self.passed.max(number + 1);
        let gap_ns = self.stats.last_at.map_or(0, |last| now.since(last));
        self.stats.gap_ns = self.stats.gap_ns.max(gap_ns);
        self.stats.last_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_twice_or_missing_is_told() {
        let mut arrivals = Arrivals::default();
        for (at, number, datagrams) in [(10, 0, 1), (20, 1, 2), (90, 5, 1), (95, 4, 1), (96, 5, 1), (97, 9, 1)] {
            arrivals.count(Instant(at), number * 100, 100, datagrams);
        }
        let stats = ArrivalStats { datagrams: 6, twice: 1, late: 1, gap_ns: 70, last_at: Some(Instant(97)) };
        assert_eq!(arrivals.stats(), stats);
        assert_eq!(arrivals.missing(12).collect::<Vec<_>>(), [3, 6, 7, 8, 10, 11]);
    }
}
