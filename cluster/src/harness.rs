//! A small installation for a test: the real binaries, in a directory of its own, gone when the test ends.

use crate::api::{Api, Failure, Received};
use crate::console::Console;
use crate::dev_file::DevFile;
use crate::installation::{Fault, Installation};
use crate::launcher;
use crate::layout::Layout;
use crate::parts::{Options, PartName};
use crate::state::FirstAccount;
use crate::wait::wait_until;
use anyhow::{Context, ensure};
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// For a spool to find a primary again, and then some: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Cluster {
    installation: Installation,
    dev: DevFile,
    dir: Option<TempDir>,
    _turn: OwnedMutexGuard<()>,
}

/// One installation at a time in a test program: a dozen servers fill a small machine, and a test that breaks one measures how long the
/// others need.
static TURN: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);

impl Cluster {
    /// Returns when every node serves the first account's default spool.
    pub async fn start(nodes: u16) -> anyhow::Result<Cluster> {
        Self::with_options(Options { nodes, ..Options::default() }).await
    }

    pub async fn with_options(options: Options) -> anyhow::Result<Cluster> {
        let dir = tempfile::Builder::new().prefix("capstan-").tempdir().context("a directory")?;
        let mut cluster = Self::start_in(dir.path(), options).await;
        match &mut cluster {
            Ok(cluster) => cluster.dir = Some(dir),
            // What the parts wrote says why.
            Err(_) => eprintln!("the installation is kept in {}", dir.keep().display()),
        }
        cluster
    }

    /// In a directory that stays: for a second start on the same data.
    pub async fn start_in(dir: &Path, options: Options) -> anyhow::Result<Cluster> {
        let turn = TURN.clone().lock_owned().await;
        let layout = Layout::create(dir)?;
        let bin = launcher::binaries()?;
        let open =
            move || Installation::open(layout.clone(), options, launcher::pin_binaries(&layout, &bin)?);
        let installation = tokio::task::spawn_blocking(open).await??;
        installation.start().await?;
        let dev = installation.dev_file().context("an installation that is up has an account")?;
        Ok(Cluster { installation, dev, dir: None, _turn: turn })
    }

    /// In order, as Ctrl-C does.
    pub async fn stop(self) {
        self.installation.stop().await;
    }

    pub async fn fault(&self, fault: Fault, part: PartName) -> anyhow::Result<()> {
        self.installation.fault(fault, part).await
    }

    pub fn nodes(&self) -> u16 {
        self.dev.nodes.len() as u16
    }

    /// The first account, at `node-<number>`.
    pub fn api(&self, node: u16) -> Api {
        self.api_with(node, &self.dev.api_key)
    }

    pub fn api_with(&self, node: u16, key: &str) -> Api {
        Api::new(&self.dev.api[usize::from(node) - 1], key)
    }

    pub fn dev(&self) -> &DevFile {
        &self.dev
    }

    /// Nobody is signed in.
    pub fn console(&self) -> Console {
        self.installation.console()
    }

    /// As the owner of the first account.
    pub async fn owner(&self) -> anyhow::Result<Console> {
        self.console().log_in(&self.dev.login).await
    }

    pub async fn new_account(&self, plan: &str) -> anyhow::Result<FirstAccount> {
        self.console().new_account(plan).await
    }

    /// The number of the node that serves a spool, as node 1 sees it, and of one that does not.
    pub async fn primary_of(&self, spool: &str) -> anyhow::Result<u16> {
        let status = self.api(1).spool(spool).await?;
        let primary = status.primary().with_context(|| format!("{spool} has no primary: {status:?}"))?;
        number_of(primary)
    }

    /// Every node but this one.
    pub fn others(&self, node: u16) -> Vec<u16> {
        (1..=self.nodes()).filter(|other| *other != node).collect()
    }
}

/// Receives and acknowledges until the queue is empty; what it held, in the order in which it came. A service that has to
/// be asked again (503) is asked again; any other failure is the caller's.
pub async fn drain(api: &Api, queue: &str) -> anyhow::Result<Vec<Received>> {
    let mut all = Vec::new();
    let many = json!({ "max": 100 });
    loop {
        let batch = patiently("a receive", || api.receive(queue, &many)).await?;
        if batch.is_empty() {
            return Ok(all);
        }
        let tokens: Vec<String> = batch.iter().map(|message| message.token.clone()).collect();
        let settled = patiently("an ack", || api.ack_all(queue, &tokens)).await?;
        let results = settled["results"].as_array().context("results")?;
        let all_good = results.len() == tokens.len() && results.iter().all(|result| result["status"] == 204);
        ensure!(all_good, "acknowledging {} messages: {settled}", tokens.len());
        all.extend(batch);
    }
}

/// Asks again for as long as the answer is 503, which is certain to have had no effect.
pub async fn patiently<T, F>(what: &str, mut ask: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = Result<T, Failure>>,
{
    let answered = wait_until(PATIENCE, what, || {
        let asked = ask();
        async {
            match asked.await {
                Err(failure) if failure.problem().is_some_and(|problem| problem.status == 503) => {
                    Err(failure)
                }
                other => Ok(other),
            }
        }
    });
    Ok(answered.await??)
}

/// Of `node-<number>`.
pub fn number_of(alias: &str) -> anyhow::Result<u16> {
    match alias.parse() {
        Ok(PartName::Node(number)) => Ok(number),
        _ => anyhow::bail!("{alias} is no node's name"),
    }
}
