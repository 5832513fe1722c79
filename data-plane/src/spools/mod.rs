//! The spools of this node: one pure `spool::SpoolCopy` each, driven by a few engine threads.
//!
//! [`Spools`] is what the rest of the node sees: where a spool is served, and ways to ask this node's copies.
//! [`Outside`] is what the engines need of the rest: a way to other nodes, and to etcd.

mod engine;
mod host;
mod inbox;

use engine::{Engine, Input, nobody};
use inbox::Inbox;
use parking_lot::{Mutex, RwLock};
use spool::command::{Command, Failure, Reply, RequestId};
use spool::copy::{ProcessFacts, Settings, SpoolCopy};
use spool::event::{Activate, Call, CallReply, Event, PeerMessage};
use spool::promise::Pairs;
use spool::record::Member;
use spool::token::Token;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use types::{CopyId, Epoch, ErrorCode, NodeName, SpoolId};

use crate::membership::Routing;
use crate::store::{Db, SpoolNumber, Syncer};

pub use host::CreateError;

/// Requests that one engine has not looked at yet; beyond it `spool_busy`.
const REQUESTS_MAX: usize = 50_000;
/// Messages of other copies that one engine has not looked at yet; beyond it they are told that it is busy.
const PEER_MESSAGES_MAX: usize = 10_000;
const ENGINES_MAX: usize = 4;

/// Where a request for a spool has to go.
#[derive(Clone, Debug, PartialEq)]
pub enum Route {
    Here,
    /// To the node that is believed to be primary; `internal` is its internal HTTP address, `host:port`.
    There { node: NodeName, internal: String },
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
}

#[derive(Default)]
struct Shared {
    glances: RwLock<HashMap<SpoolId, Glance>>,
}

impl Shared {
    fn publish(&self, spool: SpoolId, copy: &SpoolCopy) {
        let leads = copy.primary_epoch();
        let same = |glance: &Glance| glance.leads == leads && glance.follows.as_ref() == copy.primary_member();
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
    inboxes: Vec<Arc<Inbox<Input>>>,
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
    ) -> Spools {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let inbox = || Arc::new(Inbox::new(PEER_MESSAGES_MAX, REQUESTS_MAX));
        let inboxes = (0..cores.clamp(1, ENGINES_MAX)).map(|_| inbox()).collect();
        Spools {
            inner: Arc::new(Inner {
                node,
                facts,
                settings,
                db,
                routing,
                shared: Arc::default(),
                inboxes,
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
        for (i, inbox) in inner.inboxes.iter().enumerate() {
            let its = inbox.clone();
            let sync = syncer.engine(move |completed| its.urgent(Input::Synced(completed)));
            let (db, pairs, shared) = (inner.db.clone(), pairs.clone(), inner.shared.clone());
            let engine = Engine::new(inbox.clone(), db, sync, pairs, outside.clone(), shared);
            let thread = std::thread::Builder::new().name(format!("engine-{i}")).spawn(move || engine.run())?;
            inner.threads.lock().push(thread);
        }
        self.open_all();
        Ok(())
    }

    pub fn node(&self) -> &NodeName {
        &self.inner.node
    }

    pub fn route(&self, spool: SpoolId) -> Route {
        if self.glance(spool).is_some_and(|glance| glance.leads.is_some()) {
            return Route::Here;
        }
        self.inner.routing.route(spool, &self.inner.node)
    }

    /// Asks this node's copy. Dropping the future tells the core that the client is gone: a write that is not
    /// yet in the log is forgotten, a long poll ends, what a receive handed out meanwhile is handed back.
    /// A copy that is not the primary answers `no_primary`.
    pub async fn request(&self, spool: SpoolId, command: Command, wait: Duration) -> Answer {
        let Some(place) = self.place(spool) else {
            return nobody(ErrorCode::NoPrimary, "this node holds no copy of the spool");
        };
        let doubtful = command.is_write() || matches!(command, Command::Extend { .. });
        let id = RequestId(self.inner.last_request.fetch_add(1, Ordering::Relaxed) + 1);
        let inbox = &self.inner.inboxes[place.engine];
        let (answer, receiver) = oneshot::channel();
        if inbox.request(Input::Request { number: place.number, id, command, wait, answer }).is_err() {
            return nobody(ErrorCode::SpoolBusy, "too many requests wait at this node");
        }
        let mut asked = Asked { inbox, number: place.number, id, answer: Some(receiver) };
        let answer = match asked.answer.as_mut() {
            Some(receiver) => receiver.await,
            None => unreachable!("it was put there"),
        };
        asked.answer = None;
        answer.unwrap_or_else(|_ended| match doubtful {
            true => nobody(ErrorCode::OperationUnconfirmed, "this node is shutting down"),
            false => nobody(ErrorCode::NoPrimary, "this node is shutting down"),
        })
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
        let input = Input::Event { number: place.number, event: Event::Peer { from, message } };
        match self.inner.inboxes[place.engine].peer(input) {
            Ok(()) => Delivery::Delivered,
            Err(inbox::Full) => Delivery::Busy,
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
        for inbox in &self.inner.inboxes {
            inbox.urgent(Input::TickPrimaries);
        }
    }

    /// A controller's call. Nothing if this disk has no such copy, or the node is shutting down. Dropping the
    /// future forgets the answer, not the call.
    pub async fn call(&self, spool: SpoolId, copy: Option<CopyId>, call: Call) -> Option<CallReply> {
        let place = self.place(spool).filter(|place| copy.is_none_or(|copy| copy == place.copy))?;
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

    /// Gives up every role and ends the engines. Each answer that can be given is given.
    pub async fn stop(&self) {
        for spool in self.copies() {
            self.event(spool, Event::GiveUpRole);
        }
        for inbox in &self.inner.inboxes {
            let (done, ended) = oneshot::channel();
            inbox.urgent(Input::Stop { done });
            // An engine that is gone has ended.
            let _ended = ended.await;
        }
        let threads = std::mem::take(&mut *self.inner.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("an engine ended with a panic");
            }
        }
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

/// A request on its way. Dropped before its answer was taken: the client is gone.
struct Asked<'a> {
    inbox: &'a Inbox<Input>,
    number: SpoolNumber,
    id: RequestId,
    answer: Option<oneshot::Receiver<Answer>>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Some(mut receiver) = self.answer.take() else { return };
        receiver.close();
        let event = match receiver.try_recv() {
            Ok(Answer { reply: Reply::Received { messages }, .. }) => {
                let leases = messages.iter().filter_map(|message| message.lease.as_ref());
                Event::HandedBack { tokens: leases.map(|lease| lease.token).collect() }
            }
            Ok(_) => return,
            Err(_) => Event::Cancelled { id: self.id },
        };
        self.inbox.urgent(Input::Event { number: self.number, event });
    }
}
