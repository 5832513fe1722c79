//! Acks, nacks and rejects: alone, in batches, repeated, and while they are open.

use crate::bench::{Bench, codes, name, payloads, secs, text, token};
use spool::command::{Command, DeadLetterReason, Delivered, Reply, Settle, Written};
use spool::token::Token;
use std::time::Duration;
use types::ErrorCode;

const MS: Duration = Duration::from_millis(1);
const AT_ONCE: Settle = Settle::Nack { delay: Some(Duration::ZERO) };

/// So many messages, received.
fn received(count: usize) -> (Bench, Vec<Delivered>) {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send_all("q", (0..count).map(|i| text(&i.to_string())).collect());
    let got = bench.receive("q", 100);
    (bench, got)
}

fn settle(settle: Settle, tokens: Vec<Token>) -> Command {
    Command::Settle { queue: name("q"), settle, tokens }
}

fn written(reply: Option<Reply>) -> (Vec<Option<ErrorCode>>, Option<Written>) {
    match reply {
        Some(Reply::Settled { results, written }) => (codes(&results), written),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_acked_message_is_gone_for_good() {
    let (mut bench, got) = received(2);
    assert_eq!(bench.ack("q", token(&got[0])), None);
    bench.pass(secs(60));
    assert_eq!(payloads(&bench.receive("q", 10)), ["1"]);
    let info = bench.look("q");
    assert_eq!((info.totals.sent, info.totals.acked, info.bytes), (2, 1, 1));
    bench.restart();
    assert_eq!(payloads(&bench.receive("q", 10)), ["1"]);
}

#[test]
fn an_ack_repeated_answers_as_the_first_did() {
    let (mut bench, got) = received(1);
    let ack = settle(Settle::Ack, vec![token(&got[0])]);
    let (first, again) = (Some(bench.ask(ack.clone())), Some(bench.ask(ack)));
    let (first, again) = (written(first), written(again));
    assert_eq!(first.0, [None]);
    assert_eq!(again, first, "and says where the first is written");
    assert_eq!(bench.settle_one("q", AT_ONCE, token(&got[0])), Some(ErrorCode::StaleToken));
    assert_eq!(bench.look("q").totals.acked, 1);
}

#[test]
fn a_nack_waits_as_long_as_it_says() {
    let (mut bench, got) = received(1);
    assert_eq!(bench.nack("q", token(&got[0]), Some(secs(10))), None);
    let info = bench.look("q");
    assert_eq!((info.delayed, info.leased, info.available), (1, 0, 0));
    bench.pass(secs(10) - MS);
    assert!(bench.receive("q", 10).is_empty());
    bench.pass(MS);
    assert_eq!(bench.receive_one("q").deliveries, 2);
}

#[test]
fn a_nack_that_names_no_delay_waits_longer_each_time() {
    let mut bench = Bench::with_queue("q", |change| {
        change.backoff_initial = Some(secs(2));
        change.backoff_multiplier_milli = Some(3_000);
        change.backoff_max = Some(secs(10));
    });
    bench.send("q", text("a"));
    for backoff in [2, 6, 10, 10] {
        let got = bench.receive_one("q");
        assert_eq!(bench.nack("q", token(&got), None), None);
        bench.pass(secs(backoff) - MS);
        assert!(bench.receive("q", 1).is_empty(), "{backoff} s are not over");
        bench.pass(MS);
    }
    assert_eq!(bench.receive_one("q").deliveries, 5);
}

#[test]
fn the_nack_of_the_last_delivery_is_a_dead_letter() {
    let mut bench = Bench::with_queue("q", |change| change.deliveries_max = Some(Some(2)));
    let id = bench.send("q", text("a"));
    for _ in 0..2 {
        let got = bench.receive_one("q");
        assert_eq!(bench.nack("q", token(&got), Some(Duration::ZERO)), None);
    }
    assert!(bench.receive("q", 10).is_empty());
    let dead = bench.receive_one("q.dead");
    let why = dead.dead_letter.clone().expect("why it is here");
    assert_eq!((dead.id, why.reason, why.detail), (id, DeadLetterReason::Nacked, None));
    let (source, target) = (bench.look("q"), bench.look("q.dead"));
    assert_eq!((source.totals.dead_lettered, source.bytes), (1, 0)); // I24
    assert_eq!((target.totals.sent, target.bytes, target.leased), (1, 1, 1));
}

#[test]
fn a_reject_goes_to_the_dead_letter_queue_at_once_with_its_reason() {
    let mut bench = Bench::with_queue("q", |change| change.dead_letter_queue = Some(Some(name("bad"))));
    bench.send("q", text("a"));
    let got = bench.receive_one("q");
    let reject = Settle::Reject { reason: Some("no such user".to_owned()) };
    assert_eq!(bench.settle_one("q", reject, token(&got)), None);
    let why = bench.receive_one("bad").dead_letter.expect("why it is here");
    assert_eq!((why.reason, why.detail.as_deref()), (DeadLetterReason::Rejected, Some("no such user")));
    let list = Command::ListQueues { prefix: String::new(), after: None, limit: 10 };
    let Reply::Queues { queues, .. } = bench.ask(list) else { panic!("a list") };
    let names: Vec<&str> = queues.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["bad", "q"], "no q.dead beside it");
}

#[test]
fn a_dead_letter_is_stored_whatever_the_plan_and_the_target_say() {
    let mut bench = Bench::with_queue("q", |_| {});
    for other in ["r", "s", "t"] {
        bench.put(other, |_| {});
    }
    bench.send("q", text("a"));
    bench.send("q", text("b"));
    let got = bench.receive("q", 2);
    assert_eq!(bench.settle_one("q", Settle::Reject { reason: None }, token(&got[0])), None);
    bench.put("q.dead", |change| change.paused_send = Some(true));
    assert_eq!(bench.settle_one("q", Settle::Reject { reason: None }, token(&got[1])), None);
    assert_eq!(payloads(&bench.receive("q.dead", 10)), ["a", "b"]);
}

#[test]
fn a_batch_settles_what_it_can_and_says_what_it_cannot() {
    let (mut bench, got) = received(4);
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| token(&got[i]));
    assert_eq!(bench.ack("q", b), None);
    assert_eq!(bench.nack("q", c, Some(secs(5))), None);
    let tampered = Token { lease_no: 99, ..d };
    let results = bench.settle("q", Settle::Ack, &[a, b, c, tampered, d, a]);
    let expected = [None, None, Some(ErrorCode::StaleToken), Some(ErrorCode::InvalidToken), None, None];
    assert_eq!(codes(&results), expected);
    bench.pass(secs(60));
    assert_eq!(payloads(&bench.receive("q", 10)), ["2"]);
    assert_eq!(bench.look("q").totals.acked, 3, "a twice in one batch is one ack");
}

#[test]
fn a_batch_that_settles_nothing_writes_nothing() {
    let (mut bench, got) = received(1);
    bench.pass(secs(30));
    let (results, written) = written(Some(bench.ask(settle(Settle::Ack, vec![token(&got[0])]))));
    assert_eq!((results, written), (vec![Some(ErrorCode::StaleToken)], None));
}

#[test]
fn the_same_settle_joins_the_open_one_and_another_is_refused() {
    let (mut bench, got) = received(1);
    bench.disk_is_slow = true;
    let tokens = vec![token(&got[0])];
    let first = bench.start(settle(Settle::Ack, tokens.clone()));
    let same = bench.start(settle(Settle::Ack, tokens.clone()));
    let other = written(Some(bench.ask(settle(AT_ONCE, tokens))));
    assert_eq!(other, (vec![Some(ErrorCode::SettlePending)], None));
    assert_eq!((bench.answer(first), bench.answer(same)), (None, None));
    bench.sync();
    let (first, same) = (written(bench.answer(first)), written(bench.answer(same)));
    assert_eq!(first.0, [None]);
    assert_eq!(first, same);
}

#[test]
fn a_client_that_goes_away_leaves_its_open_ack_behind() {
    let (mut bench, got) = received(1);
    bench.disk_is_slow = true;
    let ack = bench.start(settle(Settle::Ack, vec![token(&got[0])]));
    bench.step(spool::event::Event::Cancelled { id: ack });
    bench.sync();
    assert_eq!(bench.answer(ack), None, "nobody is there to be answered");
    assert_eq!(bench.look("q").totals.acked, 1);
}

#[test]
fn an_open_settle_that_is_not_confirmed_in_time_is_in_doubt() {
    let (mut bench, got) = received(1);
    bench.disk_is_slow = true;
    let ack = bench.start_within(settle(Settle::Ack, vec![token(&got[0])]), secs(5));
    bench.pass(secs(5));
    let Some(Reply::Failed(failure)) = bench.answer(ack) else { panic!("not answered") };
    assert_eq!(failure.code, ErrorCode::OperationUnconfirmed); // I17
    bench.sync();
    bench.disk_is_slow = false;
    assert_eq!(bench.ack("q", token(&got[0])), None, "asked again it answers as the first did");
    assert_eq!(bench.look("q").totals.acked, 1);
}
