//! What waits to be sent on one stream: bounded, in order, pushed by engines and pulled by the connection as fast as
//! the receiver takes it.
//!
//! A lane has one reader at a time, the stream that is open now. Without a reader what is pushed is dropped, since
//! whoever opens the next stream has the copies ask each other again. If a receiver is so slow that the
//! lane fills, all of it is dropped and its reader ends, which is to both sides a lost connection.

use super::wire::peer::{self, Envelope, Hello};
use futures::Stream;
use parking_lot::Mutex;
use proto::replication as pb;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio_util::sync::CancellationToken;

pub(super) const BYTES_MAX: usize = 32 * 1024 * 1024;
pub(super) const MESSAGES_MAX: usize = 65_536;

pub(super) struct Lane {
    inner: Mutex<Inner>,
    bytes_max: usize,
    messages_max: usize,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<Envelope>,
    bytes: usize,
    reader: Option<Reader>,
    readers: u64,
}

struct Reader {
    number: u64,
    waker: Option<Waker>,
    closed: CancellationToken,
}

/// Whether a message is on its way, as far as this node can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    Queued,
    /// No stream is open.
    NotConnected,
    /// The receiver is too slow: everything that waited was dropped, and the stream ends.
    Overflowed,
}

impl Lane {
    pub fn new(bytes_max: usize, messages_max: usize) -> Arc<Lane> {
        Arc::new(Lane { inner: Mutex::default(), bytes_max, messages_max })
    }

    pub fn push(&self, envelope: Envelope) -> Pushed {
        let weight = envelope.weight();
        let mut inner = self.inner.lock();
        let full = inner.bytes + weight > self.bytes_max || inner.queue.len() >= self.messages_max;
        let Some(reader) = &mut inner.reader else { return Pushed::NotConnected };
        if full {
            drop(inner.close());
            return Pushed::Overflowed;
        }
        let waker = reader.waker.take();
        inner.queue.push_back(envelope);
        inner.bytes += weight;
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        Pushed::Queued
    }

    /// Becomes the lane's only reader; one from before ends. The token is cancelled when this one ends.
    pub fn read(self: &Arc<Self>, hello: &Hello) -> (LaneReader, CancellationToken) {
        let mut inner = self.inner.lock();
        drop(inner.close());
        inner.readers += 1;
        let number = inner.readers;
        let closed = CancellationToken::new();
        inner.reader = Some(Reader { number, waker: None, closed: closed.clone() });
        drop(inner);
        (LaneReader { lane: self.clone(), number, hello: Some(peer::hello(hello)) }, closed)
    }

    #[cfg(test)]
    pub fn waiting(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.queue.len(), inner.bytes)
    }
}

impl Inner {
    fn close(&mut self) -> Option<Reader> {
        self.queue = VecDeque::new();
        self.bytes = 0;
        let mut reader = self.reader.take()?;
        reader.closed.cancel();
        if let Some(waker) = reader.waker.take() {
            waker.wake();
        }
        Some(reader)
    }
}

/// The stream's messages: hello, then what is pushed.
pub(super) struct LaneReader {
    lane: Arc<Lane>,
    number: u64,
    hello: Option<pb::PeerMessage>,
}

impl Stream for LaneReader {
    type Item = pb::PeerMessage;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<pb::PeerMessage>> {
        if let Some(hello) = self.hello.take() {
            return Poll::Ready(Some(hello));
        }
        let envelope = {
            let inner = &mut *self.lane.inner.lock();
            let Some(reader) = inner.reader.as_mut().filter(|reader| reader.number == self.number) else {
                return Poll::Ready(None);
            };
            let Some(envelope) = inner.queue.pop_front() else {
                reader.waker = Some(context.waker().clone());
                return Poll::Pending;
            };
            inner.bytes -= envelope.weight();
            envelope
        };
        Poll::Ready(Some(peer::envelope(envelope)))
    }
}

impl Drop for LaneReader {
    fn drop(&mut self) {
        let mut inner = self.lane.inner.lock();
        if inner.reader.as_ref().is_some_and(|reader| reader.number == self.number) {
            drop(inner.close());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, StreamExt};
    use spool::event::PeerMessage;
    use spool::record::Member;
    use types::{CopyId, Epoch, ProcessId, SpoolId};

    fn numbered(number: u64) -> Envelope {
        let member = |node: &str| Member { node: node.into(), copy: CopyId::from_u128(1) };
        Envelope {
            spool: SpoolId::from_u128(1),
            lineage: 0,
            from: member("a"),
            to: member("b"),
            message: PeerMessage::Release { epoch: Epoch(number) },
        }
    }

    fn hello() -> Hello {
        Hello { node: "a".into(), process: ProcessId::from_u128(3) }
    }

    #[test]
    fn what_is_pushed_comes_out_in_order_after_hello() {
        let lane = Lane::new(BYTES_MAX, MESSAGES_MAX);
        assert_eq!(lane.push(numbered(0)), Pushed::NotConnected);
        let (mut reader, closed) = lane.read(&hello());
        for number in 1..=3 {
            assert_eq!(lane.push(numbered(number)), Pushed::Queued);
        }
        assert_eq!(reader.next().now_or_never(), Some(Some(peer::hello(&hello()))));
        for number in 1..=3 {
            assert_eq!(reader.next().now_or_never(), Some(Some(peer::envelope(numbered(number)))));
        }
        assert_eq!(reader.next().now_or_never(), None);
        assert_eq!(lane.waiting(), (0, 0));
        drop(reader);
        assert!(closed.is_cancelled());
        assert_eq!(lane.push(numbered(4)), Pushed::NotConnected);
    }

    #[test]
    fn a_full_lane_forgets_everything_and_ends_its_reader() {
        let lane = Lane::new(BYTES_MAX, 2);
        let (mut reader, closed) = lane.read(&hello());
        assert_eq!(lane.push(numbered(1)), Pushed::Queued);
        assert_eq!(lane.push(numbered(2)), Pushed::Queued);
        assert_eq!(lane.push(numbered(3)), Pushed::Overflowed);
        assert!(closed.is_cancelled());
        assert_eq!(lane.waiting(), (0, 0));
        assert!(matches!(reader.next().now_or_never(), Some(Some(_))), "hello");
        assert_eq!(reader.next().now_or_never(), Some(None));
    }

    #[test]
    fn a_new_reader_ends_the_one_before_and_is_not_ended_by_it() {
        let lane = Lane::new(BYTES_MAX, MESSAGES_MAX);
        let (mut old, old_closed) = lane.read(&hello());
        let (_new, new_closed) = lane.read(&hello());
        assert!(old_closed.is_cancelled());
        assert!(old.next().now_or_never().is_some(), "hello");
        assert_eq!(old.next().now_or_never(), Some(None));
        drop(old);
        assert!(!new_closed.is_cancelled());
        assert_eq!(lane.push(numbered(1)), Pushed::Queued);
    }
}
