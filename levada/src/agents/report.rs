//! What the agents are doing, told to people: `levada show agents`, `GET /v1/agents`.

use agent::report::{Ignores, Limited, Obeyed, Report};
use control::names::show_mac;
use control::plan::SwitchPlan;
use datapath::pair::Toward;
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
    /// Datagrams said to it.
    pub sent: u64,
    /// Datagrams of it that were understood and new.
    pub heard: u64,
    /// Datagrams and pairs of it that were refused.
    pub refused: u64,
}

/// What the agent of `switch`, which is called `host`, says of itself.
#[must_use]
pub fn agent(switch: &SwitchPlan, host: &str, report: &Report) -> AgentReport {
    let counters = report.counters;
    let limit = |limited: &Limited| LimitReport {
        to: switch.endpoint_path(limited.to),
        from: show_mac(limited.from),
        host: limited.host.as_deref().map(str::to_owned),
        rate_bps: limited.rate.0,
        arriving_bps: limited.arriving.0,
        share_bps: limited.share.0,
        ignores: limited.ignores.map(|how| match how {
            Ignores::Limit => "limit".to_owned(),
            Ignores::Unreachable => "unreachable".to_owned(),
        }),
    };
    let limited = |obeyed: &Obeyed| LimitedReport {
        from: switch.endpoint_path(obeyed.from),
        to: match obeyed.to {
            Toward::Address(mac) => show_mac(mac),
            Toward::Everyone => "everyone".to_owned(),
        },
        host: obeyed.host.to_string(),
        rate_bps: obeyed.rate.0,
        relaxing: obeyed.relaxing,
    };
    let peers = report.peers.iter().map(|peer| PeerReport {
        host: peer.host.to_string(),
        sent: peer.counts.sent,
        heard: peer.counts.heard,
        refused: peer.counts.refused,
    });
    AgentReport {
        switch: switch.name.clone(),
        host: host.to_string(),
        contended: report.contention.contended,
        flood: report.contention.flood,
        arriving_bps: report.contention.arriving.0,
        limits: report.limited.iter().map(limit).collect(),
        limited: report.obeyed.iter().map(limited).collect(),
        releases: counters.releases,
        ignored: counters.ignored,
        notified: counters.notified,
        refused: counters.strangers
            + counters.garbage
            + counters.replays
            + counters.floods
            + counters.lies
            + counters.foreign,
        full: counters.full,
        peers: peers.collect(),
    }
}
