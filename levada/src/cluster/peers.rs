//! Peers: what the agents of other hosts say to this one's, and it to them. Authenticated and
//! encrypted datagrams, best effort.
//!
//! A datagram arrives whole, at most once, from the host whose name comes with it, or not at all.
//! Everything else (loss, order, what it means) is the agents' affair. Who a host is, its
//! certificate says, which the cluster's authority has signed (`cluster`); who is a member, the
//! configuration says. How connections behave is in `flow`, what this host says in `line`, who may
//! speak to it in `acceptor`.
//!
//! All of it is one thread beside the worker, which posts without ever waiting: a bounded queue,
//! and what does not fit is counted and dropped. Every table is bounded by the number of members,
//! every queue by a constant. Nothing is sent at rest.
//!
//! What is wrong with network, certificate or clock never ends the daemon: the switch goes on,
//! `levada show cluster` says what it is, and it is tried again.

mod acceptor;
mod flow;
mod line;
mod rate;
mod socket;
pub mod status;

#[cfg(test)]
mod tests;

use crate::cluster::pki::credentials::{Credentials, HOST, TRUST};
use crate::system::log::{Level, Log};
use crate::system::privileges::{Duty, confine};
use acceptor::Acceptor;
use line::Line;
use quinn::{ClientConfig, Endpoint, TokioRuntime, VarInt};
pub use socket::Socket;
use status::{Seen, Status};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use time::OffsetDateTime;
use tokio::sync::{mpsc, watch};

/// Datagrams that wait for the thread.
const POSTS: usize = 1024;
/// Datagrams that wait for the line to one host.
const LINE_POSTS: usize = 256;
/// How often files and dates are looked at.
const LOOK: Duration = Duration::from_secs(60);
/// The same while something keeps this host from the network.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long others are given to hear that we go.
const FAREWELL: Duration = Duration::from_millis(200);
/// The same where another process goes on at once: the word that connections end must be sent, and
/// what is answered is for the other.
const HANDOVER: Duration = Duration::from_millis(10);
/// From how long before a certificate ends its end is warned of, and how often.
const WARNING: time::Duration = time::Duration::days(30);
const WARNING_EVERY: Duration = Duration::from_secs(86_400);

/// Why a connection is closed (RFC 9000, section 10.2): it is not needed now.
const CLOSED_AT_REST: VarInt = VarInt::from_u32(0);
/// You are not a member of the cluster.
const NOT_A_MEMBER: VarInt = VarInt::from_u32(1);
/// You have opened another.
const REPLACED: VarInt = VarInt::from_u32(2);

/// Takes what a host says: its name, and a datagram. False: it could not take it. It may not block.
pub type Hear = Arc<dyn Fn(&str, &[u8]) -> bool + Send + Sync>;

/// Which host this is, and which are the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// This host's name.
    pub host: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where its certificate and the authorities are.
    pub directory: PathBuf,
    /// The others, and where they are.
    pub others: BTreeMap<String, SocketAddr>,
}

/// The way to other hosts.
pub struct Peers {
    settings: watch::Sender<Settings>,
    voice: Voice,
    is_succeeded: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Peers {
    /// Begins, in a thread of its own; what others say goes to `hear`. It listens at `socket`,
    /// which it opens where that is not open.
    ///
    /// # Errors
    /// The system has no thread or descriptor left. Everything else is tried again and again.
    pub fn start(settings: Settings, socket: Socket, log: Log, hear: Hear) -> io::Result<Peers> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let status = Arc::new(Status::default());
        let (posts, posted) = mpsc::channel(POSTS);
        let (settings, changes) = watch::channel(settings);
        let acceptor = Acceptor::new(Arc::clone(&status), hear);
        let is_succeeded = Arc::new(AtomicBool::new(false));
        let mut house = House::new(changes, socket, Arc::clone(&status), acceptor, log);
        house.is_succeeded = Arc::clone(&is_succeeded);
        let thread = std::thread::Builder::new().name("levada-peers".to_owned()).spawn(move || {
            if let Err(why) = confine(Duty::Peers) {
                house.log.line(Level::Warning, &why);
            }
            runtime.block_on(async { house.run(posted).await })
        })?;
        Ok(Peers { settings, voice: Voice { posts, status }, is_succeeded, thread: Some(thread) })
    }

    /// What speaks to other hosts, for whoever has something to say.
    pub fn voice(&self) -> Voice {
        self.voice.clone()
    }

    /// From now on it is so. Connections with hosts that stay remain; certificates are looked at
    /// again.
    pub fn change(&self, settings: Settings) {
        self.settings.send_replace(settings);
    }

    /// Ends, for another process to go on at the same socket: when this returns, nobody reads it
    /// here.
    pub fn hand_over(self) {
        self.is_succeeded.store(true, Ordering::Relaxed);
    }

    /// What is known of all connections.
    pub fn seen(&self) -> Seen {
        self.voice.status.seen()
    }
}

impl Drop for Peers {
    /// Says goodbye to the others, and ends the thread.
    fn drop(&mut self) {
        // Its end is what the thread waits for.
        let settings = self.settings.borrow().clone();
        self.settings = watch::channel(settings).0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Speaks to other hosts. It outlives [`Peers`], and is heard by nobody then.
#[derive(Clone)]
pub struct Voice {
    posts: mpsc::Sender<(String, Vec<u8>)>,
    status: Arc<Status>,
}

impl Voice {
    /// Sends a datagram of at most 1200 bytes to another host, if that can be done without waiting.
    /// What cannot be sent is counted.
    pub fn send(&self, host: &str, datagram: Vec<u8>) {
        if self.posts.try_send((host.to_owned(), datagram)).is_err() {
            self.status.unposted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What to connect with.
#[derive(Clone)]
struct Papers {
    endpoint: Endpoint,
    client: ClientConfig,
}

/// The thread's own state.
struct House {
    settings: watch::Receiver<Settings>,
    socket: Socket,
    is_succeeded: Arc<AtomicBool>,
    status: Arc<Status>,
    log: Log,
    acceptor: Acceptor,
    /// What speaks at the socket, and where that was asked for.
    endpoint: Option<(SocketAddr, Endpoint)>,
    /// No interface has the address of that any more.
    is_absent: bool,
    credentials: Option<Credentials>,
    /// Of the files that `credentials` are from, or why they are not.
    stamps: Stamps,
    papers: watch::Sender<Option<Papers>>,
    lines: HashMap<String, (SocketAddr, mpsc::Sender<Vec<u8>>)>,
    /// When files, dates and the socket are looked at next.
    look_at: Instant,
    /// When the end of a certificate was last warned of, whatever the time of day becomes.
    warned: Option<Instant>,
}

/// When the files were written; none that is not there.
type Stamps = [Option<SystemTime>; 2];

impl House {
    fn new(
        settings: watch::Receiver<Settings>,
        socket: Socket,
        status: Arc<Status>,
        acceptor: Acceptor,
        log: Log,
    ) -> House {
        House {
            settings,
            socket,
            is_succeeded: Arc::default(),
            status,
            log,
            acceptor,
            endpoint: None,
            is_absent: false,
            credentials: None,
            stamps: [None; 2],
            papers: watch::channel(None).0,
            lines: HashMap::new(),
            look_at: Instant::now(),
            warned: None,
        }
    }

    async fn run(&mut self, mut posts: mpsc::Receiver<(String, Vec<u8>)>) {
        self.follow();
        loop {
            let look = tokio::time::sleep_until(self.look_at.into());
            let endpoint = self.endpoint.as_ref().map(|(_, endpoint)| endpoint.clone());
            tokio::select! {
                changed = self.settings.changed() => match changed {
                    Ok(()) => self.follow(),
                    Err(_) => break,
                },
                Some((host, datagram)) = posts.recv() => self.post(&host, datagram),
                Some(incoming) = next(endpoint.as_ref()) => self.acceptor.meet(incoming),
                () = look => self.look(),
            }
        }
        self.leave().await;
    }

    /// Becomes what the settings say.
    fn follow(&mut self) {
        let settings = self.settings.borrow_and_update().clone();
        let mut others = settings.others.clone();
        others.remove(&settings.host);
        self.status.become_hosts(&others);
        self.acceptor.admit(&others);
        // Who has moved gets another line.
        self.lines.retain(|name, (address, _)| others.get(name) == Some(address));
        if self.credentials.as_ref().is_some_and(|credentials| credentials.host != settings.host) {
            self.stamps = [None; 2];
        }
        self.look();
    }

    /// Looks at files, dates and the socket.
    fn look(&mut self) {
        let settings = self.settings.borrow().clone();
        let mut is_new = self.look_at_files(&settings);
        if let Some(credentials) = &self.credentials
            && !self.endpoint.as_ref().is_some_and(|(asked, endpoint)| {
                *asked == settings.listen || endpoint.local_addr().is_ok_and(|at| at == settings.listen)
            })
        {
            is_new = true;
            // The address may be that of the old socket, which goes when all connections of it
            // have: then the next look opens the new one.
            if let Some((_, old)) = self.endpoint.take() {
                old.close(CLOSED_AT_REST, b"");
                self.papers.send_replace(None);
                self.acceptor.clear();
            }
            match open(&settings, &self.socket, credentials) {
                Ok(endpoint) => self.endpoint = Some((settings.listen, endpoint)),
                Err(why) => self.complain(why),
            }
        }
        if is_new {
            self.settle();
        }
        self.look_for_address(settings.listen);
        let now = OffsetDateTime::now_utc();
        self.acceptor.expel_expired(now);
        self.warn(now, Instant::now());
        let settled = self.endpoint.is_some() && self.credentials.is_some() && !self.is_absent;
        self.look_at = Instant::now() + if settled { LOOK } else { LOOK_AGAIN };
    }

    /// Looks whether an interface still has the socket's address. The socket stays: it works again
    /// when the address returns.
    fn look_for_address(&mut self, listen: SocketAddr) {
        let was = self.is_absent;
        let mut at = listen;
        at.set_port(0);
        let gone = |error: io::Error| error.kind() == io::ErrorKind::AddrNotAvailable;
        self.is_absent = self.endpoint.is_some() && UdpSocket::bind(at).is_err_and(gone);
        let listening = self.endpoint.as_ref().and_then(|(_, endpoint)| endpoint.local_addr().ok());
        if self.is_absent {
            let mut is_said = was;
            self.status.own(|own| {
                own.listening = None;
                is_said &= own.error.is_some();
            });
            if !is_said {
                self.complain(format!("cannot listen on {listen}: no interface of this host has the address any more"));
            }
        } else if was && listening.is_some() {
            self.status.own(|own| (own.listening, own.error) = (listening, None));
            self.log.line(Level::Info, &format!("an interface of this host has {} again", listen.ip()));
        }
    }

    /// Takes up certificates that were written since. True: there are others now.
    fn look_at_files(&mut self, settings: &Settings) -> bool {
        let stamp = |file: &str| std::fs::metadata(settings.directory.join(file)).and_then(|meta| meta.modified()).ok();
        let stamps = [stamp(HOST), stamp(TRUST)];
        let expired = self.credentials.as_ref().is_some_and(|c| c.not_after < OffsetDateTime::now_utc());
        if self.credentials.is_some() && !expired && stamps == self.stamps {
            return false;
        }
        self.stamps = stamps;
        match Credentials::load(&settings.directory, &settings.host) {
            Ok(credentials) => {
                self.credentials = Some(credentials);
                self.warned = None;
                true
            }
            Err(why) => {
                // The remedy may leave the files as they are: their mode.
                self.stamps = [None; 2];
                // What was good is used while it is: half of a change may be on the disk.
                if expired || self.credentials.as_ref().is_some_and(|c| c.host != settings.host) {
                    self.credentials = None;
                    self.papers.send_replace(None);
                    self.acceptor.clear();
                }
                let used = self.credentials.as_ref().map(|used| used.not_after.date());
                let meanwhile =
                    used.map(|until| format!("; until this is put right, the certificate until {until} is used"));
                self.complain(why + &meanwhile.unwrap_or_default());
                false
            }
        }
    }

    /// Everything is made anew with socket and certificate as they are now.
    fn settle(&mut self) {
        let (Some((_, endpoint)), Some(credentials)) = (&self.endpoint, &self.credentials) else { return };
        let made = flow::server(credentials).and_then(|server| Ok((server, flow::client(credentials)?)));
        let (server, client) = match made {
            Ok(made) => made,
            Err(why) => {
                return self.complain(format!("the certificate cannot be used: {why}; run levada cluster join"));
            }
        };
        endpoint.set_server_config(Some(server));
        self.acceptor.clear();
        self.papers.send_replace(Some(Papers { endpoint: endpoint.clone(), client }));
        let listening = endpoint.local_addr().ok();
        self.status.own(|own| {
            own.listening = listening;
            own.not_after = Some(credentials.not_after);
            own.authorities = Some((credentials.authority_not_after, credentials.authorities));
            own.error = None;
        });
        self.log.line(
            Level::Info,
            &format!(
                "exchanges messages as host \"{}\", with a certificate until {}",
                credentials.host,
                credentials.not_after.date()
            ),
        );
    }

    /// Says what is wrong, once.
    fn complain(&mut self, why: String) {
        let mut is_new = false;
        self.status.own(|own| {
            is_new = own.error.as_ref() != Some(&why);
            own.error = Some(why.clone());
        });
        let is_mute = self.endpoint.is_none() || self.credentials.is_none();
        if is_mute {
            self.status.own(|own| own.listening = None);
        }
        if is_new {
            let what = if is_mute { "cannot exchange messages with other hosts: " } else { "" };
            self.log.line(Level::Warning, &format!("{what}{why}"));
        }
    }

    /// Warns of the end of certificates, where the time of day is `now`, at most once a day.
    fn warn(&mut self, now: OffsetDateTime, at: Instant) {
        let Some(credentials) = &self.credentials else { return };
        if self.warned.is_some_and(|then| at.duration_since(then) < WARNING_EVERY) {
            return;
        }
        let ends = [
            (credentials.not_after, "the certificate of this host", "levada cluster join"),
            (credentials.authority_not_after, "the cluster's authority", "levada cluster rotate"),
        ];
        for (end, what, remedy) in ends.into_iter().filter(|(end, ..)| *end - now < WARNING) {
            self.warned = Some(at);
            let days = (end - now).whole_days();
            self.log.line(Level::Warning, &format!("{what} expires in {days} days, on {}: {remedy}", end.date()));
        }
    }

    /// Gives a datagram to the line of its host.
    fn post(&mut self, host: &str, datagram: Vec<u8>) {
        let Some(&address) = self.settings.borrow().others.get(host) else { return };
        let line = self.lines.entry(host.to_owned()).or_insert_with(|| {
            let (line, posts) = mpsc::channel(LINE_POSTS);
            let line_of = Line {
                host: host.to_owned(),
                address,
                papers: self.papers.subscribe(),
                posts,
                alive: self.acceptor.alive(host),
                status: Arc::clone(&self.status),
            };
            tokio::spawn(line_of.run());
            (address, line)
        });
        if line.1.try_send(datagram).is_err() {
            self.status.host(host, |host| host.unsent += 1);
        }
    }

    /// Says goodbye.
    async fn leave(&mut self) {
        if let Some((_, endpoint)) = self.endpoint.take() {
            endpoint.close(CLOSED_AT_REST, b"");
            let farewell = if self.is_succeeded.load(Ordering::Relaxed) { HANDOVER } else { FAREWELL };
            let _ = tokio::time::timeout(farewell, endpoint.wait_idle()).await;
        }
    }
}

/// The next who wants to come in; for ever none where there is no socket.
async fn next(endpoint: Option<&Endpoint>) -> Option<quinn::Incoming> {
    match endpoint {
        Some(endpoint) => endpoint.accept().await,
        None => std::future::pending().await,
    }
}

/// Opens the socket, unless it is.
fn open(settings: &Settings, socket: &Socket, credentials: &Credentials) -> Result<Endpoint, String> {
    let config = flow::endpoint(credentials)?;
    let server = flow::server(credentials)?;
    let at = settings.listen;
    let failed = |error: io::Error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => "another process has it; it is tried again",
            io::ErrorKind::AddrNotAvailable => "no interface of this host has the address; it is tried again",
            io::ErrorKind::PermissionDenied => "a daemon has no ports below 1024; change [cluster] listen",
            _ => "see [cluster] listen",
        };
        format!("cannot listen on {at}: {error}: {remedy}")
    };
    let socket = socket.open(at).map_err(failed)?;
    Endpoint::new(config, Some(server), socket, Arc::new(TokioRuntime)).map_err(failed)
}
