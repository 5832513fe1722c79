//! A data-plane node: the spools' copies that one machine holds, and what serves them.
//!
//! The decisions are made in crate `spool`, which knows no disk and no network; here they are carried out.

pub mod clock;
pub mod directory;
pub mod http;
pub mod membership;
pub mod replication;
pub mod spools;
pub mod store;
