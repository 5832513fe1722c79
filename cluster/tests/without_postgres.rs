//! Who is primary is no matter of PostgreSQL's: a control plane that starts without it elects, and does the rest once it is there.

use cluster::harness::{Cluster, PATIENCE};
use cluster::installation::Fault::{Kill, Start};
use cluster::parts::PartName::{Control, Node, Postgres};
use cluster::wait::wait_until;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_starts_without_postgresql_elects_and_creates_spools_once_it_is_there() {
    let cluster = Cluster::start(3).await.expect("it starts");
    let primary = cluster.primary_of("default").await.expect("a primary");
    let other = cluster.others(primary)[0];
    let api = cluster.api(other);
    api.put_queue("jobs", &json!({})).await.expect("a queue");
    api.send("jobs", "before").await.expect("sent");

    for part in [Control, Postgres, Node(primary)] {
        cluster.fault(Kill, part).await.expect("killed");
    }
    cluster.fault(Start, Control).await.expect("it answers without PostgreSQL");
    // The first may have been on its way to the node that was killed.
    let sent = wait_until(PATIENCE, "a send to be answered", || api.send("jobs", "after")).await;
    sent.expect("another primary was elected");

    cluster.fault(Start, Postgres).await.expect("PostgreSQL is back");
    let created = wait_until(PATIENCE, "a spool to be created", || async {
        let owner = cluster.owner().await.map_err(|error| format!("{error:#}"))?;
        owner.create_spool("late", 2, 0).await.map(|_| ()).map_err(|error| format!("{error:#}"))
    });
    created.await.expect("by the same control plane, once it has its database");
    cluster.stop().await;
}
