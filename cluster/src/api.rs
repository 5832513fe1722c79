//! A client of the data plane's HTTP API, as thin as one: every answer can be looked at as it came.

use crate::parts::Ready;
use crate::wait::wait_until;
use anyhow::Context;
use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;

/// More than any wait that a caller of the API can ask for.
const ANSWER_WITHIN: Duration = Duration::from_secs(330);

/// One node, one key.
#[derive(Clone, Debug)]
pub struct Api {
    http: reqwest::Client,
    base: String,
    key: String,
    /// `/v1` for the default spool, `/v1/spools/{spool}` for another.
    root: String,
}

/// What came back, whatever it says.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    pub r#type: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    pub code: String,
    pub request_id: String,
    pub field: Option<String>,
    pub index: Option<u64>,
}

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A problem: its code says whether anything may have happened.
    #[error("{} {}: {}", .0.status, .0.code, .0.detail)]
    Refused(Box<Problem>),
    /// The connection broke: anything may have happened.
    #[error("no answer: {0}")]
    NoAnswer(String),
    /// Neither what was asked for nor a problem: a defect.
    #[error("an answer that is none: {0}")]
    Nonsense(String),
}

impl Failure {
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Failure::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// The stable code, or nothing.
    pub fn code(&self) -> &str {
        self.problem().map_or("", |problem| problem.code.as_str())
    }

    /// Whether it is certain that the request had no effect and never will.
    pub fn is_without_effect(&self) -> bool {
        self.problem().is_some_and(|problem| problem.status < 500 || problem.status == 503)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sent {
    pub id: String,
    pub position: Option<String>,
    #[serde(default)]
    pub duplicate: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Received {
    pub id: String,
    pub token: String,
    pub body: Option<String>,
    pub body_base64: Option<String>,
    pub deliveries: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpoolStatus {
    pub name: String,
    pub num_replicas: u32,
    pub num_sync: u32,
    pub state: String,
    pub epoch: u64,
    pub writable_with_one_node_lost: bool,
    pub waiting_for: Vec<String>,
    pub waiting_writes: u64,
    pub copies: Vec<CopyStatus>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyStatus {
    pub alias: String,
    pub role: String,
    pub reachable: bool,
}

impl SpoolStatus {
    /// The node of the primary.
    pub fn primary(&self) -> Option<&str> {
        self.copies.iter().find(|copy| copy.role == "primary").map(|copy| copy.alias.as_str())
    }
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body of a 2xx; anything else is a failure.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let body = self.ok()?;
        serde_json::from_slice(body).map_err(|error| Failure::Nonsense(format!("{error}: {}", self.text())))
    }

    pub fn ok(&self) -> Result<&Bytes, Failure> {
        if self.status.is_success() { Ok(&self.body) } else { Err(self.failure()) }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn failure(&self) -> Failure {
        let nonsense = |why: String| Failure::Nonsense(format!("{} {why}: {}", self.status, self.text()));
        match self.header("content-type") {
            Some("application/problem+json") => {}
            other => return nonsense(format!("of type {}", other.unwrap_or("none"))),
        }
        match serde_json::from_slice::<Problem>(&self.body) {
            Ok(problem) if problem.status == self.status.as_u16() => Failure::Refused(Box::new(problem)),
            Ok(problem) => nonsense(format!("with a problem that says {}", problem.status)),
            Err(error) => nonsense(error.to_string()),
        }
    }
}

impl Api {
    pub fn new(base: &str, key: &str) -> Api {
        let http = reqwest::Client::builder().timeout(ANSWER_WITHIN).build();
        Api {
            http: http.expect("a client without TLS has nothing to load"),
            base: base.trim_end_matches('/').to_owned(),
            key: key.to_owned(),
            root: "/v1".to_owned(),
        }
    }

    /// The same, for the queues of another spool.
    pub fn in_spool(&self, spool: &str) -> Api {
        Api { root: format!("/v1/spools/{spool}"), ..self.clone() }
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    /// Any request below the node's address, with the key.
    pub async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Reply, Failure> {
        let request =
            self.http.request(method, format!("{}{path}", self.base)).header(AUTHORIZATION, self.bearer());
        let request = match body {
            Some(body) => request.header(CONTENT_TYPE, "application/json").body(body.to_string()),
            None => request,
        };
        finish(request).await
    }

    /// For what the methods below do not offer: headers, raw bodies.
    pub fn build(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).header(AUTHORIZATION, self.bearer())
    }

    /// Below the spool's own path, such as `/queues/orders`.
    pub fn path(&self, rest: &str) -> String {
        format!("{}{rest}", self.root)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.key)
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Reply, Failure> {
        self.request(Method::POST, &self.path(path), Some(body)).await
    }

    pub async fn put_queue(&self, queue: &str, configuration: &Value) -> Result<Reply, Failure> {
        let reply =
            self.request(Method::PUT, &self.path(&format!("/queues/{queue}")), Some(configuration)).await?;
        reply.ok()?;
        Ok(reply)
    }

    pub async fn queue(&self, queue: &str) -> Result<Value, Failure> {
        self.request(Method::GET, &self.path(&format!("/queues/{queue}")), None).await?.json()
    }

    pub async fn send(&self, queue: &str, body: &str) -> Result<Sent, Failure> {
        self.send_message(queue, &json!({ "body": body })).await
    }

    pub async fn send_message(&self, queue: &str, message: &Value) -> Result<Sent, Failure> {
        self.post(&format!("/queues/{queue}/messages"), message).await?.json()
    }

    /// `options`: `max`, `waitSeconds`, `leaseSeconds`.
    pub async fn receive(&self, queue: &str, options: &Value) -> Result<Vec<Received>, Failure> {
        #[derive(Deserialize)]
        struct Messages {
            messages: Vec<Received>,
        }
        let reply = self.post(&format!("/queues/{queue}/receive"), options).await?;
        Ok(reply.json::<Messages>()?.messages)
    }

    pub async fn ack(&self, queue: &str, token: &str) -> Result<Reply, Failure> {
        let reply = self.post(&format!("/queues/{queue}/ack"), &json!({ "token": token })).await?;
        reply.ok()?;
        Ok(reply)
    }

    pub async fn ack_all(&self, queue: &str, tokens: &[String]) -> Result<Value, Failure> {
        self.post(&format!("/queues/{queue}/ack"), &json!({ "tokens": tokens })).await?.json()
    }

    pub async fn spool(&self, name: &str) -> Result<SpoolStatus, Failure> {
        self.request(Method::GET, &format!("/v1/spools/{name}"), None).await?.json()
    }

    pub async fn wait_serving(&self, spool: &str, within: Duration) -> anyhow::Result<SpoolStatus> {
        let what = format!("{} to serve the spool {spool}", self.base);
        let serving = wait_until(within, what, || async {
            match self.spool(spool).await {
                Ok(status) if status.state == "serving" => Ok(status),
                Ok(status) => Err(format!("it is {}, waiting for {:?}", status.state, status.waiting_for)),
                Err(error) => Err(error.to_string()),
            }
        });
        serving.await.map_err(Into::into)
    }
}

/// Sends a request and reads the whole answer.
pub async fn finish(request: reqwest::RequestBuilder) -> Result<Reply, Failure> {
    let no_answer = |error: reqwest::Error| Failure::NoAnswer(crate::parts::with_causes(&error));
    let response = request.send().await.map_err(no_answer)?;
    let (status, headers) = (response.status(), response.headers().clone());
    Ok(Reply { status, headers, body: response.bytes().await.map_err(no_answer)? })
}

/// Whether a node's internal port says that it is ready.
pub async fn is_ready(metrics: &str) -> anyhow::Result<()> {
    let base = metrics.strip_suffix("/metrics").context("an address of metrics")?;
    Ready::Http(format!("{base}/readyz")).check().await.map_err(anyhow::Error::msg)
}
