//! What the pure core needs of a disk: reads as a trait, writes as data.
//!
//! A key is relative to the spool and begins with one of the tags in [`crate::keys`]; a store puts its own
//! prefix before it. Everything that one step of the core changes is one [`Batch`], which a store makes
//! visible to reads at once, whole, and durable in the order of the batches: after a crash what is left is
//! what some prefix of them made, and at least all that were synced.

use bytes::Bytes;

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

/// One atomic change. Operations take effect in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub ops: Vec<Op>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Put(Key, Bytes),
    Delete(Key),
    /// From, to (exclusive).
    DeleteRange(Key, Key),
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
    pub fn put(&mut self, key: impl Into<Key>, value: impl Into<Bytes>) {
        self.ops.push(Op::Put(key.into(), value.into()));
    }
    pub fn delete(&mut self, key: impl Into<Key>) {
        self.ops.push(Op::Delete(key.into()));
    }
    pub fn delete_range(&mut self, from: impl Into<Key>, to: impl Into<Key>) {
        self.ops.push(Op::DeleteRange(from.into(), to.into()));
    }
}
