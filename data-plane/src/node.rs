//! A node, put together: what runs, in which order it starts, and how it ends.

use crate::clock;
use crate::directory::{self, Directory};
use crate::health::{Health, Watch};
use crate::http::api::Api;
use crate::http::forward::Forwarder;
use crate::http::serve::{serve, serve_forwarded};
use crate::http::tls::Identity;
use crate::membership::{self, Addresses, Job, Membership, Routing, Suspicions, Takeovers};
use crate::metrics::{Metrics, Sources, server::Server as MetricsServer};
use crate::replication::{Heartbeats, PairTable, Peers, Server, Tls, heartbeats};
use crate::settings::Settings;
use crate::spools::{Outside, Spools};
use crate::store::{Db, Keeper, Options, Syncer};
use anyhow::Context;
use spool::copy::ProcessFacts;
use spool::event::{Activate, PeerMessage};
use spool::record::Member;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use types::{CopyId, Epoch, ProcessId, SpoolId, limits};
use uuid::Uuid;

/// Steps of elections that wait for etcd. Each spool has one at a time, and each copy one at its start.
const JOBS_MAX: usize = 200_000;
/// A sync or an engine's work that takes longer makes a node unhealthy, or half of T_suspect if that is more.
const SLOW_MIN: Duration = Duration::from_secs(1);
/// For answers that are being written when the node ends.
const GOODBYE: Duration = Duration::from_millis(2_500);
/// For the control plane to take note, and then for it to hand over.
const TOLD_WAIT: Duration = Duration::from_secs(1);
const HANDOVER_WAIT: Duration = Duration::from_secs(3);

/// How long a start waits for an address that is in use.
const ADDRESS_WAIT: Duration = Duration::from_secs(3);
const ADDRESS_RETRY: Duration = Duration::from_millis(50);

/// What engines ask of the rest of the node.
#[derive(Clone)]
struct Surroundings {
    peers: Peers,
    takeovers: Takeovers,
}

impl Outside for Surroundings {
    fn send(&self, spool: SpoolId, lineage: u64, from: Member, to: Member, message: PeerMessage) {
        self.peers.send(spool, lineage, from, to, message);
    }
    fn activate(&self, spool: SpoolId, activate: Activate) {
        self.takeovers.leave(Job::Activate { spool, activate });
    }
    fn clear_prev(&self, spool: SpoolId, epoch: Epoch) {
        self.takeovers.leave(Job::ClearPrev { spool, epoch });
    }
    fn register(&self, copy: CopyId) {
        self.takeovers.leave(Job::Register { copy });
    }
}

/// Sockets, taken before anything else: a node that cannot listen has nothing to do.
struct Listeners {
    http: TcpListener,
    internal: TcpListener,
    forward: TcpListener,
    metrics: TcpListener,
}

impl Listeners {
    async fn bind(settings: &Settings) -> anyhow::Result<Listeners> {
        let bind = async |what: &str, address| {
            let until = tokio::time::Instant::now() + ADDRESS_WAIT;
            loop {
                match TcpListener::bind(address).await {
                    // A process that was killed may hold it for a moment longer.
                    Err(error)
                        if error.kind() == ErrorKind::AddrInUse && tokio::time::Instant::now() < until =>
                    {
                        tokio::time::sleep(ADDRESS_RETRY).await;
                    }
                    bound => return bound.with_context(|| format!("listening on {address} (--{what})")),
                }
            }
        };
        Ok(Listeners {
            http: bind("http", settings.http).await?,
            internal: bind("internal", settings.internal).await?,
            forward: bind("forward", settings.forward).await?,
            metrics: bind("metrics", settings.metrics).await?,
        })
    }
}

/// Runs until `stop`, then ends in order. `inside` is the runtime for everything that clients' requests must not hold
/// up; the one that this is called in serves them.
pub async fn run(settings: Settings, inside: Handle, stop: CancellationToken) -> anyhow::Result<()> {
    let listeners = Listeners::bind(&settings).await?;
    let core = Core::open(&settings).await?;
    let node = Node::start(core, &settings, listeners, &inside).await?;
    tokio::select! {
        () = stop.cancelled() => tracing::info!("this node ends"),
        () = node.failed.cancelled() => tracing::error!("a server failed, and this node ends"),
    }
    node.end().await
}

/// The copies, their disk and their threads: what works without anybody else.
struct Core {
    facts: ProcessFacts,
    db: Arc<Db>,
    syncer: Arc<Syncer>,
    keeper: Keeper,
    spools: Spools,
    pairs: Arc<PairTable>,
    routing: Routing,
    metrics: Metrics,
    health: Health,
    health_watch: Watch,
}

impl Core {
    async fn open(settings: &Settings) -> anyhow::Result<Core> {
        let dir = settings.data_dir.clone();
        let db = tokio::task::spawn_blocking(move || Db::open(dir, &Options::default())).await??;
        let (db, node) = (Arc::new(db), settings.name.clone());
        let process = ProcessId(Uuid::new_v4());
        let facts = ProcessFacts { process, boot_no: db.boot().boot_no, started: clock::moment() };
        tracing::info!(%node, %process, boot_no = facts.boot_no, "starting");
        let syncer = Arc::new(Syncer::start(db.clone())?);
        let keeper = Keeper::start(db.clone())?;
        let (routing, metrics) = (Routing::default(), Metrics::default());
        let spools =
            Spools::new(node.clone(), facts, settings.core(), db.clone(), routing.clone(), metrics.clone());
        let health = Health::new((settings.suspect() / 2).max(SLOW_MIN));
        let syncs = syncer.clone();
        let running = move || syncs.stats().running;
        let health_watch = health.watch(&settings.data_dir, spools.clone(), running)?;
        let pairs = Arc::new(PairTable::new(node, process));
        Ok(Core { facts, db, syncer, keeper, spools, pairs, routing, metrics, health, health_watch })
    }

    /// Opens the copies. From here on they can be asked.
    async fn start_engines(&self, peers: Peers, takeovers: Takeovers) -> anyhow::Result<()> {
        let (spools, syncer, pairs) = (self.spools.clone(), self.syncer.clone(), self.pairs.clone());
        let outside = Surroundings { peers, takeovers };
        tokio::task::spawn_blocking(move || spools.start(&syncer, &pairs, &outside)).await??;
        Ok(())
    }
}

/// Everything that runs.
struct Node {
    core: Core,
    heartbeats: Heartbeats,
    directory: Directory,
    /// From here on this node wants to be rid of its roles.
    closing: CancellationToken,
    /// What serves clients; what speaks to etcd and the control plane; what speaks to other nodes: they end in this order.
    clients: Part,
    control: Part,
    nodes: Part,
    /// Something ended that the node cannot do without.
    failed: CancellationToken,
}

impl Node {
    async fn start(
        core: Core,
        settings: &Settings,
        listeners: Listeners,
        inside: &Handle,
    ) -> anyhow::Result<Node> {
        let tls = Tls::read(&settings.ca, &settings.cert, &settings.key)?;
        let (closing, failed) = (CancellationToken::new(), CancellationToken::new());
        let mut nodes = Part::new("nodes", inside.clone(), failed.clone());
        let mut control = Part::new("control", inside.clone(), failed.clone());
        let mut clients = Part::new("clients", Handle::current(), failed.clone());

        let copies = Arc::new(core.spools.clone());
        let (node, process) = (settings.name.clone(), core.facts.process);
        let peers = {
            let _inside = inside.enter();
            Peers::start(node.clone(), process, tls.clone(), copies.clone(), nodes.stop.clone())
        };
        let healthy = core.health.flag();
        let beats = heartbeats::Settings { node, process, tls: tls.clone(), moment: clock::moment, healthy };
        let heartbeats = Heartbeats::start(beats, core.pairs.clone(), copies.clone(), peers.nodes())?;
        let (takeovers, jobs) = Takeovers::channel(JOBS_MAX);
        core.start_engines(peers.clone(), takeovers).await?;
        let (pairs, its_peers) = (core.pairs.clone(), peers.clone());
        let server = Server { tls: tls.clone(), copies, pairs, peers: its_peers, now: clock::now };
        nodes.serve("internal gRPC", server.serve(listeners.internal, nodes.stop.clone()));

        start_membership(&core, settings, &mut control, peers, jobs).await?;

        let directory = Directory::open(directory::Settings {
            control: settings.control.clone(),
            tls: Some(tls.client("control-plane")),
            node: settings.name.clone(),
            data_dir: settings.data_dir.clone(),
            stale_max: directory::STALE_MAX_DEFAULT,
        })?;
        control.run(directory.clone().run(control.stop.clone()));
        let suspicions = Suspicions {
            facts: core.facts,
            suspect_after: settings.suspect(),
            spools: core.spools.clone(),
            routing: core.routing.clone(),
            pairs: core.pairs.clone(),
        };
        control.run(suspicions.report(directory.clone(), closing.clone()));

        let identity = Identity::read(&settings.ca, &settings.cert, &settings.key)?;
        let api = Arc::new(Api {
            body_bytes: Semaphore::new(limits::BODY_BYTES_AT_ONCE_MAX),
            spools: core.spools.clone(),
            routing: core.routing.clone(),
            directory: directory.clone(),
            forwarder: Forwarder::new(identity.client()?),
        });
        let (stop, tls) = (clients.stop.clone(), identity.server()?);
        clients.run(serve_forwarded(listeners.forward, tls, api.clone(), stop.clone()));
        clients.run(serve(listeners.http, api, stop));
        let metrics = metrics_server(&core, directory.clone(), closing.clone());
        nodes.serve("metrics", metrics.serve(listeners.metrics, nodes.stop.clone()));
        Ok(Node { core, heartbeats, directory, closing, clients, control, nodes, failed })
    }

    /// Refuses, hands over, drains, ends. What was answered is on the disk at every moment of it.
    async fn end(self) -> anyhow::Result<()> {
        self.closing.cancel();
        self.hand_over().await;
        self.core.spools.drain().await;
        self.clients.end().await;
        self.control.end().await;
        self.nodes.end().await;
        let (core, heartbeats) = (self.core, self.heartbeats);
        tokio::task::spawn_blocking(move || {
            core.spools.stop();
            drop((heartbeats, core.health_watch, core.keeper));
            // The last batches of the engines.
            core.db.sync();
        })
        .await?;
        tracing::info!("this node has ended");
        Ok(())
    }

    /// Serves on meanwhile. Without the control plane the copies are released all the same, by [`Spools::drain`], and
    /// one of them is elected once this node is not heard any more.
    async fn hand_over(&self) {
        match tokio::time::timeout(TOLD_WAIT, self.directory.leaving()).await {
            Ok(Ok(())) => self.core.spools.handed_over(HANDOVER_WAIT).await,
            Ok(Err(error)) => tracing::warn!(%error, "the control plane cannot be told"),
            Err(_late) => tracing::warn!("the control plane does not answer"),
        }
    }
}

async fn start_membership(
    core: &Core,
    settings: &Settings,
    control: &mut Part,
    peers: Peers,
    jobs: mpsc::Receiver<Job>,
) -> anyhow::Result<()> {
    let membership = Membership {
        etcd: membership::connect(&settings.etcd).await?,
        node: settings.name.clone(),
        facts: core.facts,
        addresses: Addresses {
            internal: settings.internal_address(),
            forward: settings.forward_address(),
            http: settings.http.to_string(),
        },
        routing: core.routing.clone(),
        health: core.health.clone(),
    };
    let _inside = control.runtime.enter();
    let moved = move |nodes| peers.set_nodes(nodes);
    membership.start(&mut control.tasks, core.spools.clone(), jobs, moved, control.stop.clone());
    Ok(())
}

fn metrics_server(core: &Core, directory: Directory, closing: CancellationToken) -> MetricsServer {
    let syncer = core.syncer.clone();
    let sources = Sources {
        spools: core.spools.clone(),
        db: core.db.clone(),
        syncs: Arc::new(move || syncer.stats()),
        health: core.health.clone(),
    };
    let (health, routing) = (core.health.clone(), core.routing.clone());
    let missing = move || {
        let conditions = [
            (!closing.is_cancelled(), "this node is shutting down"),
            (health.is_healthy(), "the disk does not keep up"),
            (routing.is_read(), "etcd was not read yet"),
            (directory.is_usable(), "nothing is known of accounts yet"),
        ];
        conditions.into_iter().filter(|(met, _)| !met).map(|(_, what)| what).collect()
    };
    MetricsServer { metrics: core.metrics.clone(), sources, missing: Arc::new(missing) }
}

/// Tasks that end together.
struct Part {
    name: &'static str,
    runtime: Handle,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    failed: CancellationToken,
}

impl Part {
    fn new(name: &'static str, runtime: Handle, failed: CancellationToken) -> Part {
        Part { name, runtime, tasks: JoinSet::new(), stop: CancellationToken::new(), failed }
    }

    fn run(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// A server whose failure is the node's.
    fn serve<E: std::error::Error + 'static>(
        &mut self,
        what: &'static str,
        server: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let failed = self.failed.clone();
        self.run(async move {
            if let Err(error) = server.await {
                tracing::error!(what, error = &error as &dyn std::error::Error, "a server failed");
                failed.cancel();
            }
        });
    }

    async fn end(mut self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(GOODBYE, async {
            while let Some(task) = self.tasks.join_next().await {
                if let Err(error) = task {
                    tracing::error!(part = self.name, %error, "did not end well");
                }
            }
        });
        if ended.await.is_err() {
            tracing::warn!(part = self.name, "does not end in time");
        }
        self.tasks.abort_all();
    }
}
