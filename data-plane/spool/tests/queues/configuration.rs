//! Queues themselves: put, patch, preconditions, limits, list, delete, purge.

use crate::bench::{Bench, PLAN, name, payloads, refused, secs, text, token};
use spool::command::{Command, Delay, NewMessage, Precondition, Reply};
use spool::config::ConfigChange;
use std::time::Duration;
use types::{ErrorCode, limits};

fn delete(bench: &mut Bench, queue: &str) -> Reply {
    bench.ask(Command::DeleteQueue { queue: name(queue), precondition: Precondition::None })
}

fn purge(bench: &mut Bench) -> u64 {
    match bench.ask(Command::Purge { queue: name("q") }) {
        Reply::Purged { messages, .. } => messages,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_put_creates_with_the_defaults_and_replaces_with_them() {
    let mut bench = Bench::new();
    let reply = bench.try_put("q", true, Precondition::None, |change| change.lease = Some(secs(5)));
    let Reply::QueuePut { info, created: true, written } = reply else { panic!("{reply:?}") };
    assert_eq!((info.config.lease, written.copies), (secs(5), 1));
    assert_eq!(info.config.retention, PLAN.retention_max);
    assert_eq!(info.config.message_bytes_max, PLAN.message_bytes_max);
    assert_eq!(bench.look("q"), *info);
    let reply = bench.try_put("q", true, Precondition::None, |change| change.delay = Some(secs(1)));
    let Reply::QueuePut { info, created: false, .. } = reply else { panic!("{reply:?}") };
    assert_eq!((info.config.lease, info.config.delay), (limits::LEASE_DEFAULT, secs(1)));
}

#[test]
fn a_patch_changes_what_it_names_and_unsets_what_it_says() {
    let mut bench = Bench::with_queue("q", |change| {
        change.lease = Some(secs(5));
        change.deliveries_max = Some(Some(3));
        change.dead_letter_queue = Some(Some(name("bad")));
    });
    let reply = bench.try_put("q", false, Precondition::None, |change| {
        change.dead_letter_queue = Some(None);
        change.delay = Some(secs(1));
    });
    let Reply::QueuePut { info, created: false, .. } = reply else { panic!("{reply:?}") };
    let config = &info.config;
    assert_eq!((config.lease, config.deliveries_max, config.delay), (secs(5), Some(3), secs(1)));
    assert_eq!(config.dead_letter_queue, None);
    let reply = bench.try_put("none", false, Precondition::None, |_| {});
    assert_eq!(refused(reply).code, ErrorCode::QueueNotFound);
}

#[test]
fn preconditions_look_at_the_configuration_alone() {
    let mut bench = Bench::with_queue("q", |_| {});
    let etag = bench.look("q").etag;
    bench.send("q", text("a"));
    assert_eq!(bench.look("q").etag, etag, "messages do not change it");
    let matching = |etags: &[u64]| Precondition::Match(etags.to_vec());
    let fits = bench.try_put("q", true, matching(&[1, etag]), |change| change.lease = Some(secs(9)));
    assert!(matches!(fits, Reply::QueuePut { .. }));
    assert_ne!(bench.look("q").etag, etag);
    for (queue, wrong) in [
        ("q", matching(&[etag])),
        ("q", Precondition::Absent),
        ("r", Precondition::Exists),
        ("r", matching(&[etag])),
    ] {
        let reply = bench.try_put(queue, true, wrong, |_| {});
        assert_eq!(refused(reply).code, ErrorCode::PreconditionFailed);
    }
    let reply = bench.ask(Command::DeleteQueue { queue: name("q"), precondition: matching(&[etag]) });
    assert_eq!(refused(reply).code, ErrorCode::PreconditionFailed);
    assert!(matches!(bench.try_put("q", true, Precondition::Exists, |_| {}), Reply::QueuePut { .. }));
    assert!(matches!(bench.try_put("r", true, Precondition::Absent, |_| {}), Reply::QueuePut { .. }));
}

#[test]
fn a_configuration_that_contradicts_itself_is_refused_by_its_field() {
    let mut bench = Bench::new();
    type Change = fn(&mut ConfigChange);
    let wrong: [(&str, Change); 3] = [
        ("deadLetterQueue", |change| change.dead_letter_queue = Some(Some(name("q")))),
        ("delaySeconds", |change| {
            change.delay = Some(secs(61));
            change.retention = Some(secs(60));
        }),
        ("retryBackoff", |change| {
            change.backoff_initial = Some(secs(10));
            change.backoff_max = Some(secs(9));
        }),
    ];
    for (field, change) in wrong {
        let failure = refused(bench.try_put("q", true, Precondition::None, change));
        assert_eq!((failure.code, failure.field), (ErrorCode::InvalidRequest, Some(field)));
    }
}

#[test]
fn a_plan_holds_so_many_queues() {
    let mut bench = Bench::new();
    for queue in ["a", "b", "c", "d"] {
        bench.put(queue, |_| {});
    }
    let reply = bench.try_put("e", true, Precondition::None, |_| {});
    assert_eq!(refused(reply).code, ErrorCode::LimitExceeded);
    bench.put("a", |_| {});
    assert!(matches!(delete(&mut bench, "b"), Reply::Deleted { .. }));
    bench.put("e", |_| {});
}

#[test]
fn two_puts_at_once_create_one_queue() {
    let mut bench = Bench::new();
    bench.disk_is_slow = true;
    let put = || Command::PutQueue {
        queue: name("q"),
        change: ConfigChange::nothing(true, PLAN),
        precondition: Precondition::Absent,
    };
    let (first, second) = (bench.start(put()), bench.start(put()));
    bench.sync();
    bench.disk_is_slow = false;
    bench.sync();
    assert!(matches!(bench.answer(first), Some(Reply::QueuePut { created: true, .. })));
    let failure = refused(bench.answer(second).expect("answered"));
    assert_eq!(failure.code, ErrorCode::PreconditionFailed, "it sees what came of the first");
}

#[test]
fn queues_are_listed_in_pages_by_name() {
    let mut bench = Bench::new();
    for queue in ["b", "a.2", "a.1", "a.3"] {
        bench.put(queue, |_| {});
    }
    let mut list = |after| match bench.ask(Command::ListQueues { prefix: "a.".to_owned(), after, limit: 2 }) {
        Reply::Queues { queues, next } => (queues.into_iter().map(|(name, ..)| name).collect(), next),
        other => panic!("{other:?}"),
    };
    let (first, next): (Vec<_>, _) = list(None);
    assert_eq!((first, &next), (vec![name("a.1"), name("a.2")], &Some(name("a.2"))));
    assert_eq!(list(next), (vec![name("a.3")], None));
}

#[test]
fn a_deleted_queue_takes_its_messages_and_leases_with_it() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send("q", text("old"));
    let held = bench.receive_one("q");
    bench.send("q", text("older"));
    assert!(matches!(delete(&mut bench, "q"), Reply::Deleted { .. }));
    assert_eq!(refused(delete(&mut bench, "q")).code, ErrorCode::QueueNotFound);
    bench.put("q", |_| {});
    bench.pass(secs(60));
    assert!(bench.receive("q", 10).is_empty(), "a queue of the same name is another one");
    assert_eq!(bench.ack("q", token(&held)), Some(ErrorCode::StaleToken));
    assert_eq!(bench.look("q").totals, Default::default());
}

#[test]
fn a_queue_that_another_dead_letters_into_cannot_be_deleted() {
    let mut bench = Bench::with_queue("q", |change| change.dead_letter_queue = Some(Some(name("bad"))));
    bench.put("bad", |_| {});
    assert_eq!(refused(delete(&mut bench, "bad")).code, ErrorCode::QueueInUse);
    bench.put("q", |_| {});
    assert!(matches!(delete(&mut bench, "bad"), Reply::Deleted { .. }));
}

#[test]
fn a_purge_removes_everything_accepted_before_it_and_nothing_else() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send_all("q", (0..70).map(|i| text(&i.to_string())).collect());
    bench.send("q", NewMessage { delay: Delay::For(secs(5)), ..text("delayed") });
    let held = bench.receive("q", 2);
    assert_eq!(purge(&mut bench), 71);
    assert_eq!(bench.ack("q", token(&held[0])), Some(ErrorCode::StaleToken));
    let failure = refused(bench.extend("q", token(&held[1]), secs(5)));
    assert!(failure.detail.contains("purged"), "{}", failure.detail);
    bench.send("q", text("after"));
    bench.pass(secs(60));
    assert_eq!(payloads(&bench.receive("q", 10)), ["after"]);
    let info = bench.look("q");
    assert_eq!((info.bytes, info.leased, info.available, info.delayed), (5, 1, 0, 0));
    assert_eq!(info.totals.sent, 72, "totals are of the queue's life");
    assert_eq!(purge(&mut bench), 1);
}

#[test]
fn a_message_is_deleted_by_its_id_and_its_lease_with_it() {
    let mut bench = Bench::with_queue("q", |_| {});
    let (a, b) = (bench.send("q", text("a")), bench.send("q", text("b")));
    let held = bench.receive("q", 1);
    let delete = |id| Command::DeleteMessage { queue: name("q"), id };
    assert!(matches!(bench.ask(delete(a)), Reply::Deleted { .. }));
    assert_eq!(bench.ack("q", token(&held[0])), Some(ErrorCode::StaleToken));
    assert_eq!(refused(bench.ask(delete(a))).code, ErrorCode::MessageNotFound);
    assert!(matches!(bench.ask(delete(b)), Reply::Deleted { .. }));
    bench.pass(Duration::from_secs(60));
    assert!(bench.receive("q", 10).is_empty());
    assert_eq!(bench.look("q").bytes, 0);
}
