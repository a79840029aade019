//! What hosts write into a store: keys, and values of JSON under a version.
//!
//! | key, after the prefix | value | who writes it |
//! |---|---|---|
//! | `/v1/alive/HOST` | `from`: which daemon it is | its daemon; goes by itself with the daemon's lease |
//! | `/v1/host/HOST` | `address`: where its agents listen; `vtep`: its end of tunnels, if it has one | its daemon |
//! | `/v1/endpoint/TENANT/MAC` | `host` that has it, `name`, `ip`, `service`: it is a service's address | who has it; one key for each address, so it is in one place |
//!
//! Whatever stands there was perhaps written by hand or by a program that is wrong: it is read
//! strictly, but for keys that a later program may have added to a value.

use control::names;
use datapath::wire::Mac;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Most addresses or prefixes of an endpoint or a service that are told.
pub const MOST_IPS: usize = 32;
/// Longest value, in bytes: an endpoint with a few dozen prefixes.
pub const MAX_VALUE: usize = 4096;
/// The version of values that is written, and the only one that is understood.
const VERSION: u32 = 1;

/// What a key is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Key {
    /// A host's daemon runs.
    Alive(String),
    /// A host.
    Host(String),
    /// An endpoint: its tenant and its address.
    Endpoint(String, Mac),
}

/// What all keys of a cluster begin with.
pub fn root(prefix: &str) -> String {
    format!("{prefix}/v1/")
}

impl Key {
    /// As the store has it.
    pub fn path(&self, prefix: &str) -> String {
        let root = root(prefix);
        match self {
            Key::Alive(host) => format!("{root}alive/{host}"),
            Key::Host(host) => format!("{root}host/{host}"),
            Key::Endpoint(tenant, mac) => format!("{root}endpoint/{tenant}/{}", names::show_mac(*mac)),
        }
    }

    /// Of a key of the store.
    ///
    /// # Errors
    /// Why it is none of ours.
    pub fn read(prefix: &str, path: &str) -> Result<Key, String> {
        let rest = path.strip_prefix(&root(prefix)).ok_or("it has another prefix")?;
        let host = |name: &str| names::host(name).map_err(|wrong| wrong.message);
        if let Some(name) = rest.strip_prefix("alive/") {
            return host(name).map(Key::Alive);
        }
        if let Some(name) = rest.strip_prefix("host/") {
            return host(name).map(Key::Host);
        }
        let (tenant, mac) = rest
            .strip_prefix("endpoint/")
            .and_then(|rest| rest.split_once('/'))
            .ok_or("nothing is known by such a key")?;
        let tenant = names::name(tenant).map_err(|wrong| wrong.message)?;
        let address = names::mac(mac).map_err(|wrong| wrong.message)?;
        if names::show_mac(address) != mac {
            return Err("addresses are written in small letters".to_owned());
        }
        Ok(Key::Endpoint(tenant, address))
    }
}

/// Value of [`Key::Alive`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Alive {
    version: u32,
    /// Which daemon it is: instance and machine.
    pub from: String,
}

/// Value of [`Key::Host`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Host {
    version: u32,
    /// Address and UDP port where its agents listen.
    pub address: SocketAddr,
    /// Its end of tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep: Option<IpAddr>,
}

/// Value of [`Key::Endpoint`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Endpoint {
    version: u32,
    /// The host that has it.
    pub host: String,
    /// Its name.
    pub name: String,
    /// Addresses and prefixes that it may use; of a service, its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip: Vec<String>,
    /// It is a service's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub service: bool,
}

/// What a host tells of an endpoint or of a service.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// Its name.
    pub name: String,
    /// Addresses and prefixes that it may use; of a service, its addresses.
    pub ip: Vec<String>,
    /// It is a service.
    pub is_service: bool,
    /// Other hosts may have it too: a service in tunnels, which nobody learns the place of.
    pub is_shared: bool,
}

impl Endpoint {
    /// The addresses of a service.
    ///
    /// # Errors
    /// Which is none.
    pub fn service_ips(&self) -> Result<Vec<IpAddr>, String> {
        let ip = |text: &String| match text.parse() {
            Ok(ip) if names::can_be_vtep(ip) => Ok(ip),
            _ => Err(format!("{text} is no service's address")),
        };
        self.check_count()?;
        self.ip.iter().map(ip).collect()
    }

    /// The addresses that are an endpoint's own: single ones, no prefixes.
    ///
    /// # Errors
    /// What is neither.
    pub fn own_ips(&self) -> Result<Vec<IpAddr>, String> {
        self.check_count()?;
        self.ip.iter().filter_map(|text| single(text).transpose()).collect()
    }

    fn check_count(&self) -> Result<(), String> {
        if self.ip.len() > MOST_IPS {
            return Err(format!("it has {} addresses, and {MOST_IPS} are the most", self.ip.len()));
        }
        Ok(())
    }
}

/// A single address; `None` for a prefix of several.
fn single(text: &str) -> Result<Option<IpAddr>, String> {
    let wrong = || format!("{text} is no address or prefix");
    let (ip, length) = text.split_once('/').map_or((text, None), |(ip, length)| (ip, Some(length)));
    let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let length = length.map_or(Ok(most), str::parse::<u8>).map_err(|_| wrong())?;
    if length > most { Err(wrong()) } else { Ok((length == most).then_some(ip)) }
}

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// See [`Alive`].
    Alive(Alive),
    /// See [`Host`].
    Host(Host),
    /// See [`Endpoint`].
    Endpoint(Endpoint),
}

impl Entry {
    /// A daemon that runs.
    pub fn alive(from: &str) -> Entry {
        Entry::Alive(Alive { version: VERSION, from: from.to_owned() })
    }

    /// A host.
    pub fn host(address: SocketAddr, vtep: Option<IpAddr>) -> Entry {
        Entry::Host(Host { version: VERSION, address, vtep })
    }

    /// An endpoint, or a service.
    pub fn endpoint(host: &str, told: &Told) -> Entry {
        let (host, name, ip, service) = (host.to_owned(), told.name.clone(), told.ip.clone(), told.is_service);
        Entry::Endpoint(Endpoint { version: VERSION, host, name, ip, service })
    }

    /// As the store has it.
    pub fn write(&self) -> Vec<u8> {
        let text = match self {
            Entry::Alive(value) => serde_json::to_vec(value),
            Entry::Host(value) => serde_json::to_vec(value),
            Entry::Endpoint(value) => serde_json::to_vec(value),
        };
        // Plain data always has a JSON form.
        text.unwrap_or_default()
    }

    /// The value of a key.
    ///
    /// # Errors
    /// What is wrong with it, and the remedy.
    pub fn read(key: &Key, value: &[u8]) -> Result<Entry, String> {
        let anew = |why| format!("{why}; its host writes it anew; if that is no more, delete it (etcdctl del)");
        match Entry::version(value).map_err(anew)? {
            VERSION => Entry::parse(key, value).map_err(anew),
            other => Err(format!(
                "its value has version {other}, and this daemon knows {VERSION}; install one version everywhere"
            )),
        }
    }

    fn version(value: &[u8]) -> Result<u32, String> {
        if value.len() > MAX_VALUE {
            return Err(format!("its value has {} bytes, and {MAX_VALUE} are the most", value.len()));
        }
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_slice(value).map_err(wrong)?;
        Ok(version)
    }

    fn parse(key: &Key, value: &[u8]) -> Result<Entry, String> {
        match key {
            Key::Alive(_) => {
                let value: Alive = serde_json::from_slice(value).map_err(wrong)?;
                Ok(Entry::Alive(value))
            }
            Key::Host(_) => {
                let value: Host = serde_json::from_slice(value).map_err(wrong)?;
                let ip = value.address.ip();
                if ip.is_unspecified() || ip.is_multicast() || value.address.port() == 0 {
                    return Err(format!("no host can be at {}", value.address));
                }
                if let Some(vtep) = value.vtep
                    && !names::can_be_vtep(vtep)
                {
                    return Err(format!("no tunnel can end at {vtep}"));
                }
                Ok(Entry::Host(value))
            }
            Key::Endpoint(..) => {
                let value: Endpoint = serde_json::from_slice(value).map_err(wrong)?;
                names::host(&value.host).and(names::name(&value.name)).map_err(|wrong| wrong.message)?;
                let ips = if value.service { value.service_ips() } else { value.own_ips() };
                ips?;
                Ok(Entry::Endpoint(value))
            }
        }
    }
}

fn wrong(error: serde_json::Error) -> String {
    format!("its value is not what it should be: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, ip: &str, is_service: bool) -> Told {
        Told { name: name.to_owned(), ip: vec![ip.to_owned()], is_service, is_shared: false }
    }

    /// Switches believe a service's addresses, and those of an endpoint that are its own.
    #[test]
    fn an_endpoint_has_single_addresses_and_prefixes() {
        let key = Key::Endpoint("red".to_owned(), Mac([2, 0, 0, 0, 0, 1]));
        let cases: [(&str, Option<&[&str]>); 10] = [
            ("10.0.0.1/32", Some(&["10.0.0.1"])),
            ("10.0.0.1", Some(&["10.0.0.1"])),
            ("fd00::1/128", Some(&["fd00::1"])),
            ("10.0.0.0/24", Some(&[])),
            ("fd00::/64", Some(&[])),
            ("10.0.0.1/33", None),
            ("fd00::1/129", None),
            ("10.0.0.1/", None),
            ("10.0.0/24", None),
            ("", None),
        ];
        for (ip, own) in cases {
            let entry = Entry::read(&key, &Entry::endpoint("h1", &told("red1", ip, false)).write());
            let ips = match &entry {
                Ok(Entry::Endpoint(endpoint)) => endpoint.own_ips().ok(),
                _ => None,
            };
            let own = own.map(|own| own.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>());
            assert_eq!(ips, own, "{ip:?}: {entry:?}");
        }
        let many = Told { ip: vec!["10.0.0.1".to_owned(); MOST_IPS + 1], ..told("red1", "", false) };
        assert!(Entry::read(&key, &Entry::endpoint("h1", &many).write()).is_err());
    }

    /// The same of a service, which has no prefix.
    #[test]
    fn a_service_has_addresses_that_can_be_one() {
        let key = Key::Endpoint("red".to_owned(), Mac([2, 0, 0, 0, 0, 1]));
        for (ip, is_one) in [("10.0.0.100", true), ("fd00::1", true), ("10.0.0.0/24", false), ("224.0.0.1", false)] {
            let entry = Entry::endpoint("h1", &told("web", ip, true)).write();
            assert_eq!(Entry::read(&key, &entry).is_ok(), is_one, "{ip}");
        }
        let usual = Entry::endpoint("h1", &told("red1", "10.0.0.1", false)).write();
        assert!(!String::from_utf8(usual).unwrap().contains("service"), "as older daemons write it");
    }

    #[test]
    fn what_is_written_is_read() {
        let mac = Mac([2, 0, 0, 0, 0, 0xab]);
        for (key, entry, path) in [
            (Key::Alive("h1".to_owned()), Entry::alive("demo@node1"), "/p/v1/alive/h1"),
            (Key::Host("h1".to_owned()), Entry::host("192.0.2.1:7370".parse().unwrap(), None), "/p/v1/host/h1"),
            (
                Key::Host("h2".to_owned()),
                Entry::host("192.0.2.2:7370".parse().unwrap(), Some(IpAddr::from([192, 0, 2, 2]))),
                "/p/v1/host/h2",
            ),
            (
                Key::Host("h3".to_owned()),
                Entry::host("192.0.2.3:7370".parse().unwrap(), Some("2001:db8::3".parse().unwrap())),
                "/p/v1/host/h3",
            ),
            (
                Key::Endpoint("red".to_owned(), mac),
                Entry::endpoint("h1", &told("red1", "10.0.0.0/24", false)),
                "/p/v1/endpoint/red/02:00:00:00:00:ab",
            ),
            (
                Key::Endpoint("red".to_owned(), mac),
                Entry::endpoint("h1", &told("web", "10.0.0.100", true)),
                "/p/v1/endpoint/red/02:00:00:00:00:ab",
            ),
        ] {
            assert_eq!(key.path("/p"), path);
            assert_eq!(Key::read("/p", path).unwrap(), key);
            assert_eq!(Entry::read(&key, &entry.write()).unwrap(), entry);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let host = Key::Host("h1".to_owned());
        for (value, says) in [
            ("", "not what it should be"),
            ("{}", "version"),
            (r#"{"version":2,"address":"192.0.2.1:7370"}"#, "version 2"),
            (r#"{"version":1}"#, "address"),
            (r#"{"version":1,"address":"0.0.0.0:7370"}"#, "no host can be at"),
            (r#"{"version":1,"address":"192.0.2.1:0"}"#, "no host can be at"),
            (r#"{"version":1,"address":"192.0.2.1:7370","vtep":"224.0.0.1"}"#, "no tunnel can end at"),
            (r#"{"version":1,"address":"192.0.2.1:7370","vtep":"fe80::1"}"#, "no tunnel can end at"),
        ] {
            let why = Entry::read(&host, value.as_bytes()).unwrap_err();
            assert!(why.contains(says), "{value}: {why}");
            assert_eq!(why.contains("anew"), says != "version 2", "{why}");
        }
        let long = format!(r#"{{"version":1,"address":"192.0.2.1:7370","more":"{}"}}"#, "x".repeat(MAX_VALUE));
        assert!(Entry::read(&host, long.as_bytes()).unwrap_err().contains("bytes"));
        // A later program may say more.
        assert!(Entry::read(&host, br#"{"version":1,"address":"192.0.2.1:7370","zone":"north"}"#).is_ok());
        for path in [
            "/p/v1/",
            "/p/v1/host/",
            "/p/v1/host/H",
            "/p/v2/host/h",
            "/p/v1/endpoint/red",
            "/p/v1/endpoint/red/02:00:00:00:00:AB",
            "/q",
        ] {
            assert!(Key::read("/p", path).is_err(), "{path}");
        }
    }
}
