//! Clients: what they ask, and what of the answers must fit together, whoever gave them.

use bytes::Bytes;
use spool::command::{
    BrowseState, Command, Delay, Delivered, NewMessage, Precondition, Reply, RequestId, Settle, SettleResult,
    Written,
};
use spool::config::{ConfigChange, PlanBounds};
use spool::token::{Tenure, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{ErrorCode, MessageId, Moment, Position, QueueName};

use crate::event::{Ask, How};
use crate::facts::Facts;
use crate::node::Node;

/// `a` has a dedup window, short leases and few deliveries; `b` nothing; `c` comes and goes.
const QUEUES: [&str; 4] = ["a", "b", "c", "a.dead"];
const PLAN: PlanBounds =
    PlanBounds { queues_max: 10, message_bytes_max: 1_000, retention_max: Duration::from_secs(864_000) };

#[derive(Default)]
pub struct Clients {
    requests: u64,
    open: BTreeMap<RequestId, Open>,
    messages: Vec<Message>,
    /// Of each dedup key, the message and the variant that it stands for.
    keys: BTreeMap<u8, (MessageId, bool)>,
    by_id: BTreeMap<MessageId, usize>,
    /// The last one of each message.
    leases: BTreeMap<MessageId, Lease>,
    /// What was received, in order.
    received: Vec<(usize, Token, &'static str)>,
    deliveries: BTreeMap<MessageId, u32>,
    settled: BTreeSet<MessageId>,
    in_doubt: BTreeSet<MessageId>,
    asked: BTreeSet<(Tenure, u64, How)>,
    pub seen: Seen,
}

#[derive(Default, Debug)]
pub struct Seen {
    pub sent: u64,
    pub duplicates: u64,
    pub delivered: u64,
    pub redelivered: u64,
    pub settled: u64,
    pub refused: u64,
    pub doubts: u64,
}

struct Open {
    at: usize,
    ask: Asked,
}

enum Asked {
    /// From which number on, how many; none of queue `c` is looked for at the end.
    Send {
        first: usize,
        count: usize,
    },
    Keyed {
        key: u8,
        variant: bool,
    },
    Receive {
        queue: &'static str,
        lease: Duration,
    },
    /// The tokens, and whether each may still be settled so.
    Settle {
        how: How,
        tokens: Vec<(Token, bool)>,
    },
    Extend {
        token: Token,
        lease: Duration,
    },
    LookUp {
        key: u8,
    },
    Delete {
        id: MessageId,
    },
    Other,
}

#[derive(Default)]
struct Message {
    kept: bool,
    logged: Option<Position>,
    id: Option<MessageId>,
    confirmed: bool,
    /// Certainly not in the log, now or ever.
    refused: bool,
}

struct Lease {
    token: Token,
    until: Moment,
    over: bool,
}

fn name(name: &str) -> QueueName {
    name.parse().expect("a queue's name")
}

fn id_of(token: &Token, ids: &BTreeMap<MessageId, Lease>) -> Option<MessageId> {
    ids.iter().find(|(_, lease)| lease.token == *token).map(|(id, _)| *id)
}

impl Clients {
    pub fn queues() -> Vec<Command> {
        let put = |queue: &str| {
            let mut change = ConfigChange::nothing(true, PLAN);
            if queue == "a" {
                change.dedup_window = Some(Duration::from_secs(86_400));
                change.deliveries_max = Some(Some(3));
            }
            Command::PutQueue { queue: name(queue), change, precondition: Precondition::None }
        };
        ["a", "b", "c"].map(put).into()
    }

    fn token(&self, which: u16) -> Option<(usize, Token, &'static str)> {
        // Mostly one of the last.
        let recent = self.received.len().min(if which.is_multiple_of(4) { 1_000 } else { 6 });
        let at = usize::from(which).checked_rem(recent)?;
        self.received.get(self.received.len() - 1 - at).copied()
    }

    pub fn command(&mut self, ask: &Ask) -> Option<Command> {
        let queue = |at: u8| name(QUEUES[usize::from(at) % 4]);
        let ms = |ms: u16| Duration::from_millis(ms.into());
        Some(match *ask {
            Ask::Send { queue: at, count, delay_ms } => {
                let delay = if delay_ms == 0 { Delay::QueueDefault } else { Delay::For(ms(delay_ms)) };
                let first = self.messages.len();
                let payload = |i| Bytes::from(format!("m{}", first + usize::from(i)));
                let message = |i| NewMessage { payload: payload(i), delay, ..NewMessage::default() };
                Command::Send { queue: queue(at), messages: (0..count).map(message).collect() }
            }
            Ask::SendKeyed { key, variant } => {
                let payload = Bytes::from(format!("k{key}-{variant}"));
                let dedup_key = Some(Bytes::copy_from_slice(&[key]));
                let message = NewMessage { payload, dedup_key, ..NewMessage::default() };
                Command::Send { queue: name("a"), messages: vec![message] }
            }
            Ask::Receive { queue: at, max, wait_ms, lease_ms } => Command::Receive {
                queue: queue(at),
                max: max.into(),
                wait: ms(wait_ms),
                lease: Some(ms(lease_ms)),
            },
            Ask::Settle { how, which, count } => {
                let (_, first, queue) = self.token(which)?;
                let more = (1..u16::from(count)).filter_map(|i| self.token(which.wrapping_add(i)));
                let tokens = [first].into_iter().chain(more.map(|(_, token, _)| token)).collect();
                let settle = match how {
                    How::Ack => Settle::Ack,
                    How::Nack(delay) => Settle::Nack { delay: Some(ms(delay)) },
                    How::Reject => Settle::Reject { reason: None },
                };
                Command::Settle { queue: name(queue), settle, tokens }
            }
            Ask::Extend { which, lease_ms } => {
                let (_, token, queue) = self.token(which)?;
                Command::Extend { queue: name(queue), token, lease: ms(lease_ms) }
            }
            Ask::LookUpKey(key) => {
                Command::LookUpKey { queue: name("a"), key: Bytes::copy_from_slice(&[key]) }
            }
            Ask::Look(at) if at % 2 == 0 => Command::GetQueue { queue: queue(at) },
            Ask::Look(at) => {
                let state = BrowseState::Available;
                Command::Browse { queue: queue(at), state, after: None, limit: 50 }
            }
            Ask::DeleteMessage(which) => {
                let ids: Vec<&MessageId> = self.by_id.keys().collect();
                let id = **ids.get(usize::from(which).checked_rem(ids.len())?)?;
                Command::DeleteMessage { queue: name("b"), id }
            }
            Ask::Put => Clients::queues().pop()?,
            Ask::Purge => Command::Purge { queue: name("c") },
            Ask::DeleteQueue => Command::DeleteQueue { queue: name("c"), precondition: Precondition::None },
        })
    }

    pub fn on_request(&mut self, at: usize, command: &Command) -> RequestId {
        self.requests += 1;
        let ask = match command {
            Command::Send { queue, messages } => match &messages[0].dedup_key {
                Some(key) => Asked::Keyed { key: key[0], variant: messages[0].payload.ends_with(b"true") },
                None => {
                    let (first, kept) = (self.messages.len(), queue.as_str() != "c");
                    let new = || Message { kept, ..Message::default() };
                    self.messages.extend(messages.iter().map(|_| new()));
                    Asked::Send { first, count: messages.len() }
                }
            },
            Command::Receive { queue, lease, .. } => {
                let queue = QUEUES.iter().find(|name| **name == queue.as_str()).expect("one of the four");
                Asked::Receive { queue, lease: lease.unwrap_or_default() }
            }
            Command::Settle { settle, tokens, .. } => {
                let how = match settle {
                    Settle::Ack => How::Ack,
                    Settle::Nack { delay } => How::Nack(delay.unwrap_or_default().as_millis() as u16),
                    Settle::Reject { .. } => How::Reject,
                };
                let may = |token: &Token| {
                    let again = self.asked.contains(&(token.tenure, token.lease_no, how));
                    (*token, again || id_of(token, &self.leases).is_some())
                };
                let tokens: Vec<_> = tokens.iter().map(may).collect();
                self.asked.extend(tokens.iter().map(|(token, _)| (token.tenure, token.lease_no, how)));
                Asked::Settle { how, tokens }
            }
            Command::Extend { token, lease, .. } => Asked::Extend { token: *token, lease: *lease },
            Command::LookUpKey { key, .. } => Asked::LookUp { key: key[0] },
            Command::DeleteMessage { id, .. } => Asked::Delete { id: *id },
            _ => Asked::Other,
        };
        self.open.insert(RequestId(self.requests), Open { at, ask });
        RequestId(self.requests)
    }

    /// An entry with this message was made.
    pub fn on_logged(&mut self, payload: &[u8], position: Position) {
        let text = std::str::from_utf8(payload).expect("text");
        let Some(number) = text.strip_prefix('m').and_then(|number| number.parse::<usize>().ok()) else {
            return;
        };
        let message = &mut self.messages[number];
        assert!(!message.refused, "I17: m{number} was refused and is in the log at {position}");
        assert_eq!(message.logged, None, "I17: m{number} is in the log twice");
        message.logged = Some(position);
    }

    pub fn cancel(&mut self, pick: u16) -> Option<(usize, RequestId)> {
        let id = *self.open.keys().nth(usize::from(pick).checked_rem(self.open.len())?)?;
        let Open { at, ask } = self.open.remove(&id)?;
        if let Asked::Send { first, count } = ask {
            for message in &mut self.messages[first..first + count] {
                // What is not in the log with its client will not get there.
                message.refused = message.logged.is_none();
            }
        } else {
            self.doubt(ask);
        }
        Some((at, id))
    }

    pub fn hand_back(&mut self, pick: u16) -> Option<(usize, Token)> {
        let (at, token, _) = self.token(pick)?;
        // It may be given back or not; from here on either is right.
        let id = id_of(&token, &self.leases)?;
        self.leases.get_mut(&id)?.over = true;
        Some((at, token))
    }

    pub fn on_process_end(&mut self, at: usize) {
        let gone: Vec<RequestId> =
            self.open.iter().filter(|(_, open)| open.at == at).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(open) = self.open.remove(&id) {
                self.doubt(open.ask);
            }
        }
    }

    /// Nobody will say what became of it.
    fn doubt(&mut self, ask: Asked) {
        self.seen.doubts += 1;
        match ask {
            Asked::Settle { how, tokens } => {
                for (token, _) in tokens {
                    let Some(id) = id_of(&token, &self.leases) else { continue };
                    self.leases.get_mut(&id).expect("just found").over = true;
                    if how == How::Ack {
                        self.in_doubt.insert(id);
                    }
                }
            }
            Asked::Delete { id } => drop(self.in_doubt.insert(id)),
            _ => {}
        }
    }

    /// `newest`: no later epoch than this copy's was ever assigned.
    pub fn on_reply(
        &mut self,
        (at, now, newest): (usize, Moment, bool),
        request: RequestId,
        reply: &Reply,
        facts: &Facts,
        nodes: &[Node],
    ) {
        let Some(Open { ask, .. }) = self.open.remove(&request) else {
            panic!("H16: {request:?} is answered, and was before or had gone: {reply:?}")
        };
        match (ask, reply) {
            (ask, Reply::Failed(failure)) => self.on_failed(ask, failure.code),
            (Asked::Send { first, count }, Reply::Sent { messages, written }) => {
                check_written(*written, facts, nodes);
                for (number, sent) in (first..first + count).zip(messages) {
                    self.seen.sent += 1;
                    assert_eq!(written.position, Position { epoch: sent.id.epoch, seq: sent.id.seq }, "I7");
                    let message = &mut self.messages[number];
                    assert_eq!(message.logged, Some(written.position), "I7: m{number}");
                    (message.id, message.confirmed) = (Some(sent.id), true);
                    self.by_id.insert(sent.id, number);
                }
            }
            (Asked::Keyed { key, variant }, Reply::Sent { messages, written }) => {
                check_written(*written, facts, nodes);
                let id = messages[0].id;
                self.seen.duplicates += u64::from(messages[0].duplicate);
                let first = *self.keys.entry(key).or_insert((id, variant));
                assert_eq!(first, (id, variant), "I18: key {key} stands for two messages");
            }
            (Asked::LookUp { key }, Reply::KeyLookedUp { id }) => {
                assert!(newest, "I15: node-{at} looked a key up after a later epoch was assigned");
                match (id, self.keys.get(&key)) {
                    (None, known) => assert_eq!(known, None, "I18: key {key} is forgotten"),
                    (Some(id), Some((first, _))) => assert_eq!(id, first, "I18: key {key}"),
                    (Some(id), None) => {
                        assert!(facts.is_committed(Position { epoch: id.epoch, seq: id.seq }), "I16: {id}");
                    }
                }
            }
            (Asked::Receive { queue, lease }, Reply::Received { messages }) => {
                assert!(newest, "I15: node-{at} answered a receive after a later epoch was assigned");
                for message in messages {
                    self.on_delivered((at, now + lease, queue), now, message, facts);
                }
            }
            (Asked::Settle { how, tokens }, Reply::Settled { results, written }) => {
                if let Some(written) = written {
                    check_written(*written, facts, nodes);
                }
                for ((token, may), result) in tokens.into_iter().zip(results) {
                    if *result == SettleResult::Done {
                        assert!(may, "H9: {token:?} was settled, whose lease was superseded");
                        self.on_settled(how, &token);
                    }
                }
            }
            (Asked::Extend { token, lease }, Reply::Extended { .. }) => {
                assert!(newest, "I15: node-{at} extended a lease after a later epoch was assigned");
                let id = id_of(&token, &self.leases).expect("H9: a superseded lease was extended");
                self.leases.get_mut(&id).expect("just found").until = now + lease;
            }
            (Asked::Delete { id }, Reply::Deleted { written }) => {
                check_written(*written, facts, nodes);
                self.settled.insert(id);
            }
            (
                _,
                Reply::QueuePut { written, .. } | Reply::Deleted { written } | Reply::Purged { written, .. },
            ) => check_written(*written, facts, nodes),
            (_, Reply::Messages { messages, .. }) => {
                for message in messages {
                    let position = Position { epoch: message.id.epoch, seq: message.id.seq };
                    assert!(facts.is_committed(position), "H27: {position} is shown and not confirmed");
                    assert!(!self.settled.contains(&message.id), "H4: {} is settled and shown", message.id);
                }
                assert!(newest, "I15: node-{at} shows messages after a later epoch was assigned");
            }
            (_, _) => {}
        }
    }

    fn on_failed(&mut self, ask: Asked, code: ErrorCode) {
        if code == ErrorCode::OperationUnconfirmed {
            return self.doubt(ask);
        }
        self.seen.refused += 1;
        if let Asked::Send { first, count } = ask {
            for (at, message) in self.messages[first..first + count].iter_mut().enumerate() {
                let gone = code == ErrorCode::QueueNotFound;
                assert!(
                    gone || message.logged.is_none(),
                    "I17: m{} got {code:?} and is in the log",
                    first + at
                );
                message.refused = !gone;
            }
        }
    }

    fn on_delivered(
        &mut self,
        (at, until, queue): (usize, Moment, &'static str),
        now: Moment,
        got: &Delivered,
        facts: &Facts,
    ) {
        let position = Position { epoch: got.id.epoch, seq: got.id.seq };
        assert!(facts.is_committed(position), "I16: {position} is delivered and not committed");
        assert!(!self.settled.contains(&got.id), "H3: {} is delivered after its ack was confirmed", got.id);
        let token = got.lease.as_ref().expect("a receive gives leases").token;
        if let Some(before) = self.leases.get(&got.id).filter(|before| before.token.tenure == token.tenure) {
            let lives = !before.over && now < before.until;
            assert!(!lives, "I16: {} is leased until {:?} and delivered again", got.id, before.until);
            self.seen.redelivered += 1;
        }
        self.seen.delivered += 1;
        let deliveries = self.deliveries.entry(got.id).or_default();
        *deliveries += 1;
        assert!(got.deliveries <= *deliveries, "I24: {} counts {} deliveries", got.id, got.deliveries);
        let text = std::str::from_utf8(&got.payload).expect("text");
        if let Some(number) = text.strip_prefix('m').and_then(|number| number.parse::<usize>().ok()) {
            assert_eq!(
                self.messages[number].logged,
                Some(position),
                "H2: m{number} is delivered as {}",
                got.id
            );
            let known = *self.messages[number].id.get_or_insert(got.id);
            assert_eq!(known, got.id, "H5: m{number} has two ids");
            if queue == "b" {
                self.by_id.insert(got.id, number);
            }
        }
        self.leases.insert(got.id, Lease { token, until, over: false });
        self.received.push((at, token, queue));
    }

    fn on_settled(&mut self, how: How, token: &Token) {
        self.seen.settled += 1;
        let Some(id) = id_of(token, &self.leases) else { return };
        self.leases.get_mut(&id).expect("just found").over = true;
        if how == How::Ack {
            self.settled.insert(id);
        }
    }

    /// Everything is quiet. What was confirmed and not settled is there; what was settled is not. H1 H4
    pub fn at_end(&self, live: &BTreeSet<MessageId>) {
        for (number, message) in self.messages.iter().enumerate().filter(|(_, message)| message.kept) {
            let Some(id) = message.id.filter(|_| message.confirmed) else { continue };
            let may_be_gone = self.settled.contains(&id) || self.in_doubt.contains(&id);
            assert!(may_be_gone || live.contains(&id), "H1: m{number} was confirmed as {id} and is lost");
        }
        for id in &self.settled {
            assert!(!live.contains(id), "H4: {id} was settled and is still there");
        }
    }
}

/// A 2xx to a write: committed, and on at least as many disks as it says. I7
fn check_written(written: Written, facts: &Facts, nodes: &[Node]) {
    let Written { position, copies } = written;
    assert!(facts.is_committed(position), "I8: {position} is confirmed to its client and not committed");
    let held = nodes.iter().filter(|node| node.disk.holds(position)).count();
    let (n, k) = (usize::from(nodes[0].n), usize::from(nodes[0].k));
    assert!(held >= usize::from(copies), "I7: {position} is said to be on {copies} disks and is on {held}");
    assert!((k + 1..=n).contains(&usize::from(copies)), "I7: {copies} copies of {n}");
}
