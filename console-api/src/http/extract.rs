//! What handlers take. Authentication is an argument, so that a handler without it shows in its signature;
//! bodies, paths and queries are checked before a handler runs.

use super::fields::{self, FromFields, shown};
use super::problem::Problem;
use super::{cookie, origin};
use crate::App;
use crate::sessions::Person;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use percent_encoding::percent_decode_str;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use types::{ErrorCode, SpoolName};

/// No request of this API needs more.
const BODY_BYTES_MAX: usize = 64 * 1024;
const BODY_WAIT: Duration = Duration::from_secs(10);

/// Whose connection it is; the server puts it into each request.
#[derive(Clone, Copy)]
pub struct Peer(pub IpAddr);

impl FromRequestParts<App> for Peer {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        Ok(parts.extensions.get().copied().unwrap_or(Peer(IpAddr::V4(Ipv4Addr::UNSPECIFIED))))
    }
}

impl FromRequestParts<App> for Person {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        match bearer(&parts.headers)? {
            Some(token) => app.sessions.verify(Instant::now(), token),
            None => Err(no_session()),
        }
    }
}

fn no_session() -> Problem {
    Problem::new(
        ErrorCode::Unauthenticated,
        "Sign in, and send the session's token as Authorization: Bearer.",
    )
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let bearer = value.to_str().ok().and_then(|value| value.split_once(' '));
    match bearer {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim())),
        _ => Err(no_session()),
    }
}

/// The refresh token of the cookie, from our own page.
pub struct RefreshCookie(pub String);

impl FromRequestParts<App> for RefreshCookie {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let token = cookie::read(&parts.headers).ok_or_else(|| {
            Problem::new(ErrorCode::Unauthenticated, "There is no refresh cookie; sign in.")
        })?;
        origin::require_own(app, &parts.headers, &parts.uri)?;
        Ok(RefreshCookie(token.to_owned()))
    }
}

/// Whoever may end a session: its token, or the cookie alone when the token has run out.
pub enum Ending {
    Token(Person),
    Cookie(RefreshCookie),
}

impl FromRequestParts<App> for Ending {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        if parts.headers.contains_key(AUTHORIZATION) {
            return Person::from_request_parts(parts, app).await.map(Ending::Token);
        }
        RefreshCookie::from_request_parts(parts, app).await.map(Ending::Cookie)
    }
}

/// A JSON object, read strictly.
pub struct Json<T>(pub T);

impl<T: FromFields> FromRequest<App> for Json<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, _: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        require_json(&parts.headers)?;
        let bytes = collect(&parts.headers, body).await?;
        fields::read(&bytes).map(Json)
    }
}

fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |detail| Err(Problem::new(ErrorCode::UnsupportedMediaType, detail));
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = given.split(';').next().unwrap_or_default().trim();
    if !media.eq_ignore_ascii_case("application/json") {
        return refused("The body must be JSON, with Content-Type: application/json.");
    }
    match headers.get(CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => refused("The body must not be encoded."),
        _ => Ok(()),
    }
}

async fn collect(headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("The body must have at most {BODY_BYTES_MAX} bytes.");
        Problem::new(ErrorCode::PayloadTooLarge, detail)
    };
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > BODY_BYTES_MAX as u64) {
        return Err(too_large());
    }
    let whole = tokio::time::timeout(BODY_WAIT, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    match whole {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Problem::malformed("The body ended early.")),
        Err(_) => Err(Problem::malformed("The body did not arrive in time.")),
    }
}

/// A query's parameters, decoded.
pub fn parameters(query: &str) -> Result<Vec<(String, String)>, Problem> {
    let decode = |text: &str| {
        let text = text.replace('+', " ");
        percent_decode_str(&text).decode_utf8().map(|text| text.into_owned())
    };
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bad = |_| Problem::invalid(shown(name), "The query parameter is not UTF-8.");
            Ok((decode(name).map_err(bad)?, decode(value).map_err(bad)?))
        })
        .collect()
}

pub fn unknown_parameter(name: &str) -> Problem {
    Problem::invalid(shown(name), "There is no such query parameter here.")
}

/// For a route that takes no query parameters.
pub struct NoQuery;

impl FromRequestParts<App> for NoQuery {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        match parameters(parts.uri.query().unwrap_or_default())?.first() {
            None => Ok(NoQuery),
            Some((name, _)) => Err(unknown_parameter(name)),
        }
    }
}

/// `{name}`: a spool's.
pub struct SpoolPath(pub SpoolName);

impl FromRequestParts<App> for SpoolPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let bad = |detail: String| Problem::invalid("name", detail);
        let Path(name) = Path::<String>::from_request_parts(parts, app)
            .await
            .map_err(|_| bad("The path is not UTF-8.".into()))?;
        name.parse().map(SpoolPath).map_err(|error| bad(format!("Not a spool's name: {error}.")))
    }
}

/// `{id}`: a key's.
pub struct KeyPath(pub String);

impl FromRequestParts<App> for KeyPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let fit = |id: &String| {
            id.len() <= 64 && id.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-'))
        };
        let id = Path::<String>::from_request_parts(parts, app).await.ok().map(|Path(id)| id).filter(fit);
        id.map(KeyPath).ok_or_else(|| Problem::invalid("id", "Not a key's id."))
    }
}
