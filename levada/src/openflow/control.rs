//! The control socket of a controller: what `levada show services`, `levada show openflow` and
//! `levada load` ask for, and metrics, under the paths that a daemon has.

use super::{House, metrics, report};
use crate::api::services::{LoadReply, LoadRequest};
use crate::api::{ErrorReply, VERSION};
use crate::metrics::CONTENT_TYPE as OPEN_METRICS;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::UnixStream;

/// How long a client may take for its request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest body of a request, in bytes.
const BODY_BYTES: usize = 64 << 10;
/// Longest headers of a request, in bytes: the least that hyper takes.
const HEADER_BYTES: usize = 8192;

type Answer = Response<Full<Bytes>>;

/// Answers one client.
pub(super) async fn answer(house: Rc<House>, stream: UnixStream) {
    let is_ours = |uid: u32| uid == 0 || uid == rustix::process::geteuid().as_raw();
    if !stream.peer_cred().is_ok_and(|peer| is_ours(peer.uid())) {
        return;
    }
    let service = service_fn(|request| {
        let house = Rc::clone(&house);
        async move { Ok::<Answer, Infallible>(route(&house, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEADER_BYTES)
        .keep_alive(false)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    // A client that went away, or did nothing in time, needs no answer.
    let _ = tokio::time::timeout(2 * PATIENCE, connection).await;
}

async fn route(house: &House, request: Request<Incoming>) -> Answer {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/v1/openflow") => json(StatusCode::OK, &report::switches(house)),
        (&Method::GET, "/v1/services") => json(StatusCode::OK, &report::services(house)),
        (&Method::GET, "/v1/metrics") => written(StatusCode::OK, OPEN_METRICS, metrics::text(house).into()),
        (&Method::POST, "/v1/load") => {
            let body = Limited::new(request.into_body(), BODY_BYTES).collect().await;
            let body = match body {
                Ok(body) => body.to_bytes(),
                Err(why) => return refuse(StatusCode::BAD_REQUEST, format!("the body cannot be read: {why}")),
            };
            let told = serde_json::from_slice::<LoadRequest>(&body)
                .map_err(|why| format!("the body is not valid: {why}"))
                .and_then(|load| report::load(house, &load.backend, load.load_milli));
            match told {
                Ok(()) => json(StatusCode::OK, &LoadReply { version: VERSION }),
                Err(why) => refuse(StatusCode::BAD_REQUEST, why),
            }
        }
        (_, path) => {
            let why = format!(
                "a controller of OpenFlow switches has no {path:?}; ask it with levada show openflow, levada show \
                 services or levada load, or for /v1/metrics"
            );
            refuse(StatusCode::NOT_FOUND, why)
        }
    }
}

fn refuse(status: StatusCode, why: String) -> Answer {
    json(status, &ErrorReply::new(why))
}

fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    written(status, "application/json", serde_json::to_vec(value).unwrap_or_default().into())
}

fn written(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}
