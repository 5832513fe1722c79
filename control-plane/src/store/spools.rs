//! Spools: their names and their two numbers. Where they are and who serves them is etcd's.

use super::accounts::{PlanRow, require_role};
use super::{Store, StoreError, Tx, audit, next_version, where_taken};
use crate::reconcile::{Named, NewSpool, RowsError, SpoolRows};
use sqlx::FromRow;
use types::{AccountId, ErrorCode, SpoolId};
use uuid::Uuid;

#[derive(Clone, FromRow)]
pub struct SpoolRow {
    pub id: Uuid,
    pub account: Uuid,
    pub name: String,
    pub num_replicas: i16,
    pub num_sync: i16,
    pub token_key: Vec<u8>,
    pub created_ms: i64,
}

/// A spool that somebody wants.
#[derive(Clone, Copy)]
pub struct NewSpoolRow<'a> {
    pub account: Uuid,
    pub name: &'a str,
    /// numReplicas, and numSync.
    pub numbers: (u32, u32),
    /// Secret.
    pub token_key: [u8; 32],
}

/// How long nodes are told of one that was taken back. A stream that is behind for longer has broken.
const REMOVED_TOLD_MS: i64 = 3_600_000;

impl Store {
    /// Refused where the plan does not hold it. Two at once never exceed it: each waits for the other's number
    /// of the directory.
    pub async fn create_spool(
        &self,
        now_ms: i64,
        person: Uuid,
        new: &NewSpoolRow<'_>,
    ) -> Result<SpoolRow, StoreError> {
        let mut tx = self.pool.begin().await?;
        require_role(&mut tx, new.account, person, &["owner", "admin"]).await?;
        let version = next_version(&mut tx).await?;
        let plan: Option<PlanRow> =
            sqlx::query_as("SELECT p.* FROM accounts a JOIN plans p ON p.name = a.plan WHERE a.id = $1")
                .bind(new.account)
                .fetch_optional(&mut *tx)
                .await?;
        let plan =
            plan.ok_or_else(|| StoreError::refused(ErrorCode::NotFound, None, "there is no such account"))?;
        let used: i64 = sqlx::query_scalar("SELECT count(*) FROM spools WHERE account = $1")
            .bind(new.account)
            .fetch_one(&mut *tx)
            .await?;
        check_numbers(&plan, new.numbers)?;
        // A name that is taken is the more useful answer of the two.
        let row = insert(&mut tx, now_ms, version, Some(person), new).await?;
        if used >= i64::from(plan.spools) {
            let detail = format!("the plan {} holds {} spools", plan.name, plan.spools);
            return Err(StoreError::refused(ErrorCode::LimitExceeded, None, detail));
        }
        tx.commit().await?;
        self.changed.notify_waiters();
        Ok(row)
    }

    /// Takes back a spool that could not be placed. False if its placing has begun after all: then it goes on.
    pub async fn take_back_spool(&self, now_ms: i64, spool: Uuid) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let version = next_version(&mut tx).await?;
        let gone: Option<SpoolRow> = sqlx::query_as(
            "DELETE FROM spools WHERE id = $1 AND NOT placing_begun AND NOT placed RETURNING *",
        )
        .bind(spool)
        .fetch_optional(&mut *tx)
        .await?;
        let Some(gone) = gone else { return Ok(false) };
        sqlx::query("DELETE FROM removed_spools WHERE removed_ms < $1")
            .bind(now_ms - REMOVED_TOLD_MS)
            .execute(&mut *tx)
            .await?;
        sqlx::query("INSERT INTO removed_spools (id, version, removed_ms) VALUES ($1, $2, $3)")
            .bind(spool)
            .bind(version)
            .bind(now_ms)
            .execute(&mut *tx)
            .await?;
        let what = format!("the spool {} could not be placed and was taken back", gone.name);
        audit(&mut tx, now_ms, gone.account, None, what).await?;
        tx.commit().await?;
        self.changed.notify_waiters();
        Ok(true)
    }

    pub async fn spools(&self, account: Uuid) -> Result<Vec<SpoolRow>, StoreError> {
        let spools = sqlx::query_as("SELECT * FROM spools WHERE account = $1 ORDER BY name");
        Ok(spools.bind(account).fetch_all(&self.pool).await?)
    }

    pub async fn spool(&self, account: Uuid, name: &str) -> Result<Option<SpoolRow>, StoreError> {
        let spool = sqlx::query_as("SELECT * FROM spools WHERE account = $1 AND name = $2");
        Ok(spool.bind(account).bind(name).fetch_optional(&self.pool).await?)
    }
}

pub(super) async fn insert(
    tx: &mut Tx,
    now_ms: i64,
    version: i64,
    person: Option<Uuid>,
    new: &NewSpoolRow<'_>,
) -> Result<SpoolRow, StoreError> {
    let NewSpoolRow { account, name, numbers: (num_replicas, num_sync), token_key } = *new;
    let taken = || {
        let detail = format!("the account has a spool {name} already");
        StoreError::refused(ErrorCode::AlreadyExists, Some("name"), detail)
    };
    let row: SpoolRow = sqlx::query_as(
        "INSERT INTO spools (id, account, name, num_replicas, num_sync, token_key, created_ms, version)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING *",
    )
    .bind(Uuid::new_v4())
    .bind(account)
    .bind(name)
    .bind(i16::try_from(num_replicas).unwrap_or(i16::MAX))
    .bind(i16::try_from(num_sync).unwrap_or(i16::MAX))
    .bind(token_key.to_vec())
    .bind(now_ms)
    .bind(version)
    .fetch_one(&mut **tx)
    .await
    .map_err(|error| where_taken(error, "spools_name", taken))?;
    let what = format!("made the spool {name}: numReplicas {num_replicas}, numSync {num_sync}");
    audit(tx, now_ms, account, person, what).await?;
    Ok(row)
}

fn check_numbers(plan: &PlanRow, (num_replicas, num_sync): (u32, u32)) -> Result<(), StoreError> {
    let wrong = |code, field, detail| Err(StoreError::refused(code, Some(field), detail));
    let most = u32::from(types::limits::REPLICAS_MAX);
    if num_replicas == 0 || num_replicas > most {
        let detail = format!("numReplicas is a whole number from 1 to {most}");
        return wrong(ErrorCode::InvalidRequest, "num_replicas", detail);
    }
    if num_sync >= num_replicas {
        let detail = format!("numSync is at most numReplicas - 1, which is {}", num_replicas - 1);
        return wrong(ErrorCode::InvalidRequest, "num_sync", detail);
    }
    if i64::from(num_replicas) > i64::from(plan.replicas) {
        let detail = format!("the plan {} holds spools of {} replicas at most", plan.name, plan.replicas);
        return wrong(ErrorCode::LimitExceeded, "num_replicas", detail);
    }
    Ok(())
}

impl SpoolRow {
    pub fn to_place(&self) -> Option<NewSpool> {
        Some(NewSpool {
            id: SpoolId(self.id),
            account: AccountId(self.account),
            name: self.name.clone(),
            n: u8::try_from(self.num_replicas).ok()?,
            k: u8::try_from(self.num_sync).ok()?,
            token_key: self.token_key.as_slice().try_into().ok()?,
            created_ms: self.created_ms,
        })
    }
}

#[tonic::async_trait]
impl SpoolRows for Store {
    async fn unplaced(&self, limit: u32) -> Result<Vec<NewSpool>, RowsError> {
        let rows: Vec<SpoolRow> =
            sqlx::query_as("SELECT * FROM spools WHERE NOT placed ORDER BY created_ms, id LIMIT $1")
                .bind(i64::from(limit))
                .fetch_all(&self.pool)
                .await?;
        Ok(rows.iter().filter_map(SpoolRow::to_place).collect())
    }

    async fn begin_placing(&self, spool: SpoolId) -> Result<bool, RowsError> {
        let begun = sqlx::query("UPDATE spools SET placing_begun = true WHERE id = $1")
            .bind(spool.0)
            .execute(&self.pool)
            .await?;
        Ok(begun.rows_affected() > 0)
    }

    async fn mark_placed(&self, spool: SpoolId) -> Result<(), RowsError> {
        sqlx::query("UPDATE spools SET placed = true WHERE id = $1")
            .bind(spool.0)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn names(&self, spools: &[SpoolId]) -> Result<Vec<Named>, RowsError> {
        let ids: Vec<Uuid> = spools.iter().map(|spool| spool.0).collect();
        let rows: Vec<(Uuid, Uuid, String, String, i16, i16)> = sqlx::query_as(
            "SELECT s.id, s.account, a.name, s.name, s.num_replicas, s.num_sync
             FROM spools s JOIN accounts a ON a.id = s.account WHERE s.id = ANY($1)",
        )
        .bind(ids)
        .fetch_all(&self.pool)
        .await?;
        let named = |(id, account, account_name, name, n, k): (Uuid, Uuid, String, String, i16, i16)| Named {
            id: SpoolId(id),
            account: AccountId(account),
            account_name,
            name,
            n: u8::try_from(n).unwrap_or(0),
            k: u8::try_from(k).unwrap_or(0),
        };
        Ok(rows.into_iter().map(named).collect())
    }
}
