//! A receiver's proof of its lease: which delivery of which message, in whose reign, under a MAC.
//!
//! Every copy has the spool's `token_key`, so a later primary can tell an old token (410) from a forged one (400).

use std::fmt;
use types::{Epoch, Seq};

/// An uninterrupted reign of one process: its first epoch, and which start of the process it was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tenure {
    pub epoch: Epoch,
    pub boot_no: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token {
    pub tenure: Tenure,
    /// Counts the leases of a tenure.
    pub lease_no: u64,
    /// The message's home: the entry that sent it, and its place in there.
    pub seq: Seq,
    pub index: u16,
    pub mac: [u8; 16],
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a token")]
pub struct BadToken;

const BYTES: usize = 8 + 8 + 8 + 8 + 2 + 16;
const VERSION: char = '1';

impl Token {
    pub fn mint(key: &TokenKey, tenure: Tenure, lease_no: u64, seq: Seq, index: u16) -> Token {
        let mut token = Token { tenure, lease_no, seq, index, mac: [0; 16] };
        token.mac = token.expected_mac(key);
        token
    }

    /// Whether this spool minted it. Constant time in the MAC.
    pub fn is_genuine(&self, key: &TokenKey) -> bool {
        let expected = self.expected_mac(key);
        let differing = self.mac.iter().zip(&expected).fold(0, |acc, (a, b)| acc | (a ^ b));
        std::hint::black_box(differing) == 0
    }

    fn expected_mac(&self, key: &TokenKey) -> [u8; 16] {
        let mut mac = [0; 16];
        let hash = blake3::keyed_hash(&key.0, &self.to_bytes()[..BYTES - 16]);
        mac.copy_from_slice(&hash.as_bytes()[..16]);
        mac
    }

    fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0..8].copy_from_slice(&self.tenure.epoch.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.tenure.boot_no.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.lease_no.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.seq.0.to_be_bytes());
        bytes[32..34].copy_from_slice(&self.index.to_be_bytes());
        bytes[34..].copy_from_slice(&self.mac);
        bytes
    }
}

/// Minted with the spool; one key for all its copies.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey(pub [u8; 32]);

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(..)")
    }
}

/// As text: a version character, then lower-case hexadecimal.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 1 + 2 * BYTES];
        text[0] = VERSION as u8;
        for (pair, byte) in text[1..].chunks_exact_mut(2).zip(self.to_bytes()) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl std::str::FromStr for Token {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Token, BadToken> {
        let hex = text.strip_prefix(VERSION).ok_or(BadToken)?.as_bytes();
        if hex.len() != 2 * BYTES {
            return Err(BadToken);
        }
        let nibble = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(BadToken),
        };
        let mut bytes = [0; BYTES];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(word)
        };
        let mut mac = [0; 16];
        mac.copy_from_slice(&bytes[34..]);
        Ok(Token {
            tenure: Tenure { epoch: Epoch(word(0)), boot_no: word(8) },
            lease_no: word(16),
            seq: Seq(word(24)),
            index: u16::from_be_bytes([bytes[32], bytes[33]]),
            mac,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_there_and_back_and_a_forged_one_is_told() {
        let key = TokenKey([7; 32]);
        let token = Token::mint(&key, Tenure { epoch: Epoch(2), boot_no: 9 }, 44, Seq(100), 3);
        let back: Token = token.to_string().parse().expect("own text");
        assert_eq!(back, token);
        assert!(back.is_genuine(&key));
        assert!(!back.is_genuine(&TokenKey([8; 32])));
        assert!(!Token { index: 4, ..token }.is_genuine(&key));
        for bad in ["", "1", "2abc", &token.to_string()[1..], &token.to_string().to_uppercase()] {
            assert!(bad.parse::<Token>().is_err(), "{bad}");
        }
    }
}
