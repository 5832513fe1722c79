//! For nodes: whom they serve, and what they notice.

use super::{account, key, names_of, refused, spool};
use crate::elections::Elections;
use crate::inspect::Inspector;
use crate::store::{Changes, Store};
use futures::StreamExt;
use proto::control as pb;
use proto::control::nodes_server::Nodes;
use spool::record::Phase;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use types::{ErrorCode, NodeName};
use uuid::Uuid;

/// Names of clients that are not nodes.
const OTHERS: [&str; 3] = ["control-plane", "console-api", "operator"];
/// Another control plane's change is found after so long at the latest.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// An update without news says that the stream lives.
const SAY_SOMETHING_EVERY: Duration = Duration::from_secs(2);
const UPDATES_MAX: usize = 4;
const USES_MAX: usize = 10_000;
const MOVES_AT_ONCE: usize = 32;

pub struct NodesService {
    pub store: Arc<Store>,
    pub elections: Elections,
    pub inspector: Inspector,
    /// Streams end, so that the process can.
    pub stopping: CancellationToken,
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Nodes for NodesService {
    type WatchDirectoryStream = Pin<Box<dyn Stream<Item = Result<pb::DirectoryUpdate, Status>> + Send>>;

    async fn watch_directory(
        &self,
        request: Request<pb::WatchDirectoryRequest>,
    ) -> Reply<Self::WatchDirectoryStream> {
        admit_as(&request, &request.get_ref().node)?;
        let (updates, stream) = mpsc::channel(UPDATES_MAX);
        let (store, stopping) = (self.store.clone(), self.stopping.clone());
        tokio::spawn(async move {
            let followed = tokio::select! {
                followed = follow(&store, &updates) => followed,
                () = stopping.cancelled() => Err(Status::unavailable("the control plane ends")),
            };
            if let Err(status) = followed {
                // A node that went away hears nothing of it.
                let _gone = updates.send(Err(status)).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn look_up_key(&self, request: Request<pb::LookUpKeyRequest>) -> Reply<pb::LookUpKeyReply> {
        admit(&request)?;
        let Some(row) = self.store.key_by_hash(&request.get_ref().hash).await? else {
            return Ok(Response::new(pb::LookUpKeyReply { key: None, account: None, spools: Vec::new() }));
        };
        let owner = self.store.account(row.account).await?;
        let spools = self.store.spools(row.account).await?;
        Ok(Response::new(pb::LookUpKeyReply {
            key: Some(key(&row)),
            account: Some(account(owner.id, &owner.name, &owner.plan)),
            spools: spools.iter().map(spool).collect(),
        }))
    }

    async fn look_up_spool(&self, request: Request<pb::LookUpSpoolRequest>) -> Reply<pb::LookUpSpoolReply> {
        admit(&request)?;
        let request = request.into_inner();
        let owner = super::read_uuid("account_id", &request.account_id)?;
        let row = self.store.spool(owner, &request.name).await?;
        Ok(Response::new(pb::LookUpSpoolReply { spool: row.as_ref().map(spool) }))
    }

    async fn suspect(&self, request: Request<pb::SuspectRequest>) -> Reply<pb::SuspectReply> {
        admit_as(&request, &request.get_ref().reporter)?;
        let pb::SuspectRequest { reporter, suspect, refused, leaving } = request.into_inner();
        if leaving && reporter != suspect {
            return Err(Status::permission_denied("a node says of itself alone that it ends"));
        }
        if leaving {
            tracing::info!(node = reporter, "a node ends and hands its primaries over");
            tokio::spawn(hand_over(self.elections.clone(), self.inspector.clone(), NodeName(suspect)));
        } else {
            tracing::info!(reporter, suspect, refused, "a primary is not heard");
            self.elections.suspect(NodeName(suspect), refused);
        }
        Ok(Response::new(pb::SuspectReply {}))
    }

    async fn keys_used(&self, request: Request<pb::KeysUsedRequest>) -> Reply<pb::KeysUsedReply> {
        admit(&request)?;
        let uses = request.into_inner().uses;
        if uses.len() > USES_MAX {
            let detail = format!("{USES_MAX} uses at most");
            return Err(refused(ErrorCode::InvalidRequest, Some("uses"), detail));
        }
        let known = |u: &pb::keys_used_request::Use| u.key_id.parse::<Uuid>().ok().map(|id| (id, u.at_ms));
        let uses: Vec<(Uuid, i64)> = uses.iter().filter_map(known).collect();
        self.store.keys_used(&uses).await?;
        Ok(Response::new(pb::KeysUsedReply {}))
    }
}

/// The node's name: a certificate's that is nobody else's.
fn admit<T>(request: &Request<T>) -> Result<String, Status> {
    let names = names_of(request);
    match names.into_iter().find(|name| !OTHERS.contains(&name.as_str())) {
        Some(name) => Ok(name),
        None => Err(Status::permission_denied("only with a node's certificate")),
    }
}

/// A node speaks in its own name.
fn admit_as<T>(request: &Request<T>, named: &str) -> Result<(), Status> {
    let node = admit(request)?;
    match node == named {
        true => Ok(()),
        false => {
            Err(Status::permission_denied(format!("{named:?} is not the name in the certificate, {node}")))
        }
    }
}

/// Moves every spool that the node serves to another copy, where there is one. What is not moved when the node ends is
/// elected anew.
async fn hand_over(elections: Elections, inspector: Inspector, node: NodeName) {
    let leads = |record: &spool::record::Record| {
        let last = record.last.as_ref().is_some_and(|last| last.member.node == node);
        record.phase == Phase::Active && record.n > 1 && last
    };
    let records = match inspector.records(leads, None, usize::MAX).await {
        Ok(records) => records,
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(%node, error, "what a node serves is not known; it is elected anew");
            return;
        }
    };
    let elections = &elections;
    let moves = records.into_iter().map(|record| async move {
        if let Err(error) = elections.move_primary(record.spool, None).await {
            tracing::warn!(spool = %record.spool, %error, "not handed over; it is elected anew");
        }
    });
    futures::stream::iter(moves).buffer_unordered(MOVES_AT_ONCE).collect::<()>().await;
}

/// Everything, then what changes, until the node goes away.
async fn follow(
    store: &Store,
    updates: &mpsc::Sender<Result<pb::DirectoryUpdate, Status>>,
) -> Result<(), Status> {
    let mut told = 0;
    let mut said_at = tokio::time::Instant::now();
    loop {
        let changed = store.changed.notified();
        let version = store.directory_version().await?;
        if version != told || said_at.elapsed() >= SAY_SOMETHING_EVERY {
            let changes = store.changes(told).await?;
            let update = update(told == 0, &changes);
            told = changes.version;
            said_at = tokio::time::Instant::now();
            if updates.send(Ok(update)).await.is_err() {
                return Ok(());
            }
        }
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = updates.closed() => return Ok(()),
        }
    }
}

fn update(complete: bool, changes: &Changes) -> pb::DirectoryUpdate {
    pb::DirectoryUpdate {
        complete,
        version: u64::try_from(changes.version).unwrap_or(0),
        accounts: changes.accounts.iter().map(|(id, name, plan)| account(*id, name, plan)).collect(),
        keys: changes.keys.iter().map(key).collect(),
        spools: changes.spools.iter().map(spool).collect(),
        removed_key_ids: changes.removed_keys.iter().map(Uuid::to_string).collect(),
        removed_spool_ids: changes.removed_spools.iter().map(|id| id.as_bytes().to_vec().into()).collect(),
    }
}
