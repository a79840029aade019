//! Alarms of services: backends that get no new connections since they fail, and new connections
//! for which the table has no room. Reports come in, one of each service at each look; what has
//! changed since the last one comes out.

use super::LogLine;
use super::flaps::{FlapChange, Flaps, WINDOW};
use crate::api::services::{BackendReport, ServiceReport};
use crate::system::log::Level;
use control::plan::Plan;
use datapath::service::ServiceId;
use std::collections::BTreeMap;
use std::time::Instant;

/// What is known of the services of all switches, by the numbers of switch and service.
#[derive(Default)]
pub struct ServiceAlarms(BTreeMap<(u32, ServiceId), Service>);

struct Service {
    /// At its number there may be another one by now.
    path: String,
    /// New connections without room, at the last look.
    full: u64,
    /// When there were some last, until that is over.
    full_at: Option<Instant>,
    /// By name, those that fail, or did lately.
    backends: BTreeMap<String, Backend>,
}

#[derive(Default)]
struct Backend {
    /// Why it gets no new connections, and since when it gets none.
    trouble: Option<(Trouble, Instant)>,
    flaps: Flaps,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    Down,
    Ejected,
}

impl Trouble {
    /// By the word that reports have. What the operator drains is no trouble.
    fn of(state: &str) -> Option<Trouble> {
        match state {
            "down" => Some(Trouble::Down),
            "ejected" => Some(Trouble::Ejected),
            _ => None,
        }
    }
}

impl ServiceAlarms {
    /// Forgets services that are gone.
    pub fn keep(&mut self, plan: &Plan) {
        let is_there = |&(switch, service): &(u32, ServiceId)| {
            plan.switches.get(switch).is_some_and(|of| of.services.get(service.0).is_some())
        };
        self.0.retain(|at, _| is_there(at));
    }

    /// What a service is like now, and what there is to be said of that.
    pub fn look(&mut self, now: Instant, at: (u32, ServiceId), report: &ServiceReport) -> Vec<LogLine> {
        let known = self.0.entry(at).or_insert_with(|| Service::new(report));
        if known.path != report.path {
            *known = Service::new(report);
        }
        let mut lines: Vec<LogLine> = known.room(now, report).into_iter().collect();
        let mut before = std::mem::take(&mut known.backends);
        for backend in &report.backends {
            let mut one = before.remove(&backend.name).unwrap_or_default();
            lines.extend(one.look(now, &report.path, backend));
            if one.trouble.is_some() || !one.flaps.is_calm() {
                known.backends.insert(backend.name.clone(), one);
            }
        }
        lines
    }
}

impl Service {
    fn new(report: &ServiceReport) -> Service {
        Service { path: report.path.clone(), full: report.full, full_at: None, backends: BTreeMap::new() }
    }

    /// Whether new connections find room.
    fn room(&mut self, now: Instant, report: &ServiceReport) -> Option<LogLine> {
        let ServiceReport { path, full, table, table_most, .. } = report;
        let count = full.saturating_sub(std::mem::replace(&mut self.full, *full));
        if count > 0 {
            let is_new = self.full_at.replace(now).is_none();
            return is_new.then(|| {
                let text = format!(
                    "service {path}: {count} new connections found no room; the switch has {table} of {table_most}, and each tenant and client its part of them; levada show connections {path} lists them, and a larger `connections` of the switch makes room"
                );
                (Level::Warning, text)
            });
        }
        self.full_at.take_if(|at| now - *at >= WINDOW)?;
        Some((Level::Info, format!("service {path}: new connections find room again")))
    }
}

impl Backend {
    fn look(&mut self, now: Instant, service: &str, report: &BackendReport) -> Vec<LogLine> {
        let name = format!("backend {service}/{}", report.name);
        let (before, is) = (self.trouble, Trouble::of(&report.state));
        self.trouble = is.map(|is| (is, before.map_or(now, |(_, since)| since)));
        if before.is_none() && is.is_some() {
            self.flaps.fail(now);
        }
        let mut lines = Vec::new();
        if before.map(|(was, _)| was) != is && !self.flaps.is_on() {
            let BackendReport { refused, silent, .. } = report;
            lines.push(match (is, before) {
                (Some(Trouble::Down), _) => (Level::Warning, format!("{name} is down: its health checks fail")),
                (Some(Trouble::Ejected), _) => (
                    Level::Warning,
                    format!(
                        "{name} is ejected for some time, as new connections failed one after the other; so far it refused {refused} and did not answer {silent}"
                    ),
                ),
                (None, Some((_, since))) if report.weight > 0 => {
                    (Level::Info, format!("{name} is up again, after {} s", (now - since).as_secs()))
                }
                (None, _) => (Level::Info, format!("{name} is drained")),
            });
        }
        match self.flaps.turn(now) {
            Some(FlapChange::Begins(count)) => {
                let text = format!(
                    "{name} flaps: it has failed {count} times in a minute; look at its server, or take it out: levada set backend {service}/{} drain=true",
                    report.name
                );
                lines.push((Level::Warning, text));
            }
            Some(FlapChange::Ends) => {
                lines.push((Level::Info, format!("{name} flaps no more: its state is {}", report.state)));
            }
            None => {}
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const AT: (u32, ServiceId) = (0, ServiceId(0));

    struct Watch {
        alarms: ServiceAlarms,
        begin: Instant,
        report: ServiceReport,
    }

    impl Watch {
        fn new() -> Watch {
            let backend = |name: &str| BackendReport { name: name.to_owned(), weight: 1, ..BackendReport::default() };
            let backends = vec![backend("web1"), backend("web2")];
            let path = "s1/red/web".to_owned();
            let report = ServiceReport { path, table: 9, table_most: 10, backends, ..ServiceReport::default() };
            let mut watch = Watch { alarms: ServiceAlarms::default(), begin: Instant::now(), report };
            assert_eq!(watch.states(0, ["up", "up"]), [""; 0]);
            watch
        }

        /// What is said at a look; warnings with `!`.
        fn look(&mut self, seconds: u64) -> Vec<String> {
            let lines = self.alarms.look(self.begin + Duration::from_secs(seconds), AT, &self.report);
            let text = |(level, text)| format!("{}{text}", if level == Level::Warning { "! " } else { "" });
            lines.into_iter().map(text).collect()
        }

        fn states(&mut self, seconds: u64, states: [&str; 2]) -> Vec<String> {
            self.report.backends.iter_mut().zip(states).for_each(|(one, state)| one.state = state.to_owned());
            self.look(seconds)
        }
    }

    #[test]
    fn that_a_backend_fails_is_said_once_and_when_it_is_over() {
        let mut watch = Watch::new();
        let down = ["! backend s1/red/web/web1 is down: its health checks fail"];
        assert_eq!(watch.states(1, ["down", "up"]), down);
        assert_eq!(watch.look(2), [""; 0]);
        (watch.report.backends[1].refused, watch.report.backends[1].silent) = (4, 1);
        let said = watch.states(3, ["down", "ejected"]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("! backend s1/red/web/web2 is ejected for some time"), "{said:?}");
        assert!(said[0].ends_with("so far it refused 4 and did not answer 1"), "{said:?}");
        assert_eq!(watch.states(13, ["slow", "ejected"]), ["backend s1/red/web/web1 is up again, after 12 s"]);
        let down = ["! backend s1/red/web/web2 is down: its health checks fail"];
        assert_eq!(watch.states(14, ["up", "down"]), down, "for another reason");
        assert_eq!(watch.states(15, ["up", "up"]), ["backend s1/red/web/web2 is up again, after 12 s"]);
        watch.look(80);
        assert!(watch.alarms.0[&AT].backends.is_empty(), "nothing is left of it");
    }

    /// As in the process behind a takeover.
    #[test]
    fn what_fails_at_the_first_look_is_said() {
        let mut watch = Watch::new();
        watch.alarms = ServiceAlarms::default();
        assert_eq!(watch.states(0, ["up", "down"]), ["! backend s1/red/web/web2 is down: its health checks fail"]);
    }

    #[test]
    fn what_the_operator_drains_does_not_fail() {
        let mut watch = Watch::new();
        for seconds in 1..10 {
            assert_eq!(watch.states(seconds, [["drain", "up"], ["drained", "up"]][seconds as usize % 2]), [""; 0]);
        }
        watch.states(10, ["down", "up"]);
        watch.report.backends[0].weight = 0;
        assert_eq!(watch.states(11, ["drained", "up"]), ["backend s1/red/web/web1 is drained"]);
    }

    #[test]
    fn a_backend_that_flaps_is_named_once_and_its_last_state_when_it_is_over() {
        let mut watch = Watch::new();
        for seconds in [1, 3] {
            assert_eq!(watch.states(seconds, ["down", "up"]).len(), 1);
            assert_eq!(watch.states(seconds + 1, ["up", "up"]).len(), 1);
        }
        let said = watch.states(5, ["down", "up"]);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[1].starts_with("! backend s1/red/web/web1 flaps: it has failed 3 times"), "{said:?}");
        assert!(said[1].ends_with("levada set backend s1/red/web/web1 drain=true"), "{said:?}");
        for seconds in (6..1000).step_by(2) {
            assert_eq!(watch.states(seconds, ["up", "up"]), [""; 0]);
            assert_eq!(watch.states(seconds + 1, ["down", "up"]), [""; 0]);
        }
        assert_eq!(watch.look(1058), [""; 0]);
        assert_eq!(watch.look(1059), ["backend s1/red/web/web1 flaps no more: its state is down"]);
        assert_eq!(watch.states(1060, ["up", "up"]), ["backend s1/red/web/web1 is up again, after 61 s"]);
    }

    #[test]
    fn that_there_is_no_room_is_said_once_and_when_it_is_over() {
        let mut watch = Watch::new();
        watch.report.full = 7;
        let said = watch.look(1);
        let wanted = "! service s1/red/web: 7 new connections found no room; the switch has 9 of 10,";
        assert!(said.len() == 1 && said[0].starts_with(wanted), "{said:?}");
        for seconds in 2..100 {
            watch.report.full += 5;
            assert_eq!(watch.look(seconds), [""; 0]);
        }
        assert_eq!(watch.look(158), [""; 0]);
        assert_eq!(watch.look(159), ["service s1/red/web: new connections find room again"]);
        assert_eq!(watch.look(160), [""; 0]);
        // Another service at that number, with counts of its own.
        (watch.report.path, watch.report.full) = ("s1/red/new".to_owned(), 10_000);
        assert_eq!(watch.look(161), [""; 0]);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut watch = Watch::new();
        watch.states(1, ["down", "up"]);
        watch.report.backends.remove(0);
        assert_eq!(watch.look(2), [""; 0]);
        assert!(watch.alarms.0[&AT].backends.is_empty());
        watch.alarms.keep(&control::load("[daemon]\nname = \"t\"\n[[switch]]\nname = \"s1\"\n").plan.unwrap());
        assert!(watch.alarms.0.is_empty());
    }
}
