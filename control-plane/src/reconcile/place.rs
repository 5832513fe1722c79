//! The steps for one spool.

use prost::bytes::Bytes;
use proto::replication as pb;
use std::time::Duration;
use tokio::time::timeout;
use types::{CopyId, NodeName};

use super::{NewSpool, PlaceError, ROWS_WAIT, Shared};
use crate::claims::{ClaimsError, Written};
use spool::record::{Member, Record};
use types::limits::REPLICAS_MAX;

/// A node syncs the copy's first write before it answers.
const COPY_WAIT: Duration = Duration::from_secs(3);

impl Shared {
    /// Returns once the spool has its record, whoever made it.
    pub(super) async fn place(&self, new: &NewSpool) -> Result<(), PlaceError> {
        if new.n == 0 || new.n > REPLICAS_MAX || new.k >= new.n {
            return Err(PlaceError::Numbers { n: new.n, k: new.k });
        }
        if self.etcd.record(new.id).await?.is_none() {
            let nodes = self.choose_nodes(new).await?;
            self.begin(new).await?;
            let members = self.make_copies(new, nodes).await?;
            self.create_record(new, members).await?;
        }
        self.choices.done(new.id);
        Ok(())
    }

    /// No copy is made for a row that may still be taken back.
    async fn begin(&self, new: &NewSpool) -> Result<(), PlaceError> {
        let begun = timeout(ROWS_WAIT, self.rows.begin_placing(new.id)).await;
        match begun.unwrap_or_else(|late| Err(late.into())).map_err(PlaceError::Rows)? {
            true => Ok(()),
            false => Err(PlaceError::TakenBack),
        }
    }

    async fn choose_nodes(&self, new: &NewSpool) -> Result<Vec<NodeName>, PlaceError> {
        let (nodes, records) = tokio::try_join!(self.etcd.nodes(), self.etcd.records())?;
        for (node, alive) in &nodes {
            self.clients.set_address(node, &alive.internal);
        }
        let alive: Vec<NodeName> = nodes.into_iter().map(|(node, _)| node).collect();
        let records: Vec<Record> = records.into_iter().map(|record| record.value).collect();
        Ok(self.choices.choose(new.id, usize::from(new.n), &alive, &records)?)
    }

    /// All of them answer, or none counts; what was made is kept for the next time.
    async fn make_copies(&self, new: &NewSpool, nodes: Vec<NodeName>) -> Result<Vec<Member>, PlaceError> {
        let copies = nodes.into_iter().map(|node| self.make_copy(new, node));
        futures::future::join_all(copies).await.into_iter().collect()
    }

    async fn make_copy(&self, new: &NewSpool, node: NodeName) -> Result<Member, PlaceError> {
        let request = request(new);
        let made = self.clients.call(&node, COPY_WAIT, async |mut c| c.create_copy(request).await).await;
        let copy = match made {
            Ok(reply) => {
                CopyId::from_slice(&reply.copy_id).ok_or(PlaceError::NotACopyId { node: node.clone() })
            }
            Err(error) => Err(error.into()),
        };
        match copy {
            Ok(copy) => {
                self.choices.made(new.id, &node, copy);
                Ok(Member { node, copy })
            }
            Err(error) => {
                self.choices.failed(&node);
                Err(error)
            }
        }
    }

    async fn create_record(&self, new: &NewSpool, members: Vec<Member>) -> Result<(), PlaceError> {
        let nodes: Vec<String> = members.iter().map(|member| member.node.to_string()).collect();
        let record = Record::first(new.id, new.n, new.k, members);
        match self.etcd.create_record(&record).await? {
            Written::Done(_) => tracing::info!(spool = %new.id, ?nodes, "placed"),
            // Another control plane was faster, or an answer was lost and this is ours.
            Written::Other(_) => tracing::info!(spool = %new.id, "was placed meanwhile"),
            Written::Gone => return Err(ClaimsError::Incomplete("the record that is in the way").into()),
        }
        Ok(())
    }
}

fn request(new: &NewSpool) -> pb::CreateCopyRequest {
    pb::CreateCopyRequest {
        spool_id: Bytes::copy_from_slice(new.id.as_bytes()),
        account_id: Bytes::copy_from_slice(new.account.as_bytes()),
        name: new.name.clone(),
        num_replicas: new.n.into(),
        num_sync: new.k.into(),
        token_key: Bytes::copy_from_slice(&new.token_key),
        created_ms: new.created_ms,
    }
}
