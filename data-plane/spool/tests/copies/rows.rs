//! The applied state, counted over from its rows: every count, every listing, every home.

use spool::copy::SpoolCopy;
use spool::keys::{self, ContentNo, Msg, Order};
use spool::memstore::MemStore;
use spool::state::rows::{Block, Counts, Status};
use spool::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use types::{MessageId, Seq};

use crate::disk;

/// The messages of a block, with where they stand.
fn messages(key: &[u8], block: &Block) -> Vec<(Msg, Status)> {
    let seq = keys::seq_of_block(key).expect("a block's key");
    let no = u16::from_be_bytes([key[9], key[10]]);
    let live = |index: u16| block.slot(index).map(|slot| (Msg { seq, index }, slot.status));
    (0..block.slots.len() as u16).filter_map(|at| live(no * keys::BLOCK_LEN + at)).collect()
}

fn blocks(store: &MemStore) -> impl Iterator<Item = (&[u8], Block)> {
    let rows = store.iter().filter(|(key, _)| key[0] == keys::BLOCK);
    rows.map(|(key, value)| (key, Block::decode(value).expect("a block's row")))
}

/// Of every message that is there, its id.
pub fn live(store: &MemStore, copy: &SpoolCopy) -> BTreeSet<MessageId> {
    let all = blocks(store).flat_map(|(key, block)| messages(key, &block));
    let id = |(msg, _): (Msg, Status)| MessageId {
        epoch: copy.log().epoch_at(msg.seq),
        seq: msg.seq,
        index: msg.index,
    };
    all.map(id).collect()
}

pub fn check(store: &MemStore, copy: &SpoolCopy) {
    let mut sums: BTreeMap<ContentNo, (u64, u64, u64)> = BTreeMap::new();
    let (mut ready, mut due) = (BTreeSet::new(), BTreeSet::new());
    for (key, block) in blocks(store) {
        for (msg, status) in messages(key, &block) {
            let home =
                disk::entry(store, msg.seq).unwrap_or_else(|| panic!("I22: the home of {msg:?} is gone"));
            let slot = block.slot(msg.index).expect("it is live");
            let payload = home.message(msg.index).expect("a message").payload;
            assert_eq!(payload.len(), slot.payload_len as usize, "I22: {msg:?}");
            let content = block.content_of(msg.index);
            let sum = sums.entry(content).or_default();
            sum.2 += u64::from(slot.payload_len);
            if status == Status::Ready {
                sum.0 += 1;
                let first = Order { seq: msg.seq, index: msg.block() * keys::BLOCK_LEN };
                let order = block.moved(msg.index).map_or(first, |moved| moved.order);
                ready.insert(keys::ready(content, slot.priority, order));
            } else {
                sum.1 += 1;
                due.insert(keys::due(block.extra(msg.index).expect("its due time").due, msg));
            }
        }
    }
    // I24: each message is listed once, where it is, and nothing else is.
    let rows = |tag: u8| store.iter().filter(move |(key, _)| key[0] == tag).map(|(key, _)| key.to_vec());
    assert_eq!(rows(keys::READY).collect::<BTreeSet<_>>(), ready, "I24: the ready rows");
    assert_eq!(rows(keys::DUE).collect::<BTreeSet<_>>(), due, "I24: the due rows");
    for (no, queue) in copy.state().queues() {
        let (ready, delayed, bytes) = sums.get(&queue.content).copied().unwrap_or_default();
        let counts = queue.counts;
        assert_eq!(
            (counts.ready, counts.delayed, counts.bytes),
            (ready, delayed, bytes),
            "I24: {}",
            queue.name
        );
        let row = store.get(&keys::counts(no)).expect("a store in memory can be read");
        let row = row.map(|row| Counts::decode(&row).expect("a counts row"));
        assert_eq!(row.unwrap_or_default(), counts, "I20: {}'s counts on disk", queue.name);
    }
}

/// Of all rows that copies have in common at the same applied end.
pub fn digest(store: &MemStore) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for (key, value) in store.iter().filter(|(key, _)| keys::APPLIED_TAGS.contains(&key[0])) {
        feed(key);
        feed(value);
    }
    hash
}

/// How much of a log is there: its last entries, in a row.
pub fn is_contiguous(store: &MemStore, from: Seq, to: Seq) -> bool {
    (from.0..to.0).all(|seq| disk::entry(store, Seq(seq)).is_some())
}
