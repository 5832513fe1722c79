//! Keys that are none, are not any more, are another's, or are not for this: on every path of the OpenAPI document.

use crate::rows::{Row, check};
use crate::site::{OURS, QUEUE, Site, THEIRS};
use crate::wire::{Answer, Request, ask};
use cluster::console::Console;
use cluster::harness::PATIENCE;
use cluster::wait::wait_until;
use reqwest::Method;
use serde_json::{Value, json};

/// An operation, as the document has it.
pub struct Operation {
    id: String,
    method: String,
    path: String,
    is_public: bool,
}

const PREFIX: &str = "prefix-";

impl Operation {
    /// About what there is.
    fn request(&self, site: &Site) -> Request {
        let path =
            self.path.replace("{spool}", "default").replace("{queue}", QUEUE).replace("{id}", &site.id);
        let request = Request::new(&self.method, path);
        match self.method.as_str() {
            "POST" | "PUT" | "PATCH" => request.json("{}"),
            _ => request,
        }
    }

    /// Scopes of which one is enough; none: any key. A new operation has to be entered here.
    fn scopes(&self) -> &'static [&'static str] {
        match self.id.trim_end_matches("InSpool") {
            "Send" => &["send"],
            "Receive" | "Ack" | "Nack" | "Reject" | "Extend" => &["receive"],
            "ListSpools" | "GetSpool" | "ChangeSpool" | "ListQueues" | "GetQueue" | "Browse"
            | "GetMessage" => &["read", "manage"],
            "PutQueue" | "PatchQueue" | "DeleteQueue" | "Purge" | "DeleteMessage" | "Redrive" => &["manage"],
            "LookUpKey" => &["send", "read", "manage"],
            "Limits" => &[],
            other => panic!("who may {other}?"),
        }
    }
}

pub async fn operations(site: &Site) -> Vec<Operation> {
    let answer = ask(&site.address, &Request::new("GET", "/v1/openapi.json")).await.expect("an answer");
    assert_eq!(answer.status, 200, "the document is for everybody: {}", answer.text());
    let document = answer.json().expect("a document");
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            operations.push(Operation {
                id: operation["operationId"].as_str().expect("an id").to_owned(),
                method: method.to_ascii_uppercase(),
                path: path.clone(),
                is_public: operation["security"] == json!([]),
            });
        }
    }
    let public: Vec<&str> =
        operations.iter().filter(|one| one.is_public).map(|one| one.path.as_str()).collect();
    assert_eq!(public, ["/v1/openapi.json"]);
    assert!(operations.len() > 30, "{}", operations.len());
    operations
}

struct Made {
    id: String,
    secret: String,
}

async fn make(console: &Console, body: Value) -> Made {
    let made = console.request(Method::POST, "/api/keys", Some(&body)).await.expect("an answer");
    let made: Value = made.json().expect("a key");
    let text = |name: &str| made[name].as_str().expect("a text").to_owned();
    Made { id: text("id"), secret: text("secret") }
}

pub async fn all(site: &Site) {
    let operations = operations(site).await;
    let owner = &site.owner;
    let console = |body| make(owner, body);
    check(site, "keys that are none", refused(site, &operations, not_keys(site), 401, "unauthenticated"))
        .await;

    let gone = console(json!({ "name": "gone", "scopes": ["send", "receive", "read", "manage"] })).await;
    let used = with_key(site, &gone.secret, "GET", "/v1/limits").await;
    assert_eq!(used.status, 200, "{}", used.text());
    let revoked =
        owner.request(Method::DELETE, &format!("/api/keys/{}", gone.id), None).await.expect("an answer");
    revoked.ok().expect("revoked");
    let refused_now = || async {
        match with_key(site, &gone.secret, "GET", "/v1/limits").await {
            answer if answer.status == 401 => Ok(()),
            answer => Err(answer.text()),
        }
    };
    wait_until(PATIENCE, "a revoked key to be refused", refused_now).await.expect("refused");
    let bearer = vec![format!("Bearer {}", gone.secret).into_bytes()];
    check(site, "a revoked key", refused(site, &operations, bearer, 401, "unauthenticated")).await;

    for scope in ["send", "receive", "read", "manage"] {
        let key = console(json!({ "name": scope, "scopes": [scope] })).await;
        let beyond: Vec<&Operation> = operations
            .iter()
            .filter(|one| !one.is_public && !one.scopes().is_empty() && !one.scopes().contains(&scope))
            .collect();
        let bearer = format!("Bearer {}", key.secret);
        let row = |one: &&Operation| {
            Row::with(one.request(site).header("Authorization", bearer.as_str()), 403, "forbidden", "")
        };
        check(site, &format!("a key for {scope} alone"), beyond.iter().map(row).collect()).await;
    }
    confined(site, &operations, owner).await;
    foreign(site, &operations).await;
}

async fn with_key(site: &Site, key: &str, method: &str, path: &str) -> Answer {
    let request = Request::new(method, path).header("Authorization", format!("Bearer {key}"));
    ask(&site.address, &request).await.expect("an answer")
}

fn refused(
    site: &Site,
    operations: &[Operation],
    bearers: Vec<Vec<u8>>,
    status: u16,
    code: &'static str,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for one in operations.iter().filter(|one| !one.is_public) {
        for bearer in &bearers {
            let request = match bearer.as_slice() {
                b"none" => one.request(site).header("Authorization-None", "x"),
                bearer => one.request(site).header("Authorization", bearer),
            };
            rows.push(Row::with(request, status, code, ""));
        }
    }
    rows
}

/// Values of `Authorization`.
fn not_keys(site: &Site) -> Vec<Vec<u8>> {
    let key = site.key.as_bytes();
    let (last, most) = key.split_last().expect("a key has characters");
    let other = if *last == b'0' { b'1' } else { b'0' };
    let unknown = String::from_utf8(key.to_vec()).expect("ASCII");
    let unknown = unknown_key(&unknown[..unknown.len() - 6]);
    let bearer = |key: &[u8]| [b"Bearer ", key].concat();
    let mut values = vec![
        b"".to_vec(),
        b"Bearer".to_vec(),
        b"Bearer ".to_vec(),
        key.to_vec(),
        [b"Basic ", key].concat(),
        [b"Bearer", key].concat(),
        [b"Bearer=", key].concat(),
        bearer(b"cap_"),
        bearer(b"null"),
        bearer(b"\xff\xfe"),
        bearer(most),
        bearer(&key[1..]),
        bearer(&[most, &[other]].concat()),
        bearer(&[key, key].concat()),
        bearer(&[key, b","].concat()),
        bearer(&[b"\"", key, b"\""].concat()),
        bearer(&key.to_ascii_uppercase()),
        bearer(unknown.as_bytes()),
        bearer(&b"cap_".repeat(500)),
    ];
    for at in (0..key.len()).step_by(11) {
        let mut flipped = key.to_vec();
        flipped[at] ^= 1;
        values.push(bearer(&flipped));
    }
    values
}

/// A key whose checksum is right, and that nobody was ever given: as `before`, with its characters in another order.
fn unknown_key(before: &str) -> String {
    const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mixed: String = before["cap_".len()..].chars().rev().collect();
    let before = format!("cap_{mixed}");
    let mut crc = u32::MAX;
    for byte in before.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    let mut rest = !crc;
    let mut sum = [b'0'; 6];
    for place in sum.iter_mut().rev() {
        *place = BASE62[(rest % 62) as usize];
        rest /= 62;
    }
    format!("{before}{}", String::from_utf8_lossy(&sum))
}

/// To one spool, or to queues with a prefix.
async fn confined(site: &Site, operations: &[Operation], owner: &Console) {
    let scopes = ["send", "receive", "read", "manage"];
    let spool = make(owner, json!({ "name": "s", "scopes": scopes, "spool": "elsewhere" })).await;
    let prefix = make(owner, json!({ "name": "p", "scopes": scopes, "queuePrefix": PREFIX })).await;
    let mut rows = Vec::new();
    for one in operations.iter().filter(|one| !one.is_public) {
        let ask = |key: &Made| one.request(site).header("Authorization", format!("Bearer {}", key.secret));
        if !matches!(one.id.as_str(), "Limits" | "ListSpools") {
            rows.push(Row::with(ask(&spool), 403, "forbidden", ""));
        }
        if one.path.contains("{queue}") {
            rows.push(Row::with(ask(&prefix), 403, "forbidden", ""));
        }
    }
    let with = |request: Request| request.header("Authorization", format!("Bearer {}", prefix.secret));
    let dead = format!("{{\"deadLetterQueue\":\"{QUEUE}\"}}");
    let put = Request::new("PUT", format!("/v1/queues/{PREFIX}q")).json(dead);
    rows.push(Row::with(with(put), 403, "forbidden", "deadLetterQueue"));
    let list = Request::new("GET", format!("/v1/queues?prefix={QUEUE}"));
    rows.push(Row::with(with(list), 403, "forbidden", ""));
    check(site, "keys for other spools and queues", rows).await;
}

/// Somebody else's key opens their own, and nothing of ours.
async fn foreign(site: &Site, operations: &[Operation]) {
    let ours = site.seen().await.expect("a look")["ours"].take();
    for one in operations
        .iter()
        .filter(|one| !one.is_public && one.method != "DELETE" && !one.id.starts_with("Purge"))
    {
        for (key, hidden) in [(&site.foreign_key, OURS), (&site.key, THEIRS)] {
            let request = one.request(site).header("Authorization", format!("Bearer {key}"));
            if key == &site.key && one.method != "GET" {
                continue;
            }
            let answer = ask(&site.address, &request).await.expect("an answer");
            assert!(answer.status < 500, "{}: {}", one.path, answer.text());
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(!said.contains(hidden), "{} {}: {said}", one.method, one.path);
        }
    }
    let now = site.seen().await.expect("a look")["ours"].take();
    assert_eq!(now, ours, "the first account's queues");
    let key = format!("Bearer {}", site.foreign_key);
    let with = |request: Request| request.header("Authorization", key.as_str());
    let mut rows = Vec::new();
    for (method, rest) in [("GET", ""), ("DELETE", ""), ("GET", "/messages"), ("POST", "/purge")] {
        let request = Request::new(method, format!("/v1/queues/aside{rest}"));
        rows.push(Row::with(with(request), 404, "queue_not_found", ""));
    }
    check(site, "another account's queues", rows).await;
}
