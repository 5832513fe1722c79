//! How RocksDB is set up.

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
            block_cache_bytes: 32 * MIB,
            wal_bytes_max: 128 * MIB as u64,
            wal_files_recycled: 3,
            background_jobs: 3,
            open_files_max: 512,
        }
    }
}

impl Options {
    pub(super) fn database(&self) -> Result<rocksdb::Options, rocksdb::Error> {
        // No setter exists for these. A background error is never overcome by trying again.
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
        options.set_min_blob_size(512);
        options.set_blob_file_size(64 * MIB as u64);
        options.set_enable_blob_gc(true);
        options.set_blob_gc_age_cutoff(0.25);
        options.set_blob_gc_force_threshold(0.5);
        Ok(options)
    }

    fn state(&self, cache: &Cache) -> Result<rocksdb::Options, rocksdb::Error> {
        let mut options = both(cache)?;
        options.set_write_buffer_size(self.state_memtable_bytes);
        Ok(options)
    }
}

fn both(cache: &Cache) -> Result<rocksdb::Options, rocksdb::Error> {
    let rules = "memtable_max_range_deletions=512;memtable_op_scan_flush_trigger=10000";
    let mut options = rocksdb::Options::default().get_options_from_string(rules)?;
    options.set_max_write_buffer_number(3);
    options.set_target_file_size_base(16 * MIB as u64);
    options.set_max_bytes_for_level_base(64 * MIB as u64);
    options.set_level_zero_slowdown_writes_trigger(30);
    options.set_level_zero_stop_writes_trigger(48);
    options.set_compression_type(DBCompressionType::None);
    options.set_bottommost_compression_type(DBCompressionType::Lz4);
    options.add_compact_on_deletion_collector_factory(16_384, 8_192, 0.5);
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
