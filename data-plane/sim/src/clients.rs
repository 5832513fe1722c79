//! Clients: producers with payloads that occur once, consumers that settle, or forget to; each does one thing at a
//! time, through the node that it believes to be the primary.

use bytes::Bytes;
use spool::command::{Command, Delay, NewMessage, Precondition, Reply, Settle, SettleResult};
use spool::config::{ConfigChange, PlanBounds};
use spool::token::Token;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{QueueName, limits};

use crate::clock::{MS, SEC, Time};
use crate::config::Config;
use crate::net::End;
use crate::world::{Happening, ToNode, World};

/// A queue of the simulation, as its clients set it up.
#[derive(Clone, Copy, Debug)]
pub struct QueueKind {
    pub name: &'static str,
    pub dedup: bool,
    pub deliveries_max: Option<u32>,
    /// Some of its messages have an ordering group.
    pub groups: bool,
}

pub const QUEUES: &[QueueKind] = &[
    QueueKind { name: "plain", dedup: false, deliveries_max: None, groups: false },
    QueueKind { name: "keyed", dedup: true, deliveries_max: None, groups: false },
    QueueKind { name: "strict", dedup: false, deliveries_max: Some(2), groups: false },
];
/// Where what `strict` gives up goes.
pub const DEAD: &str = "strict.dead";
pub const LEASE_DEFAULT: Duration = Duration::from_millis(1_500);
const DEDUP_WINDOW: Duration = Duration::from_secs(1_800);

pub fn queue(name: &str) -> QueueName {
    QueueName::from_stored(name).expect("the simulation's own names are good")
}

#[derive(Clone, Debug)]
pub struct Op {
    pub id: u64,
    pub client: usize,
    pub node: usize,
    pub command: Command,
    pub wait: Duration,
    pub invoked: Time,
    /// What a send sends, by number.
    pub messages: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Setup,
    Producer,
    Consumer,
    /// Takes and acks everything, once the storm is over.
    Drain,
}

#[derive(Debug)]
struct Client {
    kind: Kind,
    believes: usize,
    busy: Option<u64>,
    /// Leases that it has not settled.
    held: Vec<(QueueName, Token, u64)>,
    /// A keyed send whose outcome it does not know.
    doubt: Option<u64>,
    queues_made: usize,
}

pub struct Clients {
    all: Vec<Client>,
    open: BTreeMap<u64, Op>,
    next_op: u64,
    pub draining: bool,
    pub stopped: bool,
    /// Answers of the drain that were empty, in a row, by queue.
    pub drained: BTreeMap<&'static str, u32>,
    pub last_write: Option<Time>,
    pub last_receive: Option<Time>,
}

impl Clients {
    pub fn new(config: &Config) -> Clients {
        let kinds = std::iter::once(Kind::Setup)
            .chain(std::iter::repeat_n(Kind::Producer, config.producers))
            .chain(std::iter::repeat_n(Kind::Consumer, config.consumers))
            .chain([Kind::Drain]);
        let client =
            |kind| Client { kind, believes: 0, busy: None, held: Vec::new(), doubt: None, queues_made: 0 };
        Clients {
            all: kinds.map(client).collect(),
            open: BTreeMap::new(),
            next_op: 0,
            draining: false,
            stopped: false,
            drained: BTreeMap::new(),
            last_write: None,
            last_receive: None,
        }
    }

    pub fn op(&self, id: u64) -> Option<&Op> {
        self.open.get(&id)
    }

    pub fn all_quiet(&self) -> bool {
        self.open.is_empty()
    }
}

impl World {
    pub fn start_clients(&mut self) {
        for client in 0..self.clients.all.len() {
            let us = self.rng.range(100 * MS, SEC);
            self.after(us, Happening::ClientTurn(client));
        }
    }

    pub fn client_turn(&mut self, at: usize) {
        let client = &self.clients.all[at];
        if client.busy.is_some() {
            return;
        }
        let think = match client.kind {
            Kind::Setup => self.setup_turn(at),
            Kind::Producer => self.producer_turn(at),
            Kind::Consumer => self.consumer_turn(at),
            Kind::Drain => self.drain_turn(at),
        };
        if self.clients.all[at].busy.is_none() {
            self.after(think, Happening::ClientTurn(at));
        }
    }

    fn setup_turn(&mut self, at: usize) -> u64 {
        let Some(kind) = QUEUES.get(self.clients.all[at].queues_made) else { return 3_600 * SEC };
        let plan = PlanBounds {
            queues_max: 100,
            message_bytes_max: limits::MESSAGE_BYTES_MAX as u32,
            retention_max: limits::RETENTION_MAX,
        };
        let change = ConfigChange {
            lease: Some(LEASE_DEFAULT),
            deliveries_max: Some(kind.deliveries_max),
            dedup_window: kind.dedup.then_some(DEDUP_WINDOW),
            backoff_initial: Some(Duration::from_millis(200)),
            backoff_max: Some(Duration::from_secs(2)),
            ..ConfigChange::nothing(true, plan)
        };
        let command = Command::PutQueue { queue: queue(kind.name), change, precondition: Precondition::None };
        self.invoke(at, command, Vec::new(), Some(Duration::from_secs(2)));
        0
    }

    fn producer_turn(&mut self, at: usize) -> u64 {
        if self.clients.stopped {
            return SEC;
        }
        if self.rng.percent(60) {
            return self.rng.range(MS, 60 * MS);
        }
        if let Some(number) = self.clients.all[at].doubt {
            // The rule of the product: again, with the same key.
            let command = Command::Send { queue: queue("keyed"), messages: vec![self.message(number)] };
            self.invoke(at, command, vec![number], None);
            return 0;
        }
        if self.rng.one_in(100) {
            let name = *self.rng.pick(&["plain", "strict"]);
            let command = Command::Purge { queue: queue(name) };
            self.invoke(at, command, Vec::new(), None);
            return 0;
        }
        if self.rng.one_in(50)
            && let Some(id) = self.oracle.messages.any_id(&mut self.rng, "plain")
        {
            let command = Command::DeleteMessage { queue: queue("plain"), id };
            self.invoke(at, command, Vec::new(), None);
            return 0;
        }
        if self.rng.one_in(40) {
            let command = Command::GetQueue { queue: queue("plain") };
            self.invoke(at, command, Vec::new(), None);
            return 0;
        }
        let kind = *self.rng.pick(QUEUES);
        if kind.dedup
            && self.rng.one_in(8)
            && let Some(key) = self.oracle.messages.any_key(&mut self.rng)
        {
            self.invoke(at, Command::LookUpKey { queue: queue(kind.name), key }, Vec::new(), None);
            return 0;
        }
        let count = if kind.dedup { 1 } else { 1 + self.rng.index(3) };
        let mut numbers = Vec::new();
        let mut messages = Vec::new();
        for _ in 0..count {
            let number = self.new_message(at, kind);
            messages.push(self.message(number));
            numbers.push(number);
        }
        self.invoke(at, Command::Send { queue: queue(kind.name), messages }, numbers, None);
        0
    }

    fn new_message(&mut self, at: usize, kind: QueueKind) -> u64 {
        let number = self.oracle.messages.new_message(at, kind);
        let rng = &mut self.rng;
        let message = self.oracle.messages.get_mut(number);
        if rng.one_in(4) {
            message.priority = rng.below(10) as u8;
        }
        if rng.one_in(8) {
            message.delay = Duration::from_millis(rng.range(1, 3_000));
        }
        if rng.one_in(16) {
            message.ttl = Some(Duration::from_millis(rng.range(500, 5_000)));
        }
        if kind.groups && rng.percent(40) {
            message.group = Some(rng.below(3) as u8);
        }
        number
    }

    /// The same bytes whenever it is asked for.
    fn message(&self, number: u64) -> NewMessage {
        let message = self.oracle.messages.get(number);
        NewMessage {
            payload: self.oracle.messages.payload(number),
            priority: Some(message.priority),
            delay: if message.delay.is_zero() { Delay::QueueDefault } else { Delay::For(message.delay) },
            ttl: message.ttl,
            group: message.group.map(|group| format!("group-{group}")),
            dedup_key: message.keyed.then(|| Bytes::from(format!("key-{number}"))),
            ..NewMessage::default()
        }
    }

    fn consumer_turn(&mut self, at: usize) -> u64 {
        if self.rng.percent(40) {
            return self.rng.range(MS, 100 * MS);
        }
        let held = self.clients.all[at].held.len();
        if held > 0 && (self.clients.stopped || self.rng.percent(70)) {
            let which = self.rng.index(held);
            let (queue, token, _) = self.clients.all[at].held.remove(which);
            return self.settle_turn(at, queue, token);
        }
        if self.clients.stopped || held > 8 {
            return SEC;
        }
        let names = [QUEUES[0].name, QUEUES[1].name, QUEUES[2].name, QUEUES[2].name, DEAD];
        let name = *self.rng.pick(&names);
        let wait = if self.rng.percent(50) { 0 } else { self.rng.below(2_000) };
        let lease = self.rng.percent(50).then(|| Duration::from_millis(self.rng.range(200, 4_000)));
        let max = 1 + self.rng.below(4) as u32;
        let command = Command::Receive { queue: queue(name), max, wait: Duration::from_millis(wait), lease };
        self.invoke(at, command, Vec::new(), None);
        0
    }

    fn settle_turn(&mut self, at: usize, queue: QueueName, token: Token) -> u64 {
        let mut tokens = vec![token];
        let dice = self.rng.below(100);
        let command = match dice {
            0..60 => {
                let more: Vec<_> = self.clients.all[at]
                    .held
                    .iter()
                    .filter(|(of, ..)| *of == queue)
                    .map(|(_, token, _)| *token)
                    .collect();
                if self.rng.percent(30) {
                    self.clients.all[at].held.retain(|(_, token, _)| !more.contains(token));
                    tokens.extend(more);
                }
                Command::Settle { queue, settle: Settle::Ack, tokens }
            }
            60..70 => {
                let delay = self.rng.percent(50).then(|| Duration::from_millis(self.rng.below(1_500)));
                Command::Settle { queue, settle: Settle::Nack { delay }, tokens }
            }
            70..76 if queue.as_str() == QUEUES[2].name => {
                Command::Settle { queue, settle: Settle::Reject { reason: None }, tokens }
            }
            76..86 => {
                let lease = Duration::from_millis(self.rng.range(100, 3_000));
                self.clients.all[at].held.push((queue.clone(), token, 0));
                Command::Extend { queue, token, lease }
            }
            // Forgets it.
            _ => return 0,
        };
        self.invoke(at, command, Vec::new(), None);
        0
    }

    fn drain_turn(&mut self, at: usize) -> u64 {
        if !self.clients.draining {
            return SEC / 4;
        }
        if let Some((queue, _, _)) = self.clients.all[at].held.first().cloned() {
            let tokens = self.clients.all[at].held.iter().map(|(_, token, _)| *token).collect();
            let wait = Some(Duration::from_secs(5));
            self.invoke(at, Command::Settle { queue, settle: Settle::Ack, tokens }, Vec::new(), wait);
            return 0;
        }
        let least = |name: &&&str| self.clients.drained.get(**name).copied().unwrap_or(0);
        let names = [QUEUES[0].name, QUEUES[1].name, QUEUES[2].name, DEAD];
        let Some(name) = names.iter().min_by_key(least) else { return SEC };
        let (lease, wait) = (Some(Duration::from_secs(3)), Duration::from_millis(500));
        let command = Command::Receive { queue: queue(name), max: 20, wait, lease };
        self.invoke(at, command, Vec::new(), None);
        0
    }

    // ---- requests

    fn invoke(&mut self, at: usize, command: Command, messages: Vec<u64>, wait: Option<Duration>) {
        let wait =
            wait.unwrap_or_else(|| Duration::from_millis(*self.rng.pick(&[0, 300, 1_000, 1_000, 3_000])));
        self.clients.next_op += 1;
        let id = self.clients.next_op;
        let node = self.clients.all[at].believes;
        self.clients.all[at].busy = Some(id);
        self.trace.line(self.now, || {
            format!("client-{at} -> node-{node}: op {id} {}", crate::trace::say::command(&command))
        });
        let receive_wait = if let Command::Receive { wait, .. } = &command { *wait } else { Duration::ZERO };
        let patience = match self.rng.one_in(8) {
            true => self.rng.range(10 * MS, SEC),
            false => (wait + receive_wait).as_micros() as u64 + self.rng.range(1_500 * MS, 3_000 * MS),
        };
        let op = Op { id, client: at, node, command, wait, invoked: self.now, messages };
        self.clients.open.insert(id, op);
        self.send_once(End::Clients, End::Node(node), Happening::AtNode(node, ToNode::Request { op: id }));
        self.after(patience, Happening::ClientTimeout { op: id });
    }

    pub fn client_timeout(&mut self, id: u64) {
        let Some(op) = self.clients.open.get(&id) else { return };
        let node = op.node;
        // The node notices the closed connection, or does not.
        if self.rng.percent(80) {
            self.send_once(End::Clients, End::Node(node), Happening::AtNode(node, ToNode::Cancel { op: id }));
        }
        self.trace.line(self.now, || format!("op {id}: its client gives up"));
        self.finish(id, None);
    }

    /// The connections of a node that died.
    pub fn fail_open_ops(&mut self, node: usize) {
        let ids: Vec<u64> = self.clients.open.values().filter(|op| op.node == node).map(|op| op.id).collect();
        for id in ids {
            if self.rng.percent(80) {
                self.send_once(End::Node(node), End::Clients, Happening::AtClient { op: id, reply: None });
            }
        }
    }

    pub fn at_client(&mut self, id: u64, reply: Option<Reply>) {
        match self.clients.open.get(&id) {
            Some(_) => self.finish(id, reply),
            None => {
                // The client is gone. What it should have received may be handed back.
                if let Some(Reply::Received { messages }) = reply
                    && let Some(node) = self.oracle.node_of(id)
                    && self.rng.percent(50)
                {
                    let tokens = messages
                        .iter()
                        .filter_map(|message| message.lease.as_ref())
                        .map(|l| l.token)
                        .collect();
                    self.send_once(
                        End::Clients,
                        End::Node(node),
                        Happening::AtNode(node, ToNode::HandBack { tokens }),
                    );
                }
            }
        }
    }

    fn finish(&mut self, id: u64, reply: Option<Reply>) {
        let Some(op) = self.clients.open.remove(&id) else { return };
        let at = op.client;
        let nodes = self.nodes.len();
        let other = self.rng.index(nodes);
        let client = &mut self.clients.all[at];
        client.busy = None;
        let refused = match &reply {
            None => true,
            Some(Reply::Failed(failure)) => failure.code.http_status() >= 500,
            Some(_) => false,
        };
        if refused {
            client.believes = other;
        }
        let now = self.now;
        match (&op.command, &reply) {
            (Command::PutQueue { .. }, Some(Reply::QueuePut { .. })) => {
                client.queues_made += 1;
                self.clients.last_write = Some(now);
            }
            (Command::Send { .. }, Some(Reply::Sent { .. })) => {
                client.doubt = None;
                self.clients.last_write = Some(now);
            }
            (Command::Send { messages, .. }, _) if messages[0].dedup_key.is_some() => {
                client.doubt = refused.then(|| op.messages[0]);
            }
            (Command::Receive { queue, .. }, Some(Reply::Received { messages })) => {
                let leases = messages.iter().filter_map(|message| message.lease.as_ref());
                client.held.extend(leases.map(|lease| (queue.clone(), lease.token, id)));
                self.clients.last_receive = Some(now);
                if client.kind == Kind::Drain {
                    let kinds = QUEUES.iter().map(|kind| kind.name).chain([DEAD]);
                    if let Some(name) = kinds.into_iter().find(|name| *name == queue.as_str()) {
                        let empty = self.clients.drained.entry(name).or_default();
                        *empty = if messages.is_empty() { *empty + 1 } else { 0 };
                    }
                }
            }
            // A dead-letter queue that never came to be.
            (Command::Receive { queue, .. }, Some(Reply::Failed(failure)))
                if client.kind == Kind::Drain
                    && failure.code.http_status() == 404
                    && queue.as_str() == DEAD =>
            {
                *self.clients.drained.entry(DEAD).or_default() += 1;
            }
            (Command::Settle { tokens, .. }, reply) => {
                let gone = |result: &SettleResult| match result {
                    SettleResult::Done => true,
                    SettleResult::Failed(failure) => failure.code.http_status() < 500,
                };
                let done: Vec<Token> = match reply {
                    Some(Reply::Settled { results, .. }) => tokens
                        .iter()
                        .zip(results)
                        .filter(|(_, result)| gone(result))
                        .map(|(token, _)| *token)
                        .collect(),
                    _ => Vec::new(),
                };
                if client.kind == Kind::Drain {
                    client.held.retain(|(_, token, _)| !done.contains(token));
                    if !matches!(reply, Some(Reply::Settled { .. })) && client.held.len() > 1_000 {
                        client.held.clear();
                    }
                } else if self.rng.percent(50) {
                    // The same settle with the same token is safe to repeat; another one must not be taken for it.
                    let open = tokens.iter().filter(|token| !done.contains(token));
                    let queue = settle_queue(&op.command);
                    client.held.extend(open.map(|token| (queue.clone(), *token, id)));
                }
            }
            _ => {}
        }
        self.after(0, Happening::ClientTurn(at));
    }
}

fn settle_queue(command: &Command) -> QueueName {
    match command {
        Command::Settle { queue, .. } => queue.clone(),
        other => unreachable!("{other:?} settles nothing"),
    }
}
