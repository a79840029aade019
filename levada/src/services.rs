//! Services as clients see them: what `levada show services` and `levada show connections` print,
//! and how a load is told.

use crate::api::services::{BackendReport, ConnectionReport, LoadReply, LoadRequest, ReportCounts, ServiceReport};
use crate::client::{Client, Instance};
use crate::error::{Failure, print};
use crate::worker::ServiceCount;
use clap::Args;
use control::names::{POLICIES, ServiceAddress, name_of, show_mac};
use control::plan::{Plan, SwitchPlan};
use control::report::Verdict;
use datapath::service::choose::LOAD_ONE;
use datapath::service::{Backend, BackendStats, ServiceId, Shown};
use datapath::units::Instant;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

impl ReportCounts {
    /// By the names of the verdicts.
    pub fn named(&self) -> [(&'static str, u64); 7] {
        let counts = [self.taken, self.malformed, self.foreign, self.forged, self.old, self.replayed, self.too_many];
        let mut counts = counts.into_iter();
        Verdict::ALL.map(|verdict| (verdict.name(), counts.next().unwrap_or_default()))
    }
}

/// The same, counted by one thread and read by others.
#[derive(Debug, Default)]
pub struct Verdicts([AtomicU64; 7]);

impl Verdicts {
    /// One more.
    pub fn count(&self, verdict: Verdict) {
        let at = Verdict::ALL.iter().position(|one| *one == verdict);
        if let Some(counter) = at.and_then(|at| self.0.get(at)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All so far.
    pub fn counts(&self) -> ReportCounts {
        let [taken, malformed, foreign, forged, old, replayed, too_many] =
            self.0.each_ref().map(|counter| counter.load(Ordering::Relaxed));
        ReportCounts { taken, malformed, foreign, forged, old, replayed, too_many }
    }
}

/// What one switch's services are, and have counted.
pub fn of_switch(plan: &SwitchPlan, counts: &[ServiceCount]) -> Vec<ServiceReport> {
    counts.iter().filter_map(|count| of_service(plan, count)).collect()
}

/// What one service is, and has counted; `None` where a change has taken it away since.
pub fn of_service(plan: &SwitchPlan, count: &ServiceCount) -> Option<ServiceReport> {
    let (id, stats) = (count.service, &count.stats);
    let (compiled, called) = (plan.program.services.get(id.0)?, plan.services.get(id.0)?);
    let backends = count.backends.iter().filter_map(|(_, backend, stats)| {
        Some(BackendReport {
            name: name_of_backend(plan, id, backend)?,
            weight: backend.weight,
            new: stats.new,
            state: state(count.now, backend, stats).to_owned(),
            refused: stats.refused,
            silent: stats.silent,
            ended: stats.ended,
            ejections: stats.ejections,
            checks: stats.checks,
            failed_checks: stats.failed_checks,
            falls: stats.falls,
            drain_left_ns: stats.drained_at.map(|at| at.since(count.now)),
            cut: stats.cut,
            max_connections: backend.max_connections,
            busy: stats.busy,
            idle: stats.idle,
            unconfirmed: stats.unconfirmed,
            load_milli: stats.load,
        })
    });
    Some(ServiceReport {
        path: path(plan, id)?,
        addresses: compiled.addresses.iter().map(|&address| ServiceAddress(address).to_string()).collect(),
        mac: show_mac(compiled.mac),
        policy: name_of(&POLICIES, compiled.policy).to_owned(),
        new: stats.new,
        refused: stats.refused,
        full: stats.full,
        evicted: stats.evicted,
        off_candidates: stats.off_candidates,
        redirected: stats.redirected,
        sought: stats.sought,
        recovered: stats.recovered,
        unhealthy: stats.unhealthy,
        held: stats.held,
        holding: stats.holding,
        stayed: stats.stayed,
        table: count.table.0,
        table_most: count.table.1,
        backends: backends.filter(|backend| called.backends.contains(&backend.name)).collect(),
    })
}

fn state(now: Instant, backend: &Backend, stats: &BackendStats) -> &'static str {
    match backend.weight {
        0 if !stats.has_connections() || stats.drained_at.is_some_and(|at| at <= now) => "drained",
        0 => "drain",
        _ if stats.is_down => "down",
        _ if stats.ejected_until.is_some_and(|until| now < until) => "ejected",
        _ if stats.slow_until.is_some_and(|until| now < until) => "slow",
        _ => "up",
    }
}

/// `SWITCH/TENANT/SERVICE`.
pub fn path(plan: &SwitchPlan, id: ServiceId) -> Option<String> {
    let (compiled, called) = (plan.program.services.get(id.0)?, plan.services.get(id.0)?);
    Some(format!("{}/{}/{}", plan.name, plan.tenants.get(compiled.tenant.0)?, called.name))
}

/// What a backend is called.
fn name_of_backend(plan: &SwitchPlan, id: ServiceId, backend: &Backend) -> Option<String> {
    let at = plan.program.services.get(id.0)?.backends.iter().position(|one| one.is(backend))?;
    plan.services.get(id.0)?.backends.get(at).cloned()
}

/// The service of a path: its switch's number and its own.
pub fn find(plan: &Plan, wanted: &str) -> Option<(usize, ServiceId)> {
    plan.switches.iter().find_map(|(switch, one)| {
        let ids = one.program.services.iter().map(|(id, _)| ServiceId(id));
        ids.into_iter().find(|&id| path(one, id).as_deref() == Some(wanted)).map(|id| (switch as usize, id))
    })
}

/// Connections, with the names of their backends.
pub fn of_connections(
    plan: &SwitchPlan,
    id: ServiceId,
    count: Option<&ServiceCount>,
    all: &[Shown],
) -> Vec<ConnectionReport> {
    let name = |number: u8| {
        let found = count?.backends.iter().find(|(at, ..)| *at == usize::from(number))?;
        name_of_backend(plan, id, &found.1)
    };
    let report = |shown: &Shown| {
        Some(ConnectionReport {
            client: SocketAddr::new(shown.client, shown.port).to_string(),
            address: ServiceAddress(shown.address).to_string(),
            backend: name(shown.backend)?,
            asked_from: shown.asked_from,
            state: shown.state.name().to_owned(),
            busy: shown.is_busy,
            idle_ns: shown.idle_ns,
        })
    };
    all.iter().filter_map(report).collect()
}

/// `levada load`.
#[derive(Args, Debug)]
pub struct Load {
    /// The backend: SWITCH/TENANT/SERVICE/BACKEND, of a controller SERVICE/BACKEND
    pub backend: String,
    /// Its 1-minute load average, as /proc/loadavg on the server has it
    #[arg(value_parser = load)]
    pub load: u64,
    #[command(flatten)]
    pub instance: Instance,
}

/// Tells a daemon what a server's load is.
pub fn tell(load: &Load) -> Result<(), Failure> {
    let client = Client::new(load.instance.name.as_deref())?;
    let request = LoadRequest { backend: load.backend.clone(), load_milli: load.load };
    let _: LoadReply = client.post("/v1/load", &request)?;
    print("")
}

/// A load average, in thousandths.
pub fn load(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is no load average: write such as 0.53");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(part) || whole.len() > 9 {
        return Err(wrong());
    }
    let part = format!("{part:0<3}");
    let thousandths: u64 = part[..3].parse().map_err(|_| wrong())?;
    whole.parse::<u64>().map(|whole| whole * LOAD_ONE + thousandths).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verdict_is_counted_under_its_name() {
        let verdicts = Verdicts::default();
        for (times, verdict) in Verdict::ALL.into_iter().enumerate() {
            (0..=times).for_each(|_| verdicts.count(verdict));
        }
        let named = verdicts.counts().named();
        let wanted = ["taken", "malformed", "foreign", "forged", "old", "replayed", "too-many"];
        assert_eq!(named.map(|(name, _)| name), wanted);
        assert_eq!(named.map(|(_, count)| count), [1, 2, 3, 4, 5, 6, 7]);
        let json = serde_json::to_value(verdicts.counts()).unwrap();
        for (name, count) in named {
            assert_eq!(json[name.replace('-', "_")], count, "{name}");
        }
    }

    #[test]
    fn a_load_average_is_read_in_thousandths() {
        for (text, wanted) in [("0.53", 530), ("12", 12_000), ("1.2345", 1234), ("0", 0)] {
            assert_eq!(load(text), Ok(wanted));
        }
        for text in ["", ".5", "-1", "1e3", "1.-1", "9999999999"] {
            assert!(load(text).is_err(), "{text}");
        }
    }
}
