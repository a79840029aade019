//! Filters: which frames `levada trace` shows. A little of what pcap-filter(7) knows, and what only
//! the switch knows.
//!
//! ```text
//! filter  = any { "or" any }        any = one { ["and"] one }        one = "not" one | "(" filter ")" | word
//! word    = "switch" NAME | "tenant" SWITCH/TENANT | "endpoint" SWITCH/TENANT/ENDPOINT    (or the last part alone)
//!         | "drop" [REASON] | "forwarded" | "uplink"
//!         | "tcp" | "udp" | "icmp" | "arp" | "ip" | "ip6" | "vlan" [ID]
//!         | ["src" | "dst"] ( "ether" MAC | "host" ADDRESS[/LENGTH] | "port" NUMBER )
//! ```
//!
//! `ether src MAC` is the same as `src ether MAC`. An endpoint matches what it sends and what the
//! table says is for it. A filter is judged by the frame's [`FrameTrace`], so that all of what the
//! switch found out can be asked for. Depth and length are bounded: filters come from outside.

use crate::plan::Plan;
use datapath::frame_trace::{Found, FrameTrace, Headers, Step, Transport};
use datapath::program::EndpointId;
use datapath::verdict::{Reason, Verdict};
use datapath::wire::Mac;
use std::fmt;
use std::net::IpAddr;

/// Longest filter, in bytes.
pub const MOST_BYTES: usize = 1000;
/// Brackets and `not` within each other.
pub const MOST_DEPTH: usize = 16;

/// Which frames are meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Filter {
    /// All of these; of none, every frame.
    All(Vec<Filter>),
    /// At least one of these.
    Any(Vec<Filter>),
    /// Not this.
    Not(Box<Filter>),
    /// Frames of a switch, by its number in the plan.
    Switch(usize),
    /// Frames from or for one of these endpoints, by their switch's number in the plan.
    Endpoint(Vec<(usize, EndpointId)>),
    /// Frames that come from the uplink or go there.
    Uplink,
    /// Frames that are forwarded.
    Forwarded,
    /// Frames that are dropped, for this reason or any.
    Drop(Option<Reason>),
    /// A protocol.
    Protocol(Protocol),
    /// Frames with a tag, of this VLAN or any.
    Vlan(Option<u16>),
    /// An Ethernet address.
    Ether(End, Mac),
    /// An IP prefix.
    Host(End, IpAddr, u8),
    /// A port of TCP or UDP.
    Port(End, u16),
}

/// Protocols by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP and ICMPv6.
    Icmp,
    /// ARP.
    Arp,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
}

/// Which end of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Either.
    Either,
    /// Where it comes from.
    Source,
    /// Where it goes.
    Destination,
}

impl End {
    fn holds<T>(self, (source, destination): (T, T), is: impl Fn(T) -> bool) -> bool {
        match self {
            End::Source => is(source),
            End::Destination => is(destination),
            End::Either => is(source) || is(destination),
        }
    }
}

/// What is wrong with a filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterError {
    /// What is wrong, and the remedy.
    pub message: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the filter {}", self.message)
    }
}

impl std::error::Error for FilterError {}

fn wrong<T>(message: impl Into<String>) -> Result<T, FilterError> {
    Err(FilterError { message: message.into() })
}

impl Filter {
    /// Reads a filter; the names in it must be `plan`'s.
    ///
    /// # Errors
    /// It is none, and why.
    pub fn parse(text: &str, plan: &Plan) -> Result<Filter, FilterError> {
        if text.len() > MOST_BYTES {
            return wrong(format!("is longer than {MOST_BYTES} bytes"));
        }
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        if words.is_empty() {
            return Ok(Filter::All(Vec::new()));
        }
        let mut parser = Parser { words: &words, plan };
        let filter = parser.filter(0)?;
        match parser.words.first() {
            None => Ok(filter),
            Some(word) => wrong(format!("has \"{word}\" where \"and\", \"or\" or its end should be")),
        }
    }

    /// Whether a frame of the switch at this place in the plan is meant.
    #[must_use]
    pub fn matches(&self, switch: usize, frame_trace: &FrameTrace) -> bool {
        let headers = || {
            frame_trace.steps.iter().find_map(|step| match step {
                Step::Look(Ok(headers)) => Some(headers),
                _ => None,
            })
        };
        let of = |is: &dyn Fn(&Headers) -> bool| headers().is_some_and(is);
        match self {
            Filter::All(all) => all.iter().all(|filter| filter.matches(switch, frame_trace)),
            Filter::Any(any) => any.iter().any(|filter| filter.matches(switch, frame_trace)),
            Filter::Not(filter) => !filter.matches(switch, frame_trace),
            Filter::Switch(wanted) => *wanted == switch,
            Filter::Endpoint(wanted) => frame_trace.steps.iter().any(|step| match step {
                Step::Arrive(_, Some(endpoint))
                | Step::Forward(_, Found::Declared(endpoint) | Found::Learned(endpoint, _)) => {
                    wanted.contains(&(switch, *endpoint))
                }
                _ => false,
            }),
            Filter::Uplink => frame_trace.steps.iter().any(|step| {
                let flooded =
                    |found| matches!(found, Found::Group { uplink: true, .. } | Found::Unknown { uplink: true, .. });
                match step {
                    Step::Arrive(_, None) | Step::Forward(_, Found::Uplink | Found::Host(_)) => true,
                    Step::Forward(_, found) => flooded(*found),
                    _ => false,
                }
            }),
            Filter::Forwarded => frame_trace.fate() == Verdict::Forwarded,
            Filter::Drop(None) => frame_trace.fate() != Verdict::Forwarded,
            Filter::Drop(Some(reason)) => frame_trace.fate() == Verdict::Dropped(*reason),
            Filter::Protocol(protocol) => of(&|headers| protocol.is(headers)),
            Filter::Vlan(None) => of(&|headers| headers.vlan.is_some()),
            Filter::Vlan(wanted) => of(&|headers| headers.vlan == *wanted),
            Filter::Ether(end, mac) => of(&|headers| end.holds((headers.source, headers.destination), |m| m == *mac)),
            Filter::Host(end, prefix, length) => {
                of(&|headers| headers.addresses.is_some_and(|ends| end.holds(ends, |a| within(a, *prefix, *length))))
            }
            Filter::Port(end, port) => of(&|headers| match headers.transport {
                Transport::Tcp(from, to) | Transport::Udp(from, to) => end.holds((from, to), |p| p == *port),
                _ => false,
            }),
        }
    }
}

impl Protocol {
    fn is(self, headers: &Headers) -> bool {
        let v4 = headers.addresses.map(|(source, _)| source.is_ipv4());
        match self {
            Protocol::Tcp => matches!(headers.transport, Transport::Tcp(..)),
            Protocol::Udp => matches!(headers.transport, Transport::Udp(..)),
            Protocol::Icmp => matches!(headers.transport, Transport::Icmp(..)),
            Protocol::Arp => headers.transport == Transport::Arp,
            Protocol::Ip => v4 == Some(true) && headers.transport != Transport::Arp,
            Protocol::Ip6 => v4 == Some(false),
        }
    }
}

/// Whether `address` begins with the first `length` bits of `prefix`.
fn within(address: IpAddr, prefix: IpAddr, length: u8) -> bool {
    match (address, prefix) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let differing = u32::from(a) ^ u32::from(b);
            differing.checked_shr(32_u32.saturating_sub(length.into())).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let differing = u128::from(a) ^ u128::from(b);
            differing.checked_shr(128_u32.saturating_sub(length.into())).unwrap_or(0) == 0
        }
        _ => false,
    }
}

struct Parser<'a> {
    words: &'a [&'a str],
    plan: &'a Plan,
}

impl<'a> Parser<'a> {
    fn filter(&mut self, depth: usize) -> Result<Filter, FilterError> {
        if depth > MOST_DEPTH {
            return wrong(format!("has more than {MOST_DEPTH} brackets or \"not\" within each other"));
        }
        let mut any = vec![self.all(depth)?];
        while self.take("or") {
            any.push(self.all(depth)?);
        }
        Ok(if any.len() == 1 { any.remove(0) } else { Filter::Any(any) })
    }

    fn all(&mut self, depth: usize) -> Result<Filter, FilterError> {
        let mut all = vec![self.one(depth)?];
        loop {
            let and = self.take("and");
            match self.words.first() {
                Some(&("or" | ")")) | None if !and => break,
                _ => all.push(self.one(depth)?),
            }
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Filter::All(all) })
    }

    fn one(&mut self, depth: usize) -> Result<Filter, FilterError> {
        if depth > MOST_DEPTH {
            return wrong(format!("has more than {MOST_DEPTH} brackets or \"not\" within each other"));
        }
        let word = self.next("a word such as \"endpoint\", \"tcp\" or \"drop\"")?;
        Ok(match word {
            "not" => Filter::Not(Box::new(self.one(depth + 1)?)),
            "(" => {
                let filter = self.filter(depth + 1)?;
                if !self.take(")") {
                    return wrong("has a \"(\" without its \")\"");
                }
                filter
            }
            "src" => self.end(End::Source)?,
            "dst" => self.end(End::Destination)?,
            "ether" | "host" | "port" => self.address(word, None)?,
            "switch" => {
                let name = self.next("the name of a switch")?;
                let found = self.plan.switches.iter().find(|(_, switch)| switch.name == name);
                Filter::Switch(found.ok_or_else(|| unknown("switch", name))?.0 as usize)
            }
            "tenant" => self.endpoints("tenant", "the name of a tenant")?,
            "endpoint" => self.endpoints("endpoint", "the name of an endpoint")?,
            "uplink" => Filter::Uplink,
            "forwarded" => Filter::Forwarded,
            "drop" => {
                let reason = self.words.first().and_then(|word| Reason::ALL.iter().find(|r| r.name() == *word));
                self.skip(usize::from(reason.is_some()));
                Filter::Drop(reason.copied())
            }
            "vlan" => {
                let id = self.words.first().and_then(|word| word.parse().ok()).filter(|id| *id < 4096_u16);
                self.skip(usize::from(id.is_some()));
                Filter::Vlan(id)
            }
            "tcp" => Filter::Protocol(Protocol::Tcp),
            "udp" => Filter::Protocol(Protocol::Udp),
            "icmp" => Filter::Protocol(Protocol::Icmp),
            "arp" => Filter::Protocol(Protocol::Arp),
            "ip" => Filter::Protocol(Protocol::Ip),
            "ip6" => Filter::Protocol(Protocol::Ip6),
            other => return wrong(format!("has the unknown word \"{other}\"; see levada trace --help")),
        })
    }

    fn end(&mut self, end: End) -> Result<Filter, FilterError> {
        match self.next("\"ether\", \"host\" or \"port\"")? {
            word @ ("ether" | "host" | "port") => self.address(word, Some(end)),
            other => wrong(format!("has \"{other}\" where \"ether\", \"host\" or \"port\" should be")),
        }
    }

    fn address(&mut self, word: &str, end: Option<End>) -> Result<Filter, FilterError> {
        let end = match (end, self.words.first()) {
            (Some(end), _) => end,
            (None, Some(&"src")) => End::Source,
            (None, Some(&"dst")) => End::Destination,
            (None, _) => End::Either,
        };
        self.skip(usize::from(matches!(self.words.first(), Some(&("src" | "dst")))));
        let value = self.next("an address or a number")?;
        match word {
            "ether" => match value.parse() {
                Ok(mac) => Ok(Filter::Ether(end, mac)),
                Err(error) => wrong(format!("has an Ethernet address that is none: {error}")),
            },
            "port" => match value.parse() {
                Ok(port) => Ok(Filter::Port(end, port)),
                Err(_) => wrong(format!("has \"{value}\" where a port (0 to 65535) should be")),
            },
            _ => {
                let (address, length) = value.split_once('/').unwrap_or((value, ""));
                let Ok(address) = address.parse::<IpAddr>() else {
                    return wrong(format!("has \"{value}\" where an IP address should be"));
                };
                let most = if address.is_ipv4() { 32 } else { 128 };
                match if length.is_empty() { Some(most) } else { length.parse().ok().filter(|l| *l <= most) } {
                    Some(length) => Ok(Filter::Host(end, address, length)),
                    None => wrong(format!("has \"{value}\", whose prefix length is not 0 to {most}")),
                }
            }
        }
    }

    /// The endpoints that a name stands for: a whole path, or its last part.
    fn endpoints(&mut self, kind: &str, what: &str) -> Result<Filter, FilterError> {
        let name = self.next(what)?;
        let mut found = Vec::new();
        let mut known = false;
        for (number, switch) in self.plan.switches.iter() {
            for (id, _) in switch.program.endpoints.iter() {
                let path = switch.endpoint_path(EndpointId(id));
                let path =
                    if kind == "tenant" { path.rsplit_once('/').map_or("", |(tenant, _)| tenant) } else { &path };
                if path == name || path.rsplit_once('/').is_some_and(|(_, last)| last == name) {
                    found.push((number as usize, EndpointId(id)));
                }
            }
            let of_switch = |tenant: &String| *tenant == name || name == format!("{}/{tenant}", switch.name);
            known |= kind == "tenant" && switch.tenants.values().any(of_switch);
        }
        if found.is_empty() && !known { Err(unknown(kind, name)) } else { Ok(Filter::Endpoint(found)) }
    }

    fn next(&mut self, what: &str) -> Result<&'a str, FilterError> {
        let Some((&word, rest)) = self.words.split_first() else {
            return wrong(format!("ends where {what} should be"));
        };
        self.words = rest;
        Ok(word)
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        self.skip(usize::from(found));
        found
    }

    fn skip(&mut self, words: usize) {
        self.words = &self.words[words..];
    }
}

fn unknown(kind: &str, name: &str) -> FilterError {
    FilterError { message: format!("has the {kind} \"{name}\", which there is not; levada show lists what there is") }
}

#[cfg(test)]
mod tests;
