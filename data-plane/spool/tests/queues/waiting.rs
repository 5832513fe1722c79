//! A receive that waits: what wakes it, what ends it, who is first.

use crate::bench::{Bench, name, payloads, refused, secs, text, token};
use spool::command::{Command, Delay, NewMessage, Reply, RequestId};
use spool::event::Event;
use std::time::Duration;
use types::ErrorCode;

fn wait_for(bench: &mut Bench, max: u32, wait: u64) -> RequestId {
    bench.start(Command::Receive { queue: name("q"), max, wait: secs(wait), lease: None })
}

fn received(bench: &mut Bench, id: RequestId) -> Option<Vec<String>> {
    match bench.answer(id)? {
        Reply::Received { messages } => Some(payloads(&messages).into_iter().map(str::to_owned).collect()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_send_wakes_it_at_once() {
    let mut bench = Bench::with_queue("q", |_| {});
    let poll = wait_for(&mut bench, 10, 20);
    bench.pass(secs(3));
    assert_eq!(received(&mut bench, poll), None);
    bench.send_all("q", vec![text("a"), text("b")]);
    assert_eq!(received(&mut bench, poll).expect("answered"), ["a", "b"]);
    assert!(bench.receive("q", 10).is_empty(), "it has the lease");
}

#[test]
fn an_unconfirmed_send_does_not_wake_it() {
    let mut bench = Bench::with_queue("q", |_| {});
    let poll = wait_for(&mut bench, 10, 20);
    bench.disk_is_slow = true;
    bench.start(Command::Send { queue: name("q"), messages: vec![text("a")] });
    bench.pass(secs(1));
    assert_eq!(received(&mut bench, poll), None);
    bench.sync();
    assert_eq!(received(&mut bench, poll).expect("answered"), ["a"]);
}

#[test]
fn the_end_of_a_delay_or_a_lease_and_a_nack_wake_it() {
    let mut bench = Bench::with_queue("q", |change| change.lease = Some(secs(4)));
    bench.send("q", NewMessage { delay: Delay::For(secs(2)), ..text("a") });
    let poll = wait_for(&mut bench, 1, 20);
    bench.pass(secs(2));
    assert_eq!(received(&mut bench, poll).expect("the delay ended"), ["a"]);
    let poll = wait_for(&mut bench, 1, 20);
    bench.pass(secs(4));
    assert_eq!(received(&mut bench, poll).expect("the lease ended"), ["a"]);
    bench.pass(secs(4));
    let held = bench.receive_one("q");
    let poll = wait_for(&mut bench, 1, 20);
    assert_eq!(bench.nack("q", token(&held), Some(Duration::ZERO)), None);
    assert_eq!(received(&mut bench, poll).expect("it was given back"), ["a"]);
}

#[test]
fn it_ends_empty_when_its_time_is_over() {
    let mut bench = Bench::with_queue("q", |_| {});
    let poll = wait_for(&mut bench, 1, 5);
    bench.pass(secs(5) - Duration::from_millis(1));
    assert_eq!(received(&mut bench, poll), None);
    bench.pass(Duration::from_millis(1));
    assert!(received(&mut bench, poll).expect("answered").is_empty());
    bench.send("q", text("late"));
    assert_eq!(payloads(&bench.receive("q", 1)), ["late"]);
}

#[test]
fn the_first_to_wait_is_the_first_to_be_served_and_no_message_goes_to_two() {
    let mut bench = Bench::with_queue("q", |_| {});
    let polls: Vec<RequestId> = (0..3).map(|_| wait_for(&mut bench, 2, 20)).collect();
    bench.send_all("q", vec![text("a"), text("b"), text("c")]);
    assert_eq!(received(&mut bench, polls[0]).expect("first"), ["a", "b"]);
    assert_eq!(received(&mut bench, polls[1]).expect("second"), ["c"]);
    assert_eq!(received(&mut bench, polls[2]), None);
    bench.send("q", text("d"));
    assert_eq!(received(&mut bench, polls[2]).expect("third"), ["d"]);
}

#[test]
fn a_client_that_went_away_takes_nothing_with_it() {
    let mut bench = Bench::with_queue("q", |_| {});
    let (gone, next) = (wait_for(&mut bench, 1, 20), wait_for(&mut bench, 1, 20));
    bench.step(Event::Cancelled { id: gone });
    bench.send("q", text("a"));
    assert_eq!(received(&mut bench, gone), None);
    assert_eq!(received(&mut bench, next).expect("the next in line"), ["a"]);
}

#[test]
fn it_ends_with_its_queue() {
    let mut bench = Bench::with_queue("q", |_| {});
    let poll = wait_for(&mut bench, 1, 20);
    bench.ask(Command::DeleteQueue { queue: name("q"), precondition: Default::default() });
    assert_eq!(refused(bench.answer(poll).expect("answered")).code, ErrorCode::QueueNotFound);
}

#[test]
fn it_ends_with_503_when_the_primary_gives_up_its_role() {
    let mut bench = Bench::with_queue("q", |_| {});
    let poll = wait_for(&mut bench, 1, 20);
    bench.step(Event::GiveUpRole);
    assert_eq!(refused(bench.answer(poll).expect("answered")).code, ErrorCode::NoPrimary);
}

#[test]
fn a_paused_queue_answers_the_waiting_when_it_is_resumed() {
    let mut bench = Bench::with_queue("q", |change| change.paused_receive = Some(true));
    bench.send("q", text("a"));
    let poll = wait_for(&mut bench, 1, 20);
    bench.pass(secs(1));
    assert_eq!(received(&mut bench, poll), None);
    bench.put("q", |_| {});
    bench.pass(secs(1));
    assert_eq!(received(&mut bench, poll).expect("the queue was resumed"), ["a"]);
}
