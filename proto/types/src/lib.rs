//! The words that every part of the product shares: ids, positions, names, limits, error codes.
//!
//! Nothing here does any I/O, reads a clock or knows a wire format. Each number and each id has a type of
//! its own, so that swapping two of them does not compile.
//!
//! * [`ids`]: who and what (accounts, spools, copies, processes, nodes, messages)
//! * [`position`]: where in a spool's log (epoch, seq)
//! * [`time`]: moments of the monotonic and of the wall clock, passed as arguments everywhere
//! * [`names`]: the names that users choose, checked once
//! * [`limits`]: every bound of the product, in one file
//! * [`error`]: the stable error codes and what each one promises

pub mod error;
pub mod ids;
pub mod limits;
pub mod names;
pub mod position;
pub mod time;

pub use error::ErrorCode;
pub use ids::{AccountId, CopyId, MessageId, NodeName, ProcessId, SpoolId};
pub use names::{QueueName, SpoolName};
pub use position::{Epoch, Position, Seq};
pub use time::{Moment, WallMs};
