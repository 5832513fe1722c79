//! A request from its arrival to its response: who asks, may they, what for, and where it is answered.

use super::body::Body;
use super::forward::Forwarder;
use super::parse::{self, Parsed, Shape};
use super::problem::{Problem, put_preference_applied};
use super::respond;
use super::routes::{self, Op, Scope, Target};
use super::spool_view;
use crate::directory::{Caller, Directory, KeyRefused, SpoolEntry};
use crate::membership::Routing;
use crate::spools::{Answer, Route, Spools};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, EXPECT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;
use spool::command::Command;
use spool::event::{Call, CallReply};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use types::{ErrorCode, limits};

/// A body that is not there by then is given up.
const BODY_WAIT: Duration = Duration::from_secs(30);
/// When a node is full, it is worth while to try again after so long.
const BUSY_RETRY: Duration = Duration::from_secs(1);
/// What a request that was passed on may take beyond the waits that it asked for.
const HOP_WAIT: Duration = Duration::from_secs(5);
/// Of the body of a request that was refused before it was read.
const DISCARD_BYTES_MAX: usize = 4 * limits::REQUEST_BYTES_MAX;
const DISCARD_WAIT: Duration = Duration::from_secs(5);
const STATUS_WAIT: Duration = Duration::from_secs(2);
/// Spools of one list that are asked at once.
const STATUSES_AT_ONCE: usize = 16;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const HEADER_BYTES_MAX: usize = 16 * 1024;

pub struct Api {
    /// What requests' bodies may occupy, all accounts together.
    pub body_bytes: Semaphore,
    pub spools: Spools,
    pub routing: Routing,
    pub directory: Directory,
    pub forwarder: Forwarder,
}

/// From a client, or from another node that passes a client's request on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    Client,
    Node,
}

/// A request whose body has been read.
struct Asked {
    method: http::Method,
    uri: http::Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl Api {
    pub async fn answer(self: Arc<Api>, from: From, request: Request<Incoming>) -> Response<Body> {
        let request_id = request_id(request.headers());
        let head = request.method() == http::Method::HEAD;
        let (parts, mut body) = request.into_parts();
        let waits = parts.version <= http::Version::HTTP_11 && !parts.headers.contains_key(EXPECT);
        let answered = self.handle(from, parts, &mut body).await;
        if answered.is_err() && waits && !http_body::Body::is_end_stream(&body) {
            tokio::spawn(discard(body));
        }
        let mut response = match answered {
            Ok(response) => response,
            Err(problem) => {
                if problem.code == ErrorCode::Internal {
                    tracing::error!(request_id, detail = %problem.detail, "a defect");
                }
                problem.response(&request_id).map(Body::from)
            }
        };
        // The primary's, if the request was passed on: a refusal names it in its body, too.
        if !response.headers().contains_key(&REQUEST_ID)
            && let Ok(value) = HeaderValue::try_from(request_id)
        {
            response.headers_mut().insert(REQUEST_ID, value);
        }
        if head {
            *response.body_mut() = Body::default();
        }
        response
    }

    async fn handle(
        &self,
        from: From,
        parts: http::request::Parts,
        body: &mut Incoming,
    ) -> Result<Response<Body>, Problem> {
        let size: usize =
            parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        if size > HEADER_BYTES_MAX {
            let detail = format!("{HEADER_BYTES_MAX} bytes of headers at most");
            return Err(Problem::new(ErrorCode::HeadersTooLarge, detail));
        }
        let uri = parts.uri.clone();
        let target = routes::find(parts.method.as_str(), uri.path())?;
        if target.scope == Scope::Public {
            parse::Query::read(uri.query())?.end()?;
            return Ok(respond::json(StatusCode::OK, &routes::openapi()).map(Body::from));
        }
        let caller = self.caller(&parts.headers).await?;
        if from == From::Client {
            let rate = caller.account.plan.requests_per_second;
            caller.account.admit().map_err(|wait| Problem::rate_limited(rate, wait))?;
        }
        let under_way = &caller.account.under_way;
        let _place = under_way.requests.try_acquire().map_err(|_full| {
            let detail =
                format!("{} requests of an account at once, at one node", limits::REQUESTS_AT_ONCE_MAX);
            Problem { retry_after: Some(BUSY_RETRY), ..Problem::new(ErrorCode::RateLimited, detail) }
        })?;
        allow(&caller, &target)?;
        if parts.headers.contains_key(CONTENT_ENCODING) {
            let detail = "bodies are taken as they are";
            let problem = Problem::new(ErrorCode::UnsupportedMediaType, detail);
            return Err(Problem { field: Some("Content-Encoding".into()), ..problem });
        }
        let room = [&self.body_bytes, &under_way.body_bytes];
        let (body, _room) = read_body(body, caller.account.plan.request_bytes as usize, room).await?;
        let asked = Asked { method: parts.method, uri: parts.uri, headers: parts.headers, body };
        match target.op {
            Op::Limits => {
                no_query(&asked)?;
                let used = self.directory.spools(caller.account.id).len();
                let limits = respond::limits(&caller.account.plan, used);
                Ok(respond::json(StatusCode::OK, &limits).map(Body::from))
            }
            // Rare ones are boxed: they would make every request's future as large as theirs.
            Op::ListSpools => {
                let listed = Box::pin(self.list_spools(from, &caller, &asked)).await?;
                Ok(listed.map(Body::from))
            }
            Op::GetSpool => {
                no_query(&asked)?;
                let entry = self.spool(&caller, &target).await?;
                let view = Box::pin(self.spool_view(from, &entry, &asked)).await?;
                Ok(respond::json(StatusCode::OK, &view).map(Body::from))
            }
            Op::ChangeSpool => {
                let entry = self.spool(&caller, &target).await?;
                let numbers = (entry.num_replicas, entry.num_sync);
                match parse::changes_numbers(&asked.headers, &asked.body, numbers)? {
                    true => {
                        let detail =
                            "numReplicas and numSync were chosen when the spool was created, for good";
                        Err(Problem::new(ErrorCode::Immutable, detail))
                    }
                    false => Err(Problem::method("GET, HEAD")),
                }
            }
            _ => self.ask(from, &caller, &target, asked).await,
        }
    }

    async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let bad = || Problem::new(ErrorCode::Unauthenticated, "Authorization: Bearer with a valid API key");
        let value = headers.get(AUTHORIZATION).ok_or_else(bad)?.to_str().map_err(|_| bad())?;
        let (scheme, secret) = value.split_once(' ').ok_or_else(bad)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(bad());
        }
        self.directory.caller(secret.trim()).await.map_err(|refused| match refused {
            KeyRefused::Bad => bad(),
            KeyRefused::Unverified => {
                let detail = "this node does not know the key, and nobody can be asked now";
                Problem::new(ErrorCode::KeyUnverified, detail)
            }
        })
    }

    /// Another account's spool is not there.
    async fn spool(&self, caller: &Caller, target: &Target<'_>) -> Result<Arc<SpoolEntry>, Problem> {
        let absent =
            || Problem::new(ErrorCode::SpoolNotFound, format!("the account has no spool {:?}", target.spool));
        let Ok(name) = target.spool.parse::<types::SpoolName>() else { return Err(absent()) };
        let found = self.directory.spool(caller.account.id, &name).await;
        let found = found.map_err(|_| {
            let detail = "this node does not know the spool, and nobody can be asked now";
            Problem::new(ErrorCode::Unavailable, detail)
        })?;
        found.ok_or_else(absent)
    }

    async fn ask(
        &self,
        from: From,
        caller: &Caller,
        target: &Target<'_>,
        asked: Asked,
    ) -> Result<Response<Body>, Problem> {
        let plan = &caller.account.plan;
        let Parsed { mut command, shape } =
            parse::command(target, asked.uri.query(), &asked.headers, &asked.body, plan)?;
        allow_names(caller, &mut command)?;
        let preferred = parse::prefer_wait(&asked.headers)?;
        let entry = self.spool(caller, target).await?;
        if let Command::Settle { tokens, .. } = &command
            && tokens.is_empty()
        {
            return Ok(respond::settled_without_asking(shape)?.map(Body::from));
        }
        let wait = preferred.unwrap_or(limits::CONFIRM_WAIT_DEFAULT);
        let outcome = match self.spools.route(entry.id) {
            Route::Here => self.ask_here(&entry, target.op, shape, command, wait).await,
            Route::There { node, internal } if from == From::Client => {
                let doubtful = respond::may_have_effect(&command);
                let within = wait_of(&command).unwrap_or(wait) + HOP_WAIT;
                let send = self.forwarder.send(&node, &internal, asked.forwarded(), doubtful, within);
                Box::pin(send).await.map(|response| response.map(Body::from))
            }
            Route::There { .. } => Err(Problem::new(ErrorCode::NoPrimary, "the primary has just changed")),
            Route::Nowhere(failure) => Err(Problem::from(failure)),
        };
        let Some(wait) = preferred else { return outcome };
        // Bounded by CONFIRM_WAIT_MAX.
        let seconds = wait.as_secs() as u16;
        let mut response =
            outcome.map_err(|problem| Problem { preference_applied: Some(seconds), ..problem })?;
        put_preference_applied(response.headers_mut(), seconds);
        Ok(response)
    }

    async fn ask_here(
        &self,
        entry: &SpoolEntry,
        op: Op,
        shape: Shape,
        command: Command,
        wait: Duration,
    ) -> Result<Response<Body>, Problem> {
        let Answer { epoch, reply } = self.spools.request(entry.id, command, wait).await;
        let tokens = reply.tokens();
        let response = respond::reply(op == Op::PutQueue, shape, epoch, reply)?;
        if tokens.is_empty() {
            return Ok(response.map(Body::from));
        }
        let (spools, spool) = (self.spools.clone(), entry.id);
        Ok(response.map(|bytes| Body::unless_taken(bytes, move || spools.hand_back(spool, tokens))))
    }

    async fn list_spools(
        &self,
        from: From,
        caller: &Caller,
        asked: &Asked,
    ) -> Result<Response<Bytes>, Problem> {
        let mut query = parse::Query::read(asked.uri.query())?;
        let after = query.take("cursor").map(|cursor| parse::read_cursor(&cursor)).transpose()?;
        let limit = parse::limit(&mut query)? as usize;
        query.end()?;
        let mut entries = self.directory.spools(caller.account.id);
        entries.retain(|entry| {
            caller.key.spool.as_ref().is_none_or(|spool| *spool == entry.name)
                && after.as_ref().is_none_or(|after| entry.name.as_bytes() > after.as_slice())
        });
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| more).map(|last| parse::cursor(last.name.as_bytes()));
        let views = entries.into_iter().map(|entry| async move {
            let path = http::Uri::try_from(format!("/v1/spools/{}", entry.name));
            let uri = path.unwrap_or_else(|_| asked.uri.clone());
            let one = Asked {
                uri,
                method: asked.method.clone(),
                headers: asked.headers.clone(),
                body: Bytes::new(),
            };
            self.spool_view(from, &entry, &one).await
        });
        let views: Vec<_> = futures::stream::iter(views).buffered(STATUSES_AT_ONCE).collect().await;
        let spools = views.into_iter().collect::<Result<Vec<_>, Problem>>()?;
        Ok(respond::json(StatusCode::OK, &json!({ "spools": spools, "next": next })))
    }

    async fn spool_view(
        &self,
        from: From,
        entry: &SpoolEntry,
        asked: &Asked,
    ) -> Result<serde_json::Value, Problem> {
        match self.spools.route(entry.id) {
            Route::Here => {
                let status =
                    tokio::time::timeout(STATUS_WAIT, self.spools.call(entry.id, None, Call::Status));
                if let Ok(Some(CallReply::Status(status))) = status.await {
                    return Ok(spool_view::from_primary(entry, &status));
                }
            }
            Route::There { node, internal } if from == From::Client => {
                let request = asked.again().forwarded();
                let answer = self.forwarder.send(&node, &internal, request, false, STATUS_WAIT);
                if let Ok(answer) = answer.await
                    && answer.status() == StatusCode::OK
                    && let Ok(view) = serde_json::from_slice(answer.body())
                {
                    return Ok(view);
                }
            }
            Route::There { .. } | Route::Nowhere(_) => {}
        }
        Ok(spool_view::from_record(entry, entry.id, &self.routing))
    }
}

impl Asked {
    fn again(&self) -> Asked {
        Asked {
            method: self.method.clone(),
            uri: self.uri.clone(),
            headers: self.headers.clone(),
            body: self.body.clone(),
        }
    }

    /// For the next hop: what only concerns this one is left out.
    fn forwarded(self) -> Request<Bytes> {
        let mut request = Request::new(self.body);
        *request.method_mut() = self.method;
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        if let Ok(uri) =
            http::Uri::builder().scheme("https").authority("primary").path_and_query(path).build()
        {
            *request.uri_mut() = uri;
        }
        for (name, value) in &self.headers {
            let hop = matches!(
                name.as_str(),
                "connection"
                    | "keep-alive"
                    | "transfer-encoding"
                    | "te"
                    | "upgrade"
                    | "host"
                    | "content-length"
                    | "expect"
                    | "proxy-connection"
                    | "http2-settings"
                    | "trailer"
            );
            if !hop {
                request.headers_mut().append(name, value.clone());
            }
        }
        request
    }
}

/// Of a receive: how long it may wait for messages.
fn wait_of(command: &Command) -> Option<Duration> {
    match command {
        Command::Receive { wait, .. } => Some(*wait),
        _ => None,
    }
}

fn no_query(asked: &Asked) -> Result<(), Problem> {
    parse::Query::read(asked.uri.query())?.end()
}

/// The caller's, if it is one; else one of ours.
fn request_id(headers: &HeaderMap) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let given = headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok());
    let good = |id: &&str| {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b':' | b'-');
        !id.is_empty() && id.len() <= limits::REQUEST_ID_LEN_MAX && id.bytes().all(allowed)
    };
    match given.filter(good) {
        Some(id) => id.to_owned(),
        None => {
            let number = LAST.fetch_add(1, Ordering::Relaxed);
            format!("{:x}-{number:x}", crate::clock::moment().0)
        }
    }
}

/// Of a client that sends its whole body before it looks for an answer: it would find the connection broken instead.
async fn discard(mut body: Incoming) {
    let mut left = DISCARD_BYTES_MAX as u64;
    let reading = async {
        while http_body::Body::size_hint(&body).lower() <= left
            && let Some(Ok(frame)) = body.frame().await
        {
            let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len) as u64) else { return };
            left = rest;
        }
    };
    // Whoever is slower than that is not waited for.
    let _ = tokio::time::timeout(DISCARD_WAIT, reading).await;
}

/// The body, and the room that it takes.
async fn read_body<'a>(
    body: &mut Incoming,
    max: usize,
    room: [&'a Semaphore; 2],
) -> Result<(Bytes, Room<'a>), Problem> {
    let mut room = Room { all: room, taken: [None, None] };
    let size = http_body::Body::size_hint(body);
    if size.lower() > max as u64 {
        return Err(too_large(max));
    }
    if size.exact() == Some(0) {
        return Ok((Bytes::new(), room));
    }
    room.take(size.lower() as usize)?;
    let reading = read_frames(body, size.lower() as usize, max, &mut room);
    let read = tokio::time::timeout(BODY_WAIT, reading).await;
    let bytes = read.map_err(|_late| Problem::malformed("the body did not come in time"))??;
    Ok((bytes, room))
}

async fn read_frames(
    body: &mut Incoming,
    expected: usize,
    max: usize,
    room: &mut Room<'_>,
) -> Result<Bytes, Problem> {
    // Mostly there is one.
    let (mut first, mut all) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_broken| Problem::malformed("the body ended too early"))?;
        let Ok(data) = frame.into_data() else { continue };
        let before = first.len() + all.len();
        if before + data.len() > max {
            return Err(too_large(max));
        }
        room.take((before + data.len()).saturating_sub(before.max(expected)))?;
        if before == 0 {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.reserve(expected.max(first.len() + data.len()));
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

fn too_large(max: usize) -> Problem {
    Problem::new(ErrorCode::PayloadTooLarge, format!("the plan holds requests of {max} bytes"))
}

/// What a body takes of the node's and of its account's bytes, until it is dropped.
struct Room<'a> {
    all: [&'a Semaphore; 2],
    taken: [Option<SemaphorePermit<'a>>; 2],
}

impl Room<'_> {
    fn take(&mut self, bytes: usize) -> Result<(), Problem> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        for (semaphore, taken) in self.all.iter().zip(&mut self.taken) {
            let permit = semaphore.try_acquire_many(bytes).map_err(|_full| {
                let detail = "too many bytes of requests are on their way at this node";
                Problem { retry_after: Some(BUSY_RETRY), ..Problem::new(ErrorCode::SpoolBusy, detail) }
            })?;
            match taken {
                Some(taken) => taken.merge(permit),
                None => *taken = Some(permit),
            }
        }
        Ok(())
    }
}

fn forbidden(detail: impl Into<std::borrow::Cow<'static, str>>) -> Problem {
    Problem::new(ErrorCode::Forbidden, detail)
}

/// Scope, spool and queue prefix of the key.
fn allow(caller: &Caller, target: &Target<'_>) -> Result<(), Problem> {
    let scopes = &caller.key.scopes;
    let (held, needed) = match target.scope {
        Scope::Public | Scope::Any => (true, ""),
        Scope::Send => (scopes.send, "send"),
        Scope::Receive => (scopes.receive, "receive"),
        Scope::Read => (scopes.read || scopes.manage, "read"),
        Scope::Manage => (scopes.manage, "manage"),
        Scope::SendOrRead => (scopes.send || scopes.read || scopes.manage, "send or read"),
    };
    if !held {
        return Err(forbidden(format!("the key has not the scope {needed}")));
    }
    let of_spool = !matches!(target.op, Op::Limits | Op::ListSpools);
    if of_spool && caller.key.spool.as_ref().is_some_and(|spool| *spool != *target.spool) {
        return Err(forbidden("the key is for another spool"));
    }
    if !target.queue.is_empty() && !target.queue.starts_with(&*caller.key.queue_prefix) {
        return Err(forbidden("the key is for queues with another prefix"));
    }
    Ok(())
}

/// Queues that a request names beside the one in its path.
fn allow_names(caller: &Caller, command: &mut Command) -> Result<(), Problem> {
    let own = &caller.key.queue_prefix;
    match command {
        Command::PutQueue { change, .. } => match &change.dead_letter_queue {
            Some(Some(name)) if !name.as_str().starts_with(own) => {
                let problem = forbidden("the key is for queues with another prefix");
                Err(Problem { field: Some("deadLetterQueue".into()), ..problem })
            }
            _ => Ok(()),
        },
        Command::ListQueues { prefix, .. } if !prefix.starts_with(own) => match own.starts_with(&*prefix) {
            // Of what was asked for, what the key may see.
            true => {
                prefix.clone_from(own);
                Ok(())
            }
            false => Err(forbidden("the key is for queues with another prefix")),
        },
        _ => Ok(()),
    }
}
