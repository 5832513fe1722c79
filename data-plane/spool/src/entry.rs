//! An entry of the log, and its bytes.
//!
//! ```text
//! version 1 | kind 1 | epoch 8 | seq 8 | log time 8 | body ... | crc32c 4 | chain 32
//! ```
//! `chain` hashes the chain before and everything up to the checksum, so equal chains mean equal logs; the
//! checksum is for the eye that reads one payload back. The body of a send has a table of where each message
//! ends, so that one of a thousand is found without looking at the others.

use crate::codec::{Reader, Writer, corrupt, read_config, write_config};
use crate::command::DeadLetterReason;
use crate::config::QueueConfig;
use crate::event::Chain;
use crate::keys::{Msg, QueueNo};
use crate::store::StoreError;
use bytes::Bytes;
use types::{Position, QueueName, SpoolId, WallMs};

const VERSION: u8 = 1;
const HEADER: usize = 1 + 1 + 8 + 8 + 8;
const TRAILER: usize = 4 + 32;

/// An encoded entry whose frame was checked.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    pub position: Position,
    pub log_time: WallMs,
    pub chain: Chain,
    pub bytes: Bytes,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({} kind {} {} bytes)", self.position, self.bytes[1], self.bytes.len())
    }
}

/// The chain before the first entry.
pub fn genesis(spool: SpoolId) -> Chain {
    *blake3::hash(spool.as_bytes()).as_bytes()
}

impl Entry {
    pub fn encode(position: Position, log_time: WallMs, body: &Body, before: &Chain) -> Entry {
        let mut out = Writer(Vec::with_capacity(HEADER + TRAILER + body.weight()));
        out.u8(VERSION).u8(body.kind()).u64(position.epoch.0).u64(position.seq.0).i64(log_time.0);
        body.write(&mut out);
        let crc = crc32c::crc32c(&out.0);
        out.u32(crc);
        let chain = chain_after(before, &out.0);
        out.raw(&chain);
        Entry { position, log_time, chain, bytes: out.finish() }
    }

    /// Checks the frame and the checksum, not the chain.
    pub fn decode(bytes: Bytes) -> Result<Entry, StoreError> {
        if bytes.len() < HEADER + TRAILER {
            return Err(corrupt("a log entry"));
        }
        let (framed, trailer) = bytes.split_at(bytes.len() - TRAILER);
        let mut trailer = Reader::new(trailer, "a log entry");
        if crc32c::crc32c(framed) != trailer.u32()? {
            return Err(corrupt("a log entry"));
        }
        let chain = trailer.array()?;
        let mut header = Reader::versioned(framed, VERSION, "a log entry")?;
        header.u8()?;
        let position = Position { epoch: header.epoch()?, seq: header.seq()? };
        let log_time = header.wall()?;
        Ok(Entry { position, log_time, chain, bytes })
    }

    /// Whether this entry, as it is, comes after an entry with the chain `before`. I5
    pub fn follows(&self, before: &Chain) -> bool {
        chain_after(before, &self.bytes[..self.bytes.len() - 32]) == self.chain
    }

    pub fn body(&self) -> Result<Body, StoreError> {
        Body::read(self.bytes[1], &mut Reader::new(self.body_bytes(), "a log entry"))
    }

    /// One message of a send, without decoding the others.
    pub fn message(&self, index: u16) -> Result<Message, StoreError> {
        let damaged = || corrupt("a message");
        if self.bytes[1] != KIND_SEND {
            return Err(damaged());
        }
        let mut reader = Reader::new(self.body_bytes(), "a message");
        reader.u32()?;
        let count = reader.u16()?;
        if index >= count {
            return Err(damaged());
        }
        let table = reader.raw(usize::from(count) * 4)?;
        let end_at = |i: usize| {
            let mut be = [0; 4];
            be.copy_from_slice(&table[i * 4..i * 4 + 4]);
            u32::from_be_bytes(be) as usize
        };
        let index = usize::from(index);
        let start = if index == 0 { 0 } else { end_at(index - 1) };
        let at = HEADER + 4 + 2 + table.len();
        let (from, to) = (at + start, at + end_at(index));
        if from > to || to > self.bytes.len() - TRAILER {
            return Err(damaged());
        }
        Message::read(self.bytes.slice(from..to))
    }

    fn body_bytes(&self) -> &[u8] {
        &self.bytes[HEADER..self.bytes.len() - TRAILER]
    }
}

fn chain_after(before: &Chain, bytes: &[u8]) -> Chain {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before).update(bytes);
    *hasher.finalize().as_bytes()
}

const KIND_BARRIER: u8 = 0;
const KIND_SEND: u8 = 1;
const KIND_SETTLE: u8 = 2;
const KIND_DELIVERED: u8 = 3;
const KIND_QUEUE_PUT: u8 = 4;
const KIND_QUEUE_DELETE: u8 = 5;
const KIND_PURGE: u8 = 6;
const KIND_DELETE: u8 = 7;
const KIND_TICK: u8 = 8;

#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Begins an epoch.
    Barrier,
    Send {
        queue: QueueNo,
        messages: Vec<Message>,
    },
    /// Acks, nacks and dead-letter moves: what becomes of each message.
    Settle {
        items: Vec<SettleItem>,
    },
    /// How often messages were delivered so far.
    Delivered {
        items: Vec<(Msg, u32)>,
    },
    QueuePut {
        name: QueueName,
        config: QueueConfig,
    },
    QueueDelete {
        queue: QueueNo,
    },
    Purge {
        queue: QueueNo,
    },
    Delete {
        msg: Msg,
    },
    /// Time passed: delayed messages become ready, expired keys and swept contents go.
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleItem {
    pub msg: Msg,
    pub fate: Fate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Acked,
    /// Back to its place, not before `due` (log time; zero: at once).
    Returned {
        deliveries: u32,
        due: WallMs,
    },
    /// To the end of a dead-letter queue, which is created if it is not there.
    DeadLettered {
        to: QueueName,
        reason: DeadLetterReason,
        detail: Option<String>,
        deliveries: u32,
    },
    /// Past its time to live or its queue's retention.
    Expired,
}

/// A message as the log keeps it: every time and default resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub priority: u8,
    /// Log time before which it is delayed; zero: not.
    pub due: WallMs,
    /// Log time from which on it is gone by its own time to live; zero: never.
    pub expires: WallMs,
    pub dedup: Option<Dedup>,
    pub content_type: Option<String>,
    pub group: Option<String>,
    pub traceparent: Option<String>,
    pub attributes: Vec<(String, String)>,
    pub payload: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dedup {
    pub key: Bytes,
    /// Of payload and content type.
    pub hash: [u8; 16],
    /// Log time.
    pub expires: WallMs,
}

/// What makes a payload "the same" under a dedup key.
pub fn payload_hash(payload: &[u8], content_type: Option<&str>) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    let kind = content_type.unwrap_or("\0");
    hasher.update(&(kind.len() as u64).to_be_bytes()).update(kind.as_bytes()).update(payload);
    let mut hash = [0; 16];
    hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    hash
}

impl Message {
    fn write(&self, out: &mut Writer) {
        fn text(out: &mut Writer, text: &str) {
            out.str(text);
        }
        out.u8(self.priority).i64(self.due.0).i64(self.expires.0);
        out.opt(self.dedup.as_ref(), |out, dedup| {
            out.bytes(&dedup.key).raw(&dedup.hash).i64(dedup.expires.0);
        });
        out.opt(self.content_type.as_deref(), text);
        out.opt(self.group.as_deref(), text);
        out.opt(self.traceparent.as_deref(), text);
        out.u8(self.attributes.len() as u8);
        for (name, value) in &self.attributes {
            out.str(name).str(value);
        }
        out.raw(&self.payload);
    }

    /// The payload is a slice of `bytes`, which it keeps alive.
    fn read(bytes: Bytes) -> Result<Message, StoreError> {
        let mut reader = Reader::new(&bytes, "a message");
        let text = |reader: &mut Reader<'_>| reader.str().map(str::to_owned);
        let priority = reader.u8()?;
        let (due, expires) = (reader.wall()?, reader.wall()?);
        let dedup = reader.opt(|reader| {
            Ok(Dedup {
                key: Bytes::copy_from_slice(reader.bytes()?),
                hash: reader.array()?,
                expires: reader.wall()?,
            })
        })?;
        let content_type = reader.opt(text)?;
        let group = reader.opt(text)?;
        let traceparent = reader.opt(text)?;
        let mut attributes = Vec::new();
        for _ in 0..reader.u8()? {
            attributes.push((text(&mut reader)?, text(&mut reader)?));
        }
        let payload = bytes.slice(bytes.len() - reader.rest_len()..);
        Ok(Message { priority, due, expires, dedup, content_type, group, traceparent, attributes, payload })
    }

    fn weight(&self) -> usize {
        96 + self.payload.len()
            + self.attributes.iter().map(|(k, v)| k.len() + v.len() + 8).sum::<usize>()
            + self.dedup.as_ref().map_or(0, |dedup| dedup.key.len())
    }
}

impl Body {
    fn kind(&self) -> u8 {
        match self {
            Body::Barrier => KIND_BARRIER,
            Body::Send { .. } => KIND_SEND,
            Body::Settle { .. } => KIND_SETTLE,
            Body::Delivered { .. } => KIND_DELIVERED,
            Body::QueuePut { .. } => KIND_QUEUE_PUT,
            Body::QueueDelete { .. } => KIND_QUEUE_DELETE,
            Body::Purge { .. } => KIND_PURGE,
            Body::Delete { .. } => KIND_DELETE,
            Body::Tick => KIND_TICK,
        }
    }

    fn weight(&self) -> usize {
        match self {
            Body::Send { messages, .. } => messages.iter().map(Message::weight).sum::<usize>() + 16,
            Body::Settle { items } => items.len() * 32 + 16,
            Body::Delivered { items } => items.len() * 16 + 16,
            _ => 256,
        }
    }

    fn write(&self, out: &mut Writer) {
        let msg = |out: &mut Writer, msg: &Msg| {
            out.u64(msg.seq.0).u16(msg.index);
        };
        match self {
            Body::Barrier | Body::Tick => {}
            Body::Send { queue, messages } => {
                out.u32(queue.0).u16(messages.len() as u16);
                let table = out.0.len();
                out.0.resize(table + messages.len() * 4, 0);
                let start = out.0.len();
                for (i, message) in messages.iter().enumerate() {
                    message.write(out);
                    let end = (out.0.len() - start) as u32;
                    out.0[table + i * 4..table + i * 4 + 4].copy_from_slice(&end.to_be_bytes());
                }
            }
            Body::Settle { items } => {
                out.u16(items.len() as u16);
                for item in items {
                    msg(out, &item.msg);
                    item.fate.write(out);
                }
            }
            Body::Delivered { items } => {
                out.u32(items.len() as u32);
                for (of, count) in items {
                    msg(out, of);
                    out.u32(*count);
                }
            }
            Body::QueuePut { name, config } => {
                out.str(name.as_str());
                write_config(out, config);
            }
            Body::QueueDelete { queue } | Body::Purge { queue } => {
                out.u32(queue.0);
            }
            Body::Delete { msg: of } => msg(out, of),
        }
    }

    fn read(kind: u8, reader: &mut Reader<'_>) -> Result<Body, StoreError> {
        let msg =
            |reader: &mut Reader<'_>| Ok::<_, StoreError>(Msg { seq: reader.seq()?, index: reader.u16()? });
        Ok(match kind {
            KIND_BARRIER => Body::Barrier,
            KIND_TICK => Body::Tick,
            KIND_SEND => {
                let queue = QueueNo(reader.u32()?);
                let count = usize::from(reader.u16()?);
                let mut ends = Vec::with_capacity(count);
                for _ in 0..count {
                    ends.push(reader.u32()? as usize);
                }
                let mut start = 0;
                let mut messages = Vec::with_capacity(count);
                for end in ends {
                    let len = end.checked_sub(start).ok_or_else(|| reader.corrupt())?;
                    messages.push(Message::read(Bytes::copy_from_slice(reader.raw(len)?))?);
                    start = end;
                }
                Body::Send { queue, messages }
            }
            KIND_SETTLE => {
                let count = reader.u16()?;
                let mut items = Vec::with_capacity(usize::from(count));
                for _ in 0..count {
                    items.push(SettleItem { msg: msg(reader)?, fate: Fate::read(reader)? });
                }
                Body::Settle { items }
            }
            KIND_DELIVERED => {
                let count = reader.u32()?;
                let mut items = Vec::new();
                for _ in 0..count {
                    items.push((msg(reader)?, reader.u32()?));
                }
                Body::Delivered { items }
            }
            KIND_QUEUE_PUT => Body::QueuePut { name: reader.queue_name()?, config: read_config(reader)? },
            KIND_QUEUE_DELETE => Body::QueueDelete { queue: QueueNo(reader.u32()?) },
            KIND_PURGE => Body::Purge { queue: QueueNo(reader.u32()?) },
            KIND_DELETE => Body::Delete { msg: msg(reader)? },
            _ => return Err(reader.corrupt()),
        })
    }
}

impl Fate {
    fn write(&self, out: &mut Writer) {
        match self {
            Fate::Acked => {
                out.u8(0);
            }
            Fate::Expired => {
                out.u8(3);
            }
            Fate::Returned { deliveries, due } => {
                out.u8(1).u32(*deliveries).i64(due.0);
            }
            Fate::DeadLettered { to, reason, detail, deliveries } => {
                out.u8(2).str(to.as_str()).u8(reason_byte(*reason)).u32(*deliveries);
                out.opt(detail.as_ref(), |out, detail| {
                    out.str(detail);
                });
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Fate, StoreError> {
        Ok(match reader.u8()? {
            0 => Fate::Acked,
            1 => Fate::Returned { deliveries: reader.u32()?, due: reader.wall()? },
            2 => {
                let to = reader.queue_name()?;
                let reason = reason_of(reader.u8()?).ok_or_else(|| reader.corrupt())?;
                let deliveries = reader.u32()?;
                let detail = reader.opt(|reader| reader.str().map(str::to_owned))?;
                Fate::DeadLettered { to, reason, detail, deliveries }
            }
            3 => Fate::Expired,
            _ => return Err(reader.corrupt()),
        })
    }
}

pub fn reason_byte(reason: DeadLetterReason) -> u8 {
    match reason {
        DeadLetterReason::Expired => 0,
        DeadLetterReason::Nacked => 1,
        DeadLetterReason::Rejected => 2,
    }
}

pub fn reason_of(byte: u8) -> Option<DeadLetterReason> {
    [DeadLetterReason::Expired, DeadLetterReason::Nacked, DeadLetterReason::Rejected]
        .into_iter()
        .find(|reason| reason_byte(*reason) == byte)
}

/// The first entry of an epoch is its barrier.
pub fn is_barrier(entry: &Entry) -> bool {
    entry.bytes[1] == KIND_BARRIER
}
