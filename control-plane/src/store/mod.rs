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

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Postgres, Transaction};
use std::str::FromStr;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::ErrorCode;

const CONNECTIONS_MAX: u32 = 16;
const ACQUIRE_WAIT: Duration = Duration::from_secs(3);
/// How long a start waits for PostgreSQL.
const START_WAIT: Duration = Duration::from_secs(60);
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
    /// A change that nodes should hear of was made here.
    pub changed: Notify,
}

impl Store {
    /// Waits for PostgreSQL, and brings the tables up to date.
    pub async fn open(url: &str) -> anyhow::Result<Store> {
        let options = PgConnectOptions::from_str(url)?.application_name("control-plane");
        let pool = PgPoolOptions::new().acquire_timeout(ACQUIRE_WAIT);
        // Migrations take as long as they take; one control plane at a time runs them.
        let untimed = connected(pool.clone().max_connections(1), &options).await?;
        sqlx::migrate!("../migrations").run(&untimed).await?;
        untimed.close().await;
        let pool = pool.max_connections(CONNECTIONS_MAX).connect_with(options.options(TIMEOUTS)).await?;
        Ok(Store { pool, changed: Notify::new() })
    }
}

async fn connected(pool: PgPoolOptions, options: &PgConnectOptions) -> Result<PgPool, sqlx::Error> {
    let until = Instant::now() + START_WAIT;
    let mut pause = RETRY_MIN;
    loop {
        match pool.clone().connect_with(options.clone()).await {
            Ok(pool) => return Ok(pool),
            Err(error) if Instant::now() >= until => return Err(error),
            Err(error) => tracing::warn!(%error, "PostgreSQL is not there yet"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
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
