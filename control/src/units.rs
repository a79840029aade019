//! Units: text such as `"300 Mbit/s"` to integers, exactly, and back.
//!
//! A number without unit is an error, and so is a unit that people confuse (bytes for bits, 1000
//! for 1024): the remedy says what to write.

use datapath::units::Rate;

/// Why a text is not a value, and what would be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub remedy: String,
}

impl Wrong {
    pub(crate) fn new(message: impl Into<String>, remedy: impl Into<String>) -> Wrong {
        Wrong { message: message.into(), remedy: remedy.into() }
    }
}

/// One kind of quantity: how it is called, an example, and its units as (name, how many of the
/// smallest).
struct Quantity {
    what: &'static str,
    example: &'static str,
    units: &'static [(&'static str, u64)],
    /// What people write instead, and what to tell them.
    confused: &'static [(&'static str, &'static str)],
}

const BITS: &str = "rates are in bits a second: bit/s, kbit/s, Mbit/s, Gbit/s (8 bit are one byte)";
const BINARY: &str = "sizes are in B, KiB (1024 B), MiB or GiB";

const RATE: Quantity = Quantity {
    what: "a rate",
    example: "300 Mbit/s",
    units: &[("bit/s", 1), ("kbit/s", 1_000), ("Mbit/s", 1_000_000), ("Gbit/s", 1_000_000_000)],
    confused: &[
        ("bps", "write bit/s"),
        ("kbps", "write kbit/s"),
        ("mbps", "write Mbit/s"),
        ("gbps", "write Gbit/s"),
        ("kb/s", BITS),
        ("mb/s", BITS),
        ("gb/s", BITS),
        ("kib/s", BITS),
        ("mib/s", BITS),
        ("gib/s", BITS),
        ("b/s", BITS),
        ("kbit", "write kbit/s"),
        ("mbit", "write Mbit/s"),
        ("gbit", "write Gbit/s"),
    ],
};

const SIZE: Quantity = Quantity {
    what: "a size",
    example: "64 KiB",
    units: &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)],
    confused: &[("k", BINARY), ("kb", BINARY), ("m", BINARY), ("mb", BINARY), ("g", BINARY), ("gb", BINARY)],
};

const TIME: Quantity = Quantity {
    what: "a time",
    example: "50 us",
    units: &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)],
    confused: &[
        ("µs", "write us"),
        ("μs", "write us"),
        ("usec", "write us"),
        ("msec", "write ms"),
        ("sec", "write s"),
        ("min", "write the seconds"),
    ],
};

const PERCENT: Quantity = Quantity { what: "a percentage", example: "2 %", units: &[("%", 10_000)], confused: &[] };

/// A rate between [`Rate::MIN`] and [`Rate::MAX`].
pub fn rate(text: &str) -> Result<Rate, Wrong> {
    let bps = parse(&RATE, text)?;
    if !(Rate::MIN.0..=Rate::MAX.0).contains(&bps) {
        let range = format!("a rate is 1 kbit/s to {} Gbit/s", Rate::MAX.0 / Rate::GBIT);
        let remedy = if bps == 0 { format!("{range}; leave the key out for none") } else { range };
        return Err(Wrong::new(format!("\"{text}\" is out of range"), remedy));
    }
    Ok(Rate(bps))
}

/// A size in bytes, `least` to `most`.
pub fn size(text: &str, least: u64, most: u64) -> Result<u64, Wrong> {
    let bytes = parse(&SIZE, text)?;
    if !(least..=most).contains(&bytes) {
        let remedy = format!("it may be {} to {}", show_size(least), show_size(most));
        return Err(Wrong::new(format!("\"{text}\" is out of range"), remedy));
    }
    Ok(bytes)
}

/// A time in nanoseconds, up to `most`.
pub fn time_ns(text: &str, least: u64, most: u64) -> Result<u64, Wrong> {
    let ns = parse(&TIME, text)?;
    if !(least..=most).contains(&ns) {
        let remedy = format!("it may be {} to {}", show_time(least), show_time(most));
        return Err(Wrong::new(format!("\"{text}\" is out of range"), remedy));
    }
    Ok(ns)
}

/// A percentage in millionths, up to `most` per cent.
pub fn percent_ppm(text: &str, most: u64) -> Result<u32, Wrong> {
    let ppm = parse(&PERCENT, text)?;
    if ppm > most * 10_000 {
        return Err(Wrong::new(format!("\"{text}\" is out of range"), format!("it may be 0 % to {most} %")));
    }
    Ok(ppm as u32)
}

/// A rate in the unit in which it is shortest: `1.5 Gbit/s`.
#[must_use]
pub fn show_rate(rate: Rate) -> String {
    if !rate.is_limited() {
        return "unlimited".to_owned();
    }
    show(&RATE, rate.0)
}

/// A size in the unit in which it is shortest: `64 KiB`.
#[must_use]
pub fn show_size(bytes: u64) -> String {
    show(&SIZE, bytes)
}

/// A size in the largest unit of which it is a whole number, so that it reads back whatever it is:
/// `64 KiB`, `1601 B`.
#[must_use]
pub fn write_size(bytes: u64) -> String {
    let whole = |&&(_, one): &&(&str, u64)| bytes >= one && bytes.is_multiple_of(one);
    let (unit, one) = SIZE.units.iter().rev().find(whole).unwrap_or(&SIZE.units[0]);
    format!("{} {unit}", bytes / one)
}

/// A time in the unit in which it is shortest: `50 us`.
#[must_use]
pub fn show_time(ns: u64) -> String {
    show(&TIME, ns)
}

/// Millionths as per cent: `2 %`.
#[must_use]
pub fn show_percent(ppm: u32) -> String {
    show(&PERCENT, u64::from(ppm))
}

/// Exactly: a sum just above its bound must not look like it.
fn show(quantity: &Quantity, value: u64) -> String {
    let (unit, one) = quantity.units.iter().rev().find(|&&(_, one)| value >= one).unwrap_or(&quantity.units[0]);
    let (whole, mut rest) = (value / one, value % one);
    let mut text = whole.to_string();
    // Every `one` divides a power of ten, so this ends: after nine decimals for powers of ten,
    // thirty for those of two.
    let mut point = '.';
    while rest > 0 {
        text.extend((point != ' ').then_some(point));
        point = ' ';
        let digits = u128::from(rest) * 10;
        text.push(char::from(b'0' + (digits / u128::from(*one)) as u8));
        rest = (digits % u128::from(*one)) as u64;
    }
    format!("{text} {unit}")
}

fn parse(quantity: &Quantity, text: &str) -> Result<u64, Wrong> {
    let example = || format!("write {} with its unit, such as \"{}\"", quantity.what, quantity.example);
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..split], trimmed[split..].trim_start());
    if number.is_empty() {
        return Err(Wrong::new(format!("\"{text}\" is not {}", quantity.what), example()));
    }
    if unit.is_empty() {
        return Err(Wrong::new(format!("\"{text}\" has no unit"), example()));
    }
    let Some(&(_, one)) = quantity.units.iter().find(|(name, _)| *name == unit) else {
        return Err(Wrong::new(format!("unknown unit \"{unit}\" of {}", quantity.what), unit_remedy(quantity, unit)));
    };
    decimal(number, one).map_err(|why| Wrong::new(format!("\"{text}\" {why}"), example()))
}

fn unit_remedy(quantity: &Quantity, unit: &str) -> String {
    if let Some((name, _)) = quantity.units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))
        && !matches!(unit, "b" | "M" | "K")
    {
        return format!("write {name}");
    }
    if let Some((_, advice)) = quantity.confused.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
        return (*advice).to_owned();
    }
    let names: Vec<&str> = quantity.units.iter().map(|(name, _)| *name).collect();
    format!("the units of {} are {}", quantity.what, names.join(", "))
}

/// `number` (digits with at most one point) times `one`, exactly.
fn decimal(number: &str, one: u64) -> Result<u64, &'static str> {
    const DIGITS: usize = 9;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if part.contains('.') || whole.is_empty() || part.is_empty() || number.contains('_') {
        return Err("is not a decimal number with a unit");
    }
    if part.len() > DIGITS {
        return Err("has too many decimals");
    }
    let whole: u64 = whole.parse().map_err(|_| "is too large")?;
    let scale = 10u128.pow(part.len() as u32);
    let parts: u128 = part.parse().map_err(|_| "is too large")?;
    let rest = parts * u128::from(one);
    if !rest.is_multiple_of(scale) {
        return Err("is not a whole number of the smallest unit");
    }
    u64::try_from(u128::from(whole) * u128::from(one) + rest / scale).map_err(|_| "is too large")
}

/// A number of things, as it is said: `1 switch`, `2 switches`.
#[must_use]
pub fn show_count(count: usize, one: &str, more: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {more}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_exact() {
        assert_eq!(rate("300 Mbit/s"), Ok(Rate(300_000_000)));
        assert_eq!(rate("1.5 Gbit/s"), Ok(Rate(1_500_000_000)));
        assert_eq!(rate("64kbit/s"), Ok(Rate(64_000)));
        assert_eq!(rate("0.1 Gbit/s"), Ok(Rate(100_000_000)));
        assert_eq!(rate("400 Gbit/s"), Ok(Rate::MAX));
        assert!(rate("400.000000001 Gbit/s").is_err());
        assert!(rate("999 bit/s").is_err());
        assert!(rate("0 bit/s").unwrap_err().remedy.contains("leave the key out"));
        assert!(rate("99999999999999999999 Gbit/s").is_err());
    }

    #[test]
    fn what_people_confuse_gets_the_right_unit() {
        let remedy = |text| rate(text).unwrap_err().remedy;
        assert_eq!(remedy("300 mbit/s"), "write Mbit/s");
        assert_eq!(remedy("300 Mbps"), "write Mbit/s");
        assert!(remedy("300 MB/s").contains("bits a second"));
        assert!(remedy("300").contains("300 Mbit/s"));
        assert!(remedy("fast").contains("300 Mbit/s"));
        assert!(remedy("5 parsec").contains("the units of a rate"));
        assert!(size("64 KB", 0, 1 << 30).unwrap_err().remedy.contains("KiB"));
        assert_eq!(time_ns("5 µs", 0, 1_000_000_000).unwrap_err().remedy, "write us");
    }

    #[test]
    fn sizes_times_and_percentages() {
        assert_eq!(size("64 KiB", 0, 1 << 30), Ok(65_536));
        assert_eq!(size("1.5 MiB", 0, 1 << 30), Ok(1_572_864));
        assert!(size("0.3 B", 0, 1 << 30).is_err());
        assert_eq!(time_ns("50 us", 0, 1_000_000_000), Ok(50_000));
        assert!(time_ns("2 s", 0, 1_000_000_000).is_err());
        assert_eq!(percent_ppm("2 %", 50), Ok(20_000));
        assert_eq!(percent_ppm("0.5 %", 50), Ok(5_000));
        assert!(percent_ppm("51 %", 50).is_err());
    }

    #[test]
    fn shown_values_are_short_and_read_back() {
        assert_eq!(show_rate(Rate(980_000_000)), "980 Mbit/s");
        assert_eq!(show_rate(Rate(1_500_000_000)), "1.5 Gbit/s");
        assert_eq!(show_rate(Rate::UNLIMITED), "unlimited");
        assert_eq!(show_rate(Rate(1_001_000_000)), "1.001 Gbit/s");
        assert_eq!(show_rate(Rate(980_000_004)), "980.000004 Mbit/s");
        assert_eq!(show_size(65_536), "64 KiB");
        assert_eq!(show_size(1_600), "1.5625 KiB");
        assert_eq!(show_time(50_000), "50 us");
        assert_eq!([0, 1, 2].map(|n| show_count(n, "switch", "switches")), ["0 switches", "1 switch", "2 switches"]);
        assert_eq!(rate(&show_rate(Rate(64_000))), Ok(Rate(64_000)));
    }
}
