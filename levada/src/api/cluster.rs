//! The cluster: `GET /v1/cluster`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    /// Where the members are known from besides the file: `etcd`, or `file` where there is nothing
    /// besides.
    pub store: String,
    /// How it stands with the store; `null`: there is none but the file.
    pub etcd: Option<StoreReport>,
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

/// The store.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct StoreReport {
    /// Whether it is there. While it is not, its last answer holds.
    pub connected: bool,
    /// For how long it has been so.
    pub since_ns: u64,
    /// The member of it that is spoken with, or was last.
    pub at: Option<String>,
    /// Up to which revision it is known.
    pub revision: i64,
    /// What last went wrong with it.
    pub error: Option<String>,
    /// That another daemon has this host's name, where one has.
    pub rival: Option<String>,
    /// Endpoints of this host that are another's by the store.
    pub contests: Vec<ContestReport>,
    /// Entries that are not used, and why: the first of them.
    pub refused: Vec<String>,
    /// How many they are.
    pub refusals: u64,
}

/// An endpoint of this host that is another's by the store.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct ContestReport {
    /// `TENANT/NAME (MAC)`.
    pub endpoint: String,
    /// Who has it.
    pub holder: String,
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
    /// Its services: `TENANT/NAME` of the first 256 that others look for there.
    #[serde(default)]
    pub services: Vec<String>,
    /// Where it is known from: `file` or `etcd`.
    pub known_from: String,
    /// Whether the store has not heard of its daemon for longer than a lease; `null`: the file
    /// cannot know.
    pub away: Option<bool>,
    /// For how long there has been a connection to it; `null`: there is none, and none is needed
    /// while there is nothing to report.
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
    /// Datagrams of it that were too many, or that nothing took.
    pub untaken: u64,
    /// When its certificate expires, in seconds since 1970; `null`: it has shown none yet.
    pub certificate_expires_s: Option<i64>,
    /// What last went wrong with it.
    pub error: Option<String>,
    /// How long ago that was.
    pub error_ago_ns: Option<u64>,
}
