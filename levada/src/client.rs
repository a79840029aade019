//! The command line's side of the control socket.

use crate::api::{ConfigReply, ErrorReply, ProblemReply};
use crate::error::Failure;
use crate::rundir::{self, SOCKET};
use crate::system::descriptors::{Came, Stream};
use clap::Args;
use control::config::Config;
use control::problem::{MOST_SHOWN, Problem};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Which daemon.
#[derive(Args, Debug)]
pub struct Instance {
    /// The instance ([daemon] name); may be left out where there is only one
    #[arg(short, long, value_parser = instance_name)]
    pub name: Option<String>,
}

/// A name of an instance is part of a path: it may not be any text.
pub fn instance_name(name: &str) -> Result<String, String> {
    control::names::name(name).map_err(|wrong| format!("{}; {}", wrong.message, wrong.remedy))
}

/// The daemon's configuration has what this version does not know.
fn unreadable(problems: &[Problem]) -> Failure {
    let texts = problems.iter().take(MOST_SHOWN).map(|problem| ProblemReply::from(problem).text("error"));
    Failure::Failed(format!(
        "the daemon's configuration cannot be read; use the levada of the daemon's version{}",
        texts.collect::<String>()
    ))
}

/// Longest answer that is read, in bytes: some 100 000 endpoints.
const ANSWER_BYTES: usize = 512 << 20;
/// How long an answer may take: opening a thousand devices takes seconds, more where the kernel is
/// busy with namespaces.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running daemon.
pub struct Client {
    name: String,
    path: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// The instance `name`; without a name, the only one there is.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn new(name: Option<&str>) -> Result<Client, Failure> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => only_instance()?,
        };
        let path = rundir::base().join(&name).join(SOCKET);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::Failed(format!("cannot start the client of the control socket: {error}")))?;
        Ok(Client { name, path, runtime })
    }

    /// Gets what is at `path`.
    ///
    /// # Errors
    /// Nobody listens, or the daemon refused, in words.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(Method::GET, path, Vec::new(), Vec::new())
    }

    /// The configuration that the daemon runs, and its revision.
    ///
    /// # Errors
    /// See [`Client::get`]; or the daemon is of another version.
    pub fn running(&self) -> Result<(Config, u64), Failure> {
        let reply: ConfigReply = self.get("/v1/config")?;
        let running = control::read_document(&reply.config).map_err(|problems| unreadable(&problems))?;
        Ok((running, reply.revision))
    }

    /// Sends `body` to `path`.
    ///
    /// # Errors
    /// See [`Client::get`].
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        self.post_with(path, body, Vec::new())
    }

    /// The same, with descriptors beside it.
    ///
    /// # Errors
    /// See [`Client::get`].
    pub fn post_with<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        descriptors: Vec<OwnedFd>,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::Failed(error.to_string()))?;
        self.ask(Method::POST, path, body, descriptors)
    }

    fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<T, Failure> {
        let talk = self.runtime.block_on(async {
            match tokio::time::timeout(PATIENCE, self.talk(method, path, body, descriptors)).await {
                Ok(answer) => answer,
                Err(_) => Err(format!(
                    "instance \"{}\" did not answer on {} within {} s; see its log",
                    self.name,
                    self.path.display(),
                    PATIENCE.as_secs()
                )),
            }
        });
        let (status, answer) = talk.map_err(Failure::Failed)?;
        let unreadable = |error| {
            Failure::Failed(format!(
                "instance \"{}\" sent an answer that this version cannot read: {error}; use the version of the daemon",
                self.name
            ))
        };
        if status == StatusCode::OK {
            return serde_json::from_slice(&answer).map_err(unreadable);
        }
        let refused: ErrorReply = serde_json::from_slice(&answer).map_err(unreadable)?;
        Err(Failure::Failed(refused.text()))
    }

    async fn talk(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(StatusCode, Bytes), String> {
        let stream = tokio::net::UnixStream::connect(&self.path).await.map_err(|error| self.unreachable(&error))?;
        let stream = Stream::new(stream, Came::default(), descriptors);
        let broken = |error: hyper::Error| format!("{}: {error}", self.path.display());
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "levada")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())?;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(broken)?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
            let body = body.map_err(|error| format!("{}: {error}", self.path.display()))?;
            Ok((status, body.to_bytes()))
        };
        tokio::pin!(connection, exchange);
        tokio::select! {
            biased;
            answer = &mut exchange => answer,
            // It ends when the server closes; what is read already is still to be collected.
            _ = &mut connection => exchange.await,
        }
    }

    fn unreachable(&self, error: &std::io::Error) -> String {
        let (name, path) = (&self.name, self.path.display());
        match error.kind() {
            ErrorKind::NotFound => {
                format!("instance \"{name}\" does not run: {path} does not exist; start it, or correct --name")
            }
            ErrorKind::ConnectionRefused => {
                format!(
                    "instance \"{name}\" does not run, but {path} exists: it was killed; start it again (levada run, systemctl start); levada clean --name {name} removes what it left, its persistent devices too"
                )
            }
            ErrorKind::PermissionDenied => format!(
                "{path}: {error}; run as root or as the daemon's user; a member of its [daemon] socket_group may read"
            ),
            _ => format!("{path}: {error}"),
        }
    }
}

fn only_instance() -> Result<String, Failure> {
    let base = rundir::base();
    let mut names = rundir::instances(&base)
        .map_err(|error| Failure::Failed(format!("cannot read {}: {error}", base.display())))?;
    // What killed daemons have left does not count beside one that runs.
    let refuses = |name: &String| {
        let stream = UnixStream::connect(base.join(name).join(SOCKET));
        stream.is_err_and(|error| matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound))
    };
    let some_run = !names.iter().all(refuses);
    if some_run {
        names.retain(|name| !refuses(name));
    }
    match names.len() {
        0 => Err(Failure::Failed(format!("no instance runs: {} has none; start one with levada run", base.display()))),
        1 => Ok(names.remove(0)),
        _ if !some_run => Err(Failure::Failed(format!(
            "no instance runs; start one again (levada run, systemctl start): {}",
            names.join(" | ")
        ))),
        _ => Err(Failure::Failed(format!("several instances run; choose one with --name {}", names.join(" | ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_named_by_key_and_remedy() {
        let wrong = serde_json::json!({"daemon": {"name": "a", "colour": 1}});
        let problems = control::read_document(wrong.as_object().unwrap()).unwrap_err();
        let failure = unreadable(&problems);
        let text = failure.text();
        assert!(text.contains("\nerror: ") && text.contains("\n  = key: daemon, colour"), "{text}");
        assert!(text.contains("\n  = help: ") && !text.contains("Problem"), "{text}");
    }
}
