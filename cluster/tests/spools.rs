//! Spools are made in the console; their two numbers are seen with an API key, and kept.

use cluster::api::Failure;
use cluster::harness::{Cluster, PATIENCE};
use reqwest::Method;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_spool_made_in_the_console_shows_both_numbers_to_an_api_key() {
    let cluster = Cluster::start(3).await.expect("it starts");
    let owner = cluster.owner().await.expect("logged in");
    let api = cluster.api(1);
    let default = api.spool("default").await.expect("the default spool");
    assert_eq!((default.num_replicas, default.num_sync, default.writable_with_one_node_lost), (3, 1, true));

    for (name, replicas, sync, writable) in
        [("one", 1, 0, false), ("pair", 2, 1, false), ("all", 3, 2, false)]
    {
        owner.create_spool(name, replicas, sync).await.expect("made");
        for node in 1..=3 {
            let spool = cluster.api(node).wait_serving(name, PATIENCE).await.expect("served");
            assert_eq!((spool.num_replicas, spool.num_sync), (replicas, sync), "{spool:?}");
            assert_eq!(spool.copies.len(), replicas as usize, "{spool:?}");
            assert_eq!(spool.writable_with_one_node_lost, writable, "{spool:?}");
        }
        let queues = api.in_spool(name);
        queues.put_queue("q", &json!({})).await.expect("a queue");
        let path = queues.path("/queues/q/messages");
        let sent =
            queues.request(Method::POST, &path, Some(&json!({ "body": name }))).await.expect("an answer");
        sent.ok().expect("sent");
        let copies: u32 = sent.header("spool-copies").expect("Spool-Copies").parse().expect("a number");
        assert!((sync + 1..=replicas).contains(&copies), "{copies} copies on {replicas}/{sync}");
    }
    let listed = api.request(Method::GET, "/v1/spools", None).await.expect("an answer");
    let listed: serde_json::Value = listed.json().expect("a list");
    let mut names: Vec<&str> = listed["spools"]
        .as_array()
        .expect("spools")
        .iter()
        .map(|s| s["name"].as_str().expect("a name"))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["all", "default", "one", "pair"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spool_that_cannot_be_is_refused_and_leaves_nothing() {
    let cluster = Cluster::start(3).await.expect("it starts");
    let owner = cluster.owner().await.expect("logged in");
    let refusal = |failure: Failure| {
        let problem = failure.problem().unwrap_or_else(|| panic!("{failure}")).clone();
        (problem.status, problem.code, problem.field.unwrap_or_default())
    };
    let refused = |status: u16, code: &str, field: &str| (status, code.to_owned(), field.to_owned());

    let too_sync = owner.create_spool("s", 2, 2).await.expect_err("numSync is at most numReplicas - 1");
    assert_eq!(refusal(too_sync), refused(400, "invalid_request", "numSync"));
    let none = owner.create_spool("s", 0, 0).await.expect_err("at least one replica");
    assert_eq!(refusal(none), refused(400, "invalid_request", "numReplicas"));
    let over = owner.create_spool("s", 5, 1).await.expect_err("the plan pro has three replicas");
    assert_eq!(refusal(over).1, "limit_exceeded");
    let taken = owner.create_spool("default", 1, 0).await.expect_err("there is one");
    assert_eq!(refusal(taken).0, 409);

    // The plan would hold it, the nodes do not.
    let big = cluster.new_account("scale").await.expect("an account");
    let console = cluster.console().log_in(&big.login).await.expect("logged in");
    let too_big = console.create_spool("s", 5, 1).await.expect_err("there are three nodes");
    assert_eq!(refusal(too_big).0, 503);
    console.create_spool("s", 3, 1).await.expect("the name is free at once");
    cluster.api_with(1, &big.api_key).wait_serving("s", PATIENCE).await.expect("served");

    let immutable =
        cluster.api(1).request(Method::PATCH, "/v1/spools/default", Some(&json!({ "numSync": 2 }))).await;
    let immutable = immutable.expect("an answer").ok().expect_err("the numbers stay").code().to_owned();
    assert_eq!(immutable, "immutable");
    cluster.stop().await;
}
