//! One copy of a spool, as a pure state machine: replication and queues together.
//!
//! It decides; it never waits, reads a clock, opens a file or sends a byte. Events come in, effects go out,
//! time is an argument. `data-plane` carries the effects out on real disks and networks; `sim` on simulated
//! ones, with faults. What is not here: API keys and plans (edges), who may elect (control plane), RocksDB.
//!
//! * [`event`]: what happens to a copy and what it asks for; [`command`]: what clients ask and are told
//! * [`copy`]: the copy, its seals and syncs; `follower`, `primary` and `serve` are its three sides
//! * [`log`] and [`entry`]: the replicated log; [`state`]: the queues that it describes; [`keys`]: their rows
//! * [`promise`]: the right to serve without asking anybody; [`controller`]: elections

pub mod codec;
pub mod command;
pub mod config;
pub mod controller;
pub mod copy;
pub mod entry;
pub mod event;
mod follower;
pub mod keys;
pub mod log;
pub mod memstore;
mod primary;
pub mod promise;
pub mod record;
mod serve;
pub mod state;
pub mod store;
pub mod token;

pub use copy::{SpoolCopy, create};
