//! The cluster: this host among others, and which endpoints the others have, as far as the configuration file says.
//!
//! The file is one of the places that this can come from (`levada/src/roster.rs`); what comes from elsewhere has the same types.

use crate::agent::Settings;
use datapath::wire::Mac;
use std::net::{Ipv4Addr, SocketAddr};

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
    /// The hosts of the cluster. This one may be among them, so that all hosts can have the same list.
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
            members: Vec::new(),
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
    pub vtep: Option<Ipv4Addr>,
    /// The endpoints it has.
    pub endpoints: Vec<Remote>,
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
}
