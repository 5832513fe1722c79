//! What makes a copy doubt that its primary serves. Advisory: it starts a pre-check at the control plane.

use super::Routing;
use crate::spools::Spools;
use spool::promise::Pairs;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Moment, NodeName, ProcessId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspicion {
    pub node: NodeName,
    /// Its connection was reset and a new one refused.
    pub refused: bool,
}

/// Nodes whose spools look unserved from here.
pub fn suspicions(
    now: Moment,
    started: Moment,
    process: ProcessId,
    suspect: Duration,
    spools: &Spools,
    routing: &Routing,
    pairs: &impl Pairs,
) -> Vec<Suspicion> {
    let mut found = BTreeMap::new();
    for (_, glance) in spools.glances() {
        let Some(primary) = glance.follows else { continue };
        let heard = pairs.beat_heard(&primary.node).unwrap_or(started);
        let refused = pairs.refused(&primary.node);
        if refused || now.since(heard) >= suspect {
            found.insert(primary.node, refused);
        }
    }
    // A record says that this process serves, and its copy does not.
    for (spool, epoch) in routing.claimed_by(process) {
        if spools.glance(spool).is_some_and(|glance| glance.leads != Some(epoch)) {
            found.insert(spools.node().clone(), false);
        }
    }
    found.into_iter().map(|(node, refused)| Suspicion { node, refused }).collect()
}
