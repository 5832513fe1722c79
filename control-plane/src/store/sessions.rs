//! Who is signed in. A session lives as long as its refresh tokens are used in turn, each once.

use super::accounts::Person;
use super::{Store, StoreError, Tx};
use sqlx::FromRow;
use types::ErrorCode;
use uuid::Uuid;

#[derive(Clone, Debug, FromRow, PartialEq, Eq)]
pub struct SessionRow {
    pub id: Uuid,
    pub person: Uuid,
    pub account: Uuid,
    pub expires_ms: i64,
}

/// A session that begins.
pub struct NewSession {
    pub expires_ms: i64,
    pub refresh_hash: [u8; 32],
}

/// Of ended sessions, those whose last token may be unexpired, by any clock.
const ENDED_TOLD_MS: i64 = 2 * 10 * 60 * 1000;

impl Store {
    pub async fn begin_session(
        &self,
        now_ms: i64,
        person: &Person,
        new: &NewSession,
    ) -> Result<SessionRow, StoreError> {
        let mut tx = self.pool.begin().await?;
        // What nobody can use any more goes when its person comes back.
        sqlx::query("DELETE FROM sessions WHERE person = $1 AND (expires_ms < $2 OR ended_ms < $2)")
            .bind(person.id)
            .bind(now_ms - ENDED_TOLD_MS)
            .execute(&mut *tx)
            .await?;
        let session = insert(&mut tx, now_ms, person.id, person.account, new).await?;
        tx.commit().await?;
        Ok(session)
    }

    /// Uses a refresh token up and puts another in its place. One that was used before ends its session.
    pub async fn refresh_session(
        &self,
        now_ms: i64,
        used: [u8; 32],
        next: [u8; 32],
    ) -> Result<SessionRow, StoreError> {
        let ended =
            || StoreError::refused(ErrorCode::Unauthenticated, None, "the session has ended; sign in again");
        let mut tx = self.pool.begin().await?;
        let row: Option<(Uuid, Option<i64>)> =
            sqlx::query_as("SELECT session, used_ms FROM refresh_tokens WHERE hash = $1 FOR UPDATE")
                .bind(used.to_vec())
                .fetch_optional(&mut *tx)
                .await?;
        let (id, used_ms) = row.ok_or_else(ended)?;
        if used_ms.is_some() {
            sqlx::query("UPDATE sessions SET ended_ms = coalesce(ended_ms, $2) WHERE id = $1")
                .bind(id)
                .bind(now_ms)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            tracing::warn!(session = %id, "a refresh token was used twice; its session ends");
            return Err(ended());
        }
        let session: Option<SessionRow> = sqlx::query_as(
            "SELECT id, person, account, expires_ms FROM sessions
             WHERE id = $1 AND ended_ms IS NULL AND expires_ms > $2",
        )
        .bind(id)
        .bind(now_ms)
        .fetch_optional(&mut *tx)
        .await?;
        let session = session.ok_or_else(ended)?;
        sqlx::query("UPDATE refresh_tokens SET used_ms = $2 WHERE hash = $1")
            .bind(used.to_vec())
            .bind(now_ms)
            .execute(&mut *tx)
            .await?;
        insert_token(&mut tx, id, next).await?;
        tx.commit().await?;
        Ok(session)
    }

    pub async fn end_session(&self, now_ms: i64, session: Uuid) -> Result<(), StoreError> {
        sqlx::query("UPDATE sessions SET ended_ms = coalesce(ended_ms, $2) WHERE id = $1")
            .bind(session)
            .bind(now_ms)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Sessions that ended lately: tokens signed for them are refused although they have not expired.
    pub async fn ended_sessions(&self, now_ms: i64) -> Result<Vec<Uuid>, StoreError> {
        let ended = sqlx::query_scalar("SELECT id FROM sessions WHERE ended_ms > $1 LIMIT 100000");
        Ok(ended.bind(now_ms - ENDED_TOLD_MS).fetch_all(&self.pool).await?)
    }
}

pub(super) async fn insert(
    tx: &mut Tx,
    now_ms: i64,
    person: Uuid,
    account: Uuid,
    new: &NewSession,
) -> Result<SessionRow, sqlx::Error> {
    let session = SessionRow { id: Uuid::new_v4(), person, account, expires_ms: new.expires_ms };
    sqlx::query(
        "INSERT INTO sessions (id, person, account, created_ms, expires_ms) VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(session.id)
    .bind(session.person)
    .bind(session.account)
    .bind(now_ms)
    .bind(session.expires_ms)
    .execute(&mut **tx)
    .await?;
    insert_token(tx, session.id, new.refresh_hash).await?;
    Ok(session)
}

async fn insert_token(tx: &mut Tx, session: Uuid, hash: [u8; 32]) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO refresh_tokens (hash, session) VALUES ($1, $2)")
        .bind(hash.to_vec())
        .bind(session)
        .execute(&mut **tx)
        .await
        .map(drop)
}
