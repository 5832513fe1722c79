//! The whole program, from its settings to its orderly end.

use crate::claims::Etcd;
use crate::edge;
use crate::elections::{self, Elections, NodeClients};
use crate::inspect::{Aliases, Inspector};
use crate::ops::{Operators, Ops, OpsServer};
use crate::reconcile::Reconciler;
use crate::service::{ConsoleService, NodesService, Passwords, Signer};
use crate::settings::{self, Settings};
use crate::store::Store;
use anyhow::Context;
use proto::control::console_server::ConsoleServer;
use proto::control::nodes_server::NodesServer;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, Server, ServerTlsConfig};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// For answers that are being written when the process is told to end.
const GOODBYE: Duration = Duration::from_secs(4);
/// A connection whose other end says nothing for so long is given up.
const PING_EVERY: Duration = Duration::from_secs(5);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Certificates of the installation, PEM.
struct Tls {
    ca: String,
    cert: String,
    key: String,
}

/// What answers.
struct Services {
    console: ConsoleService,
    nodes: NodesService,
    ops: Ops,
}

/// Serves until `told_to_end`, and then for as long as answers take that are on their way.
pub async fn run(settings: Settings, told_to_end: impl Future<Output = ()>) -> anyhow::Result<()> {
    let listener =
        TcpListener::bind(settings.grpc).await.with_context(|| format!("listening on {}", settings.grpc))?;
    let [ca, cert, key] = [&settings.ca, &settings.cert, &settings.key].map(|path| settings::file(path));
    let tls = Tls { ca: ca?, cert: cert?, key: key? };
    // Does not wait for it.
    let etcd = Etcd::connect(&settings.etcd).await.context("etcd's address")?;
    let stopping = CancellationToken::new();
    let services = services(&settings, &tls, etcd.clone(), stopping.clone()).await?;
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status("", ServingStatus::NotServing).await;
    // Aborted with this function.
    let _ready = AbortOnDropHandle::new(tokio::spawn(tell_ready(health.clone(), etcd)));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .build_v1()
        .context("reflection")?;
    tracing::info!(address = %settings.grpc, "the control plane listens");
    let serving = Server::builder()
        .tls_config(tls.of_server())?
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_EVERY))
        .add_service(health_service)
        .add_service(reflection)
        .add_service(ConsoleServer::new(services.console))
        .add_service(NodesServer::new(services.nodes))
        .add_service(OpsServer::new(services.ops))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stopping.clone().cancelled_owned());
    let ending = async {
        told_to_end.await;
        tracing::info!("told to end");
        health.set_service_status("", ServingStatus::NotServing).await;
        stopping.cancel();
        tokio::time::sleep(GOODBYE).await;
    };
    tokio::select! {
        served = serving => served.context("the gRPC server"),
        () = ending => {
            tracing::warn!("calls that are still open are given up");
            Ok(())
        }
    }
}

/// Waits for PostgreSQL, and begins what runs in the background.
async fn services(
    settings: &Settings,
    tls: &Tls,
    etcd: Etcd,
    stopping: CancellationToken,
) -> anyhow::Result<Services> {
    let operators = Operators::new(settings::file(&settings.ops_public_key)?.as_bytes())?;
    let signer = Signer::new(&settings::file(&settings.session_key)?)?;
    let store = Arc::new(Store::open(&settings.postgres).await.context("opening PostgreSQL")?);
    if store.plan(&settings.default_plan).await?.is_none() {
        anyhow::bail!("there is no plan {:?} (--default-plan)", settings.default_plan);
    }
    let clients = NodeClients::new(tls.of_client());
    let millis = Duration::from_millis;
    let controller =
        spool::controller::Settings::new(millis(settings.promise_ms), millis(settings.suspect_ms));
    let seed = u64::from_be_bytes(edge::random());
    let elections = Elections::start(etcd.clone(), clients.clone(), elections::Settings { controller, seed });
    let reconciler = Reconciler::start(etcd.clone(), clients.clone(), elections.clone(), store.clone());
    let inspector = Inspector::new(etcd, clients);
    Ok(Services {
        console: ConsoleService {
            store: store.clone(),
            signer,
            passwords: Passwords::new().context("hashing passwords")?,
            reconciler,
            inspector: inspector.clone(),
            default_plan: settings.default_plan.clone(),
            aliases: if settings.show_node_names { Aliases::NodeNames } else { Aliases::Numbers },
        },
        nodes: NodesService {
            store: store.clone(),
            elections: elections.clone(),
            inspector: inspector.clone(),
            stopping,
        },
        ops: Ops::new(operators, inspector, elections, store),
    })
}

/// PostgreSQL answered already; once etcd has, too, this part does its work. Either may go away later: what then
/// still can be answered is.
async fn tell_ready(health: HealthReporter, etcd: Etcd) {
    let mut pause = RETRY_MIN;
    while let Err(error) = etcd.nodes().await {
        tracing::warn!(error = &error as &dyn std::error::Error, "etcd is not there yet");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
    health.set_service_status("", ServingStatus::Serving).await;
    tracing::info!("the control plane serves");
}

impl Tls {
    fn of_client(&self) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca))
            .identity(Identity::from_pem(&self.cert, &self.key))
    }

    /// Every client has a certificate of the installation; which one is asked by each service.
    fn of_server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new()
            .client_ca_root(Certificate::from_pem(&self.ca))
            .identity(Identity::from_pem(&self.cert, &self.key))
    }
}
