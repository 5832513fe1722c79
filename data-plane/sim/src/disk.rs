//! A disk: what was written, and what of it is there after the power was cut.
//!
//! Batches become visible whole, at once and in their order. A power cut keeps a prefix of them that contains
//! at least every synced one; a killed process loses nothing that it had written.

use bytes::Bytes;
use spool::store::{Batch, Key, Op, Store, StoreError};
use std::collections::{BTreeMap, VecDeque};

use crate::rng::Rng;

pub type Map = BTreeMap<Key, Bytes>;

#[derive(Debug, Default)]
pub struct Disk {
    current: Map,
    synced: Map,
    /// Written and not yet synced.
    pending: VecDeque<Batch>,
    /// Batches ever synced; with `pending`, ever written.
    synced_no: u64,
}

impl Disk {
    pub fn write(&mut self, batch: Batch) {
        apply(&mut self.current, &batch);
        self.pending.push_back(batch);
    }

    /// Names all that was written so far.
    pub fn written_no(&self) -> u64 {
        self.synced_no + self.pending.len() as u64
    }

    /// All up to there is durable. Calls `each` with every batch that becomes so.
    pub fn sync(&mut self, upto: u64, mut each: impl FnMut(&Batch)) {
        while self.synced_no < upto
            && let Some(batch) = self.pending.pop_front()
        {
            apply(&mut self.synced, &batch);
            self.synced_no += 1;
            each(&batch);
        }
    }

    /// How many batches were lost. Calls `each` with those that were not.
    pub fn power_cut(&mut self, rng: &mut Rng, each: impl FnMut(&Batch)) -> usize {
        let kept = rng.index(self.pending.len() + 1);
        self.sync(self.synced_no + kept as u64, each);
        let lost = self.pending.len();
        if lost > 0 {
            self.pending.clear();
            self.current = self.synced.clone();
        }
        lost
    }

    pub fn wipe(&mut self) {
        *self = Disk::default();
    }

    pub fn map(&self) -> &Map {
        &self.current
    }

    pub fn synced(&self) -> OnDisk<'_> {
        OnDisk(&self.synced)
    }
}

fn apply(map: &mut Map, batch: &Batch) {
    for op in batch.ops() {
        match op {
            Op::DeleteRange(from, to) => {
                let inside: Vec<Key> =
                    map.range(from.to_vec()..to.to_vec()).map(|(key, _)| key.clone()).collect();
                for key in inside {
                    map.remove(&key);
                }
            }
            Op::Put(key, value) => {
                map.insert(key.to_vec(), value.clone());
            }
            Op::Delete(key) => {
                map.remove(key);
            }
        }
    }
}

/// What a power cut now would leave at least.
pub struct OnDisk<'a>(&'a Map);

impl OnDisk<'_> {
    pub fn map(&self) -> &Map {
        self.0
    }
}

fn scan(map: &Map, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
    if from < to {
        for (key, value) in map.range(from.to_vec()..to.to_vec()) {
            if !visit(key, value) {
                break;
            }
        }
    }
}

fn last(map: &Map, from: &[u8], to: &[u8]) -> Option<(Key, Bytes)> {
    if from >= to {
        return None;
    }
    map.range(from.to_vec()..to.to_vec()).next_back().map(|(key, value)| (key.clone(), value.clone()))
}

impl Store for Disk {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.current.get(key).cloned())
    }
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        scan(&self.current, from, to, visit);
        Ok(())
    }
    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Key, Bytes)>, StoreError> {
        Ok(last(&self.current, from, to))
    }
}

impl Store for OnDisk<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.0.get(key).cloned())
    }
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        scan(self.0, from, to, visit);
        Ok(())
    }
    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Key, Bytes)>, StoreError> {
        Ok(last(self.0, from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_keeps_a_prefix_with_everything_synced() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::default();
            let mut synced = 0;
            for no in 0..20_u8 {
                let mut batch = Batch::default();
                batch.put(vec![no], vec![no]);
                disk.write(batch);
                if no == 9 {
                    synced = disk.written_no();
                    disk.sync(synced, |_| ());
                }
            }
            disk.power_cut(&mut rng, |_| ());
            let kept = disk.map().len();
            assert!(kept as u64 >= synced);
            assert!(disk.map().keys().enumerate().all(|(at, key)| key[0] as usize == at));
            assert_eq!(disk.map(), disk.synced().map());
        }
    }
}
