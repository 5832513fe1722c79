//! An S3 server on a directory, for the nodes' cold snapshots: `cluster s3`.

use anyhow::Context;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

const CONNECTIONS_MAX: usize = 1024;

#[derive(Debug, clap::Args)]
pub struct Settings {
    /// Where to serve.
    #[arg(long)]
    pub http: SocketAddr,
    /// The directory that holds the buckets.
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Made if it is not there.
    #[arg(long)]
    pub bucket: String,
    #[arg(long, env = "CAPSTAN_S3_ACCESS_KEY")]
    pub access_key: String,
    #[arg(long, env = "CAPSTAN_S3_SECRET_KEY", hide_env_values = true)]
    pub secret_key: String,
}

/// Serves until SIGTERM.
pub async fn serve(settings: Settings) -> anyhow::Result<()> {
    let bucket = settings.data_dir.join(&settings.bucket);
    std::fs::create_dir_all(&bucket).with_context(|| format!("making {}", bucket.display()))?;
    let store = s3s_fs::FileSystem::new(&settings.data_dir)
        .map_err(|error| anyhow::anyhow!("opening {}: {error:?}", settings.data_dir.display()))?;
    let mut builder = S3ServiceBuilder::new(store);
    builder.set_auth(SimpleAuth::from_single(settings.access_key, settings.secret_key));
    let service = builder.build();

    let listener =
        TcpListener::bind(settings.http).await.with_context(|| format!("listening on {}", settings.http))?;
    println!("serving {} on http://{}", settings.data_dir.display(), settings.http);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut stop = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    loop {
        let slot = room.clone().acquire_owned().await.context("the semaphore is never closed")?;
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.recv() => return Ok(()),
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                eprintln!("accepting a connection: {error}");
                // Out of file descriptors, most likely: give others the time to close theirs.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let service = service.clone();
        tokio::spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new());
            if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
                eprintln!("a connection ended early: {error}");
            }
            drop(slot);
        });
    }
}
