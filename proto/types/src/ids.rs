//! Ids. A spool's id is minted when the spool is created and never reused, so it is the spool's incarnation
//! too: a spool that is deleted and created again under the same name has another id, and a copy that was
//! away meanwhile is foreign to it.

use crate::position::{Epoch, Seq};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

macro_rules! uuid_id {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            pub const fn from_u128(n: u128) -> Self {
                Self(Uuid::from_u128(n))
            }
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                Uuid::from_slice(bytes).ok().map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, uuid::Error> {
                Uuid::parse_str(text).map(Self)
            }
        }
    )*};
}

uuid_id! {
    /// Who owns keys, spools and a plan.
    AccountId
    /// A spool, this creation of it.
    SpoolId
    /// A copy on one particular disk: an emptied or replaced disk gets another one.
    CopyId
    /// One run of a node's process.
    ProcessId
}

/// A node's configured name, unique in an installation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeName(pub String);

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for NodeName {
    fn from(name: &str) -> Self {
        NodeName(name.to_owned())
    }
}

/// A message: the entry that sent it, and its place within that entry's batch. It contains the epoch, so it
/// is never used again, whatever is lost. Written `<epoch>-<seq>-<index>` in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MessageId {
    pub epoch: Epoch,
    pub seq: Seq,
    pub index: u16,
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}-{:x}", self.epoch.0, self.seq.0, self.index)
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message id")]
pub struct BadMessageId;

impl FromStr for MessageId {
    type Err = BadMessageId;
    fn from_str(text: &str) -> Result<Self, BadMessageId> {
        let canonical = |part: &str| !part.is_empty() && (part == "0" || !part.starts_with(['0', '+']));
        let mut parts = text.split('-');
        let (Some(epoch), Some(seq), Some(index), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(BadMessageId);
        };
        if ![epoch, seq, index].iter().all(|part| canonical(part)) {
            return Err(BadMessageId);
        }
        let number = |part: &str| u64::from_str_radix(part, 16).map_err(|_| BadMessageId);
        let index = u16::try_from(number(index)?).map_err(|_| BadMessageId)?;
        Ok(MessageId { epoch: Epoch(number(epoch)?), seq: Seq(number(seq)?), index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_ids_go_there_and_back_and_have_one_spelling() {
        let id = MessageId { epoch: Epoch(3), seq: Seq(0xabc), index: 17 };
        assert_eq!(id.to_string(), "3-abc-11");
        assert_eq!("3-abc-11".parse(), Ok(id));
        for bad in ["", "3-abc", "3-abc-11-0", "03-abc-11", "3-+abc-1", "3-abc-10000", "x-1-1"] {
            assert_eq!(bad.parse::<MessageId>(), Err(BadMessageId), "{bad}");
        }
    }
}
