//! What clients see of a spool's queues, on one copy with a store in memory. Replication adds waiting to this, not
//! meaning: `copies` tests that.
//!
//! * [`bench`]: the copy, its disk and its clock, and the requests in short
//! * `sending`, `receiving`, `leases`, `settling`, `waiting`: the life of a message, in this order
//! * `configuration`: queues themselves; `counts`: what looks show
//! * `handover`: what is left of it all when the primary changes

mod bench;
mod configuration;
mod counts;
mod dedup;
mod handover;
mod leases;
mod receiving;
mod sending;
mod settling;
mod waiting;
