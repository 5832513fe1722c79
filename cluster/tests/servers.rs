//! The launcher and the servers that are not ours: started, broken, started again on the same data.

use cluster::installation::{Fault, Installation, is_locked};
use cluster::launcher::pin_binaries;
use cluster::layout::Layout;
use cluster::parts::{Options, PartName};
use cluster::process::Id;
use std::path::Path;

const SERVERS: [PartName; 3] = [PartName::Etcd, PartName::Postgres, PartName::S3];

fn open(dir: &Path) -> anyhow::Result<Installation> {
    let built = Path::new(env!("CARGO_BIN_EXE_cluster")).parent().expect("a directory");
    let layout = Layout::create(dir)?;
    let bin = pin_binaries(&layout, built)?;
    Installation::open(layout, Options::default(), bin)
}

fn ids(installation: &Installation) -> Vec<Id> {
    SERVERS.map(|part| Id::of(installation.pid(part).expect("it runs")).expect("it is alive")).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_are_broken_mended_stopped_and_found_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let installation = open(dir.path()).expect("laid out");
    installation.start_servers().await.expect("started");
    assert!(is_locked(installation.layout()).expect("a lock"));
    let again = open(dir.path()).err().expect("one launcher a directory");
    assert!(again.to_string().contains("already up"), "{again}");

    for part in SERVERS {
        let first = installation.pid(part).and_then(Id::of).expect("it runs");
        installation.fault(Fault::Pause, part).await.expect("paused");
        assert!(first.is_stopped(), "{part}");
        installation.fault(Fault::Resume, part).await.expect("resumed");
        assert!(first.is_alive() && !first.is_stopped(), "{part}");
        installation.fault(Fault::Kill, part).await.expect("killed");
        assert!(!first.is_alive(), "{part}");
        installation.fault(Fault::Kill, part).await.expect_err("it does not run");
        installation.fault(Fault::Start, part).await.expect("started again");
        installation.fault(Fault::Start, part).await.expect_err("it runs already");
    }
    installation.fault(Fault::Kill, PartName::Node(9)).await.expect_err("there is no such node here");

    let processes = ids(&installation);
    installation.stop().await;
    assert!(processes.iter().all(|id| !id.is_alive()));
    drop(installation);
    let second = open(dir.path()).expect("laid out again");
    second.start_servers().await.expect("started on the same data");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_launcher_left_does_not_stop_the_next() {
    let dir = tempfile::tempdir().expect("a directory");
    let installation = open(dir.path()).expect("laid out");
    installation.start_servers().await.expect("started");
    let left: Vec<Id> = ids(&installation);
    // As after a SIGKILL: nobody holds the lock, the processes and their files are there.
    std::fs::remove_file(installation.layout().lock()).expect("the lock's file");

    let next = open(dir.path()).expect("laid out in spite of it");
    assert!(left.iter().all(|id| !id.is_alive()));
    next.start_servers().await.expect("started");
    next.stop().await;
}
