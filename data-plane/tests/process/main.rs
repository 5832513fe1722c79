//! The program itself: nodes as an installation starts them.

mod control;
mod installation;

use installation::{Installation, until};
use spool::record::Member;
use std::time::{Duration, Instant};
use types::Epoch;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_ready_takes_over_ends_in_order_and_comes_back() {
    let installation = Installation::start().await;
    let mut node = installation.node(1).started().await;
    assert_eq!(node.get("/healthz").await.map(|(status, _)| status), Some(200));
    let member = node.create_copy(1, 0).await;
    assert_eq!(node.create_copy(1, 0).await, member, "the same spool again is the same copy");
    installation.elect(1, 0, &[&node], std::slice::from_ref(&member)).await;
    let (_, metrics) = node.get("/metrics").await.expect("metrics");
    assert!(metrics.contains("capstan_copies{role=\"primary\"} 1\n"), "{metrics}");

    node.end().await;
    let alive = installation.etcd().await.get("/nodes/node-1/alive", None).await.expect("an answer");
    assert!(alive.kvs().is_empty(), "its alive key went with it");

    let begun = Instant::now();
    node.start();
    node.is_ready().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    installation.elect(2, 0, &[&node], &[member]).await;
    assert_eq!(installation.record().await.epoch, Epoch(2));
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_copies_confirm_promise_and_replace_their_primary() {
    let installation = Installation::start().await;
    let (one, two, three) = tokio::join!(
        installation.node(1).started(),
        installation.node(2).started(),
        installation.node(3).started()
    );
    let (mut one, mut two) = (one, two);
    let members: Vec<Member> =
        vec![one.create_copy(3, 1).await, two.create_copy(3, 1).await, three.create_copy(3, 1).await];
    let primary = installation.elect(1, 1, &[&one, &two, &three], &members).await;
    assert_eq!(primary, members[0], "all are equal: the first");
    until("the barrier is confirmed by all", async || {
        let status = one.status().await;
        let confirmed = |peer: &proto::replication::PeerStatus| peer.reachable && peer.behind_entries == 0;
        status.role == "serving" && status.peers.len() == 2 && status.peers.iter().all(confirmed)
    })
    .await;
    until("superseded", async || installation.record().await.prev.is_empty()).await;

    one.kill();
    let begun = Instant::now();
    let primary = installation.elect(2, 1, &[&two, &three], &members).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(6), "sealing waits for promises of 1.5 s: {took:?}");
    assert_eq!(primary, members[1]);
    until("it serves with one other copy", async || two.status().await.role == "serving").await;

    one.start();
    until("the one that comes back catches up", async || {
        let peers = two.status().await.peers;
        peers.len() == 2 && peers.iter().all(|peer| peer.reachable && peer.behind_entries == 0)
    })
    .await;
    two.end().await;
    let primary = installation.elect(3, 1, &[&one, &three], &members).await;
    assert_ne!(primary, members[1]);
    let leader = if primary == members[0] { &one } else { &three };
    until("it serves", async || leader.status().await.role == "serving").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_etcd_a_primary_serves_on_and_a_node_starts() {
    let mut installation = Installation::start().await;
    let mut node = installation.node(1).started().await;
    let mut idle = installation.node(2).started().await;
    let member = node.create_copy(1, 0).await;
    installation.elect(1, 0, &[&node], &[member]).await;
    // Taking over needs etcd; serving does not.
    until("it serves", async || node.status().await.role == "serving").await;
    installation.stop_etcd();
    idle.kill();
    idle.start();
    until("it answers", async || idle.get("/healthz").await.is_some_and(|(status, _)| status == 200)).await;
    let (status, missing) = idle.get("/readyz").await.expect("an answer");
    assert_eq!(status, 503);
    assert!(missing.contains("etcd was not read yet"), "{missing}");
    // Longer than the etcd lease.
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        assert_eq!(node.status().await.role, "serving");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(node.says_ready().await, "it was ready, and still serves");
    node.end().await;
}
