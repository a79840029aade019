//! Policies: which backend a new connection gets.
//!
//! A policy is a pure function of what is known of the backends, of the connection's two candidates
//! and of a seeded generator, in integers. The switch asks it, and so does whatever else balances
//! by the same rules; neither clock nor table is needed.

/// Backends of a service at most: a connection's entry has one byte for its number.
pub const MOST_BACKENDS: usize = 255;
/// What a busy connection counts, where an idle one counts 1: idle ones only break ties.
pub const BUSY: u64 = 16;
/// Reports older than so many periods say nothing to [`Policy::LoadavgCorrected`].
pub const REPORT_PERIODS: u64 = 3;
/// A load of 1, as reports write it.
pub const LOAD_ONE: u64 = 1000;

/// How a service chooses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// By chance, in proportion to weights.
    Random,
    /// In turn, from the first on; smooth where weights differ.
    RoundRobin,
    /// The least load average that was reported last, the first on ties. Reports never expire: as
    /// published.
    Loadavg,
    /// The same with what was sent there since the report added, old reports ignored, and ties
    /// broken by chance (Dahlin 2000).
    LoadavgCorrected,
    /// The least in flight for its weight, by chance on ties.
    LeastInflight,
    /// Of the connection's two candidates the one with less in flight for its weight (Mitzenmacher
    /// 2001).
    #[default]
    P2c,
    /// The connection's first candidate (Maglev 2016).
    Maglev,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 7] = [
        Policy::Random,
        Policy::RoundRobin,
        Policy::Loadavg,
        Policy::LoadavgCorrected,
        Policy::LeastInflight,
        Policy::P2c,
        Policy::Maglev,
    ];
}

/// What a server reported of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Its 1-minute load average times [`LOAD_ONE`].
    pub load: u64,
    /// Whether the report is within [`REPORT_PERIODS`].
    pub is_fresh: bool,
    /// Connections sent to it since.
    pub sent_since: u64,
}

/// What is known of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// Whether it takes connections at all.
    pub takes: bool,
    /// 1 to 256.
    pub weight: u32,
    /// Connections whose client waits or whose server is sending.
    pub busy: u32,
    /// Other open ones.
    pub idle: u32,
    /// Processors, for [`Policy::LoadavgCorrected`]: one connection is a load of 1 over so many.
    pub cores: u32,
    /// Its last report.
    pub report: Option<Report>,
}

impl Load {
    /// Whether a new connection may go there.
    #[must_use]
    pub fn is_eligible(&self) -> bool {
        self.takes && self.weight > 0
    }

    fn in_flight(&self) -> u64 {
        u64::from(self.busy) * BUSY + u64::from(self.idle)
    }

    /// Whether it has less in flight than another for its weight.
    pub(super) fn has_less_than(&self, other: &Load) -> bool {
        self.compare(other).is_lt()
    }

    /// What has less in flight, as shortest expected delay has it: with the new
    /// connection, over the weight.
    fn compare(&self, other: &Load) -> std::cmp::Ordering {
        let of = |one: &Load, other: &Load| (one.in_flight() + BUSY) * u64::from(other.weight);
        of(self, other).cmp(&of(other, self))
    }
}

/// Whether so little of the weight is well that health says nothing: less than `panic_ppm`
/// millionths of it. Of each backend its weight, and whether it is well.
pub fn is_in_panic(backends: impl Iterator<Item = (u32, bool)>, panic_ppm: u32) -> bool {
    let (all, well) = backends.fold((0, 0), |(all, well), (weight, is_well)| {
        (all + u64::from(weight), well + if is_well { u64::from(weight) } else { 0 })
    });
    well * 1_000_000 < all * u64::from(panic_ppm)
}

/// A generator of numbers that nobody outside can foresee (splitmix64, Steele 2014), seeded.
#[derive(Clone, Copy, Debug)]
pub struct Dice(u64);

impl Dice {
    /// One that starts at `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.roll()) * u128::from(n)) >> 64) as u64
    }
}

/// What a policy remembers from one choice to the next.
#[derive(Clone, Debug)]
pub struct Chooser {
    dice: Dice,
    /// Of round-robin, by backend.
    credits: Vec<i64>,
}

impl Chooser {
    /// One that has not chosen yet.
    #[must_use]
    pub fn new(seed: u64) -> Chooser {
        Chooser { dice: Dice::new(seed), credits: vec![0; MOST_BACKENDS] }
    }

    /// A backend's number has another owner: it starts without credit, and so do the others, so
    /// that turns begin at the first.
    pub fn renew(&mut self) {
        self.credits.fill(0);
    }

    /// The backend for a new connection: its number in `loads`. `candidates` are those that the
    /// connection's hash names, the first one first. Where a policy's choice takes none, the next
    /// one by the candidates does; `None` where no backend takes any.
    pub fn choose(&mut self, policy: Policy, loads: &[Load], candidates: [usize; 2]) -> Option<usize> {
        let eligible = |at: usize| loads.get(at).is_some_and(Load::is_eligible);
        match policy {
            Policy::Random => self.by_weight(loads),
            Policy::RoundRobin => self.in_turn(loads),
            Policy::Loadavg => least(loads, |load| load.report.map_or(0, |report| report.load)),
            Policy::LoadavgCorrected => self.least_by_chance(loads, |a, b| corrected(a).cmp(&corrected(b))),
            Policy::LeastInflight => self.least_by_chance(loads, Load::compare),
            Policy::P2c => match candidates {
                [a, b] if eligible(a) && eligible(b) => Some(if loads[b].has_less_than(&loads[a]) { b } else { a }),
                _ => first_of(loads, candidates),
            },
            Policy::Maglev => first_of(loads, candidates),
        }
    }

    fn by_weight(&mut self, loads: &[Load]) -> Option<usize> {
        let all = || loads.iter().enumerate().filter(|(_, load)| load.is_eligible());
        let sum: u64 = all().map(|(_, load)| u64::from(load.weight)).sum();
        let mut left = (sum > 0).then(|| self.dice.below(sum))?;
        for (at, load) in all() {
            match left.checked_sub(u64::from(load.weight)) {
                Some(rest) => left = rest,
                None => return Some(at),
            }
        }
        None
    }

    /// Smooth weighted round-robin: everyone is credited its weight, the greatest credit is taken,
    /// and pays all of it.
    fn in_turn(&mut self, loads: &[Load]) -> Option<usize> {
        let mut taken: Option<usize> = None;
        let mut sum = 0;
        for (at, load) in loads.iter().enumerate().take(self.credits.len()) {
            if !load.is_eligible() {
                self.credits[at] = 0;
                continue;
            }
            self.credits[at] += i64::from(load.weight);
            sum += i64::from(load.weight);
            if taken.is_none_or(|best| self.credits[at] > self.credits[best]) {
                taken = Some(at);
            }
        }
        self.credits[taken?] -= sum;
        taken
    }

    /// Of those that are least by `order`, any.
    fn least_by_chance(&mut self, loads: &[Load], order: impl Fn(&Load, &Load) -> std::cmp::Ordering) -> Option<usize> {
        let mut best: Option<usize> = None;
        let mut ties = 0;
        for (at, load) in loads.iter().enumerate().filter(|(_, load)| load.is_eligible()) {
            match best.map(|best| order(load, &loads[best])) {
                Some(std::cmp::Ordering::Greater) => {}
                Some(std::cmp::Ordering::Equal) => {
                    ties += 1;
                    // Each of so many ties is kept with the same chance.
                    if self.dice.below(ties) == 0 {
                        best = Some(at);
                    }
                }
                _ => (best, ties) = (Some(at), 1),
            }
        }
        best
    }
}

/// The first of those that are least.
fn least(loads: &[Load], of: impl Fn(&Load) -> u64) -> Option<usize> {
    let eligible = loads.iter().enumerate().filter(|(_, load)| load.is_eligible());
    eligible.min_by_key(|(_, load)| of(load)).map(|(at, _)| at)
}

/// A load average and what was sent since, in 2^-16 of [`LOAD_ONE`] for each unit of weight. A
/// report that is old is as none: what was sent since would grow for as long as no other comes.
fn corrected(load: &Load) -> u64 {
    let report = load.report.filter(|report| report.is_fresh);
    let (reported, sent) = report.map_or((0, u64::from(load.busy)), |report| (report.load, report.sent_since));
    let sent = sent.saturating_mul(LOAD_ONE) / u64::from(load.cores.max(1));
    (reported.saturating_add(sent) << 16) / u64::from(load.weight.max(1))
}

/// The first candidate that takes connections; else the next backend behind the first candidate.
fn first_of(loads: &[Load], candidates: [usize; 2]) -> Option<usize> {
    let eligible = |&at: &usize| loads.get(at).is_some_and(Load::is_eligible);
    let others = (0..loads.len()).map(|step| (candidates[0] + 1 + step) % loads.len());
    candidates.into_iter().chain(others).find(eligible)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn loads(list: &[(u32, u32)]) -> Vec<Load> {
        list.iter().map(|&(weight, busy)| Load { takes: true, weight, busy, cores: 1, ..Load::default() }).collect()
    }

    fn count(policy: Policy, loads: &[Load], n: usize) -> Vec<usize> {
        let mut chooser = Chooser::new(7);
        let mut counts = vec![0; loads.len()];
        for _ in 0..n {
            counts[chooser.choose(policy, loads, [0, 1]).expect("one takes")] += 1;
        }
        counts
    }

    #[test]
    fn round_robin_begins_with_the_first_and_is_smooth() {
        let mut chooser = Chooser::new(1);
        let mut order = |loads: &[Load], n: usize| -> Vec<usize> {
            chooser.renew();
            (0..n).filter_map(|_| chooser.choose(Policy::RoundRobin, loads, [0, 0])).collect()
        };
        assert_eq!(order(&loads(&[(1, 0), (1, 9), (1, 0)]), 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(order(&loads(&[(5, 0), (1, 0), (1, 0)]), 7), [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn random_follows_weights() {
        let counts = count(Policy::Random, &loads(&[(1, 0), (3, 0)]), 40_000);
        assert!((9_600..10_400).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn the_published_policy_sends_all_to_the_first_until_a_report_says_otherwise() {
        let mut all = loads(&[(1, 50), (1, 0)]);
        assert_eq!(count(Policy::Loadavg, &all, 100), [100, 0]);
        all[0].report = Some(Report { load: 1, is_fresh: false, sent_since: 0 });
        assert_eq!(count(Policy::Loadavg, &all, 100), [0, 100]);
    }

    #[test]
    fn what_was_sent_since_corrects_an_old_report() {
        let mut all = loads(&[(1, 0), (1, 0)]);
        all[0].report = Some(Report { load: 500, is_fresh: true, sent_since: 3 });
        all[1].report = Some(Report { load: 2000, is_fresh: true, sent_since: 0 });
        assert_eq!(count(Policy::LoadavgCorrected, &all, 10), [0, 10]);
        all[1].report = Some(Report { load: 2000, is_fresh: false, sent_since: 10_000 });
        assert_eq!(count(Policy::LoadavgCorrected, &all, 10), [0, 10], "what is old says nothing");
        all[1].busy = 4;
        assert_eq!(count(Policy::LoadavgCorrected, &all, 10), [10, 0], "4 are there, as where nothing was reported");
    }

    #[test]
    fn a_backend_that_reports_no_more_gets_its_part() {
        // Ten connections a second, of a second each; the second backend reports every 5 s.
        let (mut chooser, mut all, mut counts) = (Chooser::new(7), loads(&[(1, 0), (1, 0)]), [0, 0]);
        let mut open = std::collections::VecDeque::new();
        all[0].report = Some(Report { load: 2000, is_fresh: false, sent_since: 0 });
        for tenth in 0..10_000 {
            if tenth % 50 == 0 {
                all[1].report = Some(Report { load: u64::from(all[1].busy) * LOAD_ONE, is_fresh: true, sent_since: 0 });
            }
            let at = chooser.choose(Policy::LoadavgCorrected, &all, [0, 1]).expect("both take");
            counts[at] += 1;
            all[at].busy += 1;
            if let Some(report) = &mut all[at].report {
                report.sent_since += 1;
            }
            open.push_back(at);
            if open.len() == 10 {
                all[open.pop_front().unwrap_or(at)].busy -= 1;
            }
        }
        assert!(counts[0] > 2000, "{counts:?}");
    }

    #[test]
    fn least_inflight_takes_the_least_for_its_weight_and_ties_by_chance() {
        assert_eq!(count(Policy::LeastInflight, &loads(&[(1, 3), (1, 2), (1, 4)]), 10), [0, 10, 0]);
        // (5 + 1) / 4 is less than (1 + 1) / 1.
        assert_eq!(count(Policy::LeastInflight, &loads(&[(4, 5), (1, 1)]), 10), [10, 0]);
        let ties = count(Policy::LeastInflight, &loads(&[(1, 1), (1, 1), (1, 1)]), 3000);
        assert!(ties.iter().all(|&n| (850..1150).contains(&n)), "{ties:?}");
        let mut all = loads(&[(1, 1), (1, 1)]);
        all[0].idle = 100;
        assert_eq!(count(Policy::LeastInflight, &all, 10), [0, 10]);
    }

    #[test]
    fn candidates_are_asked_first_and_then_whoever_is_next() {
        let mut all = loads(&[(1, 0), (1, 9), (1, 5), (1, 0)]);
        let mut chooser = Chooser::new(3);
        assert_eq!(chooser.choose(Policy::P2c, &all, [1, 2]), Some(2));
        assert_eq!(chooser.choose(Policy::Maglev, &all, [1, 2]), Some(1));
        all[1].takes = false;
        assert_eq!(chooser.choose(Policy::Maglev, &all, [1, 2]), Some(2));
        all[2].weight = 0;
        assert_eq!(chooser.choose(Policy::P2c, &all, [1, 2]), Some(3));
    }

    proptest! {
        #[test]
        fn only_who_takes_connections_is_chosen(
            list in prop::collection::vec((any::<bool>(), 0u32..=256, any::<u32>(), any::<u32>(), any::<(u64, bool, u64)>()), 0..9),
            candidates: [usize; 2],
            seed: u64,
        ) {
            let all: Vec<Load> = list.iter().map(|&(takes, weight, busy, cores, (load, is_fresh, sent_since))| Load {
                takes, weight, busy, idle: cores, cores, report: Some(Report { load: load >> 20, is_fresh, sent_since: sent_since >> 20 }),
            }).collect();
            let any = all.iter().any(Load::is_eligible);
            let candidates = candidates.map(|at| at % (all.len() + 1));
            let mut chooser = Chooser::new(seed);
            for policy in Policy::ALL {
                let chosen = chooser.choose(policy, &all, candidates);
                prop_assert_eq!(chosen.is_some(), any);
                prop_assert!(chosen.is_none_or(|at| all[at].is_eligible()));
            }
        }
    }
}
