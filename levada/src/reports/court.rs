//! Judging load reports by the keys of a configuration.

use crate::secrets::ReportKeys;
use crate::system::log::{Level, Log};
use control::report::{Judge, Now, Verdict};
use ring::hmac;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often keys are read again, so that a new one in the same file is used.
pub const READ_AGAIN: Duration = Duration::from_secs(10);
/// After how long it is tried again to listen. The process that is taken over from still does.
pub const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Tries that may fail before it is said.
pub const TRIES: u32 = 3;
/// While more come than are looked at, the kernel keeps them, and drops those beyond its bound.
pub const PAUSE: Duration = Duration::from_millis(1);

/// The time of day, in nanoseconds since 1970.
pub(super) fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Why none arrive; `table` says where they should.
pub fn cannot_arrive(address: SocketAddr, error: &io::Error, table: &str) -> String {
    format!("load reports cannot arrive at {address}: {error}; correct {table} reports")
}

/// Who may report, and what was taken of whom.
pub struct Court {
    started: Instant,
    judge: Judge<hmac::Key>,
    keys: ReportKeys,
    /// When all of them were read.
    read: Option<Instant>,
    /// What was wrong with keys when they were read last.
    wrong: Vec<String>,
}

impl Court {
    /// Nobody may report yet.
    pub fn new() -> Court {
        Court {
            started: Instant::now(),
            judge: Judge::default(),
            keys: ReportKeys::default(),
            read: None,
            wrong: Vec::new(),
        }
    }

    fn now(&self) -> Now {
        let monotonic_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Now { wall_ns: wall_ns(), monotonic_ns }
    }

    /// Who has a key in these files, by backends' paths, may report. Files that are new or had
    /// no key are read, and all of them when that is due; so a change of anything else reads no
    /// key. What is wrong is said once.
    pub fn read_keys(&mut self, files: Vec<(String, String)>, log: &Log) {
        let now = Instant::now();
        if self.read_due().is_none_or(|due| due <= now) {
            self.keys.forget();
            self.read = Some(now);
        } else if self.keys.are_of(&files) {
            return;
        }
        self.keys.read(files);
        let (keys, mut wrong) = self.keys.judge();
        let alike = self.judge.set_keys(self.now(), keys);
        wrong.extend(alike.iter().map(|path| format!("backend \"{path}\" cannot report: give it another name")));
        for why in wrong.iter().filter(|why| !self.wrong.contains(why)) {
            log.line(Level::Warning, why);
        }
        self.wrong = wrong;
    }

    /// When files are to be read that were read before; `None` where none were.
    pub fn read_due(&self) -> Option<Instant> {
        Some(self.read? + READ_AGAIN)
    }

    /// The backend's path and its load in thousandths.
    ///
    /// # Errors
    /// Why the report is not believed.
    pub fn judge(&mut self, datagram: &[u8]) -> Result<(&str, u32), Verdict> {
        self.judge.judge(self.now(), datagram, |key, signed, mac| hmac::verify(key, signed, mac).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::log::Format;

    #[test]
    fn keys_are_read_once_until_that_is_due() {
        let log = Log::new("test", Format::Text);
        let mut court = Court::new();
        let files = vec![("s/t/web/1".to_owned(), "/none".to_owned())];
        court.read_keys(files.clone(), &log);
        let due = court.read_due().unwrap();
        assert_eq!(court.wrong.len(), 1);
        court.wrong.clear();
        court.read_keys(files.clone(), &log);
        assert_eq!((court.wrong.len(), court.read_due().unwrap()), (1, due), "only what had no key is looked at again");
        court.read = court.read.map(|read| read - READ_AGAIN);
        court.read_keys(files.clone(), &log);
        assert!(court.wrong.len() == 1 && court.read_due().unwrap() >= due);
        court.read_keys(Vec::new(), &log);
        assert!(court.wrong.is_empty());
    }
}
