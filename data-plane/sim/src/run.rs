//! One run: calm, storm, all mended, drained, compared.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::clock::{MS, SEC, Time};
use crate::config::Config;
use crate::oracle::Seen;
use crate::trace::{Mode, Trace};
use crate::world::World;

/// From all mended to a confirmed write and an answered receive. Elections that failed in the storm keep a distance
/// of up to 30 s. I26
const RECOVERS_WITHIN: u64 = 40 * SEC;
/// From there to all queues being empty, leases and delays included.
const DRAINS_WITHIN: u64 = 60 * SEC;
/// Longest lease or delay that a client of the storm asked for.
const LEASES_END: u64 = 8 * SEC;

#[derive(Debug)]
pub struct Outcome {
    pub seen: Seen,
    pub events: u64,
    /// How long after the end of the storm the spool served again.
    pub recovered_us: u64,
    /// Of everything that happened and what is on the disks: equal for equal runs.
    pub digest: u64,
    pub trace: Vec<String>,
}

#[derive(Debug)]
pub struct Failure {
    pub config: Config,
    pub what: String,
    pub trace: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Config { seed, n, k, .. } = self.config;
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "{:?}", self.config)?;
        writeln!(f, "{}", self.what)?;
        write!(f, "again: cargo run -p sim -- --seed {seed} --n {n} --k {k} --trace")
    }
}

/// Runs quietly; where that fails, again with the last lines of the trace kept.
pub fn run(config: &Config) -> Result<Outcome, Box<Failure>> {
    match attempt(config, Mode::Off) {
        Ok(outcome) => Ok(outcome),
        Err(first) => match attempt(config, Mode::Keep(60)) {
            Err(failure) => Err(failure),
            Ok(_) => Err(first),
        },
    }
}

pub fn attempt(config: &Config, mode: Mode) -> Result<Outcome, Box<Failure>> {
    let mut world = None;
    remember_panics();
    PANICKED.with_borrow_mut(|at| *at = Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let world = world.insert(World::new(config.clone(), Trace::new(mode)));
        play(world)
    }));
    let place = PANICKED.take().unwrap_or_default();
    let trace = world.as_ref().map(|world| world.trace.lines().cloned().collect()).unwrap_or_default();
    match (result, world) {
        (Ok(recovered_us), Some(world)) => {
            let digest = world.digest();
            Ok(Outcome { seen: world.oracle.seen, events: world.events, recovered_us, digest, trace })
        }
        (Err(panic), _) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let what = format!("{} ({place})", text.unwrap_or_else(|| "a panic without words".to_owned()));
            Err(Box::new(Failure { config: config.clone(), what, trace }))
        }
        (Ok(_), None) => unreachable!("a run without a world"),
    }
}

thread_local! {
    /// `Some` while a run is on: where it panicked.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A violation is a panic; within a run it is caught and told with the run's trace, so it need not be printed.
fn remember_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let inside = PANICKED.with_borrow_mut(|place| match place {
                Some(place) => {
                    *place = info.location().map(ToString::to_string).unwrap_or_default();
                    true
                }
                None => false,
            });
            if !inside {
                before(info);
            }
        }));
    });
}

fn play(world: &mut World) -> u64 {
    world.run(Time(2 * SEC), |_| false);
    world.begin_storm();
    let end = world.now.after(world.config.stormy);
    world.run(end, |_| false);
    world.heal();

    let healed = world.now;
    let serves = |world: &World| {
        let since = |time: Option<Time>| time.is_some_and(|time| time > healed);
        since(world.clients.last_write) && since(world.clients.last_receive)
    };
    world.run(healed.after(RECOVERS_WITHIN), serves);
    let record = &world.etcd.record;
    assert!(serves(world), "I26: nobody serves {} s after all was mended: {record:?}", RECOVERS_WITHIN / SEC);
    let recovered_us = world.now.0 - healed.0;

    world.clients.stopped = true;
    world.clients.draining = true;
    world.run(world.now.after(LEASES_END), |_| false);
    world.clients.drained.clear();
    let drained = |world: &World| {
        let drained = &world.clients.drained;
        drained.len() == 4 && drained.values().all(|empty| *empty >= 4)
    };
    world.run(world.now.after(DRAINS_WITHIN), drained);
    assert!(drained(world), "I26: not drained within {} s: {:?}", DRAINS_WITHIN / SEC, world.clients.drained);
    world.clients.draining = false;
    world.run(world.now.after(3 * SEC + 500 * MS), |_| false);
    world.check_end();
    recovered_us
}

impl World {
    fn digest(&self) -> u64 {
        let mut hash = self.events ^ self.now.0.rotate_left(20);
        for node in &self.nodes {
            for (key, value) in node.disk.map() {
                for byte in key.iter().chain(value.iter()) {
                    hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
                }
            }
        }
        hash
    }
}
