//! Load reports of servers: what is in a datagram, and whether it is believed.
//!
//! A report has a fixed size and layout (big endian):
//!
//! | bytes | what |
//! |---|---|
//! | 0, 1 | `L`, version 1 |
//! | 2, 3 | zero |
//! | 4 to 7 | 1-minute load average in thousandths |
//! | 8 to 15 | the backend ([`id`] of its path) |
//! | 16 to 19 | boot: drawn anew by each process that reports |
//! | 20 to 23 | sequence: rises within a boot, but where the server is put back to an earlier state |
//! | 24 to 31 | time of the server, in nanoseconds since 1970 |
//! | 32 to 63 | HMAC-SHA-256 of bytes 0 to 31 under the backend's key (RFC 2104) |
//!
//! The MAC itself is the caller's: there is no cryptography here.

use crate::config::Config;
use crate::config::openflow::OpenFlow;
use std::collections::BTreeMap;

/// Bytes of a report.
pub const SIZE: usize = 64;
/// Bytes of it that the MAC is of.
pub const SIGNED: usize = 32;
/// Where reports are sent if nothing is said.
pub const DEFAULT_PORT: u16 = 7371;
/// How far a report's time may be from ours, in nanoseconds.
pub const MOST_AWAY_NS: u64 = 30_000_000_000;
/// Reports that a backend may have taken in a second, and at once.
pub const MOST_OF_BACKEND: u64 = 20;
/// Reports that are looked at in a second, whoever sends them: a hundredth of a core at 1 us each.
pub const MOST_IN_ALL: u64 = 10_000;
/// Of these, at once.
const BURST_IN_ALL: u64 = 100;

/// The number of a backend in its reports: 64 bits of FNV-1a of its path. It only says which key is
/// to be tried.
#[must_use]
pub fn id(path: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    path.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The backends that report: path and file of the key.
#[must_use]
pub fn keys(config: &Config) -> Vec<(String, String)> {
    let mut keys = Vec::new();
    for switch in &config.switches {
        for tenant in &switch.tenants {
            for service in &tenant.services {
                for backend in &service.backends {
                    let path = || format!("{}/{}/{}/{}", switch.name, tenant.name, service.name, backend.name);
                    keys.extend(backend.key.as_ref().map(|file| (path(), file.clone())));
                }
            }
        }
    }
    keys
}

/// The same of a controller of OpenFlow switches, where a path is `SERVICE/BACKEND`.
#[must_use]
pub fn keys_of_openflow(config: &OpenFlow) -> Vec<(String, String)> {
    let mut keys = Vec::new();
    for service in &config.services {
        for backend in &service.backends {
            keys.extend(backend.key.as_ref().map(|file| (format!("{}/{}", service.name, backend.name), file.clone())));
        }
    }
    keys
}

/// What a server says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// Whose load ([`id`]).
    pub backend: u64,
    /// Which process says so.
    pub boot: u32,
    /// Its how manyth report, from 1 on.
    pub sequence: u32,
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// 1-minute load average in thousandths.
    pub load_milli: u32,
}

impl Report {
    /// What the MAC is of.
    #[must_use]
    pub fn write(&self) -> [u8; SIGNED] {
        let mut out = [0; SIGNED];
        out[..2].copy_from_slice(b"L\x01");
        out[4..8].copy_from_slice(&self.load_milli.to_be_bytes());
        out[8..16].copy_from_slice(&self.backend.to_be_bytes());
        out[16..20].copy_from_slice(&self.boot.to_be_bytes());
        out[20..24].copy_from_slice(&self.sequence.to_be_bytes());
        out[24..].copy_from_slice(&self.time_ns.to_be_bytes());
        out
    }

    /// A report, the bytes under the MAC, and the MAC, which is not looked at. `None`: malformed.
    #[must_use]
    pub fn read(datagram: &[u8]) -> Option<(Report, &[u8], &[u8])> {
        let bytes: &[u8; SIZE] = datagram.try_into().ok()?;
        let four = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let eight = |at: usize| u64::from(four(at)) << 32 | u64::from(four(at + 4));
        let report =
            Report { load_milli: four(4), backend: eight(8), boot: four(16), sequence: four(20), time_ns: eight(24) };
        let (signed, mac) = bytes.split_at(SIGNED);
        (signed == report.write() && report.sequence > 0).then_some((report, signed, mac))
    }
}

/// What became of a report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// The backend has this load now.
    Taken,
    /// It is no report, or of another version.
    Malformed,
    /// No backend with a key has this number.
    Foreign,
    /// The MAC is not that of the backend's key.
    Forged,
    /// Its time is more than 30 s from ours; or, as a boot's first, not after all that was taken.
    Old,
    /// The sequence does not rise, and the time is not after all that was taken.
    Replayed,
    /// More than 20 a second of the backend, or 10 000 of all.
    TooMany,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Verdict; 7] = [
        Verdict::Taken,
        Verdict::Malformed,
        Verdict::Foreign,
        Verdict::Forged,
        Verdict::Old,
        Verdict::Replayed,
        Verdict::TooMany,
    ];

    /// What it is called in counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Taken => "taken",
            Verdict::Malformed => "malformed",
            Verdict::Foreign => "foreign",
            Verdict::Forged => "forged",
            Verdict::Old => "old",
            Verdict::Replayed => "replayed",
            Verdict::TooMany => "too-many",
        }
    }
}

/// Now, by both clocks, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Since 1970: what servers know too.
    pub wall_ns: u64,
    /// What never steps: rates go by it.
    pub monotonic_ns: u64,
}

/// A rate (the generic cell rate algorithm, ITU-T I.371).
#[derive(Clone, Copy, Default, Debug)]
struct Budget {
    /// When the next one would come if all kept to the rate.
    due_ns: u64,
}

impl Budget {
    /// Takes one, of so many a second and so many at once.
    fn take(&mut self, now_ns: u64, rate: u64, burst: u64) -> bool {
        let each = 1_000_000_000 / rate;
        let due = self.due_ns.max(now_ns);
        if due - now_ns > each * (burst - 1) {
            return false;
        }
        self.due_ns = due.saturating_add(each);
        true
    }
}

/// What of a backend was taken before.
#[derive(Clone, Copy, Default, Debug)]
struct Last {
    boot: u32,
    /// 0: none yet.
    sequence: u32,
    /// The time of the boot's first report. What is of the same number and before is of another.
    first_ns: u64,
    /// The latest time of all, or when the backend was known first: what was recorded before that
    /// cannot be told from what was taken then.
    latest_ns: u64,
    /// The latest time that was taken while our clock was ahead.
    ahead_ns: u64,
}

impl Last {
    /// By our clock nothing is later than this. What was set or taken while it was ahead keeps out
    /// nobody who reports; but a process that begins is not told from one of which reports were
    /// taken then, until their time has passed.
    fn bound(&mut self, most_ns: u64) {
        if self.latest_ns <= most_ns {
            return;
        }
        if self.sequence > 0 {
            self.ahead_ns = self.ahead_ns.max(self.latest_ns);
        }
        (self.latest_ns, self.first_ns) = (most_ns, self.first_ns.min(most_ns));
    }
}

/// A backend that reports.
#[derive(Debug)]
struct Source<K> {
    path: String,
    key: K,
    /// What was taken before.
    last: Last,
    budget: Budget,
}

/// Who may report, and what was taken of whom: as many as the configuration has backends with keys.
#[derive(Debug)]
pub struct Judge<K> {
    sources: BTreeMap<u64, Source<K>>,
    budget: Budget,
    /// The latest time that was taken of a backend that may not report any more: it may come back,
    /// and its recorded reports are up to 30 s ahead of our clock.
    forgotten_ns: u64,
}

impl<K> Default for Judge<K> {
    /// Nobody may report yet.
    fn default() -> Self {
        Judge { sources: BTreeMap::new(), budget: Budget::default(), forgotten_ns: 0 }
    }
}

impl<K> Judge<K> {
    /// These may report from now on, by path and key, and nobody else. What is known of who could
    /// before stays, also with a new key. Returns the paths that have another's number, and so
    /// cannot report.
    pub fn set_keys(&mut self, now: Now, keys: Vec<(String, K)>) -> Vec<String> {
        let mut before = std::mem::take(&mut self.sources);
        let mut refused = Vec::new();
        for (path, key) in keys {
            let id = id(&path);
            if self.sources.contains_key(&id) {
                refused.push(path);
                continue;
            }
            let is_known = before.get(&id).is_some_and(|source| source.path == path);
            let known = is_known.then(|| before.remove(&id)).flatten();
            let (last, budget) = known.map_or_else(Default::default, |source| (source.last, source.budget));
            self.sources.insert(id, Source { path, key, last, budget });
        }
        let forgotten = before.values().map(|source| source.last.latest_ns.max(source.last.ahead_ns)).max();
        self.forgotten_ns = self.forgotten_ns.max(forgotten.unwrap_or(0));
        // A clock of ours that was set back must not keep everybody out for longer than 30 s.
        let most_ns = now.wall_ns.saturating_add(MOST_AWAY_NS);
        let since_ns = now.wall_ns.max(self.forgotten_ns.min(most_ns));
        for source in self.sources.values_mut() {
            if source.last.latest_ns == 0 {
                source.last.latest_ns = since_ns;
            }
            source.last.bound(most_ns);
        }
        refused
    }

    /// Judges a datagram. `is_good` says whether the MAC (last) is that of the bytes under the key,
    /// in constant time. Gives the backend's path and its load in thousandths.
    ///
    /// # Errors
    /// Why it is not believed; nothing is remembered of it then.
    pub fn judge(
        &mut self,
        now: Now,
        datagram: &[u8],
        is_good: impl FnOnce(&K, &[u8], &[u8]) -> bool,
    ) -> Result<(&str, u32), Verdict> {
        if !self.budget.take(now.monotonic_ns, MOST_IN_ALL, BURST_IN_ALL) {
            return Err(Verdict::TooMany);
        }
        let (report, signed, mac) = Report::read(datagram).ok_or(Verdict::Malformed)?;
        let source = self.sources.get_mut(&report.backend).ok_or(Verdict::Foreign)?;
        if !is_good(&source.key, signed, mac) {
            return Err(Verdict::Forged);
        }
        if report.time_ns.abs_diff(now.wall_ns) > MOST_AWAY_NS {
            return Err(Verdict::Old);
        }
        let last = source.last;
        let is_other = last.sequence == 0 || last.boot != report.boot;
        let is_behind = !is_other && report.sequence <= last.sequence;
        let is_later = report.time_ns > last.latest_ns.max(last.ahead_ns);
        if is_behind && !is_later {
            return Err(Verdict::Replayed);
        }
        // A server that was put back to an earlier state is as another boot: what was taken before
        // is all from before its first report.
        let is_new = is_other || is_behind;
        // A recorded report of an earlier boot is of another boot too: only the time tells.
        let first_ns = if is_new { report.time_ns } else { last.first_ns };
        if report.time_ns < first_ns || (is_new && !is_later) {
            return Err(Verdict::Old);
        }
        if !source.budget.take(now.monotonic_ns, MOST_OF_BACKEND, MOST_OF_BACKEND) {
            return Err(Verdict::TooMany);
        }
        // A clock that steps back within a boot must not let an earlier boot's reports in.
        let latest_ns = last.latest_ns.max(report.time_ns);
        source.last = Last { boot: report.boot, sequence: report.sequence, first_ns, latest_ns, ..last };
        Ok((&source.path, report.load_milli))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const START: u64 = 1_700_000_000 * S;
    const WEB1: &str = "s1/red/web/web1";
    const WEB2: &str = "s1/red/web/web2";

    /// A key is a byte, which the MAC repeats.
    fn is_good(key: &u8, _: &[u8], mac: &[u8]) -> bool {
        mac.iter().all(|byte| byte == key)
    }

    fn datagram(path: &str, key: u8, (boot, sequence): (u32, u32), time_ns: u64) -> Vec<u8> {
        let report = Report { backend: id(path), boot, sequence, time_ns, load_milli: 530 };
        [report.write(), [key; SIZE - SIGNED]].concat()
    }

    /// At so many nanoseconds after the start.
    fn at(after_ns: u64) -> Now {
        Now { wall_ns: START + after_ns, monotonic_ns: after_ns }
    }

    fn judge() -> Judge<u8> {
        let mut judge = Judge::default();
        assert!(judge.set_keys(at(0), vec![(WEB1.to_owned(), 1), (WEB2.to_owned(), 2)]).is_empty());
        judge
    }

    fn says(judge: &mut Judge<u8>, after_ns: u64, datagram: &[u8]) -> Verdict {
        match judge.judge(at(after_ns), datagram, is_good) {
            Ok((_, load)) => {
                assert_eq!(load, 530);
                Verdict::Taken
            }
            Err(verdict) => verdict,
        }
    }

    #[test]
    fn a_good_report_is_its_backends_and_is_taken_once() {
        let mut judge = judge();
        let one = datagram(WEB2, 2, (7, 1), START + S);
        assert_eq!(judge.judge(at(S), &one, is_good), Ok((WEB2, 530)));
        assert_eq!(says(&mut judge, 2 * S, &one), Verdict::Replayed);
        assert_eq!(says(&mut judge, 2 * S, &datagram(WEB2, 2, (7, 3), START + 2 * S)), Verdict::Taken);
        assert_eq!(says(&mut judge, 2 * S, &datagram(WEB2, 2, (7, 2), START + 2 * S)), Verdict::Replayed);
    }

    #[test]
    fn a_key_speaks_for_one_backend_only() {
        let mut judge = judge();
        assert_eq!(says(&mut judge, S, &datagram(WEB1, 2, (7, 1), START + S)), Verdict::Forged);
        assert_eq!(says(&mut judge, S, &datagram("s1/red/web/web3", 1, (7, 1), START + S)), Verdict::Foreign);
        // Nothing was remembered of them.
        assert_eq!(says(&mut judge, S, &datagram(WEB1, 1, (7, 1), START + S)), Verdict::Taken);
    }

    #[test]
    fn what_is_not_a_report_is_malformed() {
        let good = datagram(WEB1, 1, (7, 1), START + S);
        for length in [0, 1, 32, 63] {
            assert_eq!(says(&mut judge(), S, &good[..length]), Verdict::Malformed);
        }
        assert_eq!(says(&mut judge(), S, &[&good[..], &[0]].concat()), Verdict::Malformed);
        for byte in 0..4 {
            let mut bad = good.clone();
            bad[byte] ^= 0x80;
            assert_eq!(says(&mut judge(), S, &bad), Verdict::Malformed);
        }
        assert_eq!(says(&mut judge(), S, &datagram(WEB1, 1, (7, 0), START + S)), Verdict::Malformed);
    }

    #[test]
    fn a_report_is_at_most_30_s_from_our_clock() {
        let (mut judge, now) = (judge(), 100 * S);
        for (time, wanted) in [
            (START + 70 * S - 1, Verdict::Old),
            (START + 130 * S + 1, Verdict::Old),
            (START + 70 * S, Verdict::Taken),
            (START + 130 * S, Verdict::Taken),
        ] {
            assert_eq!(says(&mut judge, now, &datagram(WEB1, 1, (time as u32, 1), time)), wanted);
        }
    }

    #[test]
    fn a_new_boot_is_later_than_the_last_report_so_that_no_earlier_boot_comes_back() {
        let mut judge = judge();
        let first = datagram(WEB1, 1, (7, 1), START + S);
        assert_eq!(says(&mut judge, S, &first), Verdict::Taken);
        let second = datagram(WEB1, 1, (8, 1), START + 2 * S);
        assert_eq!(says(&mut judge, 2 * S, &second), Verdict::Taken);
        // The first boot again, which nobody remembers.
        assert_eq!(says(&mut judge, 3 * S, &first), Verdict::Old);
        // A clock that steps back is no matter within a boot, and opens nothing.
        assert_eq!(says(&mut judge, 5 * S, &datagram(WEB1, 1, (8, 2), START + 5 * S)), Verdict::Taken);
        assert_eq!(says(&mut judge, 5 * S, &datagram(WEB1, 1, (8, 3), START + 3 * S)), Verdict::Taken);
        assert_eq!(says(&mut judge, 5 * S, &datagram(WEB1, 1, (9, 1), START + 5 * S)), Verdict::Old);
        // A boot that happens to draw the number of an earlier one lets none of that one's in.
        assert_eq!(says(&mut judge, 6 * S, &datagram(WEB1, 1, (7, 1), START + 6 * S)), Verdict::Taken);
        assert_eq!(says(&mut judge, 6 * S, &datagram(WEB1, 1, (7, 2), START + 2 * S)), Verdict::Old);
    }

    #[test]
    fn a_server_that_was_put_back_is_believed_and_nothing_that_it_said_before() {
        let mut judge = judge();
        let before = [9_999, 10_000].map(|sequence| datagram(WEB1, 1, (7, sequence), START + S));
        assert!(before.iter().all(|report| says(&mut judge, S, report) == Verdict::Taken));
        let back = datagram(WEB1, 1, (7, 5000), START + 2 * S);
        assert_eq!(says(&mut judge, 2 * S, &back), Verdict::Taken);
        assert_eq!(says(&mut judge, 2 * S, &back), Verdict::Replayed);
        assert!(before.iter().all(|report| says(&mut judge, 2 * S, report) == Verdict::Old));
        assert_eq!(says(&mut judge, 3 * S, &datagram(WEB1, 1, (7, 5001), START + 3 * S)), Verdict::Taken);
        assert!(before.iter().all(|report| says(&mut judge, 3 * S, report) == Verdict::Old));
        assert_eq!(says(&mut judge, 3 * S, &back), Verdict::Replayed);
    }

    #[test]
    fn nothing_from_before_the_start_is_taken_so_that_a_restart_forgets_no_sequence() {
        let mut judge = judge();
        assert_eq!(says(&mut judge, S, &datagram(WEB1, 1, (7, 9), START)), Verdict::Old);
        assert_eq!(says(&mut judge, S, &datagram(WEB1, 1, (7, 10), START + 1)), Verdict::Taken);
    }

    #[test]
    fn a_backend_that_left_and_comes_back_has_no_recorded_report_taken_again() {
        let mut judge = judge();
        // Its clock is 10 s ahead.
        let ahead = datagram(WEB1, 1, (7, 1), START + 11 * S);
        assert_eq!(says(&mut judge, S, &ahead), Verdict::Taken);
        for is_there in [false, true] {
            let keys =
                [(WEB1.to_owned(), 1), (WEB2.to_owned(), 2)].into_iter().filter(|(_, key)| is_there || *key == 2);
            assert!(judge.set_keys(at(2 * S), keys.collect()).is_empty());
        }
        assert_eq!(says(&mut judge, 3 * S, &ahead), Verdict::Old);
        assert_eq!(says(&mut judge, 3 * S, &datagram(WEB1, 1, (7, 2), START + 13 * S)), Verdict::Taken);
        assert_eq!(says(&mut judge, 3 * S, &datagram(WEB2, 2, (9, 1), START + 3 * S)), Verdict::Taken);
        // Our clock was set back by an hour: 30 s ahead of it are the most that a new one waits.
        let back = Now { wall_ns: START - 3600 * S, monotonic_ns: 4 * S };
        for keys in [vec![], vec![(WEB1.to_owned(), 1)]] {
            assert!(judge.set_keys(back, keys).is_empty());
        }
        let now = Now { wall_ns: back.wall_ns + 31 * S, monotonic_ns: 35 * S };
        assert!(judge.judge(now, &datagram(WEB1, 1, (8, 1), now.wall_ns), is_good).is_ok());
    }

    #[test]
    fn a_clock_that_was_ahead_keeps_nobody_out_when_it_is_right() {
        let keys = || vec![(WEB1.to_owned(), 1), (WEB2.to_owned(), 2)];
        let (mut judge, ahead) = (Judge::default(), 7200 * S);
        judge.set_keys(at(ahead), keys());
        // One has reported meanwhile, out of two processes: its clock was wrong as well.
        let recorded = [((6, 9), 1), ((7, 1), 2)].map(|(of, n)| datagram(WEB2, 2, of, START + ahead + n * S));
        for (n, report) in (1..).zip(&recorded) {
            assert_eq!(says(&mut judge, ahead + n * S, report), Verdict::Taken);
        }
        let now = |after_ns| Now { wall_ns: START + after_ns, monotonic_ns: ahead + 10 * S + after_ns };
        judge.set_keys(now(0), keys());
        let mut says = |after_ns, datagram: &[u8]| {
            let verdict = judge.judge(now(after_ns), datagram, is_good);
            verdict.map_or_else(|verdict| verdict, |_| Verdict::Taken)
        };
        assert_eq!(says(31 * S, &datagram(WEB1, 1, (5, 1), START + 31 * S)), Verdict::Taken);
        assert_eq!(says(31 * S, &datagram(WEB2, 2, (7, 2), START + 31 * S)), Verdict::Taken);
        // What was taken then is not taken again when its time comes.
        assert!(recorded.iter().all(|report| says(ahead + S, report) != Verdict::Taken));
        assert_eq!(says(ahead + S, &datagram(WEB2, 2, (8, 1), START + ahead + 2 * S)), Verdict::Old);
        assert_eq!(says(ahead + S, &datagram(WEB2, 2, (8, 1), START + ahead + 3 * S)), Verdict::Taken);
    }

    #[test]
    fn a_backend_has_20_reports_a_second_and_takes_none_from_another() {
        let mut judge = judge();
        let mut taken = 0;
        for n in 1..=200 {
            let now = S + u64::from(n) * 10_000_000;
            taken += u32::from(says(&mut judge, now, &datagram(WEB1, 1, (7, n), START + now)) == Verdict::Taken);
        }
        // 2 s, and 20 at once.
        assert!((59..=61).contains(&taken), "{taken}");
        assert_eq!(says(&mut judge, 3 * S, &datagram(WEB2, 2, (7, 1), START + 3 * S)), Verdict::Taken);
    }

    #[test]
    fn at_most_10_000_a_second_are_looked_at() {
        let (mut judge, mut asked) = (judge(), 0u32);
        let forged = datagram(WEB1, 9, (7, 1), START + S);
        for n in 0..100_000 {
            let _ = judge.judge(at(S + n * 10_000), &forged, |_, _, _| {
                asked += 1;
                false
            });
        }
        assert!((10_000..=10_100).contains(&asked), "{asked}");
    }

    #[test]
    fn other_keys_leave_what_is_known() {
        let mut judge = judge();
        let one = datagram(WEB1, 1, (7, 1), START + S);
        assert_eq!(says(&mut judge, S, &one), Verdict::Taken);
        let paths = [(WEB1.to_owned(), 1), (WEB1.to_owned(), 3)];
        assert_eq!(judge.set_keys(at(S), paths.into()), [WEB1.to_owned()]);
        assert_eq!(says(&mut judge, 2 * S, &one), Verdict::Replayed);
        assert_eq!(says(&mut judge, 2 * S, &datagram(WEB2, 2, (7, 1), START + 2 * S)), Verdict::Foreign);
        judge.set_keys(at(S), vec![(WEB1.to_owned(), 5)]);
        assert_eq!(says(&mut judge, 2 * S, &one), Verdict::Forged);
        assert_eq!(says(&mut judge, 2 * S, &datagram(WEB1, 5, (7, 1), START + S)), Verdict::Replayed);
        assert_eq!(says(&mut judge, 2 * S, &datagram(WEB1, 5, (7, 2), START + 2 * S)), Verdict::Taken);
        // Who was gone is new, and what was recorded of him before is old.
        judge.set_keys(at(3 * S), vec![(WEB2.to_owned(), 2)]);
        assert_eq!(says(&mut judge, 3 * S, &datagram(WEB2, 2, (7, 1), START + 3 * S)), Verdict::Old);
        assert_eq!(says(&mut judge, 3 * S, &datagram(WEB2, 2, (7, 1), START + 3 * S + 1)), Verdict::Taken);
    }
}
