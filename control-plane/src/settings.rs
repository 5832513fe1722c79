//! Settings: the command line, with the environment behind it. The database's address, which holds a password, is in
//! the environment only, so that no list of processes shows it.

use anyhow::Context;
use clap::Parser;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const POSTGRES: &str = "CAPSTAN_POSTGRES";

/// Keeps accounts and spools, and chooses primaries.
#[derive(Parser)]
#[command(
    version,
    after_help = "CAPSTAN_POSTGRES, in the environment: postgres://user:password@host:port/database"
)]
pub struct Settings {
    #[arg(skip)]
    pub postgres: String,
    /// etcd's addresses, separated by commas.
    #[arg(long, env = "CAPSTAN_ETCD", value_delimiter = ',', required = true)]
    pub etcd: Vec<String>,
    /// Where to listen for nodes, the console API and operators; host:port.
    #[arg(long, env = "CAPSTAN_GRPC")]
    pub grpc: SocketAddr,
    /// Certificate authority of the installation, PEM.
    #[arg(long, env = "CAPSTAN_CA")]
    pub ca: PathBuf,
    /// This part's certificate, PEM.
    #[arg(long, env = "CAPSTAN_CERT")]
    pub cert: PathBuf,
    /// Its private key, PEM.
    #[arg(long, env = "CAPSTAN_KEY")]
    pub key: PathBuf,
    /// Public key that operators' tokens are signed for, Ed25519, PEM.
    #[arg(long, env = "CAPSTAN_OPS_PUBLIC_KEY")]
    pub ops_public_key: PathBuf,
    /// Private key for session tokens, Ed25519, PEM.
    #[arg(long, env = "CAPSTAN_SESSION_KEY")]
    pub session_key: PathBuf,
    /// The plan that new accounts start on.
    #[arg(long, env = "CAPSTAN_DEFAULT_PLAN", default_value = "free")]
    pub default_plan: String,
    /// Show customers the nodes' names; else copies are numbered.
    #[arg(long, env = "CAPSTAN_SHOW_NODE_NAMES", default_value_t = true, action = clap::ArgAction::Set)]
    pub show_node_names: bool,
    /// How long a copy's promise to its primary runs, in milliseconds; the same for all parts.
    #[arg(long, env = "CAPSTAN_PROMISE_MS", default_value_t = 400)]
    pub promise_ms: u64,
    /// How long a primary must not be heard to be suspected, in milliseconds.
    #[arg(long, env = "CAPSTAN_SUSPECT_MS", default_value_t = 800)]
    pub suspect_ms: u64,
}

impl Settings {
    /// Of this process.
    pub fn read() -> anyhow::Result<Settings> {
        let settings = Settings::parse();
        let postgres = std::env::var(POSTGRES).with_context(|| format!("{POSTGRES} in the environment"))?;
        Ok(Settings { postgres, ..settings })
    }
}

pub fn file(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}
