//! Names that users choose, checked where they enter and trusted from there on.

use crate::limits;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name has 1 to {} characters of A-Z a-z 0-9 . _ - and begins with a letter, a digit or _",
    limits::NAME_LEN_MAX
)]
pub struct BadName;

fn check(name: &str, len_max: usize) -> Result<(), BadName> {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    let bytes = name.as_bytes();
    match bytes.first() {
        Some(first) if first.is_ascii_alphanumeric() || *first == b'_' => {}
        _ => return Err(BadName),
    }
    if bytes.len() <= len_max && bytes.iter().all(|c| allowed(*c)) { Ok(()) } else { Err(BadName) }
}

macro_rules! name {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $name {
            type Err = BadName;
            fn from_str(name: &str) -> Result<Self, BadName> {
                check(name, limits::NAME_LEN_MAX).map(|()| Self(name.into()))
            }
        }
        impl TryFrom<String> for $name {
            type Error = BadName;
            fn try_from(name: String) -> Result<Self, BadName> {
                name.parse()
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.into()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

name! {
    /// A queue, unique in its spool.
    QueueName
    /// A spool, unique in its account.
    SpoolName
}

impl QueueName {
    /// The dead-letter queue that a queue gets which asks for dead-lettering and names none. It may be
    /// longer than a name that a user chooses.
    pub fn dead(&self) -> QueueName {
        QueueName(format!("{}.dead", self.0).into())
    }
    /// A name read back from where only checked names are written.
    pub fn from_stored(name: &str) -> Result<QueueName, BadName> {
        check(name, limits::NAME_LEN_MAX + ".dead".len()).map(|()| QueueName(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["a", "_x", "9", "A.b-c_d", &"x".repeat(128)] {
            assert!(good.parse::<QueueName>().is_ok(), "{good}");
        }
        for bad in ["", ".a", "-a", "a b", "ä", "a/b", "a\0", &"x".repeat(129)] {
            assert!(bad.parse::<QueueName>().is_err(), "{bad}");
        }
    }
}
