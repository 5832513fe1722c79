//! Which nodes' alive keys advance. A key that stands still is as bad as one that is gone: the etcd lease that
//! it is bound to says only that someone renews the lease. Pure; advisory, like all that begins a pre-check.

use std::collections::BTreeMap;
use std::time::Duration;
use types::{Moment, NodeName, ProcessId};

use crate::claims::Alive;

/// While a node stands still, its primaries are looked at again each so often.
const AGAIN_AFTER: Duration = Duration::from_secs(15);

#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// It advances again, or runs a new process.
    Back(NodeName),
    StandsStill(NodeName),
    /// It still does.
    StandsStillOn(NodeName),
}

#[derive(Debug)]
pub struct Liveness {
    still_after: Duration,
    nodes: BTreeMap<NodeName, Seen>,
}

#[derive(Debug)]
struct Seen {
    process: Option<ProcessId>,
    hb_no: u64,
    changed: Moment,
    /// The key was there and vanished.
    gone: bool,
    /// When it was last said to stand still.
    still: Option<Moment>,
}

impl Liveness {
    pub fn new(still_after: Duration) -> Liveness {
        Liveness { still_after, nodes: BTreeMap::new() }
    }

    /// A record names this node; if it has no alive key, it will be found standing still.
    pub fn expect(&mut self, now: Moment, node: &NodeName) {
        if !self.nodes.contains_key(node) {
            self.nodes.insert(
                node.clone(),
                Seen { process: None, hb_no: 0, changed: now, gone: false, still: None },
            );
        }
    }

    pub fn alive(&mut self, now: Moment, node: &NodeName, alive: &Alive) -> Option<News> {
        self.expect(now, node);
        let seen = self.nodes.get_mut(node)?;
        let new_process = seen.process.replace(alive.process_id) != Some(alive.process_id);
        if !new_process && seen.hb_no == alive.hb_no {
            return None;
        }
        (seen.hb_no, seen.changed, seen.gone) = (alive.hb_no, now, false);
        (seen.still.take().is_some() || new_process).then(|| News::Back(node.clone()))
    }

    /// The key vanished.
    pub fn gone(&mut self, now: Moment, node: &NodeName) -> Option<News> {
        let seen = self.nodes.get_mut(node)?;
        (seen.process, seen.gone) = (None, true);
        self.look(now, node)
    }

    pub fn tick(&mut self, now: Moment) -> Vec<News> {
        let nodes: Vec<NodeName> = self.nodes.keys().cloned().collect();
        nodes.iter().filter_map(|node| self.look(now, node)).collect()
    }

    fn look(&mut self, now: Moment, node: &NodeName) -> Option<News> {
        let seen = self.nodes.get_mut(node)?;
        if !seen.gone && now.since(seen.changed) < self.still_after {
            return None;
        }
        match seen.still {
            Some(said) if now.since(said) < AGAIN_AFTER => None,
            Some(_) => {
                seen.still = Some(now);
                Some(News::StandsStillOn(node.clone()))
            }
            None => {
                seen.still = Some(now);
                Some(News::StandsStill(node.clone()))
            }
        }
    }

    pub fn advances(&self, node: &NodeName) -> bool {
        self.nodes.get(node).is_some_and(|seen| seen.still.is_none())
    }

    /// The process that the node's alive key names now.
    pub fn process(&self, node: &NodeName) -> Option<ProcessId> {
        self.nodes.get(node)?.process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn alive(process: u128, hb_no: u64) -> Alive {
        let at = String::new;
        let process_id = ProcessId::from_u128(process);
        Alive { process_id, hb_no, internal: at(), forward: at(), http: at(), boot_no: 0 }
    }

    #[test]
    fn a_key_that_stands_still_is_told_once_and_then_now_and_again() {
        let mut nodes = Liveness::new(Duration::from_secs(4));
        let node = NodeName::from("node-1");
        assert_eq!(nodes.alive(Moment(0), &node, &alive(1, 1)), Some(News::Back(node.clone())));
        assert_eq!(nodes.alive(Moment(3 * SECOND), &node, &alive(1, 2)), None);
        // Written again, but no further: somebody's lease is renewed, and that is all.
        assert_eq!(nodes.alive(Moment(5 * SECOND), &node, &alive(1, 2)), None);
        assert_eq!(nodes.tick(Moment(6 * SECOND)), vec![]);
        assert!(nodes.advances(&node));
        assert_eq!(nodes.tick(Moment(7 * SECOND)), vec![News::StandsStill(node.clone())]);
        assert_eq!(nodes.tick(Moment(8 * SECOND)), vec![]);
        assert_eq!(nodes.tick(Moment(22 * SECOND)), vec![News::StandsStillOn(node.clone())]);
        assert!(!nodes.advances(&node));
        assert_eq!(nodes.alive(Moment(23 * SECOND), &node, &alive(1, 3)), Some(News::Back(node.clone())));
        assert_eq!(nodes.tick(Moment(24 * SECOND)), vec![]);
    }

    #[test]
    fn a_vanished_key_a_missing_one_and_a_new_process_are_news() {
        let mut nodes = Liveness::new(Duration::from_secs(4));
        let (node, other) = (NodeName::from("node-1"), NodeName::from("node-2"));
        nodes.alive(Moment(0), &node, &alive(1, 9));
        assert_eq!(nodes.gone(Moment(SECOND), &node), Some(News::StandsStill(node.clone())));
        assert_eq!(nodes.process(&node), None);
        assert_eq!(nodes.alive(Moment(2 * SECOND), &node, &alive(2, 1)), Some(News::Back(node.clone())));
        assert_eq!(nodes.alive(Moment(3 * SECOND), &node, &alive(3, 1)), Some(News::Back(node.clone())));
        nodes.expect(Moment(3 * SECOND), &other);
        assert!(!nodes.tick(Moment(6 * SECOND)).contains(&News::StandsStill(other.clone())));
        assert!(nodes.tick(Moment(7 * SECOND)).contains(&News::StandsStill(other)));
    }
}
