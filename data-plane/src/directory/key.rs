//! An API key's text: `cap_`, random characters, and six characters of checksum, so that a typing error is refused
//! without asking anybody, and scanners know a leaked key.

use sha2::{Digest, Sha256};

pub type KeyHash = [u8; 32];

pub const PREFIX: &str = "cap_";
const CHECKSUM_LEN: usize = 6;
const RANDOM_LEN_MIN: usize = 22;
const LEN_MAX: usize = 128;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The key's hash, if its text is a key's.
pub fn check(secret: &str) -> Option<KeyHash> {
    let bytes = secret.as_bytes();
    let random = secret.strip_prefix(PREFIX)?;
    let is_one = random.len() >= RANDOM_LEN_MIN + CHECKSUM_LEN
        && bytes.len() <= LEN_MAX
        && random.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-'));
    if !is_one {
        return None;
    }
    let (before, sum) = bytes.split_at(bytes.len() - CHECKSUM_LEN);
    (checksum(before) == sum).then(|| Sha256::digest(bytes).into())
}

/// CRC-32 (IEEE) of what precedes, in base 62 (digits, upper case, lower case), most significant first.
pub fn checksum(before: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut rest = crc32(before);
    let mut text = [b'0'; CHECKSUM_LEN];
    for place in text.iter_mut().rev() {
        *place = BASE62[(rest % 62) as usize];
        rest /= 62;
    }
    text
}

fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    !bytes.iter().fold(!0, |crc, byte| (crc >> 8) ^ TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize])
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = (i as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_refused_without_asking() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let before = "cap_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";
        let sum = String::from_utf8(checksum(before.as_bytes()).to_vec()).expect("ASCII");
        let secret = format!("{before}{sum}");
        assert_eq!(check(&secret), Some(Sha256::digest(secret.as_bytes()).into()));
        for bad in ["", "cap_", &secret[1..], &secret.replace("abc", "acb"), &format!("{secret}0"), "cap_ä"]
        {
            assert_eq!(check(bad), None, "{bad}");
        }
    }
}
