//! What there is under which path. The same table is in `openapi`; a test compares the two.

use super::peer::Rights;
use super::{House, PATIENCE, document};
use crate::api::{ChangeRequest, ErrorReply, ProblemReply, VERSION};
use crate::desk::Fault;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Longest body of a request, in bytes: a hundred thousand endpoints added at once.
pub const BODY_BYTES: usize = 64 << 20;
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// All paths, and the one method of each.
pub const ROUTES: [(&str, Method); 5] = [
    ("/v1/report", Method::GET),
    ("/v1/config", Method::GET),
    ("/v1/schema", Method::GET),
    ("/v1/openapi.json", Method::GET),
    ("/v1/actions", Method::POST),
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
        "/v1/config" => with_desk(house, &house.reports, |house| Ok(house.desk.config())).await,
        "/v1/schema" => json(StatusCode::OK, &control::schema::config()),
        "/v1/openapi.json" => json(StatusCode::OK, &document()),
        _ => actions(house, rights, request).await,
    }
}

/// `POST /v1/actions`.
async fn actions(house: &Arc<House>, rights: Rights, request: Request<Incoming>) -> Answer {
    if rights != Rights::Change {
        return error(StatusCode::FORBIDDEN, "only root and the daemon's user may change anything");
    }
    let is_json = |value: &HeaderValue| value.as_bytes().split(|&b| b == b';').next() == Some(JSON.as_bytes());
    if !request.headers().get(CONTENT_TYPE).is_none_or(is_json) {
        return error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be application/json");
    }
    let too_long = || error(StatusCode::PAYLOAD_TOO_LARGE, &format!("a body has at most {BODY_BYTES} bytes"));
    if request.body().size_hint().lower() > BODY_BYTES as u64 {
        return too_long();
    }
    let body = Limited::new(request.into_body(), BODY_BYTES).collect();
    let body = match tokio::time::timeout(PATIENCE, body).await {
        Err(_) => return error(StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
        Ok(Err(fault)) if fault.is::<LengthLimitError>() => return too_long(),
        Ok(Err(fault)) => return error(StatusCode::BAD_REQUEST, &format!("the body cannot be read: {fault}")),
        Ok(Ok(body)) => body.to_bytes(),
    };
    let request: ChangeRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(fault) => return error(StatusCode::BAD_REQUEST, &format!("this is no list of actions: {fault}")),
    };
    drop(body);
    with_desk(house, &house.changes, move |house| house.desk.change(&request)).await
}

/// Lets the desk make an answer on another thread, when it is this request's turn.
async fn with_desk<T: Serialize>(
    house: &Arc<House>,
    turns: &Semaphore,
    make: impl FnOnce(&House) -> Result<T, Fault> + Send + 'static,
) -> Answer {
    let Ok(_turn) = turns.acquire().await else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "the daemon ends");
    };
    let house = Arc::clone(house);
    let made = tokio::task::spawn_blocking(move || match make(&house) {
        Ok(value) => json(StatusCode::OK, &value),
        Err(fault) => refusal(&fault),
    });
    made.await.unwrap_or_else(|_| error(StatusCode::INTERNAL_SERVER_ERROR, "a fault of levada; see its log"))
}

fn refusal(fault: &Fault) -> Answer {
    let (status, problems) = match fault {
        Fault::Busy(_) => (StatusCode::SERVICE_UNAVAILABLE, &[][..]),
        Fault::Conflict { .. } => (StatusCode::CONFLICT, &[][..]),
        Fault::Refused(problems) => (StatusCode::UNPROCESSABLE_ENTITY, &problems[..]),
        Fault::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, &[][..]),
    };
    let problems = problems.iter().map(ProblemReply::from).collect();
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
