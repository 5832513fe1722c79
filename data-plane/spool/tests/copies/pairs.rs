//! A node's promise pairs, one per other node.

use spool::promise::{Beat, BeatReply, Counted, Follows, Pairs};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use types::time::Now;
use types::{Epoch, Moment, NodeName, ProcessId, SpoolId, WallMs};

pub struct PairTable(RefCell<Inner>);

struct Inner {
    peers: BTreeMap<NodeName, (Counted, Follows)>,
    /// Whom this node's copy follows.
    followed: Option<NodeName>,
}

impl PairTable {
    pub fn new(process: ProcessId, others: impl Iterator<Item = NodeName>) -> PairTable {
        let peers = others.map(|node| (node, (Counted::new(process), Follows::new(process)))).collect();
        PairTable(RefCell::new(Inner { peers, followed: None }))
    }

    fn with<T>(&self, node: &NodeName, f: impl FnOnce(&mut (Counted, Follows)) -> T) -> T {
        f(self.0.borrow_mut().peers.get_mut(node).expect("a node of this spool"))
    }

    pub fn beat(&self, to: &NodeName, now: Moment) -> Beat {
        self.with(to, |(counted, _)| counted.beat(now, true))
    }

    /// The answer, and the epoch that is promised to with it.
    pub fn on_beat(
        &self,
        from: &NodeName,
        now: Now,
        beat: &Beat,
        spool: SpoolId,
    ) -> (BeatReply, Option<Epoch>) {
        self.with(from, |(_, follows)| (follows.on_beat(now, beat), follows.follows(spool)))
    }

    pub fn on_reply(&self, from: &NodeName, now: Moment, reply: &BeatReply) {
        self.with(from, |(counted, _)| counted.on_reply(now, reply));
    }
}

impl Pairs for PairTable {
    fn heard(&self, node: &NodeName) -> Option<Moment> {
        self.with(node, |(counted, _)| counted.heard())
    }
    fn promised(&self, node: &NodeName, spool: SpoolId, epoch: Epoch) -> Option<Moment> {
        self.with(node, |(counted, _)| counted.promised(spool, epoch))
    }
    fn note_followed(&self, node: &NodeName, process: ProcessId, spool: SpoolId, epoch: Epoch, version: u64) {
        self.with(node, |(counted, _)| counted.note_followed(process, spool, epoch, version));
    }
    fn follow(&self, primary: &NodeName, spool: SpoolId, epoch: Epoch) -> u64 {
        self.0.borrow_mut().followed = Some(primary.clone());
        self.with(primary, |(_, follows)| follows.follow(spool, epoch))
    }
    fn leave(&self, spool: SpoolId) -> Option<Moment> {
        let followed = self.0.borrow_mut().followed.take()?;
        self.with(&followed, |(_, follows)| follows.leave(spool))
    }
    fn wall_clock(&self, node: &NodeName) -> Option<(Moment, WallMs)> {
        let mut inner = self.0.borrow_mut();
        inner.peers.get_mut(node).and_then(|(counted, _)| counted.wall_clock())
    }
    fn silent(&self, node: &NodeName, now: Moment) -> Option<Duration> {
        self.with(node, |(_, follows)| follows.received_healthy()).map(|at| now.since(at))
    }
    fn refused(&self, _: &NodeName) -> bool {
        false
    }
}
