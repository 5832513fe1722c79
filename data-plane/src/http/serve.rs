//! Connections: HTTP/1.1 and HTTP/2 in clear text for clients, HTTP/2 over mutual TLS for other nodes. Everything about them is
//! bounded; a slow client costs only itself.

use super::api::{Api, From};
use super::patience::{Limits, Patient};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

const CONNECTIONS_MAX: usize = 20_000;
/// Files that are not clients' connections: RocksDB's, other nodes, etcd, the control plane.
const FILES_RESERVED: u64 = 2_048;
const STREAMS_MAX: u32 = 1_000;
/// A node passes on what many clients ask, over one connection.
const STREAMS_OF_NODE_MAX: u32 = 50_000;
const PATIENCE: Limits = Limits { first: Duration::from_secs(15), stalled: Duration::from_secs(30) };
/// For a request's headers, and for the next request on a kept connection.
const HEADER_WAIT: Duration = Duration::from_secs(60);
const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);
const PING_EVERY: Duration = Duration::from_secs(20);
const WINDOW: u32 = 4 * 1024 * 1024;
/// Beyond what is refused with a problem: there hyper answers by itself.
const HEADER_BUFFER: usize = 64 * 1024;
/// For requests that are being answered when the node ends.
const GOODBYE: Duration = Duration::from_secs(2);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone)]
enum Security {
    Clear,
    Mutual(TlsAcceptor),
}

/// For clients, until `stop`.
pub async fn serve(listener: TcpListener, api: Arc<Api>, stop: CancellationToken) {
    accept(listener, api, From::Client, Security::Clear, stop).await;
}

/// For other nodes.
pub async fn serve_forwarded(
    listener: TcpListener,
    mut tls: rustls::ServerConfig,
    api: Arc<Api>,
    stop: CancellationToken,
) {
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let security = Security::Mutual(TlsAcceptor::from(Arc::new(tls)));
    accept(listener, api, From::Node, security, stop).await;
}

async fn accept(
    listener: TcpListener,
    api: Arc<Api>,
    from: From,
    security: Security,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(connections_max()));
    let mut complained: Option<Instant> = None;
    let graceful = Arc::new(parking_lot::Mutex::new(Some(GracefulShutdown::new())));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Of one connection, or of too many open files: the next one may do better.
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = room.clone().try_acquire_owned() else {
            if complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
                tracing::warn!(most = connections_max(), "too many connections; new ones are closed");
                complained = Some(Instant::now());
            }
            continue;
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection without TCP_NODELAY");
        }
        let (api, security, graceful) = (api.clone(), security.clone(), graceful.clone());
        tokio::spawn(async move {
            let _permit = permit;
            match security {
                Security::Clear => connection(stream, api, from, &graceful).await,
                Security::Mutual(acceptor) => {
                    match tokio::time::timeout(HANDSHAKE_WAIT, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => connection(stream, api, from, &graceful).await,
                        Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
                        Err(_) => tracing::debug!("a handshake did not come to an end"),
                    }
                }
            }
        });
    }
    drop(listener);
    let graceful = graceful.lock().take();
    if let Some(graceful) = graceful
        && tokio::time::timeout(GOODBYE, graceful.shutdown()).await.is_err()
    {
        tracing::warn!("connections are still open");
    }
}

/// What the limit of open files leaves room for.
fn connections_max() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let room = files.map_or(u64::MAX, |files| files.saturating_sub(FILES_RESERVED));
    usize::try_from(room).unwrap_or(usize::MAX).min(CONNECTIONS_MAX)
}

async fn connection<S>(
    stream: S,
    api: Arc<Api>,
    from: From,
    graceful: &parking_lot::Mutex<Option<GracefulShutdown>>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_WAIT).max_buf_size(HEADER_BUFFER);
    let streams = if from == From::Node { STREAMS_OF_NODE_MAX } else { STREAMS_MAX };
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(HEADER_BUFFER as u32)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY);
    let service = service_fn(move |request| {
        let api = api.clone();
        async move { Ok::<_, Infallible>(api.answer(from, request).await) }
    });
    let serving =
        builder.serve_connection(TokioIo::new(Patient::new(stream, PATIENCE)), service).into_owned();
    let watched = graceful.lock().as_ref().map(|graceful| graceful.watch(serving));
    if let Some(watched) = watched
        && let Err(error) = watched.await
    {
        tracing::debug!(%error, "a client's connection ended");
    }
}
