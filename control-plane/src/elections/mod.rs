//! The shell around `spool::controller`: it feeds one pure controller for each spool that needs one, and carries
//! out what they ask for, in etcd and on the nodes. Every decision is in the controller.
//!
//! * [`director`]: one task that owns the controllers, their timers and what was heard
//! * [`liveness`]: which nodes' alive keys advance
//! * [`calls`], [`statuses`]: what controllers ask for, carried out
//! * [`clients`]: connections to nodes
//! * [`wire`]: the controller's words as messages
//!
//! A controller lives while there is something to do for its spool and a little longer; one that is lost, with
//! its process or alone, is replaced by one that knows the record. Any number of control planes may run this at
//! once: they meet in compare-and-swap, and that is safe.

mod calls;
mod clients;
mod director;
mod liveness;
mod statuses;
#[cfg(test)]
pub mod tests;
mod wire;

use spool::controller;
use tokio::sync::{mpsc, oneshot};
use types::{NodeName, SpoolId};

use crate::claims::Etcd;
pub use clients::{NodeClients, NodeError};
pub use spool::controller::{MoveError, Moved};

/// Kicks, suspicions and moves that wait for the director.
const COMMANDS_MAX: usize = 4_096;

#[derive(Clone, Debug)]
pub struct Settings {
    pub controller: controller::Settings,
    /// Random: sets control planes apart that would otherwise do the same at the same moment.
    pub seed: u64,
}

/// The director ends when the last clone is dropped.
#[derive(Clone)]
pub struct Elections {
    commands: mpsc::Sender<Command>,
}

#[derive(Debug)]
enum Command {
    Kick(SpoolId),
    Suspect { node: NodeName, refused: bool },
    Move { spool: SpoolId, target: Option<NodeName>, answer: oneshot::Sender<Result<Moved, MoveError>> },
}

impl Elections {
    /// Begins to watch, and to elect wherever a record waits for it. `clients` learns the nodes' addresses from
    /// their alive keys.
    pub fn start(etcd: Etcd, clients: NodeClients, settings: Settings) -> Elections {
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        tokio::spawn(director::run(etcd, clients, settings, received));
        Elections { commands }
    }

    /// A spool's record was just made or changed: look now instead of when the watch tells.
    pub fn kick(&self, spool: SpoolId) {
        self.send(Command::Kick(spool));
    }

    /// A copy no longer hears the primaries on this node. Advisory: it starts a pre-check of each.
    pub fn suspect(&self, node: NodeName, refused: bool) {
        self.send(Command::Suspect { node, refused });
    }

    /// Hands the spool over to `target`, or to any other copy. Returns once a primary is active, after at most
    /// the controller's `move_wait`. Loses nothing; a failed move ends in an election like any other.
    pub async fn move_primary(&self, spool: SpoolId, target: Option<NodeName>) -> Result<Moved, MoveError> {
        let (answer, answered) = oneshot::channel();
        let command = Command::Move { spool, target, answer };
        // The director is gone only when the process ends.
        self.commands.send(command).await.map_err(|_| MoveError::TimedOut)?;
        answered.await.unwrap_or(Err(MoveError::TimedOut))
    }

    /// Both kinds are repeated by whoever sends them, or found by a watch: dropping one delays it.
    fn send(&self, command: Command) {
        if let Err(error) = self.commands.try_send(command) {
            tracing::warn!(%error, "elections are behind");
        }
    }
}
