//! The orderly end of a node: every write that was admitted is confirmed if it can be, every role is handed over.

use super::engine::Input;
use super::{Spools, clock};
use futures::future::join_all;
use spool::event::{Call, CallReply};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;
use types::{Epoch, SpoolId};

/// A primary that steps down drains for a second at most; what it wrote needs a sync more.
const STEP_DOWN_WAIT: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Spools {
    /// Until another node's copies have taken over every spool that has any, or `wait` is over.
    pub async fn handed_over(&self, wait: Duration) {
        let begun = clock::moment();
        loop {
            let leading = self.glances().into_iter().filter(|(_, glance)| glance.leads.is_some());
            let left =
                leading.filter(|(spool, _)| self.place(*spool).is_some_and(|place| place.replicated)).count();
            if left == 0 || clock::moment().since(begun) >= wait {
                tracing::info!(left, took = ?clock::moment().since(begun), "primaries are handed over");
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Takes no more requests (`no_primary`), confirms what is in the logs if the copies answer within a second, and
    /// releases the copies from their promises, so that others can be elected at once.
    pub async fn drain(&self) {
        self.inner.draining.store(true, Ordering::Relaxed);
        let leading = self.glances().into_iter().filter_map(|(spool, glance)| Some((spool, glance.leads?)));
        let begun = clock::moment();
        let outcomes = join_all(leading.map(|(spool, epoch)| self.step_down(spool, epoch))).await;
        let handed_over = outcomes.iter().filter(|ended| **ended).count();
        let took = clock::moment().since(begun);
        tracing::info!(spools = outcomes.len(), handed_over, ?took, "primaries have stepped down");
    }

    async fn step_down(&self, spool: SpoolId, epoch: Epoch) -> bool {
        let call = self.call(spool, None, Call::StepDown { epoch, target: None });
        match timeout(STEP_DOWN_WAIT, call).await {
            Ok(Some(CallReply::SteppedDown { position })) => {
                tracing::info!(%spool, %epoch, %position, "stepped down");
                true
            }
            Ok(other) => {
                tracing::info!(%spool, %epoch, ?other, "was not primary any more");
                true
            }
            Err(_late) => {
                tracing::warn!(%spool, %epoch, "does not step down in time; its role ends with this process");
                false
            }
        }
    }

    /// Gives up the roles that are left and ends the engines. Blocks until they have.
    pub fn stop(&self) {
        self.inner.draining.store(true, Ordering::Relaxed);
        for inbox in &self.inner.inboxes {
            inbox.urgent(Input::Stop);
        }
        let threads = std::mem::take(&mut *self.inner.threads.lock());
        for thread in threads {
            // A panic would have ended the process.
            let _ended = thread.join();
        }
    }
}
