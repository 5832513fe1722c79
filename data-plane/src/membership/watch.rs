//! A prefix of etcd, followed through restarts and compactions: after each interruption everything is listed
//! again, and what is gone is told.

use super::{EtcdError, RETRY_MAX, RETRY_MIN, answered};
use etcd_client::{Client, EventType, GetOptions, SortOrder, SortTarget, WatchOptions};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

pub const NODES: &str = "/nodes/";
pub const SPOOLS: &str = "/spools/";

/// Keys of one answer: far below the 4 MiB that a message may have.
const PAGE: i64 = 1_000;
/// A stream that says nothing for so long is asked, and given up if it says nothing once more.
const SILENCE_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Set {
        key: String,
        value: Vec<u8>,
    },
    Gone {
        key: String,
    },
    /// Everything that was there when the watch began, or began again, was told.
    Complete,
}

/// Calls `tell` for what is there and for each change, until `stop`.
pub async fn follow(
    etcd: Client,
    prefix: &'static str,
    stop: CancellationToken,
    tell: impl Fn(Change) + Send + 'static,
) {
    let mut told = HashMap::new();
    let mut retry = RETRY_MIN;
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = once(&etcd, prefix, &mut told, &mut retry, &tell) => ended,
        };
        // The first of a series tells people; the rest only who looks closely.
        match ended {
            Ok(why) => tracing::info!(prefix, why, "etcd watch begins again"),
            Err(error) if retry == RETRY_MIN => {
                tracing::warn!(prefix, error = &error as &dyn std::error::Error, "etcd watch is interrupted");
            }
            Err(error) => {
                tracing::debug!(prefix, error = &error as &dyn std::error::Error, "etcd watch begins again");
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(retry) => {}
        }
        retry = (retry * 2).min(RETRY_MAX);
    }
}

/// Lists and follows until the stream ends; says why it did.
async fn once(
    etcd: &Client,
    prefix: &'static str,
    told: &mut HashMap<String, i64>,
    retry: &mut Duration,
    tell: &impl Fn(Change),
) -> Result<String, EtcdError> {
    let revision = list(etcd, prefix, told, tell).await?;
    tell(Change::Complete);
    *retry = RETRY_MIN;
    let options = WatchOptions::new().with_prefix().with_start_revision(revision + 1);
    let mut etcd = etcd.clone();
    let mut stream = answered(etcd.watch(prefix, Some(options))).await?;
    let mut asked = false;
    loop {
        let answer = match timeout(SILENCE_MAX, stream.message()).await {
            Ok(answer) => match answer? {
                Some(answer) => answer,
                None => return Ok("the stream was ended by etcd".to_owned()),
            },
            Err(_) if asked => return Ok("the stream is silent".to_owned()),
            Err(_) => {
                asked = true;
                stream.request_progress().await?;
                continue;
            }
        };
        asked = false;
        // Compacted, or the member lost its leader.
        if answer.canceled() {
            return Ok(answer.cancel_reason().to_owned());
        }
        for event in answer.events() {
            let Some(kv) = event.kv() else { continue };
            let Ok(key) = kv.key_str() else { continue };
            match event.event_type() {
                EventType::Put => {
                    told.insert(key.to_owned(), kv.mod_revision());
                    tell(Change::Set { key: key.to_owned(), value: kv.value().to_vec() });
                }
                EventType::Delete => {
                    told.remove(key);
                    tell(Change::Gone { key: key.to_owned() });
                }
            }
        }
    }
}

/// Tells what is there and what is not any more. Returns the revision that it was read at.
async fn list(
    etcd: &Client,
    prefix: &'static str,
    told: &mut HashMap<String, i64>,
    tell: &impl Fn(Change),
) -> Result<i64, EtcdError> {
    let mut etcd = etcd.clone();
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    let (mut from, mut revision, mut there) = (prefix.as_bytes().to_vec(), 0, HashMap::new());
    loop {
        let options = GetOptions::new()
            .with_range(end.clone())
            .with_limit(PAGE)
            .with_revision(revision)
            .with_sort(SortTarget::Key, SortOrder::Ascend);
        let answer = answered(etcd.get(from.clone(), Some(options))).await?;
        if revision == 0 {
            revision = answer.header().ok_or(EtcdError::Incomplete("its header"))?.revision();
        }
        for kv in answer.kvs() {
            let Ok(key) = kv.key_str() else { continue };
            there.insert(key.to_owned(), kv.mod_revision());
            if told.get(key) != Some(&kv.mod_revision()) {
                tell(Change::Set { key: key.to_owned(), value: kv.value().to_vec() });
            }
        }
        match answer.kvs().last() {
            Some(last) if answer.more() => from = [last.key(), &[0]].concat(),
            _ => break,
        }
    }
    for key in told.keys().filter(|key| !there.contains_key(*key)) {
        tell(Change::Gone { key: key.clone() });
    }
    *told = there;
    Ok(revision)
}
