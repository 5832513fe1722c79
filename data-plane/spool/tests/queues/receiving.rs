//! A receive: which messages, in which order, how many.

use crate::bench::{Bench, name, payloads, refused, secs, text, token};
use bytes::Bytes;
use spool::command::{Command, NewMessage};
use std::collections::BTreeSet;
use std::time::Duration;
use types::{ErrorCode, limits};

#[test]
fn a_message_is_handed_out_once() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send_all("q", (0..20).map(|i| text(&i.to_string())).collect());
    let mut seen = BTreeSet::new();
    for max in [1, 3, 7, 100, 100] {
        for got in bench.receive("q", max) {
            assert!(seen.insert(got.id), "{} is handed out twice", got.id); // I16
        }
    }
    assert_eq!(seen.len(), 20);
    assert!(bench.receive("q", 1).is_empty());
}

#[test]
fn higher_priorities_come_first_and_then_the_order_of_acceptance() {
    let mut bench = Bench::with_queue("q", |_| {});
    for (payload, priority) in [("low", Some(0)), ("a", None), ("high", Some(9)), ("b", Some(4)), ("c", None)]
    {
        bench.send("q", NewMessage { priority, ..text(payload) });
    }
    assert_eq!(payloads(&bench.receive("q", 2)), ["high", "a"]);
    bench.send("q", NewMessage { priority: Some(9), ..text("higher later") });
    assert_eq!(payloads(&bench.receive("q", 10)), ["higher later", "b", "c", "low"]);
}

#[test]
fn what_comes_back_takes_its_place_again() {
    let mut bench = Bench::with_queue("q", |_| {});
    for payload in ["a", "b", "c"] {
        bench.send("q", text(payload));
    }
    let got = bench.receive("q", 2);
    assert_eq!(bench.nack("q", token(&got[1]), Some(Duration::ZERO)), None);
    assert_eq!(bench.nack("q", token(&got[0]), Some(Duration::ZERO)), None);
    assert_eq!(payloads(&bench.receive("q", 10)), ["a", "b", "c"]);
}

#[test]
fn a_receive_hands_out_four_mebibytes_at_most_but_one_message_always() {
    let mut bench = Bench::new();
    let large = crate::bench::PLAN;
    let plan = spool::config::PlanBounds { message_bytes_max: limits::MESSAGE_BYTES_MAX as u32, ..large };
    let change = spool::config::ConfigChange::nothing(true, plan);
    bench.ask(Command::PutQueue { queue: name("q"), change, precondition: Default::default() });
    let payload = Bytes::from(vec![b'x'; limits::MESSAGE_BYTES_MAX]);
    for _ in 0..6 {
        bench.send("q", NewMessage { payload: payload.clone(), ..NewMessage::default() });
    }
    assert_eq!(bench.receive("q", 100).len(), limits::RECEIVE_BYTES_MAX / limits::MESSAGE_BYTES_MAX);
    assert_eq!(bench.receive("q", 100).len(), 2, "what did not fit is still there");
}

#[test]
fn a_queue_that_is_paused_for_receives_gives_nothing_and_keeps_everything() {
    let mut bench = Bench::with_queue("q", |change| change.paused_receive = Some(true));
    bench.send("q", text("a"));
    assert!(bench.receive("q", 10).is_empty());
    bench.put("q", |_| {});
    assert_eq!(payloads(&bench.receive("q", 10)), ["a"]);
}

#[test]
fn nothing_is_received_before_it_is_confirmed() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.disk_is_slow = true;
    bench.start(Command::Send { queue: name("q"), messages: vec![text("a")] });
    assert!(bench.receive("q", 10).is_empty());
    let info = bench.look("q");
    assert_eq!((info.available, info.bytes, info.totals.sent), (0, 0, 0));
    bench.sync();
    assert_eq!(payloads(&bench.receive("q", 10)), ["a"]);
}

#[test]
fn a_queue_that_is_not_there_is_not_an_empty_one() {
    let mut bench = Bench::new();
    let receive = Command::Receive { queue: name("q"), max: 1, wait: secs(0), lease: None };
    assert_eq!(refused(bench.ask(receive)).code, ErrorCode::QueueNotFound);
}

#[test]
fn many_more_messages_than_are_held_in_memory_come_in_order() {
    let mut bench = Bench::with_queue("q", |_| {});
    assert!(bench.receive("q", 1).is_empty(), "from here on the order is kept in memory");
    let total = 3 * limits::WINDOW_MAX;
    for from in (0..total).step_by(limits::BATCH_MAX) {
        let to = (from + limits::BATCH_MAX).min(total);
        bench.send_all("q", (from..to).map(|i| text(&i.to_string())).collect());
    }
    let mut next = 0;
    while next < total {
        let got = bench.receive("q", 100);
        let expected: Vec<String> = (next..(next + 100).min(total)).map(|i| i.to_string()).collect();
        assert_eq!(payloads(&got), expected);
        next += got.len();
    }
    assert_eq!(bench.look("q").leased, total as u64);
}
