//! Promises between a pair of nodes: how a primary knows, without etcd, that no other can have been elected.
//!
//! Every node sends every other a [`Beat`] each 100 ms. A copy that follows a primary is in the set that its
//! node keeps for the primary's node; the node that receives a beat at `r` thereby promises, for each spool
//! in the set, to honour no Seal above the epoch followed until `r + D`. The primary counts that promise from
//! the moment it *sent* the beat, so whatever the network does, its count ends first.
//!
//! A spool enters and leaves the set under a version; a beat's answer names the version and what left since
//! the one that the sender has seen, so one small message a pair renews the promises of any number of spools.
//!
//! * [`Follows`]: the promising side, one per peer.
//! * [`Counted`]: the counting side, one per peer.
//! * [`Pairs`]: what a copy's core sees of them.
//!
//! Numbers and versions mean nothing to another process: both sides name theirs, and start over at a new one.
//! I15 I27

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use types::time::Now;
use types::{Epoch, Moment, NodeName, ProcessId, SpoolId, WallMs};

/// Beats on their way whose answers may still count.
const SENT_MAX: usize = 256;
/// A round trip that took longer says too little about the time that the answer shows.
const CLOCK_READ_WITHIN: Duration = Duration::from_millis(200);
/// Departures remembered for a peer that has not seen them; one that missed more is told the whole set left.
const LEFT_MAX: usize = 8_192;

/// What a copy's core sees of the pairs. The driver implements it over one locked table; `heard` and
/// `promised` are facts, what follows from them is decided in the core.
pub trait Pairs {
    /// When an answer from this node last arrived.
    fn heard(&self, node: &NodeName) -> Option<Moment>;
    /// When the beat was sent that this node's copy last promised on, for this spool and epoch.
    fn promised(&self, node: &NodeName, spool: SpoolId, epoch: Epoch) -> Option<Moment>;
    /// The node's copy says: from this version on, the spool is in my set under this epoch.
    fn note_followed(&self, node: &NodeName, process: ProcessId, spool: SpoolId, epoch: Epoch, version: u64);
    /// Copy's side: follow the primary on this node. Returns the version from which on it is so.
    fn follow(&self, primary: &NodeName, spool: SpoolId, epoch: Epoch) -> u64;
    /// Copy's side: promise nothing more for this spool, *then* say when a beat last arrived from the node
    /// that it followed.
    fn leave(&self, spool: SpoolId) -> Option<Moment>;
    /// What this node's wall clock showed, and when its answer arrived.
    fn wall_clock(&self, node: &NodeName) -> Option<(Moment, WallMs)>;
    /// For how long no beat of this node's healthy process has arrived, as far as this process was running to hear
    /// it; `None`: none since its start.
    fn silent(&self, node: &NodeName, now: Moment) -> Option<Duration>;
    /// The node's address refuses connections since its last one was reset.
    fn refused(&self, node: &NodeName) -> bool;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    pub process: ProcessId,
    pub number: u64,
    /// The receiver's process that the sender last heard from, and the version that it has seen of it.
    pub seen: Option<(ProcessId, u64)>,
    /// Disk probe and threads are fine.
    pub healthy: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeatReply {
    pub process: ProcessId,
    /// Whom it promises to: the sender's process.
    pub to: ProcessId,
    pub number: u64,
    pub version: u64,
    /// What left the set after the version that the beat named.
    pub left: Vec<SpoolId>,
    /// More left than is remembered: forget every spool of this pair.
    pub left_all: bool,
    /// The answering node's wall clock.
    pub wall: WallMs,
}

/// The promising side of a pair: which spools of this node follow a primary on that peer.
#[derive(Debug)]
pub struct Follows {
    process: ProcessId,
    version: u64,
    spools: BTreeMap<SpoolId, Epoch>,
    left: VecDeque<(u64, SpoolId)>,
    /// Departures up to this version are no longer in `left`.
    left_from: u64,
    received: Option<Moment>,
    received_healthy: Option<Moment>,
}

impl Follows {
    pub fn new(process: ProcessId) -> Self {
        Follows {
            process,
            version: 1,
            spools: BTreeMap::new(),
            left: VecDeque::new(),
            left_from: 0,
            received: None,
            received_healthy: None,
        }
    }

    /// `now` is read before the call: it is stored first, then the set is read. I27
    pub fn on_beat(&mut self, now: Now, beat: &Beat) -> BeatReply {
        let (now, wall) = (now.mono, now.wall);
        self.received = self.received.max(Some(now));
        if beat.healthy {
            self.received_healthy = self.received_healthy.max(Some(now));
        }
        let seen = match beat.seen {
            Some((process, version)) if process == self.process => version,
            _ => 0,
        };
        let left_all = seen < self.left_from;
        let left = self.left.iter().filter(|(at, _)| *at > seen).map(|(_, spool)| *spool).collect();
        BeatReply {
            process: self.process,
            to: beat.process,
            number: beat.number,
            version: self.version,
            left,
            left_all,
            wall,
        }
    }

    pub fn follow(&mut self, spool: SpoolId, epoch: Epoch) -> u64 {
        if self.spools.get(&spool) != Some(&epoch) {
            self.version += 1;
            self.spools.insert(spool, epoch);
            // An older departure must not be told after this arrival.
            self.left.retain(|(_, left)| *left != spool);
        }
        self.version
    }

    /// Out of the set first; the moment that bounds the promise is read after.
    pub fn leave(&mut self, spool: SpoolId) -> Option<Moment> {
        if self.spools.remove(&spool).is_some() {
            self.version += 1;
            self.left.push_back((self.version, spool));
            if self.left.len() > LEFT_MAX
                && let Some((at, _)) = self.left.pop_front()
            {
                self.left_from = at;
            }
        }
        self.received
    }

    pub fn follows(&self, spool: SpoolId) -> Option<Epoch> {
        self.spools.get(&spool).copied()
    }

    pub fn received_healthy(&self) -> Option<Moment> {
        self.received_healthy
    }
}

/// The counting side of a pair: which spools that peer promises for, to primaries on this node.
#[derive(Debug)]
pub struct Counted {
    process: ProcessId,
    peer: Option<ProcessId>,
    next_number: u64,
    sent: VecDeque<(u64, Moment)>,
    /// Of the answer with the highest number so far.
    answered: Option<Answered>,
    spools: BTreeMap<SpoolId, (Epoch, u64)>,
    heard: Option<Moment>,
    wall_clock: Option<(Moment, WallMs)>,
}

#[derive(Debug, Clone, Copy)]
struct Answered {
    number: u64,
    sent: Moment,
    version: u64,
}

impl Counted {
    pub fn new(process: ProcessId) -> Self {
        Counted {
            process,
            peer: None,
            next_number: 1,
            sent: VecDeque::new(),
            answered: None,
            spools: BTreeMap::new(),
            heard: None,
            wall_clock: None,
        }
    }

    /// `now` is read before the beat leaves.
    pub fn beat(&mut self, now: Moment, healthy: bool) -> Beat {
        let number = self.next_number;
        self.next_number += 1;
        self.sent.push_back((number, now));
        if self.sent.len() > SENT_MAX {
            self.sent.pop_front();
        }
        let seen = self.peer.map(|peer| (peer, self.answered.map_or(0, |a| a.version)));
        Beat { process: self.process, number, seen, healthy }
    }

    pub fn on_reply(&mut self, now: Moment, reply: &BeatReply) {
        if reply.to != self.process {
            return;
        }
        self.meet(reply.process);
        self.heard = self.heard.max(Some(now));
        if self.answered.is_some_and(|answered| answered.number >= reply.number) {
            return;
        }
        let Some(sent) = self.sent.iter().find(|(number, _)| *number == reply.number).map(|(_, at)| *at)
        else {
            return;
        };
        self.sent.retain(|(number, _)| *number > reply.number);
        if now.since(sent) <= CLOCK_READ_WITHIN {
            self.wall_clock = Some((now, reply.wall));
        }
        if reply.left_all {
            self.spools.clear();
        }
        for spool in &reply.left {
            // A spool that was noted at a later version came back; the departure is older.
            if self.spools.get(spool).is_some_and(|(_, from)| *from <= reply.version) {
                self.spools.remove(spool);
            }
        }
        self.answered = Some(Answered { number: reply.number, sent, version: reply.version });
    }

    pub fn wall_clock(&self) -> Option<(Moment, WallMs)> {
        self.wall_clock
    }

    pub fn note_followed(&mut self, process: ProcessId, spool: SpoolId, epoch: Epoch, version: u64) {
        self.meet(process);
        self.spools.insert(spool, (epoch, version));
    }

    fn meet(&mut self, peer: ProcessId) {
        if self.peer != Some(peer) {
            self.peer = Some(peer);
            self.answered = None;
            self.spools.clear();
        }
    }

    /// When the beat was sent on which the peer last promised for this spool and epoch.
    pub fn promised(&self, spool: SpoolId, epoch: Epoch) -> Option<Moment> {
        let (of, from) = self.spools.get(&spool)?;
        let answered = self.answered?;
        (*of == epoch && answered.version >= *from).then_some(answered.sent)
    }

    pub fn heard(&self) -> Option<Moment> {
        self.heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Now {
        Now { mono: Moment(us), wall: WallMs(0) }
    }

    const P: ProcessId = ProcessId::from_u128(1);
    const C: ProcessId = ProcessId::from_u128(2);
    const SPOOL: SpoolId = SpoolId::from_u128(9);
    const E: Epoch = Epoch(4);

    fn pair() -> (Counted, Follows) {
        (Counted::new(P), Follows::new(C))
    }

    #[test]
    fn a_promise_counts_from_the_sending_and_only_once_the_spool_is_in_the_set() {
        let (mut primary, mut copy) = pair();
        let early = primary.beat(Moment(100), true);
        let early_reply = copy.on_beat(at(105), &early);
        let version = copy.follow(SPOOL, E);
        primary.note_followed(C, SPOOL, E, version);
        primary.on_reply(Moment(110), &early_reply);
        assert_eq!(primary.promised(SPOOL, E), None, "that answer is from before the spool was in the set");

        let beat = primary.beat(Moment(200), true);
        let reply = copy.on_beat(at(205), &beat);
        primary.on_reply(Moment(290), &reply);
        assert_eq!(primary.promised(SPOOL, E), Some(Moment(200)));
        assert_eq!(primary.promised(SPOOL, Epoch(5)), None);
        assert_eq!(copy.leave(SPOOL), Some(Moment(205)));
    }

    #[test]
    fn what_left_the_set_is_told_and_no_longer_counted() {
        let (mut primary, mut copy) = pair();
        let version = copy.follow(SPOOL, E);
        primary.note_followed(C, SPOOL, E, version);
        let reply = copy.on_beat(at(1), &primary.beat(Moment(0), true));
        primary.on_reply(Moment(2), &reply);
        copy.leave(SPOOL);
        let reply = copy.on_beat(at(11), &primary.beat(Moment(10), true));
        primary.on_reply(Moment(12), &reply);
        assert_eq!(primary.promised(SPOOL, E), None);
    }

    #[test]
    fn a_restarted_copy_starts_over() {
        let (mut primary, mut copy) = pair();
        let version = copy.follow(SPOOL, E);
        primary.note_followed(C, SPOOL, E, version);
        let reply = copy.on_beat(at(1), &primary.beat(Moment(0), true));
        primary.on_reply(Moment(2), &reply);
        assert!(primary.promised(SPOOL, E).is_some());
        let mut restarted = Follows::new(ProcessId::from_u128(3));
        let reply = restarted.on_beat(at(11), &primary.beat(Moment(10), true));
        primary.on_reply(Moment(12), &reply);
        assert_eq!(primary.promised(SPOOL, E), None, "the new process promised nothing for it");
    }

    #[test]
    fn a_late_answer_does_not_move_the_count_back() {
        let (mut primary, mut copy) = pair();
        let version = copy.follow(SPOOL, E);
        primary.note_followed(C, SPOOL, E, version);
        let first = copy.on_beat(at(1), &primary.beat(Moment(0), true));
        let second = copy.on_beat(at(11), &primary.beat(Moment(10), true));
        primary.on_reply(Moment(20), &second);
        primary.on_reply(Moment(21), &first);
        assert_eq!(primary.promised(SPOOL, E), Some(Moment(10)));
    }
}
