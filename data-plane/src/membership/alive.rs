//! "This node is there, and where": one key under an etcd lease, rewritten each second with a number that grows.

use super::{CALL_WAIT, EtcdError, RETRY_MAX, answered};
use crate::health::Health;
use etcd_client::{Client, PutOptions};
use serde::{Deserialize, Serialize};
use spool::copy::ProcessFacts;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use types::{NodeName, ProcessId};

/// Of the key after its writer is gone.
const LEASE_S: i64 = 7;
const EVERY: Duration = Duration::from_secs(1);

/// Where others reach this node, `host:port` each.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// Replication and calls.
    pub internal: String,
    /// Forwarded requests.
    pub forward: String,
    /// The public API.
    pub http: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Alive {
    pub process_id: ProcessId,
    pub hb_no: u64,
    pub internal: String,
    pub forward: String,
    pub http: String,
    #[serde(default)]
    pub boot_no: u64,
}

pub(super) async fn keep(
    etcd: Client,
    node: NodeName,
    facts: ProcessFacts,
    addresses: Addresses,
    health: Health,
    stop: CancellationToken,
) {
    let key = format!("/nodes/{node}/alive");
    let Addresses { internal, forward, http } = addresses;
    let mut alive =
        Alive { process_id: facts.process, hb_no: 0, internal, forward, http, boot_no: facts.boot_no };
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lease = None;
    let mut failing = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = ticks.tick() => {}
        }
        // A node that cannot write does not stay alive in etcd.
        if !health.is_healthy() {
            continue;
        }
        alive.hb_no += 1;
        match write(&etcd, &key, &alive, &mut lease).await {
            Ok(()) if failing => {
                tracing::info!("etcd answers again");
                failing = false;
            }
            Ok(()) => {}
            Err(error) => {
                // A new lease next time: this one may be gone.
                lease = None;
                if !failing {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "etcd does not take this node's alive key; what is served goes on"
                    );
                }
                failing = true;
            }
        }
    }
    // So that nobody waits for the lease to run out.
    let mut etcd = etcd;
    if let Some(lease) = lease
        && timeout(RETRY_MAX, etcd.lease_revoke(lease)).await.is_err()
    {
        tracing::warn!("etcd did not take the alive key away; it goes by itself within {LEASE_S} s");
    }
}

async fn write(etcd: &Client, key: &str, alive: &Alive, lease: &mut Option<i64>) -> Result<(), EtcdError> {
    let mut etcd = etcd.clone();
    let id = match *lease {
        Some(id) => {
            // The answer of a put under a lease that is gone is an error; keeping it alive is a separate stream.
            let (mut keeper, mut answers) = answered(etcd.lease_keep_alive(id)).await?;
            answered(keeper.keep_alive()).await?;
            let answer = timeout(CALL_WAIT, answers.message()).await.map_err(|_| EtcdError::NoAnswer)??;
            if answer.is_none_or(|answer| answer.ttl() <= 0) {
                return Err(EtcdError::Incomplete("the lease"));
            }
            id
        }
        None => answered(etcd.lease_grant(LEASE_S, None)).await?.id(),
    };
    *lease = Some(id);
    let value = serde_json::to_vec(alive)?;
    answered(etcd.put(key, value, Some(PutOptions::new().with_lease(id)))).await?;
    Ok(())
}
