//! A node's promise pairs, as its copy sees them: the crate's own [`Counted`] and [`Follows`] per other node.

use spool::promise::{Beat, BeatReply, Counted, Follows, Pairs};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use types::time::Now;
use types::{Epoch, Moment, NodeName, ProcessId, SpoolId, WallMs};

pub struct PairTable(RefCell<Inner>);

struct Inner {
    peers: BTreeMap<NodeName, Pair>,
    /// Whom this node's copy follows.
    followed: Option<NodeName>,
}

struct Pair {
    counted: Counted,
    follows: Follows,
    refused: bool,
}

impl PairTable {
    pub fn new<'a>(process: ProcessId, others: impl Iterator<Item = &'a NodeName>) -> PairTable {
        let pair = || Pair { counted: Counted::new(process), follows: Follows::new(process), refused: false };
        let peers = others.map(|node| (node.clone(), pair())).collect();
        PairTable(RefCell::new(Inner { peers, followed: None }))
    }

    fn with<T>(&self, node: &NodeName, f: impl FnOnce(&mut Pair) -> T) -> Option<T> {
        self.0.borrow_mut().peers.get_mut(node).map(f)
    }

    pub fn beat(&self, to: &NodeName, now: Moment, healthy: bool) -> Option<Beat> {
        self.with(to, |pair| pair.counted.beat(now, healthy))
    }

    /// The answer, and the epoch that was promised to if the copy follows that node.
    pub fn on_beat(
        &self,
        from: &NodeName,
        now: Now,
        beat: &Beat,
        spool: SpoolId,
    ) -> Option<(BeatReply, Option<Epoch>)> {
        self.with(from, |pair| (pair.follows.on_beat(now, beat), pair.follows.follows(spool)))
    }

    pub fn on_reply(&self, from: &NodeName, now: Moment, reply: &BeatReply) {
        self.with(from, |pair| pair.counted.on_reply(now, reply));
    }

    pub fn set_refused(&self, node: &NodeName, refused: bool) {
        self.with(node, |pair| pair.refused = refused);
    }

    pub fn followed(&self) -> Option<NodeName> {
        self.0.borrow().followed.clone()
    }
}

impl Pairs for PairTable {
    fn heard(&self, node: &NodeName) -> Option<Moment> {
        self.with(node, |pair| pair.counted.heard())?
    }
    fn promised(&self, node: &NodeName, spool: SpoolId, epoch: Epoch) -> Option<Moment> {
        self.with(node, |pair| pair.counted.promised(spool, epoch))?
    }
    fn note_followed(&self, node: &NodeName, process: ProcessId, spool: SpoolId, epoch: Epoch, version: u64) {
        self.with(node, |pair| pair.counted.note_followed(process, spool, epoch, version));
    }
    fn follow(&self, primary: &NodeName, spool: SpoolId, epoch: Epoch) -> u64 {
        let mut inner = self.0.borrow_mut();
        let same = inner.followed.as_ref().is_none_or(|followed| followed == primary);
        assert!(same, "I27: follows {primary} without having left {:?}", inner.followed);
        inner.followed = Some(primary.clone());
        inner.peers.get_mut(primary).map_or(0, |pair| pair.follows.follow(spool, epoch))
    }
    fn leave(&self, spool: SpoolId) -> Option<Moment> {
        let mut inner = self.0.borrow_mut();
        let followed = inner.followed.take()?;
        inner.peers.get_mut(&followed)?.follows.leave(spool)
    }
    fn wall_clock(&self, node: &NodeName) -> Option<(Moment, WallMs)> {
        self.with(node, |pair| pair.counted.wall_clock())?
    }
    fn silent(&self, node: &NodeName, now: Moment) -> Option<Duration> {
        self.with(node, |pair| pair.follows.received_healthy())?.map(|at| now.since(at))
    }
    fn refused(&self, node: &NodeName) -> bool {
        self.with(node, |pair| pair.refused).unwrap_or(false)
    }
}
