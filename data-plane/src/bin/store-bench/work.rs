//! The changes that spools make, in the shape and size that the core gives them.

use data_plane::store::SpoolNumber;
use spool::store::Batch;
use std::collections::VecDeque;
use types::limits::TRIM_STRIDE;

/// Beside the payload, in an entry: position, time, chain, check sum, the message's fields.
const ENTRY_OVERHEAD: usize = 110;

/// One spool under load: messages are sent, and settled in the order in which they were sent.
pub struct Spool {
    pub number: SpoolNumber,
    next_seq: u64,
    /// Entries of messages that wait to be settled.
    waiting: VecDeque<u64>,
    trimmed: u64,
    /// Entries that stay when the log before the head goes: every so many-th message is not settled.
    keep_every: Option<u64>,
    kept: Vec<u64>,
    pub payload_bytes: u64,
}

/// A megabyte that does not compress, to cut payloads from.
pub struct Noise(Vec<u8>);

impl Noise {
    pub fn new() -> Noise {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let word = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        Noise((0..1 << 17).flat_map(word).collect())
    }
    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let at = (at as usize).wrapping_mul(4_099) % (self.0.len() - len);
        self.0[at..at + len].to_vec()
    }
}

fn key(tag: u8, seq: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(9);
    key.push(tag);
    key.extend_from_slice(&seq.to_be_bytes());
    key
}

/// Where a queue's available messages are listed: tag, queue, priority, home.
pub fn ready_key(seq: u64) -> Vec<u8> {
    [&b"R"[..], &7u32.to_be_bytes(), &[4], &seq.to_be_bytes(), &[0, 0]].concat()
}

pub fn entry_key(seq: u64) -> Vec<u8> {
    key(b'L', seq)
}

impl Spool {
    pub fn new(number: u32, keep_every: Option<u64>) -> Spool {
        Spool {
            number: SpoolNumber(number),
            next_seq: 1,
            waiting: VecDeque::new(),
            trimmed: 0,
            keep_every,
            kept: Vec::new(),
            payload_bytes: 0,
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn head(&self) -> Option<u64> {
        self.waiting.front().copied()
    }

    /// So many sends, each an entry and what applying it writes.
    pub fn send(&mut self, messages: u64, payload_bytes: usize, noise: &Noise) -> Batch {
        let mut batch = Batch::default();
        for _ in 0..messages {
            let seq = self.next_seq;
            self.next_seq += 1;
            batch.put(entry_key(seq), noise.bytes(seq, payload_bytes + ENTRY_OVERHEAD));
            batch.put(ready_key(seq), vec![3; 24]);
            batch.put(key(b'X', seq), vec![4; 16]);
            self.waiting.push_back(seq);
        }
        self.payload_bytes += messages * payload_bytes as u64;
        self.keep_books(&mut batch);
        batch
    }

    /// One settle of so many messages: an entry, and what applying it deletes.
    pub fn settle(&mut self, messages: u64) -> Batch {
        let mut batch = Batch::default();
        let seq = self.next_seq;
        self.next_seq += 1;
        batch.put(entry_key(seq), vec![5; 80 + 20 * messages as usize]);
        for _ in 0..messages {
            let Some(home) = self.waiting.pop_front() else {
                break;
            };
            batch.delete(ready_key(home));
            if self.keep_every.is_some_and(|every| home % every == 0) {
                self.kept.push(home);
            } else {
                batch.delete(key(b'X', home));
            }
        }
        let gone = self.waiting.front().copied().unwrap_or(seq);
        if gone - self.trimmed > TRIM_STRIDE {
            for kept in self.kept.drain(..) {
                batch.delete_range(entry_key(self.trimmed), entry_key(kept));
                self.trimmed = kept + 1;
            }
            batch.delete_range(entry_key(self.trimmed), entry_key(gone));
            self.trimmed = gone;
        }
        self.keep_books(&mut batch);
        batch
    }

    /// What every step rewrites: how far the copy is, and the queue's counters.
    fn keep_books(&self, batch: &mut Batch) {
        batch.put(b"A".to_vec(), vec![6; 48]);
        batch.put(key(b'Q', 7), vec![7; 96]);
    }
}

/// What the batch would take in a file: keys and values.
pub fn bytes_of(batch: &Batch) -> usize {
    use spool::store::Op;
    let of = |op| match op {
        Op::DeleteRange(from, to) => from.len() + to.len(),
        Op::Put(key, value) => key.len() + value.len(),
        Op::Delete(key) => key.len(),
    };
    batch.ops().map(of).sum()
}
