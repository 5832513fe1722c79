//! Names in paths, paths that lead nowhere, methods that are none, and queries.

use crate::rows::Row;
use crate::site::{QUEUE, Site};
use crate::wire::Request;

/// No name of a queue or a spool, as a path says it.
fn bad_names() -> Vec<Vec<u8>> {
    let texts = [
        "%20",
        "a%20b",
        "a+b",
        "%2f",
        "a%2Fb",
        "%00",
        "q%00",
        "%0a",
        "q%0d%0aX:%20y",
        ".",
        "..",
        ".q",
        "-q",
        "%2e%2e",
        "%252f",
        "%",
        "%%",
        "%2",
        "%zz",
        "q%g0",
        "q%",
        "%C3%A4",
        "%e2%98%83",
        "q;x",
        "q:x",
        "q,x",
        "q@",
        "q~",
        "q*",
        "(q)",
        "q'",
        "!",
        "$",
        "=",
        "&",
        "q|",
        "%7f",
        "%5c",
        "%22q%22",
        "%3cq%3e",
    ];
    let mut names: Vec<Vec<u8>> = texts.map(|text| text.as_bytes().to_vec()).to_vec();
    names.push("x".repeat(134).into_bytes());
    names.push("x".repeat(5000).into_bytes());
    names
}

const NOT_UTF8: [&str; 6] = ["%ff", "q%ff", "%c3", "%c3%28", "%ed%a0%80", "%f5%80%80%80"];

/// Method, what follows `/v1/queues/{queue}`, a body that would be good.
const OF_QUEUE: &[(&str, &str, &str)] = &[
    ("PUT", "", "{}"),
    ("PATCH", "", "{}"),
    ("GET", "", ""),
    ("HEAD", "", ""),
    ("DELETE", "", ""),
    ("POST", "/messages", r#"{"body":"x"}"#),
    ("GET", "/messages", ""),
    ("GET", "/messages/1-2-0", ""),
    ("DELETE", "/messages/1-2-0", ""),
    ("POST", "/receive", "{}"),
    ("POST", "/ack", TOKENS),
    ("POST", "/nack", TOKENS),
    ("POST", "/reject", TOKENS),
    ("POST", "/extend", r#"{"token":"$","leaseSeconds":5}"#),
    ("POST", "/purge", "{}"),
    ("GET", "/dedup?key=k", ""),
];
const TOKENS: &str = r#"{"token":"$"}"#;

pub fn rows(site: &Site) -> Vec<Row> {
    let mut rows = Vec::new();
    let ask = |method: &str, path: &[u8], body: &str| {
        let request = Request::new(method, path);
        if body.is_empty() { request } else { request.json(body.replace('$', &site.token)) }
    };
    for (method, rest, body) in OF_QUEUE {
        for name in bad_names() {
            for root in ["/v1/queues/", "/v1/spools/default/queues/"] {
                let path = [root.as_bytes(), &name, rest.as_bytes()].concat();
                rows.push(Row::new(ask(method, &path, body), "queue"));
            }
            let path = [b"/v1/spools/", &name[..], b"/queues/q", rest.as_bytes()].concat();
            rows.push(Row::with(ask(method, &path, body), 404, "spool_not_found", ""));
        }
        for name in NOT_UTF8 {
            let queue = format!("/v1/queues/{name}{rest}");
            rows.push(Row::new(ask(method, queue.as_bytes(), body), "queue"));
            let spool = format!("/v1/spools/{name}/queues/q{rest}");
            rows.push(Row::new(ask(method, spool.as_bytes(), body), "spool"));
        }
        if !rest.is_empty() || *method == "GET" {
            // A name that only a dead-letter queue could have; and one that nobody has.
            for name in ["x".repeat(129), format!("{}.dead", "x".repeat(128)), "nobody-s".to_owned()] {
                let path = format!("/v1/queues/{name}{rest}");
                rows.push(Row::with(ask(method, path.as_bytes(), body), 404, "queue_not_found", ""));
            }
        }
    }
    for length in 129..=133 {
        let names = ["x".repeat(length), format!("{}.dead", "x".repeat(length - 5))];
        for name in names {
            let path = format!("/v1/queues/{name}");
            rows.push(Row::new(ask("PUT", path.as_bytes(), "{}"), "queue"));
            rows.push(Row::with(ask("PATCH", path.as_bytes(), "{}"), 404, "queue_not_found", ""));
            rows.push(Row::with(ask("DELETE", path.as_bytes(), ""), 404, "queue_not_found", ""));
            let dead = format!("{{\"deadLetterQueue\":\"{name}\"}}");
            rows.push(Row::new(ask("PUT", b"/v1/queues/q", &dead), "deadLetterQueue"));
            rows.push(Row::new(ask("PATCH", b"/v1/queues/q", &dead), "deadLetterQueue"));
        }
    }
    rows.extend(ids());
    rows.extend(nowhere());
    rows.extend(methods());
    rows.extend(queries());
    rows
}

/// Nothing that is not an id is a message.
fn ids() -> Vec<Row> {
    let ids = [
        "1",
        "1-2",
        "1-2-",
        "-2-3",
        "1--3",
        "1-2-3-4",
        "1-2-10000",
        "1-2-ffff",
        "0-0-0",
        "1-0-0",
        "0-1-0",
        "g-2-3",
        "01-2-3",
        "+1-2-3",
        "1-+2-3",
        "1-2-0x1",
        "1-2-3%20",
        "%201-2-3",
        "1-2-3%00",
        "1%2d2%2dzz",
        "ffffffffffffffff-ffffffffffffffff-ffff",
        "1-ffffffffffffffff-0",
        "10000000000000000-1-0",
        "1-10000000000000000-0",
        "1-ffffffffffffffffffff-0",
        "null",
        "*",
        "..",
        "%2e",
        "%e2%98%83",
        "%zz",
    ];
    let mut rows = Vec::new();
    for method in ["GET", "DELETE"] {
        let path = |id: &str| format!("/v1/queues/{QUEUE}/messages/{id}");
        rows.extend(ids.map(|id| Row::with(Request::new(method, path(id)), 404, "message_not_found", "")));
        let long = "1".repeat(9000);
        rows.push(Row::with(Request::new(method, path(&long)), 404, "message_not_found", ""));
        rows.extend(NOT_UTF8.map(|id| Row::new(Request::new(method, path(id)), "id")));
    }
    rows
}

fn nowhere() -> Vec<Row> {
    let paths = [
        "/",
        "/v1",
        "/v1/",
        "/v2/limits",
        "/V1/limits",
        "/v1x/limits",
        "//v1/limits",
        "/v1//limits",
        "/v1/limits/",
        "/v1/Limits",
        "/v1/queues/",
        "/v1/queues/q/",
        "/v1/queues//messages",
        "/v1/queues/q/messages/",
        "/v1/queues/q/messages/1-2-3/x",
        "/v1/queues/q/message",
        "/v1/queues/q/Receive",
        "/v1/queues/q/redrive/x",
        "/v1/spools/",
        "/v1/spools/default/",
        "/v1/spools/default/limits",
        "/v1/spools/default/queues/",
        "/v1/spools/default/queues/q/x/y/z",
        "/v1/spools/a/b/queues/q",
        "/v1/openapi.yaml",
        "/v1/openapi.json/",
        "/healthz",
        "/metrics",
        "/api/login",
        "/..",
        "/v1/../v1/limits",
        "/v1/%6cimits",
        "/%761/limits",
        "/v1/queues%2fq",
        "/v1/%00",
        "/v1/%ff",
        "/favicon.ico",
        "/v1/queues/q/messages;x",
        "*",
    ];
    let mut rows = Vec::new();
    for path in paths {
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let request = Request::new(method, path);
            let request = if method == "POST" || method == "PUT" { request.json("{}") } else { request };
            rows.push(Row::with(request, 404, "not_found", ""));
        }
    }
    rows
}

fn methods() -> Vec<Row> {
    let paths: &[(&str, &[&str])] = &[
        ("/openapi.json", &["GET", "HEAD"]),
        ("/limits", &["GET", "HEAD"]),
        ("/spools", &["GET", "HEAD"]),
        ("/spools/default", &["GET", "HEAD", "PUT", "PATCH"]),
        ("/queues", &["GET", "HEAD"]),
        ("/queues/q", &["GET", "HEAD", "PUT", "PATCH", "DELETE"]),
        ("/queues/q/messages", &["GET", "HEAD", "POST"]),
        ("/queues/q/messages/1-2-3", &["GET", "HEAD", "DELETE"]),
        ("/queues/q/receive", &["POST"]),
        ("/queues/q/ack", &["POST"]),
        ("/queues/q/nack", &["POST"]),
        ("/queues/q/reject", &["POST"]),
        ("/queues/q/extend", &["POST"]),
        ("/queues/q/purge", &["POST"]),
        ("/queues/q/dedup", &["GET", "HEAD"]),
    ];
    let all = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE", "get", "POSTT", "X",
        "M-SEARCH", "QUERY",
    ];
    let mut rows = Vec::new();
    for (path, allowed) in paths {
        for method in all.iter().filter(|method| !allowed.contains(method)) {
            for root in ["/v1", "/v1/spools/default"] {
                if root == "/v1" || path.starts_with("/queues") {
                    let request = Request::new(method, format!("{root}{path}"));
                    rows.push(Row::with(request, 405, "method_not_allowed", ""));
                }
            }
        }
    }
    rows
}

fn queries() -> Vec<Row> {
    let paths = [
        ("GET", "/openapi.json", ""),
        ("GET", "/limits", ""),
        ("GET", "/spools", ""),
        ("GET", "/spools/default", ""),
        ("GET", "/queues", ""),
        ("PUT", "/queues/q", "{}"),
        ("PATCH", "/queues/q", "{}"),
        ("GET", "/queues/q", ""),
        ("DELETE", "/queues/q", ""),
        ("POST", "/queues/q/messages", r#"{"body":"x"}"#),
        ("GET", "/queues/q/messages", ""),
        ("GET", "/queues/q/messages/1-2-3", ""),
        ("DELETE", "/queues/q/messages/1-2-3", ""),
        ("POST", "/queues/q/receive", "{}"),
        ("POST", "/queues/q/purge", "{}"),
    ];
    let mut rows = Vec::new();
    for (method, path, body) in paths {
        let ask = |query: &str| {
            let request = Request::new(method, format!("/v1{path}?{query}"));
            if body.is_empty() { request } else { request.json(body) }
        };
        for (query, field) in [
            ("colour=red", "colour"),
            ("colour", "colour"),
            ("=", ""),
            ("Limit=5", "Limit"),
            ("%63olour=1", "colour"),
            ("colour=1&colour=2", "colour"),
            ("a%00b=1", "a\0b"),
            ("colour=%ff", "colour"),
            ("%ff=1", ""),
            ("q?q=1", "q?q"),
        ] {
            rows.push(Row::new(ask(query), field));
        }
        rows.push(Row::new(ask(&vec!["a"; 10_000].join("&")), "a"));
        let each: Vec<String> = (0..8000).map(|number| format!("a{number}")).collect();
        rows.push(Row::new(ask(&each.join("&")), ""));
    }
    let get = |rest: &str| Request::new("GET", format!("/v1/{rest}"));
    for list in ["queues", "queues/q/messages"] {
        for limit in
            ["0", "1001", "1.5", "-1", "x", "", "NaN", "1e9", "0x10", "%00", "true", "99999999999999999999"]
        {
            rows.push(Row::new(get(&format!("{list}?limit={limit}")), "limit"));
        }
        rows.push(Row::new(get(&format!("{list}?limit=1&limit=1")), "limit"));
        for cursor in ["!", "%00", "a", "_w", "AAAA", "%ff%ff", "=", "AA==", &"A".repeat(8000), "Af__AAAA"] {
            rows.push(Row::new(get(&format!("{list}?cursor={cursor}")), "cursor"));
        }
    }
    for state in ["leased", "delayed"] {
        for cursor in ["AAAA", &"_".repeat(40), "A"] {
            rows.push(Row::new(get(&format!("queues/q/messages?state={state}&cursor={cursor}")), "cursor"));
        }
    }
    for state in ["", "x", "Available", "settling", "available,leased"] {
        rows.push(Row::new(get(&format!("queues/q/messages?state={state}")), "state"));
    }
    for key in
        ["", "?key", "?key=", &format!("?key={}", "x".repeat(129)), &format!("?key={}", "%C3%A4".repeat(65))]
    {
        rows.push(Row::new(get(&format!("queues/q/dedup{key}")), "key"));
    }
    rows.push(Row::new(get("queues/q/dedup?key=k&x=1"), "x"));
    rows.push(Row::new(get("queues/q/dedup?key=%ff"), "key"));
    rows.extend(raw_options());
    rows
}

/// Options of a send whose body is the payload.
fn raw_options() -> Vec<Row> {
    let long = "x".repeat(129);
    let options = [
        ("delaySeconds", vec!["", "-1", "x", "1209601", "345601", "NaN", "1e400", "true", "%225%22"]),
        ("ttlSeconds", vec!["", "0", "-1", "x", "1209601"]),
        ("deliverAt", vec!["", "x", "5", "2026-02-30T00:00:00Z", "9999-01-01T00:00:00Z"]),
        ("dedupKey", vec!["", &long]),
        ("group", vec!["", "g", &long]),
        ("priority", vec!["", "-1", "10", "4.5", "x"]),
        ("traceparent", vec!["", &long]),
        ("raw", vec!["", "1", "yes", "True"]),
        ("body", vec!["x"]),
        ("attributes", vec!["%7B%7D"]),
        ("contentType", vec!["text/plain"]),
    ];
    let mut rows = Vec::new();
    for (name, values) in options {
        for value in values {
            let path = format!("/v1/queues/{QUEUE}/messages?{name}={value}");
            rows.push(Row::new(
                Request::new("POST", path).header("Content-Type", "text/plain").body("x"),
                name,
            ));
        }
    }
    let path = |query: &str| format!("/v1/queues/{QUEUE}/messages?{query}");
    let both = Request::new("POST", path("delaySeconds=1&deliverAt=2026-12-31T00:00:00Z")).body("x");
    rows.push(Row::new(both, "deliverAt"));
    let keyed = Request::new("POST", path("dedupKey=k")).body("x");
    rows.push(Row::with(keyed, 400, "dedup_not_enabled", "dedupKey"));
    // With a JSON body the options are in there.
    rows.push(Row::new(Request::new("POST", path("delaySeconds=1")).json(r#"{"body":"x"}"#), "delaySeconds"));
    rows
}
