//! For the console API: on behalf of people.

use super::passwords::Passwords;
use super::tokens::{self, Signer};
use super::{account_reply, key, names_of, parse_uuid, plan, read_uuid, refused, spool};
use crate::edge::{now_ms, random};
use crate::inspect::{Aliases, Inspector};
use crate::reconcile::{PlaceError, Reconciler};
use crate::store::{KeyRow, NewKey, Person, SessionRow, SpoolRow, Store};
use proto::control as pb;
use proto::control::console_server::Console;
use std::sync::Arc;
use tonic::{Request, Response, Status};
use types::{ErrorCode, SpoolId, SpoolName};
use uuid::Uuid;

const CLIENT: &str = "console-api";
const PASSWORD_LEN: std::ops::RangeInclusive<usize> = 8..=256;
const EMAIL_LEN_MAX: usize = 254;
const NAME_LEN_MAX: usize = 200;
const SCOPES: [&str; 4] = ["send", "receive", "read", "manage"];
const DEFAULT_SPOOL: &str = "default";

pub struct ConsoleService {
    pub store: Arc<Store>,
    pub signer: Signer,
    pub passwords: Passwords,
    pub reconciler: Reconciler,
    pub inspector: Inspector,
    pub default_plan: String,
    pub aliases: Aliases,
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Console for ConsoleService {
    async fn sign_up(&self, request: Request<pb::SignUpRequest>) -> Reply<pb::Session> {
        let request = admit(request)?;
        let email = check_email(&request.email)?;
        if !PASSWORD_LEN.contains(&request.password.len()) {
            let (least, most) = (PASSWORD_LEN.start(), PASSWORD_LEN.end());
            return Err(invalid("password", format!("a password has {least} to {most} bytes")));
        }
        let name = check_name("account_name", &request.account_name)?;
        let password = self.passwords.hash(request.password).await?;
        let person = self.store.create_account(now_ms(), email, &password, name, &self.default_plan).await?;
        self.make_default_spool(person.account).await;
        Ok(Response::new(self.begin_session(&person).await?))
    }

    async fn log_in(&self, request: Request<pb::LogInRequest>) -> Reply<pb::Session> {
        let request = admit(request)?;
        // Nobody can have either.
        let possible = request.email.len() <= EMAIL_LEN_MAX && request.password.len() <= *PASSWORD_LEN.end();
        let person = match possible {
            true => self.store.person_by_email(request.email.trim()).await?,
            false => None,
        };
        let stored = person.as_ref().map(|person| person.password_hash.clone());
        let right = self.passwords.verify(request.password, stored).await?;
        match person.filter(|_| right) {
            Some(person) => Ok(Response::new(self.begin_session(&person).await?)),
            None => {
                let detail = "no such e-mail address and password";
                Err(refused(ErrorCode::Unauthenticated, None, detail))
            }
        }
    }

    async fn refresh(&self, request: Request<pb::RefreshRequest>) -> Reply<pb::Session> {
        let request = admit(request)?;
        let next = tokens::refresh_token();
        let (used, new) = (tokens::hash(&request.refresh_token), tokens::hash(&next));
        let session = self.store.refresh_session(now_ms(), used, new).await?;
        Ok(Response::new(self.session(&session, next)?))
    }

    async fn log_out(&self, request: Request<pb::LogOutRequest>) -> Reply<pb::LogOutReply> {
        let request = admit(request)?;
        let session = parse_uuid("session_id", &request.session_id)?;
        self.store.end_session(now_ms(), session).await?;
        Ok(Response::new(pb::LogOutReply {}))
    }

    async fn session_keys(&self, request: Request<pb::SessionKeysRequest>) -> Reply<pb::SessionKeysReply> {
        admit(request)?;
        let ended = self.store.ended_sessions(now_ms()).await?;
        Ok(Response::new(pb::SessionKeysReply {
            public_key_pem: self.signer.public_pem.clone(),
            ended_session_ids: ended.iter().map(Uuid::to_string).collect(),
        }))
    }

    async fn get_account(&self, request: Request<pb::AccountRequest>) -> Reply<pb::AccountReply> {
        let id = read_uuid("account_id", &admit(request)?.account_id)?;
        Ok(Response::new(account_reply(&self.store.account(id).await?)))
    }

    async fn list_plans(&self, request: Request<pb::ListPlansRequest>) -> Reply<pb::ListPlansReply> {
        admit(request)?;
        let plans = self.store.plans().await?.iter().map(plan).collect();
        Ok(Response::new(pb::ListPlansReply { plans }))
    }

    async fn set_plan(&self, request: Request<pb::SetPlanRequest>) -> Reply<pb::AccountReply> {
        let request = admit(request)?;
        let account = read_uuid("account_id", &request.account_id)?;
        let person = parse_uuid("person_id", &request.person_id)?;
        self.store.set_plan(now_ms(), account, person, &request.plan).await?;
        Ok(Response::new(account_reply(&self.store.account(account).await?)))
    }

    async fn list_keys(&self, request: Request<pb::AccountRequest>) -> Reply<pb::ListKeysReply> {
        let id = read_uuid("account_id", &admit(request)?.account_id)?;
        let keys = self.store.keys(id).await?.iter().map(key_info).collect();
        Ok(Response::new(pb::ListKeysReply { keys }))
    }

    async fn create_key(&self, request: Request<pb::CreateKeyRequest>) -> Reply<pb::CreateKeyReply> {
        let request = admit(request)?;
        let secret = tokens::api_key();
        let new = NewKey {
            account: read_uuid("account_id", &request.account_id)?,
            person: parse_uuid("person_id", &request.person_id)?,
            name: check_name("name", &request.name)?.to_owned(),
            hint: tokens::hint(&secret),
            hash: tokens::hash(&secret),
            scopes: check_scopes(request.scopes)?,
            spool: check_spool_name("spool", request.spool)?,
            queue_prefix: check_prefix(request.queue_prefix)?,
            expires_ms: check_expiry(request.expires_ms)?,
        };
        let row = self.store.create_key(now_ms(), &new).await?;
        Ok(Response::new(pb::CreateKeyReply { info: Some(key_info(&row)), secret }))
    }

    async fn delete_key(&self, request: Request<pb::DeleteKeyRequest>) -> Reply<pb::DeleteKeyReply> {
        let request = admit(request)?;
        let account = read_uuid("account_id", &request.account_id)?;
        let person = parse_uuid("person_id", &request.person_id)?;
        let gone = || refused(ErrorCode::NotFound, None, "there is no such key");
        let key = request.key_id.parse().map_err(|_| gone())?;
        self.store.delete_key(now_ms(), account, person, key).await?;
        Ok(Response::new(pb::DeleteKeyReply {}))
    }

    async fn list_spools(&self, request: Request<pb::AccountRequest>) -> Reply<pb::ListSpoolsReply> {
        let id = read_uuid("account_id", &admit(request)?.account_id)?;
        let rows = self.store.spools(id).await?;
        Ok(Response::new(pb::ListSpoolsReply { spools: self.details(&rows).await? }))
    }

    async fn create_spool(&self, request: Request<pb::CreateSpoolRequest>) -> Reply<pb::SpoolDetail> {
        let request = admit(request)?;
        let account = read_uuid("account_id", &request.account_id)?;
        let person = parse_uuid("person_id", &request.person_id)?;
        let name = check_spool_name("name", request.name)?;
        if name.is_empty() {
            return Err(invalid("name", "a spool has a name"));
        }
        let numbers = (request.num_replicas, request.num_sync);
        let row = self.store.create_spool(now_ms(), account, Some(person), &name, numbers, random()).await?;
        self.place(&row).await?;
        self.detail(row).await.map(Response::new)
    }

    async fn get_spool(&self, request: Request<pb::GetSpoolRequest>) -> Reply<pb::SpoolDetail> {
        let request = admit(request)?;
        let account = read_uuid("account_id", &request.account_id)?;
        match self.store.spool(account, &request.name).await? {
            Some(row) => self.detail(row).await.map(Response::new),
            None => {
                let detail = format!("the account has no spool {:?}", request.name);
                Err(refused(ErrorCode::SpoolNotFound, None, detail))
            }
        }
    }
}

impl ConsoleService {
    async fn begin_session(&self, person: &Person) -> Result<pb::Session, Status> {
        let (now, refresh) = (now_ms(), tokens::refresh_token());
        let session = SessionRow {
            id: Uuid::new_v4(),
            person: person.id,
            account: person.account,
            expires_ms: now + tokens::SESSION_MS,
        };
        self.store.begin_session(now, &session, tokens::hash(&refresh)).await?;
        self.session(&session, refresh)
    }

    fn session(&self, session: &SessionRow, refresh_token: String) -> Result<pb::Session, Status> {
        let expires_ms = now_ms() + tokens::TOKEN_MS;
        let token = self.signer.sign(session.person, session.account, session.id, expires_ms);
        let token = token.map_err(|error| {
            tracing::error!(%error, "a session token cannot be signed");
            Status::internal("a session token cannot be signed")
        })?;
        Ok(pb::Session { token, expires_ms, refresh_token, refresh_expires_ms: session.expires_ms })
    }

    /// Waits for nothing: with too few nodes it is `placing` until there are enough.
    async fn make_default_spool(&self, account: Uuid) {
        let made = async {
            let replicas = u32::try_from(self.store.account(account).await?.plan.replicas).unwrap_or(1);
            let numbers = (replicas, replicas.saturating_sub(2));
            self.store.create_spool(now_ms(), account, None, DEFAULT_SPOOL, numbers, random()).await
        };
        let row = match made.await {
            Ok(row) => row,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(%account, error, "an account is without its default spool");
                return;
            }
        };
        if let Some(new) = row.to_place()
            && let Err(error) = self.reconciler.create(new).await
        {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(spool = %row.id, error, "a default spool is not placed yet");
        }
    }

    /// With too few nodes nothing is left of it, and the name is free.
    async fn place(&self, row: &SpoolRow) -> Result<(), Status> {
        let Some(new) = row.to_place() else { return Err(Status::internal("a spool's row")) };
        match self.reconciler.create(new).await {
            Ok(()) => Ok(()),
            Err(error @ PlaceError::NotEnoughNodes(_)) => match self.store.give_up_spool(row.id).await? {
                true => Err(refused(ErrorCode::NeedCopies, Some("num_replicas"), error.to_string())),
                false => Ok(()),
            },
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(spool = %row.id, error, "a spool is placed in the background");
                Ok(())
            }
        }
    }

    async fn detail(&self, row: SpoolRow) -> Result<pb::SpoolDetail, Status> {
        let details = self.details(&[row]).await?;
        details.into_iter().next().ok_or_else(|| Status::internal("a spool without a view"))
    }

    async fn details(&self, rows: &[SpoolRow]) -> Result<Vec<pb::SpoolDetail>, Status> {
        let ids: Vec<SpoolId> = rows.iter().map(|row| SpoolId(row.id)).collect();
        let views = self.inspector.spools(&ids).await.map_err(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "spools cannot be looked at");
            Status::unavailable("who serves the spools is not known now")
        })?;
        let mut details = Vec::with_capacity(rows.len());
        for row in rows {
            let view = views.iter().find(|view| view.spool.0 == row.id);
            let view = view.ok_or_else(|| Status::internal("a spool without a view"))?;
            details.push(view.detail(spool(row), self.aliases));
        }
        Ok(details)
    }
}

/// Only the console API's own certificate.
fn admit<T>(request: Request<T>) -> Result<T, Status> {
    match names_of(&request).iter().any(|name| name == CLIENT) {
        true => Ok(request.into_inner()),
        false => Err(Status::permission_denied(format!("only with the client certificate `{CLIENT}`"))),
    }
}

fn invalid(field: &'static str, detail: impl Into<String>) -> Status {
    refused(ErrorCode::InvalidRequest, Some(field), detail)
}

fn key_info(row: &KeyRow) -> pb::KeyInfo {
    pb::KeyInfo {
        key: Some(key(row)),
        name: row.name.clone(),
        created_ms: row.created_ms,
        last_used_ms: row.last_used_ms,
        hint: row.hint.clone(),
    }
}

fn check_email(email: &str) -> Result<&str, Status> {
    let email = email.trim();
    let parts = email.split_once('@').filter(|(user, host)| !user.is_empty() && !host.is_empty());
    let clean = email.len() <= EMAIL_LEN_MAX && !email.chars().any(|c| c.is_control() || c.is_whitespace());
    match parts.is_some() && clean {
        true => Ok(email),
        false => Err(invalid("email", "not an e-mail address")),
    }
}

fn check_name<'a>(field: &'static str, name: &'a str) -> Result<&'a str, Status> {
    let name = name.trim();
    match !name.is_empty() && name.len() <= NAME_LEN_MAX && !name.chars().any(char::is_control) {
        true => Ok(name),
        false => Err(invalid(
            field,
            format!("a name has 1 to {NAME_LEN_MAX} bytes, none of them a control character"),
        )),
    }
}

fn check_scopes(scopes: Vec<String>) -> Result<Vec<String>, Status> {
    let known = |scope: &String| SCOPES.contains(&scope.as_str());
    match !scopes.is_empty() && scopes.len() <= SCOPES.len() && scopes.iter().all(known) {
        true => Ok(scopes),
        false => Err(invalid("scopes", format!("one or more of {}", SCOPES.join(", ")))),
    }
}

fn check_spool_name(field: &'static str, name: String) -> Result<String, Status> {
    match name.is_empty() || name.parse::<SpoolName>().is_ok() {
        true => Ok(name),
        false => Err(invalid(field, types::names::BadName.to_string())),
    }
}

fn check_prefix(prefix: String) -> Result<String, Status> {
    match prefix.is_empty() || prefix.parse::<types::QueueName>().is_ok() {
        true => Ok(prefix),
        false => Err(invalid("queue_prefix", types::names::BadName.to_string())),
    }
}

fn check_expiry(expires_ms: i64) -> Result<i64, Status> {
    match expires_ms == 0 || expires_ms > now_ms() {
        true => Ok(expires_ms),
        false => Err(invalid("expires_ms", "in the past")),
    }
}
