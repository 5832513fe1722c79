//! The words of the core as protobuf, and back. Nothing else knows both.
//!
//! Reading checks everything that the core takes for granted (lengths of ids, counts, sizes) and names the field that
//! is wrong. What it takes was written by a node or a controller of this installation, but perhaps by another version.
//!
//! * [`peer`], between copies
//! * [`beat`], promises
//! * [`call`], from controllers and operators

pub mod beat;
pub mod call;
pub mod peer;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use proto::replication as pb;
use spool::event::Chain;
use spool::record::Member;
use types::{CopyId, Epoch, NodeName, Position, ProcessId, SpoolId, limits};

/// A message between nodes, encoded: an Append with the largest entry that a request can make, and room for what
/// its encoding adds.
pub const MESSAGE_BYTES_MAX: usize = 2 * limits::REQUEST_BYTES_MAX + limits::APPEND_BYTES_MAX;
/// All entries of an Append.
const ENTRIES_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 64 * 1024;
/// Epochs that a copy tells of its log.
const EPOCHS_MAX: usize = 100_000;
/// As many departures as a pair remembers.
const LEFT_MAX: usize = 8_192;
const NODE_NAME_LEN_MAX: usize = 253;

const _: () = assert!(ENTRIES_BYTES_MAX > limits::REQUEST_BYTES_MAX + limits::APPEND_BYTES_MAX);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("{field} is missing")]
    Missing { field: &'static str },
    #[error("{field} has {bytes} bytes, and must have {expected}")]
    Length { field: &'static str, bytes: usize, expected: usize },
    #[error("{field} has {bytes} bytes; at most {max} are taken")]
    TooLarge { field: &'static str, bytes: usize, max: usize },
    #[error("{field} has {count} items; at most {max} are taken")]
    TooMany { field: &'static str, count: usize, max: usize },
    #[error("{field} is out of its range")]
    Range { field: &'static str },
}

impl From<WireError> for tonic::Status {
    fn from(error: WireError) -> tonic::Status {
        tonic::Status::invalid_argument(error.to_string())
    }
}

fn id(bytes: &[u8; 16]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn length(field: &'static str, bytes: &Bytes, expected: usize) -> WireError {
    match bytes.is_empty() {
        true => WireError::Missing { field },
        false => WireError::Length { field, bytes: bytes.len(), expected },
    }
}

macro_rules! read_id {
    ($($name:ident: $id:ident),*) => {$(
        fn $name(field: &'static str, bytes: &Bytes) -> Result<$id, WireError> {
            $id::from_slice(bytes).ok_or_else(|| length(field, bytes, 16))
        }
    )*};
}
read_id!(read_spool: SpoolId, read_copy: CopyId, read_process: ProcessId);

fn read_bytes<const N: usize>(field: &'static str, bytes: &Bytes) -> Result<[u8; N], WireError> {
    bytes.as_ref().try_into().map_err(|_| length(field, bytes, N))
}

fn read_chain(field: &'static str, bytes: &Bytes) -> Result<Chain, WireError> {
    read_bytes::<32>(field, bytes)
}

pub fn read_node(field: &'static str, name: String) -> Result<NodeName, WireError> {
    match name.len() {
        0 => Err(WireError::Missing { field }),
        bytes if bytes > NODE_NAME_LEN_MAX => {
            Err(WireError::TooLarge { field, bytes, max: NODE_NAME_LEN_MAX })
        }
        _ => Ok(NodeName(name)),
    }
}

fn at_most(field: &'static str, count: usize, max: usize) -> Result<(), WireError> {
    if count > max { Err(WireError::TooMany { field, count, max }) } else { Ok(()) }
}

fn member(member: &Member) -> pb::Member {
    pb::Member { node: member.node.0.clone(), copy_id: id(member.copy.as_bytes()) }
}

fn read_member(field: &'static str, member: Option<pb::Member>) -> Result<Member, WireError> {
    let member = member.ok_or(WireError::Missing { field })?;
    Ok(Member { node: read_node(field, member.node)?, copy: read_copy(field, &member.copy_id)? })
}

fn position(position: Position) -> pb::Position {
    pb::Position { epoch: position.epoch.0, seq: position.seq.0 }
}

fn read_position(field: &'static str, position: Option<pb::Position>) -> Result<Position, WireError> {
    let pb::Position { epoch, seq } = position.ok_or(WireError::Missing { field })?;
    Ok(Position { epoch: Epoch(epoch), seq: types::Seq(seq) })
}
