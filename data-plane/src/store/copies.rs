//! Which copies this disk has. A copy comes into being here and nowhere else, and is remembered before it is told.

use parking_lot::{Mutex, RwLock};
use rocksdb::WriteBatch;
use std::collections::BTreeMap;
use types::{AccountId, CopyId, SpoolId, SpoolName, WallMs};
use uuid::Uuid;

use spool::token::TokenKey;

use super::db::{Db, OpenError};
use super::keys::{self, BadValue, Column, NextNumber, SpoolNumber};

/// What a spool's creation fixes, the same on every copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewCopy {
    pub spool: SpoolId,
    pub account: AccountId,
    pub name: SpoolName,
    pub n: u8,
    pub k: u8,
    pub token_key: TokenKey,
    pub created: WallMs,
}

/// A copy on this disk: what its spool's creation fixed, and what was minted here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyFacts {
    pub number: SpoolNumber,
    pub spool: SpoolId,
    pub account: AccountId,
    pub name: SpoolName,
    pub n: u8,
    pub k: u8,
    pub copy: CopyId,
    pub token_key: TokenKey,
    pub created: WallMs,
}

impl CopyFacts {
    fn given(&self) -> NewCopy {
        NewCopy {
            spool: self.spool,
            account: self.account,
            name: self.name.clone(),
            n: self.n,
            k: self.k,
            token_key: self.token_key.clone(),
            created: self.created,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateCopyError {
    /// The id was used before, for something else: an error of the caller, and nothing was changed.
    #[error("this node has a copy of spool {spool} that was created with another {field}")]
    Differs { spool: SpoolId, field: &'static str },
    #[error("this data directory has used up its spool numbers")]
    NoNumberLeft,
}

/// The copies as they are on the disk.
pub(super) struct Copies {
    by_spool: RwLock<BTreeMap<SpoolId, CopyFacts>>,
    next: Mutex<SpoolNumber>,
}

impl Copies {
    pub fn read(rocks: &rocksdb::DB) -> Result<Copies, OpenError> {
        let state = rocks.cf_handle(Column::State.name()).ok_or(OpenError::Incomplete)?;
        let next = match rocks.get_cf(state, keys::full_key(keys::NODE, keys::NEXT_NUMBER))? {
            Some(value) => NextNumber::decode(&value)?.0,
            None => SpoolNumber(keys::NODE.0 + 1),
        };
        let mut by_spool = BTreeMap::new();
        let mut options = rocksdb::ReadOptions::default();
        options.set_iterate_range(
            keys::full_key(keys::NODE, &[keys::COPY])..keys::full_key(keys::NODE, &[keys::COPY + 1]),
        );
        for item in rocks.iterator_cf_opt(state, options, rocksdb::IteratorMode::Start) {
            let (key, value) = item?;
            let facts = CopyFacts::decode(number_in(&key)?, &value)?;
            if facts.number >= next {
                return Err(BadValue::Shape { what: "the next spool number" }.into());
            }
            by_spool.insert(facts.spool, facts);
        }
        Ok(Copies { by_spool: RwLock::new(by_spool), next: Mutex::new(next) })
    }
}

fn number_in(key: &[u8]) -> Result<SpoolNumber, BadValue> {
    let number = key.get(keys::PREFIX_LEN + 1..).and_then(|bytes| bytes.try_into().ok());
    number.map(|bytes| SpoolNumber(u32::from_be_bytes(bytes))).ok_or(BadValue::Shape { what: "a copy's key" })
}

impl Db {
    /// Every copy on this disk, in the order of the spools' ids.
    pub fn copies(&self) -> Vec<CopyFacts> {
        self.copies.by_spool.read().values().cloned().collect()
    }

    pub fn copy(&self, spool: SpoolId) -> Option<CopyFacts> {
        self.copies.by_spool.read().get(&spool).cloned()
    }

    /// An empty copy of a spool, durable when this returns. Asked again for the same spool, it gives the same
    /// copy, whatever became of the first answer. Blocks for a sync: not for an engine's thread.
    pub fn create_copy(&self, new: &NewCopy) -> Result<CopyFacts, CreateCopyError> {
        // One creation at a time: between the look and the write no other may take the number or the spool.
        let mut next = self.copies.next.lock();
        if let Some(there) = self.copy(new.spool) {
            return match differing_field(&there.given(), new) {
                Some(field) => Err(CreateCopyError::Differs { spool: new.spool, field }),
                None => Ok(there),
            };
        }
        let number = *next;
        let after = SpoolNumber(number.0.checked_add(1).ok_or(CreateCopyError::NoNumberLeft)?);
        let facts = CopyFacts {
            number,
            spool: new.spool,
            account: new.account,
            name: new.name.clone(),
            n: new.n,
            k: new.k,
            copy: CopyId(Uuid::new_v4()),
            token_key: new.token_key.clone(),
            created: new.created,
        };
        let mut batch = WriteBatch::default();
        let state = self.column(Column::State);
        batch.put_cf(state, keys::full_key(keys::NODE, keys::NEXT_NUMBER), NextNumber(after).encode());
        batch.put_cf(state, keys::full_key(keys::NODE, &keys::copy_key(number)), facts.encode());
        self.write_synced(batch);
        *next = after;
        self.copies.by_spool.write().insert(facts.spool, facts.clone());
        Ok(facts)
    }
}

fn differing_field(there: &NewCopy, new: &NewCopy) -> Option<&'static str> {
    let NewCopy { spool: _, account, name, n, k, token_key, created } = new;
    let checks = [
        ("account", there.account == *account),
        ("name", there.name == *name),
        ("num_replicas", there.n == *n),
        ("num_sync", there.k == *k),
        ("token_key", there.token_key == *token_key),
        ("created_ms", there.created == *created),
    ];
    checks.into_iter().find(|(_, same)| !same).map(|(field, _)| field)
}
