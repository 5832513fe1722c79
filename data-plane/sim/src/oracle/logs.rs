//! What must be true of logs, seals and applied states, checked with the eyes of somebody who sees every disk.

use spool::copy::{Identity, ProcessFacts, Settings, SpoolCopy};
use spool::entry::{Body, Entry};
use spool::event::{Confirm, Sealed};
use spool::keys;
use spool::record::Last;
use spool::store::{Batch, Op, Store};
use std::collections::BTreeMap;
use types::time::Now;
use types::{Epoch, Moment, Position, ProcessId, Seq, WallMs};

use crate::disk::Disk;
use crate::node::Node;
use crate::oracle::messages::Messages;

/// An entry, as it was first written anywhere.
struct Fact {
    bytes: bytes::Bytes,
    chain: spool::event::Chain,
    log_time: WallMs,
    before: Epoch,
    /// Copies that had it on disk at some time, as bits.
    synced: u32,
}

#[derive(Default)]
struct CopyFacts {
    /// Its log, trimmed entries included: which epoch stands at which seq.
    log: BTreeMap<u64, Epoch>,
    /// The highest epoch that it said it sealed or followed.
    told: Epoch,
    commit: Option<(ProcessId, Seq)>,
    applied: Seq,
    /// It is the primary of this epoch, which begins there.
    barrier: Option<(Epoch, Seq)>,
}

pub struct Logs {
    entries: BTreeMap<(Epoch, Seq), Fact>,
    copies: Vec<CopyFacts>,
    /// What was committed where, by anybody. Grows only.
    pub committed: BTreeMap<u64, Epoch>,
    /// Of the applied state at an end.
    digests: BTreeMap<Seq, (u64, usize)>,
    /// Epochs whose barrier was committed.
    barriers: BTreeMap<Epoch, Seq>,
    pub digests_compared: u64,
    k: u8,
}

impl Logs {
    pub fn new(n: u8, k: u8) -> Logs {
        Logs {
            entries: BTreeMap::new(),
            copies: (0..n).map(|_| CopyFacts::default()).collect(),
            committed: BTreeMap::new(),
            digests: BTreeMap::new(),
            barriers: BTreeMap::new(),
            digests_compared: 0,
            k,
        }
    }

    /// On how many copies' disks an entry was ever synced. I7
    pub fn synced_on(&self, position: Position) -> u32 {
        self.entries.get(&(position.epoch, position.seq)).map_or(0, |fact| fact.synced.count_ones())
    }

    /// After a start: what is on the disk now, and of what was trimmed, what was there before.
    pub fn on_open(&mut self, at: usize, copy: &SpoolCopy, disk: &Disk) {
        let facts = &mut self.copies[at];
        let applied = copy.state().applied_end();
        facts.log.retain(|seq, _| *seq < applied.0);
        for (_, bytes) in disk.map().range(keys::log(Seq(0))..keys::log_end()) {
            match Entry::decode(bytes.clone()) {
                Ok(entry) => drop(facts.log.insert(entry.position.seq.0, entry.position.epoch)),
                Err(error) => panic!("node-{at}: {error}"),
            }
        }
        assert!(
            copy.sealed() >= facts.told,
            "I2: node-{at} said {:?} and has {:?} on disk",
            facts.told,
            copy.sealed()
        );
        facts.commit = None;
        facts.applied = applied;
        facts.barrier = None;
    }

    /// A batch of the core, before it is written.
    #[expect(clippy::too_many_arguments)]
    pub fn on_write(
        &mut self,
        at: usize,
        process: ProcessId,
        primary: Option<Epoch>,
        applied: Seq,
        batch: &Batch,
        assigned: &BTreeMap<Epoch, Last>,
        messages: &mut Messages,
    ) {
        for op in batch.ops() {
            match op {
                Op::DeleteRange(from, to) if from[0] == keys::LOG => {
                    let start = keys::seq_of_log(from).map_or(0, |seq| seq.0);
                    let end = keys::seq_of_log(to).map_or(u64::MAX, |seq| seq.0);
                    self.forget(at, start.max(applied.0), end);
                }
                Op::Delete(key) if key[0] == keys::LOG => {
                    if let Some(seq) = keys::seq_of_log(key).filter(|seq| *seq >= applied) {
                        self.forget(at, seq.0, seq.0 + 1);
                    }
                }
                Op::Put(key, value) if key[0] == keys::LOG => {
                    self.on_entry(at, process, primary, value, assigned, messages);
                }
                _ => {}
            }
        }
    }

    /// Cut from the end of the log; trimming takes from its beginning.
    fn forget(&mut self, at: usize, from: u64, to: u64) {
        let gone: Vec<u64> = self.copies[at].log.range(from..to.max(from)).map(|(seq, _)| *seq).collect();
        for seq in gone {
            self.copies[at].log.remove(&seq);
        }
    }

    fn on_entry(
        &mut self,
        at: usize,
        process: ProcessId,
        primary: Option<Epoch>,
        value: &bytes::Bytes,
        assigned: &BTreeMap<Epoch, Last>,
        messages: &mut Messages,
    ) {
        let entry = match Entry::decode(value.clone()) {
            Ok(entry) => entry,
            Err(error) => panic!("node-{at} writes what it cannot read: {error}"),
        };
        let Position { epoch, seq } = entry.position;
        let log = &mut self.copies[at].log;
        let before = match seq.0 {
            1 => Epoch(0),
            _ => *log
                .get(&(seq.0 - 1))
                .unwrap_or_else(|| panic!("I5: node-{at} has no entry before {}", entry.position)),
        };
        assert!(before <= epoch, "I5: node-{at} has {} after {before:?}", entry.position);
        log.insert(seq.0, epoch);
        if let Some(fact) = self.entries.get(&(epoch, seq)) {
            assert_eq!(fact.bytes, entry.bytes, "I4: node-{at} has another {}", entry.position);
            assert_eq!(fact.before, before, "I5: node-{at} has another log before {}", entry.position);
            return;
        }
        // Nobody had it, so it was made here.
        let by = assigned.get(&epoch).map(|last| last.process);
        assert_eq!(by, Some(process), "I1: node-{at} made {}", entry.position);
        // In the same batch the role may have been lost again.
        assert!(
            primary.is_none_or(|primary| primary == epoch),
            "I1: primary of {primary:?} made {}",
            entry.position
        );
        if let Some(previous) = self.entries.get(&(before, seq.prev())) {
            assert!(previous.log_time <= entry.log_time, "I19: log time goes back at {}", entry.position);
        }
        match entry.body() {
            Ok(Body::Send { messages: sent, .. }) => {
                for message in &sent {
                    messages.on_logged(&message.payload, entry.position);
                }
            }
            Ok(_) => {}
            Err(error) => panic!("node-{at} made an entry that it cannot read: {error}"),
        }
        let fact = Fact {
            bytes: entry.bytes.clone(),
            chain: entry.chain,
            log_time: entry.log_time,
            before,
            synced: 0,
        };
        self.entries.insert((epoch, seq), fact);
    }

    pub fn on_synced(&mut self, at: usize, batch: &Batch) {
        for op in batch.ops() {
            if let Op::Put(key, value) = op
                && key[0] == keys::LOG
                && let Ok(entry) = Entry::decode(value.clone())
                && let Some(fact) = self.entries.get_mut(&(entry.position.epoch, entry.position.seq))
            {
                fact.synced |= 1 << at;
            }
        }
    }

    /// What the copy now knows to be committed. `primary`: of which epoch, when the step began. Of a primary after each step, because its answers depend on it and
    /// what it commits is on its disk; of the others once their batch is written.
    pub fn on_commit(&mut self, at: usize, node: &Node, primary: Option<Epoch>) {
        let (Some(copy), Some(process)) = (node.copy(), node.process_id()) else { return };
        let commit = copy.commit_end();
        let known = self.copies[at].commit.filter(|(by, _)| *by == process).map_or(Seq(1), |(_, seq)| seq);
        assert!(commit >= known, "I8: node-{at}'s commit goes back from {known:?} to {commit:?}");
        for seq in known.0..commit.0 {
            let Some(epoch) = self.copies[at].log.get(&seq).copied() else {
                panic!("I10: node-{at} commits {seq}, which it does not have");
            };
            let first = *self.committed.entry(seq).or_insert(epoch);
            assert_eq!(
                first, epoch,
                "I9: node-{at} commits {epoch:?} at {seq}, where {first:?} was committed"
            );
        }
        if commit > known
            && let Some(epoch) = primary
        {
            let last = Position { epoch: self.copies[at].log[&(commit.0 - 1)], seq: commit.prev() };
            let synced = self.synced_on(last);
            assert!(synced > u32::from(self.k), "I7: {last} is committed and synced on {synced} copies");
            assert_eq!(last.epoch, epoch, "I8: node-{at} commits {last} before its own barrier");
            let barrier = self.copies[at].barrier.map_or(commit, |(_, seq)| seq);
            self.barriers.entry(epoch).or_insert(barrier);
        }
        self.copies[at].commit = Some((process, commit));
    }

    /// After a step's batch was written.
    pub fn on_flushed(&mut self, at: usize, node: &Node) {
        let Some(copy) = node.copy() else { return };
        self.on_commit(at, node, copy.primary_epoch());
        let commit = copy.commit_end();
        let (applied, durable) = (copy.state().applied_end(), copy.log().durable_end());
        assert!(
            applied <= commit && applied <= durable,
            "I10: node-{at}: {applied:?} {commit:?} {durable:?}"
        );
        if applied != self.copies[at].applied {
            self.copies[at].applied = applied;
            if applied.0 % 4 == 0 {
                self.compare_state(at, node, applied);
            }
        }
    }

    /// I20
    pub fn compare_state(&mut self, at: usize, node: &Node, applied: Seq) {
        let digest = digest(node);
        let (first, by) = *self.digests.entry(applied).or_insert((digest, at));
        self.digests_compared += u64::from(by != at);
        assert_eq!(first, digest, "I20: node-{by} and node-{at} differ at {applied:?}");
    }

    /// A new primary's log has everything that was ever committed. I9
    pub fn on_primary(&mut self, at: usize, epoch: Epoch) {
        let log = &self.copies[at].log;
        for (seq, of) in &self.committed {
            let has = log.get(seq);
            assert_eq!(
                has,
                Some(of),
                "I9: node-{at}, primary of {epoch:?}, has {has:?} at {seq}, where {of:?} was committed"
            );
        }
        // Its barrier is not written yet.
        let barrier = log.keys().next_back().map_or(1, |last| last + 1);
        self.copies[at].barrier = Some((epoch, Seq(barrier)));
    }

    pub fn on_confirm(&mut self, at: usize, disk: &Disk, confirm: &Confirm) {
        let facts = &mut self.copies[at];
        let seq = confirm.end.prev();
        facts.told = facts.told.max(confirm.epoch);
        if seq == Seq(0) {
            return;
        }
        let Some(epoch) = facts.log.get(&seq.0).copied() else {
            panic!("I6: node-{at} confirms {seq:?}, which it does not have");
        };
        if let Some(fact) = self.entries.get(&(epoch, seq)) {
            assert_eq!(fact.chain, confirm.chain, "I6: node-{at} confirms {seq:?} with another chain");
            if let Ok(Some(on_disk)) = disk.synced().get(&keys::log(seq)) {
                assert_eq!(on_disk, fact.bytes, "I6: node-{at} confirms {seq:?} and has synced another");
            } else {
                let applied = facts.applied;
                assert!(seq < applied, "I6: node-{at} confirms {seq:?}, which is not synced");
            }
        }
        let primary = self.copies.iter().find(|copy| copy.barrier.is_some_and(|(of, _)| of == confirm.epoch));
        if let Some(at_primary) = primary.and_then(|copy| copy.log.get(&seq.0)) {
            assert_eq!(*at_primary, epoch, "I6: node-{at} confirms {seq:?}, where its primary has another");
        }
    }

    /// A Seal's answer leaves: it must be on the disk, and so must the position it tells. I2 I11
    pub fn on_sealed(&mut self, at: usize, identity: Identity, disk: &Disk, sealed: &Sealed) {
        let facts = &mut self.copies[at];
        facts.told = facts.told.max(sealed.epoch);
        let process = ProcessFacts { process: sealed.process, boot_no: 0, started: Moment::ZERO };
        let reopened =
            SpoolCopy::open(identity, process, Settings::default(), Now::default(), &disk.synced());
        match reopened {
            Ok(copy) => {
                assert!(
                    copy.sealed() >= sealed.epoch,
                    "I2: node-{at} said {:?} and synced {:?}",
                    sealed.epoch,
                    copy.sealed()
                );
                assert_eq!(
                    copy.log().last(),
                    sealed.position,
                    "I11: node-{at} tells a position that is not synced"
                );
            }
            Err(error) => panic!("I2: node-{at} could not be opened after a power cut: {error}"),
        }
    }

    /// The highest epoch that a copy is known to refuse everything below.
    pub fn told(&self, at: usize) -> Epoch {
        self.copies[at].told
    }

    pub fn on_prev_cleared(&mut self, epoch: Epoch) {
        assert!(
            self.barriers.contains_key(&epoch),
            "I14: `prev` is cleared before the barrier of {epoch:?} is committed"
        );
    }
}

/// Of the applied state. FNV is enough against accidents, and the same on every run.
pub fn digest(node: &Node) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hash = (hash ^ 0x1ff).wrapping_mul(0x0100_0000_01b3);
    };
    let applied = |key: &[u8]| key.first().is_some_and(|tag| keys::APPLIED_TAGS.contains(tag));
    for (key, value) in node.disk.map().iter().filter(|(key, _)| applied(key)) {
        feed(key);
        feed(value);
    }
    hash
}
