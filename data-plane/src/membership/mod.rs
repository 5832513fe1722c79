//! This node and etcd: that it is alive, what the records say, and its own steps in an election.
//!
//! | Key | What this node does with it |
//! |---|---|
//! | `/nodes/{node}/alive` | written each second under the node's etcd lease (7 s) |
//! | `/nodes/*/alive` | watched: where the other nodes are |
//! | `/spools/*/record`, `/spools/*/status` | watched: who serves what, or whom an election waits for |
//! | `/spools/{spool}/record` | replaced when this node's copy takes over ([`takeover`]), comparing its revision |
//! | `/owners/{node}/...` | the claim, put in the same Txn |
//! | `/copies/{copy}` | which start of the node has the copy: put when the copy is opened, if an earlier one is there or none |
//!
//! Nothing here decides who may serve: the copies' promises do. While etcd is away the node goes on with what it
//! last read.
//!
//! * [`routing`]: what is known, for those who ask
//! * [`watch`]: keeping it up to date
//! * [`alive`]: the alive key
//! * [`takeover`]: the Txns that a copy asks for
//! * [`suspicion`]: telling the control plane of a primary that is not heard

mod alive;
mod routing;
mod suspicion;
mod takeover;
#[cfg(test)]
mod tests;
mod watch;

pub use alive::Addresses;
pub use routing::Routing;
pub use suspicion::Suspicions;
pub use takeover::{Job, Takeovers};

use crate::health::Health;
use crate::spools::Spools;
use etcd_client::{Client, ConnectOptions};
use spool::copy::ProcessFacts;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use types::NodeName;

/// No answer of etcd's after this is no answer.
const CALL_WAIT: Duration = Duration::from_secs(3);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub(crate) enum EtcdError {
    #[error("etcd did not answer within {CALL_WAIT:?}")]
    NoAnswer,
    #[error("etcd")]
    Etcd(#[from] etcd_client::Error),
    #[error("an answer of etcd lacks {0}")]
    Incomplete(&'static str),
    #[error("what is in etcd cannot be read")]
    Malformed(#[from] serde_json::Error),
}

pub(crate) async fn answered<T>(
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, EtcdError> {
    tokio::time::timeout(CALL_WAIT, call).await.map_err(|_| EtcdError::NoAnswer)?.map_err(EtcdError::Etcd)
}

/// Does not wait for etcd to be there.
pub async fn connect(endpoints: &[String]) -> Result<Client, etcd_client::Error> {
    let options = ConnectOptions::new()
        .with_connect_timeout(CALL_WAIT)
        .with_keep_alive(KEEP_ALIVE, KEEP_ALIVE)
        .with_keep_alive_while_idle(true)
        // A member that is cut off from the others must not answer from what it has.
        .with_require_leader(true);
    Client::connect(endpoints, Some(options)).await
}

pub struct Membership {
    pub etcd: Client,
    pub node: NodeName,
    pub facts: ProcessFacts,
    pub addresses: Addresses,
    pub routing: Routing,
    pub health: Health,
}

impl Membership {
    /// Runs until `stop`; then the alive key is taken away. `peers_changed` is told where the other nodes'
    /// internal gRPC is.
    pub fn start(
        self,
        tasks: &mut JoinSet<()>,
        spools: Spools,
        takeovers: mpsc::Receiver<Job>,
        peers_changed: impl Fn(HashMap<NodeName, String>) + Send + Sync + 'static,
        stop: CancellationToken,
    ) {
        let Membership { etcd, node, facts, addresses, routing, health } = self;
        tasks.spawn(alive::keep(etcd.clone(), node.clone(), facts, addresses, health, stop.clone()));
        tasks.spawn(watch::follow(etcd.clone(), watch::NODES, stop.clone(), {
            let (routing, node) = (routing.clone(), node.clone());
            move |change| {
                if routing.on_node(change) {
                    peers_changed(routing.internal_addresses(&node));
                }
            }
        }));
        tasks.spawn(watch::follow(etcd.clone(), watch::SPOOLS, stop.clone(), {
            let routing = routing.clone();
            move |change| routing.on_spool(change)
        }));
        tasks.spawn(takeover::work(etcd, node, facts, spools, takeovers, stop));
    }
}
