//! Connections to nodes: one a node, over mTLS, made when first used and made anew when it breaks. A pooled
//! HTTP/2 connection to a peer that is gone swallows everything, so keep-alive is on, and a call that got no
//! answer costs the connection.

use parking_lot::Mutex;
use proto::replication::replication_client::ReplicationClient;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Response, Status};
use types::NodeName;

const CONNECT_WAIT: Duration = Duration::from_secs(1);
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Calls to one node at a time: one that answers nothing holds up nobody but itself.
const CALLS_MAX: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("no address of {node} is known")]
    NoAddress { node: NodeName },
    #[error("{address} of {node} is no address")]
    BadAddress { node: NodeName, address: String, source: tonic::transport::Error },
    /// What was asked for may have been done.
    #[error("{node} did not answer within {wait:?}")]
    NoAnswer { node: NodeName, wait: Duration },
    /// Unless its code says otherwise, what was asked for may have been done.
    #[error("{node}")]
    Status { node: NodeName, source: Box<Status> },
}

/// Cheap to clone.
#[derive(Clone)]
pub struct NodeClients {
    shared: Arc<Shared>,
}

struct Shared {
    tls: ClientTlsConfig,
    nodes: Mutex<HashMap<NodeName, Node>>,
}

struct Node {
    address: String,
    channel: Option<Channel>,
    /// Counts channels, so that a late failure of an old one does not cost the new one.
    number: u64,
    calls: Arc<Semaphore>,
}

impl NodeClients {
    /// `tls` has the cluster's CA and this part's certificate; a node's name is checked against its own.
    pub fn new(tls: ClientTlsConfig) -> NodeClients {
        NodeClients { shared: Arc::new(Shared { tls, nodes: Mutex::default() }) }
    }

    /// From the node's alive key, `host:port`. It is kept when the key is gone: the node may still answer.
    pub fn set_address(&self, node: &NodeName, address: &str) {
        let mut nodes = self.shared.nodes.lock();
        match nodes.get_mut(node) {
            Some(known) if known.address == address => {}
            Some(known) => {
                address.clone_into(&mut known.address);
                known.channel = None;
                known.number += 1;
            }
            None => {
                let calls = Arc::new(Semaphore::new(CALLS_MAX));
                let new = Node { address: address.to_owned(), channel: None, number: 0, calls };
                nodes.insert(node.clone(), new);
            }
        }
    }

    /// One call; an answer later than `wait` is none.
    pub async fn call<T, F>(
        &self,
        node: &NodeName,
        wait: Duration,
        ask: impl FnOnce(ReplicationClient<Channel>) -> F,
    ) -> Result<T, NodeError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let (channel, number, calls) = self.channel(node)?;
        let answer = tokio::time::timeout(wait, async {
            // Never closed; if it were, the call would go ahead.
            let _permit = calls.acquire().await;
            ask(ReplicationClient::new(channel)).await
        });
        match answer.await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(NodeError::Status { node: node.clone(), source: Box::new(status) }),
            Err(_) => {
                self.forget(node, number);
                Err(NodeError::NoAnswer { node: node.clone(), wait })
            }
        }
    }

    fn channel(&self, node: &NodeName) -> Result<(Channel, u64, Arc<Semaphore>), NodeError> {
        let mut nodes = self.shared.nodes.lock();
        let Some(known) = nodes.get_mut(node) else {
            return Err(NodeError::NoAddress { node: node.clone() });
        };
        let channel = match &known.channel {
            Some(channel) => channel.clone(),
            None => {
                let bad = |source| NodeError::BadAddress {
                    node: node.clone(),
                    address: known.address.clone(),
                    source,
                };
                let channel = endpoint(node, &known.address, &self.shared.tls).map_err(bad)?.connect_lazy();
                known.number += 1;
                known.channel.insert(channel).clone()
            }
        };
        Ok((channel, known.number, known.calls.clone()))
    }

    fn forget(&self, node: &NodeName, number: u64) {
        if let Some(known) = self.shared.nodes.lock().get_mut(node)
            && known.number == number
        {
            known.channel = None;
        }
    }
}

fn endpoint(
    node: &NodeName,
    address: &str,
    tls: &ClientTlsConfig,
) -> Result<Endpoint, tonic::transport::Error> {
    Endpoint::from_shared(format!("https://{address}"))?
        .connect_timeout(CONNECT_WAIT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .tls_config(tls.clone().domain_name(node.0.clone()))
}
