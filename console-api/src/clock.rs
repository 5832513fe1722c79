//! The wall clock, read here alone.

use jiff::Timestamp;

#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn now() -> Timestamp {
    Timestamp::now()
}
