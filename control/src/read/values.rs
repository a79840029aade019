//! Values: what each kind of TOML value must look like.

use crate::bond::{MOST_NOTICES, ORDERS as BOND_ORDERS, RESELECTS, Reselect};
use crate::config::{
    EtcdUrl, MAX_BACKEND_WEIGHT, MAX_BOND_TIME_NS, MAX_HEADROOM_PERCENT, MAX_HOLD_NS, MAX_MEMORY_BYTES, MAX_MTU,
    MAX_QUEUE_BYTES, MAX_WEIGHT, MIN_HOLD_NS, MIN_MEMORY_BYTES, MIN_MTU, MIN_QUEUE_BYTES,
};
use crate::names::{self, CONTROLLERS, INGRESS_MODES, Locator, MAX_QUEUES, ORDERS, ServiceAddress};
use crate::problem::nearest;
use crate::units::{self, Wrong};
use agent::settings::{ControllerKind, MOST_SAMPLES};
use datapath::aqm::{At, Discipline, Red};
use datapath::bond::lacp::{MOST_USER_KEY, Select};
use datapath::bond::number::Encoding;
use datapath::bond::{self, HashPolicy};
use datapath::encap::vxlan::MOST as MAX_VNI;
use datapath::guard::Allow;
use datapath::program::{Attachment, IngressMode, OrderKind};
use datapath::service::choose::Policy;
use datapath::service::connections::{LEAST_CONNECTIONS, MOST_CONNECTIONS};
use datapath::service::{OnFailure, WhenDown};
use datapath::units::Rate;
use datapath::vcc::{LEAST_FLOWS, MOST_FLOWS, Mode};
use datapath::wire::Mac;
use std::net::{IpAddr, SocketAddr};
use toml::de::DeValue;

/// Longest burst of an uplink, in nanoseconds: as long as a queue's management lets frames wait
/// here.
const MAX_BURST_NS: u64 = 5_000_000;
/// Longest time that a link may delay, in nanoseconds: beyond it a lab measures its own patience.
const MAX_DELAY_NS: u64 = 10_000_000_000;
/// Learned addresses are kept at least a second, in nanoseconds, so that a quiet endpoint is not
/// flooded to all the time.
const MIN_AGE_NS: u64 = 1_000_000_000;
/// Longest time that a learned address is kept, in nanoseconds: the largest that IEEE 802.1Q
/// allows, 1 000 000 s.
const MAX_AGE_NS: u64 = 1_000_000 * 1_000_000_000;
/// Bounds of how often servers report their load, in nanoseconds.
const PERIOD_NS: (u64, u64) = (100_000_000, 3600 * 1_000_000_000);
/// How long a new connection may wait for a backend at most, in nanoseconds.
const MAX_HELD_NS: u64 = 120 * 1_000_000_000;
/// Bounds of a link's queue, in wire bytes: at least one MTU frame.
const LINK_QUEUE_BYTES: (u64, u64) = (1600, 1 << 30);
/// Bounds of the times of a controller, in nanoseconds: from what a worker can keep to what an
/// operator has patience for.
const INTERVAL_NS: (u64, u64) = (1_000_000, 60_000_000_000);

/// Longest beginning of keys in an etcd, in bytes: enough for what names clusters.
const MOST_PREFIX: usize = 128;

pub(super) fn text<'a>(value: &'a DeValue<'_>, such_as: &str) -> Result<&'a str, Wrong> {
    value.as_str().ok_or_else(|| {
        Wrong::new(
            format!("this is {}, not text in quotes", kind(value)),
            format!("write it as text, such as {such_as}"),
        )
    })
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

pub(super) fn integer(value: &DeValue<'_>, least: u32, most: u32) -> Result<u32, Wrong> {
    let range = || format!("write a whole number from {least} to {most}, without quotes");
    let DeValue::Integer(number) = value else {
        return Err(Wrong::new(format!("this is {}, not a whole number", kind(value)), range()));
    };
    match i64::from_str_radix(number.as_str(), number.radix()) {
        Ok(n) if n >= i64::from(least) && n <= i64::from(most) => Ok(n as u32),
        _ => Err(Wrong::new(format!("{number} is out of range"), range())),
    }
}

pub(super) fn choice<T: Copy>(value: &DeValue<'_>, table: &[(&'static str, T)], what: &str) -> Result<T, Wrong> {
    let names: Vec<String> = table.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let word = text(value, &names[0])?;
    table.iter().find(|(name, _)| *name == word).map(|&(_, v)| v).ok_or_else(|| {
        let remedy = match nearest(word, table.iter().map(|(name, _)| *name)) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("it is one of {}", names.join(", ")),
        };
        Wrong::new(format!("unknown {what} \"{word}\""), remedy)
    })
}

/// The same where some words have a meaning that there is no code for yet.
fn choice_beside<T: Copy>(
    value: &DeValue<'_>,
    table: &[(&'static str, T)],
    later: &[&str],
    what: &str,
) -> Result<T, Wrong> {
    let names: Vec<String> = table.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let word = text(value, &names[0])?;
    if later.contains(&word) {
        let remedy = format!("it may be {} so far", names.join(", "));
        return Err(Wrong::new(format!("{what} \"{word}\" is not there yet"), remedy));
    }
    choice(value, table, what)
}

pub(super) fn flag(value: &DeValue<'_>) -> Result<bool, Wrong> {
    value.as_bool().ok_or_else(|| {
        Wrong::new(format!("this is {}, not true or false", kind(value)), "write true or false, without quotes")
    })
}

pub(super) fn name(value: &DeValue<'_>) -> Result<String, Wrong> {
    names::name(text(value, "\"red1\"")?)
}

/// The name of a group of the system, or its number (useradd(8) allows no more in a name).
pub(super) fn group(value: &DeValue<'_>) -> Result<String, Wrong> {
    let word = text(value, "\"operators\"")?;
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if word.is_empty() || word.len() > 32 || word.starts_with('-') || !word.chars().all(good) {
        return Err(Wrong::new(format!("\"{word}\" cannot be a group"), "write the name or number of a group"));
    }
    Ok(word.to_owned())
}

pub(super) fn locator(value: &DeValue<'_>) -> Result<Locator, Wrong> {
    names::locator(text(value, "\"tap://red1\"")?)
}

pub(super) fn mac(value: &DeValue<'_>) -> Result<Mac, Wrong> {
    names::mac(text(value, "\"02:00:00:00:00:01\"")?)
}

pub(super) fn order(value: &DeValue<'_>) -> Result<OrderKind, Wrong> {
    choice(value, &ORDERS, "order")
}

pub(super) fn ingress(value: &DeValue<'_>) -> Result<IngressMode, Wrong> {
    choice(value, &INGRESS_MODES, "ingress mode")
}

pub(super) fn vcc(value: &DeValue<'_>) -> Result<Mode, Wrong> {
    choice(value, &Mode::ALL.map(|mode| (mode.name(), mode)), "mode of virtual congestion control")
}

pub(super) fn mptcp(value: &DeValue<'_>) -> Result<bool, Wrong> {
    choice(value, &names::MPTCP, "treatment of Multipath TCP")
}

pub(super) fn vcc_loss(value: &DeValue<'_>) -> Result<bool, Wrong> {
    choice(value, &names::LOSS, "answer to losses")
}

pub(super) fn classic(value: &DeValue<'_>) -> Result<bool, Wrong> {
    choice(value, &names::CLASSIC, "treatment of guests that know RFC 3168 only")
}

pub(super) fn rate(value: &DeValue<'_>) -> Result<Rate, Wrong> {
    units::rate(text(value, "\"300 Mbit/s\"")?)
}

pub(super) fn headroom(value: &DeValue<'_>) -> Result<u32, Wrong> {
    units::percent_ppm(text(value, "\"2 %\"")?, MAX_HEADROOM_PERCENT)
}

pub(super) fn burst(value: &DeValue<'_>) -> Result<u64, Wrong> {
    units::time_ns(text(value, "\"100 us\"")?, 0, MAX_BURST_NS)
}

pub(super) fn loss(value: &DeValue<'_>) -> Result<u32, Wrong> {
    units::percent_ppm(text(value, "\"0.1 %\"")?, 100)
}

pub(super) fn queue(value: &DeValue<'_>) -> Result<u64, Wrong> {
    units::size(text(value, "\"1 MiB\"")?, MIN_QUEUE_BYTES, MAX_QUEUE_BYTES)
}

pub(super) fn memory(value: &DeValue<'_>) -> Result<u64, Wrong> {
    units::size(text(value, "\"48 MiB\"")?, MIN_MEMORY_BYTES, MAX_MEMORY_BYTES)
}

pub(super) fn link_queue(value: &DeValue<'_>) -> Result<u32, Wrong> {
    units::size(text(value, "\"256 KiB\"")?, LINK_QUEUE_BYTES.0, LINK_QUEUE_BYTES.1).map(|bytes| bytes as u32)
}

pub(super) fn delay(value: &DeValue<'_>) -> Result<u64, Wrong> {
    units::time_ns(text(value, "\"50 us\"")?, 0, MAX_DELAY_NS)
}

pub(super) fn age(value: &DeValue<'_>) -> Result<u64, Wrong> {
    units::time_ns(text(value, "\"300 s\"")?, MIN_AGE_NS, MAX_AGE_NS)
}

pub(super) fn weight(value: &DeValue<'_>) -> Result<u32, Wrong> {
    integer(value, 1, MAX_WEIGHT)
}

pub(super) fn mtu(value: &DeValue<'_>) -> Result<u32, Wrong> {
    integer(value, MIN_MTU, MAX_MTU)
}

pub(super) fn count(value: &DeValue<'_>) -> Result<u32, Wrong> {
    integer(value, 0, 1_000_000)
}

/// Pairs of rings of a virtual machine.
pub(super) fn queues(value: &DeValue<'_>) -> Result<u32, Wrong> {
    integer(value, 1, MAX_QUEUES)
}

/// Frames in a device's ring: its `txqueuelen`.
pub(super) fn ring(value: &DeValue<'_>) -> Result<u32, Wrong> {
    integer(value, 1, 1_000_000)
}

/// The kind of a queue's discipline, its parameters being yet to be read.
pub(super) fn discipline(value: &DeValue<'_>) -> Result<Discipline, Wrong> {
    choice(value, &names::DISCIPLINES, "discipline")
}

/// Parameters of RED that have a name.
pub(super) fn preset(value: &DeValue<'_>) -> Result<Red, Wrong> {
    choice(value, &names::RED_PRESETS, "preset")
}

/// Where a threshold is compared with the queue.
pub(super) fn at(value: &DeValue<'_>) -> Result<At, Wrong> {
    choice(value, &names::AT, "place")
}

/// A threshold of a queue, in wire bytes.
pub(super) fn threshold(value: &DeValue<'_>) -> Result<u32, Wrong> {
    units::size(text(value, "\"30 KiB\"")?, 1, LINK_QUEUE_BYTES.1).map(|bytes| bytes as u32)
}

/// The longest wait that is not marked.
pub(super) fn target(value: &DeValue<'_>) -> Result<u64, Wrong> {
    units::time_ns(text(value, "\"200 us\"")?, 1_000, MAX_DELAY_NS)
}

/// A probability, in millionths.
pub(super) fn probability(value: &DeValue<'_>) -> Result<u32, Wrong> {
    units::percent_ppm(text(value, "\"2 %\"")?, 100)
}

/// Weight of a segment in an average, as its negative logarithm.
pub(super) fn average_weight(value: &DeValue<'_>) -> Result<u8, Wrong> {
    let word = text(value, "\"1/512\"")?;
    let whole = word.strip_prefix("1/").and_then(|whole| whole.parse::<u32>().ok());
    let log = whole.filter(|whole| whole.is_power_of_two()).map(|whole| whole.ilog2() as u8);
    log.filter(|&log| log <= Red::MAX_WEIGHT_LOG).ok_or_else(|| {
        Wrong::new(format!("\"{word}\" is no weight"), "write \"1/\" and a power of two up to 1048576: \"1/512\"")
    })
}

/// Permission bits of a socket, in octal digits. Text, because TOML would take 0660 without quotes
/// for a mistake and 660 for a decimal number.
pub(super) fn mode(value: &DeValue<'_>) -> Result<u32, Wrong> {
    let word = text(value, "\"0660\"")?;
    let octal = (3..=4).contains(&word.len()) && word.bytes().all(|b| (b'0'..=b'7').contains(&b));
    let bits = u32::from_str_radix(word, 8).ok().filter(|bits| octal && bits & !0o666 == 0 && bits & 0o600 == 0o600);
    bits.ok_or_else(|| {
        Wrong::new(
            format!("\"{word}\" are no permissions of a socket"),
            "write \"0600\" for its owner, \"0660\" for its group as well, \"0666\" for everybody",
        )
    })
}

/// A VLAN id, or the untagged network.
pub(super) fn vlan(value: &DeValue<'_>) -> Result<Attachment, Wrong> {
    const RANGE: &str = "write a VLAN id from 1 to 4094 without quotes, or \"untagged\"";
    match value {
        DeValue::String(word) if word == "untagged" => Ok(Attachment::Untagged),
        DeValue::Integer(_) => integer(value, 1, 4094)
            .map(|id| Attachment::Vlan(id as u16))
            .map_err(|wrong| Wrong::new(wrong.message, RANGE)),
        _ => Err(Wrong::new(format!("this is {}, not a VLAN", kind(value)), RANGE)),
    }
}

/// Where a service is reached.
pub(super) fn service_address(value: &DeValue<'_>) -> Result<ServiceAddress, Wrong> {
    names::service_address(text(value, "\"10.0.0.100:80\"")?)
}

pub(super) fn policy(value: &DeValue<'_>) -> Result<Policy, Wrong> {
    choice_beside(value, &names::POLICIES, &["hot-cold", "pack"], "policy")
}

pub(super) fn on_failure(value: &DeValue<'_>) -> Result<OnFailure, Wrong> {
    choice(value, &names::ON_FAILURE, "answer")
}

/// What a client gets when no backend is up.
pub(super) fn when_down(value: &DeValue<'_>) -> Result<WhenDown, Wrong> {
    choice(value, &names::WHEN_DOWN, "answer")
}

/// How often servers report.
pub(super) fn period(value: &DeValue<'_>) -> Result<u64, Wrong> {
    units::time_ns(text(value, "\"5 s\"")?, PERIOD_NS.0, PERIOD_NS.1)
}

/// How long backends start slowly, or keep what they have.
pub(super) fn span(value: &DeValue<'_>) -> Result<u64, Wrong> {
    units::time_ns(text(value, "\"10 s\"")?, 0, PERIOD_NS.1)
}

/// How long a new connection may wait for a backend.
pub(super) fn held(value: &DeValue<'_>) -> Result<u64, Wrong> {
    units::time_ns(text(value, "\"3 s\"")?, 0, MAX_HELD_NS)
}

/// Whether a client stays at its backend.
pub(super) fn affinity(value: &DeValue<'_>) -> Result<bool, Wrong> {
    choice(value, &names::AFFINITIES, "affinity")
}

/// Connections that a backend may have.
pub(super) fn max_connections(value: &DeValue<'_>) -> Result<u32, Wrong> {
    integer(value, 1, MOST_CONNECTIONS)
}

pub(super) fn port(value: &DeValue<'_>) -> Result<u16, Wrong> {
    integer(value, 1, 65_535).map(|port| port as u16)
}

/// The weight of a backend.
pub(super) fn backend_weight(value: &DeValue<'_>) -> Result<u32, Wrong> {
    integer(value, 0, MAX_BACKEND_WEIGHT)
}

pub(super) fn cores(value: &DeValue<'_>) -> Result<u32, Wrong> {
    integer(value, 1, 65_535)
}

/// Connections that a switch keeps.
pub(super) fn connections(value: &DeValue<'_>) -> Result<u32, Wrong> {
    integer(value, LEAST_CONNECTIONS, MOST_CONNECTIONS)
}

/// Connections of virtual congestion control that a switch keeps.
pub(super) fn flows(value: &DeValue<'_>) -> Result<u32, Wrong> {
    integer(value, LEAST_FLOWS, MOST_FLOWS)
}

/// The address of one backend.
pub(super) fn backend_ip(value: &DeValue<'_>) -> Result<IpAddr, Wrong> {
    unicast_ip(value, "backend")
}

/// The address of a service, without a port.
pub(super) fn service_ip(value: &DeValue<'_>) -> Result<IpAddr, Wrong> {
    unicast_ip(value, "service")
}

/// An IP address of an endpoint on another host.
pub(super) fn endpoint_ip(value: &DeValue<'_>) -> Result<IpAddr, Wrong> {
    unicast_ip(value, "endpoint")
}

fn unicast_ip(value: &DeValue<'_>, whose: &str) -> Result<IpAddr, Wrong> {
    const SUCH_AS: &str = "write such as \"10.0.0.2\" or \"2001:db8::2\"";
    let word = text(value, "\"10.0.0.2\"")?;
    let ip: IpAddr = word.parse().map_err(|_| Wrong::new(format!("\"{word}\" is not an IP address"), SUCH_AS))?;
    if names::can_be_vtep(ip) { Ok(ip) } else { Err(Wrong::new(format!("{word} is no {whose}'s address"), SUCH_AS)) }
}

/// A VXLAN network identifier.
pub(super) fn vni(value: &DeValue<'_>) -> Result<Attachment, Wrong> {
    integer(value, 1, MAX_VNI).map(Attachment::Vxlan)
}

/// An end of tunnels: the address of one host.
pub(super) fn vtep(value: &DeValue<'_>) -> Result<IpAddr, Wrong> {
    const SUCH_AS: &str =
        "write the host's address on the network between hosts, such as \"192.0.2.1\" or \"2001:db8::1\"";
    let word = text(value, "\"192.0.2.1\"")?;
    let wrong = |why: &str| Wrong::new(format!("\"{word}\" {why}"), SUCH_AS);
    let address: IpAddr = word.parse().map_err(|_| wrong("is not an IP address"))?;
    if names::can_be_vtep(address) { Ok(address) } else { Err(wrong("is no address that a host has among others")) }
}

/// One thing that an endpoint may announce.
pub(super) fn allow(value: &DeValue<'_>) -> Result<Allow, Wrong> {
    choice(value, &names::PERMISSIONS, "permission")
}

/// An address of one station: of Ethernet, or of IP.
pub(super) fn mac_or_ip(value: &DeValue<'_>) -> Result<Result<Mac, IpAddr>, Wrong> {
    const SUCH_AS: &str = "\"10.0.0.254\", \"fe80::1\" or \"02:00:00:00:00:fe\"";
    let word = text(value, SUCH_AS)?;
    if let Ok(ip) = word.parse::<IpAddr>() {
        let is_one = !ip.is_unspecified() && !ip.is_multicast();
        return if is_one {
            Ok(Err(ip))
        } else {
            Err(Wrong::new(format!("{word} is no station's address"), format!("write such as {SUCH_AS}")))
        };
    }
    names::mac(word).map(Ok).map_err(|wrong| match word.contains('/') {
        true => Wrong::new(format!("\"{word}\" is not one address"), format!("write such as {SUCH_AS}")),
        false => wrong,
    })
}

/// A namespace: a name below /run/netns, or an absolute path. One that has a name is known by that,
/// so that two ports in it are seen to be.
pub(super) fn netns(value: &DeValue<'_>) -> Result<String, Wrong> {
    let such_as = "\"lab-red1\" or \"/proc/1234/ns/net\"";
    let word = text(value, such_as)?;
    let good = |c: char| c.is_ascii_graphic();
    let path = word.starts_with('/') && word.len() > 1;
    let is_name = |word: &str| !word.is_empty() && !word.contains('/') && word != "." && word != "..";
    if (path || is_name(word)) && word.chars().all(good) {
        let name = word.strip_prefix("/run/netns/").filter(|name| is_name(name));
        return Ok(name.unwrap_or(word).to_owned());
    }
    Err(Wrong::new(
        format!("\"{word}\" is neither the name of a network namespace nor an absolute path"),
        format!("write {such_as}"),
    ))
}

/// An IP address with or without prefix length, whose host bits are zero: what an endpoint may use.
pub(super) fn prefix(value: &DeValue<'_>) -> Result<(IpAddr, u8), Wrong> {
    let word = text(value, "\"10.0.0.1\" or \"10.0.0.0/24\"")?;
    let (ip, length) = ip_and_length(word, None)?;
    let network = mask(ip, length);
    if network != ip {
        return Err(Wrong::new(
            format!("{word} has bits set behind its prefix"),
            format!("write {network}/{length} for the network, or {ip} for the one address"),
        ));
    }
    Ok((ip, length))
}

/// An IP address with its prefix length: what a device is given.
pub(super) fn address(value: &DeValue<'_>) -> Result<(IpAddr, u8), Wrong> {
    let word = text(value, "\"10.0.0.1/24\"")?;
    ip_and_length(word, Some("a device's address needs the length of its network's prefix"))
}

fn ip_and_length(word: &str, need_length: Option<&str>) -> Result<(IpAddr, u8), Wrong> {
    let such_as = "write such as \"10.0.0.1\", \"10.0.0.0/24\", \"fd00::1\" or \"fd00::/64\"";
    let (ip, length) = match word.split_once('/') {
        Some((ip, length)) => (ip, Some(length)),
        None => (word, None),
    };
    let ip: IpAddr = ip.parse().map_err(|_| Wrong::new(format!("\"{word}\" is not an IP address"), such_as))?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let Some(length) = length else {
        return match need_length {
            Some(why) => {
                let usual = if ip.is_ipv4() { 24 } else { 64 };
                Err(Wrong::new(format!("{word} has no prefix length: {why}"), format!("write \"{word}/{usual}\"")))
            }
            None => Ok((ip, most)),
        };
    };
    match length.parse::<u8>() {
        Ok(n) if n <= most && length.bytes().all(|b| b.is_ascii_digit()) => Ok((ip, n)),
        _ => Err(Wrong::new(
            format!("\"/{length}\" is not a prefix length"),
            format!("for {} it is 0 to {most}", if ip.is_ipv4() { "IPv4" } else { "IPv6" }),
        )),
    }
}

/// The address with all bits behind the prefix zero.
pub(crate) fn mask(ip: IpAddr, length: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let keep = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            IpAddr::V4((ip.to_bits() & keep).into())
        }
        IpAddr::V6(ip) => {
            let keep = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            IpAddr::V6((ip.to_bits() & keep).into())
        }
    }
}

/// The name of a host, as certificates have it.
pub(super) fn host(value: &DeValue<'_>) -> Result<String, Wrong> {
    names::host(text(value, "\"host1\"")?)
}

pub(super) fn controller(value: &DeValue<'_>) -> Result<ControllerKind, Wrong> {
    choice(value, &CONTROLLERS, "controller")
}

/// A time of a controller.
pub(super) fn interval(value: &DeValue<'_>) -> Result<u64, Wrong> {
    units::time_ns(text(value, "\"10 ms\"")?, INTERVAL_NS.0, INTERVAL_NS.1)
}

/// How many samples a mean is taken over.
pub(super) fn samples(value: &DeValue<'_>) -> Result<u32, Wrong> {
    integer(value, 1, MOST_SAMPLES)
}

/// A part of something.
pub(super) fn part(value: &DeValue<'_>) -> Result<u32, Wrong> {
    units::percent_ppm(text(value, "\"50 %\"")?, 100)
}

/// The part of a service's weight that is to be well.
pub(super) fn panic_part(value: &DeValue<'_>) -> Result<u32, Wrong> {
    units::percent_ppm(text(value, "\"50 %\"")?, 100)
}

/// A directory, absolute.
pub(super) fn directory(value: &DeValue<'_>) -> Result<String, Wrong> {
    path(value, "\"/etc/levada/cluster\"")
}

/// A file, absolute.
pub(super) fn file(value: &DeValue<'_>) -> Result<String, Wrong> {
    path(value, "\"/etc/levada/etcd.pem\"")
}

fn path(value: &DeValue<'_>, such_as: &str) -> Result<String, Wrong> {
    let word = text(value, such_as)?;
    if word.starts_with('/') && word.len() > 1 && !word.contains(char::is_control) {
        return Ok(word.to_owned());
    }
    Err(Wrong::new(format!("\"{word}\" is not an absolute path"), format!("write such as {such_as}")))
}

/// The file with the key of a backend's load reports.
pub(super) fn report_key(value: &DeValue<'_>) -> Result<String, Wrong> {
    path(value, "\"/etc/levada/web1.key\"")
}

/// Where load reports arrive.
pub(super) fn reports(value: &DeValue<'_>) -> Result<SocketAddr, Wrong> {
    own_address(text(value, "\"192.0.2.1:7371\"")?)
}

/// Where this host listens: at a port that takes no capability, since no thread has one for that.
fn own_address(word: &str) -> Result<SocketAddr, Wrong> {
    let address = socket_address(word)?;
    if address.port() < 1024 {
        let remedy = "write a port from 1024 on: the thread that listens may not use others";
        return Err(Wrong::new(format!("port {} is a privileged one", address.port()), remedy));
    }
    Ok(address)
}

/// Where a member of an etcd is.
pub(super) fn etcd_url(value: &DeValue<'_>) -> Result<EtcdUrl, Wrong> {
    names::etcd_url(text(value, "\"http://127.0.0.1:2379\"")?)
}

/// What the cluster's keys in an etcd begin with.
pub(super) fn prefix_of_keys(value: &DeValue<'_>) -> Result<String, Wrong> {
    let word = text(value, "\"/levada\"")?;
    let good = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if word.len() <= MOST_PREFIX && word.strip_prefix('/').is_some_and(|rest| rest.split('/').all(good)) {
        return Ok(word.to_owned());
    }
    Err(Wrong::new(
        format!("\"{word}\" cannot begin the cluster's keys"),
        format!(
            "write such as \"/levada\" or \"/levada/prague\": letters, digits, '-', '_' and '.' between slashes, at most {MOST_PREFIX}"
        ),
    ))
}

/// A user of an etcd.
pub(super) fn user(value: &DeValue<'_>) -> Result<String, Wrong> {
    let word = text(value, "\"levada\"")?;
    if word.is_empty() || word.contains(char::is_control) {
        return Err(Wrong::new("this is no user's name", "write such as \"levada\""));
    }
    Ok(word.to_owned())
}

/// Where this host listens: an address of its own, or of any of its interfaces.
pub(super) fn listen(value: &DeValue<'_>) -> Result<SocketAddr, Wrong> {
    own_address(text(value, "\"192.0.2.1:7370\"")?)
}

/// Where another host is reached.
pub(super) fn peer_address(value: &DeValue<'_>) -> Result<SocketAddr, Wrong> {
    let address = socket_address(text(value, "\"192.0.2.2:7370\"")?)?;
    if address.ip().is_unspecified() {
        return Err(Wrong::new(format!("{} is the address of no host", address.ip()), "write the host's own address"));
    }
    Ok(address)
}

fn socket_address(word: &str) -> Result<SocketAddr, Wrong> {
    let such_as = "write address and UDP port, such as \"192.0.2.1:7370\" or \"[2001:db8::1]:7370\"";
    let address: SocketAddr =
        word.parse().map_err(|_| Wrong::new(format!("\"{word}\" is not an address with a port"), such_as))?;
    if address.port() == 0 {
        return Err(Wrong::new(format!("\"{word}\" has no port"), such_as));
    }
    if address.ip().is_multicast() {
        return Err(Wrong::new(format!("{} is a group address", address.ip()), such_as));
    }
    Ok(address)
}

/// A mode of a bond.
pub(super) fn bond_mode(value: &DeValue<'_>) -> Result<bond::Mode, Wrong> {
    choice_beside(value, &bond::Mode::ALL, &["balance-tlb", "balance-alb"], "mode of a bond")
}

/// What a bond's hash is made of.
pub(super) fn hash_policy(value: &DeValue<'_>) -> Result<HashPolicy, Wrong> {
    choice(value, &HashPolicy::ALL, "hash policy")
}

/// When another member becomes the active one.
pub(super) fn reselect(value: &DeValue<'_>) -> Result<Reselect, Wrong> {
    choice(value, &RESELECTS, "way to reselect")
}

/// Frames that a member sends in turn.
pub(super) fn packets(value: &DeValue<'_>) -> Result<u16, Wrong> {
    integer(value, 0, u16::MAX.into()).map(|packets| packets as u16)
}

/// Notices after a failover.
pub(super) fn notices(value: &DeValue<'_>) -> Result<u32, Wrong> {
    integer(value, 0, MOST_NOTICES)
}

/// A switch of Linux's: 0 or 1.
pub(super) fn zero_or_one(value: &DeValue<'_>) -> Result<bool, Wrong> {
    integer(value, 0, 1).map(|number| number == 1)
}

/// A time of a bond: with its unit, or as in Linux a number of milliseconds. Links that are asked
/// more often than that would have a thread for themselves.
pub(super) fn bond_time(value: &DeValue<'_>) -> Result<u64, Wrong> {
    const NS_PER_MS: u64 = 1_000_000;
    match value {
        DeValue::Integer(_) => {
            integer(value, 0, (MAX_BOND_TIME_NS / NS_PER_MS) as u32).map(|ms| u64::from(ms) * NS_PER_MS)
        }
        _ => {
            let word = text(value, "\"100 ms\"")?;
            let ns = units::time_ns(word, 0, MAX_BOND_TIME_NS)?;
            if ns > 0 && ns < NS_PER_MS {
                let range = format!("it may be 0 s, or 1 ms to {}", units::show_time(MAX_BOND_TIME_NS));
                return Err(Wrong::new(format!("\"{word}\" is out of range"), range));
            }
            Ok(ns)
        }
    }
}

/// Whose address a bond has. Linux's `active` and `follow` are for interfaces that cannot have the
/// bond's: here none is given another's, as frames have their senders' own.
pub(super) fn fail_over_mac(value: &DeValue<'_>) -> Result<(), Wrong> {
    match text(value, "\"none\"")? {
        "none" => Ok(()),
        word @ ("active" | "follow") => Err(Wrong::new(
            format!("\"{word}\" is for bonds that have an address: frames of this one have their endpoints' own"),
            "remove it: a failover changes nobody's address",
        )),
        word => Err(Wrong::new(format!("unknown fail_over_mac \"{word}\""), "write \"none\", or remove it")),
    }
}

/// Whether frames are put in order: where the other end can, at cables or over bridges, or never.
pub(super) fn bond_order(value: &DeValue<'_>) -> Result<(bool, Encoding), Wrong> {
    choice_beside(value, &BOND_ORDERS, &["flows"], "order of a bond")
}

/// How long a frame may wait for an earlier one.
pub(super) fn hold(value: &DeValue<'_>) -> Result<u64, Wrong> {
    units::time_ns(text(value, "\"15 ms\"")?, MIN_HOLD_NS, MAX_HOLD_NS)
}

/// How often a partner of LACP is to say something.
pub(super) fn lacp_rate(value: &DeValue<'_>) -> Result<bool, Wrong> {
    choice(value, &[("slow", false), ("fast", true)], "rate of LACP")
}

/// Whether the operator has taken something down.
pub(super) fn admin(value: &DeValue<'_>) -> Result<bool, Wrong> {
    choice(value, &[("up", false), ("down", true)], "state")
}

/// A switch of Linux's with words.
pub(super) fn on_or_off(value: &DeValue<'_>) -> Result<bool, Wrong> {
    choice(value, &[("on", true), ("off", false)], "choice")
}

/// Members that must carry frames before any does.
pub(super) fn min_links(value: &DeValue<'_>) -> Result<u8, Wrong> {
    integer(value, 0, bond::MOST_MEMBERS as u32).map(|links| links as u8)
}

/// How the used aggregator is chosen.
pub(super) fn ad_select(value: &DeValue<'_>) -> Result<Select, Wrong> {
    choice(value, &Select::ALL, "way to select an aggregator")
}

/// A priority in LACP.
pub(super) fn lacp_priority(value: &DeValue<'_>) -> Result<u16, Wrong> {
    integer(value, 1, u16::MAX.into()).map(|priority| priority as u16)
}

/// The operator's part of the key of LACP.
pub(super) fn user_key(value: &DeValue<'_>) -> Result<u16, Wrong> {
    integer(value, 0, MOST_USER_KEY.into()).map(|key| key as u16)
}

/// The name of a bond's member: of its device.
pub(super) fn member_name(value: &DeValue<'_>) -> Result<String, Wrong> {
    text(value, "\"eth0\"").map(str::to_owned)
}

/// The priority of a bond's member.
pub(super) fn priority(value: &DeValue<'_>) -> Result<i32, Wrong> {
    let range = "write a whole number, such as 0 or -10, without quotes";
    let DeValue::Integer(number) = value else {
        return Err(Wrong::new(format!("this is {}, not a whole number", kind(value)), range));
    };
    i32::from_str_radix(number.as_str(), number.radix())
        .map_err(|_| Wrong::new(format!("{number} is out of range"), range))
}

/// What is said of a key without effect; a page of the how-tos says what there is instead.
pub(super) fn not_yet(page: &str) -> Wrong {
    Wrong::new("this key has no effect yet", format!("remove it: what Levada does without it is in docs/howto/{page}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_keep_the_prefix() {
        let mask = |ip: &str, n| mask(ip.parse().unwrap(), n).to_string();
        assert_eq!(mask("10.1.2.3", 24), "10.1.2.0");
        assert_eq!(mask("10.1.2.3", 0), "0.0.0.0");
        assert_eq!(mask("10.1.2.3", 32), "10.1.2.3");
        assert_eq!(mask("fd00::1", 64), "fd00::");
        assert_eq!(mask("fd00::1", 0), "::");
    }
}
