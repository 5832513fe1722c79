//! A send: what is stored, what is refused, what waits until its time.

use crate::bench::{Bench, PLAN, name, payloads, refused, secs, text};
use bytes::Bytes;
use spool::command::{Delay, NewMessage, Reply};
use types::{ErrorCode, Position};

#[test]
fn what_is_sent_is_received_byte_for_byte() {
    let mut bench = Bench::with_queue("q", |_| {});
    let sent = NewMessage {
        payload: Bytes::from_static(&[0, 255, 10]),
        content_type: Some("image/png".to_owned()),
        attributes: vec![("a".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())],
        priority: Some(7),
        traceparent: Some("00-1-2-01".to_owned()),
        ..NewMessage::default()
    };
    let id = bench.send("q", sent.clone());
    let got = bench.receive_one("q");
    assert_eq!(got.id, id);
    assert_eq!((&got.payload, &got.content_type), (&sent.payload, &sent.content_type));
    assert_eq!((&got.attributes, got.priority), (&sent.attributes, 7));
    assert_eq!((&got.traceparent, got.deliveries, got.sent_at), (&sent.traceparent, 1, bench.now.wall));
    assert_eq!((got.available_at, got.dead_letter), (None, None));
}

#[test]
fn an_empty_payload_is_a_message() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send("q", text(""));
    assert_eq!(payloads(&bench.receive("q", 10)), [""]);
}

#[test]
fn a_send_says_where_it_is_written_and_on_how_many_nodes() {
    let mut bench = Bench::with_queue("q", |_| {});
    let (sent, written) = bench.send_all("q", vec![text("a"), text("b")]);
    assert_eq!(written.copies, 1);
    for (index, one) in sent.iter().enumerate() {
        assert_eq!(Position { epoch: one.id.epoch, seq: one.id.seq }, written.position, "I7");
        assert_eq!((usize::from(one.id.index), one.duplicate), (index, false));
    }
    let (_, later) = bench.send_all("q", vec![text("c")]);
    assert!(later.position > written.position);
}

#[test]
fn a_batch_is_stored_whole_or_not_at_all() {
    let mut bench = Bench::with_queue("q", |change| change.message_bytes_max = Some(3));
    let failure = refused(bench.try_send("q", vec![text("abc"), text("abcd"), text("a")]));
    assert_eq!((failure.code, failure.index), (ErrorCode::PayloadTooLarge, Some(1)));
    assert!(bench.receive("q", 10).is_empty());
    assert_eq!(bench.look("q").totals.sent, 0);
}

#[test]
fn a_batch_longer_than_a_block_is_received_in_its_order() {
    let mut bench = Bench::with_queue("q", |_| {});
    let all: Vec<String> = (0..150).map(|i| format!("m{i}")).collect();
    bench.send_all("q", all.iter().map(|payload| text(payload)).collect());
    let mut got = Vec::new();
    for _ in 0..3 {
        got.extend(payloads(&bench.receive("q", 50)).into_iter().map(str::to_owned));
    }
    assert_eq!(got, all);
}

#[test]
fn a_queue_that_is_not_there_takes_nothing() {
    let mut bench = Bench::new();
    assert_eq!(refused(bench.try_send("q", vec![text("a")])).code, ErrorCode::QueueNotFound);
}

#[test]
fn a_queue_that_is_paused_for_sends_says_so() {
    let mut bench = Bench::with_queue("q", |change| change.paused_send = Some(true));
    assert_eq!(refused(bench.try_send("q", vec![text("a")])).code, ErrorCode::QueuePaused);
}

// ---- delays

#[test]
fn a_delayed_message_is_available_when_its_delay_ends_and_not_before() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send("q", NewMessage { delay: Delay::For(secs(5)), ..text("late") });
    bench.pass(secs(5) - std::time::Duration::from_millis(1));
    assert!(bench.receive("q", 10).is_empty());
    assert_eq!(bench.look("q").delayed, 1);
    bench.pass(std::time::Duration::from_millis(1));
    assert_eq!(payloads(&bench.receive("q", 10)), ["late"]);
    assert_eq!((bench.look("q").delayed, bench.look("q").leased), (0, 1));
}

#[test]
fn the_queues_delay_counts_where_the_message_names_none() {
    let mut bench = Bench::with_queue("q", |change| change.delay = Some(secs(3)));
    bench.send("q", text("as the queue says"));
    bench.send("q", NewMessage { delay: Delay::For(secs(0)), ..text("now") });
    assert_eq!(payloads(&bench.receive("q", 10)), ["now"]);
    bench.pass(secs(3));
    assert_eq!(payloads(&bench.receive("q", 10)), ["as the queue says"]);
}

#[test]
fn a_message_for_a_moment_waits_for_it_and_one_for_the_past_does_not_wait() {
    let mut bench = Bench::with_queue("q", |_| {});
    let at = bench.now.wall + secs(8);
    bench.send("q", NewMessage { delay: Delay::Until(at), ..text("at eight") });
    let past = types::WallMs(bench.now.wall.0 - 60_000);
    bench.send("q", NewMessage { delay: Delay::Until(past), ..text("long ago") });
    assert_eq!(payloads(&bench.receive("q", 10)), ["long ago"]);
    bench.pass(secs(8));
    assert_eq!(payloads(&bench.receive("q", 10)), ["at eight"]);
}

#[test]
fn a_delay_beyond_the_retention_is_refused_by_its_field() {
    let mut bench = Bench::with_queue("q", |change| change.retention = Some(secs(60)));
    let late = NewMessage { delay: Delay::For(secs(61)), ..text("a") };
    let failure = refused(bench.try_send("q", vec![late]));
    assert_eq!((failure.code, failure.field), (ErrorCode::InvalidRequest, Some("delaySeconds")));
    let at = bench.now.wall + secs(61);
    let failure = refused(bench.try_send("q", vec![NewMessage { delay: Delay::Until(at), ..text("a") }]));
    assert_eq!((failure.code, failure.field), (ErrorCode::InvalidRequest, Some("deliverAt")));
}

// ---- ends by themselves

#[test]
fn a_message_past_its_time_to_live_is_gone_and_counted() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send("q", NewMessage { ttl: Some(secs(10)), ..text("short") });
    bench.send("q", text("long"));
    bench.pass(secs(10));
    assert_eq!(payloads(&bench.receive("q", 10)), ["long"]);
    let info = bench.look("q");
    assert_eq!((info.totals.expired, info.leased, info.available, info.settling), (1, 1, 0, 0));
    assert_eq!(info.bytes, 4);
}

#[test]
fn a_message_past_the_queues_retention_is_gone() {
    let mut bench = Bench::with_queue("q", |change| change.retention = Some(secs(60)));
    bench.send("q", text("old"));
    bench.pass(secs(59));
    bench.send("q", text("new"));
    bench.pass(secs(1));
    assert_eq!(payloads(&bench.receive("q", 10)), ["new"]);
    assert_eq!(bench.look("q").totals.expired, 1);
}

#[test]
fn a_message_that_its_plan_does_not_hold_is_refused() {
    let mut bench = Bench::with_queue("q", |_| {});
    let large = "x".repeat(PLAN.message_bytes_max as usize + 1);
    let reply = bench.try_send("q", vec![text(&large)]);
    assert_eq!(refused(reply).code, ErrorCode::PayloadTooLarge);
    let fits = "x".repeat(PLAN.message_bytes_max as usize);
    assert!(matches!(bench.try_send("q", vec![text(&fits)]), Reply::Sent { .. }));
    assert_eq!(bench.look("q").name, name("q"));
}
