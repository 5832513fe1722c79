//! The gRPC server for other nodes, controllers and operators.
//!
//! Run it on a runtime that clients' requests cannot fill: what it answers are promises and seals.

use super::Copies;
use super::caller::Caller;
use super::pairs::PairTable;
use super::streams::{self, Peers, StreamError};
use super::tls::{CONNECTION_WINDOW, KEEP_ALIVE, STREAM_WINDOW, Tls};
use super::wire::call::{self, Whom, WrongAnswer};
use super::wire::{MESSAGE_BYTES_MAX, beat};
use crate::spools::CreateError;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use proto::replication as pb;
use proto::replication::replication_server::{Replication, ReplicationServer};
use spool::event::{Call, CallReply};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use types::NodeName;
use types::time::Now;

/// No call waits longer at a copy, whatever its caller's deadline is.
const CALL_WAIT_MAX: Duration = Duration::from_secs(30);
/// Answers under way may end when the node shuts down.
const DRAIN_WAIT: Duration = Duration::from_secs(2);
/// Streams and calls on one connection.
const CONCURRENT_MAX: u32 = 1_024;
/// Spools that one question for their state names, and how many copies are asked at a time.
const STATUS_MAX: usize = 10_000;
const STATUS_AT_ONCE: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("the certificates of this node cannot be used")]
    Tls(#[source] tonic::transport::Error),
    #[error("the descriptors for reflection cannot be read")]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error("the internal gRPC server failed")]
    Serve(#[source] tonic::transport::Error),
}

pub struct Server {
    pub tls: Tls,
    pub copies: Arc<dyn Copies>,
    pub pairs: Arc<PairTable>,
    pub peers: Peers,
    /// CLOCK_BOOTTIME and the wall clock.
    pub now: fn() -> Now,
}

impl Server {
    /// Until `stop`; streams end with it.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> Result<(), ServerError> {
        let tls = self.tls.server();
        let Server { copies, pairs, peers, now, .. } = self;
        let service = Service { copies, pairs, peers, now, stop: stop.clone() };
        let service = ReplicationServer::new(service)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<ReplicationServer<Service>>().await;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .build_v1()?;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(KEEP_ALIVE));
        let serving = tonic::transport::Server::builder()
            .tls_config(tls)
            .map_err(ServerError::Tls)?
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(KEEP_ALIVE))
            .max_concurrent_streams(CONCURRENT_MAX)
            .add_service(service)
            .add_service(health_service)
            .add_service(reflection)
            .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(DRAIN_WAIT).await;
        };
        tokio::select! {
            served = serving => served.map_err(ServerError::Serve),
            () = late => Ok(()),
        }
    }
}

#[derive(Clone)]
struct Service {
    copies: Arc<dyn Copies>,
    pairs: Arc<PairTable>,
    peers: Peers,
    now: fn() -> Now,
    stop: CancellationToken,
}

impl Service {
    /// `None`: this node has no such copy.
    async fn call(&self, whom: Whom, call: Call) -> Result<Option<CallReply>, Status> {
        let Whom { spool, copy } = whom;
        let there = self.copies.copy(spool);
        if there.is_none_or(|there| copy.is_some_and(|copy| copy != there)) {
            return Ok(None);
        }
        let answer = self.copies.call(spool, there, call);
        let answer = tokio::select! {
            answer = answer => answer,
            () = tokio::time::sleep(CALL_WAIT_MAX) => {
                return Err(Status::deadline_exceeded("the copy did not answer"));
            }
            () = self.stop.cancelled() => None,
        };
        // That the copy is gone must not be said of one that cannot answer only now.
        answer.map(Some).ok_or_else(|| Status::unavailable("this node is shutting down"))
    }

    fn until_stopped<T: Send + 'static>(
        &self,
        stream: impl Stream<Item = T> + Send + 'static,
    ) -> BoxStream<'static, T> {
        stream.take_until(self.stop.clone().cancelled_owned()).boxed()
    }
}

#[tonic::async_trait]
impl Replication for Service {
    type StreamStream = BoxStream<'static, Result<pb::PeerMessage, Status>>;
    type HeartbeatsStream = BoxStream<'static, Result<pb::BeatReply, Status>>;

    async fn stream(
        &self,
        request: Request<Streaming<pb::PeerMessage>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let caller = Caller::of(&request)?;
        let mut messages = request.into_inner();
        let hello = streams::take_hello(&mut messages).await.map_err(refuse)?;
        caller.must_be_node(&hello.node)?;
        let (back, closed) = self.peers.accept(&hello.node);
        tracing::debug!(node = %hello.node, process = %hello.process, "a stream from this node");
        let peers = self.peers.clone();
        let (ended, end) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let error = peers.receive(&hello.node, &mut messages, &closed).await;
            tracing::debug!(node = %hello.node, error = &error as &dyn Error, "the stream from this node ended");
            // The connection may be gone already.
            let _heard = ended.send(refuse(error));
        });
        // When one direction ends, so does the other: each side then knows that something was lost.
        let failed =
            futures::stream::once(async { Err(end.await.unwrap_or_else(|_| refuse(StreamError::Ended))) });
        let answers = futures::stream::select(back.map(Ok), failed);
        Ok(Response::new(self.until_stopped(answers)))
    }

    async fn heartbeats(
        &self,
        request: Request<Streaming<pb::Beat>>,
    ) -> Result<Response<Self::HeartbeatsStream>, Status> {
        let caller = Caller::of(&request)?;
        let (pairs, now) = (self.pairs.clone(), self.now);
        let mut checked: Option<NodeName> = None;
        let replies = request.into_inner().map(move |message| {
            let now = now();
            let (node, received) = beat::read_beat(message?)?;
            if checked.as_ref() != Some(&node) {
                caller.must_be_node(&node)?;
                checked = Some(node.clone());
            }
            Ok(beat::reply(&pairs.on_beat(&node, now, &received)))
        });
        Ok(Response::new(self.until_stopped(replies)))
    }

    async fn seal(&self, request: Request<pb::SealRequest>) -> Result<Response<pb::SealReply>, Status> {
        Caller::of(&request)?.must_be_controller()?;
        let (whom, call) = call::read_seal(request.get_ref())?;
        Ok(Response::new(call::seal_reply(self.call(whom, call).await?)?))
    }

    async fn assign(&self, request: Request<pb::AssignRequest>) -> Result<Response<pb::AssignReply>, Status> {
        Caller::of(&request)?.must_be_controller()?;
        let (whom, call) = call::read_assign(request.into_inner())?;
        Ok(Response::new(call::assign_reply(self.call(whom, call).await?)?))
    }

    async fn probe(&self, request: Request<pb::ProbeRequest>) -> Result<Response<pb::ProbeReply>, Status> {
        Caller::of(&request)?.must_be_controller()?;
        let (whom, call) = call::read_probe(request.get_ref())?;
        Ok(Response::new(call::probe_reply(self.call(whom, call).await?)?))
    }

    async fn step_down(
        &self,
        request: Request<pb::StepDownRequest>,
    ) -> Result<Response<pb::StepDownReply>, Status> {
        Caller::of(&request)?.must_be_controller()?;
        let (whom, call) = call::read_step_down(request.get_ref())?;
        Ok(Response::new(call::step_down_reply(self.call(whom, call).await?)?))
    }

    async fn status(&self, request: Request<pb::StatusRequest>) -> Result<Response<pb::StatusReply>, Status> {
        Caller::of(&request)?.must_be_controller_or_operator()?;
        let mut spools = call::read_status(request.get_ref(), STATUS_MAX)?;
        if spools.is_empty() {
            spools = self.copies.spools();
        }
        let asked = spools.into_iter().map(|spool| self.call(Whom { spool, copy: None }, Call::Status));
        let mut answers = futures::stream::iter(asked).buffered(STATUS_AT_ONCE);
        let mut copies = Vec::new();
        while let Some(answer) = answers.next().await {
            if let Some(reply) = answer? {
                copies.push(call::status_reply(reply)?);
            }
        }
        Ok(Response::new(pb::StatusReply { copies }))
    }

    async fn create_copy(
        &self,
        request: Request<pb::CreateCopyRequest>,
    ) -> Result<Response<pb::CreateCopyReply>, Status> {
        Caller::of(&request)?.must_be_controller()?;
        let new = call::read_create_copy(request.into_inner())?;
        let copy = self.copies.create_copy(new).await.map_err(|error| create_failed(&error))?;
        Ok(Response::new(call::create_copy_reply(copy)))
    }
}

fn refuse(error: StreamError) -> Status {
    match error {
        StreamError::Broken(status) => *status,
        StreamError::Malformed(error) => error.into(),
        StreamError::OutOfPlace(_) | StreamError::NoHello => Status::invalid_argument(error.to_string()),
        StreamError::Closed | StreamError::Busy => Status::resource_exhausted(error.to_string()),
        other => Status::unavailable(other.to_string()),
    }
}

fn create_failed(error: &CreateError) -> Status {
    match error {
        CreateError::Refused(refused) => Status::failed_precondition(refused.to_string()),
        CreateError::Open(source) => {
            tracing::error!(error = source as &dyn Error, "a new copy cannot be opened");
            Status::internal(error.to_string())
        }
        CreateError::ShuttingDown => Status::unavailable(error.to_string()),
    }
}

impl From<WrongAnswer> for Status {
    fn from(error: WrongAnswer) -> Status {
        tracing::error!(%error, "a defect");
        Status::internal("a defect of this node")
    }
}
