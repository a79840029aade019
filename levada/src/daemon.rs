//! `levada run`: opens what the plan names, starts the threads, waits for a signal, and leaves
//! nothing behind.
//!
//! | thread | does |
//! |---|---|
//! | main | starts and ends the others, does what signals ask for |
//! | `levada-signals` | waits for signals, and sees to it that the process ends (`ending`) |
//! | `levada-log` | writes what the others say (`log`) |
//! | `levada-worker` | moves every frame (`worker`) |
//! | `levada-maint` | closes and opens devices, logs (`maintenance`) |
//! | `levada-changes` | changes what runs, for whoever wants that (`changes`, `handler`, `reconciler`) |
//! | `levada-news` | brings what maintenance saw change |
//! | `levada-door`, `levada-handover` | another process that takes over, and what is lent to it (`handover`) |
//! | `levada-http`, `levada-clerk` | the control socket (`http`), and what its clients ask for (`handler`) |
//! | `levada-vde` | lets clients into VDE directories (`vde_server`) |
//! | `levada-closing` | closes what front ends have sent |
//! | `levada-vhost` | talks with front ends of machines (`front_ends`), where there are any |
//! | `levada-links` | is told of carriers of bonds' members (`carriers`) |
//! | `levada-routes` | is told of the host's routes and neighbours (`next_hops`), where there are tunnels |
//! | `levada-peers` | speaks with other hosts (`peers`), where there is a cluster |
//! | `levada-store` | asks an etcd for them (`directory`), where there is one |
//! | `levada-others` | brings what that has said |
//! | `levada-reports` | takes servers' load reports (`reports`) |
//! | `levada-herald` | says again what is to be said again, as where services are |
//! | `levada-ending` | ends the process by force where it does not end (`ending`) |
//! | `levada-watchdog` | tells systemd that the worker answers (`notify`), where it wants to know |
//!
//! What each may do, `privileges` says.

mod staged;

use crate::changes::{self, Changes};
use crate::cluster::peers::Socket;
use crate::error::Failure;
use crate::guests::front_ends::FrontEnds;
use crate::guests::vde_server::VdeServer;
use crate::handler::{self, Fault, Handler};
use crate::handover::early::Early;
use crate::handover::state::State;
use crate::handover::{DECISION, Outcome, TakeoverClient, TakeoverServer, TakeoverState, monotonic_ns};
use crate::http;
use crate::maintenance::Maintenance;
use crate::notify::{self, Notifier, Watch};
use crate::processes::{PROCESSES, Processes};
use crate::recipe::{Recipe, settle};
use crate::reconciler::{self, Beginning, Earlier, Reconciler};
use crate::report::whereabouts::Sights;
use crate::rundir::{self, HANDOVER, RunDir, SOCKET, Taken};
use crate::system::ending::{self, Asked};
use crate::system::log::{Format, Level, Log};
use crate::system::memory::Memory;
use crate::system::os::{self, Signal, Signals};
use crate::system::pace::{Pace, gathered};
use crate::system::privileges::{self, Duty, confine};
use crate::worker::{Clock, Lent, Parts, Request, Stalls, Task, Wake, Waker, Worker};
use crate::{check, reports};
use control::config::Config;
use control::plan::{Plan, PortKind};
use control::units::show_count;
use datapath::frame::{MAX_FRAME, Pool};
use ports::netns::{self, Netns};
use ports::{Inherited, Survey, veth};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use staged::Staged;
use std::collections::BTreeSet;
use std::io;
use std::iter;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Orders that wait for the worker at most: among them what other hosts say at once, 256 datagrams
/// each.
const ORDERS: usize = 1024;
/// Tasks that wait for maintenance at most; events beyond are not logged.
const CHORES: usize = 256;
/// Buffers made and touched before the first frame comes: a page fault costs as much as a frame
/// (2.9 us). The pool makes the rest when they are first needed. 0.5 MiB, 0.5 MiB and 2 MiB.
const WARM_SMALL: usize = 256;
/// See [`WARM_SMALL`].
const WARM_MEDIUM: usize = 32;
/// See [`WARM_SMALL`].
const WARM_LARGE: usize = 32;
/// Between two changes of what others have, which come in crowds when a cluster starts.
const BETWEEN: Duration = Duration::from_millis(50);
/// The same where they do not end: a key in the store that flips.
const LONGEST_BETWEEN: Duration = Duration::from_secs(2);
/// How long the worker may take to end, which closes the devices: of a tap, the kernel takes
/// milliseconds.
const CLOSING: Duration = Duration::from_secs(30);
/// How long another thread may take to end.
const STOPPING: Duration = Duration::from_secs(3);
/// How long the worker may take to lend its devices when the daemon ends.
const LENDING: Duration = Duration::from_secs(1);
/// How long one that starts waits for who has the run directory and does not answer.
const SILENCE: Duration = Duration::from_secs(5);
/// Bytes of a page.
const PAGE: usize = 4096;

/// What a daemon begins with.
#[derive(Default)]
struct Inheritance {
    /// Descriptors of devices that an earlier process opened.
    descriptors: Vec<Inherited>,
    /// Namespaces without a name, where persistent devices may be.
    elsewhere: Vec<Netns>,
    /// The process that runs, to be taken over from.
    takeover_client: Option<TakeoverClient>,
}

/// Why a daemon ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// A signal, or the worker's own end.
    Stop,
    /// Another process has its work.
    GivenAway,
}

/// Runs the configuration in `file` until a signal ends it. With `takeover`, takes the work from
/// the process that runs the instance.
pub fn run(file: &Path, takeover: bool, format: Format) -> Result<(), Failure> {
    let (count, names) = notify::inherited();
    let stored = os::take_descriptors(count);
    os::raise_open_files();
    let (checked, warnings) = check::load(file)?;
    let mut plan = checked.plan.ok_or_else(|| {
        Failure::Failed(format!("{} has errors; run levada check {}", file.display(), file.display()))
    })?;
    let log = Log::new(&plan.name, format);
    let _last_words = log.last_words();
    complain(&log, &warnings);
    if let Some(why) = settle(&mut plan, None) {
        log.line(Level::Warning, &why);
    }
    // Before any other thread, so that all of them leave the signals to this one.
    let signals = Signals::block().map_err(failed("cannot receive signals"))?;
    let elsewhere = if takeover { Vec::new() } else { places_without_name(&plan) };
    for warning in privileges::begin(privileges::looks_at_processes(&plan)) {
        log.line(Level::Warning, &warning);
    }
    log.begin().map_err(failed("cannot start a thread (see ulimit -u and TasksMax=)"))?;
    let mut asked = Asked::of(signals, log.clone()).map_err(failed("cannot receive signals"))?;
    let notifier = Notifier::from_environment();
    let (mut rundir, inheritance) = if takeover {
        inherit(&plan.name)?
    } else {
        let mut rundir = take_rundir(&plan.name, &asked)?;
        // Also where this start fails: another may follow.
        rundir.keep(notifier.is_there() || has_persistent(&plan));
        for why in rundir.remove_directories().into_iter().filter_map(Result::err) {
            log.line(
                Level::Warning,
                &format!("a file of a killed process cannot be removed: {why}; remove it by hand"),
            );
        }
        let _ = rundir.remove_sockets_elsewhere();
        let known_as = names.iter().map(|name| notify::known_as(name)).chain(iter::repeat(None));
        let stored = stored.into_iter().zip(known_as);
        let descriptors = stored.filter_map(|(fd, known_as)| Some(Inherited { fd: fd?, known_as })).collect();
        (rundir, Inheritance { descriptors, elsewhere, takeover_client: None })
    };
    let mut running = Running::start(&checked.config, &plan, &log, &mut rundir, inheritance, &notifier, &asked)?;
    log.ready();
    notifier.ready(&status(&plan, running.lost));
    let is_stored = !notifier.is_there() || notifier.begin(&names, running.lend());
    if let Some((thread, watch)) = running.watchdog.take() {
        thread.begin(|()| watch.run());
    }
    // All that are to have more have been started.
    if let Err(why) = confine(Duty::Main) {
        log.line(Level::Warning, &why);
    }
    let end = running.wait(&mut asked, file, &log, &notifier, (!is_stored).then_some(&names[..]));
    asked.heed(&log);
    notifier.stopping();
    if end == End::Stop && notifier.is_there() {
        notifier.store(&running.lend().unwrap_or_default());
    }
    rundir.keep(notifier.is_there() || has_persistent(&running.handler.facts().plan));
    let crashed = running.stop(end, &log);
    if end == End::GivenAway {
        rundir.leave();
    }
    if crashed {
        Err(Failure::Failed("the worker has crashed, a fault of levada; please report it with the log".to_owned()))
    } else {
        Ok(())
    }
}

/// What the service manager shows of a daemon that has started.
fn status(plan: &Plan, lost: usize) -> String {
    let switches = show_count(plan.switches.values().count(), "switch", "switches");
    match lost {
        0 => format!("{switches}, all ports are up"),
        lost => format!("{switches}, {} down; see the log", show_count(lost, "port is", "ports are")),
    }
}

/// Says what is doubtful in a configuration.
fn complain(log: &Log, warnings: &str) {
    if !warnings.trim().is_empty() {
        log.line(Level::Warning, &format!("the configuration has warnings:\n{}", warnings.trim_end()));
    }
}

fn is_of_open_files(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> Failure + '_ {
    move |error| {
        let remedy = match Errno::from_io_error(&error) {
            Some(errno) if is_of_open_files(errno) => "; raise the limit of open files (LimitNOFILE=, fs.file-max)",
            Some(Errno::ACCESS | Errno::ROFS) => {
                "; run as root, or set LEVADA_RUN_DIR to a directory that you may write"
            }
            _ => "",
        };
        Failure::Failed(format!("{what}: {error}{remedy}"))
    }
}

/// Asks the process that runs `name` for what it has.
fn inherit(name: &str) -> Result<(RunDir, Inheritance), Failure> {
    let base = rundir::base();
    let (takeover_client, lock, descriptors) =
        TakeoverClient::ask(&rundir::handover(&base, name)).map_err(|error| {
            let remedy = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    "; no process runs it: start it without --takeover"
                }
                _ if Errno::from_io_error(&error).is_some_and(is_of_open_files) => {
                    "; raise the limit of open files (LimitNOFILE=, ulimit -Hn); the old process continues"
                }
                _ => "; the old process continues",
            };
            Failure::Failed(format!("cannot take over from the process that runs \"{name}\": {error}{remedy}"))
        })?;
    let inheritance = Inheritance { descriptors, elsewhere: Vec::new(), takeover_client: Some(takeover_client) };
    Ok((RunDir::inherit(&base, name, lock), inheritance))
}

/// Namespaces that processes are in and that have no name, where a persistent device of an earlier
/// process may have been moved. Looking at processes takes a right that is given up afterwards.
fn places_without_name(plan: &Plan) -> Vec<Netns> {
    if !has_persistent(plan) {
        return Vec::new();
    }
    let nameless = Netns::reachable().unwrap_or_default().into_iter().filter(|netns| netns.name().is_none());
    nameless.filter_map(|netns| netns.held().ok()).collect()
}

/// Whether there is a device that outlives each process.
fn has_persistent(plan: &Plan) -> bool {
    let mut ports = plan.switches.values().flat_map(|switch| switch.ports.values());
    ports.any(|port| matches!(&port.kind, PortKind::Tap(tap) if tap.persistent))
}

/// Whether what has changed outside was applied; what keeps it from that is said once.
fn has_worked(made: Result<Result<(), String>, Fault>, failing: &mut Option<String>, log: &Log) -> bool {
    // One that failed by a fault of levada, or at the end, does no better again.
    let is_made = matches!(made, Ok(Ok(())));
    let why = made.ok().and_then(Result::err);
    match &why {
        Some(why) if failing.as_ref() != Some(why) => {
            log.line(Level::Warning, &format!("{why}; it is tried again"));
        }
        None if is_made && failing.is_some() => log.line(Level::Info, "what had changed outside is applied now"),
        _ => {}
    }
    *failing = why;
    failing.is_none()
}

fn take_rundir(name: &str, asked: &Asked) -> Result<RunDir, Failure> {
    RunDir::take_patiently(&rundir::base(), name, SILENCE, || asked.is_end()).map_err(|taken| {
        Failure::Failed(match taken {
            Taken::Running(pid) => {
                let pid = pid.map_or_else(|| "an unknown process".to_owned(), |pid| format!("process {pid}"));
                format!(
                    "instance \"{name}\" runs already as {pid}; stop it first, or give this one another [daemon] name"
                )
            }
            Taken::Io(path, error) => format!(
                "cannot use {}: {error}; run as root, or set LEVADA_RUN_DIR to a directory that you may write",
                path.display()
            ),
        })
    })
}

/// The threads of a running daemon.
struct Running {
    worker: JoinHandle<()>,
    maintenance: JoinHandle<()>,
    plugs: VdeServer,
    vde: JoinHandle<()>,
    front_ends: FrontEnds,
    machines: JoinHandle<()>,
    inbox: SyncSender<Request>,
    waker: Waker,
    tasks: SyncSender<Task>,
    handler: Arc<Handler>,
    changes: Changes,
    /// Becomes readable when the worker ends by itself.
    ended: UnixStream,
    /// Ends when the work has been given away.
    given: UnixStream,
    /// Whether it is, or this process ends with it.
    outcome: Outcome,
    /// Devices that it began without.
    lost: usize,
    /// To be begun when the manager has been told that the daemon is up.
    watchdog: Option<(Staged<()>, Watch)>,
}

impl Running {
    fn start(
        config: &Config,
        plan: &Plan,
        log: &Log,
        rundir: &mut RunDir,
        mut inheritance: Inheritance,
        manager: &Notifier,
        asked: &Asked,
    ) -> Result<Running, Failure> {
        let mut pool = Pool::new(plan.pool);
        warm(&mut pool);
        let wake = Wake::new().map_err(failed("cannot wait for ports"))?;
        let waker = wake.waker();
        let (inbox, orders) = sync_channel(ORDERS);
        let (tasks, errands) = sync_channel(CHORES);
        let parts = Parts {
            pool,
            switch_slots: Vec::new(),
            link_slots: Vec::new(),
            devices: Vec::new(),
            spin: plan.spin,
            wake,
            clock: Clock::start(),
            inbox: orders,
            tasks: tasks.clone(),
        };
        let mut worker = Worker::new(parts).map_err(failed("the worker cannot watch its ports (epoll)"))?;
        let group =
            handler::group(&config.daemon).map_err(|(what, remedy)| Failure::Failed(format!("{what}: {remedy}")))?;
        let plugs = VdeServer::new(log.clone(), inbox.clone(), waker.clone(), Some(rundir.ledger()));
        let plugs = plugs.map_err(failed("cannot watch VDE clients (epoll)"))?;
        let (news, heard) = sync_channel(CHORES);
        let front_ends =
            FrontEnds::new(log.clone(), inbox.clone(), waker.clone(), news.clone(), Some(rundir.sockets()));
        let (front_ends, closing) = front_ends.map_err(failed("cannot watch virtual machines"))?;
        let (mail, ring, errand) = (inbox.clone(), waker.clone(), tasks.clone());
        let in_use = inheritance.takeover_client.as_ref().and_then(|client| client.service_key);
        let (service_key, unkept) = rundir.service_key(in_use, reconciler::random());
        if let Some((file, error)) = unkept {
            let text = format!(
                "the key of services cannot be kept in {}: {error}; make room there and take over (levada run --takeover), or after a kill connections may be given to other backends",
                file.display()
            );
            log.line(Level::Warning, &text);
        }
        let processes = Processes::read(Some(rundir.place(PROCESSES)));
        let lines = inheritance.takeover_client.as_ref().map(|client| client.lines.clone()).unwrap_or_default();
        let earlier = Earlier { service_key, processes, lines };
        let reconciler = Reconciler::new(plan, mail, ring, errand, plugs.clone(), front_ends.clone(), earlier);
        let waits = inheritance.takeover_client.is_none();
        let mut reconciler = reconciler.held_by(manager.clone()).waiting(waits);
        let socket = Socket::among(&mut inheritance.descriptors);
        let survey = Survey::of(inheritance.descriptors, inheritance.elsewhere);
        let sights = reconciler.sights();
        front_ends.take_over(inheritance.takeover_client.is_some());
        let begun = reconciler.begin(plan.clone(), survey, log).map_err(Failure::Failed)?;
        let Beginning { edits, task, plugs: joins, machines, facts, adopted, known_as, lost } = begun;
        front_ends.take_over(false);
        worker.begin(edits).map_err(Failure::Failed)?;
        let _ = tasks.send(task);
        let _ = tasks.send(Task::Placed);
        let opened = crate::system::door::Door::open(&rundir.coming(SOCKET), rundir.place(SOCKET), group);
        let (visitors, listener) =
            opened.map_err(failed("cannot listen on the control socket in the run directory"))?;
        let visitors = Arc::new(visitors);
        let door = UnixListener::bind(rundir.coming(HANDOVER))
            .map_err(failed("cannot listen on the takeover socket in the run directory"))?;
        let (left, given) = UnixStream::pair().map_err(failed("cannot make a socket pair"))?;
        let lock = rundir.lock().map_err(failed("cannot duplicate the lock of the run directory"))?;
        let (mail, ring, admitted) = (inbox.clone(), waker.clone(), Arc::clone(&visitors));
        let (stir, stirred) = sync_channel(1);
        // One that waits stands for all since.
        let changed = Arc::new(move || {
            let _ = stir.try_send(());
        });
        let handler =
            Arc::new(Handler::new(config, reconciler, facts, mail, ring, log.clone(), admitted, socket, changed));
        let seen = sights.clone();
        let maintenance =
            Maintenance::new(plan.empty(), log.clone(), inbox.clone(), waker.clone(), news, tasks.clone(), seen)
                .held_by(manager.clone())
                .at(rundir.mark().map_err(failed("cannot duplicate the lock of the run directory"))?);
        let (ended, alive) = UnixStream::pair().map_err(failed("cannot make a socket pair"))?;
        let from = inheritance.takeover_client.as_ref().map(|takeover_client| takeover_client.from);
        let complaint = log.clone();
        let hurry = move || {
            for refused in os::hurry() {
                complaint.line(Level::Warning, &format!("the worker runs without {refused}"));
            }
            Stalls::of_this_thread()
        };
        // All threads are there before the old process gives its work away: if there is none to be
        // had, it goes on. They begin when they have something to do.
        let stage = |name, duty| Staged::new(|| {}, name, duty, log);
        let worker_thread = Staged::new(hurry, "levada-worker", Duty::Passing, log)?;
        let changes_thread = stage("levada-changes", Duty::Changes)?;
        let maintenance_thread = stage("levada-maint", Duty::Maintenance)?;
        let news_thread = stage("levada-news", Duty::Passing)?;
        let others_thread = stage("levada-others", Duty::Passing)?;
        let herald_thread = stage("levada-herald", Duty::Passing)?;
        let reports_thread = stage("levada-reports", Duty::Peers)?;
        let vde_thread = stage("levada-vde", Duty::VdeServer)?;
        let machines_thread = stage("levada-vhost", Duty::Machines)?;
        let closing_thread = stage("levada-closing", Duty::Passing)?;
        let http_thread = stage("levada-http", Duty::Serving)?;
        let door_thread = stage("levada-door", Duty::Serving)?;
        let watchdog = match manager.watch(inbox.clone(), waker.clone()) {
            Some(watch) => Some((stage("levada-watchdog", Duty::Passing)?, watch)),
            None => None,
        };
        // From here on nobody else reads the devices.
        let take_early = |early| import_early(&mut worker, plan, early);
        let take = |client: TakeoverClient| client.take(plugs.inherited(), take_early, || asked.is_end());
        let taken = inheritance.takeover_client.map(take).transpose();
        let taken = taken.map_err(failed("the takeover failed, and the old process continues; see its log"))?;
        for (machine, device) in machines {
            front_ends.join(machine, device);
        }
        let taken = taken.map(|TakeoverState { mut state, papers, clients, machines: (sessions, descriptors) }| {
            handler.follow_revision(state.revision);
            import(&mut worker, plan, &mut state, log);
            // The worker has their rings before it reads the first frame for them.
            front_ends.inherit(&sessions, descriptors, || worker.obey_all());
            (papers, clients)
        });
        if taken.is_none() {
            plan.switches.iter().for_each(|(switch, _)| worker.recover_services(switch as usize));
        }
        let worker = worker_thread.begin(move |stalls| {
            let _alive = alive;
            worker.run(stalls);
        });
        // Not before: until then it is the old process's, with those whom that lets in.
        if let Err(error) = visitors.announce() {
            log.line(
                Level::Warning,
                &format!("the run directory cannot get its group: {error}; correct [daemon] socket_group"),
            );
        }
        match rundir.announce() {
            // The old process has nothing any more: who ended now would end all.
            Err(error) if from.is_some() => log.line(
                Level::Warning,
                &format!(
                    "the sockets cannot be renamed in the run directory: {error}; levada show, set and run --takeover do not find this process; restart the daemon"
                ),
            ),
            announced => announced.map_err(failed("cannot rename the sockets in the run directory"))?,
        }
        handler.settle_in();
        handler.join_others();
        plugs.write_down(rundir.ledger());
        front_ends.write_down(rundir.sockets());
        if let Some(from) = from {
            log.line(Level::Info, &format!("has taken over from process {from}"));
        }
        settle_adopted(adopted, &known_as, &sights, log);
        handler.begin_shortcuts();
        let (changes, wanted) = Changes::new();
        let (maker, tended) = (Arc::clone(&handler), (plugs.clone(), front_ends.clone()));
        changes_thread.begin(move |()| changes::make_all(&maker, &tended.0, &tended.1, &wanted));
        let maintenance = maintenance_thread.begin(move |()| maintenance.run(&errands));
        // Ends with maintenance.
        let (bringer, complaint) = (changes.clone(), log.clone());
        news_thread.begin(move |()| {
            let mut failing = None;
            gathered(&heard, Pace::new(BETWEEN, LONGEST_BETWEEN), |news| {
                let again = failing.is_some();
                let made = bringer.make(move |handler| handler.follow(&news, again));
                has_worked(made, &mut failing, &complaint)
            });
        });
        let (bringer, complaint) = (changes.clone(), log.clone());
        others_thread.begin(move |()| {
            let mut failing = None;
            gathered(&stirred, Pace::new(BETWEEN, LONGEST_BETWEEN), |_: Vec<()>| {
                has_worked(bringer.make(Handler::follow_others), &mut failing, &complaint)
            });
        });
        let herald = Arc::clone(&handler);
        herald_thread.begin(move |()| herald.herald());
        let (told, complaint) = (Arc::clone(&handler), log.clone());
        reports_thread.begin(move |()| reports::receive(&told, &complaint));
        let vde = vde_thread.begin({
            let plugs = plugs.clone();
            move |()| plugs.run()
        });
        for (plug, device) in joins {
            plugs.join(plug, device);
        }
        closing_thread.begin(move |()| closing.run());
        let machines = machines_thread.begin({
            let front_ends = front_ends.clone();
            move |()| front_ends.run()
        });
        if let Some((papers, clients)) = taken {
            plugs.take_over(&papers, clients);
        }
        let (served, complaint, maker) = (Arc::clone(&handler), log.clone(), changes.clone());
        let memory = Memory::open(Path::new("/"));
        http_thread.begin(move |()| {
            if let Err(error) = http::serve(listener, served, maker, visitors, memory) {
                complaint
                    .line(Level::Warning, &format!("the control socket is not served: {error}; restart the daemon"));
            }
        });
        let outcome = Outcome::default();
        let takeover_server = TakeoverServer {
            lock,
            handler: Arc::clone(&handler),
            changes: changes.clone(),
            plugs: plugs.clone(),
            front_ends: front_ends.clone(),
            inbox: inbox.clone(),
            waker: waker.clone(),
            log: log.clone(),
            left,
            outcome: outcome.clone(),
            service_key,
        };
        door_thread.begin(move |()| takeover_server.serve(&door));
        Ok(Running {
            worker,
            maintenance,
            plugs,
            vde,
            front_ends,
            machines,
            inbox,
            waker,
            tasks,
            handler,
            changes,
            ended,
            given,
            outcome,
            lost,
            watchdog,
        })
    }

    /// Waits for a signal to end, for another process to take over, or for the worker to end, which
    /// it should not. SIGHUP reads the file again. A manager that is yet to be told of the devices,
    /// whose store has `names`, is told when the worker answers.
    fn wait(
        &self,
        asked: &mut Asked,
        file: &Path,
        log: &Log,
        notifier: &Notifier,
        mut names: Option<&[String]>,
    ) -> End {
        let mut pause = LENDING;
        loop {
            let mut fds = [
                PollFd::new(&self.given, PollFlags::IN),
                PollFd::new(asked, PollFlags::IN),
                PollFd::new(&self.ended, PollFlags::IN),
            ];
            let patience = names.map(|_| Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: 0 });
            match poll(&mut fds, patience.as_ref()) {
                Ok(0) => {
                    // Not too often: what a worker that hangs is asked lies in its inbox.
                    (names, pause) = (names.filter(|names| !notifier.begin(names, self.lend())), pause * 2);
                    continue;
                }
                Ok(_) => {}
                // An error is an interruption by a signal that is not ours.
                Err(_) => continue,
            }
            if !fds[0].revents().is_empty() {
                return End::GivenAway;
            }
            let has_worker = fds[2].revents().is_empty();
            match asked.next() {
                Some(Signal::Reload) if has_worker => {
                    notifier.reloading();
                    let status = self.reload(file, log);
                    notifier.ready(&status);
                }
                // One that has all already takes it, or lets us have it again.
                _ if self.outcome.end(DECISION) => return End::GivenAway,
                _ => return End::Stop,
            }
        }
    }

    /// Makes the daemon what the file says now, or says why not.
    fn reload(&self, file: &Path, log: &Log) -> String {
        let (file, complaint): (PathBuf, _) = (file.to_owned(), log.clone());
        let read = move |handler: &Handler| match check::load(&file) {
            Ok((checked, warnings)) => {
                complain(&complaint, &warnings);
                handler.become_what(&checked.config)
            }
            Err(failure) => Err(format!("nothing was changed: {}", failure.text())),
        };
        let outcome = self.changes.make(read).unwrap_or_else(|fault| Err(fault.to_string()));
        let (level, text) = match outcome {
            Ok((0, revision)) => (Level::Info, format!("reloaded: nothing differs; revision {revision}")),
            Ok((n, revision)) => {
                (Level::Info, format!("reloaded: {} made; revision {revision}", show_count(n, "change", "changes")))
            }
            Err(why) => (Level::Warning, format!("not reloaded, {why}")),
        };
        log.line(level, &text);
        // A status is one line.
        text.lines().next().unwrap_or_default().to_owned()
    }

    /// Second descriptors of the devices that may wait for the next process; `None` where the
    /// worker does not answer.
    fn lend(&self) -> Option<Vec<Inherited>> {
        let (reply, answer) = sync_channel(1);
        if self.inbox.try_send(Request::Lend { which: Lent::MayWait, reply }).is_err() {
            return None;
        }
        self.waker.ring();
        let devices = answer.recv_timeout(LENDING).ok()?;
        Some(devices.into_iter().map(|(_, lent)| lent).collect())
    }

    /// Ends the threads; devices that are not persistent end with the worker, unless another
    /// process has them. A thread that does not end in its time is left to the end of the process.
    /// True: the worker had crashed.
    fn stop(self, end: End, log: &Log) -> bool {
        let ended = |name: &str, thread, patience: Duration| {
            let ended = ending::join(thread, patience);
            if ended.is_none() {
                log.line(
                    Level::Warning,
                    &format!(
                        "the thread {name} has not ended within {} s, and is ended with the process",
                        patience.as_secs()
                    ),
                );
            }
            ended
        };
        ending::send(&self.inbox, if end == End::GivenAway { Request::Finish } else { Request::Stop }, STOPPING);
        self.waker.ring();
        let crashed = ended("levada-worker", self.worker, CLOSING) == Some(false);
        self.handler.leave_others(end == End::GivenAway);
        self.plugs.stop();
        self.front_ends.stop();
        ended("levada-vde", self.vde, STOPPING);
        ended("levada-vhost", self.machines, STOPPING);
        ending::send(&self.tasks, Task::Stop, STOPPING);
        ended("levada-maint", self.maintenance, STOPPING);
        crashed
    }
}

/// Takes in connections of a switch of another process, which still forwards.
fn import_early(worker: &mut Worker, plan: &Plan, early: Early) {
    let age_ns = monotonic_ns().saturating_sub(early.at_ns);
    if let Some((switch, records)) = early.of(plan) {
        worker.import_early(switch, &records, age_ns);
    }
}

/// Goes on with what the switches of another process knew.
fn import(worker: &mut Worker, plan: &Plan, state: &mut State, log: &Log) {
    let away_ns = monotonic_ns().saturating_sub(state.at_ns);
    let known = state.known(plan);
    let continued: BTreeSet<usize> = known.iter().map(|(switch, _)| *switch).collect();
    // What is open at one with a new name was known by the old one.
    for switch in plan.switches.iter().map(|(switch, _)| switch as usize) {
        if !continued.contains(&switch) {
            worker.recover_services(switch);
        }
    }
    for (switch, known) in known {
        if let Err(why) = worker.import(switch, &known, away_ns) {
            worker.recover_services(switch);
            log.line(
                Level::Warning,
                &format!(
                    "switch {} starts without the learned state of the old process: {why}",
                    plan.switches[switch].name
                ),
            );
        }
    }
    worker.forget_early();
}

/// Brings devices to what the configuration says, now that nobody else has them. What cannot be set
/// stays as it is.
fn settle_adopted(adopted: Vec<(usize, Recipe, OwnedFd)>, known_as: &BTreeSet<String>, sights: &Sights, log: &Log) {
    netns::roaming(|| {
        for (device, recipe, fd) in adopted {
            if let Some(why) = recipe.settle(fd.as_fd()).unwrap_or_else(Some) {
                log.line(Level::Warning, &why);
                sights.complain(device, Some(why));
            }
        }
        veth::keep(known_as);
    });
}

/// Makes some buffers and touches their pages.
pub fn warm(pool: &mut Pool) {
    for (count, len) in [(WARM_SMALL, PAGE / 4), (WARM_MEDIUM, 2 * PAGE), (WARM_LARGE, MAX_FRAME)] {
        let frames: Vec<_> = (0..count).map_while(|_| pool.alloc(len)).collect();
        for frame in frames {
            for byte in pool.bytes_mut(&frame).iter_mut().step_by(PAGE) {
                *byte = 1;
            }
            pool.free(frame);
        }
    }
}
