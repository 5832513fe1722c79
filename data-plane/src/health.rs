//! Whether this node can do its work: its disk takes a write, and no engine is stuck.
//!
//! A node that is not healthy says so in its beats and lets its alive key stand still, so that others take its
//! spools over; it goes on with what it can do. Threads of its own: what is stuck must not hold up the finding.

use crate::clock;
use crate::spools::Spools;
use parking_lot::{Condvar, Mutex};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use types::Moment;

const PROBE_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Cheap to clone.
#[derive(Clone)]
pub struct Health {
    shared: Arc<Shared>,
}

struct Shared {
    healthy: Arc<AtomicBool>,
    /// The probe that is under way began then; zero: none is.
    probing_since: AtomicU64,
    probe_failed: AtomicBool,
    slow_after: Duration,
    stopping: Mutex<bool>,
    wake: Condvar,
}

/// The threads. Dropping it ends them.
pub struct Watch {
    health: Health,
    threads: Vec<JoinHandle<()>>,
}

impl Health {
    /// `slow_after`: how long a sync or an engine's work may take.
    pub fn new(slow_after: Duration) -> Health {
        Health {
            shared: Arc::new(Shared {
                healthy: Arc::new(AtomicBool::new(true)),
                probing_since: AtomicU64::new(0),
                probe_failed: AtomicBool::new(false),
                slow_after,
                stopping: Mutex::new(false),
                wake: Condvar::new(),
            }),
        }
    }

    pub fn is_healthy(&self) -> bool {
        self.shared.healthy.load(Ordering::Relaxed)
    }

    /// For the beats.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.shared.healthy.clone()
    }

    /// `sync_running`: how long the database's present sync has been running.
    pub fn watch(
        &self,
        data_dir: &Path,
        spools: Spools,
        sync_running: impl Fn() -> Option<Duration> + Send + 'static,
    ) -> io::Result<Watch> {
        let file = data_dir.join("probe");
        let probe = {
            let shared = self.shared.clone();
            std::thread::Builder::new().name("disk-probe".to_owned()).spawn(move || shared.probe(&file))?
        };
        let shared = self.shared.clone();
        let look = std::thread::Builder::new().name("health".to_owned()).spawn(move || {
            while !shared.wait(LOOK_EVERY) {
                let now = clock::moment();
                let longest = [spools.busy_for(now), sync_running().unwrap_or_default(), shared.probing(now)];
                shared.judge(longest.into_iter().max().unwrap_or_default());
            }
        })?;
        Ok(Watch { health: self.clone(), threads: vec![probe, look] })
    }
}

impl Shared {
    fn judge(&self, longest: Duration) {
        let healthy = longest <= self.slow_after && !self.probe_failed.load(Ordering::Relaxed);
        if self.healthy.swap(healthy, Ordering::Relaxed) == healthy {
            return;
        }
        match healthy {
            true => tracing::info!("disk and engines keep up again"),
            false => tracing::error!(?longest, "disk or engines are stuck; other nodes are told"),
        }
    }

    fn probing(&self, now: Moment) -> Duration {
        match self.probing_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => now.since(Moment(since)),
        }
    }

    fn probe(&self, path: &PathBuf) {
        loop {
            self.probing_since.store(clock::moment().0, Ordering::Relaxed);
            let outcome = write_and_sync(path);
            self.probing_since.store(0, Ordering::Relaxed);
            if let Err(error) = &outcome
                && !self.probe_failed.load(Ordering::Relaxed)
            {
                tracing::error!(path = %path.display(), %error, "the disk does not take a write");
            }
            self.probe_failed.store(outcome.is_err(), Ordering::Relaxed);
            if self.wait(PROBE_EVERY) {
                return;
            }
        }
    }

    /// True: it is over.
    fn wait(&self, span: Duration) -> bool {
        let mut stopping = self.stopping.lock();
        if !*stopping {
            self.wake.wait_for(&mut stopping, span);
        }
        *stopping
    }
}

fn write_and_sync(path: &PathBuf) -> io::Result<()> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    file.write_all_at(&clock::moment().0.to_be_bytes(), 0)?;
    file.sync_data()
}

impl Drop for Watch {
    fn drop(&mut self) {
        *self.health.shared.stopping.lock() = true;
        self.health.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("the watch over the node's health ended with a panic");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_disk_and_a_failing_one_are_not_healthy() {
        let health = Health::new(Duration::from_secs(1));
        health.shared.judge(Duration::from_millis(1_001));
        assert!(!health.is_healthy());
        health.shared.judge(Duration::from_millis(999));
        assert!(health.is_healthy());
        health.shared.probe_failed.store(true, Ordering::Relaxed);
        health.shared.judge(Duration::ZERO);
        assert!(!health.is_healthy());
    }
}
