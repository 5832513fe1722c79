//! Bad input over HTTP: a refusal that is a 4xx problem and names the field, never a 5xx, never a lost or half-written message, never
//! another account's data. Tables of requests and of the refusals that they must meet; after each, everything is as it was.
//!
//! * [`bodies`], [`names`], [`headers`], [`sizes`], [`keys`], [`tokens`]: what is wrong with the requests
//! * [`fuzz`]: good requests with a few bytes changed
//! * [`site`]: what must not change; [`rows`]: how an answer is judged; [`wire`]: requests as bytes

mod bodies;
mod fuzz;
mod headers;
mod keys;
mod names;
mod rows;
mod site;
mod sizes;
mod tokens;
mod wire;

use rows::check;
use serde_json::json;
use site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_by_name_and_changes_nothing() {
    let site = Site::start(1).await.expect("it starts");
    tables(&site).await;
    site.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_not_the_primary_refuses_it_in_the_same_way() {
    let site = Site::start(3).await.expect("it starts");
    tables(&site).await;
    fuzz::run(&site, 7, 500).await;
    site.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_bytes_in_good_requests_lose_and_invent_nothing() {
    let site = Site::start(1).await.expect("it starts");
    fuzz::run(&site, 0x5eed_0ff1_ce00_0001, 2000).await;
    site.end().await;
}

async fn tables(site: &Site) {
    site.api.put_queue(tokens::ASIDE, &json!({})).await.expect("a queue");
    check(site, "JSON bodies", bodies::rows(site)).await;
    check(site, "names, paths, methods, queries", names::rows(site)).await;
    check(site, "headers", headers::rows(site)).await;
    check(site, "sizes", sizes::rows(site)).await;
    sizes::broken(site).await;
    keys::all(site).await;
    check(site, "tokens", tokens::rows(site)).await;
    tokens::lists(site).await;
}
