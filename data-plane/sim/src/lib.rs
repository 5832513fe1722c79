//! A simulator of spools: several nodes with the real core, on a simulated network, disk and clock, with everything
//! that can go wrong, and an oracle that knows every answer that was given.
//!
//! One seed is one run, to the byte: no threads, no real clock, no other chance than [`rng::Rng`].
//!
//! * [`world`]: what is on its way, in the order of true time; [`run`]: the acts of a run
//! * [`node`] with its [`driver`], [`control`], [`etcd`], [`clients`]: who takes part
//! * [`net`], [`disk`], [`clock`], [`pairs`]: what they stand on; [`faults`]: what breaks it
//! * [`oracle`]: what must be true, by the numbers of the invariants
//!
//! Not here: anything real (`cluster` breaks real processes), cold snapshots, and the etcd guard: a primary
//! without its copies' promises answers `claim_in_doubt`.

pub mod clients;
pub mod clock;
pub mod config;
pub mod control;
pub mod disk;
pub mod driver;
pub mod etcd;
pub mod faults;
pub mod net;
pub mod node;
pub mod oracle;
pub mod pairs;
pub mod rng;
pub mod run;
pub mod trace;
pub mod world;
