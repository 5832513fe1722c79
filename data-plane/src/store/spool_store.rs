//! One spool's part of the node's RocksDB, as the pure core reads it.

use bytes::Bytes;
use rocksdb::{DBRawIterator, ReadOptions};
use spool::store::{Key, Store, StoreError};
use std::sync::Arc;

use super::db::Db;
use super::keys::{self, Column, PREFIX_LEN, SpoolNumber};

/// Cheap to clone; keeps the database open. Sees every write as soon as [`Db::write`] has returned.
#[derive(Clone)]
pub struct SpoolStore {
    db: Arc<Db>,
    number: SpoolNumber,
}

impl Db {
    /// `number` is a copy's, from [`super::CopyFacts`].
    pub fn spool(self: &Arc<Db>, number: SpoolNumber) -> SpoolStore {
        SpoolStore { db: self.clone(), number }
    }
}

impl SpoolStore {
    /// Bounded on both sides, so that no iterator ever wanders into the tombstones of a neighbour.
    fn iterator(&self, column: Column, from: &[u8], to: &[u8]) -> DBRawIterator<'_> {
        let mut options = ReadOptions::default();
        options.set_iterate_range(keys::full_key(self.number, from)..keys::full_key(self.number, to));
        self.db.rocks.raw_iterator_cf_opt(self.db.column(column), options)
    }
}

impl Store for SpoolStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let column = self.db.column(Column::of(key));
        let value = with_full_key(self.number, key, |full| self.db.rocks.get_pinned_cf(column, full));
        Ok(value.map_err(cannot_read)?.map(|pinned| Bytes::copy_from_slice(&pinned)))
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        for (column, from, to) in keys::pieces(from, to) {
            let mut iterator = self.iterator(column, from, to);
            iterator.seek_to_first();
            while let Some((key, value)) = iterator.item() {
                if !visit(&key[PREFIX_LEN..], value) {
                    return Ok(());
                }
                iterator.next();
            }
            // An iterator that met an error is as silent as one at its end.
            iterator.status().map_err(cannot_read)?;
        }
        Ok(())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Key, Bytes)>, StoreError> {
        for (column, from, to) in keys::pieces(from, to).rev() {
            let mut iterator = self.iterator(column, from, to);
            iterator.seek_to_last();
            if let Some((key, value)) = iterator.item() {
                return Ok(Some((key[PREFIX_LEN..].to_vec(), Bytes::copy_from_slice(value))));
            }
            iterator.status().map_err(cannot_read)?;
        }
        Ok(None)
    }
}

/// Point reads are many and keys are short: no allocation for the usual one.
fn with_full_key<T>(number: SpoolNumber, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> T {
    let mut short = [0; 64];
    let len = PREFIX_LEN + key.len();
    match short.get_mut(..len) {
        Some(full) => {
            full[..PREFIX_LEN].copy_from_slice(&number.0.to_be_bytes());
            full[PREFIX_LEN..].copy_from_slice(key);
            read(full)
        }
        None => read(&keys::full_key(number, key)),
    }
}

fn cannot_read(error: rocksdb::Error) -> StoreError {
    StoreError(error.into_string())
}
