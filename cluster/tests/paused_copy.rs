//! Two replicas, one synchronous: while the copy stands still, writes wait; nothing is answered that is not so.

use cluster::api::{Api, Reply, finish};
use cluster::harness::{Cluster, PATIENCE, drain, number_of};
use cluster::installation::Fault;
use cluster::parts::PartName;
use cluster::wait::wait_until;
use reqwest::Method;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::task::JoinHandle;

const WAITING: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn sends_wait_while_the_copy_is_paused_and_return_when_it_resumes() {
    let cluster = Cluster::start(3).await.expect("it starts");
    cluster.owner().await.expect("logged in").create_spool("pair", 2, 1).await.expect("made");
    let spool = cluster.api(1).wait_serving("pair", PATIENCE).await.expect("served");
    let holders: Vec<u16> = spool.copies.iter().map(|copy| number_of(&copy.alias).expect("a node")).collect();
    let primary = cluster.primary_of("pair").await.expect("a primary");
    let copy = *holders.iter().find(|node| **node != primary).expect("a copy");
    let bystander = *cluster.others(primary).iter().find(|node| **node != copy).expect("a node without one");
    let (near, far) = (cluster.api(primary).in_spool("pair"), cluster.api(bystander).in_spool("pair"));
    near.put_queue("q", &json!({})).await.expect("a queue");
    far.wait_serving("pair", PATIENCE).await.expect("served");
    near.send("q", "before").await.expect("sent");

    cluster.fault(Fault::Pause, PartName::Node(copy)).await.expect("paused");
    let mut sends: Vec<JoinHandle<Reply>> = Vec::new();
    for number in 0..WAITING {
        let api = if number % 2 == 0 { near.clone() } else { far.clone() };
        sends.push(tokio::spawn(async move { send(&api, number).await }));
    }
    let waiting = || async {
        match near.spool("pair").await {
            Ok(spool) if spool.state == "confirming_blocked" && spool.waiting_writes >= WAITING as u64 => {
                Ok(())
            }
            Ok(spool) => Err(format!("{} with {} waiting", spool.state, spool.waiting_writes)),
            Err(failure) => Err(failure.to_string()),
        }
    };
    wait_until(PATIENCE, "all sends to wait", waiting).await.expect("they wait");
    assert_eq!(sends.iter().filter(|send| send.is_finished()).count(), 0, "none is answered");

    cluster.fault(Fault::Resume, PartName::Node(copy)).await.expect("resumed");
    let mut ids = BTreeSet::new();
    for send in sends {
        let reply = tokio::time::timeout(PATIENCE, send).await.expect("it returns").expect("no panic");
        assert_eq!(reply.status, 201, "{}", reply.text());
        assert_eq!(reply.header("spool-copies"), Some("2"));
        let sent: cluster::api::Sent = reply.json().expect("sent");
        assert!(ids.insert(sent.id), "every message has an id of its own");
    }
    let messages = drain(&far, "q").await.expect("all of them");
    let bodies: BTreeSet<&str> = messages.iter().filter_map(|message| message.body.as_deref()).collect();
    let expected: BTreeSet<String> =
        (0..WAITING).map(|n| n.to_string()).chain(["before".to_owned()]).collect();
    assert_eq!(bodies, expected.iter().map(String::as_str).collect());
    assert_eq!(messages.len(), WAITING + 1, "each once");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_whose_wait_ends_while_the_copy_is_paused_has_no_effect() {
    let cluster = Cluster::start(2).await.expect("it starts");
    let owner = cluster.owner().await.expect("logged in");
    owner.create_spool("pair", 2, 1).await.expect("made");
    cluster.api(1).wait_serving("pair", PATIENCE).await.expect("served");
    let primary = cluster.primary_of("pair").await.expect("a primary");
    let copy = cluster.others(primary)[0];
    let api = cluster.api(primary).in_spool("pair");
    api.put_queue("q", &json!({})).await.expect("a queue");
    cluster.fault(Fault::Pause, PartName::Node(copy)).await.expect("paused");
    let blocked = || async {
        match api.spool("pair").await {
            Ok(spool) if spool.state == "confirming_blocked" => Ok(()),
            Ok(spool) => Err(spool.state),
            Err(failure) => Err(failure.to_string()),
        }
    };
    wait_until(PATIENCE, "the pause to be noticed", blocked).await.expect("noticed");
    let request = api.build(Method::POST, &api.path("/queues/q/messages")).header("Prefer", "wait=1");
    let reply = finish(request.json(&json!({ "body": "x" }))).await.expect("an answer");
    let failure = reply.ok().expect_err("it cannot be confirmed");
    assert_eq!((failure.code(), reply.header("retry-after").is_some()), ("not_enough_copies", true));
    cluster.fault(Fault::Resume, PartName::Node(copy)).await.expect("resumed");
    api.wait_serving("pair", PATIENCE).await.expect("served again");
    assert_eq!(drain(&api, "q").await.expect("drained"), [], "503 is a promise");
    cluster.stop().await;
}

/// With a wait that is longer than anything here.
async fn send(api: &Api, number: usize) -> Reply {
    let request = api.build(Method::POST, &api.path("/queues/q/messages")).header("Prefer", "wait=120");
    let request = request.timeout(Duration::from_secs(150)).json(&json!({ "body": number.to_string() }));
    finish(request).await.expect("an answer")
}
