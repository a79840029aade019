//! Congestion agents: `GET /v1/agents`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /v1/agents`.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct AgentsReply {
    /// 1.
    pub version: u32,
    /// One for each switch that is a host of the cluster.
    pub agents: Vec<AgentReport>,
}

/// One agent.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct AgentReport {
    /// Name of its switch.
    pub switch: String,
    /// The switch's name as a host of the cluster.
    pub host: String,
    /// Whether at least two endpoints receive something over the uplink now.
    pub contended: bool,
    /// Whether a flood has just begun.
    pub flood: bool,
    /// What arrives over the uplink, in wire bits a second.
    pub arriving_bps: u64,
    /// Senders on other hosts that it limits.
    pub limits: Vec<LimitReport>,
    /// Limits of its own senders that other hosts have asked for.
    pub limited: Vec<LimitedReport>,
    /// Times that all limits were lifted since the start.
    pub releases: u64,
    /// Senders that were found to ignore their limit.
    pub ignored: u64,
    /// Notifications, with the controller `gatekeeper`.
    pub notified: u64,
    /// Datagrams, and pairs in them, that were refused: of strangers, no messages, old ones, too
    /// many, for endpoints that the speaker does not have or that are not here.
    pub refused: u64,
    /// Limits for which there was no room.
    pub full: u64,
    /// Hosts that it has talked with.
    pub peers: Vec<PeerReport>,
}

/// A sender on another host that is limited.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct LimitReport {
    /// The endpoint that it sends to: `SWITCH/TENANT/ENDPOINT`.
    pub to: String,
    /// The sender's address.
    pub from: String,
    /// Its host; `null` where no host of the cluster has it.
    pub host: Option<String>,
    /// What it may send there, in wire bits a second.
    pub rate_bps: u64,
    /// What arrives from it.
    pub arriving_bps: u64,
    /// What all senders together may send to that endpoint.
    pub share_bps: u64,
    /// `limit`: its host was told, and does not hold it back. `unreachable`: there is nobody to
    /// tell. `null`: it keeps to the limit.
    pub ignores: Option<String>,
}

/// A sender here that is limited.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct LimitedReport {
    /// The sender: `SWITCH/TENANT/ENDPOINT`.
    pub from: String,
    /// The address that it sends to, or `everyone`.
    pub to: String,
    /// The host that asked for it.
    pub host: String,
    /// At most this much, in wire bits a second.
    pub rate_bps: u64,
    /// Whether it is on the way to being lifted.
    pub relaxing: bool,
}

/// Another host.
#[derive(Serialize, Deserialize, JsonSchema, Debug)]
pub struct PeerReport {
    /// Its name.
    pub host: String,
    /// Datagrams sent to it.
    pub sent: u64,
    /// Datagrams of it that were understood and new.
    pub heard: u64,
    /// Datagrams and pairs of it that were refused.
    pub refused: u64,
}
