//! From a reply to a response.

use super::parse::{Shape, cursor};
use super::problem::Problem;
use crate::directory::Plan;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use percent_encoding::{CONTROLS, utf8_percent_encode};
use serde_json::{Map, Value, json};
use spool::command::{Command, DeadLetterReason, Delivered, Reply, Sent, SettleResult, Written};
use spool::config::{QueueConfig, QueueInfo};
use std::time::Duration;
use types::{Epoch, ErrorCode, Position, WallMs};

const SPOOL_COPIES: HeaderName = HeaderName::from_static("spool-copies");
const SPOOL_POSITION: HeaderName = HeaderName::from_static("spool-position");
const SPOOL_EPOCH: HeaderName = HeaderName::from_static("spool-epoch");

pub fn json(status: StatusCode, body: &Value) -> Response<Bytes> {
    json_text(status, body.to_string())
}

/// The answer to the most frequent of all requests; ids and positions need no escapes.
fn sent_one(sent: &Sent) -> String {
    let Sent { id, duplicate } = sent;
    let position = Position { epoch: id.epoch, seq: id.seq };
    let duplicate = if *duplicate { ",\"duplicate\":true" } else { "" };
    format!("{{\"id\":\"{id}\",\"position\":\"{position}\"{duplicate}}}")
}

fn json_text(status: StatusCode, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn empty() -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// RFC 3339, UTC, milliseconds.
pub fn time(at: WallMs) -> String {
    let at = jiff::Timestamp::from_millisecond(at.0).unwrap_or_default();
    at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

fn seconds(span: Duration) -> Value {
    match span.subsec_millis() {
        0 => json!(span.as_secs()),
        _ => json!(span.as_millis() as f64 / 1000.0),
    }
}

pub fn reply(
    command_was_put: bool,
    shape: Shape,
    epoch: Epoch,
    reply: Reply,
) -> Result<Response<Bytes>, Problem> {
    let mut response = match reply {
        // Of a single send there is no index.
        Reply::Failed(failure) if shape == Shape::Single => {
            return Err(Problem { index: None, ..Problem::from(failure) });
        }
        Reply::Failed(failure) => return Err(Problem::from(failure)),
        Reply::Sent { messages, written } => {
            let stored = messages.iter().any(|sent| !sent.duplicate);
            let status = if stored { StatusCode::CREATED } else { StatusCode::OK };
            let body = match (shape, &messages[..]) {
                (Shape::Single, [sent]) => sent_one(sent),
                _ => {
                    let each =
                        |sent: &Sent| json!({ "id": sent.id.to_string(), "duplicate": sent.duplicate });
                    json!({ "messages": messages.iter().map(each).collect::<Vec<_>>() }).to_string()
                }
            };
            with_written(json_text(status, body), Some(written))
        }
        Reply::Settled { results, written } => with_written(settled(shape, results)?, written),
        Reply::QueuePut { info, created, written } => {
            let status = if created && command_was_put { StatusCode::CREATED } else { StatusCode::OK };
            let mut response = json(status, &queue(&info));
            put_etag(response.headers_mut(), info.etag);
            with_written(response, Some(written))
        }
        Reply::Deleted { written } => with_written(empty(), Some(written)),
        Reply::Purged { messages, written } => {
            with_written(json(StatusCode::OK, &json!({ "purged": messages })), Some(written))
        }
        Reply::Received { messages } => match shape {
            Shape::Raw => raw_message(messages),
            _ => json(StatusCode::OK, &json!({ "messages": shown_all(messages) })),
        },
        Reply::Extended { lease_expires } => {
            json(StatusCode::OK, &json!({ "leaseExpiresAt": time(lease_expires) }))
        }
        Reply::Queue { info } => {
            let mut response = json(StatusCode::OK, &queue(&info));
            put_etag(response.headers_mut(), info.etag);
            response
        }
        Reply::Queues { queues, next } => {
            let each = |(name, config, _): &(types::QueueName, QueueConfig, u64)| {
                let mut value = config_value(config);
                value.insert("name".to_owned(), json!(name.as_str()));
                Value::Object(value)
            };
            let queues: Vec<Value> = queues.iter().map(each).collect();
            let next = next.map(|name| cursor(name.as_str().as_bytes()));
            json(StatusCode::OK, &json!({ "queues": queues, "next": next }))
        }
        Reply::Messages { messages, next } => match shape {
            Shape::Message => match messages.into_iter().next() {
                Some(message) => json(StatusCode::OK, &shown(message)),
                None => return Err(Problem::new(ErrorCode::MessageNotFound, "no such message")),
            },
            _ => {
                let next = next.map(|next| cursor(&next.0));
                json(StatusCode::OK, &json!({ "messages": shown_all(messages), "next": next }))
            }
        },
        Reply::KeyLookedUp { id: Some(id) } => {
            json(StatusCode::OK, &json!({ "applied": true, "id": id.to_string() }))
        }
        Reply::KeyLookedUp { id: None } => json(StatusCode::OK, &json!({ "applied": false })),
    };
    put_epoch(response.headers_mut(), epoch);
    Ok(response)
}

pub fn put_epoch(headers: &mut HeaderMap, epoch: Epoch) {
    if epoch > Epoch(0) {
        headers.insert(SPOOL_EPOCH, HeaderValue::from(epoch.0));
    }
}

fn put_etag(headers: &mut HeaderMap, etag: u64) {
    if let Ok(value) = HeaderValue::try_from(format!("\"{etag:016x}\"")) {
        headers.insert(ETAG, value);
    }
}

fn with_written(mut response: Response<Bytes>, written: Option<Written>) -> Response<Bytes> {
    if let Some(Written { position, copies }) = written {
        let headers = response.headers_mut();
        headers.insert(SPOOL_COPIES, HeaderValue::from(u16::from(copies)));
        if let Ok(position) = HeaderValue::try_from(position.to_string()) {
            headers.insert(SPOOL_POSITION, position);
        }
    }
    response
}

fn settled(shape: Shape, results: Vec<SettleResult>) -> Result<Response<Bytes>, Problem> {
    let Shape::Settles(known) = shape else {
        return match results.into_iter().next() {
            Some(SettleResult::Failed(failure)) => Err(Problem::from(failure)),
            _ => Ok(empty()),
        };
    };
    let mut answered = results.into_iter();
    let mut list = Vec::with_capacity(known.len());
    for (token, refused) in known {
        let problem = match refused {
            Some(problem) => Some(problem),
            None => match answered.next() {
                Some(SettleResult::Failed(failure)) => Some(Problem::from(failure)),
                _ => None,
            },
        };
        list.push(match problem {
            None => json!({ "token": token, "status": 204 }),
            Some(problem) => json!({
                "token": token, "status": problem.code.http_status(), "code": problem.code.as_str(),
                "detail": problem.detail,
            }),
        });
    }
    Ok(json(StatusCode::OK, &json!({ "results": list })))
}

/// A batch of which no token is one: nothing has to be asked.
pub fn settled_without_asking(shape: Shape) -> Result<Response<Bytes>, Problem> {
    settled(shape, Vec::new())
}

fn shown_all(messages: Vec<Delivered>) -> Vec<Value> {
    messages.into_iter().map(shown).collect()
}

fn shown(message: Delivered) -> Value {
    let mut value = Map::new();
    let mut put = |name: &str, given: Value| drop(value.insert(name.to_owned(), given));
    put("id", json!(message.id.to_string()));
    if let Some(lease) = &message.lease {
        put("token", json!(lease.token.to_string()));
        put("leaseExpiresAt", json!(time(lease.expires)));
    }
    match std::str::from_utf8(&message.payload) {
        Ok(text) => put("body", json!(text)),
        Err(_) => put("bodyBase64", json!(BASE64_STANDARD.encode(&message.payload))),
    }
    let attributes: Map<String, Value> =
        message.attributes.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
    put("contentType", json!(message.content_type));
    put("attributes", Value::Object(attributes));
    put("deliveries", json!(message.deliveries));
    put("sentAt", json!(time(message.sent_at)));
    if let Some(at) = message.available_at {
        put("availableAt", json!(time(at)));
    }
    put("group", json!(message.group));
    put("priority", json!(message.priority));
    put("traceparent", json!(message.traceparent));
    if let Some(dead) = message.dead_letter {
        put("deadLetterReason", json!(reason(dead.reason)));
        put("deadLetterDetail", json!(dead.detail));
        put("sourceQueue", json!(dead.source_queue.as_str()));
    }
    Value::Object(value)
}

fn reason(reason: DeadLetterReason) -> &'static str {
    match reason {
        DeadLetterReason::Expired => "expired",
        DeadLetterReason::Nacked => "nacked",
        DeadLetterReason::Rejected => "rejected",
    }
}

/// JSON that a header can carry: what is not ASCII as `\u` escapes.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    let mut units = [0; 2];
    for c in json.chars() {
        if matches!(c, ' '..='~') {
            text.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut units) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    }
    text
}

/// The payload itself; the rest as headers, in which what is not ASCII is percent-encoded.
fn raw_message(messages: Vec<Delivered>) -> Response<Bytes> {
    let Some(message) = messages.into_iter().next() else { return empty() };
    let mut headers = HeaderMap::new();
    let mut put = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    put("message-id", message.id.to_string());
    if let Some(lease) = &message.lease {
        put("message-token", lease.token.to_string());
        put("message-lease-expires-at", time(lease.expires));
    }
    put("message-deliveries", message.deliveries.to_string());
    put("message-sent-at", time(message.sent_at));
    put("message-priority", message.priority.to_string());
    if !message.attributes.is_empty() {
        let attributes: Map<String, Value> =
            message.attributes.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        put("message-attributes", ascii(&Value::Object(attributes).to_string()));
    }
    let mut text = |name, value: Option<String>| {
        if let Some(value) = value {
            put(name, utf8_percent_encode(&value, CONTROLS).to_string());
        }
    };
    text("message-group", message.group);
    text("traceparent", message.traceparent);
    if let Some(dead) = message.dead_letter {
        text("message-dead-letter-reason", Some(reason(dead.reason).to_owned()));
        text("message-dead-letter-detail", dead.detail);
        text("message-source-queue", Some(dead.source_queue.as_str().to_owned()));
    }
    put("content-type", message.content_type.unwrap_or_else(|| "application/octet-stream".to_owned()));
    let mut response = Response::new(message.payload);
    *response.headers_mut() = headers;
    response
}

fn config_value(config: &QueueConfig) -> Map<String, Value> {
    let mut value = Map::new();
    let mut put = |name: &str, given: Value| drop(value.insert(name.to_owned(), given));
    put("leaseSeconds", seconds(config.lease));
    put("maxDeliveries", json!(config.deliveries_max));
    put("deadLetterQueue", json!(config.dead_letter_queue.as_ref().map(|name| name.as_str())));
    put("dedupWindowSeconds", seconds(config.dedup_window));
    put("retentionSeconds", seconds(config.retention));
    put("delaySeconds", seconds(config.delay));
    let multiplier = f64::from(config.backoff.multiplier_milli) / 1000.0;
    put(
        "retryBackoff",
        json!({
            "initialSeconds": seconds(config.backoff.initial),
            "maxSeconds": seconds(config.backoff.max),
            "multiplier": multiplier,
        }),
    );
    put("maxMessageBytes", json!(config.message_bytes_max));
    put("paused", json!({ "send": config.paused_send, "receive": config.paused_receive }));
    value
}

fn queue(info: &QueueInfo) -> Value {
    let mut value = config_value(&info.config);
    let mut put = |name: &str, given: Value| drop(value.insert(name.to_owned(), given));
    put("name", json!(info.name.as_str()));
    put("createdAt", json!(time(info.created)));
    put(
        "counts",
        json!({
            "available": info.available, "leased": info.leased, "delayed": info.delayed, "settling": info.settling,
        }),
    );
    put("bytes", json!(info.bytes));
    put("oldestAvailableSeconds", info.oldest_available.map_or(Value::Null, seconds));
    let totals = &info.totals;
    put(
        "totals",
        json!({
            "sent": totals.sent, "acked": totals.acked, "deadLettered": totals.dead_lettered, "expired": totals.expired,
        }),
    );
    Value::Object(value)
}

pub fn limits(plan: &Plan, spools_used: usize) -> Value {
    json!({
        "plan": plan.name, "replicas": plan.replicas, "spools": plan.spools,
        "queuesPerSpool": plan.queues_per_spool, "messageBytes": plan.message_bytes,
        "requestBytes": plan.request_bytes, "storedBytes": plan.stored_bytes,
        "requestsPerSecond": plan.requests_per_second, "retentionSeconds": plan.retention.as_secs(),
        "used": { "spools": spools_used },
    })
}

/// Whether what broke may have had an effect.
pub fn may_have_effect(command: &Command) -> bool {
    command.is_write() || matches!(command, Command::Extend { .. })
}
