//! Against a real etcd.

use super::testing::EtcdProcess;
use super::*;
use etcd_client::CompactionOptions;
use spool::record::{Last, Member};
use std::collections::{BTreeMap, BTreeSet};
use types::{CopyId, Epoch, Position, ProcessId};

const SPOOL: SpoolId = SpoolId::from_u128(1);

fn first(spool: SpoolId) -> Record {
    let member = |i: u128| Member { node: NodeName(format!("node-{i}")), copy: CopyId::from_u128(i) };
    Record::first(spool, 3, 1, vec![member(1), member(2), member(3)])
}

fn active(epoch: u64) -> Record {
    let mut record = Record { epoch: Epoch(epoch), phase: Phase::Active, ..first(SPOOL) };
    let (member, process) = (record.members[0].clone(), ProcessId::from_u128(9));
    record.last = Some(Last { epoch: Epoch(epoch), member, process, position: Position::new(epoch, 5) });
    record
}

fn electing(record: &Record) -> Record {
    let prev = vec![record.members.clone()];
    Record { epoch: Epoch(record.epoch.0 + 1), phase: Phase::Electing, prev, ..record.clone() }
}

fn alive(hb_no: u64) -> Alive {
    let at = |port: u16| format!("127.0.0.1:{port}");
    Alive {
        process_id: ProcessId::from_u128(1),
        hb_no,
        internal: at(1),
        forward: at(2),
        http: at(3),
        boot_no: 1,
    }
}

fn done(written: Written) -> i64 {
    match written {
        Written::Done(done) => done.revision,
        other => panic!("not written: {other:?}"),
    }
}

impl Etcd {
    async fn get(&self, key: String) -> Option<String> {
        let answer = self.client.clone().get(key, None).await.expect("get");
        answer.kvs().first().map(|kv| kv.value_str().expect("text").to_owned())
    }
}

/// The picture that a watch paints, once it is as expected.
async fn until<K: Ord + Clone, V: Clone + PartialEq + std::fmt::Debug>(
    watch: &mut Watch<K, V>,
    picture: &mut BTreeMap<K, V>,
    expected: impl Fn(&BTreeMap<K, V>) -> bool,
) {
    let painted = async {
        while !expected(picture) {
            match watch.next().await.expect("it never ends") {
                Change::Set { key, value, .. } => drop(picture.insert(key, value)),
                Change::Gone { key } => drop(picture.remove(&key)),
                Change::Complete => {}
            }
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), painted).await.is_err() {
        panic!("the watch stays at {:?}", picture.values());
    }
}

#[tokio::test]
async fn a_record_is_created_once_and_replaced_by_comparison_alone() {
    let process = EtcdProcess::start().await;
    let etcd = process.connect().await;
    assert_eq!(etcd.record(SPOOL).await.expect("read"), None);
    assert_eq!(etcd.cas_record(1, &electing(&first(SPOOL))).await.expect("cas"), Written::Gone);
    let created = done(etcd.create_record(&first(SPOOL)).await.expect("create"));
    let there = Versioned { value: first(SPOOL), revision: created };
    let again = etcd.create_record(&active(5)).await.expect("create");
    assert_eq!(again, Written::Other(there.clone()));
    assert_eq!(etcd.record(SPOOL).await.expect("read"), Some(there.clone()));
    let next = electing(&first(SPOOL));
    let revision = done(etcd.cas_record(created, &next).await.expect("cas"));
    assert!(revision > created);
    let late = etcd.cas_record(created, &active(5)).await.expect("cas");
    assert_eq!(late, Written::Other(Versioned { value: next.clone(), revision }));
    assert_eq!(etcd.records().await.expect("list"), vec![Versioned { value: next, revision }]);
}

#[tokio::test]
async fn an_electing_txn_takes_the_claim_away_with_it() {
    let process = EtcdProcess::start().await;
    let etcd = process.connect().await;
    let node = NodeName::from("node-1");
    let claim = keys::claim(&node, SPOOL);
    let created = done(etcd.create_record(&active(3)).await.expect("create"));
    etcd.put(claim.clone(), b"3".to_vec()).await;
    let other = etcd.cas_record(created + 100, &electing(&active(3))).await.expect("cas");
    assert!(matches!(other, Written::Other(_)), "{other:?}");
    assert_eq!(etcd.get(claim.clone()).await.as_deref(), Some("3"), "a failed election takes nothing");
    let revision = done(etcd.cas_record(created, &electing(&active(3))).await.expect("cas"));
    assert_eq!(etcd.get(claim).await, None);
    assert!(etcd.get(keys::owner_revision(&node)).await.is_some_and(|value| value.contains("4")));
    // Becoming assigned touches neither.
    let assigned = Record { phase: Phase::Assigned, ..electing(&active(3)) };
    done(etcd.cas_record(revision, &assigned).await.expect("cas"));
}

#[tokio::test]
async fn a_flag_of_the_last_primary_makes_the_fence_due() {
    let process = EtcdProcess::start().await;
    let etcd = process.connect().await;
    let spools = |spools| EtcdGuard { process_id: ProcessId::from_u128(9), spools };
    let listed = GuardedSpools::Some(BTreeSet::from([SPOOL]));
    let cases = [(GuardedSpools::All, true), (listed, true), (GuardedSpools::None, false)];
    for (i, (flag, due)) in cases.into_iter().enumerate() {
        let spool = SPOOL;
        let key = keys::eguard(&"node-1".into());
        etcd.put(key, values::to_json(&spools(flag))).await;
        etcd.delete(keys::record(spool)).await;
        let created = done(etcd.create_record(&active(3)).await.expect("create"));
        match etcd.cas_record(created, &electing(&active(3))).await.expect("cas") {
            Written::Done(done) => assert_eq!(done.value.fence_due, due, "case {i}"),
            other => panic!("case {i}: {other:?}"),
        }
        let there = etcd.record(spool).await.expect("read").expect("there").value;
        assert_eq!(there.fence_due, due, "case {i}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_with_its_key() {
    let process = EtcdProcess::start().await;
    let etcd = process.connect().await;
    let newer = Record { format: 2, ..first(SPOOL) };
    let foreign = first(SpoolId::from_u128(2));
    let too_few = Record { members: first(SPOOL).members[..2].to_vec(), ..first(SPOOL) };
    let not_fewer = Record { k: 3, ..first(SPOOL) };
    for bad in [newer, foreign, too_few, not_fewer] {
        etcd.put(keys::record(SPOOL), values::to_json(&bad)).await;
        match etcd.record(SPOOL).await {
            Err(ClaimsError::Malformed { key, .. }) => assert_eq!(key, keys::record(SPOOL)),
            other => panic!("{other:?}"),
        }
    }
    etcd.put(keys::record(SPOOL), b"{".to_vec()).await;
    assert!(etcd.record(SPOOL).await.is_err());
}

#[tokio::test]
async fn a_watch_tells_what_is_there_and_what_changes_and_survives_restarts_and_compaction() {
    let mut process = EtcdProcess::start().await;
    let etcd = process.connect().await;
    let created = done(etcd.create_record(&first(SPOOL)).await.expect("create"));
    let (mut watch, mut picture) = (etcd.watch_records(), BTreeMap::new());
    until(&mut watch, &mut picture, |picture| picture.get(&SPOOL) == Some(&first(SPOOL))).await;
    let next = electing(&first(SPOOL));
    done(etcd.cas_record(created, &next).await.expect("cas"));
    until(&mut watch, &mut picture, |picture| picture.get(&SPOOL) == Some(&next)).await;

    process.restart().await;
    // Changes, a deletion among them, that no stream will ever carry.
    let other = SpoolId::from_u128(2);
    done(etcd.create_record(&first(other)).await.expect("create"));
    etcd.delete(keys::record(SPOOL)).await;
    let revision = etcd.put(keys::status(other), b"{}".to_vec()).await;
    let physical = CompactionOptions::new().with_physical();
    etcd.client.clone().compact(revision, Some(physical)).await.expect("compaction");
    until(&mut watch, &mut picture, |picture| picture.keys().eq([&other])).await;
    done(etcd.create_record(&first(SPOOL)).await.expect("create"));
    until(&mut watch, &mut picture, |picture| picture.len() == 2).await;
}

#[tokio::test]
async fn nodes_are_listed_and_watched() {
    let process = EtcdProcess::start().await;
    let etcd = process.connect().await;
    let key = |node: &str| format!("{}{node}/alive", keys::NODES);
    etcd.put(key("node-1"), values::to_json(&alive(1))).await;
    etcd.put(keys::eguard(&"node-1".into()), b"{}".to_vec()).await;
    etcd.put(key("node-2"), values::to_json(&alive(7))).await;
    let nodes = etcd.nodes().await.expect("list");
    assert_eq!(nodes, vec![("node-1".into(), alive(1)), ("node-2".into(), alive(7))]);
    let (mut watch, mut picture) = (etcd.watch_nodes(), BTreeMap::new());
    until(&mut watch, &mut picture, |picture| picture.len() == 2).await;
    etcd.put_alive(&"node-1".into(), &alive(2)).await;
    etcd.delete_alive(&"node-2".into()).await;
    until(&mut watch, &mut picture, |picture| picture.values().eq([&alive(2)])).await;
}

#[tokio::test]
async fn a_long_list_is_read_in_pages() {
    let process = EtcdProcess::start().await;
    let etcd = process.connect().await;
    for i in 0..2_500 {
        etcd.put(keys::record(SpoolId::from_u128(i)), values::to_json(&first(SpoolId::from_u128(i)))).await;
    }
    assert_eq!(etcd.records().await.expect("list").len(), 2_500);
}

#[tokio::test]
async fn a_status_belongs_to_a_spool_that_exists() {
    let process = EtcdProcess::start().await;
    let etcd = process.connect().await;
    let status = Status { waiting_for: vec!["node-2".into()], reason: "too few".to_owned() };
    etcd.put_status(SPOOL, Some(&status)).await.expect("put");
    assert_eq!(etcd.status(SPOOL).await.expect("read"), None);
    done(etcd.create_record(&first(SPOOL)).await.expect("create"));
    etcd.put_status(SPOOL, Some(&status)).await.expect("put");
    assert_eq!(etcd.status(SPOOL).await.expect("read"), Some(status));
    etcd.put_status(SPOOL, None).await.expect("delete");
    assert_eq!(etcd.status(SPOOL).await.expect("read"), None);
}

#[tokio::test]
async fn an_etcd_that_is_gone_is_an_error_and_not_a_wait_without_end() {
    let mut process = EtcdProcess::start().await;
    let etcd = process.connect().await;
    process.stop();
    let began = tokio::time::Instant::now();
    assert!(etcd.record(SPOOL).await.is_err());
    assert!(began.elapsed() < CALL_WAIT * 2);
    process.restart().await;
    assert_eq!(etcd.record(SPOOL).await.expect("read"), None);
}
