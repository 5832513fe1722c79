//! Closed-loop producers over kept connections: each sends its next request when the last was answered. In turns with it, the
//! physical limit with the same number of messages pending.

use super::usage::{self, Usage};
use super::wire::{Wire, request};
use super::{PAYLOAD, Settings, Site, limit, median};
use crate::api::Api;
use crate::harness::{Cluster, PATIENCE};
use anyhow::{Context, bail, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hdrhistogram::Histogram;
use reqwest::Method;
use serde::Serialize;
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const IDLE_SEEN_FOR: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_millis(500);

/// One cell of the table.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cell {
    bench: &'static str,
    spool: String,
    producers: usize,
    batch: usize,
    rounds: u32,
    messages_per_second: f64,
    limit_per_second: f64,
    /// Of the physical limit in the same round.
    fraction: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    server_cpu_us_per_message: f64,
    disk_bytes_per_payload_byte: f64,
}

struct Round {
    per_second: f64,
    cpu_us: f64,
    disk: f64,
}

pub async fn run(cluster: &Cluster, site: &Site, settings: &Settings, spool: &str) -> anyhow::Result<()> {
    println!(
        "| spool | producers | batch | messages/s | limit/s | fraction | p50 ms | p99 ms | p99.9 ms | CPU us/message | disk bytes/payload byte |\n\
         |---|---|---|---|---|---|---|---|---|---|---|"
    );
    let mut cells = Vec::new();
    let target = Target::make(cluster, spool).await?;
    for batch in &settings.batches {
        for producers in &settings.producers {
            let cell = measure(&target, cluster, site, settings, *producers, *batch).await?;
            println!(
                "| {} | {} | {} | {:.0} | {:.0} | {:.3} | {:.2} | {:.2} | {:.2} | {:.1} | {:.2} |",
                cell.spool,
                cell.producers,
                cell.batch,
                cell.messages_per_second,
                cell.limit_per_second,
                cell.fraction,
                cell.p50_ms,
                cell.p99_ms,
                cell.p999_ms,
                cell.server_cpu_us_per_message,
                cell.disk_bytes_per_payload_byte,
            );
            cells.push(cell);
        }
    }
    println!();
    for cell in cells {
        println!("{}", serde_json::to_string(&cell)?);
    }
    Ok(())
}

/// A spool, at its primary.
struct Target {
    spool: String,
    api: Api,
    address: SocketAddr,
    key: String,
    /// What the nodes use in a second while nothing is asked of them: beats, mostly.
    idle: Usage,
}

impl Target {
    async fn make(cluster: &Cluster, numbers: &str) -> anyhow::Result<Target> {
        let (replicas, sync) =
            numbers.split_once('/').context("a spool is numReplicas/numSync, such as 3/1")?;
        let (replicas, sync) = (replicas.parse()?, sync.parse()?);
        let name = format!("bench-{replicas}-{sync}");
        cluster.owner().await?.create_spool(&name, replicas, sync).await?;
        cluster.api(1).wait_serving(&name, PATIENCE).await?;
        let api = cluster.api(cluster.primary_of(&name).await?).in_spool(&name);
        let address = api.base().strip_prefix("http://").context("a URL")?.parse()?;
        usage::wait_idle(cluster.dev()).await?;
        let before = usage::of_nodes(cluster.dev())?;
        tokio::time::sleep(IDLE_SEEN_FOR).await;
        let idle = (usage::of_nodes(cluster.dev())? - before) / IDLE_SEEN_FOR.as_secs_f64();
        Ok(Target { spool: numbers.to_owned(), api, address, key: cluster.dev().api_key.clone(), idle })
    }
}

async fn measure(
    target: &Target,
    cluster: &Cluster,
    site: &Site,
    settings: &Settings,
    producers: usize,
    batch: usize,
) -> anyhow::Result<Cell> {
    let time = Duration::from_secs(settings.seconds);
    let mut latencies = Histogram::<u64>::new_with_bounds(1, 120_000_000, 3)?;
    let (mut limits, mut rounds, mut fractions) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..settings.rounds {
        let dir = site.dir.clone();
        let pending = producers * batch;
        let limit = move || limit::appends_per_second(&dir, pending, PAYLOAD, time);
        let limit = tokio::task::spawn_blocking(limit).await?.context("the physical limit")?;
        let round = round(target, cluster, producers, batch, time, &mut latencies).await?;
        fractions.push(round.per_second / limit);
        limits.push(limit);
        rounds.push(round);
    }
    let of = |what: fn(&Round) -> f64| median(rounds.iter().map(what).collect());
    let ms = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Cell {
        bench: "send",
        spool: target.spool.clone(),
        producers,
        batch,
        rounds: settings.rounds,
        messages_per_second: of(|round| round.per_second),
        limit_per_second: median(limits),
        fraction: median(fractions),
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        p999_ms: ms(0.999),
        server_cpu_us_per_message: of(|round| round.cpu_us),
        disk_bytes_per_payload_byte: of(|round| round.disk),
    })
}

/// Into a queue of its own, which goes afterwards.
async fn round(
    target: &Target,
    cluster: &Cluster,
    producers: usize,
    batch: usize,
    time: Duration,
    latencies: &mut Histogram<u64>,
) -> anyhow::Result<Round> {
    let queue = target.api.path("/queues/bench");
    target.api.put_queue("bench", &json!({})).await?;
    let bytes = send_request(&format!("{queue}/messages"), &target.key, batch);
    let dev = cluster.dev().clone();
    let (address, idle) = (target.address, target.idle);
    // A thread of its own for all producers: cheaper than to spread them.
    let (messages, took, used, seen) = tokio::task::spawn_blocking(move || -> anyhow::Result<_> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut tasks = Vec::new();
            let begin = Instant::now() + WARM_UP;
            for _ in 0..producers {
                tasks.push(tokio::spawn(produce(address, bytes.clone(), begin, begin + time)));
            }
            tokio::time::sleep_until(begin.into()).await;
            let before = usage::of_nodes(&dev)?;
            let mut seen = Histogram::<u64>::new_with_bounds(1, 120_000_000, 3)?;
            tokio::time::sleep_until((begin + time).into()).await;
            let took = begin.elapsed();
            for task in tasks {
                seen.add(task.await??)?;
            }
            // What was put off belongs to what caused it: flushes, compactions, the trim of the log.
            usage::wait_idle(&dev).await?;
            let used = usage::of_nodes(&dev)? - before - idle * begin.elapsed().as_secs_f64();
            Ok((seen.len() * batch as u64, took, used, seen))
        })
    })
    .await??;
    target.api.request(Method::DELETE, &queue, None).await?.ok()?;
    // The messages go one by one, which the next round must not pay for.
    usage::wait_idle(cluster.dev()).await?;
    latencies.add(seen)?;
    ensure!(messages > 0, "no send was answered within {time:?}");
    Ok(Round {
        per_second: messages as f64 / took.as_secs_f64(),
        cpu_us: used.cpu_us / messages as f64,
        disk: used.written_bytes / (messages as f64 * PAYLOAD as f64),
    })
}

fn send_request(path: &str, key: &str, batch: usize) -> Vec<u8> {
    // Bytes that no compression makes smaller.
    let payload: Vec<u8> = crate::random::bytes::<{ PAYLOAD }>().to_vec();
    if batch == 1 {
        return request("POST", path, key, "application/octet-stream", &payload);
    }
    // The same number of bytes as text, because a batch is JSON.
    let text: String = BASE64_STANDARD.encode(&payload).chars().take(PAYLOAD).collect();
    let messages = vec![json!({ "body": text }); batch];
    request("POST", path, key, "application/json", json!({ "messages": messages }).to_string().as_bytes())
}

/// Latencies in microseconds of the requests that began and ended within the time.
async fn produce(
    address: SocketAddr,
    request: Vec<u8>,
    begin: Instant,
    end: Instant,
) -> anyhow::Result<Histogram<u64>> {
    let mut wire = Wire::connect(address).await?;
    let mut latencies = Histogram::new_with_bounds(1, 120_000_000, 3)?;
    loop {
        let sent = Instant::now();
        if sent >= end {
            return Ok(latencies);
        }
        let response = wire.call(&request).await?;
        if response.status != 201 {
            bail!("a send was answered {}: {}", response.status, String::from_utf8_lossy(response.body));
        }
        let now = Instant::now();
        if now > begin && now <= end {
            latencies.saturating_record((now - sent).as_micros() as u64);
        }
    }
}
