//! How RocksDB is set up, and why so.
//!
//! **Durability.** Errors are sticky (`max_bgerror_resume_count=0`): the first failed write or sync ends the process.
//! (A background flush that finds the disk full is tried again by RocksDB once there is space; it starts a new file
//! from what the write-ahead log still has.) `PointInTime` recovery: what a start finds is a prefix of the writes,
//! whatever a power cut did to the pages after the last sync; `TolerateCorruptedTailRecords` would refuse to open
//! where pages reached the disk out of order, though nothing confirmed is lost. The price is that a record damaged
//! later ends the log silently, too; the watermark file (see [`super`]) is there to tell. A log file that cannot be
//! read at all is an error in this mode as well, a closed one that is missing or short is found by the manifest, and
//! a column family that is ahead of the log's end makes the open fail. Log files are used again (`recycle`):
//! overwriting allocated blocks saves fdatasync the file's metadata, which cost 0.37 ms against 0.24 ms on the
//! machine below; old records in a reused file carry the old file's number and are told apart by it.
//!
//! **Writing little.** Payloads go from the write-ahead log to a blob file and stay there. Blobs are collected out of
//! the oldest 5 % of the files only: of the default 25 % every compaction that passed by copied live blobs out,
//! which cost 1.1 bytes more for a byte of payload, and half the throughput, with half a million messages waiting.
//! What this leaves behind is [`super::keeper`]'s. Values from 128 bytes on are blobs: with 1,000 instead, entries of
//! 400 bytes were written 9 times over instead of 4.6 times. Leveled and universal compaction, and 4 or 8 files in
//! level 0, made no difference that could be measured.
//!
//! **Reading evenly.** Filters of 10 bits a key; index and filters are cut in pieces and live in the block cache, so
//! that memory does not grow with what is stored. A scan that meets 2,000 deleted keys in a memtable has it flushed,
//! and a file that is little else than deletions is compacted at once, so that tombstones do not wait in front of the
//! living. Range deletions in a memtable cost every read, so 512 of them flush it.
//!
//! **Memory**: at most three memtables of each column family, and the block cache: 176 MB in theory; 95 to 130 MB
//! resident were seen.
//!
//! **Measured** with `store-bench compare`: 2 cores, ext4 on a virtual disk, 1 KiB payloads, 4 spools, 10,000 messages
//! between a send and its settle; a send and its settle are a write and a sync each. Medians of nine rounds in turns
//! with a loop that appends the same bytes to a file and calls fdatasync. "Written" is what the process wrote for a
//! byte of payload, "device" what the kernel sent to the disk for it (whole pages, so that small syncs cost more; the
//! loop's is in brackets), CPU is for a message in microseconds, background work and making the load included.
//!
//! | messages a write | writes under way | messages/s | to the loop's | p50/p99 of a write ms | written | device      | CPU |
//! |-----------------:|-----------------:|-----------:|--------------:|----------------------:|--------:|------------:|----:|
//! |                1 |                1 |      1,400 |          0.92 |             0.33 / 1.0 |     3.1 | 11.1 (9.6)  | 360 |
//! |               16 |                1 |     13,400 |          0.89 |             0.44 / 2.4 |     2.1 |  2.6 (1.75) |  40 |
//! |               64 |                1 |     47,000 |          0.85 |             0.53 / 2.6 |     2.2 |  2.3 (1.35) |  18 |
//! |                1 |       16, syncer |     10,700 |           6.5 |             0.60 / 1.2 |     2.6 |  3.6 (9.6)  |  84 |
//! |               16 |       16, syncer |     88,000 |           4.3 |             1.06 / 4.9 |     2.1 |  2.2 (1.8)  |  17 |
//! |               64 |       16, syncer |    112,000 |           1.8 |             4.0 / 11   |     2.1 |  2.2 (1.35) |  14 |
//!
//! `store-bench flat`, the same with 64 messages a write: over ten million messages sent and settled, a list of 16
//! from the queue's head took 28 to 36 us (p99 94 to 146), an entry 9 to 12 us, an absent key 5 to 7 us, without
//! a trend, in 81 to 100 MB of memory and 170 MB of disk. With a million messages waiting: 60, 41 and 14 us, 2.8
//! bytes for a byte of payload, 127 MB. What is not flat is a scan that begins before the head: over the tombstones
//! that no compaction has met yet it took 2.4 ms, and 18 ms with a million waiting. A queue has to know its head.

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType, DBRecoveryMode,
    LogLevel,
};

use super::keys::Column;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What differs between machines. The default fits a node on a small one: below 200 MB of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// One memtable of log entries; up to three at a time while the disk is slower than the writers.
    pub log_memtable_bytes: usize,
    pub state_memtable_bytes: usize,
    /// Entries from this size on go to blob files.
    pub blob_bytes_min: u64,
    /// Less garbage than this in blob files is not worth more than RocksDB's own collection.
    pub garbage_bytes_min: u64,
    pub block_cache_bytes: usize,
    /// Log files that a start has to replay; beyond it the column family that holds them up is flushed.
    pub wal_bytes_max: u64,
    pub wal_files_recycled: usize,
    pub background_jobs: i32,
    pub open_files_max: i32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            log_memtable_bytes: 32 * MIB,
            state_memtable_bytes: 16 * MIB,
            blob_bytes_min: 128,
            garbage_bytes_min: 256 * MIB as u64,
            block_cache_bytes: 32 * MIB,
            wal_bytes_max: 128 * MIB as u64,
            wal_files_recycled: 3,
            background_jobs: 3,
            open_files_max: 512,
        }
    }
}

const OLDEST_SHARE: f64 = 0.05;
const GARBAGE_SHARE: f64 = 0.5;

/// Changes of the `log` column family's settings, see [`super::keeper`].
pub(super) const RECLAIM_FROM_ALL: [(&str, &str); 2] =
    [("blob_garbage_collection_age_cutoff", "1.0"), ("blob_garbage_collection_force_threshold", "0.2")];
pub(super) const RECLAIM_FROM_OLDEST: [(&str, &str); 2] =
    [("blob_garbage_collection_age_cutoff", "0.05"), ("blob_garbage_collection_force_threshold", "0.5")];

impl Options {
    pub(super) fn database(&self) -> Result<rocksdb::Options, rocksdb::Error> {
        // Through a string because no setter exists.
        let mut options =
            rocksdb::Options::default().get_options_from_string("max_bgerror_resume_count=0")?;
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_paranoid_checks(true);
        options.set_track_and_verify_wals_in_manifest(true);
        options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
        options.set_recycle_log_file_num(self.wal_files_recycled);
        options.set_max_total_wal_size(self.wal_bytes_max);
        options.set_use_fsync(false);
        // Flushes and compactions trickle to the disk instead of meeting a sync of the log all at once.
        options.set_bytes_per_sync(MIB as u64);
        options.set_max_background_jobs(self.background_jobs);
        options.set_max_open_files(self.open_files_max);
        options.set_keep_log_file_num(4);
        options.set_max_log_file_size(8 * MIB);
        options.set_log_level(LogLevel::Info);
        Ok(options)
    }

    pub(super) fn columns(&self) -> Result<Vec<ColumnFamilyDescriptor>, rocksdb::Error> {
        let cache = Cache::new_lru_cache(self.block_cache_bytes);
        Ok(vec![
            // RocksDB insists on it; nothing is ever in it.
            ColumnFamilyDescriptor::new("default", rocksdb::Options::default()),
            ColumnFamilyDescriptor::new(Column::Log.name(), self.log(&cache)?),
            ColumnFamilyDescriptor::new(Column::State.name(), self.state(&cache)?),
        ])
    }

    fn log(&self, cache: &Cache) -> Result<rocksdb::Options, rocksdb::Error> {
        let mut options = both(cache)?;
        options.set_write_buffer_size(self.log_memtable_bytes);
        options.set_enable_blob_files(true);
        options.set_min_blob_size(self.blob_bytes_min);
        options.set_blob_file_size(64 * MIB as u64);
        options.set_enable_blob_gc(true);
        options.set_blob_gc_age_cutoff(OLDEST_SHARE);
        options.set_blob_gc_force_threshold(GARBAGE_SHARE);
        Ok(options)
    }

    fn state(&self, cache: &Cache) -> Result<rocksdb::Options, rocksdb::Error> {
        let mut options = both(cache)?;
        options.set_write_buffer_size(self.state_memtable_bytes);
        Ok(options)
    }
}

fn both(cache: &Cache) -> Result<rocksdb::Options, rocksdb::Error> {
    // Through a string because no setter exists.
    let flushes = "memtable_max_range_deletions=512;memtable_op_scan_flush_trigger=2000";
    let mut options = rocksdb::Options::default().get_options_from_string(flushes)?;
    options.set_max_write_buffer_number(3);
    options.set_target_file_size_base(16 * MIB as u64);
    options.set_max_bytes_for_level_base(64 * MIB as u64);
    // Far beyond what was seen, before a writer is slowed down or stopped.
    options.set_level_zero_slowdown_writes_trigger(30);
    options.set_level_zero_stop_writes_trigger(48);
    options.set_compression_type(DBCompressionType::None);
    options.set_bottommost_compression_type(DBCompressionType::Lz4);
    // 30,000 deletions among 32,768 keys in a row, and half of all keys of the file.
    options.add_compact_on_deletion_collector_factory(32_768, 30_000, 0.5);
    options.set_block_based_table_factory(&tables(cache));
    Ok(options)
}

fn tables(cache: &Cache) -> BlockBasedOptions {
    let mut tables = BlockBasedOptions::default();
    tables.set_block_cache(cache);
    tables.set_block_size(8 * KIB);
    tables.set_bloom_filter(10.0, false);
    tables.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    tables.set_partition_filters(true);
    tables.set_cache_index_and_filter_blocks(true);
    tables.set_cache_index_and_filter_blocks_with_high_priority(true);
    tables.set_pin_top_level_index_and_filter(true);
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Db;

    /// RocksDB changes what it thinks does not go together, and says so only in its own log.
    #[test]
    fn rocksdb_takes_the_settings_that_durability_rests_on() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        drop(Db::open(dir.path(), &Options::default()).expect("a new directory"));
        let files = std::fs::read_dir(dir.path().join("rocksdb")).expect("the database");
        let names = files.map(|file| file.expect("the database").path());
        let newest =
            names.filter(|path| path.to_string_lossy().contains("OPTIONS-")).max().expect("its options");
        let text = std::fs::read_to_string(newest).expect("readable");
        for setting in [
            "max_bgerror_resume_count=0",
            "paranoid_checks=true",
            "track_and_verify_wals_in_manifest=true",
            "wal_recovery_mode=kPointInTimeRecovery",
            "recycle_log_file_num=3",
            "avoid_flush_during_recovery=false",
            "manual_wal_flush=false",
            "use_fsync=false",
            "memtable_max_range_deletions=512",
            "memtable_op_scan_flush_trigger=2000",
            "enable_blob_files=true",
            "min_blob_size=128",
        ] {
            assert!(text.lines().any(|line| line.trim() == setting), "{setting} is not set:\n{text}");
        }
    }
}
