//! One copy that is primary of its spool, its store, and a clock that stands still unless it is told.

use bytes::Bytes;
use spool::command::{
    Command, Delivered, Failure, NewMessage, Precondition, Reply, RequestId, Sent, Settle, SettleResult,
    Written,
};
use spool::config::{ConfigChange, PlanBounds, QueueInfo};
use spool::copy::{Context, Identity, ProcessFacts, Settings, SpoolCopy};
use spool::event::{Assign, Call, CallId, CallReply, Effects, Event, SyncNo};
use spool::memstore::MemStore;
use spool::promise::Pairs;
use spool::record::Last;
use spool::token::{Token, TokenKey};
use std::collections::BTreeMap;
use std::time::Duration;
use types::time::Now;
use types::{
    CopyId, Epoch, ErrorCode, MessageId, Moment, NodeName, ProcessId, QueueName, SpoolId, WallMs, limits,
};

pub const PLAN: PlanBounds =
    PlanBounds { queues_max: 4, message_bytes_max: 1_000, retention_max: Duration::from_secs(86_400) };
pub const KEY: TokenKey = TokenKey([7; 32]);
const MS: Duration = Duration::from_millis(1);

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn name(name: &str) -> QueueName {
    name.parse().expect("a queue's name")
}

/// A message that is all defaults.
pub fn text(payload: &str) -> NewMessage {
    NewMessage { payload: Bytes::copy_from_slice(payload.as_bytes()), ..NewMessage::default() }
}

pub fn keyed(payload: &str, key: &str) -> NewMessage {
    NewMessage { dedup_key: Some(Bytes::copy_from_slice(key.as_bytes())), ..text(payload) }
}

pub fn payloads(messages: &[Delivered]) -> Vec<&str> {
    messages.iter().map(|message| std::str::from_utf8(&message.payload).expect("text")).collect()
}

pub fn token(message: &Delivered) -> Token {
    message.lease.as_ref().expect("it was received, not looked at").token
}

/// Why it was refused.
pub fn refused(reply: Reply) -> Failure {
    match reply {
        Reply::Failed(failure) => failure,
        other => panic!("it was not refused: {other:?}"),
    }
}

/// Of each token: nothing, or why it failed.
pub fn codes(results: &[SettleResult]) -> Vec<Option<ErrorCode>> {
    let code = |result: &SettleResult| match result {
        SettleResult::Done => None,
        SettleResult::Failed(failure) => Some(failure.code),
    };
    results.iter().map(code).collect()
}

pub struct Bench {
    pub now: Now,
    /// While it is set, syncs are asked for and not done.
    pub disk_is_slow: bool,
    id: Identity,
    boot_no: u64,
    store: MemStore,
    copy: SpoolCopy,
    last: Option<Last>,
    asked: Option<SyncNo>,
    requests: u64,
    replies: BTreeMap<RequestId, Reply>,
    called: Option<CallReply>,
}

impl Bench {
    /// Elected, and in office.
    pub fn new() -> Bench {
        let id = Identity {
            spool: SpoolId::from_u128(1),
            copy: CopyId::from_u128(2),
            node: NodeName("node-1".to_owned()),
            n: 1,
            k: 0,
            token_key: KEY,
            created: WallMs(0),
        };
        let mut store = MemStore::default();
        store.apply(&spool::create(&id));
        let now = Now { mono: Moment(5_000_000), wall: WallMs(1_700_000_000_000) };
        let copy = open(&id, 1, now, &store);
        let mut bench = Bench {
            now,
            disk_is_slow: false,
            id,
            boot_no: 1,
            store,
            copy,
            last: None,
            asked: None,
            requests: 0,
            replies: BTreeMap::new(),
            called: None,
        };
        bench.elect();
        bench
    }

    /// With a queue of this name.
    pub fn with_queue(queue: &str, change: impl FnOnce(&mut ConfigChange)) -> Bench {
        let mut bench = Bench::new();
        bench.put(queue, change);
        bench
    }

    // ---- events

    pub fn step(&mut self, event: Event) {
        let mut out = Effects::default();
        let context = Context { now: self.now, store: &self.store, pairs: &NoPairs };
        self.copy.handle(&context, event, &mut out).expect("a store in memory can be read");
        self.copy.check();
        self.store.apply(&out.batch);
        self.asked = out.sync.or(self.asked);
        for (id, reply) in out.replies.drain(..) {
            let before = self.replies.insert(id, reply);
            assert_eq!(before, None, "{id:?} is answered twice");
        }
        if let Some(ask) = out.activate.take() {
            self.step(Event::Activated { epoch: ask.epoch, ok: true });
        }
        self.called = out.calls.pop().map(|(_, reply)| reply).or(self.called.take());
        if !self.disk_is_slow {
            self.sync();
        }
    }

    /// The disk finishes what was asked for.
    pub fn sync(&mut self) {
        while let Some(no) = self.asked.take() {
            self.step(Event::Synced(no));
        }
    }

    /// Lets time pass; the copy is woken when it asked to be.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now.mono + span;
        for _ in 0..100_000 {
            let wake = self.copy.next_wakeup().map_or(end, |at| at.max(self.now.mono + MS));
            let to = wake.min(end);
            let by = to.since(self.now.mono);
            self.now = Now { mono: to, wall: self.now.wall + by };
            self.step(Event::Tick);
            if to >= end {
                return;
            }
        }
        panic!("the copy wakes without end");
    }

    /// A new epoch for this copy, by the book.
    pub fn elect(&mut self) {
        let epoch = Epoch(self.copy.sealed().0 + 1);
        let CallReply::Sealed(sealed) = self.call(Call::Seal { epoch }) else { panic!("not sealed") };
        let (process, position) = (sealed.process, sealed.position);
        let last = Last { epoch, member: self.id.member(), process, position };
        let assign = Assign {
            epoch,
            members: vec![self.id.member()],
            process,
            position,
            prev_last: self.last.replace(last),
            commit_end: sealed.commit_end,
            lineage: 0,
            record_revision: 1,
        };
        assert_eq!(self.call(Call::Assign(assign)), CallReply::Assigned);
    }

    fn call(&mut self, call: Call) -> CallReply {
        self.step(Event::Call { id: CallId(1), call });
        self.called.take().expect("an answer at once")
    }

    /// Asks once more for the seal of the epoch that it has.
    pub fn seal_again(&mut self) {
        let epoch = self.copy.sealed();
        self.step(Event::Call { id: CallId(1), call: Call::Seal { epoch } });
    }

    pub fn called(&mut self) -> Option<CallReply> {
        self.called.take()
    }

    /// The process ends, another one begins on the same disk and is elected.
    pub fn restart(&mut self) {
        self.boot_no += 1;
        self.asked = None;
        self.copy = open(&self.id, self.boot_no, self.now, &self.store);
        self.elect();
    }

    // ---- requests

    pub fn start(&mut self, command: Command) -> RequestId {
        self.start_within(command, limits::CONFIRM_WAIT_DEFAULT)
    }

    pub fn start_within(&mut self, command: Command, wait: Duration) -> RequestId {
        self.requests += 1;
        let id = RequestId(self.requests);
        self.step(Event::Request { id, command, wait });
        id
    }

    pub fn answer(&mut self, id: RequestId) -> Option<Reply> {
        self.replies.remove(&id)
    }

    /// Asks, and is answered before any time passes.
    pub fn ask(&mut self, command: Command) -> Reply {
        let what = format!("{command:?}");
        let id = self.start(command);
        self.answer(id).unwrap_or_else(|| panic!("no answer to {what}"))
    }

    pub fn put(&mut self, queue: &str, change: impl FnOnce(&mut ConfigChange)) -> QueueInfo {
        match self.try_put(queue, true, Precondition::None, change) {
            Reply::QueuePut { info, .. } => *info,
            other => panic!("{other:?}"),
        }
    }

    pub fn try_put(
        &mut self,
        queue: &str,
        replace: bool,
        precondition: Precondition,
        change: impl FnOnce(&mut ConfigChange),
    ) -> Reply {
        let mut wanted = ConfigChange::nothing(replace, PLAN);
        change(&mut wanted);
        self.ask(Command::PutQueue { queue: name(queue), change: wanted, precondition })
    }

    pub fn send(&mut self, queue: &str, message: NewMessage) -> MessageId {
        self.send_all(queue, vec![message]).0[0].id
    }

    pub fn send_all(&mut self, queue: &str, messages: Vec<NewMessage>) -> (Vec<Sent>, Written) {
        match self.try_send(queue, messages) {
            Reply::Sent { messages, written } => (messages, written),
            other => panic!("{other:?}"),
        }
    }

    pub fn try_send(&mut self, queue: &str, messages: Vec<NewMessage>) -> Reply {
        self.ask(Command::Send { queue: name(queue), messages })
    }

    pub fn receive(&mut self, queue: &str, max: u32) -> Vec<Delivered> {
        self.receive_for(queue, max, None)
    }

    pub fn receive_for(&mut self, queue: &str, max: u32, lease: Option<Duration>) -> Vec<Delivered> {
        match self.ask(Command::Receive { queue: name(queue), max, wait: Duration::ZERO, lease }) {
            Reply::Received { messages } => messages,
            other => panic!("{other:?}"),
        }
    }

    /// The only message that is available.
    pub fn receive_one(&mut self, queue: &str) -> Delivered {
        let mut messages = self.receive(queue, 10);
        assert_eq!(messages.len(), 1, "{:?}", payloads(&messages));
        messages.remove(0)
    }

    pub fn settle(&mut self, queue: &str, settle: Settle, tokens: &[Token]) -> Vec<SettleResult> {
        match self.ask(Command::Settle { queue: name(queue), settle, tokens: tokens.to_vec() }) {
            Reply::Settled { results, .. } => results,
            other => panic!("{other:?}"),
        }
    }

    /// Of one message; done, or why not.
    pub fn settle_one(&mut self, queue: &str, settle: Settle, token: Token) -> Option<ErrorCode> {
        codes(&self.settle(queue, settle, &[token]))[0]
    }

    pub fn ack(&mut self, queue: &str, token: Token) -> Option<ErrorCode> {
        self.settle_one(queue, Settle::Ack, token)
    }

    pub fn nack(&mut self, queue: &str, token: Token, delay: Option<Duration>) -> Option<ErrorCode> {
        self.settle_one(queue, Settle::Nack { delay }, token)
    }

    pub fn extend(&mut self, queue: &str, token: Token, lease: Duration) -> Reply {
        self.ask(Command::Extend { queue: name(queue), token, lease })
    }

    pub fn look(&mut self, queue: &str) -> QueueInfo {
        match self.ask(Command::GetQueue { queue: name(queue) }) {
            Reply::Queue { info } => *info,
            other => panic!("{other:?}"),
        }
    }
}

fn open(id: &Identity, boot_no: u64, now: Now, store: &MemStore) -> SpoolCopy {
    let facts = ProcessFacts { process: ProcessId::from_u128(boot_no.into()), boot_no, started: now.mono };
    SpoolCopy::open(id.clone(), facts, Settings::default(), now, store).expect("a copy of this spool")
}

/// There are no other nodes.
struct NoPairs;

impl Pairs for NoPairs {
    fn heard(&self, _: &NodeName) -> Option<Moment> {
        None
    }
    fn promised(&self, _: &NodeName, _: SpoolId, _: Epoch) -> Option<Moment> {
        None
    }
    fn note_followed(&self, _: &NodeName, _: ProcessId, _: SpoolId, _: Epoch, _: u64) {}
    fn follow(&self, _: &NodeName, _: SpoolId, _: Epoch) -> u64 {
        0
    }
    fn leave(&self, _: SpoolId) -> Option<Moment> {
        None
    }
    fn wall_clock(&self, _: &NodeName) -> Option<(Moment, WallMs)> {
        None
    }
    fn silent(&self, _: &NodeName, _: Moment) -> Option<Duration> {
        None
    }
    fn refused(&self, _: &NodeName) -> bool {
        false
    }
}
