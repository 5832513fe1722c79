//! API keys, by their hashes.

use super::accounts::require_role;
use super::{Store, StoreError, audit, next_version};
use sqlx::FromRow;
use types::ErrorCode;
use uuid::Uuid;

/// Keys of one account that are not deleted.
const KEYS_MAX: i64 = 1_000;
/// Nodes that are connected have long been told by then.
const DELETED_KEPT_MS: i64 = 86_400_000;

#[derive(Clone, Debug, FromRow, PartialEq, Eq)]
pub struct KeyRow {
    pub id: Uuid,
    pub account: Uuid,
    pub name: String,
    pub hint: String,
    pub hash: Vec<u8>,
    pub scopes: Vec<String>,
    pub spool: String,
    pub queue_prefix: String,
    pub expires_ms: i64,
    pub created_ms: i64,
    pub last_used_ms: i64,
}

#[derive(Clone, Debug)]
pub struct NewKey {
    pub account: Uuid,
    pub person: Uuid,
    pub name: String,
    pub hint: String,
    pub hash: [u8; 32],
    pub scopes: Vec<String>,
    pub spool: String,
    pub queue_prefix: String,
    pub expires_ms: i64,
}

impl Store {
    pub async fn keys(&self, account: Uuid) -> Result<Vec<KeyRow>, StoreError> {
        let keys = sqlx::query_as(
            "SELECT * FROM api_keys WHERE account = $1 AND deleted_ms IS NULL ORDER BY created_ms, id",
        );
        Ok(keys.bind(account).fetch_all(&self.pool).await?)
    }

    pub async fn key_by_hash(&self, hash: &[u8]) -> Result<Option<KeyRow>, StoreError> {
        let key = sqlx::query_as("SELECT * FROM api_keys WHERE hash = $1 AND deleted_ms IS NULL");
        Ok(key.bind(hash).fetch_optional(&self.pool).await?)
    }

    pub async fn create_key(&self, now_ms: i64, new: &NewKey) -> Result<KeyRow, StoreError> {
        let mut tx = self.pool.begin().await?;
        require_role(&mut tx, new.account, new.person, &["owner", "admin"]).await?;
        let version = next_version(&mut tx).await?;
        let count: i64 =
            sqlx::query_scalar("SELECT count(*) FROM api_keys WHERE account = $1 AND deleted_ms IS NULL")
                .bind(new.account)
                .fetch_one(&mut *tx)
                .await?;
        if count >= KEYS_MAX {
            let detail = format!("an account has {KEYS_MAX} keys at most");
            return Err(StoreError::refused(ErrorCode::LimitExceeded, None, detail));
        }
        let row: KeyRow = sqlx::query_as(
            "INSERT INTO api_keys
             (id, account, name, hint, hash, scopes, spool, queue_prefix, expires_ms, created_ms, version)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) RETURNING *",
        )
        .bind(Uuid::new_v4())
        .bind(new.account)
        .bind(&new.name)
        .bind(&new.hint)
        .bind(new.hash.to_vec())
        .bind(&new.scopes)
        .bind(&new.spool)
        .bind(&new.queue_prefix)
        .bind(new.expires_ms)
        .bind(now_ms)
        .bind(version)
        .fetch_one(&mut *tx)
        .await?;
        let what = format!("made the API key {} ({})", row.name, row.id);
        audit(&mut tx, now_ms, new.account, Some(new.person), what).await?;
        tx.commit().await?;
        self.changed.notify_waiters();
        Ok(row)
    }

    /// Another account's key is not there.
    pub async fn delete_key(
        &self,
        now_ms: i64,
        account: Uuid,
        person: Uuid,
        key: Uuid,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        require_role(&mut tx, account, person, &["owner", "admin"]).await?;
        let version = next_version(&mut tx).await?;
        let deleted = sqlx::query(
            "UPDATE api_keys SET deleted_ms = $3, version = $4
             WHERE id = $1 AND account = $2 AND deleted_ms IS NULL",
        )
        .bind(key)
        .bind(account)
        .bind(now_ms)
        .bind(version)
        .execute(&mut *tx)
        .await?;
        if deleted.rows_affected() == 0 {
            return Err(StoreError::refused(ErrorCode::NotFound, None, "there is no such key"));
        }
        sqlx::query("DELETE FROM api_keys WHERE account = $1 AND deleted_ms < $2")
            .bind(account)
            .bind(now_ms - DELETED_KEPT_MS)
            .execute(&mut *tx)
            .await?;
        audit(&mut tx, now_ms, account, Some(person), format!("deleted the API key {key}")).await?;
        tx.commit().await?;
        self.changed.notify_waiters();
        Ok(())
    }

    /// Never backwards.
    pub async fn keys_used(&self, uses: &[(Uuid, i64)]) -> Result<(), StoreError> {
        let (ids, times): (Vec<Uuid>, Vec<i64>) = uses.iter().copied().unzip();
        sqlx::query(
            "UPDATE api_keys SET last_used_ms = greatest(last_used_ms, used.at)
             FROM (SELECT unnest($1::uuid[]) AS id, unnest($2::bigint[]) AS at) AS used
             WHERE api_keys.id = used.id",
        )
        .bind(ids)
        .bind(times)
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}
