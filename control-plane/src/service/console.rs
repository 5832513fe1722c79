//! For the console API: on behalf of people.

use super::passwords::Passwords;
use super::tokens::{self, Signer};
use super::{account_reply, check, in_doubt, key, names_of, parse_uuid, plan, read_uuid, refused, spool};
use crate::edge::{now_ms, random};
use crate::inspect::{Aliases, Inspector};
use crate::reconcile::{PlaceError, Reconciler};
use crate::store::{KeyRow, NewAccount, NewKey, NewSession, NewSpoolRow, SessionRow, SpoolRow, Store};
use proto::control as pb;
use proto::control::console_server::Console;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::{Request, Response, Status};
use types::{ErrorCode, SpoolId};
use uuid::Uuid;

const CLIENT: &str = "console-api";
/// How long an answer waits for a new spool's copies; its caller waits for ten seconds.
const PLACE_WAIT: Duration = Duration::from_secs(6);

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
        let email = check::email(&request.email)?;
        check::password(&request.password)?;
        let name = check::name("account_name", &request.account_name)?;
        let plan = if request.plan.is_empty() { &self.default_plan } else { &request.plan };
        let password_hash = &self.passwords.hash(request.password).await?;
        let new = NewAccount { email, password_hash, name, plan, token_key: random() };
        let refresh = tokens::refresh_token();
        let (session, spool) = self.store.create_account(now_ms(), &new, &new_session(&refresh)).await?;
        self.place_default(&spool).await;
        Ok(Response::new(self.session(&session, refresh)?))
    }

    async fn log_in(&self, request: Request<pb::LogInRequest>) -> Reply<pb::Session> {
        let request = admit(request)?;
        let person = match check::possible(&request.email, &request.password) {
            true => self.store.person_by_email(request.email.trim()).await?,
            false => None,
        };
        let stored = person.as_ref().map(|person| person.password_hash.clone());
        let right = self.passwords.verify(request.password, stored).await?;
        match person.filter(|_| right) {
            Some(person) => {
                let refresh = tokens::refresh_token();
                let session = self.store.begin_session(now_ms(), &person, &new_session(&refresh)).await?;
                Ok(Response::new(self.session(&session, refresh)?))
            }
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
        let account = self.store.account(account).await.map_err(|error| in_doubt(error.into()))?;
        Ok(Response::new(account_reply(&account)))
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
            name: check::name("name", &request.name)?.to_owned(),
            hint: tokens::hint(&secret),
            hash: tokens::hash(&secret),
            scopes: check::scopes(&request.scopes)?,
            spool: check::spool("spool", request.spool)?,
            queue_prefix: check::prefix(request.queue_prefix)?,
            expires_ms: check::expiry(request.expires_ms)?,
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
        let name = &check::spool("name", request.name)?;
        if name.is_empty() {
            return Err(refused(ErrorCode::InvalidRequest, Some("name"), "a spool has a name"));
        }
        let numbers = (request.num_replicas, request.num_sync);
        let new = NewSpoolRow { account, name, numbers, token_key: random() };
        let row = self.store.create_spool(now_ms(), person, &new).await?;
        self.place(&row).await?;
        self.detail(row).await.map(Response::new).map_err(in_doubt)
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
    fn session(&self, session: &SessionRow, refresh_token: String) -> Result<pb::Session, Status> {
        let expires_ms = now_ms() + tokens::TOKEN_MS;
        let token = self.signer.sign(session.person, session.account, session.id, expires_ms);
        let token = token.map_err(|error| {
            tracing::error!(%error, "a session token cannot be signed");
            Status::internal("a session token cannot be signed")
        })?;
        Ok(pb::Session { token, expires_ms, refresh_token, refresh_expires_ms: session.expires_ms })
    }

    /// Convenient for whoever sends at once; with too few nodes it is `placing` until there are enough.
    async fn place_default(&self, row: &SpoolRow) {
        let Some(new) = row.to_place() else { return };
        match timeout(PLACE_WAIT, self.reconciler.create(new)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(spool = %row.id, error, "a default spool is not placed yet");
            }
            Err(_) => tracing::warn!(spool = %row.id, "a default spool is being placed"),
        }
    }

    /// A spool for which nodes were not even asked, because there are too few or nobody knows them, is taken
    /// back: nothing is left of it, and the name is free. One whose placing has begun goes on in the background.
    async fn place(&self, row: &SpoolRow) -> Result<(), Status> {
        let Some(new) = row.to_place() else { return Err(Status::internal("a spool's row")) };
        let refusal = match timeout(PLACE_WAIT, self.reconciler.create(new)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error @ PlaceError::NotEnoughNodes(_))) => {
                refused(ErrorCode::NeedCopies, Some("num_replicas"), error.to_string())
            }
            Ok(Err(error)) => {
                tracing::warn!(spool = %row.id, error = &error as &dyn std::error::Error, "not placed yet");
                refused(ErrorCode::Unavailable, None, "copies cannot be made now")
            }
            Err(_) => refused(ErrorCode::Unavailable, None, "copies cannot be made now"),
        };
        match self.store.take_back_spool(now_ms(), row.id).await.map_err(|error| in_doubt(error.into()))? {
            true => Err(refusal),
            false => Ok(()),
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

fn new_session(refresh_token: &str) -> NewSession {
    NewSession { expires_ms: now_ms() + tokens::SESSION_MS, refresh_hash: tokens::hash(refresh_token) }
}

/// Only the console API's own certificate.
fn admit<T>(request: Request<T>) -> Result<T, Status> {
    match names_of(&request).iter().any(|name| name == CLIENT) {
        true => Ok(request.into_inner()),
        false => Err(Status::permission_denied(format!("only with the client certificate `{CLIENT}`"))),
    }
}

fn key_info(row: &KeyRow) -> pb::KeyInfo {
    pb::KeyInfo {
        // Nodes know keys by their hashes; people need none.
        key: Some(pb::ApiKey { hash: Default::default(), ..key(row) }),
        name: row.name.clone(),
        created_ms: row.created_ms,
        last_used_ms: row.last_used_ms,
        hint: row.hint.clone(),
    }
}
