//! The operators' gRPC service. Every call needs two things: the `operator` certificate and an operator's token
//! ([`operators`]). It works from etcd and the nodes; without PostgreSQL only names are missing.

mod operators;
mod reply;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Request, Response, Status};
use types::{NodeName, SpoolId};

use crate::claims::ClaimsError;
use crate::elections::{Elections, MoveError};
use crate::inspect::Inspector;
use crate::reconcile::{Named, SpoolRows};
pub use operators::Operators;
use proto::ops as pb;
pub use proto::ops::ops_server::OpsServer;
use spool::record::Record;

const LIST_DEFAULT: usize = 100;
const LIST_MAX: usize = 1_000;
/// Names are a courtesy: operators need the rest most when PostgreSQL is in trouble.
const NAMES_WAIT: Duration = Duration::from_secs(2);

pub struct Ops {
    operators: Operators,
    inspector: Inspector,
    elections: Elections,
    rows: Arc<dyn SpoolRows>,
}

impl Ops {
    pub fn new(
        operators: Operators,
        inspector: Inspector,
        elections: Elections,
        rows: Arc<dyn SpoolRows>,
    ) -> Ops {
        Ops { operators, inspector, elections, rows }
    }
}

#[tonic::async_trait]
impl pb::ops_server::Ops for Ops {
    async fn list_nodes(
        &self,
        request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<pb::ListNodesReply>, Status> {
        self.operators.admit(&request)?;
        let nodes = self.inspector.nodes().await.map_err(|error| etcd_failed(&error))?;
        let all = self.inspector.records(|_| true, None, usize::MAX).await;
        let all = all.map_err(|error| etcd_failed(&error))?;
        Ok(Response::new(pb::ListNodesReply { nodes: reply::nodes(nodes, &all) }))
    }

    async fn list_spools(
        &self,
        request: Request<pb::ListSpoolsRequest>,
    ) -> Result<Response<pb::ListSpoolsReply>, Status> {
        self.operators.admit(&request)?;
        let request = request.into_inner();
        let after = match request.after_id.as_str() {
            "" => None,
            id => Some(read_id("after_id", id)?),
        };
        let node = Some(NodeName(request.node)).filter(|node| !node.0.is_empty());
        let spools = self.page(node.as_ref(), after, limit(request.limit)).await?;
        Ok(Response::new(pb::ListSpoolsReply { spools: self.show(spools).await? }))
    }

    async fn get_spool(&self, request: Request<pb::GetSpoolRequest>) -> Result<Response<pb::Spool>, Status> {
        self.operators.admit(&request)?;
        let id = read_id("id", &request.get_ref().id)?;
        let names = self.names(&[id]).await;
        let view = self.inspector.spool(id).await.map_err(|error| etcd_failed(&error))?;
        if view.record.is_none() && !names.contains_key(&id) {
            return Err(Status::not_found(format!("there is no spool {id}")));
        }
        Ok(Response::new(reply::spool(&view, names.get(&id))))
    }

    async fn move_primary(
        &self,
        request: Request<pb::MovePrimaryRequest>,
    ) -> Result<Response<pb::MovePrimaryReply>, Status> {
        let operator = self.operators.admit(&request)?;
        let request = request.into_inner();
        let id = read_id("id", &request.id)?;
        let target = Some(NodeName(request.target_node)).filter(|node| !node.0.is_empty());
        let began = Instant::now();
        let moved = self.elections.move_primary(id, target.clone()).await;
        let target = target.map_or_else(|| "any".to_owned(), |node| node.to_string());
        match moved {
            Ok(moved) => {
                let (from, to) = (&moved.from, &moved.to);
                tracing::info!(operator, spool = %id, target, %from, %to, epoch = %moved.epoch, "primary moved");
                Ok(Response::new(reply::moved(moved, began.elapsed())))
            }
            Err(error) => {
                tracing::warn!(operator, spool = %id, target, %error, "primary not moved");
                Err(move_failed(&error))
            }
        }
    }
}

impl Ops {
    /// Spools after `after`, in the order of their ids; those without a record are on no node.
    async fn page(
        &self,
        node: Option<&NodeName>,
        after: Option<SpoolId>,
        limit: usize,
    ) -> Result<Vec<(SpoolId, Option<Record>)>, Status> {
        let on = |record: &Record| node.is_none_or(|node| record.members.iter().any(|m| m.node == *node));
        let records = self.inspector.records(on, after, limit).await.map_err(|error| etcd_failed(&error))?;
        let mut spools: BTreeMap<SpoolId, Option<Record>> =
            records.into_iter().map(|record| (record.spool, Some(record))).collect();
        if node.is_none() {
            let full = (spools.len() == limit).then(|| spools.keys().next_back().copied()).flatten();
            for id in self.unplaced().await {
                // Beyond the last of a full page a record may come first.
                if after.is_none_or(|after| id > after) && full.is_none_or(|last| id < last) {
                    spools.entry(id).or_insert(None);
                }
            }
        }
        Ok(spools.into_iter().take(limit).collect())
    }

    async fn unplaced(&self) -> HashSet<SpoolId> {
        let limit = u32::try_from(LIST_MAX).unwrap_or(u32::MAX);
        match tokio::time::timeout(NAMES_WAIT, self.rows.unplaced(limit)).await {
            Ok(Ok(rows)) => rows.into_iter().map(|row| row.id).collect(),
            Ok(Err(error)) => {
                tracing::warn!(
                    error = &*error as &dyn std::error::Error,
                    "spools without copies are not shown"
                );
                HashSet::new()
            }
            Err(_) => HashSet::new(),
        }
    }

    async fn show(&self, spools: Vec<(SpoolId, Option<Record>)>) -> Result<Vec<pb::Spool>, Status> {
        let ids: Vec<SpoolId> = spools.iter().map(|(id, _)| *id).collect();
        let (views, names) = tokio::join!(self.inspector.with_records(spools), self.names(&ids));
        let views = views.map_err(|error| etcd_failed(&error))?;
        Ok(views.iter().map(|view| reply::spool(view, names.get(&view.spool))).collect())
    }

    async fn names(&self, ids: &[SpoolId]) -> HashMap<SpoolId, Named> {
        match tokio::time::timeout(NAMES_WAIT, self.rows.names(ids)).await {
            Ok(Ok(names)) => names.into_iter().map(|named| (named.id, named)).collect(),
            Ok(Err(error)) => {
                tracing::warn!(error = &*error as &dyn std::error::Error, "spools are shown without names");
                HashMap::new()
            }
            Err(_) => HashMap::new(),
        }
    }
}

fn limit(asked: u32) -> usize {
    match usize::try_from(asked).unwrap_or(usize::MAX) {
        0 => LIST_DEFAULT,
        asked => asked.min(LIST_MAX),
    }
}

fn read_id(field: &'static str, id: &str) -> Result<SpoolId, Status> {
    id.parse().map_err(|_| Status::invalid_argument(format!("`{field}`: {id:?} is no spool's id (a UUID)")))
}

fn etcd_failed(error: &ClaimsError) -> Status {
    tracing::warn!(error = error as &dyn std::error::Error, "an operator gets no answer");
    match error {
        ClaimsError::Malformed { .. } | ClaimsError::Incomplete(_) => Status::internal(error.to_string()),
        ClaimsError::NoAnswer | ClaimsError::Etcd(_) => {
            Status::unavailable("etcd does not answer the control plane")
        }
    }
}

fn move_failed(error: &MoveError) -> Status {
    let text = error.to_string();
    match error {
        MoveError::NoSuchSpool => Status::not_found(text),
        MoveError::NotAMember { .. } => Status::invalid_argument(format!("`target_node`: {text}")),
        MoveError::NoPrimary | MoveError::NoOther | MoveError::Unreachable | MoveError::Elsewhere { .. } => {
            Status::failed_precondition(text)
        }
        MoveError::Busy => Status::aborted(text),
        MoveError::TimedOut => Status::deadline_exceeded(text),
    }
}
