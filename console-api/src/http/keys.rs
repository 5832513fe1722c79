//! API keys: what programs use the queues with. A key's secret is in the answer to its creation, and nowhere
//! else, ever.

use super::account::present;
use super::extract::{Json, KeyPath, NoQuery};
use super::fields::{Fields, FromFields};
use super::page::Page;
use super::problem::Problem;
use super::session::not_blank;
use super::spools::{time, time_if_any};
use crate::sessions::Person;
use crate::{App, clock};
use axum::extract::State;
use http::StatusCode;
use jiff::Timestamp;
use proto::control as wire;
use serde::Serialize;
use types::limits::NAME_LEN_MAX;
use types::{QueueName, SpoolName};
use utoipa::ToSchema;

const SCOPES: [&str; 4] = ["send", "receive", "read", "manage"];

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct CreateKeyRequest {
    #[schema(min_length = 1, max_length = 128)]
    name: String,
    /// `send`; `receive`: receive, settle, extend; `read`: look, counts, spools; `manage`: read, and configure,
    /// purge, redrive, delete.
    #[schema(min_items = 1, max_items = 4)]
    scopes: Vec<String>,
    /// The only spool that it is for. Left out: any.
    spool: Option<String>,
    /// The beginning of the queues' names that it is for. Left out: any.
    queue_prefix: Option<String>,
    #[schema(value_type = Option<String>, format = "date-time")]
    expires_at: Option<Timestamp>,
}

impl FromFields for CreateKeyRequest {
    const KNOWN: &'static [&'static str] = &["name", "scopes", "spool", "queuePrefix", "expiresAt"];
    fn read(fields: &mut Fields) -> Result<Self, Problem> {
        let name = not_blank("name", fields.text("name", 1..=NAME_LEN_MAX)?)?;
        let scopes = scopes(fields.texts("scopes")?)?;
        let spool = fields.text_if_any("spool", 1..=NAME_LEN_MAX)?;
        if let Some(Err(error)) = spool.as_deref().map(str::parse::<SpoolName>) {
            return Err(Problem::invalid("spool", format!("Not a spool's name: {error}.")));
        }
        let queue_prefix = fields.text_if_any("queuePrefix", 1..=NAME_LEN_MAX)?;
        if let Some(Err(error)) = queue_prefix.as_deref().map(str::parse::<QueueName>) {
            return Err(Problem::invalid("queuePrefix", format!("No queue's name begins so: {error}.")));
        }
        let expires_at = fields.time_if_any("expiresAt")?;
        if expires_at.is_some_and(|time| time <= clock::now()) {
            return Err(Problem::invalid("expiresAt", "The time is past."));
        }
        Ok(CreateKeyRequest { name, scopes, spool, queue_prefix, expires_at })
    }
}

fn scopes(scopes: Vec<String>) -> Result<Vec<String>, Problem> {
    let known = scopes.iter().all(|scope| SCOPES.contains(&scope.as_str()));
    let once = scopes.iter().enumerate().all(|(at, scope)| !scopes[..at].contains(scope));
    if !known || !once || scopes.is_empty() {
        let detail = format!("The field must be a list of one or more of {}, each once.", SCOPES.join(", "));
        return Err(Problem::invalid("scopes", detail));
    }
    Ok(scopes)
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    id: String,
    name: String,
    /// The key's first characters, to recognise it by.
    hint: String,
    scopes: Vec<String>,
    spool: Option<String>,
    queue_prefix: Option<String>,
    #[schema(format = "date-time")]
    created_at: String,
    #[schema(format = "date-time")]
    expires_at: Option<String>,
    #[schema(format = "date-time")]
    last_used_at: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct NewKey {
    /// The key itself, shown this once.
    secret: String,
    #[serde(flatten)]
    key: Key,
}

#[derive(Serialize, ToSchema)]
pub struct KeyList {
    keys: Vec<Key>,
    next: Option<String>,
}

fn shape(info: wire::KeyInfo) -> Result<Key, Problem> {
    let key = present(info.key, "key")?;
    let if_any = |text: String| (!text.is_empty()).then_some(text);
    Ok(Key {
        id: key.id,
        name: info.name,
        hint: info.hint,
        scopes: key.scopes,
        spool: if_any(key.spool),
        queue_prefix: if_any(key.queue_prefix),
        created_at: time(info.created_ms)?,
        expires_at: time_if_any(key.expires_ms)?,
        last_used_at: time_if_any(info.last_used_ms)?,
    })
}

/// The account's keys, the oldest first.
#[utoipa::path(get, path = "/api/keys", tag = "keys", security(("session" = [])),
    params(("limit" = Option<u32>, Query), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = KeyList)))]
pub async fn list_keys(
    State(app): State<App>,
    person: Person,
    page: Page,
) -> Result<axum::Json<KeyList>, Problem> {
    let request = wire::AccountRequest { account_id: person.account_bytes() };
    let keys = app.control.list_keys(request).await?.keys;
    let id = |info: &wire::KeyInfo| info.key.as_ref().map(|key| key.id.clone()).unwrap_or_default();
    let order = |info: &wire::KeyInfo| format!("{:020}.{}", info.created_ms, id(info));
    let (keys, next) = page.of(&[b"keys", person.account.as_bytes()], keys, order)?;
    Ok(axum::Json(KeyList { keys: keys.into_iter().map(shape).collect::<Result<_, _>>()?, next }))
}

/// A new key. It works on every node at once.
#[utoipa::path(post, path = "/api/keys", tag = "keys", security(("session" = [])),
    request_body = CreateKeyRequest, responses((status = 201, body = NewKey)))]
pub async fn create_key(
    State(app): State<App>,
    person: Person,
    _: NoQuery,
    Json(request): Json<CreateKeyRequest>,
) -> Result<(StatusCode, axum::Json<NewKey>), Problem> {
    let reply = app
        .control
        .create_key(wire::CreateKeyRequest {
            account_id: person.account_bytes(),
            person_id: person.id,
            name: request.name,
            scopes: request.scopes,
            spool: request.spool.unwrap_or_default(),
            queue_prefix: request.queue_prefix.unwrap_or_default(),
            expires_ms: request.expires_at.map_or(0, Timestamp::as_millisecond),
        })
        .await?;
    let key = shape(present(reply.info, "info")?)?;
    Ok((StatusCode::CREATED, axum::Json(NewKey { secret: reply.secret, key })))
}

/// Revokes a key: no node takes it after 5 s.
#[utoipa::path(delete, path = "/api/keys/{id}", tag = "keys", security(("session" = [])),
    params(("id" = String, Path)), responses((status = 204, description = "It is revoked")))]
pub async fn delete_key(
    State(app): State<App>,
    person: Person,
    KeyPath(key_id): KeyPath,
    _: NoQuery,
) -> Result<StatusCode, Problem> {
    let account_id = person.account_bytes();
    app.control.delete_key(wire::DeleteKeyRequest { account_id, person_id: person.id, key_id }).await?;
    Ok(StatusCode::NO_CONTENT)
}
