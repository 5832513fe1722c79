//! A lease: it lapses, is extended, and its token is worth nothing to anybody else, or later.

use crate::bench::{Bench, KEY, codes, name, payloads, refused, secs, text, token};
use spool::command::{Command, DeadLetterReason, Delivered, Reply, Settle};
use spool::token::{Token, TokenKey};
use std::time::Duration;
use types::ErrorCode;

const MS: Duration = Duration::from_millis(1);

/// One message, received under the default lease of thirty seconds.
fn leased() -> (Bench, Delivered) {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send("q", text("a"));
    let got = bench.receive_one("q");
    (bench, got)
}

#[test]
fn a_lease_that_runs_out_puts_the_message_back_and_counts() {
    let (mut bench, first) = leased();
    assert_eq!(first.lease.as_ref().map(|lease| lease.expires), Some(bench.now.wall + secs(30)));
    bench.pass(secs(30) - MS);
    assert!(bench.receive("q", 10).is_empty());
    bench.pass(MS);
    let second = bench.receive_one("q");
    assert_eq!((second.id, first.deliveries, second.deliveries), (first.id, 1, 2));
    assert_ne!(token(&second), token(&first));
}

#[test]
fn a_receive_may_name_its_own_lease() {
    let mut bench = Bench::with_queue("q", |change| change.lease = Some(secs(5)));
    bench.send("q", text("a"));
    assert_eq!(bench.receive_for("q", 1, Some(secs(2))).len(), 1);
    bench.pass(secs(2));
    let got = bench.receive_one("q");
    assert_eq!(got.deliveries, 2);
    bench.pass(secs(5) - MS);
    assert!(bench.receive("q", 1).is_empty(), "the queue's own lease");
    bench.pass(MS);
    assert_eq!(bench.receive_one("q").deliveries, 3);
}

#[test]
fn an_extension_counts_from_now_later_or_earlier_than_before() {
    let (mut bench, got) = leased();
    bench.pass(secs(20));
    let expires = bench.now.wall + secs(60);
    assert_eq!(bench.extend("q", token(&got), secs(60)), Reply::Extended { lease_expires: expires });
    bench.pass(secs(59));
    assert!(bench.receive("q", 1).is_empty());
    assert!(matches!(bench.extend("q", token(&got), secs(100)), Reply::Extended { .. }));
    assert!(matches!(bench.extend("q", token(&got), secs(1)), Reply::Extended { .. }));
    bench.pass(secs(1));
    assert_eq!(bench.receive_one("q").deliveries, 2);
}

#[test]
fn a_token_is_stale_once_its_lease_ran_out_and_the_detail_says_why() {
    let (mut bench, first) = leased();
    bench.pass(secs(30));
    let failure = refused(bench.extend("q", token(&first), secs(5)));
    assert_eq!(failure.code, ErrorCode::StaleToken);
    assert!(failure.detail.contains("expired"), "{}", failure.detail);
    let second = bench.receive_one("q");
    let failure = refused(bench.extend("q", token(&first), secs(5)));
    assert!(failure.detail.contains("delivered again"), "{}", failure.detail);
    for settle in [Settle::Ack, Settle::Nack { delay: None }, Settle::Reject { reason: None }] {
        assert_eq!(bench.settle_one("q", settle, token(&first)), Some(ErrorCode::StaleToken));
    }
    assert_eq!(bench.ack("q", token(&second)), None, "another's lease is never touched");
    bench.pass(secs(60));
    assert!(bench.receive("q", 1).is_empty());
}

#[test]
fn a_tampered_token_is_no_token() {
    let (mut bench, got) = leased();
    let real = token(&got);
    let mut mac = real.mac;
    mac[3] ^= 1;
    let forged = [
        Token { mac, ..real },
        Token { index: real.index + 1, ..real },
        Token { lease_no: real.lease_no + 1, ..real },
        Token { seq: real.seq.next(), ..real },
        Token::mint(&TokenKey([8; 32]), real.tenure, real.lease_no, real.seq, real.index),
    ];
    for token in forged {
        let failure = refused(bench.extend("q", token, secs(5)));
        assert_eq!((failure.code, failure.field), (ErrorCode::InvalidToken, Some("token")));
        assert_eq!(bench.ack("q", token), Some(ErrorCode::InvalidToken));
    }
    assert_eq!(bench.ack("q", real), None);
}

#[test]
fn a_genuine_token_of_no_lease_is_stale() {
    let (mut bench, got) = leased();
    let real = token(&got);
    let unknown = Token::mint(&KEY, real.tenure, real.lease_no + 7, real.seq, real.index);
    assert_eq!(bench.ack("q", unknown), Some(ErrorCode::StaleToken));
    assert_eq!(bench.ack("q", real), None);
}

#[test]
fn a_token_is_good_in_its_own_queue_only() {
    let (mut bench, got) = leased();
    bench.put("other", |_| {});
    assert_eq!(bench.ack("other", token(&got)), Some(ErrorCode::StaleToken));
    assert_eq!(refused(bench.extend("other", token(&got), secs(1))).code, ErrorCode::StaleToken);
    let nowhere = Command::Settle { queue: name("none"), settle: Settle::Ack, tokens: vec![token(&got)] };
    assert_eq!(refused(bench.ask(nowhere)).code, ErrorCode::QueueNotFound);
    assert_eq!(bench.ack("q", token(&got)), None);
}

#[test]
fn a_lease_that_runs_out_on_the_last_delivery_goes_to_the_dead_letter_queue() {
    let mut bench = Bench::with_queue("q", |change| change.deliveries_max = Some(Some(2)));
    bench.send("q", text("poison"));
    for deliveries in 1..=2 {
        assert_eq!(bench.receive_one("q").deliveries, deliveries);
        bench.pass(secs(30));
    }
    assert!(bench.receive("q", 10).is_empty());
    let dead = bench.receive_one("q.dead");
    let why = dead.dead_letter.clone().expect("why it is here");
    assert_eq!((why.reason, why.source_queue), (DeadLetterReason::Expired, name("q")));
    assert_eq!(dead.deliveries, 3, "the two that led here, and this one");
    assert_eq!(bench.look("q").totals.dead_lettered, 1);
}

#[test]
fn a_settle_that_is_open_keeps_the_message_back_after_its_lease() {
    let (mut bench, got) = leased();
    bench.disk_is_slow = true;
    let settle = Settle::Nack { delay: Some(Duration::ZERO) };
    let nack =
        bench.start_within(Command::Settle { queue: name("q"), settle, tokens: vec![token(&got)] }, secs(90));
    bench.pass(secs(60));
    assert!(bench.receive("q", 10).is_empty(), "its fate is not known"); // I16
    assert_eq!(bench.look("q").settling, 1);
    assert_eq!(refused(bench.extend("q", token(&got), secs(1))).code, ErrorCode::SettlePending);
    bench.sync();
    let Some(Reply::Settled { results, .. }) = bench.answer(nack) else { panic!("not answered") };
    assert_eq!(codes(&results), [None]);
    bench.disk_is_slow = false;
    assert_eq!(payloads(&bench.receive("q", 10)), ["a"]);
}
