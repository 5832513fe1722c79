//! Dedup keys: one key, one message, for the queue's window. I18

use crate::bench::{Bench, keyed, name, payloads, refused, secs, text};
use bytes::Bytes;
use spool::command::{Command, NewMessage, Reply};
use types::{ErrorCode, MessageId};

const WINDOW: u64 = 60;

fn bench() -> Bench {
    Bench::with_queue("q", |change| change.dedup_window = Some(secs(WINDOW)))
}

fn look_up(bench: &mut Bench, key: &'static str) -> Option<MessageId> {
    match bench.ask(Command::LookUpKey { queue: name("q"), key: Bytes::from_static(key.as_bytes()) }) {
        Reply::KeyLookedUp { id } => id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_same_key_and_payload_answers_with_the_first_message() {
    let mut bench = bench();
    let (first, written) = bench.send_all("q", vec![keyed("a", "k")]);
    bench.send("q", text("in between"));
    let (again, written_again) = bench.send_all("q", vec![keyed("a", "k")]);
    assert_eq!((again[0].id, again[0].duplicate), (first[0].id, true));
    assert_eq!(written_again, written, "a duplicate's position is the first send's");
    assert_eq!(payloads(&bench.receive("q", 10)), ["a", "in between"]);
}

#[test]
fn the_same_key_with_other_bytes_or_content_type_is_refused() {
    let mut bench = bench();
    bench.send("q", keyed("a", "k"));
    let failure = refused(bench.try_send("q", vec![text("fine"), keyed("b", "k")]));
    assert_eq!(failure.code, ErrorCode::DedupKeyReused);
    assert_eq!((failure.index, failure.field), (Some(1), Some("dedupKey")));
    let typed = NewMessage { content_type: Some("text/plain".to_owned()), ..keyed("a", "k") };
    assert_eq!(refused(bench.try_send("q", vec![typed])).code, ErrorCode::DedupKeyReused);
    assert_eq!(payloads(&bench.receive("q", 10)), ["a"]);
}

#[test]
fn a_key_is_forgotten_when_its_window_ends_and_not_before() {
    let mut bench = bench();
    let first = bench.send("q", keyed("a", "k"));
    bench.pass(secs(WINDOW) - std::time::Duration::from_millis(1));
    // A duplicate does not prolong the window.
    assert_eq!(bench.send("q", keyed("a", "k")), first);
    bench.pass(std::time::Duration::from_millis(1));
    assert_eq!(look_up(&mut bench, "k"), None);
    let second = bench.send("q", keyed("other", "k"));
    assert_ne!(second, first);
    bench.pass(secs(WINDOW - 1));
    assert_eq!(bench.send("q", keyed("other", "k")), second, "it has a window of its own");
}

#[test]
fn a_key_outlives_its_message() {
    let mut bench = bench();
    let first = bench.send("q", keyed("a", "k"));
    let got = bench.receive_one("q");
    assert_eq!(bench.ack("q", crate::bench::token(&got)), None);
    assert_eq!(bench.send("q", keyed("a", "k")), first, "after its ack");
    assert!(matches!(bench.ask(Command::Purge { queue: name("q") }), Reply::Purged { messages: 0, .. }));
    assert_eq!(bench.send("q", keyed("a", "k")), first, "after a purge");
    bench.restart();
    assert_eq!(bench.send("q", keyed("a", "k")), first, "after a change of primary");
    assert!(bench.receive("q", 10).is_empty());
}

#[test]
fn a_key_is_forgotten_with_its_queue() {
    let mut bench = bench();
    let first = bench.send("q", keyed("a", "k"));
    bench.ask(Command::DeleteQueue { queue: name("q"), precondition: Default::default() });
    bench.put("q", |change| change.dedup_window = Some(secs(WINDOW)));
    assert_ne!(bench.send("q", keyed("b", "k")), first);
}

#[test]
fn a_changed_window_counts_for_later_accepts() {
    let mut bench = bench();
    let first = bench.send("q", keyed("a", "k"));
    bench.put("q", |change| change.dedup_window = Some(secs(1)));
    bench.pass(secs(30));
    assert_eq!(bench.send("q", keyed("a", "k")), first);
    let short = bench.send("q", keyed("b", "short"));
    bench.pass(secs(1));
    assert_ne!(bench.send("q", keyed("b", "short")), short);
}

#[test]
fn a_key_belongs_to_one_queue() {
    let mut bench = bench();
    bench.put("r", |change| change.dedup_window = Some(secs(WINDOW)));
    let first = bench.send("q", keyed("a", "k"));
    assert_ne!(bench.send("r", keyed("b", "k")), first);
}

#[test]
fn a_key_without_a_window_is_refused_not_ignored() {
    let mut bench = Bench::with_queue("q", |_| {});
    let failure = refused(bench.try_send("q", vec![keyed("a", "k")]));
    assert_eq!((failure.code, failure.field), (ErrorCode::DedupNotEnabled, Some("dedupKey")));
}

#[test]
fn the_same_key_within_a_batch_is_one_message() {
    let mut bench = bench();
    let (sent, _) = bench.send_all("q", vec![keyed("a", "k"), text("b"), keyed("a", "k")]);
    assert_eq!((sent[0].duplicate, sent[2].duplicate, sent[2].id), (false, true, sent[0].id));
    assert_eq!(payloads(&bench.receive("q", 10)), ["a", "b"]);
    let failure = refused(bench.try_send("q", vec![keyed("x", "l"), keyed("y", "l")]));
    assert_eq!((failure.code, failure.index), (ErrorCode::DedupKeyReused, Some(1)));
    assert_eq!(look_up(&mut bench, "l"), None, "nothing of that batch is stored");
}

#[test]
fn a_retry_that_overtakes_the_original_waits_with_it() {
    let mut bench = bench();
    bench.disk_is_slow = true;
    let send = |payload| Command::Send { queue: name("q"), messages: vec![keyed(payload, "k")] };
    let (original, retry, other) =
        (bench.start(send("a")), bench.start(send("a")), bench.start(send("another")));
    bench.pass(secs(1));
    for id in [original, retry, other] {
        assert_eq!(bench.answer(id), None, "nothing is confirmed yet");
    }
    bench.sync();
    let (Some(Reply::Sent { messages: first, .. }), Some(Reply::Sent { messages: second, .. })) =
        (bench.answer(original), bench.answer(retry))
    else {
        panic!("both are answered")
    };
    assert_eq!((second[0].id, first[0].duplicate, second[0].duplicate), (first[0].id, false, true));
    let failure = refused(bench.answer(other).expect("answered"));
    assert_eq!(failure.code, ErrorCode::DedupKeyReused);
}

#[test]
fn a_look_up_is_ordered_after_the_writes_before_it() {
    let mut bench = bench();
    assert_eq!(look_up(&mut bench, "k"), None);
    bench.disk_is_slow = true;
    bench.start(Command::Send { queue: name("q"), messages: vec![keyed("a", "k")] });
    let asked = bench.start(Command::LookUpKey { queue: name("q"), key: Bytes::from_static(b"k") });
    assert_eq!(bench.answer(asked), None);
    bench.sync();
    assert!(matches!(bench.answer(asked), Some(Reply::KeyLookedUp { id: Some(_) })));
}
