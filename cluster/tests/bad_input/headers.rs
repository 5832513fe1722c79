//! Content types, encodings, preferences, preconditions and other headers.

use crate::rows::Row;
use crate::site::{QUEUE, Site};
use crate::wire::Request;

pub fn rows(site: &Site) -> Vec<Row> {
    let mut rows = types();
    rows.extend(values(site));
    rows
}

fn types() -> Vec<Row> {
    let of_json = [
        ("PUT", "", "{}"),
        ("PATCH", "", "{}"),
        ("POST", "/receive", "{}"),
        ("POST", "/ack", "{\"token\":\"x\"}"),
        ("POST", "/nack", "{\"token\":\"x\"}"),
        ("POST", "/reject", "{\"token\":\"x\"}"),
        ("POST", "/extend", "{\"token\":\"x\",\"leaseSeconds\":5}"),
        ("POST", "/purge", "{}"),
    ];
    let wrong: [&[u8]; 9] = [
        b"text/plain",
        b"application/xml",
        b"application/jsonx",
        b"application/json-patch+json",
        b"application",
        b"json",
        b"",
        b"multipart/form-data; boundary=x",
        b"application/j\xffson",
    ];
    let mut rows = Vec::new();
    for (method, rest, body) in of_json {
        let request = || Request::new(method, format!("/v1/queues/{QUEUE}{rest}")).body(body);
        for kind in wrong {
            let request = request().header("Content-Type", kind);
            rows.push(Row::with(request, 415, "unsupported_media_type", "Content-Type"));
        }
    }
    let encoded = |encoding: &str| {
        let send = Request::new("POST", format!("/v1/queues/{QUEUE}/messages"));
        send.header("Content-Encoding", encoding).json(r#"{"body":"x"}"#)
    };
    for encoding in ["gzip", "br", "identity", "", "x"] {
        rows.push(Row::with(encoded(encoding), 415, "unsupported_media_type", "Content-Encoding"));
    }
    let raw = |kind: &[u8]| {
        Request::new("POST", format!("/v1/queues/{QUEUE}/messages")).header("Content-Type", kind).body("x")
    };
    for kind in [&b"text/\xff"[..], b"\xc3\xa4", b"", &[b'x'; 257], b"a\tb"] {
        rows.push(Row::new(raw(kind), "Content-Type"));
    }
    rows
}

fn values(site: &Site) -> Vec<Row> {
    let path = |rest: &str| format!("/v1/queues/{QUEUE}{rest}");
    let send = || Request::new("POST", path("/messages")).json(r#"{"body":"x"}"#);
    let mut rows = Vec::new();
    for wait in [
        &b"wait"[..],
        b"wait=",
        b"wait=x",
        b"wait=-1",
        b"wait=301",
        b"wait=1.5",
        b"wait=1e9",
        b"wait=NaN",
        b"wait=99999999999999999999",
        b"respond-async, wait=301",
        b"WAIT = 301",
        b"wait=\"x\"",
        b"wait=\xff",
    ] {
        rows.push(Row::new(send().header("Prefer", wait), "Prefer"));
        let receive = Request::new("POST", path("/receive")).json("{}");
        rows.push(Row::new(receive.header("Prefer", wait), "Prefer"));
        let put = Request::new("PUT", path("")).json("{}");
        rows.push(Row::new(put.header("Prefer", wait), "Prefer"));
    }
    for key in [&b""[..], b"\"", b"\"x", b"\"\"", b"\xff", b"\"a\"b\"", b"\"a\\x\"", b"\"a\\\"", &[b'x'; 129]]
    {
        rows.push(Row::new(send().header("Idempotency-Key", key), "Idempotency-Key"));
    }
    let both = Request::new("POST", path("/messages")).json(r#"{"body":"x","dedupKey":"a"}"#);
    rows.push(Row::new(both.header("Idempotency-Key", "b"), "Idempotency-Key"));
    let batch = Request::new("POST", path("/messages")).json(r#"{"messages":[{"body":"x"}]}"#);
    rows.push(Row::new(batch.header("Idempotency-Key", "b"), "Idempotency-Key"));
    let keyed = send().header("Idempotency-Key", "b");
    rows.push(Row::with(keyed, 400, "dedup_not_enabled", "dedupKey"));

    let put = || Request::new("PUT", path("")).json(r#"{"leaseSeconds":5}"#);
    for etag in
        [&b""[..], b"x", b"\"x\"", b"W/\"0\"", b"\"0000000000000000\"", b"\xff", b"\"0\", \"1\"", b",,,"]
    {
        rows.push(Row::with(put().header("If-Match", etag), 412, "precondition_failed", ""));
        let delete = Request::new("DELETE", path(""));
        rows.push(Row::with(delete.header("If-Match", etag), 412, "precondition_failed", ""));
        rows.push(Row::new(put().header("If-None-Match", etag), "If-None-Match"));
    }
    rows.push(Row::with(put().header("If-None-Match", "*"), 412, "precondition_failed", ""));
    rows.push(Row::new(put().header("If-None-Match", "*").header("If-Match", "*"), "If-None-Match"));
    let absent = Request::new("PUT", "/v1/queues/absent").json("{}");
    rows.push(Row::with(absent.header("If-Match", "*"), 412, "precondition_failed", ""));

    let receive = Request::new("POST", path("/receive")).header("Accept", "application/octet-stream");
    rows.push(Row::new(receive.json(r#"{"max":2}"#), "max"));

    rows.push(Row::with(send().header("X-Long", [b'x'; 17 * 1024]), 431, "headers_too_large", ""));
    let key = format!("Bearer {}{}", site.key, "x".repeat(17 * 1024));
    rows.push(Row::with(send().header("Authorization", key), 431, "headers_too_large", ""));
    let many = (0..90).fold(send(), |request, number| request.header(&format!("X-{number}"), [b'x'; 200]));
    rows.push(Row::with(many, 431, "headers_too_large", ""));
    // A request id that is none is not taken over, nor is it a fault.
    let absent = || Request::new("GET", "/v1/queues/absent");
    for id in [&b""[..], b"a b", b"\xff", &[b'x'; 129], b"<script>"] {
        rows.push(Row::with(absent().header("X-Request-Id", id), 404, "queue_not_found", ""));
    }
    rows
}
