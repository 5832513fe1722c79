//! The one thread that syncs a node's database, for every spool at once.
//!
//! No timer: a sync begins as soon as there is something to sync and the one before it has ended, and covers
//! whatever was written until it begins. So an idle node syncs at once, and a busy one syncs for many.

use parking_lot::{Condvar, Mutex};
use spool::event::SyncNo;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::db::Db;
use super::keys::SpoolNumber;

/// Of each spool the highest that is now durable, which covers the lower ones.
pub type Completed = Vec<(SpoolNumber, SyncNo)>;

type Pending = BTreeMap<SpoolNumber, SyncNo>;
type Done = Arc<dyn Fn(Completed) + Send + Sync>;

/// Owns the thread. Dropping it syncs what is still pending, tells the engines, and waits for the thread's end.
pub struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// One engine's way to ask for syncs. Cheap to clone.
#[derive(Clone)]
pub struct SyncHandle {
    shared: Arc<Shared>,
    engine: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SyncStats {
    pub syncs: u64,
    pub total: Duration,
    /// How long the sync that is running now has been running: a disk that hangs shows here first.
    pub running: Option<Duration>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    started: Instant,
    syncs: AtomicU64,
    total_us: AtomicU64,
    /// Microseconds since `started`, plus one; zero: no sync is running.
    running_since: AtomicU64,
}

#[derive(Default)]
struct State {
    engines: Vec<Engine>,
    closing: bool,
}

struct Engine {
    /// Bounded by the engine's spools: a later number of a spool replaces an earlier one.
    pending: Pending,
    done: Done,
}

impl Syncer {
    pub fn start(db: Arc<Db>) -> std::io::Result<Syncer> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Condvar::new(),
            started: Instant::now(),
            syncs: AtomicU64::new(0),
            total_us: AtomicU64::new(0),
            running_since: AtomicU64::new(0),
        });
        let its = shared.clone();
        let thread = std::thread::Builder::new().name("syncer".to_owned()).spawn(move || run(&db, &its))?;
        Ok(Syncer { shared, thread: Some(thread) })
    }

    /// Adds an engine. `done` is called on the syncer's thread after each sync that covers something of this
    /// engine's, in order; it hands over (a channel's send) and does not block, else every spool waits for it.
    pub fn engine(&self, done: impl Fn(Completed) + Send + Sync + 'static) -> SyncHandle {
        let mut state = self.shared.state.lock();
        state.engines.push(Engine { pending: Pending::new(), done: Arc::new(done) });
        SyncHandle { shared: self.shared.clone(), engine: state.engines.len() - 1 }
    }

    pub fn stats(&self) -> SyncStats {
        let since = self.shared.running_since.load(Ordering::Relaxed);
        let running = since
            .checked_sub(1)
            .map(|since| self.shared.started.elapsed().saturating_sub(Duration::from_micros(since)));
        SyncStats {
            syncs: self.shared.syncs.load(Ordering::Relaxed),
            total: Duration::from_micros(self.shared.total_us.load(Ordering::Relaxed)),
            running,
        }
    }
}

impl SyncHandle {
    /// Call it after [`Db::write`] has returned for everything up to these numbers.
    pub fn request(&self, spools: impl IntoIterator<Item = (SpoolNumber, SyncNo)>) {
        let mut state = self.shared.state.lock();
        let pending = &mut state.engines[self.engine].pending;
        for (spool, sync_no) in spools {
            let highest = pending.entry(spool).or_insert(sync_no);
            *highest = sync_no.max(*highest);
        }
        if !pending.is_empty() {
            self.shared.wake.notify_one();
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.state.lock().closing = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was that of an engine's callback, and has been reported by then.
            let _ended = thread.join();
        }
    }
}

fn run(db: &Db, shared: &Shared) {
    while let Some(taken) = shared.take_pending() {
        let begun = shared.started.elapsed();
        shared.running_since.store(micros(begun) + 1, Ordering::Relaxed);
        db.sync();
        shared.running_since.store(0, Ordering::Relaxed);
        shared.syncs.fetch_add(1, Ordering::Relaxed);
        shared.total_us.fetch_add(micros(shared.started.elapsed() - begun), Ordering::Relaxed);
        for (done, completed) in taken {
            done(completed);
        }
    }
}

impl Shared {
    /// Waits for something to sync. `None`: closing, and nothing is left.
    fn take_pending(&self) -> Option<Vec<(Done, Completed)>> {
        let mut state = self.state.lock();
        loop {
            let waiting = state.engines.iter_mut().filter(|engine| !engine.pending.is_empty());
            let taken: Vec<(Done, Completed)> = waiting
                .map(|engine| {
                    (engine.done.clone(), std::mem::take(&mut engine.pending).into_iter().collect())
                })
                .collect();
            if !taken.is_empty() {
                return Some(taken);
            }
            if state.closing {
                return None;
            }
            self.wake.wait(&mut state);
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
