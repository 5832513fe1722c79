//! Nodes as an installation starts them, with an etcd, and a controller that only the test moves.

use crate::control::OneAccount;
use data_plane::replication::Tls;
use proto::control::nodes_server::NodesServer;
use proto::replication as pb;
use proto::replication::replication_client::ReplicationClient;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::process::{Pid, Signal, kill_process};
use spool::record::{Last, Member, Phase, Record};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};
use types::{CopyId, Epoch, Position, ProcessId, Seq, SpoolId};

const PATIENCE: Duration = Duration::from_secs(30);
pub const SPOOL: SpoolId = SpoolId::from_u128(42);

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Certificate and key.
    fn issue(&self, name: &str) -> (String, String) {
        let params = CertificateParams::new(vec![name.to_owned(), "127.0.0.1".to_owned()]).expect("names");
        let key = KeyPair::generate().expect("a key");
        (params.signed_by(&key, &self.issuer).expect("a certificate").pem(), key.serialize_pem())
    }

    fn tls(&self, name: &str) -> Tls {
        let (certificate, key) = self.issue(name);
        Tls::from_pem(&self.pem, &certificate, &key)
    }
}

/// Killed when the test ends, however it does.
struct Etcd(Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound")
}

fn start_etcd(dir: &Path, url: &str) -> Etcd {
    let peer = format!("http://{}", free_address());
    let child = Command::new("/usr/bin/etcd")
        .args(["--name", "test", "--initial-cluster", &format!("test={peer}"), "--data-dir"])
        .arg(dir)
        .args(["--listen-client-urls", url, "--advertise-client-urls", url])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Etcd(child.expect("install Debian's etcd-server"))
}

pub struct Installation {
    authority: Authority,
    dir: tempfile::TempDir,
    etcd_url: String,
    control: SocketAddr,
    etcd: Etcd,
}

/// One node; its process is killed when this is dropped.
pub struct Node {
    pub name: String,
    internal: SocketAddr,
    metrics: SocketAddr,
    command: Command,
    process: Option<Child>,
    client: Tls,
}

impl Installation {
    pub async fn start() -> Installation {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().expect("a directory"));
        let etcd_url = format!("http://{}", free_address());
        let etcd = start_etcd(&dir.path().join("etcd"), &etcd_url);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let control = listener.local_addr().expect("bound");
        let server = tonic::transport::Server::builder()
            .tls_config(authority.tls("control-plane").server())
            .expect("TLS")
            .add_service(NodesServer::new(OneAccount))
            .serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener));
        tokio::spawn(server);
        Installation { authority, dir, etcd_url, control, etcd }
    }

    /// For good.
    pub fn stop_etcd(&mut self) {
        self.etcd.0.kill().expect("it runs");
        self.etcd.0.wait().expect("it ends");
    }

    /// Not started yet.
    pub fn node(&self, number: u16) -> Node {
        let name = format!("node-{number}");
        let file = |what: &str| self.dir.path().join(format!("{name}{what}"));
        let (certificate, key) = self.authority.issue(&name);
        for (what, pem) in [(".ca", &self.authority.pem), (".pem", &certificate), (".key", &key)] {
            std::fs::write(file(what), pem).expect("written");
        }
        let (internal, metrics) = (free_address(), free_address());
        let mut command = Command::new(env!("CARGO_BIN_EXE_data-plane"));
        command.args(["--name", &name, "--promise-ms", "1500", "--suspect-ms", "3000"]);
        command.arg("--data-dir").arg(file(".data")).stdin(Stdio::null());
        let addresses = [
            ("--http", free_address()),
            ("--internal", internal),
            ("--forward", free_address()),
            ("--metrics", metrics),
        ];
        for (flag, address) in addresses {
            command.args([flag, &address.to_string()]);
        }
        command.args(["--etcd", &self.etcd_url, "--control", &format!("https://{}", self.control)]);
        for (flag, what) in [("--ca", ".ca"), ("--cert", ".pem"), ("--key", ".key")] {
            command.arg(flag).arg(file(what));
        }
        let client = self.authority.tls("control-plane");
        Node { name, internal, metrics, command, process: None, client }
    }

    pub async fn etcd(&self) -> etcd_client::Client {
        etcd_client::Client::connect([&self.etcd_url], None).await.expect("etcd's address")
    }

    pub async fn record(&self) -> Record {
        let answer = self.etcd().await.get(record_key(), None).await.expect("an answer");
        serde_json::from_slice(answer.kvs().first().expect("a record").value()).expect("JSON")
    }

    /// One election: all of `voters` are sealed, the first of those that are furthest ahead leads. `members` are the
    /// record's.
    pub async fn elect(&self, epoch: u64, k: u8, voters: &[&Node], members: &[Member]) -> Member {
        let seals = voters.iter().map(|node| node.seal(epoch, members));
        let sealed: Vec<(Member, pb::Sealed)> = futures::future::join_all(seals).await;
        let ahead = |sealed: &pb::Sealed| position(sealed.position.expect("a position"));
        let most = sealed.iter().map(|(_, sealed)| ahead(sealed)).max().expect("a voter");
        let commit_end = sealed.iter().map(|(_, sealed)| sealed.commit_end).max().expect("a voter");
        let (member, chosen) = sealed.iter().find(|(_, sealed)| ahead(sealed) == most).expect("the best");
        let last = Last {
            epoch: Epoch(epoch),
            member: member.clone(),
            process: ProcessId::from_slice(&chosen.process_id).expect("an id"),
            position: most,
        };
        let n = u8::try_from(members.len()).expect("a few");
        let first = Record::first(SPOOL, n, k, members.to_vec());
        let record = Record { epoch: Epoch(epoch), phase: Phase::Assigned, last: Some(last), ..first };
        let json = serde_json::to_vec(&record).expect("JSON");
        let put = self.etcd().await.put(record_key(), json, None).await.expect("put");
        let assign = pb::AssignRequest {
            spool_id: spool_id(),
            copy_id: copy_id(member),
            epoch,
            members: members.iter().map(wire).collect(),
            process_id: chosen.process_id.clone(),
            position: chosen.position,
            prev_last: None,
            commit_end,
            lineage: 0,
            record_revision: put.header().expect("a header").revision(),
        };
        let leader = voters.iter().find(|node| node.name == member.node.0).expect("a voter");
        let outcome = leader.client().await.assign(assign).await.expect("answered").into_inner().outcome;
        assert!(matches!(outcome, Some(pb::assign_reply::Outcome::Assigned(_))), "{outcome:?}");
        until("active", async || self.record().await.phase == Phase::Active).await;
        member.clone()
    }
}

impl Node {
    pub fn start(&mut self) {
        self.process = Some(self.command.spawn().expect("the program starts"));
    }

    pub async fn started(mut self) -> Node {
        self.start();
        self.is_ready().await;
        self
    }

    /// Of a GET on the metrics port.
    pub async fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = tokio::net::TcpStream::connect(self.metrics).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    pub async fn says_ready(&self) -> bool {
        self.get("/readyz").await.is_some_and(|(status, _)| status == 200)
    }

    pub async fn is_ready(&self) {
        until("it is ready", async || self.says_ready().await).await;
    }

    pub async fn client(&self) -> ReplicationClient<Channel> {
        let endpoint = Endpoint::from_shared(format!("https://{}", self.internal)).expect("an address");
        let endpoint = endpoint.tls_config(self.client.client(&self.name)).expect("TLS");
        ReplicationClient::new(endpoint.connect().await.expect("connected"))
    }

    pub async fn create_copy(&self, n: u32, k: u32) -> Member {
        let request = pb::CreateCopyRequest {
            spool_id: spool_id(),
            account_id: vec![1; 16].into(),
            name: "orders".to_owned(),
            num_replicas: n,
            num_sync: k,
            token_key: vec![7; 32].into(),
            created_ms: 1_700_000_000_000,
        };
        let copy = self.client().await.create_copy(request).await.expect("created").into_inner().copy_id;
        Member { node: self.name.as_str().into(), copy: CopyId::from_slice(&copy).expect("an id") }
    }

    async fn seal(&self, epoch: u64, members: &[Member]) -> (Member, pb::Sealed) {
        let own = members.iter().find(|member| member.node.0 == self.name).expect("a member");
        let seal = pb::SealRequest { spool_id: spool_id(), copy_id: copy_id(own), epoch };
        let outcome = self.client().await.seal(seal).await.expect("answered").into_inner().outcome;
        match outcome {
            Some(pb::seal_reply::Outcome::Sealed(sealed)) => (own.clone(), sealed),
            other => panic!("{other:?}"),
        }
    }

    pub async fn status(&self) -> pb::CopyStatus {
        let asked = pb::StatusRequest { spool_ids: vec![spool_id()] };
        let mut copies = self.client().await.status(asked).await.expect("answered").into_inner().copies;
        copies.pop().expect("its copy")
    }

    /// SIGTERM; it has to end well.
    pub async fn end(&mut self) {
        self.signal(Signal::TERM);
        until("it says that it ends", async || !self.says_ready().await).await;
        let mut process = self.process.take().expect("it runs");
        let deadline = Instant::now() + PATIENCE;
        loop {
            match process.try_wait().expect("a child") {
                Some(status) => return assert!(status.success(), "{status}"),
                None => assert!(Instant::now() < deadline, "it does not end"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill().expect("it runs");
        process.wait().expect("it ends");
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("it runs");
        kill_process(Pid::from_child(process), signal).expect("it runs");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

fn record_key() -> String {
    format!("/spools/{SPOOL}/record")
}

fn spool_id() -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(SPOOL.as_bytes())
}

fn copy_id(member: &Member) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(member.copy.as_bytes())
}

fn wire(member: &Member) -> pb::Member {
    pb::Member { node: member.node.0.clone(), copy_id: copy_id(member) }
}

fn position(of: pb::Position) -> Position {
    Position { epoch: Epoch(of.epoch), seq: Seq(of.seq) }
}

pub async fn until(what: &str, is: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < deadline, "not seen: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
