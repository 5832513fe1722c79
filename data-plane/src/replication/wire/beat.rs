//! Promises: a beat, and its answer.

use super::*;
use spool::promise::{Beat, BeatReply};
use types::WallMs;

pub fn beat(node: &NodeName, beat: &Beat) -> pb::Beat {
    let (seen_process_id, seen_version) = match beat.seen {
        Some((process, version)) => (id(process.as_bytes()), version),
        None => (Bytes::new(), 0),
    };
    pb::Beat {
        process_id: id(beat.process.as_bytes()),
        number: beat.number,
        seen_process_id,
        seen_version,
        healthy: beat.healthy,
        node: node.0.clone(),
    }
}

pub fn read_beat(beat: pb::Beat) -> Result<(NodeName, Beat), WireError> {
    let seen = match beat.seen_process_id.is_empty() {
        true => None,
        false => Some((read_process("seen_process_id", &beat.seen_process_id)?, beat.seen_version)),
    };
    let process = read_process("process_id", &beat.process_id)?;
    let node = read_node("node", beat.node)?;
    Ok((node, Beat { process, number: beat.number, seen, healthy: beat.healthy }))
}

pub fn reply(reply: &BeatReply) -> pb::BeatReply {
    pb::BeatReply {
        process_id: id(reply.process.as_bytes()),
        to_process_id: id(reply.to.as_bytes()),
        number: reply.number,
        version: reply.version,
        left: reply.left.iter().map(|spool| id(spool.as_bytes())).collect(),
        left_all: reply.left_all,
        wall_ms: reply.wall.0,
    }
}

pub fn read_reply(reply: &pb::BeatReply) -> Result<BeatReply, WireError> {
    at_most("left", reply.left.len(), LEFT_MAX)?;
    Ok(BeatReply {
        process: read_process("process_id", &reply.process_id)?,
        to: read_process("to_process_id", &reply.to_process_id)?,
        number: reply.number,
        version: reply.version,
        left: reply.left.iter().map(|spool| read_spool("left", spool)).collect::<Result<_, _>>()?,
        left_all: reply.left_all,
        wall: WallMs(reply.wall_ms),
    })
}
