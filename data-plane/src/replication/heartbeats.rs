//! Beats to every other node, each 100 ms, and their answers.
//!
//! On a thread of their own, with a connection of their own to each node: whatever else this node is busy with, its
//! beats leave in time. A connection whose answers stay away is given up for a fresh one, since the old one may
//! swallow everything.

use super::Copies;
use super::pairs::PairTable;
use super::streams::Nodes;
use super::tls::{ConnectError, Tls};
use super::wire::{WireError, beat};
use futures::StreamExt;
use proto::replication as pb;
use proto::replication::replication_client::ReplicationClient;
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Status, Streaming};
use types::{Moment, NodeName, ProcessId};

pub const BEAT_EVERY: Duration = Duration::from_millis(100);
/// No answer for so long: the connection is given up.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// Beats that wait to be sent. What does not fit is not sent: a beat that waited is worth less than the next one.
const WAITING_MAX: usize = 4;
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_millis(500);

pub struct Settings {
    pub node: NodeName,
    pub process: ProcessId,
    pub tls: Tls,
    /// CLOCK_BOOTTIME.
    pub moment: fn() -> Moment,
    /// Whether disk and threads of this node are fine; every beat says so.
    pub healthy: Arc<AtomicBool>,
}

/// Beats go out until this is dropped.
pub struct Heartbeats {
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    settings: Settings,
    pairs: Arc<PairTable>,
    /// Several answers that arrive together are told to the copies as one.
    arrived: Notify,
}

/// Why beats to a node stopped.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the connection broke")]
    Broken(#[from] Box<Status>),
    #[error("the other side ended the connection")]
    Ended,
    #[error("no answer for {SILENCE_MAX:?}")]
    Silent,
    #[error("a malformed answer")]
    Malformed(#[from] WireError),
}

impl Heartbeats {
    pub fn start(
        settings: Settings,
        pairs: Arc<PairTable>,
        copies: Arc<dyn Copies>,
        nodes: watch::Receiver<Nodes>,
    ) -> std::io::Result<Heartbeats> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let shared = Arc::new(Shared { settings, pairs, arrived: Notify::new() });
        let thread = std::thread::Builder::new().name("heartbeats".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = beat_all(&shared, nodes) => {}
                    () = tell(&shared, &*copies) => {}
                () = note_running(&shared) => {}
                }
            });
        })?;
        Ok(Heartbeats { stop, thread: Some(thread) })
    }
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the heartbeats ended with a panic");
        }
    }
}

async fn tell(shared: &Shared, copies: &dyn Copies) {
    loop {
        shared.arrived.notified().await;
        // Whatever else is there to be read comes first.
        tokio::task::yield_now().await;
        copies.beats_arrived();
    }
}

async fn note_running(shared: &Shared) {
    let mut every = tokio::time::interval(BEAT_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        shared.pairs.note_running((shared.settings.moment)());
    }
}

/// One task a node, begun anew when its address changes.
async fn beat_all(shared: &Arc<Shared>, mut nodes: watch::Receiver<Nodes>) {
    let mut tasks = JoinSet::new();
    let mut beating: HashMap<NodeName, (String, DropGuard)> = HashMap::new();
    loop {
        let current = nodes.borrow_and_update().clone();
        beating.retain(|node, (address, _)| current.get(node) == Some(address));
        for (node, address) in current {
            if node == shared.settings.node || beating.contains_key(&node) {
                continue;
            }
            let stop = CancellationToken::new();
            let (shared, its, at, stopped) = (shared.clone(), node.clone(), address.clone(), stop.clone());
            tasks.spawn(async move {
                tokio::select! {
                    () = keep_beating(&shared, &its, &at) => {}
                    () = stopped.cancelled() => {}
                }
            });
            beating.insert(node, (address, stop.drop_guard()));
        }
        while tasks.try_join_next().is_some() {}
        if nodes.changed().await.is_err() {
            // Nobody is left to name other nodes; those that are known go on.
            std::future::pending::<()>().await;
        }
    }
}

async fn keep_beating(shared: &Shared, node: &NodeName, address: &str) {
    let mut retry = RETRY_MIN;
    let mut was_reset = false;
    loop {
        let mut heard = false;
        let lost = beat_until_lost(shared, node, address, &mut heard).await;
        if let Lost::Connect(error) = &lost
            && was_reset
            && error.is_refused()
        {
            // Its process ended, and no other is there yet.
            shared.pairs.set_refused(node, true);
        }
        if heard {
            tracing::warn!(%node, error = &lost as &dyn Error, "this node is not heard any more");
            retry = RETRY_MIN;
            was_reset = matches!(lost, Lost::Broken(_) | Lost::Ended);
            if was_reset {
                continue;
            }
        } else {
            tracing::debug!(%node, address, error = &lost as &dyn Error, "this node is not heard");
        }
        tokio::time::sleep(retry).await;
        retry = (retry * 2).min(RETRY_MAX);
    }
}

async fn beat_until_lost(shared: &Shared, node: &NodeName, address: &str, heard: &mut bool) -> Lost {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    let mut replies = match open(shared, node, address, receiver).await {
        Ok(replies) => replies,
        Err(lost) => return lost,
    };
    let mut every = tokio::time::interval(BEAT_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        tokio::select! {
            // A beat is due first: with a crowd of answers it must not wait.
            biased;
            _ = every.tick() => {
                if last.elapsed() > SILENCE_MAX {
                    return Lost::Silent;
                }
                let healthy = shared.settings.healthy.load(Ordering::Relaxed);
                // The moment is read before the beat leaves: from then on promises count. I15
                let Some(next) = shared.pairs.beat(node, (shared.settings.moment)(), healthy) else { continue };
                match sender.try_send(beat::beat(&shared.settings.node, &next)) {
                    Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => {}
                    Err(mpsc::error::TrySendError::Closed(_)) => return Lost::Ended,
                }
            }
            reply = replies.next() => {
                let now = (shared.settings.moment)();
                let reply = match reply {
                    Some(Ok(reply)) => reply,
                    Some(Err(status)) => return Lost::Broken(Box::new(status)),
                    None => return Lost::Ended,
                };
                match beat::read_reply(&reply) {
                    Ok(reply) => shared.pairs.on_reply(node, now, &reply),
                    Err(error) => return Lost::Malformed(error),
                }
                *heard = true;
                last = Instant::now();
                shared.arrived.notify_one();
            }
        }
    }
}

async fn open(
    shared: &Shared,
    node: &NodeName,
    address: &str,
    beats: mpsc::Receiver<pb::Beat>,
) -> Result<Streaming<pb::BeatReply>, Lost> {
    let channel = shared.settings.tls.connect(node, address).await?;
    let mut client = ReplicationClient::new(channel);
    let answer = tokio::time::timeout(SILENCE_MAX, client.heartbeats(ReceiverStream::new(beats))).await;
    Ok(answer.map_err(|_| Lost::Silent)?.map_err(Box::new)?.into_inner())
}
