//! Calls of controllers and operators: what they ask is read, what a copy answers is written.

use super::*;
use crate::store::NewCopy;
use pb::assign_reply::Outcome as AssignOutcome;
use pb::seal_reply::Outcome as SealOutcome;
use pb::step_down_reply::Outcome as StepDownOutcome;
use spool::event::{Assign, Call, CallReply, CopyStatus, PeerStatus, Probed, RoleStatus, Sealed};
use spool::record::Last;
use spool::token::TokenKey;
use types::{AccountId, Seq, SpoolName, WallMs};

/// Whom a call is for. Without a copy it is for whichever this node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whom {
    pub spool: SpoolId,
    pub copy: Option<CopyId>,
}

/// A copy gave an answer that does not belong to the question: a defect of ours.
#[derive(Debug, thiserror::Error)]
#[error("a copy answered {call} with {answer}")]
pub struct WrongAnswer {
    call: &'static str,
    answer: String,
}

impl WrongAnswer {
    fn new(call: &'static str, answer: &CallReply) -> WrongAnswer {
        WrongAnswer { call, answer: format!("{answer:?}") }
    }
}

fn whom(spool: &Bytes, copy: &Bytes) -> Result<Whom, WireError> {
    Ok(Whom { spool: read_spool("spool_id", spool)?, copy: Some(read_copy("copy_id", copy)?) })
}

pub fn read_seal(request: &pb::SealRequest) -> Result<(Whom, Call), WireError> {
    Ok((whom(&request.spool_id, &request.copy_id)?, Call::Seal { epoch: Epoch(request.epoch) }))
}

/// `None`: this node has no such copy.
pub fn seal_reply(reply: Option<CallReply>) -> Result<pb::SealReply, WrongAnswer> {
    let outcome = match reply {
        Some(CallReply::Sealed(sealed)) => SealOutcome::Sealed(write_sealed(&sealed)),
        Some(CallReply::StaleEpoch { sealed }) => SealOutcome::StaleEpoch(sealed.0),
        Some(other) => return Err(WrongAnswer::new("a seal", &other)),
        None => SealOutcome::UnknownCopy(true),
    };
    Ok(pb::SealReply { outcome: Some(outcome) })
}

fn write_sealed(sealed: &Sealed) -> pb::Sealed {
    let Sealed { epoch, copy, process, authoritative, position: at, chain, commit_end, lineage } = sealed;
    pb::Sealed {
        epoch: epoch.0,
        copy_id: id(copy.as_bytes()),
        process_id: id(process.as_bytes()),
        authoritative: *authoritative,
        position: Some(position(*at)),
        chain: Bytes::copy_from_slice(chain),
        commit_end: commit_end.0,
        lineage: *lineage,
    }
}

pub fn read_assign(request: pb::AssignRequest) -> Result<(Whom, Call), WireError> {
    let whom = whom(&request.spool_id, &request.copy_id)?;
    at_most("members", request.members.len(), limits::REPLICAS_MAX.into())?;
    let members = request.members.into_iter().map(|member| read_member("members", Some(member)));
    let assign = Assign {
        epoch: Epoch(request.epoch),
        members: members.collect::<Result<_, _>>()?,
        process: read_process("process_id", &request.process_id)?,
        position: read_position("position", request.position)?,
        prev_last: request.prev_last.map(read_last).transpose()?,
        commit_end: Seq(request.commit_end),
        lineage: request.lineage,
        record_revision: request.record_revision,
    };
    Ok((whom, Call::Assign(assign)))
}

fn read_last(last: pb::Last) -> Result<Last, WireError> {
    Ok(Last {
        epoch: Epoch(last.epoch),
        member: read_member("prev_last.member", last.member)?,
        process: read_process("prev_last.process_id", &last.process_id)?,
        position: read_position("prev_last.position", last.position)?,
    })
}

pub fn assign_reply(reply: Option<CallReply>) -> Result<pb::AssignReply, WrongAnswer> {
    let outcome = match reply {
        Some(CallReply::Assigned) => AssignOutcome::Assigned(true),
        Some(CallReply::AssignRefused { why }) => AssignOutcome::Refused(why),
        Some(CallReply::StaleEpoch { sealed }) => AssignOutcome::StaleEpoch(sealed.0),
        Some(other) => return Err(WrongAnswer::new("an assignment", &other)),
        None => AssignOutcome::Refused("this node has no such copy".to_owned()),
    };
    Ok(pb::AssignReply { outcome: Some(outcome) })
}

pub fn read_probe(request: &pb::ProbeRequest) -> Result<(Whom, Call), WireError> {
    Ok((whom(&request.spool_id, &request.copy_id)?, Call::Probe))
}

pub fn probe_reply(reply: Option<CallReply>) -> Result<pb::ProbeReply, WrongAnswer> {
    let probed = match reply {
        Some(CallReply::Probed(probed)) => probed,
        Some(other) => return Err(WrongAnswer::new("a probe", &other)),
        None => return Ok(pb::ProbeReply { unknown_copy: true, ..Default::default() }),
    };
    let Probed { copy, sealed, serving, leading, heard, primary_refused, position: at } = probed;
    Ok(pb::ProbeReply {
        unknown_copy: false,
        copy_id: id(copy.as_bytes()),
        sealed: sealed.0,
        serving: serving.map(|epoch| epoch.0),
        leading: leading.map(|epoch| epoch.0),
        heard_ms_ago: heard.map(|ago| u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)),
        primary_refused,
        position: Some(position(at)),
    })
}

pub fn read_step_down(request: &pb::StepDownRequest) -> Result<(Whom, Call), WireError> {
    let spool = read_spool("spool_id", &request.spool_id)?;
    let target = match request.target_copy_id.is_empty() {
        true => None,
        false => Some(read_copy("target_copy_id", &request.target_copy_id)?),
    };
    Ok((Whom { spool, copy: None }, Call::StepDown { epoch: Epoch(request.epoch), target }))
}

pub fn step_down_reply(reply: Option<CallReply>) -> Result<pb::StepDownReply, WrongAnswer> {
    let outcome = match reply {
        Some(CallReply::SteppedDown { position: at }) => StepDownOutcome::SteppedDown(position(at)),
        Some(CallReply::NotPrimary { sealed } | CallReply::StaleEpoch { sealed }) => {
            StepDownOutcome::NotPrimary(sealed.0)
        }
        Some(other) => return Err(WrongAnswer::new("a step-down", &other)),
        // No copy here, so no primary.
        None => StepDownOutcome::NotPrimary(0),
    };
    Ok(pb::StepDownReply { outcome: Some(outcome) })
}

/// The spools that are asked for; none: all.
pub fn read_status(request: &pb::StatusRequest, spools_max: usize) -> Result<Vec<SpoolId>, WireError> {
    at_most("spool_ids", request.spool_ids.len(), spools_max)?;
    request.spool_ids.iter().map(|spool| read_spool("spool_ids", spool)).collect()
}

pub fn status_reply(reply: CallReply) -> Result<pb::CopyStatus, WrongAnswer> {
    match reply {
        CallReply::Status(status) => Ok(write_status(*status)),
        other => Err(WrongAnswer::new("a question for its state", &other)),
    }
}

fn write_status(status: CopyStatus) -> pb::CopyStatus {
    let (role, role_epoch) = match status.role {
        RoleStatus::Follower => ("follower", Epoch(0)),
        RoleStatus::TakingOver(epoch) => ("taking_over", epoch),
        RoleStatus::Serving(epoch) => ("serving", epoch),
    };
    let peer = |peer: PeerStatus| pb::PeerStatus {
        member: Some(member(&peer.member)),
        reachable: peer.reachable,
        confirmed: Some(position(peer.confirmed)),
        behind_entries: peer.behind_entries,
        behind_ms: peer.behind_ms,
    };
    pb::CopyStatus {
        spool_id: id(status.spool.as_bytes()),
        copy_id: id(status.copy.as_bytes()),
        node: status.node.0,
        role: role.to_owned(),
        role_epoch: role_epoch.0,
        sealed: status.sealed.0,
        position: Some(position(status.position)),
        commit_end: status.commit_end.0,
        applied_end: status.applied_end.0,
        trim_end: status.trim_end.0,
        waiting_writes: status.waiting_writes,
        peers: status.peers.into_iter().map(peer).collect(),
    }
}

pub fn read_create_copy(request: pb::CreateCopyRequest) -> Result<NewCopy, WireError> {
    let account = &request.account_id;
    let (n, k) = (request.num_replicas, request.num_sync);
    let n = u8::try_from(n).ok().filter(|n| (1..=limits::REPLICAS_MAX).contains(n));
    let n = n.ok_or(WireError::Range { field: "num_replicas" })?;
    let k = u8::try_from(k).ok().filter(|k| *k < n).ok_or(WireError::Range { field: "num_sync" })?;
    Ok(NewCopy {
        spool: read_spool("spool_id", &request.spool_id)?,
        account: AccountId::from_slice(account).ok_or_else(|| length("account_id", account, 16))?,
        name: SpoolName::try_from(request.name).map_err(|_| WireError::Range { field: "name" })?,
        n,
        k,
        token_key: TokenKey(read_bytes::<32>("token_key", &request.token_key)?),
        created: WallMs(request.created_ms),
    })
}

pub fn create_copy_reply(copy: CopyId) -> pb::CreateCopyReply {
    pb::CreateCopyReply { copy_id: id(copy.as_bytes()) }
}
