//! Three replicas, one synchronous: the primary is killed under load. Service returns by itself, every acknowledged message
//! is exactly where it should be, and what was leased before is known to be stale.

use cluster::api::{Api, Failure};
use cluster::harness::{Cluster, PATIENCE, drain, patiently};
use cluster::installation::Fault;
use cluster::parts::PartName;
use cluster::wait::wait_until;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const PRODUCERS: usize = 12;
const BEFORE: usize = 300;
const AFTER: usize = 300;

/// What the producers learned.
#[derive(Default)]
struct Ledger {
    /// Acknowledged: what each id holds.
    acknowledged: Mutex<BTreeMap<String, String>>,
    /// Neither acknowledged nor certain to have had no effect.
    in_doubt: Mutex<BTreeSet<String>>,
    count: AtomicUsize,
    done: AtomicBool,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_replaced_and_no_acknowledged_message_is_lost() {
    let cluster = Cluster::start(3).await.expect("it starts");
    let primary = cluster.primary_of("default").await.expect("a primary");
    let survivors = cluster.others(primary);
    let api = cluster.api(survivors[0]);
    let epoch = api.spool("default").await.expect("seen").epoch;
    api.put_queue("load", &json!({})).await.expect("a queue");
    api.put_queue("leased", &json!({ "leaseSeconds": 600 })).await.expect("a queue");

    // Leased before the kill: some settled, some not.
    for number in 0..10 {
        api.send("leased", &number.to_string()).await.expect("sent");
    }
    let leased = api.receive("leased", &json!({ "max": 10 })).await.expect("received");
    assert_eq!(leased.len(), 10);
    let (settled, open) = leased.split_at(4);
    for message in settled {
        api.ack("leased", &message.token).await.expect("acknowledged");
    }

    let ledger = Arc::new(Ledger::default());
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let api = cluster.api(survivors[producer % survivors.len()]);
            tokio::spawn(produce(api, producer, ledger.clone()))
        })
        .collect();
    ledger.reach(BEFORE).await;
    cluster.fault(Fault::Kill, PartName::Node(primary)).await.expect("killed");
    // By itself: nothing is done here but sending again.
    ledger.reach(ledger.count.load(SeqCst) + AFTER).await;
    ledger.done.store(true, SeqCst);
    for producer in producers {
        producer.await.expect("no producer met an answer that it may not get");
    }
    let now = api.spool("default").await.expect("seen");
    assert!(now.epoch > epoch, "a new primary, a new epoch: {now:?}");

    old_tokens_are_stale(&api, open.iter().map(|message| message.token.as_str())).await;
    let back: BTreeSet<String> =
        drain(&api, "leased").await.expect("drained").into_iter().map(|m| m.id).collect();
    assert_eq!(
        back,
        open.iter().map(|message| message.id.clone()).collect(),
        "settled is settled, leased is back"
    );

    ledger.compare(&drain(&cluster.api(survivors[1]), "load").await.expect("drained"));
    comes_back(&cluster, primary).await;
    cluster.stop().await;
}

async fn old_tokens_are_stale(api: &Api, tokens: impl Iterator<Item = &str>) {
    for token in tokens {
        let failure = patiently("an answer to an old token", || api.ack("leased", token)).await;
        let failure =
            failure.expect_err("its lease went with the primary").downcast::<Failure>().expect("an answer");
        let problem = failure.problem().expect("a problem");
        assert_eq!((problem.status, problem.code.as_str()), (410, "stale_token"));
    }
}

/// The old primary follows the new one.
async fn comes_back(cluster: &Cluster, node: u16) {
    cluster.fault(Fault::Start, PartName::Node(node)).await.expect("started again");
    let api = cluster.api(node);
    let whole = || async {
        match api.spool("default").await {
            Ok(spool) if spool.copies.iter().all(|copy| copy.reachable) => Ok(()),
            Ok(spool) => Err(format!("{spool:?}")),
            Err(failure) => Err(failure.to_string()),
        }
    };
    wait_until(PATIENCE, "three copies", whole).await.expect("it follows");
    let sent = patiently("a send", || api.send("load", "to the one that came back")).await.expect("sent");
    let received = drain(&api, "load").await.expect("drained");
    assert_eq!(received.iter().map(|message| &message.id).collect::<Vec<_>>(), [&sent.id]);
}

/// Sends numbered messages one after the other, as a careful client does: again after a 503, never after a doubt.
async fn produce(api: Api, producer: usize, ledger: Arc<Ledger>) {
    let mut number = 0;
    while !ledger.done.load(SeqCst) {
        let body = format!("{producer} {number}");
        match api.send("load", &body).await {
            Ok(sent) => {
                let before = ledger.acknowledged.lock().expect("not poisoned").insert(sent.id, body);
                assert_eq!(before, None, "an id is never used again");
                ledger.count.fetch_add(1, SeqCst);
            }
            Err(failure) if failure.is_without_effect() => {
                assert_eq!(failure.problem().map(|problem| problem.status), Some(503), "{failure}");
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                continue;
            }
            Err(failure @ Failure::Nonsense(_)) => panic!("{failure}"),
            Err(_) => {
                ledger.in_doubt.lock().expect("not poisoned").insert(body);
            }
        }
        number += 1;
    }
}

impl Ledger {
    async fn reach(&self, count: usize) {
        let what = format!("{count} messages to be acknowledged");
        let reached = || async {
            match self.count.load(SeqCst) {
                so_far if so_far >= count => Ok(()),
                so_far => Err(format!("{so_far}")),
            }
        };
        wait_until(PATIENCE, what, reached).await.expect("service returns by itself");
    }

    /// Everything acknowledged, once, with its own bytes and in the order in which each producer sent; beside it nothing but what was
    /// in doubt.
    fn compare(&self, found: &[cluster::api::Received]) {
        let acknowledged = self.acknowledged.lock().expect("not poisoned");
        let in_doubt = self.in_doubt.lock().expect("not poisoned");
        let mut missing = acknowledged.clone();
        let mut last = BTreeMap::<usize, usize>::new();
        for message in found {
            let body = message.body.as_deref().expect("text");
            match missing.remove(&message.id) {
                Some(sent) => assert_eq!(sent, body, "an id holds what was sent under it"),
                None if acknowledged.contains_key(&message.id) => panic!("{body} is there twice"),
                None => assert!(in_doubt.contains(body), "{body} was refused, or is there twice"),
            }
            let (producer, number) = body.split_once(' ').expect("two numbers");
            let (producer, number) = (producer.parse().expect("one"), number.parse().expect("the other"));
            let before = last.insert(producer, number);
            assert!(
                before.is_none_or(|before| before < number),
                "producer {producer}: {number} after {before:?}"
            );
        }
        assert!(
            missing.is_empty(),
            "{} of {} acknowledged are gone: {missing:?}",
            missing.len(),
            acknowledged.len()
        );
    }
}
