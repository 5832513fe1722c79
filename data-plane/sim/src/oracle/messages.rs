//! Every message by its payload, which occurs once: who asked for it, what was answered, who got it, what became
//! of it.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{MessageId, Moment, Position, ProcessId};

use crate::clients::QueueKind;
use crate::clock::Time;
use crate::rng::Rng;

#[derive(Clone, Debug)]
pub struct Message {
    pub number: u64,
    pub client: usize,
    pub queue: &'static str,
    pub keyed: bool,
    pub priority: u8,
    /// How long after its acceptance it becomes available.
    pub delay: Duration,
    /// How long after its acceptance it is gone.
    pub ttl: Option<Duration>,
    pub group: Option<u8>,
    /// Requests to send it that reached a core.
    pub attempts: u32,
    /// Of these, ended with a certain "no effect".
    pub refused: u32,
    pub logged: Option<Position>,
    /// When the entry was made, in true time, which is never before the request arrived.
    pub arrived: Option<Time>,
    /// Its client went away before it was in the log: it must never get there.
    pub forgotten: bool,
    /// A 2xx.
    pub acked: Option<(MessageId, Time)>,
    /// As it was seen anywhere; there may be only one.
    pub id: Option<MessageId>,
    pub deliveries: u32,
    /// An ack's 2xx.
    pub settled: Option<Time>,
    /// An ack, purge or deletion whose outcome nobody knows.
    pub maybe_settled: bool,
    /// It was seen in the dead-letter queue, or its reject was confirmed.
    pub dead: bool,
    pub lease: Option<LeaseNo>,
    /// Settles of its current lease that the primary has not answered.
    pub open_settles: Vec<u64>,
}

/// Names a lease: the tenure's epoch and boot number, and its number there.
pub type LeaseNo = (u64, u64, u64);

#[derive(Clone, Debug)]
pub struct Lease {
    pub message: u64,
    pub process: ProcessId,
    pub node: usize,
    /// On its primary's clock.
    pub until: Moment,
    /// Given back, nacked or settled.
    pub over: bool,
    /// It was current when a settle of it arrived. That one may be in the log and keeps the lease open.
    pub asked: bool,
    /// A settle of it was confirmed.
    pub settled: bool,
}

#[derive(Default)]
pub struct Messages {
    all: Vec<Message>,
    pub leases: BTreeMap<LeaseNo, Lease>,
}

impl Messages {
    pub fn new_message(&mut self, client: usize, kind: QueueKind) -> u64 {
        let number = self.all.len() as u64;
        self.all.push(Message {
            number,
            client,
            queue: kind.name,
            keyed: kind.dedup,
            priority: types::limits::PRIORITY_DEFAULT,
            delay: Duration::ZERO,
            ttl: None,
            group: None,
            attempts: 0,
            refused: 0,
            logged: None,
            arrived: None,
            forgotten: false,
            acked: None,
            id: None,
            deliveries: 0,
            settled: None,
            maybe_settled: false,
            dead: false,
            lease: None,
            open_settles: Vec::new(),
        });
        number
    }

    pub fn payload(&self, number: u64) -> Bytes {
        Bytes::from(format!("message-{number}"))
    }

    pub fn number_of(&self, payload: &[u8]) -> u64 {
        let number = std::str::from_utf8(payload)
            .ok()
            .and_then(|text| text.strip_prefix("message-"))
            .and_then(|number| number.parse().ok())
            .filter(|number| *number < self.all.len() as u64);
        number.unwrap_or_else(|| panic!("H2: nobody sent {payload:?}"))
    }

    pub fn get(&self, number: u64) -> &Message {
        &self.all[number as usize]
    }

    pub fn get_mut(&mut self, number: u64) -> &mut Message {
        &mut self.all[number as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = &Message> {
        self.all.iter()
    }

    /// One of the last ids that were told to a sender.
    pub fn any_id(&self, rng: &mut Rng, queue: &str) -> Option<MessageId> {
        let told = self.all.iter().rev().filter(|m| m.queue == queue).filter_map(|m| m.acked);
        let ids: Vec<MessageId> = told.take(20).map(|(id, _)| id).collect();
        (!ids.is_empty()).then(|| *rng.pick(&ids))
    }

    pub fn number_of_id(&self, id: MessageId) -> Option<u64> {
        self.all.iter().find(|message| message.id == Some(id)).map(|message| message.number)
    }

    /// Of a queue, and of the dead-letter queue none.
    pub fn in_queue<'a>(&'a mut self, queue: &'a str) -> impl Iterator<Item = &'a mut Message> {
        self.all.iter_mut().filter(move |message| message.queue == queue)
    }

    /// May be gone without an ack, now or later.
    pub fn may_vanish(&self, number: u64) -> bool {
        let message = self.get(number);
        message.maybe_settled || message.ttl.is_some()
    }

    pub fn any_key(&self, rng: &mut Rng) -> Option<Bytes> {
        let keyed: Vec<u64> = self.all.iter().rev().filter(|m| m.keyed).take(20).map(|m| m.number).collect();
        (!keyed.is_empty()).then(|| Bytes::from(format!("key-{}", rng.pick(&keyed))))
    }

    /// An entry with this payload was made.
    pub fn on_logged(&mut self, payload: &[u8], position: Position) {
        let message = self.get_mut(self.number_of(payload));
        assert!(
            message.attempts > message.refused,
            "I17: message {} was refused and is in the log at {position}",
            message.number
        );
        assert!(
            !message.forgotten,
            "H14: message {} was forgotten with its client and is in the log",
            message.number
        );
        if !message.keyed {
            assert_eq!(
                message.logged, None,
                "H15: message {} is in the log again, at {position}",
                message.number
            );
        }
        message.logged = Some(position);
    }

    /// It was seen, by a 2xx, a delivery or a look-up, under this id.
    pub fn on_seen(&mut self, number: u64, id: MessageId, how: &str) {
        let message = self.get_mut(number);
        assert!(
            message.attempts > message.refused,
            "H2: message {number} was never sent, or refused: {how} {id}"
        );
        let known = *message.id.get_or_insert(id);
        assert_eq!(known, id, "H5: message {number} has two ids: {how}");
    }
}
