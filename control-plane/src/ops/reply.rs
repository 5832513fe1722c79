//! What operators are told, as messages.

use proto::ops as pb;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{NodeName, Position};

use crate::claims::Alive;
use crate::elections::Moved;
use crate::inspect::{CopyView, Role, SpoolView};
use crate::reconcile::Named;
use spool::record::{Phase, Record};

/// Nodes that are alive, and those that only records know of.
pub fn nodes(alive: Vec<(NodeName, Alive)>, records: &[Record]) -> Vec<pb::Node> {
    let mut nodes: BTreeMap<NodeName, pb::Node> = BTreeMap::new();
    for (name, alive) in alive {
        let node = pb::Node {
            name: name.to_string(),
            alive: true,
            process_id: alive.process_id.to_string(),
            heartbeat_no: alive.hb_no,
            http_address: alive.http,
            internal_address: alive.internal,
            copies: 0,
            primaries: 0,
        };
        nodes.insert(name, node);
    }
    for record in records {
        for member in &record.members {
            let node = nodes
                .entry(member.node.clone())
                .or_insert_with(|| pb::Node { name: member.node.to_string(), ..pb::Node::default() });
            node.copies += 1;
            let last = record.last.as_ref().is_some_and(|last| last.member == *member);
            node.primaries += u32::from(last && record.phase == Phase::Active);
        }
    }
    nodes.into_values().collect()
}

pub fn spool(view: &SpoolView, named: Option<&Named>) -> pb::Spool {
    let record = view.record.as_ref();
    let (n, k) = record.map(|r| (r.n, r.k)).or_else(|| named.map(|row| (row.n, row.k))).unwrap_or_default();
    pb::Spool {
        id: view.spool.to_string(),
        account_id: named.map(|row| row.account.to_string()).unwrap_or_default(),
        account_name: named.map(|row| row.account_name.clone()).unwrap_or_default(),
        name: named.map(|row| row.name.clone()).unwrap_or_default(),
        num_replicas: n.into(),
        num_sync: k.into(),
        state: view.state.as_str().to_owned(),
        phase: record.map_or("none", |record| phase(record.phase)).to_owned(),
        epoch: view.epoch().0,
        lineage: record.map_or(0, |record| record.lineage),
        waiting_for: view.waiting_for.iter().map(NodeName::to_string).collect(),
        copies: view.copies.iter().map(copy).collect(),
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Electing => "electing",
        Phase::Assigned => "assigned",
        Phase::Active => "active",
    }
}

fn copy(copy: &CopyView) -> pb::Copy {
    let text = |position: Option<Position>| position.map(|p| p.to_string()).unwrap_or_default();
    pb::Copy {
        node: copy.member.node.to_string(),
        copy_id: copy.member.copy.to_string(),
        primary: copy.role == Role::Primary,
        answers: copy.answers,
        position: text(copy.position),
        confirmed: text(copy.confirmed),
        behind_entries: copy.behind_entries,
    }
}

pub fn moved(moved: Moved, took: Duration) -> pb::MovePrimaryReply {
    pb::MovePrimaryReply {
        from_node: moved.from.to_string(),
        to_node: moved.to.to_string(),
        epoch: moved.epoch.0,
        took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    }
}
