//! What the pure core needs of a disk: reads as a trait, writes as data.
//!
//! A key is relative to the spool and begins with one of the tags in [`crate::keys`]; a store puts its own
//! prefix before it. Everything that one step of the core changes is one [`Batch`], which a store makes
//! visible to reads at once, whole, and durable in the order of the batches: after a crash what is left is
//! what some prefix of them made, and at least all that were synced.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

pub type Key = Vec<u8>;

/// The disk could not say. Never "there is nothing": a copy that meets this is damaged until proven sound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store cannot be read: {0}")]
pub struct StoreError(pub String);

pub trait Store {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// Keys of `from..to` in order, as long as `visit` returns true.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError>;

    /// The last key of `from..to`, with its value.
    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Key, Bytes)>, StoreError>;
}

/// One atomic change, and what reads see of it before it is written. Several steps may gather in one batch, as long
/// as it is written before it is thrown away: a later write of a key replaces an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Deleted first, whatever the order in which they came: a write into an earlier range survives it, and a
    /// later range has removed what was written into it.
    ranges: Vec<(Key, Key)>,
    writes: BTreeMap<Key, Option<Bytes>>,
}

/// In the order in which a store has to do them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// From, to (exclusive).
    DeleteRange(&'a [u8], &'a [u8]),
    Put(&'a [u8], &'a Bytes),
    Delete(&'a [u8]),
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.writes.is_empty()
    }

    pub fn put(&mut self, key: impl Into<Key>, value: impl Into<Bytes>) {
        self.writes.insert(key.into(), Some(value.into()));
    }

    pub fn delete(&mut self, key: impl Into<Key>) {
        self.writes.insert(key.into(), None);
    }

    pub fn delete_range(&mut self, from: impl Into<Key>, to: impl Into<Key>) {
        let (from, to) = (from.into(), to.into());
        if from >= to {
            return;
        }
        let inside: Vec<Key> = self
            .writes
            .range::<[u8], _>((Included(&from[..]), Excluded(&to[..])))
            .map(|(k, _)| k.clone())
            .collect();
        for key in inside {
            self.writes.remove(&key);
        }
        self.ranges.push((from, to));
    }

    pub fn ops(&self) -> impl Iterator<Item = Op<'_>> {
        let ranges = self.ranges.iter().map(|(from, to)| Op::DeleteRange(from, to));
        let writes = self.writes.iter().map(|(key, value)| match value {
            Some(value) => Op::Put(key, value),
            None => Op::Delete(key),
        });
        ranges.chain(writes)
    }

    /// `None`: this batch does not say. `Some(None)`: it deletes the key.
    pub fn get(&self, key: &[u8]) -> Option<Option<&Bytes>> {
        match self.writes.get(key) {
            Some(value) => Some(value.as_ref()),
            None if self.covers(key) => Some(None),
            None => None,
        }
    }

    fn covers(&self, key: &[u8]) -> bool {
        self.ranges.iter().any(|(from, to)| &from[..] <= key && key < &to[..])
    }
}

/// A store as it will be once a batch is written.
pub struct Overlay<'a> {
    pub store: &'a dyn Store,
    pub batch: &'a Batch,
}

impl Store for Overlay<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        match self.batch.get(key) {
            Some(value) => Ok(value.cloned()),
            None => self.store.get(key),
        }
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        if from >= to {
            return Ok(());
        }
        let mut written = self.batch.writes.range::<[u8], _>((Included(from), Excluded(to))).peekable();
        let mut go_on = true;
        self.store.scan(from, to, &mut |key, value| {
            while let Some((k, v)) = written.next_if(|(k, _)| &k[..] < key) {
                if let Some(v) = v {
                    go_on = visit(k, v);
                    if !go_on {
                        return false;
                    }
                }
            }
            go_on = match written.next_if(|(k, _)| &k[..] == key) {
                Some((k, Some(v))) => visit(k, v),
                Some((_, None)) => true,
                None if self.batch.covers(key) => true,
                None => visit(key, value),
            };
            go_on
        })?;
        while go_on && let Some((k, v)) = written.next() {
            if let Some(v) = v {
                go_on = visit(k, v);
            }
        }
        Ok(())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Key, Bytes)>, StoreError> {
        if from >= to {
            return Ok(None);
        }
        let mut to = to.to_vec();
        loop {
            let below = self.store.last(from, &to)?;
            let floor = below.as_ref().map_or(from, |(key, _)| &key[..]);
            let mut over = self.batch.writes.range::<[u8], _>((Included(floor), Excluded(&to[..]))).rev();
            if let Some((key, Some(value))) = over.find(|(_, value)| value.is_some()) {
                return Ok(Some((key.clone(), value.clone())));
            }
            match below {
                Some((key, value)) if self.batch.get(&key).is_none() => return Ok(Some((key, value))),
                // The store's last is deleted by the batch: look before it.
                Some((key, _)) => to = key,
                None => return Ok(None),
            }
        }
    }
}
