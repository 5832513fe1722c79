//! A data-plane node: the spools' copies that one machine holds, and what serves them.
//!
//! The decisions are made in crate `spool`, which knows no disk and no network; here they are carried out.

//!
//! * [`node`]: everything put together; [`settings`]: what an operator sets
//! * [`http`]: clients; [`directory`]: what accounts, keys and spools there are
//! * [`spools`]: the copies of this node and the threads that drive them
//! * [`store`]: the disk; [`replication`]: the other nodes; [`membership`]: etcd
//! * [`health`] and [`metrics`]: how the node is doing; [`clock`]: what time it is

pub mod clock;
pub mod directory;
pub mod health;
pub mod http;
pub mod membership;
pub mod metrics;
pub mod node;
pub mod replication;
pub mod settings;
pub mod spools;
pub mod store;
