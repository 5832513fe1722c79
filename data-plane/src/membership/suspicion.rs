//! What makes a copy doubt that its primary serves. Advisory: it starts a pre-check at the control plane.

use super::Routing;
use crate::clock;
use crate::directory::Directory;
use crate::spools::Spools;
use spool::copy::ProcessFacts;
use spool::promise::Pairs;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use types::{Moment, NodeName};

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same suspicion again.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// What is looked at.
pub struct Suspicions<P> {
    pub facts: ProcessFacts,
    /// A primary may be silent for so long.
    pub suspect_after: Duration,
    pub spools: Spools,
    pub routing: Routing,
    pub pairs: Arc<P>,
}

impl<P: Pairs + Send + Sync> Suspicions<P> {
    /// Nodes whose spools look unserved from here, and whether they refuse connections.
    pub fn look(&self, now: Moment) -> BTreeMap<NodeName, bool> {
        let mut found = BTreeMap::new();
        for (_, glance) in self.spools.glances() {
            let Some(primary) = glance.follows else { continue };
            let silent = self.pairs.silent(&primary.node, now).unwrap_or(now.since(self.facts.started));
            let refused = self.pairs.refused(&primary.node);
            if refused || silent >= self.suspect_after {
                found.insert(primary.node, refused);
            }
        }
        // A record says that this process serves, and its copy does not.
        for (spool, epoch) in self.routing.claimed_by(self.facts.process) {
            if self.spools.glance(spool).is_some_and(|glance| glance.leads != Some(epoch)) {
                found.insert(self.spools.node().clone(), false);
            }
        }
        found
    }

    pub async fn report(self, directory: Directory, stop: CancellationToken) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told: BTreeMap<NodeName, (Moment, bool)> = BTreeMap::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let now = clock::moment();
            let found = self.look(now);
            told.retain(|node, _| found.contains_key(node));
            for (node, refused) in found {
                let said = told.get(&node);
                let news = said.is_none_or(|(at, was)| now.since(*at) >= REPORT_EVERY || refused && !was);
                if news {
                    told.insert(node.clone(), (now, refused));
                    tokio::spawn(tell(directory.clone(), self.spools.node().clone(), node, refused));
                }
            }
        }
    }
}

async fn tell(directory: Directory, reporter: NodeName, suspect: NodeName, refused: bool) {
    match directory.suspect(&reporter, &suspect, refused).await {
        Ok(()) => tracing::info!(%suspect, refused, "this node's primaries are doubted"),
        // It is told again as long as it is so; controllers watch the alive keys as well.
        Err(error) => tracing::debug!(%suspect, %error, "a doubt cannot be told"),
    }
}
