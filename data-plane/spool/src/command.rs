//! What a client asks of a spool, and what it is told. No wire format here: `data-plane/src/http` translates.

use bytes::Bytes;
use std::time::Duration;
use types::{ErrorCode, MessageId, Position, QueueName, WallMs};

use crate::config::{ConfigChange, QueueConfig, QueueInfo};
use crate::token::Token;

/// Names one request at the primary, from its arrival to its answer. Minted by the driver, never reused
/// within a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    // Writes: each becomes one log entry, and waits for its confirmation.
    Send {
        queue: QueueName,
        messages: Vec<NewMessage>,
    },
    Settle {
        queue: QueueName,
        settle: Settle,
        tokens: Vec<Token>,
    },
    PutQueue {
        queue: QueueName,
        change: ConfigChange,
        precondition: Precondition,
    },
    DeleteQueue {
        queue: QueueName,
        precondition: Precondition,
    },
    Purge {
        queue: QueueName,
    },
    DeleteMessage {
        queue: QueueName,
        id: MessageId,
    },
    // Answered from the applied state, under the right to serve.
    Receive {
        queue: QueueName,
        max: u32,
        wait: Duration,
        lease: Option<Duration>,
    },
    Extend {
        queue: QueueName,
        token: Token,
        lease: Duration,
    },
    GetQueue {
        queue: QueueName,
    },
    ListQueues {
        prefix: String,
        after: Option<QueueName>,
        limit: u32,
    },
    Browse {
        queue: QueueName,
        state: BrowseState,
        after: Option<BrowseCursor>,
        limit: u32,
    },
    GetMessage {
        queue: QueueName,
        id: MessageId,
    },
    /// Ordered after every write that was accepted before it.
    LookUpKey {
        queue: QueueName,
        key: Bytes,
    },
}

impl Command {
    pub fn is_write(&self) -> bool {
        matches!(
            self,
            Command::Send { .. }
                | Command::Settle { .. }
                | Command::PutQueue { .. }
                | Command::DeleteQueue { .. }
                | Command::Purge { .. }
                | Command::DeleteMessage { .. }
        )
    }

    /// Bytes that the request occupies while it waits, roughly.
    pub fn weight(&self) -> usize {
        match self {
            Command::Send { messages, .. } => messages.iter().map(NewMessage::weight).sum::<usize>() + 64,
            Command::Settle { tokens, .. } => tokens.len() * size_of::<Token>() + 64,
            _ => 512,
        }
    }
}

/// A message as its sender gives it. Within the limits already: the edge has checked each field.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NewMessage {
    pub payload: Bytes,
    /// Absent: the sender named none.
    pub content_type: Option<String>,
    pub attributes: Vec<(String, String)>,
    pub delay: Delay,
    pub ttl: Option<Duration>,
    pub dedup_key: Option<Bytes>,
    pub group: Option<String>,
    pub priority: Option<u8>,
    pub traceparent: Option<String>,
}

impl NewMessage {
    pub fn weight(&self) -> usize {
        self.payload.len()
            + self.attributes.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>()
            + self.dedup_key.as_ref().map_or(0, Bytes::len)
            + 96
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Delay {
    /// As the queue's `delaySeconds` says.
    #[default]
    QueueDefault,
    For(Duration),
    Until(WallMs),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settle {
    Ack,
    /// Back to its place, after this long, or after the queue's backoff.
    Nack {
        delay: Option<Duration>,
    },
    /// To the dead-letter queue.
    Reject {
        reason: Option<String>,
    },
}

/// `If-Match` and `If-None-Match: *`. An ETag covers the configuration alone.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Precondition {
    #[default]
    None,
    /// One of these ETags.
    Match(Vec<u64>),
    /// The queue exists, whatever its configuration (`If-Match: *`).
    Exists,
    /// The queue does not exist (`If-None-Match: *`).
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrowseState {
    Available,
    Leased,
    Delayed,
}

/// Where a browse goes on: after the message with this order in its listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowseCursor(pub Vec<u8>);

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Per message: its id and whether it was a duplicate. `written` is absent for a send that stored nothing.
    Sent {
        messages: Vec<Sent>,
        written: Written,
    },
    Settled {
        results: Vec<SettleResult>,
        written: Option<Written>,
    },
    QueuePut {
        info: Box<QueueInfo>,
        created: bool,
        written: Written,
    },
    Deleted {
        written: Written,
    },
    Purged {
        messages: u64,
        written: Written,
    },
    Received {
        messages: Vec<Delivered>,
    },
    Extended {
        lease_expires: WallMs,
    },
    Queue {
        info: Box<QueueInfo>,
    },
    Queues {
        queues: Vec<(QueueName, QueueConfig, u64)>,
        next: Option<QueueName>,
    },
    Messages {
        messages: Vec<Delivered>,
        next: Option<BrowseCursor>,
    },
    KeyLookedUp {
        id: Option<MessageId>,
    },
    Failed(Failure),
}

impl Reply {
    /// Of the leases that it hands out.
    pub fn tokens(&self) -> Vec<Token> {
        match self {
            Reply::Received { messages } => {
                messages.iter().filter_map(|message| Some(message.lease.as_ref()?.token)).collect()
            }
            _ => Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub id: MessageId,
    pub duplicate: bool,
}

/// What a 2xx to a write says of it: where it stands, and how many nodes hold it, synced. I7
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub position: Position,
    pub copies: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleResult {
    Done,
    Failed(Failure),
}

/// A message as its receiver gets it, or as a browse shows it (then without a lease).
#[derive(Clone, Debug, PartialEq)]
pub struct Delivered {
    pub id: MessageId,
    pub lease: Option<Lease>,
    pub payload: Bytes,
    pub content_type: Option<String>,
    pub attributes: Vec<(String, String)>,
    pub deliveries: u32,
    pub sent_at: WallMs,
    /// When a delayed message becomes available.
    pub available_at: Option<WallMs>,
    pub group: Option<String>,
    pub priority: u8,
    pub traceparent: Option<String>,
    pub dead_letter: Option<DeadLetter>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    pub token: Token,
    pub expires: WallMs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    pub reason: DeadLetterReason,
    pub detail: Option<String>,
    pub source_queue: QueueName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterReason {
    Expired,
    Nacked,
    Rejected,
}

/// A refusal: the code decides the status, the detail is for the person who reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: ErrorCode,
    pub detail: String,
    /// The field of the request that is to blame.
    pub field: Option<&'static str>,
    /// The item of a batch that is to blame.
    pub index: Option<usize>,
}

impl Failure {
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Failure {
        Failure { code, detail: detail.into(), field: None, index: None }
    }
    pub fn field(mut self, field: &'static str) -> Failure {
        self.field = Some(field);
        self
    }
    pub fn at(mut self, index: usize) -> Failure {
        self.index = Some(index);
        self
    }
}
