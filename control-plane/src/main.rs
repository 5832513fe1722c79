//! The control plane: accounts, keys, plans and spools in PostgreSQL; elections through etcd; placement.
//!
//! * [`settings`], [`program`]: from a command line to a server
//! * [`service`]: gRPC for nodes and for the console API; [`ops`]: for operators
//! * [`store`]: PostgreSQL; [`claims`]: etcd
//! * [`elections`] drives the pure controllers of crate `spool`; [`placement`] and [`reconcile`] make copies;
//!   [`inspect`] looks at what came of it

mod claims;
mod edge;
mod elections;
mod inspect;
mod ops;
mod placement;
mod program;
mod reconcile;
mod service;
mod settings;
mod store;

use settings::Settings;
use std::io::IsTerminal;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    program::run(Settings::read()?, told_to_end()).await
}

async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("signals cannot be received; only SIGKILL ends this process");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
