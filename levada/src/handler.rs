//! The handler: where what clients ask for is answered. It knows the configuration that runs, and
//! asks the worker for its numbers.

mod agents;
mod bonds;
mod services;
mod tables;
mod trace;
mod vcc;

use crate::api::cluster::ClusterReply;
use crate::api::report::Report;
use crate::api::tunnels::TunnelsReply;
use crate::api::{ChangeReply, ChangeRequest, ConfigReply, ProblemReply, VERSION};
use crate::cluster::membership::{Changed, Membership};
use crate::cluster::peers::Socket;
use crate::maintenance::News;
use crate::next_hops::newly_left_out;
use crate::next_hops::report::narrow;
use crate::recipe::settle;
use crate::reconciler::Reconciler;
use crate::report::Facts;
use crate::services::Verdicts;
use crate::shortcut::{Shortcuts, Suspended};
use crate::system::door::Door;
use crate::system::log::{Level, Log};
use crate::worker::announce::{self, Announced, Whose};
use crate::worker::{Reply, Request, Snapshot, Waker, answer};
use control::action::{apply, between};
use control::compile;
use control::config::{Config, Daemon};
use control::place::Place;
use control::problem::{MOST_SHOWN, Problem, more_than_shown};
use control::write;
use ports::Survey;
use ports::netns::Netns;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the worker may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why something cannot be done.
#[derive(Debug)]
pub enum Fault {
    /// Not now.
    Busy(&'static str),
    /// There is not enough memory for it.
    Short(String),
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
                write!(
                    f,
                    "the configuration is at revision {revision}; read it again (levada show config), then repeat the change"
                )
            }
            Fault::Refused(problems) => {
                write!(f, "the change is refused; nothing was changed")?;
                more_than_shown(problems).map_or(Ok(()), |more| write!(f, "; {more}"))
            }
            Fault::Short(why) | Fault::Wrong(why) | Fault::Failed(why) => write!(f, "{why}"),
        }
    }
}

impl Fault {
    /// With all that is wrong, for the log.
    pub fn in_full(&self) -> String {
        let Fault::Refused(problems) = self else { return self.to_string() };
        let texts = problems.iter().take(MOST_SHOWN).map(|problem| ProblemReply::from(problem).text("error"));
        format!("{self}{}", texts.collect::<String>())
    }
}

/// What runs, as clients see it.
struct Running {
    config: Arc<Config>,
    /// Counts changes, from a number that no process before has given: see [`first_revision`].
    revision: u64,
    facts: Arc<Facts>,
}

/// What answers clients, from any thread.
pub struct Handler {
    running: Mutex<Running>,
    /// Rung when that has become another.
    changed: Condvar,
    /// What became of load reports.
    verdicts: Verdicts,
    /// Held by who changes it.
    reconciler: Mutex<Reconciler>,
    shortcuts: Shortcuts,
    log: Log,
    inbox: SyncSender<Request>,
    waker: Waker,
    /// The numbers' memory, used again by the next request.
    spare: Mutex<Option<Box<Snapshot>>>,
    /// Who may look.
    door: Arc<Door>,
    /// The other hosts.
    membership: Membership,
    /// The endpoints that other hosts were told are here.
    announced: Mutex<Announced>,
    /// Rung when some are to be told of again.
    herald: Condvar,
    /// Another process has been told what runs, and will not hear of changes.
    is_given: AtomicBool,
}

/// How long nothing is looked at where nothing is to be announced again; what comes rings.
const AT_REST: Duration = Duration::from_secs(3600);

/// The revision of a process that starts now: the clock's milliseconds. Who has read that of a
/// process before does not change by it what this one runs: a change takes longer than a
/// millisecond. 2^53, beyond which readers of JSON round, is far.
fn first_revision(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 52)
}

/// A poisoned lock is taken all the same: what it guards is replaced whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handler {
    /// The handler of the worker behind `inbox` and `waker`, which runs `config` at `reconciler`.
    /// `changed` is called when other hosts come, go or have something else:
    /// [`Handler::follow_others`] is to be called then. Those reach this one at `socket`.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        config: &Config,
        reconciler: Reconciler,
        facts: Facts,
        inbox: SyncSender<Request>,
        waker: Waker,
        log: Log,
        door: Arc<Door>,
        socket: Socket,
        changed: Changed,
    ) -> Handler {
        let revision = first_revision(SystemTime::now());
        let running = Running { config: Arc::new(config.clone()), revision, facts: Arc::new(facts) };
        let shortcuts = reconciler.shortcuts();
        let (running, reconciler, spare) = (Mutex::new(running), Mutex::new(reconciler), Mutex::new(None));
        let (ears, ring) = (inbox.clone(), waker.clone());
        let membership = Membership::new(
            log.clone(),
            socket,
            Arc::new(move |from, datagram| {
                let taken = ears.try_send(Request::Heard { from: from.into(), datagram: datagram.to_vec() }).is_ok();
                ring.ring();
                taken
            }),
            changed,
        );
        Handler {
            running,
            changed: Condvar::new(),
            verdicts: Verdicts::default(),
            reconciler,
            shortcuts,
            log,
            inbox,
            waker,
            spare,
            door,
            membership,
            announced: Mutex::default(),
            herald: Condvar::new(),
            is_given: AtomicBool::new(false),
        }
    }

    /// What runs, compiled.
    pub fn facts(&self) -> Arc<Facts> {
        Arc::clone(&lock(&self.running).facts)
    }

    /// Its revision.
    pub fn revision(&self) -> u64 {
        self.running().1
    }

    /// Goes on behind the revision of a process that it takes over from.
    pub fn follow_revision(&self, last: u64) {
        let mut running = lock(&self.running);
        running.revision = running.revision.max(last.saturating_add(1));
    }

    /// The configuration that runs, and its revision. Nobody waits meanwhile for who works on it.
    fn running(&self) -> (Arc<Config>, u64) {
        let running = lock(&self.running);
        (Arc::clone(&running.config), running.revision)
    }

    /// The configuration that runs: at once where it is not `known`, else when it has become
    /// another, or after so long; `None` for however long that takes.
    pub fn wait_for_config(&self, known: Option<&Arc<Config>>, most: Option<Duration>) -> Arc<Config> {
        let running = lock(&self.running);
        let is_known = |running: &mut Running| known.is_some_and(|known| Arc::ptr_eq(known, &running.config));
        let running = match most {
            _ if known.is_none() => running,
            None => self.changed.wait_while(running, is_known).unwrap_or_else(PoisonError::into_inner),
            Some(most) => {
                let waited = self.changed.wait_timeout_while(running, most, is_known);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        Arc::clone(&running.config)
    }

    /// What was promised, carried and dropped.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn report(&self) -> Result<Report, Fault> {
        let facts = self.facts();
        let shot = self.snapshot(&facts)?;
        let report = facts.report(&shot);
        *lock(&self.spare) = Some(shot);
        Ok(report)
    }

    /// The tunnels to other hosts.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn tunnels(&self) -> Result<TunnelsReply, Fault> {
        let facts = self.facts();
        let shot = self.snapshot(&facts)?;
        let mut switches = facts.tunnels.clone();
        let paths = facts.plan.switches.iter().filter_map(|(id, switch)| {
            Some((switch.name.as_str(), shot.switches.get(id as usize)?.narrow_paths.as_slice()))
        });
        narrow(&mut switches, &paths.collect());
        *lock(&self.spare) = Some(shot);
        Ok(TunnelsReply { version: VERSION, switches })
    }

    /// What is known of the cluster.
    pub fn cluster(&self) -> ClusterReply {
        self.membership.report()
    }

    /// Speaks with the other hosts from now on, if there are any.
    pub fn join_others(&self) {
        let (config, _) = self.running();
        self.membership.follow(&config);
        // A worker that has ended needs none.
        let _ = self.inbox.send(Request::Voice(self.membership.voice()));
        self.announce();
        self.waker.ring();
    }

    /// Says for endpoints that have come here that they have.
    fn announce(&self) {
        let mut here = announce::faces(&self.facts().plan);
        // An endpoint moves only between hosts of a cluster; a service may have been anybody's.
        here.retain(|(tenant, mac, _), (_, whose)| {
            matches!(whose, Whose::Service(_)) || self.membership.holds(tenant, *mac).unwrap_or(false)
        });
        lock(&self.announced).say(&here, Instant::now(), |mac, (switch, whose)| {
            let request = match whose {
                Whose::Endpoint(port) => Request::Speak { switch, port, bytes: announce::frame(mac) },
                Whose::Service(service) => Request::Announce { switch, service },
            };
            self.inbox.try_send(request).is_ok()
        });
        self.herald.notify_one();
    }

    /// Says again, for as long as the daemon runs, what is to be said again.
    pub fn herald(&self) {
        loop {
            let announced = lock(&self.announced);
            let wait = announced.next().map_or(AT_REST, |next| next.saturating_duration_since(Instant::now()));
            if !wait.is_zero() {
                // Whether it has come to something or not is looked at again.
                drop(self.herald.wait_timeout(announced, wait));
                continue;
            }
            drop(announced);
            self.announce();
            self.waker.ring();
        }
    }

    /// The socket on which they reach this host, for another process.
    pub fn lend_socket(&self) -> Option<OwnedFd> {
        self.membership.lend()
    }

    /// Says nothing more to them, until [`Handler::speak_again`].
    pub fn fall_silent(&self) {
        self.membership.fall_silent();
    }

    /// Speaks with them again.
    pub fn speak_again(&self) {
        self.membership.speak_again();
        self.join_others();
    }

    /// Says goodbye to them, unless another process is this host from now on.
    pub fn leave_others(&self, is_given_away: bool) {
        self.membership.leave(is_given_away);
    }

    /// The configuration that runs.
    pub fn config(&self) -> ConfigReply {
        let (config, revision) = self.running();
        ConfigReply { version: VERSION, revision, config: write::config(&config) }
    }

    /// Refuses changes from now on, or does not any more: a process that takes over has read its
    /// file, and what clients change meanwhile would be lost with this one.
    pub fn give(&self, is_given: bool) {
        self.is_given.store(is_given, Ordering::Release);
    }

    /// Does actions, or says why not.
    ///
    /// # Errors
    /// See [`Fault`]; nothing was changed.
    pub fn change(&self, request: &ChangeRequest) -> Result<ChangeReply, Fault> {
        self.change_with(request, Vec::new())
    }

    /// The same, with descriptors of the namespaces that the request names.
    ///
    /// # Errors
    /// See [`Fault`]; nothing was changed.
    pub fn change_with(&self, request: &ChangeRequest, descriptors: Vec<OwnedFd>) -> Result<ChangeReply, Fault> {
        if !request.dry_run && self.is_given.load(Ordering::Acquire) {
            return Err(Fault::Busy("a takeover runs; try again when it has ended"));
        }
        let passed = request.namespaces.iter().zip(descriptors);
        let passed = passed.map(|(path, descriptor)| {
            Netns::passed(path, descriptor).map_err(|error| Fault::Wrong(format!("namespace {path:?}: {error}")))
        });
        let passed = Survey::with_passed(passed.collect::<Result<_, _>>()?);
        let mut reconciler = lock(&self.reconciler);
        let (config, revision) = self.running();
        if request.revision.is_some_and(|wanted| wanted != revision) {
            return Err(Fault::Conflict { revision });
        }
        let changed = apply(&config, &request.actions).map_err(Fault::Refused)?;
        let group =
            group(&changed.config.daemon).map_err(|(what, remedy)| daemon_problem("socket_group", &what, &remedy))?;
        self.may_be_active(&changed.active)?;
        if !request.dry_run {
            for warning in changed.warnings.iter().take(MOST_SHOWN) {
                self.log.line(Level::Warning, &format!("{}: {}", warning.key, warning.message));
            }
            self.make(&mut reconciler, Arc::new(changed.config), group, 1, passed)?;
            self.make_active(&changed.active)?;
        }
        let warnings = changed.warnings.iter().take(MOST_SHOWN).map(ProblemReply::from).collect();
        let revision = lock(&self.running).revision;
        Ok(ChangeReply { version: VERSION, revision, dry_run: request.dry_run, warnings })
    }

    /// Becomes what `wanted` says. How many actions that took, and the revision now.
    ///
    /// # Errors
    /// Why not, in words; nothing was changed.
    pub fn become_what(&self, wanted: &Config) -> Result<(usize, u64), String> {
        let (config, revision) = self.running();
        let (actions, name) = (between(&config, wanted), &config.daemon.name);
        if *name != wanted.daemon.name {
            return Err(format!(
                "a running daemon keeps its name \"{name}\"; restore [daemon] name, or restart the daemon"
            ));
        }
        if actions.is_empty() {
            // Certificates may have changed.
            self.join_others();
            return Ok((0, revision));
        }
        let count = actions.len();
        let request = ChangeRequest { actions, revision: Some(revision), ..ChangeRequest::default() };
        match self.change(&request) {
            Ok(reply) => Ok((count, reply.revision)),
            Err(fault) => Err(fault.in_full()),
        }
    }

    /// Follows what has changed outside; `again`: also what could not be applied before.
    ///
    /// # Errors
    /// Why it cannot be applied, in words: it is to be tried again.
    pub fn follow(&self, all: &[News], again: bool) -> Result<(), String> {
        let mut reconciler = lock(&self.reconciler);
        let mut differs = again;
        for news in all {
            differs |= match news {
                News::Interface(seen) => reconciler.learn(seen),
                News::NextHops(switch, hops) => reconciler.learn_hops(*switch, hops),
                News::Guest { device, features } => reconciler.learn_guest(*device, *features),
            };
        }
        let mut made = Ok(());
        if differs {
            let (config, _) = self.running();
            made = self.make(&mut reconciler, config, self.door.group(), 0, Survey::default());
        }
        let interfaces = all.iter().filter_map(|news| match news {
            News::Interface(seen) => Some(seen.device),
            News::NextHops(..) | News::Guest { .. } => None,
        });
        for device in interfaces.collect::<BTreeSet<_>>() {
            reconciler.renew_shortcut(device, &self.log);
        }
        made.map_err(|fault| format!("a change of interfaces or routes cannot be applied: {fault}"))
    }

    /// Follows what the store says of other hosts.
    ///
    /// # Errors
    /// Why it cannot be applied, in words: it is to be tried again.
    pub fn follow_others(&self) -> Result<(), String> {
        let mut reconciler = lock(&self.reconciler);
        let (config, _) = self.running();
        let made = self.make(&mut reconciler, config, self.door.group(), 0, Survey::default());
        made.map_err(|fault| format!("a change of other hosts cannot be applied: {fault}"))
    }

    /// Becomes what `config` says at this time; it is so many revisions further.
    fn make(
        &self,
        reconciler: &mut Reconciler,
        config: Arc<Config>,
        group: Option<u32>,
        revisions: u64,
        passed: Survey,
    ) -> Result<(), Fault> {
        let mut plan = compile(&self.membership.complete(&config), Some(reconciler.plan()));
        if let Some(why) = settle(&mut plan, Some(reconciler.plan())) {
            self.log.line(Level::Warning, &why);
        }
        for what in newly_left_out(&plan, reconciler.plan()) {
            self.log.line(Level::Warning, &what);
        }
        let before = self.door.group();
        let admit = |group| if self.door.group() == group { Ok(()) } else { self.door.admit(group) };
        let facts = admit(group)
            .map_err(|error| format!("the control socket cannot get its group: {error}; correct [daemon] socket_group"))
            .and_then(|()| reconciler.change(plan, passed, &self.log));
        let (facts, but) = facts.map_err(|why| {
            // It was so before.
            let _ = admit(before);
            Fault::Failed(why)
        })?;
        let mut running = lock(&self.running);
        *running = Running { config, revision: running.revision + revisions, facts: Arc::new(facts) };
        drop(running);
        self.changed.notify_all();
        self.join_others();
        but.map_or(Ok(()), |why| Err(Fault::Failed(why)))
    }

    /// The run directory is this process's: what the next one is to know is written down there.
    pub fn settle_in(&self) {
        lock(&self.reconciler).note_processes(&[]);
    }

    /// The worker runs: frames may go past its switches.
    pub fn begin_shortcuts(&self) {
        lock(&self.reconciler).put_in_shortcuts(&self.log);
    }

    /// See [`Reconciler::lines`].
    pub fn lines(&self) -> BTreeMap<String, u64> {
        lock(&self.reconciler).lines()
    }

    /// No frames go past the switches any more, and those that did are counted.
    pub fn suspend_shortcuts(&self) -> Suspended {
        let suspended = self.shortcuts.suspend();
        self.tell_shortcuts();
        suspended
    }

    fn tell_shortcuts(&self) {
        self.shortcuts.tell(|news| self.inbox.try_send(Request::Passed(news)).is_ok());
    }

    fn snapshot(&self, facts: &Facts) -> Result<Box<Snapshot>, Fault> {
        self.tell_shortcuts();
        let mut into = lock(&self.spare).take().unwrap_or_default();
        into.make_room(&facts.plan);
        self.ask(|reply| Request::Snapshot { into, reply })
    }

    /// What the worker answers to a request.
    fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Fault> {
        let (reply, answer) = answer();
        self.request(request(reply))?;
        answer.wait(PATIENCE).ok_or(Fault::Busy("the worker did not answer in time; try again, and see the log"))
    }
}

/// The number of the group that may look at the daemon.
///
/// # Errors
/// What is wrong, and what helps.
pub fn group(daemon: &Daemon) -> Result<Option<u32>, (String, String)> {
    let Some(name) = &daemon.socket_group else { return Ok(None) };
    match ports::group::number(name) {
        Ok(Some(number)) => Ok(Some(number)),
        Ok(None) => Err((
            format!("there is no group \"{name}\""),
            format!("make it (groupadd {name}), or correct [daemon] socket_group"),
        )),
        Err(error) => Err((format!("cannot read the system's groups: {error}"), "give the group's number".to_owned())),
    }
}

fn daemon_problem(key: &'static str, message: &str, remedy: &str) -> Fault {
    let mut problem = Problem::error(Place::root().key(key), message, remedy);
    problem.key = format!("daemon, {key}");
    Fault::Refused(vec![problem])
}
