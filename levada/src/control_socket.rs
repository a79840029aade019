//! The control socket: a Unix stream socket in the run directory. A client sends one line of JSON and gets one line of JSON back.
//!
//! `{"request":"show"}` is answered by `{"show": REPORT}`; what cannot be answered by `{"error": TEXT}`. Every client has a thread of its
//! own, a bounded line and a bounded time, and there are few of them at once: none can hold up the daemon, the worker least of all.

use crate::report::{Facts, Report};
use crate::worker::{Bell, Order, Snapshot};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Clients served at once; more are told so.
const CLIENTS: usize = 16;
/// Longest request, in bytes.
const REQUEST_BYTES: usize = 64 << 10;
/// Longest answer, in bytes: some 100 000 endpoints.
const REPLY_BYTES: u64 = 256 << 20;
/// How long a client may take to send or to take a line, and the worker to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a client may ask.
#[derive(Serialize, Deserialize, Debug)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The report.
    Show {},
}

/// The answer.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Show`].
    Show(Box<Report>),
    /// It could not be done, and why.
    Error(String),
}

/// What answers requests.
pub struct Desk {
    /// Names and what was decided at the start.
    pub facts: Facts,
    /// The worker's inbox.
    pub inbox: SyncSender<Order>,
    /// The worker's bell.
    pub bell: Bell,
    /// The numbers' memory, used again by the next request.
    pub spare: Mutex<Option<Box<Snapshot>>>,
}

impl Desk {
    fn answer(&self, line: &str) -> Reply {
        match serde_json::from_str(line) {
            Ok(Request::Show {}) => match self.snapshot() {
                Ok(shot) => {
                    let report = self.facts.report(&shot);
                    *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(shot);
                    Reply::Show(Box::new(report))
                }
                Err(why) => Reply::Error(why.to_owned()),
            },
            Err(error) => Reply::Error(format!("this is no request: {error}")),
        }
    }

    fn snapshot(&self) -> Result<Box<Snapshot>, &'static str> {
        let into = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        let (reply, answer) = sync_channel(1);
        self.inbox.try_send(Order::Snapshot { into, reply }).map_err(|_| "the worker is busy or has ended")?;
        self.bell.ring();
        answer.recv_timeout(PATIENCE).map_err(|_| "the worker did not answer")
    }
}

/// Listens at `path`, for the daemon's own user only.
///
/// # Errors
/// The path is too long, or the directory cannot be written.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves clients until the process ends.
pub fn serve(listener: &UnixListener, desk: &Arc<Desk>) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors: clients that leave give some back.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let place = Place::take(&clients);
        let desk = Arc::clone(desk);
        let serve = move || {
            // A client that went away, or did nothing in time, needs no answer.
            let _ = match place {
                Some(_place) => client(&stream, |line| desk.answer(line)),
                None => client(&stream, |_| Reply::Error(format!("{CLIENTS} clients are being served already"))),
            };
        };
        let _ = std::thread::Builder::new().name("levada-client".into()).stack_size(256 << 10).spawn(serve);
    }
}

/// One of the [`CLIENTS`] places.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(clients: &Arc<AtomicUsize>) -> Option<Place> {
        let place = Place(Arc::clone(clients));
        (clients.fetch_add(1, Ordering::Relaxed) < CLIENTS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn client(stream: &UnixStream, answer: impl FnOnce(&str) -> Reply) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let reply = match read_request(stream)? {
        Some(line) => answer(&line),
        None => Reply::Error(format!("a request is a line of at most {REQUEST_BYTES} bytes of UTF-8")),
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    (&*stream).write_all(text.as_bytes())
}

/// A line, without its end; `None` where it is too long or no text. All of it must come in time, not just each byte.
fn read_request(mut stream: &UnixStream) -> io::Result<Option<String>> {
    let deadline = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    let mut part = [0; 4096];
    while !line.ends_with(b"\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        // A timeout of zero would mean none.
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let read = stream.read(&mut part)?;
        if left.is_zero() || read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(&part[..read]);
        if line.len() > REQUEST_BYTES {
            return Ok(None);
        }
    }
    Ok(String::from_utf8(line).ok())
}

/// Asks the daemon at `path`.
///
/// # Errors
/// Nobody listens there, or what came back is no answer.
pub fn ask(path: &Path, request: &Request) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE * 2))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut text = serde_json::to_string(request)?;
    text.push('\n');
    stream.write_all(text.as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream.take(REPLY_BYTES)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_strict() {
        assert!(matches!(serde_json::from_str(r#"{"request":"show"}"#), Ok(Request::Show {})));
        for wrong in ["", "show", "{}", r#"{"request":"stop"}"#, r#"{"request":"show","x":1}"#, "[[[[[["] {
            assert!(serde_json::from_str::<Request>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused_at_its_bound() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            let mut theirs = theirs;
            let _ = theirs.write_all(&vec![b'x'; 2 * REQUEST_BYTES]);
            let mut text = String::new();
            let _ = BufReader::new(&theirs).read_line(&mut text);
            text
        });
        client(&ours, |_| panic!("must not be asked")).unwrap();
        let text = writer.join().unwrap();
        assert!(text.contains("at most 65536 bytes"), "{text}");
    }
}
