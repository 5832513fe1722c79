//! A response's body. What a receive took out of a queue goes back to it if the connection never took the body.

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

#[derive(Default)]
pub struct Body {
    bytes: Bytes,
    /// Done unless the bytes are taken.
    unless_taken: Option<Undo>,
}

struct Undo(Option<Box<dyn FnOnce() + Send>>);

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}

impl Body {
    /// An empty body is never asked for its bytes, so there `undo` has no say.
    pub fn unless_taken(bytes: Bytes, undo: impl FnOnce() + Send + 'static) -> Body {
        let undo = (!bytes.is_empty()).then(|| Undo(Some(Box::new(undo))));
        Body { bytes, unless_taken: undo }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body { bytes, unless_taken: None }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(mut undo) = self.unless_taken.take() {
            undo.0 = None;
        }
        let bytes = std::mem::take(&mut self.bytes);
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn counted(bytes: &'static [u8]) -> (Body, Arc<AtomicUsize>) {
        let undone = Arc::new(AtomicUsize::new(0));
        let its = undone.clone();
        let undo = move || {
            its.fetch_add(1, Ordering::Relaxed);
        };
        (Body::unless_taken(Bytes::from_static(bytes), undo), undone)
    }

    #[test]
    fn what_no_connection_took_is_undone_once() {
        let (body, undone) = counted(b"messages");
        drop(body);
        assert_eq!(undone.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn what_was_taken_stays_taken() {
        let (body, undone) = counted(b"messages");
        let taken = body.collect().await.expect("it cannot fail").to_bytes();
        assert_eq!(taken, Bytes::from_static(b"messages"));
        assert_eq!(undone.load(Ordering::Relaxed), 0);
    }
}
