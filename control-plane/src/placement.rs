//! Which nodes get a new spool's copies. Pure: what is known of the nodes comes in, names go out.
//!
//! One node is chosen at a time, the cheapest after those chosen before. Whatever else should count (zones
//! that have a copy already, free space) becomes a part of [`Cost`].

use types::NodeName;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub name: NodeName,
    /// Copies that it has, primaries included.
    pub copies: usize,
    pub primaries: usize,
    pub alive: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{needed} nodes are needed, {alive} are there")]
pub struct NotEnoughNodes {
    pub needed: usize,
    pub alive: usize,
}

/// Compared field by field, lower is better. The name comes last, so that there is one answer.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Cost<'a> {
    copies: usize,
    primaries: usize,
    name: &'a NodeName,
}

fn cost(node: &Node) -> Cost<'_> {
    Cost { copies: node.copies, primaries: node.primaries, name: &node.name }
}

/// `n` distinct nodes that are alive, the least loaded first. The same nodes in another order give the same
/// answer.
pub fn choose(nodes: &[Node], n: usize) -> Result<Vec<NodeName>, NotEnoughNodes> {
    let mut chosen: Vec<NodeName> = Vec::with_capacity(n.min(nodes.len()));
    while chosen.len() < n {
        let candidates = nodes.iter().filter(|node| node.alive && !chosen.contains(&node.name));
        match candidates.min_by_key(|node| cost(node)) {
            Some(node) => chosen.push(node.name.clone()),
            None => return Err(NotEnoughNodes { needed: n, alive: chosen.len() }),
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn node() -> impl Strategy<Value = Node> {
        (0..12_u8, 0..5_usize, 0..5_usize, any::<bool>()).prop_map(|(name, copies, primaries, alive)| Node {
            name: NodeName(format!("node-{name}")),
            copies: copies + primaries,
            primaries,
            alive,
        })
    }

    /// Names are unique, as in etcd.
    fn nodes() -> impl Strategy<Value = Vec<Node>> {
        prop::collection::vec(node(), 0..12).prop_map(|mut nodes| {
            let mut seen = BTreeSet::new();
            nodes.retain(|node| seen.insert(node.name.clone()));
            nodes
        })
    }

    proptest! {
        #[test]
        fn as_many_distinct_nodes_as_asked_for_are_chosen_all_of_them_alive(nodes in nodes(), n in 0..7_usize) {
            let alive: BTreeSet<_> = nodes.iter().filter(|n| n.alive).map(|n| n.name.clone()).collect();
            match choose(&nodes, n) {
                Ok(chosen) => {
                    let distinct: BTreeSet<_> = chosen.iter().cloned().collect();
                    prop_assert_eq!(chosen.len(), n);
                    prop_assert_eq!(distinct.len(), n);
                    prop_assert!(distinct.is_subset(&alive));
                }
                Err(error) => {
                    prop_assert_eq!(error, NotEnoughNodes { needed: n, alive: alive.len() });
                    prop_assert!(alive.len() < n);
                }
            }
        }

        #[test]
        fn nobody_is_passed_over_who_has_less(nodes in nodes(), n in 0..7_usize) {
            let Ok(chosen) = choose(&nodes, n) else { return Ok(()) };
            let (taken, left): (Vec<_>, Vec<_>) =
                nodes.iter().filter(|node| node.alive).partition(|node| chosen.contains(&node.name));
            let load = |node: &&&Node| (node.copies, node.primaries);
            let (most, least) = (taken.iter().map(|n| load(&n)).max(), left.iter().map(|n| load(&n)).min());
            if let (Some(most), Some(least)) = (most, least) {
                prop_assert!(most <= least);
            }
        }

        #[test]
        fn the_order_in_which_nodes_are_told_does_not_matter(nodes in nodes(), n in 0..7_usize, by in 0..12_usize) {
            let mut other = nodes.clone();
            other.rotate_left(by.min(nodes.len()));
            prop_assert_eq!(choose(&nodes, n), choose(&other, n));
        }

        #[test]
        fn placing_many_spools_keeps_the_loads_within_one(count in 1..6_usize, n in 1..5_usize, spools in 0..60) {
            prop_assume!(n <= count);
            let mut nodes: Vec<Node> = (0..count)
                .map(|i| Node { name: NodeName(format!("node-{i}")), copies: 0, primaries: 0, alive: true })
                .collect();
            for _ in 0..spools {
                let chosen = choose(&nodes, n).expect("enough nodes");
                for node in nodes.iter_mut().filter(|node| chosen.contains(&node.name)) {
                    node.copies += 1;
                }
            }
            let loads = || nodes.iter().map(|node| node.copies);
            prop_assert!(loads().max() <= loads().min().map(|least| least + 1));
        }
    }
}
