//! What one run is made of. Everything but the seed and the two numbers of the spool is drawn from the seed.

use std::time::Duration;

use crate::clock::{MS, SEC};
use crate::rng::Rng;

#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub n: u8,
    pub k: u8,
    pub controllers: usize,
    /// D and T_suspect.
    pub promise: Duration,
    pub suspect: Duration,
    pub net: NetConfig,
    pub faults: Faults,
    /// Faults happen for so long, microseconds of true time.
    pub stormy: u64,
    /// Mean time between two faults.
    pub fault_every: u64,
    pub producers: usize,
    pub consumers: usize,
    /// Effects of several events gather before they are carried out.
    pub gather: bool,
}

/// How the network is while it is whole.
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// Messages between copies keep their order, and one that is lost breaks the connection. Else each message may
    /// be lost, late, doubled or overtaken, which is worse than any real stream.
    pub ordered: bool,
    pub delay_min: u64,
    pub delay_max: u64,
    /// Percent.
    pub loss: u64,
    pub duplicates: u64,
    /// Percent of messages that take `delay_late`.
    pub late: u64,
    pub delay_late: u64,
}

impl NetConfig {
    pub fn calm() -> NetConfig {
        NetConfig {
            ordered: true,
            delay_min: MS / 10,
            delay_max: 2 * MS,
            loss: 0,
            duplicates: 0,
            late: 0,
            delay_late: 0,
        }
    }
}

/// Which kinds of faults a run has: each is in about half of the runs, so that every mix occurs.
#[derive(Clone, Debug)]
pub struct Faults {
    pub kill: bool,
    pub power_cut: bool,
    pub power_cut_all: bool,
    pub pause: bool,
    pub partition: bool,
    pub isolate: bool,
    pub one_way: bool,
    pub from_etcd: bool,
    pub etcd_outage: bool,
    pub slow_disk: bool,
    pub wall_jump: bool,
    pub controller_crash: bool,
    pub planned_move: bool,
    pub give_up: bool,
    pub disconnect: bool,
    pub wipe: bool,
}

impl Config {
    pub fn from_seed(seed: u64, n: u8, k: u8) -> Config {
        let mut rng = Rng::new(seed ^ 0x5eed_c0f1);
        let mut half = || rng.percent(50);
        let faults = Faults {
            kill: half() || half(),
            power_cut: half() || half(),
            power_cut_all: half() && half(),
            pause: half(),
            partition: half(),
            isolate: half(),
            one_way: half(),
            from_etcd: half(),
            etcd_outage: half() && half(),
            slow_disk: half(),
            wall_jump: half() && half() && n >= 3,
            controller_crash: half(),
            planned_move: half(),
            give_up: half() && half(),
            disconnect: half(),
            wipe: half() && half(),
        };
        let chaotic = rng.percent(50);
        let net = NetConfig {
            ordered: !chaotic,
            delay_min: MS / 10,
            delay_max: *rng.pick(&[MS, 5 * MS, 30 * MS]),
            loss: *rng.pick(&[0, 0, 1, 5, 15]),
            duplicates: *rng.pick(&[0, 1, 10]),
            late: *rng.pick(&[0, 1, 5]),
            delay_late: *rng.pick(&[50 * MS, 500 * MS, 3 * SEC]),
        };
        // The product's, those of a slow machine, and a suspicion that is no better than a guess: no safety is in it.
        let (promise, suspect) =
            *rng.pick(&[(400, 800), (400, 800), (1_500, 3_000), (400, 120), (1_500, 120)]);
        Config {
            seed,
            n,
            k,
            controllers: 1 + rng.index(2),
            promise: Duration::from_millis(promise),
            suspect: Duration::from_millis(suspect),
            net,
            faults,
            stormy: rng.range(10, 30) * SEC,
            fault_every: *rng.pick(&[150 * MS, 400 * MS, SEC, 3 * SEC]),
            producers: 1 + rng.index(3),
            consumers: 1 + rng.index(3),
            gather: rng.percent(50),
        }
    }

    /// As many disks as may be lost without losing an acknowledged write, or the right to serve.
    pub fn wipes_max(&self) -> usize {
        if self.k == 0 { 0 } else { usize::from(self.k.min(self.n - 1 - self.k)) }
    }
}
