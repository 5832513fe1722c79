//! Everything that the control plane told, for look-ups in memory.

use super::key::KeyHash;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use proto::control as pb;
use spool::config::PlanBounds;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;
use types::{AccountId, SpoolId, WallMs, limits};

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub name: String,
    pub replicas: u32,
    pub spools: u32,
    pub queues_per_spool: u32,
    pub message_bytes: u32,
    pub request_bytes: u32,
    pub stored_bytes: u64,
    pub requests_per_second: u32,
    pub retention: Duration,
}

impl Plan {
    /// No plan allows more than the product.
    fn read(plan: pb::Plan) -> Plan {
        Plan {
            name: plan.name,
            replicas: plan.replicas,
            spools: plan.spools,
            queues_per_spool: plan.queues_per_spool,
            message_bytes: plan.message_bytes.min(limits::MESSAGE_BYTES_MAX as u32),
            request_bytes: plan.request_bytes.min(limits::REQUEST_BYTES_MAX as u32),
            stored_bytes: plan.stored_bytes,
            requests_per_second: plan.requests_per_second,
            retention: Duration::from_secs(plan.retention_seconds.into()).min(limits::RETENTION_MAX),
        }
    }

    pub fn bounds(&self) -> PlanBounds {
        PlanBounds {
            queues_max: self.queues_per_spool,
            message_bytes_max: self.message_bytes,
            retention_max: self.retention,
        }
    }
}

pub struct Account {
    pub id: AccountId,
    pub name: String,
    pub plan: Plan,
    limiter: Arc<DefaultDirectRateLimiter>,
    pub under_way: Arc<UnderWay>,
}

/// What an account may have under way at this node: beyond it the others would feel it.
#[derive(Debug)]
pub struct UnderWay {
    pub requests: Semaphore,
    pub body_bytes: Semaphore,
}

impl Default for UnderWay {
    fn default() -> UnderWay {
        UnderWay {
            requests: Semaphore::new(limits::REQUESTS_AT_ONCE_MAX),
            body_bytes: Semaphore::new(limits::BODY_BYTES_AT_ONCE_OF_ACCOUNT_MAX),
        }
    }
}

impl Account {
    /// Counts a request. `Err`: so long until the next one is in the plan.
    pub fn admit(&self) -> Result<(), Duration> {
        use governor::clock::{Clock, DefaultClock};
        self.limiter.check().map_err(|not_until| not_until.wait_time_from(DefaultClock::default().now()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Scopes {
    pub send: bool,
    pub receive: bool,
    pub read: bool,
    pub manage: bool,
}

#[derive(Debug)]
pub struct ApiKey {
    pub id: String,
    pub account: AccountId,
    pub scopes: Scopes,
    /// The one spool it is good for.
    pub spool: Option<String>,
    pub queue_prefix: String,
    pub expires: Option<WallMs>,
    hash: KeyHash,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolEntry {
    pub id: SpoolId,
    pub account: AccountId,
    pub name: String,
    pub num_replicas: u32,
    pub num_sync: u32,
    pub created: WallMs,
}

#[derive(Clone)]
pub struct Caller {
    pub key: Arc<ApiKey>,
    pub account: Arc<Account>,
}

impl ApiKey {
    pub(super) fn read(key: pb::ApiKey) -> Option<ApiKey> {
        let scope = |name: &str| key.scopes.iter().any(|scope| scope == name);
        Some(ApiKey {
            scopes: Scopes {
                send: scope("send"),
                receive: scope("receive"),
                read: scope("read"),
                manage: scope("manage"),
            },
            account: AccountId::from_slice(&key.account_id)?,
            hash: key.hash.as_ref().try_into().ok()?,
            id: key.id,
            spool: Some(key.spool).filter(|spool| !spool.is_empty()),
            queue_prefix: key.queue_prefix,
            expires: (key.expires_ms != 0).then_some(WallMs(key.expires_ms)),
        })
    }
}

impl SpoolEntry {
    pub(super) fn read(spool: pb::Spool) -> Option<SpoolEntry> {
        Some(SpoolEntry {
            id: SpoolId::from_slice(&spool.id)?,
            account: AccountId::from_slice(&spool.account_id)?,
            name: spool.name,
            num_replicas: spool.num_replicas,
            num_sync: spool.num_sync,
            created: WallMs(spool.created_ms),
        })
    }
}

#[derive(Default)]
pub(super) struct Known {
    pub version: Option<u64>,
    accounts: HashMap<AccountId, (Arc<Account>, pb::Account)>,
    keys: HashMap<KeyHash, (Arc<ApiKey>, pb::ApiKey)>,
    hashes: HashMap<String, KeyHash>,
    spools: HashMap<AccountId, BTreeMap<String, Arc<SpoolEntry>>>,
    spool_ids: HashMap<SpoolId, (AccountId, pb::Spool)>,
}

impl Known {
    pub fn apply(&mut self, update: pb::DirectoryUpdate) {
        if update.complete {
            let accounts = std::mem::take(&mut self.accounts);
            *self = Known::default();
            // Their limiters go on counting.
            let named = update.accounts.iter().filter_map(|account| AccountId::from_slice(&account.id));
            let named: std::collections::HashSet<AccountId> = named.collect();
            self.accounts = accounts.into_iter().filter(|(id, _)| named.contains(id)).collect();
        }
        self.version = Some(update.version);
        for id in &update.removed_key_ids {
            self.remove_key(id);
        }
        for id in update.removed_spool_ids.iter().filter_map(|id| SpoolId::from_slice(id)) {
            self.remove_spool(id);
        }
        for account in update.accounts {
            self.put_account(account);
        }
        for key in update.keys {
            self.remove_key(&key.id);
            match ApiKey::read(key.clone()) {
                Some(read) => {
                    self.hashes.insert(read.id.clone(), read.hash);
                    self.keys.insert(read.hash, (Arc::new(read), key));
                }
                None => tracing::error!(key = key.id, "the control plane sent a key that cannot be read"),
            }
        }
        for spool in update.spools {
            match SpoolEntry::read(spool.clone()) {
                Some(read) => {
                    self.remove_spool(read.id);
                    self.spool_ids.insert(read.id, (read.account, spool));
                    self.spools.entry(read.account).or_default().insert(read.name.clone(), Arc::new(read));
                }
                None => tracing::error!(spool.name, "the control plane sent a spool that cannot be read"),
            }
        }
    }

    fn put_account(&mut self, account: pb::Account) {
        let known = AccountId::from_slice(&account.id).and_then(|id| self.accounts.get(&id));
        match read_account(account.clone(), known.map(|(account, _)| &**account)) {
            Some(read) => drop(self.accounts.insert(read.id, (Arc::new(read), account))),
            None => tracing::error!(account.name, "the control plane sent an account that cannot be read"),
        }
    }

    fn remove_key(&mut self, id: &str) {
        if let Some(hash) = self.hashes.remove(id) {
            self.keys.remove(&hash);
        }
    }

    fn remove_spool(&mut self, id: SpoolId) {
        if let Some((account, spool)) = self.spool_ids.remove(&id)
            && let Some(spools) = self.spools.get_mut(&account)
            && spools.get(&spool.name).is_some_and(|entry| entry.id == id)
        {
            spools.remove(&spool.name);
        }
    }

    pub fn caller(&self, hash: &KeyHash) -> Option<Caller> {
        let (key, _) = self.keys.get(hash)?;
        let (account, _) = self.accounts.get(&key.account)?;
        let is_it = bool::from(key.hash.ct_eq(hash));
        is_it.then(|| Caller { key: key.clone(), account: account.clone() })
    }

    pub fn spool(&self, account: AccountId, name: &str) -> Option<Arc<SpoolEntry>> {
        self.spools.get(&account)?.get(name).cloned()
    }

    pub fn spools(&self, account: AccountId) -> Vec<Arc<SpoolEntry>> {
        self.spools.get(&account).map(|spools| spools.values().cloned().collect()).unwrap_or_default()
    }

    /// All of it, as a first update.
    pub fn complete(&self) -> Option<pb::DirectoryUpdate> {
        Some(pb::DirectoryUpdate {
            complete: true,
            version: self.version?,
            accounts: self.accounts.values().map(|(_, account)| account.clone()).collect(),
            keys: self.keys.values().map(|(_, key)| key.clone()).collect(),
            spools: self.spool_ids.values().map(|(_, spool)| spool.clone()).collect(),
            ..Default::default()
        })
    }
}

/// The limiter of an account that is known already goes on counting, unless its plan's rate changed.
pub(super) fn read_account(account: pb::Account, known: Option<&Account>) -> Option<Account> {
    let id = AccountId::from_slice(&account.id)?;
    let plan = Plan::read(account.plan?);
    let same = known.filter(|known| known.plan.requests_per_second == plan.requests_per_second);
    let limiter = same.map_or_else(
        || {
            let rate = NonZeroU32::new(plan.requests_per_second).unwrap_or(NonZeroU32::MIN);
            Arc::new(RateLimiter::direct(Quota::per_second(rate)))
        },
        |known| known.limiter.clone(),
    );
    let under_way = known.map(|known| known.under_way.clone()).unwrap_or_default();
    Some(Account { id, name: account.name, plan, limiter, under_way })
}
