//! Values that are looked at when somebody asks for them.

use crate::health::Health;
use crate::spools::{Depth, Spools};
use crate::store::{Db, SyncStats};
use futures::StreamExt;
use futures::stream;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use spool::event::{Call, CallReply};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use types::SpoolId;

/// Spools whose copies' lag is told: more would make the answer too long to be of use.
const SPOOLS_MAX: usize = 1_000;
const AT_ONCE: usize = 16;
const ASK_WAIT: Duration = Duration::from_secs(1);

/// Where the values come from.
#[derive(Clone)]
pub struct Sources {
    pub spools: Spools,
    pub db: Arc<Db>,
    pub syncs: Arc<dyn Fn() -> SyncStats + Send + Sync>,
    pub health: Health,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lane {
    lane: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Role {
    role: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Peer {
    spool: String,
    node: String,
}

type Fraction = Gauge<f64, AtomicU64>;

pub(super) struct Snapshot {
    waiting: Family<Lane, Gauge>,
    copies: Family<Role, Gauge>,
    waiting_writes: Gauge,
    behind_entries: Family<Peer, Gauge>,
    behind_seconds: Family<Peer, Fraction>,
    healthy: Gauge,
    disk_stuck: Fraction,
    syncs: Counter,
    sync_seconds: Counter<f64, AtomicU64>,
    payload_bytes: Gauge,
    garbage_bytes: Gauge,
    resident_bytes: Gauge,
    /// One look at a time: it clears what it fills.
    looking: tokio::sync::Mutex<()>,
    syncs_told: Mutex<SyncStats>,
}

impl Snapshot {
    pub fn register(registry: &mut Registry) -> Snapshot {
        let new = Snapshot {
            waiting: Family::default(),
            copies: Family::default(),
            waiting_writes: Gauge::default(),
            behind_entries: Family::default(),
            behind_seconds: Family::default(),
            healthy: Gauge::default(),
            disk_stuck: Gauge::default(),
            syncs: Counter::default(),
            sync_seconds: Counter::default(),
            payload_bytes: Gauge::default(),
            garbage_bytes: Gauge::default(),
            resident_bytes: Gauge::default(),
            looking: tokio::sync::Mutex::default(),
            syncs_told: Mutex::default(),
        };
        registry.register("waiting", "What waits for an engine, by lane", new.waiting.clone());
        registry.register("copies", "Copies on this node, by role", new.copies.clone());
        registry.register(
            "waiting_writes",
            "Writes without an answer yet, of the spools led here",
            new.waiting_writes.clone(),
        );
        registry.register(
            "replica_behind_entries",
            "Entries that a copy has not confirmed to its primary here",
            new.behind_entries.clone(),
        );
        registry.register_with_unit(
            "replica_behind",
            "How far a copy's last confirmed entry is behind, in log time",
            Unit::Seconds,
            new.behind_seconds.clone(),
        );
        registry.register("healthy", "Whether the disk and the engines keep up", new.healthy.clone());
        registry.register_with_unit(
            "disk_stuck",
            "How long the disk has been at its present sync",
            Unit::Seconds,
            new.disk_stuck.clone(),
        );
        registry.register("syncs", "Syncs of the database", new.syncs.clone());
        registry.register_with_unit("sync", "Time spent syncing", Unit::Seconds, new.sync_seconds.clone());
        registry.register_with_unit(
            "payload",
            "Bytes of payload files",
            Unit::Bytes,
            new.payload_bytes.clone(),
        );
        registry.register_with_unit(
            "payload_garbage",
            "Of these, bytes of deleted messages",
            Unit::Bytes,
            new.garbage_bytes.clone(),
        );
        registry.register_with_unit(
            "resident_memory",
            "Memory that this process occupies",
            Unit::Bytes,
            new.resident_bytes.clone(),
        );
        new
    }

    pub async fn take(&self, sources: &Sources) {
        let _one = self.looking.lock().await;
        let Depth { urgent, peers, requests } = sources.spools.depth();
        for (lane, depth) in [("urgent", urgent), ("peers", peers), ("requests", requests)] {
            self.waiting.get_or_create(&Lane { lane }).set(number(depth));
        }
        self.healthy.set(i64::from(sources.health.is_healthy()));
        self.take_syncs((sources.syncs)());
        let usage = sources.db.blob_usage();
        self.payload_bytes.set(number(usage.total_bytes));
        self.garbage_bytes.set(number(usage.garbage_bytes));
        self.resident_bytes.set(number(resident_bytes()));
        self.take_copies(&sources.spools).await;
    }

    fn take_syncs(&self, stats: SyncStats) {
        let mut told = self.syncs_told.lock();
        self.syncs.inc_by(stats.syncs.saturating_sub(told.syncs));
        self.sync_seconds.inc_by(stats.total.saturating_sub(told.total).as_secs_f64());
        self.disk_stuck.set(stats.running.unwrap_or_default().as_secs_f64());
        *told = stats;
    }

    async fn take_copies(&self, spools: &Spools) {
        let glances = spools.glances();
        let leading: Vec<SpoolId> =
            glances.iter().filter(|(_, glance)| glance.leads.is_some()).map(|(spool, _)| *spool).collect();
        let following = glances.iter().filter(|(_, glance)| glance.follows.is_some()).count();
        let idle = glances.len() - leading.len() - following;
        for (role, copies) in [("primary", leading.len()), ("follower", following), ("none", idle)] {
            self.copies.get_or_create(&Role { role }).set(number(copies));
        }
        self.behind_entries.clear();
        self.behind_seconds.clear();
        let asked = leading.into_iter().take(SPOOLS_MAX).map(|spool| async move {
            tokio::time::timeout(ASK_WAIT, spools.call(spool, None, Call::Status)).await.ok().flatten()
        });
        let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
        let mut waiting_writes = 0;
        while let Some(answer) = answers.next().await {
            let Some(CallReply::Status(status)) = answer else { continue };
            waiting_writes += status.waiting_writes;
            for peer in &status.peers {
                let of = Peer { spool: status.spool.to_string(), node: peer.member.node.0.clone() };
                self.behind_entries.get_or_create(&of).set(number(peer.behind_entries));
                let seconds = Duration::from_millis(peer.behind_ms).as_secs_f64();
                self.behind_seconds.get_or_create(&of).set(seconds);
            }
        }
        self.waiting_writes.set(number(waiting_writes));
    }
}

fn number(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

/// Zero where nobody knows.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or_default() * 1024
}
