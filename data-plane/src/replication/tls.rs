//! Certificates, and connections to other nodes that check them.

use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig};
use types::NodeName;

/// From the first packet to the end of the handshake.
const CONNECT_WAIT: Duration = Duration::from_secs(1);
/// A peer that answers no ping for so long is gone; a connection to it would swallow everything.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Enough for what may be under way to one copy, and twice that for all of a node.
pub(super) const STREAM_WINDOW: u32 = 8 * 1024 * 1024;
pub(super) const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// This part's certificate, and the authority that issued all of the installation's.
#[derive(Clone)]
pub struct Tls {
    authority: Certificate,
    identity: Identity,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("reading {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{address} is no address")]
    Address { address: String, source: tonic::transport::Error },
    #[error("no connection within {CONNECT_WAIT:?}")]
    Late,
    #[error("no connection")]
    Failed(#[from] tonic::transport::Error),
}

impl ConnectError {
    /// Nobody listens there: the machine is up, and its process is not.
    pub fn is_refused(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if let Some(io) = error.downcast_ref::<std::io::Error>()
                && io.kind() == std::io::ErrorKind::ConnectionRefused
            {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

impl Tls {
    pub fn from_pem(authority: &str, certificate: &str, key: &str) -> Tls {
        Tls { authority: Certificate::from_pem(authority), identity: Identity::from_pem(certificate, key) }
    }

    /// PEM files.
    pub fn read(authority: &Path, certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        let read = |path: &Path| {
            let failed = |source| TlsError::Read { path: path.to_owned(), source };
            std::fs::read_to_string(path).map_err(failed)
        };
        Ok(Tls::from_pem(&read(authority)?, &read(certificate)?, &read(key)?))
    }

    pub fn server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new().identity(self.identity.clone()).client_ca_root(self.authority.clone())
    }

    /// For connections to the part of this name.
    pub fn client(&self, name: &str) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .ca_certificate(self.authority.clone())
            .identity(self.identity.clone())
            .domain_name(name)
    }

    /// A connection of its own to a node, whose certificate names it.
    pub(super) async fn connect(&self, node: &NodeName, address: &str) -> Result<Channel, ConnectError> {
        let bad = |source| ConnectError::Address { address: address.to_owned(), source };
        let endpoint = Endpoint::from_shared(format!("https://{address}"))
            .map_err(bad)?
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .tls_config(self.client(&node.0))?;
        let connected = tokio::time::timeout(CONNECT_WAIT, endpoint.connect()).await;
        Ok(connected.map_err(|_| ConnectError::Late)??)
    }
}
