//! The table of routes: what can be asked for, under which path, with which scope. Dispatch and the OpenAPI document both come
//! from it.

use super::problem::Problem;
use percent_encoding::percent_decode_str;
use std::borrow::Cow;
use types::ErrorCode;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    OpenApi,
    Limits,
    ListSpools,
    GetSpool,
    /// Never possible; which refusal it is depends on the body.
    ChangeSpool,
    ListQueues,
    PutQueue,
    PatchQueue,
    GetQueue,
    DeleteQueue,
    Purge,
    Send,
    Browse,
    GetMessage,
    DeleteMessage,
    Receive,
    Ack,
    Nack,
    Reject,
    Extend,
    LookUpKey,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// No key at all.
    Public,
    Any,
    Send,
    Receive,
    Read,
    Manage,
    SendOrRead,
}

pub struct Route {
    pub method: &'static str,
    /// Below `/v1`, or below `/v1/spools/{spool}` where it begins with `/queues`.
    pub path: &'static str,
    pub op: Op,
    pub scope: Scope,
    pub summary: &'static str,
}

macro_rules! routes {
    ($($method:literal $path:literal $op:ident $scope:ident $summary:literal;)*) => {
        pub const ROUTES: &[Route] = &[$(Route {
            method: $method, path: $path, op: Op::$op, scope: Scope::$scope, summary: $summary,
        },)*];
    };
}

routes! {
    // What is asked for most stands first: the table is gone through in its order.
    "POST" "/queues/{queue}/messages" Send Send "Send a message, or a batch as one write";
    "GET" "/queues/{queue}/messages" Browse Read "Look at messages without taking them";
    "GET" "/queues/{queue}/messages/{id}" GetMessage Read "Look at one message";
    "DELETE" "/queues/{queue}/messages/{id}" DeleteMessage Manage "Delete one message";
    "POST" "/queues/{queue}/receive" Receive Receive "Receive messages under a lease";
    "POST" "/queues/{queue}/ack" Ack Receive "Done: gone for good";
    "POST" "/queues/{queue}/nack" Nack Receive "Not now: back to its place, after a delay";
    "POST" "/queues/{queue}/reject" Reject Receive "Never: to the dead-letter queue";
    "POST" "/queues/{queue}/extend" Extend Receive "Keep a lease for longer, or shorter";
    "GET" "/openapi.json" OpenApi Public "This document";
    "GET" "/limits" Limits Any "What the account's plan holds, and what is used of it";
    "GET" "/spools" ListSpools Read "The account's spools";
    "GET" "/spools/{spool}" GetSpool Read "A spool: its numbers, its copies, how it is doing";
    "PUT" "/spools/{spool}" ChangeSpool Read "Refused: the numbers are for good (409), the rest is not to be changed here (405)";
    "PATCH" "/spools/{spool}" ChangeSpool Read "Refused, as PUT is";
    "GET" "/queues" ListQueues Read "Queues, by name";
    "PUT" "/queues/{queue}" PutQueue Manage "Create a queue, or replace its configuration";
    "PATCH" "/queues/{queue}" PatchQueue Manage "Change what is named of a queue's configuration";
    "GET" "/queues/{queue}" GetQueue Read "A queue: configuration, counts, totals";
    "DELETE" "/queues/{queue}" DeleteQueue Manage "Delete a queue and what is in it";
    "POST" "/queues/{queue}/purge" Purge Manage "Remove every message accepted before";
    "GET" "/queues/{queue}/dedup" LookUpKey SendOrRead "What became of a send with a dedup key";
}

/// Where a request wants to go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target<'a> {
    pub op: Op,
    pub scope: Scope,
    /// `default` where the path names none.
    pub spool: Cow<'a, str>,
    pub queue: Cow<'a, str>,
    pub id: Cow<'a, str>,
}

pub const DEFAULT_SPOOL: &str = "default";

pub fn find<'a>(method: &str, path: &'a str) -> Result<Target<'a>, Problem> {
    let nothing = || Problem::new(ErrorCode::NotFound, "no such path");
    let rest = path.strip_prefix("/v1").ok_or_else(nothing)?;
    let (spool, rest) = match in_spool(rest) {
        Some((spool, rest)) => (decode("spool", spool)?, rest),
        None => (Cow::Borrowed(DEFAULT_SPOOL), rest),
    };
    let mut allowed = Vec::new();
    for route in ROUTES.iter().filter(|route| fits(route.path, rest)) {
        if route.method != method && !(method == "HEAD" && route.method == "GET") {
            allowed.push(route.method);
            continue;
        }
        let (op, scope) = (route.op, route.scope);
        let mut target = Target { op, scope, spool, queue: Cow::Borrowed(""), id: Cow::Borrowed("") };
        for (name, value) in route.path.split('/').zip(rest.split('/')) {
            match name {
                "{spool}" => target.spool = decode("spool", value)?,
                "{queue}" => target.queue = decode("queue", value)?,
                "{id}" => target.id = decode("id", value)?,
                _ => {}
            }
        }
        return Ok(target);
    }
    match allowed.is_empty() {
        true => Err(nothing()),
        false => Err(Problem::method(allow(allowed))),
    }
}

/// `/spools/{spool}/queues...`: the spool, and the path from `/queues` on.
fn in_spool(path: &str) -> Option<(&str, &str)> {
    let below = path.strip_prefix("/spools/")?;
    let (spool, _) = below.split_once("/queues")?;
    (!spool.contains('/')).then(|| (spool, &below[spool.len()..]))
}

fn fits(pattern: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    let fits = pattern.split('/').all(|wanted| {
        let part = parts.next();
        part.is_some_and(|part| part == wanted || (wanted.starts_with('{') && !part.is_empty()))
    });
    fits && parts.next().is_none()
}

fn decode<'a>(name: &'static str, part: &'a str) -> Result<Cow<'a, str>, Problem> {
    percent_decode_str(part).decode_utf8().map_err(|_| Problem::invalid(name, "not UTF-8"))
}

/// As in the header: a path that can be read can be asked for its head.
fn allow(mut methods: Vec<&'static str>) -> String {
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    methods.sort_unstable();
    methods.join(", ")
}

/// OpenAPI 3.1 of the table.
pub fn openapi() -> serde_json::Value {
    let mut paths = serde_json::Map::new();
    for route in ROUTES {
        let of_queue = route.path.starts_with("/queues");
        let roots: &[&str] = if of_queue { &["/v1", "/v1/spools/{spool}"] } else { &["/v1"] };
        for root in roots {
            let path = format!("{root}{}", route.path);
            let parameters: Vec<_> = path
                .split('/')
                .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
                .map(|name| {
                    serde_json::json!({
                        "name": name, "in": "path", "required": true, "schema": { "type": "string" },
                    })
                })
                .collect();
            let security = match route.scope {
                Scope::Public => serde_json::json!([]),
                _ => serde_json::json!([{ "apiKey": [] }]),
            };
            let operation = serde_json::json!({
                "operationId": format!("{:?}{}", route.op, if *root == "/v1" { "" } else { "InSpool" }),
                "summary": route.summary,
                "parameters": parameters,
                "security": security,
                "responses": {
                    "2XX": { "description": "Done" },
                    "default": { "description": "Not done", "content": { "application/problem+json": {
                        "schema": { "$ref": "#/components/schemas/Problem" } } } },
                },
            });
            let item = paths.entry(path).or_insert_with(|| serde_json::json!({}));
            item[route.method.to_ascii_lowercase()] = operation;
        }
    }
    serde_json::json!({
        "openapi": "3.1.0",
        "info": { "title": "Capstan", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": {
            "securitySchemes": { "apiKey": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Problem": {
                "type": "object",
                "required": ["type", "title", "status", "detail", "code", "requestId"],
                "properties": {
                    "type": { "type": "string" }, "title": { "type": "string" },
                    "status": { "type": "integer" }, "detail": { "type": "string" },
                    "code": { "type": "string", "enum": ErrorCode::ALL.iter().map(|code| code.as_str()).collect::<Vec<_>>() },
                    "requestId": { "type": "string" }, "field": { "type": "string" },
                    "index": { "type": "integer" },
                },
            } },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_find_their_operation_and_wrong_methods_are_told_the_right_ones() {
        let target = find("POST", "/v1/queues/a/messages").expect("a route");
        assert_eq!((target.op, &*target.spool, &*target.queue), (Op::Send, "default", "a"));
        let target = find("GET", "/v1/spools/s/queues/q%2Fx/messages/1-2-3").expect("a route");
        assert_eq!((&*target.spool, &*target.queue, &*target.id), ("s", "q/x", "1-2-3"));
        assert_eq!(find("HEAD", "/v1/spools/s").expect("a route").op, Op::GetSpool);
        let refused = find("POST", "/v1/queues/a").expect_err("a wrong method");
        assert_eq!(refused.code, ErrorCode::MethodNotAllowed);
        assert_eq!(refused.allow.as_deref(), Some("DELETE, GET, HEAD, PATCH, PUT"));
        let nowhere = [
            "/",
            "/v1",
            "/v1/",
            "/v1x/limits",
            "/v2/limits",
            "/v1/queues/a/b/c/d",
            "/v1/spools/s/limits",
            "/v1/queues/",
            "/v1/queues//messages",
            "/v1/spools//queues/",
            "/v1/spools/s/t/queues/q",
        ];
        for path in nowhere {
            assert_eq!(find("GET", path).expect_err(path).code, ErrorCode::NotFound, "{path}");
        }
        assert_eq!(find("GET", "/v1/queues/%ff").expect_err("no UTF-8").code, ErrorCode::InvalidRequest);
    }
}
