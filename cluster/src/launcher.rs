//! The commands: `up`, `down`, `fault`, `account`.

use crate::console::Console;
use crate::dev_file::DevFile;
use crate::greeting::greeting;
use crate::installation::{Fault, Installation, is_locked};
use crate::layout::Layout;
use crate::parts::{Options, PartName};
use crate::process::tail;
use crate::socket::{self, Request};
use crate::wait::wait_until;
use anyhow::{Context, bail};
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

const UP_WITHIN: Duration = Duration::from_secs(300);
const DOWN_WITHIN: Duration = Duration::from_secs(90);

/// The parts that are programs of this workspace.
const BINARIES: [&str; 5] = ["cluster", "control-plane", "data-plane", "console-api", "opsctl"];

/// Starts everything and stays until it is told to stop: Ctrl-C, SIGTERM, or `down`.
pub async fn up(var: &Path, options: Options) -> anyhow::Result<()> {
    let layout = Layout::create(var).with_context(|| format!("making {}", var.display()))?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // The terminal was closed.
    let mut hang_up = signal(SignalKind::hangup())?;
    let (stop, mut stopped) = mpsc::channel(1);
    let opening = layout.clone();
    // PostgreSQL's first data directory takes a second or two.
    let open = move || Installation::open(opening.clone(), options, pin_binaries(&opening, &binaries()?)?);
    let installation = tokio::task::spawn_blocking(open).await??;
    socket::serve(installation.clone(), stop)?;
    let started = tokio::select! {
        started = installation.start() => started,
        _ = interrupt.recv() => Err(anyhow::anyhow!("interrupted")),
        _ = terminate.recv() => Err(anyhow::anyhow!("told to stop")),
        _ = hang_up.recv() => Err(anyhow::anyhow!("told to stop")),
        _ = stopped.recv() => Err(anyhow::anyhow!("told to stop")),
    };
    if started.is_ok() {
        let dev = installation.dev_file().context("an installation that is up has an account")?;
        println!("{}Ctrl-C stops it; {} keeps its data.", greeting(&dev), layout.root().display());
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
            _ = stopped.recv() => {}
        }
    }
    eprintln!("stopping");
    tokio::select! {
        () = installation.stop() => {}
        // A second one: at once.
        _ = interrupt.recv() => installation.kill_all(),
    }
    started
}

/// The same, as a process of its own; returns when everything answers.
pub async fn up_detached(var: &Path, options: &Options) -> anyhow::Result<()> {
    let layout = Layout::create(var).with_context(|| format!("making {}", var.display()))?;
    if is_locked(&layout)? {
        bail!("{} is already up; `./dev down` stops it", layout.root().display());
    }
    std::fs::create_dir_all(layout.logs())?;
    // What it prints has the account's password and API key in it.
    let log = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(layout.launcher_log())
        .context("the launcher's log")?;
    log.set_permissions(Permissions::from_mode(0o600)).context("the launcher's log")?;
    let mut launcher = Command::new(std::env::current_exe()?)
        .args(["up", "--background", "--nodes", &options.nodes.to_string()])
        .args([
            "--promise-ms",
            &options.promise_ms.to_string(),
            "--suspect-ms",
            &options.suspect_ms.to_string(),
        ])
        .arg("--var")
        .arg(layout.root())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("starting the launcher")?;
    wait_until(UP_WITHIN, "everything to answer", || {
        let ended = launcher.try_wait();
        let layout = &layout;
        async move {
            if let Ok(Some(status)) = ended {
                return Ok(Err(status));
            }
            match socket::ask(layout, &Request::Status).await {
                Ok(answer) if answer.up => Ok(Ok(())),
                Ok(_) => Err("it starts".to_owned()),
                Err(error) => Err(format!("{error:#}")),
            }
        }
    })
    .await?
    .map_err(|status| {
        anyhow::anyhow!("the launcher ended ({status}):\n{}", tail(&layout.launcher_log(), 60).trim_end())
    })?;
    println!(
        "{}`./dev down` stops it; {} keeps its data.",
        greeting(&DevFile::load(&layout)?),
        layout.root().display()
    );
    Ok(())
}

pub async fn down(var: &Path) -> anyhow::Result<()> {
    let layout = existing(var)?;
    if !is_locked(&layout)? {
        println!("nothing is up in {}", layout.root().display());
        return Ok(());
    }
    socket::ask(&layout, &Request::Stop).await?;
    wait_until(DOWN_WITHIN, "the launcher to end", || async {
        match is_locked(&layout) {
            Ok(false) => Ok(()),
            Ok(true) => Err("it stops its parts".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

pub async fn fault(var: &Path, fault: Fault, part: PartName) -> anyhow::Result<()> {
    socket::ask(&existing(var)?, &Request::Fault { fault, part: part.to_string() }).await?;
    Ok(())
}

/// A new account: one JSON object.
pub async fn account(var: &Path, plan: &str) -> anyhow::Result<()> {
    let layout = existing(var)?;
    let dev =
        DevFile::load(&layout).with_context(|| format!("nothing is up in {}", layout.root().display()))?;
    let account = Console::new(&dev.console).new_account(plan).await?;
    println!("{}", serde_json::to_string(&account)?);
    Ok(())
}

fn existing(var: &Path) -> anyhow::Result<Layout> {
    Layout::open(var).with_context(|| format!("there is no installation in {}", var.display()))
}

/// Where this program was built, and the others with it.
pub fn binaries() -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe().context("where this program is")?;
    let dir = exe.parent().context("a program is in a directory")?;
    // Cargo puts tests one level below.
    let dir = if dir.ends_with("deps") { dir.parent().unwrap_or(dir) } else { dir };
    for name in BINARIES {
        let path = dir.join(name);
        if !path.exists() {
            bail!("{} is not built; `cargo build --workspace --bins` builds it", path.display());
        }
    }
    Ok(dir.to_owned())
}

/// The installation's own names for the binaries. A later build, of this tree or of another that shares the target folder,
/// does not change under it what `fault start` starts.
pub fn pin_binaries(layout: &Layout, from: &Path) -> anyhow::Result<PathBuf> {
    let to = layout.bin();
    std::fs::create_dir_all(&to)?;
    for name in BINARIES {
        let (source, target) = (from.join(name), to.join(name));
        if target.exists() {
            std::fs::remove_file(&target).with_context(|| format!("removing {}", target.display()))?;
        }
        if std::fs::hard_link(&source, &target).is_err() {
            std::fs::copy(&source, &target).with_context(|| format!("copying {}", source.display()))?;
        }
    }
    Ok(to)
}
