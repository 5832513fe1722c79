//! The syncer: nothing is reported before it is durable, everything is reported, and one sync serves many.

use data_plane::store::{Completed, Db, Options, SpoolNumber, SyncHandle, Syncer};
use spool::event::SyncNo;
use spool::store::Batch;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(30);

fn engine(syncer: &Syncer) -> (SyncHandle, Receiver<Completed>) {
    let (done, completed) = channel();
    // The engine may have gone before its last completion.
    (syncer.engine(move |synced| drop(done.send(synced))), completed)
}

fn write(db: &Db, spool: SpoolNumber, sync_no: SyncNo) {
    let mut batch = Batch::default();
    batch.put(b"at".to_vec(), sync_no.0.to_be_bytes().to_vec());
    db.write(&[(spool, &batch)]);
}

#[test]
fn every_engine_hears_of_its_own_spools_and_of_the_highest_number_last() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = Arc::new(Db::open(dir.path(), &Options::default()).expect("a new directory"));
    let syncer = Syncer::start(db.clone()).expect("a thread");
    std::thread::scope(|scope| {
        for first in [1, 100] {
            let (handle, completed) = engine(&syncer);
            let db = &db;
            scope.spawn(move || {
                let spools = [SpoolNumber(first), SpoolNumber(first + 1)];
                for number in 1..=500 {
                    for spool in spools {
                        write(db, spool, SyncNo(number));
                    }
                    handle.request(spools.map(|spool| (spool, SyncNo(number))));
                }
                let mut reached = BTreeMap::new();
                while spools.iter().any(|spool| reached.get(spool) != Some(&SyncNo(500))) {
                    for (spool, number) in completed.recv_timeout(DEADLINE).expect("a completion") {
                        assert!(spools.contains(&spool), "another engine's spool");
                        let before = reached.insert(spool, number);
                        assert!(before < Some(number), "in order");
                    }
                }
            });
        }
    });
    let stats = syncer.stats();
    assert!(stats.syncs >= 1 && stats.syncs < 2_000, "{stats:?}");
    assert_eq!(stats.running, None);
}

#[test]
fn what_is_pending_at_the_end_is_synced_and_reported() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = Arc::new(Db::open(dir.path(), &Options::default()).expect("a new directory"));
    let syncer = Syncer::start(db.clone()).expect("a thread");
    let (handle, completed) = engine(&syncer);
    for number in 1..=50 {
        write(&db, SpoolNumber(1), SyncNo(number));
        handle.request([(SpoolNumber(1), SyncNo(number))]);
    }
    drop(syncer);
    let last = completed.try_iter().flatten().last();
    assert_eq!(last, Some((SpoolNumber(1), SyncNo(50))));
}
