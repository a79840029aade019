//! The roster: which hosts are in the cluster, where they are, and which endpoints they have. Whoever needs it asks here, wherever it comes from.

use control::config::{Cluster, Member};
use std::net::SocketAddr;
use std::sync::Arc;

/// How well a store does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Health {
    /// What kind of store it is: `file`.
    pub kind: &'static str,
    /// Why what is known may be out of date; `None`: it is what the store has.
    pub error: Option<String>,
}

/// A place that knows the cluster.
pub trait Store: Send + Sync {
    /// The hosts, this one perhaps among them, as far as is known. It goes on to say so while the store is away.
    fn members(&self) -> Arc<[Member]>;
    /// How well it does.
    fn health(&self) -> Health;
}

/// The configuration file. It is always there, and changes with the configuration.
pub struct File(Arc<[Member]>);

impl File {
    /// What the configuration says.
    pub fn new(cluster: &Cluster) -> File {
        File(cluster.members.iter().cloned().collect())
    }
}

impl Store for File {
    fn members(&self) -> Arc<[Member]> {
        Arc::clone(&self.0)
    }

    fn health(&self) -> Health {
        Health { kind: "file", error: None }
    }
}

/// Where the hosts are that `host` may speak with.
pub fn others(members: &[Member], host: &str) -> impl Iterator<Item = (String, SocketAddr)> {
    let others = members.iter().filter(move |member| member.name != host);
    others.filter_map(|member| Some((member.name.clone(), member.address?)))
}
