//! In the background: the stream of changes, the file, and reports of which keys were used.

use super::{Inner, REPORT_EVERY, REPORT_WAIT, disk};
use crate::clock;
use proto::control as pb;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::WallMs;

const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// From the request to the first update.
const FIRST_WAIT: Duration = Duration::from_secs(30);
/// Changes that come close together are written once.
const GATHER: Duration = Duration::from_millis(200);
/// How old the time in the file may be while the control plane is heard.
const FILE_EVERY: Duration = Duration::from_secs(300);
const KEYS_PER_REPORT: usize = 1_000;

/// Never ends.
pub(super) async fn follow(inner: &Inner) {
    let mut retry = RETRY_FIRST;
    loop {
        let ended = stream(inner).await;
        if inner.heard.swap(false, Ordering::Relaxed) {
            inner.heard_at.store(clock::wall().0, Ordering::Relaxed);
            retry = RETRY_FIRST;
        }
        match ended {
            Ok(()) => tracing::info!("the control plane ended the directory's stream"),
            Err(status) => tracing::warn!(%status, "the control plane is not heard"),
        }
        tokio::time::sleep(retry).await;
        retry = (retry * 2).min(RETRY_MAX);
    }
}

async fn stream(inner: &Inner) -> Result<(), tonic::Status> {
    let late = |_| tonic::Status::deadline_exceeded("no first update in time");
    let request = pb::WatchDirectoryRequest { node: inner.settings.node.0.clone() };
    let mut client = inner.client.clone();
    let open = tokio::time::timeout(FIRST_WAIT, client.watch_directory(request));
    let mut updates = open.await.map_err(late)??.into_inner();
    let mut next = tokio::time::timeout(FIRST_WAIT, updates.message()).await.map_err(late)??;
    if next.as_ref().is_some_and(|first| !first.complete) {
        return Err(tonic::Status::internal("the first update of the stream is not complete"));
    }
    while let Some(update) = next {
        tracing::debug!(update.version, update.complete, "the directory changed");
        inner.known.write().apply(update);
        inner.lookups.forget_absent();
        inner.heard.store(true, Ordering::Relaxed);
        inner.heard_at.store(clock::wall().0, Ordering::Relaxed);
        inner.changed.notify_one();
        next = updates.message().await?;
    }
    Ok(())
}

/// Never ends.
pub(super) async fn keep_file(inner: &Inner) {
    loop {
        let _ = tokio::time::timeout(FILE_EVERY, inner.changed.notified()).await;
        tokio::time::sleep(GATHER).await;
        if !inner.heard.load(Ordering::Relaxed) && inner.heard_at.load(Ordering::Relaxed) == i64::MIN {
            continue;
        }
        if inner.heard.load(Ordering::Relaxed) {
            inner.heard_at.store(clock::wall().0, Ordering::Relaxed);
        }
        let heard_at = WallMs(inner.heard_at.load(Ordering::Relaxed));
        let Some(update) = inner.known.read().complete() else { continue };
        let dir = inner.settings.data_dir.clone();
        let saving = move || disk::save(&dir, &disk::Saved { heard_at, update });
        match tokio::task::spawn_blocking(saving).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(%error, cause = ?std::error::Error::source(&error), "the directory is not on disk")
            }
            Err(error) => tracing::error!(%error, "the directory is not on disk"),
        }
    }
}

/// Never ends. What could not be reported is reported with the next.
pub(super) async fn report(inner: &Inner) {
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        let used: Vec<(String, i64)> = {
            let mut used = inner.used.lock();
            let ids: Vec<String> = used.keys().take(KEYS_PER_REPORT).cloned().collect();
            ids.into_iter().filter_map(|id| used.remove_entry(&id)).collect()
        };
        if used.is_empty() {
            continue;
        }
        let to_use = |(key_id, at_ms): &(String, i64)| pb::keys_used_request::Use {
            key_id: key_id.clone(),
            at_ms: *at_ms,
        };
        let request = pb::KeysUsedRequest { uses: used.iter().map(to_use).collect() };
        let mut client = inner.client.clone();
        if !matches!(tokio::time::timeout(REPORT_WAIT, client.keys_used(request)).await, Ok(Ok(_))) {
            let mut waiting = inner.used.lock();
            for (id, at) in used {
                let latest = waiting.entry(id).or_insert(at);
                *latest = at.max(*latest);
            }
        }
    }
}
