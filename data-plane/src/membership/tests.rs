//! Against a real etcd, which is broken on the way.

use super::*;
use crate::clock;
use crate::metrics::Metrics;
use crate::replication::PairTable;
use crate::spools::{Outside, Route};
use crate::store::{Db, NewCopy, Options, Syncer};
use serde_json::Value;
use spool::copy::Settings;
use spool::event::{Activate, Assign, Call, CallReply, PeerMessage, Sealed};
use spool::record::{Last, Member, Phase, Record};
use spool::token::TokenKey;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tokio::sync::watch as latest;
use tokio::time::{Instant, sleep};
use types::{AccountId, CopyId, Epoch, ErrorCode, Moment, Position, ProcessId, SpoolId, WallMs};
use uuid::Uuid;

const BINARY: &str = "/usr/bin/etcd";
const PATIENCE: Duration = Duration::from_secs(30);
const SPOOL: SpoolId = SpoolId::from_u128(42);

struct Etcd {
    child: Child,
    client_url: String,
    peer_url: String,
    dir: tempfile::TempDir,
}

impl Etcd {
    async fn start() -> Etcd {
        assert!(std::path::Path::new(BINARY).exists(), "{BINARY} is missing: install Debian's etcd-server");
        let dir = tempfile::tempdir().expect("a directory");
        let (client_url, peer_url) = (free_url(), free_url());
        let child = spawn(dir.path(), &client_url, &peer_url);
        let etcd = Etcd { child, client_url, peer_url, dir };
        etcd.answers().await;
        etcd
    }

    async fn restart(&mut self) {
        self.end();
        self.child = spawn(self.dir.path(), &self.client_url, &self.peer_url);
        self.answers().await;
    }

    async fn answers(&self) {
        let client = self.connect().await;
        let asked = || async { answered(client.clone().get("/", None)).await.is_ok() };
        until("etcd answers", asked).await;
    }

    async fn connect(&self) -> Client {
        connect(std::slice::from_ref(&self.client_url)).await.expect("an address")
    }

    fn end(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn free_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("http://{}", listener.local_addr().expect("bound"))
}

fn spawn(dir: &std::path::Path, client_url: &str, peer_url: &str) -> Child {
    Command::new(BINARY)
        .args(["--name", "test", "--initial-cluster", &format!("test={peer_url}"), "--data-dir"])
        .arg(dir)
        .args(["--listen-client-urls", client_url, "--advertise-client-urls", client_url])
        .args(["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd starts")
}

async fn until(what: &str, is: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < deadline, "not seen: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[derive(Clone)]
struct Surroundings(Takeovers);

impl Outside for Surroundings {
    fn send(&self, _: SpoolId, _: u64, _: Member, _: Member, _: PeerMessage) {}
    fn activate(&self, spool: SpoolId, activate: Activate) {
        self.0.leave(Job::Activate { spool, activate });
    }
    fn clear_prev(&self, spool: SpoolId, epoch: Epoch) {
        self.0.leave(Job::ClearPrev { spool, epoch });
    }
    fn register(&self, copy: CopyId) {
        self.0.leave(Job::Register { copy });
    }
}

struct Node {
    name: NodeName,
    facts: ProcessFacts,
    spools: Spools,
    routing: Routing,
    addresses: latest::Receiver<HashMap<NodeName, String>>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    _syncer: Syncer,
    _dir: tempfile::TempDir,
}

impl Node {
    async fn start(etcd: &Etcd, name: &str) -> Node {
        let dir = tempfile::tempdir().expect("a directory");
        let db = Arc::new(Db::open(dir.path(), &Options::default()).expect("a database"));
        let process = ProcessId(Uuid::new_v4());
        let facts = ProcessFacts { process, boot_no: db.boot().boot_no, started: clock::moment() };
        let syncer = Syncer::start(db.clone()).expect("a thread");
        let name = NodeName::from(name);
        let (routing, metrics) = (Routing::default(), Metrics::default());
        let spools = Spools::new(name.clone(), facts, Settings::default(), db, routing.clone(), metrics);
        let (takeovers, jobs) = Takeovers::channel(100);
        let pairs = Arc::new(PairTable::new(name.clone(), process));
        spools.start(&syncer, &pairs, &Surroundings(takeovers)).expect("threads");
        let membership = Membership {
            etcd: etcd.connect().await,
            node: name.clone(),
            facts,
            addresses: Addresses {
                internal: format!("{name}:1"),
                forward: format!("{name}:2"),
                http: format!("{name}:3"),
            },
            routing: routing.clone(),
            health: Health::new(Duration::from_secs(60)),
        };
        let (tell, addresses) = latest::channel(HashMap::new());
        let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
        let told = move |nodes| drop(tell.send_replace(nodes));
        membership.start(&mut tasks, spools.clone(), jobs, told, stop.clone());
        Node { name, facts, spools, routing, addresses, tasks, stop, _syncer: syncer, _dir: dir }
    }

    async fn knows(&self, other: &str) {
        let there = || async { self.addresses.borrow().contains_key(&NodeName::from(other)) };
        until("the other node's address", there).await;
    }

    async fn create(&self) -> Member {
        let new = NewCopy {
            spool: SPOOL,
            account: AccountId::from_u128(1),
            name: "orders".parse().expect("a name"),
            n: 1,
            k: 0,
            token_key: TokenKey([7; 32]),
            created: WallMs(1_700_000_000_000),
        };
        let copy = self.spools.create_copy(new).await.expect("a copy");
        Member { node: self.name.clone(), copy }
    }

    async fn seal(&self, epoch: u64) -> Sealed {
        let call = self.spools.call(SPOOL, None, Call::Seal { epoch: Epoch(epoch) });
        match tokio::time::timeout(PATIENCE, call).await.expect("in time") {
            Some(CallReply::Sealed(sealed)) => sealed,
            other => panic!("{other:?}"),
        }
    }

    async fn assign(&self, record: &Record, record_revision: i64) {
        let last = record.last.as_ref().expect("assigned");
        let assign = Assign {
            epoch: record.epoch,
            members: record.members.clone(),
            process: last.process,
            position: last.position,
            prev_last: None,
            commit_end: types::Seq(1),
            lineage: 0,
            record_revision,
        };
        let answer = self.spools.call(SPOOL, None, Call::Assign(assign)).await;
        assert_eq!(answer, Some(CallReply::Assigned));
    }

    async fn end(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.spools.stop();
    }
}

async fn read(etcd: &Etcd, key: &str) -> Option<(Value, i64)> {
    let answer = etcd.connect().await.get(key, None).await.expect("an answer");
    let kv = answer.kvs().first()?;
    let value = String::from_utf8_lossy(kv.value()).into_owned();
    Some((serde_json::from_str(&value).unwrap_or(Value::String(value)), kv.mod_revision()))
}

async fn put(etcd: &Etcd, record: &Record) -> i64 {
    let key = format!("/spools/{}/record", record.spool);
    let json = serde_json::to_vec(record).expect("JSON");
    let answer = etcd.connect().await.put(key, json, None).await.expect("an answer");
    answer.header().expect("a header").revision()
}

fn assigned(member: &Member, process: ProcessId, epoch: u64, position: Position) -> Record {
    let first = Record::first(SPOOL, 1, 0, vec![member.clone()]);
    let epoch = Epoch(epoch);
    let last = Some(Last { epoch, member: member.clone(), process, position });
    Record { epoch, phase: Phase::Assigned, prev: vec![vec![member.clone()]], last, ..first }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_find_each_other_and_go_on_when_etcd_comes_back() {
    let mut etcd = Etcd::start().await;
    let (one, two) = (Node::start(&etcd, "node-1").await, Node::start(&etcd, "node-2").await);
    one.knows("node-2").await;
    two.knows("node-1").await;
    until("all is read", async || one.routing.is_read() && two.routing.is_read()).await;

    let heart = async || read(&etcd, "/nodes/node-1/alive").await.expect("alive").0;
    let before = heart().await;
    assert_eq!(before["process_id"], one.facts.process.to_string());
    assert_eq!(before["forward"], "node-1:2");
    until("the number grows", async || heart().await["hb_no"].as_u64() > before["hb_no"].as_u64()).await;

    etcd.restart().await;
    let again = read(&etcd, "/nodes/node-2/alive").await.map(|(alive, _)| alive["hb_no"].as_u64());
    let grows = async || {
        let now = read(&etcd, "/nodes/node-2/alive").await.map(|(alive, _)| alive["hb_no"].as_u64());
        now > again && now.is_some()
    };
    until("the number grows again", grows).await;
    // What is new is seen by the watch that began again.
    let three = Node::start(&etcd, "node-3").await;
    one.knows("node-3").await;
    one.end().await;
    let gone = async || read(&etcd, "/nodes/node-1/alive").await.is_none();
    until("a node that ends takes its key away", gone).await;
    // It may be cut off from etcd alone.
    assert!(two.addresses.borrow().contains_key(&NodeName::from("node-1")));
    two.end().await;
    three.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_takes_over_says_so_in_the_record_and_others_route_to_it() {
    let etcd = Etcd::start().await;
    let (one, two) = (Node::start(&etcd, "node-1").await, Node::start(&etcd, "node-2").await);
    let member = one.create().await;
    assert!(matches!(two.spools.route(SPOOL), Route::Nowhere(f) if f.code == ErrorCode::NoPrimary));
    let sealed = one.seal(1).await;
    let registered = read(&etcd, &format!("/copies/{}", member.copy)).await.expect("registered");
    assert_eq!(registered.0["boot_no"], one.facts.boot_no);

    let record = assigned(&member, one.facts.process, 1, sealed.position);
    let revision = put(&etcd, &record).await;
    one.assign(&record, revision).await;
    let key = format!("/spools/{SPOOL}/record");
    let now = async || serde_json::from_value::<Record>(read(&etcd, &key).await.expect("it").0).expect("one");
    until("active", async || now().await.phase == Phase::Active).await;
    until("superseded", async || now().await.prev.is_empty()).await;
    assert_eq!(read(&etcd, &format!("/owners/node-1/{SPOOL}")).await.expect("a claim").0, 1);
    assert!(read(&etcd, "/owners/node-1/rev").await.is_some());
    assert_eq!(one.spools.route(SPOOL), Route::Here);
    let there = Route::There { node: "node-1".into(), internal: "node-1:2".to_owned() };
    until("routed", async || two.spools.route(SPOOL) == there).await;

    // It was replaced, and does not know it yet.
    let elsewhere = Last { epoch: Epoch(2), ..moved_to("node-2", &now().await) };
    put(&etcd, &Record { epoch: Epoch(2), last: Some(elsewhere), ..now().await }).await;
    let there = Route::There { node: "node-2".into(), internal: "node-2:2".to_owned() };
    until("routed to its successor", async || one.spools.route(SPOOL) == there).await;

    // An election begins, and finds too few.
    put(&etcd, &Record { phase: Phase::Electing, epoch: Epoch(3), ..now().await }).await;
    let status = r#"{"waiting_for":["node-1"],"reason":"its disk"}"#;
    etcd.connect().await.put(format!("/spools/{SPOOL}/status"), status, None).await.expect("put");
    let needs =
        async || matches!(two.spools.route(SPOOL), Route::Nowhere(f) if f.code == ErrorCode::NeedCopies);
    until("copies are needed", needs).await;
    assert_eq!(two.routing.waiting(SPOOL).expect("a status").waiting_for, ["node-1".into()]);
    one.end().await;
    two.end().await;
}

fn moved_to(node: &str, record: &Record) -> Last {
    let member = Member { node: node.into(), copy: CopyId::from_u128(2) };
    Last { member, ..record.last.clone().expect("assigned") }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_does_not_take_over_if_the_record_has_moved_on() {
    let etcd = Etcd::start().await;
    let node = Node::start(&etcd, "node-1").await;
    let member = node.create().await;
    let sealed = node.seal(1).await;
    let record = assigned(&member, node.facts.process, 1, sealed.position);
    let revision = put(&etcd, &record).await;
    put(&etcd, &Record { phase: Phase::Electing, epoch: Epoch(2), ..record.clone() }).await;
    node.assign(&record, revision).await;
    let leads = async || node.spools.glance(SPOOL).and_then(|glance| glance.leads).is_some();
    until("the role is given up", async || !leads().await).await;
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_names_this_process_while_its_copy_does_not_serve_is_a_doubt() {
    let etcd = Etcd::start().await;
    let node = Node::start(&etcd, "node-1").await;
    let member = node.create().await;
    let suspicions = Suspicions {
        facts: node.facts,
        suspect_after: Duration::from_secs(1),
        spools: node.spools.clone(),
        routing: node.routing.clone(),
        pairs: Arc::new(PairTable::new(node.name.clone(), node.facts.process)),
    };
    assert!(suspicions.look(Moment(u64::MAX)).is_empty());
    let record = assigned(&member, node.facts.process, 1, Position::ZERO);
    put(&etcd, &Record { phase: Phase::Active, ..record }).await;
    let doubted = async || suspicions.look(clock::moment()).contains_key(&node.name);
    until("this node doubts itself", doubted).await;
    node.end().await;
}
