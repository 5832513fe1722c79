//! Moments. Two clocks, two types; both are read at the edges and passed inwards as arguments.

use serde::{Deserialize, Serialize};
use std::ops::Add;
use std::time::Duration;

/// A moment of this machine's monotonic clock, in microseconds. It counts suspended time too
/// (CLOCK_BOOTTIME), and means nothing on another machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(pub u64);

impl Moment {
    pub const ZERO: Moment = Moment(0);
    /// How long from `earlier` until this moment; zero if it is not later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
    pub fn minus(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(span.as_micros() as u64))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// A wall clock's time: milliseconds since 1970-01-01 UTC. May jump; only ever compared with its own kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WallMs(pub i64);

impl Add<Duration> for WallMs {
    type Output = WallMs;
    fn add(self, span: Duration) -> WallMs {
        WallMs(self.0.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
    }
}

/// Both clocks, read together at an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub mono: Moment,
    pub wall: WallMs,
}
