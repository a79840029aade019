//! Services in `levada top`: how many connections each got between two reports, what failed of
//! them, and which backends get none.

use crate::api::services::{BackendReport, ServiceReport, ServicesReply};
use serde::Serialize;
use std::cmp::Reverse;

/// Services that the screen has room for; JSON has all.
const SHOWN: usize = 5;

/// A service between two reports.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct ServiceRow {
    /// `SWITCH/TENANT/SERVICE`.
    pub path: String,
    /// Connections that got a backend in this time.
    pub new: u64,
    /// Connections whose client waits or whose server is sending, now.
    pub busy: u64,
    /// Other open ones.
    pub idle: u64,
    /// New connections in this time that got no backend, or for which the table had no room.
    pub refused: u64,
    /// New connections in this time that got another backend, as one refused or did not answer.
    pub redirected: u64,
    /// Its backends.
    pub backends: Vec<BackendRow>,
}

/// A backend between two reports.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct BackendRow {
    /// Its name.
    pub name: String,
    /// `up`, `slow`, `down`, `ejected`, `drain` or `drained`.
    pub state: String,
    /// Connections that it got in this time.
    pub new: u64,
    /// Its connections now, as the service's.
    pub busy: u32,
    /// See `busy`.
    pub idle: u32,
    /// Connections in this time that it refused.
    pub refused: u64,
    /// Connections in this time that it did not answer.
    pub silent: u64,
    /// How often it was ejected in this time.
    pub ejections: u64,
}

impl ServiceRow {
    /// What is worth being seen first.
    fn trouble(&self) -> (u64, usize, u64) {
        let out = self.backends.iter().filter(|backend| matches!(&*backend.state, "ejected" | "down")).count();
        (self.refused, out, self.redirected)
    }
}

/// All services, those in trouble first, then those with the most new connections. Who was not
/// there before is left out.
pub fn compare(before: &ServicesReply, now: &ServicesReply) -> Vec<ServiceRow> {
    let old = super::by_name(&before.services, |service| &service.path);
    let one = |service: &ServiceReport| {
        let old = old.get(&*service.path)?;
        let backends = super::by_name(&old.backends, |backend| &backend.name);
        let backend = |now: &BackendReport| {
            let old = backends.get(&*now.name);
            let more = |of: fn(&BackendReport) -> u64| of(now).saturating_sub(old.map_or(0, |old| of(old)));
            BackendRow {
                name: now.name.clone(),
                state: now.state.clone(),
                new: more(|backend| backend.new),
                busy: now.busy,
                idle: now.idle,
                refused: more(|backend| backend.refused),
                silent: more(|backend| backend.silent),
                ejections: more(|backend| backend.ejections),
            }
        };
        let more = |of: fn(&ServiceReport) -> u64| of(service).saturating_sub(of(old));
        Some(ServiceRow {
            path: service.path.clone(),
            new: more(|service| service.new),
            busy: service.backends.iter().map(|backend| u64::from(backend.busy)).sum(),
            idle: service.backends.iter().map(|backend| u64::from(backend.idle)).sum(),
            refused: more(|service| service.refused + service.full),
            redirected: more(|service| service.redirected),
            backends: service.backends.iter().map(backend).collect(),
        })
    };
    let mut all: Vec<ServiceRow> = now.services.iter().filter_map(one).collect();
    all.sort_by_cached_key(|row| (Reverse(row.trouble()), Reverse(row.new), row.path.clone()));
    all
}

/// The lines of the screen; `path` characters are for a name.
pub fn lines(rows: &[ServiceRow], interval_ns: u64, path: usize) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let width = path + 4;
    let head = ["new/s", "busy", "idle", "refused", "other"].map(|name| format!("{name:>8}"));
    let mut out = vec![format!("{:<width$}{} backends, new/s", "connections", head.concat())];
    for row in rows.iter().take(SHOWN) {
        let per_second = |n: u64| (u128::from(n) * 1_000_000_000 / u128::from(interval_ns.max(1))).to_string();
        let numbers = [
            per_second(row.new),
            row.busy.to_string(),
            row.idle.to_string(),
            row.refused.to_string(),
            row.redirected.to_string(),
        ];
        let numbers = numbers.map(|number| format!("{number:>8}"));
        let backends: Vec<String> = row
            .backends
            .iter()
            .map(|backend| match backend.state.as_str() {
                "up" | "slow" => format!("{} {}", backend.name, per_second(backend.new)),
                state => format!("{} {state}", backend.name),
            })
            .collect();
        out.push(format!("{:<width$}{} {}", super::tail(&row.path, path), numbers.concat(), backends.join(", ")));
    }
    if rows.len() > SHOWN {
        out.push(format!("and {} more services", rows.len() - SHOWN));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, state, new connections, ejections.
    type Server = (&'static str, &'static str, u64, u64);
    /// Path, new connections, refused ones, backends.
    type Web = (&'static str, u64, u64, &'static [Server]);

    fn reply(services: &[Web]) -> ServicesReply {
        let one = |&(path, new, refused, backends): &Web| {
            let backends: Vec<_> = backends
                .iter()
                .map(|&(name, state, new, ejections)| {
                    serde_json::json!({"name": name, "weight": 1, "new": new, "state": state, "refused": 0,
                        "silent": 0, "ejections": ejections, "busy": 2, "idle": 3, "load_milli": null})
                })
                .collect();
            serde_json::json!({"path": path, "addresses": ["10.0.0.1:80"], "policy": "p2c", "new": new,
                "refused": refused, "full": 0, "evicted": 0, "off_candidates": 0, "redirected": new / 10,
                "sought": 0, "recovered": 0, "table": 5, "table_most": 65536, "backends": backends})
        };
        let services: Vec<_> = services.iter().map(one).collect();
        serde_json::from_value(serde_json::json!({"version": 1, "services": services})).unwrap()
    }

    #[test]
    fn services_in_trouble_come_first_and_backends_without_connections_say_why() {
        let before = reply(&[
            ("s1/red/busy", 1000, 0, &[("a", "up", 600, 0), ("b", "up", 400, 0)]),
            ("s1/red/half", 10, 5, &[("a", "up", 5, 0), ("b", "up", 5, 0)]),
        ]);
        let now = reply(&[
            ("s1/red/busy", 3000, 0, &[("a", "up", 1600, 0), ("b", "up", 1400, 0)]),
            ("s1/red/half", 30, 5, &[("a", "up", 24, 0), ("b", "ejected", 6, 1), ("c", "drain", 0, 0)]),
            ("s1/red/young", 9, 9, &[]),
        ]);
        let seen = compare(&before, &now);
        assert_eq!(seen.iter().map(|row| &*row.path).collect::<Vec<_>>(), ["s1/red/half", "s1/red/busy"]);
        let half = &seen[0];
        assert_eq!((half.new, half.busy, half.idle, half.refused, half.redirected), (20, 6, 9, 0, 2));
        assert_eq!((half.backends[1].new, half.backends[1].ejections), (1, 1));
        let text = lines(&seen, 2_000_000_000, 20).join("\n");
        let wanted = "\
connections                new/s    busy    idle refused   other backends, new/s
s1/red/half                   10       6       9       0       2 a 9, b ejected, c drain
s1/red/busy                 1000       4       6       0     200 a 500, b 500";
        assert_eq!(text, wanted);
        // After a restart counters begin anew.
        assert_eq!(compare(&now, &before)[1].new, 0);
        assert!(lines(&[], 1, 20).is_empty());
        let many: Vec<ServiceRow> = (0..7).map(|_| half.clone()).collect();
        let text = lines(&many, 1, 20);
        assert_eq!((text.len(), text[6].as_str()), (7, "and 2 more services"));
    }
}
