//! Several copies of one spool under random events, with every invariant that can be seen on their states checked
//! after each of them, by its number (`I1` and so on, `H1` for what clients may see).
//!
//! Here a letter may arrive at any moment or never, a disk may keep any part of what was not synced, and time may
//! jump: less like a network than the simulator's, and nearer to every order there is. A run that fails is made
//! as short as it can be, and printed with its seed.
//!
//! * [`event`]: what may happen; [`world`]: how it does; [`node`], [`disk`], [`pairs`]: what it happens to
//! * [`control`]: the record and the real controller
//! * `seals`: what was found here, as steps
//! * [`facts`], [`rows`]: the invariants of logs and states; [`clients`]: those of answers

mod clients;
mod control;
mod disk;
mod event;
mod facts;
mod node;
mod pairs;
mod rows;
mod seals;
mod world;

use event::Event;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::cell::RefCell;
use world::World;

/// One run: the events, then quiet, in which the copies become equal and nothing is missing.
fn run(n: u8, k: u8, events: &[Event]) -> World {
    let mut world = World::new(n, k);
    for event in events {
        world.happen(event);
    }
    world.calm("become equal again");
    let primary = &world.nodes[world.elected()];
    let copy = primary.copy().expect("it runs");
    world.clients.at_end(&rows::live(&primary.disk.current, copy));
    world
}

fn runner(seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_be_bytes());
    let config = Config { cases: 1, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// So many seeds; and enough of everything happened in them.
fn check(n: u8, k: u8, seeds: std::ops::Range<u64>) {
    let sums = RefCell::new([0_u64; 12]);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let outcome = runner(seed).run(&event::events(), |events| {
            let world = run(n, k, &events);
            let (facts, clients) = (&world.facts.seen, &world.clients.seen);
            let seen = [
                facts.takeovers,
                facts.commits,
                facts.batches_lost,
                facts.digests_compared,
                facts.trims,
                facts.stale_appends,
                facts.cuts,
                clients.sent,
                clients.delivered,
                clients.settled,
                clients.duplicates,
                clients.redelivered,
            ];
            sums.borrow_mut().iter_mut().zip(seen).for_each(|(sum, seen)| *sum += seen);
            Ok(())
        });
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(why, events)) => panic!(
                "numReplicas {n}, numSync {k}, seed {seed}: {why}\nafter these events:\n{}",
                events.iter().map(|event| format!("    {event:?},\n")).collect::<String>()
            ),
            Err(other) => panic!("numReplicas {n}, numSync {k}, seed {seed}: {other}"),
        }
    }
    let seen = sums.into_inner();
    // A run in which nothing happens shows nothing. The last of these need other copies.
    let [takeovers, commits, lost, digests, trims, stale, cuts, rest @ ..] = seen;
    assert!(takeovers > 2 * count && commits > 30 * count && lost > count / 4, "{seen:?}");
    assert!(rest.iter().all(|seen| *seen > count / 2), "{seen:?}");
    assert!(trims > count / 2, "{seen:?}");
    assert!(n == 1 || (digests > 15 * count && stale > 0 && cuts > 0), "{seen:?}");
}

#[test]
fn one_copy_keeps_every_invariant() {
    check(1, 0, 0..SEEDS);
}

#[test]
fn two_copies_with_one_synced_keep_every_invariant() {
    check(2, 1, 0..SEEDS);
}

#[test]
fn three_copies_with_one_synced_keep_every_invariant() {
    check(3, 1, 0..SEEDS);
}

#[test]
fn three_copies_with_two_synced_keep_every_invariant() {
    check(3, 2, 0..SEEDS);
}

#[test]
fn five_copies_with_two_synced_keep_every_invariant() {
    check(5, 2, 0..SEEDS);
}

const SEEDS: u64 = 250;

#[test]
fn the_same_events_give_the_same_run() {
    let seen = RefCell::new(Vec::new());
    for _ in 0..2 {
        let outcome = runner(7).run(&event::events(), |events| {
            seen.borrow_mut().push(run(3, 1, &events).facts.fingerprint());
            Ok(())
        });
        assert!(outcome.is_ok());
    }
    let seen = seen.into_inner();
    assert_eq!(seen[0], seen[1]);
}
