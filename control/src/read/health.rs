//! Reading how backends are checked: `check = "tcp"`, or
//! `check = { kind = "http", path = "/health" }`.

use super::table::{Reader, Table};
use super::values;
use crate::problem::Problem;
use crate::units::Wrong;
use datapath::service::{Check, Http};
use toml::de::DeValue;

/// Bounds of an interval and of a timeout, in nanoseconds.
const TIMES_NS: (u64, u64) = (100_000_000, 3600 * 1_000_000_000);
/// Characters of a path at most: a request is one segment.
const MAX_PATH: usize = 256;
const MAX_HOST: usize = 253;

/// The checks under `check`, if there are any.
pub(super) fn check(r: &mut Reader, t: &mut Table<'_>) -> Option<Check> {
    if t.is_text("check") {
        let http = r.get(t, "check", kind)?;
        return Some(Check { http: http.then(Http::default), ..Check::default() });
    }
    let mut t = r.table(t, "check")?;
    let (check, page) = (Check::default(), Http::default());
    let http = r.need(&mut t, "kind", "\"tcp\"", kind)?.then(|| Http {
        path: r.get(&mut t, "path", path).unwrap_or(page.path),
        host: r.get(&mut t, "host", host),
        status: r.get(&mut t, "status", status).unwrap_or(page.status),
    });
    let interval_ns = r.get(&mut t, "interval", time).unwrap_or(check.interval_ns);
    let place = t.place.key("timeout");
    let timeout = r.get(&mut t, "timeout", time);
    if timeout.is_some_and(|timeout_ns| timeout_ns > interval_ns) {
        let problem = Problem::error(
            place,
            "`timeout` is longer than `interval`: the next check begins when this one is over",
            "write a shorter `timeout`, or a longer `interval`",
        );
        r.problems.extend(problem.located(&r.locations, &r.hidden));
    }
    let check = Check {
        http,
        interval_ns,
        timeout_ns: timeout.unwrap_or(check.timeout_ns.min(interval_ns)),
        rise: r.get(&mut t, "rise", times).unwrap_or(check.rise),
        fall: r.get(&mut t, "fall", times).unwrap_or(check.fall),
    };
    r.close(t);
    Some(check)
}

/// Whether it is HTTP that is asked.
fn kind(value: &DeValue<'_>) -> Result<bool, Wrong> {
    values::choice(value, &[("tcp", false), ("http", true)], "check")
}

fn time(value: &DeValue<'_>) -> Result<u64, Wrong> {
    crate::units::time_ns(values::text(value, "\"1 s\"")?, TIMES_NS.0, TIMES_NS.1)
}

fn times(value: &DeValue<'_>) -> Result<u8, Wrong> {
    values::integer(value, 1, 100).map(|times| times as u8)
}

fn path(value: &DeValue<'_>) -> Result<String, Wrong> {
    let word = values::text(value, "\"/health\"")?;
    let is_path = word.starts_with('/') && word.len() <= MAX_PATH && word.bytes().all(|b| b.is_ascii_graphic());
    let wrong =
        || Wrong::new(format!("\"{word}\" is no path"), "write \"/\" and at most 255 characters without spaces");
    if is_path { Ok(word.to_owned()) } else { Err(wrong()) }
}

fn host(value: &DeValue<'_>) -> Result<String, Wrong> {
    let word = values::text(value, "\"www.example.com\"")?;
    let is_known = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    let is_host = !word.is_empty() && word.len() <= MAX_HOST && word.bytes().all(is_known);
    let wrong = || Wrong::new(format!("\"{word}\" is no host"), "write a name, as in a URL: \"www.example.com\"");
    if is_host { Ok(word.to_owned()) } else { Err(wrong()) }
}

/// The statuses of good answers: one, or a range.
fn status(value: &DeValue<'_>) -> Result<(u16, u16), Wrong> {
    let word = values::text(value, "\"200-399\"")?;
    let code = |text: &str| text.parse::<u16>().ok().filter(|code| text.len() == 3 && (100..=599).contains(code));
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let range = code(first).zip(code(last)).filter(|(first, last)| first <= last);
    range.ok_or_else(|| Wrong::new(format!("\"{word}\" is no status"), "write such as \"200\" or \"200-399\""))
}
