//! Names: how values that are not numbers are written in configurations and shown to people. Each
//! is written here once.

use crate::units::Wrong;
use agent::settings::ControllerKind;
use datapath::aqm::{At, Discipline, Red, Step};
use datapath::guard::Allow;
use datapath::link::Side;
use datapath::program::{IngressMode, OrderKind};
use datapath::service::Address;
use datapath::service::choose::Policy;
use datapath::service::{OnFailure, WhenDown};
use datapath::units::Direction;
use datapath::wire::{Mac, protocol};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Where a member of an etcd is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EtcdUrl {
    /// Whether it speaks TLS.
    pub tls: bool,
    /// A name, or an address (of IPv6 without brackets).
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}://{open}{}{close}:{}", self.host, self.port)
    }
}

/// Where a service is reached, as configurations write it: `10.0.0.100:80`,
/// `udp://[2001:db8::1]:53`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ServiceAddress(pub Address);

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { ip, protocol, port } = self.0;
        let udp = if protocol == protocol::UDP { "udp://" } else { "" };
        write!(f, "{udp}{}", SocketAddr::new(ip, port))
    }
}

/// Longest name of a network device: IFNAMSIZ less its final zero (linux/if.h).
pub const MAX_TAP_NAME: usize = 15;
/// Longest name of an instance, switch, tenant, endpoint or link, in characters: what an agent's
/// message has room for. Instances name directories and Unix sockets, whose path is at most 107
/// bytes (unix(7)).
pub const MAX_NAME: usize = agent::message::MAX_NAME;

/// Longest directory of `vde://`, in bytes. A Unix socket's path has at most 107 (unix(7)), and
/// clients bind theirs in the directory, under names such as `/.4194304-00000` (libvdeplug; a
/// process id has up to seven digits).
pub const MAX_VDE_DIRECTORY: usize = 107 - 15;
/// Largest plug number of a VDE directory: vde_switch's own sockets are named with three digits,
/// and few have more.
pub const MAX_VDE_PLUG: u32 = 9999;
/// The longest path of a Unix socket, in bytes (unix(7)).
pub const MAX_SOCKET: usize = 107;
/// Pairs of rings that a machine's port may have: `queues`.
pub const MAX_QUEUES: u32 = 8;

/// How `mptcp` is written: whether connections of Multipath TCP become plain ones.
pub const MPTCP: [(&str, bool); 2] = [("untouched", false), ("strip", true)];

/// How `loss` of those with `vcc` is written: whether losses are the guest's matter.
pub const LOSS: [(&str, bool); 2] = [("halve", false), ("ignore", true)];

/// How `classic` is written: whether guests that know RFC 3168 only speak for themselves.
pub const CLASSIC: [(&str, bool); 2] = [("translate", false), ("pass", true)];

/// How `order` is written.
pub const ORDERS: [(&str, OrderKind); 4] = [
    ("fair", OrderKind::Fair),
    ("wf2q", OrderKind::Wf2q),
    ("vtrr", OrderKind::Vtrr),
    ("vtrr-bytes", OrderKind::VtrrBytes),
];

/// How `ingress` is written.
pub const INGRESS_MODES: [(&str, IngressMode); 3] = [
    ("queue", IngressMode::Queue),
    ("police", IngressMode::Police),
    ("police-published", IngressMode::PolicePublished),
];

/// How `controller` is written.
pub const CONTROLLERS: [(&str, ControllerKind); 2] =
    [("rate", ControllerKind::Rate), ("gatekeeper", ControllerKind::Gatekeeper)];

/// How the policy of a service is written.
pub const POLICIES: [(&str, Policy); 7] = [
    ("p2c", Policy::P2c),
    ("least-inflight", Policy::LeastInflight),
    ("maglev", Policy::Maglev),
    ("round-robin", Policy::RoundRobin),
    ("random", Policy::Random),
    ("loadavg", Policy::Loadavg),
    ("loadavg-corrected", Policy::LoadavgCorrected),
];

/// How `on_failure` is written.
pub const ON_FAILURE: [(&str, OnFailure); 2] = [("keep", OnFailure::Keep), ("reset", OnFailure::Reset)];
/// How `when_down` is written.
pub const WHEN_DOWN: [(&str, WhenDown); 2] = [("reset", WhenDown::Reset), ("drop", WhenDown::Drop)];

/// How `affinity` is written: whether a client stays at its backend.
pub const AFFINITIES: [(&str, bool); 2] = [("connection", false), ("client", true)];

/// How a queue's `kind` is written; parameters are read apart.
pub const DISCIPLINES: [(&str, Discipline); 6] = [
    ("droptail", Discipline::DropTail),
    ("codel", Discipline::Codel),
    ("red", Discipline::Red(Red::VCC_RED1)),
    ("step", Discipline::Step(Step { mark_bytes: 0, at: At::Arrival })),
    ("sojourn", Discipline::Sojourn { target_ns: 0 }),
    ("auto", Discipline::Auto),
];

/// How `preset` of RED is written.
pub const RED_PRESETS: [(&str, Red); 3] =
    [("vcc-red1", Red::VCC_RED1), ("vcc-red2", Red::VCC_RED2), ("vcc-red3", Red::VCC_RED3)];

/// How `at` of a threshold is written.
pub const AT: [(&str, At); 2] = [("arrival", At::Arrival), ("departure", At::Departure)];

const NOTHING: Allow = Allow { dhcp_server: false, router: false, control_protocols: false, learned_addresses: false };

/// How `allow` is written.
pub const PERMISSIONS: [(&str, Allow); 4] = [
    ("dhcp-server", Allow { dhcp_server: true, ..NOTHING }),
    ("router", Allow { router: true, ..NOTHING }),
    ("control-protocols", Allow { control_protocols: true, ..NOTHING }),
    ("learned-addresses", Allow { learned_addresses: true, ..NOTHING }),
];

/// The name of a value in one of the tables above.
#[must_use]
pub fn name_of<T: Copy + PartialEq>(table: &[(&'static str, T)], value: T) -> &'static str {
    table.iter().find(|(_, v)| *v == value).map_or("?", |(name, _)| name)
}

/// `egress` or `ingress`.
#[must_use]
pub fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Egress => "egress",
        Direction::Ingress => "ingress",
    }
}

/// Where a port is: what configurations write in `port`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Locator {
    /// `tap://NAME`: a tap device.
    Tap(String),
    /// `packet://NAME`: an interface that exists.
    Packet(String),
    /// `veth://NAME`: the container's end of a veth pair.
    Veth(String),
    /// `host://NAME`: the host's own traffic over an interface that a `packet://` port of the
    /// switch takes.
    Host(String),
    /// `link://NAME/a` or `link://NAME/b`: one end of a link of this daemon.
    Link(String, Side),
    /// `vde://DIR[N]`: a plug of a VDE control directory, as libvdeplug writes it. `vde://DIR` is
    /// plug 1.
    Vde(String, u32),
    /// `vhost-user://SOCKET`: the socket of a virtual machine's network card.
    VhostUser(String),
    /// `director://`: nothing. What services send from outside back out passes its endpoint.
    Director,
}

/// How configurations call an end of a link.
#[must_use]
pub fn side(side: Side) -> &'static str {
    match side {
        Side::A => "a",
        Side::B => "b",
    }
}

impl Locator {
    /// What is behind the port, in short: the name of the device or link; of a VDE plug, all of it.
    #[must_use]
    pub fn device_name(&self) -> String {
        match self {
            Locator::Tap(name) | Locator::Packet(name) | Locator::Veth(name) => name.clone(),
            Locator::Host(name) | Locator::Link(name, _) => name.clone(),
            Locator::Vde(..) | Locator::VhostUser(_) | Locator::Director => self.to_string(),
        }
    }
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Locator::Tap(name) => write!(f, "tap://{name}"),
            Locator::Packet(name) => write!(f, "packet://{name}"),
            Locator::Veth(name) => write!(f, "veth://{name}"),
            Locator::Host(name) => write!(f, "host://{name}"),
            Locator::Link(name, end) => write!(f, "link://{name}/{}", side(*end)),
            Locator::Vde(directory, FIRST_VDE_PLUG) => write!(f, "vde://{directory}"),
            Locator::Vde(directory, plug) => write!(f, "vde://{directory}[{plug}]"),
            Locator::VhostUser(socket) => write!(f, "vhost-user://{socket}"),
            Locator::Director => f.write_str("director://"),
        }
    }
}

/// Reads a locator.
pub fn locator(text: &str) -> Result<Locator, Wrong> {
    const KINDS: &str = "a port is \"tap://NAME\", \"veth://NAME\", \"packet://NAME\", \"host://NAME\", \"link://NAME/a\" (or /b), \"vde:///DIR\", \"vhost-user:///SOCKET\" or \"director://\"";
    let Some((kind, rest)) = text.split_once("://") else {
        return Err(Wrong::new(format!("\"{text}\" is not a port"), KINDS));
    };
    match kind {
        "tap" => device_name(rest).map(Locator::Tap),
        "veth" => device_name(rest).map(Locator::Veth),
        "packet" => device_name(rest).map(Locator::Packet),
        "host" => device_name(rest).map(Locator::Host),
        "link" => match rest.rsplit_once('/') {
            Some((link, "a")) => name(link).map(|n| Locator::Link(n, Side::A)),
            Some((link, "b")) => name(link).map(|n| Locator::Link(n, Side::B)),
            _ => Err(Wrong::new(
                format!("\"{text}\" does not say which end of the link"),
                format!("write \"link://{0}/a\" or \"link://{0}/b\"", rest.split('/').next().unwrap_or("NAME")),
            )),
        },
        "vde" => vde_plug(rest),
        "vhost-user" => vhost_socket(rest),
        "director" if rest.is_empty() => Ok(Locator::Director),
        "director" => Err(Wrong::new(
            format!("\"{text}\" names something, and nothing is at a director's port"),
            "write port = \"director://\"",
        )),
        _ => Err(Wrong::new(format!("unknown kind of port \"{kind}\""), KINDS)),
    }
}

/// The plug that has no number in its locator.
const FIRST_VDE_PLUG: u32 = 1;

/// `DIR` or `DIR[N]`. The directory is absolute and plain, so that a path has one way to be
/// written; clients send it back.
fn vde_plug(text: &str) -> Result<Locator, Wrong> {
    let (directory, plug) = match text.strip_suffix(']').and_then(|t| t.rsplit_once('[')) {
        Some((directory, number)) => (directory, vde_number(number)?),
        None => (text, FIRST_VDE_PLUG),
    };
    if !is_plain_path(directory) {
        return Err(Wrong::new(
            format!("\"{directory}\" cannot be a VDE directory"),
            "write an absolute path without \"..\", space or bracket, such as \"vde:///run/vde/red\" or \"vde:///run/vde/red[2]\"",
        ));
    }
    if directory.len() > MAX_VDE_DIRECTORY {
        return Err(Wrong::new(
            format!("the VDE directory \"{directory}\" has {} characters", directory.len()),
            format!("at most {MAX_VDE_DIRECTORY}: the sockets in it have longer paths, and Linux takes 107 for these"),
        ));
    }
    Ok(Locator::Vde(directory.to_owned(), plug))
}

/// The socket, absolute and plain as a directory of VDE.
fn vhost_socket(text: &str) -> Result<Locator, Wrong> {
    if !is_plain_path(text) {
        return Err(Wrong::new(
            format!("\"{text}\" cannot be the socket of a virtual machine"),
            "write an absolute path without \"..\", space or bracket, such as \"vhost-user:///run/vm/vm1.sock\"",
        ));
    }
    if text.len() > MAX_SOCKET {
        return Err(Wrong::new(
            format!("the socket \"{text}\" has {} characters", text.len()),
            format!("Linux takes at most {MAX_SOCKET}"),
        ));
    }
    Ok(Locator::VhostUser(text.to_owned()))
}

/// Whether a path is absolute and has one way to be written.
fn is_plain_path(path: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let good = |c: char| c.is_ascii_graphic() && !matches!(c, '[' | ']' | '"' | '\\');
    path.strip_prefix('/').is_some_and(|path| path.split('/').all(plain)) && path.chars().all(good)
}

fn vde_number(text: &str) -> Result<u32, Wrong> {
    let number = if text.starts_with(|c: char| c.is_ascii_digit()) { text.parse().ok() } else { None };
    number.filter(|n| (FIRST_VDE_PLUG..=MAX_VDE_PLUG).contains(n)).ok_or_else(|| {
        Wrong::new(
            format!("\"[{text}]\" is not the number of a plug"),
            format!("plugs are numbered from {FIRST_VDE_PLUG} to {MAX_VDE_PLUG}, as in \"vde:///run/vde/red[2]\""),
        )
    })
}

/// The rules of the kernel's `dev_valid_name` (net/core/dev.c), and no `%`, which it would replace
/// by a number.
fn device_name(text: &str) -> Result<String, Wrong> {
    if text.len() > MAX_TAP_NAME {
        return Err(Wrong::new(
            format!("the device name \"{text}\" has {} characters", text.len()),
            format!("Linux takes at most {MAX_TAP_NAME}"),
        ));
    }
    let bad = |c: char| !c.is_ascii_graphic() || matches!(c, '/' | ':' | '%' | '"' | '\\');
    if text.is_empty() || text == "." || text == ".." || text.contains(bad) {
        return Err(Wrong::new(
            format!("\"{text}\" cannot name a device"),
            "use letters, digits, '-', '_' and '.', such as \"tap://red1\"",
        ));
    }
    Ok(text.to_owned())
}

/// Reads the name of an instance, switch, tenant, endpoint or link.
pub fn name(text: &str) -> Result<String, Wrong> {
    let rule = || format!("use letters, digits, '-', '_' and '.', starting with a letter or digit, at most {MAX_NAME}");
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() {
        return Err(Wrong::new("a name may not be empty", rule()));
    }
    if text.len() > MAX_NAME || !text.chars().all(good) || !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(Wrong::new(format!("\"{text}\" cannot be a name"), rule()));
    }
    Ok(text.to_owned())
}

/// Reads the name of a host of the cluster. It is a host name (RFC 1123, section 2.1) in small
/// letters, because it stands in the host's certificate as a DNS name, where capitals mean nothing
/// and a number could be an address.
pub fn host(text: &str) -> Result<String, Wrong> {
    let good = |label: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|b| b.is_ascii_digit());
    if text.len() > MAX_NAME || !text.split('.').all(good) || is_number {
        return Err(Wrong::new(
            format!("\"{text}\" cannot be the name of a host"),
            format!(
                "use small letters, digits, '-' and '.', as in \"rack2-host7\", at most {MAX_NAME}; the last part is no number"
            ),
        ));
    }
    Ok(text.to_owned())
}

/// Reads where a member of an etcd is: `http://HOST:PORT` or `https://HOST:PORT` (RFC 3986, without
/// what etcd has no use for).
pub fn etcd_url(text: &str) -> Result<EtcdUrl, Wrong> {
    let such_as =
        "write such as \"https://etcd1.example:2379\", \"http://127.0.0.1:2379\" or \"https://[2001:db8::1]:2379\"";
    let wrong = |what: String| Wrong::new(what, such_as);
    let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (_, Some(rest)) => (false, rest),
        _ => return Err(wrong(format!("\"{text}\" is no http:// or https:// address"))),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => {
            (host, port.strip_prefix(':').or(port.is_empty().then_some("2379")))
        }
        Some((host, _)) => return Err(wrong(format!("\"{host}\" is no IPv6 address"))),
        None => rest.split_once(':').map_or((rest, Some("2379")), |(host, port)| (host, Some(port))),
    };
    let port = port.and_then(|port| port.parse().ok()).filter(|&port| port != 0);
    let port = port.ok_or_else(|| wrong(format!("\"{text}\" has no good port")))?;
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if host.is_empty() || host.len() > 253 || !(host.contains(':') || host.bytes().all(good)) {
        return Err(wrong(format!("\"{text}\" names no host")));
    }
    Ok(EtcdUrl { tls, host: host.to_owned(), port })
}

/// Reads where a service is reached: `ADDRESS:PORT`, of TCP, or with `tcp://` or `udp://` before
/// it.
pub fn service_address(text: &str) -> Result<ServiceAddress, Wrong> {
    let such_as = "write such as \"10.0.0.100:80\", \"udp://10.0.0.100:53\" or \"[2001:db8::1]:443\"";
    let (protocol, rest) = match (text.strip_prefix("udp://"), text.strip_prefix("tcp://")) {
        (Some(rest), _) => (protocol::UDP, rest),
        (_, rest) => (protocol::TCP, rest.unwrap_or(text)),
    };
    let socket: SocketAddr =
        rest.parse().map_err(|_| Wrong::new(format!("\"{text}\" is not an address with a port"), such_as))?;
    let (ip, port) = (socket.ip(), socket.port());
    if port == 0 {
        return Err(Wrong::new(format!("\"{text}\" has no port"), such_as));
    }
    if !can_be_vtep(ip) {
        return Err(Wrong::new(format!("{ip} is no address that a service can have"), such_as));
    }
    Ok(ServiceAddress(Address { ip, protocol, port }))
}

/// Reads the MAC address of one endpoint.
pub fn mac(text: &str) -> Result<Mac, Wrong> {
    let example = "write six bytes in hexadecimal, such as \"02:00:00:00:00:01\"";
    let mut bytes = [0u8; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()));
        let part = part.ok_or_else(|| Wrong::new(format!("\"{text}\" is not a MAC address"), example))?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| Wrong::new("not hexadecimal", example))?;
    }
    if parts.next().is_some() {
        return Err(Wrong::new(format!("\"{text}\" is not a MAC address"), example));
    }
    let mac = Mac(bytes);
    if mac.is_group() {
        return Err(Wrong::new(
            format!("{text} is a group address"),
            "an endpoint's address has an even first byte, such as 02:00:00:00:00:01",
        ));
    }
    if mac == Mac::default() {
        return Err(Wrong::new("00:00:00:00:00:00 is no address", example));
    }
    Ok(mac)
}

/// Whether a host can be reached by this address from any other: of IPv6, an address that holds on
/// one link only cannot be told to others.
#[must_use]
pub fn can_be_vtep(address: IpAddr) -> bool {
    let is_special = match address {
        IpAddr::V4(v4) => v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    !(is_special || address.is_unspecified() || address.is_multicast() || address.is_loopback())
}

/// A MAC address as people write it.
#[must_use]
pub fn show_mac(mac: Mac) -> String {
    mac.0.map(|b| format!("{b:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locators_read_back_as_shown() {
        for text in [
            "tap://red1",
            "packet://eth0",
            "host://enp1s0f0np0",
            "link://fabric/a",
            "link://a.b-c/b",
            "vde:///run/vde/red",
            "vde:///r[2]",
            "vhost-user:///run/vm/vm1.sock",
        ] {
            assert_eq!(locator(text).unwrap().to_string(), text);
        }
        for text in ["red1", "tap://", "tap://a/b", "tap://a b", "tap://t%d", "tap://..", "tap://sixteen-letters0"] {
            assert!(locator(text).is_err(), "{text}");
            assert!(locator(&text.replace("tap", "packet")).is_err(), "{text}");
        }
        for text in [
            "link://fabric",
            "link://fabric/c",
            "link:///a",
            "vde://x",
            "vhost-user://x",
            "vhost-user:///a/../b",
            "link://a/b/a",
        ] {
            assert!(locator(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_vde_plug_is_a_plain_directory_and_a_number() {
        assert_eq!(locator("vde:///run/red[1]"), Ok(Locator::Vde("/run/red".to_owned(), 1)));
        for text in [
            "",
            "red",
            "/",
            "//",
            "/a//b",
            "/a/",
            "/a/../b",
            "/a b",
            "/a[0]",
            "/a[]",
            "/a[+1]",
            "/a[1][2]",
            "/a[10000]",
        ] {
            assert!(locator(&format!("vde://{text}")).is_err(), "{text}");
        }
        let longest = format!("vde:///{}", "x".repeat(MAX_VDE_DIRECTORY - 1));
        assert!(locator(&longest).is_ok());
        assert!(locator(&(longest + "x")).unwrap_err().message.contains("93 characters"));
    }

    #[test]
    fn a_mac_is_six_bytes_of_one_station() {
        assert_eq!(mac("02:00:00:00:0A:ff"), Ok(Mac([2, 0, 0, 0, 10, 255])));
        for text in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "2:0:0:0:0:1", "+2:00:00:00:00:01", "02-00-00-00-00-01"]
        {
            assert!(mac(text).is_err(), "{text}");
        }
        assert!(mac("01:80:c2:00:00:00").unwrap_err().message.contains("group"));
        assert!(mac("00:00:00:00:00:00").is_err());
    }

    #[test]
    fn hosts_have_names_that_certificates_can_carry() {
        for text in ["host1", "h-1.rack2.example", "1a", "7.example"] {
            assert!(host(text).is_ok(), "{text}");
        }
        for text in
            ["", "Host1", "h_1", ".h", "h.", "a..b", "-h", "h-", "10.0.0.1", "7", "h.7", &"x".repeat(MAX_NAME + 1)]
        {
            assert!(host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_member_of_an_etcd_has_scheme_host_and_port() {
        for (text, shown) in [
            ("http://127.0.0.1:2379", "http://127.0.0.1:2379"),
            ("https://etcd1.example/", "https://etcd1.example:2379"),
            ("https://[2001:db8::1]:4001", "https://[2001:db8::1]:4001"),
            ("http://[::1]", "http://[::1]:2379"),
        ] {
            assert_eq!(etcd_url(text).unwrap().to_string(), shown);
        }
        for text in [
            "",
            "127.0.0.1:2379",
            "ftp://h",
            "http://",
            "http://h:0",
            "http://h:65536",
            "http://h:1/v3",
            "http://u@h:1",
            "http://[::1",
            "http://[h]:1",
        ] {
            assert!(etcd_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_make_safe_paths() {
        assert!(name("demo-1.x").is_ok());
        for text in ["", ".", "..", "a/b", "-a", "a b", "ä", &"x".repeat(MAX_NAME + 1)] {
            assert!(name(text).is_err(), "{text}");
        }
    }
}
