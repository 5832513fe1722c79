//! What happens to a copy, and what it asks for: the whole boundary of the pure core.
//!
//! A driver feeds [`Event`]s to [`crate::SpoolCopy::handle`] and carries out the [`Effects`] in this order:
//! write `batch`; ask for a sync if `sync` is set, and feed [`Event::Synced`] once it is done; let everything
//! else leave. Effects of several events may gather in one, as long as the same `Effects` is passed to each `handle` until
//! its batch is written: the core reads the store through the batch.
//!  Nothing in `peers`, `replies` or `rpc` depends on a write that was not synced before: the core
//! holds such things back until it hears of the sync.

use bytes::Bytes;
use types::{CopyId, Epoch, NodeName, Position, ProcessId, Seq, SpoolId};

use crate::command::{Command, Reply, RequestId};
use crate::record::{Last, Member};
use crate::store::Batch;

/// The chain value of a log up to and including an entry: equal chains, equal logs. I4
pub type Chain = [u8; 32];

/// Numbers the syncs that a copy asked for, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SyncNo(pub u64);

/// Names a call of a controller or operator that waits for an answer. Minted by the driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub u64);

#[derive(Clone, Debug)]
pub enum Event {
    /// Time passed; feed at [`crate::SpoolCopy::next_wakeup`] at the latest, more often does no harm.
    Tick,
    /// Every batch whose `sync` was at most this is on disk.
    Synced(SyncNo),
    /// From another copy of this spool.
    Peer { from: Member, message: PeerMessage },
    /// The connection to a copy's node was lost: what was sent may not have arrived.
    PeerDisconnected { node: NodeName },
    /// From a controller or an operator.
    Call { id: CallId, call: Call },
    /// The Txn that [`Effects::activate`] asked for was done, or found another record.
    Activated { epoch: Epoch, ok: bool },
    /// The same for [`Effects::clear_prev`].
    PrevCleared { epoch: Epoch, ok: bool },
    /// From a client, through this node or another. `wait` bounds the wait for confirmation
    /// (`Prefer: wait`). `expected_epoch` is set on a forwarded request.
    Request { id: RequestId, command: Command, wait: std::time::Duration },
    /// The client is gone, or gave up. A write that is not yet in the log is forgotten.
    Cancelled { id: RequestId },
    /// What a receive handed out did not reach its client: available again at once, and not counted.
    HandedBack { tokens: Vec<crate::token::Token> },
    /// The node is shutting down or the disk is failing: give up the role, answer what can be answered.
    GiveUpRole,
}

/// Between copies of one spool. The wire adds the spool's id and both members.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    Append(Append),
    Confirm(Confirm),
    Reject(Reject),
    /// The primary of this epoch gave up its role for good: the promise to it may end.
    Release {
        epoch: Epoch,
    },
}

/// From the primary: "after `prev` come these". Without entries it asks how far the logs agree.
#[derive(Clone, Debug, PartialEq)]
pub struct Append {
    pub epoch: Epoch,
    /// Echoed by the answer. Counts the messages of this primary to this copy.
    pub number: u64,
    /// The entry before the first of `entries`; zero before the first of the log.
    pub prev: Position,
    pub prev_chain: Chain,
    /// Encoded [`crate::entry::Entry`]s.
    pub entries: Vec<Bytes>,
    /// Exclusive end of what is committed.
    pub commit_end: Seq,
    /// No voter needs the log before this any more.
    pub trim_end: Seq,
}

/// "Under `epoch` my log is identical to yours before `end`, contiguous and synced." Cumulative. I6
#[derive(Clone, Debug, PartialEq)]
pub struct Confirm {
    pub process: ProcessId,
    pub epoch: Epoch,
    pub number: u64,
    pub end: Seq,
    /// Of the entry before `end`.
    pub chain: Chain,
    /// The version of the pair's set from which on this spool is in it; see [`crate::promise`].
    pub follows_version: u64,
    /// A Seal waits here.
    pub pending_seal: Option<Epoch>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Reject {
    pub epoch: Epoch,
    pub number: u64,
    pub reason: RejectReason,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RejectReason {
    /// This copy sealed or follows a higher epoch.
    StaleEpoch {
        sealed: Epoch,
    },
    /// `prev` is not in this copy's log. Its log: where each epoch begins, and its exclusive end.
    NoMatch {
        epochs: Vec<(Epoch, Seq)>,
        end: Seq,
    },
    /// No such spool, or another copy of it, on this node's disk.
    UnknownCopy,
    Damaged,
    Busy,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    Seal {
        epoch: Epoch,
    },
    Assign(Assign),
    Probe,
    /// Give up the role so that `target` can be elected without loss: stop admitting, drain, equalise.
    StepDown {
        epoch: Epoch,
        target: Option<CopyId>,
    },
    /// For people: what this copy knows.
    Status,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Assign {
    pub epoch: Epoch,
    pub members: Vec<Member>,
    /// The process that answered the Seal, and the position it told.
    pub process: ProcessId,
    pub position: Position,
    /// The `last` of the record before this assignment.
    pub prev_last: Option<Last>,
    /// The highest `commit_end` told by the sealed copies.
    pub commit_end: Seq,
    pub lineage: u64,
    /// The record's modification revision: what `activate` compares.
    pub record_revision: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum CallReply {
    Sealed(Sealed),
    /// This copy sealed or follows a higher epoch.
    StaleEpoch {
        sealed: Epoch,
    },
    Assigned,
    /// The assignment does not fit this copy; the next election will.
    AssignRefused {
        why: String,
    },
    Probed(Probed),
    /// The final position of the reign that ended.
    SteppedDown {
        position: Position,
    },
    NotPrimary {
        sealed: Epoch,
    },
    Status(Box<CopyStatus>),
}

/// The answer to a Seal: durable before it is told, the position read after it. I2 I11
#[derive(Clone, Debug, PartialEq)]
pub struct Sealed {
    pub epoch: Epoch,
    pub copy: CopyId,
    pub process: ProcessId,
    pub authoritative: bool,
    /// Of the last entry.
    pub position: Position,
    pub chain: Chain,
    pub commit_end: Seq,
    pub lineage: u64,
}

/// What a controller learns before it spends an epoch. Advisory.
#[derive(Clone, Debug, PartialEq)]
pub struct Probed {
    pub copy: CopyId,
    pub sealed: Epoch,
    /// The epoch that this copy is the serving primary of.
    pub serving: Option<Epoch>,
    /// The epoch that it is the primary of, though it may have to wait for promises.
    pub leading: Option<Epoch>,
    /// How long ago this copy last heard of a serving, healthy primary; `None`: not since its start.
    pub heard: Option<std::time::Duration>,
    /// Its connection to the primary's node was reset and a new one refused.
    pub primary_refused: bool,
    pub position: Position,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CopyStatus {
    pub spool: SpoolId,
    pub copy: CopyId,
    pub node: NodeName,
    pub role: RoleStatus,
    pub sealed: Epoch,
    pub position: Position,
    pub commit_end: Seq,
    pub applied_end: Seq,
    pub trim_end: Seq,
    pub waiting_writes: u64,
    /// Of a primary: how far each of the others is.
    pub peers: Vec<PeerStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleStatus {
    Follower,
    /// Assigned, not yet serving.
    TakingOver(Epoch),
    Serving(Epoch),
}

#[derive(Clone, Debug, PartialEq)]
pub struct PeerStatus {
    pub member: Member,
    pub reachable: bool,
    pub confirmed: Position,
    pub behind_entries: u64,
    /// Milliseconds between the log time of the last entry and of the last one confirmed.
    pub behind_ms: u64,
}

/// Everything that one step asks for.
#[derive(Debug, Default)]
pub struct Effects {
    pub batch: Batch,
    /// Sync `batch`, and everything written before it, and feed [`Event::Synced`] with this number.
    pub sync: Option<SyncNo>,
    pub peers: Vec<(Member, PeerMessage)>,
    pub replies: Vec<(RequestId, Reply)>,
    pub calls: Vec<(CallId, CallReply)>,
    /// Txn: if the record is still the one of this revision, make it active, with `prev` empty if the
    /// barrier is committed.
    pub activate: Option<Activate>,
    /// Txn: if the record still has this epoch, empty `prev`.
    pub clear_prev: Option<Epoch>,
    /// What went on, for the log and for the account's events.
    pub notes: Vec<Note>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Activate {
    pub epoch: Epoch,
    pub record_revision: i64,
    pub clear_prev: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    BecamePrimary {
        epoch: Epoch,
        position: Position,
    },
    LostRole {
        epoch: Epoch,
        why: &'static str,
    },
    Sealed {
        epoch: Epoch,
        position: Position,
    },
    CutSuffix {
        from: Seq,
        to: Seq,
    },
    /// This copy must not count any more; the text says what was found.
    Halted {
        why: String,
    },
}
