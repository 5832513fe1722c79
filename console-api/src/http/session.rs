//! Signing up, in and out. Who may is decided by the control plane, in the same time for an unknown e-mail
//! address and a wrong password; here attempts are counted before it is asked.

use super::account::present;
use super::cookie;
use super::extract::{Ending, Json, NoQuery, Peer, RefreshCookie};
use super::fields::{Fields, FromFields};
use super::problem::Problem;
use super::spools::time;
use crate::sessions::Person;
use crate::{App, attempts, clock};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{HeaderValue, SET_COOKIE};
use proto::control as wire;
use serde::Serialize;
use std::net::IpAddr;
use std::time::Instant;
use types::ErrorCode;
use utoipa::ToSchema;

const EMAIL_LEN_MAX: usize = 254;
const PASSWORD_LEN_MIN: usize = 8;
/// Long enough for any passphrase; hashing is not free.
const PASSWORD_LEN_MAX: usize = 256;
const ACCOUNT_NAME_LEN_MAX: usize = 128;
const PLAN_LEN_MAX: usize = 64;

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct SignUpRequest {
    #[schema(max_length = 254, format = "email")]
    email: String,
    #[schema(min_length = 8, max_length = 256, format = "password")]
    password: String,
    #[schema(min_length = 1, max_length = 128)]
    account_name: String,
    /// A plan's name; without one the account starts on the installation's default.
    #[schema(min_length = 1, max_length = 64)]
    plan: Option<String>,
}

impl FromFields for SignUpRequest {
    const KNOWN: &'static [&'static str] = &["email", "password", "accountName", "plan"];
    fn read(fields: &mut Fields) -> Result<Self, Problem> {
        Ok(SignUpRequest {
            email: email(fields)?,
            password: fields.text("password", PASSWORD_LEN_MIN..=PASSWORD_LEN_MAX)?,
            account_name: not_blank("accountName", fields.text("accountName", 1..=ACCOUNT_NAME_LEN_MAX)?)?,
            plan: fields.text_if_any("plan", 1..=PLAN_LEN_MAX)?,
        })
    }
}

#[derive(ToSchema)]
pub struct LogInRequest {
    #[schema(max_length = 254, format = "email")]
    email: String,
    #[schema(max_length = 256, format = "password")]
    password: String,
}

impl FromFields for LogInRequest {
    const KNOWN: &'static [&'static str] = &["email", "password"];
    fn read(fields: &mut Fields) -> Result<Self, Problem> {
        Ok(LogInRequest { email: email(fields)?, password: fields.text("password", 1..=PASSWORD_LEN_MAX)? })
    }
}

/// Whether mail arrives there only mail can tell; this refuses what cannot be an address.
fn email(fields: &mut Fields) -> Result<String, Problem> {
    let email = fields.text("email", 1..=EMAIL_LEN_MAX)?;
    match email.rsplit_once('@') {
        Some((local, domain))
            if !local.is_empty()
                && !domain.is_empty()
                && !local.contains('@')
                && !email.contains(char::is_whitespace) =>
        {
            Ok(email)
        }
        _ => Err(Problem::invalid("email", "Not an e-mail address.")),
    }
}

pub fn not_blank(field: &str, text: String) -> Result<String, Problem> {
    if text.trim().is_empty() {
        return Err(Problem::invalid(field, "The field must not be blank."));
    }
    Ok(text)
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionReply {
    /// For `Authorization: Bearer`, until it expires; the refresh cookie gets the next one.
    token: String,
    #[schema(format = "date-time")]
    expires_at: String,
}

/// A new account, with its default spool, and a session in it.
#[utoipa::path(post, path = "/api/signup", tag = "session", request_body = SignUpRequest,
    responses((status = 201, body = SessionReply)))]
pub async fn sign_up(
    State(app): State<App>,
    Peer(address): Peer,
    _: NoQuery,
    Json(request): Json<SignUpRequest>,
) -> Result<Response, Problem> {
    attempt(&app, address, &request.email)?;
    let SignUpRequest { email, password, account_name, plan } = request;
    let (address, plan) = (address.to_string(), plan.unwrap_or_default());
    let request = wire::SignUpRequest { email, password, account_name, address, plan };
    opened(&app, StatusCode::CREATED, app.control.sign_up(request).await?)
}

/// A session.
#[utoipa::path(post, path = "/api/login", tag = "session", request_body = LogInRequest,
    responses((status = 200, body = SessionReply)))]
pub async fn log_in(
    State(app): State<App>,
    Peer(address): Peer,
    _: NoQuery,
    Json(request): Json<LogInRequest>,
) -> Result<Response, Problem> {
    attempt(&app, address, &request.email)?;
    let LogInRequest { email, password } = request;
    let request = wire::LogInRequest { email, password, address: address.to_string() };
    opened(&app, StatusCode::OK, app.control.log_in(request).await?)
}

/// The session's next token. The cookie is replaced; using a replaced one again ends the session.
#[utoipa::path(post, path = "/api/refresh", tag = "session", security(("refreshCookie" = [])),
    responses((status = 200, body = SessionReply)))]
pub async fn refresh(
    State(app): State<App>,
    RefreshCookie(refresh_token): RefreshCookie,
    _: NoQuery,
) -> Result<Response, Problem> {
    match app.control.refresh(wire::RefreshRequest { refresh_token }).await {
        Ok(session) => opened(&app, StatusCode::OK, session),
        Err(problem) if problem.code == ErrorCode::Unauthenticated => {
            Ok(closed(&app, problem.into_response()))
        }
        Err(problem) => Err(problem),
    }
}

/// Ends the session: its tokens are refused within 10 s.
#[utoipa::path(post, path = "/api/logout", tag = "session", security(("session" = []), ("refreshCookie" = [])),
    responses((status = 204, description = "It has ended")))]
pub async fn log_out(State(app): State<App>, ending: Ending, _: NoQuery) -> Result<Response, Problem> {
    let refresh_token = match ending {
        Ending::Token(person) => return end(&app, &person).await,
        Ending::Cookie(RefreshCookie(token)) => token,
    };
    // The cookie does not say which session it belongs to; the token that it is good for does. Nothing is
    // begun that could not be finished.
    app.sessions.require_ready(Instant::now())?;
    let session = match app.control.refresh(wire::RefreshRequest { refresh_token }).await {
        Ok(session) => session,
        Err(problem) if problem.code == ErrorCode::Unauthenticated => {
            return Ok(closed(&app, problem.into_response()));
        }
        Err(problem) => return Err(problem),
    };
    let person = app.sessions.verify(Instant::now(), &session.token)?;
    match end(&app, &person).await {
        Ok(response) => Ok(response),
        // The old cookie is used up; the new one is for trying again.
        Err(problem) => Ok(with_cookie(problem.into_response(), refresh_cookie(&app, &session)?)),
    }
}

async fn end(app: &App, person: &Person) -> Result<Response, Problem> {
    app.control.log_out(wire::LogOutRequest { session_id: person.session.clone() }).await?;
    app.sessions.end(person);
    Ok(closed(app, StatusCode::NO_CONTENT.into_response()))
}

fn attempt(app: &App, address: IpAddr, email: &str) -> Result<(), Problem> {
    app.attempts.count(address, email).map_err(|attempts::TooMany(wait)| {
        Problem::new(ErrorCode::RateLimited, "Too many attempts; try again later.").retry_after(wait)
    })
}

fn opened(app: &App, status: StatusCode, session: wire::Session) -> Result<Response, Problem> {
    let cookie = refresh_cookie(app, &session)?;
    let reply = SessionReply { token: session.token, expires_at: time(session.expires_ms)? };
    Ok(with_cookie((status, axum::Json(reply)).into_response(), cookie))
}

fn refresh_cookie(app: &App, session: &wire::Session) -> Result<HeaderValue, Problem> {
    let seconds = session.refresh_expires_ms.saturating_sub(clock::now().as_millisecond()) / 1000;
    present(cookie::set(app, &session.refresh_token, seconds), "refresh token fit for a cookie")
}

fn closed(app: &App, response: Response) -> Response {
    with_cookie(response, cookie::clear(app))
}

fn with_cookie(mut response: Response, cookie: HeaderValue) -> Response {
    response.headers_mut().insert(SET_COOKIE, cookie);
    response
}
