//! The node's program: settings, logs, limits, runtimes; [`data_plane::node`] is the node.

use anyhow::Context;
use clap::Parser;
use data_plane::node;
use data_plane::settings::Settings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::IsTerminal;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// A message's bytes are allocated by one thread and freed by another, and large bodies come and go: it costs a tenth less
/// than the system's, and gives memory back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Connections of clients, files of RocksDB, connections inside.
const FILES_WANTED: u64 = 65_536;

fn main() -> anyhow::Result<()> {
    let settings = Settings::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    raise_file_limit();
    let clients = runtime("clients")?;
    let inside = runtime("inside")?;
    let ended = clients.block_on(async {
        let stop = CancellationToken::new();
        tokio::spawn(stop_on_signal(stop.clone())?);
        node::run(settings, inside.handle().clone(), stop).await
    });
    // What is left are connections whose other side does not end them.
    clients.shutdown_background();
    inside.shutdown_background();
    ended
}

fn runtime(name: &'static str) -> anyhow::Result<Runtime> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).thread_name(name).enable_all();
    builder.build().with_context(|| format!("the runtime {name:?}"))
}

fn stop_on_signal(stop: CancellationToken) -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM"),
            _ = interrupt.recv() => tracing::info!("SIGINT"),
        }
        stop.cancel();
    })
}

fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(FILES_WANTED, |most| most.min(FILES_WANTED));
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }) {
        tracing::warn!(%error, wanted, "the limit of open files stays as it is");
    }
}
