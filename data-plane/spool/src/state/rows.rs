//! The values of the applied state, and their bytes. Each begins with its version.

use crate::codec::{Reader, Writer, read_config, write_config};
use crate::command::{DeadLetter, DeadLetterReason};
use crate::config::{QueueConfig, Totals};
use crate::entry::{reason_byte, reason_of};
use crate::keys::{BLOCK_LEN, ContentNo, Order, QueueNo};
use crate::store::StoreError;
use bytes::Bytes;
use std::collections::BTreeMap;
use types::{Epoch, Seq, WallMs};

const VERSION: u8 = 1;

/// How far the log is applied, and the counters that applying it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedRow {
    pub applied_end: Seq,
    /// Of the last entry applied; never goes back. I19
    pub log_time: WallMs,
    pub next_queue: u32,
    pub next_content: u32,
}

impl AppliedRow {
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::version(VERSION);
        out.u64(self.applied_end.0).i64(self.log_time.0).u32(self.next_queue).u32(self.next_content).finish()
    }
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut reader = Reader::versioned(bytes, VERSION, "the applied row")?;
        let row = AppliedRow {
            applied_end: reader.seq()?,
            log_time: reader.wall()?,
            next_queue: reader.u32()?,
            next_content: reader.u32()?,
        };
        reader.end().map(|()| row)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    pub no: QueueNo,
    pub content: ContentNo,
    pub created: WallMs,
    pub config: QueueConfig,
}

impl QueueRow {
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::version(VERSION);
        out.u32(self.no.0).u32(self.content.0).i64(self.created.0);
        write_config(&mut out, &self.config);
        out.finish()
    }
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut reader = Reader::versioned(bytes, VERSION, "a queue row")?;
        let row = QueueRow {
            no: QueueNo(reader.u32()?),
            content: ContentNo(reader.u32()?),
            created: reader.wall()?,
            config: read_config(&mut reader)?,
        };
        reader.end().map(|()| row)
    }
}

/// Exact, and kept by each change, so that a look never scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    pub ready: u64,
    pub delayed: u64,
    pub bytes: u64,
    pub totals: Totals,
}

impl Counts {
    pub fn encode(&self) -> Bytes {
        let totals = &self.totals;
        let mut out = Writer::version(VERSION);
        out.u64(self.ready).u64(self.delayed).u64(self.bytes);
        out.u64(totals.sent).u64(totals.acked).u64(totals.dead_lettered).u64(totals.expired).finish()
    }
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut reader = Reader::versioned(bytes, VERSION, "a counts row")?;
        let counts = Counts {
            ready: reader.u64()?,
            delayed: reader.u64()?,
            bytes: reader.u64()?,
            totals: Totals {
                sent: reader.u64()?,
                acked: reader.u64()?,
                dead_lettered: reader.u64()?,
                expired: reader.u64()?,
            },
        };
        reader.end().map(|()| counts)
    }
}

/// Up to 64 messages of one entry: where each of them stands. A message is in exactly one queue. I24
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What the entry sent to.
    pub content: ContentNo,
    pub slots: Vec<Slot>,
    /// What few messages have, by slot.
    pub extras: BTreeMap<u8, Extra>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub status: Status,
    pub priority: u8,
    pub payload_len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Gone,
    Ready,
    Delayed,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Extra {
    pub deliveries: u32,
    /// Of a delayed message.
    pub due: WallMs,
    pub moved: Option<Moved>,
}

/// It was dead-lettered: into which content, where it stands there, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub content: ContentNo,
    pub order: Order,
    pub at: WallMs,
    pub why: DeadLetter,
}

impl Block {
    pub fn slot_of(index: u16) -> usize {
        usize::from(index % BLOCK_LEN)
    }
    pub fn slot(&self, index: u16) -> Option<&Slot> {
        self.slots.get(Block::slot_of(index)).filter(|slot| slot.status != Status::Gone)
    }
    pub fn extra(&self, index: u16) -> Option<&Extra> {
        self.extras.get(&(Block::slot_of(index) as u8))
    }
    pub fn extra_mut(&mut self, index: u16) -> &mut Extra {
        self.extras.entry(Block::slot_of(index) as u8).or_default()
    }
    /// The content that a message is in now.
    pub fn content_of(&self, index: u16) -> ContentNo {
        self.moved(index).map_or(self.content, |moved| moved.content)
    }
    pub fn moved(&self, index: u16) -> Option<&Moved> {
        self.extra(index).and_then(|extra| extra.moved.as_ref())
    }
    pub fn deliveries(&self, index: u16) -> u32 {
        self.extra(index).map_or(0, |extra| extra.deliveries)
    }
    pub fn is_gone(&self) -> bool {
        self.slots.iter().all(|slot| slot.status == Status::Gone)
    }

    pub fn encode(&self) -> Bytes {
        let mut out = Writer(Vec::with_capacity(8 + self.slots.len() * 5));
        out.u8(VERSION).u32(self.content.0).u8(self.slots.len() as u8);
        for slot in &self.slots {
            let status = match slot.status {
                Status::Gone => 0,
                Status::Ready => 16,
                Status::Delayed => 32,
            };
            out.u8(status | slot.priority).u32(slot.payload_len);
        }
        out.u8(self.extras.len() as u8);
        for (slot, extra) in &self.extras {
            out.u8(*slot).u32(extra.deliveries).i64(extra.due.0);
            out.opt(extra.moved.as_ref(), |out, moved| {
                out.u32(moved.content.0).u64(moved.order.seq.0).u16(moved.order.index).i64(moved.at.0);
                out.u8(reason_byte(moved.why.reason)).str(moved.why.source_queue.as_str());
                out.opt(moved.why.detail.as_ref(), |out, detail| {
                    out.str(detail);
                });
            });
        }
        out.finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut reader = Reader::versioned(bytes, VERSION, "a block row")?;
        let content = ContentNo(reader.u32()?);
        let mut slots = Vec::new();
        for _ in 0..reader.u8()? {
            let byte = reader.u8()?;
            let status = match byte & !15 {
                0 => Status::Gone,
                16 => Status::Ready,
                32 => Status::Delayed,
                _ => return Err(reader.corrupt()),
            };
            slots.push(Slot { status, priority: byte & 15, payload_len: reader.u32()? });
        }
        let mut extras = BTreeMap::new();
        for _ in 0..reader.u8()? {
            let slot = reader.u8()?;
            let (deliveries, due) = (reader.u32()?, reader.wall()?);
            let moved = reader.opt(|reader| {
                let content = ContentNo(reader.u32()?);
                let order = Order { seq: reader.seq()?, index: reader.u16()? };
                let at = reader.wall()?;
                let reason: DeadLetterReason = reason_of(reader.u8()?).ok_or_else(|| reader.corrupt())?;
                let source_queue = reader.queue_name()?;
                let detail = reader.opt(|reader| reader.str().map(str::to_owned))?;
                Ok(Moved { content, order, at, why: DeadLetter { reason, detail, source_queue } })
            })?;
            extras.insert(slot, Extra { deliveries, due, moved });
        }
        reader.end().map(|()| Block { content, slots, extras })
    }
}

/// What a dedup key was first accepted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupRow {
    pub epoch: Epoch,
    pub seq: Seq,
    pub index: u16,
    pub hash: [u8; 16],
    /// Log time.
    pub expires: WallMs,
}

impl DedupRow {
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::version(VERSION);
        out.u64(self.epoch.0).u64(self.seq.0).u16(self.index).raw(&self.hash).i64(self.expires.0).finish()
    }
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut reader = Reader::versioned(bytes, VERSION, "a dedup row")?;
        let row = DedupRow {
            epoch: reader.epoch()?,
            seq: reader.seq()?,
            index: reader.u16()?,
            hash: reader.array()?,
            expires: reader.wall()?,
        };
        reader.end().map(|()| row)
    }
}

/// The home of a message that a ready row names, where it is not the row's own order.
pub fn encode_home(seq: Seq, index: u16) -> Bytes {
    Writer::default().u64(seq.0).u16(index).finish()
}
pub fn decode_home(bytes: &[u8]) -> Result<crate::keys::Msg, StoreError> {
    let mut reader = Reader::new(bytes, "a ready row");
    let msg = crate::keys::Msg { seq: reader.seq()?, index: reader.u16()? };
    reader.end().map(|()| msg)
}
