//! Nodes for tests: real servers with real certificates, and copies that only remember what they sealed.

use parking_lot::Mutex;
use proto::replication as pb;
use proto::replication::replication_server::{Replication, ReplicationServer};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use spool::record::{Member, Phase, Record};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};
use types::{CopyId, Epoch, NodeName, ProcessId, SpoolId};

use super::super::{Elections, NodeClients, Settings, wire};
use crate::claims::testing::EtcdProcess;
use crate::claims::{Alive, ClaimsError, Etcd, Versioned, Written};

pub const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const PATIENCE: Duration = Duration::from_secs(60);

/// The cluster's CA.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a CA").pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, name: &str) -> Identity {
        let (certificate, key) = self.issue_pem(name);
        Identity::from_pem(certificate, key)
    }

    /// Certificate and key.
    fn issue_pem(&self, name: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.subject_alt_names.push(SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()));
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

#[derive(Default)]
struct Copy {
    sealed: u64,
    position: pb::Position,
    serving: Option<u64>,
}

/// What outlives a node's process: its disk.
#[derive(Default)]
struct Disk {
    copies: HashMap<SpoolId, (CopyId, Copy)>,
}

/// What all fake nodes see.
#[derive(Default)]
struct Facts {
    /// Whose process serves a spool, as far as its heartbeats would tell.
    serving: HashMap<SpoolId, NodeName>,
    down: BTreeMap<NodeName, bool>,
    disks: BTreeMap<NodeName, Arc<Mutex<Disk>>>,
    /// Make copies, and then do not answer.
    lose_answers: BTreeSet<NodeName>,
    copies_made: u32,
    /// I1
    primaries: BTreeMap<(SpoolId, u64), ProcessId>,
}

#[derive(Clone)]
struct Service {
    name: NodeName,
    process: ProcessId,
    disk: Arc<Mutex<Disk>>,
    facts: Arc<Mutex<Facts>>,
    etcd: Etcd,
    frozen: Arc<AtomicBool>,
}

fn spool_id(bytes: &[u8]) -> Result<SpoolId, Status> {
    SpoolId::from_slice(bytes).ok_or_else(|| Status::invalid_argument("spool_id"))
}

impl Service {
    /// A process that stands still answers nothing.
    async fn alive(&self) {
        while self.frozen.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(20)).await;
        }
    }
}

type Nothing<T> = tokio_stream::Empty<Result<T, Status>>;

#[tonic::async_trait]
impl Replication for Service {
    type StreamStream = Nothing<pb::PeerMessage>;
    type HeartbeatsStream = Nothing<pb::BeatReply>;

    async fn probe(&self, request: Request<pb::ProbeRequest>) -> Result<Response<pb::ProbeReply>, Status> {
        self.alive().await;
        let spool = spool_id(&request.get_ref().spool_id)?;
        let hears = {
            let facts = self.facts.lock();
            facts.serving.get(&spool).is_some_and(|node| !facts.down[node])
        };
        let disk = self.disk.lock();
        let Some((copy, state)) = disk.copies.get(&spool) else {
            return Ok(Response::new(pb::ProbeReply { unknown_copy: true, ..Default::default() }));
        };
        Ok(Response::new(pb::ProbeReply {
            unknown_copy: false,
            copy_id: wire::id(copy.as_bytes()),
            sealed: state.sealed,
            serving: state.serving,
            leading: state.serving,
            heard_ms_ago: hears.then_some(10),
            primary_refused: false,
            position: Some(state.position),
        }))
    }

    async fn seal(&self, request: Request<pb::SealRequest>) -> Result<Response<pb::SealReply>, Status> {
        self.alive().await;
        let request = request.into_inner();
        let spool = spool_id(&request.spool_id)?;
        let mut disk = self.disk.lock();
        let outcome = match disk.copies.get_mut(&spool) {
            Some((copy, _)) if *copy.as_bytes() != *request.copy_id => {
                pb::seal_reply::Outcome::UnknownCopy(true)
            }
            None => pb::seal_reply::Outcome::UnknownCopy(true),
            Some((_, state)) if state.sealed > request.epoch => {
                pb::seal_reply::Outcome::StaleEpoch(state.sealed)
            }
            Some((copy, state)) => {
                if state.sealed < request.epoch {
                    (state.sealed, state.serving) = (request.epoch, None);
                }
                pb::seal_reply::Outcome::Sealed(pb::Sealed {
                    epoch: request.epoch,
                    copy_id: wire::id(copy.as_bytes()),
                    process_id: wire::id(self.process.as_bytes()),
                    authoritative: true,
                    position: Some(state.position),
                    chain: vec![0; 32].into(),
                    commit_end: state.position.seq,
                    lineage: 0,
                })
            }
        };
        Ok(Response::new(pb::SealReply { outcome: Some(outcome) }))
    }

    async fn assign(&self, request: Request<pb::AssignRequest>) -> Result<Response<pb::AssignReply>, Status> {
        self.alive().await;
        let request = request.into_inner();
        let spool = spool_id(&request.spool_id)?;
        let epoch = request.epoch;
        let answer = |outcome| Ok(Response::new(pb::AssignReply { outcome: Some(outcome) }));
        {
            let mut disk = self.disk.lock();
            let Some((_, state)) = disk.copies.get_mut(&spool) else { return Err(Status::not_found("copy")) };
            if state.sealed > epoch {
                return answer(pb::assign_reply::Outcome::StaleEpoch(state.sealed));
            }
            if request.process_id != wire::id(self.process.as_bytes()) || state.sealed < epoch {
                return answer(pb::assign_reply::Outcome::Refused("another process".to_owned()));
            }
            if state.serving == Some(epoch) {
                return answer(pb::assign_reply::Outcome::Assigned(true));
            }
            state.position = pb::Position { epoch, seq: state.position.seq + 1 };
        }
        let was = self.facts.lock().primaries.insert((spool, epoch), self.process);
        assert!(was.is_none_or(|was| was == self.process), "I1: two primaries of {spool} {epoch}");
        tokio::spawn(self.clone().activate(spool, epoch, request.record_revision));
        answer(pb::assign_reply::Outcome::Assigned(true))
    }

    async fn step_down(
        &self,
        request: Request<pb::StepDownRequest>,
    ) -> Result<Response<pb::StepDownReply>, Status> {
        self.alive().await;
        let request = request.into_inner();
        let spool = spool_id(&request.spool_id)?;
        let mut disk = self.disk.lock();
        let outcome = match disk.copies.get_mut(&spool) {
            Some((_, state)) if state.serving == Some(request.epoch) => {
                state.serving = None;
                pb::step_down_reply::Outcome::SteppedDown(state.position)
            }
            other => pb::step_down_reply::Outcome::NotPrimary(other.map_or(0, |(_, state)| state.sealed)),
        };
        Ok(Response::new(pb::StepDownReply { outcome: Some(outcome) }))
    }

    async fn stream(
        &self,
        _request: Request<Streaming<pb::PeerMessage>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        Err(Status::unimplemented("not asked by a control plane"))
    }

    async fn heartbeats(
        &self,
        _request: Request<Streaming<pb::Beat>>,
    ) -> Result<Response<Self::HeartbeatsStream>, Status> {
        Err(Status::unimplemented("not asked by a control plane"))
    }

    async fn status(&self, request: Request<pb::StatusRequest>) -> Result<Response<pb::StatusReply>, Status> {
        self.alive().await;
        let facts = self.facts.lock();
        let spools: Result<Vec<SpoolId>, Status> =
            request.get_ref().spool_ids.iter().map(|id| spool_id(id)).collect();
        let copies = spools?.into_iter().filter_map(|spool| self.copy_status(&facts, spool)).collect();
        Ok(Response::new(pb::StatusReply { copies }))
    }

    async fn create_copy(
        &self,
        request: Request<pb::CreateCopyRequest>,
    ) -> Result<Response<pb::CreateCopyReply>, Status> {
        self.alive().await;
        let spool = spool_id(&request.get_ref().spool_id)?;
        let mut facts = self.facts.lock();
        let number = facts.copies_made + 1;
        let mut disk = self.disk.lock();
        let new = || {
            facts.copies_made = number;
            (CopyId::from_u128(u128::from(number) << 64), Copy::default())
        };
        let copy = disk.copies.entry(spool).or_insert_with(new).0;
        match facts.lose_answers.contains(&self.name) {
            true => Err(Status::unavailable("the answer is lost")),
            false => Ok(Response::new(pb::CreateCopyReply { copy_id: wire::id(copy.as_bytes()) })),
        }
    }
}

impl Service {
    fn copy_status(&self, facts: &Facts, spool: SpoolId) -> Option<pb::CopyStatus> {
        let (copy, position, sealed, serving) = {
            let disk = self.disk.lock();
            let (copy, state) = disk.copies.get(&spool)?;
            (*copy, state.position, state.sealed, state.serving)
        };
        let others = facts.disks.iter().filter(|(node, _)| serving.is_some() && **node != self.name);
        let peer = |(node, disk): (&NodeName, &Arc<Mutex<Disk>>)| {
            let disk = disk.lock();
            let (copy, state) = disk.copies.get(&spool)?;
            Some(pb::PeerStatus {
                member: Some(pb::Member { node: node.0.clone(), copy_id: wire::id(copy.as_bytes()) }),
                reachable: !facts.down[node],
                confirmed: Some(state.position),
                behind_entries: position.seq - state.position.seq,
                behind_ms: 0,
            })
        };
        Some(pb::CopyStatus {
            spool_id: wire::id(spool.as_bytes()),
            copy_id: wire::id(copy.as_bytes()),
            node: self.name.0.clone(),
            role: if serving.is_some() { "serving" } else { "follower" }.to_owned(),
            role_epoch: serving.unwrap_or_default(),
            sealed,
            position: Some(position),
            peers: others.filter_map(peer).collect(),
            ..pb::CopyStatus::default()
        })
    }

    /// The Txn of a primary that takes over, and the barrier on all copies that are reachable.
    async fn activate(self, spool: SpoolId, epoch: u64, revision: i64) {
        let Ok(Some(record)) = self.etcd.record(spool).await else { return };
        let mut active = record.value;
        active.phase = Phase::Active;
        active.prev.clear();
        let written = self.etcd.cas_record(revision, &active).await;
        if matches!(written, Ok(Written::Done(_))) && !self.frozen.load(Ordering::SeqCst) {
            let mut facts = self.facts.lock();
            let barrier = match self.disk.lock().copies.get_mut(&spool) {
                Some((_, state)) if state.sealed == epoch => {
                    state.serving = Some(epoch);
                    state.position
                }
                _ => return,
            };
            for (node, disk) in &facts.disks {
                if let Some((_, copy)) = disk.lock().copies.get_mut(&spool)
                    && copy.sealed <= epoch
                    && !facts.down[node]
                {
                    (copy.sealed, copy.position) = (epoch, barrier);
                }
            }
            facts.serving.insert(spool, self.name.clone());
        }
    }
}

struct Node {
    disk: Arc<Mutex<Disk>>,
    frozen: Arc<AtomicBool>,
    /// Its process: all that runs in it ends at once.
    runtime: Option<Runtime>,
}

pub struct Cluster {
    process: EtcdProcess,
    pub etcd: Etcd,
    authority: Authority,
    facts: Arc<Mutex<Facts>>,
    nodes: Mutex<BTreeMap<NodeName, Node>>,
    processes: AtomicU64,
}

impl Cluster {
    pub async fn start() -> Cluster {
        let process = EtcdProcess::start().await;
        let etcd = process.connect().await;
        let cluster = Cluster {
            process,
            etcd,
            authority: Authority::new(),
            facts: Arc::default(),
            nodes: Mutex::default(),
            processes: AtomicU64::new(1),
        };
        for name in NODES {
            cluster.start_node(&name.into(), Arc::default()).await;
        }
        cluster
    }

    async fn start_node(&self, name: &NodeName, disk: Arc<Mutex<Disk>>) {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let internal = listener.local_addr().expect("bound").to_string();
        let process = ProcessId::from_u128(self.processes.fetch_add(1, Ordering::SeqCst).into());
        let frozen = Arc::new(AtomicBool::new(false));
        let service = Service {
            name: name.clone(),
            process,
            disk: disk.clone(),
            facts: self.facts.clone(),
            etcd: self.etcd.clone(),
            frozen: frozen.clone(),
        };
        let tls = ServerTlsConfig::new()
            .identity(self.authority.issue(&name.0))
            .client_ca_root(Certificate::from_pem(&self.authority.pem));
        let server =
            Server::builder().tls_config(tls).expect("TLS").add_service(ReplicationServer::new(service));
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a socket");
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.expect("served");
        });
        let (etcd, node, still) = (self.etcd.clone(), name.clone(), frozen.clone());
        runtime.spawn(async move {
            for hb_no in 1.. {
                if !still.load(Ordering::SeqCst) {
                    let at = String::new();
                    let (internal, http) = (internal.clone(), at.clone());
                    let alive = Alive { process_id: process, hb_no, internal, forward: at, http, boot_no: 0 };
                    etcd.put_alive(&node, &alive).await;
                }
                sleep(Duration::from_millis(200)).await;
            }
        });
        self.facts.lock().down.insert(name.clone(), false);
        self.facts.lock().disks.insert(name.clone(), disk.clone());
        self.nodes.lock().insert(name.clone(), Node { disk, frozen, runtime: Some(runtime) });
    }

    /// SIGKILL: connections break at once, the alive key goes.
    pub async fn kill(&self, name: &NodeName) {
        let runtime = {
            let mut nodes = self.nodes.lock();
            let node = nodes.get_mut(name).expect("a node");
            node.disk.lock().copies.values_mut().for_each(|(_, state)| state.serving = None);
            node.runtime.take()
        };
        let ended = tokio::task::spawn_blocking(|| drop(runtime));
        ended.await.expect("ended");
        self.facts.lock().down.insert(name.clone(), true);
        self.etcd.delete_alive(name).await;
    }

    /// SIGSTOP: nothing moves, connections stay.
    pub fn freeze(&self, name: &NodeName) {
        self.nodes.lock()[name].frozen.store(true, Ordering::SeqCst);
        self.facts.lock().down.insert(name.clone(), true);
    }

    pub async fn restart(&self, name: &NodeName) {
        self.kill(name).await;
        let disk = self.nodes.lock()[name].disk.clone();
        self.facts.lock().serving.retain(|_, node| node != name);
        self.start_node(name, disk).await;
    }

    pub fn ca(&self) -> Certificate {
        Certificate::from_pem(&self.authority.pem)
    }

    pub fn identity(&self, name: &str) -> Identity {
        self.authority.issue(name)
    }

    /// For a program that reads files: authority, certificate, key.
    pub fn pem(&self, name: &str) -> [String; 3] {
        let (certificate, key) = self.authority.issue_pem(name);
        [self.authority.pem.clone(), certificate, key]
    }

    pub fn etcd_url(&self) -> String {
        self.process.url.clone()
    }

    pub fn clients(&self) -> NodeClients {
        let tls = ClientTlsConfig::new().ca_certificate(self.ca()).identity(self.identity("control-plane"));
        NodeClients::new(tls)
    }

    pub fn elections(&self) -> Elections {
        let (promise, suspect) = (Duration::from_millis(300), Duration::from_millis(800));
        let seed = self.processes.fetch_add(1, Ordering::SeqCst) * 331;
        let controller = spool::controller::Settings::new(promise, suspect);
        Elections::start(self.etcd.clone(), self.clients(), Settings { controller, seed })
    }

    pub async fn create(&self, spool: SpoolId, n: u8, k: u8) {
        let members: Vec<Member> =
            NODES[..usize::from(n)].iter().map(|node| self.copy(spool, node)).collect();
        let record = Record::first(spool, n, k, members);
        let created = self.etcd.create_record(&record).await.expect("created");
        assert!(matches!(created, Written::Done(_)), "{created:?}");
    }

    pub async fn create_all(&self, spools: &[SpoolId], n: u8, k: u8) {
        for some in spools.chunks(32) {
            futures::future::join_all(some.iter().map(|spool| self.create(*spool, n, k))).await;
        }
    }

    fn copy(&self, spool: SpoolId, node: &str) -> Member {
        let node = NodeName::from(node);
        let copy = CopyId::from_u128(spool.0.as_u128() * 10 + u128::from(node.0.as_bytes()[5]));
        self.nodes.lock()[&node].disk.lock().copies.insert(spool, (copy, Copy::default()));
        Member { node, copy }
    }

    /// The node makes copies and does not say so.
    pub fn lose_answers(&self, name: &NodeName, lose: bool) {
        let lost = &mut self.facts.lock().lose_answers;
        let _ = if lose { lost.insert(name.clone()) } else { lost.remove(name) };
    }

    pub fn copies_made(&self) -> u32 {
        self.facts.lock().copies_made
    }

    /// Whether its disk has this copy.
    pub fn has(&self, spool: SpoolId, member: &Member) -> bool {
        let nodes = self.nodes.lock();
        let disk = nodes[&member.node].disk.lock();
        disk.copies.get(&spool).is_some_and(|(copy, _)| *copy == member.copy)
    }

    /// Its disk is emptied.
    pub fn wipe(&self, name: &NodeName) {
        self.nodes.lock()[name].disk.lock().copies.clear();
    }

    pub async fn record(&self, spool: SpoolId) -> Versioned<Record> {
        self.etcd.record(spool).await.expect("read").expect("there")
    }

    /// Waits for a primary in `epoch` or a later one.
    pub async fn until_active(&self, spool: SpoolId, epoch: Epoch) -> Record {
        let good = |record: &Option<Versioned<Record>>| {
            record.as_ref().is_some_and(|r| r.value.phase == Phase::Active && r.value.epoch >= epoch)
        };
        self.until(|| self.etcd.record(spool), good).await.expect("there").value
    }

    pub async fn until<T: std::fmt::Debug, F: Future<Output = Result<T, ClaimsError>>>(
        &self,
        read: impl Fn() -> F,
        good: impl Fn(&T) -> bool,
    ) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = read().await.expect("read");
            if good(&seen) {
                return seen;
            }
            let seen = format!("{seen:?}");
            assert!(Instant::now() < deadline, "still {}", &seen[..seen.len().min(2_000)]);
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// I1, as the nodes saw it; a second primary would also have failed its node's assertion.
    pub fn assert_one_primary_an_epoch(&self) {
        let facts = self.facts.lock();
        assert!(!facts.primaries.is_empty());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for runtime in self.nodes.lock().values_mut().filter_map(|node| node.runtime.take()) {
            runtime.shutdown_background();
        }
    }
}
