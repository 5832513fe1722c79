//! HTTP/1.1 over one kept connection, request bytes made beforehand. A general client would use as much of a small machine as the server
//! that it measures.

use anyhow::{Context, bail, ensure};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const RESPONSE_BYTES_MAX: usize = 8 << 20;

pub struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

pub struct Response<'a> {
    pub status: u16,
    pub body: &'a [u8],
}

/// A whole request, to be sent as often as one likes.
pub fn request(method: &str, path: &str, key: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
         content-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

impl Wire {
    pub async fn connect(address: SocketAddr) -> std::io::Result<Wire> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Wire { stream, buffer: Vec::with_capacity(4096) })
    }

    pub async fn call(&mut self, request: &[u8]) -> anyhow::Result<Response<'_>> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let (status, body_at, end) = loop {
            ensure!(
                self.buffer.len() < RESPONSE_BYTES_MAX,
                "a response of more than {RESPONSE_BYTES_MAX} bytes"
            );
            let read = self.stream.read_buf(&mut self.buffer).await?;
            ensure!(read > 0, "the connection ended within a response");
            let Some(head) = head_end(&self.buffer) else { continue };
            let (status, length) = parse_head(&self.buffer[..head])?;
            let end = head + length;
            self.buffer.reserve(end.saturating_sub(self.buffer.len()));
            while self.buffer.len() < end {
                ensure!(
                    self.stream.read_buf(&mut self.buffer).await? > 0,
                    "the connection ended within a body"
                );
            }
            break (status, head, end);
        };
        ensure!(self.buffer.len() == end, "bytes after the response");
        Ok(Response { status, body: &self.buffer[body_at..end] })
    }
}

fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// The status, and how long the body is.
fn parse_head(head: &[u8]) -> anyhow::Result<(u16, usize)> {
    let text = std::str::from_utf8(head).context("a header that is not text")?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("a status line")?.parse()?;
    for line in lines {
        match line.split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                return Ok((status, value.trim().parse()?));
            }
            _ => {}
        }
    }
    if status == 204 { Ok((status, 0)) } else { bail!("a response without a length: {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_the_status_and_the_length_of_what_follows() {
        let head = b"HTTP/1.1 201 Created\r\nContent-Length: 12\r\n\r\n";
        assert_eq!(head_end(head), Some(head.len()));
        assert_eq!(parse_head(head).expect("a head"), (201, 12));
        assert_eq!(parse_head(b"HTTP/1.1 204 No Content\r\n\r\n").expect("a head"), (204, 0));
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
