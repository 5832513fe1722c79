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
    let store = Arc::new(Store::new(&settings.postgres).context("PostgreSQL's address")?);
    let services = services(&settings, &tls, etcd.clone(), store.clone(), stopping.clone())?;
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status("", ServingStatus::NotServing).await;
    let becoming_ready = become_ready(health.clone(), etcd, store, settings.default_plan.clone());
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
    // Elections need etcd alone: they have begun, and go on whatever becomes of the rest.
    let serving = async {
        let ready = async {
            becoming_ready.await?;
            std::future::pending().await
        };
        tokio::select! {
            served = serving => served.context("the gRPC server"),
            failed = ready => failed,
        }
    };
    tokio::select! {
        served = serving => served,
        () = ending => {
            tracing::warn!("calls that are still open are given up");
            Ok(())
        }
    }
}

/// Begins what runs in the background.
fn services(
    settings: &Settings,
    tls: &Tls,
    etcd: Etcd,
    store: Arc<Store>,
    stopping: CancellationToken,
) -> anyhow::Result<Services> {
    let operators = Operators::new(settings::file(&settings.ops_public_key)?.as_bytes())?;
    let signer = Signer::new(&settings::file(&settings.session_key)?)?;
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

/// Once PostgreSQL and etcd have answered, this part does all of its work. Either may go away later: what then
/// still can be answered is. An error: it never will.
async fn become_ready(
    health: HealthReporter,
    etcd: Etcd,
    store: Arc<Store>,
    default_plan: String,
) -> anyhow::Result<()> {
    store.prepare().await.context("bringing PostgreSQL's tables up to date")?;
    let mut pause = RETRY_MIN;
    loop {
        match store.plan(&default_plan).await {
            Ok(Some(_)) => break,
            Ok(None) => anyhow::bail!("there is no plan {default_plan:?} (--default-plan)"),
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "PostgreSQL went away"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
    while let Err(error) = etcd.nodes().await {
        tracing::warn!(error = &error as &dyn std::error::Error, "etcd is not there yet");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
    health.set_service_status("", ServingStatus::Serving).await;
    tracing::info!("the control plane serves");
    Ok(())
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
