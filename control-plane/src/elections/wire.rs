//! The controller's words as messages, and the answers back. An answer that makes no sense is as good as none.

use prost::bytes::Bytes;
use proto::replication as pb;
use spool::controller::{AssignAnswer, ProbeAnswer, SealAnswer, StepDownAnswer};
use spool::event::{Assign, Probed, Sealed};
use spool::record::{Last, Member};
use std::time::Duration;
use types::{CopyId, Epoch, Position, ProcessId, Seq, SpoolId};

pub fn id(bytes: &[u8; 16]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn member(member: &Member) -> pb::Member {
    pb::Member { node: member.node.0.clone(), copy_id: id(member.copy.as_bytes()) }
}

fn position(position: Position) -> pb::Position {
    pb::Position { epoch: position.epoch.0, seq: position.seq.0 }
}

fn read_position(position: Option<pb::Position>) -> Option<Position> {
    position.map(|position| Position::new(position.epoch, position.seq))
}

fn last(last: &Last) -> pb::Last {
    pb::Last {
        epoch: last.epoch.0,
        member: Some(member(&last.member)),
        process_id: id(last.process.as_bytes()),
        position: Some(position(last.position)),
    }
}

pub fn probe(spool: SpoolId, to: &Member) -> pb::ProbeRequest {
    pb::ProbeRequest { spool_id: id(spool.as_bytes()), copy_id: id(to.copy.as_bytes()) }
}

pub fn read_probe(reply: pb::ProbeReply) -> ProbeAnswer {
    if reply.unknown_copy {
        return ProbeAnswer::UnknownCopy;
    }
    let probed = || {
        Some(Probed {
            copy: CopyId::from_slice(&reply.copy_id)?,
            sealed: Epoch(reply.sealed),
            serving: reply.serving.map(Epoch),
            leading: reply.leading.map(Epoch),
            heard: reply.heard_ms_ago.map(Duration::from_millis),
            primary_refused: reply.primary_refused,
            position: read_position(reply.position)?,
        })
    };
    probed().map_or(ProbeAnswer::Failed, ProbeAnswer::Probed)
}

pub fn seal(spool: SpoolId, to: &Member, epoch: Epoch) -> pb::SealRequest {
    pb::SealRequest { spool_id: id(spool.as_bytes()), copy_id: id(to.copy.as_bytes()), epoch: epoch.0 }
}

pub fn read_seal(reply: pb::SealReply) -> SealAnswer {
    match reply.outcome {
        Some(pb::seal_reply::Outcome::Sealed(sealed)) => {
            read_sealed(sealed).map_or(SealAnswer::Failed, SealAnswer::Sealed)
        }
        Some(pb::seal_reply::Outcome::StaleEpoch(sealed)) => SealAnswer::StaleEpoch(Epoch(sealed)),
        Some(pb::seal_reply::Outcome::UnknownCopy(_)) => SealAnswer::UnknownCopy,
        None => SealAnswer::Failed,
    }
}

fn read_sealed(sealed: pb::Sealed) -> Option<Sealed> {
    Some(Sealed {
        epoch: Epoch(sealed.epoch),
        copy: CopyId::from_slice(&sealed.copy_id)?,
        process: ProcessId::from_slice(&sealed.process_id)?,
        authoritative: sealed.authoritative,
        position: read_position(sealed.position)?,
        chain: sealed.chain.as_ref().try_into().ok()?,
        commit_end: Seq(sealed.commit_end),
        lineage: sealed.lineage,
    })
}

pub fn assign(spool: SpoolId, to: &Member, assign: &Assign) -> pb::AssignRequest {
    pb::AssignRequest {
        spool_id: id(spool.as_bytes()),
        copy_id: id(to.copy.as_bytes()),
        epoch: assign.epoch.0,
        members: assign.members.iter().map(member).collect(),
        process_id: id(assign.process.as_bytes()),
        position: Some(position(assign.position)),
        prev_last: assign.prev_last.as_ref().map(last),
        commit_end: assign.commit_end.0,
        lineage: assign.lineage,
        record_revision: assign.record_revision,
    }
}

pub fn read_assign(reply: pb::AssignReply) -> AssignAnswer {
    match reply.outcome {
        Some(pb::assign_reply::Outcome::Assigned(_)) => AssignAnswer::Assigned,
        Some(pb::assign_reply::Outcome::Refused(why)) => AssignAnswer::Refused(why),
        Some(pb::assign_reply::Outcome::StaleEpoch(sealed)) => AssignAnswer::StaleEpoch(Epoch(sealed)),
        None => AssignAnswer::Failed,
    }
}

pub fn step_down(spool: SpoolId, epoch: Epoch, target: CopyId) -> pb::StepDownRequest {
    pb::StepDownRequest {
        spool_id: id(spool.as_bytes()),
        epoch: epoch.0,
        target_copy_id: id(target.as_bytes()),
    }
}

pub fn read_step_down(reply: pb::StepDownReply) -> StepDownAnswer {
    match reply.outcome {
        Some(pb::step_down_reply::Outcome::SteppedDown(end)) => {
            StepDownAnswer::SteppedDown(Position::new(end.epoch, end.seq))
        }
        Some(pb::step_down_reply::Outcome::NotPrimary(_)) => StepDownAnswer::NotPrimary,
        None => StepDownAnswer::Failed,
    }
}
