//! How often one may try to sign in or up: per address, and per e-mail address whoever asks.
//!
//! An attempt counts the same whether the account exists or the password was right, so the refusal tells
//! nothing. What is kept is bounded by construction: a key is hashed into one of 65,536 places with a seed of
//! this process; two that share a place share its limit.

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

pub struct Attempts {
    seed: RandomState,
    addresses: DefaultKeyedRateLimiter<u16>,
    emails: DefaultKeyedRateLimiter<u16>,
}

/// Too many; try again after this long.
#[derive(Debug, PartialEq, Eq)]
pub struct TooMany(pub Duration);

impl Attempts {
    /// Attempts a minute; as many may come at once.
    pub fn new(per_address: NonZeroU32, per_email: NonZeroU32) -> Self {
        Attempts {
            seed: RandomState::new(),
            addresses: RateLimiter::dashmap(Quota::per_minute(per_address)),
            emails: RateLimiter::dashmap(Quota::per_minute(per_email)),
        }
    }

    pub fn count(&self, address: IpAddr, email: &str) -> Result<(), TooMany> {
        self.check(&self.addresses, network(address))?;
        self.check(&self.emails, email.to_lowercase())
    }

    fn check(&self, limiter: &DefaultKeyedRateLimiter<u16>, key: impl Hash) -> Result<(), TooMany> {
        let place = self.seed.hash_one(key) as u16;
        limiter.check_key(&place).map_err(|not| TooMany(not.wait_time_from(DefaultClock::default().now())))
    }
}

/// Whoever has one IPv6 address has the other 2^64 of its network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(per_address: u32, per_email: u32) -> Attempts {
        let some = |n| NonZeroU32::new(n).expect("not zero");
        Attempts::new(some(per_address), some(per_email))
    }

    fn from(address: &str) -> IpAddr {
        address.parse().expect("an address")
    }

    #[test]
    fn an_address_is_held_back_whatever_email_it_tries() {
        let attempts = attempts(2, 100);
        assert!(attempts.count(from("192.0.2.1"), "a@x.y").is_ok());
        assert!(attempts.count(from("192.0.2.1"), "b@x.y").is_ok());
        let TooMany(wait) = attempts.count(from("192.0.2.1"), "c@x.y").expect_err("the third");
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(30), "{wait:?}");
        assert!(attempts.count(from("192.0.2.2"), "a@x.y").is_ok());
    }

    #[test]
    fn an_email_is_held_back_from_every_address_and_in_every_case() {
        let attempts = attempts(100, 1);
        assert!(attempts.count(from("192.0.2.1"), "a@x.y").is_ok());
        assert!(attempts.count(from("192.0.2.2"), "A@X.y").is_err());
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one() {
        let attempts = attempts(1, 100);
        assert!(attempts.count(from("2001:db8::1"), "a@x.y").is_ok());
        assert!(attempts.count(from("2001:db8::2"), "b@x.y").is_err());
    }
}
