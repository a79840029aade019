//! VdeServer: the control sockets of VDE directories. A thread that lets clients plug in and out
//! and gives the worker their sockets; the frames themselves never come here.
//!
//! A plug with a client is a device that is up, one without is down ([`Request::Restore`],
//! [`Request::Gone`]). A client that names no number gets the plug with the lowest number that is
//! free.
//!
//! Strangers may connect as often as they like: how many may wait that have not said what they want
//! is bounded (`waiting.rs`), and so are descriptors and memory, by these and by the plugs; and how
//! many log lines a second tell of each directory (`directories.rs`).

mod directories;
mod handover;
pub mod papers;
mod waiting;

use crate::guests::handed::Handed;
use crate::rundir::Ledger;
use crate::system::log::{Level, Log};
use crate::worker::{Request, Waker};
use control::plan::VdePlan;
use directories::{Closed, OpenDirectory, options};
use handover::Inventory;
use ports::Survey;
use ports::netns::cure_of_want;
use ports::vde::request::Request as PlugRequest;
use ports::vde::{Counts, MAX_CLIENTS, OpenError, Plugged, VdePort};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::net::UCred;
use std::collections::VecDeque;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use waiting::Waiting;

/// What a client may send beside its request, in bytes: nothing is expected, and who sends much is
/// no VDE client.
const CHATTER_BYTES: usize = 4096;
/// How often what is not urgent is done.
const TICK: Duration = Duration::from_secs(1);
/// How long nobody is served where no descriptor is left.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// How often it is looked whether a takeover is over: it takes some milliseconds.
const FROZEN: Duration = Duration::from_millis(2);
/// Events fetched at a time; more wait in the kernel.
const EVENTS: usize = 64;
/// What the order to stop is watched as.
const STOP: u64 = 0;
/// What a wish of another process's is watched as: to take over ([`Board::freezing`]).
const CALL: u64 = 1;
/// Bytes of an Ethernet header without tag.
const ETHERNET_HEADER: usize = 14;

/// Names one plug for as long as it is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlugId(u64);

/// The plugs of a daemon, from any thread.
#[derive(Clone)]
pub struct VdeServer {
    board: Arc<Mutex<Board>>,
    epoll: Arc<OwnedFd>,
    stop: Arc<OwnedFd>,
    call: Arc<OwnedFd>,
}

/// All directories, plugs and clients.
struct Board {
    log: Log,
    inbox: SyncSender<Request>,
    waker: Waker,
    epoll: Arc<OwnedFd>,
    directories: Vec<OpenDirectory>,
    /// Directories that cannot be had now; they are tried again.
    closed: Vec<Closed>,
    plugs: Vec<Plug>,
    waiting: VecDeque<Waiting>,
    /// Counts what is watched, and plugs.
    next: u64,
    /// Another process is about to take over: nothing changes until it has, or has failed.
    is_frozen: bool,
    /// Who waits for that to begin.
    freezing: Option<SyncSender<Inventory>>,
    /// Where the directories are written down, for who cleans up after a kill; with what is not so
    /// any more, until the next tick.
    ledger: Option<Ledger>,
    is_ledger_old: bool,
}

/// What becomes of a plug whose directory cannot be had because of what others have put there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Otherwise {
    /// There is none.
    Refuse,
    /// It waits until the directory can be had.
    Wait,
}

/// A plug.
struct Plug {
    id: PlugId,
    plan: VdePlan,
    /// What it is called in the log.
    label: String,
    /// Its number at the worker; without one it takes no client.
    device: Option<usize>,
    clients: Vec<Client>,
    handed: Handed,
    counts: Arc<Counts>,
    /// Missed frames already told to the worker.
    told: u64,
}

/// A client that is plugged in.
struct Client {
    watch: u64,
    stream: UnixStream,
    plugged: Plugged,
    name: String,
    chatter: usize,
}

impl VdeServer {
    /// No plugs yet, for the worker behind `inbox` and `waker`. Directories are written down in
    /// `ledger` before they are opened.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new(log: Log, inbox: SyncSender<Request>, waker: Waker, ledger: Option<Ledger>) -> io::Result<VdeServer> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &call, EventData::new_u64(CALL), EventFlags::IN | EventFlags::ET)?;
        let board = Board {
            log,
            inbox,
            waker,
            epoll: Arc::clone(&epoll),
            directories: Vec::new(),
            closed: Vec::new(),
            plugs: Vec::new(),
            waiting: VecDeque::new(),
            next: CALL,
            is_frozen: false,
            freezing: None,
            ledger,
            is_ledger_old: false,
        };
        Ok(VdeServer { board: Arc::new(Mutex::new(board)), epoll, stop: Arc::new(stop), call: Arc::new(call) })
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a plug, and its directory where that is not open yet. It takes no client before
    /// [`VdeServer::join`]. To be called before a change that adds it, so that a directory that
    /// cannot be had refuses the change. A directory that the `survey` has of an earlier process is
    /// that one's until [`VdeServer::take_over`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        &self,
        plan: &VdePlan,
        label: String,
        survey: &Survey,
        otherwise: Otherwise,
    ) -> Result<PlugId, OpenError> {
        self.board().open(plan, label, survey, otherwise)
    }

    /// Lets clients plug in: they become the worker's device number `device`, which must be there.
    pub fn join(&self, id: PlugId, device: usize) {
        if let Some(plug) = self.board().plugs.iter_mut().find(|plug| plug.id == id) {
            plug.device = Some(device);
        }
    }

    /// Makes a plug what `plan` says, of the same directory and number, and calls it so in the log;
    /// its clients stay.
    ///
    /// # Errors
    /// See [`OpenError`]; or it has several clients and is to be no hub.
    pub fn change(&self, id: PlugId, plan: &VdePlan, label: &str) -> Result<(), String> {
        self.board().change(id, plan, label)
    }

    /// What a plug is called in the log.
    pub fn label(&self, id: PlugId) -> String {
        let board = self.board();
        board.plugs.iter().find(|plug| plug.id == id).map_or_else(String::new, |plug| plug.label.clone())
    }

    /// Closes a plug: its clients are unplugged, and with the last plug of a directory that is
    /// closed. To be called before the worker's device is another's.
    pub fn close(&self, id: PlugId) {
        self.board().close(id);
    }

    /// Serves clients until told to stop, and then closes everything.
    pub fn run(&self) {
        let mut tick = Instant::now() + TICK;
        loop {
            let left = tick.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut events = [const { MaybeUninit::uninit() }; EVENTS];
            // An error is an interruption.
            let watches: Vec<u64> = match epoll::wait(&*self.epoll, &mut events, Some(&timeout)) {
                Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
                Err(_) => Vec::new(),
            };
            let mut board = self.board();
            if watches.contains(&STOP) {
                board.close_all();
                return;
            }
            board.freeze();
            if board.is_frozen {
                drop(board);
                std::thread::sleep(FROZEN);
                continue;
            }
            // All of them: one that leaves may stand behind one that cannot be let in.
            let exhausted = watches.into_iter().fold(false, |none, watch| none | !board.serve(watch));
            if Instant::now() >= tick {
                board.tick();
                tick = Instant::now() + TICK;
            }
            drop(board);
            if exhausted {
                // Out of descriptors: whoever leaves gives some back.
                std::thread::sleep(EXHAUSTED);
            }
        }
    }

    /// From now on `ledger` is where directories are written down.
    pub fn write_down(&self, ledger: Ledger) {
        let mut board = self.board();
        board.ledger = Some(ledger);
        board.is_ledger_old = true;
    }

    /// Opens directories that could not be had, makes those again that were removed, and writes
    /// down which are open. To be called each second or so, by a thread that has the rights to open
    /// some.
    pub fn tend(&self) {
        let mut board = self.board();
        if !board.is_frozen {
            board.open_closed();
            board.mend_directories();
            board.note();
        }
    }

    /// Ends [`VdeServer::run`].
    pub fn stop(&self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }
}

impl Board {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn open(
        &mut self,
        plan: &VdePlan,
        label: String,
        survey: &Survey,
        otherwise: Otherwise,
    ) -> Result<PlugId, OpenError> {
        self.have_directory(plan, survey, otherwise)?;
        let id = PlugId(self.number());
        // In the order of their numbers: who names none gets the least.
        let at = self.plugs.partition_point(|plug| plug.plan.plug <= plan.plug);
        let (plan, clients, handed) = (plan.clone(), Vec::new(), Handed::default());
        self.plugs.insert(at, Plug { id, plan, label, device: None, clients, handed, counts: Arc::default(), told: 0 });
        Ok(id)
    }

    fn change(&mut self, id: PlugId, plan: &VdePlan, label: &str) -> Result<(), String> {
        let Some(index) = self.plugs.iter().position(|plug| plug.id == id) else { return Ok(()) };
        if self.plugs[index].plan == *plan {
            label.clone_into(&mut self.plugs[index].label);
            return Ok(());
        }
        let clients = self.plugs[index].clients.len();
        if clients > 1 && !plan.hub {
            return Err(format!(
                "{}: it has {clients} clients, and without `hub` it takes one; unplug the others first",
                self.plugs[index].label
            ));
        }
        // It could not be changed where it is not.
        self.mend_directories();
        if let Some(place) = self.directories.iter_mut().find(|place| place.name == plan.directory) {
            place.directory.change(&options(plan)).map_err(|error| error.to_string())?;
        }
        if let Some(closed) = self.closed.iter_mut().find(|closed| closed.name == plan.directory) {
            closed.options = options(plan);
        }
        self.plugs[index].plan = plan.clone();
        label.clone_into(&mut self.plugs[index].label);
        if clients > 0 {
            self.hand_over(index);
        }
        Ok(())
    }

    fn close(&mut self, id: PlugId) {
        let Some(index) = self.plugs.iter().position(|plug| plug.id == id) else { return };
        let plug = self.plugs.remove(index);
        for client in plug.clients {
            self.release(&plug.plan.directory, client.plugged);
        }
        self.clean(&plug.plan.directory);
    }

    fn close_all(&mut self) {
        for plug in std::mem::take(&mut self.plugs) {
            for client in plug.clients {
                self.release(&plug.plan.directory, client.plugged);
            }
        }
        self.waiting.clear();
        self.closed.clear();
        self.directories.clear();
        // The ledger goes with the run directory.
    }

    /// Does what is to be done about what is watched as `watch`. False: there are no descriptors
    /// left.
    fn serve(&mut self, watch: u64) -> bool {
        if let Some(index) = self.directories.iter().position(|place| place.watch == watch) {
            return self.accept(index);
        }
        if let Some(index) = self.waiting.iter().position(|waiting| waiting.watch == watch) {
            self.hear(index);
            return true;
        }
        let plugs = self.plugs.iter().enumerate();
        let mut all =
            plugs.flat_map(|(p, plug)| plug.clients.iter().enumerate().map(move |(c, client)| (p, c, client)));
        // What is not there any more was closed since it called.
        if let Some((plug, client, _)) = all.find(|(_, _, client)| client.watch == watch) {
            self.listen(plug, client);
        }
        true
    }

    fn plug(&mut self, waiting: Waiting, request: &PlugRequest) {
        let index = match self.choose(&waiting.directory, request.plug) {
            Ok(index) => index,
            Err(why) => return self.refuse(&waiting, &why),
        };
        let Some(place) = self.directories.iter_mut().find(|place| place.name == waiting.directory) else { return };
        let plug = &mut self.plugs[index];
        let plugged = match place.directory.plug(&waiting.stream, &waiting.peer, request, plug.plan.plug) {
            Ok(plugged) => plugged,
            Err(refusal) => return self.refuse(&waiting, &refusal),
        };
        let name = format!("\"{}\" ({})", request.description, who(&waiting.peer));
        let text = format!("{}: plugged in by {name}", plug.label);
        plug.clients.push(Client::new(waiting.watch, waiting.stream, plugged, name));
        self.hand_over(index);
        self.line(&waiting.directory, Level::Info, &text);
    }

    /// The plug for a client that asks for number `wanted`, or for any.
    fn choose(&self, directory: &str, wanted: Option<u32>) -> Result<usize, String> {
        let plugs = self.plugs.iter().enumerate();
        let mut here = plugs.filter(|(_, plug)| plug.plan.directory == directory && plug.device.is_some());
        match wanted {
            None => match here.find(|(_, plug)| plug.has_room()) {
                Some((index, _)) => Ok(index),
                None => Err("no plug is free".to_owned()),
            },
            Some(number) => match here.find(|(_, plug)| plug.plan.plug == number) {
                Some((index, plug)) if plug.has_room() => Ok(index),
                Some((_, plug)) if plug.plan.hub => Err(format!("plug {number} has {MAX_CLIENTS} clients already")),
                Some((_, plug)) => {
                    let holder = plug.clients.first().map_or("another", |client| &client.name);
                    Err(format!("plug {number} is taken by {holder}"))
                }
                None => Err(format!("there is no plug {number}")),
            },
        }
    }

    /// Gives the worker the sockets of a plug's clients, or takes the last away.
    fn hand_over(&mut self, index: usize) {
        let plug = &mut self.plugs[index];
        let Some(device) = plug.device else { return };
        if plug.clients.is_empty() {
            plug.handed = Handed::default();
            return self.order(Request::Gone { device, why: "it was unplugged".to_owned() });
        }
        let max_frame = plug.plan.mtu as usize + ETHERNET_HEADER;
        let sockets: io::Result<Vec<OwnedFd>> =
            plug.clients.iter().map(|client| client.plugged.data.try_clone()).collect();
        match sockets.and_then(|sockets| VdePort::new(sockets, max_frame, Arc::clone(&plug.counts))) {
            Ok(port) => {
                let back = Some(plug.handed.begin());
                self.order(Request::Restore { device, port: Box::new(port), back });
            }
            Err(error) => {
                let cure = cure_of_want(&error).map_or_else(String::new, |cure| format!("; {cure}"));
                self.lack(index, format!("{error}{cure}"));
            }
        }
    }

    /// The worker has no port of a plug that has clients: it is handed one at the next tick.
    fn lack(&mut self, index: usize, why: String) {
        let plug = &mut self.plugs[index];
        if !plug.handed.fail(&why) {
            return;
        }
        let text = format!("{}: its frames do not pass: {why}; it is tried again each second", plug.label);
        let directory = plug.plan.directory.clone();
        // What was not written is not told.
        if self.line(&directory, Level::Warning, &text) {
            self.plugs[index].handed.note(why);
        }
    }

    /// Hands the worker those ports again that it could not have.
    fn hand_over_again(&mut self) {
        for index in 0..self.plugs.len() {
            if let Some(why) = self.plugs[index].handed.refusal() {
                self.lack(index, why);
            }
            let Plug { handed, label, plan, .. } = &self.plugs[index];
            if handed.is_due() {
                self.hand_over(index);
            } else if handed.is_mended() {
                let (text, directory) = (format!("{label}: its frames pass again"), plan.directory.clone());
                if self.line(&directory, Level::Info, &text) {
                    self.plugs[index].handed.note(String::new());
                }
            }
        }
    }

    /// Tells the worker. Where it has ended, so has all else.
    fn order(&self, order: Request) {
        let _ = self.inbox.send(order);
        self.waker.ring();
    }

    /// Reads from a client that is plugged in: nothing is expected but the end.
    fn listen(&mut self, plug: usize, client: usize) {
        let one = &mut self.plugs[plug].clients[client];
        let mut part = [0; CHATTER_BYTES];
        let why = match one.stream.read(&mut part) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(0) | Err(_) => "unplugged",
            Ok(read) => {
                one.chatter += read;
                if one.chatter < CHATTER_BYTES {
                    return;
                }
                "is no VDE client, it sends too much: unplugged"
            }
        };
        let gone = self.plugs[plug].clients.remove(client);
        let text = format!("{}: {} {why}", self.plugs[plug].label, gone.name);
        let directory = self.plugs[plug].plan.directory.clone();
        self.release(&directory, gone.plugged);
        self.hand_over(plug);
        self.line(&directory, Level::Info, &text);
    }

    fn tick(&mut self) {
        self.send_late_away(Instant::now());
        self.hand_over_again();
        for place in &mut self.directories {
            place.lines.tell(&self.log, format_args!("vde {}", place.name));
            if place.coming.is_none() {
                place.directory.sweep();
            }
        }
        let mut orders = Vec::new();
        for plug in &mut self.plugs {
            let missed = plug.counts.missed();
            if let Some(device) = plug.device.filter(|_| missed > plug.told) {
                orders.push(Request::Drops { device, frames: missed - plug.told, are_unread: false });
                plug.told = missed;
            }
        }
        for order in orders {
            self.order(order);
        }
    }
}

impl Plug {
    fn has_room(&self) -> bool {
        self.clients.len() < if self.plan.hub { MAX_CLIENTS } else { 1 }
    }
}

impl Client {
    fn new(watch: u64, stream: UnixStream, plugged: Plugged, name: String) -> Client {
        Client { watch, stream, plugged, name, chatter: 0 }
    }
}

fn who(peer: &UCred) -> String {
    format!("user {}, process {}", peer.uid.as_raw(), peer.pid.as_raw_nonzero())
}

#[cfg(test)]
mod tests;
