//! A private PostgreSQL: its own data directory, one database, on loopback with a password.
//!
//! PostgreSQL refuses to run as root, so root starts it as the user that its package made.

use super::{Part, PartName, Ready, Site};
use crate::layout::Layout;
use crate::process::{Program, User};
use anyhow::{Context, bail, ensure};
use rustix::process::Signal;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

const USER: &str = "postgres";
const DATABASE: &str = "capstan";

/// Who may connect: the product, with a password.
const HBA: &str = "# written by the launcher\nhost capstan capstan 127.0.0.1/32 scram-sha-256\n";

pub fn url(address: SocketAddr, password: &str) -> String {
    format!("postgres://{DATABASE}:{password}@{address}/{DATABASE}?sslmode=disable")
}

pub fn part(site: &Site<'_>) -> anyhow::Result<Part> {
    let data = site.layout.data(PartName::Postgres);
    let program = tool("postgres", &data)?
        .arg("-D")
        .arg(&data)
        .args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
        .args(["-c", &format!("port={}", site.ports.postgres().port())])
        .args(["-c", "shared_buffers=32MB", "-c", "max_wal_size=256MB", "-c", "log_checkpoints=off"]);
    let ready = Ready::PostmasterFile(data.join("postmaster.pid"));
    Ok(Part { name: PartName::Postgres, program, alive: ready.clone(), ready })
}

/// The data directory, made once. It gets its name when it is complete, so an interrupted start leaves nothing that looks
/// like one.
pub fn create(layout: &Layout, password: &str) -> anyhow::Result<()> {
    let data = layout.data(PartName::Postgres);
    if data.exists() {
        return Ok(());
    }
    let making = data.with_added_extension("new");
    if making.exists() {
        std::fs::remove_dir_all(&making).with_context(|| format!("removing {}", making.display()))?;
    }
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&making)
        .with_context(|| format!("making {}", making.display()))?;
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = ids_of(USER)?;
        std::os::unix::fs::chown(&making, Some(uid), Some(gid)).context("giving PostgreSQL its directory")?;
    }
    let initdb = tool("initdb", &making)?.arg("-D").arg(&making).args([
        "--username=postgres",
        "--auth=reject",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
    ]);
    run(&initdb, "")?;
    let hba = making.join("pg_hba.conf");
    std::fs::write(&hba, HBA).with_context(|| format!("writing {}", hba.display()))?;
    // Nobody can connect yet, so the role and its database are made without a connection.
    let single = tool("postgres", &making)?.arg("--single").arg("-D").arg(&making).arg("postgres");
    let role = format!("CREATE ROLE {DATABASE} LOGIN PASSWORD '{password}'\n");
    run(&single, &format!("{role}CREATE DATABASE {DATABASE} OWNER {DATABASE}\n"))?;
    std::fs::rename(&making, &data).with_context(|| format!("naming {}", data.display()))
}

/// A program of the server's package, as the user whose data it is.
fn tool(name: &str, data: &Path) -> anyhow::Result<Program> {
    let mut program = Program::new(find(name)?);
    program.stop_signal = Signal::INT; // without waiting for clients
    program.dir = Some(PathBuf::from("/"));
    if rustix::process::geteuid().is_root() {
        program.user = User::Other { name: USER.to_owned(), reach: false };
        if !can_enter(&program.user, data)? {
            program.user = User::Other { name: USER.to_owned(), reach: true };
        }
    }
    Ok(program)
}

/// Whether the user could use the directory by its own rights.
fn can_enter(user: &User, data: &Path) -> anyhow::Result<bool> {
    let mut test = Program::new("test").arg("-e").arg(data.parent().unwrap_or(data).join("."));
    test.user = user.clone();
    Ok(test.command().status().context("starting setpriv")?.success())
}

fn run(program: &Program, input: &str) -> anyhow::Result<()> {
    let mut command = program.command();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", program.path.display()))?;
    // A few hundred bytes, which a pipe holds; a program that has ended already says why below.
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed ({}):\n{said}", program.path.display(), output.status);
    written.with_context(|| format!("writing to {}", program.path.display()))?;
    // In single-user mode a statement that fails is a line of the log, and the exit status is 0.
    ensure!(!said.contains("ERROR:"), "{} failed:\n{said}", program.path.display());
    Ok(())
}

/// In the path, or where Debian keeps it: the newest version.
fn find(name: &str) -> anyhow::Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin").join(name)))
        })
        .filter(|(_, path)| path.exists())
        .collect();
    found.sort();
    if let Some((_, path)) = found.pop() {
        return Ok(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.exists()) {
        Some(path) => Ok(path),
        None => bail!("{name} is not installed; `./dev` installs PostgreSQL's server"),
    }
}

fn ids_of(user: &str) -> anyhow::Result<(u32, u32)> {
    let id = |flag: &str| -> anyhow::Result<u32> {
        let output = std::process::Command::new("id").args([flag, user]).output().context("starting id")?;
        ensure!(output.status.success(), "there is no user {user}, as which root would start PostgreSQL");
        String::from_utf8_lossy(&output.stdout).trim().parse().context("what id says")
    };
    Ok((id("-u")?, id("-g")?))
}
