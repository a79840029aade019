//! What the agents are doing, told to people: `levada show agents`, `GET /v1/agents`.

use crate::api::agents::{AgentReport, LimitReport, LimitedReport, PeerReport};
use agent::report::{Ignores, Limited, Obeyed, Report};
use control::names::show_mac;
use control::plan::SwitchPlan;
use datapath::pair::Toward;

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
