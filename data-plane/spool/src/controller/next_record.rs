//! The two changes that a controller makes to a record. Each is written by compare-and-swap on the revision
//! that was read, so of several controllers exactly one gets an epoch, and one primary. E1 I1

use types::Epoch;

use super::seals::{self, Basis, Choice, SealedCopies};
use crate::record::{Last, Phase, Record};

/// The next election. `floor`: a copy said that it sealed this epoch, which then cannot be won any more.
/// `None`: there are no epochs left.
///
/// The configuration joins `prev` until the primary elected clears it: a copy that a later change takes out
/// may be the only one, beside the primary, that holds an acknowledged write. E4 I14
pub fn electing(record: &Record, floor: Epoch) -> Option<Record> {
    let epoch = Epoch(record.epoch.max(floor).0.checked_add(1)?);
    let mut prev = record.prev.clone();
    if !prev.contains(&record.members) {
        prev.push(record.members.clone());
    }
    // `fence_due` stays: what one election owed, the next one owes. S8
    let next = Record { epoch, phase: Phase::Electing, prev, ..record.clone() };
    assert!(next.epoch > record.epoch, "I1: {} after {}", next.epoch, record.epoch);
    Some(next)
}

/// The outcome of the election that `record` is in.
pub fn assigned(record: &Record, sealed: &SealedCopies, basis: Basis, choice: &Choice) -> Record {
    assert_eq!(record.phase, Phase::Electing, "I1: epoch {} has its primary", record.epoch);
    seals::assert_may_be_assigned(record, sealed, choice);
    let last = Last {
        epoch: record.epoch,
        member: choice.member.clone(),
        process: choice.sealed.process,
        position: choice.sealed.position,
    };
    Record {
        phase: Phase::Assigned,
        fence_due: false,
        lineage: record.lineage + u64::from(basis == Basis::Lossy),
        last: Some(last),
        ..record.clone()
    }
}
