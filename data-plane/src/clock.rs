//! The one place of the node that reads clocks.

use std::time::SystemTime;
use types::time::Now;
use types::{Moment, WallMs};

/// CLOCK_BOOTTIME: promises must not outlive a suspended machine, whose monotonic clock stands still.
pub fn moment() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let micros = time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1_000;
    Moment(micros)
}

#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn wall() -> WallMs {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    WallMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

pub fn now() -> Now {
    Now { mono: moment(), wall: wall() }
}
