//! A store in memory, for tests and for the simulator: deterministic, and the model that the one on disk is
//! compared with. It knows nothing of syncs; what survives a crash is for the simulator to say.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

use crate::store::{Batch, Key, Op, Store, StoreError};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemStore {
    map: BTreeMap<Key, Bytes>,
}

impl MemStore {
    pub fn apply(&mut self, batch: &Batch) {
        for op in batch.ops() {
            match op {
                Op::DeleteRange(from, to) => self.delete_range(from, to),
                Op::Put(key, value) => {
                    self.map.insert(key.to_vec(), value.clone());
                }
                Op::Delete(key) => {
                    self.map.remove(key);
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Everything, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Bytes)> {
        self.map.iter().map(|(key, value)| (&key[..], value))
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) {
        let inside: Vec<Key> = self.range(from, to).map(|(key, _)| key.clone()).collect();
        for key in inside {
            self.map.remove(&key);
        }
    }

    fn range(&self, from: &[u8], to: &[u8]) -> impl DoubleEndedIterator<Item = (&Key, &Bytes)> {
        // A BTreeMap panics where the ends are the wrong way round.
        let to = to.max(from);
        self.map.range::<[u8], _>((Included(from), Excluded(to)))
    }
}

impl Store for MemStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.map.get(key).cloned())
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        for (key, value) in self.range(from, to) {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Key, Bytes)>, StoreError> {
        Ok(self.range(from, to).next_back().map(|(key, value)| (key.clone(), value.clone())))
    }
}
