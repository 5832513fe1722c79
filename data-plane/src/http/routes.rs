//! The table of routes: what can be asked for, under which path, with which scope. Dispatch and the OpenAPI document both come
//! from it.

use super::problem::Problem;
use percent_encoding::percent_decode_str;
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
    "POST" "/queues/{queue}/messages" Send Send "Send a message, or a batch as one write";
    "GET" "/queues/{queue}/messages" Browse Read "Look at messages without taking them";
    "GET" "/queues/{queue}/messages/{id}" GetMessage Read "Look at one message";
    "DELETE" "/queues/{queue}/messages/{id}" DeleteMessage Manage "Delete one message";
    "POST" "/queues/{queue}/receive" Receive Receive "Receive messages under a lease";
    "POST" "/queues/{queue}/ack" Ack Receive "Done: gone for good";
    "POST" "/queues/{queue}/nack" Nack Receive "Not now: back to its place, after a delay";
    "POST" "/queues/{queue}/reject" Reject Receive "Never: to the dead-letter queue";
    "POST" "/queues/{queue}/extend" Extend Receive "Keep a lease for longer, or shorter";
    "GET" "/queues/{queue}/dedup" LookUpKey SendOrRead "What became of a send with a dedup key";
}

/// Where a request wants to go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    pub op: Op,
    pub scope: Scope,
    /// `default` where the path names none.
    pub spool: String,
    pub queue: String,
    pub id: String,
}

pub const DEFAULT_SPOOL: &str = "default";

pub fn find(method: &str, path: &str) -> Result<Target, Problem> {
    let nothing = || Problem::new(ErrorCode::NotFound, "no such path");
    let rest = path.strip_prefix("/v1/").ok_or_else(nothing)?;
    let decode = |part: &str| percent_decode_str(part).decode_utf8().map(|text| text.into_owned());
    let parts: Result<Vec<String>, _> = rest.split('/').map(decode).collect();
    let mut parts = parts.map_err(|_| Problem::malformed("the path is not UTF-8"))?;
    let mut spool = DEFAULT_SPOOL.to_owned();
    if parts.len() > 2 && parts[0] == "spools" {
        spool = parts.remove(1);
        parts.remove(0);
        if parts[0] != "queues" {
            return Err(nothing());
        }
    }
    let mut allowed = Vec::new();
    for route in ROUTES {
        let Some(values) = matches(route.path, &parts) else { continue };
        if route.method != method && !(method == "HEAD" && route.method == "GET") {
            allowed.push(route.method);
            continue;
        }
        let mut target =
            Target { op: route.op, scope: route.scope, spool, queue: String::new(), id: String::new() };
        for (name, value) in values {
            match name {
                "{spool}" => target.spool = value.to_owned(),
                "{queue}" => target.queue = value.to_owned(),
                _ => target.id = value.to_owned(),
            }
        }
        return Ok(target);
    }
    match allowed.is_empty() {
        true => Err(nothing()),
        false => Err(Problem::method(allow(&allowed))),
    }
}

fn matches<'a>(pattern: &'static str, parts: &'a [String]) -> Option<Vec<(&'static str, &'a str)>> {
    let pattern: Vec<&str> = pattern.trim_start_matches('/').split('/').collect();
    if pattern.len() != parts.len() {
        return None;
    }
    let mut values = Vec::new();
    for (wanted, part) in pattern.into_iter().zip(parts) {
        if wanted.starts_with('{') {
            values.push((wanted, part.as_str()));
        } else if wanted != part {
            return None;
        }
    }
    Some(values)
}

fn allow(methods: &[&'static str]) -> &'static str {
    match methods {
        ["GET"] => "GET, HEAD",
        ["POST"] => "POST",
        ["POST", "GET"] => "GET, HEAD, POST",
        ["GET", "DELETE"] => "GET, HEAD, DELETE",
        ["PUT", "PATCH", "GET", "DELETE"] => "GET, HEAD, PUT, PATCH, DELETE",
        _ => "GET, HEAD, POST, PUT, PATCH, DELETE",
    }
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
        assert_eq!((target.op, target.spool.as_str(), target.queue.as_str()), (Op::Send, "default", "a"));
        let target = find("GET", "/v1/spools/s/queues/q%2Fx/messages/1-2-3").expect("a route");
        assert_eq!((target.spool.as_str(), target.queue.as_str(), target.id.as_str()), ("s", "q/x", "1-2-3"));
        assert_eq!(find("GET", "/v1/spools/s").expect("a route").op, Op::GetSpool);
        let code = |method, path| find(method, path).expect_err("a refusal").code;
        assert_eq!(code("POST", "/v1/limits"), ErrorCode::MethodNotAllowed);
        for path in
            ["/", "/v1", "/v1/", "/v2/limits", "/v1/queues/a/b/c/d", "/v1/spools/s/limits", "/v1/queues/"]
        {
            let refused = find("GET", path);
            assert!(refused.as_ref().is_err() || path == "/v1/queues/", "{path} {refused:?}");
        }
    }
}
