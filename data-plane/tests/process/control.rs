//! A control plane that knows one account and no more.

use proto::control;
use proto::control::nodes_server::Nodes;
use std::pin::Pin;
use tonic::{Request, Response, Status};

pub struct OneAccount;

type Updates = Pin<Box<dyn futures::Stream<Item = Result<control::DirectoryUpdate, Status>> + Send>>;

#[tonic::async_trait]
impl Nodes for OneAccount {
    type WatchDirectoryStream = Updates;

    async fn watch_directory(
        &self,
        _: Request<control::WatchDirectoryRequest>,
    ) -> Result<Response<Updates>, Status> {
        use futures::StreamExt;
        let account = control::Account {
            id: vec![1; 16].into(),
            name: "one".to_owned(),
            plan: Some(control::Plan::default()),
        };
        let first = control::DirectoryUpdate {
            complete: true,
            version: 1,
            accounts: vec![account],
            ..control::DirectoryUpdate::default()
        };
        let updates = futures::stream::iter([Ok(first)]).chain(futures::stream::pending());
        Ok(Response::new(Box::pin(updates)))
    }
    async fn look_up_key(
        &self,
        _: Request<control::LookUpKeyRequest>,
    ) -> Result<Response<control::LookUpKeyReply>, Status> {
        Err(Status::unavailable("not here"))
    }
    async fn look_up_spool(
        &self,
        _: Request<control::LookUpSpoolRequest>,
    ) -> Result<Response<control::LookUpSpoolReply>, Status> {
        Err(Status::unavailable("not here"))
    }
    async fn suspect(
        &self,
        _: Request<control::SuspectRequest>,
    ) -> Result<Response<control::SuspectReply>, Status> {
        Ok(Response::new(control::SuspectReply {}))
    }
    async fn keys_used(
        &self,
        _: Request<control::KeysUsedRequest>,
    ) -> Result<Response<control::KeysUsedReply>, Status> {
        Ok(Response::new(control::KeysUsedReply {}))
    }
}
