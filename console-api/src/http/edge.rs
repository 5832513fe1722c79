//! What every request passes, whatever it asks for: it gets an id, is kept from other origins, cannot take the
//! process down, and its answer carries the headers that browsers protect people by.

use super::fields::shown;
use super::origin;
use super::problem::Problem;
use crate::App;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use std::panic::AssertUnwindSafe;
use std::time::Instant;
use types::ErrorCode;
use types::limits::REQUEST_ID_LEN_MAX;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

pub async fn edge(State(app): State<App>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(&request);
    let method = request.method().clone();
    // The route's own words: what people put into a path or a query is not logged.
    let route = request.extensions().get::<MatchedPath>().map_or("-", MatchedPath::as_str).to_owned();
    let mut response = match origin::refuse_foreign(&app, request.headers(), request.uri(), &method) {
        Ok(()) => run(request, next).await,
        Err(problem) => problem.into_response(),
    };
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        problem.write(&id, &mut response);
        if method == Method::HEAD {
            *response.body_mut() = Body::empty();
        }
    }
    protect(&app, response.headers_mut());
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(X_REQUEST_ID, value);
    }
    let status = response.status().as_u16();
    let ms = started.elapsed().as_millis();
    match response.status() {
        StatusCode::INTERNAL_SERVER_ERROR => tracing::error!(%method, route, status, ms, id, "failed"),
        _ => tracing::debug!(%method, route, status, ms, id, "answered"),
    }
    response
}

/// A panic ends its request alone.
async fn run(request: Request, next: Next) -> Response {
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => Problem::internal().into_response(),
    }
}

/// The caller's own, where it is fit to be repeated in headers and logs.
fn request_id(request: &Request) -> String {
    let fit = |id: &&str| {
        (1..=REQUEST_ID_LEN_MAX).contains(&id.len())
            && id.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b':' | b'-'))
    };
    let given = request.headers().get(X_REQUEST_ID).and_then(|id| id.to_str().ok()).filter(fit);
    given.map_or_else(|| uuid::Uuid::new_v4().simple().to_string(), str::to_owned)
}

fn protect(app: &App, headers: &mut http::HeaderMap) {
    const ALWAYS: [(HeaderName, &str); 7] = [
        // Tokens and keys are in these answers.
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in ALWAYS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    if app.over_tls() {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
    }
}

/// For a path that is not there.
pub async fn not_found() -> Problem {
    Problem::new(ErrorCode::NotFound, "There is nothing at this path; /api/openapi.json says what there is.")
}

/// For a path that is there; the router adds `Allow`.
pub async fn method_not_allowed(method: Method) -> Problem {
    Problem::new(
        ErrorCode::MethodNotAllowed,
        format!("{} is not for this path; Allow says what is.", shown(method.as_str())),
    )
}
