//! The disk space of deleted messages comes back, also where a few of them stay, behind a spool that nobody reads.

use data_plane::store::{Db, Options, SpoolNumber};
use spool::store::{Batch, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SPOOL: SpoolNumber = SpoolNumber(1);
/// Full, and older than everything: RocksDB's own collection begins with the oldest files and gets no further.
const UNREAD: SpoolNumber = SpoolNumber(2);
const UNREAD_ENTRIES: u64 = 20_000;
const ENTRIES: u64 = 60_000;
const KEEP_EVERY: u64 = 200;
const DEADLINE: Duration = Duration::from_secs(60);

fn entry_key(seq: u64) -> Vec<u8> {
    [&b"L"[..], &seq.to_be_bytes()[..]].concat()
}

fn value(seq: u64) -> Vec<u8> {
    vec![seq as u8; 1_000]
}

/// Writes entries and deletes all but a few, in ranges around those.
fn churn(db: &Db, from: u64, to: u64) {
    for first in (from..to).step_by(KEEP_EVERY as usize) {
        let mut batch = Batch::default();
        for seq in first..first + KEEP_EVERY {
            batch.put(entry_key(seq), value(seq));
        }
        if let Some(before) = first.checked_sub(10 * KEEP_EVERY) {
            batch.delete_range(entry_key(before + 1), entry_key(before + KEEP_EVERY));
        }
        db.write(&[(SPOOL, &batch)]);
    }
}

#[test]
fn space_is_reclaimed_around_messages_that_stay() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = Options {
        log_memtable_bytes: 1 << 20,
        state_memtable_bytes: 1 << 20,
        garbage_bytes_min: 4 << 20,
        ..Options::default()
    };
    let db = Arc::new(Db::open(dir.path(), &options).expect("a new directory"));
    for seq in 0..UNREAD_ENTRIES {
        let mut batch = Batch::default();
        batch.put(entry_key(seq), value(seq));
        db.write(&[(UNREAD, &batch)]);
    }
    churn(&db, 0, ENTRIES);
    let begun = Instant::now();
    let mut from = ENTRIES;
    // Alive are 20 MB of the unread spool, the newest 2,000 entries and one in 200 of the others: some 23 MB of 80.
    loop {
        db.reclaim_space();
        let usage = db.blob_usage();
        if usage.total_bytes > 0 && usage.total_bytes < 36 << 20 {
            break;
        }
        assert!(begun.elapsed() < DEADLINE, "{usage:?}");
        // Space is reclaimed as writing goes on, and only then needed.
        churn(&db, from, from + KEEP_EVERY);
        from += KEEP_EVERY;
        std::thread::sleep(Duration::from_millis(20));
    }
    let store = db.spool(SPOOL);
    for seq in (0..from).step_by(KEEP_EVERY as usize) {
        assert_eq!(store.get(&entry_key(seq)).expect("readable"), Some(value(seq).into()), "{seq} is gone");
    }
    assert_eq!(store.get(&entry_key(1)).expect("readable"), None);
    let unread = db.spool(UNREAD);
    for seq in 0..UNREAD_ENTRIES {
        assert_eq!(unread.get(&entry_key(seq)).expect("readable"), Some(value(seq).into()), "{seq} is gone");
    }
}
