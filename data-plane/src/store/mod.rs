//! Everything a node keeps on its disk, apart from caches: one RocksDB for all its spools.
//!
//! What is stored, and why so:
//!
//! * [`keys`] is the only place that knows a RocksDB key. A spool's keys are the pure core's own, behind the
//!   spool's number on this node; number 0 is the node's own notes (who it is, how often it started, which copies
//!   it has).
//! * Two column families, because their contents live so differently. `log` has the entries: large values, written
//!   in order, deleted in order; values go to blob files, so that compactions move references and a payload is
//!   written twice in all, to the write-ahead log and to a blob file. `state` has everything else: small, short-lived.
//!   [`options`] says how they are tuned and what was measured.
//! * [`Db::write`] makes a change visible, whole; [`Db::sync`] makes everything written before it durable; one sync
//!   serves every spool of the node, and [`Syncer`] is the thread that runs them.
//! * [`Keeper`] is the thread that gives disk space back.
//! * A write or a sync that fails ends the process, see [`fatal`]: a later success would say nothing about what
//!   the failed one should have kept.
//!
//! In a data directory: `rocksdb/` and, beside it on purpose, what has to be believed when RocksDB is not. The
//! write-ahead log cannot tell a torn tail from a damaged record that had been synced; a file `watermark` with two
//! slots a spool (the epoch and seq that this node confirmed lately, a check sum, written in turns and at most 50 ms
//! late) is what a start will compare the log's end with. It is not written yet. Nothing else may take its name.

mod copies;
mod db;
pub mod fatal;
mod keeper;
pub mod keys;
pub mod options;
mod spool_store;
mod syncer;

pub use copies::{CopyFacts, CreateCopyError, NewCopy};
pub use db::{Boot, Db, OpenError};
pub use keeper::{BlobUsage, Keeper};
pub use keys::SpoolNumber;
pub use options::Options;
pub use spool_store::SpoolStore;
pub use syncer::{Completed, SyncHandle, SyncStats, Syncer};
