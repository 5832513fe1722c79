//! Against a real etcd and nodes that speak the real protocol.

use super::*;
use crate::elections::tests::fake::{Cluster, NODES};
use spool::record::Record;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use types::{Epoch, NodeName};

/// PostgreSQL, as far as it is needed.
#[derive(Default)]
pub struct Rows {
    rows: Mutex<BTreeMap<SpoolId, (NewSpool, bool)>>,
    marks_fail: AtomicBool,
}

impl Rows {
    pub fn add(&self, new: &NewSpool) {
        self.rows.lock().insert(new.id, (new.clone(), false));
    }

    fn is_placed(&self, spool: SpoolId) -> bool {
        self.rows.lock()[&spool].1
    }
}

#[tonic::async_trait]
impl SpoolRows for Rows {
    async fn unplaced(&self, limit: u32) -> Result<Vec<NewSpool>, RowsError> {
        let rows = self.rows.lock();
        let unplaced = rows.values().filter(|(_, placed)| !placed).map(|(new, _)| new.clone());
        Ok(unplaced.take(limit as usize).collect())
    }

    async fn begin_placing(&self, spool: SpoolId) -> Result<bool, RowsError> {
        Ok(self.rows.lock().contains_key(&spool))
    }

    async fn mark_placed(&self, spool: SpoolId) -> Result<(), RowsError> {
        if self.marks_fail.load(Ordering::SeqCst) {
            return Err("the connection is closed".into());
        }
        self.rows.lock().get_mut(&spool).ok_or("no such row")?.1 = true;
        Ok(())
    }

    async fn names(&self, spools: &[SpoolId]) -> Result<Vec<Named>, RowsError> {
        let rows = self.rows.lock();
        let named = |new: &NewSpool| Named {
            id: new.id,
            account: new.account,
            account_name: "Acme".to_owned(),
            name: new.name.clone(),
            n: new.n,
            k: new.k,
        };
        Ok(spools.iter().filter_map(|spool| rows.get(spool)).map(|(new, _)| named(new)).collect())
    }
}

pub fn new_spool(i: u128, n: u8, k: u8) -> NewSpool {
    NewSpool {
        id: SpoolId::from_u128(i),
        account: AccountId::from_u128(1),
        name: "default".to_owned(),
        n,
        k,
        token_key: [7; 32],
        created_ms: 1_700_000_000_000,
    }
}

fn start(cluster: &Cluster, rows: &Arc<Rows>) -> Reconciler {
    Reconciler::start(cluster.etcd.clone(), cluster.clients(), cluster.elections(), rows.clone())
}

/// Nothing runs of it any more: a control plane that died.
async fn die(reconciler: Reconciler) {
    let shared = Arc::downgrade(&reconciler.shared);
    drop(reconciler);
    let deadline = Instant::now() + Duration::from_secs(30);
    while shared.strong_count() > 0 {
        assert!(Instant::now() < deadline, "it still runs");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn until_marked(rows: &Rows, spool: SpoolId) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !rows.is_placed(spool) {
        assert!(Instant::now() < deadline, "not marked");
        sleep(Duration::from_millis(20)).await;
    }
}

fn assert_all_members_have_their_copies(cluster: &Cluster, record: &Record) {
    assert_eq!(record.members.len(), usize::from(record.n));
    for member in &record.members {
        assert!(cluster.has(record.spool, member), "{member:?} is not on its node's disk");
    }
}

#[tokio::test]
async fn a_created_spool_has_copies_a_primary_and_a_marked_row() {
    let (cluster, rows) = (Cluster::start().await, Arc::new(Rows::default()));
    let reconciler = start(&cluster, &rows);
    let new = new_spool(1, 3, 1);
    rows.add(&new);
    reconciler.create(new.clone()).await.expect("placed");
    let record = cluster.until_active(new.id, Epoch(1)).await;
    assert_all_members_have_their_copies(&cluster, &record);
    assert!(rows.is_placed(new.id));
    reconciler.create(new.clone()).await.expect("again does no harm");
    assert_eq!(cluster.record(new.id).await.value.members, record.members);
}

#[tokio::test]
async fn many_spools_are_spread_evenly() {
    let (cluster, rows) = (Cluster::start().await, Arc::new(Rows::default()));
    let all: Vec<NewSpool> = (1..=12).map(|i| new_spool(i, 1, 0)).collect();
    all.iter().for_each(|new| rows.add(new));
    let _reconciler = start(&cluster, &rows);
    let mut copies: BTreeMap<NodeName, usize> = BTreeMap::new();
    for new in &all {
        let record = cluster.until_active(new.id, Epoch(1)).await;
        *copies.entry(record.members[0].node.clone()).or_default() += 1;
    }
    assert_eq!(copies.into_values().collect::<Vec<_>>(), [4, 4, 4]);
}

#[tokio::test]
async fn a_control_plane_that_dies_between_copies_and_record_is_followed_up() {
    let (cluster, rows) = (Cluster::start().await, Arc::new(Rows::default()));
    let new = new_spool(1, 3, 1);
    rows.add(&new);
    // The third copy is made, and nobody hears of it: the first life never comes to the record.
    cluster.lose_answers(&"node-3".into(), true);
    let first = start(&cluster, &rows);
    cluster.until(async || Ok(cluster.copies_made()), |made| *made == 3).await;
    assert_eq!(cluster.etcd.record(new.id).await.expect("read"), None);
    die(first).await;
    cluster.lose_answers(&"node-3".into(), false);
    let _second = start(&cluster, &rows);
    let record = cluster.until_active(new.id, Epoch(1)).await;
    assert_all_members_have_their_copies(&cluster, &record);
    until_marked(&rows, new.id).await;
    assert_eq!(cluster.copies_made(), 3, "asked again, a node names the same copy");
}

#[tokio::test]
async fn a_control_plane_that_dies_between_record_and_row_is_followed_up() {
    let (cluster, rows) = (Cluster::start().await, Arc::new(Rows::default()));
    let new = new_spool(1, 3, 1);
    rows.add(&new);
    rows.marks_fail.store(true, Ordering::SeqCst);
    let first = start(&cluster, &rows);
    first.create(new.clone()).await.expect("the record is what counts");
    let record = cluster.until_active(new.id, Epoch(1)).await;
    die(first).await;
    assert!(!rows.is_placed(new.id));
    rows.marks_fail.store(false, Ordering::SeqCst);
    let _second = start(&cluster, &rows);
    until_marked(&rows, new.id).await;
    assert_eq!(cluster.record(new.id).await.value.members, record.members);
}

#[tokio::test]
async fn too_few_nodes_are_told_and_the_placement_goes_on_when_they_come() {
    let (cluster, rows) = (Cluster::start().await, Arc::new(Rows::default()));
    let gone = NodeName::from(NODES[2]);
    cluster.kill(&gone).await;
    let reconciler = start(&cluster, &rows);
    let new = new_spool(1, 3, 1);
    rows.add(&new);
    let error = reconciler.create(new.clone()).await.expect_err("two nodes");
    let PlaceError::NotEnoughNodes(error) = error else { panic!("{error:?}") };
    assert_eq!(error, NotEnoughNodes { needed: 3, alive: 2 });
    cluster.restart(&gone).await;
    cluster.until_active(new.id, Epoch(1)).await;
    until_marked(&rows, new.id).await;
}

#[tokio::test]
async fn a_spool_that_was_taken_back_gets_no_copies() {
    let (cluster, rows) = (Cluster::start().await, Arc::new(Rows::default()));
    let reconciler = start(&cluster, &rows);
    let error = reconciler.create(new_spool(1, 3, 1)).await.expect_err("there is no row");
    assert!(matches!(error, PlaceError::TakenBack), "{error:?}");
    assert_eq!(cluster.copies_made(), 0);
}

#[tokio::test]
async fn a_node_that_makes_no_copies_is_passed_over() {
    let (cluster, rows) = (Cluster::start().await, Arc::new(Rows::default()));
    cluster.lose_answers(&"node-1".into(), true);
    let reconciler = start(&cluster, &rows);
    let new = new_spool(1, 2, 0);
    rows.add(&new);
    reconciler.create(new.clone()).await.expect("placed on the others");
    let nodes: Vec<NodeName> =
        cluster.record(new.id).await.value.members.into_iter().map(|m| m.node).collect();
    assert_eq!(nodes, ["node-2".into(), "node-3".into()]);
}

#[tokio::test]
async fn two_control_planes_at_once_make_one_record() {
    let (cluster, rows) = (Cluster::start().await, Arc::new(Rows::default()));
    let pair = [start(&cluster, &rows), start(&cluster, &rows)];
    for i in 1..=10 {
        let new = new_spool(i, 2, 1);
        rows.add(&new);
        let (one, other) = tokio::join!(pair[0].create(new.clone()), pair[1].create(new.clone()));
        one.and(other).expect("placed");
        assert_all_members_have_their_copies(&cluster, &cluster.record(new.id).await.value);
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_stops_nothing() {
    let (cluster, rows) = (Cluster::start().await, Arc::new(Rows::default()));
    let reconciler = start(&cluster, &rows);
    let new = new_spool(1, 3, 2);
    rows.add(&new);
    let gave_up = timeout(Duration::from_millis(1), reconciler.create(new.clone())).await;
    assert!(gave_up.is_err(), "a placement takes longer");
    cluster.until_active(new.id, Epoch(1)).await;
}

#[test]
fn a_spools_secret_is_not_printed() {
    let printed = format!("{:?}", NewSpool { token_key: [171; 32], ..new_spool(1, 3, 1) });
    assert!(!printed.contains("171") && !printed.contains("ab, ab"), "{printed}");
}
