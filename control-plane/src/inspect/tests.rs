//! Against a real etcd and nodes that speak the real protocol.

use super::view::State;
use super::*;
use crate::elections::tests::fake::{Cluster, NODES};
use proto::control;
use types::Epoch;

const SPOOL: SpoolId = SpoolId::from_u128(1);

fn inspector(cluster: &Cluster) -> Inspector {
    Inspector::new(cluster.etcd.clone(), cluster.clients())
}

async fn until(inspector: &Inspector, state: State) -> SpoolView {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let view = inspector.spool(SPOOL).await.expect("etcd answers");
        if view.state == state {
            return view;
        }
        assert!(tokio::time::Instant::now() < deadline, "not {state}: {view:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn primary(view: &SpoolView) -> NodeName {
    let primary = view.copies.iter().find(|copy| copy.role == Role::Primary);
    primary.expect("a primary").member.node.clone()
}

#[tokio::test]
async fn a_spool_without_a_record_is_being_placed() {
    let cluster = Cluster::start().await;
    let view = inspector(&cluster).spool(SPOOL).await.expect("etcd answers");
    assert_eq!((view.state, view.epoch(), view.copies.len()), (State::Placing, Epoch(0), 0));
}

#[tokio::test]
async fn a_served_spool_shows_its_primary_and_how_far_copies_are() {
    let cluster = Cluster::start().await;
    cluster.create(SPOOL, 3, 1).await;
    let view = until(&inspector(&cluster), State::Electing).await;
    assert!(view.copies.iter().all(|copy| copy.role == Role::Copy && copy.answers));
    let elections = cluster.elections();
    elections.kick(SPOOL);
    let view = until(&inspector(&cluster), State::Serving).await;
    assert!(view.epoch() >= Epoch(1));
    for copy in &view.copies {
        assert!(copy.reachable && copy.answers);
        assert_eq!(copy.confirmed.map(|position| position.epoch), Some(view.epoch()));
    }
    assert!(view.waiting_for.is_empty());
    assert_eq!(view.copies.iter().filter(|copy| copy.role == Role::Primary).count(), 1);
}

#[tokio::test]
async fn writes_that_need_a_copy_that_is_gone_are_blocked() {
    let cluster = Cluster::start().await;
    let _elections = cluster.elections();
    cluster.create(SPOOL, 3, 2).await;
    let inspector = inspector(&cluster);
    let before = until(&inspector, State::Serving).await;
    let gone = NODES.map(NodeName::from).into_iter().find(|node| *node != primary(&before)).expect("another");
    cluster.kill(&gone).await;
    let view = until(&inspector, State::ConfirmingBlocked).await;
    let copy = view.copies.iter().find(|copy| copy.member.node == gone).expect("a member");
    assert!(!copy.reachable && !copy.answers);
    assert!(copy.confirmed.is_some(), "the primary knows how far it was");
}

#[tokio::test]
async fn without_an_electable_set_it_says_for_whom_it_waits() {
    let cluster = Cluster::start().await;
    cluster.create(SPOOL, 3, 1).await;
    let inspector = inspector(&cluster);
    let before = {
        let elections = cluster.elections();
        elections.kick(SPOOL);
        until(&inspector, State::Serving).await
    };
    // No control plane elects, so what is waited for is computed here.
    let gone = primary(&before);
    let other = NODES.map(NodeName::from).into_iter().find(|node| *node != gone).expect("another");
    cluster.kill(&gone).await;
    until(&inspector, State::Electing).await;
    cluster.kill(&other).await;
    let view = until(&inspector, State::NoPrimary).await;
    let mut waiting_for = view.waiting_for.clone();
    waiting_for.sort();
    let mut expected = vec![gone, other];
    expected.sort();
    assert_eq!(waiting_for, expected);
}

#[tokio::test]
async fn a_spool_whose_nodes_all_lost_their_disks_is_lost() {
    let cluster = Cluster::start().await;
    cluster.create(SPOOL, 3, 1).await;
    let inspector = inspector(&cluster);
    for node in NODES {
        assert_ne!(inspector.spool(SPOOL).await.expect("etcd answers").state, State::Lost);
        cluster.wipe(&node.into());
    }
    until(&inspector, State::Lost).await;
}

#[tokio::test]
async fn a_node_that_stands_still_costs_a_second_and_no_more() {
    let cluster = Cluster::start().await;
    let _elections = cluster.elections();
    cluster.create(SPOOL, 3, 1).await;
    let inspector = inspector(&cluster);
    let before = until(&inspector, State::Serving).await;
    let still =
        NODES.map(NodeName::from).into_iter().find(|node| *node != primary(&before)).expect("another");
    cluster.freeze(&still);
    let began = tokio::time::Instant::now();
    let view = inspector.spool(SPOOL).await.expect("etcd answers");
    assert!(began.elapsed() < STATUS_WAIT * 2, "{:?}", began.elapsed());
    assert!(view.copies.iter().any(|copy| copy.member.node == still && !copy.answers));
}

#[tokio::test]
async fn customers_see_aliases_and_never_a_nodes_name() {
    let cluster = Cluster::start().await;
    cluster.create(SPOOL, 3, 1).await;
    let inspector = inspector(&cluster);
    for node in &NODES[..2] {
        cluster.kill(&(*node).into()).await;
    }
    let view = until(&inspector, State::NoPrimary).await;
    let row = control::Spool { name: "default".to_owned(), ..control::Spool::default() };
    let detail = view.detail(row.clone(), Aliases::Numbers);
    assert_eq!(detail.waiting_for, ["copy-1", "copy-2"]);
    assert!(!format!("{detail:?}").contains("node"), "{detail:?}");
    assert_eq!(view.detail(row, Aliases::NodeNames).copies[2].alias, "node-3");
}
