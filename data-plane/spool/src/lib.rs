//! One copy of a spool, as a pure state machine: replication and queues together.
//!
//! It decides; it never waits, reads a clock, opens a file or sends a byte. Events come in, effects go out,
//! time is an argument. `data-plane` carries the effects out on real disks and networks; `sim` on simulated
//! ones, with faults. What is not here: API keys and plans (edges), who may elect (control plane), RocksDB.

pub mod codec;
pub mod command;
pub mod config;
pub mod controller;
pub mod event;
pub mod memstore;
pub mod promise;
pub mod record;
pub mod store;
pub mod token;
