//! Watches that survive etcd's restarts and compactions: whatever happens, a receiver's picture becomes what
//! is there. After each interruption everything is listed again, and only differences are told.

use etcd_client::{Client, EventType, GetOptions, KeyValue, SortOrder, SortTarget, WatchOptions};
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use types::{NodeName, SpoolId};

use super::{Alive, ClaimsError, answered, keys};
use spool::record::Record;

/// Keys of one answer: far below the 4 MiB that a message may have.
const PAGE: i64 = 1_000;
/// Changes that wait for a slow receiver; then etcd's stream waits.
const CHANGES_MAX: usize = 1_024;
/// A stream that says nothing for so long is asked, and given up if it says nothing once more.
const SILENCE_MAX: Duration = Duration::from_secs(5);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq)]
pub enum Change<K, V> {
    Set {
        key: K,
        value: V,
        revision: i64,
    },
    Gone {
        key: K,
    },
    /// Everything that was there when the watch began, or began again, was told.
    Complete,
}

/// Ends never, unless dropped.
pub struct Watch<K, V> {
    changes: mpsc::Receiver<Change<K, V>>,
}

impl<K, V> Watch<K, V> {
    /// Cancel safe. `None` only when the runtime shuts down.
    pub async fn next(&mut self) -> Option<Change<K, V>> {
        self.changes.recv().await
    }
}

/// What is watched: whose key it is, if it is of the kind looked for, and the value.
pub struct Kind<K, V> {
    pub prefix: &'static str,
    pub key_of: fn(&[u8]) -> Option<K>,
    pub read: fn(&KeyValue) -> Result<V, ClaimsError>,
}

pub const NODES: Kind<NodeName, Alive> =
    Kind { prefix: keys::NODES, key_of: keys::alive_of, read: super::read_json };
pub const RECORDS: Kind<SpoolId, Record> =
    Kind { prefix: keys::SPOOLS, key_of: keys::record_of, read: |kv| Ok(super::read_record(kv)?.value) };

pub struct Listed {
    pub kvs: Vec<KeyValue>,
    /// As of which all of it was read.
    pub revision: i64,
}

/// Everything under a prefix, as of one revision.
pub async fn list(client: &Client, prefix: &str) -> Result<Listed, ClaimsError> {
    let mut client = client.clone();
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().expect("a prefix") += 1;
    let (mut from, mut revision, mut kvs) = (prefix.as_bytes().to_vec(), 0, Vec::new());
    loop {
        let options = GetOptions::new()
            .with_range(end.clone())
            .with_limit(PAGE)
            .with_revision(revision)
            .with_sort(SortTarget::Key, SortOrder::Ascend);
        let mut answer = answered(client.get(from.clone(), Some(options))).await?;
        if revision == 0 {
            revision = answer.header().ok_or(ClaimsError::Incomplete("its header"))?.revision();
        }
        let more = answer.more();
        kvs.extend(answer.take_kvs());
        match kvs.last() {
            Some(last) if more => {
                from = last.key().to_vec();
                from.push(0);
            }
            _ => return Ok(Listed { kvs, revision }),
        }
    }
}

pub fn start<K, V>(client: Client, kind: Kind<K, V>) -> Watch<K, V>
where
    K: Clone + Eq + Hash + Debug + Send + Sync + 'static,
    V: Send + 'static,
{
    let (sender, changes) = mpsc::channel(CHANGES_MAX);
    let watcher = Watcher { client, kind, sender, told: HashMap::new() };
    tokio::spawn(watcher.run());
    Watch { changes }
}

struct Watcher<K, V> {
    client: Client,
    kind: Kind<K, V>,
    sender: mpsc::Sender<Change<K, V>>,
    /// What the receiver was told of, and at which revision.
    told: HashMap<K, i64>,
}

/// Why a stream of changes ended.
#[derive(Debug, thiserror::Error)]
enum Interrupted {
    #[error("nobody listens")]
    Dropped,
    #[error("the list")]
    List(#[from] ClaimsError),
    #[error("the stream")]
    Stream(#[from] etcd_client::Error),
    #[error("the stream was ended: {0}")]
    Ended(String),
    #[error("the stream is silent")]
    Silent,
}

impl<K, V> Watcher<K, V>
where
    K: Clone + Eq + Hash + Debug + Send + Sync + 'static,
    V: Send + 'static,
{
    async fn run(mut self) {
        let mut retry = RETRY_MIN;
        loop {
            let began = tokio::time::Instant::now();
            let sender = self.sender.clone();
            let Err(why) = tokio::select! {
                why = self.follow() => why,
                () = sender.closed() => Err(Interrupted::Dropped),
            };
            if matches!(why, Interrupted::Dropped) {
                return;
            }
            tracing::warn!(
                prefix = self.kind.prefix,
                why = &why as &dyn std::error::Error,
                "etcd watch begins again"
            );
            if began.elapsed() > RETRY_MAX {
                retry = RETRY_MIN;
            }
            sleep(retry).await;
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    async fn follow(&mut self) -> Result<std::convert::Infallible, Interrupted> {
        let listed = list(&self.client, self.kind.prefix).await?;
        let mut there = HashSet::new();
        for kv in &listed.kvs {
            there.extend(self.set(kv).await?);
        }
        let gone: Vec<K> = self.told.keys().filter(|key| !there.contains(*key)).cloned().collect();
        for key in gone {
            self.gone(key).await?;
        }
        self.tell(Change::Complete).await?;

        let options = WatchOptions::new().with_prefix().with_start_revision(listed.revision + 1);
        let watch = self.client.watch(self.kind.prefix, Some(options));
        let mut stream = timeout(SILENCE_MAX, watch).await.map_err(|_| Interrupted::Silent)??;
        let mut asked = false;
        loop {
            let answer = match timeout(SILENCE_MAX, stream.message()).await {
                Ok(answer) => answer?.ok_or_else(|| Interrupted::Ended("by etcd".to_owned()))?,
                Err(_) if asked => return Err(Interrupted::Silent),
                Err(_) => {
                    asked = true;
                    stream.request_progress().await?;
                    continue;
                }
            };
            asked = false;
            // Compacted, or the member lost its leader.
            if answer.canceled() {
                return Err(Interrupted::Ended(answer.cancel_reason().to_owned()));
            }
            for event in answer.events() {
                let Some(kv) = event.kv() else { continue };
                match event.event_type() {
                    EventType::Put => drop(self.set(kv).await?),
                    EventType::Delete => {
                        if let Some(key) = (self.kind.key_of)(kv.key()) {
                            self.gone(key).await?;
                        }
                    }
                }
            }
        }
    }

    /// Tells a value unless it was told; returns whose it is. What cannot be read is logged and not told:
    /// nobody acts on half a value.
    async fn set(&mut self, kv: &KeyValue) -> Result<Option<K>, Interrupted> {
        let Some(key) = (self.kind.key_of)(kv.key()) else { return Ok(None) };
        let revision = kv.mod_revision();
        if self.told.get(&key) == Some(&revision) {
            return Ok(Some(key));
        }
        match (self.kind.read)(kv) {
            Ok(value) => {
                self.told.insert(key.clone(), revision);
                self.tell(Change::Set { key: key.clone(), value, revision }).await?;
            }
            Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "unreadable in etcd"),
        }
        Ok(Some(key))
    }

    async fn gone(&mut self, key: K) -> Result<(), Interrupted> {
        if self.told.remove(&key).is_some() {
            self.tell(Change::Gone { key }).await?;
        }
        Ok(())
    }

    async fn tell(&self, change: Change<K, V>) -> Result<(), Interrupted> {
        self.sender.send(change).await.map_err(|_| Interrupted::Dropped)
    }
}
