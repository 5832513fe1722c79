//! What each kind of entry does to the applied state.
//!
//! Nothing here refuses: what is in the log was admitted by a primary, and every copy must come to the same
//! state. What an entry finds already gone it passes over. Work that may be large (contents of purged queues,
//! many messages due at once) is done in bounded portions, some with every entry.

use super::rows::{
    AppliedRow, Block, Counts, DedupRow, Extra, Moved, QueueRow, Slot, Status, decode_home, encode_home,
};
use super::{Queue, Rw, State};
use crate::command::{DeadLetter, DeadLetterReason};
use crate::config::QueueConfig;
use crate::entry::{Body, Entry, Fate, Message, SettleItem};
use crate::keys::{self, BLOCK_LEN, ContentNo, Msg, Order, QueueNo};
use crate::store::{Batch, Store, StoreError};
use std::collections::BTreeMap;
use types::{QueueName, Seq, WallMs, limits};

/// Messages that become ready, or are swept, with one entry at most.
const CHORES_PER_ENTRY: usize = 64;

/// What the application of an entry changed, for who keeps an order of it in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Ready {
        content: ContentNo,
        priority: u8,
        order: Order,
        msg: Msg,
    },
    Delayed {
        content: ContentNo,
        msg: Msg,
    },
    /// It left its content: settled, moved, deleted, expired.
    Gone {
        content: ContentNo,
        msg: Msg,
    },
    /// Purged or deleted, with all that was in it.
    ContentGone {
        content: ContentNo,
    },
    /// How many messages a purge removed.
    Purged {
        messages: u64,
    },
}

impl State {
    /// Applies the entry at `applied_end`. `trim_end`: this copy's own; homes before it go with their last
    /// message, later ones wait for the trim.
    pub fn apply(
        &mut self,
        entry: &Entry,
        body: &Body,
        trim_end: Seq,
        rw: &mut Rw<'_>,
        changes: &mut Vec<Change>,
    ) -> Result<(), StoreError> {
        let seq = entry.position.seq;
        assert_eq!(seq, self.row.applied_end, "entries are applied in order, each once"); // I10
        assert!(entry.log_time >= self.row.log_time, "log time goes back at {:?}", entry.position); // I19
        self.row.log_time = entry.log_time;
        let mut step = Step { rw, trim_end, changes, log_time: entry.log_time };
        match body {
            Body::Barrier | Body::Tick => {}
            Body::Send { queue, messages } => self.send(entry, *queue, messages, &mut step)?,
            Body::Settle { items } => {
                for (i, item) in items.iter().enumerate() {
                    self.settle(seq, i as u16, item, &mut step)?;
                }
            }
            Body::Delivered { items } => {
                for (msg, deliveries) in items {
                    if let Some(mut block) = step.rw.block(*msg)?
                        && block.slot(msg.index).is_some()
                    {
                        block.extra_mut(msg.index).deliveries = *deliveries;
                        step.put_block(*msg, &block);
                    }
                }
            }
            Body::QueuePut { name, config } => self.put_queue(name, config, entry.log_time, step.rw.batch),
            Body::QueueDelete { queue } => self.delete_queue(*queue, &mut step),
            Body::Purge { queue } => self.purge(*queue, &mut step),
            Body::Delete { msg } => {
                if let Some((mut block, content)) = step.live(*msg)? {
                    self.leave(*msg, &mut block, content, &mut step)?;
                    step.store_block(*msg, &block)?;
                }
            }
        }
        self.promote(&mut step)?;
        self.sweep(&mut step)?;
        self.expire_keys(&mut step)?;
        self.row.applied_end = seq.next();
        Ok(())
    }

    /// Writes what applying left in memory only. Once a step, after its last `apply`.
    pub fn flush(&mut self, batch: &mut Batch) {
        for no in std::mem::take(&mut self.dirty) {
            if let Some(queue) = self.queues.get(&no) {
                batch.put(keys::counts(no), queue.counts.encode());
            }
        }
        batch.put(keys::APPLIED, AppliedRow::encode(&self.row));
    }

    fn counts(&mut self, content: ContentNo) -> Option<&mut Counts> {
        let no = *self.contents.get(&content)?;
        self.dirty.insert(no);
        self.queues.get_mut(&no).map(|queue| &mut queue.counts)
    }

    fn send(
        &mut self,
        entry: &Entry,
        no: QueueNo,
        messages: &[Message],
        step: &mut Step<'_, '_>,
    ) -> Result<(), StoreError> {
        let Some(queue) = self.queues.get(&no) else { return Ok(()) };
        let (content, seq) = (queue.content, entry.position.seq);
        for (b, chunk) in messages.chunks(usize::from(BLOCK_LEN)).enumerate() {
            let mut block =
                Block { content, slots: Vec::with_capacity(chunk.len()), extras: BTreeMap::new() };
            let mut priorities = 0u16;
            for (i, message) in chunk.iter().enumerate() {
                let msg = Msg { seq, index: b as u16 * BLOCK_LEN + i as u16 };
                let delayed = message.due > entry.log_time;
                let status = if delayed { Status::Delayed } else { Status::Ready };
                let payload_len = message.payload.len() as u32;
                block.slots.push(Slot { status, priority: message.priority, payload_len });
                if delayed {
                    block.extra_mut(msg.index).due = message.due;
                    self.put_due(message.due, msg, step);
                    step.changes.push(Change::Delayed { content, msg });
                } else {
                    priorities |= 1 << message.priority;
                    let order = Order { seq, index: msg.index };
                    step.changes.push(Change::Ready { content, priority: message.priority, order, msg });
                }
                if let Some(dedup) = &message.dedup {
                    let row = DedupRow {
                        epoch: entry.position.epoch,
                        seq,
                        index: msg.index,
                        hash: dedup.hash,
                        expires: dedup.expires,
                    };
                    step.rw.batch.put(keys::dedup(no, &dedup.key), row.encode());
                    step.rw.batch.put(keys::dedup_expiry(dedup.expires, no, &dedup.key), Vec::new());
                    self.next_dedup_expiry =
                        Some(self.next_dedup_expiry.map_or(dedup.expires, |t| t.min(dedup.expires)));
                }
                let counts = self.counts(content).expect("the queue was found above");
                counts.totals.sent += 1;
                counts.bytes += u64::from(payload_len);
                *(if delayed { &mut counts.delayed } else { &mut counts.ready }) += 1;
            }
            let first = Msg { seq, index: b as u16 * BLOCK_LEN };
            for priority in (0..=limits::PRIORITY_MAX).filter(|p| priorities & 1 << p != 0) {
                let order = Order { seq, index: first.index };
                step.rw.batch.put(keys::ready(content, priority, order), Vec::new());
            }
            step.put_block(first, &block);
        }
        Ok(())
    }

    fn settle(
        &mut self,
        seq: Seq,
        item_no: u16,
        item: &SettleItem,
        step: &mut Step<'_, '_>,
    ) -> Result<(), StoreError> {
        let msg = item.msg;
        let Some((mut block, content)) = step.live(msg)? else { return Ok(()) };
        match &item.fate {
            Fate::Acked | Fate::Expired => {
                self.leave(msg, &mut block, content, step)?;
                if let Some(counts) = self.counts(content) {
                    let acked = item.fate == Fate::Acked;
                    *(if acked { &mut counts.totals.acked } else { &mut counts.totals.expired }) += 1;
                }
            }
            Fate::Returned { deliveries, due } => {
                block.extra_mut(msg.index).deliveries = *deliveries;
                self.place(msg, &mut block, content, *due, step)?;
            }
            Fate::DeadLettered { to, reason, detail, deliveries } => {
                let why = (*reason, detail.clone(), *deliveries);
                let order = Order { seq, index: item_no };
                self.dead_letter(msg, &mut block, content, (to, order), why, step)?;
            }
        }
        step.store_block(msg, &block)
    }

    /// The message leaves its content for good, its rows with it. The caller stores the block.
    fn leave(
        &mut self,
        msg: Msg,
        block: &mut Block,
        content: ContentNo,
        step: &mut Step<'_, '_>,
    ) -> Result<(), StoreError> {
        let slot = block.slots[Block::slot_of(msg.index)];
        self.unlist(msg, block, content, step);
        block.slots[Block::slot_of(msg.index)].status = Status::Gone;
        block.extras.remove(&(Block::slot_of(msg.index) as u8));
        if let Some(counts) = self.counts(content) {
            counts.bytes -= u64::from(slot.payload_len);
        }
        step.changes.push(Change::Gone { content, msg });
        Ok(())
    }

    /// Takes the message out of the ready or the due rows, and out of that count.
    fn unlist(&mut self, msg: Msg, block: &mut Block, content: ContentNo, step: &mut Step<'_, '_>) {
        let at = Block::slot_of(msg.index);
        let slot = block.slots[at];
        match slot.status {
            Status::Gone => {}
            Status::Delayed => {
                let due = block.extra(msg.index).map_or(WallMs(0), |extra| extra.due);
                step.rw.batch.delete(keys::due(due, msg));
                if let Some(counts) = self.counts(content) {
                    counts.delayed -= 1;
                }
            }
            Status::Ready => {
                block.slots[at].status = Status::Gone;
                let (order, last) = match block.moved(msg.index) {
                    Some(moved) => (moved.order, true),
                    None => (first_of_block(msg), !shares_row(block, slot.priority)),
                };
                if last {
                    step.rw.batch.delete(keys::ready(content, slot.priority, order));
                }
                block.slots[at].status = Status::Ready;
                if let Some(counts) = self.counts(content) {
                    counts.ready -= 1;
                }
            }
        }
    }

    /// Puts the message to its place in `content`: ready, or delayed until `due`.
    fn place(
        &mut self,
        msg: Msg,
        block: &mut Block,
        content: ContentNo,
        due: WallMs,
        step: &mut Step<'_, '_>,
    ) -> Result<(), StoreError> {
        self.unlist(msg, block, content, step);
        self.enlist(msg, block, content, due, step);
        Ok(())
    }

    fn enlist(
        &mut self,
        msg: Msg,
        block: &mut Block,
        content: ContentNo,
        due: WallMs,
        step: &mut Step<'_, '_>,
    ) {
        let at = Block::slot_of(msg.index);
        let priority = block.slots[at].priority;
        if due > step.log_time {
            block.slots[at].status = Status::Delayed;
            block.extra_mut(msg.index).due = due;
            self.put_due(due, msg, step);
            if let Some(counts) = self.counts(content) {
                counts.delayed += 1;
            }
            step.changes.push(Change::Delayed { content, msg });
            return;
        }
        block.slots[at].status = Status::Ready;
        if let Some(extra) = block.extras.get_mut(&(at as u8)) {
            extra.due = WallMs(0);
            if *extra == Extra::default() {
                block.extras.remove(&(at as u8));
            }
        }
        let order = match block.moved(msg.index) {
            Some(moved) => {
                let home = encode_home(msg.seq, msg.index);
                step.rw.batch.put(keys::ready(content, priority, moved.order), home);
                moved.order
            }
            None => {
                step.rw.batch.put(keys::ready(content, priority, first_of_block(msg)), Vec::new());
                Order { seq: msg.seq, index: msg.index }
            }
        };
        if let Some(counts) = self.counts(content) {
            counts.ready += 1;
        }
        step.changes.push(Change::Ready { content, priority, order, msg });
    }

    fn put_due(&mut self, due: WallMs, msg: Msg, step: &mut Step<'_, '_>) {
        step.rw.batch.put(keys::due(due, msg), Vec::new());
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
    }

    fn dead_letter(
        &mut self,
        msg: Msg,
        block: &mut Block,
        from: ContentNo,
        (to, order): (&QueueName, Order),
        (reason, detail, deliveries): (DeadLetterReason, Option<String>, u32),
        step: &mut Step<'_, '_>,
    ) -> Result<(), StoreError> {
        let Some((_, source)) = self.queue_of(from) else { return Ok(()) };
        let source_queue = source.name.clone();
        let source_config = source.config.clone();
        if self.queue_no(to).is_none() {
            // Limits of the plan never stop a dead letter.
            let config = QueueConfig {
                deliveries_max: None,
                dead_letter_queue: None,
                dedup_window: std::time::Duration::ZERO,
                paused_send: false,
                paused_receive: false,
                delay: std::time::Duration::ZERO,
                ..source_config
            };
            self.put_queue(to, &config, step.log_time, step.rw.batch);
        }
        let Some((_, target)) = self.named(to) else { return Ok(()) };
        let content = target.content;
        let payload_len = u64::from(block.slots[Block::slot_of(msg.index)].payload_len);
        self.unlist(msg, block, from, step);
        step.changes.push(Change::Gone { content: from, msg });
        if let Some(counts) = self.counts(from) {
            counts.bytes -= payload_len;
            counts.totals.dead_lettered += 1;
        }
        let why = DeadLetter { reason, detail, source_queue };
        *block.extra_mut(msg.index) = Extra {
            deliveries,
            due: WallMs(0),
            moved: Some(Moved { content, order, at: step.log_time, why }),
        };
        self.enlist(msg, block, content, WallMs(0), step);
        if let Some(counts) = self.counts(content) {
            counts.bytes += payload_len;
            counts.totals.sent += 1;
        }
        Ok(())
    }

    fn put_queue(&mut self, name: &QueueName, config: &QueueConfig, log_time: WallMs, batch: &mut Batch) {
        let no = match self.queue_no(name) {
            Some(no) => no,
            None => {
                let (no, content) = (QueueNo(self.row.next_queue), ContentNo(self.row.next_content));
                self.row.next_queue += 1;
                self.row.next_content += 1;
                self.names.insert(name.clone(), no);
                self.contents.insert(content, no);
                let counts = Counts::default();
                let queue =
                    Queue { name: name.clone(), content, created: log_time, config: config.clone(), counts };
                self.queues.insert(no, queue);
                no
            }
        };
        if let Some(queue) = self.queues.get_mut(&no) {
            queue.config = config.clone();
            let (content, created) = (queue.content, queue.created);
            batch.put(
                keys::queue(name.as_str()),
                QueueRow { no, content, created, config: config.clone() }.encode(),
            );
            self.dirty.insert(no);
        }
    }

    fn delete_queue(&mut self, no: QueueNo, step: &mut Step<'_, '_>) {
        let Some(queue) = self.queues.remove(&no) else { return };
        self.names.remove(&queue.name);
        self.drop_content(queue.content, step);
        step.rw.batch.delete(keys::queue(queue.name.as_str()));
        step.rw.batch.delete(keys::counts(no));
        let (from, to) = keys::dedup_queue(no);
        step.rw.batch.delete_range(from, to);
        self.dirty.remove(&no);
    }

    fn purge(&mut self, no: QueueNo, step: &mut Step<'_, '_>) {
        let content = ContentNo(self.row.next_content);
        let Some(queue) = self.queues.get_mut(&no) else { return };
        self.row.next_content += 1;
        let old = std::mem::replace(&mut queue.content, content);
        let messages = queue.counts.ready + queue.counts.delayed;
        queue.counts = Counts { totals: queue.counts.totals, ..Counts::default() };
        let row = QueueRow { no, content, created: queue.created, config: queue.config.clone() };
        step.rw.batch.put(keys::queue(queue.name.as_str()), row.encode());
        self.contents.insert(content, no);
        self.dirty.insert(no);
        self.drop_content(old, step);
        step.changes.push(Change::Purged { messages });
    }

    fn drop_content(&mut self, content: ContentNo, step: &mut Step<'_, '_>) {
        self.contents.remove(&content);
        self.to_sweep.insert(content, keys::ready_content(content).0);
        step.rw.batch.put(keys::sweep(content), Vec::new());
        step.changes.push(Change::ContentGone { content });
    }

    /// Delayed messages whose time has come become ready.
    fn promote(&mut self, step: &mut Step<'_, '_>) -> Result<(), StoreError> {
        if self.next_due.is_none_or(|due| due > step.log_time) {
            return Ok(());
        }
        let mut found = Vec::new();
        let until = keys::due_until(step.log_time);
        step.rw.read().scan(&keys::due_from(self.next_due), &until, &mut |key, _| {
            found.extend(keys::of_due(key));
            found.len() < CHORES_PER_ENTRY
        })?;
        for (_, msg) in found {
            let Some((mut block, content)) = step.live(msg)? else {
                return Err(crate::codec::corrupt("a due row without its message"));
            };
            if self.contents.contains_key(&content) {
                self.place(msg, &mut block, content, WallMs(0), step)?;
            } else {
                self.leave(msg, &mut block, content, step)?;
            }
            step.store_block(msg, &block)?;
        }
        self.look_for_due(&step.rw.read())
    }

    /// Removes rows of contents that no queue has any more.
    fn sweep(&mut self, step: &mut Step<'_, '_>) -> Result<(), StoreError> {
        let Some(mut first) = self.to_sweep.first_entry() else { return Ok(()) };
        let (content, from) = (*first.key(), std::mem::take(first.get_mut()));
        let (_, to) = keys::ready_content(content);
        let mut found = Vec::new();
        step.rw.read().scan(&from, &to, &mut |key, value| {
            found.push((key.to_vec(), value.to_vec()));
            found.len() < CHORES_PER_ENTRY
        })?;
        for (key, home) in &found {
            let Some((_, priority, order)) = keys::order_of_ready(key) else {
                return Err(crate::codec::corrupt("a ready row"));
            };
            let first = match home.is_empty() {
                true => Msg { seq: order.seq, index: order.index },
                false => decode_home(home)?,
            };
            if let Some(mut block) = step.rw.block(first)? {
                for index in messages_in_row(&block, first, (content, priority), home.is_empty()) {
                    self.leave(Msg { seq: first.seq, index }, &mut block, content, step)?;
                }
                step.store_block(first, &block)?;
            }
            step.rw.batch.delete(key.clone());
        }
        if let Some((last, _)) = found.last() {
            self.to_sweep.insert(content, last.clone());
        }
        if found.len() < CHORES_PER_ENTRY {
            self.to_sweep.remove(&content);
            step.rw.batch.delete(keys::sweep(content));
        }
        Ok(())
    }

    fn expire_keys(&mut self, step: &mut Step<'_, '_>) -> Result<(), StoreError> {
        if self.next_dedup_expiry.is_none_or(|at| at > step.log_time) {
            return Ok(());
        }
        let mut found = Vec::new();
        let until = keys::dedup_expired_until(step.log_time);
        step.rw.read().scan(&keys::dedup_expiry_from(self.next_dedup_expiry), &until, &mut |key, _| {
            found.push(key.to_vec());
            found.len() < limits::DEDUP_SWEEP_PER_ENTRY
        })?;
        for key in found {
            if let Some((no, dedup_key)) = keys::of_dedup_expiry(&key) {
                let row_key = keys::dedup(no, dedup_key);
                // The key may have been accepted anew since; that row is another one.
                if let Some(bytes) = step.rw.get(&row_key)?
                    && DedupRow::decode(&bytes)?.expires <= step.log_time
                {
                    step.rw.batch.delete(row_key);
                }
            }
            step.rw.batch.delete(key);
        }
        self.look_for_expiry(&step.rw.read())
    }
}

/// Messages that are listed by one ready row: those of a block that are ready in that content, or the one moved.
pub fn messages_in_row(
    block: &Block,
    first: Msg,
    (content, priority): (ContentNo, u8),
    whole_block: bool,
) -> Vec<u16> {
    if !whole_block {
        return vec![first.index];
    }
    let base = first.block() * BLOCK_LEN;
    (base..base + block.slots.len() as u16)
        .filter(|index| {
            block.slot(*index).is_some_and(|slot| slot.status == Status::Ready && slot.priority == priority)
                && block.moved(*index).is_none()
                && block.content == content
        })
        .collect()
}

fn first_of_block(msg: Msg) -> Order {
    Order { seq: msg.seq, index: msg.block() * BLOCK_LEN }
}

/// Whether another message of the block is listed by the block's ready row of this priority.
fn shares_row(block: &Block, priority: u8) -> bool {
    block.slots.iter().enumerate().any(|(at, slot)| {
        slot.status == Status::Ready
            && slot.priority == priority
            && block.extras.get(&(at as u8)).is_none_or(|extra| extra.moved.is_none())
    })
}

struct Step<'a, 'b> {
    rw: &'a mut Rw<'b>,
    trim_end: Seq,
    log_time: WallMs,
    changes: &'a mut Vec<Change>,
}

impl Step<'_, '_> {
    /// The message's block and content, if it is still there.
    fn live(&self, msg: Msg) -> Result<Option<(Block, ContentNo)>, StoreError> {
        Ok(self.rw.block(msg)?.filter(|block| block.slot(msg.index).is_some()).map(|block| {
            let content = block.content_of(msg.index);
            (block, content)
        }))
    }

    fn put_block(&mut self, msg: Msg, block: &Block) {
        self.rw.batch.put(keys::block_of(msg), block.encode());
    }

    /// Stores the block, or removes it with its last message, and the home with its last block. I22
    fn store_block(&mut self, msg: Msg, block: &Block) -> Result<(), StoreError> {
        if !block.is_gone() {
            self.put_block(msg, block);
            return Ok(());
        }
        self.rw.batch.delete(keys::block_of(msg));
        if msg.seq < self.trim_end {
            let mut others = false;
            let (from, to) = (keys::block(msg.seq, 0), keys::block(msg.seq.next(), 0));
            // A block of fewer than 64 that is the entry's first is its only one.
            if block.slots.len() == usize::from(BLOCK_LEN) || msg.block() > 0 {
                self.rw.read().scan(&from, &to, &mut |_, _| {
                    others = true;
                    false
                })?;
            }
            if !others {
                self.rw.batch.delete(keys::log(msg.seq));
            }
        }
        Ok(())
    }
}
