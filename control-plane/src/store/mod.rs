//! PostgreSQL, all of it: accounts, people, keys, plans, spools. `migrations/` says what is stored.
//!
//! Every change is one transaction; what nodes must hear of takes a number of the directory in the same one. A
//! constraint that refuses is mapped to an answer by its name.
//!
//! * [`accounts`]: people, accounts, plans; [`sessions`]: who is signed in
//! * [`keys`]: API keys; [`spools`]: spools and their two numbers
//! * [`directory`]: what nodes are told

mod accounts;
mod directory;
mod keys;
mod sessions;
mod spools;
#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use accounts::{AccountRow, NewAccount, PlanRow};
pub use directory::Changes;
pub use keys::{KeyRow, NewKey};
pub use sessions::{NewSession, SessionRow};
pub use spools::{NewSpoolRow, SpoolRow};

use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Postgres, Transaction};
use std::str::FromStr;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::ErrorCode;

const CONNECTIONS_MAX: u32 = 16;
const ACQUIRE_WAIT: Duration = Duration::from_secs(3);
/// That PostgreSQL is away is said so often.
const SAY_EVERY: Duration = Duration::from_secs(60);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// PostgreSQL ends what takes longer, and what a control plane that died left open with its locks.
const TIMEOUTS: [(&str, &str); 3] =
    [("statement_timeout", "8s"), ("lock_timeout", "5s"), ("idle_in_transaction_session_timeout", "10s")];

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was changed.
    #[error("{detail}")]
    Refused { code: ErrorCode, field: Option<&'static str>, detail: String },
    #[error("PostgreSQL")]
    Postgres(#[from] sqlx::Error),
}

impl StoreError {
    pub fn refused(code: ErrorCode, field: Option<&'static str>, detail: impl Into<String>) -> StoreError {
        StoreError::Refused { code, field, detail: detail.into() }
    }
}

/// The refusal for a constraint by that name; every other error as it is.
fn where_taken(error: sqlx::Error, constraint: &str, refusal: impl FnOnce() -> StoreError) -> StoreError {
    let named = error.as_database_error().and_then(|error| error.constraint());
    if named == Some(constraint) { refusal() } else { StoreError::Postgres(error) }
}

pub struct Store {
    pool: PgPool,
    options: PgConnectOptions,
    /// A change that nodes should hear of was made here.
    pub changed: Notify,
}

impl Store {
    /// Asks nobody yet: calls fail until PostgreSQL answers, and [`Store::prepare`] has made the tables.
    pub fn new(url: &str) -> Result<Store, sqlx::Error> {
        let options = PgConnectOptions::from_str(url)?.application_name("control-plane");
        let pool = PgPoolOptions::new().acquire_timeout(ACQUIRE_WAIT).max_connections(CONNECTIONS_MAX);
        let pool = pool.connect_lazy_with(options.clone().options(TIMEOUTS));
        Ok(Store { pool, options, changed: Notify::new() })
    }

    /// Waits for PostgreSQL, however long, and brings the tables up to date.
    pub async fn prepare(&self) -> Result<(), MigrateError> {
        let mut pause = RETRY_MIN;
        let mut said: Option<Instant> = None;
        loop {
            // Migrations take as long as they take; one control plane at a time runs them.
            let untimed = PgPoolOptions::new().acquire_timeout(ACQUIRE_WAIT).max_connections(1);
            let error = match untimed.connect_with(self.options.clone()).await {
                Ok(untimed) => match sqlx::migrate!("../migrations").run(&untimed).await {
                    Ok(()) => {
                        untimed.close().await;
                        return Ok(());
                    }
                    Err(MigrateError::Execute(error)) if is_away(&error) => error,
                    Err(error) => return Err(error),
                },
                Err(error) => error,
            };
            if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
                tracing::warn!(%error, "PostgreSQL cannot be reached; elections go on without it");
                said = Some(Instant::now());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }
}

/// Later it may be different.
fn is_away(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed)
}

type Tx = Transaction<'static, Postgres>;

/// The next number of the directory. Whoever has it holds everybody else's change up until the commit.
async fn next_version(tx: &mut Tx) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("UPDATE directory SET version = version + 1 RETURNING version")
        .fetch_one(&mut **tx)
        .await
}

async fn audit(
    tx: &mut Tx,
    now_ms: i64,
    account: uuid::Uuid,
    person: Option<uuid::Uuid>,
    what: String,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO audit (at_ms, account, person, what) VALUES ($1, $2, $3, $4)")
        .bind(now_ms)
        .bind(account)
        .bind(person)
        .bind(what)
        .execute(&mut **tx)
        .await
        .map(drop)
}
