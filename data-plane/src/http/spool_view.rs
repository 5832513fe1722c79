//! A spool as its owner sees it, from its primary's copy or from what etcd says.

use super::respond::time;
use crate::directory::SpoolEntry;
use crate::membership::Routing;
use serde_json::{Value, json};
use spool::event::{CopyStatus, PeerStatus, RoleStatus};
use spool::record::{Phase, Record};
use types::SpoolId;

/// What the primary's copy says.
pub fn from_primary(entry: &SpoolEntry, status: &CopyStatus) -> Value {
    let (serving, epoch) = match status.role {
        RoleStatus::Serving(epoch) => (true, epoch.0),
        RoleStatus::TakingOver(epoch) => (false, epoch.0),
        RoleStatus::Follower => (false, 0),
    };
    let reachable = status.peers.iter().filter(|peer| peer.reachable).count();
    let state = match (serving, reachable >= entry.num_sync as usize) {
        (true, true) => "serving",
        (true, false) => "confirming_blocked",
        (false, _) => "electing",
    };
    let own = json!({
        "alias": status.node.to_string(), "role": "primary", "reachable": true,
        "confirmedPosition": status.position.to_string(), "behindEntries": 0, "behindSeconds": 0,
    });
    let others = status.peers.iter().map(peer);
    let copies: Vec<Value> = std::iter::once(own).chain(others).collect();
    let away = status.peers.iter().filter(|peer| !peer.reachable).map(|peer| peer.member.node.to_string());
    let waiting_for: Vec<String> = if state == "serving" { Vec::new() } else { away.collect() };
    view(entry, state, epoch, &waiting_for, status.waiting_writes, copies)
}

fn peer(peer: &PeerStatus) -> Value {
    json!({
        "alias": peer.member.node.to_string(), "role": "copy", "reachable": peer.reachable,
        "confirmedPosition": peer.confirmed.to_string(), "behindEntries": peer.behind_entries,
        "behindSeconds": peer.behind_ms as f64 / 1000.0,
    })
}

/// Where no primary can be asked.
pub fn from_record(entry: &SpoolEntry, spool: SpoolId, routing: &Routing) -> Value {
    let (record, waiting) = (routing.record(spool), routing.waiting(spool));
    let waiting_for: Vec<String> =
        waiting.into_iter().flat_map(|waiting| waiting.waiting_for).map(|node| node.to_string()).collect();
    let Some(record) = record else { return view(entry, "placing", 0, &waiting_for, 0, Vec::new()) };
    let state = match record.phase {
        _ if !waiting_for.is_empty() => "no_primary",
        Phase::Electing | Phase::Assigned => "electing",
        // It says that somebody serves, and nobody answers.
        Phase::Active => "no_primary",
    };
    view(entry, state, record.epoch.0, &waiting_for, 0, listed(&record))
}

fn listed(record: &Record) -> Vec<Value> {
    let copy = |member: &spool::record::Member| {
        json!({
            "alias": member.node.to_string(), "role": "copy", "reachable": false, "confirmedPosition": "0.0",
            "behindEntries": 0, "behindSeconds": 0,
        })
    };
    record.members.iter().map(copy).collect()
}

fn view(
    entry: &SpoolEntry,
    state: &str,
    epoch: u64,
    waiting_for: &[String],
    waiting_writes: u64,
    copies: Vec<Value>,
) -> Value {
    json!({
        "name": entry.name, "numReplicas": entry.num_replicas, "numSync": entry.num_sync,
        "createdAt": time(entry.created), "state": state, "epoch": epoch,
        "writableWithOneNodeLost": entry.num_replicas >= entry.num_sync + 2,
        "waitingFor": waiting_for, "waitingWrites": waiting_writes, "copies": copies,
    })
}
