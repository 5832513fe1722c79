//! Where in a spool's log.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The number of a primary's reign. Issued by the control plane only, by compare-and-swap; 0 is "none yet".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// Dense place in a spool's log. The first entry has 1; 0 is the place before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    pub const fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
    /// The place before; the place before the first is 0, and so is the one before that.
    pub const fn prev(self) -> Seq {
        Seq(self.0.saturating_sub(1))
    }
}

/// An entry: which reign wrote it, and its place. Ordered by epoch first, which is the order that an
/// election chooses by. Written `<epoch>.<seq>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Position {
    pub epoch: Epoch,
    pub seq: Seq,
}

impl Position {
    pub const ZERO: Position = Position { epoch: Epoch(0), seq: Seq(0) };
    pub const fn new(epoch: u64, seq: u64) -> Self {
        Position { epoch: Epoch(epoch), seq: Seq(seq) }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}
impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.seq)
    }
}
impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
