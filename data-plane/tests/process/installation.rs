//! The program itself, as an installation starts it: one node with an etcd, a control plane that knows one account,
//! and a controller that makes it primary.

use data_plane::replication::Tls;
use proto::control;
use proto::control::nodes_server::{Nodes, NodesServer};
use proto::replication as pb;
use proto::replication::replication_client::ReplicationClient;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use spool::record::{Last, Member, Phase, Record};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use types::{CopyId, Epoch, Position, ProcessId, Seq, SpoolId};

const PATIENCE: Duration = Duration::from_secs(30);
const SPOOL: SpoolId = SpoolId::from_u128(42);

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

/// A control plane that knows one account and no more.
struct OneAccount;

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

/// Killed when the test ends, however it does.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound")
}

fn start_etcd(dir: &Path, url: &str) -> Running {
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
    Running(child.expect("install Debian's etcd-server"))
}

struct Installation {
    authority: Authority,
    dir: tempfile::TempDir,
    etcd_url: String,
    control: SocketAddr,
    http: SocketAddr,
    internal: SocketAddr,
    forward: SocketAddr,
    metrics: SocketAddr,
    _etcd: Running,
}

impl Installation {
    async fn start() -> Installation {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().expect("a directory"));
        let etcd_url = format!("http://{}", free_address());
        let etcd = start_etcd(&dir.path().join("etcd"), &etcd_url);
        let control = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = control.local_addr().expect("bound");
        let server = tonic::transport::Server::builder()
            .tls_config(authority.tls("control-plane").server())
            .expect("TLS")
            .add_service(NodesServer::new(OneAccount))
            .serve_with_incoming(tonic::transport::server::TcpIncoming::from(control));
        tokio::spawn(server);
        let (certificate, key) = authority.issue("node-1");
        for (name, pem) in [("ca.pem", &authority.pem), ("node.pem", &certificate), ("node.key", &key)] {
            std::fs::write(dir.path().join(name), pem).expect("written");
        }
        Installation {
            authority,
            dir,
            etcd_url,
            control: at,
            http: free_address(),
            internal: free_address(),
            forward: free_address(),
            metrics: free_address(),
            _etcd: etcd,
        }
    }

    fn start_node(&self) -> Running {
        let file = |name: &str| self.dir.path().join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_data-plane"));
        command.args(["--name", "node-1", "--data-dir"]).arg(file("data"));
        let addresses = [
            ("--http", self.http),
            ("--internal", self.internal),
            ("--forward", self.forward),
            ("--metrics", self.metrics),
        ];
        for (flag, address) in addresses {
            command.args([flag, &address.to_string()]);
        }
        command.args(["--etcd", &self.etcd_url, "--control", &format!("https://{}", self.control)]);
        for (flag, name) in [("--ca", "ca.pem"), ("--cert", "node.pem"), ("--key", "node.key")] {
            command.arg(flag).arg(file(name));
        }
        Running(command.stdin(Stdio::null()).spawn().expect("the program starts"))
    }

    async fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = tokio::net::TcpStream::connect(self.metrics).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    async fn is_ready(&self) {
        until("it is ready", async || self.get("/readyz").await.is_some_and(|(status, _)| status == 200))
            .await;
    }

    async fn client(&self) -> ReplicationClient<Channel> {
        let tls = self.authority.tls("control-plane").client("node-1");
        let endpoint = Endpoint::from_shared(format!("https://{}", self.internal)).expect("an address");
        let channel = endpoint.tls_config(tls).expect("TLS").connect().await.expect("connected");
        ReplicationClient::new(channel)
    }

    async fn etcd(&self) -> etcd_client::Client {
        etcd_client::Client::connect([&self.etcd_url], None).await.expect("etcd's address")
    }

    async fn record(&self) -> Record {
        let answer = self.etcd().await.get(record_key(), None).await.expect("an answer");
        serde_json::from_slice(answer.kvs().first().expect("a record").value()).expect("JSON")
    }

    /// One election, whose one copy answers.
    async fn elect(&self, epoch: u64) {
        let mut node = self.client().await;
        let copy = node.create_copy(new_copy()).await.expect("created").into_inner().copy_id;
        let spool_id = bytes::Bytes::copy_from_slice(SPOOL.as_bytes());
        let seal = pb::SealRequest { spool_id: spool_id.clone(), copy_id: copy.clone(), epoch };
        let outcome = node.seal(seal).await.expect("answered").into_inner().outcome;
        let Some(pb::seal_reply::Outcome::Sealed(sealed)) = outcome else { panic!("{outcome:?}") };
        let position = sealed.position.expect("a position");
        let member = Member { node: "node-1".into(), copy: CopyId::from_slice(&copy).expect("an id") };
        let last = Last {
            epoch: Epoch(epoch),
            member: member.clone(),
            process: ProcessId::from_slice(&sealed.process_id).expect("an id"),
            position: Position { epoch: Epoch(position.epoch), seq: Seq(position.seq) },
        };
        let first = Record::first(SPOOL, 1, 0, vec![member]);
        let record = Record { epoch: Epoch(epoch), phase: Phase::Assigned, last: Some(last), ..first };
        let json = serde_json::to_vec(&record).expect("JSON");
        let put = self.etcd().await.put(record_key(), json, None).await.expect("put");
        let assign = pb::AssignRequest {
            spool_id,
            copy_id: copy.clone(),
            epoch,
            members: vec![pb::Member { node: "node-1".to_owned(), copy_id: copy }],
            process_id: sealed.process_id,
            position: Some(position),
            prev_last: None,
            commit_end: sealed.commit_end,
            lineage: 0,
            record_revision: put.header().expect("a header").revision(),
        };
        let outcome = node.assign(assign).await.expect("answered").into_inner().outcome;
        assert!(matches!(outcome, Some(pb::assign_reply::Outcome::Assigned(_))), "{outcome:?}");
        until("active", async || self.record().await.phase == Phase::Active).await;
    }
}

fn record_key() -> String {
    format!("/spools/{SPOOL}/record")
}

fn new_copy() -> pb::CreateCopyRequest {
    pb::CreateCopyRequest {
        spool_id: SPOOL.as_bytes().to_vec().into(),
        account_id: vec![1; 16].into(),
        name: "orders".to_owned(),
        num_replicas: 1,
        num_sync: 0,
        token_key: vec![7; 32].into(),
        created_ms: 1_700_000_000_000,
    }
}

async fn until(what: &str, is: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < deadline, "not seen: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn terminate(node: &Running) {
    let pid = rustix::process::Pid::from_child(&node.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
}

async fn ends_well(mut node: Running) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match node.0.try_wait().expect("a child") {
            Some(status) => return assert!(status.success(), "{status}"),
            None => assert!(Instant::now() < deadline, "it does not end"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_ready_takes_over_ends_in_order_and_comes_back() {
    let installation = Installation::start().await;
    let node = installation.start_node();
    installation.is_ready().await;
    assert_eq!(installation.get("/healthz").await.map(|(status, _)| status), Some(200));
    installation.elect(1).await;
    let (_, metrics) = installation.get("/metrics").await.expect("metrics");
    assert!(metrics.contains("capstan_copies{role=\"primary\"} 1\n"), "{metrics}");

    terminate(&node);
    until("it says that it ends", async || {
        !installation.get("/readyz").await.is_some_and(|(status, _)| status == 200)
    })
    .await;
    ends_well(node).await;
    let alive = installation.etcd().await.get("/nodes/node-1/alive", None).await.expect("an answer");
    assert!(alive.kvs().is_empty(), "its alive key went with it");

    let begun = Instant::now();
    let again = installation.start_node();
    installation.is_ready().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    installation.elect(2).await;
    assert_eq!(installation.record().await.epoch, Epoch(2));
    terminate(&again);
    ends_well(again).await;
}
