//! An account sees, sends to and settles in its own spools alone.

use cluster::api::Api;
use cluster::harness::{Cluster, PATIENCE};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_second_account_cannot_see_send_to_or_settle_in_the_spools_of_the_first() {
    let cluster = Cluster::start(3).await.expect("it starts");
    let owner = cluster.owner().await.expect("logged in");
    owner.create_spool("vault", 2, 0).await.expect("made");
    let second = cluster.new_account("pro").await.expect("a second account");
    for node in 1..=3 {
        let (mine, theirs) = (cluster.api_with(node, &second.api_key), cluster.api(node));
        mine.wait_serving("default", PATIENCE).await.expect("served");
        theirs.wait_serving("vault", PATIENCE).await.expect("served");
        hidden(&mine, &theirs, node).await;
    }
    keys_that_are_none(&cluster.api(1)).await;
    cluster.stop().await;
}

/// `mine` at the same node as `theirs`.
async fn hidden(mine: &Api, theirs: &Api, node: u16) {
    let queue = format!("q{node}");
    for api in [theirs.clone(), theirs.in_spool("vault")] {
        api.put_queue(&queue, &json!({ "leaseSeconds": 120 })).await.expect("a queue");
        api.send(&queue, "theirs").await.expect("sent");
    }
    // See: neither the spool, nor in the spool of the same name the other one's queues.
    let spools: Value = get(mine, "/v1/spools").await.json().expect("a list");
    let names: Vec<&Value> =
        spools["spools"].as_array().expect("spools").iter().map(|spool| &spool["name"]).collect();
    assert_eq!(names, ["default"]);
    assert_eq!(mine.spool("vault").await.expect_err("not theirs to see").code(), "spool_not_found");
    let queues: Value = get(mine, &mine.path("/queues")).await.json().expect("a list");
    assert_eq!(queues["queues"], json!([]));
    assert_eq!(mine.queue(&queue).await.expect_err("not theirs to see").code(), "queue_not_found");

    // Send to, receive from.
    let vault = mine.in_spool("vault");
    assert_eq!(vault.send(&queue, "x").await.expect_err("not theirs to send to").code(), "spool_not_found");
    assert_eq!(
        vault.receive(&queue, &json!({})).await.expect_err("nor to receive from").code(),
        "spool_not_found"
    );
    assert_eq!(
        vault.put_queue("new", &json!({})).await.expect_err("nor to make queues in").code(),
        "spool_not_found"
    );
    assert_eq!(mine.send(&queue, "x").await.expect_err("there is no such queue").code(), "queue_not_found");

    // Settle: with a token that is good for its owner.
    let received = theirs.receive(&queue, &json!({})).await.expect("received");
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].body.as_deref(), Some("theirs"), "only what they sent themselves");
    mine.put_queue("own", &json!({})).await.expect("a queue");
    let foreign = mine.ack("own", &received[0].token).await.expect_err("not theirs to settle");
    assert!(["invalid_token", "stale_token"].contains(&foreign.code()), "{foreign}");
    let other_spool = vault.ack(&queue, &received[0].token).await.expect_err("not theirs to settle");
    assert_eq!(other_spool.code(), "spool_not_found");
    assert_eq!(theirs.ack(&queue, &received[0].token).await.expect("the lease was not touched").status, 204);
    mine.request(Method::DELETE, &mine.path("/queues/own"), None)
        .await
        .expect("an answer")
        .ok()
        .expect("deleted");
}

async fn get(api: &Api, path: &str) -> cluster::api::Reply {
    api.request(Method::GET, path, None).await.expect("an answer")
}

async fn keys_that_are_none(api: &Api) {
    let url = format!("{}/v1/spools", api.base());
    let without = cluster::api::finish(reqwest::Client::new().get(&url)).await.expect("an answer");
    assert_eq!((without.status.as_u16(), without.header("www-authenticate").is_some()), (401, true));
    for key in ["", "cap_", "nonsense", &"cap_".repeat(4000)] {
        let wrong =
            cluster::api::finish(reqwest::Client::new().get(&url).bearer_auth(key)).await.expect("an answer");
        assert!([401, 431].contains(&wrong.status.as_u16()), "{key:.20}: {} {}", wrong.status, wrong.text());
    }
}
