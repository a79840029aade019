//! The line to one host: what we have to say to it. It is opened when there is something to say,
//! and closes when there was nothing for a minute.
//!
//! Each host speaks on the connections that it has opened itself, and listens on those of others.
//! So there is never a question which of two connections counts, and a host that was restarted says
//! so by opening one.
//!
//! Feedback is worth something while it is fresh. What waits for longer than [`FRESH`] because the
//! connection is not there yet is not sent any more, and of what is too much the oldest goes first.

use super::flow::MAX_DATAGRAM;
use super::rate::{BURST, Bucket, RATE};
use super::status::Status;
use super::{CLOSED_AT_REST, NOT_A_MEMBER, Papers};
use crate::cluster::pki::credentials::Parsed;
use quinn::{Connection, ConnectionError, SendDatagramError};
use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

/// Datagrams that wait for a connection.
const WAITING: usize = 64;
/// How long a datagram may wait for one: an agent's lease is 240 ms or more, and it says again what
/// matters.
const FRESH: Duration = Duration::from_millis(200);
/// How long connecting may take.
const DIAL: Duration = Duration::from_secs(3);
/// After how long another attempt begins beside the first; each further one waits twice as long:
/// four are under way in the end. A port of the network that a flood fills has hardly ever room for
/// the long packets of a handshake, and QUIC tries each of them again after 60, 120, 240 ms and so
/// on: six times in [`DIAL`], where four attempts have twenty tries, most of them early. A host
/// that is only slow goes on with the first.
const FIRST_GAP: Duration = Duration::from_millis(200);
/// A host that says nothing for so long, not even that something has arrived, is taken for dead.
/// QUIC asks again after some 30, 60, 120, 240, 480 and 960 ms; that all of that is lost where 30 %
/// are, in both directions, happens once in fifty times, and costs a handshake.
const SILENCE: Duration = Duration::from_secs(2);
/// How long nothing is tried after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause. A host that comes back is heard of before, if it has something to say itself.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A connection that ends sooner counts as one that did not come about: the other side may have
/// refused us only after that.
const SETTLED: Duration = Duration::from_secs(1);

/// The line to one host.
pub struct Line {
    /// The host.
    pub host: String,
    /// Where it is.
    pub address: SocketAddr,
    /// What to connect with; changes when this host's certificate does.
    pub papers: watch::Receiver<Option<Papers>>,
    /// What is to be said.
    pub posts: mpsc::Receiver<Vec<u8>>,
    /// The host is alive: it has connected to us.
    pub alive: Arc<Notify>,
    /// What becomes of it.
    pub status: Arc<Status>,
}

/// What waits for a connection, and since when.
type Waiting = VecDeque<(Instant, Vec<u8>)>;

/// How a connection ended.
enum End {
    /// Nobody had anything to say.
    Rest,
    /// The other end, or the network.
    Lost(String),
    /// This line is not needed any more.
    Over,
}

impl Line {
    /// Works until nobody can post any more.
    pub async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        while let Some(first) = self.posts.recv().await {
            let mut waiting = Waiting::from([(Instant::now(), first)]);
            let began = Instant::now();
            let end = match self.dial(&mut waiting).await {
                Some(Ok(connection)) => self.talk(&connection, waiting).await,
                Some(Err(why)) => {
                    self.unsent(waiting.len());
                    End::Lost(why)
                }
                None => End::Over,
            };
            self.status.host(&self.host, |host| host.outgoing = None);
            match end {
                End::Over => return,
                End::Rest => pause = FIRST_PAUSE,
                End::Lost(why) => {
                    self.status.failed(&self.host, why);
                    if began.elapsed() > DIAL + SETTLED {
                        // It was there for long enough: it may be there again already.
                        pause = FIRST_PAUSE;
                        continue;
                    }
                    self.hold_off(pause).await;
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
            }
        }
    }

    /// Connects, while what comes meanwhile waits. `None` when the line is over.
    async fn dial(&mut self, waiting: &mut Waiting) -> Option<Result<Connection, String>> {
        let Some(papers) = self.papers.borrow_and_update().clone() else {
            return Some(Err("this host cannot connect yet; levada show cluster shows its own error".to_owned()));
        };
        // The others end with the first that comes about.
        let mut attempts = JoinSet::new();
        let (mut next, mut gap) = (Instant::now(), FIRST_GAP);
        let until = next + DIAL;
        loop {
            tokio::select! {
                () = sleep_until(next.into()), if next < until => {
                    match papers.endpoint.connect_with(papers.client.clone(), self.address, &self.host) {
                        Ok(connecting) => attempts.spawn(connecting),
                        Err(error) => return Some(Err(format!("cannot connect: {error}; check the member's `address`"))),
                    };
                    (next, gap) = (next + gap, gap * 2);
                }
                Some(Ok(done)) = attempts.join_next() => return Some(done.map_err(|error| explained(&error, &self.host))),
                () = sleep_until(until.into()) => return Some(Err(format!("{} does not answer; check that its daemon runs, and firewalls", self.address))),
                post = self.posts.recv() => {
                    waiting.push_back((Instant::now(), post?));
                    if waiting.len() > WAITING {
                        waiting.pop_front();
                        self.unsent(1);
                    }
                }
            }
        }
    }

    /// Says what there is to say, until the connection ends.
    async fn talk(&mut self, connection: &Connection, waiting: Waiting) -> End {
        let not_after = shown(connection).map(|parsed| parsed.not_after);
        self.status.host(&self.host, |host| {
            host.outgoing = Some(Instant::now());
            host.connections += 1;
            host.not_after = not_after.or(host.not_after);
        });
        let mut bucket = Bucket::new(RATE, BURST, Instant::now());
        let mut silence = Silence::default();
        for (since, datagram) in waiting {
            if since.elapsed() < FRESH {
                self.say(connection, &mut bucket, &mut silence, datagram);
            } else {
                self.unsent(1);
            }
        }
        let closed = connection.closed();
        let mut closed = pin!(closed);
        loop {
            tokio::select! {
                post = self.posts.recv() => match post {
                    Some(datagram) => self.say(connection, &mut bucket, &mut silence, datagram),
                    None => {
                        connection.close(CLOSED_AT_REST, b"");
                        return End::Over;
                    }
                },
                error = &mut closed => return match &error {
                    ConnectionError::TimedOut | ConnectionError::LocallyClosed => End::Rest,
                    ConnectionError::ApplicationClosed(close) if close.error_code == CLOSED_AT_REST => End::Rest,
                    error => End::Lost(explained(error, &self.host)),
                },
                () = async { sleep_until(silence.until.unwrap_or_else(Instant::now).into()).await }, if silence.until.is_some() => {
                    if !silence.broken(connection) {
                        connection.close(CLOSED_AT_REST, b"");
                        return End::Lost(format!("has not answered for {} s; check that its daemon runs, and the network", SILENCE.as_secs()));
                    }
                }
                changed = self.papers.changed() => {
                    connection.close(CLOSED_AT_REST, b"");
                    return if changed.is_ok() { End::Rest } else { End::Over };
                }
            }
        }
    }

    fn say(&self, connection: &Connection, bucket: &mut Bucket, silence: &mut Silence, datagram: Vec<u8>) {
        let length = datagram.len();
        let fits = length <= MAX_DATAGRAM && connection.datagram_send_buffer_space() >= length;
        if !fits || !bucket.take(Instant::now()) {
            return self.unsent(1);
        }
        match connection.send_datagram(datagram.into()) {
            Ok(()) => {
                self.status.host(&self.host, |host| host.sent += 1);
                silence.begin(connection);
            }
            // The loop sees it.
            Err(SendDatagramError::ConnectionLost(_)) => self.unsent(1),
            Err(error) => {
                self.unsent(1);
                self.status.failed(
                    &self.host,
                    format!("does not accept datagrams of {length} bytes: {error}; check the MTU to it"),
                );
            }
        }
    }

    /// Tries nothing for a while, unless the host shows that it is there. What is to be said
    /// meanwhile is not said.
    async fn hold_off(&mut self, pause: Duration) {
        let over = sleep(spread(pause));
        let mut over = pin!(over);
        let alive = Arc::clone(&self.alive);
        let mut alive = pin!(alive.notified());
        loop {
            tokio::select! {
                () = &mut over => return,
                () = &mut alive => return,
                post = self.posts.recv() => match post {
                    Some(_) => self.unsent(1),
                    None => return,
                },
            }
        }
    }

    fn unsent(&self, count: usize) {
        self.status.host(&self.host, |host| host.unsent += count as u64);
    }
}

/// Whether the other end has been silent since something was sent. Nothing runs at rest.
#[derive(Default)]
struct Silence {
    until: Option<Instant>,
    heard: u64,
}

impl Silence {
    /// Something was sent.
    fn begin(&mut self, connection: &Connection) {
        if self.until.is_none() {
            self.until = Some(Instant::now() + SILENCE);
            self.heard = connection.stats().udp_rx.datagrams;
        }
    }

    /// Whether something came since.
    fn broken(&mut self, connection: &Connection) -> bool {
        self.until = None;
        connection.stats().udp_rx.datagrams > self.heard
    }
}

/// A quarter more or less, so that hosts that failed together do not try together.
fn spread(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 512;
    pause * (768 + random as u32) / 1024
}

/// The certificate that the other end has shown.
pub fn shown(connection: &Connection) -> Option<Parsed> {
    let identity = connection.peer_identity()?;
    let chain = identity.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().ok()?;
    Parsed::new(chain.first()?).ok()
}

/// Why a connection has ended or not come about, for the operator.
fn explained(error: &ConnectionError, host: &str) -> String {
    match error {
        ConnectionError::ApplicationClosed(close) if close.error_code == NOT_A_MEMBER => {
            "it does not know this host; add this host to the members there".to_owned()
        }
        ConnectionError::ConnectionClosed(close) => {
            format!(
                "it does not accept this host's certificate, or has another cluster's: {}; run levada cluster join",
                close.reason_text()
            )
        }
        ConnectionError::TransportError(error) => {
            format!(
                "its certificate is not that of host \"{host}\" in this cluster: {}; correct `address`, or run levada cluster join there",
                error.reason
            )
        }
        ConnectionError::Reset => "its daemon was restarted; the connection is opened again".to_owned(),
        ConnectionError::TimedOut => "it does not answer; check that its daemon runs, and the network".to_owned(),
        other => other.to_string(),
    }
}

/// The words of the other end, which it has chosen: short, and printable.
trait ReasonText {
    fn reason_text(&self) -> String;
}

impl ReasonText for quinn::ConnectionClose {
    fn reason_text(&self) -> String {
        let reason = String::from_utf8_lossy(&self.reason);
        let reason: String = reason.chars().filter(|c| !c.is_control()).take(120).collect();
        format!("{} {reason}", self.error_code)
    }
}
