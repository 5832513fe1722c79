//! The wall clock, read here alone.

use jiff::Timestamp;

pub fn now() -> Timestamp {
    Timestamp::now()
}
