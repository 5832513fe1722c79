//! From nothing to a message sent, received and acknowledged with curl; then stopped, started, and still there.

use cluster::greeting::curl_lines;
use cluster::harness::{Cluster, drain};
use cluster::parts::Options;
use reqwest::Method;
use serde_json::json;
use std::process::Command;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn lines_from_the_greeting_work_when_pasted_and_a_restart_loses_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = Cluster::start_in(dir.path(), Options::default()).await.expect("it starts");
    paste(&cluster).await;
    let first = cluster.api(1);
    first.put_queue("orders", &json!({ "leaseSeconds": 60 })).await.expect("a queue");
    let mut sent = Vec::new();
    for number in 0..50 {
        sent.push(first.send("orders", &format!("order {number}")).await.expect("sent").id);
    }
    let before = cluster.dev().clone();
    cluster.stop().await;

    let begun = Instant::now();
    let cluster = Cluster::start_in(dir.path(), Options::default()).await.expect("it starts again");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(15), "the second start took {took:?}");
    assert_eq!(
        (&before.api, &before.api_key, &before.console, &before.login),
        (&cluster.dev().api, &cluster.dev().api_key, &cluster.dev().console, &cluster.dev().login),
        "addresses and credentials stay",
    );
    let messages = drain(&cluster.api(2), "orders").await.expect("all of them");
    let found: Vec<&String> = messages.iter().map(|message| &message.id).collect();
    assert_eq!(found, sent.iter().collect::<Vec<_>>(), "all of them, in order, once");
    cluster.stop().await;
}

/// In one shell, as a person would.
async fn paste(cluster: &Cluster) {
    let lines = curl_lines(cluster.dev()).join("\n");
    let output = tokio::task::spawn_blocking(move || Command::new("bash").args(["-c", &lines]).output());
    let output = output.await.expect("not cancelled").expect("bash and curl are there");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.trim_end().ends_with("204"), "the ack:\n{out}\n{err}");
    assert!(err.contains("Hello, queue"), "the message received:\n{out}\n{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_received_and_settled_over_http() {
    let cluster = Cluster::start(3).await.expect("it starts");
    let api = cluster.api(1);

    let made = api.put_queue("jobs", &json!({})).await.expect("made");
    assert_eq!(made.status, 201);
    let replaced = api.put_queue("jobs", &json!({ "leaseSeconds": 20 })).await.expect("replaced");
    assert_eq!(replaced.status, 200);

    let path = api.path("/queues/jobs/messages");
    let sent = api.request(Method::POST, &path, Some(&json!({ "body": "héllo" }))).await.expect("an answer");
    assert_eq!(sent.status, 201, "{}", sent.text());
    let copies: u32 = sent.header("spool-copies").expect("Spool-Copies").parse().expect("a number");
    assert!((2..=3).contains(&copies), "three replicas, one synchronous: {copies}");
    let epoch = sent.header("spool-epoch").expect("Spool-Epoch").to_owned();
    let position = sent.header("spool-position").expect("Spool-Position");
    assert!(position.starts_with(&format!("{epoch}.")), "{position} in epoch {epoch}");
    assert!(sent.header("x-request-id").is_some() && sent.header("date").is_some());

    let received = api.receive("jobs", &json!({ "max": 10 })).await.expect("received");
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].body.as_deref(), Some("héllo"));
    assert!(api.receive("jobs", &json!({ "max": 10 })).await.expect("received").is_empty(), "it is leased");
    let token = &received[0].token;
    assert_eq!(api.ack("jobs", token).await.expect("acknowledged").status, 204);
    assert_eq!(api.ack("jobs", token).await.expect("the same again").status, 204);
    let nonsense = api.ack("jobs", "nonsense").await.expect_err("no token");
    assert_eq!((nonsense.code(), nonsense.is_without_effect()), ("invalid_token", true));
    let queue = api.queue("jobs").await.expect("the queue");
    assert_eq!(queue["counts"]["available"], 0);
    assert_eq!(queue["counts"]["leased"], 0);

    let nowhere = api.request(Method::GET, "/v1/nowhere", None).await.expect("an answer");
    assert_eq!(nowhere.ok().expect_err("there is nothing").code(), "not_found");
    let no_queue = api.send("no-such-queue", "x").await.expect_err("there is no such queue");
    assert_eq!(no_queue.code(), "queue_not_found");
    cluster.stop().await;
}
