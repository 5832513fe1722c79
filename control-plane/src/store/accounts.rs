//! People, the accounts they belong to, and what an account's plan allows.

use super::sessions::{self, NewSession, SessionRow};
use super::spools::{self, NewSpoolRow, SpoolRow};
use super::{Store, StoreError, Tx, audit, next_version, where_taken};
use sqlx::FromRow;
use types::ErrorCode;
use uuid::Uuid;

/// Every account has it from the beginning.
const DEFAULT_SPOOL: &str = "default";

#[derive(Clone, Debug, FromRow, PartialEq, Eq)]
pub struct PlanRow {
    pub name: String,
    pub replicas: i32,
    pub spools: i32,
    pub queues_per_spool: i32,
    pub message_bytes: i32,
    pub request_bytes: i32,
    pub stored_bytes: i64,
    pub requests_per_second: i32,
    pub retention_seconds: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountRow {
    pub id: Uuid,
    pub name: String,
    pub created_ms: i64,
    pub plan: PlanRow,
    pub spools_used: i64,
}

/// Somebody who signs up; `token_key` is their default spool's.
pub struct NewAccount<'a> {
    pub email: &'a str,
    pub password_hash: &'a str,
    pub name: &'a str,
    pub plan: &'a str,
    pub token_key: [u8; 32],
}

/// Somebody who may sign in, and the account they work for.
#[derive(Clone, Debug, FromRow)]
pub struct Person {
    pub id: Uuid,
    pub account: Uuid,
    pub password_hash: String,
}

impl Store {
    pub async fn plans(&self) -> Result<Vec<PlanRow>, StoreError> {
        Ok(sqlx::query_as("SELECT * FROM plans ORDER BY place").fetch_all(&self.pool).await?)
    }

    pub async fn plan(&self, name: &str) -> Result<Option<PlanRow>, StoreError> {
        Ok(sqlx::query_as("SELECT * FROM plans WHERE name = $1")
            .bind(name)
            .fetch_optional(&self.pool)
            .await?)
    }

    pub async fn account(&self, id: Uuid) -> Result<AccountRow, StoreError> {
        let row: Option<(String, i64, String, i64)> = sqlx::query_as(
            "SELECT name, created_ms, plan, (SELECT count(*) FROM spools WHERE account = $1)
             FROM accounts WHERE id = $1",
        )
        .bind(id)
        .fetch_optional(&self.pool)
        .await?;
        let (name, created_ms, plan, spools_used) = row.ok_or_else(no_account)?;
        let plan = self.plan(&plan).await?.ok_or_else(no_account)?;
        Ok(AccountRow { id, name, created_ms, plan, spools_used })
    }

    /// A person, their account, its default spool and a first session, all or nothing.
    pub async fn create_account(
        &self,
        now_ms: i64,
        new: &NewAccount<'_>,
        session: &NewSession,
    ) -> Result<(SessionRow, SpoolRow), StoreError> {
        let (person, account) = (Uuid::new_v4(), Uuid::new_v4());
        let mut tx = self.pool.begin().await?;
        let version = next_version(&mut tx).await?;
        let plan: Option<PlanRow> = sqlx::query_as("SELECT * FROM plans WHERE name = $1")
            .bind(new.plan)
            .fetch_optional(&mut *tx)
            .await?;
        let plan = plan.ok_or_else(|| no_plan(new.plan))?;
        insert_person(&mut tx, now_ms, person, new).await?;
        sqlx::query("INSERT INTO accounts (id, name, plan, created_ms, version) VALUES ($1, $2, $3, $4, $5)")
            .bind(account)
            .bind(new.name)
            .bind(new.plan)
            .bind(now_ms)
            .bind(version)
            .execute(&mut *tx)
            .await?;
        sqlx::query("INSERT INTO members (account, person, role) VALUES ($1, $2, 'owner')")
            .bind(account)
            .bind(person)
            .execute(&mut *tx)
            .await?;
        audit(&mut tx, now_ms, account, Some(person), format!("signed up on the plan {}", new.plan)).await?;
        let spool = NewSpoolRow {
            account,
            name: DEFAULT_SPOOL,
            numbers: plan.default_numbers(),
            token_key: new.token_key,
        };
        let spool = spools::insert(&mut tx, now_ms, version, None, &spool).await?;
        let session = sessions::insert(&mut tx, now_ms, person, account, session).await?;
        tx.commit().await?;
        self.changed.notify_waiters();
        Ok((session, spool))
    }

    pub async fn person_by_email(&self, email: &str) -> Result<Option<Person>, StoreError> {
        let person = sqlx::query_as(
            "SELECT p.id, m.account, p.password_hash FROM people p JOIN members m ON m.person = p.id
             WHERE lower(p.email) = lower($1) ORDER BY m.account LIMIT 1",
        );
        Ok(person.bind(email).fetch_optional(&self.pool).await?)
    }

    /// Existing spools stay as they are, whatever the new plan holds.
    pub async fn set_plan(
        &self,
        now_ms: i64,
        account: Uuid,
        person: Uuid,
        plan: &str,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        require_role(&mut tx, account, person, &["owner"]).await?;
        let version = next_version(&mut tx).await?;
        sqlx::query("UPDATE accounts SET plan = $2, version = $3 WHERE id = $1")
            .bind(account)
            .bind(plan)
            .bind(version)
            .execute(&mut *tx)
            .await
            .map_err(|error| where_taken(error, "accounts_plan_fkey", || no_plan(plan)))?;
        audit(&mut tx, now_ms, account, Some(person), format!("chose the plan {plan}")).await?;
        tx.commit().await?;
        self.changed.notify_waiters();
        Ok(())
    }
}

/// That the person has one of these roles in the account.
pub(super) async fn require_role(
    tx: &mut Tx,
    account: Uuid,
    person: Uuid,
    roles: &[&str],
) -> Result<(), StoreError> {
    let role: Option<String> =
        sqlx::query_scalar("SELECT role FROM members WHERE account = $1 AND person = $2")
            .bind(account)
            .bind(person)
            .fetch_optional(&mut **tx)
            .await?;
    if role.as_deref().is_some_and(|role| roles.contains(&role)) {
        return Ok(());
    }
    let detail = format!("only for members with the role {}", roles.join(" or "));
    Err(StoreError::refused(ErrorCode::Forbidden, None, detail))
}

async fn insert_person(
    tx: &mut Tx,
    now_ms: i64,
    person: Uuid,
    new: &NewAccount<'_>,
) -> Result<(), StoreError> {
    let taken = || {
        let detail = "somebody has signed up with this address already";
        StoreError::refused(ErrorCode::AlreadyExists, Some("email"), detail)
    };
    sqlx::query("INSERT INTO people (id, email, password_hash, created_ms) VALUES ($1, $2, $3, $4)")
        .bind(person)
        .bind(new.email)
        .bind(new.password_hash)
        .bind(now_ms)
        .execute(&mut **tx)
        .await
        .map(drop)
        .map_err(|error| where_taken(error, "people_email", taken))
}

impl PlanRow {
    /// The default spool's replicas, and how many of them confirm before an answer: one copy may be away where
    /// there are three and more.
    fn default_numbers(&self) -> (u32, u32) {
        let replicas = u32::try_from(self.replicas).unwrap_or(1);
        (replicas, replicas.saturating_sub(2))
    }
}

fn no_plan(plan: &str) -> StoreError {
    StoreError::refused(ErrorCode::InvalidRequest, Some("plan"), format!("there is no plan {plan:?}"))
}

fn no_account() -> StoreError {
    StoreError::refused(ErrorCode::NotFound, None, "there is no such account")
}
