//! Writes what elections wait for. Each spool's last word wins: words that were overtaken while etcd was busy
//! are never written, and no two writes for one spool are on their way at once.

use futures::StreamExt;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::mpsc;
use types::SpoolId;

use crate::claims::{Etcd, Status};

/// Writes on their way at once.
const WRITES_MAX: usize = 16;
const RETRY: Duration = Duration::from_secs(1);

pub type Word = (SpoolId, Option<Status>);

/// Ends when the sender is dropped. The channel holds at most one word for each step of a controller; the map
/// at most one a spool.
pub async fn run(etcd: Etcd, mut words: mpsc::UnboundedReceiver<Word>) {
    let mut due: HashMap<SpoolId, Option<Status>> = HashMap::new();
    loop {
        if due.is_empty() {
            match words.recv().await {
                Some((spool, status)) => drop(due.insert(spool, status)),
                None => return,
            }
        }
        while let Ok((spool, status)) = words.try_recv() {
            due.insert(spool, status);
        }
        let writes = std::mem::take(&mut due).into_iter().map(|(spool, status)| {
            let etcd = &etcd;
            async move {
                let written = etcd.put_status(spool, status.as_ref()).await;
                (spool, status, written)
            }
        });
        let mut writes = futures::stream::iter(writes).buffer_unordered(WRITES_MAX);
        while let Some((spool, status, written)) = writes.next().await {
            if let Err(error) = written {
                tracing::warn!(%spool, error = &error as &dyn std::error::Error, "a status is not written yet");
                due.insert(spool, status);
            }
        }
        drop(writes);
        if !due.is_empty() {
            tokio::time::sleep(RETRY).await;
            // Newer words overwrite those that failed.
        }
    }
}
