//! The values, and what makes one unusable.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use spool::record::{RECORD_FORMAT, Record};
use std::collections::BTreeSet;
use types::{NodeName, ProcessId, SpoolId, limits};

/// A node says each second that it is there, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alive {
    pub process_id: ProcessId,
    /// Grows with each writing; a key that stands still is as bad as one that is gone.
    pub hb_no: u64,
    /// Replication and calls, `host:port`.
    pub internal: String,
    /// Forwarded requests, `host:port`.
    pub forward: String,
    /// The public API, `host:port`.
    pub http: String,
    #[serde(default)]
    pub boot_no: u64,
}

/// Advisory, for people and for `waitingFor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub waiting_for: Vec<NodeName>,
    pub reason: String,
}

/// The flag: a primary on this node may be answering on the strength of etcd alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdGuard {
    pub process_id: ProcessId,
    pub spools: GuardedSpools,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardedSpools {
    All,
    Some(BTreeSet<SpoolId>),
    None,
}

#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    #[error("not the JSON that is expected here")]
    Json(#[from] serde_json::Error),
    #[error("not a spool's record key")]
    Key,
    #[error("format {found} of a record; this control plane knows {RECORD_FORMAT}")]
    Format { found: u32 },
    #[error("the record of another spool, {found}")]
    OtherSpool { found: SpoolId },
    #[error("n = {n}, k = {k} with {members} members")]
    Numbers { n: u8, k: u8, members: usize },
}

pub fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    Ok(serde_json::from_slice(bytes)?)
}

pub fn to_json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain structs with string keys")
}

/// Elections count members by these numbers: a record that contradicts itself elects nobody.
pub fn check(record: &Record, spool: SpoolId) -> Result<(), Malformed> {
    if record.format != RECORD_FORMAT {
        return Err(Malformed::Format { found: record.format });
    }
    if record.spool != spool {
        return Err(Malformed::OtherSpool { found: record.spool });
    }
    let (n, k, members) = (record.n, record.k, record.members.len());
    let nodes: BTreeSet<&NodeName> = record.members.iter().map(|member| &member.node).collect();
    let whole = |config: &[spool::record::Member]| config.len() == usize::from(n);
    let fits =
        whole(&record.members) && record.prev.iter().all(|config| whole(config)) && nodes.len() == members;
    if n == 0 || n > limits::REPLICAS_MAX || k >= n || !fits {
        return Err(Malformed::Numbers { n, k, members });
    }
    Ok(())
}

/// Whether a node's flag lists a spool; one that cannot be read lists all.
pub fn lists(flag: &[u8], spool: SpoolId) -> bool {
    match from_json::<EtcdGuard>(flag) {
        Ok(flag) => match flag.spools {
            GuardedSpools::All => true,
            GuardedSpools::Some(spools) => spools.contains(&spool),
            GuardedSpools::None => false,
        },
        Err(_) => true,
    }
}
