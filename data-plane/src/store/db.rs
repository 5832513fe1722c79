//! A node's database: opening it, writing to it, syncing it.

use parking_lot::Mutex;
use rocksdb::{ColumnFamily, ErrorKind, WriteBatch, WriteOptions};
use spool::store::{Batch, Op};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

use super::copies::Copies;
use super::fatal::fatal_storage_error;
use super::keys::{self, BadValue, BootRecord, Column, DirRecord, SpoolNumber};
use super::options::Options;

const ROCKSDB: &str = "rocksdb";

/// A node's open data directory. One process at a time can have it: RocksDB's LOCK.
pub struct Db {
    pub(super) rocks: rocksdb::DB,
    pub(super) copies: Copies,
    /// Whether [`Db::reclaim_space`] has made every blob file eligible.
    pub(super) reclaiming: Mutex<bool>,
    pub(super) garbage_bytes_min: u64,
    dir: PathBuf,
    dir_id: Uuid,
    boot: Boot,
}

/// This start of the node on this directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boot {
    /// Grows with every start; durable before anyone hears of it.
    pub boot_no: u64,
    /// The last start was in this same run of the kernel: what was read may have been in its page cache alone,
    /// if the process before this one ended because a sync had failed. False where nobody knows.
    pub same_kernel: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data directory {path} cannot be used")]
    Directory { path: PathBuf, source: io::Error },
    #[error("the data directory {path} is in use by another process")]
    InUse { path: PathBuf },
    #[error("the database in {path} is damaged: its copies must be rebuilt from others")]
    Damaged { path: PathBuf, source: rocksdb::Error },
    #[error("the database holds data but not the node's own records: it was not made by this program")]
    Incomplete,
    #[error("the database cannot be read")]
    Rocks(#[from] rocksdb::Error),
    #[error("the database holds a record that cannot be understood")]
    Record(#[from] BadValue),
}

impl Db {
    /// Opens the data directory, creating it if it is not there, and counts this start.
    ///
    /// RocksDB's own write-ahead log is replayed into files that are synced before this returns, so what reads
    /// show from here on is on the disk, including what had not been synced when the last process died.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Db, OpenError> {
        let dir = path.as_ref().to_owned();
        create_dir(&dir).map_err(|source| OpenError::Directory { path: dir.clone(), source })?;
        let rocks =
            rocksdb::DB::open_cf_descriptors(&options.database()?, dir.join(ROCKSDB), options.columns()?)
                .map_err(|error| open_error(&dir, error))?;
        sync_dir(&dir).map_err(|source| OpenError::Directory { path: dir.clone(), source })?;
        let (dir_id, boot) = count_start(&rocks)?;
        let copies = Copies::read(&rocks)?;
        tracing::info!(path = %dir.display(), %dir_id, boot_no = boot.boot_no, "the database is open");
        Ok(Db {
            rocks,
            copies,
            reclaiming: Mutex::new(false),
            garbage_bytes_min: options.garbage_bytes_min,
            dir,
            dir_id,
            boot,
        })
    }

    /// Minted with the directory: an emptied or replaced one has another.
    pub fn dir_id(&self) -> Uuid {
        self.dir_id
    }

    pub fn boot(&self) -> Boot {
        self.boot
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes what several spools changed, all or nothing. Reads see it when this returns; it is durable after the
    /// next [`Db::sync`] that begins later. What a crash leaves is what some prefix of the writes made.
    pub fn write(&self, changes: &[(SpoolNumber, &Batch)]) {
        let mut batch = WriteBatch::with_capacity_bytes(size_of_changes(changes));
        let mut from = Vec::with_capacity(64);
        let mut to = Vec::with_capacity(64);
        let (log, state) = (self.column(Column::Log), self.column(Column::State));
        let handle = |column| if column == Column::Log { log } else { state };
        for (number, changed) in changes {
            assert!(*number != keys::NODE, "a spool's number is not the node's");
            for op in changed.ops() {
                match op {
                    Op::DeleteRange(begin, end) => {
                        for (column, begin, end) in keys::pieces(begin, end) {
                            set_full_key(&mut from, *number, begin);
                            set_full_key(&mut to, *number, end);
                            batch.delete_range_cf(handle(column), &from, &to);
                        }
                    }
                    Op::Put(key, value) => {
                        set_full_key(&mut from, *number, key);
                        batch.put_cf(handle(Column::of(key)), &from, value);
                    }
                    Op::Delete(key) => {
                        set_full_key(&mut from, *number, key);
                        batch.delete_cf(handle(Column::of(key)), &from);
                    }
                }
            }
        }
        if batch.is_empty() {
            return;
        }
        if let Err(error) = self.rocks.write(batch) {
            fatal_storage_error("writing", &error);
        }
    }

    /// Makes durable whatever was written before this call. Writers are not held up meanwhile: RocksDB takes the
    /// list of log files to sync under a mutex and lets go of it for the fdatasync itself
    /// (`DBImpl::SyncWalImpl`), and what they write belongs to the next sync.
    pub fn sync(&self) {
        if let Err(error) = self.rocks.flush_wal(true) {
            fatal_storage_error("syncing", &error);
        }
    }

    pub(super) fn write_synced(&self, batch: WriteBatch) {
        let mut options = WriteOptions::default();
        options.set_sync(true);
        if let Err(error) = self.rocks.write_opt(batch, &options) {
            fatal_storage_error("writing", &error);
        }
    }

    pub(super) fn column(&self, column: Column) -> &ColumnFamily {
        self.rocks.cf_handle(column.name()).expect("opened with every column family")
    }
}

fn set_full_key(full: &mut Vec<u8>, number: SpoolNumber, key: &[u8]) {
    full.clear();
    full.extend_from_slice(&number.0.to_be_bytes());
    full.extend_from_slice(key);
}

/// Roughly, and rather too much: a batch that outgrows its buffer is copied.
fn size_of_changes(changes: &[(SpoolNumber, &Batch)]) -> usize {
    const PER_OP: usize = 24;
    let size = |op| match op {
        Op::DeleteRange(from, to) => PER_OP + from.len() + to.len(),
        Op::Put(key, value) => PER_OP + key.len() + value.len(),
        Op::Delete(key) => PER_OP + key.len(),
    };
    64 + changes.iter().flat_map(|(_, batch)| batch.ops()).map(size).sum::<usize>()
}

/// Raises `boot_no`, durably; mints the directory's id if it has none yet.
fn count_start(rocks: &rocksdb::DB) -> Result<(Uuid, Boot), OpenError> {
    let state = rocks.cf_handle(Column::State.name()).ok_or(OpenError::Incomplete)?;
    let read = |key| rocks.get_cf(state, keys::full_key(keys::NODE, key));
    let last = read(keys::BOOT)?.map(|value| BootRecord::decode(&value)).transpose()?;
    let dir = match read(keys::DIR)?.map(|value| DirRecord::decode(&value)).transpose()? {
        Some(dir) if last.is_some() => dir,
        None if last.is_none() && holds_nothing(rocks)? => DirRecord { id: Uuid::new_v4() },
        _ => return Err(OpenError::Incomplete),
    };
    let kernel_boot_id = kernel_boot_id();
    let boot = Boot {
        boot_no: last.map_or(0, |last| last.boot_no) + 1,
        same_kernel: last
            .is_some_and(|last| last.kernel_boot_id == kernel_boot_id && !kernel_boot_id.is_nil()),
    };
    let mut batch = WriteBatch::default();
    batch.put_cf(state, keys::full_key(keys::NODE, keys::DIR), dir.encode());
    let record = BootRecord { boot_no: boot.boot_no, kernel_boot_id };
    batch.put_cf(state, keys::full_key(keys::NODE, keys::BOOT), record.encode());
    let mut synced = WriteOptions::default();
    synced.set_sync(true);
    rocks.write_opt(batch, &synced)?;
    Ok((dir.id, boot))
}

fn holds_nothing(rocks: &rocksdb::DB) -> Result<bool, OpenError> {
    for column in [Column::Log, Column::State] {
        let handle = rocks.cf_handle(column.name()).ok_or(OpenError::Incomplete)?;
        if rocks.iterator_cf(handle, rocksdb::IteratorMode::Start).next().transpose()?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn kernel_boot_id() -> Uuid {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().parse().unwrap_or(Uuid::nil())
}

fn create_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    // It holds the keys that tokens are made with, and messages: for nobody else to read.
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        _ => Ok(()),
    }
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn open_error(dir: &Path, error: rocksdb::Error) -> OpenError {
    let path = dir.to_owned();
    // RocksDB has one kind for all of these; both of its messages about the lock name the file.
    let about_lock = error.as_ref().contains("/LOCK");
    match error.kind() {
        ErrorKind::IOError if about_lock => OpenError::InUse { path },
        ErrorKind::Corruption => OpenError::Damaged { path, source: error },
        _ => OpenError::Rocks(error),
    }
}
