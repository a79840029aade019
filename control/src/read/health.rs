//! Reading how backends are checked: `check = "tcp"`, `check = "tls"`, or
//! `check = { kind = "http", path = "/health" }`.

use super::table::{Reader, Table};
use super::values;
use crate::problem::Problem;
use crate::units::Wrong;
use datapath::service::{Ask, Check, Http, Tls};
use toml::de::DeValue;

/// Bounds of an interval and of a timeout, in nanoseconds.
const TIMES_NS: (u64, u64) = (100_000_000, 3600 * 1_000_000_000);
/// Characters of a path at most: a request is one segment.
const MAX_PATH: usize = 256;
const MAX_HOST: usize = 253;

/// The checks under `check`, if there are any.
pub(super) fn check(r: &mut Reader, t: &mut Table<'_>) -> Option<Check> {
    if t.is_text("check") {
        let ask = r.get(t, "check", kind)?;
        return Some(Check { ask, ..Check::default() });
    }
    let mut t = r.table(t, "check")?;
    let (check, page) = (Check::default(), Http::default());
    let ask = match r.need(&mut t, "kind", "\"tcp\"", kind)? {
        Ask::Port => Ask::Port,
        Ask::Http(_) => Ask::Http(Http {
            path: r.get(&mut t, "path", path).unwrap_or(page.path),
            host: r.get(&mut t, "host", host),
            status: r.get(&mut t, "status", status).unwrap_or(page.status),
        }),
        Ask::Tls(_) => Ask::Tls(Tls { host: r.get(&mut t, "host", server_name) }),
    };
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
        ask,
        interval_ns,
        timeout_ns: timeout.unwrap_or(check.timeout_ns.min(interval_ns)),
        rise: r.get(&mut t, "rise", times).unwrap_or(check.rise),
        fall: r.get(&mut t, "fall", times).unwrap_or(check.fall),
    };
    r.close(t);
    Some(check)
}

/// What is asked for, if nothing else is said of it.
fn kind(value: &DeValue<'_>) -> Result<Ask, Wrong> {
    match values::choice(value, &[("tcp", 0), ("http", 1), ("tls", 2)], "check")? {
        0 => Ok(Ask::Port),
        1 => Ok(Ask::Http(Http::default())),
        _ => Ok(Ask::Tls(Tls::default())),
    }
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

/// A name as in a certificate: TLS has no other in its hello (RFC 6066).
fn server_name(value: &DeValue<'_>) -> Result<String, Wrong> {
    let word = host(value)?;
    if word.contains([':', '[', ']']) || word.parse::<std::net::IpAddr>().is_ok() {
        return Err(Wrong::new(format!("\"{word}\" is no name"), "write a name without a port: \"www.example.com\""));
    }
    Ok(word)
}

/// The statuses of good answers: one, or a range.
fn status(value: &DeValue<'_>) -> Result<(u16, u16), Wrong> {
    let word = values::text(value, "\"200-399\"")?;
    let code = |text: &str| text.parse::<u16>().ok().filter(|code| text.len() == 3 && (100..=599).contains(code));
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let range = code(first).zip(code(last)).filter(|(first, last)| first <= last);
    range.ok_or_else(|| Wrong::new(format!("\"{word}\" is no status"), "write such as \"200\" or \"200-399\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(check: &str) -> crate::Checked {
        crate::load(&format!(
            "[daemon]\nname = \"d\"\n[[switch]]\nname = \"s\"\n[[switch.tenant]]\nname = \"t\"\n\
             [[switch.tenant.service]]\nname = \"web\"\naddress = \"10.0.0.100:443\"\ncheck = {check}\n"
        ))
    }

    #[test]
    fn tls_asks_for_a_name_or_for_none() {
        for (check, host) in [
            ("\"tls\"", None),
            ("{ kind = \"tls\" }", None),
            ("{ kind = \"tls\", host = \"www.example.com\" }", Some("www.example.com")),
        ] {
            let checked = read(check);
            let service = &checked.config.switches[0].tenants[0].services[0];
            let wanted = Tls { host: host.map(str::to_owned) };
            assert_eq!(service.check.as_ref().map(|check| &check.ask), Some(&Ask::Tls(wanted)), "{check}");
            // As a daemon would write it, it is read again.
            let keys = crate::write::service(service);
            let again = read(&keys["check"].to_string().replace("\":", "\"="));
            assert_eq!(&again.config.switches[0].tenants[0].services[0].check, &service.check);
        }
        for (check, said) in [
            ("{ kind = \"tls\", host = \"10.0.0.1\" }", "is no name"),
            ("{ kind = \"tls\", host = \"a:443\" }", "is no name"),
            ("{ kind = \"tls\", path = \"/\" }", "path"),
            ("\"ssl\"", "\"tls\""),
        ] {
            let problems = read(check).problems;
            assert!(
                problems.iter().any(|one| format!("{} {}", one.message, one.remedy).contains(said)),
                "{check}: {problems:?}"
            );
        }
    }
}
