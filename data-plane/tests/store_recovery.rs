//! What is left after the process ended without notice: some prefix of the writes, with everything that was synced.

use data_plane::store::{CreateCopyError, Db, NewCopy, OpenError, Options, SpoolNumber};
use spool::store::{Batch, Store};
use spool::token::TokenKey;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use types::{AccountId, SpoolId, WallMs};
use uuid::Uuid;

const SPOOL: SpoolNumber = SpoolNumber(1);
const OTHER: SpoolNumber = SpoolNumber(2);
/// Entries kept; older ones are deleted by range, in strides.
const KEPT: u64 = 300;
const STRIDE: u64 = 100;

/// Set for the child that writes: the data directory.
const CHILD_DIR: &str = "STORE_TEST_CHILD_DIR";
const CHILD_TEST: &str = "the_child_that_writes";

fn options() -> Options {
    Options { log_memtable_bytes: 256 << 10, state_memtable_bytes: 64 << 10, ..Options::default() }
}

fn open(dir: &Path) -> Arc<Db> {
    Arc::new(Db::open(dir, &options()).expect("the database opens"))
}

fn entry_key(seq: u64) -> Vec<u8> {
    [&b"L"[..], &seq.to_be_bytes()[..]].concat()
}

fn value(seq: u64) -> Vec<u8> {
    let len = [30, 700, 5_000, 0, 1_100][(seq % 5) as usize];
    (0..len).map(|at: u64| (seq.wrapping_mul(31) + at) as u8).collect()
}

/// The `seq`th write: it touches both column families of two spools.
fn write(db: &Db, seq: u64) {
    let mut batch = Batch::default();
    batch.put(entry_key(seq), value(seq));
    batch.put(b"last".to_vec(), seq.to_be_bytes().to_vec());
    batch.put([&b"r"[..], &seq.to_be_bytes()].concat(), b"ready".to_vec());
    if seq > KEPT {
        batch.delete([&b"r"[..], &(seq - KEPT).to_be_bytes()].concat());
        if seq.is_multiple_of(STRIDE) {
            batch.delete_range(entry_key(0), entry_key(seq - KEPT + 1));
        }
    }
    let mut other = Batch::default();
    other.put(b"last".to_vec(), seq.to_be_bytes().to_vec());
    db.write(&[(SPOOL, &batch), (OTHER, &other)]);
}

/// Which write was the last whose effect is there, having checked that the effect of all before it is, exactly.
fn last_whole_write(db: &Arc<Db>) -> u64 {
    let (store, other) = (db.spool(SPOOL), db.spool(OTHER));
    let last = store.get(b"last").expect("readable");
    assert_eq!(last, other.get(b"last").expect("readable"), "a write is there in part");
    let Some(last) = last else {
        return 0;
    };
    let last = u64::from_be_bytes(last[..].try_into().expect("eight bytes"));
    let trimmed = last - last % STRIDE;
    let first = if trimmed > KEPT { trimmed - KEPT + 1 } else { 1 };
    let mut expected = first..=last;
    let visit = &mut |key: &[u8], stored: &[u8]| {
        let seq = expected.next().expect("no entry beyond the last write");
        assert_eq!(key, entry_key(seq));
        assert_eq!(stored, value(seq));
        true
    };
    store.scan(b"L", b"M", visit).expect("readable");
    assert_eq!(expected.next(), None, "entries are missing");
    let mut ready = 0;
    store
        .scan(b"r", b"s", &mut |_, _| {
            ready += 1;
            true
        })
        .expect("readable");
    assert_eq!(ready, last.min(KEPT));
    last
}

/// Not a test of its own: what the tests below run as a process of its own, and kill.
#[test]
#[ignore = "run by the other tests"]
fn the_child_that_writes() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    let db = open(Path::new(&dir));
    let mut seq = last_whole_write(&db);
    let mut out = std::io::stdout();
    loop {
        for _ in 0..1 + seq % 7 {
            seq += 1;
            write(&db, seq);
        }
        db.sync();
        writeln!(out, "synced {seq}").expect("the parent listens");
    }
}

fn child_command(dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", CHILD_TEST, "--ignored", "--nocapture"]).env(CHILD_DIR, dir);
    command
}

fn spawn(mut command: Command) -> (Child, BufReader<ChildStdout>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the child starts");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    (child, out)
}

/// The number in the child's next "synced" line; `None` at its end.
fn next_synced(out: &mut BufReader<ChildStdout>) -> Option<u64> {
    let mut line = String::new();
    while out.read_line(&mut line).expect("a pipe") > 0 {
        // The test harness writes its own words, once without a line's end. A line cut short by the kill says nothing.
        let number =
            line.strip_suffix('\n').and_then(|line| line.rsplit_once("synced ")).map(|(_, number)| number);
        if let Some(number) = number {
            return Some(number.parse().expect("a number"));
        }
        line.clear();
    }
    None
}

#[test]
fn a_killed_process_leaves_a_prefix_with_everything_synced() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (mut before, mut boot_before) = (0, 0);
    for round in 0..8u64 {
        let (mut child, mut out) = spawn(child_command(dir.path()));
        let mut synced = before;
        for _ in 0..20 + round * 37 {
            synced = next_synced(&mut out).expect("the child writes on");
        }
        child.kill().expect("ours to kill");
        child.wait().expect("killed");
        while let Some(later) = next_synced(&mut out) {
            synced = later;
        }
        let db = open(dir.path());
        let last = last_whole_write(&db);
        assert!(last >= synced, "synced up to {synced}, found {last}");
        assert!(synced > before, "the child did nothing");
        // One start was the child's, one is this.
        assert_eq!(db.boot().boot_no, boot_before + 2);
        assert!(db.boot().same_kernel);
        (before, boot_before) = (last, db.boot().boot_no);
    }
}

#[test]
fn a_write_that_fails_ends_the_process_and_costs_nothing_synced() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    drop(open(dir.path()));
    // No file may grow beyond 256 KiB (512 blocks): soon the write-ahead log cannot be written any more.
    let script = "trap '' XFSZ; ulimit -f 512; exec \"$@\"";
    let inner = child_command(dir.path());
    let mut limited = Command::new("sh");
    limited
        .args(["-c", script, "sh"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env(CHILD_DIR, dir.path());
    let (mut child, mut out) = spawn(limited);
    let mut synced = 0;
    while let Some(later) = next_synced(&mut out) {
        synced = later;
    }
    let status = child.wait().expect("it ended");
    const SIGABRT: i32 = 6;
    assert_eq!(status.signal(), Some(SIGABRT), "{status}");
    assert!(synced > 0, "the child did nothing");
    let last = last_whole_write(&open(dir.path()));
    assert!(last >= synced, "synced up to {synced}, found {last}");
}

#[test]
fn a_directory_has_one_process_at_a_time() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = open(dir.path());
    assert!(matches!(Db::open(dir.path(), &options()), Err(OpenError::InUse { .. })));
    let (mut child, mut out) = spawn(child_command(dir.path()));
    assert_eq!(next_synced(&mut out), None, "a second process writes");
    assert!(!child.wait().expect("it ended").success());
    drop(db);
    assert_eq!(open(dir.path()).boot().boot_no, 2, "a start that is refused does not count");
}

/// As after a power cut: the last writes are in the log file in part.
#[test]
fn a_torn_tail_leaves_a_prefix() {
    let source = tempfile::tempdir().expect("a temporary directory");
    let (mut child, mut out) = spawn(child_command(source.path()));
    for _ in 0..30 {
        next_synced(&mut out).expect("the child writes on");
    }
    child.kill().expect("ours to kill");
    child.wait().expect("killed");
    let whole = copy_of(source.path(), |_| {});
    let last = last_whole_write(&open(whole.path()));
    for cut in [1, 7, 100, 5_000, 20_000] {
        let torn = copy_of(source.path(), |log| log.truncate(log.len().saturating_sub(cut)));
        let found = last_whole_write(&open(torn.path()));
        assert!(found < last && found > 0, "{cut} bytes cut off: {found} of {last}");
    }
    // A damaged record in the middle ends the log there, silently: this is what the watermark file is for.
    let damaged = copy_of(source.path(), |log| {
        let middle = log.len() / 2;
        log[middle] ^= 0x10;
    });
    let found = last_whole_write(&open(damaged.path()));
    assert!(found < last && found > 0, "{found} of {last}");
}

/// A copy of a data directory in which the youngest write-ahead log is changed.
fn copy_of(source: &Path, change: impl FnOnce(&mut Vec<u8>)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary directory");
    let (from, to) = (source.join("rocksdb"), copy.path().join("rocksdb"));
    std::fs::create_dir(&to).expect("a new directory");
    let mut logs: Vec<PathBuf> = Vec::new();
    for item in std::fs::read_dir(&from).expect("the database") {
        let path = item.expect("the database").path();
        let target = to.join(path.file_name().expect("a file"));
        std::fs::copy(&path, &target).expect("a copy");
        if target.extension().is_some_and(|extension| extension == "log") {
            logs.push(target);
        }
    }
    let youngest = logs.iter().max().expect("a write-ahead log");
    let mut log = std::fs::read(youngest).expect("readable");
    change(&mut log);
    std::fs::write(youngest, log).expect("writable");
    copy
}

fn new_copy(spool: u128) -> NewCopy {
    NewCopy {
        spool: SpoolId(Uuid::from_u128(spool)),
        account: AccountId(Uuid::from_u128(1)),
        name: "orders".parse().expect("a good name"),
        n: 3,
        k: 1,
        token_key: TokenKey([7; 32]),
        created: WallMs(1_700_000_000_000),
    }
}

#[test]
fn copies_are_created_once_and_remembered() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = open(dir.path());
    let dir_id = db.dir_id();
    let first = db.create_copy(&new_copy(10)).expect("a new copy");
    let second = db.create_copy(&new_copy(9)).expect("a new copy");
    assert_ne!(first.number, second.number);
    assert_ne!(first.copy, second.copy);
    assert_eq!(db.create_copy(&new_copy(10)), Ok(first.clone()), "asked again");
    let other = NewCopy { k: 2, ..new_copy(10) };
    assert_eq!(
        db.create_copy(&other),
        Err(CreateCopyError::Differs { spool: first.spool, field: "num_sync" })
    );
    drop(db);
    let db = open(dir.path());
    assert_eq!(db.dir_id(), dir_id);
    assert_eq!(db.copies(), [second.clone(), first.clone()]);
    assert_eq!(db.copy(first.spool), Some(first));
    let third = db.create_copy(&new_copy(11)).expect("a new copy");
    assert!(third.number > second.number, "a number is used once");
}
