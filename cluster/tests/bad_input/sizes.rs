//! Bodies that are too large, that end too early, and bytes that are no HTTP at all.

use crate::rows::{Row, problem};
use crate::site::{QUEUE, Site};
use crate::wire::{Request, Then, converse};
use serde_json::json;

/// Of the plan `free`.
const MESSAGE_BYTES: usize = 262_144;
const REQUEST_BYTES: usize = 1_048_576;

pub fn rows(site: &Site) -> Vec<Row> {
    let path = format!("/v1/queues/{QUEUE}/messages");
    let send = || Request::new("POST", path.as_str());
    let large = |row: Row| Row { status: 413, code: "payload_too_large", ..row };
    let over = "x".repeat(MESSAGE_BYTES + 1);
    let mut rows = vec![
        large(Row::new(send().header("Content-Type", "text/plain").body(over.as_str()), "body")),
        large(Row::new(send().body(vec![0xff; MESSAGE_BYTES + 1]), "body")),
        large(Row::new(send().json(json!({ "body": over }).to_string()), "body")),
        large(Row::new(
            send().json(json!({ "messages": [{ "body": "x" }, { "body": over }] }).to_string()),
            "body",
        ))
        .at(1),
    ];
    let huge = vec![b' '; REQUEST_BYTES + 1];
    let everywhere = [
        ("POST", "/queues/q/messages"),
        ("POST", "/queues/q/receive"),
        ("POST", "/queues/q/ack"),
        ("POST", "/queues/q/nack"),
        ("POST", "/queues/q/reject"),
        ("POST", "/queues/q/extend"),
        ("POST", "/queues/q/purge"),
        ("PUT", "/queues/q"),
        ("PATCH", "/queues/q"),
        ("DELETE", "/queues/q"),
        ("GET", "/queues/q"),
        ("GET", "/limits"),
        ("PATCH", "/spools/default"),
    ];
    for (method, path) in everywhere {
        let ask = || Request::new(method, format!("/v1{path}"));
        // Sent all the same, announced and not sent, and never announced.
        rows.push(large(Row::new(ask().json(huge.as_slice()), "")));
        rows.push(large(Row::new(ask().json(vec![b' '; 4 * REQUEST_BYTES]), "")));
        for length in ["1048577", "99999999999", "9223372036854775807"] {
            rows.push(large(Row::new(ask().header("Content-Length", length), "")));
        }
        let pieces = [format!("{:x}\r\n", huge.len()).as_bytes(), &huge, b"\r\n0\r\n\r\n"].concat();
        rows.push(large(Row::new(ask().header("Transfer-Encoding", "chunked").json(pieces), "")));
    }
    let unauthorized = |size: usize| {
        let request = send().header("Authorization", "Bearer cap_none").body(vec![b'x'; size]);
        Row::with(request, 401, "unauthenticated", "")
    };
    rows.extend([MESSAGE_BYTES, REQUEST_BYTES, 4 * REQUEST_BYTES].map(unauthorized));
    let nowhere = Request::new("POST", "/v1/nowhere").body(vec![b'x'; 2 * REQUEST_BYTES]);
    rows.push(Row::with(nowhere, 404, "not_found", ""));
    let absent = site.id.replace('-', "%2d");
    rows.push(Row::with(
        Request::new("POST", format!("/v1/queues/{QUEUE}/messages/{absent}")),
        405,
        "method_not_allowed",
        "",
    ));
    rows
}

/// Requests that the connection's end, or nonsense, cuts short. An answer is not owed; if there is one, it refuses.
fn cut_short(site: &Site) -> Vec<Vec<u8>> {
    let authorized = |request: Request| request.header("Authorization", format!("Bearer {}", site.key));
    let send = || authorized(Request::new("POST", format!("/v1/queues/{QUEUE}/messages")));
    let body = json!({ "body": "half of it" }).to_string();
    let mut requests = Vec::new();
    // In every place of a good request, but its very end.
    let whole = send().json(body.as_str()).bytes();
    requests.extend((1..whole.len()).step_by(3).map(|end| whole[..end].to_vec()));
    requests.push(whole[..whole.len() - 1].to_vec());
    for length in ["1000", "1000000"] {
        requests.push(send().header("Content-Length", length).json(body.as_str()).bytes());
        requests.push(
            send().header("Content-Length", length).header("Content-Type", "text/plain").body("half").bytes(),
        );
    }
    let chunked = |body: &[u8], kind: &str| {
        send().header("Transfer-Encoding", "chunked").header("Content-Type", kind).body(body).bytes()
    };
    for broken in [
        &b""[..],
        b"4",
        b"4\r\n",
        b"4\r\nha",
        b"4\r\nhalf",
        b"4\r\nhalf\r\n",
        b"4\r\nhalf\r\n0",
        b"4\r\nhalf\r\n0\r\n",
        b"zz\r\nhalf\r\n0\r\n\r\n",
        b"-4\r\nhalf\r\n0\r\n\r\n",
        b"4\r\nhalf!\r\n0\r\n\r\n",
        b"4half\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\nhalf",
        b"ffffffffffffffff\r\nhalf",
        b"4\r\nhalf\r\n\0\r\n\r\n",
        b"\r\n4\r\nhalf\r\n0\r\n\r\n",
    ] {
        requests.push(chunked(broken, "text/plain"));
    }
    let json = [format!("{:x}\r\n{body}\r\n", body.len()).as_bytes(), b"5\r\n..."].concat();
    requests.push(chunked(&json, "application/json"));
    for method in ["DELETE", "PUT"] {
        let whole = authorized(Request::new(method, format!("/v1/queues/{QUEUE}")))
            .header("If-Match", "*")
            .json("{}")
            .bytes();
        requests.extend((1..whole.len()).step_by(7).map(|end| whole[..end].to_vec()));
    }
    requests
}

/// What a server of HTTP may refuse without any further word.
fn no_http(site: &Site) -> Vec<Vec<u8>> {
    let key = &site.key;
    let send = |head: &str, rest: &[u8]| {
        let head = format!("{head}Host: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n");
        [head.as_bytes(), rest].concat()
    };
    let line = format!("POST /v1/queues/{QUEUE}/messages HTTP/1.1\r\n");
    let mut requests = vec![
        b"\r\n\r\n".to_vec(),
        b"\0".repeat(2000),
        b"\xff".repeat(2000),
        b"GET\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(20),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".repeat(3),
        [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &b"\xff".repeat(5000)].concat(),
        [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &b"\0".repeat(5000)].concat(),
        send(&line, b"Content-Length: x\r\n\r\nhalf"),
        send(&line, b"Content-Length: -1\r\n\r\nhalf"),
        send(&line, b"Content-Length: 4, 5\r\n\r\nhalf"),
        send(&line, b"Content-Length: 18446744073709551615\r\n\r\nhalf"),
        send(&line, b"Content-Length: 99999999999999999999999\r\n\r\nhalf"),
        send(&line, b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nhalf"),
        send(&line, b"Transfer-Encoding: gzip\r\n\r\nhalf"),
        send(&line, b"Transfer-Encoding: chunked, gzip\r\n\r\n4\r\nhalf\r\n0\r\n\r\n"),
        send(&line, b"Bad Name: x\r\nContent-Length: 4\r\n\r\nhalf"),
        send(&line, b"X: a\0b\r\nContent-Length: 4\r\n\r\nhalf"),
        send(&line, b"X\xff: x\r\nContent-Length: 4\r\n\r\nhalf"),
        send("GET /v1/queues/q\u{e4} HTTP/1.1\r\n", b"\r\n"),
        send("GET /v1/queues/q q HTTP/1.1\r\n", b"\r\n"),
        send("GET http://[::1/v1/limits HTTP/1.1\r\n", b"\r\n"),
        send("G\0T /v1/limits HTTP/1.1\r\n", b"\r\n"),
    ];
    let path = format!("GET /v1/queues/{} HTTP/1.1\r\n", "x".repeat(70_000));
    requests.push(send(&path, b"\r\n"));
    let header = [b"X-Long: ", &b"x".repeat(200_000)[..], b"\r\n\r\n"].concat();
    requests.push(send(&line, &header));
    let many: String = (0..300).map(|number| format!("X-{number}: x\r\n")).collect();
    requests.push(send(&line, [many.as_bytes(), b"Content-Length: 4\r\n\r\nhalf"].concat().as_slice()));
    requests
}

/// Nothing of these is stored, and no answer is anything but a refusal.
pub async fn broken(site: &Site) {
    let before = site.seen().await.expect("a look");
    let (cut, none) = (cut_short(site), no_http(site));
    let count = cut.len() + none.len();
    for bytes in &cut {
        for then in [Then::SaysEnd, Then::Leaves] {
            for answer in converse(&site.address, bytes, then).await.expect("a conversation") {
                let refused = problem(&answer).map(drop);
                let by_server = answer.body.is_empty() && (400..500).contains(&answer.status);
                assert!(
                    refused.is_ok() || by_server,
                    "{}: {}",
                    String::from_utf8_lossy(bytes),
                    answer.text()
                );
            }
        }
    }
    for bytes in &none {
        for answer in converse(&site.address, bytes, Then::SaysEnd).await.expect("a conversation") {
            let refused = problem(&answer).map(drop);
            let by_server = answer.body.is_empty() && (400..500).contains(&answer.status);
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
            assert!(refused.is_ok() || by_server, "{shown}: {}", answer.text());
        }
    }
    for key in [site.key.as_str(), "none"] {
        let send = Request::new("POST", format!("/v1/queues/{QUEUE}/messages"));
        let send = send.header("Authorization", format!("Bearer {key}")).body(vec![b'x'; 4 * REQUEST_BYTES]);
        let answers =
            converse(&site.address, &send.bytes(), Then::Insists).await.expect("all of it is taken");
        let status = if key == "none" { 401 } else { 413 };
        assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [status]);
    }
    site.is_as(&before).await.expect("as before");
    eprintln!("broken requests: {count}");
}
