//! The planned restart: a new process takes over from the one that runs (`levada run -c FILE
//! --takeover`), and traffic hardly notices.
//!
//! Both talk over a Unix socket in the run directory. Each message is a length and JSON; what a
//! message has beyond what the other knows is ignored, so that a version and the next understand
//! each other; where they cannot, [`PROTOCOL`] differs and the old one refuses.
//!
//! | from | message | then |
//! |---|---|---|
//! | new | `hello` | it has read and checked its configuration, and opened nothing |
//! | old | `offer`, descriptors | of the run directory's lock, of every device (with what a TAP is known by: it may be anywhere by now), of VDE directories and of the agents' socket; the old one works on, and refuses changes |
//! | new | `ready` | everything is made; only its worker does not run yet |
//! | old | `early`, connections; any number of times | where the new one takes them: connections as they are while the old one works on |
//! | old | `state`, connections, descriptors | its agents are silent, its worker no longer reads, has sent what it could within 5 ms, and waits; as many bytes of connections as the state says, where the new one reads them: those that are not as they were sent early; of VDE clients, and of virtual machines, whose rings it uses no more |
//! | new | `taken` | its worker runs; the VDE directories it goes on with |
//! | old | | sends what it still holds, and ends; it leaves the run directory to the new one |
//!
//! Whatever goes wrong before `taken` (an error, an end, a silence) leaves the old one at work: its
//! worker resumes. `taken` arrives or it does not: before the old one gives up waiting for it, it
//! shuts the socket, so that a late `taken` fails where it is sent, and the new process ends.
//!
//! A new one that is told to end before it has sent `taken` does not send it. An old one that is
//! told to end gives nothing more away; what is already on its way has its outcome first, for which
//! it shuts the socket where it takes too long ([`Outcome`]).

pub mod early;
mod message;
mod outcome;
pub mod state;

use crate::changes::Changes;
use crate::guests::front_ends::FrontEnds;
use crate::guests::front_ends::papers::SessionPaper;
use crate::guests::vde_server::VdeServer;
use crate::guests::vde_server::papers::Papers;
use crate::handler::Handler;
use crate::handover::early::{Early, are_numbered_alike};
use crate::handover::state::{CONNECTIONS_BYTES, MESSAGE_BYTES, State, connections_bytes};
use crate::report::Facts;
use crate::system::descriptors;
use crate::system::log::{Level, Log};
use crate::worker::{Lent, Request, Waker};
use control::plan::SwitchPlan;
use datapath::vcc::early::Part;
use message::{Message, receive, send, written};
pub use outcome::Outcome;
use ports::Inherited;
use rustix::net::sockopt::socket_peercred;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// Grows when messages change their meaning, or an order of messages does.
pub const PROTOCOL: u32 = 1;
/// How long each side waits for the next message. The new one makes its switches between `offer`
/// and `ready`.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the old one waits for `taken` while nobody reads.
const SHORT: Duration = Duration::from_millis(500);
/// How long an old one that is told to end waits for what becomes of a takeover whose state is on
/// its way, before nothing more can come of it: [`SHORT`], and what the rest of it takes on a busy
/// machine.
pub const DECISION: Duration = Duration::from_secs(2);

fn send_descriptors(stream: &UnixStream, all: &[BorrowedFd<'_>]) -> io::Result<()> {
    all.chunks(descriptors::MOST).try_for_each(|some| descriptors::send(stream, b"d", some))
}

fn receive_descriptors(stream: &UnixStream, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut all = Vec::new();
    while all.len() < count {
        if descriptors::receive(stream, &mut [0], &mut all)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(all)
}

fn send_early(mut stream: &UnixStream, switch: &SwitchPlan, records: &[u8]) -> io::Result<()> {
    send(stream, &Message::Early(Early::new(switch, monotonic_ns(), records)))?;
    stream.write_all(records)
}

/// The machine's time since it was started, which both processes share.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Says that another is served. What the asker says is read first: closing a socket with something
/// unread takes the answer away, and an asker that is still writing would fail there.
fn refuse(stream: &UnixStream) {
    if stream.set_read_timeout(Some(SHORT)).is_ok() {
        let _ = receive(stream);
    }
    let _ = send(stream, &Message::Refusal { why: "another takeover runs; try again when it has ended".to_owned() });
}

fn unexpected(message: &Message) -> io::Error {
    io::Error::other(match message {
        Message::Refusal { why } => why.clone(),
        other => format!(
            "the other process sent \"{}\" out of turn: it is another version; stop it (systemctl \
             stop, or SIGTERM) and start this one",
            name(other)
        ),
    })
}

/// How a message is called where it is reported.
fn name(message: &Message) -> &'static str {
    match message {
        Message::Hello { .. } => "hello",
        Message::Offer { .. } => "offer",
        Message::Refusal { .. } => "refusal",
        Message::Ready {} => "ready",
        Message::Early(_) => "early",
        Message::State { .. } => "state",
        Message::Taken { .. } => "taken",
    }
}

/// Connections that were sent early.
struct Sent {
    /// What gave their endpoints numbers.
    facts: Arc<Facts>,
    /// By switch.
    parts: Vec<Vec<Part>>,
}

impl Sent {
    fn is_by_numbers_of(&self, facts: &Arc<Facts>) -> bool {
        Arc::ptr_eq(&self.facts, facts) || are_numbered_alike(&self.facts.plan, &facts.plan)
    }
}

/// The old process's side: gives its work away to who asks.
pub struct TakeoverServer {
    /// The lock of the run directory.
    pub lock: File,
    /// What runs: gives names to the worker's numbers.
    pub handler: Arc<Handler>,
    /// Has the rights to speak with others again.
    pub changes: Changes,
    /// VDE directories and the clients in them.
    pub plugs: VdeServer,
    /// Virtual machines.
    pub front_ends: FrontEnds,
    /// The worker's inbox.
    pub inbox: SyncSender<Request>,
    /// The worker's waker.
    pub waker: Waker,
    /// For what is to be known.
    pub log: Log,
    /// Dropped when the work has been given away: the main thread sees its other end close.
    pub left: UnixStream,
    /// Whether this process gives its work away or ends with it.
    pub outcome: Outcome,
    /// What services' connections are given to backends by.
    pub service_key: u64,
}

impl TakeoverServer {
    /// Serves takeovers until one succeeds. One at a time: others are refused.
    pub fn serve(self, listener: &UnixListener) {
        let busy = Arc::new(AtomicBool::new(false));
        let takeover_server = Arc::new(self);
        loop {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            if busy.swap(true, Ordering::AcqRel) {
                refuse(&stream);
                continue;
            }
            let (is_busy, takeover_server) = (Arc::clone(&busy), Arc::clone(&takeover_server));
            let give = move || match takeover_server.give(&stream) {
                // It stays busy: nothing is left to be taken.
                Ok(pid) => {
                    takeover_server.outcome.succeed();
                    takeover_server.log.line(Level::Info, &format!("process {pid} has taken over"));
                    let _ = takeover_server.left.shutdown(Shutdown::Both);
                }
                Err(error) => {
                    takeover_server.outcome.fail();
                    takeover_server.handler.give(false);
                    is_busy.store(false, Ordering::Release);
                    takeover_server
                        .log
                        .line(Level::Warning, &format!("a takeover failed, and this process goes on: {error}"));
                }
            };
            // Without a thread the connection is closed, and the next may have one.
            if std::thread::Builder::new().name("levada-handover".into()).spawn(give).is_err() {
                busy.store(false, Ordering::Release);
            }
        }
    }

    fn request(&self, request: Request) -> io::Result<()> {
        self.inbox
            .send(request)
            .map_err(|_| io::Error::other("the worker has ended; see the log, then restart the daemon"))?;
        self.waker.ring();
        Ok(())
    }

    fn give(&self, stream: &UnixStream) -> io::Result<u32> {
        let peer = socket_peercred(stream)?;
        if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
            return Err(io::Error::other(format!(
                "user {} may not take over; run the new process as root or as the user of the old one",
                peer.uid.as_raw()
            )));
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (pid, reads_connections, takes_early) = match receive(stream)? {
            Message::Hello { protocol: PROTOCOL, pid, reads_connections, takes_early, .. } => {
                (pid, reads_connections, takes_early)
            }
            Message::Hello { protocol, version, .. } => {
                let why = format!(
                    "version {version} speaks handover {protocol}, version {} speaks {PROTOCOL}; stop the old daemon, then start the new one",
                    env!("CARGO_PKG_VERSION")
                );
                send(stream, &Message::Refusal { why: why.clone() })?;
                return Err(io::Error::other(why));
            }
            other => return Err(unexpected(&other)),
        };
        // In its turn: a change that is being made is made to its end, and what it opened is lent.
        self.changes.make(|handler| handler.give(true)).map_err(|fault| io::Error::other(fault.to_string()))?;
        let devices = self.ask(|reply| Request::Lend { which: Lent::All, reply })?;
        let known_as = devices.iter().map(|(_, lent)| lent.known_as.clone()).collect();
        let devices = devices.into_iter().map(|(_, lent)| lent.fd).chain(self.plugs.lend());
        let devices: Vec<OwnedFd> = devices.chain(self.handler.lend_socket()).collect();
        let (version, own) = (env!("CARGO_PKG_VERSION").to_owned(), std::process::id());
        let lines = self.handler.lines();
        let (descriptors, service_key) = (devices.len() + 1, Some(self.service_key));
        send(stream, &Message::Offer { version, pid: own, descriptors, known_as, lines, service_key })?;
        let all: Vec<_> = std::iter::once(self.lock.as_fd()).chain(devices.iter().map(|fd| fd.as_fd())).collect();
        send_descriptors(stream, &all)?;
        drop(devices);
        let answer = receive(stream).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::other("the new process ended before it was ready; see its message")
            }
            _ => error,
        })?;
        match answer {
            Message::Ready {} => {}
            other => return Err(unexpected(&other)),
        }
        let early = takes_early.then(|| self.hand_over_early(stream)).transpose()?;
        if !self.outcome.begin(stream.try_clone()?) {
            return Err(io::Error::other("it was told to end"));
        }
        // The next process has programs of its own; what ours count by then goes along.
        let suspended = self.handler.suspend_shortcuts();
        self.handler.fall_silent();
        let (plugs, mut lent) = self.plugs.freeze();
        self.front_ends.freeze();
        let mut left_out = 0;
        let given = self.stop_reading(early).and_then(|mut state| {
            left_out = state.left_out;
            if !reads_connections {
                state.forget_connections();
            }
            let connections = state.take_connections();
            let (machines, more) = self.front_ends.papers();
            lent.extend(more);
            Self::pass(stream, &Message::State { state, plugs, machines }, &connections, &lent)
        });
        match given {
            Ok(directories) => {
                self.plugs.leave(&directories);
                suspended.stay();
                if left_out > 0 {
                    let text = format!(
                        "{left_out} learned addresses and addresses seen outside, the longest silent ones, were too many \
                         to be handed over: they are learned and seen again"
                    );
                    self.log.line(Level::Warning, &text);
                }
                Ok(pid)
            }
            Err(error) => {
                self.plugs.thaw();
                // All have their ports back before the first is read: what waits in the rings of
                // one is for others.
                self.front_ends.thaw();
                self.request(Request::Resume)?;
                let _ = self.changes.post(Handler::speak_again);
                Err(error)
            }
        }
    }

    /// Asks the worker for something, and waits for it.
    fn ask<T>(&self, request: impl FnOnce(SyncSender<T>) -> Request) -> io::Result<T> {
        let (reply, answer) = sync_channel(1);
        self.request(request(reply))?;
        answer
            .recv_timeout(PATIENCE)
            .map_err(|_| io::Error::other("the worker did not answer in time; see the log, then try again"))
    }

    /// Sends connections while the worker goes on.
    fn hand_over_early(&self, stream: &UnixStream) -> io::Result<Sent> {
        let facts = self.handler.facts();
        let mut parts = Vec::new();
        let most = connections_bytes(facts.plan.switches.len());
        for (number, switch) in facts.plan.switches.iter() {
            parts.resize_with(number as usize, Vec::new);
            parts.push(self.hand_over_switch(stream, (number as usize, switch), most)?);
        }
        Ok(Sent { facts, parts })
    }

    /// The same of one switch, a part at a time; no more than so many bytes of records.
    fn hand_over_switch(
        &self,
        stream: &UnixStream,
        (number, switch): (usize, &SwitchPlan),
        most: usize,
    ) -> io::Result<Vec<Part>> {
        let (mut all, mut left, mut from) = (Vec::new(), most, switch.program.has_vcc().then_some(0));
        while let Some(place) = from {
            let part = Box::new(Part::new(place));
            let mut part = *self.ask(|reply| Request::Early { switch: number, part, reply })?;
            part.shrink();
            // All beyond is sent with the state.
            let Some(rest) = left.checked_sub(part.records().len()) else { break };
            (left, from) = (rest, part.next());
            if !part.records().is_empty() {
                send_early(stream, switch, part.records())?;
                all.push(part);
            }
        }
        Ok(all)
    }

    fn stop_reading(&self, early: Option<Sent>) -> io::Result<State> {
        let facts = self.handler.facts();
        // Where a change came between, all is sent once more.
        let early = early.filter(|early| early.is_by_numbers_of(&facts)).map(|early| early.parts);
        let mut known = self.ask(|reply| Request::Yield { early: early.unwrap_or_default(), reply })?;
        let mut state = State::new(monotonic_ns(), &self.handler.facts().plan, &mut known);
        state.revision = self.handler.revision();
        Ok(state)
    }

    /// Passes on what is left, and says which VDE directories the new process goes on with.
    fn pass(
        mut stream: &UnixStream,
        state: &Message,
        connections: &[Vec<u8>],
        lent: &[OwnedFd],
    ) -> io::Result<Vec<PathBuf>> {
        let state = written(state).inspect_err(|why| {
            let _ = send(stream, &Message::Refusal { why: why.to_string() });
        })?;
        stream.write_all(&state)?;
        connections.iter().try_for_each(|of_switch| stream.write_all(of_switch))?;
        send_descriptors(stream, &lent.iter().map(|fd| fd.as_fd()).collect::<Vec<_>>())?;
        stream.set_read_timeout(Some(SHORT))?;
        let answer = receive(stream).or_else(|error| {
            // Either it has been sent by now, or it cannot be any more.
            stream.shutdown(Shutdown::Both)?;
            receive(stream).map_err(|_| error)
        })?;
        match answer {
            Message::Taken { directories } => Ok(directories),
            other => Err(unexpected(&other)),
        }
    }
}

/// The new process's side.
#[derive(Debug)]
pub struct TakeoverClient {
    stream: UnixStream,
    /// Who gives.
    pub from: u32,
    /// Of which switches' uplinks the line has carried more than now, and how much.
    pub lines: BTreeMap<String, u64>,
    /// What services' connections are given to backends by; older processes do not say it.
    pub service_key: Option<u64>,
}

/// What the old process knew when it stopped.
#[derive(Debug)]
pub struct TakeoverState {
    /// Of its switches.
    pub state: State,
    /// Of its VDE directories and clients.
    pub papers: Papers,
    /// The clients' descriptors.
    pub clients: Vec<OwnedFd>,
    /// Of sessions of virtual machines, and their descriptors.
    pub machines: (Vec<SessionPaper>, Vec<OwnedFd>),
}

impl TakeoverClient {
    /// Asks the process behind `socket` for its work. Gets the lock of the run directory, and the
    /// descriptors of its devices.
    ///
    /// # Errors
    /// Nobody is there, or it refuses: it goes on in any case.
    pub fn ask(socket: &Path) -> io::Result<(TakeoverClient, File, Vec<Inherited>)> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        send(
            &stream,
            &Message::Hello {
                protocol: PROTOCOL,
                version,
                pid: std::process::id(),
                reads_connections: true,
                takes_early: true,
            },
        )?;
        let (from, count, known_as, lines, service_key) = match receive(&stream)? {
            Message::Offer { pid, descriptors, known_as, lines, service_key, .. } => {
                (pid, descriptors, known_as, lines, service_key)
            }
            other => return Err(unexpected(&other)),
        };
        let mut all = receive_descriptors(&stream, count)?.into_iter();
        let lock = all.next().ok_or_else(|| {
            io::Error::other(
                "the old process sent an offer without the lock of the run directory; stop it, then start this one",
            )
        })?;
        let known_as = known_as.into_iter().chain(std::iter::repeat(None));
        let all = all.zip(known_as).map(|(fd, known_as)| Inherited { fd, known_as });
        Ok((TakeoverClient { stream, from, lines, service_key }, File::from(lock), all.collect()))
    }

    /// Takes the work, and the VDE directories that are inherited. All must be ready: when this
    /// returns, nobody else reads the devices. Connections that come before the rest are given to
    /// `take_early`, in their order. Where this process `is_to_end` by then, the old one keeps all:
    /// else both would end, and nobody would have the devices.
    ///
    /// # Errors
    /// The old process goes on.
    pub fn take(
        self,
        directories: Vec<PathBuf>,
        mut take_early: impl FnMut(Early),
        is_to_end: impl Fn() -> bool,
    ) -> io::Result<TakeoverState> {
        let or_ended = || if is_to_end() { Err(io::Error::other("this one was told to end")) } else { Ok(()) };
        or_ended()?;
        send(&self.stream, &Message::Ready {})?;
        let mut room = CONNECTIONS_BYTES;
        let (mut state, papers, machines) = loop {
            match receive(&self.stream)? {
                Message::Early(mut early) => {
                    early.read(&self.stream, &mut room)?;
                    take_early(early);
                }
                Message::State { state, plugs, machines } => break (state, plugs, machines),
                other => return Err(unexpected(&other)),
            }
        };
        state.read_connections(&self.stream)?;
        let of_clients = papers.descriptors();
        let count = machines.iter().fold(of_clients, |sum, paper| sum.saturating_add(paper.descriptors()));
        let mut clients = receive_descriptors(&self.stream, count)?;
        let sessions = clients.split_off(of_clients);
        or_ended()?;
        send(&self.stream, &Message::Taken { directories })?;
        Ok(TakeoverState { state, papers, clients, machines: (machines, sessions) })
    }
}

#[cfg(test)]
mod crossing;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn what_is_unknown_in_a_message_is_ignored_and_what_is_none_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let text = br#"{"message":"offer","version":"9.9.9","pid":7,"descriptors":1,"weather":"fine"}"#;
        let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
        bytes.extend(text);
        (&theirs).write_all(&bytes).unwrap();
        let offer = receive(&ours);
        assert!(matches!(
            offer,
            Ok(Message::Offer { pid: 7, descriptors: 1, ref lines, service_key: None, .. }) if lines.is_empty()
        ));
        (&theirs).write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(receive(&ours).unwrap_err().to_string().contains("is above"));
        (&theirs).write_all(&[3, 0, 0, 0, b'{', b'}', b' ']).unwrap();
        assert!(receive(&ours).is_err());
        drop(theirs);
        assert!(receive(&ours).is_err(), "the end is no message");
    }

    #[test]
    fn a_process_that_does_not_know_of_early_connections_is_sent_none() {
        let text = br#"{"message":"hello","protocol":1,"version":"0.0.1","pid":7,"reads_connections":true}"#;
        let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
        bytes.extend(text);
        assert!(matches!(receive(&bytes[..]), Ok(Message::Hello { pid: 7, takes_early: false, .. })));
    }

    #[test]
    fn descriptors_pass_in_batches() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let all = vec![file.as_fd(); 2 * descriptors::MOST + 1];
        for some in all.chunks(descriptors::MOST) {
            descriptors::send(&ours, b"d", some).unwrap();
        }
        let mut got = Vec::new();
        for _ in 0..3 {
            assert_eq!(descriptors::receive(&theirs, &mut [0], &mut got).unwrap(), 1);
        }
        assert_eq!(got.len(), all.len());
        assert!(descriptors::send(&ours, b"d", &all).is_err(), "too many at once");
    }

    /// Whether an old process that is told to end after some time gives its work away, and whether
    /// the new one, which reads after some time, takes it.
    fn ended_while_giving(told: Duration, patience: Duration, read: Duration) -> (bool, bool) {
        // More than waits in a socket.
        const BYTES: usize = 4 << 20;
        let ((ours, theirs), outcome) = (UnixStream::pair().unwrap(), Outcome::default());
        assert!(outcome.begin(ours.try_clone().unwrap()));
        let giver = outcome.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let state = Message::State { state: State::default(), plugs: Papers::default(), machines: Vec::new() };
                match TakeoverServer::pass(&ours, &state, &[vec![0; BYTES]], &[]) {
                    Ok(_) => giver.succeed(),
                    Err(_) => giver.fail(),
                }
            });
            let taker = scope.spawn(move || {
                std::thread::sleep(read);
                let Message::State { .. } = receive(&theirs)? else { return Err(io::ErrorKind::InvalidData.into()) };
                io::copy(&mut (&theirs).take(BYTES as u64), &mut io::sink())?;
                send(&theirs, &Message::Taken { directories: Vec::new() })
            });
            std::thread::sleep(told);
            (outcome.end(patience), taker.join().unwrap().is_ok())
        })
    }

    #[test]
    fn of_two_processes_one_has_the_work_whenever_the_old_one_is_told_to_end() {
        let (now, soon, later) = (Duration::ZERO, Duration::from_millis(10), Duration::from_secs(2));
        // A machine that stalls at the end keeps it from being taken.
        let takes = |_| ended_while_giving(now, later * 10, soon);
        assert!((0..20).map(takes).any(|outcome| outcome == (true, true)));
        assert_eq!(ended_while_giving(now, soon, later), (false, false), "nothing is taken behind its back");
        for round in 0..300 {
            let (old, new) = ended_while_giving(Duration::from_micros(round * 20), now, now);
            assert_eq!(old, new, "given and taken, told after {} us", round * 20);
        }
    }
}
