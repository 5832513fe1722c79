//! A row of a table: a request, and the refusal that it must meet.

use crate::site::{OURS, Site, THEIRS};
use crate::wire::{Answer, Request};
use futures::StreamExt;
use serde_json::Value;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

const AT_ONCE: usize = 8;
/// Half of what the plan `free` holds: its rate is not what is looked at here.
const EVERY: Duration = Duration::from_millis(1);
/// Of a refusal, however much was wrong.
const PROBLEM_BYTES_MAX: usize = 4096;

pub struct Row {
    pub what: String,
    pub request: Request,
    pub status: u16,
    pub code: &'static str,
    /// Empty: none.
    pub field: String,
    pub index: Option<u64>,
}

impl Row {
    /// The most frequent refusal: 400 `invalid_request`.
    pub fn new(request: Request, field: &str) -> Row {
        Row::with(request, 400, "invalid_request", field)
    }

    pub fn with(request: Request, status: u16, code: &'static str, field: &str) -> Row {
        let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(160)]).into_owned();
        let Request { method, path, headers, body } = &request;
        let headers = headers.iter().map(|(name, value)| format!(" {name}: {}", shown(value)));
        let headers: String = headers.collect();
        let what = format!("{method} {}{headers} {}", shown(path), shown(body));
        Row { what, request, status, code, field: field.to_owned(), index: None }
    }

    pub fn at(self, index: u64) -> Row {
        Row { index: Some(index), ..self }
    }

    /// What is wrong with the answer.
    fn fault(&self, answer: &Answer) -> Option<String> {
        let expected = (self.status, self.code.to_owned(), self.field.clone(), self.index);
        if self.request.method == "HEAD" {
            let is_bare = answer.body.is_empty() && answer.status == self.status;
            return (!is_bare).then(|| format!("{}: {expected:?}, not {}", self.what, answer.text()));
        }
        let found = match problem(answer) {
            Ok(found) => found,
            Err(why) => return Some(format!("{}: {why}: {}", self.what, answer.text())),
        };
        (found != expected).then(|| format!("{}: {expected:?}, not {}", self.what, answer.text()))
    }
}

/// Status, code, field and index of a problem that is one in every respect.
pub fn problem(answer: &Answer) -> Result<(u16, String, String, Option<u64>), String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let must = |holds: bool, why: &str| if holds { Ok(()) } else { Err(why.to_owned()) };
    let type_of = answer.header("content-type");
    must((400..500).contains(&answer.status), "not a 4xx")?;
    must(type_of == Some("application/problem+json"), "not of type application/problem+json")?;
    must(answer.body.len() <= PROBLEM_BYTES_MAX, "longer than a refusal has to be")?;
    let body = answer.json().map_err(|error| error.to_string())?;
    let code = text(&body["code"]);
    must(body["status"] == answer.status, "another status in the problem")?;
    must(!code.is_empty(), "no code")?;
    must(body["type"] == format!("urn:capstan:problem:{code}"), "another type")?;
    must(!text(&body["title"]).is_empty(), "no title")?;
    must(!text(&body["detail"]).is_empty(), "no detail")?;
    let id = text(&body["requestId"]);
    must(!id.is_empty() && answer.header("x-request-id") == Some(&id), "no request id")?;
    must(answer.header("date").is_some(), "no date")?;
    must((answer.status == 401) == answer.header("www-authenticate").is_some(), "WWW-Authenticate")?;
    must((answer.status == 405) == answer.header("allow").is_some(), "Allow")?;
    let said = String::from_utf8_lossy(&answer.body);
    must(!said.contains(OURS) && !said.contains(THEIRS), "it tells what is in a message")?;
    Ok((answer.status, code, text(&body["field"]), body["index"].as_u64()))
}

/// Asks all of it; then everything must be as it was. What is wrong is kept for the verdict.
pub async fn check(site: &Site, group: &str, rows: Vec<Row>) {
    let before = site.seen().await.expect("a look");
    let count = rows.len();
    let mut pace = tokio::time::interval(EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let paced = futures::stream::unfold((rows.into_iter(), pace), |(mut rows, mut pace)| async {
        pace.tick().await;
        Some((rows.next()?, (rows, pace)))
    });
    let answered = paced.map(|row| async move {
        match site.ask(row.request.clone()).await {
            Ok(answer) => row.fault(&answer),
            Err(error) => Some(format!("{}: {error:#}", row.what)),
        }
    });
    let faults: Vec<String> = answered.buffered(AT_ONCE).filter_map(|fault| async { fault }).collect().await;
    eprintln!("{group}: {count} requests, {} faults", faults.len());
    for fault in faults {
        site.fault(format!("{group}: {fault}"));
    }
    if let Err(error) = site.is_as(&before).await {
        site.fault(format!("{group}: {error:#}"));
    }
}
