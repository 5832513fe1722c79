//! Tokens of other queues, of other accounts, and of nobody.

use crate::rows::Row;
use crate::site::{QUEUE, Site};
use crate::wire::Request;
use serde_json::{Value, json};

pub const ASIDE: &str = "aside";

fn settle(queue: &str, how: &str, token: &str) -> Request {
    let mut body = json!({ "token": token });
    if how == "extend" {
        body["leaseSeconds"] = json!(0.1);
    }
    Request::new("POST", format!("/v1/queues/{queue}/{how}")).json(body.to_string())
}

/// `aside` is another queue of the account.
pub fn rows(site: &Site) -> Vec<Row> {
    let token = &site.token;
    let mut rows = Vec::new();
    for how in ["ack", "nack", "reject", "extend"] {
        let none = |queue, token: &str| Row::with(settle(queue, how, token), 400, "invalid_token", "token");
        // Every character of it.
        for at in 0..token.len() {
            let instead = if token.as_bytes()[at] == b'0' { "1" } else { "0" };
            let tampered = format!("{}{instead}{}", &token[..at], &token[at + 1..]);
            rows.push(none(QUEUE, &tampered));
        }
        let doubled = token.repeat(2);
        let upper = token.to_uppercase();
        let long = "f".repeat(100_000);
        let zeros = format!("1{}", "0".repeat(token.len() - 1));
        let ones = format!("1{}", "f".repeat(token.len() - 1));
        let parts = [&token[1..], &token[..token.len() - 1], &token[..1], &site.foreign_token, &site.id];
        let nothing = ["", " ", "null", "1", "\0", "\u{e4}", "../..", &doubled, &upper, &long, &zeros, &ones];
        for bad in parts.iter().chain(&nothing) {
            rows.push(none(QUEUE, bad));
            rows.push(none(ASIDE, bad));
        }
        for padded in [format!(" {token}"), format!("{token} "), format!("{token}\n"), format!("0{token}")] {
            rows.push(none(QUEUE, &padded));
        }
        rows.push(Row::with(settle(ASIDE, how, token), 410, "stale_token", ""));
        let foreign =
            settle(QUEUE, how, token).header("Authorization", format!("Bearer {}", site.foreign_key));
        rows.push(Row::with(foreign, 400, "invalid_token", "token"));
        rows.push(Row::with(settle("absent", how, token), 404, "queue_not_found", ""));
    }
    rows
}

/// Many at once: each has its own refusal, and the lease is its owner's in the end.
pub async fn lists(site: &Site) {
    let before = site.seen().await.expect("a look");
    let tampered = format!("{}{}", &site.token[..90], "0".repeat(site.token.len() - 90));
    for how in ["ack", "nack", "reject"] {
        let bad = |token| (token, 400, "invalid_token");
        let stale = (site.token.as_str(), 410, "stale_token");
        let lists =
            [(QUEUE, [bad("x"), bad(&tampered), bad(&site.foreign_token)]), (ASIDE, [bad(""), stale, stale])];
        for (queue, tokens) in lists {
            let body = json!({ "tokens": tokens.iter().map(|(token, ..)| token).collect::<Vec<_>>() });
            let request = Request::new("POST", format!("/v1/queues/{queue}/{how}")).json(body.to_string());
            let answer = site.ask(request).await.expect("an answer");
            assert_eq!(answer.status, 200, "{}", answer.text());
            let answer = answer.json().expect("JSON");
            let results = answer["results"].as_array().expect("results");
            let said: Vec<(&str, u64, &str)> = results.iter().filter_map(result).collect();
            assert_eq!(said, tokens, "{how} in {queue}");
        }
    }
    site.is_as(&before).await.expect("as before");
    assert_eq!(
        site.api.ack(QUEUE, &site.token).await.expect("settled").status,
        204,
        "the lease was not touched"
    );
    assert_eq!(site.foreign.ack(QUEUE, &site.foreign_token).await.expect("settled").status, 204);
}

fn result(result: &Value) -> Option<(&str, u64, &str)> {
    Some((result["token"].as_str()?, result["status"].as_u64()?, result["code"].as_str()?))
}
