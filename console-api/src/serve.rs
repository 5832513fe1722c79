//! The server around the router: every wait and every amount that a client could stretch is bounded.
//!
//! A connection's first request must arrive in time, as must the head of every further one; a connection that
//! has no request open for a while is closed. HTTP/1.1 and HTTP/2 with prior knowledge are served on one port.

use crate::http::extract::Peer;
use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt;

const CONNECTIONS_MAX: usize = 1_024;
const STREAMS_MAX: u32 = 64;
const HEAD_BYTES_MAX: usize = 64 * 1024;
const HEADERS_MAX: usize = 64;
const HEAD_WAIT: Duration = Duration::from_secs(10);
const IDLE_MAX: Duration = Duration::from_secs(60);
/// For the requests that are open when a connection, or the process, is to end.
const END_WAIT: Duration = Duration::from_secs(15);
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_WAIT: Duration = Duration::from_secs(10);

/// Serves until `stop` says so, then lets open requests finish.
pub async fn serve(listener: TcpListener, router: Router, mut stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let stopped = stop.clone();
    let accepting = async {
        loop {
            let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let connection = connection(stream, peer, router.clone(), stopped.clone());
                    tokio::spawn(async move {
                        connection.await;
                        drop(place);
                    });
                }
                // Out of file handles, or the client is gone already. Not a reason to end, nor to spin.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    drop(listener);
    // All places free: no connection is left.
    let all = places.acquire_many(CONNECTIONS_MAX as u32);
    if tokio::time::timeout(END_WAIT, all).await.is_err() {
        tracing::warn!("requests were still open when the process ended");
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, router: Router, mut stop: watch::Receiver<bool>) {
    let use_of = Arc::new(Use::new());
    let service = service_fn({
        let use_of = use_of.clone();
        move |request: Request<Incoming>| {
            let (router, open) = (router.clone(), Open::new(use_of.clone()));
            async move {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(Peer(peer.ip()));
                let response = router.oneshot(request).await;
                drop(open);
                response
            }
        }
    });
    let _ = stream.set_nodelay(true);
    let builder = builder();
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        result = connection.as_mut() => Some(result),
        () = use_of.idle() => None,
        _ = stop.wait_for(|stop| *stop) => None,
    };
    let result = match ended {
        Some(result) => result,
        None => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(END_WAIT, connection).await {
                Ok(result) => result,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended");
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WAIT);
    builder
}

/// How a connection is used: the requests open on it, and since when there are none.
struct Use {
    state: Mutex<State>,
}

struct State {
    open: usize,
    /// When there is no request: until when one must come.
    until: Instant,
}

impl Use {
    fn new() -> Self {
        Use { state: Mutex::new(State { open: 0, until: Instant::now() + HEAD_WAIT }) }
    }

    /// Returns when no request was open for too long.
    async fn idle(&self) {
        loop {
            let wake = {
                let state = self.state.lock();
                let now = Instant::now();
                match state.open {
                    0 if state.until <= now => return,
                    0 => state.until,
                    _ => now + IDLE_MAX,
                }
            };
            tokio::time::sleep_until(wake.into()).await;
        }
    }
}

/// One open request of a connection.
struct Open(Arc<Use>);

impl Open {
    fn new(of: Arc<Use>) -> Self {
        of.state.lock().open += 1;
        Open(of)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.open -= 1;
        state.until = Instant::now() + IDLE_MAX;
    }
}
