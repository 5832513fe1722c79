//! The control plane: accounts, keys, plans and spools in PostgreSQL; elections through etcd; placement.
//!
//! * [`store`]: PostgreSQL; [`claims`]: etcd
//! * [`elections`] drives the pure controllers of crate `spool`; [`placement`] and [`reconcile`] make copies;
//!   [`inspect`] looks at what came of it
//! * [`service`]: gRPC for nodes and for the console API; [`ops`]: for operators

mod claims;
mod edge;
mod elections;
mod inspect;
mod ops;
mod placement;
mod reconcile;
mod service;
mod store;

use crate::claims::Etcd;
use crate::elections::{Elections, NodeClients};
use crate::inspect::{Aliases, Inspector};
use crate::ops::{Operators, Ops, OpsServer};
use crate::reconcile::Reconciler;
use crate::service::{ConsoleService, NodesService, Passwords, Signer};
use crate::store::Store;
use anyhow::Context;
use clap::Parser;
use proto::control::console_server::ConsoleServer;
use proto::control::nodes_server::NodesServer;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, Server, ServerTlsConfig};

/// For answers that are being written when the process ends.
const GOODBYE: Duration = Duration::from_secs(5);
const PING_EVERY: Duration = Duration::from_secs(5);

/// Keeps accounts and spools, and chooses primaries.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// postgres://user:password@host:port/database. In the environment only, so that it is in no list of processes.
    #[arg(long, env = "CAPSTAN_POSTGRES", hide = true, hide_env_values = true)]
    postgres: String,
    /// etcd's addresses, separated by commas.
    #[arg(long, env = "CAPSTAN_ETCD", value_delimiter = ',', required = true)]
    etcd: Vec<String>,
    /// Where to listen for nodes, the console API and operators; host:port.
    #[arg(long, env = "CAPSTAN_GRPC")]
    grpc: SocketAddr,
    /// Certificate authority of the installation, PEM.
    #[arg(long, env = "CAPSTAN_CA")]
    ca: PathBuf,
    /// This part's certificate, PEM.
    #[arg(long, env = "CAPSTAN_CERT")]
    cert: PathBuf,
    /// Its private key, PEM.
    #[arg(long, env = "CAPSTAN_KEY")]
    key: PathBuf,
    /// Public key that operators' tokens are signed for, Ed25519, PEM.
    #[arg(long, env = "CAPSTAN_OPS_PUBLIC_KEY")]
    ops_public_key: PathBuf,
    /// Private key for session tokens, Ed25519, PEM.
    #[arg(long, env = "CAPSTAN_SESSION_KEY")]
    session_key: PathBuf,
    /// The plan that new accounts start on.
    #[arg(long, env = "CAPSTAN_DEFAULT_PLAN", default_value = "free")]
    default_plan: String,
    /// Show customers the nodes' names; else copies are numbered.
    #[arg(long, env = "CAPSTAN_SHOW_NODE_NAMES", default_value_t = true, action = clap::ArgAction::Set)]
    show_node_names: bool,
    /// How long a copy's promise to its primary runs, in milliseconds; the same for all parts.
    #[arg(long, env = "CAPSTAN_PROMISE_MS", default_value_t = 400)]
    promise_ms: u64,
    /// How long a primary must not be heard to be suspected, in milliseconds.
    #[arg(long, env = "CAPSTAN_SUSPECT_MS", default_value_t = 800)]
    suspect_ms: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    run(Args::parse()).await
}

async fn run(args: Args) -> anyhow::Result<()> {
    let listener =
        TcpListener::bind(args.grpc).await.with_context(|| format!("listening on {} (--grpc)", args.grpc))?;
    let (ca, cert, key) = (read(&args.ca)?, read(&args.cert)?, read(&args.key)?);
    let operators = Operators::new(read(&args.ops_public_key)?.as_bytes())?;
    let signer = Signer::new(&read(&args.session_key)?)?;
    let store = Arc::new(Store::open(&args.postgres).await.context("opening PostgreSQL")?);
    if store.plan(&args.default_plan).await?.is_none() {
        anyhow::bail!("there is no plan {:?} (--default-plan)", args.default_plan);
    }
    let etcd = Etcd::connect(&args.etcd).await.context("connecting to etcd")?;
    let client_tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&ca))
        .identity(Identity::from_pem(&cert, &key));
    let clients = NodeClients::new(client_tls);
    let (promise, suspect) = (Duration::from_millis(args.promise_ms), Duration::from_millis(args.suspect_ms));
    let settings = elections::Settings {
        controller: spool::controller::Settings::new(promise, suspect),
        seed: u64::from_be_bytes(edge::random()),
    };
    let elections = Elections::start(etcd.clone(), clients.clone(), settings);
    let reconciler = Reconciler::start(etcd.clone(), clients.clone(), elections.clone(), store.clone());
    let inspector = Inspector::new(etcd, clients);
    let console = ConsoleService {
        store: store.clone(),
        signer,
        passwords: Passwords::new().context("hashing passwords")?,
        reconciler,
        inspector: inspector.clone(),
        default_plan: args.default_plan,
        aliases: if args.show_node_names { Aliases::NodeNames } else { Aliases::Numbers },
    };
    let nodes =
        NodesService { store: store.clone(), elections: elections.clone(), inspector: inspector.clone() };
    let ops = Ops::new(operators, inspector, elections, store);

    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status("", tonic_health::ServingStatus::Serving).await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .build_v1()
        .context("reflection")?;
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&cert, &key))
        .client_ca_root(Certificate::from_pem(&ca));
    tracing::info!(address = %args.grpc, "the control plane serves");
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let serving = Server::builder()
        .tls_config(tls)?
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_EVERY))
        .add_service(health_service)
        .add_service(reflection)
        .add_service(ConsoleServer::new(console))
        .add_service(NodesServer::new(nodes))
        .add_service(OpsServer::new(ops))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async move {
            told_to_end().await;
            tracing::info!("told to end");
            // The other half is gone only if the server is.
            let _gone = stopping.send(());
        });
    tokio::select! {
        served = serving => served.context("the gRPC server"),
        // Streams that nodes hold open never end by themselves.
        () = async { let _ended = stopped.await; tokio::time::sleep(GOODBYE).await } => Ok(()),
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
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
