//! Spools: created here with their two numbers, which never change; looked at here and with API keys.

use super::account::present;
use super::extract::{Json, NoQuery, SpoolPath};
use super::fields::{Fields, FromFields};
use super::page::Page;
use super::problem::Problem;
use crate::sessions::Person;
use crate::{App, promise};
use axum::extract::State;
use http::StatusCode;
use http::header::{HeaderName, LOCATION};
use jiff::Timestamp;
use proto::control as wire;
use serde::Serialize;
use types::SpoolName;
use types::limits::{NAME_LEN_MAX, REPLICAS_MAX};
use utoipa::ToSchema;

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct CreateSpoolRequest {
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    name: String,
    /// How many nodes hold the data, the primary included. The plan may hold less.
    #[schema(minimum = 1, maximum = 5)]
    num_replicas: u32,
    /// How many other copies confirm a write before its response: at most numReplicas - 1.
    #[schema(minimum = 0, maximum = 4)]
    num_sync: u32,
}

impl FromFields for CreateSpoolRequest {
    const KNOWN: &'static [&'static str] = &["name", "numReplicas", "numSync"];
    fn read(fields: &mut Fields) -> Result<Self, Problem> {
        let name = fields.text("name", 1..=NAME_LEN_MAX)?;
        if let Err(error) = name.parse::<SpoolName>() {
            return Err(Problem::invalid("name", format!("Not a spool's name: {error}.")));
        }
        let most = u32::from(REPLICAS_MAX);
        let num_replicas = fields.whole("numReplicas", 1..=most)?;
        let num_sync = fields.whole("numSync", 0..=most - 1)?;
        if num_sync > num_replicas - 1 {
            let detail = format!(
                "numSync counts the other copies: with {num_replicas} replicas at most {}.",
                num_replicas - 1
            );
            return Err(Problem::invalid("numSync", detail));
        }
        Ok(CreateSpoolRequest { name, num_replicas, num_sync })
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Spool {
    name: String,
    num_replicas: u32,
    num_sync: u32,
    #[schema(format = "date-time")]
    created_at: String,
    /// `serving`, `confirming_blocked`, `electing`, `no_primary`, `placing`, `quarantined` or `lost`.
    state: String,
    epoch: u64,
    /// What a response to a write promises, in words.
    promise: String,
    /// What happens when one of its nodes is lost, in words.
    with_one_node_lost: String,
    writable_with_one_node_lost: bool,
    /// The copies without which no primary can be chosen.
    waiting_for: Vec<String>,
    waiting_writes: u64,
    copies: Vec<SpoolCopy>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpoolCopy {
    alias: String,
    /// `primary`, `copy` or `learner`.
    role: String,
    reachable: bool,
    /// `<epoch>.<seq>`
    confirmed_position: String,
    behind_entries: u64,
    behind_seconds: f64,
}

#[derive(Serialize, ToSchema)]
pub struct SpoolList {
    spools: Vec<Spool>,
    next: Option<String>,
}

fn shape(detail: wire::SpoolDetail) -> Result<Spool, Problem> {
    let spool = present(detail.spool, "spool")?;
    let (replicas, sync) = (spool.num_replicas, spool.num_sync);
    Ok(Spool {
        name: spool.name,
        num_replicas: replicas,
        num_sync: sync,
        created_at: time(spool.created_ms)?,
        state: detail.state,
        epoch: detail.epoch,
        promise: promise::of_a_write(replicas, sync),
        with_one_node_lost: promise::with_one_node_lost(replicas, sync),
        writable_with_one_node_lost: promise::writable_with_one_node_lost(replicas, sync),
        waiting_for: detail.waiting_for,
        waiting_writes: detail.waiting_writes,
        copies: detail.copies.into_iter().map(SpoolCopy::from).collect(),
    })
}

impl From<wire::CopyDetail> for SpoolCopy {
    fn from(copy: wire::CopyDetail) -> Self {
        SpoolCopy {
            alias: copy.alias,
            role: copy.role,
            reachable: copy.reachable,
            confirmed_position: copy.confirmed_position,
            behind_entries: copy.behind_entries,
            behind_seconds: copy.behind_seconds,
        }
    }
}

/// RFC 3339, UTC, with milliseconds.
pub fn time(ms: i64) -> Result<String, Problem> {
    let time = Timestamp::from_millisecond(ms).ok().map(|time| format!("{time:.3}"));
    present(time, "time")
}

/// Of a moment that 0 stands for not having.
pub fn time_if_any(ms: i64) -> Result<Option<String>, Problem> {
    (ms != 0).then(|| time(ms)).transpose()
}

/// The account's spools, by name.
#[utoipa::path(get, path = "/api/spools", tag = "spools", security(("session" = [])),
    params(("limit" = Option<u32>, Query), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = SpoolList)))]
pub async fn list_spools(
    State(app): State<App>,
    person: Person,
    page: Page,
) -> Result<axum::Json<SpoolList>, Problem> {
    let request = wire::AccountRequest { account_id: person.account_bytes() };
    let spools = app.control.list_spools(request).await?.spools;
    let order = |detail: &wire::SpoolDetail| {
        detail.spool.as_ref().map(|spool| spool.name.clone()).unwrap_or_default()
    };
    let (spools, next) = page.of(&[b"spools", person.account.as_bytes()], spools, order)?;
    Ok(axum::Json(SpoolList { spools: spools.into_iter().map(shape).collect::<Result<_, _>>()?, next }))
}

/// A new spool. Both numbers are for good.
#[utoipa::path(post, path = "/api/spools", tag = "spools", security(("session" = [])),
    request_body = CreateSpoolRequest, responses((status = 201, body = Spool)))]
pub async fn create_spool(
    State(app): State<App>,
    person: Person,
    _: NoQuery,
    Json(request): Json<CreateSpoolRequest>,
) -> Result<(StatusCode, [(HeaderName, String); 1], axum::Json<Spool>), Problem> {
    let CreateSpoolRequest { name, num_replicas, num_sync } = request;
    let location = format!("/api/spools/{name}");
    let (account_id, person_id) = (person.account_bytes(), person.id);
    let request = wire::CreateSpoolRequest { account_id, person_id, name, num_replicas, num_sync };
    let spool = shape(app.control.create_spool(request).await?)?;
    Ok((StatusCode::CREATED, [(LOCATION, location)], axum::Json(spool)))
}

/// One spool: its copies, how far each is, who is primary, and what a response promises.
#[utoipa::path(get, path = "/api/spools/{name}", tag = "spools", security(("session" = [])),
    params(("name" = String, Path)), responses((status = 200, body = Spool)))]
pub async fn get_spool(
    State(app): State<App>,
    person: Person,
    SpoolPath(name): SpoolPath,
    _: NoQuery,
) -> Result<axum::Json<Spool>, Problem> {
    let request = wire::GetSpoolRequest { account_id: person.account_bytes(), name: name.into() };
    Ok(axum::Json(shape(app.control.get_spool(request).await?)?))
}
