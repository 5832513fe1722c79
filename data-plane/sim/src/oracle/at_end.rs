//! What must be true once the storm is over, the queues are drained and the copies have caught up.

use super::Oracle;
use crate::oracle::logs::digest;
use crate::world::World;

impl Oracle {
    /// Every confirmed message was there until it was acked; none is left.
    fn check_messages(&self) {
        for message in self.messages.iter() {
            let gone = message.settled.is_some() || self.messages.may_vanish(message.number);
            assert!(
                message.acked.is_none() || gone,
                "H1: message {} was acked and is lost: {message:?}",
                message.number
            );
            let left = message.deliveries > 0 && !gone;
            assert!(!left, "H1: message {} was delivered and is lost: {message:?}", message.number);
        }
    }
}

impl World {
    pub fn check_end(&mut self) {
        self.oracle.check_messages();
        let alive: Vec<usize> = (0..self.nodes.len()).filter(|at| self.nodes[*at].has_copy()).collect();
        let ends: Vec<_> = alive
            .iter()
            .filter_map(|at| self.nodes[*at].copy())
            .map(|copy| (copy.log().last(), copy.state().applied_end()))
            .collect();
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "I26: the copies do not catch up: {ends:?}");
        let digests: Vec<u64> = alive.iter().map(|at| digest(&self.nodes[*at])).collect();
        assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "H23: the copies' states differ");
        let serving =
            self.nodes.iter().filter_map(|node| node.copy()).find(|copy| copy.primary_epoch().is_some());
        let Some(primary) = serving else { panic!("I26: nobody serves") };
        for (_, queue) in primary.state().queues() {
            let counts = &queue.counts;
            let empty = counts.ready == 0 && counts.delayed == 0 && counts.bytes == 0;
            assert!(empty, "H4: {} is drained and counts {counts:?}", queue.name);
        }
        self.oracle.seen.digests = self.oracle.logs.digests_compared;
        self.oracle.seen.elections = self.etcd.elections;
        self.oracle.seen.lost = self.net.lost;
        self.oracle.seen.doubled = self.net.doubled;
    }
}
