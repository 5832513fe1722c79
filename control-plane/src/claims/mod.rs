//! etcd, all of it: who may act for which spool, which nodes are alive. Nothing else in the control plane
//! knows a key or a transaction. What is stored (values are JSON; unknown fields are ignored, an unknown
//! `format` of a record is refused):
//!
//! | Key | Value | Lifetime |
//! |---|---|---|
//! | `/spools/{spool}/record` | [`Record`]: copies, epoch, phase, last primary | creation to deletion of the spool; only ever replaced by comparing its modification revision |
//! | `/spools/{spool}/status` | [`Status`]: whom an election waits for | advisory; while an election is stuck |
//! | `/nodes/{node}/alive` | [`Alive`]: process, addresses, a number that grows each second | written by the node; bound to its etcd lease (7 s), which cleans it up and makes a loss prompt, and protects nothing |
//! | `/nodes/{node}/eguard` | [`EtcdGuard`]: spools for which the node relies on its etcd guard | written by the node; no etcd lease; an electing Txn compares its revision |
//! | `/owners/{node}/rev` | the spool and epoch of the last change | put by whatever gives the node a spool or takes it away, so that the node compares one key |
//! | `/owners/{node}/{spool}` | the epoch | the claim: put when the record becomes active, deleted by the next electing Txn |
//! | `/copies/{copy}` | `boot_no` | written by the node |
//!
//! A record's epoch grows by compare-and-swap alone; etcd's leases and clocks decide nothing. E1 I1

mod keys;
#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;
mod values;
mod watch;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse,
};
use serde::de::DeserializeOwned;
use std::future::Future;
use std::time::Duration;
use types::{NodeName, SpoolId};

use spool::record::{Phase, Record};
pub use values::{Alive, Malformed, Status};
#[cfg(test)]
pub use values::{EtcdGuard, GuardedSpools};
pub use watch::{Change, Watch};

/// No answer after this is no answer.
const CALL_WAIT: Duration = Duration::from_secs(3);
const KEEP_ALIVE: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum ClaimsError {
    /// What was asked for may have been done.
    #[error("etcd did not answer within {CALL_WAIT:?}")]
    NoAnswer,
    /// What was asked for may have been done.
    #[error("etcd")]
    Etcd(#[from] etcd_client::Error),
    #[error("{key} in etcd")]
    Malformed { key: String, source: Malformed },
    #[error("an answer of etcd lacks {0}")]
    Incomplete(&'static str),
}

/// A value and the revision that a compare-and-swap on it names.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned<T> {
    pub value: T,
    pub revision: i64,
}

/// What became of a write that compares.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// This is there now. An electing Txn may have set `fence_due`.
    Done(Versioned<Record>),
    /// Not written: this is there instead.
    Other(Versioned<Record>),
    /// Not written: nothing is there.
    Gone,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Etcd {
    client: Client,
}

impl Etcd {
    /// Does not wait for etcd to be there.
    pub async fn connect(endpoints: &[String]) -> Result<Etcd, ClaimsError> {
        let options = ConnectOptions::new()
            .with_connect_timeout(CALL_WAIT)
            .with_keep_alive(KEEP_ALIVE, KEEP_ALIVE)
            .with_keep_alive_while_idle(true)
            // A member that is cut off from the others must not answer from what it has.
            .with_require_leader(true);
        Ok(Etcd { client: Client::connect(endpoints, Some(options)).await? })
    }

    pub async fn nodes(&self) -> Result<Vec<(NodeName, Alive)>, ClaimsError> {
        let all = watch::list(&self.client, keys::NODES).await?;
        let node = |kv: &KeyValue| keys::alive_of(kv.key()).map(|node| Ok((node, read_json(kv)?)));
        all.kvs.iter().filter_map(node).collect()
    }

    /// Changes of the alive keys, beginning with what is there.
    pub fn watch_nodes(&self) -> Watch<NodeName, Alive> {
        watch::start(self.client.clone(), watch::NODES)
    }

    pub async fn record(&self, spool: SpoolId) -> Result<Option<Versioned<Record>>, ClaimsError> {
        let mut client = self.client.clone();
        let answer = answered(client.get(keys::record(spool), None)).await?;
        answer.kvs().first().map(read_record).transpose()
    }

    pub async fn records(&self) -> Result<Vec<Versioned<Record>>, ClaimsError> {
        let all = watch::list(&self.client, keys::SPOOLS).await?;
        let records = all.kvs.iter().filter(|kv| keys::record_of(kv.key()).is_some());
        records.map(read_record).collect()
    }

    /// Changes of the records, beginning with what is there.
    pub fn watch_records(&self) -> Watch<SpoolId, Record> {
        watch::start(self.client.clone(), watch::RECORDS)
    }

    /// If there is none yet. Writing the same again after an answer was lost is therefore safe: look at
    /// `Other`.
    pub async fn create_record(&self, record: &Record) -> Result<Written, ClaimsError> {
        values::check(record, record.spool)
            .map_err(|source| malformed(keys::record(record.spool), source))?;
        let key = keys::record(record.spool);
        let absent = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let txn = Txn::new()
            .when([absent])
            .and_then([TxnOp::put(key.clone(), values::to_json(record), None)])
            .or_else([TxnOp::get(key, None)]);
        self.write(txn, record).await
    }

    /// Replaces the record if its modification revision is still `expected`. Beginning an election takes the
    /// last primary's claim away in the same Txn.
    pub async fn cas_record(&self, expected: i64, new: &Record) -> Result<Written, ClaimsError> {
        values::check(new, new.spool).map_err(|source| malformed(keys::record(new.spool), source))?;
        match (&new.phase, &new.last) {
            (Phase::Electing, Some(last)) => self.elect(expected, new, &last.member.node).await,
            _ => self.write(replace(expected, new, Vec::new(), Vec::new()), new).await,
        }
    }

    /// The electing Txn. Whether the last primary relies on its etcd guard is decided by the same Txn: each
    /// side writes what the other compares. S8
    async fn elect(&self, expected: i64, new: &Record, last: &NodeName) -> Result<Written, ClaimsError> {
        let eguard = keys::eguard(last);
        let spool = new.spool;
        let what = format!("{spool} {}", new.epoch);
        let revoke = || {
            vec![
                TxnOp::delete(keys::claim(last, spool), None),
                TxnOp::put(keys::owner_revision(last), what.clone(), None),
            ]
        };
        // As a rule there is no such key.
        let absent = Compare::mod_revision(eguard.clone(), CompareOp::Equal, 0);
        let txn = replace(expected, new, vec![absent], revoke());
        let written = self.write(txn, new).await?;
        let Written::Other(before) = &written else { return Ok(written) };
        if before.revision != expected {
            return Ok(written);
        }
        // The record is the one expected, so the flag is there.
        let mut client = self.client.clone();
        let answer = answered(client.get(eguard.clone(), None)).await?;
        let Some(flag) = answer.kvs().first() else { return Ok(written) };
        let same = Compare::mod_revision(eguard, CompareOp::Equal, flag.mod_revision());
        let lists = values::lists(flag.value(), spool);
        let due = if before.value.phase == Phase::Active { lists } else { before.value.fence_due };
        let fenced = Record { fence_due: due, ..new.clone() };
        self.write(replace(expected, &fenced, vec![same], revoke()), &fenced).await
    }

    async fn write(&self, txn: Txn, new: &Record) -> Result<Written, ClaimsError> {
        let mut client = self.client.clone();
        let answer = answered(client.txn(txn)).await?;
        if answer.succeeded() {
            let revision = answer.header().ok_or(ClaimsError::Incomplete("its header"))?.revision();
            return Ok(Written::Done(Versioned { value: new.clone(), revision }));
        }
        match answer.op_responses().first() {
            Some(TxnOpResponse::Get(found)) => match found.kvs().first() {
                Some(kv) => Ok(Written::Other(read_record(kv)?)),
                None => Ok(Written::Gone),
            },
            _ => Err(ClaimsError::Incomplete("what is there")),
        }
    }

    /// `None`: nothing is waited for.
    pub async fn put_status(&self, spool: SpoolId, status: Option<&Status>) -> Result<(), ClaimsError> {
        let mut client = self.client.clone();
        let key = keys::status(spool);
        match status {
            None => drop(answered(client.delete(key, None)).await?),
            // A status outlives no spool: without a record there is nothing to write it for.
            Some(status) => {
                let exists = Compare::create_revision(keys::record(spool), CompareOp::Greater, 0);
                let put = TxnOp::put(key, values::to_json(status), None);
                drop(answered(client.txn(Txn::new().when([exists]).and_then([put]))).await?);
            }
        }
        Ok(())
    }

    pub async fn status(&self, spool: SpoolId) -> Result<Option<Status>, ClaimsError> {
        let mut client = self.client.clone();
        let answer = answered(client.get(keys::status(spool), None)).await?;
        answer.kvs().first().map(read_json).transpose()
    }
}

/// Puts `new` over the record of revision `expected`, if `compares` hold as well, with `effects`; else reads
/// what is there.
fn replace(expected: i64, new: &Record, compares: Vec<Compare>, effects: Vec<TxnOp>) -> Txn {
    let key = keys::record(new.spool);
    let mut when = vec![Compare::mod_revision(key.clone(), CompareOp::Equal, expected)];
    when.extend(compares);
    let mut then = vec![TxnOp::put(key.clone(), values::to_json(new), None::<PutOptions>)];
    then.extend(effects);
    Txn::new().when(when).and_then(then).or_else([TxnOp::get(key, None::<GetOptions>)])
}

fn read_record(kv: &KeyValue) -> Result<Versioned<Record>, ClaimsError> {
    let read = || {
        let record: Record = values::from_json(kv.value())?;
        let spool = keys::record_of(kv.key()).ok_or(Malformed::Key)?;
        values::check(&record, spool)?;
        Ok(record)
    };
    let value = read().map_err(|source| malformed(kv.key(), source))?;
    Ok(Versioned { value, revision: kv.mod_revision() })
}

fn read_json<T: DeserializeOwned>(kv: &KeyValue) -> Result<T, ClaimsError> {
    values::from_json(kv.value()).map_err(|source| malformed(kv.key(), source))
}

fn malformed(key: impl AsRef<[u8]>, source: Malformed) -> ClaimsError {
    ClaimsError::Malformed { key: String::from_utf8_lossy(key.as_ref()).into_owned(), source }
}

async fn answered<T>(call: impl Future<Output = Result<T, etcd_client::Error>>) -> Result<T, ClaimsError> {
    tokio::time::timeout(CALL_WAIT, call).await.map_err(|_| ClaimsError::NoAnswer)?.map_err(ClaimsError::Etcd)
}
