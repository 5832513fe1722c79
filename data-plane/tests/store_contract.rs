//! What the core may rely on of a store, whichever it is: the same cases on memory and on RocksDB, compared with a
//! plain map that takes every operation in its order.

use data_plane::store::{Db, Options, SpoolNumber};
use proptest::prelude::*;
use spool::memstore::MemStore;
use spool::store::{Batch, Store};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a test does to a store and its model.
#[derive(Clone, Debug)]
enum Step {
    /// One atomic write for several spools.
    Write(Vec<(SpoolNumber, Vec<Change>)>),
    Reopen,
}

#[derive(Clone, Debug)]
enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

trait Fixture {
    fn write(&mut self, changes: &[(SpoolNumber, &Batch)]);
    fn store(&self, spool: SpoolNumber) -> Box<dyn Store + '_>;
    fn reopen(&mut self);
}

#[derive(Default)]
struct InMemory(BTreeMap<SpoolNumber, MemStore>);

impl Fixture for InMemory {
    fn write(&mut self, changes: &[(SpoolNumber, &Batch)]) {
        for (spool, batch) in changes {
            self.0.entry(*spool).or_default().apply(batch);
        }
    }
    fn store(&self, spool: SpoolNumber) -> Box<dyn Store + '_> {
        Box::new(self.0.get(&spool).cloned().unwrap_or_default())
    }
    fn reopen(&mut self) {}
}

struct OnDisk {
    dir: tempfile::TempDir,
    db: Option<Arc<Db>>,
}

/// Memtables so small that a few steps reach files, blobs and compactions.
fn small() -> Options {
    Options { log_memtable_bytes: 64 << 10, state_memtable_bytes: 64 << 10, ..Options::default() }
}

impl OnDisk {
    fn new() -> OnDisk {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let db = Some(Arc::new(Db::open(dir.path(), &small()).expect("a new directory")));
        OnDisk { dir, db }
    }
    fn db(&self) -> &Arc<Db> {
        self.db.as_ref().expect("open between two reopens")
    }
}

impl Fixture for OnDisk {
    fn write(&mut self, changes: &[(SpoolNumber, &Batch)]) {
        self.db().write(changes);
    }
    fn store(&self, spool: SpoolNumber) -> Box<dyn Store + '_> {
        Box::new(self.db().spool(spool))
    }
    fn reopen(&mut self) {
        self.db = None;
        self.db = Some(Arc::new(Db::open(self.dir.path(), &small()).expect("the same directory again")));
    }
}

#[derive(Default)]
struct Model(BTreeMap<(SpoolNumber, Vec<u8>), Vec<u8>>);

impl Model {
    fn change(&mut self, spool: SpoolNumber, change: &Change) {
        match change {
            Change::Put(key, value) => {
                self.0.insert((spool, key.clone()), value.clone());
            }
            Change::Delete(key) => {
                self.0.remove(&(spool, key.clone()));
            }
            Change::DeleteRange(from, to) => {
                self.0.retain(|(s, key), _| *s != spool || key < from || key >= to);
            }
        }
    }
    fn range(&self, spool: SpoolNumber, from: &[u8], to: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let inside = |(s, key): &(SpoolNumber, Vec<u8>)| *s == spool && from <= &key[..] && &key[..] < to;
        self.0
            .iter()
            .filter(|(key, _)| inside(key))
            .map(|((_, key), value)| (key.clone(), value.clone()))
            .collect()
    }
}

fn batch_of(changes: &[Change]) -> Batch {
    let mut batch = Batch::default();
    for change in changes.iter().cloned() {
        match change {
            Change::Put(key, value) => batch.put(key, value),
            Change::Delete(key) => batch.delete(key),
            Change::DeleteRange(from, to) => batch.delete_range(from, to),
        }
    }
    batch
}

const SPOOLS: [SpoolNumber; 3] = [SpoolNumber(1), SpoolNumber(2), SpoolNumber(256)];

/// Few keys, so that they meet; tags on both sides of the log's, and at its ends.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let tag = prop::sample::select(vec![0u8, b'A', b'K', b'L', b'L', b'L', b'M', b'z', 0xff]);
    let rest = prop::collection::vec(prop::sample::select(vec![0u8, 1, 7, 0xff]), 0..3);
    prop_oneof![
        1 => Just(Vec::new()),
        20 => (tag, rest).prop_map(|(tag, rest)| [vec![tag], rest].concat()),
    ]
}

/// Of the sizes that stay with the key and of those that go to blob files.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![Just(0usize), 1..40usize, 500..530usize, Just(3_000usize)];
    (len, any::<u8>()).prop_map(|(len, byte)| vec![byte; len])
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (key(), value()).prop_map(|(key, value)| Change::Put(key, value)),
        3 => key().prop_map(Change::Delete),
        1 => (key(), key()).prop_map(|(from, to)| Change::DeleteRange(from, to)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let spool = prop::sample::select(SPOOLS.to_vec());
    let write = prop::collection::vec((spool, prop::collection::vec(change(), 0..12)), 1..4);
    prop_oneof![12 => write.prop_map(Step::Write), 1 => Just(Step::Reopen)]
}

type Ranges = Vec<(Vec<u8>, Vec<u8>)>;

fn case() -> impl Strategy<Value = (Vec<Step>, Ranges)> {
    let ranges = prop::collection::vec((key(), key()), 4);
    (prop::collection::vec(step(), 1..30), ranges)
}

fn scan(store: &dyn Store, from: &[u8], to: &[u8], limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut seen = Vec::new();
    let visited = store.scan(from, to, &mut |key, value| {
        seen.push((key.to_vec(), value.to_vec()));
        seen.len() < limit
    });
    visited.expect("a sound store");
    seen
}

fn check(fixture: &dyn Fixture, model: &Model, ranges: &Ranges) -> Result<(), TestCaseError> {
    for spool in SPOOLS {
        let store = fixture.store(spool);
        let everything: (Vec<u8>, Vec<u8>) = (Vec::new(), vec![0xff; 8]);
        for (from, to) in ranges.iter().chain([&everything]) {
            let expected = model.range(spool, from, to);
            prop_assert_eq!(&scan(&*store, from, to, usize::MAX), &expected);
            prop_assert_eq!(&scan(&*store, from, to, 2), &expected[..expected.len().min(2)]);
            let last = store.last(from, to).expect("a sound store").map(|(key, value)| (key, value.to_vec()));
            prop_assert_eq!(last.as_ref(), expected.last());
            for key in [from, to] {
                let value = store.get(key).expect("a sound store").map(|value| value.to_vec());
                prop_assert_eq!(value.as_ref(), model.0.get(&(spool, key.clone())));
            }
        }
        for (key, value) in model.range(spool, &[], &[0xff; 8]) {
            prop_assert_eq!(store.get(&key).expect("a sound store"), Some(value.into()));
        }
    }
    Ok(())
}

fn run(fixture: &mut dyn Fixture, steps: &[Step], ranges: &Ranges) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Write(spools) => {
                // A spool may come twice in one write: the later batch then comes after the earlier one.
                let batches: Vec<(SpoolNumber, Batch)> =
                    spools.iter().map(|(spool, changes)| (*spool, batch_of(changes))).collect();
                let changes: Vec<(SpoolNumber, &Batch)> =
                    batches.iter().map(|(spool, batch)| (*spool, batch)).collect();
                fixture.write(&changes);
                for (spool, changes) in spools {
                    changes.iter().for_each(|change| model.change(*spool, change));
                }
            }
            Step::Reopen => fixture.reopen(),
        }
        check(fixture, &model, ranges)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn memory_keeps_the_contract((steps, ranges) in case()) {
        run(&mut InMemory::default(), &steps, &ranges)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn rocksdb_keeps_the_contract((steps, ranges) in case()) {
        run(&mut OnDisk::new(), &steps, &ranges)?;
    }
}

/// The core deletes what it no longer needs of the log in long strides, and what stays must stay.
#[test]
fn entries_that_stay_survive_the_ranges_around_them() {
    let mut disk = OnDisk::new();
    let mut memory = InMemory::default();
    let entry_key = |seq: u64| [&b"L"[..], &seq.to_be_bytes()[..]].concat();
    let mut write = |batch: &Batch| {
        disk.write(&[(SPOOLS[0], batch)]);
        memory.write(&[(SPOOLS[0], batch)]);
    };
    for first in (1..20_000u64).step_by(100) {
        let mut batch = Batch::default();
        for seq in first..first + 100 {
            batch.put(entry_key(seq), vec![seq as u8; 700]);
        }
        if first > 1_000 && first % 1_000 == 1 {
            // Each stride leaves one entry standing.
            batch.delete_range(entry_key(first - 1_000), entry_key(first - 500));
            batch.delete_range(entry_key(first - 499), entry_key(first));
        }
        write(&batch);
    }
    disk.reopen();
    let (on_disk, in_memory) = (disk.store(SPOOLS[0]), memory.store(SPOOLS[0]));
    let expected = scan(&*in_memory, b"L", b"M", usize::MAX);
    assert_eq!(scan(&*on_disk, b"L", b"M", usize::MAX), expected);
    assert_eq!(expected.len(), 1_000 + 19);
    assert_eq!(on_disk.last(b"L", b"M"), in_memory.last(b"L", b"M"));
}
