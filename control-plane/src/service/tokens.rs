//! What proves who somebody is: session tokens, refresh tokens, API keys.

use crate::edge;
use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use sha2::{Digest, Sha256};
use uuid::Uuid;

pub const TOKEN_MS: i64 = 10 * 60 * 1000;
pub const SESSION_MS: i64 = 30 * 86_400 * 1000;

const KEY_PREFIX: &str = "cap_";
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Signs session tokens.
pub struct Signer {
    key: EncodingKey,
    pub public_pem: String,
}

impl Signer {
    /// `private_pem`: an Ed25519 key, PKCS 8.
    pub fn new(private_pem: &str) -> anyhow::Result<Signer> {
        let pair = rcgen::KeyPair::from_pem(private_pem).context("the session key")?;
        let key =
            EncodingKey::from_ed_pem(private_pem.as_bytes()).context("the session key is not Ed25519")?;
        Ok(Signer { key, public_pem: pair.public_key_pem() })
    }

    /// A JWT, good until `expires_ms`.
    pub fn sign(
        &self,
        person: Uuid,
        account: Uuid,
        session: Uuid,
        expires_ms: i64,
    ) -> Result<String, jsonwebtoken::errors::Error> {
        let claims = serde_json::json!({
            "sub": person, "account": account, "sid": session, "exp": expires_ms / 1000,
        });
        jsonwebtoken::encode(&Header::new(Algorithm::EdDSA), &claims, &self.key)
    }
}

/// A refresh token: 256 bits. Stored by its hash.
pub fn refresh_token() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(edge::random::<32>())
}

pub fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// An API key: a prefix that scanners know, 256 random bits, and six characters of checksum over both.
pub fn api_key() -> String {
    let before = format!("{KEY_PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(edge::random::<32>()));
    let sum = checksum(before.as_bytes());
    before + &sum
}

/// CRC-32 (IEEE), in base 62 (digits, upper case, lower case), most significant first.
fn checksum(bytes: &[u8]) -> String {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    let mut rest = !crc;
    let mut text = ['0'; 6];
    for place in text.iter_mut().rev() {
        *place = char::from(BASE62[(rest % 62) as usize]);
        rest /= 62;
    }
    text.iter().collect()
}

/// The first characters of a key, by which people recognise it; far too few to guess from.
pub fn hint(key: &str) -> String {
    key.chars().take(KEY_PREFIX.len() + 6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_ends_with_the_checksum_that_nodes_check() {
        // 0xcbf43926, the usual check value, in base 62.
        assert_eq!(checksum(b"123456789"), "3jZRME");
        let key = api_key();
        let (before, sum) = key.split_at(key.len() - 6);
        assert_eq!(checksum(before.as_bytes()), sum);
        assert_ne!(key, api_key());
        assert_eq!(hint(&key).len(), 10);
    }
}
