//! Every RocksDB key of a node, and the values of those that are the node's own.
//!
//! A key is a spool's number on this node (4 bytes, big-endian), then a key of that spool. The keys of numbers
//! from 1 are the pure core's: it chooses, encodes and versions them, see `spool::keys`. The keys of number 0
//! are the node's, below. Integers are big-endian, a value's first byte is its version, and a value of a version
//! that is not known is an error, never an absence.
//!
//! | Key (column family)                     | Value                  | Lifetime |
//! |-----------------------------------------|------------------------|----------|
//! | number, `L`.. (`log`)                   | the core's: an entry   | until its messages are gone and no copy needs it |
//! | number, anything else (`state`)         | the core's             | as long as the core says |
//! | 0, `b` (`state`)                        | [`BootRecord`]         | rewritten at every start |
//! | 0, `i` (`state`)                        | [`DirRecord`]          | as old as the data directory |
//! | 0, `n` (`state`)                        | [`NextNumber`]         | rewritten with every copy: a number is used once |
//! | 0, `s`, number (`state`)                | [`CopyFacts`]          | as long as the copy |

use std::fmt;
use types::{AccountId, CopyId, SpoolId, SpoolName, WallMs};
use uuid::Uuid;

use spool::token::TokenKey;

use super::copies::CopyFacts;

/// Stands for a spool in the keys of this node. Means nothing elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpoolNumber(pub u32);

impl fmt::Display for SpoolNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where the node's own keys are.
pub(super) const NODE: SpoolNumber = SpoolNumber(0);

pub(super) const BOOT: &[u8] = b"b";
pub(super) const DIR: &[u8] = b"i";
pub(super) const NEXT_NUMBER: &[u8] = b"n";
pub(super) const COPY: u8 = b's';

/// The core's keys with this first byte are log entries.
pub const LOG_TAG: u8 = b'L';
const LOG_FROM: &[u8] = &[LOG_TAG];
const LOG_TO: &[u8] = &[LOG_TAG + 1];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Column {
    Log,
    State,
}

impl Column {
    pub fn of(key: &[u8]) -> Column {
        if key.first() == Some(&LOG_TAG) { Column::Log } else { Column::State }
    }

    pub fn name(self) -> &'static str {
        match self {
            Column::Log => "log",
            Column::State => "state",
        }
    }
}

pub(super) const PREFIX_LEN: usize = 4;

pub(super) fn full_key(number: SpoolNumber, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(PREFIX_LEN + key.len());
    full.extend_from_slice(&number.0.to_be_bytes());
    full.extend_from_slice(key);
    full
}

pub(super) fn copy_key(number: SpoolNumber) -> Vec<u8> {
    let mut key = vec![COPY];
    key.extend_from_slice(&number.0.to_be_bytes());
    key
}

/// A range of a spool's keys, cut where another column family begins; in order, empty pieces left out.
pub(super) fn pieces<'a>(
    from: &'a [u8],
    to: &'a [u8],
) -> impl DoubleEndedIterator<Item = (Column, &'a [u8], &'a [u8])> {
    [
        (Column::State, from, to.min(LOG_FROM)),
        (Column::Log, from.max(LOG_FROM), to.min(LOG_TO)),
        (Column::State, from.max(LOG_TO), to),
    ]
    .into_iter()
    .filter(|(_, from, to)| from < to)
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    #[error("{what} has version {version}, which this program does not know")]
    Version { what: &'static str, version: u8 },
    #[error("{what} is not whole")]
    Shape { what: &'static str },
}

/// Which data directory this is. An emptied or replaced one is another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirRecord {
    pub id: Uuid,
}

/// Which start of a process on this directory, and in which run of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootRecord {
    pub boot_no: u64,
    /// Nil where the kernel does not say.
    pub kernel_boot_id: Uuid,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextNumber(pub SpoolNumber);

impl DirRecord {
    const WHAT: &str = "the directory's id";

    pub fn encode(&self) -> Vec<u8> {
        [&[1], &self.id.as_bytes()[..]].concat()
    }

    pub fn decode(value: &[u8]) -> Result<DirRecord, BadValue> {
        let mut fields = Fields::of_version(value, 1, Self::WHAT)?;
        let id = Uuid::from_bytes(fields.array()?);
        fields.end()?;
        Ok(DirRecord { id })
    }
}

impl BootRecord {
    const WHAT: &str = "the record of the last start";

    pub fn encode(&self) -> Vec<u8> {
        [&[1], &self.boot_no.to_be_bytes()[..], &self.kernel_boot_id.as_bytes()[..]].concat()
    }

    pub fn decode(value: &[u8]) -> Result<BootRecord, BadValue> {
        let mut fields = Fields::of_version(value, 1, Self::WHAT)?;
        let boot_no = u64::from_be_bytes(fields.array()?);
        let kernel_boot_id = Uuid::from_bytes(fields.array()?);
        fields.end()?;
        Ok(BootRecord { boot_no, kernel_boot_id })
    }
}

impl NextNumber {
    const WHAT: &str = "the next spool number";

    pub fn encode(&self) -> Vec<u8> {
        [&[1], &self.0.0.to_be_bytes()[..]].concat()
    }

    pub fn decode(value: &[u8]) -> Result<NextNumber, BadValue> {
        let mut fields = Fields::of_version(value, 1, Self::WHAT)?;
        let number = SpoolNumber(u32::from_be_bytes(fields.array()?));
        fields.end()?;
        Ok(NextNumber(number))
    }
}

impl CopyFacts {
    const WHAT: &str = "a copy's facts";

    pub(super) fn encode(&self) -> Vec<u8> {
        let name = self.name.as_str().as_bytes();
        let mut value = vec![1];
        value.extend_from_slice(self.spool.0.as_bytes());
        value.extend_from_slice(self.account.0.as_bytes());
        value.extend_from_slice(self.copy.0.as_bytes());
        value.extend_from_slice(&self.token_key.0);
        value.extend_from_slice(&self.created.0.to_be_bytes());
        value.extend_from_slice(&[self.n, self.k]);
        // The rest is the name: it is checked to be short, and it ends where the value ends.
        value.extend_from_slice(name);
        value
    }

    pub(super) fn decode(number: SpoolNumber, value: &[u8]) -> Result<CopyFacts, BadValue> {
        let mut fields = Fields::of_version(value, 1, Self::WHAT)?;
        Ok(CopyFacts {
            number,
            spool: SpoolId(Uuid::from_bytes(fields.array()?)),
            account: AccountId(Uuid::from_bytes(fields.array()?)),
            copy: CopyId(Uuid::from_bytes(fields.array()?)),
            token_key: TokenKey(fields.array()?),
            created: WallMs(i64::from_be_bytes(fields.array()?)),
            n: u8::from_be_bytes(fields.array()?),
            k: u8::from_be_bytes(fields.array()?),
            name: fields.name()?,
        })
    }
}

/// What is left to decode of a value.
struct Fields<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn of_version(value: &'a [u8], known: u8, what: &'static str) -> Result<Fields<'a>, BadValue> {
        match value.split_first() {
            Some((version, rest)) if *version == known => Ok(Fields { what, rest }),
            Some((version, _)) => Err(BadValue::Version { what, version: *version }),
            None => Err(BadValue::Shape { what }),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadValue> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(BadValue::Shape { what: self.what })?;
        self.rest = rest;
        Ok(*array)
    }

    fn name(self) -> Result<SpoolName, BadValue> {
        let name = std::str::from_utf8(self.rest).ok().and_then(|name| name.parse().ok());
        name.ok_or(BadValue::Shape { what: self.what })
    }

    fn end(self) -> Result<(), BadValue> {
        if self.rest.is_empty() { Ok(()) } else { Err(BadValue::Shape { what: self.what }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> CopyFacts {
        CopyFacts {
            number: SpoolNumber(7),
            spool: SpoolId(Uuid::from_u128(1)),
            account: AccountId(Uuid::from_u128(2)),
            name: "orders".parse().expect("a good name"),
            n: 3,
            k: 1,
            copy: CopyId(Uuid::from_u128(3)),
            token_key: TokenKey([9; 32]),
            created: WallMs(1_700_000_000_000),
        }
    }

    #[test]
    fn values_go_there_and_back() {
        let dir = DirRecord { id: Uuid::from_u128(5) };
        assert_eq!(DirRecord::decode(&dir.encode()), Ok(dir));
        let boot = BootRecord { boot_no: 41, kernel_boot_id: Uuid::from_u128(6) };
        assert_eq!(BootRecord::decode(&boot.encode()), Ok(boot));
        let next = NextNumber(SpoolNumber(8));
        assert_eq!(NextNumber::decode(&next.encode()), Ok(next));
        assert_eq!(CopyFacts::decode(SpoolNumber(7), &facts().encode()), Ok(facts()));
    }

    #[test]
    fn values_of_another_version_or_cut_short_are_errors() {
        let mut value = facts().encode();
        assert!(matches!(CopyFacts::decode(SpoolNumber(7), &value[..50]), Err(BadValue::Shape { .. })));
        value[0] = 2;
        assert_eq!(
            CopyFacts::decode(SpoolNumber(7), &value),
            Err(BadValue::Version { what: CopyFacts::WHAT, version: 2 })
        );
        let mut long = BootRecord { boot_no: 1, kernel_boot_id: Uuid::nil() }.encode();
        long.push(0);
        assert!(matches!(BootRecord::decode(&long), Err(BadValue::Shape { .. })));
        assert!(matches!(DirRecord::decode(&[]), Err(BadValue::Shape { .. })));
    }

    #[test]
    fn keys_sort_by_spool_and_then_as_the_core_sorts_them() {
        let keys = [
            full_key(SpoolNumber(1), b""),
            full_key(SpoolNumber(1), b"L\x01"),
            full_key(SpoolNumber(1), &[0xff; 9]),
            full_key(SpoolNumber(2), b""),
            full_key(SpoolNumber(256), b"A"),
        ];
        assert!(keys.is_sorted());
    }

    #[test]
    fn a_range_is_cut_at_the_log() {
        let cut =
            |from: &'static str, to: &'static str| pieces(from.as_bytes(), to.as_bytes()).collect::<Vec<_>>();
        assert_eq!(cut("A", "K"), [(Column::State, &b"A"[..], &b"K"[..])]);
        assert_eq!(cut("L1", "L2"), [(Column::Log, &b"L1"[..], &b"L2"[..])]);
        assert_eq!(cut("L", "M"), [(Column::Log, &b"L"[..], &b"M"[..])]);
        assert_eq!(
            cut("", "z"),
            [
                (Column::State, &b""[..], &b"L"[..]),
                (Column::Log, &b"L"[..], &b"M"[..]),
                (Column::State, &b"M"[..], &b"z"[..]),
            ]
        );
        assert_eq!(cut("M", "A"), []);
        assert_eq!(cut("L", "L"), []);
    }
}
