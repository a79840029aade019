//! UDP traffic for the lab, faster than a system call for each datagram. Both ends stop by
//! themselves and print one JSON object.
//!
//!     blast send --to ADDR:PORT [--from ADDR] --length BYTES [--gso SEGMENT] --rate BIT/S|max --seconds N [--flows N] [--row MS]
//!     blast sink --port P --seconds N [--on ADDR] [--row MS]
//!
//! `send` sends messages of `--length` bytes of UDP payload. With `--gso` each message goes out as
//! datagrams of SEGMENT bytes that the kernel treats as one frame for as long as it can
//! (UDP_SEGMENT, udp(7)). `--rate` counts payload (`k`, `M` and `G` may follow the number); flows
//! differ in their source port and take turns. `sink` counts what arrives, and `send` what went
//! out, in rows of 100 ms, or of `--row`, from its start. Both say when that was (`began_ns`, since
//! 1970), so that what two of them saw can be compared. Datagrams of 16 bytes or more say when they
//! were sent, so that `sink` also tells what of each of the sender's rows has arrived (`sent`),
//! however late.

mod receive;
mod transmit;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bounds: this is for measuring, not for leaving on.
const LONGEST_SECONDS: f64 = 600.0;
const MOST_FLOWS: usize = 1024;
/// The longest UDP payload over IPv4: 65535 less the IP and UDP headers.
const LONGEST_MESSAGE: usize = 65_507;
/// Datagrams that the kernel makes of one message at most (`UDP_MAX_SEGMENTS` before Linux 6.9).
const MOST_SEGMENTS: usize = 64;

/// How long a row is where nothing is said, in milliseconds.
const ROW_MS: u64 = 100;

const USAGE: &str = "\
usage: blast send --to ADDR:PORT [--from ADDR] --length BYTES [--gso SEGMENT] --rate BIT/S|max --seconds N [--flows N] [--row MS]
       blast sink --port P --seconds N [--on ADDR] [--row MS]";

/// What to send.
struct Sending {
    to: SocketAddr,
    from: Option<IpAddr>,
    message_bytes: usize,
    segment_bytes: Option<usize>,
    /// Payload bits a second; `None` is as fast as it goes.
    rate_bps: Option<u64>,
    length: Duration,
    flows: usize,
    row: Duration,
}

/// What to count.
struct Sinking {
    on: SocketAddr,
    length: Duration,
    row: Duration,
}

/// How a datagram begins that says in the next 8 bytes how many nanoseconds after its sender's
/// start it was sent.
const STAMP: [u8; 8] = *b"levblast";
/// Bytes of both.
const STAMP_BYTES: usize = 16;

/// Nanoseconds since 1970.
fn wall_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let printed = match arguments.split_first() {
        Some((verb, rest)) if verb == "send" => {
            options(rest, &["to", "from", "length", "gso", "rate", "seconds", "flows", "row"])
                .and_then(|options| sending(&options))
                .map(|sending| transmit::run(&sending))
        }
        Some((verb, rest)) if verb == "sink" => options(rest, &["port", "seconds", "on", "row"])
            .and_then(|options| sinking(&options))
            .map(|sinking| receive::run(&sinking)),
        _ => Err("send or sink".to_owned()),
    };
    match printed {
        Ok(Ok(json)) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Ok(Err(error)) => {
            eprintln!("blast: {error}");
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("blast: {why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

type Options<'a> = Vec<(&'a str, &'a str)>;

fn options<'a>(arguments: &'a [String], known: &[&str]) -> Result<Options<'a>, String> {
    let split = |pair: &'a [String]| match (pair[0].strip_prefix("--"), pair.get(1)) {
        (Some(name), Some(value)) if known.contains(&name) => Ok((name, value.as_str())),
        (Some(name), None) if known.contains(&name) => Err(format!("--{name}: its value is missing")),
        _ => Err(format!("{}: unknown option", pair[0])),
    };
    arguments.chunks(2).map(split).collect()
}

fn optional<T: std::str::FromStr>(options: &Options, name: &str) -> Result<Option<T>, String> {
    match options.iter().find(|(key, _)| *key == name) {
        None => Ok(None),
        Some((_, text)) => text.parse().map(Some).map_err(|_| format!("--{name} {text}: cannot be read")),
    }
}

fn needed<T: std::str::FromStr>(options: &Options, name: &str) -> Result<T, String> {
    optional(options, name)?.ok_or_else(|| format!("--{name} is missing"))
}

fn length(options: &Options) -> Result<Duration, String> {
    let seconds: f64 = needed(options, "seconds")?;
    if !(0.0..=LONGEST_SECONDS).contains(&seconds) {
        return Err(format!("--seconds {seconds}: 0 to {LONGEST_SECONDS}"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn sending(options: &Options) -> Result<Sending, String> {
    let message_bytes: usize = needed(options, "length")?;
    if !(1..=LONGEST_MESSAGE).contains(&message_bytes) {
        return Err(format!("--length {message_bytes}: 1 to {LONGEST_MESSAGE} bytes"));
    }
    let segment_bytes: Option<usize> = optional(options, "gso")?;
    if let Some(segment) = segment_bytes
        && (segment == 0 || message_bytes.div_ceil(segment) > MOST_SEGMENTS)
    {
        return Err(format!("--gso {segment}: {message_bytes} bytes must be 1 to {MOST_SEGMENTS} such segments"));
    }
    let flows = optional(options, "flows")?.unwrap_or(1);
    if !(1..=MOST_FLOWS).contains(&flows) {
        return Err(format!("--flows {flows}: 1 to {MOST_FLOWS}"));
    }
    let rate: String = needed(options, "rate")?;
    Ok(Sending {
        to: needed(options, "to")?,
        from: optional(options, "from")?,
        message_bytes,
        segment_bytes,
        rate_bps: if rate == "max" { None } else { Some(rate_bps(&rate)?) },
        length: length(options)?,
        flows,
        row: row(options)?,
    })
}

fn rate_bps(text: &str) -> Result<u64, String> {
    let (number, factor) = match text.strip_suffix(['k', 'M', 'G']) {
        Some(number) => (number, [1_000, 1_000_000, 1_000_000_000]["kMG".find(&text[number.len()..]).unwrap_or(0)]),
        None => (text, 1),
    };
    let rate = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).filter(|rate| *rate > 0);
    rate.ok_or_else(|| format!("--rate {text}: bits a second such as 300M, or max"))
}

fn sinking(options: &Options) -> Result<Sinking, String> {
    let on: Option<IpAddr> = optional(options, "on")?;
    let on = SocketAddr::new(on.unwrap_or(IpAddr::from([0u16; 8])), needed(options, "port")?);
    Ok(Sinking { on, length: length(options)?, row: row(options)? })
}

fn row(options: &Options) -> Result<Duration, String> {
    let row_ms = optional(options, "row")?.unwrap_or(ROW_MS);
    if !(1..=1000).contains(&row_ms) {
        return Err(format!("--row {row_ms}: 1 to 1000 milliseconds"));
    }
    Ok(Duration::from_millis(row_ms))
}

/// Rows that so much time takes, and at least one.
fn rows(length: Duration, row: Duration) -> usize {
    length.as_nanos().div_ceil(row.as_nanos()).max(1) as usize
}
