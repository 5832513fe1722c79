//! What a spool looks like at this moment, for its owner and for operators: its record and status from etcd,
//! and what each of its copies says of itself. Asked anew each time; nothing here is kept or decides anything.
//!
//! * [`view`]: from what was read and answered to a state, pure
//! * here: the reading and asking, bounded and in parallel

#[cfg(test)]
mod tests;
mod view;

use futures::StreamExt;
use prost::bytes::Bytes;
use proto::replication as pb;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{NodeName, SpoolId};

use crate::claims::{Alive, ClaimsError, Etcd, Status, Versioned};
use crate::elections::NodeClients;
use spool::controller::seals;
use spool::record::Record;
use view::Answer;
pub use view::{Aliases, CopyView, Role, SpoolView};

/// A node that takes longer than this does not answer.
const STATUS_WAIT: Duration = Duration::from_secs(1);
/// Spools asked for in one call to a node; it knows as many limits.
const SPOOLS_A_CALL: usize = 1_000;
/// Reads of etcd on their way for one question.
const READS_MAX: usize = 16;

/// Cheap to clone.
#[derive(Clone)]
pub struct Inspector {
    etcd: Etcd,
    clients: NodeClients,
}

impl Inspector {
    /// `clients` are those of the elections, which know the nodes' addresses.
    pub fn new(etcd: Etcd, clients: NodeClients) -> Inspector {
        Inspector { etcd, clients }
    }

    pub async fn spool(&self, spool: SpoolId) -> Result<SpoolView, ClaimsError> {
        let views = self.spools(&[spool]).await?;
        views.into_iter().next().ok_or(ClaimsError::Incomplete("the spool"))
    }

    /// In the order given. Each node is asked once for all of them.
    pub async fn spools(&self, spools: &[SpoolId]) -> Result<Vec<SpoolView>, ClaimsError> {
        let reads: Vec<_> = spools.iter().map(|spool| self.read(*spool)).collect();
        let read: Vec<_> = futures::stream::iter(reads).buffered(READS_MAX).collect().await;
        self.with_records(read.into_iter().collect::<Result<_, _>>()?).await
    }

    async fn read(&self, spool: SpoolId) -> Result<(SpoolId, Option<Record>), ClaimsError> {
        Ok((spool, self.etcd.record(spool).await?.map(|record| record.value)))
    }

    /// All records, in the order of their ids: the ones that `wanted` keeps, after `after`, at most `limit`.
    pub async fn records(
        &self,
        wanted: impl Fn(&Record) -> bool,
        after: Option<SpoolId>,
        limit: usize,
    ) -> Result<Vec<Record>, ClaimsError> {
        let records = self.etcd.records().await?.into_iter().map(|Versioned { value, .. }| value);
        let later = |record: &Record| after.is_none_or(|after| record.spool > after);
        let mut records: Vec<Record> = records.filter(|record| later(record) && wanted(record)).collect();
        records.sort_by_key(|record| record.spool);
        records.truncate(limit);
        Ok(records)
    }

    /// Views of spools whose records were just read; `None`: there is no record yet.
    pub async fn with_records(
        &self,
        spools: Vec<(SpoolId, Option<Record>)>,
    ) -> Result<Vec<SpoolView>, ClaimsError> {
        self.learn_addresses(&self.etcd.nodes().await?);
        let mut asked: BTreeMap<NodeName, Vec<SpoolId>> = BTreeMap::new();
        for (spool, record) in &spools {
            for member in record.iter().flat_map(seals::voters) {
                let of_node = asked.entry(member.node).or_default();
                if of_node.last() != Some(spool) {
                    of_node.push(*spool);
                }
            }
        }
        // Elections write no status for a spool without a record.
        let placed = spools.iter().filter(|(_, record)| record.is_some()).map(|(spool, _)| *spool).collect();
        let (statuses, answers) = tokio::join!(self.statuses(placed), self.ask(asked));
        let statuses = statuses?;
        let views = spools.iter().map(|(spool, record)| {
            let answer = |node: &NodeName| match answers.get(node) {
                Some(copies) => match copies.get(spool) {
                    Some(status) => Answer::Copy(status),
                    None => Answer::NoCopy,
                },
                None => Answer::None,
            };
            view::view(*spool, record.as_ref(), statuses.get(spool), answer)
        });
        Ok(views.collect())
    }

    pub async fn nodes(&self) -> Result<Vec<(NodeName, Alive)>, ClaimsError> {
        let nodes = self.etcd.nodes().await?;
        self.learn_addresses(&nodes);
        Ok(nodes)
    }

    fn learn_addresses(&self, nodes: &[(NodeName, Alive)]) {
        for (node, alive) in nodes {
            self.clients.set_address(node, &alive.internal);
        }
    }

    async fn statuses(&self, spools: Vec<SpoolId>) -> Result<BTreeMap<SpoolId, Status>, ClaimsError> {
        let reads: Vec<_> = spools.into_iter().map(|spool| self.status(spool)).collect();
        let read: Vec<_> = futures::stream::iter(reads).buffer_unordered(READS_MAX).collect().await;
        let read: Vec<_> = read.into_iter().collect::<Result<_, ClaimsError>>()?;
        Ok(read.into_iter().filter_map(|(spool, status)| Some((spool, status?))).collect())
    }

    async fn status(&self, spool: SpoolId) -> Result<(SpoolId, Option<Status>), ClaimsError> {
        Ok((spool, self.etcd.status(spool).await?))
    }

    /// Every node at the same time; one that does not answer is missing in the result.
    async fn ask(
        &self,
        asked: BTreeMap<NodeName, Vec<SpoolId>>,
    ) -> BTreeMap<NodeName, BTreeMap<SpoolId, pb::CopyStatus>> {
        let calls = asked.into_iter().map(|(node, spools)| async move {
            let copies = self.ask_node(&node, &spools).await?;
            Some((node, copies))
        });
        futures::future::join_all(calls).await.into_iter().flatten().collect()
    }

    async fn ask_node(
        &self,
        node: &NodeName,
        spools: &[SpoolId],
    ) -> Option<BTreeMap<SpoolId, pb::CopyStatus>> {
        let mut copies = BTreeMap::new();
        for some in spools.chunks(SPOOLS_A_CALL) {
            let spool_ids = some.iter().map(|spool| Bytes::copy_from_slice(spool.as_bytes())).collect();
            let request = pb::StatusRequest { spool_ids };
            match self.clients.call(node, STATUS_WAIT, async |mut c| c.status(request).await).await {
                Ok(reply) => copies.extend(
                    reply.copies.into_iter().filter_map(|c| Some((SpoolId::from_slice(&c.spool_id)?, c))),
                ),
                // Shown as a copy that does not answer.
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "no status");
                    return None;
                }
            }
        }
        Some(copies)
    }
}
