//! What nodes are told: everything, or what changed since a version.

use super::accounts::PlanRow;
use super::keys::KeyRow;
use super::spools::SpoolRow;
use super::{Store, StoreError};
use uuid::Uuid;

/// As of one version.
pub struct Changes {
    pub version: i64,
    pub accounts: Vec<(Uuid, String, PlanRow)>,
    pub keys: Vec<KeyRow>,
    pub spools: Vec<SpoolRow>,
    pub removed_keys: Vec<Uuid>,
    pub removed_spools: Vec<Uuid>,
}

impl Store {
    pub async fn directory_version(&self) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar("SELECT version FROM directory").fetch_one(&self.pool).await?)
    }

    /// What has a version above `since`; zero: everything. Read as of one moment.
    pub async fn changes(&self, since: i64) -> Result<Changes, StoreError> {
        let mut tx = self.pool.begin().await?;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").execute(&mut *tx).await?;
        let version = sqlx::query_scalar("SELECT version FROM directory").fetch_one(&mut *tx).await?;
        let accounts: Vec<(Uuid, String, String)> =
            sqlx::query_as("SELECT id, name, plan FROM accounts WHERE version > $1")
                .bind(since)
                .fetch_all(&mut *tx)
                .await?;
        let plans: Vec<PlanRow> = sqlx::query_as("SELECT * FROM plans").fetch_all(&mut *tx).await?;
        let keys = sqlx::query_as("SELECT * FROM api_keys WHERE version > $1 AND deleted_ms IS NULL")
            .bind(since)
            .fetch_all(&mut *tx)
            .await?;
        let spools =
            sqlx::query_as("SELECT * FROM spools WHERE version > $1").bind(since).fetch_all(&mut *tx).await?;
        // Whoever begins with everything knows nothing that could have gone.
        let (mut removed_keys, mut removed_spools) = (Vec::new(), Vec::new());
        if since > 0 {
            removed_keys =
                sqlx::query_scalar("SELECT id FROM api_keys WHERE version > $1 AND deleted_ms IS NOT NULL")
                    .bind(since)
                    .fetch_all(&mut *tx)
                    .await?;
            removed_spools = sqlx::query_scalar("SELECT id FROM removed_spools WHERE version > $1")
                .bind(since)
                .fetch_all(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        let with_plan = |(id, name, plan): (Uuid, String, String)| {
            plans.iter().find(|row| row.name == plan).map(|row| (id, name, row.clone()))
        };
        let accounts = accounts.into_iter().filter_map(with_plan).collect();
        Ok(Changes { version, accounts, keys, spools, removed_keys, removed_spools })
    }
}
