//! From a spool's row to its copies and its record, in etcd; from there on elections see to it.
//!
//! For each spool without a record: choose nodes, have each make its copy (asked again for the same spool, a
//! node names the same copy), create the record, which compares on absence, mark the row. Any step can be the
//! last before a crash, and any number of control planes may be at the same spool: whoever comes next begins
//! at the front. A copy that no record lists is never asked for anything.
//!
//! * [`place`]: the steps for one spool
//! * [`choice`]: which nodes, across placements that are under way at once
//! * here: what is wanted (rows), looked at by a timer, with backoff for each spool

mod choice;
mod place;
#[cfg(test)]
pub mod tests;

use futures::StreamExt;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use types::{AccountId, SpoolId, WallMs};

use crate::claims::{ClaimsError, Etcd};
use crate::elections::{Elections, NodeClients, NodeError};
use crate::placement::NotEnoughNodes;
use choice::Choices;
use spool::record::Phase;

/// Placements under way at once.
const PLACEMENTS_MAX: usize = 8;
/// Rows looked at in one round; the oldest first, so that the others have their turn.
const ROWS_MAX: u32 = 1_000;
/// How often rows are looked at that nobody told of.
const SWEEP_EVERY: Duration = Duration::from_secs(2);
/// PostgreSQL is asked for no longer.
const ROWS_WAIT: Duration = Duration::from_secs(5);
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How long the creation of a spool waits for its copies, and then for a first primary.
const CREATE_WAIT: Duration = Duration::from_secs(10);
const PRIMARY_WAIT: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a spool's row says that its copies have to know.
#[derive(Clone, PartialEq, Eq)]
pub struct NewSpool {
    pub id: SpoolId,
    pub account: AccountId,
    pub name: String,
    /// numReplicas, and numSync.
    pub n: u8,
    pub k: u8,
    /// Secret.
    pub token_key: [u8; 32],
    pub created_ms: i64,
}

/// What PostgreSQL knows of spools, as far as it matters here and to operators.
#[tonic::async_trait]
pub trait SpoolRows: Send + Sync + 'static {
    /// Rows that are not marked as placed, the oldest first.
    async fn unplaced(&self, limit: u32) -> Result<Vec<NewSpool>, RowsError>;
    /// Nodes are about to be asked for copies: from now on the row stays. False: it was taken back.
    async fn begin_placing(&self, spool: SpoolId) -> Result<bool, RowsError>;
    /// The spool has its record. Marking it twice is no error.
    async fn mark_placed(&self, spool: SpoolId) -> Result<(), RowsError>;
    /// In any order; ids without a row are left out.
    async fn names(&self, spools: &[SpoolId]) -> Result<Vec<Named>, RowsError>;
}

/// What people call a spool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    pub id: SpoolId,
    pub account: AccountId,
    pub account_name: String,
    pub name: String,
    pub n: u8,
    pub k: u8,
}

pub type RowsError = Box<dyn std::error::Error + Send + Sync>;

/// Why a spool is not placed yet. It goes on in the background for as long as there is its row.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error(transparent)]
    NotEnoughNodes(#[from] NotEnoughNodes),
    #[error("a copy is not made yet")]
    Copy(#[from] NodeError),
    #[error("{node} answers with something that is no copy's id")]
    NotACopyId { node: types::NodeName },
    #[error("who has copies is not known")]
    Claims(#[from] ClaimsError),
    #[error("a spool with {k} synchronous of {n} copies cannot be")]
    Numbers { n: u8, k: u8 },
    #[error("its row")]
    Rows(#[source] RowsError),
    #[error("it was taken back")]
    TakenBack,
    #[error("copies are being made for longer than {CREATE_WAIT:?}")]
    TimedOut,
}

/// Cheap to clone; the background work ends with the last clone.
#[derive(Clone)]
pub struct Reconciler {
    shared: Arc<Shared>,
    _background: Arc<AbortOnDropHandle<()>>,
}

struct Shared {
    etcd: Etcd,
    clients: NodeClients,
    elections: Elections,
    rows: Arc<dyn SpoolRows>,
    placements: Semaphore,
    choices: Choices,
    retries: Mutex<HashMap<SpoolId, Retry>>,
}

/// When a spool whose placement failed has its next turn.
#[derive(Clone, Copy)]
struct Retry {
    at: Instant,
    pause: Duration,
}

impl Reconciler {
    /// `clients` are those of the elections.
    pub fn start(
        etcd: Etcd,
        clients: NodeClients,
        elections: Elections,
        rows: Arc<dyn SpoolRows>,
    ) -> Reconciler {
        let shared = Arc::new(Shared {
            etcd,
            clients,
            elections,
            rows,
            placements: Semaphore::new(PLACEMENTS_MAX),
            choices: Choices::default(),
            retries: Mutex::default(),
        });
        let background = AbortOnDropHandle::new(tokio::spawn(run(shared.clone())));
        Reconciler { shared, _background: Arc::new(background) }
    }

    /// Places a spool whose row is committed. Returns when it is placed, and if possible when it has its first
    /// primary; or why it is not placed yet, and then it goes on in the background. So does it when the caller
    /// goes away.
    pub async fn create(&self, new: NewSpool) -> Result<(), PlaceError> {
        let (shared, spool) = (self.shared.clone(), new.id);
        let placing = tokio::spawn(async move { until_placed(&shared, &new).await });
        match placing.await {
            Ok(placed) => placed?,
            // Only when the runtime shuts down, or by a defect of ours; the row is still there.
            Err(_) => return Err(PlaceError::TimedOut),
        }
        // Convenient for whoever sends at once; a spool without a primary is created all the same.
        if timeout(PRIMARY_WAIT, until_active(&self.shared.etcd, spool)).await.is_err() {
            tracing::info!(%spool, "placed, and elects its first primary");
        }
        Ok(())
    }
}

/// Tries until it is placed or there is no time left.
async fn until_placed(shared: &Arc<Shared>, new: &NewSpool) -> Result<(), PlaceError> {
    let deadline = Instant::now() + CREATE_WAIT;
    loop {
        let error = match timeout_at(deadline, shared.attempt(new)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => return Err(PlaceError::TimedOut),
        };
        // Nodes do not appear because somebody waits.
        let hopeless = matches!(
            error,
            PlaceError::NotEnoughNodes(_) | PlaceError::Numbers { .. } | PlaceError::TakenBack
        );
        if hopeless || Instant::now() + RETRY_MIN >= deadline {
            return Err(error);
        }
        sleep(RETRY_MIN).await;
    }
}

async fn until_active(etcd: &Etcd, spool: SpoolId) {
    loop {
        let record = etcd.record(spool).await;
        if matches!(record, Ok(Some(record)) if record.value.phase == Phase::Active) {
            return;
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn run(shared: Arc<Shared>) {
    loop {
        match timeout(ROWS_WAIT, shared.rows.unplaced(ROWS_MAX)).await {
            Ok(Ok(rows)) => shared.round(rows).await,
            Ok(Err(error)) => tracing::warn!(error = &*error as &dyn std::error::Error, "no rows of spools"),
            Err(_) => tracing::warn!("no rows of spools within {ROWS_WAIT:?}"),
        }
        sleep(SWEEP_EVERY).await;
    }
}

impl Shared {
    /// One look at all that is wanted.
    async fn round(&self, rows: Vec<NewSpool>) {
        let wanted: HashSet<SpoolId> = rows.iter().map(|row| row.id).collect();
        self.retries.lock().retain(|spool, _| wanted.contains(spool));
        self.choices.retain(|spool| wanted.contains(&spool));
        let now = Instant::now();
        let is_due = |row: &&NewSpool| self.retries.lock().get(&row.id).is_none_or(|retry| retry.at <= now);
        let due: Vec<_> = rows.iter().filter(is_due).map(|row| self.turn(row)).collect();
        futures::stream::iter(due).buffer_unordered(PLACEMENTS_MAX).collect::<()>().await;
    }

    async fn turn(&self, row: &NewSpool) {
        if let Err(error) = self.attempt(row).await {
            let pause = self.postpone(row.id);
            let error = &error as &dyn std::error::Error;
            tracing::warn!(spool = %row.id, error, ?pause, "not placed yet");
        }
    }

    fn postpone(&self, spool: SpoolId) -> Duration {
        let mut retries = self.retries.lock();
        let pause = retries.get(&spool).map_or(RETRY_MIN, |retry| (retry.pause * 2).min(RETRY_MAX));
        retries.insert(spool, Retry { at: Instant::now() + pause, pause });
        pause
    }

    /// All steps that are left, once.
    async fn attempt(&self, new: &NewSpool) -> Result<(), PlaceError> {
        // Never closed; if it were, the placement would go ahead.
        let _permit = self.placements.acquire().await;
        self.place(new).await?;
        self.retries.lock().remove(&new.id);
        self.elections.kick(new.id);
        // The record is what counts: a row that is not marked is looked at once more.
        match timeout(ROWS_WAIT, self.rows.mark_placed(new.id)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(spool = %new.id, error = &*error as &dyn std::error::Error, "placed, not marked yet");
            }
            Err(_) => tracing::warn!(spool = %new.id, "placed, not marked within {ROWS_WAIT:?}"),
        }
        Ok(())
    }
}

impl std::fmt::Debug for NewSpool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NewSpool { id, account, name, n, k, token_key: _, created_ms } = self;
        write!(
            f,
            "NewSpool({id}, {name} of {account}, {n} copies, {k} synchronous, {:?})",
            WallMs(*created_ms)
        )
    }
}
