//! What this node knows of the others and of the spools' records, for those who ask.

use super::alive::Alive;
use super::watch::Change;
use crate::spools::Route;
use parking_lot::RwLock;
use serde::Deserialize;
use spool::command::Failure;
use spool::record::{Phase, RECORD_FORMAT, Record};
use std::collections::HashMap;
use std::sync::Arc;
use types::{Epoch, ErrorCode, NodeName, ProcessId, SpoolId};

/// Whom an election waits for; advisory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Waiting {
    pub waiting_for: Vec<NodeName>,
    pub reason: String,
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Routing {
    known: Arc<RwLock<Known>>,
}

#[derive(Default)]
struct Known {
    /// Where nodes were when last seen.
    last_seen: HashMap<NodeName, Alive>,
    records: HashMap<SpoolId, Record>,
    waiting: HashMap<SpoolId, Waiting>,
    nodes_read: bool,
    spools_read: bool,
}

impl Routing {
    /// Whether etcd was read whole at least once.
    pub fn is_read(&self) -> bool {
        let known = self.known.read();
        known.nodes_read && known.spools_read
    }

    pub fn record(&self, spool: SpoolId) -> Option<Record> {
        self.known.read().records.get(&spool).cloned()
    }

    pub fn waiting(&self, spool: SpoolId) -> Option<Waiting> {
        self.known.read().waiting.get(&spool).cloned()
    }

    /// Spools whose record says that this process serves them.
    pub fn claimed_by(&self, process: ProcessId) -> Vec<(SpoolId, Epoch)> {
        let known = self.known.read();
        let mine = |record: &&Record| {
            record.phase == Phase::Active && record.last.as_ref().is_some_and(|last| last.process == process)
        };
        known.records.values().filter(mine).map(|record| (record.spool, record.epoch)).collect()
    }

    /// Internal gRPC addresses of the other nodes.
    pub fn internal_addresses(&self, own: &NodeName) -> HashMap<NodeName, String> {
        let known = self.known.read();
        let others = known.last_seen.iter().filter(|(node, _)| *node != own);
        others.map(|(node, alive)| (node.clone(), alive.internal.clone())).collect()
    }

    /// Where a spool is served, as far as etcd says. This node's own copy does not serve it.
    pub fn route(&self, spool: SpoolId, own: &NodeName) -> Route {
        let known = self.known.read();
        let nowhere = |code, detail: String| Route::Nowhere(Failure::new(code, detail));
        let Some(record) = known.records.get(&spool) else {
            return nowhere(ErrorCode::NoPrimary, "the spool has no copies yet".to_owned());
        };
        if record.phase == Phase::Electing {
            return match known.waiting.get(&spool) {
                Some(Waiting { waiting_for, .. }) if !waiting_for.is_empty() => {
                    nowhere(ErrorCode::NeedCopies, "too few copies answer to choose a primary".to_owned())
                }
                _ => nowhere(ErrorCode::NoPrimary, "a primary is being elected".to_owned()),
            };
        }
        match &record.last {
            Some(last) if last.member.node != *own => match known.last_seen.get(&last.member.node) {
                Some(alive) => {
                    Route::There { node: last.member.node.clone(), internal: alive.forward.clone() }
                }
                None => nowhere(ErrorCode::NoPrimary, "the primary's address is not known".to_owned()),
            },
            _ => nowhere(ErrorCode::NoPrimary, "this node's copy does not serve any more".to_owned()),
        }
    }

    /// Another node's copy that serves the spool in a later epoch.
    pub fn successor(&self, spool: SpoolId, epoch: Epoch, own: &NodeName) -> Option<Route> {
        let known = self.known.read();
        let record = known.records.get(&spool)?;
        let last = record.last.as_ref().filter(|last| last.member.node != *own && last.epoch > epoch)?;
        if record.phase != Phase::Active {
            return None;
        }
        let internal = known.last_seen.get(&last.member.node)?.forward.clone();
        Some(Route::There { node: last.member.node.clone(), internal })
    }

    /// Whether a node is somewhere else now.
    pub(super) fn on_node(&self, change: Change) -> bool {
        let mut known = self.known.write();
        match change {
            Change::Set { key, value } => {
                let Some(node) = name_in(&key, "/nodes/", "/alive") else { return false };
                match serde_json::from_slice::<Alive>(&value) {
                    Ok(alive) => {
                        let internal = alive.internal.clone();
                        let before = known.last_seen.insert(NodeName::from(node), alive);
                        before.is_none_or(|before| before.internal != internal)
                    }
                    Err(error) => {
                        tracing::error!(key, %error, "unreadable in etcd");
                        false
                    }
                }
            }
            // One that is late with its alive key may well be there, where it was.
            Change::Gone { .. } => false,
            Change::Complete => {
                known.nodes_read = true;
                false
            }
        }
    }

    pub(super) fn on_spool(&self, change: Change) {
        let mut known = self.known.write();
        let id = |key: &str, what| name_in(key, "/spools/", what).and_then(|id| id.parse::<SpoolId>().ok());
        match change {
            Change::Set { key, value } => {
                if let Some(spool) = id(&key, "/record") {
                    match read_record(&value) {
                        Ok(record) => drop(known.records.insert(spool, record)),
                        Err(error) => tracing::error!(key, error, "unreadable in etcd"),
                    }
                } else if let Some(spool) = id(&key, "/status") {
                    match serde_json::from_slice(&value) {
                        Ok(waiting) => drop(known.waiting.insert(spool, waiting)),
                        Err(error) => tracing::error!(key, %error, "unreadable in etcd"),
                    }
                }
            }
            Change::Gone { key } => {
                if let Some(spool) = id(&key, "/record") {
                    known.records.remove(&spool);
                } else if let Some(spool) = id(&key, "/status") {
                    known.waiting.remove(&spool);
                }
            }
            Change::Complete => known.spools_read = true,
        }
    }
}

/// A record of a format that this program does not know is not acted on.
pub(super) fn read_record(value: &[u8]) -> Result<Record, String> {
    let record: Record = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    match record.format == RECORD_FORMAT {
        true => Ok(record),
        false => Err(format!("format {} of a record; this node knows {RECORD_FORMAT}", record.format)),
    }
}

fn name_in<'a>(key: &'a str, before: &str, after: &str) -> Option<&'a str> {
    key.strip_prefix(before)?.strip_suffix(after).filter(|name| !name.contains('/'))
}
