//! A connection that is given up when the other side neither speaks nor listens.
//!
//! hyper waits without end for a connection's first bytes, from which it tells HTTP/1.1 from HTTP/2, and for a client
//! to read its answer. Here both have a deadline; a connection that moves pays nothing for it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// As many as HTTP/2's preface has, and fewer than any request that means something.
const FIRST_BYTES: usize = 24;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For the first bytes.
    pub first: Duration,
    /// For the other side to take anything at all of what it is sent.
    pub stalled: Duration,
}

pub struct Patient<S> {
    stream: S,
    limits: Limits,
    /// Bytes that are still missing of the first.
    missing: usize,
    opening: Pin<Box<Sleep>>,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub fn new(stream: S, limits: Limits) -> Patient<S> {
        let opening = Box::pin(tokio::time::sleep(limits.first));
        Patient { stream, limits, missing: FIRST_BYTES, opening, stalled: None }
    }

    fn while_waiting<T>(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let until = Instant::now() + self.limits.stalled;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other side does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.missing == 0 {
            return outcome;
        }
        if outcome.is_ready() {
            self.missing = self.missing.saturating_sub(buffer.filled().len() - before);
            return outcome;
        }
        ready!(self.opening.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "no request came")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.while_waiting(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.while_waiting(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    const LIMITS: Limits = Limits { first: Duration::from_millis(80), stalled: Duration::from_secs(1) };

    #[tokio::test]
    async fn whoever_says_nothing_or_too_little_is_given_up() {
        for said in [&b""[..], b"PRI * HT"] {
            let (mut client, server) = duplex(64);
            client.write_all(said).await.expect("room");
            let begun = Instant::now();
            let mut read = Vec::new();
            let error = Patient::new(server, LIMITS).read_to_end(&mut read).await.expect_err("given up");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(begun.elapsed() >= LIMITS.first, "{:?}", begun.elapsed());
            assert_eq!(read, said);
        }
    }

    #[tokio::test]
    async fn after_its_first_bytes_a_connection_may_be_silent() {
        let (mut client, server) = duplex(64);
        client.write_all(b"GET /v1/limits HTTP/1.1\r\n").await.expect("room");
        let mut server = Patient::new(server, LIMITS);
        server.read_exact(&mut [0; 25]).await.expect("they are there");
        let silent = tokio::time::timeout(LIMITS.first * 4, server.read_u8()).await;
        assert!(silent.is_err(), "nothing ended it: {silent:?}");
    }

    #[tokio::test]
    async fn whoever_does_not_read_is_given_up_and_a_slow_reader_is_not() {
        let (mut client, server) = duplex(8);
        let mut server = Patient::new(server, LIMITS);
        let writing = tokio::spawn(async move { server.write_all(&[0; 64]).await.map(|()| server) });
        // Slower, all in all, than the limit.
        for _ in 0..7 {
            tokio::time::sleep(LIMITS.stalled / 4).await;
            client.read_exact(&mut [0; 8]).await.expect("it writes on");
        }
        let mut server = writing.await.expect("no panic").expect("all of it went");
        let begun = Instant::now();
        let error = server.write_all(&[0; 64]).await.expect_err("given up");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= LIMITS.stalled, "{:?}", begun.elapsed());
    }
}
