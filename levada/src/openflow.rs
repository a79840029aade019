//! `levada openflow`: a controller that lets Open vSwitch balance by the same policies.
//!
//! One thread does everything: it accepts switches, moves their bytes into and out of a state
//! machine each ([`openflow::session`]), takes servers' load reports, and answers the control
//! socket. Nothing of a switch is undone at the end: its flows stay, and go on balancing what is
//! open.

mod control;
mod listen;
mod metrics;
mod report;
mod reports;

use crate::check;
use crate::error::Failure;
use crate::rundir::{self, RunDir, SOCKET, Taken};
use crate::services::Verdicts;
use crate::system::log::{Format, Level, Log};
use crate::system::os::{Signal, Signals};
use crate::system::privileges::{self, Duty, confine};
use ::control::config::openflow::OpenFlow;
use datapath::units::Instant;
use listen::{Door, Outgoing, Stream};
use openflow::balance::Balancer;
use openflow::rules::Rules;
use openflow::session::{Session, Status};
use ring::rand::SecureRandom as _;
use rustix::event::{PollFd, PollFlags, poll};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::LocalSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Switches that are connected at a time at most, those included that have not shown yet who they
/// are.
const SWITCHES: usize = 64;
/// Out of descriptors: connections that end give some back.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// How often it is looked whether a switch left for good.
const LOOK: Duration = Duration::from_secs(1);
/// What is read at once.
const READ: usize = 64 << 10;
/// What waits to be sent at most before nothing more is read: a switch that does not read what it
/// is told is not told more.
const MOST_OUT: usize = 4 << 20;

/// What all connections share.
struct House {
    config: RefCell<OpenFlow>,
    rules: RefCell<Arc<Rules>>,
    /// Counts the configurations, so that connections notice.
    revision: RefCell<u64>,
    balancer: RefCell<Balancer>,
    /// What each connected switch is.
    switches: RefCell<BTreeMap<u64, Status>>,
    /// Numbers of switches that are or were connected, as many as may be at a time.
    seen: RefCell<BTreeSet<u64>>,
    /// What became of load reports.
    verdicts: Verdicts,
    start: std::time::Instant,
    seed: u64,
    log: Log,
}

impl House {
    fn now(&self) -> Instant {
        // From 1 on: 0 is no time.
        Instant(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1))
    }

    /// What a switch is by now.
    fn note(&self, connection: u64, status: &Status) {
        let (mut seen, mut switches) = (self.seen.borrow_mut(), self.switches.borrow_mut());
        if status.datapath != 0 && !seen.contains(&status.datapath) {
            // Of those that are away one goes: what is connected is always shown.
            let is_here = |number: u64| switches.values().any(|one| one.datapath == number);
            if seen.len() >= SWITCHES
                && let Some(away) = seen.iter().copied().find(|&number| !is_here(number))
            {
                seen.remove(&away);
            }
            seen.insert(status.datapath);
        }
        switches.insert(connection, status.clone());
    }

    /// Another configuration, of which each connection learns before it reads on.
    fn renew(&self, config: OpenFlow) {
        let rules = Arc::new(Rules::of(&config));
        let before = self.rules.replace(Arc::clone(&rules));
        self.balancer.borrow_mut().renew(self.now(), &config, &before, &rules, self.seed);
        self.config.replace(config);
        *self.revision.borrow_mut() += 1;
    }
}

/// Runs the controller of `file` until a signal ends it.
pub fn run(file: &Path, format: Format) -> Result<(), Failure> {
    let (config, warnings) = check::load_openflow(file)?;
    let log = Log::new(&config.name, format);
    let _last_words = log.last_words();
    if !warnings.trim().is_empty() {
        log.line(Level::Warning, &format!("the configuration has warnings:\n{}", warnings.trim_end()));
    }
    let failed = |what: &'static str| move |error: io::Error| Failure::Failed(format!("{what}: {error}"));
    let signals = Signals::block().map_err(failed("cannot receive signals"))?;
    let rundir = take_rundir(&config.name)?;
    let mut seed = [0; 8];
    ring::rand::SystemRandom::new()
        .fill(&mut seed)
        .map_err(|_| Failure::Failed("the kernel has no random numbers".to_owned()))?;
    let seed = u64::from_ne_bytes(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed("cannot start the controller"))?;
    let (control, door) = runtime.block_on(open(&config, &rundir))?;
    // Who may listen at any port listens; before there is another thread.
    for warning in privileges::begin(false) {
        log.line(Level::Warning, &warning);
    }
    log.begin().map_err(failed("cannot start a thread (see ulimit -u and TasksMax=)"))?;
    let rules = Arc::new(Rules::of(&config));
    let house = Rc::new(House {
        balancer: RefCell::new(Balancer::new(&config, &rules, seed)),
        config: RefCell::new(config),
        rules: RefCell::new(rules),
        revision: RefCell::new(0),
        switches: RefCell::default(),
        seen: RefCell::default(),
        verdicts: Verdicts::default(),
        start: std::time::Instant::now(),
        seed,
        log,
    });
    let asked = listen_for(signals, house.log.clone());
    let asked = asked.map_err(failed("cannot start a thread (see ulimit -u and TasksMax=)"))?;
    if let Err(why) = confine(Duty::Main) {
        house.log.line(Level::Warning, &why);
    }
    let done = runtime.block_on(LocalSet::new().run_until(serve(&house, &control, &door, asked, file)));
    drop(rundir);
    done
}

/// The control socket, and where switches connect.
async fn open(config: &OpenFlow, rundir: &RunDir) -> Result<(UnixListener, Door), Failure> {
    let socket = rundir.place(SOCKET);
    let control = UnixListener::bind(&socket);
    let control = control.map_err(|error| Failure::Failed(format!("cannot make {}: {error}", socket.display())))?;
    Ok((control, Door::open(config, Some(&rundir.sockets())).await.map_err(Failure::Failed)?))
}

/// A thread that waits for signals; at most one waits to be heeded by the time of the next.
fn listen_for(signals: Signals, log: Log) -> io::Result<UnboundedReceiver<Signal>> {
    let (told, asked) = unbounded_channel();
    let wait = move || {
        if let Err(why) = confine(Duty::Passing) {
            log.line(Level::Warning, &why);
        }
        while poll(&mut [PollFd::new(&signals, PollFlags::IN)], None).is_ok() {
            while let Some(signal) = signals.next() {
                if told.send(signal).is_err() {
                    return;
                }
            }
        }
    };
    std::thread::Builder::new().name("levada-signals".to_owned()).spawn(wait)?;
    Ok(asked)
}

fn take_rundir(name: &str) -> Result<RunDir, Failure> {
    RunDir::take(&rundir::base(), name).map_err(|taken| {
        Failure::Failed(match taken {
            Taken::Running(pid) => {
                let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
                format!("instance \"{name}\" runs already{pid}; end it, or write another `name`")
            }
            Taken::Io(path, error) => format!(
                "cannot make {}: {error}; run as root, or set LEVADA_RUN_DIR to a directory that you may write",
                path.display()
            ),
        })
    })
}

async fn serve(
    house: &Rc<House>,
    control: &UnixListener,
    door: &Door,
    mut asked: UnboundedReceiver<Signal>,
    file: &Path,
) -> Result<(), Failure> {
    house.log.ready();
    house.log.line(Level::Info, &format!("switches connect to {}", door.name()));
    drop(tokio::task::spawn_local(reports::receive(Rc::clone(house))));
    let (mut number, seats) = (0, Arc::new(Semaphore::new(SWITCHES)));
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            stream = door.accept() => match (stream, Arc::clone(&seats).try_acquire_owned()) {
                (Ok(stream), Ok(seat)) => {
                    number += 1;
                    tokio::task::spawn_local(attend(Rc::clone(house), number, stream, seat));
                }
                (Ok(_), Err(_)) => {
                    house.log.line(Level::Warning, &format!("more than {SWITCHES} switches: one is turned away"));
                }
                (Err(_), _) => sleep(EXHAUSTED).await,
            },
            accepted = control.accept() => match accepted {
                Ok((stream, _)) => drop(tokio::task::spawn_local(control::answer(Rc::clone(house), stream))),
                Err(_) => sleep(EXHAUSTED).await,
            },
            signal = asked.recv() => match signal {
                Some(Signal::Reload) => reload(house, file),
                Some(Signal::End) | None => {
                    let count = house.switches.borrow().len();
                    let text = format!("ends; the flows of {count} switches stay, and connections go on");
                    house.log.line(Level::Info, &text);
                    return Ok(());
                }
            },
            _ = ticks.tick() => house.balancer.borrow_mut().bury_left(house.now()),
        }
    }
}

/// Reads the file again; switches are brought to it, and keep the connections that they have.
fn reload(house: &House, file: &Path) {
    let (config, warnings) = match check::load_openflow(file) {
        Ok(loaded) => loaded,
        Err(failure) => {
            let text = format!("{} was not applied: {}", file.display(), failure.text());
            return house.log.line(Level::Warning, &text);
        }
    };
    let old = house.config.borrow().clone();
    if (&old.name, &old.listen, &old.tls) != (&config.name, &config.listen, &config.tls) {
        return house.log.line(
            Level::Warning,
            "`name`, `listen` and `tls` are read at the start only: start the controller again; nothing was applied",
        );
    }
    house.renew(config);
    house.log.line(Level::Info, format!("{} is applied\n{warnings}", file.display()).trim_end());
}

/// One switch, until it goes.
async fn attend(house: Rc<House>, number: u64, stream: Stream, _seat: OwnedSemaphorePermit) {
    let from = stream.peer();
    let stream = match stream.handshake().await {
        Ok(stream) => stream,
        Err(why) => return house.log.line(Level::Warning, &format!("switch at {from}: {why}")),
    };
    house.switches.borrow_mut().insert(number, Status { phase: "hello", role: "none", ..Status::default() });
    let why = talk(&house, number, &from, stream).await;
    let status = house.switches.borrow_mut().remove(&number).unwrap_or_default();
    let text = format!("switch {:016x} at {from} is gone: {why}", status.datapath);
    house.log.line(Level::Warning, &text);
}

/// Moves bytes until the connection ends; why it did.
async fn talk(house: &House, number: u64, from: &str, mut stream: listen::Bytes) -> String {
    let mut session = Session::new(&house.config.borrow(), Arc::clone(&house.rules.borrow()), house.now());
    let mut revision = *house.revision.borrow();
    let mut ticks = interval(Duration::from_nanos(Session::poll_every_ns()));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut buffer, mut out) = (vec![0; READ], Outgoing::default());
    loop {
        out.take(session.out());
        let may_read = out.waits() < MOST_OUT;
        let moved = tokio::select! {
            moved = listen::step(&mut stream, &mut out, may_read.then_some(&mut buffer[..])) => Some(moved),
            _ = ticks.tick() => None,
        };
        // Before anything is read by rules that the balancer has no longer.
        if revision != *house.revision.borrow() {
            revision = *house.revision.borrow();
            session.renew(&house.config.borrow(), Arc::clone(&house.rules.borrow()), house.now());
        }
        let result = match moved {
            Some(Ok(Some(0))) => Err("it closed the connection".to_owned()),
            Some(Ok(Some(count))) => session.receive(house.now(), &buffer[..count], &mut house.balancer.borrow_mut()),
            Some(Ok(None)) => Ok(()),
            Some(Err(error)) => Err(error.to_string()),
            None => session.poll(house.now(), &mut house.balancer.borrow_mut()),
        };
        while let Some(note) = session.note_next() {
            let level = if note.is_warning { Level::Warning } else { Level::Info };
            house.log.line(level, &format!("switch at {from}: {}", note.text));
        }
        house.note(number, session.status());
        if let Err(why) = result {
            session.leave(house.now(), &mut house.balancer.borrow_mut());
            // What it should know of that, it may still read.
            out.take(session.out());
            let rest = async { while !out.is_done() && listen::step(&mut stream, &mut out, None).await.is_ok() {} };
            let _ = tokio::time::timeout(Duration::from_secs(1), rest).await;
            return why;
        }
    }
}

#[cfg(test)]
mod tests;
