//! `levada show cluster`: the other hosts, and how it stands with them.

use super::{columns, micros, seconds};
use crate::api::cluster::{ClusterReply, ClusterReport, MemberReport, StoreReport};
use std::fmt::Write as _;
use time::OffsetDateTime;

/// As text.
pub fn text(reply: &ClusterReply) -> String {
    let Some(cluster) = &reply.cluster else {
        return "in no cluster; [cluster] in the configuration would make it one of several hosts\n".to_owned();
    };
    let mut out = head(cluster);
    let mut rows = vec![
        [
            "member",
            "known from",
            "at",
            "endpoints",
            "services",
            "to it",
            "from it",
            "sent",
            "unsent",
            "received",
            "untaken",
            "certificate until",
        ]
        .map(str::to_owned),
    ];
    rows.extend(cluster.members.iter().map(row));
    out += &columns(&rows);
    for member in &cluster.members {
        if let (Some(error), Some(ago)) = (&member.error, member.error_ago_ns) {
            let ago = if ago < 1_000_000_000 { micros(ago) } else { seconds(ago) };
            let _ = writeln!(out, "  {}, {ago} ago: {error}", member.name);
        }
    }
    out
}

fn head(cluster: &ClusterReport) -> String {
    let mut out = format!(
        "host {}  controller {}, members from {}\n",
        cluster.host,
        cluster.controller,
        if cluster.etcd.is_some() { "the file and etcd" } else { "the file" }
    );
    let state = if cluster.up { "up" } else { "down" };
    let _ = writeln!(out, "  listens at {} ({state})", cluster.listen);
    if let Some(error) = &cluster.error {
        let _ = writeln!(out, "  {error}");
    }
    if let Some(etcd) = &cluster.etcd {
        out += &store(etcd);
    }
    if cluster.certificate_expires_s.is_some() {
        let _ = writeln!(
            out,
            "  certificate until {}, {} until {}",
            date(cluster.certificate_expires_s),
            if cluster.authorities == 1 {
                "authority".to_owned()
            } else {
                format!("{} authorities", cluster.authorities)
            },
            date(cluster.authority_expires_s)
        );
    }
    if !cluster.refused.is_empty() {
        let all: String = cluster.refused.iter().map(|(why, count)| format!("  {why} {count}")).collect();
        let _ = writeln!(out, "  attempts refused:{all}");
    }
    out
}

fn store(etcd: &StoreReport) -> String {
    let state = if etcd.connected { "there" } else { "away" };
    let at = etcd.at.as_deref().unwrap_or("none has answered yet");
    let mut out = format!("  etcd {state} for {}: {at}, revision {}\n", seconds(etcd.since_ns), etcd.revision);
    if let Some(error) = etcd.error.as_ref().filter(|_| !etcd.connected) {
        let _ = writeln!(out, "  the last known state stays in use: {error}");
    }
    if let Some(rival) = &etcd.rival {
        let _ = writeln!(out, "  {rival}");
    }
    for contest in &etcd.contests {
        let _ = writeln!(out, "  endpoint {} is on host \"{}\" by the store", contest.endpoint, contest.holder);
    }
    for refused in &etcd.refused {
        let _ = writeln!(out, "  not used: {refused}");
    }
    let more = etcd.refusals.saturating_sub(etcd.refused.len() as u64);
    if more > 0 {
        let _ = writeln!(out, "  not used: {more} more");
    }
    out
}

fn row(member: &MemberReport) -> [String; 12] {
    let since = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), seconds);
    [
        member.name.clone(),
        member.known_from.clone() + if member.away == Some(true) { ", away" } else { "" },
        member.address.clone(),
        member.endpoints.to_string(),
        member.services.len().to_string(),
        since(member.outgoing_ns),
        since(member.incoming_ns),
        member.sent.to_string(),
        member.unsent.to_string(),
        member.received.to_string(),
        member.untaken.to_string(),
        date(member.certificate_expires_s),
    ]
}

fn date(at: Option<i64>) -> String {
    let at = at.and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
    at.map_or_else(|| "-".to_owned(), |at| at.date().to_string())
}
