//! Gives disk space back that RocksDB by itself would not.
//!
//! A blob file goes when nothing in it is alive any more. Usually the log's front goes whole, and so do its files.
//! But one message in a thousand that stays (a dead letter, a long delay) keeps a file of them all, and RocksDB moves
//! what is alive out of the oldest few files only ([`super::options`] says why not out of more): behind one spool that
//! nobody reads, the garbage of all others would pile up. So once garbage is more than half of all blob bytes,
//! every file is made eligible, until it is less than a quarter. What is moved meanwhile is at most as much as
//! had become garbage, so this adds at most one to what is written for a byte of payload.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::db::Db;
use super::keys::Column;
use super::options;

const EVERY: Duration = Duration::from_secs(10);

/// What the `log` column family's blob files hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlobUsage {
    pub total_bytes: u64,
    /// Of these: values of keys that are gone. Compactions find them out, so it lags behind the deletions.
    pub garbage_bytes: u64,
}

impl BlobUsage {
    /// Whether all files should be eligible, given that they are now.
    fn wants_all(self, all_now: bool, worth_while_bytes: u64) -> bool {
        let tolerated = if all_now { self.total_bytes / 4 } else { self.total_bytes / 2 };
        self.garbage_bytes > tolerated.max(worth_while_bytes)
    }
}

impl Db {
    pub fn blob_usage(&self) -> BlobUsage {
        let log = self.column(Column::Log);
        let bytes = |name: &str| {
            let value = self.rocks.property_int_value_cf(log, name);
            value.ok().flatten().unwrap_or_default()
        };
        BlobUsage {
            total_bytes: bytes("rocksdb.live-blob-file-size"),
            garbage_bytes: bytes("rocksdb.live-blob-file-garbage-size"),
        }
    }

    /// One look, and one step if it is due. Any time, any number of times.
    pub fn reclaim_space(&self) {
        let mut all_now = self.reclaiming.lock();
        let usage = self.blob_usage();
        let wanted = usage.wants_all(*all_now, self.garbage_bytes_min);
        if wanted == *all_now {
            return;
        }
        let settings = if wanted { &options::RECLAIM_FROM_ALL } else { &options::RECLAIM_FROM_OLDEST };
        match self.rocks.set_options_cf(self.column(Column::Log), settings) {
            Ok(()) => {
                tracing::info!(?usage, from_all = wanted, "reclaiming the space of deleted messages");
                *all_now = wanted;
            }
            // Space is given back later; nothing else depends on it.
            Err(error) => tracing::warn!(%error, "the settings of garbage collection cannot be changed"),
        }
    }
}

/// The thread that looks after the space, every ten seconds. Dropping it ends it.
pub struct Keeper {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    stopping: Mutex<bool>,
    wake: Condvar,
}

impl Keeper {
    pub fn start(db: Arc<Db>) -> std::io::Result<Keeper> {
        let stop = Arc::new(Stop::default());
        let its = stop.clone();
        let thread = std::thread::Builder::new().name("store-keeper".to_owned()).spawn(move || {
            let mut stopping = its.stopping.lock();
            while !*stopping {
                db.reclaim_space();
                its.wake.wait_for(&mut stopping, EVERY);
            }
        })?;
        Ok(Keeper { stop, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.stop.stopping.lock() = true;
        self.stop.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // Nothing in it panics that has not been reported.
            let _ended = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reclaiming_begins_at_half_and_ends_at_a_quarter() {
        let usage = |garbage_bytes| BlobUsage { total_bytes: 1_000, garbage_bytes };
        assert!(!usage(500).wants_all(false, 0));
        assert!(usage(501).wants_all(false, 0));
        assert!(usage(251).wants_all(true, 0));
        assert!(!usage(250).wants_all(true, 0));
        assert!(!usage(900).wants_all(false, 1_000), "not worth the while");
        assert!(!BlobUsage::default().wants_all(false, 0));
    }
}
