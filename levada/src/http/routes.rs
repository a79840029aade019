//! What there is under which path. The same table is in `openapi`; a test compares the two.

use super::peer::Rights;
use super::{House, PATIENCE, document};
use crate::api::{ChangeRequest, ErrorReply, ProblemReply, VERSION};
use crate::desk::Fault;
use crate::metrics;
use crate::trace::TraceRequest;
use control::problem::MOST_SHOWN;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Longest body of a request, in bytes: a hundred thousand endpoints added at once.
pub const BODY_BYTES: usize = 64 << 20;
/// Longest body of a request to trace, in bytes: a frame of 64 KiB in hexadecimal digits, spaced.
const TRACE_BYTES: usize = 256 << 10;
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// All paths, and the one method of each.
pub const ROUTES: [(&str, Method); 11] = [
    ("/v1/report", Method::GET),
    ("/v1/tables", Method::GET),
    ("/v1/cluster", Method::GET),
    ("/v1/agents", Method::GET),
    ("/v1/tunnels", Method::GET),
    ("/v1/metrics", Method::GET),
    ("/v1/config", Method::GET),
    ("/v1/schema", Method::GET),
    ("/v1/openapi.json", Method::GET),
    ("/v1/actions", Method::POST),
    ("/v1/trace", Method::POST),
];

type Answer = Response<Full<Bytes>>;

/// Answers a request.
pub(super) async fn answer(house: &Arc<House>, rights: Rights, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let Some((_, method)) = ROUTES.iter().find(|(route, _)| *route == path) else {
        return error(StatusCode::NOT_FOUND, &format!("there is no {path:?}; GET /v1/openapi.json says what there is"));
    };
    if request.method() != method {
        let mut answer = error(StatusCode::METHOD_NOT_ALLOWED, &format!("{path} takes {method} only"));
        answer.headers_mut().extend(HeaderValue::from_str(method.as_str()).ok().map(|method| (ALLOW, method)));
        return answer;
    }
    match path.as_str() {
        "/v1/report" => with_desk(house, &house.reports, |house| house.desk.report()).await,
        "/v1/tables" => with_desk(house, &house.reports, |house| house.desk.tables()).await,
        "/v1/cluster" => with_desk(house, &house.reports, |house| Ok(house.desk.cluster())).await,
        "/v1/agents" => with_desk(house, &house.reports, |house| house.desk.agents()).await,
        "/v1/tunnels" => with_desk(house, &house.reports, |house| house.desk.tunnels()).await,
        "/v1/metrics" => {
            with_desk_as(
                house,
                &house.reports,
                |house| Ok((house.desk.report()?, house.desk.cluster())),
                |(report, cluster)| {
                    let mut answer = Response::new(Full::new(Bytes::from(metrics::text(report, cluster))));
                    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
                    answer
                },
            )
            .await
        }
        "/v1/config" => with_desk(house, &house.reports, |house| Ok(house.desk.config())).await,
        "/v1/schema" => json(StatusCode::OK, &control::schema::config()),
        "/v1/openapi.json" => json(StatusCode::OK, &document()),
        "/v1/trace" => match read::<TraceRequest>(rights, request, TRACE_BYTES).await {
            Ok(request) => with_desk(house, &house.traces, move |house| house.desk.trace(&request)).await,
            Err(answer) => answer,
        },
        _ => match read::<ChangeRequest>(rights, request, BODY_BYTES).await {
            Ok(request) => with_desk(house, &house.changes, move |house| house.desk.change(&request)).await,
            Err(answer) => answer,
        },
    }
}

/// What is sent with POST: `POST /v1/actions`, and `POST /v1/trace`, which changes nothing but shows what everybody sends and to whom.
async fn read<T: DeserializeOwned>(rights: Rights, request: Request<Incoming>, most: usize) -> Result<T, Answer> {
    if rights != Rights::Change {
        return Err(error(StatusCode::FORBIDDEN, "only root and the daemon's user may change or trace anything"));
    }
    let is_json = |value: &HeaderValue| value.as_bytes().split(|&b| b == b';').next() == Some(JSON.as_bytes());
    if !request.headers().get(CONTENT_TYPE).is_none_or(is_json) {
        return Err(error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be application/json"));
    }
    let too_long = || error(StatusCode::PAYLOAD_TOO_LARGE, &format!("a body has at most {most} bytes"));
    if request.body().size_hint().lower() > most as u64 {
        return Err(too_long());
    }
    let body = Limited::new(request.into_body(), most).collect();
    let body = match tokio::time::timeout(PATIENCE, body).await {
        Err(_) => return Err(error(StatusCode::REQUEST_TIMEOUT, "the body did not come in time")),
        Ok(Err(fault)) if fault.is::<LengthLimitError>() => return Err(too_long()),
        Ok(Err(fault)) => return Err(error(StatusCode::BAD_REQUEST, &format!("the body cannot be read: {fault}"))),
        Ok(Ok(body)) => body.to_bytes(),
    };
    serde_json::from_slice(&body)
        .map_err(|fault| error(StatusCode::BAD_REQUEST, &format!("the body is not what is taken here: {fault}")))
}

/// Lets the desk make an answer on another thread, when it is this request's turn.
async fn with_desk<T: Serialize>(
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
    let made = tokio::task::spawn_blocking(move || match make(&house) {
        Ok(value) => show(&value),
        Err(fault) => refusal(&fault),
    });
    made.await.unwrap_or_else(|_| error(StatusCode::INTERNAL_SERVER_ERROR, "a fault of levada; see its log"))
}

fn refusal(fault: &Fault) -> Answer {
    let (status, problems) = match fault {
        Fault::Busy(_) => (StatusCode::SERVICE_UNAVAILABLE, &[][..]),
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
