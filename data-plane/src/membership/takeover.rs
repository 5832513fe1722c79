//! The Txns of an election that are this node's: "I have taken over", "the old configurations are superseded"; and
//! that a copy is on this disk.

use super::routing::read_record;
use super::{EtcdError, RETRY_MAX, RETRY_MIN, answered};
use crate::spools::Spools;
use crate::store::fatal::fatal_storage_error;
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use serde::{Deserialize, Serialize};
use spool::copy::ProcessFacts;
use spool::event::{Activate, Event};
use spool::record::{Phase, Record};
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use types::{CopyId, Epoch, NodeName, ProcessId, SpoolId};

/// Txns under way at once: a node that takes over a thousand spools must not bury etcd.
const AT_ONCE: usize = 64;

#[derive(Clone, Debug)]
pub enum Job {
    Activate { spool: SpoolId, activate: Activate },
    ClearPrev { spool: SpoolId, epoch: Epoch },
    Register { copy: CopyId },
}

/// Where the engines leave what they want of etcd. Cheap to clone.
#[derive(Clone)]
pub struct Takeovers {
    jobs: mpsc::Sender<Job>,
}

impl Takeovers {
    /// `max`: beyond it a job is dropped, and the election that waits for it is repeated by its controller.
    pub fn channel(max: usize) -> (Takeovers, mpsc::Receiver<Job>) {
        let (jobs, receiver) = mpsc::channel(max);
        (Takeovers { jobs }, receiver)
    }

    pub fn leave(&self, job: Job) {
        if let Err(error) = self.jobs.try_send(job) {
            tracing::error!(%error, "a step of an election is dropped; it will be repeated");
        }
    }
}

pub(super) async fn work(
    etcd: Client,
    node: NodeName,
    facts: ProcessFacts,
    spools: Spools,
    mut jobs: mpsc::Receiver<Job>,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let job = tokio::select! {
            () = stop.cancelled() => return,
            job = jobs.recv() => job,
        };
        let Some(job) = job else { return };
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let worker = Worker { etcd: etcd.clone(), node: node.clone(), facts, spools: spools.clone() };
        let stop = stop.clone();
        tokio::spawn(async move {
            let _permit = permit;
            tokio::select! {
                () = stop.cancelled() => {}
                () = worker.until_done(job) => {}
            }
        });
    }
}

struct Worker {
    etcd: Client,
    node: NodeName,
    facts: ProcessFacts,
    spools: Spools,
}

impl Worker {
    /// Repeats while etcd does not answer and the result is still wanted.
    async fn until_done(self, job: Job) {
        let mut retry = RETRY_MIN;
        loop {
            let wanted = match &job {
                Job::Activate { spool, activate } => self.leads(*spool, activate.epoch),
                Job::ClearPrev { spool, epoch } => self.leads(*spool, *epoch),
                Job::Register { .. } => true,
            };
            if !wanted {
                return;
            }
            let done = match &job {
                Job::Activate { spool, activate } => self.activate(*spool, activate).await,
                Job::ClearPrev { spool, epoch } => self.clear_prev(*spool, *epoch).await,
                Job::Register { copy } => self.register(*copy).await,
            };
            match done {
                Ok(()) => return,
                Err(error) => tracing::warn!(
                    ?job,
                    error = &error as &dyn std::error::Error,
                    "a step of an election is tried again"
                ),
            }
            sleep(retry).await;
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    fn leads(&self, spool: SpoolId, epoch: Epoch) -> bool {
        self.spools.glance(spool).is_some_and(|glance| glance.leads == Some(epoch))
    }

    async fn read(&self, spool: SpoolId) -> Result<Option<(Record, i64)>, EtcdError> {
        let mut etcd = self.etcd.clone();
        let answer = answered(etcd.get(record_key(spool), None)).await?;
        let Some(kv) = answer.kvs().first() else { return Ok(None) };
        match read_record(kv.value()) {
            Ok(record) => Ok(Some((record, kv.mod_revision()))),
            Err(error) => {
                tracing::error!(%spool, error, "the record in etcd");
                Err(EtcdError::Incomplete("a record that this node can read"))
            }
        }
    }

    async fn activate(&self, spool: SpoolId, activate: &Activate) -> Result<(), EtcdError> {
        let epoch = activate.epoch;
        let ok = match self.read(spool).await? {
            // The answer to an earlier try was lost.
            Some((record, _)) if self.is_mine(&record, epoch) && record.phase == Phase::Active => true,
            Some((mut record, revision)) if revision == activate.record_revision => {
                record.phase = Phase::Active;
                if activate.clear_prev {
                    record.prev.clear();
                }
                self.replace(&record, revision, true).await?
            }
            _ => false,
        };
        self.spools.tell(spool, Event::Activated { epoch, ok });
        Ok(())
    }

    async fn clear_prev(&self, spool: SpoolId, epoch: Epoch) -> Result<(), EtcdError> {
        let ok = match self.read(spool).await? {
            Some((record, _)) if record.epoch == epoch && record.prev.is_empty() => true,
            Some((mut record, revision)) if record.epoch == epoch => {
                record.prev.clear();
                if !self.replace(&record, revision, false).await? {
                    return Err(EtcdError::Incomplete("the revision that was just read"));
                }
                true
            }
            _ => false,
        };
        self.spools.tell(spool, Event::PrevCleared { epoch, ok });
        Ok(())
    }

    fn is_mine(&self, record: &Record, epoch: Epoch) -> bool {
        let mine = |last: &spool::record::Last| last.process == self.facts.process && last.epoch == epoch;
        record.epoch == epoch && record.last.as_ref().is_some_and(mine)
    }

    /// If the record still has this revision. `claim`: puts the claim with it.
    async fn replace(&self, record: &Record, revision: i64, claim: bool) -> Result<bool, EtcdError> {
        let (key, spool, node) = (record_key(record.spool), record.spool, &self.node);
        let mut then = vec![TxnOp::put(key.clone(), serde_json::to_vec(record)?, None)];
        if claim {
            then.push(TxnOp::put(format!("/owners/{node}/{spool}"), record.epoch.to_string(), None));
            then.push(TxnOp::put(format!("/owners/{node}/rev"), format!("{spool} {}", record.epoch), None));
        }
        let txn = Txn::new().when([Compare::mod_revision(key, CompareOp::Equal, revision)]).and_then(then);
        let mut etcd = self.etcd.clone();
        Ok(answered(etcd.txn(txn)).await?.succeeded())
    }

    /// A disk that was put back to an earlier state must not count as what it was: etcd remembers a later start, and
    /// this process ends. I13
    async fn register(&self, copy: CopyId) -> Result<(), EtcdError> {
        let key = format!("/copies/{copy}");
        let own = Registered { boot_no: self.facts.boot_no, process_id: Some(self.facts.process) };
        let mut etcd = self.etcd.clone();
        let answer = answered(etcd.get(key.clone(), None)).await?;
        let (there, revision) = match answer.kvs().first() {
            Some(kv) => (Some(serde_json::from_slice::<Registered>(kv.value())?), kv.mod_revision()),
            None => (None, 0),
        };
        match there {
            Some(there) if there == own => {}
            Some(there) if there.boot_no >= own.boot_no => {
                let found =
                    format!("start {} of copy {copy} was registered, this is {}", there.boot_no, own.boot_no);
                fatal_storage_error("the data directory is older than what this node was", &found)
            }
            _ => {
                let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
                let put = TxnOp::put(key, serde_json::to_vec(&own)?, None);
                if !answered(etcd.txn(Txn::new().when([unchanged]).and_then([put]))).await?.succeeded() {
                    return Err(EtcdError::Incomplete("the revision that was just read"));
                }
            }
        }
        self.spools.mark_registered(copy);
        Ok(())
    }
}

/// Under `/copies/{copy}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Registered {
    boot_no: u64,
    #[serde(default)]
    process_id: Option<ProcessId>,
}

fn record_key(spool: SpoolId) -> String {
    format!("/spools/{spool}/record")
}
