//! A node, put together: what runs, in which order it starts, and how it ends.

use crate::clock;
use crate::directory::{self, Directory};
use crate::health::{Health, Watch};
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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use types::{CopyId, Epoch, ProcessId, SpoolId};
use uuid::Uuid;

/// Steps of elections that wait for etcd. Each spool has one at a time, and each copy one at its start.
const JOBS_MAX: usize = 200_000;
/// For answers that are being written when the node ends.
const GOODBYE: Duration = Duration::from_secs(1);
/// For the control plane to take note, and then for it to hand over.
const TOLD_WAIT: Duration = Duration::from_secs(1);
const HANDOVER_WAIT: Duration = Duration::from_secs(3);

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
            TcpListener::bind(address).await.with_context(|| format!("listening on {address} (--{what})"))
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
    let node = start(settings, listeners, inside).await?;
    tokio::select! {
        () = stop.cancelled() => tracing::info!("this node ends"),
        ended = node.until_a_part_ends() => tracing::error!(part = ended, "ended, and this node with it"),
    }
    node.end().await
}

/// Everything that runs.
struct Running {
    spools: Spools,
    directory: Directory,
    db: Arc<Db>,
    syncer: Arc<Syncer>,
    keeper: Keeper,
    health_watch: Watch,
    heartbeats: Heartbeats,
    closing: Arc<AtomicBool>,
    /// What serves clients; what speaks to etcd; what speaks to other nodes: they end in this order.
    clients: Part,
    etcd: Part,
    nodes: Part,
    failed: CancellationToken,
}

struct Part {
    name: &'static str,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Part {
    fn new(name: &'static str) -> Part {
        Part { name, tasks: JoinSet::new(), stop: CancellationToken::new() }
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

async fn start(settings: Settings, listeners: Listeners, inside: Handle) -> anyhow::Result<Running> {
    let tls = Tls::read(&settings.ca, &settings.cert, &settings.key)?;
    let opening = settings.data_dir.clone();
    let db = tokio::task::spawn_blocking(move || Db::open(opening, &Options::default())).await??;
    let db = Arc::new(db);
    let facts = ProcessFacts {
        process: ProcessId(Uuid::new_v4()),
        boot_no: db.boot().boot_no,
        started: clock::moment(),
    };
    tracing::info!(node = %settings.name, process = %facts.process, boot_no = facts.boot_no, "starting");
    let syncer = Arc::new(Syncer::start(db.clone())?);
    let keeper = Keeper::start(db.clone())?;
    let (routing, metrics) = (Routing::default(), Metrics::default());
    let core = settings.core();
    let spools =
        Spools::new(settings.name.clone(), facts, core, db.clone(), routing.clone(), metrics.clone());
    let health = Health::new((settings.suspect() / 2).max(Duration::from_secs(1)));
    let syncs = syncer.clone();
    let health_watch = health.watch(&settings.data_dir, spools.clone(), move || syncs.stats().running)?;

    let pairs = Arc::new(PairTable::new(settings.name.clone(), facts.process));
    let (mut nodes, mut etcd, mut clients) = (Part::new("nodes"), Part::new("etcd"), Part::new("clients"));
    let copies = Arc::new(spools.clone());
    let peers = {
        let _inside = inside.enter();
        Peers::start(settings.name.clone(), facts.process, tls.clone(), copies.clone(), nodes.stop.clone())
    };
    let beats = heartbeats::Settings {
        node: settings.name.clone(),
        process: facts.process,
        tls: tls.clone(),
        moment: clock::moment,
        healthy: health.flag(),
    };
    let heartbeats = Heartbeats::start(beats, pairs.clone(), copies.clone(), peers.nodes())?;
    let (takeovers, jobs) = Takeovers::channel(JOBS_MAX);
    let surroundings = Surroundings { peers: peers.clone(), takeovers };
    {
        let (spools, syncer, pairs) = (spools.clone(), syncer.clone(), pairs.clone());
        tokio::task::spawn_blocking(move || spools.start(&syncer, &pairs, &surroundings)).await??;
    }

    let failed = CancellationToken::new();
    let server =
        Server { tls: tls.clone(), copies, pairs: pairs.clone(), peers: peers.clone(), now: clock::now };
    let (listener, stop, mourner) = (listeners.internal, nodes.stop.clone(), failed.clone());
    nodes.tasks.spawn_on(
        async move {
            if let Err(error) = server.serve(listener, stop).await {
                tracing::error!(error = &error as &dyn std::error::Error, "the internal gRPC server");
                mourner.cancel();
            }
        },
        &inside,
    );

    let membership = Membership {
        etcd: membership::connect(&settings.etcd).await?,
        node: settings.name.clone(),
        facts,
        addresses: Addresses {
            internal: settings.internal_address(),
            forward: settings.forward_address(),
            http: settings.http.to_string(),
        },
        routing: routing.clone(),
        health: health.clone(),
    };
    {
        let _inside = inside.enter();
        let known = move |nodes| peers.set_nodes(nodes);
        membership.start(&mut etcd.tasks, spools.clone(), jobs, known, etcd.stop.clone());
    }

    let directory = Directory::open(directory::Settings {
        control: settings.control.clone(),
        tls: Some(tls.client("control-plane")),
        node: settings.name.clone(),
        data_dir: settings.data_dir.clone(),
        stale_max: directory::STALE_MAX_DEFAULT,
    })?;
    clients.tasks.spawn_on(directory.clone().run(clients.stop.clone()), &inside);
    let suspicions = Suspicions {
        facts,
        suspect_after: settings.suspect(),
        spools: spools.clone(),
        routing: routing.clone(),
        pairs,
    };
    clients.tasks.spawn_on(suspicions.report(directory.clone(), clients.stop.clone()), &inside);

    let closing = Arc::new(AtomicBool::new(false));
    let metrics_server = {
        let (closing, health, syncer) = (closing.clone(), health.clone(), syncer.clone());
        let sources = Sources {
            spools: spools.clone(),
            db: db.clone(),
            syncs: Arc::new(move || syncer.stats()),
            health: health.clone(),
        };
        let directory = directory.clone();
        let missing = move || {
            let conditions = [
                (!closing.load(Ordering::Relaxed), "this node is shutting down"),
                (health.is_healthy(), "the disk does not keep up"),
                (routing.is_read(), "etcd was not read yet"),
                (directory.is_usable(), "nothing is known of accounts yet"),
            ];
            conditions.into_iter().filter(|(met, _)| !met).map(|(_, what)| what).collect()
        };
        MetricsServer { metrics, sources, missing: Arc::new(missing) }
    };
    let (listener, stop) = (listeners.metrics, nodes.stop.clone());
    nodes.tasks.spawn_on(
        async move {
            if let Err(error) = metrics_server.serve(listener, stop).await {
                tracing::error!(%error, "the metrics server");
            }
        },
        &inside,
    );
    Ok(Running {
        spools,
        directory,
        db,
        syncer,
        keeper,
        health_watch,
        heartbeats,
        closing,
        clients,
        etcd,
        nodes,
        failed,
    })
}

impl Running {
    async fn until_a_part_ends(&self) -> &'static str {
        self.failed.cancelled().await;
        "a server"
    }

    /// Serves on meanwhile. Without the control plane the copies are released all the same, by [`Spools::drain`], and
    /// one of them is elected once this node is not heard any more.
    async fn hand_over(&self) {
        match tokio::time::timeout(TOLD_WAIT, self.directory.leaving()).await {
            Ok(Ok(())) => self.spools.handed_over(HANDOVER_WAIT).await,
            Ok(Err(error)) => tracing::warn!(%error, "the control plane cannot be told"),
            Err(_late) => tracing::warn!("the control plane does not answer"),
        }
    }

    /// Refuses, drains, hands over, ends. What was answered is on the disk at every moment of it.
    async fn end(self) -> anyhow::Result<()> {
        self.closing.store(true, Ordering::Relaxed);
        self.hand_over().await;
        self.spools.drain().await;
        self.clients.end().await;
        self.etcd.end().await;
        self.nodes.end().await;
        let Running { spools, db, syncer, keeper, health_watch, heartbeats, .. } = self;
        tokio::task::spawn_blocking(move || {
            spools.stop();
            drop((heartbeats, health_watch, keeper));
            // The last batches of the engines.
            db.sync();
            drop((syncer, db, spools));
        })
        .await?;
        tracing::info!("this node has ended");
        Ok(())
    }
}
