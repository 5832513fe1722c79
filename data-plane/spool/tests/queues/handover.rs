//! What a change of primary, and a client that was not reached, leave of leases and open requests.

use crate::bench::{Bench, name, payloads, refused, secs, text, token};
use spool::command::{Command, Reply, Settle};
use spool::event::{CallReply, Event};
use types::ErrorCode;

#[test]
fn what_was_not_handed_over_is_available_at_once_and_not_counted() {
    let mut bench = Bench::with_queue("q", |change| change.deliveries_max = Some(Some(2)));
    bench.send("q", text("a"));
    for _ in 0..5 {
        let got = bench.receive_one("q");
        assert_eq!(got.deliveries, 1);
        bench.step(Event::HandedBack { tokens: vec![token(&got)] });
        let failure = refused(bench.extend("q", token(&got), secs(1)));
        assert_eq!(failure.code, ErrorCode::StaleToken);
    }
    let got = bench.receive_one("q");
    assert_eq!(bench.ack("q", token(&got)), None);
}

#[test]
fn what_is_given_back_by_a_token_that_is_over_stays_where_it_is() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send("q", text("a"));
    let first = bench.receive_one("q");
    bench.pass(secs(30));
    let second = bench.receive_one("q");
    bench.step(Event::HandedBack { tokens: vec![token(&first)] });
    assert!(bench.receive("q", 1).is_empty());
    assert_eq!(bench.ack("q", token(&second)), None);
}

#[test]
fn another_process_releases_every_lease_and_knows_old_tokens() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send("q", text("a"));
    let old = bench.receive_one("q");
    bench.restart();
    let new = bench.receive_one("q");
    assert_eq!(new.id, old.id);
    let failure = refused(bench.extend("q", token(&old), secs(5)));
    assert_eq!(failure.code, ErrorCode::StaleToken);
    assert!(failure.detail.contains("the primary changed"), "{}", failure.detail);
    assert_eq!(bench.ack("q", token(&old)), Some(ErrorCode::StaleToken));
    assert_eq!(bench.ack("q", token(&new)), None);
}

#[test]
fn the_same_process_elected_again_keeps_its_leases() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send("q", text("a"));
    let held = bench.receive_one("q");
    bench.elect();
    assert!(bench.receive("q", 1).is_empty());
    assert!(matches!(bench.extend("q", token(&held), secs(5)), Reply::Extended { .. }));
    assert_eq!(bench.ack("q", token(&held)), None);
}

#[test]
fn a_count_after_a_change_of_primary_may_be_lower_and_is_never_higher() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send("q", text("a"));
    for deliveries in 1..=3 {
        assert_eq!(bench.receive_for("q", 1, Some(secs(2)))[0].deliveries, deliveries);
        bench.pass(secs(2));
    }
    // Each of the three was written a second after it, at the latest.
    bench.restart();
    assert_eq!(bench.receive_for("q", 1, Some(secs(2)))[0].deliveries, 4);
    bench.restart();
    let after = bench.receive_one("q").deliveries;
    assert!(after <= 5, "I24: {after} deliveries, and there were five");
}

#[test]
fn a_write_that_is_in_the_log_when_the_role_is_lost_is_in_doubt() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.disk_is_slow = true;
    let open = bench.start(Command::Send { queue: name("q"), messages: vec![text("a")] });
    bench.step(Event::GiveUpRole);
    let failure = refused(bench.answer(open).expect("answered"));
    assert_eq!(failure.code, ErrorCode::OperationUnconfirmed); // I17
    let late = bench.start(Command::Send { queue: name("q"), messages: vec![text("b")] });
    assert_eq!(refused(bench.answer(late).expect("answered")).code, ErrorCode::NoPrimary);
    bench.disk_is_slow = false;
    bench.sync();
    bench.elect();
    assert_eq!(payloads(&bench.receive("q", 10)), ["a"], "503 never takes effect, 504 may");
}

#[test]
fn a_settle_of_an_old_lease_changes_nothing_after_a_restart() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.send("q", text("a"));
    let old = bench.receive_one("q");
    bench.restart();
    for settle in [Settle::Ack, Settle::Reject { reason: None }, Settle::Nack { delay: Some(secs(50)) }] {
        assert_eq!(bench.settle_one("q", settle, token(&old)), Some(ErrorCode::StaleToken));
    }
    assert_eq!(payloads(&bench.receive("q", 10)), ["a"]);
}

#[test]
fn a_seal_asked_again_waits_for_what_the_reign_left_unsynced() {
    let mut bench = Bench::with_queue("q", |_| {});
    bench.disk_is_slow = true;
    bench.start(Command::Send { queue: name("q"), messages: vec![text("a")] });
    bench.step(Event::GiveUpRole);
    bench.seal_again();
    assert_eq!(bench.called(), None, "the position that it would tell is not synced"); // I11
    bench.sync();
    assert!(matches!(bench.called(), Some(CallReply::Sealed(_))));
}
