//! The desk: where what clients ask for is answered. It knows the configuration that runs, and asks the worker for its numbers.

mod trace;

use crate::api::{ChangeReply, ChangeRequest, ConfigReply, ProblemReply, VERSION};
use crate::report::{Facts, Report};
use crate::worker::{Bell, Order, Snapshot};
use control::action::apply;
use control::config::Config;
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

/// What runs.
struct Running {
    config: Config,
    /// Counts changes.
    revision: u64,
    facts: Arc<Facts>,
}

/// What answers clients, from any thread.
pub struct Desk {
    running: Mutex<Running>,
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
    /// The desk of a worker behind `inbox` and `bell` that runs `config`.
    pub fn new(config: Config, facts: Facts, inbox: SyncSender<Order>, bell: Bell) -> Desk {
        let running = Running { config, revision: 1, facts: Arc::new(facts) };
        Desk { running: Mutex::new(running), inbox, bell, spare: Mutex::new(None) }
    }

    /// What was promised, carried and dropped.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn report(&self) -> Result<Report, Fault> {
        let facts = Arc::clone(&lock(&self.running).facts);
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
        let running = lock(&self.running);
        let revision = running.revision;
        if request.revision.is_some_and(|wanted| wanted != revision) {
            return Err(Fault::Conflict { revision });
        }
        let changed = apply(&running.config, &request.actions).map_err(Fault::Refused)?;
        if !request.dry_run {
            return Err(Fault::Failed("this daemon can check changes, but not make them yet: restart it".to_owned()));
        }
        let warnings = changed.warnings.iter().map(ProblemReply::from).collect();
        Ok(ChangeReply { version: VERSION, revision, dry_run: true, warnings })
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
