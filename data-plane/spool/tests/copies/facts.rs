//! What is true of all copies together, seen by somebody who sees every disk. Each check names its invariant.

use spool::copy::{ProcessFacts, Settings, SpoolCopy};
use spool::entry::{Body, Entry};
use spool::event::{Confirm, Effects, Note, PeerMessage, RejectReason, Sealed};
use spool::keys;
use spool::record::Last;
use spool::store::Op;
use std::collections::BTreeMap;
use types::{Epoch, Moment, Position, ProcessId, Seq, WallMs};

use crate::disk;
use crate::node::{Node, identity};
use crate::rows;

/// An entry, as it was first written anywhere.
struct Fact {
    bytes: bytes::Bytes,
    before: Epoch,
    log_time: WallMs,
}

#[derive(Default)]
pub struct Facts {
    entries: BTreeMap<Position, Fact>,
    /// By seq, what was committed there by anybody. Grows only.
    pub committed: BTreeMap<u64, Epoch>,
    /// Exclusive end of what was committed when an epoch was assigned.
    committed_then: BTreeMap<Epoch, u64>,
    digests: BTreeMap<Seq, u64>,
    pub copies: Vec<CopyFacts>,
    pub seen: Seen,
}

/// Of one copy, and what it was known to have said, across its processes.
#[derive(Default)]
pub struct CopyFacts {
    /// Which epoch stands at which seq, trimmed entries included.
    log: BTreeMap<u64, Epoch>,
    /// It refuses everything below.
    told: Epoch,
    commit: Seq,
    applied: Seq,
    /// Until when its promises run, by the epoch promised to, on its own clock.
    pub promised: BTreeMap<Epoch, Moment>,
}

/// What happened over the runs: a property that nothing puts to the test shows nothing.
#[derive(Default, Debug)]
pub struct Seen {
    pub takeovers: u64,
    pub commits: u64,
    pub stale_appends: u64,
    pub cuts: u64,
    pub batches_lost: u64,
    pub digests_compared: u64,
    pub trims: u64,
    pub seals: u64,
}

impl Facts {
    pub fn new(n: usize) -> Facts {
        Facts { copies: (0..n).map(|_| CopyFacts::default()).collect(), ..Facts::default() }
    }

    /// The highest epoch assigned by now.
    pub fn on_assigned(&mut self, epoch: Epoch) {
        let end = self.committed.keys().next_back().map_or(1, |last| last + 1);
        self.committed_then.entry(epoch).or_insert(end);
    }

    /// A process began on what the disk has.
    pub fn on_open(&mut self, at: usize, node: &Node) {
        let Some(copy) = node.copy() else { return };
        let facts = &mut self.copies[at];
        assert!(copy.sealed() >= facts.told, "I2: node-{at} told {} and has {}", facts.told, copy.sealed());
        let applied = copy.state().applied_end();
        facts.log.retain(|seq, _| *seq < applied.0);
        for (_, bytes) in node.disk.current.iter().filter(|(key, _)| key[0] == keys::LOG) {
            let position = Entry::decode(bytes.clone()).expect("what was written can be read").position;
            facts.log.insert(position.seq.0, position.epoch);
        }
        (facts.commit, facts.applied) = (applied, applied);
    }

    /// After a step, and before its batch is written. Returns the messages of the entries that were made in it.
    pub fn on_effects(
        &mut self,
        at: usize,
        (node, process): (&Node, ProcessId),
        out: &Effects,
        assigned: &BTreeMap<Epoch, Last>,
    ) -> Vec<(bytes::Bytes, Position)> {
        let mut made = Vec::new();
        let applied = node.copy().map_or(Seq(0), |copy| copy.state().applied_end());
        for op in out.batch.ops() {
            match op {
                Op::DeleteRange(from, to) if from[0] == keys::LOG => {
                    let seq = |key: &[u8]| keys::seq_of_log(key).map_or(u64::MAX, |seq| seq.0);
                    self.cut(at, seq(from).max(applied.0), seq(to));
                }
                Op::Put(key, value) if key[0] == keys::LOG => {
                    let entry = Entry::decode(value.clone()).expect("what is written can be read");
                    self.on_entry(at, process, &entry, assigned, &mut made);
                }
                Op::Put(key, _) if key == keys::TRIM => self.seen.trims += 1,
                _ => {}
            }
        }
        made
    }

    fn cut(&mut self, at: usize, from: u64, to: u64) {
        let facts = &mut self.copies[at];
        assert!(from >= to || from >= facts.commit.0, "I10: node-{at} cuts {from}..{to} below its commit");
        facts.log.retain(|seq, _| !(from..to).contains(seq));
    }

    fn on_entry(
        &mut self,
        at: usize,
        process: ProcessId,
        entry: &Entry,
        assigned: &BTreeMap<Epoch, Last>,
        made: &mut Vec<(bytes::Bytes, Position)>,
    ) {
        let (position, log) = (entry.position, &mut self.copies[at].log);
        let before = match position.seq.0 {
            1 => Epoch(0),
            seq => {
                *log.get(&(seq - 1)).unwrap_or_else(|| panic!("I5: node-{at} has a gap before {position}"))
            }
        };
        assert!(before <= position.epoch, "I5: node-{at} has {position} after epoch {before}");
        log.insert(position.seq.0, position.epoch);
        if let Some(fact) = self.entries.get(&position) {
            assert_eq!(fact.bytes, entry.bytes, "I4: node-{at} has another {position}");
            assert_eq!(fact.before, before, "I5: node-{at} has another log before {position}");
            return;
        }
        let by = assigned.get(&position.epoch).map(|last| last.process);
        assert_eq!(by, Some(process), "I1: node-{at} made {position}");
        if let Some(previous) = self.entries.get(&Position { epoch: before, seq: position.seq.prev() }) {
            assert!(previous.log_time <= entry.log_time, "I19: log time goes back at {position}");
        }
        if let Body::Send { messages, .. } = entry.body().expect("what is written can be read") {
            made.extend(messages.into_iter().map(|message| (message.payload, position)));
        }
        self.entries.insert(position, Fact { bytes: entry.bytes.clone(), before, log_time: entry.log_time });
    }

    /// After a step's batch was written.
    pub fn on_step(&mut self, at: usize, nodes: &[Node]) {
        let node = &nodes[at];
        let Some(copy) = node.copy() else { return };
        let (log, facts) = (copy.log(), &mut self.copies[at]);
        let (commit, applied, durable) = (copy.commit_end(), copy.state().applied_end(), log.durable_end());
        assert!(log.trim_end() <= applied && applied <= commit, "I10: node-{at}: {applied:?} {commit:?}");
        assert!(applied <= durable && durable <= log.end(), "I10: node-{at}: {applied:?} {durable:?}");
        assert!(commit >= facts.commit, "I8: node-{at}'s commit goes back to {commit:?}");
        assert!(applied >= facts.applied, "I10: node-{at}'s state goes back to {applied:?}");
        // What it counts as synced is on its disk, and the same.
        if durable > log.trim_end() {
            let last = durable.prev();
            let (synced, current) =
                (disk::entry(&node.disk.synced, last), disk::entry(&node.disk.current, last));
            assert!(synced.is_some() && synced == current, "I6: node-{at} counts {last:?} as synced");
        }
        for seq in facts.commit.0.max(1)..commit.0 {
            let epoch = *facts.log.get(&seq).unwrap_or_else(|| panic!("I10: node-{at} commits a gap, {seq}"));
            let first = *self.committed.entry(seq).or_insert(epoch);
            assert_eq!(first, epoch, "I9: node-{at} commits {epoch} at {seq}, where {first} was committed");
            self.seen.commits += 1;
        }
        let grew = commit > facts.commit;
        facts.commit = commit;
        if let Some(epoch) = copy.primary_epoch().filter(|_| grew) {
            let last = Position { epoch: facts.log[&(commit.0 - 1)], seq: commit.prev() };
            assert_eq!(last.epoch, epoch, "I8: node-{at} commits {last} before its barrier");
            let held = nodes.iter().filter(|node| node.disk.holds(last)).count();
            assert!(held > usize::from(node.k), "I7: {last} is committed and on {held} disks");
        }
        if applied > facts.applied {
            facts.applied = applied;
            rows::check(&node.disk.current, copy);
            let digest = rows::digest(&node.disk.current);
            self.seen.digests_compared += u64::from(self.digests.contains_key(&applied));
            let first = *self.digests.entry(applied).or_insert(digest);
            assert_eq!(first, digest, "I20: node-{at}'s state at {applied:?} is another");
        }
    }

    pub fn on_notes(&mut self, at: usize, now: Moment, notes: &[Note]) {
        for note in notes {
            match note {
                Note::Sealed { epoch, .. } => {
                    self.seen.seals += 1;
                    for (to, until) in self.copies[at].promised.range(..epoch) {
                        assert!(*until <= now, "I27: node-{at} seals {epoch} while it promises to {to}");
                    }
                }
                Note::BecamePrimary { epoch, .. } => {
                    self.seen.takeovers += 1;
                    // An assignment may arrive when later epochs have committed more.
                    let then = self.committed_then.get(epoch).copied().unwrap_or_default();
                    for (seq, of) in self.committed.range(..then) {
                        let has = self.copies[at].log.get(seq);
                        assert_eq!(has, Some(of), "I9: node-{at}, primary of {epoch}, lost {seq} of {of}");
                    }
                }
                Note::CutSuffix { .. } => self.seen.cuts += 1,
                Note::Halted { why } => panic!("node-{at} halted: {why}"),
                Note::LostRole { .. } => {}
            }
        }
    }

    // ---- what leaves a copy

    /// An Append below what this copy sealed came in; this is what it answered.
    pub fn on_stale_append(&mut self, at: usize, sealed: Epoch, ends: (Position, Position), out: &Effects) {
        self.seen.stale_appends += 1;
        assert_eq!(ends.0, ends.1, "I3: node-{at} sealed {sealed} and took entries from below");
        let is_refusal = |message: &PeerMessage| match message {
            PeerMessage::Reject(reject) => {
                matches!(reject.reason, RejectReason::StaleEpoch { sealed: told } if told >= sealed)
            }
            _ => false,
        };
        let refused = out.peers.iter().any(|(_, message)| is_refusal(message));
        assert!(refused, "I3: node-{at} sealed {sealed} and did not refuse what is below");
    }

    pub fn on_confirm(&mut self, at: usize, node: &Node, confirm: &Confirm) {
        let facts = &mut self.copies[at];
        assert!(
            confirm.epoch >= facts.told,
            "I3: node-{at} told {} and confirms {}",
            facts.told,
            confirm.epoch
        );
        facts.told = confirm.epoch;
        let seq = confirm.end.prev();
        match disk::entry(&node.disk.synced, seq) {
            Some(entry) => {
                assert_eq!(entry.chain, confirm.chain, "I6: node-{at} confirms {seq:?} and synced another");
                let from = disk::trim_end(&node.disk.synced);
                assert!(
                    rows::is_contiguous(&node.disk.synced, from, confirm.end),
                    "I6: node-{at} synced a gap"
                );
            }
            None => {
                let below = seq == Seq(0) || seq < disk::trim_end(&node.disk.synced);
                assert!(below, "I6: node-{at} confirms {seq:?}, which is not synced");
            }
        }
    }

    /// A Seal's answer leaves: a power cut now would leave what it tells.
    pub fn on_sealed(&mut self, at: usize, node: &Node, sealed: &Sealed) {
        let facts = &mut self.copies[at];
        assert!(sealed.epoch >= facts.told, "I3: node-{at} told {} and seals {}", facts.told, sealed.epoch);
        facts.told = sealed.epoch;
        let process = ProcessFacts { process: sealed.process, boot_no: 0, started: Moment::ZERO };
        let id = identity(at, node.n, node.k);
        let left = SpoolCopy::open(id, process, Settings::default(), Default::default(), &node.disk.synced)
            .expect("what was synced can be opened");
        assert!(left.sealed() >= sealed.epoch, "I2: node-{at} told {}, which is not synced", sealed.epoch);
        assert_eq!(left.log().last(), sealed.position, "I11: node-{at} told a position that is not synced");
    }

    pub fn is_committed(&self, position: Position) -> bool {
        self.committed.get(&position.seq.0) == Some(&position.epoch)
    }

    /// The state of a copy, for the same run again.
    pub fn fingerprint(&self) -> (usize, u64, String) {
        let last = self.digests.values().next_back().copied().unwrap_or_default();
        (self.committed.len(), last, format!("{:?}", self.seen))
    }
}
