//! The keys of a spool, relative to it. The first byte is a tag; numbers are big-endian, so that byte order is
//! the order of the numbers. `content` numbers what a queue holds: a purge or a deletion gives the queue
//! another number, in constant time, and leaves the old rows to be swept.
//!
//! | tag | key after the tag | value | lifetime |
//! |---|---|---|---|
//! | `L` | seq | [`crate::entry`] | from its append until trimmed and the last of its messages is gone |
//! | `E` | epoch | seq of its first entry | for good; cut with the log |
//! | `m` | - | [`crate::log::Meta`]: who this copy is, what it sealed | for good |
//! | `t` | - | trim point: exclusive end, and the chain there | for good |
//! | `a` | - | [`crate::state::rows::AppliedRow`] | for good |
//! | `Q` | queue name | [`crate::state::rows::QueueRow`] | while the queue exists |
//! | `C` | queue no | [`crate::state::rows::Counts`] | while the queue exists |
//! | `B` | home seq, block | [`crate::state::rows::Block`]: 64 messages of an entry | until the last of them is gone |
//! | `R` | content, 9 - priority, order seq, order index | empty, or the home of a moved message | while one of them is ready |
//! | `D` | due (ms), home seq, index | empty | while the message is delayed |
//! | `G` | content, group, order seq, order index | for ordering groups | while the message is there |
//! | `K` | queue no, dedup key | [`crate::state::rows::DedupRow`] | for the dedup window |
//! | `X` | expiry (ms), queue no, dedup key | empty | as the `K` row |
//! | `Z` | content | what is left to sweep of it | until swept |
//!
//! `L`, `E`, `m`, `t` and how much of `L` is left differ from copy to copy; everything else is the
//! applied state, equal on all copies at equal `applied_end`. I20

use crate::store::Key;
use types::{Epoch, Seq, WallMs};

pub const LOG: u8 = b'L';
pub const EPOCH: u8 = b'E';
pub const META: &[u8] = b"m";
pub const TRIM: &[u8] = b"t";
pub const APPLIED: &[u8] = b"a";
pub const QUEUE: u8 = b'Q';
pub const COUNTS: u8 = b'C';
pub const BLOCK: u8 = b'B';
pub const READY: u8 = b'R';
pub const DUE: u8 = b'D';
pub const DEDUP: u8 = b'K';
pub const DEDUP_EXPIRY: u8 = b'X';
pub const SWEEP: u8 = b'Z';

/// Tags of the applied state, for digests and snapshots.
pub const APPLIED_TAGS: &[u8] = b"aQCBRDGKXZ";

/// Messages of one entry that share a [`BLOCK`] row.
pub const BLOCK_LEN: u16 = 64;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueNo(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ContentNo(pub u32);

/// A message by its home: the entry that sent it, and its place there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Msg {
    pub seq: Seq,
    pub index: u16,
}

impl Msg {
    pub fn block(self) -> u16 {
        self.index / BLOCK_LEN
    }
}

/// A message's place in its queue and priority: its acceptance there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Order {
    pub seq: Seq,
    pub index: u16,
}

fn tagged<const N: usize>(tag: u8, parts: [&[u8]; N]) -> Key {
    let mut key = Vec::with_capacity(32);
    key.push(tag);
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}

pub fn log(seq: Seq) -> Key {
    tagged(LOG, [&seq.0.to_be_bytes()])
}
/// After every entry of the log.
pub fn log_end() -> Key {
    vec![LOG + 1]
}
pub fn seq_of_log(key: &[u8]) -> Option<Seq> {
    key.strip_prefix(&[LOG]).and_then(|rest| rest.try_into().ok()).map(|be| Seq(u64::from_be_bytes(be)))
}
pub fn epoch(epoch: Epoch) -> Key {
    tagged(EPOCH, [&epoch.0.to_be_bytes()])
}
pub fn queue(name: &str) -> Key {
    tagged(QUEUE, [name.as_bytes()])
}
pub fn counts(no: QueueNo) -> Key {
    tagged(COUNTS, [&no.0.to_be_bytes()])
}
pub fn block(seq: Seq, block: u16) -> Key {
    tagged(BLOCK, [&seq.0.to_be_bytes(), &block.to_be_bytes()])
}
pub fn block_of(msg: Msg) -> Key {
    block(msg.seq, msg.block())
}
pub fn seq_of_block(key: &[u8]) -> Option<Seq> {
    let be = key.strip_prefix(&[BLOCK])?.get(..8)?;
    be.try_into().ok().map(|be| Seq(u64::from_be_bytes(be)))
}
pub fn ready(content: ContentNo, priority: u8, order: Order) -> Key {
    tagged(
        READY,
        [&content.0.to_be_bytes(), &[9 - priority], &order.seq.0.to_be_bytes(), &order.index.to_be_bytes()],
    )
}
/// After every ready row of this content and priority.
pub fn ready_end(content: ContentNo, priority: u8) -> Key {
    tagged(READY, [&content.0.to_be_bytes(), &[10 - priority]])
}
pub fn ready_content(content: ContentNo) -> (Key, Key) {
    (tagged(READY, [&content.0.to_be_bytes()]), tagged(READY, [&(content.0 + 1).to_be_bytes()]))
}
pub fn order_of_ready(key: &[u8]) -> Option<(ContentNo, u8, Order)> {
    let rest = key.strip_prefix(&[READY])?;
    let content = ContentNo(u32::from_be_bytes(rest.get(..4)?.try_into().ok()?));
    let priority = 9u8.checked_sub(*rest.get(4)?)?;
    let seq = Seq(u64::from_be_bytes(rest.get(5..13)?.try_into().ok()?));
    let index = u16::from_be_bytes(rest.get(13..)?.try_into().ok()?);
    Some((content, priority, Order { seq, index }))
}
pub fn due(at: WallMs, msg: Msg) -> Key {
    tagged(DUE, [&at.0.max(0).to_be_bytes(), &msg.seq.0.to_be_bytes(), &msg.index.to_be_bytes()])
}
pub fn due_start() -> Key {
    vec![DUE]
}
/// Before every row that is due at `at` or later.
pub fn due_from(at: Option<WallMs>) -> Key {
    tagged(DUE, [&at.map_or(0, |at| at.0.max(0)).to_be_bytes()])
}
/// After every row that is due at `at` or before.
pub fn due_until(at: WallMs) -> Key {
    tagged(DUE, [&(at.0.max(0) + 1).to_be_bytes()])
}
pub fn of_due(key: &[u8]) -> Option<(WallMs, Msg)> {
    let rest = key.strip_prefix(&[DUE])?;
    let at = WallMs(i64::from_be_bytes(rest.get(..8)?.try_into().ok()?));
    let seq = Seq(u64::from_be_bytes(rest.get(8..16)?.try_into().ok()?));
    let index = u16::from_be_bytes(rest.get(16..)?.try_into().ok()?);
    Some((at, Msg { seq, index }))
}
pub fn dedup(no: QueueNo, key: &[u8]) -> Key {
    tagged(DEDUP, [&no.0.to_be_bytes(), key])
}
pub fn dedup_queue(no: QueueNo) -> (Key, Key) {
    (tagged(DEDUP, [&no.0.to_be_bytes()]), tagged(DEDUP, [&(no.0 + 1).to_be_bytes()]))
}
pub fn dedup_expiry(at: WallMs, no: QueueNo, key: &[u8]) -> Key {
    tagged(DEDUP_EXPIRY, [&at.0.max(0).to_be_bytes(), &no.0.to_be_bytes(), key])
}
pub fn dedup_expiry_from(at: Option<WallMs>) -> Key {
    tagged(DEDUP_EXPIRY, [&at.map_or(0, |at| at.0.max(0)).to_be_bytes()])
}
pub fn dedup_expired_until(at: WallMs) -> Key {
    tagged(DEDUP_EXPIRY, [&(at.0.max(0) + 1).to_be_bytes()])
}
pub fn of_dedup_expiry(key: &[u8]) -> Option<(QueueNo, &[u8])> {
    let rest = key.strip_prefix(&[DEDUP_EXPIRY])?.get(8..)?;
    let no = QueueNo(u32::from_be_bytes(rest.get(..4)?.try_into().ok()?));
    Some((no, rest.get(4..)?))
}
pub fn sweep(content: ContentNo) -> Key {
    tagged(SWEEP, [&content.0.to_be_bytes()])
}
pub fn of_sweep(key: &[u8]) -> Option<ContentNo> {
    key.strip_prefix(&[SWEEP])?.try_into().ok().map(|be| ContentNo(u32::from_be_bytes(be)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_there_and_back_and_sort_as_their_numbers() {
        let msg = Msg { seq: Seq(300), index: 7 };
        assert_eq!(of_due(&due(WallMs(5), msg)), Some((WallMs(5), msg)));
        let order = Order { seq: Seq(9), index: 3 };
        assert_eq!(order_of_ready(&ready(ContentNo(2), 4, order)), Some((ContentNo(2), 4, order)));
        assert_eq!(seq_of_log(&log(Seq(70_000))), Some(Seq(70_000)));
        assert_eq!(seq_of_block(&block_of(msg)), Some(Seq(300)));
        assert_eq!(
            of_dedup_expiry(&dedup_expiry(WallMs(1), QueueNo(3), b"k")),
            Some((QueueNo(3), &b"k"[..]))
        );
        assert!(ready(ContentNo(2), 9, order) < ready(ContentNo(2), 0, order), "high priorities first");
        assert!(ready(ContentNo(2), 0, order) < ready_end(ContentNo(2), 0));
        assert!(log(Seq(255)) < log(Seq(256)) && log(Seq(u64::MAX)) < log_end());
        assert!(due(WallMs(5), msg) < due_until(WallMs(5)) && due_until(WallMs(5)) <= due(WallMs(6), msg));
    }
}
