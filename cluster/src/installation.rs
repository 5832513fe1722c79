//! All parts of one installation: started in order, watched, broken on request, stopped.

use crate::api::Api;
use crate::console::Console;
use crate::dev_file::*;
use crate::layout::Layout;
use crate::parts::ours::S3_BUCKET;
use crate::parts::{Options, Part, PartName, Ready, Site, postgres};
use crate::pki::Pki;
use crate::ports::Ports;
use crate::process::{Id, Process, tail};
use crate::state::{FirstAccount, State};
use crate::wait::wait_until;
use anyhow::{Context, bail, ensure};
use futures::future::try_join_all;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// For a part to answer after its start. Generous: the machine may be building something else.
const START_WITHIN: Duration = Duration::from_secs(60);
const SERVE_WITHIN: Duration = Duration::from_secs(60);
/// For a part to end by itself, before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(10);
const SIGNAL_WITHIN: Duration = Duration::from_secs(10);
const LOG_LINES: usize = 20;

#[derive(Clone)]
pub struct Installation {
    shared: Arc<Shared>,
}

struct Shared {
    layout: Layout,
    ports: Ports,
    options: Options,
    postgres_url: String,
    etcd_url: String,
    control_url: String,
    ca: PathBuf,
    state: Mutex<State>,
    /// Everything answered once: from then on changes are written to `dev.json`.
    up: AtomicBool,
    slots: Vec<Slot>,
    /// One launcher a directory; the kernel lets go of it however this process ends.
    _lock: File,
}

/// A part's place, whether it runs or not.
struct Slot {
    part: Part,
    /// One change at a time.
    changing: tokio::sync::Mutex<()>,
    running: Mutex<Option<Running>>,
}

#[derive(Clone)]
struct Running {
    process: Process,
    /// Cleared before it is killed on purpose.
    wanted: Arc<AtomicBool>,
    paused: bool,
}

/// What can be done to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// Start again.
    Start,
    /// SIGSTOP.
    Pause,
    /// SIGCONT.
    Resume,
}

/// Whether a launcher holds this directory.
pub fn is_locked(layout: &Layout) -> std::io::Result<bool> {
    let file = File::options().create(true).append(true).open(layout.lock())?;
    Ok(flock(&file, FlockOperation::NonBlockingLockExclusive).is_err())
}

impl Installation {
    /// Takes the directory, clears away what an earlier launcher left, and lays everything out. Starts nothing yet.
    pub fn open(layout: Layout, options: Options, bin: PathBuf) -> anyhow::Result<Installation> {
        let lock = File::options().create(true).append(true).open(layout.lock())?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("{} is already up; `./dev down` stops it", layout.root().display());
        }
        for dir in [layout.run(), layout.logs()] {
            std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        }
        end_strays(&layout)?;
        match std::fs::remove_file(layout.dev_file()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).context("dev.json");
            }
            _ => {}
        }
        let mut state = State::load(&layout)?;
        let ports = Ports::take(state.port_base)?;
        state.port_base = Some(ports.base());
        state.save(&layout)?;
        let pki = Pki::create(&layout.pki(), options.nodes)?;
        postgres::create(&layout, &state.postgres_password).context("making PostgreSQL's data directory")?;

        let site = Site { layout: &layout, ports: &ports, pki: &pki, state: &state, options: &options, bin };
        let slots = site.parts()?.into_iter().map(Slot::new).collect();
        let shared = Shared {
            postgres_url: site.postgres_url(),
            etcd_url: site.etcd_url(),
            control_url: site.control_url(),
            ca: pki.ca(),
            state: Mutex::new(state),
            up: AtomicBool::new(false),
            slots,
            layout,
            ports,
            options,
            _lock: lock,
        };
        Ok(Installation { shared: Arc::new(shared) })
    }

    /// Starts everything, makes the first account if there is none, and returns when its default spool is served by every
    /// node.
    pub async fn start(&self) -> anyhow::Result<()> {
        use PartName::*;
        self.start_servers().await?;
        self.start_all(|part| matches!(part, Control)).await?;
        self.start_all(|part| matches!(part, Node(_) | Console)).await?;
        let key = self.first_account().await?.api_key;
        let nodes: Vec<Api> = self.node_urls().iter().map(|url| Api::new(url, &key)).collect();
        try_join_all(nodes.iter().map(|node| node.wait_serving("default", SERVE_WITHIN))).await?;
        self.shared.up.store(true, SeqCst);
        self.shared.write_dev_file()
    }

    /// What is not ours: etcd, PostgreSQL, S3.
    pub async fn start_servers(&self) -> anyhow::Result<()> {
        use PartName::*;
        self.start_all(|part| matches!(part, Etcd | Postgres | S3)).await
    }

    pub fn is_up(&self) -> bool {
        self.shared.up.load(SeqCst)
    }

    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    pub fn dev_file(&self) -> Option<DevFile> {
        self.shared.dev_file()
    }

    /// None while it does not run.
    pub fn pid(&self, part: PartName) -> Option<u32> {
        self.shared.pid(part)
    }

    pub fn node_urls(&self) -> Vec<String> {
        let ports = &self.shared.ports;
        (1..=self.shared.options.nodes).map(|number| format!("http://{}", ports.node(number).http)).collect()
    }

    pub fn console(&self) -> Console {
        Console::new(&self.shared.console_url())
    }

    /// Returns when the effect is in place: the process is gone, stands still, or answers again.
    pub async fn fault(&self, fault: Fault, part: PartName) -> anyhow::Result<()> {
        let slot = self.shared.slot(part)?;
        let _changing = slot.changing.lock().await;
        match fault {
            Fault::Kill => self.kill(slot).await?,
            Fault::Start => {
                ensure!(slot.running().is_none(), "{part} runs already");
                self.launch(slot, self.shared.readiness(&slot.part)).await?;
            }
            Fault::Pause => self.pause(slot).await?,
            Fault::Resume => self.resume(slot).await?,
        }
        if self.is_up() { self.shared.write_dev_file() } else { Ok(()) }
    }

    /// Stops everything: those first that need the others.
    pub async fn stop(&self) {
        use PartName::*;
        self.shared.up.store(false, SeqCst);
        self.stop_all(|part| matches!(part, Console)).await;
        // Without a control plane nobody elects a new primary for a spool whose nodes are about to stop as well.
        self.stop_all(|part| matches!(part, Control)).await;
        self.stop_all(|part| matches!(part, Node(_))).await;
        self.stop_all(|part| matches!(part, Etcd | Postgres | S3)).await;
        if let Err(error) = self.shared.write_dev_file() {
            eprintln!("{error:#}");
        }
    }

    /// Kills whatever runs, at once, for when there is no time to wait.
    pub fn kill_all(&self) {
        for slot in &self.shared.slots {
            if let Some(running) = slot.running.lock().take() {
                running.wanted.store(false, SeqCst);
                if let Err(error) = running.process.id.signal_tree(Signal::KILL) {
                    eprintln!("killing {}: {error}", slot.part.name);
                }
            }
        }
    }

    async fn start_all(&self, which: impl Fn(PartName) -> bool) -> anyhow::Result<()> {
        let slots = self.shared.slots.iter().filter(|slot| which(slot.part.name));
        try_join_all(slots.map(|slot| self.launch(slot, slot.part.ready.clone()))).await?;
        Ok(())
    }

    async fn launch(&self, slot: &Slot, ready: Ready) -> anyhow::Result<()> {
        let name = slot.part.name;
        let layout = &self.shared.layout;
        let process = Process::start(&slot.part.program, &layout.log(name), &layout.pid_file(name)).await?;
        let wanted = Arc::new(AtomicBool::new(true));
        *slot.running.lock() =
            Some(Running { process: process.clone(), wanted: wanted.clone(), paused: false });
        let answers = wait_until(START_WITHIN, format!("{name} to answer"), || ready.check());
        let answered = tokio::select! {
            biased;
            _ = process.wait() => {
                wanted.store(false, SeqCst);
                slot.running.lock().take();
                bail!("{}", self.shared.obituary(name, &process));
            }
            answered = answers => answered,
        };
        tokio::spawn(watch(Arc::downgrade(&self.shared), name, process, wanted));
        answered.with_context(|| {
            let log = layout.log(name);
            format!(
                "{name} runs but does not answer; the end of {}:\n{}",
                log.display(),
                tail(&log, LOG_LINES)
            )
        })
    }

    async fn kill(&self, slot: &Slot) -> anyhow::Result<()> {
        let name = slot.part.name;
        let Some(running) = slot.running() else { bail!("{name} does not run") };
        running.wanted.store(false, SeqCst);
        let tree = running.process.id.tree();
        tree.iter().try_for_each(|id| id.signal(Signal::KILL))?;
        wait_until(SIGNAL_WITHIN, format!("{name} to be gone"), || async {
            match tree.iter().find(|id| id.is_alive()) {
                Some(id) => Err(format!("process {} is there", id.pid)),
                None => Ok(()),
            }
        })
        .await?;
        slot.running.lock().take();
        self.shared.forget_pid(name);
        Ok(())
    }

    async fn pause(&self, slot: &Slot) -> anyhow::Result<()> {
        let name = slot.part.name;
        let Some(running) = slot.running() else { bail!("{name} does not run") };
        let stopped = || async {
            // Again each time: it may have started another one meanwhile.
            running.process.id.signal_tree(Signal::STOP).map_err(|error| error.to_string())?;
            match running.process.id.tree().iter().find(|id| id.is_alive() && !id.is_stopped()) {
                Some(id) => Err(format!("process {} runs", id.pid)),
                None => Ok(()),
            }
        };
        wait_until(SIGNAL_WITHIN, format!("{name} to stand still"), stopped).await?;
        slot.set_paused(true);
        Ok(())
    }

    async fn resume(&self, slot: &Slot) -> anyhow::Result<()> {
        let name = slot.part.name;
        let Some(running) = slot.running() else { bail!("{name} does not run") };
        running.process.id.signal_tree(Signal::CONT)?;
        slot.set_paused(false);
        let ready = self.shared.readiness(&slot.part);
        wait_until(START_WITHIN, format!("{name} to answer again"), || ready.check()).await?;
        Ok(())
    }

    async fn stop_all(&self, which: impl Fn(PartName) -> bool) {
        let slots = self.shared.slots.iter().filter(|slot| which(slot.part.name));
        futures::future::join_all(slots.map(|slot| self.stop_one(slot))).await;
    }

    async fn stop_one(&self, slot: &Slot) {
        let name = slot.part.name;
        let _changing = slot.changing.lock().await;
        let Some(running) = slot.running() else { return };
        running.wanted.store(false, SeqCst);
        let id = running.process.id;
        let asked = if running.paused { id.signal_tree(Signal::CONT) } else { Ok(()) };
        if let Err(error) = asked.and_then(|()| id.signal(slot.part.program.stop_signal)) {
            eprintln!("stopping {name}: {error}");
        }
        if tokio::time::timeout(STOP_WITHIN, running.process.wait()).await.is_err() {
            eprintln!(
                "{name} does not stop within {STOP_WITHIN:?}; killing it (log: {})",
                self.shared.layout.log(name).display()
            );
            if let Err(error) = id.signal_tree(Signal::KILL) {
                eprintln!("killing {name}: {error}");
            }
            running.process.wait().await;
        }
        slot.running.lock().take();
        self.shared.forget_pid(name);
    }

    async fn first_account(&self) -> anyhow::Result<FirstAccount> {
        let known = self.shared.state.lock().account.clone();
        if let Some(account) = known {
            return Ok(account);
        }
        let account =
            self.console().new_account(self.shared.options.plan()).await.context("the first account")?;
        let mut state = self.shared.state.lock();
        state.account = Some(account.clone());
        state.save(&self.shared.layout)?;
        Ok(account)
    }
}

impl Slot {
    fn new(part: Part) -> Slot {
        Slot { part, changing: tokio::sync::Mutex::new(()), running: Mutex::new(None) }
    }

    fn running(&self) -> Option<Running> {
        self.running.lock().clone()
    }

    fn set_paused(&self, paused: bool) {
        if let Some(running) = self.running.lock().as_mut() {
            running.paused = paused;
        }
    }
}

impl Shared {
    fn slot(&self, part: PartName) -> anyhow::Result<&Slot> {
        let found = self.slots.iter().find(|slot| slot.part.name == part);
        found.with_context(|| format!("this installation has no {part}"))
    }

    fn works(&self, part: PartName) -> bool {
        self.slot(part).is_ok_and(|slot| slot.running().is_some_and(|running| !running.paused))
    }

    /// A part that is started while another one is down may never do its whole work; then it is enough that it serves.
    fn readiness(&self, part: &Part) -> Ready {
        let others = self.slots.iter().all(|slot| slot.part.name == part.name || self.works(slot.part.name));
        if others { part.ready.clone() } else { part.alive.clone() }
    }

    fn pid(&self, part: PartName) -> Option<u32> {
        Some(self.slot(part).ok()?.running()?.process.id.pid)
    }

    fn console_url(&self) -> String {
        format!("http://{}", self.ports.console())
    }

    fn obituary(&self, name: PartName, process: &Process) -> String {
        let log = self.layout.log(name);
        let how = process.exit_status().map_or("ended".to_owned(), |status| format!("ended: {status}"));
        format!("{name} {how}. The end of {}:\n{}", log.display(), tail(&log, LOG_LINES))
    }

    fn forget_pid(&self, name: PartName) {
        let path = self.layout.pid_file(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                eprintln!("removing {}: {error}", path.display());
            }
            _ => {}
        }
    }

    /// None before there is an account.
    fn dev_file(&self) -> Option<DevFile> {
        let account = self.state.lock().account.clone()?;
        let nodes = (1..=self.options.nodes).map(|number| {
            let (name, ports) = (PartName::Node(number), self.ports.node(number));
            NodeEntry {
                name: name.to_string(),
                pid: self.pid(name),
                api: format!("http://{}", ports.http),
                metrics: format!("http://{}/metrics", ports.metrics),
                data_dir: self.layout.data(name),
            }
        });
        let nodes: Vec<NodeEntry> = nodes.collect();
        Some(DevFile {
            api: nodes.iter().map(|node| node.api.clone()).collect(),
            api_tls: Vec::new(),
            ca: self.ca.clone(),
            console: self.console_url(),
            plan: account.plan,
            login: account.login,
            api_key: account.api_key,
            nodes,
            control_plane: vec![ControlEntry {
                pid: self.pid(PartName::Control),
                grpc: self.control_url.clone(),
            }],
            console_api: ProcessEntry { pid: self.pid(PartName::Console) },
            etcd: EtcdEntry { pid: self.pid(PartName::Etcd), endpoints: vec![self.etcd_url.clone()] },
            postgres: PostgresEntry { pid: self.pid(PartName::Postgres), url: self.postgres_url.clone() },
            s3: S3Entry {
                pid: self.pid(PartName::S3),
                endpoint: format!("http://{}", self.ports.s3()),
                bucket: S3_BUCKET.to_owned(),
            },
        })
    }

    fn write_dev_file(&self) -> anyhow::Result<()> {
        self.dev_file().map_or(Ok(()), |dev| dev.save(&self.layout))
    }
}

/// Says loudly when a part ends that should not have. It stays down: whoever is looking wants to see it as it is, and `fault
/// start` starts it again.
async fn watch(
    installation: std::sync::Weak<Shared>,
    name: PartName,
    process: Process,
    wanted: Arc<AtomicBool>,
) {
    process.wait().await;
    let Some(shared) = installation.upgrade() else { return };
    if !wanted.load(SeqCst) {
        return;
    }
    eprintln!("\n*** {}*** `./dev fault start {name}` starts it again.\n", shared.obituary(name, &process));
    if let Ok(slot) = shared.slot(name) {
        let _changing = slot.changing.lock().await;
        // Unless it was started again meanwhile.
        let mut running = slot.running.lock();
        if running.as_ref().is_some_and(|running| running.process.id == process.id) {
            running.take();
        }
    }
    if shared.up.load(SeqCst)
        && let Err(error) = shared.write_dev_file()
    {
        eprintln!("{error:#}");
    }
}

/// Ends what a launcher left that was killed and whose children the kernel did not stop in time.
fn end_strays(layout: &Layout) -> anyhow::Result<()> {
    let files = std::fs::read_dir(layout.run()).context("looking for processes left behind")?;
    let strays: Vec<(PathBuf, Option<Id>)> =
        files.flatten().map(|file| (file.path(), Id::load(&file.path()))).collect();
    let ids: Vec<Id> = strays.iter().filter_map(|(_, id)| *id).filter(|id| id.is_alive()).collect();
    let trees: Vec<Id> = ids.into_iter().flat_map(Id::tree).collect();
    for id in &trees {
        id.signal(Signal::KILL).with_context(|| format!("killing process {}, left behind", id.pid))?;
    }
    let begun = std::time::Instant::now();
    while let Some(id) = trees.iter().find(|id| id.is_alive()) {
        ensure!(begun.elapsed() < SIGNAL_WITHIN, "process {} of an earlier start does not end", id.pid);
        std::thread::sleep(Duration::from_millis(10));
    }
    for (path, _) in strays {
        std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

impl Drop for Shared {
    fn drop(&mut self) {
        for slot in &self.slots {
            if let Some(running) = slot.running.lock().take()
                && let Err(error) = running.process.id.signal_tree(Signal::KILL)
            {
                eprintln!("killing {}: {error}", slot.part.name);
            }
        }
    }
}
