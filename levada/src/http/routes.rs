//! What there is under which path. The same table is in `openapi`; a test compares the two.

use super::peer::Rights;
use super::{House, PATIENCE, document};
use crate::api::bonds::BondsReply;
use crate::api::services::{ConnectionsRequest, LoadRequest};
use crate::api::trace::TraceRequest;
use crate::api::vcc::VccRequest;
use crate::api::{ChangeReply, ChangeRequest, ErrorReply, ProblemReply, VERSION};
use crate::handler::Fault;
use crate::metrics;
use crate::system::descriptors::Came;
use crate::system::memory::Reservation;
use crate::system::os::Behind;
use control::problem::MOST_SHOWN;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest body of a request, in bytes: a hundred thousand endpoints added at once.
pub const BODY_BYTES: usize = 64 << 20;
/// Longest body of a request to trace, in bytes: a frame of 64 KiB in hexadecimal digits, spaced.
const TRACE_BYTES: usize = 256 << 10;
/// Longest body of a question about connections, in bytes: whose they are, by names and addresses.
const QUESTION_BYTES: usize = 4 << 10;
/// Memory for all bodies together, in KiB: for the longest one, and for short ones beside it.
pub const BODIES_KIB: usize = (BODY_BYTES >> 10) + 8192;
/// Most values in a body: what is read takes several times the memory of its text where values are
/// short. Actions have up to some twenty.
const MOST_VALUES: usize = 2_000_000;
/// Most tables in a body. Each takes the memory of eleven keys, however few it has (a node of a
/// `BTreeMap`). Actions have three or four.
const MOST_TABLES: usize = 1_000_000;
/// Memory that a request takes at most while its body is read and what it asks for is made, in
/// bytes: for each byte of the body, which is there twice while it comes, and whose texts are
/// copied; for each value; and for each table more. See `tests/daemon/requests.rs` for what
/// requests took that are written to take much.
const FOR_BYTE: u64 = 6;
/// See [`FOR_BYTE`].
const FOR_VALUE: u64 = 2048;
/// See [`FOR_BYTE`].
const FOR_TABLE: u64 = 2048;
/// Most actions of a request.
pub const MOST_ACTIONS: usize = 200_000;
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// All paths, and the one method of each.
pub const ROUTES: [(&str, Method); 17] = [
    ("/v1/report", Method::GET),
    ("/v1/tables", Method::GET),
    ("/v1/cluster", Method::GET),
    ("/v1/agents", Method::GET),
    ("/v1/bonds", Method::GET),
    ("/v1/tunnels", Method::GET),
    ("/v1/services", Method::GET),
    ("/v1/vcc", Method::GET),
    ("/v1/metrics", Method::GET),
    ("/v1/config", Method::GET),
    ("/v1/schema", Method::GET),
    ("/v1/openapi.json", Method::GET),
    ("/v1/actions", Method::POST),
    ("/v1/trace", Method::POST),
    ("/v1/connections", Method::POST),
    ("/v1/vcc/connections", Method::POST),
    ("/v1/load", Method::POST),
];

pub(super) type Answer = Response<Full<Bytes>>;

/// A body that has come, its part of the memory for bodies, and what is reserved for it of the
/// process's.
struct Read {
    body: Bytes,
    _room: OwnedSemaphorePermit,
    _reservation: Reservation,
}

/// Answers a request.
pub(super) async fn answer(house: &Arc<House>, rights: Rights, request: Request<Incoming>, came: &Came) -> Answer {
    let path = request.uri().path().to_owned();
    let Some(index) = ROUTES.iter().position(|(route, _)| *route == path) else {
        return error(StatusCode::NOT_FOUND, &format!("there is no {path:?}; GET /v1/openapi.json lists the paths"));
    };
    let method = &ROUTES[index].1;
    if request.method() != method {
        let mut answer = error(StatusCode::METHOD_NOT_ALLOWED, &format!("{path} accepts only {method}"));
        answer.headers_mut().extend(HeaderValue::from_str(method.as_str()).ok().map(|method| (ALLOW, method)));
        return answer;
    }
    if method == Method::GET {
        let look = look(house, &path);
        return house.looks[index].answer(&house.pace, look).await;
    }
    match path.as_str() {
        "/v1/connections" => {
            question(house, rights, index, request, |house, body| {
                house.handler.connections(&understood::<ConnectionsRequest>(house, body)?.0)
            })
            .await
        }
        "/v1/vcc/connections" => {
            question(house, rights, index, request, |house, body| {
                house.handler.vcc_connections(&understood::<VccRequest>(house, body)?.0)
            })
            .await
        }
        _ if rights != Rights::Change => {
            error(StatusCode::FORBIDDEN, "only root and the daemon's user may change or trace anything")
        }
        "/v1/load" => match read(house, request, TRACE_BYTES).await {
            Ok(read) => {
                with_handler(house, &house.reports, move |house| {
                    house.handler.load(&understood::<LoadRequest>(house, &read.body)?.0)
                })
                .await
            }
            Err(answer) => answer,
        },
        "/v1/trace" => match read(house, request, TRACE_BYTES).await {
            Ok(read) => {
                with_handler(house, &house.traces, move |house| {
                    house.handler.trace(&understood::<TraceRequest>(house, &read.body)?.0)
                })
                .await
            }
            Err(answer) => answer,
        },
        _ => match read(house, request, BODY_BYTES).await {
            Ok(read) => {
                // All of the body is there, and what came beside it.
                let descriptors = came.take();
                with_handler(house, &house.changes, move |house| change(house, read, descriptors)).await
            }
            Err(answer) => answer,
        },
    }
}

/// Answers what changes nothing.
async fn look(house: &Arc<House>, path: &str) -> Answer {
    match path {
        "/v1/report" => with_handler(house, &house.reports, |house| house.handler.report()).await,
        "/v1/tables" => with_handler(house, &house.reports, |house| house.handler.tables()).await,
        "/v1/cluster" => with_handler(house, &house.reports, |house| Ok(house.handler.cluster())).await,
        "/v1/agents" => with_handler(house, &house.reports, |house| house.handler.agents()).await,
        "/v1/services" => with_handler(house, &house.reports, |house| house.handler.services()).await,
        "/v1/bonds" => with_handler(house, &house.reports, |house| house.handler.report().map(BondsReply::from)).await,
        "/v1/tunnels" => with_handler(house, &house.reports, |house| house.handler.tunnels()).await,
        "/v1/vcc" => with_handler(house, &house.reports, |house| house.handler.vcc()).await,
        "/v1/metrics" => {
            with_desk_as(
                house,
                &house.reports,
                |house| {
                    let (report, vcc) = (house.handler.report()?, house.handler.vcc_counts()?);
                    Ok((report, house.handler.cluster(), vcc, house.handler.services()?))
                },
                |(report, cluster, vcc, services)| {
                    let text = metrics::text(report, cluster, vcc, services);
                    let mut answer = Response::new(Full::new(Bytes::from(text)));
                    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
                    answer
                },
            )
            .await
        }
        "/v1/config" => with_handler(house, &house.reports, |house| Ok(house.handler.config())).await,
        "/v1/schema" => json(StatusCode::OK, &control::schema::config()),
        _ => json(StatusCode::OK, &document()),
    }
}

/// Does the actions of a request.
fn change(house: &House, read: Read, descriptors: Vec<OwnedFd>) -> Result<ChangeReply, Fault> {
    // Until the change is made.
    let (request, _reservation): (ChangeRequest, _) = understood(house, &read.body)?;
    // Its memory is for the next one's body.
    drop(read);
    let count = request.actions.len();
    if count > MOST_ACTIONS {
        return Err(Fault::Wrong(format!(
            "a request has at most {MOST_ACTIONS} actions, but this one has {count}; send several requests"
        )));
    }
    if request.namespaces.len() != descriptors.len() {
        return Err(Fault::Wrong(format!(
            "the request names {} namespaces, and {} descriptors came beside it; send as many, by SCM_RIGHTS",
            request.namespaces.len(),
            descriptors.len()
        )));
    }
    house.maker.make(move |handler| handler.change_with(&request, descriptors))?
}

/// Reads the JSON of a body, where there is memory for what it asks for.
fn understood<T: DeserializeOwned>(house: &House, body: &[u8]) -> Result<(T, Reservation), Fault> {
    // Each value but the first of a list or table has a comma before it; those in texts are few.
    let values = body.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    let tables = body.iter().filter(|byte| **byte == b'{').count();
    for (count, most, what) in [(values, MOST_VALUES, "values"), (tables, MOST_TABLES, "tables")] {
        if count > most {
            return Err(Fault::Wrong(format!("a body has at most {most} {what}; send several requests")));
        }
    }
    let reservation = house.memory.reserve(bound(body.len(), values, tables)).map_err(Fault::Short)?;
    let read = serde_json::from_slice(body);
    let read = read.map_err(|fault| {
        Fault::Wrong(format!("the body is not valid: {fault}; GET /v1/openapi.json has its schema"))
    })?;
    Ok((read, reservation))
}

/// Memory that a request takes at most beside its body, in bytes.
fn bound(bytes: usize, values: usize, tables: usize) -> u64 {
    FOR_BYTE * bytes as u64 + FOR_VALUE * values as u64 + FOR_TABLE * tables as u64
}

/// Answers what is looked at and has to be described in a body. Nobody else asks the same: who may
/// only look gets one answer after the other, at the pace of all who do.
async fn question<T: Serialize>(
    house: &Arc<House>,
    rights: Rights,
    index: usize,
    request: Request<Incoming>,
    make: impl FnOnce(&House, &[u8]) -> Result<T, Fault> + Send + 'static,
) -> Answer {
    let read = match read(house, request, QUESTION_BYTES).await {
        Ok(read) => read,
        Err(answer) => return answer,
    };
    let answer = with_handler(house, &house.reports, move |house| make(house, &read.body));
    match rights {
        Rights::Change => answer.await,
        Rights::Look | Rights::None => house.looks[index].answer_one(&house.pace, answer).await,
    }
}

/// What is sent with POST.
async fn read(house: &House, request: Request<Incoming>, most: usize) -> Result<Read, Answer> {
    let is_json = |value: &HeaderValue| value.as_bytes().split(|&b| b == b';').next() == Some(JSON.as_bytes());
    if !request.headers().get(CONTENT_TYPE).is_none_or(is_json) {
        return Err(error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be application/json"));
    }
    let too_long = || error(StatusCode::PAYLOAD_TOO_LARGE, &format!("a body has at most {most} bytes"));
    if request.body().size_hint().lower() > most as u64 {
        return Err(too_long());
    }
    // One whose length is not known in advance may become the longest.
    let bytes = request.body().size_hint().upper().map_or(most, |upper| most.min(upper as usize));
    let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
    let Ok(room) = Arc::clone(&house.bodies).try_acquire_many_owned(kib) else {
        return Err(error(StatusCode::SERVICE_UNAVAILABLE, "other requests have the memory for bodies: try again"));
    };
    // Its parts are joined when all have come.
    let reservation = house.memory.reserve(2 * bytes as u64);
    let reservation = reservation.map_err(|why| error(StatusCode::SERVICE_UNAVAILABLE, &why))?;
    let body = Limited::new(request.into_body(), most).collect();
    match tokio::time::timeout(PATIENCE, body).await {
        Err(_) => Err(error(StatusCode::REQUEST_TIMEOUT, "the body did not come in time")),
        Ok(Err(fault)) if fault.is::<LengthLimitError>() => Err(too_long()),
        Ok(Err(fault)) => Err(error(StatusCode::BAD_REQUEST, &format!("the body cannot be read: {fault}"))),
        Ok(Ok(body)) => Ok(Read { body: body.to_bytes(), _room: room, _reservation: reservation }),
    }
}

/// Lets the handler make an answer on another thread, when it is this request's turn.
async fn with_handler<T: Serialize>(
    house: &Arc<House>,
    turns: &Semaphore,
    make: impl FnOnce(&House) -> Result<T, Fault> + Send + 'static,
) -> Answer {
    with_desk_as(house, turns, make, |value| json(StatusCode::OK, value)).await
}

/// The same, with an answer that is not JSON.
async fn with_desk_as<T>(
    house: &Arc<House>,
    turns: &Semaphore,
    make: impl FnOnce(&House) -> Result<T, Fault> + Send + 'static,
    show: impl FnOnce(&T) -> Answer + Send + 'static,
) -> Answer {
    let Ok(_turn) = turns.acquire().await else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "the daemon ends");
    };
    let house = Arc::clone(house);
    let made = tokio::task::spawn_blocking(move || {
        let _behind = Behind::begin();
        match make(&house) {
            Ok(value) => show(&value),
            Err(fault) => refusal(&fault),
        }
    });
    made.await.unwrap_or_else(|_| error(StatusCode::INTERNAL_SERVER_ERROR, "a fault of levada; see its log"))
}

fn refusal(fault: &Fault) -> Answer {
    let (status, problems) = match fault {
        Fault::Busy(_) | Fault::Short(_) => (StatusCode::SERVICE_UNAVAILABLE, &[][..]),
        Fault::Conflict { .. } => (StatusCode::CONFLICT, &[][..]),
        Fault::Refused(problems) => (StatusCode::UNPROCESSABLE_ENTITY, &problems[..]),
        Fault::Wrong(_) => (StatusCode::BAD_REQUEST, &[][..]),
        Fault::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, &[][..]),
    };
    let problems = problems.iter().take(MOST_SHOWN).map(ProblemReply::from).collect();
    json(status, &ErrorReply { version: VERSION, error: fault.to_string(), problems })
}

fn error(status: StatusCode, why: &str) -> Answer {
    json(status, &ErrorReply::new(why))
}

fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    let (status, body) = match serde_json::to_vec(value) {
        Ok(body) => (status, body),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, b"{}".to_vec()),
    };
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}
