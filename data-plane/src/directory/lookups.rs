//! Asking for what the directory does not have: once for all who ask at the same time, and not again at once.
//!
//! An answer is believed for a few seconds only: by then the stream has told it too, and a revocation that crossed
//! it cannot be undone by it.

use super::CannotAsk;
use super::key::KeyHash;
use super::known::{self, ApiKey, Caller, SpoolEntry};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use proto::control as pb;
use proto::control::nodes_client::NodesClient;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tonic::transport::Channel;
use types::AccountId;

const FOUND_FOR: Duration = Duration::from_secs(4);
const ABSENT_FOR: Duration = Duration::from_secs(2);
/// Of one kind. Beyond it the control plane is not asked for more.
const REMEMBERED_MAX: usize = 10_000;
const ASKED_MAX: usize = 32;
const ASK_WAIT: Duration = Duration::from_secs(2);

type Spools = HashMap<(AccountId, String), Entry<Arc<SpoolEntry>>>;

pub(super) struct Lookups {
    client: NodesClient<Channel>,
    places: Arc<Semaphore>,
    keys: Mutex<HashMap<KeyHash, Entry<Caller>>>,
    spools: Mutex<Spools>,
}

type Outcome<T> = Result<Option<T>, CannotAsk>;

enum Entry<T> {
    /// Since when. What nobody waited for to its end is not believed later.
    Asked(Shared<BoxFuture<'static, Outcome<T>>>, Instant),
    Known(Option<T>, Instant),
}

impl Lookups {
    pub fn new(client: NodesClient<Channel>) -> Lookups {
        Lookups {
            client,
            places: Arc::new(Semaphore::new(ASKED_MAX)),
            keys: Mutex::default(),
            spools: Mutex::default(),
        }
    }

    pub async fn key(&self, hash: KeyHash) -> Outcome<Caller> {
        let (mut client, places) = (self.client.clone(), self.places.clone());
        ask(&self.keys, hash, async move {
            let _place = places.acquire().await.map_err(|_| CannotAsk)?;
            let request = pb::LookUpKeyRequest { hash: hash.to_vec().into() };
            let reply = in_time(client.look_up_key(request)).await?;
            let (Some(key), Some(account)) = (reply.key, reply.account) else { return Ok(None) };
            let caller = ApiKey::read(key).zip(known::read_account(account, None));
            Ok(caller.map(|(key, account)| Caller { key: Arc::new(key), account: Arc::new(account) }))
        })
        .await
    }

    pub async fn spool(&self, account: AccountId, name: &str) -> Outcome<Arc<SpoolEntry>> {
        let (mut client, places) = (self.client.clone(), self.places.clone());
        let name = name.to_owned();
        ask(&self.spools, (account, name.clone()), async move {
            let _place = places.acquire().await.map_err(|_| CannotAsk)?;
            let request = pb::LookUpSpoolRequest { account_id: account.as_bytes().to_vec().into(), name };
            let reply = in_time(client.look_up_spool(request)).await?;
            let spool = reply.spool.and_then(SpoolEntry::read).filter(|spool| spool.account == account);
            Ok(spool.map(Arc::new))
        })
        .await
    }

    /// Something changed: what was not there may be.
    pub fn forget_absent(&self) {
        self.keys.lock().retain(|_, entry| !matches!(entry, Entry::Known(None, _)));
        self.spools.lock().retain(|_, entry| !matches!(entry, Entry::Known(None, _)));
    }
}

async fn in_time<T>(
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, CannotAsk> {
    match tokio::time::timeout(ASK_WAIT, call).await {
        Ok(Ok(reply)) => Ok(reply.into_inner()),
        Ok(Err(status)) if status.code() == tonic::Code::NotFound => Err(CannotAsk),
        Ok(Err(status)) => {
            tracing::debug!(%status, "a look-up failed");
            Err(CannotAsk)
        }
        Err(_) => Err(CannotAsk),
    }
}

async fn ask<K, T>(
    entries: &Mutex<HashMap<K, Entry<T>>>,
    key: K,
    question: impl Future<Output = Outcome<T>> + Send + 'static,
) -> Outcome<T>
where
    K: Hash + Eq + Clone,
    T: Clone + Send + Sync + 'static,
{
    let now = Instant::now();
    let asked = {
        let mut entries = entries.lock();
        match entries.get(&key) {
            Some(Entry::Known(found, until)) if *until > now => return Ok(found.clone()),
            Some(Entry::Asked(asked, since)) if *since + FOUND_FOR > now => asked.clone(),
            _ => {
                if entries.len() >= REMEMBERED_MAX {
                    entries.retain(|_, entry| match entry {
                        Entry::Known(_, until) => *until > now,
                        Entry::Asked(_, since) => *since + FOUND_FOR > now,
                    });
                }
                if entries.len() >= REMEMBERED_MAX {
                    return Err(CannotAsk);
                }
                // A task of its own: whoever asked first may go away.
                let task = tokio::spawn(question);
                let asked = async move { task.await.unwrap_or(Err(CannotAsk)) }.boxed().shared();
                entries.insert(key.clone(), Entry::Asked(asked.clone(), now));
                asked
            }
        }
    };
    let outcome = asked.clone().await;
    let mut entries = entries.lock();
    if matches!(entries.get(&key), Some(Entry::Asked(current, _)) if current.ptr_eq(&asked)) {
        match &outcome {
            Ok(found) => {
                let remembered = if found.is_some() { FOUND_FOR } else { ABSENT_FOR };
                entries.insert(key, Entry::Known(found.clone(), now + remembered));
            }
            Err(CannotAsk) => drop(entries.remove(&key)),
        }
    }
    outcome
}
