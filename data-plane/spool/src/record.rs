//! The spool's record in etcd: which copies it has, which epoch it is in, who was assigned last. Elections are
//! compare-and-swaps on it; [`crate::controller`] decides them.

use serde::{Deserialize, Serialize};
use types::{CopyId, Epoch, NodeName, Position, ProcessId, SpoolId};

/// A copy as the record lists it: the node AND the disk.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Member {
    pub node: NodeName,
    pub copy: CopyId,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// An epoch was allotted; sealed copies are being asked.
    Electing,
    /// A primary was chosen; it has not taken over yet.
    Assigned,
    Active,
}

/// The last assigned primary.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Last {
    pub epoch: Epoch,
    pub member: Member,
    pub process: ProcessId,
    pub position: Position,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Of this JSON; a reader refuses what it does not know.
    pub format: u32,
    pub spool: SpoolId,
    /// Counts elections that may have lost writes.
    pub lineage: u64,
    /// numReplicas.
    pub n: u8,
    /// numSync.
    pub k: u8,
    pub epoch: Epoch,
    pub phase: Phase,
    /// An older right to serve may rest on an etcd guard, which an assignment must outwait.
    pub fence_due: bool,
    pub members: Vec<Member>,
    /// Configurations not yet superseded: elections ask each of them. Empty: `members` alone. I14
    pub prev: Vec<Vec<Member>>,
    pub last: Option<Last>,
}

pub const RECORD_FORMAT: u32 = 1;

impl Record {
    /// As created: no epoch yet, waiting for its first election.
    pub fn first(spool: SpoolId, n: u8, k: u8, members: Vec<Member>) -> Record {
        Record {
            format: RECORD_FORMAT,
            spool,
            lineage: 0,
            n,
            k,
            epoch: Epoch(0),
            phase: Phase::Electing,
            fence_due: false,
            members,
            prev: Vec::new(),
            last: None,
        }
    }

    /// The configurations that an election asks.
    pub fn configs(&self) -> Vec<&[Member]> {
        if self.prev.is_empty() { vec![&self.members] } else { self.prev.iter().map(Vec::as_slice).collect() }
    }

    /// Sealed copies of each configuration that suffice without the last primary.
    pub fn need(&self) -> usize {
        need(self.n, self.k)
    }
}

/// Sealed others that suffice to elect. A committed entry is on k+1 copies, so any n-k of n hold it. With
/// k = 0 any one copy is enough, and may lose writes.
pub fn need(n: u8, k: u8) -> usize {
    if k == 0 { 1 } else { usize::from(n - k) }
}

/// B: promises that leave fewer than [`need`] others free to seal.
pub fn promises_needed(n: u8, k: u8) -> usize {
    usize::from(n) - need(n, k)
}
