//! The cluster: this host among others, and which endpoints the others have, as far as the
//! configuration file says.
//!
//! The file is one of the places that this can come from (`levada/src/directory.rs`); what comes
//! from elsewhere has the same types.

use super::service::service_mac;
use crate::names::EtcdUrl;
use agent::Settings;
use datapath::wire::Mac;
use std::net::{IpAddr, SocketAddr};

/// This host in its cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    /// Name of this host, as in its certificate.
    pub host: String,
    /// UDP address where other hosts reach it.
    pub listen: Option<SocketAddr>,
    /// Directory of its certificate, its key, and the cluster's authority. Absolute.
    pub directory: String,
    /// What decides how fast senders on other hosts may send.
    pub settings: Settings,
    /// Where the hosts tell each other who they are and what they have; `None`: the file alone says
    /// so.
    pub etcd: Option<Etcd>,
    /// The hosts of the cluster. This one may be among them, so that all hosts can have the same
    /// list.
    pub members: Vec<Member>,
}

/// Where certificates are where nothing is said.
pub const DEFAULT_DIRECTORY: &str = "/etc/levada/cluster";

impl Default for Cluster {
    fn default() -> Self {
        Cluster {
            host: String::new(),
            listen: None,
            directory: DEFAULT_DIRECTORY.to_owned(),
            settings: Settings::default(),
            etcd: None,
            members: Vec::new(),
        }
    }
}

/// An etcd, and how it is spoken with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Etcd {
    /// Its members: whichever answers is used.
    pub endpoints: Vec<EtcdUrl>,
    /// What the cluster's keys there begin with.
    pub prefix: String,
    /// File with the certificates of the authorities that vouch for it. Absolute.
    pub authority: Option<String>,
    /// File with this host's certificate for it, and with the certificate's key. Absolute.
    pub certificate: Option<String>,
    /// See `certificate`.
    pub key: Option<String>,
    /// The user that this host is there, and the file with the password.
    pub user: Option<String>,
    /// See `user`.
    pub password_file: Option<String>,
}

/// What keys begin with where nothing is said.
pub const DEFAULT_PREFIX: &str = "/levada";

impl Default for Etcd {
    fn default() -> Self {
        let (prefix, none) = (DEFAULT_PREFIX.to_owned(), None);
        Etcd {
            endpoints: Vec::new(),
            prefix,
            authority: none.clone(),
            certificate: none.clone(),
            key: none.clone(),
            user: none.clone(),
            password_file: none,
        }
    }
}

/// A host of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Member {
    /// Its name, as in its certificate.
    pub name: String,
    /// UDP address where its daemon is reached; `None`: it has none, and is only an end of tunnels.
    pub address: Option<SocketAddr>,
    /// Its end of tunnels: an address of the underlay.
    pub vtep: Option<IpAddr>,
    /// The endpoints it has.
    pub endpoints: Vec<Remote>,
    /// The services it has.
    pub services: Vec<RemoteService>,
}

/// An endpoint on a host of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// Name of its tenant, which is the same on all hosts.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub macs: Vec<Mac>,
    /// The IP addresses that are its own: single ones, no prefixes.
    pub ips: Vec<IpAddr>,
}

/// A service on a host of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RemoteService {
    /// Name of its tenant, which is the same on all hosts.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Its addresses, that of which its Ethernet address is made first.
    pub ips: Vec<IpAddr>,
    /// Its Ethernet address; `None` for one that follows from its first address and its tenant.
    pub mac: Option<Mac>,
}

impl RemoteService {
    /// Its Ethernet address.
    #[must_use]
    pub fn mac(&self) -> Mac {
        self.mac.unwrap_or_else(|| service_mac(&self.tenant, self.ips.first()))
    }
}
