//! The log: to standard error, one line a record, as text (`levada: NAME: LEVEL: text`) or as JSON
//! (`levada run --log json`).
//!
//! What happens again and again is not said again and again. Records are of one kind where they
//! differ only in words with digits or colons in them (names, numbers, addresses). Of a kind,
//! [`BURST`] are said in a second; the rest are counted, and when the second is over one record
//! says how many they were, and what the last of them said. Where an owner has a bound of its own
//! ([`crate::system::lines`]), that alone counts.
//!
//! Nobody waits for who reads the log: [`writer`].

mod writer;

use crate::system::privileges::{Duty, confine};
use clap::ValueEnum;
use serde::Serialize;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use writer::Writer;

/// Records of a kind that are said in a second: enough for the devices of one namespace that goes.
const BURST: u64 = 10;
/// How long a kind is counted.
const WINDOW: Duration = Duration::from_secs(1);
/// Kinds that are counted at a time. Of others all is said: what is known of the source makes them
/// few.
const KINDS: usize = 256;
/// How long the last records may take: nobody may read the log.
pub const LAST_WORD: Duration = Duration::from_secs(2);

/// How much a line matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something works less well than it should.
    Warning,
    /// Something that was asked for, or came right again.
    Info,
}

/// How records are written.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// For people: levada: NAME: LEVEL: text
    #[default]
    Text,
    /// For programs: one JSON object a line, with time, level, instance and message
    Json,
}

/// A record as JSON. Keys may be added.
#[derive(Serialize)]
struct Record<'a> {
    /// RFC 3339, UTC, to the millisecond.
    time: String,
    level: Level,
    instance: &'a str,
    message: &'a str,
    /// How many records of the kind of `message` were left out, it included.
    #[serde(skip_serializing_if = "Option::is_none")]
    repeated: Option<u64>,
}

/// What was said of one kind lately.
struct Kind {
    what: String,
    since: Instant,
    count: u64,
    last: String,
}

/// Writes records of one instance.
#[derive(Clone)]
pub struct Log {
    name: String,
    format: Format,
    kinds: Arc<Mutex<Vec<Kind>>>,
    writer: Arc<Writer>,
}

/// Sees to it that the last records are written, when it is dropped.
pub struct LastWords(Log);

impl Drop for LastWords {
    fn drop(&mut self) {
        self.0.flush();
    }
}

impl Log {
    /// Records of the instance `name`. They wait until [`Log::begin`], or for the end.
    #[must_use]
    pub fn new(name: &str, format: Format) -> Log {
        Log { name: name.to_owned(), format, kinds: Arc::default(), writer: Arc::default() }
    }

    /// What is to be kept until nothing more is said.
    #[must_use]
    pub fn last_words(&self) -> LastWords {
        LastWords(self.clone())
    }

    /// Starts the thread that writes.
    ///
    /// # Errors
    /// There is none to be had.
    pub fn begin(&self) -> io::Result<()> {
        let log = self.clone();
        let write = move || {
            if let Err(why) = confine(Duty::Passing) {
                log.line(Level::Warning, &why);
            }
            log.writer.run(&mut io::stderr(), |lost| log.left_out(lost));
        };
        thread::Builder::new().name("levada-log".to_owned()).spawn(write)?;
        self.writer.begin();
        Ok(())
    }

    /// Waits until all that was said is written, but not longer than [`LAST_WORD`].
    pub fn flush(&self) {
        self.writer.flush(LAST_WORD, &mut io::stderr(), |lost| self.left_out(lost));
    }

    /// What waits to be written.
    #[cfg(test)]
    pub fn waiting(&self) -> String {
        self.writer.waiting()
    }

    /// Writes a record, unless many of its kind were written just now. Where nobody reads for long,
    /// it is lost.
    pub fn line(&self, level: Level, text: &str) {
        match self.count(text, Instant::now()) {
            Say::Now => self.write(level, text, None),
            Say::Later => {}
            Say::When(end) => {
                let (log, what) = (self.clone(), kind(text));
                let later = move || {
                    // Who cannot say so here will say it elsewhere.
                    let _ = confine(Duty::Passing);
                    thread::sleep(end.saturating_duration_since(Instant::now()));
                    if let Some((left_out, last)) = log.close(&what) {
                        log.write(level, &last, Some(left_out));
                    }
                };
                // Without a thread the number is lost, and nothing else: the next is said.
                if thread::Builder::new().name("levada-log".to_owned()).spawn(later).is_err() {
                    let _ = self.close(&kind(text));
                }
            }
        }
    }

    /// Writes a record whose owner counts its own, so that no other owner's of the kind hide it:
    /// [`crate::system::lines`].
    pub fn line_of_owner(&self, level: Level, text: &str) {
        self.write(level, text, None);
    }

    /// The one record that others wait for: `levada: NAME ready`.
    pub fn ready(&self) {
        match self.format {
            Format::Text => self.writer.push(format!("levada: {} ready\n", self.name)),
            Format::Json => self.write(Level::Info, "ready", None),
        }
    }

    fn write(&self, level: Level, message: &str, repeated: Option<u64>) {
        self.writer.push(self.record(level, message, repeated, SystemTime::now()));
    }

    /// The record that stands for those that found no room.
    fn left_out(&self, count: u64) -> String {
        let text = format!("the log was not read: {count} records are left out here");
        self.record(Level::Warning, &text, None, SystemTime::now())
    }

    fn record(&self, level: Level, message: &str, repeated: Option<u64>, now: SystemTime) -> String {
        let instance = self.name.as_str();
        if self.format == Format::Json {
            let record = Record { time: rfc3339(now), level, instance, message, repeated };
            return serde_json::to_string(&record).unwrap_or_default() + "\n";
        }
        let level = if level == Level::Warning { "warning: " } else { "" };
        let repeated = repeated.map_or_else(String::new, |n| format!(" (repeated {n} times, this is the last)"));
        format!("levada: {instance}: {level}{message}{repeated}\n")
    }

    /// What is to be done with a record.
    fn count(&self, text: &str, now: Instant) -> Say {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of which something was left out are closed by their threads.
        kinds.retain(|kind| kind.count > BURST || now.duration_since(kind.since) < WINDOW);
        let what = kind(text);
        let Some(known) = kinds.iter_mut().find(|kind| kind.what == what) else {
            if kinds.len() < KINDS {
                kinds.push(Kind { what, since: now, count: 1, last: String::new() });
            }
            return Say::Now;
        };
        known.count += 1;
        if known.count <= BURST {
            return Say::Now;
        }
        text.clone_into(&mut known.last);
        if known.count == BURST + 1 { Say::When(known.since + WINDOW) } else { Say::Later }
    }

    /// Ends a kind's second: how many were left out, and what the last of them said.
    fn close(&self, what: &str) -> Option<(u64, String)> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kinds.iter().position(|kind| kind.what == what)?;
        let Kind { count, last, .. } = kinds.swap_remove(at);
        Some((count - BURST, last))
    }
}

/// What [`Log::line`] does with a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Say {
    Now,
    /// Somebody will tell how many there were.
    Later,
    /// It is to be told then.
    When(Instant),
}

/// What records have in common that differ only in names, numbers and addresses.
fn kind(text: &str) -> String {
    let is_word = |word: &&str| !word.contains(|c: char| c.is_ascii_digit() || c == ':' || c == '/');
    text.split_whitespace().filter(is_word).collect::<Vec<_>>().join(" ")
}

/// RFC 3339 in UTC. Days to a date: the proleptic Gregorian calendar in years that begin in March.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, ms) = (since.as_secs(), since.subsec_millis());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // 1970-01-01 is day 719 468 since 0000-03-01; an era is 400 years.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let (day, month) =
        (of_year - (153 * from_march + 2) / 5 + 1, if from_march < 10 { from_march + 3 } else { from_march - 9 });
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds: u64| rfc3339(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7));
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_399, "2000-02-28T23:59:59.007Z"),
            (951_868_799, "2000-02-29T23:59:59.007Z"),
            (1_709_251_200, "2024-03-01T00:00:00.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            assert_eq!(at(seconds), date);
        }
    }

    #[test]
    fn records_are_one_line_each() {
        let now = UNIX_EPOCH + Duration::from_secs(1);
        let text = Log::new("t", Format::Text);
        assert_eq!(text.record(Level::Warning, "a", None, now), "levada: t: warning: a\n");
        assert_eq!(text.record(Level::Info, "a", Some(7), now), "levada: t: a (repeated 7 times, this is the last)\n");
        let json = Log::new("t", Format::Json).record(Level::Warning, "a \"b\"\nc", Some(7), now);
        assert_eq!(json.lines().count(), 1);
        let wanted = serde_json::json!({"time": "1970-01-01T00:00:01.000Z", "level": "warning", "instance": "t",
            "message": "a \"b\"\nc", "repeated": 7});
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), wanted);
    }

    #[test]
    fn what_repeats_is_said_a_few_times_and_then_counted() {
        let log = Log::new("t", Format::Text);
        let start = Instant::now();
        let text = |n: usize| format!("02:00:00:00:00:{n:02x} moves between s1/red/a{n} and s1/red/b: a loop");
        let said: Vec<Say> = (0..1000).map(|n| log.count(&text(n), start)).collect();
        assert_eq!(said.iter().filter(|&&say| say == Say::Now).count() as u64, BURST);
        assert_eq!(said[BURST as usize], Say::When(start + WINDOW));
        assert_eq!(said.iter().filter(|&&say| say == Say::Later).count() as u64, 1000 - BURST - 1);
        assert_eq!(log.count("something else", start), Say::Now);
        assert_eq!(log.close(&kind(&text(0))), Some((990, text(999))));
        // The next second begins anew, and what was said seldom leaves nothing.
        assert_eq!(log.count(&text(0), start + WINDOW), Say::Now);
        assert_eq!(log.kinds.lock().unwrap().len(), 1);
        let many = (0..2 * KINDS).map(|n| "x".repeat(n + 1));
        assert!(many.map(|text| log.count(&text, start + WINDOW)).all(|say| say == Say::Now));
        assert!(log.kinds.lock().unwrap().len() <= KINDS, "bounded");
    }
}
