//! The desk: where what clients ask for is answered. It knows the configuration that runs, and asks the worker for its numbers.

mod trace;

use crate::api::{ChangeReply, ChangeRequest, ConfigReply, ProblemReply, VERSION};
use crate::log::{Level, Log};
use crate::recipe::settle;
use crate::report::{Facts, Report};
use crate::site::Site;
use crate::worker::{Bell, Order, Snapshot};
use control::action::{apply, between};
use control::compile;
use control::config::{Config, Daemon};
use control::place::Place;
use control::problem::Problem;
use control::write;
use std::fmt;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the worker may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why something cannot be done.
#[derive(Debug)]
pub enum Fault {
    /// Not now.
    Busy(&'static str),
    /// The configuration is at another revision than the client thought.
    Conflict {
        /// The one it is at.
        revision: u64,
    },
    /// What would come out is wrong.
    Refused(Vec<Problem>),
    /// What was asked for makes no sense.
    Wrong(String),
    /// It did not work.
    Failed(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Busy(why) => write!(f, "{why}"),
            Fault::Conflict { revision } => {
                write!(f, "the configuration is at revision {revision}: look at it again, then decide anew")
            }
            Fault::Refused(_) => write!(f, "the change is refused; nothing was changed"),
            Fault::Wrong(why) | Fault::Failed(why) => write!(f, "{why}"),
        }
    }
}

/// What runs, as clients see it.
struct Running {
    config: Config,
    /// Counts changes.
    revision: u64,
    facts: Arc<Facts>,
}

/// What answers clients, from any thread.
pub struct Desk {
    running: Mutex<Running>,
    /// Held by who changes it.
    site: Mutex<Site>,
    log: Log,
    inbox: SyncSender<Order>,
    bell: Bell,
    /// The numbers' memory, used again by the next request.
    spare: Mutex<Option<Box<Snapshot>>>,
}

/// A poisoned lock is taken all the same: what it guards is replaced whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    /// The desk of the worker behind `inbox` and `bell`, which runs `config` at `site`.
    pub fn new(config: &Config, site: Site, facts: Facts, inbox: SyncSender<Order>, bell: Bell, log: Log) -> Desk {
        let running = Running { config: config.clone(), revision: 1, facts: Arc::new(facts) };
        let (running, site, spare) = (Mutex::new(running), Mutex::new(site), Mutex::new(None));
        Desk { running, site, log, inbox, bell, spare }
    }

    /// What runs, compiled.
    pub fn facts(&self) -> Arc<Facts> {
        Arc::clone(&lock(&self.running).facts)
    }

    /// What was promised, carried and dropped.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn report(&self) -> Result<Report, Fault> {
        let facts = self.facts();
        let shot = self.snapshot()?;
        let report = facts.report(&shot);
        *lock(&self.spare) = Some(shot);
        Ok(report)
    }

    /// The configuration that runs.
    pub fn config(&self) -> ConfigReply {
        let running = lock(&self.running);
        ConfigReply { version: VERSION, revision: running.revision, config: write::config(&running.config) }
    }

    /// Does actions, or says why not.
    ///
    /// # Errors
    /// See [`Fault`]; nothing was changed.
    pub fn change(&self, request: &ChangeRequest) -> Result<ChangeReply, Fault> {
        let mut site = lock(&self.site);
        let changed = {
            let running = lock(&self.running);
            let revision = running.revision;
            if request.revision.is_some_and(|wanted| wanted != revision) {
                return Err(Fault::Conflict { revision });
            }
            let changed = apply(&running.config, &request.actions).map_err(Fault::Refused)?;
            needs_restart(&running.config.daemon, &changed.config.daemon)?;
            changed
        };
        if !request.dry_run {
            for warning in &changed.warnings {
                self.log.line(Level::Warning, &format!("{}: {}", warning.key, warning.message));
            }
            self.make(&mut site, changed.config)?;
        }
        let warnings = changed.warnings.iter().map(ProblemReply::from).collect();
        let revision = lock(&self.running).revision;
        Ok(ChangeReply { version: VERSION, revision, dry_run: request.dry_run, warnings })
    }

    /// Becomes what `wanted` says. How many actions that took, and the revision now.
    ///
    /// # Errors
    /// Why not, in words; nothing was changed.
    pub fn become_what(&self, wanted: &Config) -> Result<(usize, u64), String> {
        let (actions, revision, name) = {
            let running = lock(&self.running);
            (between(&running.config, wanted), running.revision, running.config.daemon.name.clone())
        };
        if name != wanted.daemon.name {
            return Err(format!("a running daemon keeps its name \"{name}\"; restart it to have another"));
        }
        if actions.is_empty() {
            return Ok((0, revision));
        }
        let count = actions.len();
        let request = ChangeRequest { actions, revision: Some(revision), dry_run: false };
        match self.change(&request) {
            Ok(reply) => Ok((count, reply.revision)),
            Err(fault) => Err(match &fault {
                Fault::Refused(problems) => {
                    let texts = problems.iter().map(|problem| ProblemReply::from(problem).text("error"));
                    format!("{fault}{}", texts.collect::<String>())
                }
                _ => fault.to_string(),
            }),
        }
    }

    fn make(&self, site: &mut Site, config: Config) -> Result<(), Fault> {
        let mut plan = compile(&config, Some(site.plan()));
        if let Some(why) = settle(&mut plan) {
            self.log.line(Level::Warning, &why);
        }
        let facts = site.change(plan, &self.log).map_err(Fault::Failed)?;
        let mut running = lock(&self.running);
        *running = Running { config, revision: running.revision + 1, facts: Arc::new(facts) };
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<Snapshot>, Fault> {
        let into = lock(&self.spare).take().unwrap_or_default();
        let (reply, answer) = sync_channel(1);
        let order = Order::Snapshot { into, reply };
        self.inbox.try_send(order).map_err(|_| Fault::Busy("the worker is busy or has ended"))?;
        self.bell.ring();
        answer.recv_timeout(PATIENCE).map_err(|_| Fault::Busy("the worker did not answer"))
    }
}

/// Settings that a running daemon cannot change.
fn needs_restart(old: &Daemon, new: &Daemon) -> Result<(), Fault> {
    let keys =
        [("memory", old.memory_bytes != new.memory_bytes), ("socket_group", old.socket_group != new.socket_group)];
    let changed = keys.iter().filter(|(_, changed)| *changed);
    let problem = |(key, _): &(&'static str, bool)| {
        let message = format!("`{key}` cannot change while the daemon runs");
        let remedy = "restart the daemon with another file, or leave it as it is";
        let mut problem = Problem::error(Place::root().key(*key), message, remedy);
        problem.key = format!("daemon, {key}");
        problem
    };
    let problems: Vec<Problem> = changed.map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(Fault::Refused(problems)) }
}
