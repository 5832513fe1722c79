//! Which nodes a placement uses. Placements that are under way are not in any record yet, so they are counted
//! here; a placement that is tried again stays with the nodes that made its copies, so that none is left over.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;
use types::{CopyId, NodeName, SpoolId};

use crate::placement::{self, Node, NotEnoughNodes};
use spool::record::Record;

/// A node that failed to make a copy is passed over for so long, if there are others: its alive key may stand
/// still, or its disk be full.
const PASSED_OVER: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Choices {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    under_way: HashMap<SpoolId, UnderWay>,
    failed: HashMap<NodeName, Instant>,
}

#[derive(Default)]
struct UnderWay {
    chosen: Vec<NodeName>,
    made: BTreeMap<NodeName, CopyId>,
}

impl Choices {
    /// `alive` and `records` as just read.
    pub fn choose(
        &self,
        spool: SpoolId,
        n: usize,
        alive: &[NodeName],
        records: &[Record],
    ) -> Result<Vec<NodeName>, NotEnoughNodes> {
        let mut state = self.state.lock();
        state.failed.retain(|_, at| at.elapsed() < PASSED_OVER);
        let mut nodes = loads(alive, records, state.under_way.iter().filter(|(other, _)| **other != spool));
        let made = state.under_way.get(&spool).map(|mine| &mine.made);
        let kept = |name: &NodeName| alive.contains(name) && made.is_some_and(|made| made.contains_key(name));
        let mut chosen: Vec<NodeName> = alive.iter().filter(|name| kept(name)).take(n).cloned().collect();
        nodes.retain(|node| !chosen.contains(&node.name));
        let missing = n - chosen.len();
        let all = nodes.clone();
        nodes.retain(|node| !state.failed.contains_key(&node.name));
        let more = placement::choose(&nodes, missing).or_else(|_| placement::choose(&all, missing));
        let counted = |error: NotEnoughNodes| NotEnoughNodes { needed: n, alive: error.alive + chosen.len() };
        let more = more.map_err(counted)?;
        chosen.extend(more);
        state.under_way.entry(spool).or_default().chosen = chosen.clone();
        Ok(chosen)
    }

    pub fn made(&self, spool: SpoolId, node: &NodeName, copy: CopyId) {
        let mut state = self.state.lock();
        state.failed.remove(node);
        state.under_way.entry(spool).or_default().made.insert(node.clone(), copy);
    }

    pub fn failed(&self, node: &NodeName) {
        self.state.lock().failed.insert(node.clone(), Instant::now());
    }

    /// The record has it now.
    pub fn done(&self, spool: SpoolId) {
        self.state.lock().under_way.remove(&spool);
    }

    /// Forgets spools that nobody wants any more.
    pub fn retain(&self, wanted: impl Fn(SpoolId) -> bool) {
        self.state.lock().under_way.retain(|spool, _| wanted(*spool));
    }
}

/// How much each node has, what is under way included.
fn loads<'a>(
    alive: &[NodeName],
    records: &[Record],
    under_way: impl Iterator<Item = (&'a SpoolId, &'a UnderWay)>,
) -> Vec<Node> {
    let mut copies: HashMap<&NodeName, usize> = HashMap::new();
    let mut primaries: HashMap<&NodeName, usize> = HashMap::new();
    for record in records {
        for member in &record.members {
            *copies.entry(&member.node).or_default() += 1;
        }
        if let Some(last) = &record.last {
            *primaries.entry(&last.member.node).or_default() += 1;
        }
    }
    for (_, placement) in under_way {
        for node in &placement.chosen {
            *copies.entry(node).or_default() += 1;
        }
    }
    let node = |name: &NodeName| Node {
        name: name.clone(),
        copies: copies.get(name).copied().unwrap_or_default(),
        primaries: primaries.get(name).copied().unwrap_or_default(),
        alive: true,
    };
    alive.iter().map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SpoolId = SpoolId::from_u128(1);
    const B: SpoolId = SpoolId::from_u128(2);

    fn names(names: &[&str]) -> Vec<NodeName> {
        names.iter().map(|name| NodeName::from(*name)).collect()
    }

    #[test]
    fn placements_under_way_count_as_load() {
        let (choices, alive) = (Choices::default(), names(&["node-1", "node-2"]));
        assert_eq!(choices.choose(A, 1, &alive, &[]), Ok(names(&["node-1"])));
        assert_eq!(choices.choose(B, 1, &alive, &[]), Ok(names(&["node-2"])));
        assert_eq!(choices.choose(A, 1, &alive, &[]), Ok(names(&["node-1"])), "its own does not count");
    }

    #[test]
    fn another_try_keeps_the_copies_that_were_made_and_passes_over_who_failed() {
        let (choices, alive) = (Choices::default(), names(&["node-1", "node-2", "node-3"]));
        assert_eq!(choices.choose(A, 2, &alive, &[]), Ok(names(&["node-1", "node-2"])));
        choices.made(A, &"node-2".into(), CopyId::from_u128(1));
        choices.failed(&"node-1".into());
        assert_eq!(choices.choose(A, 2, &alive, &[]), Ok(names(&["node-2", "node-3"])));
        // Without another, the one that failed is asked again.
        assert_eq!(choices.choose(A, 3, &alive, &[]).map(|nodes| nodes.len()), Ok(3));
        let one = names(&["node-2"]);
        assert_eq!(choices.choose(A, 2, &one, &[]), Err(NotEnoughNodes { needed: 2, alive: 1 }));
    }
}
