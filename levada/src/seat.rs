//! This daemon's seat in its cluster: it knows the others from a store (`roster`), speaks with them (`peers`), and follows the configuration.
//!
//! Whatever is wrong with the cluster (a certificate that has expired, an address that is not there yet), the switch goes on: a daemon starts
//! without, tries again, and says in `levada show cluster` what it waits for.

use crate::api::VERSION;
use crate::log::{Level, Log};
use crate::peers::status::Host;
use crate::peers::{Hear, Peers, Settings, Voice};
use crate::roster::{File, Health, Store, others};

use control::config::{Cluster, Member};
use control::names::{CONTROLLERS, name_of};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};
use time::OffsetDateTime;

/// The seat; there may be no cluster.
pub struct Seat {
    log: Log,
    hear: Hear,
    taken: Mutex<Option<Taken>>,
}

/// What there is where there is a cluster.
struct Taken {
    cluster: Cluster,
    store: Box<dyn Store>,
    peers: Arc<Peers>,
}

impl Seat {
    /// A seat in no cluster yet. What other hosts say goes to `hear`.
    pub fn new(log: Log, hear: Hear) -> Seat {
        Seat { log, hear, taken: Mutex::new(None) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Becomes what the configuration says. Connections with hosts that stay remain.
    pub fn follow(&self, cluster: Option<&Cluster>) {
        let mut taken = self.lock();
        let Some((cluster, listen)) = cluster.and_then(|cluster| Some((cluster, cluster.listen?))) else {
            *taken = None;
            return;
        };
        let store = Box::new(File::new(cluster));
        let settings = Settings {
            host: cluster.host.clone(),
            listen,
            directory: PathBuf::from(&cluster.directory),
            others: others(&store.members(), &cluster.host).collect(),
        };
        if let Some(taken) = taken.as_mut() {
            taken.peers.change(settings);
            (taken.cluster, taken.store) = (cluster.clone(), store);
            return;
        }
        match Peers::start(settings, self.log.clone(), Arc::clone(&self.hear)) {
            Ok(peers) => *taken = Some(Taken { cluster: cluster.clone(), store, peers: Arc::new(peers) }),
            Err(error) => self.log.line(Level::Warning, &format!("cannot speak with other hosts: {error}")),
        }
    }

    /// What speaks to other hosts; `None` while there are none.
    pub fn voice(&self) -> Option<Voice> {
        self.lock().as_ref().map(|taken| taken.peers.voice())
    }

    /// Says goodbye to the others.
    pub fn leave(&self) {
        self.lock().take();
    }

    /// What is known of the cluster.
    pub fn report(&self) -> ClusterReply {
        ClusterReply { version: VERSION, cluster: self.lock().as_ref().map(Taken::report) }
    }
}

/// `GET /v1/cluster`.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct ClusterReply {
    /// 1.
    pub version: u32,
    /// `null`: this host is in no cluster.
    pub cluster: Option<ClusterReport>,
}

/// This host's cluster.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct ClusterReport {
    /// Name of this host.
    pub host: String,
    /// What decides how fast senders may send: `rate` or `gatekeeper`.
    pub controller: String,
    /// Where the members are known from: `file`.
    pub store: String,
    /// What keeps the store from being asked; what it said last holds.
    pub store_error: Option<String>,
    /// Address and UDP port where other hosts reach this one.
    pub listen: String,
    /// Whether they do.
    pub up: bool,
    /// What is wrong with this host's socket or certificate.
    pub error: Option<String>,
    /// When this host's certificate expires, in seconds since 1970.
    pub certificate_expires_s: Option<i64>,
    /// When the last of the authorities that it trusts expires, in seconds since 1970.
    pub authority_expires_s: Option<i64>,
    /// Authorities that it trusts: two while one takes over from another.
    pub authorities: u64,
    /// Attempts to connect that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Datagrams for others that could not even be queued.
    pub unposted: u64,
    /// The other hosts.
    pub members: Vec<MemberReport>,
}

/// Another host.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct MemberReport {
    /// Its name.
    pub name: String,
    /// Address and UDP port where it is reached.
    pub address: String,
    /// Endpoints that it has.
    pub endpoints: u64,
    /// For how long there has been a connection to it; `null`: there is none, and none is needed while there is nothing to say.
    pub outgoing_ns: Option<u64>,
    /// For how long there has been a connection from it.
    pub incoming_ns: Option<u64>,
    /// Connections to it that came about.
    pub connections: u64,
    /// Datagrams sent to it.
    pub sent: u64,
    /// Datagrams for it that could not be sent.
    pub unsent: u64,
    /// Datagrams received of it.
    pub received: u64,
    /// Datagrams of it that were too many, or that nobody took.
    pub untaken: u64,
    /// When its certificate expires, in seconds since 1970; `null`: it has shown none yet.
    pub certificate_expires_s: Option<i64>,
    /// What last went wrong with it.
    pub error: Option<String>,
    /// How long ago that was.
    pub error_ago_ns: Option<u64>,
}

impl Taken {
    fn report(&self) -> ClusterReport {
        let (seen, cluster) = (self.peers.seen(), &self.cluster);
        let Health { kind, error } = self.store.health();
        let members = self.store.members();
        let reports = seen.hosts.iter().map(|(name, host)| {
            let member = members.iter().find(|member| member.name == *name);
            member_report(name, host, member)
        });
        ClusterReport {
            host: cluster.host.clone(),
            controller: name_of(&CONTROLLERS, cluster.settings.controller).to_owned(),
            store: kind.to_owned(),
            store_error: error,
            listen: cluster.listen.map_or_else(String::new, |listen| listen.to_string()),
            up: seen.own.listening.is_some() && seen.own.error.is_none(),
            error: seen.own.error,
            certificate_expires_s: seen.own.not_after.map(OffsetDateTime::unix_timestamp),
            authority_expires_s: seen.own.authorities.map(|(end, _)| end.unix_timestamp()),
            authorities: seen.own.authorities.map_or(0, |(_, count)| count as u64),
            refused: seen.refused.into_iter().map(|(why, count)| (why.to_owned(), count)).collect(),
            unposted: seen.unposted,
            members: reports.collect(),
        }
    }
}

fn member_report(name: &str, host: &Host, member: Option<&Member>) -> MemberReport {
    let ns = |since: Option<Instant>| since.map(|since| since.elapsed().as_nanos() as u64);
    let ago = |at: &SystemTime| at.elapsed().unwrap_or_default().as_nanos() as u64;
    MemberReport {
        name: name.to_owned(),
        address: host.address.to_string(),
        endpoints: member.map_or(0, |member| member.endpoints.len() as u64),
        outgoing_ns: ns(host.outgoing),
        incoming_ns: ns(host.incoming),
        connections: host.connections,
        sent: host.sent,
        unsent: host.unsent,
        received: host.received,
        untaken: host.untaken,
        certificate_expires_s: host.not_after.map(OffsetDateTime::unix_timestamp),
        error: host.error.as_ref().map(|(_, why)| why.clone()),
        error_ago_ns: host.error.as_ref().map(|(at, _)| ago(at)),
    }
}
