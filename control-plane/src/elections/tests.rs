//! The whole shell: a real etcd, and nodes that speak the real protocol over mTLS and keep simple copies.

pub mod fake;

use fake::{Cluster, NODES};
use spool::record::{Phase, Record};
use std::collections::HashMap;
use types::{Epoch, NodeName, SpoolId};

use super::MoveError;
use crate::claims::Versioned;

fn spool(i: u128) -> SpoolId {
    SpoolId::from_u128(i)
}

fn primary(record: &Record) -> NodeName {
    record.last.as_ref().expect("elected").member.node.clone()
}

fn other_than(nodes: &[&NodeName]) -> NodeName {
    NODES.map(NodeName::from).into_iter().find(|node| !nodes.contains(&node)).expect("another")
}

#[tokio::test]
async fn a_new_spool_gets_a_primary() {
    let cluster = Cluster::start().await;
    let elections = cluster.elections();
    cluster.create(spool(1), 3, 1).await;
    elections.kick(spool(1));
    let record = cluster.until_active(spool(1), Epoch(1)).await;
    assert_eq!(record.epoch, Epoch(1));
    assert_eq!(record.lineage, 0);
}

#[tokio::test]
async fn a_primary_whose_node_is_gone_is_replaced() {
    let cluster = Cluster::start().await;
    let elections = cluster.elections();
    cluster.create(spool(1), 3, 1).await;
    let before = cluster.until_active(spool(1), Epoch(1)).await;
    cluster.kill(&primary(&before)).await;
    elections.suspect(primary(&before), true);
    let after = cluster.until_active(spool(1), Epoch(2)).await;
    assert_ne!(primary(&after), primary(&before));
}

#[tokio::test]
async fn a_primary_whose_node_stands_still_is_replaced_though_nobody_reports_it() {
    let cluster = Cluster::start().await;
    let _elections = cluster.elections();
    cluster.create(spool(1), 3, 1).await;
    let before = cluster.until_active(spool(1), Epoch(1)).await;
    cluster.freeze(&primary(&before));
    let after = cluster.until_active(spool(1), Epoch(2)).await;
    assert_ne!(primary(&after), primary(&before));
}

#[tokio::test]
async fn a_restarted_node_is_noticed_by_its_process() {
    let cluster = Cluster::start().await;
    let _elections = cluster.elections();
    cluster.create(spool(1), 1, 0).await;
    cluster.create(spool(2), 3, 2).await;
    let one = cluster.until_active(spool(1), Epoch(1)).await;
    cluster.until_active(spool(2), Epoch(1)).await;
    cluster.restart(&primary(&one)).await;
    let again = cluster.until_active(spool(1), Epoch(2)).await;
    assert_eq!(primary(&again), primary(&one), "no other node has a copy");
}

#[tokio::test]
async fn who_is_waited_for_is_published_until_they_return() {
    let cluster = Cluster::start().await;
    let elections = cluster.elections();
    cluster.create(spool(1), 3, 1).await;
    let before = cluster.until_active(spool(1), Epoch(1)).await;
    let gone = primary(&before);
    let other = other_than(&[&gone]);
    cluster.kill(&gone).await;
    cluster.kill(&other).await;
    elections.suspect(gone.clone(), true);
    let status = cluster.until(|| cluster.etcd.status(spool(1)), |status| status.is_some()).await;
    let mut waiting_for = status.expect("published").waiting_for;
    waiting_for.sort();
    let mut expected = vec![gone.clone(), other.clone()];
    expected.sort();
    assert_eq!(waiting_for, expected);
    // One copy that lacks nothing it knows of must not serve alone, and no epoch is spent on it.
    assert_eq!(cluster.record(spool(1)).await.value.epoch, Epoch(1));
    cluster.restart(&other).await;
    cluster.until_active(spool(1), Epoch(2)).await;
    cluster.until(|| cluster.etcd.status(spool(1)), Option::is_none).await;
}

#[tokio::test]
async fn a_primary_is_moved_on_request() {
    let cluster = Cluster::start().await;
    let elections = cluster.elections();
    cluster.create(spool(1), 3, 1).await;
    let before = cluster.until_active(spool(1), Epoch(1)).await;
    let target = other_than(&[&primary(&before)]);
    let moved = elections.move_primary(spool(1), Some(target.clone())).await.expect("moved");
    assert_eq!((moved.from, moved.to.clone()), (primary(&before), target.clone()));
    assert_eq!(primary(&cluster.record(spool(1)).await.value), target);
    let anywhere = elections.move_primary(spool(1), None).await.expect("moved");
    assert_eq!(anywhere.from, target);
    assert_ne!(anywhere.to, target);
    let nowhere = elections.move_primary(spool(1), Some("node-9".into())).await;
    assert_eq!(nowhere, Err(MoveError::NotAMember { node: "node-9".into() }));
    assert_eq!(elections.move_primary(spool(9), None).await, Err(MoveError::NoSuchSpool));
}

#[tokio::test]
async fn two_control_planes_at_once_elect_one_primary_an_epoch() {
    let cluster = Cluster::start().await;
    let all: Vec<SpoolId> = (1..=40).map(spool).collect();
    for spool in &all {
        cluster.create(*spool, 3, 1).await;
    }
    let pair = [cluster.elections(), cluster.elections()];
    for spool in &all {
        cluster.until_active(*spool, Epoch(1)).await;
    }
    let victim = primary(&cluster.record(spool(1)).await.value);
    cluster.kill(&victim).await;
    for elections in &pair {
        elections.suspect(victim.clone(), true);
    }
    for spool in &all {
        let record = cluster.until_active(*spool, Epoch(1)).await;
        assert!(record.epoch < Epoch(6), "{} epochs", record.epoch);
        let moved = |record: &Record| record.phase == Phase::Active && primary(record) != victim;
        let gone = |record: &Option<Versioned<Record>>| record.as_ref().is_some_and(|r| moved(&r.value));
        cluster.until(|| cluster.etcd.record(*spool), gone).await;
    }
    cluster.assert_one_primary_an_epoch();
}

#[tokio::test]
async fn a_control_plane_that_dies_in_an_election_is_replaced() {
    let cluster = Cluster::start().await;
    let all: Vec<SpoolId> = (1..=20).map(spool).collect();
    for spool in &all {
        cluster.create(*spool, 3, 1).await;
    }
    for life in 0..4 {
        let elections = cluster.elections();
        // Until some are somewhere within an election.
        let begun = |records: &Vec<Versioned<Record>>| {
            records.iter().filter(|record| record.value.epoch > Epoch(0)).count() > life * 5
        };
        cluster.until(|| cluster.etcd.records(), begun).await;
        drop(elections);
    }
    let _elections = cluster.elections();
    for spool in &all {
        cluster.until_active(*spool, Epoch(1)).await;
    }
    cluster.assert_one_primary_an_epoch();
}

#[tokio::test]
async fn a_thousand_spools_are_elected_and_fail_over() {
    let cluster = Cluster::start().await;
    let all: Vec<SpoolId> = (1..=1_000).map(spool).collect();
    cluster.create_all(&all, 3, 1).await;
    let elections = cluster.elections();
    let active = |records: &Vec<Versioned<Record>>| {
        records.iter().filter(|record| record.value.phase == Phase::Active).count() == all.len()
    };
    let records = cluster.until(|| cluster.etcd.records(), active).await;
    let mut primaries: HashMap<NodeName, usize> = HashMap::new();
    for record in &records {
        *primaries.entry(primary(&record.value)).or_default() += 1;
    }
    let (victim, _) = primaries.into_iter().max_by_key(|(_, spools)| *spools).expect("primaries");
    cluster.kill(&victim).await;
    elections.suspect(victim.clone(), true);
    let moved = |records: &Vec<Versioned<Record>>| {
        let good = |record: &Record| record.phase == Phase::Active && primary(record) != victim;
        records.iter().filter(|record| good(&record.value)).count() == all.len()
    };
    cluster.until(|| cluster.etcd.records(), moved).await;
    cluster.assert_one_primary_an_epoch();
}
