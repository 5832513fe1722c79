//! What a controller hears and what it asks for.

use types::{CopyId, Epoch, NodeName, Position};

use super::precheck::ProbeAnswer;
use crate::event::{Assign, Sealed};
use crate::record::{Member, Record};

/// An answer may come late, twice or never: calls that matter are asked again.
#[derive(Clone, Debug)]
pub enum Input {
    /// The record as read or watched. An older revision than one seen before is ignored.
    Record {
        record: Record,
        revision: i64,
    },
    /// The spool was deleted.
    RecordGone,
    /// A copy no longer hears the primary, its alive key stands still or is gone, or its node runs another
    /// process than the one assigned. `refused`: its address refuses connections.
    Suspected {
        refused: bool,
    },
    /// A node's alive key began to advance (again), or stopped. Feed what is known when the controller is
    /// made, then each change.
    NodeAlive {
        node: NodeName,
        advancing: bool,
    },
    ProbeReply {
        from: Member,
        round: u64,
        answer: ProbeAnswer,
    },
    CasResult {
        expected_revision: i64,
        outcome: CasOutcome,
    },
    SealReply {
        from: Member,
        epoch: Epoch,
        answer: SealAnswer,
    },
    AssignReply {
        from: Member,
        epoch: Epoch,
        answer: AssignAnswer,
    },
    StepDownReply {
        from: Member,
        epoch: Epoch,
        answer: StepDownAnswer,
    },
    /// An operator, or a node that shuts down: another member shall be primary; `None`: any other.
    Move {
        target: Option<NodeName>,
    },
    /// Time passed. Feed at [`super::Controller::next_wakeup`] at the latest; more often does no harm.
    Tick,
}

#[derive(Clone, Debug)]
pub enum CasOutcome {
    /// Written; `record` is what etcd now has. An electing Txn may have set `fence_due`.
    Done { record: Record, revision: i64 },
    /// Not written: this is there instead.
    Other { record: Record, revision: i64 },
    /// Not written: there is no record any more.
    Gone,
    /// No answer: it may have been written.
    Unknown,
}

#[derive(Clone, Debug)]
pub enum SealAnswer {
    Sealed(Sealed),
    /// The copy sealed or follows this higher epoch.
    StaleEpoch(Epoch),
    UnknownCopy,
    Failed,
}

#[derive(Clone, Debug)]
pub enum AssignAnswer {
    Assigned,
    Refused(String),
    StaleEpoch(Epoch),
    Failed,
}

#[derive(Clone, Debug)]
pub enum StepDownAnswer {
    /// The final position of the reign that ended.
    SteppedDown(Position),
    NotPrimary,
    /// No answer: it may have stepped down.
    Failed,
}

/// In the order of the list. None of them waits for another.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    Probe {
        to: Member,
        round: u64,
    },
    /// If the record's modification revision is still `expected_revision`, replace it. To an electing record
    /// belongs, in the same Txn, that the claim of `new.last`'s node on the spool is deleted.
    CasRecord {
        expected_revision: i64,
        new: Record,
    },
    /// Read the record and feed it.
    ReadRecord,
    Seal {
        to: Member,
        epoch: Epoch,
    },
    Assign {
        to: Member,
        assign: Assign,
    },
    StepDown {
        to: Member,
        epoch: Epoch,
        target: CopyId,
    },
    /// For people and for `waitingFor`. Empty: nothing is waited for.
    PublishStatus {
        waiting_for: Vec<NodeName>,
        reason: String,
    },
    MoveDone {
        outcome: Result<Moved, MoveError>,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    pub epoch: Epoch,
    pub from: NodeName,
    pub to: NodeName,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MoveError {
    #[error("no such spool")]
    NoSuchSpool,
    #[error("the spool has no primary that could hand over; an election is under way or impossible")]
    NoPrimary,
    #[error("{node} has no copy of the spool")]
    NotAMember { node: NodeName },
    #[error("the spool has no other copy")]
    NoOther,
    #[error("no copy that could take over answers")]
    Unreachable,
    #[error("another move of the spool is under way")]
    Busy,
    #[error("the primary is now {node}: the copy asked for was not as far, or did not answer")]
    Elsewhere { node: NodeName },
    #[error("nobody became primary in time; elections go on")]
    TimedOut,
}
