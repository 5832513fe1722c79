//! Many runs of each kind of spool. `SIM_SEEDS` sets how many in all, `SIM_FROM` where they begin.

use sim::config::Config;
use sim::oracle::Seen;
use sim::run::{attempt, run};
use sim::trace::Mode;

fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text:?}")),
        Err(_) => default,
    }
}

/// numReplicas, numSync, and the share of the runs in percent.
const KINDS: &[(u8, u8, u64)] =
    &[(1, 0, 4), (2, 0, 8), (2, 1, 14), (3, 0, 8), (3, 1, 36), (3, 2, 18), (5, 2, 12)];

#[test]
fn no_seed_breaks_an_invariant_and_the_seeds_meet_every_fault() {
    let (all, from) = (from_env("SIM_SEEDS", 1_000), from_env("SIM_FROM", 0));
    let mut seen = Seen::default();
    let mut runs = 0;
    for (n, k, percent) in KINDS {
        let count = (all * percent).div_ceil(100);
        for seed in from..from + count {
            match run(&Config::from_seed(seed, *n, *k)) {
                Ok(outcome) => seen.add(&outcome.seen),
                Err(failure) => panic!("{failure}"),
            }
            runs += 1;
        }
    }
    println!("{runs} runs: {seen:?}");
    if runs >= 500 {
        let empty = seen.below_floors(runs);
        assert!(empty.is_empty(), "these runs prove little, they met too few of {empty:?}: {seen:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for (seed, n, k) in [(11, 3, 1), (12, 2, 0), (13, 5, 2)] {
        let config = Config::from_seed(seed, n, k);
        let once = attempt(&config, Mode::Keep(usize::MAX)).unwrap_or_else(|failure| panic!("{failure}"));
        let again = attempt(&config, Mode::Keep(usize::MAX)).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(once.trace.len() > 1_000);
        assert_eq!(once.trace, again.trace, "seed {seed}");
        assert_eq!((once.events, once.digest), (again.events, again.digest), "seed {seed}");
    }
}
