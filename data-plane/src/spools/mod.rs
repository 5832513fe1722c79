//! The spools of this node: one pure `spool::SpoolCopy` each, driven by a few engine threads.
//!
//! [`Spools`] is what the rest of the node sees: where a spool is served, and ways to ask this node's copies.
//! [`Outside`] is what the engines need of the rest: a way to other nodes, and to etcd.
//!
//! * `host`: copies come into being and are opened; `drain`: the orderly end
//! * `engine`: the threads; `inbox`: what waits for them

mod drain;
mod engine;
mod host;
mod inbox;
#[cfg(test)]
mod tests;

use engine::{Engine, Input, Pulse, Tools, nobody};
use inbox::{Bound, Inbox, Kind, Refused};
use parking_lot::{Mutex, RwLock};
use spool::command::{Command, Failure, Reply, RequestId};
use spool::copy::{ProcessFacts, Settings, SpoolCopy};
use spool::event::{Activate, Call, CallReply, Event, PeerMessage};
use spool::promise::Pairs;
use spool::record::Member;
use spool::token::Token;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use types::{CopyId, Epoch, ErrorCode, Moment, NodeName, SpoolId};

use crate::clock;
use crate::membership::Routing;
use crate::metrics::Metrics;
use crate::store::{Db, SpoolNumber, Syncer};

pub use host::CreateError;
pub use inbox::Depth;

/// Requests that the engines have not looked at yet, together; beyond it `spool_busy`.
const REQUESTS_MAX: Bound = Bound { items: 50_000, bytes: 64 << 20 };
/// Messages of other copies that the engines have not looked at yet; beyond it they are told that it is busy.
const PEER_MESSAGES_MAX: Bound = Bound { items: 20_000, bytes: 64 << 20 };
const ENGINES_MAX: usize = 4;

/// Where a request for a spool has to go.
#[derive(Clone, Debug, PartialEq)]
pub enum Route {
    Here,
    /// To the node that is believed to be primary; `internal` is its internal HTTP address, `host:port`.
    There {
        node: NodeName,
        internal: String,
    },
    /// Nobody serves it now.
    Nowhere(Failure),
}

/// An answer of this node's copy, and the epoch it is given in (zero if the copy is not the primary).
#[derive(Clone, Debug)]
pub struct Answer {
    pub epoch: Epoch,
    pub reply: Reply,
}

/// What became of a message for a copy of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    Delivered,
    /// This disk has no copy of that spool, or another one.
    UnknownCopy,
    Busy,
}

/// What the engines ask of the rest of the node. Nothing here blocks.
pub trait Outside: Clone + Send + 'static {
    fn send(&self, spool: SpoolId, lineage: u64, from: Member, to: Member, message: PeerMessage);
    fn activate(&self, spool: SpoolId, activate: Activate);
    fn clear_prev(&self, spool: SpoolId, epoch: Epoch);
    /// Has etcd remember that this start of the node has the copy, then calls [`Spools::mark_registered`].
    fn register(&self, copy: CopyId);
}

/// What others want to know of a copy at a glance; an engine keeps it up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Of which epoch it is primary, serving or not.
    pub leads: Option<Epoch>,
    pub follows: Option<Member>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    engine: usize,
    number: SpoolNumber,
    copy: CopyId,
    /// There are other copies.
    replicated: bool,
}

#[derive(Default)]
struct Shared {
    glances: RwLock<HashMap<SpoolId, Glance>>,
}

impl Shared {
    fn publish(&self, spool: SpoolId, copy: &SpoolCopy) {
        let leads = copy.primary_epoch();
        let same =
            |glance: &Glance| glance.leads == leads && glance.follows.as_ref() == copy.primary_member();
        if !self.glances.read().get(&spool).is_some_and(same) {
            let glance = Glance { leads, follows: copy.primary_member().cloned() };
            self.glances.write().insert(spool, glance);
        }
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Spools {
    inner: Arc<Inner>,
}

struct Inner {
    node: NodeName,
    facts: ProcessFacts,
    settings: Settings,
    db: Arc<Db>,
    routing: Routing,
    shared: Arc<Shared>,
    metrics: Metrics,
    inboxes: Vec<Arc<Inbox<Input>>>,
    pulses: Vec<Arc<Pulse>>,
    draining: AtomicBool,
    /// Copies that etcd knows to be of this start. Others answer no Seal: they might be older than what they
    /// confirmed.
    registered: watch::Sender<HashSet<CopyId>>,
    places: RwLock<HashMap<SpoolId, Place>>,
    /// One creation at a time.
    creating: tokio::sync::Mutex<()>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    last_request: AtomicU64,
}

impl Spools {
    /// Nothing runs yet: what is sent waits for [`Spools::start`].
    pub fn new(
        node: NodeName,
        facts: ProcessFacts,
        settings: Settings,
        db: Arc<Db>,
        routing: Routing,
        metrics: Metrics,
    ) -> Spools {
        let engines = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, ENGINES_MAX);
        let share = |all: Bound| Bound { items: all.items / engines, bytes: all.bytes / engines };
        let inbox = || Arc::new(Inbox::new(share(PEER_MESSAGES_MAX), share(REQUESTS_MAX)));
        Spools {
            inner: Arc::new(Inner {
                node,
                facts,
                settings,
                db,
                routing,
                shared: Arc::default(),
                metrics,
                inboxes: (0..engines).map(|_| inbox()).collect(),
                pulses: (0..engines).map(|_| Arc::default()).collect(),
                draining: AtomicBool::new(false),
                registered: watch::Sender::default(),
                places: RwLock::default(),
                creating: tokio::sync::Mutex::default(),
                threads: Mutex::default(),
                last_request: AtomicU64::new(0),
            }),
        }
    }

    /// Starts the engines and opens every copy on this disk.
    pub fn start<P, O>(&self, syncer: &Syncer, pairs: &Arc<P>, outside: &O) -> std::io::Result<()>
    where
        P: Pairs + Send + Sync + 'static,
        O: Outside,
    {
        let inner = &self.inner;
        for (i, (inbox, pulse)) in inner.inboxes.iter().zip(&inner.pulses).enumerate() {
            let its = inbox.clone();
            let tools = Tools {
                inbox: inbox.clone(),
                pulse: pulse.clone(),
                db: inner.db.clone(),
                sync: syncer.engine(move |completed| its.urgent(Input::Synced(completed))),
                pairs: pairs.clone(),
                outside: outside.clone(),
                shared: inner.shared.clone(),
                metrics: inner.metrics.clone(),
            };
            let engine = Engine::new(tools);
            let thread = std::thread::Builder::new().name(format!("engine-{i}")).spawn(move || {
                let _guard = AbortOnPanic;
                engine.run();
            })?;
            inner.threads.lock().push(thread);
        }
        self.open_all();
        Ok(())
    }

    pub fn node(&self) -> &NodeName {
        &self.inner.node
    }

    pub fn route(&self, spool: SpoolId) -> Route {
        let (routing, own) = (&self.inner.routing, &self.inner.node);
        match self.glance(spool).and_then(|glance| glance.leads) {
            // A primary that was cut off may not know yet that it was replaced.
            Some(epoch) => routing.successor(spool, epoch, own).unwrap_or(Route::Here),
            None => routing.route(spool, own),
        }
    }

    /// Asks this node's copy. Dropping the future tells the core that the client is gone: a write that is not
    /// yet in the log is forgotten, a long poll ends, what a receive handed out meanwhile is handed back.
    /// A copy that is not the primary answers `no_primary`.
    pub async fn request(&self, spool: SpoolId, command: Command, wait: Duration) -> Answer {
        let Some(place) = self.place(spool) else {
            return nobody(ErrorCode::NoPrimary, "this node holds no copy of the spool");
        };
        if self.inner.draining.load(Ordering::Relaxed) {
            return nobody(ErrorCode::NoPrimary, "this node is shutting down");
        }
        let (kind, asked_at) = (kind_of(&command), clock::moment());
        let answer = self.ask(place, command, wait).await;
        self.inner.metrics.answered(kind, &answer.reply, clock::moment().since(asked_at));
        answer
    }

    async fn ask(&self, place: Place, command: Command, wait: Duration) -> Answer {
        let doubtful = command.is_write() || matches!(command, Command::Extend { .. });
        let id = RequestId(self.inner.last_request.fetch_add(1, Ordering::Relaxed) + 1);
        let (inbox, number, weight) = (&self.inner.inboxes[place.engine], place.number, command.weight());
        let (answer, receiver) = oneshot::channel();
        let kind = if command.is_write() { Kind::Write } else { Kind::Read };
        match inbox.request(Input::Request { number, id, command, wait, answer }, kind, weight) {
            Ok(()) => {}
            Err(Refused::Full) => {
                return nobody(ErrorCode::SpoolBusy, "too many requests wait at this node");
            }
            Err(Refused::Closed) => return nobody(ErrorCode::NoPrimary, "this node is shutting down"),
        }
        match (Asked { inbox, number, id, answer: Some(receiver) }).answered().await {
            Some(answer) => answer,
            None if doubtful => nobody(ErrorCode::OperationUnconfirmed, "this node is shutting down"),
            None => nobody(ErrorCode::NoPrimary, "this node is shutting down"),
        }
    }

    /// What a receive returned did not reach its client: available again at once, not counted.
    pub fn hand_back(&self, spool: SpoolId, tokens: Vec<Token>) {
        self.event(spool, Event::HandedBack { tokens });
    }

    /// A message of another copy for the one with the id `to`.
    pub fn peer(&self, spool: SpoolId, from: Member, to: CopyId, message: PeerMessage) -> Delivery {
        let Some(place) = self.place(spool).filter(|place| place.copy == to) else {
            return Delivery::UnknownCopy;
        };
        let weight = match &message {
            PeerMessage::Append(append) => append.entries.iter().map(|entry| entry.len() + 64).sum(),
            _ => 0,
        };
        let input = Input::Event { number: place.number, event: Event::Peer { from, message } };
        match self.inner.inboxes[place.engine].peer(input, weight) {
            Ok(()) => Delivery::Delivered,
            Err(Refused::Full | Refused::Closed) => Delivery::Busy,
        }
    }

    /// The connection to a node was lost: what was sent may not have arrived.
    pub fn peer_disconnected(&self, node: &NodeName) {
        for inbox in &self.inner.inboxes {
            inbox.urgent(Input::PeerDisconnected(node.clone()));
        }
    }

    /// New promises may be what answers wait for.
    pub fn beats_arrived(&self) {
        for (inbox, pulse) in self.inner.inboxes.iter().zip(&self.inner.pulses) {
            if !pulse.tick_waits.swap(true, Ordering::AcqRel) {
                inbox.urgent(Input::TickPrimaries);
            }
        }
    }

    /// A controller's call. Nothing if this disk has no such copy, or the node is shutting down. Dropping the
    /// future forgets the answer, not the call.
    pub async fn call(&self, spool: SpoolId, copy: Option<CopyId>, call: Call) -> Option<CallReply> {
        let place = self.place(spool).filter(|place| copy.is_none_or(|copy| copy == place.copy))?;
        if matches!(call, Call::Seal { .. }) {
            let mut registered = self.inner.registered.subscribe();
            registered.wait_for(|copies| copies.contains(&place.copy)).await.ok()?;
        }
        let (answer, receiver) = oneshot::channel();
        self.inner.inboxes[place.engine].urgent(Input::Call { number: place.number, call, answer });
        receiver.await.ok()
    }

    /// This node's copy of a spool.
    pub fn copy(&self, spool: SpoolId) -> Option<CopyId> {
        self.place(spool).map(|place| place.copy)
    }

    /// Spools with a copy on this node.
    pub fn copies(&self) -> Vec<SpoolId> {
        self.inner.places.read().keys().copied().collect()
    }

    pub fn glance(&self, spool: SpoolId) -> Option<Glance> {
        self.inner.shared.glances.read().get(&spool).cloned()
    }

    pub fn glances(&self) -> Vec<(SpoolId, Glance)> {
        self.inner.shared.glances.read().iter().map(|(spool, glance)| (*spool, glance.clone())).collect()
    }

    /// Requests and messages that wait for an engine, all together.
    pub fn depth(&self) -> Depth {
        self.inner.inboxes.iter().map(|inbox| inbox.depth()).fold(Depth::default(), |a, b| Depth {
            urgent: a.urgent + b.urgent,
            peers: a.peers + b.peers,
            requests: a.requests + b.requests,
        })
    }

    /// How long the slowest engine has been at its present work.
    pub fn busy_for(&self, now: Moment) -> Duration {
        let since = |pulse: &Arc<Pulse>| match pulse.busy_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => now.since(Moment(since)),
        };
        self.inner.pulses.iter().map(since).max().unwrap_or_default()
    }

    /// etcd knows that this start of the node has the copy: it may answer Seals.
    pub fn mark_registered(&self, copy: CopyId) {
        self.inner.registered.send_if_modified(|copies| copies.insert(copy));
    }

    /// What etcd answered.
    pub(crate) fn tell(&self, spool: SpoolId, event: Event) {
        self.event(spool, event);
    }

    fn event(&self, spool: SpoolId, event: Event) {
        if let Some(place) = self.place(spool) {
            self.inner.inboxes[place.engine].urgent(Input::Event { number: place.number, event });
        }
    }

    fn place(&self, spool: SpoolId) -> Option<Place> {
        self.inner.places.read().get(&spool).copied()
    }
}

/// An invariant does not hold. Copies that nobody drives must not go on promising, and what is on the disk is sound:
/// nothing leaves before it is written.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("an engine panicked; this process ends here");
            std::process::abort();
        }
    }
}

/// A request on its way. Dropped before its answer was taken: the client is gone.
struct Asked<'a> {
    inbox: &'a Inbox<Input>,
    number: SpoolNumber,
    id: RequestId,
    answer: Option<oneshot::Receiver<Answer>>,
}

impl Asked<'_> {
    /// `None`: the engine has ended.
    async fn answered(mut self) -> Option<Answer> {
        let answer = self.answer.as_mut()?.await.ok();
        self.answer = None;
        answer
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Some(mut receiver) = self.answer.take() else { return };
        receiver.close();
        let number = self.number;
        let input = match receiver.try_recv() {
            Ok(answer) => engine::hand_back(&answer).map(|event| Input::Event { number, event }),
            Err(_) => Some(Input::Withdrawn { number, id: self.id }),
        };
        if let Some(input) = input {
            self.inbox.urgent(input);
        }
    }
}

/// As metrics name it.
fn kind_of(command: &Command) -> &'static str {
    match command {
        Command::Send { .. } => "send",
        Command::Settle { .. } => "settle",
        Command::PutQueue { .. } => "put_queue",
        Command::DeleteQueue { .. } => "delete_queue",
        Command::Purge { .. } => "purge",
        Command::DeleteMessage { .. } => "delete_message",
        Command::Receive { .. } => "receive",
        Command::Extend { .. } => "extend",
        Command::GetQueue { .. } => "get_queue",
        Command::ListQueues { .. } => "list_queues",
        Command::Browse { .. } => "browse",
        Command::GetMessage { .. } => "get_message",
        Command::LookUpKey { .. } => "look_up_key",
    }
}
