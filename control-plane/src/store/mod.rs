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

pub use accounts::{AccountRow, Person, PlanRow};
pub use directory::Changes;
pub use keys::{KeyRow, NewKey};
pub use sessions::SessionRow;
pub use spools::SpoolRow;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Postgres, Transaction};
use std::str::FromStr;
use std::time::Duration;
use tokio::sync::Notify;
use types::ErrorCode;

const CONNECTIONS_MAX: u32 = 16;
const ACQUIRE_WAIT: Duration = Duration::from_secs(3);
/// How long a start waits for PostgreSQL.
const START_WAIT: Duration = Duration::from_secs(60);

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
        let options = PgConnectOptions::from_str(url)?;
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS_MAX).acquire_timeout(ACQUIRE_WAIT);
        let until = tokio::time::Instant::now() + START_WAIT;
        let pool = loop {
            match pool.clone().connect_with(options.clone()).await {
                Ok(pool) => break pool,
                Err(error) if tokio::time::Instant::now() >= until => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, "PostgreSQL is not there yet");
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
        };
        sqlx::migrate!("../migrations").run(&pool).await?;
        Ok(Store { pool, changed: Notify::new() })
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
