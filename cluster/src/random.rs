//! The one place of this program that makes randomness.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes);
    bytes
}

/// 144 bits, in letters that need no quoting anywhere.
pub fn secret() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes::<18>())
}

/// Below `end`, near enough to evenly for what it is used for.
pub fn below(end: u16) -> u16 {
    u16::from_be_bytes(bytes()) % end
}
