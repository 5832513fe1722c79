//! Messages between copies: an envelope that says which spool and which two copies, and what one tells the other.

use super::*;
use pb::peer_message::Message;
use pb::reject::{NoMatch, Reason};
use spool::event::{Append, Confirm, PeerMessage, Reject, RejectReason};
use types::Seq;

/// A message of one copy to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    pub spool: SpoolId,
    pub lineage: u64,
    pub from: Member,
    pub to: Member,
    pub message: PeerMessage,
}

impl Envelope {
    /// Bytes that it occupies while it waits, roughly.
    pub fn weight(&self) -> usize {
        let inside = match &self.message {
            PeerMessage::Append(append) => append.entries.iter().map(|entry| entry.len() + 32).sum(),
            PeerMessage::Reject(Reject { reason: RejectReason::NoMatch { epochs, .. }, .. }) => {
                epochs.len() * 16
            }
            _ => 0,
        };
        inside + 256
    }
}

/// Who opens a stream, or answers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub node: NodeName,
    pub process: ProcessId,
}

/// One message of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    Hello(Hello),
    Copy(Envelope),
}

pub fn hello(hello: &Hello) -> pb::PeerMessage {
    let message = pb::Hello { node: hello.node.0.clone(), process_id: id(hello.process.as_bytes()) };
    pb::PeerMessage { message: Some(Message::Hello(message)), ..Default::default() }
}

pub fn envelope(envelope: Envelope) -> pb::PeerMessage {
    let Envelope { spool, lineage, from, to, message } = envelope;
    let message = match message {
        PeerMessage::Append(append) => Message::Append(write_append(append)),
        PeerMessage::Confirm(confirm) => Message::Confirm(write_confirm(&confirm)),
        PeerMessage::Reject(reject) => Message::Reject(write_reject(reject)),
        PeerMessage::Release { epoch } => Message::Release(pb::Release { epoch: epoch.0 }),
    };
    pb::PeerMessage {
        spool_id: id(spool.as_bytes()),
        lineage,
        from: Some(member(&from)),
        to: Some(member(&to)),
        message: Some(message),
    }
}

pub fn read_frame(frame: pb::PeerMessage) -> Result<Frame, WireError> {
    let message = match frame.message.ok_or(WireError::Missing { field: "message" })? {
        Message::Hello(pb::Hello { node, process_id }) => {
            let node = read_node("hello.node", node)?;
            let process = read_process("hello.process_id", &process_id)?;
            return Ok(Frame::Hello(Hello { node, process }));
        }
        Message::Append(append) => PeerMessage::Append(read_append(append)?),
        Message::Confirm(confirm) => PeerMessage::Confirm(read_confirm(&confirm)?),
        Message::Reject(reject) => PeerMessage::Reject(read_reject(reject)?),
        Message::Release(release) => PeerMessage::Release { epoch: Epoch(release.epoch) },
    };
    Ok(Frame::Copy(Envelope {
        spool: read_spool("spool_id", &frame.spool_id)?,
        lineage: frame.lineage,
        from: read_member("from", frame.from)?,
        to: read_member("to", frame.to)?,
        message,
    }))
}

fn write_append(append: Append) -> pb::Append {
    let Append { epoch, number, prev, prev_chain, entries, commit_end, trim_end } = append;
    pb::Append {
        epoch: epoch.0,
        number,
        prev: Some(position(prev)),
        prev_chain: Bytes::copy_from_slice(&prev_chain),
        entries,
        commit_end: commit_end.0,
        trim_end: trim_end.0,
    }
}

fn read_append(append: pb::Append) -> Result<Append, WireError> {
    let entries = append.entries;
    at_most("append.entries", entries.len(), limits::APPEND_ENTRIES_MAX)?;
    let bytes = entries.iter().map(Bytes::len).sum();
    if bytes > ENTRIES_BYTES_MAX {
        return Err(WireError::TooLarge { field: "append.entries", bytes, max: ENTRIES_BYTES_MAX });
    }
    Ok(Append {
        epoch: Epoch(append.epoch),
        number: append.number,
        prev: read_position("append.prev", append.prev)?,
        prev_chain: read_chain("append.prev_chain", &append.prev_chain)?,
        entries,
        commit_end: Seq(append.commit_end),
        trim_end: Seq(append.trim_end),
    })
}

fn write_confirm(confirm: &Confirm) -> pb::Confirm {
    let Confirm { process, epoch, number, end, chain, follows_version, pending_seal } = confirm;
    pb::Confirm {
        epoch: epoch.0,
        number: *number,
        end: end.0,
        chain: Bytes::copy_from_slice(chain),
        follows_version: *follows_version,
        pending_seal: pending_seal.map(|epoch| epoch.0),
        process_id: id(process.as_bytes()),
    }
}

fn read_confirm(confirm: &pb::Confirm) -> Result<Confirm, WireError> {
    Ok(Confirm {
        process: read_process("confirm.process_id", &confirm.process_id)?,
        epoch: Epoch(confirm.epoch),
        number: confirm.number,
        end: Seq(confirm.end),
        chain: read_chain("confirm.chain", &confirm.chain)?,
        follows_version: confirm.follows_version,
        pending_seal: confirm.pending_seal.map(Epoch),
    })
}

fn write_reject(reject: Reject) -> pb::Reject {
    let start = |(epoch, start): (Epoch, Seq)| pb::EpochStart { epoch: epoch.0, start: start.0 };
    let reason = match reject.reason {
        RejectReason::StaleEpoch { sealed } => Reason::StaleEpoch(sealed.0),
        RejectReason::NoMatch { epochs, end } => {
            Reason::NoMatch(NoMatch { epochs: epochs.into_iter().map(start).collect(), end: end.0 })
        }
        RejectReason::UnknownCopy => Reason::UnknownCopy(true),
        RejectReason::Damaged => Reason::Damaged(true),
        RejectReason::Busy => Reason::Busy(true),
    };
    pb::Reject { epoch: reject.epoch.0, number: reject.number, reason: Some(reason) }
}

fn read_reject(reject: pb::Reject) -> Result<Reject, WireError> {
    let reason = match reject.reason.ok_or(WireError::Missing { field: "reject.reason" })? {
        Reason::StaleEpoch(sealed) => RejectReason::StaleEpoch { sealed: Epoch(sealed) },
        Reason::NoMatch(NoMatch { epochs, end }) => {
            at_most("reject.no_match.epochs", epochs.len(), EPOCHS_MAX)?;
            let epochs = epochs.into_iter().map(|at| (Epoch(at.epoch), Seq(at.start))).collect();
            RejectReason::NoMatch { epochs, end: Seq(end) }
        }
        Reason::UnknownCopy(true) => RejectReason::UnknownCopy,
        Reason::Damaged(true) => RejectReason::Damaged,
        Reason::Busy(true) => RejectReason::Busy,
        Reason::UnknownCopy(false) | Reason::Damaged(false) | Reason::Busy(false) => {
            return Err(WireError::Range { field: "reject.reason" });
        }
    };
    Ok(Reject { epoch: Epoch(reject.epoch), number: reject.number, reason })
}
