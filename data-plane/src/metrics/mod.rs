//! What is counted, for those who look after a node. Counters are kept as things happen; what has a present value
//! (queues, roles, how far copies are behind) is looked at when somebody asks.
//!
//! * [`server`]: `/healthz`, `/readyz`, `/metrics`
//! * `snapshot`: the present values

pub mod server;
mod snapshot;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use spool::command::Reply;
use std::sync::Arc;
use std::time::Duration;

use snapshot::Snapshot;
pub use snapshot::Sources;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    request: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    request: &'static str,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Registry,
    requests: Family<Outcome, Counter>,
    durations: Family<Kind, Histogram, fn() -> Histogram>,
    sync_waits: Histogram,
    batches: Counter,
    snapshot: Snapshot,
}

/// From 0.25 ms to 32 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 2.0, 18))
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix("capstan");
        let requests = Family::default();
        registry.register("requests", "Requests answered by copies of this node", requests.clone());
        let durations = Family::new_with_constructor(seconds as fn() -> Histogram);
        let help = "From a request's arrival at its copy to the answer";
        registry.register_with_unit("request_duration", help, Unit::Seconds, durations.clone());
        let sync_waits = seconds();
        let help = "From a write to its being synced: the sync that was under way, and its own";
        registry.register_with_unit("sync_wait", help, Unit::Seconds, sync_waits.clone());
        let batches = Counter::default();
        registry.register("write_batches", "Pieces written to the database", batches.clone());
        let snapshot = Snapshot::register(&mut registry);
        Metrics { inner: Arc::new(Inner { registry, requests, durations, sync_waits, batches, snapshot }) }
    }
}

impl Metrics {
    pub fn answered(&self, request: &'static str, reply: &Reply, took: Duration) {
        let outcome = match reply {
            Reply::Failed(failure) => failure.code.as_str(),
            _ => "ok",
        };
        self.inner.requests.get_or_create(&Outcome { request, outcome }).inc();
        self.inner.durations.get_or_create(&Kind { request }).observe(took.as_secs_f64());
    }

    pub fn synced(&self, took: Duration) {
        self.inner.sync_waits.observe(took.as_secs_f64());
    }

    pub fn wrote(&self) {
        self.inner.batches.inc();
    }

    /// In the text format of OpenMetrics.
    pub async fn render(&self, sources: &Sources) -> Result<String, std::fmt::Error> {
        self.inner.snapshot.take(sources).await;
        let mut text = String::new();
        text::encode(&mut text, &self.inner.registry)?;
        Ok(text)
    }
}
