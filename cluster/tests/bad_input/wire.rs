//! Requests as bytes on a connection, so that they can be wrong in every way; answers as they came.

use anyhow::{Context, ensure};
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// More than the server gives a body that does not come.
const ANSWER_WITHIN: Duration = Duration::from_secs(40);
const ANSWER_BYTES_MAX: usize = 16 << 20;

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: Vec<u8>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn new(method: &str, path: impl Into<Vec<u8>>) -> Request {
        Request { method: method.to_owned(), path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    pub fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Request {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Request {
        self.body = body.into();
        self
    }

    pub fn json(self, body: impl Into<Vec<u8>>) -> Request {
        self.header("Content-Type", "application/json").body(body)
    }

    fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(is, _)| is.eq_ignore_ascii_case(name))
    }

    /// One request, after which the connection is to end.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.method.as_bytes(), b" ", &self.path, b" HTTP/1.1\r\n"].concat();
        let mut put = |name: &str, value: &[u8]| {
            bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        };
        put("Host", b"capstan");
        put("Connection", b"close");
        for (name, value) in &self.headers {
            put(name, value);
        }
        if !self.has("Content-Length") && !self.has("Transfer-Encoding") && !self.body.is_empty() {
            put("Content-Length", self.body.len().to_string().as_bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(&self.body);
        bytes
    }
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(is, _)| is.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("no JSON: {}", self.text()))
    }

    pub fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        format!("{} {}", self.status, text.chars().take(400).collect::<String>())
    }
}

/// How a client that has said what it has to say behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// It waits for the answer.
    Waits,
    /// It says that nothing more comes, and reads.
    SaysEnd,
    /// It waits so long, and then says that nothing more comes.
    SaysEndAfter(Duration),
    /// It is gone.
    Leaves,
    /// It waits for the answer, and is lost if it cannot say everything first.
    Insists,
}

/// Every answer that came on one connection, until it ended.
pub async fn converse(address: &str, bytes: &[u8], then: Then) -> anyhow::Result<Vec<Answer>> {
    let mut stream = TcpStream::connect(address).await.context("connecting")?;
    // The server may refuse before it has read everything: its answer is what counts.
    let written = stream.write_all(bytes).await;
    if then == Then::Insists {
        written.as_ref().map_err(|error| anyhow::anyhow!("sending it: {error}"))?;
    }
    if then == Then::Leaves {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    if let Then::SaysEndAfter(patience) = then {
        while let Ok(read) = tokio::time::timeout(patience, stream.read_buf(&mut all)).await {
            if !matches!(read, Ok(1..)) || all.len() > ANSWER_BYTES_MAX {
                return answers(&all);
            }
        }
    }
    if !matches!(then, Then::Waits | Then::Insists) {
        // A connection that the server has ended already cannot be ended again.
        let _ = stream.shutdown().await;
    }
    let reading = async {
        while all.len() <= ANSWER_BYTES_MAX {
            match stream.read_buf(&mut all).await {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    let read = tokio::time::timeout(ANSWER_WITHIN, reading).await.context("no end of the answer")?;
    match (read, all.is_empty()) {
        (Err(error), true) if then == Then::Waits => {
            Err(error).context(format!("no answer; writing said {written:?}"))
        }
        _ => answers(&all),
    }
}

/// The one answer to a request.
pub async fn ask(address: &str, request: &Request) -> anyhow::Result<Answer> {
    let mut answers = converse(address, &request.bytes(), Then::Waits).await?;
    ensure!(answers.len() == 1, "{} answers to one request", answers.len());
    answers.pop().context("an answer")
}

fn answers(mut rest: &[u8]) -> anyhow::Result<Vec<Answer>> {
    let mut answers = Vec::new();
    // HTTP/2, after its preface: nothing of it is read here.
    while !rest.is_empty() && (rest.starts_with(b"HTTP/1.") || !answers.is_empty()) {
        let end = rest.windows(4).position(|four| four == b"\r\n\r\n").context("half an answer")?;
        let head = String::from_utf8_lossy(&rest[..end]).into_owned();
        rest = &rest[end + 4..];
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1."));
        let status = status.and_then(|line| line.get(2..5)?.parse().ok());
        let status = status.with_context(|| format!("no status: {head:.200}"))?;
        let header =
            |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut answer = Answer { status, headers: lines.filter_map(header).collect(), body: Vec::new() };
        if status == 100 {
            continue;
        }
        // To a HEAD there is a length and nothing after it.
        let length = answer.header("content-length").map(str::parse).transpose()?.unwrap_or(0);
        ensure!(rest.len() >= length || rest.is_empty(), "{} bytes of {length}", rest.len());
        let (body, after) = rest.split_at(length.min(rest.len()));
        answer.body = body.to_vec();
        rest = after;
        answers.push(answer);
    }
    Ok(answers)
}
