//! Engines over a real database, with a controller that says yes to everything.

use super::*;
use crate::replication::PairTable;
use crate::store::{NewCopy, Options};
use spool::command::NewMessage;
use spool::command::{Precondition, Settle};
use spool::config::{ConfigChange, PlanBounds};
use spool::event::{Assign, Sealed};
use spool::token::TokenKey;
use std::sync::OnceLock;
use types::{AccountId, ProcessId, QueueName, WallMs};
use uuid::Uuid;

const SPOOL: SpoolId = SpoolId::from_u128(77);
const WAIT: Duration = Duration::from_secs(20);

/// etcd, which agrees.
#[derive(Clone, Default)]
struct Yes {
    spools: Arc<OnceLock<Spools>>,
}

impl Outside for Yes {
    fn send(&self, _: SpoolId, _: u64, _: Member, _: Member, _: PeerMessage) {}
    fn activate(&self, spool: SpoolId, activate: Activate) {
        self.tell(spool, Event::Activated { epoch: activate.epoch, ok: true });
    }
    fn clear_prev(&self, spool: SpoolId, epoch: Epoch) {
        self.tell(spool, Event::PrevCleared { epoch, ok: true });
    }
    fn register(&self, copy: CopyId) {
        if let Some(spools) = self.spools.get() {
            spools.mark_registered(copy);
        }
    }
}

impl Yes {
    fn tell(&self, spool: SpoolId, event: Event) {
        if let Some(spools) = self.spools.get() {
            spools.tell(spool, event);
        }
    }
}

struct Node {
    spools: Spools,
    syncer: Option<Syncer>,
    process: ProcessId,
}

impl Node {
    fn start(dir: &std::path::Path) -> Node {
        let db = Arc::new(Db::open(dir, &Options::default()).expect("a database"));
        let process = ProcessId(Uuid::new_v4());
        let facts = ProcessFacts { process, boot_no: db.boot().boot_no, started: clock::moment() };
        let syncer = Syncer::start(db.clone()).expect("a thread");
        let node = NodeName::from("node-1");
        let pairs = Arc::new(PairTable::new(node.clone(), process));
        let (routing, metrics) = (Routing::default(), Metrics::default());
        let spools = Spools::new(node, facts, Settings::default(), db, routing, metrics);
        let yes = Yes::default();
        assert!(yes.spools.set(spools.clone()).is_ok());
        spools.start(&syncer, &pairs, &yes).expect("threads");
        Node { spools, syncer: Some(syncer), process }
    }

    async fn create(&self) -> CopyId {
        let new = NewCopy {
            spool: SPOOL,
            account: AccountId::from_u128(1),
            name: "orders".parse().expect("a name"),
            n: 1,
            k: 0,
            token_key: TokenKey([7; 32]),
            created: WallMs(1_700_000_000_000),
        };
        self.spools.create_copy(new).await.expect("a copy")
    }

    async fn seal(&self, epoch: u64) -> Sealed {
        let call = self.spools.call(SPOOL, None, Call::Seal { epoch: Epoch(epoch) });
        match tokio::time::timeout(WAIT, call).await.expect("in time") {
            Some(CallReply::Sealed(sealed)) => sealed,
            other => panic!("{other:?}"),
        }
    }

    async fn lead(&self, epoch: u64) {
        let sealed = self.seal(epoch).await;
        let assign = Assign {
            epoch: Epoch(epoch),
            members: vec![Member { node: self.spools.node().clone(), copy: sealed.copy }],
            process: self.process,
            position: sealed.position,
            prev_last: None,
            commit_end: sealed.commit_end,
            lineage: 0,
            record_revision: 1,
        };
        let answer = self.spools.call(SPOOL, Some(sealed.copy), Call::Assign(assign)).await;
        assert_eq!(answer, Some(CallReply::Assigned));
        assert_eq!(self.spools.route(SPOOL), Route::Here);
    }

    async fn ask(&self, command: Command) -> Reply {
        let asked = self.spools.request(SPOOL, command, Duration::from_secs(5));
        tokio::time::timeout(WAIT, asked).await.expect("in time").reply
    }

    async fn put_queue(&self) {
        let plan = PlanBounds {
            queues_max: 10,
            message_bytes_max: 1 << 20,
            retention_max: Duration::from_secs(86_400),
        };
        let (change, precondition) = (ConfigChange::nothing(true, plan), Precondition::None);
        let reply = self.ask(Command::PutQueue { queue: queue(), change, precondition }).await;
        assert!(matches!(reply, Reply::QueuePut { created: true, .. }), "{reply:?}");
    }

    async fn send(&self, payload: impl Into<bytes::Bytes>) {
        let messages = vec![NewMessage { payload: payload.into(), ..NewMessage::default() }];
        let reply = self.ask(Command::Send { queue: queue(), messages }).await;
        assert!(matches!(reply, Reply::Sent { .. }), "{reply:?}");
    }

    /// How many were acknowledged.
    async fn send_until_refused(&self, sender: usize) -> u64 {
        for sent in 0.. {
            let payload = format!("{sender} {sent}").into();
            let messages = vec![NewMessage { payload, ..NewMessage::default() }];
            match self.ask(Command::Send { queue: queue(), messages }).await {
                Reply::Sent { .. } => {}
                Reply::Failed(failure) if failure.code == ErrorCode::NoPrimary => return sent,
                other => panic!("neither acknowledged nor without effect: {other:?}"),
            }
        }
        unreachable!("it ends when it is refused")
    }

    async fn receive(&self, wait: Duration) -> Vec<spool::command::Delivered> {
        let command = Command::Receive { queue: queue(), max: 100, wait, lease: None };
        match self.ask(command).await {
            Reply::Received { messages } => messages,
            other => panic!("{other:?}"),
        }
    }

    /// As main does, but for the draining.
    fn stop(mut self) {
        self.spools.stop();
        drop(self.syncer.take());
    }
}

fn queue() -> QueueName {
    "tasks".parse().expect("a name")
}

fn texts(messages: &[spool::command::Delivered]) -> Vec<&[u8]> {
    messages.iter().map(|message| &message.payload[..]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_there_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path());
    let copy = node.create().await;
    assert_eq!(node.create().await, copy, "the same spool again is the same copy");
    node.lead(1).await;
    node.put_queue().await;
    for text in ["a", "b", "c"] {
        node.send(text).await;
    }
    let received = node.receive(Duration::ZERO).await;
    assert_eq!(texts(&received), [b"a", b"b", b"c"]);
    let token = received[0].lease.as_ref().expect("a lease").token;
    let settle = Command::Settle { queue: queue(), settle: Settle::Ack, tokens: vec![token] };
    assert!(matches!(node.ask(settle).await, Reply::Settled { .. }));
    node.stop();

    let node = Node::start(dir.path());
    assert_eq!(node.spools.copy(SPOOL), Some(copy));
    let reply = node.ask(Command::GetQueue { queue: queue() }).await;
    assert!(matches!(&reply, Reply::Failed(failure) if failure.code == ErrorCode::NoPrimary), "{reply:?}");
    node.lead(2).await;
    assert_eq!(texts(&node.receive(Duration::ZERO).await), [b"b", b"c"]);
    node.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_receiver_that_left_would_have_got_goes_to_the_next() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path());
    node.create().await;
    node.lead(1).await;
    node.put_queue().await;
    {
        let command = Command::Receive { queue: queue(), max: 1, wait: Duration::from_secs(20), lease: None };
        let leaver = node.spools.request(SPOOL, command, Duration::ZERO);
        assert!(tokio::time::timeout(Duration::from_millis(50), leaver).await.is_err(), "nothing is there");
    }
    node.send("x").await;
    let received = node.receive(Duration::from_secs(10)).await;
    assert_eq!(texts(&received), [b"x"]);
    let tokens = received.iter().filter_map(|message| message.lease.as_ref()).map(|lease| lease.token);
    node.spools.hand_back(SPOOL, tokens.collect());
    let again = node.receive(Duration::from_secs(10)).await;
    assert_eq!(texts(&again), [b"x"]);
    assert_eq!(again[0].deliveries, 1, "what is handed back is not counted");
    node.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_ends_confirms_or_refuses_and_loses_nothing() {
    const SENDERS: usize = 20;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path());
    node.create().await;
    node.lead(1).await;
    node.put_queue().await;
    let sending = (0..SENDERS).map(|sender| node.send_until_refused(sender));
    let ends = async {
        node.send("they are at it").await;
        node.spools.drain().await;
    };
    let ((), sent) = tokio::join!(ends, futures::future::join_all(sending));
    assert_eq!(node.spools.glance(SPOOL).and_then(|glance| glance.leads), None);
    node.spools.stop();
    let call = node.spools.call(SPOOL, None, Call::Probe);
    assert_eq!(tokio::time::timeout(WAIT, call).await.expect("in time"), None, "the engines have ended");
    node.stop();

    let node = Node::start(dir.path());
    node.lead(2).await;
    let Reply::Queue { info } = node.ask(Command::GetQueue { queue: queue() }).await else { panic!() };
    assert_eq!(info.available, 1 + sent.into_iter().sum::<u64>());
    node.stop();
}
