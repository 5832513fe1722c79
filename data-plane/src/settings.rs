//! What an operator sets: command line flags, each with an environment variable `CAPSTAN_...`.

use clap::Parser;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use types::NodeName;

/// A node of Capstan: it holds copies of spools and serves them.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Settings {
    /// Unique in the installation, and the name in this node's certificate.
    #[arg(long, env = "CAPSTAN_NAME", value_parser = node_name)]
    pub name: NodeName,
    /// Where everything is kept. One process at a time.
    #[arg(long, env = "CAPSTAN_DATA_DIR")]
    pub data_dir: PathBuf,
    /// The public API, in clear text.
    #[arg(long, env = "CAPSTAN_HTTP")]
    pub http: SocketAddr,
    /// Replication, and calls of the control plane.
    #[arg(long, env = "CAPSTAN_INTERNAL")]
    pub internal: SocketAddr,
    /// Requests that other nodes pass on.
    #[arg(long, env = "CAPSTAN_FORWARD")]
    pub forward: SocketAddr,
    /// Where others reach --internal, if that is not what it listens on.
    #[arg(long, env = "CAPSTAN_ADVERTISE_INTERNAL")]
    pub advertise_internal: Option<String>,
    /// Where others reach --forward.
    #[arg(long, env = "CAPSTAN_ADVERTISE_FORWARD")]
    pub advertise_forward: Option<String>,
    /// /healthz, /readyz and /metrics.
    #[arg(long, env = "CAPSTAN_METRICS")]
    pub metrics: SocketAddr,
    /// etcd's client URLs.
    #[arg(long, env = "CAPSTAN_ETCD", value_delimiter = ',', required = true)]
    pub etcd: Vec<String>,
    /// https://host:port of the control plane.
    #[arg(long, env = "CAPSTAN_CONTROL")]
    pub control: String,
    /// The installation's certificate authority, PEM.
    #[arg(long, env = "CAPSTAN_CA")]
    pub ca: PathBuf,
    /// This node's certificate, PEM.
    #[arg(long, env = "CAPSTAN_CERT")]
    pub cert: PathBuf,
    /// Its private key, PEM.
    #[arg(long, env = "CAPSTAN_KEY")]
    pub key: PathBuf,
    /// How long a copy's promise to its primary runs. The same on all nodes.
    #[arg(long, env = "CAPSTAN_PROMISE_MS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(100..=10_000))]
    pub promise_ms: u64,
    /// How long a primary may be silent before it is reported.
    #[arg(long, env = "CAPSTAN_SUSPECT_MS", default_value_t = 800, value_parser = clap::value_parser!(u64).range(200..=60_000))]
    pub suspect_ms: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("a node's name has 1 to 63 characters of a-z 0-9 - and begins with a letter")]
struct BadNodeName;

/// What a certificate can name, and a key of etcd can contain.
fn node_name(name: &str) -> Result<NodeName, BadNodeName> {
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let fine =
        name.len() <= 63 && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.bytes().all(allowed);
    if fine { Ok(NodeName::from(name)) } else { Err(BadNodeName) }
}

impl Settings {
    pub fn promise(&self) -> Duration {
        Duration::from_millis(self.promise_ms)
    }

    pub fn suspect(&self) -> Duration {
        Duration::from_millis(self.suspect_ms)
    }

    /// For the pure core.
    pub fn core(&self) -> spool::copy::Settings {
        let promise = self.promise();
        // Clocks run at rates that differ by a percent each, and are read a moment late.
        let promise_skew = (promise / 50 + Duration::from_millis(10)).max(Duration::from_millis(20));
        spool::copy::Settings { promise, promise_skew, ..spool::copy::Settings::default() }
    }

    pub fn internal_address(&self) -> String {
        self.advertise_internal.clone().unwrap_or_else(|| self.internal.to_string())
    }

    pub fn forward_address(&self) -> String {
        self.advertise_forward.clone().unwrap_or_else(|| self.forward.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent() {
        Settings::command().debug_assert();
    }

    #[test]
    fn names_fit_certificates_and_keys() {
        for good in ["node-1", "a"] {
            assert!(node_name(good).is_ok(), "{good}");
        }
        for bad in ["", "1", "-a", "A", "a/b", "a.b", &"x".repeat(64)] {
            assert!(node_name(bad).is_err(), "{bad}");
        }
    }
}
