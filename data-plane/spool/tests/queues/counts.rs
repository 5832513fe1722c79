//! What looks show, without taking: counts, browse, one message.

use crate::bench::{Bench, name, payloads, refused, secs, text, token};
use spool::command::{BrowseCursor, BrowseState, Command, Delay, Delivered, NewMessage, Reply, Settle};
use types::{ErrorCode, MessageId};

fn browse(
    bench: &mut Bench,
    state: BrowseState,
    after: Option<BrowseCursor>,
) -> (Vec<Delivered>, Option<BrowseCursor>) {
    match bench.ask(Command::Browse { queue: name("q"), state, after, limit: 2 }) {
        Reply::Messages { messages, next } => (messages, next),
        other => panic!("{other:?}"),
    }
}

fn get(bench: &mut Bench, queue: &str, id: MessageId) -> Reply {
    bench.ask(Command::GetMessage { queue: name(queue), id })
}

/// Three available, one leased, one delayed.
fn mixed() -> Bench {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send("q", text("held"));
    bench.receive_one("q");
    bench.send_all("q", vec![text("a"), text("b"), text("c")]);
    bench.send("q", NewMessage { delay: Delay::For(secs(9)), ..text("late") });
    bench
}

#[test]
fn counts_are_exact_at_every_step() {
    let mut bench = mixed();
    let count = |bench: &mut Bench| {
        let info = bench.look("q");
        (info.available, info.leased, info.delayed, info.settling, info.bytes)
    };
    assert_eq!(count(&mut bench), (3, 1, 1, 0, 11));
    let got = bench.receive("q", 2);
    assert_eq!(count(&mut bench), (1, 3, 1, 0, 11));
    bench.nack("q", token(&got[0]), Some(secs(3)));
    assert_eq!(count(&mut bench), (1, 2, 2, 0, 11));
    bench.ack("q", token(&got[1]));
    assert_eq!(count(&mut bench), (1, 1, 2, 0, 10));
    bench.pass(secs(9));
    assert_eq!(count(&mut bench), (3, 1, 0, 0, 10));
    bench.pass(secs(21));
    assert_eq!(count(&mut bench), (4, 0, 0, 0, 10));
    let all = bench.receive("q", 10);
    bench.settle_one("q", Settle::Reject { reason: None }, token(&all[0]));
    assert_eq!(count(&mut bench), (0, 3, 0, 0, 6));
    bench.restart();
    assert_eq!(count(&mut bench), (3, 0, 0, 0, 6), "leases were memory, counts are rows");
}

#[test]
fn the_oldest_available_message_is_told_by_its_age() {
    let mut bench = Bench::with_queue("q", |_| {});
    assert_eq!(bench.look("q").oldest_available, None);
    bench.send("q", text("a"));
    bench.pass(secs(7));
    bench.send("q", NewMessage { priority: Some(9), ..text("b") });
    assert_eq!(bench.look("q").oldest_available, Some(secs(7)));
}

#[test]
fn a_browse_takes_and_counts_nothing() {
    let mut bench = mixed();
    for _ in 0..2 {
        let (shown, _) = browse(&mut bench, BrowseState::Available, None);
        assert_eq!(payloads(&shown), ["a", "b"]);
        assert!(shown.iter().all(|message| message.lease.is_none() && message.deliveries == 0));
    }
    assert_eq!(bench.receive("q", 10).len(), 3);
}

#[test]
fn a_browse_goes_on_from_its_cursor() {
    let mut bench = mixed();
    let (_, next) = browse(&mut bench, BrowseState::Available, None);
    let (rest, end) = browse(&mut bench, BrowseState::Available, next);
    assert_eq!((payloads(&rest), end), (vec!["c"], None));
    let (leased, _) = browse(&mut bench, BrowseState::Leased, None);
    assert_eq!((payloads(&leased), leased[0].deliveries), (vec!["held"], 1));
    let (delayed, _) = browse(&mut bench, BrowseState::Delayed, None);
    assert_eq!(payloads(&delayed), ["late"]);
    assert_eq!(delayed[0].available_at, Some(bench.now.wall + secs(9)));
}

#[test]
fn a_cursor_of_another_list_is_refused() {
    let mut bench = mixed();
    let command = Command::Browse {
        queue: name("q"),
        state: BrowseState::Available,
        after: Some(BrowseCursor(vec![1, 2, 3])),
        limit: 2,
    };
    let failure = refused(bench.ask(command));
    assert_eq!((failure.code, failure.field), (ErrorCode::InvalidRequest, Some("cursor")));
}

#[test]
fn a_message_is_found_in_the_queue_it_is_in() {
    let mut bench = Bench::with_queue("q", |_| {});
    let id = bench.send("q", text("a"));
    let Reply::Messages { messages, .. } = get(&mut bench, "q", id) else { panic!("it is there") };
    assert_eq!((messages[0].id, messages[0].deliveries), (id, 0));
    let got = bench.receive_one("q");
    bench.settle_one("q", Settle::Reject { reason: None }, token(&got));
    assert_eq!(refused(get(&mut bench, "q", id)).code, ErrorCode::MessageNotFound); // I24
    assert!(matches!(get(&mut bench, "q.dead", id), Reply::Messages { .. }));
    let never = MessageId { epoch: types::Epoch(id.epoch.0 + 1), ..id };
    assert_eq!(refused(get(&mut bench, "q.dead", never)).code, ErrorCode::MessageNotFound);
}
