//! The spools of this node: one pure `spool::SpoolCopy` each, driven by a few engine threads.
//!
//! [`Spools`] is what the rest of the node sees: where a spool is served, and a way to ask it.

use spool::command::{Command, Failure, Reply};
use spool::token::Token;
use std::time::Duration;
use types::{Epoch, NodeName, SpoolId};

/// Where a request for a spool has to go.
#[derive(Clone, Debug, PartialEq)]
pub enum Route {
    Here,
    /// To the node that is believed to be primary; `internal` is its internal HTTP address, `host:port`.
    There { node: NodeName, internal: String },
    /// Nobody serves it now.
    Nowhere(Failure),
}

/// An answer of this node's copy, and the epoch it is given in (zero if the copy is not the primary).
#[derive(Clone, Debug)]
pub struct Answer {
    pub epoch: Epoch,
    pub reply: Reply,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Spools {}

impl Spools {
    pub fn route(&self, _spool: SpoolId) -> Route {
        unreachable!("not built yet")
    }

    /// Asks this node's copy. Dropping the future tells the core that the client is gone: a write that is not
    /// yet in the log is forgotten, a long poll ends, what a receive handed out meanwhile is handed back.
    /// A copy that is not the primary answers `no_primary`.
    pub async fn request(&self, _spool: SpoolId, _command: Command, _wait: Duration) -> Answer {
        unreachable!("not built yet")
    }

    /// What a receive returned did not reach its client: available again at once, not counted.
    pub fn hand_back(&self, _spool: SpoolId, _tokens: Vec<Token>) {}
}
