//! Messages between this node's copies and those of other nodes.
//!
//! For each other node this one opens one stream, on a connection of its own: appends and releases go out on it,
//! and what the other node's copies answer comes back on it. So a node that just started, and knows nobody's
//! address, already confirms what reaches it. What is sent while no stream is open is lost; each time that a
//! stream opens or ends, the copies are told and ask again.

use super::Copies;
use super::lane::{self, Lane, LaneReader};
use super::tls::{ConnectError, Tls};
use super::wire::peer::{Envelope, Frame, Hello, read_frame};
use super::wire::{MESSAGE_BYTES_MAX, WireError};
use crate::spools::Delivery;
use parking_lot::{Mutex, RwLock};
use proto::replication as pb;
use proto::replication::replication_client::ReplicationClient;
use spool::event::{PeerMessage, Reject, RejectReason};
use spool::record::Member;
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Status, Streaming};
use types::{NodeName, ProcessId, SpoolId};

/// From the request to the other side's hello.
pub(super) const HELLO_WAIT: Duration = Duration::from_secs(2);
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// `host:port` of the nodes whose addresses are known.
pub type Nodes = HashMap<NodeName, String>;

/// Cheap to clone.
#[derive(Clone)]
pub struct Peers {
    shared: Arc<Shared>,
}

struct Shared {
    hello: Hello,
    tls: Tls,
    copies: Arc<dyn Copies>,
    runtime: tokio::runtime::Handle,
    links: RwLock<HashMap<NodeName, Arc<Link>>>,
    nodes: watch::Sender<Nodes>,
    dialing: Mutex<HashMap<NodeName, Dialing>>,
    stop: CancellationToken,
}

/// What waits for a node.
struct Link {
    node: NodeName,
    /// Appends and releases, on the stream that this node opened.
    out: Arc<Lane>,
    /// Confirmations and rejections, on the stream that the other node opened.
    back: Arc<Lane>,
}

struct Dialing {
    address: String,
    _ends: DropGuard,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the stream broke")]
    Broken(#[from] Box<Status>),
    #[error("the other side ended the stream")]
    Ended,
    #[error("no hello within {HELLO_WAIT:?}")]
    NoHello,
    #[error("{said} answers where {expected} was expected")]
    OtherNode { said: NodeName, expected: NodeName },
    #[error("a malformed message")]
    Malformed(#[from] WireError),
    #[error("a message out of place: {0}")]
    OutOfPlace(&'static str),
    #[error("it took messages too slowly, or another stream took its place")]
    Closed,
    #[error("this node is too busy for what it was told")]
    Busy,
    #[error("this node is shutting down")]
    Stopping,
}

/// Which way a stream's messages go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// From the primary's node to the copy's.
    Out,
    Back,
}

impl Peers {
    /// On the runtime that this is called in. Nothing is dialed before [`Peers::set_nodes`]. Ends with `stop`.
    pub fn start(
        node: NodeName,
        process: ProcessId,
        tls: Tls,
        copies: Arc<dyn Copies>,
        stop: CancellationToken,
    ) -> Peers {
        let shared = Shared {
            hello: Hello { node, process },
            tls,
            copies,
            runtime: tokio::runtime::Handle::current(),
            links: RwLock::default(),
            nodes: watch::Sender::new(Nodes::new()),
            dialing: Mutex::default(),
            stop,
        };
        Peers { shared: Arc::new(shared) }
    }

    /// Does not wait. What cannot be sent now is dropped, and the copies hear of it.
    pub fn send(&self, spool: SpoolId, lineage: u64, from: Member, to: Member, message: PeerMessage) {
        let link = self.shared.link(&to.node);
        let lane = match way(&message) {
            Way::Out => &link.out,
            Way::Back => &link.back,
        };
        if lane.push(Envelope { spool, lineage, from, to, message }) == lane::Pushed::Overflowed {
            tracing::warn!(node = %link.node, "takes messages too slowly: what waited for it is dropped");
        }
    }

    /// Where other nodes are. One that is no longer named is kept at its last address: that etcd has forgotten it
    /// does not mean that it is gone.
    pub fn set_nodes(&self, nodes: Nodes) {
        let own = &self.shared.hello.node;
        let mut dialing = self.shared.dialing.lock();
        for (node, address) in nodes.iter().filter(|(node, _)| *node != own) {
            if dialing.get(node).is_some_and(|dialing| dialing.address == *address) {
                continue;
            }
            let stop = self.shared.stop.child_token();
            let task = keep_open(self.shared.clone(), node.clone(), address.clone(), stop.clone());
            self.shared.runtime.spawn(task);
            let dialed = Dialing { address: address.clone(), _ends: stop.drop_guard() };
            dialing.insert(node.clone(), dialed);
        }
        let known = dialing.iter().map(|(node, dialing)| (node.clone(), dialing.address.clone()));
        self.shared.nodes.send_replace(known.collect());
    }

    /// Every node whose address was ever told, at its latest one.
    pub fn nodes(&self) -> watch::Receiver<Nodes> {
        self.shared.nodes.subscribe()
    }

    /// A stream that another node opened: what goes back to it. One from before ends.
    pub(super) fn accept(&self, from: &NodeName) -> (LaneReader, CancellationToken) {
        self.shared.link(from).back.read(&self.shared.hello)
    }

    /// What came on a stream that another node opened, until it ends.
    pub(super) async fn receive(
        &self,
        from: &NodeName,
        messages: &mut Streaming<pb::PeerMessage>,
        closed: &CancellationToken,
    ) -> StreamError {
        tokio::select! {
            error = take_all(&self.shared, from, Way::Out, messages) => error,
            () = closed.cancelled() => StreamError::Closed,
            () = self.shared.stop.cancelled() => StreamError::Stopping,
        }
    }
}

fn way(message: &PeerMessage) -> Way {
    match message {
        PeerMessage::Append(_) | PeerMessage::Release { .. } => Way::Out,
        PeerMessage::Confirm(_) | PeerMessage::Reject(_) => Way::Back,
    }
}

impl Shared {
    fn link(&self, node: &NodeName) -> Arc<Link> {
        if let Some(link) = self.links.read().get(node) {
            return link.clone();
        }
        let new = || {
            let lane = || Lane::new(lane::BYTES_MAX, lane::MESSAGES_MAX);
            Arc::new(Link { node: node.clone(), out: lane(), back: lane() })
        };
        self.links.write().entry(node.clone()).or_insert_with(new).clone()
    }

    fn deliver(&self, from: &NodeName, on: Way, envelope: Envelope) -> Result<(), StreamError> {
        let Envelope { spool, lineage, from: sender, to, message } = envelope;
        if sender.node != *from {
            return Err(StreamError::OutOfPlace("it is in the name of another node"));
        }
        if to.node != self.hello.node {
            return Err(StreamError::OutOfPlace("it is for another node"));
        }
        if way(&message) != on {
            return Err(StreamError::OutOfPlace("it goes the other way"));
        }
        let asked = match &message {
            PeerMessage::Append(append) => Some((append.epoch, append.number)),
            _ => None,
        };
        let reason = match (self.copies.peer(spool, sender.clone(), to.copy, message), asked) {
            (Delivery::Delivered, _) | (Delivery::UnknownCopy, None) => return Ok(()),
            // A confirmation is lost: the connection counts as lost, so that it is asked for again.
            (Delivery::Busy, None) => return Err(StreamError::Busy),
            (Delivery::UnknownCopy, Some(_)) => RejectReason::UnknownCopy,
            (Delivery::Busy, Some(_)) => RejectReason::Busy,
        };
        if let Some((epoch, number)) = asked {
            let message = PeerMessage::Reject(Reject { epoch, number, reason });
            // If it cannot be sent, the stream is ending, and the sender will ask again.
            self.link(from).back.push(Envelope { spool, lineage, from: to, to: sender, message });
        }
        Ok(())
    }
}

/// Delivers until the stream ends; says why it did.
async fn take_all(
    shared: &Shared,
    from: &NodeName,
    on: Way,
    messages: &mut Streaming<pb::PeerMessage>,
) -> StreamError {
    loop {
        let step = match messages.message().await {
            Ok(Some(message)) => match read_frame(message) {
                Ok(Frame::Copy(envelope)) => shared.deliver(from, on, envelope),
                Ok(Frame::Hello(_)) => Err(StreamError::OutOfPlace("a second hello")),
                Err(error) => Err(error.into()),
            },
            Ok(None) => Err(StreamError::Ended),
            Err(status) => Err(Box::new(status).into()),
        };
        if let Err(error) = step {
            return error;
        }
    }
}

/// The first message of a stream says who is there.
pub(super) async fn take_hello(messages: &mut Streaming<pb::PeerMessage>) -> Result<Hello, StreamError> {
    let first = tokio::time::timeout(HELLO_WAIT, messages.message());
    let first = first.await.map_err(|_| StreamError::NoHello)?.map_err(Box::new)?;
    match read_frame(first.ok_or(StreamError::Ended)?)? {
        Frame::Hello(hello) => Ok(hello),
        Frame::Copy(_) => Err(StreamError::OutOfPlace("a stream begins with hello")),
    }
}

async fn keep_open(shared: Arc<Shared>, node: NodeName, address: String, stop: CancellationToken) {
    let mut retry = RETRY_MIN;
    loop {
        let mut opened = false;
        let error = tokio::select! {
            error = keep_one(&shared, &node, &address, &mut opened) => error,
            () = stop.cancelled() => return,
        };
        if opened {
            tracing::warn!(%node, error = &error as &dyn Error, "the stream to this node ended");
            shared.copies.peer_disconnected(&node);
            retry = RETRY_MIN;
        } else {
            tracing::debug!(%node, address, error = &error as &dyn Error, "no stream to this node");
        }
        tokio::select! {
            () = tokio::time::sleep(retry) => {}
            () = stop.cancelled() => return,
        }
        retry = (retry * 2).min(RETRY_MAX);
    }
}

/// One stream, from its opening to its end.
async fn keep_one(shared: &Shared, node: &NodeName, address: &str, opened: &mut bool) -> StreamError {
    let (mut messages, closed) = match open(shared, node, address).await {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    *opened = true;
    tracing::info!(%node, address, "a stream to this node is open");
    // What was sent before was lost.
    shared.copies.peer_disconnected(node);
    tokio::select! {
        error = take_all(shared, node, Way::Back, &mut messages) => error,
        () = closed.cancelled() => StreamError::Closed,
    }
}

async fn open(
    shared: &Shared,
    node: &NodeName,
    address: &str,
) -> Result<(Streaming<pb::PeerMessage>, CancellationToken), StreamError> {
    let channel = shared.tls.connect(node, address).await?;
    let mut client = ReplicationClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let (reader, closed) = shared.link(node).out.read(&shared.hello);
    let answer = tokio::time::timeout(HELLO_WAIT, client.stream(reader)).await;
    let mut messages = answer.map_err(|_| StreamError::NoHello)?.map_err(Box::new)?.into_inner();
    let hello = take_hello(&mut messages).await?;
    if hello.node != *node {
        return Err(StreamError::OtherNode { said: hello.node, expected: node.clone() });
    }
    Ok((messages, closed))
}
