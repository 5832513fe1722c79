//! Clocks that disagree. True time is what only the simulation knows; a node sees its own.

use std::time::Duration;
use types::time::Now;
use types::{Moment, WallMs};

use crate::rng::Rng;

/// True time, in microseconds since the simulation began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Time(pub u64);

pub const MS: u64 = 1_000;
pub const SEC: u64 = 1_000_000;

impl Time {
    pub fn after(self, us: u64) -> Time {
        Time(self.0 + us)
    }
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:4}.{:06}", self.0 / SEC, self.0 % SEC)
    }
}

/// A node's two clocks. The monotonic one has an offset and a rate error of at most 1 %; the wall clock may jump.
#[derive(Clone, Debug)]
pub struct Clock {
    offset_us: u64,
    /// Parts per million: 1_000_000 is true.
    rate_ppm: u64,
    pub wall_offset_ms: i64,
}

const RATE: u64 = 1_000_000;
/// A little below 1 %: the protocol allows for 1 % between any clock and true time.
const RATE_ERROR_MAX: u64 = 9_900;
const WALL_START_MS: i64 = 1_790_000_000_000;

impl Clock {
    pub fn any(rng: &mut Rng) -> Clock {
        Clock {
            offset_us: rng.range(SEC, 100_000 * SEC),
            rate_ppm: rng.range(RATE - RATE_ERROR_MAX, RATE + RATE_ERROR_MAX + 1),
            wall_offset_ms: rng.range(0, 400) as i64 - 200,
        }
    }

    pub fn mono(&self, at: Time) -> Moment {
        Moment(self.offset_us + (u128::from(at.0) * u128::from(self.rate_ppm) / u128::from(RATE)) as u64)
    }

    pub fn now(&self, at: Time) -> Now {
        Now { mono: self.mono(at), wall: WallMs(WALL_START_MS + self.wall_offset_ms + (at.0 / MS) as i64) }
    }

    /// The first true time at which this clock shows at least `moment`.
    pub fn when(&self, moment: Moment) -> Time {
        let local = u128::from(moment.0.saturating_sub(self.offset_us));
        let mut at = Time((local * u128::from(RATE)).div_ceil(u128::from(self.rate_ppm)) as u64);
        while self.mono(at) < moment {
            at = at.after(1);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_and_its_true_time_agree() {
        let mut rng = Rng::new(7);
        for _ in 0..1_000 {
            let clock = Clock::any(&mut rng);
            let at = Time(rng.below(100 * SEC));
            let moment = clock.mono(at);
            let when = clock.when(moment);
            assert!(clock.mono(when) >= moment && when <= at.after(1));
        }
    }
}
