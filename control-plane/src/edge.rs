//! The one place of this program that reads the wall clock and makes randomness.

use std::time::SystemTime;

/// Milliseconds since 1970.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes);
    bytes
}
