//! Good requests with a few bytes flipped, cut or put in, on a raw connection. The changes are a function of the seed.

use crate::rows::problem;
use crate::site::{OURS, Site, THEIRS};
use crate::wire::{Answer, Request, Then, converse};
use cluster::harness::patiently;
use futures::StreamExt;
use serde_json::{Value, json};
use std::time::Duration;

const AT_ONCE: usize = 16;
/// A server that has not answered by then waits for more bytes, which will not come.
const SILENCE: Duration = Duration::from_secs(3);
const TARGET: &str = "fuzz-target";

/// SplitMix64: a sequence that is the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Sends go to `TARGET` alone; what takes or removes is about other queues.
fn good(site: &Site) -> Vec<Vec<u8>> {
    let sends = format!("/v1/queues/{TARGET}/messages");
    let in_spool = format!("/v1/spools/default/queues/{TARGET}/messages");
    let full = json!({
        "body": "x", "contentType": "text/plain", "attributes": { "a": "1" }, "delaySeconds": 0, "ttlSeconds": 300_000,
        "dedupKey": "k-1", "priority": 4, "traceparent": "00-a-b-01",
    });
    let batch = json!({ "messages": [{ "body": "a" }, { "bodyBase64": "Yg==", "dedupKey": "k-2" }, { "body": "c", "priority": 9 }] });
    let raw = || {
        Request::new("POST", format!("{sends}?priority=3&ttlSeconds=300000&delaySeconds=0"))
            .body("payload \u{e4}")
    };
    let chunked = b"4\r\nhalf\r\n5\r\nwhole\r\n0\r\n\r\n".to_vec();
    let aside = |method: &str, rest: &str| Request::new(method, format!("/v1/queues/aside{rest}"));
    let token = json!({ "token": site.foreign_token }).to_string();
    let requests = [
        Request::new("POST", sends.as_str()).json(json!({ "body": "plain" }).to_string()),
        Request::new("POST", sends.as_str()).json(full.to_string()),
        Request::new("POST", in_spool).json(batch.to_string()),
        Request::new("POST", sends.as_str()).json(batch.to_string()).header("Prefer", "wait=10"),
        raw().header("Content-Type", "text/plain"),
        raw().header("Idempotency-Key", "\"key\"").header("X-Request-Id", "abc"),
        Request::new("POST", sends.as_str()).header("Transfer-Encoding", "chunked").body(chunked),
        Request::new("GET", format!("{sends}?state=available&limit=5")),
        Request::new("GET", format!("/v1/queues/{TARGET}")),
        Request::new("GET", "/v1/queues?prefix=fuzz&limit=10"),
        Request::new("GET", format!("/v1/queues/{TARGET}/dedup?key=k-1")),
        aside("PUT", "")
            .header("If-Match", "*")
            .json(json!({ "leaseSeconds": 5.5, "retryBackoff": { "multiplier": 2 } }).to_string()),
        aside("PATCH", "").json(json!({ "paused": { "receive": false }, "maxDeliveries": null }).to_string()),
        aside("POST", "/receive").json(json!({ "max": 1, "waitSeconds": 0, "leaseSeconds": 1 }).to_string()),
        aside("POST", "/ack").json(json!({ "tokens": [site.foreign_token, "x"] }).to_string()),
        aside("POST", "/nack").json(token.as_str()),
        aside("POST", "/extend").json(json!({ "token": site.foreign_token, "leaseSeconds": 5 }).to_string()),
        aside("POST", "/purge"),
        aside("GET", &format!("/messages/{}", site.id)),
        aside("DELETE", &format!("/messages/{}", site.id)),
        Request::new("GET", "/v1/spools/default"),
        Request::new("PATCH", "/v1/spools/default").json(json!({ "numSync": 0 }).to_string()),
        Request::new("GET", "/v1/limits"),
        Request::new("HEAD", "/v1/openapi.json"),
    ];
    let bearer = format!("Bearer {}", site.key);
    requests.map(|request| request.header("Authorization", bearer.as_str()).bytes()).to_vec()
}

/// One to four changes.
fn change(mut bytes: Vec<u8>, random: &mut Random) -> Vec<u8> {
    const TELLING: &[u8] = b"\0\r\n\"\\{}[],:%&?=/ -0159eE.\xff\xc3\x80";
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            return bytes;
        }
        // As often in the body, where there is one, as before it.
        let body = bytes.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
        let from = if body < bytes.len() && random.below(2) == 0 { body } else { 0 };
        let at = from + random.below(bytes.len() - from);
        match random.below(8) {
            0 | 1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = TELLING[random.below(TELLING.len())],
            3 => bytes.insert(at, TELLING[random.below(TELLING.len())]),
            4 => bytes.insert(at, random.next() as u8),
            5 => {
                let end = (at + 1 + random.below(8)).min(bytes.len());
                bytes.drain(at..end);
            }
            6 => {
                let end = (at + 1 + random.below(24)).min(bytes.len());
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ if random.below(4) == 0 => bytes.truncate(at),
            _ => bytes.swap(at, from),
        }
    }
    bytes
}

/// Messages that an answer says are stored, if it is one to a send.
fn stored(answer: &Answer) -> u64 {
    let body: Value = match answer.status {
        201 => answer.json().expect("JSON"),
        _ => return 0,
    };
    match body["messages"].as_array() {
        Some(messages) => messages.iter().filter(|message| message["duplicate"] == false).count() as u64,
        None => u64::from(body["id"].is_string()),
    }
}

fn judge(number: u64, bytes: &[u8], answers: &[Answer]) -> u64 {
    for answer in answers {
        let shown = || format!("round {number}: {}\n{}", String::from_utf8_lossy(bytes), answer.text());
        assert!(answer.status < 500, "{}", shown());
        assert!(!String::from_utf8_lossy(&answer.body).contains(THEIRS), "{}", shown());
        // What is no HTTP has a bare refusal, and so has a HEAD.
        if answer.status >= 400 && !answer.body.is_empty() {
            problem(answer).unwrap_or_else(|why| panic!("{why}: {}", shown()));
        }
    }
    answers.iter().map(stored).sum()
}

pub async fn run(site: &Site, seed: u64, rounds: u64) {
    let config = json!({ "dedupWindowSeconds": 3600 });
    for queue in [TARGET, "aside"] {
        patiently("a queue", || site.api.put_queue(queue, &config)).await.expect("a queue");
    }
    let good = good(site);
    let each = (0..rounds).map(|number| {
        let mut random = Random(seed ^ number.wrapping_mul(0xa076_1d64_78bd_642f));
        let chosen = random.below(good.len());
        let bytes = change(good[chosen].clone(), &mut random);
        async move {
            let answers = converse(&site.address, &bytes, Then::SaysEndAfter(SILENCE)).await;
            let answers = answers.unwrap_or_else(|error| panic!("round {number}: {error:#}"));
            (answers.len(), judge(number, &bytes, &answers))
        }
    });
    let done: Vec<(usize, u64)> = futures::stream::iter(each).buffer_unordered(AT_ONCE).collect().await;
    let counted: u64 = done.iter().map(|(_, stored)| stored).sum();
    let answered: usize = done.iter().map(|(answers, _)| answers).sum();

    let queue = site.api.queue(TARGET).await.expect("it serves");
    let (totals, counts) = (&queue["totals"], &queue["counts"]);
    eprintln!("{rounds} rounds, {answered} answers, {counted} messages; {totals} {counts}");
    assert!(counted > rounds / 200, "changes so small that some requests are still good: {counted}");
    assert_eq!(totals["sent"].as_u64(), Some(counted), "as many messages as 201s said: {queue}");
    let sum = |of: &Value, names: [&str; 4]| {
        names.iter().map(|name| of[*name].as_u64().expect("a count")).sum::<u64>()
    };
    let there = sum(counts, ["available", "leased", "delayed", "settling"]);
    let gone = totals["acked"].as_u64().expect("a count") + totals["expired"].as_u64().expect("a count");
    assert_eq!(there + gone, counted, "{queue}");
    // What follows a good request does not take its answer away.
    let followed = [&good[0][..], b"POST /v1/que"].concat();
    let answers = converse(&site.address, &followed, Then::SaysEndAfter(SILENCE)).await.expect("an answer");
    assert_eq!(answers.first().map(stored), Some(1));
    let counted = counted + 1;
    site.api.send(TARGET, OURS).await.expect("a good send");
    let after = site.api.queue(TARGET).await.expect("it serves");
    assert_eq!(after["totals"]["sent"].as_u64(), Some(counted + 1));
}
