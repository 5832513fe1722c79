//! Every node serves the whole API: a request to one that is not the primary has the same answer.

use cluster::harness::{Cluster, drain};
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn each_node_that_is_not_the_primary_answers_as_the_primary_does() {
    let cluster = Cluster::start(3).await.expect("it starts");
    let primary = cluster.primary_of("default").await.expect("a primary");
    let others = cluster.others(primary);
    assert_eq!(others.len(), 2);
    for node in others {
        let (there, here) = (cluster.api(node), cluster.api(primary));
        let queue = format!("by-{node}");
        assert_eq!(there.put_queue(&queue, &json!({})).await.expect("made").status, 201);
        let sent = there.send(&queue, "through another node").await.expect("sent");

        // Seen at the primary, settled through the other.
        let received = here.receive(&queue, &json!({ "leaseSeconds": 60 })).await.expect("received");
        assert_eq!(received.iter().map(|message| &message.id).collect::<Vec<_>>(), [&sent.id]);
        assert_eq!(there.ack(&queue, &received[0].token).await.expect("settled").status, 204);

        // And the other way round.
        let sent = here.send(&queue, "at the primary").await.expect("sent");
        let received = there.receive(&queue, &json!({ "leaseSeconds": 60 })).await.expect("received");
        assert_eq!(received.iter().map(|message| &message.id).collect::<Vec<_>>(), [&sent.id]);
        assert_eq!(here.ack(&queue, &received[0].token).await.expect("settled").status, 204);

        // Refusals are the primary's, too.
        assert_eq!(there.send("no-such-queue", "x").await.expect_err("refused").code(), "queue_not_found");
        let (mine, its) =
            (there.spool("default").await.expect("seen"), here.spool("default").await.expect("seen"));
        assert_eq!((mine.epoch, mine.primary()), (its.epoch, its.primary()));
        assert!(drain(&there, &queue).await.expect("drained").is_empty());
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receive_that_waits_at_another_node_wakes_for_a_message() {
    let cluster = Cluster::start(3).await.expect("it starts");
    let primary = cluster.primary_of("default").await.expect("a primary");
    let there = cluster.api(cluster.others(primary)[0]);
    there.put_queue("q", &json!({})).await.expect("made");
    let begun = Instant::now();
    let waiting = tokio::spawn(async move { there.receive("q", &json!({ "waitSeconds": 30 })).await });
    let sender = cluster.api(primary);
    let sent = sender.send("q", "at last").await.expect("sent");
    let received = waiting.await.expect("no panic").expect("received");
    assert_eq!(received.iter().map(|message| &message.id).collect::<Vec<_>>(), [&sent.id]);
    assert!(begun.elapsed() < Duration::from_secs(20), "it woke at once, not at the end of its wait");
    cluster.stop().await;
}

/// More of them than HTTP/2 gives a client's connection streams: a node passes on what many clients ask.
const CROWD: usize = 1_200;

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_waits_at_another_node_holds_nobody_up_there() {
    let cluster = Cluster::start(3).await.expect("it starts");
    let primary = cluster.primary_of("default").await.expect("a primary");
    let there = cluster.api(cluster.others(primary)[0]);
    for queue in ["idle", "busy"] {
        there.put_queue(queue, &json!({})).await.expect("made");
    }
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..CROWD {
        let api = there.clone();
        crowd.spawn(async move { api.receive("idle", &json!({ "waitSeconds": 20 })).await });
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        let asked = Instant::now();
        there.send("busy", "past them").await.expect("sent");
        assert!(asked.elapsed() < Duration::from_secs(5), "held up for {:?}", asked.elapsed());
    }
    // They were there all the while, and none of them was refused.
    while let Some(waited) = crowd.join_next().await {
        assert!(waited.expect("no panic").expect("answered").is_empty());
    }
    assert!(begun.elapsed() > Duration::from_secs(15), "they waited");
    cluster.stop().await;
}
