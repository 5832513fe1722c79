//! Nodes on loopback, each with its runtime, its certificate and copies that only take notes.

use super::super::{Copies, Heartbeats, PairTable, Peers, Server, Tls, heartbeats};
use crate::clock;
use crate::spools::{CreateError, Delivery};
use crate::store::NewCopy;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::{Condvar, Mutex};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use spool::event::{Call, CallReply, PeerMessage};
use spool::record::Member;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use types::{CopyId, Epoch, NodeName, ProcessId, SpoolId};

const DEADLINE: Duration = Duration::from_secs(30);

pub const SPOOL: SpoolId = SpoolId::from_u128(5);

/// The one copy of [`SPOOL`] on a node.
pub fn copy_of(node: &str) -> Member {
    let number = node.bytes().fold(0, |number, byte| number * 256 + u128::from(byte));
    Member { node: node.into(), copy: CopyId::from_u128(number) }
}

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    pub fn certificate(&self) -> tonic::transport::Certificate {
        tonic::transport::Certificate::from_pem(&self.pem)
    }

    pub fn issue(&self, name: &str) -> Tls {
        let params = CertificateParams::new(vec![name.to_owned(), "127.0.0.1".to_owned()]).expect("names");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Tls::from_pem(&self.pem, &certificate.pem(), &key.serialize_pem())
    }
}

/// What a node's copies were told.
#[derive(Default)]
pub struct Notes {
    pub messages: Vec<(Member, PeerMessage)>,
    pub disconnected: HashMap<NodeName, usize>,
    pub beats_arrived: usize,
    pub calls: Vec<Call>,
}

pub struct Fake {
    own: Member,
    pub notes: Mutex<Notes>,
    changed: Condvar,
    pub delivery: Mutex<Delivery>,
    /// One permit a call that may be answered.
    pub answers: Arc<Semaphore>,
}

impl Fake {
    fn new(node: &str) -> Arc<Fake> {
        Arc::new(Fake {
            own: copy_of(node),
            notes: Mutex::default(),
            changed: Condvar::new(),
            delivery: Mutex::new(Delivery::Delivered),
            answers: Arc::new(Semaphore::new(0)),
        })
    }

    fn note(&self, note: impl FnOnce(&mut Notes)) {
        note(&mut self.notes.lock());
        self.changed.notify_all();
    }

    /// Waits for a state, and fails if it does not come.
    pub fn wait<T>(&self, what: &str, mut is: impl FnMut(&Notes) -> Option<T>) -> T {
        let until = Instant::now() + DEADLINE;
        let mut notes = self.notes.lock();
        loop {
            if let Some(found) = is(&notes) {
                return found;
            }
            assert!(
                !self.changed.wait_until(&mut notes, until).timed_out(),
                "{}: not seen: {what}",
                self.own.node
            );
        }
    }

    pub fn disconnects(&self, node: &str) -> usize {
        self.notes.lock().disconnected.get(&NodeName::from(node)).copied().unwrap_or(0)
    }

    pub fn wait_disconnected(&self, node: &str, more_than: usize) -> usize {
        self.wait("a stream that opened or ended", |notes| {
            let times = notes.disconnected.get(&NodeName::from(node)).copied().unwrap_or(0);
            (times > more_than).then_some(times)
        })
    }
}

impl Copies for Fake {
    fn peer(&self, spool: SpoolId, from: Member, to: CopyId, message: PeerMessage) -> Delivery {
        if spool != SPOOL || to != self.own.copy {
            return Delivery::UnknownCopy;
        }
        let delivery = *self.delivery.lock();
        if delivery == Delivery::Delivered {
            self.note(|notes| notes.messages.push((from, message)));
        }
        delivery
    }
    fn peer_disconnected(&self, node: &NodeName) {
        self.note(|notes| *notes.disconnected.entry(node.clone()).or_default() += 1);
    }
    fn beats_arrived(&self) {
        self.note(|notes| notes.beats_arrived += 1);
    }
    fn copy(&self, spool: SpoolId) -> Option<CopyId> {
        (spool == SPOOL).then_some(self.own.copy)
    }
    fn spools(&self) -> Vec<SpoolId> {
        Vec::new()
    }
    fn call(&self, _: SpoolId, _: Option<CopyId>, call: Call) -> BoxFuture<'static, Option<CallReply>> {
        self.note(|notes| notes.calls.push(call));
        let answers = self.answers.clone();
        async move {
            answers.acquire().await.ok()?.forget();
            Some(CallReply::StaleEpoch { sealed: Epoch(9) })
        }
        .boxed()
    }
    fn create_copy(&self, _: NewCopy) -> BoxFuture<'static, Result<CopyId, CreateError>> {
        futures::future::ready(Ok(self.own.copy)).boxed()
    }
}

pub struct Node {
    pub name: &'static str,
    pub address: SocketAddr,
    pub copies: Arc<Fake>,
    pub pairs: Arc<PairTable>,
    pub peers: Peers,
    pub process: ProcessId,
    pub stop: CancellationToken,
    heartbeats: Option<Heartbeats>,
    runtime: Option<Runtime>,
}

impl Node {
    pub fn start(authority: &Authority, name: &'static str) -> Node {
        Node::start_at(authority, name, "127.0.0.1:0".parse().expect("an address"))
    }

    /// A process with a runtime of one thread: blocking it stops everything but the heartbeats.
    pub fn start_at(authority: &Authority, name: &'static str, address: SocketAddr) -> Node {
        let listener = std::net::TcpListener::bind(address).expect("the port is free");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("bound");
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
        let process = ProcessId(uuid::Uuid::new_v4());
        let node = NodeName::from(name);
        let tls = authority.issue(name);
        let copies = Fake::new(name);
        let pairs = Arc::new(PairTable::new(node.clone(), process));
        let stop = CancellationToken::new();
        let _inside = runtime.enter();
        let peers = Peers::start(node.clone(), process, tls.clone(), copies.clone(), stop.clone());
        let settings = heartbeats::Settings {
            node,
            process,
            tls: tls.clone(),
            moment: clock::moment,
            healthy: Arc::new(AtomicBool::new(true)),
        };
        let heartbeats =
            Heartbeats::start(settings, pairs.clone(), copies.clone(), peers.nodes()).expect("a thread");
        let server = Server {
            tls,
            copies: copies.clone(),
            pairs: pairs.clone(),
            peers: peers.clone(),
            now: clock::now,
        };
        let (listener, stopped) =
            (tokio::net::TcpListener::from_std(listener).expect("a socket"), stop.clone());
        runtime.spawn(async move { server.serve(listener, stopped).await.expect("served") });
        drop(_inside);
        let (heartbeats, runtime) = (Some(heartbeats), Some(runtime));
        Node { name, address, copies, pairs, peers, process, stop, heartbeats, runtime }
    }

    pub fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it runs")
    }

    pub fn knows(&self, others: &[&Node]) {
        let at = |node: &&Node| (NodeName::from(node.name), node.address.to_string());
        self.peers.set_nodes(others.iter().map(at).collect());
    }

    pub fn send(&self, to: &str, message: PeerMessage) {
        self.peers.send(SPOOL, 0, copy_of(self.name), copy_of(to), message);
    }

    /// As SIGKILL: sockets are closed without a word. Its port, for the one that comes after.
    pub fn kill(mut self) -> SocketAddr {
        self.end();
        self.address
    }

    fn end(&mut self) {
        drop(self.heartbeats.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }

    /// Nothing of the node's runtime goes on until the answer is dropped.
    pub fn pause(&self) -> std::sync::mpsc::Sender<()> {
        let (resume, resumed) = std::sync::mpsc::channel::<()>();
        let (told, paused) = std::sync::mpsc::channel();
        self.runtime().spawn(async move {
            told.send(()).expect("the test waits for it");
            // Ends when the sender is dropped.
            let _ended = resumed.recv();
        });
        paused.recv().expect("the task runs");
        resume
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

/// For what nobody signals.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is() {
        assert!(Instant::now() < end, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
