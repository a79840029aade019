//! An etcd's JSON gateway (etcd documentation, "gRPC gateway"; etcd 3.4 and later): its calls over
//! HTTP/1.1, with or without TLS. Keys and values are base64, numbers of 64 bits are text.
//!
//! Every call has a time-out, every answer a bound.

use crate::cluster::pki::credentials::{certificates, provider, read_private};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use control::config::{Etcd, EtcdUrl};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// As the gateway passes it on (etcd documentation, "interacting with etcd": `WithRequireLeader`).
const HAS_LEADER: (&str, &str) = ("grpc-metadata-hasleader", "true");
/// How long a connection may take to come about: names, TCP and TLS.
const CONNECT: Duration = Duration::from_secs(2);
/// How long an answer may take: etcd itself gives up after 7 s by default, which is longer than a
/// lease should wait.
const CALL: Duration = Duration::from_secs(3);
/// Longest answer, in bytes, and longest line of a watch: a page of entries of the largest size is
/// 6 MiB.
const MOST_ANSWER: usize = 16 << 20;

/// A connection at rest is asked for an answer after so long, so often, and so many times, by the
/// kernel: a watch hears nothing else for hours (RFC 9293, section 3.8.4).
const PROBE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);

/// A connection to a member of an etcd.
pub struct Gateway {
    sender: SendRequest<Full<Bytes>>,
    /// Where it is, of the addresses that the URL's name has.
    peer: SocketAddr,
    authority: String,
    login: Option<Login>,
}

/// Who this host is there.
#[derive(Clone)]
struct Login {
    user: String,
    password: String,
    /// What it was given for that, for some minutes: etcd's default is five.
    token: String,
}

/// Bytes, as the gateway has them.
pub fn encode(bytes: impl AsRef<[u8]>) -> Value {
    STANDARD.encode(bytes).into()
}

/// The same back; nothing is nothing.
pub fn decode(value: &Value) -> Result<Vec<u8>, String> {
    STANDARD
        .decode(value.as_str().unwrap_or_default())
        .map_err(|error| format!("the answer is not an etcd's: {error}; check the URL"))
}

/// A number of 64 bits; what is not there is 0.
pub fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// Why a file that `key` of [cluster.etcd] names cannot be used.
pub fn unreadable(key: &str, file: &Path, error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => format!("; put it there, or correct `{key}` in [cluster.etcd]"),
        _ => format!(" (`{key}` in [cluster.etcd])"),
    };
    format!("cannot read {}: {error}{remedy}", file.display())
}

/// What TLS needs, from the files as they are now; `None` where none is spoken.
pub fn tls(etcd: &Etcd) -> Result<Option<TlsConnector>, String> {
    let Some(authority) = etcd.authority.as_deref().map(Path::new) else { return Ok(None) };
    let text = std::fs::read(authority).map_err(|error| unreadable("authority", authority, &error))?;
    let mut roots = RootCertStore::empty();
    for root in certificates(&text, authority)? {
        roots.add(root).map_err(|error| format!("{}: {error}", authority.display()))?;
    }
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?.with_root_certificates(roots);
    let config = match (etcd.certificate.as_deref().map(Path::new), etcd.key.as_deref().map(Path::new)) {
        (Some(certificate), Some(key)) => {
            let text = std::fs::read(certificate).map_err(|error| unreadable("certificate", certificate, &error))?;
            let (chain, (key, _)) = (certificates(&text, certificate)?, read_private(key)?);
            config.with_client_auth_cert(chain, key).map_err(|error| format!("{}: {error}", certificate.display()))?
        }
        _ => config.with_no_client_auth(),
    };
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

impl Gateway {
    /// Connects.
    ///
    /// # Errors
    /// Why it cannot, in words.
    pub async fn open(url: &EtcdUrl, tls: Option<&TlsConnector>) -> Result<Gateway, String> {
        Gateway::connect(url, tls, TcpStream::connect((url.host.as_str(), url.port))).await
    }

    /// Connects once more, with the same member: another one may be frozen.
    ///
    /// # Errors
    /// Why it cannot, in words.
    pub async fn beside(&self, url: &EtcdUrl, tls: Option<&TlsConnector>) -> Result<Gateway, String> {
        let other = Gateway::connect(url, tls, TcpStream::connect(self.peer)).await?;
        Ok(Gateway { login: self.login.clone(), ..other })
    }

    async fn connect(
        url: &EtcdUrl,
        tls: Option<&TlsConnector>,
        stream: impl Future<Output = io::Result<TcpStream>>,
    ) -> Result<Gateway, String> {
        timeout(CONNECT, Gateway::begin(url, tls, stream))
            .await
            .map_err(|_| "no connection in time; check that the etcd runs, and firewalls".to_owned())?
    }

    async fn begin(
        url: &EtcdUrl,
        tls: Option<&TlsConnector>,
        stream: impl Future<Output = io::Result<TcpStream>>,
    ) -> Result<Gateway, String> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                "connection refused: no process listens on this port; start the etcd, or correct the URL".to_owned()
            }
            _ => error.to_string(),
        };
        let stream = stream.await.map_err(failed)?;
        let peer = stream.peer_addr().map_err(failed)?;
        let _ = stream.set_nodelay(true);
        let (idle, between, count) = PROBE;
        // Where a kernel has none of it, calls have their time-outs.
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, idle);
        let _ = sockopt::set_tcp_keepintvl(&stream, between);
        let _ = sockopt::set_tcp_keepcnt(&stream, count);
        let sender = match tls.filter(|_| url.tls) {
            Some(tls) => {
                let name = ServerName::try_from(url.host.clone()).map_err(|error| error.to_string())?;
                let stream = tls.connect(name, stream).await.map_err(|error| format!("TLS: {error}"))?;
                greet(stream).await?
            }
            None => greet(stream).await?,
        };
        let host = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
        Ok(Gateway { sender, peer, authority: format!("{host}:{}", url.port), login: None })
    }

    /// Says who this host is there.
    pub async fn log_in(&mut self, user: &str, password: &str) -> Result<(), String> {
        in_time(self.authenticate(user.to_owned(), password.to_owned())).await
    }

    async fn authenticate(&mut self, user: String, password: String) -> Result<(), String> {
        // Without a token: one that has ended is of no use.
        self.login = None;
        let (status, told) = self.ask("/v3/auth/authenticate", &json!({"name": user, "password": password})).await?;
        let told = answer(status, &told)?;
        let token =
            told["token"].as_str().ok_or("the answer to the login has no token; check `user` and `password_file`")?;
        self.login = Some(Login { user, password, token: token.to_owned() });
        Ok(())
    }

    /// Where it is.
    #[cfg(test)]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    async fn send(
        &mut self,
        path: &str,
        body: &Value,
        also: Option<(&str, &str)>,
    ) -> Result<Response<Incoming>, String> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(login) = &self.login {
            request = request.header(header::AUTHORIZATION, &login.token);
        }
        if let Some((name, value)) = also {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_string()))).map_err(|error| error.to_string())?;
        let sent = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        sent.await.map_err(|error| format!("the connection failed: {error}"))
    }

    /// Asks something; the whole answer. A token that has ended is renewed once.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub async fn call(&mut self, path: &str, body: &Value) -> Result<Value, String> {
        let whole = async {
            let (status, told) = self.ask(path, body).await?;
            let login = self.login.clone().filter(|_| status == StatusCode::UNAUTHORIZED);
            let Some(Login { user, password, .. }) = login else { return answer(status, &told) };
            self.authenticate(user, password).await?;
            let (status, told) = self.ask(path, body).await?;
            answer(status, &told)
        };
        in_time(whole).await
    }

    async fn ask(&mut self, path: &str, body: &Value) -> Result<(StatusCode, Bytes), String> {
        let response = self.send(path, body, None).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST_ANSWER).collect().await;
        let body = body.map_err(|error| format!("the answer is incomplete or too long: {error}"))?;
        Ok((status, body.to_bytes()))
    }

    /// Asks for what happens from now on: the answers come one after the other. They end when the
    /// member has no leader, as it hears of nothing then.
    ///
    /// # Errors
    /// Why they do not.
    pub async fn stream(mut self, path: &str, body: &Value) -> Result<Stream, String> {
        let response = in_time(self.send(path, body, Some(HAS_LEADER))).await?;
        if response.status() != StatusCode::OK {
            return Err(format!("the answer is {}", response.status()));
        }
        Ok(Stream { body: response.into_body(), buffer: Vec::new(), _open: self.sender })
    }
}

/// What is answered, unless that takes too long.
async fn in_time<T>(asked: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(CALL, asked).await.map_err(|_| "no answer in time; see the etcd's log".to_owned())?
}

async fn greet(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
) -> Result<SendRequest<Full<Bytes>>, String> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // What goes wrong with it, the next call says.
    tokio::spawn(connection);
    Ok(sender)
}

/// What an answer says.
fn answer(status: StatusCode, body: &[u8]) -> Result<Value, String> {
    let value: Result<Value, _> = serde_json::from_slice(body);
    if status == StatusCode::OK {
        return value.map_err(|error| format!("the answer is not an etcd's: {error}; check the URL"));
    }
    let value = value.unwrap_or_default();
    let why = ["message", "error"].iter().find_map(|key| value[*key].as_str());
    Err(why.map_or_else(
        || format!("the answer is {status}"),
        |why| format!("the etcd reports: {}", why.chars().take(200).collect::<String>()),
    ))
}

/// Answers that come one after the other, a line each.
pub struct Stream {
    body: Incoming,
    buffer: Vec<u8>,
    _open: SendRequest<Full<Bytes>>,
}

impl Stream {
    /// The next. May be given up and asked again; nothing is lost.
    ///
    /// # Errors
    /// Why there are no more.
    pub async fn next(&mut self) -> Result<Value, String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let value: Value = serde_json::from_slice(&line)
                    .map_err(|error| format!("an event is not an etcd's: {error}; check the URL"))?;
                if let Some(error) = value.get("error") {
                    let why =
                        error["message"].as_str().or(error.as_str()).unwrap_or("unknown error; see the etcd's log");
                    return Err(format!("the etcd reports: {}", why.chars().take(200).collect::<String>()));
                }
                return Ok(value);
            }
            if self.buffer.len() > MOST_ANSWER {
                return Err("an event is too long; check `prefix`".to_owned());
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.buffer.extend(frame.data_ref().into_iter().flatten()),
                Some(Err(error)) => return Err(format!("the connection failed: {error}")),
                None => return Err("the etcd has closed the connection".to_owned()),
            }
        }
    }
}
