//! A copy's log: what is in memory of it (its ends, its epochs, its recent entries), and its rows.
//!
//! From `trim_end` on it is contiguous; before that only the homes of live messages are left. Ends are
//! exclusive: `trim_end <= applied_end <= commit_end <= durable_end <= end`.

use crate::codec::{Reader, Writer, corrupt};
use crate::entry::{Entry, genesis};
use crate::event::Chain;
use crate::keys;
use crate::store::{Batch, Store, StoreError};
use bytes::Bytes;
use std::collections::VecDeque;
use types::{CopyId, Epoch, Position, Seq, SpoolId, limits};

const VERSION: u8 = 1;

/// Who this copy is and what it refuses. Durable before anything that depends on it is said. I2
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub spool: SpoolId,
    pub copy: CopyId,
    pub lineage: u64,
    /// The highest epoch sealed or followed.
    pub sealed: Epoch,
}

impl Meta {
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::version(VERSION);
        out.raw(self.spool.as_bytes()).raw(self.copy.as_bytes()).u64(self.lineage).u64(self.sealed.0).finish()
    }
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut reader = Reader::versioned(bytes, VERSION, "the copy's meta row")?;
        let meta = Meta {
            spool: reader.spool_id()?,
            copy: reader.copy_id()?,
            lineage: reader.u64()?,
            sealed: reader.epoch()?,
        };
        reader.end().map(|()| meta)
    }
}

#[derive(Debug)]
pub struct Log {
    end: Seq,
    end_chain: Chain,
    durable_end: Seq,
    trim_end: Seq,
    trim_chain: Chain,
    /// Where each epoch begins, in order.
    epochs: Vec<(Epoch, Seq)>,
    /// The most recent entries, in order up to `end`.
    tail: VecDeque<Entry>,
    tail_bytes: usize,
}

impl Log {
    pub fn open(spool: SpoolId, store: &dyn Store) -> Result<Log, StoreError> {
        let (mut trim_end, mut trim_chain) = (Seq(1), genesis(spool));
        if let Some(bytes) = store.get(keys::TRIM)? {
            let mut reader = Reader::versioned(&bytes, VERSION, "the trim row")?;
            (trim_end, trim_chain) = (reader.seq()?, reader.array()?);
        }
        let mut epochs = Vec::new();
        store.scan(&[keys::EPOCH], &[keys::EPOCH + 1], &mut |key, value| {
            let number = |be: &[u8]| be.try_into().ok().map(u64::from_be_bytes);
            epochs.extend(number(&key[1..]).zip(number(value)).map(|(e, s)| (Epoch(e), Seq(s))));
            true
        })?;
        let (mut end, mut end_chain) = (trim_end, trim_chain);
        if let Some((_, bytes)) = store.last(&keys::log(trim_end), &keys::log_end())? {
            let last = Entry::decode(bytes)?;
            (end, end_chain) = (last.position.seq.next(), last.chain);
        }
        Ok(Log {
            end,
            end_chain,
            durable_end: end,
            trim_end,
            trim_chain,
            epochs,
            tail: VecDeque::new(),
            tail_bytes: 0,
        })
    }

    pub fn end(&self) -> Seq {
        self.end
    }
    pub fn end_chain(&self) -> &Chain {
        &self.end_chain
    }
    pub fn durable_end(&self) -> Seq {
        self.durable_end
    }
    pub fn trim_end(&self) -> Seq {
        self.trim_end
    }
    pub fn epochs(&self) -> &[(Epoch, Seq)] {
        &self.epochs
    }

    /// Of the last entry; zero if there is none.
    pub fn last(&self) -> Position {
        Position { epoch: self.epoch_at(self.end.prev()), seq: self.end.prev() }
    }

    /// The epoch of the entry at `seq`; zero before the first.
    pub fn epoch_at(&self, seq: Seq) -> Epoch {
        self.epochs.iter().rev().find(|(_, start)| *start <= seq && seq.0 > 0).map_or(Epoch(0), |(e, _)| *e)
    }

    pub fn append(&mut self, entry: Entry, batch: &mut Batch) {
        assert_eq!(entry.position.seq, self.end, "the log is contiguous"); // I5
        let last = self.epochs.last().map_or(Epoch(0), |(epoch, _)| *epoch);
        assert!(entry.position.epoch >= last, "epochs do not decrease along the log"); // I5
        if entry.position.epoch > last {
            self.epochs.push((entry.position.epoch, self.end));
            batch.put(keys::epoch(entry.position.epoch), self.end.0.to_be_bytes().to_vec());
        }
        batch.put(keys::log(self.end), entry.bytes.clone());
        self.end = self.end.next();
        self.end_chain = entry.chain;
        self.tail_bytes += entry.bytes.len();
        self.tail.push_back(entry);
        while self.tail_bytes > limits::TAIL_BYTES_MAX && self.tail.len() > 1 {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(first) = self.tail.pop_front() {
            self.tail_bytes -= first.bytes.len();
        }
    }

    /// Removes `from..end`. The caller has made sure that nothing of it is committed or applied.
    pub fn cut(&mut self, from: Seq, chain: Chain, batch: &mut Batch) {
        assert!(from >= self.trim_end && from < self.end, "cut at {from:?} of {:?}", self.end);
        while self.tail.back().is_some_and(|entry| entry.position.seq >= from) {
            if let Some(last) = self.tail.pop_back() {
                self.tail_bytes -= last.bytes.len();
            }
        }
        batch.delete_range(keys::log(from), keys::log(self.end));
        while let Some((epoch, start)) = self.epochs.last().copied()
            && start >= from
        {
            self.epochs.pop();
            batch.delete(keys::epoch(epoch));
        }
        self.end = from;
        self.end_chain = chain;
        self.durable_end = self.durable_end.min(from);
    }

    pub fn synced(&mut self, end: Seq) {
        self.durable_end = self.durable_end.max(end.min(self.end));
    }

    /// An entry at or after `trim_end`, or the home of a live message.
    pub fn entry(&self, seq: Seq, store: &dyn Store) -> Result<Entry, StoreError> {
        if let Some(entry) = self.recent(seq) {
            return Ok(entry.clone());
        }
        let bytes = store.get(&keys::log(seq))?.ok_or_else(|| corrupt("the log (an entry is missing)"))?;
        let entry = Entry::decode(bytes)?;
        if entry.position.seq == seq { Ok(entry) } else { Err(corrupt("a log entry's place")) }
    }

    fn recent(&self, seq: Seq) -> Option<&Entry> {
        let first = self.tail.front()?.position.seq;
        let at = seq.0.checked_sub(first.0)?;
        self.tail.get(usize::try_from(at).ok()?)
    }

    /// The chain after the entry at `seq`, if this copy still knows it.
    pub fn chain_at(&self, seq: Seq, store: &dyn Store) -> Result<Option<Chain>, StoreError> {
        if seq.next() == self.end {
            return Ok(Some(self.end_chain));
        }
        if seq.next() == self.trim_end {
            return Ok(Some(self.trim_chain));
        }
        if seq < self.trim_end || seq >= self.end {
            return Ok(None);
        }
        self.entry(seq, store).map(|entry| Some(entry.chain))
    }

    /// Encoded entries from `from` on, within the limits of one Append.
    pub fn read(&self, from: Seq, store: &dyn Store) -> Result<Vec<Bytes>, StoreError> {
        let (mut entries, mut bytes, mut seq) = (Vec::new(), 0, from);
        while seq < self.end && entries.len() < limits::APPEND_ENTRIES_MAX {
            let entry = self.entry(seq, store)?;
            if bytes + entry.bytes.len() > limits::APPEND_BYTES_MAX && !entries.is_empty() {
                break;
            }
            bytes += entry.bytes.len();
            entries.push(entry.bytes);
            seq = seq.next();
        }
        Ok(entries)
    }

    /// Gives up contiguity before `to`: only homes of live messages stay. I22
    pub fn trim(&mut self, to: Seq, store: &dyn Store, batch: &mut Batch) -> Result<(), StoreError> {
        assert!(to <= self.end && to >= self.trim_end);
        let overlay = crate::store::Overlay { store, batch };
        let chain =
            self.chain_at(to.prev(), &overlay)?.ok_or_else(|| corrupt("the log before its trim point"))?;
        let mut homes = Vec::new();
        overlay.scan(&keys::block(self.trim_end, 0), &keys::block(to, 0), &mut |key, _| {
            let seq = keys::seq_of_block(key);
            if homes.last() != seq.as_ref() {
                homes.extend(seq);
            }
            true
        })?;
        let mut from = self.trim_end;
        for home in homes {
            remove_run(from, home, batch);
            from = home.next();
        }
        remove_run(from, to, batch);
        let mut row = Writer::version(VERSION);
        batch.put(keys::TRIM, row.u64(to.0).raw(&chain).finish());
        (self.trim_end, self.trim_chain) = (to, chain);
        Ok(())
    }
}

/// Short runs one by one: a range deletion costs every later read of the neighbourhood a little.
fn remove_run(from: Seq, to: Seq, batch: &mut Batch) {
    if to.0.saturating_sub(from.0) < 16 {
        for seq in from.0..to.0 {
            batch.delete(keys::log(Seq(seq)));
        }
    } else {
        batch.delete_range(keys::log(from), keys::log(to));
    }
}
