//! The gRPC services for nodes and for the console API. Thin: each call checks who asks and what, and asks the store.
//!
//! * [`console`]: accounts, sessions, keys, spools, on behalf of signed-in people
//! * [`nodes`]: the directory, look-ups, suspicions
//! * [`check`]: names, scopes, addresses
//! * [`passwords`] and [`tokens`]: what is secret

mod check;
mod console;
mod nodes;
mod passwords;
#[cfg(test)]
mod tests;
mod tokens;

pub use console::ConsoleService;
pub use nodes::NodesService;
pub use passwords::Passwords;
pub use tokens::Signer;

use crate::store::{AccountRow, KeyRow, PlanRow, SpoolRow, StoreError};
use proto::control as pb;
use tonic::{Code, Request, Status};
use types::ErrorCode;
use uuid::Uuid;

/// DNS names in the client's certificate. That it is one of the installation's was verified in the handshake.
fn names_of<T>(request: &Request<T>) -> Vec<String> {
    let Some(certificates) = request.peer_certs() else { return Vec::new() };
    let Some(first) = certificates.first() else { return Vec::new() };
    match webpki::EndEntityCert::try_from(first) {
        Ok(certificate) => certificate.valid_dns_names().map(str::to_owned).collect(),
        Err(_) => Vec::new(),
    }
}

fn refused(code: ErrorCode, field: Option<&str>, detail: impl Into<String>) -> Status {
    let grpc = match code.http_status() {
        400 | 422 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 if code == ErrorCode::LimitExceeded => Code::ResourceExhausted,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        409 if code == ErrorCode::AlreadyExists => Code::AlreadyExists,
        503 => Code::Unavailable,
        500 => Code::Internal,
        _ => Code::FailedPrecondition,
    };
    let mut status = Status::new(grpc, detail.into());
    let mut put = |name: &'static str, value: &str| {
        if let Ok(value) = value.parse() {
            status.metadata_mut().insert(name, value);
        }
    };
    put("spool-code", code.as_str());
    if let Some(field) = field {
        put("spool-field", field);
    }
    status
}

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Status {
        match error {
            StoreError::Refused { code, field, detail } => refused(code, field, detail),
            StoreError::Postgres(error) => {
                // Before a statement was sent, nothing was done; else nobody knows.
                let unsent = matches!(error, sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed);
                tracing::error!(error = &error as &dyn std::error::Error, "PostgreSQL");
                match unsent {
                    true => Status::unavailable("the database cannot be reached now"),
                    false => Status::aborted("the database did not answer"),
                }
            }
        }
    }
}

/// For what fails after something was done: then UNAVAILABLE, which promises that nothing was, is not the word.
fn in_doubt(status: Status) -> Status {
    match status.code() {
        Code::Unavailable => Status::aborted(status.message()),
        _ => status,
    }
}

fn read_uuid(field: &'static str, bytes: &[u8]) -> Result<Uuid, Status> {
    Uuid::from_slice(bytes).map_err(|_| refused(ErrorCode::InvalidRequest, Some(field), "not an id"))
}

fn parse_uuid(field: &'static str, text: &str) -> Result<Uuid, Status> {
    text.parse().map_err(|_| refused(ErrorCode::InvalidRequest, Some(field), "not an id"))
}

fn plan(row: &PlanRow) -> pb::Plan {
    let small = |n: i32| u32::try_from(n).unwrap_or(0);
    pb::Plan {
        name: row.name.clone(),
        replicas: small(row.replicas),
        spools: small(row.spools),
        queues_per_spool: small(row.queues_per_spool),
        message_bytes: small(row.message_bytes),
        request_bytes: small(row.request_bytes),
        stored_bytes: u64::try_from(row.stored_bytes).unwrap_or(0),
        requests_per_second: small(row.requests_per_second),
        retention_seconds: small(row.retention_seconds),
    }
}

fn account(id: Uuid, name: &str, row: &PlanRow) -> pb::Account {
    pb::Account { id: id.as_bytes().to_vec().into(), name: name.to_owned(), plan: Some(plan(row)) }
}

fn account_reply(row: &AccountRow) -> pb::AccountReply {
    pb::AccountReply {
        account: Some(account(row.id, &row.name, &row.plan)),
        spools_used: u32::try_from(row.spools_used).unwrap_or(u32::MAX),
        created_ms: row.created_ms,
    }
}

fn key(row: &KeyRow) -> pb::ApiKey {
    pb::ApiKey {
        id: row.id.to_string(),
        account_id: row.account.as_bytes().to_vec().into(),
        hash: row.hash.clone().into(),
        scopes: row.scopes.clone(),
        spool: row.spool.clone(),
        queue_prefix: row.queue_prefix.clone(),
        expires_ms: row.expires_ms,
    }
}

fn spool(row: &SpoolRow) -> pb::Spool {
    pb::Spool {
        id: row.id.as_bytes().to_vec().into(),
        account_id: row.account.as_bytes().to_vec().into(),
        name: row.name.clone(),
        num_replicas: u32::try_from(row.num_replicas).unwrap_or(0),
        num_sync: u32::try_from(row.num_sync).unwrap_or(0),
        created_ms: row.created_ms,
    }
}
