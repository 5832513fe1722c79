//! Reproduces one run: `sim --seed N --n 3 --k 1 [--trace]`, or looks for a failing one: `sim --seeds 0..1000`.

use sim::config::Config;
use sim::run::{attempt, run};
use sim::trace::Mode;
use std::process::ExitCode;

const USAGE: &str = "usage: sim --n N --k K (--seed SEED [--trace] | --seeds FROM..TO [--quiet])";

struct Args {
    seeds: std::ops::Range<u64>,
    n: u8,
    k: u8,
    trace: bool,
    /// Tells of failures alone.
    quiet: bool,
}

fn parse() -> Option<Args> {
    let mut args = Args { seeds: 0..1, n: 3, k: 1, trace: false, quiet: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--trace" => args.trace = true,
            "--quiet" => args.quiet = true,
            "--n" => args.n = words.next()?.parse().ok()?,
            "--k" => args.k = words.next()?.parse().ok()?,
            "--seed" => {
                let seed = words.next()?.parse().ok()?;
                args.seeds = seed..seed + 1;
            }
            "--seeds" => {
                let range = words.next()?;
                let (from, to) = range.split_once("..")?;
                args.seeds = from.parse().ok()?..to.parse().ok()?;
            }
            _ => return None,
        }
    }
    (args.k < args.n && args.n <= types::limits::REPLICAS_MAX).then_some(args)
}

fn main() -> ExitCode {
    let Some(args) = parse() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut failed = 0;
    for seed in args.seeds {
        let config = Config::from_seed(seed, args.n, args.k);
        let outcome = if args.trace { attempt(&config, Mode::Print) } else { run(&config) };
        match outcome {
            Ok(outcome) => {
                let (events, after) = (outcome.events, outcome.recovered_us / 1000);
                if args.quiet {
                    continue;
                }
                println!("seed {seed}: {events} events, serves again after {after} ms, {:?}", outcome.seen);
            }
            Err(failure) => {
                failed += 1;
                println!("{failure}");
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
