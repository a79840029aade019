//! Where switches connect: TCP, TLS or a Unix socket.

use crate::cluster::pki::credentials::{certificates, provider, read_private, verifier};
use crate::guests::front_ends::socket::Listening;
use crate::rundir::Ledger;
use ::control::config::openflow::{Listen, OpenFlow, Tls};
use rustls::{RootCertStore, ServerConfig};
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;

/// How long TLS's handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Bytes in both directions.
pub(super) trait Both: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Both for T {}
pub(super) type Bytes = Box<dyn Both>;

/// What is to be sent.
#[derive(Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Something of it may wait in TLS.
    is_held: bool,
}

impl Outgoing {
    /// Adds what a state machine wants to be sent.
    pub(super) fn take(&mut self, more: &mut Vec<u8>) {
        // As soon as it is no less than what waits, so that moving that costs each byte one move.
        if self.sent >= self.waits() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        self.bytes.append(more);
    }

    /// Bytes that wait.
    pub(super) fn waits(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether all of it is on its way.
    pub(super) fn is_done(&self) -> bool {
        self.waits() == 0 && !self.is_held
    }
}

/// Moves bytes in whichever direction is ready, what is to be sent first. So many were read into
/// `buffer`, or `None` where bytes were sent.
pub(super) async fn step(
    stream: &mut Bytes,
    out: &mut Outgoing,
    mut buffer: Option<&mut [u8]>,
) -> io::Result<Option<usize>> {
    poll_fn(|context| {
        if out.waits() > 0 {
            if let Poll::Ready(written) = Pin::new(&mut *stream).poll_write(context, &out.bytes[out.sent..]) {
                out.sent += written?;
                out.is_held = true;
                return Poll::Ready(Ok(None));
            }
        } else if out.is_held
            && let Poll::Ready(flushed) = Pin::new(&mut *stream).poll_flush(context)
        {
            flushed?;
            out.is_held = false;
            return Poll::Ready(Ok(None));
        }
        let Some(buffer) = &mut buffer else { return Poll::Pending };
        let mut buffer = ReadBuf::new(buffer);
        Pin::new(&mut *stream).poll_read(context, &mut buffer).map_ok(|()| Some(buffer.filled().len()))
    })
    .await
}

/// Where switches connect. A Unix socket goes with it; only its owner connects there.
pub(super) struct Door {
    kind: Kind,
    tls: Option<TlsAcceptor>,
    name: String,
}

enum Kind {
    Tcp(TcpListener),
    /// The file goes with it.
    Unix(UnixListener, #[allow(dead_code, reason = "it is kept")] Listening),
}

/// A connection that has just been made.
pub(super) struct Stream {
    kind: Connected,
    tls: Option<TlsAcceptor>,
}

enum Connected {
    Tcp(TcpStream, String),
    Unix(UnixStream),
}

impl Door {
    /// Listens as a configuration says; a socket is written down in `ledger` before it is made.
    pub(super) async fn open(config: &OpenFlow, ledger: Option<&Ledger>) -> Result<Door, String> {
        let tls = config.tls.as_ref().map(acceptor).transpose()?;
        match &config.listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(|error| {
                    format!("cannot listen at {address}: {error}; is another controller there? Write another `listen`")
                })?;
                let name = if tls.is_some() { format!("ssl:{address}") } else { format!("tcp:{address}") };
                Ok(Door { kind: Kind::Tcp(listener), tls, name })
            }
            Listen::Unix(path) => {
                let name = format!("unix:{path}");
                let what = format!("`listen` in [openflow], {name}");
                // One that nobody listens at was left by a process that was killed.
                let file = Listening::open(path, &what, None, false, ledger)?;
                let listener = file.listener().try_clone().and_then(UnixListener::from_std);
                let listener = listener.map_err(|error| format!("{what}: listening: {error}"))?;
                Ok(Door { kind: Kind::Unix(listener, file), tls: None, name })
            }
        }
    }

    /// How a switch is told of it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> io::Result<Stream> {
        let tls = self.tls.clone();
        match &self.kind {
            Kind::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                // Small messages that answer each other.
                stream.set_nodelay(true)?;
                Ok(Stream { kind: Connected::Tcp(stream, from.to_string()), tls })
            }
            Kind::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok(Stream { kind: Connected::Unix(stream), tls })
            }
        }
    }
}

impl Stream {
    /// Where it comes from.
    pub(super) fn peer(&self) -> String {
        match &self.kind {
            Connected::Tcp(_, from) => from.clone(),
            Connected::Unix(_) => "the Unix socket".to_owned(),
        }
    }

    /// TLS, where it is spoken.
    pub(super) async fn handshake(self) -> Result<Bytes, String> {
        match (self.kind, self.tls) {
            (Connected::Tcp(stream, _), Some(tls)) => {
                let accepted = tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await;
                let accepted = accepted.map_err(|_| "TLS took longer than 10 s".to_owned())?;
                let stream = accepted.map_err(|error| {
                    format!("no TLS: {error}; are its certificates those of ovs-vsctl set-ssl, and its target ssl:?")
                })?;
                Ok(Box::new(stream))
            }
            (Connected::Tcp(stream, _), None) => Ok(Box::new(stream)),
            (Connected::Unix(stream), _) => Ok(Box::new(stream)),
        }
    }
}

/// TLS as the files say now: both sides show certificates.
pub(super) fn acceptor(tls: &Tls) -> Result<TlsAcceptor, String> {
    let read = |path: &Path| std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()));
    let [certificate, key, authority] = [&tls.certificate, &tls.key, &tls.authority].map(Path::new);
    let mut roots = RootCertStore::empty();
    for root in certificates(&read(authority)?, authority)? {
        roots.add(root).map_err(|error| format!("{}: {error}", authority.display()))?;
    }
    let (chain, (key, _)) = (certificates(&read(certificate)?, certificate)?, read_private(key)?);
    let verifier = verifier(&Arc::new(roots)).map_err(|why| format!("{}: {why}", authority.display()))?;
    let config = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?.with_client_cert_verifier(verifier);
    let config = config
        .with_single_cert(chain, key)
        .map_err(|error| format!("{}: the key does not go with it: {error}", certificate.display()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests;
