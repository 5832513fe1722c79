//! A million messages through one queue, on a spool of one copy. What is a receive like afterwards, how much memory did the node need, and how
//! long does it take to serve again after a kill?

use super::wire::{Wire, request};
use super::{PAYLOAD, Settings, median, usage};
use crate::api::Api;
use crate::harness::{Cluster, PATIENCE};
use crate::installation::Fault;
use crate::parts::PartName;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Instant;

const BATCH: u64 = 100;
const PRODUCERS: u64 = 8;
const LOOKS: usize = 200;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    bench: &'static str,
    messages: u64,
    send_seconds: f64,
    drain_seconds: f64,
    receive_before_us: f64,
    receive_after_us: f64,
    ratio: f64,
    peak_memory_bytes: f64,
    restart_seconds: f64,
}

pub async fn run(cluster: &Cluster, settings: &Settings) -> anyhow::Result<()> {
    cluster.owner().await?.create_spool("million", 1, 0).await?;
    cluster.api(1).wait_serving("million", PATIENCE).await?;
    let primary = cluster.primary_of("million").await?;
    let api = cluster.api(primary).in_spool("million");
    api.put_queue("q", &json!({ "leaseSeconds": 300 })).await?;
    let address: SocketAddr = api.base().strip_prefix("http://").context("a URL")?.parse()?;
    let key = &cluster.dev().api_key;

    let receive_before_us = empty_receive_us(&api, address, key).await?;
    let begun = Instant::now();
    fill(&api, address, key, settings.messages).await?;
    let send_seconds = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let drained = drain(&api, address, key).await?;
    let drain_seconds = begun.elapsed().as_secs_f64();
    ensure!(drained == settings.messages, "{} messages were sent, {drained} came out", settings.messages);
    let receive_after_us = empty_receive_us(&api, address, key).await?;
    let peak_memory_bytes = usage::peak_memory(cluster.dev())?;

    cluster.fault(Fault::Kill, PartName::Node(primary)).await?;
    let begun = Instant::now();
    cluster.fault(Fault::Start, PartName::Node(primary)).await?;
    api.wait_serving("million", PATIENCE).await?;
    let restart_seconds = begun.elapsed().as_secs_f64();

    let outcome = Outcome {
        bench: "million",
        messages: settings.messages,
        send_seconds,
        drain_seconds,
        receive_before_us,
        receive_after_us,
        ratio: receive_after_us / receive_before_us,
        peak_memory_bytes,
        restart_seconds,
    };
    println!(
        "{} messages of {PAYLOAD} bytes sent in {send_seconds:.1} s and acknowledged in {drain_seconds:.1} s;\n\
         a receive on the empty queue took {receive_before_us:.0} us before and {receive_after_us:.0} us after ({:.2} times);\n\
         at most {:.0} MB of memory; serving {restart_seconds:.1} s after a kill\n",
        outcome.messages,
        outcome.ratio,
        peak_memory_bytes / 1e6,
    );
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// The median of many, one after the other.
async fn empty_receive_us(api: &Api, address: SocketAddr, key: &str) -> anyhow::Result<f64> {
    let bytes = request("POST", &api.path("/queues/q/receive"), key, "application/json", b"{}");
    let mut wire = Wire::connect(address).await?;
    let mut times = Vec::with_capacity(LOOKS);
    for _ in 0..LOOKS {
        let begun = Instant::now();
        let response = wire.call(&bytes).await?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        let text = String::from_utf8_lossy(response.body);
        ensure!(response.status == 200 && text.contains("\"messages\":[]"), "an empty queue gave {text}");
    }
    Ok(median(times))
}

async fn fill(api: &Api, address: SocketAddr, key: &str, messages: u64) -> anyhow::Result<()> {
    let body =
        json!({ "messages": vec![json!({ "body": "x".repeat(PAYLOAD) }); BATCH as usize] }).to_string();
    let bytes = request("POST", &api.path("/queues/q/messages"), key, "application/json", body.as_bytes());
    ensure!(messages.is_multiple_of(BATCH * PRODUCERS), "a multiple of {}", BATCH * PRODUCERS);
    let each = messages / BATCH / PRODUCERS;
    let producers = (0..PRODUCERS).map(|_| {
        let bytes = bytes.clone();
        tokio::spawn(async move {
            let mut wire = Wire::connect(address).await?;
            for _ in 0..each {
                let response = wire.call(&bytes).await?;
                let text = String::from_utf8_lossy(response.body);
                ensure!(response.status == 201, "a send was answered {}: {text}", response.status);
            }
            Ok(())
        })
    });
    for producer in producers.collect::<Vec<_>>() {
        producer.await??;
    }
    Ok(())
}

#[derive(Deserialize)]
struct Messages {
    messages: Vec<Leased>,
}

#[derive(Deserialize)]
struct Leased {
    token: String,
}

/// How many came out before there were none.
async fn drain(api: &Api, address: SocketAddr, key: &str) -> anyhow::Result<u64> {
    let receive = request(
        "POST",
        &api.path("/queues/q/receive"),
        key,
        "application/json",
        json!({ "max": BATCH }).to_string().as_bytes(),
    );
    let ack = api.path("/queues/q/ack");
    let consumers = (0..PRODUCERS).map(|_| {
        let (receive, ack, key) = (receive.clone(), ack.clone(), key.to_owned());
        tokio::spawn(async move {
            let mut wire = Wire::connect(address).await?;
            let mut count = 0;
            loop {
                let response = wire.call(&receive).await?;
                let text = String::from_utf8_lossy(response.body);
                ensure!(response.status == 200, "a receive was answered {}: {text}", response.status);
                let leased: Messages = serde_json::from_slice(response.body)?;
                if leased.messages.is_empty() {
                    return Ok(count);
                }
                let tokens: Vec<&str> =
                    leased.messages.iter().map(|message| message.token.as_str()).collect();
                let body = json!({ "tokens": tokens }).to_string();
                let settle = request("POST", &ack, &key, "application/json", body.as_bytes());
                let response = wire.call(&settle).await?;
                let text = String::from_utf8_lossy(response.body);
                let settled = text.matches("204").count() >= tokens.len();
                ensure!(response.status == 200 && settled, "an ack was answered {}: {text}", response.status);
                count += tokens.len() as u64;
            }
        })
    });
    let mut sum = 0;
    for consumer in consumers.collect::<Vec<_>>() {
        sum += consumer.await??;
    }
    Ok(sum)
}
