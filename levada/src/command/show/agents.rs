//! `levada show agents`: whom the agents of this daemon limit, by whom its own senders are limited,
//! and who does not keep to it.

use super::columns;
use crate::api::agents::{AgentReport, AgentsReply};
use control::units::show_rate;
use datapath::units::Rate;
use std::fmt::Write as _;

/// Hosts that are named with what was refused of them: those of which most was.
const MOST_REFUSED: usize = 8;

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
        ("limits without room", agent.full),
        ("refused of other hosts", agent.refused),
    ];
    for (what, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        let _ = writeln!(out, "  {what}: {count}");
    }
    let mut peers: Vec<_> = agent.peers.iter().filter(|peer| peer.refused > 0).collect();
    peers.sort_by_key(|peer| std::cmp::Reverse(peer.refused));
    for peer in peers.iter().take(MOST_REFUSED) {
        let _ = writeln!(out, "    of host {}: {}", peer.host, peer.refused);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_whom_most_was_refused_is_named() {
        let peer = |n: u64| serde_json::json!({"host": format!("h{n}"), "sent": 1, "heard": 1, "refused": n});
        let agent = serde_json::json!({
            "switch": "s1", "host": "h99", "contended": false, "flood": false, "arriving_bps": 0, "limits": [], "limited": [],
            "releases": 0, "ignored": 0, "notified": 0, "refused": 66, "full": 0, "peers": (0..12).map(peer).collect::<Vec<_>>(),
        });
        let shown = text(&AgentsReply { version: 1, agents: vec![serde_json::from_value(agent).unwrap()] });
        let (_, refused) = shown.split_once("  refused of other hosts: 66\n").unwrap();
        let hosts: Vec<&str> = refused.lines().collect();
        assert_eq!((hosts.len(), hosts[0], hosts[7]), (8, "    of host h11: 11", "    of host h4: 4"));
    }
}
