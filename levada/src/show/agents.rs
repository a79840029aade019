//! `levada show agents`: whom the agents of this daemon limit, by whom its own senders are limited, and who does not keep to it.

use super::columns;
use crate::agents::report::{AgentReport, AgentsReply};
use control::units::show_rate;
use datapath::units::Rate;
use std::fmt::Write as _;

/// As text.
pub fn text(reply: &AgentsReply) -> String {
    if reply.agents.is_empty() {
        return "no agents; [cluster] in the configuration gives each switch with an uplink one\n".to_owned();
    }
    reply.agents.iter().map(one).collect()
}

fn one(agent: &AgentReport) -> String {
    let rate = |bps| show_rate(Rate(bps));
    let mut out = format!("host {}, switch {}: {} arrive", agent.host, agent.switch, rate(agent.arriving_bps));
    out += if agent.flood {
        ", a flood has just begun\n"
    } else if agent.contended {
        ", for several endpoints\n"
    } else {
        "\n"
    };
    if !agent.limits.is_empty() {
        let mut rows = vec![["sender", "at", "to", "may send", "arrive", ""].map(str::to_owned)];
        rows.extend(agent.limits.iter().map(|limit| {
            let ignores = match limit.ignores.as_deref() {
                None => "",
                Some("unreachable") => "no host of the cluster has it",
                Some(_) => "does not keep to it",
            };
            let host = limit.host.clone().unwrap_or_else(|| "-".to_owned());
            let (may, arrive) = (rate(limit.rate_bps), rate(limit.arriving_bps));
            [limit.from.clone(), host, limit.to.clone(), may, arrive, ignores.to_owned()]
        }));
        out += &columns(&rows);
    }
    if !agent.limited.is_empty() {
        let mut rows = vec![["own sender", "to", "may send", "asked by", ""].map(str::to_owned)];
        rows.extend(agent.limited.iter().map(|limit| {
            let state = if limit.relaxing { "being lifted" } else { "" };
            [limit.from.clone(), limit.to.clone(), rate(limit.rate_bps), limit.host.clone(), state.to_owned()]
        }));
        out += &columns(&rows);
    }
    let counts = [
        ("senders that ignored a limit", agent.ignored),
        ("notifications", agent.notified),
        ("refused of other hosts", agent.refused),
        ("limits without room", agent.full),
    ];
    for (what, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        let _ = writeln!(out, "  {what}: {count}");
    }
    out
}
