//! The control socket: HTTP/1.1 with JSON on a Unix socket in the run directory (RFC 9112, RFC
//! 9110; `docs/reference/http.md`).
//!
//! One thread serves all clients; what takes long (asking the worker, waiting for a change) is done
//! on others. Changes are made by a thread that has the rights for it (`changes`). The worker never
//! waits for any of it. Permits, a header, a body and its time are bounded: a connection is one
//! request. Who a client is, the kernel says (SO_PEERCRED, unix(7)): the daemon's
//! user and root may change things, members of `socket_group` may look, nobody else gets an answer.
//! The two have permits of their own, so that those who may only look cannot keep those away who
//! may do something.

mod look;
mod openapi;
mod peer;
mod permits;
mod routes;

#[cfg(test)]
mod tests;

use crate::changes::Changes;
use crate::handler::Handler;
use crate::system::descriptors::{Came, Stream};
use crate::system::door::Door;
use crate::system::memory::Memory;
use crate::system::os;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use look::{Look, Lookers};
pub use openapi::document;
use peer::Rights;
use permits::Permits;
use routes::ROUTES;
use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::{Notify, Semaphore};

/// Clients served at once of those who may change things, and of those who may look; more are told
/// so.
const CLIENTS: usize = 32;
/// Clients served at once of one user who may look.
const CLIENTS_OF_ONE: usize = 8;
/// Longest header of a request, in bytes.
const HEADER_BYTES: usize = 16 << 10;
/// Most lines in it.
const HEADER_LINES: usize = 32;
/// How long a client may take to send its header, or its body, or to take its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one who gets a refusal may take to ask.
const REFUSAL: Duration = Duration::from_secs(1);
/// Refusals being said at once.
const REFUSALS: usize = 64;
/// Threads that do what clients ask for; reading an answer from the worker takes milliseconds.
const HANDS: usize = 8;

/// What every client meets.
struct House {
    handler: Arc<Handler>,
    maker: Changes,
    door: Arc<Door>,
    changers: Arc<Permits>,
    lookers: Arc<Permits>,
    /// Those who are told that there is no place, or no right.
    refused: Arc<Semaphore>,
    /// What can be looked at, by route, and how often.
    looks: [Look; ROUTES.len()],
    pace: Lookers,
    /// Reports being made: each may be some MiB.
    reports: Semaphore,
    /// KiB of memory for bodies that are being read or wait for their turn.
    bodies: Arc<Semaphore>,
    memory: Arc<Memory>,
    /// Changes are made one after the other.
    changes: Semaphore,
    /// A trace waits for frames.
    traces: Semaphore,
}

/// Serves clients until the process ends; what they send is to find room in `memory`.
///
/// # Errors
/// The kernel has no descriptor left.
pub fn serve(
    listener: UnixListener,
    handler: Arc<Handler>,
    maker: Changes,
    door: Arc<Door>,
    memory: Arc<Memory>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(HANDS)
        .thread_name("levada-clerk")
        // Behind those that move frames, but while it waits: see `os`.
        .on_thread_unpark(os::stand_back)
        .on_thread_park(os::step_up)
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let house = Arc::new(House {
            handler,
            maker,
            door,
            // Root may have all permits: it may do anything.
            changers: Permits::new(CLIENTS, CLIENTS),
            lookers: Permits::new(CLIENTS, CLIENTS_OF_ONE),
            refused: Arc::new(Semaphore::new(REFUSALS)),
            looks: Default::default(),
            pace: Lookers::default(),
            reports: Semaphore::new(HANDS / 2),
            bodies: Arc::new(Semaphore::new(routes::BODIES_KIB)),
            memory,
            changes: Semaphore::new(1),
            traces: Semaphore::new(1),
        });
        loop {
            match listener.accept().await {
                Ok((stream, _)) => receive(&house, stream),
                // Out of descriptors: clients that leave give some back.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    })
}

/// Gives a client its place, or says why not.
fn receive(house: &Arc<House>, stream: UnixStream) {
    let (user, rights) = peer::rights(&stream, house.door.group());
    let permits = match rights {
        Rights::Change => &house.changers,
        Rights::Look => &house.lookers,
        Rights::None => return refuse(house, stream, "403 Forbidden", os::stranger()),
    };
    let permit = match permits.take(user) {
        Ok(permit) => permit,
        Err(why) => return refuse(house, stream, "503 Service Unavailable", why),
    };
    let house = Arc::clone(house);
    tokio::spawn(async move {
        // A client that went away, or did nothing in time, needs no answer.
        let _ = match rights {
            Rights::Change => {
                let came = Came::default();
                client(&house, Stream::new(stream, came.clone(), Vec::new()), rights, came).await
            }
            // What comes beside its bytes is never received.
            Rights::Look | Rights::None => client(&house, stream, rights, Came::default()).await,
        };
        drop(permit);
    });
}

/// Answers to the first bytes of a request, whatever they are. Where too many wait for that
/// already, the client gets no answer.
fn refuse(house: &Arc<House>, stream: UnixStream, status: &'static str, why: String) {
    let Ok(place) = Arc::clone(&house.refused).try_acquire_owned() else { return };
    tokio::spawn(async move {
        // A socket may be called readable before it is. One that is closed before its client has
        // asked takes the answer along.
        let asked = async {
            while stream.readable().await.is_ok()
                && stream.try_read(&mut [0; 4096]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            {
            }
        };
        let _ = tokio::time::timeout(REFUSAL, asked).await;
        let body = serde_json::to_string(&crate::api::ErrorReply::new(why)).unwrap_or_default();
        let text = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let _ = stream.try_write(text.as_bytes());
        drop(place);
    });
}

async fn client(
    house: &Arc<House>,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    rights: Rights,
    came: Came,
) -> Result<(), hyper::Error> {
    let answered = Arc::new(Notify::new());
    let service = service_fn(|request| {
        let (answered, came) = (Arc::clone(&answered), came.clone());
        async move {
            let answer = routes::answer(house, rights, request, &came).await;
            answered.notify_one();
            Ok::<hyper::Response<Full<Bytes>>, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEADER_BYTES)
        .max_headers(HEADER_LINES)
        .keep_alive(false)
        // A client that has said all that it will is answered still.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    // The answer must be taken in time; how long making it takes is the daemon's own affair.
    let too_slow = async {
        answered.notified().await;
        tokio::time::sleep(PATIENCE).await;
    };
    tokio::select! {
        done = connection => done,
        () = too_slow => Ok(()),
    }
}
