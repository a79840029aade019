//! Front ends: the sockets of virtual machines (`vhost-user://`). A thread that connects to them,
//! or lets them connect, does what they ask, and gives the worker the rings of each machine as a
//! port; the frames themselves never come here.
//!
//! A port with a machine whose rings run is a device that is up; all others are down. Before a
//! request that says how rings or memory are, the port is taken from the worker ([`Request::Take`])
//! and dropped, and a new one follows, which goes on where it stopped: what the guest sends
//! meanwhile waits in its rings.
//!
//! A front end speaks for one machine, and can harm no other: its socket is read without waiting,
//! [`MESSAGES`] a second at most, and half a message ends its session after [`PATIENCE`]. Nothing
//! that it sent is closed here, which might take long (`closing.rs`). Whatever it does wrong ends
//! its session with a line that says what.

mod closing;
mod handover;
mod listen;
pub mod papers;
mod port;
pub mod socket;
#[cfg(test)]
mod tests;

pub use closing::Starter;

use crate::guests::handed::Handed;
use crate::maintenance::News;
use crate::rundir::Ledger;
use crate::system::lines::Lines;
use crate::system::log::{Level, Log};
use crate::worker::{Request, Waker};
use closing::Closing;
use control::plan::VhostPlan;
use ports::Features;
use ports::vhost::{End, Fault, Foreign, Incoming, Offer, Session};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use socket::{Listening, connect};
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// How long half a message may stay one.
const PATIENCE: Duration = Duration::from_secs(2);
/// Messages of a session in a second. QEMU sends some 40 when a machine starts, and one or two for
/// each ring when a guest reboots.
const MESSAGES: u32 = 1000;
/// Messages of a session that are dealt with before others have their turn.
const TURN: u32 = 64;
/// How soon it is connected to a machine again that is gone or not there yet; twice as long after
/// each failure.
const FIRST_RETRY: Duration = Duration::from_millis(10);
/// How long that is put off at most.
const LAST_RETRY: Duration = Duration::from_secs(1);
/// How often what is not urgent is done.
const TICK: Duration = Duration::from_secs(1);
/// How long a guest may run without having put anything into its rings before that is worth a line.
const UNTOUCHED: Duration = Duration::from_secs(5);
/// How long nobody is served where no descriptor is left.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// How long a session lasts at least that did not just fail.
const WELL: Duration = Duration::from_secs(10);
/// How often it is looked whether a process that was to take over has not.
const FROZEN: Duration = Duration::from_millis(2);
/// Events fetched at a time; more wait in the kernel.
const EVENTS: usize = 64;
/// What the order to stop is watched as.
const STOP: u64 = 0;
/// What the wish to look around at once is watched as.
const STIR: u64 = 1;
/// Why a machine is not served.
const CROWDED: &str = "what it has sent takes long to be closed";
/// Log lines of a machine in a second, of each level.
const LINES: u32 = 4;

/// Names one machine's port for as long as it is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontEndId(u64);

/// What follows where a guest cannot be called without waiting (`ports/src/vhost/call.rs`).
const WITHOUT_CONTEXT: &str = "io_setup(2) is refused, so that a hostile virtual machine can keep the worker waiting; \
     allow io_setup, io_submit and io_getevents (SystemCallFilter= of the unit), and see fs.aio-max-nr";

/// The front ends of a daemon, from any thread.
#[derive(Clone)]
pub struct FrontEnds {
    board: Arc<Mutex<Board>>,
    epoll: Arc<OwnedFd>,
    stop: Arc<OwnedFd>,
    stir: Arc<OwnedFd>,
}

struct Board {
    log: Log,
    inbox: SyncSender<Request>,
    waker: Waker,
    news: SyncSender<News>,
    epoll: Arc<OwnedFd>,
    machines: Vec<Machine>,
    /// Starts who closes what machines have sent.
    starter: Sender<Closing>,
    /// Sockets are made in the place of those of the process that is taken over from.
    takes_over: bool,
    /// Another process is about to take over: nothing changes until it has, or has failed.
    is_frozen: bool,
    /// Counts what is watched, and machines.
    next: u64,
    /// Where sockets are written down, for who cleans up after a kill; with what is not so any
    /// more, until they are tended.
    ledger: Option<Ledger>,
    is_ledger_old: bool,
}

/// A machine, whether it is there or not.
struct Machine {
    id: FrontEndId,
    plan: VhostPlan,
    /// What it is called in the log.
    label: String,
    /// Its number at the worker; without one nobody is let in.
    device: Option<usize>,
    /// What it has sent, on its way out.
    closing: Closing,
    /// Features that the process with this number has taken: it goes on only where it is offered
    /// them again.
    taken: (i32, u64),
    /// Its socket is not listened to, since too much is yet to be closed.
    is_deaf: bool,
    listening: Option<(u64, Listening)>,
    /// Why its socket, which is gone, cannot be made again, as it was last told.
    mending: String,
    live: Option<Live>,
    /// The worker was given a port of it, and not told that it is gone.
    is_there: bool,
    retry: Instant,
    pause: Duration,
    /// Why it is not there, as it was last told.
    failure: String,
    /// Why its last session ended, where it was short and its rings never ran: as long as that is
    /// so, sessions are not worth a line.
    fault: String,
    /// What its guest could do when that was last told.
    told: Option<Features>,
    lines: Lines,
}

/// A machine that is connected.
struct Live {
    watch: u64,
    stream: Foreign<UnixStream>,
    incoming: Incoming,
    session: Session,
    /// The worker has its port, as far as is known.
    has_port: bool,
    handed: Handed,
    /// When it began, and whether its rings have run since.
    began: Instant,
    has_run: bool,
    /// When there was half a message first.
    half: Option<Instant>,
    /// Messages in the second that began then.
    rate: (Instant, u32),
    /// Since when its rings run; `None` where it was asked whether they are used.
    runs: Option<Instant>,
    /// Pairs of rings and offloads that were told.
    said: (usize, bool),
}

impl FrontEnds {
    /// No machines yet, for the worker behind `inbox` and `waker`. What guests can do goes to
    /// `news`; sockets are written down in `ledger` before they are made. Beside it who is to run
    /// in a thread with few rights, and starts those who close.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new(
        log: Log,
        inbox: SyncSender<Request>,
        waker: Waker,
        news: SyncSender<News>,
        ledger: Option<Ledger>,
    ) -> io::Result<(FrontEnds, Starter)> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (stop, stir) = (event()?, event()?);
        epoll::add(&epoll, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        epoll::add(&epoll, &stir, EventData::new_u64(STIR), EventFlags::IN | EventFlags::ET)?;
        let (starter, starts) = closing::starter();
        let board = Board {
            log,
            inbox,
            waker,
            news,
            epoll: Arc::clone(&epoll),
            machines: Vec::new(),
            starter,
            takes_over: false,
            is_frozen: false,
            next: STIR,
            ledger,
            is_ledger_old: false,
        };
        let board = Arc::new(Mutex::new(board));
        Ok((FrontEnds { board, epoll, stop: Arc::new(stop), stir: Arc::new(stir) }, starts))
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_around(&self) {
        let _ = rustix::io::write(&*self.stir, &1u64.to_ne_bytes());
    }

    /// From now on, sockets are made in the place of those of a process that is taken over from, or
    /// no more.
    pub fn take_over(&self, takes_over: bool) {
        self.board().takes_over = takes_over;
    }

    /// Opens a machine's port. Nobody is let in before [`FrontEnds::join`].
    ///
    /// # Errors
    /// The socket that is to be made cannot be had: why, and what helps.
    pub fn open(&self, plan: &VhostPlan, label: String) -> Result<FrontEndId, String> {
        // The thread that serves them may not. Only where there is one: a process that has this
        // waits for the kernel when it is killed, before its devices are closed.
        let mut board = self.board();
        if !ports::vhost::prepare() {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| board.log.line(Level::Warning, WITHOUT_CONTEXT));
        }
        board.open(plan, label)
    }

    /// Lets the machine in: it becomes the worker's device number `device`, which must be there.
    pub fn join(&self, id: FrontEndId, device: usize) {
        if let Some(machine) = self.board().machines.iter_mut().find(|machine| machine.id == id) {
            machine.device = Some(device);
        }
        self.look_around();
    }

    /// Has what a port takes that `plan` says: a socket, and its group. Sessions go on.
    ///
    /// # Errors
    /// As [`FrontEnds::open`]; it is as it was.
    pub fn prepare(&self, id: FrontEndId, plan: &VhostPlan) -> Result<(), String> {
        self.board().prepare(id, plan)
    }

    /// Undoes [`FrontEnds::prepare`]: it stays what `plan` says.
    pub fn undo(&self, id: FrontEndId, plan: &VhostPlan) {
        let mut board = self.board();
        // Where its group cannot be so again, it stays what it is.
        let _ = board.prepare(id, plan);
        board.listen_as(id, plan);
    }

    /// Makes a port what `plan` says, which is prepared, with the same socket, and calls it so in
    /// the log. What is offered otherwise is offered to a new session.
    pub fn change(&self, id: FrontEndId, plan: &VhostPlan, label: &str) {
        self.board().change(id, plan, label);
        self.look_around();
    }

    /// What a port is called in the log.
    pub fn label(&self, id: FrontEndId) -> String {
        let board = self.board();
        board.machines.iter().find(|machine| machine.id == id).map_or_else(String::new, |machine| machine.label.clone())
    }

    /// Closes a port, and ends its session. To be called before the worker's device is another's.
    pub fn close(&self, id: FrontEndId) {
        self.board().close(id, true);
    }

    /// Serves front ends until told to stop, and then closes everything.
    pub fn run(&self) {
        let mut tick = Instant::now() + TICK;
        loop {
            let next = self.board().next_retry().map_or(tick, |retry| retry.min(tick));
            let left = next.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut events = [const { MaybeUninit::uninit() }; EVENTS];
            // An error is an interruption.
            let watches: Vec<u64> = match epoll::wait(&*self.epoll, &mut events, Some(&timeout)) {
                Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
                Err(_) => Vec::new(),
            };
            if watches.contains(&STOP) {
                let mut board = self.board();
                let all: Vec<_> = board.machines.iter().map(|machine| machine.id).collect();
                // Another process may go on with them.
                all.into_iter().for_each(|id| board.close(id, false));
                return;
            }
            let is_exhausted = watches.into_iter().fold(false, |none, watch| none | !self.board().serve(watch));
            if is_exhausted {
                // Whoever leaves gives some back.
                std::thread::sleep(EXHAUSTED);
            }
            if self.board().is_frozen {
                std::thread::sleep(FROZEN);
                continue;
            }
            let now = Instant::now();
            self.board().connect_due(now);
            if now >= tick {
                self.board().tick(now);
                tick = now + TICK;
            }
        }
    }

    /// From now on `ledger` is where sockets are written down.
    pub fn write_down(&self, ledger: Ledger) {
        let mut board = self.board();
        board.ledger = Some(ledger);
        board.is_ledger_old = true;
    }

    /// Makes sockets again that are gone, and writes down which there are. To be called each second
    /// or so, by a thread that has the rights to make some.
    pub fn tend(&self) {
        let mut board = self.board();
        if !board.is_frozen {
            board.mend_sockets();
            board.note();
        }
    }

    /// Ends [`FrontEnds::run`].
    pub fn stop(&self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }
}

fn offer(plan: &VhostPlan) -> Offer {
    Offer { pairs: plan.queues, offload: plan.offload, must_be_sealed: plan.sealed, mtu: plan.mtu }
}

impl Board {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn open(&mut self, plan: &VhostPlan, label: String) -> Result<FrontEndId, String> {
        let closing = Closing::new(self.starter.clone());
        let listening = self.listen(plan, &closing, self.takes_over)?;
        let id = FrontEndId(self.number());
        let (plan, now) = (plan.clone(), Instant::now());
        self.machines.push(Machine {
            id,
            plan,
            label,
            device: None,
            closing,
            taken: (0, 0),
            is_deaf: false,
            listening,
            mending: String::new(),
            live: None,
            is_there: false,
            retry: now,
            pause: FIRST_RETRY,
            failure: String::new(),
            fault: String::new(),
            told: None,
            lines: Lines::new(LINES),
        });
        Ok(id)
    }

    fn place(&self, id: FrontEndId) -> Option<usize> {
        self.machines.iter().position(|machine| machine.id == id)
    }

    fn change(&mut self, id: FrontEndId, plan: &VhostPlan, label: &str) {
        let Some(index) = self.place(id) else { return };
        self.listen_as(id, plan);
        let machine = &mut self.machines[index];
        label.clone_into(&mut machine.label);
        let before = std::mem::replace(&mut machine.plan, plan.clone());
        let is_offered_otherwise = offer(&before) != offer(plan) || before.listen != plan.listen;
        if is_offered_otherwise && machine.live.is_some() {
            let fewer = "its configuration has changed; with fewer queues, QEMU is to be started anew";
            let is_fewer = plan.queues < before.queues;
            self.end(index, if is_fewer { fewer } else { "its configuration has changed" });
        }
    }

    fn close(&mut self, id: FrontEndId, is_told: bool) {
        let Some(index) = self.machines.iter().position(|machine| machine.id == id) else { return };
        self.rest(index);
        self.stop_listening(index);
        if let Some(live) = self.machines.remove(index).live {
            self.let_go(live, is_told);
        }
    }

    /// Lets go of a session; `is_told`: its front end is to see it at once.
    fn let_go(&self, live: Live, is_told: bool) {
        // As above.
        let _ = epoll::delete(&*self.epoll, &*live.stream);
        if is_told {
            let _ = live.stream.shutdown(Shutdown::Both);
        }
    }

    /// When a machine is to be connected to next.
    fn next_retry(&self) -> Option<Instant> {
        let waiting = self.machines.iter().filter(|machine| machine.is_to_be_connected());
        waiting.map(|machine| machine.retry).min()
    }

    fn connect_due(&mut self, now: Instant) {
        if self.is_frozen {
            return;
        }
        for index in 0..self.machines.len() {
            let machine = &mut self.machines[index];
            if !machine.is_to_be_connected() || machine.retry > now {
                continue;
            }
            if machine.closing.is_full() {
                machine.retry = now + LAST_RETRY;
                self.lack(index, CROWDED.to_owned());
                continue;
            }
            match connect(&machine.plan.socket) {
                Ok(stream) => self.begin(index, stream),
                Err(error) => {
                    machine.retry = now + machine.pause;
                    machine.pause = (machine.pause * 2).min(LAST_RETRY);
                    let failure = absence(&machine.plan.socket, &error);
                    self.lack(index, failure);
                }
            }
        }
    }

    /// Says why a machine is not there, where that is not what it was.
    fn lack(&mut self, index: usize, failure: String) {
        let machine = &self.machines[index];
        if machine.failure != failure {
            let text = format!("{}: {failure}", machine.label);
            if self.line(index, Level::Info, &text) {
                self.machines[index].failure = failure;
            }
        }
    }

    /// Does what is to be done about what is watched as `watch`. False: there are no descriptors
    /// left.
    fn serve(&mut self, watch: u64) -> bool {
        if self.is_frozen {
            return true;
        }
        let listens = |machine: &Machine| machine.listening.as_ref().is_some_and(|(own, _)| *own == watch);
        if let Some(index) = self.machines.iter().position(listens) {
            return self.accept(index);
        }
        let lives = |machine: &Machine| machine.live.as_ref().is_some_and(|live| live.watch == watch);
        if let Some(index) = self.machines.iter().position(lives)
            && let Err(why) = self.hear(index)
        {
            self.end(index, &why);
        }
        true
    }

    /// Begins a session.
    fn begin(&mut self, index: usize, stream: impl Into<Foreign<UnixStream>>) {
        let (watch, now) = (self.number(), Instant::now());
        let closer = self.machines[index].closing.closer();
        let stream = stream.into().left_to(Some(&closer));
        let (peer, (process, bits)) = (socket::process(&stream), self.machines[index].taken);
        let taken = if peer == process { bits } else { 0 };
        self.machines[index].taken = (peer, taken);
        let session = Session::new(offer(&self.machines[index].plan));
        let session = session.map(|session| session.left_to(&closer).offering(taken));
        let watched = epoll::add(&*self.epoll, &stream, EventData::new_u64(watch), EventFlags::IN);
        let machine = &mut self.machines[index];
        let (Ok(session), Ok(())) = (session, watched) else {
            (machine.retry, machine.pause) = (now + LAST_RETRY, LAST_RETRY);
            return self.lack(index, "its session cannot begin: the daemon has no descriptor left".to_owned());
        };
        let text = format!("{}: connected with {}", machine.label, socket::who(&stream));
        machine.live = Some(Live {
            watch,
            stream,
            incoming: Incoming::new(&closer),
            session,
            has_port: false,
            handed: Handed::default(),
            began: now,
            has_run: false,
            half: None,
            rate: (now, 0),
            runs: None,
            said: (0, false),
        });
        if machine.fault.is_empty() {
            machine.failure.clear();
            self.line(index, Level::Info, &text);
        }
    }

    /// Ends a session.
    fn end(&mut self, index: usize, why: &str) {
        self.rest(index);
        let Some(live) = self.machines[index].live.take() else { return };
        self.say_absent(index);
        let machine = &mut self.machines[index];
        machine.taken.1 |= live.session.taken();
        // Half way through a restart, it is there again soon; what always fails is not tried all
        // the time.
        if why == Fault::Slow.to_string() {
            machine.pause = LAST_RETRY;
        }
        machine.retry = Instant::now() + machine.pause;
        machine.pause = (machine.pause * 2).min(LAST_RETRY);
        let was_well = live.has_run || live.began.elapsed() >= WELL;
        let is_said = !was_well && machine.fault == why;
        if !is_said {
            let text = format!("{}: its session has ended: {why}; its frames are dropped (port-down)", machine.label);
            let is_written = self.line(index, Level::Warning, &text);
            let machine = &mut self.machines[index];
            // What was not written is not told.
            machine.fault = if was_well || !is_written { String::new() } else { why.to_owned() };
            if is_written {
                machine.failure = why.to_owned();
            }
        }
        self.let_go(live, true);
    }

    /// Reads what a front end says, and does it.
    fn hear(&mut self, index: usize) -> Result<(), String> {
        for _ in 0..TURN {
            let Some(live) = &mut self.machines[index].live else { return Ok(()) };
            let message = live.incoming.next(&live.stream).map_err(|end| match end {
                End::Closed => "it has closed its socket".to_owned(),
                other => other.to_string(),
            })?;
            let now = Instant::now();
            let Some((header, request, descriptors)) = message else {
                live.half = live.incoming.is_within().then(|| live.half.unwrap_or(now));
                return Ok(());
            };
            live.half = None;
            if now.duration_since(live.rate.0) >= Duration::from_secs(1) {
                live.rate = (now, 0);
            }
            live.rate.1 += 1;
            if live.rate.1 > MESSAGES {
                return Err(format!("it sends more than {MESSAGES} messages in a second"));
            }
            if !descriptors.is_empty() && self.machines[index].closing.is_full() {
                return Err(CROWDED.to_owned());
            }
            if Session::must_rest(&request) {
                self.rest(index);
            }
            let Some(live) = &mut self.machines[index].live else { return Ok(()) };
            let done = live.session.handle(header, request, descriptors).map_err(|fault| fault.to_string())?;
            // Also what is called here, when a ring begins.
            if live.session.has_slow_calls() {
                return Err(Fault::Slow.to_string());
            }
            if let Some(answer) = done.answer {
                // An answer is short: where there is no room for it, nobody has read thousands.
                (&*live.stream).write_all(&answer).map_err(|error| format!("answering it failed: {error}"))?;
            }
            let is_new = self.machines[index].fault.is_empty();
            if let Some(note) = done.note.filter(|note| is_new && !note.is_empty()) {
                let text = format!("{}: {note}", self.machines[index].label);
                self.line(index, Level::Info, &text);
            }
            if done.is_changed {
                self.go_on(index).map_err(|fault| fault.to_string())?;
            }
        }
        // It has more to say, and calls again.
        Ok(())
    }

    fn tick(&mut self, now: Instant) {
        for index in 0..self.machines.len() {
            self.listen_again(index);
            let Machine { label, lines, .. } = &mut self.machines[index];
            lines.tell(&self.log, &*label);
            if !self.go_on_again(index) {
                continue;
            }
            let Machine { label, live, told, device, .. } = &mut self.machines[index];
            let Some(live) = live else { continue };
            if live.half.is_some_and(|half| now.duration_since(half) >= PATIENCE) {
                self.end(index, "it has sent half a message, and not the rest");
                continue;
            }
            if live.session.has_lost_memory() {
                let why = Fault::Lost.to_string();
                self.end(index, &why);
                continue;
            }
            if live.session.has_slow_calls() {
                let why = Fault::Slow.to_string();
                self.end(index, &why);
                continue;
            }
            live.session.forget_slow_calls();
            let mut texts: Vec<String> = live
                .session
                .broken()
                .into_iter()
                .map(|(ring, why)| format!("{label}: ring {ring} is stopped until its guest sets it up anew: {why}"))
                .collect();
            if live.runs.is_some_and(|runs| now.duration_since(runs) >= UNTOUCHED) {
                live.runs = None;
                if live.session.looks_unshared() {
                    texts.push(format!(
                        "{label}: its rings run and nothing is ever put in them: is its memory shared? QEMU needs share=on for its memory backend"
                    ));
                }
            }
            // News that found the queue full.
            let features = live.session.form().features;
            if live.has_port
                && *told != Some(features)
                && let Some(device) = *device
                && self.news.try_send(News::Guest { device, features }).is_ok()
            {
                *told = Some(features);
            }
            for text in texts {
                self.line(index, Level::Warning, &text);
            }
            self.say_guest(index);
        }
    }

    /// Writes a line about a machine. False: it has had enough.
    fn line(&mut self, index: usize, level: Level, text: &str) -> bool {
        self.machines[index].lines.write(&self.log, level, text)
    }
}

impl Machine {
    fn is_to_be_connected(&self) -> bool {
        !self.plan.listen && self.live.is_none() && self.device.is_some()
    }
}

/// Why a socket cannot be connected to, and what helps.
fn absence(socket: &str, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "there is none yet; it is looked for until QEMU makes it",
        io::ErrorKind::ConnectionRefused => "nobody listens on it; it is tried until QEMU does",
        io::ErrorKind::PermissionDenied => "the daemon may not use it; run it as root, or give it the socket's group",
        _ => return format!("socket {socket}: {error}"),
    };
    format!("socket {socket}: {why}")
}
