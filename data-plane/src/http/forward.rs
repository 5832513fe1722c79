//! One hop to the spool's primary: the request as it came, over HTTP/2 with mutual TLS. The other node checks the key
//! itself, so nothing in the request has to be believed.

use super::problem::Problem;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use types::{ErrorCode, NodeName, limits};

const CONNECT_WAIT: Duration = Duration::from_secs(1);
const PING_EVERY: Duration = Duration::from_secs(2);
const WINDOW: u32 = 8 * 1024 * 1024;
/// Of one answer: a hundred messages, in base64 and JSON.
const ANSWER_BYTES_MAX: usize = 4 * limits::REQUEST_BYTES_MAX + limits::RECEIVE_BYTES_MAX * 4;

/// Of one answer: attributes and all, of a message received raw.
const HEADER_BYTES_MAX: u32 = 64 * 1024;

type Connection = SendRequest<Full<Bytes>>;

/// Cheap to clone.
#[derive(Clone)]
pub struct Forwarder {
    inner: Arc<Inner>,
}

struct Inner {
    tls: TlsConnector,
    connections: Mutex<HashMap<NodeName, (String, Connection)>>,
}

impl Forwarder {
    pub fn new(mut tls: rustls::ClientConfig) -> Forwarder {
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let tls = TlsConnector::from(Arc::new(tls));
        Forwarder { inner: Arc::new(Inner { tls, connections: Mutex::default() }) }
    }

    /// `doubtful`: a request that broke on its way may have had an effect. `within`: the primary answers by then.
    pub async fn send(
        &self,
        node: &NodeName,
        address: &str,
        request: Request<Bytes>,
        doubtful: bool,
        within: Duration,
    ) -> Result<Response<Bytes>, Problem> {
        let mut connection = self.connection(node, address).await.map_err(|error| {
            tracing::warn!(%node, address, error, "the primary's node cannot be reached");
            Problem::new(ErrorCode::NoPrimary, "the primary cannot be reached from this node")
        })?;
        let broken = |error: &dyn std::fmt::Display| {
            tracing::warn!(%node, %error, "a forwarded request got no answer");
            match doubtful {
                true => Problem::new(
                    ErrorCode::OperationUnconfirmed,
                    "the connection to the primary broke; the operation may take effect",
                ),
                false => Problem::new(ErrorCode::NoPrimary, "the connection to the primary broke"),
            }
        };
        let asking = async {
            let answer = connection.send_request(request.map(Full::new)).await;
            let (parts, body) = answer.map_err(|error| broken(&error))?.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| broken(&error))?;
            Ok(Response::from_parts(parts, body.to_bytes()))
        };
        tokio::time::timeout(within, asking).await.unwrap_or_else(|late| Err(broken(&late)))
    }

    async fn connection(&self, node: &NodeName, address: &str) -> Result<Connection, String> {
        let there = self.inner.connections.lock().get(node).cloned();
        if let Some((at, mut connection)) = there
            && at == address
            && connection.ready().await.is_ok()
        {
            return Ok(connection);
        }
        let made = tokio::time::timeout(CONNECT_WAIT, self.connect(node, address)).await;
        let connection = made.map_err(|_| "no connection in time".to_owned())??;
        let kept = (address.to_owned(), connection.clone());
        self.inner.connections.lock().insert(node.clone(), kept);
        Ok(connection)
    }

    async fn connect(&self, node: &NodeName, address: &str) -> Result<Connection, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let name = ServerName::try_from(node.0.clone()).map_err(|error| error.to_string())?;
        let stream = self.inner.tls.connect(name, stream).await.map_err(|error| error.to_string())?;
        let (connection, driver) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .timer(hyper_util::rt::TokioTimer::new())
            .max_header_list_size(HEADER_BYTES_MAX)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let node = node.clone();
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%node, %error, "a connection for forwarded requests ended");
            }
        });
        Ok(connection)
    }
}
