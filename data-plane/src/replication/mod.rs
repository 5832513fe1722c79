//! This node and the other nodes: what copies tell each other, the promises, and the calls of controllers.
//!
//! Everything runs over mTLS, and who is at the other end is what its certificate says. To every other node this
//! one keeps two connections: one for the stream of its messages ([`streams`]), and one for its beats
//! ([`heartbeats`]), so that promises never wait behind data. What is sent may be lost, always in one piece with what
//! came after it on the same stream: then the copies are told, and ask each other again.
//!
//! * [`Copies`]: what all of this needs of the node's spools
//! * [`pairs`]: the promises' table
//! * [`heartbeats`]: beats to the other nodes, on a thread of their own
//! * [`streams`]: messages to the other nodes; [`lane`], what waits to be sent
//! * [`service`]: the gRPC server; [`caller`], who may ask what
//! * [`tls`]: certificates and connections
//! * [`wire`]: the protobuf messages

pub mod caller;
pub mod heartbeats;
mod lane;
pub mod pairs;
pub mod service;
pub mod streams;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod wire;

pub use heartbeats::Heartbeats;
pub use pairs::PairTable;
pub use service::{Server, ServerError};
pub use streams::Peers;
pub use tls::{Tls, TlsError};

use crate::spools::{CreateError, Delivery, Spools};
use crate::store::NewCopy;
use futures::future::BoxFuture;
use spool::event::{Call, CallReply, PeerMessage};
use spool::record::Member;
use types::{CopyId, NodeName, SpoolId};

/// The copies of this node, as the network sees them. Nothing but the futures waits.
pub trait Copies: Send + Sync + 'static {
    fn peer(&self, spool: SpoolId, from: Member, to: CopyId, message: PeerMessage) -> Delivery;
    /// What was sent to this node's copies may not have arrived, or what they answered.
    fn peer_disconnected(&self, node: &NodeName);
    fn beats_arrived(&self);
    /// This node's copy of a spool.
    fn copy(&self, spool: SpoolId) -> Option<CopyId>;
    fn spools(&self) -> Vec<SpoolId>;
    /// `None`: there is no such copy, or the node is shutting down.
    fn call(&self, spool: SpoolId, copy: Option<CopyId>, call: Call)
    -> BoxFuture<'static, Option<CallReply>>;
    fn create_copy(&self, new: NewCopy) -> BoxFuture<'static, Result<CopyId, CreateError>>;
}

impl Copies for Spools {
    fn peer(&self, spool: SpoolId, from: Member, to: CopyId, message: PeerMessage) -> Delivery {
        Spools::peer(self, spool, from, to, message)
    }
    fn peer_disconnected(&self, node: &NodeName) {
        Spools::peer_disconnected(self, node);
    }
    fn beats_arrived(&self) {
        Spools::beats_arrived(self);
    }
    fn copy(&self, spool: SpoolId) -> Option<CopyId> {
        Spools::copy(self, spool)
    }
    fn spools(&self) -> Vec<SpoolId> {
        self.copies()
    }
    fn call(
        &self,
        spool: SpoolId,
        copy: Option<CopyId>,
        call: Call,
    ) -> BoxFuture<'static, Option<CallReply>> {
        let spools = self.clone();
        Box::pin(async move { Spools::call(&spools, spool, copy, call).await })
    }
    fn create_copy(&self, new: NewCopy) -> BoxFuture<'static, Result<CopyId, CreateError>> {
        let spools = self.clone();
        Box::pin(async move { Spools::create_copy(&spools, new).await })
    }
}
