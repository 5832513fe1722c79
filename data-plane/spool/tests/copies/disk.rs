//! A disk of which a power cut takes what was not synced.

use spool::entry::Entry;
use spool::keys;
use spool::memstore::MemStore;
use spool::store::{Batch, Store};
use std::collections::VecDeque;
use types::{Position, Seq};

#[derive(Default)]
pub struct Disk {
    pub current: MemStore,
    pub synced: MemStore,
    pending: VecDeque<Batch>,
    synced_no: usize,
}

impl Disk {
    pub fn write(&mut self, batch: Batch) {
        self.current.apply(&batch);
        self.pending.push_back(batch);
    }

    /// Names all that was written so far.
    pub fn written_no(&self) -> usize {
        self.synced_no + self.pending.len()
    }

    pub fn sync(&mut self, upto: usize) {
        while self.synced_no < upto
            && let Some(batch) = self.pending.pop_front()
        {
            self.synced.apply(&batch);
            self.synced_no += 1;
        }
    }

    /// How many batches were lost.
    pub fn power_cut(&mut self, kept: usize) -> usize {
        self.sync(self.synced_no + kept);
        let lost = self.pending.len();
        self.pending.clear();
        self.current = self.synced.clone();
        lost
    }

    /// Whether a power cut now would leave this entry, or the state that came of it.
    pub fn holds(&self, position: Position) -> bool {
        match entry(&self.synced, position.seq) {
            Some(entry) => entry.position == position,
            None => position.seq < trim_end(&self.synced),
        }
    }
}

pub fn entry(store: &MemStore, seq: Seq) -> Option<Entry> {
    let bytes = store.get(&keys::log(seq)).expect("a store in memory can be read")?;
    Some(Entry::decode(bytes).expect("what was written can be read"))
}

pub fn trim_end(store: &MemStore) -> Seq {
    let row = store.get(keys::TRIM).expect("a store in memory can be read");
    let end = row.and_then(|row| row.get(1..9).and_then(|be| be.try_into().ok()));
    Seq(end.map_or(1, u64::from_be_bytes))
}
