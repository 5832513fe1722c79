//! From a request to a command.

use super::json::{self, Object};
use super::problem::Problem;
use super::routes::{Op, Target};
use crate::directory::Plan;
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use serde_json::value::RawValue;
use spool::command::{BrowseCursor, BrowseState, Command, Delay, NewMessage, Precondition, Settle};
use spool::config::{ConfigChange, QueueConfig};
use spool::token::Token;
use std::borrow::Cow;
use std::time::Duration;
use types::{ErrorCode, QueueName, WallMs, limits};

/// More than any request of the contract has.
const PARAMETERS_MAX: usize = 32;

/// The query, each parameter once.
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn read(query: Option<&str>) -> Result<Query, Problem> {
        let mut parameters: Vec<(String, String)> = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text: &str| {
                let spaced = text.replace('+', " ");
                let decoded = percent_encoding::percent_decode_str(&spaced).decode_utf8();
                decoded.map(Cow::into_owned)
            };
            let name = decode(name).map_err(|_| Problem::malformed("the query is not UTF-8"))?;
            let Ok(value) = decode(value) else { return Err(Problem::invalid(name, "not UTF-8")) };
            if parameters.iter().any(|(earlier, _)| *earlier == name) {
                return Err(Problem::invalid(name, "named twice"));
            }
            if parameters.len() == PARAMETERS_MAX {
                return Err(Problem::malformed("too many query parameters"));
            }
            parameters.push((name, value));
        }
        Ok(Query(parameters))
    }

    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(is, _)| is == name)?;
        Some(self.0.swap_remove(at).1)
    }

    pub fn end(self) -> Result<(), Problem> {
        match self.0.into_iter().next() {
            Some((name, _)) => Err(Problem::invalid(name, "no such query parameter here")),
            None => Ok(()),
        }
    }
}

/// A command, and what of the request shapes the answer.
pub struct Parsed {
    pub command: Command,
    pub shape: Shape,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    Plain,
    Single,
    Batch,
    /// A settle of many: what is known of each token already, and where the others stand in the command.
    Settles(Vec<(String, Option<Problem>)>),
    /// The payload itself.
    Raw,
    /// Nothing but the message.
    Message,
}

pub fn command(
    target: &Target<'_>,
    query: Option<&str>,
    headers: &HeaderMap,
    body: &Bytes,
    plan: &Plan,
) -> Result<Parsed, Problem> {
    let mut query = Query::read(query)?;
    let queue = || queue_name("queue", &target.queue);
    let plain = |command| Parsed { command, shape: Shape::Plain };
    let parsed = match target.op {
        Op::Send => send(queue()?, &mut query, headers, body)?,
        Op::Receive => receive(queue()?, headers, body)?,
        Op::Ack | Op::Nack | Op::Reject => settle(target.op, queue()?, headers, body)?,
        Op::Extend => {
            let mut object = object(headers, body)?;
            let token = required("token", object.text("token")?)?;
            let lease = object.seconds("leaseSeconds", limits::LEASE_MIN, limits::LEASE_MAX)?;
            object.end()?;
            let token = read_token(&token)?;
            plain(Command::Extend { queue: queue()?, token, lease: required("leaseSeconds", lease)? })
        }
        Op::PutQueue | Op::PatchQueue => {
            let replace = target.op == Op::PutQueue;
            let change = config_change(replace, headers, body, plan)?;
            plain(Command::PutQueue { queue: queue()?, change, precondition: precondition(headers)? })
        }
        Op::DeleteQueue => {
            plain(Command::DeleteQueue { queue: queue()?, precondition: precondition(headers)? })
        }
        Op::Purge => {
            empty_object(headers, body)?;
            plain(Command::Purge { queue: queue()? })
        }
        Op::GetQueue => plain(Command::GetQueue { queue: queue()? }),
        Op::ListQueues => {
            let prefix = query.take("prefix").unwrap_or_default();
            let after = query.take("cursor").map(|cursor| read_name_cursor(&cursor)).transpose()?;
            plain(Command::ListQueues { prefix, after, limit: limit(&mut query)? })
        }
        Op::Browse => {
            let state = match query.take("state").as_deref() {
                None | Some("available") => BrowseState::Available,
                Some("leased") => BrowseState::Leased,
                Some("delayed") => BrowseState::Delayed,
                Some(_) => return Err(Problem::invalid("state", "available, leased or delayed")),
            };
            let after =
                query.take("cursor").map(|cursor| read_cursor(&cursor).map(BrowseCursor)).transpose()?;
            plain(Command::Browse { queue: queue()?, state, after, limit: limit(&mut query)? })
        }
        Op::GetMessage | Op::DeleteMessage => {
            let absent = || Problem::new(ErrorCode::MessageNotFound, "not an id of a message");
            let (queue, id) = (queue()?, target.id.parse().map_err(|_| absent())?);
            match target.op {
                Op::GetMessage => {
                    Parsed { command: Command::GetMessage { queue, id }, shape: Shape::Message }
                }
                _ => plain(Command::DeleteMessage { queue, id }),
            }
        }
        Op::LookUpKey => {
            let key = required("key", query.take("key"))?;
            plain(Command::LookUpKey { queue: queue()?, key: dedup_key("key", &key)? })
        }
        Op::OpenApi | Op::Limits | Op::ListSpools | Op::GetSpool | Op::ChangeSpool => {
            return Err(Problem::new(ErrorCode::Internal, "not a command"));
        }
    };
    query.end()?;
    Ok(parsed)
}

fn required<T>(field: &'static str, value: Option<T>) -> Result<T, Problem> {
    value.ok_or_else(|| Problem::invalid(field, "is missing"))
}

fn queue_name(field: &'static str, name: &str) -> Result<QueueName, Problem> {
    // Also names that only dead-letter queues have.
    QueueName::from_stored(name).map_err(|error| Problem::invalid(field, error.to_string()))
}

pub fn limit(query: &mut Query) -> Result<u32, Problem> {
    match query.take("limit") {
        None => Ok(limits::LIST_LIMIT_DEFAULT),
        Some(text) => Ok(json::whole("limit", &text, 1, u64::from(limits::LIST_LIMIT_MAX))? as u32),
    }
}

pub fn read_cursor(cursor: &str) -> Result<Vec<u8>, Problem> {
    let wrong = |_| Problem::invalid("cursor", "not a cursor of this list");
    BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(wrong)
}

fn read_name_cursor(cursor: &str) -> Result<QueueName, Problem> {
    let name = String::from_utf8(read_cursor(cursor)?).ok();
    let name = name.and_then(|name| QueueName::from_stored(&name).ok());
    name.ok_or_else(|| Problem::invalid("cursor", "not a cursor of this list"))
}

pub fn cursor(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or(value).trim())
}

fn is_json(headers: &HeaderMap) -> bool {
    media_type(headers).is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"))
}

/// A JSON object in the body; no body is an empty one.
fn object<'a>(headers: &HeaderMap, body: &'a Bytes) -> Result<Object<'a>, Problem> {
    if body.is_empty() {
        return Object::read(b"{}");
    }
    // curl's `-d` says this of everything.
    let form = media_type(headers).is_some_and(|kind| kind == "application/x-www-form-urlencoded");
    if headers.contains_key(CONTENT_TYPE) && !is_json(headers) && !form {
        let detail = "the body is JSON here: content-type: application/json";
        return Err(Problem {
            field: Some("Content-Type".into()),
            ..Problem::new(ErrorCode::UnsupportedMediaType, detail)
        });
    }
    Object::read(body)
}

fn empty_object(headers: &HeaderMap, body: &Bytes) -> Result<(), Problem> {
    object(headers, body)?.end()
}

// ---- send

fn send(queue: QueueName, query: &mut Query, headers: &HeaderMap, body: &Bytes) -> Result<Parsed, Problem> {
    let idempotency = idempotency_key(headers)?;
    let raw = match query.take("raw").as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Problem::invalid("raw", "true or false")),
    };
    if !is_json(headers) || raw {
        let message = raw_message(query, headers, body, idempotency)?;
        let command = Command::Send { queue, messages: vec![message] };
        return Ok(Parsed { command, shape: Shape::Single });
    }
    let mut object = Object::read(body)?;
    let Some(batch) = object.take("messages") else {
        let message = json_message(object, idempotency)?;
        let command = Command::Send { queue, messages: vec![message] };
        return Ok(Parsed { command, shape: Shape::Single });
    };
    object.end()?;
    if idempotency.is_some() {
        let detail = "of a single send only: give each message of a batch its dedupKey";
        return Err(Problem::invalid("Idempotency-Key", detail));
    }
    let items: Vec<Object<'_>> = json::list("messages", batch, limits::BATCH_MAX, "objects")?;
    let mut messages = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let item = item.refuse_duplicates().map_err(|problem| problem.at(index))?;
        messages.push(json_message(item, None).map_err(|problem| problem.at(index))?);
    }
    Ok(Parsed { command: Command::Send { queue, messages }, shape: Shape::Batch })
}

fn json_message(mut object: Object<'_>, idempotency: Option<Bytes>) -> Result<NewMessage, Problem> {
    let (text, encoded) = (object.text("body")?, object.text("bodyBase64")?);
    let payload = match (text, encoded) {
        (Some(text), None) => Bytes::from(text.into_owned()),
        (None, Some(encoded)) => {
            let wrong = |_| Problem::invalid("bodyBase64", "not base64");
            BASE64_STANDARD.decode(encoded.as_bytes()).map_err(wrong)?.into()
        }
        (Some(_), Some(_)) => return Err(Problem::invalid("bodyBase64", "either body or bodyBase64")),
        (None, None) => return Err(Problem::invalid("body", "is missing (or bodyBase64)")),
    };
    let content_type =
        object.text("contentType")?.map(|kind| content_type("contentType", &kind)).transpose()?;
    let attributes = match object.take("attributes") {
        Some(value) => attributes(value)?,
        None => Vec::new(),
    };
    let delay = object.seconds("delaySeconds", Duration::ZERO, limits::RETENTION_MAX)?;
    let until = object.text("deliverAt")?.map(|text| moment("deliverAt", &text)).transpose()?;
    let named = object.text("dedupKey")?.map(|key| dedup_key("dedupKey", &key)).transpose()?;
    let ttl = object.seconds("ttlSeconds", Duration::from_millis(1), limits::RETENTION_MAX)?;
    let group =
        object.text("group")?.map(|group| bounded("group", &group, limits::GROUP_LEN_MAX)).transpose()?;
    let priority = object.whole("priority", 0, u64::from(limits::PRIORITY_MAX))?.map(|p| p as u8);
    let traceparent = object
        .text("traceparent")?
        .map(|text| bounded("traceparent", &text, limits::TRACEPARENT_LEN_MAX))
        .transpose()?;
    object.end()?;
    Ok(NewMessage {
        payload,
        content_type,
        attributes,
        delay: delay_of(delay, until)?,
        ttl,
        dedup_key: one_key(named, idempotency)?,
        group,
        priority,
        traceparent,
    })
}

/// The body is the payload, byte for byte; options are query parameters.
fn raw_message(
    query: &mut Query,
    headers: &HeaderMap,
    body: &Bytes,
    idempotency: Option<Bytes>,
) -> Result<NewMessage, Problem> {
    let content_type = match headers.get(CONTENT_TYPE) {
        None => None,
        Some(value) => {
            let wrong = |_| Problem::invalid("Content-Type", "not text");
            Some(content_type("Content-Type", value.to_str().map_err(wrong)?)?)
        }
    };
    let mut span = |name: &'static str, min| {
        query.take(name).map(|text| json::seconds(name, &text, min, limits::RETENTION_MAX)).transpose()
    };
    let delay = span("delaySeconds", Duration::ZERO)?;
    let ttl = span("ttlSeconds", Duration::from_millis(1))?;
    let until = query.take("deliverAt").map(|text| moment("deliverAt", &text)).transpose()?;
    let named = query.take("dedupKey").map(|key| dedup_key("dedupKey", &key)).transpose()?;
    let group =
        query.take("group").map(|group| bounded("group", &group, limits::GROUP_LEN_MAX)).transpose()?;
    let priority = query
        .take("priority")
        .map(|text| json::whole("priority", &text, 0, u64::from(limits::PRIORITY_MAX)))
        .transpose()?
        .map(|priority| priority as u8);
    let traceparent = query
        .take("traceparent")
        .map(|text| bounded("traceparent", &text, limits::TRACEPARENT_LEN_MAX))
        .transpose()?;
    Ok(NewMessage {
        payload: body.clone(),
        content_type,
        attributes: Vec::new(),
        delay: delay_of(delay, until)?,
        ttl,
        dedup_key: one_key(named, idempotency)?,
        group,
        priority,
        traceparent,
    })
}

fn delay_of(delay: Option<Duration>, until: Option<WallMs>) -> Result<Delay, Problem> {
    match (delay, until) {
        (None, None) => Ok(Delay::QueueDefault),
        (Some(delay), None) => Ok(Delay::For(delay)),
        (None, Some(until)) => Ok(Delay::Until(until)),
        (Some(_), Some(_)) => Err(Problem::invalid("deliverAt", "either delaySeconds or deliverAt")),
    }
}

fn one_key(named: Option<Bytes>, idempotency: Option<Bytes>) -> Result<Option<Bytes>, Problem> {
    match (&named, &idempotency) {
        (Some(named), Some(other)) if named != other => {
            Err(Problem::invalid("Idempotency-Key", "differs from dedupKey"))
        }
        _ => Ok(named.or(idempotency)),
    }
}

fn dedup_key(field: &'static str, key: &str) -> Result<Bytes, Problem> {
    bounded(field, key, limits::DEDUP_KEY_LEN_MAX).map(Bytes::from)
}

fn bounded(field: &'static str, text: &str, max: usize) -> Result<String, Problem> {
    match !text.is_empty() && text.len() <= max {
        true => Ok(text.to_owned()),
        false => Err(Problem::invalid(field, format!("1 to {max} bytes"))),
    }
}

fn content_type(field: &'static str, kind: &str) -> Result<String, Problem> {
    let kind = bounded(field, kind, limits::CONTENT_TYPE_LEN_MAX)?;
    match kind.bytes().all(|c| (b' '..=b'~').contains(&c)) {
        true => Ok(kind),
        false => Err(Problem::invalid(field, "printable ASCII only")),
    }
}

/// A structured-field string in quotes, or bare.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<Bytes>, Problem> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes());
    let text = text.map_err(|_| Problem::invalid("Idempotency-Key", "not UTF-8"))?.trim();
    let bare = match text.strip_prefix('"') {
        None => text.to_owned(),
        Some(rest) => {
            let wrong = || Problem::invalid("Idempotency-Key", "not a quoted string");
            rest.strip_suffix('"').and_then(unescaped).ok_or_else(wrong)?
        }
    };
    dedup_key("Idempotency-Key", &bare).map(Some)
}

/// What stands between the quotes of a structured-field string.
fn unescaped(quoted: &str) -> Option<String> {
    let mut text = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        text.push(match character {
            '"' => return None,
            '\\' => characters.next().filter(|escaped| matches!(escaped, '"' | '\\'))?,
            other => other,
        });
    }
    Some(text)
}

fn attributes(value: &RawValue) -> Result<Vec<(String, String)>, Problem> {
    let wrong = |detail: String| Problem::invalid("attributes", detail);
    let names = Object::nested("attributes", value)?.into_texts();
    let names = names.map_err(|_| wrong("an object whose values are strings".to_owned()))?;
    let bytes: usize = names.iter().map(|(name, value)| name.len() + value.len()).sum();
    if names.len() > limits::ATTRIBUTES_MAX || bytes > limits::ATTRIBUTES_BYTES_MAX {
        let (most, size) = (limits::ATTRIBUTES_MAX, limits::ATTRIBUTES_BYTES_MAX);
        return Err(wrong(format!("{most} attributes and {size} bytes in all at most")));
    }
    Ok(names)
}

fn moment(field: &'static str, text: &str) -> Result<WallMs, Problem> {
    let moment = text.parse::<jiff::Timestamp>().ok().filter(|at| at.as_millisecond() >= 0);
    let wrong = || Problem::invalid(field, "a time as in RFC 3339, such as 2026-01-31T12:00:00Z");
    moment.map(|at| WallMs(at.as_millisecond())).ok_or_else(wrong)
}

// ---- receive and settle

fn receive(queue: QueueName, headers: &HeaderMap, body: &Bytes) -> Result<Parsed, Problem> {
    let mut object = object(headers, body)?;
    let max = object.whole("max", 1, u64::from(limits::RECEIVE_MAX))?.unwrap_or(1) as u32;
    let wait = object.seconds("waitSeconds", Duration::ZERO, limits::RECEIVE_WAIT_MAX)?;
    let lease = object.seconds("leaseSeconds", limits::LEASE_MIN, limits::LEASE_MAX)?;
    object.end()?;
    let accept = headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok());
    let raw = accept.is_some_and(|accept| accept.trim() == "application/octet-stream");
    if raw && max != 1 {
        return Err(Problem::invalid("max", "must be 1 where the payload itself is asked for"));
    }
    let command = Command::Receive { queue, max, wait: wait.unwrap_or_default(), lease };
    Ok(Parsed { command, shape: if raw { Shape::Raw } else { Shape::Batch } })
}

fn read_token(text: &str) -> Result<Token, Problem> {
    let wrong =
        |_| Problem { field: Some("token".into()), ..Problem::new(ErrorCode::InvalidToken, "not a token") };
    text.parse().map_err(wrong)
}

fn settle(op: Op, queue: QueueName, headers: &HeaderMap, body: &Bytes) -> Result<Parsed, Problem> {
    let mut object = object(headers, body)?;
    let (one, many) = (object.text("token")?, object.take("tokens"));
    let settle = match op {
        Op::Ack => Settle::Ack,
        Op::Nack => {
            Settle::Nack { delay: object.seconds("delaySeconds", Duration::ZERO, limits::RETENTION_MAX)? }
        }
        _ => {
            let reason = object.text("reason")?;
            let reason =
                reason.map(|reason| bounded("reason", &reason, limits::REASON_LEN_MAX)).transpose()?;
            Settle::Reject { reason }
        }
    };
    object.end()?;
    match (one, many) {
        (Some(token), None) => {
            let tokens = vec![read_token(&token)?];
            Ok(Parsed { command: Command::Settle { queue, settle, tokens }, shape: Shape::Single })
        }
        (None, Some(list)) => {
            let texts: Vec<String> = json::list("tokens", list, limits::BATCH_MAX, "strings")?;
            let (mut tokens, mut known) = (Vec::with_capacity(texts.len()), Vec::with_capacity(texts.len()));
            for text in texts {
                match read_token(&text) {
                    Ok(token) => {
                        tokens.push(token);
                        known.push((text, None));
                    }
                    Err(problem) => known.push((text, Some(problem))),
                }
            }
            Ok(Parsed { command: Command::Settle { queue, settle, tokens }, shape: Shape::Settles(known) })
        }
        (Some(_), Some(_)) => Err(Problem::invalid("tokens", "either token or tokens")),
        (None, None) => Err(Problem::invalid("token", "is missing (or tokens)")),
    }
}

// ---- queues

fn precondition(headers: &HeaderMap) -> Result<Precondition, Problem> {
    let text = |name: &http::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    match (text(&IF_MATCH), text(&IF_NONE_MATCH)) {
        (None, None) => Ok(Precondition::None),
        (Some("*"), None) => Ok(Precondition::Exists),
        (Some(etags), None) => {
            let read = |etag: &str| {
                let hex = etag.trim().strip_prefix('"')?.strip_suffix('"')?;
                u64::from_str_radix(hex, 16).ok()
            };
            // An ETag that is none of ours matches nothing.
            Ok(Precondition::Match(etags.split(',').filter_map(read).collect()))
        }
        (None, Some("*")) => Ok(Precondition::Absent),
        (None, Some(_)) => Err(Problem::invalid("If-None-Match", "only * is understood here")),
        (Some(_), Some(_)) => Err(Problem::invalid("If-None-Match", "either If-Match or If-None-Match")),
    }
}

fn config_change(
    replace: bool,
    headers: &HeaderMap,
    body: &Bytes,
    plan: &Plan,
) -> Result<ConfigChange, Problem> {
    let mut object = object(headers, body)?;
    let bounds = plan.bounds();
    let defaults = QueueConfig::defaults(&bounds);
    let mut change = ConfigChange::nothing(replace, bounds);
    let retention_max = limits::RETENTION_MAX;
    // `null` unsets: back to the default.
    change.lease = or_default(&mut object, "leaseSeconds", defaults.lease, |object| {
        object.seconds("leaseSeconds", limits::LEASE_MIN, limits::LEASE_MAX)
    })?;
    change.deliveries_max = or_default(&mut object, "maxDeliveries", None, |object| {
        Ok(object.whole("maxDeliveries", 1, u64::from(limits::DELIVERIES_MAX))?.map(|max| Some(max as u32)))
    })?;
    change.dead_letter_queue = or_default(&mut object, "deadLetterQueue", None, |object| {
        let name = object.text("deadLetterQueue")?;
        name.map(|name| queue_name("deadLetterQueue", &name).map(Some)).transpose()
    })?;
    change.dedup_window = or_default(&mut object, "dedupWindowSeconds", Duration::ZERO, |object| {
        object.seconds("dedupWindowSeconds", Duration::ZERO, limits::DEDUP_WINDOW_MAX)
    })?;
    change.retention = or_default(&mut object, "retentionSeconds", defaults.retention, |object| {
        object.seconds("retentionSeconds", Duration::from_secs(1), retention_max)
    })?;
    change.delay = or_default(&mut object, "delaySeconds", Duration::ZERO, |object| {
        object.seconds("delaySeconds", Duration::ZERO, retention_max)
    })?;
    change.message_bytes_max = or_default(&mut object, "maxMessageBytes", plan.message_bytes, |object| {
        let bytes = object.whole("maxMessageBytes", 1, limits::MESSAGE_BYTES_MAX as u64)?;
        Ok(bytes.map(|bytes| bytes as u32))
    })?;
    if let Some(value) = object.take_raw("retryBackoff") {
        let backoff = defaults.backoff;
        let mut nested = match value.get() {
            "null" => Object::read(b"{}")?,
            _ => Object::nested("retryBackoff", value)?,
        };
        let initial = nested.seconds("initialSeconds", Duration::ZERO, retention_max)?;
        let max = nested.seconds("maxSeconds", Duration::ZERO, retention_max)?;
        let multiplier = nested.take("multiplier").map(|value| multiplier(value.get())).transpose()?;
        nested.end()?;
        let whole = replace || value.get() == "null";
        change.backoff_initial = initial.or(whole.then_some(backoff.initial));
        change.backoff_max = max.or(whole.then_some(backoff.max));
        change.backoff_multiplier_milli = multiplier.or(whole.then_some(backoff.multiplier_milli));
    }
    if let Some(value) = object.take_raw("paused") {
        let mut nested = match value.get() {
            "null" => Object::read(br#"{"send":false,"receive":false}"#)?,
            _ => Object::nested("paused", value)?,
        };
        change.paused_send = nested.flag("send")?;
        change.paused_receive = nested.flag("receive")?;
        nested.end()?;
    }
    object.end()?;
    let beyond = |field: &'static str, detail: String| {
        Err(Problem { field: Some(field.into()), ..Problem::new(ErrorCode::LimitExceeded, detail) })
    };
    if change.retention.is_some_and(|retention| retention > plan.retention) {
        let detail = format!("the plan {} keeps messages for {} s", plan.name, plan.retention.as_secs());
        return beyond("retentionSeconds", detail);
    }
    if change.message_bytes_max.is_some_and(|bytes| bytes > plan.message_bytes) {
        let detail = format!("the plan {} holds messages of {} bytes", plan.name, plan.message_bytes);
        return beyond("maxMessageBytes", detail);
    }
    Ok(change)
}

fn multiplier(text: &str) -> Result<u32, Problem> {
    let number = serde_json::from_str::<f64>(text).ok().filter(|number| (1.0..=100.0).contains(number));
    let wrong = || Problem::invalid("multiplier", "must be a number from 1 to 100");
    number.map(|number| (number * 1000.0).round() as u32).ok_or_else(wrong)
}

fn or_default<'a, T>(
    object: &mut Object<'a>,
    field: &'static str,
    default: T,
    read: impl FnOnce(&mut Object<'a>) -> Result<Option<T>, Problem>,
) -> Result<Option<T>, Problem> {
    if object.is_null(field) {
        object.take_raw(field);
        return Ok(Some(default));
    }
    read(object)
}

/// A body that would change one of a spool's two numbers.
pub fn changes_numbers(headers: &HeaderMap, body: &Bytes, numbers: (u32, u32)) -> Result<bool, Problem> {
    let mut object = object(headers, body)?;
    let mut differs = |field, now: u32| {
        let number = |value: &RawValue| serde_json::from_str::<f64>(value.get()).ok();
        object.take_raw(field).is_some_and(|value| number(value) != Some(f64::from(now)))
    };
    let (replicas, sync) = (differs("numReplicas", numbers.0), differs("numSync", numbers.1));
    Ok(replicas || sync)
}

/// `Prefer: wait=<seconds>`.
pub fn prefer_wait(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    for value in headers.get_all("prefer") {
        let text = value.to_str().map_err(|_| Problem::invalid("Prefer", "not text"))?;
        for preference in text.split(',') {
            let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
            if name.trim().eq_ignore_ascii_case("wait") {
                let value = value.split(';').next().unwrap_or("").trim().trim_matches('"');
                let max = limits::CONFIRM_WAIT_MAX.as_secs();
                return json::whole("Prefer", value, 0, max)
                    .map(|seconds| Some(Duration::from_secs(seconds)));
            }
        }
    }
    Ok(None)
}
